/* SPDX-License-Identifier: Apache-2.0 */
/* List scheduling of equal batches on ranks of different pace. Giving each batch to the rank that would end it
 * soonest is optimal. */
#include "distributed/balance/makespan_internal.h"

#include <math.h>

#include "tensor/memory_internal.h"

trek_status trek_makespan_heap_new(trek_makespan_heap *heap, int n)
{
    heap->rank = trek_calloc((size_t)n, sizeof *heap->rank);
    heap->end = heap->rank ? trek_calloc((size_t)n, sizeof *heap->end) : NULL;
    return heap->end ? TREK_OK : TREK_ERR_MEMORY;
}

void trek_makespan_heap_clear(trek_makespan_heap *heap)
{
    trek_free(heap->end);
    trek_free(heap->rank);
    *heap = (trek_makespan_heap){ 0 };
}

static bool sooner(const trek_makespan_heap *heap, int a, int b)
{
    return heap->end[a] < heap->end[b] || (heap->end[a] == heap->end[b] && a < b);
}

static void sink(trek_makespan_heap *heap, int at, int n)
{
    for (;;) {
        int least = at, child = 2 * at + 1;
        if (child < n && sooner(heap, heap->rank[child], heap->rank[least]))
            least = child;
        if (child + 1 < n && sooner(heap, heap->rank[child + 1], heap->rank[least]))
            least = child + 1;
        if (least == at)
            return;
        int swap = heap->rank[at];
        heap->rank[at] = heap->rank[least];
        heap->rank[least] = swap;
        at = least;
    }
}

/* Gives every rank floor(L / pace) batches for a level L, but at least `least`. Giving batches one by one has the
 * same result. L is chosen so that the sum cannot exceed the total; less than two batches per rank are then left. */
static int64_t give_below_level(int64_t total, const double *pace, int n, int64_t *counts)
{
    double speed = 0;
    int64_t able = 0, given = 0;
    for (int r = 0; r < n; r++) {
        speed += 1 / pace[r]; /* 1 / INFINITY is 0 */
        able += !isinf(pace[r]);
    }
    int64_t least = total >= able;
    double level = total > 2 * able ? (double)(total - able) * (1 - 1e-12) / speed : 0;
    for (int r = 0; r < n; r++) {
        int64_t below = (int64_t)floor(level / pace[r]);
        counts[r] = isinf(pace[r]) ? 0 : below > least ? below : least;
        given += counts[r];
    }
    return given;
}

void trek_makespan_split(trek_makespan_heap *heap, int64_t total, const double *pace, int n, int64_t *counts)
{
    int64_t given = give_below_level(total, pace, n, counts);
    for (int r = 0; r < n; r++) {
        heap->rank[r] = r;
        heap->end[r] = (double)(counts[r] + 1) * pace[r];
    }
    for (int at = n / 2 - 1; at >= 0; at--)
        sink(heap, at, n);
    for (; given < total; given++) {
        int r = heap->rank[0];
        counts[r]++;
        heap->end[r] = (double)(counts[r] + 1) * pace[r];
        sink(heap, 0, n);
    }
}
