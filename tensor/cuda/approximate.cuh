/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that a GPU approximates with one instruction (results and arguments below 2^-126 count as 0), and the
 * fused multiply-add. */
#ifndef TREK_TENSOR_CUDA_APPROXIMATE_CUH
#define TREK_TENSOR_CUDA_APPROXIMATE_CUH

#include "tensor/cuda/device.cuh"

#ifdef TREK_FAKE_CUDA
inline float trek_exp2(float x) { return exp2f(x); }
inline float trek_inverse(float x) { return 1 / x; }
inline float trek_fused(float a, float b, float c) { return a * b + c; }
#else
/* 2^x with a relative error of 2^-22 */
__device__ __forceinline__ float trek_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* 1 / x within 1 ulp */
__device__ __forceinline__ float trek_inverse(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* a b + c, rounded once */
__device__ __forceinline__ float trek_fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
#endif

#endif
