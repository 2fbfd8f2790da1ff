/* SPDX-License-Identifier: Apache-2.0 */
/* The plain ops that equal attention, the norms of transformers and the loss of a linear layer. */
#include <math.h>

#include "autograd/attention_internal.h"
#include "autograd/rules_internal.h"

#define COMPOSITE(name) \
    trek_var *trek_composite_rule_##name(const trek_op *op, const trek_attrs *attrs, trek_var *const *inputs, int n_inputs); \
    trek_var *trek_composite_rule_##name(const trek_op *op, const trek_attrs *attrs, trek_var *const *inputs, int n_inputs)

COMPOSITE(rms_norm)
{
    (void)op, (void)n_inputs;
    trek_dims_list dims = { 0 };
    for (int d = 1; d <= attrs->i[0]; d++)
        dims.sizes[dims.ndim++] = -d;
    trek_var *x = trek_rule_wide(inputs[0]), *square = trek_mean(trek_square(x), dims, true);
    trek_var *y = trek_mul(x, trek_rsqrt(trek_add_scalar(square, attrs->f[0])));
    return trek_rule_rounded(inputs[1] ? trek_mul(y, trek_rule_wide(inputs[1])) : y, inputs[0]);
}

trek_var *trek_composite_rule_layer_norm(const trek_op *op, const trek_attrs *attrs, trek_var *const *inputs, int n_inputs);
trek_var *trek_composite_rule_cross_entropy(const trek_op *op, const trek_attrs *attrs, trek_var *const *inputs, int n_inputs);

/* Returns y; the residual is x + branch. */
COMPOSITE(add_layer_norm)
{
    (void)n_inputs;
    trek_var *norm[3] = { trek_add(inputs[0], inputs[1]), inputs[2], inputs[3] };
    return trek_composite_rule_layer_norm(op, attrs, norm, 3);
}

/* -|x| is x times a constant, which gives the derivatives at 0 that the sum needs. */
static trek_var *logistic_loss(trek_var *x, trek_var *target)
{
    trek_var *positive = trek_cast(trek_gt_scalar(x, 0), trek_var_dtype(x));
    trek_var *below = trek_mul(x, trek_add_scalar(trek_mul_scalar(positive, -2), 1));
    return trek_add(trek_mul(x, trek_sub(positive, target)), trek_softplus(below, 1, 1));
}

/* The square is that of the difference itself, so that it has curvature at 0 as well; far from 0 it is not used. */
static trek_var *smooth_loss(trek_var *difference, double beta)
{
    trek_var *distance = trek_abs(difference), *is_far = trek_ge_scalar(distance, beta);
    trek_var *near = trek_mul_scalar(trek_square(trek_masked_fill(difference, is_far, 0)), 0.5 / beta);
    return trek_where(is_far, trek_sub_scalar(distance, 0.5 * beta), near);
}

/* Where a logarithm is cut off, its slope is 0 (PyTorch's is about 1e12 there). */
static trek_var *binary_loss(trek_var *x, trek_var *target)
{
    trek_var *zero = trek_eq_scalar(x, 0), *one = trek_eq_scalar(x, 1);
    trek_var *is = trek_masked_fill(trek_log(trek_masked_fill(x, zero, 1)), zero, -100);
    trek_var *is_not = trek_masked_fill(trek_log1p(trek_neg(trek_masked_fill(x, one, 0))), one, -100);
    return trek_sub(trek_mul(trek_sub_scalar(target, 1), is_not), trek_mul(target, is));
}

COMPOSITE(pointwise_loss)
{
    (void)op, (void)n_inputs;
    trek_var *x = trek_rule_wide(inputs[0]), *target = trek_rule_wide(inputs[1]);
    if (!x || !target)
        return NULL;
    switch (attrs->i[0]) {
    case TREK_LOSS_SQUARED: return trek_square(trek_sub(x, target));
    case TREK_LOSS_ABSOLUTE: return trek_abs(trek_sub(x, target));
    case TREK_LOSS_SMOOTH: return smooth_loss(trek_sub(x, target), attrs->f[0]);
    case TREK_LOSS_LOGISTIC: return logistic_loss(x, target);
    default: return binary_loss(x, target);
    }
}

COMPOSITE(linear_cross_entropy)
{
    (void)n_inputs;
    trek_var *logits = trek_matmul(trek_rule_wide(inputs[0]), trek_transpose(trek_rule_wide(inputs[1]), 0, 1));
    trek_var *loss[3] = { inputs[2] ? trek_add(logits, trek_rule_wide(inputs[2])) : logits, inputs[3], NULL };
    return trek_composite_rule_cross_entropy(op, attrs, loss, 3);
}

/* Repeats each head H / G times: [B, G, S, D] -> [B, H, S, D]. */
static trek_var *repeat_heads(trek_var *x, int64_t heads)
{
    trek_shape s = trek_var_shape(x);
    int64_t group = s.sizes[1] ? heads / s.sizes[1] : 1;
    if (group == 1)
        return x;
    x = trek_expand(trek_unsqueeze(x, 2), trek_dims(-1, -1, group, -1, -1));
    return trek_reshape(x, trek_dims(s.sizes[0], heads, s.sizes[2], s.sizes[3]));
}

/* Sets scores to -infinity where the mask or the causal order hides a key. */
static trek_var *masked_scores(trek_var *scores, trek_var *mask, bool causal)
{
    if (mask && trek_var_dtype(mask) == TREK_BOOL)
        scores = trek_masked_fill(scores, trek_logical_not(mask), -INFINITY);
    else if (mask)
        scores = trek_add(scores, trek_cast(mask, trek_var_dtype(scores)));
    if (!causal || !scores)
        return scores;
    trek_shape shape = trek_dims(trek_var_size(scores, 2), trek_var_size(scores, 3));
    trek_tensor *ones = trek_tensor_ones(shape, TREK_BOOL, trek_var_device(scores));
    trek_var *past = trek_tril(ones ? trek_var_from(ones) : NULL, 0);
    return trek_masked_fill(scores, trek_logical_not(past), -INFINITY);
}

trek_var *trek_attention_probabilities(trek_var *q, trek_var *k, trek_var *mask, bool causal, double scale)
{
    q = trek_rule_wide(q);
    if (!q || !k)
        return NULL;
    k = repeat_heads(trek_rule_wide(k), trek_var_size(q, 1));
    trek_var *scores = masked_scores(trek_mul_scalar(trek_matmul(q, trek_transpose(k, 2, 3)), scale), mask, causal);
    /* a query that sees no key: scores of 0 for the softmax, then probabilities of 0 */
    trek_var *blind = trek_logical_not(trek_any(trek_ne_scalar(scores, -INFINITY), trek_dims(3), true));
    return trek_masked_fill(trek_softmax(trek_masked_fill(scores, blind, 0), 3), blind, 0);
}

COMPOSITE(attention)
{
    (void)op;
    if (!inputs[0] || !inputs[1] || !inputs[2])
        return NULL;
    trek_var *p = trek_attention_probabilities(inputs[0], inputs[1], n_inputs > 3 ? inputs[3] : NULL, attrs->i[4] != 0,
                                               attrs->f[1]);
    if (attrs->f[0] > 0)
        p = trek_apply_dropout(p, attrs->f[0], attrs);
    return trek_rule_rounded(trek_matmul(p, repeat_heads(trek_rule_wide(inputs[2]), trek_var_size(inputs[0], 1))), inputs[0]);
}
