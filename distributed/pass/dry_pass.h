/* SPDX-License-Identifier: Apache-2.0 */
/* A pass that measures memory and leaves nothing behind. */
#ifndef TREK_DISTRIBUTED_PASS_DRY_PASS_H
#define TREK_DISTRIBUTED_PASS_DRY_PASS_H

#include "distributed/grains/digest.h"
#include "distributed/team/team.h"

typedef struct trek_step trek_step;
struct trek_kept;

/* What is measured. */
typedef struct trek_dry_pass_result {
    int64_t *activations, *samples; /* [rows] of the process (team/memory.h) */
    int64_t *needed;         /* [local_ranks] the activations of each rank; NULL: not wanted */
    int64_t *ns;             /* [local_ranks] the time of each rank's forward and backward; NULL: not wanted */
    struct trek_kept *kept;  /* [local_ranks] what their modules keep (kept.h); the caller clears them. NULL: not wanted */
    trek_digest *gradients;  /* [local_ranks] of the gradients; NULL: not wanted */
} trek_dry_pass_result;

/* Returns whether a pass can be measured: not without loader and loss, over a stream, in evaluation, if layers use other ranks,
 * or if the graph carries states. */
bool trek_dry_pass_can_run(const trek_step *s);
/* Runs forward and backward of each rank's part of a batch (of a grain, and of the last grain if that is shorter), with samples
 * of the graph's loader, and writes how much memory it has needed at most in addition to what was and stays in use to
 * activations[row], and its samples to samples[row] (of a row's ranks it is the sum). Gradients, buffers, random numbers and what
 * is recorded remain as they are. Each process runs its own ranks.
 *
 * activations becomes -1 where it cannot be measured; on a GPU that several ranks have; and on CPUs without accounts. Fails as a
 * pass does. */
trek_status trek_dry_pass(trek_step *s, const trek_dry_pass_result *result);

#endif
