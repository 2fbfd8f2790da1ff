/* SPDX-License-Identifier: Apache-2.0 */
/* Three-dimensional spatial ops, made from two-dimensional ones in which the depth becomes images or channels. */
#include <inttypes.h>

#include "autograd/calls_internal.h"
#include "autograd/ops.h"
#include "autograd/rules_internal.h"
#include "autograd/spatial_internal.h"
#include "tensor/compound.h"
#include "tensor/memory_internal.h"
#include "tensor/number_internal.h"
#include "tensor/option_internal.h"

/* Reads an option's three numbers, with TREK_ZERO as 0. */
static void triple(int64_t to[3], const int64_t from[3], int64_t otherwise)
{
    to[0] = from[0] ? from[0] : otherwise;
    to[1] = from[1] ? from[1] : to[0];
    to[2] = from[2] ? from[2] : to[1];
    for (int d = 0; d < 3; d++)
        to[d] = trek_option_integer(to[d], 0);
}

/* The three paddings, TREK_ZERO read as 0. */
static trek_status paddings(const char *name, const char *what, int64_t to[3], const int64_t from[3])
{
    trek_option_paddings(to, from, 3);
    trek_status status = trek_option_check_paddings(name, what, to, 3);
    for (int d = 0; d < 3; d++)
        to[d] = trek_option_integer(to[d], 0);
    return status;
}

/* Those of height and width as an option of the op of two dimensions. */
static void flat(int64_t to[3], const int64_t from[3])
{
    for (int d = 0; d < 2; d++)
        to[d] = from[1 + d] ? from[1 + d] : TREK_ZERO;
    to[2] = 0;
}

static trek_status need_five(const char *name, const char *what, trek_var *x)
{
    char text[TREK_SHAPE_TEXT];
    if (!x)
        return trek_fail_missing(name, what);
    return trek_var_ndim(x) == 5 ? TREK_OK
        : trek_fail(TREK_ERR_SHAPE, "%s: %s: %s; must have 5 dimensions", name, what,
                    trek_shape_format(trek_var_shape(x), text, sizeof text));
}

/* How windows move along the depth, with the same rules as the two-dimensional ops. */
typedef struct depth_walk {
    int64_t in, kernel, stride, padding, dilation;
} depth_walk;

static trek_status check_depth(const char *name, const depth_walk *w)
{
    const int64_t most = (int64_t)1 << 30; /* no memory holds more, and nothing overflows */
    if (w->stride < 1 || w->dilation < 1 || w->padding < 0)
        return trek_fail(
            TREK_ERR_ARGUMENT,
            "%s: stride, dilation, padding: out of range; stride and dilation must be at least 1, padding not negative", name);
    if (w->in > most || w->kernel > most || w->stride > most || w->padding > most || w->dilation > most)
        return trek_fail(TREK_ERR_MEMORY, "%s: numbers beyond %" PRId64 "; must be smaller", name, most);
    return TREK_OK;
}

/* Returns an index of elements stride d + dilation k in dimension 2, for all d and then k. */
static trek_var *depth_index(const depth_walk *w, int64_t steps, trek_device device)
{
    const int64_t n = steps * w->kernel, most = (int64_t)1 << 40;
    int64_t *at = n <= most ? trek_block_alloc((size_t)(n > 0 ? n : 1) * sizeof *at) : NULL;
    if (!at)
        return trek_fail_null(TREK_ERR_MEMORY, "conv3d: out of memory: an index of %" PRId64 " elements", n);
    for (int64_t k = 0; k < n; k++)
        at[k] = k / w->kernel * w->stride + k % w->kernel * w->dilation;
    trek_tensor *t = trek_tensor_from_data(at, trek_dims(n), TREK_I64, device);
    trek_block_free(at);
    return t ? trek_var_from(t) : NULL;
}

/* Collects the numbers of a call, for exports that write it down. */
static trek_compound compound_of(trek_compound_kind kind, const int64_t stride[3], const int64_t padding[3],
                                 const int64_t dilation[3])
{
    trek_compound c = { .kind = kind, .dims = 3, .groups = 1 };
    for (int d = 0; d < 3; d++) {
        c.stride[d] = stride[d];
        c.padding[d] = padding[d];
        c.dilation[d] = dilation[d];
    }
    return c;
}

static trek_var *told(trek_compound c, int64_t groups, trek_var *x, trek_var *weight, trek_var *bias, trek_var *y)
{
    c.groups = groups ? groups : 1;
    c.inputs[0] = x->data;
    c.inputs[1] = weight->data;
    c.inputs[2] = bias ? bias->data : NULL;
    c.outputs[0] = y ? y->data : NULL;
    if (y)
        trek_compound_leave(&c);
    return y;
}

/* --- convolution ----------------------------------------------------------------------------------- */

/* Rearranges [N, C, D, H, W] to [N D', C kd, H, W]: each depth of the result is an image whose channels are those of
 * its window. */
static trek_var *windows(trek_var *x, const depth_walk *w, int64_t steps)
{
    trek_shape s = trek_var_shape(x);
    if (w->padding > 0)
        x = trek_pad(x, trek_dims(0, 0, 0, 0, w->padding, w->padding), TREK_PAD_MODE_CONSTANT, 0);
    if (x && (w->kernel != 1 || w->stride != 1)) {
        trek_var *index = depth_index(w, steps, trek_var_device(x));
        x = index ? trek_index_select(x, 2, index) : NULL;
    }
    x = trek_reshape(x, trek_shape_make((const int64_t[]){ s.sizes[0], s.sizes[1], steps, w->kernel, s.sizes[3],
                                                           s.sizes[4] }, 6));
    return trek_reshape(trek_permute(x, trek_dims(0, 2, 1, 3, 4, 5)),
                        trek_dims(s.sizes[0] * steps, s.sizes[1] * w->kernel, s.sizes[3], s.sizes[4]));
}

/* Rearranges [N D, C, H, W] back to [N, C, D, H, W]. */
static trek_var *stacked(trek_var *y, int64_t samples, int64_t depth)
{
    if (!y)
        return NULL;
    trek_shape s = trek_var_shape(y);
    trek_var *parts = trek_reshape(y, trek_dims(samples, depth, s.sizes[1], s.sizes[2], s.sizes[3]));
    return trek_contiguous(trek_transpose(parts, 1, 2));
}

trek_var *trek_conv3d(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_opts *opts)
{
    trek_conv_opts resolved;
    if (need_five("conv3d", "x", x) != TREK_OK || need_five("conv3d", "weight", weight) != TREK_OK ||
        !trek_conv_resolve("conv3d", &x, weight, opts, 3, &resolved))
        return NULL;
    opts = &resolved;
    int64_t stride[3], padding[3], dilation[3];
    triple(stride, opts->stride, 1);
    triple(dilation, opts->dilation, 1);
    if (paddings("conv3d", "padding", padding, opts->padding) != TREK_OK)
        return NULL;
    trek_shape k = trek_var_shape(weight);
    depth_walk w = { trek_var_size(x, 2), k.sizes[2], stride[0], padding[0], dilation[0] };
    if (check_depth("conv3d", &w) != TREK_OK)
        return NULL;
    int64_t reach = w.in + 2 * w.padding - w.dilation * (w.kernel - 1) - 1;
    if (reach < 0 || w.kernel < 1)
        return trek_fail_null(TREK_ERR_SHAPE, "conv3d: weight: a kernel of depth %" PRId64 " does not fit into %" PRId64,
                              w.kernel, w.in);
    int64_t steps = reach / w.stride + 1;
    trek_conv_opts two = { .groups = opts->groups };
    flat(two.stride, stride);
    flat(two.padding, padding);
    flat(two.dilation, dilation);
    trek_compound_enter();
    trek_var *images = windows(x, &w, steps);
    trek_var *kernel = trek_reshape(weight, trek_dims(k.sizes[0], k.sizes[1] * k.sizes[2], k.sizes[3], k.sizes[4]));
    const char *before = trek_op_calling("conv3d");
    trek_var *y = images && kernel ? stacked(trek_conv2d(images, kernel, bias, &two), trek_var_size(x, 0), steps) : NULL;
    y = trek_op_called_end(before, y);
    return told(compound_of(TREK_COMPOUND_CONV, stride, padding, dilation), opts->groups, x, weight, bias, y);
}

/* Depths that the transpose gives, and how many more than its kernel reaches. */
static trek_status transposed_depth(const trek_conv_transpose_opts *opts, const depth_walk *w, int64_t more, int64_t *out)
{
    int64_t base = (w->in - 1) * w->stride - 2 * w->padding + w->dilation * (w->kernel - 1) + 1;
    if (opts->output_size[0])
        more = opts->output_size[0] - base;
    bool fits = more < w->stride || (!opts->output_size[0] && more < w->dilation); /* as in two dimensions */
    if (more < 0 || !fits)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "conv_transpose3d: output padding: %" PRId64
                         " in depth; must not be negative, and smaller than stride (%" PRId64
                         ") or dilation (%" PRId64 ")", more, w->stride, w->dilation);
    *out = base + more;
    if (w->in < 1 || w->kernel < 1 || *out < 1)
        return trek_fail(TREK_ERR_SHAPE,
                         "conv_transpose3d: x: %" PRId64 " depths and a kernel of %" PRId64 " give an empty result", w->in,
                         w->kernel);
    return TREK_OK;
}

/* Adds [N D, O kd, H, W] up at their depths: [N, O, D', H, W]. */
static trek_var *overlapped(trek_var *y, const depth_walk *w, int64_t samples, int64_t out)
{
    trek_shape s = trek_var_shape(y);
    int64_t channels = s.sizes[1] / w->kernel, reach = (w->in - 1) * w->stride + w->dilation * (w->kernel - 1) + 1;
    int64_t length = reach > w->padding + out ? reach : w->padding + out;
    y = trek_reshape(y, trek_shape_make((const int64_t[]){ samples, w->in, channels, w->kernel, s.sizes[2], s.sizes[3] }, 6));
    y = trek_reshape(trek_permute(y, trek_dims(0, 2, 1, 3, 4, 5)),
                     trek_dims(samples, channels, w->in * w->kernel, s.sizes[2], s.sizes[3]));
    trek_var *index = y ? depth_index(w, w->in, trek_var_device(y)) : NULL;
    trek_tensor *zeros = index ? trek_tensor_zeros(trek_dims(samples, channels, length, s.sizes[2], s.sizes[3]),
                                                   trek_var_dtype(y),
                                                   trek_var_device(y)) : NULL;
    return zeros ? trek_narrow(trek_index_add(trek_var_from(zeros), 2, index, y), 2, w->padding, out) : NULL;
}

trek_var *trek_conv_transpose3d(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_transpose_opts *opts)
{
    static const trek_conv_transpose_opts defaults = { .groups = 1 };
    if (need_five("conv_transpose3d", "x", x) != TREK_OK || need_five("conv_transpose3d", "weight", weight) != TREK_OK)
        return NULL;
    opts = opts ? opts : &defaults;
    int64_t stride[3], padding[3], dilation[3], more[3] = { 0 }, out = 0;
    triple(stride, opts->stride, 1);
    triple(dilation, opts->dilation, 1);
    if (paddings("conv_transpose3d", "padding", padding, opts->padding) != TREK_OK ||
        (!opts->output_size[0] && paddings("conv_transpose3d", "output padding", more, opts->output_padding) != TREK_OK))
        return NULL;
    trek_shape s = trek_var_shape(x), k = trek_var_shape(weight);
    depth_walk w = { s.sizes[2], k.sizes[2], stride[0], padding[0], dilation[0] };
    if (check_depth("conv_transpose3d", &w) != TREK_OK || transposed_depth(opts, &w, more[0], &out) != TREK_OK)
        return NULL;
    trek_conv_transpose_opts two = { .groups = opts->groups };
    flat(two.stride, stride);
    flat(two.padding, padding);
    flat(two.dilation, dilation);
    flat(two.output_padding, more);
    if (opts->output_size[0]) {
        triple(more, opts->output_size, 0);
        flat(two.output_size, more);
    }
    trek_compound_enter();
    /* sums of several depths are computed in f32 and rounded once */
    trek_var *images = trek_transpose(trek_rule_wide(x), 1, 2), *kernel = trek_rule_wide(weight);
    images = trek_reshape(images, trek_dims(s.sizes[0] * w.in, s.sizes[1], s.sizes[3], s.sizes[4]));
    kernel = trek_reshape(kernel, trek_dims(k.sizes[0], k.sizes[1] * k.sizes[2], k.sizes[3], k.sizes[4]));
    const char *before = trek_op_calling("conv_transpose3d");
    trek_var *y = trek_op_called_end(before, images && kernel ? trek_conv_transpose2d(images, kernel, NULL, &two) : NULL);
    y = y ? overlapped(y, &w, s.sizes[0], out) : NULL;
    if (y && bias && (trek_var_ndim(bias) != 1 || trek_var_size(bias, 0) != trek_var_size(y, 1)))
        return trek_fail_null(TREK_ERR_SHAPE, "conv_transpose3d: bias: wrong shape; must have %" PRId64 " elements",
                              trek_var_size(y, 1));
    if (y && bias && trek_var_dtype(bias) != trek_var_dtype(x))
        return trek_fail_null(TREK_ERR_DTYPE, "conv_transpose3d: x and bias: dtypes %s and %s; must be equal",
                              trek_dtype_name(trek_var_dtype(x)), trek_dtype_name(trek_var_dtype(bias)));
    if (y && bias)
        y = trek_add(y, trek_reshape(trek_rule_wide(bias), trek_dims(trek_var_size(y, 1), 1, 1, 1)));
    y = y ? trek_contiguous(trek_rule_rounded(y, x)) : NULL;
    return told(compound_of(TREK_COMPOUND_CONV_TRANSPOSE, stride, padding, dilation), opts->groups, x, weight, bias, y);
}

/* --- pooling ------------------------------------------------------------------------------------------ */

/* The two two-dimensional pools that make up a three-dimensional one. */
typedef struct pool_steps {
    trek_pool_function pool;
    trek_pool_opts area, line;
    int64_t sizes[3]; /* of an adaptive one */
    bool hollow;      /* windows may lie wholly in the padding */
} pool_steps;

static trek_var *step_area(const pool_steps *p, trek_var *x, trek_var **indices)
{
    return p->pool ? p->pool(x, &p->area, indices) : trek_adaptive_max_pool2d(x, p->sizes[1], p->sizes[2], indices);
}
static trek_var *step_line(const pool_steps *p, trek_var *x, trek_var **indices)
{
    return p->pool ? p->pool(x, &p->line, indices) : trek_adaptive_max_pool2d(x, p->sizes[0], trek_var_size(x, 3), indices);
}

/* Returns positions in the volume. `areas` [planes, D, h, w] has positions in H W, and `lines` [planes, 1, d, h w]
 * has positions in D h w. */
static trek_var *volume_places(const pool_steps *p, trek_var *areas, trek_var *lines, int64_t area)
{
    int64_t planes = trek_var_size(areas, 0), depth = trek_var_size(areas, 1), n = trek_var_size(lines, 3);
    trek_tensor *starts = trek_tensor_arange(0, (double)(depth * area), (double)area, TREK_I64, trek_var_device(areas));
    trek_var *first = starts ? trek_reshape(trek_var_from(starts), trek_dims(depth, 1)) : NULL;
    trek_var *in_area = trek_reshape(areas, trek_dims(planes, depth, n)), *all = trek_add(in_area, first);
    lines = trek_reshape(lines, trek_dims(planes, trek_var_size(lines, 2) * n));
    trek_var *none = p->hollow ? trek_lt_scalar(lines, 0) : NULL;
    if (p->hollow) {
        all = trek_masked_fill(all, trek_lt_scalar(in_area, 0), -1);
        lines = trek_masked_fill(lines, none, 0);
    }
    trek_var *taken = trek_gather(trek_reshape(all, trek_dims(planes, depth * n)), 1, lines);
    return p->hollow ? trek_masked_fill(taken, none, -1) : taken;
}

/* Pools height and width, then depth. Of equal maxima it takes the first one in memory order, as a single pass would. */
static trek_var *pooled(const pool_steps *p, trek_var *x, trek_var **indices)
{
    trek_shape s = trek_var_shape(x);
    int64_t planes = s.sizes[0] * s.sizes[1];
    trek_var *areas = NULL, *lines = NULL;
    trek_var *y = step_area(p, trek_reshape(x, trek_dims(planes, s.sizes[2], s.sizes[3], s.sizes[4])), indices ? &areas : NULL);
    if (!y)
        return NULL;
    int64_t height = trek_var_size(y, 2), width = trek_var_size(y, 3);
    y = step_line(p, trek_reshape(y, trek_dims(planes, 1, s.sizes[2], height * width)), indices ? &lines : NULL);
    trek_shape shape = y ? trek_dims(s.sizes[0], s.sizes[1], trek_var_size(y, 2), height, width) : s;
    if (y && indices) {
        *indices = trek_reshape(volume_places(p, areas, lines, s.sizes[3] * s.sizes[4]), shape);
        y = *indices ? y : NULL;
    }
    y = y ? trek_reshape(y, shape) : NULL;
    if (!y && indices)
        *indices = NULL;
    return y;
}

static trek_var *windowed(const char *name, trek_var *x, const trek_pool_opts *opts, trek_pool_function pool, trek_var **indices)
{
    if (indices)
        *indices = NULL;
    if (!opts || opts->kernel[0] < 1)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: kernel: missing or 0; must be at least 1", name);
    if (need_five(name, "x", x) != TREK_OK)
        return NULL;
    int64_t kernel[3], stride[3], padding[3], dilation[3];
    triple(kernel, opts->kernel, 1);
    triple(stride, opts->stride[0] ? opts->stride : kernel, 1);
    triple(dilation, opts->dilation, 1);
    if (paddings(name, "padding", padding, opts->padding) != TREK_OK)
        return NULL;
    trek_pool_opts area = { .ceil_mode = opts->ceil_mode, .exclude_padding = opts->exclude_padding };
    flat(area.kernel, kernel);
    flat(area.stride, stride);
    flat(area.padding, padding);
    flat(area.dilation, dilation);
    if (opts->divisor_override != 0) /* the sum of sums, divided once */
        area.divisor_override = 1;
    trek_pool_opts line = { .kernel = { kernel[0], 1 },
                            .stride = { stride[0], 1 },
                            .dilation = { dilation[0], 1 },
                            .padding = { padding[0] ? padding[0] : TREK_ZERO, TREK_ZERO },
                            .ceil_mode = opts->ceil_mode,
                            .exclude_padding = opts->exclude_padding,
                            .divisor_override = opts->divisor_override };
    bool hollow = dilation[0] > 1 || dilation[1] > 1 || dilation[2] > 1;
    bool whole = !indices && !opts->ceil_mode && opts->divisor_override == 0;
    if (whole)
        trek_compound_enter();
    const char *before = trek_op_calling(name);
    trek_var *y = pooled(&(pool_steps){ .pool = pool, .area = area, .line = line, .hollow = hollow }, x, indices);
    y = trek_op_called_end(before, y);
    trek_compound c = compound_of(pool == trek_avg_pool2d_plain ? TREK_COMPOUND_AVG_POOL : TREK_COMPOUND_MAX_POOL, stride,
                                  padding, dilation);
    for (int d = 0; d < 3; d++)
        c.kernel[d] = kernel[d];
    c.counts_padding = !opts->exclude_padding;
    c.inputs[0] = x->data;
    c.outputs[0] = y ? y->data : NULL;
    if (y && whole)
        trek_compound_leave(&c);
    return y;
}

trek_var *trek_max_pool3d_with_indices(trek_var *x, const trek_pool_opts *opts, trek_var **indices)
{
    return windowed("max_pool3d", x, opts, trek_max_pool2d_with_indices, indices);
}
trek_var *trek_max_pool3d(trek_var *x, const trek_pool_opts *opts) { return trek_max_pool3d_with_indices(x, opts, NULL); }

/* Of two roundings to 16 bits, one is avoided by using f32. */
trek_var *trek_avg_pool3d(trek_var *x, const trek_pool_opts *opts)
{
    trek_var *y = windowed("avg_pool3d", trek_rule_wide(x), opts, trek_avg_pool2d_plain, NULL);
    return y ? trek_rule_rounded(y, x) : NULL;
}

trek_var *trek_adaptive_max_pool3d(trek_var *x, int64_t depth, int64_t height, int64_t width, trek_var **indices)
{
    if (indices)
        *indices = NULL;
    if (need_five("adaptive_max_pool3d", "x", x) != TREK_OK)
        return NULL;
    const char *before = trek_op_calling("adaptive_max_pool3d");
    return trek_op_called_end(before, pooled(&(pool_steps){ .sizes = { depth, height, width } }, x, indices));
}

trek_var *trek_adaptive_avg_pool3d(trek_var *x, int64_t depth, int64_t height, int64_t width)
{
    if (need_five("adaptive_avg_pool3d", "x", x) != TREK_OK)
        return NULL;
    trek_shape s = trek_var_shape(x);
    int64_t planes = s.sizes[0] * s.sizes[1];
    const char *before = trek_op_calling("adaptive_avg_pool3d");
    trek_var *y = trek_reshape(trek_rule_wide(x), trek_dims(planes, s.sizes[2], s.sizes[3], s.sizes[4]));
    y = trek_adaptive_avg_pool2d(y, height, width);
    if (y)
        y = trek_adaptive_avg_pool2d(trek_reshape(y, trek_dims(planes, 1, s.sizes[2], height * width)), depth, height * width);
    y = y ? trek_rule_rounded(trek_reshape(y, trek_dims(s.sizes[0], s.sizes[1], depth, height, width)), x) : NULL;
    return trek_op_called_end(before, y);
}
