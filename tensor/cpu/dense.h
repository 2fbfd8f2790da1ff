/* SPDX-License-Identifier: Apache-2.0 */
/* For kernels that are written for contiguous f32 and f64: everything else is converted around them. */
#ifndef TREK_TENSOR_CPU_DENSE_H
#define TREK_TENSOR_CPU_DENSE_H

#include "tensor/op.h"

static inline bool trek_cpu_is_half(const trek_tensor *t)
{
    return trek_dtype_is_16bit((trek_dtype)t->dtype);
}

enum { TREK_CPU_HALF_RESULTS = 1 << 30 };

/* Runs the kernel on copies of the inputs whose bits are set in `inputs`, and on its own outputs. Both are
 * contiguous, with f32 instead of 16 bits, except the inputs whose bits are set in `halves`, and the outputs if it
 * has TREK_CPU_HALF_RESULTS. The results are copied back. */
trek_status trek_cpu_run_dense(const trek_op_call *call, unsigned inputs, unsigned halves, trek_kernel kernel);

/* Does so without copies that are not needed. */
static inline trek_status trek_cpu_dense_halves(const trek_op_call *call, unsigned inputs, unsigned halves, trek_kernel kernel)
{
    bool direct = true;
    for (int k = 0; k < call->n_inputs; k++) {
        const trek_tensor *t = call->inputs[k];
        direct &= !t || !(inputs >> k & 1) || (t->contiguous && (halves >> k & 1 || !trek_cpu_is_half(t)));
    }
    for (int k = 0; k < call->n_outputs; k++) {
        const trek_tensor *t = call->outputs[k];
        direct &= !t || (t->contiguous && (halves & TREK_CPU_HALF_RESULTS || !trek_cpu_is_half(t)));
    }
    return direct ? kernel(call) : trek_cpu_run_dense(call, inputs, halves, kernel);
}

static inline trek_status trek_cpu_dense(const trek_op_call *call, unsigned inputs, trek_kernel kernel)
{
    return trek_cpu_dense_halves(call, inputs, 0, kernel);
}

/* Returns an element of a vector of any integer dtype. */
static inline int64_t trek_cpu_integer(const trek_tensor *t, int64_t offset)
{
    switch (t->dtype) {
    case TREK_I64: return ((const int64_t *)(const void *)t->data)[offset];
    case TREK_I32: return ((const int32_t *)(const void *)t->data)[offset];
    default: return ((const uint8_t *)t->data)[offset];
    }
}

/* Read a vector of any floating dtype and stride as doubles, and write it. */
void trek_cpu_read_vector(const trek_tensor *t, double *to);
void trek_cpu_write_vector(trek_tensor *t, const double *from);

#endif
