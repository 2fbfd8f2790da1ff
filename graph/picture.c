/* SPDX-License-Identifier: Apache-2.0 */
/* Makes boxes, texts and arrows of a graph's layout. */
#include "graph/picture.h"
#include "nn/module_internal.h"

#include <stdio.h>
#include <string.h>

#include "graph/quiet_forward.h"
#include "graph/timeline_times.h"
#include "nn/pointer_map.h"
#include "nn/watch.h"
#include "tensor/try_internal.h"

enum { MOST_CHILDREN = 8, MOST_DETAILS = 128 };

/* What is known besides the layout. */
typedef struct sources {
    trek_graph_draw_opts opts;
    trek_module_times times;
    int64_t whole_ns;         /* of the graph; 0: not measured */
    trek_pointer_map shapes_of; /* from modules to indices in shapes */
    trek_shape *shapes;
    int n_shapes, cap_shapes;
    trek_status status;
} sources;

/* --- shapes ---------------------------------------------------------------------- */

static void begin_run(trek_module *module, trek_var *const *inputs, int n, void *arg)
{
    (void)module, (void)inputs, (void)n, (void)arg;
}

static void end_run(trek_module *module, trek_var *result, void *arg)
{
    sources *s = arg;
    bool added;
    if (!result || s->status != TREK_OK)
        return;
    int place = trek_pointer_map_get(&s->shapes_of, module);
    if (place < 0) {
        s->status = trek_array_grow(&s->shapes, &s->cap_shapes, s->n_shapes + 1, sizeof *s->shapes);
        if (s->status == TREK_OK)
            s->status = trek_pointer_map_add(&s->shapes_of, module, s->n_shapes, &added);
        if (s->status != TREK_OK)
            return;
        place = s->n_shapes++;
    }
    s->shapes[place] = trek_var_shape(result);
}

static trek_status find_shapes(sources *s, trek_graph *graph)
{
    trek_module_watch watch = { .begin = begin_run, .end = end_run, .arg = s };
    trek_module_totals totals = { 0 };
    const trek_module_watch *before = trek_module_watch_set(&watch);
    trek_status status = trek_summary_run(&graph->base, s->opts.run, &totals);
    trek_module_watch_set(before);
    return status == TREK_OK ? s->status : status;
}

static trek_status find_times(sources *s, const trek_graph *graph)
{
    trek_status status = trek_module_times_make(&s->times, graph, s->opts.timeline, -1);
    const trek_module_time *whole = status == TREK_OK ? trek_module_times_find(&s->times, "") : NULL;
    s->whole_ns = whole ? whole->forward_ns + whole->backward_ns : 0;
    return status;
}

/* --- texts ------------------------------------------------------------------------- */

static trek_status add_line(trek_picture_node *node, char *line)
{
    if (!line)
        return TREK_ERR_MEMORY;
    if (node->n_lines == TREK_PICTURE_LINES)
        trek_free(line);
    else
        node->lines[node->n_lines++] = line;
    return TREK_OK;
}

static char *class_text(const trek_module *module)
{
    char details[MOST_DETAILS] = "";
    if (module->own->klass->describe)
        module->own->klass->describe(module, details, sizeof details);
    return details[0] ? trek_format("%s(%s)", module->own->klass->name, details) : trek_strdup(module->own->klass->name);
}

static trek_status add_tags(trek_picture_node *node, const trek_graph_layout *l, int index)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < l->n_tags && status == TREK_OK; k++)
        if (trek_graph_layout_producer(l, l->tags[k].value) == index)
            status = add_line(node, trek_format("#%s", l->tags[k].name));
    return status;
}

static trek_status add_children(trek_picture_node *node, const trek_module *module)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < module->own->n_children && k < MOST_CHILDREN && status == TREK_OK; k++)
        status = add_line(node, trek_format("- %s: %s", module->own->children[k].name,
                                            module->own->children[k].module->own->klass->name));
    if (status == TREK_OK && module->own->n_children > MOST_CHILDREN)
        status = add_line(node, trek_format("and %d more", module->own->n_children - MOST_CHILDREN));
    return status;
}

static trek_status add_shape(trek_picture_node *node, const sources *s, const trek_module *module)
{
    char shape[TREK_SHAPE_TEXT];
    int place = trek_pointer_map_get(&s->shapes_of, module);
    return place >= 0 ? add_line(node, trek_format("-> %s", trek_shape_format(s->shapes[place], shape, sizeof shape))) : TREK_OK;
}

static trek_status add_time(trek_picture_node *node, const sources *s)
{
    const trek_module_time *time = trek_module_times_find(&s->times, node->path);
    if (!time || !time->calls || s->whole_ns <= 0)
        return TREK_OK;
    int64_t ns = time->forward_ns + time->backward_ns, micros = ns / time->calls / 1000;
    node->heat = (double)ns / (double)s->whole_ns;
    node->heat = node->heat > 1 ? 1 : node->heat;
    return add_line(node, trek_format("%lld.%03d ms, %d %%", (long long)(micros / 1000), (int)(micros % 1000),
                                      (int)(100 * node->heat + 0.5)));
}

static trek_status describe_module(trek_picture_node *node, const sources *s, const trek_graph_node *from,
                                   const trek_graph_layout *l, int index)
{
    trek_module *module = from->module;
    if (from->label)
        TRY(add_line(node, trek_strdup(from->label)));
    TRY(add_line(node, class_text(module)));
    TRY(add_tags(node, l, index));
    node->n_head = node->n_lines;
    if (s->opts.params && trek_module_param_count(module) > 0)
        TRY(add_line(node, trek_format("%lld parameters", (long long)trek_module_param_count(module))));
    TRY(add_shape(node, s, module));
    TRY(add_time(node, s));
    return s->opts.children && !trek_graph_of(module) ? add_children(node, module) : TREK_OK;
}

/* --- boxes and arrows ---------------------------------------------------------------- */

static trek_picture *make(const sources *s, trek_graph *graph, const char *path, int depth);

/* Returns the module's name in the graph: the label of the first node that has it. */
static char *path_of(const trek_graph *graph, const char *around, const trek_module *module)
{
    for (int k = 0; k < graph->base.own->n_children; k++)
        if (graph->base.own->children[k].module == module)
            return trek_format("%s%s%s", around, *around ? "." : "", graph->base.own->children[k].name);
    return trek_strdup("");
}

static trek_status make_node(const sources *s, trek_graph *graph, const char *path, int depth, int index, trek_picture_node *node)
{
    static const char *const merges[] = { "", "+", "mean", "cat" };
    const trek_graph_layout *l = &graph->layout;
    const trek_graph_node *from = &l->nodes[index];
    node->value = from->output;
    node->kind = from->module ? TREK_PICTURE_MODULE : TREK_PICTURE_MERGE;
    node->path = from->module ? path_of(graph, path, from->module) : trek_strdup("");
    if (!node->path)
        return TREK_ERR_MEMORY;
    if (!from->module) {
        trek_status status = add_line(node, trek_strdup(merges[from->kind]));
        status = status == TREK_OK ? add_tags(node, l, index) : status;
        node->n_head = node->n_lines;
        return status;
    }
    trek_graph *nested = trek_graph_of(from->module);
    if (nested && (s->opts.nested == TREK_OFF || depth < s->opts.nested)) {
        node->kind = TREK_PICTURE_NESTED;
        node->inside = make(s, nested, node->path, depth + 1);
        if (!node->inside)
            return TREK_ERR_MEMORY;
    }
    return describe_module(node, s, from, l, index);
}

static trek_status add_edge(trek_picture *p, trek_picture_edge edge)
{
    trek_status status = trek_array_grow(&p->edges, &p->cap_edges, p->n_edges + 1, sizeof *p->edges);
    if (status == TREK_OK)
        p->edges[p->n_edges++] = edge;
    return status;
}

/* Returns the node that makes a value. */
static int node_of(const trek_picture *p, const trek_graph_layout *l, int value)
{
    int producer = trek_graph_layout_producer(l, value);
    for (int k = 0; producer < 0 && k < l->n_inputs; k++)
        if (l->inputs[k].value == value)
            return k;
    return p->n_inputs + producer;
}

static trek_status add_edges(trek_picture *p, const trek_graph_layout *l, int index)
{
    const trek_graph_node *node = &l->nodes[index];
    trek_status status = TREK_OK;
    for (int j = 0; j < node->n_inputs && status == TREK_OK; j++) {
        if (node->inputs[j] == TREK_GRAPH_NOTHING)
            continue;
        bool state = node->inputs[j] < 0;
        int value = state ? l->states[~node->inputs[j]] : node->inputs[j];
        status = add_edge(p, (trek_picture_edge){
            .kind = state ? TREK_PICTURE_STATE : j > 0 && node->module ? TREK_PICTURE_EXTRA : TREK_PICTURE_PLAIN,
            .from = node_of(p, l, value), .to = p->n_inputs + index, .port = j });
    }
    return status;
}

static trek_status fill(trek_picture *p, const sources *s, trek_graph *graph, const char *path, int depth)
{
    const trek_graph_layout *l = &graph->layout;
    trek_status status = TREK_OK;
    for (int k = 0; k < l->n_inputs && status == TREK_OK; k++) {
        p->nodes[k].kind = TREK_PICTURE_INPUT;
        p->nodes[k].value = l->inputs[k].value;
        status = add_line(&p->nodes[k], trek_strdup(l->inputs[k].name));
    }
    for (int k = 0; k < l->n_nodes && status == TREK_OK; k++)
        status = make_node(s, graph, path, depth, k, &p->nodes[p->n_inputs + k]);
    for (int k = 0; k < l->n_nodes && status == TREK_OK; k++)
        status = add_edges(p, l, k);
    trek_picture_node *out = &p->nodes[p->n_nodes - 1];
    out->kind = TREK_PICTURE_OUTPUT;
    if (status == TREK_OK)
        status = add_line(out, trek_strdup("output"));
    return status == TREK_OK ? add_edge(p, (trek_picture_edge){ .from = node_of(p, l, l->output), .to = p->n_nodes - 1 })
        : status;
}

static trek_picture *make(const sources *s, trek_graph *graph, const char *path, int depth)
{
    trek_picture *p = trek_calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->n_inputs = graph->layout.n_inputs;
    p->n_nodes = p->n_inputs + graph->layout.n_nodes + 1;
    p->nodes = trek_calloc((size_t)p->n_nodes, sizeof *p->nodes);
    for (int k = 0; p->nodes && k < p->n_nodes; k++) {
        p->nodes[k].heat = -1;
        p->nodes[k].n_head = 1;
    }
    if (p->nodes && fill(p, s, graph, path, depth) == TREK_OK)
        return p;
    trek_picture_free(p);
    return NULL;
}

void trek_picture_free(trek_picture *p)
{
    for (int k = 0; p && p->nodes && k < p->n_nodes; k++) {
        for (int j = 0; j < p->nodes[k].n_lines; j++)
            trek_free(p->nodes[k].lines[j]);
        trek_free(p->nodes[k].path);
        trek_picture_free(p->nodes[k].inside);
    }
    if (!p)
        return;
    for (int k = 0; k < p->n_edges; k++)
        trek_free(p->edges[k].bends);
    trek_free(p->tops);
    trek_free(p->bottoms);
    trek_free(p->nodes);
    trek_free(p->edges);
    trek_free(p);
}

static void count_off(trek_picture *p, int *next)
{
    p->number = (*next)++;
    for (int k = 0; k < p->n_nodes; k++)
        if (p->nodes[k].inside)
            count_off(p->nodes[k].inside, next);
}

trek_picture *trek_picture_make(trek_graph *graph, const trek_graph_draw_opts *opts)
{
    sources s = { .opts = opts ? *opts : (trek_graph_draw_opts){ 0 } };
    trek_status status = trek_error_status();
    if (s.opts.nested < TREK_OFF)
        status = trek_fail(TREK_ERR_ARGUMENT, "graph_draw: .nested: %d; must be TREK_OFF, 0 or more", s.opts.nested);
    if (status == TREK_OK && s.opts.run)
        status = find_shapes(&s, graph);
    if (status == TREK_OK && s.opts.timeline)
        status = find_times(&s, graph);
    trek_picture *p = status == TREK_OK ? make(&s, graph, "", 0) : NULL;
    int next = 0;
    if (p)
        count_off(p, &next);
    trek_module_times_free(&s.times);
    trek_pointer_map_clear(&s.shapes_of);
    trek_free(s.shapes);
    return p;
}
