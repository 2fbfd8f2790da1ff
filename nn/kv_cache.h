/* SPDX-License-Identifier: Apache-2.0 */
/* Keys and values of positions that a decoder has seen, so that a forward computes new positions alone: docs/inference.md.
 *
 * A cache goes with a forward (trek_forward_cached), not with a model: whatever causal self-attention runs inside, at any depth,
 * adds its keys and values to the cache and sees those that are there. One model serves any number of caches, on any threads; a
 * cache is used by one thread at a time. */
#ifndef TREK_NN_KV_CACHE_H
#define TREK_NN_KV_CACHE_H

#include "autograd/ops.h"
#include "nn/module.h"

TREK_BEGIN

typedef struct trek_kv_cache trek_kv_cache;

typedef struct trek_kv_cache_opts {
    int64_t batch;            /* rows, sequences that go on side by side; default 1 */
    int64_t max_length;       /* positions of a row; the room for them is made at once; default: no limit, and room that grows (it
                               * doubles) */
} trek_kv_cache_opts;

/* Empty. Layers, heads, depth, dtype and device are those of the first forward; opts may be NULL. NULL: ARGUMENT, MEMORY. */
TREK_API trek_kv_cache *trek_kv_cache_new(const trek_kv_cache_opts *opts);
TREK_API void trek_kv_cache_free(trek_kv_cache **cache); /* NULL is fine; STATE (and nothing done) inside its own forward */
TREK_API int64_t trek_kv_cache_rows(const trek_kv_cache *cache); /* sequences side by side */
/* Positions that a row has; -1 and ARGUMENT: there is no such row. */
TREK_API int64_t trek_kv_cache_length(const trek_kv_cache *cache, int64_t row);
TREK_API int64_t trek_kv_cache_bytes(const trek_kv_cache *cache); /* of memory that it holds for keys and values */

/* All rows begin anew; the memory stays, as zeros. */
TREK_API trek_status trek_kv_cache_reset(trek_kv_cache *cache);
/* Drops what row `row` (-1: each row) has beyond `length` positions; a row that has fewer stays as it is. */
TREK_API trek_status trek_kv_cache_truncate(trek_kv_cache *cache, int64_t row, int64_t length);
/* n rows, row k being what row rows[k] was: for beams, whose rows may be repeated, and for batches of which some have ended. On
 * failure (MEMORY; ARGUMENT: there is no such row, or n is below 1) nothing has changed. */
TREK_API trek_status trek_kv_cache_reorder(trek_kv_cache *cache, const int64_t *rows, int64_t n);

/* Runs the module on further positions: inputs as trek_forward_many has them, in which each row of the cache has a row of T new
 * positions ([B, T], [B, T, E]); the result is theirs, in the caller's scope. counts [B]: how many of its T new positions a row
 * really has, from 0 to T, the rest being padding behind them, whose results mean nothing; NULL: all T. Under no_grad, whatever
 * the thread's state; a graph of several ranks runs on the calling thread alone.
 *
 * What is cached: multihead_attention layers with .causal where key and value are the query, and trek_attention_cached in
 * modules of one's own. They are told apart by their order, which has to be the same in every forward. Positions go on from each
 * row's length in rotary and sinusoidal layers by themselves, and in a table of learned ones by trek_token_positions.
 *
 * On failure rows are as long as before. Errors: what the module reports; ARGUMENT: rows, T or counts do not fit, max_length is
 * reached, self-attention that is not causal, or has a mask or dropout beside the cache; STATE: inside another cached forward, or
 * other layers ran than before; SHAPE and DTYPE: a layer's keys are not as they were. */
TREK_API trek_var *trek_forward_cached(trek_module *module, trek_kv_cache *cache, trek_var *const *inputs, int n,
                                       const int64_t *counts);

/* -- in modules of one's own; outside cached forwards as if there were no cache -- */

/* trek_attention of new positions' q [B, H, T, D], k and v [B, G, T, D], which sees the earlier ones, too, in a cached forward.
 * opts must have .causal (ARGUMENT). k as rotary positions have left it. */
TREK_API trek_var *trek_attention_cached(trek_var *q, trek_var *k, trek_var *v, const trek_attention_opts *opts);
/* Positions of tokens [B, T, ...], i64 on their device: [T] where all rows have the same, else [B, T], padding having its row's
 * last one. 0, 1, .. outside. */
TREK_API trek_var *trek_token_positions(trek_var *tokens);
/* x [B, T, E], or in a forward of which the last results alone are wanted (trek_generate's) each row's last real position,
 * [B, 1, E]: before a head that is wide. */
TREK_API trek_var *trek_last_positions(trek_var *x);

TREK_END

#endif
