/* SPDX-License-Identifier: Apache-2.0 */
/* Ops that change sizes or take windows. They consist of the ops of autograd/ops.h, whose rules apply, and are differentiable to
 * any order. */
#ifndef TREK_AUTOGRAD_RESAMPLE_H
#define TREK_AUTOGRAD_RESAMPLE_H

#include "autograd/var.h"
#include "tensor/op_opts.h"

TREK_BEGIN

/* How trek_interpolate computes an element. */
typedef enum trek_interpolate_mode {
    TREK_INTERPOLATE_MODE_NEAREST,       /* nearest element, with the slightly shifted positions of torch's "nearest" */
    TREK_INTERPOLATE_MODE_NEAREST_EXACT, /* nearest element, with the positions of image libraries */
    TREK_INTERPOLATE_MODE_LINEAR,        /* torch's linear, bilinear or trilinear */
    TREK_INTERPOLATE_MODE_CUBIC,         /* torch's bicubic; two dimensions of space only */
    TREK_INTERPOLATE_MODE_AREA,          /* mean of the area under each element */
} trek_interpolate_mode;

/* Options of trek_interpolate. Lists have a number for each dimension of space, in order; where [1] or [2] is left 0 it has the
 * value of the one before it. */
typedef struct trek_interpolate_opts {
    int64_t size[3];            /* size of the result; either size or scale is required */
    double scale[3];            /* factor of the size, which is floor(size scale) */
    trek_interpolate_mode mode; /* default TREK_INTERPOLATE_MODE_NEAREST */
    bool align_corners;         /* linear and cubic: the centres of the corner elements keep their positions */
    bool recompute_scale;       /* computes positions from the sizes instead of the given scale */
    /* Linear and cubic in two dimensions: if the result is smaller, the kernel grows with the step, as in image libraries (and
     * the cubic is theirs, with a = -0.5). */
    bool antialias;
} trek_interpolate_opts;

/* Changes the size of x (torch.nn.functional.interpolate).
 * Shapes: x [N, C, L], [N, C, H, W] or [N, C, D, H, W].
 * Dtypes: all for the nearest modes, otherwise floating; 16-bit x is computed in f32.
 * Errors: DTYPE. ARGUMENT if neither or both of size and scale are given, or if the mode does not support an option. SHAPE if x
 * has other dimensions, or a size other than N is 0. */
TREK_API trek_var *trek_interpolate(trek_var *x, const trek_interpolate_opts *opts);

/* Reads x at the positions of a grid (torch.nn.functional.grid_sample). The numbers of the grid are x, y and z, from -1 to 1.
 * opts may be NULL.
 * Shapes: x [N, C, H, W], grid [N, H', W', 2] -> [N, C, H', W'], or x [N, C, D, H, W], grid [N, D', H', W', 3] -> [N, C, D', H',
 * W'].
 * Dtypes: both of one floating dtype; 16-bit x is computed in f32.
 * Gradients: those of PyTorch. The gradient of the grid is 0 in nearest mode, and where border or reflection holds a position at
 * the edge.
 * Errors: DTYPE. SHAPE if x has no elements to sample. ARGUMENT if mode or padding is unknown. UNSUPPORTED if a channel has 2^31
 * elements or more.
 * Difference from PyTorch: positions that are not finite are outside with padding by zeros, and are the first element with the
 * other paddings. In PyTorch this depends on the kernel. */
TREK_API trek_var *trek_grid_sample(trek_var *x, trek_var *grid, const trek_grid_sample_opts *opts);

/* Computes the grid of positions that an affine map gives to the elements of a result (torch.nn.functional.affine_grid).
 * Shapes: theta [N, 2, 3], size [N, C, H, W] -> [N, H, W, 2], or theta [N, 3, 4], size [N, C, D, H, W] -> [N, D, H, W, 3].
 * Dtypes: floating; 16-bit theta is computed in f32. */
TREK_API trek_var *trek_affine_grid(trek_var *theta, trek_shape size, bool align_corners);

/* Options of trek_unfold and trek_fold. [0] is height and [1] width; where [1] is left 0 it has the value of [0]. */
typedef struct trek_unfold_opts {
    int64_t kernel[2];   /* size of the window; required */
    int64_t dilation[2]; /* elements from one element of the window to the next; default 1 */
    int64_t padding[2];  /* zeros added on each side; default 0. Both or none, TREK_ZERO for 0 */
    int64_t stride[2];   /* elements from window to window; default 1 */
} trek_unfold_opts;

/* Returns the windows of x as columns, row by row (torch.nn.functional.unfold).
 * Shapes: x [N, C, H, W] or [C, H, W] -> [N, C kernel, L], where kernel is the number of elements of a window and L that of
 * windows.
 * Dtypes: floating. */
TREK_API trek_var *trek_unfold(trek_var *x, const trek_unfold_opts *opts);

/* Computes for each element the sum of its values in all windows (torch.nn.functional.fold). It is the transpose of trek_unfold.
 * Shapes: x [N, C kernel, L] or [C kernel, L] -> [N, C, height, width].
 * Dtypes: floating. */
TREK_API trek_var *trek_fold(trek_var *x, int64_t height, int64_t width, const trek_unfold_opts *opts);

TREK_END

#endif
