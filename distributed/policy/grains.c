/* SPDX-License-Identifier: Apache-2.0 */
/* A pass in grain mode. Each rank gets consecutive grains of its process's part of the batch, by its share, for about half of the
 * pass. Then it takes further ones from a counter until none is left (balance/handout.h), so that no rank waits longer than a
 * grain takes, although speeds change. Who runs a grain does not show in what it gives. */
#include "distributed/balance/handout.h"
#include "distributed/grains/grains.h"

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/pass/job_sync.h"
#include "distributed/pass/per_rank_step.h"
#include "distributed/pass/shares.h"
#include "distributed/policy/exact.h"
#include "distributed/policy/grain_pass.h"
#include "distributed/policy/policies.h"
#include "distributed/reduce/gradients.h"
#include "graph/batch_run.h"
#include "graph/graph_loader_internal.h"
#include "tensor/rank_context.h"

/* Part of a pass that is divided before it begins. */
#define AHEAD 0.5

typedef struct rank_grains {
    int64_t first, n;        /* grains that it has been given, or has taken, and has not run yet */
    double part;             /* of the speed of all ranks of the process */
} rank_grains;

/* The grains of this process's part of the batch. */
typedef struct grain_counter {
    rank_grains of[TREK_MAX_RANKS]; /* [local_ranks] */
    double fastest;          /* the largest of their parts */
    _Atomic int64_t next;    /* the first grain that no rank has */
    int64_t end;
} grain_counter;

typedef struct grain_pass {
    trek_step *s;
    trek_grains *grains;
    const trek_batch *batch;
    trek_grain_pass pass;
    trek_grain_call call;
    int64_t first, n;        /* grains of this process's part */
    grain_counter *counter;
} grain_pass;

/* --- handing out ---------------------------------------------------------------------------- */

/* Takes grains from the counter. Returns how many, from *first on. */
static int64_t take(grain_counter *c, const rank_grains *of, int64_t *first)
{
    int64_t n;
    *first = atomic_load_explicit(&c->next, memory_order_relaxed);
    do {
        n = trek_handout_next(c->end - *first, of->part, c->fastest, 1);
    } while (n > 0 && !atomic_compare_exchange_weak_explicit(&c->next, first, *first + n, memory_order_relaxed,
                                                             memory_order_relaxed));
    return n;
}

/* First what the rank was given, then what it takes. */
static int64_t next_of_counter(trek_grain_call *call, int rank)
{
    grain_counter *c = call->source;
    rank_grains *of = &c->of[rank];
    if (of->n == 0 && (of->n = take(c, of, &of->first)) == 0)
        return -1;
    of->n--;
    return of->first++;
}

static trek_status plan_grains(grain_pass *c)
{
    const trek_step *s = c->s;
    grain_counter *counter = c->counter;
    int64_t counts[TREK_MAX_RANKS], at = c->first;
    const double *shares = trek_ranks_shares(s) + s->job.first_rank;
    double sum = 0, most = 0;
    int ranks = s->team->local_ranks;
    for (int r = 0; r < ranks; r++) {
        sum += shares[r];
        most = shares[r] > most ? shares[r] : most;
    }
    trek_status status = trek_handout_ahead(c->n, ranks > 1 ? AHEAD : 1, sum > 0 ? shares : NULL, ranks, counts);
    for (int r = 0; r < ranks && status == TREK_OK; r++) {
        counter->of[r] = (rank_grains){ .first = at, .n = counts[r], .part = sum > 0 ? shares[r] / sum : 1.0 / ranks };
        at += counts[r];
    }
    counter->fastest = sum > 0 ? most / sum : 1.0 / ranks;
    atomic_init(&counter->next, at);
    counter->end = c->first + c->n;
    return status;
}

/* --- a pass ----------------------------------------------------------------------------------- */

static trek_status check(const grain_pass *c)
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
    if (c->pass.training && !c->pass.backward && c->s->team->replicas[0].model->n_buffers > 0)
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "graph_train_batch: graph: in training mode without gradients, in grains (.grain); they change buffers "
                         "in a step, so use trek_graph_train(graph, false), or gradients");
    if (!c->pass.backward)
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
static trek_status count(const grain_pass *c)
{
    trek_step *s = c->s;
    double weight = 0, total;
    for (int r = 0; r < s->team->local_ranks; r++) {
        s->team->replicas[r].samples += c->pass.training ? c->call.rows[r] : 0;
        s->team->replicas[r].measured_rows += c->pass.backward ? c->call.rows[r] : 0;
        if (c->call.rng_draw[r] > trek_rank_here.rng_draw)
            trek_rank_here.rng_draw = c->call.rng_draw[r];
    }
    for (int64_t k = 0; k < trek_grains_count(c->grains, c->pass.rows); k++)
        weight += c->call.sums[k].weight;
    return c->pass.backward ? trek_job_sync_pass(s, weight, &total, NULL) : TREK_OK;
}

/* Everything that can fail before a grain runs. */
static trek_status prepare(grain_pass *c)
{
    trek_step *s = c->s;
    trek_status status = trek_batch_fill(c->batch); /* one that was begun before .grain was set */
    if (status == TREK_OK)
        status = check(c);
    if (status == TREK_OK && c->pass.backward)
        status = trek_workload_check_batch(s->pace.workload);
    if (status == TREK_OK)
        status = plan_grains(c);
    if (status == TREK_OK)
        status = trek_ranks_prepare_scaler(s);
    if (status == TREK_OK)
        status = trek_grain_call_begin(&c->call);
    if (status == TREK_OK && c->pass.backward)
        status = trek_grains_reserve(c->grains, c->n);
    if (status == TREK_OK && c->pass.backward)
        status = trek_grains_add_pass(c->grains, &c->pass);
    trek_team_follow_flags(s->team);
    return status;
}

static trek_status run_pass(grain_pass *c)
{
    trek_step *s = c->s;
    trek_grains *g = c->grains;
    c->call.pass_number = g->passes;
    trek_status status = prepare(c);
    bool began = status == TREK_OK && c->pass.backward; /* from here on a failure leaves a part of the gradients */
    if (status == TREK_OK) {
        trek_grains_keep_buffers(g, s->team->replicas[0].model, g->first_buffers);
        status = trek_grain_call_run(&c->call);
    }
    if (status == TREK_OK)
        status = trek_grain_call_give_recorded(&c->call);
    if (status != TREK_OK && c->pass.backward) /* an evaluation has no round in which others would learn it */
        trek_job_sync_failed(s, status);
    else if (status == TREK_OK)
        status = count(c);
    if (status != TREK_OK) {
        g->broken |= began;
        trek_rank_here.rng_draw = c->pass.rng_draw; /* when it is dropped and made again, it draws the same numbers */
        return status;
    }
    trek_step_passed(&s->state, c->pass.backward);
    return TREK_OK;
}

static trek_var *train_batch(trek_step *s, const trek_batch *batch)
{
    trek_graph *graph = s->team->graph;
    trek_accumulation *passes = &graph->accumulation;
    grain_pass c = { .s = s, .grains = s->grains, .batch = batch, .first = batch->first / s->grains->size,
                     .n = trek_grains_count(s->grains, batch->n),
                     .pass = { .loader = batch->loader, .epoch = batch->epoch, .batch = batch->first_batch,
                               .rows = batch->global, .backward = trek_graph_learns(graph),
                               .training = trek_team_is_training(s->team),
                               .no_grad_depth = trek_grad_mode_here.no_grad_depth, .offload = trek_grad_mode_here.offload,
                               .denominator = (double)batch->global, .rng_step = trek_rank_here.rng_step,
                               .rng_draw = trek_rank_here.rng_draw } };
    if (c.pass.backward && trek_accumulation_weighs(passes))
        c.pass.denominator = trek_accumulation_denominator(passes, c.pass.denominator);
    c.counter = trek_calloc(1, sizeof *c.counter);
    c.call = (trek_grain_call){ .s = s, .pass = &c.pass, .batch = batch, .next = next_of_counter, .source = c.counter };
    trek_job_say(&s->job, c.pass.backward ? "forward and backward" : "forward", c.pass.backward);
    trek_ranks_note_wait(s, c.pass.backward);
    trek_status status = c.counter ? run_pass(&c) : trek_error_status();
    int64_t n = trek_grains_count(s->grains, c.pass.rows);
    trek_var *mean = status == TREK_OK ? trek_pass_mean(c.call.sums, (int)n, trek_ranks_device(s->team->ranks, 0)) : NULL;
    trek_grain_call_end(&c.call);
    trek_free(c.counter);
    return mean;
}

/* The only backward is that of a pass. */
static trek_status backward(trek_step *s, trek_var *loss, double weight)
{
    (void)s, (void)loss, (void)weight;
    return trek_grains_refuse("graph_backward");
}

const trek_step_policy trek_grains_policy = {
    .name = "grains", .sums = true, .obstacle = "it is trained in grains (.grain)", .train_batch = train_batch,
    .window = trek_ranks_window, .backward = backward, .reduce = trek_ranks_reduce, .step = trek_ranks_step,
};
