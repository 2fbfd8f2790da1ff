/* SPDX-License-Identifier: Apache-2.0 */
/* The balancer's arithmetic: shares, and which rank costs more than it brings. A call checks what is
 * reported before it changes anything. */
#include "distributed/balance/balancer.h"

#include <math.h>
#include <string.h>

#include "distributed/balance/speed.h"
#include "tensor/memory_internal.h"
#include "tensor/option_internal.h"
#include "tensor/status_internal.h"

static const double same = 1 - 1e-9;                /* ends that differ by less than this are equal */

struct trek_balancer {
    int ranks, costly;
    int64_t first, every, probe_every, step, probe_end; /* probe_end: the step at which a probe is judged; 0: no probe runs */
    int64_t again, patience; /* the step at which a gain that noise may hide is examined again (0: never); how many steps after
                              * that */
    double min_share, min_gain;
    bool allow_idle, changed, reported;
    double samples, communication_ms;               /* of a step: the last one's, and smoothed */
    double ms_per_sample;                           /* of whole steps, smoothed */
    trek_speeds speeds;                             /* units are samples */
    double *shares, *wanted, *throughput;           /* throughput: of the speeds, or of a hint; 0: not measured yet */
    int64_t *idle_since;                            /* the step after which the rank became idle, plus 1; 0: it is not idle */
    bool *settled;                                  /* scratch: the rank gets its bound and no more */
};

/* --- shares ---------------------------------------------------------------------------- */

/* Returns the share that is left for ranks of known throughput when ranks that were never measured keep theirs. */
static double open_mass(const trek_balancer *b, double *throughput, int *known)
{
    double mass = 1;
    *throughput = 0;
    *known = 0;
    for (int r = 0; r < b->ranks; r++) {
        if (b->idle_since[r] > 0)
            continue;
        if (b->throughput[r] > 0) {
            *throughput += b->throughput[r];
            ++*known;
        } else {
            mass -= b->shares[r];
        }
    }
    return fmax(mass, 0);
}

/* Gives the largest share what rounding has left of 1. */
static void close_sum(double *shares, int n)
{
    int largest = 0;
    double sum = 0;
    for (int r = 0; r < n; r++) {
        sum += shares[r];
        largest = shares[r] > shares[largest] ? r : largest;
    }
    shares[largest] += 1 - sum;
}

/* Makes shares proportional to throughput, with no share under the bound: ranks that would fall under it get the
 * bound, and the others share the rest, until none falls under it. Returns false if nothing is known. */
static bool want_shares(trek_balancer *b)
{
    double throughput;
    int known;
    double mass = open_mass(b, &throughput, &known);
    if (known == 0)
        return false;
    double bound = fmin(b->min_share, mass / known);
    for (int r = 0; r < b->ranks; r++) {
        b->settled[r] = b->idle_since[r] > 0 || !(b->throughput[r] > 0);
        b->wanted[r] = b->idle_since[r] > 0 ? 0 : b->shares[r];
    }
    for (bool more = true; more;) {
        double mass_left = mass, throughput_left = throughput;
        more = false;
        for (int r = 0; r < b->ranks; r++) {
            if (b->settled[r] || mass * (b->throughput[r] / throughput) >= bound)
                continue;
            b->wanted[r] = bound;
            b->settled[r] = more = true;
            mass_left -= bound;
            throughput_left -= b->throughput[r];
        }
        mass = mass_left;
        throughput = throughput_left;
    }
    for (int r = 0; r < b->ranks; r++)
        if (!b->settled[r])
            b->wanted[r] = mass * (b->throughput[r] / throughput);
    close_sum(b->wanted, b->ranks);
    return true;
}

static void take_wanted(trek_balancer *b)
{
    b->changed = memcmp(b->shares, b->wanted, (size_t)b->ranks * sizeof *b->shares) != 0;
    memcpy(b->shares, b->wanted, (size_t)b->ranks * sizeof *b->shares);
}

/* Returns the longest compute time of a batch of one sample. Multiplied by the samples of a batch it is in ms. */
static double longest(const trek_balancer *b, const double *shares)
{
    double most = 0;
    for (int r = 0; r < b->ranks; r++)
        if (b->throughput[r] > 0)
            most = fmax(most, shares[r] / b->throughput[r]);
    return most;
}

static double fastest(const trek_balancer *b)
{
    double most = 0;
    for (int r = 0; r < b->ranks; r++)
        most = fmax(most, b->throughput[r]);
    return most;
}

/* --- what is noise ----------------------------------------------------------------------- */

/* Returns how much larger than 1 the ratio of the longest compute time to that of ranks that end together must be to
 * exceed the scatter of the measurements. The longest of many is also long by chance. */
static double noise(const trek_balancer *b)
{
    double most = 0, longest_error = 0, sum = 0, others = 0;
    for (int r = 0; r < b->ranks; r++) {
        double pace = trek_speeds_mean(&b->speeds, r);
        if (pace > 0)
            sum += 1 / pace;
        if (pace * b->shares[r] > most) {
            most = pace * b->shares[r];
            longest_error = trek_speeds_error(&b->speeds, r);
        }
    }
    for (int r = 0; r < b->ranks; r++) {
        double pace = trek_speeds_mean(&b->speeds, r), part = pace > 0 ? trek_speeds_error(&b->speeds, r) / pace / sum : 0;
        others += part * part;
    }
    return trek_speeds_scatter(&b->speeds) * sqrt(longest_error * longest_error + others);
}

/* Returns the longest compute time by the means of many steps; no single step need have taken that long. */
static double longest_by_means(const trek_balancer *b, const double *shares)
{
    double most = 0;
    for (int r = 0; r < b->ranks; r++)
        most = fmax(most, shares[r] * trek_speeds_mean(&b->speeds, r));
    return most;
}

/* --- decisions ------------------------------------------------------------------------- */

/* Finds a rank that costs more than it brings. Only the rank that all wait for can be one; of several equal ranks the
 * slowest. Returns -1 while a rank is not measured. */
static int find_costly(const trek_balancer *b)
{
    int slowest = -1, active = 0;
    double sum = 0, most = longest(b, b->wanted);
    for (int r = 0; r < b->ranks; r++) {
        if (b->idle_since[r] > 0)
            continue;
        if (!(b->throughput[r] > 0))
            return -1;
        active++;
        sum += b->throughput[r];
        bool last = b->wanted[r] / b->throughput[r] >= most * same;
        if (last && (slowest < 0 || b->throughput[r] * same <= b->throughput[slowest])) /* of equal ranks the highest */
            slowest = r;
    }
    if (active < 2)
        return -1;
    double with = b->samples * most + b->communication_ms;
    double without = b->samples / (sum - b->throughput[slowest]) + (active > 2 ? b->communication_ms : 0);
    return with > without * (1 + fmax(b->min_gain, noise(b))) ? slowest : -1;
}

static int first_idle(const trek_balancer *b)
{
    for (int r = 0; r < b->ranks; r++)
        if (b->idle_since[r] > 0)
            return r;
    return -1;
}

/* Returns whether a gain may exist that is smaller than the noise. */
static bool decide(trek_balancer *b)
{
    if (!want_shares(b))
        return false;
    b->costly = find_costly(b);
    if (b->costly >= 0 && b->allow_idle) {
        b->idle_since[b->costly] = b->step + 1;
        want_shares(b);
        take_wanted(b);
        return false;
    }
    if (b->costly < 0)
        b->costly = first_idle(b);
    bool gains = longest(b, b->shares) > longest(b, b->wanted) * (1 + b->min_gain);
    double least = fmax(b->min_gain, noise(b));
    if (gains && longest_by_means(b, b->shares) > longest_by_means(b, b->wanted) * (1 + least)) {
        take_wanted(b);
        return false;
    }
    return gains;
}

/* Schedules the next look: a gain hidden by noise shows when more is measured. Looks come soon at first, then at
 * growing intervals. */
static void settle(trek_balancer *b, bool hidden)
{
    b->again = hidden ? b->step + b->patience : 0;
    b->patience = !hidden ? b->first : 2 * b->patience < b->every ? 2 * b->patience : b->every;
    if (!hidden)
        trek_speeds_forget_spreads(&b->speeds);
}

/* Gives ranks that were idle for `steps` steps the smallest share again, and forgets what they did before. */
static void revive(trek_balancer *b, int64_t steps)
{
    double share = b->min_share > 0 ? b->min_share : 0.5 / b->ranks, taken = 0;
    for (int r = 0; r < b->ranks; r++) {
        b->wanted[r] = b->shares[r];
        if (b->idle_since[r] == 0 || b->step + 1 - b->idle_since[r] < steps)
            continue;
        b->idle_since[r] = 0;
        b->throughput[r] = 0;
        trek_speeds_forget_rank(&b->speeds, r);
        taken += share;
        b->wanted[r] = -share; /* a negative value marks the rank */
    }
    if (taken == 0)
        return;
    for (int r = 0; r < b->ranks; r++)
        b->wanted[r] = b->wanted[r] < 0 ? -b->wanted[r] : b->wanted[r] * (1 - taken);
    close_sum(b->wanted, b->ranks);
    take_wanted(b);
    b->probe_end = b->step + b->first;
}

static bool decision_due(const trek_balancer *b)
{
    if (b->probe_end > 0)
        return b->step == b->probe_end;
    return b->step == b->again || (b->step >= b->first && (b->step - b->first) % b->every == 0);
}

static double smooth(const trek_balancer *b, double average, double value)
{
    return b->speeds.weight * value + (1 - b->speeds.weight) * average;
}

static trek_status take_report(trek_balancer *b, const double *compute_ms, const int64_t *samples, double communication_ms)
{
    if (!b)
        return trek_fail_missing("balancer_report", "balancer");
    if (!compute_ms || !samples)
        return trek_fail_missing("balancer_report", compute_ms ? "samples" : "compute_ms");
    return trek_speeds_report(&b->speeds, compute_ms, samples, communication_ms, "balancer_report", "samples");
}

/* Takes note of what the speeds have learnt. */
static void measure(trek_balancer *b, double communication_ms)
{
    for (int r = 0; r < b->ranks; r++)
        b->throughput[r] = b->speeds.of[r].rate;
    if (b->speeds.units == 0)
        return;
    double ms_per_sample = (b->speeds.longest_ms + communication_ms) / b->speeds.units;
    b->samples = b->speeds.units;
    b->communication_ms = b->reported ? smooth(b, b->communication_ms, communication_ms) : communication_ms;
    b->ms_per_sample = b->reported ? smooth(b, b->ms_per_sample, ms_per_sample) : ms_per_sample;
    b->reported = true;
}

trek_status trek_balancer_report(trek_balancer *b, const double *compute_ms, const int64_t *samples, double communication_ms)
{
    trek_status status = take_report(b, compute_ms, samples, communication_ms);
    if (status != TREK_OK)
        return status;
    b->changed = false;
    b->step++;
    measure(b, communication_ms);
    if (decision_due(b)) {
        b->probe_end = 0;
        trek_speeds_settle(&b->speeds);
        settle(b, decide(b));
    } else if (b->allow_idle && b->probe_end == 0) {
        revive(b, b->probe_every);
    }
    return TREK_OK;
}

/* --- readings -------------------------------------------------------------------------- */

bool trek_balancer_changed(const trek_balancer *b) { return b && b->changed; }

trek_status trek_balancer_shares(const trek_balancer *b, double *shares)
{
    if (!b || !shares)
        return trek_fail_missing("balancer_shares", b ? "shares" : "balancer");
    memcpy(shares, b->shares, (size_t)b->ranks * sizeof *shares);
    return TREK_OK;
}

double trek_balancer_throughput(const trek_balancer *b, int rank)
{
    if (!b) {
        trek_fail_missing("balancer_throughput", "balancer");
        return 0;
    }
    if (rank < 0 || rank >= b->ranks) {
        trek_fail(TREK_ERR_ARGUMENT, "balancer_throughput: rank: %d; must be 0 to %d", rank, b->ranks - 1);
        return 0;
    }
    return b->throughput[rank];
}

int trek_balancer_costly(const trek_balancer *b) { return b ? b->costly : -1; }

double trek_balancer_predicted_speedup(const trek_balancer *b)
{
    if (!b || !b->reported)
        return 0;
    return b->samples / fastest(b) / (b->samples * longest(b, b->shares) + b->communication_ms);
}

double trek_balancer_achieved_speedup(const trek_balancer *b)
{
    return b && b->reported ? 1 / (fastest(b) * b->ms_per_sample) : 0;
}

trek_status trek_balancer_resume(trek_balancer *b, const double *shares)
{
    if (!b || !shares)
        return trek_fail_missing("balancer_resume", b ? "shares" : "balancer");
    double sum = 0;
    for (int r = 0; r < b->ranks; r++) {
        if (!(shares[r] >= 0 && shares[r] <= 1))
            return trek_fail(TREK_ERR_ARGUMENT, "balancer_resume: shares: rank %d has %g; must be 0 to 1", r, shares[r]);
        sum += shares[r];
    }
    if (!(fabs(sum - 1) < 1e-6))
        return trek_fail(TREK_ERR_ARGUMENT, "balancer_resume: shares: their sum is %g; must be 1", sum);
    size_t n = (size_t)b->ranks;
    memcpy(b->shares, shares, n * sizeof *shares);
    memset(b->throughput, 0, n * sizeof *b->throughput);
    trek_speeds_forget(&b->speeds);
    b->step = b->probe_end = b->again = 0;
    b->patience = b->first;
    for (int r = 0; r < b->ranks; r++)
        b->idle_since[r] = shares[r] == 0 && (b->allow_idle || b->min_share > 0);
    b->costly = b->allow_idle ? first_idle(b) : -1;
    if (!b->allow_idle)
        revive(b, 0);
    b->changed = b->reported = false;
    return TREK_OK;
}

/* --- life ------------------------------------------------------------------------------ */

static trek_status check_opts(int ranks, const trek_balancer_opts *o)
{
    if (ranks < 2)
        return trek_fail(TREK_ERR_ARGUMENT, "balancer_new: ranks: %d; must be at least 2", ranks);
    if (o->first < 0 || o->every < 0 || o->probe_every < 0)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "balancer_new: .first: %lld, .every: %lld, .probe_every: %lld; must be 0 (the default) or more",
                         (long long)o->first, (long long)o->every, (long long)o->probe_every);
    if (!(o->smoothing >= 0 && o->smoothing <= 1))
        return trek_fail(TREK_ERR_ARGUMENT, "balancer_new: .smoothing: %g; must be 0 to 1 (0: the default)", o->smoothing);
    if (o->min_share != TREK_ZERO && !(o->min_share >= 0 && o->min_share * ranks <= 1))
        return trek_fail(TREK_ERR_ARGUMENT, "balancer_new: .min_share: %g; must be 0 to 1/%d", o->min_share, ranks);
    if (o->min_gain != TREK_ZERO && !(o->min_gain >= 0 && o->min_gain < INFINITY))
        return trek_fail(TREK_ERR_ARGUMENT, "balancer_new: .min_gain: %g; must be finite and not negative", o->min_gain);
    if (o->speed_ratio != 0 && !(o->speed_ratio >= 1 && o->speed_ratio <= TREK_SPEED_MOST_RATIO))
        return trek_fail(TREK_ERR_ARGUMENT, "balancer_new: .speed_ratio: %g; must be 1 to %g", o->speed_ratio,
                         TREK_SPEED_MOST_RATIO);
    if (o->speed_ratio != 0 && (o->slow_rank < 0 || o->slow_rank >= ranks))
        return trek_fail(TREK_ERR_ARGUMENT, "balancer_new: .slow_rank: %d; must be one of %d ranks", o->slow_rank, ranks);
    return TREK_OK;
}

static bool allocate(trek_balancer *b)
{
    size_t n = (size_t)b->ranks;
    b->shares = trek_calloc(n, sizeof *b->shares);
    b->wanted = b->shares ? trek_calloc(n, sizeof *b->wanted) : NULL;
    b->throughput = b->wanted ? trek_calloc(n, sizeof *b->throughput) : NULL;
    b->idle_since = b->throughput ? trek_calloc(n, sizeof *b->idle_since) : NULL;
    b->settled = b->idle_since ? trek_calloc(n, sizeof *b->settled) : NULL;
    return b->settled != NULL;
}

/* Until throughputs are measured, the hint takes their role. */
static void first_shares(trek_balancer *b, const trek_balancer_opts *o)
{
    for (int r = 0; r < b->ranks; r++)
        b->throughput[r] = o->speed_ratio > 0 && r != o->slow_rank ? o->speed_ratio : 1;
    want_shares(b);
    take_wanted(b);
    memset(b->throughput, 0, (size_t)b->ranks * sizeof *b->throughput);
    b->changed = false;
}

trek_balancer *trek_balancer_new(int ranks, const trek_balancer_opts *opts)
{
    trek_balancer_opts o = opts ? *opts : (trek_balancer_opts){ 0 };
    if (check_opts(ranks, &o) != TREK_OK)
        return NULL;
    trek_balancer *b = trek_calloc(1, sizeof *b);
    if (!b)
        return NULL;
    b->ranks = ranks;
    if (trek_speeds_init(&b->speeds, ranks, trek_option(o.smoothing, 0.3)) != TREK_OK || !allocate(b)) {
        trek_balancer_free(&b);
        return NULL;
    }
    b->costly = -1;
    b->first = o.first > 0 ? o.first : 10;
    b->every = o.every > 0 ? o.every : 50;
    b->patience = b->first;
    b->probe_every = o.probe_every > 0 ? o.probe_every : 500;
    b->min_share = trek_option(o.min_share, fmin(0.05, 0.5 / ranks));
    b->min_gain = trek_option(o.min_gain, 0.02);
    b->allow_idle = o.allow_idle;
    first_shares(b, &o);
    return b;
}

void trek_balancer_free(trek_balancer **balancer)
{
    trek_balancer *b = balancer ? *balancer : NULL;
    if (!b)
        return;
    trek_speeds_clear(&b->speeds);
    trek_free(b->settled);
    trek_free(b->idle_since);
    trek_free(b->throughput);
    trek_free(b->wanted);
    trek_free(b->shares);
    trek_free(b);
    *balancer = NULL;
}
