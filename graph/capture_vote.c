/* SPDX-License-Identifier: Apache-2.0 */
/* Captured steps of several processes. All of them call, all record, or all replay the same record, because a process
 * that replays and one that calls would give their devices collectives in different orders. Each process says what it
 * has for which inputs of all, and all draw the same conclusion from the same votes. A single process is a team of
 * one. */
#include "graph/stepper.h"
#include "optim/optimizer_internal.h"

/* Returns what a process wishes for inputs with this digest. */
static int64_t wish_for(const trek_capture_vote *vote, uint64_t team)
{
    for (int64_t k = 0; k < vote->n && k < TREK_MOST_RECORDS; k++)
        if (vote->wishes[k].team == team)
            return vote->wishes[k].number;
    return -1;
}

/* Records of one number were made in one recording, by all processes. If some processes lack the record, all make a
 * new one. */
trek_capture_verdict trek_capture_decide(const trek_capture_vote *votes, int n)
{
    trek_capture_verdict verdict = { .way = TREK_CAPTURE_CALL, .team = 1 };
    for (int p = 0; p < n; p++)
        verdict.team = trek_mix(verdict.team, votes[p].inputs);
    int64_t first = wish_for(&votes[0], verdict.team);
    bool same = first > 0;
    for (int p = 0; p < n; p++) {
        int64_t wish = wish_for(&votes[p], verdict.team);
        if (wish < 0)
            return verdict;
        same &= wish == first;
    }
    verdict.way = same ? TREK_CAPTURE_REPLAY : TREK_CAPTURE_RECORD;
    return verdict;
}
