/* SPDX-License-Identifier: Apache-2.0 */
/* What stands around optimizers: averages of weights, SAM, copies of modules, groups by what parameters are. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "nn/layers.h"
#include "optim/averaged.h"
#include "optim/lbfgs.h"
#include "optim/optimizer_internal.h"
#include "optim/sam.h"
#include "optim/schedule.h"

static double first_of(trek_module *m)
{
    double values[64];
    trek_tensor *t = trek_var_data(trek_module_find(m, "weight"));
    trek_tensor_to_host(t, TREK_F64, values, (size_t)trek_tensor_numel(t) * sizeof *values);
    return values[0];
}

static void set_all(trek_module *m, double value)
{
    trek_tensor *t = trek_var_data(trek_module_find(m, "weight"));
    trek_tensor *full = trek_tensor_full(value, trek_tensor_shape(t), TREK_F32, trek_cpu(0));
    trek_tensor_copy_from(t, full);
    trek_tensor_release(full);
}

static void averages_and_copies(void **state)
{
    (void)state;
    trek_module *m = trek_nn_linear(3, 2, trek_cpu(0)), *target = trek_nn_linear(3, 2, trek_cpu(0));
    trek_averaged *ema = trek_averaged_new(m, &(trek_averaged_opts){ .decay = 0.75 }), *swa = trek_averaged_new(m, NULL);
    for (int k = 1; k <= 3; k++) {
        set_all(m, k);
        assert_int_equal(trek_averaged_update(ema), TREK_OK);
        assert_int_equal(trek_averaged_update(swa), TREK_OK);
    }
    assert_int_equal(trek_averaged_updates(ema), 3);
    trek_state *kept = trek_averaged_state(ema);
    assert_int_equal(trek_averaged_load(ema, kept), TREK_OK);
    trek_state_free(&kept);
    assert_int_equal(trek_averaged_swap(ema), TREK_OK);
    assert_true(fabs(first_of(m) - 1.6875) < 1e-6);
    assert_int_equal(trek_averaged_swap(ema), TREK_OK);
    assert_true(first_of(m) == 3);
    assert_int_equal(trek_averaged_swap(swa), TREK_OK);
    assert_true(fabs(first_of(m) - 2) < 1e-6);
    assert_int_equal(trek_averaged_swap(swa), TREK_OK);
    assert_int_equal(trek_module_copy(target, m), TREK_OK);
    set_all(m, 5);
    assert_int_equal(trek_module_lerp(target, m, 0.25), TREK_OK);
    assert_true(fabs(first_of(target) - 3.5) < 1e-6);
    assert_int_equal(trek_module_recount_statistics(m, true), TREK_OK);
    assert_int_equal(trek_module_recount_statistics(m, false), TREK_OK);
    trek_averaged_free(&ema);
    trek_averaged_free(&swa);
    trek_module_free(&m);
    trek_module_free(&target);
}

static trek_optimizer_spec tenth(const char *name, trek_var *param, trek_optimizer_spec now, void *arg)
{
    (void)name, (void)arg;
    if (trek_var_ndim(param) == 2)
        now.options[0] *= 0.1;
    return now;
}

static void set_grads(trek_params *params, double value)
{
    for (int k = 0; k < trek_params_count(params); k++) {
        trek_var *var = trek_params_var(params, k);
        trek_tensor *t = trek_tensor_full(value, trek_var_shape(var), TREK_F32, trek_cpu(0));
        trek_var *grad = trek_var_new(t, false);
        trek_var_set_grad(var, grad);
        trek_var_release(grad);
        trek_tensor_release(t);
    }
}

static void groups_sam_and_reset(void **state)
{
    (void)state;
    trek_module *m = trek_nn_linear(3, 2, trek_cpu(0));
    trek_params *params = trek_module_params(m);
    trek_optimizer *o = trek_optimizer_new(trek_sgd((trek_sgd_opts){ .lr = 0.5, .momentum = 0.9, .weight_decay = 0.1 }), params);
    assert_int_equal(trek_optimizer_vectors(o, trek_sgd((trek_sgd_opts){ .lr = 0.5, .momentum = 0.9 })), 1);
    assert_int_equal(trek_optimizer_regroup(o, tenth, NULL), TREK_OK);
    assert_true(fabs(trek_optimizer_group_lr(o, 2) - 0.05) < 1e-15 && o->n_groups == 3);
    trek_sam *sam = trek_sam_new(o, NULL);
    set_all(m, 1);
    set_grads(params, 1);
    assert_int_equal(trek_sam_first_step(sam), TREK_OK);
    assert_true(fabs(first_of(m) - (1 + 0.05 / sqrt(8))) < 1e-6);
    set_grads(params, 2);
    assert_int_equal(trek_sam_second_step(sam), TREK_OK);
    assert_true(fabs(first_of(m) - (1 - 0.05 * 2.1)) < 1e-6);
    assert_int_equal(trek_sam_second_step(sam), TREK_ERR_STATE);
    trek_error_clear();
    trek_sam_free(&sam);
    assert_int_equal(trek_optimizer_reset(o), TREK_OK);
    trek_optimizer_entry *entries;
    int n;
    assert_int_equal(trek_optimizer_export(o, &entries, &n), TREK_OK);
    assert_int_equal(n, 0);
    trek_optimizer_free(&o);
    trek_params_free(&params);
    trek_module_free(&m);
}

static double half(int64_t step, void *arg)
{
    (void)step, (void)arg;
    return 0.5;
}

static void schedules_of_stretches(void **state)
{
    (void)state;
    trek_schedule parts[2] = { trek_linear_lr(1, 0.5, 1, 4), trek_lambda_lr(1, half, NULL) };
    trek_schedule s = trek_sequential_lr(parts, (int64_t[]){ 2 }, 2), c = trek_chained_lr(parts, 2);
    assert_true(trek_schedule_lr(&s, 1) == 0.625 && trek_schedule_lr(&s, 2) == 0.5 && trek_schedule_lr(&c, 4) == 0.5);
    trek_schedule r = trek_cosine_restarts_lr(1, 2, 2, 0), w = trek_wsd_lr(1, 2, 3, 4, 0, TREK_ANNEAL_LINEAR);
    assert_true(trek_schedule_lr(&r, 2) == 1 && trek_schedule_lr(&r, 6) == 1);
    assert_true(trek_schedule_lr(&w, 0) == 0.5 && trek_schedule_lr(&w, 4) == 1 && trek_schedule_lr(&w, 9) == 0);
    assert_int_equal(trek_chained_lr(&s, 1).kind, TREK_SCHEDULE_NONE);
    trek_error_clear();
}

static void specs_are_checked(void **state)
{
    (void)state;
    const trek_optimizer_spec good[] = { trek_adagrad((trek_adagrad_opts){ 0 }), trek_adadelta((trek_adadelta_opts){ 0 }),
                                         trek_adamax((trek_adamax_opts){ 0 }), trek_nadam((trek_nadam_opts){ 0 }),
                                         trek_radam((trek_radam_opts){ 0 }) };
    for (size_t k = 0; k < sizeof good / sizeof *good; k++)
        assert_int_equal(trek_optimizer_spec_check(&good[k]), TREK_OK);
    trek_optimizer_spec bad = trek_adafactor((trek_adafactor_opts){ .d = 0.5 });
    assert_int_equal(trek_optimizer_spec_check(&bad), TREK_ERR_ARGUMENT);
    trek_error_clear();
    assert_int_equal(trek_lbfgs_set_lr(NULL, 1), TREK_ERR_ARGUMENT);
    trek_error_clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(averages_and_copies), cmocka_unit_test(groups_sam_and_reset),
                                        cmocka_unit_test(schedules_of_stretches), cmocka_unit_test(specs_are_checked) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
