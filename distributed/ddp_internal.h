/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of trek_ddp share. */
#ifndef TREK_DISTRIBUTED_DDP_INTERNAL_H
#define TREK_DISTRIBUTED_DDP_INTERNAL_H

#include "autograd/var_internal.h"
#include "distributed/ddp.h"
#include "distributed/ranks_internal.h"
#include "distributed/replica/replica.h"
#include "distributed/step/reducer.h"
#include "tensor/memory_internal.h"
#include "tensor/tensor_internal.h"

typedef struct trek_ddp_replica {
    trek_module *module;      /* owned with others: see module.owners */
    trek_replica *model;      /* its parts, */
    trek_reducer *reducer;    /* and their gradients; NULL while wrapping or a refresh has failed */
    trek_comm *comm;          /* a handle of its own, or of ddp.ranks; NULL: one rank */
    const trek_rank_collectives
        *sums; /* that its layers make with the other ranks; NULL: none, or the runs of the ranks have them */
    int rank, world_size;
    trek_device device;
    bool all_on_host;         /* no rank is on a GPU */
} trek_ddp_replica;

struct trek_ddp {
    trek_module base;         /* its only child is replica 0's model, which has no name */
    trek_ranks *ranks;        /* NULL: one replica */
    int n;                    /* replicas here */
    trek_ddp_replica *replicas;
    trek_device *devices;     /* [world_size] */
    trek_ddp_opts opts;       /* resolved */
    bool overlap;
};

/* Calls fn for the calling rank's replica; outside a run of several replicas for all of them, on their ranks. */
typedef trek_status (*trek_ddp_fn)(trek_ddp *ddp, int replica, void *arg);
trek_status trek_ddp_call(trek_ddp *ddp, trek_ddp_fn fn, void *arg);
/* For all of them, on their ranks, whatever error the caller has. */
trek_status trek_ddp_call_all(trek_ddp *ddp, trek_ddp_fn fn, void *arg);
/* Train and freeze flags of replica 0 become all replicas'; outside runs. */
void trek_ddp_follow_flags(trek_ddp *ddp);
/* The rank's number of counts, checked: NULL is 1. */
trek_status trek_ddp_count(const double *counts, int replica, double *count);

/* ddp_replica.c: lists a replica, with checks of its own; the thread's error, or STATE where that has failed. */
trek_status trek_ddp_plan(trek_ddp_replica *r, int64_t bucket_bytes);
void trek_ddp_plan_clear(trek_ddp_replica *r);
trek_status trek_ddp_ready(const trek_ddp_replica *r);
/* A collective. */
trek_status trek_ddp_take_first(trek_ddp_replica *r, bool params, bool buffers, trek_status own);

/* ddp_forward.c: the rows of each input divided evenly. */
trek_var *trek_ddp_forward_divided(trek_ddp *ddp, trek_var *const *inputs, int n_inputs);

#endif
