/* SPDX-License-Identifier: Apache-2.0 */
/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
 *
 * The key is the seed. The counter is (element / 4 low, element / 4 high, draw, step): a number depends only on seed,
 * step, draw and the element's position, so that every division among ranks and threads gives the same numbers. */
#ifndef TREK_TENSOR_RANDOM_INTERNAL_H
#define TREK_TENSOR_RANDOM_INTERNAL_H

#include <stdint.h>

/* The position of one random op in the stream: taken when the op is called, and stored on the tape. */
typedef struct trek_rng_draw {
    uint64_t seed;
    uint32_t step, draw;
    int64_t first_element; /* position of the tensor's element 0 in the global batch */
} trek_rng_draw;

/* Takes the next draw of the calling thread. A tensor whose first dimension is the divided batch is keyed by global
 * element; others by rank. */
struct trek_tensor;
trek_rng_draw trek_rng_next(const struct trek_tensor *like);
uint64_t trek_rng_seed(void);
/* Returns the position in the global batch of the first of `rows` rows, which are all rows of the rank or a multiple
 * of them. */
int64_t trek_rng_first_row(int64_t rows);
/* Writes the next draw as attributes of a random op: i[0] seed, i[1] step, i[2] draw, i[3] position of element 0. */
struct trek_attrs;
void trek_rng_attrs(const struct trek_tensor *like, struct trek_attrs *attrs);

static inline void trek_philox(uint64_t seed, uint64_t block, uint32_t draw, uint32_t step, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = draw, c3 = step;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* 24 bits -> [0, 1) */
static inline float trek_uniform_f32(uint32_t bits) { return (float)(bits >> 8) * 0x1p-24f; }
/* 53 bits -> [0, 1) */
static inline double trek_uniform_f64(uint32_t high, uint32_t low)
{
    return (double)((((uint64_t)high << 32) | low) >> 11) * 0x1p-53;
}

#endif
