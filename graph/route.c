/* SPDX-License-Identifier: Apache-2.0 */
/* The route: planned once, when the graph is built, and followed by every forward.
 *
 * Each value has a slot. A step runs in its own scope, its result moves to its slot, and slots are released after
 * their last use. Slots are in a frame. The graph's own frame keeps tagged values until the next forward, and states
 * until the next but one. Calls without gradients by other threads each have their own frame. The plan is only read,
 * so any number of them can run at once. */
#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "graph/graph_internal.h"
#include "graph/verbs.h"
#include "nn/layers_internal.h"
#include "nn/module_internal.h"
#include "nn/walk.h"
#include "nn/watch.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

#include <string.h>

/* Counts calls of trek_route_apart_begin that have not ended. Its address identifies the thread. */
static _Thread_local int apart;

/* --- planning ------------------------------------------------------------- */

/* For each value: how many inputs of nodes read it, and the last node that does. */
typedef struct value_uses {
    int count, last;
} value_uses;

static void count_uses(const trek_graph_layout *l, value_uses *uses)
{
    for (int k = 0; k < l->n_values; k++)
        uses[k] = (value_uses){ 0, -1 };
    for (int k = 0; k < l->n_nodes; k++)
        for (int j = 0; j < l->nodes[k].n_inputs; j++)
            if (l->nodes[k].inputs[j] >= 0) {
                uses[l->nodes[k].inputs[j]].count++;
                uses[l->nodes[k].inputs[j]].last = k;
            }
    /* The output and what states carry on are read after the last node. */
    uses[l->output] = (value_uses){ uses[l->output].count + 1, l->n_nodes };
    for (int k = 0; k < l->n_states; k++)
        uses[l->states[k]] = (value_uses){ uses[l->states[k]].count + 1, l->n_nodes };
}

/* Finds a layer whose result only the next node reads, which is an activation that can be fused with it: one step
 * runs both. */
static trek_activation fusable(const trek_graph *graph, const value_uses *uses, int k)
{
    const trek_graph_layout *l = &graph->layout;
    if (k + 1 >= l->n_nodes)
        return TREK_ACTIVATION_NONE;
    const trek_graph_node *layer = &l->nodes[k], *next = &l->nodes[k + 1];
    if (layer->kind != TREK_GRAPH_MODULE || next->kind != TREK_GRAPH_MODULE || layer->n_inputs != 1 || next->n_inputs != 1 ||
        next->inputs[0] != layer->output || uses[layer->output].count != 1 || graph->route.keeps[layer->output])
        return TREK_ACTIVATION_NONE;
    return trek_layer_fuses(layer->module, next->module);
}

static void plan_step(trek_graph *graph, const value_uses *uses, int k, trek_activation activation, int *n_places)
{
    const trek_graph_node *node = &graph->layout.nodes[k];
    trek_route *r = &graph->route;
    trek_route_step *step = &r->steps[r->n_steps++];
    const trek_module_class *klass = node->module ? node->module->own->klass : NULL;
    step->kind = activation ? TREK_ROUTE_FUSED : !klass ? TREK_ROUTE_MERGE
        : node->n_results ? TREK_ROUTE_RESULTS : node->n_inputs == 1 && klass->forward ? TREK_ROUTE_ONE : TREK_ROUTE_MANY;
    step->activation = (uint8_t)activation;
    step->module = node->module;
    step->node = k;
    step->n_inputs = node->n_inputs;
    step->first_input = *n_places;
    memcpy(r->places + *n_places, node->inputs, (size_t)node->n_inputs * sizeof *node->inputs);
    *n_places += node->n_inputs;
    step->first_drop = *n_places;
    for (int j = 0; j < node->n_inputs; j++) {
        int value = node->inputs[j];
        bool seen = false;
        for (int i = 0; i < j; i++)
            seen |= node->inputs[i] == value;
        if (value >= 0 && !seen && uses[value].last == k && r->owned[value] && !r->keeps[value])
            r->places[(*n_places)++] = value;
    }
    step->output = activation ? graph->layout.nodes[k + 1].output : node->output;
    if (uses[step->output].count == 0 && !r->keeps[step->output])
        r->places[(*n_places)++] = step->output; /* a fork that nothing reads */
    step->n_drops = *n_places - step->first_drop;
}

/* Allocates a frame as one block. */
static trek_status frame_begin(const trek_graph *graph, trek_route_frame *f)
{
    size_t values = (size_t)graph->layout.n_values, states = (size_t)graph->layout.n_states;
    f->slots = trek_calloc(values + states + (size_t)graph->route.widest, sizeof *f->slots);
    f->states = f->slots ? f->slots + values : NULL;
    f->scratch = f->slots ? f->states + states : NULL;
    return f->slots ? TREK_OK : TREK_ERR_MEMORY;
}

static void frame_end(const trek_graph *graph, trek_route_frame *f)
{
    for (int k = 0; f->slots && k < graph->layout.n_values; k++)
        if (graph->route.owned[k])
            trek_var_release(f->slots[k]);
    for (int k = 0; f->slots && k < graph->layout.n_states; k++)
        trek_var_release(f->states[k]);
    trek_free(f->slots);
}

static trek_status plan_arrays(trek_graph *graph)
{
    const trek_graph_layout *l = &graph->layout;
    trek_route *r = &graph->route;
    size_t values = (size_t)l->n_values, inputs = 0, widest = 1;
    for (int k = 0; k < l->n_nodes; k++) {
        inputs += (size_t)l->nodes[k].n_inputs;
        widest = (size_t)l->nodes[k].n_inputs > widest ? (size_t)l->nodes[k].n_inputs : widest;
    }
    r->steps = trek_calloc((size_t)l->n_nodes, sizeof *r->steps);
    r->places = trek_calloc(2 * inputs + (size_t)l->n_nodes, sizeof *r->places);
    r->kept = trek_calloc((size_t)l->n_tags, sizeof *r->kept);
    r->owned = trek_calloc(values, sizeof *r->owned);
    r->keeps = trek_calloc(values, sizeof *r->keeps);
    r->widest = (int)widest;
    bool made = r->steps && r->places && r->kept && r->owned && r->keeps;
    return made ? frame_begin(graph, &r->frame) : TREK_ERR_MEMORY;
}

trek_status trek_route_plan(trek_graph *graph)
{
    const trek_graph_layout *l = &graph->layout;
    trek_route *r = &graph->route;
    if (plan_arrays(graph) != TREK_OK)
        return TREK_ERR_MEMORY;
    value_uses *uses = trek_alloc((size_t)l->n_values * sizeof *uses);
    if (!uses)
        return TREK_ERR_MEMORY;
    count_uses(l, uses);
    for (int k = 0; k < l->n_values; k++)
        r->owned[k] = true;
    for (int k = 0; k < l->n_inputs; k++)
        r->owned[l->inputs[k].value] = false; /* the caller's, until forward ends */
    for (int k = 0; k < l->n_tags; k++)
        if (!r->keeps[l->tags[k].value]) {
            r->keeps[l->tags[k].value] = r->owned[l->tags[k].value] = true;
            r->kept[r->n_kept++] = l->tags[k].value;
        }
    int n_places = 0;
    for (int k = 0; k < l->n_nodes; k++) {
        trek_activation activation = fusable(graph, uses, k);
        plan_step(graph, uses, k, activation, &n_places);
        k += activation != TREK_ACTIVATION_NONE;
    }
    trek_free(uses);
    atomic_store_explicit(&r->owner, &apart, memory_order_relaxed);
    return TREK_OK;
}

void trek_route_free(trek_graph *graph)
{
    trek_route *r = &graph->route;
    frame_end(graph, &r->frame);
    trek_free(r->steps);
    trek_free(r->places);
    trek_free(r->kept);
    trek_free(r->owned);
    trek_free(r->keeps);
    *r = (trek_route){ 0 };
}

/* --- running -------------------------------------------------------------- */

/* Returns the value of a state in the first forward: zeros like the module's first input. */
static trek_var *first_state(trek_var *primary)
{
    return trek_var_from(trek_tensor_zeros(trek_var_shape(primary), trek_var_dtype(primary), trek_var_device(primary)));
}

/* Stores the tagged results in their slots. */
static trek_var *run_results(const trek_graph *graph, trek_route_frame *f, const trek_route_step *step)
{
    const trek_graph_node *node = &graph->layout.nodes[step->node];
    trek_var *results[1 + TREK_MOST_RESULTS];
    if (trek_module_run_results(step->module, f->scratch, step->n_inputs, results, 1 + node->n_results) != TREK_OK)
        return NULL;
    for (int k = 0; k < node->n_results; k++)
        if (node->results[k] >= 0)
            f->slots[node->results[k]] = trek_var_retain(results[1 + k]);
    return results[0];
}

static trek_var *run_many(const trek_graph *graph, trek_route_frame *f, const trek_route_step *step)
{
    const int *places = graph->route.places + step->first_input;
    for (int k = 0; k < step->n_inputs; k++) {
        trek_var *value = places[k] >= 0 ? f->slots[places[k]]
            : places[k] == TREK_GRAPH_NOTHING ? NULL : f->states[~places[k]];
        if (!value && !(step->module && trek_verb_taker(step->module)->own->klass->optional_inputs)) {
            value = first_state(f->slots[places[0]]);
            if (!value)
                return NULL;
        }
        f->scratch[k] = value;
    }
    if (step->kind == TREK_ROUTE_MERGE)
        return trek_graph_merge_run(&graph->layout.nodes[step->node], f->scratch, step->n_inputs);
    if (step->kind == TREK_ROUTE_RESULTS)
        return run_results(graph, f, step);
    return trek_module_run(step->module, f->scratch, step->n_inputs);
}

static trek_var *run_fused(const trek_graph *graph, trek_route_frame *f, const trek_route_step *step)
{
    trek_var *x = f->slots[graph->route.places[step->first_input]];
    if (trek_module_unfuses()) { /* the watcher must see both */
        trek_var *y = trek_module_run(step->module, &x, 1);
        return y ? trek_module_run(graph->layout.nodes[step->node + 1].module, &y, 1) : NULL;
    }
    return trek_layer_run_fused(step->module, x, (trek_activation)step->activation);
}

static trek_status run_step(const trek_graph *graph, trek_route_frame *f, const trek_route_step *step)
{
    const trek_route *r = &graph->route;
    trek_scope scope = trek_scope_begin();
    if (scope.depth == 0)
        return trek_error_status();
    int frame = step->kind != TREK_ROUTE_MERGE && trek_trace_records() ? trek_module_trace(step->module) : 0;
    trek_var *y;
    if (step->kind == TREK_ROUTE_ONE)
        y = trek_module_run(step->module, &f->slots[r->places[step->first_input]], 1);
    else if (step->kind == TREK_ROUTE_FUSED)
        y = run_fused(graph, f, step);
    else
        y = run_many(graph, f, step);
    if (frame)
        trek_trace_end_module(frame, y ? trek_var_data(y) : NULL);
    f->slots[step->output] = y ? trek_var_retain(y) : NULL;
    trek_scope_end(scope);
    if (!y) {
        trek_status status = trek_error_status();
        return status != TREK_OK
                   ? status
                   : trek_fail(TREK_ERR_CALLBACK, "graph: module: the forward of %s returned NULL; it must return a result",
                               step->module->own->klass->name);
    }
    const int *drops = r->places + step->first_drop;
    for (int k = 0; k < step->n_drops; k++) {
        trek_var_release(f->slots[drops[k]]);
        f->slots[drops[k]] = NULL;
    }
    return TREK_OK;
}

/* After a failure nothing of the pass remains. */
static void clear_slots(const trek_graph *graph, trek_route_frame *f)
{
    for (int k = 0; k < graph->layout.n_values; k++) {
        if (graph->route.owned[k])
            trek_var_release(f->slots[k]);
        f->slots[k] = NULL;
    }
}

static trek_status take_inputs(const trek_graph *graph, trek_route_frame *f, trek_var *const *inputs, int n)
{
    const trek_graph_layout *l = &graph->layout;
    const trek_route *r = &graph->route;
    if (trek_scopes.depth == 0)
        return trek_fail(TREK_ERR_SCOPE,
                         "graph_forward: no scope is open; begin one with trek_scope_begin, or use a loader's loop");
    if (n != l->n_inputs)
        return trek_fail(TREK_ERR_ARGUMENT, "graph: inputs: %d; the graph takes %d", n, l->n_inputs);
    for (int k = 0; k < n; k++)
        if (!inputs || !inputs[k])
            return trek_fail_missing("graph_forward", l->inputs[k].name);
    for (int k = 0; k < r->n_kept; k++) {
        trek_var_release(f->slots[r->kept[k]]);
        f->slots[r->kept[k]] = NULL;
    }
    for (int k = 0; k < n; k++) {
        int value = l->inputs[k].value;
        f->slots[value] = r->owned[value] ? trek_var_retain(inputs[k]) : inputs[k];
    }
    return TREK_OK;
}

/* Gives the output to the caller's scope: the slot's reference, or another one if the value stays in its slot. */
static trek_var *give_output(const trek_graph *graph, trek_route_frame *f, bool stays)
{
    trek_var *y = f->slots[graph->layout.output];
    if (stays)
        trek_var_retain(y);
    if (trek_scope_push(y, "graph_forward") == TREK_OK)
        return y;
    if (stays)
        trek_var_release(y);
    return NULL;
}

/* Stores what `using` carries to the next forward. */
static void keep_states(const trek_graph *graph, trek_route_frame *f)
{
    for (int k = 0; k < graph->layout.n_states; k++) {
        trek_var_release(f->states[k]);
        f->states[k] = trek_var_retain(f->slots[graph->layout.states[k]]);
    }
}

static void drop_state_sources(const trek_graph *graph, trek_route_frame *f)
{
    const trek_route *r = &graph->route;
    for (int k = 0; k < graph->layout.n_states; k++) {
        int value = graph->layout.states[k];
        if (r->owned[value] && !r->keeps[value]) {
            trek_var_release(f->slots[value]);
            f->slots[value] = NULL;
        }
    }
}

/* Says where the step's error arose: in a module, by its path, or in a merge, by its tag. */
static void tell_place(trek_graph *graph, const trek_route_step *step)
{
    const trek_graph_layout *l = &graph->layout;
    if (step->kind != TREK_ROUTE_MERGE) {
        trek_module_tell_place(&graph->base, step->module);
        return;
    }
    for (int k = 0; k < l->n_tags; k++)
        if (l->tags[k].value == l->nodes[step->node].output)
            trek_error_place(graph, l->tags[k].name, "merge");
}

static trek_status run_steps(trek_graph *graph, trek_route_frame *f)
{
    const trek_route *r = &graph->route;
    trek_status status = TREK_OK;
    bool clean = trek_error_status() == TREK_OK;
    int trace = trek_trace_records() ? trek_module_trace(&graph->base) : 0;
    for (int k = 0; k < r->n_steps && status == TREK_OK; k++) {
        status = run_step(graph, f, &r->steps[k]);
        if (status != TREK_OK && clean)
            tell_place(graph, &r->steps[k]);
    }
    if (trace)
        trek_trace_end_module(trace, status == TREK_OK ? trek_var_data(f->slots[graph->layout.output]) : NULL);
    return status;
}

static trek_var *run_in(trek_graph *graph, trek_route_frame *f, trek_var *const *inputs, int n)
{
    const trek_route *r = &graph->route;
    const trek_graph_layout *l = &graph->layout;
    if (take_inputs(graph, f, inputs, n) != TREK_OK)
        return NULL;
    bool stays = !r->owned[l->output] || r->keeps[l->output];
    trek_var *y = run_steps(graph, f) == TREK_OK ? give_output(graph, f, stays) : NULL;
    if (!y) {
        clear_slots(graph, f);
        return NULL;
    }
    keep_states(graph, f);
    if (!stays)
        f->slots[l->output] = NULL; /* the scope owns it now */
    drop_state_sources(graph, f);
    for (int k = 0; k < l->n_inputs; k++)
        if (!r->owned[l->inputs[k].value])
            f->slots[l->inputs[k].value] = NULL; /* the caller owns it from here on */
    return y;
}

/* --- frames ---------------------------------------------------------------- */

void trek_route_apart_begin(void) { apart++; }
void trek_route_apart_end(void) { apart--; }
bool trek_route_is_apart(void) { return apart > 0; }

bool trek_route_is_mine(const trek_graph *graph)
{
    if (trek_route_is_apart())
        return false;
    return trek_grad_enabled() || trek_rank_here.world > 1 ||
        atomic_load_explicit(&graph->route.owner, memory_order_relaxed) == &apart;
}

static void claim(trek_graph *graph)
{
    if (atomic_load_explicit(&graph->route.owner, memory_order_relaxed) != &apart)
        atomic_store_explicit(&graph->route.owner, &apart, memory_order_relaxed);
}

/* Puts the requested tagged values into the caller's scope. */
static trek_status give_tags(const trek_graph *graph, const trek_route_frame *f, const int *tags, trek_var **values, int n)
{
    for (int k = 0; k < n; k++) {
        trek_var *value = f->slots[graph->layout.tags[tags[k]].value];
        if (trek_scope_push(trek_var_retain(value), "graph_infer") != TREK_OK) {
            trek_var_release(value);
            return trek_error_status();
        }
        values[k] = value;
    }
    return TREK_OK;
}

static trek_var *run_apart(trek_graph *graph, trek_var *const *inputs, int n, const int *tags, trek_var **values, int n_tags)
{
    trek_route_frame f;
    if (frame_begin(graph, &f) != TREK_OK)
        return NULL;
    trek_var *y = run_in(graph, &f, inputs, n);
    if (y && give_tags(graph, &f, tags, values, n_tags) != TREK_OK)
        y = NULL;
    frame_end(graph, &f);
    return y;
}

trek_var *trek_graph_run_route(trek_graph *graph, trek_var *const *inputs, int n)
{
    if (!trek_route_is_mine(graph))
        return run_apart(graph, inputs, n, NULL, NULL, 0);
    if (trek_grad_enabled())
        claim(graph);
    return run_in(graph, &graph->route.frame, inputs, n);
}

trek_var *trek_route_infer(trek_graph *graph, trek_var *const *inputs, int n, const int *tags, trek_var **values, int n_tags)
{
    trek_route_apart_begin();
    trek_no_grad_begin();
    trek_autocast_begin(graph->autocast);
    trek_var *y = run_apart(graph, inputs, n, tags, values, n_tags);
    trek_autocast_end();
    bool low = y && graph->autocast != TREK_F32 && trek_dtype_is_16bit(trek_var_dtype(y));
    y = low ? trek_cast(y, TREK_F32) : y;
    trek_no_grad_end();
    trek_route_apart_end();
    return y;
}
