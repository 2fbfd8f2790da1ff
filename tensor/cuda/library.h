/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries that are opened at run time: cuBLASLt, cuDNN, NCCL. */
#ifndef TREK_TENSOR_CUDA_LIBRARY_H
#define TREK_TENSOR_CUDA_LIBRARY_H

#include "tensor/cuda/cuda.h"

TREK_BEGIN

/* Opens a shared library: the file that the environment variable names, else the names in turn,
 * each also in the toolkit's usual folders. With the fake runtime of the tests: the first only.
 * NULL: why gets the reason. */
void *trek_cuda_open_library(const char *variable, const char *const *names, char *why, size_t size);

/* A function's address by its name, which C does not convert from an object's. False, and *function NULL: it is not there. */
bool trek_cuda_find_function(void *library, const char *name, void *function);

/* "cuBLASLt 13.1.0", or that there is none and why: the library is opened if it has not been. */
void trek_cuda_blas_version(char *text, size_t size);
void trek_cuda_dnn_version(char *text, size_t size);
void trek_cuda_nccl_version(char *text, size_t size);
/* Those of the driver, the runtime and the three, each with "; " before the next. */
void trek_cuda_versions(char *text, size_t size);

TREK_END

#endif
