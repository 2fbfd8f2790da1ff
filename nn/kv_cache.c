/* SPDX-License-Identifier: Apache-2.0 */
/* Caches of keys and values. Each layer has two tensors [rows, heads, capacity, depth], of which the first positions
 * of each row are filled. A forward writes behind them, and the rows' lengths grow only after it has succeeded. */
#include "nn/kv_cache.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/backward.h"
#include "nn/kv_cache_internal.h"
#include "tensor/memory_internal.h"
#include "tensor/op.h"
#include "tensor/status_internal.h"
#include "tensor/tensor.h"

enum { FIRST_CAPACITY = 64 };

typedef struct cached_layer {
    trek_tensor *keys, *values; /* owned */
} cached_layer;

struct trek_kv_cache {
    int64_t rows, max_length; /* max_length is 0 for no limit */
    int64_t *lengths;         /* [rows] */
    cached_layer *layers;
    int n_layers, cap_layers;
    bool complete;            /* a forward has succeeded, so the set of layers is final */
    bool busy;                /* inside a forward */
};

/* A cached forward while it runs. */
typedef struct pass {
    trek_kv_cache *cache;
    const int64_t *counts;    /* NULL if every row takes all steps */
    int64_t steps;            /* -1 if not known yet */
    int next_layer;
    bool last;
    trek_var *positions, *mask; /* made when first needed, in the pass's scope */
    struct pass *before;
} pass;

static _Thread_local pass *here;

bool trek_caching(void) { return here != NULL; }

/* --- the cache ------------------------------------------------------------------------------------ */

static void drop_layers(trek_kv_cache *cache)
{
    for (int k = 0; k < cache->n_layers; k++) {
        trek_tensor_release(cache->layers[k].keys);
        trek_tensor_release(cache->layers[k].values);
    }
    cache->n_layers = 0;
}

trek_kv_cache *trek_kv_cache_new(const trek_kv_cache_opts *opts)
{
    const int64_t most = (int64_t)1 << 40; /* no memory holds more */
    trek_kv_cache_opts o = opts ? *opts : (trek_kv_cache_opts){ 0 };
    o.batch = o.batch ? o.batch : 1;
    if (o.batch < 1 || o.batch > most || o.max_length < 0 || o.max_length > most)
        return trek_fail_null(TREK_ERR_ARGUMENT, "kv_cache: .batch: %" PRId64 ", .max_length: %" PRId64 "; must be at least 1",
                              o.batch, o.max_length);
    trek_kv_cache *cache = trek_calloc(1, sizeof *cache);
    if (!cache)
        return NULL;
    *cache = (trek_kv_cache){ .rows = o.batch, .max_length = o.max_length };
    cache->lengths = trek_calloc((size_t)o.batch, sizeof *cache->lengths);
    if (!cache->lengths)
        trek_kv_cache_free(&cache);
    return cache;
}

void trek_kv_cache_free(trek_kv_cache **cache)
{
    if (!cache || !*cache)
        return;
    if ((*cache)->busy) {
        trek_fail(TREK_ERR_STATE, "kv_cache_free: the cache is in use by a forward");
        return;
    }
    drop_layers(*cache);
    trek_free((*cache)->layers);
    trek_free((*cache)->lengths);
    trek_free(*cache);
    *cache = NULL;
}

int64_t trek_kv_cache_rows(const trek_kv_cache *cache)
{
    if (!cache)
        trek_fail_missing("kv_cache_rows", "cache");
    return cache ? cache->rows : 0;
}

int64_t trek_kv_cache_length(const trek_kv_cache *cache, int64_t row)
{
    if (cache && row >= 0 && row < cache->rows)
        return cache->lengths[row];
    if (cache)
        trek_fail(TREK_ERR_ARGUMENT, "kv_cache_length: row: %" PRId64 "; there are %" PRId64, row, cache->rows);
    else
        trek_fail_missing("kv_cache_length", "cache");
    return -1;
}

static int64_t bytes_of(const trek_tensor *t) { return trek_tensor_numel(t) * (int64_t)trek_dtype_size(trek_tensor_dtype(t)); }

int64_t trek_kv_cache_bytes(const trek_kv_cache *cache)
{
    int64_t bytes = 0;
    if (!cache)
        trek_fail_missing("kv_cache_bytes", "cache");
    for (int k = 0; cache && k < cache->n_layers; k++)
        bytes += bytes_of(cache->layers[k].keys) + bytes_of(cache->layers[k].values);
    return bytes;
}

/* Checks that the cache may be changed. */
static trek_status changeable(const char *function, const trek_kv_cache *cache)
{
    if (!cache)
        return trek_fail_missing(function, "cache");
    return cache->busy ? trek_fail(TREK_ERR_STATE, "%s: the cache is in use by a forward", function) : TREK_OK;
}

static trek_status clear(trek_tensor *tensor)
{
    trek_op_call call = { .op = &trek_ops[TREK_OP_fill], .n_outputs = 1, .outputs = { tensor } };
    return trek_op_run(&call);
}

/* Positions beyond a row's length are masked. They are cleared nevertheless, because a NaN left there would survive a
 * product with 0. */
trek_status trek_kv_cache_reset(trek_kv_cache *cache)
{
    trek_status status = changeable("kv_cache_reset", cache);
    for (int k = 0; status == TREK_OK && k < cache->n_layers; k++) {
        status = clear(cache->layers[k].keys);
        if (status == TREK_OK)
            status = clear(cache->layers[k].values);
    }
    if (status == TREK_OK)
        memset(cache->lengths, 0, (size_t)cache->rows * sizeof *cache->lengths);
    return status;
}

trek_status trek_kv_cache_truncate(trek_kv_cache *cache, int64_t row, int64_t length)
{
    trek_status status = changeable("kv_cache_truncate", cache);
    if (status != TREK_OK)
        return status;
    if (row < -1 || row >= cache->rows || length < 0)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "kv_cache_truncate: row: %" PRId64 " of %" PRId64 ", length: %" PRId64
                         "; must be a row, and 0 or more positions",
                         row, cache->rows, length);
    for (int64_t k = 0; k < cache->rows; k++)
        if ((row == -1 || row == k) && cache->lengths[k] > length)
            cache->lengths[k] = length;
    return TREK_OK;
}

static int64_t longest(const trek_kv_cache *cache)
{
    int64_t most = 0;
    for (int64_t k = 0; k < cache->rows; k++)
        most = cache->lengths[k] > most ? cache->lengths[k] : most;
    return most;
}

/* Returns a part of t along dim. The caller releases it. */
static trek_tensor *part_of(trek_tensor *t, int dim, int64_t start, int64_t length)
{
    return trek_tensor_narrow(t, dim, start, length);
}

/* Copies from[.., start : start + length, ..] to to[.., at : at + length, ..], for the rows [to_row, to_row + n) of
 * `to` and as many from from_row on. */
static trek_status copy_positions(trek_tensor *to, int64_t to_row, int64_t at, trek_tensor *from, int64_t from_row, int64_t start,
                                  int64_t n, int64_t length)
{
    if (n == 0 || length == 0)
        return TREK_OK;
    trek_tensor *to_rows = part_of(to, 0, to_row, n), *from_rows = part_of(from, 0, from_row, n);
    trek_tensor *target = to_rows ? part_of(to_rows, 2, at, length) : NULL;
    trek_tensor *source = from_rows ? part_of(from_rows, 2, start, length) : NULL;
    trek_status status = target && source ? trek_tensor_copy_from(target, source) : trek_error_status();
    trek_tensor_release(to_rows);
    trek_tensor_release(from_rows);
    trek_tensor_release(target);
    trek_tensor_release(source);
    return status;
}

/* Returns a copy of the tensor's first `filled` positions with other rows (NULL for the same ones) and another
 * capacity. */
static trek_tensor *remade(trek_tensor *old, const int64_t *rows, int64_t n, int64_t capacity, int64_t filled)
{
    trek_shape shape = trek_tensor_shape(old);
    shape.sizes[0] = n;
    shape.sizes[2] = capacity;
    trek_tensor *made = trek_tensor_zeros(shape, trek_tensor_dtype(old), trek_tensor_device(old));
    trek_status status = made ? TREK_OK : trek_error_status();
    if (!rows && status == TREK_OK)
        status = copy_positions(made, 0, 0, old, 0, 0, n, filled);
    for (int64_t k = 0; rows && k < n && status == TREK_OK; k++)
        status = copy_positions(made, k, 0, old, rows[k], 0, 1, filled);
    if (status == TREK_OK)
        return made;
    trek_tensor_release(made);
    return NULL;
}

/* Returns new copies of all layers with other rows, or NULL on failure. */
static cached_layer *reordered(const trek_kv_cache *cache, const int64_t *rows, int64_t n)
{
    cached_layer *layers = trek_calloc((size_t)cache->cap_layers + 1, sizeof *layers);
    int64_t filled = longest(cache);
    bool made = layers != NULL;
    for (int k = 0; k < cache->n_layers && made; k++) {
        int64_t capacity = trek_tensor_shape(cache->layers[k].keys).sizes[2];
        layers[k].keys = remade(cache->layers[k].keys, rows, n, capacity, filled);
        layers[k].values = layers[k].keys ? remade(cache->layers[k].values, rows, n, capacity, filled) : NULL;
        made = layers[k].values != NULL;
    }
    if (made)
        return layers;
    for (int k = 0; layers && k < cache->n_layers; k++) {
        trek_tensor_release(layers[k].keys);
        trek_tensor_release(layers[k].values);
    }
    trek_free(layers);
    return NULL;
}

trek_status trek_kv_cache_reorder(trek_kv_cache *cache, const int64_t *rows, int64_t n)
{
    trek_status status = changeable("kv_cache_reorder", cache);
    if (status == TREK_OK && !rows)
        status = trek_fail_missing("kv_cache_reorder", "rows");
    if (status == TREK_OK && (n < 1 || n > (int64_t)1 << 40))
        status = trek_fail(TREK_ERR_ARGUMENT, "kv_cache_reorder: n: %" PRId64 " rows; must be at least 1", n);
    for (int64_t k = 0; status == TREK_OK && k < n; k++)
        if (rows[k] < 0 || rows[k] >= cache->rows)
            status = trek_fail(TREK_ERR_ARGUMENT, "kv_cache_reorder: row: %" PRId64 "; there are %" PRId64, rows[k], cache->rows);
    if (status != TREK_OK)
        return status;
    int64_t *lengths = trek_alloc((size_t)n * sizeof *lengths);
    cached_layer *layers = lengths ? reordered(cache, rows, n) : NULL;
    if (!layers) {
        trek_free(lengths);
        return trek_error_status();
    }
    for (int64_t k = 0; k < n; k++)
        lengths[k] = cache->lengths[rows[k]];
    int n_layers = cache->n_layers;
    drop_layers(cache);
    trek_free(cache->layers);
    trek_free(cache->lengths);
    cache->layers = layers;
    cache->n_layers = n_layers;
    cache->cap_layers++;
    cache->lengths = lengths;
    cache->rows = n;
    return TREK_OK;
}

/* --- a forward: what it asks for -------------------------------------------------------------------- */

static int64_t count_of(const pass *p, int64_t row) { return p->counts ? p->counts[row] : p->steps; }

/* The first layer of a pass determines the number of steps. */
static trek_status check_steps(pass *p, const char *what, int64_t rows, int64_t steps)
{
    if (rows != p->cache->rows)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: batch: %" PRId64 "; the cache has %" PRId64 " rows", what, rows, p->cache->rows);
    if (p->steps >= 0)
        return steps == p->steps
                   ? TREK_OK
                   : trek_fail(TREK_ERR_ARGUMENT, "%s: positions: %" PRId64 " in a forward of %" PRId64 "; must be equal", what,
                               steps, p->steps);
    for (int64_t k = 0; p->counts && k < rows; k++)
        if (p->counts[k] < 0 || p->counts[k] > steps)
            return trek_fail(TREK_ERR_ARGUMENT,
                             "%s: count: %" PRId64 " in a forward of %" PRId64 " positions; must be 0 to that many", what,
                             p->counts[k], steps);
    p->steps = steps;
    return TREK_OK;
}

/* Returns whether all rows have the same length. */
static bool even(const trek_kv_cache *cache)
{
    for (int64_t k = 1; k < cache->rows; k++)
        if (cache->lengths[k] != cache->lengths[0])
            return false;
    return true;
}

bool trek_cached_offset(int64_t *offset)
{
    if (here && !even(here->cache))
        return false;
    *offset = here ? here->cache->lengths[0] : 0;
    return true;
}

/* Makes a constant in the current scope. */
static trek_var *constant(const void *data, trek_shape shape, trek_dtype dtype, trek_device device)
{
    trek_tensor *tensor = trek_tensor_from_data(data, shape, dtype, device);
    return tensor ? trek_var_from(tensor) : NULL;
}

/* Returns the variable, which the pass keeps, with a reference for the current scope. */
static trek_var *keep(trek_var **place, trek_var *var)
{
    *place = var ? trek_var_retain(var) : NULL;
    return var;
}

trek_var *trek_cached_positions(int64_t rows, int64_t steps, trek_device device)
{
    pass *p = here;
    int64_t offset;
    if (p && check_steps(p, "token_positions", rows, steps) != TREK_OK)
        return NULL;
    if (p && p->positions && trek_device_equal(trek_var_device(p->positions), device))
        return p->positions;
    trek_var *made;
    if (trek_cached_offset(&offset)) {
        trek_tensor *numbers = trek_tensor_arange((double)offset, (double)(offset + steps), 1, TREK_I64, device);
        made = numbers ? trek_var_from(numbers) : NULL;
    } else {
        int64_t *list = trek_alloc((size_t)(rows * steps + 1) * sizeof *list);
        for (int64_t k = 0; list && k < rows * steps; k++) {
            int64_t row = k / steps, t = k % steps, count = count_of(p, row);
            list[k] = p->cache->lengths[row] + (t < count ? t : count > 0 ? count - 1 : 0);
            list[k] -= count == 0 && list[k] > 0; /* a row without new positions repeats one that it has */
        }
        made = list ? constant(list, trek_dims(rows, steps), TREK_I64, device) : NULL;
        trek_free(list);
    }
    if (p)
        trek_var_release(p->positions);
    return p ? keep(&p->positions, made) : made;
}

trek_var *trek_token_positions(trek_var *tokens)
{
    char text[TREK_SHAPE_TEXT];
    if (!tokens)
        return trek_fail_missing("token_positions", "tokens"), NULL;
    if (trek_var_ndim(tokens) < 2)
        return trek_fail_null(TREK_ERR_SHAPE, "token_positions: tokens: %s; must be [B, T, ...]",
                              trek_shape_format(trek_var_shape(tokens), text, sizeof text));
    return trek_cached_positions(trek_var_size(tokens, 0), trek_var_size(tokens, 1), trek_var_device(tokens));
}

trek_var *trek_last_positions(trek_var *x)
{
    char text[TREK_SHAPE_TEXT];
    if (!x || !here || !here->last)
        return x;
    if (trek_var_ndim(x) != 3)
        return trek_fail_null(TREK_ERR_SHAPE, "last_positions: x: %s; must be [B, T, E]",
                              trek_shape_format(trek_var_shape(x), text, sizeof text));
    int64_t rows = trek_var_size(x, 0), steps = trek_var_size(x, 1), width = trek_var_size(x, 2);
    if (check_steps(here, "last_positions", rows, steps) != TREK_OK)
        return NULL;
    if (steps == 1)
        return x;
    if (!here->counts)
        return trek_narrow(x, 1, steps - 1, 1);
    int64_t *places = trek_alloc((size_t)rows * sizeof *places);
    for (int64_t k = 0; places && k < rows; k++)
        places[k] = k * steps + (count_of(here, k) > 0 ? count_of(here, k) - 1 : 0);
    trek_var *index = places ? constant(places, trek_dims(rows), TREK_I64, trek_var_device(x)) : NULL;
    trek_free(places);
    trek_var *last = index ? trek_index_select(trek_reshape(x, trek_dims(rows * steps, width)), 0, index) : NULL;
    return trek_reshape(last, trek_dims(rows, 1, width));
}

/* --- a forward: attention ------------------------------------------------------------------------------ */

/* Returns the number of filled positions after the forward, for the longest row. */
static int64_t reached(const pass *p)
{
    int64_t most = 0;
    for (int64_t k = 0; k < p->cache->rows; k++) {
        int64_t length = p->cache->lengths[k] + count_of(p, k);
        most = length > most ? length : most;
    }
    return most;
}

static trek_status make_layer(pass *p, const trek_tensor *k)
{
    trek_kv_cache *cache = p->cache;
    if (cache->complete)
        return trek_fail(TREK_ERR_STATE,
                         "attention_cached: layer %d runs, but the forwards before had %d; all must have the same layers",
                         p->next_layer + 1, cache->n_layers);
    if (trek_array_grow(&cache->layers, &cache->cap_layers, cache->n_layers + 1, sizeof *cache->layers) != TREK_OK)
        return TREK_ERR_MEMORY;
    trek_shape shape = trek_tensor_shape(k);
    shape.sizes[2] = cache->max_length ? cache->max_length : FIRST_CAPACITY;
    cached_layer made = { .keys = trek_tensor_zeros(shape, trek_tensor_dtype(k), trek_tensor_device(k)) };
    made.values = made.keys ? trek_tensor_zeros(shape, trek_tensor_dtype(k), trek_tensor_device(k)) : NULL;
    if (!made.values) {
        trek_tensor_release(made.keys);
        return trek_error_status();
    }
    cache->layers[cache->n_layers++] = made;
    return TREK_OK;
}

static trek_status check_layer(const cached_layer *layer, const trek_tensor *k, int number)
{
    char text[TREK_SHAPE_TEXT], other[TREK_SHAPE_TEXT];
    trek_shape was = trek_tensor_shape(layer->keys), is = trek_tensor_shape(k);
    if (is.sizes[1] != was.sizes[1] || is.sizes[3] != was.sizes[3])
        return trek_fail(TREK_ERR_SHAPE, "attention_cached: keys: %s; layer %d of the cache has %s",
                         trek_shape_format(is, text, sizeof text),
                         number, trek_shape_format(was, other, sizeof other));
    if (trek_tensor_dtype(k) != trek_tensor_dtype(layer->keys))
        return trek_fail(TREK_ERR_DTYPE, "attention_cached: keys: dtype %s; layer %d of the cache has %s",
                         trek_dtype_name(trek_tensor_dtype(k)), number, trek_dtype_name(trek_tensor_dtype(layer->keys)));
    if (!trek_device_equal(trek_tensor_device(k), trek_tensor_device(layer->keys)))
        return trek_fail(TREK_ERR_DEVICE, "attention_cached: keys: they are on another device than layer %d of the cache",
                         number);
    return TREK_OK;
}

static trek_status grow(trek_kv_cache *cache, cached_layer *layer, int64_t needed)
{
    int64_t capacity = trek_tensor_shape(layer->keys).sizes[2];
    if (needed <= capacity)
        return TREK_OK;
    if (cache->max_length)
        return trek_fail(TREK_ERR_ARGUMENT, "attention_cached: positions: %" PRId64 "; the cache holds %" PRId64,
                         needed,
                         cache->max_length);
    while (capacity < needed)
        capacity *= 2;
    int64_t filled = longest(cache);
    trek_tensor *keys = remade(layer->keys, NULL, cache->rows, capacity, filled);
    trek_tensor *values = keys ? remade(layer->values, NULL, cache->rows, capacity, filled) : NULL;
    if (!values) {
        trek_tensor_release(keys);
        return trek_error_status();
    }
    trek_tensor_release(layer->keys);
    trek_tensor_release(layer->values);
    *layer = (cached_layer){ keys, values };
    return TREK_OK;
}

/* Rows of equal length are written together. */
static trek_status append(const pass *p, trek_tensor *to, trek_tensor *from)
{
    const trek_kv_cache *cache = p->cache;
    trek_status status = TREK_OK;
    for (int64_t row = 0, n; row < cache->rows && status == TREK_OK; row += n) {
        n = 1;
        while (row + n < cache->rows && cache->lengths[row + n] == cache->lengths[row] &&
               count_of(p, row + n) == count_of(p, row))
            n++;
        status = copy_positions(to, row, cache->lengths[row], from, row, 0, n, count_of(p, row));
    }
    return status;
}

/* Returns the next layer with the new positions written into it, or NULL on failure. */
static cached_layer *next_layer(pass *p, trek_tensor *k, trek_tensor *v)
{
    trek_kv_cache *cache = p->cache;
    if (p->next_layer == cache->n_layers && make_layer(p, k) != TREK_OK)
        return NULL;
    cached_layer *layer = &cache->layers[p->next_layer++];
    if (check_layer(layer, k, p->next_layer) != TREK_OK || grow(cache, layer, reached(p)) != TREK_OK ||
        append(p, layer->keys, k) != TREK_OK || append(p, layer->values, v) != TREK_OK)
        return NULL;
    return layer;
}

/* The mask is [B or 1, 1, T, S]: step t of a row sees positions up to its length + t. */
static trek_var *mask_of(pass *p, int64_t keys, trek_device device)
{
    if (p->mask && trek_device_equal(trek_var_device(p->mask), device))
        return p->mask;
    int64_t rows = even(p->cache) ? 1 : p->cache->rows;
    unsigned char *seen = trek_alloc((size_t)(rows * p->steps * keys + 1));
    for (int64_t k = 0; seen && k < rows * p->steps; k++) {
        int64_t visible = p->cache->lengths[k / p->steps] + k % p->steps + 1;
        visible = visible < keys ? visible : keys;
        memset(seen + k * keys, 1, (size_t)visible);
        memset(seen + k * keys + visible, 0, (size_t)(keys - visible));
    }
    trek_var *mask = seen ? constant(seen, trek_dims(rows, 1, p->steps, keys), TREK_BOOL, device) : NULL;
    trek_free(seen);
    trek_var_release(p->mask);
    return keep(&p->mask, mask);
}

/* Returns the filled part as a constant. */
static trek_var *filled(trek_tensor *t, int64_t keys)
{
    trek_tensor *view = part_of(t, 2, 0, keys);
    return view ? trek_var_from(view) : NULL;
}

/* For a single step, the heads that share keys are treated as steps, so that the keys are read once for all of them. */
static trek_var *attend(pass *p, const cached_layer *layer, trek_var *q, double scale)
{
    int64_t keys = reached(p), heads = trek_var_size(q, 1), depth = trek_var_size(q, 3);
    trek_var *k = filled(layer->keys, keys), *v = filled(layer->values, keys);
    int64_t groups = k ? trek_var_size(k, 1) : 1;
    trek_attention_opts opts = { .scale = scale };
    if (p->steps > 1 || !even(p->cache) || p->counts) {
        opts.mask = mask_of(p, keys, trek_var_device(q));
        if (!opts.mask)
            return NULL;
    }
    if (p->steps > 1 || groups == heads || groups < 1 || heads % groups != 0)
        return trek_attention(q, k, v, &opts);
    trek_var *y = trek_attention(trek_reshape(q, trek_dims(p->cache->rows, groups, heads / groups, depth)), k, v, &opts);
    return trek_reshape(y, trek_dims(p->cache->rows, heads, 1, depth));
}

static trek_status check_attention(const trek_var *q, const trek_var *k, const trek_var *v, const trek_attention_opts *opts)
{
    char text[TREK_SHAPE_TEXT], other[TREK_SHAPE_TEXT];
    if (!q || !k || !v)
        return trek_fail_missing("attention_cached", !q ? "q" : !k ? "k" : "v");
    if (!opts || !opts->causal)
        return trek_fail(TREK_ERR_ARGUMENT, "attention_cached: .causal: not set; only causal attention can be cached");
    if (opts->mask || opts->dropout > 0)
        return trek_fail(TREK_ERR_ARGUMENT, "attention_cached: %s together with the cache is not possible",
                         opts->mask ? "a mask" : "dropout");
    if (trek_var_ndim(q) != 4 || trek_var_ndim(k) != 4 || !trek_shape_equal(trek_var_shape(k), trek_var_shape(v)) ||
        trek_var_size(q, 2) != trek_var_size(k, 2))
        return trek_fail(TREK_ERR_SHAPE,
                         "attention_cached: q and k: %s and %s; must be [B, H, T, D] and [B, G, T, D], and v like k",
                         trek_shape_format(trek_var_shape(q), text, sizeof text),
                         trek_shape_format(trek_var_shape(k), other, sizeof other));
    return trek_var_dtype(k) == trek_var_dtype(v) ? TREK_OK
                                                  : trek_fail(TREK_ERR_DTYPE,
                                                              "attention_cached: k and v: dtypes %s and %s; must be equal",
                                                              trek_dtype_name(trek_var_dtype(k)),
                                                              trek_dtype_name(trek_var_dtype(v)));
}

trek_var *trek_attention_cached(trek_var *q, trek_var *k, trek_var *v, const trek_attention_opts *opts)
{
    pass *p = here;
    if (!p && (!opts || !opts->causal))
        return trek_fail_null(TREK_ERR_ARGUMENT, "attention_cached: .causal: not set; only causal attention can be cached");
    if (!p)
        return trek_attention(q, k, v, opts);
    if (check_attention(q, k, v, opts) != TREK_OK ||
        check_steps(p, "attention_cached", trek_var_size(k, 0), trek_var_size(k, 2)) != TREK_OK)
        return NULL;
    cached_layer *layer = next_layer(p, trek_var_data(k), trek_var_data(v));
    if (!layer)
        return NULL;
    /* padding lies behind the real tokens, where no real token sees it */
    return longest(p->cache) == 0 ? trek_attention(q, k, v, opts) : attend(p, layer, q, opts->scale);
}

/* --- a forward --------------------------------------------------------------------------------------------- */

static trek_status end_pass(pass *p, bool succeeded)
{
    trek_kv_cache *cache = p->cache;
    trek_var_release(p->positions);
    trek_var_release(p->mask);
    here = p->before;
    cache->busy = false;
    if (!succeeded) {
        if (!cache->complete)
            drop_layers(cache);
        return trek_error_status();
    }
    if (p->next_layer == 0 || p->next_layer != cache->n_layers)
        return trek_fail(TREK_ERR_STATE, "forward_cached: %d layers with causal self-attention ran, %s", p->next_layer,
                         p->next_layer == 0 ? "so that nothing is cached" : "fewer than in the forwards before");
    cache->complete = true;
    for (int64_t k = 0; k < cache->rows; k++)
        cache->lengths[k] += count_of(p, k);
    return TREK_OK;
}

trek_var *trek_forward_cached_with(trek_module *module, trek_kv_cache *cache, trek_var *const *inputs, int n,
                                   const int64_t *counts, bool last)
{
    if (!module || !cache)
        return trek_fail_missing("forward_cached", module ? "cache" : "module"), NULL;
    if (here || cache->busy)
        return trek_fail_null(TREK_ERR_STATE, "forward_cached: %s",
                              here ? "called inside another cached forward, which is not possible"
                                   : "the cache is in use by another thread");
    pass p = { .cache = cache, .counts = counts, .steps = -1, .last = last, .before = here };
    trek_scope scope = trek_scope_begin();
    if (scope.depth == 0)
        return NULL;
    here = &p;
    cache->busy = true;
    trek_no_grad_begin();
    trek_var *y = n == 1 && inputs ? trek_forward(module, inputs[0]) : trek_forward_many(module, inputs, n);
    trek_no_grad_end();
    if (end_pass(&p, y != NULL) != TREK_OK)
        y = NULL;
    return trek_scope_end_keep(scope, y);
}

trek_var *trek_forward_cached(trek_module *module, trek_kv_cache *cache, trek_var *const *inputs, int n, const int64_t *counts)
{
    return trek_forward_cached_with(module, cache, inputs, n, counts, false);
}
