/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution, transposed convolution and pooling over three dimensions. */
#include <inttypes.h>
#include <stdio.h>

#include "autograd/ops.h"
#include "nn/layers_internal.h"
#include "nn/spatial.h"
#include "tensor/creation.h"

/* Fills in all three numbers, so that the description and the hash do not depend on how the option was given. */
static void fill_triple(int64_t to[3], const int64_t from[3], int64_t otherwise)
{
    to[0] = from[0] ? from[0] : otherwise;
    to[1] = from[1] ? from[1] : to[0];
    to[2] = from[2] ? from[2] : to[1];
}

static int64_t least(const int64_t of[3])
{
    int64_t a = trek_option_integer(of[0], 0), b = trek_option_integer(of[1], 0), c = trek_option_integer(of[2], 0);
    return a < b ? a < c ? a : c : b < c ? b : c;
}

/* --- convolution ---------------------------------------------------------------------- */

typedef struct conv3d_layer {
    trek_module base;
    trek_var *weight, *bias;
    int64_t in, out, kernel[3];
    trek_conv_transpose_opts opts; /* a plain convolution has no output padding */
    trek_pad_mode padding_mode;
    trek_padding padding_kind;
} conv3d_layer;

static trek_var *conv3d_forward(trek_module *self, trek_var *x)
{
    conv3d_layer *m = (conv3d_layer *)self;
    trek_conv_opts opts = { .groups = m->opts.groups, .padding_kind = m->padding_kind };
    for (int d = 0; d < 3; d++) {
        opts.stride[d] = m->opts.stride[d];
        opts.padding[d] = m->opts.padding[d];
        opts.dilation[d] = m->opts.dilation[d];
    }
    x = trek_conv_padded(x, m->kernel, 3, m->padding_mode, &opts);
    return trek_conv3d(x, m->weight, m->bias, &opts);
}

static trek_var *conv_transpose3d_forward(trek_module *self, trek_var *x)
{
    conv3d_layer *m = (conv3d_layer *)self;
    return trek_conv_transpose3d(x, m->weight, m->bias, &m->opts);
}

static trek_status conv3d_reset(trek_module *self)
{
    conv3d_layer *m = (conv3d_layer *)self;
    return trek_conv_reset(m->weight, m->bias);
}

#define EACH "%" PRId64 "x%" PRId64 "x%" PRId64
static void conv3d_describe(const trek_module *self, char *text, size_t size)
{
    const conv3d_layer *m = (const conv3d_layer *)self;
    const trek_conv_transpose_opts *o = &m->opts;
    int64_t p[3], more[3];
    for (int d = 0; d < 3; d++)
        p[d] = trek_option_integer(o->padding[d], 0), more[d] = trek_option_integer(o->output_padding[d], 0);
    int n = snprintf(text, size, "%" PRId64 ", %" PRId64 ", kernel " EACH ", stride " EACH ", padding " EACH "%s%s%s%s", m->in,
                     m->out,
                     m->kernel[0], m->kernel[1], m->kernel[2], o->stride[0], o->stride[1], o->stride[2], p[0], p[1], p[2],
                     trek_conv_kind_text(m->padding_kind), trek_conv_padding_text(m->padding_mode),
                     o->groups > 1 ? ", grouped" : "", m->bias ? "" : ", no bias");
    if (n > 0 && (size_t)n < size && (more[0] > 0 || more[1] > 0 || more[2] > 0))
        snprintf(text + n, size - (size_t)n, ", output padding " EACH, more[0], more[1], more[2]);
}

static const trek_module_class conv3d_class = {
    .name = "conv3d",
    .size = sizeof(conv3d_layer),
    .forward = conv3d_forward,
    .reset = conv3d_reset,
    .describe = conv3d_describe,
};

static const trek_module_class conv_transpose3d_class = {
    .name = "conv_transpose3d",
    .size = sizeof(conv3d_layer),
    .forward = conv_transpose3d_forward,
    .reset = conv3d_reset,
    .describe = conv3d_describe,
};

static trek_status check_more(const char *layer, const trek_conv_transpose_opts *o)
{
    for (int d = 0; d < 3; d++) {
        int64_t more = trek_option_integer(o->output_padding[d], 0);
        if (more > 0 && more >= o->stride[d] && more >= o->dilation[d])
            return trek_fail(TREK_ERR_ARGUMENT,
                             "%s: output padding: %" PRId64 "; must be smaller than stride (%" PRId64
                             ") or dilation (%" PRId64 ")",
                             layer, more, o->stride[d], o->dilation[d]);
    }
    return TREK_OK;
}

/* Makes the layer from the options of a transposed convolution, which include all those of a plain one. */
static trek_module *conv3d_new(const trek_module_class *klass, const trek_conv_transpose3d_opts *opts, trek_pad_mode mode,
                               trek_padding kind)
{
    int64_t kernel[3], groups = opts->groups ? opts->groups : 1;
    fill_triple(kernel, opts->kernel, 0);
    trek_conv_transpose_opts o = { .groups = groups };
    fill_triple(o.stride, opts->stride, 1);
    trek_option_paddings(o.padding, opts->padding, 3);
    fill_triple(o.dilation, opts->dilation, 1);
    trek_option_paddings(o.output_padding, opts->output_padding, 3);
    const int64_t kernels[2] = { least(kernel), least(kernel) };
    if (trek_conv_check(klass->name, opts->in, opts->out, groups, kernels, o.padding, 3, mode) != TREK_OK ||
        trek_option_check_paddings(klass->name, "output padding", o.output_padding, 3) != TREK_OK ||
        trek_conv_check_kind(klass->name, kind, o.padding, o.stride, 3) != TREK_OK || check_more(klass->name, &o) != TREK_OK)
        return NULL;
    trek_module *base = trek_module_new(klass);
    if (!base)
        return NULL;
    conv3d_layer *m = (conv3d_layer *)base;
    m->in = opts->in;
    m->out = opts->out;
    m->opts = o;
    m->padding_mode = mode;
    m->padding_kind = kind;
    for (int d = 0; d < 3; d++)
        m->kernel[d] = kernel[d];
    bool transposed = klass == &conv_transpose3d_class;
    trek_shape shape = trek_dims(transposed ? opts->in : opts->out, (transposed ? opts->out : opts->in) / groups, kernel[0],
                                 kernel[1], kernel[2]);
    trek_module_param(base, "weight", offsetof(conv3d_layer, weight), trek_tensor_empty(shape, opts->dtype, opts->device));
    if (!opts->no_bias)
        trek_module_param(base, "bias", offsetof(conv3d_layer, bias),
                          trek_tensor_empty(trek_dims(opts->out), opts->dtype, opts->device));
    return trek_layer_finish(base);
}

trek_module *trek_nn_conv3d_with(const trek_conv3d_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "conv3d: options: NULL; they must be given");
    trek_conv_transpose3d_opts all = { .in = opts->in, .out = opts->out, .groups = opts->groups, .no_bias = opts->no_bias,
                                       .dtype = opts->dtype, .device = opts->device };
    for (int d = 0; d < 3; d++) {
        all.kernel[d] = opts->kernel[d];
        all.stride[d] = opts->stride[d];
        all.padding[d] = opts->padding[d];
        all.dilation[d] = opts->dilation[d];
    }
    return conv3d_new(&conv3d_class, &all, opts->padding_mode, opts->padding_kind);
}

trek_module *trek_nn_conv3d(int64_t in, int64_t out, int64_t kernel, trek_device device)
{
    return trek_nn_conv3d_with(&(trek_conv3d_opts){ .in = in, .out = out, .kernel = { kernel }, .device = device });
}

trek_module *trek_nn_conv_transpose3d_with(const trek_conv_transpose3d_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "conv_transpose3d: options: NULL; they must be given");
    return conv3d_new(&conv_transpose3d_class, opts, TREK_PAD_CONSTANT, TREK_PADDING_NUMBERS);
}

trek_module *trek_nn_conv_transpose3d(int64_t in, int64_t out, int64_t kernel, trek_device device)
{
    return trek_nn_conv_transpose3d_with(
        &(trek_conv_transpose3d_opts){ .in = in, .out = out, .kernel = { kernel }, .device = device });
}

/* --- pooling --------------------------------------------------------------------------------- */

typedef struct pool3d_layer {
    trek_module base;
    trek_pool_opts opts;
    int64_t sizes[3]; /* of an adaptive pool */
} pool3d_layer;

static trek_var *max_pool3d_forward(trek_module *self, trek_var *x) { return trek_max_pool3d(x, &((pool3d_layer *)self)->opts); }
static trek_var *avg_pool3d_forward(trek_module *self, trek_var *x) { return trek_avg_pool3d(x, &((pool3d_layer *)self)->opts); }
static trek_var *adaptive_forward(trek_module *self, trek_var *x)
{
    const int64_t *sizes = ((pool3d_layer *)self)->sizes;
    return trek_adaptive_avg_pool3d(x, sizes[0], sizes[1], sizes[2]);
}

static trek_status max_pool3d_results(trek_module *self, trek_var *const *inputs, int n, trek_var **results, int count)
{
    return trek_layer_pool_results("max_pool3d", trek_max_pool3d_with_indices, &((pool3d_layer *)self)->opts, inputs, n, results,
                                   count);
}

static void pool3d_describe(const trek_module *self, char *text, size_t size)
{
    const trek_pool_opts *o = &((const pool3d_layer *)self)->opts;
    snprintf(text, size, "kernel " EACH ", stride " EACH, o->kernel[0], o->kernel[1], o->kernel[2], o->stride[0], o->stride[1],
             o->stride[2]);
}

static void adaptive_describe(const trek_module *self, char *text, size_t size)
{
    const int64_t *sizes = ((const pool3d_layer *)self)->sizes;
    snprintf(text, size, EACH, sizes[0], sizes[1], sizes[2]);
}

#define POOL_CLASS(name_, run, text) { .name = name_, .size = sizeof(pool3d_layer), .forward = run, .describe = text }
static const trek_module_class max_pool3d_class = {
    .name = "max_pool3d",
    .size = sizeof(pool3d_layer),
    .forward = max_pool3d_forward,
    .forward_results = max_pool3d_results,
    .result_names = trek_layer_pool_result_names,
    .describe = pool3d_describe,
};
static const trek_module_class avg_pool3d_class = POOL_CLASS("avg_pool3d", avg_pool3d_forward, pool3d_describe);
static const trek_module_class adaptive_class = POOL_CLASS("adaptive_avg_pool3d", adaptive_forward, adaptive_describe);

static trek_module *pool3d_new(const trek_module_class *klass, const trek_pool_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: options: NULL; they must be given", klass->name);
    trek_pool_opts o = *opts;
    fill_triple(o.kernel, opts->kernel, 0);
    fill_triple(o.stride, opts->stride[0] ? opts->stride : o.kernel, 0);
    trek_option_paddings(o.padding, opts->padding, 3);
    fill_triple(o.dilation, opts->dilation, 1);
    if (trek_layer_positive(klass->name, "kernel", least(o.kernel)) != TREK_OK)
        return NULL;
    if (least(o.stride) < 0 || least(o.dilation) < 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: stride, dilation: one is negative; must be 0 or more", klass->name);
    if (trek_option_check_paddings(klass->name, "padding", o.padding, 3) != TREK_OK)
        return NULL;
    trek_module *base = trek_module_new(klass);
    if (base)
        ((pool3d_layer *)base)->opts = o;
    return base;
}

trek_module *trek_nn_max_pool3d_with(const trek_pool_opts *opts) { return pool3d_new(&max_pool3d_class, opts); }
trek_module *trek_nn_avg_pool3d_with(const trek_pool_opts *opts) { return pool3d_new(&avg_pool3d_class, opts); }
trek_module *trek_nn_max_pool3d(int64_t kernel) { return trek_nn_max_pool3d_with(&(trek_pool_opts){ .kernel = { kernel } }); }
trek_module *trek_nn_avg_pool3d(int64_t kernel) { return trek_nn_avg_pool3d_with(&(trek_pool_opts){ .kernel = { kernel } }); }

trek_module *trek_nn_adaptive_avg_pool3d(int64_t depth, int64_t height, int64_t width)
{
    const int64_t sizes[3] = { depth, height, width };
    static const char *const names[] = { "depth", "height", "width" };
    for (int d = 0; d < 3; d++)
        if (trek_layer_positive("adaptive_avg_pool3d", names[d], sizes[d]) != TREK_OK)
            return NULL;
    trek_module *base = trek_module_new(&adaptive_class);
    for (int d = 0; base && d < 3; d++)
        ((pool3d_layer *)base)->sizes[d] = sizes[d];
    return base;
}
