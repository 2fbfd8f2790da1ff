/* SPDX-License-Identifier: Apache-2.0 */
/* The bilinear layer. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "autograd/ops.h"
#include "nn/layers_internal.h"
#include "tensor/creation.h"

typedef struct bilinear_layer {
    trek_module base;
    trek_var *weight, *bias; /* bias may be NULL */
    int64_t in1, in2, out;
} bilinear_layer;

static trek_var *bilinear_forward_many(trek_module *self, trek_var *const *inputs, int n)
{
    bilinear_layer *m = (bilinear_layer *)self;
    if (n != 2)
        return trek_fail_null(TREK_ERR_ARGUMENT, "bilinear: inputs: %d; must be 2", n);
    return trek_bilinear(inputs[0], inputs[1], m->weight, m->bias);
}

static trek_status bilinear_reset(trek_module *self)
{
    bilinear_layer *m = (bilinear_layer *)self;
    double bound = 1 / sqrt((double)m->in1);
    trek_status status = trek_init_uniform(m->weight, -bound, bound);
    return status == TREK_OK && m->bias ? trek_init_uniform(m->bias, -bound, bound) : status;
}

static void bilinear_describe(const trek_module *self, char *text, size_t size)
{
    const bilinear_layer *m = (const bilinear_layer *)self;
    snprintf(text, size, "%" PRId64 ", %" PRId64 ", %" PRId64 "%s", m->in1, m->in2, m->out, m->bias ? "" : ", no bias");
}

static const char *const bilinear_inputs[] = { "second", NULL };
static const trek_module_class bilinear_class = {
    .name = "bilinear",
    .size = sizeof(bilinear_layer),
    .forward_many = bilinear_forward_many,
    .reset = bilinear_reset,
    .describe = bilinear_describe,
    .input_names = bilinear_inputs,
};

trek_module *trek_nn_bilinear_with(const trek_bilinear_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "bilinear: options: NULL; they must be given");
    if (trek_layer_positive("bilinear", "in1", opts->in1) != TREK_OK ||
        trek_layer_positive("bilinear", "in2", opts->in2) != TREK_OK ||
        trek_layer_positive("bilinear", "out", opts->out) != TREK_OK)
        return NULL;
    trek_module *base = trek_module_new(&bilinear_class);
    if (!base)
        return NULL;
    bilinear_layer *m = (bilinear_layer *)base;
    m->in1 = opts->in1;
    m->in2 = opts->in2;
    m->out = opts->out;
    trek_module_param(base, "weight", offsetof(bilinear_layer, weight),
                      trek_tensor_empty(trek_dims(opts->out, opts->in1, opts->in2), opts->dtype, opts->device));
    if (!opts->no_bias)
        trek_module_param(base, "bias", offsetof(bilinear_layer, bias),
                          trek_tensor_empty(trek_dims(opts->out), opts->dtype, opts->device));
    return trek_layer_finish(base);
}

trek_module *trek_nn_bilinear(int64_t in1, int64_t in2, int64_t out, trek_device device)
{
    return trek_nn_bilinear_with(&(trek_bilinear_opts){ .in1 = in1, .in2 = in2, .out = out, .device = device });
}
