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

/* How far replicas have come apart lately (s->drift is the last), and what windows are to do about it. */
trek_drift_verdict trek_average_judge(ranks_stepper *s);

/* The flat tensor of a part: masters (state < 0), or an optimizer's state; NULL: there is none. */
trek_tensor *trek_average_source(const rank_replica *own, int part, int state);
/* Some of its elements, in the present scope. */
trek_var *trek_average_view(trek_tensor *flat, int64_t begin, int64_t count);
/* 16-bit parameters become what their masters round to. */
trek_status trek_average_round(const rank_replica *own, int part, int64_t begin, int64_t count);

#endif
