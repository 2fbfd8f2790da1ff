/* SPDX-License-Identifier: Apache-2.0 */
/* Merging buffers of the ranks: what is done to each buffer, and the arithmetic. */
#ifndef TREK_DISTRIBUTED_TEAM_BUFFERS_H
#define TREK_DISTRIBUTED_TEAM_BUFFERS_H

#include "autograd/var.h"

struct trek_replica;

/* How a buffer is merged over the ranks. */
typedef enum trek_buffer_merge {
    TREK_BUFFER_AVERAGE,  /* weighted by samples */
    TREK_BUFFER_MEAN,     /* a running_mean, together with its running_var at index `partner` */
    TREK_BUFFER_PARTNER,  /* that running_var */
    TREK_BUFFER_MAXIMUM,  /* integers and bool */
} trek_buffer_merge;

typedef struct trek_buffer_plan {
    trek_buffer_merge merge;
    int partner;
    int tracked; /* of a synchronised batch norm's mean: the index of its count of batches; of that count: the index of the
                  * mean; otherwise -1 */
} trek_buffer_plan;

/* Fills in the replica's plans. */
void trek_buffers_plan(struct trek_replica *replica);

/* All ranks' copies of a replica's buffers, in host memory, contiguous, in the buffers' dtypes. */
typedef struct trek_buffer_space {
    const struct trek_replica *replica;
    int n_ranks;
    const double *counts;     /* [n_ranks] samples of each rank, not all 0; a rank with 0 only receives */
    bool apart;               /* layers that meet have not met: each rank had its own batches */
    char *(*copy)(const struct trek_buffer_space *room, int rank, int k);
} trek_buffer_space;
/* Makes the copies of buffers first, first + stride, ... what all samples together would have given. Threads may call
 * it in parallel with different values of first. Cannot fail. */
void trek_buffers_merge(const trek_buffer_space *room, int first, int stride);

#endif
