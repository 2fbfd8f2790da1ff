/* SPDX-License-Identifier: Apache-2.0 */
/* The public fused ops of transformers. */
#include <math.h>

#include "autograd/ops.h"
#include "autograd/rows.h"
#include "autograd/rules_internal.h"
#include "autograd/tape_internal.h"
#include "tensor/random_internal.h"
#include "tensor/option_internal.h"

trek_var *trek_rms_norm(trek_var *x, trek_var *weight, int normalized_dims, double eps)
{
    return trek_apply_rms_norm(x, weight, normalized_dims, eps);
}

trek_var *trek_add_layer_norm(trek_var *x, trek_var *branch, trek_var *weight, trek_var *bias, int normalized_dims, double eps,
                              trek_var **residual)
{
    trek_var *inputs[4] = { x, branch, weight, bias }, *outs[2] = { NULL };
    trek_attrs numbers = { .i = { normalized_dims }, .f = { eps } };
    trek_status status = trek_apply_many(&trek_ops[TREK_OP_add_layer_norm], inputs, 4, &numbers, outs, 2);
    if (residual)
        *residual = status == TREK_OK ? outs[1] : NULL;
    return status == TREK_OK ? outs[0] : NULL;
}

/* A draw for the probabilities [B, H, T, S], which nobody makes: keyed by samples like any other tensor. */
static trek_status draw_for_scores(const trek_tensor *q, const trek_tensor *k, trek_attrs *numbers)
{
    int64_t sizes[4] = { q->sizes[0], q->sizes[1], q->sizes[2], k->sizes[2] }, strides[4] = { 0 };
    trek_tensor *scores = trek_tensor_make_view((trek_tensor *)q, q->data, 4, sizes, strides);
    if (!scores)
        return trek_error_status();
    trek_rng_attrs(scores, numbers);
    trek_tensor_release(scores);
    return TREK_OK;
}

/* Whether the op would take them: of no queries it is nothing. */
static bool attention_fits(trek_var *q, trek_var *k, trek_var *v, trek_var *mask)
{
    if (!q || !k || !v || q->data->ndim != 4 || mask->data->ndim > 4)
        return trek_apply_attention(q, k, v, mask, &(trek_attrs){ 0 }) != NULL;
    int64_t queries = mask->data->ndim > 1 ? trek_var_size(mask, -2) : 1;
    if (queries != 1 && queries != trek_var_size(q, 2))
        return trek_apply_attention(q, k, v, mask, &(trek_attrs){ 0 }) != NULL;
    return trek_apply_attention(trek_narrow(q, 2, 0, 0), k, v, queries == 1 ? mask : trek_narrow(mask, -2, 0, 0),
                                &(trek_attrs){ 0 }) != NULL;
}

/* By plain ops: the mask's gradient is the matrix of scores, which the fused op never has. */
static trek_var *attention_with_learned_mask(trek_var *q, trek_var *k, trek_var *v, const trek_attention_opts *opts,
                                             trek_attrs *numbers)
{
    if (!attention_fits(q, k, v, opts->mask))
        return NULL;
    numbers->f[1] = trek_option(opts->scale, 1 / sqrt((double)trek_var_size(q, 3)));
    return trek_composite_rules[TREK_OP_attention](&trek_ops[TREK_OP_attention], numbers, (trek_var *[]){ q, k, v, opts->mask },
                                                   4);
}

/* With dropout, of some of the batch's rows: in their places among all. */
static trek_var *attention_of_rows(const trek_row_map *map, trek_var *q, trek_var *k, trek_var *v, trek_attention_opts opts)
{
    bool own = opts.mask && trek_var_ndim(opts.mask) == 4 && trek_var_size(opts.mask, 0) == trek_var_size(q, 0);
    if (own && !(opts.mask = trek_rows_spread(map, opts.mask)))
        return NULL;
    const trek_row_map *before = trek_rank_here.row_map;
    q = trek_rows_spread(map, q), k = trek_rows_spread(map, k), v = trek_rows_spread(map, v);
    trek_rank_here.row_map = NULL;
    trek_var *y = trek_attention(q, k, v, &opts);
    trek_rank_here.row_map = before;
    return trek_rows_pick(map, y);
}

trek_var *trek_attention(trek_var *q, trek_var *k, trek_var *v, const trek_attention_opts *given)
{
    trek_attention_opts opts = given ? *given : (trek_attention_opts){ 0 };
    const trek_row_map *map = opts.dropout > 0 && q && k && v && q->data->ndim == 4 ? trek_rows_mapped(q) : NULL;
    if (map && trek_rows_mapped(k) && trek_rows_mapped(v))
        return attention_of_rows(map, q, k, v, opts);
    trek_attrs numbers = { .i = { [4] = opts.causal }, .f = { opts.dropout, opts.scale } };
    bool learned = opts.mask && opts.mask->requires_grad && trek_recording();
    if (opts.dropout > 0 && q && k && q->data->ndim == 4 && k->data->ndim == 4 &&
        draw_for_scores(q->data, k->data, &numbers) != TREK_OK)
        return NULL;
    return learned ? attention_with_learned_mask(q, k, v, &opts, &numbers) : trek_apply_attention(q, k, v, opts.mask, &numbers);
}

/* Those that backward will ask for: made in forward, from logits that need not be made again. */
static int head_gradients(const trek_var *x, const trek_var *weight, const trek_var *bias)
{
    if (!trek_recording())
        return 0;
    return (x->requires_grad ? TREK_HEAD_X : 0) | (weight && weight->requires_grad ? TREK_HEAD_WEIGHT : 0) |
        (bias && bias->requires_grad ? TREK_HEAD_BIAS : 0);
}

/* Leading dimensions of x, and those of labels, joined. */
trek_var *trek_linear_cross_entropy(trek_var *x, trek_var *weight, trek_var *bias, trek_var *labels,
                                    const trek_cross_entropy_opts *given)
{
    trek_cross_entropy_opts opts = given ? *given : (trek_cross_entropy_opts){ 0 };
    if (!x || !labels)
        return trek_fail_missing("linear_cross_entropy", "an input"), NULL;
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    if (opts.weight)
        return trek_fail_null(TREK_ERR_UNSUPPORTED, "linear_cross_entropy: class weights; use linear and cross_entropy_with");
    trek_shape shape = trek_var_shape(x), rows = trek_var_shape(labels);
    int64_t columns = shape.ndim > 0 ? shape.sizes[shape.ndim - 1] : 0;
    shape.ndim = shape.ndim > 0 ? shape.ndim - 1 : 0;
    if (!trek_shape_equal(shape, rows) || trek_var_ndim(x) < 1)
        return trek_fail_null(TREK_ERR_SHAPE, "linear_cross_entropy: labels %s do not fit input %s",
                              trek_tensor_shape_text(labels->data, b),
                              trek_tensor_shape_text(x->data, a));
    int64_t ignore = trek_option_integer(opts.ignore_index, -100);
    if (rows.ndim != 1) {
        x = trek_reshape(x, trek_dims(trek_shape_numel(rows), columns));
        labels = trek_reshape(labels, trek_dims(trek_shape_numel(rows)));
    }
    if (weight && trek_var_ndim(weight) == 2 && trek_var_size(weight, 0) == 0) { /* a loss without classes has its own way */
        trek_var *logits = trek_autocast_full(trek_linear(x, weight, bias));
        if (logits && trek_var_dtype(logits) != TREK_F64)
            logits = trek_cast(logits, TREK_F32); /* as the loss of 16-bit x is */
        trek_var *loss = trek_cross_entropy_with(logits, labels, &opts);
        return opts.reduction == TREK_REDUCTION_NONE && rows.ndim != 1 ? trek_reshape(loss, rows) : loss;
    }
    trek_var *loss = trek_apply_linear_cross_entropy(x, weight, bias, labels, ignore, (int)opts.reduction, opts.label_smoothing,
                                                     opts.reduction == TREK_REDUCTION_NONE ? 0 : head_gradients(x, weight, bias));
    if (opts.reduction == TREK_REDUCTION_MEAN)
        return trek_loss_mean_of_labels(loss, labels, NULL, ignore);
    return opts.reduction == TREK_REDUCTION_NONE && rows.ndim != 1 ? trek_reshape(loss, rows) : loss;
}
