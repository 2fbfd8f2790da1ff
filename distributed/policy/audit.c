/* SPDX-License-Identifier: Apache-2.0 */
/* Which grains are audited follows from the seed, the step and their numbers, and who audits them from who has run them, so all
 * processes know both. A rank that audits a grain runs it as in the pass and digests its gradients, which are then dropped. If
 * two ranks have found different gradients, a third one decides. */
#include "distributed/policy/audit.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/grains/digests.h"
#include "distributed/job/job_bytes.h"
#include "distributed/job/survival.h"
#include "distributed/policy/grain_pass.h"
#include "distributed/team/step.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

enum { MOST_LOOKS = 3 };

/* What a rank has found the gradients of a grain to be. */
typedef struct look {
    int64_t pass, number;
    int64_t rank;            /* of the job */
    trek_digest found;
} look;

/* A grain that is audited. */
typedef struct audited {
    int64_t pass, number;
    int n;                   /* looks */
    int64_t rank[MOST_LOOKS];
    trek_digest found[MOST_LOOKS];
    int64_t next;            /* the rank that looks at it now; -1: none */
} audited;

typedef struct audit {
    trek_step *s;
    audited *grains;         /* in the order of their numbers */
    int n, room;
    look *own;               /* what ranks of this process have found */
    int n_own;
} audit;

/* --- what all know --- */

static int by_number(const void *a, const void *b)
{
    const audited *x = a, *y = b;
    if (x->pass != y->pass)
        return x->pass < y->pass ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

static trek_status add_look(audit *a, const look *l)
{
    audited *grain = NULL;
    for (int k = 0; k < a->n && !grain; k++)
        if (a->grains[k].pass == l->pass && a->grains[k].number == l->number)
            grain = &a->grains[k];
    if (!grain) {
        if (trek_array_grow(&a->grains, &a->room, a->n + 1, sizeof *a->grains) != TREK_OK)
            return TREK_ERR_MEMORY;
        grain = &a->grains[a->n++];
        *grain = (audited){ .pass = l->pass, .number = l->number };
    }
    if (grain->n < MOST_LOOKS) {
        grain->rank[grain->n] = l->rank;
        grain->found[grain->n++] = l->found;
    }
    return TREK_OK;
}

/* Tells all what was found. */
static trek_status share(audit *a, trek_status own)
{
    job_bytes all = { 0 };
    if (trek_job_has_others(&a->s->job))
        own = trek_job_bytes_gather(a->s->job.comm, (const char *)a->own, (int64_t)((size_t)a->n_own * sizeof *a->own), own,
                                    "its audit", &all);
    for (int k = 0; k < a->n_own && trek_job_is_alone(&a->s->job) && own == TREK_OK; k++)
        own = add_look(a, &a->own[k]);
    for (int p = 0; trek_job_has_others(&a->s->job) && p < a->s->job.processes && own == TREK_OK; p++)
        for (int64_t at = 0; at < all.lengths[p] && own == TREK_OK; at += (int64_t)sizeof *a->own)
            own = add_look(a, (const look *)(const void *)(all.bytes + (size_t)p * all.room + at));
    trek_job_bytes_clear(&all);
    a->n_own = 0;
    if (own == TREK_OK && a->n > 1)
        qsort(a->grains, (size_t)a->n, sizeof *a->grains, by_number);
    return own;
}

/* Returns whether some grain of the step is audited. */
static bool has_any(const trek_step *s)
{
    const trek_grains *g = s->grains;
    for (int64_t p = 0; p < g->passes.n; p++)
        for (int64_t k = trek_grains_count(g, g->passes.of[p].rows); k > 0; k--)
            if (trek_grains_is_audited(s, p, k - 1))
                return true;
    return false;
}

/* The first look is that of the rank that has run the grain in the pass. */
static trek_status list_grains(audit *a, trek_status own)
{
    const trek_grains *g = a->s->grains;
    int64_t n = g->n_records;
    a->own = trek_calloc((size_t)n + 1, sizeof *a->own);
    if (!a->own)
        own = TREK_ERR_MEMORY;
    for (int64_t k = 0; k < n && own == TREK_OK; k++) {
        const trek_grain_record *r = trek_grains_record(g, k);
        if (trek_grains_is_audited(a->s, r->pass, r->number))
            a->own[a->n_own++] = (look){ r->pass, r->number, a->s->job.first_rank + r->rank, r->gradients };
    }
    return share(a, own);
}

/* --- another look --- */

/* Returns a rank that has not looked at the grain yet, or -1. */
static int64_t another_rank(const trek_step *s, const audited *grain)
{
    int64_t world = s->job.world_size, first = grain->rank[0] + 1 + grain->number % (world > 1 ? world - 1 : 1);
    for (int64_t k = 0; k < world; k++) {
        int64_t rank = (first + k) % world;
        bool has = false;
        for (int i = 0; i < grain->n; i++)
            has |= grain->rank[i] == rank;
        if (!has)
            return rank;
    }
    return -1;
}

/* The grains of one pass that the ranks of this process look at. */
typedef struct looking {
    audit *a;
    int64_t pass;
    int at[TREK_MAX_RANKS];  /* where each rank has come to */
    trek_digest *found;      /* [grains of the audit] */
} looking;

static int64_t next_of_look(trek_grain_call *call, int rank, int64_t most, int64_t *n)
{
    looking *l = call->source;
    const audit *a = l->a;
    (void)most;
    *n = 1;
    while (l->at[rank] < a->n) {
        int k = l->at[rank]++;
        if (a->grains[k].pass != l->pass || a->grains[k].next != a->s->job.first_rank + rank)
            continue;
        call->audited[rank] = &l->found[k];
        return a->grains[k].number;
    }
    return -1;
}

static trek_status look_at_pass(audit *a, int64_t pass, trek_digest *found)
{
    trek_digest **places = trek_calloc((size_t)a->s->team->local_ranks, sizeof *places);
    looking *l = trek_calloc(1, sizeof *l);
    trek_grain_call *c = trek_calloc(1, sizeof *c);
    uint64_t rng_draw = trek_rank_here.rng_draw;
    trek_status status = places && l && c ? TREK_OK : TREK_ERR_MEMORY;
    if (status == TREK_OK) {
        *l = (looking){ .a = a, .pass = pass, .found = found };
        *c = (trek_grain_call){ .s = a->s, .pass = &a->s->grains->passes.of[pass], .pass_number = pass, .next = next_of_look,
                                .source = l, .audited = places };
        status = trek_grain_call_begin(c);
    }
    if (status == TREK_OK)
        status = trek_grain_call_run(c);
    trek_rank_here.rng_draw = rng_draw;
    if (c)
        trek_grain_call_end(c);
    trek_free(c);
    trek_free(l);
    trek_free(places);
    return status;
}

/* Lets the ranks of this process look at what they are to look at, and tells all what was found. */
static trek_status look_again(audit *a)
{
    trek_digest *found = trek_calloc((size_t)a->n + 1, sizeof *found);
    look *own = trek_calloc((size_t)a->n + 1, sizeof *own);
    trek_status status = found && own ? TREK_OK : TREK_ERR_MEMORY;
    int64_t first = a->s->job.first_rank, end = first + a->s->team->local_ranks;
    for (int64_t p = 0; p < a->s->grains->passes.n && status == TREK_OK; p++) {
        bool looks = false;
        for (int k = 0; k < a->n; k++)
            looks |= a->grains[k].pass == p && a->grains[k].next >= first && a->grains[k].next < end;
        status = looks ? look_at_pass(a, p, found) : TREK_OK;
    }
    trek_free(a->own);
    a->own = own;
    for (int k = 0; k < a->n && status == TREK_OK; k++)
        if (a->grains[k].next >= first && a->grains[k].next < end)
            a->own[a->n_own++] = (look){ a->grains[k].pass, a->grains[k].number, a->grains[k].next, found[k] };
    trek_free(found);
    return share(a, status);
}

/* --- what is said --- */

static bool differs(const audited *grain) { return grain->n > 1 && !trek_digest_equal(&grain->found[0], &grain->found[1]); }

/* Returns which of the first two was wrong, as the third one has found; -1: nobody knows. */
static int wrong_of(const audited *grain)
{
    if (grain->n < 3)
        return -1;
    bool as_first = trek_digest_equal(&grain->found[2], &grain->found[0]);
    return as_first ? 1 : trek_digest_equal(&grain->found[2], &grain->found[1]) ? 0 : -1;
}

static void tell(const audit *a, const audited *grain)
{
    trek_audit_report *report = &a->s->grains->audit_report;
    int64_t step = a->s->team->graph->settings.steps + 1;
    int wrong = wrong_of(grain);
    report->differences++;
    report->step = step;
    report->grain = grain->number;
    report->ranks[0] = (int)grain->rank[0];
    report->ranks[1] = (int)grain->rank[1];
    report->wrong = wrong >= 0 ? (int)grain->rank[wrong] : -1;
    if (a->s->job.process > 0)
        return;
    trek_text text = { 0 };
    if (wrong >= 0)
        trek_text_format(&text, "rank %" PRId64 " agrees with rank %" PRId64 ": rank %" PRId64 " was wrong", grain->rank[2],
                         grain->rank[1 - wrong], grain->rank[wrong]);
    else
        trek_text_add(&text, grain->n < 3 ? "there is no third rank to decide" : "a third one has found yet others");
    trek_log_message(TREK_LOG_LEVEL_WARNING,
                     "graph_step: .audit: step %" PRId64 ", grain %" PRId64 ": ranks %" PRId64 " and %" PRId64
                     " have found different gradients; %s", step, grain->number, grain->rank[0], grain->rank[1],
                     text.data ? text.data : "");
    trek_text_clear(&text);
}

/* Asks a third rank about what differs. */
static trek_status decide(audit *a)
{
    bool any = false;
    for (int k = 0; k < a->n; k++) {
        a->grains[k].next = differs(&a->grains[k]) ? another_rank(a->s, &a->grains[k]) : -1;
        any |= a->grains[k].next >= 0;
    }
    return any ? look_again(a) : TREK_OK;
}

/* --- who leaves ------------------------------------------------------------------------------------------------ */

static int process_of(const trek_job *job, int64_t rank)
{
    int p = 0;
    for (int64_t end = job->process_ranks[0]; rank >= end && p + 1 < job->processes;)
        end += job->process_ranks[++p];
    return p;
}

/* Returns how many processes have a rank that was wrong in this step; wrong[process]: this one does. All know the same. */
static int list_wrong(const audit *a, bool *wrong)
{
    int n = 0;
    for (int k = 0; k < a->n; k++) {
        int which = differs(&a->grains[k]) ? wrong_of(&a->grains[k]) : -1;
        bool *of = which >= 0 ? &wrong[process_of(&a->s->job, a->grains[k].rank[which])] : NULL;
        n += of && !*of;
        if (of)
            *of = true;
    }
    return n;
}

/* Takes this process out of the job if one of its ranks was wrong and enough are left without all that are to leave. The others
 * then compute its grains as if it had died: this step has not been committed. */
static trek_status leave_if_wrong(const audit *a)
{
    const trek_job *job = &a->s->job;
    bool wrong[TREK_MAX_RANKS] = { false };
    int n = job->survival ? list_wrong(a, wrong) : 0;
    if (n == 0)
        return TREK_OK;
    if (job->processes - n < job->survival->least) {
        if (job->process == 0)
            trek_log_message(TREK_LOG_LEVEL_WARNING,
                             "graph_step: .audit_removes: nobody leaves, because %d of %d processes would be "
                                                     "left; .min_processes is %d", job->processes - n, job->processes,
                             job->survival->least);
        return TREK_OK;
    }
    if (!wrong[job->process])
        return TREK_OK;
    trek_status status = trek_fail(TREK_ERR_STATE, "graph_step: .audit_removes: a rank of this process was wrong in step %" PRId64
                                                   "; the process has left the job",
                                   a->s->team->graph->settings.steps + 1);
    trek_survival_leave(&a->s->job, "an audit has found one of its ranks to be wrong");
    return status;
}

static trek_status run(audit *a, trek_status own)
{
    trek_status status = list_grains(a, own);
    for (int k = 0; k < a->n && status == TREK_OK; k++)
        a->grains[k].next = another_rank(a->s, &a->grains[k]);
    if (status == TREK_OK)
        status = look_again(a);
    if (status == TREK_OK)
        status = decide(a);
    for (int k = 0; k < a->n && status == TREK_OK; k++) {
        a->s->grains->audit_report.grains++;
        if (differs(&a->grains[k]))
            tell(a, &a->grains[k]);
    }
    return status == TREK_OK && a->s->grains->audit_removes ? leave_if_wrong(a) : status;
}

trek_status trek_grains_audit(trek_step *s, trek_status own)
{
    if (s->grains->audit <= 0 || s->job.world_size < 2 || !has_any(s))
        return own;
    int64_t start = trek_trace_enter("audit");
    audit a = { .s = s };
    trek_status status = run(&a, own);
    trek_free(a.own);
    trek_free(a.grains);
    trek_trace_end("audit", start, s->team->graph->settings.steps);
    return status;
}
