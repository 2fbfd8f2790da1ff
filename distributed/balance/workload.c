/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses between balancer, El Che and recorded plan, and carries out what they decide. */
#include "distributed/balance/workload.h"

#include <math.h>
#include <string.h>

#include "distributed/balance/apportion.h"
#include "distributed/balance/plan_internal.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

/* New shares of ranks on equal devices are only reported if they promise at least this gain. */
#define GAIN_OF_EQUALS 0.25
/* After this many steps in which windows were possible but none came, the shares of each batch are balanced instead. */
#define STEPS_WITHOUT_WINDOWS 3

struct trek_workload {
    int ranks;
    trek_balancer *balancer;  /* NULL: shares are equal, or come from the plan */
    trek_elche *elche;        /* NULL: there are no windows */
    trek_plan *plan;          /* the decisions so far */
    trek_plan *replay;        /* a plan that is followed instead of measuring, or NULL */
    double *shares;
    int64_t *counts;          /* of the next windows */
    int64_t step;             /* the next step */
    int without;              /* steps in a row that were not windows although windows are on */
    int64_t global_batches;   /* of windows with fixed shares; 0: the anchor decides */
    bool fixed;               /* shares are given, and nothing is measured */
    bool windows, windows_seen;
    bool advises;             /* the balancer only reports what it would do: equal devices keep their shares, and so results
                               * keep their bits */
    int costly;
};

static uint64_t mix(uint64_t a, uint64_t b)
{
    a ^= b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2);
    return a * 0xff51afd7ed558ccdu;
}

/* --- fixed shares ------------------------------------------------------------------ */

#define LEAST_OF_MOST 1e-6    /* a share's ratio to the largest */
#define DEFAULT_ANCHOR 10

trek_status trek_workload_check_shares(const double *shares, int n, bool idle)
{
    double most = 0;
    for (int r = 0; r < n; r++) {
        if (!(shares[r] >= 0) || isinf(shares[r]))
            return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .shares: rank %d has %g; must be finite and not negative", r,
                             shares[r]);
        most = fmax(most, shares[r]);
    }
    if (n < 1 || most == 0)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .shares: all are 0; at least one rank must have a share");
    for (int r = 0; r < n; r++) {
        if (shares[r] == 0 && !idle)
            return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .shares: rank %d has 0; only .allow_idle allows that", r);
        if (shares[r] > 0 && shares[r] / most < LEAST_OF_MOST)
            return trek_fail(TREK_ERR_ARGUMENT,
                             "trainer_setup: .shares: rank %d has %g, less than a millionth of the largest, %g; must be more", r,
                             shares[r], most);
    }
    return TREK_OK;
}

static void take_shares(trek_workload *p, const double *given)
{
    double most = 0, sum = 0;
    for (int r = 0; r < p->ranks; r++)
        most = fmax(most, given[r]);
    for (int r = 0; r < p->ranks; r++)
        sum += given[r] / most;
    for (int r = 0; r < p->ranks; r++)
        p->shares[r] = given[r] / most / sum;
    p->fixed = true;
}

/* Sets windows in which the rank with the smallest share runs `anchor` batches, or windows that have the given sum. */
static trek_status set_fixed_counts(trek_workload *p, int64_t anchor)
{
    double least = 1;
    for (int r = 0; r < p->ranks; r++)
        least = p->shares[r] > 0 ? fmin(least, p->shares[r]) : least;
    int64_t total = p->global_batches > 0 ? p->global_batches : (int64_t)round((double)anchor / least);
    trek_status status = trek_apportion(total, p->shares, p->ranks, p->counts);
    return status == TREK_OK ? trek_elche_resume(p->elche, p->counts, anchor) : status;
}

static trek_status make_fixed(trek_workload *p, const trek_workload_opts *o)
{
    take_shares(p, o->shares);
    if (!o->windows || p->ranks == 1)
        return TREK_OK;
    int64_t anchor = o->elche.anchor ? o->elche.anchor : DEFAULT_ANCHOR, most = o->elche.max_anchor;
    anchor = most && anchor > most ? most : anchor;
    p->global_batches = o->elche.global_batches;
    trek_elche_opts opts = { .anchor = anchor, .max_anchor = anchor };
    if (!(p->elche = trek_elche_new(p->ranks, &opts)))
        return trek_error_status();
    p->windows = true;
    return set_fixed_counts(p, anchor);
}

/* --- making ------------------------------------------------------------------------ */

static trek_status make_parts(trek_workload *p, const trek_workload_opts *o)
{
    if (p->ranks > 1 && o->balance != TREK_OFF) {
        trek_balancer_opts opts = o->balancer;
        p->advises = o->balance == 0 && !o->unequal;
        if (p->advises)
            opts = (trek_balancer_opts){ .min_gain = GAIN_OF_EQUALS };
        if (!(p->balancer = trek_balancer_new(p->ranks, &opts)))
            return trek_error_status();
        trek_balancer_shares(p->balancer, p->shares);
    }
    if (p->ranks > 1 && o->windows && !(p->elche = trek_elche_new(p->ranks, &o->elche)))
        return trek_error_status();
    p->windows = p->elche != NULL;
    return p->elche ? trek_elche_counts(p->elche, p->counts) : TREK_OK;
}

/* Records in the plan what holds from a step on. */
static trek_status record(trek_workload *p, bool counts)
{
    if (!counts)
        return trek_plan_add_shares(p->plan, p->step, p->shares);
    int64_t anchor = trek_elche_anchor(p->elche); /* 0: a window has fewer batches than there are ranks */
    return trek_plan_add_counts(p->plan, p->step, p->counts, anchor > 0 ? anchor : 1);
}

trek_workload *trek_workload_new(int ranks, const trek_workload_opts *opts)
{
    trek_workload *p = trek_calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->ranks = ranks;
    p->costly = -1;
    p->shares = trek_calloc((size_t)ranks, sizeof *p->shares);
    p->counts = trek_calloc((size_t)ranks, sizeof *p->counts);
    p->plan = trek_plan_new(ranks);
    trek_status status = p->shares && p->counts && p->plan ? TREK_OK : trek_error_status();
    for (int r = 0; r < ranks && status == TREK_OK; r++)
        p->shares[r] = 1.0 / ranks;
    if (status == TREK_OK)
        status = opts->shares && opts->n_shares == ranks ? make_fixed(p, opts) : make_parts(p, opts);
    if (status == TREK_OK)
        status = record(p, p->windows);
    if (status == TREK_OK && opts->replay)
        status = trek_workload_take_plan(p, opts->replay, true, 0);
    if (status != TREK_OK)
        trek_workload_free(&p);
    return p;
}

void trek_workload_free(trek_workload **workload)
{
    trek_workload *p = *workload;
    *workload = NULL;
    if (!p)
        return;
    trek_balancer_free(&p->balancer);
    trek_elche_free(&p->elche);
    trek_plan_free(&p->plan);
    trek_plan_free(&p->replay);
    trek_free(p->shares);
    trek_free(p->counts);
    trek_free(p);
}

/* --- plans ------------------------------------------------------------------------- */

/* Makes a decision the current state. */
static trek_status follow(trek_workload *p, const trek_decision *d)
{
    if (d->kind == TREK_PLAN_KIND_SHARES) {
        memcpy(p->shares, d->shares, (size_t)p->ranks * sizeof *p->shares);
        p->windows = false;
        return TREK_OK;
    }
    trek_elche_opts opts = { .anchor = 1, .max_anchor = 1000000 };
    if (!p->elche && !(p->elche = trek_elche_new(p->ranks, &opts)))
        return trek_error_status();
    trek_status status = trek_elche_resume(p->elche, d->counts, d->anchor);
    if (status == TREK_OK)
        memcpy(p->counts, d->counts, (size_t)p->ranks * sizeof *p->counts);
    p->windows = status == TREK_OK;
    return status;
}

/* Follows the recorded decision of the next step. */
static trek_status follow_plan(trek_workload *p, bool *changed)
{
    trek_decision d;
    *changed = false;
    if (!trek_plan_at(p->replay, p->step, &d))
        return TREK_OK;
    *changed = d.from == p->step;
    return follow(p, &d);
}

trek_status trek_workload_take_plan(trek_workload *p, const trek_plan *plan, bool replay, int64_t step)
{
    if (trek_plan_ranks(plan) != p->ranks)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .plan: it is for %d ranks; the job has %d", trek_plan_ranks(plan),
                         p->ranks);
    trek_plan *copy = trek_plan_copy(plan);
    if (!copy)
        return trek_error_status();
    bool changed;
    trek_decision d;
    p->step = step;
    if (replay) {
        trek_plan_free(&p->replay);
        p->replay = copy;
        if (p->elche) { /* its limits may differ from the plan's */
            trek_elche_free(&p->elche);
            p->windows = false;
        }
        return follow_plan(p, &changed);
    }
    trek_plan_free(&p->plan);
    p->plan = copy;
    trek_status status = trek_plan_cut(p->plan, step + 1);
    if (status == TREK_OK && p->fixed)
        return record(p, p->windows);
    if (status != TREK_OK || !trek_plan_at(p->plan, step, &d))
        return status;
    if (d.kind == TREK_PLAN_KIND_COUNTS && p->elche) {
        status = trek_elche_resume(p->elche, d.counts, d.anchor);
        return status == TREK_OK ? trek_elche_counts(p->elche, p->counts) : status;
    }
    if (d.kind == TREK_PLAN_KIND_SHARES && p->balancer) {
        status = trek_balancer_resume(p->balancer, d.shares);
        return status == TREK_OK ? trek_balancer_shares(p->balancer, p->shares) : status;
    }
    return TREK_OK;
}

bool trek_workload_replays(const trek_workload *p) { return p->replay != NULL; }

const trek_plan *trek_workload_plan(const trek_workload *p) { return p->replay ? p->replay : p->plan; }

/* --- asking ------------------------------------------------------------------------ */

const double *trek_workload_shares(const trek_workload *p) { return p->shares; }

int64_t trek_workload_window(trek_workload *p)
{
    int64_t total = 0;
    for (int r = 0; p->windows && r < p->ranks; r++)
        total += p->counts[r];
    return total;
}

trek_status trek_workload_check_batch(trek_workload *p)
{
    if (!trek_workload_replays(p) || trek_workload_window(p) == 0)
        return TREK_OK;
    return trek_fail(TREK_ERR_ARGUMENT,
                     "trainer_setup: .plan: whole batches for step %lld, which this loop cannot follow; windows need "
                     "trek_graph_set_loader, trek_graph_set_loss, trek_graph_next and trek_graph_train_batch",
                     (long long)p->step);
}

trek_status trek_workload_counts(trek_workload *p, int64_t batches, int64_t *counts)
{
    if (!p->elche)
        return trek_fail(TREK_ERR_STATE, "graph_shares: windows are turned off; only they have counts");
    if (p->fixed && batches < trek_elche_total(p->elche))
        return trek_apportion(batches, p->shares, p->ranks, counts);
    return trek_elche_counts_within(p->elche, batches, counts);
}

uint64_t trek_workload_digest(const trek_workload *p)
{
    uint64_t digest = mix((uint64_t)p->step, p->windows);
    for (int r = 0; r < p->ranks; r++) {
        uint64_t bits;
        memcpy(&bits, &p->shares[r], sizeof bits);
        digest = mix(mix(digest, bits), (uint64_t)p->counts[r]);
    }
    return digest;
}

bool trek_workload_measures(const trek_workload *p) { return p->windows ? p->elche != NULL : p->balancer != NULL; }

double trek_workload_throughput(const trek_workload *p, int rank)
{
    if (!p->windows)
        return p->balancer ? trek_balancer_throughput(p->balancer, rank) : 0;
    double ms = trek_elche_ms_per_batch(p->elche, rank);
    return ms > 0 ? 1 / ms : 0;
}

void trek_workload_describe(const trek_workload *p, trek_workload_state *state)
{
    *state = (trek_workload_state){ .windows = p->windows, .costly = p->costly };
    if (p->windows) {
        state->anchor = trek_elche_anchor(p->elche);
        state->predicted = trek_elche_predicted_speedup(p->elche);
        state->achieved = trek_elche_achieved_speedup(p->elche);
    } else if (p->balancer) {
        state->predicted = trek_balancer_predicted_speedup(p->balancer);
        state->achieved = trek_balancer_achieved_speedup(p->balancer);
    }
}

/* --- measuring --------------------------------------------------------------------- */

static trek_status report_window(trek_workload *p, const double *ms, const int64_t *units, double communication_ms, bool *changed)
{
    if (p->fixed)
        return TREK_OK;
    trek_status status = trek_elche_report(p->elche, ms, units, communication_ms);
    if (status != TREK_OK || !trek_elche_changed(p->elche))
        return status;
    *changed = true;
    status = trek_elche_counts(p->elche, p->counts);
    return status == TREK_OK ? record(p, true) : status;
}

/* Keeps the ratios, rounded to whole batches. */
static trek_status shrink_fixed(trek_workload *p, double factor)
{
    int64_t anchor = (int64_t)ceil((double)trek_elche_anchor(p->elche) * factor);
    return p->global_batches > 0 ? TREK_OK : set_fixed_counts(p, anchor > 1 ? anchor : 1);
}

trek_status trek_workload_shrink(trek_workload *p, double factor, bool *shrunk)
{
    *shrunk = false;
    if (!p->windows || p->replay)
        return TREK_OK;
    int64_t before = trek_elche_anchor(p->elche);
    trek_status status = p->fixed ? shrink_fixed(p, factor) : trek_elche_lower_anchor(p->elche, factor);
    *shrunk = status == TREK_OK && trek_elche_anchor(p->elche) < before;
    if (!*shrunk)
        return status;
    status = trek_elche_counts(p->elche, p->counts);
    return status == TREK_OK ? record(p, true) : status;
}

static trek_status report_batch(trek_workload *p, const double *ms, const int64_t *units, double communication_ms, bool *changed)
{
    if (!p->balancer)
        return TREK_OK;
    trek_status status = trek_balancer_report(p->balancer, ms, units, communication_ms);
    int costly = trek_balancer_costly(p->balancer);
    if (costly >= 0 && costly != p->costly && !p->advises)
        trek_log_message(TREK_LOG_LEVEL_WARNING, "rank %d costs more time than it saves: without it a step would be shorter",
                         costly);
    p->costly = costly;
    if (status != TREK_OK || !trek_balancer_changed(p->balancer))
        return status;
    if (p->advises) {
        trek_log_message(TREK_LOG_LEVEL_INFO,
                         "the ranks' speeds differ although their devices do not: .balance = 1 or .max_anchor of "
                         "trek_trainer_opts would keep all of them busy");
        trek_balancer_free(&p->balancer);
        return TREK_OK;
    }
    *changed = true;
    status = trek_balancer_shares(p->balancer, p->shares);
    return status == TREK_OK ? record(p, false) : status;
}

/* Counts steps without windows: a loop without a registered loss and a loader of the graph cannot have windows. */
static trek_status without_window(trek_workload *p)
{
    if (p->windows_seen || ++p->without < STEPS_WITHOUT_WINDOWS)
        return TREK_OK;
    trek_log_message(TREK_LOG_LEVEL_WARNING,
                     "windows need trek_graph_set_loader and trek_graph_set_loss: shares of each batch are balanced instead");
    p->windows = false;
    return record(p, false);
}

trek_status trek_workload_report(trek_workload *p, int64_t step, bool window, const double *ms, const int64_t *units,
                                 double communication_ms,
                                 bool *changed)
{
    *changed = false;
    p->step = step + 1;
    if (p->replay)
        return follow_plan(p, changed);
    p->windows_seen |= window;
    if (p->windows && !window) {
        trek_status status = without_window(p);
        if (status != TREK_OK)
            return status;
    }
    return window ? report_window(p, ms, units, communication_ms, changed)
        : report_batch(p, ms, units, communication_ms, changed);
}
