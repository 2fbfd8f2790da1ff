/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/nn/decoder.h"

#include "autograd/ops.h"
#include "nn/kv_cache.h"
#include "nn/module_tree.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { WIDTH = 24, HEADS = 4, SHARED = 2, DEPTH = WIDTH / HEADS };

typedef struct parts {
    trek_module base;
    trek_module *m[8];
} parts;

static trek_module *with(trek_module *base, const char *name, int k, trek_module *child)
{
    trek_module_add(base, name, offsetof(parts, m) + (size_t)k * sizeof(trek_module *), child);
    return base;
}

static trek_module *linear(int64_t in, int64_t out, trek_dtype dtype)
{
    return trek_nn_linear_with(&(trek_linear_opts){ .in = in, .out = out, .dtype = dtype, .device = test_device() });
}

static trek_module *embedding(int64_t n, trek_dtype dtype)
{
    return trek_nn_embedding_with(&(trek_embedding_opts){ .num = n, .dim = WIDTH, .dtype = dtype, .device = test_device() });
}

static trek_module *norm(trek_dtype dtype)
{
    return trek_nn_layer_norm_with(&(trek_layer_norm_opts){ .shape = trek_dims(WIDTH), .dtype = dtype, .device = test_device() });
}

static trek_module *feed_forward(trek_dtype dtype)
{
    trek_module *list[] = { linear(WIDTH, 2 * WIDTH, dtype), trek_nn_gelu(), linear(2 * WIDTH, WIDTH, dtype) };
    return trek_nn_sequential(list, 3);
}

/* --- GPT-2's ---------------------------------------------------------------------------------------- */

/* norm, attention, norm, feed_forward */
static trek_var *block_forward(trek_module *self, trek_var *x)
{
    parts *b = (parts *)self;
    x = trek_add(x, trek_forward(b->m[1], trek_forward(b->m[0], x)));
    return trek_add(x, trek_forward(b->m[3], trek_forward(b->m[2], x)));
}

static const trek_module_class block_class = { .name = "block", .size = sizeof(parts), .forward = block_forward };

static trek_module *block_new(trek_module *attention, trek_dtype dtype)
{
    trek_module *b = with(trek_module_new(&block_class), "norm1", 0, norm(dtype));
    return trek_module_check(with(with(with(b, "attention", 1, attention), "norm2", 2, norm(dtype)), "feed", 3,
                                  feed_forward(dtype)));
}

/* words, positions, blocks, norm; the head's weight is the words' */
static trek_var *gpt_forward(trek_module *self, trek_var *tokens)
{
    parts *g = (parts *)self;
    trek_var *x = trek_add(trek_forward(g->m[0], tokens), trek_forward(g->m[1], trek_token_positions(tokens)));
    x = trek_last_positions(trek_forward(g->m[3], trek_forward(g->m[2], x)));
    return trek_linear(x, trek_module_find(g->m[0], "weight"), NULL);
}

static const trek_module_class gpt_class = { .name = "gpt", .size = sizeof(parts), .forward = gpt_forward };

static trek_module *gpt_new(int layers, trek_dtype dtype)
{
    trek_module *g = trek_module_new(&gpt_class), *blocks = trek_nn_sequential(NULL, 0);
    for (int k = 0; k < layers; k++)
        trek_nn_sequential_add(blocks, block_new(trek_nn_multihead_attention_with(&(trek_multihead_attention_opts){
            .embed_dim = WIDTH, .heads = HEADS, .causal = true, .dtype = dtype, .device = test_device() }), dtype));
    with(with(g, "words", 0, embedding(WORDS, dtype)), "positions", 1, embedding(LONGEST, dtype));
    return trek_module_check(with(with(g, "blocks", 2, blocks), "norm", 3, norm(dtype)));
}

/* --- Llama's ------------------------------------------------------------------------------------------ */

static trek_var *heads_of(trek_var *x, int64_t heads)
{
    trek_shape split = trek_dims(trek_var_size(x, 0), trek_var_size(x, 1), heads, DEPTH);
    return trek_permute(trek_reshape(x, split), trek_dims(0, 2, 1, 3));
}

/* q, k, v, out, rotary */
static trek_var *grouped_forward(trek_module *self, trek_var *x)
{
    parts *a = (parts *)self;
    trek_var *q = trek_forward(a->m[4], heads_of(trek_forward(a->m[0], x), HEADS));
    trek_var *k = trek_forward(a->m[4], heads_of(trek_forward(a->m[1], x), SHARED));
    trek_var *v = heads_of(trek_forward(a->m[2], x), SHARED);
    trek_var *y = trek_attention_cached(q, k, v, &(trek_attention_opts){ .causal = true, .scale = 0.7 });
    trek_shape joined = trek_dims(trek_var_size(x, 0), trek_var_size(x, 1), WIDTH);
    return trek_forward(a->m[3], trek_reshape(trek_permute(y, trek_dims(0, 2, 1, 3)), joined));
}

static const trek_module_class grouped_class = { .name = "grouped", .size = sizeof(parts), .forward = grouped_forward };

static trek_module *grouped_new(trek_module *rotary, trek_dtype dtype)
{
    trek_module *a = with(trek_module_new(&grouped_class), "q", 0, linear(WIDTH, WIDTH, dtype));
    with(with(a, "k", 1, linear(WIDTH, SHARED * DEPTH, dtype)), "v", 2, linear(WIDTH, SHARED * DEPTH, dtype));
    return trek_module_check(with(with(a, "out", 3, linear(WIDTH, WIDTH, dtype)), "rotary", 4, rotary));
}

static trek_module *llama_new(int layers, trek_dtype dtype)
{
    trek_rotary_layer_opts turns = { .dim = DEPTH, .length = LONGEST, .dtype = dtype == TREK_F64 ? TREK_F64 : TREK_F32,
                                     .device = test_device() };
    trek_module *rotary = trek_nn_rotary_with(&turns), *all = trek_nn_sequential(NULL, 0);
    trek_nn_sequential_add(all, embedding(WORDS, dtype));
    for (int k = 0; k < layers; k++)
        trek_nn_sequential_add(all, block_new(grouped_new(rotary, dtype), dtype));
    trek_nn_sequential_add(all, linear(WIDTH, WORDS, dtype));
    return all;
}

/* --- the library's -------------------------------------------------------------------------------------- */

static trek_module *waves_new(int layers, trek_dtype dtype)
{
    trek_transformer_opts o = { .d_model = WIDTH, .heads = HEADS, .dim_feedforward = 2 * WIDTH, .layers = layers, .causal = true,
                                .norm_first = true, .dtype = dtype, .device = test_device() };
    trek_sinusoidal_positions_opts waves = { .dim = WIDTH, .length = LONGEST, .dtype = dtype, .device = test_device() };
    trek_module *list[] = { embedding(WORDS, dtype), trek_nn_sinusoidal_positions_with(&waves),
                            trek_nn_transformer_encoder_with(&o), linear(WIDTH, WORDS, dtype) };
    return trek_nn_sequential(list, 4);
}

trek_module *decoder_new(decoder_kind kind, int layers, trek_dtype dtype)
{
    trek_seed(7);
    trek_module *made = kind == LEARNED ? gpt_new(layers, dtype) : kind == ROTARY ? llama_new(layers, dtype)
        : waves_new(layers, dtype);
    if (!made)
        fail_msg("%s", trek_error());
    assert_int_equal(trek_module_train(made, false), TREK_OK);
    return made;
}

trek_var *decoder_tokens(uint32_t stream, int64_t rows, int64_t steps)
{
    int64_t *list = malloc((size_t)(rows * steps + 1) * sizeof *list);
    for (int64_t k = 0; k < rows * steps; k++)
        list[k] = (int64_t)((double)(test_number(stream, (uint32_t)k) + 1) / 2 * WORDS);
    trek_tensor *tensor = trek_tensor_from_data(list, trek_dims(rows, steps), TREK_I64, test_device());
    free(list);
    return trek_var_from(tensor);
}
