/* SPDX-License-Identifier: Apache-2.0 */
/* The estimates, what is noise in them, and which rank waits for its data. */
#include "distributed/balance/speed.h"

#include <math.h>
#include <string.h>

#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

static const double least_ms = 1e-9, most_ms = 1e15;
static const double least_weight = 0.1, most_weight = 0.8; /* of a measurement */
static const double dead_zone = 0.1;                /* smaller relative errors are jitter */
enum { BLOCK = 8 };                                 /* how many measurements show a change of pace */

/* --- spreads ------------------------------------------------------------------------------ */

static void note_spread(trek_speed_spread *s, double value)
{
    double away = value - s->mean;
    s->n++;
    s->mean += away / (double)s->n;
    s->squares += away * (value - s->mean);
}

static double error_of(const trek_speed_spread *s)
{
    return s->n > 1 && s->mean > 0 ? sqrt(s->squares / (double)(s->n - 1) / (double)s->n) / s->mean : 0;
}

double trek_speeds_scatter(const trek_speeds *speeds) { return 2 + sqrt(2 * log(speeds->ranks)); }

/* Adds the latest measurements to the earlier ones, or replaces these if the pace has changed. */
static void add_recent(const trek_speeds *speeds, trek_speed_spread *all, trek_speed_spread *recent)
{
    double away = recent->mean - all->mean, a = error_of(all) * all->mean, c = error_of(recent) * recent->mean;
    int64_t n = all->n + recent->n;
    if (all->n == 0 || fabs(away) > trek_speeds_scatter(speeds) * sqrt(a * a + c * c)) {
        *all = *recent;
    } else {
        all->squares += recent->squares + away * away * (double)all->n * (double)recent->n / (double)n;
        all->mean += away * (double)recent->n / (double)n;
        all->n = n;
    }
    *recent = (trek_speed_spread){ 0 };
}

/* A rank that took longer than twice the usual was held up, which counts as twice the usual. A new pace soon becomes the
 * usual one. */
static double bounded(const trek_speed_memory *m, double ms)
{
    double usual = fmax(m->all.mean, m->recent.mean);
    return usual > 0 ? fmin(ms, 2 * usual) : ms;
}

/* --- measuring ------------------------------------------------------------------------------ */

/* A second error in a row that has the same sign, and is not jitter, is a change of pace. */
static double weigh(trek_speeds *speeds, trek_speed_memory *m, double error)
{
    bool shifts = fabs(error) > dead_zone && fabs(m->error) > dead_zone && (error > 0) == (m->error > 0);
    speeds->shifted |= shifts;
    if (speeds->weight > 0)
        return speeds->weight;
    return shifts ? most_weight : fmin(fmax(fabs(error), least_weight), most_weight);
}

static void measure(trek_speeds *speeds, trek_speed_memory *m, double ms, double rate)
{
    if (!(m->ms > 0)) {
        m->ms = ms;
        m->rate = rate;
        m->error = 0;
        return;
    }
    double error = (ms - m->ms) / m->ms, weight = weigh(speeds, m, error);
    note_spread(&m->recent, bounded(m, ms));
    if (m->recent.n == BLOCK)
        add_recent(speeds, &m->all, &m->recent);
    if (speeds->weight > 0) { /* of rates, in which a step that was held up counts little */
        m->rate = weight * rate + (1 - weight) * m->rate;
        m->ms = 1 / m->rate;
    } else {
        m->ms = weight * ms + (1 - weight) * m->ms;
        m->rate = 1 / m->ms;
    }
    m->error = error;
}

static trek_status check(const trek_speeds *speeds, const double *compute_ms, const int64_t *units, double communication_ms,
                         const char *function, const char *unit)
{
    for (int r = 0; r < speeds->ranks; r++)
        if (!(compute_ms[r] >= 0 && compute_ms[r] <= most_ms) || units[r] < 0)
            return trek_fail(TREK_ERR_ARGUMENT, "%s: rank %d: %g ms for %lld %s; both must be 0 or more, and the time finite",
                             function, r, compute_ms[r], (long long)units[r], unit);
    if (!(communication_ms >= 0 && communication_ms <= most_ms))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: communication_ms: %g; must be finite and not negative", function,
                         communication_ms);
    return TREK_OK;
}

trek_status trek_speeds_report(trek_speeds *speeds, const double *compute_ms, const int64_t *units, double communication_ms,
                               const char *function, const char *unit)
{
    trek_status status = check(speeds, compute_ms, units, communication_ms, function, unit);
    if (status != TREK_OK)
        return status;
    speeds->shifted = false;
    speeds->units = speeds->longest_ms = 0;
    for (int r = 0; r < speeds->ranks; r++) {
        double ms = units[r] > 0 ? compute_ms[r] / (double)units[r] : 0;
        if (!(ms >= least_ms)) /* nothing ran, or for a shorter time than the clock can measure */
            continue;
        measure(speeds, &speeds->of[r], ms, (double)units[r] / compute_ms[r]);
        speeds->longest_ms = fmax(speeds->longest_ms, compute_ms[r]);
        speeds->units += (double)units[r];
    }
    return TREK_OK;
}

void trek_speeds_settle(trek_speeds *speeds)
{
    for (int r = 0; r < speeds->ranks; r++)
        if (speeds->of[r].all.n == 0)
            add_recent(speeds, &speeds->of[r].all, &speeds->of[r].recent);
}

/* --- asking ----------------------------------------------------------------------------------- */

double trek_speeds_fastest(const trek_speeds *speeds)
{
    double fastest = INFINITY;
    for (int r = 0; r < speeds->ranks; r++)
        fastest = speeds->of[r].ms > 0 ? fmin(fastest, speeds->of[r].ms) : fastest;
    return fastest;
}

double trek_speeds_slowest(const trek_speeds *speeds)
{
    double slowest = 0;
    for (int r = 0; r < speeds->ranks; r++)
        slowest = fmax(slowest, speeds->of[r].ms);
    return slowest;
}

double trek_speeds_mean(const trek_speeds *speeds, int rank)
{
    const trek_speed_memory *m = &speeds->of[rank];
    return m->all.n > 0 ? m->all.mean : m->ms;
}

double trek_speeds_error(const trek_speeds *speeds, int rank) { return error_of(&speeds->of[rank].all); }

/* --- life -------------------------------------------------------------------------------------- */

void trek_speeds_forget_rank(trek_speeds *speeds, int rank)
{
    trek_speed_memory *m = &speeds->of[rank];
    m->ms = m->rate = m->error = 0;
}

void trek_speeds_forget_spreads(trek_speeds *speeds)
{
    for (int r = 0; r < speeds->ranks; r++)
        speeds->of[r].all = speeds->of[r].recent = (trek_speed_spread){ 0 };
}

void trek_speeds_forget(trek_speeds *speeds)
{
    memset(speeds->of, 0, (size_t)speeds->ranks * sizeof *speeds->of);
    speeds->shifted = false;
    speeds->units = speeds->longest_ms = 0;
}

trek_status trek_speeds_init(trek_speeds *speeds, int ranks, double weight)
{
    *speeds = (trek_speeds){ .ranks = ranks, .weight = weight, .of = trek_calloc((size_t)ranks, sizeof *speeds->of) };
    return speeds->of ? TREK_OK : TREK_ERR_MEMORY;
}

void trek_speeds_clear(trek_speeds *speeds)
{
    trek_free(speeds->of);
    *speeds = (trek_speeds){ 0 };
}

/* --- who waits for data: exponentially forgetting means ---------------------------------------- */

enum { FIRST = 10 };                       /* steps before the means are looked at */
static const double newest = 0.1;          /* the weight of the last step in a mean */
static const double much = 0.25;           /* the part of its time that a rank waits beyond another rank's, */
static const double much_ms = 1;           /* and the milliseconds of each step; in shorter steps it is jitter and harms nobody */

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
        s->ms[r] = first ? ms[r] : newest * ms[r] + (1 - newest) * s->ms[r];
        s->starved_ms[r] = first ? starved_ms[r] : newest * starved_ms[r] + (1 - newest) * s->starved_ms[r];
    }
    if (++s->steps < FIRST)
        return -1;
    for (int r = 0; r < s->ranks; r++)
        if (!s->told[r] && (rank < 0 || trek_starvation_of(s, r) > trek_starvation_of(s, rank)))
            rank = r;
    if (rank < 0 || trek_starvation_of(s, rank) < trek_starvation_least(s) + much || s->starved_ms[rank] < much_ms)
        return -1;
    s->told[rank] = true;
    return rank;
}
