/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which of a tape's saved storages leave the device, and when they are brought back. */
#include "autograd/offload_values.h"

#include <stdlib.h>

#include "autograd/offload_internal.h"
#include "tensor/rank_context.h"

enum { FIRST_BUCKETS = 64, LOOK_BACK = 64 };

static atomic_llong bytes_on_host, bytes_sent, bytes_returned;

static void count(atomic_llong *counter, long long bytes) { atomic_fetch_add_explicit(counter, bytes, memory_order_relaxed); }

trek_offload_stats trek_offload_usage(void)
{
    return (trek_offload_stats){ .bytes = atomic_load(&bytes_on_host), .sent = atomic_load(&bytes_sent),
                                 .returned = atomic_load(&bytes_returned) };
}

/* Allocated with calloc, because it outlives every allocator, as the tape does. */
struct trek_offload *trek_offload_of(trek_tape *tape)
{
    if (!tape || tape->offload)
        return tape ? tape->offload : NULL;
    struct trek_offload *o = calloc(1, sizeof *o);
    trek_value **buckets = o ? calloc(FIRST_BUCKETS, sizeof(trek_value *)) : NULL;
    if (!buckets) {
        free(o);
        trek_fail(TREK_ERR_MEMORY, "offload_begin: out of memory");
        return NULL;
    }
    o->buckets = buckets;
    o->n_buckets = FIRST_BUCKETS;
    return tape->offload = o;
}

void trek_offload_thread_end(trek_tape *tape)
{
    if (tape->offload)
        tape->offload->depth = 0;
}

/* --- values, by storage -------------------------------------------------------------------------- */

static trek_value **bucket_of(trek_value **buckets, int n, const trek_storage *storage)
{
    uintptr_t hash = (uintptr_t)storage >> 6;
    return &buckets[(hash ^ hash >> 11) & (size_t)(n - 1)];
}

static trek_value *find(const struct trek_offload *o, const trek_storage *storage)
{
    trek_value *v = *bucket_of(o->buckets, o->n_buckets, storage);
    while (v && v->storage != storage)
        v = v->in_bucket;
    return v;
}

/* Adds buckets if there is memory; otherwise chains grow longer. */
static void spread(struct trek_offload *o, int n_values)
{
    if (n_values <= o->n_buckets)
        return;
    int n = 2 * o->n_buckets;
    trek_value **buckets = calloc((size_t)n, sizeof(trek_value *));
    if (!buckets)
        return;
    for (int k = 0; k < o->n_buckets; k++)
        for (trek_value *v = o->buckets[k], *next; v; v = next) {
            trek_value **at = bucket_of(buckets, n, v->storage);
            next = v->in_bucket;
            v->in_bucket = *at;
            *at = v;
        }
    free(o->buckets);
    o->buckets = buckets;
    o->n_buckets = n;
}

static void append(trek_value_list *l, trek_value *v)
{
    v->before = l->last;
    v->after = NULL;
    *(l->last ? &l->last->after : &l->first) = v;
    l->last = v;
    l->n++;
    v->listed = true;
}

/* Removes the value from the list of its state. */
static void unlist(struct trek_offload *o, trek_value *v)
{
    trek_value_list *l = v->place == TREK_LEAVING ? &o->leaving : &o->staying;
    if (!v->listed)
        return;
    *(v->before ? &v->before->after : &l->first) = v->after;
    *(v->after ? &v->after->before : &l->last) = v->before;
    l->n--;
    v->listed = false;
}

static trek_value *new_value(trek_tape *tape, trek_storage *storage, uint64_t serial)
{
    struct trek_offload *o = tape->offload;
    trek_value *v = trek_calloc(1, sizeof *v);
    if (!v)
        return NULL;
    spread(o, tape->n_offloaded + 1);
    trek_value **at = bucket_of(o->buckets, o->n_buckets, storage);
    v->storage = storage;
    v->first = serial;
    v->holders = v->few;
    v->capacity = (int)(sizeof v->few / sizeof v->few[0]);
    v->in_bucket = *at;
    *at = v;
    append(&o->staying, v);
    tape->n_offloaded++;
    return v;
}

static void free_value(trek_tape *tape, trek_value *v)
{
    struct trek_offload *o = tape->offload;
    trek_value **at = bucket_of(o->buckets, o->n_buckets, v->storage);
    while (*at != v)
        at = &(*at)->in_bucket;
    *at = v->in_bucket;
    unlist(o, v);
    if (v->place == TREK_ON_HOST)
        count(&bytes_on_host, -(long long)v->storage->bytes);
    trek_value_drop_copy(v);
    if (v->holders != v->few)
        trek_free(v->holders);
    trek_free(v);
    tape->n_offloaded--;
}

static bool add_holder(trek_value *v, trek_tensor *tensor)
{
    for (int k = 0; k < v->n; k++)
        if (v->holders[k].tensor == tensor) {
            v->holders[k].uses++;
            return true;
        }
    if (v->n == v->capacity) {
        trek_value_holder *larger = trek_alloc(2 * (size_t)v->capacity * sizeof *larger);
        if (!larger)
            return false;
        memcpy(larger, v->holders, (size_t)v->n * sizeof *larger);
        if (v->holders != v->few)
            trek_free(v->holders);
        v->holders = larger;
        v->capacity *= 2;
    }
    v->holders[v->n++] = (trek_value_holder){ .tensor = tensor, .uses = 1, .offset = tensor->data - v->storage->data };
    return true;
}

/* --- what the tape saves ------------------------------------------------------------------------------ */

/* A failed operation is skipped and leaves no error. */
static void do_without(struct trek_offload *o, const char *what, trek_status before)
{
    if (!o->warned)
        trek_log_message(TREK_LOG_LEVEL_WARNING, "offload: %s: %s", what, trek_error());
    o->warned = true;
    if (before == TREK_OK)
        trek_error_clear();
}

/* Returns whether a storage can leave: it is whole memory of a device's allocator, which the tape may become the only
 * holder of. */
static bool can_leave(const trek_storage *s, int64_t min_bytes)
{
    const trek_backend *backend = trek_backends[s->device.type];
    if (backend->host_accessible || s->parent || s->release || (int64_t)s->bytes < min_bytes)
        return false;
    const trek_rank_watch *watch = trek_rank_watched();
    if (watch && watch->refuse)
        watch->refuse("what backward needs is kept in host memory (trek_offload_begin)", watch->arg);
    return !(backend->capturing && backend->capturing());
}

bool trek_offload_note(trek_tape *tape, trek_tensor *tensor, uint64_t serial, const trek_offload_opts *opts)
{
    trek_status before = trek_error_status();
    if (!can_leave(tensor->storage, opts->min_bytes))
        return false;
    struct trek_offload *o = trek_offload_of(tape);
    if (o && tape->n_offloaded == 0)
        o->stopped = false; /* a new step */
    if (o && o->stopped)
        return false;
    trek_value *v = o ? find(o, tensor->storage) : NULL;
    if (o && !v)
        v = new_value(tape, tensor->storage, serial);
    if (v && add_holder(v, tensor)) {
        o->ahead = opts->ahead;
        return true;
    }
    if (v && v->n == 0)
        free_value(tape, v);
    if (before == TREK_OK)
        trek_error_clear(); /* it stays where it is */
    return false;
}

void trek_offload_forget(trek_tape *tape, const trek_tensor *tensor)
{
    trek_value *v = find(tape->offload, tensor->storage);
    int k = 0;
    while (v->holders[k].tensor != tensor)
        k++;
    if (--v->holders[k].uses == 0)
        v->holders[k] = v->holders[--v->n];
    if (v->n == 0)
        free_value(tape, v);
}

static void stay(struct trek_offload *o, trek_value *v, trek_status before)
{
    unlist(o, v);
    v->place = TREK_ON_DEVICE;
    o->stopped = true;
    do_without(o, "what backward needs stays on the device", before);
}

static void begin_to_send(struct trek_offload *o, trek_value *v)
{
    trek_status before = trek_error_status();
    trek_lane *lane = trek_lane_of(&o->lanes, v->storage->device);
    unlist(o, v);
    if (!lane || trek_value_send(v, lane) != TREK_OK) {
        stay(o, v, before);
        return;
    }
    append(&o->leaving, v);
    o->sent += (int64_t)v->storage->bytes;
    count(&bytes_sent, (long long)v->storage->bytes);
}

static void evict(struct trek_offload *o, trek_value *v)
{
    trek_status before = trek_error_status();
    size_t bytes = v->storage->bytes;
    if (trek_value_evict(v) != TREK_OK) {
        stay(o, v, before);
        return;
    }
    count(&bytes_on_host, (long long)bytes);
}

void trek_offload_send(trek_tape *tape)
{
    struct trek_offload *o = tape->offload;
    const trek_value *any = o->staying.first ? o->staying.first : o->leaving.first;
    if (!any || tape->walks > 0 || trek_value_is_captured(any))
        return;
    for (trek_value *v = o->staying.first, *next; v && !o->stopped; v = next) {
        next = v->after;
        if (trek_value_is_sole(v))
            begin_to_send(o, v);
    }
    while (o->leaving.n > o->ahead) {
        trek_value *oldest = o->leaving.first;
        unlist(o, oldest);
        evict(o, oldest);
    }
}

/* --- what backward needs -------------------------------------------------------------------------------- */

/* A value whose copy is in progress is still there. */
static trek_status bring(struct trek_offload *o, trek_value *v)
{
    if (v->place == TREK_LEAVING) {
        unlist(o, v);
        v->place = TREK_ON_DEVICE;
    }
    if (v->place == TREK_ON_DEVICE)
        return TREK_OK;
    trek_status status = trek_value_return(v);
    if (status != TREK_OK)
        return status;
    count(&bytes_on_host, -(long long)v->storage->bytes);
    count(&bytes_returned, (long long)v->storage->bytes);
    return TREK_OK;
}

trek_status trek_offload_bring(trek_tape *tape, const trek_tensor *tensor)
{
    trek_value *v = find(tape->offload, tensor->storage);
    trek_status status = bring(tape->offload, v);
    return status == TREK_OK ? trek_value_await(v) : status;
}

/* Calls fn for each managed value that the node has saved, until fn returns false. */
static bool each_value(const trek_node *node, bool (*fn)(struct trek_offload *o, trek_value *v, void *arg), void *arg)
{
    struct trek_offload *o = node->tape->offload;
    const trek_function_context *context = node->context;
    for (int k = 0; k < node->n_saved; k++)
        if (node->saved[k].offloads && !fn(o, find(o, node->saved[k].tensor->storage), arg))
            return false;
    for (int k = 0; context && k < context->n_saved; k++)
        if (context->saved[k].offloads && !fn(o, find(o, context->saved[k].tensor->storage), arg))
            return false;
    return true;
}

typedef struct look {
    int left;                  /* how many more values may be brought ahead of their use */
    bool now;                  /* this is the node that comes next */
    const trek_value *last;    /* seen: neighbours save the same value */
} look;

static bool bring_one(struct trek_offload *o, trek_value *v, void *arg)
{
    look *l = arg;
    if (v == l->last)
        return true;
    l->last = v;
    trek_status before = trek_error_status();
    if (bring(o, v) != TREK_OK) { /* out of memory: retried when the value is needed */
        if (before == TREK_OK)
            trek_error_clear();
        return false;
    }
    return l->now || !v->returning || --l->left > 0;
}

void trek_offload_bring_ahead(const trek_node *node, uint32_t walk)
{
    look l = { .left = node->tape->offload->ahead, .now = true };
    const trek_node *at = node;
    for (int k = 0; at && k < LOOK_BACK && l.left > 0; k++, at = at->prev) {
        l.now = k == 0;
        if ((l.now || at->walk == walk) && !each_value(at, bring_one, &l))
            return;
    }
}

static bool leave_again(struct trek_offload *o, trek_value *v, void *node)
{
    bool done = v->place == TREK_ON_DEVICE && !v->listed && v->copied && v->version == v->storage->version &&
                v->first >= ((const trek_node *)node)->serial && trek_value_is_sole(v);
    if (done)
        evict(o, v);
    return true;
}

void trek_offload_leave_again(const trek_node *node) { each_value(node, leave_again, (void *)(uintptr_t)node); }
