/* SPDX-License-Identifier: Apache-2.0 */
/* trek_trainer_setup: it finds the ranks and makes their replicas, the stepper and the options. */
#include "data/loader_position.h"
#include "distributed/arrivals_state.h"
#include "distributed/comm/init_internal.h"
#include "distributed/memory_plan.h"
#include "distributed/system/system.h"
#include "distributed/trainer_internal.h"
#include "distributed/trainer_ranks.h"
#include "graph/amp.h"
#include "graph/timeline.h"
#include "nn/fp8.h"
#include "nn/module_tree.h"
#include "nn/recompute_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "data/stream.h"
#include "distributed/balance/plan_internal.h"
#include "distributed/job/agreement.h"
#include "distributed/job/job_products.h"
#include "distributed/job/rank_devices.h"
#include "distributed/pass/job_sync.h"
#include "distributed/pass/arrivals.h"
#include "distributed/pass/dry_pass.h"
#include "distributed/pass/shares.h"
#include "distributed/policy/grain_size.h"
#include "distributed/reduce/sharded.h"
#include "distributed/stepper.h"
#include "distributed/team/settings.h"
#include "distributed/team/step.h"
#include "distributed/team/step_policy.h"
#include "graph/batch_run.h"
#include "graph/graph_internal.h"
#include "graph/graph_loader_internal.h"
#include "nn/text.h"
#include "tensor/backend.h"
#include "tensor/environment.h"
#include "tensor/pool.h"
#include "tensor/try_internal.h"

typedef struct setup {
    trek_graph *graph;
    trek_trainer_opts opts;
    int local_ranks;
    trek_device devices[TREK_MAX_RANKS];
    trek_graph *graphs[TREK_MAX_RANKS];
    trek_comm *comm;         /* among processes; NULL: one process */
    trek_optimizer_snapshot *optimizer; /* state of the optimizer that the graph had; NULL: it had none, or kept its stepper */
    bool moved;              /* the graph has another stepper */
    const trek_trainer_run_opts *run; /* NULL: a loop of the program's own */
    bool chooses_grain;      /* the size of grains is measured at the end */
    bool joins;              /* this process joins a job that is at work, when everything has been set up */
    int processes;           /* with which the job began */
    trek_lock building;
} setup;

/* --- which ranks ------------------------------------------------------------------------ */

/* Returns the device of the graph's parameters (or buffers), or `fallback` if it has none. */
static trek_device graph_device(trek_graph *graph, trek_device fallback)
{
    trek_replica_device(trek_graph_module(graph), &fallback);
    return fallback;
}

static trek_status parse_devices(setup *s, const char *list)
{
    s->local_ranks = 0;
    for (const char *at = list;; at++) {
        size_t size = strcspn(at, ",");
        char text[32];
        if (size == 0 || size >= sizeof text)
            return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: TREK_DEVICES=%s: entry %d is not a device such as cpu:1", list,
                             s->local_ranks);
        memcpy(text, at, size);
        text[size] = 0;
        if (s->local_ranks == TREK_MAX_RANKS)
            return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: TREK_DEVICES: more than %d devices", TREK_MAX_RANKS);
        trek_status status = trek_device_parse(text, &s->devices[s->local_ranks]);
        if (status != TREK_OK)
            return status;
        s->local_ranks++;
        at += size;
        if (!*at)
            return TREK_OK;
    }
}

static trek_regroup *regroup_of(const setup *s) { return s->run ? s->run->regroup : NULL; }

/* Finds the other processes of the job. */
static trek_status find_processes(setup *s)
{
    int described = s->opts.comm ? trek_comm_world_size(s->opts.comm) : trek_comm_world_described(NULL);
    if (described < 0)
        return trek_error_status();
    s->processes = described;
    if (described == 1 && !(s->opts.min_processes > 0 && regroup_of(s))) /* a run that is alone by now can be joined */
        return TREK_OK;
    s->joins = !s->opts.comm && s->opts.min_processes > 0 && !regroup_of(s) && trek_comm_init_joins();
    if (s->joins)
        return TREK_OK;
    if (s->opts.comm && trek_comm_retain(s->opts.comm))
        s->comm = s->opts.comm;
    else
        s->comm = trek_comm_init(&(trek_comm_opts){ .deadline_s = s->opts.deadline_s });
    if (!s->comm)
        return trek_error_status();
    bool own = !s->opts.comm || s->opts.deadline_s != 0; /* the program's communicator already has a deadline */
    return own ? trek_comm_set_deadline(s->comm, s->opts.deadline_s) : TREK_OK;
}

/* Of several processes with several GPUs each, local process k uses those from k * ranks on; its graph is on the
 * first of them. */
static trek_status find_gpus_of_process(setup *s, trek_device own, int gpus)
{
    int first = trek_environment_local_rank() * s->local_ranks;
    if (own.index % s->local_ranks != 0 || own.index + s->local_ranks > gpus)
        return trek_fail(TREK_ERR_DEVICE,
                         "trainer_setup: graph: with %d ranks in each process that of local process %d must be built on cuda:%d, "
                         "not on cuda:%d, of %d usable GPUs; or .devices names the devices",
                         s->local_ranks, first / s->local_ranks, first, own.index, gpus);
    for (int r = 1; r < s->local_ranks; r++)
        s->devices[r] = trek_cuda(own.index + r);
    return TREK_OK;
}

/* Finds as many GPUs as ranks were requested, otherwise all if replicas can be made. The graph's own comes first. */
static trek_status find_gpus(setup *s, trek_device own)
{
    int gpus = trek_device_count(TREK_CUDA);
    if (s->opts.ranks == 0 && s->comm) /* each process of a machine has its own GPU: the graph is on it */
        s->local_ranks = 1;
    else if (s->opts.ranks == 0)
        s->local_ranks = s->opts.build_replica && gpus > 1 ? gpus : 1;
    if (s->local_ranks > gpus)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "trainer_setup: .ranks: %d, but there are %d usable GPU%s; .devices can list the same one twice",
                         s->local_ranks, gpus, gpus == 1 ? "" : "s");
    if (s->comm && s->local_ranks > 1)
        return find_gpus_of_process(s, own, gpus);
    for (int r = 1, next = 0; r < s->local_ranks; r++, next++) {
        next += next == own.index;
        s->devices[r] = trek_cuda(next);
    }
    return TREK_OK;
}

static trek_status find_devices(setup *s)
{
    const trek_trainer_opts *o = &s->opts;
    trek_device own = graph_device(s->graph, trek_device_resolve(o->devices &&
                                                                 o->ranks > 0 ? o->devices[0] : (trek_device){ 0 }));
    const char *listed = trek_process_variable("TREK_DEVICES");
    if (o->ranks < 0 || o->ranks > TREK_MAX_RANKS)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .ranks: %d; must be 1 to %d (0: not stated)", o->ranks,
                         TREK_MAX_RANKS);
    if (o->devices && o->ranks == 0)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .devices: set, but .ranks does not say how many there are");
    s->local_ranks = o->ranks > 0 ? o->ranks : 1;
    s->devices[0] = own;
    for (int r = 0; o->devices && r < s->local_ranks; r++)
        s->devices[r] = trek_device_resolve(o->devices[r]);
    if (o->devices)
        return TREK_OK;
    if (o->ranks == 0 && listed && *listed)
        return parse_devices(s, listed);
    if (own.type == TREK_CUDA)
        return find_gpus(s, own);
    for (int r = 1; r < s->local_ranks; r++)
        s->devices[r] = trek_cpu(r);
    return TREK_OK;
}

static trek_status check_devices(setup *s)
{
    char a[16], b[16];
    trek_device own = graph_device(s->graph, s->devices[0]);
    if (!trek_device_equal(own, s->devices[0]))
        return trek_fail(TREK_ERR_DEVICE, "trainer_setup: graph: it is on %s, but rank 0's device is %s; they must be the same",
                         trek_device_name(own, a, sizeof a),
                         trek_device_name(s->devices[0], b, sizeof b));
    for (int r = 0; r < s->local_ranks && s->local_ranks > 1; r++)
        if (s->devices[r].index < 0)
            return trek_fail(TREK_ERR_DEVICE, "trainer_setup: .devices: that of rank %d has index %d; must be 0 or more", r,
                             s->devices[r].index);
    return TREK_OK;
}

static int count_cpus(const setup *s)
{
    int n = 0;
    for (int r = 0; r < s->local_ranks; r++)
        n += s->devices[r].type == TREK_CPU;
    return n;
}

static trek_status check_global_batch(const setup *s)
{
    if (s->opts.global_batch > 0 && !(s->graph->graph_loader && s->graph->graph_loader->loader))
        return trek_fail(
            TREK_ERR_STATE,
            "trainer_setup: .global_batch: it counts batches of the graph's loader; call trek_graph_set_loader first");
    return TREK_OK;
}

static trek_status check_average(const trek_trainer_opts *o)
{
    if (o->average != TREK_AVERAGE_GRADIENTS && o->average != TREK_AVERAGE_PARAMETERS)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .average: %d; must be a value of trek_average", (int)o->average);
    if (o->divergence_threshold != TREK_OFF && !(o->divergence_threshold >= 0))
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .divergence_threshold: %g; must be TREK_OFF, 0 (the default) or more",
                         o->divergence_threshold);
    if (o->average == TREK_AVERAGE_PARAMETERS && o->accumulate > 1)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "trainer_setup: .accumulate: set together with .average of parameters; it accumulates gradients");
    if (o->average == TREK_AVERAGE_PARAMETERS && o->shard != TREK_SHARD_NONE)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .shard: set together with .average of parameters; with it "
                                            "each rank updates a part, without it all of its own");
    return TREK_OK;
}

/* Checks options for unequal ranks that are wrong for any number of ranks, even if they are not used. */
static trek_status check_unequal(const trek_trainer_opts *o)
{
    const trek_speed_hint *hint = &o->speed_hint;
    if (o->max_anchor < TREK_OFF || o->anchor < 0 || o->global_batch < 0 || o->max_batch_diff < 0)
        return trek_fail(
            TREK_ERR_ARGUMENT,
            "trainer_setup: .max_anchor, .anchor, .max_batch_diff, .global_batch: one is negative; must be 0 or more");
    if (o->balance != 0 && o->balance != 1 && o->balance != TREK_OFF)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .balance: %d; must be 0, 1 or TREK_OFF", o->balance);
    if (o->min_share != TREK_ZERO && !(o->min_share >= 0 && o->min_share <= 1))
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .min_share: %g; must be 0 to 1 / ranks", o->min_share);
    if (o->overhead_target != 0 && !(o->overhead_target >= 0.01 && o->overhead_target <= 0.5))
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .overhead_target: %g; must be 0.01 to 0.50", o->overhead_target);
    if (hint->ratio != 0 && !(hint->ratio >= 1 && hint->ratio <= 1e6 && hint->slow_rank >= 0))
        return trek_fail(TREK_ERR_ARGUMENT,
                         "trainer_setup: .speed_hint: rank %d by %g; must be a rank, and a ratio of 1 to 1000000",
                         hint->slow_rank, hint->ratio);
    return TREK_OK;
}

/* Checks fixed shares, and that no other option would change them. */
static trek_status check_shares(const trek_trainer_opts *o)
{
    if (!o->shares && o->n_shares == 0)
        return TREK_OK;
    if (!o->shares || o->n_shares < 1 || o->n_shares > TREK_MAX_RANKS)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .n_shares: %d; must be %s", o->n_shares,
                         o->shares ? "1 to 1024" : "0 without .shares");
    const char *other = o->balance == 1 ? "balance" : o->plan ? "plan" : o->speed_hint.ratio != 0 ? "speed_hint"
        : o->min_share != 0 ? "min_share" : o->overhead_target != 0 ? "overhead_target"
        : o->max_batch_diff != 0 ? "max_batch_diff" : NULL;
    if (other)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .%s: set together with .shares, which are fixed", other);
    return trek_workload_check_shares(o->shares, o->n_shares, o->allow_idle);
}

/* Checks the number of shares when the number of ranks is known. */
static trek_status check_number_of_shares(const setup *s)
{
    int ranks = trek_graph_world_size(s->graph);
    if (!s->opts.shares || s->opts.n_shares == ranks)
        return TREK_OK;
    return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .n_shares: %d; must be the number of the job's ranks, %d",
                     s->opts.n_shares, ranks);
}

/* Checks that no option contradicts grains. */
static trek_status check_grain(const trek_trainer_opts *o)
{
    if (o->grain < 0 && o->grain != TREK_GRAIN)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .grain: %lld; must be TREK_GRAIN, or 0 or more", (long long)o->grain);
    if (!(o->audit >= 0 && o->audit <= 1))
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .audit: %g; must be 0 to 1", o->audit);
    if (o->audit > 0 && o->grain == 0)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .audit: %g, without .grain; only grains are computed again",
                         o->audit);
    if (o->audit_removes && !(o->audit > 0))
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .audit_removes: set, without .audit, which finds who is wrong");
    if (o->digests && o->grain == 0)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .digests: %s, without .grain; only steps in grains have digests",
                         o->digests);
    const char *other = o->average == TREK_AVERAGE_PARAMETERS ? "average" : o->max_anchor > 0 ? "max_anchor"
        : o->global_batch > 0 ? "global_batch" : o->overlap == 1 ? "overlap" : NULL;
    if (o->grain != 0 && other)
        return trek_fail(TREK_ERR_UNSUPPORTED, "trainer_setup: .%s: set together with .grain; they cannot be combined", other);
    return TREK_OK;
}

/* Checks that no option contradicts min_processes. */
static trek_status check_min_processes(const trek_trainer_opts *o)
{
    if (o->min_processes < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .min_processes: %d; must be 0 or more", o->min_processes);
    if (o->min_processes == 0)
        return TREK_OK;
    if (o->grain == 0)
        return trek_fail(TREK_ERR_UNSUPPORTED, "trainer_setup: .min_processes: set without .grain; without grains only a run "
                                               "(trek_trainer_run) can go on without a process");
    if (o->shard > TREK_SHARD_STATE)
        return trek_fail(
            TREK_ERR_UNSUPPORTED,
            "trainer_setup: .min_processes: set together with .shard TREK_SHARD_GRADIENTS or TREK_SHARD_PARAMETERS; a process "
            "that dies takes its part of the gradients with it. TREK_SHARD_STATE keeps each part of the state twice");
    const char *other = o->shares ? "shares" : o->plan ? "plan" : o->speed_hint.ratio != 0 ? "speed_hint" : NULL;
    if (other)
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "trainer_setup: .min_processes: set together with .%s, which is for a fixed number "
                         "of ranks",
                         other);
    return TREK_OK;
}

/* Returns whether the graph's loader reads a stream: it is read in order, so that ranks cannot take windows of it. */
static bool has_stream(const setup *s)
{
    const trek_graph_loader *graph_loader = s->graph->graph_loader;
    return graph_loader && trek_dataset_is_stream(trek_loader_dataset(graph_loader->loader));
}

/* Finds the size of grains where the program leaves it to trek: that of the environment. Otherwise it is measured when everything
 * has been set up; until then a grain is a batch. */
static trek_status begin_grain(setup *s)
{
    if (s->opts.grain != TREK_GRAIN)
        return TREK_OK;
    const trek_graph_loader *graph_loader = s->graph->graph_loader;
    s->opts.grain = trek_process_number("TREK_GRAIN", 1, 1000000000, 0);
    if (s->opts.grain > 0)
        return TREK_OK;
    if (!graph_loader || !graph_loader->loader || !graph_loader->loss || has_stream(s))
        return trek_fail(
            TREK_ERR_STATE,
            "trainer_setup: .grain: TREK_GRAIN, which measures training on a batch; call trek_graph_set_loader, with a "
            "loader that reads no stream, and trek_graph_set_loss first");
    s->chooses_grain = true;
    s->opts.grain = trek_loader_plan(graph_loader->loader)->batch_size;
    return TREK_OK;
}

static trek_status check_budgets(const trek_trainer_opts *o)
{
    if (o->n_memory_budget < 0 || o->n_memory_budget > TREK_MAX_RANKS || (o->memory_budget == NULL) != (o->n_memory_budget == 0))
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .n_memory_budget: %d; must be %s", o->n_memory_budget,
                         o->memory_budget ? "the number of this process's ranks" : "0 without .memory_budget");
    for (int r = 0; r < o->n_memory_budget; r++)
        if (o->memory_budget[r] < 1)
            return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .memory_budget: %lld for rank %d; must be above 0",
                             (long long)o->memory_budget[r], r);
    if (o->memory_budget && o->average == TREK_AVERAGE_PARAMETERS)
        return trek_fail(TREK_ERR_UNSUPPORTED, "trainer_setup: .memory_budget: set together with .average of parameters, whose "
                                               "rounds keep copies that the plan does not know");
    return TREK_OK;
}

static trek_status check_reduce_dtype(const trek_trainer_opts *o)
{
    if (o->reduce_dtype != TREK_F32 && o->reduce_dtype != TREK_BF16)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .reduce_dtype: %s; must be f32 or bf16",
                         trek_dtype_name(o->reduce_dtype));
    const char *other = o->grain != 0 ? "grain, whose sums are exact" : o->average == TREK_AVERAGE_PARAMETERS
        ? "average of parameters, which sends no gradients" : NULL;
    if (o->reduce_dtype != TREK_F32 && other)
        return trek_fail(TREK_ERR_UNSUPPORTED, "trainer_setup: .reduce_dtype: bf16, together with .%s", other);
    return TREK_OK;
}

static trek_status check_activations(const trek_trainer_opts *o)
{
    if (o->activations != 0 && o->activations != TREK_AUTO)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .activations: %d; must be 0 or TREK_AUTO", o->activations);
    if (o->activations != 0 && o->average == TREK_AVERAGE_PARAMETERS)
        return trek_fail(TREK_ERR_UNSUPPORTED, "trainer_setup: .activations: set together with .average of parameters, whose "
                                               "rounds keep copies that the plan does not know");
    return TREK_OK;
}

trek_status trek_trainer_check(const trek_trainer_opts *o)
{
    if (o->accumulate < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .accumulate: %d; must be 0 or more", o->accumulate);
    if (isnan(o->max_grad_norm) || isnan(o->max_grad_value))
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .max_grad_norm, .max_grad_value: one is NaN; must be numbers");
    if (o->bucket_bytes < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .bucket_bytes: %lld; must be 0 or more", (long long)o->bucket_bytes);
    if (o->overlap != 0 && o->overlap != 1 && o->overlap != TREK_OFF)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .overlap: %d; must be 0 (where it helps), 1 or TREK_OFF", o->overlap);
    if (o->share_params != 0 && o->share_params != TREK_OFF)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .share_params: %d; must be 0 or TREK_OFF", o->share_params);
    if (o->deadline_s != TREK_OFF && !(o->deadline_s >= 0 && o->deadline_s <= 1e9))
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .deadline_s: %g; must be TREK_OFF, or 0 (the default) to 10^9",
                         o->deadline_s);
    if ((int)o->shard < TREK_SHARD_NONE || o->shard > TREK_SHARD_PARAMETERS)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .shard: %d; must be a value of trek_shard", (int)o->shard);
    trek_status status = check_budgets(o);
    if (status == TREK_OK)
        status = check_activations(o);
    if (status == TREK_OK)
        status = check_reduce_dtype(o);
    if (status == TREK_OK)
        status = check_unequal(o);
    if (status == TREK_OK)
        status = check_average(o);
    if (status == TREK_OK)
        status = check_grain(o);
    if (status == TREK_OK)
        status = check_min_processes(o);
    if (status == TREK_OK)
        status = check_shares(o);
    return status == TREK_OK && o->optimizer.klass ? trek_optimizer_spec_check(&o->optimizer) : status;
}

/* --- replicas --------------------------------------------------------------------------------- */

static trek_status build_rank(int rank, void *arg)
{
    setup *s = arg;
    if (rank == 0)
        return TREK_OK;
    trek_lock_acquire(&s->building);
    trek_scope scope = trek_scope_begin();
    trek_graph *graph = s->opts.build_replica(s->devices[rank], s->opts.arg);
    trek_scope_end(scope);
    bool again = false;
    for (int r = 0; r < s->local_ranks; r++)
        again |= graph && s->graphs[r] == graph;
    if (!again)
        s->graphs[rank] = graph;
    trek_lock_release(&s->building);
    if (again)
        return trek_fail(
            TREK_ERR_ARGUMENT,
            "trainer_setup: .build_replica: it returned a graph that another rank already has; it must build a new one");
    if (graph)
        return TREK_OK;
    return trek_error_status() != TREK_OK
               ? trek_error_status()
               : trek_fail(TREK_ERR_CALLBACK, "trainer_setup: .build_replica: it returned NULL; it must return a graph");
}

static trek_status build_replicas(setup *s, trek_ranks *ranks)
{
    trek_lock_init(&s->building);
    s->graphs[0] = s->graph;
    trek_status status = trek_ranks_call(ranks, build_rank, s);
    for (int r = 0; r < s->local_ranks && status == TREK_OK; r++)
        status = trek_comm_set_deadline(trek_ranks_comm(ranks, r), s->opts.deadline_s);
    trek_lock_destroy(&s->building);
    return status;
}

/* Sets a plain stepper, so that parameters leave the old one's arena. The optimizer's state is kept for the next
 * stepper. */
static trek_status make_plain(setup *s)
{
    trek_optimizer *optimizer = trek_graph_optimizer(s->graph);
    trek_step *old = trek_graph_ranks(s->graph);
    if (trek_ranks_gather_state(old, trek_error_status(), true) != TREK_OK)
        return trek_error_status();
    if (optimizer)
        s->optimizer = trek_optimizer_snapshot_new(optimizer);
    trek_ranks_forget_state(old);
    if (optimizer && !s->optimizer)
        return trek_error_status();
    trek_stepper *plain = trek_stepper_single_new(s->graph);
    s->moved = plain != NULL;
    return plain ? trek_graph_set_stepper(s->graph, plain) : trek_error_status();
}

/* Takes the optimizer that the graph had, if setup gives it no other or has failed. */
static trek_status take_optimizer(setup *s)
{
    trek_stepper *stepper = s->optimizer ? trek_graph_stepper(s->graph) : NULL;
    return stepper ? stepper->klass->set_optimizer(stepper, &(trek_optimizer_source){ .snapshot = s->optimizer }) : TREK_OK;
}

/* The existing error remains the first one. */
static void put_back(setup *s)
{
    trek_kept_error first;
    trek_error_keep(&first);
    trek_stepper *plain = trek_graph_ranks(s->graph) || s->comm ? trek_stepper_single_new(s->graph) : NULL;
    if (plain)
        trek_graph_set_stepper(s->graph, plain);
    take_optimizer(s);
    trek_recompute_forget(trek_graph_module(s->graph));
    trek_error_clear();
    trek_error_put_back(&first);
}

static trek_status note_meeting(const char *name, trek_module *module, void *meets)
{
    (void)name;
    *(bool *)meets |= module->own->klass->meets_ranks;
    return TREK_OK;
}

static trek_workload_opts workload_opts(const setup *s)
{
    const trek_trainer_opts *o = &s->opts;
    bool unequal = o->speed_hint.ratio > 1, meets = false, may = o->max_anchor == 0 && o->grain == 0 && !has_stream(s);
    trek_module_each(trek_graph_module(s->graph), note_meeting, &meets);
        /* if layers meet, shares are exact but windows are not */
    trek_workload_opts workload = { .unequal = unequal, .balance = o->balance,
                                    .windows = o->max_anchor > 0 || (may && o->global_batch > 0),
                                    .windows_if_unequal = may && !meets && !o->shares && o->shard < TREK_SHARD_GRADIENTS,
                                    .replay = o->plan, .shares = o->shares, .n_shares = o->n_shares };
    workload.balancer = (trek_balancer_opts){ .min_share = o->min_share, .allow_idle = o->allow_idle,
                                              .speed_ratio = o->speed_hint.ratio, .slow_rank = o->speed_hint.slow_rank };
    workload.elche = (trek_elche_opts){ .anchor = o->anchor, .max_anchor = o->max_anchor > 0 ? o->max_anchor : 0,
                                        .overhead_target = o->overhead_target,
                                        .max_batch_diff = o->max_batch_diff, .speed_ratio = o->speed_hint.ratio,
                                        .slow_rank = o->speed_hint.slow_rank };
    const trek_graph_loader *graph_loader = s->graph->graph_loader;
    if (o->global_batch > 0 && graph_loader && graph_loader->loader) {
        int64_t batch = trek_loader_plan(graph_loader->loader)->batch_size;
        workload.elche.global_batches = (o->global_batch + batch / 2) / batch > 0 ? (o->global_batch + batch / 2) / batch : 1;
    }
    return workload;
}

/* Layers with 8-bit products have buffers, which replicas have in common. They are made before buffers are listed. */
static trek_status make_products(setup *s)
{
    bool asked = s->opts.amp.products == TREK_AMP_PRODUCTS_FP8;
    const trek_fp8_opts *fp8 = asked ? &s->opts.amp.fp8 : &s->graph->fp8_opts;
    trek_status status = TREK_OK;
    for (int r = 0; r < s->local_ranks && status == TREK_OK && (asked || s->graph->fp8); r++)
        status = trek_fp8_enable(trek_graph_module(s->graphs[r]), fp8);
    return status;
}

static trek_status make_ranks(setup *s)
{
    if (has_stream(s) && (s->opts.max_anchor > 0 || s->opts.global_batch > 0))
        return trek_fail(TREK_ERR_UNSUPPORTED, "trainer_setup: .max_anchor, .global_batch: set, with a loader over a stream, "
                                               "which is read in order; windows of batches need a dataset");
    if (!s->opts.build_replica && s->local_ranks > 1)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "trainer_setup: .build_replica: NULL, with %d ranks; they need it to make the graph on another device",
                         s->local_ranks);
    trek_ranks *ranks = trek_ranks_new(s->devices, s->local_ranks);
    if (!ranks)
        return trek_error_status();
    trek_status status = build_replicas(s, ranks);
    if (status == TREK_OK)
        status = make_plain(s);
    if (status == TREK_OK)
        status = make_products(s);
    trek_workload_opts workload = workload_opts(s);
    trek_ranks_opts opts = { .shared = s->opts.share_params != TREK_OFF && count_cpus(s) == s->local_ranks,
                             .bucket_bytes = s->opts.bucket_bytes ? s->opts.bucket_bytes : 25 << 20, .workload = &workload,
                             .budgets = s->opts.memory_budget, .reduces_bf16 = s->opts.reduce_dtype == TREK_BF16,
                             .recomputes = s->opts.activations == TREK_AUTO,
                             .comm = s->comm,
                             .overlap = s->opts.grain > 0 ? TREK_OFF : s->opts.overlap,
                             .shards = s->opts.shard >= TREK_SHARD_STATE,
                             .shards_grads = s->opts.shard >= TREK_SHARD_GRADIENTS,
                             .shards_params = s->opts.shard >= TREK_SHARD_PARAMETERS,
                             .twice = s->opts.shard == TREK_SHARD_STATE && s->opts.min_processes > 0, .joins = s->joins,
                             .averages = s->opts.average == TREK_AVERAGE_PARAMETERS,
                             .sites = s->run && s->run->sites, .grain = s->opts.grain,
                             .digests = s->opts.digests, .audit = s->opts.audit, .audit_removes = s->opts.audit_removes,
                             .divergence_threshold = s->opts.divergence_threshold == 0 ? 0.05
                                 : s->opts.divergence_threshold };
    if (status != TREK_OK) {
        for (int r = 1; r < s->local_ranks; r++)
            trek_graph_free(&s->graphs[r]);
        trek_ranks_free(&ranks);
        return status;
    }
    trek_stepper *stepper = trek_stepper_ranks_new(ranks, s->graphs, &opts);
    status = stepper ? trek_graph_set_stepper(s->graph, stepper) : trek_error_status();
    if (status == TREK_OK && s->comm && !s->opts.optimizer.klass)
        status = trek_job_sync_copy_optimizer(trek_graph_ranks(s->graph), s->optimizer);
    return status;
}

/* --- options ------------------------------------------------------------------------------------- */

/* Sets mixed precision, by which passes differ in what they need, before memory is planned. */
static trek_status apply_amp(const setup *s)
{
    const trek_amp_opts *amp = &s->opts.amp;
    bool asked = amp->dtype != TREK_F32 || amp->scaling != 0 || amp->products != TREK_AMP_PRODUCTS_DEFAULT;
    return asked ? trek_graph_set_amp(s->graph, amp) : TREK_OK;
}

/* Options that are not set leave the graph's values. */
static trek_status apply_options(setup *s)
{
    const trek_trainer_opts *o = &s->opts;
    const trek_graph_settings *has = &s->graph->settings;
    trek_status status = o->optimizer.klass ? trek_graph_set_optimizer(s->graph, o->optimizer) : take_optimizer(s);
    if (status == TREK_OK && o->schedule.kind != TREK_SCHEDULE_KIND_NONE)
        status = trek_graph_set_schedule(s->graph, &o->schedule);
    if (status == TREK_OK)
        status = trek_graph_set_clip(s->graph, o->max_grad_norm != 0 ? o->max_grad_norm : has->max_norm,
                                     o->max_grad_value != 0 ? o->max_grad_value : has->max_value);
    s->graph->accumulation.passes = o->accumulate > 0 ? o->accumulate : 1;
    if (status == TREK_OK && o->timeline)
        status = trek_timeline_attach(o->timeline);
    return status;
}

/* Checks that the processes of the job have the same options, and chooses what they are to have in common. A process that has
 * failed before tells the others. */
static trek_status agree_on_options(setup *s, trek_status own)
{
    trek_text text = { 0 };
    trek_step *stepper = trek_graph_ranks(s->graph);
    if (own == TREK_OK)
        trek_settings_describe_setup(stepper->team, &s->opts, &text);
    own = trek_agree(stepper->job.comm, own, "trainer_setup: the options of the processes differ", &text);
    trek_text_clear(&text);
    return own == TREK_OK ? trek_job_products_choose(stepper->job.comm) : own;
}

/* What is recomputed is chosen by measuring a pass. In evaluation there is nothing to choose. */
static trek_status check_measurable(const setup *s)
{
    const trek_graph_loader *graph_loader = s->graph->graph_loader;
    const trek_step *step = trek_graph_ranks(s->graph);
    if (s->opts.activations != TREK_AUTO || !step || trek_dry_pass_can_run(step) || !trek_graph_learns(s->graph))
        return TREK_OK;
    if (!graph_loader || !graph_loader->loader || !graph_loader->loss)
        return trek_fail(TREK_ERR_STATE, "trainer_setup: .activations: TREK_AUTO, which measures training on a batch; call "
                                         "trek_graph_set_loader and trek_graph_set_loss first");
    return trek_fail(TREK_ERR_UNSUPPORTED,
                     "trainer_setup: .activations: TREK_AUTO, with %s, with which a pass cannot be measured",
                     has_stream(s)                 ? "a loader over a stream"
                     : trek_team_meets(step->team) ? "layers that use other ranks"
                                                   : "a graph that carries states");
}

/* Returns the size of the largest grain that may be chosen, or 0 if none is chosen. */
static int64_t largest_grain(const setup *s) { return s->chooses_grain ? trek_grains_largest(s->opts.grain) : 0; }

/* Makes the job able to go on without some of its processes. All processes have agreed on the options. */
static trek_status outlive(setup *s)
{
    int least = s->opts.min_processes;
    if (least > s->processes && !s->joins) /* how many there are when it joins is not known yet */
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .min_processes: %d; must be 0 to %d, the number of processes", least,
                         s->processes);
    if (has_stream(s))
        return trek_fail(TREK_ERR_UNSUPPORTED, "trainer_setup: .min_processes: set, with a loader over a stream, whose samples "
                                               "cannot be read again when the process that had them has died");
    if (!(s->comm || s->joins) || least == 0)
        return TREK_OK;
    trek_step *step = trek_graph_ranks(s->graph);
    if (!step->team->on_host)
        return trek_fail(TREK_ERR_UNSUPPORTED, "trainer_setup: .min_processes: set, with ranks on GPUs, whose exchange does not "
                                               "outlive a process");
    const trek_workload_opts workload = workload_opts(s);
    trek_text options = { 0 };
    trek_settings_describe_program(step->team, &s->opts, &options);
    trek_text_format(&options, "run\t%llu\n", s->run ? (unsigned long long)s->run->program : 0);
    const trek_survivors_opts opts = { .workload = &workload, .least = least, .lent = regroup_of(s),
                                       .program = trek_arrivals_program(s->graph, &options),
                                       .state = s->run ? s->run->state : &trek_arrivals_state,
                                       .deadline_s = s->opts.deadline_s };
    trek_text_clear(&options);
    step->grain_chosen |= s->joins && s->chooses_grain; /* by the others */
    return s->joins ? trek_arrivals_join(step, &opts) : trek_survivors_begin(step, &opts);
}

/* --- the line in the log ----------------------------------------------------------------------------- */

typedef struct inexact {
    trek_text text;
    bool windows;            /* ranks run their own batches, so that layers cannot meet */
} inexact;

static trek_status note_inexact(const char *name, trek_module *module, void *arg)
{
    inexact *i = arg;
    if (module->own->klass->couples_samples || (i->windows && module->own->klass->meets_ranks))
        trek_text_format(&i->text, "%s%s \"%s\"", i->text.length ? ", " : "", trek_module_name(module), name);
    return TREK_OK;
}

/* Writes e.g. "2 CPU ranks with 1 thread each, one copy of the parameters", "3 GPU ranks on cuda:0, cuda:1, cuda:2",
 * or "1 CPU rank with 2 threads and 1 GPU rank on cuda:0, rank 0's parameters after each step". */
static void describe_ranks(const setup *s, trek_text *text)
{
    char device[16];
    int on_cpu = count_cpus(s), on_gpu = s->local_ranks - on_cpu, seen = 0;
    if (on_cpu > 0) {
        int threads = trek_threads_wanted() / s->local_ranks > 1 ? trek_threads_wanted() / s->local_ranks : 1;
        trek_text_format(text, "%d CPU rank%s with %d thread%s%s", on_cpu, on_cpu > 1 ? "s" : "", threads, threads > 1 ? "s" : "",
                         on_cpu > 1 ? " each" : "");
        if (on_gpu == 0)
            trek_text_format(text, ", %s", s->opts.share_params == TREK_OFF ? "parameters of their own"
                             : "one copy of the parameters");
    }
    if (on_gpu > 0)
        trek_text_format(text, "%s%d GPU rank%s on ", on_cpu > 0 ? " and " : "", on_gpu, on_gpu > 1 ? "s" : "");
    for (int r = 0; r < s->local_ranks; r++)
        if (s->devices[r].type != TREK_CPU)
            trek_text_format(text, "%s%s", seen++ ? ", " : "", trek_device_name(s->devices[r], device, sizeof device));
    if (on_cpu > 0 && on_gpu > 0)
        trek_text_format(text, ", rank 0's parameters after each step");
}

/* Writes e.g. "; 3 ranks in 2 processes" or "; windows of 20 batches". */
static void describe_job(const setup *s, trek_text *text)
{
    trek_trainer_workload workload;
    if (trek_trainer_describe(s->graph, &workload) != TREK_OK)
        return;
    if (s->comm)
        trek_text_format(text, "; %d ranks in %d processes", workload.ranks, trek_comm_world_size(s->comm));
    const trek_step *stepper = trek_graph_ranks(s->graph);
    if (stepper && stepper->grain > 0)
        trek_text_format(text, "; grains of %lld samples", (long long)stepper->grain);
    if (stepper && stepper->team->sharers > 1)
        trek_text_format(text, "; the optimizer's state in %d parts%s", stepper->team->sharers,
                         stepper->team->twice ? ", each of them kept twice" : "");
    if (workload.windows)
        trek_text_format(text, "; windows of %lld batches at first, where the loop allows them", (long long)workload.window);
}

/* Explains in the log that ranks on unequal devices get unequal work, unless the program has set their work. */
static void log_unequal(const setup *s)
{
    const trek_trainer_opts *o = &s->opts;
    const trek_step *stepper = trek_graph_ranks(s->graph);
    if (!stepper || !trek_ranks_devices_differ(&stepper->job, 0, stepper->job.world_size))
        return;
    trek_trainer_workload workload = { 0 };
    trek_trainer_describe(s->graph, &workload);
    bool moves = !o->shares && !o->plan && (workload.windows || o->balance != TREK_OFF);
    trek_text text = { 0 };
    trek_ranks_describe_devices(&stepper->job, &text);
    trek_log_message(moves ? TREK_LOG_LEVEL_WARNING : TREK_LOG_LEVEL_INFO, "trainer: devices differ: %s; %s",
                     text.length ? text.data : "",
                     !moves ? "shares are as the program says" : workload.windows ? "windows of batches follow their speeds"
                     : "shares of each batch follow their speeds");
    trek_text_clear(&text);
}

static void log_setup(const setup *s)
{
    char device[16];
    if (s->local_ranks == 1 && !s->comm && s->opts.grain == 0) {
        trek_log_message(TREK_LOG_LEVEL_INFO, "trainer: one rank on %s",
                         trek_device_name(graph_device(s->graph, s->devices[0]), device, sizeof device));
        return;
    }
    if (s->joins) {
        const trek_job *job = &trek_graph_ranks(s->graph)->job;
        trek_log_message(TREK_LOG_LEVEL_INFO, "trainer: this process has joined the job, as process %d of %d, after step %lld",
                         job->process, job->processes, (long long)trek_graph_steps(s->graph));
    }
    if (s->joins || (s->comm && trek_comm_rank(s->comm) > 0))
        return;
    log_unequal(s);
    trek_trainer_workload workload = { 0 };
    trek_trainer_describe(s->graph, &workload);
    inexact found = { .windows = workload.windows };
    trek_text kind = { 0 }, job = { 0 };
    trek_module_each(trek_graph_module(s->graph), note_inexact, &found);
    describe_ranks(s, &kind);
    describe_job(s, &job);
    trek_log_message(TREK_LOG_LEVEL_INFO, "trainer: %s%s; %s%s%s", kind.length ? kind.data : "ranks", job.length ? job.data : "",
                     found.text.length ? "exact but for the statistics of each rank's own part in " : "exact",
                     found.text.length ? found.text.data : "", found.text.length ? " (in training)" : "");
    trek_text_clear(&found.text);
    trek_text_clear(&kind);
    trek_text_clear(&job);
}

/* --- the steps of setting up ----------------------------------------------------------------------------- */

/* Checks the options, and finds this process's ranks and the other processes. */
static trek_status find_ranks(setup *s)
{
    TRY(trek_trainer_check(&s->opts));
    TRY(begin_grain(s));
    TRY(check_global_batch(s));
    TRY(find_processes(s));
    TRY(find_devices(s));
    TRY(check_devices(s));
    if (s->opts.memory_budget && s->opts.n_memory_budget != s->local_ranks)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .n_memory_budget: %d; must be the number of this process's ranks, %d",
                         s->opts.n_memory_budget, s->local_ranks);
    return trek_constants_move(s->graph);
}

/* Makes the stepper that the options ask for; without options for ranks the one that there is stays. */
static trek_status make_stepper(setup *s)
{
    trek_recompute_forget(trek_graph_module(s->graph)); /* what an earlier plan has chosen */
    if (s->local_ranks > 1 || s->comm || s->opts.grain > 0 || s->opts.memory_budget || s->opts.activations == TREK_AUTO)
        return make_ranks(s);
    return trek_graph_ranks(s->graph) ? make_plain(s) : TREK_OK;
}

/* Applies the options, now that the ranks have been made. What is a collective of the job is called whatever happened before. */
static trek_status apply_all(setup *s)
{
    trek_step *step = trek_graph_ranks(s->graph);
    bool planned = step && trek_memory_is_planned(step);
    trek_status status = check_number_of_shares(s);
    if (status == TREK_OK)
        status = apply_amp(s);
    if (status == TREK_OK)
        status = check_measurable(s);
    if (planned)
        status = trek_memory_divide(step, status, largest_grain(s), &s->opts.optimizer);
    if (status == TREK_OK)
        status = apply_options(s);
    if (s->comm)
        status = agree_on_options(s, status);
    if (status != TREK_OK)
        return status;
    if (s->opts.grain > 0)
        status = trek_job_products_fix(s->comm);
    if (status == TREK_OK && s->chooses_grain && !s->joins)
        status = trek_grains_choose(step);
    if (planned)
        status = trek_memory_settle(step, status);
    return status == TREK_OK && s->opts.min_processes > 0 ? outlive(s) : status;
}

trek_status trek_trainer_setup_run(trek_graph *graph, const trek_trainer_opts *opts, const trek_trainer_run_opts *run)
{
    if (!graph)
        return trek_fail_missing("trainer_setup", "graph");
    if (trek_error_status() != TREK_OK)
        return trek_error_status();
    setup *s = trek_calloc(1, sizeof *s);
    if (!s)
        return trek_error_status();
    s->graph = graph;
    s->run = run;
    if (opts)
        s->opts = *opts;
    trek_status status = find_ranks(s);
    if (status == TREK_OK)
        status = make_stepper(s);
    if (status == TREK_OK)
        status = apply_all(s);
    if (status == TREK_OK)
        log_setup(s);
    else if (s->moved)
        put_back(s);
    trek_optimizer_snapshot_free(&s->optimizer);
    trek_comm_free(&s->comm);
    trek_free(s);
    return status;
}

trek_status trek_trainer_setup(trek_graph *graph, const trek_trainer_opts *opts)
{
    return trek_trainer_setup_run(graph, opts, NULL);
}

/* Computes what a process contributes to the mean: {weight x loss, weight}. */
static trek_status part_of_mean(const trek_graph *graph, trek_var *loss, double *part)
{
    if (!loss)
        return trek_fail_missing("trainer_mean", "loss");
    double value = trek_var_item(loss);
    if (trek_error_status() != TREK_OK)
        return trek_error_status();
    part[1] = trek_graph_loss_weight(graph, loss, -1);
    part[0] = part[1] > 0 ? part[1] * value : 0; /* a loss of no samples may be NaN */
    return trek_error_status();
}

/* Adds the parts of all processes. */
static trek_status sum_parts(trek_step *s, trek_status own, const double *part, double *sum)
{
    trek_status status = trek_replica_agree(s->job.comm, own, "trainer_mean");
    if (status == TREK_OK)
        status = trek_comm_run(s->job.comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM,
                                                              .dtype = TREK_F64, .count = 2, .in = part, .out = sum });
    return status == TREK_OK ? trek_survival_commit(&s->job, s->team->graph->settings.steps) : status;
}

double trek_trainer_mean(trek_graph *graph, trek_var *loss)
{
    if (!graph) {
        trek_fail_missing("trainer_mean", "graph");
        return NAN;
    }
    double part[2] = { 0 }, sum[2];
    trek_step *s = trek_graph_ranks(graph);
    trek_status own = part_of_mean(graph, loss, part), status;
    if (!s || !s->job.comm)
        return own == TREK_OK && part[1] > 0 ? trek_var_item(loss) : own == TREK_OK ? 0 : (double)NAN;
    do
        status = sum_parts(s, own, part, sum);
    while (status != TREK_OK && trek_survivors_go_on(s, &status));
    if (status == TREK_OK)
        status = trek_survivors_after_commit(s);
    return status != TREK_OK ? (double)NAN : sum[1] > 0 ? sum[0] / sum[1] : 0;
}

trek_status trek_trainer_describe(trek_graph *graph, trek_trainer_workload *workload)
{
    if (!graph || !workload)
        return trek_fail_missing("trainer_describe", graph ? "workload" : "graph");
    const trek_step *s = trek_graph_ranks(graph);
    *workload = (trek_trainer_workload){ .ranks = 1, .local_ranks = 1, .costly = -1 };
    if (!s)
        return trek_error_status();
    trek_workload_state state;
    trek_workload_describe(s->pace.workload, &state);
    *workload = (trek_trainer_workload){ .ranks = s->job.world_size,
                                         .rank = s->job.first_rank,
                                         .local_ranks = s->job.local_ranks,
                                         .windows = state.windows,
                                         .anchor = state.anchor,
                                         .window = trek_workload_window(s->pace.workload),
                                         .predicted = state.predicted,
                                         .achieved = state.achieved,
                                         .costly = state.costly };
    return trek_error_status();
}

int trek_trainer_throughput(trek_graph *graph, double *samples_per_s, int capacity)
{
    const trek_step *s = graph ? trek_graph_ranks(graph) : NULL;
    if (!graph)
        return trek_fail_missing("trainer_throughput", "graph"), 0;
    int n = s && trek_workload_measures(s->pace.workload) ? trek_ranks_sites(s) : 0;
    double samples =
        n && trek_workload_window(s->pace.workload) > 0 ? (double)trek_loader_plan(graph->graph_loader->loader)->batch_size : 1;
    for (int r = 0; samples_per_s && r < n && r < capacity; r++)
        samples_per_s[r] = 1000 * samples * trek_workload_throughput(s->pace.workload, r);
    return n;
}

int trek_trainer_counts(trek_graph *graph, int64_t *counts, int capacity)
{
    const trek_step *s = trek_graph_ranks(graph);
    int64_t window = s ? trek_workload_window(s->pace.workload) : 0, all[TREK_MAX_RANKS];
    if (window == 0 || trek_workload_counts(s->pace.workload, window, all) != TREK_OK)
        return 0;
    int n = trek_ranks_sites(s);
    for (int r = 0; r < n && r < capacity; r++)
        counts[r] = all[r];
    return n;
}

trek_plan *trek_trainer_plan(trek_graph *graph)
{
    const trek_step *s = trek_graph_ranks(graph);
    return s ? trek_plan_copy(trek_workload_plan(s->pace.workload)) : NULL;
}
