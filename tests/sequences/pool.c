/* SPDX-License-Identifier: Apache-2.0 */
/* What the calls of a random sequence draw. */
#include "autograd/leaf.h"
#include "nn/module_tree.h"
#include "tensor/creation.h"
#include "tensor/dtypes.h"
#include "tensor/shapes.h"
#include "tests/sequences/sequence.h"

#include <math.h>
#include <string.h>

uint64_t pool_next(pool *p)
{
    uint64_t z = p->state += 0x9E3779B97F4A7C15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

int pool_below(pool *p, int n) { return (int)(pool_next(p) % (uint64_t)n); }
bool pool_chance(pool *p, int percent) { return pool_below(p, 100) < percent; }

static trek_var *any(pool *p)
{
    for (int tries = 0; tries < 4; tries++) {
        trek_var *var = p->slots[pool_below(p, POOL_SLOTS)];
        if (var)
            return var;
    }
    return NULL;
}

trek_var *pool_var(pool *p) { return pool_chance(p, 2) ? NULL : any(p); }

/* A variable for which `fits` holds, in most cases; else any. */
static trek_var *fitting(pool *p, const void *with, bool (*fits)(const trek_var *var, const void *with))
{
    if (pool_chance(p, 15))
        return pool_var(p);
    int start = pool_below(p, POOL_SLOTS);
    for (int k = 0; k < POOL_SLOTS; k++) {
        trek_var *var = p->slots[(start + k) % POOL_SLOTS];
        if (var && fits(var, with))
            return var;
    }
    return any(p);
}

static bool same_shape(const trek_var *var, const void *with)
{
    return trek_shape_equal(trek_var_shape(var), trek_var_shape(with));
}
static bool is_index(const trek_var *var, const void *with)
{
    (void)with;
    trek_dtype dtype = trek_var_dtype(var);
    return dtype == TREK_I64 || dtype == TREK_I32 || dtype == TREK_U8;
}
trek_var *pool_like(pool *p, trek_var *x) { return x ? fitting(p, x, same_shape) : pool_var(p); }
trek_var *pool_index(pool *p) { return fitting(p, NULL, is_index); }

trek_var *const *pool_list(pool *p)
{
    trek_var *first = pool_var(p);
    for (int k = 0; k < POOL_LIST; k++)
        p->list[k] = k ? pool_like(p, first) : first;
    return pool_chance(p, 2) ? NULL : p->list;
}

double pool_number(pool *p)
{
    static const double few[] = { 0, 1, -1, 2, 0.5, -0.5, 3, 0.1, 1e-3, 100, -2, 1e-5, 1e10, 1e300, INFINITY, -INFINITY, NAN,
                                  -0.0 };
    return few[pool_below(p, pool_chance(p, 80) ? 12 : 18)];
}

int64_t pool_integer(pool *p)
{
    static const int64_t few[] = { 0, 1, 2, 3, -1, -2, 5, 7, 64, -100, INT64_MAX, INT64_MIN, (int64_t)1 << 31, (int64_t)1 << 40 };
    return few[pool_below(p, pool_chance(p, 85) ? 7 : 14)];
}

int pool_dim(pool *p)
{
    static const int few[] = { 0, -1, 1, -2, 2, 3, -3, 8, -9, INT32_MAX, INT32_MIN };
    return few[pool_below(p, pool_chance(p, 90) ? 5 : 11)];
}

static int64_t small_size(pool *p)
{
    static const int64_t sizes[] = { 1, 2, 3, 4, 4, 4, 5, 7, 0, 17, 33 };
    return sizes[pool_below(p, pool_chance(p, 90) ? 8 : 11)];
}

trek_shape pool_shape(pool *p)
{
    static const int ndims[] = { 0, 1, 1, 2, 2, 2, 3, 3, 4, 5, 8 };
    trek_shape shape = { .ndim = ndims[pool_below(p, pool_chance(p, 95) ? 9 : 11)] };
    for (int d = 0; d < shape.ndim; d++)
        shape.sizes[d] = d < 4 ? small_size(p) : 1;
    return shape;
}

trek_shape pool_sizes(pool *p, trek_var *x)
{
    trek_shape shape = x ? trek_var_shape(x) : pool_shape(p);
    switch (pool_below(p, 6)) {
    case 0:
        return trek_dims(-1);
    case 1: /* the order turned */
        for (int d = 0; d < shape.ndim / 2; d++) {
            int64_t size = shape.sizes[d];
            shape.sizes[d] = shape.sizes[shape.ndim - 1 - d];
            shape.sizes[shape.ndim - 1 - d] = size;
        }
        return shape;
    case 2:
        if (shape.ndim)
            shape.sizes[pool_below(p, shape.ndim)] = pool_integer(p);
        return shape;
    case 3: /* an order of dimensions */
        for (int d = 0; d < shape.ndim; d++)
            shape.sizes[d] = shape.ndim - 1 - d;
        return shape;
    case 4:
        return trek_shape_make((int64_t[]){ 2, -1, 4, 1, 1, 1, 1, 1, 1 }, pool_chance(p, 10) ? 9 : pool_below(p, 4));
    default:
        return shape;
    }
}

trek_shape pool_dims(pool *p)
{
    trek_shape dims = { .ndim = pool_below(p, 3) };
    for (int d = 0; d < dims.ndim; d++)
        dims.sizes[d] = pool_dim(p);
    if (pool_chance(p, 1))
        dims.ndim = pool_chance(p, 50) ? 9 : -1;
    return dims;
}

trek_dtype pool_dtype(pool *p)
{
    return pool_chance(p, 1) ? (trek_dtype)pool_below(p, 100) : pool_chance(p, 50) ? TREK_F32
        : (trek_dtype)pool_below(p, TREK_DTYPE_COUNT);
}

trek_device pool_device(pool *p)
{
    return pool_chance(p, 1) ? (trek_device){ (trek_device_type)pool_below(p, 4), pool_dim(p) } : trek_cpu(pool_chance(p, 3));
}

static void pair(pool *p, int64_t *two, int from)
{
    two[0] = pool_chance(p, 5) ? pool_integer(p) : from + pool_below(p, 3);
    two[1] = pool_chance(p, 50) ? 0 : pool_chance(p, 5) ? pool_integer(p) : from + pool_below(p, 3);
}

const trek_conv_opts *pool_conv(pool *p)
{
    p->conv = (trek_conv_opts){ .groups = pool_chance(p, 80) ? 1 : pool_integer(p) };
    pair(p, p->conv.stride, 0);
    pair(p, p->conv.padding, 0);
    if (pool_chance(p, 20))
        pair(p, p->conv.dilation, 0);
    return pool_chance(p, 30) ? NULL : &p->conv;
}

const trek_conv_transpose_opts *pool_conv_transpose(pool *p)
{
    p->transposed = (trek_conv_transpose_opts){ .groups = pool_chance(p, 80) ? 1 : pool_integer(p) };
    pair(p, p->transposed.stride, 0);
    pair(p, p->transposed.padding, 0);
    if (pool_chance(p, 30))
        pair(p, p->transposed.output_padding, 0);
    if (pool_chance(p, 20))
        pair(p, p->transposed.dilation, 0);
    if (pool_chance(p, 20))
        pair(p, p->transposed.output_size, 3);
    return pool_chance(p, 30) ? NULL : &p->transposed;
}

const trek_pool_opts *pool_pooling(pool *p)
{
    p->pooling = (trek_pool_opts){ .ceil_mode = pool_chance(p, 30),
                                   .exclude_padding = pool_chance(p, 30),
                                   .divisor_override = pool_chance(p, 20) ? pool_below(p, 5) - 2 : 0 };
    pair(p, p->pooling.kernel, 1);
    if (pool_chance(p, 50))
        pair(p, p->pooling.stride, 1);
    if (pool_chance(p, 30))
        pair(p, p->pooling.padding, 0);
    if (pool_chance(p, 10))
        pair(p, p->pooling.dilation, 1);
    return pool_chance(p, 3) ? NULL : &p->pooling;
}

const trek_attention_opts *pool_attention(pool *p)
{
    p->attention = (trek_attention_opts){ .causal = pool_chance(p, 50), .scale = pool_chance(p, 80) ? 0 : pool_number(p),
                                          .mask = pool_chance(p, 60) ? NULL : pool_var(p),
                                          .dropout = pool_chance(p, 80) ? 0 : pool_number(p) };
    return pool_chance(p, 30) ? NULL : &p->attention;
}

trek_reduction pool_reduction(pool *p)
{
    static const trek_reduction of_losses[] = { TREK_REDUCTION_MEAN, TREK_REDUCTION_SUM, TREK_REDUCTION_NONE };
    return pool_chance(p, 95) ? of_losses[pool_below(p, 3)] : (trek_reduction)pool_below(p, 9);
}

const trek_cross_entropy_opts *pool_entropy(pool *p)
{
    p->entropy = (trek_cross_entropy_opts){ .weight = pool_chance(p, 80) ? NULL : pool_var(p),
                                            .ignore_index = pool_chance(p, 60) ? 0 : pool_integer(p),
                                            .label_smoothing = pool_chance(p, 60) ? 0 : pool_number(p),
                                            .reduction = pool_reduction(p) };
    return pool_chance(p, 30) ? NULL : &p->entropy;
}

/* --- variables -------------------------------------------------------------------------- */

static trek_tensor *numbers(pool *p, trek_shape shape, trek_dtype dtype, trek_device device)
{
    switch (pool_below(p, 6)) {
    case 0:
        return trek_tensor_zeros(shape, dtype, device);
    case 1:
        return trek_tensor_full(shape, pool_number(p), dtype, device);
    case 2:
        return trek_tensor_randint(0, 1 + pool_below(p, 6), shape, dtype, device);
    default:
        return trek_dtype_is_float(dtype) ? trek_tensor_randn(shape, dtype, device)
            : trek_tensor_randint(-3, 4, shape, dtype, device);
    }
}

/* --- variables that are made to fit a call --------------------------------------------------- */

static trek_var *fit(pool *p, trek_dtype dtype, trek_shape shape)
{
    if (pool_chance(p, 6))
        return pool_var(p);
    trek_tensor *made = numbers(p, shape, pool_chance(p, 5) ? pool_dtype(p) : dtype, trek_cpu(0));
    trek_var *var = made ? trek_var_from(made) : NULL;
    if (var && trek_dtype_is_float(trek_var_dtype(var)) && pool_chance(p, 60)) {
        trek_var_set_requires_grad(var, true);
        pool_leaf_made(p, var);
    }
    return var;
}

/* Beside x: of its dtype, or of another floating one. */
static trek_dtype beside(pool *p, trek_var *x)
{
    trek_dtype dtype = x ? trek_var_dtype(x) : TREK_F32;
    return pool_chance(p, 12) || !trek_dtype_is_float(dtype) ? (trek_dtype)pool_below(p, 4) : dtype;
}

static int64_t size_at(trek_var *x, int dim)
{
    int n = x ? trek_var_ndim(x) : 0;
    return n == 0 || dim >= n ? 1 : trek_var_shape(x).sizes[dim < 0 ? n + dim : dim];
}

trek_var *pool_mask(pool *p, trek_var *x) { return fit(p, TREK_BOOL, x ? trek_var_shape(x) : trek_dims_none()); }
trek_var *pool_matrix(pool *p, trek_var *x) { return fit(p, beside(p, x), trek_dims(p->out, size_at(x, -1))); }
trek_var *pool_row(pool *p, trek_var *x) { return pool_chance(p, 35) ? NULL : fit(p, beside(p, x), trek_dims(size_at(x, -1))); }
trek_var *pool_channels(pool *p, trek_var *x)
{
    return pool_chance(p, 35) ? NULL : fit(p, beside(p, x), trek_dims(size_at(x, 1)));
}
trek_var *pool_bias(pool *p) { return pool_chance(p, 35) ? NULL : fit(p, TREK_F32, trek_dims(p->out)); }
trek_var *pool_image(pool *p) { return fit(p, TREK_F32, trek_dims(2, p->out, 5, 4)); }
trek_var *pool_filter(pool *p) { return fit(p, TREK_F32, trek_dims(3, p->out, 2, 2)); }
trek_var *pool_transposed_filter(pool *p) { return fit(p, TREK_F32, trek_dims(p->out, 3, 2, 2)); }
trek_var *pool_filter_bias(pool *p) { return pool_chance(p, 35) ? NULL : fit(p, TREK_F32, trek_dims(3)); }
int pool_normalized(pool *p) { return pool_chance(p, 75) ? 1 : pool_below(p, 4); }
double pool_eps(pool *p) { return pool_chance(p, 80) ? 1e-5 : pool_number(p); }

trek_var *pool_labels(pool *p, trek_var *x)
{
    trek_shape shape = x ? trek_var_shape(x) : trek_dims_none();
    int64_t classes = size_at(x, -1);
    if (!shape.ndim || classes < 1 || pool_chance(p, 12))
        return pool_index(p);
    shape.ndim--;
    trek_tensor *made = trek_tensor_randint(0, classes, shape, pool_chance(p, 70) ? TREK_I64 : TREK_I32, trek_cpu(0));
    return made ? trek_var_from(made) : NULL;
}

/* --- the pool ---------------------------------------------------------------------------------- */

trek_var *pool_leaf(pool *p)
{
    trek_dtype dtype = pool_dtype(p);
    trek_tensor *made = numbers(p, pool_shape(p), dtype, pool_device(p));
    trek_var *leaf = made ? trek_var_new(made, trek_dtype_is_float(dtype) ? pool_chance(p, 60) : pool_chance(p, 3)) : NULL;
    trek_tensor_release(made);
    return leaf;
}

void pool_keep(pool *p, trek_var *var)
{
    if (!var || trek_var_numel(var) > 1024) /* sequences stay fast */
        return;
    int slot = pool_below(p, POOL_SLOTS);
    trek_var_retain(var);
    pool_drop(p, slot);
    p->slots[slot] = var;
}

void pool_drop(pool *p, int slot)
{
    trek_var *old = p->slots[slot];
    p->slots[slot] = NULL;
    if (old)
        trek_var_zero_grad(old); /* one that was set may hold its variable */
    trek_var_release(old);
}

void pool_leaf_made(pool *p, trek_var *var)
{
    if (var && p->n_leaves < POOL_LEAVES)
        p->leaves[p->n_leaves++] = trek_var_retain(var);
}

void pool_begin(pool *p, uint64_t seed)
{
    memset(p, 0, sizeof *p);
    p->state = seed;
    trek_seed(seed);
    p->scopes[p->n_scopes++] = trek_scope_begin();
    for (int k = 0; k < POOL_SLOTS; k++) {
        p->slots[k] = pool_leaf(p);
        pool_leaf_made(p, p->slots[k]);
        trek_error_clear();
    }
}

static trek_status forget_grad(const char *name, trek_var *param, void *arg)
{
    (void)name, (void)arg;
    trek_var_zero_grad(param);
    return TREK_OK;
}

void pool_end(pool *p)
{
    trek_error_clear();
    for (; p->no_grad > 0; p->no_grad--)
        trek_no_grad_end();
    for (; p->autocast > 0; p->autocast--)
        trek_autocast_end();
    for (int k = 0; k < POOL_MODULES; k++)
        if (p->modules[k])
            trek_module_each_param(p->modules[k], forget_grad, NULL);
    while (p->n_leaves > 0) {
        trek_var_zero_grad(p->leaves[--p->n_leaves]);
        trek_var_release(p->leaves[p->n_leaves]);
    }
    trek_optimizer_free(&p->optimizer);
    trek_params_free(&p->params);
    trek_grad_scaler_free(&p->scaler);
    for (int k = 0; k < POOL_SLOTS; k++)
        pool_drop(p, k);
    for (int k = 0; k < POOL_MODULES; k++)
        trek_module_free(&p->modules[k]);
    while (p->n_scopes > 0)
        trek_scope_end(p->scopes[--p->n_scopes]);
    trek_error_clear();
}

outcome sequence_var(pool *p, trek_var *var)
{
    p->made = var;
    pool_keep(p, var);
    return var ? OUTCOME_MADE : OUTCOME_FAILED;
}

outcome sequence_status(trek_status status) { return status == TREK_OK ? OUTCOME_MADE : OUTCOME_FAILED; }
