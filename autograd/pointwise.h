/* SPDX-License-Identifier: Apache-2.0 */
/* Activations and further element-wise ops, of floating dtypes (DTYPE else) unless said. Formulas and defaults are PyTorch's;
 * NULL in, NULL out. Part of autograd/ops.h. */
#ifndef TREK_AUTOGRAD_POINTWISE_H
#define TREK_AUTOGRAD_POINTWISE_H

#include "autograd/var.h"

TREK_BEGIN

/* -- activations: one pass each way; NaN passes on, and lets its gradient pass -- */
TREK_API trek_var *trek_relu6(trek_var *x);                             /* min(max(x, 0), 6) */
TREK_API trek_var *trek_hardtanh(trek_var *x, double low, double high); /* min(max(x, low), high); ARGUMENT: low > high */
TREK_API trek_var *trek_hardsigmoid(trek_var *x);                       /* relu6(x + 3) / 6 */
TREK_API trek_var *trek_hardswish(trek_var *x);                         /* x relu6(x + 3) / 6 */
TREK_API trek_var *trek_hardshrink(trek_var *x, double lambda);         /* 0 where |x| <= lambda */
TREK_API trek_var *trek_softshrink(trek_var *x, double lambda);         /* x moved by lambda (>= 0: ARGUMENT) towards 0 */
TREK_API trek_var *trek_tanhshrink(trek_var *x);                        /* x - tanh(x) */
TREK_API trek_var *trek_threshold(trek_var *x, double threshold, double value); /* value where x <= threshold */
TREK_API trek_var *trek_softsign(trek_var *x);                          /* x / (1 + |x|) */
TREK_API trek_var *trek_logsigmoid(trek_var *x);                        /* log(1 / (1 + e^-x)) */
TREK_API trek_var *trek_mish(trek_var *x);                              /* x tanh(log(1 + e^x)); Misra 2019 */
TREK_API trek_var *trek_selu(trek_var *x);                              /* Klambauer and others 2017 */
TREK_API trek_var *trek_celu(trek_var *x, double alpha);
    /* x > 0 ? x : alpha (e^(x / alpha) - 1); ARGUMENT: alpha 0 */

/* -- activations made of others -- */
TREK_API trek_var *trek_softmin(trek_var *x, int dim);                  /* softmax(-x) */
/* x > 0 ? x : weight x; weight [1] or one for each channel, x's dimension 1 (ARGUMENT). */
TREK_API trek_var *trek_prelu(trek_var *x, trek_var *weight);
/* In training the slope below 0 is drawn for each element, U(lower, upper); else it is their mean. ARGUMENT: lower > upper. */
TREK_API trek_var *trek_rrelu(trek_var *x, double lower, double upper, bool training);
/* The first half along dim times the sigmoid of the second one. SHAPE: an odd size. */
TREK_API trek_var *trek_glu(trek_var *x, int dim);
/* The same with silu in its place, applied to the first half: silu(a) b (Shazeer 2020). */
TREK_API trek_var *trek_swiglu(trek_var *x, int dim);

/* -- arithmetic; inputs broadcast, their dtypes promote; steps of 16-bit ones are made in f32 and rounded once -- */
TREK_API trek_var *trek_lerp(trek_var *x, trek_var *y, double weight);             /* x + weight (y - x) */
TREK_API trek_var *trek_addcmul(trek_var *x, trek_var *y, trek_var *z, double value); /* x + value y z */
TREK_API trek_var *trek_addcdiv(trek_var *x, trek_var *y, trek_var *z, double value); /* x + value y / z */
TREK_API trek_var *trek_frac(trek_var *x);                              /* x - trunc(x) */
TREK_API trek_var *trek_exp2(trek_var *x);                              /* 2^x; integers give f32, as in the next ones */
TREK_API trek_var *trek_asinh(trek_var *x);
TREK_API trek_var *trek_acosh(trek_var *x);
TREK_API trek_var *trek_atanh(trek_var *x);
TREK_API trek_var *trek_erfc(trek_var *x);                              /* 1 - erf(x), precise where that is small */
TREK_API trek_var *trek_erfinv(trek_var *x);                            /* of (-1, 1); NaN outside */
/* log |Gamma(x)|; this and its derivatives are precise to a few units in the last place of x's (PyTorch's are not). */
TREK_API trek_var *trek_lgamma(trek_var *x);
TREK_API trek_var *trek_digamma(trek_var *x);
/* The n-th derivative of digamma; ARGUMENT: n < 0 or > 100. */
TREK_API trek_var *trek_polygamma(int64_t n, trek_var *x);
/* log(x / (1 - x)); eps >= 0: of x within [eps, 1 - eps] (eps above 0.5: of eps below it, else of 1 - eps), derivative 0 outside.
 * Else derivatives outside (0, 1) are the formula's (PyTorch: NaN). */
TREK_API trek_var *trek_logit(trek_var *x, double eps);
TREK_API trek_var *trek_deg2rad(trek_var *x);
TREK_API trek_var *trek_rad2deg(trek_var *x);
TREK_API trek_var *trek_logaddexp(trek_var *x, trek_var *y);            /* log(e^x + e^y); one may be of integers */
/* Any dtype; ARGUMENT: a number that x's dtype does not hold. */
TREK_API trek_var *trek_nan_to_num(trek_var *x, double nan, double positive_infinity, double negative_infinity);
/* Bool: |x - y| <= atol + rtol |y|, equal infinities, and NaN beside NaN if equal_nan. Any dtype, both alike (DTYPE); integers as
 * f64. No gradient. */
TREK_API trek_var *trek_isclose(trek_var *x, trek_var *y, double rtol, double atol, bool equal_nan);
/* Whether all are; waits for the device. False with an error set: not to be had. */
TREK_API bool trek_allclose(trek_var *x, trek_var *y, double rtol, double atol, bool equal_nan);
TREK_API trek_var *trek_count_nonzero(trek_var *x, trek_dims_list dims); /* i64; any dtype */

/* -- quotients and numbers of two; inputs broadcast, their dtypes promote; 16-bit ones in f32 on the way -- */
typedef enum trek_rounding { TREK_ROUND_NONE, TREK_ROUND_TRUNC, TREK_ROUND_FLOOR } trek_rounding;
/* x / y rounded, as torch.div's rounding_mode: of integers exact ones (ARGUMENT: by zero), gradients of 0. DTYPE: two of bool. */
TREK_API trek_var *trek_div_mode(trek_var *x, trek_var *y, trek_rounding rounding);
TREK_API trek_var *trek_floor_divide(trek_var *x, trek_var *y); /* rounded down */
TREK_API trek_var *trek_fmod(trek_var *x, trek_var *y);  
    /* the remainder with x's sign; by zero: NaN, or ARGUMENT for integers; derivative by y is the exact quotient (PyTorch's is
     * rounded before it is cut) */
/* sqrt(x^2 + y^2) without overflow on the way; an infinity wins over a NaN; one may be of integers (DTYPE: both). */
TREK_API trek_var *trek_hypot(trek_var *x, trek_var *y);
/* |x| with y's sign, also a zero's and a NaN's. Integers give f32. The derivative by x is 0 where x is 0 or NaN, and a number
 * where x is infinite (PyTorch: NaN), by y 0. */
TREK_API trek_var *trek_copysign(trek_var *x, trek_var *y);
/* The larger (smaller) one, of which one that is no number does not count; of equals both
 * get half of the gradient. */
TREK_API trek_var *trek_fmax(trek_var *x, trek_var *y);
TREK_API trek_var *trek_fmin(trek_var *x, trek_var *y);
/* x log(y), 0 where x is 0 and y no NaN. Integers give f32. Derivatives are 0 where x is 0 and y is not between 0 and
 * infinity, and NaN where y is below 0 (PyTorch: 0 of a gradient of 0). */
TREK_API trek_var *trek_xlogy(trek_var *x, trek_var *y);
/* 0 below 0 and of NaN, 1 above, y at 0; one dtype (DTYPE). No gradient. */
TREK_API trek_var *trek_heaviside(trek_var *x, trek_var *y);
/* minimum(maximum(x, low), high), either of which may be NULL (ARGUMENT: both). Gradients at a limit are shared as theirs
 * (PyTorch: x's, where the limit has none). */
TREK_API trek_var *trek_clamp_var(trek_var *x, trek_var *low, trek_var *high);
TREK_API trek_var *trek_sinc(trek_var *x);               
    /* sin(pi x) / (pi x), 1 at 0, with its second derivative at 0; integers give f32; slopes near 0 and at its
     * turns are what remains of numbers that cancel, as PyTorch's */
TREK_API trek_var *trek_signbit(trek_var *x);            /* bool: below 0, or -0, or such a NaN. Any dtype, as the next ones */
TREK_API trek_var *trek_isposinf(trek_var *x);
TREK_API trek_var *trek_isneginf(trek_var *x);

/* -- bits of integers, and of bool but for shifts (DTYPE: of floating dtypes); inputs broadcast, their dtypes promote -- */
TREK_API trek_var *trek_bitwise_and(trek_var *x, trek_var *y);
TREK_API trek_var *trek_bitwise_or(trek_var *x, trek_var *y);
TREK_API trek_var *trek_bitwise_xor(trek_var *x, trek_var *y);
TREK_API trek_var *trek_bitwise_not(trek_var *x);
/* x 2^y, wrapped, and x 2^-y, rounded down; by less than 0 or by more than the dtype's bits all are shifted out: 0, or to the
 * right -1 where x is below 0. */
TREK_API trek_var *trek_bitwise_left_shift(trek_var *x, trek_var *y);
TREK_API trek_var *trek_bitwise_right_shift(trek_var *x, trek_var *y);

/* The greatest common divisor of integers, not negative (but for what does not fit); 0 of two zeros. */
TREK_API trek_var *trek_gcd(trek_var *x, trek_var *y);
/* The least common multiple, not negative; 0 beside a zero; wraps. */
TREK_API trek_var *trek_lcm(trek_var *x, trek_var *y);
/* The dtype's next number after x in the direction of y (y, where they are equal); floating dtypes, 16-bit ones, too. No
 * gradient. */
TREK_API trek_var *trek_nextafter(trek_var *x, trek_var *y);

/* -- along dimensions -- */
/* Of neighbours along dim, n times over; before and after (either may be NULL) are put at x's ends first. Of bool: whether they
 * differ. ARGUMENT: n below 0. SHAPE: no dimensions. */
TREK_API trek_var *trek_diff(trek_var *x, int64_t n, int dim, trek_var *before, trek_var *after);
/* The integral along dim by trapezoids between points x (NULL: dx apart), 1-D or such that their steps broadcast to y's;
 * integers as f32 (DTYPE: bool). Recorded of no elements, too; of one point 0 whatever
 * it is. */
TREK_API trek_var *trek_trapezoid(trek_var *y, trek_var *x, double dx, int dim);
/* The same up to each point but the first: sizes are one less, at least 0. */
TREK_API trek_var *trek_cumulative_trapezoid(trek_var *y, trek_var *x, double dx, int dim);
TREK_API trek_var *trek_nansum(trek_var *x, trek_dims_list dims, bool keepdim);  /* NaNs count as 0; any dtype, as trek_sum */
TREK_API trek_var *trek_nanmean(trek_var *x, trek_dims_list dims, bool keepdim);
    /* of what is no NaN; NaN of nothing, gradient 0 there */

TREK_END

#endif
