/* SPDX-License-Identifier: Apache-2.0 */
/* Sums that layers request while a forward or backward runs on the ranks of a process (tensor/rank_context.h). The
 * ranks that have rows meet, and each sum is made in rank order, so that all ranks get the same bits.
 *
 * A run: the thread that starts the ranks calls trek_rank_sums_begin. Each rank that takes part first calls enter and
 * at last calls leave, whatever has happened. All of them must make the same sums in one order, any number of them. A
 * rank that leaves with an error, or while another one waits for it, fails the others (PEER; COMM if no rank failed
 * but their sums differ; TIMEOUT), so that none hangs.
 *
 * Between processes: with a communicator, the rank that comes last sums the ranks' sum over the processes, in order
 * of their ranks. Every process takes part in every sum. A process without rows runs the model on an empty batch and
 * contributes zeros, and runs backward through it whatever the weight of its loss. No other collective may be under
 * way meanwhile; one that overlaps with backward would need its own communicator. If a process fails in a run that
 * has made sums, or in a run that goes backward through one that has, it aborts the communicator, so that the others'
 * current or next call fails with the reason. If the run has made no sums, the others learn of it in their next call. */
#ifndef TREK_DISTRIBUTED_TEAM_RANK_SUMS_H
#define TREK_DISTRIBUTED_TEAM_RANK_SUMS_H

#include "distributed/comm/comm_internal.h"
#include "nn/module.h"
#include "tensor/rank_context.h"

typedef struct trek_rank_sums trek_rank_sums;

/* Makes the sums of 1 to 1024 ranks. spin: each rank has its own core. Returns NULL on failure (MEMORY). */
trek_rank_sums *trek_rank_sums_new(int local_ranks, bool spin);
void trek_rank_sums_free(trek_rank_sums **sums);
/* Sets the communicator of the processes, borrowed, between runs. NULL: none. */
void trek_rank_sums_set_comm(trek_rank_sums *sums, trek_comm *comm);
/* Sets, between runs, how long a rank waits for another; 0: without limit. The default is 600 s. */
void trek_rank_sums_set_deadline(trek_rank_sums *sums, int64_t ns);

/* Begins a run in which the ranks with participates[rank] take part (NULL: all), and the other processes, too, if
 * `interprocess` is set. */
void trek_rank_sums_begin(trek_rank_sums *sums, const bool *participates, bool interprocess);
/* Called after begin for a run that goes backward through the one before it. If that one made sums, the others wait
 * for the sums of this one. */
void trek_rank_sums_goes_back(trek_rank_sums *sums);
/* Enter and leave the run, on the rank's thread. Its layers find the sums in trek_rank_here.collectives, unless it is
 * the only rank. */
void trek_rank_sums_enter(trek_rank_sums *sums, int rank);
void trek_rank_sums_leave(trek_rank_sums *sums, int rank, trek_status status);

/* Makes sums over the ranks of a communicator, borrowed, for layers whose program makes the runs itself. Each sum is
 * a collective. Returns one reference, or NULL on failure (MEMORY). */
const trek_rank_collectives *trek_comm_sums_new(trek_comm *comm);
/* Releases it. Code that still uses it can make no more sums (STATE). NULL is allowed. */
void trek_comm_sums_end(const trek_rank_collectives *sums);

#endif
