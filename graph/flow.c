/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs of the flow builder; each adds nodes to the layout. */
#include "graph/flow_branches.h"
#include "graph/flow_internal.h"
#include "graph/verbs.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "tensor/debug.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void trek_flow_mistake(trek_flow *flow, const char *format, ...)
{
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    flow->n_mistakes++;
    size_t size = strlen(line);
    if (flow->n_told + 1 < flow->n_mistakes || flow->length + size + 2 > sizeof flow->mistakes)
        return; /* the message is full; from here on mistakes are only counted */
    if (flow->length)
        flow->mistakes[flow->length++] = '\n';
    memcpy(flow->mistakes + flow->length, line, size + 1);
    flow->length += size;
    flow->n_told++;
}

bool trek_flow_usable(const trek_flow *flow, const char *verb) { return flow && !trek_gone(flow, verb, "the flow"); }

static void free_unowned(trek_module *module)
{
    if (module && !trek_gone(module, "flow", "the module") && module->own->owners == 0)
        trek_module_free(&module);
}

bool trek_flow_take(trek_flow *flow, const char *verb, trek_module *module)
{
    if (!module) {
        trek_flow_mistake(flow, "%s: module: NULL; it must be given", verb);
        return false;
    }
    if (trek_gone(module, verb, "the module")) {
        flow->failed = true;
        return false;
    }
    for (int k = 0; k < flow->n_modules; k++)
        if (flow->modules[k] == module)
            return true;
    if (trek_array_grow(&flow->modules, &flow->cap_modules, flow->n_modules + 1, sizeof *flow->modules) != TREK_OK) {
        free_unowned(module);
        flow->failed = true;
        return false;
    }
    flow->modules[flow->n_modules++] = module;
    if (trek_module_runs(module))
        return true;
    trek_flow_mistake(flow, "%s: module: %s has no forward", verb, module->own->klass->name);
    return false;
}

int trek_flow_single_stream(trek_flow *flow, const char *verb, const trek_module *module)
{
    if (flow->n_streams == 1)
        return flow->streams[0];
    if (module)
        trek_flow_mistake(flow, "%s(%s): %d streams are open; merge them first", verb, module->own->klass->name, flow->n_streams);
    else
        trek_flow_mistake(flow, "%s: %d streams are open; merge them first", verb, flow->n_streams);
    return -1;
}

static bool grow(trek_flow *flow, void *array, int *capacity, int count, size_t item)
{
    if (trek_array_grow(array, capacity, count, item) == TREK_OK)
        return true;
    flow->failed = true;
    return false;
}

/* Adds a node. Returns the value of its output, or -1 if there is no memory. */
static int add_node(trek_flow *flow, trek_graph_node_kind kind, trek_module *module, const int *inputs, int n)
{
    trek_graph_layout *l = &flow->layout;
    if (!grow(flow, &l->nodes, &l->cap_nodes, l->n_nodes + 1, sizeof *l->nodes))
        return -1;
    int *copy = trek_alloc((size_t)n * sizeof *copy);
    if (!copy) {
        flow->failed = true;
        return -1;
    }
    memcpy(copy, inputs, (size_t)n * sizeof *copy);
    l->nodes[l->n_nodes++] = (trek_graph_node){
        .kind = kind, .module = module, .number = kind == TREK_GRAPH_MODULE ? l->n_modules++ : -1, .dim = 1,
        .n_inputs = n, .inputs = copy, .output = l->n_values++,
    };
    return l->n_values - 1;
}

void trek_flow_begin_verb(trek_flow *flow)
{
    flow->n_latest = 0;
    flow->label_node = flow->fork_value = -1;
}

int trek_flow_add_module(trek_flow *flow, trek_module *module, int input)
{
    int value = add_node(flow, TREK_GRAPH_MODULE, module, &input, 1);
    if (value < 0)
        return -1;
    flow->label_node = flow->layout.n_nodes - 1;
    if (grow(flow, &flow->latest, &flow->cap_latest, flow->n_latest + 1, sizeof *flow->latest))
        flow->latest[flow->n_latest++] = flow->label_node;
    return value;
}

static bool add_input(trek_flow *flow, const char *name)
{
    trek_graph_layout *l = &flow->layout;
    char *copy = trek_strdup(name);
    if (!copy || !grow(flow, &l->inputs, &l->cap_inputs, l->n_inputs + 1, sizeof *l->inputs)) {
        trek_free(copy);
        flow->failed = true;
        return false;
    }
    l->inputs[l->n_inputs++] = (trek_graph_name){ copy, l->n_values++ };
    return true;
}

trek_flow *trek_flow_new(void)
{
    trek_flow *flow = trek_calloc(1, sizeof *flow);
    if (!flow)
        return NULL;
    trek_flow_begin_verb(flow);
    if (!add_input(flow, "input") || !grow(flow, &flow->streams, &flow->cap_streams, 1, sizeof *flow->streams)) {
        trek_flow_free(&flow);
        return NULL;
    }
    flow->streams[0] = 0;
    flow->n_streams = 1;
    return flow;
}

trek_flow *trek_flow_from(trek_module *module)
{
    return trek_flow_through(trek_flow_new(), module);
}

/* Handles a verb without a flow: frees what was given to it. */
static trek_flow *no_flow(const char *verb, trek_module *first, trek_module *second)
{
    if (second != first)
        free_unowned(second);
    free_unowned(first);
    trek_fail_missing(verb, "flow");
    return NULL;
}

/* Frees the list's modules that have no owner, each once. */
void trek_flow_free_list(trek_module *const *modules, int n)
{
    for (int k = 0; k < n; k++) {
        bool seen = false;
        for (int j = 0; j < k; j++)
            seen |= modules[j] == modules[k];
        if (!seen)
            free_unowned(modules[k]);
    }
}

trek_flow *trek_flow_none(const char *function, trek_module *const *modules, int n)
{
    trek_flow_free_list(modules, n);
    return no_flow(function, NULL, NULL);
}

trek_flow *trek_flow_through(trek_flow *flow, trek_module *module)
{
    if (!trek_flow_usable(flow, "flow_through"))
        return no_flow("flow_through", module, NULL);
    trek_flow_begin_verb(flow);
    if (!trek_flow_take(flow, "through", module))
        return flow;
    int x = trek_flow_single_stream(flow, "through", module);
    int y = x < 0 ? -1 : trek_flow_add_module(flow, module, x);
    if (y >= 0)
        flow->streams[0] = y;
    return flow;
}

trek_flow *trek_flow_also(trek_flow *flow, trek_module *module)
{
    if (!trek_flow_usable(flow, "flow_also"))
        return no_flow("flow_also", module, NULL);
    trek_flow_begin_verb(flow);
    if (!trek_flow_take(flow, "also", module))
        return flow;
    int x = trek_flow_single_stream(flow, "also", module);
    int y = x < 0 ? -1 : trek_flow_add_module(flow, module, x);
    int sum = y < 0 ? -1 : add_node(flow, TREK_GRAPH_ADD, NULL, (int[]){ x, y }, 2);
    if (sum >= 0)
        flow->streams[0] = sum;
    return flow;
}

trek_flow *trek_flow_also_with(trek_flow *flow, trek_module *skip, trek_module *main)
{
    if (!trek_flow_usable(flow, "flow_also_with"))
        return no_flow("flow_also_with", skip, main);
    trek_flow_begin_verb(flow);
    bool taken = trek_flow_take(flow, "also_with", skip);
    taken &= trek_flow_take(flow, "also_with", main);
    int x = taken ? trek_flow_single_stream(flow, "also_with", main) : -1;
    int a = x < 0 ? -1 : trek_flow_add_module(flow, skip, x);
    flow->n_latest = 0; /* `using` then stands for main */
    int b = a < 0 ? -1 : trek_flow_add_module(flow, main, x);
    int sum = b < 0 ? -1 : add_node(flow, TREK_GRAPH_ADD, NULL, (int[]){ a, b }, 2);
    if (sum >= 0)
        flow->streams[0] = sum;
    return flow;
}

trek_flow *trek_flow_fork(trek_flow *flow, trek_module *module)
{
    if (!trek_flow_usable(flow, "flow_fork"))
        return no_flow("flow_fork", module, NULL);
    trek_flow_begin_verb(flow);
    if (!trek_flow_take(flow, "fork", module))
        return flow;
    int x = trek_flow_single_stream(flow, "fork", module);
    if (x >= 0)
        flow->fork_value = trek_flow_add_module(flow, module, x);
    return flow;
}

trek_flow *trek_flow_split(trek_flow *flow, trek_module *const *modules, int n)
{
    if (!trek_flow_usable(flow, "flow_split")) {
        if (modules)
            trek_flow_free_list(modules, n);
        return no_flow("flow_split", NULL, NULL);
    }
    trek_flow_begin_verb(flow);
    bool taken = true;
    for (int k = 0; modules && k < n; k++)
        taken &= trek_flow_take(flow, "split", modules[k]);
    if (!modules || n < 2) {
        trek_flow_mistake(flow, "split: modules: %d; must be at least 2", modules ? n : 0);
        return flow;
    }
    int x = taken ? trek_flow_single_stream(flow, "split", NULL) : -1;
    if (x < 0 || !grow(flow, &flow->streams, &flow->cap_streams, n, sizeof *flow->streams))
        return flow;
    for (int k = 0; k < n; k++) {
        int y = trek_flow_add_module(flow, modules[k], x);
        if (y < 0)
            return flow;
        flow->streams[k] = y;
    }
    flow->n_streams = n;
    flow->label_node = -1;
    return flow;
}

static trek_flow *merge(trek_flow *flow, trek_graph_node_kind kind, int dim)
{
    trek_flow_begin_verb(flow);
    if (flow->n_streams < 2) {
        trek_flow_mistake(flow, "merge: only one stream is open; split first");
        return flow;
    }
    int value = add_node(flow, kind, NULL, flow->streams, flow->n_streams);
    if (value >= 0) {
        flow->layout.nodes[flow->layout.n_nodes - 1].dim = dim;
        flow->streams[0] = value;
        flow->n_streams = 1;
    }
    return flow;
}

trek_flow *trek_flow_merge(trek_flow *flow, trek_reduction reduction)
{
    if (!trek_flow_usable(flow, "flow_merge"))
        return no_flow("flow_merge", NULL, NULL);
    if (reduction == TREK_REDUCTION_SUM || reduction == TREK_REDUCTION_MEAN)
        return merge(flow, reduction == TREK_REDUCTION_SUM ? TREK_GRAPH_ADD : TREK_GRAPH_MEAN, 0);
    trek_flow_mistake(flow, "merge: reduction: %d; must be TREK_REDUCTION_SUM or _MEAN; trek_flow_merge_cat concatenates",
                      (int)reduction);
    return flow;
}

trek_flow *trek_flow_merge_cat(trek_flow *flow, int dim)
{
    if (!trek_flow_usable(flow, "flow_merge_cat"))
        return no_flow("flow_merge_cat", NULL, NULL);
    return merge(flow, TREK_GRAPH_CAT, dim);
}

/* Checks a new name for tags and inputs. Returns false after a mistake. */
static bool fresh_name(trek_flow *flow, const char *verb, const char *name)
{
    if (!name || !*name)
        trek_flow_mistake(flow, "%s: the name is empty", verb);
    else if (trek_graph_layout_find(&flow->layout, name) >= 0)
        trek_flow_mistake(flow, "%s: name: \"%s\" is in use already", verb, name);
    else
        return true;
    return false;
}

static void add_tag(trek_flow *flow, char *name, int value)
{
    trek_graph_layout *l = &flow->layout;
    if (name && grow(flow, &l->tags, &l->cap_tags, l->n_tags + 1, sizeof *l->tags)) {
        l->tags[l->n_tags++] = (trek_graph_name){ name, value };
        return;
    }
    trek_free(name);
    flow->failed = true;
}

trek_flow *trek_flow_tag(trek_flow *flow, const char *name)
{
    if (!trek_flow_usable(flow, "flow_tag"))
        return no_flow("flow_tag", NULL, NULL);
    int value = flow->fork_value;
    flow->fork_value = -1;
    if (!fresh_name(flow, "tag", name))
        return flow;
    if (value < 0 && flow->n_streams > 1)
        trek_flow_mistake(flow, "tag \"%s\": %d streams are open; use tag_group", name, flow->n_streams);
    else
        add_tag(flow, trek_strdup(name), value < 0 ? flow->streams[0] : value);
    return flow;
}

trek_flow *trek_flow_tag_group(trek_flow *flow, const char *name)
{
    if (!trek_flow_usable(flow, "flow_tag_group"))
        return no_flow("flow_tag_group", NULL, NULL);
    if (!name || !*name) {
        trek_flow_mistake(flow, "tag_group: the name is empty");
        return flow;
    }
    if (flow->n_streams < 2) {
        trek_flow_mistake(flow, "tag_group \"%s\": one stream is open; it needs at least 2, use tag for one", name);
        return flow;
    }
    for (int k = 0; k < flow->n_streams; k++) {
        char *member = trek_format("%s_%d", name, k);
        if (!member) {
            flow->failed = true;
            return flow;
        }
        if (!fresh_name(flow, "tag_group", member)) {
            trek_free(member);
            return flow;
        }
        add_tag(flow, member, flow->streams[k]);
    }
    return flow;
}

/* Returns the index of a result among those of its class, or -1 after a mistake. */
static int result_place(trek_flow *flow, const trek_module_class *klass, const char *result)
{
    for (int k = 0; klass->forward_results && klass->result_names && klass->result_names[k] && k < TREK_MOST_RESULTS; k++)
        if (strcmp(klass->result_names[k], result) == 0)
            return k;
    trek_flow_mistake(flow, "tag_result: %s has no result \"%s\"", klass->name, result);
    return -1;
}

/* Returns the value of the node's result, or -1 if there is no memory. */
static int result_value(trek_flow *flow, trek_graph_node *node, int place)
{
    if (place == 0)
        return node->output;
    if (place > node->n_results) {
        int *results = trek_realloc(node->results, (size_t)place * sizeof *results);
        if (!results) {
            flow->failed = true;
            return -1;
        }
        node->results = results;
        while (node->n_results < place)
            results[node->n_results++] = -1;
    }
    if (node->results[place - 1] < 0)
        node->results[place - 1] = flow->layout.n_values++;
    return node->results[place - 1];
}

trek_flow *trek_flow_tag_result(trek_flow *flow, const char *result, const char *name)
{
    if (!trek_flow_usable(flow, "flow_tag_result"))
        return no_flow("flow_tag_result", NULL, NULL);
    if (!fresh_name(flow, "tag_result", name))
        return flow;
    if (flow->label_node < 0) {
        trek_flow_mistake(flow, "tag_result \"%s\": no single module was added just before", name);
        return flow;
    }
    trek_graph_node *node = &flow->layout.nodes[flow->label_node];
    int place = result_place(flow, node->module->own->klass, result ? result : ""), value = place < 0 ? -1
                                                                                                 : result_value(flow, node,
                                                                                                                place);
    if (value >= 0)
        add_tag(flow, trek_strdup(name), value);
    return flow;
}

/* input: the name of the module's input; NULL: it is found by the tag's name. */
static trek_flow *use(trek_flow *flow, const char *input, const char *tag)
{
    if (!tag || !*tag) {
        trek_flow_mistake(flow, "using: the name is empty");
        return flow;
    }
    if (!flow->n_latest)
        trek_flow_mistake(flow, "using \"%s\": no module was added just before", tag);
    for (int k = 0; k < flow->n_latest; k++) {
        const trek_module *module = trek_verb_taker(flow->layout.nodes[flow->latest[k]].module);
        if (!trek_module_takes_many(module)) {
            trek_flow_mistake(flow, "using \"%s\": module %s takes one input only", tag, module->own->klass->name);
            continue;
        }
        char *copy = trek_strdup(tag), *place = input ? trek_strdup(input) : NULL;
        if (!copy || (input && !place) ||
            !grow(flow, &flow->references, &flow->cap_references, flow->n_references + 1, sizeof *flow->references)) {
            trek_free(copy);
            trek_free(place);
            flow->failed = true;
            return flow;
        }
        flow->references[flow->n_references++] = (trek_flow_reference){ flow->latest[k], copy, place };
    }
    return flow;
}

trek_flow *trek_flow_using(trek_flow *flow, const char *tag)
{
    return trek_flow_usable(flow, "flow_using") ? use(flow, NULL, tag) : no_flow("flow_using", NULL, NULL);
}

trek_flow *trek_flow_using_as(trek_flow *flow, const char *input, const char *tag)
{
    if (!trek_flow_usable(flow, "flow_using_as"))
        return no_flow("flow_using_as", NULL, NULL);
    if (input && *input)
        return use(flow, input, tag);
    trek_flow_mistake(flow, "using: the input's name is empty");
    return flow;
}

trek_flow *trek_flow_input(trek_flow *flow, const char *name)
{
    if (!trek_flow_usable(flow, "flow_input"))
        return no_flow("flow_input", NULL, NULL);
    if (fresh_name(flow, "input", name))
        add_input(flow, name);
    return flow;
}

static bool label_is_fresh(trek_flow *flow, const char *name)
{
    if (!name || !*name)
        trek_flow_mistake(flow, "label: the name is empty");
    else if (strchr(name, '.'))
        trek_flow_mistake(flow, "label \"%s\": contains a dot; a label must not", name);
    else if (strspn(name, "0123456789") == strlen(name))
        trek_flow_mistake(flow, "label \"%s\": is a number; numbers are the names of modules without a label", name);
    else {
        for (int k = 0; k < flow->layout.n_nodes; k++)
            if (flow->layout.nodes[k].label && strcmp(flow->layout.nodes[k].label, name) == 0) {
                trek_flow_mistake(flow, "label \"%s\": is in use already", name);
                return false;
            }
        return true;
    }
    return false;
}

trek_flow *trek_flow_label(trek_flow *flow, const char *name)
{
    if (!trek_flow_usable(flow, "flow_label"))
        return no_flow("flow_label", NULL, NULL);
    if (!label_is_fresh(flow, name))
        return flow;
    if (flow->label_node < 0) {
        trek_flow_mistake(flow, "label \"%s\": no single module was added just before", name);
        return flow;
    }
    trek_graph_node *node = &flow->layout.nodes[flow->label_node];
    if (node->label)
        trek_flow_mistake(flow, "label \"%s\": the module already has the label \"%s\"", name, node->label);
    else if (!(node->label = trek_strdup(name)))
        flow->failed = true;
    return flow;
}

void trek_flow_free(trek_flow **flow)
{
    if (!flow || !*flow || !trek_flow_usable(*flow, "flow_free"))
        return;
    trek_flow *f = *flow;
    *flow = NULL;
    /* A module may have become a part of another one in the list, so all owners are counted before any module is
     * freed. */
    for (int k = 0; k < f->n_modules; k++)
        if (f->modules[k]->own->owners > 0)
            f->modules[k] = NULL;
    for (int k = 0; k < f->n_modules; k++)
        free_unowned(f->modules[k]);
    for (int k = 0; k < f->n_references; k++)
        trek_free(f->references[k].tag), trek_free(f->references[k].input);
    trek_graph_layout_free(&f->layout);
    trek_free(f->references);
    trek_free(f->streams);
    trek_free(f->latest);
    trek_free(f->modules);
    if (trek_debug)
        trek_debug_ended(f, "flow", "that was built or freed");
    trek_free(f);
}
