/* SPDX-License-Identifier: Apache-2.0 */
/* Loaders on graphs and registered losses: the public calls, which go to the stepper. */
#include "graph/graph_loader.h"

#include "data/loader_position.h"
#include "data/stream.h"
#include "graph/graph_loader_internal.h"
#include "graph/watch.h"
#include "nn/module_internal.h"
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
    int64_t most = graph->graph_loader->most_batches;
    if (window > 0)
        return trek_loader_next_window(loader, most > 0 && most < window ? most : window);
    return parts ? trek_loader_next_parts(loader) : trek_loader_next(loader);
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
