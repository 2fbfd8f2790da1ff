/* SPDX-License-Identifier: Apache-2.0 */
/* Maxima and sums of contiguous rows, in 16 lanes that are joined in a fixed order: the bits are the same on every
 * instruction set. */
#ifndef TREK_TENSOR_CPU_ROW_MATH_H
#define TREK_TENSOR_CPU_ROW_MATH_H

#include "tensor/cpu/elementwise/vector_library.h"
#include "tensor/cpu/vector_math.h"

#define TREK_LANES 16

typedef float trek_f32x16 __attribute__((vector_size(64)));
typedef int32_t trek_i32x16 __attribute__((vector_size(64)));
typedef float trek_f32x8 __attribute__((vector_size(32)));
typedef double trek_f64x4 __attribute__((vector_size(32)));
typedef double trek_f64x8 __attribute__((vector_size(64)));
typedef int64_t trek_i64x8 __attribute__((vector_size(64)));

/* The better of two vectors, b where a is NaN; and where one of two is NaN. They are macros because vectors wider
 * than the machine's cannot be arguments of functions. */
#if defined(__AVX512F__)
typedef unsigned trek_nans_f32, trek_nans_f64;
#define TREK_FOUND(nans) ((nans) != 0)
#define TREK_BETTER_f32(order, compare, a, b) (trek_f32x16) _mm512_##order##_ps((__m512)(a), (__m512)(b))
#define TREK_BETTER_f64(order, compare, a, b) (trek_f64x8) _mm512_##order##_pd((__m512d)(a), (__m512d)(b))
#define TREK_NAN_f32(a, b) _mm512_cmp_ps_mask((__m512)(a), (__m512)(b), _CMP_UNORD_Q)
#define TREK_NAN_f64(a, b) _mm512_cmp_pd_mask((__m512d)(a), (__m512d)(b), _CMP_UNORD_Q)
#else
typedef trek_i32x16 trek_nans_f32;
typedef trek_i64x8 trek_nans_f64;
#define TREK_FOUND(nans) trek_any_set(&(nans), sizeof(nans))
/* Compares as bytes, because vectors have no other test for any lane. */
static inline bool trek_any_set(const void *of, size_t size)
{
    const unsigned char *bytes = of;
    unsigned any = 0;
    for (size_t k = 0; k < size; k++)
        any |= bytes[k];
    return any != 0;
}
#define TREK_BETTER_(V, I, compare, a, b) (V)(((I)(a) & ((a)compare(b))) | ((I)(b) & ~((a)compare(b))))
#define TREK_BETTER_f32(order, compare, a, b) TREK_BETTER_(trek_f32x16, trek_i32x16, compare, a, b)
#define TREK_BETTER_f64(order, compare, a, b) TREK_BETTER_(trek_f64x8, trek_i64x8, compare, a, b)
#define TREK_NAN_f32(a, b) ((a) != (a)) | ((b) != (b))
#define TREK_NAN_f64(a, b) ((a) != (a)) | ((b) != (b))
#endif

/* The extreme of `start` and n elements; NaN if one is NaN. */
#define TREK_ROW_EXTREME(suffix, T, V, count, order, compare)                                          \
    static inline T trek_row_##order##_##suffix(const T *x, int64_t n, T start)                        \
    {                                                                                                  \
        V a, b;                                                                                        \
        trek_nans_##suffix nans;                                                                       \
        memset(&nans, 0, sizeof nans);                                                                 \
        for (int l = 0; l < count; l++)                                                                \
            a[l] = b[l] = start;                                                                       \
        int64_t i = 0;                                                                                 \
        for (; i + 2 * count <= n; i += 2 * count) {                                                   \
            V c, d;                                                                                    \
            memcpy(&c, x + i, sizeof c);                                                               \
            memcpy(&d, x + i + count, sizeof d);                                                       \
            a = TREK_BETTER_##suffix(order, compare, c, a);                                            \
            b = TREK_BETTER_##suffix(order, compare, d, b);                                            \
            nans |= TREK_NAN_##suffix(c, d);                                                           \
        }                                                                                              \
        a = TREK_BETTER_##suffix(order, compare, a, b);                                                \
        T result = TREK_FOUND(nans) ? (T)__builtin_nan("") : start;                             \
        for (int l = 0; i > 0 && l < count; l++)                                                       \
            result = a[l] compare result ? a[l] : result;                                              \
        for (; i < n; i++)                                                                             \
            result = x[i] compare result || x[i] != x[i] ? x[i] : result;                              \
        return result;                                                                                 \
    }
TREK_ROW_EXTREME(f32, float, trek_f32x16, 16, max, >)
TREK_ROW_EXTREME(f32, float, trek_f32x16, 16, min, <)
TREK_ROW_EXTREME(f64, double, trek_f64x8, 8, max, >)
TREK_ROW_EXTREME(f64, double, trek_f64x8, 8, min, <)

/* Returns the maximum of the elements that are not NaN (-infinity if all are). */
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

/* Joins eight lanes by halves into a number of this name. */
#define TREK_JOIN_EIGHT(eight, result, operation)                                                      \
    double result;                                                                                     \
    {                                                                                                  \
        trek_f64x4 low_, high_;                                                                        \
        memcpy(&low_, &(eight), sizeof low_);                                                          \
        memcpy(&high_, (const char *)&(eight) + sizeof low_, sizeof high_);                            \
        low_ = low_ operation high_;                                                                   \
        result = (low_[0] operation low_[2]) operation (low_[1] operation low_[3]);                    \
    }

/* Eight f32 as f64; the compiler would use two halves. */
#if defined(__AVX512F__)
#define TREK_WIDENED(eight) (trek_f64x8) _mm512_cvtps_pd((__m256)(eight))
#define TREK_NARROWED(eight) (trek_f32x8) _mm512_cvtpd_ps((__m512d)(eight))
#else
#define TREK_WIDENED(eight) __builtin_convertvector(eight, trek_f64x8)
#define TREK_NARROWED(eight) __builtin_convertvector(eight, trek_f32x8)
#endif
/* Eight elements of a row as f64. */
#define TREK_EIGHT_f32(to, from)                                                                       \
    {                                                                                                  \
        trek_f32x8 narrow_;                                                                            \
        memcpy(&narrow_, from, sizeof narrow_);                                                        \
        to = TREK_WIDENED(narrow_);                                                                    \
    }
#define TREK_EIGHT_f64(to, from) memcpy(&(to), from, sizeof(to));

static inline double trek_join_lanes(double lanes[TREK_LANES])
{
    for (int half = TREK_LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lanes[l] += lanes[l + half];
    return lanes[0];
}

/* The sum of at most 512 elements of 16 bits, or of their squares, in 32 lanes of f32. */
#define TREK_ROW_SHORT_SUM(name, suffix, term)                                                         \
    static inline double name##_##suffix(const uint16_t *row, int64_t n)                               \
    {                                                                                                  \
        trek_wide sums[32 / TREK_WIDE];                                                                \
        for (int k = 0; k < 32 / TREK_WIDE; k++)                                                       \
            sums[k] = trek_spread_wide(0.0f);                                                          \
        int64_t i = 0;                                                                                 \
        for (; i + 32 <= n; i += 32)                                                                   \
            for (int k = 0; k < 32 / TREK_WIDE; k++) {                                                 \
                const trek_wide x = trek_load_wide_##suffix(row + i + k * TREK_WIDE);                  \
                sums[k] += term;                                                                       \
            }                                                                                          \
        float lanes[32];                                                                               \
        memcpy(lanes, sums, sizeof lanes);                                                             \
        for (int l = 0; i < n; i++, l++) {                                                             \
            const float x = trek_f32_from_##suffix(row[i]);                                            \
            lanes[l] += term;                                                                          \
        }                                                                                              \
        trek_f64x8 eights[4];                                                                          \
        for (int k = 0; k < 4; k++)                                                                    \
            TREK_EIGHT_f32(eights[k], lanes + 8 * k)                                                   \
        eights[0] = (eights[0] + eights[2]) + (eights[1] + eights[3]);                                 \
        TREK_JOIN_EIGHT(eights[0], sum, +)                                                             \
        return sum;                                                                                    \
    }
TREK_ROW_SHORT_SUM(trek_row_short_sum, bf16, x)
TREK_ROW_SHORT_SUM(trek_row_short_sum, f16, x)
TREK_ROW_SHORT_SUM(trek_row_short_sum_of_squares, bf16, x *x)
TREK_ROW_SHORT_SUM(trek_row_short_sum_of_squares, f16, x *x)

/* Computes to[i] = e^(x[i] - maximum) and returns their sum; `to` may be x. No number of x is above the maximum. Sums
 * in 16 lanes of f32 over 512 elements, and of these in f64. */
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

/* Returns the sum of n elements, without those that are NaN if `numbers`: four are added in f32, in pairs, whose rounding is
 * below that of the numbers themselves, and the sums of these in f64. */
#define TREK_ROW_EIGHT(a, x, numbers)                                                                  \
    memcpy(&(a), x, sizeof(a));                                                                        \
    if (numbers)                                                                                       \
        a = (trek_f32x8)((trek_f32x8_mask)(a) & (trek_f32x8_mask)((a) == (a)));
typedef int32_t trek_f32x8_mask __attribute__((vector_size(32)));
static inline __attribute__((always_inline)) double trek_row_sum_of_fours_f32(const float *x, int64_t n, const bool numbers)
{
    trek_f64x8 sums[4] = { { 0 } };
    int64_t i = 0;
    for (; i + 128 <= n; i += 128)
        for (int k = 0; k < 4; k++) {
            trek_f32x8 a[4];
            for (int l = 0; l < 4; l++) {
                TREK_ROW_EIGHT(a[l], x + i + 32 * k + 8 * l, numbers)
            }
            a[0] = (a[0] + a[1]) + (a[2] + a[3]);
            sums[k] += TREK_WIDENED(a[0]);
        }
    for (; i + 8 <= n; i += 8) {
        trek_f32x8 a;
        TREK_ROW_EIGHT(a, x + i, numbers)
        sums[0] += TREK_WIDENED(a);
    }
    sums[0] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    TREK_JOIN_EIGHT(sums[0], sum, +)
    for (; i < n; i++)
        sum += numbers && x[i] != x[i] ? 0 : (double)x[i];
    return sum;
}

/* Computes to[i] = e^(x[i] - shift); `to` may be x. */
TREK_LIBRARY(exp, f64, exp)
static inline void trek_row_exp_f64(double *to, const double *x, int64_t n, double shift)
{
    for (int64_t i = 0, width = sizeof(trek_wide64) / sizeof *x; i < n; i += width) {
        size_t bytes = (size_t)(n - i < width ? n - i : width) * sizeof *x;
        trek_wide64 v = { 0 };
        memcpy(&v, x + i, bytes);
        v = trek_exp_f64_library(v - shift);
        memcpy(to + i, &v, bytes);
    }
}

#endif
