/* SPDX-License-Identifier: Apache-2.0 */
/* Option structs and enumerations of ops. */
#ifndef TREK_TENSOR_OP_OPTS_H
#define TREK_TENSOR_OP_OPTS_H

#include "tensor/types.h"

TREK_BEGIN

/* The source of elements outside of x. */
typedef enum trek_pad_mode {
    TREK_PAD_MODE_CONSTANT,  /* a given value */
    TREK_PAD_MODE_REFLECT,   /* x mirrored at its edge elements, without the edge elements themselves */
    TREK_PAD_MODE_REPLICATE, /* the nearest edge element */
    TREK_PAD_MODE_CIRCULAR,  /* x repeated */
} trek_pad_mode;

/* The activation that a fused linear op applies to its result. */
typedef enum trek_activation { TREK_ACTIVATION_NONE, TREK_ACTIVATION_RELU, TREK_ACTIVATION_GELU } trek_activation;

/* How several values become one. Each function says which of them it takes, and fails with ARGUMENT for the others:
 *   - losses: MEAN, SUM, NONE
 *   - embedding bags: MEAN, SUM, MAX
 *   - scatters, indexed reductions and communicators: MEAN, SUM, MAX, MIN, PROD
 *   - the streams of a flow: MEAN, SUM
 *   - collected scalars of a graph: MEAN, SUM, MAX, MIN, NORM. */
typedef enum trek_reduction {
    TREK_REDUCTION_MEAN, /* the mean; the default of every option */
    TREK_REDUCTION_SUM,  /* the sum */
    TREK_REDUCTION_MAX,  /* the largest */
    TREK_REDUCTION_MIN,  /* the smallest */
    TREK_REDUCTION_PROD, /* the product */
    TREK_REDUCTION_NORM, /* the 2-norm */
    TREK_REDUCTION_NONE  /* no reduction: all values are returned */
} trek_reduction;

/* How a quantile that lies between two elements is computed from them. */
typedef enum trek_interpolation {
    TREK_INTERPOLATION_LINEAR, TREK_INTERPOLATION_LOWER, TREK_INTERPOLATION_HIGHER, TREK_INTERPOLATION_MIDPOINT,
    TREK_INTERPOLATION_NEAREST
} trek_interpolation;

/* The padding of a convolution. TREK_PADDING_NUMBERS uses the field `padding`; with the other two kinds that field must be 0.
 * TREK_PADDING_VALID does not pad. TREK_PADDING_SAME gives a result of the size of x and needs stride 1: it pads
 * dilation * (kernel - 1) elements in all, and an odd number has its extra element at the end. */
typedef enum trek_padding { TREK_PADDING_NUMBERS, TREK_PADDING_VALID, TREK_PADDING_SAME } trek_padding;

/* Options of a convolution. With two dimensions [0] is for the height and [1] for the width. With three dimensions
 * (autograd/spatial.h) [0] is for the depth. With one dimension only [0] is used. Elements of stride, dilation, kernel and
 * output_size cannot be 0: a later one that is left out takes the value of the one before it, so that { 2 } means { 2, 2 }.
 * Paddings can be 0, and in C { 1 } and { 1, 0 } are the same: after a padding that is given every later one must be given, as
 * { 1, 1 } or { 1, TREK_ZERO }. Otherwise the call fails with ARGUMENT. */
typedef struct trek_conv_opts {
    int64_t stride[3];         /* step of the window in elements; default 1 */
    int64_t padding[3];        /* zeros added at both ends of a dimension, in elements; default 0 */
    int64_t dilation[3];       /* distance between the elements of the kernel; default 1 */
    int64_t groups;            /* groups of channels, a divisor of the input and output channels; default 1 */
    trek_padding padding_kind; /* default TREK_PADDING_NUMBERS: the field `padding` is used */
} trek_conv_opts;

/* Options of a transposed convolution, which is the gradient of a convolution with respect to its input. Elements are used and
 * filled in as in trek_conv_opts. */
typedef struct trek_conv_transpose_opts {
    int64_t stride[3];         /* distance between neighbouring inputs in the result; default 1 */
    int64_t padding[3];        /* elements removed at both ends of a dimension of the result; default 0 */
    int64_t output_padding[3]; /* elements added at the end of a dimension, less than stride or dilation; default 0 */
    int64_t dilation[3];       /* distance between the elements of the kernel; default 1 */
    int64_t groups;            /* groups of channels, a divisor of the input and output channels; default 1 */
    /* The size of the result. If it is given, the output padding is computed from it, and the field output_padding is
     * ignored. Default: not given. */
    int64_t output_size[3];
} trek_conv_transpose_opts;

/* Options of pooling. Elements are used and filled in as in trek_conv_opts. */
typedef struct trek_pool_opts {
    int64_t kernel[3];       /* size of the window in elements; required */
    int64_t stride[3];       /* step of the window in elements; default: the kernel */
    int64_t padding[3];      /* elements added at both ends of a dimension, at most half the kernel; default 0 */
    /* The distance between the elements of a window, for max pooling only; default 1. In max pooling
     * a window wholly in the padding gives the lowest number and has no gradient (PyTorch writes that gradient to another
     * element, even out of bounds). */
    int64_t dilation[3];
    bool ceil_mode;          /* round the size of the result up instead of down; default false */
    bool exclude_padding;    /* average pooling divides by the number of elements inside the input only; default false */
    int64_t divisor_override; /* average pooling divides each window's sum by this number; default 0: by its elements */
} trek_pool_opts;

/* Options of max unpooling, which describe the pooling that is undone. Elements are used and filled in as in trek_conv_opts. */
typedef struct trek_unpool_opts {
    int64_t kernel[3];       /* size of the window in elements; required */
    int64_t stride[3];       /* step of the window in elements; default: the kernel */
    int64_t padding[3];      /* elements that the pooling added at both ends of a dimension; default 0 */
    /* The size of the result. It may differ by less than the stride from its default, which is
     * (size - 1) * stride - 2 * padding + kernel. */
    int64_t output_size[3];
} trek_unpool_opts;

/* How grid sampling (autograd/resample.h) interpolates between elements. */
typedef enum trek_grid_mode { TREK_GRID_MODE_BILINEAR, TREK_GRID_MODE_NEAREST, TREK_GRID_MODE_BICUBIC } trek_grid_mode;
/* What grid sampling reads outside of the input: zeros, the nearest element, or the input mirrored at its edge. */
typedef enum trek_grid_padding { TREK_GRID_PADDING_ZEROS, TREK_GRID_PADDING_BORDER,
                                 TREK_GRID_PADDING_REFLECTION } trek_grid_padding;

/* Options of grid sampling (autograd/resample.h). */
typedef struct trek_grid_sample_opts {
    trek_grid_mode mode;         /* default bilinear, which is trilinear in three dimensions; bicubic needs two dimensions */
    trek_grid_padding padding;   /* default zeros */
    bool align_corners; /* -1 and 1 are the centres of the first and last element instead of their edges; default false */
} trek_grid_sample_opts;

TREK_END

#endif
