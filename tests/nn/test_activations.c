/* SPDX-License-Identifier: Apache-2.0 */
/* nn/activations.h: what the comparison with PyTorch does not see: numbers as they are left out and given, what is refused,
 * modes, initial values and names. */
#include "autograd/ops.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "tensor/creation.h"
#include "tensor/shapes.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

/* The layer at -2, 0.25 and 3; it is freed. */
static void check(trek_module *m, double a, double b, double c)
{
    if (!m)
        fail_msg("%s", trek_error());
    trek_scope scope = trek_scope_begin();
    trek_var *y = trek_forward(m, trek_var_from(test_values((double[]){ -2, 0.25, 3 }, trek_dims(3), TREK_F32)));
    if (!y)
        fail_msg("%s: %s", trek_module_name(m), trek_error());
    const double wanted[] = { a, b, c };
    double *got = test_read(trek_var_data(y));
    for (int k = 0; k < 3; k++)
        if (!(fabs(got[k] - wanted[k]) <= 2e-6 * (1 + fabs(wanted[k]))))
            fail_msg("%s, number %d: %.9g instead of %.9g", trek_module_name(m), k, got[k], wanted[k]);
    free(got);
    trek_scope_end(scope);
    trek_module_free(&m);
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double softplus(double x) { return log1p(exp(x)); }

static void test_numbers(void **state)
{
    check(trek_nn_relu6(), 0, 0.25, 3);
    check(trek_nn_selu(), 1.0507009873554805 * 1.6732632423543772 * expm1(-2), 1.0507009873554805 * 0.25, 1.0507009873554805 * 3);
    check(trek_nn_softsign(), -2.0 / 3, 0.2, 0.75);
    check(trek_nn_hardswish(), -2.0 / 6, 0.25 * 3.25 / 6, 3);
    check(trek_nn_hardsigmoid(), 1.0 / 6, 3.25 / 6, 1);
    check(trek_nn_tanhshrink(), -2 + tanh(2), 0.25 - tanh(0.25), 3 - tanh(3));
    check(trek_nn_mish(), -2 * tanh(softplus(-2)), 0.25 * tanh(softplus(0.25)), 3 * tanh(softplus(3)));
    check(trek_nn_logsigmoid(), -softplus(2), -softplus(-0.25), -softplus(-3));
    check(trek_nn_elu(), expm1(-2), 0.25, 3);
    check(trek_nn_elu_with(&(trek_elu_opts){ .alpha = 0.5 }), 0.5 * expm1(-2), 0.25, 3);
    check(trek_nn_elu_with(&(trek_elu_opts){ .alpha = TREK_ZERO }), 0, 0.25, 3);
    check(trek_nn_celu(), expm1(-2), 0.25, 3);
    check(trek_nn_celu_with(&(trek_celu_opts){ .alpha = 2 }), 2 * expm1(-1), 0.25, 3);
    check(trek_nn_softplus(), softplus(-2), softplus(0.25), softplus(3));
    check(trek_nn_softplus_with(&(trek_softplus_opts){ .beta = 2, .threshold = 4 }), softplus(-4) / 2, softplus(0.5) / 2, 3);
    check(trek_nn_hardtanh(), -1, 0.25, 1);
    check(trek_nn_hardtanh_with(&(trek_hardtanh_opts){ .low = TREK_ZERO, .high = 2 }), 0, 0.25, 2);
    check(trek_nn_hardshrink(), -2, 0, 3);
    check(trek_nn_hardshrink_with(&(trek_shrink_opts){ .lambda = TREK_ZERO }), -2, 0.25, 3);
    check(trek_nn_softshrink(), -1.5, 0, 2.5);
    check(trek_nn_softshrink_with(&(trek_shrink_opts){ .lambda = 1 }), -1, 0, 2);
    check(trek_nn_threshold(0.5, 9), 9, 9, 3);
    check(trek_nn_threshold(TREK_ZERO, TREK_ZERO), 0, 0.25, 3);
    check(trek_nn_prelu(test_device()), -0.5, 0.25, 3);
    check(trek_nn_prelu_with(&(trek_prelu_opts){ .init = TREK_ZERO, .device = test_device() }), 0, 0.25, 3);
    double sum = exp(2) + exp(-0.25) + exp(-3);
    check(trek_nn_softmin(0), exp(2) / sum, exp(-0.25) / sum, exp(-3) / sum);
    check(trek_nn_softmin(TREK_ZERO), exp(2) / sum, exp(-0.25) / sum, exp(-3) / sum);
}

static void test_modes(void **state)
{
    trek_module *m = trek_nn_rrelu(), *given = trek_nn_rrelu_with(&(trek_rrelu_opts){ .lower = 0.5, .upper = 0.5 });
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(trek_tensor_full(trek_dims(64), -1, TREK_F32, test_device()));
    double *drawn = test_read(trek_var_data(trek_forward(m, x))), least = 0, most = -1;
    for (int k = 0; k < 64; k++)
        least = fmin(least, drawn[k]), most = fmax(most, drawn[k]);
    assert_true(least < most && least >= -1 / 3.0 - 1e-6 && most <= -0.125 + 1e-6);
    trek_module_train(m, false);
    double *mean = test_read(trek_var_data(trek_forward(m, x))), *half = test_read(trek_var_data(trek_forward(given, x)));
    assert_true(fabs(mean[0] + (1 / 8.0 + 1 / 3.0) / 2) < 1e-6 && mean[63] == mean[0] && half[5] == -0.5);
    free(drawn), free(mean), free(half);
    trek_scope_end(scope);
    trek_module_free(&m);
    trek_module_free(&given);
}

static void test_holding(void **state)
{
    trek_module *slope = trek_nn_prelu_with(&(trek_prelu_opts){ .parameters = 3, .init = 0.1, .device = test_device() });
    assert_int_equal(trek_module_param_count(slope), 3);
    assert_non_null(trek_module_find(slope, "weight"));
    trek_module *gated = trek_nn_swiglu(4, 6, test_device()),
                *other = trek_nn_swiglu_with(
                    &(trek_swiglu_opts){ .in = 4, .hidden = 6, .out = 2, .bias = true, .device = test_device() });
    assert_int_equal(trek_module_param_count(gated), 3 * 24);
    assert_int_equal(trek_module_param_count(other), 2 * 24 + 12 + 6 + 6 + 2);
    assert_non_null(trek_module_find(gated, "gate_proj.weight"));
    assert_non_null(trek_module_find(other, "down_proj.bias"));
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(test_tensor(3, trek_dims(2, 5, 4), 1)), *y = trek_forward(other, x);
    assert_true(trek_shape_equal(trek_var_shape(y), trek_dims(2, 5, 2)));
    trek_var *halves = trek_var_from(test_values((double[]){ 1, 2, 0, -1 }, trek_dims(4), TREK_F32));
    trek_module *glu = trek_nn_glu(-1), *maps = trek_nn_softmax2d();
    double *got = test_read(trek_var_data(trek_forward(glu, halves)));
    assert_true(fabs(got[0] - 0.5) < 1e-6 && fabs(got[1] - 2 * sigmoid(-1)) < 1e-6);
    free(got);
    trek_var *image = trek_var_from(test_tensor(4, trek_dims(2, 3, 4, 5), 1));
    trek_var *sums = trek_sum(trek_forward(maps, image), trek_dims(1), false);
    assert_true(fabs(trek_var_item(trek_mean(sums, trek_dims_all(), false)) - 1) < 1e-6);
    REFUSED(trek_forward(maps, x = trek_select(x, 0, 0)), TREK_ERR_SHAPE, "");
    trek_scope_end(scope);
    trek_module *all[] = { slope, gated, other, glu, maps };
    for (int k = 0; k < 5; k++)
        trek_module_free(&all[k]);
}

static void refuses(trek_module *m)
{
    REFUSED(m, TREK_ERR_ARGUMENT, "");
}

static void test_refused(void **state)
{
    refuses(trek_nn_celu_with(&(trek_celu_opts){ .alpha = TREK_ZERO }));
    refuses(trek_nn_softplus_with(&(trek_softplus_opts){ .beta = TREK_ZERO }));
    refuses(trek_nn_hardtanh_with(&(trek_hardtanh_opts){ .low = 2, .high = 1 }));
    refuses(trek_nn_softshrink_with(&(trek_shrink_opts){ .lambda = -1 }));
    refuses(trek_nn_rrelu_with(&(trek_rrelu_opts){ .lower = 0.5, .upper = 0.25 }));
    refuses(trek_nn_prelu_with(&(trek_prelu_opts){ .parameters = -1, .device = trek_cpu(0) }));
    refuses(trek_nn_swiglu_with(NULL));
    refuses(trek_nn_swiglu(0, 3, test_device()));
    refuses(trek_nn_swiglu(3, -1, test_device()));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_numbers), cmocka_unit_test(test_modes),
                                        cmocka_unit_test(test_holding),
                                        cmocka_unit_test(test_refused) };
    return cmocka_run_group_tests_name("activations", tests, NULL, NULL);
}
