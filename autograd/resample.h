/* SPDX-License-Identifier: Apache-2.0 */
/* Other sizes and windows of data over space. Made of the ops of ops.h, whose rules hold; differentiable, to any order. */
#ifndef TREK_AUTOGRAD_RESAMPLE_H
#define TREK_AUTOGRAD_RESAMPLE_H

#include "autograd/var.h"

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
} trek_interpolate_opts;

/* torch.nn.functional.interpolate: x [N, C, L], [N, C, H, W] or [N, C, D, H, W]. Nearest: any dtype; else floating ones (DTYPE),
 * computed in f32 for 16 bits. ARGUMENT: no size and no scale, or both; what a mode does not have. SHAPE: other dimensions,
 * sizes but N's that are 0. */
TREK_API trek_var *trek_interpolate(trek_var *x, const trek_interpolate_opts *opts);

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
