/* SPDX-License-Identifier: Apache-2.0 */
/* Who keeps what of an arena of which each element is kept by two sharers.
 *
 * The arena's units lie on a line twice, one after the other. Each sharer has one stretch of the line, as long as its weight
 * says. No weight is more than the sum of the others, so no stretch is longer than the arena, and the two places of a unit are in
 * different stretches. All of this is integer arithmetic: every process comes to the same cuts, whatever rounds differently. */
#include <math.h>

#include "autograd/var_internal.h"
#include "optim/arena.h"

/* The largest weight. With 1024 sharers and 2^34 units twice, products stay below 2^62. */
#define MOST 65536

/* --- weights -------------------------------------------------------------------- */

/* Rounds weights to whole numbers, and limits the largest to the sum of the others, if there are any. */
static void settle(double *weights, int n)
{
    double most = 0, all = 0;
    int largest = 0;
    for (int r = 0; r < n; r++)
        most = weights[r] > most ? weights[r] : most;
    for (int r = 0; r < n; r++) {
        weights[r] = weights[r] > 0 ? fmax(1, floor(weights[r] / most * MOST + 0.5)) : 0;
        all += weights[r];
        largest = weights[r] > weights[largest] ? r : largest;
    }
    if (all > weights[largest] && 2 * weights[largest] > all)
        weights[largest] = all - weights[largest];
}

trek_status trek_arena_set_sharers(trek_arena *arena, int sharers, const double *weights, double **before)
{
    double *own = trek_calloc((size_t)sharers, sizeof *own);
    if (!own)
        return TREK_ERR_MEMORY;
    for (int r = 0; r < sharers; r++)
        own[r] = weights ? weights[r] : 1;
    settle(own, sharers);
    *before = arena->weights;
    arena->weights = own;
    arena->sharers = sharers;
    return TREK_OK;
}

/* --- the line ------------------------------------------------------------------- */

/* The stretches of the sharers on the line. */
typedef struct line {
    const trek_arena *arena;
    int64_t units;           /* of the arena */
    int64_t all;             /* the sum of the weights */
    int copies;              /* how often the arena lies on it */
} line;

static line line_of(const trek_arena *arena, int64_t units)
{
    line l = { .arena = arena, .units = units };
    int n = 0;
    for (int r = 0; r < arena->sharers; r++) {
        l.all += (int64_t)arena->weights[r];
        n += arena->weights[r] > 0;
    }
    l.copies = n > 1 ? 2 : 1;
    return l;
}

/* Finds the sharer of a place on the line, and its stretch. */
static int sharer_at(const line *l, int64_t at, int64_t *begin, int64_t *end)
{
    int64_t before = 0;
    for (int r = 0; r < l->arena->sharers; r++) {
        *begin = l->copies * l->units * before / l->all;
        before += (int64_t)l->arena->weights[r];
        *end = l->copies * l->units * before / l->all;
        if (at < *end)
            return r;
    }
    return l->arena->sharers - 1;
}

/* Returns who keeps a unit of an arena of so many. Where two sharers keep the same units, each gives half of them to others. */
static trek_arena_keepers keepers_of(const trek_arena *arena, int64_t units, int64_t at)
{
    line l = line_of(arena, units);
    int64_t begin, end, begin_2, end_2;
    int first = sharer_at(&l, at, &begin, &end);
    end = end < units ? end : units;
    if (l.copies == 1)
        return (trek_arena_keepers){ { first, -1 }, end };
    int second = sharer_at(&l, units + at, &begin_2, &end_2);
    begin = begin_2 - units > begin ? begin_2 - units : begin;
    end = end_2 - units < end ? end_2 - units : end;
    int64_t middle = (begin + end) / 2;
    if (at < middle)
        return (trek_arena_keepers){ { first, second }, middle };
    return (trek_arena_keepers){ { second, first }, end };
}

/* --- elements and segments ------------------------------------------------------ */

/* Returns the keepers of the segment in whose slot an element is, up to the end of the slot. Nobody keeps what is behind the last
 * one. */
static trek_arena_keepers keepers_by_owner(const trek_arena *arena, int part, int64_t at)
{
    int k = 0;
    while (k < arena->n_segments && (arena->segments[k].part != part ||
                                     at >= trek_arena_slot_end(arena->segments[k].offset + arena->segments[k].count)))
        k++;
    if (k == arena->n_segments)
        return (trek_arena_keepers){ { -1, -1 }, arena->parts[part].count };
    return (trek_arena_keepers){ { arena->owner[k], arena->owner[arena->n_segments + k] },
                                 trek_arena_slot_end(arena->segments[k].offset + arena->segments[k].count) };
}

trek_arena_keepers trek_arena_keepers_at(const trek_arena *arena, int part, int64_t at)
{
    if (arena->owner)
        return keepers_by_owner(arena, part, at);
    trek_arena_keepers keepers = keepers_of(arena, arena->parts[part].count / arena->unit, at / arena->unit);
    keepers.end *= arena->unit;
    return keepers;
}

/* A segment belongs to whoever has its middle. Half elements are counted. */
int *trek_arena_keepers_of_segments(const trek_arena *arena)
{
    int n = arena->n_segments;
    int *owner = trek_calloc(2 * (size_t)n + 1, sizeof *owner);
    int64_t all = 0, before = 0;
    if (!owner)
        return NULL;
    for (int k = 0; k < n; k++)
        all += 2 * (arena->segments[k].count + 1);
    for (int k = 0; k < n; k++) {
        trek_arena_keepers keepers = keepers_of(arena, all, before + arena->segments[k].count + 1);
        before += 2 * (arena->segments[k].count + 1);
        owner[k] = keepers.of[0];
        owner[n + k] = keepers.of[1];
    }
    return owner;
}
