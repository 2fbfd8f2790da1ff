/* SPDX-License-Identifier: Apache-2.0 */
/* Differentiable ops over space: padding, convolutions and pooling of one and three dimensions, pixels to channels and back. They
 * are made of the ops of ops.h, whose rules hold. Sizes along space stand in one list: of one dimension [0] alone counts; of
 * three [0] is depth, and [1] and [2], left 0, take the value before them (TREK_ZERO for 0). */
#ifndef TREK_AUTOGRAD_SPATIAL_H
#define TREK_AUTOGRAD_SPATIAL_H

#include "autograd/var.h"
#include "tensor/op_opts.h"

TREK_BEGIN

/* Where elements outside of x come from. */
typedef enum trek_pad_mode { TREK_PAD_CONSTANT, TREK_PAD_REFLECT, TREK_PAD_REPLICATE, TREK_PAD_CIRCULAR } trek_pad_mode;

/* sizes: before and after the last dimension, before and after the one in front of it, and so on, as torch.nn.functional.pad's;
 * of at most four dimensions. Negative ones take elements off; none at all: a copy. value: of constant padding alone. Any dtype.
 * ARGUMENT: an odd number of sizes, a value that x's dtype does not hold; SHAPE: more dimensions than x has, more reflected or
 * wrapped around than there is (a reflection leaves the edge out), more taken off than there is. */
TREK_API trek_var *trek_pad(trek_var *x, trek_dims_list sizes, trek_pad_mode mode, double value);

/* [..., C r r, H, W] -> [..., C, H r, W r], and back; r is the factor. */
TREK_API trek_var *trek_pixel_shuffle(trek_var *x, int64_t factor);
TREK_API trek_var *trek_pixel_unshuffle(trek_var *x, int64_t factor);
/* [N, C, ...]: channels of `groups` groups in turns. */
TREK_API trek_var *trek_channel_shuffle(trek_var *x, int64_t groups);

/* x [N, C, L], weight [O, C / groups, k], bias [O] or NULL -> [N, O, L']; transposed: weight [C, O / groups, k]. Dtypes, sizes
 * and errors as trek_conv2d's and trek_conv_transpose2d's. opts may be NULL. */
TREK_API trek_var *trek_conv1d(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_opts *opts);
TREK_API trek_var *trek_conv_transpose1d(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_transpose_opts *opts);

/* x [N, C, D, H, W], weight [O, C / groups, kd, kh, kw], bias [O] or NULL -> [N, O, D', H', W']; transposed: weight
 * [C, O / groups, kd, kh, kw], sums in f32 for 16 bits. As in one dimension. */
TREK_API trek_var *trek_conv3d(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_opts *opts);
TREK_API trek_var *trek_conv_transpose3d(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_transpose_opts *opts);

/* x [N, C, L]. */
TREK_API trek_var *trek_max_pool1d(trek_var *x, const trek_pool_opts *opts);
TREK_API trek_var *trek_avg_pool1d(trek_var *x, const trek_pool_opts *opts);
TREK_API trek_var *trek_adaptive_avg_pool1d(trek_var *x, int64_t length);
/* x [N, C, D, H, W]. */
TREK_API trek_var *trek_max_pool3d(trek_var *x, const trek_pool_opts *opts);
TREK_API trek_var *trek_avg_pool3d(trek_var *x, const trek_pool_opts *opts);
TREK_API trek_var *trek_adaptive_avg_pool3d(trek_var *x, int64_t depth, int64_t height, int64_t width);

TREK_END

#endif
