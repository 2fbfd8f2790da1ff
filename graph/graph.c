/* SPDX-License-Identifier: Apache-2.0 */
/* A graph as a module, and as the object of a training loop: its calls go to its stepper. */
#include "graph/graph_internal.h"
#include "graph/batch_run.h"
#include "graph/observe_internal.h"
#include "graph/tree.h"
#include "graph/verbs.h"
#include "graph/watch.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "nn/module_values.h"
#include "optim/schedules.h"

#include <math.h>
#include <string.h>

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "nn/kv_cache_internal.h"
#include "optim/optimizer_internal.h"
#include "tensor/debug.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

/* --- layout ---------------------------------------------------------------- */

static void free_names(trek_graph_name *names, int n)
{
    for (int k = 0; k < n; k++)
        trek_free(names[k].name);
    trek_free(names);
}

void trek_graph_layout_free(trek_graph_layout *layout)
{
    for (int k = 0; k < layout->n_nodes; k++) {
        trek_free(layout->nodes[k].label);
        trek_free(layout->nodes[k].inputs);
        trek_free(layout->nodes[k].results);
    }
    trek_free(layout->nodes);
    free_names(layout->inputs, layout->n_inputs);
    free_names(layout->tags, layout->n_tags);
    trek_free(layout->states);
    memset(layout, 0, sizeof *layout);
}

int trek_graph_layout_find(const trek_graph_layout *layout, const char *name)
{
    int k = trek_graph_find_name(layout->tags, layout->n_tags, name);
    if (k >= 0)
        return layout->tags[k].value;
    k = trek_graph_find_name(layout->inputs, layout->n_inputs, name);
    return k >= 0 ? layout->inputs[k].value : -1;
}

int trek_graph_layout_producer(const trek_graph_layout *layout, int value)
{
    for (int k = 0; k < layout->n_nodes; k++) {
        const trek_graph_node *node = &layout->nodes[k];
        if (node->output == value)
            return k;
        for (int j = 0; j < node->n_results; j++)
            if (node->results[j] == value)
                return k;
    }
    return -1;
}

/* --- the module ------------------------------------------------------------- */

/* A graph that trains on several ranks also uses them when it is run as a module (by methods of a task head). A rank
 * within its run only runs its own part. */
static trek_var *forward_many(trek_module *self, trek_var *const *inputs, int n)
{
    trek_graph *graph = (trek_graph *)self;
    if (!trek_route_is_mine(graph) || trek_caching())
        return trek_graph_run_route(graph, inputs, n);
    trek_stepper *s = trek_rank_here.world <= 1 ? graph->stepper : NULL;
    bool splits = s && s->klass->world_size(s) > 1 && !trek_recording_of(graph);
    return splits ? s->klass->forward(s, inputs, n) : trek_graph_run_route(graph, inputs, n);
}

static trek_var *forward_one(trek_module *self, trek_var *x) { return forward_many(self, &x, 1); }

static void free_parts(trek_module *self)
{
    trek_graph *graph = (trek_graph *)self;
    const trek_graph_watch *watch = trek_graph_watched();
    if (watch)
        watch->freed(graph);
    if (graph->captures)
        graph->captures_class->free(graph);
    if (graph->stepper)
        graph->stepper->klass->free(graph->stepper);
    trek_grad_scaler_free(&graph->scaler);
    trek_free(graph->settings.replicated);
    trek_constants_end(&graph->constants);
    trek_graph_loader_free(graph);
    trek_observations_free(graph);
    trek_free(graph->below);
    trek_free(graph->unjoined);
    trek_free(graph->loops);
    trek_route_free(graph);
    trek_graph_layout_free(&graph->layout);
}

const trek_module_class trek_graph_class = {
    .name = "graph", .size = sizeof(trek_graph), .forward = forward_one, .forward_many = forward_many, .free = free_parts,
};

trek_module *trek_graph_module(trek_graph *graph) { return (trek_module *)graph; }

trek_graph *trek_graph_of(trek_module *module)
{
    return module && !trek_gone(module, "graph_from_module", "the module") &&
        module->own->klass == &trek_graph_class ? (trek_graph *)module : NULL;
}

trek_graph *trek_graph_from_module(trek_module *module)
{
    if (!module)
        return trek_fail_missing("graph_from_module", "module"), NULL;
    trek_graph *graph = trek_graph_of(module);
    if (!graph && trek_error_status() == TREK_OK)
        trek_fail(
            TREK_ERR_ARGUMENT,
            "graph_from_module: module: it is of class \"%s\"; must be a graph: trek_flow_build(trek_flow_from(module)) makes "
            "one of it",
            module->own->klass->name);
    return graph;
}

void trek_graph_free(trek_graph **graph)
{
    if (!graph || !*graph)
        return;
    trek_module *module = &(*graph)->base;
    trek_module_free(&module);
    if (!module)
        *graph = NULL;
}

/* --- graphs below ------------------------------------------------------------ */

static trek_status remember_part(const char *name, trek_module *module, void *arg)
{
    (void)name;
    trek_graph *graph = arg, *found = trek_graph_of(module);
    if (trek_is_loop(module)) {
        if (trek_array_grow(&graph->loops, &graph->cap_loops, graph->n_loops + 1, sizeof *graph->loops) != TREK_OK)
            return TREK_ERR_MEMORY;
        graph->loops[graph->n_loops++] = module;
    }
    if (!found || found == graph)
        return TREK_OK;
    if (trek_array_grow(&graph->below, &graph->cap_below, graph->n_below + 1, sizeof *graph->below) != TREK_OK)
        return TREK_ERR_MEMORY;
    graph->below[graph->n_below++] = found;
    return TREK_OK;
}

trek_status trek_graph_find_below(trek_graph *graph) { return trek_module_each(&graph->base, remember_part, graph); }

/* --- the stepper -------------------------------------------------------------- */

trek_stepper *trek_graph_stepper(trek_graph *graph)
{
    if (!graph->stepper)
        graph->stepper = trek_stepper_single_new(graph);
    return graph->stepper;
}

trek_status trek_graph_set_stepper(trek_graph *graph, trek_stepper *stepper)
{
    if (!graph || !stepper) {
        if (stepper)
            stepper->klass->free(stepper);
        return trek_fail_missing("graph_set_stepper", graph ? "stepper" : "graph");
    }
    if (graph->captures && !graph->captures_class->drop(graph)) {
        stepper->klass->free(stepper);
        return trek_fail(
            TREK_ERR_STATE,
            "graph_set_stepper: called while the graph's step function runs; what trains the graph cannot change then");
    }
    trek_stepper *old = graph->stepper;
    graph->stepper = stepper;
    stepper->graph = graph;
    if (old)
        old->klass->free(old);
    return TREK_OK;
}

/* Returns the graph's stepper, or NULL and an error. */
static inline trek_stepper *stepper_of(trek_graph *graph, const char *function)
{
    if (!graph) {
        trek_fail_missing(function, "graph");
        return NULL;
    }
    if (trek_gone(graph, function, "the graph"))
        return NULL;
    return graph->stepper ? graph->stepper : trek_graph_stepper(graph);
}

/* Runs under the graph's autocast, and casts a 16-bit result to f32. */
static trek_var *forward_cast(trek_graph *graph, trek_var *const *inputs, int n)
{
    trek_autocast_begin(graph->autocast);
    trek_var *y = graph->stepper->klass->forward(graph->stepper, inputs, n);
    trek_autocast_end();
    bool low = y && trek_dtype_is_16bit(trek_var_dtype(y));
    return low ? trek_cast(y, TREK_F32) : y;
}

static inline void note_begin(trek_graph *graph)
{
    if (!graph->began_ns)
        graph->began_ns = trek_clock_ns();
}

/* A thread other than the graph's that records nothing does not use the stepper. */
static trek_var *forward_by_stepper(const char *function, trek_graph *graph, trek_var *const *inputs, int n)
{
    if (graph && !trek_gone(graph, function, "the graph") && !trek_route_is_mine(graph))
        return trek_graph_forward_here(graph, inputs, n);
    trek_stepper *s = stepper_of(graph, function);
    if (s)
        note_begin(graph);
    if (s && trek_recording_of(graph))
        return trek_graph_forward_here(graph, inputs, n);
    if (s && graph->autocast != TREK_F32)
        return forward_cast(graph, inputs, n);
    return s ? s->klass->forward(s, inputs, n) : NULL;
}

trek_var *trek_graph_forward(trek_graph *graph, trek_var *x)
{
    return forward_by_stepper("graph_forward", graph, &x, 1);
}

trek_var *trek_graph_forward_many(trek_graph *graph, trek_var *const *inputs, int n)
{
    return forward_by_stepper("graph_forward_many", graph, inputs, n);
}

trek_var *trek_graph_infer(trek_graph *graph, trek_var *const *inputs, int n, const char *const *tags, trek_var **values,
                           int n_tags)
{
    enum { MOST = 64 };
    int numbers[MOST];
    if (n_tags < 0 || n_tags > MOST)
        return trek_fail_null(TREK_ERR_ARGUMENT, "graph_infer: n_tags: %d; must be 0 to %d", n_tags, MOST);
    for (int k = 0; values && k < n_tags; k++)
        values[k] = NULL;
    if (!graph || (n_tags > 0 && (!tags || !values))) {
        trek_fail_missing("graph_infer", !graph ? "graph" : tags ? "values" : "tags");
        return NULL;
    }
    if (trek_gone(graph, "graph_infer", "the graph"))
        return NULL;
    for (int k = 0; k < n_tags; k++) {
        numbers[k] = tags[k] ? trek_graph_find_name(graph->layout.tags, graph->layout.n_tags, tags[k]) : -1;
        if (numbers[k] < 0)
            return trek_fail_null(TREK_ERR_ARGUMENT, "graph_infer: tags: nothing is tagged \"%s\"", tags[k] ? tags[k] : "");
    }
    trek_var *y = trek_route_infer(graph, inputs, n, numbers, values, n_tags);
    for (int k = 0; k < n_tags && !y; k++)
        values[k] = NULL;
    return y;
}

static trek_status backward(trek_stepper *s, trek_var *loss, double weight)
{
    trek_status status = s->klass->backward(s, loss, weight);
    const trek_graph_watch *watch = trek_graph_watched();
    if (watch && status == TREK_OK)
        watch->loss(s->graph, loss);
    return status;
}

trek_status trek_graph_backward(trek_graph *graph, trek_var *loss)
{
    trek_stepper *s = stepper_of(graph, "graph_backward");
    if (!s)
        return trek_error_status();
    return loss ? backward(s, loss, -1) : trek_fail_missing("graph_backward", "loss");
}

trek_status trek_graph_backward_weighted(trek_graph *graph, trek_var *loss, double weight)
{
    trek_stepper *s = stepper_of(graph, "graph_backward_weighted");
    if (!s)
        return trek_error_status();
    if (!(weight >= 0) || isinf(weight))
        return trek_fail(TREK_ERR_ARGUMENT, "graph_backward_weighted: weight: %g; must be finite and not negative", weight);
    return loss ? backward(s, loss, weight) : trek_fail_missing("graph_backward_weighted", "loss");
}

trek_status trek_graph_grad(trek_graph *graph, trek_var *loss, trek_var *const *inputs, int n, const trek_backward_opts *opts,
                            trek_var **grads)
{
    trek_stepper *s = stepper_of(graph, "graph_grad");
    if (!s)
        return trek_error_status();
    return loss ? s->klass->grad(s, loss, inputs, n, opts, grads) : trek_fail_missing("graph_grad", "loss");
}

trek_status trek_graph_reduce(trek_graph *graph)
{
    trek_stepper *s = stepper_of(graph, "graph_reduce");
    return s ? s->klass->reduce(s) : trek_error_status();
}

trek_status trek_graph_step(trek_graph *graph)
{
    trek_stepper *s = stepper_of(graph, "graph_step");
    const trek_graph_watch *watch = trek_graph_watched();
    if (!s || !watch)
        return s ? s->klass->step(s) : trek_error_status();
    watch->stepping(graph);
    trek_status status = s->klass->step(s);
    if (status == TREK_OK)
        watch->stepped(graph);
    return status;
}

trek_status trek_graph_zero_grad(trek_graph *graph)
{
    trek_stepper *s = stepper_of(graph, "graph_zero_grad");
    return s ? s->klass->zero_grad(s) : trek_error_status();
}

trek_status trek_graph_set_optimizer(trek_graph *graph, trek_optimizer_spec spec)
{
    trek_stepper *s = stepper_of(graph, "graph_set_optimizer");
    trek_status status = s ? trek_optimizer_spec_check(&spec) : trek_error_status();
    return status == TREK_OK ? s->klass->set_optimizer(s, &(trek_optimizer_source){ .spec = &spec }) : status;
}

trek_status trek_graph_set_schedule(trek_graph *graph, const trek_schedule *schedule)
{
    if (!graph)
        return trek_fail_missing("graph_set_schedule", "graph");
    if (schedule && isnan(trek_schedule_lr(schedule, 0)))
        return trek_error_status();
    graph->settings.schedule = schedule ? *schedule : (trek_schedule){ .kind = TREK_SCHEDULE_KIND_NONE };
    return TREK_OK;
}

trek_status trek_graph_set_lr(trek_graph *graph, double lr)
{
    trek_stepper *s = stepper_of(graph, "graph_set_lr");
    trek_status status = s ? s->klass->set_lr(s, lr) : trek_error_status();
    if (status == TREK_OK)
        graph->settings.schedule.kind = TREK_SCHEDULE_KIND_NONE;
    return status;
}

trek_status trek_graph_set_clip(trek_graph *graph, double max_norm, double max_value)
{
    if (!graph)
        return trek_fail_missing("graph_set_clip", "graph");
    if (isnan(max_norm) || isnan(max_value))
        return trek_fail(TREK_ERR_ARGUMENT, "graph_set_clip: limit: NaN; must be a number");
    graph->settings.max_norm = max_norm;
    graph->settings.max_value = max_value;
    return TREK_OK;
}

trek_status trek_graph_train(trek_graph *graph, bool training)
{
    return trek_graph_train_at(graph, NULL, training);
}

/* Replicas take over these flags before their next pass. */
trek_status trek_graph_train_at(trek_graph *graph, const char *path, bool training)
{
    trek_module *module = stepper_of(graph, "graph_train") ? trek_graph_at(graph, path) : NULL;
    return module ? trek_module_train(module, training) : trek_error_status();
}

trek_status trek_graph_freeze(trek_graph *graph, const char *path)
{
    trek_module *module = stepper_of(graph, "graph_freeze") ? trek_graph_at(graph, path) : NULL;
    return module ? trek_module_freeze(module) : trek_error_status();
}

trek_status trek_graph_thaw(trek_graph *graph, const char *path)
{
    trek_module *module = stepper_of(graph, "graph_thaw") ? trek_graph_at(graph, path) : NULL;
    return module ? trek_module_thaw(module) : trek_error_status();
}

trek_status trek_graph_parameters_changed(trek_graph *graph)
{
    trek_stepper *s = stepper_of(graph, "graph_parameters_changed");
    return s ? s->klass->parameters_changed(s) : trek_error_status();
}

trek_status trek_graph_replicate_input(trek_graph *graph, const char *input)
{
    if (!graph || !input)
        return trek_fail_missing("graph_replicate_input", graph ? "input" : "graph");
    int k = trek_graph_find_name(graph->layout.inputs, graph->layout.n_inputs, input);
    if (k < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "graph_replicate_input: input: the graph has no input \"%s\"", input);
    bool **replicated = &graph->settings.replicated;
    if (!*replicated && !(*replicated = trek_calloc((size_t)graph->layout.n_inputs, sizeof **replicated)))
        return trek_error_status();
    (*replicated)[k] = true;
    return TREK_OK;
}

int trek_graph_world_size(trek_graph *graph)
{
    trek_stepper *s = stepper_of(graph, "graph_world_size");
    return s ? s->klass->world_size(s) : 0;
}

int trek_graph_shares(trek_graph *graph, double *shares, int capacity)
{
    trek_stepper *s = stepper_of(graph, "graph_shares");
    return s ? s->klass->shares(s, shares, shares ? capacity : 0) : 0;
}

double trek_graph_lr(trek_graph *graph)
{
    trek_stepper *s = stepper_of(graph, "graph_lr");
    return s ? s->klass->lr(s) : (double)NAN;
}

int64_t trek_graph_steps(trek_graph *graph)
{
    if (!graph)
        trek_fail_missing("graph_steps", "graph");
    return graph ? graph->settings.steps : 0;
}

double trek_graph_grad_norm(trek_graph *graph)
{
    trek_stepper *s = stepper_of(graph, "graph_grad_norm");
    return s ? s->klass->grad_norm(s) : (double)NAN;
}

trek_optimizer *trek_graph_optimizer(trek_graph *graph)
{
    trek_stepper *s = stepper_of(graph, "graph_optimizer");
    return s ? s->klass->optimizer(s) : NULL;
}
