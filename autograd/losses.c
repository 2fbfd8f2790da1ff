/* SPDX-License-Identifier: Apache-2.0 */
/* Losses over classes: cross entropy of logits and of log probabilities. */
#include <math.h>

#include "autograd/losses_internal.h"
#include "tensor/option_internal.h"

/* --- cross entropy ---------------------------------------------------------------------- */

/* Rearranges [N, C, d1, ...] to [N d1 ..., C]. */
static trek_var *class_rows(trek_var *x)
{
    trek_shape order = { .ndim = trek_var_ndim(x) };
    int n = 0;
    for (int d = 0; d < order.ndim; d++)
        if (d != 1)
            order.sizes[n++] = d;
    order.sizes[n] = 1;
    int64_t classes = trek_var_size(x, 1);
    return trek_reshape(trek_permute(x, order), trek_dims(classes ? trek_var_numel(x) / classes : 0, classes));
}

static trek_var *fail_float_labels(const trek_var *logits, const trek_var *labels)
{
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    bool classes = labels->data->ndim + 1 == logits->data->ndim;
    return trek_fail_null(classes ? TREK_ERR_DTYPE : TREK_ERR_SHAPE,
                          "cross_entropy: labels: %s %s; must be of an integer dtype, or probabilities of the logits' shape, %s",
                          trek_dtype_name((trek_dtype)labels->data->dtype), trek_tensor_shape_text(labels->data, a),
                          trek_tensor_shape_text(logits->data, b));
}

/* Labels that are probabilities: -sum_c w[c] q[c] log p[c], averaged over rows. */
static trek_var *soft_cross_entropy(trek_var *logits, trek_var *target, const trek_cross_entropy_opts *opts)
{
    trek_dtype dtype;
    if (!trek_same_sizes(logits->data, target->data))
        return fail_float_labels(logits, target);
    int64_t ignore = trek_option_integer(opts->ignore_index, -100);
    if (ignore >= 0)
        return trek_fail_null(TREK_ERR_ARGUMENT,
                              "cross_entropy: .ignore_index: class %lld, but labels are probabilities, which ignore none",
                              (long long)ignore);
    trek_var *inputs[2] = { logits, target };
    if (!trek_loss_widen("cross_entropy", inputs, 2, TREK_LOSS_TAKEN_ANY, &dtype))
        return NULL;
    logits = inputs[0];
    target = inputs[1];
    double smoothing = opts->label_smoothing;
    int64_t classes = trek_var_size(logits, 1), rows = classes ? trek_var_numel(logits) / classes : 0;
    if (smoothing > 0)
        target = trek_add_scalar(trek_mul_scalar(target, 1 - smoothing), smoothing / (double)classes);
    trek_var *terms = trek_mul(target, trek_neg(trek_log_softmax(logits, 1)));
    if (opts->weight) {
        trek_shape channels = { .ndim = trek_var_ndim(logits) };
        for (int d = 0; d < channels.ndim; d++)
            channels.sizes[d] = d == 1 ? classes : 1;
        terms = trek_mul(terms, trek_reshape(opts->weight, channels));
    }
    if (opts->reduction == TREK_REDUCTION_NONE)
        return trek_loss_rounded(trek_sum(terms, trek_dims(1), false), dtype);
    trek_var *total = trek_sum(terms, trek_dims_all(), false);
    return opts->reduction == TREK_REDUCTION_SUM ? trek_loss_rounded(total, dtype)
        : trek_loss_mean_rows(total, (double)rows, dtype);
}

/* Logits without classes: ignored labels have a loss of 0, and other labels are invalid. */
static trek_var *loss_without_classes(trek_var *logits, trek_var *labels, const trek_cross_entropy_opts *opts)
{
    int64_t ignore = trek_option_integer(opts->ignore_index, -100);
    if (!trek_dtype_is_float(trek_var_dtype(logits)) || trek_var_dtype(labels) == TREK_BOOL)
        return trek_fail_null(TREK_ERR_DTYPE,
                              "cross_entropy: logits and labels: dtypes %s and %s; must be floating, and an integer dtype",
                              trek_dtype_name(trek_var_dtype(logits)), trek_dtype_name(trek_var_dtype(labels)));
    trek_tensor *ignored = trek_tensor_from_data(&ignore, trek_dims_none(), TREK_I64, trek_var_device(labels));
    trek_var *others = trek_sum(trek_ne(labels, ignored ? trek_var_from(ignored) : NULL), trek_dims_all(), false);
    if (!others)
        return NULL;
    if (trek_var_item(others) != 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "cross_entropy: labels: one is not ignored, but the logits have 0 classes");
    if (opts->reduction == TREK_REDUCTION_NONE)
        return trek_sum(logits, trek_dims(1), false);
    trek_var *total = trek_sum(logits, trek_dims_all(), false);
    return opts->reduction == TREK_REDUCTION_SUM ? total : trek_loss_mean_of(total, 0);
}

/* Labels fit [N, C, ...] if they are [N, ...]. */
static bool labels_fit(const char *name, const trek_var *of_classes, const trek_var *labels)
{
    const trek_tensor *x = of_classes->data, *y = labels->data;
    bool fits = x->ndim >= 2 && y->ndim == x->ndim - 1, fits_last = x->ndim > 2 && y->ndim == x->ndim - 1;
    for (int d = 0; fits && d < y->ndim; d++)
        fits = y->sizes[d] == x->sizes[d > 0 ? d + 1 : 0];
    for (int d = 0; fits_last && d < y->ndim; d++)
        fits_last = y->sizes[d] == x->sizes[d];
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    if (!fits)
        trek_fail(TREK_ERR_SHAPE, "%s: labels: %s do not fit %s, which is [N, C, ...]%s", name, trek_tensor_shape_text(y, b),
                  trek_tensor_shape_text(x, a), fits_last ? ": classes are dimension 1, not the last one (trek_movedim)" : "");
    return fits;
}

trek_var *trek_cross_entropy(trek_var *logits, trek_var *labels) { return trek_cross_entropy_with(logits, labels, NULL); }

trek_var *trek_cross_entropy_with(trek_var *logits, trek_var *labels, const trek_cross_entropy_opts *given)
{
    trek_cross_entropy_opts opts = given ? *given : (trek_cross_entropy_opts){ 0 };
    if (!logits || !labels)
        return trek_fail_missing("cross_entropy", "input"), NULL;
    char a[TREK_SHAPE_TEXT];
    opts.label_smoothing = trek_option(opts.label_smoothing, 0);
    if (!(opts.label_smoothing >= 0 && opts.label_smoothing <= 1))
        return trek_fail_null(TREK_ERR_ARGUMENT, "cross_entropy: .label_smoothing: %g; must be inside [0, 1]",
                              opts.label_smoothing);
    if (trek_var_ndim(logits) < 2)
        return trek_fail_null(TREK_ERR_SHAPE, "cross_entropy: logits: %s; must be [N, C, ...]",
                              trek_tensor_shape_text(logits->data, a));
    if (trek_dtype_is_float(trek_var_dtype(labels)))
        return soft_cross_entropy(logits, labels, &opts);
    trek_shape shape = trek_var_shape(labels);
    if (!labels_fit("cross_entropy", logits, labels))
        return NULL;
    if (opts.weight && opts.weight->requires_grad && trek_recording())
        return trek_fail_null(TREK_ERR_UNSUPPORTED, "cross_entropy: .weight: it requires a gradient; detach it");
    bool known = trek_reduces_losses(opts.reduction) && (!opts.weight || trek_var_numel(opts.weight) == 0);
    if (trek_var_size(logits, 1) == 0 && known) /* the op refuses what cannot be known here */
        return loss_without_classes(logits, labels, &opts);
    int64_t ignore = trek_option_integer(opts.ignore_index, -100);
    bool rows = trek_var_ndim(logits) == 2;
    trek_var *flat = rows ? labels : trek_reshape(labels, trek_dims(trek_var_numel(labels)));
    trek_var *loss = trek_apply_cross_entropy(rows ? logits : class_rows(logits), flat, opts.weight, ignore, (int)opts.reduction,
                                              opts.label_smoothing);
    if (opts.reduction == TREK_REDUCTION_MEAN)
        return trek_loss_mean_of_labels(loss, flat, opts.weight, ignore);
    return !rows && opts.reduction == TREK_REDUCTION_NONE ? trek_reshape(loss, shape) : loss;
}

/* Returns -log_probabilities[label] of each row, times its class's weight, and 0 where the label is ignored. *counted
 * is each row's weight in a mean. */
static trek_var *label_losses(trek_var *log_probabilities, trek_var *labels, const trek_cross_entropy_opts *opts,
                              trek_var **counted)
{
    int64_t ignore = trek_option_integer(opts->ignore_index, -100);
    trek_var *index = trek_cast(labels, TREK_I64);
    trek_tensor *skipped = index ? trek_tensor_from_data(&ignore, trek_dims_none(), TREK_I64, trek_var_device(index)) : NULL;
    trek_var *is_ignored = trek_eq(index, skipped ? trek_var_from(skipped) : NULL); /* a double may not represent it */
    trek_var *safe = trek_masked_fill(index, is_ignored, 0);
    trek_var *picked = trek_squeeze(trek_gather(log_probabilities, 1, trek_unsqueeze(safe, 1)), 1);
    picked = trek_neg(trek_masked_fill(picked, is_ignored, 0));
    *counted = trek_logical_not(is_ignored);
    if (!opts->weight || !picked)
        return picked;
    trek_var *weights = trek_index_select(opts->weight, 0, trek_reshape(safe, trek_dims(trek_var_numel(labels))));
    *counted = trek_masked_fill(weights ? trek_reshape(weights, trek_var_shape(labels)) : NULL, is_ignored, 0);
    return trek_mul(picked, *counted ? trek_cast(*counted, trek_var_dtype(picked)) : NULL);
}

static bool nll_inputs_fit(const trek_var *log_probabilities, const trek_var *labels, const trek_cross_entropy_opts *opts)
{
    if (!log_probabilities || !labels)
        return trek_fail_missing("nll_loss", "input"), false;
    if (!labels_fit("nll_loss", log_probabilities, labels))
        return false;
    if (trek_dtype_is_float(trek_var_dtype(labels)) || trek_var_dtype(labels) == TREK_BOOL)
        return trek_fail(TREK_ERR_DTYPE, "nll_loss: labels: dtype %s; must be an integer dtype",
                         trek_dtype_name(trek_var_dtype(labels))),
               false;
    if (!trek_loss_reduction_known("nll_loss", opts->reduction))
        return false;
    if (trek_option(opts->label_smoothing, 0) != 0)
        return trek_fail(TREK_ERR_ARGUMENT, "nll_loss: .label_smoothing: %g; only cross_entropy has one", opts->label_smoothing),
               false;
    if (opts->weight && opts->weight->requires_grad && trek_recording())
        return trek_fail(TREK_ERR_UNSUPPORTED, "nll_loss: .weight: it requires a gradient; detach it"), false;
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    if (opts->weight && (trek_var_ndim(opts->weight) != 1 ||
                         trek_var_size(opts->weight, 0) != trek_var_size(log_probabilities, 1)))
        return trek_fail(TREK_ERR_SHAPE, "nll_loss: .weight: %s does not fit %s", trek_tensor_shape_text(opts->weight->data, a),
                         trek_tensor_shape_text(log_probabilities->data, b)),
               false;
    return true;
}

trek_var *trek_nll_loss(trek_var *log_probabilities, trek_var *labels)
{
    return trek_nll_loss_with(log_probabilities, labels, NULL);
}

trek_var *trek_nll_loss_with(trek_var *log_probabilities, trek_var *labels, const trek_cross_entropy_opts *given)
{
    trek_cross_entropy_opts opts = given ? *given : (trek_cross_entropy_opts){ 0 };
    if (!nll_inputs_fit(log_probabilities, labels, &opts))
        return NULL;
    log_probabilities = trek_autocast_full(log_probabilities);
    if (log_probabilities && trek_var_size(log_probabilities, 1) == 0)
        return loss_without_classes(log_probabilities, labels, &opts);
    trek_var *counted, *losses = label_losses(log_probabilities, labels, &opts, &counted);
    if (!losses || opts.reduction == TREK_REDUCTION_NONE)
        return losses;
    trek_var *total = trek_sum(losses, trek_dims_all(), false);
    if (!total || opts.reduction == TREK_REDUCTION_SUM)
        return total;
    trek_var *sum = trek_sum(counted ? trek_cast(counted, TREK_F64) : NULL, trek_dims_all(), false);
    return sum ? trek_loss_mean_rows(total, trek_var_item(sum), trek_var_dtype(total)) : NULL;
}

trek_var *trek_accuracy(trek_var *logits, trek_var *labels)
{
    if (!logits || !labels)
        return trek_fail_missing("accuracy", "input"), NULL;
    if (trek_var_ndim(logits) != 2 || trek_var_ndim(labels) != 1 || trek_var_size(logits, 0) != trek_var_size(labels, 0)) {
        char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
        return trek_fail_null(TREK_ERR_SHAPE, "accuracy: labels: %s do not fit logits %s",
                              trek_tensor_shape_text(labels->data, b), trek_tensor_shape_text(logits->data, a));
    }
    if (trek_var_size(logits, 0) == 0)
        return trek_var_from(trek_tensor_zeros(trek_dims_none(), TREK_F64, trek_var_device(logits)));
    trek_no_grad_begin();
    trek_var *hit = trek_eq(trek_argmax(logits, trek_dims(1), false), labels);
    trek_var *share = trek_mean(hit ? trek_cast(hit, TREK_F64) : NULL, trek_dims_all(), false);
    trek_no_grad_end();
    return share;
}
