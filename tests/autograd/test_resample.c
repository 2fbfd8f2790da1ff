/* SPDX-License-Identifier: Apache-2.0 */
/* Interpolation and windows, and their layers, against numbers told by hand and finite differences. */
#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "nn/layers.h"
#include "tests/autograd/differences.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

#define INTERPOLATE(x, ...) trek_interpolate(x, &(trek_interpolate_opts){ __VA_ARGS__ })

static void sizes_and_scales(void **state)
{
    trek_var *x = VALUES(trek_dims(1, 1, 4), TREK_F32, 1, 2, 3, 4);
    ASSERT_VALUES(INTERPOLATE(x, .scale = { 2 }), 1, 1, 2, 2, 3, 3, 4, 4);
    ASSERT_VALUES(INTERPOLATE(x, .size = { 3 }), 1, 2, 3);
    ASSERT_VALUES(INTERPOLATE(x, .size = { 3 }, .mode = TREK_INTERPOLATE_MODE_NEAREST_EXACT), 1, 3, 4);
    ASSERT_VALUES(INTERPOLATE(x, .size = { 2 }, .mode = TREK_INTERPOLATE_MODE_AREA), 1.5, 3.5);
    ASSERT_VALUES(INTERPOLATE(x, .size = { 7 }, .mode = TREK_INTERPOLATE_MODE_LINEAR, .align_corners = true), 1, 1.5, 2, 2.5, 3,
                  3.5,
                  4);
    ASSERT_VALUES(INTERPOLATE(x, .scale = { 2 }, .mode = TREK_INTERPOLATE_MODE_LINEAR), 1, 1.25, 1.75, 2.25, 2.75, 3.25, 3.75, 4);
    ASSERT_VALUES(INTERPOLATE(x, .scale = { 0.7 }, .mode = TREK_INTERPOLATE_MODE_LINEAR, .recompute_scale = true), 1.5, 3.5);
    ASSERT_VALUES(INTERPOLATE(x, .size = { 1 }, .mode = TREK_INTERPOLATE_MODE_LINEAR, .align_corners = true), 1);
}

static void several_dimensions(void **state)
{
    trek_var *x = VALUES(trek_dims(1, 1, 2, 2), TREK_F64, 1, 2, 3, 4);
    ASSERT_VALUES(INTERPOLATE(x, .size = { 3, 2 }, .mode = TREK_INTERPOLATE_MODE_LINEAR, .align_corners = true), 1, 2, 2, 3, 3,
                  4);
    ASSERT_VALUES(INTERPOLATE(x, .size = { 2 }, .mode = TREK_INTERPOLATE_MODE_CUBIC), 1, 2, 3, 4);
    ASSERT_VALUES(INTERPOLATE(trek_transpose(x, 2, 3), .size = { 1, 4 }), 1, 1, 3, 3);
    trek_var *deep = VALUES(trek_dims(1, 1, 2, 1, 2), TREK_BF16, 1, 2, 3, 4);
    ASSERT_VALUES(INTERPOLATE(deep, .size = { 1 }, .mode = TREK_INTERPOLATE_MODE_LINEAR), 2.5);
    ASSERT_VALUES(INTERPOLATE(deep, .size = { 1 }, .mode = TREK_INTERPOLATE_MODE_AREA), 2.5);
    assert_int_equal(trek_var_dtype(INTERPOLATE(deep, .size = { 1 }, .mode = TREK_INTERPOLATE_MODE_AREA)), TREK_BF16);
    ASSERT_VALUES(INTERPOLATE(VALUES(trek_dims(1, 1, 2), TREK_I64, 7, -9), .size = { 3 }), 7, 7, -9);
    trek_var *none = trek_var_from(trek_tensor_zeros(trek_dims(0, 2, 3), TREK_F32, test_device()));
    trek_var *y = INTERPOLATE(none, .size = { 5 }, .mode = TREK_INTERPOLATE_MODE_LINEAR);
    assert_non_null(y);
    assert_int_equal(trek_var_size(y, 2), 5);
    assert_int_equal(trek_var_size(y, 0), 0);
}

/* A smaller result of all elements around, as image libraries have it; a larger one is the plain kernel's. */
static void antialiased(void **state)
{
    trek_var *x = VALUES(trek_dims(1, 1, 1, 4), TREK_F32, 1, 2, 4, 8);
    trek_interpolate_opts half = { .size = { 1, 2 }, .mode = TREK_INTERPOLATE_MODE_LINEAR, .antialias = true };
    ASSERT_VALUES(trek_interpolate(x, &half), (3 * 1 + 3 * 2 + 1 * 4) / 7.0, (1 * 2 + 3 * 4 + 3 * 8) / 7.0);
    ASSERT_VALUES(trek_interpolate(trek_transpose(x, 2, 3), &(trek_interpolate_opts){ .size = { 2, 1 },
                                                                                       .mode = TREK_INTERPOLATE_MODE_LINEAR,
                                                                                       .antialias = true }), 13 / 7.0, 38 / 7.0);
    half.mode = TREK_INTERPOLATE_MODE_CUBIC;
    trek_var *flat = VALUES(trek_dims(1, 1, 2, 4), TREK_F64, 3, 3, 3, 3, 3, 3, 3, 3);
    ASSERT_VALUES(trek_interpolate(flat, &half), 3, 3);
    trek_interpolate_opts twice = { .size = { 1, 8 }, .mode = TREK_INTERPOLATE_MODE_LINEAR }, same = twice;
    twice.antialias = true;
    double a[8], b[8];
    trek_tensor_to_host(trek_var_data(trek_interpolate(x, &twice)), TREK_F64, a, sizeof a);
    trek_tensor_to_host(trek_var_data(trek_interpolate(x, &same)), TREK_F64, b, sizeof b);
    for (int i = 0; i < 8; i++)
        assert_true(fabs(a[i] - b[i]) < 1e-6);
    assert_int_equal(trek_var_dtype(trek_interpolate(trek_cast(x, TREK_BF16), &half)), TREK_BF16);
    half.mode = TREK_INTERPOLATE_MODE_NEAREST;
    REFUSED(trek_interpolate(x, &half), TREK_ERR_ARGUMENT, "interpolate: .antialias: set");
    half.mode = TREK_INTERPOLATE_MODE_LINEAR;
    REFUSED(trek_interpolate(trek_select(x, 0, 0), &half), TREK_ERR_SHAPE, "antialiasing needs 4 dimensions");
}

/* Infinity and NaN stay in what lies beside them. */
static void special_values(void **state)
{
    trek_var *x = VALUES(trek_dims(1, 1, 5), TREK_F32, 1, INFINITY, 1, 1, 1);
    ASSERT_VALUES(trek_narrow(INTERPOLATE(x, .size = { 10 }, .mode = TREK_INTERPOLATE_MODE_LINEAR), 2, 5, 5), 1, 1, 1, 1, 1);
    x = VALUES(trek_dims(1, 1, 2), TREK_F16, NAN, 2);
    ASSERT_VALUES(INTERPOLATE(x, .size = { 4 }), NAN, NAN, 2, 2);
}

static void bad_input(void **state)
{
    trek_var *x = VALUES(trek_dims(1, 1, 2), TREK_F32, 1, 2), *whole = VALUES(trek_dims(1, 1, 2), TREK_I32, 1, 2);
    REFUSED(trek_interpolate(x, NULL), TREK_ERR_ARGUMENT, "interpolate: .size and .scale: neither is set");
    REFUSED(INTERPOLATE(x, .size = { 2 }, .scale = { 2 }), TREK_ERR_ARGUMENT, "interpolate: .size and .scale: both are set");
    REFUSED(INTERPOLATE(x, .size = { 2 }, .align_corners = true), TREK_ERR_ARGUMENT, "interpolate: .align_corners: set");
    REFUSED(INTERPOLATE(x, .size = { 2 }, .mode = TREK_INTERPOLATE_MODE_CUBIC), TREK_ERR_SHAPE, "must have 4 dimensions");
    REFUSED(INTERPOLATE(whole, .size = { 2 }, .mode = TREK_INTERPOLATE_MODE_LINEAR), TREK_ERR_DTYPE,
            "interpolate: x: dtype i32; only nearest");
    REFUSED(INTERPOLATE(x, .scale = { 0.4 }), TREK_ERR_ARGUMENT, "interpolate: result: it has 0 elements");
    REFUSED(INTERPOLATE(x, .size = { -3 }), TREK_ERR_ARGUMENT, "interpolate: result: it has 0 elements");
    REFUSED(INTERPOLATE(x, .scale = { 1e30 }), TREK_ERR_MEMORY, "interpolate: result: ");
    REFUSED(INTERPOLATE(x, .scale = { NAN }), TREK_ERR_ARGUMENT, "interpolate: result: it has 0 elements");
    REFUSED(INTERPOLATE(x, .size = { 2 }, .mode = (trek_interpolate_mode)9), TREK_ERR_ARGUMENT, "interpolate: .mode: 9");
    REFUSED(INTERPOLATE(trek_select(x, 0, 0), .size = { 2 }), TREK_ERR_SHAPE, "must have 3 to 5 dimensions");
    REFUSED(trek_unfold(x, NULL), TREK_ERR_ARGUMENT, "unfold: kernel: ");
    REFUSED(trek_fold(x, 0, 1, &(trek_unfold_opts){ .kernel = { 1 } }), TREK_ERR_ARGUMENT, "fold: height and width: 0 x 1");
    REFUSED(trek_unfold(x, &(trek_unfold_opts){ .kernel = { 3 } }), TREK_ERR_SHAPE, "unfold: kernel: [3, 3] does not fit");
    REFUSED(trek_unfold(trek_select(x, 0, 0), &(trek_unfold_opts){ .kernel = { 3 } }), TREK_ERR_SHAPE,
            "must have 3 or 4 dimensions");
}

static void windows(void **state)
{
    trek_var *x = VALUES(trek_dims(1, 2, 3), TREK_F32, 1, 2, 3, 4, 5, 6);
    trek_unfold_opts two = { .kernel = { 2 } };
    trek_var *columns = trek_unfold(x, &two);
    ASSERT_VALUES(columns, 1, 2, 2, 3, 4, 5, 5, 6);
    assert_int_equal(trek_var_ndim(columns), 2);
    ASSERT_VALUES(trek_fold(columns, 2, 3, &two), 1, 4, 3, 4, 10, 6);
    trek_unfold_opts padded = { .kernel = { 1, 3 }, .padding = { TREK_ZERO, 1 }, .stride = { 1, 2 } };
    ASSERT_VALUES(trek_unfold(trek_unsqueeze(x, 0), &padded), 0, 2, 0, 5, 1, 3, 4, 6, 2, 0, 5, 0);
}

static trek_var *layer_once(trek_module *module, trek_var *x)
{
    trek_var *y = module ? trek_forward(module, x) : NULL;
    trek_module_free(&module);
    return y;
}

static void layers(void **state)
{
    trek_var *x = VALUES(trek_dims(1, 2, 2), TREK_F32, 1, 2, 3, 4);
    trek_unfold_opts two = { .kernel = { 2 } };
    ASSERT_VALUES(layer_once(trek_nn_upsample(&(trek_interpolate_opts){ .scale = { 2 } }), x), 1, 1, 2, 2, 3, 3, 4, 4);
    ASSERT_VALUES(layer_once(trek_nn_unfold(&two), trek_unsqueeze(x, 0)), 1, 2, 3, 4);
    ASSERT_VALUES(layer_once(trek_nn_fold(2, 2, &two), trek_reshape(x, trek_dims(1, 4, 1))), 1, 2, 3, 4);
    REFUSED(trek_nn_upsample(NULL), TREK_ERR_ARGUMENT, "upsample: .size and .scale: neither is set");
    REFUSED(trek_nn_upsample(&(trek_interpolate_opts){ .size = { 2 }, .mode = (trek_interpolate_mode)9 }), TREK_ERR_ARGUMENT,
            "upsample: .mode: 9");
    REFUSED(trek_nn_unfold(NULL), TREK_ERR_ARGUMENT, "unfold: options: NULL");
    REFUSED(trek_nn_fold(0, 1, &two), TREK_ERR_ARGUMENT, "fold: height: ");
}

/* x [1, 2, 3, 4] through each way, of which arg is the number. */
static trek_var *way(trek_var *const *inputs, int n, void *arg)
{
    trek_unfold_opts window = { .kernel = { 2, 3 }, .padding = { 1, 1 }, .stride = { 2, 1 } };
    trek_var *x = trek_square(inputs[0]);
    switch (*(int *)arg) {
    case 0: return INTERPOLATE(x, .size = { 5, 3 }, .mode = TREK_INTERPOLATE_MODE_NEAREST_EXACT);
    case 1: return INTERPOLATE(x, .scale = { 1.7, 0.6 }, .mode = TREK_INTERPOLATE_MODE_LINEAR);
    case 2: return INTERPOLATE(x, .size = { 5, 2 }, .mode = TREK_INTERPOLATE_MODE_CUBIC, .align_corners = true);
    case 3: return INTERPOLATE(x, .size = { 2, 5 }, .mode = TREK_INTERPOLATE_MODE_AREA);
    case 4: return INTERPOLATE(trek_unsqueeze(x, 0), .size = { 1, 4, 3 }, .mode = TREK_INTERPOLATE_MODE_LINEAR);
    case 5: return trek_unfold(x, &window);
    case 6: return INTERPOLATE(x, .size = { 2, 5 }, .mode = TREK_INTERPOLATE_MODE_CUBIC, .antialias = true);
    case 7: return INTERPOLATE(x, .scale = { 0.7, 0.4 }, .mode = TREK_INTERPOLATE_MODE_LINEAR, .antialias = true);
    default: return trek_fold(trek_reshape(x, trek_dims(1, 24, 1)), 2, 2, &(trek_unfold_opts){ .kernel = { 2 } });
    }
}

static void gradients(void **state)
{
    double numbers[24];
    for (int i = 0; i < 24; i++)
        numbers[i] = sin(1.0 + i);
    trek_tensor *t = trek_tensor_from_data(numbers, trek_dims(1, 2, 3, 4), TREK_F64, test_device());
    trek_var *x = trek_var_new(t, true);
    trek_tensor_release(t);
    for (int k = 0; k < 9; k++)
        if (trek_gradcheck(way, &x, 1, &k, &(trek_gradcheck_opts){ .second = true }) != TREK_OK)
            fail_msg("way %d: %s", k, trek_error());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(sizes_and_scales), TEST(several_dimensions), TEST(antialiased), TEST(special_values), TEST(bad_input), TEST(windows),
        TEST(layers), TEST(gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
