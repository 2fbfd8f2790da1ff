/* SPDX-License-Identifier: Apache-2.0 */
/* El Che: its numbers by hand, its promises on random speeds, with jitter and with
 * changes of pace in mid-run. Times are simulated; the code is the real one. */
#include "distributed/balance/elche.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { MOST = 64 };

static double uniform(uint32_t stream, uint32_t k) { return 0.5 + 0.5 * (double)test_number(stream, k); } /* [0, 1) */

static void check_counts(const trek_elche *e, int n, const int64_t *expected)
{
    int64_t counts[MOST];
    assert_int_equal(trek_elche_counts(e, counts), TREK_OK);
    for (int r = 0; r < n; r++)
        if (counts[r] != expected[r])
            fail_msg("rank %d has %lld, not %lld", r, (long long)counts[r], (long long)expected[r]);
}

#define COUNTS(e, ...) \
    check_counts(e, (int)(sizeof((const int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), (const int64_t[]){ __VA_ARGS__ })

static void report(trek_elche *e, const double *ms, const int64_t *batches, double communication)
{
    assert_int_equal(trek_elche_report(e, ms, batches, communication), TREK_OK);
}

/* Two ranks. */
static void report2(trek_elche *e, double ms0, double ms1, int64_t n0, int64_t n1, double communication)
{
    report(e, (const double[]){ ms0, ms1 }, (const int64_t[]){ n0, n1 }, communication);
}

/* A window as its counts say, at so many milliseconds a batch, with jitter of that relative size. */
static void run_window(trek_elche *e, int n, const double *pace, double communication, double jitter, uint32_t *draw)
{
    int64_t counts[MOST];
    double ms[MOST];
    assert_int_equal(trek_elche_counts(e, counts), TREK_OK);
    for (int r = 0; r < n; r++)
        ms[r] = (double)counts[r] * pace[r] * (1 + jitter * (2 * uniform(7, (*draw)++) - 1));
    report(e, ms, counts, communication);
}

/* Throughput of a window with the present counts against the sum of the ranks' own. */
static double fraction(const trek_elche *e, int n, const double *pace)
{
    int64_t counts[MOST];
    double sum = 0, ideal = 0, longest = 0;
    assert_int_equal(trek_elche_counts(e, counts), TREK_OK);
    for (int r = 0; r < n; r++) {
        sum += (double)counts[r];
        ideal += 1 / pace[r];
        longest = fmax(longest, (double)counts[r] * pace[r]);
    }
    return sum / longest / ideal;
}

/* What whole batches allow: each next one goes where it ends soonest. */
static double best_fraction(int n, const double *pace, int64_t total)
{
    int64_t counts[MOST];
    double ideal = 0, longest = 0;
    for (int r = 0; r < n; r++) {
        counts[r] = 1;
        ideal += 1 / pace[r];
    }
    for (int64_t given = n; given < total; given++) {
        int best = 0;
        for (int r = 1; r < n; r++)
            best = (double)(counts[r] + 1) * pace[r] < (double)(counts[best] + 1) * pace[best] ? r : best;
        counts[best]++;
    }
    for (int r = 0; r < n; r++)
        longest = fmax(longest, (double)counts[r] * pace[r]);
    return (double)total / longest / ideal;
}

/* --- by hand --------------------------------------------------------------------------- */

static void starts_equal(void **state)
{
    trek_elche *e = trek_elche_new(3, NULL);
    assert_non_null(e);
    COUNTS(e, 10, 10, 10);
    assert_int_equal(trek_elche_total(e), 30);
    assert_int_equal(trek_elche_anchor(e), 10);
    assert_false(trek_elche_calibrated(e));
    assert_true(trek_elche_ms_per_batch(e, 1) == 0);
    assert_true(trek_elche_predicted_speedup(e) == 0 && trek_elche_achieved_speedup(e) == 0);
    trek_elche_free(&e);
    assert_null(e);
    trek_elche_free(&e);
    trek_elche_free(NULL);
}

static void first_report_calibrates(void **state)
{
    trek_elche *e = trek_elche_new(2, NULL);
    report2(e, 500, 1000, 10, 10, 0);
    COUNTS(e, 20, 10);
    assert_true(trek_elche_calibrated(e) && trek_elche_changed(e));
    assert_true(trek_elche_ms_per_batch(e, 0) == 50 && trek_elche_ms_per_batch(e, 1) == 100);
    assert_true(trek_elche_predicted_speedup(e) == 1.5);
    assert_true(trek_elche_achieved_speedup(e) == 1); /* 20 batches in 1000 ms, as the fast one alone */
    trek_elche_free(&e);

    e = trek_elche_new(2, NULL);
    report2(e, 730, 1640, 10, 10, 0);
    COUNTS(e, 22, 10);
    trek_elche_free(&e);

    e = trek_elche_new(3, NULL);
    report(e, (const double[]){ 333, 500, 1000 }, (const int64_t[]){ 10, 10, 10 }, 0);
    COUNTS(e, 30, 20, 10);
    report(e, (const double[]){ 999, 1000, 1000 }, (const int64_t[]){ 30, 20, 10 }, 0);
    COUNTS(e, 30, 20, 10);
    assert_false(trek_elche_changed(e));
    assert_true(fabs(trek_elche_achieved_speedup(e) - 0.06 * 33.3) < 1e-9);
    trek_elche_free(&e);
}

static void overhead_moves_the_anchor(void **state)
{
    trek_elche *e = trek_elche_new(2, NULL);
    report2(e, 1000, 1000, 10, 10, 500); /* 0.5 against 0.1 */
    assert_int_equal(trek_elche_anchor(e), 50);
    COUNTS(e, 50, 50);
    report2(e, 5000, 5000, 50, 50, 500); /* on target */
    assert_int_equal(trek_elche_anchor(e), 50);
    report2(e, 5000, 5000, 50, 50, 300); /* between half and all of it */
    assert_int_equal(trek_elche_anchor(e), 50);
    report2(e, 5000, 5000, 50, 50, 200);
    assert_int_equal(trek_elche_anchor(e), 49);
    assert_true(trek_elche_changed(e));
    report2(e, 5000, 5000, 50, 50, 0); /* not measured */
    assert_int_equal(trek_elche_anchor(e), 49);
    for (int k = 0; k < 60; k++)
        report2(e, 1000, 1000, 10, 10, 1);
    assert_int_equal(trek_elche_anchor(e), 10); /* its start */
    trek_elche_free(&e);

    e = trek_elche_new(2, NULL);
    report2(e, 500, 1000, 10, 10, 400);
    assert_int_equal(trek_elche_anchor(e), 40);
    COUNTS(e, 80, 40);
    trek_elche_free(&e);

    e = trek_elche_new(2, &(trek_elche_opts){ .overhead_target = 0.5 });
    report2(e, 1000, 1000, 10, 10, 500);
    assert_int_equal(trek_elche_anchor(e), 10);
    trek_elche_free(&e);

    e = trek_elche_new(2, NULL); /* a window cut short, as at an epoch's end, does not make communication look dear */
    report2(e, 1000, 1000, 10, 10, 90);
    report2(e, 200, 200, 2, 2, 90);
    assert_int_equal(trek_elche_anchor(e), 10);
    trek_elche_free(&e);
}

static void anchor_has_a_cap(void **state)
{
    trek_elche *e = trek_elche_new(2, &(trek_elche_opts){ .max_anchor = 30 });
    report2(e, 1000, 1000, 10, 10, 5000);
    assert_int_equal(trek_elche_anchor(e), 30);
    COUNTS(e, 30, 30);
    trek_elche_free(&e);

    e = trek_elche_new(2, &(trek_elche_opts){ .max_anchor = 30 });
    report2(e, 1000, 1000, 10, 10, 50);
    assert_int_equal(trek_elche_anchor(e), 10);
    trek_elche_free(&e);

    e = trek_elche_new(2, &(trek_elche_opts){ .max_anchor = 1 }); /* the start is lowered, and the counts with it */
    assert_int_equal(trek_elche_anchor(e), 1);
    COUNTS(e, 1, 1);
    report2(e, 100, 100, 1, 1, 1000);
    assert_int_equal(trek_elche_anchor(e), 1);
    trek_elche_free(&e);

    e = trek_elche_new(2, &(trek_elche_opts){ .anchor = 500 }); /* above the default cap: its own */
    report2(e, 1000, 1000, 10, 10, 5000);
    assert_int_equal(trek_elche_anchor(e), 500);
    trek_elche_free(&e);

    e = trek_elche_new(2, NULL);
    report2(e, 1000, 1000, 10, 10, 1e9);
    assert_int_equal(trek_elche_anchor(e), 200);
    trek_elche_free(&e);
}

static void prediction_errors_set_the_smoothing(void **state)
{
    trek_elche *e = trek_elche_new(2, NULL);
    report2(e, 1000, 1000, 10, 10, 0);
    report2(e, 1000, 1050, 10, 10, 0); /* error 0.05: factor 0.1 */
    assert_true(fabs(trek_elche_ms_per_batch(e, 1) - 100.5) < 1e-9);
    report2(e, 1000, 502.5, 10, 10, 0); /* error -0.5: factor 0.5 */
    assert_true(fabs(trek_elche_ms_per_batch(e, 1) - 75.375) < 1e-9);
    report2(e, 1000, 7537.5, 10, 10, 0); /* error 9: factor 0.8 */
    assert_true(fabs(trek_elche_ms_per_batch(e, 1) - (0.8 * 753.75 + 0.2 * 75.375)) < 1e-9);
    double before = trek_elche_ms_per_batch(e, 1);
    report2(e, 1000, 10 * before * 1.2, 10, 10, 0); /* error 0.2, the second of its sign: a change of pace */
    assert_true(fabs(trek_elche_ms_per_batch(e, 1) - before * 1.16) < 1e-9 * before);
    assert_true(trek_elche_ms_per_batch(e, 0) == 100);
    trek_elche_free(&e);
}

static void small_changes_are_left(void **state)
{
    trek_elche *e = trek_elche_new(2, NULL);
    report2(e, 500, 1000, 10, 10, 0);
    report2(e, 1090, 1000, 20, 10, 0); /* 54.5: estimate 50.45 */
    COUNTS(e, 20, 10);
    assert_false(trek_elche_changed(e));
    for (int k = 0; k < 4; k++) /* ten per cent of 20 is within the dead zone */
        report2(e, 1000 * (k % 2 ? 1.1 : 0.91), 1000, 20, 10, 0);
    COUNTS(e, 20, 10);
    for (int k = 0; k < 40; k++) /* 8 % that last are worth a correction */
        report2(e, 20 * 54.8, 1000, 20, 10, 0);
    COUNTS(e, 18, 10);
    trek_elche_free(&e);
}

static void batch_diff_bounds_moves(void **state)
{
    trek_elche *e = trek_elche_new(2, &(trek_elche_opts){ .max_batch_diff = 3 });
    report2(e, 200, 1000, 10, 10, 0); /* the first is free */
    COUNTS(e, 50, 10);
    report2(e, 5000, 1000, 50, 10, 0);
    COUNTS(e, 47, 10);
    report2(e, 4700, 1000, 47, 10, 0);
    COUNTS(e, 44, 10);
    trek_elche_free(&e);

    e = trek_elche_new(3, &(trek_elche_opts){ .max_batch_diff = 4, .global_batches = 60 }); /* and the sum stays */
    report(e, (const double[]){ 200, 200, 200 }, (const int64_t[]){ 20, 20, 20 }, 0);
    for (int k = 0; k < 12; k++) {
        int64_t before[3], after[3];
        trek_elche_counts(e, before);
        report(e, (const double[]){ 10.0 * (double)before[0], 10.0 * (double)before[1], 100.0 * (double)before[2] }, before, 0);
        trek_elche_counts(e, after);
        assert_int_equal(after[0] + after[1] + after[2], 60);
        for (int r = 0; r < 3; r++)
            assert_true(llabs(after[r] - before[r]) <= 4);
    }
    assert_true(fraction(e, 3, (const double[]){ 10, 10, 100 }) > 0.95);
    trek_elche_free(&e);
}

static void hints_seed_the_counts(void **state)
{
    static const struct { int ranks, slow; double ratio; int64_t counts[3]; } cases[] = {
        { 2, 1, 2.0, { 20, 10 } }, { 2, 1, 2.3, { 23, 10 } }, { 2, 0, 3.0, { 10, 30 } }, { 2, 1, 1.0, { 10, 10 } },
        { 3, 1, 2.0, { 20, 10, 20 } }, { 3, 9, 0, { 10, 10, 10 } },
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        trek_elche *e = trek_elche_new(cases[k].ranks,
                                       &(trek_elche_opts){ .slow_rank = cases[k].slow, .speed_ratio = cases[k].ratio });
        assert_non_null(e);
        check_counts(e, cases[k].ranks, cases[k].counts);
        assert_false(trek_elche_calibrated(e));
        trek_elche_free(&e);
    }
    trek_elche *e = trek_elche_new(2, &(trek_elche_opts){ .slow_rank = 0, .speed_ratio = 5 }); /* wrong: corrected at once */
    COUNTS(e, 10, 50);
    report2(e, 500, 5000, 10, 50, 0);
    COUNTS(e, 20, 10);
    trek_elche_free(&e);
    e = trek_elche_new(2, &(trek_elche_opts){ .slow_rank = 1, .speed_ratio = 4, .global_batches = 20 });
    COUNTS(e, 16, 4);
    assert_int_equal(trek_elche_anchor(e), 4);
    trek_elche_free(&e);
}

static void the_anchor_is_only_lowered(void **state)
{
    trek_elche *e = trek_elche_new(2, &(trek_elche_opts){ .anchor = 20 });
    report2(e, 1000, 2000, 20, 20, 0);
    COUNTS(e, 40, 20);
    assert_int_equal(trek_elche_lower_anchor(e, 0.5), TREK_OK);
    assert_int_equal(trek_elche_anchor(e), 10);
    COUNTS(e, 20, 10);
    assert_int_equal(trek_elche_lower_anchor(e, 3), TREK_OK); /* never up */
    assert_int_equal(trek_elche_anchor(e), 10);
    for (int k = 0; k < 6; k++)
        assert_int_equal(trek_elche_lower_anchor(e, 0.001), TREK_OK);
    assert_int_equal(trek_elche_anchor(e), 1);
    COUNTS(e, 2, 1);
    FAILS(trek_elche_lower_anchor(e, 0), TREK_ERR_ARGUMENT, "");
    trek_elche_free(&e);

    e = trek_elche_new(2, &(trek_elche_opts){ .slow_rank = 1, .speed_ratio = 3 }); /* before anything is measured */
    assert_int_equal(trek_elche_lower_anchor(e, 0.5), TREK_OK);
    COUNTS(e, 15, 5);
    trek_elche_free(&e);
}

static void totals_have_a_limit(void **state)
{
    int64_t counts[3];
    trek_elche *e = trek_elche_new(2, NULL);
    report2(e, 500, 1000, 10, 10, 0);
    assert_int_equal(trek_elche_counts_within(e, 15, counts), TREK_OK);
    assert_int_equal(counts[0] + counts[1], 15);
    assert_true(counts[0] >= counts[1] && counts[1] >= 1);
    assert_int_equal(trek_elche_counts_within(e, 30, counts), TREK_OK);
    assert_true(counts[0] == 20 && counts[1] == 10);
    assert_int_equal(trek_elche_counts_within(e, 1, counts), TREK_OK);
    assert_true(counts[0] == 1 && counts[1] == 0);
    assert_int_equal(trek_elche_counts_within(e, 0, counts), TREK_OK);
    assert_true(counts[0] == 0 && counts[1] == 0);
    COUNTS(e, 20, 10);
    FAILS(trek_elche_counts_within(e, -1, counts), TREK_ERR_ARGUMENT, "");
    trek_elche_free(&e);

    e = trek_elche_new(3, &(trek_elche_opts){ .anchor = 1 });
    report(e, (const double[]){ 1, 100, 100 }, (const int64_t[]){ 1, 1, 1 }, 0);
    COUNTS(e, 100, 1, 1);
    assert_int_equal(trek_elche_counts_within(e, 10, counts), TREK_OK);
    assert_true(counts[0] == 8 && counts[1] == 1 && counts[2] == 1);
    trek_elche_free(&e);
}

static void constant_global_batch(void **state)
{
    trek_elche *e = trek_elche_new(2, &(trek_elche_opts){ .global_batches = 10 });
    COUNTS(e, 5, 5);
    report2(e, 5, 25, 5, 5, 100); /* 1 : 5; rounded shares, 8 and 2, would take 10 ms, this 9 */
    COUNTS(e, 9, 1);
    assert_int_equal(trek_elche_anchor(e), 1);
    assert_int_equal(trek_elche_total(e), 10);
    assert_int_equal(trek_elche_lower_anchor(e, 0.5), TREK_OK);
    COUNTS(e, 9, 1);
    trek_elche_free(&e);

    e = trek_elche_new(4, &(trek_elche_opts){ .global_batches = 2 }); /* fewer than ranks: all get tried, the fast stay */
    for (int k = 0; k < 6; k++) {
        int64_t counts[4];
        double ms[4];
        trek_elche_counts(e, counts);
        assert_int_equal(trek_elche_total(e), 2);
        for (int r = 0; r < 4; r++)
            ms[r] = (double)counts[r] * (r < 2 ? 9 : 4 - r);
        report(e, ms, counts, 1);
    }
    COUNTS(e, 0, 0, 1, 1);
    trek_elche_free(&e);
}

static void silent_ranks_keep_their_estimate(void **state)
{
    trek_elche *e = trek_elche_new(2, NULL);
    report2(e, 0, 0, 10, 10, 5); /* nothing measured */
    assert_false(trek_elche_calibrated(e));
    COUNTS(e, 10, 10);
    report2(e, 0, 1000, 0, 10, 0); /* one is: the other is taken to be no faster */
    assert_true(trek_elche_calibrated(e));
    COUNTS(e, 10, 10);
    report2(e, 100, 0, 10, 0, 0);
    COUNTS(e, 100, 10);
    assert_true(trek_elche_ms_per_batch(e, 1) == 100);
    trek_elche_free(&e);
}

static void resumes_from_a_plan(void **state)
{
    trek_elche *e = trek_elche_new(2, NULL);
    assert_int_equal(trek_elche_resume(e, (const int64_t[]){ 37, 15 }, 15), TREK_OK);
    COUNTS(e, 37, 15);
    assert_int_equal(trek_elche_anchor(e), 15);
    report2(e, 370, 300, 37, 15, 0);
    COUNTS(e, 30, 15);
    const int64_t bad[][2] = { { -1, 3 }, { 0, 0 } };
    for (int k = 0; k < 2; k++) {
        FAILS(trek_elche_resume(e, bad[k], 10), TREK_ERR_ARGUMENT, "");
    }
    FAILS(trek_elche_resume(e, (const int64_t[]){ 1, 1 }, 201), TREK_ERR_ARGUMENT, "");
    COUNTS(e, 30, 15);
    trek_elche_free(&e);
}

/* --- on simulated ranks ---------------------------------------------------------------- */

/* From 1 : 5 every jitter is settled within 5 windows, and stays. */
static void settles_within_five_windows(void **state)
{
    for (int k = 0; k < 40; k++) {
        uint32_t draw = (uint32_t)k * 1000;
        double jitter = 0.02 * (k % 4);
        const double pace[2] = { 20, 100 };
        trek_elche *e = trek_elche_new(2, NULL);
        int64_t settled[2] = { 0 }, counts[2];
        for (int window = 0; window < 40; window++) {
            run_window(e, 2, pace, 0, jitter, &draw);
            trek_elche_counts(e, counts);
            if (window == 4)
                memcpy(settled, counts, sizeof counts);
            if (window >= 4 && !(fraction(e, 2, pace) > 0.95 - jitter))
                fail_msg("seed %d, window %d: %g of the ideal", k, window, fraction(e, 2, pace));
            if (window > 4 && llabs(counts[0] - settled[0]) > settled[0] / 8)
                fail_msg("seed %d, window %d: %lld after %lld", k, window, (long long)counts[0], (long long)settled[0]);
        }
        trek_elche_free(&e);
    }
}

static void recovers_from_a_change_of_pace(void **state)
{
    for (int k = 0; k < 40; k++)
        for (int mode = 0; mode < 3; mode++) { /* slower, faster again; constant batch */
            uint32_t draw = (uint32_t)k * 977;
            double jitter = 0.01 * (k % 5), pace[2] = { 50, mode == 1 ? 150 : 50 };
            trek_elche *e = trek_elche_new(2, &(trek_elche_opts){ .global_batches = mode == 2 ? 40 : 0 });
            for (int window = 0; window < 12; window++)
                run_window(e, 2, pace, 0, jitter, &draw);
            pace[1] = mode == 1 ? 50 : 150;
            for (int window = 0; window < 5; window++)
                run_window(e, 2, pace, 0, jitter, &draw);
            for (int window = 0; window < 20; window++) {
                if (!(fraction(e, 2, pace) > 0.9))
                    fail_msg("seed %d, mode %d, window %d: %g of the ideal", k, mode, window, fraction(e, 2, pace));
                run_window(e, 2, pace, 0, jitter, &draw);
            }
            trek_elche_free(&e);
        }
}

/* Whatever the speeds: sums and bounds hold, the window is near the ideal, the same reports give the same counts. */
static void promises_hold_on_random_speeds(void **state)
{
    for (int k = 0; k < 300; k++) {
        uint32_t draw = (uint32_t)k * 4096, again;
        int n = 2 + (int)(uniform(1, draw++) * (MOST - 2));
        int64_t global = k % 3 == 2 ? (int64_t)(n * (4 + 10 * uniform(1, draw++))) : 0;
        double pace[MOST], communication = k % 2 ? 40 * uniform(1, draw++) : 0;
        for (int r = 0; r < n; r++)
            pace[r] = 10 * exp(1.5 * (2 * uniform(2, draw++) - 1));
        trek_elche_opts opts = { .global_batches = global, .max_anchor = 40 };
        trek_elche *e = trek_elche_new(n, &opts), *twin = trek_elche_new(n, &opts);
        for (int window = 0; window < 12; window++) {
            int64_t counts[MOST], others[MOST], within[MOST], sum = 0;
            again = draw;
            run_window(e, n, pace, communication, 0.05, &draw);
            run_window(twin, n, pace, communication, 0.05, &again);
            trek_elche_counts(e, counts);
            trek_elche_counts(twin, others);
            assert_memory_equal(counts, others, (size_t)n * sizeof *counts);
            for (int r = 0; r < n; r++) {
                assert_true(counts[r] >= 1);
                sum += counts[r];
            }
            assert_int_equal(sum, trek_elche_total(e));
            assert_true(global == 0 || sum == global);
            assert_in_range(trek_elche_anchor(e), 1, global ? global : 40);
            int64_t most = (int64_t)((double)sum * uniform(3, draw++)), given = 0;
            assert_int_equal(trek_elche_counts_within(e, most, within), TREK_OK);
            for (int r = 0; r < n; r++) {
                assert_in_range(within[r], most >= n, counts[r]);
                given += within[r];
            }
            assert_int_equal(given, most);
        }
        double possible = global ? best_fraction(n, pace, global) : 1;
        if (!(fraction(e, n, pace) > 0.86 * possible))
            fail_msg("case %d, %d ranks: %g of the ideal, %g possible", k, n, fraction(e, n, pace), possible);
        trek_elche_free(&e);
        trek_elche_free(&twin);
    }
}

/* Constant sums: no other split ends the window sooner. */
static void splits_are_optimal(void **state)
{
    for (int k = 0; k < 200; k++) {
        double pace[3], best = INFINITY, longest = 0;
        int64_t total = 3 + (int64_t)(30 * uniform(4, (uint32_t)k)), counts[3];
        for (uint32_t r = 0; r < 3; r++)
            pace[r] = 1 + 20 * uniform(5, 3 * (uint32_t)k + r);
        trek_elche *e = trek_elche_new(3, &(trek_elche_opts){ .global_batches = total });
        trek_elche_counts(e, counts);
        report(e, (const double[]){ (double)counts[0] * pace[0], (double)counts[1] * pace[1], (double)counts[2] * pace[2] },
               counts, 0);
        trek_elche_counts(e, counts);
        for (int r = 0; r < 3; r++)
            longest = fmax(longest, (double)counts[r] * pace[r]);
        for (int64_t a = 1; a < total - 1; a++)
            for (int64_t b = 1; a + b < total; b++)
                best = fmin(best, fmax(fmax((double)a * pace[0], (double)b * pace[1]), (double)(total - a - b) * pace[2]));
        if (!(longest <= best * (1 + 1e-9)))
            fail_msg("case %d: %g, the best is %g", k, longest, best);
        trek_elche_free(&e);
    }
}

static void extremes_do_no_harm(void **state)
{
    int64_t counts[2];
    trek_elche *e = trek_elche_new(2, NULL);
    for (int k = 0; k < 8; k++) {
        report2(e, k % 2 ? 1e15 : 1e-8, k % 2 ? 1e-8 : 1e15, 1, INT64_C(1) << 60, k % 3 ? 1e15 : 0);
        trek_elche_counts(e, counts);
        assert_true(counts[0] >= 1 && counts[1] >= 1 && trek_elche_total(e) > 0);
    }
    trek_elche_free(&e);
    e = trek_elche_new(2, &(trek_elche_opts){ .global_batches = INT64_C(1) << 40 });
    report2(e, 1e15, 1e-8, 1, 1, 0);
    assert_int_equal(trek_elche_total(e), INT64_C(1) << 40);
    report2(e, 1e-8, 1e-8, 1, 1, 0);
    assert_int_equal(trek_elche_total(e), INT64_C(1) << 40);
    trek_elche_free(&e);
}

/* --- refusals -------------------------------------------------------------------------- */

static void bad_options_are_refused(void **state)
{
    static const trek_elche_opts bad[] = {
        { .anchor = -1 }, { .anchor = 2000000 }, { .max_anchor = -1 }, { .overhead_target = 0.005 }, { .overhead_target = 0.6 },
        { .overhead_target = NAN }, { .max_batch_diff = -1 }, { .speed_ratio = 0.5 }, { .speed_ratio = NAN },
        { .speed_ratio = 2, .slow_rank = 2 },
        { .speed_ratio = 2, .slow_rank = -1 }, { .global_batches = -1 }, { .global_batches = INT64_MAX },
    };
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        REFUSED(trek_elche_new(2, &bad[k]), TREK_ERR_ARGUMENT, "");
    }
    for (int ranks = -1; ranks < 2; ranks++) {
        REFUSED(trek_elche_new(ranks, NULL), TREK_ERR_ARGUMENT, "");
    }
}

static void bad_reports_change_nothing(void **state)
{
    static const struct { double ms0, ms1, communication; int64_t n0, n1; } bad[] = {
        { -1, 1, 0, 1, 1 }, { 1, NAN, 0, 1, 1 }, { INFINITY, 1, 0, 1, 1 }, { 1, 1, -1, 1, 1 }, { 1, 1, NAN, 1, 1 },
            { 1, 1, 0, 1, -1 },
    };
    trek_elche *e = trek_elche_new(2, NULL);
    report2(e, 500, 1000, 10, 10, 0);
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        FAILS(trek_elche_report(e, (const double[]){ bad[k].ms0, bad[k].ms1 },
                                (const int64_t[]){ bad[k].n0, bad[k].n1 },
                                bad[k].communication), TREK_ERR_ARGUMENT, "");
        COUNTS(e, 20, 10);
        assert_true(trek_elche_ms_per_batch(e, 0) == 50 && trek_elche_ms_per_batch(e, 1) == 100);
    }
    FAILS(trek_elche_report(NULL, NULL, NULL, 0), TREK_ERR_ARGUMENT, "");
    FAILS(trek_elche_report(e, NULL, NULL, 0), TREK_ERR_ARGUMENT, "");
    FAILS(trek_elche_counts(e, NULL), TREK_ERR_ARGUMENT, "");
    assert_true(trek_elche_ms_per_batch(e, 2) == 0);
    expect_error(TREK_ERR_ARGUMENT, "");
    assert_int_equal(trek_elche_total(NULL), -1);
    trek_error_clear();
    trek_elche_free(&e);
}

static void memory_may_run_out(void **state)
{
    bool made = false;
    for (int64_t at = 1; !made; at++) {
        int64_t before = test_allocator_blocks();
        test_allocator_restart(at);
        trek_elche *e = trek_elche_new(5, NULL);
        test_allocator_restart(0);
        made = e != NULL;
        assert_int_equal(trek_error_status(), made ? TREK_OK : TREK_ERR_MEMORY);
        trek_error_clear();
        trek_elche_free(&e);
        assert_int_equal(test_allocator_blocks(), before);
        assert_true(at < 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(starts_equal), cmocka_unit_test(first_report_calibrates), cmocka_unit_test(overhead_moves_the_anchor),
        cmocka_unit_test(anchor_has_a_cap), cmocka_unit_test(prediction_errors_set_the_smoothing),
        cmocka_unit_test(small_changes_are_left), cmocka_unit_test(batch_diff_bounds_moves),
        cmocka_unit_test(hints_seed_the_counts), cmocka_unit_test(the_anchor_is_only_lowered),
        cmocka_unit_test(totals_have_a_limit),
        cmocka_unit_test(constant_global_batch), cmocka_unit_test(silent_ranks_keep_their_estimate),
        cmocka_unit_test(resumes_from_a_plan), cmocka_unit_test(settles_within_five_windows),
        cmocka_unit_test(recovers_from_a_change_of_pace), cmocka_unit_test(promises_hold_on_random_speeds),
        cmocka_unit_test(splits_are_optimal), cmocka_unit_test(extremes_do_no_harm), cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(bad_reports_change_nothing), cmocka_unit_test(memory_may_run_out),
    };
    if (test_allocator_use() != TREK_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
