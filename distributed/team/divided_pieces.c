/* SPDX-License-Identifier: Apache-2.0 */
/* Which elements of divided parameters are a rank's own, and what has memory. */
#include "distributed/team/divided_internal.h"

char *trek_divided_place_of(const trek_arena *arena, int part, int64_t at)
{
    return arena->parts[part].params->data + (size_t)at * trek_divided_item(arena, part);
}

trek_arena_cut trek_divided_range_of(const trek_arena *arena, const void *from, size_t bytes)
{
    const char *at = from;
    int p = 0;
    while (at < arena->parts[p].params->data ||
           at >= arena->parts[p].params->data + (size_t)arena->parts[p].count * trek_divided_item(arena, p))
        p++;
    int64_t begin = (at - arena->parts[p].params->data) / (int64_t)trek_divided_item(arena, p);
    return (trek_arena_cut){ .part = p, .begin = begin, .end = begin + (int64_t)(bytes / trek_divided_item(arena, p)) };
}

/* Finds the next elements of [*at, end) that are another's, and moves *at behind them. */
static bool next_foreign(const trek_arena *arena, int part, int64_t *at, int64_t end, trek_arena_cut *piece)
{
    trek_arena_cut own;
    int64_t next = *at;
    while (next < end) {
        int64_t begin = next;
        bool has = trek_arena_next_own(arena, part, &next, end, &own);
        if (has && own.begin == begin)
            continue;
        *piece = (trek_arena_cut){ .part = part, .begin = begin, .end = has ? own.begin : end };
        *at = has ? own.end : end;
        return true;
    }
    return false;
}

bool trek_divided_is_own(const trek_arena *arena, const trek_arena_cut *range)
{
    trek_arena_cut piece;
    int64_t at = range->begin;
    return !next_foreign(arena, range->part, &at, range->end, &piece);
}

trek_status trek_divided_take(const trek_arena *arena, const trek_arena_cut *range, bool surely)
{
    trek_pages *pages = arena->parts[range->part].param_pages;
    const void *from = trek_divided_place_of(arena, range->part, range->begin);
    size_t bytes = (size_t)(range->end - range->begin) * trek_divided_item(arena, range->part);
    return surely ? trek_pages_take_surely(pages, from, bytes) : trek_pages_take(pages, from, bytes);
}

void trek_divided_keep_spare(const trek_arena *arena, const trek_arena_cut *range)
{
    for (int p = 0; p < arena->n_parts; p++)
        trek_pages_keep_spare(arena->parts[p].param_pages, range && range->part == p
                                  ? (size_t)(range->end - range->begin) * trek_divided_item(arena, p) : 0);
}

void trek_divided_give_back_in(const trek_arena *arena, int part, trek_pages *pages, int64_t begin, int64_t end)
{
    size_t item = trek_divided_item(arena, part);
    trek_arena_cut piece;
    while (next_foreign(arena, part, &begin, end, &piece))
        trek_pages_give_back(pages, trek_pages_memory(pages) + (size_t)piece.begin * item,
                             (size_t)(piece.end - piece.begin) * item);
}

void trek_divided_give_back(const trek_arena *arena, int part, int64_t begin, int64_t end)
{
    trek_divided_give_back_in(arena, part, arena->parts[part].param_pages, begin, end);
}

trek_status trek_divided_make_shown(trek_divided *d)
{
    const trek_arena *arena = trek_divided_own(d)->arena;
    if (!(d->shown = trek_calloc((size_t)arena->n_parts, sizeof *d->shown)))
        return TREK_ERR_MEMORY;
    for (int p = 0; p < arena->n_parts; p++)
        if (!(d->shown[p] = trek_pages_zeros(trek_dims(arena->parts[p].count), arena->parts[p].dtype, trek_cpu(0))))
            return trek_error_status();
    return TREK_OK;
}

static char *shown_at(const trek_divided *d, const trek_arena_cut *cut, size_t *bytes)
{
    size_t item = trek_divided_item(trek_divided_own(d)->arena, cut->part);
    *bytes = (size_t)(cut->end - cut->begin) * item;
    return d->shown[cut->part]->data + (size_t)cut->begin * item;
}

trek_status trek_divided_show_own(const trek_divided *d, const trek_arena_cut *cuts, int n)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < n && status == TREK_OK && d->shown; k++) {
        size_t bytes;
        char *to = shown_at(d, &cuts[k], &bytes);
        trek_pages_take_surely(trek_pages_of(d->shown[cuts[k].part]), to, bytes);
        status = trek_copier_fetch(d->copier, to, trek_divided_place_of(trek_divided_own(d)->arena, cuts[k].part, cuts[k].begin),
                                   bytes);
    }
    return status;
}
