/* SPDX-License-Identifier: Apache-2.0 */
/* The stepper over the ranks of a process: the calls of the graph's table, most of which only have to reach every replica. Train
 * and freeze flags change rank 0's modules; the other ranks follow before the next forward. */
#include "distributed/stepper_internal.h"

#include <math.h>

#include "data/loader_internal.h"
#include "distributed/capture/recording.h"
#include "distributed/job/job_bytes.h"
#include "distributed/make_step.h"
#include "distributed/pass/gathered.h"
#include "distributed/pass/per_rank_step.h"
#include "distributed/pass/shares.h"
#include "distributed/pass/survivors.h"
#include "distributed/policy/exact.h"
#include "distributed/reduce/gradients.h"
#include "distributed/reduce/reduce.h"
#include "distributed/reduce/optimizers.h"
#include "distributed/reduce/overlap.h"
#include "distributed/team/constants.h"
#include "distributed/team/observations.h"
#include "distributed/team/step_policy.h"
#include "graph/graph_internal.h"

/* --- making ------------------------------------------------------------------------------- */

static const trek_stepper_class ranks_class;

static trek_step *step_of(const trek_stepper *stepper) { return &((ranks_stepper *)(uintptr_t)stepper)->step; }

static void free_ranks(trek_stepper *stepper)
{
    ranks_stepper *own = (ranks_stepper *)stepper;
    if (!trek_forked)
        trek_overlap_finish(&own->step);
    trek_ranks_forget_before(own);
    own->team.graph_ends = stepper->graph->stepper == stepper;
    trek_step_end(&own->step);
    trek_free(own);
}

trek_stepper *trek_stepper_ranks_new(trek_ranks *ranks, trek_graph **graphs, const trek_ranks_opts *opts)
{
    ranks_stepper *own = trek_calloc(1, sizeof *own);
    if (!own) {
        for (int r = 1; r < trek_ranks_world_size(ranks); r++)
            trek_graph_free(&graphs[r]);
        trek_ranks_free(&ranks);
        return NULL;
    }
    own->base = (trek_stepper){ &ranks_class, graphs[0] };
    if (trek_step_make(&own->step, &own->team, ranks, graphs, opts) == TREK_OK)
        return &own->base;
    free_ranks(&own->base);
    return NULL;
}

/* --- calls that reach every replica ----------------------------------------------------------- */

static trek_status zero_grad(trek_stepper *stepper)
{
    trek_step *s = step_of(stepper);
    trek_status status = trek_error_status();
    if (status == TREK_OK) /* the engine may still read and write them */
        status = trek_overlap_finish(s);
    if (status == TREK_OK)
        status = trek_ranks_zero(s);
    if (status != TREK_OK)
        return status;
    trek_ranks_reset(s);
    return TREK_OK;
}

static trek_status parameters_changed(trek_stepper *stepper)
{
    trek_step *s = step_of(stepper);
    trek_status status = trek_constants_move(stepper->graph);
    return status == TREK_OK ? trek_step_copy_first(s) : status;
}

static trek_status set_optimizer(trek_stepper *stepper, const trek_optimizer_source *source)
{
    return trek_ranks_set_optimizer(step_of(stepper), source);
}
static trek_status set_lr(trek_stepper *stepper, double lr) { return trek_team_set_lr(step_of(stepper)->team, lr); }
static int world_size(const trek_stepper *stepper) { return step_of(stepper)->job.world_size; }

static int shares(const trek_stepper *stepper, double *list, int capacity)
{
    const trek_step *s = step_of(stepper);
    for (int r = 0; r < s->job.world_size && r < capacity; r++)
        list[r] = trek_ranks_shares(s)[r];
    return s->job.world_size;
}

static double lr(const trek_stepper *stepper)
{
    const trek_step *s = step_of(stepper);
    return s->team->replicas[0].optimizer ? trek_optimizer_lr(s->team->replicas[0].optimizer) : (double)NAN;
}

/* If ranks decide for themselves, all decide the same, so rank 0 is asked. */
static double grad_norm(const trek_stepper *stepper)
{
    const trek_step *s = step_of(stepper);
    const rank_replica *first = &s->team->replicas[0];
    return first->optimizer && !s->team->on_host ? trek_optimizer_grad_norm(first->optimizer) : s->grad_norm;
}
static trek_optimizer *optimizer_of(trek_stepper *stepper) { return step_of(stepper)->team->replicas[0].optimizer; }

static trek_status forget_reader(int rank, void *arg)
{
    trek_step *s = arg;
    trek_reader_free(&s->team->replicas[rank].reader);
    return TREK_OK;
}

/* Readers read ahead on their own threads. */
static void forget_loader(trek_stepper *stepper)
{
    trek_step *s = step_of(stepper);
    bool reads = false;
    for (int r = 0; r < s->team->local_ranks; r++)
        reads |= s->team->replicas[r].reader != NULL;
    if (reads && !trek_forked)
        trek_ranks_call(s->team->ranks, forget_reader, s);
}

static trek_graph *replica(const trek_stepper *stepper, int rank)
{
    const trek_team *team = step_of(stepper)->team;
    return rank >= 0 && rank < team->local_ranks ? team->replicas[rank].graph : NULL;
}

/* --- calls that make passes and steps ---------------------------------------------------------- */

static trek_var *forward(trek_stepper *stepper, trek_var *const *inputs, int n)
{
    return trek_ranks_forward(step_of(stepper), inputs, n);
}
static trek_status backward(trek_stepper *stepper, trek_var *loss, double weight)
{
    trek_step *s = step_of(stepper);
    return s->policy->backward(s, loss, weight);
}
static trek_status grad(trek_stepper *stepper, trek_var *loss, trek_var *const *inputs, int n, const trek_backward_opts *opts,
                        trek_var **grads)
{
    return trek_ranks_grad(step_of(stepper), loss, inputs, n, opts, grads);
}
static trek_var *train_batch(trek_stepper *stepper, const trek_batch *batch)
{
    trek_step *s = step_of(stepper);
    return s->policy->train_batch(s, batch);
}
static trek_status reduce(trek_stepper *stepper) { return step_of(stepper)->policy->reduce(step_of(stepper)); }
static trek_status step(trek_stepper *stepper) { return step_of(stepper)->policy->step(step_of(stepper)); }
static trek_status detach(trek_stepper *stepper) { return trek_ranks_detach(step_of(stepper)); }
static trek_status constants(trek_stepper *stepper)
{
    return trek_ranks_constants(step_of(stepper)->team, &step_of(stepper)->job);
}
static int64_t window(trek_stepper *stepper) { return step_of(stepper)->policy->window(step_of(stepper)); }
/* Grains are handed out while a pass runs: nobody knows before which rows a rank needs. */
static bool reads_parts(const trek_stepper *stepper)
{
    const trek_step *s = step_of(stepper);
    return !s->grains && trek_ranks_read_parts(s);
}
static trek_status gather_observations(trek_stepper *stepper)
{
    trek_step *s = step_of(stepper);
    trek_status status;
    do
        status = trek_ranks_gather_observations(s->team, &s->job);
    while (status != TREK_OK && trek_survival_go_on(&s->job, &status));
    return status == TREK_OK ? trek_survivors_after_commit(s) : status;
}

static trek_metric *join_metric(trek_stepper *stepper, trek_metric *metric)
{
    trek_step *s = step_of(stepper);
    trek_metric *sum;
    trek_status status;
    do {
        sum = trek_job_join_metric(s->job.comm, metric);
        status = sum ? trek_survival_commit(&s->job) : trek_error_status();
        if (status != TREK_OK)
            trek_metric_free(&sum);
    } while (status != TREK_OK && trek_survival_go_on(&s->job, &status));
    if (status == TREK_OK && trek_survivors_after_commit(s) != TREK_OK)
        trek_metric_free(&sum);
    return sum;
}

static const trek_stepper_class ranks_class = {
    .name = "ranks", .free = free_ranks, .forward = forward, .backward = backward, .grad = grad,
    .reduce = reduce, .step = step, .zero_grad = zero_grad,
    .parameters_changed = parameters_changed, .set_optimizer = set_optimizer,
    .set_lr = set_lr, .world_size = world_size, .shares = shares, .lr = lr, .grad_norm = grad_norm, .optimizer = optimizer_of,
    .constants = constants, .train_batch = train_batch, .window = window,
    .reads_parts = reads_parts,
    .detach = detach, .replica = replica, .gather_observations = gather_observations,
    .join_metric = join_metric, .forget_loader = forget_loader,
    .capture = &trek_ranks_capture,
};

trek_step *trek_graph_ranks(const trek_graph *graph)
{
    const trek_stepper *stepper = graph ? graph->stepper : NULL;
    return stepper && stepper->klass == &ranks_class ? step_of(stepper) : NULL;
}

trek_team *trek_step_team(const trek_step *s) { return s->team; }
const trek_job *trek_step_job(const trek_step *s) { return &s->job; }
trek_workload *trek_step_workload(const trek_step *s) { return s->pace.workload; }
int64_t trek_step_grain(const trek_step *s) { return s->grain; }
bool trek_step_averages(const trek_step *s) { return s->averaging != NULL; }
double trek_step_drift(const trek_step *s) { return s->averaging ? s->drift : 0; }

const trek_job *trek_graph_job(const trek_graph *graph)
{
    static const trek_job alone = { .processes = 1, .local_ranks = 1, .world_size = 1, .ranks_most = 1 };
    const trek_step *s = trek_graph_ranks(graph);
    return s ? &s->job : &alone;
}

trek_graph *trek_graph_replica(trek_graph *graph, int rank)
{
    return trek_graph_ranks(graph) ? replica(graph->stepper, rank) : NULL;
}
