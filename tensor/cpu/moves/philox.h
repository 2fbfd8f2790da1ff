/* SPDX-License-Identifier: Apache-2.0 */
/* Philox blocks (tensor/random_internal.h) in the lanes of vectors, for files that are compiled for each instruction
 * set. */
#ifndef TREK_TENSOR_CPU_MOVES_PHILOX_H
#define TREK_TENSOR_CPU_MOVES_PHILOX_H

#include <stdint.h>
#include <string.h>

#include "tensor/cpu/wide.h"
#include "tensor/random_internal.h"

/* A position in the stream. */
typedef struct trek_draw {
    uint64_t seed;
    uint32_t step, number;
    int64_t place; /* of element 0 */
} trek_draw;

/* 64-bit lanes, each with a 32-bit number in its low half. */
#define TREK_PHILOX_LANES (TREK_WIDE / 2)
typedef uint64_t trek_lanes64 __attribute__((vector_size(4 * TREK_WIDE)));

/* Returns the 64-bit products of the low halves. */
static inline trek_lanes64 trek_multiply_low(trek_lanes64 x, uint64_t factor)
{
#if defined(__AVX512F__)
    return (trek_lanes64)_mm512_mul_epu32((__m512i)x, _mm512_set1_epi64((long long)factor));
#elif defined(__AVX2__)
    return (trek_lanes64)_mm256_mul_epu32((__m256i)x, _mm256_set1_epi64x((long long)factor));
#elif defined(__SSE2__)
    return (trek_lanes64)_mm_mul_epu32((__m128i)x, _mm_set1_epi64x((long long)factor));
#else
    return (x & 0xffffffffu) * factor;
#endif
}

/* Computes TREK_PHILOX_LANES Philox blocks from `first` on by trek_philox, in the low halves of vectors. */
static inline void trek_philox_lanes(const trek_draw *d, uint64_t first, trek_lanes64 c[4])
{
    trek_lanes64 index = { 0 };
    for (int l = 0; l < TREK_PHILOX_LANES; l++)
        index[l] = first + (uint64_t)l;
    trek_lanes64 c0 = index, c1 = index >> 32, c2 = (trek_lanes64){ 0 } + d->number, c3 = (trek_lanes64){ 0 } + d->step;
    uint32_t k0 = (uint32_t)d->seed, k1 = (uint32_t)(d->seed >> 32);
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        trek_lanes64 p0 = trek_multiply_low(c0, 0xD2511F53u), p1 = trek_multiply_low(c2, 0xCD9E8D57u);
        c0 = (p1 >> 32) ^ c1 ^ (uint64_t)k0;
        c2 = (p0 >> 32) ^ c3 ^ (uint64_t)k1;
        c1 = p1;
        c3 = p0;
    }
    c[0] = c0, c[1] = c1, c[2] = c2, c[3] = c3;
}

/* Stores the words of 64-bit lanes, low halves first, whatever the byte order. */
static inline void trek_store_words(uint32_t *to, trek_lanes64 words)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    words = words << 32 | words >> 32;
#endif
    memcpy(to, &words, sizeof words);
}

/* Writes the numbers of `blocks` Philox blocks, four words each, in whole groups of TREK_PHILOX_LANES blocks. */
static inline void trek_philox_blocks(const trek_draw *d, uint64_t first, int blocks, uint32_t *out)
{
    for (int b = 0; b < blocks; b += TREK_PHILOX_LANES) {
        trek_lanes64 c[4];
        trek_philox_lanes(d, first + (uint64_t)b, c);
        trek_lanes64 low = (c[0] & 0xffffffffu) | c[1] << 32, high = (c[2] & 0xffffffffu) | c[3] << 32;
        trek_lanes64 pairs[2]; /* low and high halves of the same block are adjacent */
#if TREK_WIDE == 16
        pairs[0] = __builtin_shufflevector(low, high, 0, 8, 1, 9, 2, 10, 3, 11);
        pairs[1] = __builtin_shufflevector(low, high, 4, 12, 5, 13, 6, 14, 7, 15);
#elif TREK_WIDE == 8
        pairs[0] = __builtin_shufflevector(low, high, 0, 4, 1, 5);
        pairs[1] = __builtin_shufflevector(low, high, 2, 6, 3, 7);
#else
        pairs[0] = __builtin_shufflevector(low, high, 0, 2);
        pairs[1] = __builtin_shufflevector(low, high, 1, 3);
#endif
        for (int k = 0; k < 2; k++)
            trek_store_words(out + 4 * b + 4 * TREK_PHILOX_LANES / 2 * k, pairs[k]);
    }
}

#endif
