/* SPDX-License-Identifier: Apache-2.0 */
/* The size of a grain, where a program leaves it to trek (TREK_GRAIN). */
#ifndef TREK_DISTRIBUTED_POLICY_GRAIN_SIZE_H
#define TREK_DISTRIBUTED_POLICY_GRAIN_SIZE_H

#include "distributed/team/team.h"

typedef struct trek_step trek_step;

/* Sets how many samples a grain has from here on, between two steps. All processes must set the same. */
void trek_grains_set_size(trek_step *s, int64_t size);
/* Returns the largest size that may be chosen for batches of so many samples. */
int64_t trek_grains_largest(int64_t batch);
/* Measures forward and backward of grains of several sizes, with samples of the graph's loader, and sets the smallest size at
 * which a sample takes hardly longer than at the best one. Process 0 measures, and all set its choice: it is a collective. The
 * graph, its buffers and gradients, and the random numbers remain as they are. Fails as a pass does; with PEER if process 0 has
 * failed. */
trek_status trek_grains_choose(trek_step *s);

#endif
