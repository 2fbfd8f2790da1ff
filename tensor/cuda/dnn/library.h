/* SPDX-License-Identifier: Apache-2.0 */
/* cuDNN: opened at run time, and each queue's handle of it. */
#ifndef TREK_TENSOR_CUDA_DNN_LIBRARY_H
#define TREK_TENSOR_CUDA_DNN_LIBRARY_H

#include "tensor/cuda/cuda.h"

#ifdef TREK_HAVE_CUDNN
#include <cudnn.h>

#define TREK_DNN_FUNCTIONS(X)                                                  \
    X(Create)                                                                  \
    X(SetStream)                                                               \
    X(GetVersion)                                                              \
    X(BackendCreateDescriptor)                                                 \
    X(BackendDestroyDescriptor)                                                \
    X(BackendSetAttribute)                                                     \
    X(BackendGetAttribute)                                                     \
    X(BackendFinalize)                                                         \
    X(BackendExecute)

typedef struct trek_dnn_library {
    bool there;
    void *library; /* for what else a file wants of it */
    char why[300]; /* it is not there */
#define TREK_DNN_DECLARE(name) __typeof__(cudnn##name) *name;
    TREK_DNN_FUNCTIONS(TREK_DNN_DECLARE)
#undef TREK_DNN_DECLARE
} trek_dnn_library;

/* A queue's own: the handle, and what users of it keep there. */
typedef struct trek_dnn_queue {
    cudnnHandle_t handle;
    bool broken;
    void *convolutions; /* conv/cudnn.c */
    void *plans;        /* dnn/plans.c */
} trek_dnn_queue;

/* The library, opened at the first call; there is false where it could not be. */
const trek_dnn_library *trek_dnn(void);

/* NULL: no library, no handle, or a capture is under way and the queue has none yet (making one takes memory in ways that a
 * capture does not allow). Without an error; a handle that cannot be made is a warning, once. */
trek_dnn_queue *trek_dnn_queue_of(trek_cuda_queue *queue);
/* UNSUPPORTED by trek_cuda_refuse: why trek_dnn_queue_of gave NULL. */
trek_status trek_dnn_refuse(const trek_cuda_queue *queue);

static inline bool trek_dnn_fine(cudnnStatus_t status) { return status == CUDNN_STATUS_SUCCESS; }

#endif
#endif
