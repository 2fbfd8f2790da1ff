/* SPDX-License-Identifier: Apache-2.0 */
/* Taking elements by position, and building tensors from others', made from other ops. */
#include "autograd/calls_internal.h"
#include "autograd/ops.h"
#include "autograd/tape_internal.h"
#include "tensor/trace.h"

static trek_var *made(trek_tensor *t) { return t ? trek_var_from(t) : NULL; }
static trek_var *flat(trek_var *x) { return trek_reshape(x, trek_dims(-1)); }

static bool is_i64(const char *name, const trek_var *index)
{
    if (trek_var_dtype(index) == TREK_I64)
        return true;
    return trek_fail(TREK_ERR_DTYPE, "%s: index: dtype %s; must be i64", name, trek_dtype_name(trek_var_dtype(index))), false;
}

/* --- places ------------------------------------------------------------------------------------- */

trek_var *trek_isin(trek_var *x, trek_var *of, bool invert)
{
    TREK_NEEDED("isin", x);
    TREK_NEEDED("isin", of);
    if (trek_var_dtype(x) != trek_var_dtype(of) || trek_var_dtype(x) == TREK_BOOL)
        return trek_fail_null(TREK_ERR_DTYPE, "isin: inputs: dtypes %s and %s; must be one dtype of numbers",
                              trek_dtype_name(trek_var_dtype(x)),
                              trek_dtype_name(trek_var_dtype(of)));
    if (trek_dtype_is_float(trek_var_dtype(of))) /* a search cannot find a NaN's position */
        of = trek_masked_select(trek_var_detach(of), trek_logical_not(trek_isnan(of)));
    if (!of)
        return NULL;
    int64_t n = trek_var_numel(of);
    trek_var *found;
    if (n == 0) {
        found = made(trek_tensor_zeros(trek_var_shape(x), TREK_BOOL, trek_var_device(x)));
    } else {
        x = trek_var_detach(x);
        trek_var *sorted = trek_sort(flat(trek_var_detach(of)), 0, false, NULL);
        trek_var *at = trek_clamp(trek_searchsorted(sorted, flat(x), false), 0, (double)(n - 1));
        found = x ? trek_reshape(trek_eq(trek_index_select(sorted, 0, at), flat(x)), trek_var_shape(x)) : NULL;
    }
    return invert ? trek_logical_not(found) : found;
}

/* Returns positions counted from the start. */
static trek_var *from_start(trek_var *index, int64_t n)
{
    return trek_where(trek_lt_scalar(index, 0), trek_add_scalar(index, (double)n), index);
}

/* Returns whether x's elements fill a piece of memory without gaps or repetitions. `order` becomes its dimensions from the
 * largest stride to the smallest; permuted by it, x is contiguous. */
static bool fills_memory(const trek_var *x, trek_dims_list *order)
{
    const trek_shape shape = trek_var_shape(x), strides = trek_tensor_strides(trek_var_data(x));
    *order = (trek_dims_list){ .ndim = shape.ndim };
    for (int d = 0; d < shape.ndim; d++) {
        int k = d;
        for (; k > 0 && strides.sizes[order->sizes[k - 1]] < strides.sizes[d]; k--)
            order->sizes[k] = order->sizes[k - 1];
        order->sizes[k] = d;
    }
    int64_t expected = 1;
    for (int k = shape.ndim - 1; k >= 0; k--) {
        const int d = (int)order->sizes[k];
        if (shape.sizes[d] != 1 && strides.sizes[d] != expected)
            return false;
        expected *= shape.sizes[d];
    }
    return true;
}

/* Returns the positions in memory of the elements with these row-major indices. The quotient of an index by the elements behind a
 * dimension counts that dimension's steps, also those that would belong to the ones before it, which the factors make up for: one
 * division for each dimension but the last. An index out of range is returned as it is, so that trek_index_select refuses it and
 * names it. */
static trek_var *place_in_memory(const trek_var *x, trek_var *index)
{
    const trek_shape shape = trek_var_shape(x), strides = trek_tensor_strides(trek_var_data(x));
    const int last = shape.ndim - 1;
    trek_var *steps = index, *place = strides.sizes[last] == 1 ? index : trek_mul_scalar(index, (double)strides.sizes[last]);
    for (int d = last - 1; d >= 0; d--) {
        const int64_t size = shape.sizes[d + 1];
        trek_var *divisor = made(trek_tensor_full(trek_dims_none(), (double)size, TREK_I64, trek_var_device(index)));
        steps = trek_floor_divide(steps, divisor);
        place = trek_add(place, trek_mul_scalar(steps, (double)(strides.sizes[d] - size * strides.sizes[d + 1])));
    }
    return trek_where(trek_eq(trek_clamp(index, 0, (double)(trek_var_numel(x) - 1)), index), place, index);
}

trek_var *trek_take(trek_var *x, trek_var *index)
{
    enum { FEW = 64 }; /* with so many elements for each index, or more, computing places takes less time than copying x */
    TREK_NEEDED("take", x);
    TREK_NEEDED("take", index);
    if (!is_i64("take", index))
        return NULL;
    const char *before = trek_op_calling("take");
    trek_dims_list order;
    trek_var *at = flat(from_start(index, trek_var_numel(x)));
    if (at && trek_var_numel(index) <= trek_var_numel(x) / FEW && !trek_tensor_is_contiguous(trek_var_data(x)) &&
        fills_memory(x, &order)) {
        at = place_in_memory(x, at);
        x = trek_permute(x, order);
    }
    return trek_op_called_end(before, trek_reshape(trek_index_select(flat(x), 0, at), trek_var_shape(index)));
}

trek_var *trek_put(trek_var *x, trek_var *index, trek_var *source, bool accumulate)
{
    TREK_NEEDED("put", x);
    TREK_NEEDED("put", index);
    TREK_NEEDED("put", source);
    if (!is_i64("put", index))
        return NULL;
    if (trek_var_numel(index) != trek_var_numel(source))
        return trek_fail_null(TREK_ERR_ARGUMENT, "put: %lld indices for %lld elements; must be equal",
                              (long long)trek_var_numel(index), (long long)trek_var_numel(source));
    if (trek_var_dtype(x) != trek_var_dtype(source))
        return trek_fail_null(TREK_ERR_DTYPE, "put: source: dtype %s; x has %s", trek_dtype_name(trek_var_dtype(source)),
                              trek_dtype_name(trek_var_dtype(x)));
    const char *before = trek_op_calling("put");
    trek_var *at = flat(index), *values = flat(source), *whole = flat(x);
    trek_var *put = at ? trek_index_put(whole, &at, 1, values, accumulate) : NULL;
    return trek_op_called_end(before, put ? trek_reshape(put, trek_var_shape(x)) : NULL);
}

trek_var *trek_take_along_dim(trek_var *x, trek_var *index, int dim)
{
    TREK_NEEDED("take_along_dim", x);
    TREK_NEEDED("take_along_dim", index);
    trek_shape a = trek_var_shape(x), b = trek_var_shape(index);
    if (!is_i64("take_along_dim", index))
        return NULL;
    if (a.ndim != b.ndim)
        return trek_fail_null(TREK_ERR_SHAPE, "take_along_dim: x and index: %d and %d dimensions; must be equal", a.ndim, b.ndim);
    int at = trek_normalize_dim(dim, a.ndim, "take_along_dim");
    if (at < 0)
        return NULL;
    for (int d = 0; d < a.ndim; d++) {
        if (d == at)
            continue;
        if (a.sizes[d] == 1)
            a.sizes[d] = b.sizes[d];
        else if (b.sizes[d] == 1)
            b.sizes[d] = a.sizes[d];
    }
    const char *before = trek_op_calling("take_along_dim");
    index = from_start(trek_expand(index, b), a.ndim > 0 ? a.sizes[at] : 1);
    return trek_op_called_end(before, trek_gather(trek_expand(x, a), dim, index));
}

trek_var *trek_index_copy(trek_var *x, int dim, trek_var *index, trek_var *source)
{
    TREK_NEEDED("index_copy", x);
    TREK_NEEDED("index_copy", index);
    TREK_NEEDED("index_copy", source);
    trek_shape shape = trek_var_shape(x), own = trek_var_shape(source), line = { .ndim = own.ndim };
    int at = trek_normalize_dim(dim, shape.ndim, "index_copy");
    if (at < 0)
        return NULL;
    if (trek_var_ndim(index) > 1 || shape.ndim != own.ndim || (own.ndim > 0 && own.sizes[at] != trek_var_numel(index)))
        return trek_fail_null(TREK_ERR_SHAPE,
                              "index_copy: source: wrong shape; must be x's, with as many slices as the index has elements");
    for (int d = 0; d < own.ndim; d++) {
        if (d != at && own.sizes[d] != shape.sizes[d])
            return trek_fail_null(TREK_ERR_SHAPE, "index_copy: x and source: sizes of dimension %d differ; must be equal", d);
        line.sizes[d] = d == at ? own.sizes[d] : 1;
    }
    const char *before = trek_op_calling("index_copy");
    return trek_op_called_end(before, trek_scatter(x, at, trek_expand(trek_reshape(index, line), own), source));
}

trek_var *trek_masked_scatter(trek_var *x, trek_var *mask, trek_var *source)
{
    TREK_NEEDED("masked_scatter", x);
    TREK_NEEDED("masked_scatter", mask);
    TREK_NEEDED("masked_scatter", source);
    if (trek_var_dtype(mask) != TREK_BOOL || trek_var_dtype(x) != trek_var_dtype(source))
        return trek_fail_null(
            TREK_ERR_DTYPE, "masked_scatter: mask, x and source: dtypes %s, %s and %s; must be bool, and two that are equal",
            trek_dtype_name(trek_var_dtype(mask)), trek_dtype_name(trek_var_dtype(x)), trek_dtype_name(trek_var_dtype(source)));
    trek_var *both = trek_where(mask, trek_var_detach(x), trek_var_detach(x)); /* the shape that x and mask broadcast to */
    if (!both)
        return NULL;
    trek_shape shape = trek_var_shape(both);
    mask = trek_expand(mask, shape);
    x = trek_expand(x, shape);
    trek_var *count = trek_sum(mask, trek_dims_all(), false);
    int64_t n = trek_var_numel(source), places = count ? (int64_t)trek_var_item(count) : -1;
    if (places < 0)
        return NULL;
    if (places > n)
        return trek_fail_null(
            TREK_ERR_ARGUMENT,
            "masked_scatter: source: %lld elements for %lld true elements of the mask; must be at least as many", (long long)n,
            (long long)places);
    if (n == 0) /* recorded of nothing, too */
        return trek_dtype_is_float(trek_var_dtype(x)) ? trek_sub(x, trek_sum(source, trek_dims_all(), false)) : trek_clone(x);
    trek_var *at = trek_clamp(trek_sub_scalar(trek_cumsum(flat(mask), 0), 1), 0, (double)(n - 1));
    return trek_where(mask, trek_reshape(trek_index_select(flat(source), 0, at), shape), x);
}

/* --- shapes ------------------------------------------------------------------------------------- */

trek_var *trek_rot90(trek_var *x, int64_t k, trek_dims_list dims)
{
    TREK_NEEDED("rot90", x);
    dims = trek_listed_dims(dims, trek_var_ndim(x));
    if (dims.ndim != 2)
        return trek_fail_null(TREK_ERR_ARGUMENT, "rot90: dims: %d; must be two", dims.ndim);
    int first = trek_normalize_dim((int)dims.sizes[0], trek_var_ndim(x), "rot90");
    int second = first < 0 ? -1 : trek_normalize_dim((int)dims.sizes[1], trek_var_ndim(x), "rot90");
    if (second < 0)
        return NULL;
    if (first == second || trek_var_ndim(x) < 2)
        return trek_fail_null(TREK_ERR_ARGUMENT, "rot90: dims: they are equal; must be two different ones");
    switch ((k % 4 + 4) % 4) {
    case 1: return trek_transpose(trek_flip(x, trek_dims(second)), first, second);
    case 2: return trek_flip(x, trek_dims(first, second));
    case 3: return trek_transpose(trek_flip(x, trek_dims(first)), first, second);
    default: return trek_clone(x);
    }
}

/* --- made of others' ------------------------------------------------------------------------------- */

/* Returns x with zeros at its ends along dim. */
static trek_var *between_zeros(trek_var *x, int dim, int64_t before, int64_t after)
{
    trek_var *parts[3] = { NULL, x, NULL };
    for (int end = 0; end < 2; end++) {
        trek_shape shape = trek_var_shape(x);
        shape.sizes[dim] = end ? after : before;
        parts[2 * end] = made(trek_tensor_zeros(shape, trek_var_dtype(x), trek_var_device(x)));
    }
    return trek_cat(parts, 3, dim);
}

trek_var *trek_diag_embed(trek_var *x, int64_t offset, int dim1, int dim2)
{
    TREK_NEEDED("diag_embed", x);
    int ndim = trek_var_ndim(x);
    if (ndim == 0 || ndim == TREK_MAX_DIMS)
        return trek_fail_null(TREK_ERR_SHAPE, "diag_embed: x: %d dimensions; must have 1 to 7", ndim);
    int first = trek_normalize_dim(dim1, ndim + 1, "diag_embed");
    int second = first < 0 ? -1 : trek_normalize_dim(dim2, ndim + 1, "diag_embed");
    if (second < 0)
        return NULL;
    int64_t n = trek_var_size(x, -1), most = INT64_C(1) << 40;
    if (first == second)
        return trek_fail_null(TREK_ERR_ARGUMENT, "diag_embed: dims: dimension %d occurs twice", first);
    if (offset > most || offset < -most)
        return trek_fail_null(TREK_ERR_ARGUMENT, "diag_embed: offset: %lld; must be within +-2^40", (long long)offset);
    int64_t more = offset < 0 ? -offset : offset;
    trek_var *line = between_zeros(x, ndim - 1, 0, more); /* by row, or for diagonals below by column */
    trek_tensor *ones = trek_tensor_ones(trek_dims(n + more, n + more), TREK_BOOL, trek_var_device(x));
    trek_var *all = made(ones), *diagonal = trek_triu(trek_tril(all, offset), offset);
    trek_var *zero = made(trek_tensor_zeros(trek_dims_none(), trek_var_dtype(x), trek_var_device(x)));
    trek_var *whole = trek_where(diagonal, trek_unsqueeze(line, offset >= 0 ? -1 : -2), zero);
    return trek_movedim(whole, trek_dims(-2, -1), trek_dims(first, second));
}

static trek_shape block_shape(const trek_var *x)
{
    const int ndim = trek_var_ndim(x);
    return trek_dims(ndim < 2 ? 1 : trek_var_size(x, 0), ndim == 0 ? 1 : trek_var_size(x, -1));
}

/* Returns whether blocks can be written to where they belong, because nobody records ops, and all are alike. */
static bool writes_blocks(trek_var *const *list, int count)
{
    bool writes = !atomic_load_explicit(&trek_trace_now, memory_order_relaxed);
    for (int k = 0; k < count && writes; k++)
        writes = list[k]->data->dtype == list[0]->data->dtype &&
            trek_device_equal(trek_var_device(list[k]), trek_var_device(list[0])) &&
            !(trek_recording() && trek_var_requires_grad(list[k]));
    return writes;
}

/* Returns the matrix whose blocks are written one by one, instead of by joining each with zeros, and then all. */
static trek_var *written_blocks(trek_var *const *list, int count)
{
    int64_t rows = 0, cols = 0, row = 0, col = 0;
    for (int k = 0; k < count; k++) {
        rows += block_shape(list[k]).sizes[0];
        cols += block_shape(list[k]).sizes[1];
    }
    trek_var *whole = made(trek_tensor_zeros(trek_dims(rows, cols), trek_var_dtype(list[0]), trek_var_device(list[0])));
    for (int k = 0; whole && k < count; k++) {
        const trek_shape shape = block_shape(list[k]);
        trek_var *block = trek_reshape(list[k], shape);
        trek_var *place = trek_narrow(trek_narrow(whole, 0, row, shape.sizes[0]), 1, col, shape.sizes[1]);
        if (!block || !place || trek_tensor_copy_from(place->data, block->data) != TREK_OK)
            return NULL;
        row += shape.sizes[0];
        col += shape.sizes[1];
    }
    return whole;
}

trek_var *trek_block_diag(trek_var *const *list, int count)
{
    enum { MOST = 4096 };
    if (!list || count < 1 || count > MOST)
        return trek_fail_null(TREK_ERR_ARGUMENT, "block_diag: count: %d tensors; must be at least 1", count);
    int64_t before = 0, all = 0;
    for (int k = 0; k < count; k++) {
        TREK_NEEDED("block_diag", list[k]);
        if (trek_var_ndim(list[k]) > 2)
            return trek_fail_null(TREK_ERR_SHAPE, "block_diag: tensor %d: %d dimensions; must have at most 2", k,
                                  trek_var_ndim(list[k]));
        all += block_shape(list[k]).sizes[1];
    }
    if (writes_blocks(list, count))
        return written_blocks(list, count);
    trek_var **rows = trek_alloc((size_t)count * sizeof *rows), *whole = NULL;
    if (!rows)
        return NULL;
    rows[count - 1] = NULL;
    for (int k = 0; k < count; k++) {
        const int64_t size = block_shape(list[k]).sizes[1];
        trek_var *matrix = trek_reshape(list[k], block_shape(list[k]));
        rows[k] = matrix ? between_zeros(matrix, 1, before, all - before - size) : NULL;
        before += size;
        if (!rows[k])
            break;
    }
    if (rows[count - 1])
        whole = trek_cat(rows, count, 0);
    trek_free(rows);
    return whole;
}

trek_var *trek_cartesian_prod(trek_var *const *list, int count)
{
    if (!list || count < 1 || count > TREK_MAX_DIMS)
        return trek_fail_null(TREK_ERR_ARGUMENT, "cartesian_prod: count: %d tensors; must be at least 1", count);
    for (int k = 0; k < count; k++) {
        TREK_NEEDED("cartesian_prod", list[k]);
        if (trek_var_ndim(list[k]) != 1)
            return trek_fail_null(TREK_ERR_SHAPE, "cartesian_prod: tensor %d: %d dimensions; must have 1", k,
                                  trek_var_ndim(list[k]));
    }
    if (count == 1)
        return list[0];
    trek_var *grids[TREK_MAX_DIMS];
    if (trek_meshgrid(list, count, false, grids, TREK_MAX_DIMS) < 0)
        return NULL;
    for (int k = 0; k < count; k++)
        grids[k] = flat(grids[k]);
    return trek_stack(grids, count, 1);
}

trek_var *trek_vander(trek_var *x, int64_t columns, bool increasing)
{
    TREK_NEEDED("vander", x);
    if (trek_var_ndim(x) != 1)
        return trek_fail_null(TREK_ERR_SHAPE, "vander: x: %d dimensions; must have 1", trek_var_ndim(x));
    if (columns < -1)
        return trek_fail_null(TREK_ERR_ARGUMENT, "vander: columns: %lld; must be 0 or more", (long long)columns);
    int64_t n = trek_var_numel(x), count = columns < 0 ? n : columns;
    x = trek_dtype_is_float(trek_var_dtype(x)) ? x : trek_cast(x, TREK_I64);
    if (!x)
        return NULL;
    trek_var *powers = made(trek_tensor_ones(trek_dims(n, count < 1 ? 0 : 1), trek_var_dtype(x), trek_var_device(x)));
    if (count > 1) {
        trek_var *parts[2] = { powers, trek_cumprod(trek_expand(trek_reshape(x, trek_dims(n, 1)), trek_dims(n, count - 1)), 1) };
        powers = trek_cat(parts, 2, 1);
    }
    return increasing ? powers : trek_flip(powers, trek_dims(1));
}

static trek_var *triangle(const char *name, int64_t rows, int64_t columns, int64_t offset, trek_device device, bool lower)
{
    if (rows < 0 || columns < 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: rows and columns: %lld and %lld; must be 0 or more", name, (long long)rows,
                              (long long)columns);
    trek_var *ones = made(trek_tensor_ones(trek_dims(rows, columns), TREK_BOOL, device));
    return trek_contiguous(trek_transpose(trek_nonzero((lower ? trek_tril : trek_triu)(ones, offset)), 0, 1));
}

trek_var *trek_tril_indices(int64_t rows, int64_t columns, int64_t offset, trek_device device)
{
    return triangle("tril_indices", rows, columns, offset, device, true);
}
trek_var *trek_triu_indices(int64_t rows, int64_t columns, int64_t offset, trek_device device)
{
    return triangle("triu_indices", rows, columns, offset, device, false);
}
