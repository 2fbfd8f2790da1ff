/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters as one vector and back, and the norm of several tensors together. */
#include "autograd/backward.h"
#include "autograd/gradcheck.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "nn/layers.h"
#include "nn/params.h"
#include "optim/clip.h"
#include "optim/optimizer.h"
#include "tensor/copies.h"
#include "tests/nn/values.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

/* f32, f64 and bf16, of several shapes. */
static trek_params *mixed(trek_module **m)
{
    trek_device d = test_device();
    trek_module *modules[] = { trek_nn_linear_with(&(trek_linear_opts){ .in = 3, .out = 2, .device = d }),
                               trek_nn_linear_with(&(trek_linear_opts){ .in = 2, .out = 2, .dtype = TREK_F64, .device = d }),
                               trek_nn_linear_with(&(trek_linear_opts){ .in = 2, .out = 1, .dtype = TREK_BF16, .device = d }) };
    *m = trek_nn_sequential(modules, 3);
    return trek_module_params(*m);
}

static void test_vector(void **state)
{
    trek_module *m;
    trek_params *params = mixed(&m);
    trek_scope scope = trek_scope_begin();
    trek_var *vector = trek_parameters_to_vector(params);
    assert_true(trek_var_ndim(vector) == 1 && trek_var_numel(vector) == trek_module_param_count(m));
    assert_int_equal(trek_var_dtype(vector), TREK_F64);
    int64_t at_first = 0;
    for (int k = 0; k < trek_params_count(params); k++)
        for (int64_t i = 0; i < trek_var_numel(trek_params_var(params, k)); i++)
            assert_true(at(vector, at_first++) == at(trek_params_var(params, k), i));
    fine(trek_backward(trek_sum(trek_square(vector), trek_dims_all(), false)));
    trek_var *weight = trek_params_var(params, 0);
    assert_true(at(trek_var_grad(weight), 4) == 2 * at(weight, 4));
    trek_tensor *numbers_ = test_tensor(5, trek_dims(2 * at_first), 1), *cast = trek_tensor_cast(numbers_, TREK_F64);
    trek_var *strided = trek_select(trek_reshape(trek_var_from(cast), trek_dims(at_first, 2)), 1, 1);
    trek_tensor_release(numbers_);
    fine(trek_vector_to_parameters(strided, params));
    assert_ptr_equal(trek_params_var(params, 0), weight);
    assert_true(trek_var_is_leaf(weight) && trek_var_requires_grad(weight));
    at_first = 0;
    for (int k = 0; k < trek_params_count(params); k++)
        for (int64_t i = 0; i < trek_var_numel(trek_params_var(params, k)); i++)
            expect_near(at(trek_params_var(params, k), i), at(strided, at_first++), k < 4 ? 1e-7 : 4e-3);
    trek_scope_end(scope);
    trek_params_free(&params);
    trek_module_free(&m);
}

static void test_refused(void **state)
{
    trek_module *m;
    trek_params *params = mixed(&m), *none = trek_params_new();
    trek_scope scope = trek_scope_begin();
    trek_var *before = trek_clone(trek_parameters_to_vector(params));
    REFUSED(trek_parameters_to_vector(NULL), TREK_ERR_ARGUMENT, "list");
    REFUSED(trek_parameters_to_vector(none), TREK_ERR_ARGUMENT, "empty");
    trek_var *vector = trek_full_like(before, 1);
    refuse(trek_vector_to_parameters(NULL, params), TREK_ERR_ARGUMENT, "vector");
    refuse(trek_vector_to_parameters(vector, NULL), TREK_ERR_ARGUMENT, "list");
    refuse(trek_vector_to_parameters(trek_narrow(vector, 0, 0, 5), params), TREK_ERR_SHAPE, "vector: [5]; must be");
    refuse(trek_vector_to_parameters(trek_unsqueeze(vector, 0), params), TREK_ERR_SHAPE, "[1, ");
    refuse(trek_vector_to_parameters(trek_cast(vector, TREK_I64), params), TREK_ERR_DTYPE, "i64");
    trek_var *after = trek_parameters_to_vector(params);
    for (int64_t i = 0; i < trek_var_numel(after); i++)
        assert_true(at(before, i) == at(after, i));
    REFUSED(trek_total_norm(NULL, 1, 2), TREK_ERR_ARGUMENT, "tensors");
    REFUSED(trek_total_norm(&vector, -1, 2), TREK_ERR_ARGUMENT, "tensors");
    trek_var *whole = trek_cast(vector, TREK_I64);
    REFUSED(trek_total_norm(&whole, 1, 2), TREK_ERR_DTYPE, "i64");
    trek_scope_end(scope);
    trek_params_free(&params);
    trek_params_free(&none);
    trek_module_free(&m);
}

static trek_var *norm_of(trek_var *const *inputs, int n, void *p) { return trek_total_norm(inputs, n, *(double *)p); }

static void test_total_norm(void **state)
{
    const double orders[] = { 2, 1, 3, (double)INFINITY, 0.5 };
    for (int k = 0; k < 5; k++) {
        trek_var *list[4] = { NULL };
        double p = orders[k], sum = 0;
        for (int i = 0; i < 3; i++) {
            trek_tensor *narrow = test_tensor(20 + (uint32_t)i, trek_dims(2 + i, 3), 1),
                *cast = trek_tensor_cast(narrow, TREK_F64);
            trek_tensor_release(narrow);
            list[i] = trek_var_from(cast);
            trek_var_set_requires_grad(list[i], true);
            for (int64_t j = 0; j < trek_var_numel(list[i]); j++)
                sum = isinf(p) ? fmax(sum, fabs(at(list[i], j))) : sum + pow(fabs(at(list[i], j)), p);
        }
        trek_var *norm = trek_total_norm(list, 4, p);
        assert_int_equal(trek_var_ndim(norm), 0);
        expect_near(trek_var_item(norm), isinf(p) ? sum : pow(sum, 1 / p), 1e-12 * fmax(1, pow(sum, isinf(p) ? 1 : 1 / p)));
        fine(trek_gradcheck(norm_of, list, 3, &p, NULL));
    }
    trek_var *none = trek_total_norm(NULL, 0, 2);
    assert_true(trek_var_item(none) == 0 && trek_var_dtype(none) == TREK_F32);
}

/* What clipping measures; 16-bit ones are summed in f32. */
static void test_total_norm_of_gradients(void **state)
{
    trek_module *m = trek_nn_linear(4, 3, test_device());
    trek_params *params = trek_module_params(m);
    trek_scope scope = trek_scope_begin();
    fine(trek_backward(trek_sum(trek_square(trek_forward(m, trek_var_from(test_tensor(1, trek_dims(5, 4), 1)))),
                                trek_dims_all(), false)));
    trek_var *grads[] = { trek_var_grad(trek_params_var(params, 0)), trek_var_grad(trek_params_var(params, 1)) };
    double norm = trek_var_item(trek_total_norm(grads, 2, 2));
    expect_near(norm, trek_clip_grad_norm(params, 1e9), 1e-5);
    trek_var *many = trek_var_from(trek_tensor_ones(trek_dims(70000), TREK_BF16, test_device()));
    trek_var *low = trek_total_norm((trek_var *[]){ many, many }, 2, 2);
    assert_int_equal(trek_var_dtype(low), TREK_BF16);
    expect_near(trek_var_item(low), sqrt(140000), 1);
    assert_int_equal(trek_var_dtype(trek_total_norm((trek_var *[]){ many, grads[0] }, 2, 2)), TREK_F32);
    trek_scope_end(scope);
    trek_params_free(&params);
    trek_module_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vector), cmocka_unit_test(test_refused), TEST(test_total_norm),
        cmocka_unit_test(test_total_norm_of_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
