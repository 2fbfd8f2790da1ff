/* SPDX-License-Identifier: Apache-2.0 */
/* What layers ask about the cached forward that the calling thread is in. */
#ifndef TREK_NN_KV_CACHE_INTERNAL_H
#define TREK_NN_KV_CACHE_INTERNAL_H

#include "nn/kv_cache.h"

bool trek_caching(void); /* whether it is in one */
/* Returns the positions of `steps` new tokens, as trek_token_positions does, or NULL on failure. */
trek_var *trek_cached_positions(int64_t rows, int64_t steps, trek_device device);
/* If all rows continue from the same position, returns true and that position. Returns false without an error if they
 * do not. */
bool trek_cached_offset(int64_t *offset);
/* Like trek_forward_cached. With `last`, trek_last_positions selects the last positions. */
trek_var *trek_forward_cached_with(trek_module *module, trek_kv_cache *cache, trek_var *const *inputs, int n,
                                   const int64_t *counts, bool last);

#endif
