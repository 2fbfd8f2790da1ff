/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TREK_GRAPH_FLOW_INTERNAL_H
#define TREK_GRAPH_FLOW_INTERNAL_H

#include "graph/flow.h"
#include "graph/graph_internal.h"

/* What `using` asked for; resolved by build, when all tags are known. */
typedef struct trek_flow_reference {
    int node;
    char *tag;
    char *input;              /* the place's name among the module's inputs; NULL: the tag's, or the next free place */
} trek_flow_reference;

struct trek_flow {
    trek_graph_layout layout;
    int n_references, cap_references, n_streams, cap_streams, n_latest, cap_latest, n_modules, cap_modules;
    trek_flow_reference *references;
    int *streams;             /* values that are open now */
    int *latest;              /* module nodes that the last verb added: what `using` means */
    int label_node;           /* what `label` means; -1: nothing */
    int fork_value;           /* what the next tag names; -1: the stream */
    trek_module **modules;    /* handed in, each once */
    bool failed;              /* out of memory on the way; the error is set */
    int n_mistakes, n_told;
    size_t length;
    char mistakes[900];       /* one a line; the rest is counted */
};

void trek_flow_mistake(trek_flow *flow, const char *format, ...) TREK_PRINTF(2, 3);

/* --- what verbs begin with, and end in (flow.c) ------------------------------------- */

/* There is one, and it was not built or freed before. */
bool trek_flow_usable(const trek_flow *flow, const char *verb);
/* Of a verb without a flow: frees the modules (those that are not NULL, each once); NULL. */
trek_flow *trek_flow_none(const char *function, trek_module *const *modules, int n);
void trek_flow_free_list(trek_module *const *modules, int n);
/* Every verb that adds modules begins with this. */
void trek_flow_begin_verb(trek_flow *flow);
/* Remembers the module as the flow's. False: there is none, or no memory (then it has been freed). */
bool trek_flow_take(trek_flow *flow, const char *verb, trek_module *module);
/* The only stream's value, or -1 and a mistake, which names the module. */
int trek_flow_single_stream(trek_flow *flow, const char *verb, const trek_module *module);
/* A node of the module, which reads the value; its output, or -1 without memory. */
int trek_flow_add_module(trek_flow *flow, trek_module *module, int input);

#endif
