/* SPDX-License-Identifier: Apache-2.0 */
/* Layer normalisation. */
#include <stdio.h>

#include "autograd/ops.h"
#include "nn/layers_internal.h"
#include "tensor/creation.h"
#include "tensor/shapes.h"

typedef struct layer_norm_layer {
    trek_module base;
    trek_var *weight, *bias; /* each may be NULL */
    trek_shape shape;
    double eps;
} layer_norm_layer;

static trek_var *layer_norm_forward(trek_module *self, trek_var *x)
{
    layer_norm_layer *m = (layer_norm_layer *)self;
    int ndim = trek_var_ndim(x), lead = ndim - m->shape.ndim;
    bool fits = lead >= 0;
    for (int d = 0; fits && d < m->shape.ndim; d++)
        fits = trek_var_size(x, lead + d) == m->shape.sizes[d];
    if (!fits) {
        char got[TREK_SHAPE_TEXT], wanted[TREK_SHAPE_TEXT];
        return trek_fail_null(TREK_ERR_SHAPE, "layer_norm: input: %s; the last dimensions must be %s",
                              trek_shape_format(trek_var_shape(x), got, sizeof got),
                              trek_shape_format(m->shape, wanted, sizeof wanted));
    }
    return trek_layer_norm(x, m->shape.ndim, m->weight, m->bias, m->eps);
}

static trek_status layer_norm_reset(trek_module *self)
{
    layer_norm_layer *m = (layer_norm_layer *)self;
    trek_status status = m->weight ? trek_init_ones(m->weight) : TREK_OK;
    return status == TREK_OK && m->bias ? trek_init_zeros(m->bias) : status;
}

static void layer_norm_describe(const trek_module *self, char *text, size_t size)
{
    const layer_norm_layer *m = (const layer_norm_layer *)self;
    char shape[TREK_SHAPE_TEXT], eps[32];
    snprintf(text, size, "%s, eps %s%s", trek_shape_format(m->shape, shape, sizeof shape), trek_layer_number(m->eps, eps),
             !m->weight ? ", no affine" : !m->bias ? ", no bias" : "");
}

static const trek_module_class layer_norm_class = {
    .name = "layer_norm",
    .size = sizeof(layer_norm_layer),
    .forward = layer_norm_forward,
    .reset = layer_norm_reset,
    .describe = layer_norm_describe,
    .rowwise = true,
};

trek_module *trek_nn_layer_norm_with(const trek_layer_norm_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "layer_norm: options: NULL; they must be given");
    double eps = trek_option(opts->eps, 1e-5);
    if (opts->shape.ndim < 1 || opts->shape.ndim > TREK_MAX_DIMS || !(eps >= 0))
        return trek_fail_null(
            TREK_ERR_ARGUMENT,
            "layer_norm: shape or .eps: out of range; must be 1 to %d dimensions, and an .eps that is not negative",
            TREK_MAX_DIMS);
    for (int d = 0; d < opts->shape.ndim; d++)
        if (trek_layer_positive("layer_norm", "each size", opts->shape.sizes[d]) != TREK_OK)
            return NULL;
    trek_module *base = trek_module_new(&layer_norm_class);
    if (!base)
        return NULL;
    layer_norm_layer *m = (layer_norm_layer *)base;
    m->shape = opts->shape;
    m->eps = eps;
    if (!opts->no_affine)
        trek_module_param(base, "weight", offsetof(layer_norm_layer, weight),
                          trek_tensor_empty(opts->shape, opts->dtype, opts->device));
    if (!opts->no_affine && !opts->no_bias)
        trek_module_param(base, "bias", offsetof(layer_norm_layer, bias),
                          trek_tensor_empty(opts->shape, opts->dtype, opts->device));
    return trek_layer_finish(base);
}

trek_module *trek_nn_layer_norm(int64_t size, trek_device device)
{
    return trek_nn_layer_norm_with(&(trek_layer_norm_opts){ .shape = trek_dims(size), .device = device });
}
