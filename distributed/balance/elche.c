/* SPDX-License-Identifier: Apache-2.0 */
/* El Che's arithmetic: anchor, counts. A call checks what is reported before it changes anything. */
#include "distributed/balance/elche.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/balance/makespan_internal.h"
#include "distributed/balance/speed.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

static const int64_t most_anchor = 1000000;
static const double dead_zone = 0.1;                /* smaller relative changes are jitter */
static const double worth = 1.02;                   /* a larger gain justifies new counts, if it lasts */
static const int lasting = 3;                       /* how many reports in a row are "lasting" */

struct trek_elche {
    int ranks, slow_rank;
    double ratio;                                   /* from the hint; 0: no hint */
    int64_t anchor, start, max_anchor, max_batch_diff, global_batches;
    int64_t ceiling; /* the bound of the anchor since it was lowered from outside; it rises by one with each report; 0: no
                      * bound */
    double target;
    bool calibrated, changed;
    int promising;                                  /* how many reports in a row promised a gain */
    double achieved;                                /* batches per millisecond in the last window */
    int64_t *counts, *goals;
    trek_speeds speeds;                             /* units are batches */
    double *pace;                                   /* by which batches are divided */
    trek_makespan_heap heap;
};

/* --- counts ---------------------------------------------------------------------------- */

/* Sets the pace of each rank. Before the first measurement the hint replaces it: the pace of the slow rank is the
 * hint's ratio. A rank that was never measured counts as the slowest; if there are fewer batches than ranks, it
 * counts as twice the fastest, because otherwise it would never be tried. */
static void set_pace(trek_elche *e)
{
    double unknown = 1, slowest = trek_speeds_slowest(&e->speeds);
    if (e->calibrated)
        unknown = e->global_batches > 0 && e->global_batches < e->ranks ? trek_speeds_fastest(&e->speeds) / 2 : slowest;
    for (int r = 0; r < e->ranks; r++)
        e->pace[r] = fmax(e->speeds.of[r].ms > 0 ? e->speeds.of[r].ms : unknown, slowest / TREK_SPEED_MOST_RATIO);
    if (!e->calibrated && e->ratio > 0)
        e->pace[e->slow_rank] = e->ratio;
}

static void set_goals(trek_elche *e)
{
    set_pace(e);
    if (e->global_batches > 0) {
        trek_makespan_split(&e->heap, e->global_batches, e->pace, e->ranks, e->goals);
        return;
    }
    double slowest = 0;
    for (int r = 0; r < e->ranks; r++)
        slowest = fmax(slowest, e->pace[r]);
    for (int r = 0; r < e->ranks; r++)
        e->goals[r] = (int64_t)round((double)e->anchor * (slowest / e->pace[r]));
}

/* Returns the batches per millisecond of a window with these counts. */
static double rate(const trek_elche *e, const int64_t *counts)
{
    double sum = 0, longest = 0;
    for (int r = 0; r < e->ranks; r++) {
        sum += (double)counts[r];
        longest = fmax(longest, (double)counts[r] * e->pace[r]);
    }
    return sum / longest;
}

/* Decides whether to move to the goals: if one count is far off, or if a smaller correction promises a gain after a
 * change of pace or promises it repeatedly. If the sum is constant, counts are small and one batch is a large
 * difference, so that it also takes a gain to move. */
static bool goals_worth(trek_elche *e)
{
    bool far = false, gain = rate(e, e->goals) > worth * rate(e, e->counts);
    for (int r = 0; r < e->ranks && !far; r++)
        far = fabs((double)(e->goals[r] - e->counts[r])) > dead_zone * (double)e->counts[r];
    e->promising = gain ? e->promising + 1 : 0;
    return (far && (gain || e->global_batches == 0)) || (gain && e->speeds.shifted) || e->promising >= lasting;
}

/* Moves no count by more than max_batch_diff. If the sum is constant, all counts go the same fraction of their way. */
static void bound_goals(trek_elche *e)
{
    int64_t most = 0, bound = e->max_batch_diff, given = 0;
    for (int r = 0; r < e->ranks; r++) {
        int64_t move = e->goals[r] - e->counts[r];
        most = most < llabs(move) ? llabs(move) : most;
    }
    if (bound == 0 || most <= bound)
        return;
    for (int r = 0; r < e->ranks; r++) {
        int64_t move = e->goals[r] - e->counts[r];
        if (e->global_batches == 0)
            e->goals[r] = e->counts[r] + (move > bound ? bound : move < -bound ? -bound : move);
        else
            e->goals[r] = e->counts[r] + (int64_t)floor((double)move * (double)bound / (double)most);
        given += e->goals[r];
    }
    /* floor leaves less than one batch per rank, and only ranks whose floor was not exact lack one; so these are
     * below their bound */
    for (int r = 0; r < e->ranks && given < e->global_batches; r++)
        if (e->goals[r] < e->counts[r] + bound) {
            e->goals[r]++;
            given++;
        }
}

static void take_goals(trek_elche *e)
{
    e->changed = e->changed || memcmp(e->counts, e->goals, (size_t)e->ranks * sizeof *e->counts) != 0;
    memcpy(e->counts, e->goals, (size_t)e->ranks * sizeof *e->counts);
    e->promising = 0;
}

/* With constant sums the anchor controls nothing; it is only reported. */
static void read_anchor(trek_elche *e)
{
    int slowest = 0;
    if (e->global_batches == 0)
        return;
    for (int r = 1; r < e->ranks; r++)
        slowest = e->pace[r] > e->pace[slowest] ? r : slowest;
    e->anchor = e->counts[slowest];
}

/* --- reports --------------------------------------------------------------------------- */

static void tune_anchor(trek_elche *e, double slowest, double communication_ms)
{
    if (e->global_batches > 0 || !(communication_ms > 0))
        return;
    int64_t before = e->anchor;
    if (e->ceiling && ++e->ceiling >= e->max_anchor)
        e->ceiling = 0;
    int64_t most = e->ceiling ? e->ceiling : e->max_anchor;
    double overhead = communication_ms / ((double)e->anchor * slowest);
    /* a rounding error in the quotient must not cost a batch */
    double wanted = ceil((double)e->anchor * (overhead / e->target) * (1 - 1e-12));
    if (overhead > e->target && wanted > (double)e->anchor)
        e->anchor = wanted < (double)most ? (int64_t)wanted : most;
    else if (overhead < e->target / 2 && e->anchor > e->start)
        e->anchor--;
    e->changed = e->changed || e->anchor != before;
}

static trek_status take_report(trek_elche *e, const double *compute_ms, const int64_t *batches, double communication_ms)
{
    if (!e)
        return trek_fail_missing("elche_report", "elche");
    if (!compute_ms || !batches)
        return trek_fail_missing("elche_report", compute_ms ? "batches" : "compute_ms");
    return trek_speeds_report(&e->speeds, compute_ms, batches, communication_ms, "elche_report", "batches");
}

trek_status trek_elche_report(trek_elche *e, const double *compute_ms, const int64_t *batches, double communication_ms)
{
    trek_status status = take_report(e, compute_ms, batches, communication_ms);
    if (status != TREK_OK)
        return status;
    bool first = !e->calibrated;
    e->changed = false;
    if (!(e->speeds.units > 0))
        return TREK_OK;
    e->calibrated = true;
    e->achieved = e->speeds.units / (e->speeds.longest_ms + communication_ms);
    tune_anchor(e, trek_speeds_slowest(&e->speeds), communication_ms);
    set_goals(e);
    if (first || goals_worth(e)) {
        if (!first)
            bound_goals(e);
        take_goals(e);
    }
    read_anchor(e);
    return TREK_OK;
}

trek_status trek_elche_lower_anchor(trek_elche *e, double factor)
{
    if (!e)
        return trek_fail_missing("elche_lower_anchor", "elche");
    if (!(factor > 0))
        return trek_fail(TREK_ERR_ARGUMENT, "elche_lower_anchor: factor: %g; must be finite and above 0", factor);
    double wanted = ceil((double)e->anchor * fmin(fmax(factor, 0.1), 1) * (1 - 1e-12));
    if (e->global_batches > 0 || wanted >= (double)e->anchor)
        return TREK_OK;
    e->ceiling = (int64_t)wanted;
    if (e->calibrated) {
        e->anchor = (int64_t)wanted;
        set_goals(e);
    } else { /* the counts come from a hint or an earlier run */
        for (int r = 0; r < e->ranks; r++)
            e->goals[r] = (int64_t)fmax(1, round((double)e->counts[r] * (wanted / (double)e->anchor)));
        e->anchor = (int64_t)wanted;
    }
    take_goals(e);
    return TREK_OK;
}

trek_status trek_elche_resume(trek_elche *e, const int64_t *counts, int64_t anchor)
{
    if (!e || !counts)
        return trek_fail_missing("elche_resume", e ? "counts" : "elche");
    int64_t sum = 0;
    for (int r = 0; r < e->ranks; r++) {
        if (counts[r] < 0 || counts[r] > most_anchor * (int64_t)TREK_SPEED_MOST_RATIO)
            return trek_fail(TREK_ERR_ARGUMENT, "elche_resume: counts: rank %d has %lld batches; must be 0 or more", r,
                             (long long)counts[r]);
        sum += counts[r];
    }
    if (sum == 0 || (e->global_batches > 0 && sum != e->global_batches))
        return trek_fail(TREK_ERR_ARGUMENT, "elche_resume: counts: their sum is %lld; must be %lld", (long long)sum,
                         (long long)e->global_batches);
    if (e->global_batches == 0 && (anchor < 1 || anchor > e->max_anchor))
        return trek_fail(TREK_ERR_ARGUMENT, "elche_resume: anchor: %lld; must be 1 to %lld", (long long)anchor,
                         (long long)e->max_anchor);
    memcpy(e->counts, counts, (size_t)e->ranks * sizeof *counts);
    trek_speeds_forget(&e->speeds);
    e->anchor = anchor;
    e->calibrated = e->changed = false;
    e->promising = 0;
    e->achieved = 0;
    return TREK_OK;
}

/* --- readings -------------------------------------------------------------------------- */

trek_status trek_elche_counts(const trek_elche *e, int64_t *counts)
{
    if (!e || !counts)
        return trek_fail_missing("elche_counts", e ? "counts" : "elche");
    memcpy(counts, e->counts, (size_t)e->ranks * sizeof *counts);
    return TREK_OK;
}

trek_status trek_elche_counts_within(trek_elche *e, int64_t max, int64_t *counts)
{
    trek_status status = trek_elche_counts(e, counts);
    if (status != TREK_OK)
        return status;
    if (max < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "elche_counts_within: max: %lld batches; must be 0 or more", (long long)max);
    if (trek_elche_total(e) <= max)
        return TREK_OK;
    for (int r = 0; r < e->ranks; r++)
        e->pace[r] = e->counts[r] > 0 ? 1 / (double)e->counts[r] : INFINITY;
    trek_makespan_split(&e->heap, max, e->pace, e->ranks, counts);
    return TREK_OK;
}

bool trek_elche_changed(const trek_elche *e) { return e && e->changed; }

int64_t trek_elche_total(const trek_elche *e)
{
    int64_t total = 0;
    if (!e) {
        trek_fail_missing("elche_total", "elche");
        return -1;
    }
    for (int r = 0; r < e->ranks; r++)
        total += e->counts[r];
    return total;
}

int64_t trek_elche_anchor(const trek_elche *e)
{
    if (e)
        return e->anchor;
    trek_fail_missing("elche_anchor", "elche");
    return -1;
}

bool trek_elche_calibrated(const trek_elche *e) { return e && e->calibrated; }

double trek_elche_ms_per_batch(const trek_elche *e, int rank)
{
    if (!e) {
        trek_fail_missing("elche_ms_per_batch", "elche");
        return 0;
    }
    if (rank < 0 || rank >= e->ranks) {
        trek_fail(TREK_ERR_ARGUMENT, "elche_ms_per_batch: rank: %d; must be 0 to %d", rank, e->ranks - 1);
        return 0;
    }
    return e->speeds.of[rank].ms;
}

double trek_elche_predicted_speedup(const trek_elche *e)
{
    double sum = 0, fastest = e && e->calibrated ? trek_speeds_fastest(&e->speeds) : 0;
    for (int r = 0; fastest > 0 && r < e->ranks; r++)
        sum += e->speeds.of[r].ms > 0 ? fastest / e->speeds.of[r].ms : 0;
    return sum;
}

double trek_elche_achieved_speedup(const trek_elche *e)
{
    return e && e->calibrated ? e->achieved * trek_speeds_fastest(&e->speeds) : 0;
}

/* --- life ------------------------------------------------------------------------------ */

static trek_status check_opts(int ranks, const trek_elche_opts *o)
{
    if (ranks < 2)
        return trek_fail(TREK_ERR_ARGUMENT, "elche_new: ranks: %d; must be at least 2", ranks);
    if (o->anchor < 0 || o->anchor > most_anchor || o->max_anchor < 0 || o->max_anchor > most_anchor)
        return trek_fail(TREK_ERR_ARGUMENT, "elche_new: .anchor: %lld, .max_anchor: %lld; must be 0 (the default) to %lld",
                         (long long)o->anchor, (long long)o->max_anchor, (long long)most_anchor);
    if (o->overhead_target != 0 && !(o->overhead_target >= 0.01 && o->overhead_target <= 0.50))
        return trek_fail(TREK_ERR_ARGUMENT, "elche_new: .overhead_target: %g; must be 0.01 to 0.50", o->overhead_target);
    if (o->max_batch_diff < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "elche_new: .max_batch_diff: %lld; must be 0 or more", (long long)o->max_batch_diff);
    if (o->speed_ratio != 0 && !(o->speed_ratio >= 1 && o->speed_ratio <= TREK_SPEED_MOST_RATIO))
        return trek_fail(TREK_ERR_ARGUMENT, "elche_new: .speed_ratio: %g; must be 1 to %g", o->speed_ratio,
                         TREK_SPEED_MOST_RATIO);
    if (o->speed_ratio != 0 && (o->slow_rank < 0 || o->slow_rank >= ranks))
        return trek_fail(TREK_ERR_ARGUMENT, "elche_new: .slow_rank: %d; must be one of %d ranks", o->slow_rank, ranks);
    if (o->global_batches < 0 || o->global_batches > INT64_C(1) << 40)
        return trek_fail(TREK_ERR_ARGUMENT, "elche_new: .global_batches: %lld; must be 1 to 2^40", (long long)o->global_batches);
    return TREK_OK;
}

static bool allocate(trek_elche *e)
{
    size_t n = (size_t)e->ranks;
    e->counts = trek_calloc(n, sizeof *e->counts);
    e->goals = e->counts ? trek_calloc(n, sizeof *e->goals) : NULL;
    e->pace = e->goals ? trek_calloc(n, sizeof *e->pace) : NULL;
    return e->pace && trek_speeds_init(&e->speeds, e->ranks, 0) == TREK_OK &&
        trek_makespan_heap_new(&e->heap, e->ranks) == TREK_OK;
}

trek_elche *trek_elche_new(int ranks, const trek_elche_opts *opts)
{
    trek_elche_opts o = opts ? *opts : (trek_elche_opts){ 0 };
    if (check_opts(ranks, &o) != TREK_OK)
        return NULL;
    trek_elche *e = trek_calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->ranks = ranks;
    if (!allocate(e)) {
        trek_elche_free(&e);
        return NULL;
    }
    e->slow_rank = o.slow_rank;
    e->ratio = o.speed_ratio;
    e->anchor = o.anchor > 0 ? o.anchor : 10;
    e->max_anchor = o.max_anchor > 0 ? o.max_anchor : e->anchor > 200 ? e->anchor : 200;
    e->anchor = e->anchor < e->max_anchor ? e->anchor : e->max_anchor;
    e->start = e->anchor;
    e->max_batch_diff = o.max_batch_diff;
    e->global_batches = o.global_batches;
    e->target = o.overhead_target != 0 ? o.overhead_target : 0.10;
    set_goals(e);
    take_goals(e);
    read_anchor(e);
    e->changed = false;
    return e;
}

void trek_elche_free(trek_elche **elche)
{
    trek_elche *e = elche ? *elche : NULL;
    if (!e)
        return;
    trek_makespan_heap_clear(&e->heap);
    trek_free(e->pace);
    trek_speeds_clear(&e->speeds);
    trek_free(e->goals);
    trek_free(e->counts);
    trek_free(e);
    *elche = NULL;
}
