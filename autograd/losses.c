/* SPDX-License-Identifier: Apache-2.0 */
/* Losses. A mean over nothing is 0. */
#include <math.h>

#include "autograd/ops.h"
#include "autograd/tape_internal.h"
#include "tensor/option_internal.h"

/* Losses are computed in f32 under autocast, from their first step on. */
static void widen(trek_var **x, trek_var **y)
{
    *x = trek_autocast_full(*x);
    *y = trek_autocast_full(*y);
}

/* Mean over all elements; of none: 0, still tied to x. */
static trek_var *mean_all(trek_var *x)
{
    bool none = x && trek_var_numel(x) == 0;
    trek_var *mean = none ? trek_sum(x, trek_dims_none(), false) : trek_mean(x, trek_dims_none(), false);
    return trek_loss_mean_of(mean, x ? (double)trek_var_numel(x) : 0);
}

/* total / rows; of no rows: the total, which is 0. */
static trek_var *mean_rows(trek_var *total, double rows)
{
    return trek_loss_mean_of(rows > 0 ? trek_mul_scalar(total, 1 / rows) : total, rows);
}

static bool same_shapes(const char *name, trek_var *x, trek_var *y)
{
    if (!x || !y)
        return trek_fail_missing(name, "an input"), false;
    if (trek_same_sizes(x->data, y->data))
        return true;
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    trek_fail(TREK_ERR_SHAPE, "%s: shapes differ: %s and %s", name, trek_tensor_shape_text(x->data, a), trek_tensor_shape_text(y->data, b));
    return false;
}

/* --- cross entropy ---------------------------------------------------------------------- */

/* [N, C, d1, ...] -> [N d1 ..., C] */
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

/* Labels that are probabilities: -sum_c w[c] q[c] log p[c], mean over rows. */
static trek_var *soft_cross_entropy(trek_var *logits, trek_var *target, const trek_cross_entropy_opts *opts)
{
    if (!same_shapes("cross_entropy", logits, target))
        return NULL;
    widen(&logits, &target);
    if (!logits || !target)
        return NULL;
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
        return trek_sum(terms, trek_dims(1), false);
    trek_var *total = trek_sum(terms, trek_dims_none(), false);
    return opts->reduction == TREK_REDUCTION_SUM ? total : mean_rows(total, (double)rows);
}

trek_var *trek_cross_entropy(trek_var *logits, trek_var *labels) { return trek_cross_entropy_with(logits, labels, NULL); }

trek_var *trek_cross_entropy_with(trek_var *logits, trek_var *labels, const trek_cross_entropy_opts *given)
{
    trek_cross_entropy_opts opts = given ? *given : (trek_cross_entropy_opts){ 0 };
    if (!logits || !labels)
        return trek_fail_missing("cross_entropy", "an input"), NULL;
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    if (!(opts.label_smoothing >= 0 && opts.label_smoothing <= 1))
        return trek_fail_null(TREK_ERR_ARGUMENT, "cross_entropy: a label smoothing of %g", opts.label_smoothing);
    if (trek_var_ndim(logits) < 2)
        return trek_fail_null(TREK_ERR_SHAPE, "cross_entropy: logits [N, C, ...] are needed, not %s", trek_tensor_shape_text(logits->data, a));
    if (trek_dtype_is_float(trek_var_dtype(labels)))
        return soft_cross_entropy(logits, labels, &opts);
    trek_shape expected = trek_var_shape(logits), shape = trek_var_shape(labels);
    for (int d = 1; d + 1 < expected.ndim; d++)
        expected.sizes[d] = expected.sizes[d + 1];
    expected.ndim--;
    if (!trek_shape_equal(expected, shape))
        return trek_fail_null(TREK_ERR_SHAPE, "cross_entropy: labels %s do not fit logits %s", trek_tensor_shape_text(labels->data, b),
                              trek_tensor_shape_text(logits->data, a));
    int64_t ignore = trek_option_integer(opts.ignore_index, -100);
    bool rows = trek_var_ndim(logits) == 2;
    trek_var *flat = rows ? labels : trek_reshape(labels, trek_dims(trek_var_numel(labels)));
    trek_var *loss = trek_apply_cross_entropy(rows ? logits : class_rows(logits), flat, opts.weight, ignore, (int)opts.reduction,
                                              opts.label_smoothing);
    if (opts.reduction == TREK_REDUCTION_MEAN)
        return trek_loss_mean_of_labels(loss, flat, opts.weight, ignore);
    return !rows && opts.reduction == TREK_REDUCTION_NONE ? trek_reshape(loss, shape) : loss;
}

/* Over log probabilities: the same rows without the softmax. */
trek_var *trek_nll_loss(trek_var *log_probabilities, trek_var *labels)
{
    if (!log_probabilities || !labels)
        return trek_fail_missing("nll_loss", "an input"), NULL;
    if (trek_var_ndim(log_probabilities) != 2 || trek_var_ndim(labels) != 1 ||
        trek_var_size(labels, 0) != trek_var_size(log_probabilities, 0)) {
        char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
        return trek_fail_null(TREK_ERR_SHAPE, "nll_loss: labels %s do not fit log probabilities %s",
                              trek_tensor_shape_text(labels->data, b), trek_tensor_shape_text(log_probabilities->data, a));
    }
    log_probabilities = trek_autocast_full(log_probabilities);
    trek_var *index = trek_cast(labels, TREK_I64);
    trek_var *counts = trek_ne_scalar(index, -100);
    trek_var *safe = trek_mul(index, trek_cast(counts, TREK_I64));
    trek_var *picked = trek_squeeze(trek_gather(log_probabilities, trek_unsqueeze(safe, 1), 1), 1);
    trek_var *total = trek_neg(trek_sum(trek_masked_fill(picked, trek_logical_not(counts), 0), trek_dims_none(), false));
    trek_var *n = trek_sum(counts, trek_dims_none(), false);
    return n ? mean_rows(total, trek_var_item(n)) : NULL;
}

/* --- the others ---------------------------------------------------------------------------- */

trek_var *trek_mse_loss(trek_var *x, trek_var *target)
{
    widen(&x, &target);
    return same_shapes("mse_loss", x, target) ? mean_all(trek_square(trek_sub(x, target))) : NULL;
}

trek_var *trek_l1_loss(trek_var *x, trek_var *target)
{
    widen(&x, &target);
    return same_shapes("l1_loss", x, target) ? mean_all(trek_abs(trek_sub(x, target))) : NULL;
}

trek_var *trek_smooth_l1_loss(trek_var *x, trek_var *target, double beta)
{
    if (!(beta > 0))
        return trek_fail_null(TREK_ERR_ARGUMENT, "smooth_l1_loss: beta is %g; it must be positive", beta);
    widen(&x, &target);
    if (!same_shapes("smooth_l1_loss", x, target))
        return NULL;
    trek_var *d = trek_abs(trek_sub(x, target));
    trek_var *near = trek_mul_scalar(trek_square(d), 0.5 / beta), *far = trek_sub_scalar(d, 0.5 * beta);
    return mean_all(trek_where(trek_lt_scalar(d, beta), near, far));
}

/* max(x, 0) - x t + log(1 + exp(-|x|)): no overflow on either side */
trek_var *trek_bce_with_logits(trek_var *x, trek_var *target)
{
    widen(&x, &target);
    if (!same_shapes("bce_with_logits", x, target))
        return NULL;
    trek_var *tail = trek_log1p(trek_exp(trek_neg(trek_abs(x))));
    /* max(x, 0) = (x + |x|) / 2 has the right slope at 0, where |x| alone has not */
    trek_var *positive = trek_mul_scalar(trek_add(x, trek_abs(x)), 0.5);
    return mean_all(trek_add(trek_sub(positive, trek_mul(x, target)), tail));
}

trek_var *trek_kl_div(trek_var *log_probabilities, trek_var *target)
{
    widen(&log_probabilities, &target);
    if (!same_shapes("kl_div", log_probabilities, target))
        return NULL;
    if (trek_var_ndim(target) == 0)
        return trek_fail_null(TREK_ERR_SHAPE, "kl_div: a batch is needed, not a scalar");
    trek_var *positive = trek_gt_scalar(target, 0); /* 0 log 0 = 0 */
    trek_var *entropy = trek_mul(target, trek_log(trek_masked_fill(target, trek_logical_not(positive), 1)));
    trek_var *total = trek_sum(trek_sub(entropy, trek_mul(target, log_probabilities)), trek_dims_none(), false);
    return mean_rows(total, (double)trek_var_size(target, 0));
}

trek_var *trek_accuracy(trek_var *logits, trek_var *labels)
{
    if (!logits || !labels)
        return trek_fail_missing("accuracy", "an input"), NULL;
    if (trek_var_ndim(logits) != 2 || trek_var_ndim(labels) != 1 || trek_var_size(logits, 0) != trek_var_size(labels, 0)) {
        char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
        return trek_fail_null(TREK_ERR_SHAPE, "accuracy: labels %s do not fit logits %s", trek_tensor_shape_text(labels->data, b),
                              trek_tensor_shape_text(logits->data, a));
    }
    if (trek_var_size(logits, 0) == 0)
        return trek_var_from(trek_tensor_zeros(trek_dims_none(), TREK_F64, trek_var_device(logits)));
    trek_no_grad_begin();
    trek_var *hit = trek_eq(trek_argmax(logits, trek_dims(1), false), labels);
    trek_var *share = trek_mean(hit ? trek_cast(hit, TREK_F64) : NULL, trek_dims_none(), false);
    trek_no_grad_end();
    return share;
}
