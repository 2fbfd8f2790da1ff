/* SPDX-License-Identifier: Apache-2.0 */
/* The plain ops that each fused op equals: create_graph differentiates them, and the tests use them as a reference. */
#include "autograd/rules_internal.h"

#define COMPOSITE(name) \
    trek_var *trek_composite_rule_##name(const trek_op *op, const trek_attrs *attrs, trek_var *const *inputs, int n_inputs); \
    trek_var *trek_composite_rule_##name(const trek_op *op, const trek_attrs *attrs, trek_var *const *inputs, int n_inputs)

COMPOSITE(linear)
{
    (void)op, (void)n_inputs;
    trek_var *y = trek_matmul(inputs[0], trek_transpose(inputs[1], 0, 1));
    if (inputs[2])
        y = trek_add(y, inputs[2]);
    if (attrs->i[0] == TREK_ACTIVATION_RELU)
        return trek_relu(y);
    return attrs->i[0] == TREK_ACTIVATION_GELU ? trek_gelu(y) : y;
}

/* Computes (x - mean) / sqrt(var + eps) over dims. With `zero`, the result is 0 where it would be 0 / 0. */
static trek_var *normalized(trek_var *x, trek_dims_list dims, double eps, bool zero)
{
    trek_var *centred = trek_sub(x, trek_mean(x, dims, true));
    trek_var *variance = trek_mean(trek_square(centred), dims, true);
    if (zero && eps == 0) {
        trek_var *flat = trek_eq_scalar(variance, 0);
        return trek_mul(centred, trek_masked_fill(trek_rsqrt(trek_masked_fill(variance, flat, 1)), flat, 0));
    }
    return trek_mul(centred, trek_rsqrt(trek_add_scalar(variance, eps)));
}

COMPOSITE(layer_norm)
{
    (void)op, (void)n_inputs;
    trek_dims_list dims = { 0 };
    for (int d = 1; d <= attrs->i[0]; d++)
        dims.sizes[dims.ndim++] = -d;
    trek_var *y = normalized(trek_rule_wide(inputs[0]), dims, attrs->f[0], false);
    if (inputs[1])
        y = trek_mul(y, trek_rule_wide(inputs[1]));
    if (inputs[2])
        y = trek_add(y, trek_rule_wide(inputs[2]));
    return trek_rule_rounded(y, inputs[0]);
}

COMPOSITE(group_norm)
{
    (void)op, (void)n_inputs;
    if (!inputs[0])
        return NULL;
    trek_shape shape = trek_var_shape(inputs[0]), channels = { .ndim = shape.ndim };
    for (int d = 0; d < shape.ndim; d++)
        channels.sizes[d] = d == 1 ? shape.sizes[1] : 1;
    int64_t groups = shape.sizes[0] * attrs->i[0], columns = groups > 0 ? trek_shape_numel(shape) / groups : 0;
    trek_var *rows = trek_reshape(trek_rule_wide(inputs[0]), trek_dims(groups, columns));
    trek_var *y = trek_reshape(normalized(rows, trek_dims(1), attrs->f[0], false), shape);
    if (inputs[1])
        y = trek_mul(y, trek_reshape(trek_rule_wide(inputs[1]), channels));
    if (inputs[2])
        y = trek_add(y, trek_reshape(trek_rule_wide(inputs[2]), channels));
    return trek_rule_rounded(y, inputs[0]);
}

/* Training mode, with statistics of the batch. (For evaluation the rule uses plain ops of its own.) */
COMPOSITE(batch_norm)
{
    (void)op, (void)n_inputs;
    if (!inputs[0])
        return NULL;
    trek_shape shape = trek_var_shape(inputs[0]), channels = { .ndim = shape.ndim };
    trek_dims_list others = { 0 };
    for (int d = 0; d < shape.ndim; d++) {
        channels.sizes[d] = d == 1 ? shape.sizes[1] : 1;
        if (d != 1)
            others.sizes[others.ndim++] = d;
    }
    trek_var *y, *x = trek_rule_wide(inputs[0]);
    if (attrs->i[0]) {
        y = normalized(x, others, attrs->f[1], true);
    } else {
        trek_var *rstd = trek_rsqrt(trek_add_scalar(trek_reshape(trek_rule_wide(inputs[4]), channels), attrs->f[1]));
        y = trek_mul(trek_sub(x, trek_reshape(trek_rule_wide(inputs[3]), channels)), rstd);
    }
    if (inputs[1])
        y = trek_mul(y, trek_reshape(trek_rule_wide(inputs[1]), channels));
    if (inputs[2])
        y = trek_add(y, trek_reshape(trek_rule_wide(inputs[2]), channels));
    return trek_rule_rounded(y, inputs[0]);
}

/* Each row: (1 - s) w[label] (-log p[label]) + s / C sum_c w[c] (-log p[c]), and nothing where it is ignored. The
 * mean divides by the sum of w[label] over the rows that count. */
COMPOSITE(cross_entropy)
{
    (void)op, (void)n_inputs;
    trek_var *logits = trek_rule_wide(inputs[0]), *labels = inputs[1], *weight = trek_rule_wide(inputs[2]);
    if (!logits || !labels)
        return NULL;
    double smoothing = attrs->f[0];
    int64_t classes = trek_var_size(logits, 1);
    labels = trek_cast(labels, TREK_I64);
    trek_tensor *ignore = trek_tensor_from_data(&attrs->i[0], trek_dims_none(), TREK_I64, logits->data->device);
    trek_var *ignored = trek_eq(labels, ignore ? trek_var_from(ignore) : NULL);
    trek_var *counts = trek_cast(trek_logical_not(ignored), trek_var_dtype(logits));
    logits = trek_masked_fill(logits, trek_unsqueeze(ignored, 1), 0); /* 0 times a value that is not finite is not 0 */
    trek_var *safe = trek_mul(labels, trek_cast(counts, TREK_I64));
    trek_var *loss = trek_neg(trek_log_softmax(logits, 1));
    trek_var *of_label = weight ? trek_mul(counts, trek_index_select(weight, 0, safe)) : counts;
    trek_var *nll = trek_mul(of_label, trek_squeeze(trek_gather(loss, 1, trek_unsqueeze(safe, 1)), 1));
    if (smoothing > 0) {
        trek_var *all = weight ? trek_mul(loss, weight) : loss;
        trek_var *smooth = trek_mul(counts, trek_sum(all, trek_dims(1), false));
        nll = trek_add(trek_mul_scalar(nll, 1 - smoothing), trek_mul_scalar(smooth, smoothing / (double)classes));
    }
    if (attrs->i[1] == TREK_REDUCTION_NONE)
        return trek_rule_rounded(nll, inputs[0]);
    trek_var *total = trek_sum(nll, trek_dims_all(), false);
    if (attrs->i[1] == TREK_REDUCTION_SUM)
        return trek_rule_rounded(total, inputs[0]);
    trek_var *divisor = trek_sum(of_label, trek_dims_all(), false);
    if (divisor && trek_var_item(divisor) == 0) /* no row counts: 0, with a gradient of 0 */
        return trek_rule_rounded(total, inputs[0]);
    return trek_rule_rounded(trek_div(total, divisor), inputs[0]);
}
