/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of tensors. Names and defaults are PyTorch's; NULL in, NULL out. Part of autograd/ops.h. */
#ifndef TREK_AUTOGRAD_STATISTICS_H
#define TREK_AUTOGRAD_STATISTICS_H

#include "autograd/var.h"

TREK_BEGIN

/* trek_variance (trek_std), and through *mean the mean (may be NULL; NULL on failure). */
TREK_API trek_var *trek_var_mean(trek_var *x, trek_dims_list dims, bool keepdim, trek_var **mean);
TREK_API trek_var *trek_std_mean(trek_var *x, trek_dims_list dims, bool keepdim, trek_var **mean);
/* The same, divided by n - correction, at least 0, as torch's correction: 1 is Bessel's, 0 makes the population's. ARGUMENT: a
 * correction that is not finite. */
TREK_API trek_var *trek_variance_with(trek_var *x, trek_dims_list dims, bool keepdim, double correction, trek_var **mean);
TREK_API trek_var *trek_std_with(trek_var *x, trek_dims_list dims, bool keepdim, double correction, trek_var **mean);
/* trek_min, and through *max trek_max (may be NULL; NULL on failure). */
TREK_API trek_var *trek_aminmax(trek_var *x, trek_dims_list dims, bool keepdim, trek_var **max);
/* Covariances [m, m] of m variables, the rows of x [m, n]; of one variable [n] (or a number) its variance, without dimensions.
 * Divided by n - correction, at least 0. Repetitions [n] (integers) and weights [n] (floating) of observations may be NULL; then
 * the divisor is that of torch.cov. Integers as f32; SHAPE: more dimensions; ARGUMENT: negative ones (a GPU is waited for). */
TREK_API trek_var *trek_cov(trek_var *x, int64_t correction, trek_var *repetitions, trek_var *weights);
/* Pearson's coefficients of correlation, in [-1, 1]; shapes as trek_cov's. */
TREK_API trek_var *trek_corrcoef(trek_var *x);
/* How many elements of x (f32 or f64; DTYPE) lie in each of `bins` bins between low and high, which are x's extremes if they are
 * equal (a GPU is waited for); in x's dtype, [bins]. What lies outside is left out, and NaN. ARGUMENT: no bins, low above high,
 * ends that are not finite. No gradient. */
TREK_API trek_var *trek_histc(trek_var *x, int64_t bins, double low, double high);
/* Counts the elements of x in `bins` bins between low and high, as torch.histogram does; where these are equal, between x's
 * extremes (a GPU is waited for). A bin holds its lower edge, and the last one also its upper edge; what lies outside, and NaN,
 * is left out. weight, of x's shape and dtype, is what each element counts (NULL: 1); `density` divides by the whole and by the
 * bins' widths. The result [bins] has x's dtype (f32 or f64), and *edges (may be NULL; NULL on failure) are the edges [bins + 1].
 * ARGUMENT: there are no bins, low lies above high, an end is not finite. There is no gradient. */
TREK_API trek_var *trek_histogram(trek_var *x, int64_t bins, double low, double high, trek_var *weight, bool density,
                                  trek_var **edges);
/* The same between edges of one's own, 1-D, two at least, rising and of x's dtype; whether they rise is not looked at. */
TREK_API trek_var *trek_histogram_edges(trek_var *x, trek_var *edges, trek_var *weight, bool density);
/* The most frequent value of each line along dim, the smallest of several, and its last place (may be NULL; NULL on failure);
 * NaNs count as one value each. SHAPE over no elements. */
TREK_API trek_var *trek_mode(trek_var *x, int dim, bool keepdim, trek_var **indices);
/* Slices of x along dim whose p-norm is above max are scaled to it. ARGUMENT: p <= 0, max < 0; SHAPE: below 2 dimensions. */
TREK_API trek_var *trek_renorm(trek_var *x, double p, int dim, double max);

TREK_END

#endif
