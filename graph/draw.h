/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures of a graph: in Graphviz' DOT language, and as SVG that trek lays out itself. */
#ifndef TREK_GRAPH_DRAW_H
#define TREK_GRAPH_DRAW_H

#include "graph/graph.h"
#include "graph/summary.h"
#include "graph/timeline.h"

TREK_BEGIN

/* All off by default. */
typedef struct trek_graph_draw_opts {
    trek_timeline *timeline;        /* with ops: boxes are coloured by their share of the graph's time, forward and backward, and
                                       tell its milliseconds per forward; on GPUs as far as they were measured there (see
                                       trek_graph_record_times, which says what counts) */
    const trek_summary_opts
        *run; /* runs the graph on these inputs, as trek_module_summary_with does: shapes of what modules make */
    bool params;                    /* numbers of parameters */
    bool children;                  /* what modules that are no graphs are made of, by name and class; at most 8 of each */
    int nested;                     /* so many levels of nested graphs are drawn as graphs; TREK_OFF: all */
} trek_graph_draw_opts;

/* trek_graph_dot with more in it: nested graphs are clusters, heat is the colour of a box. opts may be NULL. A new string
 * (trek_string_free); NULL and ARGUMENT, MEMORY, STATE (a timeline without ops), or what running it reports. */
TREK_API char *trek_graph_dot_with(trek_graph *graph, const trek_graph_draw_opts *opts);

/* The same as a picture of its own, an SVG file's text in UTF-8: readable on light and dark ground (prefers-color-scheme),
 * without scripts, fonts or anything from elsewhere. Layers follow the longest path from the inputs; the order in a layer comes
 * from barycentres (Sugiyama, Tagawa and Toda 1981), places from least squares under the order; edges pass between boxes. States
 * are dashed, further inputs thick. Every module's box has its path as title. */
TREK_API char *trek_graph_svg(trek_graph *graph, const trek_graph_draw_opts *opts);

TREK_END

#endif
