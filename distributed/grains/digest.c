/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of blocks of memory. */
#include "distributed/grains/digest.h"

#include <string.h>

enum { LANES = TREK_DIGEST_LANES, STRIPE = LANES * 8 };

static const uint64_t keys[LANES] = TREK_DIGEST_KEYS;

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
            sum[j] += trek_digest_word(words[j], key[j]) + words[j ^ 1];
            key[j] += TREK_DIGEST_M;
        }
    }
    for (int j = 0; j < LANES; j++)
        lanes[j] = sum[j];
}

static void add_block(trek_digest *digest, uint64_t key, const unsigned char *bytes, size_t size)
{
    uint64_t lanes[LANES] = { 0 };
    unsigned char last[STRIPE] = { 0 };
    size_t whole = size / STRIPE, rest = size % STRIPE;
    add_stripes(lanes, bytes, whole, 0);
    if (rest > 0) {
        memcpy(last, bytes + size - rest, rest);
        add_stripes(lanes, last, 1, whole * TREK_DIGEST_M);
    }
    digest->half[0] += trek_digest_half(lanes, 0, key, size);
    digest->half[1] += trek_digest_half(lanes, 1, key, size);
}

void trek_digest_add(trek_digest *digest, uint64_t key, const void *bytes, size_t size)
{
    const unsigned char *from = bytes;
    for (size_t at = 0; at < size; at += TREK_DIGEST_BLOCK, key++)
        add_block(digest, key, from + at, size - at < TREK_DIGEST_BLOCK ? size - at : TREK_DIGEST_BLOCK);
}
