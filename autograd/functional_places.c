/* SPDX-License-Identifier: Apache-2.0 */
/* The public ops that find, write or repeat elements by position, made from other ops. */
#include <inttypes.h>
#include <math.h>

#include "autograd/ops.h"
#include "autograd/rows.h"
#include "autograd/tape_internal.h"
#include "tensor/number_internal.h"

/* Returns 0, step, 2 step, ... below end, on the device of x. */
static trek_var *places(const trek_var *x, int64_t end, int64_t step)
{
    trek_tensor *t = trek_tensor_arange(0, (double)end, (double)step, TREK_I64, trek_var_device(x));
    return t ? trek_var_from(t) : NULL;
}

static trek_var *made(trek_tensor *t) { return t ? trek_var_from(t) : NULL; }

/* --- like another ------------------------------------------------------------------------ */

trek_var *trek_full_like(trek_var *x, double value)
{
    TREK_NEEDED("full_like", x);
    if (!trek_dtype_holds(trek_var_dtype(x), value))
        return trek_fail_null(TREK_ERR_ARGUMENT, "full_like: value: %g; %s cannot hold it", value,
                              trek_dtype_name(trek_var_dtype(x)));
    return made(trek_tensor_full(trek_var_shape(x), value, trek_var_dtype(x), trek_var_device(x)));
}

trek_var *trek_zeros_like(trek_var *x)
{
    TREK_NEEDED("zeros_like", x);
    return made(trek_tensor_zeros(trek_var_shape(x), trek_var_dtype(x), trek_var_device(x)));
}

trek_var *trek_ones_like(trek_var *x)
{
    TREK_NEEDED("ones_like", x);
    return made(trek_tensor_ones(trek_var_shape(x), trek_var_dtype(x), trek_var_device(x)));
}

trek_var *trek_empty_like(trek_var *x)
{
    TREK_NEEDED("empty_like", x);
    return made(trek_tensor_empty(trek_var_shape(x), trek_var_dtype(x), trek_var_device(x)));
}

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

/* Returns whether all elements of a bool are true; waits for a GPU. If not, it returns false with an error that says
 * `what`; another failure returns false as well. */
static bool holds(const char *name, trek_var *condition, const char *what)
{
    trek_var *all = trek_all(condition, trek_dims_all(), false);
    if (!all)
        return false;
    if (trek_var_item(all) != 0)
        return true;
    return trek_fail(TREK_ERR_ARGUMENT, "%s: %s", name, what), false;
}

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
    if (!p || !holds("bernoulli", trek_logical_and(trek_ge_scalar(p, 0), trek_le_scalar(p, 1)),
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
    if (!p || !holds("multinomial", trek_logical_and(trek_isfinite(p), trek_ge_scalar(p, 0)),
                     "a weight that is negative or not finite") ||
        !holds("multinomial", trek_ge_scalar(trek_sum(several, trek_dims(-1), false), (double)least),
               replacement ? "a line without weight" : "a line with fewer weights than samples"))
        return NULL;
    return replacement ? with_replacement(p, samples) : without_replacement(p, samples);
}

/* --- places in the data ---------------------------------------------------------------------- */

trek_var *trek_nonzero(trek_var *x) { return trek_apply_nonzero(x); }

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
    trek_var *found = trek_apply_nonzero(trek_reshape(trek_expand(mask, shape), trek_dims(-1)));
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
    if (!holds("repeat_interleave_by", trek_ge_scalar(repeats, 0), "repeats: one is negative; must be 0 or more"))
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

trek_var *trek_movedim(trek_var *x, trek_dims_list source, trek_dims_list destination)
{
    TREK_NEEDED("movedim", x);
    source = trek_listed_dims(source, trek_var_ndim(x));
    destination = trek_listed_dims(destination, trek_var_ndim(x));
    trek_shape order = { .ndim = trek_var_ndim(x) };
    bool taken[TREK_MAX_DIMS] = { false }, moved[TREK_MAX_DIMS] = { false };
    if (source.ndim != destination.ndim)
        return trek_fail_null(TREK_ERR_ARGUMENT, "movedim: source and destination: %d and %d dimensions; must be equal",
                              source.ndim, destination.ndim);
    if (order.ndim == 0)
        return x;
    for (int k = 0; k < source.ndim; k++) {
        int from = trek_normalize_dim(source.sizes[k], order.ndim, "movedim");
        int to = from < 0 ? -1 : trek_normalize_dim(destination.sizes[k], order.ndim, "movedim");
        if (to < 0)
            return NULL;
        if (moved[from] || taken[to])
            return trek_fail_null(TREK_ERR_ARGUMENT, "movedim: a dimension occurs twice; must be different ones");
        moved[from] = taken[to] = true;
        order.sizes[to] = from;
    }
    for (int to = 0, from = 0; to < order.ndim; to++) {
        if (taken[to])
            continue;
        while (moved[from])
            from++;
        order.sizes[to] = from++;
    }
    return trek_permute(x, order);
}

trek_var *trek_diagonal(trek_var *x, int64_t offset, int dim1, int dim2) { return trek_apply_diagonal(x, offset, dim1, dim2); }

trek_var *trek_diag(trek_var *x, int64_t diagonal)
{
    TREK_NEEDED("diag", x);
    if (trek_var_ndim(x) == 2)
        return trek_clone(trek_apply_diagonal(x, diagonal, 0, 1));
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
