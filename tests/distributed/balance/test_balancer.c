/* SPDX-License-Identifier: Apache-2.0 */
/* The balancer: its numbers by hand, its promises on random speeds, ranks with a
 * fixed cost a step, ranks that cost more than they bring. Times are simulated; the
 * code is the real one. */
#include "distributed/balance/apportion.h"
#include "distributed/balance/balancer.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { MOST = 64, BATCH = 1000 };

static double uniform(uint32_t stream, uint32_t k) { return 0.5 + 0.5 * (double)test_number(stream, k); } /* [0, 1) */

static void check_shares(const trek_balancer *b, int n, const double *expected)
{
    double shares[MOST];
    assert_int_equal(trek_balancer_shares(b, shares), TREK_OK);
    for (int r = 0; r < n; r++)
        if (!(fabs(shares[r] - expected[r]) < 1e-12))
            fail_msg("rank %d has %.17g, not %.17g", r, shares[r], expected[r]);
}

#define SHARES(b, ...) \
    check_shares(b, (int)(sizeof((const double[]){ __VA_ARGS__ }) / sizeof(double)), (const double[]){ __VA_ARGS__ })

/* How ranks of so many ms a sample, and so many a step, would do a batch by the present shares. Returns the longest. */
static double run_step(trek_balancer *b, int n, int64_t batch, const double *pace, const double *fixed, double communication,
                       double jitter,
                       uint32_t *draw)
{
    double shares[MOST], ms[MOST], longest = 0;
    int64_t samples[MOST];
    assert_int_equal(trek_balancer_shares(b, shares), TREK_OK);
    assert_int_equal(trek_apportion(batch, shares, n, samples), TREK_OK);
    for (int r = 0; r < n; r++) {
        double noise = jitter > 0 ? 1 + jitter * (2 * uniform(11, (*draw)++) - 1) : 1;
        ms[r] = samples[r] > 0 ? ((double)samples[r] * pace[r] + (fixed ? fixed[r] : 0)) * noise : 0;
        longest = fmax(longest, ms[r]);
    }
    assert_int_equal(trek_balancer_report(b, ms, samples, communication), TREK_OK);
    return longest;
}

static void run_steps(trek_balancer *b, int n, const double *pace, int steps)
{
    for (int k = 0; k < steps; k++)
        run_step(b, n, BATCH, pace, NULL, 0, 0, NULL);
}

/* --- by hand --------------------------------------------------------------------------- */

static void follows_throughput(void **state)
{
    trek_balancer *b = trek_balancer_new(2, NULL);
    SHARES(b, 0.5, 0.5);
    assert_true(trek_balancer_predicted_speedup(b) == 0 && trek_balancer_achieved_speedup(b) == 0);
    run_steps(b, 2, (const double[]){ 1.0 / 30, 1.0 / 10 }, 10);
    SHARES(b, 0.75, 0.25);
    assert_true(fabs(trek_balancer_throughput(b, 0) - 30) < 1e-9 && fabs(trek_balancer_throughput(b, 1) - 10) < 1e-9);
    assert_true(fabs(trek_balancer_predicted_speedup(b) - 40.0 / 30) < 1e-9);
    assert_true(fabs(trek_balancer_achieved_speedup(b) - 20.0 / 30) < 1e-9); /* as long as shares were equal */
    run_steps(b, 2, (const double[]){ 1.0 / 30, 1.0 / 10 }, 49);
    assert_true(fabs(trek_balancer_achieved_speedup(b) - 40.0 / 30) < 1e-6);
    trek_balancer_free(&b);
    assert_null(b);
    trek_balancer_free(&b);

    b = trek_balancer_new(3, NULL);
    run_steps(b, 3, (const double[]){ 1.0 / 50, 1.0 / 30, 1.0 / 20 }, 10);
    SHARES(b, 0.5, 0.3, 0.2);
    trek_balancer_free(&b);
}

static void nobody_falls_below_the_least(void **state)
{
    trek_balancer *b = trek_balancer_new(2, NULL);
    run_steps(b, 2, (const double[]){ 0.01, 1 }, 10);
    SHARES(b, 0.95, 0.05);
    assert_int_equal(trek_balancer_costly(b), 1); /* 50 ms, where the other alone would take 10 */
    trek_balancer_free(&b);

    b = trek_balancer_new(20, NULL); /* half an equal share */
    double pace[20], shares[20];
    for (int r = 0; r < 20; r++)
        pace[r] = r < 3 ? 100 : 1;
    run_steps(b, 20, pace, 10);
    trek_balancer_shares(b, shares);
    for (int r = 0; r < 20; r++)
        assert_true(fabs(shares[r] - (r < 3 ? 0.025 : 0.925 / 17)) < 1e-12);
    trek_balancer_free(&b);

    b = trek_balancer_new(2, &(trek_balancer_opts){ .min_share = TREK_ZERO });
    run_steps(b, 2, (const double[]){ 0.01, 1 }, 10);
    SHARES(b, 100.0 / 101, 1.0 / 101);
    assert_int_equal(trek_balancer_costly(b), -1);
    trek_balancer_free(&b);
}

static void decides_after_ten_then_every_fifty(void **state)
{
    trek_balancer *b = trek_balancer_new(2, NULL);
    for (int step = 1; step <= 320; step++) {
        bool expected = step == 10 || (step > 10 && (step - 10) % 50 == 0);
        double slow = step / 50 % 2 == 0 ? 3 : 1; /* so that every decision finds a change */
        double ms[2] = { 100, 100 * slow };
        assert_int_equal(trek_balancer_report(b, ms, (const int64_t[]){ 50, 50 }, 0), TREK_OK);
        if (trek_balancer_changed(b) != expected)
            fail_msg("step %d: shares %s", step, expected ? "did not change" : "changed");
    }
    trek_balancer_free(&b);

    b = trek_balancer_new(2, &(trek_balancer_opts){ .first = 3, .every = 7 });
    for (int step = 1; step <= 40; step++) {
        double ms[2] = { 100, step / 7 % 2 == 0 ? 300 : 100 };
        assert_int_equal(trek_balancer_report(b, ms, (const int64_t[]){ 50, 50 }, 0), TREK_OK);
        assert_true(!trek_balancer_changed(b) || (step >= 3 && (step - 3) % 7 == 0));
        assert_true(trek_balancer_changed(b) || step != 3);
    }
    trek_balancer_free(&b);
}

static void throughput_is_smoothed(void **state)
{
    trek_balancer *b = trek_balancer_new(2, NULL);
    const int64_t samples[2] = { 100, 100 };
    trek_balancer_report(b, (const double[]){ 10, 10 }, samples, 0);
    assert_true(trek_balancer_throughput(b, 0) == 10);
    trek_balancer_report(b, (const double[]){ 5, 10 }, samples, 0);
    assert_true(fabs(trek_balancer_throughput(b, 0) - 13) < 1e-12);
    trek_balancer_report(b, (const double[]){ 0, 10 }, samples, 0); /* no time: kept */
    trek_balancer_report(b, (const double[]){ 5, 10 }, (const int64_t[]){ 0, 100 }, 0);
    assert_true(fabs(trek_balancer_throughput(b, 0) - 13) < 1e-12);
    assert_true(trek_balancer_throughput(b, 1) == 10);
    trek_balancer_free(&b);
}

static void without_data_nothing_changes(void **state)
{
    trek_balancer *b = trek_balancer_new(3, NULL);
    for (int k = 0; k < 70; k++) {
        assert_int_equal(trek_balancer_report(b, (const double[]){ 0, 0, 0 }, (const int64_t[]){ 5, 5, 5 }, 1), TREK_OK);
        assert_false(trek_balancer_changed(b));
    }
    SHARES(b, 1.0 / 3, 1.0 / 3, 1.0 / 3);
    assert_int_equal(trek_balancer_costly(b), -1);
    for (int k = 0; k < 50; k++) /* one rank stays unknown: it keeps its share, the others divide the rest */
        assert_int_equal(trek_balancer_report(b, (const double[]){ 1, 0, 3 }, (const int64_t[]){ 5, 5, 5 }, 1), TREK_OK);
    SHARES(b, 0.5, 1.0 / 3, 1.0 / 6);
    trek_balancer_free(&b);
}

static void small_gains_are_left(void **state)
{
    trek_balancer *b = trek_balancer_new(2, NULL);
    run_steps(b, 2, (const double[]){ 1, 1.03 }, 400); /* 1.5 % */
    SHARES(b, 0.5, 0.5);
    run_steps(b, 2, (const double[]){ 1, 1.06 }, 60); /* 3 % */
    assert_true(fabs(trek_balancer_throughput(b, 1) - 1 / 1.06) < 1e-6);
    double shares[2];
    trek_balancer_shares(b, shares);
    assert_true(fabs(shares[0] - 1.06 / 2.06) < 1e-3);
    trek_balancer_free(&b);
    b = trek_balancer_new(2, &(trek_balancer_opts){ .min_gain = TREK_ZERO });
    run_steps(b, 2, (const double[]){ 1, 1.03 }, 10);
    SHARES(b, 1.03 / 2.03, 1 / 2.03);
    trek_balancer_free(&b);
}

/* Equal ranks whose short steps take what they take, whatever their samples: shares would wander to whoever was quick by chance,
 * and less would make a rank no quicker. A difference that is there is found all the same. */
static void jitter_moves_nothing(void **state)
{
    static const double equal[4] = { 1e-5, 1e-5, 1e-5, 1e-5 }, fixed[4] = { 0.05, 0.05, 0.05, 0.05 },
                        paces[4] = { 1, 1, 1, 1.3 };
    uint32_t draw = 0;
    for (int k = 0; k < 20; k++) {
        trek_balancer *b = trek_balancer_new(4, NULL);
        for (int step = 0; step < 2010; step++) {
            run_step(b, 4, 32, equal, fixed, 0, 0.6, &draw);
            SHARES(b, 0.25, 0.25, 0.25, 0.25);
        }
        trek_balancer_free(&b);
    }
    for (int k = 0; k < 20; k++) {
        trek_balancer *b = trek_balancer_new(4, NULL);
        double shares[4];
        for (int step = 0; step < 500; step++)
            run_step(b, 4, BATCH, paces, NULL, 0, 0.2, &draw);
        trek_balancer_shares(b, shares);
        assert_true(shares[3] < 0.22 && shares[3] > 0.18);
        trek_balancer_free(&b);
    }
}

static void hints_seed_the_shares(void **state)
{
    trek_balancer *b = trek_balancer_new(2, &(trek_balancer_opts){ .slow_rank = 1, .speed_ratio = 3 });
    SHARES(b, 0.75, 0.25);
    assert_true(trek_balancer_throughput(b, 0) == 0);
    run_steps(b, 2, (const double[]){ 2, 1 }, 10); /* wrong: corrected by the first decision */
    SHARES(b, 1.0 / 3, 2.0 / 3);
    trek_balancer_free(&b);
    b = trek_balancer_new(3, &(trek_balancer_opts){ .slow_rank = 0, .speed_ratio = 1000 });
    SHARES(b, 0.05, 0.475, 0.475);
    trek_balancer_free(&b);
}

/* A fixed cost a step: shares come to rest where all take equally long. */
static void fixed_costs_are_found(void **state)
{
    const double pace[3] = { 0.1, 0.1, 0.3 }, fixed[3] = { 2, 20, 2 };
    double shares[3], ms[3], most = 0, least = INFINITY;
    trek_balancer *b = trek_balancer_new(3, &(trek_balancer_opts){ .min_gain = TREK_ZERO });
    for (int k = 0; k < 1010; k++)
        run_step(b, 3, BATCH, pace, fixed, 0, 0, NULL);
    trek_balancer_shares(b, shares);
    for (int r = 0; r < 3; r++) {
        ms[r] = shares[r] * BATCH * pace[r] + fixed[r];
        most = fmax(most, ms[r]);
        least = fmin(least, ms[r]);
    }
    if (!(most < 1.02 * least))
        fail_msg("%g, %g, %g ms", ms[0], ms[1], ms[2]);
    trek_balancer_free(&b);
}

/* --- ranks that cost more than they bring ---------------------------------------------- */

static void communication_may_cost_more(void **state)
{
    const double pace[2] = { 0.1, 0.4 }; /* together 80 ms, the fast one alone 100 */
    trek_balancer *b = trek_balancer_new(2, NULL);
    for (int k = 0; k < 60; k++)
        run_step(b, 2, BATCH, pace, NULL, 15, 0, NULL);
    assert_int_equal(trek_balancer_costly(b), -1);
    assert_true(fabs(trek_balancer_predicted_speedup(b) - 100.0 / 95) < 1e-6);
    for (int k = 0; k < 50; k++)
        run_step(b, 2, BATCH, pace, NULL, 40, 0, NULL);
    assert_int_equal(trek_balancer_costly(b), 1);
    assert_true(trek_balancer_predicted_speedup(b) < 1 && trek_balancer_achieved_speedup(b) < 1);
    SHARES(b, 0.8, 0.2); /* named, no more */
    trek_balancer_free(&b);
}

static void idle_ranks_are_probed(void **state)
{
    double pace[3] = { 0.1, 0.1, 0.1 }, fixed[3] = { 0, 0, 200 };
    trek_balancer *b = trek_balancer_new(3, &(trek_balancer_opts){ .allow_idle = true });
    int idle = 0, probed = 0;
    for (int k = 0; k < 60; k++) /* its fixed cost shows at the second decision, when its share is small */
        run_step(b, 3, BATCH, pace, fixed, 1, 0, NULL);
    SHARES(b, 0.5, 0.5, 0);
    assert_int_equal(trek_balancer_costly(b), 2);
    for (int k = 61; k <= 1650; k++) {
        double shares[3];
        run_step(b, 3, BATCH, pace, fixed, 1, 0, NULL);
        trek_balancer_shares(b, shares);
        assert_true(fabs(shares[0] + shares[1] + shares[2] - 1) < 1e-12);
        *(shares[2] > 0 ? &probed : &idle) += 1;
        assert_true(k >= 560 || shares[2] == 0);
        assert_int_equal(trek_balancer_costly(b), 2);
    }
    assert_int_equal(probed, 30); /* thrice ten steps */
    fixed[2] = 0; /* it recovers, and the next probe finds out */
    for (int k = 0; k < 600; k++)
        run_step(b, 3, BATCH, pace, fixed, 1, 0, NULL);
    SHARES(b, 1.0 / 3, 1.0 / 3, 1.0 / 3);
    assert_int_equal(trek_balancer_costly(b), -1);
    trek_balancer_free(&b);

    b = trek_balancer_new(2, &(trek_balancer_opts){ .allow_idle = true, .probe_every = 30, .first = 4 }); /* the last one stays */
    for (int k = 0; k < 300; k++) {
        double shares[2];
        run_step(b, 2, BATCH, (const double[]){ 1, 1 }, NULL, 5000, 0, NULL);
        trek_balancer_shares(b, shares);
        assert_true(shares[0] + shares[1] > 0.999999 && shares[0] > 0);
    }
    trek_balancer_free(&b);
}

static void resumes_from_a_plan(void **state)
{
    trek_balancer *b = trek_balancer_new(3, NULL);
    assert_int_equal(trek_balancer_resume(b, (const double[]){ 0.5, 0.3, 0.2 }), TREK_OK);
    SHARES(b, 0.5, 0.3, 0.2);
    assert_int_equal(trek_balancer_resume(b, (const double[]){ 0.5, 0.5, 0 }), TREK_OK); /* idle, but it may not be */
    SHARES(b, 0.475, 0.475, 0.05);
    const double bad[][3] = { { 0.5, 0.5, 0.5 }, { -0.1, 0.6, 0.5 }, { NAN, 0.5, 0.5 } };
    for (int k = 0; k < 3; k++) {
        FAILS(trek_balancer_resume(b, bad[k]), TREK_ERR_ARGUMENT, "");
    }
    SHARES(b, 0.475, 0.475, 0.05);
    trek_balancer_free(&b);
    b = trek_balancer_new(3, &(trek_balancer_opts){ .allow_idle = true, .probe_every = 20 });
    assert_int_equal(trek_balancer_resume(b, (const double[]){ 0.5, 0.5, 0 }), TREK_OK);
    SHARES(b, 0.5, 0.5, 0);
    run_steps(b, 3, (const double[]){ 1, 1, 1 }, 100);
    SHARES(b, 1.0 / 3, 1.0 / 3, 1.0 / 3);
    trek_balancer_free(&b);
}

/* --- random speeds --------------------------------------------------------------------- */

static void promises_hold_on_random_speeds(void **state)
{
    for (int k = 0; k < 150; k++) {
        uint32_t draw = (uint32_t)k * 65536;
        int n = 2 + (int)(uniform(12, draw++) * (MOST - 2));
        double pace[MOST], shares[MOST], sum = 0, ideal = 0, last = 0, least = fmin(0.05, 0.5 / n);
        int64_t batch = 100 * n;
        trek_balancer *b = trek_balancer_new(n, NULL), *twin = trek_balancer_new(n, NULL);
        for (int r = 0; r < n; r++) {
            pace[r] = exp(0.3 * (2 * uniform(13, draw++) - 1)); /* none at the bound */
            ideal += 1 / pace[r];
        }
        for (int step = 0; step < 120; step++) {
            uint32_t again = draw;
            double twins[MOST];
            last = run_step(b, n, batch, pace, NULL, 0.1, 0.03, &draw);
            run_step(twin, n, batch, pace, NULL, 0.1, 0.03, &again);
            trek_balancer_shares(b, shares);
            trek_balancer_shares(twin, twins);
            assert_memory_equal(shares, twins, (size_t)n * sizeof *shares);
        }
        for (int r = 0; r < n; r++) {
            assert_true(shares[r] >= least * (1 - 1e-12));
            sum += shares[r];
        }
        assert_true(fabs(sum - 1) < 1e-12);
        if (!((double)batch / ideal > 0.9 * last))
            fail_msg("case %d, %d ranks: %g ms, the ideal is %g", k, n, last, (double)batch / ideal);
        assert_true(fabs(trek_balancer_achieved_speedup(b) / trek_balancer_predicted_speedup(b) - 1) < 0.1);
        trek_balancer_free(&b);
        trek_balancer_free(&twin);
    }
}

static void follows_a_slow_down(void **state)
{
    uint32_t draw = 5;
    double pace[2] = { 1, 1 }, shares[2];
    trek_balancer *b = trek_balancer_new(2, NULL);
    for (int k = 0; k < 130; k++)
        run_step(b, 2, BATCH, pace, NULL, 0, 0.05, &draw);
    pace[1] = 3;
    for (int k = 0; k < 50; k++)
        run_step(b, 2, BATCH, pace, NULL, 0, 0.05, &draw);
    trek_balancer_shares(b, shares);
    assert_true(fabs(shares[0] - 0.75) < 0.02);
    trek_balancer_free(&b);
}

/* --- refusals -------------------------------------------------------------------------- */

static void bad_options_are_refused(void **state)
{
    static const trek_balancer_opts bad[] = {
        { .first = -1 }, { .every = -1 }, { .smoothing = -0.1 }, { .smoothing = 1.1 }, { .smoothing = NAN },
            { .smoothing = TREK_ZERO },
        { .min_share = 0.6 }, { .min_share = -0.1 }, { .min_gain = -1 }, { .min_gain = INFINITY }, { .probe_every = -1 },
        { .speed_ratio = 0.9 },
        { .speed_ratio = 2, .slow_rank = 2 },
    };
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        REFUSED(trek_balancer_new(2, &bad[k]), TREK_ERR_ARGUMENT, "");
    }
    for (int ranks = -1; ranks < 2; ranks++) {
        REFUSED(trek_balancer_new(ranks, NULL), TREK_ERR_ARGUMENT, "");
    }
}

static void bad_reports_change_nothing(void **state)
{
    static const struct { double ms0, ms1, communication; int64_t n0, n1; } bad[] = {
        { -1, 1, 0, 1, 1 }, { 1, NAN, 0, 1, 1 }, { INFINITY, 1, 0, 1, 1 }, { 1, 1, -1, 1, 1 }, { 1, 1, NAN, 1, 1 },
            { 1, 1, 0, 1, -1 },
    };
    trek_balancer *b = trek_balancer_new(2, &(trek_balancer_opts){ .first = 2 });
    assert_int_equal(trek_balancer_report(b, (const double[]){ 1, 3 }, (const int64_t[]){ 6, 6 }, 0), TREK_OK);
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        FAILS(trek_balancer_report(b, (const double[]){ bad[k].ms0, bad[k].ms1 },
                                   (const int64_t[]){ bad[k].n0, bad[k].n1 },
                                   bad[k].communication), TREK_ERR_ARGUMENT, "");
        SHARES(b, 0.5, 0.5); /* not even the step is counted */
        assert_true(trek_balancer_throughput(b, 0) == 6 && trek_balancer_throughput(b, 1) == 2);
    }
    assert_int_equal(trek_balancer_report(b, (const double[]){ 1, 3 }, (const int64_t[]){ 6, 6 }, 0), TREK_OK);
    SHARES(b, 0.75, 0.25);
    FAILS(trek_balancer_report(NULL, NULL, NULL, 0), TREK_ERR_ARGUMENT, "");
    FAILS(trek_balancer_shares(b, NULL), TREK_ERR_ARGUMENT, "");
    assert_true(trek_balancer_throughput(b, -1) == 0);
    expect_error(TREK_ERR_ARGUMENT, "");
    trek_balancer_free(&b);
}

static void memory_may_run_out(void **state)
{
    bool made = false;
    for (int64_t at = 1; !made; at++) {
        int64_t before = test_allocator_blocks();
        test_allocator_restart(at);
        trek_balancer *b = trek_balancer_new(5, NULL);
        test_allocator_restart(0);
        made = b != NULL;
        assert_int_equal(trek_error_status(), made ? TREK_OK : TREK_ERR_MEMORY);
        trek_error_clear();
        trek_balancer_free(&b);
        assert_int_equal(test_allocator_blocks(), before);
        assert_true(at < 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_throughput), cmocka_unit_test(nobody_falls_below_the_least),
        cmocka_unit_test(decides_after_ten_then_every_fifty), cmocka_unit_test(throughput_is_smoothed),
        cmocka_unit_test(without_data_nothing_changes), cmocka_unit_test(small_gains_are_left),
        cmocka_unit_test(jitter_moves_nothing), cmocka_unit_test(hints_seed_the_shares), cmocka_unit_test(fixed_costs_are_found),
        cmocka_unit_test(communication_may_cost_more), cmocka_unit_test(idle_ranks_are_probed),
        cmocka_unit_test(resumes_from_a_plan), cmocka_unit_test(promises_hold_on_random_speeds),
        cmocka_unit_test(follows_a_slow_down), cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(bad_reports_change_nothing), cmocka_unit_test(memory_may_run_out),
    };
    if (test_allocator_use() != TREK_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
