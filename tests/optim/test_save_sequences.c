/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever is done to an optimizer, in whatever order, of every class and in every dtype of state: one whose state goes to a new
 * optimizer now and then does as one that is never saved, to the bit. */
#include "autograd/var_internal.h"
#include "nn/params.h"
#include "nn/state.h"
#include "optim/optimizers.h"
#include "tests/optim/kept_state.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { CLASSES = SPECS + 4, GROUPS = 3, OPS = 24 };

static uint64_t drawing;

static unsigned draw(unsigned below)
{
    drawing = drawing * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(drawing >> 33) % below;
}

static trek_optimizer_spec any_spec(int k, bool odd)
{
    double lr = odd ? 0.02 : 0.05;
    switch (k - SPECS) {
    case 0:
        return trek_lamb(&(trek_lamb_opts){ .lr = lr, .weight_decay = odd ? 0 : 0.1 });
    case 1:
        return trek_lars(&(trek_lars_opts){ .lr = lr, .momentum = odd ? 0 : 0.9 });
    case 2:
        return trek_adafactor(&(trek_adafactor_opts){ .lr = lr });
    case 3:
        return trek_muon(&(trek_muon_opts){ .lr = lr, .adam = true });
    default:
        return spec_at(k, odd);
    }
}

/* What both runs are, and what has been done to their groups. */
typedef struct history {
    trek_optimizer_spec spec, odd;
    bool on_device;
    int n_groups; /* further ones */
    unsigned members[GROUPS];
    trek_optimizer_spec specs[GROUPS];
} history;

static void add_group(model *m, unsigned members, trek_optimizer_spec spec)
{
    trek_params *params = trek_params_new();
    for (int p = 0; p < PARAMS; p++)
        if (members >> p & 1)
            assert_int_equal(trek_params_add(params, names[p], m->vars[p]), TREK_OK);
    assert_true(trek_optimizer_add_group(m->optimizer, params, spec) > 1);
    trek_params_free(&params);
}

static model begin(const history *h)
{
    model m = make(h->spec, h->odd);
    if (h->on_device)
        assert_int_equal(trek_optimizer_use_device_update(m.optimizer), TREK_OK);
    for (int g = 0; g < h->n_groups; g++)
        add_group(&m, h->members[g], h->specs[g]);
    return m;
}

/* Another optimizer takes over, which may have been used before. */
static void move(model *from, const history *h)
{
    trek_state *state = trek_optimizer_save(from->optimizer);
    assert_non_null(state);
    model to = begin(h);
    bool values_first = draw(2);
    if (draw(2))
        step(&to, (int)draw(5));
    if (values_first)
        copy_values(&to, from);
    SUCCEEDS(trek_optimizer_load(to.optimizer, state));
    if (!values_first)
        copy_values(&to, from);
    for (int p = 0; p < PARAMS; p++) {
        trek_var_zero_grad(to.vars[p]);
        assert_int_equal(trek_var_set_requires_grad(to.vars[p], from->vars[p]->requires_grad), TREK_OK);
    }
    trek_state_free(&state);
    drop(from);
    *from = to;
}

/* --- what may be done, to both --- */

static void take_step(model both[2])
{
    int k = (int)draw(1000);
    unsigned mask = draw(1u << PARAMS);
    trek_step_opts opts = { .max_value = draw(2) ? 0.7 : 0, .max_norm = draw(3) ? 0 : 0.5, .zero_grad = true };
    for (int m = 0; m < 2; m++) {
        unsigned frozen = 0;
        for (int p = 0; p < PARAMS; p++)
            frozen |= both[m].vars[p]->requires_grad ? 0 : 1u << p;
        feed(&both[m], k, mask & ~frozen);
        assert_int_equal(trek_optimizer_step_with(both[m].optimizer, &opts), TREK_OK);
    }
}

static void write_outside(model both[2])
{
    int p = (int)draw(PARAMS);
    bool same = draw(2); /* which masters survive */
    trek_tensor *values = test_tensor(draw(1000), trek_var_shape(both[0].vars[p]), 1);
    for (int m = 0; m < 2; m++) {
        trek_tensor *data = trek_var_data(both[m].vars[p]), *own = same ? trek_tensor_clone(data) : trek_tensor_retain(values);
        assert_int_equal(trek_tensor_copy_from(data, own), TREK_OK);
        trek_tensor_release(own);
    }
    trek_tensor_release(values);
}

static void change_rates(model both[2], const history *h)
{
    double lr = 0.01 * (1 + draw(5));
    int group = (int)draw((unsigned)h->n_groups + 3) - 1;
    for (int m = 0; m < 2; m++)
        assert_int_equal(group < 0 ? trek_optimizer_set_lr(both[m].optimizer, lr)
                                   : trek_optimizer_set_group_lr(both[m].optimizer, group, lr),
                         TREK_OK);
}

static void change_groups(model both[2], history *h)
{
    if (h->n_groups == GROUPS)
        return;
    h->members[h->n_groups] = 1 + draw((1u << PARAMS) - 1);
    h->specs[h->n_groups] = draw(2) ? h->spec : h->odd;
    h->specs[h->n_groups].options[0] = 0.01 * (1 + draw(5));
    for (int m = 0; m < 2; m++)
        add_group(&both[m], h->members[h->n_groups], h->specs[h->n_groups]);
    h->n_groups++;
}

static void freeze(model both[2])
{
    int p = (int)draw(PARAMS);
    bool on = !both[0].vars[p]->requires_grad;
    for (int m = 0; m < 2; m++)
        assert_int_equal(trek_var_set_requires_grad(both[m].vars[p], on), TREK_OK);
}

static void assert_same_state(const model both[2], const char *what)
{
    trek_state *a = trek_optimizer_save(both[0].optimizer), *b = trek_optimizer_save(both[1].optimizer);
    assert_int_equal(trek_state_count(a), trek_state_count(b));
    for (int k = 0; k < trek_state_count(a); k++)
        if (!test_same_bits(trek_state_tensor(a, k), trek_state_find(b, trek_state_name(a, k))))
            fail_msg("%s: %s", what, trek_state_name(a, k));
    trek_state_free(&a);
    trek_state_free(&b);
}

static void run(history *h, const char *what)
{
    model both[2] = { begin(h), begin(h) };
    for (int k = 0; k < OPS; k++) {
        unsigned op = draw(16);
        if (op < 6)
            take_step(both);
        else if (op < 10)
            move(&both[1], h);
        else if (op < 12)
            for (int m = 0; m < 2; m++)
                assert_int_equal(trek_optimizer_reset(both[m].optimizer), TREK_OK);
        else if (op == 12)
            write_outside(both);
        else if (op == 13)
            change_rates(both, h);
        else if (op == 14)
            change_groups(both, h);
        else
            freeze(both);
        assert_same(&both[0], &both[1], what, k);
    }
    assert_same_state(both, what);
    drop(&both[0]);
    drop(&both[1]);
}

static void any_sequence_goes_on_to_the_same_bits(void **state)
{
    static const trek_dtype dtypes[] = { TREK_F32, TREK_BF16, TREK_U8 };
    const uint64_t seed = test_seed();
    for (int k = 0; k < CLASSES; k++)
        for (int d = 0; d < (k < SPECS ? 3 : 1); d++)
            for (int round = 0; round < (test_short_on_device() ? 1 : 6); round++) {
                drawing = 977 * (uint64_t)(k + CLASSES * (d + 3 * round)) + ((seed - 1) << 20);
                draw(2);
                history h = { .spec = trek_with_state(any_spec(k, false), dtypes[d]),
                              .odd = trek_with_state(any_spec(k, true), dtypes[d]),
                              .on_device = draw(2) && k < SPECS }; /* whole parameters: by the host, on CPUs */
                char what[80];
                snprintf(what, sizeof what, "class %s, state in %s, round %d", h.spec.klass->name, trek_dtype_name(dtypes[d]),
                         round);
                run(&h, what);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(any_sequence_goes_on_to_the_same_bits) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
