/* SPDX-License-Identifier: Apache-2.0 */
/* Special functions, which are rare, and their derivatives: in f64, and compiled once. log Gamma, its derivative and Bessel
 * functions of f32 and 16 bits are in pointwise.c. */
#include "tensor/special.h"
#include "tensor/cpu/elementwise/digamma.h"
#include "tensor/cpu/elementwise/elementwise.h"

#define SLOPED(op, value, slope)                                                                       \
    static __attribute__((noinline)) double op##_at(double x, double s) { return (void)s, value; }     \
    static __attribute__((noinline)) double op##_slope(double x, double s) { return (void)s, slope; }  \
    TREK_UNARY_ROW(op, f64, f64, op##_at(x, s))                                                        \
    TREK_UNARY_KERNEL(op, f64, f64, 8, TREK_GRAIN_FUNCTION)                                            \
    TREK_BINARY_ROW(op##_backward, f32, f32, x * (float)op##_slope((double)y, (double)s))              \
    TREK_BINARY_ROW(op##_backward, f64, f64, x *op##_slope(y, s))                                      \
    TREK_BINARY_FLOAT_KERNELS(op##_backward, TREK_GRAIN_FUNCTION)
#define SPECIAL(op, value, slope)                                                                      \
    SLOPED(op, value, slope)                                                                           \
    TREK_UNARY_ROW(op, f32, f32, (float)op##_at((double)x, (double)s))                                 \
    TREK_UNARY_KERNEL(op, f32, f32, 4, TREK_GRAIN_FUNCTION)                                            \
    TREK_UNARY_KERNEL(op, bf16, f32, BF16, TREK_GRAIN_FUNCTION)                                        \
    TREK_UNARY_KERNEL(op, f16, f32, F16, TREK_GRAIN_FUNCTION)

SLOPED(lgamma, lgamma(x), trek_digamma(x))
SLOPED(polygamma, trek_polygamma(s, x), trek_polygamma(s + 1, x))
void trek_cpu_polygamma_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs)
{
    const float *x = from[0];
    for (int64_t i = 0; i < n; i++)
        ((float *)to)[i] = (float)polygamma_at(x[i], attrs->f[0]);
}
SLOPED(i0, trek_bessel(0, x), trek_bessel(1, x))
SLOPED(i0e, trek_bessel_scaled(0, x), trek_i0e_slope(x))
SLOPED(i1, trek_bessel(1, x), trek_i1_slope(x))
SLOPED(i1e, trek_bessel_scaled(1, x), trek_i1e_slope(x))
SPECIAL(log_ndtr, trek_log_ndtr(x), trek_log_ndtr_slope(x))

#define IGAMMA(suffix)                                                                                 \
    TREK_BINARY_ROW(igamma, suffix, suffix, (TREK_TYPE_##suffix)trek_igamma((double)x, (double)y, flag != 0))
IGAMMA(f32)
IGAMMA(f64)
TREK_BINARY_FLOAT_KERNELS(igamma, TREK_GRAIN_CALL)

void trek_cpu_register_special(trek_backend *b)
{
#define ENTER(op) (TREK_ENTER_FLOATS(b, op), TREK_ENTER_FLOATS(b, op##_backward));
#define ENTER_SLOPED(op) (TREK_ENTER(b, op, F64, f64), TREK_ENTER_FLOATS(b, op##_backward));
    ENTER(log_ndtr)
    ENTER_SLOPED(polygamma) ENTER_SLOPED(lgamma) ENTER_SLOPED(i0) ENTER_SLOPED(i0e) ENTER_SLOPED(i1) ENTER_SLOPED(i1e)
#undef ENTER_SLOPED
#undef ENTER
        TREK_ENTER_FLOATS(b, igamma);
}
