/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by cuDNN, which TREK_CUDA_ATTENTION can select. */
#ifndef TREK_TENSOR_CUDA_ATTENTION_DNN_H
#define TREK_TENSOR_CUDA_ATTENTION_DNN_H

#include "tensor/cuda/cuda.h"

TREK_BEGIN

/* Run calls of the ops attention and attention_backward (lse, delta: f32 [B, H, T], contiguous, on the device; delta
 * is scratch memory). They return UNSUPPORTED by trek_cuda_refuse, without any effect, if there is no cuDNN 9 or if
 * it does not support the call: dtypes other than bf16 and f16, a mask, dropout, rows that are not dense or not
 * aligned to 16 bytes, or a shape that no engine supports whose bits are the same in every run. They fail with MEMORY
 * or CUDA. */
trek_status trek_cuda_dnn_attention(const trek_op_call *call, trek_cuda_queue *queue, void *lse);
trek_status trek_cuda_dnn_attention_backward(const trek_op_call *call, trek_cuda_queue *queue, void *lse, void *delta);

TREK_END

#endif
