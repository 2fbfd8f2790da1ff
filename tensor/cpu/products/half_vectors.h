/* SPDX-License-Identifier: Apache-2.0 */
/* 16-bit floats between memory and vectors of f32, based on vector.h for f32, which must be included before. */
#ifndef TREK_TENSOR_CPU_PRODUCTS_HALF_VECTORS_H
#define TREK_TENSOR_CPU_PRODUCTS_HALF_VECTORS_H

typedef uint16_t half_lanes __attribute__((vector_size(TREK_VECTOR_BYTES / 2)));
typedef uint32_t half_words __attribute__((vector_size(TREK_VECTOR_BYTES)));

/* gcc makes several instructions of __builtin_convertvector. */
TREK_INLINE half_words to_words(half_lanes x)
{
#if defined(__AVX512F__)
    return (half_words)_mm512_cvtepu16_epi32((__m256i)x);
#else
    return __builtin_convertvector(x, half_words);
#endif
}
TREK_INLINE half_lanes low_halves(half_words x)
{
#if defined(__AVX512F__)
    return (half_lanes)_mm512_cvtepi32_epi16((__m512i)x);
#else
    return __builtin_convertvector(x, half_lanes);
#endif
}

/* Load the first n <= W numbers; the other lanes are 0, or unchanged. */
TREK_INLINE half_lanes load_halves(const uint16_t *from, int n)
{
    half_lanes x = { 0 };
#if defined(__AVX512F__)
    x = (half_lanes)_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), from);
#else
    if (n == W)
        memcpy(&x, from, sizeof x);
    else
        memcpy(&x, from, (size_t)n * sizeof *from);
#endif
    return x;
}

TREK_INLINE void store_halves(uint16_t *to, int n, half_lanes x)
{
#if defined(__AVX512F__)
    _mm256_mask_storeu_epi16(to, (__mmask16)((1u << n) - 1), (__m256i)x);
#else
    if (n == W)
        memcpy(to, &x, sizeof x);
    else
        memcpy(to, &x, (size_t)n * sizeof *to);
#endif
}

TREK_INLINE V widen_f16(half_lanes x)
{
#if defined(__AVX512F__)
    return (V)_mm512_cvtph_ps((__m256i)x);
#elif defined(__F16C__)
    return (V)_mm256_cvtph_ps((__m128i)x);
#else /* as trek_f32_from_f16 does */
    half_words bits = to_words(x), sign = (bits & 0x8000u) << 16, magnitude = (bits & 0x7fffu) << 13;
    half_words special = (half_words)(magnitude >= 0x0f800000u), finite = (half_words)((V)magnitude * 0x1p112f);
    return (V)(sign | (special & (magnitude | 0x7f800000u)) | (~special & finite));
#endif
}

TREK_INLINE V widen_bf16(half_lanes x) { return (V)(to_words(x) << 16); }

TREK_INLINE V widen(const trek_dtype dtype, half_lanes x) { return dtype == TREK_BF16 ? widen_bf16(x) : widen_f16(x); }

/* Rounds to the nearest, ties to even; NaN remains NaN, as in the functions of half_internal.h. */
TREK_INLINE half_lanes narrow(const trek_dtype dtype, V x)
{
    half_words bits = (half_words)x;
    if (dtype == TREK_BF16) {
        half_words number = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16, none = (half_words)(x != x);
        return low_halves((none & ((bits >> 16) | 0x40u)) | (~none & number));
    }
#if defined(__AVX512F__)
    return (half_lanes)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
    return (half_lanes)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
#else
    half_lanes result;
    for (int l = 0; l < W; l++)
        result[l] = trek_f16_from_f32(x[l]);
    return result;
#endif
}

/* Load and store the first n <= W numbers of an array of f32, BF16 or F16. */
TREK_INLINE V load_numbers(const trek_dtype dtype, const void *from, int n)
{
    return dtype == TREK_F32 ? load_part_f32(from, lanes_f32(n)) : widen(dtype, load_halves(from, n));
}

TREK_INLINE V load_whole(const trek_dtype dtype, const void *from)
{
    half_lanes x;
    if (dtype == TREK_F32)
        return load_f32(from);
    memcpy(&x, from, sizeof x);
    return widen(dtype, x);
}

TREK_INLINE void store_numbers(const trek_dtype dtype, void *to, int n, V x)
{
    if (dtype == TREK_F32)
        store_part_f32(to, lanes_f32(n), x);
    else
        store_halves(to, n, narrow(dtype, x));
}

#if defined(__AVX512F__)
/* Rounds as narrow() does; the lower half still has other bits. */
TREK_INLINE __m512i rounded_bf16(V x)
{
    __m512i bits = (__m512i)x, sum = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    return _mm512_mask_add_epi32(sum, odd, sum, _mm512_set1_epi32(1));
}

TREK_INLINE void store_two_bf16(void *to, V first, V second)
{
    if (__builtin_expect(_mm512_cmp_ps_mask((__m512)first, (__m512)second, _CMP_UNORD_Q), 0)) { /* NaN: the slow way */
        store_halves(to, W, narrow(TREK_BF16, first));
        store_halves((uint16_t *)to + W, W, narrow(TREK_BF16, second));
        return;
    }
    const __m512i order = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26, 24, 22, 20, 18,
                                           16,
                                           14, 12, 10, 8, 6, 4, 2, 0);
    __m512i mixed = _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(rounded_bf16(first), 16), rounded_bf16(second));
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(order, mixed));
}
#endif

/* Stores 2 W consecutive numbers. */
TREK_INLINE void store_two(const trek_dtype dtype, void *to, V first, V second)
{
#if defined(__AVX512F__)
    if (dtype == TREK_BF16) {
        store_two_bf16(to, first, second);
        return;
    }
#endif
    if (dtype == TREK_F32) {
        store_f32(to, first);
        store_f32((float *)to + W, second);
    } else {
        store_halves(to, W, narrow(dtype, first));
        store_halves((uint16_t *)to + W, W, narrow(dtype, second));
    }
}

static inline float number_at(trek_dtype dtype, const void *from, int64_t offset)
{
    if (dtype == TREK_F32)
        return ((const float *)from)[offset];
    uint16_t x = ((const uint16_t *)from)[offset];
    return dtype == TREK_BF16 ? trek_f32_from_bf16(x) : trek_f32_from_f16(x);
}

static inline void put_number(trek_dtype dtype, void *to, int64_t offset, float x)
{
    if (dtype == TREK_F32)
        ((float *)to)[offset] = x;
    else
        ((uint16_t *)to)[offset] = dtype == TREK_BF16 ? trek_bf16_from_f32(x) : trek_f16_from_f32(x);
}

/* Loads 2 W numbers, the first n of them from memory and zeros after them, as W words of two. */
TREK_INLINE half_words load_pairs(const uint16_t *from, int n)
{
    half_words x = { 0 };
#if defined(__AVX512F__)
    x = (half_words)_mm512_maskz_loadu_epi16(n >= 32 ? 0xffffffffu : (1u << n) - 1, from);
#else
    if (n >= 2 * W)
        memcpy(&x, from, sizeof x);
    else
        memcpy(&x, from, (size_t)n * sizeof *from);
#endif
    return x;
}

/* Widen the low halves of W words, and the high ones. */
TREK_INLINE V widen_low(trek_dtype dtype, half_words x)
{
    return dtype == TREK_BF16 ? (V)(x << 16) : widen_f16(low_halves(x));
}
TREK_INLINE V widen_high(trek_dtype dtype, half_words x)
{
    return dtype == TREK_BF16 ? (V)(x & 0xffff0000u) : widen_f16(low_halves(x >> 16));
}

#endif
