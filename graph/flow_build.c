/* SPDX-License-Identifier: Apache-2.0 */
/* From a flow to a graph: references are resolved, missing inputs are reported, modules become children of the graph,
 * and the route is planned. */
#include "graph/flow_internal.h"
#include "graph/verbs.h"

#include <stdio.h>
#include <string.h>

#include "nn/module_internal.h"
#include "tensor/debug.h"

static int input_names_count(const trek_module_class *klass)
{
    int n = 0;
    while (klass->input_names && klass->input_names[n])
        n++;
    return n;
}

/* Returns the state that carries `value` to the next forward, coded as an input; 0 if there is no memory. */
static int state_of(trek_flow *flow, int value)
{
    trek_graph_layout *l = &flow->layout;
    for (int k = 0; k < l->n_states; k++)
        if (l->states[k] == value)
            return ~k;
    if (trek_array_grow(&l->states, &l->cap_states, l->n_states + 1, sizeof *l->states) != TREK_OK) {
        flow->failed = true;
        return 0;
    }
    l->states[l->n_states++] = value;
    return ~(l->n_states - 1);
}

/* Finds the value or state that the reference reads. Returns false after a mistake, or if there is no memory. */
static bool resolve(trek_flow *flow, const trek_flow_reference *reference, int *input)
{
    trek_graph_layout *l = &flow->layout;
    int value = trek_graph_layout_find(l, reference->tag);
    if (value < 0) {
        trek_flow_mistake(flow, "using \"%s\" (%s): nothing has this tag", reference->tag,
                          l->nodes[reference->node].module->own->klass->name);
        return false;
    }
    *input = trek_graph_layout_producer(l, value) < reference->node ? value : state_of(flow, value);
    return !flow->failed;
}

/* Returns the index of the class's input of that name, or -1. */
static int named_place(const trek_module_class *klass, const char *name)
{
    for (int k = 0; klass->input_names && klass->input_names[k]; k++)
        if (strcmp(klass->input_names[k], name) == 0)
            return k;
    return -1;
}

static const char *place_name(const trek_flow_reference *reference)
{
    return reference->input ? reference->input : reference->tag;
}

/* Returns the index of a reference among the further inputs: by its name, otherwise the first free one. */
static int place_of(const trek_module_class *klass, const trek_flow_reference *reference, const bool *taken, int n_places)
{
    int named = named_place(klass, place_name(reference));
    if (named >= 0)
        return taken[named] ? n_places : named;
    for (int k = 0; k < n_places; k++)
        if (!taken[k])
            return k;
    return n_places;
}

#define MOST_INPUTS 64 /* of one module, besides the first */

/* Fills places[] with inputs in two rounds, so that a tag with the name of an input gets it whatever the order of the
 * calls. Returns how many there are, or -1 after a mistake. */
static int fill_places(trek_flow *flow, int index, int *places, int count)
{
    const trek_module_class *klass = trek_verb_taker(flow->layout.nodes[index].module)->own->klass;
    bool taken[MOST_INPUTS] = { false };
    int n_places = input_names_count(klass), used = 0;
    n_places = n_places && n_places < MOST_INPUTS ? n_places : MOST_INPUTS;
    if (count > n_places) {
        trek_flow_mistake(flow, "using: %s: got %d further inputs; it takes %d", klass->name, count, n_places);
        return -1;
    }
    for (int round = 0; round < 2; round++)
        for (int k = 0; k < flow->n_references; k++) {
            const trek_flow_reference *reference = &flow->references[k];
            bool named = named_place(klass, place_name(reference)) >= 0;
            if (reference->node != index || named != (round == 0))
                continue;
            if (reference->input && !named) {
                trek_flow_mistake(flow, "using \"%s\": %s has no input \"%s\"", reference->tag, klass->name, reference->input);
                return -1;
            }
            int place = place_of(klass, reference, taken, n_places);
            if (place >= n_places) {
                trek_flow_mistake(flow, "using \"%s\": given to %s twice", reference->tag, klass->name);
                return -1;
            }
            if (!resolve(flow, reference, &places[place]))
                return -1;
            taken[place] = true;
            used = place + 1 > used ? place + 1 : used;
        }
    for (int k = 0; k < used; k++)
        if (!taken[k] && klass->optional_inputs) {
            places[k] = TREK_GRAPH_NOTHING;
        } else if (!taken[k]) {
            trek_flow_mistake(flow, "using: input \"%s\" of %s is missing", klass->input_names[k], klass->name);
            return -1;
        }
    return used;
}

static void connect_node(trek_flow *flow, int index)
{
    trek_graph_node *node = &flow->layout.nodes[index];
    int count = 0, places[MOST_INPUTS];
    for (int k = 0; k < flow->n_references; k++)
        count += flow->references[k].node == index;
    if (count) {
        int used = fill_places(flow, index, places, count);
        if (used < 0)
            return;
        int *inputs = trek_realloc(node->inputs, (size_t)(1 + used) * sizeof *inputs);
        if (!inputs) {
            flow->failed = true;
            return;
        }
        memcpy(inputs + 1, places, (size_t)used * sizeof *inputs);
        node->inputs = inputs;
        node->n_inputs = 1 + used;
    }
    const trek_graph *nested = trek_graph_of(trek_verb_taker(node->module));
    if (nested && nested->layout.n_inputs != node->n_inputs)
        trek_flow_mistake(flow, "nested graph %d: got %d inputs; it takes %d", node->number, node->n_inputs,
                          nested->layout.n_inputs);
}

static bool is_read(const trek_graph_layout *l, int value)
{
    for (int k = 0; k < l->n_nodes; k++)
        for (int j = 0; j < l->nodes[k].n_inputs; j++)
            if (l->nodes[k].inputs[j] == value)
                return true;
    return l->output == value;
}

static void finish_layout(trek_flow *flow)
{
    trek_graph_layout *l = &flow->layout;
    if (!l->n_nodes && !flow->n_mistakes)
        trek_flow_mistake(flow, "build: no module was added");
    if (flow->n_streams > 1)
        trek_flow_mistake(flow, "build: %d streams are open; merge them first", flow->n_streams);
    for (int k = 0; k < l->n_nodes && !flow->failed; k++)
        if (l->nodes[k].module)
            connect_node(flow, k);
    l->output = flow->streams[0];
    for (int k = 0; k < l->n_inputs && !flow->n_mistakes && !flow->failed; k++)
        if (!is_read(l, l->inputs[k].value))
            trek_flow_mistake(flow, "build: nobody reads the input \"%s\"; hand it to a module by using, or leave it out",
                              l->inputs[k].name);
}

static bool is_first_node(const trek_graph_layout *l, int index)
{
    int k = 0;
    while (l->nodes[k].module != l->nodes[index].module)
        k++;
    return k == index;
}

/* Adds the graph's children: each module under the label or number of its first node. */
static trek_status add_children(trek_graph *graph)
{
    for (int k = 0; k < graph->layout.n_nodes; k++) {
        const trek_graph_node *node = &graph->layout.nodes[k];
        if (!node->module || !is_first_node(&graph->layout, k))
            continue; /* a merge, or a module that was already added */
        char number[16];
        snprintf(number, sizeof number, "%d", node->number);
        if (!trek_module_add(&graph->base, node->label ? node->label : number, TREK_NO_FIELD, node->module))
            return trek_error_status();
    }
    return TREK_OK;
}

/* The flow holds its modules meanwhile, so that none is freed together with an incomplete graph. */
static trek_graph *make_graph(trek_flow *flow)
{
    trek_graph *graph = (trek_graph *)trek_module_new(&trek_graph_class);
    if (!graph)
        return NULL;
    for (int k = 0; k < flow->n_modules; k++)
        flow->modules[k]->own->owners++;
    graph->accumulation.rows = -1;
    graph->layout = flow->layout;
    memset(&flow->layout, 0, sizeof flow->layout);
    if (add_children(graph) != TREK_OK || trek_graph_find_below(graph) != TREK_OK || trek_route_plan(graph) != TREK_OK)
        graph->base.own->failed = true;
    graph = (trek_graph *)trek_module_check(&graph->base);
    for (int k = 0; k < flow->n_modules; k++)
        flow->modules[k]->own->owners--;
    return graph;
}

trek_graph *trek_flow_build(trek_flow *flow)
{
    if (trek_gone(flow, "flow_build", "the flow"))
        return NULL;
    if (!flow) {
        trek_fail_missing("flow_build", "flow");
        return NULL;
    }
    finish_layout(flow);
    trek_graph *graph = NULL;
    int hidden = flow->n_mistakes - flow->n_told;
    if (flow->failed)
        trek_fail(TREK_ERR_MEMORY, "flow_build: out of memory");
    else if (hidden)
        trek_fail(TREK_ERR_ARGUMENT, "flow_build: %d mistakes:\n%s\nand %d more", flow->n_mistakes, flow->mistakes, hidden);
    else if (flow->n_mistakes > 1)
        trek_fail(TREK_ERR_ARGUMENT, "flow_build: %d mistakes:\n%s", flow->n_mistakes, flow->mistakes);
    else if (flow->n_mistakes)
        trek_fail(TREK_ERR_ARGUMENT, "flow_build: %s", flow->mistakes);
    else
        graph = make_graph(flow);
    trek_flow_free(&flow);
    return graph;
}
