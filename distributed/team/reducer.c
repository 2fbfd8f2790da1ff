/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a reducer, lets the ranks meet, and sends. */
#include "distributed/team/reducer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "distributed/job/agreement.h"
#include "distributed/team/low_sums.h"
#include "nn/params.h"
#include "tensor/memory_internal.h"
#include "tensor/pages.h"
#include "tensor/trace.h"

/* --- making ---------------------------------------------------------------------------------- */

static trek_status list_params(trek_reducer *r)
{
    trek_arena_slot *slots = trek_calloc((size_t)r->n, sizeof *slots);
    if (!slots)
        return TREK_ERR_MEMORY;
    r->n_parts = trek_arena_lay_out(r->params, r->parts, slots);
    for (int k = 0; k < r->n; k++) {
        const trek_arena_slot *slot = &slots[k];
        trek_var *var = trek_params_var(r->params, slot->index);
        r->items[k] = (trek_reducer_item){ .var = var, .name = trek_params_name(r->params, slot->index), .part = slot->part,
                                           .offset = slot->offset, .count = var->data->numel };
        r->item_of[slot->index] = k;
    }
    trek_free(slots);
    return TREK_OK;
}

static void list_segments(trek_reducer *r)
{
    r->n_parts = r->arena->n_parts;
    memcpy(r->parts, r->arena->parts, sizeof r->parts);
    for (int k = 0; k < r->n; k++) {
        const trek_arena_segment *segment = &r->arena->segments[k];
        r->items[k] = (trek_reducer_item){ .var = segment->param, .name = segment->name, .part = segment->part,
                                           .offset = segment->offset, .count = segment->count };
        r->item_of[segment->index] = k;
    }
}

static trek_status fill_in(trek_reducer *r, trek_params *params, trek_arena *arena, trek_device device, int64_t bucket_bytes)
{
    int n = arena ? arena->n_segments : trek_params_count(params);
    r->params = params;
    r->arena = arena;
    r->device = device;
    r->backend = trek_backend_get(device.type);
    r->items = trek_calloc((size_t)n, sizeof *r->items);
    r->item_of = trek_calloc((size_t)n, sizeof *r->item_of);
    r->any = trek_calloc((size_t)n, sizeof *r->any);
    if (!r->backend || !r->items || !r->item_of || !r->any)
        return trek_error_status();
    r->n = n;
    trek_status status = TREK_OK;
    if (arena)
        list_segments(r);
    else
        status = list_params(r);
    return status == TREK_OK ? trek_buckets_cut(&r->buckets, r, bucket_bytes, arena ? arena->owner : NULL) : status;
}

static trek_reducer *make(trek_params *params, trek_arena *arena, trek_device device, int64_t bucket_bytes)
{
    trek_reducer *r = trek_calloc(1, sizeof *r);
    if (!r)
        trek_params_free(&params);
    else if (fill_in(r, params, arena, device, bucket_bytes) != TREK_OK)
        trek_reducer_free(&r);
    return r;
}

trek_reducer *trek_reducer_of_arena(trek_arena *arena, int64_t bucket_bytes)
{
    return make(NULL, arena, arena->device, bucket_bytes);
}

trek_reducer *trek_reducer_of_params(trek_params *params, trek_device device, int64_t bucket_bytes, trek_comm *home)
{
    trek_reducer *r = make(params, NULL, device, bucket_bytes);
    if (r)
        r->home = home;
    return r;
}

void trek_reducer_free(trek_reducer **address)
{
    if (!address || !*address)
        return;
    trek_reducer *r = *address;
    *address = NULL;
    trek_reducer_drop_spares(r);
    for (int k = 0; k < r->n; k++)
        trek_tensor_release(r->items[k].slot);
    for (int p = 0; p < r->n_parts && !r->arena; p++)
        trek_tensor_release(r->parts[p].grads);
    trek_params_free(&r->params);
    trek_free(r->items);
    trek_free(r->item_of);
    trek_free(r->any);
    trek_free(r->messages);
    trek_buckets_clear(&r->buckets);
    trek_low_sums_free(&r->low);
    trek_free(r);
}

/* --- meeting: what the others must know before a reduction ------------------------------------------ */

/* The flags of all items follow it. */
typedef struct reducer_message {
    double weight;
    int32_t status, mixed;
} reducer_message;
enum { HAS = 1, TRAINS = 2 };

trek_status trek_reducer_make_room(trek_reducer *r, int world_size)
{
    r->message_bytes = (sizeof(reducer_message) + (size_t)r->n + 15) & ~(size_t)15;
    trek_free(r->messages);
    r->messages = trek_calloc((size_t)world_size + 1, r->message_bytes);
    return r->messages ? TREK_OK : TREK_ERR_MEMORY;
}

static reducer_message *own_message(const trek_reducer *r) { return (reducer_message *)(void *)r->messages; }
static const reducer_message *message_of(const trek_reducer *r, int rank)
{
    return (const reducer_message *)(const void *)(r->messages + (size_t)(rank + 1) * r->message_bytes);
}
static const unsigned char *flags_of(const reducer_message *w) { return (const unsigned char *)(w + 1); }

static void write_message(trek_reducer *r, double weight, trek_status own)
{
    reducer_message *w = own_message(r);
    unsigned char *flags = (unsigned char *)(w + 1);
    *w = (reducer_message){ .weight = weight, .status = own, .mixed = r->mixed };
    for (int k = 0; k < r->n; k++) {
        const trek_reducer_item *item = &r->items[k];
        bool trains = trek_item_trains(item), has = r->arena ? r->any[k] : trains && trek_item_has_grad(item);
        flags[k] = (unsigned char)((trains ? TRAINS : 0) | (has ? HAS : 0));
    }
}

/* All ranks see all flags, and so decide alike whether to compare them. */
static trek_status check_frozen(const trek_reducer *r, trek_comm *comm, const char *what)
{
    bool differ = false;
    for (int q = 1; q < comm->world; q++)
        for (int k = 0; k < r->n; k++)
            differ |= ((flags_of(message_of(r, 0))[k] ^ flags_of(message_of(r, q))[k]) & TRAINS) != 0;
    if (!differ)
        return TREK_OK;
    trek_text text = { 0 };
    char subject[80];
    snprintf(subject, sizeof subject, "%s: the %s have frozen different parameters", what, comm->control ? "processes" : "ranks");
    for (int k = r->n - 1; k >= 0; k--) /* in order of registration */
        trek_text_format(&text, "parameter \"%s\"\t%s\n", r->items[k].name,
                         trek_item_trains(&r->items[k]) ? "trained" : "frozen");
    trek_status status = trek_agree(comm, TREK_OK, subject, &text);
    trek_text_clear(&text);
    return status != TREK_OK ? status : trek_fail(TREK_ERR_ARGUMENT, "%s", subject);
}

static trek_status check_mixed(const trek_reducer *r, const trek_comm *comm, const char *what)
{
    bool mixed = false, uneven = false;
    for (int q = 0; q < comm->world; q++) {
        mixed |= message_of(r, q)->mixed != 0;
        uneven |= message_of(r, q)->weight != message_of(r, 0)->weight;
    }
    if (!mixed || !uneven)
        return TREK_OK;
    return trek_fail(
        TREK_ERR_UNSUPPORTED,
        "%s: count: the ranks' counts differ, but layers that meet other ranks (sync_batch_norm) have mixed the gradients in "
        "their backward as if they were equal; trek_ddp_backward_weighted weighs each rank's loss before",
        what);
}

trek_status trek_reducer_meet(trek_reducer *r, trek_comm *comm, const char *what, double weight, trek_status own, double *factor)
{
    write_message(r, weight, own);
    trek_status status = trek_comm_gather_bytes(comm, r->messages, r->message_bytes, r->messages + r->message_bytes);
    if (own != TREK_OK || status != TREK_OK)
        return own != TREK_OK ? own : status;
    double total = 0;
    for (int q = 0; q < comm->world; q++) {
        if (message_of(r, q)->status != TREK_OK)
            return trek_fail(TREK_ERR_PEER, "%s: rank %d failed", what, q);
        total += message_of(r, q)->weight;
    }
    if (!(total > 0) || !isfinite(total))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: count: the sum over all ranks is %s; must be finite and above 0", what,
                         total > 0 ? "infinity" : "0");
    if ((status = check_mixed(r, comm, what)) != TREK_OK)
        return status;
    *factor = weight / total;
    memset(r->any, 0, (size_t)r->n * sizeof *r->any);
    for (int q = 0; q < comm->world; q++)
        for (int k = 0; k < r->n; k++)
            r->any[k] |= (flags_of(message_of(r, q))[k] & HAS) != 0;
    return check_frozen(r, comm, what);
}

/* --- sending ------------------------------------------------------------------------------------------ */

/* Neighbouring items, or a piece of one. */
typedef struct stretch {
    int first, end;
    int owner;                /* its owner among an arena's sharers; -1: each has a part */
    int64_t begin, count;     /* number of elements */
} stretch;

static bool is_sent(const trek_reducer *r, int k)
{
    return r->arena || (r->now.ahead ? trek_item_trains(&r->items[k]) : r->any[k]);
}

/* Returns the stretch of a bucket that begins with item k: it continues as long as items are all sent, or all not
 * sent. */
static stretch stretch_at(const trek_reducer *r, const trek_bucket *bucket, int k)
{
    int end = k + 1;
    if (r->arena)
        return (stretch){ k, bucket->end, bucket->owner, bucket->begin, bucket->count };
    while (end < bucket->end && is_sent(r, k) && is_sent(r, end))
        end++;
    if (bucket->count < r->items[bucket->first].count) /* a piece */
        return (stretch){ k, end, -1, bucket->begin, bucket->count };
    return (stretch){ k, end, -1, r->items[k].offset, r->items[end - 1].offset + r->items[end - 1].count - r->items[k].offset };
}

static void note(trek_reducer *r, trek_status status)
{
    if (r->status == TREK_OK)
        r->status = status;
}

/* Returns this rank's part of a stretch. If an item is sent in pieces, all of it is copied with the first piece. */
static char *contribute(trek_reducer *r, const stretch *x)
{
    const trek_reducer_item *start = &r->items[x->first];
    const trek_arena_part *part = &r->parts[start->part];
    size_t size = trek_dtype_size(part->wide);
    if (r->arena)
        return part->grads->data + (size_t)x->begin * size;
    if (x->begin == start->offset)
        note(r, trek_reducer_collect(r, x->first, x->end));
    char *data = trek_reducer_place(r, x->first) + (size_t)(x->begin - start->offset) * size;
    if (r->now.factor > 0 && r->now.factor != 1)
        r->backend->scale(r->device, part->wide, data, x->count, r->now.factor);
    return data;
}

/* Returns whether a part's gradients travel as bf16. */
static bool sends_low(const trek_reducer *r, const trek_arena_part *part)
{
    return r->low && r->now.comm == r->low->comm && part->wide == TREK_F32;
}

/* A bucket with an owner gives all the sum, which sends less than a reduction in f32. The others drop it. */
static trek_status send_low(const trek_reducer *r, const stretch *x, char *data)
{
    float *numbers = (float *)(void *)data;
    int64_t part = r->arena ? x->count / r->arena->sharers : 0;
    if (r->now.scatters && x->owner < 0)
        return trek_low_sums_reduce_scatter(r->low, numbers, numbers + part * r->arena->sharer, part);
    return trek_low_sums_all_reduce(r->low, numbers, x->count);
}

/* Takes the memory of a bucket. Where that fails, on a GPU, the others must not wait for what cannot be sent. */
static trek_status fill(const trek_reducer *r, const trek_arena_part *part, const char *data, size_t bytes)
{
    trek_status status = trek_pages_take_surely(part->pages, data, bytes);
    if (status != TREK_OK && r->now.comm)
        trek_comm_abort(r->now.comm, "a rank has no memory for a bucket of gradients");
    return status;
}

static void send_stretch(trek_reducer *r, const stretch *x)
{
    int64_t start = trek_trace_enter("bucket");
    const trek_arena_part *part = &r->parts[r->items[x->first].part];
    char *data = contribute(r, x);
    if (r->now.gives_back && r->now.fills) /* also where there is no gradient */
        note(r, fill(r, part, data, (size_t)x->count * trek_dtype_size(part->wide)));
    trek_comm_call call = { .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM, .dtype = part->wide, .count = x->count,
                            .in = data,
                            .out = data, .on_device = r->device.type != TREK_CPU };
    if (r->now.scatters && x->owner >= 0) {
        call.kind = TREK_COMM_REDUCE;
        call.root = x->owner;
    } else if (r->now.scatters) {
        call.kind = TREK_COMM_REDUCE_SCATTER;
        call.count = x->count / r->arena->sharers;
        call.out = data + (size_t)(call.count * r->arena->sharer) * trek_dtype_size(part->wide);
    }
    if (x->count > 0 && sends_low(r, part))
        note(r, send_low(r, x, data));
    else if (x->count > 0 && r->now.comm)
        note(r, r->now.starts ? trek_comm_start(r->now.comm, call) : trek_comm_run(r->now.comm, call));
    trek_trace_end("bucket", start, x->count * (int64_t)trek_dtype_size(part->wide));
}

/* Waits for the bucket that is under way, and gives the memory back of what has arrived elsewhere. */
static void give_back(trek_reducer *r)
{
    const trek_bucket *sent = r->under_way;
    if (!sent)
        return;
    r->under_way = NULL;
    if (r->now.settle)
        r->now.settle(r->now.arg);
    if (r->now.comm)
        note(r, trek_comm_finish(r->now.comm));
    trek_arena_give_back(r->arena, sent->part, sent->begin, sent->begin + sent->count);
}

/* One bucket may be under way while backward makes the next. */
static void send_bucket(const trek_bucket *bucket, void *arg)
{
    trek_reducer *r = arg;
    give_back(r);
    if (r->now.deliver)
        r->now.deliver(bucket, r->now.arg);
    for (int k = bucket->first; k < bucket->end;) {
        stretch x = stretch_at(r, bucket, k);
        if (is_sent(r, k))
            send_stretch(r, &x);
        k = x.end;
    }
    r->under_way = r->now.gives_back ? bucket : NULL;
    if (!r->now.lags)
        give_back(r);
}

/* Lets memory for the largest bucket or parameter stay, of what is given back while they come and go. */
static void keep_spare(const trek_reducer *r, bool keeps)
{
    size_t most[TREK_DTYPE_COUNT] = { 0 };
    for (int k = 0; keeps && k < r->buckets.n; k++) {
        const trek_bucket *bucket = &r->buckets.list[k];
        size_t bytes = (size_t)bucket->count * trek_dtype_size(r->parts[bucket->part].wide);
        most[bucket->part] = bytes > most[bucket->part] ? bytes : most[bucket->part];
    }
    for (int k = 0; keeps && k < r->n; k++) {
        const trek_reducer_item *item = &r->items[k];
        size_t bytes = (size_t)item->count * trek_dtype_size(r->parts[item->part].wide);
        most[item->part] = bytes > most[item->part] ? bytes : most[item->part];
    }
    for (int p = 0; r->arena && p < r->arena->n_parts; p++)
        if (r->parts[p].pages)
            trek_pages_keep_spare(r->parts[p].pages, most[p]);
}

void trek_reducer_begin(trek_reducer *r, trek_sending reduction)
{
    r->now = reduction;
    r->status = TREK_OK;
    keep_spare(r, reduction.gives_back);
    trek_buckets_begin(&r->buckets);
}

void trek_reducer_complete(int k, void *reducer)
{
    trek_reducer *r = reducer;
    if (k < r->n)
        trek_buckets_complete(&r->buckets, r->item_of[k], send_bucket, r);
}

trek_status trek_reducer_rest(trek_reducer *r)
{
    trek_buckets_rest(&r->buckets, send_bucket, r);
    give_back(r);
    keep_spare(r, false);
    return r->status;
}

trek_status trek_reducer_run(trek_reducer *r, trek_sending reduction)
{
    trek_reducer_begin(r, reduction);
    return trek_reducer_rest(r);
}
