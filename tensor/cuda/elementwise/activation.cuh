/* SPDX-License-Identifier: Apache-2.0 */
/* The activations that a linear applies. */
#ifndef TREK_TENSOR_CUDA_ELEMENTWISE_ACTIVATION_CUH
#define TREK_TENSOR_CUDA_ELEMENTWISE_ACTIVATION_CUH

#include "tensor/cuda/elementwise/gelu.cuh"
#include "tensor/op_opts.h"

/* NaN passes through ReLU. `brief` is for results that are rounded to 16 bits */
template <bool brief, typename W> __device__ __forceinline__ W trek_activate(int activation, W x)
{
    if (activation == TREK_ACTIVATION_RELU)
        return x < (W)0 ? (W)0 : x;
    if (activation == TREK_ACTIVATION_GELU)
        return trek_gelu<brief>(x);
    return x;
}

#endif
