/* SPDX-License-Identifier: Apache-2.0 */
/* optim/: optimizers against plain double-precision formulas (against PyTorch: tests/differential), groups, frozen and
 * unused parameters, state, clipping, and what happens when memory runs out. */
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "nn/params.h"
#include "optim/clip.h"
#include "optim/optimizer_internal.h"
#include "tensor/memory.h"
#include "tests/optim/model.h"
#include "tests/support/optimizer_options.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

/* --- the formulas, plainly ------------------------------------------------------------------------------- */

static trek_optimizer_spec some_sgd(void)
{
    return trek_sgd(&(trek_sgd_opts){ .lr = 0.05, .momentum = 0.9, .dampening = 0.25, .weight_decay = 0.1 });
}

static trek_optimizer_spec some_rmsprop(bool centered, double momentum)
{
    return trek_rmsprop(&(trek_rmsprop_opts){ .lr = 0.02, .alpha = 0.9, .eps = 1e-3, .weight_decay = 0.1, .momentum = momentum,
                                             .centered = centered });
}

/* --- formulas -------------------------------------------------------------------------------------------- */

static void run_steps(trek_optimizer_spec spec, trek_dtype dtype, double tolerance)
{
    model m;
    model_begin(&m, dtype);
    trek_optimizer *optimizer = trek_optimizer_new(spec, m.params);
    assert_non_null(optimizer);
    /* all; some unused; others unused; all: step counts part */
    static const unsigned masks[] = { 31, 31, 21, 31, 10, 0, 31 };
    for (size_t s = 0; s < sizeof masks / sizeof *masks; s++) {
        feed(&m, masks[s], &spec);
        if (s % 2 == 0) {
            assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
            assert_int_equal(trek_optimizer_zero_grad(optimizer), TREK_OK);
        } else {
            assert_int_equal(trek_optimizer_step_with(optimizer, &(trek_step_opts){ .zero_grad = true }), TREK_OK);
        }
        check_values(&m, tolerance);
        double sum;
        bool finite;
        trek_arena_sum_squares(optimizer->arena, &sum, &finite);
        assert_true(sum == 0.0);
    }
    trek_optimizer_free(&optimizer);
    model_end(&m);
}

static void updates_equal_the_formulas(void **state)
{
    run_steps(some_adamw(), TREK_F32, 2e-6);
    run_steps(some_adamw(), TREK_F64, 1e-13);
    trek_optimizer_spec decoupled = some_adamw();
    trek_adam_opts opts = test_adam_opts(&decoupled);
    trek_optimizer_spec adam = trek_adam(&opts);
    run_steps(adam, TREK_F32, 2e-6);
    run_steps(adam, TREK_F64, 1e-13);
    run_steps(some_sgd(), TREK_F32, 2e-6);
    run_steps(some_sgd(), TREK_F64, 1e-13);
    trek_optimizer_spec plain = test_with_option(test_with_option(some_sgd(), "momentum", 0), "dampening", 0);
    run_steps(plain, TREK_F32, 2e-6);
    plain = test_with_option(test_with_option(plain, "momentum", 0.5), "nesterov", 1);
    run_steps(plain, TREK_F64, 1e-13);
    for (int k = 0; k < 4; k++) {
        run_steps(some_rmsprop(k & 1, k & 2 ? 0.9 : 0), TREK_F32, 4e-6);
        run_steps(some_rmsprop(k & 1, k & 2 ? 0.9 : 0), TREK_F64, 1e-12);
    }
}

/* The variance of what never changes is 0 but for rounding, whose root must not be NaN. */
static void centred_rmsprop_of_constant_gradients_is_finite(void **state)
{
    model m;
    model_begin(&m, TREK_F32);
    trek_optimizer *optimizer = trek_optimizer_new(trek_rmsprop(&(trek_rmsprop_opts){ .lr = 1e-6, .alpha = 0.5,
                                                                                     .centered = true }), m.params);
    double same[BIG], have[BIG];
    for (int i = 0; i < BIG; i++)
        same[i] = number() * (i % 3 ? 1 : 1e-21);
    for (int step = 0; step < 100; step++) {
        set_grad(m.vars[3], same);
        assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
    }
    read_tensor(trek_var_data(m.vars[3]), have);
    for (int i = 0; i < BIG; i++)
        assert_true(isfinite(have[i]));
    trek_optimizer_free(&optimizer);
    model_end(&m);
}

static void frozen_ones_wait_and_thaw(void **state)
{
    model m;
    model_begin(&m, TREK_F64);
    trek_optimizer_spec spec = some_adamw();
    trek_optimizer *optimizer = trek_optimizer_new(spec, m.params);
    for (int step = 0; step < 6; step++) {
        bool frozen = step < 3;
        if (step == 0 || step == 3)
            assert_int_equal(trek_var_set_requires_grad(m.vars[1], !frozen), TREK_OK);
        feed(&m, frozen ? 29 : 31, &spec);
        assert_int_equal(trek_optimizer_step_with(optimizer, &(trek_step_opts){ .zero_grad = true }), TREK_OK);
        check_values(&m, 1e-13);
    }
    assert_int_equal(m.steps[1], 3); /* its bias correction began at 1 */
    /* a gradient that is there when the parameter is frozen is not applied, and zeroed with the others */
    set_grad(m.vars[2], (double[]){ 5.0 });
    trek_var_set_requires_grad(m.vars[2], false);
    assert_int_equal(trek_optimizer_step_with(optimizer, &(trek_step_opts){ .zero_grad = true }), TREK_OK);
    check_values(&m, 1e-13);
    double sum;
    bool finite;
    trek_arena_sum_squares(optimizer->arena, &sum, &finite);
    assert_true(sum == 0.0);
    trek_optimizer_free(&optimizer);
    model_end(&m);
}

static void groups_have_options_of_their_own(void **state)
{
    model m;
    model_begin(&m, TREK_F64);
    /* the group brings the buffers with it */
    trek_optimizer_spec spec = test_with_option(test_with_option(some_sgd(), "momentum", 0), "dampening", 0);
    trek_optimizer_spec other = test_with_option(test_with_option(some_sgd(), "lr", 0.5), "weight_decay", 0);
    trek_optimizer *optimizer = trek_optimizer_new(spec, m.params);
    trek_params *some = trek_params_new();
    trek_params_add(some, "a.bias", m.vars[1]);
    trek_params_add(some, "b.bias", m.vars[3]);
    assert_int_equal(trek_optimizer_add_group(optimizer, some, other), 1);
    for (int step = 0; step < 3; step++) {
        feed(&m, 21, &spec);
        feed(&m, 10, &other);
        assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
        check_values(&m, 1e-13);
    }
    assert_true(trek_optimizer_lr(optimizer) == 0.05 && trek_optimizer_group_lr(optimizer, 1) == 0.5);
    trek_optimizer_schedule_lr(optimizer, 0.1);
    assert_true(trek_optimizer_lr(optimizer) == 0.1 && fabs(trek_optimizer_group_lr(optimizer, 1) - 1.0) < 1e-15);
    trek_optimizer_set_group_lr(optimizer, 1, 0.0);
    feed(&m, 1, (spec = test_with_option(spec, "lr", 0.1), &spec));
    other = test_with_option(other, "lr", 0);
    feed(&m, 2, &other);
    for (int k = 2; k < MODEL; k++)
        trek_var_zero_grad(m.vars[k]);
    trek_optimizer_step(optimizer);
    check_values(&m, 1e-13);
    assert_true(isnan(trek_optimizer_group_lr(optimizer, 2)));
    expect_error(TREK_ERR_ARGUMENT, "group: 2");
    assert_int_equal(trek_optimizer_add_group(optimizer, some, some_adamw()), -1);
    expect_error(TREK_ERR_ARGUMENT, "adamw");
    trek_var *stranger = new_var((double[]){ 1 }, 1, TREK_F64, true);
    trek_params_add(some, "stranger", stranger);
    assert_int_equal(trek_optimizer_add_group(optimizer, some, other), -1);
    expect_error(TREK_ERR_ARGUMENT, "stranger");
    trek_var_release(stranger);
    trek_params_free(&some);
    trek_optimizer_free(&optimizer);
    model_end(&m);
}

/* --- state ----------------------------------------------------------------------------------------------- */

static void state_goes_out_and_in(trek_optimizer_spec spec)
{
    model m, copy;
    random_state = 11;
    model_begin(&m, TREK_F32);
    random_state = 11;
    model_begin(&copy, TREK_F32);
    trek_optimizer *first = trek_optimizer_new(spec, m.params), *second = trek_optimizer_new(spec, copy.params);
    trek_optimizer_entry *entries;
    int n;
    assert_int_equal(trek_optimizer_export(first, &entries, &n), TREK_OK);
    assert_true(n == 0 && !entries);
    for (int step = 0; step < 3; step++) {
        feed(&m, step == 1 ? 29 : 23, &spec);
        trek_optimizer_step_with(first, &(trek_step_opts){ .zero_grad = true });
    }
    assert_int_equal(trek_optimizer_export(first, &entries, &n), TREK_OK);
    assert_int_equal(n, test_is_class(&spec, "sgd") ? 10 : test_is_class(&spec, "rmsprop") ? 20 : 15);
    assert_string_equal(entries[0].name, test_is_class(&spec, "sgd")       ? "a.weight.momentum_buffer"
                                         : test_is_class(&spec, "rmsprop") ? "a.weight.square_avg"
                                                                           : "a.weight.exp_avg");
    assert_true(trek_shape_equal(trek_tensor_shape(entries[0].tensor), trek_dims(3)));
    for (int k = 0; k < MODEL; k++)
        trek_tensor_copy_from(trek_var_data(copy.vars[k]), trek_var_data(m.vars[k]));
    assert_int_equal(trek_optimizer_import(second, entries, n), TREK_OK);
    for (int step = 0; step < 2; step++) {
        random_state = 20 + (uint64_t)step;
        feed(&m, 31, &spec);
        random_state = 20 + (uint64_t)step;
        feed(&copy, 31, &spec);
        trek_optimizer_step(first);
        trek_optimizer_step(second);
    }
    check_values(&m, 2e-6);
    for (int k = 0; k < MODEL; k++)
        assert_true(test_same_bits(trek_var_data(m.vars[k]), trek_var_data(copy.vars[k])));
    /* a list that is not whole changes nothing */
    char *name = entries[0].name;
    entries[0].name = "nobody.exp_avg";
    FAILS(trek_optimizer_import(second, entries, n), TREK_ERR_FORMAT, "nobody");
    entries[0].name = name;
    FAILS(trek_optimizer_import(second, entries + n - 2, 1), TREK_ERR_FORMAT, "part of its state");
    assert_int_equal(trek_device_update_read(second), TREK_OK); /* where a device counts */
    assert_int_equal(second->arena->segments[0].steps, 5);
    trek_optimizer_export_free(entries, n);
    trek_optimizer_free(&first);
    trek_optimizer_free(&second);
    model_end(&m);
    model_end(&copy);
}

static void state_of_every_kind(void **state)
{
    state_goes_out_and_in(some_adamw());
    state_goes_out_and_in(some_sgd());
    state_goes_out_and_in(some_rmsprop(true, 0.9));
}

/* --- clipping -------------------------------------------------------------------------------------------- */

static void clip_norm_and_value(void **state)
{
    for (int in_arena = 0; in_arena < 2; in_arena++) {
        model m;
        model_begin(&m, TREK_F32);
        trek_var *wide = new_var((double[]){ 1, 2 }, 2, TREK_F64, true); /* two dtypes */
        trek_params_add(m.params, "wide", wide);
        trek_arena *arena = in_arena ? trek_arena_new(m.params) : NULL;
        assert_true(!in_arena || arena);
        assert_true(trek_clip_grad_norm(m.params, 1.0) == 0.0); /* no gradients yet */
        trek_optimizer_spec unused = some_sgd();
        random_state = 3;
        feed(&m, 27, &unused);
        set_grad(wide, (double[]){ 30.0, -40.0 });
        double squares = 2500.0, before[BIG], after[BIG];
        for (int k = 0; k < MODEL; k++) {
            if (k == 2)
                continue;
            read_tensor(trek_var_data(trek_var_grad(m.vars[k])), before);
            for (int64_t i = 0; i < counts[k]; i++)
                squares += before[i] * before[i];
        }
        assert_true(fabs(trek_clip_grad_norm(m.params, 1e9) - sqrt(squares)) < 1e-10);
        read_tensor(trek_var_data(trek_var_grad(m.vars[3])), after);
        read_tensor(trek_var_data(trek_var_grad(m.vars[3])), before);
        assert_true(fabs(trek_clip_grad_norm(m.params, 2.0) - sqrt(squares)) < 1e-10);
        read_tensor(trek_var_data(trek_var_grad(m.vars[3])), after);
        for (int i = 0; i < BIG; i++)
            assert_true(fabs(after[i] - before[i] * (2.0 / (sqrt(squares) + 1e-6))) < 1e-7);
        assert_true(fabs(trek_clip_grad_norm(m.params, 5.0) - 2.0) < 1e-5);
        assert_int_equal(trek_clip_grad_value(m.params, 0.01), TREK_OK);
        read_tensor(trek_var_data(trek_var_grad(m.vars[3])), before);
        for (int i = 0; i < BIG; i++)
            assert_true(fabs(before[i] - fmin(fmax(after[i], -0.01), 0.01)) < 1e-9);
        set_grad(wide, (double[]){ INFINITY, 1.0 });
        assert_true(!isfinite(trek_clip_grad_norm(m.params, 1e-3)));
        read_tensor(trek_var_data(trek_var_grad(m.vars[3])), after);
        assert_memory_equal(before, after, sizeof(double) * BIG);
        assert_true(isnan(trek_clip_grad_norm(m.params, -1.0)));
        expect_error(TREK_ERR_ARGUMENT, "clip_grad_norm: ");
        trek_arena_free(&arena);
        trek_var_release(wide);
        model_end(&m);
    }
}

/* Options that are not given are the defaults, of each class. */
static void no_options_are_the_defaults(void **state)
{
    const trek_optimizer_spec specs[] = { trek_sgd(NULL),     trek_adam(NULL),  trek_adamw(NULL),     trek_rmsprop(NULL),
                                          trek_adagrad(NULL), trek_adadelta(NULL), trek_adamax(NULL), trek_nadam(NULL),
                                          trek_asgd(NULL),    trek_radam(NULL), trek_rprop(NULL),     trek_lion(NULL),
                                          trek_lamb(NULL),    trek_lars(NULL),  trek_adafactor(NULL), trek_muon(NULL) };
    const char *const names[] = { "sgd",  "adam",  "adamw", "rmsprop", "adagrad", "adadelta", "adamax",    "nadam",
                                  "asgd", "radam", "rprop", "lion",    "lamb",    "lars",     "adafactor", "muon" };
    for (size_t k = 0; k < sizeof specs / sizeof *specs; k++) {
        assert_string_equal(specs[k].klass->name, names[k]);
        for (int o = 0; o < TREK_UPDATE_OPTIONS; o++)
            assert_true(specs[k].options[o] == 0);
    }
}

/* --- mistakes and failures ------------------------------------------------------------------------------- */

static void bad_options_are_named(void **state)
{
    const struct {
        trek_optimizer_spec spec;
        const char *says;
    } cases[] = {
        { { .klass = NULL }, "trek_sgd" },
        { trek_sgd(&(trek_sgd_opts){ .lr = -1 }), "lr" },
        { trek_sgd(&(trek_sgd_opts){ .momentum = -0.5 }), "momentum" },
        { trek_sgd(&(trek_sgd_opts){ .weight_decay = NAN }), "weight_decay" },
        { trek_sgd(&(trek_sgd_opts){ .nesterov = true }), "nesterov" },
        { trek_sgd(&(trek_sgd_opts){ .nesterov = true, .momentum = 0.9, .dampening = 0.1 }), "nesterov" },
        { trek_adam(&(trek_adam_opts){ .lr = INFINITY }), "lr" },
        { trek_adam(&(trek_adam_opts){ .beta1 = 1.0 }), "beta1" },
        { trek_adamw(&(trek_adam_opts){ .beta2 = -0.1 }), "beta2" },
        { trek_adamw(&(trek_adam_opts){ .eps = -1e-8 }), "eps" },
        { trek_adamw(&(trek_adam_opts){ .weight_decay = -0.01 }), "weight_decay" },
        { trek_rmsprop(&(trek_rmsprop_opts){ .alpha = -0.1 }), "rmsprop: alpha" },
        { trek_rmsprop(&(trek_rmsprop_opts){ .momentum = NAN }), "rmsprop: momentum" },
    };
    model m;
    model_begin(&m, TREK_F32);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        REFUSED(trek_optimizer_new(cases[c].spec, m.params), TREK_ERR_ARGUMENT, cases[c].says);
    }
    trek_params *none = trek_params_new();
    REFUSED(trek_optimizer_new(some_sgd(), none), TREK_ERR_ARGUMENT, "empty");
    trek_params_free(&none);
    assert_null(trek_optimizer_new(some_sgd(), NULL));
    assert_int_not_equal(trek_error_status(), TREK_OK);
    trek_error_clear();
    trek_optimizer *optimizer = trek_optimizer_new(some_sgd(), m.params);
    FAILS(trek_optimizer_set_lr(optimizer, -0.1), TREK_ERR_ARGUMENT, "lr");
    assert_true(trek_optimizer_lr(optimizer) == 0.05);
    trek_optimizer_free(&optimizer);
    trek_optimizer_free(&optimizer);
    model_end(&m);
}

static void nothing_moves_while_an_error_is_set(void **state)
{
    model m;
    model_begin(&m, TREK_F32);
    trek_optimizer_spec spec = some_adamw();
    trek_optimizer *optimizer = trek_optimizer_new(spec, m.params);
    feed(&m, 31, &spec);
    model before = m;
    for (int k = 0; k < MODEL; k++)
        read_tensor(trek_var_data(m.vars[k]), before.values[k]);
    trek_fail(TREK_ERR_CALLBACK, "the user's own");
    assert_int_equal(trek_optimizer_step(optimizer), TREK_ERR_CALLBACK);
    assert_int_equal(trek_optimizer_zero_grad(optimizer), TREK_ERR_CALLBACK);
    assert_true(isnan(trek_clip_grad_norm(m.params, 0.1)));
    expect_error(TREK_ERR_CALLBACK, "the user's own");
    check_values(&before, 0.0);
    assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
    check_values(&m, 2e-6);
    trek_tensor *elsewhere = trek_tensor_clone(trek_var_data(m.vars[4]));
    trek_tensor_rebind(trek_var_data(m.vars[4]), elsewhere); /* what moving a module does */
    trek_tensor_release(elsewhere);
    FAILS(trek_optimizer_step(optimizer), TREK_ERR_STATE, "'c'");
    check_values(&m, 2e-6);
    trek_optimizer_free(&optimizer);
    model_end(&m);
}

static void memory_runs_out(void **state)
{
    model m;
    model_begin(&m, TREK_F32);
    double grad[BIG], have[BIG];
    for (int i = 0; i < BIG; i++)
        grad[i] = (double)(float)number();
    set_grad(m.vars[3], grad);
    trek_optimizer *optimizer = NULL;
    int failures = 0;
    for (long k = 0; !optimizer; k++) {
        trek_memory_release_cached(trek_cpu(0));
        fail_in = k;
        optimizer = trek_optimizer_new(some_adamw(), m.params);
        fail_in = -1;
        assert_true(k < 10000);
        if (optimizer)
            break;
        failures++;
        expect_error(TREK_ERR_MEMORY, "");
        check_values(&m, 0.0);
        assert_null(trek_var_grad(m.vars[0]));
        read_tensor(trek_var_data(trek_var_grad(m.vars[3])), have);
        assert_memory_equal(have, grad, sizeof have);
    }
    assert_true(failures > 5);
    /* a group that needs buffers which cannot be had leaves the optimizer as it is */
    trek_optimizer_free(&optimizer);
    if (!test_on_cpu()) { /* whose buffers do not come from this allocator */
        model_end(&m);
        return;
    }
    trek_optimizer_spec plain = trek_sgd(&(trek_sgd_opts){ .lr = 0.1 });
    optimizer = trek_optimizer_new(plain, m.params);
    trek_memory_release_cached(trek_cpu(0));
    fail_in = 0;
    int group = trek_optimizer_add_group(optimizer, m.params, some_sgd());
    fail_in = -1;
    assert_int_equal(group, -1);
    expect_error(TREK_ERR_MEMORY, "memory");
    trek_var_zero_grad(m.vars[3]);
    feed(&m, 31, &plain);
    fail_in = 0; /* a step gets no memory at all */
    trek_status status = trek_optimizer_step_with(optimizer, &(trek_step_opts){ .zero_grad = true });
    fail_in = -1;
    assert_int_equal(status, TREK_OK);
    check_values(&m, 1e-6);
    trek_optimizer_free(&optimizer);
    model_end(&m);
}

/* Parameters on several CPUs have one optimizer; they stay where they say they are. */
static void several_cpus(void **state)
{
    trek_var *vars[2];
    trek_params *params = trek_params_new();
    for (int k = 0; k < 2; k++) {
        trek_tensor *value = trek_tensor_full(trek_dims(3), 1, TREK_F32, trek_cpu(2 * k));
        vars[k] = trek_var_new(value, true);
        trek_tensor_release(value);
        assert_int_equal(trek_params_add(params, k ? "b" : "a", vars[k]), TREK_OK);
    }
    trek_optimizer *optimizer = trek_optimizer_new(trek_sgd(&(trek_sgd_opts){ .lr = 0.5, .momentum = 0.9 }), params);
    assert_non_null(optimizer);
    for (int step = 0; step < 2; step++) {
        assert_int_equal(trek_backward(trek_sum(trek_mul(vars[0], vars[1]), trek_dims_all(), false)), TREK_OK);
        assert_true(trek_clip_grad_norm(params, 100) > 0);
        assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
        assert_int_equal(trek_optimizer_zero_grad(optimizer), TREK_OK);
    }
    for (int k = 0; k < 2; k++) {
        assert_int_equal(trek_var_device(vars[k]).index, 2 * k);
        trek_var *sum = trek_sum(vars[k], trek_dims_all(), false);
        assert_float_equal(trek_var_item(sum), 3 * (0.5 - 0.5 * (0.5 + 0.9)), 1e-6);
    }
    trek_optimizer_free(&optimizer);
    trek_params_free(&params);
    trek_var_release(vars[0]);
    trek_var_release(vars[1]);
}

int main(void)
{
    if (trek_allocator_set(&(trek_allocator){ .allocate = test_allocate, .release = test_release }) != TREK_OK)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(updates_equal_the_formulas),
        cmocka_unit_test(centred_rmsprop_of_constant_gradients_is_finite), cmocka_unit_test(frozen_ones_wait_and_thaw),
        cmocka_unit_test(groups_have_options_of_their_own), cmocka_unit_test(state_of_every_kind),
        cmocka_unit_test(clip_norm_and_value), cmocka_unit_test(bad_options_are_named),
        cmocka_unit_test(no_options_are_the_defaults),
        cmocka_unit_test(nothing_moves_while_an_error_is_set), TEST(several_cpus), cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
