/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers beyond SGD and Adam: values that PyTorch's have, or their papers' formulas in f64, and state in mid-run. */
#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "nn/params.h"
#include "optim/lbfgs.h"
#include "optim/optimizer_internal.h"
#include "optim/optimizers.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

static const double start[6] = { 1, -2, 0.5, 3, -0.25, 1.5 };
static const double grads[3][6] = { { 0.5, -1, 0.25, 2, -1, 0.125 }, { 0.25, 2, -0.5, 0.75, 1, -0.375 },
                                    { -1, 0.125, 1, -0.25, 0.5, 0.5 } };

static trek_var *matrix(void)
{
    trek_tensor *values = trek_tensor_from_data(start, trek_dims(3, 2), TREK_F64, test_device());
    trek_var *var = trek_var_new(values, true);
    trek_tensor_release(values);
    return var;
}

static void step(trek_optimizer *optimizer, trek_var *var, int k)
{
    trek_tensor *values = trek_tensor_from_data(grads[k % 3], trek_dims(3, 2), TREK_F64, test_device());
    trek_var *grad = trek_var_new(values, false);
    assert_int_equal(trek_var_set_grad(var, grad), TREK_OK);
    assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
    trek_var_release(grad);
    trek_tensor_release(values);
}

typedef struct expected {
    trek_optimizer_spec spec;
    double values[6];
} expected;

/* Six steps; after three, state goes to another optimizer, which goes on with the same bits. */
static void check(const expected *e)
{
    trek_var *vars[2] = { matrix(), matrix() };
    trek_optimizer *made[2];
    for (int k = 0; k < 2; k++) {
        trek_params *params = trek_params_new();
        trek_params_add(params, "p", vars[k]);
        made[k] = trek_optimizer_new(e->spec, params);
        assert_non_null(made[k]);
        trek_params_free(&params);
    }
    for (int k = 0; k < 3; k++)
        step(made[0], vars[0], k);
    trek_optimizer_entry *entries;
    int n;
    assert_int_equal(trek_optimizer_export(made[0], &entries, &n), TREK_OK);
    trek_tensor_copy_from(trek_var_data(vars[1]), trek_var_data(vars[0]));
    assert_int_equal(trek_optimizer_import(made[1], entries, n), TREK_OK);
    trek_optimizer_export_free(entries, n);
    double have[2][6];
    for (int o = 0; o < 2; o++) {
        for (int k = 3; k < 6; k++)
            step(made[o], vars[o], k);
        trek_tensor_to_host(trek_var_data(vars[o]), TREK_F64, have[o], sizeof have[o]);
    }
    for (int i = 0; i < 6; i++)
        if (!(fabs(have[0][i] - e->values[i]) < 1e-12) || have[0][i] != have[1][i])
            fail_msg("%s[%d]: %.17g, loaded %.17g, not %.17g", e->spec.klass->name, i, have[0][i], have[1][i], e->values[i]);
    for (int o = 0; o < 2; o++) {
        trek_optimizer_free(&made[o]);
        trek_var_release(vars[o]);
    }
}

static void six_steps_and_state_in_mid_run(void **state)
{
    const expected all[] = {
        { trek_lamb(&(trek_lamb_opts){ .lr = 0.1, .weight_decay = 0.1 }),
          { 0.59037349209786472, -1.9413454903316376, -0.025333444142433992, 1.4967255512792099, -0.2486744819376025,
            1.0313236040500553 } },
        { trek_lars(&(trek_lars_opts){ .lr = 0.5, .weight_decay = 0.1, .trust_coefficient = 0.1, .maximize = true }),
          { 0.76059183501590055, -1.3054806676546913, 0.79939331599321095, 3.7939270132647822, -0.057107793262582723,
            1.422096898551729 } },
        { trek_adafactor(&(trek_adafactor_opts){ .lr = 0.1, .weight_decay = 0.1 }),
          { 0.97321480211769018, -2.0313623740520663, 0.20682270933719693, 2.3760153782686508, -0.47439582983965783,
            1.283702225846147 } },
        { trek_muon(&(trek_muon_opts){ .lr = 0.1 }),
          { 0.8904632791187308, -2.070423220112334, 0.36077826109317429, 2.3816553541191308, -0.31237662100192926,
            1.3756803434650928 } },
        { trek_muon(&(trek_muon_opts){ .lr = 0.1, .adam = true }),
          { 0.77290473476416421, -1.9200229276382199, 0.26887244733522198, 2.3745988795356663, -0.19519098086033762,
            1.2842211209459804 } },
        { trek_lion(&(trek_lion_opts){ .lr = 0.1, .weight_decay = 0.1 }),
          { 0.75034144341099995, -2.0819407948120001, 0.27566077071049988, 2.4333017422129992, -0.43435053336024998,
            1.2171409201114998 } },
        { trek_rprop(&(trek_rprop_opts){ .lr = 0.1, .step_min = 0.02, .step_max = 0.11 }),
          { 0.669, -2.005, 0.26, 2.669, -0.255, 1.26 } },
        { trek_asgd(&(trek_asgd_opts){ .lr = 0.1, .lambd = 0.1, .t0 = 2, .weight_decay = 0.1 }),
          { 0.9380493746995499, -1.9885806903149204, 0.3019264556872392, 2.2012387986246105, -0.3189231040498316,
            1.2841031849522995 } },
    };
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        check(&all[k]);
}

static void rprop_refuses_steps_that_cannot_be(void **state)
{
    const trek_rprop_opts bad[] = { { .eta_minus = 1 }, { .eta_plus = 0.5 }, { .step_min = 2, .step_max = 1 } };
    static const char *const named[] = { "eta_minus", "eta_plus", "step_min" };
    for (int k = 0; k < 3; k++) {
        trek_optimizer_spec spec = trek_rprop(&bad[k]);
        FAILS(trek_optimizer_spec_check(&spec), TREK_ERR_ARGUMENT, named[k]);
    }
}

/* --- whole parameters on a device, against the CPU -------------------------------------------------------- */

enum { PARAMS = 8, STEPS = 5 };

typedef struct place {
    trek_var *vars[PARAMS];
    trek_params *params;
    trek_optimizer *optimizer;
    trek_grad_scaler *scaler;
} place;

static trek_var *var_on(trek_device device, uint32_t stream, trek_shape shape, trek_dtype dtype, bool poison)
{
    double values[8192];
    int64_t n = trek_shape_numel(shape);
    for (int64_t i = 0; i < n; i++)
        values[i] = poison && i == 3 ? (double)INFINITY : test_number(stream, (uint32_t)i);
    trek_tensor *wide = trek_tensor_from_data(values, shape, TREK_F64, device), *tensor = trek_tensor_cast(wide, dtype);
    trek_var *var = trek_var_new(tensor, true);
    trek_tensor_release(wide);
    trek_tensor_release(tensor);
    return var;
}

/* Vectors and matrices of all kinds: short, with rows or columns beyond what a thread adds up, several in one parameter, none. */
static trek_shape shape_at(int k)
{
    const trek_shape shapes[PARAMS] = { trek_dims(3), trek_dims(130, 7), trek_dims(40, 70), trek_dims(2, 3, 5, 4),
                                        trek_dims(2100),
                                        trek_dims(300, 3), trek_dims(4, 0), trek_dims_none() };
    return shapes[k];
}

static void place_params(place *p, trek_device device, trek_dtype dtype)
{
    p->params = trek_params_new();
    for (int k = 0; k < PARAMS; k++) {
        char name[] = { (char)('a' + k), 0 };
        p->vars[k] = var_on(device, (uint32_t)k + 1, shape_at(k), k == 5 ? TREK_F64 : dtype, false);
        assert_int_equal(trek_params_add(p->params, name, p->vars[k]), TREK_OK);
    }
}

/* Parameters beside the first two have a group of their own; Muon's that are no matrices go by AdamW. */
static void place_begin(place *p, trek_device device, trek_dtype dtype, trek_optimizer_spec spec, trek_optimizer_spec others)
{
    trek_params *second = trek_params_new();
    bool muon = strcmp(spec.klass->name, "muon") == 0;
    place_params(p, device, dtype);
    for (int k = 0; k < PARAMS; k++)
        if (muon ? shape_at(k).ndim != 2 : k > 1)
            trek_params_add(second, trek_params_name(p->params, k), p->vars[k]);
    p->optimizer = trek_optimizer_new(spec, p->params);
    assert_non_null(p->optimizer);
    assert_int_equal(trek_optimizer_add_group(p->optimizer, second, others), 1);
    p->scaler = trek_grad_scaler_new(&(trek_grad_scaler_opts){ .init_scale = 64 });
    trek_params_free(&second);
}

static void place_end(place *p)
{
    trek_optimizer_free(&p->optimizer);
    trek_params_free(&p->params);
    trek_grad_scaler_free(&p->scaler);
    for (int k = 0; k < PARAMS; k++)
        trek_var_release(p->vars[k]);
}

static void place_step(place *p, int step, const trek_step_opts *opts)
{
    for (int k = 0; k < PARAMS; k++) {
        if ((step + k) % 4 == 3) /* unused in this step */
            continue;
        trek_dtype dtype = trek_var_dtype(p->vars[k]) == TREK_F64 ? TREK_F64 : TREK_F32;
        trek_var *grad = var_on(trek_var_device(p->vars[k]), 100 + (uint32_t)(step * PARAMS + k), shape_at(k), dtype,
                                step == 2 && opts->scaler && k == 2);
        assert_int_equal(trek_var_set_grad(p->vars[k], grad), TREK_OK);
        trek_var_release(grad);
    }
    trek_step_opts own = *opts;
    own.scaler = opts->scaler ? p->scaler : NULL;
    assert_int_equal(trek_optimizer_step_with(p->optimizer, &own), TREK_OK);
    if (!opts->zero_grad)
        assert_int_equal(trek_optimizer_zero_grad(p->optimizer), TREK_OK);
}

static void expect_near(const char *class_name, const char *name, const trek_tensor *have, const trek_tensor *want,
                        double allowed)
{
    double *a = test_read(have), *b = test_read(want);
    for (int64_t i = 0; i < trek_tensor_numel(want); i++)
        if (!(fabs(a[i] - b[i]) <= allowed * (1 + fabs(b[i]))))
            fail_msg("%s: %s[%d] is %.17g, on the CPU %.17g", class_name, name, (int)i, a[i], b[i]);
    free(a);
    free(b);
}

/* Parameters, and all that checkpoints have; state goes from one device to the other. */
static void expect_places_near(place *have, place *want, double allowed)
{
    const char *klass = want->optimizer->klass->name;
    trek_optimizer_entry *a, *b;
    int n, m;
    assert_int_equal(trek_optimizer_export(have->optimizer, &a, &n), TREK_OK);
    assert_int_equal(trek_optimizer_export(want->optimizer, &b, &m), TREK_OK);
    assert_int_equal(n, m);
    for (int k = 0; k < n; k++) {
        assert_string_equal(a[k].name, b[k].name);
        bool wide = trek_tensor_dtype(b[k].tensor) == TREK_F64;
        expect_near(klass, a[k].name, a[k].tensor, b[k].tensor, wide ? 1e-11 : allowed);
    }
    for (int k = 0; k < PARAMS; k++) {
        trek_dtype dtype = trek_var_dtype(want->vars[k]);
        double low = dtype == TREK_BF16 ? 0x1p-7 : dtype == TREK_F16 ? 0x1p-10 : dtype == TREK_F64 ? 1e-11 : allowed;
        expect_near(klass, trek_params_name(want->params, k), trek_var_data(have->vars[k]), trek_var_data(want->vars[k]), low);
    }
    trek_optimizer_export_free(a, n);
    trek_optimizer_export_free(b, m);
}

static void compare_places(trek_optimizer_spec spec, trek_optimizer_spec others, trek_dtype dtype, int c)
{
    place here, there;
    place_begin(&here, trek_cpu(0), dtype, spec, others);
    place_begin(&there, test_device(), dtype, spec, others);
    trek_step_opts opts = { .max_norm = c & 1 ? 5 : 0, .max_value = c & 2 ? 0.3 : 0, .adapt = true, .zero_grad = c != 3,
                            .factor = c == 2 ? 0.5 : 0 };
    trek_grad_scaler *scaled = here.scaler;
    opts.scaler = c == 1 ? scaled : NULL;
    for (int step = 0; step < STEPS; step++) {
        trek_var_set_requires_grad(here.vars[0], step != 1);
        trek_var_set_requires_grad(there.vars[0], step != 1);
        if (step == 3) {
            assert_int_equal(trek_optimizer_set_group_lr(here.optimizer, 1, 0.02), TREK_OK);
            assert_int_equal(trek_optimizer_set_group_lr(there.optimizer, 1, 0.02), TREK_OK);
        }
        place_step(&here, step, &opts);
        place_step(&there, step, &opts);
        for (int k = 0; k < PARAMS; k++)
            assert_true((trek_var_grad(here.vars[k]) == NULL) == (trek_var_grad(there.vars[k]) == NULL));
        expect_places_near(&there, &here, dtype == TREK_F64 ? 1e-11 : 2e-5);
    }
    place_end(&here);
    place_end(&there);
}

/* With groups, limits of norms and elements, a scaled loss that overflows once, unused and frozen parameters. */
static void devices_do_what_the_cpu_does(void **state)
{
    if (test_on_cpu())
        skip();
    const trek_optimizer_spec specs[][2] = {
        { trek_lamb(&(trek_lamb_opts){ .lr = 0.01, .weight_decay = 0.1 }), trek_lamb(&(trek_lamb_opts){ .lr = 0.05 }) },
        { trek_lars(&(trek_lars_opts){ .lr = 0.5, .weight_decay = 0.1, .trust_coefficient = 0.1 }),
          trek_lars(&(trek_lars_opts){ .lr = 0.01, .momentum = TREK_ZERO, .trust_coefficient = TREK_ZERO, .maximize = true }) },
        { trek_adafactor(&(trek_adafactor_opts){ .lr = 0.1, .weight_decay = 0.1 }),
          trek_adafactor(&(trek_adafactor_opts){ .lr = 0.2, .eps1 = 1e-3, .d = 2, .maximize = true }) },
        { trek_muon(&(trek_muon_opts){ .lr = 0.05, .adjust_lr = TREK_MUON_ADJUST_MATCH_RMS_ADAMW }),
          trek_muon(&(trek_muon_opts){ .lr = 0.01, .adam = true }) },
    };
    static const trek_dtype dtypes[] = { TREK_F32, TREK_F64, TREK_BF16, TREK_F16 };
    for (size_t k = 0; k < sizeof specs / sizeof *specs; k++)
        for (int d = 0; d < 4; d++)
            for (int c = 0; c < 4; c++)
                compare_places(specs[k][0], specs[k][1], dtypes[d], c);
}

/* What a device has made goes on on the CPU, and the other way round. */
static void state_goes_from_device_to_device(void **state)
{
    if (test_on_cpu())
        skip();
    const trek_optimizer_spec specs[] = { trek_lamb(&(trek_lamb_opts){ .lr = 0.01 }), trek_lars(&(trek_lars_opts){ .lr = 0.1 }),
                                          trek_adafactor(&(trek_adafactor_opts){ .lr = 0.1 }) };
    for (size_t k = 0; k < sizeof specs / sizeof *specs; k++) {
        place at[2], next[2];
        for (int w = 0; w < 2; w++) {
            place_begin(&at[w], w ? test_device() : trek_cpu(0), TREK_BF16, specs[k], specs[k]);
            place_begin(&next[w], w ? trek_cpu(0) : test_device(), TREK_BF16, specs[k], specs[k]);
            for (int step = 0; step < 3; step++)
                place_step(&at[w], step, &(trek_step_opts){ .zero_grad = true });
            trek_optimizer_entry *entries;
            int n;
            assert_int_equal(trek_optimizer_export(at[w].optimizer, &entries, &n), TREK_OK);
            for (int e = 0; e < n; e++) { /* as a checkpoint brings it: to where the parameter is */
                trek_tensor *moved = trek_tensor_dtype(entries[e].tensor) == TREK_I64
                                         ? trek_tensor_retain(entries[e].tensor)
                                         : trek_tensor_to(entries[e].tensor, trek_var_device(next[w].vars[0]));
                trek_tensor_release(entries[e].tensor);
                entries[e].tensor = moved;
            }
            for (int p = 0; p < PARAMS; p++)
                assert_int_equal(trek_tensor_copy_from(trek_var_data(next[w].vars[p]), trek_var_data(at[w].vars[p])), TREK_OK);
            assert_int_equal(trek_optimizer_import(next[w].optimizer, entries, n), TREK_OK);
            trek_optimizer_export_free(entries, n);
        }
        for (int w = 0; w < 2; w++) {
            for (int step = 3; step < 6; step++) {
                place_step(&at[w], step, &(trek_step_opts){ .zero_grad = true });
                place_step(&next[w], step, &(trek_step_opts){ .zero_grad = true });
            }
            expect_places_near(&next[w], &at[w], 2e-5);
        }
        for (int w = 0; w < 2; w++) {
            place_end(&at[w]);
            place_end(&next[w]);
        }
    }
}

/* --- 16-bit parameters ------------------------------------------------------------------------------------- */

enum { KINDS = 15, MUON = 14 };

/* The k-th kind; plain: for biases and norms, without decay, of Muon AdamW. */
static trek_optimizer_spec kind_at(int k, bool plain)
{
    double decay = plain ? TREK_ZERO : 0.1, none = plain ? 0 : 0.1;
    switch (k) {
    case 0: return trek_adagrad(&(trek_adagrad_opts){ .lr = 0.01, .lr_decay = 0.1, .weight_decay = none });
    case 1: return trek_adadelta(&(trek_adadelta_opts){ .lr = 0.5, .weight_decay = none });
    case 2: return trek_adamax(&(trek_adamax_opts){ .lr = 0.01, .weight_decay = none });
    case 3: return trek_nadam(&(trek_nadam_opts){ .lr = 0.01, .weight_decay = none, .decoupled_weight_decay = true });
    case 4: return trek_radam(&(trek_radam_opts){ .lr = 0.01, .weight_decay = none, .beta2 = 0.7 });
    case 5: return trek_adam(&(trek_adam_opts){ .lr = 0.01, .weight_decay = none, .amsgrad = true });
    case 6: return trek_adamw(&(trek_adam_opts){ .lr = 0.01, .weight_decay = decay, .amsgrad = true, .maximize = true });
    case 7: return trek_lion(&(trek_lion_opts){ .lr = 0.003, .weight_decay = none });
    case 8: return trek_rprop(&(trek_rprop_opts){ .lr = 0.003 });
    case 9: return trek_lamb(&(trek_lamb_opts){ .lr = 0.01, .weight_decay = none });
    case 10:
        return trek_lars(&(trek_lars_opts){ .lr = 0.5, .weight_decay = none, .trust_coefficient = plain ? TREK_ZERO : 0.02 });
    case 11: return trek_adafactor(&(trek_adafactor_opts){ .lr = 0.02, .weight_decay = none, .eps1 = 1e-6 });
    case 12:
        return trek_rmsprop(
            &(trek_rmsprop_opts){ .lr = 0.01, .weight_decay = none, .momentum = 0.5, .centered = true, .eps = 1e-3 });
    case 13:
        return trek_asgd(&(trek_asgd_opts){ .lr = 0.05, .lambd = 0.01, .t0 = TREK_ZERO, .weight_decay = none });
    default: return trek_muon(&(trek_muon_opts){ .lr = 0.01, .weight_decay = decay, .adam = plain });
    }
}

typedef struct layers {
    int kind, asked;
} layers;

/* Rates that fall from layer to layer; no decay, or AdamW, for what is no matrix. */
static trek_optimizer_spec by_layer(const char *name, trek_var *param, trek_optimizer_spec now, void *arg)
{
    layers *l = arg;
    int ndim = trek_var_ndim(param);
    l->asked++;
    if (l->kind == MUON ? ndim != 2 : ndim < 2)
        now = kind_at(l->kind, true);
    now.options[0] *= pow(0.8, name[0] - 'a');
    return now;
}

static void place_layers(place *p, trek_dtype dtype, int kind)
{
    place_params(p, test_device(), dtype);
    p->scaler = trek_grad_scaler_new(NULL);
    p->optimizer = trek_optimizer_new(kind_at(kind, false), p->params);
    assert_non_null(p->optimizer);
    layers l = { .kind = kind };
    assert_int_equal(trek_optimizer_regroup(p->optimizer, by_layer, &l), TREK_OK);
    assert_int_equal(l.asked, PARAMS);
    for (int k = 0; k < PARAMS; k++) {
        const trek_arena *arena = p->optimizer->arena;
        int group = arena->segments[trek_arena_find(arena, p->vars[k])].group;
        double lr = kind_at(kind, kind == MUON ? shape_at(k).ndim != 2 : shape_at(k).ndim < 2).options[0] * pow(0.8, k);
        assert_true(fabs(trek_optimizer_group_lr(p->optimizer, group) - lr) < 1e-15);
    }
}

static void take_values(place *to, const place *from)
{
    for (int k = 0; k < PARAMS; k++)
        assert_int_equal(trek_tensor_copy_from(trek_var_data(to->vars[k]), trek_var_data(from->vars[k])), TREK_OK);
}

/* Masters are f64's to rounding, parameters are rounded masters, and states are f64's. */
static void expect_masters(const place *low, const place *wide, double allowed)
{
    const char *klass = wide->optimizer->klass->name;
    trek_optimizer_entry *a, *b;
    int n, m, masters = 0;
    assert_int_equal(trek_optimizer_export(low->optimizer, &a, &n), TREK_OK);
    assert_int_equal(trek_optimizer_export(wide->optimizer, &b, &m), TREK_OK);
    for (int k = 0; k < n; k++) {
        if (strcmp(strchr(a[k].name, '.'), ".master") == 0) {
            trek_var *own = low->vars[a[k].name[0] - 'a'];
            trek_tensor *rounded = trek_tensor_cast(a[k].tensor, trek_var_dtype(own));
            expect_near(klass, a[k].name, a[k].tensor, trek_var_data(wide->vars[a[k].name[0] - 'a']), allowed);
            assert_true(test_same_bits(rounded, trek_var_data(own)));
            trek_tensor_release(rounded);
            masters++;
            continue;
        }
        int same = 0;
        while (same < m && strcmp(a[k].name, b[same].name) != 0)
            same++;
        assert_true(same < m);
        expect_near(klass, a[k].name, a[k].tensor, b[same].tensor, allowed);
    }
    assert_int_equal(masters, PARAMS - 1); /* one parameter is f64 */
    assert_int_equal(n - masters, m);
    trek_optimizer_export_free(a, n);
    trek_optimizer_export_free(b, m);
}

/* Every kind, with groups for norms and biases and rates by layer; state goes to another optimizer in mid-run. */
static void sixteen_bit_parameters_go_f64s_way(void **state)
{
    static const trek_dtype low[] = { TREK_BF16, TREK_F16 };
    for (int kind = 0; kind < KINDS; kind++)
        for (int d = 0; d < 2; d++) {
            place own, next, wide;
            place_layers(&own, low[d], kind);
            place_layers(&wide, TREK_F64, kind);
            place_layers(&next, low[d], kind);
            take_values(&wide, &own);
            trek_step_opts opts = { .zero_grad = d == 0, .max_norm = d ? 3 : 0, .max_value = d ? 0 : 0.7 };
            for (int step = 0; step < 9; step++) {
                place_step(&own, step, &opts);
                place_step(&wide, step, &opts);
                if (step > 4)
                    place_step(&next, step, &opts);
                if (step == 4) {
                    trek_optimizer_entry *entries;
                    int n;
                    assert_int_equal(trek_optimizer_export(own.optimizer, &entries, &n), TREK_OK);
                    take_values(&next, &own);
                    assert_int_equal(trek_optimizer_import(next.optimizer, entries, n), TREK_OK);
                    trek_optimizer_export_free(entries, n);
                }
            }
            expect_masters(&own, &wide, kind == MUON ? 1e-4 : 1e-5);
            for (int k = 0; k < PARAMS; k++)
                assert_true(test_same_bits(trek_var_data(own.vars[k]), trek_var_data(next.vars[k])));
            place_end(&own);
            place_end(&next);
            place_end(&wide);
        }
}

/* --- L-BFGS: torch.optim.LBFGS, max_iter 6, history 4 ---------------------------------------------------- */

typedef struct problem {
    trek_lbfgs *lbfgs;
    trek_var *p;
} problem;

static trek_status rosenbrock(void *arg, double *loss)
{
    const problem *b = arg;
    trek_lbfgs_zero_grad(b->lbfgs);
    trek_var *x = trek_narrow(b->p, 0, 0, 1), *y = trek_narrow(b->p, 0, 1, 1), *z = trek_narrow(b->p, 0, 2, 1);
    trek_var *valley = trek_mul_scalar(trek_square(trek_sub(y, trek_square(x))), 100);
    trek_var *sum = trek_add(valley, trek_add(trek_square(trek_add_scalar(x, -1)), trek_square(trek_sub(z, y))));
    trek_var *all = trek_sum(sum, trek_dims_all(), false);
    *loss = trek_var_item(all);
    return trek_backward(all);
}

static void lbfgs_goes_pytorchs_way(void **state)
{
    static const double losses[] = { 24.45, 4.30847223132665, 2.73150113291132, 1.51397223617117 };
    trek_tensor *values = trek_tensor_from_data((double[]){ -1.2, 1, 0.5 }, trek_dims(3), TREK_F64, trek_cpu(0));
    problem b = { NULL, trek_var_new(values, true) };
    trek_params *params = trek_params_new();
    trek_params_add(params, "p", b.p);
    b.lbfgs = trek_lbfgs_new(params, &(trek_lbfgs_opts){ .max_iter = 6, .history_size = 4, .strong_wolfe = true });
    for (int k = 0; k < 4; k++) {
        double loss;
        if (k == 2) { /* another one goes on from its state */
            trek_state *kept = trek_lbfgs_state(b.lbfgs);
            trek_lbfgs_free(&b.lbfgs);
            b.lbfgs = trek_lbfgs_new(params, &(trek_lbfgs_opts){ .max_iter = 6, .history_size = 4, .strong_wolfe = true });
            assert_int_equal(trek_lbfgs_load(b.lbfgs, kept), TREK_OK);
            trek_state_free(&kept);
        }
        assert_int_equal(trek_lbfgs_step(b.lbfgs, rosenbrock, &b, &loss), TREK_OK);
        if (!(fabs(loss - losses[k]) < 1e-6))
            fail_msg("step %d: %.15g, not %.15g", k, loss, losses[k]);
    }
    trek_lbfgs_free(&b.lbfgs);
    trek_params_free(&params);
    trek_var_release(b.p);
    trek_tensor_release(values);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(six_steps_and_state_in_mid_run), cmocka_unit_test(rprop_refuses_steps_that_cannot_be),
        cmocka_unit_test(devices_do_what_the_cpu_does), cmocka_unit_test(state_goes_from_device_to_device),
        cmocka_unit_test(sixteen_bit_parameters_go_f64s_way), cmocka_unit_test(lbfgs_goes_pytorchs_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
