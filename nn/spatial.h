/* SPDX-License-Identifier: Apache-2.0 */
/* Layers over space: padding, convolutions and pools of one and three dimensions, and layers that move elements between space and
 * channels. The rules of nn/layers.h apply. */
#ifndef TREK_NN_SPATIAL_H
#define TREK_NN_SPATIAL_H

#include "autograd/spatial.h"
#include "nn/module.h"

TREK_BEGIN

/* Returns a layer that pads its input, as trek_pad (autograd/spatial.h). It stands for torch.nn's ConstantPad, ZeroPad,
 * ReflectionPad, ReplicationPad and CircularPad of one to four dimensions. The sizes are those of trek_pad, the last dimension
 * first; value is the one of constant padding.
 * Errors: ARGUMENT if the number of sizes is odd. */
TREK_API trek_module *trek_nn_pad(trek_dims_list sizes, trek_pad_mode mode, double value);

/* Options of trek_nn_conv1d_with. */
typedef struct trek_conv1d_opts {
    int64_t in;                 /* channels of the input; required */
    int64_t out;                /* channels of the result; required */
    int64_t kernel;             /* size of the window; required */
    int64_t stride;             /* elements from window to window; default 1 */
    int64_t padding;            /* elements added on each side; default 0 */
    int64_t dilation;           /* elements from one element of the window to the next; default 1 */
    int64_t groups;             /* must divide in and out; default 1 */
    bool no_bias;               /* leaves out the bias */
    trek_dtype dtype;           /* of the parameters; default f32 */
    trek_device device;         /* of the parameters; default trek_device_default() */
    trek_pad_mode padding_mode; /* the values of the padding; default zeros */
    /* Default: the numbers in padding. Otherwise no padding, or as much as keeps the size (trek_padding). */
    trek_padding padding_kind;
} trek_conv1d_opts;

/* Returns a one-dimensional convolution.
 * Shapes: x [N, in, L] -> [N, out, L'], where L' is that of trek_conv1d.
 * Parameters: weight [out, in / groups, kernel] and bias [out], both U(-b, b) with b = 1 / sqrt(in / groups kernel). */
TREK_API trek_module *trek_nn_conv1d(int64_t in, int64_t out, int64_t kernel, trek_device device);

/* Returns the layer of trek_nn_conv1d with all options. */
TREK_API trek_module *trek_nn_conv1d_with(const trek_conv1d_opts *opts);

/* Options of trek_nn_conv_transpose1d_with. */
typedef struct trek_conv_transpose1d_opts {
    int64_t in;             /* channels of the input; required */
    int64_t out;            /* channels of the result; required */
    int64_t kernel;         /* size of the window; required */
    int64_t stride;         /* elements from window to window in the result; default 1 */
    int64_t padding;        /* elements removed on each side; default 0 */
    int64_t output_padding; /* elements added at the end, fewer than stride or dilation; default 0 */
    int64_t dilation;       /* elements from one element of the window to the next; default 1 */
    int64_t groups;         /* must divide in and out; default 1 */
    bool no_bias;           /* leaves out the bias */
    trek_dtype dtype;       /* of the parameters; default f32 */
    trek_device device;     /* of the parameters; default trek_device_default() */
} trek_conv_transpose1d_opts;

/* Returns a one-dimensional transposed convolution. A second input sets the result's length (trek_nn_conv_transpose2d).
 * Shapes: x [N, in, L] -> [N, out, L'], where L' is that of trek_conv_transpose1d.
 * Parameters: weight [in, out / groups, kernel] and bias [out], both U(-b, b) with b = 1 / sqrt(out / groups kernel). */
TREK_API trek_module *trek_nn_conv_transpose1d(int64_t in, int64_t out, int64_t kernel, trek_device device);

/* Returns the layer of trek_nn_conv_transpose1d with all options. */
TREK_API trek_module *trek_nn_conv_transpose1d_with(const trek_conv_transpose1d_opts *opts);

/* Options of trek_nn_conv3d_with. Lists are [depth, height, width]; a number that is left 0 has the value of the one before
 * it. */
typedef struct trek_conv3d_opts {
    int64_t in;                 /* channels of the input; required */
    int64_t out;                /* channels of the result; required */
    int64_t kernel[3];          /* size of the window; required */
    int64_t stride[3];          /* elements from window to window; default 1 */
    int64_t padding[3];         /* elements added on each side; default 0. All or none, TREK_ZERO for 0 */
    int64_t dilation[3];        /* elements from one element of the window to the next; default 1 */
    int64_t groups;             /* must divide in and out; default 1 */
    bool no_bias;               /* leaves out the bias */
    trek_dtype dtype;           /* of the parameters; default f32 */
    trek_device device;         /* of the parameters; default trek_device_default() */
    trek_pad_mode padding_mode; /* the values of the padding; default zeros */
    /* Default: the numbers in padding. Otherwise no padding, or as much as keeps the size (trek_padding). */
    trek_padding padding_kind;
} trek_conv3d_opts;

/* Returns a three-dimensional convolution.
 * Shapes: x [N, in, D, H, W] -> [N, out, D', H', W'], where the sizes are those of trek_conv3d.
 * Parameters: weight [out, in / groups, kd, kh, kw] and bias [out], both U(-b, b) with b = 1 / sqrt(in / groups kd kh kw). */
TREK_API trek_module *trek_nn_conv3d(int64_t in, int64_t out, int64_t kernel, trek_device device);

/* Returns the layer of trek_nn_conv3d with all options. */
TREK_API trek_module *trek_nn_conv3d_with(const trek_conv3d_opts *opts);

/* Options of trek_nn_conv_transpose3d_with. Lists are [depth, height, width]; a number that is left 0 has the value of the one
 * before it. */
typedef struct trek_conv_transpose3d_opts {
    int64_t in;                /* channels of the input; required */
    int64_t out;               /* channels of the result; required */
    int64_t kernel[3];         /* size of the window; required */
    int64_t stride[3];         /* elements from window to window in the result; default 1 */
    int64_t padding[3];        /* elements removed on each side; default 0. All or none, TREK_ZERO for 0 */
    int64_t output_padding[3]; /* elements added at the end, fewer than stride or dilation; default 0, as in padding */
    int64_t dilation[3];       /* elements from one element of the window to the next; default 1 */
    int64_t groups;            /* must divide in and out; default 1 */
    bool no_bias;              /* leaves out the bias */
    trek_dtype dtype;          /* of the parameters; default f32 */
    trek_device device;        /* of the parameters; default trek_device_default() */
} trek_conv_transpose3d_opts;

/* Returns a three-dimensional transposed convolution. A second input sets the result's last three sizes
 * (trek_nn_conv_transpose2d). Shapes: x [N, in, D, H, W] -> [N, out, D', H', W'], where the sizes are those of
 * trek_conv_transpose3d. Parameters: weight [in, out / groups, kd, kh, kw] and bias [out], both U(-b, b) with b = 1 / sqrt(out /
 * groups kd kh kw). */
TREK_API trek_module *trek_nn_conv_transpose3d(int64_t in, int64_t out, int64_t kernel, trek_device device);

/* Returns the layer of trek_nn_conv_transpose3d with all options. */
TREK_API trek_module *trek_nn_conv_transpose3d_with(const trek_conv_transpose3d_opts *opts);

/* Returns a three-dimensional max pooling, whose stride is the kernel. The second result of trek_forward_results is the indices
 * of trek_max_pool3d_with_indices.
 * Shapes: x [N, C, D, H, W] -> [N, C, D', H', W']. */
TREK_API trek_module *trek_nn_max_pool3d(int64_t kernel);

/* Returns the layer of trek_nn_max_pool3d with all options. */
TREK_API trek_module *trek_nn_max_pool3d_with(const trek_pool_opts *opts);

/* Returns a three-dimensional average pooling, whose stride is the kernel.
 * Shapes: x [N, C, D, H, W] -> [N, C, D', H', W']. */
TREK_API trek_module *trek_nn_avg_pool3d(int64_t kernel);

/* Returns the layer of trek_nn_avg_pool3d with all options. */
TREK_API trek_module *trek_nn_avg_pool3d_with(const trek_pool_opts *opts);

/* Returns an average pooling to a given size.
 * Shapes: x [N, C, D, H, W] -> [N, C, depth, height, width]. */
TREK_API trek_module *trek_nn_adaptive_avg_pool3d(int64_t depth, int64_t height, int64_t width);

/* Returns a one-dimensional max pooling, whose stride is the kernel. The second result of trek_forward_results is the indices of
 * trek_max_pool1d_with_indices.
 * Shapes: x [N, C, L] -> [N, C, L']. */
TREK_API trek_module *trek_nn_max_pool1d(int64_t kernel);

/* Returns the layer of trek_nn_max_pool1d with all options. Only the first number of each list is read. */
TREK_API trek_module *trek_nn_max_pool1d_with(const trek_pool_opts *opts);

/* Returns a one-dimensional average pooling, whose stride is the kernel.
 * Shapes: x [N, C, L] -> [N, C, L']. */
TREK_API trek_module *trek_nn_avg_pool1d(int64_t kernel);

/* Returns the layer of trek_nn_avg_pool1d with all options. Only the first number of each list is read. */
TREK_API trek_module *trek_nn_avg_pool1d_with(const trek_pool_opts *opts);

/* Returns an average pooling to a given size.
 * Shapes: x [N, C, L] -> [N, C, length]. */
TREK_API trek_module *trek_nn_adaptive_avg_pool1d(int64_t length);

/* Returns a max pooling to a given size, as trek_adaptive_max_pool1d. The second result of trek_forward_results is the indices.
 * Shapes: x [N, C, L] -> [N, C, length]. */
TREK_API trek_module *trek_nn_adaptive_max_pool1d(int64_t length);

/* Returns a max pooling to a given size, as trek_adaptive_max_pool2d. The second result of trek_forward_results is the indices.
 * Shapes: x [N, C, H, W] -> [N, C, height, width]. */
TREK_API trek_module *trek_nn_adaptive_max_pool2d(int64_t height, int64_t width);

/* Returns a max pooling to a given size, as trek_adaptive_max_pool3d. The second result of trek_forward_results is the indices.
 * Shapes: x [N, C, D, H, W] -> [N, C, depth, height, width]. */
TREK_API trek_module *trek_nn_adaptive_max_pool3d(int64_t depth, int64_t height, int64_t width);

/* Returns a layer that undoes a one-dimensional max pooling, as trek_max_unpool1d. trek_forward_many takes x and the indices of
 * the pooling ("indices" in graphs). */
TREK_API trek_module *trek_nn_max_unpool1d(int64_t kernel);

/* Returns the layer of trek_nn_max_unpool1d with all options. */
TREK_API trek_module *trek_nn_max_unpool1d_with(const trek_unpool_opts *opts);

/* Returns a layer that undoes a two-dimensional max pooling, as trek_max_unpool2d. trek_forward_many takes x and the indices of
 * the pooling ("indices" in graphs). */
TREK_API trek_module *trek_nn_max_unpool2d(int64_t kernel);

/* Returns the layer of trek_nn_max_unpool2d with all options. */
TREK_API trek_module *trek_nn_max_unpool2d_with(const trek_unpool_opts *opts);

/* Returns a layer that undoes a three-dimensional max pooling, as trek_max_unpool3d. trek_forward_many takes x and the indices of
 * the pooling ("indices" in graphs). */
TREK_API trek_module *trek_nn_max_unpool3d(int64_t kernel);

/* Returns the layer of trek_nn_max_unpool3d with all options. */
TREK_API trek_module *trek_nn_max_unpool3d_with(const trek_unpool_opts *opts);

/* Returns a one-dimensional power-average pooling, as trek_lp_pool1d, whose stride is the kernel.
 * Shapes: x [N, C, L] -> [N, C, L'].
 * Errors: ARGUMENT if the norm is 0 or NaN. */
TREK_API trek_module *trek_nn_lp_pool1d(double norm, int64_t kernel);

/* Returns the layer of trek_nn_lp_pool1d with all options.
 * Errors: ARGUMENT also if the options have padding or dilation. */
TREK_API trek_module *trek_nn_lp_pool1d_with(double norm, const trek_pool_opts *opts);

/* Returns a two-dimensional power-average pooling, as trek_lp_pool2d, whose stride is the kernel.
 * Shapes: x [N, C, H, W] -> [N, C, H', W'].
 * Errors: ARGUMENT if the norm is 0 or NaN. */
TREK_API trek_module *trek_nn_lp_pool2d(double norm, int64_t kernel);

/* Returns the layer of trek_nn_lp_pool2d with all options.
 * Errors: ARGUMENT also if the options have padding or dilation. */
TREK_API trek_module *trek_nn_lp_pool2d_with(double norm, const trek_pool_opts *opts);

/* Returns a three-dimensional power-average pooling, as trek_lp_pool3d, whose stride is the kernel.
 * Shapes: x [N, C, D, H, W] -> [N, C, D', H', W'].
 * Errors: ARGUMENT if the norm is 0 or NaN. */
TREK_API trek_module *trek_nn_lp_pool3d(double norm, int64_t kernel);

/* Returns the layer of trek_nn_lp_pool3d with all options.
 * Errors: ARGUMENT also if the options have padding or dilation. */
TREK_API trek_module *trek_nn_lp_pool3d_with(double norm, const trek_pool_opts *opts);

/* Returns a layer that moves elements from channels to space, as trek_pixel_shuffle: [..., C r r, H, W] -> [..., C, H r, W r],
 * where r is the factor. */
TREK_API trek_module *trek_nn_pixel_shuffle(int64_t factor);

/* Returns a layer that moves elements from space to channels, as trek_pixel_unshuffle: [..., C, H r, W r] -> [..., C r r, H, W],
 * where r is the factor. */
TREK_API trek_module *trek_nn_pixel_unshuffle(int64_t factor);

/* Returns a layer that interleaves the channels of `groups` groups, as trek_channel_shuffle. */
TREK_API trek_module *trek_nn_channel_shuffle(int64_t groups);

TREK_END

#endif
