/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer's state in 8 bits, after Dettmers and others, "8-bit Optimizers via Block-wise Quantization", 2022:
 * TREK_CODE_BLOCK elements share a scale (f32), and each is a number of a code book of 256, its "dynamic" one, by that scale. The
 * book has a part for each of seven decades, from 1e-7 to 1, which is cut into cells of equal width, of which the middles are in
 * the book: 2^k cells in decade k of numbers with a sign, 2^(k + 1) where none is below 0. 0 and 1 are in it, too.
 *
 * A code is that of the nearest number of the book. Three things are not the paper's (its authors' bitsandbytes has none of
 * them):
 *  - The scale has the sign of the element that it is the magnitude of (of both +x and -x: +), which so is kept exactly, whatever
 *    its sign: the book has 1, not -1. What was decoded gets the same codes and the same scale again.
 *  - Of a state that is never below 0, what is above 0 does not become 0: Adam would divide by eps alone (Li and others, "Memory
 *    Efficient Optimizers with 4-bit States", 2023, take 0 out of the book for that).
 *  - Codes are numbered so that zeroed memory holds zeros: 0; 1 to 127 from the least number to the largest below 1; 128: 1;
 *    129 to 255: as 1 to 127, below 0. Without a sign: 0; 1 to 254 upwards; 255: 1.
 * A block with an element that is inf or NaN is NaN, as such a scale makes it. A scale below FLT_MIN is 0.
 *
 * Blocks begin at places of an optimizer's parameters that are multiples of TREK_CODE_BLOCK, as parameters do (optim/arena.h): no
 * block has elements of two. The arithmetic is of f32, each operation rounded: CPUs and GPUs give the same codes. Plain C that
 * C++ and nvcc understand. Internal. */
#ifndef TREK_TENSOR_STATE_CODE_H
#define TREK_TENSOR_STATE_CODE_H

#include <string.h>

#include "tensor/update.h"

/* How many numbers a part of the book has is 2^(its decade + WIDE): a sign takes one bit of eight. */
#define TREK_CODE_SIGNED 0
#define TREK_CODE_POSITIVE 1

/* Number j of the decade that ends at `end`, which has n; and where a decade's first number is the nearest, not the last of
 * the decade before. Constants. */
#define TREK_CODE_NUMBER(end, n, j) ((end) * (0.1 + 0.9 * ((j) + 0.5) / (n)))
#define TREK_CODE_LIMIT(end, n) \
    ((float)((TREK_CODE_NUMBER((end) / 10, (n) / 2, (n) / 2 - 1) + TREK_CODE_NUMBER(end, n, 0)) / 2))
/* From here on 1 is the nearest; below, 0 is. */
#define TREK_CODE_TOP(n) ((float)((1 + TREK_CODE_NUMBER(1.0, n, (n) - 1)) / 2))
#define TREK_CODE_BOTTOM ((float)(TREK_CODE_NUMBER(1e-6, 1, 0) / 2))

/* --- scales --- */

/* The largest of a block's keys tells its scale: magnitude first, then the sign. */
TREK_ON_BOTH uint32_t trek_code_key(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits << 1 | bits >> 31) ^ 1u;
}

TREK_ON_BOTH float trek_code_scale(uint32_t key)
{
    uint32_t bits = (key ^ 1u) >> 1 | (key ^ 1u) << 31;
    bits = (bits & 0x7fffffffu) < 0x00800000u ? 0 : bits;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

/* What elements are multiplied by before they are looked up. */
TREK_ON_BOTH float trek_code_inverse(float scale) { return scale != 0 && scale - scale == 0 ? 1.0f / scale : 0.0f; }

/* --- codes --- */

/* Of decades from the lowest: 2^(decade + wide) + the place in it, of the number that is nearest but for 0 and 1. */
TREK_ON_BOTH int32_t trek_code_place(float x, int wide)
{
    float up = 1e6f, n = wide ? 2.0f : 1.0f;
#define TREK_CODE_DECADE(k, end, factor)                                                                          \
    {                                                                                                             \
        bool there = x >= (wide ? TREK_CODE_LIMIT(end, (double)(2 << (k))) : TREK_CODE_LIMIT(end, (double)(1 << (k)))); \
        up = there ? factor : up;                                                                                 \
        n = there ? (wide ? (float)(2 << (k)) : (float)(1 << (k))) : n;                                           \
    }
    TREK_CODE_DECADE(1, 1e-5, 1e5f)
    TREK_CODE_DECADE(2, 1e-4, 1e4f)
    TREK_CODE_DECADE(3, 1e-3, 1e3f)
    TREK_CODE_DECADE(4, 1e-2, 1e2f)
    TREK_CODE_DECADE(5, 1e-1, 1e1f)
    TREK_CODE_DECADE(6, 1e0, 1e0f)
#undef TREK_CODE_DECADE
    float place = (x * up - 0.1f) * (n * (float)(1 / 0.9));
    place = place > 0 ? place : 0; /* NaN becomes 0 */
    place = place < n - 1 ? place : n - 1;
    return (int32_t)n + (int32_t)place;
}

/* The code of an element by the inverse of its scale. */
TREK_ON_BOTH int32_t trek_code_of(float x, int wide)
{
    float magnitude = x < 0 ? -x : x;
    if (wide) {
        int32_t code = trek_code_place(x, 1) - 1;
        code = x > 0 ? code : 0;
        return x >= TREK_CODE_TOP(128.0) ? 255 : code;
    }
    int32_t code = trek_code_place(magnitude, 0);
    code = x < 0 ? code + 128 : code;
    code = magnitude >= TREK_CODE_BOTTOM ? code : 0;
    return x >= TREK_CODE_TOP(64.0) ? 128 : code;
}

/* The number of a code; by the scale it is the element. */
TREK_ON_BOTH float trek_code_number(int32_t code, int wide)
{
    int32_t place = wide ? code + 1 : code & 127;
    float number = (float)place, down = 1e-6f, inverse;
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    bits = (254u << 23) - (bits & 0x7f800000u); /* 1 over the decade's count, a power of 2 */
    memcpy(&inverse, &bits, sizeof inverse);
    const float least = wide ? 2.0f : 1.0f; /* of decades; compared as numbers: compilers make branches of integers */
    down = number >= 2 * least ? 1e-5f : down;
    down = number >= 4 * least ? 1e-4f : down;
    down = number >= 8 * least ? 1e-3f : down;
    down = number >= 16 * least ? 1e-2f : down;
    down = number >= 32 * least ? 1e-1f : down;
    down = number >= 64 * least ? 1.0f : down;
    down = number < least ? 0.0f : down;
    down *= wide ? 1.0f : (float)(1 - (code >> 7) * 2);
    float value = down * (0.9f * ((number + 0.5f) * inverse) - 0.8f);
    if (wide)
        return number == 256.0f ? 1.0f : value;
    return code == 128 ? 1.0f : value;
}

#endif
