/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a graph in Graphviz's language: modules as boxes, merges as circles, states as dashed edges, nested graphs
 * as clusters. */
#include <stdio.h>

#include "graph/picture.h"

/* Names are those of the values, preceded by the number of their cluster: "v3", "g1_v3", "g1_out". */
typedef struct name {
    char text[40];
} name;

static name name_of(const trek_picture *p, const trek_picture_node *node)
{
    name n;
    char around[20] = "";
    if (p->number)
        snprintf(around, sizeof around, "g%d_", p->number);
    if (node->kind == TREK_PICTURE_OUTPUT)
        snprintf(n.text, sizeof n.text, "%sout", around);
    else
        snprintf(n.text, sizeof n.text, "%sv%d", around, node->value);
    return n;
}

static void write_label(trek_text *text, const trek_picture_node *node)
{
    trek_text_add(text, "label=\"");
    for (int k = 0; k < node->n_lines; k++) {
        trek_text_add(text, k ? "\\n" : "");
        trek_text_add_escaped(text, node->lines[k]);
    }
    trek_text_add(text, "\"");
}

/* Colours go from white to red, so that dark text remains readable. */
static void write_colour(trek_text *text, const trek_picture_node *node)
{
    int cold = 255 - (int)(node->heat * 165 + 0.5);
    if (node->heat >= 0)
        trek_text_format(text, ", style=filled, fillcolor=\"#ff%02x%02x\"", (unsigned)cold, (unsigned)cold);
}

static void write_indent(trek_text *text, int depth)
{
    for (int k = 0; k <= depth; k++)
        trek_text_add(text, "    ");
}

static void write_picture(trek_text *text, const trek_picture *p, int depth);

static void write_cluster(trek_text *text, const trek_picture_node *node, int depth)
{
    trek_text_format(text, "subgraph cluster_%d {\n", node->inside->number);
    write_indent(text, depth + 1);
    write_label(text, node);
    if (node->heat >= 0)
        trek_text_format(text, "; penwidth=%d", 1 + (int)(node->heat * 4 + 0.5));
    trek_text_add(text, ";\n");
    write_picture(text, node->inside, depth + 1);
    write_indent(text, depth);
    trek_text_add(text, "}\n");
}

static void write_node(trek_text *text, const trek_picture *p, const trek_picture_node *node, int depth)
{
    static const char *const shapes[] = { "ellipse", "ellipse", "box", "circle" };
    write_indent(text, depth);
    if (node->inside) {
        write_cluster(text, node, depth);
        return;
    }
    trek_text_format(text, "%s [", name_of(p, node).text);
    write_label(text, node);
    trek_text_format(text, ", shape=%s", shapes[node->kind]);
    write_colour(text, node);
    trek_text_add(text, "];\n");
}

/* Returns an end of the cluster itself: its output, or the input at which the edge arrives. */
static name end_of(const trek_picture *p, int k, int port, bool begins)
{
    const trek_picture *inner = p->nodes[k].inside;
    if (!inner)
        return name_of(p, &p->nodes[k]);
    return name_of(inner, begins ? &inner->nodes[inner->n_nodes - 1] : &inner->nodes[port]);
}

static void write_edge(trek_text *text, const trek_picture *p, const trek_picture_edge *edge, int depth)
{
    static const char *const styles[] = { "", " [style=bold]", " [style=dashed, constraint=false]" };
    write_indent(text, depth);
    trek_text_format(text, "%s -> %s%s;\n", end_of(p, edge->from, 0, true).text, end_of(p, edge->to, edge->port, false).text,
                     styles[edge->kind]);
}

static void write_picture(trek_text *text, const trek_picture *p, int depth)
{
    for (int k = 0; k < p->n_nodes; k++)
        write_node(text, p, &p->nodes[k], depth);
    for (int k = 0; k < p->n_edges; k++)
        write_edge(text, p, &p->edges[k], depth);
}

char *trek_graph_dot_with(trek_graph *graph, const trek_graph_draw_opts *opts)
{
    if (!graph) {
        trek_fail_missing("graph_dot", "graph");
        return NULL;
    }
    trek_picture *picture = trek_picture_make(graph, opts);
    if (!picture)
        return NULL;
    trek_text text = { 0 };
    trek_text_add(&text, "digraph trek {\n    node [fontname=\"sans-serif\"];\n");
    write_picture(&text, picture, 0);
    trek_text_add(&text, "}\n");
    trek_picture_free(picture);
    return trek_text_take(&text);
}

char *trek_graph_dot(trek_graph *graph) { return trek_graph_dot_with(graph, NULL); }
