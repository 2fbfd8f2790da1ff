/* SPDX-License-Identifier: Apache-2.0 */
/* The public ops that sort and select. */
#include <math.h>

#include "autograd/ops.h"
#include "autograd/tape_internal.h"

/* Removes the dimension that was reduced. */
static trek_var *reduced(trek_var *x, int dim, bool keepdim)
{
    return !x || keepdim || trek_var_ndim(x) == 0 ? x : trek_squeeze(x, dim);
}

static bool is_bool(const trek_var *x) { return x && trek_var_dtype(x) == TREK_BOOL; }

/* Applies a row with two results, values and indices. */
static trek_var *apply_places(int op, trek_var *x, const trek_attrs *numbers, trek_var **indices)
{
    trek_var *outs[2] = { NULL };
    trek_status status = trek_apply_many(&trek_ops[op], &x, 1, numbers, outs, 2);
    if (indices)
        *indices = status == TREK_OK ? outs[1] : NULL;
    return status == TREK_OK ? outs[0] : NULL;
}

static trek_var *extreme(int op, trek_var *x, int dim, bool keepdim, trek_var **indices)
{
    trek_attrs numbers = { 0 };
    trek_dims_list dims = trek_dims(dim);
    trek_attrs_reduce(&numbers, &dims, true);
    trek_var *compared = is_bool(x) ? trek_apply_convert(x, TREK_U8) : x, *at = trek_apply(&trek_ops[op], &compared, 1, &numbers);
    trek_var *values = reduced(trek_apply_gather(x, at, dim), dim, keepdim);
    if (indices)
        *indices = values ? reduced(at, dim, keepdim) : NULL;
    return values;
}

trek_var *trek_max_with_indices(trek_var *x, int dim, bool keepdim, trek_var **indices)
{
    return extreme(TREK_OP_argmax, x, dim, keepdim, indices);
}
trek_var *trek_min_with_indices(trek_var *x, int dim, bool keepdim, trek_var **indices)
{
    return extreme(TREK_OP_argmin, x, dim, keepdim, indices);
}

trek_var *trek_sort(trek_var *x, int dim, bool descending, trek_var **indices)
{
    return apply_places(TREK_OP_sort, x, &(trek_attrs){ .i = { dim, descending } }, indices);
}

trek_var *trek_argsort(trek_var *x, int dim, bool descending)
{
    trek_var *indices = NULL;
    return trek_sort(x, dim, descending, &indices) ? indices : NULL;
}

trek_var *trek_topk(trek_var *x, int64_t k, int dim, bool largest, trek_var **indices)
{
    return apply_places(TREK_OP_topk, x, &(trek_attrs){ .i = { dim, k, largest } }, indices);
}

static trek_var *choose(trek_var *x, int64_t k, int which, int dim, bool keepdim, trek_var **indices)
{
    trek_var *values = reduced(apply_places(TREK_OP_kthvalue, x, &(trek_attrs){ .i = { dim, k, which } }, indices), dim, keepdim);
    if (indices)
        *indices = values ? reduced(*indices, dim, keepdim) : NULL;
    return values;
}

trek_var *trek_kthvalue(trek_var *x, int64_t k, int dim, bool keepdim, trek_var **indices)
{
    return choose(x, k, TREK_ORDER_KTH, dim, keepdim, indices);
}
trek_var *trek_median(trek_var *x, int dim, bool keepdim, trek_var **indices)
{
    return choose(x, 0, TREK_ORDER_MEDIAN, dim, keepdim, indices);
}
trek_var *trek_nanmedian(trek_var *x, int dim, bool keepdim, trek_var **indices)
{
    return choose(x, 0, TREK_ORDER_NANMEDIAN, dim, keepdim, indices);
}

trek_var *trek_cummax(trek_var *x, int dim, trek_var **indices)
{
    return apply_places(TREK_OP_cummax, x, &(trek_attrs){ .i = { dim } }, indices);
}
trek_var *trek_cummin(trek_var *x, int dim, trek_var **indices)
{
    return apply_places(TREK_OP_cummin, x, &(trek_attrs){ .i = { dim } }, indices);
}

trek_var *trek_bucketize(trek_var *x, trek_var *boundaries, bool right)
{
    if (boundaries && trek_var_ndim(boundaries) != 1)
        return trek_fail_null(TREK_ERR_SHAPE, "bucketize: boundaries: %d dimensions; must have 1", trek_var_ndim(boundaries));
    return trek_searchsorted(boundaries, x, right);
}

trek_var *trek_searchsorted_by(trek_var *sequence, trek_var *x, bool right, trek_var *sorter)
{
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    if (!sequence || !sorter || !x)
        return trek_fail_missing("searchsorted_by", "input"), NULL;
    if (trek_var_dtype(sorter) != TREK_I64)
        return trek_fail_null(TREK_ERR_DTYPE, "searchsorted_by: sorter: dtype %s; must be i64",
                              trek_dtype_name(trek_var_dtype(sorter)));
    if (!trek_same_sizes(sequence->data, sorter->data) || trek_var_ndim(sorter) < 1)
        return trek_fail_null(TREK_ERR_SHAPE, "searchsorted_by: sorter: %s; must have the sequence's shape, %s",
                              trek_tensor_shape_text(sorter->data, a),
                              trek_tensor_shape_text(sequence->data, b));
    trek_var *sorted = trek_gather(trek_var_detach(sequence), -1, sorter);
    return sorted ? trek_searchsorted(sorted, x, right) : NULL;
}

/* --- quantiles ----------------------------------------------------------------------------- */

static bool quantile_fits(const char *name, const trek_var *x, trek_var *q)
{
    trek_dtype dtype = trek_var_dtype(x);
    if ((dtype != TREK_F32 && dtype != TREK_F64) || trek_var_dtype(q) != dtype)
        return trek_fail(TREK_ERR_DTYPE, "%s: x and q: dtypes %s and %s; must both be f32, or both f64", name,
                         trek_dtype_name(dtype), trek_dtype_name(trek_var_dtype(q))),
               false;
    if (trek_var_ndim(q) > 1)
        return trek_fail(TREK_ERR_SHAPE, "%s: q: %d dimensions; must have at most 1", name, trek_var_ndim(q)), false;
    trek_var *inside = trek_logical_and(trek_ge_scalar(q, 0), trek_le_scalar(q, 1)),
        *all = trek_all(inside, trek_dims_all(), false);
    if (!all)
        return false;
    if (trek_var_item(all) == 0)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: q: outside [0, 1]; must be inside", name), false;
    return true;
}

/* Interpolates from a to b, starting from the nearer end. */
static trek_var *between(trek_var *a, trek_var *b, trek_var *weight)
{
    trek_var *step = trek_sub(b, a), *near = trek_lt_scalar(trek_abs(weight), 0.5);
    trek_var *rest = trek_add_scalar(trek_neg(weight), 1);
    return trek_where(near, trek_add(a, trek_mul(weight, step)), trek_sub(b, trek_mul(step, rest)));
}

/* Returns the elements of sorted lines at ranks [..., count], which may be fractional. */
static trek_var *at_ranks(trek_var *sorted, trek_var *ranks, trek_interpolation interpolation)
{
    ranks = interpolation == TREK_INTERPOLATION_LOWER ? trek_floor(ranks)
        : interpolation == TREK_INTERPOLATION_HIGHER ? trek_ceil(ranks)
        : interpolation == TREK_INTERPOLATION_NEAREST ? trek_round(ranks) : ranks;
    trek_var *low = trek_cast(ranks, TREK_I64), *below = trek_gather(sorted, -1, low);
    if (interpolation != TREK_INTERPOLATION_LINEAR && interpolation != TREK_INTERPOLATION_MIDPOINT)
        return below;
    trek_var *above = trek_gather(sorted, -1, trek_cast(trek_ceil(ranks), TREK_I64));
    trek_var *weight = interpolation == TREK_INTERPOLATION_MIDPOINT ? trek_full_like(ranks, 0.5)
                                                                   : trek_sub(ranks, trek_cast(low, trek_var_dtype(ranks)));
    return between(below, above, weight);
}

/* Returns the ranks of q in sorted lines, between 0 and the last index. In a line with a NaN it is the NaN's, or,
 * with pass_nan, the rank among the numbers, since NaNs come last. */
static trek_var *ranks_of(trek_var *sorted, trek_var *q, trek_shape shape, bool pass_nan)
{
    int64_t n = trek_var_size(sorted, -1);
    trek_var *each = trek_reshape(q, trek_dims(-1));
    if (!pass_nan) {
        trek_var *ranks = trek_expand(trek_mul_scalar(each, (double)(n - 1)), shape);
        return trek_masked_fill(ranks, trek_isnan(trek_narrow(sorted, -1, n - 1, 1)), (double)(n - 1));
    }
    trek_var *numbers = trek_sum(trek_logical_not(trek_isnan(sorted)), trek_dims(-1), true);
    trek_var *last = trek_cast(trek_clamp(trek_sub_scalar(numbers, 1), 0, (double)n), trek_var_dtype(q));
    return trek_expand(trek_mul(each, last), shape);
}

static trek_var *quantile_of(const char *name, trek_var *x, trek_var *q, int dim, bool keepdim, trek_interpolation interpolation,
                             bool pass_nan)
{
    if (!x || !q)
        return trek_fail_missing(name, "input"), NULL;
    int ndim = trek_var_ndim(x), at = trek_normalize_dim(dim, ndim, name);
    if (at < 0 || !quantile_fits(name, x, q))
        return NULL;
    if (interpolation < TREK_INTERPOLATION_LINEAR || interpolation > TREK_INTERPOLATION_NEAREST)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: interpolation: %d; must be a value of trek_interpolation", name,
                              (int)interpolation);
    trek_var *lines = ndim == 0 ? trek_reshape(x, trek_dims(1)) : trek_movedim(x, trek_dims(at), trek_dims(-1));
    int64_t n = lines ? trek_var_size(lines, -1) : 0, count = trek_var_numel(q);
    if (n == 0 || trek_var_numel(x) == 0)
        return lines ? trek_fail_null(TREK_ERR_SHAPE, "%s: x: it has 0 elements; must have at least 1", name) : NULL;
    trek_var *sorted = trek_sort(lines, -1, false, NULL);
    trek_shape shape = sorted ? trek_var_shape(sorted) : trek_dims_none();
    shape.sizes[shape.ndim > 0 ? shape.ndim - 1 : 0] = count;
    trek_var *found = sorted ? at_ranks(sorted, ranks_of(sorted, q, shape, pass_nan), interpolation) : NULL;
    if (!found)
        return NULL;
    bool several = trek_var_ndim(q) == 1;
    found = ndim == 0 ? trek_reshape(found, several ? trek_dims(count) : trek_dims_none()) : found;
    if (ndim == 0)
        return found;
    if (!several) /* with a single q, its dimension is the one that is kept or removed */
        return keepdim ? trek_movedim(found, trek_dims(-1), trek_dims(at)) : trek_squeeze(found, -1);
    found = trek_movedim(found, trek_dims(-1), trek_dims(0));
    return keepdim ? trek_unsqueeze(found, at + 1) : found;
}

trek_var *trek_quantile(trek_var *x, trek_var *q, int dim, bool keepdim, trek_interpolation interpolation)
{
    return quantile_of("quantile", x, q, dim, keepdim, interpolation, false);
}

trek_var *trek_nanquantile(trek_var *x, trek_var *q, int dim, bool keepdim, trek_interpolation interpolation)
{
    return quantile_of("nanquantile", x, q, dim, keepdim, interpolation, true);
}
