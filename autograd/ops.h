/* SPDX-License-Identifier: Apache-2.0 */
/* The differentiable ops. They take and return variables. Names, broadcasting, promotion of dtypes and defaults are PyTorch's.
 *
 * Ownership: a result belongs to the innermost open scope, and inputs are never consumed. A function that fails sets the calling
 * thread's error and returns NULL (or -1). A function whose required input is NULL also returns NULL, so that a chain of calls
 * needs one test, at its end.
 *
 * Dimensions may be negative, which counts from the end. Lists of dimensions are written trek_dims(0, -1), and trek_dims_all()
 * lists all dimensions.
 *
 * Dtypes: inputs of several dtypes are computed in the dtype that they promote to. An integer beyond f16's range becomes infinite
 * in f16, also if it is a scalar. Gradients are computed in the common dtype, or in f32 if that has 16 bits and the formula has
 * several steps; then they are rounded to an input's own dtype at the end.
 *
 * Devices: inputs on different CPUs (cpu:0 and cpu:1) are used as if they were on one. The result is on the calling rank's CPU
 * (cpu:0 outside ranks) if an input is on it, and on the first input's CPU otherwise. The gradient of a leaf is on the leaf's
 * device. Inputs on other different devices are an error.
 *
 * Errors: SHAPE stands for the status TREK_ERR_SHAPE, and so on. Every function fails with SHAPE if shapes do not fit, with DTYPE
 * if it does not support a dtype, with DEVICE if devices do not mix, with SCOPE if no scope is open, and with MEMORY. Comments
 * name these only where the rule is not obvious. */
#ifndef TREK_AUTOGRAD_OPS_H
#define TREK_AUTOGRAD_OPS_H

#include "autograd/activations.h"
#include "autograd/arithmetic.h"
#include "autograd/embedding.h"
#include "autograd/losses.h"
#include "autograd/norms.h"
#include "autograd/parts.h"
#include "autograd/pointwise.h"
#include "autograd/reductions.h"
#include "autograd/resample.h"
#include "autograd/shapes.h"
#include "autograd/spatial.h"
#include "autograd/special.h"
#include "autograd/statistics.h"
#include "autograd/take.h"
#include "autograd/var.h"
#include "tensor/op_opts.h"

TREK_BEGIN

/* -- element-wise, any shape. The result has x's shape and, on the CPU, x's layout in memory. Where a comment says that integers
 *    give f32, so does bool. -- */
/* Returns -1, 0 or 1 for elements that are negative, zero or positive. A NaN gives 0. A bool is copied. */
TREK_API trek_var *trek_sign(trek_var *x);
/* Computes e^x - 1, precisely also where x is near 0. Integers give f32. */
TREK_API trek_var *trek_expm1(trek_var *x);
/* Computes log(1 + x), precisely also where x is near 0. Integers give f32. */
TREK_API trek_var *trek_log1p(trek_var *x);
/* Computes the logarithm of x to base 2. Integers give f32. */
TREK_API trek_var *trek_log2(trek_var *x);
/* Computes the logarithm of x to base 10. Integers give f32. */
TREK_API trek_var *trek_log10(trek_var *x);
/* Computes 1 / sqrt(x). Integers give f32. */
TREK_API trek_var *trek_rsqrt(trek_var *x);
/* Computes 1 / x. Integers give f32. */
TREK_API trek_var *trek_reciprocal(trek_var *x);
/* Computes x^2. A bool gives i64. */
TREK_API trek_var *trek_square(trek_var *x);
/* Computes the sine of x, in radians. Integers give f32. */
TREK_API trek_var *trek_sin(trek_var *x);
/* Computes the cosine of x, in radians. Integers give f32. */
TREK_API trek_var *trek_cos(trek_var *x);
/* Computes the tangent of x, in radians. Integers give f32. */
TREK_API trek_var *trek_tan(trek_var *x);
/* Computes the angle in [-pi/2, pi/2] whose sine is x. Integers give f32. */
TREK_API trek_var *trek_asin(trek_var *x);
/* Computes the angle in [0, pi] whose cosine is x. Integers give f32. */
TREK_API trek_var *trek_acos(trek_var *x);
/* Computes the angle in [-pi/2, pi/2] whose tangent is x. Integers give f32. */
TREK_API trek_var *trek_atan(trek_var *x);
/* Computes the hyperbolic sine of x. Integers give f32. */
TREK_API trek_var *trek_sinh(trek_var *x);
/* Computes the hyperbolic cosine of x. Integers give f32. */
TREK_API trek_var *trek_cosh(trek_var *x);
/* Computes the error function. Integers give f32. Where x^2 overflows the second derivative is 0 (PyTorch: NaN). */
TREK_API trek_var *trek_erf(trek_var *x);
/* Computes the tanh approximation of trek_gelu, as torch's gelu with approximate="tanh". Dtypes: floating. */
TREK_API trek_var *trek_gelu_tanh(trek_var *x);
/* Computes log(1 + exp(beta x)) / beta, and x itself where beta x > threshold. Dtypes: floating. The second derivative is 0 where
 * beta x > threshold. */
TREK_API trek_var *trek_softplus(trek_var *x, double beta, double threshold);
/* Computes x where x > 0, and negative_slope x elsewhere. Dtypes: floating. */
TREK_API trek_var *trek_leaky_relu(trek_var *x, double negative_slope);
/* Computes x where x > 0, and alpha (e^x - 1) elsewhere. Dtypes: floating. The derivative at NaN is 1 (PyTorch's depends on the
 * element's position), and the second derivative at 0 is 0. */
TREK_API trek_var *trek_elu(trek_var *x, double alpha);
/* Rounds down to a whole number. Dtypes: numbers, not bool. The gradient is 0. */
TREK_API trek_var *trek_floor(trek_var *x);
/* Rounds up to a whole number. Dtypes: numbers, not bool. The gradient is 0. */
TREK_API trek_var *trek_ceil(trek_var *x);
/* Rounds to the nearest whole number, and halves to the even one. Dtypes: numbers, not bool. The gradient is 0. */
TREK_API trek_var *trek_round(trek_var *x);
/* Rounds towards 0 to a whole number. Dtypes: numbers, not bool. The gradient is 0. */
TREK_API trek_var *trek_trunc(trek_var *x);
/* Returns a tensor of bool that is true where x is NaN. */
TREK_API trek_var *trek_isnan(trek_var *x);
/* Returns a tensor of bool that is true where x is infinite. */
TREK_API trek_var *trek_isinf(trek_var *x);
/* Returns a tensor of bool that is true where x is neither infinite nor NaN. */
TREK_API trek_var *trek_isfinite(trek_var *x);
/* Returns a tensor of bool that is true where x is 0 (or false). */
TREK_API trek_var *trek_logical_not(trek_var *x);
/* Limits x to [low, high]. An infinite bound leaves that side open. Integers stay integers if both bounds are whole numbers, and
 * give f32 otherwise, also for an infinite bound; a bool gives i64 or f32. A NaN stays NaN. If low > high all elements get high,
 * as in PyTorch. The derivative at a finite bound is 0; on an open side it is 1 at infinity, too (PyTorch: 0). Fails with
 * ARGUMENT if x's floating dtype cannot hold a bound. */
TREK_API trek_var *trek_clamp(trek_var *x, double low, double high);

/* -- with a number. An integer x stays an integer if the number is whole, and gives f32 if it has a fraction. trek_add_scalar,
 *    trek_sub_scalar, trek_mul_scalar and trek_pow_scalar fail with ARGUMENT if x has an integer dtype and the number is whole
 *    but beyond i64. Sums, differences and products of integers wrap around in x's dtype, as in PyTorch, and so does the number:
 *    u8 elements 250 give 4 with 10 added, and with 266. -- */
/* Computes x - value. Fails with DTYPE if x is bool. */
TREK_API trek_var *trek_sub_scalar(trek_var *x, double value);
/* Computes x / value. Integers give f32, also for a whole value. */
TREK_API trek_var *trek_div_scalar(trek_var *x, double value);
/* Returns a tensor of bool that is true where x equals value; comparisons of integers are exact. */
TREK_API trek_var *trek_eq_scalar(trek_var *x, double value);
/* Returns a tensor of bool that is true where x differs from value; comparisons of integers are exact. */
TREK_API trek_var *trek_ne_scalar(trek_var *x, double value);
/* Returns a tensor of bool that is true where x < value; comparisons of integers are exact. */
TREK_API trek_var *trek_lt_scalar(trek_var *x, double value);
/* Returns a tensor of bool that is true where x <= value; comparisons of integers are exact. */
TREK_API trek_var *trek_le_scalar(trek_var *x, double value);
/* Returns a tensor of bool that is true where x > value; comparisons of integers are exact. */
TREK_API trek_var *trek_gt_scalar(trek_var *x, double value);
/* Returns a tensor of bool that is true where x >= value; comparisons of integers are exact. */
TREK_API trek_var *trek_ge_scalar(trek_var *x, double value);

/* -- two inputs, which broadcast and are promoted by PyTorch's table -- */
/* Computes x^y. Dtypes: numbers; two bools fail with DTYPE. The derivative with respect to x is 0 where y is 0, and the one with
 * respect to y is 0 where x is 0 and y >= 0. An f32 beyond 2^24 is always even, so with such exponents the derivative of a
 * negative x may have the other sign than PyTorch's. */
TREK_API trek_var *trek_pow(trek_var *x, trek_var *y);
/* Computes the larger of x and y. A NaN wins over a number. Where x equals y, each gets half of the gradient; where the result is
 * NaN, both get the whole gradient. */
TREK_API trek_var *trek_maximum(trek_var *x, trek_var *y);
/* Computes the smaller of x and y. A NaN wins over a number. Where x equals y, each gets half of the gradient; where the result
 * is NaN, both get the whole gradient. */
TREK_API trek_var *trek_minimum(trek_var *x, trek_var *y);
/* Computes atan(x / y) in the right quadrant, in [-pi, pi]. Integers give f32. The derivatives at (0, 0) are 0. The derivatives
 * of integers are computed in f32 (PyTorch's -x and its squares wrap around). */
TREK_API trek_var *trek_atan2(trek_var *x, trek_var *y);
/* Computes the remainder of x / y with y's sign, as Python's %. Dtypes: numbers, not bool. It is exact, also where x / y
 * overflows (PyTorch: NaN). A y of 0 gives NaN. Fails with ARGUMENT if y has an integer dtype and holds a 0. */
TREK_API trek_var *trek_remainder(trek_var *x, trek_var *y);
/* Returns a tensor of bool that is true where x equals y. */
TREK_API trek_var *trek_eq(trek_var *x, trek_var *y);
/* Returns a tensor of bool that is true where x differs from y. */
TREK_API trek_var *trek_ne(trek_var *x, trek_var *y);
/* Returns a tensor of bool that is true where x < y. */
TREK_API trek_var *trek_lt(trek_var *x, trek_var *y);
/* Returns a tensor of bool that is true where x <= y. */
TREK_API trek_var *trek_le(trek_var *x, trek_var *y);
/* Returns a tensor of bool that is true where x > y. */
TREK_API trek_var *trek_gt(trek_var *x, trek_var *y);
/* Returns a tensor of bool that is true where x >= y. */
TREK_API trek_var *trek_ge(trek_var *x, trek_var *y);
/* Returns a tensor of bool that is true where both x and y are true; a number is true if it is not 0. */
TREK_API trek_var *trek_logical_and(trek_var *x, trek_var *y);
/* Returns a tensor of bool that is true where x or y is true; a number is true if it is not 0. */
TREK_API trek_var *trek_logical_or(trek_var *x, trek_var *y);
/* Returns a tensor of bool that is true where exactly one of x and y is true; a number is true if it is not 0. */
TREK_API trek_var *trek_logical_xor(trek_var *x, trek_var *y);
/* Returns x where the condition is true, and y elsewhere. The three broadcast. Fails with DTYPE if condition is not bool. */
TREK_API trek_var *trek_where(trek_var *condition, trek_var *x, trek_var *y);
/* Returns x with value where mask is true. Both broadcast. Fails with DTYPE if mask is not bool, and with ARGUMENT if x's dtype
 * cannot hold value, as trek_fill_ does. */
TREK_API trek_var *trek_masked_fill(trek_var *x, trek_var *mask, double value);

/* -- in place. These functions change x, keep its shape and dtype, and return x. They are computed in the dtype that both inputs
 *    promote to, then rounded into x. They fail with STATE unless gradients are off (trek_no_grad_begin). They fail with DTYPE if
 *    the result is floating and x is not, or if x is bool and the result is not. They fail with ARGUMENT if several elements of x
 *    share memory (an expanded view), or if x and y overlap in memory without being the same view. -- */
/* Adds y to x in place. */
TREK_API trek_var *trek_add_(trek_var *x, trek_var *y);
/* Subtracts y from x in place. Fails with DTYPE if an input is bool. */
TREK_API trek_var *trek_sub_(trek_var *x, trek_var *y);
/* Multiplies x by y in place. */
TREK_API trek_var *trek_mul_(trek_var *x, trek_var *y);
/* Divides x by y in place. */
TREK_API trek_var *trek_div_(trek_var *x, trek_var *y);
/* Sets all elements of x, which may have any strides, to value. Fails with ARGUMENT if x's dtype cannot hold value: a negative
 * number in u8, where torch wraps whole numbers around, or 1e38 in f16, which torch refuses for some shapes only. */
TREK_API trek_var *trek_fill_(trek_var *x, double value);
/* Copies y into x. y is expanded to x's shape and converted to x's dtype, whatever both are. Copying x to itself does nothing. */
TREK_API trek_var *trek_copy_(trek_var *x, trek_var *y);

/* -- reductions over dims, or over all dimensions if dims is trek_dims_all(). With keepdim reduced dimensions stay, with size 1;
 *    without it they are removed. -- */
/* Computes the product. Integers and bool give i64. The gradient of an element is the product of the remaining elements,
 * evaluated literally: two zeros and an infinity give NaN (PyTorch: 0). With create_graph the gradient is a number where x is the
 * only NaN or infinity; without it, and in PyTorch, it is NaN there. */
TREK_API trek_var *trek_prod(trek_var *x, trek_dims_list dims, bool keepdim);
/* Computes the minimum. A NaN wins. Gradients and errors are those of trek_max. */
TREK_API trek_var *trek_min(trek_var *x, trek_dims_list dims, bool keepdim);
/* Returns the index of the minimum, the first one of equal elements, as i64. Dimensions, dtypes and errors are those of
 * trek_argmax. */
TREK_API trek_var *trek_argmin(trek_var *x, trek_dims_list dims, bool keepdim);
/* Returns whether any element is true or not 0. The result is bool, also for u8 (PyTorch returns u8 there, from the time before
 * it had bool). */
TREK_API trek_var *trek_any(trek_var *x, trek_dims_list dims, bool keepdim);
/* Returns whether all elements are true or not 0. The result is bool, also for u8, as that of trek_any. */
TREK_API trek_var *trek_all(trek_var *x, trek_dims_list dims, bool keepdim);
/* Computes the variance with Bessel's correction (divided by n - 1); trek_variance_with takes others. Dtypes: floating. */
TREK_API trek_var *trek_variance(trek_var *x, trek_dims_list dims, bool keepdim);
/* Computes the standard deviation, the square root of trek_variance. It is correct even if the variance would overflow. Dtypes:
 * floating. The gradient is 0 where all elements are equal. */
TREK_API trek_var *trek_std(trek_var *x, trek_dims_list dims, bool keepdim);
/* Computes the p-norm for any p. Integers give f32. Where the norm is 0 the subgradient is 0, and for p below 1 it is also 0 at
 * elements that are 0. Fails with SHAPE if p < 0 and a reduced dimension has no elements. */
TREK_API trek_var *trek_norm(trek_var *x, double p, trek_dims_list dims, bool keepdim);
/* Computes log(sum of e^x) without overflow. Integers give f32. */
TREK_API trek_var *trek_logsumexp(trek_var *x, trek_dims_list dims, bool keepdim);
/* Computes running sums along dim; the result has x's shape. Integers and bool give i64. */
TREK_API trek_var *trek_cumsum(trek_var *x, int dim);
/* Computes the logarithm of the running sum of e^x along dim, without overflow. Dtypes: floating. Where the incoming gradient is
 * 0 derivatives are numbers (PyTorch: NaN). Next to elements that are not finite second derivatives may be NaN. */
TREK_API trek_var *trek_logcumsumexp(trek_var *x, int dim);

/* -- shapes. Results are views of x where strides allow it, and copies otherwise. -- */
/* Joins the dimensions from start_dim to end_dim, both included, into one. */
TREK_API trek_var *trek_flatten(trek_var *x, int start_dim, int end_dim);
/* Replaces dimension dim by dimensions of the given sizes. One size at least is needed, and one may be -1 and is computed. Fails
 * with SHAPE if the product of the sizes differs from dim's size. */
TREK_API trek_var *trek_unflatten(trek_var *x, int dim, trek_shape sizes);
/* Returns a view of x in which dimensions of size 1 are repeated to the given sizes. A size of -1 stays as it is, and further
 * dimensions may be added in front. */
TREK_API trek_var *trek_expand(trek_var *x, trek_shape shape);
/* Removes dimension dim if its size is 1; otherwise the shape stays as it is. */
TREK_API trek_var *trek_squeeze(trek_var *x, int dim);
/* Returns x itself if it is contiguous in memory, and a contiguous copy otherwise. */
TREK_API trek_var *trek_contiguous(trek_var *x);
/* Returns a contiguous copy of x (PyTorch's keeps x's layout). */
TREK_API trek_var *trek_clone(trek_var *x);
/* Converts x to a dtype. Returns x itself if it has that dtype. */
TREK_API trek_var *trek_cast(trek_var *x, trek_dtype dtype);
/* Moves x to a device, and its gradient back. Returns x itself if it is on that device. */
TREK_API trek_var *trek_to(trek_var *x, trek_device device);
/* Reverses the order along the listed dimensions, as a copy. With trek_dims_none(), which lists no dimension, the result is a
 * plain copy. */
TREK_API trek_var *trek_flip(trek_var *x, trek_dims_list dims);
/* Returns a copy of the matrices in the last two dimensions with 0 above diagonal number `diagonal` (0 is the main one, positive
 * numbers lie above it). Fails with SHAPE if x has fewer than two dimensions. */
TREK_API trek_var *trek_tril(trek_var *x, int64_t diagonal);
/* Returns a copy of the matrices in the last two dimensions with 0 below diagonal number `diagonal` (0 is the main one, positive
 * numbers lie above it). Fails with SHAPE if x has fewer than two dimensions. */
TREK_API trek_var *trek_triu(trek_var *x, int64_t diagonal);
/* Splits x along dim into parts of `size` elements, the last of which may be shorter. It writes them, as views, to parts, which
 * has `capacity` elements, and returns their number, or -1 on failure. An empty dimension gives one empty part, for which size
 * may be 0. Fails with ARGUMENT if there are more parts than capacity. */
TREK_API int trek_split(trek_var *x, int64_t size, int dim, trek_var **parts, int capacity);
/* Splits x along dim into at most `chunks` parts of equal size, the last of which may be shorter. It writes them, as views, to
 * parts, which has `capacity` elements, and returns their number, or -1 on failure. An empty dimension gives `chunks` empty
 * parts. Fails with ARGUMENT if there are more parts than capacity. */
TREK_API int trek_chunk(trek_var *x, int chunks, int dim, trek_var **parts, int capacity);
/* Splits x into its slices along dim, without that dimension. It writes them, as views, to parts, which has `capacity` elements,
 * and returns their number, or -1 on failure. An empty dimension gives no slices and 0. Fails with ARGUMENT if there are more
 * slices than capacity. */
TREK_API int trek_unbind(trek_var *x, int dim, trek_var **parts, int capacity);
/* Returns a copy of the slices of x at the given indices along dim. index is 1-D (or a scalar) and has any integer dtype;
 * negative indices fail with ARGUMENT, as all that are out of range. x needs a dimension (torch also takes a scalar). */
TREK_API trek_var *trek_index_select(trek_var *x, int dim, trek_var *index);
/* Returns x with the slices of source added at the given indices along dim. index is 1-D and has any integer dtype; source has
 * x's shape except along dim, where it has as many slices as index, and x's dtype. Indices are checked even if there is nothing
 * to add (torch checks them for some shapes only). 16-bit dtypes are added in f32 and rounded once. */
TREK_API trek_var *trek_index_add(trek_var *x, int dim, trek_var *index, trek_var *source);
/* Returns the elements of x whose index along dim is given by index, and whose other indices are those of the element of index.
 * index has as many dimensions as x and any integer dtype; along other dimensions it may be smaller than x. The result has
 * index's shape. The dimensions must agree even if index is empty or x a scalar (torch then takes others). */
TREK_API trek_var *trek_gather(trek_var *x, int dim, trek_var *index);
/* Returns x with the elements of source added at the indices along dim that index gives. index has as many dimensions as x and
 * any integer dtype, and is nowhere larger than source, nor, except along dim, than x. source has x's dtype. */
TREK_API trek_var *trek_scatter_add(trek_var *x, int dim, trek_var *index, trek_var *source);
/* Returns for each element of x, a class number of an integer dtype, a row of `classes` elements that is 1 at that number and 0
 * elsewhere. The result has shape [..., classes] and dtype i64. If classes is -1 it is the largest number + 1, for which the call
 * synchronises with the GPU. */
TREK_API trek_var *trek_one_hot(trek_var *x, int64_t classes);

/* -- sorting and choosing. A NaN is larger than all numbers, and -0 equals 0. Indices are i64; functions write them to *indices,
 *    which may be NULL, and set it to NULL on failure. keepdim is as in reductions. Gradients go to the elements that were
 *    chosen. -- */
/* Returns the maximum along dim and writes its index to *indices. If elements are equal, the first one counts; a NaN counts as
 * the maximum. Fails with SHAPE if the dimension has no elements. */
TREK_API trek_var *trek_max_with_indices(trek_var *x, int dim, bool keepdim, trek_var **indices);
/* Returns the minimum along dim and writes its index to *indices. If elements are equal, the first one counts; a NaN counts as
 * the minimum. Fails with SHAPE if the dimension has no elements. */
TREK_API trek_var *trek_min_with_indices(trek_var *x, int dim, bool keepdim, trek_var **indices);
/* Returns the elements sorted along dim and writes to *indices where each of them was. It is always stable: equal elements keep
 * their order, also if `descending` is true. Fails with UNSUPPORTED if dim has 2^32 elements or more. */
TREK_API trek_var *trek_sort(trek_var *x, int dim, bool descending, trek_var **indices);
/* Returns the indices that sort x along dim, as trek_sort writes them. */
TREK_API trek_var *trek_argsort(trek_var *x, int dim, bool descending);
/* Returns the k largest (or smallest) elements along dim in the order of trek_sort, and writes to *indices where they were. Fails
 * with ARGUMENT if k is larger than the dimension, or if k is 0 and x has no dimensions. */
TREK_API trek_var *trek_topk(trek_var *x, int64_t k, int dim, bool largest, trek_var **indices);
/* Returns the k-th smallest element along dim, counted from 1, and writes to *indices where it was. Equal elements are ordered as
 * by trek_sort. Dtypes: numbers, not bool. Fails with ARGUMENT if k is outside [1, size of the dimension]. */
TREK_API trek_var *trek_kthvalue(trek_var *x, int64_t k, int dim, bool keepdim, trek_var **indices);
/* Returns the median along dim and writes to *indices where it was. For an even number of elements it is the lower of the two
 * middle values, and for a row with a NaN the result is its first NaN. Dtypes: numbers, not bool. Fails with SHAPE if the
 * dimension has no elements. */
TREK_API trek_var *trek_median(trek_var *x, int dim, bool keepdim, trek_var **indices);
/* Returns the median along dim of the elements that are not NaN, and writes to *indices where it was. A row that has only NaNs
 * gives NaN. Details and errors are those of trek_median. */
TREK_API trek_var *trek_nanmedian(trek_var *x, int dim, bool keepdim, trek_var **indices);
/* Returns the q-quantiles along dim. q has x's dtype, f32 or f64, and is a scalar or 1-D; a 1-D q adds its dimension in front. A
 * row with a NaN gives NaN. The call synchronises with the GPU to check q. Fails with ARGUMENT if q is outside [0, 1]. */
TREK_API trek_var *trek_quantile(trek_var *x, trek_var *q, int dim, bool keepdim, trek_interpolation interpolation);
/* Returns the q-quantiles along dim of the elements that are not NaN. A row that has only NaNs gives NaN. q and errors are those
 * of trek_quantile. */
TREK_API trek_var *trek_nanquantile(trek_var *x, trek_var *q, int dim, bool keepdim, trek_interpolation interpolation);
/* Returns running maxima along dim and writes their indices to *indices. If elements are equal, the index is that of the last
 * one. From the first NaN on all results are NaN. */
TREK_API trek_var *trek_cummax(trek_var *x, int dim, trek_var **indices);
/* Returns running minima along dim and writes their indices to *indices. If elements are equal, the index is that of the last
 * one. From the first NaN on all results are NaN. */
TREK_API trek_var *trek_cummin(trek_var *x, int dim, trek_var **indices);
/* Computes running products along dim. Integers and bool give i64. Gradients are right also where x is 0. Where x is not finite,
 * the derivatives may be NaN at other elements than in PyTorch. */
TREK_API trek_var *trek_cumprod(trek_var *x, int dim);
/* Returns for each element of x the index, i64, at which it would be inserted into `sorted` to keep the order: the index of the
 * first element that is not smaller or, if `right` is true, of the first element that is larger. sorted is 1-D, or has x's
 * leading dimensions. Fails with DTYPE if the two dtypes differ. */
TREK_API trek_var *trek_searchsorted(trek_var *sorted, trek_var *x, bool right);
/* Computes trek_searchsorted in a sequence that is not sorted. sorter, i64, is the trek_argsort of it along its last
 * dimension. */
TREK_API trek_var *trek_searchsorted_by(trek_var *sequence, trek_var *x, bool right, trek_var *sorter);
/* Returns for each element of x the index, i64, of the bucket between sorted 1-D boundaries in which it lies. Details are those
 * of trek_searchsorted. */
TREK_API trek_var *trek_bucketize(trek_var *x, trek_var *boundaries, bool right);

/* -- indexing. Where the size of a result depends on the data the call synchronises with the GPU; trek_scatter, its variants,
 *    trek_index_fill and trek_index_put do not. An index out of range fails with ARGUMENT, which a GPU may report in a later
 *    call. -- */
/* Returns the indices of the elements that are not 0, i64 [n, dimensions of x], in row-major order. */
TREK_API trek_var *trek_nonzero(trek_var *x);
/* Returns the elements of x at which mask is true, 1-D, in row-major order. Both broadcast. Fails with DTYPE if mask is not
 * bool. */
TREK_API trek_var *trek_masked_select(trek_var *x, trek_var *mask);
/* Returns the distinct values of x, 1-D and sorted. Each NaN counts as a value of its own. *inverse gets x's shape
 * and says where in the result the value of each element is, and *counts says how often each value occurs; either may be NULL.
 * It has no gradient. */
TREK_API trek_var *trek_unique(trek_var *x, trek_var **inverse, trek_var **counts);
/* Returns the values of the flattened x with runs of equal neighbours reduced to one element, in x's order. *inverse and *counts
 * are those of trek_unique. It has no gradient. */
TREK_API trek_var *trek_unique_consecutive(trek_var *x, trek_var **inverse, trek_var **counts);
/* Returns the distinct slices of x along dim, sorted by their elements, as torch.unique with a dimension. Writes to *inverse [n]
 * the index in the result of each slice, and to *counts how often each occurs; either pointer may be NULL. A slice with a NaN
 * differs from all others. Slices are sorted on the host. It has no gradient. Fails with SHAPE if x has no dimensions, or if the
 * slices have no elements. */
TREK_API trek_var *trek_unique_dim(trek_var *x, int dim, trek_var **inverse, trek_var **counts);
/* Counts how often each of 0, 1, ... occurs in x, which is 1-D and has an integer dtype. The result is i64 or, with weights,
 * their sum for each number: f32 if weights are f32, and f64 otherwise. weights may be NULL. The result has at least minlength
 * elements. It has no gradient. Fails with ARGUMENT if x or minlength is negative. */
TREK_API trek_var *trek_bincount(trek_var *x, trek_var *weights, int64_t minlength);
/* Repeats each slice along dim `repeats` times in succession. The call does not synchronise with the GPU. */
TREK_API trek_var *trek_repeat_interleave(trek_var *x, int64_t repeats, int dim);
/* Repeats slice k along dim repeats[k] times in succession. repeats is 1-D, i64 or i32, with one number for each slice. Fails
 * with ARGUMENT if a number is negative. */
TREK_API trek_var *trek_repeat_interleave_by(trek_var *x, trek_var *repeats, int dim);
/* Returns x with the elements of source written to the indices along dim that index gives. index has x's number of dimensions and
 * any integer dtype, and is nowhere larger than source nor, except along dim, than x. source has x's dtype. If several elements
 * go to one position the last one stays. */
TREK_API trek_var *trek_scatter(trek_var *x, int dim, trek_var *index, trek_var *source);
/* Returns x with value written to the indices along dim that index gives. Shapes are those of trek_scatter. Fails with ARGUMENT
 * if x's dtype cannot hold value. */
TREK_API trek_var *trek_scatter_value(trek_var *x, int dim, trek_var *index, double value);
/* Returns x with the elements of source reduced into the positions that index gives: by sum, product, mean, maximum or minimum.
 * include_self says whether x's own element takes part. Shapes and dtypes are those of trek_scatter. Means of integers are
 * rounded down. Without x's own element it takes no part in the gradient of an extreme either (PyTorch counts it if it equals the
 * result). Second derivatives of a product with several zeros are 0 there; where elements are not finite, they may be 0 instead
 * of NaN. */
TREK_API trek_var *trek_scatter_reduce(trek_var *x, int dim, trek_var *index, trek_var *source, trek_reduction reduction,
                                       bool include_self);
/* Returns x with value written to the slices at the given indices along dim. index is 1-D and has any integer dtype; negative
 * indices count from the end. Fails with ARGUMENT if x's dtype cannot hold value. */
TREK_API trek_var *trek_index_fill(trek_var *x, int dim, trek_var *index, double value);
/* Returns a copy of x in which x[list[0], list[1], ...] = values was done, or += for each value if `accumulate` is true. The
 * `count` indices, i64 or i32, broadcast with each other and stand for the first dimensions; negative ones count from the end.
 * values have x's dtype and broadcast to the shape of the indices followed by x's other dimensions. */
TREK_API trek_var *trek_index_put(trek_var *x, trek_var *const *list, int count, trek_var *values, bool accumulate);

/* -- repeating and arranging -- */
/* Repeats x along each dimension the given number of times. There is a number for each dimension of x; more numbers add
 * dimensions in front. Fails with ARGUMENT if a number is negative, even if x is empty. */
TREK_API trek_var *trek_repeat(trek_var *x, trek_shape repeats);
/* Repeats x as trek_repeat does; if there are fewer numbers than dimensions, they are those of the last dimensions. */
TREK_API trek_var *trek_tile(trek_var *x, trek_shape repeats);
/* Moves elements along each dimension of dims by its number in shifts; what leaves at the end enters at the beginning. With
 * trek_dims_none() as dims the flattened x is moved by one shift. */
TREK_API trek_var *trek_roll(trek_var *x, trek_dims_list shifts, trek_dims_list dims);
/* Returns a view of x in which the dimensions of `source` stand at the positions of `destination`; the others keep their
 * order. */
TREK_API trek_var *trek_movedim(trek_var *x, trek_dims_list source, trek_dims_list destination);
/* Returns a view of the diagonal of dimensions dim1 and dim2, `offset` above the main one. The diagonal's dimension replaces both
 * dimensions and comes last. */
TREK_API trek_var *trek_diagonal(trek_var *x, int64_t offset, int dim1, int dim2);
/* Returns a matrix with the elements of a 1-D x on its diagonal number `diagonal`, or that diagonal of a 2-D x, as a copy. */
TREK_API trek_var *trek_diag(trek_var *x, int64_t diagonal);
/* Expands `count` vectors (or scalars) of coordinates to grids, and writes them, as views, to parts, which has `capacity`
 * elements. Grid k changes along dimension k; if xy is true the first two dimensions are exchanged. Returns count, or -1 on
 * failure. Fails with ARGUMENT if count is larger than capacity. */
TREK_API int trek_meshgrid(trek_var *const *list, int count, bool xy, trek_var **parts, int capacity);

/* -- constants and random numbers of x's shape, dtype and device -- */
/* Returns zeros. */
TREK_API trek_var *trek_zeros_like(trek_var *x);
/* Returns ones. */
TREK_API trek_var *trek_ones_like(trek_var *x);
/* Returns elements that are all value. Fails with ARGUMENT if x's dtype cannot hold value. */
TREK_API trek_var *trek_full_like(trek_var *x, double value);
/* Returns memory that is not initialised. */
TREK_API trek_var *trek_empty_like(trek_var *x);
/* Returns random numbers that are uniform in [0, 1). Dtypes: floating. */
TREK_API trek_var *trek_rand_like(trek_var *x);
/* Returns random numbers of the standard normal distribution. Dtypes: floating. */
TREK_API trek_var *trek_randn_like(trek_var *x);
/* Returns 1 with probability x and 0 otherwise, for each element. Dtypes: floating. It has no gradient. The call synchronises
 * with the GPU to check x. Fails with ARGUMENT if a probability is outside [0, 1]. */
TREK_API trek_var *trek_bernoulli(trek_var *x);
/* Draws `samples` indices, i64, for each row of weights x [n] or [m, n]. Dtypes: floating. The weights need not add up to 1. The
 * call synchronises with the GPU to check them. Fails with ARGUMENT if a weight is negative or not finite, if a row has only
 * zeros or, without replacement, if it has fewer weights above 0 than samples. */
TREK_API trek_var *trek_multinomial(trek_var *x, int64_t samples, bool replacement);

/* -- products. All inputs have one dtype; otherwise the call fails with DTYPE, and one of them must be cast. Autocast does that
 *    by itself. -- */
/* Computes x weight^T + bias: x [..., in], weight [out, in] and bias [out] (or NULL) give [..., out]. Dtypes: floating (torch
 * also multiplies integers). */
TREK_API trek_var *trek_linear(trek_var *x, trek_var *weight, trek_var *bias);
/* Computes trek_linear and applies the activation to the result in the same step. */
TREK_API trek_var *trek_linear_activation(trek_var *x, trek_var *weight, trek_var *bias, trek_activation activation);
/* Computes x^T weight[o] y + bias[o] for each o: x [..., n], y [..., m] with the same leading dimensions, weight [out, n, m] and
 * bias [out] (or NULL) give [..., out]. Dtypes: floating. The call holds [out, rows, m] intermediate numbers and keeps them for
 * backward. */
TREK_API trek_var *trek_bilinear(trek_var *x, trek_var *y, trek_var *weight, trek_var *bias);

/* -- convolution and pooling of x [N, C, H, W]. Convolutions and means are of floating dtypes (PyTorch also takes i64). Weight
 *    and bias have x's dtype; otherwise the call fails with DTYPE. -- */
/* Computes a 2-D convolution. weight is [O, C/groups, kh, kw], bias [O]; bias and opts may be NULL. If x or weight lies channels
 * last in memory (trek_channels_last), the result does. Weights that are not finite may make gradients NaN anywhere; whether they
 * make results NaN where the kernel covers padding is not defined. */
TREK_API trek_var *trek_conv2d(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_opts *opts);
/* Computes trek_conv2d and applies the activation to the result. ReLU is part of the same step; GELU is a step of its own after
 * it. */
TREK_API trek_var *trek_conv2d_activation(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_opts *opts,
                                          trek_activation activation);
/* Returns x [N, C, H, W] with the channels of each pixel next to each other in memory, as torch's
 * memory_format=torch.channels_last. Shape and elements stay the same; only strides change. If x lies so already, x itself is
 * returned. Convolutions, poolings, batch norms and element-wise ops keep this layout in their results, and so do gradients;
 * trek_contiguous undoes it. Fails with SHAPE if x does not have four dimensions. */
TREK_API trek_var *trek_channels_last(trek_var *x);
/* Computes a transposed 2-D convolution, as torch.nn.functional.conv_transpose2d: the step by which trek_conv2d turns the
 * gradient of its result into that of its input. weight is [C, O/groups, kh, kw], bias [O]; bias and opts may be NULL. The result
 * is [N, O, H', W'] with H' = (H - 1) stride - 2 padding + dilation (kh - 1) + output padding + 1. Weights that are not finite
 * act as in trek_conv2d. Fails with ARGUMENT if an output padding is neither below the stride nor below the dilation, or if no
 * output padding gives the requested output size. Fails with SHAPE if the result has no pixels (torch returns some of these).
 * Both checks also apply to empty batches, for which torch checks less. */
TREK_API trek_var *trek_conv_transpose2d(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_transpose_opts *opts);
/* Computes the maximum of each window. Dtypes: numbers, not bool. */
TREK_API trek_var *trek_max_pool2d(trek_var *x, const trek_pool_opts *opts);
/* Computes the mean of each window. Dtypes: floating. */
TREK_API trek_var *trek_avg_pool2d(trek_var *x, const trek_pool_opts *opts);
/* Computes the means of windows that are chosen so that the result is [N, C, height, width]. Dtypes: floating. */
TREK_API trek_var *trek_adaptive_avg_pool2d(trek_var *x, int64_t height, int64_t width);

/* -- normalisation, embedding, dropout. Dtypes: floating. -- */
/* Computes (x - mean) / sqrt(variance + eps) weight + bias, with statistics over the last `normalized_dims` dimensions. weight
 * and bias have the shape of these dimensions and may be NULL. The result has x's dtype; weight and bias have x's dtype, or both
 * have f32 if x has 16 bits. A bias without a weight has second derivatives (PyTorch's drops them). */
TREK_API trek_var *trek_layer_norm(trek_var *x, int normalized_dims, trek_var *weight, trek_var *bias, double eps);
/* Computes the layer norm of x + branch in one pass each way, as the residual stream of a transformer needs it. Returns the norm,
 * and writes the sum to *residual, which may be NULL and is set to NULL on failure. x and branch have one shape and are promoted
 * as by trek_add; the other arguments are those of trek_layer_norm. Gradients flow back through both results. The sum of two
 * constants is a constant, also if weight or bias need a gradient. A hook on the sum, or its gradient from trek_grad, sees the
 * gradient from the sum's own uses, without the part that comes through the norm. */
TREK_API trek_var *trek_add_layer_norm(trek_var *x, trek_var *branch, int normalized_dims, trek_var *weight, trek_var *bias,
                                       double eps, trek_var **residual);
/* Computes x / sqrt(mean(x^2) + eps) weight, with the mean over the last `normalized_dims` dimensions. weight has the shape of
 * these dimensions and may be NULL. Its dtype is x's, or f32 if x has 16 bits. */
TREK_API trek_var *trek_rms_norm(trek_var *x, int normalized_dims, trek_var *weight, double eps);
/* Computes (x - mean) / sqrt(variance + eps) weight + bias for each channel of x [N, C, ...]. weight, bias, running_mean and
 * running_var are [C] or NULL and have any floating dtypes (torch wants x's, or f32 if x has 16 bits). The result has x's dtype,
 * and each gradient has its input's. In training the statistics are the batch's, and the running ones become (1 - momentum) old +
 * momentum new; otherwise the running ones are used. A bias without a weight has second derivatives (PyTorch's drops them). If
 * inputs are not finite, the order in which the formula is evaluated decides which gradients are NaN and which are infinite. */
TREK_API trek_var *trek_batch_norm(trek_var *x, trek_var *running_mean, trek_var *running_var, trek_var *weight, trek_var *bias,
                                   bool training, double momentum, double eps);
/* Returns the rows of weight [n, d] at the given indices: indices [...] of any integer dtype give [..., d]. The row at
 * padding_idx gets no gradient; -1 stands for no such row. autograd/embedding.h has more options, and bags. Fails with ARGUMENT
 * if an index is out of range. */
TREK_API trek_var *trek_embedding(trek_var *indices, trek_var *weight, int64_t padding_idx);
/* Zeroes each element with probability p and divides the others by 1 - p, in training; otherwise returns x itself. A zeroed
 * element is 0 whatever it was (PyTorch: NaN if it was NaN or infinite). Fails with ARGUMENT if p is outside [0, 1]. */
TREK_API trek_var *trek_dropout(trek_var *x, double p, bool training);

/* Options of trek_attention. */
typedef struct trek_attention_opts {
    bool causal;    /* query i sees keys 0 to i only; default false */
    double scale;   /* factor of the scores; default 1 / sqrt(D), TREK_ZERO for 0 */
    trek_var *mask; /* broadcasts to [B, H, T, S]: bool (true: may be seen), or floating (added to the scores); default NULL */
    double dropout; /* probability in [0, 1] with which a weight is dropped, also outside training; default 0 */
} trek_attention_opts;

/* Computes softmax(scale q k^T + mask) v, as torch's scaled_dot_product_attention, without the matrix of scores in memory: memory
 * grows with T, not with T S.
 *
 * Shapes: q is [B, H, T, D], k and v are [B, G, S, D], and H is a multiple of G: head h reads head h / (H / G) of k and v. All
 * may have any strides, so that trek_select and trek_permute of a packed [B, T, 3, H, D] need no copies. The result is [B, H, T,
 * D] and lies in memory as [B, T, H, D], so that permuting it and reshaping it to [B, T, H D] are views.
 *
 * A query that sees no key gives 0. opts may be NULL. A mask that requires a gradient (a learned position bias) gets one; the
 * matrix of scores is then made. A mask must fit even if there are no elements (torch then ignores it). Gradients use the
 * log-sum-exp of the scores in f32 (f64 for f64), as FlashAttention does: scores near 1000 leave them four digits. */
TREK_API trek_var *trek_attention(trek_var *q, trek_var *k, trek_var *v, const trek_attention_opts *opts);
/* Returns the matrix that trek_attention never makes: the weights [B, H, T, S] of the values for each query, in q's dtype, after
 * dropout. A query that sees no key has weights of 0. opts may be NULL. */
TREK_API trek_var *trek_attention_weights(trek_var *q, trek_var *k, const trek_attention_opts *opts);

/* -- recurrent layers -- */
/* Options of trek_lstm and trek_gru. */
typedef struct trek_recurrent_opts {
    trek_var *h0;        /* first state [N, H], or [N, P] of a projected LSTM; default zeros */
    trek_var *c0;        /* first cell state [N, H] of an LSTM; default zeros */
    trek_var *lengths;   /* [N], steps of each row, in [0, T], of any integer dtype, on any device; default T */
    bool reverse;        /* goes from each row's last step to its first; default false */
    trek_var *weight_hr; /* [P, H], projects each step's h of an LSTM (see trek_lstm); default NULL */
} trek_recurrent_opts;

/* Computes one layer of an LSTM in one direction, over all steps. Returns its outputs [T, N, H].
 *
 * Shapes: x is [T, N, in] (pass a transposed view of data [N, T, in]), weight_ih [4 H, in], weight_hh [4 H, H], biases [4 H] or
 * NULL. The gates are in PyTorch's order i, f, g, o. hn and cn, which may be NULL, get the state [N, H] after each row's last
 * step, which is step 0 if reverse is true. If T is 0 they are h0 and c0 (torch refuses T = 0). opts may be NULL.
 *
 * Lengths: elements beyond a row's length are ignored and get a gradient of 0, and the result is 0 there. hn and cn are those of
 * the row's own last step, as with torch's packed sequences; here a row may have no step and keeps h0 and c0. reverse begins at
 * the row's own end.
 *
 * Dtypes: all have one floating dtype. Steps are computed in f32 for 16 bits; a GPU's products read states that are rounded to 16
 * bits.
 *
 * Projection: with opts->weight_hr (PyTorch's proj_size, Sak et al. 2014) each step returns weight_hr (o tanh(c)) instead of o
 * tanh(c). weight_hh is then [4 H, P], the result [T, N, P] and hn [N, P]. It is computed as an LSTM whose state is not
 * projected, with weight_hh weight_hr [4 H, H] as its weight, which is fast but takes more multiplications if P is much less than
 * H.
 *
 * Errors: fails with ARGUMENT if a length is outside [0, T]. On failure *hn and *cn are NULL. With create_graph the steps are
 * taken one by one. */
TREK_API trek_var *trek_lstm(trek_var *x, trek_var *weight_ih, trek_var *weight_hh, trek_var *bias_ih, trek_var *bias_hh,
                             const trek_recurrent_opts *opts, trek_var **hn, trek_var **cn);

/* Computes one layer of a GRU in one direction, over all steps. Returns its outputs [T, N, H]. weight_ih is [3 H, in], weight_hh
 * [3 H, H], biases [3 H] or NULL. The gates are in PyTorch's order r, z, n, and the reset gate is applied after the product, as
 * there: n = tanh(x's part + r (weight_hh h + bias_hh)). Everything else is as in trek_lstm. Fails with ARGUMENT if opts has a c0
 * or a weight_hr. */
TREK_API trek_var *trek_gru(trek_var *x, trek_var *weight_ih, trek_var *weight_hh, trek_var *bias_ih, trek_var *bias_hh,
                            const trek_recurrent_opts *opts, trek_var **hn);

TREK_END

#include "autograd/fft.h"
#include "autograd/linalg.h"

#endif
