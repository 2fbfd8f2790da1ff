/* SPDX-License-Identifier: Apache-2.0 */
/* Divides whole batches among ranks of different pace so that the last rank ends as soon as possible. */
#ifndef TREK_DISTRIBUTED_BALANCE_MAKESPAN_INTERNAL_H
#define TREK_DISTRIBUTED_BALANCE_MAKESPAN_INTERNAL_H

#include "tensor/status.h"

/* Scratch memory for n ranks, allocated once, so that splits cannot fail. */
typedef struct trek_makespan_heap {
    int *rank;                /* ordered by when each rank would end one more batch, the soonest first */
    double *end;              /* of each rank */
} trek_makespan_heap;

trek_status trek_makespan_heap_new(trek_makespan_heap *heap, int n);
void trek_makespan_heap_clear(trek_makespan_heap *heap);

/* Writes n counts that sum to total (>= 0) and minimise the largest count x pace. pace is the time per batch: above
 * 0, or INFINITY for a rank that gets nothing; at least one is finite. Each rank with a finite pace gets at least 1
 * batch if there are enough. If several ends are equal, lower ranks come first. The cost is O(n log n) regardless of
 * the total: batches that certainly end before the common end are given at once, the rest one by one. */
void trek_makespan_split(trek_makespan_heap *heap, int64_t total, const double *pace, int n, int64_t *counts);

#endif
