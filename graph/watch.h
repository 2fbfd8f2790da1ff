/* SPDX-License-Identifier: Apache-2.0 */
/* Who watches training: the lower floors tell what happens to a graph, monitor/ hears it (a graph's `watched_by` is its own, to
 * find at once what it keeps of it). One load and a branch while nobody watches. Called on the thread that trains; none of these
 * may fail, or leave an error behind. Internal. */
#ifndef TREK_GRAPH_WATCH_H
#define TREK_GRAPH_WATCH_H

#include <stdatomic.h>

#include "graph/graph.h"

struct trek_epoch_metrics;

typedef struct trek_graph_watch {
    void (*loss)(trek_graph *graph, trek_var *loss);   /* of a pass */
    void (*stepping)(trek_graph *graph);               /* before a step: gradients are there */
    void (*stepped)(trek_graph *graph);                /* after one that succeeded */
    void (*flushing)(trek_graph *graph);               /* the point ends: observations are complete */
    void (*freed)(trek_graph *graph);
    /* of trek_trainer_run */
    void (*began)(trek_graph *graph, int64_t epochs);
    void (*epoch)(trek_graph *graph, const struct trek_epoch_metrics *metrics);
    void (*ended)(trek_status status, const char *message, bool stopped);
} trek_graph_watch;

extern _Atomic(const trek_graph_watch *) trek_graph_watcher; /* NULL: nobody */

static inline const trek_graph_watch *trek_graph_watched(void)
{
    return atomic_load_explicit(&trek_graph_watcher, memory_order_acquire);
}

#endif
