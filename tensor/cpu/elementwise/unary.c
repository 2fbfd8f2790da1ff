/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise kernels of one input, with and without numbers. */
#include "tensor/cpu/elementwise/elementwise.h"
#include "tensor/cpu/elementwise/vector_library.h"
#include "tensor/cpu/vector_math.h"

#define CHEAP TREK_GRAIN_CHEAP
#define FUNCTION TREK_GRAIN_FUNCTION

#define FUNCTIONS(X) X(exp) X(expm1) X(log) X(log1p) X(log2) X(log10) X(sin) X(cos) X(tan) X(tanh) X(erf)
#define FUNCTIONS_OF_BOTH(X) X(asin) X(acos) X(atan) X(sinh) X(cosh)
#define OF_F64(name) TREK_LIBRARY(name, f64, name)
#define OF_F32(name) TREK_LIBRARY(name, f32, name##f)
FUNCTIONS(OF_F64)
FUNCTIONS_OF_BOTH(OF_F64)
FUNCTIONS_OF_BOTH(OF_F32)

static inline double sigmoid_of(double x)
{
    double e = exp(x > 0 ? -x : x);
    return (x >= 0 ? 1.0 : e) / (1.0 + e);
}
static inline trek_wide64 sigmoid_of_wide64(trek_wide64 x)
{
    const trek_wide64 one = (trek_wide64){ 0 } + 1.0;
    trek_wide64 e = trek_exp_f64_library((trek_wide64)((trek_wide64_int)x | INT64_MIN));
    trek_wide64_int positive = (trek_wide64_int)(x >= 0.0);
    return (trek_wide64)(((trek_wide64_int)one & positive) | ((trek_wide64_int)e & ~positive)) / (one + e);
}

static inline double gelu_of(double x, int64_t tanh_form)
{
    if (x < -60)
        return -0.0;
    if (tanh_form)
        return x * sigmoid_of(2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x));
    return 0.5 * x * erfc(-x * 0.70710678118654752440);
}

/* beta s, threshold t: log(1 + e^(s x)) / s, and x where s x > t */
static inline trek_wide softplus_of_wide(trek_wide x, trek_wide s, trek_wide t)
{
    trek_wide scaled = x * s;
    return trek_choose_wide(t, scaled, x, trek_log1p_wide(trek_exp_wide(scaled)) / s);
}
static inline trek_wide elu_of_wide(trek_wide x, trek_wide s)
{
    return trek_choose_wide(trek_spread_wide(0.0f), x, x, s * trek_expm1_wide(x));
}
static inline double softplus_of_f64(double x, double s, double t) { return x * s > t ? x : log1p(exp(x * s)) / s; }

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

TREK_UNARY_FLOATS(neg, CHEAP, -x, -x)
TREK_UNARY_FLOATS(abs, CHEAP, fabsf(x), fabs(x))
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
TREK_UNARY_LIBRARY_ROW(sigmoid, f64, sigmoid_of_wide64(x))
TREK_UNARY_FLOAT_KERNELS(sigmoid, FUNCTION)
TREK_UNARY_LIBRARY_FLOATS(erf, trek_erf_wide(x))
TREK_UNARY_WIDE_ROW(silu, trek_silu_wide(x))
TREK_UNARY_LIBRARY_ROW(silu, f64, x *sigmoid_of_wide64(x))
TREK_UNARY_FLOAT_KERNELS(silu, FUNCTION)
TREK_UNARY_WIDE_FLOATS(softplus, FUNCTION, softplus_of_wide(x, s, t), softplus_of_f64(x, s, t))
TREK_UNARY_FLOATS(leaky_relu, CHEAP, x > 0 ? x : x *s, x > 0 ? x : x *s)
TREK_UNARY_WIDE_FLOATS(elu, FUNCTION, elu_of_wide(x, s), x > 0 ? x : s *expm1(x))

/* The vector forms of sin, cos and tan reach to TREK_SIN_LIMIT; blocks with larger arguments go through libm. */
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
                    result[i] = call(xs[i]);                                                           \
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
TREK_UNARY_ROW(gelu, f64, f64, gelu_of(x, flag))
TREK_UNARY_FLOAT_KERNELS(gelu, FUNCTION)

/* with a number */
TREK_UNARY_FLOATS(add_scalar, CHEAP, x + s, x + s)
TREK_UNARY_FLOATS(mul_scalar, CHEAP, x *s, x *s)
TREK_UNARY_INTEGERS(add_scalar, x + s)
TREK_UNARY_INTEGERS(mul_scalar, x *s)
/* max(s, x) first, as PyTorch: where the bounds cross, the upper one wins; NaN passes */
TREK_UNARY_FLOATS(clamp, CHEAP, (x < s ? s : x) > t ? t : (x < s ? s : x), (x < s ? s : x) > t ? t : (x < s ? s : x))

/* Integers between real bounds: the integers inside them. */
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

/* Powers: the common exponents without a call. */
#define POWER_FLOATS(suffix, T, square_root, power)                                                    \
    static void pow_scalar_##suffix##_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        T *result = to;                                                                                \
        const T *x = from[0], exponent = (T)attrs->f[0];                                               \
        if (exponent == 2) {                                                                           \
            TREK_INDEPENDENT                                                                           \
            for (int64_t i = 0; i < n; i++)                                                            \
                result[i] = x[i] * x[i];                                                               \
        } else if (exponent == 3) {                                                                    \
            TREK_INDEPENDENT                                                                           \
            for (int64_t i = 0; i < n; i++)                                                            \
                result[i] = x[i] * x[i] * x[i];                                                        \
        } else if (exponent == (T)0.5) {                                                               \
            TREK_INDEPENDENT                                                                           \
            for (int64_t i = 0; i < n; i++)                                                            \
                result[i] = square_root(x[i]);                                                         \
        } else if (exponent == (T)-0.5) {                                                              \
            TREK_INDEPENDENT                                                                           \
            for (int64_t i = 0; i < n; i++)                                                            \
                result[i] = 1 / square_root(x[i]);                                                     \
        } else if (exponent == -1) {                                                                   \
            TREK_INDEPENDENT                                                                           \
            for (int64_t i = 0; i < n; i++)                                                            \
                result[i] = 1 / x[i];                                                                  \
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
POWER_FLOATS(f32, float, sqrtf, powf)
POWER_FLOATS(f64, double, sqrt, pow)
TREK_UNARY_FLOAT_KERNELS(pow_scalar, FUNCTION)
#define POWER_INTEGERS(suffix)                                                                         \
    TREK_UNARY_ROW(pow_scalar, suffix, suffix, trek_power_integer((int64_t)x, trek_i64_from_f64(attrs->f[0]))) \
    TREK_UNARY_KERNEL(pow_scalar, suffix, suffix, TREK_WIDTH_##suffix, FUNCTION)
POWER_INTEGERS(i64)
POWER_INTEGERS(i32)
POWER_INTEGERS(u8)

void TREK_ISA_NAME(trek_cpu_register_unary)(trek_backend *b)
{
#define NUMBERS(op) (TREK_ENTER_FLOATS(b, op), TREK_ENTER_INTEGERS(b, op));
#define FLOATS(op) TREK_ENTER_FLOATS(b, op);
    NUMBERS(neg) NUMBERS(abs) NUMBERS(sign) NUMBERS(square) NUMBERS(relu) NUMBERS(floor) NUMBERS(ceil) NUMBERS(round)
    NUMBERS(trunc) NUMBERS(add_scalar) NUMBERS(mul_scalar) NUMBERS(clamp) NUMBERS(pow_scalar)
    FLOATS(exp) FLOATS(expm1) FLOATS(log) FLOATS(log1p) FLOATS(log2) FLOATS(log10) FLOATS(sqrt) FLOATS(rsqrt)
    FLOATS(reciprocal) FLOATS(sin) FLOATS(cos) FLOATS(tan) FLOATS(asin) FLOATS(acos) FLOATS(atan) FLOATS(sinh) FLOATS(cosh)
    FLOATS(tanh) FLOATS(sigmoid) FLOATS(erf) FLOATS(gelu) FLOATS(silu) FLOATS(softplus) FLOATS(leaky_relu) FLOATS(elu)
#undef NUMBERS
#undef FLOATS
}
