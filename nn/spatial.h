/* SPDX-License-Identifier: Apache-2.0 */
/* Layers over space: padding, one dimension, pixels to channels and back. As in layers.h, whose rules hold. */
#ifndef TREK_NN_SPATIAL_H
#define TREK_NN_SPATIAL_H

#include "autograd/spatial.h"
#include "nn/module.h"

TREK_BEGIN

/* trek_pad (autograd/spatial.h): torch.nn's ConstantPad, ZeroPad, ReflectionPad, ReplicationPad and CircularPad of one, two and
 * three dimensions, and of four; sizes as there, the last dimension first. value: of constant padding. ARGUMENT: sizes not in
 * pairs. */
TREK_API trek_module *trek_nn_pad(trek_dims_list sizes, trek_pad_mode mode, double value);

typedef struct trek_conv1d_opts {
    int64_t in, out;          /* channels; required */
    int64_t kernel;           /* required */
    int64_t stride;           /* default 1 */
    int64_t padding;          /* default 0 */
    int64_t dilation;         /* default 1 */
    int64_t groups;           /* default 1; divides in and out */
    bool no_bias;
    trek_dtype dtype;         /* default f32 */
    trek_device device;
    trek_pad_mode padding_mode; /* what the padding holds; default zeros */
    trek_padding padding_kind;  /* as in trek_conv_opts: none, or as gives x's size; default the numbers above */
} trek_conv1d_opts;

/* [N, in, L] -> [N, out, L']; weight [out, in / groups, kernel], bias [out], both U(-b, b) with b = 1 / sqrt(in / groups kernel).
 */
TREK_API trek_module *trek_nn_conv1d(int64_t in, int64_t out, int64_t kernel, trek_device device);
TREK_API trek_module *trek_nn_conv1d_with(const trek_conv1d_opts *opts);

typedef struct trek_conv_transpose1d_opts {
    int64_t in, out;          /* channels; required */
    int64_t kernel;           /* required */
    int64_t stride;           /* default 1 */
    int64_t padding;          /* default 0 */
    int64_t output_padding;   /* default 0; below stride or dilation */
    int64_t dilation;         /* default 1 */
    int64_t groups;           /* default 1; divides in and out */
    bool no_bias;
    trek_dtype dtype;         /* default f32 */
    trek_device device;
} trek_conv_transpose1d_opts;

/* [N, in, L] -> [N, out, L'], sizes as trek_conv_transpose1d's; weight [in, out / groups, kernel], bias [out], both U(-b, b) with
 * b = 1 / sqrt(out / groups kernel). */
TREK_API trek_module *trek_nn_conv_transpose1d(int64_t in, int64_t out, int64_t kernel, trek_device device);
TREK_API trek_module *trek_nn_conv_transpose1d_with(const trek_conv_transpose1d_opts *opts);

typedef struct trek_conv3d_opts {
    int64_t in, out;          /* channels; required */
    int64_t kernel[3];        /* required; depth, height, width: in all lists a later one left 0 is that before it */
    int64_t stride[3];        /* default 1 */
    int64_t padding[3];       /* default 0; TREK_ZERO for 0 behind another */
    int64_t dilation[3];      /* default 1 */
    int64_t groups;           /* default 1; divides in and out */
    bool no_bias;
    trek_dtype dtype;         /* default f32 */
    trek_device device;
    trek_pad_mode padding_mode; /* what the padding holds; default zeros */
    trek_padding padding_kind;  /* as in trek_conv_opts: none, or as gives x's size; default the numbers above */
} trek_conv3d_opts;

/* [N, in, D, H, W] -> [N, out, D', H', W']; weight [out, in / groups, kd, kh, kw], bias [out], both U(-b, b) with
 * b = 1 / sqrt(in / groups kd kh kw). */
TREK_API trek_module *trek_nn_conv3d(int64_t in, int64_t out, int64_t kernel, trek_device device);
TREK_API trek_module *trek_nn_conv3d_with(const trek_conv3d_opts *opts);

typedef struct trek_conv_transpose3d_opts {
    int64_t in, out;           /* channels; required */
    int64_t kernel[3];         /* required; as above */
    int64_t stride[3];         /* default 1 */
    int64_t padding[3];        /* default 0 */
    int64_t output_padding[3]; /* default 0; below stride or dilation */
    int64_t dilation[3];       /* default 1 */
    int64_t groups;            /* default 1; divides in and out */
    bool no_bias;
    trek_dtype dtype;          /* default f32 */
    trek_device device;
} trek_conv_transpose3d_opts;

/* [N, in, D, H, W] -> [N, out, D', H', W'], sizes as trek_conv_transpose3d's; weight [in, out / groups, kd, kh, kw], bias [out],
 * both U(-b, b) with b = 1 / sqrt(out / groups kd kh kw). */
TREK_API trek_module *trek_nn_conv_transpose3d(int64_t in, int64_t out, int64_t kernel, trek_device device);
TREK_API trek_module *trek_nn_conv_transpose3d_with(const trek_conv_transpose3d_opts *opts);

/* [N, C, D, H, W]. */
TREK_API trek_module *trek_nn_max_pool3d(int64_t kernel);
TREK_API trek_module *trek_nn_max_pool3d_with(const trek_pool_opts *opts);
TREK_API trek_module *trek_nn_avg_pool3d(int64_t kernel);
TREK_API trek_module *trek_nn_avg_pool3d_with(const trek_pool_opts *opts);
/* -> [N, C, depth, height, width]. */
TREK_API trek_module *trek_nn_adaptive_avg_pool3d(int64_t depth, int64_t height, int64_t width);

/* [N, C, L]; of the options' pairs [0] counts; the stride is the kernel unless given. */
TREK_API trek_module *trek_nn_max_pool1d(int64_t kernel);
TREK_API trek_module *trek_nn_max_pool1d_with(const trek_pool_opts *opts);
TREK_API trek_module *trek_nn_avg_pool1d(int64_t kernel);
TREK_API trek_module *trek_nn_avg_pool1d_with(const trek_pool_opts *opts);
/* [N, C, L] -> [N, C, length]. */
TREK_API trek_module *trek_nn_adaptive_avg_pool1d(int64_t length);

/* trek_adaptive_max_pool1d and its kin; the second result (trek_forward_results) are the indices. */
TREK_API trek_module *trek_nn_adaptive_max_pool1d(int64_t length);
TREK_API trek_module *trek_nn_adaptive_max_pool2d(int64_t height, int64_t width);
TREK_API trek_module *trek_nn_adaptive_max_pool3d(int64_t depth, int64_t height, int64_t width);

/* trek_max_unpool1d and its kin, of x and the indices of a max pool (trek_forward_many; "indices" in graphs). */
TREK_API trek_module *trek_nn_max_unpool1d(int64_t kernel);
TREK_API trek_module *trek_nn_max_unpool1d_with(const trek_unpool_opts *opts);
TREK_API trek_module *trek_nn_max_unpool2d(int64_t kernel);
TREK_API trek_module *trek_nn_max_unpool2d_with(const trek_unpool_opts *opts);
TREK_API trek_module *trek_nn_max_unpool3d(int64_t kernel);
TREK_API trek_module *trek_nn_max_unpool3d_with(const trek_unpool_opts *opts);

/* trek_lp_pool1d and its kin. */
TREK_API trek_module *trek_nn_lp_pool1d(double norm, int64_t kernel);
TREK_API trek_module *trek_nn_lp_pool1d_with(double norm, const trek_pool_opts *opts);
TREK_API trek_module *trek_nn_lp_pool2d(double norm, int64_t kernel);
TREK_API trek_module *trek_nn_lp_pool2d_with(double norm, const trek_pool_opts *opts);
TREK_API trek_module *trek_nn_lp_pool3d(double norm, int64_t kernel);
TREK_API trek_module *trek_nn_lp_pool3d_with(double norm, const trek_pool_opts *opts);

/* As the ops of these names. */
TREK_API trek_module *trek_nn_pixel_shuffle(int64_t factor);
TREK_API trek_module *trek_nn_pixel_unshuffle(int64_t factor);
TREK_API trek_module *trek_nn_channel_shuffle(int64_t groups);

TREK_END

#endif
