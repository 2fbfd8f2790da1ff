/* SPDX-License-Identifier: Apache-2.0 */
/* The constants and teachers of a graph, as replicas get them. */
#ifndef TREK_GRAPH_CONSTANTS_INTERNAL_H
#define TREK_GRAPH_CONSTANTS_INTERNAL_H

#include "graph/constants.h"
#include "nn/text.h"

typedef struct trek_constant {
    char *name;
    uint64_t serial;          /* of its being set: a replica's copy has the same */
    trek_var *value;          /* owned; NULL: */
    trek_module *teacher;     /* one owner */
    trek_build_module_fn build;
    void *arg;
    int lists;                /* that hold it, of one graph: before and after a change */
} trek_constant;

/* In order of being set. */
typedef struct trek_constants {
    int n;
    trek_constant **list;
} trek_constants;

/* The constant as it is for a further rank: the value on its device, the teacher built. NULL and an error. */
trek_constant *trek_constant_copy(const trek_constant *first, trek_device device);
/* What was built gets the first one's values, or its memory. */
trek_status trek_constant_follow(const trek_constant *own, const trek_constant *first);
/* A list of n, empty places; NULL memory: false. Ended with what no other list holds. */
bool trek_constants_begin(trek_constants *constants, int n);
void trek_constants_end(trek_constants *constants);
trek_constant *trek_constants_find(const trek_constants *constants, const char *name);

/* Constants go where the graph is. */
trek_status trek_constants_move(trek_graph *graph);
/* What two processes have to agree on, as text; and every tensor of it. */
trek_status trek_constants_describe(const trek_constants *constants, trek_text *text);
typedef trek_status (*trek_constants_fn)(trek_tensor *tensor, void *arg);
trek_status trek_constants_each(const trek_constants *constants, trek_constants_fn fn, void *arg);

#endif
