/* SPDX-License-Identifier: Apache-2.0 */
/* Decides who trains which batches of an epoch. Batches are handed out in stretches, in order; those that a lost rank
 * had not trained are handed out first. This is pure arithmetic, and every process computes the same. */
#ifndef TREK_DISTRIBUTED_BACKGROUND_DISPATCH_H
#define TREK_DISTRIBUTED_BACKGROUND_DISPATCH_H

#include "tensor/status.h"

/* Batches [first, end) of the epoch. */
typedef struct trek_stretch {
    int64_t first, end;
} trek_stretch;

enum { TREK_ALLOTMENT_STRETCHES = 4 };

/* What a rank trains in one round. */
typedef struct trek_allotment {
    int n;
    trek_stretch of[TREK_ALLOTMENT_STRETCHES];
} trek_allotment;
int64_t trek_allotment_batches(const trek_allotment *allotment);

typedef struct trek_dispatch {
    int n, capacity;
    trek_stretch *left;      /* stretches to hand out; the last one comes next */
} trek_dispatch;

/* Begins with batches [first, end) to hand out. Fails with MEMORY. */
trek_status trek_dispatch_begin(trek_dispatch *dispatch, int64_t first, int64_t end);
int64_t trek_dispatch_left(const trek_dispatch *dispatch);
/* Takes at most `count` batches. It takes fewer if fewer are left, or if they would be in too many stretches. */
void trek_dispatch_take(trek_dispatch *dispatch, int64_t count, trek_allotment *to);
/* Takes back batches that were not trained, to hand them out again. Fails with MEMORY. */
trek_status trek_dispatch_give_back(trek_dispatch *dispatch, const trek_allotment *from);
/* Drops everything that is left. */
void trek_dispatch_drop(trek_dispatch *dispatch);
void trek_dispatch_free(trek_dispatch *dispatch);

#endif
