/* SPDX-License-Identifier: Apache-2.0 */
/* The replicas of a wrapper: runs on them, their lists, and the values of parameters and buffers, which all take from
 * rank 0 or merge. */
#include "distributed/ddp_internal.h"

#include <math.h>

#include "distributed/team/rank_sums.h"

/* --- runs ------------------------------------------------------------------------------------------- */

typedef struct ddp_run {
    trek_ddp *ddp;
    trek_ddp_fn fn;
    void *arg;
} ddp_run;

static trek_status run_rank(int rank, void *arg)
{
    const ddp_run *c = arg;
    return c->fn(c->ddp, rank, c->arg);
}

trek_status trek_ddp_call_all(trek_ddp *ddp, trek_ddp_fn fn, void *arg)
{
    return trek_ranks_call(ddp->ranks, run_rank, &(ddp_run){ ddp, fn, arg });
}

trek_status trek_ddp_call(trek_ddp *ddp, trek_ddp_fn fn, void *arg, unsigned changes)
{
    if (!ddp->ranks)
        return ddp->job ? trek_ddp_outlive(ddp, fn, arg, changes) : fn(ddp, 0, arg);
    int here = trek_ranks_rank_here(ddp->ranks);
    if (here >= 0)
        return fn(ddp, here, arg);
    trek_status status = trek_error_status();
    if (status != TREK_OK)
        return status;
    trek_ddp_follow_flags(ddp);
    return trek_ddp_call_all(ddp, fn, arg);
}

void trek_ddp_follow_flags(trek_ddp *ddp)
{
    for (int r = 1; r < ddp->n; r++)
        trek_replica_follow_flags(ddp->replicas[r].model, ddp->replicas[0].model);
}

trek_status trek_ddp_count(const double *counts, int replica, double *count)
{
    *count = counts ? counts[replica] : 1;
    if (*count >= 0 && isfinite(*count))
        return TREK_OK;
    trek_fail(TREK_ERR_ARGUMENT, "ddp_backward_weighted: count: %g; must be finite and at least 0", *count);
    *count = 0;
    return TREK_ERR_ARGUMENT;
}

/* --- listing ---------------------------------------------------------------------------------------- */

static trek_status check_entry(const trek_ddp_replica *r, const char *name, const trek_var *var)
{
    if (!trek_device_equal(var->data->device, r->device)) {
        char a[16], b[16];
        return trek_fail(TREK_ERR_DEVICE,
                         "ddp_wrap: models: \"%s\" is on %s, the rest of the replica on %s; must be on one device", name,
                         trek_device_name(var->data->device, a, sizeof a), trek_device_name(r->device, b, sizeof b));
    }
    return var->data->contiguous ? TREK_OK
                                 : trek_fail(TREK_ERR_ARGUMENT, "ddp_wrap: models: \"%s\" is not contiguous; must be", name);
}

static trek_status check_entries(const trek_ddp_replica *r)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < r->model->n_params && status == TREK_OK; k++)
        status = check_entry(r, r->model->param_names[k], r->model->params[k]);
    for (int k = 0; k < r->model->n_buffers && status == TREK_OK; k++)
        status = check_entry(r, r->model->buffer_names[k], r->model->buffers[k]);
    return status;
}

trek_status trek_ddp_plan(const trek_ddp *ddp, trek_ddp_replica *r)
{
    r->model = trek_replica_new(r->module);
    trek_status status = r->model ? check_entries(r) : trek_error_status();
    trek_params *params = status == TREK_OK ? trek_module_params(r->module) : NULL;
    r->reducer = params ? trek_reducer_of_params(params, r->device, ddp->opts.bucket_bytes, r->comm) : NULL;
    if (r->reducer)
        r->reducer->apart = ddp->opts.min_processes > 0; /* it may have to send them again */
    if (r->reducer && trek_reducer_make_room(r->reducer, r->world_size) == TREK_OK)
        return TREK_OK;
    trek_ddp_plan_clear(r);
    return status != TREK_OK ? status : trek_error_status();
}

void trek_ddp_plan_clear(trek_ddp_replica *r)
{
    trek_reducer_free(&r->reducer);
    if (r->sums)
        trek_replica_bind(r->model, NULL);
    trek_comm_sums_end(r->sums);
    trek_replica_release(r->model);
    r->sums = NULL;
    r->model = NULL;
}

trek_status trek_ddp_ready(const trek_ddp_replica *r)
{
    trek_status status = trek_error_status();
    if (status == TREK_OK && !r->reducer)
        status = trek_fail(TREK_ERR_STATE, "ddp: the replicas' parameters could not be listed; call trek_ddp_refresh");
    return status;
}

/* --- values ---------------------------------------------------------------------------------------- */

trek_status trek_ddp_take_first(trek_ddp_replica *r, bool params, bool buffers, trek_status own)
{
    return trek_replica_take_first(r->model, r->comm, (trek_replica_values){ params, buffers, r->all_on_host, 0 }, own);
}

typedef struct syncing {
    int root;                /* of the ranks that the program sees */
    bool any;                /* without it the first one of those that are left */
} syncing;

/* Finds the root in the group that makes the call. */
static trek_status find_root(const trek_ddp *ddp, const syncing *c, int *root)
{
    int own, world = ddp->job ? trek_ddp_job_shown(ddp->job, &own) : ddp->replicas[0].world_size;
    *root = c->root;
    if (c->root < 0 || c->root >= world)
        return trek_fail(TREK_ERR_ARGUMENT, "ddp_sync_params_from: root: rank %d; must be 0 to %d", c->root, world - 1);
    if (!ddp->job)
        return TREK_OK;
    *root = trek_ddp_job_find(ddp->job, c->root);
    if (*root >= 0)
        return TREK_OK;
    *root = 0;
    return c->any ? TREK_OK : trek_fail(TREK_ERR_PEER, "ddp_sync_params_from: root: rank %d, which has died", c->root);
}

/* A rank that gives an invalid root still meets the others, so that they learn of it. */
static trek_status sync_params(trek_ddp *ddp, int k, void *arg)
{
    trek_ddp_replica *r = &ddp->replicas[k];
    int root = 0;
    trek_status own = trek_ddp_ready(r);
    if (own == TREK_OK)
        own = find_root(ddp, arg, &root);
    own = trek_replica_take_first(r->model, r->comm, (trek_replica_values){ true, false, r->all_on_host, root }, own);
    return own == TREK_OK ? trek_ddp_commit(ddp) : own;
}

static trek_status sync_from(trek_ddp *ddp, syncing call)
{
    if (!ddp)
        return trek_fail_missing("ddp_sync_params", "wrapper");
    return trek_ddp_call(ddp, sync_params, &call, TREK_DDP_PARAMS);
}

trek_status trek_ddp_sync_params_from(trek_ddp *ddp, int root) { return sync_from(ddp, (syncing){ root, false }); }
trek_status trek_ddp_sync_params(trek_ddp *ddp) { return sync_from(ddp, (syncing){ 0, true }); }

static trek_status sync_buffers(trek_ddp *ddp, int k, void *arg)
{
    trek_ddp_replica *r = &ddp->replicas[k];
    double count = 0, total = 0;
    trek_status own = trek_ddp_ready(r);
    if (own == TREK_OK)
        own = trek_ddp_count(*(const double *const *)arg, k, &count);
    trek_status status = trek_replica_merge(r->model, r->comm, count, false, &total, own);
    if (status == TREK_OK && !(total > 0))
        status =
            trek_fail(TREK_ERR_ARGUMENT,
                      "ddp_sync_buffers: count: the sum over all ranks is 0; at least one must be above 0"); /* on all ranks */
    return status == TREK_OK ? trek_ddp_commit(ddp) : status;
}

trek_status trek_ddp_sync_buffers(trek_ddp *ddp, const double *counts)
{
    if (!ddp)
        return trek_fail_missing("ddp_sync_buffers", "wrapper");
    return trek_ddp_call(ddp, sync_buffers, &counts, TREK_DDP_BUFFERS);
}
