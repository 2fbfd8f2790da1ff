/* SPDX-License-Identifier: Apache-2.0 */
/* Transformer layers: against the same written with plain layers that share their parameters, masks, names, states, refused
 * options; that a stack learns. PyTorch's own are compared in tests/differential. */
#include "autograd/backward.h"
#include "autograd/grad.h"
#include "autograd/ops.h"
#include "nn/kv_cache.h"
#include "nn/layers.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "nn/module_values.h"
#include "nn/state.h"
#include "optim/optimizer.h"
#include "tensor/copies.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { N = 2, T = 4, S = 5, E = 6, HEADS = 2, WIDE = 9 };

static trek_var *drawn(uint32_t stream, trek_shape shape)
{
    trek_tensor *narrow = test_tensor(stream, shape, 1), *wide = trek_tensor_cast(narrow, TREK_F64);
    trek_tensor_release(narrow);
    return trek_var_from(wide);
}

static double distance(trek_var *a, trek_var *b)
{
    if (!a || !b)
        fail_msg("%s", trek_error());
    return trek_var_item(trek_max(trek_abs(trek_sub(a, b)), trek_dims_all(), false));
}

static trek_transformer_opts options(bool norm_first)
{
    return (trek_transformer_opts){ .d_model = E, .heads = HEADS, .dim_feedforward = WIDE, .norm_first = norm_first,
                                    .activation = norm_first ? TREK_ACTIVATION_GELU : TREK_ACTIVATION_NONE, .dtype = TREK_F64,
                                    .device = test_device() };
}

static trek_module *child(trek_module *m, const char *name)
{
    for (int k = 0; k < m->own->n_children; k++)
        if (strcmp(m->own->children[k].name, name) == 0)
            return m->own->children[k].module;
    fail_msg("no %s", name);
    return NULL;
}

/* norm(x + f(x)), or x + f(norm(x)) */
static trek_var *written(trek_module *m, bool norm_first, const char *norm, trek_var *x, trek_var *memory, trek_var *mask,
                         bool feeds)
{
    trek_var *y = norm_first ? trek_forward(child(m, norm), x) : x;
    if (feeds) {
        trek_var *wide = trek_forward(child(m, "linear1"), y);
        y = trek_forward(child(m, "linear2"), norm_first ? trek_gelu(wide) : trek_relu(wide));
    } else {
        y = trek_forward_many(child(m, memory ? "multihead_attn" : "self_attn"), (trek_var *[]){ y, memory, NULL, mask }, 4);
    }
    x = trek_add(x, y);
    return norm_first ? x : trek_forward(child(m, norm), x);
}

static void test_as_written(void **state)
{
    for (int norm_first = 0; norm_first < 2; norm_first++) {
        trek_transformer_opts o = options(norm_first);
        trek_module *encoder = trek_nn_transformer_encoder_layer_with(&o), *decoder = trek_nn_transformer_decoder_layer_with(&o);
        trek_module_train(encoder, false);
        trek_module_train(decoder, false);
        trek_scope scope = trek_scope_begin();
        trek_var *x = drawn(1, trek_dims(N, T, E)), *memory = drawn(2, trek_dims(N, S, E)), *mask = drawn(3, trek_dims(T, T));
        trek_var *seen = trek_gt_scalar(drawn(4, trek_dims(N, 1, 1, S)), -0.6);
        trek_var *y = written(encoder, norm_first, "norm1", x, NULL, mask, false);
        y = written(encoder, norm_first, "norm2", y, NULL, NULL, true);
        assert_true(distance(trek_forward_many(encoder, (trek_var *[]){ x, mask }, 2), y) < 1e-12);
        y = written(decoder, norm_first, "norm1", x, NULL, mask, false);
        y = written(decoder, norm_first, "norm2", y, memory, seen, false);
        y = written(decoder, norm_first, "norm3", y, NULL, NULL, true);
        assert_true(distance(trek_forward_many(decoder, (trek_var *[]){ x, memory, mask, seen }, 4), y) < 1e-12);
        trek_scope_end(scope);
        trek_module_free(&encoder);
        trek_module_free(&decoder);
    }
}

/* --- attention's weights, and keys that are added ------------------------------------------------------ */

/* Part k of query, key and value, as [N, HEADS, ., E / HEADS], and `learned` and zeros behind it. */
static trek_var *part_of(trek_module *m, trek_var *x, int k, const char *learned, bool zeros)
{
    trek_var *weight = trek_narrow(trek_module_find(m, "in_proj_weight"), 0, k * E, E), *rows[3];
    rows[0] = trek_linear(x, weight, trek_narrow(trek_module_find(m, "in_proj_bias"), 0, k * E, E));
    int n = 1;
    if (learned)
        rows[n++] = trek_expand(trek_module_find(m, learned), trek_dims(N, 1, E));
    if (zeros)
        rows[n++] = trek_mul_scalar(trek_narrow(rows[0], 1, 0, 1), 0);
    x = trek_cat(rows, n, 1);
    return trek_permute(trek_reshape(x, trek_dims(N, trek_var_size(x, 1), HEADS, E / HEADS)), trek_dims(0, 2, 1, 3));
}

/* With every mask: none, bool, floating; with and without .causal. What is added is seen by all. */
static void test_attention_weights(void **state)
{
    for (int k = 0; k < 24; k++) {
        bool learned = k & 1, zeros = k & 2, causal = k & 4;
        trek_module *m = trek_nn_multihead_attention_with(&(trek_multihead_attention_opts){
            .embed_dim = E, .heads = HEADS, .causal = causal, .dtype = TREK_F64, .device = test_device(), .add_bias_kv = learned,
            .add_zero_attn = zeros });
        trek_scope scope = trek_scope_begin();
        trek_var *query = drawn(1, trek_dims(N, T, E)), *key = drawn(2, trek_dims(N, S, E)), *weights, *mask = NULL;
        if (k / 8 == 1)
            mask = trek_gt_scalar(drawn(4, trek_dims(N, 1, 1, S)), -0.6);
        if (k / 8 == 2)
            mask = drawn(5, trek_dims(HEADS, T, 1));
        trek_var *q = part_of(m, query, 0, NULL, false), *keys = part_of(m, key, 1, learned ? "bias_k" : NULL, zeros);
        trek_var *values = part_of(m, key, 2, learned ? "bias_v" : NULL, zeros);
        int64_t more = learned + zeros;
        trek_var *scores = trek_div_scalar(trek_matmul(q, trek_transpose(keys, 2, 3)), sqrt((double)E / HEADS));
        trek_var *own = trek_narrow(scores, 3, 0, S), *added = trek_narrow(scores, 3, S, more);
        trek_var *past = trek_tril(trek_var_from(trek_tensor_ones(trek_dims(T, S), TREK_BOOL, test_device())), 0);
        own = mask && trek_var_dtype(mask) != TREK_BOOL ? trek_add(own, mask) : own;
        own = mask && trek_var_dtype(mask) == TREK_BOOL ? trek_masked_fill(own, trek_logical_not(mask), -INFINITY) : own;
        own = causal ? trek_masked_fill(own, trek_logical_not(past), -INFINITY) : own;
        trek_var *want = trek_softmax(trek_cat((trek_var *[]){ own, added }, 2, 3), 3);
        want = trek_masked_fill(want, trek_isnan(want), 0); /* of a query that sees none */
        trek_var *joined = trek_reshape(trek_permute(trek_matmul(want, values), trek_dims(0, 2, 1, 3)), trek_dims(N, T, E));
        trek_var *result = trek_forward(child(m, "out_proj"), joined);
        trek_var *y = trek_nn_multihead_attention_forward(m, query, key, NULL, mask, &weights);
        assert_true(distance(y, result) < 1e-12);
        assert_true(distance(weights, want) < 1e-12);
        assert_true(distance(trek_forward_many(m, (trek_var *[]){ query, key, NULL, mask }, 4), result) < 1e-12);
        trek_var *grads[2], *sum = trek_sum(trek_square(y), trek_dims_all(), false), *in = trek_module_find(m, "in_proj_weight");
        trek_var *sum2 = trek_sum(trek_square(result), trek_dims_all(), false);
        assert_int_equal(trek_grad(&sum, 1, &in, 1, NULL, NULL, &grads[0]), TREK_OK);
        assert_int_equal(trek_grad(&sum2, 1, &in, 1, NULL, NULL, &grads[1]), TREK_OK);
        assert_true(distance(grads[0], grads[1]) < 1e-12);
        trek_scope_end(scope);
        trek_module_free(&m);
    }
}

static void test_attention_weights_refused(void **state)
{
    trek_module *m = trek_nn_multihead_attention_with(&(trek_multihead_attention_opts){
        .embed_dim = E, .heads = HEADS, .device = test_device(), .add_zero_attn = true }),
            *other = trek_nn_linear(E, E, test_device());
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_cast(drawn(1, trek_dims(N, T, E)), TREK_F32), *weights = x, *q = trek_reshape(x, trek_dims(N, 1, T, E));
    REFUSED(trek_nn_multihead_attention_forward(other, x, NULL, NULL, NULL, &weights), TREK_ERR_ARGUMENT,
            "module: it is a linear");
    assert_null(weights);
    REFUSED(trek_attention_weights(q, trek_narrow(q, 3, 0, 2), NULL), TREK_ERR_SHAPE, "attention");
    REFUSED(trek_attention_weights(q, q, &(trek_attention_opts){ .dropout = 2 }), TREK_ERR_ARGUMENT,
            "attention_weights: .dropout: ");
    REFUSED(trek_attention_weights(q, NULL, NULL), TREK_ERR_ARGUMENT, "attention");
    trek_kv_cache *cache = trek_kv_cache_new(&(trek_kv_cache_opts){ .batch = N });
    REFUSED(trek_forward_cached(m, cache, &x, 1, NULL), TREK_ERR_UNSUPPORTED, "zero_attn together with a cached forward");
    trek_kv_cache_free(&cache);
    trek_scope_end(scope);
    trek_module_free(&m);
    trek_module_free(&other);
}

/* .causal is a mask of what lies behind; a stack is its layers. */
static void test_stacks(void **state)
{
    trek_transformer_opts o = options(true);
    o.layers = 3;
    o.final_norm = true;
    trek_module *plain = trek_nn_transformer_decoder_with(&o);
    o.causal = true;
    trek_module *causal = trek_nn_transformer_decoder_with(&o);
    assert_int_equal(trek_module_copy(causal, plain), TREK_OK);
    trek_module_train(plain, false);
    trek_module_train(causal, false);
    trek_scope scope = trek_scope_begin();
    trek_var *x = drawn(1, trek_dims(N, T, E)), *memory = drawn(2, trek_dims(N, S, E));
    trek_var *past = trek_tril(trek_var_from(trek_tensor_ones(trek_dims(T, T), TREK_BOOL, test_device())), 0);
    trek_var *masked = trek_forward_many(plain, (trek_var *[]){ x, memory, past }, 3);
    assert_true(distance(trek_forward_many(causal, (trek_var *[]){ x, memory }, 2), masked) < 1e-12);
    trek_var *y = x;
    for (int k = 0; k < 3; k++)
        y = trek_forward_many(child(plain, "layers")->own->children[k].module, (trek_var *[]){ y, memory, past }, 3);
    assert_true(distance(trek_forward(child(plain, "norm"), y), masked) < 1e-12);
    double *first = test_read(trek_var_data(trek_module_find(plain, "layers.0.linear1.weight"))),
           *second = test_read(trek_var_data(trek_module_find(plain, "layers.1.linear1.weight")));
    assert_true(first[0] != second[0]); /* initial values of their own */
    free(first);
    free(second);
    assert_non_null(trek_module_find(plain, "layers.2.multihead_attn.out_proj.weight"));
    assert_non_null(trek_module_find(plain, "norm.bias"));
    trek_scope_end(scope);
    trek_module_free(&plain);
    trek_module_free(&causal);
    trek_module *sixth = trek_nn_transformer_encoder_layer(8, 2, test_device()),
        *stack = trek_nn_transformer_encoder(8, 2, 2, test_device());
    assert_int_equal(trek_module_param_count(sixth), 4 * 64 + 4 * 8 + 2 * 8 * 2048 + 2048 + 8 + 4 * 8);
    assert_int_equal(trek_module_param_count(stack), 2 * trek_module_param_count(sixth));
    trek_module_free(&sixth);
    trek_module_free(&stack);
}

static void test_learns(void **state)
{
    trek_transformer_opts o = options(false);
    o.layers = 2;
    o.dropout = 0.05;
    o.dtype = TREK_F32;
    trek_module *m = trek_nn_transformer_encoder_with(&o);
    trek_params *params = trek_module_params(m);
    trek_optimizer *optimizer = trek_optimizer_new(trek_adam(&(trek_adam_opts){ .lr = 1e-2 }), params);
    trek_params_free(&params);
    double first = 0, last = 0;
    trek_seed(2);
    for (int step = 0; step < 60; step++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor((uint32_t)(step % 4), trek_dims(8, T, E), 1));
        trek_var *y = trek_forward(m, x), *loss = trek_mse_loss(y, trek_flip(x, trek_dims(1))); /* it turns sequences round */
        assert_int_equal(trek_backward(loss), TREK_OK);
        assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
        trek_optimizer_zero_grad(optimizer);
        *(step < 4 ? &first : &last) = trek_var_item(loss);
        trek_scope_end(scope);
    }
    if (!(last < 0.6 * first))
        fail_msg("from %g to %g", first, last);
    trek_optimizer_free(&optimizer);
    trek_module_free(&m);
}

static void test_refused(void **state)
{
    trek_transformer_opts o = options(false);
    REFUSED(trek_nn_transformer_encoder_with(NULL), TREK_ERR_ARGUMENT, "options: NULL");
    o.heads = 4;
    REFUSED(trek_nn_transformer_encoder_layer_with(&o), TREK_ERR_ARGUMENT, "must be a multiple");
    REFUSED(trek_nn_transformer_decoder_with(&o), TREK_ERR_ARGUMENT, "must be a multiple");
    o = options(false);
    o.dropout = 1.5;
    REFUSED(trek_nn_transformer_decoder_layer_with(&o), TREK_ERR_ARGUMENT, "dropout: ");
    o = options(false);
    o.activation = (trek_activation)7;
    REFUSED(trek_nn_transformer_decoder_layer_with(&o), TREK_ERR_ARGUMENT, ".activation: 7");
    REFUSED(trek_nn_transformer_decoder(E, HEADS, 0, test_device()), TREK_ERR_ARGUMENT, "layers");
    trek_module *m = trek_nn_transformer_decoder_layer(E, HEADS, test_device());
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(test_tensor(1, trek_dims(N, T, E), 1));
    REFUSED(trek_forward(m, x), TREK_ERR_ARGUMENT, "memory: missing");
    REFUSED(trek_forward_many(m, (trek_var *[]){ x, x, NULL, NULL, x }, 5), TREK_ERR_ARGUMENT, "must be at most 4");
    trek_scope_end(scope);
    trek_module_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_as_written), cmocka_unit_test(test_stacks),
                                        cmocka_unit_test(test_attention_weights),
                                        cmocka_unit_test(test_attention_weights_refused),
                                        cmocka_unit_test(test_learns),
                                        cmocka_unit_test(test_refused) };
    return cmocka_run_group_tests_name("transformer", tests, NULL, NULL);
}
