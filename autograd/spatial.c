/* SPDX-License-Identifier: Apache-2.0 */
/* Padding, pixel shuffling, and one-dimensional spatial ops, which are two-dimensional ones with a height of 1. */
#include <inttypes.h>
#include <string.h>

#include "autograd/calls_internal.h"
#include "autograd/ops.h"
#include "autograd/spatial_internal.h"
#include "autograd/tape_internal.h"
#include "tensor/channels_last.h"
#include "tensor/compound.h"
#include "tensor/number_internal.h"
#include "tensor/option_internal.h"

/* --- padding ------------------------------------------------------------------------------- */

static trek_var *filled(trek_var *x, int dim, int64_t size, double value)
{
    trek_shape shape = trek_var_shape(x);
    shape.sizes[dim] = size;
    trek_tensor *t = trek_tensor_full(shape, value, trek_var_dtype(x), trek_var_device(x));
    return t ? trek_var_from(t) : NULL;
}

/* Returns `size` elements that continue x beyond an end of dim. */
static trek_var *beyond(trek_var *x, int dim, int64_t size, bool after, trek_pad_mode mode, double value)
{
    int64_t n = trek_var_size(x, dim);
    if (mode == TREK_PAD_MODE_CONSTANT)
        return filled(x, dim, size, value);
    if (mode == TREK_PAD_MODE_REFLECT)
        return trek_flip(trek_narrow(x, dim, after ? n - 1 - size : 1, size), trek_dims(dim));
    if (mode == TREK_PAD_MODE_CIRCULAR)
        return trek_narrow(x, dim, after ? 0 : n - size, size);
    trek_shape shape = trek_var_shape(x);
    shape.sizes[dim] = size;
    return trek_expand(trek_narrow(x, dim, after ? n - 1 : 0, 1), shape);
}

/* Returns x without what negative sizes remove. */
static trek_var *cropped(trek_var *x, int dim, int64_t before, int64_t after)
{
    int64_t off_before = before < 0 ? -before : 0, off_after = after < 0 ? -after : 0, n = trek_var_size(x, dim);
    if (off_before == 0 && off_after == 0)
        return x;
    if (off_before > n || off_after > n - off_before)
        return trek_fail_null(TREK_ERR_SHAPE,
                              "pad: sizes: %" PRId64 " and %" PRId64 " are removed from dimension %d of size %" PRId64
                              "; must be fewer",
                              off_before, off_after, dim, n);
    return trek_narrow(x, dim, off_before, n - off_before - off_after);
}

static trek_status check_beyond(int dim, int64_t n, int64_t size, trek_pad_mode mode)
{
    int64_t most = mode == TREK_PAD_MODE_REFLECT ? n - 1 : mode == TREK_PAD_MODE_CIRCULAR ? n : n > 0 ? INT64_MAX : 0;
    if (mode == TREK_PAD_MODE_CONSTANT || size <= 0 || size <= most)
        return TREK_OK;
    return trek_fail(TREK_ERR_SHAPE, "pad: sizes: %" PRId64 " for dimension %d of size %" PRId64 "; this mode can add %" PRId64,
                     size, dim, n, most < 0 ? 0 : most);
}

/* Where one end is removed entirely, what remains is the other end, repeated. */
static trek_var *repeated(trek_var *x, int dim, int64_t before, int64_t after)
{
    int64_t n = trek_var_size(x, dim);
    trek_tensor *all = trek_tensor_arange((double)-before, (double)(n + after), 1, TREK_I64, trek_var_device(x));
    return trek_index_select(x, dim, trek_clamp(all ? trek_var_from(all) : NULL, 0, (double)(n - 1)));
}

static trek_var *padded_along(trek_var *x, int dim, int64_t before, int64_t after, trek_pad_mode mode, double value)
{
    int64_t n = trek_var_size(x, dim);
    if (mode == TREK_PAD_MODE_REPLICATE && n > 0 && n + before + after > 0 && (before <= -n || after <= -n))
        return repeated(x, dim, before, after);
    if (mode != TREK_PAD_MODE_REFLECT) /* reflection also shows what is removed */
        x = cropped(x, dim, before, after);
    if (!x || check_beyond(dim, trek_var_size(x, dim), before, mode) != TREK_OK ||
        check_beyond(dim, trek_var_size(x, dim), after, mode) != TREK_OK)
        return NULL;
    trek_var *parts[3], *made = x;
    int count = 0;
    if (before > 0)
        parts[count++] = beyond(x, dim, before, false, mode, value);
    parts[count++] = x;
    if (after > 0)
        parts[count++] = beyond(x, dim, after, true, mode, value);
    if (count > 1)
        made = trek_cat(parts, count, dim);
    return made && mode == TREK_PAD_MODE_REFLECT ? cropped(made, dim, before, after) : made;
}

trek_var *trek_pad(trek_var *x, trek_dims_list sizes, trek_pad_mode mode, double value)
{
    if (!x)
        return trek_fail_missing("pad", "input"), NULL;
    trek_shape shape = trek_var_shape(x);
    char text[TREK_SHAPE_TEXT];
    if (sizes.ndim % 2 != 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "pad: sizes: %d; must be two for each dimension", sizes.ndim);
    if (sizes.ndim / 2 > shape.ndim)
        return trek_fail_null(TREK_ERR_SHAPE, "pad: sizes: for %d dimensions, but x is %s", sizes.ndim / 2,
                              trek_shape_format(shape, text, sizeof text));
    if (mode < TREK_PAD_MODE_CONSTANT || mode > TREK_PAD_MODE_CIRCULAR)
        return trek_fail_null(TREK_ERR_ARGUMENT, "pad: mode: %d; must be a value of trek_pad_mode", (int)mode);
    if (mode == TREK_PAD_MODE_CONSTANT && !trek_dtype_holds(trek_var_dtype(x), value))
        return trek_fail_null(TREK_ERR_ARGUMENT, "pad: value: %g; %s cannot hold it", value, trek_dtype_name(trek_var_dtype(x)));
    const int64_t most = (int64_t)1 << 40; /* no memory holds more */
    trek_var *made = x;
    trek_compound told = { .kind = TREK_COMPOUND_PAD, .pad_mode = (int)mode, .value = value, .inputs = { x->data } };
    bool whole = mode != TREK_PAD_MODE_CIRCULAR;
    for (int k = 0; k < sizes.ndim; k++) {
        told.pads[2 * (shape.ndim - 1 - k / 2) + k % 2] = sizes.sizes[k];
        whole = whole && (sizes.sizes[k] >= 0 || mode == TREK_PAD_MODE_CONSTANT);
    }
    if (whole)
        trek_compound_enter();
    for (int k = 0; made && k < sizes.ndim / 2; k++) {
        int64_t before = sizes.sizes[2 * k], after = sizes.sizes[2 * k + 1];
        if (before > most || after > most || before < -most || after < -most)
            return trek_fail_null(TREK_ERR_MEMORY, "pad: sizes: %" PRId64 " and %" PRId64 "; too large", before, after);
        made = padded_along(made, shape.ndim - 1 - k, before, after, mode, value);
    }
    made = made && made->data->storage == x->data->storage ? trek_clone(made) : made;
    told.outputs[0] = made ? made->data : NULL;
    if (made && whole)
        trek_compound_leave(&told);
    return made;
}

/* --- pixels and channels --------------------------------------------------------------------- */

static trek_status check_factor(const char *name, const char *what, trek_var *x, int64_t factor, int least)
{
    if (!x)
        return trek_fail_missing(name, "input");
    if (factor < 1 || factor > INT32_MAX)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: %s: %" PRId64 "; must be at least 1", name, what, factor);
    if (trek_var_ndim(x) < least)
        return trek_fail(TREK_ERR_SHAPE, "%s: x: %d dimensions; must have at least %d", name, trek_var_ndim(x), least);
    return TREK_OK;
}

static trek_var *not_divided(const char *name, trek_var *x, int64_t by)
{
    char text[TREK_SHAPE_TEXT];
    return trek_fail_null(TREK_ERR_SHAPE, "%s: x: sizes of %s; must be multiples of %" PRId64, name,
                          trek_shape_format(trek_var_shape(x), text, sizeof text), by);
}

/* Returns the product of all sizes except the last three. */
static int64_t leading(trek_shape shape)
{
    int64_t n = 1;
    for (int d = 0; d < shape.ndim - 3; d++)
        n *= shape.sizes[d];
    return n;
}

trek_var *trek_pixel_shuffle(trek_var *x, int64_t factor)
{
    if (check_factor("pixel_shuffle", "factor", x, factor, 3) != TREK_OK)
        return NULL;
    trek_shape shape = trek_var_shape(x);
    int64_t *last = shape.sizes + shape.ndim - 3, n = leading(shape), c = last[0], h = last[1], w = last[2], r = factor;
    if (c % (r * r) != 0)
        return not_divided("pixel_shuffle", x, r * r);
    trek_var *parts = trek_permute(trek_reshape(x, trek_dims(n, c / (r * r), r, r, h, w)), trek_dims(0, 1, 4, 2, 5, 3));
    last[0] = c / (r * r);
    last[1] = h * r;
    last[2] = w * r;
    return trek_reshape(parts, shape);
}

trek_var *trek_pixel_unshuffle(trek_var *x, int64_t factor)
{
    if (check_factor("pixel_unshuffle", "factor", x, factor, 3) != TREK_OK)
        return NULL;
    trek_shape shape = trek_var_shape(x);
    int64_t *last = shape.sizes + shape.ndim - 3, n = leading(shape), c = last[0], h = last[1], w = last[2], r = factor;
    if (h % r != 0 || w % r != 0)
        return not_divided("pixel_unshuffle", x, r);
    trek_var *parts = trek_permute(trek_reshape(x, trek_dims(n, c, h / r, r, w / r, r)), trek_dims(0, 1, 3, 5, 2, 4));
    last[0] = c * r * r;
    last[1] = h / r;
    last[2] = w / r;
    return trek_reshape(parts, shape);
}

trek_var *trek_channel_shuffle(trek_var *x, int64_t groups)
{
    if (check_factor("channel_shuffle", "groups", x, groups, 3) != TREK_OK)
        return NULL;
    trek_shape shape = trek_var_shape(x);
    int64_t rest = 1;
    for (int d = 2; d < shape.ndim; d++)
        rest *= shape.sizes[d];
    if (shape.sizes[1] % groups != 0)
        return not_divided("channel_shuffle", x, groups);
    trek_var *parts = trek_reshape(x, trek_dims(shape.sizes[0], groups, shape.sizes[1] / groups, rest));
    return trek_reshape(trek_transpose(parts, 1, 2), shape);
}

/* --- padding of convolutions --------------------------------------------------------------------- */

static trek_status check_padding_kind(const char *name, const trek_conv_opts *opts, int dims)
{
    if (opts->padding_kind < TREK_PADDING_NUMBERS || opts->padding_kind > TREK_PADDING_SAME)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: padding_kind: %d; must be a value of trek_padding", name,
                         (int)opts->padding_kind);
    for (int d = 0; d < dims; d++)
        if (trek_option_integer(opts->padding[d], 0) != 0)
            return trek_fail(TREK_ERR_ARGUMENT, "%s: padding: %" PRId64 ", together with a kind of padding; give one of both",
                             name, opts->padding[d]);
    for (int d = 0; d < dims; d++)
        if (opts->padding_kind == TREK_PADDING_SAME && opts->stride[d] > 1)
            return trek_fail(TREK_ERR_ARGUMENT, "%s: stride: %" PRId64 "; padding to the same size needs a stride of 1", name,
                             opts->stride[d]);
    return TREK_OK;
}

bool trek_conv_resolve(const char *name, trek_var **x, const trek_var *weight, const trek_conv_opts *opts, int dims,
                       trek_conv_opts *to)
{
    *to = opts ? *opts : (trek_conv_opts){ .groups = 1 };
    if (to->padding_kind == TREK_PADDING_NUMBERS)
        return true;
    if (check_padding_kind(name, to, dims) != TREK_OK)
        return false;
    bool same = to->padding_kind == TREK_PADDING_SAME, uneven = false;
    to->padding_kind = TREK_PADDING_NUMBERS;
    if (!same || !*x || !weight || trek_var_ndim(*x) != 2 + dims || trek_var_ndim(weight) != 2 + dims)
        return true; /* the op reports what is missing */
    trek_dims_list more = { .ndim = 2 * dims };
    int64_t dilation = 1;
    for (int d = 0; d < dims; d++) {
        dilation = to->dilation[d] ? to->dilation[d] : dilation;
        int64_t total = dilation < 1 || dilation > INT32_MAX ? 0 : dilation * (trek_var_size(weight, 2 + d) - 1);
        to->padding[d] = total / 2 > 0 ? total / 2 : TREK_ZERO;
        more.sizes[2 * (dims - 1 - d) + 1] = total > 0 ? total % 2 : 0;
        uneven = uneven || (total > 0 && total % 2);
    }
    if (uneven)
        *x = trek_pad(*x, more, TREK_PAD_MODE_CONSTANT, 0);
    return *x != NULL;
}

trek_var *trek_conv2d(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_opts *opts)
{
    return trek_conv2d_activation(x, weight, bias, opts, TREK_ACTIVATION_NONE);
}

trek_var *trek_conv2d_activation(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_opts *opts,
                                 trek_activation activation)
{
    trek_conv_opts resolved;
    bool gelu = activation == TREK_ACTIVATION_GELU;
    if (!trek_conv_resolve("conv2d", &x, weight, opts, 2, &resolved))
        return NULL;
    trek_var *y = trek_apply_conv2d(x, weight, bias, &resolved, gelu ? TREK_ACTIVATION_NONE : (int)activation);
    return gelu ? trek_gelu(y) : y;
}

trek_var *trek_channels_last(trek_var *x)
{
    char text[TREK_SHAPE_TEXT];
    if (!x)
        return NULL;
    if (x->data->ndim != 4)
        return trek_fail_null(TREK_ERR_SHAPE, "channels_last: x: %s; must be [N, C, H, W]",
                              trek_tensor_shape_text(x->data, text));
    if (trek_lies_channels_last(x->data))
        return x;
    return trek_permute(trek_contiguous(trek_permute(x, trek_dims(0, 2, 3, 1))), trek_dims(0, 3, 1, 2));
}

/* --- one dimension ----------------------------------------------------------------------------- */

/* Returns [A, B, L] as [A, B, 1, L]. */
static trek_var *raised(const char *name, const char *what, trek_var *x)
{
    char text[TREK_SHAPE_TEXT];
    if (!x)
        return trek_fail_missing(name, what), NULL;
    if (trek_var_ndim(x) != 3)
        return trek_fail_null(TREK_ERR_SHAPE, "%s: %s: %s; must have 3 dimensions", name, what,
                              trek_shape_format(trek_var_shape(x), text, sizeof text));
    return trek_unsqueeze(x, 2);
}

static trek_var *lowered(trek_var *x) { return x ? trek_squeeze(x, 2) : NULL; }

/* Takes the number of the length as that of the width; the height gets one that has no effect. */
static void across(int64_t to[2], const int64_t from[2], int64_t height)
{
    to[0] = height;
    to[1] = from[0] ? from[0] : height;
}

/* Describes the numbers of a length, which follow a height of 1. */
static trek_var *told(trek_compound_kind kind, trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_opts *flat,
                      trek_var *y)
{
    if (y)
        trek_compound_leave(&(trek_compound){
            .kind = kind, .dims = 1, .stride = { flat->stride[1] }, .padding = { trek_option_integer(flat->padding[1], 0) },
            .dilation = { flat->dilation[1] }, .groups = flat->groups ? flat->groups : 1,
            .inputs = { x->data, weight->data, bias ? bias->data : NULL }, .outputs = { y->data } });
    return y;
}

trek_var *trek_conv1d(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_opts *opts)
{
    trek_conv_opts given, flat;
    if (!trek_conv_resolve("conv1d", &x, weight, opts, 1, &given))
        return NULL;
    flat = given;
    across(flat.stride, given.stride, 1);
    across(flat.dilation, given.dilation, 1);
    across(flat.padding, given.padding, TREK_ZERO);
    trek_compound_enter();
    trek_var *wide = raised("conv1d", "x", x), *kernel = wide ? raised("conv1d", "weight", weight) : NULL;
    const char *before = trek_op_calling("conv1d");
    trek_var *y = trek_op_called_end(before, kernel ? lowered(trek_conv2d(wide, kernel, bias, &flat)) : NULL);
    return told(TREK_COMPOUND_CONV, x, weight, bias, &flat, y);
}

trek_var *trek_conv_transpose1d(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_transpose_opts *opts)
{
    trek_conv_transpose_opts given = opts ? *opts : (trek_conv_transpose_opts){ .groups = 1 }, flat = given;
    across(flat.stride, given.stride, 1);
    across(flat.dilation, given.dilation, 1);
    across(flat.padding, given.padding, TREK_ZERO);
    across(flat.output_padding, given.output_padding, TREK_ZERO);
    if (given.output_size[0])
        across(flat.output_size, given.output_size, 1);
    trek_compound_enter();
    trek_var *wide = raised("conv_transpose1d", "x", x), *kernel = wide ? raised("conv_transpose1d", "weight", weight) : NULL;
    const char *before = trek_op_calling("conv_transpose1d");
    trek_var *y = trek_op_called_end(before, kernel ? lowered(trek_conv_transpose2d(wide, kernel, bias, &flat)) : NULL);
    trek_conv_opts numbers = { .groups = given.groups };
    memcpy(numbers.stride, flat.stride, sizeof flat.stride);
    memcpy(numbers.padding, flat.padding, sizeof flat.padding);
    memcpy(numbers.dilation, flat.dilation, sizeof flat.dilation);
    return told(TREK_COMPOUND_CONV_TRANSPOSE, x, weight, bias, &numbers, y);
}

static trek_var *pooled(const char *name, trek_var *x, const trek_pool_opts *opts, trek_pool_function pool, trek_var **indices)
{
    if (indices)
        *indices = NULL;
    if (!opts || opts->kernel[0] < 1)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: kernel: missing or 0; must be at least 1", name);
    trek_pool_opts flat = *opts;
    across(flat.kernel, opts->kernel, 1);
    across(flat.stride, opts->stride[0] ? opts->stride : opts->kernel, 1);
    across(flat.dilation, opts->dilation, 1);
    across(flat.padding, opts->padding, TREK_ZERO);
    bool whole = !indices && !opts->ceil_mode && opts->divisor_override == 0;
    if (whole)
        trek_compound_enter();
    const char *before = trek_op_calling(name);
    trek_var *wide = raised(name, "x", x), *y = trek_op_called_end(before, wide ? pool(wide, &flat, indices) : NULL);
    if (y && indices)
        *indices = lowered(*indices);
    y = lowered(y);
    if (y && whole)
        trek_compound_leave(&(trek_compound){
            .kind = pool == trek_avg_pool2d_plain ? TREK_COMPOUND_AVG_POOL : TREK_COMPOUND_MAX_POOL, .dims = 1,
            .kernel = { flat.kernel[1] }, .stride = { flat.stride[1] }, .padding = { trek_option_integer(flat.padding[1], 0) },
            .dilation = { flat.dilation[1] }, .counts_padding = !flat.exclude_padding, .inputs = { x->data },
            .outputs = { y->data } });
    return y;
}

trek_var *trek_avg_pool2d_plain(trek_var *x, const trek_pool_opts *opts, trek_var **indices)
{
    (void)indices;
    return trek_avg_pool2d(x, opts);
}

trek_var *trek_max_pool1d_with_indices(trek_var *x, const trek_pool_opts *opts, trek_var **indices)
{
    return pooled("max_pool1d", x, opts, trek_max_pool2d_with_indices, indices);
}
trek_var *trek_max_pool1d(trek_var *x, const trek_pool_opts *opts) { return trek_max_pool1d_with_indices(x, opts, NULL); }
trek_var *trek_avg_pool1d(trek_var *x, const trek_pool_opts *opts)
{
    return pooled("avg_pool1d", x, opts, trek_avg_pool2d_plain, NULL);
}

trek_var *trek_adaptive_avg_pool1d(trek_var *x, int64_t length)
{
    trek_var *wide = raised("adaptive_avg_pool1d", "x", x);
    const char *before = trek_op_calling("adaptive_avg_pool1d");
    return trek_op_called_end(before, wide ? lowered(trek_adaptive_avg_pool2d(wide, 1, length)) : NULL);
}

trek_var *trek_adaptive_max_pool1d(trek_var *x, int64_t length, trek_var **indices)
{
    trek_var *wide = raised("adaptive_max_pool1d", "x", x), *y = NULL;
    if (indices)
        *indices = NULL;
    const char *before = trek_op_calling("adaptive_max_pool1d");
    y = trek_op_called_end(before, wide ? trek_adaptive_max_pool2d(wide, 1, length, indices) : NULL);
    if (y && indices)
        *indices = lowered(*indices);
    return lowered(y);
}
