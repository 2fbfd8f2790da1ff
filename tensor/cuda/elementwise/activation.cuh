/* SPDX-License-Identifier: Apache-2.0 */
/* The activations that a linear applies. */
#ifndef TREK_TENSOR_CUDA_ELEMENTWISE_ACTIVATION_CUH
#define TREK_TENSOR_CUDA_ELEMENTWISE_ACTIVATION_CUH

#include "tensor/cuda/device.cuh"
#include "tensor/op_opts.h"

__device__ __forceinline__ float trek_gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752440f)); }
__device__ __forceinline__ double trek_gelu(double x) { return 0.5 * x * (1.0 + erf(x * 0.70710678118654752440)); }

/* NaN passes through ReLU. */
template <typename W> __device__ __forceinline__ W trek_activate(int activation, W x)
{
    if (activation == TREK_ACTIVATION_RELU)
        return x < (W)0 ? (W)0 : x;
    if (activation == TREK_ACTIVATION_GELU)
        return (W)trek_gelu(x);
    return x;
}

#endif
