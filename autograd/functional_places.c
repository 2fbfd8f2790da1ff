/* SPDX-License-Identifier: Apache-2.0 */
/* The public ops that find, write or repeat elements by position, made from other ops. */
#include <inttypes.h>

#include "autograd/index_internal.h"
#include "autograd/ops.h"
#include "autograd/tape_internal.h"
#include "tensor/number_internal.h"

/* Returns 0, step, 2 step, ... below end, on the device of x. */
static trek_var *places(const trek_var *x, int64_t end, int64_t step)
{
    trek_tensor *t = trek_tensor_arange(0, (double)end, (double)step, TREK_I64, trek_var_device(x));
    return t ? trek_var_from(t) : NULL;
}

static trek_var *made(trek_tensor *t) { return t ? trek_var_from(t) : NULL; }

bool trek_all_hold(const char *name, trek_var *condition, const char *what)
{
    trek_var *all = trek_all(condition, trek_dims_all(), false);
    if (!all)
        return false;
    if (trek_var_item(all) != 0)
        return true;
    return trek_fail(TREK_ERR_ARGUMENT, "%s: %s", name, what), false;
}

/* --- places in the data ---------------------------------------------------------------------- */

trek_var *trek_masked_select(trek_var *x, trek_var *mask)
{
    TREK_NEEDED("masked_select", x, mask);
    if (trek_var_dtype(mask) != TREK_BOOL)
        return trek_fail_null(TREK_ERR_DTYPE, "masked_select: mask: dtype %s; must be bool",
                              trek_dtype_name(trek_var_dtype(mask)));
    trek_shape a = trek_var_shape(x), b = trek_var_shape(mask), shape = { .ndim = a.ndim > b.ndim ? a.ndim : b.ndim };
    for (int d = 0; d < shape.ndim; d++) {
        int of_x = d - (shape.ndim - a.ndim), of_mask = d - (shape.ndim - b.ndim);
        int64_t size = of_x < 0 ? 1 : a.sizes[of_x];
        shape.sizes[d] = size == 1 && of_mask >= 0 ? b.sizes[of_mask] : size;
    }
    trek_var *found = trek_nonzero(trek_reshape(trek_expand(mask, shape), trek_dims(-1)));
    return trek_index_select(trek_reshape(trek_expand(x, shape), trek_dims(-1)), 0, trek_reshape(found, trek_dims(-1)));
}

/* Compares each element of x except the last with the next one. */
static trek_var *new_values(trek_var *sorted, int64_t n)
{
    trek_var *differ = trek_ne(trek_narrow(sorted, 0, 1, n - 1), trek_narrow(sorted, 0, 0, n - 1));
    trek_var *parts[2] = { made(trek_tensor_ones(trek_dims(1), TREK_BOOL, trek_var_device(sorted))), differ };
    return trek_cat(parts, 2, 0);
}

trek_var *trek_unique(trek_var *x, trek_var **inverse, trek_var **counts)
{
    trek_var *indices = NULL, *back = NULL, *sizes = NULL;
    if (inverse)
        *inverse = NULL;
    if (counts)
        *counts = NULL;
    TREK_NEEDED("unique", x);
    int64_t n = trek_var_numel(x);
    trek_var *sorted = trek_sort(trek_reshape(trek_var_detach(x), trek_dims(-1)), 0, false, &indices), *starts = indices;
    trek_var *values = sorted;
    if (n > 0 && sorted) {
        trek_var *fresh = new_values(sorted, n);
        starts = trek_reshape(trek_nonzero(fresh), trek_dims(-1));
        values = trek_index_select(sorted, 0, starts);
        if (inverse)
            back = trek_scatter(trek_zeros_like(indices), 0, indices, trek_sub_scalar(trek_cumsum(fresh, 0), 1));
    } else {
        back = indices;
    }
    if (counts && values) {
        int64_t found = trek_var_numel(values);
        trek_var *end = made(trek_tensor_full(trek_dims(1), (double)n, TREK_I64, trek_var_device(x)));
        trek_var *parts[2] = { n > 0 ? trek_narrow(starts, 0, 1, found - 1) : starts, end };
        sizes = n > 0 ? trek_sub(trek_cat(parts, 2, 0), starts) : indices;
    }
    if ((inverse && !(back = trek_reshape(back, trek_var_shape(x)))) || (counts && !sizes))
        return NULL;
    if (inverse)
        *inverse = back;
    if (counts)
        *counts = sizes;
    return values;
}

trek_var *trek_unique_consecutive(trek_var *x, trek_var **inverse, trek_var **counts)
{
    if (inverse)
        *inverse = NULL;
    if (counts)
        *counts = NULL;
    TREK_NEEDED("unique_consecutive", x);
    int64_t n = trek_var_numel(x);
    trek_var *flat = trek_reshape(trek_var_detach(x), trek_dims(n)), *values = flat, *sizes = flat ? places(flat, 0, 1) : NULL;
    trek_var *back = sizes;
    if (n > 0 && flat) {
        trek_var *fresh = new_values(flat, n), *starts = trek_reshape(trek_nonzero(fresh), trek_dims(-1));
        if (!starts)
            return NULL;
        values = trek_index_select(flat, 0, starts);
        back = trek_sub_scalar(trek_cumsum(fresh, 0), 1);
        trek_var *end = made(trek_tensor_full(trek_dims(1), (double)n, TREK_I64, trek_var_device(x)));
        trek_var *parts[2] = { trek_narrow(starts, 0, 1, trek_var_numel(starts) - 1), end };
        sizes = trek_sub(trek_cat(parts, 2, 0), starts);
    }
    back = trek_reshape(back, trek_var_shape(x));
    if (!values || !back || !sizes)
        return NULL;
    if (inverse)
        *inverse = back;
    if (counts)
        *counts = sizes;
    return values;
}

trek_var *trek_bincount(trek_var *x, trek_var *weights, int64_t minlength)
{
    TREK_NEEDED("bincount", x);
    trek_dtype dtype = trek_var_dtype(x);
    if (trek_dtype_is_float(dtype) || dtype == TREK_BOOL)
        return trek_fail_null(TREK_ERR_DTYPE, "bincount: x: dtype %s; must be an integer dtype", trek_dtype_name(dtype));
    if (trek_var_ndim(x) != 1 || (weights && (trek_var_ndim(weights) != 1 || trek_var_numel(weights) != trek_var_numel(x))))
        return trek_fail_null(TREK_ERR_SHAPE,
                              "bincount: x or weights: wrong shape; x must have 1 dimension, and weights as many elements");
    if (minlength < 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "bincount: minlength: %lld; must be 0 or more", (long long)minlength);
    trek_dtype of = !weights ? TREK_I64 : trek_var_dtype(weights) == TREK_F32 ? TREK_F32 : TREK_F64;
    int64_t size = minlength, n = trek_var_numel(x);
    trek_var *largest = n > 0 ? trek_max(x, trek_dims_all(), false) : NULL;
    if (n > 0 && !largest)
        return NULL;
    if (largest && (int64_t)trek_var_item(largest) >= size)
        size = (int64_t)trek_var_item(largest) + 1;
    trek_var *zeros = made(trek_tensor_zeros(trek_dims(size), of, trek_var_device(x)));
    trek_var *ones = weights ? trek_cast(trek_var_detach(weights), of)
        : made(trek_tensor_ones(trek_dims(1), of, trek_var_device(x)));
    return trek_index_add(zeros, 0, x, trek_expand(ones, trek_dims(n)));
}

/* --- repeating -------------------------------------------------------------------------------- */

/* Repeats each part of x from dimension dim + below on this many times. */
static trek_var *repeated_along(trek_var *x, int dim, int below, int64_t times)
{
    if (!x)
        return NULL;
    trek_shape shape = trek_var_shape(x), whole = shape;
    int64_t before = 1, part = 1;
    for (int d = 0; d < shape.ndim; d++)
        *(d < dim + below ? &before : &part) *= shape.sizes[d];
    whole.sizes[dim] *= times;
    return trek_reshape(trek_expand(trek_reshape(x, trek_dims(before, 1, part)), trek_dims(before, times, part)), whole);
}

trek_var *trek_repeat_interleave(trek_var *x, int64_t repeats, int dim)
{
    TREK_NEEDED("repeat_interleave", x);
    int ndim = trek_var_ndim(x), at = trek_normalize_dim(dim, ndim, "repeat_interleave");
    if (at < 0)
        return NULL;
    if (repeats < 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "repeat_interleave: repeats: %lld; must be 0 or more", (long long)repeats);
    if (ndim == 0)
        return trek_fail_null(TREK_ERR_SHAPE, "repeat_interleave: x: it is a scalar; must have a dimension");
    if (at < ndim - 1)
        return repeated_along(x, at, 1, repeats);
    trek_var *index = repeated_along(places(x, trek_var_size(x, at), 1), 0, 1, repeats);
        /* of single elements: found one by one */
    return trek_index_select(x, at, index);
}

trek_var *trek_repeat_interleave_by(trek_var *x, trek_var *repeats, int dim)
{
    TREK_NEEDED("repeat_interleave_by", x, repeats);
    int at = trek_normalize_dim(dim, trek_var_ndim(x), "repeat_interleave_by");
    trek_dtype dtype = trek_var_dtype(repeats);
    if (at < 0)
        return NULL;
    if (dtype != TREK_I64 && dtype != TREK_I32)
        return trek_fail_null(TREK_ERR_DTYPE, "repeat_interleave_by: repeats: dtype %s; must be i64 or i32",
                              trek_dtype_name(dtype));
    if (trek_var_ndim(x) == 0)
        return trek_fail_null(TREK_ERR_SHAPE, "repeat_interleave_by: x: it is a scalar; must have a dimension");
    int64_t n = trek_var_size(x, at);
    if (trek_var_ndim(repeats) != 1 || trek_var_numel(repeats) != n)
        return trek_fail_null(
            TREK_ERR_SHAPE, "repeat_interleave_by: repeats: wrong shape; must have 1 dimension with %lld elements", (long long)n);
    if (!trek_all_hold("repeat_interleave_by", trek_ge_scalar(repeats, 0), "repeats: one is negative; must be 0 or more"))
        return NULL;
    trek_var *ends = trek_cumsum(repeats, 0), *end = n > 0 ? trek_narrow(ends, 0, n - 1, 1) : NULL;
    if (!ends || (n > 0 && !end))
        return NULL;
    trek_var *all = places(x, end ? (int64_t)trek_var_item(end) : 0, 1);
    return trek_index_select(x, at, trek_searchsorted(ends, all, true));
}

/* Repeats one dimension after the other, starting from the last, so that the repeated tensors stay small as long as
 * possible. */
static trek_var *repeated(trek_var *x, trek_shape repeats)
{
    for (int d = repeats.ndim - 1; x && d >= 0; d--)
        if (repeats.sizes[d] != 1)
            x = repeated_along(x, d, 0, repeats.sizes[d]);
    return x;
}

static trek_var *repeat(const char *name, trek_var *x, trek_shape repeats)
{
    TREK_NEEDED(name, x);
    trek_shape shape = trek_var_shape(x), whole = { .ndim = repeats.ndim };
    if (repeats.ndim < shape.ndim)
        return trek_fail_null(TREK_ERR_SHAPE, "%s: repeats: %d numbers; x has %d dimensions", name, repeats.ndim, shape.ndim);
    bool once = true;
    for (int d = 0; d < repeats.ndim; d++) {
        int own = d - (repeats.ndim - shape.ndim);
        if (repeats.sizes[d] < 0)
            return trek_fail_null(TREK_ERR_ARGUMENT, "%s: repeats: %lld; must be 0 or more", name, (long long)repeats.sizes[d]);
        whole.sizes[d] = own < 0 ? 1 : shape.sizes[own];
        once = once && repeats.sizes[d] == 1;
    }
    return once ? trek_clone(trek_reshape(x, whole)) : repeated(trek_reshape(x, whole), repeats);
}

trek_var *trek_repeat(trek_var *x, trek_shape repeats) { return repeat("repeat", x, repeats); }

trek_var *trek_tile(trek_var *x, trek_shape repeats)
{
    TREK_NEEDED("tile", x);
    int missing = trek_var_ndim(x) - repeats.ndim;
    trek_shape all = { .ndim = missing > 0 ? trek_var_ndim(x) : repeats.ndim };
    for (int d = 0; d < all.ndim; d++)
        all.sizes[d] = missing <= 0 ? repeats.sizes[d] : d < missing ? 1 : repeats.sizes[d - missing];
    return repeat("tile", x, all);
}

/* --- arranging -------------------------------------------------------------------------------- */

trek_var *trek_roll(trek_var *x, trek_dims_list shifts, trek_dims_list dims)
{
    TREK_NEEDED("roll", x);
    dims = trek_listed_dims(dims, trek_var_ndim(x));
    if (dims.ndim == 0 && shifts.ndim == 1)
        return trek_reshape(trek_roll(trek_reshape(x, trek_dims(-1)), shifts, trek_dims(0)), trek_var_shape(x));
    if (shifts.ndim != dims.ndim || dims.ndim == 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "roll: shifts: %d for %d dimensions; must be equal", shifts.ndim, dims.ndim);
    trek_var *given = x;
    for (int k = 0; x && k < dims.ndim; k++) {
        int dim = trek_normalize_dim(dims.sizes[k], trek_var_ndim(x), "roll");
        if (dim < 0)
            return NULL;
        if (trek_var_ndim(x) == 0)
            return trek_fail_null(TREK_ERR_SHAPE, "roll: x: it is a scalar; must have a dimension");
        int64_t n = trek_var_size(x, dim), shift = n > 0 ? (shifts.sizes[k] % n + n) % n : 0;
        if (shift == 0)
            continue;
        trek_var *parts[2] = { trek_narrow(x, dim, n - shift, shift), trek_narrow(x, dim, 0, n - shift) };
        x = trek_cat(parts, 2, dim);
    }
    return x == given ? trek_clone(x) : x;
}

trek_var *trek_diag(trek_var *x, int64_t diagonal)
{
    TREK_NEEDED("diag", x);
    if (trek_var_ndim(x) == 2)
        return trek_clone(trek_diagonal(x, diagonal, 0, 1));
    if (trek_var_ndim(x) != 1)
        return trek_fail_null(TREK_ERR_SHAPE, "diag: x: %d dimensions; must have 1 or 2", trek_var_ndim(x));
    const int64_t most = (int64_t)1 << 30; /* of rows: no memory holds more */
    if (diagonal > most || diagonal < -most || trek_var_numel(x) > most)
        return trek_fail_null(TREK_ERR_MEMORY, "diag: diagonal: %" PRId64 "; such a matrix does not fit in memory", diagonal);
    int64_t n = trek_var_numel(x), away = diagonal < 0 ? -diagonal : diagonal, side = n + away;
    trek_var *index = trek_add_scalar(places(x, n * (side + 1), side + 1), (double)(diagonal < 0 ? away * side : away));
    trek_var *zeros = made(trek_tensor_zeros(trek_dims(side * side), trek_var_dtype(x), trek_var_device(x)));
    return trek_reshape(trek_index_add(zeros, 0, index, x), trek_dims(side, side));
}

int trek_meshgrid(trek_var *const *list, int count, bool xy, trek_var **parts, int capacity)
{
    if (!list || !parts)
        return trek_fail_missing("meshgrid", list ? "parts" : "list"), -1;
    if (count < 1 || count > TREK_MAX_DIMS || count > capacity)
        return trek_fail(TREK_ERR_ARGUMENT, "meshgrid: capacity: %d; there are %d coordinates", capacity, count), -1;
    trek_shape shape = { .ndim = count };
    for (int k = 0; k < count; k++) {
        if (!list[k])
            return trek_fail_missing("meshgrid", "input"), -1;
        if (trek_var_ndim(list[k]) > 1)
            return trek_fail(TREK_ERR_SHAPE, "meshgrid: coordinates: %d dimensions; must have 1", trek_var_ndim(list[k])), -1;
        if (trek_var_dtype(list[k]) != trek_var_dtype(list[0]))
            return trek_fail(TREK_ERR_DTYPE, "meshgrid: coordinates: dtypes %s and %s; must be equal",
                             trek_dtype_name(trek_var_dtype(list[0])), trek_dtype_name(trek_var_dtype(list[k]))),
                   -1;
        shape.sizes[k] = trek_var_numel(list[k]);
    }
    for (int k = 0; k < count; k++) {
        trek_shape own = { .ndim = count };
        for (int d = 0; d < count; d++)
            own.sizes[d] = d == k ? shape.sizes[k] : 1;
        parts[k] = trek_expand(trek_reshape(list[k], own), shape);
        if (xy && count > 1)
            parts[k] = trek_transpose(parts[k], 0, 1);
        if (!parts[k])
            return -1;
    }
    return count;
}
