/* SPDX-License-Identifier: Apache-2.0 */
/* What a graph consists of, and what its last forward computed. The rules of graph/graph.h apply. */
#ifndef TREK_GRAPH_INSPECT_H
#define TREK_GRAPH_INSPECT_H

#include "graph/graph.h"

TREK_BEGIN

/* Returns the module as a graph. To make a graph from any other module, call trek_flow_build(trek_flow_from(module)).
 * Errors: NULL with ARGUMENT if the module is not a graph; the class of a graph (trek_module_class_of) is called "graph". */
TREK_API trek_graph *trek_graph_from_module(trek_module *module);
/* Returns the number of the graph's tags, or 0 if `graph` is NULL. */
TREK_API int trek_graph_tag_count(const trek_graph *graph);
/* Returns the name of tag k, borrowed, or NULL if k is out of range. Tags are in the order in which the flow defined them. */
TREK_API const char *trek_graph_tag_name(const trek_graph *graph, int k);
/* Returns how many values a loop published under `name` in the last forward (trek_loop_publish, trek_loop_opts.trace). It is 0
 * for an unknown name and -1 on failure. If several loops use the name, "path.name" selects one, with a path as in
 * trek_graph_at. For an inner loop the values are those of its last run.
 * Errors: ARGUMENT if several loops use the name. */
TREK_API int trek_graph_trace_count(trek_graph *graph, const char *name);
/* Returns value k, counted from 0, that a loop published under `name` in the last forward; see trek_graph_trace_count. On one
 * rank it is borrowed until the next forward or step; a step detaches it from the tape. With several ranks it is detached,
 * joined along dimension 0 in the order of the ranks, and belongs to the current scope. A rank whose rows had all halted
 * before contributes its last value.
 * Errors: ARGUMENT if no such value exists or several loops use the name; UNSUPPORTED for scalars of several ranks. */
TREK_API trek_var *trek_graph_trace(trek_graph *graph, const char *name, int k);
/* The number of bytes that trek_graph_hash needs for its text. */
#define TREK_GRAPH_HASH_TEXT 65

/* Writes the SHA-256 hash of the graph's structure as 64 hexadecimal digits to `text`, and returns `text`. The hash covers the
 * classes of the nodes, the edges, and the hashes of nested graphs. It covers the sorted names of parameters and buffers with
 * their shapes and dtypes, the sorted tags, and the names of the inputs. It covers the options and parts of loops, gates,
 * switches and maps. It covers neither labels nor values. Errors: ARGUMENT if `capacity`, the size of text in bytes, is below
 * TREK_GRAPH_HASH_TEXT. MEMORY. NULL is returned. */
TREK_API char *trek_graph_hash(trek_graph *graph, char *text, size_t capacity);
/* Returns a drawing of the graph in the DOT language of Graphviz. The caller frees the string with trek_string_free. draw.h has
 * more drawings, also as SVG. */
TREK_API char *trek_graph_dot(trek_graph *graph);

TREK_END

#endif
