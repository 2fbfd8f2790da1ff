/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/optim/kept_state.h"

#include "autograd/backward.h"
#include "autograd/losses.h"
#include "autograd/ops.h"
#include "nn/params.h"
#include "optim/optimizers.h"
#include "tests/optim/vars.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

/* --- a model of parameters of several dtypes, in two groups --------------------------------------------------- */

const char *const names[PARAMS] = { "a", "b.weight", "b.bias", "c", "d", "e" };
static const trek_dtype dtypes[PARAMS] = { TREK_F32, TREK_F32, TREK_F32, TREK_BF16, TREK_F16, TREK_F64 };

static trek_shape shape_of(int p)
{
    static const int64_t counts[PARAMS] = { 1, 2100, 257, 530, 255, 9 };
    return trek_dims(counts[p]);
}

model make(trek_optimizer_spec spec, trek_optimizer_spec odd)
{
    model m;
    trek_params *params = trek_params_new(), *group = trek_params_new();
    for (int p = 0; p < PARAMS; p++) {
        m.vars[p] = numbered_var((uint32_t)p, shape_of(p), dtypes[p]);
        assert_int_equal(trek_params_add(params, names[p], m.vars[p]), TREK_OK);
        if (p % 2)
            assert_int_equal(trek_params_add(group, names[p], m.vars[p]), TREK_OK);
    }
    m.optimizer = trek_optimizer_new(spec, params);
    assert_non_null(m.optimizer);
    assert_int_equal(trek_optimizer_add_group(m.optimizer, group, odd), 1);
    trek_params_free(&params);
    trek_params_free(&group);
    return m;
}

void drop(model *m)
{
    trek_optimizer_free(&m->optimizer);
    for (int p = 0; p < PARAMS; p++)
        trek_var_release(m->vars[p]);
}

/* Some are much smaller than they were. */
void feed(const model *m, int k, unsigned mask)
{
    for (int p = 0; p < PARAMS; p++)
        if (mask >> p & 1)
            set_numbered_grad(m->vars[p], (uint32_t)(100 + PARAMS * k + p), k % 3 ? 1e-2 : 1);
}

unsigned mask_of(int k) { return (1u << PARAMS) - 1 - (unsigned)(k % 2 ? 1 << k % PARAMS : 0); }

void step(model *m, int k)
{
    feed(m, k, mask_of(k));
    trek_step_opts opts = { .max_value = k % 2 ? 0.7 : 0, .zero_grad = true };
    assert_int_equal(trek_optimizer_step_with(m->optimizer, &opts), TREK_OK);
}

void assert_same(const model *a, const model *b, const char *what, int k)
{
    char text[160];
    snprintf(text, sizeof text, "%s, step %d", what, k);
    assert_same_vars(a->vars, b->vars, names, PARAMS, text);
    assert_int_equal(trek_error_status(), TREK_OK);
}

trek_optimizer_spec spec_at(int k, bool odd)
{
    double lr = odd ? 0.02 : 0.05;
    switch (k) {
    case 0: return trek_sgd(&(trek_sgd_opts){ .lr = lr, .momentum = odd ? 0 : 0.9, .weight_decay = 0.1 });
    case 1: return trek_sgd(&(trek_sgd_opts){ .lr = lr, .momentum = 0.9, .nesterov = odd });
    case 2: return trek_adam(&(trek_adam_opts){ .lr = lr, .weight_decay = 0.1, .maximize = odd });
    case 3: return trek_adamw(&(trek_adam_opts){ .lr = lr, .beta1 = odd ? 0.3 : 0.9 });
    case 4: return trek_adamw(&(trek_adam_opts){ .lr = lr, .amsgrad = odd });
    case 5: return trek_rmsprop(&(trek_rmsprop_opts){ .lr = lr, .momentum = odd ? 0.9 : 0, .centered = true });
    case 6: return trek_adagrad(&(trek_adagrad_opts){ .lr = lr });
    case 7: return trek_adadelta(&(trek_adadelta_opts){ .lr = 10 * lr });
    case 8: return trek_adamax(&(trek_adamax_opts){ .lr = lr });
    case 9: return trek_nadam(&(trek_nadam_opts){ .lr = lr });
    case 10: return trek_radam(&(trek_radam_opts){ .lr = lr });
    case 11: return trek_rprop(&(trek_rprop_opts){ .lr = lr });
    default: return trek_lion(&(trek_lion_opts){ .lr = lr });
    }
}

/* --- a training --- */

enum { POINTS = 512, IN = 8, HIDDEN = 32, BATCH = 64, STEPS_EACH = POINTS / BATCH };

/* Classes that a fixed net of random weights gives; what is lost in the last epoch, per sample. */
double train(trek_optimizer_spec spec, int epochs)
{
    trek_scope outer = trek_scope_begin();
    trek_var *x = trek_var_from(test_tensor(1, trek_dims(POINTS, IN), 1));
    trek_var *teacher = trek_matmul(trek_tanh(trek_matmul(x, trek_var_from(test_tensor(2, trek_dims(IN, 16), 2)))),
                                    trek_var_from(test_tensor(3, trek_dims(16, 4), 2)));
    trek_var *labels = trek_argmax(teacher, trek_dims(1), false);
    trek_params *params = trek_params_new();
    const trek_shape shapes[4] = { trek_dims(IN, HIDDEN), trek_dims(HIDDEN), trek_dims(HIDDEN, 4), trek_dims(4) };
    static const char *const weights[4] = { "w1", "b1", "w2", "b2" };
    trek_var *w[4];
    for (int k = 0; k < 4; k++) {
        trek_tensor *value = test_tensor((uint32_t)(10 + k), shapes[k], k % 2 ? 0 : 0.4);
        w[k] = trek_var_new(value, true);
        trek_tensor_release(value);
        assert_int_equal(trek_params_add(params, weights[k], w[k]), TREK_OK);
    }
    trek_optimizer *optimizer = trek_optimizer_new(spec, params);
    assert_non_null(optimizer);
    double lost = 0;
    for (int k = 0; k < epochs * STEPS_EACH; k++) {
        trek_scope scope = trek_scope_begin();
        int64_t first = (int64_t)k * BATCH % POINTS;
        trek_var *in = trek_narrow(x, 0, first, BATCH), *is = trek_narrow(labels, 0, first, BATCH);
        trek_var *hidden = trek_tanh(trek_add(trek_matmul(in, w[0]), w[1]));
        trek_var *loss = trek_cross_entropy(trek_add(trek_matmul(hidden, w[2]), w[3]), is);
        assert_int_equal(trek_backward(loss), TREK_OK);
        assert_int_equal(trek_optimizer_step_with(optimizer, &(trek_step_opts){ .zero_grad = true }), TREK_OK);
        if (k >= (epochs - 1) * STEPS_EACH)
            lost += trek_var_item(loss) / STEPS_EACH;
        trek_scope_end(scope);
    }
    trek_optimizer_free(&optimizer);
    for (int k = 0; k < 4; k++)
        trek_var_release(w[k]);
    trek_params_free(&params);
    trek_scope_end(outer);
    assert_int_equal(trek_error_status(), TREK_OK);
    return lost;
}

void step_in_slices(model *m, double scale, uint32_t *drawn)
{
    trek_optimizer *optimizer = m->optimizer;
    trek_arena_mark_used(optimizer->arena);
    assert_int_equal(trek_device_update_read(optimizer), TREK_OK);
    optimizer->stale = true;
    assert_int_equal(trek_optimizer_prepare(optimizer), TREK_OK);
    for (int p = 0; p < optimizer->arena->n_parts; p++)
        for (int64_t at = 0, end = optimizer->arena->parts[p].count, next; at < end; at = next) {
            next = at + 1 + (int64_t)(300 * (test_number(9, (*drawn)++) + 1));
            next = next < end ? next : end;
            trek_optimizer_apply_range(optimizer, p, at, next, scale, 0, true);
        }
    trek_optimizer_commit(optimizer);
    trek_device_update_forget(optimizer);
    trek_arena_zero_grads(optimizer->arena);
}

void copy_values(model *to, const model *from)
{
    copy_vars(to->vars, from->vars, PARAMS);
}
