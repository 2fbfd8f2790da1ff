/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers whose state is kept in 8 bits (trek_with_state): the code book against the paper's construction; every class, step
 * by step, against f32 state that is put into blocks and codes here, in f64, by search; slices and threads; steps that are
 * skipped and parameters that are left out; through files, from and to other dtypes; memory; a training, against f32; what is
 * refused. */
#include <float.h>

#include "autograd/var_internal.h"
#include "nn/params.h"
#include "optim/scaler.h"
#include "tensor/memory.h"
#include "tensor/pool.h"
#include "tensor/rank_context.h"
#include "tests/optim/coded_blocks.h"
#include "tests/optim/kept_state.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/tamed.h"

/* --- the book and blocks ------------------------------------------------------------------------------------------- */

static void the_book_is_the_papers(void **state)
{
    for (int with_sign = 0; with_sign < 2; with_sign++) {
        double book[256];
        uint8_t codes[256];
        float scales[1] = { 1 };
        make_book(with_sign, book);
        for (int code = 0; code < 256; code++)
            codes[code] = (uint8_t)code;
        trek_tensor *c = trek_tensor_from_data(codes, trek_dims(256), TREK_U8, trek_cpu(0));
        trek_tensor *s = trek_tensor_from_data(scales, trek_dims(1), TREK_F32, trek_cpu(0));
        trek_tensor *read = trek_codes_read(c, s, !with_sign);
        double *numbers = test_read(read);
        for (int code = 0; code < 256; code++) {
            double should = book[place_of(code, with_sign)];
            if (!(fabs(numbers[code] - should) <= 1e-6 * fabs(should)))
                fail_msg("code %d is %.9g, not %.9g", code, numbers[code], should);
        }
        free(numbers);
        trek_tensor_release(c);
        trek_tensor_release(s);
        trek_tensor_release(read);
    }
}

/* What it keeps in codes is the other's state in f32. */
static void give_state(trek_optimizer *to, trek_optimizer *from)
{
    trek_state *saved = trek_optimizer_save(from);
    assert_non_null(saved);
    assert_int_equal(trek_optimizer_load(to, saved), TREK_OK);
    trek_state_free(&saved);
}

/* Each step from the same numbers: parameters are the same to the last bit, and codes are those of what f32 keeps. */
static void compare_steps(trek_optimizer_spec spec, trek_optimizer_spec odd, int steps)
{
    model coded = make(trek_with_state(spec, TREK_U8), odd), wide = make(spec, odd);
    for (int k = 0; k < steps; k++) {
        give_state(wide.optimizer, coded.optimizer);
        step(&coded, k);
        step(&wide, k);
        assert_same(&coded, &wide, spec.klass->name, k);
        check_codes(coded.optimizer, wide.optimizer);
    }
    drop(&coded);
    drop(&wide);
}

static void every_class_codes_as_is_said(void **state)
{
    for (int c = 0; c < SPECS; c++)
        compare_steps(spec_at(c, false), spec_at(c, true), test_short_on_device() ? 3 : 6);
}

/* A class's options at random, where they are independent of each other. */
static trek_optimizer_spec drawn(int c, uint32_t stream)
{
    static const char *const flags[] = { "maximize", "amsgrad", "centered" };
    trek_optimizer_spec spec = spec_at(c, false);
    for (int k = 0; k < TREK_UPDATE_OPTIONS && spec.klass->options[k].name; k++) {
        const trek_optimizer_option *option = &spec.klass->options[k];
        double draw = 0.5 + 0.5 * (double)test_number(stream, (uint32_t)k); /* in [0, 1) */
        if (option->range == TREK_OPTION_RANGE_FRACTION)
            spec.options[k] = 0.02 + 0.97 * draw;
        if (strcmp(option->name, "weight_decay") == 0)
            spec.options[k] = draw < 0.5 ? TREK_ZERO : 0.3 * draw;
        for (int f = 0; f < 3; f++)
            if (strcmp(option->name, flags[f]) == 0)
                spec.options[k] = draw < 0.5;
    }
    return spec;
}

static void random_options(void **state)
{
    for (uint32_t round = 0; round < (test_short_on_device() ? 6 : 40); round++) {
        int c = (int)(round * 7 % SPECS);
        compare_steps(drawn(c, 2 * round), drawn(c, 2 * round + 1), 3);
    }
}

static void own_classes_have_it(void **state)
{
    if (!test_on_cpu())
        skip();
    compare_steps(tamed(0.02, 0.9), tamed(0.01, 0), 5);
}

/* --- the same bits -----------------------------------------------------------------------------------------------------------
 */

static void assert_same_state(trek_optimizer *a, trek_optimizer *b, const char *what)
{
    trek_state *x = trek_optimizer_save(a), *y = trek_optimizer_save(b);
    assert_int_equal(trek_state_count(x), trek_state_count(y));
    for (int k = 0; k < trek_state_count(x); k++)
        if (strcmp(trek_state_name(x, k), trek_state_name(y, k)) != 0 ||
            !test_same_bits(trek_state_tensor(x, k), trek_state_tensor(y, k)))
            fail_msg("%s: %s", what, trek_state_name(x, k));
    trek_state_free(&x);
    trek_state_free(&y);
}

/* As ranks cut it: at any element. */
static void slices_give_the_same_bits(void **state)
{
    uint32_t drawn = 0;
    for (int c = 0; c < SPECS; c += test_on_cpu() ? 1 : 4) {
        trek_optimizer_spec spec = trek_with_state(spec_at(c, true), TREK_U8);
        model a = make(spec, spec), b = make(spec, spec);
        for (int k = 0; k < 4; k++) {
            feed(&a, k, mask_of(k));
            feed(&b, k, mask_of(k));
            trek_step_opts opts = { .factor = 0.5, .zero_grad = true };
            assert_int_equal(trek_optimizer_step_with(a.optimizer, &opts), TREK_OK);
            step_in_slices(&b, 0.5, &drawn);
            assert_same(&a, &b, "slices", k);
            assert_same_state(a.optimizer, b.optimizer, "slices");
        }
        drop(&a);
        drop(&b);
    }
}

/* Takes the gradient over. */
static void give_numbers(trek_var *var, trek_tensor *values)
{
    trek_var *grad = trek_var_new(values, false);
    assert_int_equal(trek_var_set_grad(var, grad), TREK_OK);
    trek_var_release(grad);
    trek_tensor_release(values);
}

/* On the CPU as a device does it, with steps that are skipped: state and gradients are as without the step. */
static void records_give_the_same_bits(void **state)
{
    for (int c = 2; c < 6; c++) {
        trek_optimizer_spec spec = trek_with_state(spec_at(c, false), TREK_U8), odd = spec_at(c, true);
        model m[3] = { make(spec, odd), make(spec, odd), make(spec, odd) };
        assert_int_equal(trek_optimizer_use_device_update(m[1].optimizer), TREK_OK);
        trek_grad_scaler *scalers[2];
        for (int w = 0; w < 2; w++)
            scalers[w] = trek_grad_scaler_new(&(trek_grad_scaler_opts){ .init_scale = 8, .growth_interval = 3 });
        double scale = 8;
        for (int k = 0; k < 6; k++) {
            bool skips = k % 3 == 2;
            for (int w = 0; w < 3; w++) {
                if (w == 2 && skips)
                    continue;
                feed(&m[w], k, mask_of(k));
                if (skips)
                    give_numbers(m[w].vars[1], trek_tensor_full(trek_var_shape(m[w].vars[1]), (double)INFINITY, TREK_F32,
                                                                test_device()));
                trek_step_opts opts = { .zero_grad = true, .scaler = w < 2 ? scalers[w] : NULL, .adapt = true,
                                        .factor = w < 2 ? 1 : 1 / scale };
                assert_int_equal(trek_optimizer_step_with(m[w].optimizer, &opts), TREK_OK);
            }
            scale = trek_grad_scaler_value(scalers[0]);
            for (int w = 1; w < 3; w++) {
                assert_same(&m[0], &m[w], w == 1 ? "records" : "skipped", k);
                assert_same_state(m[0].optimizer, m[w].optimizer, w == 1 ? "records" : "skipped");
            }
        }
        for (int w = 0; w < 2; w++)
            trek_grad_scaler_free(&scalers[w]);
        for (int w = 0; w < 3; w++)
            drop(&m[w]);
    }
}

/* Parameters of one dtype, f32 gradients of ones' sizes that the caller fills. */
static trek_var *parameter(trek_params *params, const char *name, int64_t count)
{
    trek_tensor *values = test_tensor((uint32_t)count, trek_dims(count), 1);
    trek_var *var = trek_var_new(values, true);
    trek_tensor_release(values);
    assert_int_equal(trek_params_add(params, name, var), TREK_OK);
    return var;
}

static void give_grad(trek_var *var, uint32_t stream, double scale)
{
    give_numbers(var, test_tensor(stream, trek_dims(trek_var_numel(var)), scale));
}

/* Any number of threads. */
static void threads_give_the_same_bits(void **state)
{
    if (!test_on_cpu())
        skip();
    static const int64_t counts[2] = { 100001, 70000 };
    trek_state *saved[2];
    for (int w = 0; w < 2; w++) {
        trek_pool *pool = trek_pool_new(w ? 4 : 1, 0), *before = trek_rank_here.pool;
        trek_rank_here.pool = pool;
        trek_params *params = trek_params_new();
        trek_var *vars[2] = { parameter(params, "a", counts[0]), parameter(params, "b", counts[1]) };
        trek_optimizer *optimizer = trek_optimizer_new(trek_with_state(trek_adamw(&(trek_adam_opts){ .lr = 0.01 }), TREK_U8),
                                                       params);
        for (int k = 0; k < 4; k++) {
            for (int v = 0; v < 2; v++)
                give_grad(vars[v], (uint32_t)(2 * k + v), 1);
            assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
        }
        saved[w] = trek_optimizer_save(optimizer);
        for (int v = 0; v < 2; v++)
            assert_int_equal(trek_state_add(saved[w], v ? "b" : "a", trek_var_data(vars[v])), TREK_OK);
        trek_optimizer_free(&optimizer);
        trek_params_free(&params);
        for (int v = 0; v < 2; v++)
            trek_var_release(vars[v]);
        trek_rank_here.pool = before;
        trek_pool_free(&pool);
    }
    for (int k = 0; k < trek_state_count(saved[0]); k++)
        if (!test_same_bits(trek_state_tensor(saved[0], k), trek_state_tensor(saved[1], k)))
            fail_msg("%s", trek_state_name(saved[0], k));
    trek_state_free(&saved[0]);
    trek_state_free(&saved[1]);
}

/* --- numbers at the ends ------------------------------------------------------------------------------------------------------
 */

static void encode_one(const float *x, int n, bool positive, uint8_t *codes, float *scale, float *back)
{
    trek_tensor *values = trek_tensor_from_data(x, trek_dims(n), TREK_F32, trek_cpu(0)), *c, *s;
    assert_int_equal(trek_codes_of(values, positive, &c, &s), TREK_OK);
    trek_tensor *read = trek_codes_read(c, s, positive);
    memcpy(codes, trek_tensor_data(c), (size_t)n);
    memcpy(scale, trek_tensor_data(s), (size_t)((n + BLOCK - 1) / BLOCK) * sizeof(float));
    memcpy(back, trek_tensor_data(read), (size_t)n * sizeof(float));
    trek_tensor_release(values);
    trek_tensor_release(c);
    trek_tensor_release(s);
    trek_tensor_release(read);
}

static void extremes(void **state)
{
    uint8_t codes[600];
    float scales[3], back[600], x[600];
    for (int n = 0; n < 2; n++) { /* zeros of both signs */
        x[0] = n ? -0.0f : 0.0f;
        encode_one(x, 1, false, codes, scales, back);
        assert_true(codes[0] == 0 && scales[0] == 0 && back[0] == 0 && !signbit(back[0]));
    }
    /* denormal, as large as can be, and what is too small beside it; a scale of either sign is exact */
    const float ends[][4] = { { 1e-40f, -1e-41f, 0, 0 }, { FLT_MAX, -FLT_MAX, 1, -1 }, { -3, 2, 1e-9f, 0 },
                              { FLT_MIN, 0, 0, 0 } };
    const float want[4] = { 0, FLT_MAX, -3, FLT_MIN };
    for (int k = 0; k < 4; k++) {
        encode_one(ends[k], 4, false, codes, scales, back);
        assert_true(scales[0] == want[k] && back[0] == want[k]);
        assert_true(codes[3] == 0);
    }
    encode_one((float[]){ 1, 1e-30f, 0, 0 }, 4, true, codes, scales, back); /* not 0, which Adam would divide by */
    assert_true(codes[1] == 1 && back[1] > 0 && codes[2] == 0);
    encode_one((float[]){ 1, 1e-30f, 0, 0 }, 4, false, codes, scales, back);
    assert_true(codes[1] == 0);
    for (int kind = 0; kind < 3; kind++) { /* a block with one that is not finite, between two others */
        for (int i = 0; i < 600; i++)
            x[i] = 1 + (float)i;
        x[300] = kind == 0 ? NAN : kind == 1 ? INFINITY : -INFINITY;
        encode_one(x, 600, kind == 0, codes, scales, back);
        for (int i = 0; i < 600; i++)
            assert_int_equal(isnan(back[i]) != 0, i / BLOCK == 1);
    }
}

/* What was decoded is encoded as it was. */
static void codes_are_found_again(void **state)
{
    for (int round = 0; round < 200; round++) {
        float x[600], back[600], again[600], scales[3], scales_again[3];
        uint8_t codes[600], codes_again[600];
        bool positive = round % 2;
        int n = round % 5 ? 1 + round * 3 : 1;
        n = n < 600 ? n : 600;
        for (int i = 0; i < n; i++) {
            float draw = test_number((uint32_t)round, (uint32_t)i);
            x[i] = draw * powf(10, (float)(12 * fabsf(test_number((uint32_t)round + 1000, (uint32_t)i)) - 10));
            x[i] = positive ? fabsf(x[i]) : x[i];
        }
        encode_one(x, n, positive, codes, scales, back);
        encode_one(back, n, positive, codes_again, scales_again, again);
        assert_memory_equal(codes, codes_again, (size_t)n);
        assert_memory_equal(scales, scales_again, (size_t)((n + BLOCK - 1) / BLOCK) * sizeof(float));
        assert_memory_equal(back, again, (size_t)n * sizeof(float));
    }
}

/* --- saved and loaded ---------------------------------------------------------------------------------------------------------
 */

static void it_is_resumed(void **state)
{
    for (int c = 0; c < SPECS; c += test_on_cpu() ? 1 : 4) {
        trek_optimizer_spec spec = trek_with_state(spec_at(c, false), TREK_U8), odd = spec_at(c, true);
        model a = make(spec, odd), b = make(spec, odd);
        for (int k = 0; k < 3; k++)
            step(&a, k);
        step(&b, 7);
        copy_values(&b, &a);
        give_state(b.optimizer, a.optimizer);
        assert_same_state(a.optimizer, b.optimizer, spec.klass->name);
        for (int k = 3; k < 6; k++) {
            step(&a, k);
            step(&b, k);
            assert_same(&a, &b, spec.klass->name, k);
        }
        assert_same_state(a.optimizer, b.optimizer, spec.klass->name);
        drop(&a);
        drop(&b);
    }
}

/* f32 and bf16 into codes, as blocks are put into codes anywhere; codes into both; and f32 from codes is the same codes again. */
static void any_dtype_is_loaded_into_any(void **state)
{
    trek_optimizer_spec spec = spec_at(4, true);
    const trek_dtype others[2] = { TREK_F32, TREK_BF16 };
    for (int w = 0; w < 2; w++) {
        trek_optimizer_spec other_spec = trek_with_state(spec, others[w]), coded_spec = trek_with_state(spec, TREK_U8);
        model other = make(other_spec, other_spec), wide = make(spec, spec), coded = make(coded_spec, coded_spec),
              again = make(coded_spec, coded_spec);
        for (int k = 0; k < 3; k++)
            step(&other, k);
        for (int p = 0; p < PARAMS; p++) {
            copy_values(&wide, &other);
            copy_values(&coded, &other);
            copy_values(&again, &other);
        }
        give_state(wide.optimizer, other.optimizer);
        give_state(coded.optimizer, other.optimizer);
        check_codes(coded.optimizer, wide.optimizer);
        give_state(wide.optimizer, coded.optimizer);
        give_state(again.optimizer, wide.optimizer);
        assert_same_state(coded.optimizer, again.optimizer, "through f32");
        give_state(other.optimizer, coded.optimizer);
        trek_state *low = trek_optimizer_save(other.optimizer), *values = trek_optimizer_save(wide.optimizer);
        for (int k = 0; k < trek_state_count(low); k++) {
            trek_tensor *x = trek_state_tensor(low, k),
                *nearest = trek_tensor_cast(trek_state_tensor(values, k), trek_tensor_dtype(x));
            assert_true(test_same_bits(x, nearest));
            trek_tensor_release(nearest);
        }
        trek_state_free(&low);
        trek_state_free(&values);
        drop(&other);
        drop(&wide);
        drop(&coded);
        drop(&again);
    }
}

/* A copy of a saved state without one entry, or with another in its place. */
static trek_state *changed(const trek_state *saved, const char *name, trek_tensor *instead)
{
    trek_state *other = trek_state_new();
    for (int k = 0; k < trek_state_count(saved); k++) {
        bool own = strcmp(trek_state_name(saved, k), name) == 0;
        if (!own || instead)
            assert_int_equal(trek_state_add(other, trek_state_name(saved, k), own ? instead : trek_state_tensor(saved, k)),
                             TREK_OK);
    }
    return other;
}

static void what_does_not_fit_is_refused(void **state)
{
    trek_optimizer_spec spec = trek_with_state(spec_at(2, false), TREK_U8);
    model m = make(spec, spec), wide = make(spec_at(2, false), spec_at(2, false));
    step(&m, 0);
    trek_state *saved = trek_optimizer_save(m.optimizer);
    trek_tensor *two = trek_tensor_zeros(trek_dims(2), TREK_F32, trek_cpu(0));
    trek_tensor *below = trek_tensor_full(trek_dims(9), -1, TREK_F32, trek_cpu(0));
    trek_tensor *codes = trek_tensor_zeros(trek_dims(9), TREK_U8, trek_cpu(0)),
        *ints = trek_tensor_zeros(trek_dims(2100), TREK_I32, trek_cpu(0));
    trek_tensor *floats = trek_tensor_zeros(trek_dims(2100), TREK_F32, trek_cpu(0));
    const struct { const char *name; trek_tensor *instead; const char *says; } bad[] = {
        { "b.weight.exp_avg.scale", NULL, "'b.weight': a part" },
            { "b.weight.exp_avg", NULL, "'b.weight': a part" },
        { "b.weight.exp_avg", floats, "'b.weight': a part" }, /* whose scales are there */
        { "b.weight.exp_avg.scale", two, "'b.weight.exp_avg.scale': [2] f32; must be [9] of" },
        { "b.weight.exp_avg.scale", codes, "'b.weight.exp_avg.scale': [9] u8" },
        { "b.weight.exp_avg", ints, "'b.weight.exp_avg': [2100] i32" },
        { "b.weight.exp_avg_sq.scale", below, "'b.weight.exp_avg_sq.scale' has a number below 0" },
    };
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        trek_state *other = changed(saved, bad[k].name, bad[k].instead);
        FAILS(trek_optimizer_load(m.optimizer, other), TREK_ERR_FORMAT, bad[k].says);
        FAILS(trek_optimizer_load(wide.optimizer, other), TREK_ERR_FORMAT, bad[k].says);
        trek_state_free(&other);
    }
    trek_state *after = trek_optimizer_save(m.optimizer);
    for (int k = 0; k < trek_state_count(saved); k++)
        assert_true(test_same_bits(trek_state_tensor(saved, k), trek_state_tensor(after, k)));
    trek_state_free(&saved);
    trek_state_free(&after);
    trek_tensor *all[] = { two, below, codes, ints, floats };
    for (int k = 0; k < 5; k++)
        trek_tensor_release(all[k]);
    drop(&m);
    drop(&wide);
}

/* --- left out ------------------------------------------------------------------------------------------------------ */

/* Codes of a frozen parameter, and of one without a gradient, stay; also where groups are made anew, and after a reset. */
static void what_is_left_out_stays(void **state)
{
    trek_optimizer_spec spec = trek_with_state(spec_at(3, false), TREK_U8);
    model m = make(spec, spec);
    step(&m, 0);
    trek_state *before = trek_optimizer_save(m.optimizer);
    trek_var_set_requires_grad(m.vars[1], false);
    assert_true(trek_optimizer_vectors(m.optimizer, spec_at(3, true)) > 0);
    feed(&m, 2, 0x3d & ~4u);
    assert_int_equal(trek_optimizer_step(m.optimizer), TREK_OK);
    trek_state *after = trek_optimizer_save(m.optimizer);
    for (int k = 0; k < trek_state_count(before); k++) {
        const char *name = trek_state_name(before, k);
        bool stays = strncmp(name, "b.", 2) == 0;
        if (stays || strstr(name, ".exp_avg.scale"))
            assert_int_equal(test_same_bits(trek_state_tensor(before, k), trek_state_find(after, name)), stays);
    }
    trek_state_free(&before);
    trek_state_free(&after);
    assert_int_equal(trek_optimizer_reset(m.optimizer), TREK_OK);
    trek_state *none = trek_optimizer_save(m.optimizer);
    assert_int_equal(trek_state_count(none), 3); /* rates, and the masters of two parameters */
    trek_state_free(&none);
    model fresh = make(spec, spec);
    trek_var_set_requires_grad(fresh.vars[1], false);
    copy_values(&fresh, &m);
    assert_true(trek_optimizer_vectors(fresh.optimizer, spec_at(3, true)) > 0);
    step(&m, 4);
    step(&fresh, 4);
    for (int p = 0; p < 3; p++) /* masters of the others are not the same */
        assert_true(test_same_bits(trek_var_data(m.vars[p]), trek_var_data(fresh.vars[p])));
    before = trek_optimizer_save(m.optimizer), after = trek_optimizer_save(fresh.optimizer);
    for (int k = 0; k < trek_state_count(before); k++)
        if (!strstr(trek_state_name(before, k), ".master"))
            assert_true(test_same_bits(trek_state_tensor(before, k), trek_state_tensor(after, k)));
    trek_state_free(&before);
    trek_state_free(&after);
    drop(&m);
    drop(&fresh);
}

/* Neighbours whose slots do not end with them: rprop's sizes in the padding would be larger than theirs. One
 * without elements has no block. And what was NaN is nothing after a reset. */
static void blocks_are_of_parameters_alone(void **state)
{
    trek_params *params = trek_params_new();
    trek_var *vars[3] = { parameter(params, "a", 100), parameter(params, "b", 50), parameter(params, "none", 0) };
    trek_optimizer *optimizer = trek_optimizer_new(trek_with_state(trek_rprop(&(trek_rprop_opts){ .lr = 0.5 }), TREK_U8), params);
    for (int k = 0; k < 6; k++) {
        for (int v = 0; v < 3; v++) {
            double value = k == 3 ? (double)NAN : k % 2 ? -1 : 1;
            give_numbers(vars[v], trek_tensor_full(trek_var_shape(vars[v]), value, TREK_F32, test_device()));
        }
        assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
        if (k == 3)
            assert_int_equal(trek_optimizer_reset(optimizer), TREK_OK);
    }
    trek_state *saved = trek_optimizer_save(optimizer);
    for (int v = 0; v < 2; v++) {
        double *scale = test_read(trek_state_find(saved, v ? "b.step_size.scale" : "a.step_size.scale"));
        assert_true(scale[0] == 0.25);
        free(scale);
    }
    assert_int_equal(trek_tensor_numel(trek_state_find(saved, "none.step_size.scale")), 0);
    assert_int_equal(trek_optimizer_load(optimizer, saved), TREK_OK);
    trek_state_free(&saved);
    trek_optimizer_free(&optimizer);
    trek_params_free(&params);
    for (int v = 0; v < 3; v++)
        trek_var_release(vars[v]);
}

/* --- memory -------------------------------------------------------------------------------------------------------- */

static void memory_is_a_quarter(void **state)
{
    enum { N = 1 << 20 };
    const trek_dtype dtypes[3] = { TREK_F32, TREK_BF16, TREK_U8 };
    double bytes[3];
    for (int w = 0; w < 3; w++) {
        trek_params *params = trek_params_new();
        trek_var *var = parameter(params, "a", N);
        trek_optimizer *optimizer = trek_optimizer_new(trek_with_state(trek_sgd(&(trek_sgd_opts){ .lr = 0.1 }), dtypes[w]),
                                                       params);
        double without = (double)trek_memory_usage(test_device()).allocated;
        trek_optimizer_free(&optimizer);
        optimizer = trek_optimizer_new(trek_with_state(trek_adamw(&(trek_adam_opts){ .lr = 0.1 }), dtypes[w]), params);
        bytes[w] = (double)trek_memory_usage(test_device()).allocated - without;
        trek_optimizer_free(&optimizer);
        trek_params_free(&params);
        trek_var_release(var);
    }
    assert_true(bytes[0] >= 8.0 * N && bytes[0] < 8.05 * N);
    assert_true(bytes[1] >= 4.0 * N && bytes[1] < 4.05 * N);
    if (!(bytes[2] >= 2.0 * N && bytes[2] < 2.05 * N)) /* and 4 for 256 elements */
        fail_msg("%g bytes an element", bytes[2] / N);
}

/* --- a training ---------------------------------------------------------------------------------------------------- */

static void it_learns_as_with_f32(void **state)
{
    if (!test_on_cpu())
        skip();
    const struct { trek_optimizer_spec spec; double band; } rows[] = {
        { trek_adamw(&(trek_adam_opts){ .lr = 1e-2 }), 0.1 }, { trek_sgd(&(trek_sgd_opts){ .lr = 0.1, .momentum = 0.9 }), 0.05 },
        { trek_rmsprop(&(trek_rmsprop_opts){ .lr = 3e-3 }), 0.1 }, { trek_lion(&(trek_lion_opts){ .lr = 1e-3 }), 0.05 },
        { trek_adagrad(&(trek_adagrad_opts){ .lr = 0.05 }), 0.3 },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        int epochs = k == 0 && !test_short() ? 400 : 40;
        double wide = train(rows[k].spec, epochs), coded = train(trek_with_state(rows[k].spec, TREK_U8), epochs);
        if (getenv("TREK_TEST_PRINT"))
            printf("%s: %.5f, in 8 bits %.5f\n", rows[k].spec.klass->name, wide, coded);
        if (!(fabs(coded - wide) < rows[k].band * wide))
            fail_msg("%s: the loss is %g, with f32 %g", rows[k].spec.klass->name, coded, wide);
    }
}

/* --- what is refused ----------------------------------------------------------------------------------------------- */

static void what_is_refused(void **state)
{
    const trek_optimizer_spec whole[] = {
        trek_lamb(&(trek_lamb_opts){ .lr = 0.1 }), trek_lars(&(trek_lars_opts){ .lr = 0.1 }),
        trek_adafactor(&(trek_adafactor_opts){ .lr = 0.1 }), trek_muon(&(trek_muon_opts){ .lr = 0.1 }),
    };
    for (size_t k = 0; k < sizeof whole / sizeof *whole; k++) {
        trek_optimizer_spec spec = trek_with_state(whole[k], TREK_U8);
        FAILS(trek_optimizer_spec_check(&spec), TREK_ERR_UNSUPPORTED, spec.klass->name);
    }
    trek_optimizer_class klass = tamed_class;
    klass.states[0].name = "scale"; /* "x.scale" would be the scales of x */
    trek_optimizer_spec spec = { .klass = &klass };
    FAILS(trek_optimizer_spec_check(&spec), TREK_ERR_ARGUMENT, "state \"scale\": this name is reserved");
    spec = spec_at(3, false);
    model low = make(trek_with_state(spec, TREK_BF16), spec);
    assert_int_equal(trek_optimizer_vectors(low.optimizer, trek_with_state(spec, TREK_U8)), -1);
    expect_error(TREK_ERR_ARGUMENT, "the optimizer keeps state in bf16, but the group in u8");
    drop(&low);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_book_is_the_papers), cmocka_unit_test(every_class_codes_as_is_said),
        cmocka_unit_test(random_options), cmocka_unit_test(own_classes_have_it), cmocka_unit_test(slices_give_the_same_bits),
        cmocka_unit_test(records_give_the_same_bits), cmocka_unit_test(threads_give_the_same_bits), cmocka_unit_test(extremes),
        cmocka_unit_test(codes_are_found_again), cmocka_unit_test(it_is_resumed), cmocka_unit_test(any_dtype_is_loaded_into_any),
        cmocka_unit_test(what_does_not_fit_is_refused), cmocka_unit_test(what_is_left_out_stays),
        cmocka_unit_test(blocks_are_of_parameters_alone), cmocka_unit_test(memory_is_a_quarter),
        cmocka_unit_test(it_learns_as_with_f32), cmocka_unit_test(what_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
