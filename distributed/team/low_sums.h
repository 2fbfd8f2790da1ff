/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of f32 gradients over processes that travel as bf16 (.reduce_dtype): each process rounds its numbers once, their sums are
 * made in f32 and in rank order by whoever owns a part of them, and the owner's rounded sum is what all get. */
#ifndef TREK_DISTRIBUTED_TEAM_LOW_SUMS_H
#define TREK_DISTRIBUTED_TEAM_LOW_SUMS_H

#include "distributed/comm/comm_internal.h"

/* Room for one bucket. */
typedef struct trek_low_sums {
    trek_comm *comm;         /* of the processes, borrowed */
    trek_tensor *sent, *got;
    int64_t count;           /* elements of each */
} trek_low_sums;

/* Makes room for buckets of at most `count` elements. Returns NULL on failure (MEMORY). */
trek_low_sums *trek_low_sums_new(trek_comm *comm, int64_t count);
void trek_low_sums_free(trek_low_sums **sums);
/* Replaces count numbers by their sums over the processes. A collective. Errors of the engine. */
trek_status trek_low_sums_all_reduce(const trek_low_sums *sums, float *data, int64_t count);
/* Writes to `out` the sums of this process's part of world x count numbers. A collective. */
trek_status trek_low_sums_reduce_scatter(const trek_low_sums *sums, const float *data, float *out, int64_t count);

#endif
