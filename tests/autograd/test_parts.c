/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of tensors: numbers told by hand (each element is its own place), gradients by differences. */
#include "autograd/ops.h"
#include "tensor/creation.h"
#include "tensor/shapes.h"
#include "tests/autograd/differences.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

#define SUBSCRIPTS(...)                                                                                                          \
    (const trek_subscript[]){ __VA_ARGS__ }, (int)(sizeof(trek_subscript[]){ __VA_ARGS__ } / sizeof(trek_subscript))
#define AT(i) trek_subscript_at(i)
#define RANGE(a, b, c) trek_subscript_range(a, b, c)
#define ALL trek_subscript_all()
#define NEW trek_subscript_new()
#define REST trek_subscript_rest()
#define BY(v) trek_subscript_by(v)

/* 0, 1, 2, ... of that shape and dtype, lying transposed in memory. */
static trek_var *numbered(trek_dtype dtype, int64_t a, int64_t b, int64_t c)
{
    trek_tensor *t = trek_tensor_arange(0, (double)(a * b * c), 1, dtype, test_device());
    trek_var *x = trek_reshape(trek_var_from(t), trek_dims(a, b, c));
    return trek_transpose(trek_contiguous(trek_transpose(x, 0, 2)), 0, 2);
}

static void assert_shape(trek_var *v, trek_shape shape)
{
    assert_non_null(v);
    assert_true(trek_shape_equal(trek_var_shape(v), shape));
}

static void cuts(void **state)
{
    trek_var *x = numbered(TREK_I64, 1, 2, 5), *parts[6];
    assert_int_equal(trek_split_with_sizes(x, (const int64_t[]){ 1, 0, 4 }, 3, -1, parts, 6), 3);
    ASSERT_VALUES(parts[0], 0, 5);
    assert_shape(parts[1], trek_dims(1, 2, 0));
    ASSERT_VALUES(parts[2], 1, 2, 3, 4, 6, 7, 8, 9);
    assert_int_equal(trek_split_with_sizes(trek_narrow(x, 2, 0, 0), NULL, 0, 2, parts, 6), 0);
    assert_int_equal(trek_split_sections(x, 3, 2, parts, 6), 3);
    ASSERT_VALUES(parts[0], 0, 1, 5, 6);
    ASSERT_VALUES(parts[1], 2, 3, 7, 8);
    ASSERT_VALUES(parts[2], 4, 9);
    assert_int_equal(trek_split_sections(x, 4, 1, parts, 6), 4);
    assert_shape(parts[1], trek_dims(1, 1, 5));
    assert_shape(parts[3], trek_dims(1, 0, 5));
    assert_int_equal(trek_split_indices(x, (const int64_t[]){ 1, -2, 2, 9 }, 4, 2, parts, 6), 5);
    ASSERT_VALUES(parts[0], 0, 5);
    ASSERT_VALUES(parts[1], 1, 2, 6, 7);
    assert_shape(parts[2], trek_dims(1, 2, 0));
    ASSERT_VALUES(parts[3], 2, 3, 4, 7, 8, 9);
    assert_shape(parts[4], trek_dims(1, 2, 0));
    ASSERT_VALUES(trek_slice(x, 2, -4, INT64_MAX, 2), 1, 3, 6, 8);
    ASSERT_VALUES(trek_slice(x, -1, INT64_MIN, 3, 1), 0, 1, 2, 5, 6, 7);
    assert_true(trek_tensor_data(trek_var_data(trek_slice(x, 2, 0, 4, 1))) == trek_tensor_data(trek_var_data(x))); /* a view */
    assert_shape(trek_slice(x, 1, 2, 1, 3), trek_dims(1, 0, 5));
    trek_var *windows = trek_unfold_dim(x, 2, 3, 2);
    assert_shape(windows, trek_dims(1, 2, 2, 3));
    ASSERT_VALUES(windows, 0, 1, 2, 2, 3, 4, 5, 6, 7, 7, 8, 9);
    ASSERT_VALUES(trek_unfold_dim(x, 1, 1, 2), 0, 1, 2, 3, 4);
    ASSERT_VALUES(trek_unfold_dim(x, 1, 2, 9), 0, 5, 1, 6, 2, 7, 3, 8, 4, 9);
    ASSERT_VALUES(trek_unfold_dim(LIST(TREK_F16, 1, 2, 3, 4, 5), 0, 2, 2), 1, 2, 3, 4);
    assert_shape(trek_unfold_dim(x, 2, 0, 2), trek_dims(1, 2, 3, 0));
    trek_var *ones = trek_reshape(x, trek_dims(1, 2, 1, 5, 1));
    assert_shape(trek_squeeze_dims(ones, trek_dims_all()), trek_dims(2, 5));
    assert_shape(trek_squeeze_dims(ones, trek_dims(-1, 1, 0)), trek_dims(2, 1, 5));
}

static void subscripts(void **state)
{
    trek_var *x = numbered(TREK_F32, 2, 3, 4), *of = LIST(TREK_I64, 2, -1, 0), *y;
    trek_var *mask = VALUES(trek_dims(2, 3), TREK_BOOL, 0, 1, 0, 1, 0, 1), *column = VALUES(trek_dims(2, 1), TREK_I32, 1, 0);
    ASSERT_VALUES(trek_index(x, SUBSCRIPTS(AT(-1), RANGE(0, 9, 2), AT(1))), 13, 21);
    assert_shape(trek_index(x, SUBSCRIPTS(NEW, REST, NEW, RANGE(1, 3, 1))), trek_dims(1, 2, 3, 1, 2));
    ASSERT_VALUES(trek_index(x, SUBSCRIPTS(REST, AT(3))), 3, 7, 11, 15, 19, 23);
    assert_ptr_equal(trek_index(x, NULL, 0), x);
    /* indices of one dimension, and of two that stand together or do not */
    y = trek_index(x, SUBSCRIPTS(ALL, BY(of)));
    assert_shape(y, trek_dims(2, 3, 4));
    ASSERT_VALUES(trek_select(y, 2, 0), 8, 8, 0, 20, 20, 12);
    y = trek_index(x, SUBSCRIPTS(AT(1), ALL, BY(column)));
    assert_shape(y, trek_dims(3, 2, 1));
    ASSERT_VALUES(y, 13, 12, 17, 16, 21, 20);
    y = trek_index(x, SUBSCRIPTS(BY(column), BY(of)));
    assert_shape(y, trek_dims(2, 3, 4));
    ASSERT_VALUES(trek_select(y, 2, 1), 21, 21, 13, 9, 9, 1);
    y = trek_index(x, SUBSCRIPTS(ALL, BY(of), BY(column)));
    assert_shape(y, trek_dims(2, 2, 3));
    ASSERT_VALUES(y, 9, 9, 1, 8, 8, 0, 21, 21, 13, 20, 20, 12);
    y = trek_index(x, SUBSCRIPTS(BY(LIST(TREK_I64, 1, 0)), ALL, BY(LIST(TREK_I64, 3, 1))));
    assert_shape(y, trek_dims(2, 3));
    ASSERT_VALUES(y, 15, 19, 23, 1, 5, 9);
    y = trek_index(x, SUBSCRIPTS(ALL, NEW, BY(trek_select(of, 0, 1))));
    assert_shape(y, trek_dims(2, 1, 4));
    ASSERT_VALUES(y, 8, 9, 10, 11, 20, 21, 22, 23);
    /* masks */
    y = trek_index(x, SUBSCRIPTS(BY(mask), RANGE(0, 4, 3)));
    ASSERT_VALUES(y, 4, 7, 12, 15, 20, 23);
    y = trek_index(x, SUBSCRIPTS(ALL, BY(trek_select(mask, 0, 1)), AT(2)));
    ASSERT_VALUES(y, 2, 10, 14, 22);
    y = trek_index(x, SUBSCRIPTS(BY(trek_gt_scalar(x, 20))));
    ASSERT_VALUES(y, 21, 22, 23);
    assert_shape(trek_index(x, SUBSCRIPTS(BY(trek_lt_scalar(x, 0)))), trek_dims(0));
    y = trek_index(x, SUBSCRIPTS(BY(mask), BY(LIST(TREK_I64, 0, 1, 2))));
    ASSERT_VALUES(y, 4, 13, 22);
    assert_shape(trek_index(x, SUBSCRIPTS(BY(VALUES(trek_dims_none(), TREK_BOOL, 0)))), trek_dims(0, 2, 3, 4));
    assert_shape(trek_index(x, SUBSCRIPTS(AT(0), BY(VALUES(trek_dims_none(), TREK_BOOL, 1)))), trek_dims(1, 3, 4));
}

static void replaced(void **state)
{
    trek_var *x = VALUES(trek_dims(2, 3), TREK_F32, 0, 1, 2, 3, 4, 5), *two = LIST(TREK_F32, 7, 8),
             *three = LIST(TREK_F32, 7, 8, 9);
    ASSERT_VALUES(trek_index_assign(x, SUBSCRIPTS(BY(trek_gt_scalar(x, 2))), VALUES(trek_dims_none(), TREK_F32, -1), false), 0, 1,
                  2, -1, -1, -1);
    ASSERT_VALUES(trek_index_assign(x, SUBSCRIPTS(REST, RANGE(0, 3, 2)), two, false), 7, 1, 8, 7, 4, 8);
    ASSERT_VALUES(trek_index_assign(x, SUBSCRIPTS(AT(1), BY(LIST(TREK_I64, 0, 0))), two, true), 0, 1, 2, 18, 4, 5);
    ASSERT_VALUES(trek_select_scatter(x, two, 1, -2), 0, 7, 2, 3, 8, 5);
    ASSERT_VALUES(trek_select_scatter(trek_transpose(x, 0, 1), three, -1, 0), 7, 3, 8, 4, 9, 5);
    trek_var *square = VALUES(trek_dims(2, 2), TREK_F32, 6, 7, 8, 9);
    ASSERT_VALUES(trek_slice_scatter(x, square, 1, 0, INT64_MAX, 2), 6, 1, 7, 8, 4, 9);
    ASSERT_VALUES(trek_slice_scatter(x, square, 1, -2, 3, 1), 0, 6, 7, 3, 8, 9);
    ASSERT_VALUES(trek_slice_scatter(x, trek_narrow(x, 0, 0, 0), 0, 1, 1, 1), 0, 1, 2, 3, 4, 5);
    ASSERT_VALUES(trek_diagonal_scatter(x, two, 1, 0, 1), 0, 7, 2, 3, 4, 8);
    ASSERT_VALUES(trek_diagonal_scatter(x, two, 0, -1, 0), 7, 1, 2, 3, 8, 5);
    trek_var *rows = VALUES(trek_dims(3, 3), TREK_F32, 2, 2, 2, 1, 3, 1, 4, 0, 6), *places = LIST(TREK_I32, 1, 1, 0);
    ASSERT_VALUES(trek_index_reduce(x, 0, places, rows, TREK_REDUCTION_PROD, true), 0, 0, 12, 6, 24, 10);
    ASSERT_VALUES(trek_index_reduce(x, 0, places, rows, TREK_REDUCTION_MEAN, false), 4, 0, 6, 1.5, 2.5, 1.5);
    ASSERT_VALUES(trek_index_reduce(x, 0, places, rows, TREK_REDUCTION_MAX, true), 4, 1, 6, 3, 4, 5);
    ASSERT_VALUES(trek_index_reduce(x, 1, LIST(TREK_I64, 2), VALUES(trek_dims(2, 1), TREK_F32, 9, -9), TREK_REDUCTION_MIN, true),
                  0, 1, 2, 3, 4, -9);
    ASSERT_VALUES(trek_variance_with(x, trek_dims(1), 0, false, NULL), 2.0 / 3, 2.0 / 3);
    trek_var *mean = NULL;
    ASSERT_VALUES(trek_std_with(x, trek_dims(1), 2.5, true, &mean), 2, 2);
    ASSERT_VALUES(mean, 1, 4);
    ASSERT_VALUES(trek_variance_with(trek_slice(x, 0, 0, 1, 1), trek_dims_all(), 3, false, NULL), INFINITY);
}

static trek_var *last_part(trek_var *const *in)
{
    trek_var *parts[2];
    return trek_split_with_sizes(in[0], (const int64_t[]){ 2, 3 }, 2, 1, parts, 2) == 2 ? trek_square(parts[1]) : NULL;
}
static trek_var *by_indices(trek_var *const *in)
{
    return trek_square(trek_index(in[0], SUBSCRIPTS(BY(LIST(TREK_I64, 1, 0, 1)), NEW, BY(LIST(TREK_I64, 3, -1, 3)))));
}
static trek_var *by_mask(trek_var *const *in)
{
    return trek_square(trek_index(in[0], SUBSCRIPTS(ALL, BY(LIST(TREK_BOOL, 1, 0, 0, 1, 1)))));
}
static trek_var *assigned(trek_var *const *in)
{
    return trek_square(trek_index_assign(in[0], SUBSCRIPTS(REST, RANGE(0, 4, 3)), in[1], true));
}

/* Of those that have a list of sizes or subscripts. The op suite has differences of the others, and tests/differential PyTorch's.
 */
static void gradients(void **state)
{
    const trek_shape two[] = { trek_dims(2, 5), trek_dims(2) };
    check_gradients(last_part, 1, two, true);
    check_gradients(by_indices, 1, two, true);
    check_gradients(by_mask, 1, two, true);
    check_gradients(assigned, 2, two, true);
}

/* Fails unless that many parts are refused. */
static void refused_parts(int n, trek_status status)
{
    assert_int_equal(n, -1);
    assert_int_equal(trek_error_status(), status);
    trek_error_clear();
}

static void refused(void **state)
{
    trek_var *x = VALUES(trek_dims(2, 3), TREK_F32, 0, 1, 2, 3, 4, 5), *i = LIST(TREK_I64, 1, 2), *parts[2];
    trek_var *scalar = trek_sum(x, trek_dims_all(), false), *three = LIST(TREK_BOOL, 1, 0, 1);
    refused_parts(trek_split_with_sizes(x, (const int64_t[]){ 1, 1 }, 2, 1, parts, 2), TREK_ERR_ARGUMENT);
    refused_parts(trek_split_with_sizes(x, (const int64_t[]){ 4, -1 }, 2, 1, parts, 2), TREK_ERR_ARGUMENT);
    refused_parts(trek_split_with_sizes(x, NULL, 1, 1, parts, 2), TREK_ERR_ARGUMENT);
    refused_parts(trek_split_with_sizes(scalar, (const int64_t[]){ 1 }, 1, 0, parts, 2), TREK_ERR_SHAPE);
    refused_parts(trek_split_sections(x, 0, 1, parts, 2), TREK_ERR_ARGUMENT);
    refused_parts(trek_split_sections(x, 3, 1, parts, 2), TREK_ERR_ARGUMENT);
    refused_parts(trek_split_indices(x, (const int64_t[]){ 1, 2 }, 2, 1, parts, 2), TREK_ERR_ARGUMENT);
    refused_parts(trek_split_indices(NULL, NULL, 0, 1, parts, 2), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_slice(x, 1, 0, 3, 0), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_slice(x, 2, 0, 3, 1), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_slice(scalar, 0, 0, 1, 1), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_unfold_dim(x, 1, 4, 1), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_unfold_dim(x, 1, 2, 0), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_unfold_dim(scalar, 0, 1, 1), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_squeeze_dims(x, trek_dims(0, -2)), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_index(x, SUBSCRIPTS(AT(0), ALL, NEW, AT(0))), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_index(x, SUBSCRIPTS(REST, REST)), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_index(x, SUBSCRIPTS(AT(2))), TREK_ERR_ARGUMENT);
    if (test_on_cpu()) { /* a GPU is told later */
        ASSERT_REFUSED(trek_index(x, SUBSCRIPTS(BY(i))), TREK_ERR_ARGUMENT);
        ASSERT_REFUSED(trek_index_reduce(x, 0, i, x, TREK_REDUCTION_MAX, true), TREK_ERR_ARGUMENT);
    }
    ASSERT_REFUSED(trek_index(x, SUBSCRIPTS(BY(NULL))), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_index(x, SUBSCRIPTS(BY(x))), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_index(x, SUBSCRIPTS(BY(three))), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_index(x, SUBSCRIPTS(BY(LIST(TREK_I64, 0, 1)), BY(LIST(TREK_I64, 0, 1, 0)))), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_index(x, SUBSCRIPTS(RANGE(0, 1, 0))), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_index(x, (const trek_subscript[]){ { .kind = 9 } }, 1), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_index(x, NULL, 1), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_index_assign(x, SUBSCRIPTS(AT(0)), i, false), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_index_assign(x, SUBSCRIPTS(AT(0)), LIST(TREK_F32, 1, 2), false), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_select_scatter(x, LIST(TREK_F32, 1), 1, 0), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_select_scatter(x, i, 1, 0), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_select_scatter(x, LIST(TREK_F32, 1, 2), 1, 3), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_slice_scatter(x, x, 1, 0, 3, 2), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_diagonal_scatter(x, x, 0, 0, 1), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_index_reduce(x, 1, i, x, TREK_REDUCTION_MAX, true), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_index_reduce(x, 0, LIST(TREK_F32, 1, 0), x, TREK_REDUCTION_MAX, true), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_variance_with(x, trek_dims_all(), NAN, false, NULL), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_std_with(i, trek_dims_all(), 1, false, NULL), TREK_ERR_DTYPE);
}

int main(void)
{
    const struct CMUnitTest tests[] = { TEST(cuts), TEST(subscripts), TEST(replaced), TEST(gradients), TEST(refused) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
