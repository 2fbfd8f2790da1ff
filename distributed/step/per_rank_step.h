/* SPDX-License-Identifier: Apache-2.0 */
/* The per-rank way: loader and loss are registered, and every rank runs forward and backward on its own samples. */
#ifndef TREK_DISTRIBUTED_STEP_PER_RANK_STEP_H
#define TREK_DISTRIBUTED_STEP_PER_RANK_STEP_H

#include "distributed/step/step.h"

struct trek_loader;

trek_var *trek_ranks_train_batch(trek_step *s, const struct trek_batch *batch);
/* Returns a reader of the loader's batches on the rank's device. Returns NULL on failure. */
struct trek_reader *trek_ranks_reader(trek_step *s, int rank, struct trek_loader *loader);
/* Returns how many batches the ranks read themselves in the next step; 0: none. */
int64_t trek_ranks_window(trek_step *s);
/* Returns whether the ranks read their rows of a batch themselves. */
bool trek_ranks_read_parts(const trek_step *s);

#endif
