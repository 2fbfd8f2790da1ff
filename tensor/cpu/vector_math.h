/* SPDX-License-Identifier: Apache-2.0 */
/* Elementary functions of f32 without branches or calls, so that the compiler
 * vectorises loops over them. Errors are at most about 2 ulp (measured over the
 * whole range), infinities, NaN and denormals come out as in libm. Polynomials
 * are Chebyshev fits of the remainders named beside them. */
#ifndef TREK_TENSOR_CPU_VECTOR_MATH_H
#define TREK_TENSOR_CPU_VECTOR_MATH_H

#include <math.h>

#include "tensor/cpu/kernels.h"

/* x * y + z in one rounding where the machine can, in two elsewhere. */
static inline float trek_fma_f32(float x, float y, float z)
{
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return __builtin_fmaf(x, y, z);
#else
    return x * y + z;
#endif
}
static inline double trek_fma_f64(double x, double y, double z)
{
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return __builtin_fma(x, y, z);
#else
    return x * y + z;
#endif
}

/* 2^n for -126 <= n <= 127. */
static inline float trek_pow2_f32(int32_t n) { return trek_f32_bits((uint32_t)(n + 127) << 23); }

/* (e^r - 1 - r) / r^2 for |r| <= ln(2)/2. */
static inline float trek_exp_remainder_f32(float r)
{
    float p = 0x1.6d1606p-10f;
    p = trek_fma_f32(p, r, 0x1.12106cp-7f);
    p = trek_fma_f32(p, r, 0x1.555516p-5f);
    p = trek_fma_f32(p, r, 0x1.5554d8p-3f);
    return trek_fma_f32(p, r, 0.5f);
}

/* Rounds x / ln 2 to an integer (as int and as float); |x| < 2^21. Adding 1.5 * 2^23 rounds. */
static inline float trek_exp_split_f32(float x, int32_t *n)
{
    float shifted = x * 0x1.715476p+0f + 0x1.8p23f;
    *n = (int32_t)(trek_bits_f32(shifted) - 0x4b400000u);
    return shifted - 0x1.8p23f;
}

/* e^(x + low), where |low| is at most a few units. */
static inline float trek_exp_two_f32(float x, float low)
{
    x = x > 90.0f ? 90.0f : x;
    x = x < -110.0f ? -110.0f : x;
    int32_t n;
    float whole = trek_exp_split_f32(x + low, &n);
    float r = trek_fma_f32(whole, -0x1.62e4p-1f, x);
    r += trek_fma_f32(whole, -0x1.7f7d1cp-20f, low);
    float p = trek_fma_f32(r * r, trek_exp_remainder_f32(r), r) + 1.0f;
    int32_t half = n >> 1; /* in two steps, so that denormals are rounded once and infinity is reached */
    return p * trek_pow2_f32(half) * trek_pow2_f32(n - half);
}
static inline float trek_exp_f32(float x) { return trek_exp_two_f32(x, 0.0f); }

static inline float trek_expm1_f32(float x)
{
    float t = x > 90.0f ? 90.0f : x;
    t = t < -25.0f ? -25.0f : t;
    int32_t n;
    float whole = trek_exp_split_f32(t, &n);
    float r = trek_fma_f32(whole, -0x1.62e4p-1f, t);
    r = trek_fma_f32(whole, -0x1.7f7d1cp-20f, r);
    float p = trek_fma_f32(r * r, trek_exp_remainder_f32(r), r);
    /* 2^n (p + 1) - 1, halved so that n = 128 does not overflow too early; n = 129 does overflow */
    int32_t m = n > 128 ? 127 : n - 1; /* t may be NaN: n is anything then */
    float half = trek_pow2_f32(m);
    float result = 2.0f * trek_fma_f32(half, p, half - 0.5f);
    result = x > 89.0f ? HUGE_VALF : result;
    return x == 0.0f ? x : result;
}

/* e^x for x <= 0 (or NaN): cheaper, because it cannot overflow. */
static inline float trek_exp_negative_f32(float x)
{
    x = x < -110.0f ? -110.0f : x;
    float shifted = x * 0x1.715476p+0f + 0x1.8p23f;
    float whole = shifted - 0x1.8p23f;
    float r = trek_fma_f32(whole, -0x1.62e4p-1f, x);
    r = trek_fma_f32(whole, -0x1.7f7d1cp-20f, r);
    float p = trek_fma_f32(r * r, trek_exp_remainder_f32(r), r) + 1.0f;
    /* times 2^(n + 64), which is normal, then 2^-64: denormals are rounded once */
    return p * trek_f32_bits((trek_bits_f32(shifted) << 23) + (191u << 23)) * 0x1p-64f;
}

/* (log(1 + f) - f + f^2/2) / f^3 for sqrt(1/2) <= 1 + f <= sqrt(2). */
static inline float trek_log_remainder_f32(float f)
{
    float p = 0x1.1dedf8p-4f;
    p = trek_fma_f32(p, f, -0x1.d6d10ep-4f);
    p = trek_fma_f32(p, f, 0x1.dec8ccp-4f);
    p = trek_fma_f32(p, f, -0x1.fce37ap-4f);
    p = trek_fma_f32(p, f, 0x1.23cf72p-3f);
    p = trek_fma_f32(p, f, -0x1.555b8ap-3f);
    p = trek_fma_f32(p, f, 0x1.999d6ep-3f);
    p = trek_fma_f32(p, f, -0x1.fffffcp-3f);
    return trek_fma_f32(p, f, 0x1.555554p-2f);
}

/* x = (1 + f) 2^e for a positive finite x. */
static inline float trek_log_split_f32(float x, float *e)
{
    bool tiny = x < 0x1p-126f;
    float scaled = tiny ? x * 0x1p23f : x;
    uint32_t bits = trek_bits_f32(scaled) - 0x3f3504f3u; /* sqrt(1/2) */
    int32_t exponent = (int32_t)bits >> 23;
    *e = (float)(exponent + 0) - (tiny ? 23.0f : 0.0f);
    return trek_f32_bits((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
}

/* What log of 0, below 0, infinity and NaN is; else `result`. */
static inline float trek_log_special_f32(float x, float result)
{
    result = x == HUGE_VALF ? x : result;
    result = x == 0.0f ? -HUGE_VALF : result;
    return x < 0.0f || x != x ? trek_f32_bits(0x7fc00000u) : result;
}

static inline float trek_log_f32(float x)
{
    float e, f = trek_log_split_f32(x, &e);
    float square = f * f;
    float low = trek_fma_f32(square * f, trek_log_remainder_f32(f), e * 0x1.7f7d1cp-20f);
    float result = trek_fma_f32(-0.5f, square, low) + f;
    return trek_log_special_f32(x, trek_fma_f32(e, 0x1.62e4p-1f, result));
}
static inline float trek_log2_f32(float x)
{
    float e, f = trek_log_split_f32(x, &e);
    float square = f * f;
    float low = trek_fma_f32(square * f, trek_log_remainder_f32(f), -0.5f * square);
    /* (f + low) / ln 2 with 1 / ln 2 = 1 + 0.4427 */
    float fraction = trek_fma_f32(low, 0x1.715476p+0f, f * 0x1.c551dap-2f) + f;
    return trek_log_special_f32(x, e + fraction);
}
static inline float trek_log10_f32(float x)
{
    float e, f = trek_log_split_f32(x, &e);
    float square = f * f;
    float low = trek_fma_f32(square * f, trek_log_remainder_f32(f), -0.5f * square) + f;
    /* log10(2) in two parts, the first short enough for an exact product */
    float result = trek_fma_f32(low, 0x1.bcb7b2p-2f, e * 0x1.3509f8p-18f);
    return trek_log_special_f32(x, trek_fma_f32(e, 0x1.344p-2f, result));
}

static inline float trek_log1p_f32(float x)
{
    float u = 1.0f + x;
    float lost = x > 1.0f ? 1.0f - (u - x) : x - (u - 1.0f); /* u + lost is 1 + x exactly */
    float e, f = trek_log_split_f32(u, &e);
    lost = u > 0x1p24f ? 0.0f : lost / u;
    float square = f * f;
    float low = trek_fma_f32(square * f, trek_log_remainder_f32(f), trek_fma_f32(e, 0x1.7f7d1cp-20f, lost));
    float result = trek_fma_f32(-0.5f, square, low) + f;
    result = trek_log_special_f32(u, trek_fma_f32(e, 0x1.62e4p-1f, result));
    return x == 0.0f ? x : result;
}

static inline float trek_sigmoid_f32(float x)
{
    float e = trek_exp_f32(x > 0.0f ? -x : x); /* never overflows */
    return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

static inline float trek_tanh_f32(float x)
{
    float magnitude = x < 0.0f ? -x : x;
    float e = trek_expm1_f32(2.0f * (magnitude > 10.0f ? 10.0f : magnitude));
    float result = e / (e + 2.0f);
    result = magnitude < 0x1p-60f ? magnitude : result; /* denormals keep their last bit */
    return trek_f32_bits(trek_bits_f32(result) | (trek_bits_f32(x) & 0x80000000u));
}

/* erf(x)/x - 2/sqrt(pi), divided by x^2 (the argument), for |x| <= 0.938. */
static inline float trek_erf_remainder_f32(float square)
{
    float p = 0x1.6edabep-14f;
    p = trek_fma_f32(p, square, -0x1.afffd4p-11f);
    p = trek_fma_f32(p, square, 0x1.557622p-8f);
    p = trek_fma_f32(p, square, -0x1.b82138p-6f);
    p = trek_fma_f32(p, square, 0x1.ce2eeap-4f);
    return trek_fma_f32(p, square, -0x1.812746p-2f);
}
static inline float trek_erf_small_f32(float x)
{
    float square = x * x;
    float p = trek_fma_f32(trek_erf_remainder_f32(square), square, 0x1.06eba8p-3f);
    return trek_fma_f32(p, x, x); /* 2/sqrt(pi) = 1 + 0.128... */
}
/* erfc of 0.9 <= a: t e^(P(t) - a^2), t = 2 / (2 + a); P is a fit of log(erfc(a) e^(a^2) / t) for a <= 10.3. */
static inline float trek_erfc_large_f32(float a)
{
    a = a > 10.3f ? 10.3f : a;
    float t = 2.0f / (2.0f + a);
    float p = -0x1.cf22fap-3f;
    p = trek_fma_f32(p, t, 0x1.335bfap-1f);
    p = trek_fma_f32(p, t, -0x1.91f274p-2f);
    p = trek_fma_f32(p, t, -0x1.b79bbep-4f);
    p = trek_fma_f32(p, t, -0x1.c23c1ep-5f);
    p = trek_fma_f32(p, t, 0x1.121bb8p-4f);
    p = trek_fma_f32(p, t, 0x1.83a770p-2f);
    p = trek_fma_f32(p, t, 0x1.ffce46p-1f);
    p = trek_fma_f32(p, t, -0x1.43f78cp+0f);
    float high = trek_f32_bits(trek_bits_f32(a) & 0xfffff000u); /* its square is exact */
    return t * trek_exp_two_f32(-high * high, trek_fma_f32(high - a, high + a, p));
}

static inline float trek_erf_f32(float x)
{
    float magnitude = x < 0.0f ? -x : x;
    float large = 1.0f - trek_erfc_large_f32(magnitude);
    large = trek_f32_bits(trek_bits_f32(large) | (trek_bits_f32(x) & 0x80000000u));
    return magnitude < 0.92f ? trek_erf_small_f32(x) : large;
}

/* The normal distribution's cumulative function, without cancellation for negative x. */
static inline float trek_normal_cdf_f32(float x)
{
    float scaled = x * 0x1.6a09e6p-1f;
    float magnitude = scaled < 0.0f ? -scaled : scaled;
    float tail = 0.5f * trek_erfc_large_f32(magnitude);
    float large = scaled < 0.0f ? tail : 1.0f - tail;
    return magnitude < 0.92f ? trek_fma_f32(0.5f, trek_erf_small_f32(scaled), 0.5f) : large;
}

static inline float trek_gelu_f32(float x)
{
    float result = x * trek_normal_cdf_f32(x);
    return x < -20.0f ? -0.0f : result; /* also -infinity, as its limit */
}
/* d gelu(x) / dx */
static inline float trek_gelu_derivative_f32(float x)
{
    float t = x < -20.0f ? -20.0f : x > 20.0f ? 20.0f : x;
    float density = 0x1.988454p-2f * trek_exp_f32(-0.5f * t * t);
    return trek_fma_f32(t, density, trek_normal_cdf_f32(t));
}

/* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) = x sigmoid(2 sqrt(2/pi) (...)) */
static inline float trek_gelu_tanh_f32(float x)
{
    float inner = 0x1.988454p+0f * trek_fma_f32(0x1.6e4e26p-5f * x * x, x, x);
    float result = x * trek_sigmoid_f32(inner);
    return x < -20.0f ? -0.0f : result;
}
static inline float trek_gelu_tanh_derivative_f32(float x)
{
    float t = x < -20.0f ? -20.0f : x > 20.0f ? 20.0f : x;
    float square = 0x1.6e4e26p-5f * t * t;
    float s = trek_sigmoid_f32(0x1.988454p+0f * trek_fma_f32(square, t, t));
    float slope = 0x1.988454p+0f * trek_fma_f32(3.0f, square, 1.0f);
    return trek_fma_f32(t * slope, s * (1.0f - s), s);
}

static inline float trek_silu_f32(float x) { return x * trek_sigmoid_f32(x); }
static inline float trek_silu_derivative_f32(float x)
{
    float s = trek_sigmoid_f32(x);
    return s * trek_fma_f32(x, 1.0f - s, 1.0f);
}

/* sin and cos of quarter * pi/2 + r, |r| <= pi/4. */
static inline float trek_sin_quarter_f32(int32_t quarter, float r)
{
    float square = r * r;
    float s = trek_fma_f32(-0x1.9abc2cp-13f, square, 0x1.110c10p-7f);
    s = trek_fma_f32(s, square, -0x1.555552p-3f);
    s = trek_fma_f32(s * square, r, r);
    float c = trek_fma_f32(0x1.9bcdc6p-16f, square, -0x1.6c12bep-10f);
    c = trek_fma_f32(c, square, 0x1.555554p-5f);
    c = trek_fma_f32(c * square, square, trek_fma_f32(-0.5f, square, 1.0f));
    uint32_t bits = quarter & 1 ? trek_bits_f32(c) : trek_bits_f32(s);
    return trek_f32_bits(bits ^ ((uint32_t)(quarter & 2) << 30));
}

/* Reduces |x| <= 2^20 by multiples of pi/2 in f64. */
#define TREK_SIN_LIMIT 0x1p20f
static inline float trek_sin_reduce_f32(float x, int32_t *quarter)
{
    double shifted = (double)x * 0x1.45f306dc9c883p-1 + 0x1.8p52;
    double whole = shifted - 0x1.8p52;
    *quarter = (int32_t)trek_bits_f64(shifted);
    double r = (double)x - whole * 0x1.921fb544p0; /* exact: 33 bits times 21 */
    return (float)(r - whole * 0x1.0b4611a626331p-34);
}
static inline float trek_sin_small_f32(float x)
{
    int32_t quarter;
    float r = trek_sin_reduce_f32(x, &quarter);
    return x == 0.0f ? x : trek_sin_quarter_f32(quarter, r);
}
static inline float trek_cos_small_f32(float x)
{
    int32_t quarter;
    float r = trek_sin_reduce_f32(x, &quarter);
    return trek_sin_quarter_f32(quarter + 1, r);
}

#endif
