/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a picture as SVG. Edges run straight down next to the boxes of a layer and bend between layers, so that they
 * cross no box. */
#include "graph/picture.h"

#include <string.h>

#include "nn/utf8.h"

enum { MARGIN = 20 };

static const char style[] =
    "<style>"
    "text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,\"DejaVu Sans Mono\",monospace;fill:#1d2530}"
    ".h{font-weight:bold}.s{fill:#5a6572}.g{fill:#fff}.b{fill:#f2f5f9;stroke:#8d98a5}.c{fill:#8d98a5;fill-opacity:.07;stroke:#"
    "8d98a5}"
    ".i{fill:#e3f0e8;stroke:#5f9b78}.o{fill:#e6ecf8;stroke:#6a86c0}.p{fill:#fbf3dd;stroke:#b99b4a}.f{fill:#e8590c}"
    ".e{fill:none;stroke:#6b7684;stroke-width:1.3}.x{stroke-width:2.4}.d{stroke-dasharray:5 4}.m{fill:#6b7684}"
    "@media(prefers-color-scheme:dark){"
    "text{fill:#e4e9f0}.s{fill:#a3afbd}.g{fill:#11161d}.b{fill:#1e2732;stroke:#66727f}.c{stroke:#66727f}"
    ".i{fill:#1c3327;stroke:#5f9b78}.o{fill:#1f2a44;stroke:#6a86c0}.p{fill:#3a3117;stroke:#b99b4a}.f{fill:#ff7a33}"
    ".e{stroke:#93a0ae}.m{fill:#93a0ae}}"
    "</style>";

/* --- text -------------------------------------------------------------------------- */

/* Escapes text. Characters that XML does not allow become question marks. */
static void add_text(trek_text *text, const char *string, size_t bytes)
{
    for (size_t k = 0; k < bytes;) {
        unsigned char c = (unsigned char)string[k];
        size_t length = c < 0x80 ? 1 : c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
        bool fine = k + length <= bytes && trek_utf8_valid(string + k, length) && c >= 0x20 && c != 0x7f;
        bool none = fine && length == 3 && memcmp(string + k, "\xef\xbf", 2) == 0 && (unsigned char)string[k + 2] >= 0xbe;
        if (!fine || none) {
            trek_text_add(text, "?");
            k += none ? length : 1;
            continue;
        }
        switch (c) {
        case '&': trek_text_add(text, "&amp;"); break;
        case '<': trek_text_add(text, "&lt;"); break;
        case '>': trek_text_add(text, "&gt;"); break;
        case '"': trek_text_add(text, "&quot;"); break;
        case '\'': trek_text_add(text, "&#39;"); break;
        default: trek_text_bytes(text, string + k, length);
        }
        k += length;
    }
}

static void add_line(trek_text *text, const char *line, int x, int y, bool centred, const char *klass)
{
    size_t bytes;
    trek_picture_columns(line, &bytes);
    trek_text_format(text, "<text x=\"%d\" y=\"%d\"", x, y);
    if (*klass)
        trek_text_format(text, " class=\"%s\"", klass);
    trek_text_add(text, centred ? " text-anchor=\"middle\">" : ">");
    add_text(text, line, bytes);
    trek_text_add(text, line[bytes] ? "\xe2\x80\xa6</text>\n" : "</text>\n");
}

/* --- boxes ------------------------------------------------------------------------- */

static void add_box(trek_text *text, const trek_picture_node *node, int x, int y)
{
    static const char *const classes[] = { "i", "o", "b", "p", "c" };
    bool round = node->kind == TREK_PICTURE_INPUT || node->kind == TREK_PICTURE_OUTPUT || node->kind == TREK_PICTURE_MERGE;
    int radius = round ? node->h / 2 : 5;
    trek_text_format(text, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"%d\"/>\n", classes[node->kind],
                     x,
                     y, node->w, node->h, radius);
    int percent = (int)(node->heat * 100 + 0.5);
    if (node->heat >= 0)
        trek_text_format(text,
                         "<rect class=\"f\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"%d\" fill-opacity=\"%d.%02d\"/>\n",
                         x, y, node->w, node->head, radius, percent * 6 / 1000, percent * 6 / 10 % 100);
}

static void add_picture(trek_text *text, const trek_picture *p, int x, int y);

static void add_node(trek_text *text, const trek_picture_node *node, int x, int y)
{
    trek_text_add(text, "<g>");
    if (node->path && *node->path) {
        trek_text_add(text, "<title>");
        add_text(text, node->path, strlen(node->path));
        trek_text_add(text, "</title>");
    }
    trek_text_add(text, "\n");
    add_box(text, node, x, y);
    for (int k = 0; k < node->n_lines; k++) {
        bool bold = k == 0 && node->n_head > 1, soft = k >= node->n_head && node->heat < 0.25, at_left = node->inside != NULL;
        const char *klass = bold ? "h" : soft ? "s" : "";
        add_line(text, node->lines[k], at_left ? x + 10 : x + node->w / 2, y + 18 + k * TREK_PICTURE_LINE, !at_left, klass);
    }
    trek_text_add(text, "</g>\n");
    if (node->inside)
        add_picture(text, node->inside, x + (node->w - node->inside->w) / 2, y + node->head + TREK_PICTURE_DROP);
}

/* --- edges --------------------------------------------------------------------------- */

typedef struct point {
    int x, y;
} point;

/* Returns where an edge leaves a node at its lower side, and whether it does so from inside. */
static point leaves_at(const trek_picture *p, const trek_picture_edge *edge)
{
    const trek_picture_node *node = &p->nodes[trek_picture_upper(edge)];
    if (edge->kind == TREK_PICTURE_STATE)
        return (point){ node->x + node->w * 3 / 4, node->y + node->h };
    if (!node->inside)
        return (point){ node->x + node->w / 2, node->y + node->h };
    const trek_picture_node *out = &node->inside->nodes[node->inside->n_nodes - 1];
    return (point){ node->x + (node->w - node->inside->w) / 2 + out->x + out->w / 2,
                    node->y + node->head + TREK_PICTURE_DROP + out->y + out->h };
}

/* Edges into a box are side by side, ordered by where they come from. */
static int entry_of(const trek_picture *p, const trek_picture_edge *edge)
{
    const trek_picture_node *node = &p->nodes[edge->to];
    int n = 0, before = 0;
    point from = leaves_at(p, edge);
    int own = edge->n_bends ? edge->bends[edge->n_bends - 1] : from.x;
    for (int k = 0; k < p->n_edges; k++) {
        const trek_picture_edge *other = &p->edges[k];
        if (other->to != edge->to || other->kind == TREK_PICTURE_STATE)
            continue;
        int x = other->n_bends ? other->bends[other->n_bends - 1] : leaves_at(p, other).x;
        n++;
        before += x < own || (x == own && other < edge);
    }
    int step = node->w / (n + 1) < 24 ? node->w / (n + 1) : 24;
    return node->x + node->w / 2 + (2 * before - (n - 1)) * step / 2;
}

static point arrives_at(const trek_picture *p, const trek_picture_edge *edge)
{
    const trek_picture_node *node = &p->nodes[trek_picture_lower(edge)];
    if (edge->kind == TREK_PICTURE_STATE)
        return (point){ node->x + node->w * 3 / 4, node->y };
    if (!node->inside || edge->port >= node->inside->n_inputs)
        return (point){ entry_of(p, edge), node->y };
    const trek_picture_node *in = &node->inside->nodes[edge->port];
    return (point){ node->x + (node->w - node->inside->w) / 2 + in->x + in->w / 2,
                    node->y + node->head + TREK_PICTURE_DROP + in->y };
}

static void bend(trek_text *text, int x, int y, int to_x, int to_y, int left, int top)
{
    if (x == to_x)
        trek_text_format(text, "L%d %d", to_x + left, to_y + top);
    else
        trek_text_format(text, "C%d %d %d %d %d %d", x + left, (y + to_y) / 2 + top, to_x + left, (y + to_y) / 2 + top,
                         to_x + left,
                         to_y + top);
}

static void add_loop(trek_text *text, const trek_picture_node *node, int left, int top)
{
    int x = left + node->x + node->w, y = top + node->y;
    trek_text_format(text, "<path class=\"e d\" marker-end=\"url(#a)\" d=\"M%d %dC%d %d %d %d %d %d\"/>\n", x, y + node->h - 7,
                     x + 26,
                     y + node->h - 4, x + 26, y + 4, x, y + 7);
}

static void add_edge(trek_text *text, const trek_picture *p, const trek_picture_edge *edge, int left, int top)
{
    static const char *const classes[] = { "e", "e x", "e d" };
    if (edge->from == edge->to) {
        add_loop(text, &p->nodes[edge->from], left, top);
        return;
    }
    point from = leaves_at(p, edge), to = arrives_at(p, edge);
    int layer = p->nodes[trek_picture_upper(edge)].layer, x = from.x;
    trek_text_format(text, "<path class=\"%s\" marker-%s=\"url(#a)\" d=\"M%d %d", classes[edge->kind],
                     edge->kind == TREK_PICTURE_STATE ? "start" : "end", x + left, from.y + top);
    if (from.y != p->bottoms[layer])
        trek_text_format(text, "L%d %d", x + left, p->bottoms[layer] + top);
    for (int k = 0; k < edge->n_bends; k++) {
        bend(text, x, p->bottoms[layer], edge->bends[k], p->tops[layer + 1], left, top);
        x = edge->bends[k];
        layer++;
        trek_text_format(text, "L%d %d", x + left, p->bottoms[layer] + top);
    }
    bend(text, x, p->bottoms[layer], to.x, p->tops[layer + 1], left, top);
    if (to.y != p->tops[layer + 1])
        trek_text_format(text, "L%d %d", to.x + left, to.y + top);
    trek_text_add(text, "\"/>\n");
}

static void add_picture(trek_text *text, const trek_picture *p, int x, int y)
{
    for (int k = 0; k < p->n_edges; k++)
        add_edge(text, p, &p->edges[k], x, y);
    for (int k = 0; k < p->n_nodes; k++)
        add_node(text, &p->nodes[k], x + p->nodes[k].x, y + p->nodes[k].y);
}

char *trek_graph_svg(trek_graph *graph, const trek_graph_draw_opts *opts)
{
    if (!graph) {
        trek_fail_missing("graph_svg", "graph");
        return NULL;
    }
    trek_picture *p = trek_picture_make(graph, opts);
    if (!p || trek_picture_lay_out(p) != TREK_OK) {
        trek_picture_free(p);
        return NULL;
    }
    trek_text text = { 0 };
    int w = p->w + 2 * MARGIN, h = p->h + 2 * MARGIN;
    trek_text_format(&text,
                     "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\">\n",
                     w, h, w, h);
    trek_text_add(&text, style);
    trek_text_add(
        &text,
        "\n<defs><marker id=\"a\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" "
        "markerUnits=\"userSpaceOnUse\" orient=\"auto-start-reverse\"><path class=\"m\" d=\"M0 0L8 4L0 8z\"/></marker></defs>\n");
    trek_text_format(&text, "<rect class=\"g\" width=\"%d\" height=\"%d\"/>\n", w, h);
    add_picture(&text, p, MARGIN, MARGIN);
    trek_text_add(&text, "</svg>\n");
    trek_picture_free(p);
    return trek_text_take(&text);
}
