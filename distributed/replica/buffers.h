/* SPDX-License-Identifier: Apache-2.0 */
/* Merging buffers of the ranks: what is done to which, and the arithmetic. Internal. */
#ifndef TREK_DISTRIBUTED_REPLICA_BUFFERS_H
#define TREK_DISTRIBUTED_REPLICA_BUFFERS_H

#include "autograd/var.h"

struct trek_replica;

/* How a buffer is merged over the ranks. */
typedef enum trek_buffer_merge {
    TREK_BUFFER_AVERAGE,  /* weighted by samples */
    TREK_BUFFER_MEAN,     /* a running_mean, together with the running_var that stands at `partner` */
    TREK_BUFFER_PARTNER,  /* that running_var */
    TREK_BUFFER_MAXIMUM,  /* integers and bool */
} trek_buffer_merge;

typedef struct trek_buffer_plan {
    trek_buffer_merge merge;
    int partner;
    int tracked; /* of a synchronised batch norm's mean: where its count of batches stands, of that: the mean; else -1 */
} trek_buffer_plan;

/* Fills the replica's plans. */
void trek_buffers_plan(struct trek_replica *replica);

/* All ranks' copies of a replica's buffers, where the host can read and write them: contiguous, of the buffers' dtypes. */
typedef struct trek_buffer_room {
    const struct trek_replica *replica;
    int n_ranks;
    const double *counts;     /* [n_ranks] samples of each, not all 0; 0: only receives */
    bool apart;               /* layers that meet have not met: each rank had batches of its own */
    char *(*copy)(const struct trek_buffer_room *room, int rank, int k);
} trek_buffer_room;
/* The copies of buffers first, first + stride, ... become what the samples together would have given. Callers that take different
 * first ones may run side by side. Cannot fail. */
void trek_buffers_merge(const trek_buffer_room *room, int first, int stride);

#endif
