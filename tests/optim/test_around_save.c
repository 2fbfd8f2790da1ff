/* SPDX-License-Identifier: Apache-2.0 */
/* The state of what stands beside optimizers, L-BFGS and SAM, through a file: whatever came before, between SAM's two steps too,
 * runs go on to the same bits; and what is not taken, which changes nothing. */
#include <unistd.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "nn/params.h"
#include "nn/state.h"
#include "nn/state_modules.h"
#include "optim/lbfgs.h"
#include "optim/optimizer_internal.h"
#include "optim/sam.h"
#include "tensor/scope.h"
#include "tests/optim/vars.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { PARAMS = 4, FROZEN = 3 };
static const char *const names[PARAMS] = { "net.weight", "net.bias", "other", "frozen" };
static char path[64];

/* --- a model: parameters, and whoever trains them ------------------------------------------------- */

typedef struct model {
    trek_var *vars[PARAMS];
    trek_params *params;
    trek_lbfgs *lbfgs;
    trek_optimizer *optimizer;
    trek_sam *sam;
} model;

static trek_shape shape_of(int p) { return p == 1 ? trek_dims(3) : p == 2 ? trek_dims(2, 150) : trek_dims(4, 3); }

/* other: the dtype of one parameter. */
static model make_params(trek_dtype other)
{
    model m = { 0 };
    m.params = trek_params_new();
    for (int p = 0; p < PARAMS; p++) {
        m.vars[p] = numbered_var((uint32_t)p, shape_of(p), p == 2 ? other : TREK_F32);
        trek_params_add(m.params, names[p], m.vars[p]);
    }
    return m;
}

static void drop(model *m)
{
    trek_lbfgs_free(&m->lbfgs);
    trek_sam_free(&m->sam);
    trek_optimizer_free(&m->optimizer);
    trek_params_free(&m->params);
    for (int p = 0; p < PARAMS; p++)
        trek_var_release(m->vars[p]);
}

static void assert_same(const model *a, const model *b, const char *what)
{
    assert_same_vars(a->vars, b->vars, names, PARAMS, what);
}

/* The sum of (x - place)^4 + x^2 of neighbours, which is no quadratic; of all parameters but the frozen one. */
static trek_var *loss_of(const model *m, int k)
{
    trek_var *sum = NULL;
    for (int p = 0; p < PARAMS; p++) {
        if (p == FROZEN)
            continue;
        trek_var *x = trek_cast(m->vars[p], TREK_F64);
        trek_tensor *place = test_tensor((uint32_t)(50 + PARAMS * k + p), shape_of(p), 1);
        trek_var *away = trek_sub(x, trek_cast(trek_var_from(place), TREK_F64));
        trek_var *own = trek_sum(trek_add(trek_square(trek_square(away)), trek_mul_scalar(trek_square(x), 0.3)), trek_dims_all(),
                                 false);
        sum = sum ? trek_add(trek_add(sum, own), trek_mul_scalar(trek_mul(sum, own), 1e-3)) : own;
    }
    return sum;
}

/* Through a file. */
static trek_state *again(trek_state *state)
{
    assert_non_null(state);
    assert_int_equal(trek_state_write(state, path), TREK_OK);
    trek_state_free(&state);
    trek_state *read = trek_state_read(path);
    assert_non_null(read);
    return read;
}

static void expect_refused(trek_status status, const char *says)
{
    if (status != TREK_ERR_FORMAT || !strstr(trek_error(), says))
        fail_msg("%s: %s, not %s", trek_status_name(status), trek_error(), says);
    trek_error_clear();
}

/* --- L-BFGS --------------------------------------------------------------------------------------------- */

#define LBFGS_KEY "trek.lbfgs.parameters"

static model make_lbfgs(trek_dtype other, int history, bool wolfe)
{
    model m = make_params(other);
    m.lbfgs = trek_lbfgs_new(m.params, &(trek_lbfgs_opts){ .max_iter = 3, .history_size = history, .strong_wolfe = wolfe,
                                                           .lr = wolfe ? 1 : 0.02 });
    assert_non_null(m.lbfgs);
    return m;
}

static trek_status closure(void *arg, double *loss)
{
    const model *m = arg;
    trek_lbfgs_zero_grad(m->lbfgs);
    trek_var *y = loss_of(m, 0);
    *loss = trek_var_item(y);
    return trek_backward(y);
}

static void lbfgs_steps(model *m, int n)
{
    for (int k = 0; k < n; k++)
        assert_int_equal(trek_lbfgs_step(m->lbfgs, closure, m, NULL), TREK_OK);
}

static void lbfgs_goes_on_to_the_same_bits(void **state)
{
    for (int draw = 0; draw < 16; draw++) {
        trek_dtype other = draw & 1 ? TREK_F64 : TREK_F32;
        int history = 1 + draw % 5, before = draw / 4;
        model a = make_lbfgs(other, history, draw & 2), b = make_lbfgs(other, history + draw % 3, draw & 2);
        lbfgs_steps(&a, before);
        lbfgs_steps(&b, 3 - before); /* what it had is forgotten */
        assert_int_equal(trek_lbfgs_set_lr(a.lbfgs, 0.5 + 0.01 * draw), TREK_OK);
        trek_state *saved = again(trek_lbfgs_state(a.lbfgs));
        model c = make_lbfgs(other, history, draw & 2);
        copy_vars(c.vars, a.vars, PARAMS);
        assert_int_equal(trek_lbfgs_load(c.lbfgs, saved), TREK_OK);
        assert_int_equal(trek_lbfgs_load(b.lbfgs, saved), TREK_OK);
        copy_vars(b.vars, a.vars, PARAMS);
        trek_state *same = trek_lbfgs_state(b.lbfgs); /* nothing got lost in a file */
        assert_int_equal(trek_state_count(same), trek_state_count(saved));
        for (int k = 0; k < trek_state_count(saved); k++)
            assert_true(test_same_bits(trek_state_tensor(saved, k), trek_state_find(same, trek_state_name(saved, k))));
        trek_state_free(&same);
        trek_state_free(&saved);
        lbfgs_steps(&a, 2);
        lbfgs_steps(&c, 2);
        assert_same(&a, &c, "L-BFGS");
        drop(&a);
        drop(&b);
        drop(&c);
    }
}

static void lbfgs_takes_no_other_state(void **state)
{
    model a = make_lbfgs(TREK_F64, 3, true), b = make_lbfgs(TREK_F64, 3, true), short_one = make_lbfgs(TREK_F64, 1, true),
          narrow = make_lbfgs(TREK_F32, 3, true), other = make_params(TREK_F64), adam = make_params(TREK_F32);
    trek_params_free(&other.params);
    other.params = trek_params_new();
    for (int p = 0; p < PARAMS; p++) /* as many elements, otherwise */
        trek_params_add(other.params, p ? names[p] : "renamed", other.vars[p]);
    other.lbfgs = trek_lbfgs_new(other.params, NULL);
    adam.optimizer = trek_optimizer_new(trek_adam(&(trek_adam_opts){ .lr = 0.1 }), adam.params);
    lbfgs_steps(&a, 2);
    lbfgs_steps(&b, 2);
    assert_same(&a, &b, "before refusals");
    trek_state *good = trek_lbfgs_state(a.lbfgs), *of_adam = trek_optimizer_save(adam.optimizer);
    double numbers[] = { 1, 1, 1, 1, 1, 0.5 }, none[] = { 0, 0, 1, 1, 1, 1, 2 }, rates[] = { 1, 2 };
    const struct { const char *leave, *add; trek_tensor *tensor; const char *says; } rows[] = {
        { "lr", NULL, NULL, "not the state of an L-BFGS" },
        { "numbers", NULL, NULL, "not the state of an L-BFGS" },
        { "lr", "lr", test_values(rates, trek_dims(2), TREK_F64), "2 learning rates" },
        { "numbers", "numbers", test_values(numbers, trek_dims(6), TREK_F64), "is not of an L-BFGS" },
        { "numbers", "numbers", test_values(numbers, trek_dims(5), TREK_F64), "not the state of an L-BFGS" },
        { "numbers", "numbers", test_values(none, trek_dims(7), TREK_F64), "but no iteration" },
        { "d", NULL, NULL, "'d' is missing" },
        { "prev_grad", NULL, NULL, "'prev_grad' is missing" },
        { "steps.1", NULL, NULL, "'steps.1' is missing" },
        { "dirs.0", "dirs.0", test_values(numbers, trek_dims(6), TREK_F64), "'dirs.0' is [6] f64" },
        { NULL, "dirs.7", test_values(numbers, trek_dims(6), TREK_F64), "tensors; this L-BFGS" },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        trek_state *bad = state_with(good, rows[k].leave, rows[k].add, rows[k].tensor, LBFGS_KEY);
        expect_refused(trek_lbfgs_load(a.lbfgs, bad), rows[k].says);
        trek_state_free(&bad);
    }
    trek_state *nameless = state_with(good, NULL, NULL, NULL, NULL);
    expect_refused(trek_lbfgs_load(a.lbfgs, nameless), "names of its parameters");
    trek_state_free(&nameless);
    expect_refused(trek_lbfgs_load(a.lbfgs, of_adam), "not the state of an L-BFGS");
    expect_refused(trek_optimizer_load(adam.optimizer, good), "it belongs to none");
    expect_refused(trek_lbfgs_load(short_one.lbfgs, good), "history_size is 1");
    expect_refused(trek_lbfgs_load(narrow.lbfgs, good), "'d' is");
    expect_refused(trek_lbfgs_load(other.lbfgs, good), "'net.weight [4, 3]' there, 'renamed [4, 3]' here");
    trek_fail(TREK_ERR_IO, "before");
    assert_null(trek_lbfgs_state(a.lbfgs));
    FAILS(trek_lbfgs_load(a.lbfgs, good), TREK_ERR_IO, "");
    lbfgs_steps(&a, 2);
    lbfgs_steps(&b, 2);
    assert_same(&a, &b, "after refusals");
    trek_state_free(&good);
    trek_state_free(&of_adam);
    drop(&a), drop(&b), drop(&short_one), drop(&narrow), drop(&other), drop(&adam);
}

/* --- SAM -------------------------------------------------------------------------------------------------- */

static model make_sam(trek_optimizer_spec spec, trek_dtype other, bool groups, bool adaptive)
{
    model m = make_params(other);
    m.optimizer = trek_optimizer_new(spec, m.params);
    assert_non_null(m.optimizer);
    if (groups) {
        spec.options[0] = 0.03;
        assert_int_equal(trek_optimizer_vectors(m.optimizer, spec), 1);
    }
    m.sam = trek_sam_new(m.optimizer, &(trek_sam_opts){ .rho = 0.2, .adaptive = adaptive });
    assert_non_null(m.sam);
    return m;
}

/* Half steps: even ones climb. */
static void sam_steps(model *m, int from, int to)
{
    for (int k = from; k < to; k++) {
        trek_scope scope = trek_scope_begin();
        assert_int_equal(trek_backward(loss_of(m, k / 2)), TREK_OK);
        trek_scope_end(scope);
        assert_int_equal(k % 2 ? trek_sam_second_step(m->sam) : trek_sam_first_step(m->sam), TREK_OK);
    }
}

static void sam_goes_on_to_the_same_bits(void **state)
{
    const trek_optimizer_spec specs[] = {
        trek_sgd(&(trek_sgd_opts){ .lr = 0.01, .momentum = 0.9 }), trek_adamw(&(trek_adam_opts){ .lr = 0.02 }),
        trek_with_state(trek_adam(&(trek_adam_opts){ .lr = 0.02 }), TREK_U8),
        trek_with_state(trek_adam(&(trek_adam_opts){ .lr = 0.02 }), TREK_BF16), trek_sgd(&(trek_sgd_opts){ .lr = 0.01 }),
    };
    static const trek_dtype dtypes[] = { TREK_BF16, TREK_F32, TREK_F16 };
    for (uint32_t draw = 0; draw < 60; draw++) {
        uint32_t h = test_hash(draw);
        trek_optimizer_spec spec = specs[draw % 5];
        trek_dtype other = dtypes[h % 3];
        int at = (int)(h >> 3 & 7), other_at = (int)(h >> 6 & 3);
        bool groups = h >> 8 & 1, adaptive = (h >> 9 & 3) == 0, twice = h >> 11 & 1, values_first = h >> 12 & 1;
        model a = make_sam(spec, other, groups, adaptive), b = make_sam(spec, other, groups, adaptive);
        sam_steps(&a, 0, at);
        sam_steps(&b, 0, other_at); /* sometimes half a step, which is forgotten */
        for (int round = 0; round < (twice ? 2 : 1); round++) {
            trek_state *saved = again(trek_sam_save(round ? b.sam : a.sam));
            if (values_first)
                copy_vars(b.vars, a.vars, PARAMS);
            assert_int_equal(trek_sam_load(b.sam, saved), TREK_OK);
            if (!values_first)
                copy_vars(b.vars, a.vars, PARAMS);
            trek_state_free(&saved);
        }
        sam_steps(&a, at, 11);
        sam_steps(&b, at, 11);
        assert_same(&a, &b, spec.klass->name);
        drop(&a);
        drop(&b);
    }
}

static void sam_takes_no_other_state(void **state)
{
    trek_optimizer_spec spec = trek_adam(&(trek_adam_opts){ .lr = 0.02 });
    model a = make_sam(spec, TREK_BF16, false, false), b = make_sam(spec, TREK_BF16, false, false),
          c = make_lbfgs(TREK_F32, 3, true);
    sam_steps(&a, 0, 3);
    sam_steps(&b, 0, 3);
    trek_state *good = trek_sam_save(a.sam), *of_lbfgs = trek_lbfgs_state(c.lbfgs);
    double values[] = { 1, 2, 3 };
    const struct { const char *leave, *add; trek_tensor *tensor; const char *says; } rows[] = {
        { "frozen.before", NULL, NULL, "'frozen.before' is missing" },
        { "net.bias.before", "net.bias.before", test_values(values, trek_dims(3, 1), TREK_F32),
          "is [3, 1] f32; must be [3] f32" },
        { "net.bias.before", "net.bias.before", test_values(values, trek_dims(3), TREK_F64), "is [3] f64; must be [3] f32" },
        { NULL, "nobody.before", test_values(values, trek_dims(3), TREK_F32), "'nobody.before': it belongs to none" },
        { "lr", NULL, NULL, "not the state of an optimizer" },
        { "other.exp_avg", NULL, NULL, "'other': a part" },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        trek_state *bad = state_with(good, rows[k].leave, rows[k].add, rows[k].tensor, NULL);
        expect_refused(trek_sam_load(a.sam, bad), rows[k].says);
        trek_state_free(&bad);
    }
    expect_refused(trek_sam_load(a.sam, of_lbfgs), "it belongs to none");
    expect_refused(trek_optimizer_load(a.optimizer, good), "before': it belongs to none");
    trek_fail(TREK_ERR_IO, "before");
    assert_null(trek_sam_save(a.sam));
    FAILS(trek_sam_load(a.sam, good), TREK_ERR_IO, "");
    REFUSED(trek_sam_save(NULL), TREK_ERR_ARGUMENT, "");
    FAILS(trek_sam_load(a.sam, NULL), TREK_ERR_ARGUMENT, "");
    sam_steps(&a, 3, 6);
    sam_steps(&b, 3, 6);
    assert_same(&a, &b, "after refusals");
    trek_state *plain = trek_optimizer_save(a.optimizer); /* between its steps the optimizer's is its own */
    assert_int_equal(trek_sam_load(b.sam, plain), TREK_OK);
    sam_steps(&a, 6, 8);
    sam_steps(&b, 6, 8);
    assert_same(&a, &b, "the optimizer's");
    trek_state_free(&plain);
    trek_state_free(&good);
    trek_state_free(&of_lbfgs);
    drop(&a), drop(&b), drop(&c);
}

int main(void)
{
    snprintf(path, sizeof path, "/tmp/trek-around-%d.safetensors", (int)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lbfgs_goes_on_to_the_same_bits), cmocka_unit_test(lbfgs_takes_no_other_state),
        cmocka_unit_test(sam_goes_on_to_the_same_bits), cmocka_unit_test(sam_takes_no_other_state),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
