/* SPDX-License-Identifier: Apache-2.0 */
/* Grains as captured work, in steps that trek_graph_capture calls: each rank records a grain's forward, loss, backward and the
 * addition of its gradients to the sums once, and replays that for other grains. What differs among grains is written to the
 * device before each replay: the samples, and the place of random numbers. A grain of fewer samples has a record of its own. */
#ifndef TREK_DISTRIBUTED_POLICY_GRAIN_CAPTURE_H
#define TREK_DISTRIBUTED_POLICY_GRAIN_CAPTURE_H

#include "distributed/policy/grain_pass.h"
#include "distributed/team/step_policy.h"

extern const trek_step_parts trek_grain_parts;

/* Returns whether the rank runs this grain so. */
bool trek_grain_is_captured(const trek_grain_call *call, int64_t number, const trek_batch *grain);
/* Runs a grain, on its rank's thread, and adds what it gives to the step, as trek_grain_train. */
trek_status trek_grain_train_captured(trek_grain_call *call, int rank, int64_t number, const trek_batch *grain);

#endif
