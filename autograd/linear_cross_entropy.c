/* SPDX-License-Identifier: Apache-2.0 */
/* The loss of a linear layer with many classes. Labels that are classes use the fused op, also with class weights.
 * Labels that are probabilities, which have as many numbers as the logits anyway, use the logits. */
#include "autograd/losses_internal.h"
#include "autograd/rules_internal.h"
#include "tensor/option_internal.h"

/* Returns which gradients backward will ask for. Forward computes them, because the logits then need not be computed
 * again. */
static int head_gradients(const trek_var *x, const trek_var *weight, const trek_var *bias)
{
    if (!trek_recording())
        return 0;
    return (x->requires_grad ? TREK_HEAD_X : 0) | (weight && weight->requires_grad ? TREK_HEAD_WEIGHT : 0) |
           (bias && bias->requires_grad ? TREK_HEAD_BIAS : 0);
}

static trek_status fail_labels(const trek_var *x, const trek_var *weight, const trek_var *labels)
{
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT], c[TREK_SHAPE_TEXT];
    return trek_fail(TREK_ERR_SHAPE, "linear_cross_entropy: labels: %s do not fit input %s and weight %s",
                     trek_tensor_shape_text(labels->data, a), trek_tensor_shape_text(x->data, b),
                     weight ? trek_tensor_shape_text(weight->data, c) : "");
}

/* --- through the logits ------------------------------------------------------------------------------- */

static bool alike(const trek_var *x, const trek_var *y) { return x && y && trek_var_dtype(x) == trek_var_dtype(y); }

/* Computes [R, classes, rest...] from x [R, D] and weight [classes, rest..., D], in f32 for 16-bit inputs, as the
 * loss is. */
static trek_var *logits_of(trek_var *x, trek_var *weight, trek_var *bias)
{
    if (!weight)
        return trek_fail_missing("linear_cross_entropy", "input"), NULL;
    trek_shape own = trek_var_shape(weight), shape = own;
    int64_t columns = own.ndim > 1 ? own.sizes[own.ndim - 1] : 0, rows = 1;
    for (int d = own.ndim - 1; d > 0; d--)
        shape.sizes[d] = own.sizes[d - 1];
    for (int d = 0; d < own.ndim - 1; d++)
        rows *= own.sizes[d];
    if (own.ndim > 2) {
        trek_shape of_bias = own;
        of_bias.ndim--;
        if (bias && !trek_shape_equal(of_bias, trek_var_shape(bias)))
            return trek_fail_null(TREK_ERR_SHAPE,
                                  "linear_cross_entropy: bias: wrong shape; must be the weight's without the last size");
        weight = trek_reshape(weight, trek_dims(rows, columns));
        bias = bias ? trek_reshape(bias, trek_dims(rows)) : NULL;
    }
    if (alike(x, weight) && (!bias || alike(x, bias))) { /* others are refused, or cast by autocast */
        x = trek_rule_wide(x);
        weight = trek_rule_wide(weight);
        bias = trek_rule_wide(bias);
    }
    trek_var *logits = trek_autocast_full(trek_linear(x, weight, bias));
    if (logits && trek_var_dtype(logits) != TREK_F64)
        logits = trek_cast(logits, TREK_F32);
    shape.sizes[0] = trek_var_size(x, 0);
    return own.ndim > 2 ? trek_reshape(logits, shape) : logits;
}

/* Several losses for each row: weight is [classes, rest..., D]. */
static trek_var *of_more_dimensions(trek_var *x, trek_var *weight, trek_var *bias, trek_var *labels,
                                    const trek_cross_entropy_opts *opts)
{
    if (trek_var_ndim(x) != 2 || trek_var_size(x, 1) != trek_var_size(weight, -1))
        return fail_labels(x, weight, labels), NULL;
    trek_var *logits = logits_of(x, weight, bias);
    return logits ? trek_cross_entropy_with(logits, labels, opts) : NULL;
}

/* Labels are [..., classes] in a floating dtype. */
static trek_var *of_probabilities(trek_var *x, trek_var *weight, trek_var *bias, trek_var *labels,
                                  const trek_cross_entropy_opts *opts)
{
    trek_shape rows = trek_var_shape(x), given = trek_var_shape(labels);
    int64_t columns = rows.sizes[rows.ndim - 1], classes = weight && trek_var_ndim(weight) == 2 ? trek_var_size(weight, 0) : -1;
    rows.sizes[rows.ndim - 1] = classes;
    if (!trek_shape_equal(rows, given))
        return fail_labels(x, weight, labels), NULL;
    rows.ndim--;
    int64_t n = trek_shape_numel(rows);
    trek_var *logits = logits_of(trek_reshape(x, trek_dims(n, columns)), weight, bias);
    trek_var *loss = logits ? trek_cross_entropy_with(logits, trek_reshape(labels, trek_dims(n, classes)), opts) : NULL;
    return opts->reduction == TREK_REDUCTION_NONE ? trek_reshape(loss, rows) : loss;
}

/* --- class weights ---------------------------------------------------------------------------------------- */

static bool class_weights_fit(const trek_var *weight, const trek_var *classes)
{
    char text[TREK_SHAPE_TEXT];
    if (classes->requires_grad && trek_recording())
        return trek_fail(TREK_ERR_UNSUPPORTED, "linear_cross_entropy: class weights: they require a gradient; detach them"),
               false;
    if (!trek_dtype_is_float(trek_var_dtype(classes)))
        return trek_fail(TREK_ERR_DTYPE, "linear_cross_entropy: class weights: dtype %s; must be floating",
                         trek_dtype_name(trek_var_dtype(classes))),
               false;
    if (trek_var_ndim(classes) != 1 ||
        (weight && trek_var_ndim(weight) == 2 && trek_var_numel(classes) != trek_var_size(weight, 0)))
        return trek_fail(TREK_ERR_SHAPE, "linear_cross_entropy: class weights: %s; must be a number for each class",
                         trek_tensor_shape_text(classes->data, text)),
               false;
    return true;
}

/* Computes the sum over c of w[c] (logsumexp - z[c]) of each row without the logits z: this is the label's loss times the
 * sum of w, plus the sum over c of w[c] (z[label] - z[c]). The latter is a product of x with differences of rows of the
 * weight, so that what cancels does so before anything is multiplied. */
static trek_var *smoothing_losses(trek_var *x, trek_var *weight, trek_var *bias, trek_var *label, trek_var *losses,
                                  trek_var *classes)
{
    trek_dtype work = trek_var_dtype(losses);
    trek_var *sum = trek_sum(classes, trek_dims_all(), false);
    weight = trek_cast(weight, work);
    trek_var *rows = trek_sub(trek_mul(trek_index_select(weight, 0, label), sum), trek_matmul(classes, weight));
    trek_var *apart = trek_sum(trek_mul(trek_cast(x, work), rows), trek_dims(1), false);
    if (bias) {
        bias = trek_cast(bias, work);
        apart = trek_add(apart, trek_sub(trek_mul(trek_index_select(bias, 0, label), sum),
                                         trek_sum(trek_mul(bias, classes), trek_dims_all(), false)));
    }
    return trek_add(trek_mul(losses, sum), apart);
}

/* Computes each label's loss with the fused op, times its class's weight. */
static trek_var *with_class_weights(trek_var *x, trek_var *weight, trek_var *bias, trek_var *labels,
                                    const trek_cross_entropy_opts *opts, int64_t ignore)
{
    double smoothing = opts->label_smoothing;
    if (!class_weights_fit(weight, opts->weight) || !trek_loss_reduction_known("linear_cross_entropy", opts->reduction))
        return NULL;
    if (!(smoothing >= 0 && smoothing <= 1))
        return trek_fail_null(TREK_ERR_ARGUMENT, "linear_cross_entropy: label_smoothing: %g; must be inside [0, 1]", smoothing);
    trek_var *losses = trek_apply_linear_cross_entropy(x, weight, bias, labels, ignore, TREK_REDUCTION_NONE, 0, 0);
    if (!losses)
        return NULL;
    trek_var *index = trek_cast(labels, TREK_I64), *classes = trek_cast(opts->weight, trek_var_dtype(losses));
    trek_tensor *skipped = trek_tensor_from_data(&ignore, trek_dims_none(), TREK_I64, trek_var_device(labels));
    trek_var *ignored = trek_eq(index, skipped ? trek_var_from(skipped) : NULL); /* a double may not represent it */
    index = trek_masked_fill(index, ignored, 0);
    trek_var *counts = trek_masked_fill(trek_index_select(classes, 0, index), ignored, 0), *each = trek_mul(losses, counts);
    if (smoothing > 0) {
        trek_var *smooth = smoothing_losses(x, weight, bias, index, losses, classes);
        each = trek_add(trek_mul_scalar(each, 1 - smoothing),
                        trek_mul_scalar(trek_masked_fill(smooth, ignored, 0), smoothing / (double)trek_var_size(weight, 0)));
    }
    if (opts->reduction == TREK_REDUCTION_NONE)
        return each;
    trek_var *total = trek_sum(each, trek_dims_all(), false);
    if (opts->reduction == TREK_REDUCTION_SUM)
        return total;
    trek_var *count = trek_sum(counts, trek_dims_all(), false);
    return trek_loss_mean_of_labels(trek_div(total, trek_masked_fill(count, trek_eq_scalar(count, 0), 1)), labels, opts->weight,
                                    ignore);
}

/* --- the call ------------------------------------------------------------------------------------------------ */

/* The rows x are [R, D] and the labels [R]. */
static trek_var *of_rows(trek_var *x, trek_var *weight, trek_var *bias, trek_var *labels, const trek_cross_entropy_opts *opts)
{
    int64_t ignore = trek_option_integer(opts->ignore_index, -100);
    if (weight && trek_var_ndim(weight) == 2 && trek_var_size(weight, 0) == 0) /* a loss without classes is handled separately */
        return trek_cross_entropy_with(logits_of(x, weight, bias), labels, opts);
    if (opts->weight)
        return with_class_weights(x, weight, bias, labels, opts, ignore);
    int gradients = opts->reduction == TREK_REDUCTION_NONE ? 0 : head_gradients(x, weight, bias);
    trek_var *loss =
        trek_apply_linear_cross_entropy(x, weight, bias, labels, ignore, (int)opts->reduction, opts->label_smoothing, gradients);
    return opts->reduction == TREK_REDUCTION_MEAN ? trek_loss_mean_of_labels(loss, labels, NULL, ignore) : loss;
}

/* Merges the leading dimensions of x, and those of labels. */
trek_var *trek_linear_cross_entropy(trek_var *x, trek_var *weight, trek_var *bias, trek_var *labels,
                                    const trek_cross_entropy_opts *given)
{
    trek_cross_entropy_opts opts = given ? *given : (trek_cross_entropy_opts){ 0 };
    opts.label_smoothing = trek_option(opts.label_smoothing, 0);
    if (!x || !labels)
        return trek_fail_missing("linear_cross_entropy", "input"), NULL;
    trek_shape shape = trek_var_shape(x), rows = trek_var_shape(labels);
    if (weight && trek_var_ndim(weight) > 2)
        return of_more_dimensions(x, weight, bias, labels, &opts);
    if (shape.ndim > 0 && trek_dtype_is_float(trek_var_dtype(labels)))
        return of_probabilities(x, weight, bias, labels, &opts);
    int64_t columns = shape.ndim > 0 ? shape.sizes[--shape.ndim] : 0;
    if (!trek_shape_equal(shape, rows) || trek_var_ndim(x) < 1)
        return fail_labels(x, weight, labels), NULL;
    if (rows.ndim != 1) {
        x = trek_reshape(x, trek_dims(trek_shape_numel(rows), columns));
        labels = trek_reshape(labels, trek_dims(trek_shape_numel(rows)));
    }
    trek_var *loss = x && labels ? of_rows(x, weight, bias, labels, &opts) : NULL;
    return opts.reduction == TREK_REDUCTION_NONE && rows.ndim != 1 ? trek_reshape(loss, rows) : loss;
}
