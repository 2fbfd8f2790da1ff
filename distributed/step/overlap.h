/* SPDX-License-Identifier: Apache-2.0 */
/* Reduction while backward goes on: between processes, or among the GPUs of one. Internal. */
#ifndef TREK_DISTRIBUTED_STEP_OVERLAP_H
#define TREK_DISTRIBUTED_STEP_OVERLAP_H

#include "distributed/step/stepper_ranks.h"

/* Where the engine can do it: s->overlaps. */
trek_status trek_overlap_plan(ranks_stepper *s);

/* Whether the next pass is the step's last, and may send; layers that meet take the engine's time. */
bool trek_overlap_wants(const ranks_stepper *s);
/* Around a backward that all ranks make, whose gradients are the step's. */
void trek_overlap_begin(ranks_stepper *s, bool sends);
/* Of a loss on the caller's tape; what the ranks of a split forward have of it is sent as it is complete. */
trek_status trek_overlap_backward(ranks_stepper *s, trek_var *loss, trek_var *seed, bool zeros);
/* The reducer that a rank's backward tells what is complete; NULL: nothing is sent. */
trek_reducer *trek_overlap_of(const ranks_stepper *s, int rank);
/* On the rank's thread, when its part is over, has failed, or there is none: the others wait for what is left. */
trek_status trek_overlap_rest(int rank, void *stepper);
/* The same for ranks that had no part. The first failure of what was started. */
trek_status trek_overlap_end(ranks_stepper *s);
/* Waits on every rank for what was sent. */
trek_status trek_overlap_finish(ranks_stepper *s);
/* Before gradients are added to what was reduced already. */
trek_status trek_overlap_keep(ranks_stepper *s);

#endif
