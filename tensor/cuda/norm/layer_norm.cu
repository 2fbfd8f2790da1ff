/* SPDX-License-Identifier: Apache-2.0 */
/* Layer norm (Ba, Kiros and Hinton 2016), alone and after a sum, and RMS norm (Zhang and Sennrich 2019), forward and
 * backward: maps their calls to the kernels of norm.cuh. */
#include "tensor/cuda/norm/norm.cuh"

/* The indices of a row's inputs and outputs; -1: it has none. */
struct norm_places {
    int x, branch, weight, bias, y, residual, mean, rstd;
};
static const norm_places layer_places = { 0, -1, 1, 2, 0, -1, 1, 2 }, rms_places = { 0, -1, 1, -1, 0, -1, -1, 1 },
                         add_places = { 0, 1, 2, 3, 0, 1, 2, 3 };

struct grad_places {
    int grad, stream, x, mean, rstd, weight, dbias; /* dx and dweight are outputs 0 and 1 */
};
static const grad_places layer_grads = { 0, -1, 1, 2, 3, 4, 2 }, rms_grads = { 0, -1, 1, -1, 2, 3, -1 },
                         add_grads = { 0, 1, 2, 3, 4, 5, 2 };

static const trek_tensor *input_at(const trek_op_call *call, int k) { return k < 0 ? NULL : trek_input_of(call, k); }
static trek_tensor *output_at(const trek_op_call *call, int k) { return k >= 0 && k < call->n_outputs ? call->outputs[k] : NULL; }

/* A weight or bias: unchanged if it has the input's dtype, otherwise wide. */
struct norm_parameter {
    trek_dense same;
    trek_converted wide;
    trek_status read(const trek_op_call *call, trek_cuda_queue *queue, const trek_tensor *t, trek_dtype dtype)
    {
        return t && t->dtype != dtype ? wide.read(call, queue, t, trek_wide_dtype(dtype)) : same.read(call, queue, t);
    }
};

static trek_status forward(const trek_op_call *call, const norm_places &at)
{
    const trek_tensor *x = call->inputs[at.x];
    trek_tensor *out[4] = { output_at(call, at.y), output_at(call, at.residual), output_at(call, at.mean),
                            output_at(call, at.rstd) };
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return TREK_ERR_DEVICE;
    trek_dense in, branch, to[4];
    norm_parameter weight, bias;
    TRY(in.read(call, queue, x));
    TRY(branch.read(call, queue, input_at(call, at.branch)));
    TRY(weight.read(call, queue, input_at(call, at.weight), (trek_dtype)x->dtype));
    TRY(bias.read(call, queue, input_at(call, at.bias), (trek_dtype)x->dtype));
    for (int k = 0; k < 4; k++)
        if (out[k])
            TRY(to[k].write(queue, out[k]));
    trek_norm norm = { in.data, branch.data, weight.same.data, bias.same.data, weight.wide.data, bias.wide.data,
                       to[0].data, to[1].data, to[2].data, to[3].data, out[3]->numel,
                       trek_last_dims(x, call->attrs.i[0]), call->attrs.f[0] };
    TRY(trek_norm_forward(call, queue, (trek_dtype)x->dtype, &norm));
    for (int k = 0; k < 4; k++)
        if (out[k])
            TRY(to[k].finish(call, out[k]));
    return TREK_OK;
}

static trek_status backward(const trek_op_call *call, const grad_places &at)
{
    const trek_tensor *x = call->inputs[at.x], *rstd = call->inputs[at.rstd], *w = input_at(call, at.weight);
    trek_tensor *out[3] = { call->outputs[0], w ? output_at(call, 1) : NULL, output_at(call, at.dbias) };
    trek_dtype dtype = (trek_dtype)x->dtype, wide = trek_wide_dtype(dtype);
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return TREK_ERR_DEVICE;
    trek_dense dy, stream, in, to[3];
    trek_converted mean, deviation;
    norm_parameter weight;
    TRY(dy.read(call, queue, call->inputs[at.grad]));
    TRY(stream.read(call, queue, input_at(call, at.stream)));
    TRY(in.read(call, queue, x));
    TRY(mean.read(call, queue, input_at(call, at.mean), wide));
    TRY(deviation.read(call, queue, rstd, wide));
    TRY(weight.read(call, queue, w, dtype));
    for (int k = 0; k < 3; k++)
        if (out[k])
            TRY(to[k].write(queue, out[k]));
    trek_norm_grad grad = { dy.data, in.data, mean.data, deviation.data, weight.same.data, weight.wide.data, stream.data,
                            to[0].data,
                            to[1].data, to[2].data, w ? (int)w->dtype : (int)wide, rstd->numel,
                            trek_last_dims(x, call->attrs.i[0]) };
    TRY(trek_norm_backward(call, queue, dtype, &grad));
    for (int k = 0; k < 3; k++)
        if (out[k])
            TRY(to[k].finish(call, out[k]));
    return TREK_OK;
}

static trek_status layer_norm(const trek_op_call *call) { return forward(call, layer_places); }
static trek_status layer_norm_backward(const trek_op_call *call) { return backward(call, layer_grads); }
static trek_status rms_norm(const trek_op_call *call) { return forward(call, rms_places); }
static trek_status rms_norm_backward(const trek_op_call *call) { return backward(call, rms_grads); }
static trek_status add_layer_norm(const trek_op_call *call) { return forward(call, add_places); }
static trek_status add_layer_norm_backward(const trek_op_call *call) { return backward(call, add_grads); }

extern "C" void trek_cuda_register_layer_norm(trek_backend *b)
{
    static const trek_dtype floats[] = { TREK_F32, TREK_F64, TREK_BF16, TREK_F16 };
    for (trek_dtype dtype : floats) {
        b->kernels[TREK_OP_layer_norm][dtype] = layer_norm;
        b->kernels[TREK_OP_layer_norm_backward][dtype] = layer_norm_backward;
        b->kernels[TREK_OP_rms_norm][dtype] = rms_norm;
        b->kernels[TREK_OP_rms_norm_backward][dtype] = rms_norm_backward;
        b->kernels[TREK_OP_add_layer_norm][dtype] = add_layer_norm;
        b->kernels[TREK_OP_add_layer_norm_backward][dtype] = add_layer_norm_backward;
    }
}
