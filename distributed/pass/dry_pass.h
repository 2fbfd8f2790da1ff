/* SPDX-License-Identifier: Apache-2.0 */
/* A pass that measures memory and leaves nothing behind. */
#ifndef TREK_DISTRIBUTED_PASS_DRY_PASS_H
#define TREK_DISTRIBUTED_PASS_DRY_PASS_H

#include "distributed/team/team.h"

typedef struct trek_step trek_step;

/* Runs forward and backward of each rank's part of a batch (of a grain, and of the last grain if that is shorter), with samples
 * of the graph's loader, and writes how much memory it has needed at most in addition to what was and stays in use to
 * activations[row], and its samples to samples[row] (team/memory.h; of a row's ranks it is the sum). Gradients, buffers, random
 * numbers and what is recorded remain as they are. Each process runs its own ranks.
 *
 * activations becomes -1 where it cannot be measured: without loader and loss; over a stream; in evaluation; if layers use other
 * ranks, or the graph carries states; on a GPU that several ranks have; and on CPUs without accounts. Fails as a pass does. */
trek_status trek_dry_pass(trek_step *s, int64_t *activations, int64_t *samples);

#endif
