/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine of communicators must provide, and collectives over plain memory. */
#ifndef TREK_DISTRIBUTED_COMM_COMM_INTERNAL_H
#define TREK_DISTRIBUTED_COMM_COMM_INTERNAL_H

#include <stdatomic.h>

#include "distributed/comm/comm.h"
#include "distributed/control/call.h"
#include "tensor/status_internal.h"

/* The call of one rank. count is the number of elements of the tensor, or of a part for all_gather and
 * reduce_scatter. A reduce writes the result on the root and leaves `out` of other ranks alone. */
typedef struct trek_comm_call {
    uint64_t number;  /* counts the rank's calls, from 1 */
    trek_comm_kind kind;
    trek_reduction op;
    trek_dtype dtype;
    int root;
    int64_t count;
    const void *in;   /* may be the same memory as out */
    void *out;
    bool on_device;   /* in and out are memory of the rank's device, used in the order of its thread's stream */
} trek_comm_call;

typedef struct trek_comm_engine {
    const char *name;
    bool ends_together; /* the library ends all processes when one has ended, so that none can continue (MPI) */
    bool fills; /* it may write to all memory that a call gives it, also on ranks that get no result; engines with `start` do */
    bool adds_bf16; /* a reduce-scatter of bf16 sends bf16, and adds in f32 and in rank order */
    trek_status (*run)(trek_comm *comm, const trek_comm_call *call);
    /* Ends the group for all ranks, from any thread. The first reason counts. */
    void (*end)(trek_comm *comm, trek_status status, const char *message);
    bool (*ended)(const trek_comm *comm);
    /* Freeing a handle has two halves: `leave` means that no calls come from here on, and `free` frees the memory. */
    void (*leave)(trek_comm *comm);
    void (*free)(trek_comm *comm);
    /* For engines that progress by themselves (MPI, NCCL). NULL: start runs the call. The memory of a started call
     * must not be used until finish, which waits for all started calls and returns the first failure. */
    trek_status (*start)(trek_comm *comm, const trek_comm_call *call);
    trek_status (*finish)(trek_comm *comm);
    /* alloc returns zeroed host memory that the engine reduces without a copy; release frees it, with the arguments
     * that trek_tensor_wrap passes. alloc returns NULL without an error if no such memory is left. alloc NULL: the
     * engine has no preference. */
    void *(*alloc)(trek_comm *comm, size_t bytes);
    void (*release)(void *memory, void *arg);
} trek_comm_engine;

/* The engine for calls on memory of the ranks' devices, in addition to the group's engine: nccl.c. */
typedef struct trek_comm_device_engine {
    /* Returns whether it can carry out the call; all ranks get the same answer. Otherwise the call is staged through
     * the host. */
    bool (*takes)(const trek_comm *comm, const trek_comm_call *call);
    /* start puts the work behind what the thread's queue holds. wait makes the queue continue after everything that
     * was started. */
    trek_status (*start)(trek_comm *comm, const trek_comm_call *call);
    trek_status (*wait)(trek_comm *comm);
    /* Makes the host wait, between processes, until everything that was started has been done (trek_comm_settle). */
    trek_status (*settle)(trek_comm *comm);
    /* Ends the waiting of all ranks' devices, from any thread. */
    void (*abort)(trek_comm *comm);
    void (*detach)(trek_comm *comm);
} trek_comm_device_engine;

struct trek_comm_nccl;

/* The beginning of every engine's handle. */
struct trek_comm {
    const trek_comm_engine *engine;
    int rank, world;
    trek_device device;
    atomic_int more;     /* how many handles exist besides the first; it is freed when this falls below 0 */
    void (*freed)(trek_comm *comm); /* called instead of trek_comm_destroy when the last handle has been freed; NULL:
                                     * trek_comm_destroy is called */
    int64_t deadline_ns; /* 0: no deadline */
    uint64_t calls;
    struct trek_control *control; /* of processes: the control channel, borrowed; NULL: threads of one process */
    const trek_comm_device_engine *devices; /* for memory of distinct devices; NULL: such memory is staged through the host */
    struct trek_comm_nccl *nccl; /* data of that engine */
    int *origins;        /* [world] of a split group: the ranks in the first communicator; NULL: the group was not split off */
};

/* The name of the engine of threads. */
#define TREK_COMM_LOCAL_ENGINE "local"

/* Makes one more handle of the same communicator. Code that keeps a lent communicator takes one, and trek_comm_free
 * gives it back. Returns false if the last handle has been freed and the communicator is going. */
bool trek_comm_retain(trek_comm *comm);
/* Frees the communicator. The last trek_comm_free calls it. */
void trek_comm_destroy(trek_comm *comm);

/* staged.c: carries out a call on device memory through host memory. It works for any mixture of ranks, even two on
 * one GPU. */
trek_status trek_comm_staged_run(trek_comm *comm, const trek_comm_call *call);

/* Runs a collective over plain memory. The public collectives are made of it. */
trek_status trek_comm_run(trek_comm *comm, trek_comm_call call);
/* Gathers bytes of host memory from every rank, side by side in `all`. */
trek_status trek_comm_gather_bytes(trek_comm *comm, const void *mine, size_t bytes, void *all);
/* Start a call, and finish started calls, without waiting in between if the engine can. All ranks must start and run
 * calls in one order. */
trek_status trek_comm_start(trek_comm *comm, trek_comm_call call);
trek_status trek_comm_finish(trek_comm *comm);
/* Waits until devices have done what they were given, and fails with the reason of the group's end if they have not: an aborted
 * collective leaves anything in the memory of its result. A call on a device returns before its work is done, so the result must
 * not be relied on, where it cannot be made again, before this has returned OK. It does nothing on the host. A device that does
 * not get on within the deadline ends the group with TIMEOUT. */
trek_status trek_comm_settle(trek_comm *comm);
/* Returns whether trek_comm_start returns before the call has been carried out. */
bool trek_comm_overlaps(const trek_comm *comm);
/* Returns whether a call may write to memory of a rank that gets no result. */
bool trek_comm_fills(const trek_comm *comm);
/* Returns whether the group has ended by an error, so that every call would fail. */
bool trek_comm_ended(const trek_comm *comm);
/* Sets whether waiting ranks may spin. Ranks that share cores with too many others must not. It holds for all handles
 * of the group. */
void trek_comm_local_set_spin(trek_comm *comm, bool spin);

/* Computes outs[k][i] = op over r of ins[r][i] in rank order, for i in [begin, end) and every k. An out may be an in. */
void trek_comm_combine(trek_dtype dtype, trek_reduction op, const void *const *ins, int n_ins, void *const *outs, int n_outs,
                       int64_t begin, int64_t end);

#endif
