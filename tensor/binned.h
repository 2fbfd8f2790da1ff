/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of floats that do not depend on the order of their terms, nor on how the terms are grouped: every number is cut
 * into digits at fixed powers of two, and digits are added as integers (binned summation; Demmel and Nguyen, Parallel
 * Reproducible Summation, IEEE Transactions on Computers 64(7), 2015).
 *
 * The powers are 2^(36 b) for all integers b, the bins. A number belongs to the lowest bin b with |x| < 2^(36 (b + 1) - 1).
 * In a sum whose bin is b, its digits are those of bins b, b - 1, ...: rint(x / 2^(36 b)), then the same of what is left.
 * A block of 256 elements has one bin, the highest of all numbers that have been added to it. When it rises, the digits
 * move, and the lowest are dropped. Numbers of lower bins have the digit 0 in higher ones, so that what remains is what
 * would be there if the bin had been known before: the sum is a function of the set of its terms. The first digit of the
 * largest number may be small, so at least 36 bits below the largest number of a block are summed without an error (72
 * for f64, which has one more digit). That is more than an f32 has.
 *
 * Nothing has to be known before, nothing is kept from step to step, and no sum has to be repeated. Sums of several ranks
 * are added by integer addition once they have the same bins. At most TREK_BINNED_MOST terms may be added, by all ranks
 * together. An element to which inf or NaN was added is NaN. */
#ifndef TREK_TENSOR_BINNED_H
#define TREK_TENSOR_BINNED_H

#include "tensor/types.h"

TREK_BEGIN

#define TREK_BINNED_BLOCK 256
#define TREK_BINNED_WIDTH 36     /* bits of a digit */
#define TREK_BINNED_DIGITS 3     /* the most digits of an element */
#define TREK_BINNED_MOST 32768   /* terms */
#define TREK_BINNED_TERMS 16     /* the most that are added in one call */
#define TREK_BINNED_EMPTY INT32_MIN /* the bin of a block to which only zeros were added, whose digits are undefined */

/* The sums of `count` elements, whose memory belongs to the caller. */
typedef struct trek_binned {
    trek_dtype dtype;        /* of the terms: F32 or F64 */
    int64_t count;
    int64_t *digits[TREK_BINNED_DIGITS]; /* [count] each, the highest first; NULL beyond trek_binned_digits */
    int32_t *bins;           /* [trek_binned_blocks(count)] */
} trek_binned;

static inline int64_t trek_binned_blocks(int64_t count) { return (count + TREK_BINNED_BLOCK - 1) / TREK_BINNED_BLOCK; }
static inline int trek_binned_digits(trek_dtype dtype) { return dtype == TREK_F64 ? 3 : 2; }

/* The gradient of a weight [rows, columns] of F32, before it is computed: grad^T x, both contiguous. */
typedef struct trek_binned_product {
    const float *grad, *x;   /* [samples, rows], [samples, columns] */
    int64_t samples;
} trek_binned_product;

/* Returns the fewest rows of a weight that are whole blocks. */
static inline int64_t trek_binned_band(int64_t columns)
{
    int64_t rows = TREK_BINNED_BLOCK;
    for (; rows > 1 && columns % 2 == 0; columns /= 2)
        rows /= 2;
    return rows;
}

/* Returns whether it is worth while to add a product as it is computed: few samples, and rows that fit into a cache. */
static inline bool trek_binned_takes_product(int64_t rows, int64_t columns, int64_t samples)
{
    return samples <= 64 && 8 * samples * (rows + columns) <= rows * columns &&
        trek_binned_band(columns) * columns <= 65536;
}

/* Where the bits of sums are that several ranks will add, for each block: the maxima over these ranks. All sums of the block are
 * less than 2^top, and multiples of 2^-low. INT32_MIN: the block is empty. */
typedef struct trek_binned_bounds {
    const int32_t *bins, *tops, *lows;
    int ranks;
} trek_binned_bounds;

/* Returns the exponent of which all sums of the block are multiples when its bin has been raised. */
static inline int trek_binned_low(const trek_binned_bounds *bounds, int64_t block)
{
    int last = TREK_BINNED_WIDTH * (bounds->bins[block] - 1);
    return -bounds->lows[block] > last ? -bounds->lows[block] : last;
}

/* Returns whether the sums of the block over all ranks fit into one integer each, if the block is not empty. */
static inline bool trek_binned_fits(const trek_binned_bounds *bounds, int64_t block)
{
    int bits = bounds->tops[block] + 2 - trek_binned_low(bounds, block); /* with one for dropped digits and one for the sign */
    for (int n = 1; n < bounds->ranks; n *= 2)
        bits++;
    return bits < 64;
}

TREK_END

#endif
