/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling at positions of a grid, its equivalent in plain ops, and grids of affine maps. */
#include <inttypes.h>

#include "autograd/ops.h"
#include "autograd/rules_internal.h"
#include "autograd/tape_internal.h"

trek_var *trek_grid_sample(trek_var *x, trek_var *grid, const trek_grid_sample_opts *opts)
{
    static const trek_grid_sample_opts defaults;
    const trek_grid_sample_opts *o = opts ? opts : &defaults;
    return trek_apply_grid_sample(x, grid, &(trek_attrs){ .i = { o->mode, o->padding, o->align_corners } });
}

/* --- in plain ops ---------------------------------------------------------------------------- */

/* One dimension: entry k of each position [N, P] is element index[k] (i64) times weight[k], or nothing where none[k]. */
typedef struct line_taps {
    int count;
    trek_var *index[4], *none[4], *weight[4];
} line_taps;

/* Reflects the position at both edges. */
static trek_var *mirrored(trek_var *at, double size, bool align)
{
    double low = align ? 0 : -0.5, span = align ? size - 1 : size;
    if (span <= 0)
        return trek_mul_scalar(at, 0);
    trek_var *off = trek_abs(trek_sub_scalar(at, low)), *flips = trek_floor(trek_mul_scalar(off, 1 / span));
    trek_var *rest = trek_sub(off, trek_mul_scalar(flips, span));
    trek_var *even = trek_eq(flips, trek_mul_scalar(trek_floor(trek_mul_scalar(flips, 0.5)), 2));
    return trek_add_scalar(trek_where(even, rest, trek_add_scalar(trek_neg(rest), span)), low);
}

static trek_var *padded(trek_var *at, double size, const trek_attrs *numbers)
{
    if (numbers->i[1] == TREK_GRID_PADDING_ZEROS)
        return at;
    if (numbers->i[1] == TREK_GRID_PADDING_REFLECTION)
        at = mirrored(at, size, numbers->i[2] != 0);
    return trek_clamp(trek_masked_fill(at, trek_isnan(at), 0), 0, size - 1);
}

/* Sets entry k to `place`, a whole number. */
static void enter(line_taps *to, int k, trek_var *place, double size, trek_var *weight)
{
    trek_var *inside = trek_logical_and(trek_ge_scalar(place, 0), trek_le_scalar(place, size - 1));
    to->none[k] = trek_logical_not(inside);
    to->index[k] = trek_cast(trek_masked_fill(place, to->none[k], 0), TREK_I64);
    to->weight[k] = weight;
}

/* Keys' kernel, at distances up to 1 and from 1 to 2. */
static trek_var *near_weight(trek_var *x)
{
    const double a = -0.75;
    trek_var *inner = trek_mul(trek_add_scalar(trek_mul_scalar(x, a + 2), -(a + 3)), trek_square(x));
    return trek_add_scalar(inner, 1);
}
static trek_var *far_weight(trek_var *x)
{
    const double a = -0.75;
    trek_var *inner = trek_add_scalar(trek_mul(trek_add_scalar(trek_mul_scalar(x, a), -5 * a), x), 8 * a);
    return trek_add_scalar(trek_mul(inner, x), -4 * a);
}

static void cubic_line(line_taps *to, trek_var *at, double size, const trek_attrs *numbers)
{
    trek_var *from = trek_floor(at), *past = trek_sub(at, from), *left = trek_add_scalar(trek_neg(past), 1);
    trek_var *weights[4] = { far_weight(trek_add_scalar(past, 1)), near_weight(past), near_weight(left),
                             far_weight(trek_add_scalar(left, 1)) };
    to->count = 4;
    for (int k = 0; k < 4; k++)
        enter(to, k, trek_round(padded(trek_add_scalar(from, k - 1), size, numbers)), size, weights[k]);
}

static void line_of(line_taps *to, trek_var *numbers_of_grid, double size, const trek_attrs *numbers)
{
    trek_var *at = trek_add_scalar(numbers_of_grid, 1);
    at = numbers->i[2] ? trek_mul_scalar(trek_mul_scalar(at, 0.5), size - 1)
                       : trek_mul_scalar(trek_add_scalar(trek_mul_scalar(at, size), -1), 0.5);
    if (numbers->i[0] == TREK_GRID_MODE_BICUBIC) {
        cubic_line(to, at, size, numbers);
        return;
    }
    at = padded(at, size, numbers);
    if (numbers->i[0] == TREK_GRID_MODE_NEAREST) {
        to->count = 1;
        enter(to, 0, trek_round(at), size, trek_add_scalar(trek_mul_scalar(at, 0), 1)); /* 1, with a derivative of 0 */
        return;
    }
    trek_var *from = trek_floor(at), *past = trek_sub(at, from);
    to->count = 2;
    enter(to, 0, from, size, trek_add_scalar(trek_neg(past), 1));
    enter(to, 1, trek_add_scalar(from, 1), size, past);
}

/* Returns entry t of all dimensions together: its part of the result [N, C, P]. */
static trek_var *part(trek_var *x, const line_taps *lines, int dims, const int64_t *sizes, int t)
{
    trek_var *index = NULL, *none = NULL, *weight = NULL;
    int64_t step = 1;
    for (int d = 0; d < dims; d++) {
        int k = t % lines[d].count;
        t /= lines[d].count;
        trek_var *here = trek_mul_scalar(lines[d].index[k], (double)step);
        index = d > 0 ? trek_add(index, here) : here;
        none = d > 0 ? trek_logical_or(none, lines[d].none[k]) : lines[d].none[k];
        weight = d > 0 ? trek_mul(weight, lines[d].weight[k]) : lines[d].weight[k];
        step *= sizes[d];
    }
    if (!index)
        return NULL;
    trek_shape all = trek_dims(trek_var_size(x, 0), trek_var_size(x, 1), trek_var_size(index, 1));
    trek_var *taken = trek_gather(x, 2, trek_expand(trek_unsqueeze(index, 1), all));
    taken = trek_mul(taken, trek_unsqueeze(trek_masked_fill(weight, none, 0), 1));
    return trek_masked_fill(taken, trek_unsqueeze(none, 1), 0);
}

trek_var *trek_composite_rule_grid_sample(const trek_op *op, const trek_attrs *attrs, trek_var *const *inputs, int n_inputs);
trek_var *trek_composite_rule_grid_sample(const trek_op *op, const trek_attrs *attrs, trek_var *const *inputs, int n_inputs)
{
    (void)op, (void)n_inputs;
    if (!inputs[0] || !inputs[1])
        return NULL;
    trek_shape shape = trek_var_shape(inputs[0]), places = trek_var_shape(inputs[1]);
    const int dims = shape.ndim - 2;
    int64_t sizes[3], points = 1, plane = 1;
    for (int d = 0; d < dims; d++) {
        sizes[d] = shape.sizes[shape.ndim - 1 - d];
        plane *= sizes[d];
        points *= places.sizes[1 + d];
    }
    trek_var *x = trek_reshape(trek_rule_wide(inputs[0]), trek_dims(shape.sizes[0], shape.sizes[1], plane));
    trek_var *grid = trek_reshape(trek_rule_wide(inputs[1]), trek_dims(shape.sizes[0], points, dims)), *sum = NULL;
    line_taps lines[3];
    int count = 1;
    for (int d = 0; d < dims; d++) {
        line_of(&lines[d], trek_select(grid, 2, d), (double)sizes[d], attrs);
        count *= lines[d].count;
    }
    for (int t = 0; t < count; t++) {
        trek_var *more = part(x, lines, dims, sizes, t);
        sum = t > 0 ? trek_add(sum, more) : more;
    }
    for (int d = 0; d < dims; d++)
        shape.sizes[2 + d] = places.sizes[1 + d];
    return trek_rule_rounded(trek_reshape(sum, shape), inputs[0]);
}

/* --- grids of affine maps -------------------------------------------------------------------------- */

/* Returns the positions of n elements between -1 and 1, as one dimension of a tensor with `ndim` dimensions. */
static trek_var *places_of(int64_t n, bool align, int ndim, int dim, const trek_var *like)
{
    double step = n > 1 ? 2.0 / (double)(align ? n - 1 : n) : 0, first = n == 1 ? 0 : align ? -1 : -1 + step / 2;
    trek_tensor *t = trek_tensor_arange(0, (double)n, 1, TREK_F64, trek_var_device(like));
    trek_shape shape = { .ndim = ndim };
    for (int d = 0; d < ndim; d++)
        shape.sizes[d] = d == dim ? n : 1;
    trek_var *places = t ? trek_add_scalar(trek_mul_scalar(trek_var_from(t), step), first) : NULL;
    return places ? trek_reshape(trek_cast(places, trek_var_dtype(like)), shape) : NULL;
}

static trek_status check_affine(trek_var *theta, trek_shape size)
{
    char first[TREK_SHAPE_TEXT], second[TREK_SHAPE_TEXT];
    if (!theta)
        return trek_fail_missing("affine_grid", "theta");
    trek_shape shape = trek_var_shape(theta);
    int dims = size.ndim - 2;
    bool fits = (dims == 2 || dims == 3) && shape.ndim == 3 && shape.sizes[0] == size.sizes[0] && shape.sizes[1] == dims &&
                shape.sizes[2] == dims + 1;
    if (!fits)
        return trek_fail(TREK_ERR_SHAPE,
            "affine_grid: theta: %s, for a result of %s; must be [N, 2, 3] and [N, C, H, W], or [N, 3, 4] and [N, C, D, H, W]",
            trek_shape_format(shape, first, sizeof first),
                         trek_shape_format(size, second, sizeof second));
    for (int d = 1; d < size.ndim; d++)
        if (size.sizes[d] < 1)
            return trek_fail(TREK_ERR_ARGUMENT, "affine_grid: size: %s; must be positive",
                             trek_shape_format(size, second, sizeof second));
    if (!trek_dtype_is_float(trek_var_dtype(theta)))
        return trek_fail(TREK_ERR_DTYPE, "affine_grid: theta: dtype %s; must be floating",
                         trek_dtype_name(trek_var_dtype(theta)));
    return TREK_OK;
}

/* The coordinates stay separate, [N, dims, ..], until all are there, so that a row of positions is contiguous. */
trek_var *trek_affine_grid(trek_var *theta, trek_shape size, bool align_corners)
{
    if (check_affine(theta, size) != TREK_OK)
        return NULL;
    const int dims = size.ndim - 2, ndim = size.ndim;
    trek_var *wide = trek_rule_wide(theta), *sum = NULL;
    trek_shape number = { .ndim = ndim };
    for (int d = 0; d < ndim; d++)
        number.sizes[d] = d == 0 ? size.sizes[0] : d == 1 ? dims : 1;
    for (int k = dims; k >= 0; k--) { /* the shift, then the smaller dimensions first */
        trek_var *factor = trek_reshape(trek_select(wide, 2, k), number);
        if (k < dims) {
            int dim = ndim - 1 - k;
            factor = trek_mul(factor, places_of(size.sizes[dim], align_corners, ndim, dim, wide));
        }
        sum = sum ? trek_add(sum, factor) : factor;
    }
    trek_dims_list order = { .ndim = ndim };
    for (int d = 0; d < ndim; d++)
        order.sizes[d] = d == 0 ? 0 : d == ndim - 1 ? 1 : d + 1;
    return trek_contiguous(trek_permute(trek_rule_rounded(sum, theta), order));
}
