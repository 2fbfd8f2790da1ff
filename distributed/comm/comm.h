/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators: collectives among ranks.
 *
 * A handle belongs to one rank and is used by one thread at a time. Only trek_comm_abort may be called from any thread. All
 * ranks must make the same calls in the same order. Every call carries its number, kind, dtype, count and a deadline. If the
 * calls of the ranks differ, or if a rank does not call in time, leaves or aborts, all ranks get an error that names it (COMM,
 * TIMEOUT, PEER, CANCELLED). No data is changed then, and every later call returns that error.
 *
 * Reductions combine the ranks' values in rank order, so that all ranks get the same bits, in every run. 16-bit floats are
 * summed in f32. No call allocates memory. NCCL does the sums and products of f32, f64 and integers in the memory of distinct
 * GPUs. The order is then NCCL's, the same on all ranks. TREK_NCCL=0 in the environment turns NCCL off, TREK_NCCL=1 uses it
 * also for a single rank, and TREK_NCCL_LIBRARY names its library file.
 *
 * Processes of one machine reduce tensors of trek_comm_zeros, and the gradients of trek_trainer_setup, without copying them: a
 * child of fork() sees what is written there later. Other tensors are copied through shared memory. If a process dies during a
 * call between processes, the error says so, and the result of the call is undefined. */
#ifndef TREK_DISTRIBUTED_COMM_COMM_H
#define TREK_DISTRIBUTED_COMM_COMM_H

#include "tensor/op_opts.h"
#include "tensor/tensor.h"

TREK_BEGIN

/* A rank's handle of a communicator. */
typedef struct trek_comm trek_comm;

/* Makes a group of n ranks (1 to 1024) that are threads of this process, and writes the handle of rank r to comms[r]. Each
 * handle is given back by trek_comm_free. `devices` are those of the ranks, [n], which may be any, also one GPU twice. NULL
 * stands for cpu:0, cpu:1, ... Tensors on distinct GPUs are reduced by NCCL if it is available, otherwise through host memory.
 * Errors: ARGUMENT, DEVICE, MEMORY. */
TREK_API trek_status trek_comm_local(const trek_device *devices, int n, trek_comm **comms);
/* Gives a handle back and sets *comm to NULL. Later calls of other ranks fail with PEER once everything that was made with
 * this handle (a trek_ddp, the setup of a trainer) is freed, too. */
TREK_API void trek_comm_free(trek_comm **comm);

/* Options of trek_comm_init. */
typedef struct trek_comm_opts {
    /* "shared" (shared memory of one machine), "mpi" or "gloo". Default NULL: the first that fits, in this order. */
    const char *engine;
    int rank;            /* the number of this process, from 0 */
    int world_size;      /* number of processes; default 0: rank and world_size come from the environment */
    const char *address; /* address of process 0; default: taken from the environment, otherwise 127.0.0.1 */
    int port;            /* port of process 0; default: taken from the environment */
    /* The secret of the job, at least 16 bytes if other machines can reach process 0. "none" trusts everybody on the network.
     * Default: taken from the environment, TREK_TOKEN or TREK_TOKEN_FILE. */
    const char *token;
    /* Seconds that a call waits for other processes without progress (default 600). The first call waits the same time until
     * all have joined, at least 5 s (default 300). TREK_OFF: no limit. */
    double deadline_s;
} trek_comm_opts;

/* Returns a handle of the communicator of the job's processes, which has one rank for each process. `opts` may be NULL. The
 * job is described by `opts`, otherwise by the environment of trek-run, torchrun, Slurm or Open MPI. Without either it is a
 * world of one process. The first call joins the other processes. Later calls return one more handle of the same group, and
 * `opts` must agree. When the last handle is freed, the next call joins the others again, if all of them do so. The world is
 * written to the log.
 * Errors: ARGUMENT if the environment is contradictory. COMM, TIMEOUT, MEMORY. UNSUPPORTED if nothing installed can connect
 * these machines; the message says what to install. NULL is returned. */
TREK_API trek_comm *trek_comm_init(const trek_comm_opts *opts);
/* Returns how many processes `opts` and the environment describe, without joining them. `opts` may be NULL. In a process
 * that is to join a job (trek-run --join), whose size it does not know yet, the result is 2.
 * Errors: ARGUMENT if they are contradictory; -1 is returned. */
TREK_API int trek_comm_world_described(const trek_comm_opts *opts);
/* Says what this process does between collectives, such as "save" or "evaluate". Processes that wait for it then know that it
 * is alive, as long as it is. `phase` must be a string literal. NULL means that it trains again. */
TREK_API void trek_comm_say(trek_comm *comm, const char *phase);

/* Returns the rank of this handle in its group, from 0. */
TREK_API int trek_comm_rank(const trek_comm *comm);
/* Returns the number of ranks of the group. */
TREK_API int trek_comm_world_size(const trek_comm *comm);
/* Sets how many seconds a call waits for the other ranks. 0 stands for 600, TREK_OFF for no limit. */
TREK_API trek_status trek_comm_set_deadline(trek_comm *comm, double seconds);

/* --- collectives. Tensors must be contiguous, in host memory or on the rank's device. The calls of all ranks must be of the
 * same kind of device, but a group may consist of CPU and GPU ranks.
 * Errors: SHAPE or DEVICE otherwise. On a device a call is executed in the order of the calling thread's work there, and may
 * not have finished when it returns. */

/* Returns a new tensor of zeros in the memory in which trek_comm_all_reduce of this communicator is fastest, if the device is
 * a CPU and such memory exists. The tensor can outlive the communicator. It is not a collective. If `comm` is NULL, and for
 * other devices, it is as trek_tensor_zeros. */
TREK_API trek_tensor *trek_comm_zeros(trek_comm *comm, trek_shape shape, trek_dtype dtype, trek_device device);

/* Replaces every rank's tensor by the combination of all ranks' tensors: their MEAN, SUM, MAX, MIN or PROD. The mean is for
 * floating dtypes only. In the maximum and the minimum NaN wins; for bool they are "any" and "all", and bool has no others.
 * Errors: ARGUMENT for another reduction. DTYPE for one that the dtype does not have. */
TREK_API trek_status trek_comm_all_reduce(trek_comm *comm, trek_tensor *tensor, trek_reduction op);
/* Replaces every rank's tensor by that of rank `root`. */
TREK_API trek_status trek_comm_broadcast(trek_comm *comm, trek_tensor *tensor, int root);
/* Writes the parts of all ranks, in rank order, to `all`, which has world size times the elements of `part`. */
TREK_API trek_status trek_comm_all_gather(trek_comm *comm, const trek_tensor *part, trek_tensor *all);
/* Writes the rank's part of the combination of all ranks' `all` to `part`. `all` has world size times the elements of `part`.
 * trek_comm_all_reduce says which reductions are allowed. */
TREK_API trek_status trek_comm_reduce_scatter(trek_comm *comm, const trek_tensor *all, trek_tensor *part, trek_reduction op);
/* Waits until every rank has called it. */
TREK_API trek_status trek_comm_barrier(trek_comm *comm);
/* Replaces *value by the combination of all ranks' values, for example the mean of a loss or the sum of a count.
 * trek_comm_all_reduce says which reductions are allowed. */
TREK_API trek_status trek_comm_all_reduce_scalar(trek_comm *comm, double *value, trek_reduction op);
/* Computes which of `total` samples belong to this rank when they are divided evenly in rank order: *count of them, from
 * *first on. No sample is left out or counted twice. It does not communicate. If `comm` is NULL, all samples belong to the
 * caller.
 * Errors: ARGUMENT. */
TREK_API trek_status trek_comm_samples(const trek_comm *comm, int64_t total, int64_t *first, int64_t *count);

/* The colour of a rank that joins no group of trek_comm_split. */
#define TREK_NO_COLOR (-1)
/* Divides the communicator into groups: ranks that give the same colour form a new communicator, whose ranks are ordered by key
 * and, where keys are equal, by their ranks in comm. Returns the new communicator, or NULL without an error if the colour is
 * negative (TREK_NO_COLOR). It is a collective: every rank of comm must call it. Everything that takes a communicator takes the
 * new one, including trek_comm_split.
 *
 * Groups are independent of each other and of comm. Each has its own calls, its own deadline (at first that of comm) and its own
 * end. They may be used at the same time and freed in any order. A rank that dies ends only the groups it belongs to. Error
 * messages name ranks of the group, and say which ranks of the first communicator these are. Between processes a group has its
 * own control channel, and the engine of comm; for processes of several machines it has the engine that fits the group best. On
 * GPUs a group has its own NCCL communicator if comm has one.
 *
 * Ownership: the caller gives the new handle back with trek_comm_free.
 * Threads: over MPI, threads of one process must make their splits in the same order on all processes.
 * Errors: those of comm (COMM, TIMEOUT, PEER, CANCELLED). PEER if a rank of the group fails while it is made. ARGUMENT, MEMORY
 * and UNSUPPORTED as in trek_comm_init. NULL is returned. It does what MPI_Comm_split and ncclCommSplit do.
 * torch.distributed.new_group differs: there each rank lists the others. */
TREK_API trek_comm *trek_comm_split(trek_comm *comm, int color, int key);

/* Ends the group: calls that wait, and all later calls, return CANCELLED on all ranks, with the reason, which may be NULL. Any
 * thread may call it. */
TREK_API void trek_comm_abort(trek_comm *comm, const char *reason);

TREK_END

#endif
