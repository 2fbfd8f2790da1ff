/* SPDX-License-Identifier: Apache-2.0 */
/* The per-rank way: loader and loss are registered, and every rank runs forward and backward on its own samples. */
#ifndef TREK_DISTRIBUTED_PASS_PER_RANK_STEP_H
#define TREK_DISTRIBUTED_PASS_PER_RANK_STEP_H

#include "distributed/team/team.h"

typedef struct trek_step trek_step;

struct trek_loader;
typedef struct trek_pass trek_pass;

/* How ranks come to the batches of a window. */
typedef struct trek_window_way {
    trek_status (*begin)(trek_step *s, const struct trek_batch *window);
    trek_status (*run_rank)(const trek_pass *pass, int rank); /* on the rank's thread, in a scope */
    trek_status (*end)(trek_step *s, trek_status own); /* in any case; own: the status of begin and of the ranks */
} trek_window_way;

trek_var *trek_ranks_train_batch(trek_step *s, const struct trek_batch *batch);
/* Does the same with a window whose batches the ranks come to in another way. */
trek_var *trek_ranks_train_window(trek_step *s, const struct trek_batch *window, const trek_window_way *way);
/* Runs one batch of it on the rank's thread. */
trek_status trek_pass_run_batch(const trek_pass *pass, int rank, struct trek_batch *batch);
trek_step *trek_pass_step(const trek_pass *pass);
const struct trek_batch *trek_pass_window(const trek_pass *pass);
/* Returns a reader of the loader's batches on the rank's device. Returns NULL on failure. */
struct trek_reader *trek_ranks_reader(trek_step *s, int rank, struct trek_loader *loader);
/* Returns how many batches the ranks read themselves in the next step; 0: none. */
int64_t trek_ranks_window(trek_step *s);
/* Returns whether the ranks read their rows of a batch themselves. */
bool trek_ranks_read_parts(const trek_step *s);

#endif
