/* SPDX-License-Identifier: Apache-2.0 */
/* Other sizes and windows of data over space. Made of the ops of ops.h, whose rules hold; differentiable, to any order. */
#ifndef TREK_AUTOGRAD_RESAMPLE_H
#define TREK_AUTOGRAD_RESAMPLE_H

#include "autograd/var.h"
#include "tensor/op_opts.h"

TREK_BEGIN

typedef enum trek_interpolate_mode {
    TREK_INTERPOLATE_NEAREST,       /* torch's "nearest", whose places are a little off */
    TREK_INTERPOLATE_NEAREST_EXACT, /* as image libraries have it */
    TREK_INTERPOLATE_LINEAR,        /* torch's linear, bilinear or trilinear */
    TREK_INTERPOLATE_CUBIC,         /* bicubic; two dimensions of space */
    TREK_INTERPOLATE_AREA           /* means of what lies under each element */
} trek_interpolate_mode;

/* For each dimension of space, the first one first; [1] and [2], left 0, take the value before them. */
typedef struct trek_interpolate_opts {
    int64_t size[3];            /* of the result; or */
    double scale[3];            /* by how much it is larger: floor(size scale) */
    trek_interpolate_mode mode; /* default nearest */
    bool align_corners;         /* linear and cubic: the centres of the corners stay where they are */
    bool recompute_scale;       /* places by the sizes, not by the scale given */
    bool antialias;             /* linear and cubic of two dimensions: where the result is smaller, the kernel grows with the
                                 * step, as image libraries have it (their cubic, too: a = -0.5) */
} trek_interpolate_opts;

/* torch.nn.functional.interpolate: x [N, C, L], [N, C, H, W] or [N, C, D, H, W]. Nearest: any dtype; else floating ones (DTYPE),
 * computed in f32 for 16 bits. ARGUMENT: no size and no scale, or both; what a mode does not have. SHAPE: other dimensions,
 * sizes but N's that are 0. */
TREK_API trek_var *trek_interpolate(trek_var *x, const trek_interpolate_opts *opts);

/* torch.nn.functional.grid_sample: x [N, C, H, W] at the places grid [N, H', W', 2] -> [N, C, H', W'], or [N, C, D, H, W] and
 * [N, D', H', W', 3] -> [N, C, D', H', W']; the grid's numbers are x, y (and z), from -1 to 1. Both of one floating dtype
 * (DTYPE), computed in f32 for 16 bits. Places that are not finite are outside of zeros, and the first element of the other
 * paddings (PyTorch's depend on the kernel that runs). Gradients as there: of the grid 0 in nearest mode and where border or
 * mirror hold a place. SHAPE: nothing to sample; ARGUMENT: no such mode or padding; UNSUPPORTED: channels of 2^31 elements. opts
 * may be NULL. */
TREK_API trek_var *trek_grid_sample(trek_var *x, trek_var *grid, const trek_grid_sample_opts *opts);
/* torch.nn.functional.affine_grid: theta [N, 2, 3] and a size [N, C, H, W] -> the grid [N, H, W, 2] of the places that the map
 * brings to those of the result; or [N, 3, 4] and [N, C, D, H, W] -> [N, D, H, W, 3]. Floating; computed in f32 for 16 bits. */
TREK_API trek_var *trek_affine_grid(trek_var *theta, trek_shape size, bool align_corners);

/* [0] is height, [1] width; where [1] is 0 it takes [0]'s value. */
typedef struct trek_unfold_opts {
    int64_t kernel[2];    /* required */
    int64_t dilation[2];  /* default 1 */
    int64_t padding[2];   /* default 0; a width left 0 is the height's: TREK_ZERO for 0 */
    int64_t stride[2];    /* default 1 */
} trek_unfold_opts;

/* x [N, C, H, W] or [C, H, W], floating -> [N, C kernel, L]: the windows of x (zeros in the padding) as columns, row by row. */
TREK_API trek_var *trek_unfold(trek_var *x, const trek_unfold_opts *opts);
/* x [N, C kernel, L] or [C kernel, L], floating -> [N, C, height, width]: each element the sum of what windows have of it; the
 * transpose of trek_unfold. */
TREK_API trek_var *trek_fold(trek_var *x, int64_t height, int64_t width, const trek_unfold_opts *opts);

TREK_END

#endif
