/* SPDX-License-Identifier: Apache-2.0 */
/* Group normalisation, and normalisation over neighbouring channels. */
#include <inttypes.h>
#include <stdio.h>

#include "autograd/ops.h"
#include "nn/layers_internal.h"
#include "tensor/creation.h"
#include "tensor/shapes.h"

/* --- groups ------------------------------------------------------------------ */

typedef struct group_norm_layer {
    trek_module base;
    trek_var *weight, *bias; /* may be NULL */
    int64_t groups, channels;
    double eps;
} group_norm_layer;

static trek_var *group_norm_forward(trek_module *self, trek_var *x)
{
    group_norm_layer *m = (group_norm_layer *)self;
    char text[TREK_SHAPE_TEXT];
    if (trek_var_ndim(x) < 2 || trek_var_size(x, 1) != m->channels)
        return trek_fail_null(TREK_ERR_SHAPE, "group_norm: input: %s; must be [N, %" PRId64 ", ...]",
                              trek_shape_format(trek_var_shape(x), text, sizeof text), m->channels);
    return trek_group_norm(x, m->groups, m->weight, m->bias, m->eps);
}

static trek_status group_norm_reset(trek_module *self)
{
    group_norm_layer *m = (group_norm_layer *)self;
    trek_status status = m->weight ? trek_init_ones(m->weight) : TREK_OK;
    return status == TREK_OK && m->bias ? trek_init_zeros(m->bias) : status;
}

static void group_norm_describe(const trek_module *self, char *text, size_t size)
{
    const group_norm_layer *m = (const group_norm_layer *)self;
    char eps[32];
    snprintf(text, size, "%" PRId64 ", %" PRId64 ", eps %s%s", m->groups, m->channels, trek_layer_number(m->eps, eps),
             m->weight ? "" : ", no affine");
}

static const trek_module_class group_norm_class = {
    .name = "group_norm",
    .size = sizeof(group_norm_layer),
    .forward = group_norm_forward,
    .reset = group_norm_reset,
    .describe = group_norm_describe,
};

trek_module *trek_nn_group_norm_with(const trek_group_norm_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "group_norm: options: NULL; they must be given");
    double eps = trek_option(opts->eps, 1e-5);
    if (trek_layer_positive("group_norm", "groups", opts->groups) != TREK_OK ||
        trek_layer_positive("group_norm", "channels", opts->channels) != TREK_OK)
        return NULL;
    if (opts->channels % opts->groups != 0 || !(eps >= 0))
        return trek_fail_null(
            TREK_ERR_ARGUMENT,
            "group_norm: .groups or .eps: out of range; channels must be a multiple of .groups, and .eps not negative");
    trek_module *base = trek_module_new(&group_norm_class);
    if (!base)
        return NULL;
    group_norm_layer *m = (group_norm_layer *)base;
    m->groups = opts->groups;
    m->channels = opts->channels;
    m->eps = eps;
    if (!opts->no_affine) {
        trek_module_param(base, "weight", offsetof(group_norm_layer, weight),
                          trek_tensor_empty(trek_dims(opts->channels), opts->dtype, opts->device));
        trek_module_param(base, "bias", offsetof(group_norm_layer, bias),
                          trek_tensor_empty(trek_dims(opts->channels), opts->dtype, opts->device));
    }
    return trek_layer_finish(base);
}

trek_module *trek_nn_group_norm(int64_t groups, int64_t channels, trek_device device)
{
    return trek_nn_group_norm_with(&(trek_group_norm_opts){ .groups = groups, .channels = channels, .device = device });
}

/* --- neighbours ------------------------------------------------------------------ */

typedef struct response_norm_layer {
    trek_module base;
    int64_t size;
    double alpha, beta, k;
} response_norm_layer;

static trek_var *response_norm_forward(trek_module *self, trek_var *x)
{
    response_norm_layer *m = (response_norm_layer *)self;
    return trek_local_response_norm(x, m->size, m->alpha, m->beta, m->k);
}

static void response_norm_describe(const trek_module *self, char *text, size_t size)
{
    const response_norm_layer *m = (const response_norm_layer *)self;
    char alpha[32], beta[32], k[32];
    snprintf(text, size, "%" PRId64 ", alpha %s, beta %s, k %s", m->size, trek_layer_number(m->alpha, alpha),
             trek_layer_number(m->beta, beta), trek_layer_number(m->k, k));
}

static const trek_module_class response_norm_class = {
    .name = "local_response_norm",
    .size = sizeof(response_norm_layer),
    .forward = response_norm_forward,
    .describe = response_norm_describe,
};

trek_module *trek_nn_local_response_norm_with(const trek_local_response_norm_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "local_response_norm: options: NULL; they must be given");
    if (trek_layer_positive("local_response_norm", "size", opts->size) != TREK_OK)
        return NULL;
    trek_module *base = trek_module_new(&response_norm_class);
    if (!base)
        return NULL;
    response_norm_layer *m = (response_norm_layer *)base;
    m->size = opts->size;
    m->alpha = trek_option(opts->alpha, 1e-4);
    m->beta = trek_option(opts->beta, 0.75);
    m->k = trek_option(opts->k, 1);
    return base;
}

trek_module *trek_nn_local_response_norm(int64_t size)
{
    return trek_nn_local_response_norm_with(&(trek_local_response_norm_opts){ .size = size });
}
