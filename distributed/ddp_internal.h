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

/* What wrappers whose processes may die have together (ddp_job.c). */
typedef struct trek_ddp_job trek_ddp_job;

struct trek_ddp {
    trek_module base;         /* its only child is replica 0's model, which has no name */
    trek_ranks *ranks;        /* NULL: one replica */
    int n;                    /* number of replicas in this process */
    trek_ddp_replica *replicas;
    trek_device *devices;     /* [n_devices] of the ranks with which it was made; */
    int *numbers;             /* [n_devices] with a job: the numbers of their processes in it */
    int n_devices;
    trek_ddp_job *job;        /* NULL: the others cannot continue without a process */
    trek_ddp_opts opts;       /* with defaults filled in */
    bool overlap;
};

/* What a call changes before its commit, so that a copy is needed to make the call again. */
enum { TREK_DDP_PARAMS = 1, TREK_DDP_BUFFERS = 2 };

/* Calls fn for the calling rank's replica; outside a run of several replicas, for all of them, on their ranks. If a process dies
 * and the others can continue, each of them restores the values that the call `changes`, and calls fn again. fn ends with
 * trek_ddp_commit; whatever it must not change before all have succeeded, it changes after that. */
typedef trek_status (*trek_ddp_fn)(trek_ddp *ddp, int replica, void *arg);
trek_status trek_ddp_call(trek_ddp *ddp, trek_ddp_fn fn, void *arg, unsigned changes);
/* Calls fn for all replicas, on their ranks, whatever error the caller has. */
trek_status trek_ddp_call_all(trek_ddp *ddp, trek_ddp_fn fn, void *arg);
/* Copies the train and freeze flags of replica 0 to all replicas. Called outside runs. */
void trek_ddp_follow_flags(trek_ddp *ddp);
/* Checks the rank's number in `counts` and returns it; NULL is 1. */
trek_status trek_ddp_count(const double *counts, int replica, double *count);

/* ddp_replica.c: makes and clears the lists of a replica, with its own checks. Fails with the thread's error, or with
 * STATE if that has already failed. */
trek_status trek_ddp_plan(const trek_ddp *ddp, trek_ddp_replica *r);
void trek_ddp_plan_clear(trek_ddp_replica *r);
trek_status trek_ddp_ready(const trek_ddp_replica *r);
/* Takes the values of rank 0. A collective. */
trek_status trek_ddp_take_first(trek_ddp_replica *r, bool params, bool buffers, trek_status own);

/* ddp_job.c: jobs that continue without processes that have died. trek_ddp_job_comm returns the present group of the job to
 * which a communicator belongs, or the communicator itself; _check checks .min_processes and what contradicts it. _begin makes a
 * wrapper of a process belong to its job, as a collective; without .min_processes it does nothing. */
trek_comm *trek_ddp_job_comm(trek_comm *comm);
trek_status trek_ddp_job_check(const trek_ddp *ddp, const trek_comm *comm);
trek_status trek_ddp_job_begin(trek_ddp *ddp);
void trek_ddp_job_leave(trek_ddp *ddp);
/* Returns the present group of a job. */
trek_comm *trek_ddp_job_group(const trek_ddp_job *job);
/* Returns the number of ranks that the program sees, and which of them this is. _device returns the device of one of them; _find
 * returns its rank in the present group, or -1 if it has died. */
int trek_ddp_job_shown(const trek_ddp_job *job, int *rank);
trek_device trek_ddp_job_device(const trek_ddp *ddp, int rank);
int trek_ddp_job_find(const trek_ddp_job *job, int rank);
/* The meeting after which a call changes what it must not change before. Without a job it does nothing. */
trek_status trek_ddp_commit(const trek_ddp *ddp);
/* trek_ddp_call with a job. */
trek_status trek_ddp_outlive(trek_ddp *ddp, trek_ddp_fn fn, void *arg, unsigned changes);

/* ddp_forward.c: runs all replicas on evenly divided rows of each input. */
trek_var *trek_ddp_forward_divided(trek_ddp *ddp, trek_var *const *inputs, int n_inputs);

#endif
