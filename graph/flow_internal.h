/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TREK_GRAPH_FLOW_INTERNAL_H
#define TREK_GRAPH_FLOW_INTERNAL_H

#include "graph/flow.h"
#include "graph/graph_internal.h"

/* What `using` asked for; resolved by build, when all tags are known. */
typedef struct trek_flow_reference {
    int node;
    char *tag;
} trek_flow_reference;

struct trek_flow {
    trek_graph_layout layout;
    int n_references, cap_references, n_streams, cap_streams, n_latest, cap_latest, n_modules, cap_modules;
    trek_flow_reference *references;
    int *streams;             /* values that are open now */
    int *latest;              /* module nodes that the last verb added: what `using` means */
    int label_node;           /* what `label` means; -1: nothing */
    int fork_value;           /* what the next tag names; -1: the stream */
    trek_module **modules;    /* handed in, each once; NULL where the graph has it by now */
    bool failed;              /* out of memory on the way; the error is set */
    int n_mistakes, n_told;
    size_t length;
    char mistakes[900];       /* one a line; the rest is counted */
};

void trek_flow_mistake(trek_flow *flow, const char *format, ...) TREK_PRINTF(2, 3);

#endif
