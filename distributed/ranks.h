/* SPDX-License-Identifier: Apache-2.0 */
/* Rank threads: a group of ranks in this process. Rank 0 is the thread that
 * calls; every further rank has a thread of its own that waits for work. */
#ifndef TREK_DISTRIBUTED_RANKS_H
#define TREK_DISTRIBUTED_RANKS_H

#include "distributed/comm/comm.h"

TREK_BEGIN

typedef struct trek_ranks trek_ranks;

/* What a rank runs. Its own errors may be reported through trek_fail, or by the status alone. */
typedef trek_status (*trek_rank_fn)(int rank, void *arg);

/* n ranks (1..1024), one for each device (NULL: cpu:0, cpu:1, ...); the same GPU may be given twice. The
 * cores are divided among them; one warning is logged if there are more ranks
 * than cores. While a group over the same devices that this thread made is alive, that one is given
 * once more. NULL and ARGUMENT, DEVICE, MEMORY, STATE (a thread cannot start). */
TREK_API trek_ranks *trek_ranks_new(const trek_device *devices, int n);
/* Gives it back; the last one to do so ends the threads. Not from inside a run. */
TREK_API void trek_ranks_free(trek_ranks **ranks);
TREK_API int trek_ranks_world_size(const trek_ranks *ranks);
/* Rank's communicator, borrowed; for use by that rank inside trek_ranks_run. NULL and ARGUMENT. */
TREK_API trek_comm *trek_ranks_comm(trek_ranks *ranks, int rank);
/* Runs fn(rank, arg) on all ranks side by side, rank 0 on the caller, and returns
 * when all are done. If any failed: the first failure that is not the echo of
 * another (PEER), as "rank 2: ...", set on the caller and cleared on the rank. Layers that meet (trek_nn_sync_batch_norm in
 * training) meet those of all ranks, which make the same forwards and backwards: COMM where one makes fewer.
 * STATE from inside a run, or while another thread runs. */
TREK_API trek_status trek_ranks_run(trek_ranks *ranks, trek_rank_fn fn, void *arg);

TREK_END

#endif
