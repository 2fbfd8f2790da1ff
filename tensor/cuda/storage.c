/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/cuda/storage.h"

void trek_cuda_bump(trek_tensor *tensor) { trek_tensor_bump(tensor); }
