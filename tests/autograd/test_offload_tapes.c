/* SPDX-License-Identifier: Apache-2.0 */
/* Tapes that offload: walked more than once, with second derivatives, whose values are written to or held by others, with
 * functions of one's own; and the calls themselves. */
#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "nn/layers.h"
#include "nn/offload.h"
#include "tensor/copies.h"
#include "tests/autograd/offloaded.h"
#include "tests/support/clean.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

/* --- tapes that are walked more than once ----------------------------------------------------------------------- */

static void test_retained(void **state)
{
    trek_seed(2);
    trek_module *m = deep_model();
    numbers plain = { 0 }, offloaded = { 0 };
    int64_t value = (int64_t)TALL * BROAD * 4;
    for (int offload = 0; offload < 2; offload++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor(1, trek_dims(TALL, BROAD), 1));
        if (offload)
            trek_offload_begin(&(trek_offload_opts){ .min_bytes = value, .ahead = 1 });
        trek_var *loss = trek_mean(trek_forward(m, x), trek_dims_all(), false);
        if (offload)
            trek_offload_end();
        trek_offload_stats before = trek_offload_usage();
        for (int pass = 0; pass < 3; pass++) {
            assert_int_equal(trek_backward_with(loss, NULL, &(trek_backward_opts){ .retain_graph = pass < 2 }), TREK_OK);
            trek_offload_stats now = trek_offload_usage();
            assert_int_equal(now.sent, before.sent); /* the copies hold */
            assert_true(pass == 2 ? now.bytes == 0 : now.bytes >= before.bytes);
        }
        add_grads(offload ? &offloaded : &plain, m);
        trek_scope_end(scope);
    }
    assert_same(&plain, &offloaded, "three passes");
    trek_module_free(&m);
}

static void test_second_derivatives(void **state)
{
    trek_seed(2);
    trek_module *m = trek_nn_sequential((trek_module *[]){ trek_nn_linear(WIDTH, WIDTH, test_device()), trek_nn_tanh(),
                                                           trek_nn_layer_norm(WIDTH, test_device()), trek_nn_gelu(),
                                                           trek_nn_linear(WIDTH, WIDTH, test_device()) }, 5);
    numbers plain = { 0 }, offloaded = { 0 };
    for (int offload = 0; offload < 2; offload++) {
        numbers *to = offload ? &offloaded : &plain;
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor(1, trek_dims(ROWS, WIDTH), 1)), *grad;
        trek_var_set_requires_grad(x, true);
        if (offload)
            trek_offload_begin(&everything);
        trek_var *loss = trek_mean(trek_square(trek_forward(m, x)), trek_dims_all(), false);
        trek_backward_opts opts = { .create_graph = true };
        assert_int_equal(trek_grad(&loss, 1, &x, 1, NULL, &opts, &grad), TREK_OK);
        trek_var *penalty = trek_sum(trek_square(grad), trek_dims_all(), false);
        if (offload)
            trek_offload_end();
        SUCCEEDS(trek_backward(trek_add(loss, penalty)));
        add_numbers(to, grad);
        add_numbers(to, trek_var_grad(x));
        add_grads(to, m);
        trek_scope_end(scope);
    }
    assert_same(&plain, &offloaded, "second derivatives");
    trek_module_free(&m);
}

/* --- what was saved is written to ----------------------------------------------------------------------------------- */

static void test_overwritten(void **state)
{
    char messages[2][512];
    for (int offload = 0; offload < 2; offload++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor(1, trek_dims(ROWS, WIDTH), 1));
        trek_var_set_requires_grad(x, true);
        if (offload)
            trek_offload_begin(&everything);
        trek_var *y = trek_exp(x), *z = y; /* y is ours, too: it stays */
        for (int k = 0; k < 6; k++)
            z = trek_tanh(z);
        if (offload)
            trek_offload_end();
        trek_tensor *zeros = trek_tensor_zeros(trek_dims(ROWS, WIDTH), TREK_F32, test_device());
        assert_int_equal(trek_tensor_copy_from(trek_var_data(y), zeros), TREK_OK);
        trek_tensor_release(zeros);
        assert_int_equal(trek_backward(trek_sum(z, trek_dims_all(), false)), TREK_ERR_STATE);
        snprintf(messages[offload], sizeof messages[offload], "%s", trek_error());
        trek_error_clear();
        trek_scope_end(scope);
    }
    assert_string_equal(messages[0], messages[1]);
    assert_non_null(strstr(messages[0], "overwritten"));
}

/* --- functions of one's own ------------------------------------------------------------------------------------------ */

static trek_status cube_forward(trek_function_context *context, trek_var *const *in, int n, trek_var **out, int n_out)
{
    out[0] = trek_mul(in[0], trek_square(in[0]));
    return trek_save_for_backward(context, in, 1);
}

static trek_status cube_backward(trek_function_context *context, trek_var *const *grads, int n, trek_var **in, int n_in)
{
    in[0] = trek_mul_scalar(trek_mul(grads[0], trek_square(trek_saved(context, 0))), 3);
    return trek_error_status();
}

static const trek_function cube = { .name = "cube", .forward = cube_forward, .backward = cube_backward };

static trek_var *cubes(trek_var *x)
{
    trek_scope scope = trek_scope_begin();
    trek_var *y = trek_function_apply_one(&cube, NULL, &(trek_var *){ trek_tanh(x) }, 1);
    trek_scope_end_keep(scope, y);
    return y;
}

/* A view that somebody holds of what was saved keeps its memory where it is. */
static void test_held_view(void **state)
{
    numbers with[2] = { { 0 } };
    for (int offload = 0; offload < 2; offload++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor(1, trek_dims(ROWS, WIDTH), 1));
        trek_var_set_requires_grad(x, true);
        if (offload)
            trek_offload_begin(&(trek_offload_opts){ .min_bytes = 1, .ahead = 1 });
        trek_scope inner = trek_scope_begin();
        trek_var *view = trek_reshape(trek_exp(x), trek_dims(ROWS * WIDTH)), *z = view;
        trek_scope_end_keep(inner, view);
        for (int k = 0; k < 6; k++)
            z = cubes(z);
        if (offload)
            trek_offload_end();
        add_numbers(&with[offload], view);
        assert_int_equal(trek_backward(trek_sum(trek_add(z, view), trek_dims_all(), false)), TREK_OK);
        add_numbers(&with[offload], trek_var_grad(x));
        trek_scope_end(scope);
    }
    assert_same(&with[0], &with[1], "a held view");
}

static void test_functions(void **state)
{
    numbers plain = { 0 }, offloaded = { 0 };
    for (int offload = 0; offload < 2; offload++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor(1, trek_dims(ROWS, WIDTH), 1));
        trek_var_set_requires_grad(x, true);
        if (offload)
            trek_offload_begin(&(trek_offload_opts){ .min_bytes = 64, .ahead = 1 });
        trek_scope inner = trek_scope_begin();
        trek_var *y = cubes(cubes(cubes(cubes(x))));
        trek_scope_end_keep(inner, y);
        trek_var *loss = trek_sum(trek_square(y), trek_dims_all(), false);
        trek_var *again = trek_add_scalar(loss, 1);
        if (offload)
            trek_offload_end();
        assert_true(!offload || test_on_cpu() || trek_offload_usage().bytes > 0);
        SUCCEEDS(trek_backward(again));
        add_numbers(offload ? &offloaded : &plain, trek_var_grad(x));
        trek_scope_end(scope);
    }
    assert_same(&plain, &offloaded, "functions");
}

/* --- calls
 * ---------------------------------------------------------------------------------------------------------------------- */

static void test_calls(void **state)
{
    trek_offload_end();
    expect_error(TREK_ERR_STATE, "called without");
    trek_offload_begin(&(trek_offload_opts){ .min_bytes = -2 });
    expect_error(TREK_ERR_ARGUMENT, "-2");
    trek_offload_end();
    trek_offload_begin(&(trek_offload_opts){ .ahead = -1 });
    expect_error(TREK_ERR_ARGUMENT, "-1");
    trek_offload_end();
    for (int k = 0; k < 65; k++)
        trek_offload_begin(NULL);
    expect_error(TREK_ERR_STATE, "64");
    for (int k = 0; k < 65; k++)
        trek_offload_end();
    assert_int_equal(trek_error_status(), TREK_OK);
    trek_offload_end();
    expect_error(TREK_ERR_STATE, "called without");
    assert_null(trek_nn_offload(NULL, NULL));
    assert_int_equal(trek_error_status(), TREK_OK);
    REFUSED(trek_nn_offload(trek_nn_relu(), &(trek_offload_opts){ .ahead = -3 }), TREK_ERR_ARGUMENT, "-3");
}

/* Off inside, and in evaluation; the innermost holds. */
static void test_nested(void **state)
{
    trek_seed(2);
    trek_module *m = trek_nn_offload(deep_model(), &(trek_offload_opts){ .min_bytes = 1, .ahead = 1 }), *off = deep_model();
    for (int way = 0; way < 4; way++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor(1, trek_dims(TALL, BROAD), 1));
        trek_offload_stats before = trek_offload_usage();
        trek_module_train(m, way != 1);
        trek_offload_begin(&(trek_offload_opts){ .min_bytes = way == 3 ? 1 : TREK_OFF });
        trek_var *y = trek_forward(way >= 2 ? off : m, x);
        trek_offload_end();
        assert_non_null(y);
        assert_int_equal(trek_offload_usage().sent > before.sent, !test_on_cpu() && (way == 0 || way == 3));
        trek_scope_end(scope);
    }
    trek_module_free(&m);
    trek_module_free(&off);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, clean, nothing_left)
    const struct CMUnitTest tests[] = {
        CASE(test_retained), CASE(test_second_derivatives), CASE(test_overwritten), CASE(test_functions), CASE(test_held_view),
            CASE(test_calls), CASE(test_nested),
    };
    return cmocka_run_group_tests_name("offload_tapes", tests, NULL, NULL);
}
