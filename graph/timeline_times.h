/* SPDX-License-Identifier: Apache-2.0 */
/* The times of a graph's modules, from a timeline with ops. */
#ifndef TREK_GRAPH_TIMELINE_TIMES_H
#define TREK_GRAPH_TIMELINE_TIMES_H

#include "graph/graph_internal.h"
#include "graph/timeline.h"

typedef struct trek_module_time {
    const char *path;         /* within the graph; "": the graph itself. It lives as long as the program */
    const char *result;       /* the result of its last forward, "f32[64, 10]"; "": not known */
    double flops, made_bytes, result_bytes; /* of forwards, summed over calls */
    int64_t forward_ns, backward_ns, calls; /* summed over calls and ranks, including what is inside; on its device if that is
                                             * measured */
} trek_module_time;

typedef struct trek_module_times {
    trek_module_time *list;   /* ordered by path */
    int n;
} trek_module_times;

/* Collects the times of the graph's own runs, of one rank or, with rank < 0, of all ranks of this process. They must
 * be freed, also on failure. */
trek_status trek_module_times_make(trek_module_times *times, const trek_graph *graph, trek_timeline *timeline, int rank);
void trek_module_times_free(trek_module_times *times);
/* Returns the index of the path in the list, or where it would be. */
int trek_module_times_place(const trek_module_times *times, const char *path);
const trek_module_time *trek_module_times_find(const trek_module_times *times, const char *path); /* NULL: none */

#endif
