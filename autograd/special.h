/* SPDX-License-Identifier: Apache-2.0 */
/* Rarer element-wise functions, torch.special's among them. Names and defaults are PyTorch's, inputs broadcast, their dtypes
 * promote; 16-bit ones are computed in f32 and rounded once; NULL in, NULL out. Part of autograd/ops.h. */
#ifndef TREK_AUTOGRAD_SPECIAL_H
#define TREK_AUTOGRAD_SPECIAL_H

#include "autograd/var.h"

TREK_BEGIN

/* trek_lerp with a weight for each element, which has a floating dtype, too (DTYPE). It is exact for weights of 0 and 1. */
TREK_API trek_var *trek_lerp_var(trek_var *x, trek_var *y, trek_var *weight);
/* Rounds to so many decimals (below 0: to tens, hundreds, ...), halves to even. x has a floating dtype (DTYPE); the gradient is
 * 0. ARGUMENT: more than 300 decimals, or more than 38 for f32 and 16 bits. */
TREK_API trek_var *trek_round_decimals(trek_var *x, int64_t decimals);
TREK_API trek_var *trek_logaddexp2(trek_var *x, trek_var *y); /* log2(2^x + 2^y); floating dtypes (DTYPE) */
/* x 2^exponent, exactly while it is a number that x's dtype holds, as C's; exponent of an integer dtype (DTYPE). Integers x as
 * f32. */
TREK_API trek_var *trek_ldexp(trek_var *x, trek_var *exponent);
/* Of x, of a floating dtype (DTYPE), the mantissa m, in [0.5, 1) or 0 and with x's sign, and through *exponent (may be NULL; NULL
 * on failure) e of i32: x = m 2^e. What is not finite is its own mantissa, with e of 0. The gradient is 2^-e. */
TREK_API trek_var *trek_frexp(trek_var *x, trek_var **exponent);
/* -x log(x), 0 at 0, where the derivative is 0, too (PyTorch: infinite), -infinity below. Integers as f32, as in the next ones.
 */
TREK_API trek_var *trek_entr(trek_var *x);
/* x log(1 + y), 0 where x is 0 and y no NaN; derivatives are 0 where x is 0 and y is not between -1 and infinity. */
TREK_API trek_var *trek_xlog1py(trek_var *x, trek_var *y);
TREK_API trek_var *trek_ndtr(trek_var *x); /* the area under the standard normal density up to x; precise where it is small */
/* The logarithm of trek_ndtr, as -x^2 / 2 far below 0, where the area itself is 0. */
TREK_API trek_var *trek_log_ndtr(trek_var *x);
/* The modified Bessel functions of the first kind, of orders 0 and 1, and the same times e^-|x|. The derivative of i0e at 0 is
 * the mean of both sides, 0. */
TREK_API trek_var *trek_i0(trek_var *x);
TREK_API trek_var *trek_i0e(trek_var *x);
TREK_API trek_var *trek_i1(trek_var *x);
TREK_API trek_var *trek_i1e(trek_var *x);
/* The regularised lower incomplete gamma function P(a, x), and the upper one, 1 - P. NaN where a or x is below 0. The gradient is
 * that of x; one of a is UNSUPPORTED in backward, as PyTorch refuses it. */
TREK_API trek_var *trek_igamma(trek_var *a, trek_var *x);
TREK_API trek_var *trek_igammac(trek_var *a, trek_var *x);

TREK_END

#endif
