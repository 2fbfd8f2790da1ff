/* SPDX-License-Identifier: Apache-2.0 */
/* Watching training. The lower layers report what happens to a graph, and monitor/ listens. (A graph's `watched_by`
 * belongs to the watcher, which finds its data by it.) It costs one load and one branch while nobody watches. The
 * functions are called on the thread that trains; they must not fail or leave an error behind. */
#ifndef TREK_GRAPH_WATCH_H
#define TREK_GRAPH_WATCH_H

#include <stdatomic.h>

#include "graph/graph.h"

struct trek_epoch_metrics;

typedef struct trek_graph_watch {
    void (*loss)(trek_graph *graph, trek_var *loss);   /* of a pass */
    void (*stepping)(trek_graph *graph);               /* before a step: gradients are complete */
    void (*stepped)(trek_graph *graph);                /* after a step that succeeded */
    void (*flushing)(trek_graph *graph);               /* the point ends: observations are complete */
    void (*freed)(trek_graph *graph);
    /* From trek_trainer_run: */
    void (*began)(trek_graph *graph, int64_t epochs);
    void (*epoch)(trek_graph *graph, const struct trek_epoch_metrics *metrics);
    void (*ended)(trek_status status, const char *message, bool stopped);
} trek_graph_watch;

extern _Atomic(const trek_graph_watch *) trek_graph_watcher; /* NULL: nobody watches */

static inline const trek_graph_watch *trek_graph_watched(void)
{
    return atomic_load_explicit(&trek_graph_watcher, memory_order_acquire);
}

#endif
