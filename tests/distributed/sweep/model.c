/* SPDX-License-Identifier: Apache-2.0 */
/* The model, the data and the losses of a drawn training, in f64. */
#include <stdlib.h>

#include "autograd/losses.h"
#include "autograd/norms.h"
#include "autograd/ops.h"
#include "graph/flow.h"
#include "graph/observe.h"
#include "nn/layers.h"
#include "nn/module_internal.h"
#include "nn/module_values.h"
#include "nn/recompute.h"
#include "tensor/copies.h"
#include "tensor/shapes.h"
#include "tests/distributed/sweep/sweep.h"
#include "tests/support/support.h"

enum { HIDDEN = 6, IDS = 9, FEATURES = SWEEP_WIDTH - 2, MOST_VALUES = 128 };

/* --- the model ----------------------------------------------------------------------------------- */

typedef struct net {
    trek_module base;
    trek_module *block, *norm;
    trek_var *kernel, *table, *in, *tied, *extra, *unused, *gain, *shift, *out, *bias;
    const sweep *s;
} net;

/* x: whether the row is marked, its number, features. */
static trek_var *net_forward(trek_module *self, trek_var *x)
{
    net *m = (net *)self;
    int64_t rows = trek_var_size(x, 0);
    trek_var *h = trek_narrow(x, 1, 2, FEATURES);
    if (m->kernel) {
        trek_var *image = trek_conv2d(trek_reshape(h, trek_dims(rows, 2, 3, 3)), m->kernel, NULL, NULL);
        h = trek_cat((trek_var *[]){ trek_reshape(trek_tanh(image), trek_dims(rows, 12)), trek_narrow(h, 1, 0, 6) }, 2, 1);
    }
    h = trek_linear(h, m->in, NULL);
    if (m->table)
        h = trek_add(h, trek_embedding(trek_cast(trek_reshape(trek_narrow(x, 1, 1, 1), trek_dims(rows)), TREK_I64), m->table,
                                       -1));
    if (m->extra && test_any_marked(x))
        h = trek_add(h, trek_mul(trek_cast(trek_gt_scalar(trek_narrow(x, 1, 0, 1), 1.5), TREK_F64), m->extra));
    if (m->gain)
        h = trek_layer_norm(h, 1, m->gain, m->shift, 1e-5);
    if (m->norm)
        h = trek_forward(m->norm, h);
    h = trek_tanh(h);
    if (m->tied)
        h = trek_tanh(trek_linear(trek_tanh(trek_linear(h, m->tied, NULL)), m->tied, NULL));
    h = m->s->recompute ? trek_forward_recomputed(m->block, &h, 1) : trek_forward(m->block, h);
    return trek_linear(h, m->out, m->bias);
}

static const trek_module_class net_class = { .name = "net", .size = sizeof(net), .forward = net_forward };

/* The numbers of a seed: the same on all devices. */
static trek_tensor *numbers(const sweep *s, uint64_t stream, trek_shape shape, trek_device device)
{
    double values[MOST_VALUES];
    for (int64_t k = 0; k < trek_shape_numel(shape); k++)
        values[k] = 0.7 * ((double)(sweep_number(s, stream, (uint64_t)k) >> 11) * 0x1p-52 - 1);
    return trek_tensor_from_data(values, shape, TREK_F64, device);
}

static trek_module *block_new(const sweep *s, trek_device device)
{
    trek_module *m = trek_nn_linear_with(&(trek_linear_opts){ .in = HIDDEN, .out = HIDDEN, .dtype = TREK_F64, .device = device });
    for (int k = 0; m && k < 2; k++) {
        trek_tensor *values = numbers(s, 20 + (uint64_t)k, trek_var_shape(m->own->params[k].var), device);
        trek_tensor_copy_from(trek_var_data(m->own->params[k].var), values);
        trek_tensor_release(values);
    }
    return m;
}

trek_graph *sweep_build(trek_device device, void *arg)
{
    const sweep *s = arg;
    trek_module *m = trek_module_new(&net_class);
    if (!m)
        return NULL;
    ((net *)m)->s = s;
    const struct {
        const char *name;
        size_t offset;
        bool has;
        trek_shape shape;
    } params[] = {
        { "kernel", offsetof(net, kernel), s->conv, trek_dims(3, 2, 2, 2) },
        { "table", offsetof(net, table), s->embedding, trek_dims(IDS, HIDDEN) },
        { "in", offsetof(net, in), true, trek_dims(HIDDEN, FEATURES) },
        { "tied", offsetof(net, tied), s->tied, trek_dims(HIDDEN, HIDDEN) },
        { "extra", offsetof(net, extra), s->sometimes, trek_dims(HIDDEN) },
        { "unused", offsetof(net, unused), s->sometimes, trek_dims(3) },
        { "gain", offsetof(net, gain), s->norm == SWEEP_LAYER_NORM, trek_dims(HIDDEN) },
        { "shift", offsetof(net, shift), s->norm == SWEEP_LAYER_NORM, trek_dims(HIDDEN) },
        { "out", offsetof(net, out), true, trek_dims(SWEEP_CLASSES, HIDDEN) },
        { "bias", offsetof(net, bias), true, trek_dims(SWEEP_CLASSES) },
    };
    for (int k = 0; k < (int)(sizeof params / sizeof *params); k++)
        if (params[k].has)
            trek_module_param(m, params[k].name, params[k].offset, numbers(s, (uint64_t)k, params[k].shape, device));
    trek_module_add(m, "block", offsetof(net, block), block_new(s, device));
    trek_batch_norm_opts norm = { .features = HIDDEN, .dtype = TREK_F64, .device = device };
    if (s->norm == SWEEP_SYNC_BATCH_NORM)
        trek_module_add(m, "norm", offsetof(net, norm),
                        s->one ? trek_nn_batch_norm1d_with(&norm) : trek_nn_sync_batch_norm_with(&norm));
    if (s->frozen)
        trek_module_freeze(((net *)m)->block);
    return trek_flow_build(trek_flow_from(trek_module_check(m)));
}

trek_status sweep_freeze(trek_graph *graph, bool freezes)
{
    return (freezes ? trek_module_freeze : trek_module_thaw)(((net *)trek_graph_module(graph)->own->children[0].module)->block);
}

/* --- the data -------------------------------------------------------------------------------------- */

static bool is_ignored(const sweep *s, int64_t row)
{
    switch (s->ignored) {
    case SWEEP_SOME:
        return sweep_number(s, 30, (uint64_t)row) % 3 == 0;
    case SWEEP_BLOCK:
        return row < s->samples / 2;
    case SWEEP_LAST:
        return row >= s->samples - s->samples / 3;
    case SWEEP_ALL:
        return true;
    default:
        return false;
    }
}

trek_dataset *sweep_data(const sweep *s, bool evaluation)
{
    int64_t n = s->samples, first = evaluation ? 1000 : 0;
    double *x = calloc((size_t)n, SWEEP_WIDTH * sizeof *x), *y = calloc((size_t)n, SWEEP_CLASSES * sizeof *y);
    int64_t *labels = calloc((size_t)n, sizeof *labels);
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < SWEEP_WIDTH; k++)
            x[i * SWEEP_WIDTH + k] = (double)(sweep_number(s, 31, (uint64_t)((first + i) * SWEEP_WIDTH + k)) >> 11) * 0x1p-52 - 1;
        for (int k = 0; k < SWEEP_CLASSES; k++)
            y[i * SWEEP_CLASSES + k] = (double)(sweep_number(s, 32,
                                                             (uint64_t)((first + i) * SWEEP_CLASSES + k)) >> 11) * 0x1p-52 - 1;
        bool ignored = !evaluation && is_ignored(s, i);
        x[i * SWEEP_WIDTH] = sweep_number(s, 33, (uint64_t)(first + i)) % 8 == 0 || (ignored && i % 2) ? 2 : 0;
        x[i * SWEEP_WIDTH + 1] = (double)(sweep_number(s, 34, (uint64_t)(first + i)) % (IDS - 1));
        labels[i] = ignored ? -100 : (int64_t)(sweep_number(s, 35, (uint64_t)(first + i)) % SWEEP_CLASSES);
    }
    trek_tensor *tensors[3] = { trek_tensor_from_data(x, trek_dims(n, SWEEP_WIDTH), TREK_F64, trek_cpu(0)),
                                trek_tensor_from_data(labels, trek_dims(n), TREK_I64, trek_cpu(0)),
                                trek_tensor_from_data(y, trek_dims(n, SWEEP_CLASSES), TREK_F64, trek_cpu(0)) };
    trek_dataset *data = trek_dataset_tensors((const char *[]){ "x", "label", "y" }, tensors, 3);
    for (int k = 0; k < 3; k++)
        trek_tensor_release(tensors[k]);
    free(x);
    free(y);
    free(labels);
    return data;
}

/* --- losses ------------------------------------------------------------------------------------------ */

/* A mean by weights of the rows' own, which it states. */
static trek_var *weighed(trek_var *output, trek_var *y, trek_var *x)
{
    trek_var *weight = trek_add_scalar(trek_narrow(x, 1, 1, 1), 0.5);
    trek_var *rows = trek_mean(trek_square(trek_sub(output, y)), trek_dims(1), true);
    trek_var *total = trek_sum(weight, trek_dims_all(), false);
    trek_var *loss = trek_div(trek_sum(trek_mul(rows, weight), trek_dims_all(), false), total);
    if (loss)
        trek_loss_set_weight(loss, trek_var_item(total));
    return loss;
}

static trek_var *loss_of(const sweep *s, trek_var *output, const trek_batch *batch)
{
    trek_var *label = trek_batch_get(batch, "label"), *y = trek_batch_get(batch, "y");
    switch (s->loss) {
    case SWEEP_SMOOTHED: {
        double weights[SWEEP_CLASSES] = { 0.5, 1, 2, 0.25 };
        trek_tensor *tensor = trek_tensor_from_data(weights, trek_dims(SWEEP_CLASSES), TREK_F64, trek_var_device(output));
        trek_var *weight = trek_var_from(tensor);
        return trek_cross_entropy_with(output, label, &(trek_cross_entropy_opts){ .weight = weight, .label_smoothing = 0.1 });
    }
    case SWEEP_MSE:
        return trek_mse_loss(output, y);
    case SWEEP_HUBER:
        return trek_huber_loss(output, y, 0.5, NULL);
    case SWEEP_WEIGHED:
        return weighed(output, y, trek_batch_get(batch, "x"));
    case SWEEP_SUM:
        return trek_add(trek_cross_entropy(output, label), trek_mul_scalar(trek_mse_loss(output, y), 0.3));
    default:
        return trek_cross_entropy(output, label);
    }
}

trek_var *sweep_loss_of(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    const sweep *s = arg;
    if (!output)
        output = trek_graph_forward(graph, trek_batch_get(batch, "x"));
    if (!output)
        return NULL;
    if (s->way == SWEEP_RUN) {
        trek_record_scalar("output", trek_mean(output, trek_dims_all(), false));
        trek_record_sum("rows", (double)trek_batch_size(batch));
    }
    return loss_of(s, output, batch);
}
