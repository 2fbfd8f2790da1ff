/* SPDX-License-Identifier: Apache-2.0 */
/* A graph as boxes with texts and arrows between them: what DOT and SVG draw. Internal. */
#ifndef TREK_GRAPH_PICTURE_H
#define TREK_GRAPH_PICTURE_H

#include "graph/draw.h"
#include "graph/graph_internal.h"

typedef enum trek_picture_kind { TREK_PICTURE_INPUT, TREK_PICTURE_OUTPUT, TREK_PICTURE_MODULE, TREK_PICTURE_MERGE,
                                 TREK_PICTURE_NESTED } trek_picture_kind;
/* An extra input is one after a module's first; a state is read by the next forward. */
typedef enum trek_picture_edge_kind { TREK_PICTURE_PLAIN, TREK_PICTURE_EXTRA, TREK_PICTURE_STATE } trek_picture_edge_kind;

enum { TREK_PICTURE_LINES = 16 };

typedef struct trek_picture_node {
    trek_picture_kind kind;
    int value;                /* that it makes, in its graph */
    char *path;               /* of a module in the whole graph; "" or NULL else */
    char *lines[TREK_PICTURE_LINES];
    int n_lines, n_head;      /* head: those of the plain picture */
    double heat;              /* its share of the graph's time, 0 to 1; -1: not measured */
    struct trek_picture *inside; /* NESTED */
    int x, y, w, h, layer;    /* of a layout: inside its picture */
    int head;                 /* of that height, above what is inside a nested one */
    bool loops;               /* reads its own state */
} trek_picture_node;

typedef struct trek_picture_edge {
    trek_picture_edge_kind kind;
    int from, to;             /* nodes; from < to, but for states */
    int port;                 /* which input of a module */
    int *bends, n_bends;      /* of a layout: where it passes the layers between its ends, from above */
} trek_picture_edge;

/* Nodes: inputs in their order, those of the layout, the output. */
typedef struct trek_picture {
    trek_picture_node *nodes;
    trek_picture_edge *edges;
    int n_nodes, n_inputs, n_edges, cap_edges;
    int number;               /* of all pictures in the whole one, which is 0 */
    int w, h;
    int *tops, *bottoms, n_layers; /* of a layout */
} trek_picture;

/* NULL and an error. */
trek_picture *trek_picture_make(trek_graph *graph, const trek_graph_draw_opts *opts);
void trek_picture_free(trek_picture *picture);
/* Gives every node a layer, a size and a place, and every edge a place in each layer that it passes; nothing overlaps. */
trek_status trek_picture_lay_out(trek_picture *picture);
/* Around what is inside a nested node: at its sides, and below its texts; and how far lines are apart. */
enum { TREK_PICTURE_PAD = 16, TREK_PICTURE_DROP = 12, TREK_PICTURE_LINE = 16 };
/* Columns that a line of text takes, of which it shows at most TREK_PICTURE_COLUMNS; *bytes: of what is shown. */
enum { TREK_PICTURE_COLUMNS = 56 };
int trek_picture_columns(const char *line, size_t *bytes);
/* The upper and the lower end of an edge: states go up. */
static inline int trek_picture_upper(const trek_picture_edge *edge)
{
    return edge->kind == TREK_PICTURE_STATE ? edge->to : edge->from;
}
static inline int trek_picture_lower(const trek_picture_edge *edge)
{
    return edge->kind == TREK_PICTURE_STATE ? edge->from : edge->to;
}

#endif
