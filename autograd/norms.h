/* SPDX-License-Identifier: Apache-2.0 */
/* Norms over groups, channels and neighbours, and dropout of whole channels, of floating dtypes (DTYPE otherwise). Lifetimes,
 * NULL and errors as in autograd/ops.h, of which this is a part; formulas and defaults are PyTorch's. 16-bit numbers are computed
 * in f32 and rounded once. */
#ifndef TREK_AUTOGRAD_NORMS_H
#define TREK_AUTOGRAD_NORMS_H

#include "autograd/var.h"

TREK_BEGIN

/* x [N, C, ...]; each sample's channels in `groups` parts of equal size, each part normalised by its own mean and variance (Wu
 * and He 2018); weight and bias [C] or NULL, of any floating dtypes (torch wants x's, or f32 for 16 bits), also of no elements
 * (which torch refuses). ARGUMENT: groups that do not divide C. SHAPE: one value alone. */
TREK_API trek_var *trek_group_norm(trek_var *x, int64_t groups, trek_var *weight, trek_var *bias, double eps);
/* As group_norm with a group for each channel: by its own mean and variance (Ulyanov and others 2016); with running statistics
 * [C] their means over the samples enter these: (1 - momentum) old + momentum new (of no samples nothing new; torch: NaN).
 * Without use_input_stats it is batch norm by the running ones. SHAPE: channels of one value, by input statistics. */
TREK_API trek_var *trek_instance_norm(trek_var *x, trek_var *weight, trek_var *bias, trek_var *running_mean,
                                      trek_var *running_var,
                                      bool use_input_stats, double momentum, double eps);
/* x / (k + alpha / size sum of squares)^beta over `size` neighbouring channels of [N, C, ...], those outside counting as 0
 * (Krizhevsky and others 2012); of any strides (torch of some), of floating dtypes (DTYPE). SHAPE: fewer than 3 dimensions;
 * ARGUMENT: size < 1. */
TREK_API trek_var *trek_local_response_norm(trek_var *x, int64_t size, double alpha, double beta, double k);
/* x / max(p-norm along dim, eps); derivative as trek_norm's and trek_clamp's. */
TREK_API trek_var *trek_normalize(trek_var *x, double p, int dim, double eps);

/* In training zeroes whole channels of [N, C, ...] with probability p and divides the rest by 1 - p; else x itself. A channel is
 * [L], [H, W] or [D, H, W]; 1d and 3d take one sample without N, too, 2d takes [N, C, L]. NaN and infinity times 0 are NaN.
 * ARGUMENT: p outside [0, 1]; SHAPE: other dimensions. */
TREK_API trek_var *trek_dropout1d(trek_var *x, double p, bool training);
TREK_API trek_var *trek_dropout2d(trek_var *x, double p, bool training);
TREK_API trek_var *trek_dropout3d(trek_var *x, double p, bool training);
/* For SELU: what is dropped gets -1.758.., its lowest value, and all is moved and scaled so that mean 0 and variance 1 stay
 * (Klambauer and others 2017); zeros for p = 1. Of elements, or of whole channels of [N, C, ...]; floating dtypes (DTYPE). */
TREK_API trek_var *trek_alpha_dropout(trek_var *x, double p, bool training);
TREK_API trek_var *trek_feature_alpha_dropout(trek_var *x, double p, bool training);

TREK_END

#endif
