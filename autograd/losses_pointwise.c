/* SPDX-License-Identifier: Apache-2.0 */
/* Losses of single elements and their targets. */
#include <math.h>

#include "autograd/calls_internal.h"
#include "autograd/blocks.h"
#include "autograd/losses_internal.h"

#define LOG_2_PI 1.8378770664093454836

/* Computes the elements' losses without reducing them. 16-bit inputs are widened in the kernel, not before. */
static trek_var *pointwise(const char *name, trek_var *x, trek_var *target, trek_loss_taken what, int kind, double beta,
                           trek_dtype *result)
{
    if (!trek_loss_alike(name, (trek_var *[]){ x, target }, 2) ||
        !trek_loss_takes(name, trek_var_dtype(x), trek_var_dtype(target), what))
        return NULL;
    trek_dtype common = trek_dtype_promote(trek_var_dtype(x), trek_var_dtype(target));
    *result = trek_loss_dtype(common);
    const char *before = trek_op_calling(name);
    return trek_op_called_end(before, trek_apply_pointwise_loss(trek_cast(x, common), trek_cast(target, common), kind, beta));
}

static trek_loss_opts options(const trek_loss_opts *given) { return given ? *given : (trek_loss_opts){ 0 }; }

/* Applies the weight; a mean divides by the number of elements. */
static trek_var *finish(const char *name, trek_var *losses, const trek_loss_opts *opts, trek_dtype dtype)
{
    if (!losses || !trek_loss_reduction_known(name, opts->reduction))
        return NULL;
    return trek_loss_reduced(trek_loss_weighted(name, losses, opts->weight), opts->reduction, dtype);
}

/* Applies the weight; a mean divides by the sum of the weights. */
static trek_var *finish_by_weights(const char *name, trek_var *losses, const trek_loss_opts *opts, trek_dtype dtype)
{
    bool counts = opts->weight && opts->reduction == TREK_REDUCTION_MEAN;
    if (!losses || !counts || trek_var_numel(losses) == 0)
        return finish(name, losses, opts, dtype);
    trek_var *weighted = trek_loss_weighted(name, losses, opts->weight);
    if (!weighted)
        return NULL;
    trek_var *weight = trek_expand(trek_cast(opts->weight, trek_var_dtype(losses)), trek_var_shape(losses));
    trek_var *sum = trek_sum(weight, trek_dims_all(), false);
    trek_var *mean = trek_div(trek_sum(weighted, trek_dims_all(), false), sum);
    return mean ? trek_loss_mean_of(trek_loss_rounded(mean, dtype), trek_var_item(sum)) : NULL;
}

trek_var *trek_mse_loss(trek_var *x, trek_var *target) { return trek_mse_loss_with(x, target, NULL); }

trek_var *trek_mse_loss_with(trek_var *x, trek_var *target, const trek_loss_opts *given)
{
    trek_dtype dtype;
    trek_loss_opts opts = options(given);
    trek_var *losses = pointwise("mse_loss", x, target, TREK_LOSS_TAKEN_ANY, TREK_LOSS_SQUARED, 0, &dtype);
    return losses ? finish_by_weights("mse_loss", losses, &opts, dtype) : NULL;
}

trek_var *trek_l1_loss(trek_var *x, trek_var *target) { return trek_l1_loss_with(x, target, NULL); }

trek_var *trek_l1_loss_with(trek_var *x, trek_var *target, const trek_loss_opts *given)
{
    trek_dtype dtype;
    trek_loss_opts opts = options(given);
    trek_var *losses = pointwise("l1_loss", x, target, TREK_LOSS_TAKEN_INTEGERS, TREK_LOSS_ABSOLUTE, 0, &dtype);
    return losses ? finish_by_weights("l1_loss", losses, &opts, dtype) : NULL;
}

trek_var *trek_smooth_l1_loss(trek_var *x, trek_var *target, double beta)
{
    return trek_smooth_l1_loss_with(x, target, beta, NULL);
}

trek_var *trek_smooth_l1_loss_with(trek_var *x, trek_var *target, double beta, const trek_loss_opts *given)
{
    trek_dtype dtype;
    trek_loss_opts opts = options(given);
    if (!(beta >= 0))
        return trek_fail_null(TREK_ERR_ARGUMENT, "smooth_l1_loss: beta: %g; must not be negative", beta);
    bool bends = beta > 0;
    trek_var *losses = pointwise(bends ? "smooth_l1_loss" : "l1_loss", x, target,
                                 bends ? TREK_LOSS_TAKEN_ANY : TREK_LOSS_TAKEN_INTEGERS,
                                 bends ? TREK_LOSS_SMOOTH : TREK_LOSS_ABSOLUTE, beta, &dtype);
    return losses ? finish("smooth_l1_loss", losses, &opts, dtype) : NULL;
}

trek_var *trek_huber_loss(trek_var *x, trek_var *target, double delta, const trek_loss_opts *given)
{
    trek_dtype dtype;
    trek_loss_opts opts = options(given);
    if (!(delta > 0))
        return trek_fail_null(TREK_ERR_ARGUMENT, "huber_loss: delta: %g; must be above 0", delta);
    trek_var *losses = pointwise("huber_loss", x, target, TREK_LOSS_TAKEN_ANY, TREK_LOSS_SMOOTH, delta, &dtype);
    if (!losses || delta == 1 || opts.reduction == TREK_REDUCTION_NONE)
        return losses ? finish("huber_loss", delta == 1 ? losses : trek_mul_scalar(losses, delta), &opts, dtype) : NULL;
    if (!trek_loss_reduction_known("huber_loss", opts.reduction))
        return NULL;
    /* the sum is scaled, not its terms */
    trek_var *weighted = trek_loss_weighted("huber_loss", losses, opts.weight);
    trek_var *total = weighted ? trek_mul_scalar(trek_sum(weighted, trek_dims_all(), false), delta) : NULL;
    return opts.reduction == TREK_REDUCTION_SUM ? trek_loss_rounded(total, dtype)
        : trek_loss_mean_rows(total, (double)trek_var_numel(losses), dtype);
}

trek_var *trek_bce(trek_var *probabilities, trek_var *target, const trek_loss_opts *given)
{
    trek_dtype dtype;
    trek_loss_opts opts = options(given);
    trek_var *losses = pointwise("bce", probabilities, target, TREK_LOSS_TAKEN_FLOATS, TREK_LOSS_BINARY, 0, &dtype);
    return losses ? finish("bce", losses, &opts, dtype) : NULL;
}

/* --- of logits -------------------------------------------------------------------------- */

trek_var *trek_bce_with_logits(trek_var *x, trek_var *target) { return trek_bce_with_logits_with(x, target, NULL); }

static trek_var *one_like(const trek_var *x)
{
    return trek_var_from(trek_tensor_full(trek_dims_none(), 1, trek_var_dtype(x), trek_var_device(x)));
}

/* (1 - t) x + (1 + (p - 1) t) log(1 + exp(-x)); the second factor is the cross entropy for target 1. */
static trek_var *positives_weighted(trek_var **inputs)
{
    trek_var *x = inputs[0], *target = inputs[1];
    trek_var *share = trek_add_scalar(trek_mul(trek_sub_scalar(inputs[2], 1), target), 1);
    trek_var *below = trek_apply_pointwise_loss(x, one_like(x), TREK_LOSS_LOGISTIC, 0);
    return trek_add(trek_mul(trek_add_scalar(trek_neg(target), 1), x), trek_mul(share, below));
}

trek_var *trek_bce_with_logits_with(trek_var *x, trek_var *target, const trek_bce_opts *given)
{
    static const char name[] = "bce_with_logits";
    trek_dtype dtype;
    trek_bce_opts opts = given ? *given : (trek_bce_opts){ 0 };
    trek_var *inputs[3] = { x, target, opts.pos_weight }, *losses = NULL;
    if (!opts.pos_weight)
        losses = pointwise(name, x, target, TREK_LOSS_TAKEN_FLOATS, TREK_LOSS_LOGISTIC, 0, &dtype);
    else if (trek_loss_alike(name, inputs, 2) && trek_loss_widen(name, inputs, 3, TREK_LOSS_TAKEN_FLOATS, &dtype))
        losses = positives_weighted(inputs);
    return losses ? finish(name, losses, &(trek_loss_opts){ opts.reduction, opts.weight }, dtype) : NULL;
}

trek_var *trek_focal_loss(trek_var *x, trek_var *target, const trek_focal_opts *given)
{
    trek_dtype dtype;
    trek_focal_opts opts = given ? *given : (trek_focal_opts){ 0 };
    trek_var *inputs[2] = { x, target };
    double alpha = trek_option(opts.alpha, 0.25), gamma = trek_option(opts.gamma, 2);
    if (!(gamma >= 0) || !(alpha <= 1))
        return trek_fail_null(TREK_ERR_ARGUMENT, "focal_loss: gamma: %g, alpha: %g; must be at least 0, and at most 1", gamma,
                              alpha);
    if (!trek_loss_alike("focal_loss", inputs, 2) || !trek_loss_widen("focal_loss", inputs, 2, TREK_LOSS_TAKEN_FLOATS, &dtype))
        return NULL;
    trek_var *p = trek_sigmoid(inputs[0]), *t = inputs[1];
    trek_var *missing = trek_sub(trek_add(p, t), trek_mul_scalar(trek_mul(p, t), 2)); /* 1 - p_t */
    trek_var *losses = trek_apply_pointwise_loss(inputs[0], t, TREK_LOSS_LOGISTIC, 0);
    if (gamma > 0)
        losses = trek_mul(losses, gamma == 1 ? missing : trek_pow_scalar(missing, gamma));
    if (alpha >= 0)
        losses = trek_mul(losses, trek_add_scalar(trek_mul_scalar(t, 2 * alpha - 1), 1 - alpha));
    return losses ? finish("focal_loss", losses, &(trek_loss_opts){ opts.reduction, NULL }, dtype) : NULL;
}

trek_var *trek_soft_margin_loss(trek_var *x, trek_var *target, const trek_loss_opts *given)
{
    trek_dtype dtype;
    trek_loss_opts opts = options(given);
    trek_var *inputs[2] = { x, target };
    if (!trek_loss_alike("soft_margin_loss", inputs, 2) ||
        !trek_loss_widen("soft_margin_loss", inputs, 2, TREK_LOSS_TAKEN_FLOATS, &dtype))
        return NULL;
    trek_var *losses = trek_apply_pointwise_loss(trek_mul(inputs[0], inputs[1]), one_like(inputs[0]), TREK_LOSS_LOGISTIC, 0);
    return losses ? finish("soft_margin_loss", losses, &opts, dtype) : NULL;
}

/* --- of distributions ------------------------------------------------------------------------ */

/* t log t - t + log(2 pi t) / 2 where t > 1, otherwise 0. */
static trek_var *stirling(trek_var *target)
{
    trek_var *small = trek_le_scalar(target, 1), *t = trek_masked_fill(target, small, 1), *log_t = trek_log(t);
    trek_var *sum = trek_add(trek_sub(trek_mul(t, log_t), t), trek_mul_scalar(trek_add_scalar(log_t, LOG_2_PI), 0.5));
    return trek_masked_fill(sum, small, 0);
}

/* numbers: the dtype to compute in, whether x are rates, what is added to them, whether all terms are wanted */
static trek_var *poisson_of(trek_var *const *in, const double *numbers)
{
    trek_var *x = trek_cast(in[0], (trek_dtype)numbers[0]), *target = trek_cast(in[1], (trek_dtype)numbers[0]);
    trek_var *losses = numbers[1] != 0 ? trek_sub(x, trek_mul(target, trek_log(trek_add_scalar(x, numbers[2]))))
                                       : trek_sub(trek_exp(x), trek_mul(target, x));
    return numbers[3] != 0 ? trek_add(losses, stirling(target)) : losses;
}

trek_var *trek_poisson_nll_loss(trek_var *x, trek_var *target, const trek_poisson_nll_opts *given)
{
    trek_dtype dtype, work;
    trek_poisson_nll_opts opts = given ? *given : (trek_poisson_nll_opts){ 0 };
    trek_var *const inputs[2] = { x, target };
    if (!trek_loss_alike("poisson_nll_loss", inputs, 2) ||
        !trek_loss_dtypes("poisson_nll_loss", inputs, 2, TREK_LOSS_TAKEN_FLOATS, &work, &dtype))
        return NULL;
    const double numbers[] = { (double)work, opts.rates, trek_option(opts.eps, 1e-8), opts.full };
    trek_var *losses = trek_by_blocks(poisson_of, inputs, 2, numbers);
    return losses ? finish("poisson_nll_loss", losses, &(trek_loss_opts){ opts.reduction, NULL }, dtype) : NULL;
}

/* Returns the variance with x's dimensions, or NULL on failure. */
static trek_var *variance_for(trek_var *variance, trek_var *x)
{
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    int n = trek_var_ndim(x), short_by = n - trek_var_ndim(variance);
    bool fits = short_by == 0 || short_by == 1;
    for (int d = 0; fits && d < trek_var_ndim(variance); d++)
        fits = trek_var_size(variance, d) == trek_var_size(x, d) || (short_by == 0 && trek_var_size(variance, d) == 1);
    if (!fits)
        return trek_fail_null(TREK_ERR_SHAPE, "gaussian_nll_loss: variance: %s does not fit %s",
                              trek_tensor_shape_text(variance->data, a), trek_tensor_shape_text(x->data, b));
    return short_by ? trek_unsqueeze(variance, -1) : variance;
}

trek_var *trek_gaussian_nll_loss(trek_var *x, trek_var *target, trek_var *variance, const trek_gaussian_nll_opts *given)
{
    trek_dtype dtype;
    trek_gaussian_nll_opts opts = given ? *given : (trek_gaussian_nll_opts){ 0 };
    trek_var *inputs[3] = { x, target, variance };
    if (!trek_loss_alike("gaussian_nll_loss", inputs, 2) ||
        !trek_loss_widen("gaussian_nll_loss", inputs, 3, TREK_LOSS_TAKEN_FLOATS, &dtype))
        return NULL;
    trek_var *v = variance_for(inputs[2], inputs[0]);
    trek_var *below = v ? trek_any(trek_lt_scalar(v, 0), trek_dims_all(), false) : NULL;
    if (!below)
        return NULL;
    if (trek_var_item(below) != 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "gaussian_nll_loss: variance: one is negative; must be 0 or more");
    trek_var *fixed = trek_var_detach(v);
    v = trek_add(v, trek_sub(trek_clamp(fixed, trek_option(opts.eps, 1e-6), INFINITY), fixed)); /* its gradient passes */
    trek_var *losses = trek_add(trek_log(v), trek_div(trek_square(trek_sub(inputs[0], inputs[1])), v));
    losses = trek_mul_scalar(opts.full ? trek_add_scalar(losses, LOG_2_PI) : losses, 0.5);
    return losses ? finish("gaussian_nll_loss", losses, &(trek_loss_opts){ opts.reduction, NULL }, dtype) : NULL;
}

trek_var *trek_kl_div(trek_var *log_probabilities, trek_var *target) { return trek_kl_div_with(log_probabilities, target, NULL); }

trek_var *trek_kl_div_with(trek_var *log_probabilities, trek_var *target, const trek_kl_div_opts *given)
{
    trek_dtype dtype;
    trek_kl_div_opts opts = given ? *given : (trek_kl_div_opts){ 0 };
    trek_var *inputs[2] = { log_probabilities, target };
    if (!trek_loss_alike("kl_div", inputs, 2) || !trek_loss_widen("kl_div", inputs, 2, TREK_LOSS_TAKEN_FLOATS, &dtype) ||
        !trek_loss_reduction_known("kl_div", opts.reduction))
        return NULL;
    log_probabilities = inputs[0], target = inputs[1];
    trek_var *losses;
    if (opts.log_target) {
        losses = trek_mul(trek_exp(target), trek_sub(target, log_probabilities));
    } else {
        trek_var *zero = trek_eq_scalar(target, 0); /* 0 log 0 = 0 */
        trek_var *entropy = trek_mul(target, trek_log(trek_masked_fill(target, zero, 1)));
        losses = trek_sub(entropy, trek_mul(target, log_probabilities));
    }
    if (opts.per_element || opts.reduction != TREK_REDUCTION_MEAN)
        return trek_loss_reduced(losses, opts.reduction, dtype);
    double rows = trek_var_ndim(log_probabilities) > 0 ? (double)trek_var_size(log_probabilities, 0) : 1;
    return trek_loss_mean_rows(trek_sum(losses, trek_dims_all(), false), rows, dtype);
}
