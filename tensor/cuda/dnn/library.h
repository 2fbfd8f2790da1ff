/* SPDX-License-Identifier: Apache-2.0 */
/* cuDNN: opened at run time, with a handle for each queue. */
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
    void *library; /* for further symbols that a file needs */
    char why[300]; /* why it is not available */
#define TREK_DNN_DECLARE(name) __typeof__(cudnn##name) *name;
    TREK_DNN_FUNCTIONS(TREK_DNN_DECLARE)
#undef TREK_DNN_DECLARE
} trek_dnn_library;

/* The data of a queue: the handle, and what users of it keep there. */
typedef struct trek_dnn_queue {
    cudnnHandle_t handle;
    bool broken;
    void *convolutions; /* conv/cudnn.c */
    void *plans;        /* dnn/plans.c */
} trek_dnn_queue;

/* Returns the library, which is opened at the first call; `there` is false if it could not be opened. */
const trek_dnn_library *trek_dnn(void);

/* Returns NULL, without an error, if there is no library or no handle, or if a capture is running and the queue has
 * no handle yet (making one uses memory in ways that a capture does not allow). A handle that cannot be made causes
 * one warning. */
trek_dnn_queue *trek_dnn_queue_of(trek_cuda_queue *queue);
/* Returns UNSUPPORTED by trek_cuda_refuse, with the reason why trek_dnn_queue_of has returned NULL. */
trek_status trek_dnn_refuse(const trek_cuda_queue *queue);

static inline bool trek_dnn_fine(cudnnStatus_t status) { return status == CUDNN_STATUS_SUCCESS; }

#endif
#endif
