/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine of communicators is, and collectives over plain memory. */
#ifndef TREK_DISTRIBUTED_COMM_COMM_INTERNAL_H
#define TREK_DISTRIBUTED_COMM_COMM_INTERNAL_H

#include <stdatomic.h>

#include "distributed/comm/comm.h"
#include "distributed/control/call.h"
#include "tensor/status_internal.h"

/* One rank's call. count: elements of the tensor; of a part for all_gather and reduce_scatter. A reduce gives the combination to
 * the root; what others have as out is left alone. */
typedef struct trek_comm_call {
    uint64_t number;  /* of the rank's calls so far, from 1 */
    trek_comm_kind kind;
    trek_reduce_op op;
    trek_dtype dtype;
    int root;
    int64_t count;
    const void *in;   /* may be out */
    void *out;
    bool on_device;   /* in and out are memory of the rank's device, in the order of its thread's stream there */
} trek_comm_call;

typedef struct trek_comm_engine {
    const char *name;
    trek_status (*run)(trek_comm *comm, const trek_comm_call *call);
    /* Ends the group for all ranks; from any thread. The first reason counts. */
    void (*end)(trek_comm *comm, trek_status status, const char *message);
    bool (*ended)(const trek_comm *comm);
    /* The two halves of freeing a handle: no calls come from here on; and the memory. */
    void (*leave)(trek_comm *comm);
    void (*free)(trek_comm *comm);
    /* Engines that progress by themselves (MPI, NCCL); NULL: start runs the call. A started call's memory is left
     * alone until finish, which waits for all started calls and returns the first failure. */
    trek_status (*start)(trek_comm *comm, const trek_comm_call *call);
    trek_status (*finish)(trek_comm *comm);
    /* Zeroed host memory in which the engine reduces without a copy, and its end, as trek_tensor_wrap takes it. NULL without
     * an error: there is none left. alloc NULL: any memory will do. */
    void *(*alloc)(trek_comm *comm, size_t bytes);
    void (*release)(void *memory, void *arg);
} trek_comm_engine;

/* What carries calls on memory of the ranks' devices, beside the engine: nccl.c. */
typedef struct trek_comm_device_engine {
    /* Whether the call is one for it: all ranks find the same. Else it is staged through the host. */
    bool (*takes)(const trek_comm *comm, const trek_comm_call *call);
    /* start puts the work behind what the thread's queue holds, wait makes the queue go on behind all that was started. */
    trek_status (*start)(trek_comm *comm, const trek_comm_call *call);
    trek_status (*wait)(trek_comm *comm);
    /* Ends the waiting of all ranks' devices; from any thread. */
    void (*abort)(trek_comm *comm);
    void (*detach)(trek_comm *comm);
} trek_comm_device_engine;

struct trek_comm_nccl;

/* The head of every engine's handle. */
struct trek_comm {
    const trek_comm_engine *engine;
    int rank, world;
    trek_device device;
    atomic_int more;     /* handles besides the first: it goes when this falls below 0 */
    void (*freed)(trek_comm *comm); /* called instead of trek_comm_destroy when the last handle has gone; NULL: that */
    int64_t deadline_ns; /* 0: none */
    uint64_t calls;
    struct trek_control *control; /* between processes: the control channel, borrowed; NULL: threads of one process */
    const trek_comm_device_engine *devices; /* for memory of distinct devices; NULL: it is staged through the host */
    struct trek_comm_nccl *nccl; /* that engine's own */
    int *origins;        /* [world] of a group that was split off: the ranks in the first communicator; NULL: of no such */
};

/* The engine of threads has this name. */
#define TREK_COMM_LOCAL_ENGINE "local"

/* One more handle to the same: whoever keeps a communicator that was lent takes one, and trek_comm_free gives it back.
 * false: the last one has gone, and it is being freed. */
bool trek_comm_retain(trek_comm *comm);
/* What the last trek_comm_free does. */
void trek_comm_destroy(trek_comm *comm);

/* staged.c: a call on device memory through host memory: any mixture of ranks, the same GPU twice too. */
trek_status trek_comm_staged_run(trek_comm *comm, const trek_comm_call *call);

/* The collectives over plain memory; what trek_comm_x above are made of. */
trek_status trek_comm_run(trek_comm *comm, trek_comm_call call);
/* Bytes of host memory from every rank, side by side in `all`. */
trek_status trek_comm_gather_bytes(trek_comm *comm, const void *mine, size_t bytes, void *all);
/* The same without waiting, where the engine can; all ranks start and run calls in one order. */
trek_status trek_comm_start(trek_comm *comm, trek_comm_call call);
trek_status trek_comm_finish(trek_comm *comm);
/* Whether start returns before the call has been carried out. */
bool trek_comm_overlaps(const trek_comm *comm);
/* Whether the group has ended by an error: every call would fail. */
bool trek_comm_ended(const trek_comm *comm);
/* Ranks that share cores with too many others must not spin. All handles of the group follow. */
void trek_comm_local_set_spin(trek_comm *comm, bool spin);

/* outs[k][i] = op over r of ins[r][i] in rank order, for i in [begin, end) and every k. An
 * out may be an in. */
void trek_comm_combine(trek_dtype dtype, trek_reduce_op op, const void *const *ins, int n_ins, void *const *outs, int n_outs,
                       int64_t begin, int64_t end);

#endif
