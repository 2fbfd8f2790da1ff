/* SPDX-License-Identifier: Apache-2.0 */
/* The stepper over the ranks of a process: how it is made and freed, and the calls that only have to reach every
 * replica. Train and freeze flags change rank 0's modules; the other ranks follow before the next forward. */
#include "distributed/stepper.h"

#include <math.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "data/loader_internal.h"
#include "distributed/background/background.h"
#include "distributed/background/site.h"
#include "distributed/capture/recording.h"
#include "distributed/comm/nccl.h"
#include "distributed/grains/digests.h"
#include "distributed/ddp.h"
#include "distributed/job/rank_devices.h"
#include "distributed/pass/gathered.h"
#include "distributed/pass/job_sync.h"
#include "distributed/pass/per_rank_step.h"
#include "distributed/policy/average.h"
#include "distributed/policy/exact.h"
#include "distributed/policy/policies.h"
#include "distributed/reduce/gradients.h"
#include "distributed/reduce/overlap.h"
#include "distributed/reduce/reduce.h"
#include "distributed/reduce/sharded.h"
#include "distributed/team/constants.h"
#include "distributed/team/load_state.h"
#include "distributed/team/observations.h"
#include "distributed/team/settings.h"
#include "graph/graph_internal.h"
#include "graph/tree.h"
#include "tensor/try_internal.h"

/* --- making ------------------------------------------------------------------------------- */

static trek_status copy_rank(int rank, void *arg)
{
    const trek_step *s = arg;
    const rank_replica *own = &s->team->replicas[rank];
    for (int k = 0; rank > 0 && s->team->shared && k < own->model->n_params; k++)
        trek_tensor_bump(own->model->params[k]->data); /* the memory is rank 0's */
    trek_status status = trek_team_take_first(s->team, rank, TREK_OK);
    return status == TREK_OK ? trek_ranks_follow_teachers(s->team, rank) : status;
}

/* Joins the other processes of the job: checks that the graphs are the same, and takes process 0's values. */
static trek_status join_processes(trek_step *s)
{
    if (trek_job_is_alone(&s->job))
        return TREK_OK;
    trek_status status = trek_job_sync_begin(s);
    if (status == TREK_OK)
        status = trek_replica_take_first(s->team->replicas[0].model, s->job.comm,
                                         (trek_replica_values){ .params = true, .buffers = true,
                                                                .on_host = s->team->on_host && !s->job.mixed }, TREK_OK);
    return status == TREK_OK ? trek_ranks_call(s->team->ranks, copy_rank, s) : status;
}

/* A rank with its own part of the optimizer's state must be able to read everything that it exchanges. */
static trek_status check_sharers(const trek_step *s)
{
    if (s->team->sharers > 1 && s->job.mixed)
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "trainer_setup: .shard_optimizer: set, with ranks on CPUs and on GPUs; they must be of one kind");
    if (s->team->sharers > 1 && trek_job_has_others(&s->job) && s->team->local_ranks > 1 && !s->team->shared)
        return trek_fail(TREK_ERR_UNSUPPORTED, "trainer_setup: .shard_optimizer: set, with several ranks in each of several "
                                               "processes, which have parameters of their own; give each rank a process");
    return TREK_OK;
}

/* Makes the workload, for which it must be known whether ranks are unequal: now that all have met, it is. */
static trek_status make_workload(trek_step *s, const trek_ranks_opts *opts)
{
    trek_workload_opts workload = *opts->workload;
    workload.unequal |= trek_ranks_devices_differ(&s->job, 0, s->job.world_size);
    workload.windows |= workload.unequal && opts->workload->windows_if_unequal;
    trek_status status = trek_pace_begin(s);
    if (status == TREK_OK && s->pace.sites)
        status = trek_site_make(s, &workload);
    else if (status == TREK_OK && !(s->pace.workload = trek_workload_new(s->job.world_size, &workload)))
        status = trek_error_status();
    if (status != TREK_OK)
        return status;
    if (s->averaging)
        s->averaging->in_rounds = s->averaging->site ? &trek_site_policy : &trek_rounds_policy;
    trek_job_sync_publish(s);
    return TREK_OK;
}

/* Makes the step of a team, with the other processes of its job. */
static trek_status make_step(trek_step *s, const trek_ranks_opts *opts)
{
    TRY(trek_ranks_plan_shards(s));
    TRY(join_processes(s));
    TRY(trek_ranks_list_devices(&s->job, s->team->ranks));
    TRY(check_sharers(s));
    TRY(opts->averages ? trek_averaging_begin(s, opts->divergence_threshold) : trek_overlap_plan(s));
    TRY(trek_ranks_constants(s));
    if (s->grain > 0) {
        TRY(trek_grains_make(s));
        TRY(trek_digests_make(s, opts->digests));
        s->grains->audit = opts->audit;
    }
    return make_workload(s, opts);
}

static const trek_stepper_class ranks_class;
static void free_ranks(trek_stepper *stepper);

trek_stepper *trek_stepper_ranks_new(trek_ranks *ranks, trek_graph **graphs, const trek_ranks_opts *opts)
{
    int local_ranks = trek_ranks_world_size(ranks);
    ranks_stepper *own = trek_calloc(1, sizeof *own);
    if (!own) {
        for (int r = 1; r < local_ranks; r++)
            trek_graph_free(&graphs[r]);
        trek_ranks_free(&ranks);
        return NULL;
    }
    bool sites = opts->averages && opts->sites && opts->comm;
    trek_team_opts team = { .shared = opts->shared && (!opts->averages || (sites && local_ranks > 1)), .sharers = 1,
                            .bucket_bytes = opts->bucket_bytes, .comm = opts->comm };
    if (opts->shards && (opts->comm || !team.shared))
        team.sharers = opts->comm ? trek_comm_world_size(opts->comm) : local_ranks;
    trek_step *s = &own->step;
    own->base = (trek_stepper){ &ranks_class, graphs[0] };
    s->team = &own->team;
    s->policy = opts->averages ? &trek_average_policy : opts->grain > 0 ? &trek_grains_policy : &trek_exact_policy;
    s->grain = opts->grain;
    s->pace.sites = sites;
    s->overlap.asked = opts->overlap;
    s->grad_norm = NAN;
    s->stops = true;
    trek_step_reset(&s->state);
    trek_status status = trek_team_begin(&own->team, ranks, graphs, &team);
    trek_job_begin(&s->job, opts->comm, local_ranks, own->team.kinds);
    if (status == TREK_OK)
        status = make_step(s, opts);
    if (status == TREK_OK)
        return &own->base;
    free_ranks(&own->base);
    return NULL;
}

/* --- the end ---------------------------------------------------------------------------------- */

static trek_step *step_of(const trek_stepper *stepper) { return &((ranks_stepper *)(uintptr_t)stepper)->step; }

static void free_ranks(trek_stepper *stepper)
{
    ranks_stepper *own = (ranks_stepper *)stepper;
    trek_step *s = &own->step;
    if (!trek_forked)
        trek_overlap_finish(s);
    trek_grains_free(s);
    trek_ranks_forget_before(own);
    trek_var_release(s->overlap.tape_leaf);
    if (s->averaging)
        trek_background_free(&s->averaging->background);
    trek_site_end(s);
    trek_averaging_end(s);
    trek_pace_end(s);
    trek_job_sync_end(s);
    trek_team_end(&own->team);
    trek_job_end(&s->job);
    trek_free(own);
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
    return status == TREK_OK ? trek_ranks_call(s->team->ranks, copy_rank, s) : status;
}

typedef struct optimizer_call {
    trek_step *s;
    const trek_optimizer_source *source;
    trek_optimizer **made;
} optimizer_call;

static trek_status make_optimizer(int rank, void *arg)
{
    const optimizer_call *c = arg;
    if (rank > 0 && c->s->team->shared)
        return TREK_OK;
    c->made[rank] = trek_optimizer_make(c->source, c->s->team->replicas[rank].arena);
    if (!c->made[rank])
        return trek_error_status();
    return c->s->team->shared && trek_optimizer_is_whole(c->made[rank]) ? trek_optimizer_share(c->made[rank],
                                                                                               c->s->team->local_ranks)
                                                                  : TREK_OK;
}

/* Sets the optimizers of all ranks, or of none. */
static trek_status set_optimizer(trek_stepper *stepper, const trek_optimizer_source *source)
{
    trek_step *s = step_of(stepper);
    if (s->team->replicas[0].model->n_params == 0)
        return trek_fail(TREK_ERR_ARGUMENT, "graph_set_optimizer: graph: it has no parameters; an optimizer needs some");
    trek_optimizer **made = trek_calloc((size_t)s->team->local_ranks, sizeof *made);
    if (!made)
        return trek_error_status();
    trek_optimizer_spec spec = trek_optimizer_source_spec(source);
    trek_ranks_cuts *before;
    trek_status status = trek_ranks_cut_for(s, &spec, &before);
    if (status == TREK_OK)
        status = trek_ranks_call(s->team->ranks, make_optimizer, &(optimizer_call){ s, source, made });
    trek_ranks_cut_end(&before, status == TREK_OK);
    for (int r = 0; r < s->team->local_ranks; r++) {
        trek_optimizer *old = s->team->replicas[r].optimizer;
        if (status == TREK_OK)
            s->team->replicas[r].optimizer = made[r];
        else
            old = made[r];
        trek_optimizer_free(&old);
    }
    if (status == TREK_OK) {
        s->team->replicas[0].optimizer->behind = &trek_ranks_behind;
        s->team->replicas[0].optimizer->behind_arg = s;
    }
    trek_free(made);
    return status;
}

static trek_status set_lr(trek_stepper *stepper, double lr)
{
    trek_step *s = step_of(stepper);
    if (!s->team->replicas[0].optimizer)
        return trek_fail(TREK_ERR_STATE, "graph_set_lr: the graph has no optimizer; call trek_graph_set_optimizer first");
    trek_status status = TREK_OK; /* the first rank's refusal comes before any change */
    for (int r = 0; r < s->team->local_ranks && status == TREK_OK; r++)
        if (s->team->replicas[r].optimizer)
            status = trek_optimizer_set_lr(s->team->replicas[r].optimizer, lr);
    return status;
}

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
static trek_status constants(trek_stepper *stepper) { return trek_ranks_constants(step_of(stepper)); }
static int64_t window(trek_stepper *stepper) { return step_of(stepper)->policy->window(step_of(stepper)); }
/* Grains are handed out while a pass runs: nobody knows before which rows a rank needs. */
static bool reads_parts(const trek_stepper *stepper)
{
    const trek_step *s = step_of(stepper);
    return !s->grains && trek_ranks_read_parts(s);
}
static trek_status gather_observations(trek_stepper *stepper) { return trek_ranks_gather_observations(step_of(stepper)); }
static trek_metric *join_metric(trek_stepper *stepper, trek_metric *metric)
{
    return trek_metric_join(step_of(stepper)->job.comm, metric);
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

trek_graph *trek_graph_replica(trek_graph *graph, int rank)
{
    return trek_graph_ranks(graph) ? replica(graph->stepper, rank) : NULL;
}
