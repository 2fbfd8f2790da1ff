/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are made slower: what TREK_SLOWDOWN says, and the time that passes on the calling thread. */
#include "distributed/balance/slowdown.h"

#include <math.h>
#include <stdlib.h>

#include "distributed/system/system.h"

/* Reads "factor", or "/batch:factor" after it, at *text. */
static bool read_point(const char **text, trek_slowdown *to)
{
    char *end;
    long long batch = 0;
    if (to->points == TREK_SLOWDOWN_POINTS)
        return false;
    if (to->points > 0) {
        batch = strtoll(*text + 1, &end, 10);
        if (end == *text + 1 || *end != ':' || batch <= to->point[to->points - 1].from_batch)
            return false;
        *text = end + 1;
    }
    double factor = strtod(*text, &end);
    if (end == *text || !(factor >= 0 && factor <= 1e6))
        return false;
    to->point[to->points].from_batch = batch;
    to->point[to->points++].factor = factor;
    *text = end;
    return true;
}

static bool read_rank(const char **text, trek_slowdown *to)
{
    *to = (trek_slowdown){ 0 };
    do {
        if (!read_point(text, to))
            return false;
    } while (**text == '/');
    if (**text == '~') {
        char *end;
        to->most = strtod(*text + 1, &end);
        if (end == *text + 1 || !(to->most >= 0 && to->most <= 1e6))
            return false;
        *text = end;
    }
    to->sleep = **text == 's';
    *text += to->sleep;
    return **text == ',' || **text == '\0';
}

trek_status trek_slowdown_read(const char *text, trek_slowdown *slowdowns, int ranks)
{
    const char *at = text;
    for (int r = 0;; r++, at++) {
        trek_slowdown further;
        trek_slowdown *to = r < ranks ? &slowdowns[r] : &further;
        bool fine = read_rank(&at, to);
        to->rank = r;
        if (!fine)
            return trek_fail(
                TREK_ERR_ARGUMENT,
                "trainer_setup: TREK_SLOWDOWN: \"%.80s\"; must be a factor from 0 to 1000000 for each rank, separated "
                "by commas, each followed by at most %d changes /batch:factor, by ~factor if it changes every second, and by s "
                "for a "
                "rank that sleeps",
                text, TREK_SLOWDOWN_POINTS - 1);
        if (*at == '\0')
            return TREK_OK;
    }
}

/* Returns a number in [0, 1) that belongs to a second and a rank: the mix of SplitMix64. */
static double draw(int64_t second, int rank)
{
    uint64_t x = (uint64_t)second * 0x9e3779b97f4a7c15u + (uint64_t)rank * 0xd1342543de82ef95u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (double)((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

double trek_slowdown_factor(const trek_slowdown *slowdown, int64_t batch, int64_t now_ns)
{
    double factor = 1;
    for (int k = 0; slowdown && k < slowdown->points && slowdown->point[k].from_batch <= batch; k++)
        factor = slowdown->point[k].factor;
    if (slowdown && slowdown->most > factor)
        factor += draw(now_ns / 1000000000, slowdown->rank) * (slowdown->most - factor);
    return factor > 1 ? factor : 1;
}

void trek_slowdown_apply(const trek_slowdown *slowdown, int64_t batch, int64_t compute_ns)
{
    static const double hour_ns = 3600e9;
    int64_t start = trek_now_ns();
    double extra = compute_ns > 0 ? (trek_slowdown_factor(slowdown, batch, start) - 1) * (double)compute_ns : 0;
    if (!(extra > 0))
        return;
    int64_t until = start + (int64_t)fmin(extra, hour_ns);
    if (slowdown->sleep)
        trek_sleep_until_ns(until);
    else
        trek_busy_until_ns(until);
}
