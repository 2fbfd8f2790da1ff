/* SPDX-License-Identifier: Apache-2.0 */
/* Derivatives of attention, of the norms of transformers, and of the loss of a linear layer. */
#include <math.h>

#include "autograd/rules_internal.h"

trek_status trek_rule_rms_norm(trek_backward_call *b)
{
    if (b->create_graph)
        return trek_rule_composite(b);
    trek_var *in[4] = { b->grad, trek_rule_input(b, 0), trek_rule_output(b, 1), trek_rule_input(b, 1) };
    return trek_apply_many(&trek_ops[TREK_OP_rms_norm_backward], in, 4, b->attrs, b->grads, 2);
}

/* The gradient of a layer norm by plain ops of the residual, which is an output itself. Through it the gradient goes
 * on to x and branch. */
static trek_status add_layer_norm_plain(trek_backward_call *b, trek_var *stream)
{
    trek_var *residual = trek_rule_wide(trek_rule_output(b, 1)), *weight = trek_rule_wide(trek_rule_input(b, 2));
    trek_var *grad = trek_rule_wide(b->grad);
    trek_dims_list dims = { 0 };
    for (int d = 1; d <= b->attrs->i[0]; d++)
        dims.sizes[dims.ndim++] = -d;
    trek_var *centred = trek_sub(residual, trek_mean(residual, dims, true));
    trek_var *rstd = trek_rsqrt(trek_add_scalar(trek_mean(trek_square(centred), dims, true), b->attrs->f[0]));
    trek_var *normal = trek_mul(centred, rstd), *g = trek_mul(grad, normal);
    if (trek_rule_needs(b, 2))
        b->grads[2] = g;
    if (trek_rule_needs(b, 3))
        b->grads[3] = grad;
    trek_var *inner = weight ? trek_mul(grad, weight) : grad;
    trek_var *slope = trek_mul(normal, trek_mean(trek_mul(inner, normal), dims, true));
    trek_var *d = trek_mul(trek_sub(trek_sub(inner, trek_mean(inner, dims, true)), slope), rstd);
    d = stream ? trek_add(d, trek_rule_wide(stream)) : d;
    b->grads[0] = trek_rule_needs(b, 0) ? d : NULL;
    b->grads[1] = trek_rule_needs(b, 1) ? d : NULL;
    return d ? TREK_OK : trek_error_status();
}

/* A pair: y, the residual or both may have gradients. */
trek_status trek_rule_add_layer_norm(trek_backward_call *b)
{
    trek_var *stream = b->more_grads ? b->more_grads[1] : NULL;
    if (!b->grad) {
        b->grads[0] = b->grads[1] = stream;
        return TREK_OK;
    }
    if (b->create_graph)
        return add_layer_norm_plain(b, stream);
    trek_var *in[6] = { b->grad, stream, trek_rule_output(b, 1), trek_rule_output(b, 2), trek_rule_output(b, 3),
                        trek_rule_input(b, 2) };
    trek_var *outs[3] = { NULL };
    trek_status status = trek_apply_many(&trek_ops[TREK_OP_add_layer_norm_backward], in, 6, b->attrs, outs, 3);
    if (status != TREK_OK)
        return status;
    b->grads[0] = b->grads[1] = outs[0];
    b->grads[2] = outs[1];
    b->grads[3] = outs[2];
    return TREK_OK;
}

/* For a loss whose target is separate from x. */
static trek_var *slope_by_target(int64_t kind, trek_var *x)
{
    x = trek_rule_wide(x);
    if (kind == TREK_LOSS_LOGISTIC)
        return trek_neg(x);
    trek_var *is_not = trek_clamp(trek_log1p(trek_neg(x)), -100, INFINITY);
    return trek_sub(is_not, trek_clamp(trek_log(x), -100, INFINITY));
}

/* The kernel's slope by ops that have derivatives. */
static trek_var *binary_slope(trek_var *grad, trek_var *x, trek_var *target)
{
    trek_var *wide = trek_rule_wide(x), *spread = trek_mul(wide, trek_add_scalar(trek_neg(wide), 1));
    return trek_mul(grad, trek_div(trek_sub(wide, trek_rule_wide(target)), trek_clamp(spread, 1e-12, INFINITY)));
}

trek_status trek_rule_pointwise_loss(trek_backward_call *b)
{
    bool binary = b->attrs->i[0] == TREK_LOSS_BINARY;
    if (b->create_graph && !binary)
        return trek_rule_composite(b);
    trek_var *x = trek_rule_input(b, 0), *target = trek_rule_input(b, 1);
    trek_status status = TREK_OK;
    bool apart = b->attrs->i[0] == TREK_LOSS_LOGISTIC || binary; /* target, from x */
    trek_var *slope = NULL;
    if (trek_rule_needs(b, 0) || !apart) {
        slope = b->create_graph ? binary_slope(b->grad, x, target)
                                : trek_apply_pointwise_loss_backward(b->grad, x, target, b->attrs);
        status = trek_rule_give_to(b, 0, slope);
    }
    if (status == TREK_OK && trek_rule_needs(b, 1))
        status = trek_rule_give_to(b, 1, apart ? trek_mul(b->grad, slope_by_target(b->attrs->i[0], x)) : trek_neg(slope));
    return status;
}

/* The weight's gradient goes to its place if there is one, in f32 if the 16-bit dtype was only used for the product. */
static trek_tensor *place_of_weight(trek_backward_call *b, const trek_var *weight, bool *overwrite)
{
    if (!trek_rule_needs(b, 1))
        return NULL;
    return trek_dtype_is_16bit(trek_var_dtype(weight)) ? trek_rule_sink_wide(b, 1, overwrite) : trek_rule_sink(b, 1, overwrite);
}

/* For a sum or a mean: what forward has kept, times the loss's gradient. */
static trek_status from_kept(trek_backward_call *b, trek_var *const in[8])
{
    trek_tensor *tensors[8] = { NULL };
    bool overwrite = false;
    for (int k = 0; k < 8; k++)
        tensors[k] = in[k] ? in[k]->data : NULL;
    if (!tensors[1] || !tensors[2])
        return trek_error_status();
    trek_tensor *place = place_of_weight(b, in[2], &overwrite);
    trek_op_call call = { .op = &trek_ops[TREK_OP_linear_cross_entropy_backward], .n_inputs = 8, .inputs = tensors,
                          .attrs = *b->attrs };
    call.outputs[1] = place;
    call.n_outputs = place ? 2 : 0;
    call.attrs.i[3] = place && !overwrite;
    trek_status status = trek_op_run(&call);
    if (status == TREK_OK && place)
        trek_rule_sunk(b, 1);
    for (int k = 0; k < 3; k++) {
        if (!call.outputs[k] || call.outputs[k] == place)
            continue;
        if (status == TREK_OK && trek_rule_needs(b, k))
            status = trek_rule_give_to(b, k, trek_var_from(trek_tensor_retain(call.outputs[k])));
        trek_tensor_release(call.outputs[k]);
    }
    return status;
}

trek_status trek_rule_linear_cross_entropy(trek_backward_call *b)
{
    if (b->create_graph)
        return trek_rule_composite(b);
    trek_var *in[8] = { b->grad, trek_rule_input(b, 0), trek_rule_input(b, 1), trek_rule_input(b, 2), trek_rule_input(b, 3),
                        trek_rule_output(b, 1), trek_rule_output(b, 2), trek_rule_output(b, 3) };
    bool all_kept = in[7] && !(b->needs & 7 & ~b->attrs->i[2]);
    return all_kept ? from_kept(b, in)
                    : trek_apply_many(&trek_ops[TREK_OP_linear_cross_entropy_backward], in, 7, b->attrs, b->grads, 3);
}

/* If q, k and v are the three parts of one tensor, returns results that are the parts of one tensor in the same way,
 * which is then that tensor's gradient as it is. Otherwise returns none. Owned by the caller. */
static trek_status parts_like(const trek_tensor *q, const trek_tensor *k, const trek_tensor *v, trek_tensor *parts[3])
{
    int64_t item = trek_item_size[q->dtype], step = (k->data - q->data) / item, inner = 1;
    bool fits = q->numel > 0 && q->storage == k->storage && q->storage == v->storage && step > 0 &&
        k->data - q->data == step * item && v->data - k->data == step * item && k->dtype == q->dtype && v->dtype == q->dtype &&
        trek_same_sizes(q, k) && trek_same_sizes(q, v);
    int seen = 0;
    for (int d = 0; d < 4; d++) {
        fits = fits && q->strides[d] == k->strides[d] && q->strides[d] == v->strides[d];
        seen |= (q->sizes[d] == 1) << d;
    }
    while (fits && seen != 31) { /* from the innermost dimension outward; one of the dimensions is that of the three parts */
        int next = !(seen & 16) && step == inner ? 4 : -1;
        for (int d = 0; d < 4 && next < 0; d++)
            next = !(seen >> d & 1) && q->strides[d] == inner ? d : -1;
        fits = next >= 0;
        inner *= next == 4 ? 3 : fits ? q->sizes[next] : 1;
        seen |= fits ? 1 << next : 0;
    }
    if (!fits)
        return TREK_OK;
    trek_tensor *whole = trek_tensor_make(1, &(int64_t){ inner }, (trek_dtype)q->dtype, q->device);
    for (int part = 0; whole && part < 3; part++)
        parts[part] = trek_tensor_make_view(whole, whole->data + part * step * item, 4, q->sizes, q->strides);
    trek_tensor_release(whole);
    return whole && parts[0] && parts[1] && parts[2] ? TREK_OK : trek_error_status();
}

/* The mask is a constant. */
trek_status trek_rule_attention(trek_backward_call *b)
{
    if (b->create_graph)
        return trek_rule_composite(b);
    trek_var *in[7] = { b->grad, trek_rule_input(b, 0), trek_rule_input(b, 1), trek_rule_input(b, 2), trek_rule_output(b, 0),
                        trek_rule_output(b, 1), trek_rule_input(b, 3) };
    trek_tensor *tensors[7] = { NULL };
    for (int k = 0; k < 7; k++)
        tensors[k] = in[k] ? in[k]->data : NULL;
    trek_op_call call = { .op = &trek_ops[TREK_OP_attention_backward], .n_inputs = 7, .inputs = tensors, .attrs = *b->attrs };
    trek_status status = tensors[1] && tensors[2] && tensors[3] ? parts_like(tensors[1], tensors[2], tensors[3], call.outputs)
        : trek_error_status();
    if (status == TREK_OK && !call.outputs[0])
        return trek_apply_many(call.op, in, 7, b->attrs, b->grads, 3);
    if (status == TREK_OK)
        status = trek_op_run(&call);
    for (int k = 0; k < 3; k++) {
        if (status == TREK_OK && !(b->grads[k] = trek_var_from(trek_tensor_retain(call.outputs[k]))))
            status = trek_error_status();
        trek_tensor_release(call.outputs[k]);
    }
    return status;
}
