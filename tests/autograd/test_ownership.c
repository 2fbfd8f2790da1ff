/* SPDX-License-Identifier: Apache-2.0 */
/* Whose gradients and results are: gradients that several inputs share, tables whose gradient is added to in place, results
 * that end on another thread. */
#include <pthread.h>

#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

static trek_scope scope;

static int open_scope(void **state)
{
    trek_error_clear();
    scope = trek_scope_begin();
    return 0;
}

static int close_scope(void **state)
{
    bool failed = trek_error_status() != TREK_OK;
    trek_error_clear();
    trek_scope_end(scope);
    return !failed && trek_tape_size() == 0 ? 0 : -1;
}

static trek_var *leaf(trek_shape shape, uint32_t stream)
{
    trek_tensor *values = test_tensor(stream, shape, 1);
    trek_var *v = trek_var_from(values);
    assert_int_equal(trek_var_set_requires_grad(v, true), TREK_OK);
    return v;
}

static trek_var *indices(trek_shape shape, trek_dtype dtype, const double *values)
{
    return trek_var_from(test_values(values, shape, dtype));
}

static trek_var *total(trek_var *x) { return trek_sum(trek_mul(x, x), trek_dims_all(), false); }

static void assert_close(const trek_var *a, const trek_var *b)
{
    double x[64], y[64];
    assert_non_null(a);
    assert_non_null(b);
    int64_t n = trek_var_numel(a);
    assert_true(n <= 64 && n == trek_var_numel(b));
    assert_int_equal(trek_tensor_to_host(trek_var_data(a), TREK_F64, x, sizeof(double) * (size_t)n), TREK_OK);
    assert_int_equal(trek_tensor_to_host(trek_var_data(b), TREK_F64, y, sizeof(double) * (size_t)n), TREK_OK);
    for (int64_t k = 0; k < n; k++)
        if (!(fabs(x[k] - y[k]) <= 1e-5 * (1 + fabs(y[k]))))
            fail_msg("element %d: %g, should be %g", (int)k, x[k], y[k]);
}

/* --- one variable for several inputs ------------------------------------------------------ */

static trek_status add_forward(trek_function_context *context, trek_var *const *inputs, int n_inputs, trek_var **outputs, int n)
{
    outputs[0] = trek_mul_scalar(inputs[0], 1);
    for (int k = 1; k < n_inputs; k++)
        outputs[0] = trek_add(outputs[0], inputs[k]);
    return trek_error_status();
}

/* The last thing made, given to all. */
static trek_status add_backward(trek_function_context *context, trek_var *const *grads, int n, trek_var **input_grads,
                                int n_inputs)
{
    trek_var *shared = trek_mul_scalar(grads[0], 1);
    for (int k = 0; k < n_inputs; k++)
        input_grads[k] = shared;
    return trek_error_status();
}

static const trek_function add_all = { .name = "add_all", .forward = add_forward, .backward = add_backward };

/* a + a + b + a + b of results of ops and of leaves, against the ops themselves. */
static void shared_gradients(void **state)
{
    for (int leaves = 0; leaves < 2; leaves++) {
        trek_var *a = leaf(trek_dims(3), 1), *b = leaf(trek_dims(3), 2);
        trek_var *x = leaves ? a : trek_mul_scalar(a, 3), *y = leaves ? b : trek_mul_scalar(b, -2), *expected[2], *captured[3];
        trek_var *plain = total(trek_add(trek_mul_scalar(x, 3), trek_mul_scalar(y, 2)));
        assert_int_equal(trek_grad(&plain, 1, (trek_var *[]){ a, b }, 2, NULL, &(trek_backward_opts){ .retain_graph = true },
                                   expected), TREK_OK);
        trek_var *sum = total(trek_function_apply_one(&add_all, NULL, (trek_var *[]){ x, x, y, x, y }, 5));
        trek_backward_opts keep = { .retain_graph = true };
        assert_int_equal(trek_grad(&sum, 1, (trek_var *[]){ a, b, a }, 3, NULL, &keep, captured), TREK_OK);
        assert_close(captured[0], expected[0]);
        assert_close(captured[1], expected[1]);
        assert_close(captured[2], expected[0]);
        for (int times = 1; times <= 2; times++) { /* the second adds up */
            assert_int_equal(trek_backward_with(sum, NULL, &keep), TREK_OK);
            assert_close(trek_mul_scalar(trek_var_grad(a), 1.0 / times), expected[0]);
            assert_close(trek_mul_scalar(trek_var_grad(b), 1.0 / times), expected[1]);
        }
    }
}

/* --- gradients of tables --------------------------------------------------------------------- */

enum { ROWS = 5, WIDTH = 3 };
static const double places[] = { 4, 0, 2, 2, 4, 4 };

/* A table that is looked up, and where tied used as a head, too. */
static trek_var *look_up(trek_var *table, trek_dtype dtype, int64_t padding, bool tied)
{
    trek_var *x = trek_embedding(indices(trek_dims(2, 3), dtype, places), table, padding);
    return total(tied ? trek_linear(x, table, NULL) : x);
}

static void tables(void **state)
{
    static const trek_dtype dtypes[] = { TREK_I64, TREK_I32, TREK_U8 };
    for (int which = 0; which < 12; which++) {
        trek_dtype dtype = dtypes[which % 3];
        bool tied = which / 3 % 2;
        int64_t padding = which / 6 ? 2 : -1;
        trek_var *table = leaf(trek_dims(ROWS, WIDTH), 3), *expected;
        trek_var *loss = look_up(table, dtype, padding, tied);
        assert_int_equal(trek_grad(&loss, 1, &table, 1, NULL, NULL, &expected), TREK_OK);
        for (int times = 1; times <= 3; times++) { /* into nothing, and added to what is there */
            assert_int_equal(trek_backward(look_up(table, dtype, padding, tied)), TREK_OK);
            assert_close(trek_mul_scalar(trek_var_grad(table), 1.0 / times), expected);
        }
        trek_var_zero_grad(table);
        assert_int_equal(trek_backward(look_up(table, dtype, padding, tied)), TREK_OK);
        assert_close(trek_var_grad(table), expected);
    }
}

/* A gradient that somebody holds is not written to: what is added goes to a new one. */
static void held_gradients(void **state)
{
    trek_var *table = leaf(trek_dims(ROWS, WIDTH), 4);
    assert_int_equal(trek_backward(look_up(table, TREK_I64, -1, false)), TREK_OK);
    trek_var *held = trek_var_retain(trek_var_grad(table)), *before = trek_mul_scalar(held, 1);
    assert_int_equal(trek_backward(look_up(table, TREK_I64, -1, true)), TREK_OK);
    assert_close(held, before);
    trek_var_release(held);
}

/* No rows to look up, and a table of none. */
static void empty_tables(void **state)
{
    trek_var *table = leaf(trek_dims(ROWS, WIDTH), 5), *narrow = leaf(trek_dims(ROWS, 0), 5);
    for (int times = 0; times < 2; times++) {
        trek_var *none = trek_embedding(indices(trek_dims(0), TREK_I64, places), table, -1);
        assert_int_equal(trek_backward(total(none)), TREK_OK);
        assert_close(trek_var_grad(table), trek_mul_scalar(table, 0));
        assert_int_equal(trek_backward(total(trek_embedding(indices(trek_dims(2), TREK_I64, places), narrow, -1))), TREK_OK);
        assert_int_equal(trek_var_numel(trek_var_grad(narrow)), 0);
    }
}

/* --- results ----------------------------------------------------------------------------------- */

static void *release(void *var)
{
    trek_var_release(var);
    return NULL;
}

/* A result outlives its scope, the walk, and the thread that made it has no say in when it ends. */
static void results_end_elsewhere(void **state)
{
    trek_var *x = leaf(trek_dims(2), 6);
    for (int walked = 0; walked < 2; walked++) {
        trek_scope inner = trek_scope_begin();
        trek_var *y = trek_mul(x, x), *z = total(y);
        trek_var_retain(y);
        if (walked)
            assert_int_equal(trek_backward(z), TREK_OK);
        trek_scope_end(inner);
        assert_int_equal(trek_tape_size(), 1);
        assert_close(y, trek_square(trek_var_detach(x)));
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, release, y), 0);
        pthread_join(thread, NULL);
        assert_int_equal(trek_tape_size(), 0);
    }
}

/* A pass for certain leaves gives no others a gradient, whichever passes other threads have run for those. */
typedef struct for_one {
    trek_var *leaves[2];
    int mine;
} for_one;

static void *pass_for_one(void *arg)
{
    for_one *own = arg;
    trek_scope inner = trek_scope_begin();
    trek_var *y = total(trek_mul(own->leaves[0], own->leaves[1]));
    assert_int_equal(trek_backward_watched(&y, NULL, 1, NULL, &(trek_backward_watch){ .leaves = &own->leaves[own->mine],
                                                                                      .n_leaves = 1, .only_these = true }),
                                                                                      TREK_OK);
    trek_scope_end(inner);
    return NULL;
}

static void leaves_of_several_threads(void **state)
{
    trek_var *leaves[2] = { leaf(trek_dims(2), 7), leaf(trek_dims(2), 8) };
    for (int mine = 0; mine < 2; mine++) {
        pthread_t thread;
        for_one own = { { leaves[0], leaves[1] }, mine };
        assert_int_equal(pthread_create(&thread, NULL, pass_for_one, &own), 0);
        pthread_join(thread, NULL);
        assert_non_null(trek_var_grad(leaves[mine]));
        assert_null(trek_var_grad(leaves[!mine]));
        trek_var_zero_grad(leaves[mine]);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_scope, close_scope)
    const struct CMUnitTest tests[] = {
        TEST(shared_gradients), TEST(tables), TEST(held_gradients), TEST(empty_tables), TEST(results_end_elsewhere),
        TEST(leaves_of_several_threads),
    };
    return cmocka_run_group_tests_name("ownership", tests, NULL, NULL);
}
