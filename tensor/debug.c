/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/debug.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/environment.h"
#include "tensor/status_internal.h"
#include "tensor/tensor_internal.h"

/* Small blocks are objects, of which many are kept; large blocks are their data. */
enum { SMALL = 4096, KEPT_OBJECTS = 1 << 18, FIRST_ROOM = 1 << 12 };
#define KEPT_BYTES ((size_t)64 << 20)

bool trek_debug;
static unsigned char poison = 0xff; /* floats: NaN */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Runs before other constructors, which read trek_debug. */
__attribute__((constructor(101))) static void read_environment(void)
{
    trek_debug = trek_environment_number("TREK_DEBUG", 0, 1, 0) != 0;
    poison = (unsigned char)trek_environment_number("TREK_DEBUG_POISON", 0, 255, 0xff);
    if (trek_debug)
        atomic_store_explicit(&trek_not_lean, true, memory_order_relaxed);
}

/* --- records: open addressing by address, in plain memory ---------------------- */

typedef struct record {
    const void *object;    /* NULL: free entry; &removed: was used */
    const char *kind, *by;
    uint32_t scope;        /* the owner's serial; 0: none */
    bool scope_ended, gone, given;
} record;

static const char removed;
static record *records;
static size_t room, used; /* used: entries that are not NULL */

static size_t place_of(const void *object, size_t size)
{
    uint64_t hash = (uint64_t)(uintptr_t)object * 0x9e3779b97f4a7c15u;
    return (size_t)(hash >> 20) & (size - 1);
}

static record *find(const void *object)
{
    if (!records)
        return NULL;
    for (size_t at = place_of(object, room);; at = (at + 1) & (room - 1)) {
        if (records[at].object == object)
            return &records[at];
        if (!records[at].object)
            return NULL;
    }
}

/* Without memory this mode notices less; nothing else happens. */
static bool make_room(void)
{
    if (records && 4 * (used + 1) <= 3 * room)
        return true;
    size_t live = 0;
    for (size_t k = 0; k < room; k++)
        live += records[k].object && records[k].object != &removed;
    size_t larger = room ? room : FIRST_ROOM;
    while (2 * (live + 1) > larger)
        larger *= 2;
    record *fresh = calloc(larger, sizeof *fresh);
    if (!fresh)
        return false;
    for (size_t k = 0; k < room; k++) {
        if (!records[k].object || records[k].object == &removed)
            continue;
        size_t at = place_of(records[k].object, larger);
        while (fresh[at].object)
            at = (at + 1) & (larger - 1);
        fresh[at] = records[k];
    }
    free(records);
    records = fresh;
    room = larger;
    used = live;
    return true;
}

/* Returns the object's record, a new one if necessary; NULL without memory. */
static record *obtain(const void *object)
{
    record *r = find(object);
    if (r || !make_room())
        return r;
    size_t at = place_of(object, room);
    while (records[at].object && records[at].object != &removed)
        at = (at + 1) & (room - 1);
    used += !records[at].object;
    records[at] = (record){ .object = object };
    return &records[at];
}

void trek_debug_made(const void *object, const char *kind, const char *by, uint32_t scope)
{
    pthread_mutex_lock(&lock);
    record *r = obtain(object);
    if (r)
        *r = (record){ .object = object, .kind = kind, .by = by, .scope = scope };
    pthread_mutex_unlock(&lock);
}

void trek_debug_moved(const void *object, uint32_t scope)
{
    pthread_mutex_lock(&lock);
    record *r = find(object);
    if (r) {
        r->scope = scope;
        r->scope_ended = false;
    }
    pthread_mutex_unlock(&lock);
}

void trek_debug_scope_ends(const void *object)
{
    pthread_mutex_lock(&lock);
    record *r = find(object);
    if (r)
        r->scope_ended = true;
    pthread_mutex_unlock(&lock);
}

void trek_debug_ended(const void *object, const char *kind, const char *by)
{
    pthread_mutex_lock(&lock);
    record *r = obtain(object);
    if (r) {
        if (!r->kind)
            *r = (record){ .object = object, .kind = kind, .by = by };
        r->gone = true;
    }
    pthread_mutex_unlock(&lock);
}

/* --- errors --------------------------------------------------------------------- */

/* Writes e.g. "result of mul in scope 17, which has ended" or "module linear". */
static void describe(const record *r, char *text, size_t size)
{
    bool result = r->by && r->scope;
    if (result && r->scope_ended)
        snprintf(text, size, "result of %s in scope %u, which has ended", r->by, (unsigned)r->scope);
    else if (result)
        snprintf(text, size, "result of %s in scope %u, released once too often", r->by, (unsigned)r->scope);
    else
        snprintf(text, size, "%s%s%s", r->kind, r->by ? " " : "", r->by ? r->by : "");
}

trek_status trek_debug_refuse(const void *object, const char *function, const char *what, int number)
{
    char text[256], place[32] = "";
    pthread_mutex_lock(&lock);
    const record *r = find(object);
    bool gone = r && r->gone;
    if (gone)
        describe(r, text, sizeof text);
    pthread_mutex_unlock(&lock);
    if (!gone)
        return TREK_OK;
    if (number >= 0)
        snprintf(place, sizeof place, " %d", number);
    return trek_fail(TREK_ERR_STATE, "%s: %s%s was freed: %s", function, what ? what : "the object", place, text);
}

trek_status trek_debug_give(const void *object, const char *function, const char *what)
{
    char text[256] = "";
    trek_status status = trek_debug_refuse(object, function, what, -1);
    if (status != TREK_OK)
        return status;
    pthread_mutex_lock(&lock);
    record *r = obtain(object);
    bool given = r && r->given;
    if (given)
        describe(r, text, sizeof text);
    else if (r)
        r->given = true;
    pthread_mutex_unlock(&lock);
    return given ? trek_fail(TREK_ERR_STATE, "%s: %s already has an owner: %s", function, what, text) : TREK_OK;
}

/* --- memory that is kept ----------------------------------------------------------- */

typedef struct kept {
    struct kept *next;
    void *memory;
    size_t bytes;
    const void *object;
    void (*release)(void *, size_t);
} kept;

static struct queue {
    kept *first, **last;
    size_t count, bytes;
} queues[2] = { { .last = &queues[0].first }, { .last = &queues[1].first } }; /* objects, data */

void trek_debug_fill(void *memory, size_t bytes) { memset(memory, poison, bytes); }

/* Takes the oldest element out of the queue, and drops its records. */
static kept *take_oldest(struct queue *q)
{
    kept *k = q->first;
    q->first = k->next;
    if (!q->first)
        q->last = &q->first;
    q->count--;
    q->bytes -= k->bytes;
    record *r = find(k->object);
    if (r)
        r->object = &removed;
    return k;
}

/* Releases what exceeds the limits, without the lock, because releasing may call a user's allocator. */
static void shorten(size_t count, size_t bytes)
{
    for (int which = 0; which < 2; which++)
        for (;;) {
            pthread_mutex_lock(&lock);
            struct queue *q = &queues[which];
            kept *oldest = q->first && (q->count > count || q->bytes > bytes) ? take_oldest(q) : NULL;
            pthread_mutex_unlock(&lock);
            if (!oldest)
                break;
            oldest->release(oldest->memory, oldest->bytes);
            free(oldest);
        }
}

void trek_debug_keep(void *memory, size_t bytes, const void *object, void (*release)(void *, size_t))
{
    kept *k = malloc(sizeof *k);
    pthread_mutex_lock(&lock);
    if (k) {
        *k = (kept){ .memory = memory, .bytes = bytes, .object = object, .release = release };
        struct queue *q = &queues[bytes > SMALL];
        *q->last = k;
        q->last = &k->next;
        q->count++;
        q->bytes += bytes;
    } else {
        record *r = find(object);
        if (r)
            r->object = &removed;
    }
    pthread_mutex_unlock(&lock);
    if (!k)
        release(memory, bytes);
    shorten(KEPT_OBJECTS, KEPT_BYTES);
}

void trek_debug_flush(void) { shorten(0, 0); }

/* --- shells --------------------------------------------------------------------------- */

static trek_storage gone_storage;

static void make_shell(trek_tensor *t)
{
    atomic_init(&t->refs, INT_MIN / 2); /* it can never be 1 again */
    t->dtype = TREK_F32;
    t->ndim = 0;
    t->contiguous = true;
    t->embedded = false;
    t->device = (trek_device){ TREK_CPU, 0 };
    t->storage = &gone_storage;
    t->data = gone_storage.small;
    t->numel = 1;
}

static void make_gone(void)
{
    atomic_init(&gone_storage.refs, INT_MIN / 2);
    gone_storage.data = gone_storage.small;
    gone_storage.bytes = sizeof(float);
    memset(gone_storage.small, 0xff, sizeof gone_storage.small);
    make_shell(&gone_storage.own);
}

void trek_debug_shell(trek_tensor *tensor)
{
    trek_debug_gone_tensor();
    make_shell(tensor);
}

trek_tensor *trek_debug_gone_tensor(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_gone);
    return &gone_storage.own;
}
