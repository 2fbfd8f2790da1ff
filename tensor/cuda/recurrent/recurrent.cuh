/* SPDX-License-Identifier: Apache-2.0 */
/* What the recurrent layers share: sizes, lengths, the product of a step, and states. A step consists of a product
 * and a kernel over the elements of the state; 16-bit products accumulate in f32. */
#ifndef TREK_TENSOR_CUDA_RECURRENT_CUH
#define TREK_TENSOR_CUDA_RECURRENT_CUH

#include "tensor/cuda/dense.cuh"
#include "tensor/cuda/products/blas.h"

#define TRY(call) do { trek_status status_ = (call); if (status_ != TREK_OK) return status_; } while (0)

__device__ __forceinline__ float trek_gate(float x)
{
    float e = expf(-fabsf(x)); /* never overflows */
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}
__device__ __forceinline__ double trek_gate(double x)
{
    double e = exp(-fabs(x));
    return (x < 0 ? e : 1.0) / (1.0 + e);
}
__device__ __forceinline__ float trek_squash(float x) { return tanhf(x); }
__device__ __forceinline__ double trek_squash(double x) { return tanh(x); }

/* The element of the state that a thread handles in the step at time t. */
struct trek_step {
    int64_t t, steps, rows, hidden;
    bool reverse;
    trek_indices lengths; /* x is NULL if all rows have all steps */
    __device__ __forceinline__ bool has(int64_t row) const { return !lengths.x || t < lengths[row]; }
    __device__ __forceinline__ bool begins(int64_t row) const
    {
        return reverse ? t == (lengths.x ? lengths[row] : steps) - 1 : t == 0;
    }
    __device__ __forceinline__ int64_t at(int64_t row) const { return t * rows + row; }
    __device__ __forceinline__ int64_t before(int64_t row) const { return (reverse ? t + 1 : t - 1) * rows + row; }
};

/* Copies `from` (NULL: zeros) to `to` in another dtype. */
template <typename O, typename T> static __global__ void recurrent_copy_kernel(O *to, const T *from, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        to[i] = from ? trek_store<O>::of(trek_get(from[i])) : trek_store<O>::of(0.0f);
}

static __global__ void recurrent_lengths_kernel(trek_indices lengths, int64_t rows, int64_t steps, trek_cuda_fault_record *faults,
                                                int op)
{
    for (int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += (int64_t)gridDim.x * blockDim.x)
        if (lengths[row] < 0 || lengths[row] > steps)
            trek_note_fault(faults, op, TREK_CUDA_FAULT_LENGTH, lengths[row], row, steps);
}

struct trek_recurrence {
    const trek_op_call *call;
    trek_cuda_queue *queue;
    const trek_tensor *weight;
    trek_step step; /* without its time */
    trek_dtype dtype, wide;

    trek_recurrence(const trek_op_call *c, trek_cuda_queue *q, const trek_tensor *sequence, const trek_tensor *w,
                    const trek_tensor *lengths)
        : call(c), queue(q), weight(w), dtype((trek_dtype)w->dtype), wide(w->dtype == TREK_F64 ? TREK_F64 : TREK_F32)
    {
        step = { 0, sequence->sizes[0], sequence->sizes[1], w->sizes[1], c->attrs.i[0] != 0, { NULL, 0, TREK_I64 } };
        if (lengths)
            step.lengths = { lengths->data, lengths->strides[0], lengths->dtype };
    }

    int64_t elements() const { return step.rows * step.hidden; }

    trek_status check_lengths() const
    {
        if (!step.lengths.x || step.rows == 0)
            return TREK_OK;
        return trek_launch(call, queue, trek_loop(step.rows), recurrent_lengths_kernel, step.lengths, step.rows, step.steps,
                           queue->device->faults_device, (int)call->op->id);
    }

    /* Returns the s-th step in forward order. */
    trek_step at(int64_t s) const
    {
        trek_step one = step;
        one.t = step.reverse ? step.steps - 1 - s : s;
        return one;
    }

    template <typename O, typename T> trek_status copy(O *to, const T *from) const
    {
        if (elements() == 0)
            return TREK_OK;
        return trek_launch(call, queue, trek_loop(elements()), recurrent_copy_kernel<O, T>, to, from, elements());
    }

    /* c [rows, gates hidden] = h weight^T */
    trek_status forward(const void *h, void *c) const
    {
        trek_cuda_gemm g = {};
        g.m = step.rows, g.n = weight->sizes[0], g.k = step.hidden;
        g.a = h, g.a_row = step.hidden, g.a_col = 1;
        g.b = weight->data, g.b_row = weight->strides[1], g.b_col = weight->strides[0];
        g.c = c, g.c_row = g.n, g.c_col = 1;
        g.dtype = dtype, g.c_dtype = wide;
        return trek_cuda_gemm_run(call, queue, &g);
    }

    /* dh [rows, hidden] += d weight */
    trek_status backward(const void *d, void *dh) const
    {
        trek_cuda_gemm g = {};
        g.m = step.rows, g.n = step.hidden, g.k = weight->sizes[0];
        g.a = d, g.a_row = g.k, g.a_col = 1;
        g.b = weight->data, g.b_row = weight->strides[0], g.b_col = weight->strides[1];
        g.c = dh, g.c_row = step.hidden, g.c_col = 1;
        g.dtype = dtype, g.c_dtype = wide;
        g.accumulate = true;
        return trek_cuda_gemm_run(call, queue, &g);
    }
};

#endif
