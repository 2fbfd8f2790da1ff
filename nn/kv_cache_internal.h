/* SPDX-License-Identifier: Apache-2.0 */
/* What layers ask of the cached forward that the calling thread is in. Internal. */
#ifndef TREK_NN_KV_CACHE_INTERNAL_H
#define TREK_NN_KV_CACHE_INTERNAL_H

#include "nn/kv_cache.h"

bool trek_caching(void); /* whether it is in one */
/* The positions of `steps` new tokens, as trek_token_positions has them; NULL and an error. */
trek_var *trek_cached_positions(int64_t rows, int64_t steps, trek_device device);
/* The same where all rows go on from one position: true, and that one. False and no error where they do not. */
bool trek_cached_offset(int64_t *offset);
/* trek_forward_cached; `last`: trek_last_positions gives the last ones. */
trek_var *trek_forward_cached_with(trek_module *module, trek_kv_cache *cache, trek_var *const *inputs, int n,
                                   const int64_t *counts, bool last);

#endif
