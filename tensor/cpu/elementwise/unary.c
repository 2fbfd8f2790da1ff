/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise kernels of one input, with and without numbers. */
#include "tensor/cpu/elementwise/elementwise.h"
#include "tensor/cpu/elementwise/vector_activations.h"
#include "tensor/cpu/vector_math.h"

#define CHEAP TREK_GRAIN_CHEAP
#define FUNCTION TREK_GRAIN_FUNCTION

#define FUNCTIONS(X) X(log2) X(log10) X(sin) X(cos) X(tan) X(tanh) X(erf)
#define FUNCTIONS_OF_BOTH(X) X(asin) X(acos) X(atan) X(sinh) X(cosh)
#define OF_F64(name) TREK_LIBRARY(name, f64, name)
#define OF_F32(name) TREK_LIBRARY(name, f32, name##f)
FUNCTIONS(OF_F64)
FUNCTIONS_OF_BOTH(OF_F64)
FUNCTIONS_OF_BOTH(OF_F32)

/* With beta s and threshold t: log(1 + e^(s x)) / s, and x if s x > t. */
static inline trek_wide softplus_of_wide(trek_wide x, trek_wide s, trek_wide t)
{
    trek_wide scaled = x * s;
    return trek_choose_wide(t, scaled, x, trek_log1p_wide(trek_exp_wide(scaled)) / s);
}

/* As (0 < x) - (x < 0): NaN gives 0. */
#define SIGN(x) ((0 < (x)) - ((x) < 0))

#define TREK_UNARY_LIBRARY_FLOATS(op, wide_expression)                                                 \
    TREK_UNARY_WIDE_ROW(op, wide_expression)                                                           \
    TREK_UNARY_LIBRARY_ROW(op, f64, trek_##op##_f64_library(x))                                        \
    TREK_UNARY_FLOAT_KERNELS(op, FUNCTION)
#define TREK_UNARY_LIBRARY_BOTH(op)                                                                    \
    TREK_UNARY_LIBRARY_ROW(op, f32, trek_##op##_f32_library(x))                                        \
    TREK_UNARY_LIBRARY_ROW(op, f64, trek_##op##_f64_library(x))                                        \
    TREK_UNARY_FLOAT_KERNELS(op, FUNCTION)

/* Functions that only look at the sign work on the bits of 16-bit floats. */
#define BITS_16(op, expression)                                                                        \
    static void op##_bits_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs)   \
    {                                                                                                  \
        uint16_t *result = to;                                                                         \
        const uint16_t *xs = from[0];                                                                  \
        (void)attrs;                                                                                   \
        TREK_INDEPENDENT                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                              \
            const uint16_t x = xs[i];                                                                  \
            result[i] = (uint16_t)(expression);                                                        \
        }                                                                                              \
    }                                                                                                  \
    TREK_MAP_KERNEL(op##_bf16, op##_bits_row, CHEAP, 1, TREK_LANE_2, TREK_LANE_2)                      \
    TREK_MAP_KERNEL(op##_f16, op##_bits_row, CHEAP, 1, TREK_LANE_2, TREK_LANE_2)
#define SIGN_FLOATS(op, f32_expression, f64_expression, bits_expression)                               \
    TREK_UNARY_ROW(op, f32, f32, f32_expression)                                                       \
    TREK_UNARY_ROW(op, f64, f64, f64_expression)                                                       \
    TREK_UNARY_KERNEL(op, f32, f32, 4, CHEAP)                                                          \
    TREK_UNARY_KERNEL(op, f64, f64, 8, CHEAP)                                                          \
    BITS_16(op, bits_expression)

SIGN_FLOATS(neg, -x, -x, x ^ 0x8000u)
SIGN_FLOATS(abs, fabsf(x), fabs(x), x & 0x7fffu)
TREK_UNARY_FLOATS(sign, CHEAP, SIGN(x), SIGN(x))
TREK_UNARY_FLOATS(square, CHEAP, x *x, x *x)
TREK_UNARY_FLOATS(relu, CHEAP, x < 0 ? 0 : x, x < 0 ? 0 : x)
TREK_UNARY_FLOATS(floor, CHEAP, floorf(x), floor(x))
TREK_UNARY_FLOATS(ceil, CHEAP, ceilf(x), ceil(x))
TREK_UNARY_FLOATS(round, CHEAP, rintf(x), rint(x))
TREK_UNARY_FLOATS(trunc, CHEAP, truncf(x), trunc(x))
TREK_UNARY_INTEGERS(neg, -x)
TREK_UNARY_INTEGERS(abs, x < 0 ? -x : x)
TREK_UNARY_INTEGERS(sign, SIGN(x))
TREK_UNARY_INTEGERS(square, x *x)
TREK_UNARY_INTEGERS(relu, x < 0 ? 0 : x)
TREK_UNARY_INTEGERS(floor, x)
TREK_UNARY_INTEGERS(ceil, x)
TREK_UNARY_INTEGERS(round, x)
TREK_UNARY_INTEGERS(trunc, x)

TREK_UNARY_LIBRARY_FLOATS(exp, trek_exp_wide(x))
TREK_UNARY_LIBRARY_FLOATS(expm1, trek_expm1_wide(x))
TREK_UNARY_LIBRARY_FLOATS(log, trek_log_wide(x))
TREK_UNARY_LIBRARY_FLOATS(log1p, trek_log1p_wide(x))
TREK_UNARY_LIBRARY_FLOATS(log2, trek_log2_wide(x))
TREK_UNARY_LIBRARY_FLOATS(log10, trek_log10_wide(x))
TREK_UNARY_FLOATS(sqrt, CHEAP, sqrtf(x), sqrt(x))
TREK_UNARY_FLOATS(rsqrt, CHEAP, 1 / sqrtf(x), 1 / sqrt(x))
TREK_UNARY_FLOATS(reciprocal, CHEAP, 1 / x, 1 / x)
TREK_UNARY_LIBRARY_BOTH(asin)
TREK_UNARY_LIBRARY_BOTH(acos)
TREK_UNARY_LIBRARY_BOTH(atan)
TREK_UNARY_LIBRARY_BOTH(sinh)
TREK_UNARY_LIBRARY_BOTH(cosh)
TREK_UNARY_LIBRARY_FLOATS(tanh, trek_tanh_wide(x))
TREK_UNARY_WIDE_ROW(sigmoid, trek_sigmoid_wide(x))
TREK_UNARY_LIBRARY_ROW(sigmoid, f64, trek_sigmoid_wide64(x))
TREK_UNARY_FLOAT_KERNELS(sigmoid, FUNCTION)
TREK_UNARY_WIDE_ROW(erf, trek_erf_wide(x))
TREK_UNARY_LIBRARY_ROW(erf, f64, trek_erf_f64_library(x))
TREK_UNARY_KERNEL(erf, f32, f32, 4, FUNCTION)
TREK_UNARY_KERNEL(erf, f64, f64, 8, FUNCTION)
#if defined(TREK_WIDE_ROW_16)
TREK_WIDE_ROW_16(erf, bf16, 1, trek_erf_wide(x))
TREK_WIDE_ROW_16(erf, f16, 1, trek_erf_wide(x))
TREK_MAP_KERNEL(erf_bf16, erf_bf16_row, FUNCTION, 1, TREK_LANE_2, TREK_LANE_2)
TREK_MAP_KERNEL(erf_f16, erf_f16_row, FUNCTION, 1, TREK_LANE_2, TREK_LANE_2)
#else
TREK_UNARY_KERNEL(erf, bf16, f32, BF16, FUNCTION)
TREK_UNARY_KERNEL(erf, f16, f32, F16, FUNCTION)
#endif
TREK_UNARY_WIDE_ROW(silu, trek_silu_wide(x))
TREK_UNARY_LIBRARY_ROW(silu, f64, x *trek_sigmoid_wide64(x))
TREK_UNARY_FLOAT_KERNELS(silu, FUNCTION)
TREK_UNARY_WIDE_ROW(softplus, softplus_of_wide(x, s, t))
TREK_UNARY_LIBRARY_ROW(softplus, f64, trek_softplus_wide64(x, attrs->f[0], attrs->f[1]))
TREK_UNARY_FLOAT_KERNELS(softplus, FUNCTION)

/* The vector forms of sin, cos and tan are valid up to TREK_SIN_LIMIT; larger arguments use libm. Blocks without them are
 * computed by vectors, others one number at a time, so that no number's result depends on what is beside it. */
#define PERIODIC_ROW(op, small, call)                                                                  \
    static void op##_f32_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs)    \
    {                                                                                                  \
        float *result = to;                                                                            \
        const float *xs = from[0];                                                                     \
        (void)attrs;                                                                                   \
        for (int64_t begin = 0; begin < n; begin += 256) {                                             \
            int64_t end = begin + 256 < n ? begin + 256 : n;                                           \
            int large = 0;                                                                             \
            for (int64_t i = begin; i < end; i++)                                                      \
                large |= !(fabsf(xs[i]) <= TREK_SIN_LIMIT);                                            \
            if (large) {                                                                               \
                for (int64_t i = begin; i < end; i++)                                                  \
                    result[i] = fabsf(xs[i]) <= TREK_SIN_LIMIT ? small(xs[i]) : call(xs[i]);           \
                continue;                                                                              \
            }                                                                                          \
            TREK_INDEPENDENT                                                                           \
            for (int64_t i = begin; i < end; i++)                                                      \
                result[i] = small(xs[i]);                                                              \
        }                                                                                              \
    }                                                                                                  \
    TREK_UNARY_LIBRARY_ROW(op, f64, trek_##op##_f64_library(x))                                        \
    TREK_UNARY_FLOAT_KERNELS(op, FUNCTION)
PERIODIC_ROW(sin, trek_sin_small_f32, sinf)
PERIODIC_ROW(cos, trek_cos_small_f32, cosf)
PERIODIC_ROW(tan, trek_tan_small_f32, tanf)

TREK_UNARY_WIDE_ROW(gelu_erf, trek_gelu_wide(x))
TREK_UNARY_WIDE_ROW(gelu_tanh, trek_gelu_tanh_wide(x))
static void gelu_f32_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs)
{
    (attrs->i[0] ? gelu_tanh_f32_row : gelu_erf_f32_row)(to, from, n, attrs);
}
TREK_UNARY_LIBRARY_ROW(gelu_erf, f64, trek_gelu_wide64(x))
TREK_UNARY_LIBRARY_ROW(gelu_tanh, f64, trek_gelu_tanh_wide64(x))
static void gelu_f64_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs)
{
    (attrs->i[0] ? gelu_tanh_f64_row : gelu_erf_f64_row)(to, from, n, attrs);
}
TREK_UNARY_KERNEL(gelu, f32, f32, 4, FUNCTION)
TREK_UNARY_KERNEL(gelu, f64, f64, 8, FUNCTION)
#if defined(TREK_WIDE_ROW_16)
TREK_WIDE_ROW_16(gelu_erf, bf16, 1, trek_gelu_short_wide(x))
TREK_WIDE_ROW_16(gelu_erf, f16, 1, trek_gelu_short_wide(x))
#define GELU_SHORT(format, lane) { gelu_erf_##format##_row, FUNCTION, 1, TREK_LANE_2, .in = { TREK_LANE_2 } }
#else
#define GELU_SHORT(format, lane) { gelu_erf_f32_row, FUNCTION, 1, lane, .in = { lane } }
#endif
#define GELU(format, lane)                                                                                                       \
    static trek_status gelu_##format(const trek_op_call *call)                                                                   \
    {                                                                                                                            \
        static const trek_map maps[] = { GELU_SHORT(format, lane),                                                               \
                                         { gelu_tanh_f32_row, FUNCTION, 1, lane, .in = { lane } } };                \
        return trek_map_run(call, &maps[call->attrs.i[0] != 0]);                                                                 \
    }
GELU(bf16, TREK_LANE_BF16)
GELU(f16, TREK_LANE_F16)

/* With a number. */
TREK_UNARY_FLOATS(add_scalar, CHEAP, x + s, x + s)
TREK_UNARY_FLOATS(mul_scalar, CHEAP, x *s, x *s)
TREK_UNARY_INTEGERS(add_scalar, x + s)
TREK_UNARY_INTEGERS(mul_scalar, x *s)
/* max(s, x) first, as PyTorch does: if the bounds cross, the upper one wins; NaN passes. */
TREK_UNARY_FLOATS(clamp, CHEAP, (x < s ? s : x) > t ? t : (x < s ? s : x), (x < s ? s : x) > t ? t : (x < s ? s : x))

/* Integers between real bounds: the integers within them. */
#define CLAMP_INTEGERS(suffix, lowest, highest)                                                        \
    static void clamp_##suffix##_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        TREK_TYPE_##suffix *result = to;                                                               \
        const TREK_TYPE_##suffix *xs = from[0];                                                        \
        int64_t low = trek_i64_from_f64(ceil(attrs->f[0])), high = trek_i64_from_f64(floor(attrs->f[1])); \
        const TREK_TYPE_##suffix s = (TREK_TYPE_##suffix)(low < lowest ? lowest : low > highest ? highest : low); \
        const TREK_TYPE_##suffix t = (TREK_TYPE_##suffix)(high < lowest ? lowest : high > highest ? highest : high); \
        TREK_INDEPENDENT                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                              \
            TREK_TYPE_##suffix x = xs[i] < s ? s : xs[i];                                              \
            result[i] = x > t ? t : x;                                                                 \
        }                                                                                              \
    }                                                                                                  \
    TREK_UNARY_KERNEL(clamp, suffix, suffix, TREK_WIDTH_##suffix, CHEAP)
CLAMP_INTEGERS(i64, INT64_MIN, INT64_MAX)
CLAMP_INTEGERS(i32, INT32_MIN, INT32_MAX)
CLAMP_INTEGERS(u8, 0, UINT8_MAX)

/* Powers: common exponents without a call, some of them as ops of their own. */
#define POWER_FLOATS(suffix, T, power)                                                                 \
    static void power_##suffix##_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        T *result = to;                                                                                \
        const T *x = from[0], exponent = (T)attrs->f[0];                                               \
        if (exponent == 3) {                                                                           \
            TREK_INDEPENDENT                                                                           \
            for (int64_t i = 0; i < n; i++)                                                            \
                result[i] = x[i] * x[i] * x[i];                                                        \
        } else if (exponent == -2) {                                                                   \
            TREK_INDEPENDENT                                                                           \
            for (int64_t i = 0; i < n; i++)                                                            \
                result[i] = 1 / (x[i] * x[i]);                                                         \
        } else {                                                                                       \
            TREK_INDEPENDENT                                                                           \
            for (int64_t i = 0; i < n; i++)                                                            \
                result[i] = power(x[i], exponent);                                                     \
        }                                                                                              \
    }
POWER_FLOATS(f32, float, powf)
POWER_FLOATS(f64, double, pow)
TREK_UNARY_FLOAT_KERNELS(power, FUNCTION)
#define POWER_KERNEL(dtype, T)                                                                         \
    static trek_status pow_scalar_##dtype(const trek_op_call *call)                                    \
    {                                                                                                  \
        const T exponent = (T)call->attrs.f[0];                                                        \
        return exponent == 2         ? square_##dtype(call)                                            \
               : exponent == (T)0.5  ? sqrt_##dtype(call)                                              \
               : exponent == (T)-0.5 ? rsqrt_##dtype(call)                                             \
               : exponent == -1      ? reciprocal_##dtype(call)                                        \
                                     : power_##dtype(call);                                            \
    }
POWER_KERNEL(f32, float)
POWER_KERNEL(f64, double)
POWER_KERNEL(bf16, float)
POWER_KERNEL(f16, float)
#define POWER_INTEGERS(suffix)                                                                         \
    TREK_UNARY_ROW(pow_scalar, suffix, suffix, trek_power_integer((int64_t)x, trek_i64_from_f64(attrs->f[0]))) \
    TREK_UNARY_KERNEL(pow_scalar, suffix, suffix, TREK_WIDTH_##suffix, FUNCTION)
POWER_INTEGERS(i64)
POWER_INTEGERS(i32)
/* Uses a table, because there are only 256 bytes. */
static void pow_scalar_u8_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs)
{
    uint8_t *result = to, powers[256];
    const uint8_t *xs = from[0];
    const int64_t exponent = trek_i64_from_f64(attrs->f[0]);
    for (int x = 0; x < 256; x++)
        powers[x] = (uint8_t)trek_power_integer(x, exponent);
    for (int64_t i = 0; i < n; i++)
        result[i] = powers[xs[i]];
}
TREK_UNARY_KERNEL(pow_scalar, u8, u8, 1, FUNCTION)

void TREK_ISA_NAME(trek_cpu_register_unary)(trek_backend *b)
{
#define NUMBERS(op) (TREK_ENTER_FLOATS(b, op), TREK_ENTER_INTEGERS(b, op));
#define FLOATS(op) TREK_ENTER_FLOATS(b, op);
    NUMBERS(neg) NUMBERS(abs) NUMBERS(sign) NUMBERS(square) NUMBERS(relu) NUMBERS(floor) NUMBERS(ceil) NUMBERS(round)
    NUMBERS(trunc) NUMBERS(add_scalar) NUMBERS(mul_scalar) NUMBERS(clamp) NUMBERS(pow_scalar)
    FLOATS(exp) FLOATS(expm1) FLOATS(log) FLOATS(log1p) FLOATS(log2) FLOATS(log10) FLOATS(sqrt) FLOATS(rsqrt)
    FLOATS(reciprocal) FLOATS(sin) FLOATS(cos) FLOATS(tan) FLOATS(asin) FLOATS(acos) FLOATS(atan) FLOATS(sinh) FLOATS(cosh)
    FLOATS(tanh) FLOATS(sigmoid) FLOATS(erf) FLOATS(gelu) FLOATS(silu) FLOATS(softplus)
#undef NUMBERS
#undef FLOATS
}
