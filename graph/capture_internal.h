/* SPDX-License-Identifier: Apache-2.0 */
/* Captured steps: what a run of a step function touched from outside itself. */
#ifndef TREK_GRAPH_CAPTURE_INTERNAL_H
#define TREK_GRAPH_CAPTURE_INTERNAL_H

#include "graph/graph_internal.h"
#include "nn/pointer_map.h"
#include "tensor/rank_context.h"
#include "tensor/tensor_internal.h"

/* A tensor that existed before the run, listed once for each storage. */
typedef struct trek_touched {
    trek_tensor *tensor;       /* retained, because replays keep using its memory */
    bool written;
} trek_touched;

typedef struct trek_touch_list {
    trek_rank_watch watch;
    trek_device device;
    const trek_stepper *stepper; /* the stepper whose step is running */
    int n, capacity;
    trek_touched *entries;
    trek_pointer_map seen;     /* from storages to indices in entries */
    bool failed;               /* out of memory: the list is incomplete */
    const char *problem;       /* something that a replay would not do; NULL: nothing */
} trek_touch_list;

/* Begin and end watching the calling thread and those of the stepper's ranks. The list is zeroed, or comes from an
 * earlier watching. */
void trek_touch_begin(trek_touch_list *list, const trek_stepper *stepper, trek_device device);
void trek_touch_end(void);
void trek_touch_clear(trek_touch_list *list);
/* Returns whether everything in `later` is also in `earlier`. */
bool trek_touch_within(const trek_touch_list *later, const trek_touch_list *earlier);
/* Counts a write to each tensor that was written. */
void trek_touch_bump(const trek_touch_list *list);

#endif
