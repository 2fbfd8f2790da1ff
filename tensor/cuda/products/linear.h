/* SPDX-License-Identifier: Apache-2.0 */
/* Passes around products: copies of strided matrices, GELU, sums. */
#ifndef TREK_TENSOR_CUDA_PRODUCTS_LINEAR_H
#define TREK_TENSOR_CUDA_PRODUCTS_LINEAR_H

#include "tensor/cuda/cuda.h"

TREK_BEGIN

/* Elements of `size` bytes, any strides, to contiguous ones; and back. */
trek_status trek_cuda_pack(const trek_op_call *call, trek_cuda_queue *queue, void *to, const void *from, size_t size, int ndim,
                           const int64_t *sizes, const int64_t *strides);
trek_status trek_cuda_unpack(const trek_op_call *call, trek_cuda_queue *queue, void *to, const void *from, size_t size, int ndim,
                             const int64_t *sizes, const int64_t *strides);
/* to[i] = GELU(from[i]) of n contiguous elements; may be the same ones. */
trek_status trek_cuda_gelu(const trek_op_call *call, trek_cuda_queue *queue, trek_dtype dtype, const void *from, void *to,
                           int64_t n);
/* c [m, n] = act(c + bias [n]), ReLU or none; strides in elements, bias NULL: none. F32, F64, BF16, F16. */
trek_status trek_cuda_add_bias(const trek_op_call *call, trek_cuda_queue *queue, trek_dtype dtype, void *c, int64_t m, int64_t n,
                               int64_t c_row, int64_t c_col, const void *bias, int64_t bias_step, int activation);
/* The op sum (reduce/reduce.cu), of floats: input 0 over the dimensions that are bits of attribute 0 into output 0,
 * which may be f32 where the input has 16 bits. */
trek_status trek_cuda_sum(const trek_op_call *call);

TREK_END

#endif
