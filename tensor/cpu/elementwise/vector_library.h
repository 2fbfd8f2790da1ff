/* SPDX-License-Identifier: Apache-2.0 */
/* The vector functions of libm from glibc's libmvec, if it has them (2.35 on x86-64; TREK_WITH_MVEC); otherwise calls
 * of libm for each lane. Errors are below 4 ulp (measured: 3.3); special values are those of libm. The end of a row
 * goes through a whole vector, so that a result does not depend on its position. */
#ifndef TREK_TENSOR_CPU_ELEMENTWISE_VECTOR_LIBRARY_H
#define TREK_TENSOR_CPU_ELEMENTWISE_VECTOR_LIBRARY_H

#include "tensor/cpu/elementwise/elementwise.h"

typedef double trek_wide64 __attribute__((vector_size(4 * TREK_WIDE)));
typedef int64_t trek_wide64_int __attribute__((vector_size(4 * TREK_WIDE)));
typedef float trek_half_wide __attribute__((vector_size(2 * TREK_WIDE))); /* with the same number of lanes */
#define TREK_VECTOR_f32 trek_wide
#define TREK_VECTOR_f64 trek_wide64

/* Computes x * y + z, in one rounding if the machine can. */
TREK_WIDE_INLINE trek_wide64 trek_fma_wide64(trek_wide64 x, trek_wide64 y, trek_wide64 z)
{
#if defined(__AVX512F__)
    return (trek_wide64)_mm512_fmadd_pd((__m512d)x, (__m512d)y, (__m512d)z);
#elif defined(__FMA__) && defined(__AVX2__)
    return (trek_wide64)_mm256_fmadd_pd((__m256d)x, (__m256d)y, (__m256d)z);
#else
    return x * y + z;
#endif
}
TREK_WIDE_INLINE trek_wide64 trek_sqrt_wide64(trek_wide64 x)
{
#if defined(__AVX512F__)
    return (trek_wide64)_mm512_sqrt_pd((__m512d)x);
#elif defined(__AVX2__)
    return (trek_wide64)_mm256_sqrt_pd((__m256d)x);
#else
    for (size_t l = 0; l < sizeof x / sizeof(double); l++)
        x[l] = __builtin_sqrt(x[l]);
    return x;
#endif
}
/* Returns whether any lane of a comparison is true. */
TREK_WIDE_INLINE bool trek_any_wide64(trek_wide64_int which)
{
#if defined(__AVX512F__)
    return _mm512_test_epi64_mask((__m512i)which, (__m512i)which) != 0;
#else
    int64_t any = 0;
    for (size_t l = 0; l < sizeof which / sizeof any; l++)
        any |= which[l];
    return any != 0;
#endif
}

/* The names behind trek_tan_f64_library and others: in libmvec those of the x86-64 vector function ABI (instruction
 * set, lanes, arguments). */
#if defined(TREK_WITH_MVEC)
#if TREK_WIDE == 16
#define TREK_MVEC_f32(v, name) _ZGVeN16##v##_##name##f
#define TREK_MVEC_f64(v, name) _ZGVeN8##v##_##name
#elif TREK_WIDE == 8
#define TREK_MVEC_f32(v, name) _ZGVdN8##v##_##name##f
#define TREK_MVEC_f64(v, name) _ZGVdN4##v##_##name
#else
#define TREK_MVEC_f32(v, name) _ZGVbN4##v##_##name##f
#define TREK_MVEC_f64(v, name) _ZGVbN2##v##_##name
#endif
#define TREK_LIBRARY(name, suffix, call)                                                               \
    TREK_VECTOR_##suffix TREK_MVEC_##suffix(v, name)(TREK_VECTOR_##suffix);                            \
    TREK_WIDE_INLINE TREK_VECTOR_##suffix trek_##name##_##suffix##_library(TREK_VECTOR_##suffix x)     \
    {                                                                                                  \
        return TREK_MVEC_##suffix(v, name)(x);                                                         \
    }
#define TREK_LIBRARY2(name, suffix, call)                                                              \
    TREK_VECTOR_##suffix TREK_MVEC_##suffix(vv, name)(TREK_VECTOR_##suffix, TREK_VECTOR_##suffix);     \
    TREK_WIDE_INLINE TREK_VECTOR_##suffix trek_##name##_##suffix##_library(TREK_VECTOR_##suffix x, TREK_VECTOR_##suffix y) \
    {                                                                                                  \
        return TREK_MVEC_##suffix(vv, name)(x, y);                                                     \
    }
#else
#define TREK_LIBRARY(name, suffix, call)                                                               \
    TREK_WIDE_INLINE TREK_VECTOR_##suffix trek_##name##_##suffix##_library(TREK_VECTOR_##suffix x)     \
    {                                                                                                  \
        TREK_VECTOR_##suffix result = x;                                                               \
        for (size_t l = 0; l < sizeof x / sizeof(TREK_TYPE_##suffix); l++)                             \
            result[l] = call(x[l]);                                                                    \
        return result;                                                                                 \
    }
#define TREK_LIBRARY2(name, suffix, call)                                                              \
    TREK_WIDE_INLINE TREK_VECTOR_##suffix trek_##name##_##suffix##_library(TREK_VECTOR_##suffix x, TREK_VECTOR_##suffix y) \
    {                                                                                                  \
        TREK_VECTOR_##suffix result = x;                                                               \
        for (size_t l = 0; l < sizeof x / sizeof(TREK_TYPE_##suffix); l++)                             \
            result[l] = call(x[l], y[l]);                                                              \
        return result;                                                                                 \
    }
#endif

/* Rows written with x (and y and z), vectors of the type. The last vector is padded with 1, which is valid for every
 * function. */
#define TREK_UNARY_LIBRARY_ROW(op, suffix, expression)                                                 \
    static void op##_##suffix##_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        TREK_TYPE_##suffix *result = to;                                                               \
        const TREK_TYPE_##suffix *xs = from[0];                                                        \
        const int64_t width = sizeof(TREK_VECTOR_##suffix) / sizeof *xs;                               \
        (void)attrs;                                                                                   \
        int64_t i = 0;                                                                                 \
        for (; i + width <= n; i += width) {                                                           \
            TREK_VECTOR_##suffix x;                                                                    \
            memcpy(&x, xs + i, sizeof x);                                                              \
            x = expression;                                                                            \
            memcpy(result + i, &x, sizeof x);                                                          \
        }                                                                                              \
        if (i < n) {                                                                                   \
            size_t bytes = (size_t)(n - i) * sizeof *xs;                                               \
            TREK_VECTOR_##suffix x = (TREK_VECTOR_##suffix){ 0 } + 1;                                  \
            memcpy(&x, xs + i, bytes);                                                                 \
            x = expression;                                                                            \
            memcpy(result + i, &x, bytes);                                                             \
        }                                                                                              \
    }
#define TREK_BINARY_LIBRARY_ROW(op, suffix, expression)                                                \
    static void op##_##suffix##_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        TREK_TYPE_##suffix *result = to;                                                               \
        const TREK_TYPE_##suffix *xs = from[0], *ys = from[1];                                         \
        const int64_t width = sizeof(TREK_VECTOR_##suffix) / sizeof *xs;                               \
        (void)attrs;                                                                                   \
        int64_t i = 0;                                                                                 \
        for (; i + width <= n; i += width) {                                                           \
            TREK_VECTOR_##suffix x, y;                                                                 \
            memcpy(&x, xs + i, sizeof x);                                                              \
            memcpy(&y, ys + i, sizeof y);                                                              \
            x = expression;                                                                            \
            memcpy(result + i, &x, sizeof x);                                                          \
        }                                                                                              \
        if (i < n) {                                                                                   \
            size_t bytes = (size_t)(n - i) * sizeof *xs;                                               \
            TREK_VECTOR_##suffix x = (TREK_VECTOR_##suffix){ 0 } + 1, y = x;                           \
            memcpy(&x, xs + i, bytes);                                                                 \
            memcpy(&y, ys + i, bytes);                                                                 \
            x = expression;                                                                            \
            memcpy(result + i, &x, bytes);                                                             \
        }                                                                                              \
    }
#define TREK_TERNARY_LIBRARY_ROW(op, suffix, expression)                                               \
    static void op##_##suffix##_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        TREK_TYPE_##suffix *result = to;                                                               \
        const TREK_TYPE_##suffix *xs = from[0], *ys = from[1], *zs = from[2];                          \
        const int64_t width = sizeof(TREK_VECTOR_##suffix) / sizeof *xs;                               \
        (void)attrs;                                                                                   \
        int64_t i = 0;                                                                                 \
        for (; i + width <= n; i += width) {                                                           \
            TREK_VECTOR_##suffix x, y, z;                                                              \
            memcpy(&x, xs + i, sizeof x);                                                              \
            memcpy(&y, ys + i, sizeof y);                                                              \
            memcpy(&z, zs + i, sizeof z);                                                              \
            x = expression;                                                                            \
            memcpy(result + i, &x, sizeof x);                                                          \
        }                                                                                              \
        if (i < n) {                                                                                   \
            size_t bytes = (size_t)(n - i) * sizeof *xs;                                               \
            TREK_VECTOR_##suffix x = (TREK_VECTOR_##suffix){ 0 } + 1, y = x, z = x;                    \
            memcpy(&x, xs + i, bytes);                                                                 \
            memcpy(&y, ys + i, bytes);                                                                 \
            memcpy(&z, zs + i, bytes);                                                                 \
            x = expression;                                                                            \
            memcpy(result + i, &x, bytes);                                                             \
        }                                                                                              \
    }

#endif
