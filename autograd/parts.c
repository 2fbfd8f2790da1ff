/* SPDX-License-Identifier: Apache-2.0 */
/* Cutting out and replacing parts of a tensor: views, and functions made from other ops. */
#include <inttypes.h>

#include "autograd/index_internal.h"
#include "autograd/ops.h"
#include "autograd/tape_internal.h"

static trek_var *made(trek_tensor *t) { return t ? trek_var_from(t) : NULL; }

/* --- cut ------------------------------------------------------------------------------------------- */

/* Returns the dimension that is cut into n parts, or -1 with an error. */
static int cut_dim(const char *name, trek_var *x, trek_var **parts, int64_t n, int dim, int capacity)
{
    if (!x || !parts)
        return trek_fail_missing(name, x ? "parts" : "x"), -1;
    int at = trek_normalize_dim(dim, trek_var_ndim(x), name);
    if (at < 0)
        return -1;
    if (trek_var_ndim(x) == 0)
        return trek_fail(TREK_ERR_SHAPE, "%s: x: it is a scalar; must have a dimension to split", name), -1;
    if (n > capacity)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: capacity: %d; there are %" PRId64 " parts", name, capacity, n), -1;
    return at;
}

int trek_split_with_sizes(trek_var *x, const int64_t *sizes, int count, int dim, trek_var **parts, int capacity)
{
    const char *name = "split_with_sizes";
    if (count < 0 || (!sizes && count > 0))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: count: %d sizes; must be 0 or more", name, count), -1;
    int at = cut_dim(name, x, parts, count, dim, capacity);
    if (at < 0)
        return -1;
    int64_t length = trek_var_size(x, at), start = 0;
    for (int k = 0; k < count; k++) {
        if (sizes[k] < 0 || sizes[k] > length - start)
            return trek_fail(TREK_ERR_ARGUMENT, "%s: sizes: %" PRId64 "; %" PRId64 " of %" PRId64 " elements are left", name,
                             sizes[k], length - start, length),
                   -1;
        start += sizes[k];
    }
    if (start != length)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: sizes: their sum is %" PRId64 "; must be %" PRId64, name, start, length), -1;
    start = 0;
    for (int k = 0; k < count; start += sizes[k++])
        if (!(parts[k] = trek_narrow(x, at, start, sizes[k])))
            return -1;
    return count;
}

int trek_split_sections(trek_var *x, int sections, int dim, trek_var **parts, int capacity)
{
    if (sections < 1)
        return trek_fail(TREK_ERR_ARGUMENT, "split_sections: sections: %d; must be at least 1", sections), -1;
    int at = cut_dim("split_sections", x, parts, sections, dim, capacity);
    if (at < 0)
        return -1;
    int64_t each = trek_var_size(x, at) / sections, longer = trek_var_size(x, at) % sections, start = 0;
    for (int k = 0; k < sections; k++) {
        int64_t length = each + (k < longer);
        if (!(parts[k] = trek_narrow(x, at, start, length)))
            return -1;
        start += length;
    }
    return sections;
}

int trek_split_indices(trek_var *x, const int64_t *indices, int count, int dim, trek_var **parts, int capacity)
{
    if (count < 0 || (!indices && count > 0))
        return trek_fail(TREK_ERR_ARGUMENT, "split_indices: count: %d indices; must be 0 or more", count), -1;
    int at = cut_dim("split_indices", x, parts, (int64_t)count + 1, dim, capacity);
    if (at < 0)
        return -1;
    for (int k = 0; k <= count; k++)
        if (!(parts[k] = trek_slice(x, at, k > 0 ? indices[k - 1] : 0, k < count ? indices[k] : INT64_MAX, 1)))
            return -1;
    return count + 1;
}

static int64_t place_within(int64_t place, int64_t size)
{
    if (place < 0)
        place = place < -size ? 0 : place + size;
    return place < size ? place : size;
}

/* Returns how many elements Python's start:stop:step selects from `size`. *start becomes the index of the first one,
 * not negative. */
static int64_t slice_length(int64_t size, int64_t *start, int64_t stop, int64_t step)
{
    int64_t first = *start = place_within(*start, size), end = place_within(stop, size);
    return end > first ? (end - first - 1) / step + 1 : 0;
}

/* Returns start, start + step, ...: n indices, on the device of x. */
static trek_var *slice_places(const trek_var *x, int64_t start, int64_t n, int64_t step)
{
    int64_t end = start + (n - 1) * step + 1;
    return made(trek_tensor_arange((double)start, (double)end, (double)step, TREK_I64, trek_var_device(x)));
}

trek_var *trek_slice(trek_var *x, int dim, int64_t start, int64_t stop, int64_t step)
{
    TREK_NEEDED("slice", x);
    int at = trek_normalize_dim(dim, trek_var_ndim(x), "slice");
    if (at < 0)
        return NULL;
    if (trek_var_ndim(x) == 0)
        return trek_fail_null(TREK_ERR_SHAPE, "slice: x: it is a scalar; must have a dimension");
    if (step < 1)
        return trek_fail_null(TREK_ERR_ARGUMENT, "slice: step: %" PRId64 "; must be at least 1, trek_flip reverses", step);
    int64_t n = slice_length(trek_var_size(x, at), &start, stop, step);
    return step == 1 || n == 0 ? trek_narrow(x, at, start, n) : trek_index_select(x, at, slice_places(x, start, n, step));
}

/* Returns k step + 0 .. size - 1 for each of n windows, one after the other. */
static trek_var *window_places(const trek_var *x, int64_t n, int64_t size, int64_t step)
{
    trek_device device = trek_var_device(x);
    trek_var *first = made(trek_tensor_arange(0, (double)n, 1, TREK_I64, device));
    trek_var *each = made(trek_tensor_arange(0, (double)size, 1, TREK_I64, device));
    trek_var *all = trek_add(trek_unsqueeze(trek_mul_scalar(first, (double)step), 1), each);
    return trek_reshape(all, trek_dims(n * size));
}

trek_var *trek_unfold_dim(trek_var *x, int dim, int64_t size, int64_t step)
{
    TREK_NEEDED("unfold_dim", x);
    int ndim = trek_var_ndim(x), at = trek_normalize_dim(dim, ndim, "unfold_dim");
    if (at < 0)
        return NULL;
    if (ndim == 0 || ndim == TREK_MAX_DIMS)
        return trek_fail_null(TREK_ERR_SHAPE, "unfold_dim: x: %d dimensions; must have 1 to 7", ndim);
    int64_t length = trek_var_size(x, at);
    if (size < 0 || size > length || step < 1)
        return trek_fail_null(TREK_ERR_ARGUMENT,
                              "unfold_dim: size: %" PRId64 ", step: %" PRId64 "; must be 0 to %" PRId64 ", and at least 1", size,
                              step, length);
    int64_t n = (length - size) / step + 1;
    trek_shape windows = trek_var_shape(x);
    windows.ndim++;
    for (int d = ndim; d > at + 1; d--)
        windows.sizes[d] = windows.sizes[d - 1];
    windows.sizes[at] = n;
    windows.sizes[at + 1] = size;
    x = step == size || n == 1 ? trek_narrow(x, at, 0, n * size) : trek_index_select(x, at, window_places(x, n, size, step));
    return trek_movedim(trek_reshape(x, windows), trek_dims(at + 1), trek_dims(-1));
}

trek_var *trek_squeeze_dims(trek_var *x, trek_dims_list dims)
{
    TREK_NEEDED("squeeze_dims", x);
    int ndim = trek_var_ndim(x);
    unsigned listed = dims.ndim == 0 || dims.ndim == trek_dims_all().ndim ? ~0u : 0;
    for (int k = 0; k < dims.ndim; k++) {
        int d = trek_normalize_dim(dims.sizes[k], ndim, "squeeze_dims");
        if (d < 0)
            return NULL;
        if (listed >> d & 1)
            return trek_fail_null(TREK_ERR_ARGUMENT, "squeeze_dims: dims: dimension %d occurs twice", d);
        listed |= 1u << d;
    }
    for (int d = ndim - 1; x && d >= 0; d--)
        if (listed >> d & 1)
            x = trek_squeeze(x, d);
    return x;
}

/* --- replaced ---------------------------------------------------------------------------------------- */

/* Returns whether source has the shape and dtype of a part of x; if not, an error is set. */
static bool fits_part(const char *name, const trek_var *x, const trek_var *part, const trek_var *source)
{
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    if (!part)
        return false;
    if (!trek_same_sizes(part->data, source->data))
        return trek_fail(TREK_ERR_SHAPE, "%s: source: %s; must fit the part %s", name, trek_tensor_shape_text(source->data, a),
                         trek_tensor_shape_text(part->data, b)),
               false;
    if (trek_var_dtype(x) != trek_var_dtype(source))
        return trek_fail(TREK_ERR_DTYPE, "%s: source: dtype %s; x has %s", name, trek_dtype_name(trek_var_dtype(source)),
                         trek_dtype_name(trek_var_dtype(x))),
               false;
    return true;
}

/* Replaces x's elements from start on along dim by source. */
static trek_var *between(trek_var *x, trek_var *source, int dim, int64_t start)
{
    int64_t end = start + trek_var_size(source, dim), length = trek_var_size(x, dim);
    trek_var *parts[3] = { trek_narrow(x, dim, 0, start), source, trek_narrow(x, dim, end, length - end) };
    return trek_cat(parts, 3, dim);
}

trek_var *trek_select_scatter(trek_var *x, trek_var *source, int dim, int64_t index)
{
    TREK_NEEDED("select_scatter", x);
    TREK_NEEDED("select_scatter", source);
    int at = trek_normalize_dim(dim, trek_var_ndim(x), "select_scatter");
    if (at < 0 || !fits_part("select_scatter", x, trek_select(trek_var_detach(x), at, index), source))
        return NULL;
    return between(x, trek_unsqueeze(source, at), at, index < 0 ? index + trek_var_size(x, at) : index);
}

trek_var *trek_slice_scatter(trek_var *x, trek_var *source, int dim, int64_t start, int64_t stop, int64_t step)
{
    TREK_NEEDED("slice_scatter", x);
    TREK_NEEDED("slice_scatter", source);
    int at = trek_normalize_dim(dim, trek_var_ndim(x), "slice_scatter");
    if (at < 0 || !fits_part("slice_scatter", x, trek_slice(trek_var_detach(x), at, start, stop, step), source))
        return NULL;
    int64_t n = slice_length(trek_var_size(x, at), &start, stop, step);
    return step == 1 || n < 2 ? between(x, source, at, start) : trek_index_copy(x, at, slice_places(x, start, n, step), source);
}

trek_var *trek_numbered(const trek_var *x)
{
    trek_tensor *all = trek_tensor_arange(0, (double)trek_var_numel(x), 1, TREK_I64, trek_var_device(x));
    return trek_reshape(made(all), trek_var_shape(x));
}

trek_var *trek_diagonal_scatter(trek_var *x, trek_var *source, int64_t offset, int dim1, int dim2)
{
    TREK_NEEDED("diagonal_scatter", x);
    TREK_NEEDED("diagonal_scatter", source);
    trek_var *places = trek_diagonal(trek_numbered(x), offset, dim1, dim2);
    return fits_part("diagonal_scatter", x, places, source) ? trek_put(x, places, source, false) : NULL;
}

trek_var *trek_index_reduce(trek_var *x, int dim, trek_var *index, trek_var *source, trek_reduction reduction, bool include_self)
{
    TREK_NEEDED("index_reduce", x);
    TREK_NEEDED("index_reduce", index);
    TREK_NEEDED("index_reduce", source);
    trek_shape shape = trek_var_shape(x), own = trek_var_shape(source), line = { .ndim = own.ndim };
    trek_dtype of = trek_var_dtype(index);
    int at = trek_normalize_dim(dim, shape.ndim, "index_reduce");
    if (at < 0 || !trek_scatter_reduction_known("index_reduce", reduction))
        return NULL;
    if (trek_dtype_is_float(of) || of == TREK_BOOL)
        return trek_fail_null(TREK_ERR_DTYPE, "index_reduce: index: dtype %s; must be an integer dtype", trek_dtype_name(of));
    bool fits = trek_var_ndim(index) <= 1 && shape.ndim == own.ndim;
    for (int d = 0; fits && d < own.ndim; d++) {
        fits = own.sizes[d] == (d == at ? trek_var_numel(index) : shape.sizes[d]);
        line.sizes[d] = d == at ? own.sizes[d] : 1;
    }
    if (!fits)
        return trek_fail_null(TREK_ERR_SHAPE,
                              "index_reduce: source: wrong shape; must be x's, with as many slices as the index has elements");
    return trek_scatter_reduce(x, at, trek_expand(trek_reshape(trek_cast(index, TREK_I64), line), own), source, reduction,
                               include_self);
}
