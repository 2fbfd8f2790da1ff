/* SPDX-License-Identifier: Apache-2.0 */
/* Reduction while backward runs: between processes, or among the GPUs of one process. */
#ifndef TREK_DISTRIBUTED_REDUCE_OVERLAP_H
#define TREK_DISTRIBUTED_REDUCE_OVERLAP_H

#include "distributed/team/team.h"

typedef struct trek_step trek_step;

/* Determines whether the engine supports it: s->overlap.possible. */
trek_status trek_overlap_plan(trek_step *s);

/* Returns whether the next pass is the step's last and may send. Layers that meet, and gradients that are added up over
 * processes, need the engine for themselves. */
bool trek_overlap_wants(const trek_step *s);
/* Returns whether gradients that are results, with a history, were added up over the processes in this step, so that backward may
 * do that, too, and needs the engine for itself. joins: notes that they were. */
bool trek_overlap_yields(trek_step *s, bool joins);
/* Begins a backward pass that sends: all ranks make it, and its gradients are those of the step. */
void trek_overlap_begin(trek_step *s);
/* Returns the reducer that a rank's backward notifies of complete gradients, or NULL if nothing is sent. */
trek_reducer *trek_overlap_of(const trek_step *s, int rank);
/* Sends what is left. Called on the rank's thread when its part is over, has failed, or does not exist, because the
 * others wait for it. */
trek_status trek_overlap_rest(int rank, void *stepper);
/* Does the same for ranks that had no part. Returns the first failure of what was started. */
trek_status trek_overlap_end(trek_step *s);
/* Waits on every rank for what was sent. */
trek_status trek_overlap_finish(trek_step *s);
/* Called before a further pass adds gradients to those that were already reduced. It waits for what was sent; then one
 * rank keeps the sum, and the others set their gradients to zero. */
trek_status trek_overlap_keep(trek_step *s);

#endif
