/* SPDX-License-Identifier: Apache-2.0 */
/* A graph in Graphviz' language: modules as boxes, merges as circles, states as dashed edges. */
#include "graph/graph_internal.h"

static void write_node(trek_text *text, const trek_graph_layout *l, int index)
{
    static const char *const merges[] = { "", "+", "mean", "cat" };
    const trek_graph_node *node = &l->nodes[index];
    trek_text_format(text, "    v%d [label=\"", node->output);
    if (node->module) {
        char details[128] = "";
        if (node->module->klass->describe)
            node->module->klass->describe(node->module, details, sizeof details);
        if (node->label) {
            trek_text_add_escaped(text, node->label);
            trek_text_add(text, "\\n");
        }
        trek_text_add_escaped(text, node->module->klass->name);
        if (details[0]) {
            trek_text_add(text, "(");
            trek_text_add_escaped(text, details);
            trek_text_add(text, ")");
        }
    } else {
        trek_text_add(text, merges[node->kind]);
    }
    for (int k = 0; k < l->n_tags; k++)
        if (trek_graph_layout_producer(l, l->tags[k].value) == index) {
            trek_text_add(text, "\\n#");
            trek_text_add_escaped(text, l->tags[k].name);
        }
    trek_text_format(text, "\", shape=%s];\n", node->module ? "box" : "circle");
}

static void write_edges(trek_text *text, const trek_graph_layout *l, int index)
{
    const trek_graph_node *node = &l->nodes[index];
    for (int j = 0; j < node->n_inputs; j++) {
        if (node->inputs[j] == TREK_GRAPH_NOTHING)
            continue;
        bool state = node->inputs[j] < 0;
        int value = state ? l->states[~node->inputs[j]] : node->inputs[j], from = trek_graph_layout_producer(l, value);
        trek_text_format(text, "    v%d -> v%d", from >= 0 ? l->nodes[from].output : value, node->output);
        if (state)
            trek_text_add(text, " [style=dashed, constraint=false]");
        else if (j > 0 && node->module)
            trek_text_add(text, " [style=bold]");
        trek_text_add(text, ";\n");
    }
}

char *trek_graph_dot(trek_graph *graph)
{
    if (!graph) {
        trek_fail_missing("trek_graph_dot", "graph");
        return NULL;
    }
    const trek_graph_layout *l = &graph->layout;
    trek_text text = { 0 };
    trek_text_add(&text, "digraph trek {\n    node [fontname=\"sans-serif\"];\n");
    for (int k = 0; k < l->n_inputs; k++) {
        trek_text_format(&text, "    v%d [label=\"", l->inputs[k].value);
        trek_text_add_escaped(&text, l->inputs[k].name);
        trek_text_add(&text, "\", shape=ellipse];\n");
    }
    for (int k = 0; k < l->n_nodes; k++)
        write_node(&text, l, k);
    for (int k = 0; k < l->n_nodes; k++)
        write_edges(&text, l, k);
    trek_text_format(&text, "    out [label=\"output\", shape=ellipse];\n    v%d -> out;\n}\n", l->output);
    return trek_text_take(&text);
}
