/* SPDX-License-Identifier: Apache-2.0 */
/* A pass in grain mode. Each rank gets consecutive grains of its process's part of the batch, by its share, for about half of the
 * pass. Then it takes further ones from a counter until none is left (balance/handout.h), so that no rank waits longer than a
 * grain takes, although speeds change. Who runs a grain does not show in what it gives. */
#include "distributed/balance/handout.h"
#include "distributed/grains/digests.h"

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/policy/policies.h"
#include "distributed/replay/replay.h"
#include "distributed/reduce/gradients.h"
#include "distributed/pass/job_sync.h"
#include "distributed/pass/per_rank_step.h"
#include "distributed/pass/shares.h"
#include "distributed/policy/exact.h"
#include "distributed/team/observations.h"
#include "distributed/system/system.h"
#include "graph/batch_run.h"
#include "graph/graph_loader_internal.h"
#include "graph/observe_internal.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

/* Part of a pass that is divided before it begins. */
#define AHEAD 0.5

typedef struct rank_grains {
    int64_t first, n;        /* grains that are divided before */
    double part;             /* of the speed of all ranks of the process */
    int64_t rows;            /* that it has run */
    uint64_t rng_draw;       /* after the pass */
} rank_grains;

typedef struct grain_call {
    trek_step *s;
    trek_grains *grains;
    const trek_graph_loader *graph_loader;
    const trek_batch *batch;
    bool backward, training;
    int no_grad_depth;       /* of the caller, as the next field */
    trek_offload_opts offload;
    double denominator;
    uint64_t rng_step, rng_draw;
    int64_t n_grains;        /* of this process */
    int64_t first_record;    /* of these grains */
    rank_grains *of;         /* [local_ranks] */
    double fastest;          /* the largest of their parts */
    _Atomic int64_t next;    /* the first grain that no rank has */
    trek_text *recorded;     /* [1 + n_grains] what training functions had recorded before, and in each grain */
    trek_pass_sum *sums;     /* [n_grains] */
} grain_call;

static int64_t count_grains(const trek_grains *g, int64_t rows) { return (rows + g->size - 1) / g->size; }
/* Returns where grain k of n rows begins; the end is where the grain behind the last one begins. */
static int64_t row_of(const trek_grains *g, int64_t k, int64_t n) { return k * g->size < n ? k * g->size : n; }

/* --- a rank's part -------------------------------------------------------------------- */

static void set_place(const grain_call *c, const trek_batch *grain)
{
    trek_rank_here.first_sample = grain ? grain->first : 0;
    trek_rank_here.rows = grain ? grain->n : -1;
    trek_rank_here.global_rows = grain ? grain->global : -1;
    trek_rank_here.grain = grain ? grain->first / c->grains->size + 1 : 0;
    if (grain)
        trek_rank_here.rng_draw = c->rng_draw;
}

/* Runs forward, loss and backward, and puts what they have given where grains are merged. */
static trek_status train_grain(const grain_call *c, int rank, int64_t k, const trek_batch *grain)
{
    trek_step *s = c->s;
    trek_grains *g = c->grains;
    const rank_replica *own = &s->team->replicas[rank];
    trek_batch_run run = { .graph_loader = c->graph_loader, .scaler = trek_ranks_scaler(s, rank), .leaves = own->model->params,
                           .n_leaves = own->model->n_params, .denominator = c->denominator, .backward = c->backward };
    if (c->training)
        trek_grains_put_buffers(g, own->model, g->first_buffers);
    if (g->digests->replay && c->backward)
        trek_replay_enter(g->digests->replay, s->team->graph->settings.steps + 1, grain);
    trek_status status = trek_graph_run_batch(own->graph, grain, &run, &c->sums[k]);
    if (g->digests->replay)
        trek_replay_leave(g->digests->replay);
    if (status == TREK_OK)
        status = trek_observations_read(own->graph);
    c->recorded[1 + k] = trek_observations_take(own->graph);
    if (status != TREK_OK || !c->backward)
        return status;
    trek_digest gradients = { { 0, 0 } };
    if (g->fault)
        g->fault(rank, s->team->graph->settings.steps + 1, grain->first / g->size, own->arena);
    if (g->digests->of_grains)
        gradients = trek_digests_gradients(own->arena);
    trek_grain_sums_add(&g->sums[rank], own->arena);
    trek_grain_record *record = trek_grains_record(g, c->first_record + k);
    *record = (trek_grain_record){ .pass = g->passes, .number = grain->first / g->size, .rows = grain->n,
                                   .weight = c->sums[k].weight, .loss = c->sums[k].loss, .denominator = c->denominator,
                                   .samples = trek_digests_samples(grain), .gradients = gradients };
    if (c->training)
        trek_grains_keep_buffers(g, own->model, (char *)record);
    return TREK_OK;
}

static trek_status run_grain(const grain_call *c, int rank, int64_t k, const trek_batch *grain)
{
    trek_step *s = c->s;
    trek_stopwatch *watch = &s->team->watches->of[rank];
    int64_t start = trek_trace_enter("grain");
    set_place(c, grain);
    trek_status status = c->backward ? trek_stopwatch_start(watch, trek_ranks_device(s->team->ranks, rank)) : TREK_OK;
    if (status == TREK_OK)
        status = train_grain(c, rank, k, grain);
    if (status == TREK_OK && c->backward)
        status = trek_slowed(s, rank, watch, true);
    if (status == TREK_OK && c->backward)
        status = trek_stopwatch_stop(watch, grain->n);
    if (trek_rank_here.rng_draw > c->of[rank].rng_draw)
        c->of[rank].rng_draw = trek_rank_here.rng_draw;
    set_place(c, NULL);
    trek_trace_end("grain", start, grain->first / c->grains->size);
    return status;
}

/* Runs grains [first, first + n) of the process. */
static trek_status run_piece(grain_call *c, int rank, int64_t first, int64_t n)
{
    trek_status status = TREK_OK;
    for (int64_t k = first; k < first + n && status == TREK_OK; k++) {
        trek_var *vars[64];
        trek_batch grain;
        int64_t begin = row_of(c->grains, k, c->batch->n), end = row_of(c->grains, k + 1, c->batch->n);
        status = trek_batch_part(c->batch, begin, end - begin, trek_ranks_device(c->s->team->ranks, rank), vars, &grain);
        if (status != TREK_OK)
            return status;
        status = run_grain(c, rank, k, &grain);
        c->of[rank].rows += grain.n;
        trek_batch_part_release(&grain);
        trek_job_say(&c->s->job, c->backward ? "forward and backward" : "forward", false);
    }
    return status;
}

/* Takes grains from the counter. Returns how many, from *first on. */
static int64_t take(grain_call *c, int rank, int64_t *first)
{
    int64_t n;
    *first = atomic_load_explicit(&c->next, memory_order_relaxed);
    do {
        n = trek_handout_next(c->n_grains - *first, c->of[rank].part, c->fastest, 1);
    } while (n > 0 && !atomic_compare_exchange_weak_explicit(&c->next, first, *first + n, memory_order_relaxed,
                                                             memory_order_relaxed));
    return n;
}

/* Runs what the rank was given, and then what it takes. After a failure nobody takes any more. */
static trek_status run_grains(grain_call *c, int rank)
{
    int64_t first = c->of[rank].first, n = c->of[rank].n;
    trek_status status = TREK_OK;
    do {
        status = run_piece(c, rank, first, n);
    } while (status == TREK_OK && (n = take(c, rank, &first)) > 0);
    if (status != TREK_OK)
        atomic_store_explicit(&c->next, c->n_grains, memory_order_relaxed);
    return status;
}

/* Runs a rank's grains in a scope, with the caller's modes. */
static trek_status run_rank(int rank, void *arg)
{
    grain_call *c = arg;
    trek_graph_clear_traces(c->s->team->replicas[rank].graph);
    trek_grad_mode mode = trek_grad_mode_here;
    trek_grad_mode_here.no_grad_depth = c->no_grad_depth;
    trek_grad_mode_here.offload = c->offload;
    trek_rank_here.rng_step = c->rng_step;
    trek_scope scope = trek_scope_begin();
    trek_status status = scope.depth ? run_grains(c, rank) : trek_error_status();
    trek_scope_end(scope);
    trek_grad_mode_here = mode;
    return status;
}

/* --- the caller's side ------------------------------------------------------------------- */

static trek_status plan_grains(grain_call *c)
{
    const trek_step *s = c->s;
    int64_t counts[TREK_MAX_RANKS], at = 0;
    const double *shares = trek_ranks_shares(s) + s->job.first_rank;
    double sum = 0, most = 0;
    int ranks = s->team->local_ranks;
    for (int r = 0; r < ranks; r++) {
        sum += shares[r];
        most = shares[r] > most ? shares[r] : most;
    }
    trek_status status = trek_handout_ahead(c->n_grains, ranks > 1 ? AHEAD : 1, sum > 0 ? shares : NULL, ranks, counts);
    for (int r = 0; r < ranks && status == TREK_OK; r++) {
        double part = sum > 0 ? shares[r] / sum : 1.0 / ranks;
        c->of[r] = (rank_grains){ .first = at, .n = counts[r], .part = part, .rng_draw = c->rng_draw };
        at += counts[r];
    }
    c->fastest = sum > 0 ? most / sum : 1.0 / ranks;
    atomic_init(&c->next, at);
    return status;
}

static trek_status check(const grain_call *c)
{
    const trek_batch *batch = c->batch;
    const trek_accumulation *passes = &c->s->team->graph->accumulation;
    int64_t size = c->grains->size;
    if (batch->dataset->n_fields > 64)
        return trek_fail(TREK_ERR_UNSUPPORTED, "graph_train_batch: dataset: more than 64 fields; at most 64 are possible");
    bool last = batch->first + batch->n == batch->global;
    if (batch->n > 0 && (batch->first % size != 0 || (batch->n % size != 0 && !last)))
        return trek_fail(TREK_ERR_STATE,
                         "graph_train_batch: batch: samples %lld to %lld of %lld were divided before .grain was set to %lld; "
                         "start the epoch after trek_trainer_setup",
                         (long long)batch->first, (long long)(batch->first + batch->n), (long long)batch->global,
                         (long long)size);
    if (c->training && !c->backward && c->s->team->replicas[0].model->n_buffers > 0)
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "graph_train_batch: graph: in training mode without gradients, in grains (.grain); they change buffers "
                         "in a step, so use trek_graph_train(graph, false), or gradients");
    if (!c->backward)
        return TREK_OK;
    if (c->s->state.phase == TREK_STEP_FOLDED || c->grains->broken)
        return trek_fail(TREK_ERR_STATE, "graph_train_batch: graph: %s; call %s first",
                         c->grains->broken ? "some of its gradients could not be computed or summed"
                                           : "its gradients have been reduced",
                         c->grains->broken ? "trek_graph_zero_grad" : "trek_graph_step");
    if (c->grains->passes > 0 && !trek_accumulation_weighs(passes))
        return trek_fail(TREK_ERR_UNSUPPORTED, "graph_train_batch: graph: a second pass in a step in grains (.grain); set "
                                               ".accumulate, which makes the passes of a step one batch");
    return TREK_OK;
}

/* Called after all ranks' grains: counts samples and draws, and tells the other processes. */
static trek_status count(const grain_call *c)
{
    trek_step *s = c->s;
    double weight = 0, total;
    for (int r = 0; r < s->team->local_ranks; r++) {
        const rank_grains *of = &c->of[r];
        s->team->replicas[r].samples += c->training ? of->rows : 0;
        s->team->replicas[r].measured_rows += c->backward ? of->rows : 0;
        if (of->rng_draw > trek_rank_here.rng_draw)
            trek_rank_here.rng_draw = of->rng_draw;
    }
    for (int64_t k = 0; k < c->n_grains; k++)
        weight += c->sums[k].weight;
    return c->backward ? trek_job_sync_pass(s, weight, &total, NULL) : TREK_OK;
}

/* Gives the caller's graph what was recorded, in the order of grains. */
static trek_status give_recorded(const grain_call *c)
{
    trek_status status = TREK_OK;
    for (int64_t k = 0; k <= c->n_grains; k++) {
        trek_text *text = &c->recorded[k];
        if (text->failed)
            status = TREK_ERR_MEMORY;
        else if (text->length > 0 && status == TREK_OK)
            status = trek_observations_unpack(c->s->team->graph, text->data, (int64_t)text->length);
        trek_text_clear(text);
    }
    return status;
}

static trek_status run_ranks(grain_call *c)
{
    trek_step *s = c->s;
    trek_grains_keep_buffers(c->grains, s->team->replicas[0].model, c->grains->first_buffers);
    c->recorded[0] = trek_observations_take(s->team->graph);
    trek_status status = trek_ranks_call(s->team->ranks, run_rank, c), given = give_recorded(c);
    for (int r = 0; r < s->team->local_ranks && c->training; r++)
        trek_grains_put_buffers(c->grains, s->team->replicas[r].model, c->grains->first_buffers);
    return status == TREK_OK ? given : status;
}

static trek_status run_pass(grain_call *c)
{
    trek_step *s = c->s;
    trek_grains *g = c->grains;
    trek_status status = trek_batch_fill(c->batch); /* one that was begun before .grain was set */
    if (status == TREK_OK)
        status = check(c);
    if (status == TREK_OK && c->backward)
        status = trek_workload_check_batch(s->pace.workload);
    if (status == TREK_OK)
        status = plan_grains(c);
    if (status == TREK_OK)
        status = trek_ranks_prepare_scaler(s);
    c->first_record = g->n_records;
    if (status == TREK_OK && c->backward)
        status = trek_grains_add_records(g, c->n_grains);
    trek_team_follow_flags(s->team);
    bool began = status == TREK_OK && c->backward; /* from here on a failure leaves a part of the gradients */
    if (status == TREK_OK)
        status = run_ranks(c);
    if (status != TREK_OK && c->backward) /* an evaluation has no round in which others would learn it */
        trek_job_sync_failed(s, status);
    else if (status == TREK_OK)
        status = count(c);
    if (status != TREK_OK) {
        g->broken |= began;
        trek_rank_here.rng_draw = c->rng_draw; /* when it is dropped and made again, it draws the same numbers */
        return status;
    }
    g->passes += c->backward;
    trek_step_passed(&s->state, c->backward);
    return TREK_OK;
}

trek_var *trek_grains_train_batch(trek_step *s, const trek_batch *batch)
{
    trek_graph *graph = s->team->graph;
    trek_accumulation *passes = &graph->accumulation;
    grain_call c = { .s = s, .grains = s->grains, .graph_loader = graph->graph_loader, .batch = batch,
                     .backward = trek_graph_learns(graph), .training = trek_team_is_training(s->team),
                     .no_grad_depth = trek_grad_mode_here.no_grad_depth, .offload = trek_grad_mode_here.offload,
                     .denominator = (double)batch->global, .rng_step = trek_rank_here.rng_step,
                     .rng_draw = trek_rank_here.rng_draw, .n_grains = count_grains(s->grains, batch->n) };
    if (c.backward && trek_accumulation_weighs(passes))
        c.denominator = trek_accumulation_denominator(passes, c.denominator);
    c.of = trek_calloc((size_t)s->team->local_ranks, sizeof *c.of);
    c.sums = trek_calloc((size_t)c.n_grains, sizeof *c.sums);
    c.recorded = trek_calloc((size_t)c.n_grains + 1, sizeof *c.recorded);
    trek_job_say(&s->job, c.backward ? "forward and backward" : "forward", c.backward);
    trek_ranks_note_wait(s, c.backward);
    trek_status status = c.of && c.sums && c.recorded ? run_pass(&c) : trek_error_status();
    trek_var *mean = status == TREK_OK ? trek_pass_mean(c.sums, (int)c.n_grains, trek_ranks_device(s->team->ranks, 0)) : NULL;
    for (int64_t k = 0; c.sums && k < c.n_grains; k++)
        trek_pass_sum_clear(&c.sums[k]);
    trek_free(c.recorded);
    trek_free(c.sums);
    trek_free(c.of);
    return mean;
}

/* The only backward is that of a pass. */
static trek_status backward(trek_step *s, trek_var *loss, double weight)
{
    (void)s, (void)loss, (void)weight;
    return trek_grains_refuse("graph_backward");
}

const trek_step_policy trek_grains_policy = {
    .name = "grains", .sums = true, .obstacle = "it is trained in grains (.grain)", .train_batch = trek_grains_train_batch,
    .window = trek_ranks_window, .backward = backward, .reduce = trek_ranks_reduce, .step = trek_ranks_step,
};
