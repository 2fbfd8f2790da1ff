/* SPDX-License-Identifier: Apache-2.0 */
/* Batch normalisation. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "nn/batch_norm_internal.h"
#include "nn/module_internal.h"
#include "tensor/tensor_internal.h"

/* Counts one more batch. On the CPU this runs without an op, because it happens in every step. */
static trek_status count_batch(trek_batch_norm_layer *m)
{
    trek_tensor *count = trek_var_data(m->num_batches_tracked);
    if (trek_tensor_device(count).type == TREK_CPU) {
        ++*(int64_t *)trek_tensor_data(count);
        trek_tensor_bump(count);
        return TREK_OK;
    }
    trek_no_grad_begin();
    trek_var *one = trek_var_from(trek_tensor_ones(trek_dims_none(), TREK_I64, trek_tensor_device(count)));
    trek_var *sum = trek_add_(m->num_batches_tracked, one);
    trek_no_grad_end();
    return sum ? TREK_OK : trek_error_status();
}

trek_status trek_batch_norm_layer_count(trek_batch_norm_layer *m, double *momentum)
{
    *momentum = m->momentum;
    if (!m->base.own->training || !m->num_batches_tracked)
        return TREK_OK;
    trek_status status = count_batch(m);
    if (status == TREK_OK && (m->cumulative || m->recounts))
        *momentum = 1 / trek_var_item(m->num_batches_tracked);
    return status;
}

trek_var *trek_batch_norm_layer_normalize(trek_batch_norm_layer *m, trek_var *x)
{
    bool tracks = m->running_mean != NULL, training = m->base.own->training || !tracks;
    char text[TREK_SHAPE_TEXT];
    if (training && trek_var_size(x, 0) != 0 && trek_var_numel(x) == trek_var_size(x, 1))
        return trek_fail_null(TREK_ERR_SHAPE, "%s: input: %s; training needs more than 1 value for each channel",
                              m->base.own->klass->name,
                              trek_shape_format(trek_var_shape(x), text, sizeof text));
    double momentum;
    if (trek_batch_norm_layer_count(m, &momentum) != TREK_OK)
        return NULL;
    return trek_batch_norm(x, m->running_mean, m->running_var, m->weight, m->bias, training, momentum, m->eps);
}

static trek_var *batch_norm1d_forward(trek_module *self, trek_var *x)
{
    char text[TREK_SHAPE_TEXT];
    int ndim = trek_var_ndim(x);
    if (ndim != 2 && ndim != 3)
        return trek_fail_null(TREK_ERR_SHAPE, "batch_norm1d: input: %s; must be [N, C] or [N, C, L]",
                              trek_shape_format(trek_var_shape(x), text, sizeof text));
    return trek_batch_norm_layer_normalize((trek_batch_norm_layer *)self, x);
}

static trek_var *batch_norm2d_forward(trek_module *self, trek_var *x)
{
    char text[TREK_SHAPE_TEXT];
    if (trek_var_ndim(x) != 4)
        return trek_fail_null(TREK_ERR_SHAPE, "batch_norm2d: input: %s; must be [N, C, H, W]",
                              trek_shape_format(trek_var_shape(x), text, sizeof text));
    return trek_batch_norm_layer_normalize((trek_batch_norm_layer *)self, x);
}

static trek_var *batch_norm3d_forward(trek_module *self, trek_var *x)
{
    char text[TREK_SHAPE_TEXT];
    if (trek_var_ndim(x) != 5)
        return trek_fail_null(TREK_ERR_SHAPE, "batch_norm3d: input: %s; must be [N, C, D, H, W]",
                              trek_shape_format(trek_var_shape(x), text, sizeof text));
    return trek_batch_norm_layer_normalize((trek_batch_norm_layer *)self, x);
}

trek_status trek_batch_norm_layer_reset(trek_module *self)
{
    trek_batch_norm_layer *m = (trek_batch_norm_layer *)self;
    trek_status status = TREK_OK;
    if (m->weight)
        status = trek_init_ones(m->weight);
    if (m->bias && status == TREK_OK)
        status = trek_init_zeros(m->bias);
    if (m->running_mean && status == TREK_OK)
        status = trek_init_zeros(m->running_mean);
    if (m->running_var && status == TREK_OK)
        status = trek_init_ones(m->running_var);
    if (m->num_batches_tracked && status == TREK_OK) {
        trek_tensor *zero = trek_tensor_zeros(trek_dims_none(), TREK_I64, trek_cpu(0));
        status = zero ? trek_tensor_copy_from(trek_var_data(m->num_batches_tracked), zero) : trek_error_status();
        trek_tensor_release(zero);
    }
    return status;
}

void trek_batch_norm_layer_describe(const trek_module *self, char *text, size_t size)
{
    const trek_batch_norm_layer *m = (const trek_batch_norm_layer *)self;
    char eps[32], momentum[32];
    snprintf(text, size, "%" PRId64 ", eps %s, momentum %s%s%s", m->features, trek_layer_number(m->eps, eps),
             m->cumulative ? "off" : trek_layer_number(m->momentum, momentum), m->weight ? "" : ", no affine",
             m->running_mean ? "" : ", no running stats");
}

const trek_module_class trek_batch_norm1d_class = {
    .name = "batch_norm1d",
    .size = sizeof(trek_batch_norm_layer),
    .forward = batch_norm1d_forward,
    .reset = trek_batch_norm_layer_reset,
    .describe = trek_batch_norm_layer_describe,
    .couples_samples = true,
};

const trek_module_class trek_batch_norm2d_class = {
    .name = "batch_norm2d",
    .size = sizeof(trek_batch_norm_layer),
    .forward = batch_norm2d_forward,
    .reset = trek_batch_norm_layer_reset,
    .describe = trek_batch_norm_layer_describe,
    .couples_samples = true,
};

static const trek_module_class batch_norm3d_class = {
    .name = "batch_norm3d",
    .size = sizeof(trek_batch_norm_layer),
    .forward = batch_norm3d_forward,
    .reset = trek_batch_norm_layer_reset,
    .describe = trek_batch_norm_layer_describe,
    .couples_samples = true,
};

trek_module *trek_batch_norm_layer_new(const trek_module_class *klass, const trek_batch_norm_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: options: NULL; they must be given", klass->name);
    double eps = trek_option(opts->eps, 1e-5), momentum = trek_option(opts->momentum, 0.1);
    bool cumulative = opts->momentum == TREK_OFF;
    if (trek_layer_positive(klass->name, "features", opts->features) != TREK_OK)
        return NULL;
    if (!(eps >= 0) || (!cumulative && !(momentum >= 0 && momentum <= 1)))
        return trek_fail_null(TREK_ERR_ARGUMENT,
                              "%s: .eps or .momentum: out of range; .eps must not be negative, and .momentum inside [0, 1]",
                              klass->name);
    trek_module *base = trek_module_new(klass);
    if (!base)
        return NULL;
    trek_batch_norm_layer *m = (trek_batch_norm_layer *)base;
    m->features = opts->features;
    m->eps = eps;
    m->momentum = cumulative ? 0 : momentum;
    m->cumulative = cumulative;
    trek_shape shape = trek_dims(opts->features);
    if (!opts->no_affine) {
        trek_module_param(base, "weight", offsetof(trek_batch_norm_layer, weight),
                          trek_tensor_empty(shape, opts->dtype, opts->device));
        trek_module_param(base, "bias", offsetof(trek_batch_norm_layer, bias),
                          trek_tensor_empty(shape, opts->dtype, opts->device));
    }
    if (!opts->no_running_stats) {
        trek_module_buffer(base, "running_mean", offsetof(trek_batch_norm_layer, running_mean),
                           trek_tensor_empty(shape, opts->dtype, opts->device));
        trek_module_buffer(base, "running_var", offsetof(trek_batch_norm_layer, running_var),
                           trek_tensor_empty(shape, opts->dtype, opts->device));
        trek_module_buffer(base, "num_batches_tracked", offsetof(trek_batch_norm_layer, num_batches_tracked),
                           trek_tensor_empty(trek_dims_none(), TREK_I64, opts->device));
    }
    return trek_layer_finish(base);
}

trek_module *trek_nn_batch_norm1d_with(const trek_batch_norm_opts *opts)
{
    return trek_batch_norm_layer_new(&trek_batch_norm1d_class, opts);
}

trek_module *trek_nn_batch_norm2d_with(const trek_batch_norm_opts *opts)
{
    return trek_batch_norm_layer_new(&trek_batch_norm2d_class, opts);
}

trek_module *trek_nn_batch_norm1d(int64_t features, trek_device device)
{
    return trek_nn_batch_norm1d_with(&(trek_batch_norm_opts){ .features = features, .device = device });
}

trek_module *trek_nn_batch_norm2d(int64_t features, trek_device device)
{
    return trek_nn_batch_norm2d_with(&(trek_batch_norm_opts){ .features = features, .device = device });
}

trek_module *trek_nn_batch_norm3d_with(const trek_batch_norm_opts *opts)
{
    return trek_batch_norm_layer_new(&batch_norm3d_class, opts);
}

trek_module *trek_nn_batch_norm3d(int64_t features, trek_device device)
{
    return trek_nn_batch_norm3d_with(&(trek_batch_norm_opts){ .features = features, .device = device });
}
