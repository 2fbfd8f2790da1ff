/* SPDX-License-Identifier: Apache-2.0 */
/* The 8-bit formats by their definition (sign, exponent, fraction), in f64: what kernels are compared with. */
#ifndef TREK_TESTS_FP8_H
#define TREK_TESTS_FP8_H

#include <stdbool.h>
#include <stdint.h>

/* e5m2: that format, else E4M3. The number of a code. */
double test_fp8_number(bool e5m2, int code);
/* The code nearest to x, of two the even one; beyond the largest that one, NaN for what is not finite. */
int test_fp8_nearest(bool e5m2, double x);
/* The largest power of two by which the magnitude stays within the format, over 2^margin, in [2^-126, 2^126]; 1 where it is 0 or
 * not finite. */
double test_fp8_scale(bool e5m2, double magnitude, int margin);
/* The number of these 32 bits, as the record keeps magnitudes. */
float test_float_of(uint32_t bits);

#endif
