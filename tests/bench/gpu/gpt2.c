/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-2 as trek runs it best: each sum of the residual stream in one pass with the norm
 * that follows, attention from the packed product without copies. Blocks normalised before each branch, learned positions, the
 * table of tokens shared with the head. Without dropout, as it is benchmarked everywhere. */
#include "bench.h"

#include <stdio.h>

/* --- a block ----------------------------------------------------------------------- */

typedef struct block_module {
    trek_module base;
    trek_module *first, *packed, *projection, *second, *up, *down;
    int64_t heads;
} block_module;

static trek_var *own(trek_module *m, const char *name) { return trek_module_find(m, name); }

static trek_var *block_attention(block_module *m, trek_var *x)
{
    int64_t batch = trek_var_size(x, 0), length = trek_var_size(x, 1), width = trek_var_size(x, 2);
    trek_var *packed = trek_reshape(trek_forward(m->packed, x), trek_dims(batch, length, 3, m->heads, width / m->heads)),
        *part[3];
    for (int k = 0; k < 3; k++)
        part[k] = trek_permute(trek_select(packed, 2, k), trek_dims(0, 2, 1, 3));
    trek_var *y = trek_attention(part[0], part[1], part[2], &(trek_attention_opts){ .causal = true });
    return trek_forward(m->projection, trek_reshape(trek_permute(y, trek_dims(0, 2, 1, 3)), trek_dims(batch, length, width)));
}

static trek_var *block_feed(block_module *m, trek_var *x)
{
    return trek_forward(m->down, trek_linear_activation(x, own(m->up, "weight"), own(m->up, "bias"), TREK_ACTIVATION_GELU));
}

/* Adds the branch to the stream; the norm of the sum. */
static trek_var *norm_of_sum(trek_module *norm, trek_var **stream, trek_var *branch)
{
    return trek_add_layer_norm(*stream, branch, 1, own(norm, "weight"), own(norm, "bias"), 1e-5, stream);
}

static const trek_module_class block_class = { .name = "block", .size = sizeof(block_module) };

static trek_module *linear(int64_t in, int64_t out, trek_dtype dtype)
{
    return trek_nn_linear_with(&(trek_linear_opts){ .in = in, .out = out, .dtype = dtype, .device = gpu_device });
}

static trek_module *norm(int64_t width, trek_dtype dtype)
{
    return trek_nn_layer_norm_with(&(trek_layer_norm_opts){ .shape = trek_dims(width), .dtype = dtype, .device = gpu_device });
}

static trek_module *block_new(int64_t width, int64_t heads, trek_dtype dtype)
{
    trek_module *m = trek_module_new(&block_class);
    trek_module_add(m, "first", offsetof(block_module, first), norm(width, dtype));
    trek_module_add(m, "packed", offsetof(block_module, packed), linear(width, 3 * width, dtype));
    trek_module_add(m, "projection", offsetof(block_module, projection), linear(width, width, dtype));
    trek_module_add(m, "second", offsetof(block_module, second), norm(width, dtype));
    trek_module_add(m, "up", offsetof(block_module, up), linear(width, 4 * width, dtype));
    trek_module_add(m, "down", offsetof(block_module, down), linear(4 * width, width, dtype));
    if (m)
        ((block_module *)m)->heads = heads;
    return trek_module_check(m);
}

/* --- the model: tokens [B, T] -> [B, T, C], before the head ---------------------------- */

typedef struct gpt2_module {
    trek_module base;
    trek_module *tokens, *positions, *blocks, *last;
} gpt2_module;

static trek_var *gpt2_forward(trek_module *self, trek_var *tokens)
{
    gpt2_module *m = (gpt2_module *)self;
    int n = trek_module_child_count(m->blocks);
    trek_var *places = trek_narrow(own(m->positions, "weight"), 0, 0, trek_var_size(tokens, 1));
    trek_var *stream = trek_add(trek_forward(m->tokens, tokens), places), *x = NULL;
    for (int k = 0; k < n; k++) {
        block_module *block = (block_module *)trek_module_child(m->blocks, k);
        block_module *next = k + 1 < n ? (block_module *)trek_module_child(m->blocks, k + 1) : NULL;
        x = k ? x : trek_forward(block->first, stream);
        x = norm_of_sum(block->second, &stream, block_attention(block, x));
        x = norm_of_sum(next ? next->first : m->last, &stream, block_feed(block, x));
    }
    return x;
}

static const trek_module_class gpt2_class = { .name = "gpt2", .size = sizeof(gpt2_module), .forward = gpt2_forward };

trek_module *gpu_gpt2_new(int layers, int64_t width, int64_t heads, int64_t context, int64_t vocabulary, trek_dtype dtype)
{
    trek_module *m = trek_module_new(&gpt2_class), *blocks = trek_nn_sequential(NULL, 0);
    trek_embedding_opts table = { .num = vocabulary, .dim = width, .dtype = dtype, .device = gpu_device };
    for (int k = 0; k < layers; k++)
        trek_nn_sequential_add(blocks, block_new(width, heads, dtype));
    trek_module_add(m, "tokens", offsetof(gpt2_module, tokens), trek_nn_embedding_with(&table));
    if (m && ((gpt2_module *)m)->tokens) /* it is the head, too */
        trek_init_normal(own(((gpt2_module *)m)->tokens, "weight"), 0, 0.02);
    table.num = context;
    trek_module_add(m, "positions", offsetof(gpt2_module, positions), trek_nn_embedding_with(&table));
    trek_module_add(m, "blocks", offsetof(gpt2_module, blocks), blocks);
    trek_module_add(m, "last", offsetof(gpt2_module, last), norm(width, dtype));
    return trek_module_check(m);
}

trek_var *gpu_gpt2_loss(trek_graph *graph, trek_var *tokens, trek_var *targets, bool kept)
{
    trek_var *h = trek_graph_forward(graph, tokens);
    if (!h)
        return NULL;
    gpt2_module *m = (gpt2_module *)trek_module_child(trek_graph_module(graph), 0);
    trek_var *flat = trek_reshape(h, trek_dims(-1, trek_var_size(h, 2))), *table = own(m->tokens, "weight");
    targets = trek_reshape(targets, trek_dims(-1));
    return kept ? trek_cross_entropy(trek_linear(flat, table, NULL), targets)
        : trek_linear_cross_entropy(flat, table, NULL, targets, NULL);
}
