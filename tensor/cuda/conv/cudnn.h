/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions by cuDNN, if it was found at build time and is found at run time. */
#ifndef TREK_TENSOR_CUDA_CONV_CUDNN_H
#define TREK_TENSOR_CUDA_CONV_CUDNN_H

#include "tensor/cuda/cuda.h"

TREK_BEGIN

typedef enum trek_cuda_conv_kind { TREK_CUDA_CONV_FORWARD, TREK_CUDA_CONV_INPUT_GRAD,
                                   TREK_CUDA_CONV_WEIGHT_GRAD } trek_cuda_conv_kind;

/* Runs a convolution of x, weight and y (or their gradients) of one dtype and any strides, by deterministic
 * algorithms, without bias. Returns UNSUPPORTED by trek_cuda_refuse, without any effect, if cuDNN is not available or
 * does not support it. */
trek_status trek_cuda_cudnn_conv(const trek_op_call *call, trek_cuda_queue *queue, trek_cuda_conv_kind kind, const trek_tensor *x,
                                 const trek_tensor *weight, const trek_tensor *y);

TREK_END

#endif
