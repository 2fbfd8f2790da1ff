/* SPDX-License-Identifier: Apache-2.0 */
/* Cutting gradients into buckets, and sending them in order. */
#include "distributed/step/buckets.h"

#include "tensor/memory_internal.h"
#include "tensor/trace.h"

#define FIRST_BYTES (1 << 20)

/* --- cutting -------------------------------------------------------------------------- */

typedef struct cutting {
    trek_buckets *to;        /* list NULL: they are only counted */
    const trek_bucket_item *items;
    int64_t bytes;
} cutting;

static int64_t item_bytes(const trek_bucket_item *item) { return item->count * (int64_t)trek_dtype_size(item->wide); }
static int64_t room_of(const cutting *c) { return c->to->n == 0 && c->bytes > FIRST_BYTES ? FIRST_BYTES : c->bytes; }

static void add(const cutting *c, int first, int end, int64_t begin, int64_t count)
{
    if (c->to->list)
        c->to->list[c->to->n] = (trek_bucket){ c->items[first].part, first, end, begin, count };
    c->to->n++;
}

/* One item that fills more than a bucket: in pieces, each from a cache line on. */
static void cut_pieces(const cutting *c, int k)
{
    const trek_bucket_item *item = &c->items[k];
    for (int64_t at = 0, count; at < item->count; at += count) {
        count = room_of(c) / (int64_t)trek_dtype_size(item->wide) / 64 * 64;
        count = count < 64 ? 64 : count;
        count = count < item->count - at ? count : item->count - at;
        add(c, k, k + 1, item->offset + at, count);
    }
}

static void cut(const cutting *c)
{
    c->to->n = 0;
    for (int k = 0, end; k < c->to->n_items; k = end) {
        int64_t room = room_of(c), bytes = item_bytes(&c->items[k]);
        end = k + 1;
        if (c->to->first_of)
            c->to->first_of[k] = c->to->n;
        if (bytes > room) {
            cut_pieces(c, k);
            continue;
        }
        for (; end < c->to->n_items && c->items[end].part == c->items[k].part && bytes + item_bytes(&c->items[end]) <= room;
             end++) {
            bytes += item_bytes(&c->items[end]);
            if (c->to->first_of)
                c->to->first_of[end] = c->to->n;
        }
        const trek_bucket_item *last = &c->items[end - 1];
        add(c, k, end, c->items[k].offset, last->offset + last->count - c->items[k].offset);
    }
}

trek_status trek_buckets_cut(trek_buckets *buckets, const trek_bucket_item *items, int n, int64_t bytes)
{
    *buckets = (trek_buckets){ .n_items = n };
    cutting c = { buckets, items, bytes };
    cut(&c);
    trek_bucket *list = trek_calloc((size_t)buckets->n, sizeof *list);
    buckets->waiting = trek_calloc((size_t)buckets->n, sizeof *buckets->waiting);
    buckets->first_of = trek_calloc((size_t)n, sizeof *buckets->first_of);
    buckets->list = list;
    if (!list || !buckets->waiting || !buckets->first_of) {
        trek_buckets_clear(buckets);
        return trek_status_get();
    }
    cut(&c);
    return TREK_OK;
}

trek_status trek_buckets_cut_arena(trek_buckets *buckets, const trek_arena *arena, int64_t bytes)
{
    trek_bucket_item *items = trek_calloc((size_t)arena->n_segments, sizeof *items);
    if (!items)
        return trek_status_get();
    for (int k = 0; k < arena->n_segments; k++) {
        const trek_arena_segment *segment = &arena->segments[k];
        items[k] = (trek_bucket_item){ segment->part, arena->parts[segment->part].wide, segment->offset, segment->count };
    }
    trek_status status = trek_buckets_cut(buckets, items, arena->n_segments, bytes);
    trek_free(items);
    return status;
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

trek_comm_call trek_bucket_call(const trek_arena *arena, const trek_bucket *bucket)
{
    const trek_arena_part *part = &arena->parts[bucket->part];
    char *data = part->grads->data + bucket->begin * (int64_t)trek_dtype_size(part->wide);
    return (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_SUM, .dtype = part->wide, .count = bucket->count,
                             .in = data, .out = data,
                             .on_device = arena->device.type != TREK_CPU };
}

trek_status trek_buckets_reduce(const trek_buckets *b, const trek_arena *arena, trek_comm *comm, bool start)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < b->n; k++) {
        trek_comm_call call = trek_bucket_call(arena, &b->list[k]);
        if (call.count == 0)
            continue;
        int64_t since = trek_trace_enter("bucket");
        trek_status one = start ? trek_comm_start(comm, call) : trek_comm_run(comm, call);
        trek_trace_end("bucket", since, call.count * (int64_t)trek_dtype_size(call.dtype));
        status = status != TREK_OK ? status : one;
    }
    return status;
}
