/* SPDX-License-Identifier: Apache-2.0 */
/* Positions: rotary, sinusoidal, biases of scores; and bilinear forms and unflatten. Numbers told by plain loops, derivatives by
 * differences, what is refused. */
#include "autograd/backward.h"
#include "autograd/gradcheck.h"
#include "tensor/creation.h"
#include "tensor/shapes.h"
#include "tensor/tensor.h"
#include "tests/autograd/values.h"
#include "tests/support/support.h"

static void near(double value, double wanted)
{
    if (!(fabs(value - wanted) <= 1e-9 * (1 + fabs(wanted))))
        fail_msg("%.17g is not %.17g", value, wanted);
}

static trek_var *count_to(int64_t n) { return trek_var_from(trek_tensor_arange(0, (double)n, 1, TREK_I64, test_device())); }

/* --- rotary ---------------------------------------------------------------------------------------------------- */

/* What element j of a row of d at a position becomes. */
static double turned(const trek_var *x, int64_t row, int64_t d, int64_t j, double position, int64_t dim, double base,
                     bool neighbours)
{
    if (j >= dim)
        return at(x, row * d + j);
    int64_t pair = neighbours ? j / 2 : j % (dim / 2), first = neighbours ? 2 * pair : pair,
        second = neighbours ? first + 1 : pair + dim / 2;
    double angle = position * pow(base, -2.0 * (double)pair / (double)dim), a = at(x, row * d + first),
        b = at(x, row * d + second);
    return j == first ? a * cos(angle) - b * sin(angle) : b * cos(angle) + a * sin(angle);
}

static void test_rotary(void **state)
{
    trek_var *x = numbers(1, trek_dims(2, 3, 5, 6), false);
    for (int neighbours = 0; neighbours < 2; neighbours++)
        for (int64_t dim = 2; dim <= 6; dim += 2) {
            trek_rotary_opts opts = { .dim = dim, .interleaved = neighbours, .offset = 3, .base = 100 };
            trek_var *y = trek_rotary(x, &opts);
            for (int64_t k = 0; k < 180; k++)
                near(at(y, k), turned(x, k / 6, 6, k % 6, (double)(k / 6 % 5 + 3), dim, 100, neighbours));
            opts.positions = trek_add_scalar(count_to(5), 3);
            opts.offset = 0;
            same(trek_rotary(x, &opts), y);
            trek_var *table = trek_rotary_table(opts.positions, dim, 100, TREK_F64);
            same(trek_rotary(x, &(trek_rotary_opts){ .table = table, .interleaved = neighbours }), y);
            /* [N, T, H, D] as it comes from a projection */
            trek_var *lines = trek_clone(trek_transpose(x, 1, 2));
            same(trek_rotary(trek_transpose(lines, 1, 2), &opts), y);
            trek_var *backwards = trek_flip(trek_clone(trek_flip(x, trek_dims(3, 2))), trek_dims(3, 2));
            same(trek_rotary(backwards, &opts), y);
        }
    /* positions of their own for each sample, numbers between them too */
    trek_var *own = trek_reshape(trek_div_scalar(trek_cast(count_to(10), TREK_F64), 2), trek_dims(2, 1, 5));
    trek_var *y = trek_rotary(x, &(trek_rotary_opts){ .positions = own });
    for (int64_t k = 0; k < 180; k++)
        near(at(y, k), turned(x, k / 6, 6, k % 6, (double)(k / 90 * 5 + k / 6 % 5) / 2, 6, 10000, false));
    same(trek_rotary(trek_narrow(trek_select(trek_select(x, 0, 0), 0, 0), 0, 1, 1), &(trek_rotary_opts){ .offset = 1 }),
         trek_narrow(trek_select(trek_select(trek_rotary(x, NULL), 0, 0), 0, 0), 0, 1, 1));
    assert_int_equal(trek_var_numel(trek_rotary(trek_narrow(x, 2, 0, 0), NULL)), 0);
    same(trek_rotary(trek_select(trek_select(trek_select(x, 0, 0), 0, 0), 0, 0), NULL),
         trek_select(trek_select(trek_select(x, 0, 0), 0, 0), 0, 0));
}

/* Products of q and k depend on how far apart they are. */
static void test_distances(void **state)
{
    trek_var *q = numbers(1, trek_dims(8), false), *k = numbers(2, trek_dims(8), false);
    for (int neighbours = 0; neighbours < 2; neighbours++) {
        double of[2];
        for (int far = 0; far < 2; far++) {
            trek_rotary_opts a = { .offset = 4 + 100 * far, .interleaved = neighbours },
                b = { .offset = 9 + 100 * far, .interleaved = neighbours };
            of[far] = trek_var_item(trek_dot(trek_rotary(q, &a), trek_rotary(k, &b)));
        }
        near(of[0], of[1]);
    }
}

/* 16-bit and f32 inputs of every layout, long rows too, are f64's, rounded. */
static void test_dtypes(void **state)
{
    static const struct {
        trek_dtype dtype;
        double step;
    } of[] = { { TREK_F32, 0x1p-22 }, { TREK_BF16, 0x1p-7 }, { TREK_F16, 0x1p-10 } };
    for (int k = 0; k < 3; k++)
        for (int way = 0; way < 4; way++) {
            trek_var *x = trek_cast(numbers(3, trek_dims(3, 7, 1100), false), of[k].dtype);
            if (way & 2)
                x = trek_transpose(trek_clone(trek_transpose(x, 0, 2)), 0, 2);
            trek_rotary_opts opts = { .interleaved = way & 1, .dim = 1060 };
            trek_var *y = trek_rotary(x, &opts), *want = trek_cast(trek_rotary(trek_cast(x, TREK_F64), &opts), TREK_F32);
            assert_int_equal(trek_var_dtype(y), of[k].dtype);
            trek_var *away = trek_abs(trek_sub(trek_cast(y, TREK_F32), want));
            assert_true(trek_var_item(trek_max(away, trek_dims_all(), false)) <= of[k].step);
        }
}

static trek_var *rotary_of(trek_var *const *in, int n, void *arg)
{
    return trek_rotary(trek_transpose(in[0], 0, 1), arg);
}

static void test_rotary_derivatives(void **state)
{
    trek_var *in[1] = { trek_var_retain(numbers(1, trek_dims(4, 2, 6), true)) };
    for (int k = 0; k < 4; k++) {
        trek_rotary_opts opts = { .interleaved = k & 1, .dim = k & 2 ? 4 : 0, .offset = 2 };
        if (trek_gradcheck(rotary_of, in, 1, &opts, &(trek_gradcheck_opts){ .second = true }) != TREK_OK)
            fail_msg("case %d: %s", k, trek_error());
    }
    trek_var_release(in[0]);
}

static void test_rotary_refused(void **state)
{
    trek_var *x = numbers(1, trek_dims(2, 5, 6), false), *odd = trek_narrow(x, 2, 0, 5);
    const struct {
        trek_var *x;
        trek_rotary_opts opts;
        trek_status status;
        const char *text;
    } wrong[] = {
        { odd, { 0 }, TREK_ERR_SHAPE, "rotary: .dim: 5, for x [2, 5, 5]; must be even" },
        { x, { .dim = 8 }, TREK_ERR_ARGUMENT, "rotary: .dim: 8" },
        { x, { .dim = 3 }, TREK_ERR_ARGUMENT, "rotary: .dim: 3" },
        { x, { .dim = -2 }, TREK_ERR_ARGUMENT, "rotary: .dim: -2" },
        { x, { .base = -1 }, TREK_ERR_ARGUMENT, "rotary_table: base: -1" },
        { x, { .positions = count_to(4) }, TREK_ERR_SHAPE, "rotary: " },
        { x, { .positions = trek_isnan(x) }, TREK_ERR_DTYPE, "rotary_table: positions: " },
        { x, { .table = count_to(6) }, TREK_ERR_DTYPE, "rotary: table: dtype i64" },
        { x, { .table = odd }, TREK_ERR_SHAPE, "rotary: table: " },
        { trek_cast(x, TREK_I32), { 0 }, TREK_ERR_DTYPE, "rotary: x: dtype i32" },
        { trek_sum(x, trek_dims_all(), false), { 0 }, TREK_ERR_SHAPE, "rotary: x: it is a scalar" },
    };
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
        assert_null(trek_rotary(wrong[k].x, &wrong[k].opts));
        expect_error(wrong[k].status, wrong[k].text);
    }
    REFUSED(trek_rotary_table(count_to(4), 3, 10, TREK_F32), TREK_ERR_ARGUMENT, "rotary_table: dim: 3");
    REFUSED(trek_rotary_table(count_to(4), 4, 10, TREK_BF16), TREK_ERR_DTYPE, "rotary_table");
    assert_null(trek_rotary_table(NULL, 4, 10, TREK_F32));
    trek_error_clear();
}

/* --- waves and biases ---------------------------------------------------------------------------------------------- */

static void test_waves(void **state)
{
    for (int64_t dim = 1; dim <= 5; dim++) {
        trek_var *y = trek_sinusoidal_positions(trek_reshape(count_to(6), trek_dims(2, 3)), dim, 50, TREK_F64);
        assert_true(trek_shape_equal(trek_var_shape(y), trek_dims(2, 3, dim)));
        for (int64_t k = 0; k < 6 * dim; k++) {
            double angle = (double)(k / dim) * pow(50, -2.0 * (double)(k % dim / 2) / (double)dim);
            near(at(y, k), k % dim % 2 ? cos(angle) : sin(angle));
        }
    }
    assert_int_equal(trek_var_dtype(trek_sinusoidal_positions(count_to(3), 4, 10000, TREK_BF16)), TREK_BF16);
    REFUSED(trek_sinusoidal_positions(count_to(3), 0, 10000, TREK_F32), TREK_ERR_ARGUMENT, "sinusoidal_positions: dim: 0");
    REFUSED(trek_sinusoidal_positions(count_to(3), 4, 0, TREK_F32), TREK_ERR_ARGUMENT, "sinusoidal_positions: base: 0");
    REFUSED(trek_sinusoidal_positions(count_to(3), 4, 10, TREK_I64), TREK_ERR_DTYPE, "sinusoidal_positions");
}

static void test_alibi(void **state)
{
    trek_var *y = trek_alibi(8, 3, 5, TREK_F64, test_device());
    assert_true(trek_shape_equal(trek_var_shape(y), trek_dims(8, 3, 5)));
    for (int64_t k = 0; k < 120; k++)
        near(at(y, k), -pow(2, -(double)(k / 15 + 1)) * fabs((double)(k % 5) - (double)(k / 5 % 3 + 2)));
    y = trek_alibi(12, 1, 2, TREK_F64, test_device()); /* get_slopes(12) of the paper's code */
    for (int h = 0; h < 12; h++)
        near(at(y, 2 * h), -pow(2, h < 8 ? -(h + 1) : -(h - 8) - 0.5));
    const int64_t wrong[][3] = { { 0, 1, 1 }, { 1, 0, 1 }, { 1, 1, -1 } };
    for (int k = 0; k < 3; k++) {
        REFUSED(trek_alibi(wrong[k][0], wrong[k][1], wrong[k][2], TREK_F32, test_device()), TREK_ERR_ARGUMENT, "alibi: ");
    }
    REFUSED(trek_alibi(1, 1, 1, TREK_I32, test_device()), TREK_ERR_DTYPE, "alibi");
}

/* What transformers' T5 has for them. */
static void test_buckets(void **state)
{
    static const int32_t distances[] = { -200, -128, -64, -32, -16, -15, -8, -7, -1, 0, 1, 7, 8, 16, 31, 32, 64, 127, 500 };
    static const int both[] = { 15, 15, 14, 12, 10, 9, 8, 7, 1, 0, 17, 23, 24, 26, 27, 28, 30, 31, 31 };
    static const int behind[] = { 31, 31, 26, 21, 16, 15, 8, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };
    trek_var *x = trek_var_from(trek_tensor_from_data(distances, trek_dims(19), TREK_I32, test_device()));
    trek_var *a = trek_relative_position_bucket(x, true, 32, 128), *b = trek_relative_position_bucket(x, false, 32, 128);
    assert_int_equal(trek_var_dtype(a), TREK_I64);
    for (int k = 0; k < 19; k++) {
        assert_int_equal((int)at(a, k), both[k]);
        assert_int_equal((int)at(b, k), behind[k]);
    }
    assert_int_equal(trek_var_numel(trek_relative_position_bucket(trek_narrow(x, 0, 0, 0), true, 32, 128)), 0);
    REFUSED(trek_relative_position_bucket(trek_cast(x, TREK_F32), true, 32, 128), TREK_ERR_DTYPE, "relative_position_bucket");
    REFUSED(trek_relative_position_bucket(x, true, 3, 128), TREK_ERR_ARGUMENT,
            "relative_position_bucket: buckets: 3, max_distance: 128; must be at least 4");
    REFUSED(trek_relative_position_bucket(x, true, 32, 8), TREK_ERR_ARGUMENT, "relative_position_bucket");
}

/* Attention with a table of biases, as T5 has it; arg: a bias of distances beside it, or NULL. */
static trek_var *biased(trek_var *const *in, int n, void *arg)
{
    trek_var *places = count_to(4), *relative = trek_sub(places, trek_unsqueeze(places, 1));
    trek_var *bias = trek_permute(trek_embedding(trek_relative_position_bucket(relative, true, 8, 20), in[3], -1),
                                  trek_dims(2, 0, 1));
    bias = arg ? trek_add(bias, arg) : bias;
    return trek_attention(in[0], in[1], in[2], &(trek_attention_opts){ .mask = bias, .scale = 1, .causal = arg != NULL });
}

static void test_learned_bias(void **state)
{
    const trek_shape of[] = { trek_dims(2, 2, 4, 2), trek_dims(2, 2, 4, 2), trek_dims(2, 2, 4, 2), trek_dims(8, 2) };
    trek_var *in[4];
    for (int k = 0; k < 4; k++)
        in[k] = trek_var_retain(numbers((uint32_t)k + 1, of[k], true));
    trek_gradcheck_opts second = { .second = true };
    trek_var *distances = trek_alibi(2, 4, 4, TREK_F64, test_device());
    if (trek_gradcheck(biased, in, 4, NULL, &second) != TREK_OK || trek_gradcheck(biased, in, 4, distances, &second) != TREK_OK)
        fail_msg("%s", trek_error());
    for (int k = 0; k < 4; k++)
        trek_var_release(in[k]);
}

/* --- bilinear forms, unflatten --------------------------------------------------------------------------------------- */

static trek_var *bilinear_of(trek_var *const *in, int n, void *arg)
{
    return trek_bilinear(in[0], in[1], in[2], n > 3 ? in[3] : NULL);
}

static void test_bilinear(void **state)
{
    trek_var *in[4] = { trek_var_retain(numbers(1, trek_dims(2, 3, 4), true)),
                        trek_var_retain(numbers(2, trek_dims(2, 3, 2), true)),
                        trek_var_retain(numbers(3, trek_dims(5, 4, 2), true)), trek_var_retain(numbers(4, trek_dims(5), true)) };
    trek_var *y = trek_bilinear(in[0], in[1], in[2], in[3]);
    assert_true(trek_shape_equal(trek_var_shape(y), trek_dims(2, 3, 5)));
    for (int64_t k = 0; k < 30; k++) {
        double sum = at(in[3], k % 5);
        for (int64_t i = 0; i < 4; i++)
            for (int64_t j = 0; j < 2; j++)
                sum += at(in[0], k / 5 * 4 + i) * at(in[2], k % 5 * 8 + i * 2 + j) * at(in[1], k / 5 * 2 + j);
        near(at(y, k), sum);
    }
    for (int n = 3; n <= 4; n++)
        SUCCEEDS(trek_gradcheck(bilinear_of, in, n, NULL, &(trek_gradcheck_opts){ .second = true }));
    trek_var *one = trek_select(trek_select(in[0], 0, 0), 0, 1), *other = trek_select(trek_select(in[1], 0, 0), 0, 1);
    same(trek_bilinear(one, other, in[2], in[3]), trek_select(trek_select(y, 0, 0), 0, 1));
    assert_int_equal(trek_var_numel(trek_bilinear(trek_narrow(in[0], 0, 0, 0), trek_narrow(in[1], 0, 0, 0), in[2], NULL)), 0);
    same(trek_bilinear(trek_narrow(in[0], 2, 0, 0), in[1], trek_narrow(in[2], 1, 0, 0), in[3]),
         trek_expand(in[3], trek_dims(2, 3, 5)));
    REFUSED(trek_bilinear(in[0], in[0], in[2], NULL), TREK_ERR_SHAPE,
            "bilinear: inputs: [2, 3, 4] and [2, 3, 4] do not fit weight [5, 4, 2]");
    REFUSED(trek_bilinear(in[0], trek_narrow(in[1], 0, 0, 1), in[2], NULL), TREK_ERR_SHAPE, "bilinear");
    REFUSED(trek_bilinear(in[0], in[1], in[2], trek_narrow(in[3], 0, 0, 4)), TREK_ERR_SHAPE, "bilinear: bias: [4]; must be [5]");
    REFUSED(trek_bilinear(in[0], trek_cast(in[1], TREK_F32), in[2], NULL), TREK_ERR_DTYPE,
            "bilinear: inputs: dtypes f64 and f32");
    assert_null(trek_bilinear(NULL, in[1], in[2], NULL));
    trek_error_clear();
    for (int k = 0; k < 4; k++)
        trek_var_release(in[k]);
}

static void test_unflatten(void **state)
{
    trek_var *x = numbers(1, trek_dims(2, 12), false);
    trek_var *y = trek_unflatten(x, -1, trek_dims(3, -1, 2));
    assert_true(trek_shape_equal(trek_var_shape(y), trek_dims(2, 3, 2, 2)));
    same(trek_flatten(y, 1, 3), x);
    assert_true(trek_shape_equal(trek_var_shape(trek_unflatten(x, 0, trek_dims(2, 1))), trek_dims(2, 1, 12)));
    trek_var *nothing = trek_narrow(x, 1, 0, 0);
    assert_true(trek_shape_equal(trek_var_shape(trek_unflatten(nothing, 1, trek_dims(-1, 3))), trek_dims(2, 0, 3)));
    const trek_shape wrong[] = { trek_dims(5, -1), trek_dims(3, 3), trek_dims(-1, -1), trek_dims(-2, -6), trek_dims(0, -1),
                                 trek_dims_none(), trek_dims(1, 1, 1, 1, 1, 1, 1, 12), trek_dims(13, 0) };
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
        REFUSED(trek_unflatten(x, 1, wrong[k]), TREK_ERR_SHAPE, "unflatten: ");
    }
    assert_null(trek_unflatten(x, 2, trek_dims(3, 4)));
    trek_error_clear();
    assert_null(trek_unflatten(NULL, 0, trek_dims(3, 4)));
    trek_error_clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = { TEST(test_rotary), TEST(test_distances), TEST(test_dtypes), TEST(test_rotary_derivatives),
                                        TEST(test_rotary_refused), TEST(test_waves), TEST(test_alibi), TEST(test_buckets),
                                        TEST(test_learned_bias), TEST(test_bilinear), TEST(test_unflatten) };
    return cmocka_run_group_tests_name("positions", tests, NULL, NULL);
}
