/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/gpt2.h"

#include <stddef.h>

#include "autograd/ops.h"
#include "nn/module_tree.h"
#include "tensor/memory_internal.h"

typedef struct block_module {
    trek_module base;
    trek_module *ln_1, *attn, *ln_2, *up, *down;
} block_module;

static trek_var *block_forward(trek_module *self, trek_var *x)
{
    block_module *m = (block_module *)self;
    x = trek_add(x, trek_forward(m->attn, trek_forward(m->ln_1, x)));
    return trek_add(x, trek_forward(m->down, trek_gelu_tanh(trek_forward(m->up, trek_forward(m->ln_2, x)))));
}

static const trek_module_class block_class = { .name = "block", .size = sizeof(block_module), .forward = block_forward };

static trek_module *block_new(int64_t width, int64_t heads)
{
    trek_module *m = trek_module_new(&block_class);
    trek_multihead_attention_opts attention = { .embed_dim = width, .heads = heads, .causal = true, .device = trek_cpu(0) };
    trek_module_add(m, "ln_1", offsetof(block_module, ln_1), trek_nn_layer_norm(width, trek_cpu(0)));
    trek_module_add(m, "attn", offsetof(block_module, attn), trek_nn_multihead_attention_with(&attention));
    trek_module_add(m, "ln_2", offsetof(block_module, ln_2), trek_nn_layer_norm(width, trek_cpu(0)));
    trek_module_add(m, "up", offsetof(block_module, up), trek_nn_linear(width, 4 * width, trek_cpu(0)));
    trek_module_add(m, "down", offsetof(block_module, down), trek_nn_linear(4 * width, width, trek_cpu(0)));
    return trek_module_check(m);
}

typedef struct gpt2_module {
    trek_module base;
    trek_module *wte, *wpe, *h, *ln_f;
} gpt2_module;

static trek_var *gpt2_forward(trek_module *self, trek_var *tokens)
{
    gpt2_module *m = (gpt2_module *)self;
    trek_var *places = trek_narrow(trek_module_find(m->wpe, "weight"), 0, 0, trek_var_size(tokens, 1));
    trek_var *x = trek_forward(m->h, trek_add(trek_forward(m->wte, tokens), places));
    return trek_linear(trek_forward(m->ln_f, x), trek_module_find(m->wte, "weight"), NULL);
}

static const trek_module_class gpt2_class = { .name = "gpt2", .size = sizeof(gpt2_module), .forward = gpt2_forward };

trek_module *gpt2_new(const gpt2_config *c)
{
    trek_module *m = trek_module_new(&gpt2_class), *blocks = trek_nn_sequential(NULL, 0);
    for (int64_t k = 0; k < c->layers; k++)
        trek_nn_sequential_add(blocks, block_new(c->width, c->heads));
    trek_module_add(m, "wte", offsetof(gpt2_module, wte), trek_nn_embedding(c->vocabulary, c->width, trek_cpu(0)));
    trek_module_add(m, "wpe", offsetof(gpt2_module, wpe), trek_nn_embedding(c->positions, c->width, trek_cpu(0)));
    trek_module_add(m, "h", offsetof(gpt2_module, h), blocks);
    trek_module_add(m, "ln_f", offsetof(gpt2_module, ln_f), trek_nn_layer_norm(c->width, trek_cpu(0)));
    return trek_module_check(m);
}

/* Its products' weights are [in, out]. Masks are not parameters here, and older files have them. */
const trek_state_rule gpt2_rules[GPT2_RULES] = {
    { .from = "transformer.h.*.attn.c_attn.weight", .to = "h.*.attn.in_proj_weight", .transpose = true },
    { .from = "transformer.h.*.attn.c_attn.bias", .to = "h.*.attn.in_proj_bias" },
    { .from = "transformer.h.*.attn.c_proj.weight", .to = "h.*.attn.out_proj.weight", .transpose = true },
    { .from = "transformer.h.*.attn.c_proj.bias", .to = "h.*.attn.out_proj.bias" },
    { .from = "transformer.h.*.mlp.c_fc.weight", .to = "h.*.up.weight", .transpose = true },
    { .from = "transformer.h.*.mlp.c_fc.bias", .to = "h.*.up.bias" },
    { .from = "transformer.h.*.mlp.c_proj.weight", .to = "h.*.down.weight", .transpose = true },
    { .from = "transformer.h.*.mlp.c_proj.bias", .to = "h.*.down.bias" },
    { .from = "**.attn.*bias" },
    { .from = "transformer.**", .to = "**" },
};

trek_status gpt2_config_read(const char *folder, gpt2_config *c)
{
    char *path = trek_format("%s/config.json", folder);
    trek_config *config = path ? trek_config_read(path) : NULL;
    trek_status status = config ? TREK_OK : trek_error_status();
    const struct { const char *key; int64_t *value; } wanted[] = {
        { "vocab_size", &c->vocabulary }, { "n_positions", &c->positions }, { "n_embd", &c->width }, { "n_layer", &c->layers },
        { "n_head", &c->heads },
    };
    for (size_t k = 0; k < sizeof wanted / sizeof *wanted && status == TREK_OK; k++)
        status = trek_config_integer(config, wanted[k].key, wanted[k].value);
    trek_config_free(&config);
    trek_free(path);
    return status;
}
