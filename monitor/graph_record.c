/* SPDX-License-Identifier: Apache-2.0 */
/* The record of a graph: its picture, its nodes with what is known of each, and the links between them. A node that
 * contains others in a known order, a nested graph or a sequence, is a group: links end inside it. */
#include <stdio.h>
#include <string.h>

#include "graph/picture.h"
#include "monitor/monitor_internal.h"
#include "nn/layers_internal.h"
#include "nn/module_internal.h"
#include "tensor/print.h"

enum { MOST_DRAWN = 64, MOST_NODES = 4096 };

typedef struct writing {
    trek_graph *graph;                   /* the graph of this picture */
    const trek_monitor_profile *profile; /* NULL if nothing was measured */
    trek_text nodes, links;
    int n_nodes;
} writing;

/* --- nodes ---------------------------------------------------------------------------------------- */

static void add_figures(trek_text *out, const writing *w, const char *path)
{
    const trek_module_time *time = w->profile && w->profile->samples ? trek_module_times_find(&w->profile->sums, path) : NULL;
    if (!time)
        return;
    double steps = (double)w->profile->samples;
    if (*time->result)
        trek_monitor_word(out, "shape", time->result);
    trek_monitor_number(out, "calls", (double)time->calls / steps);
    trek_monitor_number(out, "time_ms", (double)(time->forward_ns + time->backward_ns) / 1e6 / steps);
    trek_monitor_number(out, "forward_ms", (double)time->forward_ns / 1e6 / steps);
    trek_monitor_number(out, "backward_ms", (double)time->backward_ns / 1e6 / steps);
    trek_monitor_number(out, "mult_adds", time->flops / 2 / steps);
    trek_monitor_number(out, "bytes", time->made_bytes / steps);
    trek_monitor_number(out, "output_bytes", time->result_bytes / steps);
}

static void begin_node(writing *w, const char *name, const char *kind, const char *op)
{
    trek_text_add(&w->nodes, w->n_nodes++ ? ",{\"name\":" : "{\"name\":");
    trek_monitor_string(&w->nodes, name);
    trek_monitor_word(&w->nodes, "kind", kind);
    trek_monitor_word(&w->nodes, "op", op);
}

static bool is_sequence(const trek_module *module)
{
    return module->own->klass == &trek_sequential_class && module->own->n_children > 0;
}

static void add_module(writing *w, const char *path, trek_module *module, bool group)
{
    char details[128] = "";
    if (module->own->klass->describe)
        module->own->klass->describe(module, details, sizeof details);
    begin_node(w, path, group ? "group" : "module", module->own->klass->name);
    if (*details)
        trek_monitor_word(&w->nodes, "details", details);
    trek_monitor_whole(&w->nodes, "parameters", trek_module_param_count(module));
    add_figures(&w->nodes, w, path);
    trek_text_add(&w->nodes, "}");
}

/* --- what is inside modules ------------------------------------------------------------------------- */

static char *inside(const char *path, const char *name) { return trek_format("%s%s%s", path, *path ? "." : "", name); }

/* Returns where a link to a module ends or one from it begins: in a sequence, at its first or last module. */
static char *end_of(const char *path, const trek_module *module, bool first)
{
    char *name = trek_strdup(path);
    while (name && is_sequence(module)) {
        const trek_module_link *child = &module->own->children[first ? 0 : module->own->n_children - 1];
        char *longer = inside(name, child->name);
        trek_free(name);
        name = longer;
        module = child->module;
    }
    return name;
}

/* Takes ownership of both names. */
static void add_link(writing *w, char *from, char *to, int port, const char *label)
{
    if (from && to) {
        trek_text_add(&w->links, w->links.length ? ",{\"from\":" : "{\"from\":");
        trek_monitor_string(&w->links, from);
        trek_monitor_word(&w->links, "to", to);
        trek_monitor_whole(&w->links, "port", port);
        if (*label)
            trek_monitor_word(&w->links, "label", label);
        trek_text_add(&w->links, "}");
    }
    w->links.failed |= !from || !to;
    trek_free(from);
    trek_free(to);
}

static void add_children(writing *w, const char *path, const trek_module *module)
{
    char *before = NULL;
    for (int k = 0; k < module->own->n_children && w->n_nodes < MOST_NODES; k++) {
        trek_module *child = module->own->children[k].module;
        char *name = inside(path, module->own->children[k].name);
        if (!name) {
            w->nodes.failed = true;
            break;
        }
        add_module(w, name, child, is_sequence(child));
        add_children(w, name, child);
        if (is_sequence(module) && k > 0)
            add_link(w, end_of(before, module->own->children[k - 1].module, false), end_of(name, child, true), 0, "");
        trek_free(before);
        before = name;
    }
    trek_free(before);
}

/* --- graphs ----------------------------------------------------------------------------------------- */

/* A node that no module makes gets a name that no module of its graph has, with trailing underscores if necessary. */
static char *name_beside(const trek_graph *graph, const char *path, const char *wanted)
{
    char *own = trek_strdup(wanted);
    for (int k = 0; own && k < graph->base.own->n_children; k++)
        if (strcmp(graph->base.own->children[k].name, own) == 0) {
            char *longer = trek_format("%s_", own);
            trek_free(own);
            own = longer;
            k = -1;
        }
    char *name = own ? inside(path, own) : NULL;
    trek_free(own);
    return name;
}

static const char *merge_op(const trek_graph *graph, const trek_picture_node *node)
{
    static const char *const ops[] = { "module", "add", "mean", "cat" };
    return ops[graph->layout.nodes[trek_graph_layout_producer(&graph->layout, node->value)].kind];
}

static char *name_of(const trek_graph *graph, const char *path, const trek_picture_node *node)
{
    char number[64];
    if (node->kind == TREK_PICTURE_MODULE || node->kind == TREK_PICTURE_NESTED)
        return trek_strdup(node->path);
    if (node->kind != TREK_PICTURE_MERGE)
        return name_beside(graph, path, node->lines[0]);
    snprintf(number, sizeof number, "%s_%d", merge_op(graph, node), node->value);
    return name_beside(graph, path, number);
}

static trek_module *module_of(const trek_graph *graph, const trek_picture_node *node)
{
    return graph->layout.nodes[trek_graph_layout_producer(&graph->layout, node->value)].module;
}

/* Returns the name at which a link leaves node k or arrives at its input `port`. */
static char *link_end(const trek_graph *graph, const char *path, const trek_picture *p, int k, int port, bool arrives)
{
    const trek_picture_node *node = &p->nodes[k];
    const trek_picture *inner = node->inside;
    if (inner) {
        int last = inner->n_nodes - 1;
        const trek_picture_node *end = &inner->nodes[!arrives ? last : port < inner->n_inputs ? port : 0];
        return name_of(trek_graph_of(module_of(graph, node)), node->path, end);
    }
    return node->kind == TREK_PICTURE_MODULE ? end_of(node->path, module_of(graph, node), arrives) : name_of(graph, path, node);
}

static const char *label_of(const trek_graph *graph, const trek_picture *p, const trek_picture_edge *edge)
{
    const trek_picture_node *to = &p->nodes[edge->to];
    if (edge->kind == TREK_PICTURE_STATE)
        return "state";
    if (edge->port < 1 || (to->kind != TREK_PICTURE_MODULE && to->kind != TREK_PICTURE_NESTED))
        return "";
    trek_module *module = module_of(graph, to);
    trek_graph *nested = trek_graph_of(module);
    if (nested)
        return edge->port < nested->layout.n_inputs ? nested->layout.inputs[edge->port].name : "";
    for (int k = 0; module->own->klass->input_names && module->own->klass->input_names[k]; k++)
        if (k + 1 == edge->port)
            return module->own->klass->input_names[k];
    return "";
}

/* A module that occurs at several places is one node. */
static bool seen_before(const trek_picture *p, int k)
{
    for (int j = 0; j < k; j++)
        if (p->nodes[j].path && *p->nodes[j].path && strcmp(p->nodes[j].path, p->nodes[k].path) == 0)
            return true;
    return false;
}

static void add_picture(writing *w, trek_graph *graph, const char *path, const trek_picture *p);

static void add_node(writing *w, trek_graph *graph, const char *path, const trek_picture *p, int k)
{
    const trek_picture_node *node = &p->nodes[k];
    bool is_module = node->kind == TREK_PICTURE_MODULE || node->kind == TREK_PICTURE_NESTED;
    if (is_module && seen_before(p, k))
        return;
    if (is_module) {
        trek_module *module = module_of(graph, node);
        add_module(w, node->path, module, node->inside || is_sequence(module));
        if (node->inside)
            add_picture(w, trek_graph_of(module), node->path, node->inside);
        else
            add_children(w, node->path, module);
        return;
    }
    static const char *const kinds[] = { "input", "output", "module", "merge" };
    char *name = name_of(graph, path, node);
    if (name) {
        begin_node(w, name, kinds[node->kind], node->kind == TREK_PICTURE_MERGE ? merge_op(graph, node) : kinds[node->kind]);
        trek_text_add(&w->nodes, "}");
    }
    w->nodes.failed |= !name;
    trek_free(name);
}

static void add_picture(writing *w, trek_graph *graph, const char *path, const trek_picture *p)
{
    for (int k = 0; k < p->n_nodes; k++)
        add_node(w, graph, path, p, k);
    for (int k = 0; k < p->n_edges; k++) {
        const trek_picture_edge *edge = &p->edges[k];
        add_link(w, link_end(graph, path, p, edge->from, 0, false), link_end(graph, path, p, edge->to, edge->port, true),
                 edge->port, label_of(graph, p, edge));
    }
}

/* --- the record ------------------------------------------------------------------------------------- */

static int count_nodes(const trek_picture *p)
{
    int n = p->n_nodes;
    for (int k = 0; k < p->n_nodes; k++)
        n += p->nodes[k].inside ? count_nodes(p->nodes[k].inside) : 0;
    return n;
}

/* Nested graphs are drawn while the picture can still be examined. */
static char *draw(trek_graph *graph, const trek_picture *p)
{
    int nested = count_nodes(p) <= MOST_DRAWN ? TREK_OFF : 0;
    return trek_graph_svg(graph, &(trek_graph_draw_opts){ .nested = nested });
}

static void write_line(trek_monitor *m, writing *w, const char *svg, int64_t samples)
{
    trek_text line = { 0 };
    pthread_mutex_lock(&m->lock);
    int64_t step = m->step < 0 ? 0 : m->step;
    pthread_mutex_unlock(&m->lock);
    trek_monitor_begin(&line, "graph");
    trek_monitor_whole(&line, "step", step);
    trek_monitor_whole(&line, "steps", samples);
    trek_monitor_word(&line, "svg", svg);
    trek_text_add(&line, ",\"nodes\":[");
    trek_text_bytes(&line, w->nodes.data, w->nodes.length);
    trek_text_add(&line, "],\"links\":[");
    trek_text_bytes(&line, w->links.data, w->links.length);
    trek_text_add(&line, "]");
    line.failed |= w->nodes.failed || w->links.failed;
    trek_monitor_write(m, &line);
}

trek_status trek_monitor_graph_record(trek_monitor *m, trek_graph *graph)
{
    trek_picture *p = trek_picture_make(graph, &(trek_graph_draw_opts){ .nested = TREK_OFF });
    char *svg = p ? draw(graph, p) : NULL;
    if (svg) {
        writing w = { .graph = graph, .profile = m->graph == graph ? &m->profile : NULL };
        pthread_mutex_lock(&m->profile.lock);
        int64_t samples = w.profile ? m->profile.samples : 0;
        add_picture(&w, graph, "", p);
        m->profile.told = w.profile ? samples : m->profile.told;
        pthread_mutex_unlock(&m->profile.lock);
        write_line(m, &w, svg, samples);
        trek_text_clear(&w.nodes);
        trek_text_clear(&w.links);
    }
    trek_string_free(&svg);
    trek_picture_free(p);
    return trek_error_status();
}
