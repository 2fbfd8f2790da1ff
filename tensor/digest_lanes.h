/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of digests of blocks (distributed/grains/digest.h says what they are). The same text is compiled for the CPU
 * and for GPUs. It is plain C that C++ and nvcc accept. */
#ifndef TREK_TENSOR_DIGEST_LANES_H
#define TREK_TENSOR_DIGEST_LANES_H

#include "tensor/update.h"

#define TREK_DIGEST_BLOCK 1024
#define TREK_DIGEST_LANES 8

typedef struct trek_digest {
    uint64_t half[2];
} trek_digest;

/* A stretch of memory whose address and keys begin with a block. */
typedef struct trek_digest_span {
    const void *data;        /* aligned to 8 bytes */
    int64_t bytes;
    uint64_t key;            /* of its first block */
    int floats;              /* the size of its numbers, in which -0 counts as 0; 0: bytes are taken as they are */
} trek_digest_span;
#define TREK_DIGEST_SPANS 64 /* the most in one call of a backend */

#define TREK_DIGEST_KEYS { 0xbe4ba423396cfeb8u, 0x1cad21f72c81017cu, 0xdb979083e96dd4deu, 0x1f67b3b7a4a44072u, \
                           0x78e5c0cc4ee679cbu, 0x2172ffcc7dd05a82u, 0x8e2443f7744608b8u, 0x4c263a81e69035e0u }
#define TREK_DIGEST_M UINT64_C(0x9e3779b97f4a7c15)

/* The mix of SplitMix64. */
TREK_ON_BOTH uint64_t trek_digest_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* What a lane adds for one of its words. */
TREK_ON_BOTH uint64_t trek_digest_word(uint64_t word, uint64_t key)
{
    uint64_t x = word ^ key;
    return (uint64_t)(uint32_t)x * (uint32_t)(x >> 32);
}

/* Returns a half of a block's digest from its lanes: half 1 takes them backwards. */
TREK_ON_BOTH uint64_t trek_digest_half(const uint64_t *lanes, int half, uint64_t key, uint64_t size)
{
    uint64_t h = half ? key * UINT64_C(0xa0761d6478bd642f) + ~size : key * UINT64_C(0xd6e8feb86659fd93) + size;
    for (int j = 0; j < TREK_DIGEST_LANES; j++)
        h = trek_digest_mix(h ^ lanes[half ? TREK_DIGEST_LANES - 1 - j : j]);
    return h;
}

#endif
