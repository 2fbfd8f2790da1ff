/* SPDX-License-Identifier: Apache-2.0 */
/* Transformer layers: against the same written with plain layers that share their parameters, masks, names, states, refused
 * options; that a stack learns. PyTorch's own are compared in tests/differential. */
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "nn/layers.h"
#include "nn/state.h"
#include "optim/optimizer.h"
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
    return trek_var_item(trek_max(trek_abs(trek_sub(a, b)), trek_dims_none(), false));
}

static trek_transformer_opts options(bool norm_first)
{
    return (trek_transformer_opts){ .d_model = E, .heads = HEADS, .dim_feedforward = WIDE, .norm_first = norm_first,
                                    .activation = norm_first ? TREK_ACTIVATION_GELU : TREK_ACTIVATION_NONE, .dtype = TREK_F64,
                                    .device = test_device() };
}

static trek_module *child(trek_module *m, const char *name)
{
    for (int k = 0; k < m->n_children; k++)
        if (strcmp(m->children[k].name, name) == 0)
            return m->children[k].module;
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
        y = trek_forward_many(child(plain, "layers")->children[k].module, (trek_var *[]){ y, memory, past }, 3);
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
    trek_optimizer *optimizer = trek_optimizer_new(trek_adam((trek_adam_opts){ .lr = 1e-2 }), params);
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
    REFUSED(trek_nn_transformer_encoder_with(NULL), TREK_ERR_ARGUMENT, "needs options");
    o.heads = 4;
    REFUSED(trek_nn_transformer_encoder_layer_with(&o), TREK_ERR_ARGUMENT, "no multiple");
    REFUSED(trek_nn_transformer_decoder_with(&o), TREK_ERR_ARGUMENT, "no multiple");
    o = options(false);
    o.dropout = 1.5;
    REFUSED(trek_nn_transformer_decoder_layer_with(&o), TREK_ERR_ARGUMENT, "dropout must lie in [0, 1]");
    o = options(false);
    o.activation = (trek_activation)7;
    REFUSED(trek_nn_transformer_decoder_layer_with(&o), TREK_ERR_ARGUMENT, "7 is no activation");
    REFUSED(trek_nn_transformer_decoder(E, HEADS, 0, test_device()), TREK_ERR_ARGUMENT, "layers");
    trek_module *m = trek_nn_transformer_decoder_layer(E, HEADS, test_device());
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(test_tensor(1, trek_dims(N, T, E), 1));
    REFUSED(trek_forward(m, x), TREK_ERR_ARGUMENT, "needs a memory");
    REFUSED(trek_forward_many(m, (trek_var *[]){ x, x, NULL, NULL, x }, 5), TREK_ERR_ARGUMENT, "4 inputs at most");
    trek_scope_end(scope);
    trek_module_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_as_written), cmocka_unit_test(test_stacks),
                                        cmocka_unit_test(test_learns),
                                        cmocka_unit_test(test_refused) };
    return cmocka_run_group_tests_name("transformer", tests, NULL, NULL);
}
