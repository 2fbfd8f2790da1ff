/* SPDX-License-Identifier: Apache-2.0 */
/* Drawings of a graph: in the DOT language of Graphviz, and as SVG with a layout of trek. */
#ifndef TREK_GRAPH_DRAW_H
#define TREK_GRAPH_DRAW_H

#include "graph/graph.h"
#include "graph/summary.h"
#include "graph/timeline.h"

TREK_BEGIN

/* Options of a drawing. All of them are off by default. */
typedef struct trek_graph_draw_opts {
    /* A timeline with ops: a box is coloured by its share of the graph's time, forward and backward, and shows its milliseconds
     * per forward. Times on GPUs are shown if they were measured. trek_graph_record_times says which runs count. */
    trek_timeline *timeline;
    const trek_summary_opts *run; /* runs the graph on these inputs (trek_module_summary_with) to show the shapes of results */
    bool params;                  /* shows the numbers of parameters */
    bool children;                /* shows names and classes of the children of modules that are not graphs, at most 8 of each */
    int nested;                   /* how many levels of nested graphs are drawn as graphs; TREK_OFF: all */
} trek_graph_draw_opts;

/* Returns a drawing of the graph in the DOT language of Graphviz, with the details that `opts` selects. Nested graphs are
 * clusters, and the time of a module is the colour of its box. `opts` may be NULL. The caller frees the string with
 * trek_string_free.
 * Errors: ARGUMENT, MEMORY. STATE if the timeline does not record ops. Errors of running the graph. NULL is returned. */
TREK_API char *trek_graph_dot_with(trek_graph *graph, const trek_graph_draw_opts *opts);

/* Returns a drawing of the graph as the text of an SVG file in UTF-8, with the details that `opts` selects. `opts` may be NULL.
 * The drawing is readable on a light and on a dark background (prefers-color-scheme) and needs no scripts, fonts or other files.
 * Layers follow the longest path from the inputs. The order in a layer is computed by barycentres (Sugiyama, Tagawa and Toda
 * 1981), the coordinates by least squares with this order. Edges pass between boxes. States are dashed, further inputs are
 * thick. The box of a module has its path as its title. The caller frees the string with trek_string_free.
 * Errors: as trek_graph_dot_with. */
TREK_API char *trek_graph_svg(trek_graph *graph, const trek_graph_draw_opts *opts);

TREK_END

#endif
