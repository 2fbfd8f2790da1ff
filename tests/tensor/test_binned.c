/* SPDX-License-Identifier: Apache-2.0 */
/* Sums that do not depend on the order of their terms (tensor/binned.h): any order, any grouping and any instruction set
 * give the same bits, which are those of the exact sum as far as promised. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/backend.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { MOST_TERMS = 24, MOST_COUNT = 3 * TREK_BINNED_BLOCK + 57 };

static uint64_t drawn;
static uint64_t draw(void) { return test_draw(&drawn, 0); }
static int below(int n) { return (int)test_draw(&drawn, (uint64_t)n); }

/* --- sums of tests --- */

static trek_binned sum_new(trek_dtype dtype, int64_t count)
{
    trek_binned sum = { .dtype = dtype, .count = count };
    for (int k = 0; k < trek_binned_digits(dtype); k++) {
        sum.digits[k] = malloc((size_t)count * sizeof(int64_t));
        memset(sum.digits[k], 0x5a, (size_t)count * sizeof(int64_t)); /* undefined */
    }
    sum.bins = malloc((size_t)trek_binned_blocks(count) * sizeof *sum.bins);
    for (int64_t b = 0; b < trek_binned_blocks(count); b++)
        sum.bins[b] = TREK_BINNED_EMPTY;
    return sum;
}

static void sum_free(trek_binned *sum)
{
    for (int k = 0; k < TREK_BINNED_DIGITS; k++)
        free(sum->digits[k]);
    free(sum->bins);
}

/* Adds n terms in one call. terms: one after the other. */
static void add(const trek_binned *sum, const char *terms, int n)
{
    size_t bytes = (size_t)sum->count * trek_dtype_size(sum->dtype), all = bytes * (size_t)n;
    char *copy = malloc(all);
    void *at[TREK_BINNED_TERMS];
    memcpy(copy, terms, all);
    for (int k = 0; k < n; k++)
        at[k] = copy + (size_t)k * bytes;
    bool zero = below(2);
    trek_cpu_backend()->binned_add(sum, at, n, 0, trek_binned_blocks(sum->count), zero);
    for (size_t k = 0; k < all && zero; k++)
        assert_int_equal(copy[k], 0);
    assert_true(zero || memcmp(copy, terms, all) == 0);
    free(copy);
}

static void read_sum(const trek_binned *sum, double factor, void *to)
{
    trek_cpu_backend()->binned_read(sum, factor, to, 0, trek_binned_blocks(sum->count));
}

static int64_t short_blocks, long_blocks; /* how often sums went as one integer, and did not */

/* Adds integers of all sums to those of the first. */
static void add_integers(trek_binned *sums, int n, int d, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++)
        for (int k = 1; k < n; k++)
            sums[0].digits[d][i] += sums[k].digits[d][i];
}

static void join_digits(trek_binned *sums, int n, const int32_t *bins)
{
    for (int d = 0; d < trek_binned_digits(sums[0].dtype); d++)
        for (int64_t b = 0; b < trek_binned_blocks(sums[0].count); b++)
            if (bins[b] != TREK_BINNED_EMPTY)
                add_integers(sums, n, d, b * TREK_BINNED_BLOCK,
                             (b + 1) * TREK_BINNED_BLOCK < sums[0].count ? (b + 1) * TREK_BINNED_BLOCK : sums[0].count);
}

/* The same with one integer for each element, in a slice of the blocks and the rest. */
static void join_short(trek_binned *sums, int n, const trek_binned_bounds *bounds)
{
    int64_t blocks = trek_binned_blocks(sums[0].count), cut = below((int)blocks + 1);
    int64_t *all = calloc((size_t)sums[0].count, sizeof *all), *one = malloc((size_t)sums[0].count * sizeof *one);
    for (int k = 0; k < n; k++) {
        trek_cpu_backend()->binned_shorten(&sums[k], bounds, 0, cut, one);
        trek_cpu_backend()->binned_shorten(&sums[k], bounds, cut, blocks - cut, one + cut * TREK_BINNED_BLOCK);
        for (int64_t i = 0; i < sums[0].count; i++)
            all[i] += one[i];
    }
    for (int64_t b = 0; b < blocks; b++) {
        bool fits = bounds->bins[b] == TREK_BINNED_EMPTY || trek_binned_fits(bounds, b);
        *(fits ? &short_blocks : &long_blocks) += 1;
        int64_t begin = b * TREK_BINNED_BLOCK, end = begin + TREK_BINNED_BLOCK;
        if (!fits)
            add_integers(sums, n, 1, begin, end < sums[0].count ? end : sums[0].count);
    }
    trek_cpu_backend()->binned_expand(&sums[0], bounds, cut, blocks - cut, all + cut * TREK_BINNED_BLOCK);
    trek_cpu_backend()->binned_expand(&sums[0], bounds, 0, cut, all);
    free(all);
    free(one);
}

/* Adds up as processes do: bins first, then integers. */
static void join(trek_binned *sums, int n)
{
    int64_t blocks = trek_binned_blocks(sums[0].count);
    int32_t *most = malloc(3 * (size_t)blocks * sizeof *most), *own = malloc(2 * (size_t)blocks * sizeof *own);
    for (int64_t b = 0; b < 3 * blocks; b++)
        most[b] = INT32_MIN;
    for (int k = 0; k < n; k++) {
        if (sums[0].dtype == TREK_F32)
            trek_cpu_backend()->binned_bounds(&sums[k], own, own + blocks);
        for (int64_t b = 0; b < blocks; b++)
            most[b] = sums[k].bins[b] > most[b] ? sums[k].bins[b] : most[b];
        for (int64_t b = 0; b < 2 * blocks && sums[0].dtype == TREK_F32; b++)
            most[blocks + b] = own[b] > most[blocks + b] ? own[b] : most[blocks + b];
    }
    for (int k = 0; k < n; k++)
        trek_cpu_backend()->binned_raise(&sums[k], most);
    if (sums[0].dtype == TREK_F32 && below(2))
        join_short(sums, n, &(trek_binned_bounds){ most, most + blocks, most + 2 * blocks, n });
    else
        join_digits(sums, n, most);
    free(most);
    free(own);
}

/* --- terms --- */

typedef struct terms {
    trek_dtype dtype;
    int n;
    int64_t count;
    double values[MOST_TERMS][MOST_COUNT]; /* f32 if dtype is */
} terms;

static double round_to(trek_dtype dtype, double x) { return dtype == TREK_F32 ? (double)(float)x : x; }

/* Magnitudes are around 2^centre, in one of several ways: a few powers of two, nearly all of them, a term of another
 * size, whole blocks of zeros, inf and NaN. */
static void draw_terms(terms *t)
{
    t->dtype = below(2) ? TREK_F32 : TREK_F64;
    t->n = 1 + below(MOST_TERMS);
    t->count = 1 + below(MOST_COUNT);
    int reach = t->dtype == TREK_F32 ? 120 : 900, centre = below(2 * reach) - reach,
        spread = below(3) ? 1 + below(8) : 1 + below(90);
    int zeros = below(3), odd = below(3) ? 0 : 1 + below(3);
    for (int k = 0; k < t->n; k++) {
        int own = below(4) ? 0 : below(120) - 60;
        for (int64_t i = 0; i < t->count; i++) {
            double mantissa = 1 + (double)(draw() >> 12) * 0x1p-52;
            int exponent = centre + own + below(spread) - spread / 2;
            double value = ldexp(below(2) ? mantissa : -mantissa, exponent);
            bool zero = zeros == 2 ? (k + i / TREK_BINNED_BLOCK) % 2 == 0 : zeros == 1 && below(10) == 0;
            t->values[k][i] = zero ? (below(2) ? 0.0 : -0.0) : round_to(t->dtype, value);
        }
    }
    static const double oddities[] = { INFINITY, -INFINITY, NAN };
    for (int k = 0; k < odd * 5; k++)
        t->values[below(t->n)][below((int)t->count)] = oddities[below(3)];
}

/* Writes a term to the place of number `at` in `room`. */
static void put_term(const terms *t, int k, void *room, int at)
{
    for (int64_t i = 0; i < t->count; i++)
        if (t->dtype == TREK_F32)
            ((float *)room)[at * t->count + i] = (float)t->values[k][i];
        else
            ((double *)room)[at * t->count + i] = t->values[k][i];
}

/* Sums the terms in some order, by some ranks of some processes, and writes the result. */
static void sum_somehow(const terms *t, double factor, void *result)
{
    int processes = 1 + below(4), order[MOST_TERMS];
    static double room[TREK_BINNED_TERMS * MOST_COUNT];
    trek_binned of[4], ranks[4][3];
    int n_ranks[4];
    for (int k = 0; k < t->n; k++)
        order[k] = k;
    for (int k = t->n - 1; k > 0; k--) {
        int other = below(k + 1), kept = order[k];
        order[k] = order[other];
        order[other] = kept;
    }
    for (int p = 0; p < processes; p++) {
        n_ranks[p] = 1 + below(3);
        for (int r = 0; r < n_ranks[p]; r++)
            ranks[p][r] = sum_new(t->dtype, t->count);
    }
    for (int k = 0, n; k < t->n; k += n) {
        int p = below(processes), most = t->n - k < TREK_BINNED_TERMS ? t->n - k : TREK_BINNED_TERMS;
        n = below(2) ? 1 : 1 + below(most);
        for (int j = 0; j < n; j++)
            put_term(t, order[k + j], room, j);
        add(&ranks[p][below(n_ranks[p])], (const char *)room, n);
    }
    for (int p = 0; p < processes; p++) {
        const trek_binned *others[2] = { &ranks[p][1], &ranks[p][2] };
        trek_cpu_backend()->binned_merge(&ranks[p][0], others, n_ranks[p] - 1, 0, trek_binned_blocks(t->count));
        of[p] = ranks[p][0];
    }
    join(of, processes);
    read_sum(&of[0], factor, result);
    for (int p = 0; p < processes; p++)
        for (int r = 0; r < n_ranks[p]; r++)
            sum_free(&ranks[p][r]);
}

/* Compares with a sum in extended precision. Its own error, and digits below the promised ones, are allowed for. */
static void check_against_plain(const terms *t, double factor, const void *result)
{
    for (int64_t block = 0; block < trek_binned_blocks(t->count); block++) {
        int64_t begin = block * TREK_BINNED_BLOCK,
            end = begin + TREK_BINNED_BLOCK < t->count ? begin + TREK_BINNED_BLOCK : t->count;
        double most = 0;
        for (int k = 0; k < t->n; k++)
            for (int64_t i = begin; i < end; i++)
                most = isfinite(t->values[k][i]) && fabs(t->values[k][i]) > most ? fabs(t->values[k][i]) : most;
        for (int64_t i = begin; i < end; i++) {
            long double sum = 0, sizes = 0;
            bool nan = false;
            for (int k = 0; k < t->n; k++) {
                nan |= !isfinite(t->values[k][i]);
                sum += nan ? 0 : t->values[k][i];
                sizes += nan ? 0 : fabsl(t->values[k][i]);
            }
            double have = t->dtype == TREK_F32 ? (double)((const float *)result)[i] : ((const double *)result)[i];
            if (nan) {
                assert_true(isnan(have));
                continue;
            }
            long double lost = t->n * (long double)most * (t->dtype == TREK_F32 ? 0x1p-36L : 0x1p-72L);
            long double want = sum * factor, room = fabsl((lost + sizes * 0x1p-60L) * factor) +
                fabsl(want) * (t->dtype == TREK_F32 ? 0x1p-24L : 0x1p-51L) + (t->dtype == TREK_F32 ? 0x1p-149L : 0x1p-1000L);
            long double limit = t->dtype == TREK_F32 ? 3.4e38L : 1.79e308L;
            if (fabsl(want) < limit && !(fabsl(have - want) <= room))
                fail_msg("element %lld of %d terms around %g: %.17g, not %.17Lg; at most %.3Lg apart", (long long)i, t->n, most,
                         have, want, room);
        }
    }
}

static void any_order_and_grouping_gives_the_same_bits(void **state)
{
    drawn = test_seed();
    terms *t = malloc(sizeof *t);
    static double first[MOST_COUNT], again[MOST_COUNT];
    for (int round = 0; round < (test_short() ? 60 : 400); round++) {
        draw_terms(t);
        double factor = below(2) ? 1 : (double)(1 + below(1000)) / 77;
        size_t bytes = (size_t)t->count * trek_dtype_size(t->dtype);
        sum_somehow(t, factor, first);
        check_against_plain(t, factor, first);
        for (int k = 0; k < 4; k++) {
            sum_somehow(t, factor, again);
            assert_memory_equal(first, again, bytes);
        }
    }
    free(t);
    assert_true(short_blocks > 50 && long_blocks > 5);
}

/* The most terms, all of the largest size that their bin has, with one that is NaN, fit into the digits. */
static void the_most_terms_fit(void **state)
{
    float value = 0x1.fffffep34f, sum;
    trek_binned many = sum_new(TREK_F32, 1), odd = sum_new(TREK_F32, 1);
    float nan = NAN;
    for (int k = 0; k < TREK_BINNED_MOST; k++)
        trek_cpu_backend()->binned_add(&many, (void *[]){ &value }, 1, 0, 1, false);
    read_sum(&many, 1, &sum);
    assert_true(sum == (float)((double)value * TREK_BINNED_MOST));
    for (int k = 0; k < TREK_BINNED_MOST; k++) {
        float low = -value;
        trek_cpu_backend()->binned_add(&odd, (void *[]){ k % 2 ? &nan : &low }, 1, 0, 1, false);
    }
    read_sum(&odd, 1, &sum);
    assert_true(isnan(sum));
    const trek_binned *others[] = { &odd };
    for (int k = 0; k < 1024; k++)
        trek_cpu_backend()->binned_merge(&many, others, 1, 0, 1);
    read_sum(&many, 1, &sum);
    assert_true(isnan(sum));
    sum_free(&many);
    sum_free(&odd);
}

/* So do the smallest numbers that there are. */
static void the_smallest_numbers_count(void **state)
{
    float value = 0x1p-149f, sum;
    trek_binned many = sum_new(TREK_F32, 1);
    for (int k = 0; k < 3; k++)
        trek_cpu_backend()->binned_add(&many, (void *[]){ &value }, 1, 0, 1, false);
    read_sum(&many, 1, &sum);
    assert_true(sum == 3 * value);
    sum_free(&many);
}

/* A part of the blocks can be added, merged and read by itself, as slices of ranks are. */
static void slices_are_independent(void **state)
{
    enum { COUNT = 5 * TREK_BINNED_BLOCK };
    float values[COUNT], whole[COUNT], parts[COUNT];
    drawn = 7;
    for (int i = 0; i < COUNT; i++)
        values[i] = test_number(3, (uint32_t)i);
    trek_binned a = sum_new(TREK_F32, COUNT), b = sum_new(TREK_F32, COUNT);
    add(&a, (const char *)values, 1);
    read_sum(&a, 0.3, whole);
    for (int slice = 0; slice < 5; slice += 2)
        trek_cpu_backend()->binned_add(&b, (void *[]){ values }, 1, slice, slice < 4 ? 2 : 1, false);
    for (int block = 0; block < 5; block++)
        trek_cpu_backend()->binned_read(&b, 0.3, parts, block, 1);
    assert_memory_equal(whole, parts, sizeof whole);
    sum_free(&a);
    sum_free(&b);
}

/* --- gradients of weights that are not computed before --- */

enum { MOST_PRODUCTS = TREK_BINNED_TERMS, MOST_SAMPLES = 20 };

typedef struct weight {
    int64_t rows, columns, count; /* count: with padding */
    int n;
    trek_binned_product terms[MOST_PRODUCTS];
} weight;

static float *draw_floats(int64_t n, int spread)
{
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = ldexpf((float)(draw() >> 40) * 0x1p-24f - 0.5f, below(spread));
    return x;
}

static weight draw_weight(void)
{
    static const int64_t columns[] = { 1, 7, 64, 120, 256, 300, 512, 784, 1024 };
    weight w = { .rows = 1 + below(90), .columns = columns[below(9)], .n = 1 + below(MOST_PRODUCTS) };
    w.count = trek_binned_blocks(w.rows * w.columns) * TREK_BINNED_BLOCK;
    for (int k = 0; k < w.n; k++) {
        int64_t samples = 1 + below(MOST_SAMPLES);
        w.terms[k] = (trek_binned_product){ draw_floats(samples * w.rows, 1 + below(40)), draw_floats(samples * w.columns, 3),
                                            samples };
    }
    const trek_binned_product *one = &w.terms[below(w.n)];
    if (below(4) == 0)
        ((float *)(below(2) ? one->x : one->grad))[0] = below(3) == 0 ? NAN : below(2) ? INFINITY : 3e38f;
    for (int64_t s = 0; s < one->samples && below(2); s++) /* rows of zeros */
        ((float *)one->grad)[s * w.rows + w.rows / 2] = 0;
    return w;
}

static void weight_free(weight *w)
{
    for (int k = 0; k < w->n; k++) {
        free((void *)w->terms[k].grad);
        free((void *)w->terms[k].x);
    }
}

static void expect_product(const weight *w, const trek_binned_product *term, const float *result)
{
    int64_t i = below((int)w->rows), j = below((int)w->columns);
    double want = 0, size = 0;
    for (int64_t s = 0; s < term->samples; s++) {
        double part = (double)term->grad[s * w->rows + i] * (double)term->x[s * w->columns + j];
        want += part;
        size += fabs(part);
    }
    if (size < 1e38) /* otherwise it may be inf */
        assert_true(fabs((double)result[i * w->columns + j] - want) <= 1e-5 * size);
}

/* Terms that are computed as they are added give what they give when they are computed before, alone or together with others, and
 * touch nothing behind the weight. */
static void products_have_the_bits_of_their_terms(void **state)
{
    (void)state;
    drawn = test_seed() + 5;
    for (int round = 0; round < (test_short() ? 40 : 300); round++) {
        weight w = draw_weight();
        trek_binned together = sum_new(TREK_F32, w.count), apart = sum_new(TREK_F32, w.count);
        float *one = malloc((size_t)w.count * sizeof *one), *first = malloc((size_t)w.count * sizeof *first);
        int cut = below(w.n + 1);
        assert_int_equal(trek_cpu_backend()->binned_add_products(&together, w.rows, w.columns, w.terms, cut), TREK_OK);
        assert_int_equal(trek_cpu_backend()->binned_add_products(&together, w.rows, w.columns, w.terms + cut, w.n - cut),
                         TREK_OK);
        for (int k = w.n - 1; k >= 0; k--) {
            for (int64_t i = 0; i < w.count; i++)
                one[i] = 0;
            assert_int_equal(trek_cpu_backend()->binned_write_product(one, w.rows, w.columns, &w.terms[k]), TREK_OK);
            expect_product(&w, &w.terms[k], one);
            for (int64_t i = w.rows * w.columns; i < w.count; i++)
                assert_true(one[i] == 0);
            add(&apart, (const char *)one, 1);
        }
        read_sum(&together, 0.7, first);
        memset(one, 0, (size_t)w.count * sizeof *one);
        assert_int_equal(trek_cpu_backend()->binned_read_products(one, w.rows, w.columns, w.terms, w.n, 0.7), TREK_OK);
        for (int64_t i = 0; i < w.count; i++)
            assert_true(memcmp(&first[i], &one[i], sizeof *one) == 0 || (isnan(first[i]) && isnan(one[i])));
        read_sum(&apart, 0.7, one);
        for (int64_t i = 0; i < w.count; i++)
            assert_true(memcmp(&first[i], &one[i], sizeof *one) == 0 || (isnan(first[i]) && isnan(one[i])));
        free(one);
        free(first);
        sum_free(&together);
        sum_free(&apart);
        weight_free(&w);
    }
}

/* A weight's rows are cut where blocks are, and only products of few samples are left. */
static void few_samples_of_large_weights_wait(void **state)
{
    (void)state;
    for (int64_t columns = 1; columns < 3000; columns++) {
        int64_t band = trek_binned_band(columns);
        assert_true(band >= 1 && band * columns % TREK_BINNED_BLOCK == 0);
        assert_true(band == 1 || band / 2 * columns % TREK_BINNED_BLOCK != 0);
    }
    assert_true(trek_binned_takes_product(2048, 2048, 64) && !trek_binned_takes_product(2048, 2048, 65));
    assert_true(trek_binned_takes_product(120, 256, 4) && !trek_binned_takes_product(120, 256, 16));
    assert_false(trek_binned_takes_product(10, 84, 2));
    assert_false(trek_binned_takes_product(2048, 2047, 4)); /* 256 of its rows fit into no cache */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order_and_grouping_gives_the_same_bits),
        cmocka_unit_test(the_most_terms_fit),
        cmocka_unit_test(the_smallest_numbers_count),
        cmocka_unit_test(slices_are_independent),
        cmocka_unit_test(products_have_the_bits_of_their_terms),
        cmocka_unit_test(few_samples_of_large_weights_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
