/* SPDX-License-Identifier: Apache-2.0 */
/* Products of f32 and bf16 by tiles, in plain C where the CPU has no tiles: errors beside those of multiply-add, values that sums
 * of bf16 numbers do not carry, threads. Each test takes all instruction sets, whose packing differs. */
#include "tensor/cpu/use.h"
#include "tensor/half_internal.h"
#include "tensor/pool.h"
#include "tensor/products_way.h"
#include "tensor/rank_context.h"
#include "tensor/tensor_internal.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"
#include "trek.h"

typedef struct operands {
    int64_t m, n, k;
    bool transpose_a, transpose_b;
    trek_tensor *a, *b; /* as they lie in memory */
} operands;

static float *at_a(const operands *o, int64_t i, int64_t p)
{
    return (float *)(void *)o->a->data + (o->transpose_a ? p * o->m + i : i * o->k + p);
}

static float *at_b(const operands *o, int64_t p, int64_t j)
{
    return (float *)(void *)o->b->data + (o->transpose_b ? j * o->k + p : p * o->n + j);
}

static operands random_operands(int64_t m, int64_t n, int64_t k, bool transpose_a, bool transpose_b)
{
    operands o = { m, n, k, transpose_a, transpose_b, NULL, NULL };
    o.a = trek_tensor_randn(transpose_a ? trek_dims(k, m) : trek_dims(m, k), TREK_F32, trek_cpu(0));
    o.b = trek_tensor_randn(transpose_b ? trek_dims(n, k) : trek_dims(k, n), TREK_F32, trek_cpu(0));
    assert_true(o.a && o.b);
    return o;
}

static const float *multiply(const operands *o, trek_products_way way, int threads)
{
    trek_pool *before = trek_rank_here.pool, *pool = trek_pool_new(threads, 0);
    assert_non_null(pool);
    trek_rank_here.pool = pool;
    trek_products_choose(TREK_F32, way);
    trek_var *x = trek_var_new(o->a, false), *y = trek_var_new(o->b, false);
    trek_var *c = trek_matmul(o->transpose_a ? trek_transpose(x, 0, 1) : x, o->transpose_b ? trek_transpose(y, 0, 1) : y);
    trek_products_choose(TREK_F32, TREK_PRODUCTS_WAY_MEASURED);
    trek_rank_here.pool = before;
    trek_pool_free(&pool);
    assert_non_null(c);
    return (const float *)(const void *)trek_var_data(c)->data;
}

static void with_each_set(void (*test)(void))
{
    static const char *const sets[] = { "baseline", "avx2", "avx512" };
    for (int k = 0; k < 3; k++)
        if (trek_cpu_use(sets[k])) {
            trek_scope scope = trek_scope_begin();
            trek_seed(11);
            test();
            trek_scope_end(scope);
        }
    trek_cpu_use(NULL);
}

/* -- errors -- */

/* The largest error of an element, of the sum of its products' sizes, and the norm of all errors, of that of all those sums. */
typedef struct errors {
    double element, norm;
} errors;

static errors errors_of(const operands *o, const float *c)
{
    double element = 0, of_errors = 0, of_sizes = 0;
    for (int64_t i = 0; i < o->m; i++)
        for (int64_t j = 0; j < o->n; j++) {
            double sum = 0, size = 0;
            for (int64_t p = 0; p < o->k; p++) {
                double term = (double)*at_a(o, i, p) * (double)*at_b(o, p, j);
                sum += term;
                size += fabs(term);
            }
            double error = fabs((double)c[i * o->n + j] - sum);
            element = size > 0 && error / size > element ? error / size : element;
            of_errors += error * error;
            of_sizes += size * size;
        }
    return (errors){ element, sqrt(of_errors / of_sizes) };
}

static float unit(void) { return (float)rand() / (float)RAND_MAX; }

/* Sizes differ by up to 2^40 within each row and column. */
static void grade(operands *o)
{
    for (int64_t p = 0; p < o->k; p++) {
        for (int64_t i = 0; i < o->m; i++)
            *at_a(o, i, p) *= exp2f(20 * unit() - 10);
        for (int64_t j = 0; j < o->n; j++)
            *at_b(o, p, j) *= exp2f(20 * unit() - 10);
    }
}

/* The second half of each sum takes nearly all of the first away. */
static void cancel(operands *o)
{
    for (int64_t p = 0; p < o->k / 2; p++) {
        for (int64_t i = 0; i < o->m; i++)
            *at_a(o, i, o->k - 1 - p) = *at_a(o, i, p);
        for (int64_t j = 0; j < o->n; j++)
            *at_b(o, o->k - 1 - p, j) = -*at_b(o, p, j) * (1 + 0x1p-20f * unit());
    }
}

/* All bits of all numbers are set, and all errors of sums have one direction. */
static void saturate(operands *o)
{
    for (int64_t p = 0; p < o->k; p++) {
        for (int64_t i = 0; i < o->m; i++)
            *at_a(o, i, p) = 2 - 0x1p-23f;
        for (int64_t j = 0; j < o->n; j++)
            *at_b(o, p, j) = 1.5f - 0x1p-23f * (float)(p % 3);
    }
}

/* What the first and the second term leave is as large as it can be: numbers lie in the middle between two bf16. */
static void between(operands *o)
{
    for (int64_t p = 0; p < o->k; p++) {
        for (int64_t i = 0; i < o->m; i++)
            *at_a(o, i, p) = 1 + 0x1.fep-9f + 0x1.fep-17f;
        for (int64_t j = 0; j < o->n; j++)
            *at_b(o, p, j) = (1 + 0x1.fep-9f + 0x1.fep-17f) * (j % 2 ? 1 : p % 2 ? -1.25f : 1);
    }
}

static void as_drawn(operands *o) { (void)o; }

static void check_errors(void)
{
    static void (*const kinds[])(operands * o) = { as_drawn, grade, cancel, saturate, between };
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
        for (int shape = 0; shape < 4; shape++) {
            operands o = random_operands(shape & 2 ? 40 : 33, 50, shape & 1 ? 130 : 515, shape & 1, shape & 2);
            srand(5);
            kinds[kind](&o);
            errors tiles = errors_of(&o, multiply(&o, TREK_PRODUCTS_WAY_TILES, 1));
            errors fma = errors_of(&o, multiply(&o, TREK_PRODUCTS_WAY_FMA, 1));
            if (tiles.element > fma.element || tiles.norm > fma.norm)
                fail_msg("kind %d, shape %d: by tiles %.3g, %.3g, by multiply-add %.3g, %.3g", (int)kind, shape, tiles.element,
                         tiles.norm, fma.element, fma.norm);
            assert_true(tiles.element > 0 || kind > 0); /* drawn numbers have errors */
        }
}

static void errors_are_not_larger_than_by_multiply_add(void **state) { with_each_set(check_errors); }

static void expect_infinite(const float *c, int64_t n, int64_t row)
{
    for (int64_t j = 0; j < n; j++)
        assert_true(isinf(c[row * n + j]) && isfinite(c[(row + 1) * n + j]));
}

/* Two bf16 numbers have 16 bits, one has 8; multiply-add stays as it is. */
static void check_precision(void)
{
    static const double limits[][2] = { { 0x1p-23, 0 }, { 0x1p-16, 0x1p-21 }, { 0x1p-8, 0x1p-12 } };
    operands o = random_operands(40, 50, 130, true, false);
    const float *fma = multiply(&o, TREK_PRODUCTS_WAY_FMA, 1), kept = *at_a(&o, 3, 77);
    for (int precision = TREK_MATMUL_PRECISION_HIGHEST; precision <= TREK_MATMUL_PRECISION_MEDIUM; precision++) {
        trek_matmul_precision_set((trek_matmul_precision)precision);
        errors tiles = errors_of(&o, multiply(&o, TREK_PRODUCTS_WAY_TILES, 1));
        assert_memory_equal(multiply(&o, TREK_PRODUCTS_WAY_FMA, 1), fma, 40 * 50 * sizeof(float));
        *at_a(&o, 3, 77) = INFINITY;
        expect_infinite(multiply(&o, TREK_PRODUCTS_WAY_TILES, 1), o.n, 3);
        *at_a(&o, 3, 77) = kept;
        trek_matmul_precision_set(TREK_MATMUL_PRECISION_HIGHEST);
        assert_true(tiles.element <= limits[precision][0] && tiles.element >= limits[precision][1]);
    }
}

static void lower_precision_has_fewer_bits(void **state) { with_each_set(check_precision); }

/* -- values that sums of bf16 numbers do not carry -- */

static void expect_as_by_multiply_add(const operands *o)
{
    const float *tiles = multiply(o, TREK_PRODUCTS_WAY_TILES, 2), *fma = multiply(o, TREK_PRODUCTS_WAY_FMA, 1);
    for (int64_t i = 0; i < o->m; i++)
        for (int64_t j = 0; j < o->n; j++) {
            const float x = tiles[i * o->n + j], y = fma[i * o->n + j];
            double size = 0;
            for (int64_t p = 0; p < o->k; p++)
                size += fabs((double)*at_a(o, i, p) * (double)*at_b(o, p, j));
            if (size >= 0x1p127 && isfinite(size))
                continue; /* whether it overflows depends on the order of the sum */
            if (isfinite(size))
                assert_true(fabs((double)x - (double)y) <= 0x1p-20 * size + 0x1p-149 * (double)o->k);
            else
                assert_true(isnan(y) ? isnan(x) : x == y);
        }
}

static void check_special_values(void)
{
    static const float values[] = { NAN,    INFINITY, -INFINITY, 3.4e38f,   -3.4e38f, 0x1p127f,
                                    1e-45f, -1e-39f,  0x1p-126f, 0x1p-110f, 0 };
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
        operands o = random_operands(70, 100, 90, v % 2, v % 4 > 1);
        *at_a(&o, 37, 11) = *at_b(&o, 60, 75) = *at_b(&o, 11, 3) = values[v];
        expect_as_by_multiply_add(&o);
    }
}

static void special_values_have_their_places(void **state) { with_each_set(check_special_values); }

/* Sizes from one end of f32's to the other: of a, of b, of both, so that products are in range, overflow and vanish. */
static void check_sizes(void)
{
    static const int exponents[][2] = { { 120, -120 }, { -120, 120 }, { 64, 63 },  { 60, 60 },   { -60, -60 },
                                        { -48, -46 },  { -90, 0 },    { 0, -100 }, { 125, -60 }, { -75, -75 } };
    for (size_t e = 0; e < sizeof exponents / sizeof *exponents; e++) {
        operands o = random_operands(33, 34, 64, e % 2, e % 4 > 1);
        for (int64_t p = 0; p < o.k; p++) {
            for (int64_t i = 0; i < o.m; i++)
                *at_a(&o, i, p) = ldexpf(*at_a(&o, i, p), exponents[e][0]);
            for (int64_t j = 0; j < o.n; j++)
                *at_b(&o, p, j) = ldexpf(*at_b(&o, p, j), exponents[e][1]);
        }
        expect_as_by_multiply_add(&o);
    }
}

static void sizes_at_the_ends_of_the_range_are_right(void **state) { with_each_set(check_sizes); }

/* -- threads -- */

static void check_threads(void)
{
    static const int64_t shapes[][3] = { { 300, 200, 70 }, { 2, 1000, 300 }, { 257, 2, 9 }, { 100, 130, 1500 }, { 40, 40, 0 } };
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int64_t *shape = shapes[s];
        operands o = random_operands(shape[0], shape[1], shape[2], s % 2, s % 3 > 0);
        if (o.k > 0)
            *at_a(&o, o.m - 1, o.k / 2) = INFINITY;
        const size_t bytes = (size_t)(o.m * o.n) * sizeof(float);
        const float *one = multiply(&o, TREK_PRODUCTS_WAY_TILES, 1);
        assert_memory_equal(multiply(&o, TREK_PRODUCTS_WAY_TILES, 2), one, bytes);
        assert_memory_equal(multiply(&o, TREK_PRODUCTS_WAY_TILES, 5), one, bytes);
        if (o.k > 30 && s != 1)
            assert_memory_not_equal(multiply(&o, TREK_PRODUCTS_WAY_FMA, 1), one, bytes); /* tiles did compute */
    }
}

static void threads_change_no_bit(void **state) { with_each_set(check_threads); }

/* -- operands that are not packed at once -- */

static void check_slabs(const int64_t *shape)
{
    trek_scope scope = trek_scope_begin();
    operands o = random_operands(shape[0], shape[1], shape[2], false, true);
    const float *c = multiply(&o, TREK_PRODUCTS_WAY_TILES, 2);
    for (int64_t place = 0; place < o.m * o.n; place += 37) {
        double sum = 0, size = 0;
        for (int64_t p = 0; p < o.k; p++) {
            double term = (double)*at_a(&o, place / o.n, p) * (double)*at_b(&o, p, place % o.n);
            sum += term;
            size += fabs(term);
        }
        assert_true(fabs((double)c[place] - sum) <= 0x1p-22 * size);
    }
    trek_scope_end(scope);
}

/* More columns, more rows, and more of both than fit into what is packed at a time. */
static void large_operands_are_packed_in_slabs(void **state)
{
    static const int64_t shapes[][3] = { { 2, 4000, 4200 }, { 4000, 2, 4200 }, { 208, 208, 40000 } };
    for (int s = 0; s < (test_short() ? 2 : 3); s++)
        check_slabs(shapes[s]);
}

/* -- bf16 -- */

static void check_bf16(void)
{
    for (int shape = 0; shape < 4; shape++) {
        operands o = random_operands(45, 77, 101 + shape, shape & 1, shape & 2);
        for (int64_t p = 0; p < o.k; p++) {
            for (int64_t i = 0; i < o.m; i++)
                *at_a(&o, i, p) = trek_f32_from_bf16(trek_bf16_from_f32(*at_a(&o, i, p)));
            for (int64_t j = 0; j < o.n; j++)
                *at_b(&o, p, j) = trek_f32_from_bf16(trek_bf16_from_f32(*at_b(&o, p, j)));
        }
        *at_b(&o, 7, 3) = NAN;
        trek_products_choose(TREK_BF16, TREK_PRODUCTS_WAY_TILES);
        trek_var *x = trek_cast(trek_var_new(o.a, false), TREK_BF16), *y = trek_cast(trek_var_new(o.b, false), TREK_BF16);
        trek_var *c = trek_matmul(o.transpose_a ? trek_transpose(x, 0, 1) : x, o.transpose_b ? trek_transpose(y, 0, 1) : y);
        trek_products_choose(TREK_BF16, TREK_PRODUCTS_WAY_MEASURED);
        assert_non_null(c);
        const uint16_t *results = (const uint16_t *)(const void *)trek_var_data(c)->data;
        for (int64_t i = 0; i < o.m; i++)
            for (int64_t j = 0; j < o.n; j++) {
                double sum = 0, size = 0, result = (double)trek_f32_from_bf16(results[i * o.n + j]);
                for (int64_t p = 0; p < o.k; p++) {
                    double term = (double)*at_a(&o, i, p) * (double)*at_b(&o, p, j);
                    sum += term;
                    size += fabs(term);
                }
                assert_true(j == 3 ? isnan(result) : fabs(result - sum) <= 0x1p-8 * fabs(sum) + 0x1p-20 * size);
            }
    }
}

static void bf16_is_right(void **state) { with_each_set(check_bf16); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_are_not_larger_than_by_multiply_add),
        cmocka_unit_test(lower_precision_has_fewer_bits),
        cmocka_unit_test(special_values_have_their_places),
        cmocka_unit_test(sizes_at_the_ends_of_the_range_are_right),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(large_operands_are_packed_in_slabs),
        cmocka_unit_test(bf16_is_right),
    };
    return cmocka_run_group_tests_name("tiles", tests, NULL, NULL);
}
