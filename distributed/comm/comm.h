/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators: collectives among ranks.
 *
 * A handle belongs to one rank and is used by one thread at a time; only
 * trek_comm_abort may be called from any thread. All ranks make the same calls
 * in the same order. Every call carries its number, kind, dtype, count and a
 * deadline: if the ranks' calls differ, if one does not come in time, leaves or
 * aborts, all ranks get an error that names it (COMM, TIMEOUT, PEER, CANCELLED),
 * no data is touched, and every later call returns that error.
 *
 * Reductions combine the ranks' values in rank order, so all ranks get the same
 * bits, run after run; 16-bit floats are summed in f32. Nothing allocates. Where NCCL
 * does it (sums and products of f32, f64 and integers in the memory of distinct GPUs), the
 * order is NCCL's: the same on all ranks. TREK_NCCL=0 in the environment goes without it,
 * TREK_NCCL=1 has it for a single rank, too; TREK_NCCL_LIBRARY names its file.
 *
 * Processes of one machine reduce tensors of trek_comm_zeros, and the gradients of a trainer's
 * setup, where they are: a child of fork() sees what is written there later. Others are copied
 * through shared memory. If a process dies in the middle of a call between processes, the error says so,
 * and what the call was to compute is undefined. */
#ifndef TREK_DISTRIBUTED_COMM_COMM_H
#define TREK_DISTRIBUTED_COMM_COMM_H

#include "tensor/tensor.h"

TREK_BEGIN

typedef struct trek_comm trek_comm;

/* MEAN: floating dtypes only. MAX and MIN: NaN wins; of bool: any and all (the only ones for bool). */
typedef enum trek_reduce_op { TREK_SUM, TREK_MEAN, TREK_MAX, TREK_MIN, TREK_PROD } trek_reduce_op;

/* A group of n ranks (1..1024) that are threads of this process: writes n handles
 * to comms, rank r's at comms[r], each to be given back by trek_comm_free. devices
 * (n of them; NULL: cpu:0, cpu:1, ...): any, the same GPU twice, too. Tensors on
 * distinct GPUs go through NCCL where it is there, else through host memory.
 * Errors: ARGUMENT, DEVICE, MEMORY. */
TREK_API trek_status trek_comm_local(const trek_device *devices, int n, trek_comm **comms);
/* Gives a handle back. Ranks that call on are told that this one has left (PEER), as soon as what was made with it (a
 * trek_ddp, a trainer's setup) has gone, too. */
TREK_API void trek_comm_free(trek_comm **comm);

typedef struct trek_comm_opts {
    const char
        *engine; /* default NULL: what fits: shared memory on one machine, MPI, else Gloo. "shared", "mpi", "gloo": that one */
    int rank, world_size;   /* of processes; world_size 0: both from the environment */
    const char *address;    /* of process 0; NULL: from the environment, else 127.0.0.1 */
    int port;               /* 0: from the environment */
    const char *token; /* secret of the job, of at least 16 bytes where others than this machine reach process 0; NULL: of the
                        * environment's TREK_TOKEN or TREK_TOKEN_FILE. "none": everybody on the network is trusted */
    double deadline_s;      /* how long a call waits for the other processes without progress; 0: 600; TREK_OFF: forever. The
                               first call also waits so long for all to join, at least 5 s; 0: 300 */
} trek_comm_opts;

/* The communicator among the processes of the job, one rank for each process. The job is described by opts, or else by
 * the environment of trek-run, torchrun, Slurm or Open MPI; without any, a world of one. Joins the others the first
 * time; later calls of the process give one more handle to the same group (opts must agree). When the last handle has gone, the
 * next call joins the others anew, as often as all do so. Logs the world it found.
 * NULL and ARGUMENT (a contradictory environment, named), COMM, TIMEOUT, UNSUPPORTED (nothing here joins these machines: the
 * message says what to install), MEMORY. opts may be NULL. */
TREK_API trek_comm *trek_comm_init(const trek_comm_opts *opts);
/* How many processes opts and environment describe, without joining anyone; -1 and ARGUMENT if they contradict themselves. */
TREK_API int trek_comm_world_described(const trek_comm_opts *opts);
/* Says what this process does outside collectives ("save", "evaluate"; a literal): peers that wait know that it is
 * alive, as long as it is. NULL: training again. */
TREK_API void trek_comm_say(trek_comm *comm, const char *phase);

/* The process among those of the group, from 0; how many these are. */
TREK_API int trek_comm_rank(const trek_comm *comm);
TREK_API int trek_comm_world_size(const trek_comm *comm);
/* How long a call waits for the other ranks: seconds; 0: 600; TREK_OFF: forever. */
TREK_API trek_status trek_comm_set_deadline(trek_comm *comm, double seconds);

/* Tensors are contiguous, in host memory or on the rank's device (all ranks' calls alike, except that a
 * group may mix CPU and GPU ranks): SHAPE, DEVICE otherwise. On a device a call is in the order of the
 * calling thread's work there; it need not have happened when it returns. */

/* Zeros, in the memory that all_reduce of this communicator is fastest in, where the device is a CPU and there is such
 * memory: it outlives the communicator. Not a collective. comm NULL, and any other device: trek_tensor_zeros. */
TREK_API trek_tensor *trek_comm_zeros(trek_comm *comm, trek_shape shape, trek_dtype dtype, trek_device device);

/* Every rank's tensor becomes the combination of all ranks' tensors. */
TREK_API trek_status trek_comm_all_reduce(trek_comm *comm, trek_tensor *tensor, trek_reduce_op op);
/* Every rank's tensor becomes rank `root`'s. */
TREK_API trek_status trek_comm_broadcast(trek_comm *comm, trek_tensor *tensor, int root);
/* all (world x part's elements) becomes the ranks' parts, in rank order. */
TREK_API trek_status trek_comm_all_gather(trek_comm *comm, const trek_tensor *part, trek_tensor *all);
/* part becomes the rank's share of the combination of all ranks' `all` (world x part's elements). */
TREK_API trek_status trek_comm_reduce_scatter(trek_comm *comm, const trek_tensor *all, trek_tensor *part, trek_reduce_op op);
/* Returns when every rank has called it. */
TREK_API trek_status trek_comm_barrier(trek_comm *comm);
/* A number of the program's own: *value becomes the combination of all ranks' values (a loss's mean, a count's sum). */
TREK_API trek_status trek_comm_all_reduce_scalar(trek_comm *comm, double *value, trek_reduce_op op);
/* Which of `total` samples are this rank's when they are divided evenly, in rank order: *count from *first on, none
 * left out and none twice. No communication; comm NULL: all. ARGUMENT. */
TREK_API trek_status trek_comm_samples(const trek_comm *comm, int64_t total, int64_t *first, int64_t *count);

/* The colour of a rank that is to be in no group of trek_comm_split. */
#define TREK_NO_COLOR (-1)
/* Divides the communicator: ranks that give the same colour form a new communicator, which is returned to each of them and is its
 * own from there on, to be given back by trek_comm_free. Ranks of the new one are ordered by key, and where keys are equal, by
 * their ranks in comm. It is a collective: every rank of comm calls it, and ranks with a negative colour (TREK_NO_COLOR) get
 * NULL without an error. Everything that takes a communicator takes the new one, trek_comm_split too.
 *
 * Groups are independent of each other and of comm: each has calls, a deadline (at first that of comm) and an end of its own,
 * they may be used at the same time, and all may be freed in any order. A rank that dies ends the groups that it is in, and those
 * alone. Error messages name ranks of the group, and say which ranks of the first communicator these are. Between processes a
 * group has a control channel of its own, and an engine: that of comm, but for processes of several machines the one that fits
 * the group best. On GPUs a group has an NCCL communicator of its own where comm has one.
 *
 * As MPI_Comm_split and ncclCommSplit, and torch.distributed.new_group for those who form a group; unlike new_group, no rank
 * lists the others. Over MPI, threads of one process make their splits in one order on all processes.
 * Returns NULL and an error of comm's (COMM, TIMEOUT, PEER, CANCELLED), PEER (a rank of the group failed while it was made),
 * ARGUMENT, MEMORY, UNSUPPORTED, as of trek_comm_init. */
TREK_API trek_comm *trek_comm_split(trek_comm *comm, int color, int key);

/* Ends the group from any thread: calls that wait, and all later ones, on all
 * ranks return CANCELLED with the reason (may be NULL). */
TREK_API void trek_comm_abort(trek_comm *comm, const char *reason);

TREK_END

#endif
