/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/cuda/small.h"

#include "tensor/cuda/device.cuh"

#ifndef TREK_CUDA_ARCHITECTURES
#define TREK_CUDA_ARCHITECTURES "this machine"
#endif

__global__ void probe_kernel(long long *to, long long value) { *to = value; }
__global__ void advance_kernel(unsigned long long *number, unsigned long long steps)
{
    if (threadIdx.x == 0) /* of a whole warp */
        *number += steps;
}

extern "C" cudaError_t trek_cuda_probe(long long *to, long long value, cudaStream_t stream)
{
    return trek_cuda_enqueue("probe", trek_loop(1), stream, probe_kernel, to, value);
}

extern "C" cudaError_t trek_cuda_advance(unsigned long long *number, unsigned long long steps, cudaStream_t stream)
{
    return trek_cuda_enqueue("advance", trek_loop(1), stream, advance_kernel, number, steps);
}

extern "C" const char *trek_cuda_architectures(void) { return TREK_CUDA_ARCHITECTURES; }
