/* SPDX-License-Identifier: Apache-2.0 */
/* Counts which way has served a call if there are several, and reports it once for each shape. For C and C++.
 *
 * A function that does not support a call returns trek_cuda_refuse(why). Code that asks one way after the other
 * counts those that refused (trek_cuda_path_refused) and the one that served the call (trek_cuda_path_served). For a
 * shape that it meets for the first time, the second logs at TREK_LOG=info, together with what was refused to this
 * thread since trek_cuda_path_begin or the last call that was served. */
#ifndef TREK_TENSOR_CUDA_PATHS_H
#define TREK_TENSOR_CUDA_PATHS_H

#include "tensor/cuda/cuda.h"

TREK_BEGIN

/* X(NAME, what, path): the rows of trek_device_paths, in the order in which ways are asked. */
#define TREK_CUDA_PATHS(X) \
    X(ATTENTION_CUDNN, "attention", "cudnn") \
    X(ATTENTION_WGMMA, "attention", "wgmma") \
    X(ATTENTION_MMA, "attention", "mma") \
    X(ATTENTION_SIMPLE, "attention", "simple") \
    X(ATTENTION_BACKWARD_CUDNN, "attention_backward", "cudnn") \
    X(ATTENTION_BACKWARD_WGMMA, "attention_backward", "wgmma") \
    X(ATTENTION_BACKWARD_MMA, "attention_backward", "mma") \
    X(ATTENTION_BACKWARD_SIMPLE, "attention_backward", "simple") \
    X(MATMUL_CUBLASLT, "matmul", "cublaslt") \
    X(MATMUL_OWN, "matmul", "own") \
    X(MATMUL_FP8_CUBLASLT, "matmul_fp8", "cublaslt") \
    X(MATMUL_FP8_OWN, "matmul_fp8", "own") /* from 16-bit copies of the operands, as a matmul */ \
    X(CONV2D_CUDNN, "conv2d", "cudnn") \
    X(CONV2D_CUDNN_CALL, "conv2d", "cudnn_call") \
    X(CONV2D_OWN, "conv2d", "own") \
    X(CONV2D_BACKWARD_CUDNN, "conv2d_backward", "cudnn") \
    X(CONV2D_BACKWARD_CUDNN_CALL, "conv2d_backward", "cudnn_call") \
    X(CONV2D_BACKWARD_OWN, "conv2d_backward", "own") \
    X(CONV_TRANSPOSE2D_CUDNN, "conv_transpose2d", "cudnn") \
    X(CONV_TRANSPOSE2D_CUDNN_CALL, "conv_transpose2d", "cudnn_call") \
    X(CONV_TRANSPOSE2D_OWN, "conv_transpose2d", "own")

typedef enum trek_cuda_path {
#define TREK_CUDA_PATH_ENUM(NAME, what, path) TREK_CUDA_PATH_##NAME,
    TREK_CUDA_PATHS(TREK_CUDA_PATH_ENUM)
#undef TREK_CUDA_PATH_ENUM
    TREK_CUDA_PATHS_COUNT
} trek_cuda_path;

/* A shape for the log: numbers with their names, separated by blanks ("batch heads"). */
typedef struct trek_cuda_path_shape {
    const char *names;
    trek_dtype dtype;
    int64_t numbers[12];
} trek_cuda_path_shape;

/* Returns UNSUPPORTED without a message. The thread remembers why, which must stay valid for ever and must not be
 * NULL. */
trek_status trek_cuda_refuse(const char *why);
/* Does so and returns false. */
bool trek_cuda_refuse_it(const char *why);
/* Returns the thread's last reason, until it is counted; never NULL. */
const char *trek_cuda_last_refusal(void);

/* Begins a call: what was refused to this thread before, in a call that failed, does not belong to it. */
void trek_cuda_path_begin(void);
/* Notes that the way did not support the call, for the thread's last reason. */
void trek_cuda_path_refused(const trek_cuda_queue *queue, trek_cuda_path path);
void trek_cuda_path_served(const trek_cuda_queue *queue, trek_cuda_path path, const trek_cuda_path_shape *shape);

/* For the backend's table. */
int trek_cuda_paths(int index, trek_device_path *paths, int capacity);
void trek_cuda_paths_reset(int index);

TREK_END

#endif
