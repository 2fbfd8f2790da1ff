/* SPDX-License-Identifier: Apache-2.0 */
/* The constants and teachers of a graph, and how replicas get them. */
#ifndef TREK_GRAPH_CONSTANTS_INTERNAL_H
#define TREK_GRAPH_CONSTANTS_INTERNAL_H

#include "graph/constants.h"
#include "nn/text.h"

typedef struct trek_constant {
    char *name;
    uint64_t serial;          /* changes whenever it is set; a replica's copy has the same */
    trek_var *value;          /* owned; if it is NULL: */
    trek_module *teacher;     /* one of its owners */
    trek_build_module_fn build;
    void *arg;
    int lists;                /* how many lists of one graph hold it: before and after a change */
} trek_constant;

/* In the order in which they were set. */
typedef struct trek_constants {
    int n;
    trek_constant **list;
} trek_constants;

/* Returns a copy of the constant for a further rank: its value on the rank's device, or a newly built teacher.
 * Returns NULL on failure. */
trek_constant *trek_constant_copy(const trek_constant *first, trek_device device);
/* Gives a teacher that was built the values of the first one, or its memory. */
trek_status trek_constant_follow(const trek_constant *own, const trek_constant *first);
/* Make a list of n empty entries (false: no memory), and free it with the constants that no other list holds. */
bool trek_constants_begin(trek_constants *constants, int n);
void trek_constants_end(trek_constants *constants);
trek_constant *trek_constants_find(const trek_constants *constants, const char *name);

/* Moves constants to the graph's device. */
trek_status trek_constants_move(trek_graph *graph);
/* Describe what two processes must have in common, as text, and call a function for every tensor of it. */
trek_status trek_constants_describe(const trek_constants *constants, trek_text *text);
typedef trek_status (*trek_constants_fn)(trek_tensor *tensor, void *arg);
trek_status trek_constants_each(const trek_constants *constants, trek_constants_fn fn, void *arg);

#endif
