/* SPDX-License-Identifier: Apache-2.0 */
/* A step is made in this order: the team, by itself; then, with the other processes, equal values; then what depends on who
 * trains together: the policy's own record, constants, and the workload. */
#include "distributed/make_step.h"

#include <math.h>
#include <stdio.h>

#include "autograd/var_internal.h"
#include "distributed/comm/nccl.h"
#include "distributed/comm/nested.h"
#include "distributed/comm/shared/lent.h"
#include "distributed/grains/digests.h"
#include "distributed/grains/grains.h"
#include "distributed/job/rank_devices.h"
#include "distributed/pass/division.h"
#include "distributed/pass/job_sync.h"
#include "distributed/pass/shares.h"
#include "distributed/pass/survivors.h"
#include "distributed/policy/policies.h"
#include "distributed/reduce/reduce.h"
#include "distributed/reduce/sharded.h"
#include "distributed/reduce/twice.h"
#include "distributed/rounds/site.h"
#include "distributed/team/constants.h"
#include "distributed/team/divided.h"
#include "distributed/team/low_sums.h"
#include "tensor/cores.h"
#include "tensor/pages.h"
#include "tensor/print.h"
#include "tensor/try_internal.h"

static trek_status copy_rank(int rank, void *arg)
{
    const trek_step *s = arg;
    const rank_replica *own = &s->team->replicas[rank];
    for (int k = 0; rank > 0 && s->team->shared && k < own->model->n_params; k++)
        trek_tensor_bump(own->model->params[k]->data); /* the memory is rank 0's */
    trek_status status = trek_team_take_first(s->team, rank, TREK_OK);
    return status == TREK_OK ? trek_ranks_follow_teachers(s->team, rank) : status;
}

trek_status trek_step_copy_first(trek_step *s)
{
    bool meets = s->team->lent && s->job.survival;
    trek_status status;
    do {
        status = trek_divided_take_written(s->team, s->job.comm);
        if (status == TREK_OK && meets)
            status = trek_survival_commit(&s->job);
    } while (status != TREK_OK && trek_survival_go_on(&s->job, &status));
    if (status == TREK_OK) {
        trek_divided_forget_written(s->team);
        status = trek_ranks_call(s->team->ranks, copy_rank, s);
    }
    return status == TREK_OK && meets ? trek_survivors_after_commit(s) : status;
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
    if (status == TREK_OK)
        status = trek_step_copy_first(s);
    return status == TREK_OK ? trek_comm_settle(s->job.comm) : status; /* the program's parameters are those of process 0 now */
}

/* A rank with its own part of the optimizer's state must be able to read everything that it exchanges. */
static trek_status check_sharers(const trek_step *s)
{
    if (s->team->twice && trek_job_has_others(&s->job) && s->team->local_ranks > 1 && !s->team->shared)
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "trainer_setup: .shard: set, with several %s in each of several processes, which have parameters of "
                         "their own (.min_processes); give each rank a process", s->team->on_host ? "ranks" : "GPUs");
    return TREK_OK;
}

/* Returns whether the memory of all devices can come and go in pages; why: which cannot. */
static bool find_pages(const trek_step *s, char *why, size_t size)
{
    char reason[200];
    for (int r = 0; r < s->team->local_ranks; r++) {
        trek_device device = trek_ranks_device(s->team->ranks, r);
        char name[16];
        if (trek_pages_size(device, reason, sizeof reason) > 0)
            continue;
        snprintf(why, size, "rank %d on %s, whose memory cannot be given back in pieces: %s; TREK_SHARD_STATE is for all devices",
                 s->job.first_rank + r, trek_device_name(device, name, sizeof name), reason);
        return false;
    }
    snprintf(why, size, "a GPU of another process, whose memory cannot be given back in pieces");
    return s->team->page > 0;
}

/* Gradients are divided while backward runs, in one order on all ranks. */
static trek_status check_divided_grads(const trek_step *s, bool params)
{
    const char *why = NULL;
    char text[300];
    if (s->team->sharers > 1 && !s->team->divides_grads && !s->team->shared && !find_pages(s, text, sizeof text))
        why = text;
    else if (s->team->shared)
        why = "ranks that share their parameters and add their gradients to each other's; set .share_params to TREK_OFF, or give "
              "each rank a process";
    else if (trek_team_meets(s->team))
        why = "layers that use the samples of other ranks (synchronised batch norm) and exchange them during backward, too";
    else if (s->grain > 0 && s->grains->audit > 0)
        why = "audits of grains (.audit), which compare whole gradients";
    else if (s->grain > 0 && s->grains->digests->of_grains)
        why = "a file of digests (.digests), which has those of the whole gradients of each grain";
    else if ((params || s->grain > 0) && s->job.processes > 1 && !trek_lent_is_possible(s->job.comm))
        why = "processes without a control channel, by which they could reach each other's memory; start them by trek-run";
    return why ? trek_fail(TREK_ERR_UNSUPPORTED, "trainer_setup: .shard: TREK_SHARD_%s, with %s",
                           params ? "PARAMETERS" : "GRADIENTS", why) : TREK_OK;
}

/* Makes room for gradients that travel as bf16, which counts in the plan of memory. Rank 0 sends for its process. */
static trek_status make_low_sums(const trek_step *s)
{
    const trek_arena *arena = s->team->replicas[0].arena;
    if (trek_job_is_alone(&s->job))
        return TREK_OK;
    const char *why = !s->team->on_host || s->job.mixed ? "ranks on GPUs, whose libraries add bf16 in bf16"
        : s->carriers ? "several ranks in a process that divide the state (.shard) among all"
        : !s->job.comm->engine->adds_bf16 ? "an engine that sends sums of 16 bits as f32" : NULL;
    if (why)
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "trainer_setup: .reduce_dtype: bf16, with %s (%s); it is for shared memory and Gloo", why,
                         s->job.comm->engine->name);
    int64_t most = s->team->bucket_bytes / 4;
    for (int k = 0; k < arena->n_segments; k++)
        most = arena->segments[k].count > most ? arena->segments[k].count : most;
    most += 2 * arena->unit * arena->sharers; /* where buckets are cut */
    s->team->replicas[0].reducer->low = trek_low_sums_new(s->job.comm, most);
    return s->team->replicas[0].reducer->low ? TREK_OK : trek_error_status();
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
    if (status == TREK_OK && s->team->divides_grads && trek_workload_window(s->pace.workload) > 0)
        status = trek_fail(TREK_ERR_UNSUPPORTED,
                           "trainer_setup: .shard: TREK_SHARD_%s, with windows (.max_anchor, .global_batch, "
                           ".plan), in which each rank adds up gradients of its own",
                           opts->shards_params ? "PARAMETERS" : "GRADIENTS");
    if (status != TREK_OK)
        return status;
    trek_division_publish(s);
    return TREK_OK;
}

/* Copying takes a core: it helps if the ranks leave one idle, or have to wait for memory that is far away. GPUs copy by
 * themselves. */
static bool gathers_ahead(const trek_step *s, int overlap)
{
    if (!s->team->on_host)
        return overlap != TREK_OFF;
    bool idle = trek_job_is_alone(&s->job) && trek_threads_wanted() + s->team->local_ranks <= trek_cores();
    return overlap == 1 || (overlap == 0 && idle);
}

/* Makes what needs the team and the other processes. */
static trek_status make_parts(trek_step *s, const trek_ranks_opts *opts)
{
    TRY(trek_ranks_plan_shards(s));
    TRY(join_processes(s));
    TRY(trek_ranks_list_devices(&s->job, s->team->ranks));
    TRY(check_sharers(s));
    TRY(trek_ranks_constants(s->team, &s->job));
    if (opts->reduces_bf16)
        TRY(make_low_sums(s));
    TRY(s->policy->make(s, opts));
    if (opts->shards_grads && (s->job.world_size > 1 || s->team->twice))
        TRY(check_divided_grads(s, opts->shards_params));
    if (s->grains)
        TRY(trek_grain_sums_lend(s));
    TRY(make_workload(s, opts));
    s->team->gathers_ahead = s->team->divides_params && gathers_ahead(s, opts->overlap);
    return !s->team->divides_params ? TREK_OK
        : trek_divided_begin(s->team, s->job.processes > 1 ? s->job.comm : NULL, opts->joins);
}

/* What a process says of those who divide something. */
typedef struct sharers_here {
    int32_t n;               /* all its ranks, if these have parameters of their own */
    int32_t page;            /* the size of the largest page of their devices; 0: some device has none */
    int32_t gpus;            /* whether all its ranks are on GPUs */
} sharers_here;

static sharers_here describe_sharers(const trek_ranks *ranks, bool apart)
{
    sharers_here own = { .n = apart ? trek_ranks_world_size(ranks) : 1, .page = INT32_MAX, .gpus = true };
    size_t most = 0;
    for (int r = 0; r < trek_ranks_world_size(ranks); r++) {
        size_t page = trek_pages_size(trek_ranks_device(ranks, r), NULL, 0);
        own.gpus &= trek_ranks_device(ranks, r).type != TREK_CPU;
        most = page > most ? page : most;
        own.page = page == 0 ? 0 : own.page;
    }
    own.page = own.page ? (int32_t)most : 0;
    return own;
}

/* Finds out how many sharers each process has, their number, the size of the largest page (0: some have none), and whether all
 * are on GPUs (own->gpus). */
static trek_status count_sharers(const trek_ranks_opts *opts, sharers_here *own, int *counts, trek_team_opts *of)
{
    sharers_here all[TREK_MAX_RANKS] = { *own };
    trek_status status = opts->comm ? trek_comm_gather_bytes(opts->comm, own, sizeof *own, all) : TREK_OK;
    of->page = (size_t)own->page;
    for (int p = 0, sharers = 0; p < trek_comm_world_size(opts->comm) && status == TREK_OK; p++) {
        counts[p] = all[p].n;
        of->sharers = sharers += counts[p];
        own->gpus &= all[p].gpus;
        size_t page = (size_t)all[p].page;
        of->page = page == 0 || of->page == 0 ? 0 : page > of->page ? page : of->page;
    }
    return status;
}

static trek_status join_gpu(int rank, void *arg)
{
    const trek_step *s = arg;
    return trek_comm_nccl_join(s->carriers[rank], trek_ranks_device(s->team->ranks, rank));
}

/* Lets all ranks of the job exchange what they divide. gpus: all are on GPUs, in every process. */
static trek_status join_ranks(trek_step *s, const int *counts, bool gpus)
{
    trek_comm *local[TREK_MAX_RANKS];
    int n = counts[s->job.process];
    for (int r = 0; r < n; r++)
        local[r] = trek_ranks_comm(s->team->ranks, r);
    s->carriers = trek_calloc((size_t)n, sizeof(trek_comm *));
    trek_status status = s->carriers ? trek_comm_nested(local, s->job.comm, counts, s->carriers) : TREK_ERR_MEMORY;
    if (status != TREK_OK) {
        trek_free(s->carriers);
        s->carriers = NULL;
    }
    return status == TREK_OK && gpus ? trek_ranks_call(s->team->ranks, join_gpu, s) : status;
}

static const trek_step_policy *find_policy(const trek_ranks_opts *opts)
{
#define ADDRESS(name) &trek_##name##_policy,
    static const trek_step_policy *const policies[] = { TREK_STEP_POLICIES(ADDRESS) };
#undef ADDRESS
    int k = 0;
    while (!policies[k]->wanted(opts)) /* the last one always is */
        k++;
    return policies[k];
}

trek_status trek_step_make(trek_step *s, trek_team *team, trek_ranks *ranks, trek_graph **graphs, const trek_ranks_opts *opts)
{
    int local_ranks = trek_ranks_world_size(ranks);
    bool sites = opts->averages && opts->sites && opts->comm;
    trek_team_opts of = { .shared = opts->shared && (!opts->averages || (sites && local_ranks > 1)), .sharers = 1,
                          .bucket_bytes = opts->bucket_bytes, .budgets = opts->budgets, .recomputes = opts->recomputes,
                          .host_budget = opts->host_budget, .comm = opts->comm };
    of.shared &= !opts->shards_grads || local_ranks > 1; /* a rank that is alone shares with nobody */
    bool shards = opts->shards && (opts->comm || !of.shared);
    int counts[TREK_MAX_RANKS] = { 0 };
    sharers_here here = describe_sharers(ranks, shards && !of.shared && !opts->twice);
    trek_status status = count_sharers(opts, &here, counts, &of);
    of.sharers = shards && status == TREK_OK ? of.sharers : 1;
    of.twice = opts->twice && (opts->comm || opts->joins);
    of.sharers = of.twice && of.sharers < 2 ? 2 : of.sharers;
    of.divides_grads = opts->shards_grads && of.sharers > 1 && !of.shared && of.page > 0;
    of.divides_params = opts->shards_params && of.divides_grads;
    s->team = team;
    s->policy = find_policy(opts);
    s->pace.sites = sites;
    s->overlap.asked = opts->overlap;
    s->grad_norm = NAN;
    s->stops = true;
    trek_ranks_begin(s);
    trek_status begun = trek_team_begin(team, ranks, graphs, &of);
    status = status == TREK_OK ? begun : status;
    if (status == TREK_OK && of.twice)
        status = trek_twice_begin(s, opts->joins, opts->comm && trek_comm_world_size(opts->comm) == 1);
    trek_job_begin(&s->job, opts->comm, local_ranks, team->kinds);
    s->job.outlives = opts->outlives;
    if (status == TREK_OK && opts->comm && !of.twice && of.sharers > s->job.processes)
        status = join_ranks(s, counts, here.gpus);
    return status == TREK_OK ? make_parts(s, opts) : status;
}

void trek_step_end(trek_step *s)
{
    s->policy->end(s);
    trek_pace_end(s);
    trek_job_sync_end(s);
    trek_twice_end(s);
    trek_team_end(s->team);
    for (int r = 0; s->carriers && r < s->job.local_ranks; r++)
        trek_comm_free(&s->carriers[r]);
    trek_free(s->carriers);
    s->carriers = NULL;
    trek_job_end(&s->job);
}
