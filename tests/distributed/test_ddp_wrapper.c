/* SPDX-License-Identifier: Apache-2.0 */
/* trek_ddp as a module: the wrapper in a tree, outputs of all replicas joined, several inputs, a generator and a
 * discriminator under wrappers of their own. */
#include <pthread.h>
#include <unistd.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/ddp.h"
#include "nn/init.h"
#include "nn/layers.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "nn/module_values.h"
#include "nn/state.h"
#include "nn/state_modules.h"
#include "nn/state_tensors.h"
#include "optim/optimizer.h"
#include "tensor/print.h"
#include "tests/distributed/wrapped.h"
#include "tests/support/ddp_net.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

/* --- the wrapper is a module ----------------------------------------------------------------------------- */

static void wrapper_is_a_module(void **state)
{
    trek_module *models[2] = { normed(), normed() };
    trek_ddp *ddp = trek_ddp_wrap(models, 2, NULL);
    trek_module *m = trek_ddp_module(ddp);
    assert_int_equal(trek_module_param_count(m), trek_module_param_count(models[0]));
    assert_ptr_equal(trek_module_find(m, "0.weight"), trek_module_find(models[0], "0.weight"));
    assert_null(trek_module_find(m, "weight"));
    trek_state *a = trek_state_of(m), *b = trek_state_of(models[0]);
    assert_int_equal(trek_state_count(a), 7);
    assert_int_equal(trek_state_count(b), 7);
    for (int k = 0; k < 7; k++)
        assert_string_equal(trek_state_name(a, k), trek_state_name(b, k));
    assert_int_equal(trek_state_apply(b, m), TREK_OK);
    trek_state_free(&a);
    trek_state_free(&b);
    trek_module_train(m, false);
    assert_false(models[0]->own->training);
    assert_false(models[0]->own->children[1].module->own->training);
    trek_module_train(m, true);
    assert_true(models[0]->own->training);
    trek_module_freeze(m);
    assert_false(trek_var_requires_grad(trek_module_find(models[0], "0.bias")));
    trek_module_thaw(m);
    trek_device devices[2];
    assert_int_equal(trek_ddp_devices(ddp, devices, 2), 2);
    assert_ptr_equal(trek_ddp_replica_module(ddp, 1), models[1]);
    assert_null(trek_ddp_replica_module(ddp, 2));
    trek_error_clear();
    /* inside another module: the names have the parent's prefix only */
    trek_module *parent = trek_nn_sequential((trek_module *[]){ m }, 1);
    assert_non_null(trek_module_find(parent, "0.0.weight"));
    trek_ddp *same = ddp;
    trek_ddp_free(&same);
    assert_int_equal(trek_error_status(), TREK_ERR_STATE); /* the parent owns it */
    trek_error_clear();
    char *summary = trek_module_summary(parent);
    assert_non_null(strstr(summary, "0.1.running_mean"));
    trek_string_free(&summary);
    trek_module_free(&parent);
}

static void models_may_grow(void **state)
{
    trek_module *models[2] = { normed(), normed() };
    trek_ddp *ddp = trek_ddp_wrap(models, 2, NULL);
    for (int r = 0; r < 2; r++)
        trek_nn_sequential_add(models[r], trek_nn_linear(4, 2, test_device()));
    assert_false(same_values(models[0], models[1], "2.weight"));
    assert_int_equal(trek_ddp_refresh(ddp), TREK_OK);
    assert_true(same_values(models[0], models[1], "2.weight"));
    trek_nn_sequential_add(models[0], trek_nn_linear(2, 2, test_device()));
    FAILS(trek_ddp_refresh(ddp), TREK_ERR_ARGUMENT, "");
    trek_nn_sequential_add(models[1], trek_nn_linear(2, 2, test_device()));
    assert_int_equal(trek_ddp_refresh(ddp), TREK_OK);
    trek_ddp_free(&ddp);
}

typedef struct turned {
    trek_module base;
    trek_var *w;
} turned;

static trek_var *turned_forward(trek_module *self, trek_var *x) { return trek_matmul(x, ((turned *)self)->w); }
static const trek_module_class turned_class = { .name = "turned", .size = sizeof(turned), .forward = turned_forward };

/* One replica, too, then takes no part in anything: without lists a backward would give nobody a gradient. */
static void a_refused_model_trains_no_more(void **state)
{
    trek_module *model = normed(), *odd = trek_module_new(&turned_class);
    trek_ddp *ddp = trek_ddp_wrap(&model, 1, NULL);
    trek_scope scope = trek_scope_begin();
    trek_var *loss = trek_mean(trek_forward(model, ddp_rows(1, 0, 3, IN, TREK_F32)), trek_dims_all(), false);
    trek_var *w = trek_transpose(ddp_rows(2, 0, 3, 4, TREK_F32), 0, 1);
    trek_module_param(odd, "w", offsetof(turned, w), trek_tensor_retain(trek_var_data(w)));
    trek_nn_sequential_add(model, odd);
    FAILS(trek_ddp_refresh(ddp), TREK_ERR_ARGUMENT, "not contiguous");
    FAILS(trek_ddp_backward(ddp, loss), TREK_ERR_STATE, "");
    FAILS(trek_ddp_reduce_gradients(ddp), TREK_ERR_STATE, "");
    trek_scope_end(scope);
    trek_ddp_free(&ddp);
}

/* --- inputs of each replica, outputs joined -------------------------------------------------------------- */

static void outputs_are_joined(void **state)
{
    static const int64_t counts[][3] = { { 2, 3, 4 }, { 4, 0, 1 }, { 0, 2, 2 } };
    for (int c = 0; c < 3; c++) {
        wrapped w;
        wrap(&w, 3, TREK_F64, NULL);
        trek_module *one = ddp_net_new(TREK_F64, 0);
        trek_scope scope = trek_scope_begin();
        trek_var *inputs[3], *leaves[3];
        int64_t total = 0;
        for (int r = 0; r < 3; r++) {
            leaves[r] = counts[c][r] ? trek_var_new(trek_var_data(ddp_rows(1, total, counts[c][r], IN, TREK_F64)), true) : NULL;
            inputs[r] = leaves[r];
            total += counts[c][r];
        }
        trek_var *x = trek_var_new(trek_var_data(ddp_rows(1, 0, total, IN, TREK_F64)), true);
        trek_var *y = trek_ddp_forward(w.ddp, inputs), *expected = trek_forward(one, x);
        assert_non_null(y);
        expect_close(y, expected);
        trek_var *target = ddp_rows(5, 0, total, OUT, TREK_F64);
        trek_backward(trek_mse_loss(expected, target));
        if (c == 1) {
            assert_int_equal(trek_backward(trek_mse_loss(y, target)), TREK_OK);
            assert_int_equal(trek_ddp_reduce_gradients(w.ddp), TREK_OK);
            for (int64_t r = 0, at = 0; r < 3; at += counts[c][r++])
                if (leaves[r])
                    expect_close(trek_var_grad(leaves[r]), trek_narrow(trek_var_grad(x), 0, at, counts[c][r]));
        } else {
            assert_int_equal(trek_ddp_backward(w.ddp, trek_mse_loss(y, target)), TREK_OK);
        }
        for (int r = 0; r < 3; r++) {
            expect_close(trek_var_grad(((ddp_net *)w.models[r])->w1), trek_var_grad(((ddp_net *)one)->w1));
            expect_close(trek_var_grad(((ddp_net *)w.models[r])->tied), trek_var_grad(((ddp_net *)one)->tied));
        }
        trek_no_grad_begin();
        assert_false(trek_var_requires_grad(trek_ddp_forward(w.ddp, inputs)));
        expect_close(trek_forward(trek_ddp_module(w.ddp), x), trek_forward(one, x)); /* divided evenly */
        trek_no_grad_end();
        trek_scope_end(scope);
        for (int r = 0; r < 3; r++)
            trek_var_release(leaves[r]);
        trek_var_release(x);
        trek_module_free(&one);
        assert_int_equal(trek_error_status(), TREK_OK);
        trek_ddp_free(&w.ddp);
    }
    assert_int_equal(trek_tape_size(), 0);
}

/* Two inputs: (x w^T) z */
typedef struct gate {
    trek_module base;
    trek_var *w;
} gate;

static trek_var *gate_forward(trek_module *self, trek_var *const *inputs, int n)
{
    return trek_mul(trek_linear(inputs[0], ((gate *)self)->w, NULL), inputs[1]);
}

static const char *const gate_inputs[] = { "x", "z", NULL };

static const trek_module_class gate_class = {
    .name = "gate", .size = sizeof(gate), .forward_many = gate_forward, .input_names = gate_inputs
};

static trek_module *gate_new(void)
{
    trek_module *m = trek_module_new(&gate_class);
    trek_tensor *w = trek_tensor_cast(test_tensor(7, trek_dims(OUT, IN), 1), TREK_F64);
    trek_module_param(m, "w", offsetof(gate, w), w);
    return trek_module_check(m);
}

/* inputs[2 r + k] is input k of replica r; the joined output and the gradients are those of all rows through one. */
static void several_inputs(void **state)
{
    static const int64_t counts[][3] = { { 2, 3, 4 }, { 1, 0, 5 }, { 0, 0, 3 } };
    for (int c = 0; c < 3; c++) {
        trek_module *models[3] = { gate_new(), gate_new(), gate_new() }, *one = gate_new();
        trek_ddp *ddp = trek_ddp_wrap(models, 3, NULL);
        assert_non_null(ddp);
        trek_scope scope = trek_scope_begin();
        trek_var *inputs[6] = { NULL };
        int64_t total = 0;
        for (int r = 0; r < 3; total += counts[c][r++])
            if (counts[c][r]) {
                inputs[2 * r] = ddp_rows(1, total, counts[c][r], IN, TREK_F64);
                inputs[2 * r + 1] = ddp_rows(2, total, counts[c][r], OUT, TREK_F64);
            }
        trek_var *all[] = { ddp_rows(1, 0, total, IN, TREK_F64), ddp_rows(2, 0, total, OUT, TREK_F64) },
                 *target = ddp_rows(5, 0, total, OUT, TREK_F64);
        trek_var *y = trek_ddp_forward_many(ddp, inputs, 2), *expected = trek_forward_many(one, all, 2);
        if (!y)
            fail_msg("%s", trek_error());
        expect_close(y, expected);
        assert_int_equal(trek_backward(trek_mse_loss(expected, target)), TREK_OK);
        assert_int_equal(trek_ddp_backward(ddp, trek_mse_loss(y, target)), TREK_OK);
        for (int r = 0; r < 3; r++)
            expect_close(trek_var_grad(((gate *)models[r])->w), trek_var_grad(((gate *)one)->w));
        REFUSED(trek_ddp_forward_many(ddp, inputs, 0), TREK_ERR_ARGUMENT, "");
        REFUSED(trek_ddp_forward_many(ddp, NULL, 2), TREK_ERR_ARGUMENT, "");
        REFUSED(trek_ddp_forward_many(NULL, inputs, 2), TREK_ERR_ARGUMENT, "");
        inputs[5] = NULL; /* the first is there, the second is not */
        assert_null(trek_ddp_forward_many(ddp, inputs, 2));
        assert_int_not_equal(trek_error_status(), TREK_OK);
        trek_error_clear();
        trek_scope_end(scope);
        trek_ddp_free(&ddp);
        trek_module_free(&one);
    }
    assert_int_equal(trek_tape_size(), 0);
}

/* --- a generator and a discriminator --------------------------------------------------------------------- */

enum { GAN_STEPS = 10, GAN_ROWS = 7 };

typedef struct gan_part {
    int n;
    trek_module *models[3];
    trek_optimizer *optimizers[3];
    trek_ddp *ddp;
} gan_part;

static void gan_wrap(gan_part *p, int n, bool generator)
{
    p->n = n;
    for (int r = 0; r < n; r++) {
        trek_linear_opts a = { .in = generator ? IN : OUT, .out = 4, .dtype = TREK_F64, .device = test_device() };
        trek_linear_opts b = { .in = 4, .out = generator ? OUT : 1, .dtype = TREK_F64, .device = test_device() };
        trek_seed(generator ? 7 : 8);
        p->models[r] = trek_nn_sequential((trek_module *[]){ trek_nn_linear_with(&a), trek_nn_tanh(),
                                                             trek_nn_linear_with(&b) }, 3);
    }
    p->ddp = trek_ddp_wrap(p->models, n, NULL);
    assert_non_null(p->ddp);
    for (int r = 0; r < n; r++) {
        trek_params *params = trek_module_params(p->models[r]);
        p->optimizers[r] = trek_optimizer_new(trek_sgd(&(trek_sgd_opts){ .lr = 0.2 }), params);
        trek_params_free(&params);
    }
}

/* Its own gradients only are cleared: the other part has none of this pass. */
static void gan_step(gan_part *p)
{
    for (int r = 0; r < p->n; r++) {
        assert_int_equal(trek_optimizer_step(p->optimizers[r]), TREK_OK);
        assert_int_equal(trek_optimizer_zero_grad(p->optimizers[r]), TREK_OK);
    }
}

static void gan_free(gan_part *p)
{
    for (int r = 0; r < p->n; r++)
        trek_optimizer_free(&p->optimizers[r]);
    trek_ddp_free(&p->ddp);
}

static trek_status expect_none(const char *name, trek_var *param, void *arg)
{
    if (trek_var_grad(param))
        fail_msg("the other part's \"%s\" has got a gradient", name);
    return TREK_OK;
}

/* One loss, whose pass is for one part alone. */
static void gan_pass(gan_part *of, gan_part *other, trek_var *loss, double *to, int *n)
{
    assert_int_equal(trek_ddp_backward(of->ddp, loss), TREK_OK);
    for (int r = 0; r < other->n; r++)
        trek_module_each_param(other->models[r], expect_none, NULL);
    gan_step(of);
    to[(*n)++] = trek_tensor_item(trek_var_data(loss));
}

static int gan_train(int n, double *to)
{
    gan_part g, d;
    int count = 0;
    gan_wrap(&g, n, true);
    gan_wrap(&d, n, false);
    for (uint32_t step = 0; step < GAN_STEPS; step++) {
        trek_scope scope = trek_scope_begin();
        trek_var *real = ddp_rows(3 + step, 0, GAN_ROWS, OUT, TREK_F64), *noise = ddp_rows(50 + step, 0, GAN_ROWS, IN, TREK_F64);
        trek_var *fake = trek_forward(trek_ddp_module(g.ddp), noise);
        trek_var *on_real = trek_forward(trek_ddp_module(d.ddp), real), *on_fake = trek_forward(trek_ddp_module(d.ddp), fake);
        /* through the generator's forward, too, which gets nothing of it */
        trek_var *gap = trek_sub(trek_mean(trek_square(trek_add_scalar(on_real, -1)), trek_dims_all(), false),
                                 trek_mul_scalar(trek_mean(trek_square(on_fake), trek_dims_all(), false), -1));
        gan_pass(&d, &g, gap, to, &count);
        fake = trek_forward(trek_ddp_module(g.ddp), noise);
        on_fake = trek_forward(trek_ddp_module(d.ddp), fake);
        gan_pass(&g, &d, trek_mean(trek_square(trek_add_scalar(on_fake, -1)), trek_dims_all(), false), to, &count);
        trek_scope_end(scope);
    }
    for (int k = 0; k < 2; k++) {
        trek_state *state = trek_state_of(k ? d.models[n - 1] : g.models[n - 1]);
        for (int e = 0; e < trek_state_count(state); e++) {
            const trek_tensor *t = trek_state_tensor(state, e);
            assert_int_equal(trek_tensor_to_host(t, TREK_F64, to + count, (size_t)trek_tensor_numel(t) * sizeof *to), TREK_OK);
            count += (int)trek_tensor_numel(t);
        }
        trek_state_free(&state);
    }
    gan_free(&g);
    gan_free(&d);
    return count;
}

static void a_pass_is_for_one_wrapper(void **state)
{
    static double one[256], many[256];
    int n = gan_train(1, one);
    for (int world = 2; world <= 3; world++) {
        assert_int_equal(gan_train(world, many), n);
        for (int k = 0; k < n; k++)
            if (!(fabs(many[k] - one[k]) < 1e-11))
                fail_msg("%d ranks: number %d is %.17g instead of %.17g", world, k, many[k], one[k]);
    }
    assert_int_equal(trek_tape_size(), 0);
}

static trek_status forward_inside(int rank, void *arg)
{
    wrapped *w = arg;
    trek_scope scope = trek_scope_begin();
    trek_var *x = ddp_rows(1, rank, 1, IN, TREK_F64);
    trek_var *y = trek_forward(trek_ddp_module(w->ddp), x); /* this rank's replica */
    w->status[rank] = y && trek_var_size(y, 0) == 1 ? TREK_OK : TREK_ERR_SHAPE;
    trek_var *none = trek_ddp_forward(w->ddp, (trek_var *[]){ x, x });
    if (none || trek_error_status() != TREK_ERR_STATE)
        w->status[rank] = TREK_ERR_STATE;
    trek_error_clear();
    w->counts[rank] = trek_ddp_rank(w->ddp);
    trek_scope_end(scope);
    return TREK_OK;
}

static void forwards_that_are_refused(void **state)
{
    wrapped w;
    wrap(&w, 2, TREK_F64, NULL);
    assert_int_equal(trek_ranks_run(trek_ddp_ranks(w.ddp), forward_inside, &w), TREK_OK);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(w.status[r], TREK_OK);
        assert_int_equal((int)w.counts[r], r);
    }
    trek_scope scope = trek_scope_begin();
    REFUSED(trek_ddp_forward(w.ddp, (trek_var *[]){ NULL, NULL }), TREK_ERR_ARGUMENT, "");
    trek_var *wrong = trek_var_from(test_tensor(1, trek_dims(2, IN + 1), 1));
    assert_null(trek_ddp_forward(w.ddp, (trek_var *[]){ ddp_rows(1, 0, 2, IN, TREK_F64), wrong }));
    assert_non_null(strstr(trek_error(), "rank 1"));
    trek_error_clear();
    FAILS(trek_ddp_backward_weighted(w.ddp, NULL, 1), TREK_ERR_STATE, "");
    trek_scope_end(scope);
    trek_ddp_free(&w.ddp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrapper_is_a_module), cmocka_unit_test(models_may_grow),
        cmocka_unit_test(a_refused_model_trains_no_more), cmocka_unit_test(outputs_are_joined), cmocka_unit_test(several_inputs),
        cmocka_unit_test(a_pass_is_for_one_wrapper), cmocka_unit_test(forwards_that_are_refused),
    };
    alarm(300);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
