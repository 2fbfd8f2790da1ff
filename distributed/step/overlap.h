/* SPDX-License-Identifier: Apache-2.0 */
/* Reduction while backward runs: between processes, or among the GPUs of one process. */
#ifndef TREK_DISTRIBUTED_STEP_OVERLAP_H
#define TREK_DISTRIBUTED_STEP_OVERLAP_H

#include "distributed/step/stepper_ranks.h"

/* Determines whether the engine supports it: s->overlaps. */
trek_status trek_overlap_plan(ranks_stepper *s);

/* Returns whether the next pass is the step's last and may send. Layers that meet, and
 * gradients that are added up over processes, need the engine for themselves. */
bool trek_overlap_wants(const ranks_stepper *s);
/* Begins a backward pass that all ranks make and whose gradients are those of the step. */
void trek_overlap_begin(ranks_stepper *s, bool sends);
/* Runs the backward pass of a loss on the caller's tape. The gradients of the ranks of a split forward are sent when
 * they are complete. */
trek_status trek_overlap_backward(ranks_stepper *s, trek_var *loss, trek_var *seed, bool zeros);
/* Returns the reducer that a rank's backward notifies of complete gradients, or NULL if nothing is sent. */
trek_reducer *trek_overlap_of(const ranks_stepper *s, int rank);
/* Sends what is left. Called on the rank's thread when its part is over, has failed, or does not exist, because the
 * others wait for it. */
trek_status trek_overlap_rest(int rank, void *stepper);
/* Does the same for ranks that had no part. Returns the first failure of what was started. */
trek_status trek_overlap_end(ranks_stepper *s);
/* Waits on every rank for what was sent. */
trek_status trek_overlap_finish(ranks_stepper *s);
/* Called before gradients are added to those that were already reduced. */
trek_status trek_overlap_keep(ranks_stepper *s);

#endif
