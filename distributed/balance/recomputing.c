/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/balance/recomputing.h"

#include "tensor/memory_internal.h"

/* Ways to a point are told apart by the bytes that they keep, in so many classes. Of each class the fastest one is known. */
enum { CLASSES = 512 };

/* Of the search for a price of host memory, in ns a byte. At the lowest, of ways that take the same time the one that moves least
 * is the cheapest. */
enum { HALVINGS = 24 };
#define LOWEST 1e-6
#define HIGHEST 1e9

/* A way from the first point to this one. */
typedef struct way {
    bool known;
    int class_before;        /* of the way that it prolongs, */
    int segment;             /* by this one; -1: by the step from the point before */
    int64_t bytes;
    double cost;             /* the time that it takes, and the price of host memory */
} way;

typedef struct search {
    const trek_forward_line *line;
    int64_t room;
    way *ways;               /* [n_points][CLASSES + 1] */
    double price;            /* of a byte of host memory, in ns */
    int64_t *needs;          /* [n] the most that a segment has in use above what was before it */
} search;

static way *ways_to(const search *s, int point) { return s->ways + (size_t)point * (CLASSES + 1); }

static int class_of(const search *s, int64_t bytes)
{
    if (bytes <= 0 || s->room <= 0)
        return 0;
    return s->room <= CLASSES ? (int)bytes : (int)((double)bytes / (double)s->room * CLASSES);
}

static void offer(const search *s, int point, way offered)
{
    if (offered.bytes > s->room)
        return;
    way *known = &ways_to(s, point)[class_of(s, offered.bytes)];
    if (!known->known || offered.cost < known->cost || (offered.cost == known->cost && offered.bytes < known->bytes))
        *known = offered;
}

static void find_needs(const search *s)
{
    for (int k = 0; k < s->line->n; k++) {
        const trek_segment *segment = &s->line->segments[k];
        s->needs[k] = segment->result > segment->need ? segment->result : segment->need;
        for (int p = segment->begin; p <= segment->end && segment->host == 0; p++) {
            int64_t above = s->line->held[p] - s->line->held[segment->begin];
            s->needs[k] = above > s->needs[k] ? above : s->needs[k];
        }
    }
}

/* Prolongs all ways to a point by a segment that begins there; -1: by the step to the next point. */
static void prolong_by(const search *s, int point, int k)
{
    const trek_forward_line *line = s->line;
    const trek_segment step = { .begin = point, .end = point + 1,
                                .result = k < 0 ? line->held[point + 1] - line->held[point] : 0 };
    const trek_segment *by = k < 0 ? &step : &line->segments[k];
    double cost = (double)by->ns + s->price * (double)by->host;
    for (int c = 0; c <= CLASSES; c++) {
        const way *from = &ways_to(s, point)[c];
        if (from->known && (k < 0 || from->bytes + s->needs[k] <= s->room))
            offer(s, by->end, (way){ true, c, k, from->bytes + by->result, from->cost + cost });
    }
}

static void prolong(const search *s, int point)
{
    if (point + 1 < s->line->n_points)
        prolong_by(s, point, -1);
    for (int k = 0; k < s->line->n; k++)
        if (s->line->segments[k].begin == point)
            prolong_by(s, point, k);
}

/* Finds the cheapest way to the end, its segments, the time that they take and the host memory. */
static bool trace_back(const search *s, bool *chosen, int64_t *ns, int64_t *host)
{
    int point = s->line->n_points - 1, class = -1;
    const way *ends = ways_to(s, point);
    for (int c = 0; c <= CLASSES; c++)
        if (ends[c].known && (class < 0 || ends[c].cost < ends[class].cost))
            class = c;
    for (int k = 0; k < s->line->n; k++)
        chosen[k] = false;
    *ns = *host = 0;
    if (class < 0)
        return false;
    while (point > 0) {
        const way *way = &ways_to(s, point)[class];
        class = way->class_before;
        if (way->segment >= 0) {
            chosen[way->segment] = true;
            *ns += s->line->segments[way->segment].ns;
            *host += s->line->segments[way->segment].host;
        }
        point = way->segment >= 0 ? s->line->segments[way->segment].begin : point - 1;
    }
    return true;
}

/* Searches at a price of host memory. Returns whether there is a way that fits. */
static bool find(search *s, double price, bool *chosen, int64_t *ns, int64_t *host)
{
    for (int k = 0; k < s->line->n_points * (CLASSES + 1); k++)
        s->ways[k].known = false;
    s->price = price;
    offer(s, 0, (way){ .known = true, .segment = -1 });
    for (int p = 0; p < s->line->n_points; p++)
        prolong(s, p);
    return trace_back(s, chosen, ns, host);
}

/* Finds the least price at which host memory suffices: up to HALVINGS between a price that is too low and one that is not. */
static bool find_price(search *s, bool *chosen, int64_t *ns)
{
    int64_t host;
    double low = LOWEST, high = 1e-3;
    bool found = find(s, low, chosen, ns, &host);
    if (!found || host <= s->line->host)
        return found;
    while (high < HIGHEST && find(s, high, chosen, ns, &host) && host > s->line->host) {
        low = high;
        high *= 8;
    }
    if (host > s->line->host)
        return false;
    for (int k = 0; k < HALVINGS; k++) {
        double middle = (low + high) / 2;
        find(s, middle, chosen, ns, &host);
        *(host > s->line->host ? &low : &high) = middle;
    }
    return find(s, high, chosen, ns, &host);
}

trek_status trek_recomputing_choose(const trek_forward_line *line, int64_t room, bool *chosen, int64_t *ns, bool *found)
{
    search s = { .line = line, .room = room };
    s.ways = trek_calloc((size_t)line->n_points * (CLASSES + 1), sizeof *s.ways);
    s.needs = trek_calloc((size_t)line->n + 1, sizeof *s.needs);
    *found = false;
    *ns = 0;
    if (s.ways && s.needs) {
        find_needs(&s);
        *found = find_price(&s, chosen, ns);
    }
    trek_status status = s.ways && s.needs ? TREK_OK : TREK_ERR_MEMORY;
    trek_free(s.ways);
    trek_free(s.needs);
    return status;
}

trek_status trek_recomputing_least(const trek_forward_line *line, int64_t *room)
{
    int64_t most = 0, least = 0, ns;
    bool found, *recomputed = trek_calloc((size_t)line->n + 1, sizeof *recomputed);
    trek_status status = recomputed ? TREK_OK : TREK_ERR_MEMORY;
    for (int p = 0; p < line->n_points; p++)
        most = line->held[p] > most ? line->held[p] : most;
    for (int64_t exact = most / 1000; status == TREK_OK && most - least > exact && most > least;) {
        int64_t middle = least + (most - least) / 2;
        status = trek_recomputing_choose(line, middle, recomputed, &ns, &found);
        *(found ? &most : &least) = found ? middle : middle + 1;
    }
    trek_free(recomputed);
    *room = most;
    return status;
}
