/* SPDX-License-Identifier: Apache-2.0 */
/* The linear layer. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "autograd/ops.h"
#include "nn/layers_internal.h"
#include "nn/module_internal.h"

/* Its weights are in place. */
static trek_var *linear_forward(trek_module *self, trek_var *x)
{
    trek_linear_layer *m = (trek_linear_layer *)self;
    return trek_linear(x, m->weight, m->bias);
}

trek_var *trek_linear_layer_run(trek_module *linear, trek_var *x, trek_activation activation)
{
    const trek_linear_layer *m = (const trek_linear_layer *)linear;
    trek_var *y =
        trek_weights_make(linear) == TREK_OK ? trek_linear_activation(x, m->weight, m->bias, activation) : NULL;
    trek_weights_drop(linear);
    return y;
}

/* PyTorch's default: kaiming_uniform with slope sqrt(5), which is U(-b, b), b = 1 / sqrt(fan_in). */
static trek_status linear_reset(trek_module *self)
{
    trek_linear_layer *m = (trek_linear_layer *)self;
    double bound = 1 / sqrt((double)m->in);
    trek_status status = trek_init_uniform(m->weight, -bound, bound);
    return status == TREK_OK && m->bias ? trek_init_uniform(m->bias, -bound, bound) : status;
}

static void linear_describe(const trek_module *self, char *text, size_t size)
{
    const trek_linear_layer *m = (const trek_linear_layer *)self;
    snprintf(text, size, "%" PRId64 ", %" PRId64 "%s", m->in, m->out, m->bias ? "" : ", no bias");
}

const trek_module_class trek_linear_class = {
    .name = "linear",
    .size = sizeof(trek_linear_layer),
    .forward = linear_forward,
    .reset = linear_reset,
    .describe = linear_describe,
};

trek_module *trek_nn_linear_with(const trek_linear_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "linear: needs options");
    if (trek_layer_positive("linear", "in", opts->in) != TREK_OK || trek_layer_positive("linear", "out", opts->out) != TREK_OK)
        return NULL;
    trek_module *base = trek_module_new(&trek_linear_class);
    if (!base)
        return NULL;
    trek_linear_layer *m = (trek_linear_layer *)base;
    m->in = opts->in;
    m->out = opts->out;
    trek_module_param(base, "weight", offsetof(trek_linear_layer, weight),
                      trek_tensor_empty(trek_dims(opts->out, opts->in), opts->dtype, opts->device));
    if (!opts->no_bias)
        trek_module_param(base, "bias", offsetof(trek_linear_layer, bias),
                          trek_tensor_empty(trek_dims(opts->out), opts->dtype, opts->device));
    return trek_layer_finish(base);
}

trek_module *trek_nn_linear(int64_t in, int64_t out, trek_device device)
{
    return trek_nn_linear_with(&(trek_linear_opts){ .in = in, .out = out, .device = device });
}
