/* SPDX-License-Identifier: Apache-2.0 */
/* Normalisation of each channel of each sample. */
#include <inttypes.h>
#include <stdio.h>

#include "autograd/ops.h"
#include "nn/batch_norm_internal.h"
#include "nn/module_internal.h"
#include "tensor/shapes.h"

/* The fields are those of batch norm. Its statistics are not recounted, because PyTorch decides that by class. */
static trek_status instance_norm_reset(trek_module *self) { return trek_batch_norm_layer_reset(self); }

static trek_var *instance_norm_forward(trek_module *self, trek_var *x, int ndim)
{
    trek_batch_norm_layer *m = (trek_batch_norm_layer *)self;
    char text[TREK_SHAPE_TEXT];
    bool lone = trek_var_ndim(x) == ndim - 1;
    if ((!lone && trek_var_ndim(x) != ndim) || trek_var_size(x, lone ? 0 : 1) != m->features)
        return trek_fail_null(TREK_ERR_SHAPE, "%s: input: %s; must have %d or %d dimensions and %" PRId64 " channels",
                              self->own->klass->name, trek_shape_format(trek_var_shape(x), text, sizeof text), ndim - 1, ndim,
                              m->features);
    bool own = self->own->training || !m->running_mean;
    trek_var *y = trek_instance_norm(lone ? trek_unsqueeze(x, 0) : x, m->running_mean, m->running_var, m->weight, m->bias, own,
                                     m->momentum, m->eps);
    return lone ? trek_squeeze(y, 0) : y;
}
static trek_var *forward1d(trek_module *self, trek_var *x) { return instance_norm_forward(self, x, 3); }
static trek_var *forward2d(trek_module *self, trek_var *x) { return instance_norm_forward(self, x, 4); }
static trek_var *forward3d(trek_module *self, trek_var *x) { return instance_norm_forward(self, x, 5); }

/* The classes of one, two and three dimensions, followed by those that keep statistics of the batch. */
#define CLASS(name_, forward_, couples)                                                                \
    { .name = name_, .size = sizeof(trek_batch_norm_layer), .forward = forward_, .reset = instance_norm_reset, \
      .describe = trek_batch_norm_layer_describe, .couples_samples = couples }
static const trek_module_class classes[6] = {
    CLASS("instance_norm1d", forward1d, false), CLASS("instance_norm2d", forward2d, false),
    CLASS("instance_norm3d", forward3d, false), CLASS("instance_norm1d", forward1d, true),
    CLASS("instance_norm2d", forward2d, true),  CLASS("instance_norm3d", forward3d, true),
};

static trek_module *instance_norm_new(int dims, const trek_instance_norm_opts *opts)
{
    const trek_module_class *klass = &classes[dims - 1 + (opts && opts->running_stats ? 3 : 0)];
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: options: NULL; they must be given", klass->name);
    trek_batch_norm_opts batch = { .features = opts->features, .eps = opts->eps, .no_affine = !opts->affine,
                                   .momentum = opts->momentum == TREK_OFF ? TREK_ZERO : opts->momentum,
                                   .no_running_stats = !opts->running_stats, .dtype = opts->dtype, .device = opts->device };
    return trek_batch_norm_layer_new(klass, &batch);
}

trek_module *trek_nn_instance_norm1d_with(const trek_instance_norm_opts *opts) { return instance_norm_new(1, opts); }
trek_module *trek_nn_instance_norm2d_with(const trek_instance_norm_opts *opts) { return instance_norm_new(2, opts); }
trek_module *trek_nn_instance_norm3d_with(const trek_instance_norm_opts *opts) { return instance_norm_new(3, opts); }

trek_module *trek_nn_instance_norm1d(int64_t features, trek_device device)
{
    return instance_norm_new(1, &(trek_instance_norm_opts){ .features = features, .device = device });
}

trek_module *trek_nn_instance_norm2d(int64_t features, trek_device device)
{
    return instance_norm_new(2, &(trek_instance_norm_opts){ .features = features, .device = device });
}

trek_module *trek_nn_instance_norm3d(int64_t features, trek_device device)
{
    return instance_norm_new(3, &(trek_instance_norm_opts){ .features = features, .device = device });
}
