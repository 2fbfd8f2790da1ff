/* SPDX-License-Identifier: Apache-2.0 */
/* What stands around optimizers: averages of weights, SAM, copies of modules, groups by what parameters are. */
#include "autograd/leaf.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "nn/module_values.h"
#include "nn/params.h"
#include "optim/averaged.h"
#include "optim/lbfgs.h"
#include "optim/optimizer_internal.h"
#include "optim/optimizers.h"
#include "optim/sam.h"
#include "optim/schedule.h"
#include "optim/schedules.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

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
    trek_tensor *full = trek_tensor_full(trek_tensor_shape(t), value, TREK_F32, trek_cpu(0));
    trek_tensor_copy_from(t, full);
    trek_tensor_release(full);
}

static void averages_and_copies(void **state)
{
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
    if (trek_var_ndim(param) == 2)
        now.options[0] *= 0.1;
    return now;
}

static void set_grads(trek_params *params, double value)
{
    for (int k = 0; k < trek_params_count(params); k++) {
        trek_var *var = trek_params_var(params, k);
        trek_tensor *t = trek_tensor_full(trek_var_shape(var), value, TREK_F32, trek_cpu(0));
        trek_var *grad = trek_var_new(t, false);
        trek_var_set_grad(var, grad);
        trek_var_release(grad);
        trek_tensor_release(t);
    }
}

static void groups_sam_and_reset(void **state)
{
    trek_module *m = trek_nn_linear(3, 2, trek_cpu(0));
    trek_params *params = trek_module_params(m);
    trek_optimizer *o = trek_optimizer_new(trek_sgd(&(trek_sgd_opts){ .lr = 0.5, .momentum = 0.9, .weight_decay = 0.1 }), params);
    assert_int_equal(trek_optimizer_vectors(o, trek_sgd(&(trek_sgd_opts){ .lr = 0.5, .momentum = 0.9 })), 1);
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
    FAILS(trek_sam_second_step(sam), TREK_ERR_STATE, "");
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

/* --- 16-bit models ------------------------------------------------------------------------------ */

enum { ELEMENTS = 6 };

/* Of f32 or f64 numbers, to the dtype and back. */
static double rounded(double value, trek_dtype dtype)
{
    trek_tensor *wide = trek_tensor_from_data(&value, trek_dims_none(), TREK_F64, trek_cpu(0)),
                *low = trek_tensor_cast(wide, dtype);
    double result = trek_tensor_item(low);
    trek_tensor_release(wide);
    trek_tensor_release(low);
    return result;
}

static trek_module *low_linear(trek_dtype dtype)
{
    trek_module *m = trek_nn_linear_with(&(trek_linear_opts){ .in = 3, .out = 2, .no_bias = true, .dtype = dtype,
                                                               .device = test_device() });
    trek_tensor *weight = trek_var_data(trek_module_find(m, "weight"));
    trek_tensor *values = test_values((double[]){ 1, -0.7, 0.3, 0.45, -1.2, 0.9 }, trek_dims(2, 3), TREK_F64);
    assert_int_equal(trek_tensor_copy_from(weight, values), TREK_OK);
    trek_tensor_release(values);
    return m;
}

static void read_weight(trek_module *m, double *values)
{
    assert_int_equal(trek_tensor_to_host(trek_var_data(trek_module_find(m, "weight")), TREK_F64, values,
                                         ELEMENTS * sizeof *values),
                     TREK_OK);
}

static void read_master(trek_optimizer *o, double *values)
{
    trek_optimizer_entry *entries;
    int n, found = 0;
    assert_int_equal(trek_optimizer_export(o, &entries, &n), TREK_OK);
    for (int k = 0; k < n; k++)
        if (strcmp(entries[k].name, "weight.master") == 0) {
            trek_tensor_to_host(entries[k].tensor, TREK_F64, values, ELEMENTS * sizeof *values);
            found++;
        }
    assert_int_equal(found, 1);
    trek_optimizer_export_free(entries, n);
}

/* The gradient of the sum of x^4 / 4, where the module is. */
static void cubes(trek_module *m, double *g)
{
    double x[ELEMENTS];
    read_weight(m, x);
    for (int i = 0; i < ELEMENTS; i++)
        g[i] = (double)(float)(x[i] * x[i] * x[i]);
    trek_tensor *t = test_values(g, trek_dims(2, 3), TREK_F32);
    trek_var *grad = trek_var_new(t, false);
    assert_int_equal(trek_var_set_grad(trek_module_find(m, "weight"), grad), TREK_OK);
    trek_var_release(grad);
    trek_tensor_release(t);
}

/* It climbs from the parameters and goes back to the masters, which move as f64 numbers would. */
static void sam_of_16_bit_parameters(void **state)
{
    static const trek_dtype low[] = { TREK_BF16, TREK_F16 };
    for (int d = 0; d < 2; d++) {
        trek_module *m = low_linear(low[d]);
        trek_params *params = trek_module_params(m);
        trek_optimizer *o = trek_optimizer_new(trek_sgd(&(trek_sgd_opts){ .lr = 1e-3, .momentum = 0.9 }), params);
        trek_sam *sam = trek_sam_new(o, &(trek_sam_opts){ .rho = 0.3 });
        double x[ELEMENTS], moving[ELEMENTS] = { 0 }, g[ELEMENTS], have[ELEMENTS];
        read_weight(m, x);
        for (int step = 0; step < 8; step++) {
            double climbed[ELEMENTS], norm = 0;
            cubes(m, g);
            for (int i = 0; i < ELEMENTS; i++)
                norm += g[i] * g[i];
            for (int i = 0; i < ELEMENTS; i++)
                climbed[i] = rounded(rounded(x[i], low[d]) + 0.3 * g[i] / sqrt(norm), low[d]);
            assert_int_equal(trek_sam_first_step(sam), TREK_OK);
            read_weight(m, have);
            for (int i = 0; i < ELEMENTS; i++)
                assert_true(have[i] == climbed[i]);
            cubes(m, g);
            assert_int_equal(trek_sam_second_step(sam), TREK_OK);
            for (int i = 0; i < ELEMENTS; i++)
                x[i] -= 1e-3 * (moving[i] = (step ? 0.9 * moving[i] : 0) + g[i]);
            read_master(o, have);
            for (int i = 0; i < ELEMENTS; i++)
                assert_true(fabs(have[i] - x[i]) < 1e-6);
        }
        trek_sam_free(&sam);
        trek_optimizer_free(&o);
        trek_params_free(&params);
        trek_module_free(&m);
    }
}

/* Averages are f32, so that steps far below a 16-bit number's distance to the next count; a swap and back leaves masters as
 * they are. L-BFGS refuses such parameters. */
static void averages_of_16_bit_parameters(void **state)
{
    static const trek_dtype low[] = { TREK_BF16, TREK_F16 };
    for (int d = 0; d < 2; d++) {
        trek_module *m = low_linear(low[d]);
        trek_params *params = trek_module_params(m);
        trek_optimizer *o = trek_optimizer_new(trek_sgd(&(trek_sgd_opts){ .lr = 0.02 }), params);
        trek_averaged *ema = trek_averaged_new(m, &(trek_averaged_opts){ .decay = 0.9 }), *swa = trek_averaged_new(m, NULL);
        double x[ELEMENTS], g[ELEMENTS], mean[ELEMENTS] = { 0 }, moving[ELEMENTS], have[ELEMENTS];
        read_weight(m, x);
        for (int step = 0; step < 12; step++) {
            cubes(m, g);
            assert_int_equal(trek_optimizer_step(o), TREK_OK);
            assert_int_equal(trek_averaged_update(ema), TREK_OK);
            assert_int_equal(trek_averaged_update(swa), TREK_OK);
            for (int i = 0; i < ELEMENTS; i++) {
                x[i] -= 0.02 * g[i];
                double now = rounded(x[i], low[d]);
                moving[i] = step ? 0.9 * moving[i] + 0.1 * now : now;
                mean[i] += now / 12;
            }
            if (step % 4 != 3)
                continue;
            trek_averaged *other = step == 11 ? swa : ema;
            assert_int_equal(trek_averaged_swap(other), TREK_OK);
            read_weight(m, have);
            for (int i = 0; i < ELEMENTS; i++)
                assert_true(fabs(have[i] - (step == 11 ? mean : moving)[i]) <= fabs(have[i]) * (d ? 0x1p-11 : 0x1p-8) + 1e-6);
            assert_int_equal(trek_averaged_swap(other), TREK_OK);
        }
        cubes(m, g);
        assert_int_equal(trek_optimizer_step(o), TREK_OK);
        read_master(o, have);
        for (int i = 0; i < ELEMENTS; i++)
            assert_true(fabs(have[i] - (x[i] - 0.02 * g[i])) < 1e-6);
        trek_state *kept = trek_averaged_state(ema);
        trek_tensor *average = trek_state_find(kept, "weight");
        assert_int_equal(trek_tensor_dtype(average), TREK_F32);
        trek_tensor_to_host(average, TREK_F64, have, sizeof have);
        for (int i = 0; i < ELEMENTS; i++)
            assert_true(fabs(have[i] - moving[i]) < 1e-6);
        trek_state_free(&kept);
        REFUSED(trek_lbfgs_new(params, NULL), TREK_ERR_DTYPE, "");
        trek_averaged_free(&ema);
        trek_averaged_free(&swa);
        trek_optimizer_free(&o);
        trek_params_free(&params);
        trek_module_free(&m);
    }
}

static double half(int64_t step, void *arg)
{
    return 0.5;
}

static void schedules_of_stretches(void **state)
{
    trek_schedule parts[2] = { trek_linear_lr(1, 0.5, 1, 4), trek_lambda_lr(1, half, NULL) };
    trek_schedule s = trek_sequential_lr(parts, (int64_t[]){ 2 }, 2), c = trek_chained_lr(parts, 2);
    assert_true(trek_schedule_lr(&s, 1) == 0.625 && trek_schedule_lr(&s, 2) == 0.5 && trek_schedule_lr(&c, 4) == 0.5);
    trek_schedule r = trek_cosine_restarts_lr(1, 2, 2, 0), w = trek_wsd_lr(1, 2, 3, 4, 0, TREK_ANNEAL_LINEAR);
    assert_true(trek_schedule_lr(&r, 2) == 1 && trek_schedule_lr(&r, 6) == 1);
    assert_true(trek_schedule_lr(&w, 0) == 0.5 && trek_schedule_lr(&w, 4) == 1 && trek_schedule_lr(&w, 9) == 0);
    assert_int_equal(trek_chained_lr(&s, 1).kind, TREK_SCHEDULE_KIND_NONE);
    trek_error_clear();
}

static void specs_are_checked(void **state)
{
    const trek_optimizer_spec good[] = { trek_adagrad(NULL), trek_adadelta(NULL),
                                         trek_adamax(NULL), trek_nadam(NULL),
                                         trek_radam(NULL) };
    for (size_t k = 0; k < sizeof good / sizeof *good; k++)
        assert_int_equal(trek_optimizer_spec_check(&good[k]), TREK_OK);
    trek_optimizer_spec bad = trek_adafactor(&(trek_adafactor_opts){ .d = 0.5 });
    FAILS(trek_optimizer_spec_check(&bad), TREK_ERR_ARGUMENT, "");
    FAILS(trek_lbfgs_set_lr(NULL, 1), TREK_ERR_ARGUMENT, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(averages_and_copies), cmocka_unit_test(groups_sam_and_reset),
                                        cmocka_unit_test(sam_of_16_bit_parameters),
                                        cmocka_unit_test(averages_of_16_bit_parameters),
                                        cmocka_unit_test(schedules_of_stretches), cmocka_unit_test(specs_are_checked) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
