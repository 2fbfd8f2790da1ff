/* SPDX-License-Identifier: Apache-2.0 */
/* The copies of pixels.c. */
#ifndef TREK_DATA_PIXELS_SETS_H
#define TREK_DATA_PIXELS_SETS_H

#include "data/pixels.h"

#define TREK_PIXELS_NAME_(isa) trek_pixels_##isa
#define TREK_PIXELS_NAME(isa) TREK_PIXELS_NAME_(isa)

const trek_pixel_kernels *trek_pixels_baseline(bool is_float);
const trek_pixel_kernels *trek_pixels_avx2(bool is_float);
const trek_pixel_kernels *trek_pixels_avx512(bool is_float);

#endif
