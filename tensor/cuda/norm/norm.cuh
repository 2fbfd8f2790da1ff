/* SPDX-License-Identifier: Apache-2.0 */
/* Layer norm and RMS norm, alone and after a sum, whose kernels differ only slightly. */
#ifndef TREK_TENSOR_CUDA_NORM_NORM_CUH
#define TREK_TENSOR_CUDA_NORM_NORM_CUH

#include "tensor/cuda/dense.cuh"

/* y = (s - mean) rstd weight + bias over rows of n elements, where s is x, or x + residual, which is kept in sum,
 * rounded to x's dtype. For a NULL mean it is the RMS norm, whose mean counts as 0. Everything is contiguous.
 * residual, sum, weight and bias may be NULL; the latter two are replaced by wide_weight and wide_bias, in f32 (f64
 * for F64), if they have another dtype than x. */
typedef struct trek_norm {
    const void *x, *residual, *weight, *bias, *wide_weight, *wide_bias;
    void *y, *sum, *mean, *rstd;
    int64_t rows, n;
    double eps;
} trek_norm;

/* dx (+ added), and the sums over the rows, dweight and dbias (either may be NULL). wide_weight is the weight in f32
 * (f64 for F64) if it has another dtype than x. For a NULL mean it is the RMS norm. */
typedef struct trek_norm_grad {
    const void *dy, *x, *mean, *rstd, *weight, *wide_weight, *added;
    void *dx, *dweight, *dbias;
    int sums_dtype; /* of dweight and dbias */
    int64_t rows, n;
} trek_norm_grad;

trek_status trek_norm_forward(const trek_op_call *call, trek_cuda_queue *queue, trek_dtype dtype, const trek_norm *norm);
trek_status trek_norm_backward(const trek_op_call *call, trek_cuda_queue *queue, trek_dtype dtype, const trek_norm_grad *grad);

inline trek_dtype trek_wide_dtype(int dtype) { return dtype == TREK_F64 ? TREK_F64 : TREK_F32; }

/* Returns the number of elements in the last `dims` dimensions. */
inline int64_t trek_last_dims(const trek_tensor *x, int64_t dims)
{
    int64_t n = 1;
    for (int d = x->ndim - (int)dims; d < x->ndim; d++)
        n *= x->sizes[d];
    return n;
}

#endif
