/* SPDX-License-Identifier: Apache-2.0 */
/* Derivatives of sorting, selecting, cumulative products, scattering and diagonals. */
#include "autograd/rules_internal.h"

/* Returns zeros of the input's shape to add to: a single zero, expanded. */
static trek_var *nothing_yet(trek_backward_call *b)
{
    return trek_expand(trek_rule_zeros(b, trek_dims_none()), trek_rule_shape(b, 0));
}

/* For elements taken from positions along a dimension; output 1 has the positions. */
trek_status trek_rule_by_place(trek_backward_call *b)
{
    trek_var *grad = trek_rule_full(b, b->grad); /* one position may occur in many results */
    trek_var *zeros = grad ? trek_cast(nothing_yet(b), trek_var_dtype(grad)) : NULL;
    return trek_rule_give(b, trek_scatter_add(zeros, (int)b->attrs->i[0], trek_rule_output(b, 1), grad));
}

/* Computes at each position the sum of it and all following ones. */
static trek_var *sums_from(trek_var *x, int dim)
{
    return trek_flip(trek_cumsum(trek_flip(x, trek_dims(dim)), dim), trek_dims(dim));
}

/* Before the first zero of a line: the sum of g y from there on / x. At it: the same with 1 in its place. Behind it:
 * 0. */
static trek_var *quotients(trek_var *g, trek_var *x, trek_var *y, int dim)
{
    trek_var *zero = trek_eq_scalar(x, 0), *zeros = trek_cumsum(zero, dim);
    trek_var *first = trek_logical_and(zero, trek_eq_scalar(zeros, 1)), *safe = trek_masked_fill(x, zero, 1);
    trek_var *before = trek_div(sums_from(trek_mul(g, y), dim), safe);
    trek_var *at = sums_from(trek_mul(g, trek_cumprod(trek_masked_fill(x, first, 1), dim)), dim);
    return trek_where(trek_eq_scalar(zeros, 0), before, trek_masked_fill(at, trek_logical_not(first), 0));
}

/* Uses only products, so that it can be differentiated at zeros: for each position k, the sum over i >= k of g_i
 * times the product of all elements up to i except k. */
static trek_var *products_without(trek_backward_call *b, trek_var *g, trek_var *x, int dim)
{
    int64_t n = trek_var_size(x, dim);
    trek_shape one = trek_var_shape(x);
    one.sizes[dim] = 1;
    trek_var *before = trek_add_scalar(trek_cast(trek_rule_zeros(b, one), trek_var_dtype(x)), 1), *ones = before, *grad = NULL;
    for (int64_t k = 0; k < n && before; k++) {
        trek_var *parts[2] = { ones, trek_narrow(x, dim, k + 1, n - k - 1) };
        trek_var *others = trek_mul(before, trek_cumprod(trek_cat(parts, 2, dim), dim));
        trek_var *sum = trek_sum(trek_mul(trek_narrow(g, dim, k, n - k), others), trek_dims(dim), true);
        trek_var *joined[2] = { grad, sum };
        grad = grad ? trek_cat(joined, 2, dim) : sum;
        before = trek_mul(before, trek_narrow(x, dim, k, 1));
    }
    return n > 0 ? grad : x;
}

trek_status trek_rule_cumprod(trek_backward_call *b)
{
    int dim = (int)b->attrs->i[0];
    if (trek_var_ndim(b->grad) == 0 || trek_var_size(b->grad, dim) == 1)
        return trek_rule_give(b, b->grad); /* without using the input, which may have been overwritten */
    trek_var *given = trek_rule_input(b, 0), *x = trek_rule_full(b, given), *g = trek_rule_full(b, b->grad);
    if (b->create_graph)
        return trek_rule_give(b, products_without(b, g, x, dim));
    trek_var *y = x == given ? trek_rule_output(b, 0) : trek_cumprod(x, dim);
    return trek_rule_give(b, quotients(g, x, y, dim));
}

/* g without what was overwritten. */
static trek_var *untouched(trek_var *g, trek_var *index, int dim) { return trek_scatter_value(g, dim, index, 0); }

trek_status trek_rule_scatter(trek_backward_call *b)
{
    int dim = (int)b->attrs->i[0];
    trek_var *index = trek_rule_input(b, 1);
    trek_status status = TREK_OK;
    if (trek_rule_needs(b, 0))
        status = trek_rule_give_to(b, 0, untouched(b->grad, index, dim));
    if (status == TREK_OK && trek_rule_needs(b, 2))
        status = trek_rule_give_to(b, 2, trek_gather(b->grad, dim, index));
    return status;
}

/* The inputs and the result of scatter_reduce, and the gradient, in the dtype of the computation. */
typedef struct scattered {
    trek_var *x, *source, *y, *g, *index;
    int dim;
} scattered;

/* As in PyTorch: where a single element of a position is 0, the product is computed again without it. */
static trek_status give_products(trek_backward_call *b, const scattered *s)
{
    int dim = s->dim;
    trek_var *x_zero = trek_eq_scalar(s->x, 0), *x_safe = trek_masked_fill(s->x, x_zero, 1);
    trek_var *without_x = trek_apply_scatter_reduce(x_safe, s->index, s->source, dim, TREK_SCATTER_PROD);
    trek_var *zero = trek_eq_scalar(s->source, 0), *none = trek_mul_scalar(trek_var_detach(s->x), 0);
    trek_var *zeros = trek_scatter_add(trek_masked_fill(none, trek_isnan(none), 0), dim,
                                       s->index, trek_cast(zero, trek_var_dtype(s->x)));
    trek_var *single = trek_logical_and(zero, trek_eq_scalar(trek_gather(zeros, dim, s->index), 1));
    trek_var *again = trek_apply_scatter_reduce(s->x, s->index, trek_masked_fill(s->source, single, 1), dim, TREK_SCATTER_PROD);
    trek_var *usual = trek_div(trek_gather(trek_mul(s->g, s->y), dim, s->index), trek_masked_fill(s->source, zero, 1));
    trek_var *share = trek_where(single, trek_gather(trek_mul(s->g, again), dim, s->index), usual);
    trek_status status = trek_rule_give_to(b, 0, trek_div(trek_mul(s->g, without_x), x_safe));
    return status == TREK_OK ? trek_rule_give_to(b, 2, share) : status;
}

/* All elements equal to the extreme share its gradient. */
static trek_status give_extremes(trek_backward_call *b, const scattered *s)
{
    trek_dtype dtype = trek_var_dtype(s->g);
    trek_var *x_is = trek_cast(trek_eq(s->x, s->y), dtype);
    trek_var *source_is = trek_cast(trek_eq(s->source, trek_gather(s->y, s->dim, s->index)), dtype);
    trek_var *share = trek_div(s->g, trek_scatter_add(x_is, s->dim, s->index, source_is));
    trek_status status = trek_rule_give_to(b, 0, trek_mul(x_is, share));
    return status == TREK_OK ? trek_rule_give_to(b, 2, trek_mul(source_is, trek_gather(share, s->dim, s->index))) : status;
}

trek_status trek_rule_scatter_reduce(trek_backward_call *b)
{
    int kind = (int)b->attrs->i[1];
    scattered s = { .index = trek_rule_input(b, 1), .dim = (int)b->attrs->i[0] };
    trek_var *x = trek_rule_input(b, 0), *source = trek_rule_input(b, 2), *y = trek_rule_output(b, 0);
    s.x = trek_rule_full(b, x), s.source = trek_rule_full(b, source), s.g = trek_rule_full(b, b->grad);
    s.y = kind == TREK_SCATTER_PROD && s.x != x ? trek_apply_scatter_reduce(s.x, s.index, s.source, s.dim, kind)
        : trek_rule_full(b, y);
    return kind == TREK_SCATTER_PROD ? give_products(b, &s) : give_extremes(b, &s);
}

/* Writes on a matrix of zeros, whose dimensions are then moved to their places. */
trek_status trek_rule_diagonal(trek_backward_call *b)
{
    trek_shape shape = trek_rule_shape(b, 0), flat = { 0 }, whole = { 0 }, back = { .ndim = shape.ndim };
    int first = (int)b->attrs->i[1], second = (int)b->attrs->i[2], n = 0;
    int64_t offset = b->attrs->i[0], columns = shape.sizes[second], length = trek_var_size(b->grad, -1);
    for (int d = 0; d < shape.ndim; d++)
        if (d != first && d != second) {
            flat.sizes[n] = whole.sizes[n] = shape.sizes[d];
            back.sizes[d] = n++;
        }
    back.sizes[first] = n, back.sizes[second] = n + 1;
    flat.ndim = n + 1, whole.ndim = n + 2;
    flat.sizes[n] = shape.sizes[first] * columns;
    whole.sizes[n] = shape.sizes[first], whole.sizes[n + 1] = columns;
    int64_t start = length == 0 ? 0 : offset < 0 ? -offset * columns : offset;
    trek_tensor *places = trek_tensor_arange((double)start, (double)(start + length * (columns + 1)), (double)(columns + 1),
                                             TREK_I64,
                                             b->grad->data->device);
    trek_var *zeros = trek_expand(trek_rule_zeros(b, trek_dims_none()), flat), *index = places ? trek_var_from(places) : NULL;
    return trek_rule_give(b, trek_permute(trek_reshape(trek_index_add(zeros, n, index, b->grad), whole), back));
}
