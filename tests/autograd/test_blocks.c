/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that are computed a block at a time give the bits that they give when they are recorded, which is without
 * blocks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/blocks.h"
#include "autograd/losses.h"
#include "autograd/ops.h"
#include "autograd/special.h"
#include "tensor/dtypes.h"
#include "tensor/pool.h"
#include "tensor/rank_context.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

/* Not a multiple of a block, and enough blocks for the threads that are used here; lines divide them. */
enum { NUMBERS = 2 * 5 * 32768 + 4321, LINES = 333 };

static trek_var *drawn(uint64_t seed, trek_dtype dtype, bool recorded)
{
    double *values = malloc(NUMBERS * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < NUMBERS; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        values[i] = i % 1000 == 7 ? NAN : i % 1000 == 8 ? INFINITY : i % 1000 == 9 ? 0 : (double)(seed >> 40) * 0x1p-22 - 2;
    }
    trek_tensor *made = test_values(values, trek_dims(NUMBERS), dtype);
    trek_var *x = made ? trek_var_new(made, recorded) : NULL;
    trek_tensor_release(made);
    free(values);
    return x;
}

typedef trek_var *(*function)(trek_var *x, trek_var *y, trek_var *z);
static trek_var *larger(trek_var *x, trek_var *y, trek_var *z) { return (void)z, trek_fmax(x, y); }
static trek_var *smaller(trek_var *x, trek_var *y, trek_var *z) { return (void)z, trek_fmin(x, y); }
static trek_var *xlogy(trek_var *x, trek_var *y, trek_var *z) { return (void)z, trek_xlogy(x, y); }
static trek_var *sinc(trek_var *x, trek_var *y, trek_var *z) { return (void)y, (void)z, trek_sinc(x); }
static trek_var *logit(trek_var *x, trek_var *y, trek_var *z) { return (void)y, (void)z, trek_logit(x, 0.125); }
static trek_var *rounded(trek_var *x, trek_var *y, trek_var *z) { return (void)y, (void)z, trek_round_decimals(x, 2); }
static trek_var *lines(trek_var *x) { return trek_var_ndim(x) == 1 ? trek_reshape(x, trek_dims(LINES, NUMBERS / LINES)) : x; }
static trek_var *cosine(trek_var *x, trek_var *y, trek_var *z)
{
    return (void)z, trek_cosine_similarity(lines(x), lines(y), 1, 1e-8);
}
static trek_var *apart(trek_var *x, trek_var *y, trek_var *z)
{
    return (void)z, trek_pairwise_distance(lines(x), lines(y), 2, 1e-6, false);
}
static trek_var *ranking(trek_var *x, trek_var *y, trek_var *z)
{
    return trek_margin_ranking_loss(x, y, z, &(trek_margin_opts){ .reduction = TREK_REDUCTION_NONE });
}
static trek_var *poisson(trek_var *x, trek_var *y, trek_var *z)
{
    return (void)z, trek_poisson_nll_loss(x, y, &(trek_poisson_nll_opts){ .reduction = TREK_REDUCTION_NONE });
}
static trek_var *triplet(trek_var *x, trek_var *y, trek_var *z)
{
    return trek_triplet_margin_loss(lines(x), lines(y), lines(z), &(trek_margin_opts){ .reduction = TREK_REDUCTION_NONE });
}
static const struct { const char *name; function f; } functions[] = {
    { "fmax", larger }, { "fmin", smaller }, { "xlogy", xlogy }, { "sinc", sinc }, { "logit", logit },
    { "cosine_similarity", cosine }, { "pairwise_distance", apart }, { "margin_ranking_loss", ranking },
    { "round_decimals", rounded }, { "poisson_nll_loss", poisson }, { "triplet_margin_loss", triplet },
};

static void same_bits(const char *name, trek_var *a, trek_var *b)
{
    if (!a || !b)
        fail_msg("%s: %s", name, trek_error());
    if (!test_same_bits(trek_var_data(a), trek_var_data(b)))
        fail_msg("%s: by blocks it has other bits", name);
}

enum { PLAIN, TRANSPOSED, GAPS, REPEATED, MIXED, ONE_COLUMN, ONE_LINE, LAYOUTS };

/* Returns x, or its numbers as lines that lie otherwise in memory. REPEATED and MIXED are those of the nth input of several;
 * with the last two, all inputs repeat. */
static trek_var *laid_out(trek_var *x, int layout, int n)
{
    if (layout == PLAIN)
        return x;
    if (layout == TRANSPOSED || (layout == MIXED && n == 1))
        return trek_transpose(trek_reshape(x, trek_dims(NUMBERS / LINES, LINES)), 0, 1);
    x = lines(x);
    if (layout == GAPS)
        return trek_narrow(x, 1, 1, NUMBERS / LINES - 3);
    if (layout == ONE_LINE)
        return trek_expand(trek_narrow(x, 0, 5, 1), trek_var_shape(x));
    return layout == ONE_COLUMN || (layout == REPEATED && n == 1) ? trek_expand(trek_narrow(x, 1, 5, 1), trek_var_shape(x)) : x;
}

static void compare(trek_dtype dtype, int layout)
{
    for (size_t k = 0; k < sizeof functions / sizeof *functions; k++) {
        trek_var *in[2][3];
        for (int recorded = 0; recorded < 2; recorded++)
            for (int n = 0; n < 3; n++)
                in[recorded][n] = drawn(11 + (uint64_t)n, dtype, recorded);
        trek_scope inner = trek_scope_begin();
        trek_var *results[2];
        for (int recorded = 0; recorded < 2; recorded++) {
            trek_var *laid[3];
            for (int n = 0; n < 3; n++)
                laid[n] = laid_out(in[recorded][n], layout, n);
            results[recorded] = functions[k].f(laid[0], laid[1], laid[2]);
        }
        same_bits(functions[k].name, results[0], results[1]);
        trek_scope_end(inner);
        for (int n = 0; n < 3; n++) {
            trek_var_release(in[0][n]);
            trek_var_release(in[1][n]);
        }
    }
}

static void test_bits(void **state)
{
    trek_pool *before = trek_rank_here.pool;
    for (int threads = 1; threads <= 2; threads++) {
        trek_pool *pool = trek_pool_new(threads, 0);
        assert_non_null(pool);
        trek_rank_here.pool = pool;
        for (int layout = 0; layout < LAYOUTS; layout++) {
            compare(TREK_F32, layout);
            compare(TREK_BF16, layout);
        }
        trek_rank_here.pool = before;
        trek_pool_free(&pool);
    }
}

static int calls;
static trek_var *counted(trek_var *const *in, const double *numbers)
{
    calls++;
    return *numbers != 0 ? trek_add(in[0], in[1]) : trek_reshape(in[0], trek_dims(-1, 2, 3, 5));
}

/* What is recorded, small, or broadcast is not divided; a number is used by all blocks. */
static void test_what_is_divided(void **state)
{
    trek_pool *before = trek_rank_here.pool, *pool = trek_pool_new(1, 0);
    trek_var *plain = drawn(1, TREK_F32, false), *recorded = drawn(1, TREK_F32, true);
    trek_var *number = trek_reshape(trek_narrow(plain, 0, 0, 1), trek_dims_none()), *few = trek_narrow(plain, 0, 0, 100);
    assert_non_null(pool);
    trek_rank_here.pool = pool;
    const struct { trek_var *x, *y; bool divided; } cases[] = {
        { plain, plain, true }, { plain, number, true }, { number, plain, true }, { recorded, plain, false }, { few, few, false },
        { plain, trek_narrow(plain, 0, 0, 1), false }, { trek_flip(plain, trek_dims(0)), plain, true },
        { laid_out(plain, TRANSPOSED, 0), lines(plain), true }, { laid_out(plain, GAPS, 0), number, true },
        { trek_expand(trek_narrow(plain, 0, 0, 1), trek_dims(NUMBERS)), plain, true },
        { trek_reshape(plain, trek_dims(1, 1, NUMBERS)), trek_expand(trek_narrow(plain, 0, 0, 1), trek_dims(1, 1, NUMBERS)),
          true },
        /* what all inputs repeat is computed once, and not divided if little is left */
        { trek_expand(trek_narrow(lines(plain), 1, 0, 1), trek_dims(LINES, NUMBERS / LINES)),
          trek_expand(trek_narrow(lines(plain), 1, 1, 1), trek_dims(LINES, NUMBERS / LINES)), false },
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        calls = 0;
        trek_var *y = trek_by_blocks(counted, (trek_var *[]){ cases[k].x, cases[k].y }, 2, (double[]){ 1 });
        same_bits("sum", y, trek_add(cases[k].x, cases[k].y));
        assert_true((calls > 1) == cases[k].divided);
    }
    trek_no_grad_begin();
    calls = 0;
    assert_non_null(trek_by_blocks(counted, (trek_var *[]){ recorded, plain }, 2, (double[]){ 1 }));
    assert_true(calls > 1);
    trek_no_grad_end();
    calls = 0;
    assert_null(trek_by_blocks(counted, (trek_var *[]){ plain, plain }, 2, (double[]){ 0 })); /* fails in the first block */
    assert_int_equal(calls, 1);
    assert_int_equal(trek_error_status(), TREK_ERR_SHAPE);
    trek_error_clear();
    assert_null(trek_by_blocks(counted, (trek_var *[]){ plain, NULL }, 2, (double[]){ 1 }));
    trek_rank_here.pool = before;
    trek_pool_free(&pool);
    trek_var_release(plain);
    trek_var_release(recorded);
}

int main(void)
{
    const struct CMUnitTest tests[] = { TEST(test_bits), TEST(test_what_is_divided) };
    return cmocka_run_group_tests_name("blocks", tests, NULL, NULL);
}
