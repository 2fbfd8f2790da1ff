/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups with options, and bags: numbers told by plain loops, derivatives by differences, rows that are written, what is
 * refused. */
#include "autograd/backward.h"
#include "autograd/gradcheck.h"
#include "autograd/leaf.h"
#include "tensor/rank_context.h"
#include "tensor/shapes.h"
#include "tensor/tensor.h"
#include "tests/autograd/values.h"
#include "tests/support/support.h"

#define INTEGERS(...)                                                                                                            \
    integers(TREK_I64, (int64_t)(sizeof(int64_t[]){ __VA_ARGS__ } / sizeof(int64_t)), (int64_t[]){ __VA_ARGS__ })

static trek_var *integers(trek_dtype dtype, int64_t n, const int64_t *values)
{
    return trek_cast(trek_var_from(trek_tensor_from_data(values, trek_dims(n), TREK_I64, test_device())), dtype);
}

static void near(double value, double wanted)
{
    if (!(fabs(value - wanted) <= 1e-9 * (1 + fabs(wanted))))
        fail_msg("%.17g is not %.17g", value, wanted);
}

static trek_var *reals(trek_shape shape, const double *values)
{
    return trek_var_from(trek_tensor_from_data(values, shape, TREK_F64, test_device()));
}

/* --- look-ups ------------------------------------------------------------------------------------------------ */

/* Rows that are used and too long come to the norm, in the weight itself; the others stay. */
static void test_limited(void **state)
{
    static const double rows[] = { 3, 4, 0.3, 0.4, 6, 8, -1, 0 };
    trek_var *w = reals(trek_dims(4, 2), rows), *index = INTEGERS(0, 1, 3, 0);
    trek_var_set_requires_grad(w, true);
    trek_var *y = trek_embedding_with(index, w, &(trek_lookup_opts){ .max_norm = 1 });
    const double s = 1 / (5 + 1e-7), wanted[] = { 3 * s, 4 * s, 0.3, 0.4, 6, 8, -1, 0 };
    for (int64_t k = 0; k < 8; k++)
        near(at(w, k), wanted[k]);
    near(at(y, 6), 3 * s);
    trek_backward(trek_sum(y, trek_dims_all(), false)); /* nothing of the scaling is in the gradient */
    near(at(trek_var_grad(w), 0), 2);
    near(at(trek_var_grad(w), 4), 0);
    trek_var *v = reals(trek_dims(4, 2), rows), *empty = trek_narrow(index, 0, 0, 0);
    trek_embedding_bag(trek_narrow(trek_reshape(index, trek_dims(2, 2)), 0, 1, 1), v,
                       &(trek_bag_opts){ .max_norm = 3.5, .norm_type = 1 });
    near(at(v, 0), 3 * 3.5 / (7 + 1e-7));
    near(at(v, 4), 6);
    near(at(v, 6), -1);
    trek_embedding_with(INTEGERS(3), v, &(trek_lookup_opts){ .max_norm = TREK_ZERO });
    near(at(v, 6), 0);
    assert_non_null(trek_embedding_with(empty, v, &(trek_lookup_opts){ .max_norm = 1 }));
    near(at(v, 5), 8);
    trek_var *half = trek_cast(reals(trek_dims(4, 2), rows), TREK_BF16);
    trek_embedding_with(index, half, &(trek_lookup_opts){ .max_norm = 1 });
    assert_true(fabs(at(half, 0) - 0.6) < 0.003 && at(half, 4) == 6);
    trek_var *other = trek_transpose(trek_clone(trek_transpose(reals(trek_dims(4, 2), rows), 0, 1)), 0, 1); /* any strides */
    trek_embedding_with(index, other, &(trek_lookup_opts){ .max_norm = 1 });
    near(at(other, 1), 4 * s);
    near(at(other, 5), 8);
}

static void test_not_written(void **state)
{
    trek_var *w = numbers(1, trek_dims(4, 2), false), *before = trek_clone(w);
    trek_lookup_opts limit = { .max_norm = 0.01 };
    trek_lookup_opts wrong[] = { { .max_norm = -2 }, { .max_norm = NAN }, { .max_norm = 1, .norm_type = NAN },
                                 { .padding_idx = 4 }, { .padding_idx = -5 } };
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
        REFUSED(trek_embedding_with(INTEGERS(0, 1), w, &wrong[k]), TREK_ERR_ARGUMENT, "embedding: ");
    }
    if (test_device().type == TREK_CPU) { /* a GPU tells when it is synchronised, and has written the others by then */
        REFUSED(trek_embedding_with(INTEGERS(0, 7), w, &limit), TREK_ERR_ARGUMENT,
                "embedding: index 7 at position 1 is outside [0, 4)");
    }
    trek_var *wide = trek_expand(trek_narrow(w, 0, 0, 1), trek_dims(4, 2));
    REFUSED(trek_embedding_with(INTEGERS(0, 1), wide, &limit), TREK_ERR_ARGUMENT, "embedding");
    int world = trek_rank_here.world;
    trek_rank_here.world = 2;
    REFUSED(trek_embedding_with(INTEGERS(0, 1), w, &limit), TREK_ERR_UNSUPPORTED,
            "embedding: max_norm: set, but it writes to the weight");
    trek_rank_here.world = world;
    same(w, before);
    assert_null(trek_embedding_with(INTEGERS(0), NULL, NULL));
    trek_error_clear();
}

/* Twice, so that the second pass adds to a gradient that is there. */
static void test_frequencies(void **state)
{
    trek_var *w = numbers(1, trek_dims(4, 3), true), *g = numbers(2, trek_dims(5, 3), false), *index = INTEGERS(2, 0, 2, 2, 3);
    trek_lookup_opts opts = { .scale_grad_by_freq = true, .padding_idx = 3 };
    for (int pass = 1; pass <= 2; pass++) {
        trek_backward_with(trek_embedding_with(index, w, &opts), g, NULL);
        for (int64_t j = 0; j < 3; j++) {
            near(at(trek_var_grad(w), j), pass * at(g, 3 + j));
            near(at(trek_var_grad(w), 3 + j), 0);
            near(at(trek_var_grad(w), 6 + j), pass * (at(g, j) + at(g, 6 + j) + at(g, 9 + j)) / 3);
            near(at(trek_var_grad(w), 9 + j), 0);
        }
    }
    trek_var_zero_grad(w);
    trek_bag_opts bag = { .offsets = INTEGERS(0, 2, 2), .scale_grad_by_freq = true, .mode = TREK_REDUCTION_MEAN };
    trek_backward_with(trek_embedding_bag(index, w, &bag), trek_narrow(g, 0, 0, 3), NULL);
    for (int64_t j = 0; j < 3; j++) /* row 2: half of bag 0, a third twice of bag 2, by three; row 0: half of bag 0 */
    {
        near(at(trek_var_grad(w), 6 + j), (at(g, j) / 2 + 2 * at(g, 6 + j) / 3) / 3);
        near(at(trek_var_grad(w), j), at(g, j) / 2);
    }
}

/* --- bags ---------------------------------------------------------------------------------------------------- */

/* Element j of bag [begin, end), the padding passed over. */
static double of_bag(const trek_var *w, const trek_var *index, const trek_var *weights, int64_t begin, int64_t end, int64_t j,
                     trek_reduction mode, int64_t padding)
{
    int64_t d = trek_var_size(w, 1);
    double sum = 0, count = 0, most = -INFINITY;
    for (int64_t k = begin; k < end; k++) {
        int64_t row = (int64_t)at(index, k);
        if (row == padding)
            continue;
        double x = at(w, row * d + j);
        sum += x * (weights ? at(weights, k) : 1);
        most = x > most ? x : most;
        count++;
    }
    return mode == TREK_REDUCTION_MAX ? (count > 0 ? most : 0) : mode == TREK_REDUCTION_MEAN && count > 0 ? sum / count : sum;
}

static void check_bags(trek_var *y, const trek_var *w, const trek_var *index, const trek_var *weights, const int64_t *ends,
                       int64_t bags, trek_reduction mode, int64_t padding)
{
    assert_non_null(y);
    assert_true(trek_shape_equal(trek_var_shape(y), trek_dims(bags, trek_var_size(w, 1))));
    for (int64_t k = 0; k < trek_var_numel(y); k++) {
        int64_t b = k / trek_var_size(w, 1);
        near(at(y, k), of_bag(w, index, weights, ends[b], ends[b + 1], k % trek_var_size(w, 1), mode, padding));
    }
}

static void test_bags(void **state)
{
    trek_var *w = numbers(1, trek_dims(5, 3), false), *index = INTEGERS(4, 0, 2, 2, 1, 3, 2, 0),
        *p = numbers(2, trek_dims(8), false);
    const int64_t ends[] = { 0, 3, 3, 5, 8 }, lines[] = { 0, 4, 8 }, cut[] = { 0, 3, 3, 5 };
    trek_var *offsets = INTEGERS(0, 3, 3, 5);
    for (trek_reduction mode = TREK_REDUCTION_MEAN; mode <= TREK_REDUCTION_MAX; mode++) {
        trek_bag_opts opts = { .offsets = offsets, .mode = mode };
        check_bags(trek_embedding_bag(index, w, &opts), w, index, NULL, ends, 4, mode, -1);
        opts.offsets = trek_cast(offsets, TREK_I32);
        opts.padding_idx = -3;
        check_bags(trek_embedding_bag(index, w, &opts), w, index, NULL, ends, 4, mode, 2);
        opts.include_last_offset = true; /* the last three are in none */
        check_bags(trek_embedding_bag(index, w, &opts), w, index, NULL, cut, 3, mode, 2);
        trek_bag_opts plain = { .mode = mode, .padding_idx = TREK_ZERO };
        check_bags(trek_embedding_bag(trek_reshape(index, trek_dims(2, 4)), w, &plain), w, index, NULL, lines, 2, mode, 0);
        trek_var *none = trek_embedding_bag(trek_narrow(trek_reshape(index, trek_dims(2, 4)), 1, 0, 0), w, &plain);
        assert_int_equal(trek_var_numel(none), 6);
        near(at(none, 4), 0);
        assert_int_equal(trek_var_numel(trek_embedding_bag(trek_narrow(trek_reshape(index, trek_dims(2, 4)), 0, 0, 0), w,
                                                           &plain)), 0);
        opts = (trek_bag_opts){ .mode = mode, .offsets = trek_narrow(offsets, 0, 0, 0) };
        assert_int_equal(trek_var_numel(trek_embedding_bag(trek_narrow(index, 0, 0, 0), w, &opts)), 0);
    }
    trek_bag_opts weighted = { .offsets = offsets, .mode = TREK_REDUCTION_SUM, .per_sample_weights = p, .padding_idx = 4 };
    check_bags(trek_embedding_bag(index, w, &weighted), w, index, p, ends, 4, TREK_REDUCTION_SUM, 4);
    trek_var *turned = trek_transpose(trek_clone(trek_transpose(w, 0, 1)), 0, 1), *back = trek_flip(index, trek_dims(0));
    weighted.per_sample_weights = trek_flip(trek_flip(p, trek_dims(0)), trek_dims(0));
    check_bags(trek_embedding_bag(trek_flip(back, trek_dims(0)), turned, &weighted), w, index, p, ends, 4, TREK_REDUCTION_SUM, 4);
}

/* Sums of 16-bit rows are f64's, rounded. */
static void test_half_bags(void **state)
{
    static const trek_dtype dtypes[] = { TREK_BF16, TREK_F16 };
    for (int k = 0; k < 2; k++)
        for (trek_reduction mode = TREK_REDUCTION_MEAN; mode <= TREK_REDUCTION_MAX; mode++) {
            trek_var *w = trek_cast(numbers(1, trek_dims(5, 600), false), dtypes[k]);
            trek_var *index = INTEGERS(4, 0, 2, 2, 1, 3, 2, 0, 1, 4);
            trek_bag_opts opts = { .offsets = INTEGERS(0, 9), .mode = mode };
            if (mode == TREK_REDUCTION_SUM)
                opts.per_sample_weights = trek_cast(numbers(2, trek_dims(10), false), dtypes[k]);
            trek_var *y = trek_embedding_bag(index, w, &opts);
            if (mode == TREK_REDUCTION_SUM)
                opts.per_sample_weights = trek_cast(opts.per_sample_weights, TREK_F64);
            trek_var *want = trek_cast(trek_embedding_bag(index, trek_cast(w, TREK_F64), &opts), TREK_F32);
            assert_int_equal(trek_var_dtype(y), dtypes[k]);
            trek_var *away = trek_abs(trek_sub(trek_cast(y, TREK_F32), want));
            assert_true(trek_var_item(trek_max(away, trek_dims_all(), false)) < (k == 0 ? 0x1p-7 : 0x1p-10));
        }
}

typedef struct bags {
    trek_var *index;
    trek_bag_opts opts;
} bags;

static trek_var *bags_of(trek_var *const *in, int n, void *arg)
{
    bags *b = arg;
    trek_bag_opts opts = b->opts;
    opts.per_sample_weights = n > 1 ? in[1] : NULL;
    return trek_embedding_bag(b->index, in[0], &opts);
}

static void test_derivatives(void **state)
{
    trek_var *index = INTEGERS(4, 0, 2, 2, 1, 3, 2, 0), *in[2];
    in[0] = trek_var_retain(numbers(1, trek_dims(5, 3), true));
    in[1] = trek_var_retain(numbers(2, trek_dims(8), true));
    trek_gradcheck_opts second = { .second = true };
    for (int k = 0; k < 12; k++) {
        bags b = { index, { .mode = (trek_reduction)(k % 3), .padding_idx = k / 3 % 2 ? 2 : 0,
                            .offsets = k < 6 ? INTEGERS(0, 3, 3, 6) : NULL, .include_last_offset = k % 6 == 1 } };
        b.index = k < 6 ? index : trek_reshape(index, trek_dims(2, 4));
        if (trek_gradcheck(bags_of, in, 1, &b, &second) != TREK_OK)
            fail_msg("case %d: %s", k, trek_error());
        if (b.opts.mode != TREK_REDUCTION_SUM || k >= 6)
            continue;
        if (trek_gradcheck(bags_of, in, 2, &b, &second) != TREK_OK)
            fail_msg("weighted, case %d: %s", k, trek_error());
    }
    trek_var_release(in[0]);
    trek_var_release(in[1]);
    /* of equal maxima the first has the gradient, of an empty bag nobody */
    trek_var *w = reals(trek_dims(3, 1), (double[]){ 2, 5, 5 });
    trek_var_set_requires_grad(w, true);
    trek_var *y = trek_embedding_bag(INTEGERS(0, 2, 1), w,
                                     &(trek_bag_opts){ .mode = TREK_REDUCTION_MAX, .offsets = INTEGERS(0, 3) });
    trek_backward(trek_sum(y, trek_dims_all(), false));
    near(at(trek_var_grad(w), 2), 1);
    near(at(trek_var_grad(w), 1), 0);
}

static void test_refused(void **state)
{
    trek_var *w = numbers(1, trek_dims(5, 3), false), *index = INTEGERS(4, 0, 2, 2), *p = numbers(2, trek_dims(4), false);
    trek_var *offsets = INTEGERS(0, 3), *square = trek_reshape(index, trek_dims(2, 2));
    const struct {
        trek_var *index;
        trek_bag_opts opts;
        trek_status status;
        const char *text;
    } wrong[] = {
        { index, { 0 }, TREK_ERR_ARGUMENT, "embedding_bag: offsets: NULL" },
        { square, { .offsets = offsets }, TREK_ERR_ARGUMENT, "embedding_bag: offsets: given" },
        { trek_reshape(index, trek_dims(1, 2, 2)), { 0 }, TREK_ERR_SHAPE, "embedding_bag: indices: " },
        { index, { .offsets = trek_cast(offsets, TREK_F32) }, TREK_ERR_DTYPE, "embedding_bag: offsets: dtype " },
        { index, { .offsets = trek_reshape(offsets, trek_dims(1, 2)) }, TREK_ERR_SHAPE, "embedding_bag: offsets: " },
        { index, { .offsets = trek_narrow(offsets, 0, 0, 0), .include_last_offset = true }, TREK_ERR_SHAPE,
          "embedding_bag: offsets" },
        { index, { .offsets = offsets, .per_sample_weights = p }, TREK_ERR_ARGUMENT,
          "embedding_bag: per_sample_weights: given" },
        { index, { .offsets = offsets, .mode = TREK_REDUCTION_SUM, .per_sample_weights = trek_narrow(p, 0, 0, 3) },
          TREK_ERR_SHAPE,
          "embedding_bag: per_sample_weights: [3]; must have the shape of the indices, [4]" },
        { index, { .offsets = offsets, .mode = TREK_REDUCTION_SUM, .per_sample_weights = trek_cast(p, TREK_F32) }, TREK_ERR_DTYPE,
          "embedding_bag: inputs: dtypes " },
        { index, { .offsets = offsets, .mode = TREK_REDUCTION_MAX, .scale_grad_by_freq = true }, TREK_ERR_ARGUMENT,
          "embedding_bag: scale" },
        { index, { .offsets = offsets, .mode = (trek_reduction)7 }, TREK_ERR_ARGUMENT, "embedding_bag: mode: 7" },
        { index, { .offsets = offsets, .mode = TREK_REDUCTION_NONE }, TREK_ERR_ARGUMENT,
          "embedding_bag: mode: 6; must be TREK_REDUCTION_MEAN, _SUM or _MAX" },
        { index, { .offsets = offsets, .padding_idx = 5 }, TREK_ERR_ARGUMENT,
          "embedding_bag: padding_idx: 5; must be inside 5 rows" },
        { p, { .offsets = offsets }, TREK_ERR_DTYPE, "embedding_bag: indices: dtype " },
    };
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
        assert_null(trek_embedding_bag(wrong[k].index, w, &wrong[k].opts));
        expect_error(wrong[k].status, wrong[k].text);
    }
    REFUSED(trek_embedding_bag(square, trek_cast(w, TREK_I64), NULL), TREK_ERR_DTYPE, "embedding_bag");
    if (test_device().type != TREK_CPU)
        return;
    const trek_bag_opts data[] = { { .offsets = INTEGERS(1, 3) }, { .offsets = INTEGERS(0, 3, 2) }, { .offsets = INTEGERS(0, 5) },
                                   { .offsets = INTEGERS(0, -1) } };
    for (size_t k = 0; k < sizeof data / sizeof data[0]; k++) {
        REFUSED(trek_embedding_bag(index, w, &data[k]), TREK_ERR_ARGUMENT, "embedding_bag: offset ");
    }
    REFUSED(trek_embedding_bag(INTEGERS(0, 5), w, &(trek_bag_opts){ .offsets = INTEGERS(0) }), TREK_ERR_ARGUMENT,
            "embedding_bag: index 5 at position 1 is outside [0, 5)");
}

int main(void)
{
    const struct CMUnitTest tests[] = { TEST(test_limited), TEST(test_not_written), TEST(test_frequencies), TEST(test_bags),
                                        TEST(test_half_bags), TEST(test_derivatives), TEST(test_refused) };
    return cmocka_run_group_tests_name("embedding", tests, NULL, NULL);
}
