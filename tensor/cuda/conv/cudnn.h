/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions by cuDNN, where it was found when this was built and when it runs. */
#ifndef TREK_TENSOR_CUDA_CONV_CUDNN_H
#define TREK_TENSOR_CUDA_CONV_CUDNN_H

#include "tensor/cuda/cuda.h"

TREK_BEGIN

typedef enum trek_cuda_conv_kind { TREK_CUDA_CONV_FORWARD, TREK_CUDA_CONV_INPUT_GRAD,
                                   TREK_CUDA_CONV_WEIGHT_GRAD } trek_cuda_conv_kind;

/* x, weight and y (or their gradients), of one dtype, any strides. Deterministic algorithms only; no bias.
 * UNSUPPORTED by trek_cuda_refuse, with nothing done, where cuDNN is not there or does not take it. */
trek_status trek_cuda_cudnn_conv(const trek_op_call *call, trek_cuda_queue *queue, trek_cuda_conv_kind kind, const trek_tensor *x,
                                 const trek_tensor *weight, const trek_tensor *y);

TREK_END

#endif
