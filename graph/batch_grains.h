/* SPDX-License-Identifier: Apache-2.0 */
/* Several grains of a batch in one forward and one backward, with the bits that each of them has by itself. */
#ifndef TREK_GRAPH_BATCH_GRAINS_H
#define TREK_GRAPH_BATCH_GRAINS_H

#include "autograd/var_internal.h"
#include "graph/batch_run.h"

typedef struct trek_batch_grains {
    const trek_batch *all;   /* the samples of all */
    const trek_batch *grains; /* [n] the parts of it, of equal sizes, in order */
    int n;
    trek_pass_sum *const *sums; /* [n] */
    const trek_backward_groups *groups; /* who gets their gradients; groups->n is n */
    /* Called before and after the loss of a grain is computed, and once more with -1 before backward. */
    trek_status (*begin)(int k, void *arg);
    trek_status (*end)(int k, void *arg);
    void *arg;
} trek_batch_grains;

/* Returns why grains of the graph need a pass each, whatever the batch: its modules, or how they are connected. NULL: nothing
 * speaks against it. */
const char *trek_graph_grains_obstacle(const trek_graph *graph);
/* Runs them in a scope of its own, as trek_graph_run_batch does with one. If this batch cannot be divided after its forward,
 * *done becomes false, and nobody has got a gradient. *bytes becomes the memory that backward needed for all. */
trek_status trek_graph_run_grains(trek_graph *graph, const trek_batch_grains *grains, const trek_batch_run *run, bool *done,
                                  int64_t *bytes);

#endif
