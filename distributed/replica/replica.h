/* SPDX-License-Identifier: Apache-2.0 */
/* The replica set: what a model's replica on one rank consists of, and what the ranks
 * do to their replicas together. Internal.
 *
 * A set has no object of its own: every rank has its trek_replica, and the communicator
 * says who belongs together, be they threads of a process or processes. What takes a
 * communicator is a collective: all its ranks call, each with its own replica and its
 * own status so far; where one is not well, it gets its own error back and the others
 * PEER. A communicator NULL, or of one rank, is a set of one. A rank that is not well may
 * have no replica (NULL). */
#ifndef TREK_DISTRIBUTED_REPLICA_REPLICA_H
#define TREK_DISTRIBUTED_REPLICA_REPLICA_H

#include <stdatomic.h>

#include "distributed/comm/comm_internal.h"
#include "distributed/replica/buffers.h"
#include "nn/module.h"
#include "tensor/rank_context.h"

typedef struct trek_replica {
    atomic_int refs;           /* a tape may outlive whoever listed it */
    trek_module *module;       /* borrowed */
    int n_modules, n_params, n_buffers;
    trek_module **modules;     /* in order of the walk; borrowed */
    trek_var **params, **buffers; /* retained */
    char **param_names, **buffer_names;
    trek_buffer_plan *plans;   /* [n_buffers] */
    bool meets;                /* some layer makes sums with the other ranks' (synchronised batch norm) */
    void *parcel;              /* for small tensors that are sent together; made at need */
    char *room;                /* for all ranks' buffers; made at need */
    int room_for;              /* so many ranks */
} trek_replica;

/* Lists a module; a reference. NULL on failure. */
trek_replica *trek_replica_new(trek_module *module);
trek_replica *trek_replica_retain(trek_replica *replica);
void trek_replica_release(trek_replica *replica); /* NULL: nothing */

/* Where a module's parameters are, or else its buffers; *device stays as it is where there are none. */
trek_status trek_replica_device(trek_module *module, trek_device *device);

/* Train and freeze flags of the first replica become this one's. While neither runs. */
void trek_replica_follow_flags(const trek_replica *replica, const trek_replica *first);

/* Layers that meet other ranks find them here wherever the thread's rank context names none; NULL: no more. */
void trek_replica_bind(const trek_replica *replica, const trek_rank_collectives *ranks);

/* Whether all ranks are well: own where this one is not, PEER, which names it after `what`, where another is not. */
trek_status trek_replica_agree(trek_comm *comm, trek_status own, const char *what);
/* Whether all replicas have the same modules, and parameters and buffers of the same names, shapes and dtypes: trek_agree over
 * them. more: further lines "name<TAB>value"; NULL: none. */
trek_status trek_replica_compare(const trek_replica *replica, trek_comm *comm, const char *more, const char *subject,
                                 trek_status own);

typedef struct trek_replica_values {
    bool params, buffers;
    bool on_host;              /* no rank of the set is on a GPU: small tensors go together */
    int root;                  /* whose values they are */
} trek_replica_values;
/* The root's values become everybody's. */
trek_status trek_replica_take_first(trek_replica *replica, trek_comm *comm, trek_replica_values values, trek_status own);
/* Rank 0's values of one tensor, in memory of the host or of the communicator's device. */
trek_status trek_replica_take_tensor(trek_comm *comm, trek_tensor *tensor);

/* Every replica's buffers become those of all ranks together, weighted by `count` samples of this one; a rank with 0 only
 * receives. *total (may be NULL): the sum of the counts; nothing changes where it is 0. apart: since buffers were merged, layers
 * that meet have not met. */
trek_status trek_replica_merge(trek_replica *replica, trek_comm *comm, double count, bool apart, double *total, trek_status own);

#endif
