/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes floats in fewer bits, to be sent. The functions work on host memory.
 *
 *   bits  a float becomes                                          bytes of n floats
 *   32    itself                                                   4 n
 *   16    the nearest bf16, ties to even                           2 n
 *   8     -127..127 times the scale of its 256                     n + 4 for each block of 256, the last one may be shorter
 *   4     -7..7 times the scale of its 64                          n / 2, rounded up in each block, + 4 for each block of 64
 *
 * The scale of a block is an f32: the largest magnitude in the block, divided by 127 or 7. Values go to the nearest
 * multiple, ties to even. So 0 stays 0, and a value loses at most half the scale. A block in which all values are
 * below 2^-100 is sent as zeros. If a value is infinite or NaN, the receivers get NaN for its whole block. In bf16 an
 * infinite value stays infinite, NaN stays NaN, and a value that is too large for bf16 becomes infinite.
 *
 * Error feedback (arXiv:1901.09847): what a value loses is kept in `error` and added to the next value that is sent
 * at the same index, so that sums over many rounds lose no more than one round does. After a value or a block that
 * was not finite the error is 0.
 *
 * One core encodes and decodes 2.5 to 7 GB/s of floats, with any number of bits. */
#ifndef TREK_DISTRIBUTED_OUTER_COMPRESS_H
#define TREK_DISTRIBUTED_OUTER_COMPRESS_H

#include <stdbool.h>
#include <stdint.h>

/* Returns whether bits is 32, 16, 8 or 4. The other functions take no other values. */
bool trek_compress_takes(int bits);
/* Returns how many bytes n encoded floats have. */
int64_t trek_compress_bytes(int64_t n, int bits);
/* Encodes values + error in trek_compress_bytes(n, bits) bytes at wire, of any alignment. error (n floats, or NULL
 * for none) then holds what was lost. values do not change. */
void trek_compress(const float *values, float *error, int64_t n, int bits, void *wire);
/* Decodes: sum[i] += weight * the value that was sent. Any bytes give some value. With weight 1, a sum of 0 and 16 or
 * 32 bits the result is exactly that value. */
void trek_compress_add(const void *wire, int64_t n, int bits, float weight, float *sum);

#endif
