/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers beyond SGD and Adam: values that PyTorch's have, or their papers' formulas in f64, and state in mid-run. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "optim/lbfgs.h"
#include "optim/optimizer_internal.h"

static const double start[6] = { 1, -2, 0.5, 3, -0.25, 1.5 };
static const double grads[3][6] = { { 0.5, -1, 0.25, 2, -1, 0.125 }, { 0.25, 2, -0.5, 0.75, 1, -0.375 },
                                    { -1, 0.125, 1, -0.25, 0.5, 0.5 } };

static trek_var *matrix(void)
{
    trek_tensor *values = trek_tensor_from_data(start, trek_dims(3, 2), TREK_F64, trek_cpu(0));
    trek_var *var = trek_var_new(values, true);
    trek_tensor_release(values);
    return var;
}

static void step(trek_optimizer *optimizer, trek_var *var, int k)
{
    trek_tensor *values = trek_tensor_from_data(grads[k % 3], trek_dims(3, 2), TREK_F64, trek_cpu(0));
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
    (void)state;
    const expected all[] = {
        { trek_lamb((trek_lamb_opts){ .lr = 0.1, .weight_decay = 0.1 }),
          { 0.59037349209786472, -1.9413454903316376, -0.025333444142433992, 1.4967255512792099, -0.2486744819376025,
            1.0313236040500553 } },
        { trek_lars((trek_lars_opts){ .lr = 0.5, .weight_decay = 0.1, .trust_coefficient = 0.1, .maximize = true }),
          { 0.76059183501590055, -1.3054806676546913, 0.79939331599321095, 3.7939270132647822, -0.057107793262582723,
            1.422096898551729 } },
        { trek_adafactor((trek_adafactor_opts){ .lr = 0.1, .weight_decay = 0.1 }),
          { 0.97321480211769018, -2.0313623740520663, 0.20682270933719693, 2.3760153782686508, -0.47439582983965783,
            1.283702225846147 } },
        { trek_muon((trek_muon_opts){ .lr = 0.1 }),
          { 0.8904632791187308, -2.070423220112334, 0.36077826109317429, 2.3816553541191308, -0.31237662100192926,
            1.3756803434650928 } },
        { trek_muon((trek_muon_opts){ .lr = 0.1, .adam = true }),
          { 0.77290473476416421, -1.9200229276382199, 0.26887244733522198, 2.3745988795356663, -0.19519098086033762,
            1.2842211209459804 } },
        { trek_lion((trek_lion_opts){ .lr = 0.1, .weight_decay = 0.1 }),
          { 0.75034144341099995, -2.0819407948120001, 0.27566077071049988, 2.4333017422129992, -0.43435053336024998,
            1.2171409201114998 } },
        { trek_rprop((trek_rprop_opts){ .lr = 0.1, .step_min = 0.02, .step_max = 0.11 }),
          { 0.669, -2.005, 0.26, 2.669, -0.255, 1.26 } },
    };
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        check(&all[k]);
}

static void rprop_refuses_steps_that_cannot_be(void **state)
{
    (void)state;
    const trek_rprop_opts bad[] = { { .eta_minus = 1 }, { .eta_plus = 0.5 }, { .step_min = 2, .step_max = 1 } };
    static const char *const named[] = { "eta_minus", "eta_plus", "step_min" };
    for (int k = 0; k < 3; k++) {
        trek_optimizer_spec spec = trek_rprop(bad[k]);
        assert_int_equal(trek_optimizer_spec_check(&spec), TREK_ERR_ARGUMENT);
        assert_non_null(strstr(trek_error(), named[k]));
        trek_error_clear();
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
    trek_var *all = trek_sum(sum, trek_dims_none(), false);
    *loss = trek_var_item(all);
    return trek_backward(all);
}

static void lbfgs_goes_pytorchs_way(void **state)
{
    (void)state;
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
    const struct CMUnitTest tests[] = { cmocka_unit_test(six_steps_and_state_in_mid_run),
                                        cmocka_unit_test(rprop_refuses_steps_that_cannot_be),
                                        cmocka_unit_test(lbfgs_goes_pytorchs_way) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
