/* SPDX-License-Identifier: Apache-2.0 */
/* Operation graphs of cuDNN 9: tensors of four dimensions, operations between them, and a plan that runs all of them
 * at once. */
#ifndef TREK_TENSOR_CUDA_DNN_GRAPH_H
#define TREK_TENSOR_CUDA_DNN_GRAPH_H

#include "tensor/cuda/dnn/library.h"

#ifdef TREK_HAVE_CUDNN

enum { TREK_DNN_TENSORS = 48, TREK_DNN_OPERATIONS = 32 };

/* Where a tensor is: in memory that a call gives by the tensor's number; nowhere, between two operations; or a number
 * in host memory, which is read when the plan runs. */
typedef enum trek_dnn_place { TREK_DNN_MEMORY, TREK_DNN_BETWEEN, TREK_DNN_NUMBER } trek_dnn_place;

/* Sizes and strides in elements. */
typedef struct trek_dnn_shape {
    int64_t sizes[4], strides[4];
} trek_dnn_shape;

/* Zeroed, filled by the functions below, and freed by trek_dnn_graph_free. The first failure is kept, and later calls
 * do nothing; the failure is reported when the plan is made. */
typedef struct trek_dnn_graph {
    bool failed;
    bool exact; /* set before the plan is made: excludes engines that round f32 to TF32 */
    int n_tensors, n_operations;
    cudnnBackendDescriptor_t tensors[TREK_DNN_TENSORS];
    cudnnBackendDescriptor_t operations[TREK_DNN_OPERATIONS], kinds[TREK_DNN_OPERATIONS];
    cudnnBackendDescriptor_t all, heuristics, config, plan;
    size_t workspace; /* bytes that a run of the plan needs */
    const char *why;  /* why no plan could be made; stays valid */
} trek_dnn_graph;

/* Returns a tensor; NULL after a failure. `number` identifies tensors in memory; others are numbered here (from 1000
 * on). */
cudnnBackendDescriptor_t trek_dnn_tensor(trek_dnn_graph *graph, trek_dnn_place place, int64_t number, cudnnDataType_t type,
                                         const trek_dnn_shape *shape);

/* Adds y = mode(x), or mode(x, b). BINARY_SELECT: y = t ? x : b. GEN_INDEX: y = the index along dimension axis.
 * Computed in `type`. Dimensions of size 1 broadcast; b and t may be NULL. */
void trek_dnn_pointwise(trek_dnn_graph *graph, cudnnPointwiseMode_t mode, cudnnDataType_t type, int64_t axis,
                        cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t t,
                        cudnnBackendDescriptor_t y);
/* Adds c = a b over the last two dimensions, summed in f32. If the second dimension of b is smaller, it repeats. */
void trek_dnn_matmul(trek_dnn_graph *graph, cudnnBackendDescriptor_t a, cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t c);
/* Adds a reduction in f32 over the dimensions that are smaller in y than in x. */
void trek_dnn_reduction(trek_dnn_graph *graph, cudnnReduceTensorOp_t op, cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t y);
/* Adds one of the three passes of a convolution over two dimensions, as cross-correlation, summed in f32: x [N, C, H,
 * W], weight [K, C / groups, R, S], y [N, K, P, Q]; the result is y, x or weight. numbers: stride, padding, dilation,
 * each for rows and columns. */
typedef enum trek_dnn_pass { TREK_DNN_FORWARD, TREK_DNN_OF_INPUT, TREK_DNN_OF_WEIGHT } trek_dnn_pass;
void trek_dnn_convolution(trek_dnn_graph *graph, trek_dnn_pass pass, const int64_t numbers[6], cudnnBackendDescriptor_t x,
                          cudnnBackendDescriptor_t weight, cudnnBackendDescriptor_t y);
/* Adds the same elements with other sizes and strides. */
void trek_dnn_reshape(trek_dnn_graph *graph, cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t y);

/* Chooses the first of the library's engines whose results are the same in every run and which needs at most `limit`
 * bytes of workspace, and makes its plan. device: what to choose for instead of the handle's device (NULL: that
 * device). Returns false if there is none, with the reason in graph->why. */
bool trek_dnn_graph_plan(trek_dnn_graph *graph, cudnnHandle_t handle, cudnnBackendDescriptor_t device, size_t limit);

/* Runs the plan on the handle's stream with addresses of the tensors in memory and of the numbers, by number. */
cudnnStatus_t trek_dnn_graph_run(const trek_dnn_graph *graph, cudnnHandle_t handle, int n, const int64_t *numbers,
                                 void *const *addresses, void *workspace);

void trek_dnn_graph_free(trek_dnn_graph *graph);

#endif
#endif
