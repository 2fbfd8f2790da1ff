/* SPDX-License-Identifier: Apache-2.0 */
/* Rounded quotients, functions of two numbers, differences along lines: numbers told by hand. Their gradients are compared with
 * differences by the op suite, and with PyTorch's by tests/differential. */
#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "tests/autograd/differences.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

static void quotients(void **state)
{
    static const trek_dtype dtypes[] = { TREK_I32, TREK_I64, TREK_F16, TREK_BF16, TREK_F32, TREK_F64 };
    for (int k = 0; k < 6; k++) {
        trek_var *x = LIST(dtypes[k], 7, -7, 7, -7, 6, 0), *y = LIST(dtypes[k], 2, 2, -2, -2, 3, 5);
        ASSERT_VALUES(trek_floor_divide(x, y), 3, -4, -4, 3, 2, 0);
        ASSERT_VALUES(trek_div_mode(x, y, TREK_ROUNDING_TRUNC), 3, -3, -3, 3, 2, 0);
        ASSERT_VALUES(trek_div_mode(x, y, TREK_ROUNDING_FLOOR), 3, -4, -4, 3, 2, 0);
        ASSERT_VALUES(trek_fmod(x, y), 1, -1, 1, -1, 0, 0);
        assert_int_equal(trek_var_dtype(trek_floor_divide(x, y)), dtypes[k]);
    }
    trek_var *bytes = LIST(TREK_U8, 255, 200, 7);
    ASSERT_VALUES(trek_floor_divide(bytes, LIST(TREK_U8, 2, 201, 7)), 127, 0, 1);
    ASSERT_VALUES(trek_div_mode(LIST(TREK_F64, 7, 1), LIST(TREK_F64, 2, 4), TREK_ROUNDING_NONE), 3.5, 0.25);
    ASSERT_VALUES(trek_floor_divide(LIST(TREK_F64, -1, 1, 1, -1), LIST(TREK_F64, INFINITY, INFINITY, 0, 0)), -1, 0, INFINITY,
                  -INFINITY);
    /* what f64 has no room for */
    const int64_t big[] = { INT64_MAX, INT64_MIN + 1, 9007199254740993 }, by[] = { 1, -1, 3 };
    trek_var *x = trek_var_from(trek_tensor_from_data(big, trek_dims(3), TREK_I64, test_device()));
    trek_var *y = trek_var_from(trek_tensor_from_data(by, trek_dims(3), TREK_I64, test_device()));
    int64_t got[3];
    assert_int_equal(trek_tensor_to_host(trek_var_data(trek_floor_divide(x, y)), TREK_I64, got, sizeof got), TREK_OK);
    assert_true(got[0] == INT64_MAX && got[1] == INT64_MAX && got[2] == 3002399751580331);
    ASSERT_VALUES(trek_fmod(LIST(TREK_F64, -1e-20, 5.5), LIST(TREK_F64, 1, INFINITY)), -1e-20, 5.5);
}

static void quotients_are_flat(void **state)
{
    trek_var *x = LIST(TREK_F32, 7, 1), *y = VALUES(trek_dims(2, 1), TREK_F32, 2, 0);
    assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
    assert_int_equal(trek_var_set_requires_grad(y, true), TREK_OK);
    assert_int_equal(trek_backward(trek_sum(trek_floor_divide(x, y), trek_dims_all(), false)), TREK_OK);
    double *first = test_read(trek_var_data(trek_var_grad(x))), *second = test_read(trek_var_data(trek_var_grad(y)));
    assert_true(first[0] == 0 && first[1] == 0 && second[0] == 0 && second[1] == 0);
    free(first);
    free(second);
}

static void bits(void **state)
{
    static const trek_dtype dtypes[] = { TREK_I64, TREK_I32 };
    ASSERT_VALUES(trek_bitwise_and(LIST(TREK_I32, 12, -1), LIST(TREK_I64, 10, 7)), 8, 7);
    ASSERT_VALUES(trek_bitwise_or(LIST(TREK_U8, 12, 128), LIST(TREK_U8, 10, 1)), 14, 129);
    ASSERT_VALUES(trek_bitwise_xor(LIST(TREK_BOOL, 1, 1), LIST(TREK_BOOL, 1, 0)), 0, 1);
    ASSERT_VALUES(trek_bitwise_not(LIST(TREK_BOOL, 1, 0)), 0, 1);
    ASSERT_VALUES(trek_bitwise_not(LIST(TREK_U8, 1, 255)), 254, 0);
    for (int k = 0; k < 2; k++) {
        double all = k ? 32 : 64;
        trek_var *x = LIST(dtypes[k], 5, -5, 5, -5, 5, -5, 5), *by = LIST(dtypes[k], 1, 1, all, all, -1, -1, all - 1);
        ASSERT_VALUES(trek_bitwise_left_shift(x, by), 10, -10, 0, 0, 0, 0, k ? INT32_MIN : (double)INT64_MIN);
        ASSERT_VALUES(trek_bitwise_right_shift(x, by), 2, -3, 0, -1, 0, -1, 0);
    }
    trek_var *bytes = LIST(TREK_U8, 129, 129, 129, 129);
    ASSERT_VALUES(trek_bitwise_left_shift(bytes, LIST(TREK_U8, 1, 7, 8, 255)), 2, 128, 0, 0);
    ASSERT_VALUES(trek_bitwise_right_shift(bytes, LIST(TREK_U8, 1, 7, 8, 255)), 64, 1, 0, 0);
    ASSERT_VALUES(trek_gcd(LIST(TREK_I64, 12, -12, 0, 0, 7), LIST(TREK_I64, 18, 18, 5, 0, -7)), 6, 6, 5, 0, 7);
    ASSERT_VALUES(trek_lcm(LIST(TREK_I32, 4, -4, 0, 0), LIST(TREK_I32, 6, 6, 5, 0)), 12, 12, 0, 0);
    trek_var *x = LIST(TREK_F32, 1, 1, 0, INFINITY, 1), *to = LIST(TREK_F32, 2, 0, -1, 0, NAN);
    ASSERT_VALUES(trek_nextafter(x, to), 1 + 0x1p-23, 1 - 0x1p-24, -0x1p-149, 0x1.fffffep127, NAN);
    ASSERT_VALUES(trek_nextafter(LIST(TREK_BF16, 1), LIST(TREK_BF16, 2)), 1 + 0x1p-7);
    ASSERT_REFUSED(trek_bitwise_left_shift(LIST(TREK_BOOL, 1), LIST(TREK_BOOL, 1)), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_bitwise_and(LIST(TREK_F32, 1), LIST(TREK_I64, 1)), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_gcd(LIST(TREK_F32, 1), LIST(TREK_F32, 1)), TREK_ERR_DTYPE);
}

static void of_two(void **state)
{
    trek_var *x = LIST(TREK_F64, 3, -3, 0, 1e200, INFINITY), *y = LIST(TREK_F64, 4, -4, 0, 1e200, 1);
    ASSERT_VALUES(trek_hypot(x, y), 5, 5, 0, sqrt(2) * 1e200, INFINITY);
    ASSERT_VALUES(trek_hypot(LIST(TREK_F64, NAN, 1e-320, NAN), LIST(TREK_F64, -INFINITY, 0, 1)), INFINITY, 1e-320, NAN);
    ASSERT_VALUES(trek_floor_divide(LIST(TREK_I32, INT32_MIN, 7), LIST(TREK_I32, -1, -1)), INT32_MIN, -7);
    ASSERT_VALUES(trek_hypot(LIST(TREK_F16, 30000), LIST(TREK_F16, 40000)), 49984);
    ASSERT_VALUES(trek_copysign(LIST(TREK_F32, 1, -2, 3), LIST(TREK_F32, -0.0, 5, -INFINITY)), -1, 2, -3);
    ASSERT_VALUES(trek_copysign(LIST(TREK_I64, 1, -2), LIST(TREK_I64, -1, 1)), -1, 2);
    ASSERT_VALUES(trek_xlogy(LIST(TREK_F64, 0, 2, 0, 0, 0), LIST(TREK_F64, 0, 1, -1, INFINITY, NAN)), 0, 0, 0, 0, NAN);
    ASSERT_VALUES(trek_xlogy(LIST(TREK_I32, 2, 0), LIST(TREK_I32, 1, 0)), 0, 0);
    ASSERT_VALUES(trek_heaviside(LIST(TREK_F32, -1, 0, 2, NAN), LIST(TREK_F32, 0.5)), 0, 0.5, 1, 0);
    ASSERT_VALUES(trek_heaviside(LIST(TREK_I64, -1, 0, 2), LIST(TREK_I64, 7)), 0, 7, 1);
    ASSERT_VALUES(trek_clamp_var(LIST(TREK_F32, -2, 0.5, 3), LIST(TREK_F32, -1, 0, 1), LIST(TREK_F32, 1)), -1, 0.5, 1);
    ASSERT_VALUES(trek_clamp_var(LIST(TREK_I32, -2, 3), LIST(TREK_I32, 0), NULL), 0, 3);
    for (int whole = 0; whole < 2; whole++) /* bounds that have changed sides */
        ASSERT_VALUES(trek_clamp(whole ? LIST(TREK_I32, -2, 0, 3) : LIST(TREK_F32, -2, 0, 3), 1, -1), -1, -1, -1);
    ASSERT_VALUES(trek_add_scalar(LIST(TREK_I32, INT32_MAX, 7), 1), INT32_MIN, 8);
    ASSERT_VALUES(trek_add_scalar(LIST(TREK_U8, 250, 1), 10), 4, 11);
    ASSERT_VALUES(trek_add_scalar(LIST(TREK_U8, 250, 1), 266), 4, 11);
    ASSERT_VALUES(trek_sub_scalar(LIST(TREK_U8, 5, 20), 10), 251, 10);
    ASSERT_VALUES(trek_mul_scalar(LIST(TREK_U8, 100, 2), 3), 44, 6);
    ASSERT_VALUES(trek_clamp_var(LIST(TREK_F32, NAN, 3), NULL, LIST(TREK_F32, 1, NAN)), NAN, NAN);
    ASSERT_VALUES(trek_sinc(LIST(TREK_F64, 0, 0.5, -1.5)), 1, 2 / acos(-1), -2 / (3 * acos(-1)));
    ASSERT_VALUES(trek_signbit(LIST(TREK_F32, -1, -0.0, 0, 2, -INFINITY, INFINITY)), 1, 1, 0, 0, 1, 0);
    ASSERT_VALUES(trek_signbit(LIST(TREK_I32, -1, 0)), 1, 0);
    ASSERT_VALUES(trek_isposinf(LIST(TREK_F32, INFINITY, -INFINITY, NAN)), 1, 0, 0);
    ASSERT_VALUES(trek_isneginf(LIST(TREK_BF16, INFINITY, -INFINITY, NAN)), 0, 1, 0);
    ASSERT_VALUES(trek_isneginf(LIST(TREK_I64, 1)), 0);
}

/* Numbers with some that are special. */
static trek_var *drawn(uint32_t stream, trek_shape shape, trek_dtype dtype)
{
    trek_var *x = trek_mul_scalar(random_values(stream, shape), 3), *places = random_values(stream + 1, shape);
    x = trek_masked_fill(x, trek_lt_scalar(places, -0.9), NAN);
    x = trek_masked_fill(x, trek_gt_scalar(places, 0.9), INFINITY);
    return trek_cast(trek_masked_fill(x, trek_lt_scalar(trek_abs(places), 0.05), 0), dtype);
}

static void equal_bits(trek_var *a, trek_var *b)
{
    assert_true(a && b && test_same_bits(trek_var_data(trek_contiguous(a)), trek_var_data(trek_contiguous(b))));
}

static trek_var *between(trek_var *x, trek_var *y) { return trek_lerp(x, y, 0.3); }

/* A column beside a matrix gives the bits of a whole matrix with that column repeated, in place, too. */
static void columns(void **state)
{
    static trek_var *(*const ops[])(trek_var *, trek_var *) = { trek_add, trek_sub, trek_mul, trek_div, trek_maximum,
                                                                trek_minimum, trek_copysign, between };
    static trek_var *(*const in_place[])(trek_var *, trek_var *) = { trek_add_, trek_sub_, trek_mul_, trek_div_ };
    static const trek_dtype dtypes[] = { TREK_F32, TREK_F64, TREK_BF16, TREK_F16, TREK_I32 };
    static const int64_t sizes[][2] = { { 7, 31 }, { 7, 33 }, { 5, 64 }, { 3, 1001 }, { 70, 1000 } };
    trek_no_grad_begin();
    for (int d = 0; d < 5; d++)
        for (int s = 0; s < 5; s++)
            for (int k = 0; k < 8; k++) {
                if (dtypes[d] == TREK_I32 && (k == 3 || k > 5))
                    continue;
                trek_scope inner = trek_scope_begin();
                const trek_shape whole = trek_dims(sizes[s][0], sizes[s][1]);
                trek_var *x = drawn(1, whole, dtypes[d]), *column = drawn(3, trek_dims(sizes[s][0], 1), dtypes[d]);
                trek_var *repeated = trek_contiguous(trek_expand(column, whole)), *wanted = ops[k](x, repeated);
                equal_bits(ops[k](x, column), wanted);
                equal_bits(trek_transpose(ops[k](trek_transpose(x, 0, 1), trek_transpose(column, 0, 1)), 0, 1), wanted);
                equal_bits(ops[k](column, x), ops[k](repeated, x));
                if (k < 4) {
                    trek_var *own = trek_clone(x), *every_second = trek_clone(trek_stack((trek_var *[]){ x, repeated }, 2, 2));
                    equal_bits(in_place[k](own, column), wanted);
                    trek_var *part = trek_select(every_second, 2, 0);
                    assert_non_null(in_place[k](part, trek_select(trek_clone(every_second), 2, 1)));
                    equal_bits(trek_select(every_second, 2, 0), wanted); /* what is between has not changed */
                    equal_bits(trek_select(every_second, 2, 1), repeated);
                }
                trek_scope_end(inner);
            }
    trek_no_grad_end();
}

/* Copies between tensors that both have gaps. */
static void gaps(void **state)
{
    static const trek_dtype dtypes[] = { TREK_F32, TREK_F64, TREK_BF16, TREK_U8 };
    trek_no_grad_begin();
    for (int d = 0; d < 4; d++)
        for (int64_t columns = 31; columns < 1200; columns += 390)
            for (int step = 2; step < 4; step++) {
                trek_scope inner = trek_scope_begin();
                const trek_shape shape = trek_dims(5, columns, step);
                trek_var *from = trek_cast(trek_mul_scalar(trek_abs(random_values(1, shape)), 100), dtypes[d]);
                trek_var *to = trek_cast(trek_mul_scalar(trek_abs(random_values(2, shape)), 100), dtypes[d]);
                trek_var *rest = trek_clone(trek_narrow(to, 2, 1, step - 1));
                assert_non_null(trek_copy_(trek_select(to, 2, 0), trek_select(from, 2, step - 1)));
                equal_bits(trek_select(to, 2, 0), trek_select(from, 2, step - 1));
                equal_bits(trek_narrow(to, 2, 1, step - 1), rest);
                trek_scope_end(inner);
            }
    trek_no_grad_end();
}

/* Bounds that are tensors: the bits of the larger one, then the smaller one, and their gradients. */
static void bounds(void **state)
{
    static const trek_dtype dtypes[] = { TREK_F32, TREK_F64, TREK_BF16, TREK_F16 };
    for (int d = 0; d < 4; d++) {
        const trek_shape shapes[] = { trek_dims(9, 70), trek_dims(70), trek_dims(9, 1) };
        trek_var *in[2][3], *grads[2][3] = { { NULL } }, *out[2], *seed = trek_cast(random_values(9, shapes[0]), dtypes[d]);
        for (int way = 0; way < 2; way++) {
            for (int k = 0; k < 3; k++) { /* a few numbers, so that some are equal */
                in[way][k] = trek_round(drawn((uint32_t)(2 * k), shapes[k], dtypes[d]));
                trek_var_set_requires_grad(in[way][k], true);
            }
            out[way] = way ? trek_minimum(trek_maximum(in[1][0], in[1][1]), in[1][2])
                : trek_clamp_var(in[0][0], in[0][1], in[0][2]);
            assert_int_equal(trek_grad(&out[way], 1, in[way], 3, &seed, NULL, grads[way]), TREK_OK);
        }
        equal_bits(out[0], out[1]);
        for (int k = 0; k < 3; k++)
            equal_bits(grads[0][k], grads[1][k]);
    }
}

static void lines(void **state)
{
    trek_var *x = VALUES(trek_dims(2, 3), TREK_F32, 1, 4, 9, 2, 0, 5);
    ASSERT_VALUES(trek_diff(x, 1, -1, NULL, NULL), 3, 5, -2, 5);
    ASSERT_VALUES(trek_diff(trek_transpose(x, 0, 1), 2, 0, NULL, NULL), 2, 7);
    ASSERT_VALUES(trek_diff(x, 0, 0, NULL, NULL), 1, 4, 9, 2, 0, 5);
    ASSERT_VALUES(trek_diff(x, 1, 1, VALUES(trek_dims(2, 1), TREK_F32, 0, 0), VALUES(trek_dims(2, 1), TREK_F32, 1, 1)), 1, 3, 5,
                  -8,
                  2, -2, 5, -4);
    assert_int_equal(trek_var_numel(trek_diff(x, 5, 1, NULL, NULL)), 0);
    ASSERT_VALUES(trek_diff(LIST(TREK_BOOL, 1, 0, 0), 1, 0, NULL, NULL), 1, 0);
    ASSERT_VALUES(trek_trapezoid(x, NULL, 2, 1), 18, 7);
    ASSERT_VALUES(trek_trapezoid(x, LIST(TREK_F32, 0, 1, 3), 1, 1), 15.5, 6);
    ASSERT_VALUES(trek_trapezoid(x, LIST(TREK_F32, 0, 4), 1, 0), 6, 8, 28);
    ASSERT_VALUES(trek_trapezoid(LIST(TREK_U8, 255, 255), NULL, 1, 0), 255);
    ASSERT_VALUES(trek_trapezoid(VALUES(trek_dims(0, 2), TREK_F32, 0), NULL, 1, 0), 0, 0);
    trek_var *gaps = VALUES(trek_dims(2, 2), TREK_F32, 1, NAN, NAN, NAN);
    ASSERT_VALUES(trek_nansum(gaps, trek_dims(1), false), 1, 0);
    ASSERT_VALUES(trek_nanmean(gaps, trek_dims(1), false), 1, NAN);
    ASSERT_VALUES(trek_nanmean(gaps, trek_dims_all(), false), 1);
    ASSERT_VALUES(trek_nansum(LIST(TREK_BOOL, 1, 1, 0), trek_dims_all(), false), 2);
}

/* A GPU reports it when it is waited for. */
static void by_zero(trek_var *made)
{
    if (made)
        trek_var_item(trek_sum(made, trek_dims_all(), false));
    expect_error(TREK_ERR_ARGUMENT, "");
}

static void refused(void **state)
{
    trek_var *x = LIST(TREK_F32, 1, 2), *i = LIST(TREK_I64, 1, 2), *b = LIST(TREK_BOOL, 1, 0), *z = LIST(TREK_I64, 1, 0);
    by_zero(trek_floor_divide(i, z));
    by_zero(trek_fmod(i, z));
    ASSERT_REFUSED(trek_fmod(b, b), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_floor_divide(b, b), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_div_mode(x, x, (trek_rounding)3), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_hypot(i, i), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_heaviside(x, i), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_clamp_var(x, NULL, NULL), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_diff(x, -1, 0, NULL, NULL), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_diff(trek_select(x, 0, 0), 1, 0, NULL, NULL), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_trapezoid(b, NULL, 1, 0), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_nanmean(i, trek_dims_all(), false), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_hypot(x, LIST(TREK_F32, 1, 2, 3)), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_floor_divide(x, LIST(TREK_F32, 1, 2, 3)), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_sinc(NULL), TREK_ERR_ARGUMENT);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(quotients), TEST(quotients_are_flat), TEST(bits), TEST(of_two), TEST(columns), TEST(gaps), TEST(bounds), TEST(lines),
        TEST(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
