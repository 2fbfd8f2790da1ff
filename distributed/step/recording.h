/* SPDX-License-Identifier: Apache-2.0 */
/* Steps over the GPUs of a process as captured work (graph/capture.h). Internal.
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
