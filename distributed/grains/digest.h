/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of 128 bits. Different data have different digests, except with a probability of 2^-64 or less. They find errors, not
 * forgeries: it is easy to construct data with a given digest.
 *
 * A digest is a sum of digests of blocks, so it does not depend on the order in which blocks are added, nor on who adds them.
 * Each block has a key, the number of its place. A block has up to 1024 bytes, and is filled up with zeros to a multiple of 64.
 * Its words w (64 bits, little-endian) go to eight lanes, the word with number i to lane j = i % 8, with s = i / 8:
 *
 *     x = w ^ (K[j] + s * M);  lane[j] += low32(x) * high32(x);  lane[j ^ 1] += w
 *
 * which are the lanes of XXH3 (Collet, 2019). Then both halves of the block's digest are made of the lanes in turn:
 *
 *     h = key * P + length, or key * Q + ~length;  h = mix(h ^ lane[j]) for j = 0 .. 7, or for j = 7 .. 0
 *
 * with mix of SplitMix64 (Steele, Lea and Flood, 2014). Arithmetic is modulo 2^64. */
#ifndef TREK_DISTRIBUTED_GRAINS_DIGEST_H
#define TREK_DISTRIBUTED_GRAINS_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/digest_lanes.h"

/* Adds blocks of memory. The first has that key, the next ones follow it. */
void trek_digest_add(trek_digest *digest, uint64_t key, const void *bytes, size_t size);
/* Adds blocks of `count` floats of `width` bytes, 4 or 8. -0 counts as 0. */
void trek_digest_add_floats(trek_digest *digest, uint64_t key, const void *numbers, int64_t count, size_t width);
/* Adds what another digest has. */
static inline void trek_digest_join(trek_digest *digest, const trek_digest *other)
{
    digest->half[0] += other->half[0];
    digest->half[1] += other->half[1];
}
static inline bool trek_digest_equal(const trek_digest *a, const trek_digest *b)
{
    return a->half[0] == b->half[0] && a->half[1] == b->half[1];
}

#endif
