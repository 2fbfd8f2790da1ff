/* SPDX-License-Identifier: Apache-2.0 */
/* Two-dimensional convolution and transposed convolution. */
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
    trek_pad_mode padding_mode;
} conv2d_layer;

/* Kaiming uniform with a = sqrt(5), as in PyTorch: the bounds are 1 / sqrt(fan in), where the fan in is the product
 * of all the weight's sizes except the first. This holds for transposed convolutions as well. */
trek_status trek_conv_reset(trek_var *weight, trek_var *bias)
{
    trek_shape shape = trek_var_shape(weight);
    double fan = 1;
    for (int d = 1; d < shape.ndim; d++)
        fan *= (double)shape.sizes[d];
    double bound = 1 / sqrt(fan);
    trek_status status = trek_init_uniform(weight, -bound, bound);
    return status == TREK_OK && bias ? trek_init_uniform(bias, -bound, bound) : status;
}

trek_var *trek_conv2d_layer_forward(trek_module *conv, trek_var *x, trek_activation activation)
{
    conv2d_layer *m = (conv2d_layer *)conv;
    trek_conv_opts opts = m->opts;
    x = trek_conv_padded(x, m->kernel, 2, m->padding_mode, &opts);
    return trek_conv2d_activation(x, m->weight, m->bias, &opts, activation);
}

static trek_var *conv2d_forward(trek_module *self, trek_var *x)
{
    return trek_conv2d_layer_forward(self, x, TREK_ACTIVATION_NONE);
}

static trek_status conv2d_reset(trek_module *self)
{
    conv2d_layer *m = (conv2d_layer *)self;
    return trek_conv_reset(m->weight, m->bias);
}

static void conv2d_describe(const trek_module *self, char *text, size_t size)
{
    const conv2d_layer *m = (const conv2d_layer *)self;
    const trek_conv_opts *o = &m->opts;
    snprintf(text, size,
             "%" PRId64 ", %" PRId64 ", kernel %" PRId64 "x%" PRId64 ", stride %" PRId64 "x%" PRId64 ", padding %" PRId64
             "x%" PRId64 "%s%s%s%s",
             m->in, m->out, m->kernel[0], m->kernel[1], o->stride[0], o->stride[1], trek_option_integer(o->padding[0], 0),
             trek_option_integer(o->padding[1], 0), trek_conv_kind_text(o->padding_kind), trek_conv_padding_text(m->padding_mode),
             o->groups > 1 ? ", grouped" : "",
             m->bias ? "" : ", no bias");
}

const trek_module_class trek_conv2d_class = {
    .name = "conv2d",
    .size = sizeof(conv2d_layer),
    .forward = conv2d_forward,
    .reset = conv2d_reset,
    .describe = conv2d_describe,
};

/* Fills in both sizes, so that the description and the hash do not depend on how the option was given. */
static void fill_pair(int64_t to[2], const int64_t from[2], int64_t otherwise)
{
    to[0] = from[0] ? from[0] : otherwise;
    to[1] = from[1] ? from[1] : to[0];
}

const char *trek_conv_padding_text(trek_pad_mode mode)
{
    static const char *const texts[] = { "", ", reflect", ", replicate", ", circular" };
    return texts[mode];
}

const char *trek_conv_kind_text(trek_padding kind) { return kind == TREK_PADDING_SAME ? ", same" : ""; }

trek_var *trek_conv_padded(trek_var *x, const int64_t *kernel, int dims, trek_pad_mode mode, trek_conv_opts *opts)
{
    if (mode == TREK_PAD_MODE_CONSTANT)
        return x;
    trek_dims_list sizes = { .ndim = 2 * dims };
    bool any = false;
    for (int d = 0; d < dims; d++) {
        int64_t before = trek_option_integer(opts->padding[d], 0), after = before;
        if (opts->padding_kind == TREK_PADDING_SAME) {
            int64_t total = opts->dilation[d] * (kernel[d] - 1);
            before = total / 2;
            after = total - before;
        }
        sizes.sizes[2 * (dims - 1 - d)] = before;
        sizes.sizes[2 * (dims - 1 - d) + 1] = after;
        any = any || after > 0;
        opts->padding[d] = 0;
    }
    opts->padding_kind = TREK_PADDING_NUMBERS;
    return any ? trek_pad(x, sizes, mode, 0) : x;
}

trek_status trek_conv_check_kind(const char *layer, trek_padding kind, const int64_t *padding, const int64_t *stride, int dims)
{
    if (kind < TREK_PADDING_NUMBERS || kind > TREK_PADDING_SAME)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: kind of padding: %d; must be a value of trek_padding", layer, (int)kind);
    for (int d = 0; d < dims; d++) {
        if (kind != TREK_PADDING_NUMBERS && trek_option_integer(padding[d], 0) != 0)
            return trek_fail(TREK_ERR_ARGUMENT, "%s: padding: %" PRId64 ", together with a kind of padding; give one of both",
                             layer, padding[d]);
        if (kind == TREK_PADDING_SAME && stride[d] != 1)
            return trek_fail(TREK_ERR_ARGUMENT, "%s: stride: %" PRId64 "; padding to the same size needs a stride of 1", layer,
                             stride[d]);
    }
    return TREK_OK;
}

trek_status trek_conv_check(const char *layer, int64_t in, int64_t out, int64_t groups, const int64_t kernel[2],
                            const int64_t *padding, int dims, trek_pad_mode mode)
{
    trek_status status = trek_layer_positive(layer, "in", in);
    if (status == TREK_OK)
        status = trek_layer_positive(layer, "out", out);
    if (status == TREK_OK)
        status = trek_layer_positive(layer, "kernel", kernel[0] < kernel[1] ? kernel[0] : kernel[1]);
    if (status == TREK_OK)
        status = trek_layer_positive(layer, "groups", groups);
    if (status == TREK_OK)
        status = trek_option_check_paddings(layer, "padding", padding, dims);
    if (status == TREK_OK && (mode < TREK_PAD_MODE_CONSTANT || mode > TREK_PAD_MODE_CIRCULAR))
        status = trek_fail(TREK_ERR_ARGUMENT, "%s: mode of padding: %d; must be a value of trek_pad_mode", layer, (int)mode);
    if (status == TREK_OK && (in % groups != 0 || out % groups != 0))
        status = trek_fail(TREK_ERR_ARGUMENT, "%s: groups: %" PRId64 "; must divide %" PRId64 " channels in and %" PRId64 " out",
                           layer, groups, in, out);
    return status;
}

trek_module *trek_nn_conv2d_with(const trek_conv2d_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "conv2d: options: NULL; they must be given");
    int64_t kernel[2], groups = opts->groups ? opts->groups : 1;
    trek_conv_opts numbers = { .groups = groups, .padding_kind = opts->padding_kind };
    fill_pair(kernel, opts->kernel, 0);
    fill_pair(numbers.stride, opts->stride, 1);
    fill_pair(numbers.dilation, opts->dilation, 1);
    trek_option_paddings(numbers.padding, opts->padding, 2);
    if (trek_conv_check("conv2d", opts->in, opts->out, groups, kernel, numbers.padding, 2, opts->padding_mode) != TREK_OK ||
        trek_conv_check_kind("conv2d", opts->padding_kind, numbers.padding, numbers.stride, 2) != TREK_OK)
        return NULL;
    trek_module *base = trek_module_new(&trek_conv2d_class);
    if (!base)
        return NULL;
    conv2d_layer *m = (conv2d_layer *)base;
    m->in = opts->in;
    m->out = opts->out;
    m->kernel[0] = kernel[0];
    m->kernel[1] = kernel[1];
    m->opts = numbers;
    m->padding_mode = opts->padding_mode;
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

/* --- transposed ------------------------------------------------------------------------------ */

typedef struct conv_transpose2d_layer {
    trek_module base;
    trek_var *weight, *bias;
    int64_t in, out, kernel[2];
    trek_conv_transpose_opts opts;
} conv_transpose2d_layer;

static trek_var *conv_transpose2d_forward(trek_module *self, trek_var *x)
{
    conv_transpose2d_layer *m = (conv_transpose2d_layer *)self;
    return trek_conv_transpose2d(x, m->weight, m->bias, &m->opts);
}

/* The inputs are x and a tensor whose height and width the result is to have. */
static trek_var *conv_transpose2d_forward_many(trek_module *self, trek_var *const *inputs, int n)
{
    conv_transpose2d_layer *m = (conv_transpose2d_layer *)self;
    if (n > 2)
        return trek_fail_null(TREK_ERR_ARGUMENT, "conv_transpose2d: inputs: %d; it takes x, and a tensor with the result's shape",
                              n);
    if (n == 1 || !inputs[1])
        return conv_transpose2d_forward(self, inputs[0]);
    trek_shape like = trek_var_shape(inputs[1]);
    char text[TREK_SHAPE_TEXT];
    if (like.ndim < 2)
        return trek_fail_null(TREK_ERR_SHAPE, "conv_transpose2d: result's shape: %s; must have height and width",
                              trek_shape_format(like, text, sizeof text));
    trek_conv_transpose_opts opts = m->opts;
    opts.output_size[0] = like.sizes[like.ndim - 2];
    opts.output_size[1] = like.sizes[like.ndim - 1];
    if (opts.output_size[0] == 0 || opts.output_size[1] == 0) /* 0 would leave the size to the layer */
        return trek_fail_null(TREK_ERR_SHAPE, "conv_transpose2d: result's shape: %s; must not be empty",
                              trek_shape_format(like, text, sizeof text));
    return trek_conv_transpose2d(inputs[0], m->weight, m->bias, &opts);
}

static trek_status conv_transpose2d_reset(trek_module *self)
{
    conv_transpose2d_layer *m = (conv_transpose2d_layer *)self;
    return trek_conv_reset(m->weight, m->bias);
}

static void conv_transpose2d_describe(const trek_module *self, char *text, size_t size)
{
    const conv_transpose2d_layer *m = (const conv_transpose2d_layer *)self;
    const trek_conv_transpose_opts *o = &m->opts;
    char more[64] = "";
    int64_t rows = trek_option_integer(o->output_padding[0], 0), columns = trek_option_integer(o->output_padding[1], 0);
    if (rows > 0 || columns > 0)
        snprintf(more, sizeof more, ", output padding %" PRId64 "x%" PRId64, rows, columns);
    snprintf(text, size,
             "%" PRId64 ", %" PRId64 ", kernel %" PRId64 "x%" PRId64 ", stride %" PRId64 "x%" PRId64 ", padding %" PRId64
             "x%" PRId64 "%s%s%s",
             m->in, m->out, m->kernel[0], m->kernel[1], o->stride[0], o->stride[1], trek_option_integer(o->padding[0], 0),
             trek_option_integer(o->padding[1], 0), more, o->groups > 1 ? ", grouped" : "", m->bias ? "" : ", no bias");
}

static const char *const conv_transpose2d_inputs[] = { "like", NULL };

static const trek_module_class conv_transpose2d_class = {
    .name = "conv_transpose2d",
    .size = sizeof(conv_transpose2d_layer),
    .forward = conv_transpose2d_forward,
    .forward_many = conv_transpose2d_forward_many,
    .reset = conv_transpose2d_reset,
    .describe = conv_transpose2d_describe,
    .input_names = conv_transpose2d_inputs,
};

static trek_status check_output_padding(const trek_conv_transpose_opts *o)
{
    for (int d = 0; d < 2; d++) {
        int64_t more = trek_option_integer(o->output_padding[d], 0);
        if (more >= o->stride[d] && more >= o->dilation[d])
            return trek_fail(TREK_ERR_ARGUMENT,
                             "conv_transpose2d: output padding: %" PRId64 "; must be smaller than stride (%" PRId64
                             ") or dilation (%" PRId64 ")",
                             more, o->stride[d], o->dilation[d]);
    }
    return TREK_OK;
}

trek_module *trek_nn_conv_transpose2d_with(const trek_conv_transpose2d_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "conv_transpose2d: options: NULL; they must be given");
    int64_t kernel[2];
    trek_conv_transpose_opts numbers = { .groups = opts->groups ? opts->groups : 1 };
    fill_pair(kernel, opts->kernel, 0);
    fill_pair(numbers.stride, opts->stride, 1);
    fill_pair(numbers.dilation, opts->dilation, 1);
    trek_option_paddings(numbers.padding, opts->padding, 2);
    trek_option_paddings(numbers.output_padding, opts->output_padding, 2);
    if (trek_conv_check("conv_transpose2d", opts->in, opts->out, numbers.groups, kernel, numbers.padding, 2,
                        TREK_PAD_MODE_CONSTANT) != TREK_OK ||
        trek_option_check_paddings("conv_transpose2d", "output padding", numbers.output_padding, 2) != TREK_OK ||
        check_output_padding(&numbers) != TREK_OK)
        return NULL;
    trek_module *base = trek_module_new(&conv_transpose2d_class);
    if (!base)
        return NULL;
    conv_transpose2d_layer *m = (conv_transpose2d_layer *)base;
    m->in = opts->in;
    m->out = opts->out;
    m->kernel[0] = kernel[0];
    m->kernel[1] = kernel[1];
    m->opts = numbers;
    trek_module_param(base, "weight", offsetof(conv_transpose2d_layer, weight),
                      trek_tensor_empty(trek_dims(opts->in, opts->out / numbers.groups, kernel[0], kernel[1]), opts->dtype,
                                        opts->device));
    if (!opts->no_bias)
        trek_module_param(base, "bias", offsetof(conv_transpose2d_layer, bias),
                          trek_tensor_empty(trek_dims(opts->out), opts->dtype, opts->device));
    return trek_layer_finish(base);
}

trek_module *trek_nn_conv_transpose2d(int64_t in, int64_t out, int64_t kernel, trek_device device)
{
    return trek_nn_conv_transpose2d_with(
        &(trek_conv_transpose2d_opts){ .in = in, .out = out, .kernel = { kernel }, .device = device });
}
