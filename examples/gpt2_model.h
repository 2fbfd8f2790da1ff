/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-2, made of trek's layers, with the names and the files of Hugging Face's model. */
#ifndef TREK_EXAMPLES_GPT2_MODEL_H
#define TREK_EXAMPLES_GPT2_MODEL_H

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "trek.h"

typedef struct gpt2_config {
    int64_t vocabulary, positions, width, layers, heads;
} gpt2_config;

typedef struct block {
    trek_module base;
    trek_module *ln_1, *attn, *ln_2, *up, *down;
} block;

static trek_var *block_forward(trek_module *self, trek_var *x)
{
    block *m = (block *)self;
    x = trek_add(x, trek_forward(m->attn, trek_forward(m->ln_1, x)));
    return trek_add(x, trek_forward(m->down, trek_gelu_tanh(trek_forward(m->up, trek_forward(m->ln_2, x)))));
}

static const trek_module_class block_class = { .name = "block", .size = sizeof(block), .forward = block_forward };

static inline trek_module *block_new(int64_t width, int64_t heads, trek_device device)
{
    trek_module *m = trek_module_new(&block_class);
    trek_module_add(m, "ln_1", offsetof(block, ln_1), trek_nn_layer_norm(width, device));
    trek_module_add(m, "attn", offsetof(block, attn), trek_nn_multihead_attention_with(&(trek_multihead_attention_opts){
        .embed_dim = width, .heads = heads, .causal = true, .device = device }));
    trek_module_add(m, "ln_2", offsetof(block, ln_2), trek_nn_layer_norm(width, device));
    trek_module_add(m, "up", offsetof(block, up), trek_nn_linear(width, 4 * width, device));
    trek_module_add(m, "down", offsetof(block, down), trek_nn_linear(4 * width, width, device));
    return trek_module_check(m);
}

/* Tokens i64 [N, T] -> logits [N, T, vocabulary]; the head is the table of tokens. */
typedef struct gpt2 {
    trek_module base;
    trek_module *wte, *wpe, *h, *ln_f;
} gpt2;

static trek_var *gpt2_forward(trek_module *self, trek_var *tokens)
{
    gpt2 *m = (gpt2 *)self;
    trek_var *places = trek_forward(m->wpe, trek_token_positions(tokens)); /* 0, 1, ..; behind a cache further */
    trek_var *x = trek_forward(m->h, trek_add(trek_forward(m->wte, tokens), places));
    x = trek_forward(m->ln_f, trek_last_positions(x)); /* all of them, but the last one in trek_generate */
    return trek_linear(x, trek_module_find(m->wte, "weight"), NULL);
}

static const trek_module_class gpt2_class = { .name = "gpt2", .size = sizeof(gpt2), .forward = gpt2_forward };

/* The published files hold products' weights as [in, out] (Conv1D): rules turn them, also when it is saved. */
static const trek_state_rule layout[] = {
    { .from = "h.*.attn.c_attn.weight", .to = "h.*.attn.in_proj_weight", .transpose = true },
    { .from = "h.*.attn.c_attn.bias", .to = "h.*.attn.in_proj_bias" },
    { .from = "h.*.attn.c_proj.weight", .to = "h.*.attn.out_proj.weight", .transpose = true },
    { .from = "h.*.attn.c_proj.bias", .to = "h.*.attn.out_proj.bias" },
    { .from = "h.*.mlp.c_fc.weight", .to = "h.*.up.weight", .transpose = true },
    { .from = "h.*.mlp.c_fc.bias", .to = "h.*.up.bias" },
    { .from = "h.*.mlp.c_proj.weight", .to = "h.*.down.weight", .transpose = true },
    { .from = "h.*.mlp.c_proj.bias", .to = "h.*.down.bias" },
};
/* Some files call everything "transformer.", some keep attention's masks, or the head, which is the table again. */
static const trek_state_rule strip[] = {
    { .from = "**h.*.attn.bias" }, { .from = "**h.*.attn.masked_bias" }, { .from = "lm_head.weight" },
    { .from = "transformer.**", .to = "**" },
};
enum { LAYOUT = sizeof layout / sizeof *layout, STRIP = sizeof strip / sizeof *strip };

static inline void load_weights(trek_module *m, const char *folder)
{
    trek_state *file = trek_state_read_with(folder, &(trek_state_read_opts){ .map = true });
    trek_state *named = file ? trek_state_rename(file, strip, STRIP) : NULL;
    if (named)
        trek_state_apply_with(named, m, &(trek_state_load_opts){ .cast = true, .rules = layout, .n_rules = LAYOUT }, NULL);
    trek_state_free(&named);
    trek_state_free(&file);
}

/* Weights and biases as GPT-2 was begun: N(0, 0.02), 0, and ones of the norms as they are. */
static inline trek_status begin_param(const char *name, trek_var *param, void *arg)
{
    (void)arg;
    if (strstr(name, "ln_"))
        return TREK_OK;
    return strstr(name, "bias") ? trek_init_zeros(param) : trek_init_normal(param, 0, 0.02);
}

/* folder: whose weights it gets; NULL: it is begun. */
static inline trek_module *gpt2_new(const gpt2_config *c, const char *folder, trek_device device)
{
    trek_module *m = trek_module_new(&gpt2_class), *blocks = trek_nn_sequential(NULL, 0);
    for (int64_t k = 0; k < c->layers; k++)
        trek_nn_sequential_add(blocks, block_new(c->width, c->heads, device));
    trek_module_add(m, "wte", offsetof(gpt2, wte), trek_nn_embedding(c->vocabulary, c->width, device));
    trek_module_add(m, "wpe", offsetof(gpt2, wpe), trek_nn_embedding(c->positions, c->width, device));
    trek_module_add(m, "h", offsetof(gpt2, h), blocks);
    trek_module_add(m, "ln_f", offsetof(gpt2, ln_f), trek_nn_layer_norm(c->width, device));
    m = trek_module_check(m);
    if (m && folder)
        load_weights(m, folder);
    else if (m)
        trek_module_each_param(m, begin_param, NULL);
    return m;
}

static inline trek_status gpt2_config_read(gpt2_config *c, const char *folder)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/config.json", folder);
    trek_config *config = trek_config_read(path);
    if (config) {
        trek_config_integer(config, "vocab_size", &c->vocabulary);
        trek_config_integer(config, "n_positions", &c->positions);
        trek_config_integer(config, "n_embd", &c->width);
        trek_config_integer(config, "n_layer", &c->layers);
        trek_config_integer(config, "n_head", &c->heads);
    }
    trek_config_free(&config);
    return trek_error_status();
}

/* What transformers reads: from_pretrained(folder). Its tokenizer's files stay those of --model. */
static inline void gpt2_export(trek_module *m, const gpt2_config *c, const char *folder)
{
    char path[4200];
    const trek_state_save_opts as = { .max_shard_bytes = 2000000000, .rules = layout, .n_rules = LAYOUT };
    if (trek_state_save_with(m, folder, &as) != TREK_OK)
        return;
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *file = fopen(path, "w");
    if (!file || fprintf(file, "{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"], \"vocab_size\": %d, "
                               "\"n_positions\": %d, \"n_embd\": %d, \"n_layer\": %d, \"n_head\": %d}\n",
                         (int)c->vocabulary, (int)c->positions, (int)c->width, (int)c->layers, (int)c->heads) < 0)
        trek_fail(TREK_ERR_IO, "%s cannot be written", path);
    if (file)
        fclose(file);
}

#endif
