/* SPDX-License-Identifier: Apache-2.0 */
/* Which batches of an epoch are whose: they are handed out in stretches, in order, and those that a lost rank had not trained
 * come back first. Plain arithmetic: every process does the same. Internal. */
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
    trek_stretch *left;      /* the last one is handed out next */
} trek_dispatch;

/* Everything that is left is [first, end). MEMORY. */
trek_status trek_dispatch_begin(trek_dispatch *dispatch, int64_t first, int64_t end);
int64_t trek_dispatch_left(const trek_dispatch *dispatch);
/* At most `count` batches; fewer where there are no more, or they would be in too many stretches. */
void trek_dispatch_take(trek_dispatch *dispatch, int64_t count, trek_allotment *to);
/* Was not trained, and is to be handed out again. MEMORY. */
trek_status trek_dispatch_give_back(trek_dispatch *dispatch, const trek_allotment *from);
/* Nothing is left. */
void trek_dispatch_drop(trek_dispatch *dispatch);
void trek_dispatch_free(trek_dispatch *dispatch);

#endif
