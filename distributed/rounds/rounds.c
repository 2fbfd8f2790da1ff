/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds over snapshots: what sites do, what the thread does that averages, and how they wait for each other. */
#include "distributed/rounds/rounds.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "distributed/rounds/averaging.h"
#include "distributed/rounds/center.h"
#include "distributed/rounds/round.h"
#include "distributed/system/system.h"
#include "distributed/team/step.h"
#include "graph/graph_internal.h"
#include "tensor/trace.h"

/* How many rounds may have been handed out beyond the last average. */
enum { AHEAD = 2 };

/* A local site. Its own thread uses the first part; the lock protects the rest. */
typedef struct rounds_site {
    int64_t round, batch;    /* the round that it is in; how many batches of that round it has done */
    int64_t taken;           /* how many averages it has taken in */
    int64_t round_start_ns, waited_ns;
    int64_t *samples;        /* [fragments] samples trained since the last snapshot of each fragment */

    int64_t given;           /* how many snapshots it has handed over */
    double round_samples, ms, waited_ms; /* of the last round */
    int64_t batches;
    bool failed;
    bool absent;             /* it failed before this round's snapshot; used by the thread that averages only */
} rounds_site;

/* What processes report to each other about a site's round. */
typedef struct site_report {
    double samples, ms, waited_ms, drift;
    int64_t batches;
    int64_t failed;
} site_report;

typedef struct process_report {
    int64_t stopped;
    site_report of[];
} process_report;

struct trek_rounds {
    trek_step *s;
    int sites, local, first; /* sites of the job, sites of this process, and the first of these */
    trek_rounds_opts opts;
    trek_center center;
    bool running, has_thread; /* a pass has begun; its rounds are made by a thread of their own, */
    trek_thread thread;      /* this one; otherwise by the first site's */
    int64_t first_batch, steps; /* the first batch of the pass; the steps that the graph had made before it */

    trek_lock lock;
    trek_condition changed;
    rounds_site *own;        /* [local] */
    int64_t allotted, averaged; /* numbers of rounds */
    int64_t before[AHEAD + 1]; /* batches of all sites in the rounds before that one */
    trek_allotment *allotments; /* [AHEAD + 1][sites] the allotments of round % (AHEAD + 1) */
    bool over;               /* the averaging ends with the rounds that are handed out, all of which are empty */
    trek_status status;      /* of the thread */
    char message[TREK_ERROR_SIZE];
    trek_status failed;      /* the status of the first site that failed, */
    char failure[TREK_ERROR_SIZE]; /* and its message */
    trek_rounds_stats stats;

    /* Used by the thread that averages only: */
    bool trains;             /* somebody has trained in the last round */
    trek_dispatch dispatch;
    bool *lost;              /* [sites] */
    bool *dirty;             /* [fragments] some site has trained since the fragment's last average */
    size_t report_bytes;
    char *reports;           /* this process's reports, followed by those of all */
    int64_t trained;         /* batches that all sites have trained */
};

static trek_allotment *allotment_of(const trek_rounds *b, int64_t round, int site)
{
    return &b->allotments[(size_t)(round % (AHEAD + 1)) * (size_t)b->sites + (size_t)site];
}

static int fragment_of(const trek_rounds *b, int64_t round) { return (int)(round % b->center.values.fragments); }

static process_report *report_at(const trek_rounds *b, int k)
{
    return (process_report *)(b->reports + (size_t)k * b->report_bytes);
}

/* Returns the report of a site of the job. */
static site_report *report_of(const trek_rounds *b, int process, int site)
{
    return &report_at(b, 1 + process)->of[site];
}

/* --- making ----------------------------------------------------------------------------------------- */

trek_status trek_rounds_new(trek_step *s, const trek_rounds_opts *opts)
{
    size_t sites = (size_t)trek_ranks_sites(s);
    int most = s->pace.sites ? 1 : s->job.ranks_most;
    trek_rounds *b = trek_calloc(1, sizeof *b);
    if (!b)
        return trek_error_status();
    trek_lock_init(&b->lock);
    trek_condition_init(&b->changed);
    b->s = s;
    b->sites = trek_ranks_sites(s);
    b->local = trek_ranks_local_sites(s);
    b->first = trek_ranks_first_site(s);
    b->opts = *opts;
    b->opts.outer = NULL;
    s->averaging->own_states = opts->outer != NULL;
    trek_center_init(&b->center, &s->job, b->local, opts->outer);
    b->own = trek_calloc((size_t)b->local, sizeof *b->own);
    b->allotments = trek_calloc(sites * (AHEAD + 1), sizeof *b->allotments);
    b->lost = trek_calloc(sites, sizeof *b->lost);
    b->report_bytes = sizeof(process_report) + (size_t)most * sizeof(site_report);
    b->reports = trek_calloc((size_t)s->job.processes + 1, b->report_bytes);
    s->averaging->rounds = b;
    return trek_error_status();
}

void trek_rounds_free(trek_rounds **rounds)
{
    trek_rounds *b = *rounds;
    *rounds = NULL;
    if (!b)
        return;
    trek_center_clear(&b->center);
    trek_dispatch_free(&b->dispatch);
    for (int r = 0; b->own && r < b->local; r++)
        trek_free(b->own[r].samples);
    trek_free(b->own);
    trek_free(b->allotments);
    trek_free(b->lost);
    trek_free(b->dirty);
    trek_free(b->reports);
    trek_condition_destroy(&b->changed);
    trek_lock_destroy(&b->lock);
    trek_free(b);
}

/* --- handing batches out ------------------------------------------------------------------------------ */

static trek_status count_batches(trek_rounds *b)
{
    int64_t left = trek_dispatch_left(&b->dispatch);
    if (!b->opts.one_batch)
        return trek_workload_counts(b->s->pace.workload, left, b->s->pace.units);
    for (int r = 0; r < b->sites; r++)
        b->s->pace.units[r] = 1;
    return TREK_OK;
}

/* Decides the allotments of one more round. Called between two rounds, or before the first one. */
static trek_status hand_out(trek_rounds *b)
{
    int64_t round = b->allotted, batches = 0;
    trek_status status = count_batches(b);
    for (int r = 0; r < b->sites && status == TREK_OK; r++) {
        trek_dispatch_take(&b->dispatch, b->lost[r] ? 0 : b->s->pace.units[r], allotment_of(b, round, r));
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
static int64_t under_way(const trek_rounds *b, int64_t round)
{
    int64_t batches = 0;
    for (; round < b->allotted; round++)
        for (int r = 0; r < b->sites; r++)
            batches += trek_allotment_batches(allotment_of(b, round, r));
    return batches;
}

/* Returns the word for a site in messages. */
static const char *kind_of(const trek_rounds *b) { return b->s->pace.sites ? "process" : "rank"; }

/* Takes note that a site has failed in this round: its batches are handed out again. */
static trek_status lose(trek_rounds *b, int64_t round, int site)
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

/* --- the thread that averages ----------------------------------------------------------------------------- */

/* Waits until every local site has handed over its snapshot of that round or has failed. */
static void wait_for_snapshots(trek_rounds *b, int64_t round)
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
static trek_status collect(trek_rounds *b)
{
    trek_step *s = b->s;
    process_report *own = report_at(b, 0);
    own->stopped = b->opts.stopped && b->opts.stopped(b->opts.arg);
    for (int r = 0; r < b->local; r++) {
        const rounds_site *site = &b->own[r];
        own->of[r] = site->absent ? (site_report){ .failed = true }
            : (site_report){ site->round_samples, site->ms, site->waited_ms, s->team->replicas[r].drift, site->batches, false };
    }
    return trek_job_gather(&s->job, own, b->report_bytes, report_at(b, 1));
}

/* Takes note of what a site of the job reports. `living`: how many have reported before, besides those that have failed. */
static trek_status add_report(trek_rounds *b, int site, const site_report *report, trek_round_report *round, int *living)
{
    b->s->pace.ms[site] = report->batches ? report->ms : 0;
    b->s->pace.units[site] = report->batches;
    if (report->failed)
        return b->lost[site] ? TREK_OK : lose(b, b->averaged, site);
    round->samples += report->samples;
    round->drift = trek_drift_larger(round->drift, report->drift);
    if (report->batches) /* the site that comes last waits for the average only */
        round->waited_ms = *living == 0 || report->waited_ms < round->waited_ms ? report->waited_ms : round->waited_ms;
    ++*living;
    b->trained += report->batches;
    return TREK_OK;
}

static trek_status all_have_failed(trek_rounds *b)
{
    char failure[TREK_ERROR_SIZE];
    trek_lock_acquire(&b->lock);
    snprintf(failure, sizeof failure, "%s", b->failure);
    trek_status status = b->failed;
    trek_lock_release(&b->lock);
    return failure[0] ? trek_fail(status, "trainer_run: all ranks have failed; %s", failure)
                      : trek_fail(TREK_ERR_PEER, "trainer_run: all ranks of all processes have failed");
}

/* --- a round (round.h): the snapshots of all sites move the center ------------------------------------------- */

static trek_status gather(void *arg, trek_round_report *round)
{
    trek_rounds *b = arg;
    int living = 0, site = 0;
    trek_status status = collect(b);
    for (int p = 0; p < b->s->job.processes; p++)
        for (int r = 0; r < trek_ranks_sites_of(b->s, p) && status == TREK_OK; r++)
            status = add_report(b, site++, report_of(b, p, r), round, &living);
    b->trains = round->samples > 0;
    return status == TREK_OK && living == 0 ? all_have_failed(b) : status;
}

static trek_status mean(void *arg, trek_round_report *round)
{
    trek_rounds *b = arg;
    int fragment = fragment_of(b, b->averaged);
    for (int r = 0; r < b->local; r++)
        b->center.weights[r] = report_at(b, 0)->of[r].samples / round->samples;
    trek_status status = trek_center_move(&b->center, fragment, round->samples);
    for (int r = 0; r < b->local; r++) /* the next round reports it */
        b->s->team->replicas[r].drift = b->center.weights[r] > 0 ? trek_values_drift(&b->center.values, fragment, r) : 0;
    b->stats.averages++;
    b->stats.drift = round->drift;
    return status;
}

/* Sets the batch counts of the rounds that have not been handed out yet. */
static trek_status divide(void *arg, const trek_round_report *round, trek_drift_verdict verdict)
{
    trek_rounds *b = arg;
    bool changed;
    return b->opts.one_batch ? TREK_OK
                             : trek_pace_report(b->s, b->steps + b->trained, true, round->waited_ms, verdict, &changed);
}

static const trek_round_kind of_snapshots = { gather, mean, divide };

/* Returns whether all batches of the pass have been trained and averaged. */
static bool has_ended(const trek_rounds *b, int64_t round)
{
    bool dirty = false;
    for (int f = 0; f < b->center.values.fragments; f++)
        dirty |= b->dirty[f];
    return !dirty && trek_dispatch_left(&b->dispatch) == 0 && under_way(b, round + 1) == 0;
}

static trek_status average_round(trek_rounds *b, int64_t round, bool *ends)
{
    int fragment = fragment_of(b, round);
    trek_status status = trek_round_make(b->s, &of_snapshots, b);
    for (int f = 0; f < b->center.values.fragments; f++)
        b->dirty[f] = f != fragment && (b->dirty[f] || b->trains);
    for (int p = 0; p < b->s->job.processes; p++)
        if (report_at(b, 1 + p)->stopped)
            trek_dispatch_drop(&b->dispatch);
    *ends = has_ended(b, round);
    return status == TREK_OK && !*ends ? hand_out(b) : status;
}

/* Makes the next round, and tells the sites. The thread's own error, if it has one, is none of the round. */
static void conduct(trek_rounds *b)
{
    int64_t round = b->averaged;
    bool ends = false;
    trek_kept_error kept;
    trek_error_keep(&kept);
    wait_for_snapshots(b, round);
    int64_t start = trek_trace_enter("average");
    trek_status status = average_round(b, round, &ends);
    trek_trace_end("average", start, b->steps + b->trained);
    trek_lock_acquire(&b->lock);
    if (status != TREK_OK)
        trek_error_take(&b->status, b->message);
    b->averaged = round + 1;
    b->allotted += status == TREK_OK && !ends;
    b->over = status != TREK_OK || ends;
    trek_condition_wake_all(&b->changed);
    trek_lock_release(&b->lock);
    if (status != TREK_OK)
        trek_job_abort(&b->s->job, b->message); /* the others are already working on the next round */
    trek_error_clear();
    trek_error_put_back(&kept);
}

static void *averaging_thread(void *arg)
{
    trek_rounds *b = arg;
    while (!b->over)
        conduct(b);
    return NULL;
}

/* If sites wait for each average, the thread of the first one makes the rounds. */
static bool conducts(const trek_rounds *b, int site) { return site == 0 && !b->has_thread; }

/* --- the pass ------------------------------------------------------------------------------------------- */

static int64_t ahead(const trek_rounds *b) { return b->opts.max_lead < 0 ? 1 : AHEAD; }

static trek_status begin_sites(trek_rounds *b)
{
    for (int r = 0; r < b->local; r++) {
        rounds_site *site = &b->own[r];
        bool failed = site->failed;
        int64_t *samples = trek_calloc((size_t)b->center.values.fragments, sizeof *samples);
        trek_free(site->samples);
        *site = (rounds_site){ .samples = samples, .failed = failed };
        b->s->team->replicas[r].drift = 0;
    }
    trek_free(b->dirty);
    b->dirty = trek_calloc((size_t)b->center.values.fragments, sizeof *b->dirty);
    return trek_error_status();
}

const float *trek_rounds_momentum(const trek_rounds *b, int64_t *n) { return trek_center_momentum(&b->center, n); }

trek_status trek_rounds_take_momentum(trek_rounds *b, const float *values, int64_t n)
{
    return trek_center_take_momentum(&b->center, values, n);
}

trek_status trek_rounds_begin(trek_rounds *b, int64_t first, int64_t end)
{
    b->first_batch = first;
    b->steps = b->s->team->graph->settings.steps;
    b->trained = b->allotted = b->averaged = 0;
    b->over = false;
    b->status = TREK_OK;
    memset(b->before, 0, sizeof b->before);
    trek_status status = trek_center_begin(&b->center, b->s->team);
    if (status == TREK_OK)
        status = begin_sites(b);
    if (status == TREK_OK)
        status = trek_dispatch_begin(&b->dispatch, first, end);
    for (; status == TREK_OK && b->allotted < ahead(b); b->allotted++)
        status = hand_out(b);
    b->has_thread = status == TREK_OK && b->opts.max_lead >= 0;
    if (b->has_thread && trek_thread_begin(&b->thread, averaging_thread, b) != 0) {
        b->has_thread = false;
        status = trek_fail(TREK_ERR_STATE, "trainer_run: the thread that averages cannot be started");
    }
    b->running = status == TREK_OK;
    return status;
}

trek_status trek_rounds_end(trek_rounds *b, trek_status own, int64_t *batches)
{
    if (b->running) {
        trek_lock_acquire(&b->lock);
        for (int r = 0; r < b->local && own != TREK_OK; r++)
            b->own[r].failed = true;
        trek_condition_wake_all(&b->changed);
        trek_lock_release(&b->lock);
        if (b->has_thread)
            trek_thread_join(b->thread);
        while (!b->over) /* no site of this process trains any more, but those of others do */
            conduct(b);
    }
    b->running = b->has_thread = false;
    *batches = b->trained;
    b->stats.next = b->first_batch + b->trained;
    trek_center_end(&b->center);
    if (b->status == TREK_OK)
        return own;
    trek_error_clear();
    return trek_fail(b->status, "%s", b->message);
}

trek_rounds_stats trek_rounds_look(trek_rounds *b)
{
    trek_lock_acquire(&b->lock);
    trek_rounds_stats stats = b->stats;
    stats.bytes_sent = b->center.bytes_sent;
    trek_lock_release(&b->lock);
    return stats;
}

/* --- a site ------------------------------------------------------------------------------------------------ */

/* Waits until the counter at `rounds` reaches count. Returns false if the pass has ended before. */
static bool wait_until(trek_rounds *b, int site, const int64_t *rounds, int64_t count)
{
    rounds_site *own = &b->own[site];
    int64_t start = trek_now_ns();
    while (conducts(b, site) && *rounds < count && !b->over)
        conduct(b);
    trek_lock_acquire(&b->lock);
    while (*rounds < count && !b->over)
        trek_condition_wait(&b->changed, &b->lock);
    bool there = *rounds >= count;
    trek_lock_release(&b->lock);
    own->waited_ns += trek_now_ns() - start;
    return there;
}

/* Takes in the next average that the site has not taken in yet. */
static trek_status take_in(trek_rounds *b, int site)
{
    rounds_site *own = &b->own[site];
    if (!wait_until(b, site, &b->averaged, own->taken + 1))
        return TREK_OK; /* the pass ended by a failure, which the thread reports that averages */
    int64_t start = trek_trace_enter("take in");
    trek_status status = trek_values_take(&b->center.values, b->s->team, site, fragment_of(b, own->taken));
    trek_trace_end("take in", start, 0);
    own->taken++;
    return status;
}

/* Ends the pass for a site: its replica gets the values that all have in common. */
static trek_status end_site(trek_rounds *b, int site)
{
    if (b->status != TREK_OK)
        return b->status;
    trek_arena_zero_grads(b->s->team->replicas[site].arena);
    return trek_values_take_all(&b->center.values, b->s->team, site);
}

bool trek_rounds_next(trek_rounds *b, int site, trek_allotment *allotment, trek_status *status)
{
    rounds_site *own = &b->own[site];
    int64_t round = own->failed ? INT64_MAX - AHEAD : own->round;
    *status = TREK_OK;
    wait_until(b, site, &b->allotted, round + 1);
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

trek_status trek_rounds_before(trek_rounds *b, int site)
{
    rounds_site *own = &b->own[site];
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

void trek_rounds_ran(trek_rounds *b, int site, int64_t samples)
{
    rounds_site *own = &b->own[site];
    own->batch++;
    for (int f = 0; f < b->center.values.fragments; f++)
        own->samples[f] += samples;
    if (b->opts.progress)
        b->opts.progress(samples, b->opts.arg);
}

/* Reports a failure instead of a snapshot. */
static trek_status give_up(trek_rounds *b, int site, trek_status status)
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

trek_status trek_rounds_done(trek_rounds *b, int site, trek_status status)
{
    rounds_site *own = &b->own[site];
    int fragment = fragment_of(b, own->round);
    if (status == TREK_OK && own->taken < own->round)
        status = take_in(b, site);
    if (status == TREK_OK)
        status = trek_values_read(&b->center.values, b->s->team, site, fragment);
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
    if (b->opts.max_lead < 0)
        status = take_in(b, site);
    return status == TREK_OK ? TREK_OK : give_up(b, site, status);
}
