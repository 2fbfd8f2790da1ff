/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that runs out: with every allocation of a training step (and of making
 * the model) failing in turn, the call reports MEMORY, nothing leaks, parameters
 * are those before or after the step, and the next step works. TREK_CACHE=off
 * sends each block's allocation to the allocator. */
#include "autograd/backward.h"
#include "autograd/grad.h"
#include "autograd/ops.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "nn/params.h"
#include "optim/optimizer.h"
#include "tensor/creation.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

typedef struct trained {
    trek_module *model;
    trek_params *params;
    trek_optimizer *optimizer;
    trek_shape input;
    float *before, *now; /* all parameters */
    int64_t count;
} trained;

static trek_module *make_mlp(void)
{
    trek_module *layers[] = { trek_nn_linear(6, 8, trek_cpu(0)), trek_nn_layer_norm(8, trek_cpu(0)), trek_nn_gelu(),
                              trek_nn_dropout(0.2),
                              trek_nn_linear(8, 4, trek_cpu(0)) };
    return trek_nn_sequential(layers, 5);
}

static trek_module *make_convolution(void)
{
    trek_module *layers[] = { trek_nn_conv2d(1, 3, 3, trek_cpu(0)), trek_nn_batch_norm2d(3, trek_cpu(0)), trek_nn_relu(),
                              trek_nn_max_pool2d(2), trek_nn_flatten(), trek_nn_linear(12, 4, trek_cpu(0)) };
    return trek_nn_sequential(layers, 6);
}

/* The fused ops of transformers, and recurrent layers, in a layer that means nothing: [8, 6] -> [8, 4]. */
typedef struct fused_layer {
    trek_module base;
    trek_module *norm, *attention, *lstm, *gru, *head;
} fused_layer;

static trek_var *fused_forward(trek_module *self, trek_var *x)
{
    fused_layer *m = (fused_layer *)self;
    x = trek_reshape(x, trek_dims(2, 4, 6));
    trek_var *residual, *y = trek_add_layer_norm(x, trek_forward(m->attention, trek_forward(m->norm, x)), 1, NULL, NULL, 1e-5,
                                                 &residual);
    trek_var *lengths = trek_var_from(trek_tensor_full(trek_dims(2), 3, TREK_I64, trek_cpu(0))), *hn, *cn;
    trek_var *h = trek_nn_lstm_forward(m->lstm, trek_add(y, residual), lengths, NULL, NULL, &hn, &cn);
    h = trek_add(trek_forward(m->gru, h), trek_unsqueeze(trek_select(trek_cat((trek_var *[]){ cn, hn }, 2, 2), 0, 0), 1));
    trek_var *rows = trek_reshape(h, trek_dims(8, 6));
    trek_var *labels = trek_var_from(trek_tensor_zeros(trek_dims(8), TREK_I64, trek_cpu(0)));
    trek_var *loss = trek_linear_cross_entropy(rows, trek_module_find(m->head, "weight"), NULL, labels, NULL);
    return trek_add(trek_forward(m->head, rows), loss);
}

static const trek_module_class fused_class = { .name = "fused", .size = sizeof(fused_layer), .forward = fused_forward };

static trek_module *make_fused(void)
{
    trek_module *m = trek_module_new(&fused_class);
    trek_module_add(m, "norm", offsetof(fused_layer, norm), trek_nn_rms_norm(6, trek_cpu(0)));
    trek_module_add(m, "attention", offsetof(fused_layer, attention),
                    trek_nn_multihead_attention_with(&(trek_multihead_attention_opts){ .embed_dim = 6, .heads = 2,
                                                                                       .dropout = 0.1, .device = trek_cpu(0) }));
    trek_module_add(m, "lstm", offsetof(fused_layer, lstm),
                    trek_nn_lstm_with(&(trek_lstm_opts){ .in = 6, .hidden = 3, .bidirectional = true, .batch_first = true,
                                                         .device = trek_cpu(0) }));
    trek_module_add(m, "gru", offsetof(fused_layer, gru),
                    trek_nn_gru_with(&(trek_gru_opts){ .in = 6, .hidden = 6, .layers = 2, .dropout = 0.1, .batch_first = true }));
    trek_module_add(m, "head", offsetof(fused_layer, head), trek_nn_linear(6, 4, trek_cpu(0)));
    return trek_module_check(m);
}

static bool trained_make(trained *t, trek_module *(*make)(void), trek_shape input)
{
    memset(t, 0, sizeof *t);
    t->input = input;
    t->model = make();
    t->params = t->model ? trek_module_params(t->model) : NULL;
    t->optimizer = t->params ? trek_optimizer_new(trek_adam(&(trek_adam_opts){ .lr = 1e-2 }), t->params) : NULL;
    return t->optimizer != NULL;
}

static void trained_free(trained *t)
{
    trek_optimizer_free(&t->optimizer);
    trek_params_free(&t->params);
    trek_module_free(&t->model);
    free(t->before);
    free(t->now);
}

static void snapshot(trained *t, float **to)
{
    int64_t at = 0;
    if (!t->count)
        t->count = trek_module_param_count(t->model);
    if (!*to)
        *to = malloc(sizeof **to * (size_t)t->count);
    assert_non_null(*to);
    for (int k = 0; k < trek_params_count(t->params); k++) {
        trek_var *p = trek_params_var(t->params, k);
        memcpy(*to + at, trek_tensor_data(trek_var_data(p)), sizeof **to * (size_t)trek_var_numel(p));
        at += trek_var_numel(p);
    }
    assert_int_equal(at, t->count);
}

/* A step as a program writes it: one check at the end. */
static trek_status step(trained *t)
{
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(test_tensor(3, t->input, 1));
    trek_tensor *numbers = trek_tensor_zeros(trek_dims(t->input.sizes[0]), TREK_I64, trek_cpu(0));
    for (int64_t i = 0; numbers && i < t->input.sizes[0]; i++)
        ((int64_t *)trek_tensor_data(numbers))[i] = i % 4;
    trek_var *loss = trek_cross_entropy(trek_forward(t->model, x), trek_var_from(numbers));
    trek_backward(loss);
    trek_optimizer_step(t->optimizer);
    trek_optimizer_zero_grad(t->optimizer);
    trek_scope_end(scope);
    return trek_error_status();
}

static void after_failure(trained *t, int64_t k, int64_t steady)
{
    if (trek_error_status() != TREK_ERR_MEMORY)
        fail_msg("allocation %lld: %s, should be TREK_ERR_MEMORY (%s)", (long long)k, trek_status_name(trek_error_status()),
                 trek_error());
    snapshot(t, &t->now);
    if (memcmp(t->before, t->now, sizeof *t->now * (size_t)t->count) != 0)
        fail_msg("allocation %lld: the step failed and changed parameters", (long long)k);
    assert_int_equal(trek_tape_size(), 0);
    trek_error_clear();
    test_allocator_restart(0);
    if (step(t) != TREK_OK)
        fail_msg("allocation %lld: the step after it fails: %s", (long long)k, trek_error());
    snapshot(t, &t->now);
    if (memcmp(t->before, t->now, sizeof *t->now * (size_t)t->count) == 0)
        fail_msg("allocation %lld: the step after it does nothing", (long long)k);
    if (test_memory.blocks > steady)
        fail_msg("allocation %lld: %lld blocks are alive, %lld before", (long long)k, (long long)test_memory.blocks,
                 (long long)steady);
}

static void fail_every_allocation(trek_module *(*make)(void), trek_shape input, int64_t in_a_row)
{
    trained t;
    test_allocator_restart(0);
    assert_true(trained_make(&t, make, input));
    for (int k = 0; k < 3; k++)
        assert_int_equal(step(&t), TREK_OK);
    int64_t steady = test_memory.blocks;
    test_allocator_restart(0);
    assert_int_equal(step(&t), TREK_OK);
    int64_t calls = test_memory.calls;
    assert_true(calls > 20); /* else blocks are cached and this tests nothing */
    assert_int_equal(test_memory.blocks, steady);
    int64_t failures = 0;
    for (int64_t k = 1; k <= calls; k++) {
        snapshot(&t, &t.before);
        test_allocator_restart(k);
        test_memory.fail_count = in_a_row;
        trek_status status = step(&t);
        test_memory.fail_count = 0;
        if (status == TREK_OK) { /* done without what failed: the step is complete */
            test_allocator_restart(0);
            continue;
        }
        failures++;
        after_failure(&t, k, steady);
    }
    if (in_a_row > 1) /* a single failure may be made good by asking again */
        assert_true(failures > calls / 2);
    trained_free(&t);
}

static void mlp_step(void **state)
{
    fail_every_allocation(make_mlp, trek_dims(8, 6), 1);
}

static void mlp_step_all_after(void **state)
{
    fail_every_allocation(make_mlp, trek_dims(8, 6), INT64_MAX / 2);
}

static void mlp_step_two_in_a_row(void **state)
{
    fail_every_allocation(make_mlp, trek_dims(8, 6), 2);
}

static void convolution_step(void **state)
{
    fail_every_allocation(make_convolution, trek_dims(4, 1, 6, 6), 2);
}

static void fused_step(void **state)
{
    fail_every_allocation(make_fused, trek_dims(8, 6), 1);
    fail_every_allocation(make_fused, trek_dims(8, 6), 2);
}

static void making_a_model(void **state)
{
    trained t;
    test_allocator_restart(0);
    assert_true(trained_make(&t, make_convolution, trek_dims(4, 1, 6, 6)));
    trained_free(&t);
    int64_t steady = test_memory.blocks;
    test_allocator_restart(0);
    assert_true(trained_make(&t, make_convolution, trek_dims(4, 1, 6, 6)));
    int64_t calls = test_memory.calls;
    trained_free(&t);
    assert_int_equal(test_memory.blocks, steady);
    for (int64_t k = 1; k <= calls; k++) {
        test_allocator_restart(k);
        test_memory.fail_count = 3;
        bool made = trained_make(&t, make_convolution, trek_dims(4, 1, 6, 6));
        if (!made && trek_error_status() != TREK_ERR_MEMORY)
            fail_msg("allocation %lld: %s (%s)", (long long)k, trek_status_name(trek_error_status()), trek_error());
        test_memory.fail_count = 0;
        trained_free(&t);
        trek_error_clear();
        if (test_memory.blocks != steady)
            fail_msg("allocation %lld: %lld blocks are left", (long long)k, (long long)(test_memory.blocks - steady));
    }
}

static void a_large_tensor(void **state)
{
    test_allocator_restart(0);
    trek_tensor *t = trek_tensor_empty(trek_dims(INT64_MAX / 4, 8), TREK_F64, trek_cpu(0));
    assert_null(t);
    assert_true(trek_error_status() == TREK_ERR_MEMORY || trek_error_status() == TREK_ERR_SHAPE);
    trek_error_clear();
    t = trek_tensor_empty(trek_dims((int64_t)1 << 45), TREK_F32, trek_cpu(0));
    REFUSED(t, TREK_ERR_MEMORY, "");
    t = trek_tensor_ones(trek_dims(3), TREK_F32, trek_cpu(0));
    assert_non_null(t);
    trek_tensor_release(t);
}

int main(void)
{
    setenv("TREK_CACHE", "off", 1);
    if (test_allocator_use() != TREK_OK) {
        fprintf(stderr, "%s\n", trek_error());
        return 99;
    }
    const struct CMUnitTest tests[] = { cmocka_unit_test(mlp_step), cmocka_unit_test(mlp_step_all_after),
                                        cmocka_unit_test(mlp_step_two_in_a_row), cmocka_unit_test(convolution_step),
                                        cmocka_unit_test(fused_step),
                                        cmocka_unit_test(making_a_model), cmocka_unit_test(a_large_tensor) };
    return cmocka_run_group_tests_name("allocation failure", tests, NULL, NULL);
}
