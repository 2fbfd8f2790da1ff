/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of trek_ddp share. */
#ifndef TREK_DISTRIBUTED_DDP_INTERNAL_H
#define TREK_DISTRIBUTED_DDP_INTERNAL_H

#include "autograd/var_internal.h"
#include "distributed/ddp.h"
#include "distributed/ranks_internal.h"
#include "distributed/replica/replica.h"
#include "distributed/step/buckets.h"
#include "tensor/backend.h"
#include "tensor/memory_internal.h"
#include "tensor/tensor_internal.h"

/* Parameters stand in the order of an arena (optim/arena.h): dtype by dtype, last registered first, in
 * slots of 256 bytes. So gradients that an optimizer over all of them has moved lie as they are sent. */
typedef struct trek_ddp_param {
    trek_var *var;            /* borrowed of the list, as the next */
    const char *name;
    int part;
    int64_t offset, count;    /* elements, in its part */
    trek_var *spare;          /* what becomes its gradient, where it has none of its own; NULL: none */
    trek_tensor *slot;        /* its place in the part's staging; NULL: none */
} trek_ddp_param;

typedef struct trek_ddp_part {
    trek_dtype dtype, wide;   /* of parameters; of what is sent: F32 for 16-bit ones */
    int64_t count;
    trek_tensor *staging;     /* for gradients that lie elsewhere; NULL: none needed so far */
} trek_ddp_part;

/* What a rank tells the others before a reduction; flags of all parameters follow. */
typedef struct trek_ddp_word {
    double weight;
    int32_t status, unused;
} trek_ddp_word;
enum { TREK_DDP_HAS = 1, TREK_DDP_TRAINS = 2 };

typedef struct trek_ddp_replica {
    trek_module *module;      /* owned with others: see module.owners */
    trek_replica *model;      /* its parts; NULL while wrapping or a refresh has failed */
    trek_comm *comm;          /* a handle of its own, or of ddp.ranks; NULL: one rank */
    const trek_place_collectives
        *sums; /* that its layers make with the other ranks; NULL: none, or the runs of the ranks have them */
    int rank, world;
    trek_device device;
    bool all_on_host;         /* no rank is on a GPU */
    const trek_backend *backend;
    int n_params, n_parts;
    trek_ddp_param *params;
    trek_var **leaves;        /* [n_params] params[k].var */
    trek_ddp_part parts[TREK_DTYPE_COUNT];
    trek_buckets buckets;     /* an item for each of params */
    size_t word_bytes;
    char *word, *words;       /* this rank's; all ranks' */
    bool *any;                /* [n_params] some rank that counts has a gradient */
} trek_ddp_replica;

struct trek_ddp {
    trek_module base;         /* its only child is replica 0's model, which has no name */
    trek_ranks *ranks;        /* NULL: one replica */
    int n;                    /* replicas here */
    trek_ddp_replica *replicas;
    trek_device *devices;     /* [world] */
    trek_ddp_opts opts;       /* resolved */
    bool overlap;
    trek_var *anchor;         /* a leaf that makes the tape record a forward whose inputs need no gradient */
};

/* Calls fn for the calling rank's replica; outside a run of several replicas for all of them, on their ranks. */
typedef trek_status (*trek_ddp_fn)(trek_ddp *ddp, int replica, void *arg);
trek_status trek_ddp_call(trek_ddp *ddp, trek_ddp_fn fn, void *arg);
/* Train and freeze flags of replica 0 become all replicas'; outside runs. */
void trek_ddp_follow_flags(trek_ddp *ddp);
/* The rank's number of counts, checked: NULL is 1. */
trek_status trek_ddp_count(const double *counts, int replica, double *count);

/* ddp_plan.c */
trek_status trek_ddp_plan(trek_ddp_replica *r, int64_t bucket_bytes);
void trek_ddp_plan_clear(trek_ddp_replica *r);

/* ddp_forward.c: the rows of each input divided evenly. */
trek_var *trek_ddp_forward_divided(trek_ddp *ddp, trek_var *const *inputs, int n_inputs);

/* ddp_sync.c: the thread's error, or STATE where a refresh has failed and left no lists. */
trek_status trek_ddp_ready(const trek_ddp_replica *r);
/* A collective. */
trek_status trek_ddp_take_first(trek_ddp_replica *r, bool params, bool buffers, trek_status own);

#endif
