/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled once for each instruction set, which TREK_ISA names. */
#include "data/pixels.h"

#include "data/pixels_sets.h"

static inline uint8_t byte_of(float x) { return (uint8_t)(int)(x < 0 ? 0 : x > 255 ? 255 : x); }
static inline float larger(float a, float b) { return a > b ? a : b; }
static inline float smaller(float a, float b) { return a < b ? a : b; }
/* for a position in (-6, 18): its distance from the two sixths of a channel, at most 1 */
static inline float away(float h)
{
    h = h < 0 ? h + 6 : h;
    h = h >= 12 ? h - 12 : h;
    h = h >= 6 ? h - 6 : h;
    return smaller(1, larger(0, smaller(h, 4 - h)));
}
static inline float unit_of(float x) { return x < 0 ? 0 : x > 1 ? 1 : x; }

#define PIXEL uint8_t
#define NAME(x) x##_u8
#define MOST 255.0f
#define KEEP(x) byte_of(x)
#define BACK(x) byte_of((x) * (255.999f / 255))
#define WEIGHT int32_t
#define WEIGHTS whole
#define START (1 << 21)
#define ROUND(x) (uint8_t)((x) < 0 ? 0 : (x) >> 22 > 255 ? 255 : (x) >> 22)
#include "data/pixels_template.h"
#undef PIXEL
#undef NAME
#undef MOST
#undef KEEP
#undef BACK
#undef WEIGHT
#undef WEIGHTS
#undef START
#undef ROUND

#define PIXEL float
#define NAME(x) x##_f32
#define MOST 1.0f
#define KEEP(x) unit_of(x)
#define BACK(x) unit_of(x)
#define WEIGHT float
#define WEIGHTS part
#define START 0
#define ROUND(x) (x)
#include "data/pixels_template.h"

const trek_pixel_kernels *TREK_PIXELS_NAME(TREK_ISA)(bool is_float) { return is_float ? &kernels_f32 : &kernels_u8; }
