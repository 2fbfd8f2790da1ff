/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TREK_DISTRIBUTED_RANKS_INTERNAL_H
#define TREK_DISTRIBUTED_RANKS_INTERNAL_H

#include "distributed/comm/comm_internal.h"
#include "distributed/ranks.h"

/* Runs fn as trek_ranks_run does, but without the sums: layers find the sums that fn enters, or work alone. */
trek_status trek_ranks_call(trek_ranks *ranks, trek_rank_fn fn, void *arg);
trek_ranks *trek_ranks_retain(trek_ranks *ranks);
trek_device trek_ranks_device(const trek_ranks *ranks, int rank);
/* Records what the group's runs make devices do (capture/recording.c); NULL: nothing records. The caller calls pause and
 * resume around each run; if pause fails, the run is not made. Each rank calls begin and end around its part. If
 * begin fails on one rank, it fails on all; end is called if begin has succeeded. */
typedef struct trek_ranks_recorder {
    trek_status (*pause)(void *arg);
    trek_status (*resume)(void *arg);
    trek_status (*begin)(int rank, void *arg);
    trek_status (*end)(int rank, void *arg);
    void *arg;
} trek_ranks_recorder;
void trek_ranks_set_recorder(trek_ranks *ranks, const trek_ranks_recorder *recorder);

/* Begins a run of trek_ranks_call in which layers may make sums (team/rank_sums.h): those of the ranks with participates[rank]
 * (NULL: all), and with comm, borrowed, those of its other processes. goes_back: it goes backward through the run before. */
void trek_ranks_begin_sums(trek_ranks *ranks, const bool *participates, trek_comm *comm, bool goes_back);
/* Returns the sums that layers of its ranks make (rank_sums.h). */
struct trek_rank_sums *trek_ranks_sums(trek_ranks *ranks);
/* Returns where the watch of a backward through split forwards (pass/split_forward.h) is stored while it runs; NULL:
 * nothing watches. */
const struct trek_split_watch **trek_ranks_split_watch(trek_ranks *ranks);
/* Returns whether the ranks are running a function. */
bool trek_ranks_are_running(const trek_ranks *ranks);
/* Returns the rank of the group as which the calling thread runs inside trek_ranks_run, or -1. */
int trek_ranks_rank_here(const trek_ranks *ranks);

#endif
