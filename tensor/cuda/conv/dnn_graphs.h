/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions as operation graphs of cuDNN. */
#ifndef TREK_TENSOR_CUDA_CONV_DNN_GRAPHS_H
#define TREK_TENSOR_CUDA_CONV_DNN_GRAPHS_H

#include "tensor/cuda/dnn/graph.h"

#ifdef TREK_HAVE_CUDNN

/* The numbers of the tensors in a run. */
enum trek_dnn_conv_tensor { TREK_DNN_CONV_X = 1, TREK_DNN_CONV_WEIGHT, TREK_DNN_CONV_Y, TREK_DNN_CONV_BIAS,
                            TREK_DNN_CONV_TENSORS };

/* Everything that a graph depends on. It is zeroed before it is filled, because keys are compared by bytes. Sizes of
 * x [N, C, H, W], weight [K, C / groups, R, S] and y [N, K, P, Q], all of one dtype and dense: channels last if
 * `last`, otherwise row-major. numbers: stride, padding, dilation. bias [K] and relu: only in the forward pass.
 * exact: f32 is not rounded to TF32. */
typedef struct trek_dnn_conv_key {
    int64_t x[4], weight[4], y[4], numbers[6];
    int32_t pass, dtype, last, bias, relu, exact, device, zero; /* pass: trek_dnn_pass; device: an index, for the cache */
} trek_dnn_conv_key;

/* Composes the graph: the pass, followed in a forward graph by bias and ReLU, whose intermediate results are not in
 * memory. A failure is stored in the graph. */
void trek_dnn_conv_compose(trek_dnn_graph *graph, const trek_dnn_conv_key *key);

#endif
#endif
