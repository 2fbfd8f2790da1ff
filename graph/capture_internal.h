/* SPDX-License-Identifier: Apache-2.0 */
/* Captured steps: what a run of a step function touched from outside itself. */
#ifndef TREK_GRAPH_CAPTURE_INTERNAL_H
#define TREK_GRAPH_CAPTURE_INTERNAL_H

#include "graph/capture.h"
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

/* --- parts of steps ---------------------------------------------------------------------------- */

/* Records of a part of a step, on the thread that runs it. They are made, used and freed on that thread. They are as those of
 * trek_graph_capture, but the part's own stepper begins and ends recordings, of which only `capture` is called. */
struct trek_captures *trek_captures_new(trek_stepper *stepper);
void trek_captures_free(struct trek_captures **captures);
/* Sets input k of the next runs, which is retained until the next one is set. */
void trek_captures_give(struct trek_captures *captures, int k, trek_var *value);
/* Returns input k, and sets result k, inside the function. */
trek_var *trek_captures_input(const struct trek_captures *captures, int k);
trek_status trek_captures_put(struct trek_captures *captures, int k, trek_var *value);
/* Returns result k of the last run, borrowed until the next one. NULL: it has set none. */
trek_var *trek_captures_output(const struct trek_captures *captures, int k);
/* Calls, records or replays `step`, which uses the modules of `graph`. */
trek_status trek_captures_run(trek_graph *graph, struct trek_captures *captures, trek_step_fn step, void *arg);
/* Returns why runs are not recorded; "": they are. */
const char *trek_captures_problem(const struct trek_captures *captures);
int64_t trek_captures_replays(const struct trek_captures *captures);
/* Returns whether trek_graph_capture runs a function whose step the graph's stepper records in parts. */
bool trek_graph_is_in_parts(const trek_graph *graph);

#endif
