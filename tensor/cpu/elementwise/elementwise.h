/* SPDX-License-Identifier: Apache-2.0 */
/* Templates of element-wise kernels, which make rows, kernels and table entries from an expression. In expressions x,
 * y, z are the elements; s and t are the call's first two numbers in the element's type; number is the first one
 * unrounded, flag its first integer. */
#ifndef TREK_TENSOR_CPU_ELEMENTWISE_ELEMENTWISE_H
#define TREK_TENSOR_CPU_ELEMENTWISE_ELEMENTWISE_H

#include "tensor/cpu/elementwise/map.h"
#include "tensor/cpu/wide.h"

/* Converts to the nearest representable integer towards zero; NaN gives 0. */
static inline int64_t trek_i64_from_f64(double x)
{
    int64_t inside = x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : 0;
    return x >= 0x1p63 ? INT64_MAX : x < -0x1p63 ? INT64_MIN : inside;
}
static inline int32_t trek_i32_from_f64(double x)
{
    x = x < -2147483648.0 ? -2147483648.0 : x;
    x = x > 2147483647.0 ? 2147483647.0 : x;
    return x == x ? (int32_t)x : 0;
}

/* Wraps around. With a negative exponent it gives the exact result rounded towards zero: 1, -1 or 0. */
static inline int64_t trek_power_integer(int64_t base, int64_t exponent)
{
    if (exponent < 0)
        return base == 1 ? 1 : base == -1 ? (exponent & 1 ? -1 : 1) : 0;
    uint64_t result = 1, factor = (uint64_t)base;
    for (; exponent > 0; exponent >>= 1, factor *= factor)
        if (exponent & 1)
            result *= factor;
    return (int64_t)result;
}

/* Computes a power of bytes in as many steps as an exponent has bits, without branches, so that it can be vectorised. */
static inline uint8_t trek_power_u8(uint32_t base, uint32_t exponent)
{
    uint32_t result = 1;
    for (int bit = 0; bit < 8; bit++, base *= base)
        result *= exponent >> bit & 1 ? base : 1;
    return (uint8_t)result;
}

/* Element types by suffix, and a double as one of them. */
#define TREK_TYPE_f32 float
#define TREK_TYPE_f64 double
#define TREK_TYPE_i64 int64_t
#define TREK_TYPE_i32 int32_t
#define TREK_TYPE_u8 uint8_t
#define TREK_TYPE_boolean uint8_t
/* ... and the types that expressions use */
#define TREK_WORK_f32 float
#define TREK_WORK_f64 double
#define TREK_WORK_i64 int64_t
#define TREK_WORK_i32 int32_t
#define TREK_WORK_u8 int32_t
#define TREK_WORK_boolean uint8_t
#define TREK_NUMBER_f32(v) ((float)(v))
#define TREK_NUMBER_f64(v) (v)
#define TREK_NUMBER_i64(v) trek_i64_from_f64(v)
#define TREK_NUMBER_i32(v) ((int32_t)trek_i64_from_f64(v))
#define TREK_NUMBER_u8(v) ((uint8_t)trek_i64_from_f64(v))
#define TREK_NUMBER_boolean(v) ((uint8_t)((v) != 0))
#define TREK_WIDTH_f32 4
#define TREK_WIDTH_f64 8
#define TREK_WIDTH_i64 8
#define TREK_WIDTH_i32 4
#define TREK_WIDTH_u8 1
#define TREK_WIDTH_boolean 1
#define TREK_WIDTH_bf16 BF16
#define TREK_WIDTH_f16 F16

#define TREK_ROW_NUMBERS(suffix)                                                                       \
    const TREK_WORK_##suffix s = TREK_NUMBER_##suffix(attrs->f[0]), t = TREK_NUMBER_##suffix(attrs->f[1]); \
    const int64_t flag = attrs->i[0];                                                                  \
    const double number = attrs->f[0];                                                                 \
    (void)s, (void)t, (void)flag, (void)number

/* Applied to the functions of rows: noinline if a second copy of each in its kernel would be large and gain nothing. */
#ifndef TREK_ROW_ATTRIBUTE
#define TREK_ROW_ATTRIBUTE
#endif

/* Row functions: op_suffix_row for elements of one type and results of another. */
#define TREK_UNARY_ROW(op, suffix, out_suffix, expression)                                             \
    TREK_ROW_ATTRIBUTE static void op##_##suffix##_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        TREK_TYPE_##out_suffix *result = to;                                                           \
        const TREK_TYPE_##suffix *xs = from[0];                                                        \
        TREK_ROW_NUMBERS(suffix);                                                                      \
        TREK_INDEPENDENT                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                              \
            const TREK_WORK_##suffix x = xs[i];                                                        \
            result[i] = (TREK_TYPE_##out_suffix)(expression);                                          \
        }                                                                                              \
    }
#define TREK_BINARY_ROW(op, suffix, out_suffix, expression)                                            \
    TREK_ROW_ATTRIBUTE static void op##_##suffix##_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        TREK_TYPE_##out_suffix *result = to;                                                           \
        const TREK_TYPE_##suffix *xs = from[0], *ys = from[1];                                         \
        TREK_ROW_NUMBERS(suffix);                                                                      \
        TREK_INDEPENDENT                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                              \
            const TREK_WORK_##suffix x = xs[i], y = ys[i];                                             \
            result[i] = (TREK_TYPE_##out_suffix)(expression);                                          \
        }                                                                                              \
    }

/* op_suffix_one: the same where y is one element for the whole row. */
#define TREK_BINARY_ONE(op, suffix, expression)                                                        \
    TREK_ROW_ATTRIBUTE static void op##_##suffix##_one(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        TREK_TYPE_##suffix *result = to;                                                               \
        const TREK_TYPE_##suffix *xs = from[0];                                                        \
        const TREK_WORK_##suffix y = *(const TREK_TYPE_##suffix *)from[1];                             \
        TREK_ROW_NUMBERS(suffix);                                                                      \
        TREK_INDEPENDENT                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                              \
            const TREK_WORK_##suffix x = xs[i];                                                        \
            result[i] = (TREK_TYPE_##suffix)(expression);                                              \
        }                                                                                              \
    }

#define TREK_TERNARY_ROW(op, suffix, expression)                                                       \
    TREK_ROW_ATTRIBUTE static void op##_##suffix##_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        TREK_TYPE_##suffix *result = to;                                                               \
        const TREK_TYPE_##suffix *xs = from[0], *ys = from[1], *zs = from[2];                          \
        TREK_ROW_NUMBERS(suffix);                                                                      \
        TREK_INDEPENDENT                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                              \
            const TREK_WORK_##suffix x = xs[i], y = ys[i], z = zs[i];                                  \
            result[i] = (TREK_TYPE_##suffix)(expression);                                              \
        }                                                                                              \
    }

/* The same where z is one element for the whole row. */
#define TREK_TERNARY_ONE(op, suffix, expression)                                                       \
    TREK_ROW_ATTRIBUTE static void op##_##suffix##_one(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        TREK_TYPE_##suffix *result = to;                                                               \
        const TREK_TYPE_##suffix *xs = from[0], *ys = from[1];                                         \
        const TREK_WORK_##suffix z = *(const TREK_TYPE_##suffix *)from[2];                             \
        TREK_ROW_NUMBERS(suffix);                                                                      \
        TREK_INDEPENDENT                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                              \
            const TREK_WORK_##suffix x = xs[i], y = ys[i];                                             \
            result[i] = (TREK_TYPE_##suffix)(expression);                                              \
        }                                                                                              \
    }

/* op_suffix_pairs: the same for every second element of each input. Without buffers the CPU fetches from all of them at the same
 * time. */
#define TREK_BINARY_PAIRS(op, suffix, expression)                                                      \
    TREK_ROW_ATTRIBUTE static void op##_##suffix##_pairs(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        TREK_TYPE_##suffix *result = to;                                                               \
        const TREK_TYPE_##suffix *xs = from[0], *ys = from[1];                                         \
        TREK_ROW_NUMBERS(suffix);                                                                      \
        TREK_INDEPENDENT                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                              \
            const TREK_WORK_##suffix x = xs[2 * i], y = ys[2 * i];                                     \
            result[i] = (TREK_TYPE_##suffix)(expression);                                              \
        }                                                                                              \
    }
#define TREK_TERNARY_PAIRS(op, suffix, expression)                                                     \
    TREK_ROW_ATTRIBUTE static void op##_##suffix##_pairs(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        TREK_TYPE_##suffix *result = to;                                                               \
        const TREK_TYPE_##suffix *xs = from[0], *ys = from[1], *zs = from[2];                          \
        TREK_ROW_NUMBERS(suffix);                                                                      \
        TREK_INDEPENDENT                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                              \
            const TREK_WORK_##suffix x = xs[2 * i], y = ys[2 * i], z = zs[2 * i];                      \
            result[i] = (TREK_TYPE_##suffix)(expression);                                              \
        }                                                                                              \
    }

/* Rows of f32 written with vectors: x, y, s and t have the type trek_wide. */
#define TREK_UNARY_WIDE_ROW(op, expression)                                                            \
    static void op##_f32_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs)    \
    {                                                                                                  \
        float *result = to;                                                                            \
        const float *xs = from[0];                                                                     \
        const trek_wide s = trek_spread_wide((float)attrs->f[0]), t = trek_spread_wide((float)attrs->f[1]); \
        (void)s, (void)t;                                                                              \
        int64_t i = 0;                                                                                 \
        for (; i + TREK_WIDE <= n; i += TREK_WIDE) {                                                   \
            const trek_wide x = trek_load_wide(xs + i);                                                \
            trek_store_wide(result + i, expression);                                                   \
        }                                                                                              \
        if (i < n) {                                                                                   \
            const trek_wide x = trek_load_part_wide(xs + i, n - i);                                    \
            trek_store_part_wide(result + i, expression, n - i);                                       \
        }                                                                                              \
    }
#define TREK_BINARY_WIDE_ROW(op, expression)                                                           \
    static void op##_f32_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs)    \
    {                                                                                                  \
        float *result = to;                                                                            \
        const float *xs = from[0], *ys = from[1];                                                      \
        (void)attrs;                                                                                   \
        int64_t i = 0;                                                                                 \
        for (; i + TREK_WIDE <= n; i += TREK_WIDE) {                                                   \
            const trek_wide x = trek_load_wide(xs + i), y = trek_load_wide(ys + i);                    \
            trek_store_wide(result + i, expression);                                                   \
        }                                                                                              \
        if (i < n) {                                                                                   \
            const trek_wide x = trek_load_part_wide(xs + i, n - i), y = trek_load_part_wide(ys + i, n - i); \
            trek_store_part_wide(result + i, expression, n - i);                                       \
        }                                                                                              \
    }
#define TREK_TERNARY_WIDE_ROW(op, expression)                                                          \
    static void op##_f32_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs)    \
    {                                                                                                  \
        float *result = to;                                                                            \
        const float *xs = from[0], *ys = from[1], *zs = from[2];                                       \
        (void)attrs;                                                                                   \
        int64_t i = 0;                                                                                 \
        for (; i + TREK_WIDE <= n; i += TREK_WIDE) {                                                   \
            const trek_wide x = trek_load_wide(xs + i), y = trek_load_wide(ys + i), z = trek_load_wide(zs + i); \
            trek_store_wide(result + i, expression);                                                   \
        }                                                                                              \
        if (i < n) {                                                                                   \
            const trek_wide x = trek_load_part_wide(xs + i, n - i), y = trek_load_part_wide(ys + i, n - i); \
            const trek_wide z = trek_load_part_wide(zs + i, n - i);                                    \
            trek_store_part_wide(result + i, expression, n - i);                                       \
        }                                                                                              \
    }

/* The kernel of one dtype, made from the row of `suffix` (f32 for 16-bit dtypes). */
#define TREK_UNARY_KERNEL(op, dtype, suffix, out_width, grain)                                         \
    TREK_MAP_KERNEL(op##_##dtype, op##_##suffix##_row, grain, 1, TREK_LANE(out_width), TREK_LANE(TREK_WIDTH_##dtype))
#define TREK_BINARY_KERNEL(op, dtype, suffix, out_width, grain)                                        \
    TREK_MAP_KERNEL(op##_##dtype, op##_##suffix##_row, grain, 2, TREK_LANE(out_width), TREK_LANE(TREK_WIDTH_##dtype), \
                    TREK_LANE(TREK_WIDTH_##dtype))
#define TREK_BINARY_KERNEL_ONE(op, dtype, grain)                                                       \
    TREK_MAP_KERNEL_ONE(op##_##dtype, op##_##dtype##_row, op##_##dtype##_one, grain, 2, TREK_LANE(TREK_WIDTH_##dtype), \
                        TREK_LANE(TREK_WIDTH_##dtype), TREK_LANE(TREK_WIDTH_##dtype))
#define TREK_BINARY_KERNEL_FORMS(op, dtype, grain)                                                     \
    TREK_MAP_KERNEL_FORMS(op##_##dtype, op##_##dtype##_row, op##_##dtype##_one, op##_##dtype##_pairs, grain, 2, \
                          TREK_LANE(TREK_WIDTH_##dtype), TREK_LANE(TREK_WIDTH_##dtype), TREK_LANE(TREK_WIDTH_##dtype))
#define TREK_TERNARY_KERNEL_FORMS(op, dtype, grain)                                                    \
    TREK_MAP_KERNEL_FORMS(op##_##dtype, op##_##dtype##_row, op##_##dtype##_one, op##_##dtype##_pairs, grain, 3, \
                          TREK_LANE(TREK_WIDTH_##dtype), TREK_LANE(TREK_WIDTH_##dtype), TREK_LANE(TREK_WIDTH_##dtype), \
                          TREK_LANE(TREK_WIDTH_##dtype))
#define TREK_TERNARY_KERNEL(op, dtype, suffix, grain)                                                  \
    TREK_MAP_KERNEL(op##_##dtype, op##_##suffix##_row, grain, 3, TREK_LANE(TREK_WIDTH_##dtype), TREK_LANE(TREK_WIDTH_##dtype), \
                    TREK_LANE(TREK_WIDTH_##dtype), TREK_LANE(TREK_WIDTH_##dtype))

/* Rows of 16-bit floats for expressions that cost no more than the conversions. These happen in registers, a vector
 * at a time, in the loop that computes. Expressions are those of f32. Without vector conversions this would gain
 * nothing. */
#if defined(__AVX2__) && defined(__F16C__)
/* For all whole vectors of xs: the expression of each number x to result. i is then where the rest begins. */
#define TREK_LOOP_16(format, expression)                                                               \
    int64_t i = 0;                                                                                     \
    for (; i + TREK_WIDE <= n; i += TREK_WIDE) {                                                       \
        float many[TREK_WIDE];                                                                         \
        trek_store_wide(many, trek_load_wide_##format(xs + i));                                        \
        for (int l = 0; l < TREK_WIDE; l++) {                                                          \
            const float x = many[l];                                                                   \
            many[l] = (float)(expression);                                                             \
        }                                                                                              \
        trek_store_wide_##format(result + i, trek_load_wide(many));                                    \
    }
#define TREK_UNARY_ROW_16(op, format, expression)                                                      \
    static void op##_##format##_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs)\
    {                                                                                                  \
        uint16_t *result = to;                                                                         \
        const uint16_t *xs = from[0];                                                                  \
        TREK_ROW_NUMBERS(f32);                                                                         \
        TREK_LOOP_16(format, expression)                                                               \
        TREK_ISA_NAME(trek_row_rest_16)(op##_##format##_row, result + i, (const void *[]){ xs + i }, 1, n - i, attrs); \
    }
#define TREK_BINARY_ROW_16(op, format, expression)                                                     \
    static void op##_##format##_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs)\
    {                                                                                                  \
        uint16_t *result = to;                                                                         \
        const uint16_t *xs = from[0], *ys = from[1];                                                   \
        TREK_ROW_NUMBERS(f32);                                                                         \
        int64_t i = 0;                                                                                 \
        for (; i + TREK_WIDE <= n; i += TREK_WIDE) {                                                   \
            float many[TREK_WIDE], others[TREK_WIDE];                                                  \
            trek_store_wide(many, trek_load_wide_##format(xs + i));                                    \
            trek_store_wide(others, trek_load_wide_##format(ys + i));                                  \
            for (int l = 0; l < TREK_WIDE; l++) {                                                      \
                const float x = many[l], y = others[l];                                                \
                many[l] = (float)(expression);                                                         \
            }                                                                                          \
            trek_store_wide_##format(result + i, trek_load_wide(many));                                \
        }                                                                                              \
        TREK_ISA_NAME(trek_row_rest_16)(op##_##format##_row, result + i, (const void *[]){ xs + i, ys + i }, 2, n - i, attrs); \
    }
#define TREK_BINARY_ONE_16(op, format, expression)                                                     \
    static void op##_##format##_one(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        uint16_t *result = to, repeated[TREK_ROW_VECTOR];                                              \
        const uint16_t *xs = from[0];                                                                  \
        const float y = trek_f32_from_##format(*(const uint16_t *)from[1]);                            \
        TREK_ROW_NUMBERS(f32);                                                                         \
        TREK_LOOP_16(format, expression)                                                               \
        for (int l = 0; l < TREK_ROW_VECTOR; l++)                                                      \
            repeated[l] = *(const uint16_t *)from[1];                                                  \
        TREK_ISA_NAME(trek_row_rest_16)                                                                \
        (op##_##format##_row, result + i, (const void *[]){ xs + i, repeated }, 2, n - i, attrs);      \
    }
/* Rows of 16-bit floats written with vectors, two at a time, for expressions without numbers of the call. */
#define TREK_WIDE_ROW_16(op, format, n_in, expression)                                                                           \
    static void op##_##format##_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs)                       \
    {                                                                                                                            \
        uint16_t *result = to;                                                                                                   \
        const uint16_t *xs = from[0], *ys = from[n_in - 1];                                                                      \
        int64_t i = 0;                                                                                                           \
        for (; i + 2 * TREK_WIDE <= n; i += 2 * TREK_WIDE) {                                                                     \
            trek_wide two[2], others[2];                                                                                         \
            trek_load_two_wide_##format(xs + i, two);                                                                            \
            trek_load_two_wide_##format(ys + i, others);                                                                         \
            _Pragma("GCC unroll 2") for (int k = 0; k < 2; k++)                                                                  \
            {                                                                                                                    \
                const trek_wide x = two[k], y = others[k];                                                                       \
                (void)y;                                                                                                         \
                two[k] = expression;                                                                                             \
            }                                                                                                                    \
            trek_store_two_wide_##format(result + i, two);                                                                       \
        }                                                                                                                        \
        TREK_ISA_NAME(trek_row_rest_16)                                                                                          \
        (op##_##format##_row, result + i, (const void *[]){ xs + i, ys + i }, n_in, n - i, attrs);                               \
    }
#define TREK_TERNARY_ROW_16(op, format, expression)                                                    \
    static void op##_##format##_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs)\
    {                                                                                                  \
        uint16_t *result = to;                                                                         \
        const uint16_t *const *in = (const uint16_t *const *)from;                                     \
        TREK_ROW_NUMBERS(f32);                                                                         \
        int64_t i = 0;                                                                                 \
        for (; i + TREK_WIDE <= n; i += TREK_WIDE) {                                                   \
            float many[3][TREK_WIDE];                                                                  \
            for (int k = 0; k < 3; k++)                                                                \
                trek_store_wide(many[k], trek_load_wide_##format(in[k] + i));                          \
            for (int l = 0; l < TREK_WIDE; l++) {                                                      \
                const float x = many[0][l], y = many[1][l], z = many[2][l];                            \
                many[0][l] = (float)(expression);                                                      \
            }                                                                                          \
            trek_store_wide_##format(result + i, trek_load_wide(many[0]));                             \
        }                                                                                              \
        TREK_ISA_NAME(trek_row_rest_16)(op##_##format##_row, result + i, (const void *[]){ in[0] + i, in[1] + i, in[2] + i }, \
                                        3, n - i, attrs);                                              \
    }
#define TREK_UNARY_KERNELS_16(op, grain, expression)                                                   \
    TREK_UNARY_ROW_16(op, bf16, expression)                                                            \
    TREK_UNARY_ROW_16(op, f16, expression)                                                             \
    TREK_MAP_KERNEL(op##_bf16, op##_bf16_row, grain, 1, TREK_LANE_2, TREK_LANE_2)                      \
    TREK_MAP_KERNEL(op##_f16, op##_f16_row, grain, 1, TREK_LANE_2, TREK_LANE_2)
#define TREK_BINARY_KERNELS_16(op, grain, expression)                                                  \
    TREK_BINARY_ROW_16(op, bf16, expression)                                                           \
    TREK_BINARY_ROW_16(op, f16, expression)                                                            \
    TREK_MAP_KERNEL(op##_bf16, op##_bf16_row, grain, 2, TREK_LANE_2, TREK_LANE_2, TREK_LANE_2)         \
    TREK_MAP_KERNEL(op##_f16, op##_f16_row, grain, 2, TREK_LANE_2, TREK_LANE_2, TREK_LANE_2)
#define TREK_BINARY_KERNELS_ONE_16(op, grain, expression)                                              \
    TREK_BINARY_ROW_16(op, bf16, expression)                                                           \
    TREK_BINARY_ROW_16(op, f16, expression)                                                            \
    TREK_BINARY_ONE_16(op, bf16, expression)                                                           \
    TREK_BINARY_ONE_16(op, f16, expression)                                                            \
    TREK_MAP_KERNEL_ONE(op##_bf16, op##_bf16_row, op##_bf16_one, grain, 2, TREK_LANE_2, TREK_LANE_2, TREK_LANE_2) \
    TREK_MAP_KERNEL_ONE(op##_f16, op##_f16_row, op##_f16_one, grain, 2, TREK_LANE_2, TREK_LANE_2, TREK_LANE_2)
#define TREK_TERNARY_KERNELS_16(op, grain, expression)                                                 \
    TREK_TERNARY_ROW_16(op, bf16, expression)                                                          \
    TREK_TERNARY_ROW_16(op, f16, expression)                                                           \
    TREK_MAP_KERNEL(op##_bf16, op##_bf16_row, grain, 3, TREK_LANE_2, TREK_LANE_2, TREK_LANE_2, TREK_LANE_2) \
    TREK_MAP_KERNEL(op##_f16, op##_f16_row, grain, 3, TREK_LANE_2, TREK_LANE_2, TREK_LANE_2, TREK_LANE_2)
#else
#define TREK_UNARY_KERNELS_16(op, grain, expression)                                                   \
    TREK_UNARY_KERNEL(op, bf16, f32, BF16, grain)                                                      \
    TREK_UNARY_KERNEL(op, f16, f32, F16, grain)
#define TREK_BINARY_KERNELS_16(op, grain, expression)                                                  \
    TREK_BINARY_KERNEL(op, bf16, f32, BF16, grain)                                                     \
    TREK_BINARY_KERNEL(op, f16, f32, F16, grain)
#define TREK_BINARY_KERNELS_ONE_16 TREK_BINARY_KERNELS_16
#define TREK_TERNARY_KERNELS_16(op, grain, expression)                                                 \
    TREK_TERNARY_KERNEL(op, bf16, f32, grain)                                                          \
    TREK_TERNARY_KERNEL(op, f16, f32, grain)
#endif

/* All four floating dtypes from two expressions; the three integers from one. */
#define TREK_UNARY_FLOATS(op, grain, f32_expression, f64_expression)                                   \
    TREK_UNARY_ROW(op, f32, f32, f32_expression)                                                       \
    TREK_UNARY_ROW(op, f64, f64, f64_expression)                                                       \
    TREK_UNARY_KERNEL(op, f32, f32, 4, grain)                                                          \
    TREK_UNARY_KERNEL(op, f64, f64, 8, grain)                                                          \
    TREK_UNARY_KERNELS_16(op, grain, f32_expression)
#define TREK_UNARY_FLOAT_KERNELS(op, grain)                                                            \
    TREK_UNARY_KERNEL(op, f32, f32, 4, grain)                                                          \
    TREK_UNARY_KERNEL(op, f64, f64, 8, grain)                                                          \
    TREK_UNARY_KERNEL(op, bf16, f32, BF16, grain)                                                      \
    TREK_UNARY_KERNEL(op, f16, f32, F16, grain)
#define TREK_UNARY_INTEGERS(op, expression)                                                            \
    TREK_UNARY_ROW(op, i64, i64, expression)                                                           \
    TREK_UNARY_ROW(op, i32, i32, expression)                                                           \
    TREK_UNARY_ROW(op, u8, u8, expression)                                                             \
    TREK_UNARY_KERNEL(op, i64, i64, 8, TREK_GRAIN_CHEAP)                                               \
    TREK_UNARY_KERNEL(op, i32, i32, 4, TREK_GRAIN_CHEAP)                                               \
    TREK_UNARY_KERNEL(op, u8, u8, 1, TREK_GRAIN_CHEAP)
#define TREK_BINARY_FLOATS(op, grain, f32_expression, f64_expression)                                  \
    TREK_BINARY_ROW(op, f32, f32, f32_expression)                                                      \
    TREK_BINARY_ROW(op, f64, f64, f64_expression)                                                      \
    TREK_BINARY_KERNEL(op, f32, f32, 4, grain)                                                         \
    TREK_BINARY_KERNEL(op, f64, f64, 8, grain)                                                         \
    TREK_BINARY_KERNELS_16(op, grain, f32_expression)
/* The same, with rows for a y that is one element, and for every second element: for ops of which x and a column, or columns of
 * matrices, are common inputs. */
#define TREK_BINARY_FLOATS_ONE(op, grain, f32_expression, f64_expression)                              \
    TREK_BINARY_ROW(op, f32, f32, f32_expression)                                                      \
    TREK_BINARY_ROW(op, f64, f64, f64_expression)                                                      \
    TREK_BINARY_ONE(op, f32, f32_expression)                                                           \
    TREK_BINARY_ONE(op, f64, f64_expression)                                                           \
    TREK_BINARY_PAIRS(op, f32, f32_expression)                                                         \
    TREK_BINARY_KERNEL_FORMS(op, f32, grain)                                                           \
    TREK_BINARY_KERNEL_ONE(op, f64, grain)                                                             \
    TREK_BINARY_KERNELS_ONE_16(op, grain, f32_expression)
#define TREK_BINARY_FLOAT_KERNELS(op, grain)                                                           \
    TREK_BINARY_KERNEL(op, f32, f32, 4, grain)                                                         \
    TREK_BINARY_KERNEL(op, f64, f64, 8, grain)                                                         \
    TREK_BINARY_KERNEL(op, bf16, f32, BF16, grain)                                                     \
    TREK_BINARY_KERNEL(op, f16, f32, F16, grain)
#define TREK_TERNARY_FLOAT_KERNELS(op, grain)                                                          \
    TREK_TERNARY_KERNEL(op, f32, f32, grain)                                                           \
    TREK_TERNARY_KERNEL(op, f64, f64, grain)                                                           \
    TREK_TERNARY_KERNEL(op, bf16, f32, grain)                                                          \
    TREK_TERNARY_KERNEL(op, f16, f32, grain)
#define TREK_BINARY_INTEGERS(op, grain, expression)                                                    \
    TREK_BINARY_ROW(op, i64, i64, expression)                                                          \
    TREK_BINARY_ROW(op, i32, i32, expression)                                                          \
    TREK_BINARY_ROW(op, u8, u8, expression)                                                            \
    TREK_BINARY_KERNEL(op, i64, i64, 8, grain)                                                         \
    TREK_BINARY_KERNEL(op, i32, i32, 4, grain)                                                         \
    TREK_BINARY_KERNEL(op, u8, u8, 1, grain)
/* One expression, of the numbers and the elements. */
#define TREK_TERNARY_FLOATS(op, grain, expression)                                                     \
    TREK_TERNARY_ROW(op, f32, expression)                                                              \
    TREK_TERNARY_ROW(op, f64, expression)                                                              \
    TREK_TERNARY_ONE(op, f32, expression)                                                              \
    TREK_TERNARY_PAIRS(op, f32, expression)                                                            \
    TREK_TERNARY_KERNEL_FORMS(op, f32, grain)                                                          \
    TREK_TERNARY_KERNEL(op, f64, f64, grain)                                                           \
    TREK_TERNARY_KERNELS_16(op, grain, expression)
#define TREK_BINARY_BOOL(op, expression)                                                               \
    TREK_BINARY_ROW(op, boolean, boolean, expression)                                                        \
    TREK_BINARY_KERNEL(op, boolean, boolean, 1, TREK_GRAIN_CHEAP)

/* Entries of the table for kernels named op_dtype. */
#define TREK_ENTER(b, op, DTYPE, dtype) ((b)->kernels[TREK_OP_##op][TREK_##DTYPE] = op##_##dtype)
#define TREK_ENTER_FLOATS(b, op)                                                                       \
    (TREK_ENTER(b, op, F32, f32), TREK_ENTER(b, op, F64, f64), TREK_ENTER(b, op, BF16, bf16), TREK_ENTER(b, op, F16, f16))
#define TREK_ENTER_INTEGERS(b, op) (TREK_ENTER(b, op, I64, i64), TREK_ENTER(b, op, I32, i32), TREK_ENTER(b, op, U8, u8))
#define TREK_ENTER_BOOL(b, op) TREK_ENTER(b, op, BOOL, boolean)

#endif
