/* SPDX-License-Identifier: Apache-2.0 */
/* The per-rank way: a pass in which every rank computes the loss of its own samples and runs backward at once. Of a
 * batch each rank reads its share itself, ahead of the pass, on its own reading thread. Of a window it reads whole
 * batches, as many as its workload says. Ranks only wait for each other at the end.
 *
 * Backward is seeded with weight / D. For a batch, D is the sum of the weights of all ranks and processes, exchanged
 * between forward and backward. In two cases D is the planned number of samples instead: where the exchange would
 * only make ranks wait (a step's first pass on the CPUs of one process), and in a window, whose weights are known at
 * its end. Then `factor`, which is D divided by the sum of weights, multiplies the gradients in the reduction, and
 * gradients of earlier passes are put aside meanwhile. If the passes of a step are weighed (graph/accumulate.h), D
 * and the factor belong to the step. */
#include <math.h>
#include <string.h>

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "data/batch_here.h"
#include "distributed/balance/apportion.h"
#include "distributed/balance/workload.h"
#include "distributed/job/survival.h"
#include "distributed/pass/gathered.h"
#include "distributed/pass/giving.h"
#include "distributed/pass/job_sync.h"
#include "distributed/pass/per_rank_step.h"
#include "distributed/pass/shares.h"
#include "distributed/team/divided.h"
#include "distributed/team/step_policy.h"
#include "distributed/reduce/gradients.h"
#include "distributed/reduce/reduce.h"
#include "distributed/reduce/overlap.h"
#include "distributed/system/system.h"
#include "distributed/team/rank_sums.h"
#include "distributed/team/step.h"
#include "graph/batch_run.h"
#include "optim/scaler_internal.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

typedef struct rank_part {
    int64_t first, rows;     /* of the batch; of a window: batches [first, first + rows) of the epoch */
    trek_batch_cut cut;      /* of an unread batch: what it reads of this one and, with the current shares, of those that
                              * follow */
    uint64_t rng_draw;       /* after the pass */
    int64_t end_ns;
    trek_var *loss;          /* retained from its forward to its backward if that is a run of its own; otherwise NULL */
    double weight;           /* of that loss */
} rank_part;

typedef struct trek_pass {
    trek_step *s;
    const trek_graph_loader *graph_loader;
    const trek_batch *batch;
    bool backward, reset;
    const trek_window_way *way; /* of a window: how ranks come to their batches; NULL: the workload counts them out */
    bool weighs;             /* its gradients are part of the step's sum as they are */
    bool known;              /* backward begins when the weights of all ranks are known */
    bool sends;              /* gradients are sent while backward runs (reduce/overlap.c) */
    bool stashes;            /* it has its own factor, and is not the step's first pass */
    int no_grad_depth;       /* of the caller, as the next field */
    trek_offload_opts offload;
    double denominator;
    uint64_t rng_step, rng_draw;
    int64_t batch_size;
    rank_part *of;           /* [local_ranks] */
    trek_pass_sum *sums;     /* [local_ranks] */
} trek_pass;

/* --- a rank's part -------------------------------------------------------------------- */

static trek_batch_run run_of(const trek_pass *c, int rank, bool last)
{
    trek_step *s = c->s;
    const rank_replica *own = &s->team->replicas[rank];
    trek_reducer *sends = c->sends && last ? trek_overlap_of(s, rank) : NULL;
    return (trek_batch_run){ .graph_loader = c->graph_loader, .scaler = trek_ranks_scaler(s, rank), .leaves = own->model->params,
                             .n_leaves = own->model->n_params, .denominator = s->policy->sums ? c->denominator : 0,
                             .backward = c->backward,
                             .meets = !c->batch->window && trek_team_meets(s->team),
                             .complete = sends ? trek_reducer_complete : NULL, .arg = sends };
}

static trek_status keep_loss(const trek_pass *c, int rank, const trek_batch *batch, const trek_batch_run *run)
{
    rank_part *of = &c->of[rank];
    trek_var *loss;
    trek_status status = trek_graph_batch_loss(c->s->team->replicas[rank].graph, batch, run, &c->sums[rank], &loss, &of->weight);
    if (status == TREK_OK)
        of->loss = trek_var_retain(loss);
    return status;
}

/* Returns the nanoseconds since the last batch. The rank's thread may have served another graph before. */
static int64_t waits_for_data(rank_replica *own)
{
    int64_t before = own->is_fed ? own->fed_ns : trek_batch_here()->fed_ns;
    own->is_fed = true;
    own->fed_ns = trek_batch_here()->fed_ns;
    return own->fed_ns - before;
}

/* Runs a rank's part, without its backward if that waits for the weights. */
static trek_status run_batch(const trek_pass *c, int rank, const trek_batch *batch, bool last)
{
    trek_step *s = c->s;
    trek_batch_run run = run_of(c, rank, last);
    trek_rank_here.first_sample = batch->first;
    trek_rank_here.rows = batch->n;
    trek_rank_here.global_rows = batch->global;
    trek_rank_here.rng_draw = c->rng_draw;
    trek_stopwatch *watch = &s->team->watches->of[rank];
    /* the time of an evaluation says nothing about the pace of training */
    rank_replica *own = &s->team->replicas[rank];
    int64_t fed_ns = waits_for_data(own);
    if (c->backward)
        trek_stopwatch_starved(watch, fed_ns);
    trek_status status = c->backward ? trek_stopwatch_start(watch, trek_ranks_device(s->team->ranks, rank)) : TREK_OK;
    if (status == TREK_OK)
        status = c->known ? keep_loss(c, rank, batch, &run)
            : trek_graph_run_batch(s->team->replicas[rank].graph, batch, &run, &c->sums[rank]);
    if (status == TREK_OK && c->backward && s->policy->after_batch)
        status = s->policy->after_batch(s, rank);
    if (status == TREK_OK && c->backward)
        status = trek_slowed(s, rank, watch, !c->known);
    if (status == TREK_OK && c->backward)
        status = trek_stopwatch_stop(watch, c->batch->window ? 1 : batch->n);
    if (trek_rank_here.rng_draw > c->of[rank].rng_draw)
        c->of[rank].rng_draw = trek_rank_here.rng_draw;
    trek_rank_here.rows = trek_rank_here.global_rows = -1;
    trek_rank_here.first_sample = 0;
    return status;
}

trek_reader *trek_ranks_reader(trek_step *s, int rank, trek_loader *loader)
{
    rank_replica *own = &s->team->replicas[rank];
    if (own->reader && !trek_reader_is_of(own->reader, loader))
        trek_reader_free(&own->reader);
    if (!own->reader)
        own->reader = trek_reader_new(loader, trek_ranks_device(s->team->ranks, rank));
    return own->reader;
}

/* Returns whether ranks read their rows again, which other processes may have had: such a batch has no fields. */
static bool reads_again(const trek_pass *c) { return c->batch->unread && !c->batch->vars; }

/* The rank reads its rows itself, and ahead if nothing is read again. */
static trek_status run_own_rows(const trek_pass *c, int rank)
{
    const rank_part *of = &c->of[rank];
    trek_reader *reader = trek_ranks_reader(c->s, rank, c->batch->loader);
    trek_batch *part = NULL;
    if (reader && reads_again(c))
        part = trek_reader_rows(reader, c->batch->epoch, c->batch->first_batch, c->batch->first + of->first, of->rows);
    else if (reader && trek_reader_begin_part(reader, c->batch->epoch, c->batch->first_batch, &of->cut) == TREK_OK)
        part = trek_reader_next(reader);
    if (!part)
        return trek_error_status();
    trek_status status = run_batch(c, rank, part, true);
    trek_reader_end_batch(reader);
    return status;
}

static trek_status run_share(const trek_pass *c, int rank)
{
    if (c->batch->unread)
        return run_own_rows(c, rank);
    trek_var *vars[64];
    trek_batch part;
    trek_status status = trek_batch_part(c->batch, c->of[rank].first, c->of[rank].rows,
                                         trek_ranks_device(c->s->team->ranks, rank),
                                         vars, &part);
    if (status != TREK_OK)
        return status;
    status = run_batch(c, rank, &part, true);
    trek_batch_part_release(&part);
    return status;
}

static const char *phase_of(const trek_pass *c) { return c->backward ? "forward and backward" : "forward"; }

trek_status trek_pass_run_batch(const trek_pass *pass, int rank, trek_batch *batch)
{
    batch->global = pass->batch->global;
    return run_batch(pass, rank, batch, false);
}

trek_step *trek_pass_step(const trek_pass *pass) { return pass->s; }
const trek_batch *trek_pass_window(const trek_pass *pass) { return pass->batch; }

/* Runs batches [first, end) of the epoch, which the rank reads itself. */
static trek_status run_batches(const trek_pass *c, int rank, int64_t first, int64_t end)
{
    trek_reader *reader = trek_ranks_reader(c->s, rank, c->graph_loader->loader);
    trek_status status = reader ? trek_reader_begin(reader, c->batch->epoch, first, end) : trek_error_status();
    for (int64_t k = first; k < end && status == TREK_OK; k++) {
        trek_batch *batch = trek_reader_next(reader);
        if (!batch)
            return trek_error_status();
        batch->first = (k - c->batch->first_batch) * c->batch_size;
        batch->global = c->batch->global;
        status = run_batch(c, rank, batch, k + 1 == end);
        trek_job_say(&c->s->job, phase_of(c), false);
    }
    return status;
}

static trek_status run_window(const trek_pass *c, int rank)
{
    const rank_part *of = &c->of[rank];
    trek_reader *reader;
    if (of->rows == 0)
        return TREK_OK;
    trek_status status = run_batches(c, rank, of->first, of->first + of->rows);
    if (!(reader = c->s->team->replicas[rank].reader))
        return status;
    /* the next window is likely to be similar to this one */
    int64_t next = of->first + c->batch->batches, end = next + of->rows;
    int64_t last = trek_loader_batches(c->graph_loader->loader);
    trek_reader_rest(reader, next < last ? next : last, end < last ? end : last);
    return status;
}

/* Returns whether a rank without rows has nothing to do. The first rank of a process that has no rows at all must run
 * its layers if those of other processes wait for them. */
static bool skips(const trek_pass *c, int rank)
{
    bool joins_empty = rank == 0 && c->batch->n == 0 && !c->batch->window && trek_job_has_others(&c->s->job) &&
        trek_team_meets(c->s->team);
    return c->of[rank].rows == 0 && !joins_empty;
}

static trek_status run_backward(const trek_pass *c, int rank)
{
    trek_step *s = c->s;
    const rank_part *of = &c->of[rank];
    trek_batch_run run = run_of(c, rank, true);
    trek_stopwatch *watch = &s->team->watches->of[rank];
    trek_status status = trek_stopwatch_start(watch, trek_ranks_device(s->team->ranks, rank));
    if (status == TREK_OK)
        status = trek_graph_batch_backward(of->loss, of->weight, of->rows, &run);
    if (status == TREK_OK)
        status = trek_slowed(s, rank, watch, true);
    return status == TREK_OK ? trek_stopwatch_stop(watch, 0) : status;
}

/* Runs fn in its own scope, with the caller's modes. Its layers may make sums with other ranks. */
static trek_status run_part(const trek_pass *c, int rank, trek_status (*fn)(const trek_pass *c, int rank))
{
    trek_grad_mode mode = trek_grad_mode_here;
    trek_grad_mode_here.no_grad_depth = c->no_grad_depth;
    trek_grad_mode_here.offload = c->offload;
    trek_scope scope = trek_scope_begin();
    bool meets = !c->batch->window && trek_team_meets(c->s->team); /* in windows ranks do not wait for each other */
    if (meets)
        trek_rank_sums_enter(trek_ranks_sums(c->s->team->ranks), rank);
    trek_status status = scope.depth ? fn(c, rank) : trek_error_status();
    if (meets)
        trek_rank_sums_leave(trek_ranks_sums(c->s->team->ranks), rank, status);
    trek_scope_end(scope);
    trek_grad_mode_here = mode;
    c->of[rank].end_ns = trek_now_ns();
    return status;
}

static trek_status run_rank(int rank, void *arg)
{
    const trek_pass *c = arg;
    trek_graph_clear_traces(c->s->team->replicas[rank].graph);
    if (c->reset && rank > 0)
        trek_graph_reset_state(c->s->team->replicas[rank].graph);
    trek_status status = TREK_OK;
    if (!skips(c, rank)) {
        trek_rank_here.rng_step = c->rng_step;
        c->of[rank].rng_draw = c->rng_draw;
        status = run_part(c, rank, c->way ? c->way->run_rank : c->batch->window ? run_window : run_share);
    }
    if (c->sends)
        trek_overlap_rest(rank, c->s);
    return status;
}

static trek_status backward_rank(int rank, void *arg)
{
    const trek_pass *c = arg;
    trek_status status = c->of[rank].loss ? run_part(c, rank, run_backward) : TREK_OK;
    if (c->sends)
        trek_overlap_rest(rank, c->s);
    return status;
}

/* --- the caller's side ------------------------------------------------------------------- */

/* Plans what ranks read of a batch that they divide. Of the current batch they read what they were given, even if
 * shares have changed since. */
static trek_status plan_cuts(trek_pass *c)
{
    const trek_batch_plan *plan = trek_loader_plan(c->graph_loader->loader);
    int64_t counts[TREK_MAX_RANKS];
    trek_status status = TREK_OK;
    for (int which = 0; which < 2 && status == TREK_OK; which++) {
        int64_t at, n, batch = which ? plan->batches - 1 : 0;
        bool present = (c->batch->first_batch == plan->batches - 1) == (which == 1);
        trek_batch_plan_cut(plan, batch, NULL, &at, &n);
        status = trek_ranks_split(c->s, n, counts);
        for (int r = 0; r < c->s->team->local_ranks && status == TREK_OK; r++) {
            rank_part *of = &c->of[r];
            *(which ? &of->cut.last_first : &of->cut.first) = present ? c->batch->first + of->first : at;
            *(which ? &of->cut.last_rows : &of->cut.rows) = present ? of->rows : counts[r];
            at += counts[r];
        }
    }
    return status;
}

/* Plans the rows of the batch, or batches of the window, of each rank of this process. */
static trek_status plan_parts(trek_pass *c)
{
    trek_step *s = c->s;
    int64_t counts[TREK_MAX_RANKS], at = 0;
    trek_status status = TREK_OK;
    for (int r = 0; r < s->job.world_size && c->way; r++)
        counts[r] = 1; /* all have something to do */
    if (c->way) {
        at = c->batch->first_batch;
    } else if (c->batch->window) {
        status = trek_workload_counts(s->pace.workload, c->batch->batches, counts);
        for (int r = 0; r < s->job.first_rank; r++)
            at += counts[r];
        at += c->batch->first_batch;
    } else {
        status = trek_ranks_split(s, c->batch->n, counts + s->job.first_rank);
    }
    for (int r = 0; r < s->team->local_ranks && status == TREK_OK; r++) {
        c->of[r] = (rank_part){ .first = at, .rows = counts[s->job.first_rank + r] };
        at += counts[s->job.first_rank + r];
    }
    return status == TREK_OK && c->batch->unread && !reads_again(c) ? plan_cuts(c) : status;
}

/* Traces how long each rank waited for the last one. */
static void trace_waits(const trek_pass *c)
{
    const trek_trace_sink *sink = atomic_load_explicit(&trek_trace_now, memory_order_acquire);
    int64_t end = 0;
    for (int r = 0; r < c->s->team->local_ranks; r++)
        end = c->of[r].end_ns > end ? c->of[r].end_ns : end; /* 0: it had nothing to do */
    for (int r = 0; sink && sink->span && r < c->s->team->local_ranks; r++)
        if (c->of[r].end_ns > 0 && c->of[r].end_ns < end)
            sink->span("wait for ranks", c->s->job.first_rank + r, c->of[r].end_ns, end, 0, sink->arg);
}

/* Called after all ranks' forward: counts samples and draws, and sums the weights of all processes. */
static trek_status weigh(trek_pass *c, double *total, bool *sends)
{
    trek_step *s = c->s;
    double weight = 0;
    for (int r = 0; r < s->team->local_ranks; r++) {
        weight += c->sums[r].weight;
        if (trek_team_is_training(s->team))
            s->team->replicas[r].samples += c->sums[r].rows;
        if (c->backward)
            s->team->replicas[r].measured_rows += c->sums[r].rows;
        if (c->of[r].rng_draw > trek_rank_here.rng_draw)
            trek_rank_here.rng_draw = c->of[r].rng_draw;
    }
    return c->backward ? trek_job_sync_pass(s, weight, total, sends) : TREK_OK;
}

/* Layers of ranks that have something to do can make sums with one another. */
static void begin_sums(const trek_pass *c, bool goes_back)
{
    trek_step *s = c->s;
    bool runs[TREK_MAX_RANKS];
    for (int r = 0; r < s->team->local_ranks; r++)
        runs[r] = !skips(c, r);
    trek_ranks_begin_sums(s->team->ranks, runs, s->job.comm, goes_back);
}

static trek_status run_ranks(trek_pass *c, trek_rank_fn fn, bool goes_back)
{
    trek_step *s = c->s;
    if (!c->batch->window && trek_team_meets(s->team))
        begin_sums(c, goes_back);
    trek_status status = trek_ranks_call(s->team->ranks, fn, c);
    trace_waits(c);
    return status;
}

static trek_status begin_pass(trek_pass *c)
{
    trek_step *s = c->s;
    trek_status status = c->backward ? trek_divided_check(s->team, "graph_train_batch") : TREK_OK;
    if (status == TREK_OK)
        status = trek_ranks_prepare_scaler(s);
    if (status == TREK_OK && c->backward)
        status = s->policy->begin_pass(s);
    if (status == TREK_OK && c->stashes)
        status = trek_ranks_stash_grads(s);
    trek_team_follow_flags(s->team);
    return status;
}

/* Runs backward, now that the forward has given the weights. Where processes may die, a pass is an operation of all: of several
 * graphs all have to be in the same one (job/survival.h). */
static trek_status go_back(trek_pass *c)
{
    double total = 0;
    trek_giving_await(c->s); /* those that have come are among them */
    trek_status status = weigh(c, &total, &c->sends);
    if (status == TREK_OK)
        status = trek_survival_commit(&c->s->job);
    if (status != TREK_OK)
        return status;
    if (!c->weighs)
        c->denominator = total;
    if (c->sends)
        trek_overlap_begin(c->s);
    return run_ranks(c, backward_rank, true);
}

/* Finds the factor after backward. */
static trek_status find_factor(trek_pass *c)
{
    trek_step *s = c->s;
    double total = 0;
    trek_status status = weigh(c, &total, NULL);
    if (c->backward && s->policy->sums)
        trek_ranks_owe_factor(s, c->weighs || total == 0 ? 1 : c->denominator / total);
    if (c->backward && status == TREK_OK && !c->way && s->policy->end_pass)
        s->policy->end_pass(s, c->batch->window ? c->batch->batches : 1);
    if (status == TREK_OK && c->stashes)
        status = trek_ranks_unstash_grads(s);
    return status;
}

static trek_status run_window_of_way(trek_pass *c)
{
    trek_status status = c->way->begin(c->s, c->batch);
    if (status == TREK_OK)
        status = run_ranks(c, run_rank, false);
    return c->way->end(c->s, status);
}

static trek_status run_per_rank_step(trek_pass *c)
{
    trek_step *s = c->s;
    trek_status status = begin_pass(c);
    if (status == TREK_OK && c->backward && !c->known)
        status = trek_job_sync_begin_pass(s, &c->sends);
    if (c->sends)
        trek_overlap_begin(s);
    if (status == TREK_OK)
        status = c->way ? run_window_of_way(c) : run_ranks(c, run_rank, false);
    if (status == TREK_OK && c->known)
        status = go_back(c);
    trek_status sent = c->sends ? trek_overlap_end(s) : TREK_OK;
    status = status == TREK_OK ? sent : status;
    bool died = trek_survival_repeats(&s->job, status);
    if (status != TREK_OK && c->backward && !died) /* an evaluation has no round in which others would learn it */
        trek_job_sync_failed(s, status);
    else if (status == TREK_OK && !c->known)
        status = find_factor(c);
    if (status != TREK_OK)
        return status;
    trek_ranks_passed(s, c->backward);
    s->windowed |= c->backward && c->batch->window;
    return TREK_OK;
}

/* Weights are exchanged before backward if ranks wait for each other anyway, or would otherwise put gradients aside. */
static void choose_way(trek_pass *c)
{
    const trek_step *s = c->s;
    bool again = c->backward && !c->weighs && trek_ranks_have_passed(s);
    c->known = c->backward && !c->batch->window && s->policy->sums &&
        (again || trek_job_has_others(&s->job) || s->overlap.possible || trek_team_meets(s->team));
    c->stashes = again && !c->known && s->policy->sums;
}

trek_var *trek_ranks_train_batch(trek_step *s, const trek_batch *batch) { return trek_ranks_train_window(s, batch, NULL); }

trek_var *trek_ranks_train_window(trek_step *s, const trek_batch *batch, const trek_window_way *way)
{
    trek_graph *graph = s->team->graph;
    if (batch->dataset->n_fields > 64)
        return trek_fail_null(TREK_ERR_UNSUPPORTED, "graph_train_batch: dataset: more than 64 fields; at most 64 are possible");
    trek_pass c = { .s = s, .way = way, .graph_loader = graph->graph_loader, .batch = batch, .backward = trek_graph_learns(graph),
                        .reset = graph->layout.n_states > 0 && trek_graph_states_are_reset(graph),
                        .no_grad_depth = trek_grad_mode_here.no_grad_depth,
                        .offload = trek_grad_mode_here.offload,
                        .denominator = (double)batch->global, .rng_step = trek_rank_here.rng_step,
                        .rng_draw = trek_rank_here.rng_draw,
                        .batch_size = trek_loader_plan(graph->graph_loader->loader)->batch_size };
    c.weighs = c.backward && trek_accumulation_weighs(&graph->accumulation);
    if (c.weighs)
        c.denominator = trek_accumulation_denominator(&graph->accumulation, c.denominator);
    choose_way(&c);
    c.of = trek_calloc((size_t)s->team->local_ranks, sizeof *c.of);
    c.sums = trek_calloc((size_t)s->team->local_ranks, sizeof *c.sums);
    trek_job_say(&s->job, phase_of(&c), c.backward);
    trek_ranks_note_wait(s, c.backward);
    trek_status status = c.of && c.sums ? plan_parts(&c) : trek_error_status();
    if (status == TREK_OK && c.backward && !batch->window && (status = trek_workload_check_batch(s->pace.workload)) != TREK_OK)
        trek_job_sync_failed(s, status);
    if (status == TREK_OK)
        status = run_per_rank_step(&c);
    trek_var *mean = status == TREK_OK ? trek_pass_mean(c.sums, s->team->local_ranks, trek_ranks_device(s->team->ranks, 0))
        : NULL;
    if (status != TREK_OK)
        trek_rank_here.rng_draw = c.rng_draw; /* when it is made again, it draws the same numbers */
    for (int r = 0; c.sums && r < s->team->local_ranks; r++)
        trek_pass_sum_clear(&c.sums[r]);
    for (int r = 0; c.of && r < s->team->local_ranks; r++)
        trek_var_release(c.of[r].loss);
    trek_free(c.sums);
    trek_free(c.of);
    return mean;
}

/* The only rank of a process uses everything that its loader reads. */
bool trek_ranks_read_parts(const trek_step *s) { return s->team->local_ranks > 1; }

int64_t trek_ranks_window(trek_step *s)
{
    return s->pace.sites ? 0 : trek_workload_window(s->pace.workload);
}
