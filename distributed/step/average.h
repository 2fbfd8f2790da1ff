/* SPDX-License-Identifier: Apache-2.0 */
/* Averages parameters instead of gradients. */
#ifndef TREK_DISTRIBUTED_STEP_AVERAGE_H
#define TREK_DISTRIBUTED_STEP_AVERAGE_H

#include "distributed/step/stepper_ranks.h"

/* Allocates memory, once. */
trek_status trek_average_plan(ranks_stepper *s);
/* Sets every rank's optimizer as rank 0's is set. Fails with STATE if there is no optimizer. */
trek_status trek_average_begin_pass(ranks_stepper *s);
/* Makes a step of the calling rank with its own gradients, which are zero afterwards. */
trek_status trek_average_local_step(ranks_stepper *s, int rank);
/* Averages for trek_graph_step: replaces parameters, optimizer states and buffers of all ranks by their means. The
 * graph's steps increase by the batches of all ranks. A failure in the middle of averaging, after which replicas may
 * differ, fails all ranks and ends the group of processes. */
trek_status trek_ranks_average(ranks_stepper *s);

/* Judges how far replicas have moved apart lately (s->drift is the last value), and what windows must do about it. */
trek_drift_verdict trek_average_judge(ranks_stepper *s);

/* Returns the flat tensor of a part: the masters (state < 0), or a state of the optimizer. Returns NULL if it does
 * not exist. */
trek_tensor *trek_average_source(const rank_replica *own, int part, int state);
/* Returns a view of some of its elements, in the current scope. */
trek_var *trek_average_view(trek_tensor *flat, int64_t begin, int64_t count);
/* Rounds masters to 16-bit parameters. */
trek_status trek_average_round(const rank_replica *own, int part, int64_t begin, int64_t count);

#endif
