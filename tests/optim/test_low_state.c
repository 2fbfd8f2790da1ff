/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers whose state is kept in bf16 (trek_with_state): against those with f32 state that is rounded here, plainly, between
 * steps, to the same bits; in slices; through files, in either dtype; in a training, against f32; and what is refused. */
#include "autograd/var_internal.h"
#include "nn/params.h"
#include "tests/optim/kept_state.h"
#include "tests/support/philox.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/tamed.h"

/* --- the rounding, plainly -------------------------------------------------------------------------------------- */

/* Down to a number of bf16, or to the next one away from 0: with the chance of what is lost. */
static float rounded(float x, uint32_t chance)
{
    union { float f; uint32_t bits; } u = { x };
    if (isnan(x) || isinf(x))
        return x;
    uint32_t lost = u.bits & 0xffff;
    u.bits -= lost;
    if (chance + lost > 0xffff)
        u.bits += 0x10000;
    return u.f;
}

/* State `s` of segment g, f32 on the CPU, as it is kept in bf16. */
static void round_plainly(float *values, const trek_arena_segment *g, int s)
{
    for (int64_t i = 0; i < g->count; i++) {
        uint64_t place = (uint64_t)(g->offset + i);
        uint32_t word = test_philox_word(0x6f7074696d737461u, place / 4, s == 2, (uint32_t)g->steps, (int)(place % 4));
        values[i] = rounded(values[i], s == 1 ? word >> 16 : word & 0xffff);
    }
}

/* The whole state of an optimizer that keeps it in f32: copies are rounded, and given back. */
static void round_state(trek_optimizer *optimizer, const bool *stepped)
{
    trek_state *saved = trek_optimizer_save(optimizer);
    assert_non_null(saved);
    for (int k = 0; k < optimizer->arena->n_segments; k++) {
        const trek_arena_segment *g = &optimizer->arena->segments[k];
        for (int s = 0; s < TREK_UPDATE_STATES && stepped[g->index]; s++) {
            char name[64];
            snprintf(name, sizeof name, "%s.%s", g->name,
                     optimizer->klass->states[s].name ? optimizer->klass->states[s].name : "");
            trek_tensor *tensor = trek_state_find(saved, name);
            if (tensor && trek_tensor_dtype(tensor) == TREK_F32)
                round_plainly(trek_tensor_data(tensor), g, s);
        }
    }
    assert_int_equal(trek_optimizer_load(optimizer, saved), TREK_OK);
    trek_state_free(&saved);
}

static void assert_same_state(trek_optimizer *low, trek_optimizer *wide, const char *what)
{
    trek_state *a = trek_optimizer_save(low), *b = trek_optimizer_save(wide);
    assert_int_equal(trek_state_count(a), trek_state_count(b));
    int of_16_bits = 0;
    for (int k = 0; k < trek_state_count(a); k++) {
        trek_tensor *x = trek_state_tensor(a, k), *y = trek_state_tensor(b, k);
        assert_string_equal(trek_state_name(a, k), trek_state_name(b, k));
        of_16_bits += trek_tensor_dtype(x) == TREK_BF16;
        trek_tensor *wider = trek_tensor_dtype(x) == TREK_BF16 ? trek_tensor_cast(x, TREK_F32) : trek_tensor_retain(x);
        if (!test_same_bits(wider, y))
            fail_msg("%s: %s", what, trek_state_name(a, k));
        trek_tensor_release(wider);
    }
    assert_true(of_16_bits > 0);
    trek_state_free(&a);
    trek_state_free(&b);
}

static void every_class_rounds_as_is_said(void **state)
{
    for (int c = 0; c < SPECS; c++) {
        trek_optimizer_spec spec = spec_at(c, false), odd = spec_at(c, true);
        model low = make(trek_with_state(spec, TREK_BF16), odd), wide = make(spec, odd);
        for (int k = 0; k < (test_short_on_device() ? 3 : 6); k++) {
            bool stepped[PARAMS];
            for (int p = 0; p < PARAMS; p++)
                stepped[p] = mask_of(k) >> p & 1;
            step(&low, k);
            step(&wide, k);
            assert_same(&low, &wide, spec.klass->name, k);
            round_state(wide.optimizer, stepped);
        }
        assert_same_state(low.optimizer, wide.optimizer, spec.klass->name);
        drop(&low);
        drop(&wide);
    }
}

/* A program's own class has it without knowing. */
static void own_classes_have_it(void **state)
{
    if (!test_on_cpu())
        skip();
    model low = make(trek_with_state(tamed(0.02, 0.9), TREK_BF16), tamed(0.01, 0)), wide = make(tamed(0.02, 0.9), tamed(0.01, 0));
    for (int k = 0; k < 5; k++) {
        bool stepped[PARAMS];
        for (int p = 0; p < PARAMS; p++)
            stepped[p] = mask_of(k) >> p & 1;
        step(&low, k);
        step(&wide, k);
        assert_same(&low, &wide, "tamed", k);
        round_state(wide.optimizer, stepped);
    }
    drop(&low);
    drop(&wide);
}

/* As threads and ranks cut it: at any element. */
static void slices_give_the_same_bits(void **state)
{
    trek_optimizer_spec spec = trek_with_state(spec_at(4, true), TREK_BF16);
    model a = make(spec, spec), b = make(spec, spec);
    uint32_t drawn = 0;
    for (int k = 0; k < 4; k++) {
        feed(&a, k, mask_of(k));
        feed(&b, k, mask_of(k));
        assert_int_equal(trek_optimizer_step_with(a.optimizer, &(trek_step_opts){ .factor = 0.5, .zero_grad = true }), TREK_OK);
        step_in_slices(&b, 0.5, &drawn);
        assert_same(&a, &b, "slices", k);
    }
    drop(&a);
    drop(&b);
}

/* --- by chance, and in proportion --------------------------------------------------------------------------------- */

/* An average that moves by less than half of bf16's distances gets where it should: to the nearest it would stay. */
static void averages_move(void **state)
{
    enum { N = 4096 };
    trek_tensor *zeros = trek_tensor_zeros(trek_dims(N), TREK_F32, test_device());
    trek_tensor *ones = trek_tensor_full(trek_dims(N), 1, TREK_F32, test_device());
    trek_var *var = trek_var_new(zeros, true), *grad = trek_var_new(ones, false);
    trek_params *params = trek_params_new();
    assert_int_equal(trek_params_add(params, "x", var), TREK_OK);
    trek_optimizer_spec spec = trek_with_state(trek_adam(&(trek_adam_opts){ .lr = 1e-3 }), TREK_BF16);
    trek_optimizer *optimizer = trek_optimizer_new(spec, params);
    enum { STEPS = 400 };
    for (int k = 0; k < STEPS; k++) {
        assert_int_equal(trek_var_set_grad(var, grad), TREK_OK);
        assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
    }
    trek_state *saved = trek_optimizer_save(optimizer);
    double *squares = test_read(trek_state_find(saved, "x.exp_avg_sq")), mean = 0, should = 1 - pow(0.999, STEPS);
    for (int i = 0; i < N; i++)
        mean += squares[i] / N;
    if (fabs(mean - should) > 2e-3 * should)
        fail_msg("the mean of squares is %g, not %g", mean, should);
    free(squares);
    trek_state_free(&saved);
    trek_optimizer_free(&optimizer);
    trek_params_free(&params);
    trek_var_release(var);
    trek_var_release(grad);
    trek_tensor_release(zeros);
    trek_tensor_release(ones);
}

/* --- saved and loaded ----------------------------------------------------------------------------------------------- */

/* Goes on to the same bits, after a file's way. */
static void it_is_resumed(void **state)
{
    for (int c = 0; c < SPECS; c += test_on_cpu() ? 1 : 4) {
        trek_optimizer_spec spec = trek_with_state(spec_at(c, false), TREK_BF16), odd = spec_at(c, true);
        model a = make(spec, odd), b = make(spec, odd);
        for (int k = 0; k < 3; k++)
            step(&a, k);
        step(&b, 7);
        trek_state *saved = trek_optimizer_save(a.optimizer);
        assert_non_null(saved);
        copy_values(&b, &a);
        assert_int_equal(trek_optimizer_load(b.optimizer, saved), TREK_OK);
        trek_state_free(&saved);
        for (int k = 3; k < 6; k++) {
            step(&a, k);
            step(&b, k);
            assert_same(&a, &b, spec.klass->name, k);
        }
        drop(&a);
        drop(&b);
    }
}

/* From f32 to the nearest of bf16, and back as it is. */
static void either_dtype_is_loaded_into_either(void **state)
{
    trek_optimizer_spec wide_spec = spec_at(2, false), low_spec = trek_with_state(wide_spec, TREK_BF16);
    model wide = make(wide_spec, wide_spec), low = make(low_spec, low_spec), again = make(wide_spec, wide_spec);
    for (int k = 0; k < 3; k++)
        step(&wide, k);
    trek_state *saved = trek_optimizer_save(wide.optimizer);
    copy_values(&low, &wide);
    copy_values(&again, &wide);
    assert_int_equal(trek_optimizer_load(low.optimizer, saved), TREK_OK);
    trek_state *of_low = trek_optimizer_save(low.optimizer);
    for (int k = 0; k < trek_state_count(saved); k++) {
        trek_tensor *from = trek_state_tensor(saved, k), *to = trek_state_tensor(of_low, k);
        bool is_low = strstr(trek_state_name(saved, k), ".exp_avg") && trek_state_name(saved, k)[0] != 'e';
        assert_int_equal(trek_tensor_dtype(to), is_low ? TREK_BF16 : trek_tensor_dtype(from));
        trek_tensor *nearest = trek_tensor_cast(from, trek_tensor_dtype(to));
        assert_true(test_same_bits(nearest, to));
        trek_tensor_release(nearest);
    }
    assert_int_equal(trek_optimizer_load(again.optimizer, of_low), TREK_OK);
    assert_same_state(low.optimizer, again.optimizer, "back");
    trek_state_free(&saved);
    trek_state_free(&of_low);
    drop(&wide);
    drop(&low);
    drop(&again);
}

/* --- a training ------------------------------------------------------------------------------------------------------- */

/* Long enough for Adam's squares to have to come down: rounded to the nearest, the loss ends at twice what it is with f32. */
static void it_learns_as_with_f32(void **state)
{
    if (!test_on_cpu())
        skip();
    const trek_optimizer_spec specs[] = {
        trek_adamw(&(trek_adam_opts){ .lr = 1e-2 }), trek_sgd(&(trek_sgd_opts){ .lr = 0.1, .momentum = 0.9 }),
        trek_rmsprop(&(trek_rmsprop_opts){ .lr = 3e-3 }), trek_adagrad(&(trek_adagrad_opts){ .lr = 0.05 }),
        trek_lion(&(trek_lion_opts){ .lr = 1e-3 }),
    };
    for (size_t k = 0; k < sizeof specs / sizeof *specs; k++) {
        int epochs = k == 0 && !test_short() ? 400 : 40;
        double wide = train(specs[k], epochs), low = train(trek_with_state(specs[k], TREK_BF16), epochs);
        if (getenv("TREK_TEST_PRINT"))
            printf("%s: %.5f, in bf16 %.5f\n", specs[k].klass->name, wide, low);
        if (!(fabs(low - wide) < 0.05 * wide))
            fail_msg("%s: the loss is %g, with f32 %g", specs[k].klass->name, low, wide);
    }
}

/* --- what is refused --------------------------------------------------------------------------------------------------- */

static void what_is_refused(void **state)
{
    const trek_dtype bad[] = { TREK_F64, TREK_F16, TREK_BOOL, TREK_I64, (trek_dtype)99 };
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        trek_optimizer_spec spec = trek_with_state(spec_at(2, false), bad[k]);
        FAILS(trek_optimizer_spec_check(&spec), TREK_ERR_ARGUMENT, "adam: state dtype: ");
    }
    const trek_optimizer_spec whole[] = {
        trek_lamb(&(trek_lamb_opts){ .lr = 0.1 }), trek_lars(&(trek_lars_opts){ .lr = 0.1 }),
        trek_adafactor(&(trek_adafactor_opts){ .lr = 0.1 }), trek_muon(&(trek_muon_opts){ .lr = 0.1 }),
    };
    for (size_t k = 0; k < sizeof whole / sizeof *whole; k++) {
        trek_optimizer_spec spec = trek_with_state(whole[k], TREK_BF16);
        FAILS(trek_optimizer_spec_check(&spec), TREK_ERR_UNSUPPORTED, spec.klass->name);
        spec = trek_with_state(whole[k], TREK_F32);
        assert_int_equal(trek_optimizer_spec_check(&spec), TREK_OK);
    }
}

static trek_optimizer_spec in_bf16(const char *name, trek_var *param, trek_optimizer_spec now, void *arg)
{
    return trek_with_state(now, TREK_BF16);
}

static trek_optimizer_spec slower(const char *name, trek_var *param, trek_optimizer_spec now, void *arg)
{
    now.options[0] *= name[0] == 'a' ? 0.5 : 1;
    return now;
}

/* The dtype is the optimizer's: groups that do not say have it, too. */
static void groups_share_it(void **state)
{
    trek_optimizer_spec spec = spec_at(3, false);
    model wide = make(spec, spec), low = make(trek_with_state(spec, TREK_BF16), spec);
    assert_int_equal(trek_optimizer_vectors(wide.optimizer, trek_with_state(spec, TREK_BF16)), -1);
    expect_error(TREK_ERR_ARGUMENT, "the optimizer keeps state in f32, but the group in bf16");
    FAILS(trek_optimizer_regroup(wide.optimizer, in_bf16, NULL), TREK_ERR_ARGUMENT, "the optimizer keeps state in f32");
    assert_int_equal(trek_optimizer_regroup(low.optimizer, in_bf16, NULL), TREK_OK);
    assert_int_equal(low.optimizer->n_groups, 2);
    assert_int_equal(trek_optimizer_regroup(low.optimizer, slower, NULL), TREK_OK);
    assert_int_equal(low.optimizer->n_groups, 3);
    step(&low, 0);
    trek_state *saved = trek_optimizer_save(low.optimizer);
    assert_int_equal(trek_tensor_dtype(trek_state_find(saved, "a.exp_avg")), TREK_BF16);
    assert_int_equal(trek_tensor_dtype(trek_state_find(saved, "b.weight.exp_avg")), TREK_BF16);
    assert_int_equal(trek_tensor_dtype(trek_state_find(saved, "c.master")), TREK_F32);
    assert_int_equal(trek_tensor_dtype(trek_state_find(saved, "e.exp_avg")), TREK_F64);
    trek_state_free(&saved);
    drop(&wide);
    drop(&low);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_class_rounds_as_is_said), cmocka_unit_test(own_classes_have_it),
        cmocka_unit_test(slices_give_the_same_bits), cmocka_unit_test(averages_move), cmocka_unit_test(it_is_resumed),
        cmocka_unit_test(either_dtype_is_loaded_into_either), cmocka_unit_test(it_learns_as_with_f32),
        cmocka_unit_test(what_is_refused), cmocka_unit_test(groups_share_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
