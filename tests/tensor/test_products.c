/* SPDX-License-Identifier: Apache-2.0 */
/* Large products: the same bits on any number of threads, and each sum within rounding of one in f64. */
#include "tensor/pool.h"
#include "tensor/rank_context.h"
#include "tensor/tensor_internal.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"
#include "trek.h"

typedef struct product {
    int64_t m, n, k;
    bool transpose_a, transpose_b;
    trek_dtype dtype;
} product;

/* Products that one thread computes and that several share, one block of depth and several, whole tiles and rests, more columns
 * than are packed at a time, more columns than rows. */
static const product products[] = {
    { 512, 512, 512, false, true, TREK_F32 },   { 613, 701, 1031, false, false, TREK_F32 },
        { 701, 613, 1031, true, false, TREK_F32 },
    { 120, 9001, 1030, false, true, TREK_F32 }, { 9001, 120, 515, true, true, TREK_F32 },
    { 2048, 128, 512, false, true, TREK_F32 },
    { 129, 65, 8191, true, false, TREK_F32 },   { 515, 513, 700, false, true, TREK_F64 },
    { 390, 700, 777, true, false, TREK_F64 },
    /* a column times a row: within caches, beyond them with rows that are whole vectors and with others; a row, many columns */
    { 300, 1000, 1, true, false, TREK_F32 },    { 4100, 2080, 1, true, false, TREK_F32 },
    { 2099, 2081, 1, false, true, TREK_F64 },   { 1, 773, 525, false, false, TREK_F32 },
    { 31, 33, 64, false, false, TREK_F32 },     { 40, 100, 130, true, true, TREK_F64 },
    /* integers: whole panels of columns and rests, more depth than one */
    { 37, 101, 150, false, true, TREK_I64 },    { 70, 64, 65, false, false, TREK_I64 },
    { 6, 161, 64, true, false, TREK_I32 },      { 1, 40, 200, false, false, TREK_I32 },
    { 41, 33, 1, true, true, TREK_U8 },         { 50, 96, 129, false, false, TREK_U8 },
};

static trek_tensor *operand(int64_t rows, int64_t cols, trek_dtype dtype)
{
    trek_tensor *t = trek_dtype_is_float(dtype) ? trek_tensor_randn(trek_dims(rows, cols), dtype, trek_cpu(0))
        : trek_tensor_randint(dtype == TREK_U8 ? 0 : -1000, dtype == TREK_U8 ? 256 : 1000, trek_dims(rows, cols), dtype,
                              trek_cpu(0));
    assert_non_null(t);
    return t;
}

static double value(const trek_tensor *t, int64_t i)
{
    const void *data = t->data;
    switch (t->dtype) {
    case TREK_F64: return ((const double *)data)[i];
    case TREK_F32: return (double)((const float *)data)[i];
    case TREK_I64: return (double)((const int64_t *)data)[i];
    case TREK_I32: return (double)((const int32_t *)data)[i];
    default: return (double)((const uint8_t *)data)[i];
    }
}

/* Some elements of C, each against its sum in f64; those of bytes wrap around. */
static void check_some(const product *p, const trek_tensor *a, const trek_tensor *b, const trek_tensor *c)
{
    double epsilon = p->dtype == TREK_F64 ? 0x1p-52 : p->dtype == TREK_F32 ? 0x1p-23 : 0;
    int64_t step = test_short() ? 13 : 1; /* the whole first row; under sanitizers each panel of it */
    for (int64_t place = 0; place < p->m * p->n; place += place < p->n ? step : 9973) {
        int64_t i = place / p->n, j = place % p->n;
        double sum = 0, scale = 0;
        for (int64_t q = 0; q < p->k; q++) {
            double term = value(a, p->transpose_a ? q * p->m + i : i * p->k + q) * value(b,
                                                                                         p->transpose_b ? j * p->k + q
                                                                                         : q * p->n + j);
            sum += term;
            scale += fabs(term);
        }
        sum = p->dtype == TREK_U8 ? fmod(sum, 256) : sum;
        assert_true(fabs(value(c, place) - sum) <= 16 * epsilon * scale);
    }
}

static void run_product(const product *p)
{
    static const int threads[] = { 1, 3, 2, 5 };
    size_t n_threads = test_short() ? 2 : sizeof threads / sizeof *threads;
    trek_scope scope = trek_scope_begin();
    trek_tensor *a = operand(p->transpose_a ? p->k : p->m, p->transpose_a ? p->m : p->k, p->dtype);
    trek_tensor *b = operand(p->transpose_b ? p->n : p->k, p->transpose_b ? p->k : p->n, p->dtype);
    trek_var *x = trek_var_new(a, false), *y = trek_var_new(b, false), *first = NULL;
    x = p->transpose_a ? trek_transpose(x, 0, 1) : x;
    y = p->transpose_b ? trek_transpose(y, 0, 1) : y;
    trek_pool *before = trek_rank_here.pool;
    for (size_t k = 0; k < n_threads; k++) {
        trek_pool *pool = trek_pool_new(threads[k], 0);
        assert_non_null(pool);
        trek_rank_here.pool = pool;
        trek_var *c = trek_matmul(x, y);
        trek_rank_here.pool = before;
        trek_pool_free(&pool);
        assert_non_null(c);
        if (first)
            assert_memory_equal(trek_var_data(c)->data, trek_var_data(first)->data,
                                (size_t)(p->m * p->n) * trek_dtype_size(p->dtype));
        else
            check_some(p, a, b, trek_var_data(first = c));
    }
    trek_scope_end(scope);
}

static void same_bits_on_any_number_of_threads(void **state)
{
    trek_seed(7);
    for (size_t k = 0; k < sizeof products / sizeof *products; k++)
        if (!test_short() || products[k].m * products[k].n * products[k].k < 200 * 1000 * 1000) /* sanitizers: minutes */
            run_product(&products[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(same_bits_on_any_number_of_threads) };
    return cmocka_run_group_tests_name("products", tests, NULL, NULL);
}
