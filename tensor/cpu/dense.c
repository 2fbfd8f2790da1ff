/* SPDX-License-Identifier: Apache-2.0 */
/* Copies around kernels that need contiguous f32 or f64. */
#include "tensor/cpu/dense.h"

#include "tensor/cpu/kernels.h"

static trek_dtype dense_dtype(const trek_tensor *t, bool half)
{
    return trek_cpu_is_half(t) && !half ? TREK_F32 : (trek_dtype)t->dtype;
}

/* Returns a new reference; to t itself if it is dense. */
static trek_tensor *dense_input(trek_tensor *t, bool half)
{
    if (half || !trek_cpu_is_half(t))
        return trek_tensor_contiguous(t);
    trek_tensor *cast = trek_tensor_cast(t, TREK_F32), *dense = cast ? trek_tensor_contiguous(cast) : NULL;
    trek_tensor_release(cast);
    return dense;
}

static trek_status make_dense(const trek_op_call *call, unsigned inputs, unsigned halves, trek_op_call *dense)
{
    for (int k = 0; k < call->n_inputs; k++) {
        trek_tensor *t = call->inputs[k];
        dense->inputs[k] = t && (inputs >> k & 1) ? dense_input(t, halves >> k & 1) : trek_tensor_retain(t);
        if (t && !dense->inputs[k])
            return trek_error_status();
    }
    for (int k = 0; k < call->n_outputs; k++) {
        trek_tensor *t = call->outputs[k];
        if (!t)
            continue;
        trek_dtype dtype = dense_dtype(t, halves & TREK_CPU_HALF_RESULTS);
        bool fine = t->contiguous && dtype == (trek_dtype)t->dtype;
        dense->outputs[k] = fine ? trek_tensor_retain(t) : trek_tensor_make(t->ndim, t->sizes, dtype, t->device);
        if (!dense->outputs[k])
            return trek_error_status();
    }
    return TREK_OK;
}

trek_status trek_cpu_run_dense(const trek_op_call *call, unsigned inputs, unsigned halves, trek_kernel kernel)
{
    trek_tensor *in[TREK_MAX_FIXED_INPUTS] = { NULL };
    trek_op_call dense = *call;
    dense.inputs = in;
    for (int k = 0; k < TREK_MAX_OUTPUTS; k++)
        dense.outputs[k] = NULL;
    trek_status status = make_dense(call, inputs, halves, &dense);
    if (status == TREK_OK)
        status = kernel(&dense);
    for (int k = 0; k < call->n_outputs; k++) {
        if (status == TREK_OK && dense.outputs[k] != call->outputs[k])
            status = trek_tensor_copy_from(call->outputs[k], dense.outputs[k]);
        trek_tensor_release(dense.outputs[k]);
    }
    for (int k = 0; k < call->n_inputs; k++)
        trek_tensor_release(in[k]);
    return status;
}

void trek_cpu_read_vector(const trek_tensor *t, double *to)
{
    int64_t step = t->ndim > 0 ? t->strides[0] : 0;
    const void *data = t->data;
    for (int64_t i = 0; i < t->numel; i++) {
        switch (t->dtype) {
        case TREK_F32: to[i] = ((const float *)data)[i * step]; break;
        case TREK_F64: to[i] = ((const double *)data)[i * step]; break;
        case TREK_BF16: to[i] = trek_f32_from_bf16(((const uint16_t *)data)[i * step]); break;
        default: to[i] = trek_f32_from_f16(((const uint16_t *)data)[i * step]); break;
        }
    }
}

void trek_cpu_write_vector(trek_tensor *t, const double *from)
{
    int64_t step = t->ndim > 0 ? t->strides[0] : 0;
    void *data = t->data;
    for (int64_t i = 0; i < t->numel; i++) {
        switch (t->dtype) {
        case TREK_F32: ((float *)data)[i * step] = (float)from[i]; break;
        case TREK_F64: ((double *)data)[i * step] = from[i]; break;
        case TREK_BF16: ((uint16_t *)data)[i * step] = trek_bf16_from_f32((float)from[i]); break;
        default: ((uint16_t *)data)[i * step] = trek_f16_from_f32((float)from[i]); break;
        }
    }
}
