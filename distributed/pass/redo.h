/* SPDX-License-Identifier: Apache-2.0 */
/* A step without grains in a job that outlives some of its processes (job/survival.h). What a process has computed of a batch
 * dies with it, in the middle of sums that nobody can take apart again. So those that are left drop what the step has so far,
 * divide its batches among themselves, and make all of its passes again: each sample counts once, as if nobody had died.
 *
 * A pass is an operation of all processes; its commit comes when all weights are known. A step is another one, whose commit comes
 * before the update. Passes that were made in an earlier group than the present one are made again before the next operation of
 * their graph. */
#ifndef TREK_DISTRIBUTED_PASS_REDO_H
#define TREK_DISTRIBUTED_PASS_REDO_H

#include "distributed/team/passes.h"
#include "distributed/team/step.h"

struct trek_batch;

/* Makes what that needs. Fails with UNSUPPORTED, and says why, if passes of the graph cannot be made again, or with MEMORY. */
trek_status trek_redo_make(trek_step *s);
void trek_redo_free(trek_step *s);
/* Returns whether passes of this step are made again. */
static inline bool trek_redoes(const trek_step *s) { return s->redo && s->job.survival; }
/* Trains on a batch. If processes die, those that are left make the pass again, and those before it in the step. */
trek_var *trek_redo_train_batch(trek_step *s, const struct trek_batch *batch);
/* Makes all passes of the step again if they were made in another group than the present one. */
trek_status trek_redo_passes(trek_step *s);
/* Fails with UNSUPPORTED: a program's own forward and backward cannot be made again. */
trek_status trek_redo_refuse(const char *function);

#endif
