/* SPDX-License-Identifier: Apache-2.0 */
/* Norms over groups, channels and neighbours, and dropout of whole channels. Lifetimes, NULL and errors are as in autograd/ops.h,
 * which includes this header. Formulas and defaults are PyTorch's. Dtypes are floating. 16-bit dtypes are computed in f32 and
 * rounded once. */
#ifndef TREK_AUTOGRAD_NORMS_H
#define TREK_AUTOGRAD_NORMS_H

#include "autograd/var.h"

TREK_BEGIN

/* Normalises x [N, C, ...] by the mean and the variance of each group of channels (Wu and He 2018). Each sample's channels form
 * `groups` groups of equal size. weight and bias are [C] or NULL and have any floating dtypes (torch wants x's, or f32 for 16
 * bits). x may have no elements (which torch refuses). Fails with ARGUMENT if groups does not divide C, and with SHAPE if a group
 * has only one value. */
TREK_API trek_var *trek_group_norm(trek_var *x, int64_t groups, trek_var *weight, trek_var *bias, double eps);
/* Normalises each channel of each sample of x [N, C, ...] by its own mean and variance (Ulyanov et al. 2016), as trek_group_norm
 * with a group for each channel. weight, bias, running_mean and running_var are [C] or NULL. The running statistics become (1 -
 * momentum) old + momentum new, where new is the mean over the samples; a batch without samples leaves them unchanged (torch:
 * NaN). If use_input_stats is false it is trek_batch_norm with the running statistics. Fails with SHAPE if use_input_stats is
 * true and channels have only one value. */
TREK_API trek_var *trek_instance_norm(trek_var *x, trek_var *running_mean, trek_var *running_var, trek_var *weight,
                                      trek_var *bias, bool use_input_stats, double momentum, double eps);
/* Computes x / (k + alpha / size sum of squares)^beta, with the sum over `size` neighbouring channels of x [N, C, ...]; channels
 * outside count as 0 (Krizhevsky et al. 2012). x may have any strides (torch accepts some). Dtypes: floating.
 * Fails with SHAPE if x has fewer than three dimensions, and with ARGUMENT if size < 1. */
TREK_API trek_var *trek_local_response_norm(trek_var *x, int64_t size, double alpha, double beta, double k);
/* Computes x / max(p-norm of x along dim, eps). Its derivative is that of trek_norm and trek_clamp. */
TREK_API trek_var *trek_normalize(trek_var *x, double p, int dim, double eps);

/* -- dropout of whole channels. In training these functions act on each channel with probability p; otherwise they return x
 *    itself. They fail with ARGUMENT if p is outside [0, 1]. -- */
/* Zeroes whole channels [L] of x [N, C, L], or of one sample [C, L], and divides the others by 1 - p. NaN and infinity times 0
 * are NaN. Fails with SHAPE if x has another number of dimensions. */
TREK_API trek_var *trek_dropout1d(trek_var *x, double p, bool training);
/* Zeroes whole channels [H, W] of x [N, C, H, W], or [L] of x [N, C, L], and divides the others by 1 - p. NaN and infinity times
 * 0 are NaN. Fails with SHAPE if x has another number of dimensions. */
TREK_API trek_var *trek_dropout2d(trek_var *x, double p, bool training);
/* Zeroes whole channels [D, H, W] of x [N, C, D, H, W], or of one sample [C, D, H, W], and divides the others by 1 - p. NaN and
 * infinity times 0 are NaN. Fails with SHAPE if x has another number of dimensions. */
TREK_API trek_var *trek_dropout3d(trek_var *x, double p, bool training);
/* Sets elements to SELU's lowest value, -1.758..., with probability p, then shifts and scales all elements so that mean 0 and
 * variance 1 stay (Klambauer et al. 2017). With p = 1 all become 0. Dtypes: floating. */
TREK_API trek_var *trek_alpha_dropout(trek_var *x, double p, bool training);
/* Computes trek_alpha_dropout with whole channels of x [N, C, ...] instead of single elements. Dtypes: floating. */
TREK_API trek_var *trek_feature_alpha_dropout(trek_var *x, double p, bool training);

TREK_END

#endif
