/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by cuDNN, which TREK_CUDA_ATTENTION asks for. */
#ifndef TREK_TENSOR_CUDA_ATTENTION_DNN_H
#define TREK_TENSOR_CUDA_ATTENTION_DNN_H

#include "tensor/cuda/cuda.h"

TREK_BEGIN

/* The calls of the ops attention and attention_backward (lse, delta: f32 [B, H, T], contiguous, on the device; delta is scratch).
 * UNSUPPORTED by trek_cuda_refuse, with nothing done: there is no cuDNN 9, or it does not take the call: other dtypes than bf16
 * and f16, a mask, dropout, rows that are not dense or lie askew to 16 bytes, or none of its engines whose bits are the same in
 * every run fits the shape. MEMORY, CUDA. */
trek_status trek_cuda_dnn_attention(const trek_op_call *call, trek_cuda_queue *queue, void *lse);
trek_status trek_cuda_dnn_attention_backward(const trek_op_call *call, trek_cuda_queue *queue, void *lse, void *delta);

TREK_END

#endif
