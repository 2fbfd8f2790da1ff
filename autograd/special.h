/* SPDX-License-Identifier: Apache-2.0 */
/* Less common element-wise functions, among them torch.special's. Lifetimes, NULL and errors are as in autograd/ops.h, which
 * includes this header. Names and defaults are PyTorch's. Inputs broadcast, and their dtypes promote. 16-bit dtypes are computed
 * in f32 and rounded once. */
#ifndef TREK_AUTOGRAD_SPECIAL_H
#define TREK_AUTOGRAD_SPECIAL_H

#include "autograd/var.h"

TREK_BEGIN

/* Computes x + weight (y - x) with a weight for each element. It is exact for weights of 0 and 1. Dtypes: floating, also
 * weight's. */
TREK_API trek_var *trek_lerp_var(trek_var *x, trek_var *y, trek_var *weight);
/* Rounds x to `decimals` decimals, or to tens, hundreds, ... if decimals is negative, and halves to the even digit. Dtypes:
 * floating. The gradient is 0. Fails with ARGUMENT if |decimals| is above 300, or above 38 for f32 and 16 bits. */
TREK_API trek_var *trek_round_decimals(trek_var *x, int64_t decimals);
/* Computes log2(2^x + 2^y) without overflow. Dtypes: floating. */
TREK_API trek_var *trek_logaddexp2(trek_var *x, trek_var *y);
/* Computes x 2^exponent, as C's ldexp. It is exact as long as x's dtype can hold the result. exponent has an integer dtype.
 * Integers x give f32. */
TREK_API trek_var *trek_ldexp(trek_var *x, trek_var *exponent);
/* Splits x into m 2^e: returns the mantissa m, which is 0 or has |m| in [0.5, 1), and writes e, i32, to *exponent, which may be
 * NULL and gets NULL on failure. NaN and the infinities are their own mantissas, with e = 0. Dtypes: floating. The derivative of
 * m is 2^-e. */
TREK_API trek_var *trek_frexp(trek_var *x, trek_var **exponent);
/* Computes -x log(x). It is 0 at 0, where the derivative is 0, too (PyTorch: infinite), and -infinity below 0. Integers give
 * f32. */
TREK_API trek_var *trek_entr(trek_var *x);
/* Computes x log(1 + y), and 0 where x is 0 and y is not NaN. Integers give f32. Derivatives are 0 where x is 0 and y is not
 * between -1 and infinity. */
TREK_API trek_var *trek_xlog1py(trek_var *x, trek_var *y);
/* Computes the cumulative distribution function of the standard normal distribution, precisely also where it is small.
 * Integers give f32. */
TREK_API trek_var *trek_ndtr(trek_var *x);
/* Computes the logarithm of trek_ndtr, precisely also far below 0, where it is about -x^2 / 2 and trek_ndtr itself is 0. Integers
 * give f32. */
TREK_API trek_var *trek_log_ndtr(trek_var *x);
/* Computes the modified Bessel function of the first kind of order 0. Integers give f32. */
TREK_API trek_var *trek_i0(trek_var *x);
/* Computes trek_i0 times e^-|x|. Integers give f32. The derivative at 0 is the mean of both sides, 0. */
TREK_API trek_var *trek_i0e(trek_var *x);
/* Computes the modified Bessel function of the first kind of order 1. Integers give f32. */
TREK_API trek_var *trek_i1(trek_var *x);
/* Computes trek_i1 times e^-|x|. Integers give f32. */
TREK_API trek_var *trek_i1e(trek_var *x);
/* Computes the regularised lower incomplete gamma function P(a, x). It is NaN where a or x is negative. The derivative with
 * respect to x exists; the one with respect to a fails with UNSUPPORTED in backward. */
TREK_API trek_var *trek_igamma(trek_var *a, trek_var *x);
/* Computes the regularised upper incomplete gamma function 1 - P(a, x). Details are those of trek_igamma. */
TREK_API trek_var *trek_igammac(trek_var *a, trek_var *x);

TREK_END

#endif
