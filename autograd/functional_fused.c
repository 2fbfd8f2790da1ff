/* SPDX-License-Identifier: Apache-2.0 */
/* The public fused ops of transformers. */
#include <math.h>

#include "autograd/attention_internal.h"
#include "autograd/ops.h"
#include "autograd/rows.h"
#include "autograd/rules_internal.h"
#include "autograd/tape_internal.h"
#include "tensor/random_internal.h"
#include "tensor/option_internal.h"

trek_var *trek_rms_norm(trek_var *x, int normalized_dims, trek_var *weight, double eps)
{
    return trek_apply_rms_norm(x, weight, normalized_dims, eps);
}

trek_var *trek_add_layer_norm(trek_var *x, trek_var *branch, int normalized_dims, trek_var *weight, trek_var *bias, double eps,
                              trek_var **residual)
{
    trek_var *inputs[4] = { x, branch, weight, bias }, *outs[2] = { NULL };
    trek_attrs numbers = { .i = { normalized_dims }, .f = { eps } };
    trek_status status = trek_apply_many(&trek_ops[TREK_OP_add_layer_norm], inputs, 4, &numbers, outs, 2);
    if (residual)
        *residual = status == TREK_OK ? outs[1] : NULL;
    return status == TREK_OK ? outs[0] : NULL;
}

/* Makes the draw for the probabilities [B, H, T, S], which never exist as a tensor. It is keyed by samples like any
 * other draw. */
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

/* Returns whether the op would accept them. Without queries there is nothing to do. */
static bool attention_fits(trek_var *q, trek_var *k, trek_var *v, trek_var *mask)
{
    if (q && k && v && q->data->ndim == 4 && !mask)
        return trek_apply_attention(trek_narrow(q, 2, 0, 0), k, v, NULL, &(trek_attrs){ 0 }) != NULL;
    if (!q || !k || !v || q->data->ndim != 4 || mask->data->ndim > 4)
        return trek_apply_attention(q, k, v, mask, &(trek_attrs){ 0 }) != NULL;
    int64_t queries = mask->data->ndim > 1 ? trek_var_size(mask, -2) : 1;
    if (queries != 1 && queries != trek_var_size(q, 2))
        return trek_apply_attention(q, k, v, mask, &(trek_attrs){ 0 }) != NULL;
    return trek_apply_attention(trek_narrow(q, 2, 0, 0), k, v, queries == 1 ? mask : trek_narrow(mask, -2, 0, 0),
                                &(trek_attrs){ 0 }) != NULL;
}

/* Uses plain ops: the mask's gradient is the matrix of scores, which the fused op never has. */
static trek_var *attention_with_learned_mask(trek_var *q, trek_var *k, trek_var *v, const trek_attention_opts *opts,
                                             trek_attrs *numbers)
{
    if (!attention_fits(q, k, v, opts->mask))
        return NULL;
    numbers->f[1] = trek_option(opts->scale, 1 / sqrt((double)trek_var_size(q, 3)));
    return trek_composite_rules[TREK_OP_attention](&trek_ops[TREK_OP_attention], numbers, (trek_var *[]){ q, k, v, opts->mask },
                                                   4);
}

/* Dropout on some of the batch's rows: they are processed at their positions among all rows. */
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
    opts.dropout = trek_option(opts.dropout, 0);
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

trek_var *trek_attention_weights(trek_var *q, trek_var *k, const trek_attention_opts *given)
{
    trek_attention_opts opts = given ? *given : (trek_attention_opts){ 0 };
    if (!(opts.dropout >= 0 && opts.dropout <= 1))
        return trek_fail_null(TREK_ERR_ARGUMENT,
                              "attention_weights: .dropout: %g; must be inside [0, 1]",
                              opts.dropout);
    trek_no_grad_begin();
    bool fits = attention_fits(q, k, k, opts.mask);
    trek_no_grad_end();
    if (!fits)
        return NULL;
    double scale = trek_option(opts.scale, 1 / sqrt((double)trek_var_size(q, 3)));
    trek_var *p = trek_attention_probabilities(q, k, opts.mask, opts.causal, scale);
    return trek_rule_rounded(opts.dropout > 0 ? trek_dropout(p, opts.dropout, true) : p, q);
}
