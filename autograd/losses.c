/* SPDX-License-Identifier: Apache-2.0 */
/* Losses. A mean over nothing is 0. */
#include <math.h>

#include "autograd/ops.h"
#include "autograd/tape_internal.h"
#include "tensor/option_internal.h"

/* Which dtypes a loss takes beside floating ones: for one of its inputs any, or integers; or none. */
typedef enum taken { ANY_BESIDE, INTEGERS_BESIDE, FLOATS_ONLY } taken;

static bool takes(const char *name, trek_dtype x, trek_dtype y, taken what)
{
    static const char *const words[] = { "one is of a floating dtype", "one is of a floating dtype, the other not bool",
                                         "both are of floating dtypes" };
    int floats = trek_dtype_is_float(x) + trek_dtype_is_float(y);
    if (floats == 2 || (floats == 1 && (what == ANY_BESIDE || (what == INTEGERS_BESIDE && x != TREK_BOOL && y != TREK_BOOL))))
        return true;
    trek_fail(TREK_ERR_DTYPE, "%s: inputs of %s and %s; %s", name, trek_dtype_name(x), trek_dtype_name(y), words[what]);
    return false;
}

/* What a loss of that dtype is rounded to. */
static trek_dtype result_dtype(trek_dtype common)
{
    return trek_dtype_is_16bit(common) && trek_grad_mode_here.autocast != TREK_F32 ? TREK_F32 : common;
}

/* Both inputs of a loss in what it is computed in: their common dtype, f32 for the 16-bit ones, so that its steps do
 * not round; false and an error. Gives what the result is rounded to: the common dtype, but f32 under autocast. */
static bool widen(const char *name, trek_var **x, trek_var **y, taken what, trek_dtype *result)
{
    if (!*x || !*y)
        return trek_fail_missing(name, "an input"), false;
    if (!takes(name, trek_var_dtype(*x), trek_var_dtype(*y), what))
        return false;
    trek_dtype common = trek_dtype_promote(trek_var_dtype(*x), trek_var_dtype(*y));
    bool narrow = trek_dtype_is_16bit(common);
    *result = result_dtype(common);
    *x = trek_cast(*x, narrow ? TREK_F32 : common);
    *y = trek_cast(*y, narrow ? TREK_F32 : common);
    return *x && *y;
}

static trek_var *rounded(trek_var *loss, trek_dtype dtype)
{
    return loss && trek_dtype_is_float(dtype) ? trek_cast(loss, dtype) : loss;
}

/* Mean over all elements, rounded to dtype; of none: 0, still tied to x. */
static trek_var *mean_all(trek_var *x, trek_dtype dtype)
{
    bool none = x && trek_var_numel(x) == 0;
    trek_var *mean = none ? trek_sum(x, trek_dims_none(), false) : trek_mean(x, trek_dims_none(), false);
    return trek_loss_mean_of(rounded(mean, dtype), x ? (double)trek_var_numel(x) : 0);
}

/* total / rows; of no rows: the total, which is 0. */
static trek_var *mean_rows(trek_var *total, double rows, trek_dtype dtype)
{
    return trek_loss_mean_of(rounded(rows > 0 ? trek_mul_scalar(total, 1 / rows) : total, dtype), rows);
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

static trek_var *fail_float_labels(const trek_var *logits, const trek_var *labels)
{
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    bool classes = labels->data->ndim + 1 == logits->data->ndim;
    return trek_fail_null(
        classes ? TREK_ERR_DTYPE : TREK_ERR_SHAPE,
        "cross_entropy: labels are of an integer dtype, got %s %s; or they are probabilities of the logits' shape, %s",
        trek_dtype_name((trek_dtype)labels->data->dtype), trek_tensor_shape_text(labels->data, a),
        trek_tensor_shape_text(logits->data, b));
}

/* Labels that are probabilities: -sum_c w[c] q[c] log p[c], mean over rows. */
static trek_var *soft_cross_entropy(trek_var *logits, trek_var *target, const trek_cross_entropy_opts *opts)
{
    trek_dtype dtype;
    if (!trek_same_sizes(logits->data, target->data))
        return fail_float_labels(logits, target);
    int64_t ignore = trek_option_integer(opts->ignore_index, -100);
    if (ignore >= 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "cross_entropy: class %lld is ignored, but labels are probabilities",
                              (long long)ignore);
    if (!widen("cross_entropy", &logits, &target, ANY_BESIDE, &dtype))
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
        return rounded(trek_sum(terms, trek_dims(1), false), dtype);
    trek_var *total = trek_sum(terms, trek_dims_none(), false);
    return opts->reduction == TREK_REDUCTION_SUM ? rounded(total, dtype) : mean_rows(total, (double)rows, dtype);
}

/* Logits without classes: labels that are ignored have a loss of 0, others none. */
static trek_var *loss_without_classes(trek_var *logits, trek_var *labels, const trek_cross_entropy_opts *opts)
{
    int64_t ignore = trek_option_integer(opts->ignore_index, -100);
    if (!trek_dtype_is_float(trek_var_dtype(logits)) || trek_var_dtype(labels) == TREK_BOOL)
        return trek_fail_null(TREK_ERR_DTYPE,
                              "cross_entropy: logits of a floating dtype and labels of an integer one are needed, not %s and %s",
                              trek_dtype_name(trek_var_dtype(logits)), trek_dtype_name(trek_var_dtype(labels)));
    trek_tensor *ignored = trek_tensor_from_data(&ignore, trek_dims_none(), TREK_I64, trek_var_device(labels));
    trek_var *others = trek_sum(trek_ne(labels, ignored ? trek_var_from(ignored) : NULL), trek_dims_none(), false);
    if (!others)
        return NULL;
    if (trek_var_item(others) != 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "cross_entropy: a label that is not ignored, but logits have no classes");
    if (opts->reduction == TREK_REDUCTION_NONE)
        return trek_sum(logits, trek_dims(1), false);
    trek_var *total = trek_sum(logits, trek_dims_none(), false);
    return opts->reduction == TREK_REDUCTION_SUM ? total : trek_loss_mean_of(total, 0);
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
        return trek_fail_null(TREK_ERR_SHAPE, "cross_entropy: logits [N, C, ...] are needed, not %s",
                              trek_tensor_shape_text(logits->data, a));
    if (trek_dtype_is_float(trek_var_dtype(labels)))
        return soft_cross_entropy(logits, labels, &opts);
    trek_shape expected = trek_var_shape(logits), shape = trek_var_shape(labels);
    for (int d = 1; d + 1 < expected.ndim; d++)
        expected.sizes[d] = expected.sizes[d + 1];
    expected.ndim--;
    if (!trek_shape_equal(expected, shape))
        return trek_fail_null(TREK_ERR_SHAPE, "cross_entropy: labels %s do not fit logits %s",
                              trek_tensor_shape_text(labels->data, b),
                              trek_tensor_shape_text(logits->data, a));
    if (opts.weight && opts.weight->requires_grad && trek_recording())
        return trek_fail_null(TREK_ERR_UNSUPPORTED, "cross_entropy: class weights that require a gradient; detach them");
    bool known = opts.reduction <= TREK_REDUCTION_NONE && (!opts.weight || trek_var_numel(opts.weight) == 0);
    if (trek_var_size(logits, 1) == 0 && known) /* what is not known the op refuses */
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

/* labels fit [N, C, ...] if they are [N, ...]. */
static bool labels_fit(const char *name, const trek_var *of_classes, const trek_var *labels)
{
    const trek_tensor *x = of_classes->data, *y = labels->data;
    bool fits = x->ndim >= 2 && y->ndim == x->ndim - 1;
    for (int d = 0; fits && d < y->ndim; d++)
        fits = y->sizes[d] == x->sizes[d > 0 ? d + 1 : 0];
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    if (!fits)
        trek_fail(TREK_ERR_SHAPE, "%s: labels %s do not fit %s, which is [N, C, ...]", name, trek_tensor_shape_text(y, b),
                  trek_tensor_shape_text(x, a));
    return fits;
}

/* Over log probabilities: the same rows without the softmax. */
trek_var *trek_nll_loss(trek_var *log_probabilities, trek_var *labels)
{
    if (!log_probabilities || !labels)
        return trek_fail_missing("nll_loss", "an input"), NULL;
    if (!labels_fit("nll_loss", log_probabilities, labels))
        return NULL;
    if (trek_dtype_is_float(trek_var_dtype(labels)) || trek_var_dtype(labels) == TREK_BOOL)
        return trek_fail_null(TREK_ERR_DTYPE, "nll_loss: labels are of an integer dtype, got %s",
                              trek_dtype_name(trek_var_dtype(labels)));
    log_probabilities = trek_autocast_full(log_probabilities);
    if (trek_var_size(log_probabilities, 1) == 0)
        return trek_cross_entropy(log_probabilities, labels);
    trek_var *index = trek_cast(labels, TREK_I64), *counts = trek_ne_scalar(index, -100);
    trek_var *sum = trek_sum(counts, trek_dims_none(), false);
    if (!sum)
        return NULL;
    double rows = trek_var_item(sum);
    bool all = rows == (double)trek_var_numel(labels);
    trek_var *safe = all ? index : trek_mul(index, trek_cast(counts, TREK_I64));
    trek_var *picked = trek_gather(log_probabilities, trek_unsqueeze(safe, 1), 1);
    if (!all)
        picked = trek_masked_fill(picked, trek_unsqueeze(trek_logical_not(counts), 1), 0);
    trek_var *total = trek_sum(picked, trek_dims_none(), false);
    return total ? mean_rows(trek_neg(total), rows, trek_var_dtype(total)) : NULL;
}

/* --- the others; shapes broadcast -------------------------------------------------------------- */

/* The mean of a loss of elements; 16-bit ones are not widened before, but in its kernel. */
static trek_var *pointwise(const char *name, trek_var *x, trek_var *target, taken what, int kind, double beta)
{
    if (!x || !target)
        return trek_fail_missing(name, "an input"), NULL;
    if (!takes(name, trek_var_dtype(x), trek_var_dtype(target), what))
        return NULL;
    trek_dtype common = trek_dtype_promote(trek_var_dtype(x), trek_var_dtype(target));
    trek_var *losses = trek_apply_pointwise_loss(trek_cast(x, common), trek_cast(target, common), kind, beta);
    return mean_all(losses, result_dtype(common));
}

trek_var *trek_mse_loss(trek_var *x, trek_var *target)
{
    return pointwise("mse_loss", x, target, ANY_BESIDE, TREK_LOSS_SQUARED, 0);
}

trek_var *trek_l1_loss(trek_var *x, trek_var *target)
{
    return pointwise("l1_loss", x, target, INTEGERS_BESIDE, TREK_LOSS_ABSOLUTE, 0);
}

trek_var *trek_smooth_l1_loss(trek_var *x, trek_var *target, double beta)
{
    if (!(beta >= 0))
        return trek_fail_null(TREK_ERR_ARGUMENT, "smooth_l1_loss: beta is %g; it must not be negative", beta);
    if (beta == 0)
        return trek_l1_loss(x, target);
    return pointwise("smooth_l1_loss", x, target, ANY_BESIDE, TREK_LOSS_SMOOTH, beta);
}

trek_var *trek_bce_with_logits(trek_var *x, trek_var *target)
{
    return pointwise("bce_with_logits", x, target, FLOATS_ONLY, TREK_LOSS_LOGISTIC, 0);
}

trek_var *trek_kl_div(trek_var *log_probabilities, trek_var *target)
{
    trek_dtype dtype;
    if (!widen("kl_div", &log_probabilities, &target, FLOATS_ONLY, &dtype))
        return NULL;
    trek_var *zero = trek_eq_scalar(target, 0); /* 0 log 0 = 0 */
    trek_var *entropy = trek_mul(target, trek_log(trek_masked_fill(target, zero, 1)));
    trek_var *total = trek_sum(trek_sub(entropy, trek_mul(target, log_probabilities)), trek_dims_none(), false);
    return mean_rows(total, trek_var_ndim(log_probabilities) > 0 ? (double)trek_var_size(log_probabilities, 0) : 1, dtype);
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
