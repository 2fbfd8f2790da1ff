/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions large enough for Winograd's way: what it must not spread, and that the threads change no bit. The op suite
 * compares the numbers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "tensor/pool.h"
#include "tensor/rank_context.h"
#include "tests/support/support.h"

enum { IMAGES = 5, CHANNELS = 32, SIDE = 24, FILTERS = 48, PLACES = SIDE * SIDE };

static trek_scope scope;

static int open_scope(void **state)
{
    (void)state;
    trek_error_clear();
    scope = trek_scope_begin();
    return 0;
}

static int close_scope(void **state)
{
    (void)state;
    trek_error_clear();
    return trek_scope_end(scope) == TREK_OK && trek_tape_size() == 0 ? 0 : -1;
}

static trek_var *numbers(uint32_t stream, trek_shape shape)
{
    trek_tensor *tensor = test_tensor(stream, shape, 1);
    trek_var *v = trek_var_from(tensor);
    assert_int_equal(trek_var_set_requires_grad(v, true), TREK_OK);
    return v;
}

static float *floats(const trek_var *v) { return trek_tensor_data(trek_var_data(v)); }

typedef struct passes {
    trek_var *x, *weight, *seed, *y, *grads[2];
} passes;

static passes inputs(void)
{
    return (passes){ .x = numbers(1, trek_dims(IMAGES, CHANNELS, SIDE, SIDE)),
                     .weight = numbers(2, trek_dims(FILTERS, CHANNELS, 3, 3)),
                     .seed = numbers(3, trek_dims(IMAGES, FILTERS, SIDE, SIDE)) };
}

static void run(passes *p)
{
    p->y = trek_conv2d(p->x, p->weight, NULL, &(trek_conv_opts){ .padding = { 1 } });
    assert_non_null(p->y);
    assert_int_equal(trek_grad(&p->y, 1, (trek_var *[]){ p->x, p->weight }, 2, &p->seed, NULL, p->grads), TREK_OK);
}

/* In images [N, channels, SIDE, SIDE] exactly the 3 x 3 places about (row, column) of one image are not finite; of
 * infinities, none is NaN. */
static void stays_near(const trek_var *images, int64_t channels, int64_t image, int64_t row, int64_t column, bool infinite)
{
    const float *values = floats(images);
    for (int64_t i = 0; i < IMAGES * channels * PLACES; i++) {
        int64_t y = i % PLACES / SIDE, x = i % SIDE;
        bool near = i / PLACES / channels == image && llabs(y - row) <= 1 && llabs(x - column) <= 1;
        if (isfinite(values[i]) == near || (near && infinite && isnan(values[i])))
            fail_msg("place %ld of image %ld: %g", (long)(i % PLACES), (long)(i / PLACES / channels), (double)values[i]);
    }
}

static void forward_keeps_infinity_in_its_place(void **state)
{
    (void)state;
    const float values[] = { INFINITY, -INFINITY, NAN };
    for (int k = 0; k < 3; k++) {
        passes p = inputs();
        floats(p.x)[(2 * CHANNELS + 7) * PLACES + 5 * SIDE + 10] = values[k];
        run(&p);
        stays_near(p.y, FILTERS, 2, 5, 10, k < 2);
        const float *dweight = floats(p.grads[1]); /* of one channel alone */
        for (int64_t i = 0; i < FILTERS * CHANNELS * 9; i++)
            assert_int_equal(isfinite(dweight[i]) != 0, i / 9 % CHANNELS != 7);
    }
}

static void backward_keeps_infinity_in_its_place(void **state)
{
    (void)state;
    const float values[] = { INFINITY, NAN };
    for (int k = 0; k < 2; k++) {
        passes p = inputs();
        floats(p.seed)[(4 * FILTERS + 40) * PLACES + 12 * SIDE + 3] = values[k];
        run(&p);
        stays_near(p.grads[0], CHANNELS, 4, 12, 3, k == 0);
        const float *dweight = floats(p.grads[1]); /* of one filter alone */
        for (int64_t i = 0; i < FILTERS * CHANNELS * 9; i++)
            assert_int_equal(isfinite(dweight[i]) != 0, i / 9 / CHANNELS != 40);
    }
}

static void same_bits(const trek_var *a, const trek_var *b)
{
    assert_memory_equal(floats(a), floats(b), (size_t)trek_var_numel(a) * sizeof(float));
}

static void threads_change_no_bit(void **state)
{
    (void)state;
    passes p = inputs();
    run(&p);
    passes first = p;
    trek_pool *before = trek_rank_here.pool;
    for (int threads = 1; threads <= 5; threads += 2) {
        trek_pool *pool = trek_pool_new(threads, 0);
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

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_scope, close_scope)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(forward_keeps_infinity_in_its_place), TEST(backward_keeps_infinity_in_its_place), TEST(threads_change_no_bit),
    };
    return cmocka_run_group_tests_name("convolution", tests, NULL, NULL);
}
