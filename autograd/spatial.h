/* SPDX-License-Identifier: Apache-2.0 */
/* Differentiable ops over space: padding, convolutions and pools of one and three dimensions, and ops that move elements between
 * space and channels. They consist of the ops of autograd/ops.h, whose rules apply.
 *
 * Sizes along space are one list. In one dimension only [0] is read. In three dimensions [0] is depth, [1] height and [2] width;
 * where [1] or [2] is left 0 it has the value of the one before it. Paddings are given for each dimension (trek_conv_opts). */
#ifndef TREK_AUTOGRAD_SPATIAL_H
#define TREK_AUTOGRAD_SPATIAL_H

#include "autograd/var.h"
#include "tensor/op_opts.h"

TREK_BEGIN

/* Adds elements at the ends of the last dimensions of x, as torch.nn.functional.pad.
 *   - sizes: elements before and after the last dimension, before and after the one before it, and so on, for at most four
 *     dimensions. Negative numbers remove elements; an empty list gives a copy.
 *   - value: the added value, used by TREK_PAD_MODE_CONSTANT only.
 *
 * Dtypes: all.
 * Errors: ARGUMENT if the number of sizes is odd, the mode is unknown, or the dtype of x does not hold the value. SHAPE if there
 * are sizes for more dimensions than x has, if reflection or repetition needs more elements than x has, or if more elements are
 * removed than x has. */
TREK_API trek_var *trek_pad(trek_var *x, trek_dims_list sizes, trek_pad_mode mode, double value);

/* Moves elements from channels to space, where r is the factor (torch.nn.functional.pixel_shuffle).
 * Shapes: x [..., C r r, H, W] -> [..., C, H r, W r].
 * Errors: ARGUMENT if the factor is below 1. SHAPE if the channels are not a multiple of r r. */
TREK_API trek_var *trek_pixel_shuffle(trek_var *x, int64_t factor);

/* Moves elements from space to channels, where r is the factor (torch.nn.functional.pixel_unshuffle).
 * Shapes: x [..., C, H r, W r] -> [..., C r r, H, W].
 * Errors: ARGUMENT if the factor is below 1. SHAPE if height or width is not a multiple of r. */
TREK_API trek_var *trek_pixel_unshuffle(trek_var *x, int64_t factor);

/* Interleaves the channels of `groups` groups (torch.nn.ChannelShuffle).
 * Shapes: x [N, C, ...] -> the same.
 * Errors: ARGUMENT if groups is below 1. SHAPE if the channels are not a multiple of groups. */
TREK_API trek_var *trek_channel_shuffle(trek_var *x, int64_t groups);

/* Computes a one-dimensional convolution. bias and opts may be NULL.
 * Shapes: x [N, C, L], weight [O, C / groups, k], bias [O] -> [N, O, L'], where L' is computed as in trek_conv2d.
 * Dtypes: those of trek_conv2d.
 * Errors: those of trek_conv2d, and ARGUMENT if padding_kind keeps the size of x and there are strides or numbers of padding. */
TREK_API trek_var *trek_conv1d(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_opts *opts);

/* Computes a one-dimensional transposed convolution. bias and opts may be NULL.
 * Shapes: x [N, C, L], weight [C, O / groups, k], bias [O] -> [N, O, L'], where L' is computed as in trek_conv_transpose2d.
 * Dtypes: those of trek_conv_transpose2d.
 * Errors: those of trek_conv_transpose2d. */
TREK_API trek_var *trek_conv_transpose1d(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_transpose_opts *opts);

/* Computes a three-dimensional convolution. bias and opts may be NULL.
 * Shapes: x [N, C, D, H, W], weight [O, C / groups, kd, kh, kw], bias [O] -> [N, O, D', H', W'], where the sizes are computed as
 * in trek_conv2d.
 * Dtypes: those of trek_conv2d.
 * Errors: those of trek_conv1d. */
TREK_API trek_var *trek_conv3d(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_opts *opts);

/* Computes a three-dimensional transposed convolution. bias and opts may be NULL.
 * Shapes: x [N, C, D, H, W], weight [C, O / groups, kd, kh, kw], bias [O] -> [N, O, D', H', W'], where the sizes are computed as
 * in trek_conv_transpose2d.
 * Dtypes: those of trek_conv_transpose2d. 16-bit products are summed in f32.
 * Errors: those of trek_conv_transpose2d. */
TREK_API trek_var *trek_conv_transpose3d(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_transpose_opts *opts);

/* Computes the maximum of each window in one dimension. If elements are equal, the first one is taken; if a window has several
 * NaNs, the last one is.
 * Shapes: x [N, C, L] -> [N, C, L']. */
TREK_API trek_var *trek_max_pool1d(trek_var *x, const trek_pool_opts *opts);

/* Computes the mean of each window in one dimension.
 * Shapes: x [N, C, L] -> [N, C, L']. */
TREK_API trek_var *trek_avg_pool1d(trek_var *x, const trek_pool_opts *opts);

/* Computes means of windows that are chosen so that the result has a given size.
 * Shapes: x [N, C, L] -> [N, C, length]. */
TREK_API trek_var *trek_adaptive_avg_pool1d(trek_var *x, int64_t length);

/* Computes the maximum of each window in three dimensions. If elements are equal, the first one is taken; if a window has several
 * NaNs, the last one is.
 * Shapes: x [N, C, D, H, W] -> [N, C, D', H', W']. */
TREK_API trek_var *trek_max_pool3d(trek_var *x, const trek_pool_opts *opts);

/* Computes the mean of each window in three dimensions.
 * Shapes: x [N, C, D, H, W] -> [N, C, D', H', W']. */
TREK_API trek_var *trek_avg_pool3d(trek_var *x, const trek_pool_opts *opts);

/* Computes means of windows that are chosen so that the result has a given size.
 * Shapes: x [N, C, D, H, W] -> [N, C, depth, height, width]. */
TREK_API trek_var *trek_adaptive_avg_pool3d(trek_var *x, int64_t depth, int64_t height, int64_t width);

/* Computes trek_max_pool1d and writes the index of each maximum to *indices unless indices is NULL. An index is the position of
 * the element in its channel, counted row by row; it is -1 for a window that lies wholly in the padding.
 * Shapes: x [N, C, L] -> [N, C, L'], and *indices of the same shape (i64). On failure *indices is NULL. */
TREK_API trek_var *trek_max_pool1d_with_indices(trek_var *x, const trek_pool_opts *opts, trek_var **indices);

/* Computes trek_max_pool2d and writes the index of each maximum to *indices unless indices is NULL. An index is the position of
 * the element in its channel, counted row by row; it is -1 for a window that lies wholly in the padding.
 * Shapes: x [N, C, H, W] -> [N, C, H', W'], and *indices of the same shape (i64). On failure *indices is NULL. */
TREK_API trek_var *trek_max_pool2d_with_indices(trek_var *x, const trek_pool_opts *opts, trek_var **indices);

/* Computes trek_max_pool3d and writes the index of each maximum to *indices unless indices is NULL. An index is the position of
 * the element in its channel, counted row by row; it is -1 for a window that lies wholly in the padding.
 * Shapes: x [N, C, D, H, W] -> [N, C, D', H', W'], and *indices of the same shape (i64). On failure *indices is NULL. */
TREK_API trek_var *trek_max_pool3d_with_indices(trek_var *x, const trek_pool_opts *opts, trek_var **indices);

/* Computes maxima of the windows of adaptive average pooling, so that the result has a given size, and writes their indices to
 * *indices unless indices is NULL, as trek_max_pool1d_with_indices.
 * Shapes: x [N, C, L] -> [N, C, length].
 * Dtypes: all except bool. */
TREK_API trek_var *trek_adaptive_max_pool1d(trek_var *x, int64_t length, trek_var **indices);

/* Computes maxima of the windows of adaptive average pooling, so that the result has a given size, and writes their indices to
 * *indices unless indices is NULL, as trek_max_pool2d_with_indices.
 * Shapes: x [N, C, H, W] -> [N, C, height, width].
 * Dtypes: all except bool. */
TREK_API trek_var *trek_adaptive_max_pool2d(trek_var *x, int64_t height, int64_t width, trek_var **indices);

/* Computes maxima of the windows of adaptive average pooling, so that the result has a given size, and writes their indices to
 * *indices unless indices is NULL, as trek_max_pool3d_with_indices.
 * Shapes: x [N, C, D, H, W] -> [N, C, depth, height, width].
 * Dtypes: all except bool. */
TREK_API trek_var *trek_adaptive_max_pool3d(trek_var *x, int64_t depth, int64_t height, int64_t width, trek_var **indices);

/* Writes the elements of x to the positions that a max pooling took them from, with zeros between them. If several elements have
 * the same index the last one stays, and all of them get its gradient.
 * Shapes: x [N, C, L] and indices of the same shape (i64) -> [N, C, L'].
 * Errors: ARGUMENT if an index is outside of the result or -1, or if no such pooling has this output size. */
TREK_API trek_var *trek_max_unpool1d(trek_var *x, trek_var *indices, const trek_unpool_opts *opts);

/* Writes the elements of x to the positions that a max pooling took them from, with zeros between them. If several elements have
 * the same index the last one stays, and all of them get its gradient.
 * Shapes: x [N, C, H, W] and indices of the same shape (i64) -> [N, C, H', W'].
 * Errors: ARGUMENT if an index is outside of the result or -1, or if no such pooling has this output size. */
TREK_API trek_var *trek_max_unpool2d(trek_var *x, trek_var *indices, const trek_unpool_opts *opts);

/* Writes the elements of x to the positions that a max pooling took them from, with zeros between them. If several elements have
 * the same index the last one stays, and all of them get its gradient.
 * Shapes: x [N, C, D, H, W] and indices of the same shape (i64) -> [N, C, D', H', W'].
 * Errors: ARGUMENT if an index is outside of the result or -1, or if no such pooling has this output size. */
TREK_API trek_var *trek_max_unpool3d(trek_var *x, trek_var *indices, const trek_unpool_opts *opts);

/* Computes (sum of x^norm)^(1 / norm) of each window in one dimension. As in PyTorch, a window that ceil_mode cuts off counts as
 * a whole one with its mean, and the gradient is 0 where the sum is 0.
 * Shapes: x [N, C, L] -> [N, C, L'].
 * Dtypes: floating.
 * Errors: ARGUMENT if the norm is 0, or if there is padding or dilation. */
TREK_API trek_var *trek_lp_pool1d(trek_var *x, double norm, const trek_pool_opts *opts);

/* Computes (sum of x^norm)^(1 / norm) of each window in two dimensions. As in PyTorch, a window that ceil_mode cuts off counts as
 * a whole one with its mean, and the gradient is 0 where the sum is 0.
 * Shapes: x [N, C, H, W] -> [N, C, H', W'].
 * Dtypes: floating.
 * Errors: ARGUMENT if the norm is 0, or if there is padding or dilation. */
TREK_API trek_var *trek_lp_pool2d(trek_var *x, double norm, const trek_pool_opts *opts);

/* Computes (sum of x^norm)^(1 / norm) of each window in three dimensions. As in PyTorch, a window that ceil_mode cuts off counts
 * as a whole one with its mean, and the gradient is 0 where the sum is 0.
 * Shapes: x [N, C, D, H, W] -> [N, C, D', H', W'].
 * Dtypes: floating.
 * Errors: ARGUMENT if the norm is 0, or if there is padding or dilation. */
TREK_API trek_var *trek_lp_pool3d(trek_var *x, double norm, const trek_pool_opts *opts);

/* Options of trek_fractional_max_pool2d and trek_fractional_max_pool3d. */
typedef struct trek_fractional_pool_opts {
    int64_t kernel[3];        /* size of a window, required; a later one that is left 0 has the value of the one before it */
    int64_t output_size[3];   /* sizes of the result; set either these or output_ratio */
    /* Sizes of the result as parts of the input's, in (0, 1), rounded down; a later one that is left 0 has the value of the one
     * before it. */
    double output_ratio[3];
    /* [N, C, 2 or 3] in [0, 1), of x's dtype: where windows begin, width first for images and depth first for volumes.
     * Default: drawn from the thread's generator. */
    trek_var *random_samples;
} trek_fractional_pool_opts;

/* Computes the maximum of each window of x [N, C, H, W], with windows at random positions (Graham, "Fractional Max-Pooling",
 * 2014), as torch's fractional_max_pool2d, and writes to *indices, which may be NULL, its index in the plane, i64 (NULL on
 * failure). If elements are equal, the first one counts. If a window has NaNs, the first one is the result (PyTorch: the last
 * one). The call makes a table of all windows. Errors: ARGUMENT if both or neither of output_size and output_ratio are set, or if
 * the windows do not fit into x (PyTorch also refuses those of three dimensions that just fit). */
TREK_API trek_var *trek_fractional_max_pool2d(trek_var *x, const trek_fractional_pool_opts *opts, trek_var **indices);
/* Computes the maximum of each window of x [N, C, D, H, W]. Details and errors are those of trek_fractional_max_pool2d. */
TREK_API trek_var *trek_fractional_max_pool3d(trek_var *x, const trek_fractional_pool_opts *opts, trek_var **indices);

TREK_END

#endif
