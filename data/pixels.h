/* SPDX-License-Identifier: Apache-2.0 */
/* Loops over pixels, compiled once for each instruction set. A plane consists of rows one after the other. */
#ifndef TREK_DATA_PIXELS_H
#define TREK_DATA_PIXELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The pixels that contribute to each one in a row (or column) of `out`: count[i] of them from first[i] on, with the
 * weights at i * taps. The integer weights are the f32 ones times 2^22. */
typedef struct trek_pixel_taps {
    int out, taps;
    int32_t *first, *count;
    int32_t *whole;
    float *part;
} trek_pixel_taps;

/* The same functions for u8 and for f32. */
typedef struct trek_pixel_kernels {
    /* resizes rows that are `width` elements apart to rows of taps->out */
    void (*across)(const void *from, ptrdiff_t width, int rows, const trek_pixel_taps *taps, void *to);
    /* resizes rows of `width` pixels to taps->out rows; row 0 is row `top` of what taps count; `sums` has room for
     * width numbers */
    void (*down)(const void *from, int width, int top, const trek_pixel_taps *taps, void *sums, void *to);
    void (*scale)(void *x, ptrdiff_t n, float factor, float add);                    /* x factor + add, kept in range */
    void (*gray)(const void *r, const void *g, const void *b, void *to, ptrdiff_t n);
    void (*towards)(void *x, const void *gray, ptrdiff_t n, float factor, float rest); /* x factor + gray rest */
    void (*hue)(void *r, void *g, void *b, ptrdiff_t n, float turn);
    void (*mirror)(const void *from, void *to, int width, int rows);
    void (*normalize)(const void *from, float *to, ptrdiff_t n, float mean, float std); /* for u8: of x / 255 */
    /* x lambda + y rest; for u8 of x / 255 and y / 255 */
    void (*mix)(const void *x, const void *y, float *to, ptrdiff_t n, float lambda, float rest);
    /* separates n pixels of three interleaved channels into planes that are `plane` elements apart */
    void (*planes)(const void *interleaved, void *to, ptrdiff_t n, ptrdiff_t plane);
} trek_pixel_kernels;

/* Returns the functions for u8 or f32, in the instruction set that the CPU's kernels use. */
const trek_pixel_kernels *trek_pixels(bool is_float);

#endif
