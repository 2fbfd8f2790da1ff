/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions by operation graphs of cuDNN: for images that are stored channels last, and with activations in the
 * same graph. */
#ifndef TREK_TENSOR_CUDA_CONV_DNN_H
#define TREK_TENSOR_CUDA_CONV_DNN_H

#include "tensor/cuda/conv/cudnn.h"

TREK_BEGIN

/* Runs a convolution of x, weight and y (or their gradients) of one dtype and any strides; operands that are not
 * stored as the graph needs, and the weight, are copied. bias (NULL: none) and relu, only forward, are in the same
 * graph if cuDNN supports it, otherwise in a pass after it. Only engines whose bits are the same in every run are
 * used. Returns UNSUPPORTED by trek_cuda_refuse, without any effect: no cuDNN 9, or it does not support the call;
 * f64; or nothing is channels last and there is no activation, which trek_cuda_cudnn_conv serves. Fails with MEMORY
 * or CUDA. */
trek_status trek_cuda_dnn_conv(const trek_op_call *call, trek_cuda_queue *queue, trek_cuda_conv_kind kind, const trek_tensor *x,
                               const trek_tensor *weight, const trek_tensor *bias, bool relu, const trek_tensor *y);

TREK_END

#endif
