/* SPDX-License-Identifier: Apache-2.0 */
/* Who takes the next grain, by the pace of all ranks (distributed/grains/pace.h): passes in simulated time, with speeds that
 * stay, that change, and that end. */
#include <math.h>
#include <string.h>

#include "distributed/grains/pace.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { MOST = 12, MS = 1000000 };

typedef struct bench {
    int ranks;
    _Atomic uint64_t words[MOST * TREK_GRAIN_PACE_WORDS];
    trek_grain_pace pace;
    int64_t now;
    int64_t each[MOST];      /* how long a grain takes a rank that begins it now */
    int64_t stops[MOST];     /* a grain that is running at this time takes a second longer; 0: none */
    int64_t comes[MOST];     /* how long after the others a rank comes to the pass */
    int64_t ran[MOST];       /* grains of the last pass */
    int64_t most;            /* grains that a rank takes at once; 0: one */
    int64_t looks;           /* of ranks that did not take a grain, in the last pass */
} bench;

static void begin(bench *b, int ranks)
{
    memset(b, 0, sizeof *b);
    b->ranks = ranks;
    b->pace = (trek_grain_pace){ .words = b->words, .ranks = ranks };
    b->now = 77;
}

static uint64_t drawn;
static int64_t draw(int64_t least, int64_t most) { return least + (int64_t)test_draw(&drawn, (uint64_t)(most - least + 1)); }

/* Runs a pass of n grains, and returns how long it takes. `change` is called before each grain. */
static int64_t run(bench *b, int64_t n, void (*change)(bench *b, int rank))
{
    int64_t start = b->now, at[MOST], left = n, running[MOST] = { 0 };
    bool over[MOST] = { false };
    b->looks = 0;
    trek_grain_pace_begin(&b->pace, b->pace.serial + 1, 0, b->ranks, start);
    for (int r = 0; r < b->ranks; r++) {
        at[r] = start + b->comes[r];
        b->ran[r] = 0;
    }
    for (;;) {
        int first = -1;
        for (int r = 0; r < b->ranks; r++)
            first = !over[r] && (first < 0 || at[r] < at[first]) ? r : first;
        if (first < 0)
            return b->now - start;
        b->now = at[first] > b->now ? at[first] : b->now;
        if (running[first])
            trek_grain_pace_stop(&b->pace, first, (double)running[first], b->now);
        running[first] = 0;
        over[first] = left == 0;
        if (left > 0 && trek_grain_pace_takes(&b->pace, first, left, b->now)) {
            if (change)
                change(b, first);
            int64_t most = trek_grain_pace_most(&b->pace, first, left), some = most < b->most ? most : b->most ? b->most : 1;
            trek_grain_pace_start(&b->pace, first, some, b->now);
            running[first] = some;
            left -= some;
            b->ran[first] += some;
            at[first] = b->now + some * b->each[first];
            if (b->stops[first] > b->now && b->stops[first] < at[first])
                at[first] += 1000 * MS;
        } else if (left > 0) {
            at[first] = b->now + trek_grain_pace_pause(&b->pace);
            if (++b->looks > 100000)
                fail_msg("ranks look without end for %lld grains", (long long)left);
        }
    }
}

/* The least time in which ranks that begin together can run n grains. */
static int64_t least(const bench *b, int64_t n)
{
    int64_t best = INT64_MAX;
    for (int r = 0; r < b->ranks; r++)
        for (int64_t k = 1; k <= n; k++) {
            int64_t end = k * b->each[r], can = 0;
            for (int q = 0; q < b->ranks; q++)
                can += end / b->each[q];
            if (can >= n && end < best)
                best = end;
        }
    return best;
}

/* If speeds stay what they are, a pass takes the least time that is possible in whole grains, from the second pass on: a rank
 * whose speed is not known runs a grain first. */
static void a_pass_takes_the_least_time(void **state)
{
    for (int k = 0; k < (test_short() ? 300 : 3000); k++) {
        bench b;
        drawn = (uint64_t)k;
        begin(&b, (int)draw(1, MOST));
        b.most = k % 2 ? draw(2, 16) : 1;
        for (int r = 0; r < b.ranks; r++)
            b.each[r] = draw(1, 20) * MS + 1;
        int64_t n = draw(1, 60), ran = 0;
        run(&b, n > b.ranks ? n : b.ranks, NULL); /* all run one, and are known */
        int64_t took = run(&b, n, NULL), best = least(&b, n);
        for (int r = 0; r < b.ranks; r++)
            ran += b.ran[r];
        assert_int_equal(ran, n);
        if (took > best + 2000) /* times are odd numbers */
            fail_msg("%d: %d ranks, %lld grains: %lld ns; %lld are possible", k, b.ranks, (long long)n, (long long)took,
                     (long long)best);
    }
}

/* A rank that is 20 times as slow as the other one gets nothing of 16 grains, and looks again without keeping anybody. */
static void a_slow_rank_may_get_nothing(void **state)
{
    bench b;
    begin(&b, 2);
    b.each[0] = 10 * MS;
    b.each[1] = 200 * MS;
    run(&b, 16, NULL);
    assert_int_equal(b.ran[1], 1);
    int64_t took = run(&b, 16, NULL);
    assert_int_equal(b.ran[1], 0);
    assert_in_range(took, 160 * MS, 161 * MS);
    assert_in_range(b.looks, 1, 100);
    b.each[1] = 10 * MS; /* it has become fast: it is tried again after some passes, and gets half */
    int passes = 0;
    while (b.ran[1] == 0 && passes < 100) {
        run(&b, 16, NULL);
        passes++;
    }
    assert_in_range(passes, 2, 10);
    for (int k = 0; k < 6; k++)
        run(&b, 16, NULL);
    assert_int_equal(b.ran[1], 8);
}

/* A fast rank that is stopped in a grain, or comes late, keeps that grain only: slower ones take all others. */
static void others_do_not_wait_for_a_rank_that_is_stopped(void **state)
{
    for (int late = 0; late < 2; late++) {
        bench b;
        begin(&b, 2);
        b.each[0] = 10 * MS;
        b.each[1] = 50 * MS;
        run(&b, 16, NULL);
        run(&b, 16, NULL);
        assert_int_equal(b.ran[1], 2);
        if (late)
            b.comes[0] = 2000 * MS;
        else
            b.stops[0] = b.now + 125 * MS; /* in its 13th grain */
        int64_t took = run(&b, 16, NULL);
        assert_int_equal(b.ran[0], late ? 0 : 13);
        assert_true(took <= (late ? 2000 : 1130) * MS);
    }
}

static void change_each_second(bench *b, int rank)
{
    int64_t second = b->now / (1000 * MS);
    for (int r = 0; r < b->ranks; r++) {
        drawn = (uint64_t)(second * 1000 + r);
        b->each[r] = draw(0, 1) ? 10 * MS : draw(10, 50) * MS;
    }
}

/* Speeds that change at random with every second, up to five times. What is lost in a hundred seconds is compared with what is
 * lost where the ranks know all speeds. */
static void change_for(int64_t most)
{
    double lost = 0, possible = 0, took = 0;
    bench b;
    begin(&b, 4);
    b.most = most;
    while (b.now < INT64_C(100000) * MS) {
        double rate = 0;
        change_each_second(&b, 0);
        for (int r = 0; r < b.ranks; r++)
            rate += 1.0 / (double)b.each[r];
        int64_t best = least(&b, 32), whole = b.now / (1000 * MS), pass = run(&b, 32, change_each_second);
        if (b.now / (1000 * MS) != whole) /* the speeds at its beginning are not those of the pass */
            continue;
        possible += 32 / rate;
        took += (double)pass;
        lost += (double)(pass - best);
    }
    if (!(lost / took < 0.03 && possible / took > 0.9))
        fail_msg("%lld at once: %.3f of the ranks' speed, %.4f lost by what is not known", (long long)most, possible / took,
                 lost / took);
}

static void speeds_may_change_every_second(void **state)
{
    change_for(1);
    change_for(16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pass_takes_the_least_time),
        cmocka_unit_test(a_slow_rank_may_get_nothing),
        cmocka_unit_test(others_do_not_wait_for_a_rank_that_is_stopped),
        cmocka_unit_test(speeds_may_change_every_second),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
