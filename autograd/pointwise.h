/* SPDX-License-Identifier: Apache-2.0 */
/* Activations and further element-wise ops. Lifetimes, NULL and errors are as in autograd/ops.h, which includes this header.
 * Formulas, names and defaults are PyTorch's. Dtypes are floating unless a comment says otherwise; others fail with DTYPE. */
#ifndef TREK_AUTOGRAD_POINTWISE_H
#define TREK_AUTOGRAD_POINTWISE_H

#include "autograd/var.h"

TREK_BEGIN

/* -- activations: one pass each way. The result has x's shape. A NaN stays NaN, and its gradient passes through. -- */
/* Computes min(max(x, 0), 6). */
TREK_API trek_var *trek_relu6(trek_var *x);
/* Computes min(max(x, low), high). Fails with ARGUMENT if low > high. */
TREK_API trek_var *trek_hardtanh(trek_var *x, double low, double high);
/* Computes relu6(x + 3) / 6. */
TREK_API trek_var *trek_hardsigmoid(trek_var *x);
/* Computes x relu6(x + 3) / 6. */
TREK_API trek_var *trek_hardswish(trek_var *x);
/* Computes 0 where |x| <= lambda, and x elsewhere. */
TREK_API trek_var *trek_hardshrink(trek_var *x, double lambda);
/* Moves x by lambda towards 0: x - lambda where x > lambda, x + lambda where x < -lambda, and 0 between. Fails with ARGUMENT if
 * lambda is negative. */
TREK_API trek_var *trek_softshrink(trek_var *x, double lambda);
/* Computes x - tanh(x). */
TREK_API trek_var *trek_tanhshrink(trek_var *x);
/* Computes value where x <= threshold, and x elsewhere. */
TREK_API trek_var *trek_threshold(trek_var *x, double threshold, double value);
/* Computes x / (1 + |x|). */
TREK_API trek_var *trek_softsign(trek_var *x);
/* Computes log(1 / (1 + e^-x)). */
TREK_API trek_var *trek_logsigmoid(trek_var *x);
/* Computes x tanh(log(1 + e^x)) (Misra 2019). */
TREK_API trek_var *trek_mish(trek_var *x);
/* Computes scale x where x > 0, and scale alpha (e^x - 1) elsewhere, with scale = 1.0507... and alpha = 1.6732... (Klambauer et
 * al. 2017). */
TREK_API trek_var *trek_selu(trek_var *x);
/* Computes x where x > 0, and alpha (e^(x / alpha) - 1) elsewhere. Fails with ARGUMENT if alpha is 0. */
TREK_API trek_var *trek_celu(trek_var *x, double alpha);

/* -- activations that combine other ops -- */
/* Computes softmax(-x) along dim. */
TREK_API trek_var *trek_softmin(trek_var *x, int dim);
/* Computes x > 0 ? x : weight x. weight is [1], or has one element for each channel, which is dimension 1 of x, and has x's
 * dtype. Fails with ARGUMENT if weight has another number of elements. */
TREK_API trek_var *trek_prelu(trek_var *x, trek_var *weight);
/* Computes x where x > 0, and a slope times x elsewhere. In training each element's slope is drawn uniformly from [lower, upper);
 * otherwise it is their mean. Fails with ARGUMENT if lower > upper, or if one of them is not finite. */
TREK_API trek_var *trek_rrelu(trek_var *x, double lower, double upper, bool training);
/* Computes a sigmoid(b), where a and b are the first and the second half of x along dim. Fails with SHAPE if the size is odd. */
TREK_API trek_var *trek_glu(trek_var *x, int dim);
/* Computes silu(a) b, where a and b are the first and the second half of x along dim (Shazeer 2020). Fails with SHAPE if the size
 * is odd. */
TREK_API trek_var *trek_swiglu(trek_var *x, int dim);

/* -- arithmetic. Inputs broadcast, and their dtypes promote. For 16-bit dtypes intermediate steps are computed in f32 and the
 *    result is rounded once. -- */
/* Computes x + weight (y - x). Both inputs have floating dtypes, and their dtypes promote (PyTorch wants one dtype). */
TREK_API trek_var *trek_lerp(trek_var *x, trek_var *y, double weight);
/* Computes x + value y z. */
TREK_API trek_var *trek_addcmul(trek_var *x, trek_var *y, trek_var *z, double value);
/* Computes x + value y / z. */
TREK_API trek_var *trek_addcdiv(trek_var *x, trek_var *y, trek_var *z, double value);
/* Computes x - trunc(x), the part after the decimal point. */
TREK_API trek_var *trek_frac(trek_var *x);
/* Computes 2^x. Integers give f32. */
TREK_API trek_var *trek_exp2(trek_var *x);
/* Computes the inverse of the hyperbolic sine. Integers give f32. */
TREK_API trek_var *trek_asinh(trek_var *x);
/* Computes the inverse of the hyperbolic cosine. Integers give f32. */
TREK_API trek_var *trek_acosh(trek_var *x);
/* Computes the inverse of the hyperbolic tangent. Integers give f32. Its derivatives are the formula's, also outside (-1, 1). */
TREK_API trek_var *trek_atanh(trek_var *x);
/* Computes 1 - erf(x), precisely also where it is small. Integers give f32. */
TREK_API trek_var *trek_erfc(trek_var *x);
/* Computes the inverse of erf on (-1, 1). It is infinite at -1 and 1, and NaN outside. Integers give f32. */
TREK_API trek_var *trek_erfinv(trek_var *x);
/* Computes log |Gamma(x)|. Integers give f32. The function and its derivatives are precise to a few units in the last place of
 * x's dtype (PyTorch's are not). */
TREK_API trek_var *trek_lgamma(trek_var *x);
/* Computes the derivative of log Gamma(x). Integers give f32. It is as precise as trek_lgamma. */
TREK_API trek_var *trek_digamma(trek_var *x);
/* Computes the n-th derivative of digamma. Integers give f32. Fails with ARGUMENT if n is outside [0, 100]. */
TREK_API trek_var *trek_polygamma(int64_t n, trek_var *x);
/* Computes log(x / (1 - x)). Integers give f32. If eps >= 0, x is first limited to [eps, 1 - eps], and the derivative outside is
 * 0. An eps above 0.5 makes every x below eps to eps and every other x to 1 - eps. With a negative eps x is not limited;
 * derivatives outside (0, 1) are then the formula's (PyTorch: NaN). */
TREK_API trek_var *trek_logit(trek_var *x, double eps);
/* Converts degrees to radians. Integers give f32. */
TREK_API trek_var *trek_deg2rad(trek_var *x);
/* Converts radians to degrees. Integers give f32. */
TREK_API trek_var *trek_rad2deg(trek_var *x);
/* Computes log(e^x + e^y) without overflow. One input may have an integer dtype. */
TREK_API trek_var *trek_logaddexp(trek_var *x, trek_var *y);
/* Replaces NaN and the two infinities by the given numbers. Dtypes: all; what has no NaN is copied. Fails with ARGUMENT if x's
 * dtype cannot hold one of the numbers. */
TREK_API trek_var *trek_nan_to_num(trek_var *x, double nan, double positive_infinity, double negative_infinity);
/* Returns a tensor of bool that is true where |x - y| <= atol + rtol |y|, where both are the same infinity and, if equal_nan is
 * true, where both are NaN. Dtypes: all, but both have one; otherwise it fails with DTYPE. Integers are compared as f64. It has
 * no gradient. Fails with ARGUMENT if rtol or atol is negative. */
TREK_API trek_var *trek_isclose(trek_var *x, trek_var *y, double rtol, double atol, bool equal_nan);
/* Returns whether trek_isclose is true everywhere. The call synchronises with the device. On failure it returns false and sets
 * the error. */
TREK_API bool trek_allclose(trek_var *x, trek_var *y, double rtol, double atol, bool equal_nan);
/* Counts the elements that are not 0 over dims (trek_dims_all(): all dimensions), as i64. Dtypes: all. */
TREK_API trek_var *trek_count_nonzero(trek_var *x, trek_dims_list dims);

/* -- quotients and functions of two numbers. Inputs broadcast, and their dtypes promote. 16-bit dtypes are computed in f32. -- */
/* How trek_div_mode rounds: not at all, towards 0, or down. */
typedef enum trek_rounding { TREK_ROUNDING_NONE, TREK_ROUNDING_TRUNC, TREK_ROUNDING_FLOOR } trek_rounding;
/* Computes x / y and rounds it, as torch.div with rounding_mode. Rounded quotients of integers are exact integers. The gradient
 * of a rounded quotient is 0. Dtypes: numbers; two bools fail with DTYPE if they are rounded. Fails with ARGUMENT if integers are
 * rounded and y holds a 0. */
TREK_API trek_var *trek_div_mode(trek_var *x, trek_var *y, trek_rounding rounding);
/* Computes x / y rounded down. Details and errors are those of trek_div_mode. */
TREK_API trek_var *trek_floor_divide(trek_var *x, trek_var *y);
/* Computes the remainder of x / y with x's sign, as C's fmod. Dtypes: numbers, not bool. A y of 0 gives NaN. The derivative with
 * respect to y is the exact quotient (PyTorch rounds it before it is cut off). Fails with ARGUMENT if y has an integer dtype and
 * holds a 0. */
TREK_API trek_var *trek_fmod(trek_var *x, trek_var *y);
/* Computes sqrt(x^2 + y^2) without intermediate overflow. An infinity wins over a NaN. One input may have an integer dtype; two
 * fail with DTYPE. */
TREK_API trek_var *trek_hypot(trek_var *x, trek_var *y);
/* Returns |x| with y's sign, also that of a zero or of a NaN. Integers give f32. The derivative with respect to x is 0 where x is
 * 0 or NaN, and a number where x is infinite (PyTorch: NaN). The derivative with respect to y is 0. */
TREK_API trek_var *trek_copysign(trek_var *x, trek_var *y);
/* Returns the larger of x and y. A NaN counts only if both are NaN. Where both are equal each gets half of the gradient. Dtypes:
 * all. */
TREK_API trek_var *trek_fmax(trek_var *x, trek_var *y);
/* Returns the smaller of x and y. A NaN counts only if both are NaN. Where both are equal each gets half of the gradient. Dtypes:
 * all. */
TREK_API trek_var *trek_fmin(trek_var *x, trek_var *y);
/* Computes x log(y), and 0 where x is 0 and y is not NaN. Integers give f32. Derivatives are 0 where x is 0 and y is not between
 * 0 and infinity, and NaN where y is below 0 (PyTorch returns 0 there if the incoming gradient is 0). */
TREK_API trek_var *trek_xlogy(trek_var *x, trek_var *y);
/* Returns 0 where x is negative or NaN, 1 where it is positive, and y where it is 0. Dtypes: all, but both have one; otherwise it
 * fails with DTYPE. It has no gradient. */
TREK_API trek_var *trek_heaviside(trek_var *x, trek_var *y);
/* Computes minimum(maximum(x, low), high). Dtypes: all. low or high may be NULL, which leaves that side open. Gradients at a
 * limit are shared as by trek_maximum and trek_minimum (PyTorch gives them to x if the limit has no gradient). Fails with
 * ARGUMENT if both are NULL. */
TREK_API trek_var *trek_clamp_var(trek_var *x, trek_var *low, trek_var *high);
/* Computes sin(pi x) / (pi x), and 1 at 0, with its second derivative at 0. Integers give f32. Slopes near 0 and at its extremes
 * lose digits, because they are differences of numbers that nearly cancel, as PyTorch's. */
TREK_API trek_var *trek_sinc(trek_var *x);
/* Returns a tensor of bool that is true where x is negative, -0, or a NaN whose sign bit is set. Dtypes: all. */
TREK_API trek_var *trek_signbit(trek_var *x);
/* Returns a tensor of bool that is true where x is +infinity. Dtypes: all. */
TREK_API trek_var *trek_isposinf(trek_var *x);
/* Returns a tensor of bool that is true where x is -infinity. Dtypes: all. */
TREK_API trek_var *trek_isneginf(trek_var *x);

/* -- bits of integers. Inputs broadcast, and their dtypes promote. bool is accepted, except by shifts. Floating dtypes fail with
 *    DTYPE. -- */
/* Computes "and" of each bit. */
TREK_API trek_var *trek_bitwise_and(trek_var *x, trek_var *y);
/* Computes "or" of each bit. */
TREK_API trek_var *trek_bitwise_or(trek_var *x, trek_var *y);
/* Computes "exclusive or" of each bit. */
TREK_API trek_var *trek_bitwise_xor(trek_var *x, trek_var *y);
/* Inverts each bit; a bool is negated. */
TREK_API trek_var *trek_bitwise_not(trek_var *x);
/* Shifts bits to the left: x 2^y, which wraps around. If y is negative, or larger than the number of bits, the result is 0. */
TREK_API trek_var *trek_bitwise_left_shift(trek_var *x, trek_var *y);
/* Shifts bits to the right: x 2^-y, rounded down. If y is negative, or larger than the number of bits, the result is -1 where x
 * is negative, and 0 elsewhere. */
TREK_API trek_var *trek_bitwise_right_shift(trek_var *x, trek_var *y);

/* Computes the greatest common divisor of integers. It is not negative, unless it does not fit into the dtype. It is 0 for two
 * zeros. */
TREK_API trek_var *trek_gcd(trek_var *x, trek_var *y);
/* Computes the least common multiple of integers. It is not negative, 0 if an input is 0, and wraps around. */
TREK_API trek_var *trek_lcm(trek_var *x, trek_var *y);
/* Returns the dtype's next number after x in the direction of y, and y where both are equal. Dtypes: floating, also 16-bit ones.
 * It has no gradient. */
TREK_API trek_var *trek_nextafter(trek_var *x, trek_var *y);

/* -- along dimensions -- */
/* Computes the differences of neighbours along dim, n times. before and after, which may be NULL, are first joined to x's ends.
 * Dtypes: all; for bool the result says whether neighbours differ. Fails with ARGUMENT if n is negative, and with SHAPE if x has
 * no dimensions. */
TREK_API trek_var *trek_diff(trek_var *x, int64_t n, int dim, trek_var *before, trek_var *after);
/* Computes the integral of y along dim by trapezoids between the points x, or between points that are dx apart if x is NULL. x is
 * 1-D, or its steps broadcast to y's. Integers are computed in f32; bool fails with DTYPE. The result needs a gradient if y does,
 * even if it has no elements. A single point gives 0, whatever its value is. */
TREK_API trek_var *trek_trapezoid(trek_var *y, trek_var *x, double dx, int dim);
/* Computes the integral up to each point except the first, so that dim has one element less, at least 0. Details are those of
 * trek_trapezoid. */
TREK_API trek_var *trek_cumulative_trapezoid(trek_var *y, trek_var *x, double dx, int dim);
/* Computes the sum over dims with NaN counted as 0. Dtypes: all; the result's dtype is that of trek_sum. */
TREK_API trek_var *trek_nansum(trek_var *x, trek_dims_list dims, bool keepdim);
/* Computes the mean over dims of the elements that are not NaN. It is NaN, with gradients of 0, if there are no such elements. */
TREK_API trek_var *trek_nanmean(trek_var *x, trek_dims_list dims, bool keepdim);

TREK_END

#endif
