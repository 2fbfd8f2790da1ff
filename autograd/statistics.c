/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics, made from other ops. */
#include <math.h>
#include <string.h>

#include "autograd/calls_internal.h"
#include "autograd/ops.h"
#include "autograd/tape_internal.h"

/* If both exist, returns the first result, and the other one in *place. */
static trek_var *pair(trek_var *first, trek_var *second, trek_var **place)
{
    if (place)
        *place = first ? second : NULL;
    return second ? first : NULL;
}

static trek_var *spread(const char *name, bool root, trek_var *x, trek_dims_list dims, bool keepdim, double correction,
                        trek_var **mean)
{
    if (mean)
        *mean = NULL;
    if (!isfinite(correction))
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: correction: %g; must be finite and not negative", name, correction);
    trek_var *made = (root ? trek_apply_std : trek_apply_variance)(x, dims, keepdim, correction);
    return mean ? pair(made, made ? trek_mean(x, dims, keepdim) : NULL, mean) : made;
}

trek_var *trek_variance_with(trek_var *x, trek_dims_list dims, double correction, bool keepdim, trek_var **mean)
{
    return spread("variance_with", false, x, dims, keepdim, correction, mean);
}
trek_var *trek_std_with(trek_var *x, trek_dims_list dims, double correction, bool keepdim, trek_var **mean)
{
    return spread("std_with", true, x, dims, keepdim, correction, mean);
}
trek_var *trek_variance_mean(trek_var *x, trek_dims_list dims, bool keepdim, trek_var **mean)
{
    return spread("variance_mean", false, x, dims, keepdim, 1, mean);
}
trek_var *trek_std_mean(trek_var *x, trek_dims_list dims, bool keepdim, trek_var **mean)
{
    return spread("std_mean", true, x, dims, keepdim, 1, mean);
}
trek_var *trek_aminmax(trek_var *x, trek_dims_list dims, bool keepdim, trek_var **max)
{
    trek_var *min = trek_min(x, dims, keepdim);
    return pair(min, min ? trek_max(x, dims, keepdim) : NULL, max);
}

/* --- covariances ----------------------------------------------------------------------------------- */

/* Combines the weights of each observation, in x's dtype. *both is NULL without an error if all are equal. */
static bool observation_weights(trek_var *x, int64_t n, trek_var *repetitions, trek_var *weights, trek_var **both)
{
    trek_var *given[2] = { repetitions, weights };
    *both = NULL;
    for (int k = 0; k < 2; k++) {
        if (!given[k])
            continue;
        trek_dtype dtype = trek_var_dtype(given[k]);
        if (trek_var_ndim(given[k]) != 1 || trek_var_numel(given[k]) != n)
            return trek_fail(TREK_ERR_SHAPE, "cov: weights: wrong shape; must be %lld in 1 dimension", (long long)n), false;
        if (trek_dtype_is_float(dtype) != (k == 1) || dtype == TREK_BOOL)
            return trek_fail(TREK_ERR_DTYPE, "cov: %s: dtype %s is not supported", k ? "weights" : "repetitions",
                             trek_dtype_name(dtype)), false;
        trek_var *below = trek_any(trek_lt_scalar(given[k], 0), trek_dims_all(), false);
        if (!below)
            return false;
        if (trek_var_item(below) != 0)
            return trek_fail(TREK_ERR_ARGUMENT, "cov: %s: one is negative; must be 0 or more", k ? "weights" : "repetitions"),
                   false;
        trek_var *factor = trek_cast(given[k], trek_var_dtype(x));
        *both = *both ? trek_mul(*both, factor) : factor;
        if (!*both)
            return false;
    }
    return true;
}

/* Computes the divisor, at least 0, from the number of observations or the sum of weights. Weights that are not
 * repetitions count as reliabilities. */
static trek_var *degrees(trek_var *sum, trek_var *all, trek_var *weights, int64_t correction)
{
    trek_var *off = NULL;
    if (weights && correction != 0)
        off = trek_div(trek_sum(trek_mul(all, trek_cast(weights, trek_var_dtype(all))), trek_dims_all(), false), sum);
    trek_var *made = off ? trek_sub(sum, trek_mul_scalar(off, (double)correction))
                     : weights ? sum : trek_sub_scalar(sum, (double)correction);
    return trek_clamp(made, 0, INFINITY);
}

/* Removes dimensions of size 1. */
static trek_var *squeezed(trek_var *x)
{
    for (int d = x ? trek_var_ndim(x) - 1 : -1; x && d >= 0; d--)
        x = trek_squeeze(x, d);
    return x;
}

static trek_var *covariances(const char *name, trek_var *x, int64_t correction, trek_var *repetitions, trek_var *weights)
{
    TREK_NEEDED(name, x);
    if (trek_var_ndim(x) > 2)
        return trek_fail_null(TREK_ERR_SHAPE, "%s: x: %d dimensions; must have at most 2", name, trek_var_ndim(x));
    if (trek_var_dtype(x) == TREK_BOOL)
        return trek_fail_null(TREK_ERR_DTYPE, "%s: x: dtype bool is not supported", name);
    x = trek_dtype_is_float(trek_var_dtype(x)) ? x : trek_cast(x, TREK_F32);
    if (x && trek_var_ndim(x) < 2)
        x = trek_reshape(x, trek_dims(1, trek_var_numel(x)));
    trek_var *all;
    if (!x || !observation_weights(x, trek_var_size(x, 1), repetitions, weights, &all))
        return NULL;
    int64_t n = trek_var_size(x, 1);
    trek_var *weighted = all ? trek_mul(x, all) : x;
    if (!all) {
        trek_var *rest = trek_sub(x, trek_mean(x, trek_dims(1), true));
        double divisor = (double)n - (double)correction;
        trek_var *products = trek_matmul(rest, trek_transpose(rest, 0, 1));
        return squeezed(trek_div(products, trek_full_like(trek_sum(products, trek_dims_all(), false),
                                                          divisor > 0 ? divisor : 0)));
    }
    trek_var *sum = trek_sum(all, trek_dims_all(), false), *divisor = degrees(sum, all, weights, correction);
    trek_var *mean = trek_div(trek_sum(weighted, trek_dims(1), true), sum), *rest = trek_sub(x, mean);
    return squeezed(trek_div(trek_matmul(rest, trek_transpose(trek_mul(rest, all), 0, 1)), divisor));
}

trek_var *trek_cov(trek_var *x, int64_t correction, trek_var *repetitions, trek_var *weights)
{
    return covariances("cov", x, correction, repetitions, weights);
}

trek_var *trek_corrcoef(trek_var *x)
{
    trek_var *c = covariances("corrcoef", x, 1, NULL, NULL);
    if (!c || trek_var_ndim(c) == 0)
        return trek_div(c, c);
    trek_var *deviations = trek_sqrt(trek_diag(c, 0));
    return trek_clamp(trek_div(trek_div(c, trek_unsqueeze(deviations, 1)), deviations), -1, 1);
}

/* --- frequencies ----------------------------------------------------------------------------------- */

/* Determines whether the ends are x's extremes, and writes these. Returns false on failure. */
static bool ends_of(const char *name, trek_var *x, double *low, double *high, double apart)
{
    if (*low == *high && trek_var_numel(x) > 0) {
        trek_var *least = trek_min(x, trek_dims_all(), false), *most = trek_max(x, trek_dims_all(), false);
        if (!least || !most)
            return false;
        *low = trek_var_item(least);
        *high = trek_var_item(most);
    }
    if (!isfinite(*low) || !isfinite(*high) || *low > *high)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: low and high: %g and %g; must be finite and ascending", name, *low, *high),
               false;
    if (*low == *high) {
        *low -= apart;
        *high += apart;
    }
    return true;
}

/* Returns whether x can be counted in that many bins; if not, an error is set. */
static bool countable(const char *name, trek_var *x, int64_t bins)
{
    trek_dtype dtype = trek_var_dtype(x);
    if (dtype != TREK_F32 && dtype != TREK_F64)
        return trek_fail(TREK_ERR_DTYPE, "%s: x: dtype %s; must be f32 or f64", name, trek_dtype_name(dtype)), false;
    if (bins < 1)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: bins: %lld; must be at least 1", name, (long long)bins), false;
    return true;
}

trek_var *trek_histc(trek_var *x, int64_t bins, double low, double high)
{
    TREK_NEEDED("histc", x);
    if (!countable("histc", x, bins))
        return NULL;
    trek_dtype dtype = trek_var_dtype(x);
    x = trek_reshape(trek_var_detach(x), trek_dims(-1));
    if (!x || !ends_of("histc", x, &low, &high, 1))
        return NULL;
    trek_var *inside = trek_logical_and(trek_ge_scalar(x, low), trek_le_scalar(x, high));
    trek_var *near = trek_where(inside, x, trek_full_like(x, low));
    trek_var *place = trek_div_scalar(trek_mul_scalar(trek_sub_scalar(near, low), (double)bins), high - low);
    trek_var *at = trek_clamp(trek_cast(trek_floor(place), TREK_I64), 0, (double)(bins - 1));
    trek_tensor *zeros = trek_tensor_zeros(trek_dims(bins), dtype, trek_var_device(x));
    return zeros ? trek_index_add(trek_var_from(zeros), 0, at, trek_cast(inside, dtype)) : NULL;
}

/* Counts what lies between neighbouring edges; the last edge itself belongs to the bin before it. x is flat. */
static trek_var *between_edges(trek_var *x, trek_var *edges, trek_var *weight, bool density)
{
    int64_t bins = trek_var_numel(edges) - 1;
    trek_tensor *zeros = trek_tensor_zeros(trek_dims(bins), trek_var_dtype(x), trek_var_device(x));
    trek_var *counts = zeros ? trek_var_from(zeros) : NULL;
    if (!counts)
        return NULL;
    trek_var *low = trek_narrow(edges, 0, 0, 1), *high = trek_narrow(edges, 0, bins, 1);
    trek_var *inside = trek_logical_and(trek_ge(x, low), trek_le(x, high)), *counted = trek_cast(inside, trek_var_dtype(x));
    trek_var *at = trek_clamp(trek_sub_scalar(trek_searchsorted(edges, x, true), 1), 0, (double)(bins - 1));
    if (weight) /* what is left out counts nothing, whatever its weight */
        counted = trek_masked_fill(trek_reshape(trek_var_detach(weight), trek_dims(-1)), trek_logical_not(inside), 0);
    counts = trek_index_add(counts, 0, at, counted);
    if (!density)
        return counts;
    trek_var *widths = trek_sub(trek_narrow(edges, 0, 1, bins), trek_narrow(edges, 0, 0, bins));
    return trek_div(trek_div(counts, trek_sum(counts, trek_dims_all(), false)), widths);
}

/* Returns whether weights have x's shape and dtype; if not, an error is set. */
static bool weighs(const char *name, trek_var *x, trek_var *weight)
{
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    if (weight && trek_var_dtype(weight) != trek_var_dtype(x))
        return trek_fail(TREK_ERR_DTYPE, "%s: x and weight: dtypes %s and %s; must be equal", name,
                         trek_dtype_name(trek_var_dtype(x)), trek_dtype_name(trek_var_dtype(weight))),
               false;
    if (weight && !trek_shape_equal(trek_var_shape(x), trek_var_shape(weight)))
        return trek_fail(TREK_ERR_SHAPE, "%s: x and weight: %s and %s; must be equal", name,
                         trek_shape_format(trek_var_shape(x), a, sizeof a),
                         trek_shape_format(trek_var_shape(weight), b, sizeof b)),
               false;
    return true;
}

trek_var *trek_histogram(trek_var *x, int64_t bins, double low, double high, trek_var *weight, bool density, trek_var **edges)
{
    if (edges)
        *edges = NULL;
    TREK_NEEDED("histogram", x);
    if (!countable("histogram", x, bins) || !weighs("histogram", x, weight))
        return NULL;
    x = trek_reshape(trek_var_detach(x), trek_dims(-1));
    if (x && low == high && trek_var_numel(x) == 0) /* as in PyTorch: there are no extremes */
        low = 0, high = 1;
    if (!x || !ends_of("histogram", x, &low, &high, 0.5))
        return NULL;
    trek_tensor *line = trek_tensor_linspace(low, high, bins + 1, trek_var_dtype(x), trek_var_device(x));
    trek_var *all = line ? trek_var_from(line) : NULL;
    const char *before = trek_op_calling("histogram");
    trek_var *counts = trek_op_called_end(before, all ? between_edges(x, all, weight, density) : NULL);
    return edges ? pair(counts, all, edges) : counts;
}

trek_var *trek_histogram_edges(trek_var *x, trek_var *edges, trek_var *weight, bool density)
{
    TREK_NEEDED("histogram_edges", x, edges);
    if (trek_var_ndim(edges) != 1)
        return trek_fail_null(TREK_ERR_SHAPE, "histogram_edges: edges: %d dimensions; must have 1", trek_var_ndim(edges));
    if (!countable("histogram_edges", x, trek_var_numel(edges) - 1) || !weighs("histogram_edges", x, weight))
        return NULL;
    if (trek_var_dtype(edges) != trek_var_dtype(x))
        return trek_fail_null(TREK_ERR_DTYPE, "histogram_edges: x and edges: dtypes %s and %s; must be equal",
                              trek_dtype_name(trek_var_dtype(x)), trek_dtype_name(trek_var_dtype(edges)));
    const char *before = trek_op_calling("histogram_edges");
    return trek_op_called_end(before, between_edges(trek_reshape(trek_var_detach(x), trek_dims(-1)),
                                                    trek_contiguous(trek_var_detach(edges)), weight, density));
}

/* In sorted lines: finds where each run of equal elements begins, and the longest run so far at its last element. */
trek_var *trek_mode(trek_var *x, int dim, bool keepdim, trek_var **indices)
{
    if (indices)
        *indices = NULL;
    TREK_NEEDED("mode", x);
    int ndim = trek_var_ndim(x), d = trek_normalize_dim(dim, ndim, "mode");
    if (d < 0)
        return NULL;
    int64_t n = ndim > 0 ? trek_var_size(x, d) : 1;
    if (n == 0)
        return trek_fail_null(TREK_ERR_SHAPE, "mode: x: dimension %d has 0 elements; must have some", d);
    trek_var *places = NULL, *sorted = trek_sort(trek_var_detach(x), d, false, &places), *at = places;
    if (sorted && n > 1) {
        trek_tensor *line = trek_tensor_arange(0, (double)n, 1, TREK_I64, trek_var_device(x));
        trek_shape shape = { .ndim = ndim };
        for (int k = 0; k < ndim; k++)
            shape.sizes[k] = k == d ? n : 1;
        trek_var *order = line ? trek_reshape(trek_var_from(line), shape) : NULL;
        trek_var *differ = trek_ne(trek_narrow(sorted, d, 1, n - 1), trek_narrow(sorted, d, 0, n - 1));
        trek_var *first = trek_ones_like(trek_narrow(differ, d, 0, 1)), *parts[2] = { first, differ };
        trek_var *begins = trek_mul(trek_cast(trek_cat(parts, 2, d), TREK_I64), order);
        trek_var *lengths = trek_sub(order, trek_cummax(begins, d, NULL));
        at = trek_gather(places, d, trek_argmax(lengths, trek_dims(d), true));
    }
    trek_var *values = trek_gather(x, d, at);
    if (!keepdim && ndim > 0) {
        values = trek_squeeze(values, d);
        at = trek_squeeze(at, d);
    }
    return pair(values, at, indices);
}

trek_var *trek_renorm(trek_var *x, double p, int dim, double max)
{
    TREK_NEEDED("renorm", x);
    int ndim = trek_var_ndim(x), d = trek_normalize_dim(dim, ndim, "renorm");
    if (d < 0)
        return NULL;
    if (ndim < 2)
        return trek_fail_null(TREK_ERR_SHAPE, "renorm: x: %d dimensions; must have at least 2", ndim);
    if (!(p > 0) || !(max >= 0))
        return trek_fail_null(TREK_ERR_ARGUMENT, "renorm: p: %g, max: %g; must be above 0, and not negative", p, max);
    if (!trek_dtype_is_float(trek_var_dtype(x)))
        return trek_fail_null(TREK_ERR_DTYPE, "renorm: x: dtype %s; must be floating", trek_dtype_name(trek_var_dtype(x)));
    trek_dims_list others = { .ndim = 0 };
    for (int k = 0; k < ndim; k++)
        if (k != d)
            others.sizes[others.ndim++] = k;
    trek_dtype dtype = trek_var_dtype(x), work = trek_dtype_is_16bit(dtype) ? TREK_F32 : dtype;
    trek_var *wide = trek_cast(x, work), *size = trek_norm(wide, p, others, true), *above = trek_gt_scalar(size, max);
    trek_var *factor = trek_mul_scalar(trek_reciprocal(trek_add_scalar(size, 1e-7)), max);
    return trek_cast(trek_mul(wide, trek_where(above, factor, size ? trek_ones_like(size) : NULL)), dtype);
}
