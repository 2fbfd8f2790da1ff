/* SPDX-License-Identifier: Apache-2.0 */
/* Functions on a tensor's storage that only C can provide, for kernels. */
#ifndef TREK_TENSOR_CUDA_STORAGE_H
#define TREK_TENSOR_CUDA_STORAGE_H

#include "tensor/tensor_internal.h"

TREK_BEGIN

void trek_cuda_bump(trek_tensor *tensor); /* trek_tensor_bump */

TREK_END

#endif
