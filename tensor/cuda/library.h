/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries that are opened at run time: cuBLASLt, cuDNN, NCCL. */
#ifndef TREK_TENSOR_CUDA_LIBRARY_H
#define TREK_TENSOR_CUDA_LIBRARY_H

#include "tensor/cuda/cuda.h"

TREK_BEGIN

/* Opens a shared library: the file that the environment variable names, otherwise each of the names in order, also in
 * the usual folders of the toolkit. With the fake runtime of the tests only the first is tried. Returns NULL on
 * failure; why gets the reason. */
void *trek_cuda_open_library(const char *variable, const char *const *names, char *why, size_t size);

/* Finds a function's address by its name; C does not convert it from an object's address. Returns false, with
 * *function NULL, if it does not exist. */
bool trek_cuda_find_function(void *library, const char *name, void *function);

/* Write e.g. "cuBLASLt 13.1.0", or why it is not available; the library is opened if it has not been. */
void trek_cuda_blas_version(char *text, size_t size);
void trek_cuda_dnn_version(char *text, size_t size);
void trek_cuda_nccl_version(char *text, size_t size);
/* Writes those of the driver, the runtime and the three libraries, separated by "; ". */
void trek_cuda_versions(char *text, size_t size);

TREK_END

#endif
