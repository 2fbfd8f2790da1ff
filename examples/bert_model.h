/* SPDX-License-Identifier: Apache-2.0 */
/* BERT's encoder and a classifier of trek's layers, with the names and the files of Hugging Face's RoBERTa. */
#ifndef TREK_EXAMPLES_BERT_MODEL_H
#define TREK_EXAMPLES_BERT_MODEL_H

#include <stddef.h>
#include <stdio.h>

#include "trek.h"

typedef struct bert_config {
    int64_t vocabulary, positions, width, wide, layers, heads, classes;
} bert_config;

/* RoBERTa's numbers: <s> stands first, </s> last; positions count from behind <pad>. */
enum { FIRST = 0, PAD = 1, LAST = 2, BYTES = 3 };

typedef struct bert {
    trek_module base;
    trek_module *words, *places, *kinds, *norm, *dropout, *encoder, *dense, *out;
} bert;

/* Tokens i64 [N, T] -> logits [N, classes], from what the encoder makes of the first token. */
static trek_var *bert_forward(trek_module *self, trek_var *tokens)
{
    bert *m = (bert *)self;
    int64_t length = trek_var_size(tokens, 1);
    trek_var *place = trek_var_from(trek_tensor_arange(PAD + 1, (double)(PAD + 1 + length), 1, TREK_I64,
                                                       trek_var_device(tokens)));
    trek_var *x = trek_add(trek_forward(m->words, tokens), trek_forward(m->places, place));
    x = trek_add(x, trek_select(trek_module_find(m->kinds, "weight"), 0, 0));
    x = trek_forward(m->dropout, trek_forward(m->norm, x));
    trek_var *seen = trek_unsqueeze(trek_unsqueeze(trek_ne_scalar(tokens, PAD), 1), 1); /* [N, 1, 1, T] */
    x = trek_forward_many(m->encoder, (trek_var *[]){ x, seen }, 2);
    x = trek_tanh(trek_forward(m->dense, trek_forward(m->dropout, trek_select(x, 1, 0))));
    return trek_forward(m->out, trek_forward(m->dropout, x));
}

static const trek_module_class bert_class = { .name = "bert", .size = sizeof(bert), .forward = bert_forward };

/* From our names to theirs: query, key and value are one matrix here and three there. */
#define LAYER "roberta.encoder.layer.*."
static const trek_state_rule names[] = {
    { .from = "words.weight", .to = "roberta.embeddings.word_embeddings.weight" },
    { .from = "places.weight", .to = "roberta.embeddings.position_embeddings.weight" },
    { .from = "kinds.weight", .to = "roberta.embeddings.token_type_embeddings.weight" },
    { .from = "norm.*", .to = "roberta.embeddings.LayerNorm.*" },
    { .from = "encoder.layers.*.self_attn.in_proj_*", .to = LAYER "attention.self.query.*", .parts = 3, .part = 0 },
    { .from = "encoder.layers.*.self_attn.in_proj_*", .to = LAYER "attention.self.key.*", .parts = 3, .part = 1 },
    { .from = "encoder.layers.*.self_attn.in_proj_*", .to = LAYER "attention.self.value.*", .parts = 3, .part = 2 },
    { .from = "encoder.layers.*.self_attn.out_proj.*", .to = LAYER "attention.output.dense.*" },
    { .from = "encoder.layers.*.norm1.*", .to = LAYER "attention.output.LayerNorm.*" },
    { .from = "encoder.layers.*.linear1.*", .to = LAYER "intermediate.dense.*" },
    { .from = "encoder.layers.*.linear2.*", .to = LAYER "output.dense.*" },
    { .from = "encoder.layers.*.norm2.*", .to = LAYER "output.LayerNorm.*" },
    { .from = "dense.*", .to = "classifier.dense.*" },
    { .from = "out.*", .to = "classifier.out_proj.*" },
};
enum { NAMES = sizeof names / sizeof *names };

/* What the file has of the encoder; the head begins again where it has none. */
static inline void load_weights(trek_module *m, const char *folder)
{
    trek_state *file = trek_state_read(folder);
    trek_state *ours = file ? trek_state_restore_names(file, names, NAMES) : NULL;
    trek_state_report found;
    if (ours && trek_state_apply_with(ours, m, &(trek_state_load_opts){ .allow_missing = true, .allow_unexpected = true },
                                      &found) == TREK_OK &&
        found.missing > 4)
        trek_fail(TREK_ERR_FORMAT, "%s lacks parts of the encoder: %s", folder, found.text);
    trek_state_free(&ours);
    trek_state_free(&file);
}

/* folder: whose weights it gets; NULL: it is begun. */
static inline trek_module *bert_new(const bert_config *c, const char *folder, trek_device device)
{
    trek_module *m = trek_module_new(&bert_class);
    trek_module_add(m, "words", offsetof(bert, words), trek_nn_embedding(c->vocabulary, c->width, device));
    trek_module_add(m, "places", offsetof(bert, places), trek_nn_embedding(c->positions, c->width, device));
    trek_module_add(m, "kinds", offsetof(bert, kinds), trek_nn_embedding(1, c->width, device));
    trek_module_add(m, "norm", offsetof(bert, norm), trek_nn_layer_norm(c->width, device));
    trek_module_add(m, "dropout", offsetof(bert, dropout), trek_nn_dropout(0.1));
    trek_module_add(m, "encoder", offsetof(bert, encoder), trek_nn_transformer_encoder_with(&(trek_transformer_opts){
        .d_model = c->width, .heads = c->heads, .dim_feedforward = c->wide, .layers = c->layers, .dropout = 0.1,
        .activation = TREK_ACTIVATION_GELU, .device = device }));
    trek_module_add(m, "dense", offsetof(bert, dense), trek_nn_linear(c->width, c->width, device));
    trek_module_add(m, "out", offsetof(bert, out), trek_nn_linear(c->width, c->classes, device));
    m = trek_module_check(m);
    if (m && folder)
        load_weights(m, folder);
    return m;
}

static inline trek_status bert_config_read(bert_config *c, const char *folder)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/config.json", folder);
    trek_config *config = trek_config_read(path);
    if (config) {
        trek_config_integer(config, "vocab_size", &c->vocabulary);
        trek_config_integer(config, "max_position_embeddings", &c->positions);
        trek_config_integer(config, "hidden_size", &c->width);
        trek_config_integer(config, "intermediate_size", &c->wide);
        trek_config_integer(config, "num_hidden_layers", &c->layers);
        trek_config_integer(config, "num_attention_heads", &c->heads);
    }
    trek_config_free(&config);
    return trek_error_status();
}

#endif
