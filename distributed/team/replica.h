/* SPDX-License-Identifier: Apache-2.0 */
/* The replica set: what a model's replica on one rank consists of, and what the ranks do to their replicas together.
 *
 * A set has no object of its own. Every rank has its trek_replica, and the communicator says which ranks belong
 * together, whether they are threads or processes. A function that takes a communicator is a collective: all its
 * ranks must call it, each with its own replica and its own status so far. If a rank has failed, it gets its own
 * error back and the others get PEER. A communicator that is NULL, or has one rank, is a set of one. A rank that has
 * failed may have no replica (NULL). */
#ifndef TREK_DISTRIBUTED_TEAM_REPLICA_H
#define TREK_DISTRIBUTED_TEAM_REPLICA_H

#include <stdatomic.h>

#include "autograd/var_internal.h"
#include "distributed/comm/comm_internal.h"
#include "distributed/team/buffers.h"
#include "nn/module_internal.h"
#include "tensor/rank_context.h"

typedef struct trek_replica {
    atomic_int refs;           /* a tape may outlive the code that listed it */
    trek_module *module;       /* borrowed */
    int n_modules, n_params, n_buffers;
    trek_module **modules;     /* in the order of the walk; borrowed */
    trek_var **params, **buffers; /* retained */
    char **param_names, **buffer_names;
    trek_buffer_plan *plans;   /* [n_buffers] */
    bool meets;                /* some layer makes sums with the other ranks' (synchronised batch norm) */
    void *parcel;              /* for small tensors that are sent together; made when it is needed */
    char *room;                /* for all ranks' buffers; made when it is needed */
    int room_for;              /* for how many ranks */
} trek_replica;

/* Lists a module and returns a reference to the list. Returns NULL on failure. */
trek_replica *trek_replica_new(trek_module *module);
trek_replica *trek_replica_retain(trek_replica *replica);
void trek_replica_release(trek_replica *replica); /* NULL is allowed */

/* Finds the device of a module's parameters or, if it has none, of its buffers. *device does not change if it has
 * neither. */
trek_status trek_replica_device(trek_module *module, trek_device *device);

/* Copies the train and freeze flags of the first replica to this one. Neither may run meanwhile. */
static inline void trek_replica_follow_flags(const trek_replica *own, const trek_replica *first)
{
    if (own == first || !own || !first)
        return;
    for (int k = 0; k < own->n_modules; k++)
        trek_module_follow(own->modules[k], first->modules[k]);
    for (int k = 0; k < own->n_params; k++)
        if (own->params[k]->requires_grad != first->params[k]->requires_grad)
            own->params[k]->requires_grad = first->params[k]->requires_grad;
}

/* Sets the collectives of layers that meet other ranks, for threads whose rank context has none. NULL removes them. */
void trek_replica_bind(const trek_replica *replica, const trek_rank_collectives *ranks);

/* Returns own if this rank has failed, and PEER, with a message that names the rank after `what`, if another rank has
 * failed. */
trek_status trek_replica_agree(trek_comm *comm, trek_status own, const char *what);
/* Compares whether all replicas have the same modules, and parameters and buffers with the same names, shapes and
 * dtypes, by trek_agree. more: further lines "name<TAB>value"; NULL: none. */
trek_status trek_replica_compare(const trek_replica *replica, trek_comm *comm, const char *more, const char *subject,
                                 trek_status own);

typedef struct trek_replica_values {
    bool params, buffers;
    bool on_host;              /* no rank of the set is on a GPU: small tensors are sent together */
    int root;                  /* the rank whose values are taken */
} trek_replica_values;
/* Copies the root's values to all replicas. */
trek_status trek_replica_take_first(trek_replica *replica, trek_comm *comm, trek_replica_values values, trek_status own);
/* Copies rank 0's values of one tensor, in memory of the host or of the communicator's device. */
trek_status trek_replica_take_tensor(trek_comm *comm, trek_tensor *tensor);

/* Merges the buffers of all replicas, weighted by `count` samples of this one. A rank with 0 only receives. *total,
 * unless total is NULL, gets the sum of the counts; nothing changes if it is 0. apart: since buffers were merged
 * last, layers that meet have not met. */
trek_status trek_replica_merge(trek_replica *replica, trek_comm *comm, double count, bool apart, double *total, trek_status own);

#endif
