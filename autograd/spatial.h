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
 * wrapped around than there is (a reflection leaves the edge out), more taken off than there is, where nothing is repeated. */
TREK_API trek_var *trek_pad(trek_var *x, trek_dims_list sizes, trek_pad_mode mode, double value);

/* [..., C r r, H, W] -> [..., C, H r, W r], and back; r is the factor. */
TREK_API trek_var *trek_pixel_shuffle(trek_var *x, int64_t factor);
TREK_API trek_var *trek_pixel_unshuffle(trek_var *x, int64_t factor);
/* [N, C, ...]: channels of `groups` groups in turns. */
TREK_API trek_var *trek_channel_shuffle(trek_var *x, int64_t groups);

/* x [N, C, L], weight [O, C / groups, k], bias [O] or NULL -> [N, O, L']; transposed: weight [C, O / groups, k]. Dtypes, sizes
 * and errors as trek_conv2d's and trek_conv_transpose2d's. opts may be NULL. Of padding that is to give x's size (padding_kind)
 * ARGUMENT: strides, numbers of padding. */
TREK_API trek_var *trek_conv1d(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_opts *opts);
TREK_API trek_var *trek_conv_transpose1d(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_transpose_opts *opts);

/* x [N, C, D, H, W], weight [O, C / groups, kd, kh, kw], bias [O] or NULL -> [N, O, D', H', W']; transposed: weight
 * [C, O / groups, kd, kh, kw], sums in f32 for 16 bits. As in one dimension. */
TREK_API trek_var *trek_conv3d(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_opts *opts);
TREK_API trek_var *trek_conv_transpose3d(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_transpose_opts *opts);

/* Pools (the 2d ones without indices: ops.h). Of equal elements the first is taken, of NaNs the last; fractional max pooling is
 * left out.
 * x [N, C, L]. */
TREK_API trek_var *trek_max_pool1d(trek_var *x, const trek_pool_opts *opts);
TREK_API trek_var *trek_avg_pool1d(trek_var *x, const trek_pool_opts *opts);
TREK_API trek_var *trek_adaptive_avg_pool1d(trek_var *x, int64_t length);
/* x [N, C, D, H, W]. */
TREK_API trek_var *trek_max_pool3d(trek_var *x, const trek_pool_opts *opts);
TREK_API trek_var *trek_avg_pool3d(trek_var *x, const trek_pool_opts *opts);
TREK_API trek_var *trek_adaptive_avg_pool3d(trek_var *x, int64_t depth, int64_t height, int64_t width);

/* Through *indices (may be NULL; NULL on failure), i64 of the result's shape: where in its channel, row by row, each element
 * comes from; -1 of a window wholly in the padding. */
TREK_API trek_var *trek_max_pool1d_with_indices(trek_var *x, const trek_pool_opts *opts, trek_var **indices);
TREK_API trek_var *trek_max_pool2d_with_indices(trek_var *x, const trek_pool_opts *opts, trek_var **indices);
TREK_API trek_var *trek_max_pool3d_with_indices(trek_var *x, const trek_pool_opts *opts, trek_var **indices);
/* To a given size, windows as the averages have them; indices as above. All dtypes but bool. */
TREK_API trek_var *trek_adaptive_max_pool1d(trek_var *x, int64_t length, trek_var **indices);
TREK_API trek_var *trek_adaptive_max_pool2d(trek_var *x, int64_t height, int64_t width, trek_var **indices);
TREK_API trek_var *trek_adaptive_max_pool3d(trek_var *x, int64_t depth, int64_t height, int64_t width, trek_var **indices);
/* The elements of x at the places of a pool's indices (i64, of x's shape), zeros between them; of several for one place the last
 * stays, and all get its gradient. ARGUMENT: an index outside the result, also -1; an output size that no such pool has. */
TREK_API trek_var *trek_max_unpool1d(trek_var *x, trek_var *indices, const trek_unpool_opts *opts);
TREK_API trek_var *trek_max_unpool2d(trek_var *x, trek_var *indices, const trek_unpool_opts *opts);
TREK_API trek_var *trek_max_unpool3d(trek_var *x, trek_var *indices, const trek_unpool_opts *opts);
/* (sum of x^norm)^(1 / norm) of each window, floating; as PyTorch's a window that ceil_mode cuts off counts as a whole one by its
 * mean, and where the sum is 0 the gradient is. ARGUMENT: a norm of 0; padding, dilation. */
TREK_API trek_var *trek_lp_pool1d(trek_var *x, double norm, const trek_pool_opts *opts);
TREK_API trek_var *trek_lp_pool2d(trek_var *x, double norm, const trek_pool_opts *opts);
TREK_API trek_var *trek_lp_pool3d(trek_var *x, double norm, const trek_pool_opts *opts);

/* Windows of a kernel at places drawn by chance (Graham, "Fractional Max-Pooling", 2014), as torch.nn.functional's
 * fractional_max_pool2d and 3d. */
typedef struct trek_fractional_pool_opts {
    int64_t kernel[3];        /* required; a later one left 0 is that before it */
    int64_t output_size[3];   /* of the result along space, or */
    double output_ratio[3];   /* its part of the input's size, in (0, 1), rounded down; later ones left 0 are those before them */
    trek_var *random_samples; /* [N, C, 2 or 3] in [0, 1), of x's dtype: where the windows of a plane begin, of two dimensions of
                               * the width first, of three of the depth first. NULL: drawn from the thread's generator */
} trek_fractional_pool_opts;

/* The largest element of each window of x [N, C, H, W] or [N, C, D, H, W]; through *indices (may be NULL; NULL on failure) its
 * place in the plane or volume, i64. The first of equals, and the first NaN (PyTorch: the last one). The call makes a table of
 * all windows. ARGUMENT: both of size and ratio are given, or neither, or the windows do not fit into x
 * (PyTorch also refuses those of three dimensions that just fit). */
TREK_API trek_var *trek_fractional_max_pool2d(trek_var *x, const trek_fractional_pool_opts *opts, trek_var **indices);
TREK_API trek_var *trek_fractional_max_pool3d(trek_var *x, const trek_fractional_pool_opts *opts, trek_var **indices);

TREK_END

#endif
