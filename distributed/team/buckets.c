/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts gradients into buckets and sends them in order. */
#include "distributed/team/buckets.h"

#include <limits.h>
#include <string.h>

#include "distributed/team/reducer.h"
#include "tensor/memory_internal.h"

#define FIRST_BYTES (1 << 20)

/* --- cutting -------------------------------------------------------------------------- */

typedef struct cutting {
    trek_buckets *to;        /* list NULL: the buckets are only counted */
    const trek_reducer *r;
    int64_t bytes;
    const int *owner;        /* [items] or NULL: items have no owners */
} cutting;

static int64_t element_bytes(const cutting *c, int k) { return (int64_t)trek_dtype_size(c->r->parts[c->r->items[k].part].wide); }
static int64_t item_bytes(const cutting *c, int k) { return c->r->items[k].count * element_bytes(c, k); }
static int64_t room_of(const cutting *c) { return c->to->n == 0 && c->bytes > FIRST_BYTES ? FIRST_BYTES : c->bytes; }

/* Returns the owner among the arena's sharers, or -1. */
static int owner_of(const cutting *c, int k) { return c->owner ? c->owner[k] : -1; }

/* Returns the other sharer that keeps it, or -1. */
static int second_of(const cutting *c, int k) { return c->owner && c->r->arena->twice ? c->owner[c->r->n + k] : -1; }

static void add(const cutting *c, int first, int end, const int *keepers, trek_bucket place)
{
    if (c->to->list)
        c->to->list[c->to->n] = (trek_bucket){ place.part, first, end, keepers[0], keepers[1], place.begin, place.count };
    c->to->n++;
}

/* Cuts an item that is larger than a bucket into pieces, each of which begins at a cache line. */
static void cut_pieces(const cutting *c, int k)
{
    const trek_reducer_item *item = &c->r->items[k];
    const int keepers[2] = { owner_of(c, k), second_of(c, k) };
    for (int64_t at = 0, count; at < item->count; at += count) {
        count = room_of(c) / element_bytes(c, k) / 64 * 64;
        count = count < 64 ? 64 : count;
        count = count < item->count - at ? count : item->count - at;
        add(c, k, k + 1, keepers, (trek_bucket){ .part = item->part, .begin = item->offset + at, .count = count });
    }
}

/* Returns where an item begins, also for an item without elements, within its part. */
static int64_t begin_of(const cutting *c, int k)
{
    int64_t last = c->r->parts[c->r->items[k].part].count - 1;
    return c->r->items[k].offset < last ? c->r->items[k].offset : last;
}

static int64_t end_of(const cutting *c, int k)
{
    int64_t least = begin_of(c, k) + 1, end = c->r->items[k].offset + c->r->items[k].count;
    return end > least ? end : least;
}

/* Returns how many elements a bucket of an arena with sharers has that begins at an element, and its keepers: with weights the
 * sharer whose stretch it is, otherwise -1, because all have an even part of it. */
static int64_t stretch_at(const cutting *c, int first, int64_t at, int *keepers)
{
    const trek_arena *arena = c->r->arena;
    int part = c->r->items[first].part;
    int64_t unit = (arena->weights ? 1 : arena->sharers) * arena->unit, end = c->r->parts[part].count;
    int64_t count = room_of(c) / element_bytes(c, first) / unit * unit;
    keepers[0] = keepers[1] = -1;
    if (arena->twice) {
        trek_arena_keepers found = trek_arena_keepers_at(arena, part, at);
        memcpy(keepers, found.of, sizeof found.of);
        end = found.end;
    }
    for (int r = 0; arena->weights && keepers[0] < 0; r++)
        if (at < trek_arena_begin_of(arena, part, r + 1)) {
            keepers[0] = r;
            end = trek_arena_begin_of(arena, part, r + 1);
        }
    count = count < unit ? unit : count;
    return count < end - at ? count : end - at;
}

/* Cuts the parts as a whole, including padding, wherever items begin and end. */
static void cut_anywhere(const cutting *c)
{
    c->to->n = 0;
    for (int first = 0, stop; first < c->r->n; first = stop) {
        int part = c->r->items[first].part, keepers[2];
        for (stop = first; stop < c->r->n && c->r->items[stop].part == part; stop++)
            if (c->to->first_of)
                c->to->first_of[stop] = INT_MAX;
        for (int64_t at = 0, count, all = c->r->parts[part].count; at < all; at += count) {
            count = stretch_at(c, first, at, keepers);
            int begin = first, end;
            while (begin < stop && end_of(c, begin) <= at)
                begin++;
            for (end = begin; end < stop && begin_of(c, end) < at + count; end++)
                if (c->to->first_of && c->to->first_of[end] == INT_MAX)
                    c->to->first_of[end] = c->to->n;
            add(c, begin, end, keepers, (trek_bucket){ .part = part, .begin = at, .count = count });
        }
    }
}

static void cut(const cutting *c)
{
    if (c->r->arena && c->r->arena->sharers > 1 && !c->owner) {
        cut_anywhere(c);
        return;
    }
    const trek_reducer_item *items = c->r->items;
    c->to->n = 0;
    for (int k = 0, end; k < c->r->n; k = end) {
        int64_t room = room_of(c), bytes = item_bytes(c, k);
        end = k + 1;
        if (c->to->first_of)
            c->to->first_of[k] = c->to->n;
        if (bytes > room) {
            cut_pieces(c, k);
            continue;
        }
        for (; end < c->r->n && items[end].part == items[k].part && owner_of(c, end) == owner_of(c, k) &&
               second_of(c, end) == second_of(c, k) && bytes + item_bytes(c, end) <= room; end++) {
            bytes += item_bytes(c, end);
            if (c->to->first_of)
                c->to->first_of[end] = c->to->n;
        }
        add(c, k, end, (int[2]){ owner_of(c, k), second_of(c, k) },
            (trek_bucket){ .part = items[k].part, .begin = items[k].offset,
                                                      .count = items[end - 1].offset + items[end - 1].count - items[k].offset });
    }
}

trek_status trek_buckets_cut(trek_buckets *buckets, const trek_reducer *reducer, int64_t bytes, const int *owner)
{
    *buckets = (trek_buckets){ 0 };
    cutting c = { buckets, reducer, bytes, owner };
    cut(&c);
    trek_bucket *list = trek_calloc((size_t)buckets->n, sizeof *list);
    buckets->waiting = trek_calloc((size_t)buckets->n, sizeof *buckets->waiting);
    buckets->first_of = trek_calloc((size_t)reducer->n, sizeof *buckets->first_of);
    buckets->list = list;
    if (!list || !buckets->waiting || !buckets->first_of) {
        trek_buckets_clear(buckets);
        return trek_error_status();
    }
    cut(&c);
    return TREK_OK;
}

void trek_buckets_clear(trek_buckets *buckets)
{
    trek_free(buckets->list);
    trek_free(buckets->first_of);
    trek_free(buckets->waiting);
    *buckets = (trek_buckets){ 0 };
}

/* --- who keeps what ---------------------------------------------------------------------- */

int trek_buckets_find(const trek_buckets *buckets, int part, int64_t at)
{
    int low = 0, high = buckets->n;
    while (low < high) {
        int middle = (low + high) / 2;
        const trek_bucket *b = &buckets->list[middle];
        if (b->part < part || (b->part == part && b->begin + b->count <= at))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool trek_buckets_next_piece(const trek_buckets *buckets, int sharers, int part, int64_t *at, int64_t end,
                             trek_bucket_piece *piece)
{
    int k = trek_buckets_find(buckets, part, *at);
    const trek_bucket *bucket = &buckets->list[k];
    if (*at >= end || k == buckets->n || bucket->part != part || bucket->begin >= end)
        return false;
    int64_t begin = bucket->begin > *at ? bucket->begin : *at, stop = bucket->begin + bucket->count;
    *piece = (trek_bucket_piece){ .owner = bucket->owner, .second = bucket->second, .begin = begin };
    if (bucket->owner < 0) { /* each has an even part */
        int64_t each = bucket->count / sharers;
        piece->owner = (int)((begin - bucket->begin) / each);
        stop = bucket->begin + (piece->owner + 1) * each;
    }
    piece->end = *at = stop < end ? stop : end;
    return true;
}

/* --- sending ---------------------------------------------------------------------------- */

void trek_buckets_begin(trek_buckets *b)
{
    b->next = 0;
    for (int k = 0; k < b->n; k++)
        b->waiting[k] = b->list[k].end - b->list[k].first;
}

void trek_buckets_complete(trek_buckets *b, int item, trek_bucket_fn send, void *arg)
{
    for (int k = b->first_of[item]; k < b->n && b->list[k].first <= item; k++)
        b->waiting[k]--;
    while (b->next < b->n && b->waiting[b->next] <= 0)
        send(&b->list[b->next++], arg);
}

void trek_buckets_rest(trek_buckets *b, trek_bucket_fn send, void *arg)
{
    while (b->next < b->n)
        send(&b->list[b->next++], arg);
}
