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

static inline double trek_join_lanes(double lanes[TREK_LANES])
{
    for (int half = TREK_LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lanes[l] += lanes[l + half];
    return lanes[0];
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
