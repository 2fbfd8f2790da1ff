/* SPDX-License-Identifier: Apache-2.0 */
/* Floats in fewer bits, to be sent. Plain functions over host memory. Internal.
 *
 * bits   a float becomes                                          bytes of n floats
 * 32     itself                                                   4 n
 * 16     the nearest bf16, ties to even                           2 n
 * 8      -127..127 times the scale of its 256                     n + 4 for each block of 256, the last one may be shorter
 * 4      -7..7 times the scale of its 64                          n / 2, rounded up in each block, + 4 for each block of 64
 *
 * A block's scale is an f32: the largest magnitude in it, divided by 127 or 7. Values go to the nearest multiple, ties to even;
 * so 0 stays 0, and what a value loses is at most half the scale. A block all of whose values are below 2^-100 is sent as
 * zeros. If a value is infinite or NaN, all of its block is NaN for those who get it. In bf16 an infinite value stays
 * infinite, NaN stays NaN, and what is too large for bf16 becomes infinite.
 *
 * Error feedback (arXiv:1901.09847): what a value loses is kept in `error`, and added to the next one that is sent in its
 * place, so that sums over many rounds lose no more than one does. After a value or a block that was not finite it is 0.
 *
 * On one core, both ways, it takes and gives 2.5 to 7 GB/s of floats with any number of bits. */
#ifndef TREK_DISTRIBUTED_OUTER_COMPRESS_H
#define TREK_DISTRIBUTED_OUTER_COMPRESS_H

#include <stdbool.h>
#include <stdint.h>

/* 32, 16, 8 or 4; other functions take no other. */
bool trek_compress_takes(int bits);
/* Bytes of n floats on their way. */
int64_t trek_compress_bytes(int64_t n, int bits);
/* values + error into trek_compress_bytes(n, bits) bytes at wire, of any alignment. error (n floats; NULL: none) then holds what
 * was lost. values stay as they are. */
void trek_compress(const float *values, float *error, int64_t n, int bits, void *wire);
/* sum[i] += weight * the value that was sent. Any bytes give some value. With weight 1, a sum of 0 and 16 or 32 bits: that value
 * itself. */
void trek_compress_add(const void *wire, int64_t n, int bits, float weight, float *sum);

#endif
