/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TREK_GRAPH_FLOW_INTERNAL_H
#define TREK_GRAPH_FLOW_INTERNAL_H

#include "graph/flow.h"
#include "graph/graph_internal.h"

/* A request of `using`. It is resolved by build, when all tags are known. */
typedef struct trek_flow_reference {
    int node;
    char *tag;
    char *input;              /* the name of the module's input; NULL: the tag's name, or the next free input */
} trek_flow_reference;

struct trek_flow {
    trek_graph_layout layout;
    int n_references, cap_references, n_streams, cap_streams, n_latest, cap_latest, n_modules, cap_modules;
    trek_flow_reference *references;
    int *streams;             /* values at which the flow continues */
    int *latest;              /* module nodes that the last verb added, to which `using` refers */
    int label_node;           /* the node to which `label` refers; -1: none */
    int fork_value;           /* the value that the next tag names; -1: the stream */
    trek_module **modules;    /* all that were given, each once */
    bool failed;              /* memory was missing; the error is set */
    int n_mistakes, n_told;
    size_t length;
    char mistakes[900];       /* one on each line; further ones are counted */
};

void trek_flow_mistake(trek_flow *flow, const char *format, ...) TREK_PRINTF(2, 3);

/* --- what verbs begin with, and end in (flow.c) ------------------------------------- */

/* Returns whether there is a flow that was not built or freed before. */
bool trek_flow_usable(const trek_flow *flow, const char *verb);
/* Handles a verb without a flow: frees the modules (those that are not NULL, each once) and returns NULL. */
trek_flow *trek_flow_none(const char *function, trek_module *const *modules, int n);
void trek_flow_free_list(trek_module *const *modules, int n);
/* Every verb that adds modules must begin with this. */
void trek_flow_begin_verb(trek_flow *flow);
/* Stores the module as one of the flow's. Returns false if the module is NULL, or if there is no memory (then it has
 * been freed). */
bool trek_flow_take(trek_flow *flow, const char *verb, trek_module *module);
/* Returns the value of the only stream, or -1 after a mistake, which names the module. */
int trek_flow_single_stream(trek_flow *flow, const char *verb, const trek_module *module);
/* Adds a node of the module that reads the value. Returns its output, or -1 if there is no memory. */
int trek_flow_add_module(trek_flow *flow, trek_module *module, int input);

#endif
