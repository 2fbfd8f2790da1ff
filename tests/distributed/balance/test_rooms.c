/* SPDX-License-Identifier: Apache-2.0 */
/* Models that fit on no rank whole, on ranks of which those with the most memory are the slowest: what trek plans against the
 * best of all plans. A plan says which part of what is divided each rank keeps, and what it recomputes. */
#include "distributed/balance/rooms.h"

#include <math.h>
#include <stdio.h>

#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { MOST_RANKS = 4, MOST_BLOCKS = 4, MOST_POINTS = 2 * MOST_BLOCKS + 1, MOST_SEGMENTS = 3 * MOST_BLOCKS, PARTS = 24,
       GRAINS = 32 };

static int64_t drawn(uint64_t *state, int64_t least, int64_t most)
{
    return least + (int64_t)test_draw(state, (uint64_t)(most - least + 1));
}

/* --- models --------------------------------------------------------------------------------- */

/* A stack of blocks of two halves. A segment is a block, or its second half, or two neighbouring blocks. */
typedef struct model {
    trek_forward_line line;
    int64_t held[MOST_POINTS];
    trek_segment segments[MOST_SEGMENTS];
    int64_t pass_ns, state;
    int64_t peak[1 << MOST_SEGMENTS], ns[1 << MOST_SEGMENTS]; /* of the choices of segments; peak -1: they overlap */
} model;

static void draw_model(uint64_t *seed, model *m)
{
    int blocks = (int)drawn(seed, 2, MOST_BLOCKS), n = 0;
    int64_t first = drawn(seed, 20, 200), second = drawn(seed, 20, 200), result = drawn(seed, 2, 20);
    int64_t ns[2] = { drawn(seed, 50, 200), drawn(seed, 50, 200) };
    for (int b = 0; b < blocks; b++) {
        m->held[2 * b + 1] = m->held[2 * b] + first;
        m->held[2 * b + 2] = m->held[2 * b + 1] + second;
        m->segments[n++] = (trek_segment){ .begin = 2 * b, .end = 2 * b + 2, .result = result, .ns = ns[0] + ns[1] };
        m->segments[n++] = (trek_segment){ .begin = 2 * b + 1, .end = 2 * b + 2, .result = result, .ns = ns[1] };
        if (b > 0)
            m->segments[n++] = (trek_segment){ .begin = 2 * b - 2, .end = 2 * b + 2, .result = result,
                                               .ns = 2 * (ns[0] + ns[1]) };
    }
    m->line = (trek_forward_line){ 2 * blocks + 1, m->held, n, m->segments, 0 };
    m->pass_ns = 3 * blocks * (ns[0] + ns[1]); /* backward takes twice as long as forward */
    m->state = m->held[2 * blocks] * drawn(seed, 1, 40) / 10;
}

/* Returns the most bytes that are in use if these segments are recomputed, or -1 if they overlap. */
static int64_t peak_of(const trek_forward_line *line, unsigned choice)
{
    int64_t bytes = 0, most = 0;
    for (int k = 0; k < line->n; k++)
        for (int j = 0; j < k; j++)
            if (choice >> k & choice >> j & 1 && line->segments[k].begin < line->segments[j].end &&
                line->segments[j].begin < line->segments[k].end)
                return -1;
    for (int p = 0; p + 1 < line->n_points;) {
        const trek_segment *taken = NULL;
        for (int k = 0; k < line->n; k++)
            if (choice >> k & 1 && line->segments[k].begin == p)
                taken = &line->segments[k];
        int end = taken ? taken->end : p + 1;
        for (int q = p; q <= end; q++) /* in forward, and once more in backward */
            most = (int64_t)fmax((double)most, (double)(bytes + line->held[q] - line->held[p]));
        bytes += taken ? taken->result : line->held[end] - line->held[p];
        most = bytes > most ? bytes : most;
        p = end;
    }
    return most;
}

static void follow_all(model *m)
{
    for (unsigned choice = 0; choice < 1u << m->line.n; choice++) {
        m->peak[choice] = peak_of(&m->line, choice);
        m->ns[choice] = 0;
        for (int k = 0; k < m->line.n; k++)
            m->ns[choice] += choice >> k & 1 ? m->segments[k].ns : 0;
    }
}

/* --- ranks ------------------------------------------------------------------------------------ */

typedef struct ranks {
    int n;
    int64_t left[MOST_RANKS]; /* bytes for activations and a part of the state */
    double slower[MOST_RANKS];
} ranks;

/* Returns how many grains all together run in a unit of time, each the next one when it is ready with the last; 0 if some rank
 * has not enough memory. */
static double throughput(const ranks *x, const double *ns)
{
    double ready[MOST_RANKS] = { 0 }, end = 0;
    for (int r = 0; r < x->n; r++)
        if (ns[r] < 0)
            return 0;
    for (int g = 0; g < GRAINS; g++) {
        int next = 0;
        for (int r = 1; r < x->n; r++)
            next = ready[r] + ns[r] < ready[next] + ns[next] ? r : next;
        ready[next] += ns[next];
        end = fmax(end, ready[next]);
    }
    return GRAINS / end;
}

/* Returns the time of a grain on a rank with so much room for activations, if what is best is recomputed; below 0: none fits. */
static double fastest(const model *m, double slower, int64_t room)
{
    int64_t best = -1;
    for (unsigned choice = 0; choice < 1u << m->line.n; choice++)
        if (m->peak[choice] >= 0 && m->peak[choice] <= room && (best < 0 || m->ns[choice] < best))
            best = m->ns[choice];
    return best < 0 ? -1 : slower * (double)(m->pass_ns + best);
}

/* Tries all ways to give the rest of the parts to the ranks from r on. */
static void search(const model *m, const ranks *x, int r, int rest, double (*times)[PARTS + 1], double *ns, double *best)
{
    if (r == x->n - 1) {
        ns[r] = times[r][rest];
        *best = fmax(*best, throughput(x, ns));
        return;
    }
    for (int own = 0; own <= rest; own++) {
        ns[r] = times[r][own];
        if (ns[r] >= 0)
            search(m, x, r + 1, rest - own, times, ns, best);
    }
}

static double best_plan(const model *m, const ranks *x)
{
    double times[MOST_RANKS][PARTS + 1], ns[MOST_RANKS], best = 0;
    for (int r = 0; r < x->n; r++)
        for (int k = 0; k <= PARTS; k++)
            times[r][k] = fastest(m, x->slower[r], x->left[r] - m->state * k / PARTS);
    search(m, x, 0, PARTS, times, ns, &best);
    return best;
}

/* What set-up does: rooms from what recomputing saves, parts in their proportion, and then what each rank recomputes. */
static double planned(const model *m, const ranks *x)
{
    trek_room of[MOST_RANKS] = { { .left = 0 } };
    trek_room_levels levels;
    double rooms[MOST_RANKS], ns[MOST_RANKS], all = 0;
    SUCCEEDS(trek_room_levels_of(&m->line, &levels));
    for (int r = 0; r < x->n; r++) {
        of[r] = (trek_room){ .left = x->left[r], .levels = levels, .samples = 1, .pass_ns = x->slower[r] * (double)m->pass_ns };
        for (int k = 0; k <= TREK_ROOM_LEVELS; k++)
            of[r].levels.ns[k] = (int64_t)(x->slower[r] * (double)levels.ns[k]);
    }
    SUCCEEDS(trek_rooms_find(of, x->n, (double)m->state, rooms));
    for (int r = 0; r < x->n; r++)
        all += rooms[r];
    for (int r = 0; r < x->n; r++) {
        bool recomputed[MOST_SEGMENTS], found;
        int64_t more, part = all > 0 ? (int64_t)((double)m->state * (rooms[r] / all)) : m->state / x->n;
        SUCCEEDS(trek_recomputing_choose(&m->line, x->left[r] - part, recomputed, &more, &found));
        ns[r] = found ? x->slower[r] * (double)(m->pass_ns + more) : -1;
    }
    return throughput(x, ns);
}

/* --- the comparison ----------------------------------------------------------------------------- */

typedef struct outcome {
    int plans, refused;      /* compared; those that set-up refuses although there is one */
    double least, sum;       /* of the ratios */
} outcome;

static void compare(const model *m, const ranks *x, outcome *of)
{
    double best = best_plan(m, x), own = best > 0 ? planned(m, x) : 0;
    if (best == 0)
        return;
    of->plans++;
    of->refused += own == 0;
    if (own == 0)
        return;
    of->least = fmin(of->least, own / best);
    of->sum += own / best;
}

/* Budgets 1 : 2 : 4 and speeds 4 : 2 : 1, from memory that just suffices to memory in which nothing is recomputed. */
static void large_ranks_that_are_slow(void **state)
{
    static model m;
    outcome of = { .least = 1 };
    uint64_t seed = 5;
    for (int round = 0; round < 40; round++) {
        draw_model(&seed, &m);
        follow_all(&m);
        for (int k = 1; k <= 25; k++) {
            int64_t unit = (m.state + 3 * m.held[m.line.n_points - 1]) * k / 100;
            compare(&m, &(ranks){ 3, { unit, 2 * unit, 4 * unit }, { 1, 2, 4 } }, &of);
        }
    }
    printf("budgets 1 : 2 : 4, speeds 4 : 2 : 1: %d plans, %d refused; of the best one %.3f at least, %.3f on average\n",
           of.plans,
           of.refused, of.least, of.sum / (of.plans - of.refused));
    assert_true(of.plans > 400 && of.refused * 50 < of.plans && of.least >= 0.9);
}

static void any_ranks(void **state)
{
    static model m;
    outcome of = { .least = 1 };
    uint64_t seed = 6;
    for (int round = 0; round < (test_long() ? 3000 : 600); round++) {
        ranks x = { .n = (int)drawn(&seed, 2, MOST_RANKS) };
        draw_model(&seed, &m);
        follow_all(&m);
        int64_t all = m.state / x.n + m.held[m.line.n_points - 1];
        for (int r = 0; r < x.n; r++) {
            x.left[r] = all * drawn(&seed, 10, 160) / 100;
            x.slower[r] = (double)drawn(&seed, 10, 80) / 10;
        }
        compare(&m, &x, &of);
    }
    printf("drawn: %d plans, %d refused; of the best one %.3f at least, %.3f on average\n", of.plans, of.refused, of.least,
           of.sum / (of.plans - of.refused));
    assert_true(of.plans > 300 && of.refused * 50 < of.plans && of.least >= 0.9);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test_setup(large_ranks_that_are_slow, clear_error),
                                        cmocka_unit_test_setup(any_ranks, clear_error) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
