/* SPDX-License-Identifier: Apache-2.0 */
/* Activations of f64 in vectors, with their derivatives, by the library's functions. For a lane in which the result
 * has reached its limit, or is NaN, the library's function gets another number, because it would otherwise leave its
 * vectors for that lane. */
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

/* Computes e^x; 0 below the smallest denormal number. */
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

/* With beta s and threshold t: log(1 + e^(s x)) / s, and x if s x > t. */
TREK_WIDE_INLINE trek_wide64 trek_softplus_wide64(trek_wide64 x, double s, double t)
{
    trek_wide64 scaled = x * s;
    trek_wide64_int above = (trek_wide64_int)(scaled > t);
    trek_wide64 e = trek_exp_down_wide64(trek_choose_wide64(above, trek_spread_wide64(0.0), scaled));
    return trek_choose_wide64(above, x, trek_log1p_f64_library(e) / s);
}
/* Returns where the distribution function of x is neither 0 nor 1 in f64. */
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

/* --- erf's relatives ------------------------------------------------------------------------------- */

TREK_LIBRARY(log, f64, log)

/* Evaluates a polynomial in t, the highest power first. */
TREK_WIDE_INLINE trek_wide64 trek_polynomial_wide64(trek_wide64 t, const double *factors, int count)
{
    trek_wide64 p = trek_spread_wide64(factors[0]);
#pragma GCC unroll 32
    for (int k = 1; k < count; k++)
        p = trek_fma_wide64(p, t, trek_spread_wide64(factors[k]));
    return p;
}

TREK_WIDE_INLINE trek_wide64 trek_erfc_wide64(trek_wide64 x)
{
    trek_wide64_int low = (trek_wide64_int)(x < -6.0), high = (trek_wide64_int)(x > 27.3);
    trek_wide64 near = trek_choose_wide64(low | high, trek_spread_wide64(0.0), x);
    trek_wide64 outside = trek_choose_wide64(low, trek_spread_wide64(2.0), trek_spread_wide64(0.0));
    return trek_choose_wide64(low | high, outside, trek_erfc_f64_library(near));
}

/* Computes e^(-x^2), with the square in two parts, so that large ones keep their last bits. */
TREK_WIDE_INLINE trek_wide64 trek_exp_minus_square_wide64(trek_wide64 x)
{
    trek_wide64 high = (trek_wide64)((trek_wide64_int)x & ~(trek_wide64_int){ 0 } << 27), d = (high - x) * (high + x);
    trek_wide64 rest = 1.0 + d * (1.0 + d * (0.5 + d * (1.0 / 6)));
    trek_wide64_int far = (trek_wide64_int)(high > 30.0) | (trek_wide64_int)(high < -30.0);
    trek_wide64 e = trek_exp_down_wide64(-high * high) * rest;
    return trek_choose_wide64(far, trek_spread_wide64(0.0), e);
}

/* The inverse of erf by w = -log(1 - x^2): it is almost x times a linear function of w, and for large w almost the
 * square root (Giles 2012, Approximating the erfinv function). The polynomials are Chebyshev fits of the factor of x,
 * and of the factor of the root: by w below 6.25, by its root up to 16, and beyond. Errors are below 2 ulp. */
TREK_WIDE_INLINE trek_wide64 trek_erfinv_wide64(trek_wide64 x)
{
    static const double near[] = { 0x1.e224c214abfdbp-69, -0x1.412b6a8301ca7p-70, -0x1.99d89457b891cp-62,
        0x1.529eb98cb29b2p-60, 0x1.1e090f3d5e90ap-56, -0x1.2c00e9fc690eep-53, -0x1.6acd58ca44a99p-55, 0x1.db42e07e32641p-48,
        -0x1.687942fc24e4ep-45, -0x1.6d96f199e9858p-44, 0x1.7236d69ee8f58p-39, -0x1.c895b6c6c134fp-37,
        -0x1.dc3f4cb98eb94p-35, 0x1.20f4e8e6b89f0p-30, -0x1.1a9eafdff84c7p-28, -0x1.f36ce4f6d776bp-26, 0x1.c6b4f885bf71fp-22,
        -0x1.6e8a53efa3fbbp-20, -0x1.d1d1f7c9fa504p-17, 0x1.879c2a20d8867p-13, -0x1.8457694835a5fp-11, -0x1.8b6c33114ee78p-8,
        0x1.ebd80d9b13dfap-3, 0x1.4eabcf9335d0cp-1 };
    static const double far[] = { 0x1.64cf3bd31c45dp-30, -0x1.14cae30b64d83p-30, -0x1.2c4e07ede0588p-27,
        0x1.b55bec5e16d56p-26, -0x1.367fcd422badfp-26, -0x1.9e0e056842c2fp-24, 0x1.aad5284488584p-22, -0x1.4c8b76ade83fbp-21,
        -0x1.f3003c918aa07p-22, 0x1.5511580de06a3p-18, -0x1.cf500323f65c4p-17, 0x1.1e7791f35139fp-16, 0x1.9516890d4dfc1p-16,
        -0x1.d19a56cdf3f63p-13, 0x1.c0cddfd240c53p-11, -0x1.4096906de2c26p-9, 0x1.30e9d719ba23bp-8, 0x1.68ca8555d9561p-8,
        -0x1.5448b18ae5958p-3 };
    static const double end[] = { -0x1.c9f20db22b74fp-38, 0x1.8a2ae1eb440afp-36, -0x1.2445f4185f010p-35,
        0x1.39e65e248459cp-35, 0x1.1a245bcf5494ap-34, -0x1.0fa132c40308ap-30, 0x1.bdfa83fec021cp-28, -0x1.343e2b507ad90p-25,
        0x1.8f54078ff5007p-23, -0x1.ee30d7f540aa8p-21, 0x1.22c4e058134fcp-18, -0x1.3ec27f1263d0ep-16, 0x1.3490f8e138951p-14,
        -0x1.b342a25855a00p-13, -0x1.4425eea2939dap-13, 0x1.514909d6d8cfap-7, -0x1.32dd4f40ad626p-3 };
    const trek_wide64_int sign = (trek_wide64_int)trek_spread_wide64(-0.0);
    trek_wide64 a = (trek_wide64)((trek_wide64_int)x & ~sign);
    trek_wide64_int inside = (trek_wide64_int)(a < 1.0);
    trek_wide64 safe = trek_choose_wide64(inside, a, trek_spread_wide64(0.5)); /* the library remains in its vectors */
    trek_wide64 w = -trek_log_f64_library((1.0 - safe) * (1.0 + safe));
    trek_wide64 p = trek_polynomial_wide64(w - 3.125, near, 24), size = trek_fma_wide64(p, a, a);
    trek_wide64_int beyond = (trek_wide64_int)(w >= 6.25);
    if (trek_any_wide64(beyond)) {
        trek_wide64 root = trek_sqrt_wide64(w), q = trek_polynomial_wide64(root - 3.25, far, 19);
        trek_wide64 r = trek_polynomial_wide64(root - 5.025, end, 17);
        size = trek_choose_wide64(beyond, root + trek_choose_wide64((trek_wide64_int)(w < 16.0), q, r), size);
    }
    if (trek_any_wide64(~inside))
        size = trek_choose_wide64(inside, size, a / trek_sqrt_wide64(1.0 - a)); /* infinite at 1, NaN beyond */
    return (trek_wide64)((trek_wide64_int)size | ((trek_wide64_int)x & sign));
}

/* The same for f32 by way of f64, whose digits leave almost only the rounding: erfc is t P(t) e^(-x^2), with t = 2.5
 * / (2.5 + |x|) and e^(-x^2) as a power of 2 (Cody 1969 has such forms; the fits are Chebyshev's). For |x| > 10.1 it
 * is 0. */
TREK_WIDE_INLINE trek_wide64 trek_erfc_single_wide64(trek_wide64 x)
{
    static const double erfcx[] = { 0x1.758267c9b15a9p-6, -0x1.06659d7755349p-6, -0x1.5b0d77ababc17p-5, 0x1.6e8c911e1e898p-5,
        0x1.1f84cb62cc532p-4, -0x1.71299860b8c2ap-4, -0x1.606a0995f300ep-3, 0x1.ca8c5b6c9f47fp-4, 0x1.36ae60f138e8cp-1,
        0x1.cb73ab3fac217p-1, 0x1.9b3ac0d367c31p-1, 0x1.f856192c22065p-2 };
    static const double power[] = { 0x1.446c7dbc199b4p-13, 0x1.5f48c72939ddap-10, 0x1.3b29d8b5593e6p-7, 0x1.c6aecc557b11ap-5,
        0x1.ebfbe0aa0c6a6p-3, 0x1.62e430d045900p-1, 0x1.ffffffffa70bbp-1 };
    trek_wide64 a = (trek_wide64)((trek_wide64_int)x & INT64_MAX);
    a = trek_choose_wide64((trek_wide64_int)(a > 10.1), trek_spread_wide64(10.1), a);
    trek_wide64 z = a * a * -1.4426950408889634074, shifted = z + 0x1.8p52, t = 2.5 / (2.5 + a);
    trek_wide64 p = trek_polynomial_wide64(z - (shifted - 0x1.8p52), power, 7);
    trek_wide64 e = (trek_wide64)((trek_wide64_int)p + ((trek_wide64_int)shifted << 52));
    trek_wide64 tail = t * trek_polynomial_wide64(t - 0x1.326p-1, erfcx, 12) * e;
    return trek_choose_wide64((trek_wide64_int)(x < 0.0), 2.0 - tail, tail);
}

TREK_WIDE_INLINE trek_wide64 trek_erfinv_single_wide64(trek_wide64 x)
{
    static const double series[] = { 0x1.147344f7472f9p-4, -0x1.3941566d6a85bp-4, 0x1.101790fb9c7f7p-4,
        -0x1.475314064444ep-4, 0x1.98dd2bdb1cc67p-4, -0x1.f90666a228e30p-4, 0x1.408ce411f2c46p-3, -0x1.a81e6d7eb4605p-3,
        0x1.2afc9951cb040p-2, -0x1.d94fa309939b2p-2, 0x1.f1193a9657b7bp-1 };
    static const double near[] = { 0x1.0e598441566efp-33, 0x1.de69e89fbea21p-32, -0x1.74e6e80646ec6p-27,
        0x1.1b3f5ede83c5bp-26, 0x1.00f721230df34p-21, -0x1.cbda8261cd37ep-19, -0x1.4f44231bae05bp-18, 0x1.c9bb8d2d788a7p-13,
        -0x1.4863d18339b88p-10, -0x1.11c3e1eca9e6bp-8, 0x1.f91e8995ad233p-3, 0x1.00b8b9ff29a63p-1 };
    static const double far[] = { -0x1.0ca8299406355p-16, 0x1.2cd5d9b4b14c8p-15, 0x1.027aaaec5cf32p-17,
        -0x1.ee01a6d807744p-13, 0x1.f8027165e87b7p-11, -0x1.6c4b178420a52p-9, 0x1.6022f6033521ap-8, 0x1.2c67917b1e747p-8,
        -0x1.553ca7ede980dp-3 };
    const trek_wide64_int half_root = (trek_wide64_int)trek_spread_wide64(0.70710678118654752440);
    trek_wide64 rest = 1.0 - x * x; /* exact, or nearly so */
    trek_wide64_int bits = (trek_wide64_int)rest - half_root, power = (bits >> 52) + INT64_C(0x4338000000000000);
    trek_wide64 f = (trek_wide64)((bits & INT64_C(0xfffffffffffff)) + half_root) - 1.0;
    trek_wide64 log = f * trek_polynomial_wide64(f - 0x1.fp-5, series, 11);
    trek_wide64 w = ((trek_wide64)power - 0x1.8p52) * -0.69314718055994530942 - log;
    trek_wide64 a = (trek_wide64)((trek_wide64_int)x & INT64_MAX);
    trek_wide64 size = trek_fma_wide64(trek_polynomial_wide64(w - 2.5, near, 12), a, a);
    trek_wide64_int beyond = (trek_wide64_int)(w >= 5.0), outside = ~(trek_wide64_int)(rest > 0.0);
    if (trek_any_wide64(beyond)) {
        trek_wide64 root = trek_sqrt_wide64(w), y = root + trek_polynomial_wide64(root - 0x1.9438p+1, far, 9);
        size = trek_choose_wide64(beyond, y, size);
    }
    if (trek_any_wide64(outside))
        size = trek_choose_wide64(outside, 1.0 / trek_sqrt_wide64(rest), size); /* infinite at 1, NaN beyond */
    return (trek_wide64)((trek_wide64_int)size | ((trek_wide64_int)x & INT64_MIN));
}

#define TREK_BY_HALVES(name)                                                                           \
    TREK_WIDE_INLINE trek_wide trek_##name##_wide(trek_wide x)                                         \
    {                                                                                                  \
        trek_half_wide halves[2];                                                                      \
        memcpy(halves, &x, sizeof halves);                                                             \
        for (int k = 0; k < 2; k++)                                                                    \
            halves[k] = __builtin_convertvector(trek_##name##_single_wide64(__builtin_convertvector(halves[k], trek_wide64)), \
                                                trek_half_wide);                                       \
        memcpy(&x, halves, sizeof halves);                                                             \
        return x;                                                                                      \
    }
TREK_BY_HALVES(erfc)
TREK_BY_HALVES(erfinv)

#endif
