/* SPDX-License-Identifier: Apache-2.0 */
/* Activations and dropout: layers without parameters that work element by element or along one dimension. */
#include <limits.h>
#include <stdio.h>

#include "autograd/ops.h"
#include "nn/layers_internal.h"
#include "nn/module_internal.h"

/* --- without options ------------------------------------------------------ */

static trek_var *relu_forward(trek_module *self, trek_var *x) { return (void)self, trek_relu(x); }
static trek_var *gelu_forward(trek_module *self, trek_var *x) { return (void)self, trek_gelu(x); }
static trek_var *gelu_tanh_forward(trek_module *self, trek_var *x) { return (void)self, trek_gelu_tanh(x); }
static trek_var *silu_forward(trek_module *self, trek_var *x) { return (void)self, trek_silu(x); }
static trek_var *tanh_forward(trek_module *self, trek_var *x) { return (void)self, trek_tanh(x); }
static trek_var *sigmoid_forward(trek_module *self, trek_var *x) { return (void)self, trek_sigmoid(x); }

static void gelu_tanh_describe(const trek_module *self, char *text, size_t size)
{
    (void)self;
    snprintf(text, size, "tanh");
}

const trek_module_class trek_relu_class = { .name = "relu", .size = sizeof(trek_module), .forward = relu_forward,
                                            .rowwise = true };
const trek_module_class trek_gelu_class = { .name = "gelu", .size = sizeof(trek_module), .forward = gelu_forward,
                                            .rowwise = true };
static const trek_module_class gelu_tanh_class = {
    .name = "gelu",
    .size = sizeof(trek_module),
    .forward = gelu_tanh_forward,
    .describe = gelu_tanh_describe,
};
static const trek_module_class silu_class = { .name = "silu", .size = sizeof(trek_module), .forward = silu_forward,
                                              .rowwise = true };
static const trek_module_class tanh_class = { .name = "tanh", .size = sizeof(trek_module), .forward = tanh_forward,
                                              .rowwise = true };
static const trek_module_class sigmoid_class = { .name = "sigmoid", .size = sizeof(trek_module), .forward = sigmoid_forward,
                                                 .rowwise = true };

trek_module *trek_nn_relu(void) { return trek_module_new(&trek_relu_class); }
trek_module *trek_nn_gelu(void) { return trek_module_new(&trek_gelu_class); }
trek_module *trek_nn_gelu_with(const trek_gelu_opts *opts)
{
    return trek_module_new(opts && opts->tanh ? &gelu_tanh_class : &trek_gelu_class);
}
trek_module *trek_nn_silu(void) { return trek_module_new(&silu_class); }
trek_module *trek_nn_tanh(void) { return trek_module_new(&tanh_class); }
trek_module *trek_nn_sigmoid(void) { return trek_module_new(&sigmoid_class); }

/* --- with one number ------------------------------------------------------- */

typedef struct number_layer {
    trek_module base;
    double value;
} number_layer;

static trek_var *leaky_relu_forward(trek_module *self, trek_var *x) { return trek_leaky_relu(x, ((number_layer *)self)->value); }

static trek_var *dropout_forward(trek_module *self, trek_var *x)
{
    double p = ((number_layer *)self)->value;
    return self->own->training && p > 0 ? trek_dropout(x, p, true) : x;
}

static void number_describe(const trek_module *self, char *text, size_t size)
{
    char number[32];
    snprintf(text, size, "%s", trek_layer_number(((const number_layer *)self)->value, number));
}

static const trek_module_class leaky_relu_class = {
    .name = "leaky_relu",
    .size = sizeof(number_layer),
    .forward = leaky_relu_forward,
    .rowwise = true,
    .describe = number_describe,
};

const trek_module_class trek_dropout_class = {
    .name = "dropout",
    .size = sizeof(number_layer),
    .forward = dropout_forward,
    .rowwise = true,
    .describe = number_describe,
};

static trek_module *number_new(const trek_module_class *klass, double value)
{
    trek_module *base = trek_module_new(klass);
    if (base)
        ((number_layer *)base)->value = value;
    return base;
}

trek_module *trek_nn_leaky_relu(double negative_slope)
{
    return number_new(&leaky_relu_class, negative_slope == TREK_ZERO ? 0 : negative_slope);
}

trek_module *trek_nn_leaky_relu_with(const trek_leaky_relu_opts *opts)
{
    return trek_nn_leaky_relu(trek_option(opts ? opts->negative_slope : 0, 0.01));
}

trek_module *trek_nn_dropout(double p)
{
    if (p == TREK_ZERO)
        p = 0;
    if (!(p >= 0 && p <= 1)) {
        char number[32];
        return trek_fail_null(TREK_ERR_ARGUMENT, "dropout: p: %s; must be inside [0, 1]", trek_layer_number(p, number));
    }
    return number_new(&trek_dropout_class, p);
}

trek_module *trek_nn_dropout_with(const trek_dropout_opts *opts) { return trek_nn_dropout(trek_option(opts ? opts->p : 0, 0.5)); }

/* --- along one dimension ------------------------------------------------------ */

typedef struct dim_layer {
    trek_module base;
    int dim;
} dim_layer;

static trek_var *softmax_forward(trek_module *self, trek_var *x) { return trek_softmax(x, ((dim_layer *)self)->dim); }
static trek_var *log_softmax_forward(trek_module *self, trek_var *x) { return trek_log_softmax(x, ((dim_layer *)self)->dim); }

static void dim_describe(const trek_module *self, char *text, size_t size)
{
    snprintf(text, size, "dim %d", ((const dim_layer *)self)->dim);
}

static const trek_module_class softmax_class = {
    .name = "softmax",
    .size = sizeof(dim_layer),
    .forward = softmax_forward,
    .describe = dim_describe,
};

static const trek_module_class log_softmax_class = {
    .name = "log_softmax",
    .size = sizeof(dim_layer),
    .forward = log_softmax_forward,
    .describe = dim_describe,
};

static trek_module *dim_new(const trek_module_class *klass, int dim)
{
    trek_module *base = trek_module_new(klass);
    if (base)
        ((dim_layer *)base)->dim = dim;
    return base;
}

static int option_dim(const trek_softmax_opts *opts) { return (int)trek_option_integer(opts ? opts->dim : 0, -1); }

trek_module *trek_nn_softmax(int dim) { return dim_new(&softmax_class, dim); }
trek_module *trek_nn_softmax_with(const trek_softmax_opts *opts) { return dim_new(&softmax_class, option_dim(opts)); }
trek_module *trek_nn_log_softmax(int dim) { return dim_new(&log_softmax_class, dim); }
trek_module *trek_nn_log_softmax_with(const trek_softmax_opts *opts) { return dim_new(&log_softmax_class, option_dim(opts)); }
