/* SPDX-License-Identifier: Apache-2.0 */
/* The structural hash: SHA-256 of a text that says all that makes up a graph's
 * structure, and nothing else. */
#include "graph/graph_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- SHA-256, FIPS 180-4 ------------------------------------------------------ */

/* First 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t x, int by) { return x >> by | x << (32 - by); }

static void hash_block(uint32_t state[8], const unsigned char *block)
{
    uint32_t w[64], v[8];
    for (int t = 0; t < 16; t++, block += 4)
        w[t] = (uint32_t)block[0] << 24 | (uint32_t)block[1] << 16 | (uint32_t)block[2] << 8 | block[3];
    for (int t = 16; t < 64; t++) {
        uint32_t low = rotate(w[t - 15], 7) ^ rotate(w[t - 15], 18) ^ w[t - 15] >> 3;
        uint32_t high = rotate(w[t - 2], 17) ^ rotate(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = w[t - 16] + low + w[t - 7] + high;
    }
    memcpy(v, state, sizeof v);
    for (int t = 0; t < 64; t++) {
        uint32_t sum1 = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25);
        uint32_t choose = (v[4] & v[5]) ^ (~v[4] & v[6]);
        uint32_t first = v[7] + sum1 + choose + round_constants[t] + w[t];
        uint32_t sum0 = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22);
        uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += first;
        v[0] = first + sum0 + majority;
    }
    for (int k = 0; k < 8; k++)
        state[k] += v[k];
}

void trek_sha256(const void *data, size_t bytes, unsigned char digest[32])
{
    /* First 32 bits of the fractional parts of the square roots of the first 8 primes. */
    uint32_t state[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
    const unsigned char *at = data;
    size_t left = bytes;
    for (; left >= 64; left -= 64, at += 64)
        hash_block(state, at);
    unsigned char last[128] = { 0 };
    if (left)
        memcpy(last, at, left);
    last[left] = 0x80;
    size_t size = left < 56 ? 64 : 128;
    uint64_t bits = (uint64_t)bytes * 8;
    for (int k = 0; k < 8; k++)
        last[size - 1 - (size_t)k] = (unsigned char)(bits >> (8 * k));
    hash_block(state, last);
    if (size == 128)
        hash_block(state, last + 64);
    for (int k = 0; k < 32; k++)
        digest[k] = (unsigned char)(state[k / 4] >> (24 - 8 * (k % 4)));
}

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

/* Adds the lines in order and empties the list. False: something failed on the way. */
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
                               trek_shape_text(trek_var_shape(var), shape)));
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

/* What the module is made of, behind its class's name. */
static bool describe_inside(trek_text *text, trek_module *module)
{
    trek_graph *nested = trek_graph_from_module(module);
    if (nested) {
        char hash[TREK_GRAPH_HASH_TEXT];
        if (!trek_graph_hash(nested, hash))
            return false;
        trek_text_format(text, " %s\n", hash);
        return true;
    }
    if (module->klass->hands_inputs_on)
        return describe_parts(text, module);
    trek_text_add(text, "\n");
    sorted_lines list = { 0 };
    trek_status status = trek_module_each_param(module, add_param, &list);
    if (status == TREK_OK)
        status = trek_module_each_buffer(module, add_buffer, &list);
    return finish_lines(&list, text) && status == TREK_OK;
}

/* A loop, gate, switch or map: its options, and then its children. */
static bool describe_parts(trek_text *text, trek_module *module)
{
    char options[128] = "";
    if (module->klass->describe)
        module->klass->describe(module, options, sizeof options);
    trek_text_format(text, " %s\n", options);
    for (int k = 0; k < module->n_children; k++) {
        trek_module *part = module->children[k].module;
        trek_text_format(text, "part %s %s", module->children[k].name, part->klass->name);
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
    trek_text_format(text, " module %s", module->klass->name);
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

char *trek_graph_hash(trek_graph *graph, char *hash)
{
    if (!graph || !hash) {
        trek_fail_missing("trek_graph_hash", graph ? "text" : "graph");
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
