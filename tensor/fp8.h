/* SPDX-License-Identifier: Apache-2.0 */
/* The two 8-bit formats (Micikevicius et al., "FP8 Formats for Deep Learning", 2022) and the powers of two by which
 * tensors are scaled, for CPUs and, with TREK_FP8_FUNCTION defined, for GPUs. E4M3: bias 7, up to 448, no infinities;
 * E5M2: bias 15, up to 57344.
 *
 * Scales are powers of two, so that scaling rounds nothing: only numbers below a format's normal numbers, or above
 * its largest, depend on them, and products of the codes are exact in f32. */
#ifndef TREK_TENSOR_FP8_H
#define TREK_TENSOR_FP8_H

#include <stdint.h>
#include <string.h>

#ifndef TREK_FP8_FUNCTION
#define TREK_FP8_FUNCTION static inline
#endif

/* Attributes of fp8_quantise and fp8_product. */
enum { TREK_E4M3, TREK_E5M2, TREK_FP8_FORMATS };
/* The tensors whose magnitudes a row of the record has. */
enum { TREK_FP8_INPUT, TREK_FP8_WEIGHT, TREK_FP8_GRAD, TREK_FP8_ROLES };
enum {
    TREK_FP8_ROLL = 1,    /* first advances the record by a step */
    TREK_FP8_OBSERVE = 2, /* stores the magnitude in the record */
    TREK_FP8_FROZEN = 4,  /* uses the scale of everything in the record, including the current step */
    TREK_FP8_TURNED = 8   /* also makes the transpose */
};
#define TREK_FP8_MOST_HISTORY 65536
#define TREK_FP8_INFINITE 0x7f800000u /* magnitudes from here on are infinite or NaN */

TREK_FP8_FUNCTION uint32_t trek_fp8_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
TREK_FP8_FUNCTION float trek_fp8_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Returns the code of x times a power of two, rounded to the nearest, ties to even. Finite numbers above the largest
 * become the largest; infinities and NaN become NaN. */
TREK_FP8_FUNCTION uint8_t trek_fp8_encode(float x, float scale, int format)
{
    uint32_t given = trek_fp8_bits(x), sign = given >> 24 & 0x80u, magnitude = trek_fp8_bits(x * scale) & 0x7fffffffu;
    uint32_t wide = format == TREK_E5M2, shift = 20 + wide, most = wide ? 0x7bu : 0x7eu;
    uint32_t least = wide ? 0x38800000u : 0x3c800000u; /* the smallest normal number */
    float grid = wide ? 128.0f : 16384.0f;             /* adding it rounds to multiples of the smallest denormal number */
    uint32_t normal = (magnitude - (least - (1u << 23)) + ((1u << (shift - 1)) - 1) + (magnitude >> shift & 1)) >> shift;
    uint32_t denormal = trek_fp8_bits(trek_fp8_float(magnitude) + grid) - trek_fp8_bits(grid);
    uint32_t code = magnitude < least ? denormal : normal;
    code = code > most ? most : code;
    return (uint8_t)(sign | ((given & 0x7fffffffu) >= TREK_FP8_INFINITE ? 0x7fu : code));
}

/* Shifted into place, the bits are an f32 that is too small by a power of two, denormals included. */
TREK_FP8_FUNCTION float trek_fp8_decode(uint8_t code, int format)
{
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, magnitude = code & 0x7fu;
    int wide = format == TREK_E5M2;
    uint32_t size = trek_fp8_bits(trek_fp8_float(magnitude << (wide ? 21 : 20)) * (wide ? 0x1p112f : 0x1p120f));
    if (wide ? magnitude >= 0x7cu : magnitude == 0x7fu)
        size = TREK_FP8_INFINITE | (magnitude == 0x7cu ? 0 : 0x400000u);
    return trek_fp8_float(sign | size);
}

/* Returns log2 of the scale: the largest power of two by which a magnitude (bits of an f32, above 0 and finite) does
 * not exceed the format, divided by 2^margin. The scale and its inverse are normal numbers. */
TREK_FP8_FUNCTION int trek_fp8_exponent(uint32_t magnitude, int format, int margin)
{
    int e = (format == TREK_E5M2 ? 15 : 8) - ((int)(magnitude >> 23) - 127);
    if ((magnitude & 0x7fffffu) > 0x600000u) /* both formats end at 1.75 times a power of two */
        e--;
    e -= margin;
    return e < -126 ? -126 : e > 126 ? 126 : e;
}
TREK_FP8_FUNCTION float trek_fp8_power(int e) { return trek_fp8_float((uint32_t)(e + 127) << 23); }

/* Returns the largest magnitude in a row of the record: those of past steps and, if it is frozen, the current one's;
 * 0: none. */
TREK_FP8_FUNCTION uint32_t trek_fp8_recorded(const int32_t *row, int64_t n, int flags)
{
    uint32_t most = 0;
    for (int64_t k = flags & TREK_FP8_FROZEN ? 0 : 1; k < n; k++)
        if ((uint32_t)row[k] < TREK_FP8_INFINITE && (uint32_t)row[k] > most)
            most = (uint32_t)row[k];
    return most;
}

/* Moves the step's magnitude into the history, whose oldest one is dropped. A magnitude that is not finite counts as
 * not seen. */
TREK_FP8_FUNCTION void trek_fp8_roll(int32_t *row, int64_t n)
{
    int32_t last = (uint32_t)row[0] < TREK_FP8_INFINITE ? row[0] : 0;
    for (int64_t k = n - 1; k > 1; k--)
        row[k] = row[k - 1];
    row[1] = last;
    row[0] = 0;
}

#endif
