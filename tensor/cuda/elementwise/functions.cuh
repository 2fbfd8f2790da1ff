/* SPDX-License-Identifier: Apache-2.0 */
/* Elementary functions under one name for f32 and f64, of which several files need some. The long ones are real calls. */
#ifndef TREK_TENSOR_CUDA_ELEMENTWISE_FUNCTIONS_CUH
#define TREK_TENSOR_CUDA_ELEMENTWISE_FUNCTIONS_CUH

#include "tensor/cuda/device.cuh"

/* of_x(float) is inlined, of_x(double) is called */
#define TREK_FUNCTION(name)                                                                            \
    TREK_INLINED float of_##name(float x) { return name##f(x); }                                       \
    TREK_CALLED double of_##name(double x) { return name(x); }
#define TREK_LONG_FUNCTION(name)                                                                       \
    TREK_CALLED float of_##name(float x) { return name##f(x); }                                        \
    TREK_CALLED double of_##name(double x) { return name(x); }
#define TREK_LONG_FUNCTION2(name)                                                                      \
    TREK_CALLED float of_##name(float x, float y) { return name##f(x, y); }                            \
    TREK_CALLED double of_##name(double x, double y) { return name(x, y); }
TREK_FUNCTION(exp)
TREK_FUNCTION(expm1)
TREK_FUNCTION(log)
TREK_FUNCTION(log1p)
TREK_FUNCTION(tanh)
TREK_FUNCTION(normcdf)
TREK_LONG_FUNCTION2(pow)
TREK_LONG_FUNCTION2(atan2)
TREK_LONG_FUNCTION2(fmod)
TREK_LONG_FUNCTION2(hypot)

/* correctly rounded, or exact */
TREK_INLINED float of_sqrt(float x) { return sqrtf(x); }
TREK_INLINED double of_sqrt(double x) { return sqrt(x); }
TREK_INLINED float of_rsqrt(float x) { return rsqrtf(x); }
TREK_INLINED double of_rsqrt(double x) { return 1 / sqrt(x); }
TREK_INLINED float of_abs(float x) { return fabsf(x); }
TREK_INLINED double of_abs(double x) { return fabs(x); }
TREK_INLINED float of_copysign(float x, float y) { return copysignf(x, y); }
TREK_INLINED double of_copysign(double x, double y) { return copysign(x, y); }
TREK_INLINED float of_floor(float x) { return floorf(x); }
TREK_INLINED double of_floor(double x) { return floor(x); }
TREK_INLINED float of_ceil(float x) { return ceilf(x); }
TREK_INLINED double of_ceil(double x) { return ceil(x); }
TREK_INLINED float of_rint(float x) { return rintf(x); }
TREK_INLINED double of_rint(double x) { return rint(x); }
TREK_INLINED float of_trunc(float x) { return truncf(x); }
TREK_INLINED double of_trunc(double x) { return trunc(x); }

/* x / y within 2 ulp, for 2^-126 <= y <= 2^126 */
TREK_INLINED float of_quotient(float x, float y) { return __fdividef(x, y); }
TREK_INLINED double of_quotient(double x, double y) { return x / y; }

/* Never overflows, because it uses the exponential of -|x|. */
template <typename W> TREK_INLINED W of_sigmoid(W x)
{
    W e = of_exp(-of_abs(x));
    return of_quotient(x >= 0 ? (W)1 : x < 0 ? e : x, 1 + e);
}
/* d (x sigmoid(x)) / dx */
template <typename W> TREK_INLINED W of_silu_slope(W x)
{
    W sigmoid = of_sigmoid(x);
    return sigmoid * (1 + x * (1 - sigmoid));
}

#endif
