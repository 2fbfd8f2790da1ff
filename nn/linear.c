/* SPDX-License-Identifier: Apache-2.0 */
/* The linear layer. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "nn/layers_internal.h"
#include "nn/module_internal.h"
#include "nn/watch.h"
#include "tensor/creation.h"
#include "tensor/memory_internal.h"

/* Returns y plus the adapter's result for x. The factor is applied where there are the fewest numbers. */
static trek_var *adapted(const trek_linear_layer *m, trek_var *x, trek_var *y)
{
    const trek_lora_adapter *lora = m->lora;
    if (m->base.own->training && lora->dropout > 0)
        x = trek_dropout(x, lora->dropout, true);
    if (x && trek_var_dtype(x) != lora->dtype && trek_autocast_dtype() == TREK_F32)
        x = trek_cast(x, lora->dtype);
    trek_var *inner = trek_forward(lora->a, x);
    if (lora->scale != 1)
        inner = trek_mul_scalar(inner, lora->scale);
    trek_var *sum = trek_add(y, trek_forward(lora->b, inner));
    return sum && trek_var_dtype(sum) != trek_var_dtype(y) ? trek_cast(sum, trek_var_dtype(y)) : sum;
}

/* Runs the layer; its weights are in place. */
static trek_var *run(trek_linear_layer *m, trek_var *x, trek_activation activation)
{
    bool plain = !m->lora || m->base.own->merged;
    if (plain && !m->base.own->fp8)
        return trek_linear_activation(x, m->weight, m->bias, activation);
    trek_var *y = trek_module_linear(&m->base, x, m->weight, m->bias);
    y = y && !plain ? adapted(m, x, y) : y;
    return activation == TREK_ACTIVATION_RELU ? trek_relu(y) : activation == TREK_ACTIVATION_GELU ? trek_gelu(y) : y;
}

static trek_var *linear_forward(trek_module *self, trek_var *x)
{
    trek_linear_layer *m = (trek_linear_layer *)self;
    return m->lora || self->own->fp8 ? run(m, x, TREK_ACTIVATION_NONE) : trek_linear(x, m->weight, m->bias);
}

trek_var *trek_linear_layer_forward(trek_module *linear, trek_var *x, trek_activation activation)
{
    return run((trek_linear_layer *)linear, x, activation);
}

static void linear_free(trek_module *self) { trek_free(((trek_linear_layer *)self)->lora); }

/* PyTorch's default: kaiming_uniform with slope sqrt(5), which is U(-b, b) with b = 1 / sqrt(fan_in). */
static trek_status linear_reset(trek_module *self)
{
    trek_linear_layer *m = (trek_linear_layer *)self;
    double bound = 1 / sqrt((double)m->in);
    trek_status status = trek_init_uniform(m->weight, -bound, bound);
    if (status == TREK_OK && m->bias)
        status = trek_init_uniform(m->bias, -bound, bound);
    self->own->merged = false;
    return status == TREK_OK && m->lora ? trek_init_zeros(((const trek_linear_layer *)m->lora->b)->weight) : status;
}

static void linear_describe(const trek_module *self, char *text, size_t size)
{
    const trek_linear_layer *m = (const trek_linear_layer *)self;
    int n = snprintf(text, size, "%" PRId64 ", %" PRId64 "%s", m->in, m->out, m->bias ? "" : ", no bias");
    char alpha[32], dropout[32];
    if (m->lora && n > 0 && (size_t)n < size)
        snprintf(text + n, size - (size_t)n, ", lora r %" PRId64 ", alpha %s, dropout %s%s", m->lora->r,
                 trek_layer_number(m->lora->alpha, alpha), trek_layer_number(m->lora->dropout, dropout),
                 self->own->merged ? ", merged" : "");
}

const trek_module_class trek_linear_class = {
    .name = "linear",
    .size = sizeof(trek_linear_layer),
    .forward = linear_forward,
    .free = linear_free,
    .reset = linear_reset,
    .describe = linear_describe,
    .rowwise = true,
};

trek_module *trek_nn_linear_with(const trek_linear_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "linear: options: NULL; they must be given");
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
