/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of trek_ddp share. */
#ifndef TREK_DISTRIBUTED_DDP_INTERNAL_H
#define TREK_DISTRIBUTED_DDP_INTERNAL_H

#include "autograd/var_internal.h"
#include "distributed/ddp.h"
#include "distributed/ranks_internal.h"
#include "distributed/team/reducer.h"
#include "distributed/team/replica.h"
#include "tensor/memory_internal.h"
#include "tensor/tensor_internal.h"

typedef struct trek_ddp_replica {
    trek_module *module;      /* may have other owners: see module.owners */
    trek_replica *model;      /* its parts, */
    trek_reducer *reducer;    /* and their gradients; NULL while wrapping or a refresh has failed */
    trek_comm *comm;          /* its own handle, or one of ddp.ranks; NULL: one rank */
    const trek_rank_collectives
        *sums; /* sums that its layers make with the other ranks; NULL: none, or the runs of the ranks have them */
    int rank, world_size;
    trek_device device;
    bool all_on_host;         /* no rank is on a GPU */
} trek_ddp_replica;

struct trek_ddp {
    trek_module base;         /* its only child is replica 0's model, which has no name */
    trek_ranks *ranks;        /* NULL: one replica */
    int n;                    /* number of replicas in this process */
    trek_ddp_replica *replicas;
    trek_device *devices;     /* [world_size] */
    trek_ddp_opts opts;       /* with defaults filled in */
    bool overlap;
};

/* Calls fn for the calling rank's replica. Outside a run of several replicas it calls fn for all of them, on their
 * ranks. */
typedef trek_status (*trek_ddp_fn)(trek_ddp *ddp, int replica, void *arg);
trek_status trek_ddp_call(trek_ddp *ddp, trek_ddp_fn fn, void *arg);
/* Calls fn for all replicas, on their ranks, whatever error the caller has. */
trek_status trek_ddp_call_all(trek_ddp *ddp, trek_ddp_fn fn, void *arg);
/* Copies the train and freeze flags of replica 0 to all replicas. Called outside runs. */
void trek_ddp_follow_flags(trek_ddp *ddp);
/* Checks the rank's number in `counts` and returns it; NULL is 1. */
trek_status trek_ddp_count(const double *counts, int replica, double *count);

/* ddp_replica.c: makes and clears the lists of a replica, with its own checks. Fails with the thread's error, or with
 * STATE if that has already failed. */
trek_status trek_ddp_plan(trek_ddp_replica *r, int64_t bucket_bytes);
void trek_ddp_plan_clear(trek_ddp_replica *r);
trek_status trek_ddp_ready(const trek_ddp_replica *r);
/* Takes the values of rank 0. A collective. */
trek_status trek_ddp_take_first(trek_ddp_replica *r, bool params, bool buffers, trek_status own);

/* ddp_forward.c: runs all replicas on evenly divided rows of each input. */
trek_var *trek_ddp_forward_divided(trek_ddp *ddp, trek_var *const *inputs, int n_inputs);

#endif
