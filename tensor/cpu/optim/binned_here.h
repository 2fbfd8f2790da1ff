/* SPDX-License-Identifier: Apache-2.0 */
/* Adding to sums inside a part of parallel work. */
#ifndef TREK_TENSOR_CPU_OPTIM_BINNED_HERE_H
#define TREK_TENSOR_CPU_OPTIM_BINNED_HERE_H

#include "tensor/binned.h"
#include "tensor/cpu/kernels.h"

/* Does what the backend's binned_add does with all blocks, on the calling thread. */
void TREK_ISA_NAME(trek_binned_add_here)(const trek_binned *to, void *const *terms, int n);
/* Does what its binned_read does with all blocks. */
void TREK_ISA_NAME(trek_binned_read_here)(const trek_binned *sum, double factor, void *data);
/* Adds to a block of F32 terms are known to be below 2^(exponent + 1) in size. That mostly tells its bin, so that the largest
 * number has not to be found. With an exponent above 126 nothing is known. */
void TREK_ISA_NAME(trek_binned_add_below)(const trek_binned *to, void *const *terms, int n, int exponent);

#endif
