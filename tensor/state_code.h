/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer's state in 8 bits, after Dettmers and others, "8-bit Optimizers via Block-wise Quantization", 2022.
 * TREK_CODE_BLOCK elements share a scale (f32), and each element is a number of a code book of 256 numbers, the
 * paper's "dynamic" one, times that scale. The book has a part for each of seven decades, from 1e-7 to 1. A decade is
 * divided into cells of equal width, whose middles are in the book: 2^k cells in decade k for numbers with a sign,
 * 2^(k + 1) if no number is below 0. 0 and 1 are in the book, too.
 *
 * A code is that of the nearest number of the book. Three things differ from the paper (and from its authors'
 * bitsandbytes):
 *
 *   - The scale has the sign of the element whose magnitude it is (of both +x and -x: +), so that this element is kept
 *     exactly with either sign: the book has 1, but not -1. Decoded numbers get the same codes and the same scale again.
 *   - In a state that is never below 0, a number above 0 does not become 0, because Adam would then divide by eps alone
 *     (Li and others, "Memory Efficient Optimizers with 4-bit States", 2023, remove 0 from the book for that reason).
 *   - Codes are numbered so that zeroed memory means zeros: 0; 1 to 127 from the smallest number to the largest below 1;
 *     128: 1; 129 to 255: as 1 to 127, below 0. Without a sign: 0; 1 to 254 ascending; 255: 1.
 *
 * A block with an element that is inf or NaN becomes NaN, because its scale does. A scale below FLT_MIN is 0.
 *
 * Blocks begin at positions of an optimizer's parameters that are multiples of TREK_CODE_BLOCK, as parameters do
 * (optim/arena.h), so that no block has elements of two parameters. The arithmetic is in f32, with each operation
 * rounded, so that CPUs and GPUs give the same codes. It is plain C that C++ and nvcc accept. */
#ifndef TREK_TENSOR_STATE_CODE_H
#define TREK_TENSOR_STATE_CODE_H

#include <string.h>

#include "tensor/update.h"

/* A part of the book has 2^(its decade + WIDE) numbers: a sign takes one bit of eight. */
#define TREK_CODE_SIGNED 0
#define TREK_CODE_POSITIVE 1

/* Number j of n in the decade that ends at `end`; and from where on a decade's first number is nearer than the last
 * of the decade before. Constants. */
#define TREK_CODE_NUMBER(end, n, j) ((end) * (0.1 + 0.9 * ((j) + 0.5) / (n)))
#define TREK_CODE_LIMIT(end, n) \
    ((float)((TREK_CODE_NUMBER((end) / 10, (n) / 2, (n) / 2 - 1) + TREK_CODE_NUMBER(end, n, 0)) / 2))
/* Above the first 1 is the nearest number; below the second 0 is. */
#define TREK_CODE_TOP(n) ((float)((1 + TREK_CODE_NUMBER(1.0, n, (n) - 1)) / 2))
#define TREK_CODE_BOTTOM ((float)(TREK_CODE_NUMBER(1e-6, 1, 0) / 2))

/* --- scales --- */

/* The largest of a block's keys determines its scale: magnitude first, then the sign. */
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

/* Returns what elements are multiplied by before they are looked up. */
TREK_ON_BOTH float trek_code_inverse(float scale) { return scale != 0 && scale - scale == 0 ? 1.0f / scale : 0.0f; }

/* --- codes --- */

/* Returns 2^(decade + wide) + the index in the decade of the nearest number other than 0 and 1, with decades counted
 * from the lowest. */
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

/* Returns the code of an element, given the inverse of its scale. */
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

/* Returns the number of a code; times the scale it is the element. */
TREK_ON_BOTH float trek_code_number(int32_t code, int wide)
{
    int32_t place = wide ? code + 1 : code & 127;
    float number = (float)place, down = 1e-6f, inverse;
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    bits = (254u << 23) - (bits & 0x7f800000u); /* 1 / the decade's count, a power of 2 */
    memcpy(&inverse, &bits, sizeof inverse);
    const float least = wide ? 2.0f : 1.0f; /* of decades; compared as numbers, because compilers make branches for integers */
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
