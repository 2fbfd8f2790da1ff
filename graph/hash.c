/* SPDX-License-Identifier: Apache-2.0 */
/* The structural hash: the SHA-256 of a text that describes a graph's structure and nothing else. */
#include "graph/graph_internal.h"
#include "nn/module_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nn/module_tree.h"
#include "tensor/sha256.h"

/* --- the text ------------------------------------------------------------------ */

/* Lines that are sorted before they are added. */
typedef struct sorted_lines {
    char **lines;
    int n, capacity;
    trek_status status;
} sorted_lines;

static void add_line(sorted_lines *list, char *line)
{
    if (!line || trek_array_grow(&list->lines, &list->capacity, list->n + 1, sizeof *list->lines) != TREK_OK) {
        trek_free(line);
        list->status = TREK_ERR_MEMORY;
        return;
    }
    list->lines[list->n++] = line;
}

static int compare_lines(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Adds the lines in order and empties the list. Returns false if something has failed. */
static bool finish_lines(sorted_lines *list, trek_text *text)
{
    if (list->n > 1)
        qsort(list->lines, (size_t)list->n, sizeof *list->lines, compare_lines);
    for (int k = 0; k < list->n; k++) {
        trek_text_add(text, list->lines[k]);
        trek_free(list->lines[k]);
    }
    trek_free(list->lines);
    return list->status == TREK_OK;
}

static trek_status add_entry(sorted_lines *list, const char *kind, const char *name, trek_var *var)
{
    char shape[TREK_SHAPE_TEXT];
    add_line(list, trek_format("%s %s %s %s\n", kind, name, trek_dtype_name(trek_var_dtype(var)),
                               trek_shape_format(trek_var_shape(var), shape, sizeof shape)));
    return list->status;
}

static trek_status add_param(const char *name, trek_var *param, void *list) { return add_entry(list, "param", name, param); }
static trek_status add_buffer(const char *name, trek_var *buffer, void *list) { return add_entry(list, "buffer", name, buffer); }

static int first_node_of(const trek_graph_layout *l, int index)
{
    int k = 0;
    while (l->nodes[k].module != l->nodes[index].module)
        k++;
    return k;
}

static bool describe_parts(trek_text *text, trek_module *module);

/* Describes what the module is made of, after its class's name. */
static bool describe_inside(trek_text *text, trek_module *module)
{
    trek_graph *nested = trek_graph_of(module);
    if (nested) {
        char hash[TREK_GRAPH_HASH_TEXT];
        if (!trek_graph_hash(nested, hash, sizeof hash))
            return false;
        trek_text_format(text, " %s\n", hash);
        return true;
    }
    if (module->own->klass->hands_inputs_on)
        return describe_parts(text, module);
    trek_text_add(text, "\n");
    sorted_lines list = { 0 };
    trek_status status = trek_module_each_param(module, add_param, &list);
    if (status == TREK_OK)
        status = trek_module_each_buffer(module, add_buffer, &list);
    return finish_lines(&list, text) && status == TREK_OK;
}

/* Describes a loop, gate, switch or map: its options, then its children. */
static bool describe_parts(trek_text *text, trek_module *module)
{
    char options[128] = "";
    if (module->own->klass->describe)
        module->own->klass->describe(module, options, sizeof options);
    trek_text_format(text, " %s\n", options);
    for (int k = 0; k < module->own->n_children; k++) {
        trek_module *part = module->own->children[k].module;
        trek_text_format(text, "part %s %s", module->own->children[k].name, part->own->klass->name);
        if (!describe_inside(text, part))
            return false;
    }
    trek_text_add(text, "end\n");
    return true;
}

static bool describe_module(trek_text *text, const trek_graph_layout *l, int index)
{
    trek_module *module = l->nodes[index].module;
    int first = first_node_of(l, index);
    trek_text_format(text, " module %s", module->own->klass->name);
    if (first == index)
        return describe_inside(text, module);
    trek_text_format(text, " same as %d\n", first);
    return true;
}

static bool describe_graph(trek_text *text, const trek_graph_layout *l)
{
    static const char *const kinds[] = { "", " add", " mean", " cat" };
    for (int k = 0; k < l->n_inputs; k++)
        trek_text_format(text, "input %s %d\n", l->inputs[k].name, l->inputs[k].value);
    for (int k = 0; k < l->n_nodes; k++) {
        const trek_graph_node *node = &l->nodes[k];
        trek_text_format(text, "node %d ->%d from", k, node->output);
        for (int j = 0; j < node->n_inputs; j++)
            if (node->inputs[j] >= 0)
                trek_text_format(text, " %d", node->inputs[j]);
            else if (node->inputs[j] == TREK_GRAPH_NOTHING)
                trek_text_add(text, " none");
            else
                trek_text_format(text, " last %d", l->states[~node->inputs[j]]);
        for (int j = 0; j < node->n_results; j++)
            trek_text_format(text, " ->%d", node->results[j]);
        trek_text_add(text, kinds[node->kind]);
        if (node->kind == TREK_GRAPH_CAT)
            trek_text_format(text, " %d", node->dim);
        if (!node->module)
            trek_text_add(text, "\n");
        else if (!describe_module(text, l, k))
            return false;
    }
    sorted_lines tags = { 0 };
    for (int k = 0; k < l->n_tags; k++)
        add_line(&tags, trek_format("tag %s %d\n", l->tags[k].name, l->tags[k].value));
    trek_text_format(text, "output %d\n", l->output);
    return finish_lines(&tags, text);
}

char *trek_graph_hash(trek_graph *graph, char *hash, size_t capacity)
{
    if (!graph || !hash) {
        trek_fail_missing("graph_hash", graph ? "text" : "graph");
        return NULL;
    }
    if (capacity < TREK_GRAPH_HASH_TEXT) {
        trek_fail(TREK_ERR_ARGUMENT, "graph_hash: capacity: %zu bytes; must be %d or more", capacity, TREK_GRAPH_HASH_TEXT);
        return NULL;
    }
    trek_text text = { 0 };
    trek_text_add(&text, "trek graph 1\n");
    bool described = describe_graph(&text, &graph->layout) && !text.failed;
    if (described) {
        unsigned char digest[32];
        trek_sha256(text.data, text.length, digest);
        for (int k = 0; k < 32; k++)
            snprintf(hash + 2 * k, 3, "%02x", digest[k]);
    }
    trek_text_clear(&text);
    return described ? hash : NULL;
}
