/* SPDX-License-Identifier: Apache-2.0 */
/* Loaders on graphs, registered losses, and one batch of a pass. */
#include "graph/graph_loader.h"
#include "nn/module_internal.h"

#include <math.h>

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "data/loader_position.h"
#include "data/stream.h"
#include "graph/graph_loader_internal.h"
#include "graph/observe_internal.h"
#include "graph/watch.h"
#include "tensor/trace.h"

/* --- setting up ------------------------------------------------------------------ */

static trek_graph_loader *graph_loader_of(trek_graph *graph)
{
    if (!graph->graph_loader)
        graph->graph_loader = trek_calloc(1, sizeof *graph->graph_loader);
    return graph->graph_loader;
}

trek_status trek_graph_set_loader(trek_graph *graph, trek_loader *loader, const char *field)
{
    if (!graph)
        return trek_fail_missing("graph_set_loader", "graph");
    trek_graph_loader *graph_loader = graph_loader_of(graph);
    int n = trek_graph_input_count(graph);
    int *fields = graph_loader && loader ? trek_calloc((size_t)n, sizeof *fields) : NULL;
    if (!graph_loader || (loader && !fields))
        return trek_status_or(TREK_ERR_MEMORY);
    trek_dataset *dataset = trek_loader_dataset(loader);
    if (trek_dataset_is_stream(dataset) && graph->stepper && graph->stepper->klass->window &&
        graph->stepper->klass->window(graph->stepper) > 0) {
        trek_free(fields);
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "graph_set_loader: loader: dataset %s is a stream, and the graph's ranks read windows of batches "
                         "themselves; set .max_anchor = TREK_OFF to turn that off",
                         dataset->klass->name);
    }
    for (int k = 0; k < n && loader && field; k++) {
        fields[k] = trek_dataset_field(dataset, k == 0 ? field : trek_graph_input_name(graph, k));
        if (fields[k] < 0) {
            trek_free(fields);
            return trek_status_or(TREK_ERR_ARGUMENT);
        }
    }
    if (graph_loader->loader != loader && graph->stepper && graph->stepper->klass->forget_loader)
        graph->stepper->klass->forget_loader(graph->stepper);
    trek_free(graph_loader->fields);
    graph_loader->fields = fields;
    graph_loader->loader = loader;
    graph_loader->by_loss = loader && !field;
    return trek_error_status();
}

trek_status trek_graph_set_loss(trek_graph *graph, trek_loss_fn fn, void *arg)
{
    if (!graph)
        return trek_fail_missing("graph_set_loss", "graph");
    trek_graph_loader *graph_loader = graph_loader_of(graph);
    if (!graph_loader)
        return trek_status_or(TREK_ERR_MEMORY);
    graph_loader->loss = fn;
    graph_loader->arg = arg;
    graph_loader->loss_name = NULL;
    return trek_error_status();
}

void trek_graph_loader_free(trek_graph *graph)
{
    if (graph->graph_loader)
        trek_free(graph->graph_loader->fields);
    trek_free(graph->graph_loader);
    graph->graph_loader = NULL;
}

static trek_loader *loader_of(trek_graph *graph, const char *function)
{
    if (!graph)
        return trek_fail_missing(function, "graph"), NULL;
    if (!graph->graph_loader || !graph->graph_loader->loader)
        return trek_fail_null(TREK_ERR_STATE, "%s: the graph has no loader; trek_graph_set_loader gives it one", function);
    return graph->graph_loader->loader;
}

/* Returns how many whole batches the ranks read themselves in the next step; 0: none. *parts: they read their rows of
 * one batch. */
static int64_t window_of(trek_graph *graph, trek_stepper *s, bool *parts)
{
    int64_t window = s->klass->window && graph->graph_loader->loss ? s->klass->window(s) : 0;
    *parts = window <= 0 && graph->graph_loader->loss && s->klass->reads_parts && s->klass->reads_parts(s);
    return window;
}

trek_status trek_graph_start(trek_graph *graph, int64_t epoch)
{
    trek_loader *loader = loader_of(graph, "graph_start");
    bool parts;
    if (loader && graph->stepper && (window_of(graph, graph->stepper, &parts) > 0 || parts))
        trek_loader_leave_to_ranks(loader);
    return loader ? trek_loader_start(loader, epoch) : trek_error_status();
}

trek_batch *trek_graph_next(trek_graph *graph)
{
    trek_loader *loader = loader_of(graph, "graph_next");
    trek_stepper *s = loader ? trek_graph_stepper(graph) : NULL;
    if (!s)
        return NULL;
    bool parts;
    int64_t window = window_of(graph, s, &parts);
    if (window > 0)
        return trek_loader_next_window(loader, window);
    return parts ? trek_loader_next_parts(loader) : trek_loader_next(loader);
}

/* --- one batch --------------------------------------------------------------------- */

bool trek_graph_learns(const trek_graph *graph) { return graph->base.own->training && trek_grad_enabled(); }

trek_var *trek_graph_forward_here(trek_graph *graph, trek_var *const *inputs, int n)
{
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
    *weight = *loss ? trek_loss_weight(*loss) : 0;
    if (isnan(*weight))
        *weight = (double)batch->n;
    trek_status status = *loss ? add_up(sum, *loss, *weight) : trek_status_or(TREK_ERR_CALLBACK);
    if (status == TREK_OK && run->graph_loader->measures)
        status = trek_observation_add_scalar(graph, TREK_MEASURED "loss", *loss, *weight);
    if (!run->backward)
        trek_no_grad_end();
    sum->rows += batch->n;
    return status;
}

trek_status trek_graph_batch_backward(trek_var *loss, double weight, int64_t rows, const trek_batch_run *run)
{
    if (!loss->requires_grad)
        return TREK_OK;
    int64_t start = trek_trace_enter("backward");
    trek_backward_watch watch = { .leaves = run->leaves, .n_leaves = run->n_leaves, .only_these = true, .zeros = weight == 0 &&
                                  !run->meets,
                                  .complete = run->complete, .arg = run->arg };
    trek_var *seed;
    double factor = run->denominator > 0 ? weight / run->denominator : weight != 0 ? 1 : 0;
    trek_status status = trek_graph_seed(run->scaler, factor, &loss, &seed);
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

/* --- a pass --------------------------------------------------------------------------- */

/* Returns the graph's stepper for a batch from its loader. */
static trek_stepper *stepper_for(trek_graph *graph, const trek_batch *batch, const char *function)
{
    if (!loader_of(graph, function) || trek_error_status() != TREK_OK)
        return NULL;
    if (!batch)
        return trek_fail_missing(function, "batch"), NULL;
    if (!batch->given || batch->dataset != trek_loader_dataset(graph->graph_loader->loader))
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: batch: %s", function,
                              batch->given ? "it is of another dataset than the graph's"
                                           : "it has ended; use it before the next one is taken");
    return trek_graph_stepper(graph);
}

trek_var *trek_graph_forward_batch(trek_graph *graph, const trek_batch *batch)
{
    trek_var *inputs[64];
    if (!stepper_for(graph, batch, "graph_forward_batch"))
        return NULL;
    if (batch->window)
        return trek_fail_null(
            TREK_ERR_UNSUPPORTED,
            "graph_forward_batch: batch: a window has no fields, since its ranks read them; use trek_graph_train_batch");
    if (trek_batch_fill(batch) != TREK_OK)
        return NULL;
    if (graph->layout.n_inputs > 64)
        return trek_fail_null(TREK_ERR_UNSUPPORTED, "graph_forward_batch: inputs: more than 64; at most 64 are possible");
    if (graph->graph_loader->by_loss)
        return trek_fail_null(
            TREK_ERR_STATE,
            "graph_forward_batch: trek_graph_set_loader was given no field for an input of the graph; each input needs one");
    for (int k = 0; k < graph->layout.n_inputs; k++)
        inputs[k] = batch->vars[graph->graph_loader->fields[k]];
    return trek_graph_forward_many(graph, inputs, graph->layout.n_inputs);
}

trek_var *trek_graph_train_batch(trek_graph *graph, trek_batch *batch)
{
    trek_stepper *s = stepper_for(graph, batch, "graph_train_batch");
    if (s && !graph->graph_loader->loss)
        return trek_fail_null(TREK_ERR_STATE, "graph_train_batch: no loss is registered; trek_graph_set_loss registers one");
    if (s && !s->klass->reads_parts && trek_batch_fill(batch) != TREK_OK) /* the batch was made for another stepper */
        return NULL;
    if (s && !graph->began_ns)
        graph->began_ns = trek_clock_ns();
    trek_var *loss = s ? s->klass->train_batch(s, batch) : NULL;
    const trek_graph_watch *watch = trek_graph_watched();
    if (watch && loss && graph->base.own->training)
        watch->loss(graph, loss);
    return loss;
}
