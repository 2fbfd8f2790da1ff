/* SPDX-License-Identifier: Apache-2.0 */
/* GELU, x Phi(x), and its slope, Phi(x) + x phi(x), where Phi is the normal distribution's cumulative function and phi its
 * density. With t = |x|, e = exp(-t^2 / 2) and R(t) = exp(t^2 / 2) Phi(-t), which falls slowly from 1/2, both need one
 * exponential:
 *     x Phi(x) = max(x, 0) - t e R(t),   Phi(x) + x phi(x) = e (R(t) - t / sqrt(2 pi)) for x <= 0, and 1 less that for x > 0.
 * Nothing cancels but where the slope itself is near 0, so the tail is as precise as the rest. f64 asks the library. */
#ifndef TREK_TENSOR_CUDA_ELEMENTWISE_GELU_CUH
#define TREK_TENSOR_CUDA_ELEMENTWISE_GELU_CUH

#include "tensor/cuda/approximate.cuh"
#include "tensor/cuda/block.cuh"
#include "tensor/cuda/elementwise/functions.cuh"

/* |x|, limited to 60, from where e is 0; NaN stays NaN. */
TREK_INLINED float trek_gelu_size(float x)
{
    float t = fabsf(x);
    return t > 60 ? 60.0f : t;
}

/* exp(-t^2 / 2). With `brief`, the relative error is below 2^-16, which is invisible in 16 bits, and results below
 * 2^-126 are 0. */
template <bool brief> TREK_INLINED float trek_gelu_bell(float t)
{
    if (brief)
        return trek_exp2(t * -0.72134752044448170368f * t); /* log2(e) / 2 */
    const float square = t * t, rest = trek_fma(t, t, -square), e = expf(-0.5f * square);
    return trek_fma(e, -0.5f * rest, e);
}

/* R(t), with a relative error of at most 2.2e-7 in f32: u times a polynomial in u = 1 / (1 + 0.35 t), the minimax one
 * for t up to 15, with coefficients rounded to f32 such that R(0) is 1/2. */
TREK_INLINED float trek_gelu_ratio(float t)
{
    const float u = trek_inverse(trek_fma(0.35f, t, 1.0f));
    float r = -0x1.ddd1c4p-6f;
    r = trek_fma(r, u, 0x1.270902p-3f);
    r = trek_fma(r, u, -0x1.060accp-2f);
    r = trek_fma(r, u, 0x1.466f0cp-3f);
    r = trek_fma(r, u, -0x1.7d23c4p-6f);
    r = trek_fma(r, u, 0x1.b06ed4p-4f);
    r = trek_fma(r, u, 0x1.eac3bep-4f);
    r = trek_fma(r, u, 0x1.1e7130p-3f);
    r = trek_fma(r, u, 0x1.1df1c0p-3f);
    return r * u;
}

/* `brief` is for results that are rounded to 16 bits */
template <bool brief> TREK_INLINED float trek_gelu(float x)
{
    const float t = trek_gelu_size(x), below = trek_gelu_bell<brief>(t) * trek_gelu_ratio(t);
    return trek_fma(-t, below, x >= 0 ? x : -0.0f); /* zeros have the sign of x */
}
template <bool brief> TREK_INLINED float trek_gelu_slope(float x)
{
    const float t = trek_gelu_size(x);
    const float below = trek_gelu_bell<brief>(t) * trek_fma(-0.39894228040143267794f, t, trek_gelu_ratio(t));
    return x > 0 ? 1 - below : below;
}

/* Below -60 the results at -60 are used, which are 0, so that infinity times 0 never occurs. */
template <bool> TREK_INLINED double trek_gelu(double x) { return (x < -60 ? -60 : x) * of_normcdf(x); }
template <bool> TREK_INLINED double trek_gelu_slope(double x)
{
    const double inside = x < -60 ? -60 : x > 60 ? 60 : x;
    return of_normcdf(x) + inside * 0.39894228040143267794 * of_exp(-0.5 * inside * inside);
}

#endif
