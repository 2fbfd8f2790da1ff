/* SPDX-License-Identifier: Apache-2.0 */
/* Loops over pixels, compiled once for each instruction set. Planes are rows one after the other. */
#ifndef TREK_DATA_PIXELS_H
#define TREK_DATA_PIXELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of which pixels each one of a row (or column) of `out` is made: those from first[i] on, count[i] of them, times the
 * weights at i * taps. Whole numbers are 2^22 times those of f32. */
typedef struct trek_pixel_taps {
    int out, taps;
    int32_t *first, *count;
    int32_t *whole;
    float *part;
} trek_pixel_taps;

/* The same functions for u8 and for f32. */
typedef struct trek_pixel_kernels {
    /* rows of `width` elements apart to rows of taps->out */
    void (*across)(const void *from, ptrdiff_t width, int rows, const trek_pixel_taps *taps, void *to);
    /* rows of `width` pixels, row 0 being row `top` of what taps count, to taps->out rows; sums: room for width numbers */
    void (*down)(const void *from, int width, int top, const trek_pixel_taps *taps, void *sums, void *to);
    void (*scale)(void *x, ptrdiff_t n, float factor, float add);                    /* x factor + add, kept in range */
    void (*gray)(const void *r, const void *g, const void *b, void *to, ptrdiff_t n);
    void (*towards)(void *x, const void *gray, ptrdiff_t n, float factor, float rest); /* x factor + gray rest */
    void (*hue)(void *r, void *g, void *b, ptrdiff_t n, float turn);
    void (*mirror)(const void *from, void *to, int width, int rows);
    void (*normalize)(const void *from, float *to, ptrdiff_t n, float mean, float std); /* of u8: of x / 255 */
    /* x lambda + y rest; of u8: of x / 255 and y / 255 */
    void (*mix)(const void *x, const void *y, float *to, ptrdiff_t n, float lambda, float rest);
    /* n pixels of three channels side by side, to planes that are `plane` elements apart */
    void (*planes)(const void *interleaved, void *to, ptrdiff_t n, ptrdiff_t plane);
} trek_pixel_kernels;

/* For u8, f32; of the instruction set that the CPU's kernels have. */
const trek_pixel_kernels *trek_pixels(bool is_float);

#endif
