/* SPDX-License-Identifier: Apache-2.0 */
/* Layers, order and positions (Sugiyama, Tagawa and Toda 1981). The longest path determines a node's layer. Edges
 * over several layers have a slot in each layer between. Sweeps by barycentres look for an order with few crossings.
 * In that order, the positions closest to the neighbours' by least squares are found by pooling adjacent violators. */
#include "graph/picture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMN_TENTHS = 73, GAP_X = 28, GAP_Y = 44, LOOP = 30, EDGE_W = 10, SWEEPS = 12, ROUNDS = 12 };

/* A node, or an edge where it passes a layer. */
typedef struct slot {
    int node;                 /* -1: it belongs to an edge */
    int layer, place;         /* index in the order of the layer */
    double w, x, key;         /* x: the middle */
    int first_up, n_up, first_down, n_down; /* in the lists of neighbours */
} slot;

typedef struct layout {
    trek_picture *p;
    slot *slots;
    int n_slots, n_layers, n_segments;
    int *segments;            /* [n_segments][2] upper and lower slot */
    int *ups, *downs;         /* neighbours */
    int *order, *best, *starts; /* slots, layer by layer; starts: [n_layers + 1] */
    int *tree;                /* for counting */
    double *wanted, *weights, *values; /* of a layer's slots */
    int *blocks;
} layout;

/* --- sizes --------------------------------------------------------------------------- */

int trek_picture_columns(const char *line, size_t *bytes)
{
    int columns = 0;
    const unsigned char *c = (const unsigned char *)line;
    while (*c && columns < TREK_PICTURE_COLUMNS) {
        columns += *c >= 0xe1 ? 2 : 1; /* characters from U+1000 on count as wide */
        for (c++; (*c & 0xc0) == 0x80; c++)
            ;
    }
    *bytes = (size_t)(c - (const unsigned char *)line);
    return columns + (*c ? 1 : 0); /* and a sign that there is more */
}

static trek_status size_node(trek_picture_node *node)
{
    int most = 1;
    for (int k = 0; k < node->n_lines; k++) {
        size_t bytes;
        int columns = trek_picture_columns(node->lines[k], &bytes);
        most = columns > most ? columns : most;
    }
    node->head = node->n_lines * TREK_PICTURE_LINE + 12;
    node->w = most * COLUMN_TENTHS / 10 + 20;
    node->h = node->head;
    if (!node->inside)
        return TREK_OK;
    trek_status status = trek_picture_lay_out(node->inside);
    int inner = node->inside->w + 2 * TREK_PICTURE_PAD;
    node->w = inner > node->w ? inner : node->w;
    node->h = node->head + TREK_PICTURE_DROP + node->inside->h + TREK_PICTURE_PAD;
    return status;
}

/* --- layers -------------------------------------------------------------------------- */

/* Edges, except states, are ordered by their ends, so that one pass is enough. */
static void find_layers(trek_picture *p)
{
    bool changed = true;
    for (int k = 0; k < p->n_nodes; k++)
        p->nodes[k].layer = k < p->n_inputs ? 0 : 1;
    while (changed) {
        changed = false;
        for (int k = 0; k < p->n_edges; k++) {
            int above = trek_picture_upper(&p->edges[k]), below = trek_picture_lower(&p->edges[k]);
            if (above == below) {
                p->nodes[above].loops = true;
            } else if (p->nodes[below].layer <= p->nodes[above].layer) {
                p->nodes[below].layer = p->nodes[above].layer + 1;
                changed = true;
            }
        }
    }
    int last = 0;
    for (int k = 0; k + 1 < p->n_nodes; k++)
        last = p->nodes[k].layer > last ? p->nodes[k].layer : last;
    p->nodes[p->n_nodes - 1].layer = last + 1; /* nothing is below the output */
    p->n_layers = last + 2;
}

static int span(const trek_picture *p, const trek_picture_edge *edge)
{
    return p->nodes[trek_picture_lower(edge)].layer - p->nodes[trek_picture_upper(edge)].layer;
}

static trek_status make_slots(layout *l)
{
    trek_picture *p = l->p;
    size_t slots = (size_t)p->n_nodes, segments = 0;
    for (int k = 0; k < p->n_edges; k++) {
        int s = span(p, &p->edges[k]);
        slots += s > 1 ? (size_t)s - 1 : 0;
        segments += (size_t)s;
    }
    if (slots > INT_MAX / 8 || segments > INT_MAX / 8)
        return trek_fail(TREK_ERR_MEMORY, "graph_draw: out of memory for a drawing of %zu positions", slots);
    l->n_layers = p->n_layers;
    l->slots = trek_calloc(slots + 1, sizeof *l->slots);
    l->segments = trek_calloc(2 * segments + 1, sizeof *l->segments);
    l->ups = trek_calloc(segments + 1, sizeof *l->ups);
    l->downs = trek_calloc(segments + 1, sizeof *l->downs);
    l->order = trek_calloc(slots + 1, sizeof *l->order);
    l->best = trek_calloc(slots + 1, sizeof *l->best);
    l->starts = trek_calloc((size_t)l->n_layers + 2, sizeof *l->starts);
    l->tree = trek_calloc(slots + 2, sizeof *l->tree);
    l->wanted = trek_calloc(slots + 1, sizeof *l->wanted);
    l->weights = trek_calloc(slots + 1, sizeof *l->weights);
    l->values = trek_calloc(slots + 1, sizeof *l->values);
    l->blocks = trek_calloc(slots + 2, sizeof *l->blocks);
    bool made = l->slots && l->segments && l->ups && l->downs && l->order && l->best && l->starts && l->tree && l->wanted &&
        l->weights && l->values && l->blocks;
    return made ? TREK_OK : TREK_ERR_MEMORY;
}

static void free_layout(layout *l)
{
    trek_free(l->slots);
    trek_free(l->segments);
    trek_free(l->ups);
    trek_free(l->downs);
    trek_free(l->order);
    trek_free(l->best);
    trek_free(l->starts);
    trek_free(l->tree);
    trek_free(l->wanted);
    trek_free(l->weights);
    trek_free(l->values);
    trek_free(l->blocks);
}

static void add_segment(layout *l, int above, int below)
{
    l->segments[2 * l->n_segments] = above;
    l->segments[2 * l->n_segments++ + 1] = below;
    l->slots[above].n_down++;
    l->slots[below].n_up++;
}

/* Makes slots of nodes, then of each edge's intermediate layers. Bends are numbers of slots until positions are known. */
static trek_status fill_slots(layout *l)
{
    trek_picture *p = l->p;
    for (int k = 0; k < p->n_nodes; k++)
        l->slots[l->n_slots++] = (slot){ .node = k, .layer = p->nodes[k].layer,
                                         .w = p->nodes[k].w + (p->nodes[k].loops ? LOOP : 0) + GAP_X };
    for (int k = 0; k < p->n_edges; k++) {
        trek_picture_edge *edge = &p->edges[k];
        int last = trek_picture_upper(edge), s = span(p, edge);
        if (s == 0)
            continue;
        edge->bends = trek_calloc((size_t)s, sizeof *edge->bends);
        if (!edge->bends)
            return TREK_ERR_MEMORY;
        for (int j = 1; j < s; j++) {
            l->slots[l->n_slots] = (slot){ .node = -1, .layer = p->nodes[trek_picture_upper(edge)].layer + j,
                                           .w = EDGE_W + GAP_X / 2 };
            add_segment(l, last, l->n_slots);
            edge->bends[edge->n_bends++] = last = l->n_slots++;
        }
        add_segment(l, last, trek_picture_lower(edge));
    }
    return TREK_OK;
}

static void link_slots(layout *l)
{
    int up = 0, down = 0;
    for (int k = 0; k < l->n_slots; k++) {
        l->slots[k].first_up = up;
        l->slots[k].first_down = down;
        up += l->slots[k].n_up;
        down += l->slots[k].n_down;
        l->slots[k].n_up = l->slots[k].n_down = 0;
        l->starts[l->slots[k].layer + 1]++;
    }
    for (int k = 0; k < l->n_segments; k++) {
        slot *above = &l->slots[l->segments[2 * k]], *below = &l->slots[l->segments[2 * k + 1]];
        l->downs[above->first_down + above->n_down++] = l->segments[2 * k + 1];
        l->ups[below->first_up + below->n_up++] = l->segments[2 * k];
    }
    for (int k = 0; k < l->n_layers; k++)
        l->starts[k + 1] += l->starts[k];
    memset(l->tree, 0, (size_t)l->n_layers * sizeof *l->tree); /* used as counters: there are at least as many slots as layers */
    for (int k = 0; k < l->n_slots; k++) {
        int layer = l->slots[k].layer;
        l->slots[k].place = l->tree[layer]++;
        l->order[l->starts[layer] + l->slots[k].place] = k;
    }
}

/* --- order ------------------------------------------------------------------------------ */

static int by_key(const void *a, const void *b)
{
    const slot *x = *(const slot *const *)a, *y = *(const slot *const *)b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : x->place - y->place;
}

static void sort_layer(layout *l, int layer, const slot **room)
{
    int n = l->starts[layer + 1] - l->starts[layer], *order = l->order + l->starts[layer];
    for (int k = 0; k < n; k++)
        room[k] = &l->slots[order[k]];
    qsort(room, (size_t)n, sizeof *room, by_key);
    for (int k = 0; k < n; k++)
        order[k] = (int)(room[k] - l->slots);
    for (int k = 0; k < n; k++)
        l->slots[order[k]].place = k;
}

static void sweep(layout *l, bool down, const slot **room)
{
    for (int i = 1; i < l->n_layers; i++) {
        int layer = down ? i : l->n_layers - 1 - i;
        for (int k = l->starts[layer]; k < l->starts[layer + 1]; k++) {
            slot *s = &l->slots[l->order[k]];
            const int *list = down ? l->ups + s->first_up : l->downs + s->first_down;
            int n = down ? s->n_up : s->n_down;
            double sum = 0;
            for (int j = 0; j < n; j++)
                sum += l->slots[list[j]].place;
            s->key = n ? sum / n : s->place;
        }
        sort_layer(l, layer, room);
    }
}

/* Counts the pairs of segments below a layer that cross, by a Fenwick tree. */
static int64_t crossings_below(layout *l, int layer)
{
    int64_t crossings = 0, seen = 0;
    int size = l->starts[layer + 2] - l->starts[layer + 1];
    memset(l->tree, 0, (size_t)(size + 1) * sizeof *l->tree);
    for (int k = l->starts[layer]; k < l->starts[layer + 1]; k++) {
        const slot *s = &l->slots[l->order[k]];
        for (int j = 0; j < s->n_down; j++) {
            int place = l->slots[l->downs[s->first_down + j]].place, smaller = 0;
            for (int at = place + 1; at > 0; at -= at & -at)
                smaller += l->tree[at];
            crossings += seen - smaller;
        }
        for (int j = 0; j < s->n_down; j++, seen++)
            for (int at = l->slots[l->downs[s->first_down + j]].place + 1; at <= size; at += at & -at)
                l->tree[at]++;
    }
    return crossings;
}

static int64_t crossings(layout *l)
{
    int64_t sum = 0;
    for (int k = 0; k + 1 < l->n_layers; k++)
        sum += crossings_below(l, k);
    return sum;
}

static void take_order(layout *l, const int *order)
{
    if (order != l->order)
        memcpy(l->order, order, (size_t)l->n_slots * sizeof *order);
    for (int layer = 0; layer < l->n_layers; layer++)
        for (int k = l->starts[layer]; k < l->starts[layer + 1]; k++)
            l->slots[l->order[k]].place = k - l->starts[layer];
}

static trek_status find_order(layout *l)
{
    const slot **room = trek_alloc((size_t)l->n_slots * sizeof *room);
    if (!room)
        return TREK_ERR_MEMORY;
    memcpy(l->best, l->order, (size_t)l->n_slots * sizeof *l->best);
    int64_t fewest = crossings(l);
    for (int k = 0; k < SWEEPS && fewest > 0; k++) {
        sweep(l, k % 2 == 0, room);
        int64_t now = crossings(l);
        if (now < fewest) {
            fewest = now;
            memcpy(l->best, l->order, (size_t)l->n_slots * sizeof *l->best);
        }
    }
    take_order(l, l->best);
    trek_free((void *)room);
    return TREK_OK;
}

/* --- places ------------------------------------------------------------------------------- */

/* Finds the positions closest to the wanted ones, by weight, that keep the order and the distances: isotonic
 * regression. */
static void place_layer(layout *l, int layer)
{
    int first = l->starts[layer], n = l->starts[layer + 1] - first, blocks = 0;
    double offset = 0, before = 0;
    for (int k = 0; k < n; k++) {
        const slot *s = &l->slots[l->order[first + k]];
        offset += k ? (before + s->w) / 2 : 0;
        before = s->w;
        double value = l->wanted[k] - offset, weight = l->weights[k];
        l->blocks[blocks] = k;
        while (blocks > 0 && l->values[blocks - 1] > value) {
            blocks--;
            value = (value * weight + l->values[blocks] * l->tree[blocks]) / (weight + l->tree[blocks]);
            weight += l->tree[blocks];
        }
        l->values[blocks] = value;
        l->tree[blocks++] = (int)weight;
        l->blocks[blocks] = k + 1;
    }
    offset = before = 0;
    for (int b = 0; b < blocks; b++)
        for (int k = l->blocks[b]; k < l->blocks[b + 1]; k++) {
            slot *s = &l->slots[l->order[first + k]];
            offset += k ? (before + s->w) / 2 : 0;
            before = s->w;
            s->x = l->values[b] + offset;
        }
}

/* A straight edge through several layers is worth more than a straight line between boxes. */
static int weight_of(const slot *a, const slot *b) { return a->node < 0 && b->node < 0 ? 8 : a->node < 0 || b->node < 0 ? 3 : 1; }

static void pull(const layout *l, const slot *s, const int *list, int n, double *sum, double *weight)
{
    for (int j = 0; j < n; j++) {
        int w = weight_of(s, &l->slots[list[j]]);
        *sum += w * l->slots[list[j]].x;
        *weight += w;
    }
}

static void round_of_places(layout *l, bool down, bool both)
{
    for (int i = 0; i < l->n_layers; i++) {
        int layer = down ? i : l->n_layers - 1 - i;
        for (int k = l->starts[layer]; k < l->starts[layer + 1]; k++) {
            const slot *s = &l->slots[l->order[k]];
            double sum = 0, weight = 0;
            if (down || both)
                pull(l, s, l->ups + s->first_up, s->n_up, &sum, &weight);
            if (!down || both)
                pull(l, s, l->downs + s->first_down, s->n_down, &sum, &weight);
            l->wanted[k - l->starts[layer]] = weight > 0 ? sum / weight : s->x;
            l->weights[k - l->starts[layer]] = weight > 0 ? weight : 1;
        }
        place_layer(l, layer);
    }
}

static void find_places(layout *l)
{
    for (int layer = 0; layer < l->n_layers; layer++) {
        double at = 0;
        for (int k = l->starts[layer]; k < l->starts[layer + 1]; k++) {
            slot *s = &l->slots[l->order[k]];
            s->x = at + s->w / 2;
            at += s->w;
        }
    }
    for (int k = 0; k < ROUNDS; k++)
        round_of_places(l, k % 2 == 0, k >= ROUNDS - 4);
}

static trek_status give_heights(trek_picture *p)
{
    p->tops = trek_calloc((size_t)p->n_layers, sizeof *p->tops);
    p->bottoms = trek_calloc((size_t)p->n_layers, sizeof *p->bottoms);
    if (!p->tops || !p->bottoms)
        return TREK_ERR_MEMORY;
    int y = 0;
    for (int layer = 0; layer < p->n_layers; layer++) {
        int most = 0;
        for (int k = 0; k < p->n_nodes; k++)
            if (p->nodes[k].layer == layer && p->nodes[k].h > most)
                most = p->nodes[k].h;
        p->tops[layer] = y;
        p->bottoms[layer] = y + most;
        y += most + GAP_Y;
    }
    p->h = y - GAP_Y;
    return TREK_OK;
}

static void give_places(layout *l)
{
    trek_picture *p = l->p;
    double left = INFINITY, right = -INFINITY;
    for (int k = 0; k < l->n_slots; k++) {
        left = fmin(left, l->slots[k].x - l->slots[k].w / 2);
        right = fmax(right, l->slots[k].x + l->slots[k].w / 2);
    }
    for (int k = 0; k < p->n_nodes; k++) {
        trek_picture_node *node = &p->nodes[k];
        node->x = (int)(l->slots[k].x - l->slots[k].w / 2 - left + GAP_X / 2);
        node->y = p->tops[node->layer] + (node->layer == 0 || node->kind == TREK_PICTURE_NESTED
                                          ? 0 : (p->bottoms[node->layer] - p->tops[node->layer] - node->h) / 2);
    }
    for (int k = 0; k < p->n_edges; k++)
        for (int j = 0; j < p->edges[k].n_bends; j++)
            p->edges[k].bends[j] = (int)(l->slots[p->edges[k].bends[j]].x - left);
    p->w = (int)(right - left) + 1;
}

trek_status trek_picture_lay_out(trek_picture *p)
{
    layout l = { .p = p };
    trek_status status = TREK_OK;
    for (int k = 0; k < p->n_nodes && status == TREK_OK; k++)
        status = size_node(&p->nodes[k]);
    if (status == TREK_OK) {
        find_layers(p);
        status = make_slots(&l);
    }
    if (status == TREK_OK)
        status = fill_slots(&l);
    if (status == TREK_OK) {
        link_slots(&l);
        status = find_order(&l);
    }
    if (status == TREK_OK)
        status = give_heights(p);
    if (status == TREK_OK) {
        find_places(&l);
        give_places(&l);
    }
    free_layout(&l);
    return status;
}
