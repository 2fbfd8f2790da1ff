/* SPDX-License-Identifier: Apache-2.0 */
/* The rounds of averaging in the background: what sites do, what the averaging thread does, and how they wait for
 * each other. */
#include "distributed/step/shares.h"
#include "distributed/background/background.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "distributed/background/site_values.h"
#include "distributed/step/average.h"
#include "distributed/step/job_sync.h"
#include "distributed/system/system.h"
#include "tensor/trace.h"

/* How many rounds may have been handed out beyond the last average. */
enum { AHEAD = 2 };

/* A local site. Its own thread uses the first part; the lock protects the rest. */
typedef struct background_site {
    int64_t round, batch;    /* the round that it is in; how many batches of that round it has done */
    int64_t taken;           /* how many averages it has taken in */
    int64_t round_start_ns, waited_ns;
    int64_t *samples;        /* [fragments] samples trained since the last snapshot of each fragment */

    int64_t given;           /* how many snapshots it has handed over */
    double round_samples, ms, waited_ms; /* of the last round */
    int64_t batches;
    bool failed;
    bool absent;             /* it failed before this round's snapshot; used by the averaging thread only */
} background_site;

/* What processes report to each other about a site's round. */
typedef struct site_report {
    double samples, ms, waited_ms, drift;
    int64_t batches;
    int64_t failed;
} site_report;

typedef struct round_report {
    int64_t stopped;
    site_report of[];
} round_report;

struct trek_background {
    trek_step *s;
    int sites, local, first; /* sites of the job, sites of this process, and the first of these */
    trek_background_opts opts;
    trek_values values;
    trek_outer_rule rule;    /* of opts.outer */
    trek_outer *outer;       /* NULL: averages are taken as they are, or nothing has begun yet */
    trek_exchange exchange;  /* exchanges the pseudo-gradients */
    float *momentum;         /* the momentum of an earlier run, or NULL */
    int64_t momentum_count;
    trek_thread thread;
    bool running;            /* the thread runs */
    int64_t first_batch, steps; /* the first batch of the pass; the steps that the graph had made before it */

    trek_lock lock;
    trek_condition changed;
    background_site *own;    /* [local] */
    int64_t allotted, averaged; /* numbers of rounds */
    int64_t before[AHEAD + 1]; /* batches of all sites in the rounds before that one */
    trek_allotment *allotments; /* [AHEAD + 1][sites] the allotments of round % (AHEAD + 1) */
    bool over;               /* the averaging ends with the rounds that are handed out, all of which are empty */
    trek_status status;      /* of the thread */
    char message[TREK_ERROR_SIZE];
    trek_status failed;      /* the status of the first site that failed, */
    char failure[TREK_ERROR_SIZE]; /* and its message */
    trek_background_stats stats;

    /* Used by the averaging thread only: */
    trek_dispatch dispatch;
    bool *lost;              /* [sites] */
    bool *dirty;             /* [fragments] some site has trained since the fragment's last average */
    size_t report_bytes;
    char *reports;           /* this process's reports, followed by those of all */
    int64_t trained;         /* batches that all sites have trained */
    double *ms, *weights;    /* [sites], [local] */
    int64_t *counts;         /* [sites] */
};

static trek_allotment *allotment_of(const trek_background *b, int64_t round, int site)
{
    return &b->allotments[(size_t)(round % (AHEAD + 1)) * (size_t)b->sites + (size_t)site];
}

static int fragment_of(const trek_background *b, int64_t round) { return (int)(round % b->values.fragments); }

static round_report *report_at(const trek_background *b, int k)
{
    return (round_report *)(b->reports + (size_t)k * b->report_bytes);
}

/* Returns the report of a site of the job. */
static site_report *report_of(const trek_background *b, int process, int site)
{
    return &report_at(b, 1 + process)->of[site];
}

/* --- making ----------------------------------------------------------------------------------------- */

trek_status trek_background_new(trek_step *s, const trek_background_opts *opts)
{
    size_t sites = (size_t)trek_ranks_sites(s);
    int most = s->pace.sites ? 1 : s->job.ranks_most;
    trek_background *b = trek_calloc(1, sizeof *b);
    if (!b)
        return trek_error_status();
    trek_lock_init(&b->lock);
    trek_condition_init(&b->changed);
    b->s = s;
    b->sites = trek_ranks_sites(s);
    b->local = trek_ranks_local_sites(s);
    b->first = trek_ranks_first_site(s);
    b->opts = *opts;
    if (opts->outer) {
        b->rule = *opts->outer;
        b->opts.outer = &b->rule;
        s->averaging->own_states = true;
        trek_exchange_init(&b->exchange, s->job.comm);
    }
    b->own = trek_calloc((size_t)b->local, sizeof *b->own);
    b->allotments = trek_calloc(sites * (AHEAD + 1), sizeof *b->allotments);
    b->lost = trek_calloc(sites, sizeof *b->lost);
    b->report_bytes = sizeof(round_report) + (size_t)most * sizeof(site_report);
    b->reports = trek_calloc((size_t)s->job.processes + 1, b->report_bytes);
    b->ms = trek_calloc(sites, sizeof *b->ms);
    b->weights = trek_calloc((size_t)b->local, sizeof *b->weights);
    b->counts = trek_calloc(sites, sizeof *b->counts);
    s->averaging->background = b;
    s->policy = s->averaging->in_rounds;
    return trek_error_status();
}

void trek_background_free(trek_background **background)
{
    trek_background *b = *background;
    *background = NULL;
    if (!b)
        return;
    trek_values_free(&b->values);
    trek_outer_free(&b->outer);
    trek_exchange_clear(&b->exchange);
    trek_free(b->momentum);
    trek_dispatch_free(&b->dispatch);
    for (int r = 0; b->own && r < b->local; r++)
        trek_free(b->own[r].samples);
    trek_free(b->own);
    trek_free(b->allotments);
    trek_free(b->lost);
    trek_free(b->dirty);
    trek_free(b->reports);
    trek_free(b->ms);
    trek_free(b->weights);
    trek_free(b->counts);
    trek_condition_destroy(&b->changed);
    trek_lock_destroy(&b->lock);
    trek_free(b);
}

/* --- handing batches out ------------------------------------------------------------------------------ */

static trek_status count_batches(trek_background *b)
{
    int64_t left = trek_dispatch_left(&b->dispatch);
    if (!b->opts.one_batch)
        return trek_workload_counts(b->s->pace.workload, left, b->counts);
    for (int r = 0; r < b->sites; r++)
        b->counts[r] = 1;
    return TREK_OK;
}

/* Decides the allotments of one more round. The averaging thread calls it, or begin does before that thread runs. */
static trek_status hand_out(trek_background *b)
{
    int64_t round = b->allotted, batches = 0;
    trek_status status = count_batches(b);
    for (int r = 0; r < b->sites && status == TREK_OK; r++) {
        trek_dispatch_take(&b->dispatch, b->lost[r] ? 0 : b->counts[r], allotment_of(b, round, r));
        batches += trek_allotment_batches(allotment_of(b, round, r));
    }
    for (int r = 0; r < b->sites && batches == 0; r++) { /* the last batches were meant for a lost site */
        trek_dispatch_take(&b->dispatch, b->lost[r] ? 0 : 1, allotment_of(b, round, r));
        batches = trek_allotment_batches(allotment_of(b, round, r));
    }
    b->before[(round + 1) % (AHEAD + 1)] = b->before[round % (AHEAD + 1)] + batches;
    return status;
}

/* Returns how many batches have been handed out in rounds from `round` on. */
static int64_t under_way(const trek_background *b, int64_t round)
{
    int64_t batches = 0;
    for (; round < b->allotted; round++)
        for (int r = 0; r < b->sites; r++)
            batches += trek_allotment_batches(allotment_of(b, round, r));
    return batches;
}

/* Returns the word for a site in messages. */
static const char *kind_of(const trek_background *b) { return b->s->pace.sites ? "process" : "rank"; }

/* Takes note that a site has failed in this round: its batches are handed out again. */
static trek_status lose(trek_background *b, int64_t round, int site)
{
    trek_status status = TREK_OK;
    b->lost[site] = true;
    b->stats.lost += b->s->pace.sites ? b->s->job.process_ranks[site] : 1;
    trek_log_message(TREK_LOG_LEVEL_WARNING, "%s %d has failed: its batches go to the others, which continue without it",
                     kind_of(b),
                     site);
    for (int64_t k = b->allotted - 1; k >= round && status == TREK_OK; k--) {
        trek_allotment *own = allotment_of(b, k, site);
        status = trek_dispatch_give_back(&b->dispatch, own);
        *own = (trek_allotment){ 0 };
    }
    return status;
}

/* --- the averaging thread ------------------------------------------------------------------------------- */

/* Waits until every local site has handed over its snapshot of that round or has failed. */
static void wait_for_snapshots(trek_background *b, int64_t round)
{
    trek_lock_acquire(&b->lock);
    for (int r = 0; r < b->local; r++)
        while (!b->own[r].failed && b->own[r].given <= round)
            trek_condition_wait(&b->changed, &b->lock);
    for (int r = 0; r < b->local; r++)
        b->own[r].absent = b->own[r].given <= round;
    trek_lock_release(&b->lock);
}

/* Collects the reports of the sites of all processes. */
static trek_status gather(trek_background *b)
{
    trek_step *s = b->s;
    round_report *own = report_at(b, 0);
    own->stopped = b->opts.stopped && b->opts.stopped(b->opts.arg);
    for (int r = 0; r < b->local; r++) {
        const background_site *site = &b->own[r];
        own->of[r] = site->absent ? (site_report){ .failed = true }
            : (site_report){ site->round_samples, site->ms, site->waited_ms, s->team->replicas[r].drift, site->batches, false };
    }
    return trek_job_gather(&s->job, own, b->report_bytes, report_at(b, 1));
}

/* Derives a number of each site of the job from its report. */
typedef trek_status (*report_fn)(trek_background *b, int site, const site_report *report, void *arg);

static trek_status each_report(trek_background *b, report_fn fn, void *arg)
{
    trek_status status = TREK_OK;
    int site = 0;
    for (int p = 0; p < b->s->job.processes; p++)
        for (int r = 0; r < trek_ranks_sites_of(b->s, p) && status == TREK_OK; r++)
            status = fn(b, site++, report_of(b, p, r), arg);
    return status;
}

/* The sums over all reports of a round. */
typedef struct round_sums {
    int64_t round;
    double samples, drift, waited_ms;
    int living;
} round_sums;

static trek_status add_report(trek_background *b, int site, const site_report *report, void *arg)
{
    round_sums *sums = arg;
    b->ms[site] = report->batches ? report->ms : 0;
    b->counts[site] = report->batches;
    if (report->failed)
        return b->lost[site] ? TREK_OK : lose(b, sums->round, site);
    sums->samples += report->samples;
    sums->drift = report->drift > sums->drift || isnan(report->drift) ? report->drift : sums->drift;
    if (report->batches) /* the site that comes last waits for the average only */
        sums->waited_ms = sums->living == 0 || report->waited_ms < sums->waited_ms ? report->waited_ms : sums->waited_ms;
    sums->living++;
    b->trained += report->batches;
    return TREK_OK;
}

static void note_sent(trek_background *b, int64_t bytes) { b->stats.bytes_sent += trek_job_is_alone(&b->s->job) ? 0 : bytes; }

/* Sets the update count of the center's states to the largest count of any site. */
static trek_status agree_on_steps(trek_background *b, int fragment)
{
    trek_values *v = &b->values;
    if (!v->states)
        return TREK_OK;
    trek_values_most_steps(v, fragment, b->weights);
    note_sent(b, v->n_segments * (int64_t)sizeof *v->steps);
    return trek_job_reduce(&b->s->job, v->steps, v->n_segments, TREK_I64, TREK_REDUCTION_MAX);
}

/* Averages one fragment. The weights of all sites of the job sum to 1. The delta of this process becomes the delta of
 * all, and the center advances by it. */
static trek_status average(trek_background *b, int fragment)
{
    trek_step *s = b->s;
    trek_values *v = &b->values;
    int64_t at = v->bounds[fragment], n = v->bounds[fragment + 1] - at;
    void *delta = trek_values_at(v, v->delta, at);
    trek_status status = TREK_OK;
    trek_values_difference(v, fragment, b->weights);
    if (n > 0)
        status = trek_job_reduce(&s->job, delta, n, v->dtype, TREK_REDUCTION_SUM);
    note_sent(b, n * (int64_t)trek_values_size(v));
    if (status == TREK_OK)
        trek_values_advance(v, fragment);
    return status == TREK_OK ? agree_on_steps(b, fragment) : status;
}

/* Lets the outer optimizer make a step on the center, given the mean of the differences of this process's sites. */
static trek_status step_outer(trek_background *b, int fragment, double samples)
{
    trek_values *v = &b->values;
    int64_t at = v->bounds[fragment], end = v->bounds[fragment + 1], sent = b->exchange.sent;
    double own = 0;
    for (int r = 0; r < b->local; r++)
        own += b->weights[r] * samples;
    for (int r = 0; r < b->local; r++)
        b->weights[r] = own > 0 ? b->weights[r] * samples / own : 0;
    trek_values_difference(v, fragment, b->weights);
    float *mean = trek_values_at(v, v->delta, at);
    for (int64_t i = 0; i < end - at; i++)
        mean[i] += b->outer->center[at + i];
    trek_status status = trek_outer_exchange(b->outer, &b->exchange, at, end, mean, own);
    b->stats.bytes_sent += b->exchange.sent - sent;
    return status;
}

/* Sets the batch counts of the rounds that have not been handed out yet from what was measured. */
static trek_status report_times(trek_background *b, const round_sums *sums)
{
    trek_step *s = b->s;
    bool changed = false, shrunk = false;
    s->drift = sums->drift;
    trek_drift_verdict verdict = trek_average_judge(s);
    if (b->opts.one_batch)
        return TREK_OK;
    trek_status status = trek_workload_report(s->pace.workload, b->steps + b->trained, true, b->ms, b->counts,
                                              verdict == TREK_DRIFT_STABLE ? sums->waited_ms : 0, &changed);
    if (status == TREK_OK && verdict == TREK_DRIFT_SHRINKS)
        status = trek_workload_shrink(s->pace.workload, 0.5, &shrunk);
    return status;
}

static trek_status all_have_failed(trek_background *b)
{
    char failure[TREK_ERROR_SIZE];
    trek_lock_acquire(&b->lock);
    snprintf(failure, sizeof failure, "%s", b->failure);
    trek_status status = b->failed;
    trek_lock_release(&b->lock);
    return failure[0] ? trek_fail(status, "trainer_run: all ranks have failed; %s", failure)
                      : trek_fail(TREK_ERR_PEER, "trainer_run: all ranks of all processes have failed");
}

/* Averages one round. *ends: all batches of the pass have been trained and averaged. */
static trek_status average_round(trek_background *b, int64_t round, bool *ends)
{
    trek_step *s = b->s;
    int fragment = fragment_of(b, round);
    round_sums sums = { .round = round };
    trek_status status = gather(b);
    if (status == TREK_OK)
        status = each_report(b, add_report, &sums);
    if (status == TREK_OK && sums.living == 0)
        status = all_have_failed(b);
    for (int r = 0; r < b->local; r++)
        b->weights[r] = sums.samples > 0 ? report_at(b, 0)->of[r].samples / sums.samples : 0;
    if (status == TREK_OK && sums.samples > 0) {
        status = b->opts.outer ? step_outer(b, fragment, sums.samples) : average(b, fragment);
        for (int r = 0; r < b->local; r++)
            s->team->replicas[r].drift = b->weights[r] > 0 ? trek_values_drift(&b->values, fragment, r) : 0;
        b->stats.averages++;
        b->stats.drift = sums.drift;
        status = status == TREK_OK ? report_times(b, &sums) : status;
    }
    for (int f = 0; f < b->values.fragments; f++)
        b->dirty[f] = f != fragment && (b->dirty[f] || sums.samples > 0);
    for (int p = 0; p < s->job.processes; p++)
        if (report_at(b, 1 + p)->stopped)
            trek_dispatch_drop(&b->dispatch);
    *ends = trek_dispatch_left(&b->dispatch) == 0 && under_way(b, round + 1) == 0;
    for (int f = 0; f < b->values.fragments; f++)
        *ends = *ends && !b->dirty[f];
    return status;
}

static void *averaging_thread(void *arg)
{
    trek_background *b = arg;
    trek_status status = TREK_OK;
    bool ends = false;
    for (int64_t round = 0; status == TREK_OK && !ends; round++) {
        wait_for_snapshots(b, round);
        int64_t start = trek_trace_enter("average");
        status = average_round(b, round, &ends);
        if (status == TREK_OK && !ends)
            status = hand_out(b);
        trek_trace_end("average", start, b->steps + b->trained);
        trek_lock_acquire(&b->lock);
        if (status != TREK_OK)
            trek_error_take(&b->status, b->message);
        b->averaged = round + 1;
        b->allotted += status == TREK_OK && !ends;
        b->over = status != TREK_OK || ends;
        trek_condition_wake_all(&b->changed);
        trek_lock_release(&b->lock);
    }
    if (status != TREK_OK)
        trek_job_abort(&b->s->job, b->message); /* the others are already working on the next round */
    trek_error_clear();
    return NULL;
}

/* --- the pass ------------------------------------------------------------------------------------------- */

static int64_t ahead(const trek_background *b) { return b->opts.max_lead < 0 ? 1 : AHEAD; }

static trek_status begin_sites(trek_background *b)
{
    for (int r = 0; r < b->local; r++) {
        background_site *site = &b->own[r];
        bool failed = site->failed;
        int64_t *samples = trek_calloc((size_t)b->values.fragments, sizeof *samples);
        trek_free(site->samples);
        *site = (background_site){ .samples = samples, .failed = failed };
        b->s->team->replicas[r].drift = 0;
    }
    trek_free(b->dirty);
    b->dirty = trek_calloc((size_t)b->values.fragments, sizeof *b->dirty);
    return trek_error_status();
}

/* Gives the center and the saved momentum to the outer optimizer, if the momentum has as many values as the
 * parameters. */
static trek_status begin_outer(trek_background *b)
{
    trek_values *v = &b->values;
    if (b->outer && b->outer->count != v->n) {
        trek_log_message(TREK_LOG_LEVEL_WARNING,
                         "the frozen parameters are not the same as before: the outer optimizer's momentum starts again from 0");
        trek_outer_free(&b->outer);
    }
    if (!b->outer && !(b->outer = trek_outer_new(&b->rule, v->center, v->n)))
        return trek_error_status();
    if (b->momentum && b->outer->momentum && b->momentum_count == v->n)
        trek_outer_load(b->outer, "momentum", b->momentum, v->n);
    trek_free(b->momentum);
    b->momentum = NULL;
    trek_values_move_center(v, b->outer->center);
    return TREK_OK;
}

static trek_status begin_values(trek_background *b)
{
    trek_values *v = &b->values;
    trek_status status = trek_values_begin(v, b->s, b->opts.outer ? b->rule.fragments : 1, !b->opts.outer);
    if (status == TREK_OK && b->opts.outer && v->dtype != TREK_F32)
        status =
            trek_fail(TREK_ERR_UNSUPPORTED, "trainer_run: .outer: some parameters are in f64; they must be in f32 or 16 bits");
    for (int f = 0; f < v->fragments && status == TREK_OK; f++)
        status = trek_values_read(v, b->s, 0, f);
    if (status != TREK_OK)
        return status;
    trek_values_center(v);
    return b->opts.outer ? begin_outer(b) : TREK_OK;
}

const float *trek_background_momentum(const trek_background *b, int64_t *n)
{
    *n = b->outer ? b->outer->count : b->momentum_count;
    return b->outer ? b->outer->momentum : b->momentum;
}

trek_status trek_background_take_momentum(trek_background *b, const float *values, int64_t n)
{
    trek_free(b->momentum);
    b->momentum = trek_alloc((size_t)n * sizeof *values + 1);
    b->momentum_count = n;
    if (!b->momentum)
        return trek_error_status();
    memcpy(b->momentum, values, (size_t)n * sizeof *values);
    return TREK_OK;
}

trek_status trek_background_begin(trek_background *b, int64_t first, int64_t end)
{
    b->first_batch = first;
    b->steps = b->s->team->graph->settings.steps;
    b->trained = b->allotted = b->averaged = 0;
    b->over = false;
    b->status = TREK_OK;
    memset(b->before, 0, sizeof b->before);
    trek_status status = begin_values(b);
    if (status == TREK_OK)
        status = begin_sites(b);
    if (status == TREK_OK)
        status = trek_dispatch_begin(&b->dispatch, first, end);
    for (; status == TREK_OK && b->allotted < ahead(b); b->allotted++)
        status = hand_out(b);
    if (status == TREK_OK && trek_thread_begin(&b->thread, averaging_thread, b) != 0)
        status = trek_fail(TREK_ERR_STATE, "trainer_run: the thread that averages cannot be started");
    b->running = status == TREK_OK;
    return status;
}

trek_status trek_background_end(trek_background *b, trek_status own, int64_t *batches)
{
    if (b->running) {
        trek_lock_acquire(&b->lock);
        for (int r = 0; r < b->local && own != TREK_OK; r++)
            b->own[r].failed = true;
        trek_condition_wake_all(&b->changed);
        trek_lock_release(&b->lock);
        trek_thread_join(b->thread);
    }
    b->running = false;
    *batches = b->trained;
    b->stats.next = b->first_batch + b->trained;
    trek_values_free(&b->values);
    if (b->status == TREK_OK)
        return own;
    trek_error_clear();
    return trek_fail(b->status, "%s", b->message);
}

trek_background_stats trek_background_look(trek_background *b)
{
    trek_lock_acquire(&b->lock);
    trek_background_stats stats = b->stats;
    trek_lock_release(&b->lock);
    return stats;
}

/* --- a site ------------------------------------------------------------------------------------------------ */

/* Waits until the counter at `rounds` reaches count. Returns false if the pass has ended before. */
static bool wait_until(trek_background *b, background_site *own, const int64_t *rounds, int64_t count)
{
    int64_t start = trek_now_ns();
    trek_lock_acquire(&b->lock);
    while (*rounds < count && !b->over)
        trek_condition_wait(&b->changed, &b->lock);
    bool there = *rounds >= count;
    trek_lock_release(&b->lock);
    own->waited_ns += trek_now_ns() - start;
    return there;
}

/* Takes in the next average that the site has not taken in yet. */
static trek_status take_in(trek_background *b, int site)
{
    background_site *own = &b->own[site];
    if (!wait_until(b, own, &b->averaged, own->taken + 1))
        return TREK_OK; /* the pass ended by a failure, which the averaging thread reports */
    int64_t start = trek_trace_enter("take in");
    trek_status status = trek_values_take(&b->values, b->s, site, fragment_of(b, own->taken));
    trek_trace_end("take in", start, 0);
    own->taken++;
    return status;
}

/* Ends the pass for a site: its replica gets the values that all have in common. */
static trek_status end_site(trek_background *b, int site)
{
    if (b->status != TREK_OK)
        return b->status;
    trek_arena_zero_grads(b->s->team->replicas[site].arena);
    return trek_values_take_all(&b->values, b->s, site);
}

bool trek_background_next(trek_background *b, int site, trek_allotment *allotment, trek_status *status)
{
    background_site *own = &b->own[site];
    int64_t round = own->failed ? INT64_MAX - AHEAD : own->round;
    *status = TREK_OK;
    wait_until(b, own, &b->allotted, round + 1);
    trek_lock_acquire(&b->lock);
    bool there = round < b->allotted && !b->over;
    if (there)
        *allotment = *allotment_of(b, round, b->first + site);
    b->s->team->replicas[site].steps_ahead = b->before[round % (AHEAD + 1)] - b->s->team->replicas[site].local_steps;
    trek_lock_release(&b->lock);
    own->batch = 0;
    own->round_start_ns = trek_now_ns();
    own->waited_ns = 0;
    if (!there)
        *status = end_site(b, site);
    return there;
}

trek_status trek_background_before(trek_background *b, int site)
{
    background_site *own = &b->own[site];
    if (own->taken == own->round) /* it has all averages before this round's */
        return TREK_OK;
    bool due = b->opts.max_lead > 0 && own->batch >= b->opts.max_lead;
    if (!due && b->opts.eager) {
        trek_lock_acquire(&b->lock);
        due = b->averaged > own->taken;
        trek_lock_release(&b->lock);
    }
    return due ? take_in(b, site) : TREK_OK;
}

void trek_background_ran(trek_background *b, int site, int64_t samples)
{
    background_site *own = &b->own[site];
    own->batch++;
    for (int f = 0; f < b->values.fragments; f++)
        own->samples[f] += samples;
    if (b->opts.progress)
        b->opts.progress(samples, b->opts.arg);
}

/* Reports a failure instead of a snapshot to the averaging thread. */
static trek_status give_up(trek_background *b, int site, trek_status status)
{
    char why[TREK_ERROR_SIZE], text[TREK_ERROR_SIZE];
    trek_status set;
    trek_error_take(&set, why);
    trek_error_clear();
    snprintf(text, sizeof text, "%s %d: %.400s", kind_of(b), b->first + site,
             set != TREK_OK ? why : trek_status_description(status));
    trek_log_message(TREK_LOG_LEVEL_ERROR, "%s", text);
    trek_lock_acquire(&b->lock);
    if (b->failed == TREK_OK) {
        b->failed = set != TREK_OK ? set : status;
        memcpy(b->failure, text, sizeof text);
    }
    b->own[site].failed = true;
    trek_condition_wake_all(&b->changed);
    trek_lock_release(&b->lock);
    return TREK_OK;
}

trek_status trek_background_done(trek_background *b, int site, trek_status status)
{
    background_site *own = &b->own[site];
    int fragment = fragment_of(b, own->round);
    if (status == TREK_OK && own->taken < own->round)
        status = take_in(b, site);
    if (status == TREK_OK)
        status = trek_values_read(&b->values, b->s, site, fragment);
    if (status != TREK_OK)
        return give_up(b, site, status);
    trek_lock_acquire(&b->lock);
    own->round_samples = (double)own->samples[fragment];
    own->batches = own->batch;
    own->waited_ms = (double)own->waited_ns * 1e-6;
    own->ms = (double)(trek_now_ns() - own->round_start_ns) * 1e-6 - own->waited_ms;
    own->given = own->round + 1;
    trek_condition_wake_all(&b->changed);
    trek_lock_release(&b->lock);
    if (!b->s->averaging->site) /* the ranks of a site have stopwatches of their own */
        b->s->team->replicas[site].measured_ms += own->ms;
    own->samples[fragment] = 0;
    own->round++;
    return b->opts.max_lead < 0 ? take_in(b, site) : TREK_OK;
}
