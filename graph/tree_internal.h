/* SPDX-License-Identifier: Apache-2.0 */
/* Functions on paths for other files. */
#ifndef TREK_GRAPH_TREE_INTERNAL_H
#define TREK_GRAPH_TREE_INTERNAL_H

#include "graph/graph_internal.h"
#include "graph/tree.h"

/* Returns the child with that name of `size` bytes, or NULL. */
trek_module *trek_path_child(const trek_module *parent, const char *name, size_t size);
/* Sets the error: the path leaves the tree at `rest`, inside `module`. */
void trek_path_tell_where(const char *function, const char *path, const char *rest, const trek_module *module);
/* Returns whether graph is not NULL; otherwise sets an error. */
bool trek_path_usable(const trek_graph *graph, const char *function);
/* Works as trek_graph_at, for another function that errors name. */
trek_module *trek_graph_module_at(trek_graph *graph, const char *path, const char *function);

#endif
