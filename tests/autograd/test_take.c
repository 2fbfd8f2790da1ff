/* SPDX-License-Identifier: Apache-2.0 */
/* Elements by their places, tensors made of others', statistics: numbers told by hand. Their gradients are compared with
 * differences by the op suite, and with PyTorch's by tests/differential. */
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "tensor/creation.h"
#include "tensor/dtypes.h"
#include "tensor/layout.h"
#include "tests/autograd/differences.h"
#include "tests/autograd/values.h"
#include "tests/support/support.h"

static void places(void **state)
{
    trek_var *x = VALUES(trek_dims(2, 3), TREK_F32, 1, 2, 3, 4, 5, 6), *at = LIST(TREK_I64, 5, 0, -2);
    ASSERT_VALUES(trek_isin(x, LIST(TREK_F32, 7, 5, 1, 1), false), 1, 0, 0, 0, 1, 0);
    ASSERT_VALUES(trek_isin(LIST(TREK_F64, NAN, 1, INFINITY), LIST(TREK_F64, NAN, INFINITY), true), 1, 1, 0);
    ASSERT_VALUES(trek_isin(LIST(TREK_U8, 3, 4), trek_narrow(LIST(TREK_U8, 3), 0, 0, 0), false), 0, 0);
    ASSERT_VALUES(trek_take(trek_transpose(x, 0, 1), at), 6, 1, 3);
    ASSERT_VALUES(trek_put(x, at, LIST(TREK_F32, 10, 20, 30), false), 20, 2, 3, 4, 30, 10);
    ASSERT_VALUES(trek_put(x, LIST(TREK_I64, 1, 1), LIST(TREK_F32, 10, 20), true), 1, 32, 3, 4, 5, 6);
    ASSERT_VALUES(trek_take_along_dim(x, VALUES(trek_dims(1, 2), TREK_I64, 2, 0), 1), 3, 1, 6, 4);
    ASSERT_VALUES(trek_index_copy(x, 1, LIST(TREK_I64, 2, 0), VALUES(trek_dims(2, 2), TREK_F32, 7, 8, 9, 10)), 8, 2, 7, 10, 5, 9);
    trek_var *mask = VALUES(trek_dims(2, 1), TREK_BOOL, 0, 1);
    ASSERT_VALUES(trek_masked_scatter(x, mask, LIST(TREK_F32, 7, 8, 9, 10)), 1, 2, 3, 7, 8, 9);
    ASSERT_VALUES(trek_masked_scatter(x, VALUES(trek_dims(1), TREK_BOOL, 0), LIST(TREK_F32, 7)), 1, 2, 3, 4, 5, 6);
    ASSERT_VALUES(trek_tril_indices(2, 3, 0, test_device()), 0, 1, 1, 0, 0, 1);
    ASSERT_VALUES(trek_triu_indices(2, 3, 1, test_device()), 0, 0, 1, 1, 2, 2);
}

static void from_the_end(void **state)
{
    trek_var *x = VALUES(trek_dims(2, 3), TREK_F32, 1, 2, 3, 4, 5, 6);
    ASSERT_VALUES(trek_take_along_dim(x, VALUES(trek_dims(1, 2), TREK_I64, -1, 0), 1), 3, 1, 6, 4);
    if (test_device().type == TREK_CPU) /* a GPU tells it later */
        ASSERT_REFUSED(trek_take_along_dim(x, VALUES(trek_dims(1, 2), TREK_I64, -4, 0), 1), TREK_ERR_ARGUMENT);
    ASSERT_VALUES(trek_logit(LIST(TREK_F64, 0.2, 0.7, 0.6), 0.6), log(1.5), -log(1.5), -log(1.5));
    ASSERT_VALUES(trek_logit(LIST(TREK_F64, 0.2, 0.7), 1), INFINITY, INFINITY);
    ASSERT_REFUSED(trek_cov(LIST(TREK_F64, 1, 2), 1, LIST(TREK_I64, -1, 3), NULL), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_cov(LIST(TREK_F64, 1, 2), 1, NULL, LIST(TREK_F64, 1, -3)), TREK_ERR_ARGUMENT);
    trek_var *line = VALUES(trek_dims(1, 4), TREK_F32, 0, 1, 2, 3);
    ASSERT_VALUES(trek_pad(line, trek_dims(-4, 5), TREK_PAD_MODE_REPLICATE, 0), 3, 3, 3, 3, 3);
    ASSERT_VALUES(trek_pad(line, trek_dims(6, -5), TREK_PAD_MODE_REPLICATE, 0), 0, 0, 0, 0, 0);
    ASSERT_VALUES(trek_pad(line, trek_dims(-3, 2), TREK_PAD_MODE_REPLICATE, 0), 3, 3, 3);
}

/* A thousand ones of 16 bits at one place, written and as gradients: an addition at a time would end at 256, or 2048. */
static void sums_of_16_bits(void **state)
{
    enum { N = 3008 };
    for (int k = 0; k < 2; k++) {
        trek_dtype dtype = k ? TREK_F16 : TREK_BF16;
        trek_var *ones = trek_var_from(trek_tensor_ones(trek_dims(N), dtype, test_device()));
        trek_var *at = trek_var_from(trek_tensor_zeros(trek_dims(N), TREK_I64, test_device()));
        trek_var *none = trek_var_from(trek_tensor_zeros(trek_dims(1), dtype, test_device())), *slope;
        const double sum = N; /* which both hold */
        ASSERT_VALUES(trek_index_add(none, 0, at, ones), sum);
        ASSERT_VALUES(trek_scatter_add(none, 0, at, ones), sum);
        ASSERT_VALUES(trek_scatter_reduce(none, 0, at, ones, TREK_REDUCTION_SUM, false), sum);
        ASSERT_VALUES(trek_scatter_reduce(none, 0, at, ones, TREK_REDUCTION_MEAN, false), 1);
        trek_var *large = trek_mul_scalar(ones, 100);
        ASSERT_VALUES(trek_scatter_reduce(none, 0, at, large, TREK_REDUCTION_MEAN, false), 100);
        trek_var *grown = trek_mul_scalar(ones, k ? 1.0009765625 : 1.0078125); /* a unit above 1, many times */
        trek_var *product = trek_scatter_reduce(trek_ones_like(none), 0, trek_narrow(at, 0, 0, 200),
                                                trek_narrow(grown, 0, 0, 200),
                                                TREK_REDUCTION_PROD, false);
        assert_true(fabs(trek_var_item(product) / pow(k ? 1.0009765625 : 1.0078125, 200) - 1) < (k ? 0x1p-11 : 0x1p-8) * 1.01);
        ASSERT_VALUES(trek_put(none, at, ones, true), sum);
        ASSERT_VALUES(trek_index_put(none, &at, 1, ones, true), sum);
        trek_var *x = trek_clone(trek_ones_like(none)), *counts = VALUES(trek_dims(1), TREK_I64, N);
        assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
        trek_var *const used[] = { trek_index_select(x, 0, at), trek_gather(x, 0, at), trek_take_along_dim(x, at, 0),
                                   trek_take(x, at), trek_repeat_interleave_by(x, counts, 0) };
        for (size_t c = 0; c < sizeof used / sizeof *used; c++) {
            trek_var *total = trek_sum(used[c], trek_dims_all(), false);
            assert_int_equal(trek_grad(&total, 1, &x, 1, NULL, NULL, &slope), TREK_OK);
            ASSERT_VALUES(slope, sum);
        }
    }
}

static void made_of_others(void **state)
{
    trek_var *x = VALUES(trek_dims(2, 3), TREK_F32, 1, 2, 3, 4, 5, 6), *line = LIST(TREK_I64, 2, 3);
    trek_var *parts = trek_unflatten(x, 1, trek_dims(-1, 1));
    assert_int_equal(trek_var_ndim(parts), 3);
    assert_true(trek_var_size(parts, 1) == 3 && trek_var_size(parts, 2) == 1);
    ASSERT_VALUES(trek_rot90(x, 1, trek_dims(0, 1)), 3, 6, 2, 5, 1, 4);
    ASSERT_VALUES(trek_rot90(x, -2, trek_dims(0, 1)), 6, 5, 4, 3, 2, 1);
    ASSERT_VALUES(trek_rot90(x, 3, trek_dims(0, 1)), 4, 1, 5, 2, 6, 3);
    ASSERT_VALUES(trek_rot90(x, 4, trek_dims(0, 1)), 1, 2, 3, 4, 5, 6);
    ASSERT_VALUES(trek_rot90(x, 1, trek_dims_all()), 3, 6, 2, 5, 1, 4);
    ASSERT_VALUES(trek_diag_embed(line, 1, -2, -1), 0, 2, 0, 0, 0, 3, 0, 0, 0);
    ASSERT_VALUES(trek_diag_embed(line, 1, 1, 0), 0, 0, 0, 2, 0, 0, 0, 3, 0);
    ASSERT_VALUES(trek_diag_embed(line, -1, 0, 1), 0, 0, 0, 2, 0, 0, 0, 3, 0);
    trek_var *blocks[] = { VALUES(trek_dims(1, 2), TREK_F32, 1, 2), LIST(TREK_I64, 3), VALUES(trek_dims(2, 1), TREK_F32, 4, 5) };
    ASSERT_VALUES(trek_block_diag(blocks, 3), 1, 2, 0, 0, 0, 0, 3, 0, 0, 0, 0, 4, 0, 0, 0, 5);
    trek_var *lines[] = { line, LIST(TREK_I64, 7, 8, 9) };
    ASSERT_VALUES(trek_cartesian_prod(lines, 2), 2, 7, 2, 8, 2, 9, 3, 7, 3, 8, 3, 9);
    ASSERT_VALUES(trek_vander(line, 3, false), 4, 2, 1, 9, 3, 1);
    ASSERT_VALUES(trek_vander(line, -1, true), 1, 2, 1, 3);
    assert_int_equal(trek_var_numel(trek_vander(line, 0, true)), 0);
}

static void statistics(void **state)
{
    trek_var *x = VALUES(trek_dims(2, 3), TREK_F64, 1, 2, 3, 4, 6, 2), *other = NULL;
    ASSERT_VALUES(trek_variance_mean(x, trek_dims(1), false, &other), 1, 4);
    ASSERT_VALUES(other, 2, 4);
    ASSERT_VALUES(trek_std_mean(x, trek_dims(1), true, &other), 1, 2);
    ASSERT_VALUES(other, 2, 4);
    ASSERT_VALUES(trek_aminmax(x, trek_dims(0), false, &other), 1, 2, 2);
    ASSERT_VALUES(other, 4, 6, 3);
    ASSERT_VALUES(trek_cov(x, 1, NULL, NULL), 1, -1, -1, 4);
    ASSERT_VALUES(trek_cov(LIST(TREK_I64, 1, 2, 3), 0, NULL, NULL), 2.0 / 3);
    ASSERT_VALUES(trek_cov(LIST(TREK_F64, 1, 2), 1, LIST(TREK_I64, 1, 3), NULL), 0.25);
    ASSERT_VALUES(trek_cov(LIST(TREK_F64, 1, 2), 1, NULL, LIST(TREK_F64, 1, 3)), 0.5);
    ASSERT_VALUES(trek_corrcoef(x), 1, -0.5, -0.5, 1);
    ASSERT_VALUES(trek_corrcoef(LIST(TREK_F64, 1, 2)), 1);
    ASSERT_VALUES(trek_histc(LIST(TREK_F32, 0, 1, 1.5, 4, 9, NAN), 4, 0, 4), 1, 2, 0, 1);
    ASSERT_VALUES(trek_histc(LIST(TREK_F64, 2, 2), 2, 0, 0), 0, 2);
    trek_var *some = LIST(TREK_F32, 0, 1, 1.5, 4, 9, NAN), *weight = LIST(TREK_F32, 1, 2, 4, 8, 16, NAN);
    ASSERT_VALUES(trek_histogram(some, 4, 0, 4, NULL, false, &other), 1, 2, 0, 1);
    ASSERT_VALUES(other, 0, 1, 2, 3, 4);
    ASSERT_VALUES(trek_histogram(some, 2, 0, 4, weight, true, NULL), 7 / 15.0f / 2, 8 / 15.0f / 2);
    ASSERT_VALUES(trek_histogram(LIST(TREK_F64, 2, 2), 2, 0, 0, NULL, false, &other), 0, 2);
    ASSERT_VALUES(other, 1.5, 2, 2.5);
    ASSERT_VALUES(trek_histogram(trek_narrow(some, 0, 0, 0), 1, 0, 0, NULL, false, &other), 0);
    ASSERT_VALUES(other, 0, 1);
    ASSERT_VALUES(trek_histogram_edges(some, LIST(TREK_F32, 0, 1.25, 9), NULL, false), 2, 3);
    ASSERT_VALUES(trek_histogram_edges(some, LIST(TREK_F32, 0, 1.25, 9), weight, true), 3 / 31.0f / 1.25f, 28 / 31.0f / 7.75f);
    ASSERT_REFUSED(trek_histogram_edges(some, LIST(TREK_F32, 1), NULL, true), TREK_ERR_ARGUMENT);
    ASSERT_VALUES(trek_mode(VALUES(trek_dims(2, 4), TREK_F32, 3, 1, 3, 1, 5, 6, 7, 6), 1, false, &other), 1, 6);
    ASSERT_VALUES(other, 3, 3);
    ASSERT_VALUES(trek_mode(VALUES(trek_dims(1, 2), TREK_I64, 4, 2), 0, true, NULL), 4, 2);
    ASSERT_VALUES(trek_renorm(VALUES(trek_dims(2, 2), TREK_F64, 3, 4, 0.5, 0), 2, 0, 1), 3 / (5 + 1e-7), 4 / (5 + 1e-7), 0.5, 0);
    ASSERT_VALUES(trek_cumulative_trapezoid(x, NULL, 2, 1), 3, 8, 10, 18);
    ASSERT_VALUES(trek_cumulative_trapezoid(LIST(TREK_I32, 1, 3), LIST(TREK_F32, 0, 2), 1, 0), 4);
    ASSERT_VALUES(trek_logit(LIST(TREK_F64, 0.5, 0.75, 2, 0), 0.25), 0, log(3), log(3), -log(3));
    ASSERT_VALUES(trek_logit(LIST(TREK_F64, 0, 1, 2), -1), -INFINITY, INFINITY, NAN);
    ASSERT_VALUES(trek_fmax(LIST(TREK_F32, 1, NAN, 3, NAN), LIST(TREK_F32, 2, 5, NAN, NAN)), 2, 5, 3, NAN);
    ASSERT_VALUES(trek_fmin(LIST(TREK_I64, 1, 4), LIST(TREK_I64, 2, 3)), 1, 3);
}

/* Few elements of a large tensor whose dimensions lie in memory in any order, with gaps or repeated */
static void taken_where_they_lie(void **state)
{
    trek_var *x = trek_var_from(trek_tensor_arange(0, 5 * 4 * 7 * 6, 1, TREK_F64, test_device()));
    x = trek_reshape(x, trek_dims(5, 4, 1, 7, 6));
    trek_var *at = VALUES(trek_dims(2, 3), TREK_I64, 0, -1, 7, 839, -840, 123), *few = LIST(TREK_I64, 5, -6);
    const trek_dims_list orders[] = { trek_dims(4, 3, 2, 1, 0), trek_dims(2, 0, 4, 3, 1), trek_dims(1, 2, 0, 3, 4) };
    for (int k = 0; k < 3; k++) {
        trek_var *turned = trek_permute(x, orders[k]), *dense = trek_contiguous(turned);
        assert_false(trek_tensor_is_contiguous(trek_var_data(turned)));
        same(trek_take(turned, at), trek_take(dense, at));
        trek_var *gap = trek_narrow(turned, 1, 0, trek_var_size(turned, 1) - (trek_var_size(turned, 1) > 1));
        same(trek_take(gap, few), trek_take(trek_contiguous(gap), few));
        trek_var *twice = trek_expand(trek_unsqueeze(turned, 0), trek_dims(2, -1, -1, -1, -1, -1));
        same(trek_take(twice, at), trek_take(trek_contiguous(twice), at));
        if (test_device().type == TREK_CPU) { /* a GPU tells it later */
            ASSERT_REFUSED(trek_take(turned, LIST(TREK_I64, 0, 840)), TREK_ERR_ARGUMENT);
            ASSERT_REFUSED(trek_take(turned, LIST(TREK_I64, 0, -841)), TREK_ERR_ARGUMENT);
        }
    }
}

static void refused(void **state)
{
    trek_var *x = VALUES(trek_dims(2, 3), TREK_F32, 1, 2, 3, 4, 5, 6), *i = LIST(TREK_I64, 1, 2), *other = x;
    ASSERT_REFUSED(trek_isin(x, i, false), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_take(x, LIST(TREK_I32, 1)), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_put(x, i, LIST(TREK_F32, 1), false), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_put(x, i, i, false), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_take_along_dim(x, i, 0), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_index_copy(x, 1, i, x), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_masked_scatter(x, VALUES(trek_dims(1), TREK_BOOL, 1), LIST(TREK_F32, 1)), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_masked_scatter(x, i, x), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_unflatten(x, 1, trek_dims(2, 2)), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_unflatten(x, 1, trek_dims(-1, -1)), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_rot90(x, 1, trek_dims(1, -1)), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_diag_embed(x, 0, 1, 1), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_diag_embed(x, INT64_MIN, 0, 1), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_block_diag(&x, 0), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_cartesian_prod(&x, 1), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_vander(x, 2, false), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_tril_indices(-1, 2, 0, test_device()), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_variance_mean(i, trek_dims_all(), false, &other), TREK_ERR_DTYPE);
    assert_null(other);
    ASSERT_REFUSED(trek_cov(x, 1, x, NULL), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_cov(x, 1, LIST(TREK_F32, 1, 2, 3), NULL), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_corrcoef(VALUES(trek_dims(1, 1, 1), TREK_F32, 1)), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_histc(x, 0, 0, 1), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_histc(x, 2, 1, 0), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_histc(i, 2, 0, 1), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_histogram(x, 0, 0, 1, NULL, false, &other), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_histogram(x, 2, 1, 0, NULL, false, NULL), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_histogram(i, 2, 0, 1, NULL, false, NULL), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_histogram(x, 2, 0, 1, LIST(TREK_F32, 1), false, NULL), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_histogram(x, 2, 0, 1, trek_cast(x, TREK_F64), false, NULL), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_histogram_edges(x, x, NULL, false), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_histogram_edges(x, LIST(TREK_F64, 0, 1), NULL, false), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_mode(trek_narrow(x, 1, 0, 0), 1, false, &other), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_renorm(x, 0, 0, 1), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_renorm(LIST(TREK_F32, 1), 2, 0, 1), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_logcumsumexp(i, 0), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_cov(NULL, 1, NULL, NULL), TREK_ERR_ARGUMENT);
}

/* One index for whole rows, in order: the last of equals stays; a number outside is named with its place. */
static void one_index_for_rows(void **state)
{
    const double rows[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 };
    trek_var *x = trek_var_from(test_values((double[12]){ 0 }, trek_dims(4, 3), TREK_F32));
    trek_var *source = trek_var_from(test_values(rows, trek_dims(4, 3), TREK_F32));
    trek_var *index = trek_var_from(test_values((double[]){ 3, 0, 3, 1 }, trek_dims(4), TREK_I64));
    double *got = test_read(trek_var_data(trek_index_copy(x, 0, index, source)));
    const double wanted[] = { 4, 5, 6, 10, 11, 12, 0, 0, 0, 7, 8, 9 };
    for (int k = 0; k < 12; k++)
        assert_true(got[k] == wanted[k]);
    free(got);
    got = test_read(trek_var_data(trek_scatter_reduce(x, 0, trek_expand(trek_reshape(index, trek_dims(4, 1)), trek_dims(4, 3)),
                                                      source, TREK_REDUCTION_MAX, true)));
    for (int k = 0; k < 12; k++)
        assert_true(got[k] == wanted[k]); /* here the last is also the largest */
    free(got);
    if (!test_on_cpu()) /* a GPU tells of it later */
        return;
    trek_var *outside = trek_var_from(test_values((double[]){ 3, 0, 4, 1 }, trek_dims(4), TREK_I64));
    assert_null(trek_index_copy(x, 0, outside, source));
    assert_non_null(strstr(trek_error(), "index 4 at position 6"));
    trek_error_clear();
}

/* Blocks of drawn shapes and layouts in every dtype, against a loop over elements; with and without a gradient, which are two
 * ways. */
static void blocks_on_a_diagonal(void **state)
{
    static const trek_dtype dtypes[] = { TREK_F32, TREK_F64, TREK_BF16, TREK_F16, TREK_I64, TREK_I32, TREK_U8, TREK_BOOL };
    for (uint32_t round = 0; round < 64; round++) {
        trek_scope inner = trek_scope_begin();
        const trek_dtype dtype = dtypes[round % 8];
        const int count = 1 + (int)(round / 8 % 4);
        const bool watched = trek_dtype_is_float(dtype) && round % 16 >= 8;
        trek_var *blocks[4];
        double wanted[24 * 96] = { 0 };
        int64_t sizes[4][2], rows = 0, cols = 0, row = 0, col = 0;
        for (int k = 0; k < count; k++) {
            const int64_t m = (round + 3 * (uint32_t)k) % 5, n = (2 * round + 5 * (uint32_t)k) % 7;
            const int form = (int)(round / 8 + (uint32_t)k) % 4;
            trek_var *drawn = trek_floor(trek_mul_scalar(random_values(round + (uint32_t)k, trek_dims(n, m)), 9));
            drawn = trek_cast(trek_abs(drawn), dtype);
            blocks[k] = form == 0 ? trek_transpose(drawn, 0, 1) : form == 1 ? drawn
                      : form == 2 ? trek_reshape(drawn, trek_dims(-1)) : trek_reshape(trek_narrow(trek_cat((trek_var *[]){
                            trek_reshape(drawn, trek_dims(-1)), trek_ones_like(trek_reshape(drawn, trek_dims(-1))),
                            trek_cast(LIST(TREK_F32, 1), dtype) }, 3, 0), 0, 0, 1), trek_dims_none());
            blocks[k] = watched ? trek_clone(blocks[k]) : blocks[k];
            if (watched)
                assert_int_equal(trek_var_set_requires_grad(blocks[k], true), TREK_OK);
            sizes[k][0] = trek_var_ndim(blocks[k]) < 2 ? 1 : trek_var_size(blocks[k], 0);
            sizes[k][1] = trek_var_ndim(blocks[k]) < 1 ? 1 : trek_var_size(blocks[k], -1);
            rows += sizes[k][0];
            cols += sizes[k][1];
        }
        for (int k = 0; k < count; k++, row += sizes[k - 1][0], col += sizes[k - 1][1]) {
            double *block = test_read(trek_var_data(blocks[k]));
            for (int64_t i = 0; i < sizes[k][0] * sizes[k][1]; i++)
                wanted[(row + i / sizes[k][1]) * cols + col + i % sizes[k][1]] = block[i];
            free(block);
        }
        trek_var *whole = trek_block_diag(blocks, count);
        assert_true(trek_var_size(whole, 0) == rows && trek_var_size(whole, 1) == cols && trek_var_dtype(whole) == dtype);
        double *have = test_read(trek_var_data(whole));
        for (int64_t i = 0; i < rows * cols; i++)
            assert_true(have[i] == wanted[i]);
        free(have);
        if (watched) {
            trek_var *weights = trek_cast(random_values(99, trek_dims(rows, cols)), dtype), *slopes[4];
            trek_var *total = trek_sum(trek_mul(whole, weights), trek_dims_all(), false);
            assert_int_equal(trek_grad(&total, 1, blocks, count, NULL, NULL, slopes), TREK_OK);
            row = col = 0;
            for (int k = 0; k < count; k++, row += sizes[k - 1][0], col += sizes[k - 1][1]) {
                double *got = test_read(trek_var_data(slopes[k])), *all = test_read(trek_var_data(weights));
                for (int64_t i = 0; i < sizes[k][0] * sizes[k][1]; i++)
                    assert_true(got[i] == all[(row + i / sizes[k][1]) * cols + col + i % sizes[k][1]]);
                free(got);
                free(all);
            }
        }
        assert_int_equal(trek_scope_end(inner), TREK_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(places), TEST(taken_where_they_lie), TEST(from_the_end), TEST(sums_of_16_bits), TEST(made_of_others),
        TEST(statistics), TEST(one_index_for_rows), TEST(refused), TEST(blocks_on_a_diagonal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
