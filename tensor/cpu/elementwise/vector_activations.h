/* SPDX-License-Identifier: Apache-2.0 */
/* Activations of f64 in vectors, with their derivatives, from the library's functions. Where one has reached its limit (and
 * where it is NaN) the library's function gets another number: it would leave its vectors for that lane. */
#ifndef TREK_TENSOR_CPU_ELEMENTWISE_VECTOR_ACTIVATIONS_H
#define TREK_TENSOR_CPU_ELEMENTWISE_VECTOR_ACTIVATIONS_H

#include "tensor/cpu/elementwise/vector_library.h"

TREK_LIBRARY(exp, f64, exp)
TREK_LIBRARY(expm1, f64, expm1)
TREK_LIBRARY(log1p, f64, log1p)
TREK_LIBRARY(erfc, f64, erfc)

TREK_WIDE_INLINE trek_wide64 trek_spread_wide64(double x) { return x - (trek_wide64){ 0 }; }
TREK_WIDE_INLINE trek_wide64 trek_choose_wide64(trek_wide64_int which, trek_wide64 a, trek_wide64 b)
{
    return (trek_wide64)(((trek_wide64_int)a & which) | ((trek_wide64_int)b & ~which));
}

/* e^x, 0 from where it is below the least denormal number. */
TREK_WIDE_INLINE trek_wide64 trek_exp_down_wide64(trek_wide64 x)
{
    const trek_wide64 zero = { 0 };
    trek_wide64_int usual = (trek_wide64_int)(x >= -746.0);
    trek_wide64 e = trek_exp_f64_library(trek_choose_wide64(usual, x, zero));
    return trek_choose_wide64(usual, e, trek_choose_wide64((trek_wide64_int)(x < 0.0), zero, x));
}
TREK_WIDE_INLINE trek_wide64 trek_sigmoid_wide64(trek_wide64 x)
{
    const trek_wide64 one = trek_spread_wide64(1.0);
    trek_wide64_int positive = (trek_wide64_int)(x >= 0.0);
    trek_wide64 e = trek_exp_down_wide64((trek_wide64)((trek_wide64_int)x | INT64_MIN));
    return trek_choose_wide64(positive, one, e) / (one + e);
}
TREK_WIDE_INLINE trek_wide64 trek_silu_derivative_wide64(trek_wide64 x)
{
    trek_wide64 s = trek_sigmoid_wide64(x);
    return s * (1.0 + x * (1.0 - s));
}

/* beta s, threshold t: log(1 + e^(s x)) / s, and x where s x > t */
TREK_WIDE_INLINE trek_wide64 trek_softplus_wide64(trek_wide64 x, double s, double t)
{
    trek_wide64 scaled = x * s;
    trek_wide64_int above = (trek_wide64_int)(scaled > t);
    trek_wide64 e = trek_exp_down_wide64(trek_choose_wide64(above, trek_spread_wide64(0.0), scaled));
    return trek_choose_wide64(above, x, trek_log1p_f64_library(e) / s);
}
/* Where the distribution function of x is neither 0 nor 1 for f64. */
TREK_WIDE_INLINE trek_wide64_int trek_undecided_wide64(trek_wide64 x)
{
    return (trek_wide64_int)(x >= -39.0) & (trek_wide64_int)(x <= 9.0);
}
TREK_WIDE_INLINE trek_wide64 trek_gelu_wide64(trek_wide64 x)
{
    trek_wide64_int inside = trek_undecided_wide64(x);
    trek_wide64 c = trek_erfc_f64_library(trek_choose_wide64(inside, x, trek_spread_wide64(0.0)) * -0.70710678118654752440);
    trek_wide64 outside = trek_choose_wide64((trek_wide64_int)(x < 0.0), trek_spread_wide64(-0.0), x);
    return trek_choose_wide64(inside, 0.5 * x * c, outside);
}
TREK_WIDE_INLINE trek_wide64 trek_gelu_derivative_wide64(trek_wide64 x)
{
    trek_wide64_int inside = trek_undecided_wide64(x), high = (trek_wide64_int)(x > 0.0);
    trek_wide64 near = trek_choose_wide64(inside, x, trek_spread_wide64(0.0));
    trek_wide64 density = 0.39894228040143267794 * trek_exp_down_wide64(-0.5 * near * near);
    trek_wide64 slope = 0.5 * trek_erfc_f64_library(near * -0.70710678118654752440) + near * density;
    trek_wide64 outside = trek_choose_wide64(high, trek_spread_wide64(1.0), trek_spread_wide64(0.0));
    outside = trek_choose_wide64((trek_wide64_int)(x == x), outside, x);
    return trek_choose_wide64(inside, slope, outside);
}

#define TREK_GELU_SLOPE (2 * 0.79788456080286535588)
TREK_WIDE_INLINE trek_wide64 trek_gelu_tanh_wide64(trek_wide64 x)
{
    trek_wide64 s = trek_sigmoid_wide64(TREK_GELU_SLOPE * (x + 0.044715 * x * x * x));
    return trek_choose_wide64((trek_wide64_int)(x < -60.0), trek_spread_wide64(-0.0), x * s);
}
TREK_WIDE_INLINE trek_wide64 trek_gelu_tanh_derivative_wide64(trek_wide64 x)
{
    x = trek_choose_wide64((trek_wide64_int)(x < -60.0), trek_spread_wide64(-60.0), x);
    x = trek_choose_wide64((trek_wide64_int)(x > 60.0), trek_spread_wide64(60.0), x);
    trek_wide64 s = trek_sigmoid_wide64(TREK_GELU_SLOPE * (x + 0.044715 * x * x * x));
    return s + x * s * (1.0 - s) * TREK_GELU_SLOPE * (1.0 + 3 * 0.044715 * x * x);
}

#endif
