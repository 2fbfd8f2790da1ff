/* SPDX-License-Identifier: Apache-2.0 */
/* The route: planned once, when the graph is built; walked by every forward.
 *
 * Each value has a slot. A step runs in a scope of its own, its result moves to
 * its slot, and slots whose last use it was are released. Tagged values stay
 * until the next forward, states until the next but one. */
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "graph/graph_internal.h"
#include "nn/layers_internal.h"
#include "nn/module_internal.h"
#include "nn/walk.h"
#include "tensor/trace.h"

#include <string.h>

/* --- planning ------------------------------------------------------------- */

/* For each value: the number of nodes' inputs that read it, and the last node that does. */
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
    /* What is read after the last node: the output, and what states carry on. */
    uses[l->output] = (value_uses){ uses[l->output].count + 1, l->n_nodes };
    for (int k = 0; k < l->n_states; k++)
        uses[l->states[k]] = (value_uses){ uses[l->states[k]].count + 1, l->n_nodes };
}

/* A linear whose result only the next node, a relu or gelu, sees: one step for both. */
static trek_activation fusable(const trek_graph *graph, const value_uses *uses, int k)
{
    const trek_graph_layout *l = &graph->layout;
    if (k + 1 >= l->n_nodes)
        return TREK_ACTIVATION_NONE;
    const trek_graph_node *linear = &l->nodes[k], *next = &l->nodes[k + 1];
    if (linear->kind != TREK_GRAPH_MODULE || next->kind != TREK_GRAPH_MODULE || linear->n_inputs != 1 || next->n_inputs != 1 ||
        next->inputs[0] != linear->output || uses[linear->output].count != 1 || graph->route.keeps[linear->output])
        return TREK_ACTIVATION_NONE;
    if (linear->module->klass != &trek_linear_class)
        return TREK_ACTIVATION_NONE;
    if (next->module->klass == &trek_relu_class)
        return TREK_ACTIVATION_RELU;
    return next->module->klass == &trek_gelu_class ? TREK_ACTIVATION_GELU : TREK_ACTIVATION_NONE;
}

static void plan_step(trek_graph *graph, const value_uses *uses, int k, trek_activation activation, int *n_places)
{
    const trek_graph_node *node = &graph->layout.nodes[k];
    trek_route *r = &graph->route;
    trek_route_step *step = &r->steps[r->n_steps++];
    const trek_module_class *klass = node->module ? node->module->klass : NULL;
    step->kind = activation ? TREK_ROUTE_LINEAR : !klass ? TREK_ROUTE_MERGE
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
        r->places[(*n_places)++] = step->output; /* a fork that nobody reads */
    step->n_drops = *n_places - step->first_drop;
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
    r->slots = trek_calloc(values, sizeof *r->slots);
    r->states = trek_calloc((size_t)l->n_states, sizeof *r->states);
    r->scratch = trek_calloc(widest, sizeof *r->scratch);
    bool made = r->steps && r->places && r->kept && r->owned && r->keeps && r->slots && r->states && r->scratch;
    return made ? TREK_OK : TREK_ERR_MEMORY;
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
        r->owned[l->inputs[k].value] = false; /* the caller's, for as long as forward lasts */
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
    return TREK_OK;
}

void trek_route_free(trek_graph *graph)
{
    trek_route *r = &graph->route;
    for (int k = 0; r->slots && k < graph->layout.n_values; k++)
        if (r->owned && r->owned[k])
            trek_var_release(r->slots[k]);
    for (int k = 0; r->states && k < graph->layout.n_states; k++)
        trek_var_release(r->states[k]);
    trek_free(r->steps);
    trek_free(r->places);
    trek_free(r->kept);
    trek_free(r->owned);
    trek_free(r->keeps);
    trek_free(r->slots);
    trek_free(r->states);
    trek_free(r->scratch);
    memset(r, 0, sizeof *r);
}

/* --- running -------------------------------------------------------------- */

/* What a state gives in the first forward: zeros like the module's first input. */
static trek_var *first_state(trek_var *primary)
{
    return trek_var_from(trek_tensor_zeros(trek_var_shape(primary), trek_var_dtype(primary), trek_var_device(primary)));
}

/* Those that were tagged go to their slots. */
static trek_var *run_results(trek_graph *graph, const trek_route_step *step)
{
    trek_route *r = &graph->route;
    const trek_graph_node *node = &graph->layout.nodes[step->node];
    trek_var *results[1 + TREK_MOST_RESULTS];
    if (trek_module_run_results(step->module, r->scratch, step->n_inputs, results, 1 + node->n_results) != TREK_OK)
        return NULL;
    for (int k = 0; k < node->n_results; k++)
        if (node->results[k] >= 0)
            r->slots[node->results[k]] = trek_var_retain(results[1 + k]);
    return results[0];
}

static trek_var *run_many(trek_graph *graph, const trek_route_step *step)
{
    trek_route *r = &graph->route;
    const int *places = r->places + step->first_input;
    for (int k = 0; k < step->n_inputs; k++) {
        trek_var *value = places[k] >= 0 ? r->slots[places[k]]
            : places[k] == TREK_GRAPH_NOTHING ? NULL : r->states[~places[k]];
        if (!value && !(step->module && step->module->klass->optional_inputs)) {
            value = first_state(r->slots[places[0]]);
            if (!value)
                return NULL;
        }
        r->scratch[k] = value;
    }
    if (step->kind == TREK_ROUTE_MERGE)
        return trek_graph_merge_run(&graph->layout.nodes[step->node], r->scratch, step->n_inputs);
    if (step->kind == TREK_ROUTE_RESULTS)
        return run_results(graph, step);
    return trek_module_run(step->module, r->scratch, step->n_inputs);
}

static trek_var *run_linear(trek_graph *graph, const trek_route_step *step)
{
    trek_var *x = graph->route.slots[graph->route.places[step->first_input]];
    return trek_linear_layer_run(step->module, x, (trek_activation)step->activation);
}

static trek_status run_step(trek_graph *graph, const trek_route_step *step)
{
    trek_route *r = &graph->route;
    trek_scope scope = trek_scope_begin();
    if (scope.depth == 0)
        return trek_error_status();
    int frame = step->kind != TREK_ROUTE_MERGE && trek_trace_records() ? trek_module_trace(step->module) : 0;
    trek_var *y;
    if (step->kind == TREK_ROUTE_ONE)
        y = trek_module_run(step->module, &r->slots[r->places[step->first_input]], 1);
    else if (step->kind == TREK_ROUTE_LINEAR)
        y = run_linear(graph, step);
    else
        y = run_many(graph, step);
    if (frame)
        trek_trace_end_frame(frame);
    r->slots[step->output] = y ? trek_var_retain(y) : NULL;
    trek_scope_end(scope);
    if (!y) {
        trek_status status = trek_error_status();
        return status != TREK_OK ? status
                                 : trek_fail(TREK_ERR_CALLBACK, "graph: module %s returned NULL", step->module->klass->name);
    }
    const int *drops = r->places + step->first_drop;
    for (int k = 0; k < step->n_drops; k++) {
        trek_var_release(r->slots[drops[k]]);
        r->slots[drops[k]] = NULL;
    }
    return TREK_OK;
}

/* After a failure: nothing of the pass stays. */
static void clear_slots(trek_graph *graph)
{
    for (int k = 0; k < graph->layout.n_values; k++) {
        if (graph->route.owned[k])
            trek_var_release(graph->route.slots[k]);
        graph->route.slots[k] = NULL;
    }
}

static trek_status take_inputs(trek_graph *graph, trek_var *const *inputs, int n)
{
    const trek_graph_layout *l = &graph->layout;
    trek_route *r = &graph->route;
    if (trek_scopes.depth == 0)
        return trek_fail(TREK_ERR_SCOPE, "trek_graph_forward: no scope is open; "
                                         "begin one with trek_scope_begin, or use a loader's loop");
    if (n != l->n_inputs)
        return trek_fail(TREK_ERR_ARGUMENT, "graph: takes %d input%s, got %d", l->n_inputs, l->n_inputs == 1 ? "" : "s", n);
    for (int k = 0; k < n; k++)
        if (!inputs || !inputs[k])
            return trek_fail_missing("trek_graph_forward", l->inputs[k].name);
    for (int k = 0; k < r->n_kept; k++) {
        trek_var_release(r->slots[r->kept[k]]);
        r->slots[r->kept[k]] = NULL;
    }
    for (int k = 0; k < n; k++) {
        int value = l->inputs[k].value;
        r->slots[value] = r->owned[value] ? trek_var_retain(inputs[k]) : inputs[k];
    }
    return TREK_OK;
}

/* Gives the output to the caller's scope: the slot's reference, or one more where the value stays in its slot. */
static trek_var *give_output(trek_graph *graph, bool stays)
{
    trek_var *y = graph->route.slots[graph->layout.output];
    if (stays)
        trek_var_retain(y);
    if (trek_scope_push(y, "trek_graph_forward") == TREK_OK)
        return y;
    if (stays)
        trek_var_release(y);
    return NULL;
}

/* What `using` carries to the next forward. */
static void keep_states(trek_graph *graph)
{
    trek_route *r = &graph->route;
    for (int k = 0; k < graph->layout.n_states; k++) {
        trek_var_release(r->states[k]);
        r->states[k] = trek_var_retain(r->slots[graph->layout.states[k]]);
    }
}

static void drop_state_sources(trek_graph *graph)
{
    trek_route *r = &graph->route;
    for (int k = 0; k < graph->layout.n_states; k++) {
        int value = graph->layout.states[k];
        if (r->owned[value] && !r->keeps[value]) {
            trek_var_release(r->slots[value]);
            r->slots[value] = NULL;
        }
    }
}

/* Where the step's error arose: in a module, by its path, or in a merge, by its tag. */
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

trek_var *trek_graph_run_route(trek_graph *graph, trek_var *const *inputs, int n)
{
    trek_route *r = &graph->route;
    const trek_graph_layout *l = &graph->layout;
    if (take_inputs(graph, inputs, n) != TREK_OK)
        return NULL;
    trek_status status = TREK_OK;
    bool clean = trek_error_status() == TREK_OK;
    int frame = trek_trace_records() ? trek_module_trace(&graph->base) : 0;
    for (int k = 0; k < r->n_steps && status == TREK_OK; k++) {
        status = run_step(graph, &r->steps[k]);
        if (status != TREK_OK && clean)
            tell_place(graph, &r->steps[k]);
    }
    if (frame)
        trek_trace_end_frame(frame);
    bool stays = !r->owned[l->output] || r->keeps[l->output];
    trek_var *y = status == TREK_OK ? give_output(graph, stays) : NULL;
    if (!y) {
        clear_slots(graph);
        return NULL;
    }
    keep_states(graph);
    if (!stays)
        r->slots[l->output] = NULL; /* the scope's now */
    drop_state_sources(graph);
    for (int k = 0; k < l->n_inputs; k++)
        if (!r->owned[l->inputs[k].value])
            r->slots[l->inputs[k].value] = NULL; /* the caller's from here on */
    return y;
}
