/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters are averaged instead of gradients. Internal. */
#ifndef TREK_DISTRIBUTED_STEP_AVERAGE_H
#define TREK_DISTRIBUTED_STEP_AVERAGE_H

#include "distributed/step/stepper_ranks.h"

/* Room: once. */
trek_status trek_average_plan(ranks_stepper *s);
/* Every rank's optimizer is set as rank 0's. STATE without one. */
trek_status trek_average_begin_pass(ranks_stepper *s);
/* The calling rank uses the gradients that it has; they are zero afterwards. */
trek_status trek_average_local_step(ranks_stepper *s, int rank);
/* trek_graph_step: parameters, optimizer states and buffers of all ranks become their means. The graph's steps grow by the
 * batches of all ranks. A failure in mid-average, after which replicas may differ,
 * is one of all ranks, and ends the group of processes. */
trek_status trek_ranks_average(ranks_stepper *s);

#endif
