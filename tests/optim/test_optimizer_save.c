/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer's state by itself, through a file: of every class, with groups, 16-bit parameters, one that is never updated,
 * after any number of steps; and what is not taken, which changes nothing. */
#include <unistd.h>

#include "autograd/var_internal.h"
#include "nn/params.h"
#include "nn/state.h"
#include "nn/state_modules.h"
#include "optim/optimizer_internal.h"
#include "optim/optimizers.h"
#include "tests/optim/vars.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { PARAMS = 4 };
static const char *const names[PARAMS] = { "net.weight", "net.bias", "low", "unused" };
static char path[64];

typedef struct model {
    trek_var *vars[PARAMS];
    trek_optimizer *optimizer;
} model;

static trek_shape shape_of(int p) { return p == 1 ? trek_dims(3) : p == 2 ? trek_dims(2, 5) : trek_dims(4, 3); }

/* low: one parameter is of 16 bits. */
static model make(trek_optimizer_spec spec, bool low, bool groups)
{
    model m;
    trek_params *params = trek_params_new();
    for (int p = 0; p < PARAMS; p++) {
        m.vars[p] = numbered_var((uint32_t)p, shape_of(p), p == 2 && low ? TREK_BF16 : TREK_F32);
        trek_params_add(params, names[p], m.vars[p]);
    }
    m.optimizer = trek_optimizer_new(spec, params);
    assert_non_null(m.optimizer);
    if (groups) {
        spec.options[0] = 0.03;
        assert_int_equal(trek_optimizer_vectors(m.optimizer, spec), 1);
    }
    trek_params_free(&params);
    return m;
}

static void drop(model *m)
{
    trek_optimizer_free(&m->optimizer);
    for (int p = 0; p < PARAMS; p++)
        trek_var_release(m->vars[p]);
}

static void step(model *m, int k)
{
    for (int p = 0; p < PARAMS - 1; p++)
        set_numbered_grad(m->vars[p], (uint32_t)(100 + PARAMS * k + p), 1);
    assert_int_equal(trek_optimizer_step(m->optimizer), TREK_OK);
}

static void assert_same(const model *a, const model *b, const char *what)
{
    assert_same_vars(a->vars, b->vars, names, PARAMS, what);
}

/* After so many steps the state goes through a file to another model's optimizer, which has seen other steps. */
static void check(trek_optimizer_spec spec, bool low, bool groups, int steps)
{
    model a = make(spec, low, groups), b = make(spec, low, groups);
    for (int k = 0; k < steps; k++)
        step(&a, k);
    step(&b, 7);
    assert_int_equal(trek_optimizer_set_group_lr(a.optimizer, groups, 0.017), TREK_OK);
    trek_state *saved = trek_optimizer_save(a.optimizer);
    assert_non_null(saved);
    assert_int_equal(trek_state_write(saved, path), TREK_OK);
    trek_state_free(&saved);
    trek_state *read = trek_state_read(path);
    assert_non_null(read);
    copy_vars(b.vars, a.vars, PARAMS);
    assert_int_equal(trek_optimizer_load(b.optimizer, read), TREK_OK);
    trek_state_free(&read);
    assert_true(trek_optimizer_group_lr(b.optimizer, groups) == 0.017);
    for (int k = steps; k < steps + 3; k++) {
        step(&a, k);
        step(&b, k);
    }
    assert_same(&a, &b, spec.klass->name);
    drop(&a);
    drop(&b);
}

static void every_class_goes_on_to_the_same_bits(void **state)
{
    const trek_optimizer_spec all[] = {
        trek_sgd(&(trek_sgd_opts){ .lr = 0.1 }), trek_sgd(&(trek_sgd_opts){ .lr = 0.1, .momentum = 0.9, .nesterov = true }),
        trek_adam(&(trek_adam_opts){ .lr = 0.1 }), trek_adamw(&(trek_adam_opts){ .lr = 0.1, .amsgrad = true }),
        trek_rmsprop(&(trek_rmsprop_opts){ .lr = 0.1, .momentum = 0.5, .centered = true }),
        trek_adagrad(&(trek_adagrad_opts){ .lr = 0.1 }),
        trek_adadelta(&(trek_adadelta_opts){ .lr = 0.1 }), trek_adamax(&(trek_adamax_opts){ .lr = 0.1 }),
        trek_nadam(&(trek_nadam_opts){ .lr = 0.1 }), trek_radam(&(trek_radam_opts){ .lr = 0.1 }),
        trek_rprop(&(trek_rprop_opts){ .lr = 0.1 }), trek_lion(&(trek_lion_opts){ .lr = 0.1 }),
        trek_lamb(&(trek_lamb_opts){ .lr = 0.1 }), trek_lars(&(trek_lars_opts){ .lr = 0.1, .momentum = 0.9 }),
        trek_adafactor(&(trek_adafactor_opts){ .lr = 0.1 }), trek_muon(&(trek_muon_opts){ .lr = 0.1, .adam = true }),
    };
    uint32_t draw = 0;
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        for (int round = 0; round < 4; round++) {
            uint32_t bits = (uint32_t)(1e6f * (test_number(5, draw++) + 1));
            bool whole = all[k].klass->whole != NULL;
            check(all[k], !whole && (bits & 1), bits >> 1 & 1, (int)(bits >> 2) % 4);
        }
}

static void what_is_not_its_own_changes_nothing(void **state)
{
    trek_optimizer_spec spec = trek_adam(&(trek_adam_opts){ .lr = 0.1 });
    model a = make(spec, false, true), b = make(spec, false, true);
    for (int k = 0; k < 2; k++) {
        step(&a, k);
        step(&b, k);
    }
    trek_state *good = trek_optimizer_save(a.optimizer);
    double rates[] = { 0.1, 0.2, 0.3 }, wrong[] = { 0.1, -1 };
    const struct { const char *leave, *add; trek_tensor *tensor; const char *says; } rows[] = {
        { "lr", NULL, NULL, "not the state of an optimizer" },
        { "lr", "lr", test_values(wrong, trek_dims(2), TREK_F64), "negative" },
        { "lr", "lr", test_values(rates, trek_dims(3), TREK_F64), "3 groups" },
        { "lr", "lr", test_values(rates, trek_dims(1, 2), TREK_F64), "learning rates are missing" },
        { "lr", "lr", test_values(rates, trek_dims(2), TREK_F32), "learning rates are missing" },
        { NULL, "nobody.step", test_values(rates, trek_dims(1), TREK_F64), "'nobody.step'" },
        { NULL, "plain", test_values(rates, trek_dims(1), TREK_F64), "'plain'" },
        { "low.exp_avg", NULL, NULL, "'low': a part" },
        { "low.step", NULL, NULL, "'low': a part" },
        { "low.exp_avg", "low.exp_avg", test_values(rates, trek_dims(3), TREK_F32), "'low.exp_avg': [3]" },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        trek_state *bad = state_with(good, rows[k].leave, rows[k].add, rows[k].tensor, NULL);
        assert_int_equal(trek_optimizer_load(a.optimizer, bad), TREK_ERR_FORMAT);
        if (!strstr(trek_error(), rows[k].says))
            fail_msg("%s, not %s", trek_error(), rows[k].says);
        assert_null(trek_optimizer_save(a.optimizer)); /* while an error is set */
        trek_error_clear();
        trek_state_free(&bad);
    }
    REFUSED(trek_optimizer_save(NULL), TREK_ERR_ARGUMENT, "");
    FAILS(trek_optimizer_load(a.optimizer, NULL), TREK_ERR_ARGUMENT, "");
    FAILS(trek_optimizer_load(NULL, good), TREK_ERR_ARGUMENT, "");
    step(&a, 2);
    step(&b, 2);
    assert_same(&a, &b, "after refusals");
    trek_state_free(&good);
    drop(&a);
    drop(&b);
}

/* Names and values, as PyTorch's state_dict() has them; copies, which later steps leave alone. */
static void names_and_copies(void **state)
{
    model m = make(trek_adam(&(trek_adam_opts){ .lr = 0.1 }), true, false);
    trek_state *fresh = trek_optimizer_save(m.optimizer);
    assert_int_equal(trek_state_count(fresh), 1);
    assert_string_equal(trek_state_name(fresh, 0), "lr");
    trek_state_free(&fresh);
    step(&m, 0);
    trek_state *saved = trek_optimizer_save(m.optimizer);
    static const char *const expected[] = { "lr", "net.weight.exp_avg", "net.weight.exp_avg_sq", "net.weight.step",
                                            "net.bias.exp_avg",
                                            "net.bias.exp_avg_sq", "net.bias.step", "low.exp_avg", "low.exp_avg_sq", "low.master",
                                            "low.step" };
    assert_int_equal(trek_state_count(saved), 11);
    for (int k = 0; k < 11; k++)
        assert_non_null(trek_state_find(saved, expected[k]));
    double *before = test_read(trek_state_find(saved, "net.bias.exp_avg"));
    step(&m, 1);
    double *after = test_read(trek_state_find(saved, "net.bias.exp_avg"));
    assert_memory_equal(before, after, 3 * sizeof *before);
    assert_int_equal(trek_tensor_device(trek_state_find(saved, "low.exp_avg")).type, TREK_CPU);
    assert_true(trek_tensor_item(trek_state_find(saved, "low.step")) == 1);
    free(before);
    free(after);
    trek_state_free(&saved);
    drop(&m);
}

/* What begins anew has no numbers of its own, but masters go on: a save between the reset and the next step has them. */
static void masters_survive_a_reset(void **state)
{
    model a = make(trek_adam(&(trek_adam_opts){ .lr = 0.1 }), true, false),
          b = make(trek_adam(&(trek_adam_opts){ .lr = 0.1 }), true, false);
    step(&a, 0);
    assert_int_equal(trek_optimizer_reset(a.optimizer), TREK_OK);
    for (int again = 0; again < 2; again++) {
        trek_state *saved = trek_optimizer_save(again ? b.optimizer : a.optimizer);
        assert_int_equal(trek_state_count(saved), 2);
        assert_non_null(trek_state_find(saved, "lr"));
        assert_non_null(trek_state_find(saved, "low.master"));
        if (!again)
            copy_vars(b.vars, a.vars, PARAMS);
        assert_int_equal(trek_optimizer_load(b.optimizer, saved), TREK_OK);
        trek_state_free(&saved);
    }
    step(&a, 1);
    step(&b, 1);
    assert_same(&a, &b, "after a reset");
    drop(&a);
    drop(&b);
}

int main(void)
{
    snprintf(path, sizeof path, "/tmp/trek-optimizer-%d.safetensors", (int)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_class_goes_on_to_the_same_bits), cmocka_unit_test(what_is_not_its_own_changes_nothing),
        cmocka_unit_test(names_and_copies), cmocka_unit_test(masters_survive_a_reset),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
