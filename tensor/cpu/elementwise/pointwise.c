/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of one number, with numbers s and t, and their derivatives. */
#include "tensor/pointwise.h"
#include "tensor/cpu/elementwise/digamma.h"
#include "tensor/cpu/elementwise/elementwise.h"
#include "tensor/cpu/elementwise/log_gamma.h"
#include "tensor/cpu/elementwise/vector_activations.h"
#include "tensor/cpu/vector_math.h"

TREK_LIBRARY(tanh, f64, tanh)

/* --- by comparisons only: x, or the gradient x and what was saved, y; NaN passes, and passes its gradient
 * -------------------- */

#define PIECES(kind, value, slope)                                                                     \
    TREK_UNARY_ROW(kind, f32, f32, value)                                                              \
    TREK_UNARY_ROW(kind, f64, f64, value)                                                              \
    TREK_BINARY_ROW(kind##_backward, f32, f32, slope)                                                  \
    TREK_BINARY_ROW(kind##_backward, f64, f64, slope)

/* These cost no more than conversions, so that 16 bits have rows of their own. */
#define SHORT(kind, value, slope)                                                                      \
    TREK_UNARY_FLOATS(kind, TREK_GRAIN_CHEAP, value, value)                                            \
    TREK_BINARY_ROW(kind##_backward, f32, f32, slope)                                                  \
    TREK_BINARY_ROW(kind##_backward, f64, f64, slope)                                                  \
    TREK_BINARY_FLOAT_KERNELS(kind##_backward, TREK_GRAIN_CHEAP)

SHORT(hardshrink, x >= -s && x <= s ? 0 : x, y >= -s && y <= s ? 0 : x)
PIECES(hardsigmoid, x <= -3 ? 0 : x >= 3 ? 1 : (x + 3) / 6, y > -3 && y < 3 ? x / 6 : 0)
SHORT(hardtanh, x < s ? s : x > t ? t : x, y <= s || y >= t ? 0 : x)
PIECES(hardswish, x <= -3 ? 0 : x >= 3 ? x : x * (x + 3) / 6, y <= -3 ? 0 : y < 3 ? x * ((2 * y + 3) / 6) : x)
PIECES(softshrink, x > s ? x - s : x < -s ? x + s : x * 0, y >= -s && y <= s ? 0 : x)
SHORT(leaky_relu, x > 0 ? x : x *s, y > 0 ? x : x *s)
PIECES(softsign, x / (1 + (x < 0 ? -x : x)), x / ((1 + (y < 0 ? -y : y)) * (1 + (y < 0 ? -y : y))))
PIECES(threshold, x <= s ? t : x, y <= s ? 0 : x)

TREK_UNARY_FLOATS(frac, TREK_GRAIN_CHEAP, x - truncf(x), x - trunc(x))
TREK_UNARY_FLOATS(div_scalar, TREK_GRAIN_CHEAP, x / s, x / s)
/* On bits, which need no conversions, and without a branch. */
#define NAN_TO_NUM(dtype, width, infinity, bits_of)                                                    \
    static void nan_to_num_##dtype##_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        uint##width##_t *result = to;                                                                  \
        const uint##width##_t *xs = from[0], sign = (uint##width##_t)((uint##width##_t)1 << (width - 1)); \
        const uint##width##_t nan = bits_of(attrs->f[0]), high = bits_of(attrs->f[1]), low = bits_of(attrs->f[2]); \
        TREK_INDEPENDENT                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                              \
            const uint##width##_t x = xs[i], size = (uint##width##_t)(x & (sign - 1)), beyond = x & sign ? low : high; \
            const uint##width##_t other = size > (infinity) ? nan : beyond;                            \
            result[i] = size < (infinity) ? x : other;                                                 \
        }                                                                                              \
    }
#define BITS_F32(x) trek_bits_f32((float)(x))
#define BITS_BF16(x) trek_bf16_from_f32((float)(x))
#define BITS_F16(x) trek_f16_from_f32((float)(x))
static inline uint64_t bits_of_f64(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
NAN_TO_NUM(f32, 32, 0x7f800000u, BITS_F32)
NAN_TO_NUM(f64, 64, UINT64_C(0x7ff) << 52, bits_of_f64)
NAN_TO_NUM(bf16, 16, 0x7f80u, BITS_BF16)
NAN_TO_NUM(f16, 16, 0x7c00u, BITS_F16)
TREK_MAP_KERNEL(nan_to_num_f32, nan_to_num_f32_row, TREK_GRAIN_CHEAP, 1, TREK_LANE_4, TREK_LANE_4)
TREK_MAP_KERNEL(nan_to_num_f64, nan_to_num_f64_row, TREK_GRAIN_CHEAP, 1, TREK_LANE_8, TREK_LANE_8)
TREK_MAP_KERNEL(nan_to_num_bf16, nan_to_num_bf16_row, TREK_GRAIN_CHEAP, 1, TREK_LANE_2, TREK_LANE_2)
TREK_MAP_KERNEL(nan_to_num_f16, nan_to_num_f16_row, TREK_GRAIN_CHEAP, 1, TREK_LANE_2, TREK_LANE_2)

/* --- inverses and powers ------------------------------------------------------------------------------------------ */

/* Bessel functions of f32: with t = 4 / (4 + |x|), I0 e^-|x| sqrt(4 + |x|) is a polynomial in 2 t - 1, and so is I1 with
 * (4 + |x|) / x more (Chebyshev fits, errors below 5e-7). e^|x| is multiplied in two factors, because it overflows earlier. */
TREK_WIDE_INLINE trek_wide sqrt_wide(trek_wide x)
{
#if defined(__AVX512F__)
    return (trek_wide)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
    return (trek_wide)_mm256_sqrt_ps((__m256)x);
#else
    for (int l = 0; l < TREK_WIDE; l++)
        x[l] = __builtin_sqrtf(x[l]);
    return x;
#endif
}
TREK_WIDE_INLINE trek_wide bessel_wide(trek_wide x, const int order, const bool scaled)
{
    static const float terms[2][16] = {
        { -0x1.273e56p-8f, -0x1.50209p-10f, 0x1.86bc5ep-6f, 0x1.3b41a2p-8f, -0x1.e4cd5cp-5f, -0x1.e838b2p-8f,
          0x1.95a99p-4f, 0x1.a167bep-7f, -0x1.24fadap-3f, -0x1.0bdf1cp-4f, 0x1.7213a2p-3f, 0x1.5cb722p-2f,
          0x1.6dc024p-2f, 0x1.51f0eap-2f, 0x1.62d1c6p-2f, 0x1.2bc55p-1f },
        { 0x1.76cf72p-8f, -0x1.fbf50cp-9f, -0x1.ce0676p-6f, 0x1.65e4fep-6f, 0x1.012e8ep-4f, -0x1.e4cc44p-5f,
          -0x1.732358p-4f, 0x1.c1530ep-4f, 0x1.f31366p-4f, -0x1.5468dap-3f, -0x1.fb0414p-3f, 0x1.2a4b28p-3f,
          0x1.744a76p-1f, 0x1.23effap+0f, 0x1.3fda1ep+0f, 0x1.02dbdep+0f },
    };
    trek_wide size = trek_magnitude_wide(x), shifted = size + 4.0f, t = 4.0f / shifted, u = 2.0f * t - 1.0f;
    trek_wide p = trek_spread_wide(terms[order][0]);
#pragma GCC unroll 16
    for (int k = 1; k < 16; k++)
        p = trek_fma_wide(p, u, trek_spread_wide(terms[order][k]));
    p = p / sqrt_wide(shifted);
    if (order == 1) /* times x / (4 + |x|) */
        p = p * (trek_at_least_wide(trek_at_most_wide(x, 1e38f), -1e38f) * t * 0.25f);
    if (scaled)
        return p;
    trek_wide half = trek_exp_wide(0.5f * size), infinite = order == 1 ? x * INFINITY : size * INFINITY;
    return trek_choose_wide(trek_spread_wide(100.0f), size, infinite, p * half * half);
}

/* log(x + sqrt(x^2 - 1)), by t = x - 1. */
TREK_WIDE_INLINE trek_wide acosh_wide(trek_wide x)
{
    trek_wide t = x - 1.0f, near = trek_log1p_wide(t + sqrt_wide(t * (t + 2.0f)));
    trek_wide y = trek_choose_wide(x, trek_spread_wide(0x1p40f), near, trek_log_wide(x) + 0x1.62e43p-1f);
    return trek_choose_wide(x, trek_spread_wide(1.0f), trek_spread_wide(NAN), y);
}

/* f64 is in special.c. */
#define SHORT_KERNELS(op)                                                                              \
    TREK_UNARY_KERNEL(op, f32, f32, 4, TREK_GRAIN_FUNCTION)                                            \
    TREK_UNARY_KERNEL(op, bf16, f32, BF16, TREK_GRAIN_FUNCTION)                                        \
    TREK_UNARY_KERNEL(op, f16, f32, F16, TREK_GRAIN_FUNCTION)
#define BESSEL(op, order, scaled)                                                                      \
    TREK_UNARY_WIDE_ROW(op, bessel_wide(x, order, scaled))                                             \
    SHORT_KERNELS(op)
TREK_UNARY_ROW(lgamma, f32, f32, trek_log_gamma_f32(x))
SHORT_KERNELS(lgamma)
TREK_UNARY_ROW(digamma, f32, f32, trek_digamma_f32(x))
TREK_UNARY_ROW(trigamma, f32, f32, trek_trigamma_f32(x))
static void polygamma_f32_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs)
{
    (attrs->f[0] < 1 ? digamma_f32_row : attrs->f[0] < 2 ? trigamma_f32_row : trek_cpu_polygamma_row)(to, from, n, attrs);
}
SHORT_KERNELS(polygamma)
BESSEL(i0, 0, false)
BESSEL(i0e, 0, true)
BESSEL(i1, 1, false)
BESSEL(i1e, 1, true)

TREK_UNARY_WIDE_ROW(ndtr, trek_normal_cdf_wide(x))
TREK_UNARY_LIBRARY_ROW(ndtr, f64, 0.5 * trek_erfc_wide64(x * -0.70710678118654752440))
TREK_UNARY_FLOAT_KERNELS(ndtr, TREK_GRAIN_FUNCTION)

/* Inverses use the vector library; slopes, for which f32 loses digits if x is large or near 1, use f64. */
#define INVERSE(kind, slope)                                                                           \
    TREK_LIBRARY(kind, f32, kind##f)                                                                   \
    TREK_UNARY_LIBRARY_ROW(kind, f32, trek_##kind##_f32_library(x))                                    \
    INVERSE_REST(kind, slope)
#define INVERSE_REST(kind, slope)                                                                      \
    TREK_LIBRARY(kind, f64, kind)                                                                      \
    static inline double kind##_slope(double x) { return slope; }                                      \
    TREK_UNARY_LIBRARY_ROW(kind, f64, trek_##kind##_f64_library(x))                                    \
    TREK_BINARY_ROW(kind##_backward, f32, f32, x * (float)kind##_slope((double)y))                     \
    TREK_BINARY_ROW(kind##_backward, f64, f64, x *kind##_slope(y))

INVERSE(asinh, 1 / sqrt(x * x + 1))
TREK_UNARY_WIDE_ROW(acosh, acosh_wide(x))
INVERSE_REST(acosh, 1 / sqrt(x * x - 1))
INVERSE(atanh, 1 / (1 - x * x))

/* --- by functions, in vectors ------------------------------------------------------------------------------------------------
 */

#define FUNCTIONS_BACKWARD(kind)                                                                       \
    static void kind##_backward_f32_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        float *result = to;                                                                            \
        const float *xs = from[0], *ys = from[1];                                                      \
        const float s = (float)attrs->f[0];                                                            \
        int64_t i = 0;                                                                                 \
        for (; i + TREK_WIDE <= n; i += TREK_WIDE)                                                     \
            trek_store_wide(result + i, trek_load_wide(xs + i) * kind##_slope_wide(trek_load_wide(ys + i), s)); \
        if (i < n)                                                                                     \
            trek_store_part_wide(result + i, trek_load_part_wide(xs + i, n - i) *                      \
                                 kind##_slope_wide(trek_load_part_wide(ys + i, n - i), s), n - i);     \
    }                                                                                                  \
    TREK_BINARY_LIBRARY_ROW(kind##_backward, f64, x *kind##_slope_wide64(y, attrs->f[0]))
#define FUNCTIONS(kind)                                                                                \
    TREK_UNARY_WIDE_ROW(kind, kind##_of_wide(x, (float)attrs->f[0]))                                   \
    TREK_UNARY_LIBRARY_ROW(kind, f64, kind##_of_wide64(x, attrs->f[0]))                                \
    FUNCTIONS_BACKWARD(kind)

TREK_LIBRARY(exp2, f64, exp2)

#define WIDE TREK_WIDE_INLINE trek_wide
#define WIDE64 TREK_WIDE_INLINE trek_wide64

/* Returns x if x > 0, otherwise below. */
WIDE where_above(trek_wide x, trek_wide above, trek_wide below)
{
    return trek_choose_wide(trek_spread_wide(0.0f), x, above, below);
}
WIDE64 where_above64(trek_wide64 x, trek_wide64 above, trek_wide64 below)
{
    return trek_choose_wide64((trek_wide64_int)(x > 0.0), above, below);
}
/* Returns x also if x is NaN. */
WIDE slope_above(trek_wide x, trek_wide above, trek_wide below)
{
    return trek_choose_wide(x, trek_spread_wide(0x1p-149f), below, above);
}
WIDE64 slope_above64(trek_wide64 x, trek_wide64 above, trek_wide64 below)
{
    return trek_choose_wide64((trek_wide64_int)(x <= 0.0), below, above);
}
/* Compute e^x and e^x - 1 for x that is not above 0, so that the library remains in its vectors. NaN remains. */
WIDE64 exp_below64(trek_wide64 x) { return trek_exp_down_wide64(trek_choose_wide64((trek_wide64_int)(x > 0.0), x * 0.0, x)); }
WIDE64 expm1_below64(trek_wide64 x)
{
    trek_wide64_int inside = (trek_wide64_int)(x >= -50.0) & (trek_wide64_int)(x <= 0.0);
    trek_wide64 e = trek_expm1_f64_library(trek_choose_wide64(inside, x, trek_spread_wide64(-50.0)));
    return trek_choose_wide64((trek_wide64_int)(x == x), e, x);
}

/* min(x, 0) - log(1 + e^-|x|) */
WIDE logsigmoid_of_wide(trek_wide x, float s)
{
    (void)s;
    trek_wide below = trek_at_most_wide(x, 0.0f), size = where_above(x, -x, x);
    return below - trek_log1p_wide(trek_exp_wide(size));
}
WIDE64 logsigmoid_of_wide64(trek_wide64 x, double s)
{
    (void)s;
    trek_wide64 size = where_above64(x, -x, x), below = trek_choose_wide64((trek_wide64_int)(x > 0.0), x * 0.0, x);
    below = trek_choose_wide64((trek_wide64_int)(x > 0x1p1000), trek_spread_wide64(0.0), below);
    return below - trek_log1p_f64_library(trek_exp_down_wide64(size));
}
WIDE logsigmoid_slope_wide(trek_wide x, float s) { return (void)s, trek_sigmoid_wide(-x); }
WIDE64 logsigmoid_slope_wide64(trek_wide64 x, double s) { return (void)s, trek_sigmoid_wide64(-x); }

WIDE selu_of_wide(trek_wide x, float s)
{
    (void)s;
    const float scale = (float)TREK_SELU_SCALE, below = (float)(TREK_SELU_SCALE * TREK_SELU_ALPHA);
    return where_above(x, scale * x, below * trek_expm1_wide(x));
}
WIDE64 selu_of_wide64(trek_wide64 x, double s)
{
    (void)s;
    return where_above64(x, TREK_SELU_SCALE * x, TREK_SELU_SCALE * TREK_SELU_ALPHA * expm1_below64(x));
}
WIDE selu_slope_wide(trek_wide x, float s)
{
    (void)s;
    const float scale = (float)TREK_SELU_SCALE, below = (float)(TREK_SELU_SCALE * TREK_SELU_ALPHA);
    return slope_above(x, trek_spread_wide(scale), below * trek_exp_wide(x));
}
WIDE64 selu_slope_wide64(trek_wide64 x, double s)
{
    (void)s;
    return slope_above64(x, trek_spread_wide64(TREK_SELU_SCALE), TREK_SELU_SCALE * TREK_SELU_ALPHA * exp_below64(x));
}

WIDE celu_of_wide(trek_wide x, float s) { return where_above(x, x, s * trek_expm1_wide(x / s)); }
WIDE64 celu_of_wide64(trek_wide64 x, double s) { return where_above64(x, x, s * expm1_below64(x / s)); }
WIDE celu_slope_wide(trek_wide x, float s) { return slope_above(x, trek_spread_wide(1.0f), trek_exp_wide(x / s)); }
WIDE64 celu_slope_wide64(trek_wide64 x, double s)
{
    return slope_above64(x, trek_spread_wide64(1.0), exp_below64(x / s));
}

WIDE elu_of_wide(trek_wide x, float s) { return where_above(x, x, s * trek_expm1_wide(x)); }
WIDE64 elu_of_wide64(trek_wide64 x, double s) { return where_above64(x, x, s * expm1_below64(x)); }
WIDE elu_slope_wide(trek_wide x, float s) { return slope_above(x, trek_spread_wide(1.0f), s * trek_exp_wide(x)); }
WIDE64 elu_slope_wide64(trek_wide64 x, double s) { return slope_above64(x, trek_spread_wide64(1.0), s * exp_below64(x)); }

/* tanh(log(1 + e^x)) = n / (n + 2), with n = e^x (e^x + 2); it is 1 from 20 (40 in f64) on. Its derivative is n / (n
 * + 2) + x sigmoid(x) (1 - tanh^2), with 1 - tanh^2 = (2 / (n + 2)) (1 + n / (n + 2)). */
WIDE mish_of_wide(trek_wide x, float s)
{
    (void)s;
    trek_wide e = trek_exp_wide(trek_at_most_wide(x, 20.0f)), n = e * (e + 2.0f);
    return trek_choose_wide(trek_spread_wide(20.0f), x, x, x * (n / (n + 2.0f)));
}
WIDE64 mish_of_wide64(trek_wide64 x, double s)
{
    (void)s;
    trek_wide64_int high = (trek_wide64_int)(x > 40.0);
    trek_wide64 e = trek_exp_down_wide64(trek_choose_wide64(high, trek_spread_wide64(40.0), x)), n = e * (e + 2.0);
    return trek_choose_wide64(high, x, x * (n / (n + 2.0)));
}
WIDE mish_slope_wide(trek_wide x, float s)
{
    (void)s;
    trek_wide near = trek_at_most_wide(x, 20.0f), e = trek_exp_wide(near), n = e * (e + 2.0f), w = n / (n + 2.0f);
    return w + near * (e / (1.0f + e)) * ((2.0f / (n + 2.0f)) * (1.0f + w));
}
WIDE64 mish_slope_wide64(trek_wide64 x, double s)
{
    (void)s;
    trek_wide64 near = trek_choose_wide64((trek_wide64_int)(x > 40.0), trek_spread_wide64(40.0), x);
    trek_wide64 e = trek_exp_down_wide64(near), n = e * (e + 2.0), w = n / (n + 2.0);
    return w + near * (e / (1.0 + e)) * ((2.0 / (n + 2.0)) * (1.0 + w));
}

/* Near 0 it uses tanh's series, whose first term is x; the difference would otherwise lose all its digits. */
WIDE tanhshrink_of_wide(trek_wide x, float s)
{
    static const float terms[] = { 6404582.0f / 10854718875.0f, -929569.0f / 638512875.0f, 21844.0f / 6081075.0f,
                                   -1382.0f / 155925.0f, 62.0f / 2835.0f, -17.0f / 315.0f, 2.0f / 15.0f, -1.0f / 3.0f };
    trek_wide square = x * x, sum = trek_spread_wide(terms[0]);
    (void)s;
    for (int k = 1; k < 8; k++)
        sum = sum * square + terms[k];
    return trek_choose_wide(square, trek_spread_wide(0.3f), -x * square * sum, x - trek_tanh_wide(x));
}
WIDE64 tanhshrink_of_wide64(trek_wide64 x, double s) { return (void)s, x - trek_tanh_f64_library(x); }
WIDE tanhshrink_slope_wide(trek_wide x, float s)
{
    (void)s;
    trek_wide y = trek_tanh_wide(x);
    return y * y;
}
WIDE64 tanhshrink_slope_wide64(trek_wide64 x, double s)
{
    (void)s;
    trek_wide64 y = trek_tanh_f64_library(x);
    return y * y;
}

WIDE erfc_of_wide(trek_wide x, float s) { return (void)s, trek_erfc_wide(x); }
WIDE64 erfc_of_wide64(trek_wide64 x, double s) { return (void)s, trek_erfc_wide64(x); }
WIDE erfc_slope_wide(trek_wide x, float s) { return (void)s, -0x1.20dd76p+0f * trek_exp_minus_square_wide(x); }
WIDE64 erfc_slope_wide64(trek_wide64 x, double s) { return (void)s, -1.1283791670955125739 * trek_exp_minus_square_wide64(x); }

WIDE erfinv_of_wide(trek_wide x, float s) { return (void)s, trek_erfinv_wide(x); }
WIDE64 erfinv_of_wide64(trek_wide64 x, double s) { return (void)s, trek_erfinv_wide64(x); }
WIDE erfinv_slope_wide(trek_wide x, float s)
{
    trek_wide y = trek_erfinv_wide(x);
    return (void)s, 0x1.c5bf8ap-1f * trek_exp_wide(y * y);
}
WIDE64 erfinv_slope_wide64(trek_wide64 x, double s)
{
    trek_wide64 y = trek_erfinv_wide64(x), square = y * y;
    square = trek_choose_wide64((trek_wide64_int)(square <= 700.0), square, trek_spread_wide64(0.0));
    trek_wide64 e = 0.88622692545275801365 * trek_exp_f64_library(square);
    return (void)s, trek_choose_wide64((trek_wide64_int)(y * y <= 700.0), e, y * y); /* infinite at 1, NaN beyond */
}

/* 2^x, by the series of e^x with another factor: |x - n| <= 1/2 needs no reduction. */
WIDE exp2_of_wide(trek_wide x, float s)
{
    const trek_wide lowest = trek_spread_wide(-150.0f);
    trek_wide near = trek_choose_wide(x, lowest, trek_spread_wide(0.0f), trek_at_most_wide(x, 129.0f));
    trek_wide shifted = near + 0x1.8p23f, whole = shifted - 0x1.8p23f;
    trek_wide e = trek_scale_wide(trek_exp_of_remainder_wide(near - whole, 0x1.62e430p-1f), whole, shifted);
    return (void)s, trek_choose_wide(x, lowest, trek_spread_wide(0.0f), e);
}
WIDE64 exp2_of_wide64(trek_wide64 x, double s) { return (void)s, trek_exp2_f64_library(x); }
WIDE exp2_slope_wide(trek_wide x, float s) { return 0x1.62e430p-1f * exp2_of_wide(x, s); }
WIDE64 exp2_slope_wide64(trek_wide64 x, double s) { return 0.69314718055994530942 * exp2_of_wide64(x, s); }

FUNCTIONS(exp2)
FUNCTIONS(erfc)
FUNCTIONS(erfinv)
FUNCTIONS(logsigmoid)
FUNCTIONS(selu)
FUNCTIONS(celu)
FUNCTIONS(elu)
FUNCTIONS(mish)
FUNCTIONS(tanhshrink)

/* --- the kernels --------------------------------------------------------------------------------------------- */

#define SLOPED(X)                                                                                     \
    X(hardsigmoid) X(hardswish) X(logsigmoid) X(selu) X(celu) X(elu) X(mish) X(softshrink) X(softsign) X(tanhshrink) \
    X(threshold) X(asinh) X(acosh) X(atanh) X(erfc) X(erfinv) X(exp2)
#define KERNELS(op)                                                                                    \
    TREK_UNARY_FLOAT_KERNELS(op, TREK_GRAIN_FUNCTION)                                                  \
    TREK_BINARY_FLOAT_KERNELS(op##_backward, TREK_GRAIN_FUNCTION)
SLOPED(KERNELS)

void TREK_ISA_NAME(trek_cpu_register_pointwise)(trek_backend *b)
{
#define ENTER(op) (TREK_ENTER_FLOATS(b, op), TREK_ENTER_FLOATS(b, op##_backward));
#define ENTER_VALUES(op) TREK_ENTER_FLOATS(b, op);
#define ENTER_SHORT(op) (TREK_ENTER(b, op, F32, f32), TREK_ENTER(b, op, BF16, bf16), TREK_ENTER(b, op, F16, f16));
    SLOPED(ENTER) ENTER(hardshrink) ENTER(hardtanh) ENTER(leaky_relu)
    ENTER_VALUES(frac) ENTER_VALUES(div_scalar) ENTER_VALUES(nan_to_num) ENTER_VALUES(ndtr)
    ENTER_SHORT(lgamma) ENTER_SHORT(polygamma) ENTER_SHORT(i0) ENTER_SHORT(i0e) ENTER_SHORT(i1) ENTER_SHORT(i1e)
#undef ENTER
#undef ENTER_VALUES
#undef ENTER_SHORT
}
