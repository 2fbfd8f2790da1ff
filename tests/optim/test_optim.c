/* SPDX-License-Identifier: Apache-2.0 */
/* optim/: arenas, optimizers against plain double-precision formulas and against
 * numbers from PyTorch, groups, frozen and unused parameters, slices, state,
 * clipping, and what happens when memory runs out. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "optim/optimizer_internal.h"
#include "tensor/memory.h"
#include "tests/support/optimizer_options.h"
#include "tests/support/support.h"

/* --- an allocator that can be told to fail --------------------------------- */

static long fail_in = -1; /* allocations that still succeed; -1: all do */

static void *test_allocate(size_t bytes, size_t alignment, void *arg)
{
    (void)arg;
    if (fail_in == 0)
        return NULL;
    if (fail_in > 0)
        fail_in--;
    void *memory = NULL;
    return posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes ? bytes : 1) ? NULL : memory;
}

static void test_release(void *memory, size_t bytes, void *arg)
{
    (void)bytes, (void)arg;
    free(memory);
}

/* --- helpers ----------------------------------------------------------------- */

enum { MODEL = 5, BIG = 300 };
static const int64_t counts[MODEL] = { 3, 64, 1, BIG, 70 };
static const char *const names[MODEL] = { "a.weight", "a.bias", "b.weight", "b.bias", "c" };

typedef struct model {
    trek_params *params;
    trek_var *vars[MODEL];
    double values[MODEL][BIG], m[MODEL][BIG], v[MODEL][BIG], w[MODEL][BIG]; /* what they should be */
    int steps[MODEL];
} model;

static uint64_t random_state = 1;

static double number(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(random_state >> 40) / (1 << 23) - 1.0;
}

static trek_var *new_var(const double *values, int64_t n, trek_dtype dtype, bool requires_grad)
{
    trek_tensor *tensor = test_values(values, trek_dims(n), dtype);
    trek_var *var = trek_var_new(tensor, requires_grad);
    trek_tensor_release(tensor);
    return var;
}

static void read_tensor(const trek_tensor *tensor, double *values)
{
    size_t bytes = (size_t)trek_tensor_numel(tensor) * sizeof(double);
    assert_int_equal(trek_tensor_to_host(tensor, TREK_F64, values, bytes), TREK_OK);
}

static void set_grad(trek_var *var, const double *values)
{
    trek_var *grad = new_var(values, trek_var_numel(var), trek_var_dtype(var), false);
    assert_int_equal(trek_var_set_grad(var, grad), TREK_OK);
    trek_var_release(grad);
}

static void model_begin(model *m, trek_dtype dtype)
{
    memset(m, 0, sizeof *m);
    m->params = trek_params_new();
    for (int k = 0; k < MODEL; k++) {
        for (int64_t i = 0; i < counts[k]; i++)
            m->values[k][i] = (double)(float)number();
        m->vars[k] = new_var(m->values[k], counts[k], dtype, true);
        assert_int_equal(trek_params_add(m->params, names[k], m->vars[k]), TREK_OK);
    }
}

static void model_end(model *m)
{
    for (int k = 0; k < MODEL; k++)
        trek_var_release(m->vars[k]);
    trek_params_free(&m->params);
    assert_int_equal(trek_status_get(), TREK_OK);
}

static void check_values(const model *m, double tolerance)
{
    double have[BIG];
    for (int k = 0; k < MODEL; k++) {
        read_tensor(trek_var_data(m->vars[k]), have);
        for (int64_t i = 0; i < counts[k]; i++)
            if (!(fabs(have[i] - m->values[k][i]) <= tolerance))
                fail_msg("%s[%d] is %.17g, not %.17g", names[k], (int)i, have[i], m->values[k][i]);
    }
}

static void expect_error(trek_status status, const char *part)
{
    assert_int_equal(trek_status_get(), status);
    if (!strstr(trek_error(), part))
        fail_msg("\"%s\" does not say \"%s\"", trek_error(), part);
    trek_error_clear();
}

/* --- the formulas, plainly ---------------------------------------------------- */

static void plain_adam(model *m, int k, const double *grad, trek_adam_opts o, bool decoupled)
{
    int t = ++m->steps[k];
    for (int64_t i = 0; i < counts[k]; i++) {
        double g = o.maximize ? -grad[i] : grad[i], *p = &m->values[k][i], *a = &m->m[k][i], *b = &m->v[k][i];
        if (decoupled)
            *p -= o.lr * o.weight_decay * *p;
        else
            g += o.weight_decay * *p;
        *a = o.beta1 * *a + (1 - o.beta1) * g;
        *b = o.beta2 * *b + (1 - o.beta2) * g * g;
        double root = sqrt(*b) / sqrt(1 - pow(o.beta2, t));
        *p -= o.lr / (1 - pow(o.beta1, t)) * *a / (root + o.eps);
    }
}

static void plain_sgd(model *m, int k, const double *grad, trek_sgd_opts o)
{
    bool first = m->steps[k]++ == 0;
    for (int64_t i = 0; i < counts[k]; i++) {
        double g = o.maximize ? -grad[i] : grad[i], *p = &m->values[k][i], *buffer = &m->m[k][i];
        g += o.weight_decay * *p;
        if (o.momentum > 0) {
            *buffer = first ? g : o.momentum * *buffer + (1 - o.dampening) * g;
            g = o.nesterov ? g + o.momentum * *buffer : *buffer;
        }
        *p -= o.lr * g;
    }
}

static void plain_step(model *m, int k, const double *grad, const trek_optimizer_spec *spec)
{
    if (test_is_class(spec, "sgd"))
        plain_sgd(m, k, grad, test_sgd_opts(spec));
    else if (test_is_class(spec, "rmsprop"))
        for (int64_t i = 0; i < counts[k]; i++)
            test_plain_rmsprop(spec, grad[i], &m->values[k][i], &m->m[k][i], &m->v[k][i], &m->w[k][i]);
    else
        plain_adam(m, k, grad, test_adam_opts(spec), test_is_class(spec, "adamw"));
}

/* New random gradients for the parameters in `mask`, and the update they should make. */
static void feed(model *m, unsigned mask, const trek_optimizer_spec *spec)
{
    double grad[BIG];
    for (int k = 0; k < MODEL; k++) {
        if (!(mask >> k & 1))
            continue;
        for (int64_t i = 0; i < counts[k]; i++)
            grad[i] = (double)(float)number();
        set_grad(m->vars[k], grad);
        plain_step(m, k, grad, spec);
    }
}

static trek_optimizer_spec some_adamw(void)
{
    return trek_adamw((trek_adam_opts){ .lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1 });
}

static trek_optimizer_spec some_sgd(void)
{
    return trek_sgd((trek_sgd_opts){ .lr = 0.05, .momentum = 0.9, .dampening = 0.25, .weight_decay = 0.1 });
}

static trek_optimizer_spec some_rmsprop(bool centered, double momentum)
{
    return trek_rmsprop((trek_rmsprop_opts){ .lr = 0.02, .alpha = 0.9, .eps = 1e-3, .weight_decay = 0.1, .momentum = momentum,
                                             .centered = centered });
}

/* --- arenas --------------------------------------------------------------------- */

static void arena_moves_values_and_gradients(void **state)
{
    (void)state;
    model m;
    model_begin(&m, TREK_F32);
    trek_tensor *same = trek_var_data(m.vars[1]);
    double grad[BIG], have[BIG];
    for (int i = 0; i < BIG; i++)
        grad[i] = (double)(float)number();
    set_grad(m.vars[3], grad);
    trek_arena *arena = trek_arena_new(m.params);
    assert_non_null(arena);
    assert_ptr_equal(trek_var_data(m.vars[1]), same);
    check_values(&m, 0.0);
    read_tensor(trek_var_data(trek_var_grad(m.vars[3])), have);
    assert_memory_equal(have, grad, sizeof(double) * BIG);
    assert_int_equal(arena->n_parts, 1);
    assert_int_equal(arena->parts[0].count, 128 + 320 + 64 + 64 + 64);
    const char *base = arena->parts[0].params->data;
    for (int k = 0; k < MODEL; k++) {
        const trek_arena_segment *s = &arena->segments[trek_arena_find(arena, m.vars[k])];
        assert_int_equal(s->index, k);
        assert_int_equal(s->offset * sizeof(float) % 256, 0);
        assert_ptr_equal(trek_var_data(m.vars[k])->data, base + s->offset * (int64_t)sizeof(float));
    }
    assert_int_equal(trek_arena_find(arena, m.vars[MODEL - 1]), 0); /* last registered, first in memory */
    assert_null(trek_arena_new(m.params));
    expect_error(TREK_ERR_STATE, "a.weight");
    trek_arena_free(&arena);
    check_values(&m, 0.0);
    assert_null(trek_var_grad(m.vars[0]));
    assert_non_null(trek_var_grad(m.vars[3]));
    arena = trek_arena_new(m.params); /* and again */
    assert_non_null(arena);
    check_values(&m, 0.0);
    trek_arena_zero_grads(arena);
    read_tensor(arena->parts[0].grads, (double[640]){ 0 });
    bool finite;
    double sum;
    trek_arena_sum_squares(arena, &sum, &finite);
    assert_true(sum == 0.0 && finite);
    trek_arena_free(&arena);
    model_end(&m);
}

static void arena_shares_data_not_gradients(void **state)
{
    (void)state;
    model m, replica;
    model_begin(&m, TREK_F32);
    model_begin(&replica, TREK_F32);
    trek_arena *owner = trek_arena_new(m.params);
    trek_arena *arena = trek_arena_new_sharing(replica.params, owner);
    assert_non_null(arena);
    trek_optimizer_spec spec = some_adamw();
    trek_optimizer *optimizer = trek_optimizer_new_over(spec, owner);
    feed(&m, 31, &spec);
    double ones[BIG];
    for (int i = 0; i < BIG; i++)
        ones[i] = 1.0;
    set_grad(replica.vars[0], ones);
    assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
    uint32_t before = trek_var_data(replica.vars[0])->storage->version;
    trek_arena_bump(arena, owner);
    assert_true(trek_var_data(replica.vars[0])->storage->version != before);
    memcpy(replica.values, m.values, sizeof m.values);
    check_values(&m, 1e-6);
    check_values(&replica, 1e-6);
    double sum;
    bool finite;
    trek_arena_sum_squares(arena, &sum, &finite);
    assert_true(sum == (double)counts[0]);
    trek_optimizer_free(&optimizer);
    trek_arena_free(&owner);
    trek_arena_free(&arena);
    check_values(&replica, 1e-6);
    model_end(&m);
    model_end(&replica);
}

static void arena_refuses_what_does_not_fit(void **state)
{
    (void)state;
    model m, replica;
    model_begin(&m, TREK_F32);
    model_begin(&replica, TREK_F64);
    trek_arena *owner = trek_arena_new(m.params);
    assert_null(trek_arena_new_sharing(replica.params, owner));
    expect_error(TREK_ERR_ARGUMENT, "'c'");
    check_values(&replica, 0.0);
    trek_var *whole = new_var((double[]){ 1, 2 }, 2, TREK_I64, false);
    trek_params_add(replica.params, "whole", whole);
    assert_null(trek_arena_new(replica.params));
    expect_error(TREK_ERR_DTYPE, "whole");
    trek_var_release(whole);
    trek_arena_free(&owner);
    model_end(&m);
    model_end(&replica);
}

/* --- formulas --------------------------------------------------------------------- */

/* p = torch.tensor([1., -2.], dtype=torch.float64); for g in ([.5, -1.], [.25, 2.], [-1., .125]):
 *     p.grad = torch.tensor(g, dtype=torch.float64); optimizer.step() */
static void updates_equal_pytorch(void **state)
{
    (void)state;
    const struct {
        trek_optimizer_spec spec;
        double values[2];
    } cases[] = {
        { trek_adam((trek_adam_opts){ .lr = 0.1 }), { 0.82741774288541148, -1.9684337378859402 } },
        { trek_adam((trek_adam_opts){ .lr = 0.1, .weight_decay = 0.1, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-4,
                                      .maximize = true }),
          { 1.1410297817134285, -2.0001608128191299 } },
        { trek_adamw((trek_adam_opts){ .lr = 0.1 }), { 0.82471385984293599, -1.962603025531469 } },
        { trek_adamw((trek_adam_opts){ .lr = 0.1, .weight_decay = 0.2, .beta1 = TREK_ZERO, .beta2 = 0.9 }),
          { 0.92889755575112354, -1.9181747131857618 } },
        { trek_sgd((trek_sgd_opts){ .lr = 0.1 }), { 1.0249999999999999, -2.1125000000000003 } },
        { trek_sgd((trek_sgd_opts){ .lr = 0.1, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1 }),
          { 0.85037599999999991, -1.8438769999999998 } },
        { trek_sgd((trek_sgd_opts){ .lr = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1 }),
          { 0.87721114600000005, -2.0666472920000003 } },
        { trek_sgd((trek_sgd_opts){ .lr = 0.1, .momentum = 0.9, .maximize = true }),
          { 1.0830000000000002, -1.8785000000000001 } },
        { trek_rmsprop((trek_rmsprop_opts){ .lr = 0.1 }), { 0.42572661607132584, -1.9514738796461983 } },
        { trek_rmsprop((trek_rmsprop_opts){ .lr = 0.1, .alpha = 0.5, .eps = 1e-4, .weight_decay = 0.1 }),
          { 0.9014773363418537, -1.9793416535579207 } },
        { trek_rmsprop((trek_rmsprop_opts){ .lr = 0.1, .centered = true }), { 0.4168450436831231, -1.9474244457538787 } },
        { trek_rmsprop((trek_rmsprop_opts){ .lr = 0.1, .alpha = 0.25, .centered = true, .momentum = 0.9, .weight_decay = 0.1 }),
          { 0.09914410286167903, -1.6552091844305747 } },
        { trek_rmsprop((trek_rmsprop_opts){ .lr = 0.05, .momentum = 0.5, .maximize = true }),
          { 1.7743899105697993, -2.1754322921790217 } },
    };
    static const double grads[3][2] = { { 0.5, -1.0 }, { 0.25, 2.0 }, { -1.0, 0.125 } };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        trek_var *var = new_var((double[]){ 1.0, -2.0 }, 2, TREK_F64, true);
        trek_params *params = trek_params_new();
        trek_params_add(params, "p", var);
        trek_optimizer *optimizer = trek_optimizer_new(cases[c].spec, params);
        assert_non_null(optimizer);
        for (int step = 0; step < 3; step++) {
            set_grad(var, grads[step]);
            assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
        }
        double have[2];
        read_tensor(trek_var_data(var), have);
        for (int i = 0; i < 2; i++)
            if (!(fabs(have[i] - cases[c].values[i]) < 1e-14))
                fail_msg("case %d: %.17g, not %.17g", (int)c, have[i], cases[c].values[i]);
        trek_optimizer_free(&optimizer);
        trek_params_free(&params);
        trek_var_release(var);
    }
}

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
            assert_int_equal(trek_optimizer_step_scaled(optimizer, 1.0, true), TREK_OK);
        }
        check_values(&m, tolerance);
        double sum;
        bool finite;
        trek_arena_sum_squares(trek_optimizer_arena(optimizer), &sum, &finite);
        assert_true(sum == 0.0);
    }
    trek_optimizer_free(&optimizer);
    model_end(&m);
}

static void updates_equal_the_formulas(void **state)
{
    (void)state;
    run_steps(some_adamw(), TREK_F32, 2e-6);
    run_steps(some_adamw(), TREK_F64, 1e-13);
    trek_optimizer_spec decoupled = some_adamw(), adam = trek_adam(test_adam_opts(&decoupled));
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
    (void)state;
    model m;
    model_begin(&m, TREK_F32);
    trek_optimizer *optimizer = trek_optimizer_new(trek_rmsprop((trek_rmsprop_opts){ .lr = 1e-6, .alpha = 0.5,
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
    (void)state;
    model m;
    model_begin(&m, TREK_F64);
    trek_optimizer_spec spec = some_adamw();
    trek_optimizer *optimizer = trek_optimizer_new(spec, m.params);
    for (int step = 0; step < 6; step++) {
        bool frozen = step < 3;
        if (step == 0 || step == 3)
            assert_int_equal(trek_var_set_requires_grad(m.vars[1], !frozen), TREK_OK);
        feed(&m, frozen ? 29 : 31, &spec);
        assert_int_equal(trek_optimizer_step_scaled(optimizer, 1.0, true), TREK_OK);
        check_values(&m, 1e-13);
    }
    assert_int_equal(m.steps[1], 3); /* its bias correction began at 1 */
    /* a gradient that is there when the parameter is frozen is not applied, and zeroed with the others */
    set_grad(m.vars[2], (double[]){ 5.0 });
    trek_var_set_requires_grad(m.vars[2], false);
    assert_int_equal(trek_optimizer_step_scaled(optimizer, 1.0, true), TREK_OK);
    check_values(&m, 1e-13);
    double sum;
    bool finite;
    trek_arena_sum_squares(trek_optimizer_arena(optimizer), &sum, &finite);
    assert_true(sum == 0.0);
    trek_optimizer_free(&optimizer);
    model_end(&m);
}

static void padding_stays_zero(void **state)
{
    (void)state;
    model m;
    model_begin(&m, TREK_F32);
    trek_optimizer_spec spec = trek_adam((trek_adam_opts){ .lr = 0.1, .eps = TREK_ZERO });
    trek_optimizer *optimizer = trek_optimizer_new(spec, m.params);
    trek_optimizer_spec plain = trek_adam((trek_adam_opts){ .lr = 0.1, .beta1 = 0.9, .beta2 = 0.999 });
    feed(&m, 31, &plain);
    assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
    check_values(&m, 1e-6);
    const trek_arena *arena = trek_optimizer_arena(optimizer);
    double *values = test_read(arena->parts[0].params);
    assert_non_null(values);
    for (int k = 0; k < arena->n_segments; k++) {
        const trek_arena_segment *s = &arena->segments[k];
        int64_t end = k + 1 < arena->n_segments ? s[1].offset : arena->parts[0].count;
        for (int64_t i = s->offset + s->count; i < end; i++)
            assert_true(values[i] == 0.0);
    }
    free(values);
    trek_optimizer_free(&optimizer);
    model_end(&m);
}

static void groups_have_options_of_their_own(void **state)
{
    (void)state;
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
    expect_error(TREK_ERR_ARGUMENT, "group 2");
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

static void slices_give_the_same_bits(void **state)
{
    (void)state;
    model whole, sliced;
    random_state = 7;
    model_begin(&whole, TREK_F32);
    random_state = 7;
    model_begin(&sliced, TREK_F32);
    trek_optimizer_spec spec = some_adamw();
    trek_optimizer *a = trek_optimizer_new(spec, whole.params), *b = trek_optimizer_new(spec, sliced.params);
    trek_arena *arena = trek_optimizer_arena(b);
    int64_t count = arena->parts[0].count;
    trek_tensor *other = trek_tensor_clone(arena->parts[0].grads);
    for (uint64_t step = 0; step < 3; step++) {
        random_state = 100 + step;
        feed(&whole, 29, &spec);
        trek_optimizer_step_scaled(a, 0.5, false);
        random_state = 100 + step;
        feed(&sliced, 29, &spec);
        assert_int_equal(trek_tensor_copy_from(other, arena->parts[0].grads), TREK_OK);
        trek_arena_mark_used(arena);
        assert_int_equal(trek_optimizer_prepare(b), TREK_OK);
        for (int64_t at = 0, next; at < count; at = next) {
            next = at + 37 < count ? at + 37 : count;
            if (at % 2)
                trek_optimizer_apply_range(b, 0, at, next, 0.5, true);
            else
                trek_optimizer_apply_range_from(b, 0, at, next, other->data, 0.5, true);
        }
        trek_optimizer_commit(b);
        for (int k = 0; k < MODEL; k++)
            assert_true(test_same_bits(trek_var_data(whole.vars[k]), trek_var_data(sliced.vars[k])));
        trek_arena_zero_grads(trek_optimizer_arena(a));
        trek_arena_zero_grads(arena);
    }
    trek_tensor_release(other);
    trek_optimizer_free(&a);
    trek_optimizer_free(&b);
    model_end(&whole);
    model_end(&sliced);
}

/* --- state ------------------------------------------------------------------------- */

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
        trek_optimizer_step_scaled(first, 1.0, true);
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
    assert_int_equal(trek_optimizer_import(second, entries, n), TREK_ERR_FORMAT);
    expect_error(TREK_ERR_FORMAT, "nobody");
    entries[0].name = name;
    assert_int_equal(trek_optimizer_import(second, entries + n - 2, 1), TREK_ERR_FORMAT);
    expect_error(TREK_ERR_FORMAT, "part of its state");
    assert_int_equal(trek_records_read(second), TREK_OK); /* where a device counts */
    assert_int_equal(trek_optimizer_arena(second)->segments[0].steps, 5);
    trek_optimizer_export_free(entries, n);
    trek_optimizer_free(&first);
    trek_optimizer_free(&second);
    model_end(&m);
    model_end(&copy);
}

static void state_of_every_kind(void **state)
{
    (void)state;
    state_goes_out_and_in(some_adamw());
    state_goes_out_and_in(some_sgd());
    state_goes_out_and_in(some_rmsprop(true, 0.9));
}

/* --- clipping ------------------------------------------------------------------------ */

static void clip_norm_and_value(void **state)
{
    (void)state;
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
        expect_error(TREK_ERR_ARGUMENT, "trek_clip_grad_norm");
        trek_arena_free(&arena);
        trek_var_release(wide);
        model_end(&m);
    }
}

/* --- mistakes and failures ------------------------------------------------------------- */

static void bad_options_are_named(void **state)
{
    (void)state;
    const struct {
        trek_optimizer_spec spec;
        const char *says;
    } cases[] = {
        { { .klass = NULL }, "trek_sgd" },
        { trek_sgd((trek_sgd_opts){ .lr = -1 }), "lr" },
        { trek_sgd((trek_sgd_opts){ .momentum = -0.5 }), "momentum" },
        { trek_sgd((trek_sgd_opts){ .weight_decay = NAN }), "weight_decay" },
        { trek_sgd((trek_sgd_opts){ .nesterov = true }), "nesterov" },
        { trek_sgd((trek_sgd_opts){ .nesterov = true, .momentum = 0.9, .dampening = 0.1 }), "nesterov" },
        { trek_adam((trek_adam_opts){ .lr = INFINITY }), "lr" },
        { trek_adam((trek_adam_opts){ .beta1 = 1.0 }), "beta1" },
        { trek_adamw((trek_adam_opts){ .beta2 = -0.1 }), "beta2" },
        { trek_adamw((trek_adam_opts){ .eps = -1e-8 }), "eps" },
        { trek_adamw((trek_adam_opts){ .weight_decay = -0.01 }), "weight_decay" },
        { trek_rmsprop((trek_rmsprop_opts){ .alpha = -0.1 }), "rmsprop: alpha" },
        { trek_rmsprop((trek_rmsprop_opts){ .momentum = NAN }), "rmsprop: momentum" },
    };
    model m;
    model_begin(&m, TREK_F32);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        assert_null(trek_optimizer_new(cases[c].spec, m.params));
        expect_error(TREK_ERR_ARGUMENT, cases[c].says);
    }
    trek_params *none = trek_params_new();
    assert_null(trek_optimizer_new(some_sgd(), none));
    expect_error(TREK_ERR_ARGUMENT, "empty");
    trek_params_free(&none);
    assert_null(trek_optimizer_new(some_sgd(), NULL));
    assert_int_not_equal(trek_status_get(), TREK_OK);
    trek_error_clear();
    trek_optimizer *optimizer = trek_optimizer_new(some_sgd(), m.params);
    assert_int_equal(trek_optimizer_set_lr(optimizer, -0.1), TREK_ERR_ARGUMENT);
    expect_error(TREK_ERR_ARGUMENT, "lr");
    assert_true(trek_optimizer_lr(optimizer) == 0.05);
    trek_optimizer_free(&optimizer);
    trek_optimizer_free(&optimizer);
    model_end(&m);
}

static void nothing_moves_while_an_error_is_set(void **state)
{
    (void)state;
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
    assert_int_equal(trek_optimizer_step(optimizer), TREK_ERR_STATE);
    expect_error(TREK_ERR_STATE, "'c'");
    check_values(&m, 2e-6);
    trek_optimizer_free(&optimizer);
    model_end(&m);
}

static void memory_runs_out(void **state)
{
    (void)state;
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
        assert_int_equal(trek_status_get(), TREK_ERR_MEMORY);
        trek_error_clear();
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
    trek_optimizer_spec plain = trek_sgd((trek_sgd_opts){ .lr = 0.1 });
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
    trek_status status = trek_optimizer_step_scaled(optimizer, 1.0, true);
    fail_in = -1;
    assert_int_equal(status, TREK_OK);
    check_values(&m, 1e-6);
    trek_optimizer_free(&optimizer);
    model_end(&m);
}

/* Parameters on several CPUs have one optimizer; they stay where they say they are. */
static void several_cpus(void **state)
{
    (void)state;
    trek_scope scope = trek_scope_begin();
    trek_var *vars[2];
    trek_params *params = trek_params_new();
    for (int k = 0; k < 2; k++) {
        trek_tensor *value = trek_tensor_full(1, trek_dims(3), TREK_F32, trek_cpu(2 * k));
        vars[k] = trek_var_new(value, true);
        trek_tensor_release(value);
        assert_int_equal(trek_params_add(params, k ? "b" : "a", vars[k]), TREK_OK);
    }
    trek_optimizer *optimizer = trek_optimizer_new(trek_sgd((trek_sgd_opts){ .lr = 0.5, .momentum = 0.9 }), params);
    assert_non_null(optimizer);
    for (int step = 0; step < 2; step++) {
        assert_int_equal(trek_backward(trek_sum(trek_mul(vars[0], vars[1]), trek_dims_none(), false)), TREK_OK);
        assert_true(trek_clip_grad_norm(params, 100) > 0);
        assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
        assert_int_equal(trek_optimizer_zero_grad(optimizer), TREK_OK);
    }
    for (int k = 0; k < 2; k++) {
        assert_int_equal(trek_var_device(vars[k]).index, 2 * k);
        trek_var *sum = trek_sum(vars[k], trek_dims_none(), false);
        assert_float_equal(trek_var_item(sum), 3 * (0.5 - 0.5 * (0.5 + 0.9)), 1e-6);
    }
    trek_optimizer_free(&optimizer);
    trek_params_free(&params);
    trek_var_release(vars[0]);
    trek_var_release(vars[1]);
    trek_scope_end(scope);
}

int main(void)
{
    if (trek_allocator_set(&(trek_allocator){ .allocate = test_allocate, .release = test_release }) != TREK_OK)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arena_moves_values_and_gradients),
        cmocka_unit_test(arena_shares_data_not_gradients),
        cmocka_unit_test(arena_refuses_what_does_not_fit),
        cmocka_unit_test(updates_equal_pytorch),
        cmocka_unit_test(updates_equal_the_formulas),
        cmocka_unit_test(centred_rmsprop_of_constant_gradients_is_finite),
        cmocka_unit_test(frozen_ones_wait_and_thaw),
        cmocka_unit_test(padding_stays_zero),
        cmocka_unit_test(groups_have_options_of_their_own),
        cmocka_unit_test(slices_give_the_same_bits),
        cmocka_unit_test(state_of_every_kind),
        cmocka_unit_test(clip_norm_and_value),
        cmocka_unit_test(bad_options_are_named),
        cmocka_unit_test(nothing_moves_while_an_error_is_set),
        cmocka_unit_test(several_cpus),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
