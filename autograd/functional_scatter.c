/* SPDX-License-Identifier: Apache-2.0 */
/* The public ops that write elements to the positions of an index. */
#include <math.h>

#include "autograd/index_internal.h"
#include "autograd/ops.h"
#include "autograd/tape_internal.h"
#include "tensor/number_internal.h"

/* Returns a number in x's dtype, in the index's shape. */
static trek_var *filled(const char *name, const trek_var *x, trek_shape shape, double value)
{
    trek_dtype dtype = trek_var_dtype(x);
    if (!trek_dtype_holds(dtype, value))
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: value: %g; %s cannot hold it", name, value, trek_dtype_name(dtype));
    trek_tensor *number = trek_tensor_full(trek_dims_none(), value, dtype, trek_var_device(x));
    return number ? trek_expand(trek_var_from(number), shape) : NULL;
}

/* Returns the part of the source that an index of that shape reaches; the row reports what does not fit. */
static trek_var *reached(trek_var *source, const trek_var *index)
{
    if (!source || !index || trek_var_ndim(source) != trek_var_ndim(index))
        return source;
    for (int d = 0; source && d < trek_var_ndim(index); d++)
        if (trek_var_size(index, d) < trek_var_size(source, d))
            source = trek_narrow(source, d, 0, trek_var_size(index, d));
    return source;
}

trek_var *trek_scatter(trek_var *x, int dim, trek_var *index, trek_var *source)
{
    return trek_apply_scatter(x, index, reached(source, index), dim);
}

trek_var *trek_scatter_value(trek_var *x, int dim, trek_var *index, double value)
{
    if (!x || !index)
        return trek_apply_scatter(x, index, NULL, dim);
    trek_var *source = filled("scatter_value", x, trek_var_shape(index), value);
    return source ? trek_apply_scatter(x, index, source, dim) : NULL;
}

/* --- scatter_reduce ---------------------------------------------------------------------- */

/* Returns the initial value of a maximum in a dtype. */
static double lowest(trek_dtype dtype)
{
    return trek_dtype_is_float(dtype) ? -INFINITY : dtype == TREK_I64 ? -0x1p63 : dtype == TREK_I32 ? INT32_MIN : 0;
}

/* Returns x with neutral elements at the positions of the index. For integers, which have no gradient, an element of
 * the source serves. */
static trek_var *without_self(trek_var *x, trek_var *index, trek_var *source, int dim, trek_reduction reduction)
{
    trek_dtype dtype = trek_var_dtype(x);
    if (reduction == TREK_REDUCTION_MAX)
        return trek_scatter_value(x, dim, index, lowest(dtype));
    if (reduction == TREK_REDUCTION_MIN && !trek_dtype_is_float(dtype))
        return trek_scatter(x, dim, index, source);
    return trek_scatter_value(x, dim, index,
                              reduction == TREK_REDUCTION_MIN ? INFINITY : reduction == TREK_REDUCTION_PROD ? 1 : 0);
}

static trek_var *rounded_down(trek_var *x, trek_var *y)
{
    return trek_cast(trek_floor(trek_div(trek_cast(x, TREK_F64), trek_cast(y, TREK_F64))), TREK_I64);
}

/* Computes x / y of i64, rounded down: the remainder that f64 loses for a large x is divided again. */
static trek_var *whole_quotient(trek_var *x, trek_var *y)
{
    trek_var *near = rounded_down(x, y);
    return trek_add(near, rounded_down(trek_sub(x, trek_mul(near, y)), y));
}

/* Divides the sums by the counts; integers are rounded down. */
static trek_var *means(trek_var *sums, trek_var *x, trek_var *index, trek_var *source, int dim, bool include_self)
{
    trek_dtype dtype = trek_var_dtype(x);
    bool whole = !trek_dtype_is_float(dtype);
    trek_dtype work = whole ? TREK_I64 : dtype == TREK_F64 ? TREK_F64 : TREK_F32;
    trek_tensor *ones = trek_tensor_ones(trek_dims_none(), work, trek_var_device(x));
    trek_var *one = ones ? trek_var_from(ones) : NULL, *none = trek_mul_scalar(one, 0);
    trek_var *counts = trek_scatter_add(trek_expand(include_self ? one : none, trek_var_shape(x)), dim,
                                        index, trek_expand(one, trek_var_shape(source)));
    counts = trek_maximum(counts, one);
    if (whole)
        return trek_cast(whole_quotient(trek_cast(sums, TREK_I64), counts), dtype);
    return trek_cast(trek_div(trek_cast(sums, work), counts), dtype);
}

bool trek_scatter_reduction_known(const char *name, trek_reduction reduction)
{
    if ((int)reduction >= TREK_REDUCTION_MEAN && reduction <= TREK_REDUCTION_PROD)
        return true;
    trek_fail(TREK_ERR_ARGUMENT, "%s: reduction: %d; must be TREK_REDUCTION_MEAN, _SUM, _MAX, _MIN or _PROD", name,
              (int)reduction);
    return false;
}

trek_var *trek_scatter_reduce(trek_var *x, int dim, trek_var *index, trek_var *source, trek_reduction reduction,
                              bool include_self)
{
    if (!x || !index || !source)
        return trek_apply_scatter(x, index, source, dim);
    if (!trek_scatter_reduction_known("scatter_reduce", reduction))
        return NULL;
    if (trek_var_dtype(source) != trek_var_dtype(x) || (reduction == TREK_REDUCTION_MEAN && trek_var_dtype(x) == TREK_BOOL))
        return trek_fail_null(TREK_ERR_DTYPE,
                              "scatter_reduce: x and source: dtypes %s and %s; must be equal, and not bool for means",
                              trek_dtype_name(trek_var_dtype(x)), trek_dtype_name(trek_var_dtype(source)));
    source = reached(source, index);
    trek_var *start = include_self ? x : without_self(x, index, source, dim, reduction);
    if (!start)
        return NULL;
    if (reduction == TREK_REDUCTION_SUM)
        return trek_scatter_add(start, dim, index, source);
    if (reduction == TREK_REDUCTION_MEAN && trek_dtype_is_16bit(trek_var_dtype(x))) { /* their sums are too large, or rounded */
        start = trek_cast(start, TREK_F32);
        source = trek_cast(source, TREK_F32);
    }
    if (reduction == TREK_REDUCTION_MEAN)
        return means(trek_scatter_add(start, dim, index, source), x, index, source, dim, include_self);
    return trek_apply_scatter_reduce(start, index, source, dim,
                                     reduction == TREK_REDUCTION_PROD ? TREK_SCATTER_PROD
                                         : reduction == TREK_REDUCTION_MAX ? TREK_SCATTER_AMAX : TREK_SCATTER_AMIN);
}

/* --- index_fill, index_put ----------------------------------------------------------------- */

trek_var *trek_index_fill(trek_var *x, int dim, trek_var *index, double value)
{
    if (!x || !index)
        return trek_apply_scatter(x, index, NULL, dim);
    int ndim = trek_var_ndim(x), at = trek_normalize_dim(dim, ndim, "index_fill");
    if (at < 0)
        return NULL;
    if (trek_dtype_is_float(trek_var_dtype(index)) || trek_var_dtype(index) == TREK_BOOL)
        return trek_fail_null(TREK_ERR_DTYPE, "index_fill: index: dtype %s; must be an integer dtype",
                              trek_dtype_name(trek_var_dtype(index)));
    if (trek_var_ndim(index) > 1)
        return trek_fail_null(TREK_ERR_SHAPE, "index_fill: index: %d dimensions; must have 1", trek_var_ndim(index));
    /* a mask for that dimension alone */
    int64_t size = ndim > 0 ? trek_var_size(x, at) : 1, others = 1;
    trek_shape places = { .ndim = ndim };
    for (int d = 0; d < ndim; d++) {
        places.sizes[d] = d == at ? size : 1;
        others *= d == at ? 1 : trek_var_size(x, d);
    }
    if (others == 0) /* indices are not checked, as in PyTorch */
        return trek_clone(x);
    trek_var *wide = trek_reshape(trek_cast(index, TREK_I64), trek_dims(-1)), *from_end = trek_add_scalar(wide, (double)size);
    trek_tensor *none = trek_tensor_zeros(trek_dims(size), TREK_BOOL, trek_var_device(x));
    trek_var *mask = trek_scatter_value(none ? trek_var_from(none) : NULL, 0, trek_where(trek_lt_scalar(wide, 0), from_end, wide),
                                        1);
    return mask ? trek_masked_fill(x, trek_reshape(mask, places), value) : NULL;
}

trek_var *trek_checked_index(const char *name, trek_var *index, int64_t size)
{
    trek_dtype dtype = trek_var_dtype(index);
    if (dtype != TREK_I64 && dtype != TREK_I32)
        return trek_fail_null(TREK_ERR_DTYPE, "%s: indices: dtype %s; must be i64 or i32", name, trek_dtype_name(dtype));
    trek_tensor *all = trek_tensor_arange(0, (double)size, 1, TREK_I64, trek_var_device(index));
    trek_var *wide = trek_cast(index, TREK_I64), *from_end = trek_lt_scalar(wide, 0);
    wide = trek_where(from_end, trek_add_scalar(wide, (double)size), wide);
    trek_var *flat = trek_index_select(all ? trek_var_from(all) : NULL, 0, trek_reshape(wide, trek_dims(-1)));
    return flat ? trek_reshape(flat, trek_var_shape(index)) : NULL;
}

trek_var *trek_index_put(trek_var *x, trek_var *const *list, int count, trek_var *values, bool accumulate)
{
    if (!x || !list || !values)
        return trek_fail_missing("index_put", "input"), NULL;
    trek_shape shape = trek_var_shape(x), rest = { 0 };
    if (count < 1 || count > shape.ndim)
        return trek_fail_null(TREK_ERR_SHAPE, "index_put: indices: %d; x has %d dimensions", count, shape.ndim);
    if (trek_var_dtype(values) != trek_var_dtype(x))
        return trek_fail_null(TREK_ERR_DTYPE, "index_put: values: dtype %s; x has %s", trek_dtype_name(trek_var_dtype(values)),
                              trek_dtype_name(trek_var_dtype(x)));
    trek_var *place = NULL;
    int64_t lines = 1;
    for (int k = 0; k < count; k++) { /* row-major positions among the first dimensions */
        trek_var *index = list[k] ? trek_checked_index("index_put", list[k], shape.sizes[k])
            : trek_fail_null(TREK_ERR_ARGUMENT, "index_put: indices: index %d: NULL; all must be given", k);
        place = k == 0 ? index : trek_add(trek_mul_scalar(place, (double)shape.sizes[k]), index);
        if (!place)
            return NULL;
        lines *= shape.sizes[k];
    }
    trek_shape written = trek_var_shape(place), flat = { .ndim = 1, .sizes = { lines } };
    if (written.ndim + shape.ndim - count > TREK_MAX_DIMS)
        return trek_fail_null(TREK_ERR_SHAPE, "index_put: more than %d dimensions are written; must be fewer", TREK_MAX_DIMS);
    rest.ndim = 1;
    rest.sizes[0] = trek_var_numel(place);
    for (int d = count; d < shape.ndim; d++) {
        written.sizes[written.ndim++] = shape.sizes[d];
        rest.sizes[rest.ndim++] = shape.sizes[d];
        flat.sizes[flat.ndim++] = shape.sizes[d];
    }
    trek_var *source = trek_reshape(trek_expand(values, written), rest), *target = trek_reshape(x, flat);
    place = trek_reshape(place, trek_dims(-1));
    if (!source || !target || !place)
        return NULL;
    if (accumulate)
        return trek_reshape(trek_index_add(target, 0, place, source), shape);
    trek_shape column = { .ndim = rest.ndim, .sizes = { rest.sizes[0], 1, 1, 1, 1, 1, 1, 1 } };
    return trek_reshape(trek_apply_scatter(target, trek_expand(trek_reshape(place, column), rest), source, 0), shape);
}
