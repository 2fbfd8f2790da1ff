/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions and transposed convolutions over one, two and three dimensions. All are one layer. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "autograd/ops.h"
#include "nn/layers_internal.h"
#include "nn/module_internal.h"
#include "nn/spatial.h"
#include "tensor/creation.h"
#include "tensor/shapes.h"

enum { PLAIN, TRANSPOSED, KINDS };

typedef struct conv_layer {
    trek_module base;
    trek_var *weight, *bias;
    int dims;
    int64_t in, out, kernel[3];
    trek_conv_transpose_opts opts; /* a plain convolution has no output padding */
    trek_pad_mode padding_mode;
    trek_padding padding_kind;
} conv_layer;

/* The options of all six layers. A list has as many numbers as the layer has dimensions. */
typedef struct conv_numbers {
    int64_t in, out, kernel[3], stride[3], padding[3], output_padding[3], dilation[3], groups;
    bool no_bias;
    trek_dtype dtype;
    trek_device device;
    trek_pad_mode padding_mode;
    trek_padding padding_kind;
} conv_numbers;

/* --- what a convolution computes -------------------------------------------------------------------- */

/* Pads x by a mode other than zeros, and removes the padding from *opts. Returns x itself for zeros. */
static trek_var *pad(const conv_layer *m, trek_var *x, trek_conv_opts *opts)
{
    if (m->padding_mode == TREK_PAD_MODE_CONSTANT)
        return x;
    trek_dims_list sizes = { .ndim = 2 * m->dims };
    bool any = false;
    for (int d = 0; d < m->dims; d++) {
        int64_t before = trek_option_integer(opts->padding[d], 0), after = before;
        if (opts->padding_kind == TREK_PADDING_SAME) {
            int64_t total = opts->dilation[d] * (m->kernel[d] - 1);
            before = total / 2;
            after = total - before;
        }
        sizes.sizes[2 * (m->dims - 1 - d)] = before;
        sizes.sizes[2 * (m->dims - 1 - d) + 1] = after;
        any = any || after > 0;
        opts->padding[d] = 0;
    }
    opts->padding_kind = TREK_PADDING_NUMBERS;
    return any ? trek_pad(x, sizes, m->padding_mode, 0) : x;
}

trek_var *trek_conv_layer_forward(trek_module *conv, trek_var *x, trek_activation activation)
{
    const conv_layer *m = (const conv_layer *)conv;
    trek_conv_opts opts = { .groups = m->opts.groups, .padding_kind = m->padding_kind };
    for (int d = 0; d < m->dims; d++) {
        opts.stride[d] = m->opts.stride[d];
        opts.padding[d] = m->opts.padding[d];
        opts.dilation[d] = m->opts.dilation[d];
    }
    x = pad(m, x, &opts);
    return m->dims == 2   ? trek_conv2d_activation(x, m->weight, m->bias, &opts, activation)
           : m->dims == 1 ? trek_conv1d(x, m->weight, m->bias, &opts)
                          : trek_conv3d(x, m->weight, m->bias, &opts);
}

static trek_var *conv_forward(trek_module *self, trek_var *x) { return trek_conv_layer_forward(self, x, TREK_ACTIVATION_NONE); }

static trek_var *run_transposed(const conv_layer *m, trek_var *x, const trek_conv_transpose_opts *opts)
{
    static trek_var *(*const run[3])(trek_var *, trek_var *, trek_var *,
                                     const trek_conv_transpose_opts *) = { trek_conv_transpose1d, trek_conv_transpose2d,
                                                                           trek_conv_transpose3d };
    return run[m->dims - 1](x, m->weight, m->bias, opts);
}

static trek_var *transposed_forward(trek_module *self, trek_var *x)
{
    const conv_layer *m = (const conv_layer *)self;
    return run_transposed(m, x, &m->opts);
}

/* The inputs are x and a tensor whose last sizes the result is to have. */
static trek_var *transposed_forward_many(trek_module *self, trek_var *const *inputs, int n)
{
    const conv_layer *m = (const conv_layer *)self;
    const char *name = self->own->klass->name;
    if (n > 2)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: inputs: %d; it takes x, and a tensor with the result's shape", name, n);
    if (n == 1 || !inputs[1])
        return transposed_forward(self, inputs[0]);
    trek_shape like = trek_var_shape(inputs[1]);
    char text[TREK_SHAPE_TEXT];
    if (like.ndim < m->dims)
        return trek_fail_null(TREK_ERR_SHAPE, "%s: result's shape: %s; must have %d dimensions or more", name,
                              trek_shape_format(like, text, sizeof text), m->dims);
    trek_conv_transpose_opts opts = m->opts;
    for (int d = 0; d < m->dims; d++) {
        opts.output_size[d] = like.sizes[like.ndim - m->dims + d];
        if (opts.output_size[d] == 0) /* 0 would leave the size to the layer */
            return trek_fail_null(TREK_ERR_SHAPE, "%s: result's shape: %s; must not be empty", name,
                                  trek_shape_format(like, text, sizeof text));
    }
    return run_transposed(m, inputs[0], &opts);
}

/* --- the classes -------------------------------------------------------------------------------------- */

/* Kaiming uniform with a = sqrt(5), as in PyTorch: the bounds are 1 / sqrt(fan in), where the fan in is the product
 * of all the weight's sizes except the first. This holds for transposed convolutions as well. */
static trek_status conv_reset(trek_module *self)
{
    const conv_layer *m = (const conv_layer *)self;
    trek_shape shape = trek_var_shape(m->weight);
    double fan = 1;
    for (int d = 1; d < shape.ndim; d++)
        fan *= (double)shape.sizes[d];
    double bound = 1 / sqrt(fan);
    trek_status status = trek_init_uniform(m->weight, -bound, bound);
    return status == TREK_OK && m->bias ? trek_init_uniform(m->bias, -bound, bound) : status;
}

static void conv_describe(const trek_module *self, char *text, size_t size)
{
    static const char *const modes[] = { "", ", reflect", ", replicate", ", circular" };
    const conv_layer *m = (const conv_layer *)self;
    char kernel[72], stride[72], padding[72], added[72];
    bool more = false;
    for (int d = 0; d < m->dims; d++)
        more = more || trek_option_integer(m->opts.output_padding[d], 0) > 0;
    snprintf(text, size, "%" PRId64 ", %" PRId64 ", kernel %s, stride %s, padding %s%s%s%s%s%s%s", m->in, m->out,
             trek_layer_list(m->kernel, m->dims, kernel, sizeof kernel),
             trek_layer_list(m->opts.stride, m->dims, stride, sizeof stride),
             trek_layer_list(m->opts.padding, m->dims, padding, sizeof padding),
             m->padding_kind == TREK_PADDING_SAME ? ", same" : "", modes[m->padding_mode], more ? ", output padding " : "",
             more ? trek_layer_list(m->opts.output_padding, m->dims, added, sizeof added) : "",
             m->opts.groups > 1 ? ", grouped" : "", m->bias ? "" : ", no bias");
}

static const char *const transposed_inputs[] = { "like", NULL };

#define CONV(name_)                                                                                                              \
    {                                                                                                                            \
        .name = name_, .size = sizeof(conv_layer), .forward = conv_forward, .reset = conv_reset, .describe = conv_describe, \
        .rowwise = true \
    }
#define TRANSPOSED_CONV(name_)                                                                                                   \
    {                                                                                                                            \
        .name = name_, .size = sizeof(conv_layer), .forward = transposed_forward, .forward_many = transposed_forward_many,       \
        .reset = conv_reset, .describe = conv_describe, .input_names = transposed_inputs                                         \
    }

const trek_module_class trek_conv_classes[3] = { CONV("conv1d"), CONV("conv2d"), CONV("conv3d") };
static const trek_module_class transposed_classes[3] = { TRANSPOSED_CONV("conv_transpose1d"), TRANSPOSED_CONV("conv_transpose2d"),
                                                         TRANSPOSED_CONV("conv_transpose3d") };

/* --- making one --------------------------------------------------------------------------------------- */

/* Fills in all numbers, so that the description and the hash do not depend on how an option was given. */
static void fill(int64_t *to, const int64_t *from, int dims, int64_t otherwise)
{
    for (int d = 0; d < dims; d++)
        to[d] = from[d] ? from[d] : d ? to[d - 1] : otherwise;
}

static conv_numbers fill_all(const conv_numbers *given, int dims)
{
    conv_numbers all = *given;
    all.groups = given->groups ? given->groups : 1;
    fill(all.kernel, given->kernel, dims, 0);
    fill(all.stride, given->stride, dims, 1);
    fill(all.dilation, given->dilation, dims, 1);
    trek_option_paddings(all.padding, given->padding, dims);
    trek_option_paddings(all.output_padding, given->output_padding, dims);
    return all;
}

static trek_status check_channels(const char *layer, const conv_numbers *o, int dims)
{
    trek_status status = trek_layer_positive(layer, "in", o->in);
    if (status == TREK_OK)
        status = trek_layer_positive(layer, "out", o->out);
    for (int d = 0; d < dims && status == TREK_OK; d++)
        status = trek_layer_positive(layer, "kernel", o->kernel[d]);
    if (status == TREK_OK)
        status = trek_layer_positive(layer, "groups", o->groups);
    if (status == TREK_OK && (o->in % o->groups != 0 || o->out % o->groups != 0))
        status = trek_fail(TREK_ERR_ARGUMENT, "%s: groups: %" PRId64 "; must divide %" PRId64 " channels in and %" PRId64 " out",
                           layer, o->groups, o->in, o->out);
    return status;
}

static trek_status check_padding(const char *layer, const conv_numbers *o, int dims)
{
    trek_status status = trek_option_check_paddings(layer, "padding", o->padding, dims);
    if (status == TREK_OK && (o->padding_mode < TREK_PAD_MODE_CONSTANT || o->padding_mode > TREK_PAD_MODE_CIRCULAR))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: mode of padding: %d; must be a value of trek_pad_mode", layer,
                         (int)o->padding_mode);
    if (status == TREK_OK && (o->padding_kind < TREK_PADDING_NUMBERS || o->padding_kind > TREK_PADDING_SAME))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: kind of padding: %d; must be a value of trek_padding", layer,
                         (int)o->padding_kind);
    for (int d = 0; d < dims && status == TREK_OK; d++) {
        if (o->padding_kind != TREK_PADDING_NUMBERS && trek_option_integer(o->padding[d], 0) != 0)
            return trek_fail(TREK_ERR_ARGUMENT, "%s: padding: %" PRId64 ", together with a kind of padding; give one of both",
                             layer, o->padding[d]);
        if (o->padding_kind == TREK_PADDING_SAME && o->stride[d] != 1)
            return trek_fail(TREK_ERR_ARGUMENT, "%s: stride: %" PRId64 "; padding to the same size needs a stride of 1", layer,
                             o->stride[d]);
    }
    return status;
}

static trek_status check_output_padding(const char *layer, const conv_numbers *o, int dims)
{
    trek_status status = trek_option_check_paddings(layer, "output padding", o->output_padding, dims);
    for (int d = 0; d < dims && status == TREK_OK; d++) {
        int64_t more = trek_option_integer(o->output_padding[d], 0);
        if (more > 0 && more >= o->stride[d] && more >= o->dilation[d])
            return trek_fail(TREK_ERR_ARGUMENT,
                             "%s: output padding: %" PRId64 "; must be smaller than stride (%" PRId64 ") or dilation (%" PRId64
                             ")",
                             layer, more, o->stride[d], o->dilation[d]);
    }
    return status;
}

static trek_module *add_params(trek_module *base, const conv_numbers *o, bool transposed, int dims)
{
    trek_shape shape = { .ndim = 2 + dims };
    shape.sizes[0] = transposed ? o->in : o->out;
    shape.sizes[1] = (transposed ? o->out : o->in) / o->groups;
    for (int d = 0; d < dims; d++)
        shape.sizes[2 + d] = o->kernel[d];
    trek_module_param(base, "weight", offsetof(conv_layer, weight), trek_tensor_empty(shape, o->dtype, o->device));
    if (!o->no_bias)
        trek_module_param(base, "bias", offsetof(conv_layer, bias), trek_tensor_empty(trek_dims(o->out), o->dtype, o->device));
    return trek_layer_finish(base);
}

static trek_module *conv_new(int kind, int dims, const conv_numbers *given)
{
    const trek_module_class *klass = kind == TRANSPOSED ? &transposed_classes[dims - 1] : &trek_conv_classes[dims - 1];
    if (!given)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: options: NULL; they must be given", klass->name);
    conv_numbers o = fill_all(given, dims);
    if (check_channels(klass->name, &o, dims) != TREK_OK || check_padding(klass->name, &o, dims) != TREK_OK ||
        check_output_padding(klass->name, &o, dims) != TREK_OK)
        return NULL;
    conv_layer *m = (conv_layer *)trek_module_new(klass);
    if (!m)
        return NULL;
    m->dims = dims;
    m->in = o.in;
    m->out = o.out;
    m->padding_mode = o.padding_mode;
    m->padding_kind = o.padding_kind;
    m->opts.groups = o.groups;
    for (int d = 0; d < dims; d++) {
        m->kernel[d] = o.kernel[d];
        m->opts.stride[d] = o.stride[d];
        m->opts.padding[d] = o.padding[d];
        m->opts.output_padding[d] = o.output_padding[d];
        m->opts.dilation[d] = o.dilation[d];
    }
    return add_params(&m->base, &o, kind == TRANSPOSED, dims);
}

/* --- the layers by name: L1 to L3 make a list of the number, or of the numbers, of an option ---------- */

#define L1(x)                                                                                                                    \
    {                                                                                                                            \
        (x)                                                                                                                      \
    }
#define L2(x)                                                                                                                    \
    {                                                                                                                            \
        (x)[0], (x)[1]                                                                                                           \
    }
#define L3(x)                                                                                                                    \
    {                                                                                                                            \
        (x)[0], (x)[1], (x)[2]                                                                                                   \
    }
#define NUMBERS(L)                                                                                                               \
    .in = opts->in, .out = opts->out, .kernel = L(opts->kernel), .stride = L(opts->stride), .padding = L(opts->padding),         \
    .dilation = L(opts->dilation), .groups = opts->groups, .no_bias = opts->no_bias, .dtype = opts->dtype,                       \
    .device = opts->device
#define PLAIN_OPTS(L)                                                                                                            \
    opts ? &(conv_numbers){ NUMBERS(L), .padding_mode = opts->padding_mode, .padding_kind = opts->padding_kind } : NULL
#define TRANSPOSED_OPTS(L) opts ? &(conv_numbers){ NUMBERS(L), .output_padding = L(opts->output_padding) } : NULL

static trek_module *usual(int kind, int dims, int64_t in, int64_t out, int64_t kernel, trek_device device)
{
    return conv_new(kind, dims, &(conv_numbers){ .in = in, .out = out, .kernel = { kernel }, .device = device });
}

trek_module *trek_nn_conv1d_with(const trek_conv1d_opts *opts) { return conv_new(PLAIN, 1, PLAIN_OPTS(L1)); }
trek_module *trek_nn_conv1d(int64_t in, int64_t out, int64_t kernel, trek_device device)
{
    return usual(PLAIN, 1, in, out, kernel, device);
}
trek_module *trek_nn_conv_transpose1d_with(const trek_conv_transpose1d_opts *opts)
{
    return conv_new(TRANSPOSED, 1, TRANSPOSED_OPTS(L1));
}
trek_module *trek_nn_conv_transpose1d(int64_t in, int64_t out, int64_t kernel, trek_device device)
{
    return usual(TRANSPOSED, 1, in, out, kernel, device);
}

trek_module *trek_nn_conv2d_with(const trek_conv2d_opts *opts) { return conv_new(PLAIN, 2, PLAIN_OPTS(L2)); }
trek_module *trek_nn_conv2d(int64_t in, int64_t out, int64_t kernel, trek_device device)
{
    return usual(PLAIN, 2, in, out, kernel, device);
}
trek_module *trek_nn_conv_transpose2d_with(const trek_conv_transpose2d_opts *opts)
{
    return conv_new(TRANSPOSED, 2, TRANSPOSED_OPTS(L2));
}
trek_module *trek_nn_conv_transpose2d(int64_t in, int64_t out, int64_t kernel, trek_device device)
{
    return usual(TRANSPOSED, 2, in, out, kernel, device);
}

trek_module *trek_nn_conv3d_with(const trek_conv3d_opts *opts) { return conv_new(PLAIN, 3, PLAIN_OPTS(L3)); }
trek_module *trek_nn_conv3d(int64_t in, int64_t out, int64_t kernel, trek_device device)
{
    return usual(PLAIN, 3, in, out, kernel, device);
}
trek_module *trek_nn_conv_transpose3d_with(const trek_conv_transpose3d_opts *opts)
{
    return conv_new(TRANSPOSED, 3, TRANSPOSED_OPTS(L3));
}
trek_module *trek_nn_conv_transpose3d(int64_t in, int64_t out, int64_t kernel, trek_device device)
{
    return usual(TRANSPOSED, 3, in, out, kernel, device);
}
