/* SPDX-License-Identifier: Apache-2.0 */
/* Dividing whole batches among ranks of different pace so that the last one ends
 * as soon as possible. Internal. */
#ifndef TREK_DISTRIBUTED_BALANCE_MAKESPAN_INTERNAL_H
#define TREK_DISTRIBUTED_BALANCE_MAKESPAN_INTERNAL_H

#include "tensor/status.h"

/* Scratch for n ranks, made once, so that splits cannot fail. */
typedef struct trek_makespan_heap {
    int *rank;                /* by when each would end one batch more, the soonest first */
    double *end;              /* of each rank */
} trek_makespan_heap;

trek_status trek_makespan_heap_new(trek_makespan_heap *heap, int n);
void trek_makespan_heap_clear(trek_makespan_heap *heap);

/* Writes n counts that sum to total (>= 0) and minimise the largest count x pace,
 * pace being time per batch: above 0, or INFINITY for a rank that gets nothing; one at least is finite. Each
 * rank that may get some gets at least 1, if there are enough. Where several
 * ends are equal, lower ranks come first. List scheduling, in O(n log n) whatever the total:
 * what surely lies below the common end is given at once, the rest one by one. */
void trek_makespan_split(trek_makespan_heap *heap, int64_t total, const double *pace, int n, int64_t *counts);

#endif
