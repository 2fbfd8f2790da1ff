/* SPDX-License-Identifier: Apache-2.0 */
/* Exponentially forgetting means, and the decision when to report them. */
#include "distributed/balance/starvation.h"

#include <math.h>

#include "tensor/memory_internal.h"

#define NEW 0.1     /* the weight of the last step in a mean */
#define FIRST 10    /* steps before the means are looked at */
#define MUCH 0.25   /* the part of its time that a rank waits beyond another rank's, */
#define MUCH_MS 1.0 /* and the milliseconds of each step; in shorter steps it is jitter and harms nobody */

trek_status trek_starvation_begin(trek_starvation *s, int ranks)
{
    s->ranks = ranks;
    s->ms = trek_calloc((size_t)ranks, sizeof *s->ms);
    s->starved_ms = trek_calloc((size_t)ranks, sizeof *s->starved_ms);
    s->told = trek_calloc((size_t)ranks, sizeof *s->told);
    return s->ms && s->starved_ms && s->told ? TREK_OK : TREK_ERR_MEMORY;
}

void trek_starvation_end(trek_starvation *s)
{
    trek_free(s->ms);
    trek_free(s->starved_ms);
    trek_free(s->told);
    *s = (trek_starvation){ 0 };
}

double trek_starvation_of(const trek_starvation *s, int rank) { return s->ms[rank] > 0 ? s->starved_ms[rank] / s->ms[rank] : 0; }

double trek_starvation_least(const trek_starvation *s)
{
    double least = 1;
    for (int r = 0; r < s->ranks; r++)
        if (s->ms[r] > 0)
            least = fmin(least, trek_starvation_of(s, r));
    return least;
}

int trek_starvation_report(trek_starvation *s, const double *ms, const double *starved_ms)
{
    int rank = -1;
    for (int r = 0; r < s->ranks; r++) {
        bool known = ms[r] > 0, first = s->ms[r] == 0;
        if (!known)
            continue;
        s->ms[r] = first ? ms[r] : NEW * ms[r] + (1 - NEW) * s->ms[r];
        s->starved_ms[r] = first ? starved_ms[r] : NEW * starved_ms[r] + (1 - NEW) * s->starved_ms[r];
    }
    if (++s->steps < FIRST)
        return -1;
    for (int r = 0; r < s->ranks; r++)
        if (!s->told[r] && (rank < 0 || trek_starvation_of(s, r) > trek_starvation_of(s, rank)))
            rank = r;
    if (rank < 0 || trek_starvation_of(s, rank) < trek_starvation_least(s) + MUCH || s->starved_ms[rank] < MUCH_MS)
        return -1;
    s->told[rank] = true;
    return rank;
}
