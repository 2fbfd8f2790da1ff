/* SPDX-License-Identifier: Apache-2.0 */
/* Rarer element-wise functions: against plain C in f64, at their edges, in 16 bits. Their gradients are compared with differences
 * by the op suite, and with PyTorch's by tests/differential. */
#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "tests/autograd/differences.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

static void mixtures(void **state)
{
    trek_var *x = LIST(TREK_F64, 1, 2, -3, 1e300), *y = LIST(TREK_F64, 3, -2, 5, -1e300), *w = LIST(TREK_F64, 0.25, 0.75, 1, 0);
    ASSERT_VALUES(trek_lerp_var(x, y, w), 1.5, -1, 5, 1e300);
    ASSERT_VALUES(trek_lerp_var(LIST(TREK_BF16, 1), LIST(TREK_BF16, 1.0078125), LIST(TREK_F32, 0.5)), 1.00390625); /* in f32 */
    ASSERT_VALUES(trek_lerp_var(VALUES(trek_dims(2, 1), TREK_F32, 0, 2), LIST(TREK_F32, 4, 6), LIST(TREK_F32, 2)), 8, 12, 6, 10);
    ASSERT_VALUES(trek_round_decimals(LIST(TREK_F64, 1.2345, -2.675, 0.125, INFINITY), 2), 1.23, -2.68, 0.12, INFINITY);
    ASSERT_VALUES(trek_round_decimals(LIST(TREK_F32, 1250, 1350, -49), -2), 1200, 1400, 0);
    ASSERT_VALUES(trek_round_decimals(LIST(TREK_F16, 2.5, 3.5), 0), 2, 4);
    double a[] = { 1, -400, INFINITY, -INFINITY, -INFINITY, 2000 }, b[] = { 3, -401, 1, -INFINITY, 7, 2000 };
    ASSERT_VALUES(trek_logaddexp2(values_of(trek_dims(6), TREK_F64, a), values_of(trek_dims(6), TREK_F64, b)), log2(10),
                  -400 + log2(1.5), INFINITY, -INFINITY, 7, 2001);
}

/* Ops that are made of others have the dtype of the op table's rule: an input without dimensions counts only by its kind. */
static void common_dtypes(void **state)
{
    static const struct {
        trek_dtype flat, other, wanted;
    } cases[] = { { TREK_F32, TREK_F16, TREK_F16 }, { TREK_F64, TREK_F32, TREK_F32 }, { TREK_F64, TREK_BF16, TREK_BF16 },
                  { TREK_F16, TREK_F32, TREK_F32 } };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        trek_var *flat = VALUES(trek_dims_none(), cases[k].flat, 1), *x = LIST(cases[k].other, 2, 3);
        trek_var *made[] = { trek_lerp(flat, x, 0.5),           trek_lerp_var(flat, x, flat), trek_addcmul(flat, x, flat, 2),
                             trek_addcdiv(x, flat, flat, 2),    trek_logaddexp(flat, x),      trek_logaddexp2(x, flat),
                             trek_logaddexp(x, LIST(TREK_I64, 1, 2)) };
        for (size_t m = 0; m < sizeof made / sizeof *made; m++) {
            assert_non_null(made[m]);
            assert_int_equal(trek_var_dtype(made[m]), cases[k].wanted);
            assert_int_equal(trek_var_dtype(trek_add(flat, x)), cases[k].wanted);
        }
    }
    assert_int_equal(trek_var_dtype(trek_logaddexp(LIST(TREK_I64, 1, 2), VALUES(trek_dims_none(), TREK_F16, 1))), TREK_F16);
}

/* A recorded gradient has the numbers of one that is not. */
static void recorded_gradient(void **state)
{
    enum { N = 4097 };
    trek_var *x = trek_cast(trek_mul_scalar(random_values(1, trek_dims(N)), 0.5), TREK_F32), *found[2] = { NULL };
    trek_var *seed = trek_cast(random_values(2, trek_dims(N)), TREK_F32);
    trek_var_set_requires_grad(x, true);
    for (int recorded = 0; recorded < 2; recorded++) {
        trek_var *y = trek_logcumsumexp(x, 0);
        trek_backward_opts opts = { .create_graph = recorded };
        assert_int_equal(trek_grad(&y, 1, &x, 1, &seed, &opts, &found[recorded]), TREK_OK);
    }
    trek_var *apart = trek_max(trek_abs(trek_sub(found[0], found[1])), trek_dims_all(), false);
    assert_true(trek_var_item(apart) < 1e-7);
}

static void powers_of_two(void **state)
{
    trek_var *e, *x = LIST(TREK_F64, 1, -3, 0x1p-1074, 0.75, 0, INFINITY, 1, 0x1p1000);
    ASSERT_VALUES(trek_ldexp(x, LIST(TREK_I64, 3, -1, 2000, 1024, 9, -5, INT64_MIN, -2070)), 8, -1.5, 0x1p926, INFINITY, 0,
                  INFINITY, 0, 0x1p-1070);
    ASSERT_VALUES(trek_ldexp(LIST(TREK_I32, 3, 5), LIST(TREK_U8, 2, 0)), 12, 5);
    ASSERT_VALUES(trek_ldexp(VALUES(trek_dims(2, 1), TREK_F16, 1, 3), LIST(TREK_I32, -24, 14)), 0x1p-24, 16384, 3 * 0x1p-24,
                  49152);
    const double all[] = { 8, -0.3, 0x1p-1074, 0x1.fffffffffffffp1023, 0, INFINITY, -7.99999, 0.5, 0x1.fffffffffffffp-1 };
    double mantissas[9], exponents[9];
    for (int k = 0; k < 9; k++) {
        int own = 0;
        mantissas[k] = frexp(all[k], &own);
        exponents[k] = isfinite(all[k]) ? own : 0;
    }
    trek_var *m = trek_frexp(values_of(trek_dims(9), TREK_F64, all), &e);
    assert_values(m, 9, mantissas, __LINE__);
    assert_values(e, 9, exponents, __LINE__);
    assert_int_equal(trek_var_dtype(e), TREK_I32);
    ASSERT_VALUES(trek_frexp(LIST(TREK_BF16, 0x1p-133, NAN), &e), 0.5, NAN);
    ASSERT_VALUES(e, -132, 0);
}

static void logarithms(void **state)
{
    ASSERT_VALUES(trek_entr(LIST(TREK_F64, 0.5, 0, -1, 1, NAN, INFINITY)), 0.5 * log(2), 0, -INFINITY, 0, NAN, -INFINITY);
    ASSERT_VALUES(trek_entr(LIST(TREK_I64, 1, 0)), 0, 0);
    ASSERT_VALUES(trek_xlog1py(LIST(TREK_F64, 2, 0, 0, 0, 1, 0), LIST(TREK_F64, 1e-20, -1, -5, INFINITY, -1, NAN)), 2e-20, 0, 0,
                  0, -INFINITY, NAN);
    ASSERT_VALUES(trek_ndtr(LIST(TREK_F64, 0, 1, -30, INFINITY, -INFINITY)), 0.5, 0.5 * erfc(-sqrt(0.5)),
                  0.5 * erfc(30 * sqrt(0.5)), 1, 0);
}

/* Within some units in the last place. */
static void near(trek_var *x, int n, const double *expected, int line)
{
    double have[16];
    if (!x || trek_tensor_to_host(trek_var_data(x), TREK_F64, have, (size_t)n * sizeof *have) != TREK_OK)
        fail_msg("line %d: %s", line, trek_error());
    assert_int_equal(trek_var_numel(x), n);
    for (int k = 0; k < n; k++)
        if (!(have[k] == expected[k] || fabs(have[k] - expected[k]) <= 1e-13 * fabs(expected[k])))
            fail_msg("line %d, element %d: %.17g, not %.17g", line, k, have[k], expected[k]);
}
#define NEAR(x, ...) near((x), (int)(sizeof((double[]){ __VA_ARGS__ }) / sizeof(double)), (double[]){ __VA_ARGS__ }, __LINE__)

/* Numbers by Bessel's and Euler's integrals, in 40 digits. */
static void special_functions(void **state)
{
    const double at[] = { 0.5, -3, 29, 31, 700, INFINITY };
    trek_var *x = values_of(trek_dims(6), TREK_F64, at);
    NEAR(trek_i0(x), 1.0634833707413235193, 4.8807925858650240856, 292520631785.69086627, 2089962966491.9037954,
         1.5295933476718737363e+302, INFINITY);
    NEAR(trek_i0e(x), 0.64503527044915006811, 0.24300035416182539847, 0.074407468222225585054, 0.071946496696983832763,
         0.015081295651531357587, 0.0);
    NEAR(trek_i1(x), 0.25789430539089631636, -3.9533702174026093965, 287432108126.25481211, 2055972795294.5647312,
         1.5285003902339006881e+302, INFINITY);
    NEAR(trek_i1e(x), 0.15642080318487169714, -0.19682671329730085363, 0.073113117939388365104, 0.070776392834385680169,
         0.015070519444716846949, 0.0);
    NEAR(trek_log_ndtr(LIST(TREK_F64, 0, 0.5, -3, 29, -15, -40, -1e200)), -0.69314718055994530942, -0.36894641528865639307,
         -6.6077262215103495433, -3.2897852667043801617e-185, -116.13138484571169524, -804.60844201375378817, -INFINITY);
    trek_var *a = LIST(TREK_F64, 0.01, 0.5, 2, 30, 30, 1000, 2e6, 5), *b = LIST(TREK_F64, 0.2, 3, 1, 31, 5, 1010, 2001000, 0);
    NEAR(trek_igamma(a, b), 0.98778440945675419109, 0.98569412156457036047, 0.26424111765711535681, 0.59534782096561087714,
         2.8175176155779225599e-14, 0.62767894473699472753, 0.7602865609469362454, 0.0);
    NEAR(trek_igammac(a, b), 0.01221559054324580891, 0.014305878435429639526, 0.73575888234288464319, 0.40465217903438912286,
         0.99999999999997182482, 0.37232105526300527247, 0.2397134390530637546, 1.0);
    ASSERT_VALUES(trek_i0(LIST(TREK_I32, 0)), 1);
    ASSERT_VALUES(trek_i1e(LIST(TREK_BF16, 0, -INFINITY)), 0, 0);
    ASSERT_VALUES(trek_i1(LIST(TREK_F32, -INFINITY)), -INFINITY);
    ASSERT_VALUES(trek_log_ndtr(LIST(TREK_F16, -INFINITY, INFINITY)), -INFINITY, 0);
    ASSERT_VALUES(
        trek_igamma(LIST(TREK_F64, -1, 0, 0, 1, 1, INFINITY, INFINITY), LIST(TREK_F64, 1, 0, 1, -1, INFINITY, 1, INFINITY)), NAN,
        NAN, 1, NAN, 1, 0, NAN);
    ASSERT_VALUES(trek_igammac(LIST(TREK_I64, 1), LIST(TREK_I64, 0)), 1);
}

/* A step to the first argument of the incomplete gamma functions is refused. */
static void no_gradient(void **state)
{
    trek_var *a = trek_var_new(trek_var_data(LIST(TREK_F64, 1, 2)), true),
             *loss = trek_sum(trek_igammac(a, a), trek_dims_all(), false);
    assert_int_equal(trek_backward(loss), TREK_ERR_UNSUPPORTED);
    trek_error_clear();
    trek_var_release(a);
}

static void refused(void **state)
{
    trek_var *x = LIST(TREK_F32, 1, 2), *i = LIST(TREK_I64, 1, 2), *e = x;
    ASSERT_REFUSED(trek_lerp_var(x, x, i), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_lerp_var(x, x, NULL), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_lerp_var(x, x, LIST(TREK_F32, 1, 2, 3)), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_round_decimals(i, 1), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_round_decimals(x, 39), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_round_decimals(trek_cast(x, TREK_F64), -301), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_logaddexp2(x, i), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_ldexp(x, x), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_ldexp(x, LIST(TREK_I32, 1, 2, 3)), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_frexp(i, &e), TREK_ERR_DTYPE);
    assert_null(e);
    ASSERT_REFUSED(trek_entr(NULL), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_xlog1py(x, NULL), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_ndtr(NULL), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_log_ndtr(NULL), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_i0(NULL), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_igamma(x, NULL), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_igammac(x, LIST(TREK_F32, 1, 2, 3)), TREK_ERR_SHAPE);
}

int main(void)
{
    const struct CMUnitTest tests[] = { TEST(mixtures), TEST(common_dtypes), TEST(recorded_gradient), TEST(powers_of_two),
                                        TEST(logarithms),
                                        TEST(special_functions), TEST(no_gradient), TEST(refused) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
