/* SPDX-License-Identifier: Apache-2.0 */
/* Options of ops with many of them. */
#ifndef TREK_TENSOR_OP_OPTS_H
#define TREK_TENSOR_OP_OPTS_H

#include "tensor/types.h"

TREK_BEGIN

/* What a fused linear applies to its result. */
typedef enum trek_activation { TREK_ACTIVATION_NONE, TREK_ACTIVATION_RELU, TREK_ACTIVATION_GELU } trek_activation;

/* What a loss makes of its elements' losses. */
typedef enum trek_reduction { TREK_REDUCTION_MEAN, TREK_REDUCTION_SUM, TREK_REDUCTION_NONE } trek_reduction;

/* What becomes of several elements that go to one place. */
typedef enum trek_scatter_reduction {
    TREK_SCATTER_SUM, TREK_SCATTER_PRODUCT, TREK_SCATTER_MEAN, TREK_SCATTER_MAX, TREK_SCATTER_MIN
} trek_scatter_reduction;

/* What becomes of the rows of a bag. */
typedef enum trek_bag_mode { TREK_BAG_MEAN, TREK_BAG_SUM, TREK_BAG_MAX } trek_bag_mode;

/* A quantile between two elements. */
typedef enum trek_interpolation {
    TREK_INTERPOLATION_LINEAR, TREK_INTERPOLATION_LOWER, TREK_INTERPOLATION_HIGHER, TREK_INTERPOLATION_MIDPOINT,
    TREK_INTERPOLATION_NEAREST
} trek_interpolation;

/* How much padding a convolution has: the numbers given; none; as much as gives a result of x's size (stride 1): dilation
 * (kernel - 1) elements, of an odd number one more at the end. Of the latter two the numbers must be 0. */
typedef enum trek_padding { TREK_PADDING_NUMBERS, TREK_PADDING_VALID, TREK_PADDING_SAME } trek_padding;

/* Of two dimensions [0] is height, [1] width; of three (autograd/spatial.h) [0] is depth; of one [0] alone counts. Where a later
 * one is 0 it takes the value before it. */
typedef struct trek_conv_opts {
    int64_t stride[3];    /* default 1 */
    int64_t padding[3];   /* default 0; a width left 0 is the height's: TREK_ZERO for 0 */
    int64_t dilation[3];  /* default 1 */
    int64_t groups;       /* default 1; divides the channels in and out */
    trek_padding padding_kind; /* default: the numbers above */
} trek_conv_opts;

/* A transposed convolution: conv2d's gradient with respect to its input. */
typedef struct trek_conv_transpose_opts {
    int64_t stride[3];         /* default 1 */
    int64_t padding[3];        /* default 0; taken off the result's edges; a width left 0 is the height's: TREK_ZERO for 0 */
    int64_t output_padding[3]; /* default 0; rows and columns more at the end, fewer than stride or dilation; a width as above */
    int64_t dilation[3];       /* default 1 */
    int64_t groups;            /* default 1; divides the channels in and out */
    int64_t output_size[3];    /* if given, height and width of the result, from which the output padding follows; the width is
                                * the height's unless given, and output_padding not looked at */
} trek_conv_transpose_opts;

typedef struct trek_pool_opts {
    int64_t kernel[3];       /* required */
    int64_t stride[3];       /* default: kernel */
    int64_t padding[3];      /* default 0; at most half the kernel; a width left 0 is the height's: TREK_ZERO for 0 */
    int64_t dilation[3];     /* default 1; max pooling only: a window wholly in the padding gives the lowest number, its
                                gradient goes nowhere (PyTorch writes it elsewhere, out of bounds, too) */
    bool ceil_mode;          /* default false */
    bool exclude_padding;    /* average pooling: divide by the elements inside the input; default false */
    int64_t divisor_override; /* average pooling: divide by this number, whatever lies in the window; 0: none */
} trek_pool_opts;

/* The pool that is undone; lists as above. */
typedef struct trek_unpool_opts {
    int64_t kernel[3];       /* required */
    int64_t stride[3];       /* default: kernel */
    int64_t padding[3];      /* default 0; a later one left 0 is that before it: TREK_ZERO for 0 */
    int64_t output_size[3];  /* of the result; default (size - 1) stride - 2 padding + kernel, from which it may differ by less
                              * than  the stride */
} trek_unpool_opts;

/* Sampling at places of a grid (autograd/resample.h). */
typedef enum trek_grid_mode { TREK_GRID_BILINEAR, TREK_GRID_NEAREST, TREK_GRID_BICUBIC } trek_grid_mode;
/* What lies outside: zeros; the nearest element; what a mirror at the edge shows. */
typedef enum trek_grid_padding { TREK_GRID_ZEROS, TREK_GRID_BORDER, TREK_GRID_REFLECTION } trek_grid_padding;

typedef struct trek_grid_sample_opts {
    trek_grid_mode mode;         /* default bilinear, of three dimensions trilinear; bicubic is for two */
    trek_grid_padding padding;   /* default zeros */
    bool align_corners;          /* -1 and 1 are the centres of the first and the last element, not their outer edges */
} trek_grid_sample_opts;

TREK_END

#endif
