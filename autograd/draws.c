/* SPDX-License-Identifier: Apache-2.0 */
/* The public ops that draw random numbers, and draws in a part of a forward that works on some of the rows. */
#include <math.h>

#include "autograd/index_internal.h"
#include "autograd/ops.h"
#include "autograd/rows.h"
#include "autograd/tape_internal.h"
#include "tensor/random_internal.h"

static trek_var *made(trek_tensor *t) { return t ? trek_var_from(t) : NULL; }

/* --- like another ------------------------------------------------------------------------ */

trek_var *trek_rand_like(trek_var *x)
{
    TREK_NEEDED("rand_like", x);
    return made(trek_tensor_rand(trek_var_shape(x), trek_var_dtype(x), trek_var_device(x)));
}

trek_var *trek_randn_like(trek_var *x)
{
    TREK_NEEDED("randn_like", x);
    return made(trek_tensor_randn(trek_var_shape(x), trek_var_dtype(x), trek_var_device(x)));
}

/* --- random choices ------------------------------------------------------------------------ */

static bool is_floating(const char *name, const trek_var *x)
{
    if (trek_dtype_is_float(trek_var_dtype(x)))
        return true;
    return trek_fail(TREK_ERR_DTYPE, "%s: x: dtype %s; must be floating", name, trek_dtype_name(trek_var_dtype(x))), false;
}

/* 16-bit random numbers are too coarse to compare with. */
trek_var *trek_bernoulli(trek_var *x)
{
    TREK_NEEDED("bernoulli", x);
    if (!is_floating("bernoulli", x))
        return NULL;
    trek_dtype dtype = trek_var_dtype(x), work = dtype == TREK_F64 ? TREK_F64 : TREK_F32;
    trek_var *p = trek_var_detach(x);
    if (!p || !trek_all_hold("bernoulli", trek_logical_and(trek_ge_scalar(p, 0), trek_le_scalar(p, 1)),
                     "p: outside [0, 1]; must be inside"))
        return NULL;
    trek_var *drawn = made(trek_tensor_rand(trek_var_shape(x), work, trek_var_device(x)));
    return trek_cast(trek_lt(drawn, trek_cast(p, work)), dtype);
}

/* Returns the first index at which the cumulative weight exceeds a number drawn for each sample. */
static trek_var *with_replacement(trek_var *p, int64_t samples)
{
    trek_shape shape = trek_var_shape(p);
    int64_t n = shape.sizes[shape.ndim - 1];
    shape.sizes[shape.ndim - 1] = samples;
    trek_var *sums = trek_cumsum(p, -1);
    trek_var *drawn = made(trek_tensor_rand(shape, TREK_F64, trek_var_device(p)));
    return trek_searchsorted(sums, trek_mul(drawn, trek_narrow(sums, -1, n - 1, 1)), true);
}

/* A race of exponential times: the first to end are the sample (Efraimidis and Spirakis, "Weighted random sampling
 * with a reservoir", 2006). */
static trek_var *without_replacement(trek_var *p, int64_t samples)
{
    trek_var *drawn = made(trek_tensor_rand(trek_var_shape(p), TREK_F64, trek_var_device(p))), *indices = NULL;
    trek_var *times = trek_div(trek_neg(trek_log1p(trek_neg(drawn))), p); /* infinite where the weight is 0 */
    times = trek_masked_fill(times, trek_eq_scalar(p, 0), INFINITY);      /* also if the drawn number was 0 */
    return trek_topk(times, samples, -1, false, &indices) ? indices : NULL;
}

trek_var *trek_multinomial(trek_var *x, int64_t samples, bool replacement)
{
    TREK_NEEDED("multinomial", x);
    int ndim = trek_var_ndim(x);
    if (!is_floating("multinomial", x))
        return NULL;
    if (ndim < 1 || ndim > 2)
        return trek_fail_null(TREK_ERR_SHAPE, "multinomial: weights: %d dimensions; must be [n] or [m, n]", ndim);
    if (samples < 1 || (!replacement && samples > trek_var_size(x, -1)))
        return trek_fail_null(TREK_ERR_ARGUMENT,
                              "multinomial: samples: %lld of %lld weights; must be at least 1, and not more without replacement",
                              (long long)samples, (long long)trek_var_size(x, -1));
    trek_var *p = trek_cast(trek_var_detach(x), TREK_F64), *several = trek_gt_scalar(p, 0);
    int64_t least = replacement ? 1 : samples;
    if (!p || !trek_all_hold("multinomial", trek_logical_and(trek_isfinite(p), trek_ge_scalar(p, 0)),
                     "a weight that is negative or not finite") ||
        !trek_all_hold("multinomial", trek_ge_scalar(trek_sum(several, trek_dims(-1), false), (double)least),
               replacement ? "a line without weight" : "a line with fewer weights than samples"))
        return NULL;
    return replacement ? with_replacement(p, samples) : without_replacement(p, samples);
}

/* --- activations and dropout ------------------------------------------------------------- */

trek_var *trek_rrelu(trek_var *x, double lower, double upper, bool training)
{
    TREK_NEEDED("rrelu", x);
    if (!(lower <= upper) || isinf(lower) || isinf(upper))
        return trek_fail_null(TREK_ERR_ARGUMENT, "rrelu: lower: %g; must be below upper, %g", lower, upper);
    if (!training)
        return trek_leaky_relu(x, (lower + upper) / 2);
    trek_var *slopes = trek_add_scalar(trek_mul_scalar(trek_rand_like(x), upper - lower), lower);
    return trek_where(trek_gt_scalar(x, 0), x, trek_mul(slopes, x));
}

trek_var *trek_dropout(trek_var *x, double p, bool training)
{
    if (!(p >= 0 && p <= 1))
        return trek_fail_null(TREK_ERR_ARGUMENT, "dropout: p: %g; must be inside [0, 1]", p);
    if (!x)
        return trek_fail_missing("dropout", "variable"), NULL;
    if (!training || p == 0)
        return x;
    const trek_row_map *map = trek_rows_mapped(x);
    trek_var *all = map ? trek_rows_spread(map, x) : x;
    if (!all)
        return NULL;
    trek_attrs draw = { 0 };
    trek_rng_attrs(all->data, &draw);
    trek_var *y = trek_apply_dropout(all, p, &draw);
    return map ? trek_rows_pick(map, y) : y;
}

/* --- random ops of some rows (rows.h) --------------------------------------------------------- */

const trek_row_map *trek_rows_mapped(trek_var *x)
{
    return x && trek_var_ndim(x) > 0 && trek_var_numel(x) > 0 ? trek_row_map_for(trek_var_size(x, 0)) : NULL;
}

/* Moves x with `from` samples (or groups of rows) to those at index, `to` of them. */
static trek_var *taken(trek_var *x, const int64_t *index, int64_t from, int64_t to)
{
    trek_tensor *places = trek_tensor_from_data(index, trek_dims(to), TREK_I64, trek_var_device(x));
    trek_shape shape = trek_var_shape(x);
    trek_var *flat = trek_reshape(x, trek_dims(from, trek_var_numel(x) / from));
    shape.sizes[0] = shape.sizes[0] / from * to;
    return places ? trek_reshape(trek_index_select(flat, 0, trek_var_from(places)), shape) : NULL;
}

trek_var *trek_rows_spread(const trek_row_map *map, trek_var *x)
{
    int64_t *index = x ? trek_calloc((size_t)map->total, sizeof *index) : NULL; /* elsewhere: the first row */
    if (!index)
        return NULL;
    for (int64_t k = 0; k < map->n; k++)
        index[map->rows[k]] = k;
    trek_var *y = taken(x, index, map->n, map->total);
    trek_free(index);
    return y;
}

trek_var *trek_rows_pick(const trek_row_map *map, trek_var *y)
{
    return y ? taken(y, map->rows, map->total, map->n) : NULL;
}
