/* SPDX-License-Identifier: Apache-2.0 */
/* Every element-wise function of autograd/ops.h, called by its public name: its values for numbers of all kinds against plain C,
 * what it says to NULL, to nothing and to shapes that do not fit. Dtypes, layouts, broadcasting and gradients are the op suite's,
 * which tests the rows of ops.def that lie below. */
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "tensor/dtypes.h"
#include "tensor/shapes.h"
#include "tests/autograd/differences.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

/* --- the functions ------------------------------------------------------------------------------- */

typedef struct function {
    const char *name;
    trek_var *(*one)(trek_var *x);
    trek_var *(*two)(trek_var *x, trek_var *y);
    bool truth; /* a result of bool */
    double (*value)(double x, double y);
} function;

static double phi(double x) { return 0.5 * erfc(-x / sqrt(2)); }
static double logistic(double x) { return 1 / (1 + exp(-x)); }
static double pushed(double x) { return tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }
static double even(double x) { return isinf(x) ? x : copysign(x - remainder(x, 1), x); }
static double modulo(double x, double y)
{
    double rest = fmod(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}

/* What takes a number has one here. */
static trek_var *number_add(trek_var *x) { return trek_add_scalar(x, 2.5); }
static trek_var *number_sub(trek_var *x) { return trek_sub_scalar(x, 1.5); }
static trek_var *number_mul(trek_var *x) { return trek_mul_scalar(x, -2.5); }
static trek_var *number_div(trek_var *x) { return trek_div_scalar(x, 4); }
static trek_var *number_pow(trek_var *x) { return trek_pow_scalar(x, 3); }
static trek_var *number_root(trek_var *x) { return trek_pow_scalar(x, -1.5); }
static trek_var *number_eq(trek_var *x) { return trek_eq_scalar(x, 1); }
static trek_var *number_ne(trek_var *x) { return trek_ne_scalar(x, 1); }
static trek_var *number_lt(trek_var *x) { return trek_lt_scalar(x, 1); }
static trek_var *number_le(trek_var *x) { return trek_le_scalar(x, 1); }
static trek_var *number_gt(trek_var *x) { return trek_gt_scalar(x, 1); }
static trek_var *number_ge(trek_var *x) { return trek_ge_scalar(x, 1); }
static trek_var *number_clamp(trek_var *x) { return trek_clamp(x, -1, 1.5); }
static trek_var *number_leaky_relu(trek_var *x) { return trek_leaky_relu(x, 0.125); }
static trek_var *number_elu(trek_var *x) { return trek_elu(x, 1.25); }
static trek_var *number_softplus(trek_var *x) { return trek_softplus(x, 2, 4); }
static trek_var *number_masked_fill(trek_var *x) { return trek_masked_fill(x, trek_gt_scalar(x, 1), 7); }

/* name, function, whether it gives truths, value */
#define ONE(X)                                                                                                                  \
    X(neg, trek_neg, false, -x) X(abs, trek_abs, false, fabs(x)) X(sign, trek_sign, false, (x > 0) - (x < 0))                   \
    X(exp, trek_exp, false, exp(x)) X(expm1, trek_expm1, false, expm1(x)) X(log, trek_log, false, log(x))                       \
    X(log1p, trek_log1p, false, log1p(x)) X(log2, trek_log2, false, log2(x)) X(log10, trek_log10, false, log10(x))              \
    X(sqrt, trek_sqrt, false, sqrt(x)) X(rsqrt, trek_rsqrt, false, 1 / sqrt(x)) X(reciprocal, trek_reciprocal, false, 1 / x)    \
    X(square, trek_square, false, x * x) X(sin, trek_sin, false, sin(x)) X(cos, trek_cos, false, cos(x))                        \
    X(tan, trek_tan, false, tan(x)) X(asin, trek_asin, false, asin(x)) X(acos, trek_acos, false, acos(x))                       \
    X(atan, trek_atan, false, atan(x)) X(sinh, trek_sinh, false, sinh(x)) X(cosh, trek_cosh, false, cosh(x))                    \
    X(tanh, trek_tanh, false, tanh(x)) X(sigmoid, trek_sigmoid, false, logistic(x)) X(erf, trek_erf, false, erf(x))             \
    X(relu, trek_relu, false, x < 0 ? 0 : x) X(gelu, trek_gelu, false, isinf(x) ? fmax(x, -0.0) : x * phi(x))                   \
    X(gelu_tanh, trek_gelu_tanh, false, isinf(x) ? fmax(x, -0.0) : 0.5 * x * (1 + pushed(x)))                                   \
    X(silu, trek_silu, false, x * logistic(x)) X(floor, trek_floor, false, floor(x)) X(ceil, trek_ceil, false, ceil(x))         \
    X(round, trek_round, false, even(x)) X(trunc, trek_trunc, false, trunc(x)) X(isnan, trek_isnan, true, x != x)               \
    X(isinf, trek_isinf, true, fabs(x) == INFINITY) X(isfinite, trek_isfinite, true, x - x == 0)                                \
    X(logical_not, trek_logical_not, true, x == 0) X(clone, trek_clone, false, x) X(contiguous, trek_contiguous, false, x)      \
    X(add_scalar, number_add, false, x + 2.5) X(sub_scalar, number_sub, false, x - 1.5)                                         \
    X(mul_scalar, number_mul, false, x * -2.5) X(div_scalar, number_div, false, x / 4)                                          \
    X(pow_scalar, number_pow, false, x * x * x) X(pow_root, number_root, false, pow(x, -1.5))                                   \
    X(eq_scalar, number_eq, true, x == 1) X(ne_scalar, number_ne, true, x != 1) X(lt_scalar, number_lt, true, x < 1)            \
    X(le_scalar, number_le, true, x <= 1) X(gt_scalar, number_gt, true, x > 1) X(ge_scalar, number_ge, true, x >= 1)            \
    X(clamp, number_clamp, false, x < -1 ? -1 : x > 1.5 ? 1.5 : x)                                                              \
    X(leaky_relu, number_leaky_relu, false, x < 0 ? 0.125 * x : x) X(elu, number_elu, false, x < 0 ? 1.25 * expm1(x) : x)       \
    X(softplus, number_softplus, false, 2 * x > 4 ? x : log1p(exp(2 * x)) / 2)                                                  \
    X(masked_fill, number_masked_fill, false, x > 1 ? 7 : x)

#define TWO(X)                                                                                                                  \
    X(add, trek_add, false, x + y) X(sub, trek_sub, false, x - y) X(mul, trek_mul, false, x * y)                                \
    X(div, trek_div, false, x / y) X(pow, trek_pow, false, pow(x, y))                                                           \
    X(maximum, trek_maximum, false, isnan(x) || x > y ? x : y) X(minimum, trek_minimum, false, isnan(x) || x < y ? x : y)       \
    X(atan2, trek_atan2, false, atan2(x, y)) X(remainder, trek_remainder, false, modulo(x, y)) X(eq, trek_eq, true, x == y)     \
    X(ne, trek_ne, true, x != y) X(lt, trek_lt, true, x < y) X(le, trek_le, true, x <= y) X(gt, trek_gt, true, x > y)           \
    X(ge, trek_ge, true, x >= y) X(logical_and, trek_logical_and, true, x != 0 && y != 0)                                       \
    X(logical_or, trek_logical_or, true, x != 0 || y != 0) X(logical_xor, trek_logical_xor, true, (x != 0) != (y != 0))

#define FORMULA(name, function, truth, expression)                                                    \
    static double name##_of(double x, double y)                                                       \
    {                                                                                                 \
        (void)x, (void)y;                                                                             \
        return expression;                                                                            \
    }
ONE(FORMULA)
TWO(FORMULA)

#define ONE_ENTRY(name, function, truth, value) { #name, function, NULL, truth, name##_of },
#define TWO_ENTRY(name, function, truth, value) { #name, NULL, function, truth, name##_of },
static const function functions[] = { ONE(ONE_ENTRY) TWO(TWO_ENTRY) };
enum { FUNCTIONS = sizeof functions / sizeof *functions };

static trek_var *call(const function *f, trek_var *const *in) { return f->one ? f->one(in[0]) : f->two(in[0], in[1]); }

/* --- the cases --------------------------------------------------------------------------------------- */

static bool close_to(double got, double expected, double tolerance)
{
    if (isnan(expected) || isinf(expected))
        return isnan(expected) ? isnan(got) : got == expected;
    return fabs(got - expected) <= tolerance * (1 + fabs(expected));
}

/* Numbers as others, halves, NaN, infinities, zeros of both signs: all of them, and all pairs. */
static void numbers_of_all_kinds(void **state)
{
    static const double numbers[] = { NAN, INFINITY, -INFINITY, 0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1, -1, 2, 0x1p60, -0x1p60,
                                      0.3125, -2.6875, 3.875 };
    enum { N = sizeof numbers / sizeof *numbers };
    double all[2][N * N], got[N * N];
    for (int i = 0; i < N * N; i++) {
        all[0][i] = numbers[i / N];
        all[1][i] = numbers[i % N];
    }
    for (int k = 0; k < FUNCTIONS; k++)
        for (int d = 0; d < 2; d++) {
            const function *f = &functions[k];
            trek_scope inner = trek_scope_begin();
            trek_dtype dtype = d ? TREK_F32 : TREK_F64;
            trek_var *in[2] = { trek_var_from(test_values(all[0], trek_dims(N * N), dtype)),
                                trek_var_from(test_values(all[1], trek_dims(N * N), dtype)) };
            trek_var *made = call(f, in), *y = trek_cast(made, TREK_F64);
            assert_int_equal(trek_var_dtype(made), f->truth ? TREK_BOOL : dtype);
            assert_int_equal(trek_tensor_to_host(trek_var_data(y), TREK_F64, got, sizeof got), TREK_OK);
            for (int i = 0; i < N * N; i++) {
                double expected = f->value(all[0][i], all[1][i]);
                if (f->truth)
                    expected = expected != 0;
                if (d && fabs(expected) > 3.5e38)
                    expected = copysign(INFINITY, expected);
                if (!close_to(got[i], expected, d ? 3e-6 : 1e-12) ||
                    (expected == 0 && f->one && !signbit(got[i]) != !signbit(expected)))
                    fail_msg("%s of %s (%g, %g) is %.17g instead of %.17g", f->name, trek_dtype_name(dtype), all[0][i], all[1][i],
                             got[i], expected);
            }
            trek_scope_end(inner);
        }
}

/* NULL in, NULL out, and the first error stays; of no elements there are none. */
static void null_and_empty(void **state)
{
    for (int k = 0; k < FUNCTIONS; k++) {
        trek_var *x = trek_var_from(test_values(NULL, trek_dims(0, 3), TREK_F32)),
                 *y = call(&functions[k], (trek_var *[]){ x, x });
        assert_non_null(y);
        assert_true(trek_shape_equal(trek_var_shape(y), trek_dims(0, 3)));
        trek_fail(TREK_ERR_FORMAT, "an earlier one");
        assert_null(call(&functions[k], (trek_var *[]){ NULL, x }));
        if (functions[k].two)
            assert_null(functions[k].two(x, NULL));
        expect_error(TREK_ERR_FORMAT, "");
    }
}

static void shapes_that_do_not_broadcast(void **state)
{
    trek_var *x = trek_var_from(test_tensor(1, trek_dims(3, 4), 1)), *y = trek_var_from(test_tensor(2, trek_dims(3), 1));
    for (int k = 0; k < FUNCTIONS; k++) {
        if (!functions[k].two)
            continue;
        assert_null(functions[k].two(x, y));
        assert_int_equal(trek_error_status(), TREK_ERR_SHAPE);
        if (!strstr(trek_error(), functions[k].name))
            fail_msg("%s: %s", functions[k].name, trek_error());
        trek_error_clear();
    }
}

/* A squeezed variable lies where the other does, on whatever dimension. */
static void squeezed_is_a_view(void **state)
{
    trek_var *x = trek_var_from(test_tensor(41, trek_dims(1, 3, 1, 4), 2));
    for (int dim = -4; dim < 4 && test_on_cpu(); dim++)
        assert_ptr_equal(trek_tensor_data(trek_var_data(x)), trek_tensor_data(trek_var_data(trek_squeeze(x, dim))));
    trek_var *there = trek_unsqueeze(trek_squeeze(trek_transpose(trek_select(x, 0, 0), 0, 2), 1), 1);
    assert_true(trek_shape_equal(trek_var_shape(there), trek_dims(4, 1, 3)));
}

/* Those that are no element-wise ones, and that nothing else calls by these names. */
static void rows_by_their_names(void **state)
{
    trek_var *x = VALUES(trek_dims(2, 3), TREK_F32, 1, 2, 3, 4, 5, 6);
    ASSERT_VALUES(trek_tril(x, 1), 1, 2, 0, 4, 5, 6);
    ASSERT_VALUES(trek_triu(x, 1), 0, 2, 3, 0, 0, 6);
    ASSERT_VALUES(trek_one_hot(LIST(TREK_I64, 1, 0), 3), 0, 1, 0, 1, 0, 0);
    ASSERT_VALUES(trek_one_hot(LIST(TREK_I64, 1, 0), -1), 0, 1, 1, 0);
    ASSERT_VALUES(trek_index_select(x, 1, LIST(TREK_I64, 2, 0)), 3, 1, 6, 4);
    ASSERT_VALUES(trek_index_add(x, 0, LIST(TREK_I64, 1), VALUES(trek_dims(1, 3), TREK_F32, 1, 1, 1)), 1, 2, 3, 5, 6, 7);
    ASSERT_VALUES(trek_gather(x, 1, VALUES(trek_dims(2, 1), TREK_I64, 2, 0)), 3, 4);
    ASSERT_VALUES(trek_scatter_add(x, 0, VALUES(trek_dims(1, 2), TREK_I64, 1, 0), VALUES(trek_dims(1, 2), TREK_F32, 7, 8)), 1, 10,
                  3, 11, 5, 6);
    ASSERT_VALUES(trek_cumsum(x, 1), 1, 3, 6, 4, 9, 15);
    ASSERT_VALUES(trek_variance(x, trek_dims(1), false), 1, 1);
    ASSERT_VALUES(trek_std(trek_mul_scalar(x, 2), trek_dims(1), false), 2, 2);
    ASSERT_VALUES(trek_adaptive_avg_pool2d(trek_reshape(x, trek_dims(1, 1, 2, 3)), 2, 1), 2, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = { TEST(numbers_of_all_kinds), TEST(null_and_empty), TEST(shapes_that_do_not_broadcast),
                                        TEST(squeezed_is_a_view), TEST(rows_by_their_names) };
    return cmocka_run_group_tests_name("public_ops", tests, NULL, NULL);
}
