/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine of communicators is, and collectives over plain memory. */
#ifndef TREK_DISTRIBUTED_COMM_COMM_INTERNAL_H
#define TREK_DISTRIBUTED_COMM_COMM_INTERNAL_H

#include "distributed/comm/comm.h"
#include "tensor/status_internal.h"

#define TREK_MAX_RANKS 1024

typedef enum trek_comm_kind {
    TREK_COMM_INVALID, /* a rank whose own arguments were wrong comes with this, so that the others need not wait */
    TREK_COMM_ALL_REDUCE,
    TREK_COMM_BROADCAST,
    TREK_COMM_ALL_GATHER,
    TREK_COMM_REDUCE_SCATTER,
    TREK_COMM_BARRIER,
} trek_comm_kind;

/* One rank's call. count: elements of the tensor; of a part for all_gather and reduce_scatter. */
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
    void *block;      /* trek's own block that in and out lie in (trek_comm_block), whose pages other processes may share; NULL */
} trek_comm_call;

typedef struct trek_comm_engine {
    const char *name;
    trek_status (*run)(trek_comm *comm, const trek_comm_call *call);
    void (*abort)(trek_comm *comm, const char *reason);
    bool (*ended)(const trek_comm *comm);
    void (*free)(trek_comm *comm); /* the handle, too */
    /* Engines that progress by themselves (MPI, NCCL); NULL: start runs the call. A started call's memory is left
     * alone until finish, which waits for all started calls and returns the first failure. */
    trek_status (*start)(trek_comm *comm, const trek_comm_call *call);
    trek_status (*finish)(trek_comm *comm);
} trek_comm_engine;

struct trek_comm_nccl;

/* The head of every engine's handle. */
struct trek_comm {
    const trek_comm_engine *engine;
    int rank, world;
    trek_device device;
    int64_t deadline_ns; /* 0: none */
    uint64_t calls;
    struct trek_control *control; /* between processes: the control channel, borrowed; NULL: threads of one process */
    struct trek_comm_nccl *nccl; /* comm_nccl.c: for memory of distinct GPUs; NULL: it is staged through the host */
};

/* The block of host memory from trek_block_alloc that a tensor lies in; NULL: it is the user's own, or on a device. */
void *trek_comm_block(const trek_tensor *tensor);

/* comm_staged.c: a call on device memory through host memory: any mixture of ranks, the same GPU twice too. */
trek_status trek_comm_staged_run(trek_comm *comm, const trek_comm_call *call);

/* The collectives over plain memory; what trek_comm_x above are made of. */
trek_status trek_comm_run(trek_comm *comm, trek_comm_call call);
/* The same without waiting, where the engine can; all ranks start and run calls in one order. */
trek_status trek_comm_start(trek_comm *comm, trek_comm_call call);
trek_status trek_comm_finish(trek_comm *comm);
/* Whether start returns before the call has been carried out. */
bool trek_comm_overlaps(const trek_comm *comm);
/* Whether the group has ended by an error: every call would fail. */
bool trek_comm_ended(const trek_comm *comm);
/* "all_reduce(sum, f32, 1024 elements)": writes at most size bytes; returns text. */
char *trek_comm_call_text(const trek_comm_call *call, char *text, size_t size);
/* Ranks that share cores with too many others must not spin. All handles of the group follow. */
void trek_comm_local_set_spin(trek_comm *comm, bool spin);

/* outs[k][i] = op over r of ins[r][i] in rank order, for i in [begin, end) and every k. An
 * out may be an in. */
void trek_comm_combine(trek_dtype dtype, trek_reduce_op op, const void *const *ins, int n_ins, void *const *outs, int n_outs,
                       int64_t begin, int64_t end);

#endif
