/* SPDX-License-Identifier: Apache-2.0 */
/* Which way served a call, where there are several: counted, and told once for each shape. C and C++.
 *
 * A function that does not take a call returns trek_cuda_refuse(why). Whoever asks one after the other counts what was refused
 * (trek_cuda_path_refused) and what served the call (trek_cuda_path_served); the second tells at TREK_LOG=info of a shape that it
 * meets for the first time, with what this thread was refused since trek_cuda_path_begin or the last call that was served. */
#ifndef TREK_TENSOR_CUDA_PATHS_H
#define TREK_TENSOR_CUDA_PATHS_H

#include "tensor/cuda/cuda.h"

TREK_BEGIN

/* X(NAME, what, path): the rows of trek_device_paths, in the order in which ways are asked */
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

/* What a shape is for the log: numbers with their names, separated by blanks ("batch heads"). */
typedef struct trek_cuda_path_shape {
    const char *names;
    trek_dtype dtype;
    int64_t numbers[12];
} trek_cuda_path_shape;

/* UNSUPPORTED, without a message; the thread remembers why, which stays valid for good and is not NULL. */
trek_status trek_cuda_refuse(const char *why);
/* The same where a bool is returned: false. */
bool trek_cuda_refuse_it(const char *why);
/* The thread's last reason, until it is counted; never NULL. */
const char *trek_cuda_last_refusal(void);

/* A call begins: what this thread was refused before, in one that failed, is no part of it. */
void trek_cuda_path_begin(void);
/* The way did not take the call, for the thread's last reason. */
void trek_cuda_path_refused(const trek_cuda_queue *queue, trek_cuda_path path);
void trek_cuda_path_served(const trek_cuda_queue *queue, trek_cuda_path path, const trek_cuda_path_shape *shape);

/* For the backend's table. */
int trek_cuda_paths(int index, trek_device_path *paths, int capacity);
void trek_cuda_paths_reset(int index);

TREK_END

#endif
