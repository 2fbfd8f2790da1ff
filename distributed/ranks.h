/* SPDX-License-Identifier: Apache-2.0 */
/* Rank threads: a group of ranks in this process. Rank 0 is the calling thread. Every further rank has its own thread, which
 * waits for work. */
#ifndef TREK_DISTRIBUTED_RANKS_H
#define TREK_DISTRIBUTED_RANKS_H

#include "distributed/comm/comm.h"

TREK_BEGIN

/* A group of rank threads. */
typedef struct trek_ranks trek_ranks;

/* A function of the user that a rank runs. It reports an error through trek_fail or only by its status. */
typedef trek_status (*trek_rank_fn)(int rank, void *arg);

/* Returns a group of n ranks (1 to 1024), one for each device. NULL for `devices` stands for cpu:0, cpu:1, ... One GPU may be
 * given twice. The cores are divided among the ranks, and the log gets one warning if there are more ranks than cores. If the
 * calling thread has made a group of the same devices that still exists, a new reference to that group is returned. The caller
 * gives the group back with trek_ranks_free.
 * Errors: ARGUMENT, DEVICE, MEMORY. STATE if a thread cannot be started. NULL is returned. */
TREK_API trek_ranks *trek_ranks_new(const trek_device *devices, int n);
/* Gives a reference back and sets *ranks to NULL. The last call ends the threads. It must not be called inside trek_ranks_run. */
TREK_API void trek_ranks_free(trek_ranks **ranks);
/* Returns the number of ranks of the group. */
TREK_API int trek_ranks_world_size(const trek_ranks *ranks);
/* Returns the communicator of a rank, borrowed, for use by this rank inside trek_ranks_run.
 * Errors: ARGUMENT if the rank does not exist; NULL is returned. */
TREK_API trek_comm *trek_ranks_comm(trek_ranks *ranks, int rank);
/* Runs fn(rank, arg) on all ranks in parallel, rank 0 on the calling thread, and returns when all have finished. Layers that
 * communicate (trek_nn_sync_batch_norm in training) do so with all ranks, which must make the same forwards and backwards.
 * Errors: If ranks failed, the first failure that is not a consequence of another (PEER), as "rank 2: ..."; it is set on the
 * calling thread and cleared on the rank. COMM if a rank makes fewer forwards or backwards. STATE inside a run, or while
 * another thread runs the group. */
TREK_API trek_status trek_ranks_run(trek_ranks *ranks, trek_rank_fn fn, void *arg);

TREK_END

#endif
