/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of the widest kind that the instruction set has, for files that are written once for f32 and f64: they
 * define TREK_REAL as f32 or f64 and include this file. It may be included once for each. */
#if !defined(TREK_VECTOR_COMMON)
#define TREK_VECTOR_COMMON
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define TREK_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define TREK_VECTOR_BYTES 32
#else
#define TREK_VECTOR_BYTES 16
#endif

#define TREK_REAL_JOIN_(name, real) name##_##real
#define TREK_REAL_JOIN(name, real) TREK_REAL_JOIN_(name, real)
#define TREK_R(name) TREK_REAL_JOIN(name, TREK_REAL)
#define T TREK_R(trek_real)
#define V TREK_R(trek_vector)
#define W ((int)(TREK_VECTOR_BYTES / sizeof(T)))
#define TREK_INLINE static inline __attribute__((always_inline))

typedef float trek_real_f32;
typedef double trek_real_f64;
typedef float trek_vector_f32 __attribute__((vector_size(TREK_VECTOR_BYTES)));
typedef double trek_vector_f64 __attribute__((vector_size(TREK_VECTOR_BYTES)));
typedef int32_t trek_indices_f32 __attribute__((vector_size(TREK_VECTOR_BYTES)));
typedef int64_t trek_indices_f64 __attribute__((vector_size(TREK_VECTOR_BYTES)));

/* Which lanes of a vector, counted from the first, a partial load or store uses. */
#if defined(__AVX512F__)
typedef __mmask16 trek_lanes;
#elif defined(__AVX2__)
typedef __m256i trek_lanes;
#else
typedef int trek_lanes;
#endif

#if defined(__AVX512F__)
static inline trek_lanes lanes_f32(int n) { return (trek_lanes)((1u << n) - 1); }
static inline trek_lanes lanes_f64(int n) { return (trek_lanes)((1u << n) - 1); }
TREK_INLINE trek_vector_f32 load_part_f32(const float *p, trek_lanes n) { return (trek_vector_f32)_mm512_maskz_loadu_ps(n, p); }
TREK_INLINE void store_part_f32(float *p, trek_lanes n, trek_vector_f32 v) { _mm512_mask_storeu_ps(p, n, (__m512)v); }
TREK_INLINE trek_vector_f64 load_part_f64(const double *p, trek_lanes n)
{
    return (trek_vector_f64)_mm512_maskz_loadu_pd((__mmask8)n, p);
}
TREK_INLINE void store_part_f64(double *p, trek_lanes n, trek_vector_f64 v) { _mm512_mask_storeu_pd(p, (__mmask8)n, (__m512d)v); }
TREK_INLINE trek_vector_f32 fma_f32(trek_vector_f32 a, trek_vector_f32 b, trek_vector_f32 c)
{
    return (trek_vector_f32)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
TREK_INLINE trek_vector_f64 fma_f64(trek_vector_f64 a, trek_vector_f64 b, trek_vector_f64 c)
{
    return (trek_vector_f64)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
}
TREK_INLINE float sum_f32(trek_vector_f32 v) { return _mm512_reduce_add_ps((__m512)v); }
TREK_INLINE double sum_f64(trek_vector_f64 v) { return _mm512_reduce_add_pd((__m512d)v); }
#elif defined(__AVX2__)
static inline trek_lanes lanes_f32(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline trek_lanes lanes_f64(int n)
{
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}
TREK_INLINE trek_vector_f32 load_part_f32(const float *p, trek_lanes n) { return (trek_vector_f32)_mm256_maskload_ps(p, n); }
TREK_INLINE void store_part_f32(float *p, trek_lanes n, trek_vector_f32 v) { _mm256_maskstore_ps(p, n, (__m256)v); }
TREK_INLINE trek_vector_f64 load_part_f64(const double *p, trek_lanes n) { return (trek_vector_f64)_mm256_maskload_pd(p, n); }
TREK_INLINE void store_part_f64(double *p, trek_lanes n, trek_vector_f64 v) { _mm256_maskstore_pd(p, n, (__m256d)v); }
TREK_INLINE trek_vector_f32 fma_f32(trek_vector_f32 a, trek_vector_f32 b, trek_vector_f32 c)
{
    return (trek_vector_f32)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
TREK_INLINE trek_vector_f64 fma_f64(trek_vector_f64 a, trek_vector_f64 b, trek_vector_f64 c)
{
    return (trek_vector_f64)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
}
#else
static inline trek_lanes lanes_f32(int n) { return n; }
static inline trek_lanes lanes_f64(int n) { return n; }
#endif

#if !defined(__AVX512F__)
/* Adds halves to halves until one number is left. */
TREK_INLINE float sum_f32(trek_vector_f32 v)
{
    float lane[TREK_VECTOR_BYTES / sizeof(float)];
    memcpy(lane, &v, sizeof v);
    for (int half = (int)(TREK_VECTOR_BYTES / sizeof(float)) / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}
TREK_INLINE double sum_f64(trek_vector_f64 v)
{
    double lane[TREK_VECTOR_BYTES / sizeof(double)];
    memcpy(lane, &v, sizeof v);
    for (int half = (int)(TREK_VECTOR_BYTES / sizeof(double)) / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}
#endif
#endif /* TREK_VECTOR_COMMON */

TREK_INLINE V TREK_R(load)(const T *p)
{
    V v;
    memcpy(&v, p, sizeof v);
    return v;
}
TREK_INLINE void TREK_R(store)(T *p, V v) { memcpy(p, &v, sizeof v); }
TREK_INLINE V TREK_R(spread)(T x) { return x - (V){ 0 }; }

#if !defined(__AVX2__) && !defined(__AVX512F__)
TREK_INLINE V TREK_R(load_part)(const T *p, trek_lanes n)
{
    if (n == W)
        return TREK_R(load)(p);
    V v = { 0 };
    for (int l = 0; l < W; l++)
        if (l < n)
            v[l] = p[l];
    return v;
}
TREK_INLINE void TREK_R(store_part)(T *p, trek_lanes n, V v)
{
    if (n == W) {
        TREK_R(store)(p, v);
        return;
    }
    for (int l = 0; l < W; l++)
        if (l < n)
            p[l] = v[l];
}
TREK_INLINE V TREK_R(fma)(V a, V b, V c) { return a * b + c; }
#endif

/* Picks lanes of a and b; those of b are counted from W on. After unrolling the indices are constants: one
 * instruction. */
TREK_INLINE V TREK_R(pick)(V a, V b, TREK_R(trek_indices) from)
{
#if defined(__clang__)
    V v = a;
#pragma GCC unroll 16
    for (int l = 0; l < W; l++)
        v[l] = from[l] < W ? a[from[l]] : b[from[l] - W];
    return v;
#else
    return __builtin_shuffle(a, b, from);
#endif
}

/* One step of a transposition: exchanges the off-diagonal blocks of `size` of each pair of rows (Eklundh 1972). */
TREK_INLINE void TREK_R(exchange)(V *r, const int size)
{
    TREK_R(trek_indices) low, high;
#pragma GCC unroll 16
    for (int l = 0; l < W; l++) {
        low[l] = l & size ? W + l - size : l;
        high[l] = l & size ? W + l : l + size;
    }
#pragma GCC unroll 16
    for (int i = 0; i < W; i++)
        if (!(i & size)) {
            V a = r[i], b = r[i + size];
            r[i] = TREK_R(pick)(a, b, low);
            r[i + size] = TREK_R(pick)(a, b, high);
        }
}

/* Transposes r[i][l], W rows. */
TREK_INLINE void TREK_R(transpose)(V *r)
{
    TREK_R(exchange)(r, 1);
    if (W > 2)
        TREK_R(exchange)(r, 2);
    if (W > 4)
        TREK_R(exchange)(r, 4);
    if (W > 8)
        TREK_R(exchange)(r, 8);
}
