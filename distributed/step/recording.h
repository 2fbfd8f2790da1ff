/* SPDX-License-Identifier: Apache-2.0 */
/* Steps over the GPUs of a process, or of processes with one each, as captured work (graph/capture.h). Internal.
 *
 * A step runs by turns: the caller's own work (the joining of outputs, the loss), a run of all ranks (forward, backward,
 * reduction and update), the caller's again. Each rank's work is captured by its own thread in its own order, one capture per
 * rank; the caller is rank 0, so its capture holds both. A capture is cut where a run begins and ends: what passes from the
 * caller to the ranks and back are events outside of captures, the same in recorded, replayed and called steps. Inside a rank's
 * piece lie its reductions: the stream of NCCL branches off where a bucket is complete and comes back before the piece ends, so
 * that they overlap with backward as they do in a called step.
 *
 *     recorded:   caller | run 0: rank 0, rank 1, ... | caller | run 1: ... | caller
 *     piece:        0             1       0               2             3..     4
 *
 * A replay makes the same turns without the functions: the caller launches its pieces, and one run of the ranks launches each
 * run's, from their own threads, at a time (tensor/cuda/gate.h). Runs in which nobody's devices were given anything are left
 * out. So a replayed step is the same work in the same order, with the same bits.
 *
 * What the host decides, it decides before the first launch, on the caller's thread for all ranks: learning rates, limits and
 * loss scale go into the ranks' device memory, a request to stop is agreed on, a group that has ended is an error. Until then
 * nothing has been changed. A launch that fails ends the group: the others' devices would wait for that rank's in vain. The
 * ranks' buffers (batch norm's statistics) are merged after the replay, by the host, as after a called step.
 *
 * Of several processes each has one rank, which is the caller: its step is one piece, with all its reductions. Called, recorded
 * and replayed steps give NCCL's calls in orders that do not fit one another, so before each step all vote (agree, which is
 * job_sync.c's round and graph/capture_vote.c's verdict). While they record, the rounds of the step go on as in a called one, and
 * a failure in one is told by them, or at the latest in the round after it (settle): then all let go of the record and call. What
 * the rounds have said is the record's: weights of passes, of which those that only a device knows are brought together there
 * (backward.c); which parameters have gradients; how many random numbers the process that drew most has drawn. It all
 * follows from the sizes of all processes' inputs, by which records are told apart, and from the signature of each process.
 * After the vote a process that cannot do its part ends the group; nobody needs to be told anything more.
 *
 * Ranks have shares of a batch; the record is of the shares of its time. They stay while steps are replayed, which measure no
 * rank; steps that are called again may change them, and the step is recorded anew. */
#ifndef TREK_DISTRIBUTED_STEP_RECORDING_H
#define TREK_DISTRIBUTED_STEP_RECORDING_H

#include "distributed/step/stepper_ranks.h"

struct trek_stepper_capture;
extern const struct trek_stepper_capture trek_ranks_capture;

/* Before the stepper goes. */
void trek_ranks_forget_before(ranks_stepper *s);

#endif
