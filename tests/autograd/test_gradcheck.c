/* SPDX-License-Identifier: Apache-2.0 */
/* trek_gradcheck: passes what is right, names what is wrong, and leaves all as it was. */
#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "nn/layers.h"
#include "nn/module_internal.h"
#include "tensor/copies.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

static trek_var *leaf(trek_shape shape, uint32_t stream, bool requires_grad)
{
    trek_tensor *narrow = test_tensor(stream, shape, 1), *wide = trek_tensor_cast(narrow, TREK_F64);
    trek_var *var = trek_var_new(wide, requires_grad);
    trek_tensor_release(narrow);
    trek_tensor_release(wide);
    assert_non_null(var);
    return var;
}

/* tanh(x w) y, of x [3, 4], w [4, 2], y [2] and a mask that needs no gradient. */
static trek_var *smooth(trek_var *const *inputs, int n, void *arg)
{
    return trek_mul(trek_mul(trek_tanh(trek_matmul(inputs[0], inputs[1])), inputs[2]), inputs[3]);
}

static void test_right(void **state)
{
    trek_tensor *base = test_tensor(9, trek_dims(4, 3), 1), *wide = trek_tensor_cast(base, TREK_F64);
    trek_scope scope = trek_scope_begin();
    trek_var *turned = trek_transpose(trek_var_constant(wide), 0, 1); /* a leaf whose elements do not lie in order */
    trek_var *x = trek_var_new(trek_var_data(turned), true), *w = leaf(trek_dims(4, 2), 2, true),
        *y = leaf(trek_dims(2), 3, true);
    trek_scope_end(scope);
    trek_tensor *ones = trek_tensor_ones(trek_dims(3, 1), TREK_I64, test_device());
    trek_var *mask = trek_var_new(ones, false), *inputs[4] = { x, w, y, mask };
    trek_tensor *before = trek_tensor_clone(trek_var_data(x));
    for (int second = 0; second < 2; second++)
        assert_int_equal(trek_gradcheck(smooth, inputs, 4, NULL, &(trek_gradcheck_opts){ .second = second }), TREK_OK);
    assert_true(test_same_bits(before, trek_var_data(x)));
    assert_null(trek_var_grad(x));
    assert_int_equal(trek_tape_size(), 0);
    trek_tensor_release(before);
    trek_tensor_release(base);
    trek_tensor_release(wide);
    trek_tensor_release(ones);
    for (int k = 0; k < 4; k++)
        trek_var_release(inputs[k]);
}

/* --- a function of one's own, with faults ---------------------------------------------------- */

typedef enum fault { NONE, FACTOR, SUM_ONLY, MISSING, SECOND } fault;

static trek_status cube_forward(trek_function_context *context, trek_var *const *inputs, int n, trek_var **outputs, int m)
{
    outputs[0] = trek_mul(trek_square(inputs[0]), inputs[0]);
    return trek_save_for_backward(context, inputs, 1);
}

static trek_status cube_backward(trek_function_context *context, trek_var *const *grads, int n, trek_var **input_grads, int m)
{
    fault f = *(fault *)trek_function_data(context);
    trek_var *x = trek_saved(context, 0), *g = trek_mul_scalar(trek_mul(grads[0], trek_square(x)), f == FACTOR ? 3.01 : 3);
    if (f == SUM_ONLY) /* right for a cotangent of ones alone */
        g = trek_mul_scalar(trek_square(x), 3);
    if (f == SECOND)
        g = trek_mul_scalar(trek_mul(grads[0], trek_var_detach(trek_square(x))), 3);
    input_grads[0] = f == MISSING ? NULL : g;
    return trek_error_status();
}

static const trek_function cube = { .name = "cube", .forward = cube_forward, .backward = cube_backward };

static trek_var *run_cube(trek_var *const *inputs, int n, void *arg) { return trek_function_apply_one(&cube, arg, inputs, n); }

static void test_wrong(void **state)
{
    trek_var *x = leaf(trek_dims(2, 3), 4, true);
    trek_tensor *before = trek_tensor_clone(trek_var_data(x));
    for (fault f = NONE; f <= SECOND; f++) {
        trek_status status = trek_gradcheck(run_cube, &x, 1, &f, NULL);
        bool seen = f != NONE && f != SECOND;
        assert_int_equal(status, seen ? TREK_ERR_CALLBACK : TREK_OK);
        if (seen)
            expect_error(TREK_ERR_CALLBACK, "gradcheck: the gradient of input 0 at [0, 0] is ");
        assert_true(test_same_bits(before, trek_var_data(x)));
    }
    fault f = SECOND;
    FAILS(trek_gradcheck(run_cube, &x, 1, &f, &(trek_gradcheck_opts){ .second = true }), TREK_ERR_CALLBACK,
          "the second derivative of input 0 at [0, 0]");
    assert_true(test_same_bits(before, trek_var_data(x)));
    f = NONE;
    assert_int_equal(trek_gradcheck(run_cube, &x, 1, &f, &(trek_gradcheck_opts){ .second = true }), TREK_OK);
    f = FACTOR; /* within a tolerance that says so */
    assert_int_equal(trek_gradcheck(run_cube, &x, 1, &f, &(trek_gradcheck_opts){ .rtol = 0.02 }), TREK_OK);
    assert_int_equal(trek_tape_size(), 0);
    trek_tensor_release(before);
    trek_var_release(x);
}

/* --- functions that are none --------------------------------------------------------------------- */

static trek_var *noisy(trek_var *const *inputs, int n, void *arg)
{
    return trek_dropout(inputs[0], 0.5, true);
}

static trek_var *seeded(trek_var *const *inputs, int n, void *arg)
{
    trek_seed(5);
    return noisy(inputs, n, arg);
}

static trek_var *failing(trek_var *const *inputs, int n, void *arg)
{
    int *left = arg;
    if ((*left)-- == 0)
        trek_fail(TREK_ERR_IO, "no more");
    return trek_error_status() == TREK_OK ? trek_square(inputs[0]) : NULL;
}

static trek_var *nothing(trek_var *const *inputs, int n, void *arg)
{
    return NULL;
}

static trek_var *narrow(trek_var *const *inputs, int n, void *arg)
{
    return trek_cast(inputs[0], TREK_F32);
}

static trek_var *constant(trek_var *const *inputs, int n, void *arg)
{
    return trek_var_detach(trek_mul_scalar(inputs[0], 0));
}

static trek_var *forgotten(trek_var *const *inputs, int n, void *arg)
{
    return trek_var_detach(inputs[0]);
}

static trek_var *growing(trek_var *const *inputs, int n, void *arg)
{
    return trek_repeat(inputs[0], trek_dims(++*(int *)arg));
}

static void test_functions(void **state)
{
    trek_var *x = leaf(trek_dims(5), 6, true), *empty = leaf(trek_dims(0, 3), 6, true);
    trek_tensor *before = trek_tensor_clone(trek_var_data(x));
    FAILS(trek_gradcheck(noisy, &x, 1, NULL, NULL), TREK_ERR_CALLBACK, "for the same inputs");
    assert_int_equal(trek_gradcheck(seeded, &x, 1, NULL, NULL), TREK_OK);
    FAILS(trek_gradcheck(nothing, &x, 1, NULL, NULL), TREK_ERR_CALLBACK, "returned no result");
    FAILS(trek_gradcheck(narrow, &x, 1, NULL, NULL), TREK_ERR_DTYPE, "result: dtype ");
    assert_int_equal(trek_gradcheck(constant, &x, 1, NULL, NULL), TREK_OK);
    assert_int_equal(trek_gradcheck(constant, &x, 1, NULL, &(trek_gradcheck_opts){ .second = true }), TREK_OK);
    FAILS(trek_gradcheck(forgotten, &x, 1, NULL, NULL), TREK_ERR_CALLBACK, "is 0; by differences it is");
    int times = 0;
    FAILS(trek_gradcheck(growing, &x, 1, &times, NULL), TREK_ERR_CALLBACK, "the function returned [5], and then [10]");
    FAILS(trek_gradcheck(smooth, &empty, 1, NULL, &(trek_gradcheck_opts){ .eps = -1 }), TREK_ERR_ARGUMENT, "eps must be above 0");
    for (int left = 0; left < 8; left++) { /* a failure at any call leaves the input as it was */
        int count = left;
        FAILS(trek_gradcheck(failing, &x, 1, &count, NULL), TREK_ERR_IO, "no more");
        assert_true(test_same_bits(before, trek_var_data(x)));
    }
    int many = 1000;
    assert_int_equal(trek_gradcheck(failing, &empty, 1, &many, &(trek_gradcheck_opts){ .second = true }), TREK_OK);
    trek_tensor_release(before);
    trek_var_release(x);
    trek_var_release(empty);
}

static void test_bad_inputs(void **state)
{
    trek_var *x = leaf(trek_dims(5), 6, true), *none = leaf(trek_dims(5), 6, false), *y = trek_square(x), *missing = NULL;
    trek_tensor *single = test_tensor(1, trek_dims(5), 1);
    trek_var *f32 = trek_var_new(single, true);
    int many = 1000;
    FAILS(trek_gradcheck(failing, &none, 1, &many, NULL), TREK_ERR_ARGUMENT, "none requires a gradient");
    FAILS(trek_gradcheck(failing, &y, 1, &many, NULL), TREK_ERR_STATE, "input 0: it is not a leaf");
    FAILS(trek_gradcheck(failing, &f32, 1, &many, NULL), TREK_ERR_DTYPE, "input 0: dtype f32; must be f64");
    FAILS(trek_gradcheck(failing, &missing, 1, &many, NULL), TREK_ERR_ARGUMENT, "");
    FAILS(trek_gradcheck(NULL, &x, 1, &many, NULL), TREK_ERR_ARGUMENT, "");
    FAILS(trek_gradcheck(failing, NULL, 1, &many, NULL), TREK_ERR_ARGUMENT, "");
    FAILS(trek_gradcheck(failing, &x, 0, &many, NULL), TREK_ERR_ARGUMENT, "inputs: 0; must be 1 to 63");
    FAILS(trek_gradcheck(failing, &x, 64, &many, NULL), TREK_ERR_ARGUMENT, "inputs: 64");
    assert_int_equal(many, 1000); /* it was never called */
    trek_tensor_release(single);
    trek_var_release(f32);
    trek_var_release(none);
    trek_var_release(x);
}

/* A module's parameters are inputs that its forward reads by itself. */
static trek_var *run_module(trek_var *const *inputs, int n, void *arg)
{
    return trek_tanh(trek_forward(arg, inputs[0]));
}

static void test_module(void **state)
{
    trek_module *m = trek_nn_linear_with(&(trek_linear_opts){ .in = 3, .out = 2, .dtype = TREK_F64, .device = test_device() });
    trek_var *x = leaf(trek_dims(4, 3), 7, true), *inputs[3] = { x, m->own->params[0].var, m->own->params[1].var };
    assert_int_equal(trek_gradcheck(run_module, inputs, 3, m, &(trek_gradcheck_opts){ .second = true, .seed = 3 }), TREK_OK);
    assert_int_equal(trek_tape_size(), 0);
    trek_var_release(x);
    trek_module_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right), cmocka_unit_test(test_wrong), cmocka_unit_test(test_functions),
        TEST(test_bad_inputs), cmocka_unit_test(test_module),
    };
    return cmocka_run_group_tests_name("gradcheck", tests, NULL, NULL);
}
