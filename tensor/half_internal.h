/* SPDX-License-Identifier: Apache-2.0 */
/* The 16-bit formats, as bits, and rows of them. */
#ifndef TREK_TENSOR_HALF_INTERNAL_H
#define TREK_TENSOR_HALF_INTERNAL_H

#include <stdint.h>
#include <string.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

static inline uint32_t trek_bits_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline float trek_f32_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline uint64_t trek_bits_f64(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline double trek_f64_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float trek_f32_from_bf16(uint16_t x) { return trek_f32_bits((uint32_t)x << 16); }
/* Rounds to the nearest, ties to even; NaN remains NaN. */
static inline uint16_t trek_bf16_from_f32(float x)
{
    uint32_t bits = trek_bits_f32(x), rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded);
}
/* Shifted into place, the bits of an f16 are an f32 that is too small by 2^112, denormals included. */
static inline float trek_f32_from_f16(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, magnitude = (uint32_t)(x & 0x7fffu) << 13;
    uint32_t finite = trek_bits_f32(trek_f32_bits(magnitude) * 0x1p112f);
    return trek_f32_bits(sign | (magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite));
}
/* Rounds to the nearest, ties to even. Adding 0.5 rounds to multiples of 2^-24, the spacing of f16's denormals. */
static inline uint16_t trek_f16_from_f32(float x)
{
    uint32_t bits = trek_bits_f32(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1)) >> 13;
    uint32_t denormal = trek_bits_f32(trek_f32_bits(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t result = magnitude < 0x38800000u ? denormal : normal;
    result = magnitude >= 0x477ff000u ? 0x7c00u : result;
    result = magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : result;
    return (uint16_t)(sign | result);
}

/* Convert rows. Source and target must not overlap. */
static inline void trek_f32_from_bf16_row(float *restrict to, const uint16_t *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = trek_f32_from_bf16(from[i]);
}
static inline void trek_bf16_from_f32_row(uint16_t *restrict to, const float *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = trek_bf16_from_f32(from[i]);
}
static inline void trek_f32_from_f16_row(float *restrict to, const uint16_t *restrict from, int64_t n)
{
    int64_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
#endif
    for (; i < n; i++)
        to[i] = trek_f32_from_f16(from[i]);
}
static inline void trek_f16_from_f32_row(uint16_t *restrict to, const float *restrict from, int64_t n)
{
    int64_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < n; i++)
        to[i] = trek_f16_from_f32(from[i]);
}

#endif
