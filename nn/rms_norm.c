/* SPDX-License-Identifier: Apache-2.0 */
/* Root mean square normalisation. */
#include <float.h>
#include <stdio.h>

#include "autograd/ops.h"
#include "nn/layers_internal.h"
#include "tensor/creation.h"
#include "tensor/shapes.h"

typedef struct rms_norm_layer {
    trek_module base;
    trek_var *weight; /* may be NULL */
    trek_shape shape;
    double eps;
} rms_norm_layer;

static trek_var *rms_norm_forward(trek_module *self, trek_var *x)
{
    rms_norm_layer *m = (rms_norm_layer *)self;
    int lead = trek_var_ndim(x) - m->shape.ndim;
    bool fits = lead >= 0;
    for (int d = 0; fits && d < m->shape.ndim; d++)
        fits = trek_var_size(x, lead + d) == m->shape.sizes[d];
    if (!fits) {
        char got[TREK_SHAPE_TEXT], wanted[TREK_SHAPE_TEXT];
        return trek_fail_null(TREK_ERR_SHAPE, "rms_norm: input: %s; the last dimensions must be %s",
                              trek_shape_format(trek_var_shape(x), got, sizeof got),
                              trek_shape_format(m->shape, wanted, sizeof wanted));
    }
    return trek_rms_norm(x, m->shape.ndim, m->weight, m->eps);
}

static trek_status rms_norm_reset(trek_module *self)
{
    rms_norm_layer *m = (rms_norm_layer *)self;
    return m->weight ? trek_init_ones(m->weight) : TREK_OK;
}

static void rms_norm_describe(const trek_module *self, char *text, size_t size)
{
    const rms_norm_layer *m = (const rms_norm_layer *)self;
    char shape[TREK_SHAPE_TEXT], eps[32];
    snprintf(text, size, "%s, eps %s%s", trek_shape_format(m->shape, shape, sizeof shape), trek_layer_number(m->eps, eps),
             m->weight ? "" : ", no affine");
}

static const trek_module_class rms_norm_class = {
    .name = "rms_norm",
    .size = sizeof(rms_norm_layer),
    .forward = rms_norm_forward,
    .reset = rms_norm_reset,
    .describe = rms_norm_describe,
};

trek_module *trek_nn_rms_norm_with(const trek_rms_norm_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "rms_norm: options: NULL; they must be given");
    double eps = trek_option(opts->eps, opts->dtype == TREK_F64 ? DBL_EPSILON : (double)FLT_EPSILON);
    if (opts->shape.ndim < 1 || opts->shape.ndim > TREK_MAX_DIMS || !(eps >= 0))
        return trek_fail_null(
            TREK_ERR_ARGUMENT,
            "rms_norm: shape or .eps: out of range; must be 1 to %d dimensions, and an .eps that is not negative", TREK_MAX_DIMS);
    for (int d = 0; d < opts->shape.ndim; d++)
        if (trek_layer_positive("rms_norm", "each size", opts->shape.sizes[d]) != TREK_OK)
            return NULL;
    trek_module *base = trek_module_new(&rms_norm_class);
    if (!base)
        return NULL;
    rms_norm_layer *m = (rms_norm_layer *)base;
    m->shape = opts->shape;
    m->eps = eps;
    if (!opts->no_affine)
        trek_module_param(base, "weight", offsetof(rms_norm_layer, weight),
                          trek_tensor_empty(opts->shape, opts->dtype, opts->device));
    return trek_layer_finish(base);
}

trek_module *trek_nn_rms_norm(int64_t dim, trek_device device)
{
    return trek_nn_rms_norm_with(&(trek_rms_norm_opts){ .shape = trek_dims(dim), .device = device });
}
