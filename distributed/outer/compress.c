/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of floats and their codes, in loops that compilers can vectorise. Products and sums are not contracted
 * (-ffp-contract=off), so that results do not depend on the machine. */
#include "distributed/outer/compress.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "tensor/half_internal.h"

enum { BLOCK = 256, BLOCK_4 = 64, MOST_8 = 127, MOST_4 = 7 };

/* Below this the scale of a block has no useful reciprocal. */
#define LEAST 0x1p-100f
#define INFINITE 0x7f800000

#define INLINE static inline __attribute__((always_inline))

/* --- one block ----------------------------------------------------------------------------------- */

/* Rounds to the nearest integer, ties to even, for |x| < 2^22: above 1.5 * 2^23 the last place of a float is a unit. */
INLINE int32_t nearest(float x) { return (int32_t)(trek_bits_f32(x + 0x1.8p23f) - 0x4b400000u); }

/* Returns the bits of the largest magnitude. Those of values that are not finite are the largest. */
INLINE int32_t largest(const float *values, int64_t n)
{
    int32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t magnitude = (int32_t)(trek_bits_f32(values[i]) & 0x7fffffffu);
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

/* Computes v = values + error. */
INLINE void corrected(float *restrict v, const float *restrict values, const float *restrict error, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        v[i] = values[i] + (error ? error[i] : 0);
}

/* Computes the codes and errors of v, and returns the scale. At FLT_MAX the largest code times the scale stays finite. */
INLINE float quantize(const float *restrict v, float *restrict error, int8_t *restrict codes, int64_t n, int most)
{
    int32_t magnitude = largest(v, n);
    float largest_value = trek_f32_bits((uint32_t)magnitude), limit = FLT_MAX / (float)most * 0.999999f;
    if (magnitude >= INFINITE || largest_value < LEAST) {
        for (int64_t i = 0; i < n; i++) {
            codes[i] = 0;
            if (error)
                error[i] = magnitude >= INFINITE ? 0 : v[i];
        }
        return magnitude >= INFINITE ? NAN : 0;
    }
    float scale = largest_value / (float)most;
    scale = scale < limit ? scale : limit;
    float inverse = 1 / scale;
    for (int64_t i = 0; i < n; i++) {
        int32_t code = nearest(v[i] * inverse);
        codes[i] = (int8_t)code;
        if (error)
            error[i] = v[i] - (float)code * scale;
    }
    return scale;
}

INLINE char *encode_8(const float *values, float *error, int64_t n, char *to)
{
    float v[BLOCK];
    int8_t codes[BLOCK];
    corrected(v, values, error, n);
    float scale = quantize(v, error, codes, n, MOST_8);
    memcpy(to, &scale, sizeof scale);
    memcpy(to + sizeof scale, codes, (size_t)n);
    return to + sizeof scale + n;
}

/* Each byte has a code of the first half of the block and one of the second half, with 8 added to both. */
INLINE char *encode_4(const float *values, float *error, int64_t n, char *to)
{
    float v[BLOCK_4];
    int8_t codes[BLOCK_4 + 1];
    uint8_t pairs[BLOCK_4 / 2];
    int64_t half = (n + 1) / 2;
    corrected(v, values, error, n);
    float scale = quantize(v, error, codes, n, MOST_4);
    codes[n] = 0; /* of an odd block */
    for (int64_t i = 0; i < half; i++)
        pairs[i] = (uint8_t)((codes[i] + 8) | ((codes[half + i] + 8) << 4));
    memcpy(to, &scale, sizeof scale);
    memcpy(to + sizeof scale, pairs, (size_t)half);
    return to + sizeof scale + half;
}

INLINE const char *add_8(const char *from, int64_t n, float weight, float *restrict sum)
{
    float scale;
    int8_t codes[BLOCK];
    memcpy(&scale, from, sizeof scale);
    memcpy(codes, from + sizeof scale, (size_t)n);
    scale *= weight;
    for (int64_t i = 0; i < n; i++)
        sum[i] += scale * (float)codes[i];
    return from + sizeof scale + n;
}

INLINE const char *add_4(const char *from, int64_t n, float weight, float *restrict sum)
{
    float scale;
    uint8_t pairs[BLOCK_4 / 2];
    int64_t half = (n + 1) / 2;
    memcpy(&scale, from, sizeof scale);
    memcpy(pairs, from + sizeof scale, (size_t)half);
    scale *= weight;
    for (int64_t i = 0; i < half; i++)
        sum[i] += scale * (float)((pairs[i] & 15) - 8);
    for (int64_t i = half; i < n; i++)
        sum[i] += scale * (float)((pairs[i - half] >> 4) - 8);
    return from + sizeof scale + half;
}

INLINE char *encode_16(const float *values, float *restrict error, int64_t n, char *to)
{
    float v[BLOCK];
    uint16_t halves[BLOCK];
    corrected(v, values, error, n);
    for (int64_t i = 0; i < n; i++)
        halves[i] = trek_bf16_from_f32(v[i]);
    for (int64_t i = 0; i < n && error; i++) {
        float sent = trek_f32_from_bf16(halves[i]);
        error[i] = (trek_bits_f32(sent) & 0x7fffffffu) < INFINITE ? v[i] - sent : 0;
    }
    memcpy(to, halves, (size_t)n * sizeof *halves);
    return to + (size_t)n * sizeof *halves;
}

INLINE char *encode_32(const float *values, float *error, int64_t n, char *to)
{
    float v[BLOCK];
    corrected(v, values, error, n);
    if (error)
        memset(error, 0, (size_t)n * sizeof *error);
    memcpy(to, v, (size_t)n * sizeof *v);
    return to + (size_t)n * sizeof *v;
}

INLINE const char *add_16(const char *from, int64_t n, float weight, float *restrict sum)
{
    uint16_t halves[BLOCK];
    memcpy(halves, from, (size_t)n * sizeof *halves);
    for (int64_t i = 0; i < n; i++)
        sum[i] += weight * trek_f32_from_bf16(halves[i]);
    return from + (size_t)n * sizeof *halves;
}

INLINE const char *add_32(const char *from, int64_t n, float weight, float *restrict sum)
{
    float values[BLOCK];
    memcpy(values, from, (size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++)
        sum[i] += weight * values[i];
    return from + (size_t)n * sizeof *values;
}

/* --- arrays -------------------------------------------------------------------------------------- */

INLINE char *encode_block(const float *values, float *error, int64_t n, int bits, char *to)
{
    return bits == 4 ? encode_4(values, error, n, to) : bits == 8 ? encode_8(values, error, n, to)
        : bits == 16 ? encode_16(values, error, n, to) : encode_32(values, error, n, to);
}

INLINE const char *add_block(const char *from, int64_t n, int bits, float weight, float *sum)
{
    return bits == 4 ? add_4(from, n, weight, sum) : bits == 8 ? add_8(from, n, weight, sum)
        : bits == 16 ? add_16(from, n, weight, sum) : add_32(from, n, weight, sum);
}

/* bits and the length of a full block are constants in every use. */
INLINE void encode_array(const float *values, float *error, int64_t n, int bits, char *to)
{
    const int64_t block = bits == 4 ? BLOCK_4 : BLOCK;
    int64_t i = 0;
    for (; i + block <= n; i += block)
        to = encode_block(values + i, error ? error + i : NULL, block, bits, to);
    if (i < n)
        encode_block(values + i, error ? error + i : NULL, n - i, bits, to);
}

INLINE void add_array(const char *from, int64_t n, int bits, float weight, float *sum)
{
    const int64_t block = bits == 4 ? BLOCK_4 : BLOCK;
    int64_t i = 0;
    for (; i + block <= n; i += block)
        from = add_block(from, block, bits, weight, sum + i);
    if (i < n)
        add_block(from, n - i, bits, weight, sum + i);
}

bool trek_compress_takes(int bits) { return bits == 4 || bits == 8 || bits == 16 || bits == 32; }

int64_t trek_compress_bytes(int64_t n, int bits)
{
    int64_t block = bits == 4 ? BLOCK_4 : BLOCK, scales = bits < 16 ? (n + block - 1) / block * (int64_t)sizeof(float) : 0;
    return bits == 4 ? scales + (n + 1) / 2 : scales + n * (bits / 8); /* full blocks of 4 bits have an even length */
}

void trek_compress(const float *values, float *error, int64_t n, int bits, void *wire)
{
    switch (bits) {
    case 4:
        encode_array(values, error, n, 4, wire);
        break;
    case 8:
        encode_array(values, error, n, 8, wire);
        break;
    case 16:
        encode_array(values, error, n, 16, wire);
        break;
    default:
        encode_array(values, error, n, 32, wire);
    }
}

void trek_compress_add(const void *wire, int64_t n, int bits, float weight, float *sum)
{
    switch (bits) {
    case 4:
        add_array(wire, n, 4, weight, sum);
        break;
    case 8:
        add_array(wire, n, 8, weight, sum);
        break;
    case 16:
        add_array(wire, n, 16, weight, sum);
        break;
    default:
        add_array(wire, n, 32, weight, sum);
    }
}
