/* SPDX-License-Identifier: Apache-2.0 */
/* TREK_DEBUG=1: each misuse is a status whose message names what was misused and what made it. */
#include <pthread.h>
#include <unistd.h>

#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "data/loader.h"
#include "data/sampler.h"
#include "distributed/ddp.h"
#include "graph/constants.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "optim/optimizer.h"
#include "tensor/debug.h"
#include "tensor/memory.h"
#include "tensor/op.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

static void expect(const char *message)
{
    assert_int_equal(trek_error_status(), TREK_ERR_STATE);
    assert_string_equal(trek_error(), message);
    trek_error_clear();
}

static trek_var *ones(void) { return trek_var_from(trek_tensor_ones(trek_dims(3), TREK_F32, trek_cpu(0))); }

/* --- variables --------------------------------------------------------------------------- */

static void a_variable_after_its_scope(void **state)
{
    char wanted[200];
    trek_scope outer = trek_scope_begin(), scope = trek_scope_begin();
    trek_var *old = trek_mul(ones(), ones());
    trek_scope_end(scope);
    assert_null(trek_add(ones(), old));
    snprintf(wanted, sizeof wanted, "add: input 1 was freed: result of mul in scope %u, which has ended", (unsigned)scope.serial);
    expect(wanted);
    assert_null(trek_where(trek_gt(ones(), ones()), ones(), old));
    snprintf(wanted, sizeof wanted, "where: input 2 was freed: result of mul in scope %u, which has ended",
             (unsigned)scope.serial);
    expect(wanted);
    assert_null(trek_var_data(old));
    snprintf(wanted, sizeof wanted, "var_data: the variable was freed: result of mul in scope %u, which has ended",
             (unsigned)scope.serial);
    expect(wanted);
    assert_null(trek_cross_entropy(old, old)); /* looks at its arguments before an op sees them */
    assert_non_null(strstr(trek_error(), "was freed: result of mul"));
    trek_error_clear();
    FAILS(trek_backward(old), TREK_ERR_STATE, "backward: the variable was freed: result of mul");
    trek_scope_end(outer);
    assert_int_equal(trek_error_status(), TREK_OK);
}

static void a_variable_that_was_kept(void **state)
{
    char wanted[200];
    trek_scope outer = trek_scope_begin(), scope = trek_scope_begin();
    trek_var *kept = trek_scope_end_keep(scope, trek_mul(ones(), ones()));
    assert_non_null(trek_add(kept, kept));
    trek_scope_end(outer);
    trek_scope another = trek_scope_begin();
    assert_null(trek_neg(kept));
    snprintf(wanted, sizeof wanted, "neg: input 0 was freed: result of mul in scope %u, which has ended", (unsigned)outer.serial);
    expect(wanted);
    trek_scope_end(another);
}

static void releasing_twice(void **state)
{
    trek_tensor *t = trek_tensor_ones(trek_dims(40), TREK_F32, trek_cpu(0));
    trek_var *leaf = trek_var_new(t, true), *alias = leaf;
    trek_var_release(leaf);
    trek_var_release(alias);
    expect("var_release: the variable was freed: variable of var_new");
    assert_null(trek_var_retain(alias));
    expect("var_retain: the variable was freed: variable of var_new");
    trek_tensor_release(t);
    trek_tensor_release(t);
    expect("tensor_release: the tensor was freed: tensor");
    assert_true(isnan(trek_tensor_item(t)));
    expect("tensor_item: the tensor was freed: tensor");
    assert_null(trek_var_new(t, false));
    expect("var_new: the tensor was freed: tensor");
}

static void releasing_what_the_scope_owns(void **state)
{
    char wanted[200];
    trek_scope scope = trek_scope_begin();
    trek_var *mine = trek_mul(ones(), ones());
    trek_var_release(mine); /* never retained */
    assert_null(trek_neg(mine));
    snprintf(wanted, sizeof wanted, "neg: input 0 was freed: result of mul in scope %u, released once too often",
             (unsigned)scope.serial);
    expect(wanted);
    trek_scope_end(scope);
    snprintf(wanted, sizeof wanted, "scope_end: a variable was freed: result of mul in scope %u, released once too often",
             (unsigned)scope.serial);
    expect(wanted);
}

static void a_tensor_that_a_variable_holds(void **state)
{
    trek_scope scope = trek_scope_begin();
    trek_tensor *t = trek_tensor_ones(trek_dims(3), TREK_F32, trek_cpu(0));
    trek_var *x = trek_var_from(t); /* took the reference over */
    trek_tensor_release(t);
    assert_null(trek_neg(x));
    expect("neg: the tensor of input 0 was freed: tensor");
    trek_scope_end(scope);
    assert_int_equal(trek_error_status(), TREK_OK);
}

static void tape_keeps_what_it_needs(void **state)
{
    trek_scope scope = trek_scope_begin(), inner = trek_scope_begin();
    trek_var *x = trek_var_retain(ones());
    trek_var_set_requires_grad(x, true);
    trek_var *loss = trek_scope_end_keep(inner, trek_sum(trek_mul(trek_mul(x, x), x), trek_dims_all(), false));
    assert_int_equal(trek_backward(loss), TREK_OK);
    float grad[3];
    assert_int_equal(trek_tensor_to_host(trek_var_data(trek_var_grad(x)), TREK_F32, grad, sizeof grad), TREK_OK);
    assert_true(grad[0] == 3 && grad[2] == 3);
    trek_scope_end(scope);
    trek_var_release(x);
    assert_int_equal(trek_error_status(), TREK_OK);
}

/* --- memory ---------------------------------------------------------------------------------- */

static void fresh_and_freed_memory_is_filled(void **state)
{
    for (int64_t n = 4; n < 10000; n *= 10) {
        trek_tensor *t = trek_tensor_empty(trek_dims(n), TREK_F32, trek_cpu(0));
        const float *values = trek_tensor_data(t);
        for (int64_t k = 0; k < n; k++)
            assert_true(isnan(values[k]));
        trek_tensor_release(trek_tensor_fill(t, 1));
        assert_true(values[n - 1] == 1);
        trek_tensor_release(t);
        assert_true(isnan(values[n - 1])); /* kept for a while, but filled */
    }
}

static void kept_memory_is_bounded(void **state)
{
    trek_tensor_release(trek_tensor_ones(trek_dims(1 << 18), TREK_F32, trek_cpu(0))); /* makes the threads */
    trek_memory_release_cached(trek_cpu(0));
    int64_t before = trek_memory_usage(trek_cpu(0)).reserved;
    for (int k = 0; k < 400; k++)
        trek_tensor_release(trek_tensor_ones(trek_dims(1 << 18), TREK_F32, trek_cpu(0)));
    assert_true(trek_memory_usage(trek_cpu(0)).reserved - before < (70 << 20));
    trek_memory_release_cached(trek_cpu(0));
    assert_int_equal(trek_memory_usage(trek_cpu(0)).reserved, before);
}

static void *use_things(void *arg)
{
    for (int k = 0; k < 300; k++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_mul(ones(), ones());
        trek_scope_end(scope);
        scope = trek_scope_begin();
        REFUSED(trek_neg(x), TREK_ERR_STATE, "");
        trek_scope_end(scope);
    }
    return NULL;
}

static void threads_at_once(void **state)
{
    pthread_t threads[4];
    for (int k = 0; k < 4; k++)
        pthread_create(&threads[k], NULL, use_things, NULL);
    for (int k = 0; k < 4; k++)
        pthread_join(threads[k], NULL);
}

/* --- objects ------------------------------------------------------------------------------------- */

static const trek_loader_opts batches = { .batch_size = 4 };

static void one_dataset_for_two_loaders(void **state)
{
    trek_dataset *digits = trek_dataset_digits(16, 1), *alias = digits;
    trek_loader *first = trek_loader_new(digits, &batches), *second = trek_loader_new(alias, &batches);
    assert_non_null(first);
    REFUSED(second, TREK_ERR_STATE, "loader_new: dataset: digits already belongs to a loader or a subset");
    trek_dataset_free(&alias);
    expect("dataset_free: dataset: digits belongs to a loader or a subset, which frees it");
    second = trek_loader_new(trek_dataset_retain(digits), &batches);
    assert_non_null(second);
    trek_loader *gone = first;
    trek_loader_free(&first);
    trek_loader_free(&second);
    assert_null(trek_loader_new(digits, &batches));
    expect("loader_new: the dataset was freed: dataset digits");
    assert_null(trek_loader_next(gone));
    expect("loader_next: the loader was freed: loader");
    trek_loader_free(&gone);
    expect("loader_free: the loader was freed: loader");
}

static void one_sampler_for_two_loaders(void **state)
{
    trek_sampler *sampler = trek_sampler_sequential(16);
    trek_loader_opts opts = { .batch_size = 4, .sampler = sampler };
    trek_loader *first = trek_loader_new(trek_dataset_digits(16, 1), &opts);
    assert_null(trek_loader_new(trek_dataset_digits(16, 1), &opts));
    assert_non_null(strstr(trek_error(), "loader_new: the sampler already has an owner: sampler"));
    trek_error_clear();
    trek_loader_free(&first);
    assert_null(trek_loader_new(trek_dataset_digits(16, 1), &opts));
    assert_non_null(strstr(trek_error(), "loader_new: the sampler was freed: sampler"));
    trek_error_clear();
}

static void freed_modules(void **state)
{
    trek_scope scope = trek_scope_begin();
    trek_module *linear = trek_nn_linear(3, 2, trek_cpu(0)), *alias = linear;
    trek_module_free(&linear);
    assert_null(trek_forward(alias, ones()));
    expect("forward: the module was freed: module linear");
    trek_module_free(&alias);
    expect("module_free: the module was freed: module linear");
    assert_int_equal(trek_module_train(alias, true), TREK_ERR_STATE);
    expect("module_train: the module was freed: module linear");
    assert_null(trek_nn_sequential((trek_module *[]){ trek_nn_relu(), alias }, 2));
    assert_non_null(strstr(trek_error(), "was freed: module linear"));
    trek_error_clear();
    trek_module *relu = trek_nn_relu();
    assert_int_not_equal(trek_nn_sequential_add(relu, alias), TREK_OK);
    trek_error_clear();
    trek_module_free(&relu);
    assert_null(trek_ddp_wrap((trek_module *[]){ alias }, 1, NULL));
    expect("ddp_wrap: a model was freed: module linear");
    trek_flow *flow = trek_flow_from(trek_nn_relu()), *built = flow;
    trek_graph *graph = trek_flow_build(flow), *freed = graph;
    assert_int_equal(trek_graph_set_teacher(graph, "teacher", alias, NULL, NULL), TREK_ERR_STATE);
    expect("graph_set_teacher: the module was freed: module linear");
    assert_null(trek_flow_through(built, trek_nn_relu()));
    expect("flow_through: the flow was freed: flow that was built or freed");
    assert_null(trek_flow_build(built));
    expect("flow_build: the flow was freed: flow that was built or freed");
    trek_graph_free(&graph);
    assert_null(trek_graph_forward(freed, ones()));
    expect("graph_forward: the graph was freed: module graph");
    assert_int_equal(trek_graph_step(freed), TREK_ERR_STATE);
    expect("graph_step: the graph was freed: module graph");
    trek_scope_end(scope);
}

static void freed_optimizers(void **state)
{
    trek_module *linear = trek_nn_linear(3, 2, trek_cpu(0));
    trek_params *params = trek_module_params(linear);
    trek_optimizer *optimizer = trek_optimizer_new(trek_sgd(&(trek_sgd_opts){ .lr = 1 }), params), *alias = optimizer;
    trek_optimizer_free(&optimizer);
    assert_int_equal(trek_optimizer_step(alias), TREK_ERR_STATE);
    expect("optimizer_step: the optimizer was freed: optimizer");
    trek_optimizer_free(&alias);
    expect("optimizer_free: the optimizer was freed: optimizer");
    trek_params_free(&params);
    trek_module_free(&linear);
}

static void another_byte(void **state)
{
    setenv("TREK_DEBUG_POISON", "0x11", 1);
    int status = system("/proc/$PPID/exe byte");
    unsetenv("TREK_DEBUG_POISON");
    assert_int_equal(status, 0);
}

/* In a process of its own. */
static int see_byte(void)
{
    trek_tensor *t = trek_tensor_empty(trek_dims(100), TREK_U8, trek_cpu(0));
    const unsigned char *bytes = trek_tensor_data(t);
    int wrong = bytes[0] != 0x11 || bytes[99] != 0x11;
    trek_tensor_release(t);
    return wrong;
}

int main(int count, char **arguments)
{
    if (!getenv("TREK_DEBUG")) {
        setenv("TREK_DEBUG", "1", 1);
        execv("/proc/self/exe", arguments);
        return 1;
    }
    if (count > 1)
        return see_byte();
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_variable_after_its_scope, clear_error),
            cmocka_unit_test_setup(a_variable_that_was_kept, clear_error),
        cmocka_unit_test_setup(releasing_twice, clear_error), cmocka_unit_test_setup(releasing_what_the_scope_owns, clear_error),
        cmocka_unit_test_setup(a_tensor_that_a_variable_holds, clear_error),
        cmocka_unit_test_setup(tape_keeps_what_it_needs, clear_error),
        cmocka_unit_test_setup(fresh_and_freed_memory_is_filled, clear_error),
        cmocka_unit_test_setup(kept_memory_is_bounded, clear_error),
        cmocka_unit_test_setup(threads_at_once, clear_error), cmocka_unit_test_setup(one_dataset_for_two_loaders, clear_error),
        cmocka_unit_test_setup(one_sampler_for_two_loaders, clear_error), cmocka_unit_test_setup(freed_modules, clear_error),
        cmocka_unit_test_setup(freed_optimizers, clear_error), cmocka_unit_test_setup(another_byte, clear_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
