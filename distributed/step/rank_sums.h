/* SPDX-License-Identifier: Apache-2.0 */
/* Sums that layers ask for while a forward or backward runs on the ranks of a
 * process (tensor/rank_context.h): the ranks that have rows meet, each sum is made in
 * rank order, so that all get the same bits. Internal.
 *
 * One run: trek_rank_sums_begin on the thread that starts the ranks; on each rank
 * that takes part enter first and leave last, whatever became of it. All of them
 * make the same sums in one order, any number of them. A rank that leaves with an
 * error, or while another waits for it, fails the others (PEER; COMM where nobody
 * failed but the ranks' sums differ; TIMEOUT), so that none hangs.
 *
 * Between processes: with a communicator the ranks' sum is summed over the
 * processes, in order of their ranks, by whichever rank came last. Every process
 * takes part in every sum: one without rows runs the model on an empty batch and
 * contributes zeros, and goes back through it whatever its loss weighs. No other
 * collective is under way meanwhile: one that overlaps with backward would need a
 * communicator of its own. A process whose run fails after it has made sums, or goes back
 * through a run that has made some, aborts the communicator, so that the others' present or
 * next call fails with what broke; if it had made none, they are told by its next call. */
#ifndef TREK_DISTRIBUTED_STEP_RANK_SUMS_H
#define TREK_DISTRIBUTED_STEP_RANK_SUMS_H

#include "distributed/comm/comm_internal.h"
#include "tensor/rank_context.h"

typedef struct trek_rank_sums trek_rank_sums;

/* For 1 to 1024 ranks; spin: each has a core of its own. NULL and MEMORY. */
trek_rank_sums *trek_rank_sums_new(int local_ranks, bool spin);
void trek_rank_sums_free(trek_rank_sums **sums);
/* Between runs: the processes' communicator, borrowed; NULL: none. */
void trek_rank_sums_set_comm(trek_rank_sums *sums, trek_comm *comm);
/* Between runs: how long a rank waits for another; 0: for ever. At first 600 s. */
void trek_rank_sums_set_deadline(trek_rank_sums *sums, int64_t ns);

/* Begins a run in which the ranks with participates[rank] take part (NULL: all); the other processes, too, if
 * `interprocess` is set. */
void trek_rank_sums_begin(trek_rank_sums *sums, const bool *participates, bool interprocess);
/* After begin, of a run that goes back through the one before it: if that made sums, the others wait for this one's. */
void trek_rank_sums_goes_back(trek_rank_sums *sums);
/* On the rank's thread: its layers find the sums (trek_rank_here.collectives), unless it is the only one. */
void trek_rank_sums_enter(trek_rank_sums *sums, int rank);
void trek_rank_sums_leave(trek_rank_sums *sums, int rank, trek_status status);

/* Sums over the ranks of a communicator, borrowed, for layers whose program makes the runs itself: each is a collective. Held
 * once; NULL and MEMORY. */
const trek_rank_collectives *trek_comm_sums_new(trek_comm *comm);
/* Gives it back; whoever still holds it can make no more sums (STATE). NULL: nothing. */
void trek_comm_sums_end(const trek_rank_collectives *sums);

#endif
