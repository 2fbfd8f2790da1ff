/* SPDX-License-Identifier: Apache-2.0 */
/* One batch of a pass, on the calling thread: forward, loss, backward, and the sum of the losses. All steppers run this. */
#include "graph/batch_run.h"

#include <math.h>

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "graph/observe_internal.h"
#include "nn/module_internal.h"
#include "optim/scaler_internal.h"
#include "tensor/trace.h"

bool trek_graph_learns(const trek_graph *graph) { return graph->base.own->training && trek_grad_enabled(); }

trek_var *trek_graph_forward_here(trek_graph *graph, trek_var *const *inputs, int n)
{
    if (graph->n_below > 0)
        trek_graph_forget_nested_tags(graph);
    trek_autocast_begin(graph->autocast);
    trek_var *y = trek_graph_run_route(graph, inputs, n);
    trek_autocast_end();
    bool low = y && graph->autocast != TREK_F32 && trek_dtype_is_16bit(trek_var_dtype(y));
    return low ? trek_cast(y, TREK_F32) : y;
}

static trek_var *forward(trek_graph *graph, const trek_batch *batch, const trek_graph_loader *graph_loader)
{
    trek_var *inputs[64], **list = inputs;
    int n = graph->layout.n_inputs;
    if (n > 64 && !(list = trek_calloc((size_t)n, sizeof *list)))
        return NULL;
    for (int k = 0; k < n; k++)
        list[k] = batch->vars[graph_loader->fields[k]];
    int64_t start = trek_trace_enter("forward");
    trek_var *y = trek_graph_forward_here(graph, list, n);
    trek_trace_end("forward", start, batch->n);
    if (y && trek_trace_counts())
        trek_trace_samples(batch->n);
    if (list != inputs)
        trek_free(list);
    return y;
}

static trek_var *compute_loss(trek_graph *graph, const trek_batch *batch, const trek_graph_loader *graph_loader)
{
    trek_recording before = trek_recording_begin((trek_recording){ .graph = graph, .rows = (double)batch->n });
    bool runs = graph_loader->by_loss;
    const char *name = graph_loader->loss_name ? graph_loader->loss_name : "graph_set_loss: loss function";
    trek_var *y = runs ? NULL : forward(graph, batch, graph_loader);
    runs = runs || y;
    trek_var *loss = runs ? graph_loader->loss(graph, y, batch, graph_loader->arg) : NULL;
    trek_recording_begin(before);
    if (!runs || (!loss && trek_error_status() != TREK_OK))
        return NULL;
    if (!loss)
        return trek_fail_null(TREK_ERR_CALLBACK, "%s: returned NULL; must return a scalar", name);
    if (trek_error_status() != TREK_OK)
        return NULL;
    if (trek_var_numel(loss) == 1)
        return loss;
    char text[TREK_SHAPE_TEXT];
    return trek_fail_null(TREK_ERR_SHAPE, "%s: returned shape %s; must return a scalar", name,
                          trek_shape_format(trek_var_shape(loss), text, sizeof text));
}

/* Adds a loss: as a number if the host can read it, otherwise to a sum on the device, so that nothing waits. */
static trek_status add_up(trek_pass_sum *sum, trek_var *loss, double weight)
{
    sum->weight += weight;
    if (weight == 0)
        return TREK_OK;
    if (loss->data->device.type == TREK_CPU) {
        sum->loss += weight * trek_tensor_item(loss->data);
        return TREK_OK;
    }
    trek_no_grad_begin();
    trek_var *part = trek_mul_scalar(loss, weight),
        *old = sum->on_device ? trek_var_from(trek_tensor_retain(sum->on_device)) : NULL;
    trek_var *total = old ? trek_add(old, part) : part;
    trek_no_grad_end();
    if (!total)
        return trek_error_status();
    trek_tensor_release(sum->on_device);
    sum->on_device = trek_tensor_retain(total->data);
    return TREK_OK;
}

trek_status trek_graph_batch_loss(trek_graph *graph, const trek_batch *batch, const trek_batch_run *run, trek_pass_sum *sum,
                                  trek_var **loss, double *weight)
{
    if (!run->backward)
        trek_no_grad_begin();
    *loss = compute_loss(graph, batch, run->graph_loader);
    trek_var *counted = *loss && run->counted ? trek_graph_count_there(run, *loss) : NULL;
    if (run->counted)
        *run->counted = counted;
    *weight = counted ? 1 : *loss ? trek_loss_weight(*loss) : 0;
    if (isnan(*weight))
        *weight = (double)batch->n;
    trek_status status = counted ? trek_graph_add_up_there(sum, *loss, counted) : *loss ? add_up(sum, *loss, *weight)
                                                                             : trek_status_or(TREK_ERR_CALLBACK);
    if (status == TREK_OK && run->graph_loader->measures)
        status = trek_observation_add_scalar(graph, TREK_MEASURED "loss", *loss, *weight);
    if (!run->backward)
        trek_no_grad_end();
    sum->rows += batch->n;
    return status;
}

int64_t trek_graph_input_rows(const trek_graph *graph, trek_var *const *inputs, int n)
{
    for (int k = 0; k < n; k++)
        if (inputs[k] && trek_var_ndim(inputs[k]) > 0 && !trek_graph_input_is_whole(graph, k))
            return trek_var_size(inputs[k], 0);
    return 0;
}

double trek_graph_loss_weight(const trek_graph *graph, trek_var *loss, double stated)
{
    if (stated >= 0)
        return stated;
    double weight = trek_loss_weight(loss);
    if (!isnan(weight) || trek_error_status() != TREK_OK)
        return weight;
    return graph->accumulation.rows >= 0 ? (double)graph->accumulation.rows : 1;
}

/* Casts the loss to f32 because the scale does not fit into f16. */
static bool widen(trek_var **loss)
{
    if (trek_dtype_is_16bit(trek_var_dtype(*loss)))
        *loss = trek_cast(*loss, TREK_F32);
    return *loss != NULL;
}

trek_status trek_graph_seed_by(trek_grad_scaler *scaler, trek_var *factor, trek_var **loss, trek_var **seed)
{
    *seed = NULL;
    if (!factor || !widen(loss))
        return trek_error_status();
    trek_dtype dtype = trek_var_dtype(*loss);
    trek_no_grad_begin();
    *seed = trek_reshape(trek_cast(factor, dtype), trek_var_shape(*loss));
    if (scaler && *seed)
        *seed = trek_mul(trek_cast(trek_scaler_seed(scaler, *loss), dtype), *seed);
    trek_no_grad_end();
    return *seed ? TREK_OK : trek_error_status();
}

trek_status trek_graph_seed(trek_grad_scaler *scaler, double factor, trek_var **loss, trek_var **seed)
{
    *seed = NULL;
    if (!scaler && factor == 1)
        return TREK_OK;
    if (!widen(loss))
        return trek_error_status();
    trek_no_grad_begin();
    if (scaler)
        *seed = trek_scaler_seed(scaler, *loss);
    if (scaler && factor != 1) /* in the loss's precision; the scale itself is exact in any */
        *seed = trek_mul_scalar(trek_cast(*seed, trek_var_dtype(*loss)), factor);
    if (!scaler)
        *seed = trek_var_from(trek_tensor_full(trek_var_shape(*loss), factor, trek_var_dtype(*loss), trek_var_device(*loss)));
    trek_no_grad_end();
    return *seed ? TREK_OK : trek_error_status();
}

trek_status trek_graph_batch_backward(trek_var *loss, double weight, int64_t rows, const trek_batch_run *run)
{
    if (!loss->requires_grad)
        return TREK_OK;
    int64_t start = trek_trace_enter("backward");
    trek_backward_watch watch = { .leaves = run->leaves, .n_leaves = run->n_leaves, .only_these = true, .zeros = weight == 0 &&
                                  !run->meets,
                                  .complete = run->complete, .product = run->product, .arg = run->arg };
    trek_var *seed;
    double factor = run->denominator > 0 ? weight / run->denominator : weight != 0 ? 1 : 0;
    trek_status status = run->counted && *run->counted
        ? trek_graph_seed_by(run->scaler, trek_graph_factor_there(*run->counted, run->denominator), &loss, &seed)
        : trek_graph_seed(run->scaler, factor, &loss, &seed);
    if (status == TREK_OK)
        status = trek_backward_watched(&loss, &seed, 1, NULL, &watch);
    trek_trace_end("backward", start, rows);
    return status;
}

trek_status trek_graph_run_batch(trek_graph *graph, const trek_batch *batch, const trek_batch_run *run, trek_pass_sum *sum)
{
    trek_scope scope = trek_scope_begin();
    if (!scope.depth)
        return trek_error_status();
    trek_var *loss;
    double weight;
    trek_status status = trek_graph_batch_loss(graph, batch, run, sum, &loss, &weight);
    if (status == TREK_OK && run->backward)
        status = trek_graph_batch_backward(loss, weight, batch->n, run);
    trek_scope_end(scope);
    return status;
}

void trek_pass_sum_clear(trek_pass_sum *sum)
{
    trek_tensor_release(sum->on_device);
    trek_tensor_release(sum->weight_on_device);
    *sum = (trek_pass_sum){ 0 };
}

trek_var *trek_pass_mean(trek_pass_sum *sums, int n, trek_device device)
{
    double weight = 0, loss = 0;
    for (int k = 0; k < n; k++)
        weight += sums[k].weight;
    for (int k = 0; k < n; k++)
        loss += sums[k].loss;
    double divisor = weight > 0 ? weight : 1;
    trek_var *mean = trek_var_from(trek_tensor_full(trek_dims_none(), loss / divisor, TREK_F32, device));
    trek_no_grad_begin();
    for (int k = 0; k < n && mean; k++) {
        trek_tensor *part = sums[k].on_device ? trek_tensor_to(sums[k].on_device, device) : NULL;
        if (!sums[k].on_device)
            continue;
        trek_var *var = part ? trek_cast(trek_var_from(part), TREK_F32) : NULL;
        mean = var ? trek_add(mean, trek_mul_scalar(trek_reshape(var, trek_dims_none()), 1 / divisor)) : NULL;
    }
    trek_no_grad_end();
    for (int k = 0; k < n; k++)
        trek_pass_sum_clear(&sums[k]);
    return mean;
}
