/* SPDX-License-Identifier: Apache-2.0 */
/* Two-dimensional convolution. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "autograd/ops.h"
#include "nn/layers_internal.h"

typedef struct conv2d_layer {
    trek_module base;
    trek_var *weight, *bias;
    int64_t in, out, kernel[2];
    trek_conv_opts opts;
} conv2d_layer;

static trek_var *conv2d_forward(trek_module *self, trek_var *x)
{
    conv2d_layer *m = (conv2d_layer *)self;
    return trek_conv2d(x, m->weight, m->bias, &m->opts);
}

static trek_status conv2d_reset(trek_module *self)
{
    conv2d_layer *m = (conv2d_layer *)self;
    double bound = 1 / sqrt((double)(m->in / m->opts.groups) * (double)m->kernel[0] * (double)m->kernel[1]);
    trek_status status = trek_init_uniform(m->weight, -bound, bound);
    return status == TREK_OK && m->bias ? trek_init_uniform(m->bias, -bound, bound) : status;
}

static void conv2d_describe(const trek_module *self, char *text, size_t size)
{
    const conv2d_layer *m = (const conv2d_layer *)self;
    const trek_conv_opts *o = &m->opts;
    snprintf(text, size,
             "%" PRId64 ", %" PRId64 ", kernel %" PRId64 "x%" PRId64 ", stride %" PRId64 "x%" PRId64 ", padding %" PRId64
             "x%" PRId64 "%s%s",
             m->in, m->out, m->kernel[0], m->kernel[1], o->stride[0], o->stride[1], trek_option_integer(o->padding[0], 0),
             trek_option_integer(o->padding[1], 0), o->groups > 1 ? ", grouped" : "", m->bias ? "" : ", no bias");
}

static const trek_module_class conv2d_class = {
    .name = "conv2d",
    .size = sizeof(conv2d_layer),
    .forward = conv2d_forward,
    .reset = conv2d_reset,
    .describe = conv2d_describe,
};

/* Writes both sizes out, so that what is described and hashed does not depend on how it was given. */
static void fill_pair(int64_t to[2], const int64_t from[2], int64_t otherwise)
{
    to[0] = from[0] ? from[0] : otherwise;
    to[1] = from[1] ? from[1] : to[0];
}

static trek_status check_options(const trek_conv2d_opts *opts, int64_t groups, const int64_t kernel[2])
{
    trek_status status = trek_layer_positive("conv2d", "in", opts->in);
    if (status == TREK_OK)
        status = trek_layer_positive("conv2d", "out", opts->out);
    if (status == TREK_OK)
        status = trek_layer_positive("conv2d", "kernel", kernel[0] < kernel[1] ? kernel[0] : kernel[1]);
    if (status == TREK_OK)
        status = trek_layer_positive("conv2d", "groups", groups);
    for (int d = 0; d < 2 && status == TREK_OK; d++)
        if (trek_option_integer(opts->padding[d], 0) < 0)
            status = trek_fail(TREK_ERR_ARGUMENT, "conv2d: padding must not be negative, not %" PRId64, opts->padding[d]);
    if (status == TREK_OK && (opts->in % groups != 0 || opts->out % groups != 0))
        status =
            trek_fail(TREK_ERR_ARGUMENT, "conv2d: %" PRId64 " groups do not divide %" PRId64 " channels in and %" PRId64 " out",
                      groups, opts->in, opts->out);
    return status;
}

trek_module *trek_nn_conv2d_with(const trek_conv2d_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "conv2d: needs options");
    int64_t kernel[2], groups = opts->groups ? opts->groups : 1;
    fill_pair(kernel, opts->kernel, 0);
    if (check_options(opts, groups, kernel) != TREK_OK)
        return NULL;
    trek_module *base = trek_module_new(&conv2d_class);
    if (!base)
        return NULL;
    conv2d_layer *m = (conv2d_layer *)base;
    m->in = opts->in;
    m->out = opts->out;
    m->kernel[0] = kernel[0];
    m->kernel[1] = kernel[1];
    fill_pair(m->opts.stride, opts->stride, 1);
    fill_pair(m->opts.dilation, opts->dilation, 1);
    fill_pair(m->opts.padding, opts->padding, 0);
    m->opts.groups = groups;
    trek_module_param(base, "weight", offsetof(conv2d_layer, weight),
                      trek_tensor_empty(trek_dims(opts->out, opts->in / groups, kernel[0], kernel[1]), opts->dtype,
                                        opts->device));
    if (!opts->no_bias)
        trek_module_param(base, "bias", offsetof(conv2d_layer, bias),
                          trek_tensor_empty(trek_dims(opts->out), opts->dtype, opts->device));
    return trek_layer_finish(base);
}

trek_module *trek_nn_conv2d(int64_t in, int64_t out, int64_t kernel, trek_device device)
{
    return trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = in, .out = out, .kernel = { kernel }, .device = device });
}
