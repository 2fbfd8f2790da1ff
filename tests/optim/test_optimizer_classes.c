/* SPDX-License-Identifier: Apache-2.0 */
/* Classes of optimizers: one that the library does not have trains a graph on ranks as on one device, and what breaks the
 * rules of a class is refused by name. */
#include "autograd/leaf.h"
#include "nn/params.h"
#include "optim/clip.h"
#include "optim/optimizer_internal.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/tamed.h"
#include "tests/support/training.h"

/* --- on ranks --------------------------------------------------------------------------------- */

enum { SPECS = 14, WITHOUT_WINDOWS = 13 };

/* The last one refuses averages of parameters. */
static const trek_optimizer_spec *spec_at(int k)
{
    static trek_optimizer_spec specs[SPECS];
    specs[0] = tamed(0.02, 0);
    specs[1] = tamed(0.01, 0.9);
    specs[2] = trek_rmsprop(&(trek_rmsprop_opts){ .lr = 1e-3, .alpha = 0.9, .eps = 1e-2 });
    specs[3] = trek_rmsprop(&(trek_rmsprop_opts){ .lr = 1e-3, .alpha = 0.9, .eps = 1e-2, .momentum = 0.9, .centered = true });
    specs[4] = trek_adagrad(&(trek_adagrad_opts){ .lr = 1e-3, .eps = 1e-2 });
    specs[5] = trek_adadelta(&(trek_adadelta_opts){ .lr = 0.1, .eps = 1e-2 });
    specs[6] = trek_adamax(&(trek_adamax_opts){ .lr = 1e-3, .eps = 1e-2 });
    specs[7] = trek_nadam(&(trek_nadam_opts){ .lr = 1e-3, .eps = 1e-2 });
    specs[8] = trek_radam(&(trek_radam_opts){ .lr = 1e-3, .eps = 1e-2 });
    specs[9] = trek_adamw(&(trek_adam_opts){ .lr = 1e-3, .eps = 1e-2, .amsgrad = true });
    specs[10] = trek_lamb(&(trek_lamb_opts){ .lr = 1e-3, .eps = 1e-2 });
    specs[11] = trek_lars(&(trek_lars_opts){ .lr = 1e-2, .momentum = 0.9 });
    specs[12] = trek_asgd(&(trek_asgd_opts){ .lr = 1e-2, .lambd = 1e-2, .t0 = TREK_ZERO });
    specs[13] = trek_adafactor(&(trek_adafactor_opts){ .lr = 1e-3 });
    return k < SPECS ? &specs[k] : NULL;
}

static void compare(run *c)
{
    static result many, one;
    training_run(c, &many);
    training_on_one(c, &many, &one);
    training_compare(c, &many, &one);
    trek_plan_free(&many.made);
}

/* Shared arenas and those of each rank, passes, windows, clipping, a scaled loss. Under sanitizers a third, which the seed
 * draws: of each class and each of the eight cases one number of ranks. */
static void ranks_equal_one_device(void **state)
{
    if (!test_on_cpu())
        skip();
    const trek_optimizer_spec *spec;
    for (int k = 0; (spec = spec_at(k)); k++)
        for (int world = 1; world <= 3; world++)
            for (int c = 0; c < 8; c++) {
                if (test_short() && (k + world + c + (int)(test_seed() % 3)) % 3 != 0)
                    continue;
                bool windows = c == 5 && world > 1 && k < WITHOUT_WINDOWS;
                run r = { .world = world, .passes = 1 + (c == 4 || c == 6), .batch = windows ? 2 : 7, .separate = c & 1,
                          .clip = c & 2, .scaled = c == 3 || c == 6,
                          .windows = windows, .optimizer = *spec };
                compare(&r);
            }
}

/* Parameters of which some end within a block, and their gradients, some of them large; of one dtype. */
static trek_params *limited_params(trek_var **vars, trek_dtype dtype)
{
    const trek_shape shapes[] = { trek_dims(3), trek_dims(5001), trek_dims(70, 90), trek_dims(2048) };
    trek_params *params = trek_params_new();
    static const char *const names[] = { "a", "b", "c", "d" };
    for (int k = 0; k < 4; k++) {
        trek_tensor *wide = test_tensor(40 + (uint32_t)k, shapes[k], 1), *value = trek_tensor_cast(wide, dtype);
        vars[k] = trek_var_new(value, true);
        assert_int_equal(trek_params_add(params, names[k], vars[k]), TREK_OK);
        trek_tensor_release(wide);
        trek_tensor_release(value);
    }
    return params;
}

static void give_gradients(trek_var *const *vars, uint32_t step)
{
    for (int k = 0; k < 4; k++) {
        trek_dtype dtype = trek_var_dtype(vars[k]) == TREK_F64 ? TREK_F64 : TREK_F32;
        trek_tensor *wide = test_tensor(100 * step + (uint32_t)k, trek_var_shape(vars[k]), 1),
            *value = trek_tensor_cast(wide, dtype);
        trek_var *grad = trek_var_new(value, false);
        assert_int_equal(trek_var_set_grad(vars[k], grad), TREK_OK);
        trek_var_release(grad);
        trek_tensor_release(wide);
        trek_tensor_release(value);
    }
}

/* A limit of elements in the pass of the update, against gradients that were limited before it. */
static void limits_are_of_the_update(void **state)
{
    if (!test_on_cpu())
        skip();
    const trek_optimizer_spec *spec;
    static const trek_dtype dtypes[] = { TREK_F32, TREK_F64, TREK_BF16 };
    for (int k = 0; (spec = spec_at(k)); k++)
        for (int d = 0; d < 3; d++) {
            trek_var *vars[2][4];
            trek_params *params[2];
            trek_optimizer *optimizers[2];
            for (int w = 0; w < 2; w++) {
                params[w] = limited_params(vars[w], dtypes[d]);
                optimizers[w] = trek_optimizer_new(*spec, params[w]);
            }
            for (uint32_t step = 1; step <= 3; step++) {
                give_gradients(vars[0], step);
                give_gradients(vars[1], step);
                assert_int_equal(trek_clip_grad_value(params[1], 0.3), TREK_OK);
                for (int w = 0; w < 2; w++)
                    assert_int_equal(trek_optimizer_step_with(optimizers[w], &(trek_step_opts){ .max_value = w ? 0 : 0.3,
                                                                                               .zero_grad = step < 3 }), TREK_OK);
                for (int p = 0; p < 4; p++)
                    assert_true(test_same_bits(trek_var_data(vars[0][p]), trek_var_data(vars[1][p])));
            }
            for (int w = 0; w < 2; w++) {
                trek_optimizer_free(&optimizers[w]);
                trek_params_free(&params[w]);
                for (int p = 0; p < 4; p++)
                    trek_var_release(vars[w][p]);
            }
        }
}

/* Each parameter has what its own group keeps. */
static void state_has_the_names_of_the_class(void **state)
{
    if (!test_on_cpu())
        skip();
    trek_var *vars[2];
    trek_params *params = trek_params_new(), *second = trek_params_new();
    for (int k = 0; k < 2; k++) {
        trek_tensor *value = trek_tensor_full(trek_dims(3), 1, TREK_F32, trek_cpu(0)),
            *ones = trek_tensor_full(trek_dims(3), 0.5, TREK_F32, trek_cpu(0));
        vars[k] = trek_var_new(value, true);
        trek_var *grad = trek_var_new(ones, false);
        assert_int_equal(trek_var_set_grad(vars[k], grad), TREK_OK);
        trek_params_add(params, k ? "b" : "a", vars[k]);
        trek_var_release(grad);
        trek_tensor_release(value);
        trek_tensor_release(ones);
    }
    trek_params_add(second, "b", vars[1]);
    trek_optimizer *optimizer = trek_optimizer_new(tamed(0.1, 0), params);
    assert_int_equal(trek_optimizer_add_group(optimizer, second, tamed(0.1, 0.5)), 1);
    assert_int_equal(trek_optimizer_add_group(optimizer, second, trek_adam(&(trek_adam_opts){ .lr = 1 })), -1);
    expect_error(TREK_ERR_ARGUMENT, "tamed");
    assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
    static const char *const names[] = { "a.average", "a.step", "b.average", "b.trail", "b.step" };
    trek_optimizer_entry *entries;
    int n;
    assert_int_equal(trek_optimizer_export(optimizer, &entries, &n), TREK_OK);
    assert_int_equal(n, 5);
    for (int k = 0; k < n; k++)
        assert_string_equal(entries[k].name, names[k]);
    assert_int_equal(trek_optimizer_import(optimizer, entries + 1, 1), TREK_ERR_FORMAT); /* steps without the average */
    expect_error(TREK_ERR_FORMAT, "part of its state");
    trek_optimizer_entry trail = entries[3]; /* it begins anew where it is missing */
    entries[3] = entries[4];
    entries[4] = trail;
    assert_int_equal(trek_optimizer_import(optimizer, entries, 4), TREK_OK);
    trek_optimizer_entry *after;
    int n_after;
    assert_int_equal(trek_optimizer_export(optimizer, &after, &n_after), TREK_OK);
    assert_int_equal(n_after, 4);
    trek_optimizer_export_free(after, n_after);
    trek_optimizer_free(&optimizer);
    trek_params_free(&params);
    trek_params_free(&second);
    for (int k = 0; k < 2; k++)
        trek_var_release(vars[k]);
    trek_optimizer_export_free(entries, n);
}

/* --- rules ------------------------------------------------------------------------------------------ */

static trek_status refused(trek_optimizer_class klass)
{
    return trek_optimizer_spec_check(&(trek_optimizer_spec){ .klass = &klass });
}

static void classes_that_break_the_rules_are_refused(void **state)
{
    trek_optimizer_class c = tamed_class;
    assert_int_equal(refused(c), TREK_OK);
    c.update = NULL;
    FAILS(refused(c), TREK_ERR_ARGUMENT, "update");
    c = tamed_class, c.name = NULL;
    FAILS(refused(c), TREK_ERR_ARGUMENT, "name");
    c = tamed_class, c.options[0].name = "rate";
    FAILS(refused(c), TREK_ERR_ARGUMENT, "tamed: class: the first option must be lr");
    c = tamed_class, c.by_step = false;
    FAILS(refused(c), TREK_ERR_ARGUMENT, "by_step");
    c = tamed_class, c.maximize = TREK_UPDATE_OPTIONS;
    FAILS(refused(c), TREK_ERR_ARGUMENT, "maximize");
    static const char *const names[] = { "step", "master", "a.b", "average" };
    for (int k = 0; k < 4; k++) {
        c = tamed_class, c.states[1].name = names[k];
        FAILS(refused(c), TREK_ERR_ARGUMENT, names[k]);
    }
    c = tamed_class, c.states[1].kept_with = 9;
    FAILS(refused(c), TREK_ERR_ARGUMENT, "trail");
}

static void options_are_checked_by_name(void **state)
{
    trek_optimizer_spec spec = tamed(-1, 0);
    FAILS(trek_optimizer_spec_check(&spec), TREK_ERR_ARGUMENT, "tamed: lr");
    spec = test_with_option(tamed(1, 0), "beta", 1);
    FAILS(trek_optimizer_spec_check(&spec), TREK_ERR_ARGUMENT, "tamed: beta: ");
    spec = tamed(1, 0);
    spec.options[TREK_UPDATE_OPTIONS - 1] = 1;
    FAILS(trek_optimizer_spec_check(&spec), TREK_ERR_ARGUMENT, "option 15 does not exist");
    spec = tamed(0, 0);
    assert_int_equal(trek_optimizer_resolve(&spec), TREK_OK);
    assert_true(spec.options[TAMED_LR] == 1e-2 && spec.options[TAMED_BETA] == 0.8);
    trek_optimizer_spec again = trek_optimizer_spec_again(&spec);
    assert_int_equal(trek_optimizer_resolve(&again), TREK_OK);
    assert_memory_equal(&again, &spec, sizeof spec);
}

/* What no kernel is there for is refused before anything has moved. */
static void devices_without_its_kernel_refuse_it(void **state)
{
    if (test_on_cpu())
        skip();
    trek_tensor *value = trek_tensor_full(trek_dims(3), 1, TREK_F32, test_device());
    trek_var *var = trek_var_new(value, true);
    trek_params *params = trek_params_new();
    trek_params_add(params, "p", var);
    REFUSED(trek_optimizer_new(tamed(0.1, 0), params), TREK_ERR_UNSUPPORTED, "tamed");
    trek_optimizer_spec spec = trek_lamb(&(trek_lamb_opts){ .lr = 0.1 });
    trek_optimizer_class whole = *spec.klass; /* of a program's own, which has no kernel there, or names one that is not there */
    spec.klass = &whole;
    for (int k = 0; k < 2; k++) {
        whole.gpu = k ? "none_of_that_name" : NULL;
        REFUSED(trek_optimizer_new(spec, params), TREK_ERR_UNSUPPORTED, "lamb: it has no kernel for cuda");
    }
    trek_optimizer *optimizer = trek_optimizer_new(trek_adam(&(trek_adam_opts){ .lr = 0.1 }), params);
    assert_non_null(optimizer);
    trek_optimizer_free(&optimizer);
    trek_params_free(&params);
    trek_var_release(var);
    trek_tensor_release(value);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_equal_one_device), cmocka_unit_test(limits_are_of_the_update),
        cmocka_unit_test(state_has_the_names_of_the_class), cmocka_unit_test(classes_that_break_the_rules_are_refused),
        cmocka_unit_test(options_are_checked_by_name), cmocka_unit_test(devices_without_its_kernel_refuse_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
