/* SPDX-License-Identifier: Apache-2.0 */
/* Steps over the GPUs of one process, or of processes with one GPU each, as captured work (graph/capture.h).
 *
 * A step alternates: the caller's own work (joining outputs, the loss), a run of all ranks (forward, backward,
 * reduction and update), the caller's work again. Each rank's thread captures the rank's work in its own order, one
 * capture for each rank. The caller is rank 0, so its capture holds both. A capture is cut where a run begins and
 * ends: the caller and the ranks are ordered by events outside of captures, which are the same in recorded, replayed
 * and called steps. A rank's piece contains its reductions: the stream of NCCL branches off where a bucket is
 * complete and joins again before the piece ends, so that reductions overlap with backward as in a called step.
 *
 *     recorded:   caller | run 0: rank 0, rank 1, ... | caller | run 1: ... | caller
 *     piece:        0             1       0               2             3..     4
 *
 * A replay alternates in the same way without the functions: the caller launches its pieces, and one run of the ranks
 * launches the pieces of each run, from their own threads, one thread at a time (tensor/cuda/gate.h). Runs that gave
 * no work to any device are left out. So a replayed step is the same work in the same order, with the same bits.
 *
 * What the host decides, it decides before the first launch, on the caller's thread for all ranks: learning rates,
 * limits and loss scale are written to the ranks' device memory, a request to stop is agreed on, and a group that has
 * ended is an error. Until then nothing has changed. A launch that fails ends the group, because the others' devices
 * would wait for that rank's in vain. The host merges the ranks' buffers (batch norm's statistics) after the replay,
 * as after a called step.
 *
 * Of several processes each has one rank, which is the caller: its step is one piece, with all its reductions.
 * Called, recorded and replayed steps issue NCCL's calls in different orders, so all processes vote before each step
 * (agree: the round is in job_sync.c, the verdict in graph/capture_vote.c). While they record, the rounds of the step
 * take place as in a called one. They report a failure in one process, at the latest in the round after it (settle);
 * then all discard the recording and call the step. The recording contains the results of the rounds: the weights of
 * passes, of which those that only a device knows are summed there (backward.c); which parameters have gradients; and
 * how many random numbers the process that drew most has drawn. All this follows from the sizes of all processes'
 * inputs, by which recordings are distinguished, and from the signature of each process. After the vote a process
 * that cannot do its part ends the group.
 *
 * Ranks have shares of a batch, and a recording belongs to the shares at its time. They do not change while steps are
 * replayed, because replays measure no rank. Steps that are called again may change them, and then the step is
 * recorded again. */
#ifndef TREK_DISTRIBUTED_CAPTURE_RECORDING_H
#define TREK_DISTRIBUTED_CAPTURE_RECORDING_H

#include "distributed/stepper_internal.h"

struct trek_stepper_capture;
extern const struct trek_stepper_capture trek_ranks_capture;

/* Called before the stepper is freed. */
void trek_ranks_forget_before(ranks_stepper *stepper);

#endif
