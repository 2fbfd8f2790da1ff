/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of one thread. */
#ifndef TREK_TENSOR_CUDA_SMALL_H
#define TREK_TENSOR_CUDA_SMALL_H

#include <cuda_runtime_api.h>

#include "tensor/common.h"

TREK_BEGIN
/* Writes *to = value, to find out whether a device runs this library's code. */
cudaError_t trek_cuda_probe(long long *to, long long value, cudaStream_t stream);
/* Adds steps to *number. */
cudaError_t trek_cuda_advance(unsigned long long *number, unsigned long long steps, cudaStream_t stream);
const char *trek_cuda_architectures(void); /* the targets of the code: "sm_90 compute_90" */
TREK_END

#endif
