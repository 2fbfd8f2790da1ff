/* SPDX-License-Identifier: Apache-2.0 */
/* What is chosen to be recomputed, or to be moved to host memory, is what an exhaustive search finds: the fastest choice that
 * fits at every point of forward and backward. */
#include "distributed/balance/recomputing.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { MOST_POINTS = 9, MOST_SEGMENTS = 12 };

static int64_t drawn(uint64_t *state, int64_t below) { return (int64_t)test_draw(state, (uint64_t)below); }

typedef struct drawn_line {
    trek_forward_line line;
    int64_t held[MOST_POINTS];
    trek_segment segments[MOST_SEGMENTS];
} drawn_line;

/* What is in use may become less from point to point, as values are no longer used. moves: a third of the segments are moved. */
static void draw(uint64_t *state, drawn_line *d, bool moves)
{
    int points = 1 + (int)drawn(state, MOST_POINTS), n = points > 1 ? (int)drawn(state, MOST_SEGMENTS + 1) : 0;
    d->held[0] = 0;
    for (int p = 1; p < points; p++) {
        d->held[p] = d->held[p - 1] + drawn(state, 40) - 5;
        d->held[p] = d->held[p] < 0 ? 0 : d->held[p];
    }
    for (int k = 0; k < n; k++) {
        int begin = (int)drawn(state, points - 1), end = begin + 1 + (int)drawn(state, points - 1 - begin);
        d->segments[k] = (trek_segment){ .begin = begin, .end = end, .result = drawn(state, 15), .ns = 1 + drawn(state, 30) };
        if (moves && drawn(state, 3) == 0) {
            d->segments[k].host = 1 + drawn(state, 20);
            d->segments[k].need = drawn(state, 30);
        }
    }
    d->line = (trek_forward_line){ points, d->held, n, d->segments, moves ? drawn(state, 40) : 0 };
}

/* Follows a choice through forward and backward. Returns its time; -1 if it does not fit, or if segments overlap. */
static int64_t follow(const trek_forward_line *line, int64_t room, const bool *recomputed)
{
    int64_t bytes = 0, ns = 0, host = 0;
    for (int p = 0; p < line->n_points;) {
        int taken = -1;
        for (int k = 0; k < line->n; k++)
            if (recomputed[k] && line->segments[k].begin == p) {
                if (taken >= 0)
                    return -1;
                taken = k;
            } else if (recomputed[k] && line->segments[k].begin < p && line->segments[k].end > p) {
                return -1;
            }
        if (bytes > room)
            return -1;
        if (taken < 0) {
            bytes += p + 1 < line->n_points ? line->held[p + 1] - line->held[p] : 0;
            p++;
            continue;
        }
        const trek_segment *segment = &line->segments[taken];
        for (int q = p; q <= segment->end && segment->host == 0; q++) /* in forward, and once more in backward */
            if (bytes + line->held[q] - line->held[p] > room)
                return -1;
        for (int k = 0; k < line->n; k++)
            if (recomputed[k] && k != taken && line->segments[k].begin > p && line->segments[k].begin < segment->end)
                return -1;
        if (bytes + segment->result > room || bytes + segment->need > room)
            return -1;
        host += segment->host;
        bytes += segment->result;
        ns += segment->ns;
        p = segment->end;
    }
    return bytes <= room && host <= line->host ? ns : -1;
}

static int64_t fastest(const trek_forward_line *line, int64_t room)
{
    int64_t best = -1;
    for (unsigned choice = 0; choice < 1u << line->n; choice++) {
        bool recomputed[MOST_SEGMENTS];
        for (int k = 0; k < line->n; k++)
            recomputed[k] = choice >> k & 1;
        int64_t ns = follow(line, room, recomputed);
        if (ns >= 0 && (best < 0 || ns < best))
            best = ns;
    }
    return best;
}

static void as_by_exhaustive_search(void **state)
{
    uint64_t seed = 1;
    int possible = 0, impossible = 0;
    for (int round = 0; round < 400; round++) {
        drawn_line d;
        draw(&seed, &d, false);
        int64_t most = 0, least;
        for (int p = 0; p < d.line.n_points; p++)
            most = d.held[p] > most ? d.held[p] : most;
        SUCCEEDS(trek_recomputing_least(&d.line, &least));
        for (int64_t room = 0; room <= most + 1; room += 1 + most / 12) {
            bool recomputed[MOST_SEGMENTS], found;
            int64_t ns, wanted = fastest(&d.line, room);
            SUCCEEDS(trek_recomputing_choose(&d.line, room, recomputed, &ns, &found));
            if (found != (wanted >= 0) || (found && (ns != wanted || follow(&d.line, room, recomputed) != ns)))
                fail_msg("line %d, room %" PRId64 ": %d, %" PRId64 " instead of %" PRId64, round, room, found, ns, wanted);
            assert_true(!found || room >= least);
            assert_true(found || room < least);
            possible += found;
            impossible += !found;
        }
    }
    if (possible < 900 || impossible < 900)
        fail_msg("%d rooms were enough, %d were not", possible, impossible);
}

/* With enough host memory the choice is the best one. With less it fits if anything does, and takes little more time. */
static void moved_within_host_memory(void **state)
{
    uint64_t seed = 2;
    int exact = 0, possible = 0, impossible = 0;
    double taken = 0, least = 0;
    for (int round = 0; round < 400; round++) {
        drawn_line d;
        draw(&seed, &d, true);
        int64_t most = 0, host = d.line.host;
        for (int p = 0; p < d.line.n_points; p++)
            most = d.held[p] > most ? d.held[p] : most;
        for (int64_t room = 0; room <= most + 1; room += 1 + most / 8) {
            bool chosen[MOST_SEGMENTS], found;
            int64_t ns, wanted = fastest(&d.line, room);
            SUCCEEDS(trek_recomputing_choose(&d.line, room, chosen, &ns, &found));
            if (found != (wanted >= 0) || (found && (ns < wanted || follow(&d.line, room, chosen) != ns)))
                fail_msg("line %d, room %" PRId64 ": %d, %" PRId64 " instead of %" PRId64, round, room, found, ns, wanted);
            possible += found;
            impossible += !found;
            exact += found && ns == wanted;
            taken += found ? (double)ns : 0;
            least += found ? (double)wanted : 0;
            d.line.host = INT64_MAX;
            wanted = fastest(&d.line, room);
            SUCCEEDS(trek_recomputing_choose(&d.line, room, chosen, &ns, &found));
            d.line.host = host;
            if (found != (wanted >= 0) || (found && ns != wanted))
                fail_msg("line %d, room %" PRId64 ", any host memory: %" PRId64 " instead of %" PRId64, round, room, ns, wanted);
        }
    }
    if (possible < 900 || impossible < 400 || exact < possible * 9 / 10 || taken > 1.02 * least)
        fail_msg("%d of %d choices are the best, %d are impossible; %.0f ns instead of %.0f", exact, possible, impossible, taken,
                 least);
}

/* Bytes are rounded in long forwards, but what is chosen fits. */
static void many_segments(void **state)
{
    enum { BLOCKS = 200 };
    static int64_t held[BLOCKS + 1];
    static trek_segment segments[BLOCKS];
    static bool recomputed[BLOCKS];
    for (int k = 0; k < BLOCKS; k++) {
        held[k + 1] = held[k] + (INT64_C(10) << 20) + k;
        segments[k] = (trek_segment){ .begin = k, .end = k + 1, .result = 1 << 20, .ns = 1000 };
    }
    const trek_forward_line line = { BLOCKS + 1, held, BLOCKS, segments, 0 };
    int64_t least, ns, all = held[BLOCKS];
    bool found;
    SUCCEEDS(trek_recomputing_least(&line, &least));
    assert_true(least >= (BLOCKS + 8) << 20 && least <= (BLOCKS + 12) << 20);
    for (int part = 1; part <= 4; part++) {
        int64_t room = all * part / 4;
        SUCCEEDS(trek_recomputing_choose(&line, room, recomputed, &ns, &found));
        assert_true(found);
        /* nine tenths of each are saved: as many as that needs, and a few more */
        int64_t wanted = 1000 * (int64_t)((double)(all - room) / (9 << 20) + 0.999);
        if (ns < wanted || ns > wanted + wanted / 20 + 1000)
            fail_msg("room %d / 4: %" PRId64 " ns instead of %" PRId64, part, ns, wanted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(as_by_exhaustive_search), cmocka_unit_test(moved_within_host_memory),
                                        cmocka_unit_test(many_segments) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
