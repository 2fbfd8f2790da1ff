/* SPDX-License-Identifier: Apache-2.0 */
/* The public fused ops of transformers. */
#include "autograd/ops.h"
#include "autograd/tape_internal.h"
#include "tensor/random_internal.h"

trek_var *trek_rms_norm(trek_var *x, trek_var *weight, int normalized_dims, double eps)
{
    return trek_apply_rms_norm(x, weight, normalized_dims, eps);
}

/* A draw for the probabilities [B, H, T, S], which nobody makes: keyed by samples like any other tensor. */
static trek_status draw_for_scores(const trek_tensor *q, const trek_tensor *k, trek_attrs *numbers)
{
    int64_t sizes[4] = { q->sizes[0], q->sizes[1], q->sizes[2], k->sizes[2] }, strides[4] = { 0 };
    trek_tensor *scores = trek_tensor_make_view((trek_tensor *)q, q->data, 4, sizes, strides);
    if (!scores)
        return trek_status_get();
    trek_rng_attrs(scores, numbers);
    trek_tensor_release(scores);
    return TREK_OK;
}

trek_var *trek_attention(trek_var *q, trek_var *k, trek_var *v, const trek_attention_opts *given)
{
    trek_attention_opts opts = given ? *given : (trek_attention_opts){ 0 };
    trek_attrs numbers = { .i = { [4] = opts.causal }, .f = { opts.dropout, opts.scale } };
    if (opts.mask && opts.mask->requires_grad && trek_recording())
        return trek_fail_null(TREK_ERR_UNSUPPORTED, "attention: a mask that requires a gradient; detach it, or use plain ops");
    if (opts.dropout > 0 && q && k && q->data->ndim == 4 && k->data->ndim == 4 &&
        draw_for_scores(q->data, k->data, &numbers) != TREK_OK)
        return NULL;
    return trek_apply_attention(q, k, v, opts.mask, &numbers);
}
