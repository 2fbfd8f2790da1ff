/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-2, BERT, T5, ViT. */
#include <math.h>

#include "nn/module_internal.h"
#include "tests/zoo/zoo.h"

/* [N, T, D] -> [N, heads, T, D / heads] */
static trek_var *to_heads(trek_var *x, int64_t heads)
{
    int64_t n = trek_var_size(x, 0), t = trek_var_size(x, 1), d = trek_var_size(x, 2);
    return trek_permute(trek_reshape(x, trek_dims(n, t, heads, d / heads)), trek_dims(0, 2, 1, 3));
}

static trek_var *from_heads(trek_var *y)
{
    int64_t n = trek_var_size(y, 0), heads = trek_var_size(y, 1), t = trek_var_size(y, 2), each = trek_var_size(y, 3);
    return trek_reshape(trek_permute(y, trek_dims(0, 2, 1, 3)), trek_dims(n, t, heads * each));
}

/* Attention of x [N, T, 3 D]: query, key and value side by side. */
static trek_var *attend_packed(trek_var *x, int64_t heads, bool causal)
{
    trek_var *parts[3] = { NULL };
    trek_chunk(x, 3, -1, parts, 3);
    for (int k = 0; k < 3; k++)
        parts[k] = to_heads(parts[k], heads);
    return from_heads(trek_attention(parts[0], parts[1], parts[2], &(trek_attention_opts){ .causal = causal }));
}

static trek_module *repeated(int n, trek_module *(*make)(int64_t, int64_t), int64_t d, int64_t heads)
{
    trek_module *stack = trek_nn_sequential(NULL, 0);
    for (int k = 0; k < n; k++)
        trek_nn_sequential_add(stack, make(d, heads));
    return stack;
}

static trek_var *counted(int64_t n) { return trek_var_from(trek_tensor_arange(0, (double)n, 1, TREK_I64, zoo_device)); }

/* --- Radford and others 2019 --------------------------------------------------------------------- */

/* ln_1, c_attn, c_proj, ln_2, c_fc, c_out; heads */
static trek_var *gpt_block_forward(trek_module *self, trek_var *x)
{
    zoo_part *b = (zoo_part *)self;
    trek_var *y = attend_packed(trek_forward(b->m[1], trek_forward(b->m[0], x)), b->n[0], true);
    x = trek_add(x, trek_forward(b->m[2], y));
    return trek_add(x, trek_forward(b->m[5], trek_gelu_tanh(trek_forward(b->m[4], trek_forward(b->m[3], x)))));
}

ZOO_CLASS(gpt_block, .forward = gpt_block_forward);

static trek_module *gpt_block(int64_t d, int64_t heads)
{
    zoo_part *b = zoo_new(&gpt_block_class);
    b->n[0] = heads;
    zoo_add(b, 0, "ln_1", zoo_layer_norm(d, 0));
    zoo_add(b, 1, "c_attn", zoo_linear(d, 3 * d, true));
    zoo_add(b, 2, "c_proj", zoo_linear(d, d, true));
    zoo_add(b, 3, "ln_2", zoo_layer_norm(d, 0));
    zoo_add(b, 4, "c_fc", zoo_linear(d, 4 * d, true));
    zoo_add(b, 5, "c_out", zoo_linear(4 * d, d, true));
    return zoo_done(b);
}

/* wte, wpe, h, ln_f; the head's weight is wte's */
static trek_var *gpt_forward(trek_module *self, trek_var *ids)
{
    trek_module **m = ((zoo_part *)self)->m;
    trek_var *x = trek_add(trek_forward(m[0], ids), trek_forward(m[1], counted(trek_var_size(ids, 1))));
    return trek_linear(trek_forward(m[3], trek_forward(m[2], x)), trek_module_find(m[0], "weight"), NULL);
}

ZOO_CLASS(gpt, .forward = gpt_forward);

static trek_module *gpt_build(void)
{
    zoo_part *g = zoo_new(&gpt_class);
    zoo_add(g, 0, "wte", zoo_embedding(97, 32));
    zoo_add(g, 1, "wpe", zoo_embedding(24, 32));
    zoo_add(g, 2, "h", repeated(2, gpt_block, 32, 4));
    zoo_add(g, 3, "ln_f", zoo_layer_norm(32, 0));
    return zoo_done(g);
}

static trek_var *gpt_loss(trek_module *model, int step, trek_var **output)
{
    trek_var *ids = zoo_tokens(step, 3, 21, 97);
    *output = trek_forward(model, trek_narrow(ids, 1, 0, 20));
    return zoo_cross_entropy(*output, trek_narrow(ids, 1, 1, 20));
}

const zoo_model zoo_gpt2 = { "gpt2", gpt_build, gpt_loss, { NULL } };

/* --- Devlin and others 2019 ------------------------------------------------------------------------ */

enum { BERT_ROWS = 4, BERT_LENGTH = 18, BERT_WORDS = 83 };

/* query, key, value, dense, norm1, intermediate, output, norm2; x and mask */
static trek_var *bert_layer_forward(trek_module *self, trek_var *const *inputs, int n)
{
    (void)n;
    zoo_part *b = (zoo_part *)self;
    trek_var *x = inputs[0], *parts[3];
    for (int k = 0; k < 3; k++)
        parts[k] = to_heads(trek_forward(b->m[k], x), b->n[0]);
    trek_var *y = from_heads(trek_attention(parts[0], parts[1], parts[2], &(trek_attention_opts){ .mask = inputs[1] }));
    x = trek_forward(b->m[4], trek_add(x, trek_forward(b->m[3], y)));
    return trek_forward(b->m[7], trek_add(x, trek_forward(b->m[6], trek_gelu(trek_forward(b->m[5], x)))));
}

ZOO_CLASS(bert_layer, .forward_many = bert_layer_forward);

static trek_module *bert_layer(int64_t d, int64_t heads)
{
    zoo_part *b = zoo_new(&bert_layer_class);
    b->n[0] = heads;
    zoo_add(b, 0, "query", zoo_linear(d, d, true));
    zoo_add(b, 1, "key", zoo_linear(d, d, true));
    zoo_add(b, 2, "value", zoo_linear(d, d, true));
    zoo_add(b, 3, "dense", zoo_linear(d, d, true));
    zoo_add(b, 4, "norm1", zoo_layer_norm(d, 1e-12));
    zoo_add(b, 5, "intermediate", zoo_linear(d, 4 * d, true));
    zoo_add(b, 6, "output", zoo_linear(4 * d, d, true));
    zoo_add(b, 7, "norm2", zoo_layer_norm(d, 1e-12));
    return zoo_done(b);
}

ZOO_CLASS(bert, .forward = NULL); /* its loss runs the parts */
/* words, positions, types, norm, layers, pooler, transform, transform_norm, relation; bias_words */
static trek_module *bert_build(void)
{
    zoo_part *b = zoo_new(&bert_class);
    zoo_add(b, 0, "words", zoo_embedding(BERT_WORDS, 32));
    zoo_add(b, 1, "positions", zoo_embedding(20, 32));
    zoo_add(b, 2, "types", zoo_embedding(2, 32));
    zoo_add(b, 3, "norm", zoo_layer_norm(32, 1e-12));
    zoo_add(b, 4, "layer", repeated(2, bert_layer, 32, 4));
    zoo_add(b, 5, "pooler", zoo_linear(32, 32, true));
    zoo_add(b, 6, "transform", zoo_linear(32, 32, true));
    zoo_add(b, 7, "transform_norm", zoo_layer_norm(32, 1e-12));
    zoo_add(b, 8, "relation", zoo_linear(32, 2, true));
    zoo_param(b, 0, "bias_words", trek_dims(BERT_WORDS));
    return zoo_done(b);
}

/* [N, T]: of the words that are there, in rows of different lengths */
static trek_var *bert_seen(void)
{
    int64_t lengths[BERT_ROWS];
    for (int r = 0; r < BERT_ROWS; r++)
        lengths[r] = BERT_LENGTH - 3 * r;
    return trek_lt(counted(BERT_LENGTH), zoo_of_integers(lengths, trek_dims(BERT_ROWS, 1)));
}

static trek_var *bert_loss(trek_module *model, int step, trek_var **output)
{
    zoo_part *b = (zoo_part *)model;
    trek_var *at = counted(BERT_LENGTH), *seen = bert_seen(), *ids = zoo_tokens(step, BERT_ROWS, BERT_LENGTH, BERT_WORDS);
    trek_var *kinds = trek_cast(trek_ge_scalar(at, BERT_LENGTH / 2), TREK_I64);
    trek_var *x = trek_add(trek_forward(b->m[0], ids), trek_forward(b->m[1], at));
    x = trek_forward(b->m[3], trek_add(x, trek_forward(b->m[2], trek_expand(kinds, trek_dims(BERT_ROWS, BERT_LENGTH)))));
    trek_var *mask = trek_reshape(seen, trek_dims(BERT_ROWS, 1, 1, BERT_LENGTH));
    for (int k = 0; k < b->m[4]->own->n_children; k++)
        x = trek_forward_many(b->m[4]->own->children[k].module, (trek_var *[]){ x, mask }, 2);
    trek_var *y = trek_forward(b->m[7], trek_gelu(trek_forward(b->m[6], x)));
    *output = trek_linear(y, trek_module_find(b->m[0], "weight"), b->p[0]);
    trek_var *chosen = trek_logical_and(trek_eq_scalar(trek_remainder(at, zoo_of_integers((int64_t[]){ 4 }, trek_dims(1))), 1),
                                        seen);
    trek_var *labels = trek_masked_fill(zoo_tokens(step + 50, BERT_ROWS, BERT_LENGTH, BERT_WORDS), trek_logical_not(chosen),
                                        -100);
    trek_var *relation = trek_forward(b->m[8], trek_tanh(trek_forward(b->m[5], trek_select(x, 1, 0))));
    return trek_add(zoo_cross_entropy(*output, labels), trek_cross_entropy(relation, zoo_classes(step, BERT_ROWS, 2)));
}

const zoo_model zoo_bert = { "bert", bert_build, bert_loss, { NULL } };

/* --- Raffel and others 2020 ---------------------------------------------------------------------------- */

enum { T5_D = 32, T5_HEADS = 4, T5_WORDS = 71, T5_BUCKETS = 8, T5_FARTHEST = 20 };

/* q, k, v, o; x, memory and an optional bias of the scores */
static trek_var *t5_attention_forward(trek_module *self, trek_var *const *inputs, int n)
{
    trek_module **m = ((zoo_part *)self)->m;
    trek_var *q = to_heads(trek_forward(m[0], inputs[0]), T5_HEADS), *k = to_heads(trek_forward(m[1], inputs[1]), T5_HEADS),
             *v = to_heads(trek_forward(m[2], inputs[1]), T5_HEADS);
    trek_attention_opts opts = { .scale = 1, .mask = n > 2 ? inputs[2] : NULL };
    return trek_forward(m[3], from_heads(trek_attention(q, k, v, &opts)));
}

ZOO_CLASS(t5_attention, .forward_many = t5_attention_forward);

static trek_module *t5_attention(void)
{
    static const char *const names[] = { "q", "k", "v", "o" };
    zoo_part *a = zoo_new(&t5_attention_class);
    for (int k = 0; k < 4; k++)
        zoo_add(a, k, names[k], zoo_linear(T5_D, T5_D, false));
    return zoo_done(a);
}

/* norm1, self, norm2, cross (of a decoder), norm3, wi, wo; x, bias, memory */
static trek_var *t5_block_forward(trek_module *self, trek_var *const *inputs, int n)
{
    trek_module **m = ((zoo_part *)self)->m;
    trek_var *x = inputs[0], *y = trek_forward(m[0], x);
    x = trek_add(x, trek_forward_many(m[1], (trek_var *[]){ y, y, inputs[1] }, 3));
    if (n > 2)
        x = trek_add(x, trek_forward_many(m[3], (trek_var *[]){ trek_forward(m[2], x), inputs[2] }, 2));
    return trek_add(x, trek_forward(m[6], trek_relu(trek_forward(m[5], trek_forward(m[4], x)))));
}

ZOO_CLASS(t5_block, .forward_many = t5_block_forward);

static trek_module *t5_block(bool crosses)
{
    zoo_part *b = zoo_new(&t5_block_class);
    zoo_add(b, 0, "norm1", zoo_rms_norm(T5_D, 1e-6));
    zoo_add(b, 1, "self", t5_attention());
    if (crosses) {
        zoo_add(b, 2, "norm2", zoo_rms_norm(T5_D, 1e-6));
        zoo_add(b, 3, "cross", t5_attention());
    }
    zoo_add(b, 4, "norm3", zoo_rms_norm(T5_D, 1e-6));
    zoo_add(b, 5, "wi", zoo_linear(T5_D, 2 * T5_D, false));
    zoo_add(b, 6, "wo", zoo_linear(2 * T5_D, T5_D, false));
    return zoo_done(b);
}

ZOO_CLASS(t5, .forward = NULL);
/* shared, encoder_bias, decoder_bias, encoder, decoder, encoder_norm, decoder_norm */
static trek_module *t5_build(void)
{
    zoo_part *t = zoo_new(&t5_class);
    zoo_add(t, 0, "shared", zoo_embedding(T5_WORDS, T5_D));
    zoo_add(t, 1, "encoder_bias", zoo_embedding(T5_BUCKETS, T5_HEADS));
    zoo_add(t, 2, "decoder_bias", zoo_embedding(T5_BUCKETS, T5_HEADS));
    zoo_add(t, 3, "encoder", t5_block(false));
    zoo_add(t, 4, "decoder", t5_block(true));
    zoo_add(t, 5, "encoder_norm", zoo_rms_norm(T5_D, 1e-6));
    zoo_add(t, 6, "decoder_norm", zoo_rms_norm(T5_D, 1e-6));
    return zoo_done(t);
}

/* Learned, [1, heads, t, t]; a decoder does not see what comes later. */
static trek_var *t5_bias(trek_module *table, int64_t t, bool both)
{
    int64_t relative[256];
    for (int64_t q = 0; q < t; q++)
        for (int64_t k = 0; k < t; k++)
            relative[q * t + k] = k - q;
    trek_var *buckets = trek_relative_position_bucket(zoo_of_integers(relative, trek_dims(t, t)), both, T5_BUCKETS, T5_FARTHEST);
    trek_var *y = trek_unsqueeze(trek_permute(trek_forward(table, buckets), trek_dims(2, 0, 1)), 0);
    if (both)
        return y;
    trek_var *later = trek_triu(trek_var_from(trek_tensor_ones(trek_dims(t, t), TREK_BOOL, zoo_device)), 1);
    return trek_masked_fill(y, later, -INFINITY);
}

static trek_var *t5_loss(trek_module *model, int step, trek_var **output)
{
    trek_module **m = ((zoo_part *)model)->m;
    trek_var *source = zoo_tokens(step, 3, 14, T5_WORDS), *target = zoo_tokens(step + 50, 3, 11, T5_WORDS);
    trek_var *memory = trek_forward_many(m[3], (trek_var *[]){ trek_forward(m[0], source), t5_bias(m[1], 14, true) }, 2);
    memory = trek_forward(m[5], memory);
    trek_var *y = trek_forward(m[0], trek_narrow(target, 1, 0, 10));
    y = trek_forward_many(m[4], (trek_var *[]){ y, t5_bias(m[2], 10, false), memory }, 3);
    y = trek_mul_scalar(trek_forward(m[6], y), 1 / sqrt(T5_D));
    *output = trek_linear(y, trek_module_find(m[0], "weight"), NULL);
    return zoo_cross_entropy(*output, trek_narrow(target, 1, 1, 10));
}

const zoo_model zoo_t5 = { "t5", t5_build, t5_loss, { NULL } };

/* --- Dosovitskiy and others 2021 ------------------------------------------------------------------------- */

enum { VIT_D = 24, VIT_ROWS = 4 };

/* norm1, qkv, proj, norm2, fc1, fc2; heads */
static trek_var *vit_block_forward(trek_module *self, trek_var *x)
{
    zoo_part *b = (zoo_part *)self;
    trek_var *y = attend_packed(trek_forward(b->m[1], trek_forward(b->m[0], x)), b->n[0], false);
    x = trek_add(x, trek_forward(b->m[2], y));
    return trek_add(x, trek_forward(b->m[5], trek_gelu(trek_forward(b->m[4], trek_forward(b->m[3], x)))));
}

ZOO_CLASS(vit_block, .forward = vit_block_forward);

static trek_module *vit_block(int64_t d, int64_t heads)
{
    zoo_part *b = zoo_new(&vit_block_class);
    b->n[0] = heads;
    zoo_add(b, 0, "norm1", zoo_layer_norm(d, 1e-6));
    zoo_add(b, 1, "qkv", zoo_linear(d, 3 * d, true));
    zoo_add(b, 2, "proj", zoo_linear(d, d, true));
    zoo_add(b, 3, "norm2", zoo_layer_norm(d, 1e-6));
    zoo_add(b, 4, "fc1", zoo_linear(d, 4 * d, true));
    zoo_add(b, 5, "fc2", zoo_linear(4 * d, d, true));
    return zoo_done(b);
}

/* patch, blocks, norm, head; cls_token, pos_embed */
static trek_var *vit_forward(trek_module *self, trek_var *x)
{
    zoo_part *v = (zoo_part *)self;
    x = trek_transpose(trek_flatten(trek_forward(v->m[0], x), 2, -1), 1, 2);
    trek_var *token = trek_expand(v->p[0], trek_dims(trek_var_size(x, 0), -1, -1));
    x = trek_add(trek_cat((trek_var *[]){ token, x }, 2, 1), v->p[1]);
    return trek_forward(v->m[3], trek_select(trek_forward(v->m[2], trek_forward(v->m[1], x)), 1, 0));
}

ZOO_CLASS(vit, .forward = vit_forward);

static trek_module *vit_build(void)
{
    zoo_part *v = zoo_new(&vit_class);
    zoo_add(v, 0, "patch", zoo_conv(3, VIT_D, 4, 4, 0, 1, true));
    zoo_add(v, 1, "blocks", repeated(2, vit_block, VIT_D, 3));
    zoo_add(v, 2, "norm", zoo_layer_norm(VIT_D, 1e-6));
    zoo_add(v, 3, "head", zoo_linear(VIT_D, 10, true));
    zoo_param(v, 0, "cls_token", trek_dims(1, 1, VIT_D));
    zoo_param(v, 1, "pos_embed", trek_dims(1, 17, VIT_D));
    return zoo_done(v);
}

static trek_var *vit_loss(trek_module *model, int step, trek_var **output)
{
    *output = trek_forward(model, zoo_image(step, trek_dims(VIT_ROWS, 3, 16, 16)));
    return trek_cross_entropy(*output, zoo_classes(step, VIT_ROWS, 10));
}

const zoo_model zoo_vit = { "vit", vit_build, vit_loss, { NULL } };
