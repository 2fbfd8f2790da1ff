/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of tensors. Lifetimes, NULL and errors are as in autograd/ops.h, which includes this header. Names and defaults are
 * PyTorch's. Pointers through which a second result is written may be NULL; they get NULL on failure. */
#ifndef TREK_AUTOGRAD_STATISTICS_H
#define TREK_AUTOGRAD_STATISTICS_H

#include "autograd/var.h"

TREK_BEGIN

/* Returns the variance over dims, as trek_variance, and writes the mean to *mean, as torch.var_mean. */
TREK_API trek_var *trek_variance_mean(trek_var *x, trek_dims_list dims, bool keepdim, trek_var **mean);
/* Returns the standard deviation over dims, as trek_std, and writes the mean to *mean, as torch.std_mean. */
TREK_API trek_var *trek_std_mean(trek_var *x, trek_dims_list dims, bool keepdim, trek_var **mean);
/* Returns the variance over dims, divided by n - correction (at least 0), and writes the mean to *mean. A correction of 1 is
 * Bessel's, and 0 gives the variance of the population. Dtypes: floating. Fails with ARGUMENT if correction is not finite. */
TREK_API trek_var *trek_variance_with(trek_var *x, trek_dims_list dims, double correction, bool keepdim, trek_var **mean);
/* Returns the standard deviation over dims, the square root of trek_variance_with, and writes the mean to *mean. Dtypes:
 * floating. The gradient is 0 where all elements are equal. Fails with ARGUMENT if correction is not finite. */
TREK_API trek_var *trek_std_with(trek_var *x, trek_dims_list dims, double correction, bool keepdim, trek_var **mean);
/* Returns the minimum over dims, as trek_min, and writes the maximum to *max, as trek_max. */
TREK_API trek_var *trek_aminmax(trek_var *x, trek_dims_list dims, bool keepdim, trek_var **max);
/* Computes the covariances [m, m] of m variables, which are the rows of x [m, n]. For one variable [n], or a scalar, the result
 * is its variance, without dimensions. The sums of products are divided by n - correction, at least 0. repetitions [n], of an
 * integer dtype, and weights [n], of a floating dtype, count observations several times or weigh them; either may be NULL. With
 * them the divisor is torch.cov's, and the call synchronises with the GPU to check them. Integers x are computed in f32. Fails
 * with SHAPE if x has more than two dimensions, and with ARGUMENT if a repetition or weight is negative. If these sum to 0, the
 * result is NaN (torch refuses them). */
TREK_API trek_var *trek_cov(trek_var *x, int64_t correction, trek_var *repetitions, trek_var *weights);
/* Computes Pearson's correlation coefficients, in [-1, 1]. Shapes and dtypes are those of trek_cov. */
TREK_API trek_var *trek_corrcoef(trek_var *x);
/* Counts how many elements of x lie in each of `bins` equal bins between low and high, and returns the numbers [bins] in x's
 * dtype. If low equals high they are x's minimum and maximum, for which the call synchronises with the GPU. NaN, and elements
 * outside, do not count. Dtypes: f32 and f64. It has no gradient. Fails with ARGUMENT if bins is below 1, if low > high, or if an
 * end is not finite. */
TREK_API trek_var *trek_histc(trek_var *x, int64_t bins, double low, double high);
/* Counts the elements of x in each of `bins` equal bins between low and high, as torch.histogram, and returns the numbers [bins]
 * in x's dtype. If low equals high they are x's minimum and maximum, for which the call synchronises with the GPU. A bin includes
 * its lower edge, and the last one also its upper edge. NaN, and elements outside, do not count. weight, of x's shape and dtype,
 * is what each element counts; NULL stands for 1. If `density` is true the numbers are divided by their sum and by the widths of
 * the bins. *edges, which may be NULL, gets the edges [bins + 1], or NULL on failure. Dtypes: f32 and f64. It has no gradient.
 * Fails with ARGUMENT if bins is below 1, if low > high, or if an end is not finite. */
TREK_API trek_var *trek_histogram(trek_var *x, int64_t bins, double low, double high, trek_var *weight, bool density,
                                  trek_var **edges);
/* Counts the elements of x in the bins between the given edges, which are at least two, 1-D, of x's dtype and rising; whether
 * they rise is not checked. Details are those of trek_histogram. */
TREK_API trek_var *trek_histogram_edges(trek_var *x, trek_var *edges, trek_var *weight, bool density);
/* Returns the most frequent value of each row along dim, the smallest of several, and its last index through *indices. Each NaN
 * counts as a value of its own. Fails with SHAPE if the dimension has no elements. */
TREK_API trek_var *trek_mode(trek_var *x, int dim, bool keepdim, trek_var **indices);
/* Scales each slice of x along dim whose p-norm is above max down to that norm. Dtypes: floating. Fails with ARGUMENT if p <= 0
 * or max < 0, and with SHAPE if x has fewer than two dimensions. */
TREK_API trek_var *trek_renorm(trek_var *x, double p, int dim, double max);

TREK_END

#endif
