/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/op_cost.h"

static double size(const trek_tensor *t, int dim) { return (double)t->sizes[dim < 0 ? t->ndim + dim : dim]; }

/* Counts pairs of a query and a key; causal: query i sees keys 0..i. */
static double attention_pairs(const trek_tensor *q, const trek_tensor *k, bool causal)
{
    double queries = size(q, 2), keys = size(k, 2), each = size(q, 0) * size(q, 1);
    if (!causal)
        return each * queries * keys;
    double within = queries < keys ? queries : keys;
    return each * (within * (within + 1) / 2 + (queries - within) * keys);
}

/* Counts the multiplications of a product [rows, k] x [k, n], from the whole input and n. */
static double product(const trek_tensor *x, double n) { return (double)x->numel * n; }

static double attention_products(const trek_op_call *call, const trek_tensor *q, const trek_tensor *k, int products)
{
    return attention_pairs(q, k, call->attrs.i[4] != 0) * size(q, 3) * products;
}

/* Counts those of the product of the state [N, H] with weight [gates H, H], in each step of kept or gates [T, N, ...]. */
static double recurrent_products(const trek_tensor *steps, const trek_tensor *weight)
{
    return size(steps, 0) * size(steps, 1) * (double)weight->numel;
}

/* Counts those of the logits, and of the gradients that are made with them. */
static double head_products(int64_t gradients)
{
    return 1 + (gradients & TREK_HEAD_X ? 1 : 0) + (gradients & TREK_HEAD_WEIGHT ? 1 : 0);
}

static double multiplications(const trek_op_call *call)
{
    trek_tensor *const *in = call->inputs;
    const trek_tensor *out = call->outputs[0];
    switch (call->op->id) {
    case TREK_OP_matmul: return (double)out->numel * size(in[0], -1);
    case TREK_OP_linear: return product(in[0], size(in[1], 0));
    case TREK_OP_conv2d: return in[1]->sizes[0] ? product(out, (double)in[1]->numel / size(in[1], 0)) : 0;
    case TREK_OP_conv_transpose2d: return in[1]->sizes[0] ? product(in[0], (double)in[1]->numel / size(in[1], 0)) : 0;
    case TREK_OP_conv2d_input_grad: return in[1]->sizes[0] ? product(in[0], (double)in[1]->numel / size(in[1], 0)) : 0;
    case TREK_OP_conv2d_weight_grad: return out->sizes[0] ? product(in[0], (double)out->numel / size(out, 0)) : 0;
    case TREK_OP_attention: return attention_products(call, in[0], in[1], 2);
    case TREK_OP_attention_backward: return attention_products(call, in[1], in[2], 5);
    case TREK_OP_lstm:
    case TREK_OP_gru: return recurrent_products(in[0], in[1]);
    case TREK_OP_lstm_backward:
    case TREK_OP_gru_backward: return recurrent_products(in[1], in[0]);
    case TREK_OP_fp8_product: return product(in[0], size(in[1], 0));
    case TREK_OP_linear_cross_entropy: return head_products(call->attrs.i[2]) * product(in[0], size(in[1], 0));
    case TREK_OP_linear_cross_entropy_backward:
        return call->n_inputs > 7 && in[7] ? 0 : 3 * product(in[1], size(in[2], 0));
    default: return 0;
    }
}

/* Counts the bytes of a tensor in memory: expanded dimensions count once. */
static double bytes_of(const trek_tensor *t)
{
    double count = t->numel ? 1 : 0;
    for (int d = 0; d < t->ndim; d++)
        count *= t->strides[d] ? size(t, d) : 1;
    return count * trek_item_size[t->dtype];
}

/* Returns whether an op only reads selected elements of its input 0. */
static bool picks(int op)
{
    return op == TREK_OP_embedding || op == TREK_OP_embedding_bag || op == TREK_OP_index_select || op == TREK_OP_gather;
}

static double traffic(const trek_op_call *call)
{
    double bytes = 0;
    if ((call->op->flags & TREK_OP_VIEW) && call->n_inputs && call->outputs[0]->storage == call->inputs[0]->storage)
        return 0;
    for (int k = 0; k < call->n_outputs; k++)
        bytes += call->outputs[k] ? bytes_of(call->outputs[k]) : 0;
    for (int k = 0; k < call->n_inputs; k++) {
        double part = call->inputs[k] ? bytes_of(call->inputs[k]) : 0;
        if (k == 0 && picks(call->op->id) && part > bytes)
            part = bytes;
        bytes += part;
    }
    return bytes;
}

void trek_op_cost(const trek_op_call *call, double *flops, double *bytes)
{
    *flops = 2 * multiplications(call);
    *bytes = traffic(call);
}
