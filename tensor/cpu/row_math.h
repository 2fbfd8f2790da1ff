/* SPDX-License-Identifier: Apache-2.0 */
/* Maxima and sums of contiguous rows, in 16 lanes that are joined in fixed
 * order: the same bits on every instruction set. */
#ifndef TREK_TENSOR_CPU_ROW_MATH_H
#define TREK_TENSOR_CPU_ROW_MATH_H

#include "tensor/cpu/vector_math.h"

#define TREK_LANES 16

typedef float trek_f32x16 __attribute__((vector_size(64)));
typedef int32_t trek_i32x16 __attribute__((vector_size(64)));
typedef double trek_f64x8 __attribute__((vector_size(64)));
typedef int64_t trek_i64x8 __attribute__((vector_size(64)));

/* The extreme of `start` and n elements; NaN if one is. Vector types, because
 * the compiler does not see through the test for NaN. */
#define TREK_ROW_EXTREME(name, T, V, I, count, compare)                                                \
    static inline T name(const T *x, int64_t n, T start)                                               \
    {                                                                                                  \
        V a, b;                                                                                        \
        for (int l = 0; l < count; l++)                                                                \
            a[l] = b[l] = start;                                                                       \
        int64_t i = 0;                                                                                 \
        for (; i + 2 * count <= n; i += 2 * count) {                                                   \
            V c, d;                                                                                    \
            memcpy(&c, x + i, sizeof c);                                                               \
            memcpy(&d, x + i + count, sizeof d);                                                       \
            I take_c = (I)(c compare a) | (I)(c != c), take_d = (I)(d compare b) | (I)(d != d);        \
            a = (V)(((I)c & take_c) | ((I)a & ~take_c));                                               \
            b = (V)(((I)d & take_d) | ((I)b & ~take_d));                                               \
        }                                                                                              \
        I take_b = (I)(b compare a) | (I)(b != b);                                                     \
        a = (V)(((I)b & take_b) | ((I)a & ~take_b));                                                   \
        T result = start;                                                                              \
        for (int l = 0; i > 0 && l < count; l++)                                                       \
            result = a[l] compare result || a[l] != a[l] ? a[l] : result;                              \
        for (; i < n; i++)                                                                             \
            result = x[i] compare result || x[i] != x[i] ? x[i] : result;                              \
        return result;                                                                                 \
    }
TREK_ROW_EXTREME(trek_row_max_f32, float, trek_f32x16, trek_i32x16, 16, >)
TREK_ROW_EXTREME(trek_row_min_f32, float, trek_f32x16, trek_i32x16, 16, <)
TREK_ROW_EXTREME(trek_row_max_f64, double, trek_f64x8, trek_i64x8, 8, >)
TREK_ROW_EXTREME(trek_row_min_f64, double, trek_f64x8, trek_i64x8, 8, <)

/* The maximum of the elements that are numbers (-infinity if none is). */
static inline float trek_row_max_number_f32(const float *x, int64_t n)
{
    trek_wide a = trek_spread_wide(-__builtin_inff()), b = a, c = a, d = a;
    int64_t i = 0;
    for (; i + 4 * TREK_WIDE <= n; i += 4 * TREK_WIDE) {
        a = trek_larger_wide(trek_load_wide(x + i), a);
        b = trek_larger_wide(trek_load_wide(x + i + TREK_WIDE), b);
        c = trek_larger_wide(trek_load_wide(x + i + 2 * TREK_WIDE), c);
        d = trek_larger_wide(trek_load_wide(x + i + 3 * TREK_WIDE), d);
    }
    a = trek_larger_wide(trek_larger_wide(a, b), trek_larger_wide(c, d));
    for (; i + TREK_WIDE <= n; i += TREK_WIDE)
        a = trek_larger_wide(trek_load_wide(x + i), a);
    float result = -__builtin_inff();
    for (; i < n; i++)
        result = x[i] > result ? x[i] : result;
    for (int l = 0; n >= TREK_WIDE && l < TREK_WIDE; l++)
        result = a[l] > result ? a[l] : result;
    return result;
}

static inline double trek_join_lanes(double lanes[TREK_LANES])
{
    for (int half = TREK_LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lanes[l] += lanes[l + half];
    return lanes[0];
}

/* The sum of at most 512 elements, or of their squares, in 32 lanes of f32. */
#define TREK_ROW_SHORT_SUM(name, term)                                                                 \
    static inline double name(const float *row, int64_t n)                                             \
    {                                                                                                  \
        trek_wide sums[32 / TREK_WIDE];                                                                \
        for (int k = 0; k < 32 / TREK_WIDE; k++)                                                       \
            sums[k] = trek_spread_wide(0.0f);                                                          \
        int64_t i = 0;                                                                                 \
        for (; i + 32 <= n; i += 32)                                                                   \
            for (int k = 0; k < 32 / TREK_WIDE; k++) {                                                 \
                const trek_wide x = trek_load_wide(row + i + k * TREK_WIDE);                           \
                sums[k] += term;                                                                       \
            }                                                                                          \
        float lanes[32];                                                                               \
        memcpy(lanes, sums, sizeof lanes);                                                             \
        for (int l = 0; i < n; i++, l++) {                                                             \
            const float x = row[i];                                                                    \
            lanes[l] += term;                                                                          \
        }                                                                                              \
        double wide[TREK_LANES];                                                                       \
        for (int l = 0; l < TREK_LANES; l++)                                                           \
            wide[l] = (double)lanes[l] + (double)lanes[l + TREK_LANES];                                \
        return trek_join_lanes(wide);                                                                  \
    }
TREK_ROW_SHORT_SUM(trek_row_short_sum_f32, x)
TREK_ROW_SHORT_SUM(trek_row_short_sum_of_squares_f32, x *x)

/* to[i] = e^(x[i] - maximum), whose sum is returned; to may be x. No number of x is above the maximum.
 * Sums in 16 lanes of f32 over 512 elements, these in f64. */
static inline double trek_row_exp_sum_f32(float *to, const float *x, int64_t n, float maximum)
{
    const trek_wide top = trek_spread_wide(maximum);
    double total = 0;
    for (int64_t begin = 0; begin < n; begin += 512) {
        int64_t end = n - begin < 512 ? n : begin + 512, i = begin;
        trek_wide sums[16 / TREK_WIDE];
        for (int k = 0; k < 16 / TREK_WIDE; k++)
            sums[k] = trek_spread_wide(0.0f);
        for (; i + 16 <= end; i += 16)
            for (int k = 0; k < 16 / TREK_WIDE; k++) {
                trek_wide e = trek_exp_negative_wide(trek_load_wide(x + i + k * TREK_WIDE) - top);
                trek_store_wide(to + i + k * TREK_WIDE, e);
                sums[k] += e;
            }
        float lanes[16];
        memcpy(lanes, sums, sizeof lanes);
        for (int l = 0; i < end; i++, l++) {
            to[i] = trek_exp_negative_f32(x[i] - maximum);
            lanes[l] += to[i];
        }
        double wide[TREK_LANES];
        for (int l = 0; l < TREK_LANES; l++)
            wide[l] = (double)lanes[l];
        total += trek_join_lanes(wide);
    }
    return total;
}

#define TREK_ROW_SUM(name, T)                                                                          \
    static inline double name(const T *x, int64_t n)                                                   \
    {                                                                                                  \
        double lanes[TREK_LANES] = { 0 };                                                              \
        int64_t i = 0;                                                                                 \
        for (; i + TREK_LANES <= n; i += TREK_LANES)                                                   \
            for (int l = 0; l < TREK_LANES; l++)                                                       \
                lanes[l] += (double)x[i + l];                                                          \
        for (int l = 0; i + l < n; l++)                                                                \
            lanes[l] += (double)x[i + l];                                                              \
        return trek_join_lanes(lanes);                                                                 \
    }                                                                                                  \
    static inline double name##_of_squares(const T *x, int64_t n)                                      \
    {                                                                                                  \
        double lanes[TREK_LANES] = { 0 };                                                              \
        int64_t i = 0;                                                                                 \
        for (; i + TREK_LANES <= n; i += TREK_LANES)                                                   \
            for (int l = 0; l < TREK_LANES; l++)                                                       \
                lanes[l] += (double)x[i + l] * (double)x[i + l];                                       \
        for (int l = 0; i + l < n; l++)                                                                \
            lanes[l] += (double)x[i + l] * (double)x[i + l];                                           \
        return trek_join_lanes(lanes);                                                                 \
    }                                                                                                  \
    static inline double name##_of_products(const T *x, const T *y, int64_t n)                         \
    {                                                                                                  \
        double lanes[TREK_LANES] = { 0 };                                                              \
        int64_t i = 0;                                                                                 \
        for (; i + TREK_LANES <= n; i += TREK_LANES)                                                   \
            for (int l = 0; l < TREK_LANES; l++)                                                       \
                lanes[l] += (double)x[i + l] * (double)y[i + l];                                       \
        for (int l = 0; i + l < n; l++)                                                                \
            lanes[l] += (double)x[i + l] * (double)y[i + l];                                           \
        return trek_join_lanes(lanes);                                                                 \
    }
TREK_ROW_SUM(trek_row_sum_f32, float)
TREK_ROW_SUM(trek_row_sum_f64, double)

#endif
