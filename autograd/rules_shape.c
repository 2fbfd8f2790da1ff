/* SPDX-License-Identifier: Apache-2.0 */
/* Derivatives of reductions, views, and ops that move elements. */
#include <math.h>

#include "autograd/rules_internal.h"
#include "autograd/slice_grad.h"

/* Returns a reduction's result (or its gradient) with the reduced dimensions kept as 1. */
static trek_var *kept(trek_backward_call *b, trek_var *reduced)
{
    trek_shape shape = trek_rule_shape(b, 0);
    for (int d = 0; d < shape.ndim; d++)
        if (b->attrs->i[0] >> d & 1)
            shape.sizes[d] = 1;
    return trek_reshape(reduced, shape);
}

static double reduced_count(const trek_backward_call *b)
{
    trek_shape shape = trek_rule_shape(b, 0);
    double count = 1;
    for (int d = 0; d < shape.ndim; d++)
        if (b->attrs->i[0] >> d & 1)
            count *= (double)shape.sizes[d];
    return count;
}

/* The normalised attributes hold the dims as a mask. */
static trek_dims_list dims_of_mask(int64_t mask)
{
    trek_dims_list dims = { 0 };
    for (int d = 0; d < TREK_MAX_DIMS; d++)
        if (mask >> d & 1)
            dims.sizes[dims.ndim++] = d;
    return dims;
}

/* The dims of the same op with keepdim; all of them for a scalar input. */
static trek_dims_list same_dims(const trek_backward_call *b) { return dims_of_mask(b->attrs->i[0]); }

trek_status trek_rule_sum(trek_backward_call *b)
{
    return trek_rule_give(b, trek_expand(kept(b, b->grad), trek_rule_shape(b, 0)));
}

trek_status trek_rule_nansum(trek_backward_call *b) /* 0 for NaNs */
{
    trek_var *grad = trek_expand(kept(b, b->grad), trek_rule_shape(b, 0));
    return trek_rule_give(b, trek_masked_fill(grad, trek_isnan(trek_rule_input(b, 0)), 0));
}

trek_status trek_rule_mean(trek_backward_call *b)
{
    double count = reduced_count(b);
    trek_var *share = trek_mul_scalar(kept(b, b->grad), count > 0 ? 1 / count : 0);
    return trek_rule_give(b, trek_expand(share, trek_rule_shape(b, 0)));
}

trek_status trek_rule_sum_squares(trek_backward_call *b) /* 2 x */
{
    return trek_rule_give(b, trek_mul(trek_mul_scalar(kept(b, b->grad), 2), trek_rule_full(b, trek_rule_input(b, 0))));
}

/* Along dimension 1: computes at each position the product of everything before it, by doubling the reach. */
static trek_var *products_before(trek_backward_call *b, trek_var *x, int64_t rows, int64_t n)
{
    trek_var *ones = trek_add_scalar(trek_rule_full(b, trek_rule_zeros(b, trek_dims(rows, n))), 1);
    trek_var *first[2] = { trek_narrow(ones, 1, 0, 1), trek_narrow(x, 1, 0, n - 1) }, *y = trek_cat(first, 2, 1);
    for (int64_t reach = 1; y && reach < n; reach *= 2) {
        trek_var *moved[2] = { trek_narrow(ones, 1, 0, reach), trek_narrow(y, 1, 0, n - reach) };
        y = trek_mul(y, trek_cat(moved, 2, 1));
    }
    return y;
}

/* Computes at each position the product of the others from products alone, so that it can be differentiated at zeros. */
static trek_var *products_of_others(trek_backward_call *b, trek_var *x)
{
    trek_shape shape = trek_rule_shape(b, 0), order = { .ndim = shape.ndim }, moved = order, back = order;
    int at = 0;
    for (int part = 0; part < 2; part++) /* the dimensions that stay, then those that are reduced */
        for (int d = 0; d < shape.ndim; d++)
            if ((b->attrs->i[0] >> d & 1) == part) {
                order.sizes[at] = d;
                moved.sizes[at] = shape.sizes[d];
                back.sizes[d] = at++;
            }
    int64_t n = (int64_t)reduced_count(b), rows = n ? trek_shape_numel(shape) / n : 0;
    if (n == 0 || rows == 0)
        return x;
    trek_var *lines = trek_reshape(trek_permute(x, order), trek_dims(rows, n));
    trek_var *before = products_before(b, lines, rows, n), *turned = trek_flip(lines, trek_dims(1));
    trek_var *after = trek_flip(products_before(b, turned, rows, n), trek_dims(1));
    return trek_permute(trek_reshape(trek_mul(before, after), moved), back);
}

/* The product of the others is the product of all / x, in f32 for 16-bit dtypes, which may not represent it. With a
 * zero in the row, it is the product of the rest at a single zero, and at other positions 0, or NaN where 0 meets a
 * value that is not finite. */
static trek_var *quotients_of_product(trek_backward_call *b, trek_var *x)
{
    trek_var *is_zero = trek_eq_scalar(x, 0), *zeros = trek_sum(is_zero, same_dims(b), true);
    trek_var *safe = trek_masked_fill(x, is_zero, 1), *rest = trek_prod(safe, same_dims(b), true);
    trek_var *endless = trek_logical_not(trek_isfinite(x)), *zero = trek_rule_full(b, trek_rule_zeros(b, trek_dims_none()));
    trek_var *at_zero = trek_masked_fill(zero, trek_gt(trek_sum(endless, same_dims(b), true), endless), NAN);
    at_zero = trek_where(trek_logical_and(is_zero, trek_eq_scalar(zeros, 1)), rest, at_zero);
    return trek_where(trek_eq_scalar(zeros, 0), trek_div(rest, safe), at_zero);
}

trek_status trek_rule_prod(trek_backward_call *b)
{
    trek_var *x = trek_rule_full(b, trek_rule_input(b, 0)), *g = trek_rule_full(b, kept(b, b->grad));
    if (b->create_graph)
        return trek_rule_give(b, trek_mul(g, products_of_others(b, x)));
    return trek_rule_give(b, trek_mul(g, quotients_of_product(b, x)));
}

/* max and min: equally to all elements that equal the result, or to the NaNs */
trek_status trek_rule_max(trek_backward_call *b)
{
    trek_var *x = trek_rule_input(b, 0), *taken = trek_logical_or(trek_eq(x, kept(b, trek_rule_output(b, 0))), trek_isnan(x));
    trek_var *hit = trek_cast(taken, trek_var_dtype(b->grad));
    trek_var *share = trek_div(kept(b, b->grad), trek_sum(hit, same_dims(b), true));
    return trek_rule_give(b, trek_mul(hit, share));
}

static trek_var *centred(trek_backward_call *b)
{
    trek_var *x = trek_rule_full(b, trek_rule_input(b, 0));
    return trek_sub(x, trek_mean(x, same_dims(b), true));
}

trek_status trek_rule_variance(trek_backward_call *b) /* 2 (x - mean) / (n - correction) */
{
    double divisor = reduced_count(b) - b->attrs->f[0];
    return trek_rule_give(b, trek_mul(trek_mul_scalar(trek_rule_full(b, kept(b, b->grad)), 2 / divisor), centred(b)));
}

/* (x - mean) / y / (n - correction), and 0 without variation; y is not squared, which may overflow */
trek_status trek_rule_std(trek_backward_call *b)
{
    trek_var *y = trek_rule_full(b, kept(b, trek_rule_output(b, 0))), *still = trek_eq_scalar(y, 0);
    double divisor = reduced_count(b) - b->attrs->f[0];
    trek_var *share = trek_masked_fill(trek_mul_scalar(trek_rule_full(b, kept(b, b->grad)), 1 / divisor), still, 0);
    return trek_rule_give(b, trek_mul(share, trek_div(centred(b), trek_masked_fill(y, still, 1))));
}

trek_status trek_rule_logsumexp(trek_backward_call *b)
{
    trek_var *given = trek_rule_input(b, 0), *x = trek_rule_full(b, given), *y = kept(b, trek_rule_output(b, 0));
    if (x != given) /* y is rounded to 16 bits, which is too coarse in an exponent */
        y = trek_logsumexp(x, same_dims(b), true);
    return trek_rule_give(b, trek_mul(trek_rule_full(b, kept(b, b->grad)), trek_exp(trek_sub(x, y))));
}

trek_status trek_rule_cumsum(trek_backward_call *b)
{
    trek_dims_list dim = trek_dims(b->attrs->i[0]);
    if (trek_var_ndim(b->grad) == 0)
        return trek_rule_give(b, b->grad);
    return trek_rule_give(b, trek_flip(trek_cumsum(trek_flip(b->grad, dim), (int)b->attrs->i[0]), dim));
}

/* The sum over j >= i of g_j e^(x_i - y_j), computed by logarithms from the end, because log |g| - y and the running
 * sums of exponentials may be far from 0. */
static trek_var *from_the_end(trek_var *part, trek_var *x, trek_var *y, int dim)
{
    trek_var *log = trek_sub(trek_log(part), trek_masked_fill(y, trek_eq_scalar(y, -INFINITY), INFINITY)); /* nothing so far */
    trek_dims_list line = trek_dims(dim);
    return trek_exp(trek_add(trek_flip(trek_logcumsumexp(trek_flip(log, line), dim), line), x));
}

/* Writes the gradient as the difference of two parts that are not negative: either g + shift and shift, with a shift
 * larger than all of |g|, or, without a shift, the positive and the negative part of g. */
static trek_var *difference_of_parts(trek_var *g, trek_var *shift, trek_var *x, trek_var *y, int dim)
{
    trek_var *above = shift ? trek_add(g, shift) : trek_clamp(g, 0, INFINITY);
    trek_var *below = shift ? shift : trek_clamp(trek_neg(g), 0, INFINITY);
    return trek_sub(from_the_end(above, x, y, dim), from_the_end(below, x, y, dim));
}

/* A gradient that is itself recorded takes its derivatives from the parts shifted by more than all of |g|, whose
 * logarithms have derivatives everywhere, and its values from the unshifted parts, because a shift costs precision by
 * cancellation. */
trek_status trek_rule_logcumsumexp(trek_backward_call *b)
{
    int dim = (int)b->attrs->i[0];
    trek_var *given = trek_rule_input(b, 0), *x = trek_rule_full(b, given), *g = trek_rule_full(b, b->grad);
    if (trek_var_numel(b->grad) == 0 || trek_var_ndim(b->grad) == 0)
        return trek_rule_give(b, b->grad);
    trek_var *y = x == given ? trek_rule_output(b, 0) : trek_logcumsumexp(x, dim);
    if (!b->create_graph)
        return trek_rule_give(b, difference_of_parts(g, NULL, x, y, dim));
    trek_var *largest = trek_max(trek_abs(trek_var_detach(g)), trek_dims_all(), false);
    trek_var *slopes = difference_of_parts(g, trek_mul(trek_ones_like(g), trek_add_scalar(largest, 1)), x, y, dim);
    trek_var *numbers = difference_of_parts(trek_var_detach(g), NULL, trek_var_detach(x), trek_var_detach(y), dim);
    return trek_rule_give(b, trek_add(numbers, trek_sub(slopes, trek_var_detach(slopes))));
}

trek_status trek_rule_softmax(trek_backward_call *b) /* y (g - sum g y) */
{
    int dim = (int)b->attrs->i[0];
    trek_var *y = trek_rule_output(b, 0);
    if (!b->create_graph)
        return trek_rule_give(b, trek_apply_softmax_backward(b->grad, y, dim));
    trek_var *g = trek_rule_full(b, b->grad);
    y = trek_rule_full(b, y);
    return trek_rule_give(b, trek_mul(y, trek_sub(g, trek_sum(trek_mul(g, y), trek_dims(dim), true))));
}

trek_status trek_rule_log_softmax(trek_backward_call *b) /* g - exp(y) sum g */
{
    int dim = (int)b->attrs->i[0];
    trek_var *y = trek_rule_output(b, 0);
    if (!b->create_graph)
        return trek_rule_give(b, trek_apply_log_softmax_backward(b->grad, y, dim));
    trek_var *g = trek_rule_full(b, b->grad);
    y = trek_rule_full(b, y);
    return trek_rule_give(b, trek_sub(g, trek_mul(trek_exp(y), trek_sum(g, trek_dims(dim), true))));
}

/* --- views ---------------------------------------------------------------------------- */

trek_status trek_rule_reshape(trek_backward_call *b) { return trek_rule_give(b, trek_reshape(b->grad, trek_rule_shape(b, 0))); }

/* The receiver of the gradient sums broadcast dimensions. */
trek_status trek_rule_expand(trek_backward_call *b) { return trek_rule_give(b, b->grad); }

trek_status trek_rule_permute(trek_backward_call *b)
{
    trek_shape back = { .ndim = (int)b->attrs->i[0] };
    int ndim = trek_var_ndim(b->grad);
    for (int d = 0; d < back.ndim; d++) {
        int64_t from = b->attrs->i[1 + d];
        back.sizes[from < 0 ? from + ndim : from] = d;
    }
    return trek_rule_give(b, trek_permute(b->grad, back));
}

trek_status trek_rule_transpose(trek_backward_call *b)
{
    return trek_rule_give(b, trek_transpose(b->grad, (int)b->attrs->i[0], (int)b->attrs->i[1]));
}

/* Returns g as the gradient of the slice from `start` on along dim: added at its place, or surrounded by zeros. */
static trek_status give_slice(trek_backward_call *b, trek_var *g, int dim, int64_t start)
{
    bool done;
    if (!g)
        return trek_error_status();
    trek_shape shape = trek_rule_shape(b, 0), part = trek_var_shape(g), before = part, after = part;
    if (part.sizes[dim] == shape.sizes[dim])
        return trek_rule_give(b, g);
    trek_status status = trek_rule_give_slice(b, g, dim, start, &done);
    if (status != TREK_OK || done)
        return status;
    before.sizes[dim] = start;
    after.sizes[dim] = shape.sizes[dim] - start - part.sizes[dim];
    if (b->create_graph) {
        trek_var *parts[3] = { trek_rule_zeros(b, before), g, trek_rule_zeros(b, after) };
        return trek_rule_give(b, trek_cat(parts, 3, dim));
    }
    trek_var *whole = trek_rule_zeros(b, shape);
    trek_tensor *place = whole ? trek_tensor_narrow(whole->data, dim, start, part.sizes[dim]) : NULL;
    status = place ? trek_tensor_copy_from(place, g->data) : trek_error_status();
    trek_tensor_release(place);
    return status == TREK_OK ? trek_rule_give(b, whole) : status;
}

trek_status trek_rule_narrow(trek_backward_call *b)
{
    return give_slice(b, b->grad, (int)b->attrs->i[0], b->attrs->i[1]);
}

trek_status trek_rule_select(trek_backward_call *b)
{
    int dim = (int)b->attrs->i[0];
    return give_slice(b, trek_unsqueeze(b->grad, dim), dim, b->attrs->i[1]);
}

/* --- moving elements -------------------------------------------------------------------- */

trek_status trek_rule_convert(trek_backward_call *b) { return trek_rule_give(b, b->grad); } /* the engine casts it back */

trek_status trek_rule_flip(trek_backward_call *b)
{
    return trek_rule_give(b, trek_flip(b->grad, dims_of_mask(b->attrs->i[0])));
}

trek_status trek_rule_cat(trek_backward_call *b)
{
    int dim = (int)b->attrs->i[0];
    int64_t start = 0;
    for (int k = 0; k < b->n_inputs; k++) {
        int64_t length = trek_rule_shape(b, k).sizes[dim];
        trek_status status = TREK_OK;
        if (b->needs >> (k < 31 ? k : 31) & 1)
            status = trek_rule_give_to(b, k, trek_narrow(b->grad, dim, start, length));
        if (status != TREK_OK)
            return status;
        start += length;
    }
    return TREK_OK;
}

trek_status trek_rule_tril(trek_backward_call *b) { return trek_rule_give(b, trek_tril(b->grad, b->attrs->i[0])); }
trek_status trek_rule_triu(trek_backward_call *b) { return trek_rule_give(b, trek_triu(b->grad, b->attrs->i[0])); }

/* Returns zeros of the input's shape to add to: a single zero, expanded, which needs no pass of its own. */
static trek_var *nothing_yet(trek_backward_call *b)
{
    return trek_expand(trek_rule_zeros(b, trek_dims_none()), trek_rule_shape(b, 0));
}

trek_status trek_rule_index_select(trek_backward_call *b)
{
    trek_var *zeros = nothing_yet(b);
    return trek_rule_give(b, trek_index_add(zeros, (int)b->attrs->i[0], trek_rule_input(b, 1), b->grad));
}

trek_status trek_rule_index_add(trek_backward_call *b)
{
    b->grads[0] = b->grad;
    if (!trek_rule_needs(b, 2))
        return TREK_OK;
    return trek_rule_give_to(b, 2, trek_index_select(b->grad, (int)b->attrs->i[0], trek_rule_input(b, 1)));
}

trek_status trek_rule_gather(trek_backward_call *b)
{
    trek_var *zeros = nothing_yet(b);
    return trek_rule_give(b, trek_scatter_add(zeros, (int)b->attrs->i[0], trek_rule_input(b, 1), b->grad));
}

trek_status trek_rule_scatter_add(trek_backward_call *b)
{
    b->grads[0] = b->grad;
    if (!trek_rule_needs(b, 2))
        return TREK_OK;
    trek_var *index = trek_rule_input(b, 1), *g = trek_gather(b->grad, (int)b->attrs->i[0], index);
    /* where the index is smaller than the source, the rest of the source had no part */
    trek_shape source = trek_rule_shape(b, 2);
    for (int d = 0; g && d < source.ndim; d++) {
        trek_shape have = trek_var_shape(g), rest = have;
        rest.sizes[d] = source.sizes[d] - have.sizes[d];
        trek_var *parts[2] = { g, rest.sizes[d] > 0 ? trek_rule_zeros(b, rest) : NULL };
        if (rest.sizes[d] > 0)
            g = trek_cat(parts, 2, d);
    }
    return trek_rule_give_to(b, 2, g);
}
