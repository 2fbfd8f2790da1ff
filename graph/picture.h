/* SPDX-License-Identifier: Apache-2.0 */
/* A graph as boxes with texts and arrows between them, for DOT and SVG. */
#ifndef TREK_GRAPH_PICTURE_H
#define TREK_GRAPH_PICTURE_H

#include "graph/draw.h"
#include "graph/graph_internal.h"

typedef enum trek_picture_kind { TREK_PICTURE_INPUT, TREK_PICTURE_OUTPUT, TREK_PICTURE_MODULE, TREK_PICTURE_MERGE,
                                 TREK_PICTURE_NESTED } trek_picture_kind;
/* An extra input is an input after a module's first; a state is read by the next forward. */
typedef enum trek_picture_edge_kind { TREK_PICTURE_PLAIN, TREK_PICTURE_EXTRA, TREK_PICTURE_STATE } trek_picture_edge_kind;

enum { TREK_PICTURE_LINES = 16 };

typedef struct trek_picture_node {
    trek_picture_kind kind;
    int value;                /* that it makes, in its graph */
    char *path;               /* of a module in the whole graph; otherwise "" or NULL */
    char *lines[TREK_PICTURE_LINES];
    int n_lines, n_head;      /* n_head: the lines of the plain picture */
    double heat;              /* its part of the graph's time, 0 to 1; -1: not measured */
    struct trek_picture *inside; /* of a nested graph */
    int x, y, w, h, layer;    /* set by the layout: within its picture */
    int head;                 /* of that height, the part above the inside of a nested graph */
    bool loops;               /* it reads its own state */
} trek_picture_node;

typedef struct trek_picture_edge {
    trek_picture_edge_kind kind;
    int from, to;             /* nodes; from < to, except for states */
    int port;                 /* the input of a module */
    int *bends, n_bends;      /* set by the layout: where it passes the layers between its ends, from above */
} trek_picture_edge;

/* The nodes are the inputs in order, those of the layout, and the output. */
typedef struct trek_picture {
    trek_picture_node *nodes;
    trek_picture_edge *edges;
    int n_nodes, n_inputs, n_edges, cap_edges;
    int number;               /* among all pictures of the whole one, which is 0 */
    int w, h;
    int *tops, *bottoms, n_layers; /* set by the layout */
} trek_picture;

/* Returns NULL on failure. */
trek_picture *trek_picture_make(trek_graph *graph, const trek_graph_draw_opts *opts);
void trek_picture_free(trek_picture *picture);
/* Gives every node a layer, a size and a position, and every edge a position in each layer that it passes. Nothing
 * overlaps. */
trek_status trek_picture_lay_out(trek_picture *picture);
/* Space around the inside of a nested node: at its sides, and below its texts; and the distance of lines. */
enum { TREK_PICTURE_PAD = 16, TREK_PICTURE_DROP = 12, TREK_PICTURE_LINE = 16 };
/* Returns how many columns a line of text takes, of which it shows at most TREK_PICTURE_COLUMNS. *bytes: of the part
 * that is shown. */
enum { TREK_PICTURE_COLUMNS = 56 };
int trek_picture_columns(const char *line, size_t *bytes);
/* Return the upper and the lower end of an edge; states go up. */
static inline int trek_picture_upper(const trek_picture_edge *edge)
{
    return edge->kind == TREK_PICTURE_STATE ? edge->to : edge->from;
}
static inline int trek_picture_lower(const trek_picture_edge *edge)
{
    return edge->kind == TREK_PICTURE_STATE ? edge->from : edge->to;
}

#endif
