/* SPDX-License-Identifier: Apache-2.0 */
/* Keys and values of the positions that a decoder has seen, so that a forward computes new positions only: docs/inference.md.
 *
 * A cache belongs to a forward (trek_forward_cached), not to a model. All causal self-attention that runs inside the forward, at
 * any depth, adds its keys and values to the cache and sees those that the cache has. One model serves any number of caches, on
 * any threads; a cache is used by one thread at a time. */
#ifndef TREK_NN_KV_CACHE_H
#define TREK_NN_KV_CACHE_H

#include "autograd/ops.h"
#include "nn/module.h"

TREK_BEGIN

/* A cache of keys and values. */
typedef struct trek_kv_cache trek_kv_cache;

/* Options of trek_kv_cache_new. */
typedef struct trek_kv_cache_opts {
    int64_t batch; /* number of rows, which are sequences that are continued together; default 1 */
    /* Largest number of positions of a row, whose memory is allocated at once.
     * Default: no limit, and memory that doubles when it is full. */
    int64_t max_length;
} trek_kv_cache_opts;

/* Returns an empty cache, or NULL on failure. The first forward determines the layers, heads, sizes, dtype and device. opts may
 * be NULL.
 * Errors: ARGUMENT if a number is negative, MEMORY. */
TREK_API trek_kv_cache *trek_kv_cache_new(const trek_kv_cache_opts *opts);

/* Frees the cache. *cache may be NULL and is NULL afterwards. Inside its own forward nothing is freed and the error is STATE. */
TREK_API void trek_kv_cache_free(trek_kv_cache **cache);

/* Returns the number of rows, or 0 with ARGUMENT if the cache is NULL. */
TREK_API int64_t trek_kv_cache_rows(const trek_kv_cache *cache);

/* Returns the number of positions that a row has, or -1 on failure.
 * Errors: ARGUMENT if the row is out of range. */
TREK_API int64_t trek_kv_cache_length(const trek_kv_cache *cache, int64_t row);

/* Returns the number of bytes that the cache has allocated for keys and values. */
TREK_API int64_t trek_kv_cache_bytes(const trek_kv_cache *cache);

/* Empties all rows. The memory is kept and set to zeros. */
TREK_API trek_status trek_kv_cache_reset(trek_kv_cache *cache);

/* Removes the positions after the first `length` of a row, or of each row if `row` is -1. A row that has fewer stays as it is.
 * Errors: ARGUMENT if the row is out of range or the length is negative. */
TREK_API trek_status trek_kv_cache_truncate(trek_kv_cache *cache, int64_t row, int64_t length);

/* Replaces the rows by n rows, where the new row k is the old row rows[k]. Rows may be repeated (beam search) or left out
 * (sequences that have ended).
 * Errors: ARGUMENT if a row is out of range or n is below 1, MEMORY. On failure nothing has changed. */
TREK_API trek_status trek_kv_cache_reorder(trek_kv_cache *cache, const int64_t *rows, int64_t n);

/* Runs the module on the next positions and returns their result, which belongs to the caller's scope.
 * Inputs: those of trek_forward_many. Each row of the cache has a row of T new positions ([B, T] or [B, T, E]). counts [B] says
 * how many of the T positions of each row are real, from 0 to T; the others are padding after them, and their results are
 * meaningless. counts NULL means all T.
 * Gradients: it runs under no_grad, whatever the state of the thread.
 * Ranks: a graph of several ranks runs on the calling thread only.
 *
 * What is cached: multihead_attention layers with .causal whose key and value are the query, and trek_attention_cached in modules
 * of the program. The cache identifies them by their order, which must be the same in every forward. Positions continue from the
 * length of each row: rotary and sinusoidal layers do so by themselves, a table of learned positions needs trek_token_positions.
 *
 * Errors: those of the module. ARGUMENT if rows, T or counts do not fit, if max_length is exceeded, or if self-attention is not
 * causal or has a mask or dropout in addition to the cache. STATE inside another cached forward, or if other layers ran than
 * before. SHAPE and DTYPE if the keys of a layer differ from the earlier ones. On failure all rows have their old length. */
TREK_API trek_var *trek_forward_cached(trek_module *module, trek_kv_cache *cache, trek_var *const *inputs, int n,
                                       const int64_t *counts);

/* --- for modules of the program -------------------------------------------- */

/* Computes trek_attention of the queries q [B, H, T, D] of new positions with keys k and values v [B, G, T, D]; in a cached
 * forward the queries also see the earlier keys and values. Outside it is trek_attention. Rotary positions must have been applied
 * to k.
 * Errors: ARGUMENT if opts does not set .causal. */
TREK_API trek_var *trek_attention_cached(trek_var *q, trek_var *k, trek_var *v, const trek_attention_opts *opts);

/* Returns the positions of tokens [B, T, ...] as i64 on their device: [T] if all rows have the same positions, otherwise [B, T],
 * where padding has the last position of its row. Outside of cached forwards it returns 0, 1, and so on. */
TREK_API trek_var *trek_token_positions(trek_var *tokens);

/* Returns only the last real position of each row of x [B, T, E], as [B, 1, E], if the forward needs only the last results (in
 * trek_generate), and x otherwise. Use it before a head with many outputs. */
TREK_API trek_var *trek_last_positions(trek_var *x);

TREK_END

#endif
