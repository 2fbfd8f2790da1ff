/* SPDX-License-Identifier: Apache-2.0 */
/* The stepper over the ranks of a process: how it is made and freed, and the calls that only have to reach every
 * replica. Train and freeze flags change rank 0's modules; the other ranks follow before the next forward. */
#include "distributed/step/stepper_ranks.h"

#include <math.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "data/loader_internal.h"
#include "distributed/background/background.h"
#include "distributed/comm/nccl.h"
#include "distributed/grains/grains.h"
#include "distributed/step/average.h"
#include "distributed/step/job_sync.h"
#include "distributed/step/load_state.h"
#include "distributed/step/overlap.h"
#include "distributed/step/rank_devices.h"
#include "distributed/step/recording.h"
#include "distributed/step/reduce.h"
#include "distributed/step/settings.h"
#include "distributed/step/sharded.h"
#include "graph/graph_internal.h"
#include "graph/tree.h"
#include "nn/module_values.h"

/* --- making ------------------------------------------------------------------------------- */

static trek_status list_rank(int rank, void *arg)
{
    ranks_stepper *s = arg;
    rank_replica *own = &s->replicas[rank];
    own->model = trek_replica_new(trek_graph_module(own->graph));
    char *graph = own->model ? trek_ranks_describe_graph(own->graph) : NULL;
    trek_status status = trek_replica_compare(own->model, trek_ranks_comm(s->ranks, rank), graph,
                                              "trainer_setup: the ranks' replicas differ", graph ? TREK_OK : trek_error_status());
    trek_free(graph);
    return status;
}

/* Takes rank 0's values, which shared parameters already have. */
static trek_status take_first(ranks_stepper *s, int rank, trek_status own)
{
    return trek_replica_take_first(s->replicas[rank].model, trek_ranks_comm(s->ranks, rank),
                                   (trek_replica_values){ .params = !s->shared, .buffers = true, .on_host = s->on_host }, own);
}

/* Gradients go through the GPUs' library again and again, so they are registered. Without a library there is nothing
 * to do. */
static trek_status register_grads(ranks_stepper *s, int rank)
{
    trek_arena *arena = s->replicas[rank].arena;
    trek_status status = TREK_OK;
    for (int p = 0; p < arena->n_parts && status == TREK_OK; p++)
        status = trek_comm_nccl_register(trek_ranks_comm(s->ranks, rank), arena->parts[p].grads->data,
                                         (size_t)arena->parts[p].count * trek_dtype_size(arena->parts[p].wide));
    return status;
}

static void forget_grads(ranks_stepper *s, int rank)
{
    const trek_arena *arena = s->replicas[rank].arena;
    for (int p = 0; arena && p < arena->n_parts; p++)
        trek_comm_nccl_forget(trek_ranks_comm(s->ranks, rank), arena->parts[p].grads->data);
}

static trek_status make_arena(ranks_stepper *s, int rank)
{
    rank_replica *own = &s->replicas[rank];
    if (rank == 0)
        return TREK_OK;
    trek_params *params = trek_module_params(trek_graph_module(own->graph));
    if (!params)
        return trek_error_status();
    own->arena = s->shared ? trek_arena_new_sharing(params, s->replicas[0].arena)
                           : trek_arena_new_in(params, s->sharers, NULL, NULL);
    trek_params_free(&params);
    return own->arena ? TREK_OK : trek_error_status();
}

/* Makes further ranks' arenas, on their threads, with rank 0's values. Rank 0's arena exists already. */
static trek_status move_rank(int rank, void *arg)
{
    ranks_stepper *s = arg;
    trek_status status = take_first(s, rank, make_arena(s, rank));
    return status == TREK_OK ? register_grads(s, rank) : status;
}

/* Makes the memory in which the gradients of the process are reduced with those of others. */
static trek_tensor *zeros_of_comm(void *comm, trek_shape shape, trek_dtype dtype, trek_device device)
{
    return trek_comm_zeros(comm, shape, dtype, device);
}

static trek_status move_params(ranks_stepper *s)
{
    trek_params *params = trek_module_params(trek_graph_module(s->replicas[0].graph));
    if (!params)
        return trek_error_status();
    s->replicas[0].arena = trek_arena_new_in(params, s->sharers, zeros_of_comm, s->comm);
    trek_params_free(&params);
    return s->replicas[0].arena ? trek_ranks_call(s->ranks, move_rank, s) : trek_error_status();
}

/* Plans tags of nested graphs, except tags that only concern the nested graph itself. */
static trek_status plan_nested(ranks_stepper *s)
{
    const trek_graph *graph = s->replicas[0].graph;
    int most = 0;
    for (int g = 0; g < graph->n_below; g++)
        most += graph->below[g]->layout.n_tags;
    s->nested = trek_calloc((size_t)most, sizeof *s->nested);
    if (!s->nested)
        return trek_error_status();
    for (int g = 0; g < graph->n_below; g++)
        for (int k = 0; k < graph->below[g]->layout.n_tags; k++)
            if (graph->below[g]->layout.tags[k].name[0] != '_')
                s->nested[s->n_nested++] = (ranks_nested_tag){ g, k };
    s->n_nested_outputs = s->n_nested < TREK_MOST_JOINED_TAGS ? s->n_nested : TREK_MOST_JOINED_TAGS;
    return TREK_OK;
}

/* Plans the outputs that forward joins: the graph's output and tagged values. */
static trek_status plan_outputs(ranks_stepper *s)
{
    const trek_graph_layout *l = &s->replicas[0].graph->layout;
    s->n_inputs = l->n_inputs;
    s->n_tags = l->n_tags;
    s->n_outputs = 1;
    s->tag_output = trek_calloc((size_t)s->n_tags, sizeof *s->tag_output);
    s->output_tag = trek_calloc((size_t)s->n_tags + 1, sizeof *s->output_tag);
    if (!s->tag_output || !s->output_tag)
        return trek_error_status();
    for (int k = 0; k < s->n_tags; k++) {
        int value = l->tags[k].value, found = value == l->output ? 0 : -1;
        for (int j = 0; j < k && found < 0; j++)
            if (l->tags[j].value == value && s->tag_output[j] >= 0)
                found = s->tag_output[j];
        bool is_input = false;
        for (int j = 0; j < s->n_inputs && found < 0 && !is_input; j++)
            if ((is_input = l->inputs[j].value == value))
                s->tag_output[k] = ~j;
        if (is_input)
            continue;
        if (found < 0) {
            found = s->n_outputs++;
            s->output_tag[found] = k;
        }
        s->tag_output[k] = found;
    }
    if (s->n_outputs > 64)
        return trek_fail(
            TREK_ERR_UNSUPPORTED,
            "trainer_setup: tags: more than 63; a graph over several ranks can have at most 63 tagged values besides its output");
    return plan_nested(s);
}

static trek_status copy_rank(int rank, void *arg)
{
    ranks_stepper *s = arg;
    for (int k = 0; rank > 0 && s->shared && k < s->replicas[rank].model->n_params; k++)
        trek_tensor_bump(s->replicas[rank].model->params[k]->data); /* the memory is rank 0's */
    trek_status status = take_first(s, rank, TREK_OK);
    return status == TREK_OK ? trek_ranks_follow_teachers(s, rank) : status;
}

/* Joins the other processes of the job: checks that the graphs are the same, and takes process 0's values. */
static trek_status join_processes(ranks_stepper *s, const trek_ranks_opts *opts)
{
    if (!opts->comm)
        return TREK_OK;
    trek_status status = trek_job_sync_begin(s, opts->comm);
    if (status == TREK_OK)
        status = trek_replica_take_first(s->replicas[0].model, s->comm,
                                         (trek_replica_values){ .params = true, .buffers = true, .on_host = s->on_host &&
                                                                !s->mixed }, TREK_OK);
    return status == TREK_OK ? trek_ranks_call(s->ranks, copy_rank, s) : status;
}

/* A rank with its own part of the optimizer's state must be able to read everything that it exchanges. */
static trek_status check_sharers(const ranks_stepper *s)
{
    if (s->sharers > 1 && s->mixed)
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "trainer_setup: .shard_optimizer: set, with ranks on CPUs and on GPUs; they must be of one kind");
    if (s->sharers > 1 && s->comm && s->local_ranks > 1 && !s->shared)
        return trek_fail(TREK_ERR_UNSUPPORTED, "trainer_setup: .shard_optimizer: set, with several ranks in each of several "
                                               "processes, which have parameters of their own; give each rank a process");
    return TREK_OK;
}

/* Returns the options that depend on whether ranks are unequal, which is known now that all have met. */
static trek_workload_opts settled(const ranks_stepper *s, const trek_workload_opts *o)
{
    trek_workload_opts workload = *o;
    workload.unequal |= trek_ranks_devices_differ(s, 0, s->world_size);
    workload.windows |= workload.unequal && o->windows_if_unequal;
    return workload;
}

static trek_status make_workload(ranks_stepper *s, const trek_ranks_opts *opts)
{
    s->watches = trek_stopwatches_new(s->local_ranks);
    s->ms = trek_calloc((size_t)s->world_size, sizeof *s->ms);
    s->units = trek_calloc((size_t)s->world_size, sizeof *s->units);
    s->starved_ms = trek_calloc((size_t)s->world_size, sizeof *s->starved_ms);
    if (opts->slowdowns) {
        trek_slowdown *slowdowns = trek_calloc((size_t)s->local_ranks, sizeof *slowdowns);
        s->slowed_batches = trek_calloc((size_t)s->local_ranks, sizeof *s->slowed_batches);
        if (slowdowns)
            memcpy(slowdowns, opts->slowdowns, (size_t)s->local_ranks * sizeof *slowdowns);
        s->slowdowns = slowdowns;
        if (!slowdowns || !s->slowed_batches)
            return trek_error_status();
    }
    if (!s->watches || !s->ms || !s->units || !s->starved_ms || trek_starvation_begin(&s->starvation, s->world_size) != TREK_OK)
        return trek_error_status();
    s->loader_ns = trek_rank_here.loader_ns; /* of another graph */
    trek_workload_opts workload = settled(s, opts->workload);
    trek_status status = TREK_OK;
    if (s->sites)
        status = trek_site_make(s, &workload);
    else if (!(s->workload = trek_workload_new(s->world_size, &workload)))
        status = trek_error_status();
    if (status != TREK_OK)
        return status;
    trek_job_sync_publish(s);
    return TREK_OK;
}

static void note_kinds(ranks_stepper *s)
{
    for (int r = 0; r < s->local_ranks; r++)
        s->kinds |= 1u << trek_ranks_device(s->ranks, r).type;
    s->on_host = s->kinds == 1u << TREK_CPU;
    s->mixed = (s->kinds & (s->kinds - 1)) != 0;
}

static void free_ranks(trek_stepper *stepper);
static trek_graph *replica(const trek_stepper *stepper, int rank)
{
    const ranks_stepper *s = (const ranks_stepper *)stepper;
    return rank >= 0 && rank < s->local_ranks ? s->replicas[rank].graph : NULL;
}

static const trek_stepper_class ranks_class;

trek_stepper *trek_stepper_ranks_new(trek_ranks *ranks, trek_graph **graphs, const trek_ranks_opts *opts)
{
    int local_ranks = trek_ranks_world_size(ranks);
    ranks_stepper *s = trek_calloc(1, sizeof *s);
    rank_replica *replicas = trek_calloc((size_t)local_ranks, sizeof *replicas);
    if (!s || !replicas) {
        trek_free(s);
        trek_free(replicas);
        for (int r = 1; r < local_ranks; r++)
            trek_graph_free(&graphs[r]);
        trek_ranks_free(&ranks);
        return NULL;
    }
    s->base = (trek_stepper){ &ranks_class, graphs[0] };
    s->ranks = ranks;
    s->local_ranks = local_ranks;
    s->replicas = replicas;
    s->sites = opts->averages && opts->sites && opts->comm;
    s->shared = opts->shared && (!opts->averages || (s->sites && local_ranks > 1));
    s->averages = opts->averages;
    s->grain = opts->grain;
    s->divergence_threshold = opts->divergence_threshold;
    note_kinds(s);
    s->sharers = 1;
    if (opts->shards && (opts->comm || !s->shared))
        s->sharers = opts->comm ? trek_comm_world_size(opts->comm) : local_ranks;
    s->bucket_bytes = opts->bucket_bytes;
    s->overlap = opts->overlap;
    s->grad_norm = NAN;
    s->comm = opts->comm && trek_comm_retain(opts->comm) ? opts->comm : NULL;
    trek_step_reset(&s->step);
    s->processes = 1;
    s->world_size = local_ranks;
    for (int r = 0; r < local_ranks; r++)
        replicas[r].graph = graphs[r];
    trek_status status = trek_ranks_call(ranks, list_rank, s);
    if (status == TREK_OK)
        status = plan_outputs(s);
    if (status == TREK_OK)
        status = move_params(s);
    if (status == TREK_OK)
        status = trek_ranks_plan_reduce(s);
    if (status == TREK_OK)
        status = trek_ranks_plan_shards(s);
    if (status == TREK_OK)
        status = join_processes(s, opts);
    if (status == TREK_OK)
        status = trek_ranks_list_devices(s);
    if (status == TREK_OK)
        status = check_sharers(s);
    if (status == TREK_OK)
        status = s->averages ? trek_average_plan(s) : trek_overlap_plan(s);
    if (status == TREK_OK)
        status = trek_ranks_constants(&s->base);
    if (status == TREK_OK && s->grain > 0)
        status = trek_grains_make(s);
    if (status == TREK_OK)
        status = make_workload(s, opts);
    if (status == TREK_OK)
        return &s->base;
    free_ranks(&s->base);
    return NULL;
}

/* --- the end ---------------------------------------------------------------------------------- */

/* Frees what a rank has made, on its thread. */
static trek_status free_rank(int rank, void *arg)
{
    ranks_stepper *s = arg;
    rank_replica *own = &s->replicas[rank];
    trek_optimizer_free(&own->optimizer);
    trek_reader_free(&own->reader);
    trek_ranks_forget_stash(own);
    trek_free(own->trained);
    trek_grad_scaler_free(&own->scaler);
    trek_reducer_free(&own->reducer);
    trek_free(own->own_chunks);
    trek_free(own->own_sums);
    forget_grads(s, rank);
    trek_arena_free(&own->arena);
    trek_replica_release(own->model);
    if (rank > 0)
        trek_graph_free(&own->graph);
    trek_tape_size(); /* takes back what was freed on other threads */
    return TREK_OK;
}

static void free_ranks(trek_stepper *stepper)
{
    ranks_stepper *s = (ranks_stepper *)stepper;
    if (!trek_forked) {
        trek_overlap_finish(s);
        trek_ranks_call(s->ranks, free_rank, s);
    }
    trek_grains_free(s);
    trek_ranks_forget_before(s);
    trek_free(s->tag_output);
    trek_free(s->output_tag);
    trek_free(s->nested);
    trek_var_release(s->tape_leaf);
    trek_free(s->segment_steps);
    trek_free(s->job_segment_steps);
    trek_free(s->chunks);
    trek_free(s->sums);
    trek_free(s->has);
    trek_free(s->replicas);
    trek_stopwatches_release(s->watches);
    trek_stopwatch_clear(&s->reduce_watch);
    trek_background_free(&s->background);
    trek_site_end(s);
    trek_workload_free(&s->workload);
    trek_free(s->devices);
    trek_free(s->starved_ms);
    trek_starvation_end(&s->starvation);
    trek_free(s->ms);
    trek_free(s->units);
    trek_free((void *)(uintptr_t)s->slowdowns);
    trek_free(s->slowed_batches);
    trek_job_sync_end(s);
    trek_ranks_free(&s->ranks);
    trek_free(s);
}

/* --- calls that reach every replica ----------------------------------------------------------- */

static trek_status zero_grad(trek_stepper *stepper)
{
    ranks_stepper *s = (ranks_stepper *)stepper;
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

static trek_status train(trek_stepper *stepper, const char *path, bool training)
{
    trek_module *module = trek_graph_at(stepper->graph, path);
    return module ? trek_module_train(module, training) : trek_error_status();
}

static trek_status freeze(trek_stepper *stepper, const char *path, bool frozen)
{
    trek_module *module = trek_graph_at(stepper->graph, path);
    return module ? (frozen ? trek_module_freeze : trek_module_thaw)(module) : trek_error_status();
}

static trek_status parameters_changed(trek_stepper *stepper)
{
    ranks_stepper *s = (ranks_stepper *)stepper;
    trek_status status = trek_constants_move(stepper->graph);
    return status == TREK_OK ? trek_ranks_call(s->ranks, copy_rank, s) : status;
}

typedef struct optimizer_call {
    ranks_stepper *s;
    const trek_optimizer_source *source;
    trek_optimizer **made;
} optimizer_call;

static trek_status make_optimizer(int rank, void *arg)
{
    const optimizer_call *c = arg;
    if (rank > 0 && c->s->shared)
        return TREK_OK;
    c->made[rank] = trek_optimizer_make(c->source, c->s->replicas[rank].arena);
    if (!c->made[rank])
        return trek_error_status();
    return c->s->shared && trek_optimizer_is_whole(c->made[rank]) ? trek_optimizer_share(c->made[rank], c->s->local_ranks)
                                                                  : TREK_OK;
}

/* Sets the optimizers of all ranks, or of none. */
static trek_status set_optimizer(trek_stepper *stepper, const trek_optimizer_source *source)
{
    ranks_stepper *s = (ranks_stepper *)stepper;
    if (s->replicas[0].model->n_params == 0)
        return trek_fail(TREK_ERR_ARGUMENT, "graph_set_optimizer: graph: it has no parameters; an optimizer needs some");
    trek_optimizer **made = trek_calloc((size_t)s->local_ranks, sizeof *made);
    if (!made)
        return trek_error_status();
    trek_optimizer_spec spec = trek_optimizer_source_spec(source);
    trek_ranks_cuts *before;
    trek_status status = trek_ranks_cut_for(s, &spec, &before);
    if (status == TREK_OK)
        status = trek_ranks_call(s->ranks, make_optimizer, &(optimizer_call){ s, source, made });
    trek_ranks_cut_end(&before, status == TREK_OK);
    for (int r = 0; r < s->local_ranks; r++) {
        trek_optimizer *old = s->replicas[r].optimizer;
        if (status == TREK_OK)
            s->replicas[r].optimizer = made[r];
        else
            old = made[r];
        trek_optimizer_free(&old);
    }
    if (status == TREK_OK) {
        s->replicas[0].optimizer->behind = &trek_ranks_behind;
        s->replicas[0].optimizer->behind_arg = s;
    }
    trek_free(made);
    return status;
}

static trek_status set_lr(trek_stepper *stepper, double lr)
{
    ranks_stepper *s = (ranks_stepper *)stepper;
    if (!s->replicas[0].optimizer)
        return trek_fail(TREK_ERR_STATE, "graph_set_lr: the graph has no optimizer; call trek_graph_set_optimizer first");
    trek_status status = TREK_OK; /* the first rank's refusal comes before any change */
    for (int r = 0; r < s->local_ranks && status == TREK_OK; r++)
        if (s->replicas[r].optimizer)
            status = trek_optimizer_set_lr(s->replicas[r].optimizer, lr);
    return status;
}

static int world_size(const trek_stepper *stepper) { return ((const ranks_stepper *)stepper)->world_size; }

static int shares(const trek_stepper *stepper, double *list, int capacity)
{
    const ranks_stepper *s = (const ranks_stepper *)stepper;
    for (int r = 0; r < s->world_size && r < capacity; r++)
        list[r] = trek_ranks_shares(s)[r];
    return s->world_size;
}

static double lr(const trek_stepper *stepper)
{
    const ranks_stepper *s = (const ranks_stepper *)stepper;
    return s->replicas[0].optimizer ? trek_optimizer_lr(s->replicas[0].optimizer) : (double)NAN;
}

/* If ranks decide for themselves, all decide the same, so rank 0 is asked. */
static double grad_norm(const trek_stepper *stepper)
{
    const ranks_stepper *s = (const ranks_stepper *)stepper;
    const rank_replica *first = &s->replicas[0];
    return first->optimizer && !s->on_host ? trek_optimizer_grad_norm(first->optimizer) : s->grad_norm;
}
static trek_optimizer *optimizer_of(trek_stepper *stepper) { return ((ranks_stepper *)stepper)->replicas[0].optimizer; }

static trek_status forget_reader(int rank, void *arg)
{
    ranks_stepper *s = arg;
    trek_reader_free(&s->replicas[rank].reader);
    return TREK_OK;
}

/* Readers read ahead on their own threads. */
static void forget_loader(trek_stepper *stepper)
{
    ranks_stepper *s = (ranks_stepper *)stepper;
    bool reads = false;
    for (int r = 0; r < s->local_ranks; r++)
        reads |= s->replicas[r].reader != NULL;
    if (reads && !trek_forked)
        trek_ranks_call(s->ranks, forget_reader, s);
}

static const trek_stepper_class ranks_class = {
    .name = "ranks", .free = free_ranks, .forward = trek_ranks_forward, .backward = trek_ranks_backward,
    .reduce = trek_ranks_reduce, .step = trek_ranks_step, .zero_grad = zero_grad, .train = train, .freeze = freeze,
    .parameters_changed = parameters_changed, .set_optimizer = set_optimizer,
    .set_lr = set_lr, .world_size = world_size, .shares = shares, .lr = lr, .grad_norm = grad_norm, .optimizer = optimizer_of,
    .constants = trek_ranks_constants, .train_batch = trek_site_train_batch, .window = trek_ranks_window,
    .reads_parts = trek_ranks_read_parts,
    .detach = trek_ranks_detach, .replica = replica, .gather_observations = trek_ranks_gather_observations,
    .join_metric = trek_ranks_join_metric, .forget_loader = forget_loader,
    .capture = &trek_ranks_capture,
};

ranks_stepper *trek_graph_ranks(const trek_graph *graph)
{
    trek_stepper *stepper = graph ? graph->stepper : NULL;
    return stepper && stepper->klass == &ranks_class ? (ranks_stepper *)stepper : NULL;
}

trek_graph *trek_graph_replica(trek_graph *graph, int rank)
{
    ranks_stepper *s = trek_graph_ranks(graph);
    return s && rank >= 0 && rank < s->local_ranks ? s->replicas[rank].graph : NULL;
}
