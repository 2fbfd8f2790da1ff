/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions large enough for a library's ways (Winograd's, and bf16 as it is): what they must not spread, that the threads
 * change no bit, and that bf16 is rounded once. The op suite compares the numbers of small ones. */
#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "tensor/copies.h"
#include "tensor/dtypes.h"
#include "tensor/half_internal.h"
#include "tensor/pool.h"
#include "tensor/rank_context.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

enum { IMAGES = 5, CHANNELS = 32, SIDE = 24, FILTERS = 48, PLACES = SIDE * SIDE };

static trek_var *leaf(trek_tensor *tensor)
{
    trek_var *v = trek_var_from(tensor);
    assert_non_null(v);
    assert_int_equal(trek_var_set_requires_grad(v, true), TREK_OK);
    return v;
}

static trek_var *numbers(uint32_t stream, trek_dtype dtype, trek_shape shape)
{
    trek_tensor *tensor = test_tensor(stream, shape, 1), *cast = trek_tensor_cast(tensor, dtype);
    assert_non_null(cast);
    trek_tensor_release(tensor);
    return leaf(cast);
}

/* Its values; the last ones are freed with the next. */
static const double *values_of(const trek_var *v)
{
    static double *last;
    free(last);
    last = v ? test_read(trek_var_data(v)) : NULL;
    return last;
}

static void put(trek_var *v, int64_t place, float value)
{
    if (trek_var_dtype(v) == TREK_F32)
        ((float *)trek_tensor_data(trek_var_data(v)))[place] = value;
    else
        ((uint16_t *)trek_tensor_data(trek_var_data(v)))[place] = trek_bf16_from_f32(value);
}

typedef struct passes {
    trek_var *x, *weight, *seed, *y, *grads[2];
} passes;

static const trek_dtype dtypes[2] = { TREK_F32, TREK_BF16 };

static passes inputs(trek_dtype dtype)
{
    return (passes){ .x = numbers(1, dtype, trek_dims(IMAGES, CHANNELS, SIDE, SIDE)),
                     .weight = numbers(2, dtype, trek_dims(FILTERS, CHANNELS, 3, 3)),
                     .seed = numbers(3, dtype, trek_dims(IMAGES, FILTERS, SIDE, SIDE)) };
}

static void run(passes *p)
{
    p->y = trek_conv2d(p->x, p->weight, NULL, &(trek_conv_opts){ .padding = { 1, 1 } });
    assert_non_null(p->y);
    assert_int_equal(trek_grad(&p->y, 1, (trek_var *[]){ p->x, p->weight }, 2, &p->seed, NULL, p->grads), TREK_OK);
}

/* In images [N, channels, SIDE, SIDE] exactly the 3 x 3 places about (row, column) of one image are not finite; of
 * infinities, none is NaN. */
static void stays_near(const trek_var *images, int64_t channels, int64_t image, int64_t row, int64_t column, bool infinite)
{
    const double *values = values_of(images);
    for (int64_t i = 0; i < IMAGES * channels * PLACES; i++) {
        int64_t y = i % PLACES / SIDE, x = i % SIDE;
        bool near = i / PLACES / channels == image && llabs(y - row) <= 1 && llabs(x - column) <= 1;
        if (isfinite(values[i]) == near || (near && infinite && isnan(values[i])))
            fail_msg("place %ld of image %ld: %g", (long)(i % PLACES), (long)(i / PLACES / channels), values[i]);
    }
}

static void forward_keeps_infinity_in_its_place(void **state)
{
    const float values[] = { INFINITY, -INFINITY, NAN };
    for (int k = 0; k < 6; k++) {
        passes p = inputs(dtypes[k / 3]);
        put(p.x, (2 * CHANNELS + 7) * PLACES + 5 * SIDE + 10, values[k % 3]);
        run(&p);
        stays_near(p.y, FILTERS, 2, 5, 10, k % 3 < 2);
        const double *dweight = values_of(p.grads[1]); /* of one channel alone */
        for (int64_t i = 0; i < FILTERS * CHANNELS * 9; i++)
            assert_int_equal(isfinite(dweight[i]) != 0, i / 9 % CHANNELS != 7);
    }
}

static void backward_keeps_infinity_in_its_place(void **state)
{
    const float values[] = { INFINITY, NAN };
    for (int k = 0; k < 4; k++) {
        passes p = inputs(dtypes[k / 2]);
        put(p.seed, (4 * FILTERS + 40) * PLACES + 12 * SIDE + 3, values[k % 2]);
        run(&p);
        stays_near(p.grads[0], CHANNELS, 4, 12, 3, k % 2 == 0);
        const double *dweight = values_of(p.grads[1]); /* of one filter alone */
        for (int64_t i = 0; i < FILTERS * CHANNELS * 9; i++)
            assert_int_equal(isfinite(dweight[i]) != 0, i / 9 / CHANNELS != 40);
    }
}

static void same_bits(const trek_var *a, const trek_var *b)
{
    assert_true(test_same_bits(trek_var_data(a), trek_var_data(b)));
}

static void threads_change_no_bit(void **state)
{
    trek_pool *before = trek_rank_here.pool;
    for (int k = 0; k < 6; k++) {
        passes p = inputs(dtypes[k / 3]);
        run(&p);
        passes first = p;
        trek_pool *pool = trek_pool_new(1 + 2 * (k % 3), 0);
        assert_non_null(pool);
        trek_rank_here.pool = pool;
        run(&p);
        trek_rank_here.pool = before;
        trek_pool_free(&pool);
        same_bits(p.y, first.y);
        same_bits(p.grads[0], first.grads[0]);
        same_bits(p.grads[1], first.grads[1]);
    }
}

/* -- beside f64 -- */

/* Of a convolution or, `transposed`, of what undoes its shape. */
typedef struct shapes {
    int64_t images, channels, filters, height, width, kernel[2], stride[2], padding[2], dilation[2], groups;
    bool transposed, bias, strided;
} shapes;

static uint32_t drawn(uint32_t *state, uint32_t count)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 10) % count;
}

/* One of three is large enough for a library. */
static shapes draw(uint32_t *state)
{
    bool large = drawn(state, 3) == 0;
    shapes s = { .images = 1 + drawn(state, large ? 9 : 12), .groups = large ? 1 : 1 + drawn(state, 3) };
    s.channels = large ? 16 * (1 + drawn(state, 4)) : s.groups * (1 + drawn(state, 7));
    s.filters = large ? 16 * (1 + drawn(state, 4)) : s.groups * (1 + drawn(state, 7));
    s.height = (large ? 14 : 5) + drawn(state, 8), s.width = (large ? 14 : 5) + drawn(state, 8);
    for (int d = 0; d < 2; d++) {
        s.kernel[d] = 1 + drawn(state, 3);
        s.stride[d] = 1 + drawn(state, 2);
        s.dilation[d] = 1 + drawn(state, 2);
        s.padding[d] = drawn(state, 3);
    }
    s.transposed = drawn(state, 3) == 0, s.bias = drawn(state, 2), s.strided = drawn(state, 4) == 0;
    return s;
}

static int64_t or_zero(int64_t n) { return n ? n : TREK_ZERO; }

static trek_var *convolve(const shapes *s, trek_var *x, trek_var *weight, trek_var *bias)
{
    if (!s->transposed)
        return trek_conv2d(x, weight, bias, &(trek_conv_opts){ .stride = { s->stride[0], s->stride[1] }, .groups = s->groups,
                                                               .padding = { or_zero(s->padding[0]), or_zero(s->padding[1]) },
                                                               .dilation = { s->dilation[0], s->dilation[1] } });
    return trek_conv_transpose2d(x, weight, bias, &(trek_conv_transpose_opts){
        .stride = { s->stride[0], s->stride[1] }, .groups = s->groups, .dilation = { s->dilation[0], s->dilation[1] },
        .padding = { or_zero(s->padding[0]), or_zero(s->padding[1]) } });
}

enum { X, WEIGHT, BIAS, LEAVES };

/* The result and its gradients in the dtype, of the same numbers; false where the shapes allow none. */
static bool in_dtype(const shapes *s, trek_dtype dtype, trek_var *results[1 + LEAVES])
{
    int64_t in = s->transposed ? s->filters : s->channels, out = s->transposed ? s->channels : s->filters;
    trek_shape x_shape = trek_dims(s->images, in, s->height, s->width);
    trek_var *leaves[LEAVES] = { numbers(11, TREK_BF16, s->strided ? trek_dims(s->images, in, s->width, s->height) : x_shape),
                                 numbers(12, TREK_BF16, trek_dims(s->filters, s->channels / s->groups, s->kernel[0],
                                                                  s->kernel[1])),
                                 numbers(13, TREK_BF16, trek_dims(out)) };
    trek_var *wanted[LEAVES];
    for (int k = 0; k < LEAVES; k++)
        wanted[k] = leaves[k] = leaf(trek_tensor_cast(trek_var_data(leaves[k]), dtype));
    trek_var *x = s->strided ? trek_transpose(leaves[X], 2, 3) : leaves[X];
    results[0] = convolve(s, x, leaves[WEIGHT], s->bias ? leaves[BIAS] : NULL);
    if (!results[0]) {
        expect_error(TREK_ERR_SHAPE, "");
        return false;
    }
    trek_shape y_shape = trek_dims(trek_var_size(results[0], 0), trek_var_size(results[0], 1), trek_var_size(results[0], 2),
                                   trek_var_size(results[0], 3));
    trek_var *seed = leaf(trek_tensor_cast(trek_var_data(numbers(14, TREK_BF16, y_shape)), dtype));
    results[1 + BIAS] = NULL;
    assert_int_equal(trek_grad(results, 1, wanted, s->bias ? 3 : 2, &seed, NULL, results + 1), TREK_OK);
    return true;
}

static const char *const names[1 + LEAVES] = { "y", "dx", "dweight", "dbias" };

/* f64's numbers, but for f32's rounding of the terms, and half a unit of 8 bits where bf16 is rounded. */
static void rounded(const shapes *s, const trek_var *narrow, const trek_var *wide, const char *what)
{
    int64_t count = trek_var_numel(wide);
    double *a = test_read(trek_var_data(narrow)), *b = test_read(trek_var_data(wide)), largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(b[i]));
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(a[i] - b[i]) <= (trek_var_dtype(narrow) == TREK_BF16 ? 0x1.01p-8 * fabs(b[i]) : 0) + 2e-6 * largest))
            fail_msg("%s %s[%ld]: %.9g instead of %.9g; %s, images %ld, channels %ld, filters %ld, %ld x %ld, kernel %ld x %ld, "
                     "stride "
                     "%ld %ld, padding %ld %ld, dilation %ld %ld, groups %ld, bias %d, strided %d",
                     trek_dtype_name(trek_var_dtype(narrow)), what, (long)i, a[i], b[i],
                     s->transposed ? "transposed" : "convolution", (long)s->images, (long)s->channels, (long)s->filters,
                     (long)s->height, (long)s->width, (long)s->kernel[0], (long)s->kernel[1], (long)s->stride[0],
                     (long)s->stride[1], (long)s->padding[0], (long)s->padding[1], (long)s->dilation[0], (long)s->dilation[1],
                     (long)s->groups, s->bias, s->strided);
    free(a);
    free(b);
}

static void random_shapes_agree_with_f64(void **state)
{
    uint32_t random = 7;
    int compared = 0;
    for (int k = 0; k < 150; k++) {
        shapes s = draw(&random);
        trek_var *wide[1 + LEAVES], *narrow[1 + LEAVES];
        trek_scope inner = trek_scope_begin();
        bool fits = in_dtype(&s, TREK_F64, wide);
        for (int d = 0; fits && d < 2; d++) {
            assert_true(in_dtype(&s, dtypes[d], narrow));
            for (int r = 0; r < (s.bias ? 4 : 3); r++)
                rounded(&s, narrow[r], wide[r], names[r]);
            compared++;
        }
        assert_int_equal(trek_scope_end(inner), TREK_OK);
    }
    assert_true(compared > 200);
}

/* Images that are too few for the lanes of a vector are divided into bands: one number of bands for any number of threads. */
static void threads_change_no_bit_of_few_images(void **state)
{
    trek_pool *before = trek_rank_here.pool;
    for (int64_t images = 1; images <= 12; images++) {
        const shapes s = { .images = images, .channels = 4, .filters = 13, .height = 14, .width = 11, .kernel = { 5, 3 },
                           .stride = { 1 + images % 2, 1 }, .padding = { 2, 1 }, .dilation = { 1, 1 }, .groups = 1,
                           .bias = true };
        trek_var *alone[1 + LEAVES], *together[1 + LEAVES];
        trek_scope inner = trek_scope_begin();
        trek_pool *pools[] = { trek_pool_new(1, 0), trek_pool_new(3, 0) };
        trek_rank_here.pool = pools[0];
        assert_true(in_dtype(&s, TREK_F32, alone));
        trek_rank_here.pool = pools[1];
        assert_true(in_dtype(&s, TREK_F32, together));
        trek_rank_here.pool = before;
        for (int k = 0; k < 2; k++)
            trek_pool_free(&pools[k]);
        for (int r = 0; r < 1 + LEAVES; r++)
            same_bits(alone[r], together[r]);
        assert_int_equal(trek_scope_end(inner), TREK_OK);
    }
}

/* A library's plans are kept for some hundred shapes; what comes after them is computed another way. */
static void more_shapes_than_plans_are_kept_for(void **state)
{
    for (int64_t k = 0; k < 300; k++) {
        shapes s = { .images = 2, .channels = 32, .filters = 16, .height = 16, .width = 140 + k, .kernel = { 3, 3 },
                     .stride = { 1, 1 }, .padding = { 1, 1 }, .dilation = { 1, 1 }, .groups = 1 };
        trek_var *wide[1 + LEAVES], *narrow[1 + LEAVES];
        trek_scope inner = trek_scope_begin();
        assert_true(in_dtype(&s, TREK_F32, narrow));
        if (k == 0 || k > 280) {
            assert_true(in_dtype(&s, TREK_F64, wide));
            for (int r = 0; r < 3; r++)
                rounded(&s, narrow[r], wide[r], names[r]);
        }
        assert_int_equal(trek_scope_end(inner), TREK_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(forward_keeps_infinity_in_its_place), TEST(backward_keeps_infinity_in_its_place), TEST(threads_change_no_bit),
        TEST(random_shapes_agree_with_f64), TEST(threads_change_no_bit_of_few_images), TEST(more_shapes_than_plans_are_kept_for),
    };
    int failed = cmocka_run_group_tests_name("convolution", tests, NULL, NULL);
    values_of(NULL);
    return failed;
}
