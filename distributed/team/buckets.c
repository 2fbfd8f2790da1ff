/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts gradients into buckets and sends them in order. */
#include "distributed/team/buckets.h"

#include <limits.h>

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

static void add(const cutting *c, int first, int end, int part, int64_t begin, int64_t count)
{
    if (c->to->list)
        c->to->list[c->to->n] = (trek_bucket){ part, first, end, owner_of(c, first), begin, count };
    c->to->n++;
}

/* Cuts an item that is larger than a bucket into pieces, each of which begins at a cache line. */
static void cut_pieces(const cutting *c, int k)
{
    const trek_reducer_item *item = &c->r->items[k];
    for (int64_t at = 0, count; at < item->count; at += count) {
        count = room_of(c) / element_bytes(c, k) / 64 * 64;
        count = count < 64 ? 64 : count;
        count = count < item->count - at ? count : item->count - at;
        add(c, k, k + 1, item->part, item->offset + at, count);
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

/* Cuts the parts as a whole, including padding, with an even number of elements for each sharer, wherever items begin
 * and end. */
static void cut_evenly(const cutting *c, int sharers)
{
    int64_t unit = (int64_t)sharers * TREK_ARENA_SLOT;
    c->to->n = 0;
    for (int first = 0, stop; first < c->r->n; first = stop) {
        int part = c->r->items[first].part;
        for (stop = first; stop < c->r->n && c->r->items[stop].part == part; stop++)
            if (c->to->first_of)
                c->to->first_of[stop] = INT_MAX;
        for (int64_t at = 0, count, all = c->r->parts[part].count; at < all; at += count) {
            count = room_of(c) / element_bytes(c, first) / unit * unit;
            count = count < unit ? unit : count;
            count = count < all - at ? count : all - at;
            int begin = first, end;
            while (begin < stop && end_of(c, begin) <= at)
                begin++;
            for (end = begin; end < stop && begin_of(c, end) < at + count; end++)
                if (c->to->first_of && c->to->first_of[end] == INT_MAX)
                    c->to->first_of[end] = c->to->n;
            add(c, begin, end, part, at, count);
        }
    }
}

static void cut(const cutting *c)
{
    if (c->r->arena && c->r->arena->sharers > 1 && !c->owner) {
        cut_evenly(c, c->r->arena->sharers);
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
               bytes + item_bytes(c, end) <= room; end++) {
            bytes += item_bytes(c, end);
            if (c->to->first_of)
                c->to->first_of[end] = c->to->n;
        }
        add(c, k, end, items[k].part, items[k].offset, items[end - 1].offset + items[end - 1].count - items[k].offset);
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
