/* SPDX-License-Identifier: Apache-2.0 */
/* Handing out the pieces of a step: by hand, as simulated steps in which nothing is lost and nobody waits long, and what is
 * refused. */
#include <math.h>

#include "distributed/balance/handout.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { MOST = 40 };

static void by_hand(void **state)
{
    static const struct { int64_t total; double ahead; int n; double weights[4]; int64_t counts[4]; } cases[] = {
        { 16, 0.5, 2, { 1, 1 }, { 4, 4 } }, { 16, 0.5, 2, { 3, 1 }, { 6, 2 } }, { 16, 0.5, 3, { 1, 1, 1 }, { 2, 2, 2 } },
        { 3, 0.5, 4, { 1, 1, 1, 1 }, { 0, 0, 0, 0 } }, { 16, 0, 2, { 1, 1 }, { 0, 0 } }, { 11, 1, 2, { 1, 1 }, { 6, 5 } },
        { 0, 0.5, 2, { 1, 1 }, { 0, 0 } }, { 100, 0.75, 3, { 1, 0, 1 }, { 37, 0, 37 } },
    };
    static const struct { int64_t left; double part, fastest; int64_t least, n; } takes[] = {
        { 100, 0.5, 0.5, 1, 25 }, { 100, 0.01, 0.01, 1, 1 }, { 100, 0.03, 0.5, 1, 2 }, { 100, 0.01, 0.01, 8, 8 },
        { 3, 0.5, 0.5, 8, 3 }, { 1, 1, 1, 1, 1 }, { 1, 0, 0, 1, 1 }, { 0, 1, 1, 1, 0 },
        { INT64_C(1) << 53, 1, 1, 1, INT64_C(1) << 52 },
        { 5, 0.1, 0.5, 1, 1 }, { 4, 0.1, 0.5, 1, 0 },   /* 0.7 * (1 - 0.3) = 0.49 */
        { 10, 0.1, 0.5, 2, 2 }, { 9, 0.1, 0.5, 2, 0 }, { 1, 0.1, 0.14, 1, 1 },
        { 1, 0.4, 0.4, 1, 1 }, { 100, 0, 0.5, 1, 0 },
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        int64_t counts[4];
        assert_int_equal(trek_handout_ahead(cases[k].total, cases[k].ahead, cases[k].weights, cases[k].n, counts), TREK_OK);
        for (int r = 0; r < cases[k].n; r++)
            if (counts[r] != cases[k].counts[r])
                fail_msg("case %d: rank %d has %lld, not %lld", (int)k, r, (long long)counts[r], (long long)cases[k].counts[r]);
    }
    for (size_t k = 0; k < sizeof takes / sizeof *takes; k++)
        assert_int_equal(trek_handout_next(takes[k].left, takes[k].part, takes[k].fastest, takes[k].least), takes[k].n);
    static const struct { double ready, each, end, n; } before[] = {
        { 0, 1, 5, 4 }, { 0, 1, 5.5, 5 }, { 0.5, 1, 5, 4 }, { 4, 1, 5, 0 }, { 5, 1, 5, 0 }, { 6, 1, 5, 0 }, { -3, 2, 4, 3 },
        { 0, 7, 5, 0 }, { 0, 1, INFINITY, INFINITY },
    };
    for (size_t k = 0; k < sizeof before / sizeof *before; k++)
        if (trek_handout_before(before[k].ready, before[k].each, before[k].end) != before[k].n)
            fail_msg("%d: %g", (int)k, trek_handout_before(before[k].ready, before[k].each, before[k].end));
}

/* A step of `total` items, each of which takes rank r the time ms[r]; weights are what is believed of the speeds. */
typedef struct step {
    int n;
    int64_t total, left, given, takes;
    double ms[MOST], weights[MOST], idle_at[MOST];
    double ahead;
    bool greedy;            /* whoever asks gets something */
} step;

static void give(step *s, int rank, int64_t items)
{
    s->left -= items;
    s->given += items;
    s->idle_at[rank] += (double)items * s->ms[rank];
}

/* Runs the step and returns when its last rank has ended. Who gets nothing does not ask again. */
static double run(step *s)
{
    int64_t counts[MOST];
    double sum = 0, most = 0, end = 0;
    bool asks[MOST];
    s->left = s->total;
    s->given = s->takes = 0;
    assert_int_equal(trek_handout_ahead(s->total, s->ahead, s->weights, s->n, counts), TREK_OK);
    for (int r = 0; r < s->n; r++) {
        sum += s->weights[r];
        most = s->weights[r] > most ? s->weights[r] : most;
        s->idle_at[r] = 0;
        asks[r] = true;
        give(s, r, counts[r]);
    }
    while (s->left > 0) {
        int first = -1;
        for (int r = 0; r < s->n; r++)
            first = asks[r] && (first < 0 || s->idle_at[r] < s->idle_at[first]) ? r : first;
        assert_true(first >= 0);
        int64_t items = trek_handout_next(s->left, s->weights[first] / sum, (s->greedy ? s->weights[first] : most) / sum, 1);
        assert_true(items >= 0 && items <= s->left);
        asks[first] = items > 0;
        give(s, first, items);
        s->takes++;
    }
    for (int r = 0; r < s->n; r++)
        end = s->idle_at[r] > end ? s->idle_at[r] : end;
    assert_true(s->given == s->total && s->left == 0);
    return end;
}

/* Speeds that are believed wrongly, by up to a factor of `wrong` between two ranks. */
static void draw(step *s, uint32_t number, double wrong)
{
    s->n = 1 + (int)((1 + test_number(1, number)) * 0.5 * (MOST - 1));
    s->total = (int64_t)((1 + test_number(2, number)) * 2000);
    for (int r = 0; r < s->n; r++) {
        uint32_t place = number * MOST + (uint32_t)r;
        s->ms[r] = exp(1.5 * (1 + test_number(3, place)));
        s->weights[r] = exp(0.5 * log(wrong) * test_number(4, place)) / s->ms[r];
    }
}

/* A step takes no longer than the ranks need together, and one item of the slowest, although speeds are believed wrongly, by
 * less than what is divided ahead allows. The number of questions grows with the logarithm of the items. If the speeds are
 * right, less than a third of the time is lost that would be lost if slow ranks did not leave the last items to others. */
static void nobody_waits(void **state)
{
    double lost[2] = { 0 };
    for (int k = 0; k < 6000; k++) {
        step s = { .ahead = 0.5, .greedy = k % 4 == 3 };
        bool right = k % 2;
        draw(&s, (uint32_t)k / 4, right ? 1 : 1.9);
        double end = run(&s), rate = 0, slowest = 0;
        for (int r = 0; r < s.n; r++) {
            rate += 1 / s.ms[r];
            slowest = s.ms[r] > slowest ? s.ms[r] : slowest;
        }
        double together = (double)s.total / rate;
        if (right && s.total > 0)
            lost[s.greedy] += end / together - 1;
        if (end > together + slowest)
            fail_msg("case %d: %d ranks, %lld items: %g ms, together %g, an item %g", k, s.n, (long long)s.total, end, together,
                     slowest);
        if (s.takes > s.n * (4 + 3 * log2(1 + (double)s.total / s.n)))
            fail_msg("case %d: %d ranks took %lld times for %lld items", k, s.n, (long long)s.takes, (long long)s.total);
    }
    if (lost[0] * 3 > lost[1])
        fail_msg("lost: %g of steps, and %g if slow ranks take the last items", lost[0], lost[1]);
}

static void refused(int64_t left, double part, double fastest, int64_t least, const char *text)
{
    assert_true(trek_handout_next(left, part, fastest, least) == 0);
    expect_error(TREK_ERR_ARGUMENT, text);
}

static void bad_calls(void **state)
{
    int64_t counts[3] = { -7, -7, -7 };
    static const double bad[] = { -0.1, 1.1, NAN, INFINITY };
    for (int k = 0; k < 4; k++) {
        FAILS(trek_handout_ahead(5, bad[k], NULL, 3, counts), TREK_ERR_ARGUMENT, "handout_ahead: ahead");
        refused(5, bad[k], 1, 1, "handout_next: ");
        refused(5, 0, bad[k], 1, "handout_next: ");
    }
    FAILS(trek_handout_ahead(-1, 0.5, NULL, 3, counts), TREK_ERR_ARGUMENT, "-1 items among 3");
    FAILS(trek_handout_ahead(5, 0.5, (double[]){ 0, 0, 0 }, 3, counts), TREK_ERR_ARGUMENT, "sum is 0");
    FAILS(trek_handout_ahead(5, 0.5, NULL, 3, NULL), TREK_ERR_ARGUMENT, "counts");
    refused(-1, 0.5, 1, 1, "-1, 0.5, 1 and 1");
    refused(1, 0.5, 0.4, 1, "1, 0.5, 0.4 and 1");
    refused(1, 0.5, 1, 0, "1, 0.5, 1 and 0");
    for (int k = 0; k < 3; k++) {
        assert_true(trek_handout_before(0, (double[]){ 0, -1, NAN }[k], 9) == 0);
        expect_error(TREK_ERR_ARGUMENT, "handout_before: each");
    }
    for (int k = 0; k < 3; k++)
        assert_true(counts[k] == -7); /* nothing is written */
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(by_hand), cmocka_unit_test(nobody_waits), cmocka_unit_test(bad_calls) };
    return cmocka_run_group_tests_name("handout", tests, NULL, NULL);
}
