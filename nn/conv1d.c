/* SPDX-License-Identifier: Apache-2.0 */
/* One-dimensional convolution and transposed convolution. */
#include <inttypes.h>
#include <stdio.h>

#include "autograd/ops.h"
#include "nn/layers_internal.h"
#include "nn/spatial.h"
#include "tensor/creation.h"

typedef struct conv1d_layer {
    trek_module base;
    trek_var *weight, *bias;
    int64_t in, out, kernel;
    trek_conv_transpose_opts opts; /* only [0] of each is used; a plain convolution has no output padding */
    trek_pad_mode padding_mode;
    trek_padding padding_kind;
} conv1d_layer;

static trek_var *conv1d_forward(trek_module *self, trek_var *x)
{
    conv1d_layer *m = (conv1d_layer *)self;
    trek_conv_opts opts = { .stride = { m->opts.stride[0] }, .padding = { m->opts.padding[0] },
                            .dilation = { m->opts.dilation[0] }, .groups = m->opts.groups, .padding_kind = m->padding_kind };
    x = trek_conv_padded(x, &m->kernel, 1, m->padding_mode, &opts);
    return trek_conv1d(x, m->weight, m->bias, &opts);
}

static trek_var *conv_transpose1d_forward(trek_module *self, trek_var *x)
{
    conv1d_layer *m = (conv1d_layer *)self;
    return trek_conv_transpose1d(x, m->weight, m->bias, &m->opts);
}

static trek_status conv1d_reset(trek_module *self)
{
    conv1d_layer *m = (conv1d_layer *)self;
    return trek_conv_reset(m->weight, m->bias);
}

static void conv1d_describe(const trek_module *self, char *text, size_t size)
{
    const conv1d_layer *m = (const conv1d_layer *)self;
    const trek_conv_transpose_opts *o = &m->opts;
    char more[48] = "";
    if (o->output_padding[0] > 0)
        snprintf(more, sizeof more, ", output padding %" PRId64, o->output_padding[0]);
    snprintf(text, size, "%" PRId64 ", %" PRId64 ", kernel %" PRId64 ", stride %" PRId64 ", padding %" PRId64 "%s%s%s%s%s", m->in,
             m->out, m->kernel, o->stride[0], o->padding[0], more, trek_conv_kind_text(m->padding_kind),
             trek_conv_padding_text(m->padding_mode), o->groups > 1 ? ", grouped" : "", m->bias ? "" : ", no bias");
}

static const trek_module_class conv1d_class = {
    .name = "conv1d",
    .size = sizeof(conv1d_layer),
    .forward = conv1d_forward,
    .reset = conv1d_reset,
    .describe = conv1d_describe,
};

static const trek_module_class conv_transpose1d_class = {
    .name = "conv_transpose1d",
    .size = sizeof(conv1d_layer),
    .forward = conv_transpose1d_forward,
    .reset = conv1d_reset,
    .describe = conv1d_describe,
};

/* Makes the layer from the options of a transposed convolution, which include all those of a plain one. */
static trek_module *conv1d_new(const trek_module_class *klass, const trek_conv_transpose1d_opts *opts, trek_pad_mode mode,
                               trek_padding kind)
{
    int64_t groups = opts->groups ? opts->groups : 1, padding = trek_option_integer(opts->padding, 0);
    const int64_t kernel[2] = { opts->kernel, opts->kernel };
    if (trek_conv_check(klass->name, opts->in, opts->out, groups, kernel, &padding, 1, mode) != TREK_OK)
        return NULL;
    int64_t stride = opts->stride ? opts->stride : 1, dilation = opts->dilation ? opts->dilation : 1;
    int64_t more = trek_option_integer(opts->output_padding, 0);
    if (trek_conv_check_kind(klass->name, kind, &padding, &stride, 1) != TREK_OK)
        return NULL;
    if (more < 0 || (more > 0 && more >= stride && more >= dilation))
        return trek_fail_null(TREK_ERR_ARGUMENT,
                              "%s: output padding: %" PRId64 "; must not be negative, and smaller than stride (%" PRId64
                              ") or dilation (%" PRId64 ")",
                              klass->name, more, stride, dilation);
    trek_module *base = trek_module_new(klass);
    if (!base)
        return NULL;
    conv1d_layer *m = (conv1d_layer *)base;
    m->in = opts->in;
    m->out = opts->out;
    m->kernel = opts->kernel;
    m->padding_mode = mode;
    m->padding_kind = kind;
    m->opts = (trek_conv_transpose_opts){ .stride = { stride }, .padding = { padding }, .output_padding = { more },
                                          .dilation = { dilation }, .groups = groups };
    bool transposed = klass == &conv_transpose1d_class;
    trek_shape shape = transposed ? trek_dims(opts->in, opts->out / groups, opts->kernel)
        : trek_dims(opts->out, opts->in / groups, opts->kernel);
    trek_module_param(base, "weight", offsetof(conv1d_layer, weight), trek_tensor_empty(shape, opts->dtype, opts->device));
    if (!opts->no_bias)
        trek_module_param(base, "bias", offsetof(conv1d_layer, bias),
                          trek_tensor_empty(trek_dims(opts->out), opts->dtype, opts->device));
    return trek_layer_finish(base);
}

trek_module *trek_nn_conv1d_with(const trek_conv1d_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "conv1d: options: NULL; they must be given");
    return conv1d_new(&conv1d_class,
                      &(trek_conv_transpose1d_opts){ .in = opts->in, .out = opts->out, .kernel = opts->kernel,
                                                     .stride = opts->stride, .padding = opts->padding, .dilation = opts->dilation,
                                                     .groups = opts->groups, .no_bias = opts->no_bias, .dtype = opts->dtype,
                                                     .device = opts->device },
                      opts->padding_mode, opts->padding_kind);
}

trek_module *trek_nn_conv1d(int64_t in, int64_t out, int64_t kernel, trek_device device)
{
    return trek_nn_conv1d_with(&(trek_conv1d_opts){ .in = in, .out = out, .kernel = kernel, .device = device });
}

trek_module *trek_nn_conv_transpose1d_with(const trek_conv_transpose1d_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "conv_transpose1d: options: NULL; they must be given");
    return conv1d_new(&conv_transpose1d_class, opts, TREK_PAD_CONSTANT, TREK_PADDING_NUMBERS);
}

trek_module *trek_nn_conv_transpose1d(int64_t in, int64_t out, int64_t kernel, trek_device device)
{
    return trek_nn_conv_transpose1d_with(
        &(trek_conv_transpose1d_opts){ .in = in, .out = out, .kernel = kernel, .device = device });
}
