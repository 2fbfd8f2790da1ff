/* SPDX-License-Identifier: Apache-2.0 */
/* Dividing whole samples: by hand, against quotas in whole numbers, and what is refused. */
#include "distributed/balance/apportion.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { MOST = 64 };

static void by_hand(void **state)
{
    static const struct { int64_t total; int n; double weights[4]; int64_t counts[4]; } cases[] = {
        { 10, 2, { .5, .5 }, { 5, 5 } }, { 11, 2, { .5, .5 }, { 6, 5 } }, { 3, 2, { .5, .5 }, { 2, 1 } },
        { 10, 2, { .7, .3 }, { 7, 3 } }, { 100, 2, { .7, .3 }, { 70, 30 } }, { 10, 3, { .5, .3, .2 }, { 5, 3, 2 } },
        { 1, 3, { .4, .3, .3 }, { 1, 0, 0 } }, { 0, 2, { .5, .5 }, { 0, 0 } }, { 7, 3, { .5, 0, .5 }, { 4, 0, 3 } },
        { 10, 4, { 1, 2, 0, 4 }, { 1, 3, 0, 6 } }, /* quotas 1.43 2.86 0 5.71 */
        { 2, 2, { 1, 3 }, { 1, 1 } },              /* 0.5 and 1.5: to the first of equal remainders */
        { 5, 1, { 1e-300 }, { 5 } }, { 3, 3, { 1e-300, 1, 1e-300 }, { 0, 3, 0 } }, { 9, 3, { 1e300, 1e300, 1e300 }, { 3, 3, 3 } },
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        int64_t counts[4];
        assert_int_equal(trek_apportion(cases[k].total, cases[k].weights, cases[k].n, counts), TREK_OK);
        for (int r = 0; r < cases[k].n; r++)
            if (counts[r] != cases[k].counts[r])
                fail_msg("case %d: party %d has %lld, not %lld", (int)k, r, (long long)counts[r], (long long)cases[k].counts[r]);
    }
}

/* The first ones get the items that are left, whatever the equal weights are: pass/shares.c divides evenly without asking. */
static void equal_parts(void **state)
{
    for (int n = 1; n <= MOST; n++)
        for (int64_t total = 0; total < 3 * MOST; total++) {
            int64_t counts[MOST], same[MOST];
            double ones[MOST];
            for (int k = 0; k < n; k++)
                ones[k] = total % 2 ? 3 : 1.0 / n;
            assert_int_equal(trek_apportion(total, NULL, n, counts), TREK_OK);
            for (int k = 0; k < n; k++)
                assert_true(counts[k] == total / n + (k < total % n));
            assert_int_equal(trek_apportion(total, ones, n, same), TREK_OK);
            assert_memory_equal(counts, same, (size_t)n * sizeof *counts);
        }
}

/* counts are those of Hamilton's method, in whole numbers: quota k is total * weights[k] / sum. */
static void check_hamilton(int64_t total, const int64_t *weights, int n, const int64_t *counts)
{
    int64_t sum = 0, given = 0, rest[MOST];
    for (int k = 0; k < n; k++)
        sum += weights[k];
    for (int k = 0; k < n; k++) {
        int64_t whole = total * weights[k] / sum;
        rest[k] = total * weights[k] % sum;
        given += counts[k];
        if (counts[k] != whole && !(rest[k] > 0 && counts[k] == whole + 1))
            fail_msg("party %d of %d has %lld, its quota is %lld and %lld / %lld", k, n, (long long)counts[k], (long long)whole,
                     (long long)rest[k], (long long)sum);
        rest[k] = counts[k] == whole ? rest[k] : -rest[k]; /* negative: rounded up */
    }
    assert_true(given == total);
    for (int up = 0; up < n; up++)
        for (int down = 0; down < n && rest[up] < 0; down++)
            if (rest[down] > -rest[up])
                fail_msg("of %lld items party %d got one more with a remainder of %lld, party %d none with %lld",
                         (long long)total, up, (long long)-rest[up], down, (long long)rest[down]);
}

static void largest_remainders(void **state)
{
    uint32_t draw = 0;
    for (int run = 0; run < 4000; run++) {
        int n = 1 + (int)((1 + test_number(1, draw++)) * 0.5 * (MOST - 1));
        int64_t total = (int64_t)((1 + test_number(2, draw++)) * (run % 2 ? 500 : 500000)), whole[MOST], counts[MOST];
        double weights[MOST];
        for (int k = 0; k < n; k++) {
            whole[k] = test_number(4, draw) > -0.8 ? (int64_t)((1 + test_number(3, draw)) * 500) : 0; /* some have none */
            draw++;
            whole[0] += k == 0 && whole[0] == 0;
            weights[k] = (double)whole[k] / 1024;
        }
        assert_int_equal(trek_apportion(total, weights, n, counts), TREK_OK);
        check_hamilton(total, whole, n, counts);
        for (int k = 0; k < n; k++)
            assert_true(whole[k] > 0 || counts[k] == 0);
    }
}

/* Quotas are rounded: each item is given once all the same, and nobody is far from the quota. */
static void rounding_loses_nothing(void **state)
{
    static const int64_t totals[] = { 1, 7, 999, (INT64_C(1) << 31) + 1, (INT64_C(1) << 52) + 1, INT64_C(1) << 53 };
    uint32_t draw = 0;
    for (size_t t = 0; t < sizeof totals / sizeof *totals; t++)
        for (int run = 0; run < 200; run++) {
            int n = 1 + run % MOST;
            int64_t counts[MOST], given = 0;
            double weights[MOST], sum = 0;
            for (int k = 0; k < n; k++) {
                weights[k] = exp(40 * (double)test_number(9, draw++));
                sum += weights[k];
            }
            assert_int_equal(trek_apportion(totals[t], weights, n, counts), TREK_OK);
            for (int k = 0; k < n; k++) {
                given += counts[k];
                double quota = (double)totals[t] * (weights[k] / sum);
                if (counts[k] < 0 || !(fabs((double)counts[k] - quota) < 2 + 1e-14 * quota))
                    fail_msg("%lld among %d: party %d has %lld of a quota of %.17g", (long long)totals[t], n, k,
                             (long long)counts[k], quota);
            }
            assert_true(given == totals[t]);
        }
}

static void refused(int64_t total, const double *weights, int n, const char *part)
{
    int64_t counts[3] = { -7, -7, -7 };
    assert_int_equal(trek_apportion(total, weights, n, counts), TREK_ERR_ARGUMENT);
    assert_int_equal(trek_error_status(), TREK_ERR_ARGUMENT);
    if (strncmp(trek_error(), "apportion: ", 11) != 0 || !strstr(trek_error(), part))
        fail_msg("\"%s\" does not say \"%s\"", trek_error(), part);
    for (int k = 0; k < 3; k++)
        assert_true(counts[k] == -7); /* nothing is written */
    trek_error_clear();
}

static void bad_calls(void **state)
{
    refused(-1, NULL, 2, "-1 items among 2");
    refused(INT64_MIN, NULL, 2, "items among 2");
    refused(5, NULL, 0, "5 items among 0");
    refused(5, NULL, -3, "5 items among -3");
    refused(5, (double[]){ 1, -1, 1 }, 3, "weight 1: -1");
    refused(5, (double[]){ 1, 1, NAN }, 3, "weight 2:");
    refused(5, (double[]){ INFINITY, 1 }, 2, "weight 0: inf");
    refused(5, (double[]){ 0, 0 }, 2, "sum is 0");
    refused(5, (double[]){ 1.5e308, 1.5e308 }, 2, "sum is inf");
    refused((INT64_C(1) << 53) + 1, NULL, 2, "items among 2"); /* no f64 */
    refused(INT64_MAX, (double[]){ 1 }, 1, "items among 1");
    FAILS(trek_apportion(5, NULL, 2, NULL), TREK_ERR_ARGUMENT, "counts");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand), cmocka_unit_test(equal_parts), cmocka_unit_test(largest_remainders),
        cmocka_unit_test(rounding_loses_nothing), cmocka_unit_test(bad_calls),
    };
    return cmocka_run_group_tests_name("apportion", tests, NULL, NULL);
}
