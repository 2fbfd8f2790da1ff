/* SPDX-License-Identifier: Apache-2.0 */
/* Powers of e of a row's logits minus a shift near the largest, for the sums and gradients of losses.
 *
 *   less(top)      what of() is to add for the largest logit `top`: finite, so that infinite logits give 0 or infinity
 *   of(x, less)    e^(x - shift)
 *   ratio(d)       e^(shift a - shift b) of d = less b - less a
 *   shift(less)    the logit whose power is 1
 *
 * The rounding of 16-bit logits exceeds the error of the unit that computes powers of two, so their power takes one fused
 * multiply-add and one instruction of that unit. The shift is defined by the rounded `less`, so sums lose nothing by it. */
#ifndef TREK_TENSOR_CUDA_REDUCE_POWERS_CUH
#define TREK_TENSOR_CUDA_REDUCE_POWERS_CUH

#include <float.h>

#include "tensor/cuda/approximate.cuh"
#include "tensor/cuda/block.cuh"

#define TREK_LOG2_E 1.44269504f

template <typename L> struct trek_powers {
    typedef L W;
    static __device__ __forceinline__ W less(W top)
    {
        const W most = sizeof(W) == 8 ? (W)DBL_MAX : (W)FLT_MAX;
        return -fmin(fmax(top, -most), most);
    }
    static __device__ __forceinline__ W of(W x, W less) { return trek_exp(x + less); }
    static __device__ __forceinline__ W ratio(W d) { return trek_exp(d); }
    static __device__ __forceinline__ double shift(W less) { return -(double)less; }
};

struct trek_low_powers {
    static __device__ __forceinline__ float less(float top) { return -fminf(fmaxf(top, -0x1p127f), 0x1p127f) * TREK_LOG2_E; }
    static __device__ __forceinline__ float of(float x, float less) { return trek_exp2(trek_fused(x, TREK_LOG2_E, less)); }
    static __device__ __forceinline__ float ratio(float d) { return trek_exp2(d); }
    static __device__ __forceinline__ double shift(float less) { return -(double)less / (double)TREK_LOG2_E; }
};
template <> struct trek_powers<trek_bf16> : trek_low_powers {};
template <> struct trek_powers<trek_f16> : trek_low_powers {};

#endif
