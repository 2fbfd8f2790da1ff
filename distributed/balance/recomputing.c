/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/balance/recomputing.h"

#include "tensor/memory_internal.h"

/* Ways to a point are told apart by the bytes that they keep, in so many classes. Of each class the fastest one is known. */
enum { CLASSES = 512 };

/* A way from the first point to this one. */
typedef struct way {
    bool known;
    int class_before;        /* of the way that it prolongs, */
    int segment;             /* by recomputing this one; -1: by the step from the point before */
    int64_t bytes, ns;
} way;

typedef struct search {
    const trek_forward_line *line;
    int64_t room;
    way *ways;               /* [n_points][CLASSES + 1] */
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
    if (!known->known || offered.ns < known->ns || (offered.ns == known->ns && offered.bytes < known->bytes))
        *known = offered;
}

static void find_needs(const search *s)
{
    for (int k = 0; k < s->line->n; k++) {
        const trek_segment *segment = &s->line->segments[k];
        s->needs[k] = segment->result;
        for (int p = segment->begin; p <= segment->end; p++) {
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
    for (int c = 0; c <= CLASSES; c++) {
        const way *from = &ways_to(s, point)[c];
        if (from->known && (k < 0 || from->bytes + s->needs[k] <= s->room))
            offer(s, by->end, (way){ true, c, k, from->bytes + by->result, from->ns + by->ns });
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

/* Finds the fastest way to the end, and what it recomputes. */
static bool trace_back(const search *s, bool *recomputed, int64_t *ns)
{
    int point = s->line->n_points - 1, class = -1;
    const way *ends = ways_to(s, point);
    for (int c = 0; c <= CLASSES; c++)
        if (ends[c].known && (class < 0 || ends[c].ns < ends[class].ns))
            class = c;
    for (int k = 0; k < s->line->n; k++)
        recomputed[k] = false;
    if (class < 0)
        return false;
    *ns = ends[class].ns;
    while (point > 0) {
        const way *way = &ways_to(s, point)[class];
        class = way->class_before;
        if (way->segment >= 0)
            recomputed[way->segment] = true;
        point = way->segment >= 0 ? s->line->segments[way->segment].begin : point - 1;
    }
    return true;
}

trek_status trek_recomputing_choose(const trek_forward_line *line, int64_t room, bool *recomputed, int64_t *ns, bool *found)
{
    search s = { .line = line, .room = room };
    s.ways = trek_calloc((size_t)line->n_points * (CLASSES + 1), sizeof *s.ways);
    s.needs = trek_calloc((size_t)line->n + 1, sizeof *s.needs);
    *found = false;
    *ns = 0;
    if (s.ways && s.needs) {
        find_needs(&s);
        offer(&s, 0, (way){ .known = true, .segment = -1 });
        for (int p = 0; p < line->n_points; p++)
            prolong(&s, p);
        *found = trace_back(&s, recomputed, ns);
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
