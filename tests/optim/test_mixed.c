/* SPDX-License-Identifier: Apache-2.0 */
/* Mixed precision in optimizers: 16-bit parameters with f32 masters, steps decided
 * in backend memory, the gradient scaler. */
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "nn/params.h"
#include "optim/clip.h"
#include "optim/optimizer_internal.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/tamed.h"

/* --- a bag of parameters and what they should be ------------------------------------------ */

enum { PARAMS = 5, MOST = 300, STEPS = 12 };
static const int64_t counts[PARAMS] = { 3, 130, 1, MOST, 70 };
static const char *const names[PARAMS] = { "a", "b", "c", "d", "e" };

typedef struct bag {
    trek_params *params;
    trek_var *vars[PARAMS];
    double values[PARAMS][MOST], m[PARAMS][MOST], v[PARAMS][MOST], w[PARAMS][MOST]; /* f64 */
    int steps[PARAMS];
} bag;

static trek_var *new_var(uint32_t stream, int64_t n, trek_dtype dtype, bool requires_grad)
{
    trek_tensor *wide = test_tensor(stream, trek_dims(n), 1), *tensor = trek_tensor_cast(wide, dtype);
    trek_var *var = trek_var_new(tensor, requires_grad);
    trek_tensor_release(wide);
    trek_tensor_release(tensor);
    return var;
}

static void read_into(const trek_tensor *tensor, double *values)
{
    assert_int_equal(trek_tensor_to_host(tensor, TREK_F64, values, (size_t)trek_tensor_numel(tensor) * sizeof *values), TREK_OK);
}

/* One dtype, or (COUNT) every other parameter f32. */
static void bag_begin(bag *b, trek_dtype dtype, trek_dtype other)
{
    memset(b, 0, sizeof *b);
    b->params = trek_params_new();
    for (int k = 0; k < PARAMS; k++) {
        b->vars[k] = new_var((uint32_t)k + 1, counts[k], k % 2 ? other : dtype, true);
        assert_int_equal(trek_params_add(b->params, names[k], b->vars[k]), TREK_OK);
        read_into(trek_var_data(b->vars[k]), b->values[k]);
    }
}

static void bag_end(bag *b)
{
    for (int k = 0; k < PARAMS; k++)
        trek_var_release(b->vars[k]);
    trek_params_free(&b->params);
    assert_int_equal(trek_error_status(), TREK_OK);
}

/* Gradients of step `step` for the parameters in mask, times scale; poison: one element is inf. */
static void feed(bag *b, int step, unsigned mask, double scale, bool poison)
{
    for (int k = 0; k < PARAMS; k++) {
        if (!(mask >> k & 1))
            continue;
        double grad[MOST];
        for (int64_t i = 0; i < counts[k]; i++)
            grad[i] = scale * test_number(100 + (uint32_t)(step * PARAMS + k), (uint32_t)i);
        if (poison && k == 3)
            grad[77] = INFINITY;
        trek_dtype dtype = trek_var_dtype(b->vars[k]) == TREK_F64 ? TREK_F64 : TREK_F32;
        trek_tensor *tensor = test_values(grad, trek_dims(counts[k]), dtype);
        trek_var *var = trek_var_new(tensor, false);
        assert_int_equal(trek_var_set_grad(b->vars[k], var), TREK_OK);
        trek_tensor_release(tensor);
        trek_var_release(var);
    }
}

static void plain_step(bag *b, int step, const trek_optimizer_spec *spec)
{
    for (int k = 0; k < PARAMS; k++) {
        int t = ++b->steps[k];
        for (int64_t i = 0; i < counts[k]; i++) {
            double g = test_number(100 + (uint32_t)(step * PARAMS + k), (uint32_t)i), *p = &b->values[k][i];
            double *m = &b->m[k][i], *v = &b->v[k][i];
            if (test_is_class(spec, "sgd")) {
                *m = t == 1 ? g : test_option(spec, "momentum") * *m + g;
                *p -= test_option(spec, "lr") * *m;
                continue;
            }
            if (test_is_class(spec, "rmsprop")) {
                test_plain_rmsprop(spec, g, p, m, v, &b->w[k][i]);
                continue;
            }
            if (test_is_class(spec, "tamed")) {
                tamed_plain(spec, t, g, p, m, v);
                continue;
            }
            const trek_adam_opts opts = test_adam_opts(spec), *o = &opts;
            if (test_is_class(spec, "adamw"))
                *p -= o->lr * o->weight_decay * *p;
            else
                g += o->weight_decay * *p;
            *m = o->beta1 * *m + (1 - o->beta1) * g;
            *v = o->beta2 * *v + (1 - o->beta2) * g * g;
            *p -= o->lr / (1 - pow(o->beta1, t)) * *m / (sqrt(*v) / sqrt(1 - pow(o->beta2, t)) + o->eps);
        }
    }
}

/* The last is no class of the library's, and not for GPUs. */
enum { RMSPROP = 3, CENTRED, TAMED, ALL_SPECS };
#define N_SPECS (test_on_cpu() ? ALL_SPECS : TAMED)

static trek_optimizer_spec spec_of(int kind)
{
    if (kind == TAMED) {
        trek_optimizer_spec spec = tamed(0.01, 0.9);
        assert_int_equal(trek_optimizer_resolve(&spec), TREK_OK); /* for plain_step */
        return spec;
    }
    if (kind == RMSPROP || kind == CENTRED)
        return trek_rmsprop(&(trek_rmsprop_opts){ .lr = 0.01, .alpha = 0.9, .eps = 1e-3, .momentum = kind == CENTRED ? 0.9 : 0,
                                                 .centered = kind == CENTRED });
    trek_adam_opts adam = { .lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1 };
    return kind == 0   ? trek_sgd(&(trek_sgd_opts){ .lr = 0.01, .momentum = 0.9 })
           : kind == 1 ? trek_adam(&adam)
                       : trek_adamw(&adam);
}

static double round_to(double value, trek_dtype dtype)
{
    trek_tensor *wide = trek_tensor_from_data(&value, trek_dims_none(), TREK_F64, trek_cpu(0)),
        *cast = trek_tensor_cast(wide, dtype);
    double rounded = trek_tensor_item(cast);
    trek_tensor_release(wide);
    trek_tensor_release(cast);
    return rounded;
}

/* The master of parameter k, or the parameter itself. */
static void read_master(trek_optimizer *optimizer, int k, const bag *b, double *values)
{
    const trek_arena *arena = optimizer->arena;
    const trek_arena_segment *segment = &arena->segments[trek_arena_find(arena, b->vars[k])];
    const trek_arena_part *part = &arena->parts[segment->part];
    trek_tensor *slot = trek_tensor_make_part(part->master, (size_t)segment->offset * trek_dtype_size(part->wide),
                                              trek_dims(counts[k]), part->wide);
    read_into(slot, values);
    trek_tensor_release(slot);
}

/* --- masters ------------------------------------------------------------------------------- */

static void masters_follow_f64_and_parameters_are_rounded_masters(void **state)
{
    static bag b;
    const trek_dtype low[] = { TREK_BF16, TREK_F16 };
    for (int c = 0; c < 4 * N_SPECS; c++) {
        trek_optimizer_spec spec = spec_of(c % N_SPECS);
        trek_dtype dtype = low[c / N_SPECS % 2];
        bag_begin(&b, dtype, c < 2 * N_SPECS ? dtype : TREK_F32);
        trek_optimizer *optimizer = trek_optimizer_new(spec, b.params);
        assert_non_null(optimizer);
        for (int step = 0; step < STEPS; step++) {
            feed(&b, step, 31, 1, false);
            plain_step(&b, step, &spec);
            assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
        }
        for (int k = 0; k < PARAMS; k++) {
            double have[MOST], master[MOST];
            read_into(trek_var_data(b.vars[k]), have);
            read_master(optimizer, k, &b, master);
            for (int64_t i = 0; i < counts[k]; i++) {
                assert_true(fabs(master[i] - b.values[k][i]) < 2e-6);
                if (i % 50 == 0)
                    assert_true(have[i] == round_to(master[i], trek_var_dtype(b.vars[k])));
            }
        }
        trek_optimizer_free(&optimizer);
        bag_end(&b);
    }
}

/* Steps of 1e-4 from 1, where bf16 numbers are 2^-8 and 2^-7 apart. */
static void many_tiny_steps_make_progress(void **state)
{
    trek_tensor *one = test_values((double[]){ 1, -1 }, trek_dims(2), TREK_BF16),
        *ones = test_values((double[]){ 1, 1 }, trek_dims(2), TREK_F32);
    trek_var *param = trek_var_new(one, true), *grad = trek_var_new(ones, false);
    trek_params *params = trek_params_new();
    trek_params_add(params, "p", param);
    trek_optimizer *optimizer = trek_optimizer_new(trek_sgd(&(trek_sgd_opts){ .lr = 1e-4 }), params);
    for (int k = 0; k < 1000; k++) {
        assert_int_equal(trek_var_set_grad(param, grad), TREK_OK);
        assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
    }
    double have[2];
    read_into(trek_var_data(param), have);
    assert_true(fabs(have[0] - 0.9) < 0.9 / 256 && fabs(have[1] + 1.1) < 1.1 / 128);
    trek_optimizer_free(&optimizer);
    trek_params_free(&params);
    trek_var_release(param);
    trek_var_release(grad);
    trek_tensor_release(one);
    trek_tensor_release(ones);
    assert_int_equal(trek_error_status(), TREK_OK);
}

/* 1000 passes of gradient 1: a bf16 sum stays at 256. */
static void gradients_of_bf16_are_summed_in_f32(void **state)
{
    trek_tensor *one = test_values((double[]){ 1, 2, 3 }, trek_dims(3), TREK_BF16);
    trek_var *param = trek_var_new(one, true);
    trek_params *params = trek_params_new();
    trek_params_add(params, "p", param);
    trek_optimizer *optimizer = trek_optimizer_new(trek_sgd(&(trek_sgd_opts){ .lr = 1e-3 }), params);
    for (int k = 0; k < 1000; k++) {
        trek_scope scope = trek_scope_begin();
        assert_int_equal(trek_backward(trek_sum(param, trek_dims_all(), false)), TREK_OK);
        trek_scope_end(scope);
    }
    assert_int_equal(trek_var_dtype(trek_var_grad(param)), TREK_F32);
    double have[3];
    read_into(trek_var_data(trek_var_grad(param)), have);
    assert_true(have[0] == 1000 && have[1] == 1000 && have[2] == 1000);
    assert_true(fabs(trek_clip_grad_norm(params, 1) / (1000 * sqrt(3)) - 1) < 1e-6);
    read_into(trek_var_data(trek_var_grad(param)), have);
    assert_true(fabs(have[1] * sqrt(3) - 1) < 1e-6);
    trek_optimizer_free(&optimizer);
    assert_int_equal(trek_clip_grad_value(params, 0.25), TREK_OK);
    read_into(trek_var_data(trek_var_grad(param)), have);
    assert_true(have[2] == 0.25);
    trek_params_free(&params);
    trek_var_release(param);
    trek_tensor_release(one);
    assert_int_equal(trek_error_status(), TREK_OK);
}

/* Gradients of 16-bit parameters that no optimizer has: 16-bit, and clipped all the same. */
static void free_gradients_are_clipped(void **state)
{
    trek_tensor *two = test_values((double[]){ 3, 4 }, trek_dims(2), TREK_BF16);
    trek_var *param = trek_var_new(two, true), *grad = trek_var_new(two, false);
    trek_params *params = trek_params_new();
    trek_params_add(params, "p", param);
    assert_int_equal(trek_var_set_grad(param, grad), TREK_OK);
    double have[2];
    assert_true(trek_clip_grad_norm(params, 1) == 5);
    read_into(trek_var_data(trek_var_grad(param)), have);
    assert_true(fabs(have[0] - 0.6) < 0.6 / 256 && fabs(have[1] - 0.8) < 0.8 / 256);
    assert_int_equal(trek_clip_grad_value(params, 0.5), TREK_OK);
    read_into(trek_var_data(trek_var_grad(param)), have);
    assert_true(have[0] == 0.5 && have[1] == 0.5);
    trek_params_free(&params);
    trek_var_release(param);
    trek_var_release(grad);
    trek_tensor_release(two);
    assert_int_equal(trek_error_status(), TREK_OK);
}

static void values_from_outside_reach_the_master(void **state)
{
    static bag b;
    bag_begin(&b, TREK_BF16, TREK_BF16);
    trek_optimizer *optimizer = trek_optimizer_new(trek_sgd(&(trek_sgd_opts){ .lr = 1.0 / 1024 }), b.params);
    double before[MOST], after[MOST], low[MOST];
    feed(&b, 0, 31, 1, false);
    assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
    read_master(optimizer, 3, &b, before);
    read_into(trek_var_data(b.vars[3]), low);
    for (int i = 0; i < MOST; i += 2)
        low[i] = i; /* every other one is new, the rest as it is */
    trek_tensor *wide = test_values(low, trek_dims(MOST), TREK_F64);
    assert_int_equal(trek_tensor_copy_from(trek_var_data(b.vars[3]), wide), TREK_OK);
    trek_tensor_release(wide);
    trek_optimizer_zero_grad(optimizer);
    feed(&b, 1, 1, 1, false); /* another parameter's step */
    assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
    read_master(optimizer, 3, &b, after);
    for (int i = 0; i < MOST; i++)
        assert_true(after[i] == (i % 2 ? before[i] : round_to(i, TREK_BF16)));
    trek_optimizer_free(&optimizer);
    bag_end(&b);
}

static void copy_params(bag *to, const bag *from)
{
    for (int k = 0; k < PARAMS; k++)
        assert_int_equal(trek_tensor_copy_from(trek_var_data(to->vars[k]), trek_var_data(from->vars[k])), TREK_OK);
}

static void expect_same_params(const bag *a, const bag *b)
{
    for (int k = 0; k < PARAMS; k++)
        assert_true(test_same_bits(trek_var_data(a->vars[k]), trek_var_data(b->vars[k])));
}

/* Parameters before the state or after it: the masters are those that were saved. */
static void state_resumes_bit_for_bit(void **state)
{
    static bag a, b;
    for (int c = 0; c < 4 * N_SPECS; c++) {
        trek_optimizer_spec spec = spec_of(c % N_SPECS);
        bool params_first = c / N_SPECS % 2, records = c >= 2 * N_SPECS;
        bag_begin(&a, TREK_BF16, TREK_F32);
        bag_begin(&b, TREK_BF16, TREK_F32);
        trek_optimizer *first = trek_optimizer_new(spec, a.params), *second = trek_optimizer_new(spec, b.params);
        if (records)
            assert_int_equal(trek_optimizer_use_device_update(first), TREK_OK);
        for (int step = 0; step < 5; step++) {
            feed(&a, step, step == 2 ? 7 : 31, 1, false);
            assert_int_equal(trek_optimizer_step_with(first, &(trek_step_opts){ .zero_grad = true }), TREK_OK);
        }
        trek_optimizer_entry *entries;
        int n, masters = 0;
        assert_int_equal(trek_optimizer_export(first, &entries, &n), TREK_OK);
        for (int k = 0; k < n; k++) {
            masters += strstr(entries[k].name, ".master") != NULL;
            if (strcmp(entries[k].name, "d.step") == 0)
                assert_true(trek_tensor_item(entries[k].tensor) == 4);
        }
        assert_int_equal(masters, 3);
        if (params_first)
            copy_params(&b, &a);
        assert_int_equal(trek_optimizer_import(second, entries, n), TREK_OK);
        if (!params_first)
            copy_params(&b, &a);
        trek_optimizer_export_free(entries, n);
        if (records)
            assert_int_equal(trek_optimizer_use_device_update(second), TREK_OK);
        for (int step = 5; step < STEPS; step++) {
            feed(&a, step, 31, 1, false);
            feed(&b, step, 31, 1, false);
            assert_int_equal(trek_optimizer_step(first), TREK_OK);
            assert_int_equal(trek_optimizer_step(second), TREK_OK);
        }
        expect_same_params(&a, &b);
        trek_optimizer_free(&first);
        trek_optimizer_free(&second);
        bag_end(&a);
        bag_end(&b);
    }
}

/* --- steps from records ------------------------------------------------------------------------ */

static trek_grad_scaler *small_scaler(void)
{
    return trek_grad_scaler_new(&(trek_grad_scaler_opts){ .init_scale = 1024, .growth_interval = 3 });
}

static void expect_same_decision(trek_optimizer *host, trek_optimizer *device, bool skipped)
{
    trek_update_state x, y;
    assert_int_equal(trek_optimizer_last_step(host, &x), TREK_OK);
    assert_int_equal(trek_optimizer_last_step(device, &y), TREK_OK);
    assert_true(x.skip == skipped && y.skip == skipped && x.taken == y.taken && x.skipped == y.skipped);
    assert_true(x.grad_scale == y.grad_scale);
    assert_true(x.norm == y.norm || (isnan(x.norm) && isnan(y.norm)));
}

static void expect_same_state(trek_optimizer *host, trek_optimizer *device)
{
    trek_optimizer *of[2] = { host, device };
    trek_optimizer_entry *entries[2];
    int n[2];
    for (int w = 0; w < 2; w++)
        assert_int_equal(trek_optimizer_export(of[w], &entries[w], &n[w]), TREK_OK);
    assert_int_equal(n[0], n[1]);
    for (int k = 0; k < n[0]; k++) {
        assert_string_equal(entries[0][k].name, entries[1][k].name);
        assert_true(test_same_bits(entries[0][k].tensor, entries[1][k].tensor));
    }
    for (int w = 0; w < 2; w++)
        trek_optimizer_export_free(entries[w], n[w]);
}

/* What the host decides and what is decided in backend memory: the same bits, with groups, frozen and unused
 * parameters, clipping, a scaler, and gradients that overflow. */
static void device_update_does_what_the_host_does(void **state)
{
    static bag a, b;
    for (int c = 0; c < 16 * N_SPECS; c++) {
        trek_optimizer_spec spec = spec_of(c % N_SPECS);
        bool scaled = c / N_SPECS % 2, clipped = c / (2 * N_SPECS) % 2, clamped = c / (4 * N_SPECS) % 2, low = c / (8 * N_SPECS);
        trek_optimizer *host, *device;
        bag *bags[] = { &a, &b };
        trek_optimizer **made[] = { &host, &device };
        trek_grad_scaler *scalers[] = { small_scaler(), small_scaler() };
        for (int w = 0; w < 2; w++) {
            bag_begin(bags[w], low ? TREK_F16 : TREK_F32, low ? TREK_BF16 : TREK_F64);
            *made[w] = trek_optimizer_new(spec, bags[w]->params);
            trek_params *two = trek_params_new();
            trek_params_add(two, "d", bags[w]->vars[3]);
            assert_int_equal(trek_optimizer_add_group(*made[w], two, spec_of(c % N_SPECS)), 1);
            assert_int_equal(trek_optimizer_set_group_lr(*made[w], 1, 0.05), TREK_OK);
            trek_params_free(&two);
        }
        assert_int_equal(trek_optimizer_use_device_update(device), TREK_OK);
        for (int step = 0; step < STEPS; step++) {
            bool poison = scaled && (step == 0 || step == 4 || step == 5);
            for (int w = 0; w < 2; w++) {
                feed(bags[w], step, step == 3 ? 9 : 31, scaled ? 1024 : 1, poison);
                trek_var_set_requires_grad(bags[w]->vars[2], step != 7);
                trek_step_opts opts = { .max_norm = clipped ? 3 : 0, .max_value = clamped ? 0.2 : 0,
                                        .scaler = scaled ? scalers[w] : NULL,
                                        .factor = step % 2 ? 0.375 : 0, .adapt = true, .zero_grad = true };
                assert_int_equal(trek_optimizer_step_with(*made[w], &opts), TREK_OK);
                assert_null(trek_var_grad(bags[w]->vars[0]));
            }
            expect_same_params(&a, &b);
            expect_same_decision(host, device, poison);
            assert_true(trek_grad_scaler_value(scalers[0]) == trek_grad_scaler_value(scalers[1]));
        }
        expect_same_state(host, device);
        for (int w = 0; w < 2; w++) {
            trek_optimizer_free(made[w]);
            trek_grad_scaler_free(&scalers[w]);
            bag_end(bags[w]);
        }
    }
}

static void device_update_grows_with_groups(void **state)
{
    static bag a, b;
    for (int c = 0; c < 4 * N_SPECS; c++) {
        trek_optimizer_spec spec = spec_of(c % N_SPECS);
        bool scaled = c / N_SPECS % 2, low = c / (2 * N_SPECS);
        bag *bags[] = { &a, &b };
        trek_optimizer *made[2];
        trek_grad_scaler *scalers[] = { small_scaler(), small_scaler() };
        for (int w = 0; w < 2; w++) {
            bag_begin(bags[w], low ? TREK_BF16 : TREK_F32, TREK_F32);
            made[w] = trek_optimizer_new(spec, bags[w]->params);
        }
        assert_int_equal(trek_optimizer_use_device_update(made[1]), TREK_OK);
        for (int step = 0; step < 40; step++) {
            for (int w = 0; w < 2; w++) {
                feed(bags[w], step, 31, scaled ? 1024 : 1, scaled && step % 3 == 2);
                trek_step_opts opts = { .scaler = scaled ? scalers[w] : NULL, .adapt = true, .zero_grad = step % 2 };
                assert_int_equal(trek_optimizer_step_with(made[w], &opts), TREK_OK);
                trek_params *of = trek_params_new();
                trek_params_add(of, "x", bags[w]->vars[step % PARAMS]);
                *trek_lr_of(&spec) = 0.001 * (step + 1);
                assert_int_equal(trek_optimizer_add_group(made[w], of, spec), step + 1);
                trek_params_free(&of);
            }
            expect_same_params(&a, &b);
            expect_same_decision(made[0], made[1], scaled && step % 3 == 2);
        }
        expect_same_state(made[0], made[1]);
        for (int w = 0; w < 2; w++) {
            trek_optimizer_free(&made[w]);
            trek_grad_scaler_free(&scalers[w]);
            bag_end(bags[w]);
        }
    }
}

/* Wherever an allocation fails, a step is done or not done, and the next one is as if nothing had been. */
static void steps_survive_failing_allocations(void **state)
{
    static bag a, b;
    for (int records = 0; records < 2; records++)
        for (int64_t fail = 1; fail < 60; fail++) {
            test_allocator_restart(0);
            bag_begin(&a, TREK_BF16, TREK_F32);
            bag_begin(&b, TREK_BF16, TREK_F32);
            trek_optimizer *expected = trek_optimizer_new(spec_of(2), a.params);
            test_allocator_restart(fail);
            trek_optimizer *optimizer = trek_optimizer_new(spec_of(2), b.params);
            test_allocator_restart(0);
            trek_error_clear();
            if (!optimizer)
                optimizer = trek_optimizer_new(spec_of(2), b.params);
            assert_non_null(optimizer);
            trek_grad_scaler *scalers[] = { small_scaler(), small_scaler() };
            for (int step = 0; step < 3; step++) {
                feed(&a, step, 31, 1, false);
                feed(&b, step, 31, 1, false);
                assert_int_equal(trek_optimizer_step_with(expected, &(trek_step_opts){ .scaler = scalers[0], .adapt = true }),
                                 TREK_OK);
                test_allocator_restart(fail);
                if (records && trek_optimizer_use_device_update(optimizer) != TREK_OK) {
                    test_allocator_restart(0);
                    trek_error_clear();
                }
                trek_step_opts opts = { .scaler = scalers[1], .adapt = true };
                if (trek_optimizer_step_with(optimizer, &opts) != TREK_OK) {
                    test_allocator_restart(0);
                    expect_error(TREK_ERR_MEMORY, "");
                    assert_int_equal(trek_optimizer_step_with(optimizer, &opts), TREK_OK);
                }
                test_allocator_restart(0);
            }
            expect_same_params(&a, &b);
            for (int w = 0; w < 2; w++)
                trek_grad_scaler_free(&scalers[w]);
            trek_optimizer_free(&expected);
            trek_optimizer_free(&optimizer);
            bag_end(&a);
            bag_end(&b);
        }
}

/* --- the scaler ------------------------------------------------------------------------------------ */

/* torch.amp.GradScaler("cpu", init_scale=8., growth_interval=3), gradients with an inf where `bad` says. */
static void scale_grows_and_shrinks_as_pytorchs(void **state)
{
    static bag b;
    const bool bad[] = { 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1 };
    const double scales[] = { 8, 8, 16, 8, 8, 8, 16, 16, 16, 32, 16, 8 };
    for (int records = 0; records < 2; records++) {
        bag_begin(&b, TREK_F32, TREK_F32);
        trek_optimizer *optimizer = trek_optimizer_new(spec_of(1), b.params);
        if (records)
            assert_int_equal(trek_optimizer_use_device_update(optimizer), TREK_OK);
        trek_grad_scaler *scaler = trek_grad_scaler_new(&(trek_grad_scaler_opts){ .init_scale = 8, .growth_interval = 3 });
        double before[MOST], after[MOST];
        int taken = 0;
        for (int step = 0; step < STEPS; step++) {
            read_into(trek_var_data(b.vars[0]), before);
            feed(&b, step, 31, 8, bad[step]);
            assert_int_equal(trek_grad_scaler_step(scaler, optimizer), TREK_OK);
            assert_int_equal(trek_grad_scaler_update(scaler), TREK_OK);
            read_into(trek_var_data(b.vars[0]), after);
            assert_true((memcmp(before, after, 3 * sizeof *after) == 0) == bad[step]);
            assert_true(trek_grad_scaler_value(scaler) == scales[step]);
            taken += !bad[step];
        }
        trek_optimizer_entry *entries;
        int n;
        assert_int_equal(trek_optimizer_export(optimizer, &entries, &n), TREK_OK);
        for (int k = 0; k < n; k++)
            if (strstr(entries[k].name, ".step"))
                assert_true(trek_tensor_item(entries[k].tensor) == taken);
        trek_optimizer_export_free(entries, n);
        trek_grad_scaler_state saved, other = { .scale = -1 };
        assert_int_equal(trek_grad_scaler_save(scaler, &saved), TREK_OK);
        assert_true(saved.scale == 8 && saved.growth_tracker == 0 && saved.growth_interval == 3);
        FAILS(trek_grad_scaler_load(scaler, &other), TREK_ERR_ARGUMENT, "scale");
        saved.scale = 4;
        saved.growth_tracker = 2;
        assert_int_equal(trek_grad_scaler_load(scaler, &saved), TREK_OK);
        assert_int_equal(trek_grad_scaler_update(scaler), TREK_OK);
        assert_true(trek_grad_scaler_value(scaler) == 8);
        trek_grad_scaler_free(&scaler);
        trek_optimizer_free(&optimizer);
        bag_end(&b);
    }
}

static void scaled_training_equals_plain_training(void **state)
{
    static bag a, b;
    bag_begin(&a, TREK_F32, TREK_F32);
    bag_begin(&b, TREK_F32, TREK_F32);
    trek_optimizer *plain = trek_optimizer_new(spec_of(2), a.params), *scaled = trek_optimizer_new(spec_of(2), b.params);
    trek_grad_scaler *scaler = trek_grad_scaler_new(NULL);
    bag *bags[] = { &a, &b };
    for (int step = 0; step < 6; step++) {
        for (int w = 0; w < 2; w++) {
            trek_scope scope = trek_scope_begin();
            trek_var *loss = NULL;
            for (int k = 0; k < PARAMS; k++) {
                trek_var *term = trek_sum(trek_square(bags[w]->vars[k]), trek_dims_all(), false);
                loss = loss ? trek_add(loss, term) : term;
            }
            if (w)
                loss = trek_grad_scaler_scale(scaler, loss);
            assert_int_equal(trek_backward(loss), TREK_OK);
            trek_scope_end(scope);
        }
        trek_clip_grad_norm(a.params, 2);
        if (step % 2 == 0) { /* powers of two: the same bits */
            assert_int_equal(trek_grad_scaler_unscale(scaler, scaled), TREK_OK);
            trek_clip_grad_norm(b.params, 2);
            FAILS(trek_grad_scaler_unscale(scaler, scaled), TREK_ERR_STATE, "");
            assert_int_equal(trek_grad_scaler_step(scaler, scaled), TREK_OK);
        } else {
            trek_clip_grad_norm(b.params, 2 * 65536.0);
            assert_int_equal(trek_grad_scaler_step(scaler, scaled), TREK_OK);
        }
        assert_int_equal(trek_grad_scaler_update(scaler), TREK_OK);
        assert_int_equal(trek_optimizer_step(plain), TREK_OK);
        trek_optimizer_zero_grad(plain);
        trek_optimizer_zero_grad(scaled);
    }
    for (int k = 0; k < PARAMS; k++) {
        double x[MOST], y[MOST];
        read_into(trek_var_data(a.vars[k]), x);
        read_into(trek_var_data(b.vars[k]), y);
        for (int64_t i = 0; i < counts[k]; i++)
            assert_true(fabs(x[i] - y[i]) <= 2e-7);
    }
    feed(&b, 0, 31, 1, true);
    assert_int_equal(trek_grad_scaler_unscale(scaler, scaled), TREK_OK);
    assert_int_equal(trek_grad_scaler_step(scaler, scaled), TREK_OK); /* skipped */
    assert_int_equal(trek_grad_scaler_update(scaler), TREK_OK);
    assert_true(trek_grad_scaler_value(scaler) == 32768);
    trek_grad_scaler_free(&scaler);
    trek_optimizer_free(&plain);
    trek_optimizer_free(&scaled);
    bag_end(&a);
    bag_end(&b);
}

static void bad_options_are_refused(void **state)
{
    const trek_grad_scaler_opts bad[] = { { .init_scale = -1 },     { .init_scale = NAN },    { .growth_factor = 1 },
                                          { .growth_factor = INFINITY },
                                          { .backoff_factor = 1.5 }, { .growth_interval = -1 } };
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        REFUSED(trek_grad_scaler_new(&bad[k]), TREK_ERR_ARGUMENT, "grad_scaler");
    }
    trek_grad_scaler *off = trek_grad_scaler_new(&(trek_grad_scaler_opts){ .no_scaling = true });
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(test_values((double[]){ 3 }, trek_dims_none(), TREK_F32));
    assert_ptr_equal(trek_grad_scaler_scale(off, x), x);
    assert_true(trek_grad_scaler_value(off) == 1);
    trek_scope_end(scope);
    trek_grad_scaler_free(&off);
}

int main(void)
{
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL);
    test_allocator_use();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masters_follow_f64_and_parameters_are_rounded_masters), cmocka_unit_test(many_tiny_steps_make_progress),
        cmocka_unit_test(gradients_of_bf16_are_summed_in_f32), cmocka_unit_test(free_gradients_are_clipped),
        cmocka_unit_test(values_from_outside_reach_the_master), cmocka_unit_test(state_resumes_bit_for_bit),
        cmocka_unit_test(device_update_does_what_the_host_does), cmocka_unit_test(device_update_grows_with_groups),
        cmocka_unit_test(steps_survive_failing_allocations), cmocka_unit_test(scale_grows_and_shrinks_as_pytorchs),
        cmocka_unit_test(scaled_training_equals_plain_training), cmocka_unit_test(bad_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
