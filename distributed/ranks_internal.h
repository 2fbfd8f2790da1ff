/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TREK_DISTRIBUTED_RANKS_INTERNAL_H
#define TREK_DISTRIBUTED_RANKS_INTERNAL_H

#include "distributed/comm/comm_internal.h"
#include "distributed/ranks.h"

/* trek_ranks_run without the sums: layers find what fn itself enters, or are alone. */
trek_status trek_ranks_call(trek_ranks *ranks, trek_rank_fn fn, void *arg);
trek_ranks *trek_ranks_retain(trek_ranks *ranks);
trek_device trek_ranks_device(const trek_ranks *ranks, int rank);
/* Who records what the group's runs make devices do (step/recording.c); NULL: nobody. pause and resume: by the caller, around
 * each run, which is not made if pause fails; begin and end: by each rank, around its part. Where begin fails on one, it fails on
 * all; end is called where begin was not in vain. */
typedef struct trek_ranks_recorder {
    trek_status (*pause)(void *arg);
    trek_status (*resume)(void *arg);
    trek_status (*begin)(int rank, void *arg);
    trek_status (*end)(int rank, void *arg);
    void *arg;
} trek_ranks_recorder;
void trek_ranks_set_recorder(trek_ranks *ranks, const trek_ranks_recorder *recorder);

/* The sums that layers of its ranks make (rank_sums.h). */
struct trek_rank_sums *trek_ranks_sums(trek_ranks *ranks);
/* Who watches the present backward through split forwards (step/split_forward.h), during it; NULL: nobody. */
const struct trek_split_watch **trek_ranks_split_watch(trek_ranks *ranks);
/* The rank of the group that the calling thread runs as, inside trek_ranks_run; -1: none. */
int trek_ranks_rank_here(const trek_ranks *ranks);

#endif
