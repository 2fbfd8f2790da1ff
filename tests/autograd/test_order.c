/* SPDX-License-Identifier: Apache-2.0 */
/* Sorting, choosing, places, repeating and random choices by the public functions, against numbers told by hand. */
#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "tensor/copies.h"
#include "tensor/creation.h"
#include "tensor/dtypes.h"
#include "tests/autograd/differences.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

static trek_var *matrix(void) { return VALUES(trek_dims(2, 3), TREK_F32, 3, 1, 2, 5, 5, NAN); }

static void sorting(void **state)
{
    trek_var *at = NULL, *x = matrix();
    ASSERT_VALUES(trek_sort(x, 1, false, &at), 1, 2, 3, 5, 5, NAN);
    ASSERT_VALUES(at, 1, 2, 0, 0, 1, 2);
    ASSERT_VALUES(trek_argsort(x, 1, true), 0, 2, 1, 2, 0, 1); /* stable, NaN first */
    ASSERT_VALUES(trek_topk(x, 2, 1, true, &at), 3, 2, NAN, 5);
    ASSERT_VALUES(at, 0, 2, 2, 0);
    ASSERT_REFUSED(trek_topk(x, 4, 1, true, NULL), TREK_ERR_ARGUMENT);
    ASSERT_VALUES(trek_max_with_indices(x, 1, false, &at), 3, NAN);
    ASSERT_VALUES(at, 0, 2);
    ASSERT_VALUES(trek_min_with_indices(x, 0, true, &at), 3, 1, NAN);
    ASSERT_VALUES(at, 0, 0, 1);
    ASSERT_VALUES(trek_kthvalue(x, 2, 1, false, &at), 2, 5);
    ASSERT_VALUES(at, 2, 1);
    ASSERT_VALUES(trek_median(x, 1, false, NULL), 2, NAN);
    ASSERT_VALUES(trek_nanmedian(x, 1, false, &at), 2, 5);
    ASSERT_VALUES(at, 2, 0);
    ASSERT_VALUES(trek_cummax(x, 1, &at), 3, 3, 3, 5, 5, NAN);
    ASSERT_VALUES(at, 0, 0, 0, 0, 1, 2); /* the last of equals */
    ASSERT_VALUES(trek_cummin(x, 1, NULL), 3, 1, 1, 5, 5, NAN);
    ASSERT_VALUES(trek_cumprod(x, 1), 3, 3, 6, 5, 25, NAN);
}

static void quantiles(void **state)
{
    trek_var *x = LIST(TREK_F32, 4, 1, 3, 2), *q = LIST(TREK_F32, 0, 0.5, 1), *low = VALUES(trek_dims_none(), TREK_F32, 0.4);
    ASSERT_VALUES(trek_quantile(x, q, 0, false, TREK_INTERPOLATION_LINEAR), 1, 2.5, 4);
    ASSERT_VALUES(trek_quantile(x, low, 0, false, TREK_INTERPOLATION_LOWER), 2);
    ASSERT_VALUES(trek_quantile(x, low, 0, true, TREK_INTERPOLATION_HIGHER), 3);
    ASSERT_VALUES(trek_quantile(x, low, 0, true, TREK_INTERPOLATION_MIDPOINT), 2.5);
    ASSERT_VALUES(trek_quantile(x, low, 0, true, TREK_INTERPOLATION_NEAREST), 2);
    trek_var *some = VALUES(trek_dims(3, 3), TREK_F64, 5, NAN, 1, NAN, NAN, NAN, 4, 3, 1), *half = LIST(TREK_F64, 0.5, 1);
    ASSERT_VALUES(trek_nanquantile(some, half, 1, false, TREK_INTERPOLATION_LINEAR), 3, NAN, 3, 5, NAN, 4);
    ASSERT_VALUES(trek_nanquantile(some, trek_select(half, 0, 0), 1, true, TREK_INTERPOLATION_HIGHER), 5, NAN, 3);
    ASSERT_REFUSED(trek_nanquantile(some, LIST(TREK_F32, 1), 1, true, TREK_INTERPOLATION_LINEAR), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_quantile(x, LIST(TREK_F32, 2), 0, true, TREK_INTERPOLATION_LINEAR), TREK_ERR_ARGUMENT);
    trek_var *edges = LIST(TREK_F32, 1, 2, 2, 5), *sought = LIST(TREK_F32, 0, 2, 9);
    ASSERT_VALUES(trek_searchsorted(edges, sought, false), 0, 1, 4);
    ASSERT_VALUES(trek_bucketize(sought, edges, true), 0, 3, 4);
}

static void places(void **state)
{
    trek_var *x = LIST(TREK_I64, 3, 0, 3, 7), *inverse = NULL, *counts = NULL;
    ASSERT_VALUES(trek_nonzero(x), 0, 2, 3);
    ASSERT_VALUES(trek_masked_select(x, trek_gt_scalar(x, 2)), 3, 3, 7);
    ASSERT_VALUES(trek_unique(x, &inverse, &counts), 0, 3, 7);
    trek_var *back, *sizes, *runs = VALUES(trek_dims(2, 3), TREK_I32, 2, 2, 1, 1, 1, 2);
    ASSERT_VALUES(trek_unique_consecutive(runs, &back, &sizes), 2, 1, 2);
    ASSERT_VALUES(back, 0, 0, 1, 1, 1, 2);
    ASSERT_VALUES(sizes, 2, 3, 1);
    assert_int_equal(trek_var_ndim(back), 2);
    assert_int_equal(trek_var_numel(trek_unique_consecutive(trek_narrow(runs, 0, 0, 0), &back, &sizes)), 0);
    assert_true(trek_var_ndim(back) == 2 && trek_var_numel(sizes) == 0);
    ASSERT_REFUSED(trek_unique_consecutive(NULL, NULL, NULL), TREK_ERR_ARGUMENT);
    trek_var *rows = VALUES(trek_dims(5, 2), TREK_F16, 1, 2, 0, 5, 1, 2, -0.0, 5, 1, -3);
    ASSERT_VALUES(trek_unique_dim(rows, 0, &back, &sizes), 0, 5, 1, -3, 1, 2);
    ASSERT_VALUES(back, 2, 0, 2, 0, 1);
    ASSERT_VALUES(sizes, 2, 1, 2);
    ASSERT_VALUES(trek_unique_dim(trek_transpose(rows, 0, 1), -1, NULL, &sizes), 0, 1, 1, 5, -3, 2);
    ASSERT_VALUES(trek_unique_dim(LIST(TREK_F32, NAN, 1, NAN), 0, &back, NULL), 1, NAN, NAN);
    ASSERT_VALUES(back, 1, 0, 2);
    ASSERT_VALUES(trek_unique_dim(VALUES(trek_dims(2, 2), TREK_BOOL, 1, 1, 1, 1), 1, &back, &sizes), 1, 1);
    assert_int_equal(trek_var_numel(trek_unique_dim(trek_narrow(rows, 0, 0, 0), 0, &back, &sizes)), 0);
    ASSERT_REFUSED(trek_unique_dim(trek_narrow(rows, 1, 0, 0), 0, &back, &sizes), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_unique_dim(rows, 2, &back, NULL), TREK_ERR_ARGUMENT);
    assert_null(back);
    ASSERT_REFUSED(trek_unique_dim(trek_select(LIST(TREK_F32, 1), 0, 0), 0, NULL, NULL), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_unique_dim(NULL, 0, NULL, NULL), TREK_ERR_ARGUMENT);
    trek_var *lines = VALUES(trek_dims(2, 3), TREK_F32, 5, 1, 3, 2, 9, 4), *sorter = trek_argsort(lines, -1, false);
    trek_var *sought = VALUES(trek_dims(2, 2), TREK_F32, 3, 6, 3, 9);
    ASSERT_VALUES(trek_searchsorted_by(lines, sought, false, sorter), 1, 3, 1, 2);
    ASSERT_VALUES(trek_searchsorted_by(lines, sought, true, sorter), 2, 3, 1, 3);
    ASSERT_REFUSED(trek_searchsorted_by(lines, sought, true, trek_cast(sorter, TREK_I32)), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_searchsorted_by(lines, sought, true, trek_narrow(sorter, 1, 0, 2)), TREK_ERR_SHAPE);
    if (test_on_cpu()) /* a GPU is told later */
        ASSERT_REFUSED(trek_searchsorted_by(lines, sought, true, trek_add_scalar(sorter, 1)), TREK_ERR_ARGUMENT);
    ASSERT_VALUES(inverse, 1, 0, 1, 2);
    ASSERT_VALUES(counts, 1, 2, 1);
    ASSERT_VALUES(trek_bincount(x, NULL, 0), 1, 0, 0, 2, 0, 0, 0, 1);
    ASSERT_VALUES(trek_bincount(LIST(TREK_I32, 1, 1), LIST(TREK_F32, 0.5, 2), 3), 0, 2.5, 0);
    ASSERT_REFUSED(trek_bincount(x, NULL, -1), TREK_ERR_ARGUMENT);
    ASSERT_VALUES(trek_repeat_interleave(x, 2, 0), 3, 3, 0, 0, 3, 3, 7, 7);
    ASSERT_VALUES(trek_repeat_interleave_by(x, LIST(TREK_I64, 0, 2, 1, 0), 0), 0, 0, 3);
    ASSERT_REFUSED(trek_repeat_interleave_by(x, LIST(TREK_I64, 0, -2, 1, 0), 0), TREK_ERR_ARGUMENT);
}

static void scattering(void **state)
{
    trek_var *x = LIST(TREK_F32, 1, 2, 3), *at = LIST(TREK_I64, 2, 0, 2), *source = LIST(TREK_F32, 4, 5, 6);
    ASSERT_VALUES(trek_scatter(x, 0, at, source), 5, 2, 6);
    ASSERT_VALUES(trek_scatter_value(x, 0, at, 9), 9, 2, 9);
    static const double wanted[][6] = {
        [TREK_REDUCTION_SUM] = { 6, 2, 13, 5, 2, 10 },       [TREK_REDUCTION_PROD] = { 5, 2, 72, 5, 2, 24 },
        [TREK_REDUCTION_MEAN] = { 3, 2, 13. / 3, 5, 2, 5 }, [TREK_REDUCTION_MAX] = { 5, 2, 6, 5, 2, 6 },
        [TREK_REDUCTION_MIN] = { 1, 2, 3, 5, 2, 4 },
    }; /* with x's own element, and without */
    for (int kind = TREK_REDUCTION_MEAN; kind <= TREK_REDUCTION_PROD; kind++)
        for (int without = 0; without < 2; without++)
            assert_values(trek_scatter_reduce(x, 0, at, source, (trek_reduction)kind, !without), 3,
                          wanted[kind] + 3 * without, __LINE__);
    ASSERT_REFUSED(trek_scatter_reduce(x, 0, at, source, TREK_REDUCTION_NONE, true), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_scatter_reduce(x, 0, at, source, TREK_REDUCTION_NORM, true), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_scatter_reduce(x, 0, at, source, (trek_reduction)-1, true), TREK_ERR_ARGUMENT);
    ASSERT_VALUES(trek_index_fill(x, 0, LIST(TREK_I64, -1, 0), 7), 7, 2, 7);
    trek_var *grid = VALUES(trek_dims(2, 2), TREK_F32, 1, 2, 3, 4), *rows = LIST(TREK_I64, 0, 0),
        *columns = LIST(TREK_I64, 1, -1);
    trek_var *both[2] = { rows, columns };
    ASSERT_VALUES(trek_index_put(grid, both, 2, LIST(TREK_F32, 10), true), 1, 22, 3, 4);
    ASSERT_VALUES(trek_index_put(grid, both, 1, LIST(TREK_F32, 8, 9), false), 8, 9, 3, 4);
    both[1] = LIST(TREK_I64, 1, 2);
    if (test_on_cpu()) /* a GPU says it later */
        ASSERT_REFUSED(trek_index_put(grid, both, 2, LIST(TREK_F32, 10), true), TREK_ERR_ARGUMENT);
}

/* trek_dims_all() lists all dimensions in every function that takes a list, and the empty list none where it is not reduced. */
static void every_dimension(trek_var *x)
{
    ASSERT_VALUES(trek_flip(x, trek_dims_all()), 4, 3, 2, 1);
    ASSERT_VALUES(trek_flip(x, trek_dims_none()), 1, 2, 3, 4);
    ASSERT_VALUES(trek_flip(trek_sum(x, trek_dims_all(), false), trek_dims_all()), 10);
    ASSERT_VALUES(trek_permute(x, trek_dims_all()), 1, 2, 3, 4);
    ASSERT_VALUES(trek_movedim(x, trek_dims_all(), trek_dims(1, 0)), 1, 3, 2, 4);
    ASSERT_VALUES(trek_roll(x, trek_dims(1, 1), trek_dims_all()), 4, 3, 2, 1);
    ASSERT_VALUES(trek_tensordot(x, x, trek_dims_all(), trek_dims_all()), 30);
    ASSERT_VALUES(trek_sum(x, trek_dims_none(), false), 10);
    ASSERT_VALUES(trek_variance_with(x, trek_dims_all(), 0, false, NULL), 1.25);
    assert_int_equal(trek_var_ndim(trek_squeeze_dims(trek_reshape(x, trek_dims(1, 4, 1)), trek_dims_all())), 1);
    ASSERT_REFUSED(trek_reshape(x, trek_dims_all()), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_flip(NULL, trek_dims_all()), TREK_ERR_ARGUMENT);
}

static void arranging(void **state)
{
    trek_var *x = VALUES(trek_dims(2, 2), TREK_F32, 1, 2, 3, 4), *line = LIST(TREK_F32, 5, 6), *grids[2];
    ASSERT_VALUES(trek_repeat(x, trek_dims(1, 2)), 1, 2, 1, 2, 3, 4, 3, 4);
    ASSERT_VALUES(trek_tile(x, trek_dims(2)), 1, 2, 1, 2, 3, 4, 3, 4);
    ASSERT_REFUSED(trek_repeat(x, trek_dims(2)), TREK_ERR_SHAPE);
    ASSERT_VALUES(trek_roll(x, trek_dims(1), trek_dims_none()), 4, 1, 2, 3);
    ASSERT_VALUES(trek_roll(x, trek_dims(1), trek_dims(1)), 2, 1, 4, 3);
    ASSERT_VALUES(trek_movedim(x, trek_dims(0), trek_dims(-1)), 1, 3, 2, 4);
    every_dimension(x);
    ASSERT_VALUES(trek_diagonal(x, 1, 0, 1), 2);
    ASSERT_VALUES(trek_diag(x, 0), 1, 4);
    ASSERT_VALUES(trek_diag(line, -1), 0, 0, 0, 5, 0, 0, 0, 6, 0);
    trek_var *axes[2] = { line, LIST(TREK_F32, 7, 8) };
    assert_int_equal(trek_meshgrid(axes, 2, false, grids, 2), 2);
    ASSERT_VALUES(grids[0], 5, 5, 6, 6);
    ASSERT_VALUES(grids[1], 7, 8, 7, 8);
    assert_int_equal(trek_meshgrid(axes, 2, false, grids, 1), -1);
    trek_error_clear();
    ASSERT_VALUES(trek_zeros_like(line), 0, 0);
    ASSERT_VALUES(trek_ones_like(line), 1, 1);
    ASSERT_VALUES(trek_full_like(line, 3), 3, 3);
    assert_int_equal(trek_var_numel(trek_empty_like(x)), 4);
}

/* How many elements are equal to `value`. */
static double count_of(trek_var *v, double value)
{
    return trek_var_item(trek_sum(trek_eq_scalar(v, value), trek_dims_all(), false));
}

static void random_choices(void **state)
{
    enum { MANY = 20000 };
    trek_seed(5);
    trek_var *many = trek_var_from(trek_tensor_full(trek_dims(MANY), 0.3, TREK_F32, test_device()));
    trek_var *even = trek_rand_like(many), *normal = trek_randn_like(many), *drawn = trek_bernoulli(many);
    assert_true(fabs(trek_var_item(trek_mean(even, trek_dims_all(), false)) - 0.5) < 0.02);
    assert_true(fabs(trek_var_item(trek_std(normal, trek_dims_all(), false)) - 1) < 0.03);
    assert_true(fabs(count_of(drawn, 1) / MANY - 0.3) < 0.02);
    assert_true(count_of(drawn, 0) + count_of(drawn, 1) == MANY);
    ASSERT_REFUSED(trek_bernoulli(LIST(TREK_F32, 0.5, 1.5)), TREK_ERR_ARGUMENT);
    trek_var *weights = LIST(TREK_F32, 0, 1, 3, 0), *chosen = trek_multinomial(weights, MANY, true);
    assert_true(count_of(chosen, 1) + count_of(chosen, 2) == MANY);
    assert_true(fabs(count_of(chosen, 2) / MANY - 0.75) < 0.02);
    for (int k = 0; k < 20; k++) {
        trek_var *pair = trek_multinomial(weights, 2, false);
        assert_true(count_of(pair, 1) == 1 && count_of(pair, 2) == 1);
    }
    double first = 0; /* the heavier one comes first in three of four */
    trek_var *lines = trek_expand(weights, trek_dims(MANY, 4)), *order = trek_multinomial(lines, 2, false);
    first = count_of(trek_select(order, 1, 0), 2);
    assert_true(fabs(first / MANY - 0.75) < 0.02);
    ASSERT_REFUSED(trek_multinomial(weights, 3, false), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_multinomial(LIST(TREK_F32, 1, -1), 1, true), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_multinomial(LIST(TREK_F32, 0, 0), 1, true), TREK_ERR_ARGUMENT);
}

/* Lines of any length, keys of all widths: in order, each place once. */
static void long_lines(void **state)
{
    static const int64_t lengths[] = { 39, 41, 255, 257, 4099, 70001 };
    static const trek_dtype dtypes[] = { TREK_F32, TREK_F64, TREK_BF16, TREK_I64, TREK_U8 };
    for (int d = 0; d < 5; d++)
        for (int k = 0; k < (test_on_cpu() ? 6 : 5); k++) { /* a fake GPU takes its time */
            trek_var *x = trek_cast(trek_mul_scalar(trek_rand_like(trek_var_from(trek_tensor_zeros(trek_dims(2, lengths[k]),
                                                                                                   TREK_F64,
                                                                                                    test_device()))), 200),
                                                                                                    dtypes[d]);
            trek_var *at = NULL, *sorted = trek_sort(x, 1, false, &at), *again = trek_gather(x, 1, at), *few = NULL;
            trek_var *rising = trek_le(trek_narrow(sorted, 1, 0, lengths[k] - 1), trek_narrow(sorted, 1, 1, lengths[k] - 1));
            assert_true(trek_var_item(trek_all(rising, trek_dims_all(), false)) == 1);
            assert_true(trek_var_item(trek_all(trek_eq(again, sorted), trek_dims_all(), false)) == 1);
            trek_var *same = trek_eq(trek_topk(x, 17, 1, false, &few), trek_narrow(sorted, 1, 0, 17));
            assert_true(trek_var_item(trek_all(same, trek_dims_all(), false)) == 1);
            assert_true(trek_var_item(trek_all(trek_eq(few, trek_narrow(at, 1, 0, 17)), trek_dims_all(), false)) == 1);
        }
}

/* Checks that lines of small numbers and NaN are sorted, that equal ones keep their order, and topk. */
static void check_sorted(trek_var *x, int dim, bool descending)
{
    const int64_t n = trek_var_size(x, dim);
    trek_var *at = NULL, *few = NULL, *sorted = trek_sort(x, dim, descending, &at);
    assert_true(test_same_bits(trek_var_data(trek_gather(x, dim, at)), trek_var_data(trek_contiguous(sorted))));
    trek_var *rank = trek_nan_to_num(trek_cast(sorted, TREK_F64), 1e9, 1e9, 1e9);
    trek_var *before = trek_narrow(rank, dim, 0, n - 1), *after = trek_narrow(rank, dim, 1, n - 1);
    trek_var *kept = trek_lt(trek_narrow(at, dim, 0, n - 1), trek_narrow(at, dim, 1, n - 1));
    trek_var *fine = trek_logical_or(descending ? trek_gt(before, after) : trek_lt(before, after),
                                     trek_logical_and(trek_eq(before, after), kept));
    assert_true(trek_var_item(trek_all(fine, trek_dims_all(), false)) == 1);
    const int64_t k = n < 30 ? n : 30;
    trek_var *first = trek_topk(x, k, dim, descending, &few);
    assert_true(test_same_bits(trek_var_data(trek_contiguous(first)),
                               trek_var_data(trek_contiguous(trek_narrow(sorted, dim, 0, k)))));
    assert_true(trek_var_item(trek_all(trek_eq(few, trek_narrow(at, dim, 0, k)), trek_dims_all(), false)) == 1);
}

/* Returns three lines: of equal numbers, rising ones, falling ones, or rising ones but for one; all with NaN at their end, if
 * floats. */
static trek_var *lines_in_order(int kind, int64_t n, trek_dtype dtype)
{
    double values[3 * 1000];
    for (int64_t i = 0; i < 3 * n; i++) {
        const double step = (double)(i % n / 3 * 3) / 1000; /* three of each */
        values[i] = kind == 0 ? (double)(i / n % 2) : kind == 2 ? -step : step;
        if (kind == 3 && i % n == n - 2)
            values[i] = -1;
        if (!trek_dtype_is_float(dtype) || kind == 0)
            values[i] = dtype == TREK_U8 ? fabs(round(values[i] * 100)) : round(values[i] * 100);
        else if (i % n == n - 1)
            values[i] = NAN;
        else if (values[i] == 0 && i % 2)
            values[i] = -0.0;
    }
    return trek_var_from(test_values(values, trek_dims(3, n), dtype));
}

/* Lines that are in order already, or nearly, where their elements are adjacent, repeat, or lie apart. */
static void lines_that_are_in_order(void **state)
{
    static const int64_t lengths[] = { 1, 2, 40, 41, 64, 65, 66, 129, 1000 };
    static const trek_dtype dtypes[] = { TREK_F32, TREK_F64, TREK_BF16, TREK_F16, TREK_I64, TREK_I32, TREK_U8 };
    for (int d = 0; d < 7; d++)
        for (int k = 0; k < (test_on_cpu() ? 9 : 4); k++)
            for (int kind = 0; kind < 4; kind++)
                for (int descending = 0; descending < 2; descending++) {
                    trek_scope inner = trek_scope_begin();
                    trek_var *x = lines_in_order(kind, lengths[k], dtypes[d]);
                    check_sorted(x, 1, descending);
                    check_sorted(trek_transpose(x, 0, 1), 0, descending);
                    check_sorted(trek_transpose(trek_contiguous(trek_transpose(x, 0, 1)), 0, 1), 1, descending);
                    check_sorted(trek_expand(trek_narrow(x, 1, 0, 1), trek_dims(3, lengths[k])), 1, descending);
                    check_sorted(trek_flip(x, trek_dims(1)), 1, descending);
                    trek_scope_end(inner);
                }
}

/* Of one number, cumprod's gradient needs no input: one that has been overwritten is no error. */
static void products_of_one_number(void **state)
{
    trek_var *x = VALUES(trek_dims(1), TREK_F32, 3), *grad = NULL;
    assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
    trek_var *kept = trek_mul_scalar(x, 2), *y = trek_sum(trek_cumprod(kept, 0), trek_dims_all(), false);
    assert_int_equal(trek_tensor_copy_from(trek_var_data(kept), trek_var_data(x)), TREK_OK);
    assert_int_equal(trek_grad(&y, 1, &x, 1, NULL, NULL, &grad), TREK_OK);
    assert_int_equal(trek_error_status(), TREK_OK);
    ASSERT_VALUES(grad, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(sorting), TEST(quantiles), TEST(places), TEST(scattering), TEST(arranging), TEST(random_choices), TEST(long_lines),
        TEST(lines_that_are_in_order),
        TEST(products_of_one_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
