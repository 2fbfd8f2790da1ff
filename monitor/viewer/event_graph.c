/* SPDX-License-Identifier: Apache-2.0 */
/* A graph's record in TensorBoard's form: a GraphDef, and a RunMetadata with the time and memory of its nodes
 * (TensorFlow's core/framework/graph.proto, node_def.proto, attr_value.proto, step_stats.proto,
 * core/protobuf/config.proto). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "monitor/viewer/event_internal.h"

/* Names consist of letters, digits and "_./\-", and do not begin with a punctuation mark. Scopes, which dots separate
 * here, are separated by slashes there. */
static void add_name(trek_text *out, int field, const char *name)
{
    trek_text clean = { 0 };
    if (!*name || strchr("_./\\-", *name))
        trek_text_add(&clean, "_root");
    for (const char *c = name; *c; c++) {
        bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9');
        trek_text_bytes(&clean, letter || *c == '_' || *c == '-' ? c : *c == '.' ? "/" : "_", 1);
    }
    trek_event_message(out, field, &clean);
}

static bool is_group(const trek_run_node *node) { return node->kind && strcmp(node->kind, "group") == 0; }

/* Appends the TensorShapeProto of "f32[64, 10]": dim 2, each with size 1. Returns false if the text is no shape. */
static bool add_shape(trek_text *out, const char *shape)
{
    const char *c = shape ? strchr(shape, '[') : NULL;
    for (c = c ? c + 1 : NULL; c && *c && *c != ']';) {
        char *end;
        long long size = strtoll(c, &end, 10);
        if (end == c || size < 0)
            return false;
        trek_text dim = { 0 };
        trek_event_whole(&dim, 1, size);
        trek_event_message(out, 2, &dim);
        c = end + strspn(end, ", ");
    }
    return c && *c == ']';
}

/* An entry of an attribute map: key 1, value 2. */
static void add_attribute(trek_text *node, const char *key, trek_text *value)
{
    trek_text entry = { 0 };
    trek_event_string(&entry, 1, key);
    trek_event_message(&entry, 2, value);
    trek_event_message(node, 5, &entry);
}

/* AttrValue: list 1 (of shapes: 7), s 2, i 3. */
static void add_attributes(trek_text *out, const trek_run_node *node)
{
    trek_text shape = { 0 }, list = { 0 }, value = { 0 };
    if (add_shape(&shape, node->shape)) {
        trek_event_message(&list, 7, &shape);
        trek_event_message(&value, 1, &list);
        add_attribute(out, "_output_shapes", &value);
    }
    trek_text_clear(&shape);
    if (node->details) {
        trek_event_string(&value, 2, node->details);
        add_attribute(out, "details", &value);
    }
    if (node->parameters > 0) {
        trek_event_whole(&value, 3, node->parameters);
        add_attribute(out, "parameters", &value);
    }
}

/* Inputs are in the order of their ports. */
static void add_inputs(trek_text *out, const trek_run_record *r, const char *name)
{
    int64_t port = -1;
    for (;;) {
        int64_t next = INT64_MAX;
        for (int k = 0; k < r->n_links; k++)
            if (r->links[k].to && r->links[k].from && strcmp(r->links[k].to, name) == 0 && r->links[k].port > port &&
                r->links[k].port < next)
                next = r->links[k].port;
        if (next == INT64_MAX)
            return;
        port = next;
        for (int k = 0; k < r->n_links; k++)
            if (r->links[k].to && r->links[k].from && strcmp(r->links[k].to, name) == 0 && r->links[k].port == port)
                add_name(out, 3, r->links[k].from);
    }
}

/* GraphDef: node 1 (NodeDef: name 1, op 2, input 3, attr 5), versions 4 (producer 1). Groups are scopes of their own. */
void trek_event_graph(trek_text *graph, const trek_run_record *r)
{
    enum { PRODUCER = 22 };
    trek_text versions = { 0 };
    for (int k = 0; k < r->n_nodes; k++) {
        const trek_run_node *node = &r->nodes[k];
        trek_text def = { 0 };
        if (!node->name || is_group(node))
            continue;
        add_name(&def, 1, node->name);
        trek_event_string(&def, 2, node->op ? node->op : "node");
        add_inputs(&def, r, node->name);
        add_attributes(&def, node);
        trek_event_message(graph, 1, &def);
    }
    trek_event_whole(&versions, 1, PRODUCER);
    trek_event_message(graph, 4, &versions);
}

static int64_t whole(double value) { return value >= 0 && value < 9e15 ? (int64_t)(value + 0.5) : 0; }

/* NodeExecStats: node_name 1, all_start_micros 2, op_start_rel 3, op_end_rel 4, all_end_rel 5, memory 6
 * (AllocatorMemoryUsed: allocator_name 1, total_bytes 2), output 7 (NodeOutput: tensor_description 3, with shape 2). */
static void add_stats(trek_text *stats, const trek_run_record *r, const trek_run_node *node)
{
    trek_text one = { 0 }, memory = { 0 }, shape = { 0 }, tensor = { 0 }, output = { 0 };
    int64_t micros = whole(node->time_ms * 1e3);
    add_name(&one, 1, node->name);
    trek_event_whole(&one, 2, whole(r->time * 1e6));
    trek_event_whole(&one, 3, 0);
    trek_event_whole(&one, 4, micros);
    trek_event_whole(&one, 5, micros);
    if (!isnan(node->bytes)) {
        trek_event_string(&memory, 1, "trek");
        trek_event_whole(&memory, 2, whole(node->bytes));
        trek_event_message(&one, 6, &memory);
    }
    if (add_shape(&shape, node->shape)) {
        trek_event_message(&tensor, 2, &shape);
        trek_event_message(&output, 3, &tensor);
        trek_event_message(&one, 7, &output);
    }
    trek_text_clear(&shape);
    trek_event_message(stats, 2, &one);
}

/* RunMetadata: step_stats 1 (dev_stats 1: device 1, node_stats 2). */
void trek_event_run_metadata(trek_text *out, const trek_run_record *r)
{
    trek_text device = { 0 }, stats = { 0 };
    trek_event_string(&device, 1, "trek");
    for (int k = 0; k < r->n_nodes; k++)
        if (r->nodes[k].name && !is_group(&r->nodes[k]) && !isnan(r->nodes[k].time_ms))
            add_stats(&device, r, &r->nodes[k]);
    trek_event_message(&stats, 1, &device);
    trek_event_message(out, 1, &stats);
}
