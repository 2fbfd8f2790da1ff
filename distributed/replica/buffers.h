/* SPDX-License-Identifier: Apache-2.0 */
/* Merging the buffers of several ranks: what is done to which, and the arithmetic. Internal. */
#ifndef TREK_DISTRIBUTED_REPLICA_BUFFERS_H
#define TREK_DISTRIBUTED_REPLICA_BUFFERS_H

#include "autograd/var.h"

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
    int tracked;              /* of a synchronised batch norm's mean: where its count of batches stands, of that: the mean; else -1 */
} trek_buffer_plan;

void trek_buffers_plan(char *const *names, trek_var *const *buffers, int n, trek_buffer_plan *plans);

/* The ranks' copies of one floating buffer, and of its partner (NULL: none), count elements each. */
typedef struct trek_buffer_copies {
    trek_dtype dtype;
    int64_t count;
    int world;
    const double *counts;     /* [world] samples of each; 0: only receives */
    double total;             /* their sum, above 0 */
    char *const *values, *const *partners;
} trek_buffer_copies;
/* All copies become what the samples together would have given. */
void trek_buffers_merge(const trek_buffer_copies *copies);

#endif
