/* SPDX-License-Identifier: Apache-2.0 */
/* Pools that return where their elements come from, and unpooling. */
#include <inttypes.h>

#include "autograd/ops.h"
#include "autograd/spatial_internal.h"
#include "autograd/tape_internal.h"
#include "tensor/option_internal.h"

static trek_var *with_places(int op, trek_var *x, const trek_attrs *numbers, trek_var **indices)
{
    trek_var *outs[2] = { NULL };
    trek_status status = trek_apply_many(&trek_ops[op], &x, 1, numbers, outs, indices ? 2 : 1);
    if (indices)
        *indices = status == TREK_OK ? outs[1] : NULL;
    return status == TREK_OK ? outs[0] : NULL;
}

trek_var *trek_max_pool2d_with_indices(trek_var *x, const trek_pool_opts *opts, trek_var **indices)
{
    trek_attrs numbers = { 0 };
    trek_attrs_pool(&numbers, opts);
    return with_places(TREK_OP_max_pool2d, x, &numbers, indices);
}

trek_var *trek_adaptive_max_pool2d(trek_var *x, int64_t height, int64_t width, trek_var **indices)
{
    return with_places(TREK_OP_adaptive_max_pool2d, x, &(trek_attrs){ .i = { height, width } }, indices);
}

/* --- undoing ------------------------------------------------------------------------------- */

static trek_status check_unpool(const char *name, trek_var *x, trek_var *indices, const trek_unpool_opts *opts, int dims)
{
    char first[TREK_SHAPE_TEXT], second[TREK_SHAPE_TEXT];
    if (!x || !indices)
        return trek_fail_missing(name, x ? "indices" : "input");
    if (!opts || opts->kernel[0] < 1)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: kernel: missing or 0; must be at least 1", name);
    if (trek_var_ndim(x) != 2 + dims)
        return trek_fail(TREK_ERR_SHAPE, "%s: x: %s; must have %d dimensions", name,
                         trek_shape_format(trek_var_shape(x), first, sizeof first),
                         2 + dims);
    if (!trek_shape_equal(trek_var_shape(x), trek_var_shape(indices)))
        return trek_fail(TREK_ERR_SHAPE, "%s: indices: %s; must have the shape of x, %s", name,
                         trek_shape_format(trek_var_shape(indices), second, sizeof second),
                         trek_shape_format(trek_var_shape(x), first, sizeof first));
    if (trek_var_dtype(indices) != TREK_I64)
        return trek_fail(TREK_ERR_DTYPE, "%s: indices: dtype %s; must be i64", name, trek_dtype_name(trek_var_dtype(indices)));
    return TREK_OK;
}

/* Computes the spatial sizes of the result. */
static trek_status unpool_sizes(const char *name, trek_var *x, const trek_unpool_opts *opts, int dims, int64_t *sizes)
{
    const int64_t most = (int64_t)1 << 30; /* no memory holds more, and nothing overflows */
    int64_t kernel = 0, stride = 0, wanted = 0, paddings[3];
    trek_option_paddings(paddings, opts->padding, dims);
    if (trek_option_check_paddings(name, "padding", paddings, dims) != TREK_OK)
        return trek_error_status();
    for (int d = 0; d < dims; d++) {
        kernel = opts->kernel[d] ? opts->kernel[d] : kernel;
        stride = opts->stride[d] ? opts->stride[d] : opts->stride[0] ? stride : kernel;
        int64_t padding = trek_option_integer(paddings[d], 0);
        wanted = opts->output_size[d] ? opts->output_size[d] : wanted;
        int64_t in = trek_var_size(x, 2 + d);
        if (kernel < 1 || stride < 1 || wanted < 0)
            return trek_fail(TREK_ERR_ARGUMENT,
                             "%s: kernel, stride, sizes: out of range; kernel and stride must be at least 1, sizes not negative",
                             name);
        if (in > most || kernel > most || stride > most || padding > most)
            return trek_fail(TREK_ERR_MEMORY, "%s: numbers beyond %" PRId64 "; must be smaller", name, most);
        int64_t usual = (in - 1) * stride - 2 * padding + kernel;
        if (wanted && (wanted <= usual - stride || wanted >= usual + stride))
            return trek_fail(TREK_ERR_ARGUMENT, "%s: size: %" PRId64 " along dimension %d; must be %" PRId64 " to %" PRId64, name,
                             wanted, 2 + d, usual - stride + 1, usual + stride - 1);
        sizes[d] = wanted ? wanted : usual;
        if (sizes[d] < 1 || in < 1)
            return trek_fail(TREK_ERR_SHAPE, "%s: result: it has 0 elements along dimension %d; must have some", name, 2 + d);
    }
    return TREK_OK;
}

static trek_var *unpooled(const char *name, trek_var *x, trek_var *indices, const trek_unpool_opts *opts, int dims)
{
    int64_t sizes[3] = { 1, 1, 1 }, plane = 1, places = 1;
    if (check_unpool(name, x, indices, opts, dims) != TREK_OK || unpool_sizes(name, x, opts, dims, sizes) != TREK_OK)
        return NULL;
    trek_shape shape = trek_var_shape(x);
    int64_t planes = shape.sizes[0] * shape.sizes[1];
    for (int d = 0; d < dims; d++) {
        places *= shape.sizes[2 + d];
        plane *= sizes[d];
        shape.sizes[2 + d] = sizes[d];
    }
    trek_tensor *zero = trek_tensor_zeros(trek_dims(1, 1), trek_var_dtype(x), trek_var_device(x));
    trek_var *zeros = zero ? trek_expand(trek_var_from(zero), trek_dims(planes, plane)) : NULL;
    trek_shape lines = trek_dims(planes, places);
    return trek_reshape(trek_scatter(zeros, 1, trek_reshape(indices, lines), trek_reshape(x, lines)), shape);
}

trek_var *trek_max_unpool1d(trek_var *x, trek_var *indices, const trek_unpool_opts *opts)
{
    return unpooled("max_unpool1d", x, indices, opts, 1);
}
trek_var *trek_max_unpool2d(trek_var *x, trek_var *indices, const trek_unpool_opts *opts)
{
    return unpooled("max_unpool2d", x, indices, opts, 2);
}
trek_var *trek_max_unpool3d(trek_var *x, trek_var *indices, const trek_unpool_opts *opts)
{
    return unpooled("max_unpool3d", x, indices, opts, 3);
}
