/* SPDX-License-Identifier: Apache-2.0 */
/* What a graph knows of its loader and of its registered loss. */
#ifndef TREK_GRAPH_GRAPH_LOADER_INTERNAL_H
#define TREK_GRAPH_GRAPH_LOADER_INTERNAL_H

#include "data/loader_internal.h"
#include "graph/graph_internal.h"
#include "graph/graph_loader.h"

#define TREK_MEASURED "trek:"

typedef struct trek_graph_loader {
    trek_loader *loader;     /* NULL: none */
    int *fields;             /* [inputs] indices of the dataset's fields */
    bool by_loss;            /* the loss runs the forward itself */
    int64_t most_batches;    /* the most that ranks may read themselves in a pass; 0: as many as they like */
    bool measures;           /* losses, samples and times are observed, under names that begin with TREK_MEASURED */
    trek_loss_fn loss;       /* NULL: none */
    void *arg;
    const char *loss_name;   /* the name by which its program calls it, which must stay valid; NULL: the function of
                              * trek_graph_set_loss */
} trek_graph_loader;

static inline void trek_graph_loader_free(trek_graph *graph)
{
    if (graph->graph_loader)
        trek_free(graph->graph_loader->fields);
    trek_free(graph->graph_loader);
    graph->graph_loader = NULL;
}

#endif
