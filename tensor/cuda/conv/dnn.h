/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions by operation graphs of cuDNN: what lies channels last, and activations in the same graph. */
#ifndef TREK_TENSOR_CUDA_CONV_DNN_H
#define TREK_TENSOR_CUDA_CONV_DNN_H

#include "tensor/cuda/conv/cudnn.h"

TREK_BEGIN

/* x, weight and y (or their gradients) of one dtype, any strides: what does not lie as the graph has it is copied, the weight
 * that is. bias (NULL: none) and relu: forward alone, in the same graph where cuDNN takes it so, else behind it. Engines whose
 * bits are the same in every run alone. UNSUPPORTED by trek_cuda_refuse, with nothing done: no cuDNN 9, or it does not take
 * it; f64; nothing lies channels last and there is no activation, which trek_cuda_cudnn_conv takes. MEMORY, CUDA. */
trek_status trek_cuda_dnn_conv(const trek_op_call *call, trek_cuda_queue *queue, trek_cuda_conv_kind kind, const trek_tensor *x,
                               const trek_tensor *weight, const trek_tensor *bias, bool relu, const trek_tensor *y);

TREK_END

#endif
