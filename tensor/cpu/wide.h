/* SPDX-License-Identifier: Apache-2.0 */
/* The widest f32 vector of the instruction set, with the operations that C's vector arithmetic lacks: fma, minimum,
 * choice, scaling by powers of two, parts of vectors. The language's own operations are used where they are
 * sufficient. Each function has a scalar twin with suffix _f32, for the template of functions
 * (tensor/function_template.h). */
#ifndef TREK_TENSOR_CPU_WIDE_H
#define TREK_TENSOR_CPU_WIDE_H

#include "tensor/cpu/kernels.h"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define TREK_WIDE 16
#elif defined(__AVX2__)
#define TREK_WIDE 8
#else
#define TREK_WIDE 4
#endif

typedef float trek_wide __attribute__((vector_size(4 * TREK_WIDE)));
typedef uint32_t trek_wide_bits __attribute__((vector_size(4 * TREK_WIDE)));
typedef int32_t trek_wide_int __attribute__((vector_size(4 * TREK_WIDE)));

#define TREK_WIDE_INLINE static inline __attribute__((always_inline))

/* Sets all lanes to one value; a constant if x is one. */
TREK_WIDE_INLINE trek_wide trek_spread_wide(float x) { return x - (trek_wide){ 0 }; }
TREK_WIDE_INLINE float trek_spread_f32(float x) { return x; }

TREK_WIDE_INLINE trek_wide trek_load_wide(const float *from)
{
    trek_wide x;
    memcpy(&x, from, sizeof x);
    return x;
}
TREK_WIDE_INLINE void trek_store_wide(float *to, trek_wide x) { memcpy(to, &x, sizeof x); }

/* Load and store the first n < TREK_WIDE lanes; the others are 0, or unchanged. */
TREK_WIDE_INLINE trek_wide trek_load_part_wide(const float *from, int64_t n)
{
#if defined(__AVX512F__)
    return (trek_wide)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), from);
#elif defined(__AVX2__)
    __m256i lanes = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return (trek_wide)_mm256_maskload_ps(from, lanes);
#else
    trek_wide x = { 0 };
    for (int l = 0; l < TREK_WIDE; l++)
        if (l < n)
            x[l] = from[l];
    return x;
#endif
}
TREK_WIDE_INLINE void trek_store_part_wide(float *to, trek_wide x, int64_t n)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << n) - 1), (__m512)x);
#elif defined(__AVX2__)
    __m256i lanes = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    _mm256_maskstore_ps(to, lanes, (__m256)x);
#else
    for (int l = 0; l < TREK_WIDE; l++)
        if (l < n)
            to[l] = x[l];
#endif
}

/* Computes x * y + z in one rounding if the machine can, otherwise in two. */
TREK_WIDE_INLINE float trek_fma_f32(float x, float y, float z)
{
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return __builtin_fmaf(x, y, z);
#else
    return x * y + z;
#endif
}
TREK_WIDE_INLINE trek_wide trek_fma_wide(trek_wide x, trek_wide y, trek_wide z)
{
#if defined(__AVX512F__)
    return (trek_wide)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z);
#elif defined(__FMA__) && defined(__AVX2__)
    return (trek_wide)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z);
#elif defined(__ARM_FEATURE_FMA)
    trek_wide result;
    for (int l = 0; l < TREK_WIDE; l++)
        result[l] = __builtin_fmaf(x[l], y[l], z[l]);
    return result;
#else
    return x * y + z;
#endif
}

/* Computes a < b ? yes : no, lane by lane. */
TREK_WIDE_INLINE float trek_choose_f32(float a, float b, float yes, float no) { return a < b ? yes : no; }
TREK_WIDE_INLINE trek_wide trek_choose_wide(trek_wide a, trek_wide b, trek_wide yes, trek_wide no)
{
#if defined(__AVX512F__)
    return (trek_wide)_mm512_mask_blend_ps(_mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ), (__m512)no, (__m512)yes);
#elif defined(__AVX2__)
    return (trek_wide)_mm256_blendv_ps((__m256)no, (__m256)yes, _mm256_cmp_ps((__m256)a, (__m256)b, _CMP_LT_OQ));
#else
    trek_wide_int mask = (trek_wide_int)(a < b);
    return (trek_wide)(((trek_wide_int)yes & mask) | ((trek_wide_int)no & ~mask));
#endif
}

/* Returns x, but at most (at least) the limit; NaN remains. */
TREK_WIDE_INLINE float trek_at_most_f32(float x, float limit) { return x > limit ? limit : x; }
TREK_WIDE_INLINE float trek_at_least_f32(float x, float limit) { return x < limit ? limit : x; }
TREK_WIDE_INLINE trek_wide trek_at_most_wide(trek_wide x, float limit)
{
#if defined(__AVX512F__)
    return (trek_wide)_mm512_min_ps(_mm512_set1_ps(limit), (__m512)x);
#elif defined(__AVX2__)
    return (trek_wide)_mm256_min_ps(_mm256_set1_ps(limit), (__m256)x);
#else
    return trek_choose_wide(trek_spread_wide(limit), x, trek_spread_wide(limit), x);
#endif
}
TREK_WIDE_INLINE trek_wide trek_at_least_wide(trek_wide x, float limit)
{
#if defined(__AVX512F__)
    return (trek_wide)_mm512_max_ps(_mm512_set1_ps(limit), (__m512)x);
#elif defined(__AVX2__)
    return (trek_wide)_mm256_max_ps(_mm256_set1_ps(limit), (__m256)x);
#else
    return trek_choose_wide(x, trek_spread_wide(limit), trek_spread_wide(limit), x);
#endif
}

/* Returns the larger one; b if one is NaN. */
TREK_WIDE_INLINE trek_wide trek_larger_wide(trek_wide a, trek_wide b)
{
#if defined(__AVX512F__)
    return (trek_wide)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (trek_wide)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return trek_choose_wide(b, a, a, b);
#endif
}

/* Returns the smaller one; b if one is NaN. */
TREK_WIDE_INLINE trek_wide trek_smaller_wide(trek_wide a, trek_wide b)
{
#if defined(__AVX512F__)
    return (trek_wide)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (trek_wide)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return trek_choose_wide(a, b, a, b);
#endif
}

/* Loads a vector of 16-bit numbers. */
TREK_WIDE_INLINE trek_wide trek_load_wide_bf16(const uint16_t *from)
{
#if defined(__AVX512F__)
    return (trek_wide)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from)), 16);
#elif defined(__AVX2__)
    return (trek_wide)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from)), 16);
#else
    trek_wide x = { 0 };
    for (int l = 0; l < TREK_WIDE; l++)
        x[l] = trek_f32_from_bf16(from[l]);
    return x;
#endif
}
TREK_WIDE_INLINE trek_wide trek_load_wide_f16(const uint16_t *from)
{
#if defined(__AVX512F__)
    return (trek_wide)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
#elif defined(__AVX2__) && defined(__F16C__)
    return (trek_wide)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
#else
    trek_wide x = { 0 };
    for (int l = 0; l < TREK_WIDE; l++)
        x[l] = trek_f32_from_f16(from[l]);
    return x;
#endif
}

/* Stores it, rounded to the nearest, ties to even; NaN remains NaN. */
TREK_WIDE_INLINE void trek_store_wide_bf16(uint16_t *to, trek_wide x)
{
#if defined(__AVX512F__)
    __m512i bits = (__m512i)x, high = _mm512_srli_epi32(bits, 16), odd = _mm512_and_epi32(high, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
    __mmask16 none = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, none, high, _mm512_set1_epi32(0x40));
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16(rounded));
#elif defined(__AVX2__)
    trek_wide_bits bits = (trek_wide_bits)x, rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    trek_wide_bits none = (trek_wide_bits)(x != x), result = (rounded & ~none) | (((bits >> 16) | 0x40u) & none);
    __m256i packed = _mm256_packus_epi32((__m256i)result, (__m256i)result);
    _mm_storeu_si128((__m128i *)to, _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
#else
    for (int l = 0; l < TREK_WIDE; l++)
        to[l] = trek_bf16_from_f32(x[l]);
#endif
}
TREK_WIDE_INLINE void trek_store_wide_f16(uint16_t *to, trek_wide x)
{
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__) && defined(__F16C__)
    _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#else
    for (int l = 0; l < TREK_WIDE; l++)
        to[l] = trek_f16_from_f32(x[l]);
#endif
}

/* Load and store two vectors of 16-bit numbers. The first of bf16 has every second number, which takes no conversion: the upper
 * half of f32 is bf16. They are rounded as above, except that NaN is not looked at: one with lower bits set could be rounded up
 * to 0, so that it must come from a 16-bit number or from the machine. */
TREK_WIDE_INLINE void trek_load_two_wide_bf16(const uint16_t *from, trek_wide *two)
{
#if defined(__AVX2__) || defined(__AVX512F__)
    trek_wide_bits pairs;
    memcpy(&pairs, from, sizeof pairs);
    two[0] = (trek_wide)(pairs << 16);
    two[1] = (trek_wide)(pairs & 0xffff0000u);
#else
    two[0] = trek_load_wide_bf16(from);
    two[1] = trek_load_wide_bf16(from + TREK_WIDE);
#endif
}
TREK_WIDE_INLINE void trek_store_two_wide_bf16(uint16_t *to, const trek_wide *two)
{
#if defined(__AVX2__) || defined(__AVX512F__)
    trek_wide_bits first = (trek_wide_bits)two[0], second = (trek_wide_bits)two[1];
    first = (first + 0x7fffu + (first >> 16 & 1)) >> 16;
    second += 0x7fffu + (second >> 16 & 1);
#if defined(__AVX512BW__)
    first = (trek_wide_bits)_mm512_mask_blend_epi16(0xaaaaaaaau, (__m512i)first, (__m512i)second);
#else
    first |= second & 0xffff0000u;
#endif
    memcpy(to, &first, sizeof first);
#else
    trek_store_wide_bf16(to, two[0]);
    trek_store_wide_bf16(to + TREK_WIDE, two[1]);
#endif
}
TREK_WIDE_INLINE void trek_load_two_wide_f16(const uint16_t *from, trek_wide *two)
{
    two[0] = trek_load_wide_f16(from);
    two[1] = trek_load_wide_f16(from + TREK_WIDE);
}
TREK_WIDE_INLINE void trek_store_two_wide_f16(uint16_t *to, const trek_wide *two)
{
    trek_store_wide_f16(to, two[0]);
    trek_store_wide_f16(to + TREK_WIDE, two[1]);
}

/* Loads the first n < TREK_WIDE of them; the others are 0. */
#if defined(__AVX512BW__) && defined(__AVX512VL__)
#define TREK_LOAD_PART_16(rest, from, n) \
    _mm256_storeu_si256((__m256i *)(rest), _mm256_maskz_loadu_epi16((__mmask16)((1u << (n)) - 1), from))
#else
#define TREK_LOAD_PART_16(rest, from, n) \
    for (int64_t l_ = 0; l_ < TREK_WIDE; l_++) \
        (rest)[l_] = l_ < (n) ? (from)[l_] : 0
#endif

TREK_WIDE_INLINE uint32_t trek_as_bits_f32(float x) { return trek_bits_f32(x); }
TREK_WIDE_INLINE float trek_from_bits_f32(uint32_t bits) { return trek_f32_bits(bits); }
TREK_WIDE_INLINE trek_wide_bits trek_as_bits_wide(trek_wide x) { return (trek_wide_bits)x; }
TREK_WIDE_INLINE trek_wide trek_from_bits_wide(trek_wide_bits bits) { return (trek_wide)bits; }

/* Computes p 2^n. n is given twice: as a float, `whole`, and as `shifted` = n + 1.5 * 2^23. -160 <= n <= 130. It
 * multiplies in two factors, so that denormals are rounded once and infinity can be reached. */
TREK_WIDE_INLINE float trek_scale_f32(float p, float whole, float shifted)
{
    (void)whole;
    int32_t n = (int32_t)(trek_bits_f32(shifted) - 0x4b400000u), half = n >> 1;
    return p * trek_f32_bits((uint32_t)(half + 127) << 23) * trek_f32_bits((uint32_t)(n - half + 127) << 23);
}
TREK_WIDE_INLINE trek_wide trek_scale_wide(trek_wide p, trek_wide whole, trek_wide shifted)
{
#if defined(__AVX512F__)
    (void)shifted;
    return (trek_wide)_mm512_scalef_ps((__m512)p, (__m512)whole);
#else
    (void)whole;
    trek_wide_int n = (trek_wide_int)((trek_wide_bits)shifted - 0x4b400000u), half = n >> 1;
    return p * (trek_wide)((half + 127) << 23) * (trek_wide)((n - half + 127) << 23);
#endif
}

/* Does so for -160 <= n <= 60: one factor that cannot be denormal, and a constant. */
TREK_WIDE_INLINE float trek_scale_down_f32(float p, float whole, float shifted)
{
    (void)whole;
    return p * trek_f32_bits((trek_bits_f32(shifted) << 23) + (191u << 23)) * 0x1p-64f;
}
TREK_WIDE_INLINE trek_wide trek_scale_down_wide(trek_wide p, trek_wide whole, trek_wide shifted)
{
#if defined(__AVX512F__)
    return trek_scale_wide(p, whole, shifted);
#else
    (void)whole;
    return p * (trek_wide)(((trek_wide_bits)shifted << 23) + (191u << 23)) * 0x1p-64f;
#endif
}

#endif
