/* SPDX-License-Identifier: Apache-2.0 */
/* Shape rules of resampling and of sampling at positions of a grid. */
#include "tensor/infer_internal.h"
#include "tensor/resample.h"

/* Also for the transpose, which has the sizes exchanged. */
trek_status trek_infer_resample(trek_op_call *call);
trek_status trek_infer_resample(trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0];
    int64_t *a = call->attrs.i, sizes[TREK_MAX_DIMS];
    char text[TREK_SHAPE_TEXT];
    a[0] += a[0] < 0 ? x->ndim : 0;
    if (a[0] < 0 || a[0] >= x->ndim)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "dim: %s does not have this dimension", trek_tensor_shape_text(x, text));
    if (a[2] < 0 || a[2] >= TREK_RESAMPLE_KINDS || !(call->attrs.f[0] >= 0))
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "kind: %lld, scale: %g; out of range", (long long)a[2], call->attrs.f[0]);
    if (a[1] < 1 || x->sizes[a[0]] < 1)
        return trek_op_fail(call, TREK_ERR_SHAPE, "size: from %lld elements to %lld; must be positive", (long long)x->sizes[a[0]],
                            (long long)a[1]);
    if (a[1] > INT32_MAX || x->sizes[a[0]] > INT32_MAX)
        return trek_op_fail(call, TREK_ERR_UNSUPPORTED, "size: 2^31 elements along a dimension; must be fewer");
    for (int d = 0; d < x->ndim; d++)
        sizes[d] = d == a[0] ? a[1] : x->sizes[d];
    return trek_op_output(call, 0, x->ndim, sizes, (trek_dtype)x->dtype);
}

static trek_status check_grid(const trek_op_call *call, const trek_tensor *x, const trek_tensor *grid)
{
    const int64_t *a = call->attrs.i;
    char first[TREK_SHAPE_TEXT], second[TREK_SHAPE_TEXT];
    if (x->ndim != 4 && x->ndim != 5)
        return trek_op_fail(call, TREK_ERR_SHAPE, "input: %s; must have 4 or 5 dimensions", trek_tensor_shape_text(x, first));
    if (grid->ndim != x->ndim || grid->sizes[0] != x->sizes[0] || grid->sizes[grid->ndim - 1] != x->ndim - 2)
        return trek_op_fail(call, TREK_ERR_SHAPE,
                            "grid: %s does not fit input %s: it must have its samples, and %d numbers for each position",
                            trek_tensor_shape_text(grid, second), trek_tensor_shape_text(x, first), x->ndim - 2);
    if (a[0] < 0 || a[0] > TREK_GRID_MODE_BICUBIC || a[1] < 0 || a[1] > TREK_GRID_PADDING_REFLECTION)
        return trek_op_fail(call, TREK_ERR_ARGUMENT,
                            "mode or padding: %lld and %lld; must be values of trek_grid_mode and trek_grid_padding",
                            (long long)a[0], (long long)a[1]);
    if (a[0] == TREK_GRID_MODE_BICUBIC && x->ndim != 4)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "input: %s; bicubic mode needs 4 dimensions",
                            trek_tensor_shape_text(x, first));
    int64_t plane = 1;
    for (int d = 2; d < x->ndim; d++) {
        if (x->sizes[d] < 1)
            return trek_op_fail(call, TREK_ERR_SHAPE, "input: %s; must have elements to sample",
                                trek_tensor_shape_text(x, first));
        plane = plane > INT32_MAX ? plane : plane * (x->sizes[d] > INT32_MAX ? INT32_MAX : x->sizes[d]);
    }
    if (plane >= INT32_MAX)
        return trek_op_fail(call, TREK_ERR_UNSUPPORTED, "input: %s; must have fewer than 2^31 elements in a channel",
                            trek_tensor_shape_text(x, first));
    return TREK_OK;
}

/* Computes the sizes of the result. */
static void grid_result(const trek_tensor *x, const trek_tensor *grid, int64_t *sizes)
{
    sizes[0] = x->sizes[0];
    sizes[1] = x->sizes[1];
    for (int d = 2; d < x->ndim; d++)
        sizes[d] = grid->sizes[d - 1];
}

trek_status trek_infer_grid_sample(trek_op_call *call);
trek_status trek_infer_grid_sample(trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0], *grid = call->inputs[1];
    int64_t sizes[TREK_MAX_DIMS];
    TRY(check_grid(call, x, grid));
    grid_result(x, grid, sizes);
    return trek_op_output(call, 0, x->ndim, sizes, (trek_dtype)x->dtype);
}

trek_status trek_infer_grid_sample_backward(trek_op_call *call);
trek_status trek_infer_grid_sample_backward(trek_op_call *call)
{
    const trek_tensor *grad = call->inputs[0], *x = call->inputs[1], *grid = call->inputs[2];
    int64_t sizes[TREK_MAX_DIMS], none = 0;
    bool no_dx = call->attrs.i[3] & 1, no_dgrid = call->attrs.i[3] & 2;
    TRY(check_grid(call, x, grid));
    grid_result(x, grid, sizes);
    TRY(need_sizes(call, "gradient", grad, x->ndim, sizes));
    TRY(trek_op_output(call, 0, no_dx ? 1 : x->ndim, no_dx ? &none : x->sizes, (trek_dtype)x->dtype));
    return trek_op_output(call, 1, no_dgrid ? 1 : grid->ndim, no_dgrid ? &none : grid->sizes, (trek_dtype)x->dtype);
}
