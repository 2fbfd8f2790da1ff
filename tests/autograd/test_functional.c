/* SPDX-License-Identifier: Apache-2.0 */
/* Public ops made of others, and what rows alone do not show: vectors in matmul, parts, casts, dropout over ranks,
 * promotion. */
#include <math.h>
#include <stdlib.h>

#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/ops.h"
#include "tensor/rank_context.h"
#include "tensor/tensor_internal.h"
#include "tests/autograd/values.h"
#include "tests/support/support.h"

/* Gradients of <f, random> by the tape and by differences, over one input. */
static void check_slope(trek_var *(*f)(trek_var *x), trek_shape shape)
{
    trek_var *x = numbers(7, shape, true), *y = f(x), *seed = numbers(8, trek_var_shape(y), false);
    assert_int_equal(trek_backward_with(y, seed, NULL), TREK_OK);
    double *data = test_read(trek_var_data(x));
    assert_non_null(data);
    for (int64_t k = 0; k < trek_var_numel(x); k++) {
        double sides[2];
        for (int side = 0; side < 2; side++) {
            trek_scope inner = trek_scope_begin();
            double kept = data[k];
            data[k] = kept + (side ? 1e-5 : -1e-5);
            trek_var *moved = trek_var_from(test_values(data, trek_var_shape(x), TREK_F64));
            sides[side] = trek_var_item(trek_sum(trek_mul(f(moved), seed), trek_dims_all(), false));
            data[k] = kept;
            trek_scope_end(inner);
        }
        double slope = (sides[1] - sides[0]) / 2e-5, tape = at(trek_var_grad(x), k);
        if (!(fabs(slope - tape) <= 1e-6 * (1 + fabs(slope))))
            fail_msg("element %d: %.10g, differences say %.10g", (int)k, tape, slope);
    }
    free(data);
}

static trek_var *vector_times_vector(trek_var *x) { return trek_matmul(x, numbers(1, trek_dims(4), false)); }
static trek_var *matrix_times_vector(trek_var *x) { return trek_matmul(numbers(1, trek_dims(3, 4), false), x); }
static trek_var *vector_times_matrix(trek_var *x) { return trek_matmul(x, numbers(1, trek_dims(4, 3), false)); }
static trek_var *vector_times_batch(trek_var *x) { return trek_matmul(x, numbers(1, trek_dims(2, 4, 3), false)); }
static trek_var *deviation(trek_var *x) { return trek_std(x, trek_dims(1), true); }
static trek_var *a_norm(trek_var *x) { return trek_norm(x, 3, trek_dims(0), false); }
static trek_var *flat(trek_var *x) { return trek_square(trek_flatten(x, 0, -1)); }
static trek_var *filled(trek_var *x) { return trek_masked_fill(trek_square(x), trek_gt_scalar(x, 0.2), 3); }
static trek_var *rest_of_scalars(trek_var *x) { return trek_div_scalar(trek_sub_scalar(trek_square(x), 0.5), -3); }

static void slopes(void **state)
{
    check_slope(vector_times_vector, trek_dims(4));
    check_slope(matrix_times_vector, trek_dims(4));
    check_slope(vector_times_matrix, trek_dims(4));
    check_slope(vector_times_batch, trek_dims(4));
    check_slope(deviation, trek_dims(3, 4));
    check_slope(a_norm, trek_dims(3, 4));
    check_slope(flat, trek_dims(2, 3));
    check_slope(filled, trek_dims(3, 4));
    check_slope(rest_of_scalars, trek_dims(5));
}

static trek_var *through_parts(trek_var *x)
{
    trek_var *parts[4];
    assert_int_equal(trek_split(x, 2, 1, parts, 4), 3);
    assert_int_equal(trek_var_size(parts[2], 1), 1);
    return trek_cat((trek_var *[]){ trek_square(parts[1]), parts[2], trek_mul_scalar(parts[0], 3) }, 3, -1);
}

static trek_var *stacked(trek_var *x)
{
    trek_var *parts[3];
    assert_int_equal(trek_chunk(x, 3, 0, parts, 3), 3);
    return trek_stack((trek_var *[]){ trek_square(parts[0]), parts[1], parts[2] }, 3, 1);
}

static trek_var *unbound(trek_var *x)
{
    trek_var *parts[4];
    assert_int_equal(trek_unbind(x, -2, parts, 4), 3);
    assert_int_equal(trek_var_ndim(parts[2]), 2);
    return trek_stack((trek_var *[]){ trek_square(parts[1]), trek_mul(parts[2], parts[0]), parts[1] }, 3, 1);
}

static void parts(void **state)
{
    check_slope(unbound, trek_dims(2, 3, 4));
    check_slope(through_parts, trek_dims(2, 5));
    check_slope(stacked, trek_dims(3, 2));
    trek_var *x = numbers(1, trek_dims(2, 5), false), *few[2];
    assert_int_equal(trek_split(x, 2, 1, few, 2), -1); /* three do not fit */
    assert_int_not_equal(trek_error_status(), TREK_OK);
    trek_error_clear();
    assert_int_equal(trek_split(x, 0, 1, few, 2), -1);
    trek_error_clear();
    assert_int_equal(trek_chunk(x, 2, 1, few, 2), 2);
    assert_int_equal(trek_var_size(few[0], 1), 3);
}

static void identities(void **state)
{
    trek_var *x = numbers(1, trek_dims(3, 4), false), *y = numbers(2, trek_dims(3, 4), false);
    same(trek_sub_scalar(x, 0.5), trek_add_scalar(x, -0.5));
    same(trek_div_scalar(x, 4), trek_mul_scalar(x, 0.25));
    same(trek_square(trek_std(x, trek_dims(1), false)), trek_variance(x, trek_dims(1), false));
    same(trek_norm(x, 2, trek_dims_all(), false), trek_sqrt(trek_sum(trek_square(x), trek_dims_all(), false)));
    same(trek_norm(x, 1, trek_dims(0), false), trek_sum(trek_abs(x), trek_dims(0), false));
    same(trek_linear_activation(x, y, NULL, TREK_ACTIVATION_RELU), trek_relu(trek_linear(x, y, NULL)));
    same(trek_stack((trek_var *[]){ x, y }, 2, 0), trek_cat((trek_var *[]){ trek_unsqueeze(x, 0), trek_unsqueeze(y, 0) }, 2, 0));
    same(trek_flatten(x, 0, 1), trek_reshape(x, trek_dims(-1)));
    same(trek_contiguous(trek_transpose(x, 0, 1)), trek_permute(x, trek_dims(1, 0)));
    same(trek_clone(x), x);
    if (test_on_cpu())
        assert_ptr_not_equal(trek_tensor_data(trek_var_data(trek_clone(x))), trek_tensor_data(trek_var_data(x)));
    assert_int_equal(trek_var_dtype(trek_cast(x, TREK_BF16)), TREK_BF16);
    assert_true(trek_device_equal(trek_var_device(trek_to(x, test_device_other())), test_device_other()));
    same(trek_mse_loss(x, y), trek_mean(trek_square(trek_sub(x, y)), trek_dims_all(), false));
}

static trek_var *sum_of(trek_var *x, trek_dims_list dims) { return trek_sum(x, dims, false); }
static trek_var *nansum_of(trek_var *x, trek_dims_list dims) { return trek_nansum(x, dims, false); }
static trek_var *mean_of(trek_var *x, trek_dims_list dims) { return trek_mean(x, dims, false); }
static trek_var *prod_of(trek_var *x, trek_dims_list dims) { return trek_prod(x, dims, false); }
static trek_var *max_of(trek_var *x, trek_dims_list dims) { return trek_max(x, dims, false); }
static trek_var *variance_of(trek_var *x, trek_dims_list dims) { return trek_variance(x, dims, false); }

/* Checks that both are alike, to rounding. */
static void alike(trek_var *got, trek_var *wanted, double tolerance)
{
    assert_true(got && wanted && trek_shape_equal(trek_var_shape(got), trek_var_shape(wanted)));
    double *a = test_read(trek_var_data(trek_contiguous(got))), *b = test_read(trek_var_data(trek_contiguous(wanted)));
    for (int64_t i = 0; i < trek_var_numel(got); i++)
        if (!(a[i] == b[i] || (isnan(a[i]) && isnan(b[i])) || fabs(a[i] - b[i]) <= tolerance * fabs(b[i])))
            fail_msg("element %d is %.9g, not %.9g", (int)i, a[i], b[i]);
    free(a), free(b);
}

/* Reductions of any dimensions, in whatever order these lie in memory, beside those of f64. */
static void reductions_as_they_lie(void **state)
{
    static trek_var *(*const ops[])(trek_var *, trek_dims_list) = { sum_of, nansum_of, mean_of, prod_of, max_of, variance_of };
    static const int orders[][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 }, { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };
    for (int dtype = 0; dtype < 2; dtype++)
        for (int o = 0; o < 6; o++)
            for (unsigned mask = 1; mask < 8; mask++) {
                trek_scope inner = trek_scope_begin();
                trek_var *wide = trek_add_scalar(trek_mul_scalar(numbers(1, trek_dims(5, 131, 40), false), 0.02), 1);
                trek_var *x = trek_cast(wide, dtype ? TREK_BF16 : TREK_F32);
                x = trek_permute(x, trek_dims(orders[o][0], orders[o][1], orders[o][2]));
                trek_var *narrow = trek_narrow(x, 2, 0, trek_var_size(x, 2) - (o & 1)), *exact = trek_cast(narrow, TREK_F64);
                trek_dims_list dims = { 0 };
                for (int d = 0; d < 3; d++)
                    if (mask >> d & 1)
                        dims.sizes[dims.ndim++] = d;
                for (size_t k = 0; k < sizeof ops / sizeof *ops; k++)
                    alike(ops[k](narrow, dims), trek_cast(ops[k](trek_contiguous(exact), dims), TREK_F64), dtype ? 0x1p-7 : 2e-5);
                trek_scope_end(inner);
            }
}

/* Products of f32 whose parts are too small or too large for f32, which have a zero, an infinity, or NaN. */
static void products_of_all_magnitudes(void **state)
{
    for (int kind = 0; kind < 5; kind++)
        for (int64_t n = 3; n < 2500; n = n * 3 + 1)
            for (int over_rows = 0; over_rows < 2; over_rows++) {
                trek_scope inner = trek_scope_begin();
                const int64_t lines = 19, total = n * lines;
                double *values = malloc((size_t)total * sizeof *values);
                assert_non_null(values);
                for (int64_t i = 0; i < total; i++) {
                    const int64_t line = over_rows ? i % lines : i / n, at = over_rows ? i / lines : i % n;
                    const bool small = over_rows ? at / 2 % 2 : at / 16 % 2;
                    const double u = 1 + 0.01 * (double)((at * 7 + line * 13) % 17 - 8);
                    const bool plain = kind == 0 || at >= n / 32 * 32; /* as many small ones as large ones */
                    values[i] = plain ? u : ldexp(u, small ? -70 : 70);
                    if (kind > 1 && line % 3 == 1 && at == n / 2)
                        values[i] = kind == 2 ? 0 : kind == 3 ? INFINITY : NAN;
                }
                trek_var *x = trek_var_from(test_values(values, over_rows ? trek_dims(n, lines) : trek_dims(lines, n), TREK_F32));
                trek_var *product = trek_prod(x, trek_dims(over_rows ? 0 : 1), false);
                trek_var *exact = trek_prod(trek_cast(x, TREK_F64), trek_dims(over_rows ? 0 : 1), false);
                alike(trek_cast(product, TREK_F64), trek_cast(trek_cast(exact, TREK_F32), TREK_F64), 1e-5);
                free(values);
                trek_scope_end(inner);
            }
}

static void accuracy(void **state)
{
    float logits[8] = { 1, 0, 0, 1, 0.5f, 0.1f, 3, 4 };
    int64_t labels[4] = { 0, 0, 0, 1 };
    trek_var *x = trek_var_from(trek_tensor_from_data(logits, trek_dims(4, 2), TREK_F32, test_device()));
    trek_var *y = trek_var_from(trek_tensor_from_data(labels, trek_dims(4), TREK_I64, test_device()));
    assert_true(trek_var_item(trek_accuracy(x, y)) == 0.75);
    trek_var *none = trek_accuracy(trek_narrow(x, 0, 0, 0), trek_narrow(y, 0, 0, 0));
    assert_true(trek_var_item(none) == 0);
}

static void bad_public_calls(void **state)
{
    trek_var *x = numbers(1, trek_dims(64, 784), false), *w = numbers(2, trek_dims(256, 10), false);
    assert_null(trek_matmul(x, w));
    assert_non_null(strstr(trek_error(), "[64, 784]"));
    assert_non_null(strstr(trek_error(), "[256, 10]"));
    expect_error(TREK_ERR_SHAPE, "matmul: ");
    assert_null(trek_cross_entropy(x, numbers(1, trek_dims(3), false)));
    assert_int_not_equal(trek_error_status(), TREK_OK);
    trek_error_clear();
    REFUSED(trek_dropout(x, 1.5, true), TREK_ERR_ARGUMENT, "dropout: ");
    assert_null(trek_cat(NULL, 0, 0));
    assert_int_not_equal(trek_error_status(), TREK_OK);
    trek_error_clear();
    assert_null(trek_flatten(x, 1, 0));
    assert_int_not_equal(trek_error_status(), TREK_OK);
    trek_error_clear();
    /* nested calls: the first message stays */
    REFUSED(trek_exp(trek_add(trek_matmul(x, w), x)), TREK_ERR_SHAPE, "matmul: ");
}

/* --- dropout over ranks: masks follow the place in the global batch -------------------------------------- */

static void dropout_masks_do_not_know_the_split(void **state)
{
    trek_rank_context kept = trek_rank_here;
    trek_seed(11);
    trek_var *x = trek_add_scalar(numbers(1, trek_dims(12, 5), false), 2);
    trek_rank_here.rng_step = 3;
    trek_rank_here.rng_draw = 0;
    trek_var *whole = trek_dropout(x, 0.4, true);
    static const int64_t cuts[] = { 0, 5, 7, 12 };
    for (int rank = 0; rank < 3; rank++) {
        int64_t first = cuts[rank], rows = cuts[rank + 1] - first;
        trek_rank_here.rank = rank;
        trek_rank_here.world = 3;
        trek_rank_here.first_sample = first;
        trek_rank_here.rows = rows;
        trek_rank_here.global_rows = 12;
        trek_rank_here.rng_step = 3;
        trek_rank_here.rng_draw = 0;
        same(trek_dropout(trek_narrow(x, 0, first, rows), 0.4, true), trek_narrow(whole, 0, first, rows));
    }
    trek_rank_here = kept;
    double zeros = 0;
    for (int64_t k = 0; k < 60; k++)
        zeros += at(whole, k) == 0;
    assert_true(zeros > 10 && zeros < 40);
    assert_ptr_equal(trek_dropout(x, 0.4, false), x);
    assert_true(at(trek_sum(trek_dropout(x, 1, true), trek_dims_all(), false), 0) == 0);
}

/* --- dtypes ---------------------------------------------------------------------------------------------- */

static void promotion(void **state)
{
    trek_var *i = trek_var_from(trek_tensor_ones(trek_dims(3), TREK_I32, test_device()));
    assert_int_equal(trek_var_dtype(trek_add_scalar(i, 1)), TREK_I32);
    assert_int_equal(trek_var_dtype(trek_add_scalar(i, 0.5)), TREK_F32);
    assert_int_equal(trek_var_dtype(trek_exp(i)), TREK_F32);
    assert_int_equal(trek_var_dtype(trek_div(i, i)), TREK_F32);
    assert_int_equal(trek_var_dtype(trek_sum(i, trek_dims_all(), false)), TREK_I64);
    REFUSED(trek_mean(i, trek_dims_all(), false), TREK_ERR_DTYPE, "mean: ");
    trek_var *zero = trek_var_from(trek_tensor_zeros(trek_dims(3), TREK_I32, test_device()));
    trek_var *by_zero = trek_remainder(i, zero);
    assert_true(!by_zero || test_settle(TREK_OK) != TREK_OK);
    expect_error(TREK_ERR_ARGUMENT, "remainder: ");
}

/* Sums over the first dimension add pairs of rows in f32, and those whose pairs are too large for it in f64. */
static void large_pairs(void **state)
{
    enum { ROWS = 11, COLUMNS = 37 };
    double values[ROWS * COLUMNS], wanted[COLUMNS] = { 0 };
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) {
            double large = r % 4 < 2 ? 3e38 : -3e38; /* pairs are infinite, the sum is not */
            values[r * COLUMNS + c] = c == 5 ? (r < 8 ? large : r) : c == 6 && r == 3 ? INFINITY : c == 7 && r == 2 ? NAN : r + c;
            wanted[c] += (double)(float)values[r * COLUMNS + c];
        }
    if (!test_on_cpu()) /* GPUs add in f32 */
        return;
    trek_var *x = trek_var_from(test_values(values, trek_dims(ROWS, COLUMNS), TREK_F32));
    double *got = test_read(trek_var_data(trek_sum(x, trek_dims(0), false)));
    for (int c = 0; c < COLUMNS; c++)
        if (got[c] != wanted[c] && !(isnan(got[c]) && isnan(wanted[c])))
            fail_msg("column %d: %.9g, not %.9g", c, got[c], wanted[c]);
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(slopes), TEST(parts), TEST(identities), TEST(reductions_as_they_lie), TEST(products_of_all_magnitudes),
            TEST(accuracy), TEST(bad_public_calls),
        TEST(dropout_masks_do_not_know_the_split), TEST(promotion), TEST(large_pairs),
    };
    return cmocka_run_group_tests_name("functional", tests, NULL, NULL);
}
