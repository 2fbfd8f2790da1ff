/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of blocks of memory. */
#include "distributed/grains/digest.h"

#include <string.h>

enum { LANES = 8, STRIPE = LANES * 8 };

static const uint64_t keys[LANES] = { 0xbe4ba423396cfeb8u, 0x1cad21f72c81017cu, 0xdb979083e96dd4deu, 0x1f67b3b7a4a44072u,
                                      0x78e5c0cc4ee679cbu, 0x2172ffcc7dd05a82u, 0x8e2443f7744608b8u, 0x4c263a81e69035e0u };

#define M 0x9e3779b97f4a7c15u
#define P 0xd6e8feb86659fd93u
#define Q 0xa0761d6478bd642fu

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The words of all stripes, in a loop that compilers turn into vectors. */
static void add_stripes(uint64_t *lanes, const unsigned char *bytes, size_t n, uint64_t salt)
{
    uint64_t sum[LANES], key[LANES];
    for (int j = 0; j < LANES; j++) {
        sum[j] = lanes[j];
        key[j] = keys[j] + salt;
    }
    for (size_t k = 0; k < n; k++, bytes += STRIPE) {
        uint64_t words[LANES];
        memcpy(words, bytes, STRIPE);
        for (int j = 0; j < LANES; j++) {
            uint64_t x = words[j] ^ key[j];
            sum[j] += (uint64_t)(uint32_t)x * (uint32_t)(x >> 32) + words[j ^ 1];
            key[j] += M;
        }
    }
    for (int j = 0; j < LANES; j++)
        lanes[j] = sum[j];
}

static void add_block(trek_digest *digest, uint64_t key, const unsigned char *bytes, size_t size)
{
    uint64_t lanes[LANES] = { 0 }, h = key * P + size, g = key * Q + ~(uint64_t)size;
    unsigned char last[STRIPE] = { 0 };
    size_t whole = size / STRIPE, rest = size % STRIPE;
    add_stripes(lanes, bytes, whole, 0);
    if (rest > 0) {
        memcpy(last, bytes + size - rest, rest);
        add_stripes(lanes, last, 1, whole * M);
    }
    for (int j = 0; j < LANES; j++) {
        h = mix(h ^ lanes[j]);
        g = mix(g ^ lanes[LANES - 1 - j]);
    }
    digest->half[0] += h;
    digest->half[1] += g;
}

void trek_digest_add(trek_digest *digest, uint64_t key, const void *bytes, size_t size)
{
    const unsigned char *from = bytes;
    for (size_t at = 0; at < size; at += TREK_DIGEST_BLOCK, key++)
        add_block(digest, key, from + at, size - at < TREK_DIGEST_BLOCK ? size - at : TREK_DIGEST_BLOCK);
}
