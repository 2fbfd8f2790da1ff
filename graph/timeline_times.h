/* SPDX-License-Identifier: Apache-2.0 */
/* What a graph's modules took, of a timeline with ops. Internal. */
#ifndef TREK_GRAPH_TIMELINE_TIMES_H
#define TREK_GRAPH_TIMELINE_TIMES_H

#include "graph/graph_internal.h"
#include "graph/timeline.h"

typedef struct trek_module_time {
    const char *path;         /* in the graph; "": itself. Lives as long as the program */
    const char *result;       /* what its last forward gave, "f32[64, 10]"; "": not known */
    double flops, made_bytes, result_bytes; /* of forwards, over calls */
    int64_t forward_ns, backward_ns, calls; /* over calls and ranks, with what is inside; on its device where that is measured */
} trek_module_time;

typedef struct trek_module_times {
    trek_module_time *list;   /* in order of their paths */
    int n;
} trek_module_times;

/* Of the graph's own runs; of one rank, or with rank < 0 of all of this process. To be freed also on failure. */
trek_status trek_module_times_make(trek_module_times *times, const trek_graph *graph, trek_timeline *timeline, int rank);
void trek_module_times_free(trek_module_times *times);
/* Where the path stands in the list, or would. */
int trek_module_times_place(const trek_module_times *times, const char *path);
const trek_module_time *trek_module_times_find(const trek_module_times *times, const char *path); /* NULL: none */

#endif
