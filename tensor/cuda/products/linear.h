/* SPDX-License-Identifier: Apache-2.0 */
/* Passes around products: copies of strided matrices, GELU, sums. */
#ifndef TREK_TENSOR_CUDA_PRODUCTS_LINEAR_H
#define TREK_TENSOR_CUDA_PRODUCTS_LINEAR_H

#include "tensor/cuda/cuda.h"

TREK_BEGIN

/* Copy elements of `size` bytes with any strides to contiguous ones, and back. */
trek_status trek_cuda_pack(const trek_op_call *call, trek_cuda_queue *queue, void *to, const void *from, size_t size, int ndim,
                           const int64_t *sizes, const int64_t *strides);
trek_status trek_cuda_unpack(const trek_op_call *call, trek_cuda_queue *queue, void *to, const void *from, size_t size, int ndim,
                             const int64_t *sizes, const int64_t *strides);
/* Computes to[i] = GELU(from[i]) for n contiguous elements; `to` may be `from`. */
trek_status trek_cuda_gelu(const trek_op_call *call, trek_cuda_queue *queue, trek_dtype dtype, const void *from, void *to,
                           int64_t n);
/* Computes c [m, n] = act(c + bias [n]), with ReLU or no activation; strides in elements, bias NULL: none. For F32,
 * F64, BF16, F16. */
trek_status trek_cuda_add_bias(const trek_op_call *call, trek_cuda_queue *queue, trek_dtype dtype, void *c, int64_t m, int64_t n,
                               int64_t c_row, int64_t c_col, const void *bias, int64_t bias_step, int activation);
/* Runs the op sum (reduce/reduce.cu) for floats: sums input 0 over the dimensions whose bits are set in attribute 0
 * into output 0, which may be f32 if the input has 16 bits. */
trek_status trek_cuda_sum(const trek_op_call *call);

TREK_END

#endif
