/* SPDX-License-Identifier: Apache-2.0 */
/* What the op suite and the comparison with PyTorch do not see of autograd/pointwise.h: known values, what is refused, what is
 * drawn, results on the host. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/gradcheck.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "tensor/creation.h"
#include "tensor/dtypes.h"
#include "tensor/layout.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

static trek_var *numbers(const double *values, int64_t n, trek_dtype dtype)
{
    return trek_var_from(test_values(values, trek_dims(n), dtype));
}

static void check(trek_var *y, const double *wanted, int64_t n)
{
    if (!y)
        fail_msg("%s", trek_error());
    double *got = test_read(trek_var_data(y));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - wanted[i]) <= 1e-12 * (1 + fabs(wanted[i])) || got[i] == wanted[i] ||
              (isnan(got[i]) && isnan(wanted[i]))))
            fail_msg("element %d is %.17g, not %.17g", (int)i, got[i], wanted[i]);
    free(got);
}

#define PI_SQUARED 9.8696044010893586

/* f32, which is computed in another way, beside f64: near poles and zeros, small, large. */
static void test_polygamma_of_f32(void **state)
{
    enum { MANY = 20000 };
    double *xs = malloc(MANY * sizeof *xs);
    uint64_t seed = 3;
    assert_non_null(xs);
    for (int64_t i = 0; i < MANY; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const double u = (double)(seed >> 11) * 0x1p-52 - 1, scales[] = { 2, 20, 1e-30, 1e4, 1e30, 1e-40 };
        xs[i] = (double)(float)(i % 7 == 6 ? round(u * 12) + u * 1e-4 : u * scales[i % 7]);
    }
    const double special[] = { 0, -0.0, -1, -8388609, INFINITY, -INFINITY, NAN, FLT_MAX, -FLT_MAX, 1.4616321325302124,
                               -0.5040829777717590 };
    memcpy(xs, special, sizeof special);
    trek_var *x = numbers(xs, MANY, TREK_F32), *exact = trek_cast(x, TREK_F64);
    for (int order = 0; order < 2; order++) {
        double *narrow = test_read(trek_var_data(trek_polygamma(order, x))),
            *wide = test_read(trek_var_data(trek_polygamma(order, exact)));
        for (int64_t i = 0; i < MANY; i++) {
            const double wanted = (double)(float)wide[i];
            if (!(narrow[i] == wanted || (isnan(narrow[i]) && isnan(wanted)) ||
                  fabs(narrow[i] - wide[i]) <= 0x1.2p-24 * fabs(wide[i]) + 1e-14))
                fail_msg("polygamma of order %d of %a is %a, not %a", order, xs[i], narrow[i], wide[i]);
        }
        free(narrow), free(wide);
    }
    free(xs);
}

/* psi_n(x + 1) = psi_n(x) - (-1)^(n+1) n! x^-(n+1), from where terms are added one by one to where there would be too many. */
static void test_polygamma_far_below(void **state)
{
    const double factorials[] = { 1, 1, 2, 6, 24, 120 }, xs[] = { -20.3, -19.3, -20.55, -19.55, -20.001, -19.001 };
    for (int n = 1; n < 6; n++) {
        double *got = test_read(trek_var_data(trek_polygamma(n, numbers(xs, 6, TREK_F64))));
        for (int k = 0; k < 6; k += 2) {
            const double step = (n % 2 ? 1 : -1) * factorials[n] * pow(xs[k], -n - 1), wanted = got[k] - step;
            if (!(fabs(got[k + 1] - wanted) <= 1e-12 * (fabs(got[k]) + 1)))
                fail_msg("polygamma of order %d of %g is %.17g, not %.17g", n, xs[k + 1], got[k + 1], wanted);
        }
        free(got);
    }
    check(trek_polygamma(1, numbers((double[]){ -1e15 - 0.5, -0x1p51 - 0.5, -1e300 }, 3, TREK_F64)),
          (double[]){ PI_SQUARED, PI_SQUARED, INFINITY }, 3);
}

static void test_known(void **state)
{
    const double xs[] = { -4, -1, 0, 0.5, 3, 7 };
    trek_var *x = numbers(xs, 6, TREK_F64);
    check(trek_relu6(x), (double[]){ 0, 0, 0, 0.5, 3, 6 }, 6);
    check(trek_hardtanh(x, -2, 2), (double[]){ -2, -1, 0, 0.5, 2, 2 }, 6);
    check(trek_hardsigmoid(x), (double[]){ 0, 1 / 3.0, 0.5, 3.5 / 6, 1, 1 }, 6);
    check(trek_hardswish(x), (double[]){ 0, -1 / 3.0, 0, 1.75 / 6, 3, 7 }, 6);
    check(trek_hardshrink(x, 0.5), (double[]){ -4, -1, 0, 0, 3, 7 }, 6);
    check(trek_softshrink(x, 0.5), (double[]){ -3.5, -0.5, 0, 0, 2.5, 6.5 }, 6);
    check(trek_threshold(x, 0.5, 9), (double[]){ 9, 9, 9, 9, 3, 7 }, 6);
    check(trek_softsign(x), (double[]){ -0.8, -0.5, 0, 1 / 3.0, 0.75, 0.875 }, 6);
    check(trek_celu(x, 2), (double[]){ 2 * expm1(-2), 2 * expm1(-0.5), 0, 0.5, 3, 7 }, 6);
    check(trek_selu(x), (double[]){ -1.7258986281899946, -1.1113307378125625, 0, 0.5253504936777402, 3.1521029620664414,
                                    7.3549069114883637 }, 6);
    check(trek_mish(x), (double[]){ -0.072591739147, -0.30340146137410895, 0, 0.37524521248, 2.98653500498, 6.99999418677 }, 0);
    check(trek_tanhshrink(x), (double[]){ -4 + tanh(4), -1 + tanh(1), 0, 0.5 - tanh(0.5), 3 - tanh(3), 7 - tanh(7) }, 6);
    check(trek_logsigmoid(x), (double[]){ -4.0181499279178094, -1.3132616875182228, -log(2), -0.47407698418010669,
                                          -0.048587351573742055, -0.00091146645377420147 }, 6);
    check(trek_softmin(x, 0), (double[]){ 0.93454, 0, 0, 0, 0, 0 }, 0);
    check(trek_frac(x), (double[]){ 0, 0, 0, 0.5, 0, 0 }, 6);
    check(trek_erfc(x), (double[]){ 1.9999999845827421, 1.8427007929497148, 1, 0.47950012218695346, 2.2090496998585441e-5,
                                    4.1838256077794144e-23 }, 6);
    check(trek_lgamma(numbers((double[]){ 0.5, 1, 5, -2.5 }, 4, TREK_F64)),
          (double[]){ 0.57236494292470009, 0, 3.1780538303479458,
                                                                                      -0.056243716497674054 }, 4);
    check(trek_digamma(numbers((double[]){ 1, 0.5, -0.5, 0, -3 }, 5, TREK_F64)),
          (double[]){ -0.57721566490153286, -1.9635100260214235, 0.03648997397857652, -INFINITY, NAN }, 5);
    check(trek_polygamma(1, numbers((double[]){ 1, 0.5, -0.5 }, 3, TREK_F64)),
          (double[]){ 1.6449340668482264, 4.9348022005446793, 8.9348022005446793 }, 3);
    check(trek_polygamma(2, numbers((double[]){ 1, 3 }, 2, TREK_F64)), (double[]){ -2.4041138063191886, -0.15411380631918858 },
          2);
    check(trek_erfinv(numbers((double[]){ 0, 0.5, -0.999999, 1, -1, 2 }, 6, TREK_F64)),
          (double[]){ 0, 0.47693627620446987, -3.4589107372795, INFINITY, -INFINITY, NAN }, 2);
    check(trek_exp2(x), (double[]){ 0.0625, 0.5, 1, 1.4142135623730951, 8, 128 }, 6);
    check(trek_asinh(x), (double[]){ asinh(-4), asinh(-1), 0, asinh(0.5), asinh(3), asinh(7) }, 6);
    check(trek_acosh(x), (double[]){ NAN, NAN, NAN, NAN, acosh(3), acosh(7) }, 6);
    check(trek_atanh(x), (double[]){ NAN, -INFINITY, 0, atanh(0.5), NAN, NAN }, 6);
    check(trek_rad2deg(trek_deg2rad(x)), xs, 6);
    check(trek_lerp(x, trek_zeros_like(x), 0.25), (double[]){ -3, -0.75, 0, 0.375, 2.25, 5.25 }, 6);
    check(trek_addcmul(x, x, x, -1), (double[]){ -20, -2, 0, 0.25, -6, -42 }, 6);
    check(trek_addcdiv(x, x, trek_full_like(x, 2), 2), (double[]){ -8, -2, 0, 1, 6, 14 }, 6);
    check(trek_logaddexp(x, trek_full_like(x, -INFINITY)), xs, 6);
    check(trek_logaddexp(x, x), (double[]){ -4 + log(2), -1 + log(2), log(2), 0.5 + log(2), 3 + log(2), 7 + log(2) }, 6);
    check(trek_count_nonzero(x, trek_dims_all()), (double[]){ 5 }, 1);
    check(trek_glu(x, 0), (double[]){ -4 / (1 + exp(-0.5)), -1 / (1 + exp(-3)), 0 }, 3);
    check(trek_swiglu(x, 0), (double[]){ -4 / (1 + exp(4)) * 0.5, -1 / (1 + exp(1)) * 3, 0 }, 3);
    check(trek_prelu(x, numbers((double[]){ 0.1 }, 1, TREK_F64)), (double[]){ -0.4, -0.1, 0, 0.5, 3, 7 }, 6);
    check(trek_nan_to_num(numbers((double[]){ NAN, INFINITY, -INFINITY, 2 }, 4, TREK_F32), 1, 5, -6), (double[]){ 1, 5, -6, 2 },
          4);
}

/* Gradients and second ones where kinds go on from each other. */
static trek_var *chain(trek_var *const *inputs, int n, void *arg)
{
    trek_var *x = inputs[0];
    trek_var *y = trek_mul(trek_mish(x), trek_logsigmoid(trek_polygamma(1, trek_add_scalar(trek_square(x), 1))));
    return trek_add(y, trek_logaddexp(trek_asinh(x), trek_erfinv(trek_mul_scalar(trek_softsign(x), 0.9))));
}

static void test_chain(void **state)
{
    const double values[] = { -1.5, -0.25, 0.5, 2 };
    trek_tensor *tensor = test_values(values, trek_dims(4), TREK_F64);
    trek_var *x = trek_var_new(tensor, true);
    trek_status status = trek_gradcheck(chain, &x, 1, NULL, &(trek_gradcheck_opts){ .second = true });
    SUCCEEDS(status);
    trek_var_release(x);
    trek_tensor_release(tensor);
}

static void test_drawn(void **state)
{
    trek_var *x = trek_var_from(trek_tensor_full(trek_dims(4000), -2, TREK_F32, test_device()));
    trek_seed(4);
    double *slopes = test_read(trek_var_data(trek_div_scalar(trek_rrelu(x, 0.1, 0.3, true), -2))), mean = 0, least = 1, most = 0;
    for (int i = 0; i < 4000; i++) {
        mean += slopes[i] / 4000;
        least = fmin(least, slopes[i]);
        most = fmax(most, slopes[i]);
    }
    assert_true(fabs(mean - 0.2) < 0.005 && least > 0.0999 && least < 0.101 && most > 0.299 && most < 0.3001);
    free(slopes);
    check(trek_rrelu(trek_var_from(trek_tensor_full(trek_dims(2), -2, TREK_F64, test_device())), 0.1, 0.3, false),
          (double[]){ -0.4, -0.4 }, 2);
}

static void test_close(void **state)
{
    trek_var *x = numbers((double[]){ 1, INFINITY, NAN, 0 }, 4, TREK_F64),
        *y = numbers((double[]){ 1 + 1e-9, INFINITY, NAN, 1e-9 }, 4, TREK_F64);
    check(trek_isclose(x, y, 1e-5, 1e-8, false), (double[]){ 1, 1, 0, 1 }, 4);
    check(trek_isclose(x, y, 1e-5, 1e-8, true), (double[]){ 1, 1, 1, 1 }, 4);
    check(trek_isclose(x, y, 0, 0, true), (double[]){ 0, 1, 1, 0 }, 4);
    assert_true(trek_allclose(x, y, 1e-5, 1e-8, true));
    assert_false(trek_allclose(x, y, 1e-5, 1e-8, false));
    assert_int_equal(trek_error_status(), TREK_OK);
    assert_false(trek_allclose(x, trek_cast(y, TREK_F32), 1e-5, 1e-8, true));
    expect_error(TREK_ERR_DTYPE, "f64 and f32");
    assert_false(trek_allclose(x, y, -1, 0, true));
    expect_error(TREK_ERR_ARGUMENT, "negative");
}

static void test_refused(void **state)
{
    trek_var *x = numbers((double[]){ 1, 2, 3 }, 3, TREK_F32), *i = numbers((double[]){ 1, 2, 3 }, 3, TREK_I64);
    REFUSED(trek_hardtanh(x, 1, 0), TREK_ERR_ARGUMENT, "hardtanh: low: 1");
    REFUSED(trek_softshrink(x, -1), TREK_ERR_ARGUMENT, "lambda");
    REFUSED(trek_celu(x, 0), TREK_ERR_ARGUMENT, "alpha");
    REFUSED(trek_mish(i), TREK_ERR_DTYPE, "");
    REFUSED(trek_glu(x, 0), TREK_ERR_SHAPE, "3 elements; must be an even number");
    REFUSED(trek_swiglu(i, 0), TREK_ERR_DTYPE, "swiglu");
    REFUSED(trek_prelu(x, numbers((double[]){ 1, 2 }, 2, TREK_F32)), TREK_ERR_ARGUMENT, "1 element or 1");
    REFUSED(trek_prelu(x, numbers((double[]){ 1 }, 1, TREK_F64)), TREK_ERR_DTYPE, "prelu");
    REFUSED(trek_rrelu(x, 0.5, 0.1, true), TREK_ERR_ARGUMENT, "lower");
    REFUSED(trek_polygamma(-1, x), TREK_ERR_ARGUMENT, "n: -1");
    REFUSED(trek_addcmul(i, x, x, 1), TREK_ERR_DTYPE, "addcmul");
    REFUSED(trek_lerp(i, x, 1), TREK_ERR_DTYPE, "lerp");
    REFUSED(trek_logaddexp(i, i), TREK_ERR_DTYPE, "logaddexp");
}

/* lgamma of f32, which CPUs compute in another way than f64: of all magnitudes, and next to where it is 0. */
static void test_lgamma_of_f32(void **state)
{
    if (test_device().type != TREK_CPU)
        skip();
    static const float special[] = { 0, -0.0f, -1, -3, -1e9f, -INFINITY, INFINITY, NAN, 1, 2, 3e38f, 0x1p-149f, -0x1p-149f };
    enum { SPECIAL = sizeof special / sizeof *special, NEAR = 200, ALL = SPECIAL + 4 * NEAR + 4096 };
    static double xs[ALL], got[ALL];
    int n = 0;
    for (; n < SPECIAL; n++)
        xs[n] = special[n];
    for (int zero = 0; zero < 4; zero++) {
        float x = (float[]){ 1, 2, -2.4570247f, -3.1435809f }[zero];
        for (int k = 0; k < NEAR / 2; k++)
            x = nextafterf(x, -INFINITY);
        for (int k = 0; k < NEAR; k++)
            xs[n++] = (double)x, x = nextafterf(x, INFINITY);
    }
    for (; n < ALL; n++) /* of all magnitudes and both signs */
        xs[n] = ldexpf(1 + (float)(n * 37 % 1009) / 1009, n % 254 - 126) * (n % 3 ? 1 : -1);
    trek_var *y = trek_lgamma(numbers(xs, ALL, TREK_F32));
    assert_int_equal(trek_tensor_to_host(trek_var_data(y), TREK_F64, got, sizeof got), TREK_OK);
    for (int k = 0; k < ALL; k++) {
        const double wanted = lgamma(xs[k]);
        const float next = nextafterf((float)fabs(wanted), INFINITY);
        const double unit = (double)next - (double)(float)fabs(wanted);
        if (isnan(wanted) ? !isnan(got[k]) : (double)(float)wanted != got[k] && !(fabs(got[k] - wanted) <= 1.5 * unit))
            fail_msg("lgamma(%.9g) is %.9g, not %.9g", xs[k], got[k], wanted);
    }
}

/* 2^x as precise as the dtype: no more than two units in the last place away. */
static void test_exp2_digits(void **state)
{
    const struct { trek_dtype dtype; double unit; } kinds[] = {
        { TREK_F64, 0x1p-52 }, { TREK_F32, 0x1p-23 }, { TREK_BF16, 0x1p-8 }, { TREK_F16, 0x1p-11 },
    };
    for (int k = 0; k < 4; k++) {
        double xs[64];
        for (int i = 0; i < 64; i++)
            xs[i] = (i - 32) * (k == 3 ? 0.4375 : 3.140625);
        trek_var *x = numbers(xs, 64, kinds[k].dtype);
        double *of = test_read(trek_var_data(x)), *got = test_read(trek_var_data(trek_exp2(x)));
        for (int i = 0; i < 64; i++)
            if (!(fabs(got[i] / exp2(of[i]) - 1) <= 2 * kinds[k].unit))
                fail_msg("2^%g in %s is %.17g", of[i], trek_dtype_name(kinds[k].dtype), got[i]);
        free(of);
        free(got);
    }
    check(trek_exp2(numbers((double[]){ 100, -100, 0, INFINITY, -INFINITY, NAN }, 6, TREK_BF16)),
          (double[]){ 0x1p100, 0x1p-100, 1, INFINITY, 0, NAN }, 6);
}

/* What ops of several steps give in 16 bits is the exact result, rounded once; of mixed dtypes it has the digits of the wider. */
static void test_rounded_once(void **state)
{
    enum { N = 40 };
    for (int k = 0; k < 3; k++) {
        const trek_dtype dtype = k == 0 ? TREK_BF16 : k == 1 ? TREK_F16 : TREK_F32;
        const double half = k == 0 ? 0x1p-8 : k == 1 ? 0x1p-11 : 0x1p-22;
        double xs[N], ys[N], zs[N];
        for (int i = 0; i < N; i++)
            xs[i] = sin(i) - 1, ys[i] = cos(3 * i) + 1.5, zs[i] = sin(5 * i) + 1.25;
        trek_var *x = numbers(xs, N, dtype), *y = numbers(ys, N, k == 2 ? TREK_BF16 : dtype),
            *z = numbers(zs, N, k == 2 ? TREK_BF16 : dtype);
        double *a = test_read(trek_var_data(x)), *b = test_read(trek_var_data(y)), *c = test_read(trek_var_data(z));
        trek_var *const results[] = { trek_lerp(x, y, 0.3), trek_addcmul(x, y, z, 0.7), trek_addcdiv(x, y, z, 0.7),
                                      trek_logaddexp(x, y) };
        for (int r = 0; r < 4; r++) {
            double *got = test_read(trek_var_data(results[r]));
            assert_int_equal(trek_var_dtype(results[r]), dtype);
            for (int i = 0; i < N; i++) {
                double wanted = r == 0 ? a[i] + 0.3 * (b[i] - a[i]) : r == 1 ? a[i] + 0.7 * b[i] * c[i]
                              : r == 2 ? a[i] + 0.7 * b[i] / c[i] : log(exp(a[i]) + exp(b[i]));
                /* f32's own error counts where terms cancel */
                if (!(fabs(got[i] - wanted) <= half * fabs(wanted) + 0x1p-21))
                    fail_msg("result %d of %s is %.9g, not %.9g", r, trek_dtype_name(dtype), got[i], wanted);
            }
            free(got);
        }
        free(a);
        free(b);
        free(c);
    }
    double both[] = { INFINITY, -INFINITY, 2 };
    trek_var *in[2], *slopes[2];
    for (int k = 0; k < 2; k++) {
        in[k] = numbers(both, 3, TREK_F64);
        trek_var_set_requires_grad(in[k], true);
    }
    trek_var *sum = trek_logaddexp(in[0], in[1]);
    check(sum, (double[]){ INFINITY, -INFINITY, 2 + log(2) }, 3);
    trek_var *ones = trek_ones_like(sum);
    assert_int_equal(trek_grad(&sum, 1, in, 2, &ones, NULL, slopes), TREK_OK);
    for (int k = 0; k < 2; k++)
        check(slopes[k], (double[]){ 0.5, 0.5, 0.5 }, 3);
}

/* --- rows of inputs as they lie in memory: every second element, one element for a whole row --- */

enum { ROWS = 5, COLUMNS = 77, RESULTS = 15 };

/* Computes x and y, or x, y and z, in all ways that have such rows; the last ones replace x. */
static void compute_rows(trek_var *x, trek_var *y, trek_var *z, trek_var **results)
{
    trek_var *computed[RESULTS] = {
        trek_add(x, y), trek_sub(x, y), trek_mul(x, y), trek_div(x, y), trek_maximum(x, y), trek_minimum(x, y),
        trek_lerp(x, y, 0.3), trek_lerp_var(x, y, z), trek_clamp_var(x, y, z), trek_addcmul(x, y, z, 0.7),
        trek_addcdiv(x, y, z, 0.7), trek_mse_loss_with(x, y, &(trek_loss_opts){ .reduction = TREK_REDUCTION_NONE }),
        trek_clone(trek_add_(x, y)), trek_clone(trek_mul_(x, y)), trek_clone(trek_div_(x, z)),
    };
    memcpy(results, computed, sizeof computed);
}

/* A matrix of which the columns of one kind are taken: 0 and 1 every second one, 2 the first one for all. */
static trek_var *columns_of(trek_var *x, int kind)
{
    return kind < 2 ? trek_select(trek_reshape(x, trek_dims(ROWS, COLUMNS, 2)), 2, kind)
                    : trek_expand(trek_narrow(x, 1, 0, 1), trek_dims(ROWS, COLUMNS));
}

static void test_rows_in_memory(void **state)
{
    double values[3][ROWS * 2 * COLUMNS];
    uint64_t seed = 5;
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < ROWS * 2 * COLUMNS; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            values[k][i] = (seed >> 58) == 0 ? NAN : (double)(seed >> 11) * 0x1p-52 - 1;
        }
    for (int of = 0; of < 4 * 9; of++) {
        const int dtype = (int[]){ TREK_F32, TREK_F64, TREK_BF16, TREK_F16 }[of / 9], kinds[] = { of % 2, of / 3 % 3, of % 3 };
        trek_var *whole[3], *in[3], *apart[3], *got[RESULTS], *wanted[RESULTS];
        for (int k = 0; k < 3; k++) {
            whole[k] = trek_var_from(test_values(values[k], trek_dims(ROWS, 2 * COLUMNS), (trek_dtype)dtype));
            in[k] = columns_of(whole[k], kinds[k]);
            apart[k] = trek_clone(in[k]);
            assert_false(trek_tensor_is_contiguous(trek_var_data(in[k])));
            assert_true(trek_tensor_is_contiguous(trek_var_data(apart[k])));
        }
        trek_var *rest = trek_clone(columns_of(whole[0], 1 - kinds[0]));
        trek_no_grad_begin();
        compute_rows(in[0], in[1], in[2], got);
        compute_rows(apart[0], apart[1], apart[2], wanted);
        trek_no_grad_end();
        for (int r = 0; r < RESULTS; r++) {
            if (!wanted[r])
                fail_msg("result %d: %s", r, trek_error());
            double *numbers_wanted = test_read(trek_var_data(wanted[r]));
            check(got[r], numbers_wanted, ROWS * COLUMNS);
            free(numbers_wanted);
        }
        double *untouched = test_read(trek_var_data(rest)); /* by what replaced the elements between them */
        check(columns_of(whole[0], 1 - kinds[0]), untouched, ROWS * COLUMNS);
        free(untouched);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_known), TEST(test_lgamma_of_f32), TEST(test_polygamma_of_f32), TEST(test_polygamma_far_below),
            TEST(test_exp2_digits), TEST(test_rounded_once),
            cmocka_unit_test(test_chain),
            TEST(test_drawn),
            TEST(test_close), TEST(test_refused), TEST(test_rows_in_memory),
    };
    return cmocka_run_group_tests_name("pointwise", tests, NULL, NULL);
}
