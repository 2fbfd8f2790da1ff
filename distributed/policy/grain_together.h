/* SPDX-License-Identifier: Apache-2.0 */
/* Grains that a rank runs in one forward and one backward. Each of them has the bits that it has by itself. */
#ifndef TREK_DISTRIBUTED_POLICY_GRAIN_TOGETHER_H
#define TREK_DISTRIBUTED_POLICY_GRAIN_TOGETHER_H

#include "distributed/policy/grain_alone.h"

/* Returns how many grains of the call a rank should take at once. With 0 it takes one, which runs by itself. */
int64_t trek_grains_most_together(const trek_grain_call *call, int rank);
/* Runs n grains of equal sizes, from `number` on. parts: [n] their samples; all: the samples of all. */
trek_status trek_grains_train_together(trek_grain_call *call, int rank, int64_t number, const trek_batch *all,
                                       const trek_batch *parts, int n);

#endif
