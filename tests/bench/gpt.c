/* SPDX-License-Identifier: Apache-2.0 */
/* A GPT as a user writes it, of the layers there are: normalised before each branch, learned positions, the table of tokens
 * shared with the head, no dropout. */
#include "bench.h"

#include <stdio.h>

typedef struct block_module {
    trek_module base;
    trek_module *first, *attention, *second, *feed;
} block_module;

static trek_var *block_forward(trek_module *self, trek_var *x)
{
    block_module *m = (block_module *)self;
    x = trek_add(x, trek_forward(m->attention, trek_forward(m->first, x)));
    return trek_add(x, trek_forward(m->feed, trek_forward(m->second, x)));
}

static const trek_module_class block_class = { .name = "block", .size = sizeof(block_module), .forward = block_forward,
                                               .rowwise = true };

static trek_module *block_new(int64_t width, int64_t heads, trek_device device)
{
    trek_module *m = trek_module_new(&block_class), *feed = trek_nn_sequential(NULL, 0);
    trek_multihead_attention_opts attention = { .embed_dim = width, .heads = heads, .causal = true, .device = device };
    trek_nn_sequential_add(feed, trek_nn_linear(width, 4 * width, device));
    trek_nn_sequential_add(feed, trek_nn_gelu());
    trek_nn_sequential_add(feed, trek_nn_linear(4 * width, width, device));
    trek_module_add(m, "first", offsetof(block_module, first), trek_nn_layer_norm(width, device));
    trek_module_add(m, "attention", offsetof(block_module, attention), trek_nn_multihead_attention_with(&attention));
    trek_module_add(m, "second", offsetof(block_module, second), trek_nn_layer_norm(width, device));
    trek_module_add(m, "feed", offsetof(block_module, feed), feed);
    return trek_module_check(m);
}

typedef struct gpt_module {
    trek_module base;
    trek_module *tokens, *positions, *blocks, *last;
} gpt_module;

static trek_var *gpt_forward(trek_module *self, trek_var *tokens)
{
    gpt_module *m = (gpt_module *)self;
    trek_var *places = trek_forward(m->positions, trek_token_positions(tokens));
    trek_var *x = trek_forward(m->blocks, trek_add(trek_forward(m->tokens, tokens), places));
    return trek_linear(trek_last_positions(trek_forward(m->last, x)), trek_module_find(m->tokens, "weight"), NULL);
}

static const trek_module_class gpt_class = { .name = "gpt", .size = sizeof(gpt_module), .forward = gpt_forward, .rowwise = true };

trek_module *bench_gpt_new(int layers, int64_t width, int64_t heads, int64_t context, int64_t vocabulary, trek_device device)
{
    trek_module *m = trek_module_new(&gpt_class), *blocks = trek_nn_sequential(NULL, 0);
    for (int k = 0; k < layers; k++)
        trek_nn_sequential_add(blocks, block_new(width, heads, device));
    trek_module_add(m, "tokens", offsetof(gpt_module, tokens), trek_nn_embedding(vocabulary, width, device));
    trek_module_add(m, "positions", offsetof(gpt_module, positions), trek_nn_embedding(context, width, device));
    trek_module_add(m, "blocks", offsetof(gpt_module, blocks), blocks);
    trek_module_add(m, "last", offsetof(gpt_module, last), trek_nn_layer_norm(width, device));
    return trek_module_check(m);
}
