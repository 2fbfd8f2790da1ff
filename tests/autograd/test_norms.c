/* SPDX-License-Identifier: Apache-2.0 */
/* Norms of groups, instances and neighbours, and dropout of channels, by functions and layers: numbers told by plain loops,
 * derivatives by differences, what is refused. */
#include "autograd/backward.h"
#include "autograd/gradcheck.h"
#include "nn/layers.h"
#include "tensor/tensor.h"
#include "tests/autograd/values.h"
#include "tests/support/support.h"

static void near(double value, double wanted)
{
    if (!(fabs(value - wanted) <= 1e-9 * (1 + fabs(wanted))))
        fail_msg("%.17g is not %.17g", value, wanted);
}

/* --- values --------------------------------------------------------------------------------------------- */

/* What element k of x, `group` numbers after each other, is normalised. */
static double normalized(const trek_var *x, int64_t k, int64_t group, double eps)
{
    double mean = 0, variance = 0;
    int64_t begin = k / group * group;
    for (int64_t j = begin; j < begin + group; j++)
        mean += at(x, j) / (double)group;
    for (int64_t j = begin; j < begin + group; j++)
        variance += (at(x, j) - mean) * (at(x, j) - mean) / (double)group;
    return (at(x, k) - mean) / sqrt(variance + eps);
}

static void test_groups(void **state)
{
    trek_var *x = numbers(1, trek_dims(2, 6, 3, 2), false), *w = numbers(2, trek_dims(6), false),
        *b = numbers(3, trek_dims(6), false);
    for (int groups = 1; groups <= 6; groups += groups == 3 ? 3 : 1) {
        trek_var *y = trek_group_norm(x, groups, w, b, 1e-3), *plain = trek_group_norm(x, groups, NULL, NULL, 1e-3);
        for (int64_t k = 0; k < 72; k += 5) {
            double n = normalized(x, k, 36 / groups, 1e-3);
            near(at(plain, k), n);
            near(at(y, k), n * at(w, k / 6 % 6) + at(b, k / 6 % 6));
        }
    }
    same(trek_group_norm(x, 6, w, b, 1e-5), trek_instance_norm(x, NULL, NULL, w, b, true, 0.1, 1e-5));
    trek_var *lines = numbers(4, trek_dims(3, 2), false);
    near(at(trek_group_norm(lines, 2, NULL, NULL, 1e-5), 3), 0); /* of one number */
    trek_var *nothing = trek_narrow(x, 0, 0, 0);
    assert_int_equal(trek_var_numel(trek_group_norm(nothing, 2, w, b, 0)), 0);
}

static void test_running(void **state)
{
    trek_var *x = numbers(1, trek_dims(2, 2, 4), false), *mean = numbers(2, trek_dims(2), false),
        *var = numbers(3, trek_dims(2), false);
    double old[2] = { at(mean, 1), at(var, 1) }, means = 0, vars = 0;
    for (int64_t n = 0; n < 2; n++) {
        double m = 0, v = 0;
        for (int64_t j = 0; j < 4; j++)
            m += at(x, n * 8 + 4 + j) / 4;
        for (int64_t j = 0; j < 4; j++)
            v += pow(at(x, n * 8 + 4 + j) - m, 2) / 3;
        means += m / 2, vars += v / 2;
    }
    trek_var *y = trek_instance_norm(x, mean, var, NULL, NULL, true, 0.25, 1e-5);
    near(at(y, 5), normalized(x, 5, 4, 1e-5));
    near(at(mean, 1), 0.75 * old[0] + 0.25 * means);
    near(at(var, 1), 0.75 * old[1] + 0.25 * vars);
    trek_var *square = trek_square(var);
    same(trek_instance_norm(x, mean, square, NULL, NULL, false, 0.25, 1e-5),
         trek_batch_norm(x, mean, square, NULL, NULL, false, 0.25, 1e-5));
    trek_var *one = trek_narrow(x, 0, 0, 1), *before = trek_clone(mean);
    assert_non_null(trek_instance_norm(one, mean, var, NULL, NULL, true, 0.5, 1e-5));
    assert_true(fabs(at(before, 0) - at(mean, 0)) > 1e-6);
}

static void test_neighbours(void **state)
{
    trek_var *x = numbers(1, trek_dims(2, 5, 3), false);
    for (int64_t size = 1; size <= 4; size++) {
        trek_var *y = trek_local_response_norm(x, size, 0.5, 0.75, 2);
        for (int64_t k = 0; k < 30; k++) {
            int64_t c = k / 3 % 5;
            double sum = 0;
            for (int64_t o = c - size / 2; o < c - size / 2 + size; o++)
                sum += o >= 0 && o < 5 ? pow(at(x, k + (o - c) * 3), 2) : 0;
            near(at(y, k), at(x, k) / pow(2 + 0.5 / (double)size * sum, 0.75));
        }
    }
    trek_var *unit = trek_normalize(x, 2, 1, 1e-12), *coarse = trek_normalize(x, 1, -1, 100);
    near(at(trek_norm(unit, 2, trek_dims(1), false), 3), 1);
    near(at(coarse, 7), at(x, 7) / 100);
}

/* --- derivatives ------------------------------------------------------------------------------------------ */

static trek_var *groups_of(trek_var *const *in, int n, void *arg)
{
    return trek_group_norm(in[0], 2, in[1], in[2], 1e-3);
}
static trek_var *instances_of(trek_var *const *in, int n, void *arg)
{
    return trek_instance_norm(in[0], NULL, NULL, in[1], in[2], true, 0.1, 1e-3);
}
static trek_var *responses_of(trek_var *const *in, int n, void *arg)
{
    return trek_local_response_norm(in[0], 3, 0.5, 0.75, 1);
}
static trek_var *units_of(trek_var *const *in, int n, void *arg)
{
    return trek_normalize(in[0], 2, 1, 1e-12);
}
static trek_var *dropped_of(trek_var *const *in, int n, void *arg)
{
    trek_seed(7);
    return trek_add(trek_dropout2d(in[0], 0.5, true), trek_add(trek_alpha_dropout(in[0], 0.5, true),
                                                              trek_feature_alpha_dropout(in[0], 0.5, true)));
}

static void test_derivatives(void **state)
{
    trek_var *in[3] = { numbers(1, trek_dims(2, 4, 3), true), numbers(2, trek_dims(4), true), numbers(3, trek_dims(4), true) };
    const trek_gradcheck_opts second = { .second = true };
    const trek_gradcheck_fn fns[] = { groups_of, instances_of, responses_of, units_of, dropped_of };
    for (int k = 0; k < 5; k++)
        if (trek_gradcheck(fns[k], in, k < 2 ? 3 : 1, NULL, &second) != TREK_OK)
            fail_msg("function %d: %s", k, trek_error());
}

/* --- dropout ------------------------------------------------------------------------------------------------ */

/* Each channel of [n, c, pixels] is 0, or x times `scale`; about half of them are. */
static void halves(trek_var *x, trek_var *y, int64_t pixels, double dropped, double scale, double shift)
{
    int64_t n = trek_var_numel(x) / pixels, gone = 0;
    for (int64_t c = 0; c < n; c++) {
        bool none = fabs(at(y, c * pixels) - dropped) < 1e-9;
        gone += none;
        for (int64_t j = c * pixels; j < (c + 1) * pixels; j++)
            near(at(y, j), none ? dropped : at(x, j) * scale + shift);
    }
    assert_in_range(gone, n * 3 / 10, n * 7 / 10);
}

static void test_dropout(void **state)
{
    const double low = -1.7580993408473766, a = 1 / sqrt(0.5 * (1 + 0.5 * low * low)), b = -a * low * 0.5;
    trek_var *x = numbers(1, trek_dims(20, 10, 4), false);
    halves(x, trek_dropout1d(x, 0.5, true), 4, 0, 2, 0);
    halves(x, trek_dropout2d(x, 0.5, true), 4, 0, 2, 0);
    halves(x, trek_reshape(trek_dropout2d(trek_reshape(x, trek_dims(20, 10, 2, 2)), 0.5, true), trek_dims(20, 10, 4)), 4, 0, 2,
           0);
    halves(x, trek_dropout3d(trek_reshape(x, trek_dims(20, 10, 2, 2, 1)), 0.5, true), 4, 0, 2, 0);
    halves(x, trek_dropout3d(trek_reshape(x, trek_dims(200, 2, 2, 1)), 0.5, true), 4, 0, 2, 0);
    halves(x, trek_dropout1d(trek_reshape(x, trek_dims(200, 4)), 0.5, true), 4, 0, 2, 0);
    halves(x, trek_feature_alpha_dropout(x, 0.5, true), 4, a * low + b, a, b);
    halves(x, trek_alpha_dropout(x, 0.5, true), 1, a * low + b, a, b);
    assert_ptr_equal(trek_dropout1d(x, 0.5, false), x);
    assert_ptr_equal(trek_alpha_dropout(x, 0, true), x);
    near(at(trek_alpha_dropout(x, 1, true), 0), 0);
}

/* --- layers -------------------------------------------------------------------------------------------------- */

/* Runs the layer, which may be NULL, and frees it. */
static trek_var *run(trek_module *module, trek_var *x)
{
    trek_var *y = module ? trek_forward(module, x) : NULL;
    trek_module_free(&module);
    return y;
}

static void test_layers(void **state)
{
    trek_device here = test_device();
    trek_var *flat = trek_cast(numbers(1, trek_dims(2, 4, 8), false), TREK_F32), *one = trek_select(flat, 0, 1);
    trek_var *image = trek_reshape(flat, trek_dims(2, 4, 4, 2)), *volume = trek_reshape(flat, trek_dims(2, 4, 2, 2, 2));
    trek_var *groups = trek_group_norm(flat, 2, NULL, NULL, 1e-5), *each = trek_group_norm(flat, 4, NULL, NULL, 1e-5);
    double group = at(groups, 40), own = at(each, 40);
    assert_true(fabs(at(run(trek_nn_group_norm(2, 4, here), flat), 40) - group) < 1e-5);
    trek_group_norm_opts bare = { .groups = 2, .channels = 4, .no_affine = true, .device = here };
    assert_true(fabs(at(run(trek_nn_group_norm_with(&bare), image), 40) - group) < 1e-5);
    assert_true(fabs(at(run(trek_nn_instance_norm1d(4, here), flat), 40) - own) < 1e-5);
    assert_true(fabs(at(run(trek_nn_instance_norm1d(4, here), one), 8) - own) < 1e-5);
    assert_true(fabs(at(run(trek_nn_instance_norm2d(4, here), image), 40) - own) < 1e-5);
    assert_true(fabs(at(run(trek_nn_instance_norm3d(4, here), volume), 40) - own) < 1e-5);
    trek_instance_norm_opts kept = { .features = 4, .affine = true, .running_stats = true, .device = here };
    assert_true(fabs(at(run(trek_nn_instance_norm1d_with(&kept), flat), 40) - own) < 1e-5);
    assert_true(fabs(at(run(trek_nn_instance_norm3d_with(&kept), volume), 40) - own) < 1e-5);
    trek_module *keeps = trek_nn_instance_norm2d_with(&kept);
    trek_module_train(keeps, false);
    assert_true(fabs(at(trek_forward(keeps, image), 40) - at(image, 40)) < 1e-4); /* mean 0, variance 1 */
    trek_module_free(&keeps);
    trek_var *batch = trek_batch_norm(flat, NULL, NULL, NULL, NULL, true, 0.1, 1e-5);
    assert_true(fabs(at(run(trek_nn_batch_norm3d(4, here), volume), 40) - at(batch, 40)) < 1e-5);
    trek_var *response = trek_local_response_norm(flat, 3, 1e-4, 0.75, 1);
    near(at(run(trek_nn_local_response_norm(3), flat), 40), at(response, 40));
    trek_dropout_opts none = { .p = TREK_ZERO };
    trek_module *drops[] = { trek_nn_dropout1d(0.5), trek_nn_dropout2d(0.5), trek_nn_dropout3d(0.5), trek_nn_alpha_dropout(0.5),
                             trek_nn_feature_alpha_dropout(0.5), trek_nn_dropout1d_with(&none), trek_nn_dropout2d_with(&none),
                             trek_nn_dropout3d_with(&none), trek_nn_alpha_dropout_with(&none),
                             trek_nn_feature_alpha_dropout_with(&none) };
    for (int k = 0; k < 10; k++) {
        trek_module_train(drops[k], k >= 5);
        trek_var *x = k % 5 == 1 ? image : k % 5 == 2 ? volume : flat;
        assert_ptr_equal(trek_forward(drops[k], x), x);
        trek_module_free(&drops[k]);
    }
}

static void test_refused(void **state)
{
    trek_device here = test_device();
    trek_var *x = numbers(1, trek_dims(2, 4, 3), false), *w = numbers(2, trek_dims(3), false), *whole = trek_cast(x, TREK_I64);
    REFUSED(trek_group_norm(x, 3, NULL, NULL, 0), TREK_ERR_ARGUMENT, "group_norm: groups: 4 channels in 3 groups");
    REFUSED(trek_group_norm(x, 2, w, NULL, 0), TREK_ERR_SHAPE,
            "group_norm: input: [2, 4, 3] has 4 channels in dimension 1; weight has 3");
    REFUSED(trek_group_norm(numbers(3, trek_dims(1, 2), false), 2, NULL, NULL, 0), TREK_ERR_SHAPE, "group_norm: input: 1 value");
    REFUSED(trek_group_norm(whole, 2, NULL, NULL, 0), TREK_ERR_DTYPE, "group_norm: dtype i64");
    REFUSED(trek_group_norm(w, 1, NULL, NULL, 0), TREK_ERR_SHAPE, "group_norm: input: [3]; must have at least 2 dimensions");
    REFUSED(trek_instance_norm(trek_narrow(x, 2, 0, 1), NULL, NULL, NULL, NULL, true, 0.1, 0), TREK_ERR_SHAPE,
            "instance_norm: x: 1 value");
    REFUSED(trek_instance_norm(x, NULL, NULL, w, NULL, true, 0.1, 0), TREK_ERR_SHAPE, "instance_norm: weight, bias");
    REFUSED(trek_local_response_norm(x, 0, 1, 1, 1), TREK_ERR_ARGUMENT, "local_response_norm: size");
    REFUSED(trek_normalize(NULL, 2, 1, 0), TREK_ERR_ARGUMENT, "normalize");
    REFUSED(trek_dropout3d(x, 0.5, true), TREK_ERR_SHAPE, "dropout3d: x: [2, 4, 3]; must have 4 or 5 dimensions");
    REFUSED(trek_alpha_dropout(x, 1.5, true), TREK_ERR_ARGUMENT, "alpha_dropout: p: 1.5");
    REFUSED(trek_nn_group_norm(3, 4, here), TREK_ERR_ARGUMENT, "group_norm: .groups or .eps");
    REFUSED(trek_nn_instance_norm1d_with(NULL), TREK_ERR_ARGUMENT, "instance_norm1d: options: NULL");
    REFUSED(run(trek_nn_instance_norm1d(3, here), x), TREK_ERR_SHAPE,
            "instance_norm1d: input: [2, 4, 3]; must have 2 or 3 dimensions and 3 channels");
    REFUSED(trek_nn_local_response_norm_with(&(trek_local_response_norm_opts){ .size = 0 }), TREK_ERR_ARGUMENT,
            "local_response_norm: size");
    REFUSED(trek_nn_dropout2d(2), TREK_ERR_ARGUMENT, "dropout2d: p: ");
    trek_batch_norm_opts four = { .features = 4, .device = here };
    REFUSED(run(trek_nn_batch_norm3d_with(&four), x), TREK_ERR_SHAPE, "must be [N, C, D, H, W]");
}

int main(void)
{
    const struct CMUnitTest tests[] = { TEST(test_groups), TEST(test_running), TEST(test_neighbours), TEST(test_derivatives),
                                        TEST(test_dropout), TEST(test_layers), TEST(test_refused) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
