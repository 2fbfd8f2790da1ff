/* SPDX-License-Identifier: Apache-2.0 */
/* nn/: the tree of modules: names, sharing, owners, failures, no memory. */
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "nn/init.h"
#include "nn/layers.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "nn/module_values.h"
#include "nn/params.h"
#include "tensor/memory.h"
#include "tensor/print.h"
#include "tests/nn/values.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

/* --- a module of our own --------------------------------------------------------------------------------- */

typedef struct block {
    trek_module base;
    trek_module *up, *down;
    trek_var *scale, *count;
} block;

static trek_var *block_forward(trek_module *self, trek_var *x)
{
    block *m = (block *)self;
    return trek_mul(trek_forward(m->down, trek_relu(trek_forward(m->up, x))), m->scale);
}

static const trek_module_class block_class = { .name = "block", .size = sizeof(block), .forward = block_forward,
                                               .free = block_free };

static trek_module *block_new(int64_t dim)
{
    trek_module *m = trek_module_new(&block_class);
    trek_module_add(m, "up", offsetof(block, up), trek_nn_linear(dim, 2 * dim, test_device()));
    trek_module_add(m, "down", offsetof(block, down), trek_nn_linear(2 * dim, dim, test_device()));
    trek_module_param(m, "scale", offsetof(block, scale), trek_tensor_ones(trek_dims(dim), TREK_F32, test_device()));
    trek_module_buffer(m, "count", offsetof(block, count), trek_tensor_zeros(trek_dims_none(), TREK_I64, test_device()));
    return trek_module_check(m);
}

static trek_status join_module(const char *name, trek_module *module, void *arg)
{
    strcat(strcat(strcat(arg, name), ":"), trek_module_name(module));
    strcat(arg, " ");
    return TREK_OK;
}

static trek_status stop_at_once(const char *name, trek_var *var, void *arg)
{
    ++*(int *)arg;
    return TREK_ERR_CANCELLED;
}

static void test_tree(void **state)
{
    char text[512] = "";
    int calls = 0;
    trek_module *m = block_new(3);
    assert_non_null(m);
    assert_int_equal(trek_module_each_param(m, join_name, text), TREK_OK);
    assert_string_equal(text, "scale up.weight up.bias down.weight down.bias ");
    text[0] = 0;
    trek_module_each_buffer(m, join_name, text);
    assert_string_equal(text, "count ");
    text[0] = 0;
    trek_module_each(m, join_module, text);
    assert_string_equal(text, ":block up:linear down:linear ");
    assert_int_equal(trek_module_each_param(m, stop_at_once, &calls), TREK_ERR_CANCELLED);
    assert_int_equal(calls, 1);
    assert_int_equal(trek_module_param_count(m), 3 + 18 + 6 + 18 + 3);
    assert_ptr_equal(trek_module_find(m, "scale"), ((block *)m)->scale);
    assert_ptr_equal(trek_module_find(m, "count"), ((block *)m)->count);
    assert_non_null(trek_module_find(m, "up.bias"));
    const char *absent[] = { "", "up", "up.", ".scale", "u.bias", "upp.bias", "up.bias.x", "scale.x", "none.at.all" };
    for (size_t k = 0; k < sizeof absent / sizeof *absent; k++)
        assert_null(trek_module_find(m, absent[k]));
    assert_int_equal(trek_error_status(), TREK_OK);
    char *table = trek_module_summary(m);
    assert_non_null(strstr(table, "linear(3, 6)"));
    assert_non_null(strstr(table, "48 parameters, 48 of them trained, 200 bytes"));
    trek_string_free(&table);
    freed = 0;
    trek_module_free(&m);
    assert_null(m);
    assert_int_equal(freed, 1);
    trek_module_free(&m);
    trek_module_free(NULL);
}

static void test_add_errors(void **state)
{
    trek_module *m = trek_module_new(&block_class);
    const char *bad[] = { "", "a.b", NULL };
    for (int k = 0; k < 3; k++) {
        freed = 0;
        REFUSED(trek_module_add(m, bad[k], TREK_NO_FIELD, trek_module_new(&bare_class)), TREK_ERR_ARGUMENT,
                "must not be empty or contain a dot");
        assert_int_equal(freed, 1); /* taken over on failure, too */
    }
    assert_non_null(trek_module_add(m, "a", TREK_NO_FIELD, trek_nn_relu()));
    REFUSED(trek_module_param(m, "a", TREK_NO_FIELD, trek_tensor_ones(trek_dims(2), TREK_F32, test_device())), TREK_ERR_ARGUMENT,
            "\"a\" is in use");
    REFUSED(trek_module_param(m, "i", TREK_NO_FIELD, trek_tensor_ones(trek_dims(2), TREK_I64, test_device())), TREK_ERR_DTYPE,
            "");
    size_t offsets[] = { 0, sizeof(trek_module) - 8, sizeof(block), sizeof(block) - 4, sizeof(trek_module) + 1 };
    for (size_t k = 0; k < sizeof offsets / sizeof *offsets; k++) {
        REFUSED(trek_module_buffer(m, "b", offsets[k], trek_tensor_ones(trek_dims(2), TREK_F32, test_device())),
                TREK_ERR_ARGUMENT, "that of a pointer field");
    }
    trek_scope scope = trek_scope_begin();
    REFUSED(trek_forward(m, trek_var_from(trek_tensor_ones(trek_dims(1, 3), TREK_F32, test_device()))), TREK_ERR_STATE,
            "could not be made");
    trek_scope_end(scope);
    freed = 0;
    assert_null(trek_module_check(m)); /* frees it */
    assert_int_equal(freed, 1);
    expect_error(TREK_ERR_STATE, "could not be made");

    assert_null(trek_module_check(NULL));
    REFUSED(trek_module_add(NULL, "x", TREK_NO_FIELD, trek_nn_relu()), TREK_ERR_ARGUMENT, "module_add: module: NULL");
    REFUSED(trek_nn_sequential((trek_module *[]){ trek_nn_relu(), NULL }, 2), TREK_ERR_ARGUMENT,
            "module_add: child \"1\" of the sequential: NULL");
    trek_module *searched = trek_nn_sequential((trek_module *[]){ trek_nn_linear(1, 1, test_device()) }, 1);
    FAILS(trek_init_normal(trek_module_find(searched, "0.wieght"), 0, 1), TREK_ERR_ARGUMENT,
          "init_normal: parameter: NULL; it must be given; the last module_find, for \"0.wieght\", found nothing");
    REFUSED(trek_module_share_param(searched, "tied", TREK_NO_FIELD, trek_module_find(searched, "1.weight")), TREK_ERR_ARGUMENT,
            "parameter \"tied\" of the sequential: NULL; it must be given; the last module_find, for \"1.weight\"");
    assert_null(trek_module_find(searched, "3.weight"));
    assert_non_null(trek_module_find(searched, "0.weight")); /* what is told is the last search */
    assert_int_equal(trek_init_normal(NULL, 0, 1), TREK_ERR_ARGUMENT);
    REFUSED(strstr(trek_error(), "found nothing"), TREK_ERR_ARGUMENT, "init_normal: parameter: NULL");
    trek_module_free(&searched);
    m = trek_module_new(&bare_class);
    trek_module_add(m, "x", TREK_NO_FIELD, NULL);
    assert_true(m->own->failed);
    trek_error_clear();
    assert_null(trek_module_check(m));
    trek_error_clear();
}

static void test_sharing(void **state)
{
    trek_module *shared = trek_nn_linear(2, 2, test_device()), *a = trek_module_new(&bare_class),
        *b = trek_module_new(&bare_class);
    trek_module *root = trek_module_new(&bare_class);
    trek_module_add(a, "layer", TREK_NO_FIELD, shared);
    trek_module_add(b, "layer", TREK_NO_FIELD, shared);
    trek_module_share_param(b, "tied", TREK_NO_FIELD, trek_module_find(shared, "weight"));
    assert_int_equal(shared->own->owners, 2);
    trek_module_free(&shared);
    expect_error(TREK_ERR_STATE, "belongs to another");
    assert_non_null(shared);
    trek_module_add(root, "a", TREK_NO_FIELD, a);
    trek_module_add(root, "b", TREK_NO_FIELD, b);
    char text[256] = "";
    trek_module_each_param(root, join_name, text);
    assert_string_equal(text, "a.layer.weight a.layer.bias ");
    assert_int_equal(trek_module_param_count(root), 6);
    assert_ptr_equal(trek_module_find(root, "b.tied"), trek_module_find(root, "a.layer.weight"));
    trek_module *alone = trek_module_new(&bare_class), *first = trek_module_new(&bare_class),
                *owner = trek_nn_linear(1, 1, test_device());
    trek_module_share_param(alone, "theirs", TREK_NO_FIELD, trek_module_find(shared, "bias")); /* whose owner is elsewhere */
    trek_module_share_param(first, "early", TREK_NO_FIELD, trek_module_find(owner, "weight"));
    trek_module_add(alone, "first", TREK_NO_FIELD, first);
    trek_module_add(alone, "owner", TREK_NO_FIELD, owner);
    text[0] = 0;
    trek_module_each_param(alone, join_name, text);
    assert_string_equal(text, "owner.weight owner.bias theirs ");
    char *table = trek_module_summary(alone);
    assert_non_null(strstr(table, "first.early   f32 [1, 1]  shared"));
    assert_non_null(strstr(table, "4 parameters, 4 of them trained"));
    trek_string_free(&table);
    trek_module_free(&alone);

    assert_null(trek_module_add(a, "up", TREK_NO_FIELD, root)); /* would be a cycle */
    expect_error(TREK_ERR_ARGUMENT, "its own descendant");
    REFUSED(trek_module_add(root, "self", TREK_NO_FIELD, root), TREK_ERR_ARGUMENT, "its own descendant");
    freed = 0;
    trek_module_free(&root);
    assert_int_equal(freed, 3);
}

static void test_deep(void **state)
{
    enum { DEPTH = 50000 };
    trek_module *top = trek_nn_linear(1, 1, test_device());
    for (int k = 0; k < DEPTH; k++) {
        trek_module *outer = trek_module_new(&bare_class);
        trek_module_add(outer, "x", TREK_NO_FIELD, top);
        top = outer;
    }
    assert_int_equal(trek_module_param_count(top), 2);
    assert_int_equal(trek_module_train(top, false), TREK_OK);
    freed = 0;
    trek_module_free(&top);
    assert_int_equal(freed, DEPTH);
}

static trek_var *two_forward(trek_module *self, trek_var *const *inputs, int n)
{
    return n == 1 ? trek_neg(inputs[0]) : trek_add(inputs[0], inputs[1]);
}

static trek_var *nothing_forward(trek_module *self, trek_var *x)
{
    return NULL;
}

static const trek_module_class two_class = { .name = "two", .size = sizeof(trek_module), .forward_many = two_forward };
static const trek_module_class nothing_class = { .name = "nothing", .size = sizeof(trek_module), .forward = nothing_forward };

static void test_forward(void **state)
{
    trek_module *m = block_new(3), *two = trek_module_new(&two_class), *nothing = trek_module_new(&nothing_class);
    trek_module *bare = trek_module_new(&bare_class), *same = trek_nn_identity();
    trek_scope scope = trek_scope_begin();
    trek_var *x = numbers((double[]){ 1, 2, 3 }, trek_dims(1, 3)), *pair[] = { x, x };
    int held = trek_scopes.count;
    trek_var *y = trek_forward(m, x);
    assert_non_null(y);
    assert_int_equal(trek_scopes.count, held + 1); /* the result, and nothing of what was made inside */
    assert_ptr_equal(trek_forward(same, x), x);
    assert_int_equal(trek_scopes.count, held + 1); /* x is not owned twice */
    expect_near(at(trek_forward(two, x), 1), -2, 0);
    expect_near(at(trek_forward_many(two, pair, 2), 1), 4, 0);
    assert_ptr_equal(trek_forward_many(same, pair, 1), x);
    REFUSED(trek_forward_many(same, pair, 2), TREK_ERR_UNSUPPORTED, "inputs: 2; it takes one");
    REFUSED(trek_forward_many(two, pair, 0), TREK_ERR_ARGUMENT, "inputs: 0; must be at least 1");
    REFUSED(trek_forward(nothing, x), TREK_ERR_CALLBACK, "nothing: forward: no result");
    REFUSED(trek_forward(bare, x), TREK_ERR_UNSUPPORTED, "no forward");
    REFUSED(trek_forward(NULL, x), TREK_ERR_ARGUMENT, "");
    assert_null(trek_forward(m, trek_forward(NULL, x))); /* the first error stays */
    expect_error(TREK_ERR_ARGUMENT, "module");
    assert_int_equal(trek_scope_end(scope), TREK_OK);
    REFUSED(trek_forward(m, NULL), TREK_ERR_ARGUMENT, "input");
    trek_module *all[] = { m, two, nothing, bare, same };
    for (int k = 0; k < 5; k++)
        trek_module_free(&all[k]);
}

/* What a program may know of a module whose contents are trek's own. */
static void test_known(void **state)
{
    trek_module *m = block_new(2);
    assert_int_equal(sizeof(trek_module), sizeof(void *));
    assert_ptr_equal(trek_module_class_of(m), &block_class);
    assert_ptr_not_equal(trek_module_class_of(((block *)m)->up), &block_class);
    assert_null(trek_module_class_of(NULL));
    assert_true(trek_module_is_training(m) && !trek_module_is_training(NULL));
    assert_int_equal(trek_module_child_count(m), 2);
    assert_int_equal(trek_module_child_count(NULL), 0);
    assert_ptr_equal(trek_module_child(m, 0), ((block *)m)->up);
    assert_string_equal(trek_module_child_name(m, 1), "down");
    assert_int_equal(trek_error_status(), TREK_OK);
    REFUSED(trek_module_child(m, 2), TREK_ERR_ARGUMENT, "module_child: k: 2; the module has 2 children");
    REFUSED(trek_module_child(m, -1), TREK_ERR_ARGUMENT, "module_child: k: -1; the module has 2 children");
    REFUSED(trek_module_child_name(((block *)m)->up, 0), TREK_ERR_ARGUMENT, "module_child_name: k: 0; the module has 0 children");
    REFUSED(trek_module_child(NULL, 0), TREK_ERR_ARGUMENT, "module");
    trek_module_free(&m);
}

static void test_modes_and_moving(void **state)
{
    trek_module *m = block_new(2);
    trek_module_train(m, false);
    assert_false(trek_module_is_training(m) || trek_module_is_training(((block *)m)->up));
    trek_module_train(m, true);
    assert_true(trek_module_is_training(m) && trek_module_is_training(((block *)m)->down));
    assert_int_equal(trek_module_freeze(((block *)m)->up), TREK_OK);
    assert_false(trek_var_requires_grad(trek_module_find(m, "up.weight")));
    assert_true(trek_var_requires_grad(trek_module_find(m, "down.weight")));
    trek_scope scope = trek_scope_begin();
    assert_int_equal(trek_backward(trek_sum(trek_forward(m, numbers((double[]){ 1, 2 }, trek_dims(1, 2))), trek_dims_all(),
                                            false)),
                     TREK_OK);
    trek_scope_end(scope);
    trek_var *weight = trek_module_find(m, "down.weight");
    assert_null(trek_var_grad(trek_module_find(m, "up.weight")));
    assert_int_equal(trek_module_thaw(m), TREK_OK);
    assert_true(trek_var_requires_grad(trek_module_find(m, "up.weight")) && trek_var_requires_grad(weight));
    double value = at(weight, 0), grad = at(trek_var_grad(weight), 0);
    assert_int_equal(trek_module_to(m, test_device_other()), TREK_OK);
    assert_ptr_equal(trek_module_find(m, "down.weight"), weight);
    assert_true(trek_device_equal(trek_var_device(weight), test_device_other()));
    assert_true(trek_device_equal(trek_var_device(trek_var_grad(weight)), test_device_other()));
    assert_true(trek_device_equal(trek_var_device(trek_module_find(m, "count")), test_device_other()));
    expect_near(at(weight, 0), value, 0);
    expect_near(at(trek_var_grad(weight), 0), grad, 0);
    trek_seed(5);
    assert_int_equal(trek_module_reset(m), TREK_OK);
    double first = at(weight, 0);
    assert_true(first != value);
    trek_seed(5);
    trek_module_reset(m);
    expect_near(at(weight, 0), first, 0);
    trek_module_free(&m);
}

static void test_params(void **state)
{
    trek_module *m = block_new(2);
    trek_params *params = trek_module_params(m), *own = trek_params_new();
    assert_int_equal(trek_params_count(params), 5);
    assert_string_equal(trek_params_name(params, 4), "down.bias");
    assert_ptr_equal(trek_params_var(params, 0), ((block *)m)->scale);
    REFUSED(trek_params_var(params, 5), TREK_ERR_ARGUMENT, "k: 5; must be below 5");
    assert_int_equal(trek_params_add(own, NULL, ((block *)m)->scale), TREK_OK);
    assert_string_equal(trek_params_name(own, 0), "param0");
    FAILS(trek_params_add(own, "again", ((block *)m)->scale), TREK_ERR_ARGUMENT, "already in the list");
    trek_module_free(&m); /* the lists keep the parameters */
    expect_near(at(trek_params_var(own, 0), 1), 1, 0);
    trek_params_free(&params);
    trek_params_free(&own);
    assert_null(own);
    trek_params_free(&own);
}

/* --- layers ---------------------------------------------------------------------------------------------- */

static void test_linear_and_sequential(void **state)
{
    trek_module *linear = trek_nn_linear(2, 3, test_device());
    fill(linear, "weight", (double[]){ 1, 2, -3, 4, 5, -6 });
    fill(linear, "bias", (double[]){ 0.5, -1, 2 });
    for (int exact = 0; exact < 2; exact++) {
        trek_module *fused = trek_nn_sequential((trek_module *[]){ linear, exact ? trek_nn_gelu() : trek_nn_relu() }, 2);
        trek_scope scope = trek_scope_begin();
        trek_var *x = numbers((double[]){ 1, 2, -1, 0.5 }, trek_dims(2, 2)), *weight = trek_module_find(linear, "weight");
        trek_var *y = trek_forward(linear, x), *act = exact ? trek_gelu(y) : trek_relu(y), *z = trek_forward(fused, x);
        const double wanted[] = { 5.5, 4, -5, 0.5, 4, -6 };
        for (int k = 0; k < 6; k++) {
            expect_near(at(y, k), wanted[k], 1e-6);
            expect_near(at(z, k), at(act, k), 1e-6);
            expect_near(at(z, k), exact ? wanted[k] * 0.5 * erfc(-wanted[k] * M_SQRT1_2) : fmax(wanted[k], 0), 1e-5);
        }
        double plain[6];
        trek_backward(trek_sum(trek_mul(act, act), trek_dims_all(), false));
        for (int k = 0; k < 6; k++)
            plain[k] = at(trek_var_grad(weight), k);
        trek_var_zero_grad(weight);
        trek_backward(trek_sum(trek_mul(z, z), trek_dims_all(), false));
        for (int k = 0; k < 6; k++)
            expect_near(at(trek_var_grad(weight), k), plain[k], 1e-4);
        trek_var_zero_grad(weight);
        trek_scope_end(scope);
        linear->own->owners++; /* held for the second round */
        trek_module_free(&fused);
        linear->own->owners--;
    }
    trek_module_free(&linear);
    REFUSED(trek_nn_linear(0, 3, test_device()), TREK_ERR_ARGUMENT, "in: 0; must be at least 1");
}

/* --- no memory ------------------------------------------------------------------------------------------- */

static trek_module *build(void)
{
    trek_module *m = trek_nn_sequential((trek_module *[]){ trek_nn_linear(40, 30, test_device()), trek_nn_relu(),
                                                           trek_nn_batch_norm1d(30, test_device()) }, 3);
    trek_nn_sequential_add(m, block_new(30));
    return trek_module_check(m);
}

static void test_no_memory(void **state)
{
    trek_module *m = build(); /* fills caches that stay */
    trek_module_free(&m);
    bool done = false;
    for (long k = 0; !done && k < 2000; k++) {
        freed = 0;
        trek_memory_release_cached(trek_cpu(0));
        long before = in_use;
        fail_in = k;
        m = build();
        trek_params *params = m ? trek_module_params(m) : NULL;
        char *table = params ? trek_module_summary(m) : NULL;
        done = table != NULL;
        fail_in = -1;
        if (!done && trek_error_status() != TREK_ERR_MEMORY)
            fail_msg("allocation %ld: %s: %s", k, trek_status_name(trek_error_status()), trek_error());
        trek_error_clear();
        trek_string_free(&table);
        trek_params_free(&params);
        trek_module_free(&m);
        trek_memory_release_cached(trek_cpu(0));
        if (k > 50)
            assert_true(in_use <= before + 8); /* nothing piles up */
    }
    assert_true(done);
}

int main(void)
{
    trek_allocator_set(&(trek_allocator){ test_allocate, test_release, NULL });
    trek_seed(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_tree, teardown), cmocka_unit_test_teardown(test_add_errors, teardown),
        cmocka_unit_test_teardown(test_sharing, teardown), cmocka_unit_test_teardown(test_deep, teardown),
        cmocka_unit_test_teardown(test_forward, teardown), cmocka_unit_test_teardown(test_known, teardown),
        cmocka_unit_test_teardown(test_modes_and_moving, teardown),
        cmocka_unit_test_teardown(test_params, teardown), cmocka_unit_test_teardown(test_linear_and_sequential, teardown),
        cmocka_unit_test_teardown(test_no_memory, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
