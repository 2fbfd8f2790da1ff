/* SPDX-License-Identifier: Apache-2.0 */
/* Layer norm (Ba, Kiros and Hinton 2016) and RMS norm (Zhang and Sennrich 2019),
 * forward and backward: what their calls mean to the kernels of norm.cuh. */
#include "tensor/cuda/norm.cuh"

#define TRY(call) do { trek_status status_ = (call); if (status_ != TREK_OK) return status_; } while (0)

static trek_tensor *output_of(const trek_op_call *call, int k) { return k < call->n_outputs ? call->outputs[k] : NULL; }

/* inputs: x, weight, bias (rms: x, weight); outputs: y, mean, rstd (rms: y, rstd) */
static trek_status forward(const trek_op_call *call, bool rms)
{
    const trek_tensor *x = call->inputs[0];
    trek_tensor *rstd = call->outputs[rms ? 1 : 2];
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return TREK_ERR_DEVICE;
    trek_dense in, weight, bias, y, mean, deviation;
    TRY(in.read(call, queue, x));
    TRY(weight.read(call, queue, trek_input_of(call, 1)));
    TRY(bias.read(call, queue, rms ? NULL : trek_input_of(call, 2)));
    TRY(y.write(queue, call->outputs[0]));
    TRY(deviation.write(queue, rstd));
    if (!rms)
        TRY(mean.write(queue, call->outputs[1]));
    trek_norm norm = { in.data, NULL, weight.data, bias.data, y.data, NULL, mean.data, deviation.data, rstd->numel,
                       trek_last_dims(x, call->attrs.i[0]), call->attrs.f[0] };
    TRY(trek_norm_forward(call, queue, (trek_dtype)x->dtype, &norm));
    if (!rms)
        TRY(mean.finish(call, call->outputs[1]));
    TRY(deviation.finish(call, rstd));
    return y.finish(call, call->outputs[0]);
}

/* inputs: grad, x, mean, rstd, weight (rms: no mean); outputs: dx, dweight, dbias (rms: no dbias) */
static trek_status backward(const trek_op_call *call, bool rms)
{
    const trek_tensor *x = call->inputs[1], *rstd = call->inputs[rms ? 2 : 3], *w = trek_input_of(call, rms ? 3 : 4);
    trek_tensor *out[3] = { call->outputs[0], w ? output_of(call, 1) : NULL, rms ? NULL : output_of(call, 2) };
    trek_dtype dtype = (trek_dtype)x->dtype, wide = trek_wide_dtype(dtype);
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return TREK_ERR_DEVICE;
    trek_dense dy, in, weight, to[3];
    trek_converted mean, deviation, converted;
    TRY(dy.read(call, queue, call->inputs[0]));
    TRY(in.read(call, queue, x));
    TRY(mean.read(call, queue, rms ? NULL : call->inputs[2], wide));
    TRY(deviation.read(call, queue, rstd, wide));
    if (w && w->dtype == dtype)
        TRY(weight.read(call, queue, w));
    else
        TRY(converted.read(call, queue, w, wide));
    for (int k = 0; k < 3; k++)
        if (out[k])
            TRY(to[k].write(queue, out[k]));
    trek_norm_grad grad = { dy.data, in.data, mean.data, deviation.data, weight.data, converted.data, NULL, to[0].data, to[1].data,
                            to[2].data, w ? (int)w->dtype : (int)dtype, rstd->numel, trek_last_dims(x, call->attrs.i[0]) };
    TRY(trek_norm_backward(call, queue, dtype, &grad));
    for (int k = 0; k < 3; k++)
        if (out[k])
            TRY(to[k].finish(call, out[k]));
    return TREK_OK;
}

static trek_status layer_norm(const trek_op_call *call) { return forward(call, false); }
static trek_status layer_norm_backward(const trek_op_call *call) { return backward(call, false); }
static trek_status rms_norm(const trek_op_call *call) { return forward(call, true); }
static trek_status rms_norm_backward(const trek_op_call *call) { return backward(call, true); }

extern "C" void trek_cuda_register_layer_norm(trek_backend *b)
{
    static const trek_dtype floats[] = { TREK_F32, TREK_F64, TREK_BF16, TREK_F16 };
    for (trek_dtype dtype : floats) {
        b->kernels[TREK_OP_layer_norm][dtype] = layer_norm;
        b->kernels[TREK_OP_layer_norm_backward][dtype] = layer_norm_backward;
        b->kernels[TREK_OP_rms_norm][dtype] = rms_norm;
        b->kernels[TREK_OP_rms_norm_backward][dtype] = rms_norm_backward;
    }
}
