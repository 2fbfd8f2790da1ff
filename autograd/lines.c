/* SPDX-License-Identifier: Apache-2.0 */
/* Differences of neighbours, integrals, and reductions that ignore NaN, made from other ops. */
#include <math.h>

#include "autograd/ops.h"
#include "autograd/tape_internal.h"

/* Returns x without its first `from` and its last `to` elements along dim. */
static trek_var *inner(trek_var *x, int dim, int64_t from, int64_t to)
{
    return trek_narrow(x, dim, from, trek_var_size(x, dim) - from - to);
}

trek_var *trek_diff(trek_var *x, int64_t n, int dim, trek_var *before, trek_var *after)
{
    if (!x)
        return trek_fail_missing("diff", "input"), NULL;
    if (trek_var_ndim(x) == 0)
        return trek_fail_null(TREK_ERR_SHAPE, "diff: x: it is a scalar; must have a dimension");
    int d = trek_normalize_dim(dim, trek_var_ndim(x), "diff");
    if (d < 0)
        return NULL;
    if (n < 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "diff: n: %lld; must not be negative", (long long)n);
    if (n > 0 && (before || after)) {
        trek_var *parts[3] = { before ? before : x, before ? x : after, after };
        x = trek_cat(parts, before && after ? 3 : 2, d);
    }
    if (n == 0)
        return trek_clone(x);
    for (; x && n > 0; n--) {
        int64_t size = trek_var_size(x, d);
        if (size < 2)
            return trek_narrow(x, d, 0, 0);
        trek_var *next = inner(x, d, 1, 0), *last = inner(x, d, 0, 1);
        x = trek_var_dtype(x) == TREK_BOOL ? trek_logical_xor(next, last) : trek_sub(next, last);
    }
    return x;
}

/* Returns twice the areas between neighbouring points, of which there is at least one. */
static trek_var *areas(trek_var *y, trek_var *x, double dx, int d)
{
    trek_var *sums = trek_add(inner(y, d, 1, 0), inner(y, d, 0, 1));
    if (!x)
        return trek_mul_scalar(sums, dx);
    bool line = trek_var_ndim(x) == 1; /* along dimension d */
    trek_var *steps = trek_diff(x, 1, line ? 0 : d, NULL, NULL);
    for (int k = d + 1; line && k < trek_var_ndim(y); k++)
        steps = trek_unsqueeze(steps, -1);
    return trek_mul(sums, steps);
}

/* Returns y in a floating dtype and its dimension, or NULL on failure. */
static trek_var *points(const char *name, trek_var *y, const trek_var *x, int dim, int *d)
{
    if (!y)
        return trek_fail_missing(name, "input"), NULL;
    if (trek_var_dtype(y) == TREK_BOOL || (x && trek_var_dtype(x) == TREK_BOOL))
        return trek_fail_null(TREK_ERR_DTYPE, "%s: input: dtype bool is not supported", name);
    y = trek_dtype_is_float(trek_var_dtype(y)) ? y : trek_cast(y, TREK_F32);
    *d = y ? trek_normalize_dim(dim, trek_var_ndim(y), name) : -1;
    return *d < 0 ? NULL : y;
}

trek_var *trek_trapezoid(trek_var *y, trek_var *x, double dx, int dim)
{
    int d;
    y = points("trapezoid", y, x, dim, &d);
    if (!y)
        return NULL;
    if (trek_var_size(y, d) == 0)
        return trek_sum(trek_mul_scalar(y, dx / 2), trek_dims(d), false);
    return trek_div_scalar(trek_sum(areas(y, x, dx, d), trek_dims(d), false), 2);
}

trek_var *trek_cumulative_trapezoid(trek_var *y, trek_var *x, double dx, int dim)
{
    int d;
    y = points("cumulative_trapezoid", y, x, dim, &d);
    if (!y)
        return NULL;
    if (trek_var_ndim(y) == 0)
        return trek_fail_null(TREK_ERR_SHAPE, "cumulative_trapezoid: y: it is a scalar; must have a dimension");
    if (trek_var_size(y, d) == 0 && !x)
        return trek_mul_scalar(y, dx / 2);
    if (trek_var_size(y, d) == 0)
        return trek_mul(y, trek_sum(x, trek_dims_all(), false));
    return trek_div_scalar(trek_cumsum(areas(y, x, dx, d), d), 2);
}

trek_var *trek_nansum(trek_var *x, trek_dims_list dims, bool keepdim)
{
    if (!x)
        return trek_fail_missing("nansum", "input"), NULL;
    return trek_dtype_is_float(trek_var_dtype(x)) ? trek_apply_nansum(x, dims, keepdim) : trek_sum(x, dims, keepdim);
}

trek_var *trek_nanmean(trek_var *x, trek_dims_list dims, bool keepdim)
{
    if (!x)
        return trek_fail_missing("nanmean", "input"), NULL;
    trek_dtype dtype = trek_var_dtype(x);
    if (!trek_dtype_is_float(dtype))
        return trek_fail_null(TREK_ERR_DTYPE, "nanmean: x: dtype %s; must be floating", trek_dtype_name(dtype));
    trek_dtype work = trek_dtype_is_16bit(dtype) ? TREK_F32 : dtype;
    trek_var *wide = trek_cast(x, work), *count = trek_sum(trek_logical_not(trek_isnan(x)), dims, keepdim);
    trek_var *sum = trek_nansum(wide, dims, keepdim);
    return trek_cast(trek_div(sum, count ? trek_cast(count, work) : NULL), dtype);
}
