/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the driver, which the runtime provides by their names, so that libcuda is not linked. */
#ifndef TREK_TENSOR_CUDA_DRIVER_H
#define TREK_TENSOR_CUDA_DRIVER_H

#include "tensor/cuda/cuda.h"

TREK_BEGIN

/* Finds a function of the driver's version for CUDA 12.0; *function is the address of a pointer to functions. Returns false, with
 * the pointer NULL, if the runtime or the driver is older or does not have it. */
bool trek_cuda_driver_function(const char *name, void *function);

TREK_END

#endif
