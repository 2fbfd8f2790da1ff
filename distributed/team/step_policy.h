/* SPDX-License-Identifier: Apache-2.0 */
/* What a pass and a step mean: a row of functions for each policy. All other code asks the row of its step
 * (trek_step.policy), so that a new policy is a file with its functions and its row. */
#ifndef TREK_DISTRIBUTED_TEAM_STEP_POLICY_H
#define TREK_DISTRIBUTED_TEAM_STEP_POLICY_H

#include "distributed/team/team.h"

typedef struct trek_step trek_step;

typedef struct trek_step_policy {
    const char *name;
    bool sums;               /* the gradients of all ranks are summed to those of the step; otherwise each rank's are its own */
    const char *obstacle;    /* why its steps cannot be recorded as captured work; NULL: they can */

    /* Trains on a batch or a window, or computes its loss. Returns the mean loss. */
    trek_var *(*train_batch)(trek_step *s, const struct trek_batch *batch);
    /* Returns how many batches the ranks read themselves in the next pass; 0: none. */
    int64_t (*window)(trek_step *s);
    /* Of a pass that trains by per_rank_step.c: before it; after a rank has run a batch backward, on the rank's thread (NULL:
     * nothing); and after it, with the number of its batches (NULL: nothing). */
    trek_status (*begin_pass)(trek_step *s);
    trek_status (*after_batch)(trek_step *s, int rank);
    void (*end_pass)(trek_step *s, int64_t batches);

    trek_status (*backward)(trek_step *s, trek_var *loss, double weight);
    trek_status (*reduce)(trek_step *s);
    trek_status (*step)(trek_step *s);
} trek_step_policy;

#endif
