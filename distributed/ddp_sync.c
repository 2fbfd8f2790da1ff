/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters and buffers of all replicas: rank 0's to all, or all ranks' merged. */
#include "distributed/ddp_internal.h"

trek_status trek_ddp_take_first(trek_ddp_replica *r, bool params, bool buffers, trek_status own)
{
    return trek_replica_take_first(r->model, r->comm, (trek_replica_values){ params, buffers, r->all_on_host }, own);
}

/* A wrapper whose refresh failed has no lists. */
trek_status trek_ddp_ready(const trek_ddp_replica *r)
{
    trek_status status = trek_status_get();
    if (status == TREK_OK && !r->words)
        status = trek_fail(TREK_ERR_STATE, "ddp: the replicas could not be listed; see trek_ddp_refresh");
    return status;
}

static trek_status sync_params(trek_ddp *ddp, int k, void *arg)
{
    (void)arg;
    return trek_ddp_take_first(&ddp->replicas[k], true, false, trek_ddp_ready(&ddp->replicas[k]));
}

trek_status trek_ddp_sync_params(trek_ddp *ddp)
{
    if (!ddp)
        return trek_fail_missing("ddp_sync_params", "wrapper");
    return trek_ddp_call(ddp, sync_params, NULL);
}

static trek_status sync_buffers(trek_ddp *ddp, int k, void *arg)
{
    trek_ddp_replica *r = &ddp->replicas[k];
    double count = 0, total = 0;
    trek_status own = trek_ddp_ready(r);
    if (own == TREK_OK)
        own = trek_ddp_count(*(const double *const *)arg, k, &count);
    trek_status status = trek_replica_merge(r->model, r->comm, count, false, &total, own);
    if (status == TREK_OK && !(total > 0))
        status = trek_fail(TREK_ERR_ARGUMENT, "ddp_sync_buffers: the ranks' counts sum to 0"); /* on all ranks */
    return status;
}

trek_status trek_ddp_sync_buffers(trek_ddp *ddp, const double *counts)
{
    if (!ddp)
        return trek_fail_missing("ddp_sync_buffers", "wrapper");
    return trek_ddp_call(ddp, sync_buffers, &counts);
}
