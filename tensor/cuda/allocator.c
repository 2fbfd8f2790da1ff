/* SPDX-License-Identifier: Apache-2.0 */
/* The caching allocator: a pool for every queue, and one for every capture.
 *
 * A pool cuts blocks from segments (cudaMalloc) with the two-level segregated fit of Masmano et al. ("TLSF", ECRTS
 * 2004): bins by power of two and by eighths of it, bit maps to find the first bin that fits, and neighbours that are
 * joined when both are free. Everything that a queue does happens in its stream's order, so a block that its own
 * thread frees is free at once. A block that other streams have used waits for events. Other threads take a pool's
 * lock only when they free its blocks or when memory is short. */
#include "tensor/cuda/gate.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum {
    GRAIN = 512,               /* bytes; all sizes are multiples of it */
    SECOND = 8,                /* bins for each power of two */
    FIRST = 32,                /* up to 512 << 31 */
    SMALL = 1 << 20,           /* requests up to this size come from small segments */
    SMALL_SEGMENT = 2 << 20,
    LARGE_SEGMENT = 20 << 20,  /* for requests below half of it; larger ones get a segment of their size */
    LARGE_GRAIN = 2 << 20,
    USES = 4,                  /* how many streams besides its own a block remembers */
};

typedef struct block {
    char *data;
    size_t size, requested;
    trek_cuda_pool *pool;
    struct block *before, *after;         /* neighbours in the segment */
    struct block *next, *previous;        /* in a bin, or in the list of pending ones */
    struct block *next_segment, *previous_segment; /* of a segment's first block */
    bool free, small, pending;
    int n_uses;
    cudaStream_t uses[USES];
    cudaEvent_t events[USES];
    const char *op;                       /* the op that requested it */
} block;

typedef struct heap {
    uint32_t first;
    uint8_t second[FIRST];
    block *bins[FIRST][SECOND];
} heap;

struct trek_cuda_pool {
    pthread_mutex_t lock;
    trek_cuda_device *device;
    cudaStream_t stream;
    bool of_capture, retired;
    int64_t live;                         /* blocks in use or pending */
    heap heaps[2];                        /* large, small */
    block *segments;
    block *pending;
    trek_cuda_pool *next;
};

typedef struct device_counters {
    atomic_llong allocated, allocated_peak, reserved, reserved_peak, allocations, requests, retries;
} device_counters;

static device_counters counters[TREK_CUDA_MAX_DEVICES];
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static trek_cuda_pool *pools;

/* --- counters ---------------------------------------------------------------------- */

static void count(atomic_llong *now, atomic_llong *peak, long long bytes)
{
    long long value = atomic_fetch_add_explicit(now, bytes, memory_order_relaxed) + bytes;
    long long seen = atomic_load_explicit(peak, memory_order_relaxed);
    while (value > seen && !atomic_compare_exchange_weak_explicit(peak, &seen, value, memory_order_relaxed, memory_order_relaxed))
        ;
}

void trek_cuda_count(int device, int64_t allocated, int64_t reserved)
{
    device_counters *c = &counters[device];
    count(&c->allocated, &c->allocated_peak, (long long)allocated);
    count(&c->reserved, &c->reserved_peak, (long long)reserved);
}

trek_memory_stats trek_cuda_stats(trek_device device)
{
    if (device.index < 0 || device.index >= TREK_CUDA_MAX_DEVICES)
        return (trek_memory_stats){ 0 };
    device_counters *c = &counters[device.index];
    return (trek_memory_stats){ .allocated = atomic_load(&c->allocated), .allocated_peak = atomic_load(&c->allocated_peak),
                                .reserved = atomic_load(&c->reserved), .reserved_peak = atomic_load(&c->reserved_peak),
                                .allocations = atomic_load(&c->allocations), .system_requests = atomic_load(&c->requests),
                                .retries = atomic_load(&c->retries) };
}

void trek_cuda_reset_peak(trek_device device)
{
    if (device.index < 0 || device.index >= TREK_CUDA_MAX_DEVICES)
        return;
    device_counters *c = &counters[device.index];
    atomic_store(&c->allocated_peak, atomic_load(&c->allocated));
    atomic_store(&c->reserved_peak, atomic_load(&c->reserved));
}

/* --- bins ---------------------------------------------------------------------------- */

/* Finds the bin whose blocks are at least `lower` and smaller than those of the next bin. */
static void bin_of(size_t size, int *first, int *second)
{
    size_t grains = size / GRAIN;
    int log = 63 - __builtin_clzll(grains);
    *first = log < FIRST ? log : FIRST - 1;
    *second = log < 3 ? (int)((grains << (3 - log)) & (SECOND - 1)) : (int)((grains >> (log - 3)) & (SECOND - 1));
}

static void insert(heap *h, block *b)
{
    int first, second;
    bin_of(b->size, &first, &second);
    b->free = true;
    b->previous = NULL;
    b->next = h->bins[first][second];
    if (b->next)
        b->next->previous = b;
    h->bins[first][second] = b;
    h->first |= 1u << first;
    h->second[first] |= (uint8_t)(1u << second);
}

static void take_out(heap *h, block *b)
{
    int first, second;
    bin_of(b->size, &first, &second);
    if (b->next)
        b->next->previous = b->previous;
    if (b->previous)
        b->previous->next = b->next;
    else if (!(h->bins[first][second] = b->next) && !(h->second[first] &= (uint8_t)~(1u << second)))
        h->first &= ~(1u << first);
    b->free = false;
    b->next = b->previous = NULL;
}

/* Finds a free block of at least `size` bytes: the smallest of the size's own bin that fits, otherwise any of the
 * next bin. */
static block *find(heap *h, size_t size)
{
    int first, second;
    bin_of(size, &first, &second);
    block *best = NULL;
    for (block *b = h->bins[first][second]; b; b = b->next)
        if (b->size >= size && (!best || b->size < best->size))
            best = b;
    if (best)
        return best;
    uint32_t later = h->second[first] & (uint32_t)(0xffu << (second + 1));
    if (!later) {
        uint32_t firsts = first + 1 < 32 ? h->first & (~0u << (first + 1)) : 0;
        if (!firsts)
            return NULL;
        first = __builtin_ctz(firsts);
        later = h->second[first];
    }
    return h->bins[first][__builtin_ctz(later)];
}

/* --- segments --------------------------------------------------------------------------- */

static bool caching = true;

/* TREK_CACHE=off: each block is a segment and is returned to the driver at once, so that memory checkers see when it
 * is freed. */
void trek_cuda_set_caching(bool on) { caching = on; }

static size_t segment_size(size_t size, bool small)
{
    if (!caching)
        return size;
    if (small)
        return SMALL_SEGMENT;
    return size < LARGE_SEGMENT / 2 ? LARGE_SEGMENT : (size + LARGE_GRAIN - 1) / LARGE_GRAIN * LARGE_GRAIN;
}

static void free_memory(void *data)
{
    trek_cuda_pass();
    cudaFree(data);
    trek_cuda_passed();
}

/* Allocates a segment as one free block that is in no bin. Returns NULL without an error if there is no memory. */
static block *new_segment(trek_cuda_pool *pool, size_t size, bool small)
{
    size_t bytes = segment_size(size, small);
    void *data = NULL;
    trek_cuda_pass();
    cudaError_t error = cudaMalloc(&data, bytes);
    trek_cuda_passed();
    if (error != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    block *b = trek_calloc(1, sizeof *b);
    if (!b) {
        free_memory(data);
        return NULL;
    }
    device_counters *c = &counters[pool->device->index];
    atomic_fetch_add_explicit(&c->requests, 1, memory_order_relaxed);
    count(&c->reserved, &c->reserved_peak, (long long)bytes);
    *b = (block){ .data = data, .size = bytes, .pool = pool, .small = small, .next_segment = pool->segments };
    if (b->next_segment)
        b->next_segment->previous_segment = b;
    pool->segments = b;
    return b;
}

/* cudaFree waits for the device, which is not allowed during a capture there: what is freed meanwhile waits for the
 * captures' end. */
static pthread_mutex_t postponed_lock = PTHREAD_MUTEX_INITIALIZER;
static block *postponed[TREK_CUDA_MAX_DEVICES]; /* linked by next */

static void give_to_driver(int device, block *b)
{
    atomic_fetch_sub_explicit(&counters[device].reserved, (long long)b->size, memory_order_relaxed);
    free_memory(b->data);
    trek_free(b);
}

void trek_cuda_free_postponed(int device)
{
    if (trek_cuda_captures_on(device))
        return;
    pthread_mutex_lock(&postponed_lock);
    block *list = postponed[device];
    postponed[device] = NULL;
    pthread_mutex_unlock(&postponed_lock);
    for (block *next; list; list = next) {
        next = list->next;
        give_to_driver(device, list);
    }
}

static void free_segment(trek_cuda_pool *pool, block *b)
{
    if (b->next_segment)
        b->next_segment->previous_segment = b->previous_segment;
    if (b->previous_segment)
        b->previous_segment->next_segment = b->next_segment;
    else
        pool->segments = b->next_segment;
    int device = pool->device->index;
    if (!trek_cuda_captures_on(device)) {
        give_to_driver(device, b);
        return;
    }
    pthread_mutex_lock(&postponed_lock);
    b->next = postponed[device];
    postponed[device] = b;
    pthread_mutex_unlock(&postponed_lock);
}

/* Returns whole free segments to the driver. */
static void release_segments(trek_cuda_pool *pool)
{
    for (int k = 0; k < 2; k++)
        for (int first = 0; first < FIRST; first++)
            for (int second = 0; second < SECOND; second++)
                for (block *b = pool->heaps[k].bins[first][second], *next; b; b = next) {
                    next = b->next;
                    if (b->before || b->after)
                        continue;
                    take_out(&pool->heaps[k], b);
                    free_segment(pool, b);
                }
}

/* Makes the rest of a block after `size` a block of its own, if it is large enough. */
static void split(trek_cuda_pool *pool, block *b, size_t size)
{
    size_t rest = b->size - size;
    if (rest < (b->small ? GRAIN : SMALL))
        return;
    trek_status before = trek_error_status();
    block *r = trek_calloc(1, sizeof *r);
    if (!r) {
        if (before == TREK_OK)
            trek_error_clear(); /* the whole block is handed out */
        return;
    }
    *r = (block){ .data = b->data + size, .size = rest, .pool = pool, .small = b->small, .before = b, .after = b->after };
    if (b->after)
        b->after->before = r;
    b->after = r;
    b->size = size;
    insert(&pool->heaps[b->small], r);
}

/* Joins b with the block after it, which is free. */
static void absorb(block *b)
{
    block *gone = b->after;
    b->size += gone->size;
    b->after = gone->after;
    if (b->after)
        b->after->before = b;
    trek_free(gone);
}

static void make_free(trek_cuda_pool *pool, block *b)
{
    heap *h = &pool->heaps[b->small];
    pool->live--;
    if (!caching && !pool->of_capture) {
        cudaStreamSynchronize(pool->stream); /* work that uses it is in order there */
        free_segment(pool, b);
        return;
    }
    if (b->after && b->after->free) {
        take_out(h, b->after);
        absorb(b);
    }
    if (b->before && b->before->free) {
        b = b->before;
        take_out(h, b);
        absorb(b);
    }
    insert(h, b);
}

/* --- blocks that other streams have used ----------------------------------------------------- */

/* Records an event on each stream that has used the block. */
static void begin_waiting(trek_cuda_pool *pool, block *b)
{
    for (int k = 0; k < b->n_uses; k++) {
        if (cudaEventCreateWithFlags(&b->events[k], cudaEventDisableTiming) != cudaSuccess ||
            cudaEventRecord(b->events[k], b->uses[k]) != cudaSuccess) {
            cudaGetLastError();
            cudaStreamSynchronize(b->uses[k]);
            if (b->events[k])
                cudaEventDestroy(b->events[k]);
            b->events[k] = NULL;
        }
    }
    b->pending = true;
    b->next = pool->pending;
    pool->pending = b;
}

static bool has_ended(block *b)
{
    for (int k = 0; k < b->n_uses; k++) {
        if (!b->events[k])
            continue;
        if (cudaEventQuery(b->events[k]) == cudaErrorNotReady) {
            cudaGetLastError();
            return false;
        }
        cudaEventDestroy(b->events[k]);
        b->events[k] = NULL;
    }
    return true;
}

static void collect_pending(trek_cuda_pool *pool)
{
    block **at = &pool->pending;
    while (*at) {
        block *b = *at;
        if (!has_ended(b)) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        b->pending = false;
        b->n_uses = 0;
        make_free(pool, b);
    }
}

/* --- pools ------------------------------------------------------------------------------------ */

trek_cuda_pool *trek_cuda_pool_new(trek_cuda_device *device, cudaStream_t stream, bool of_capture)
{
    trek_cuda_pool *pool = trek_calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    pthread_mutex_init(&pool->lock, NULL);
    pool->device = device;
    pool->stream = stream;
    pool->of_capture = of_capture;
    pthread_mutex_lock(&pools_lock);
    pool->next = pools;
    pools = pool;
    pthread_mutex_unlock(&pools_lock);
    return pool;
}

/* Called without locks, by the thread that has returned the last block. */
static void destroy_pool(trek_cuda_pool *pool)
{
    pthread_mutex_lock(&pools_lock);
    for (trek_cuda_pool **at = &pools; *at; at = &(*at)->next)
        if (*at == pool) {
            *at = pool->next;
            break;
        }
    pthread_mutex_unlock(&pools_lock);
    release_segments(pool);
    pthread_mutex_destroy(&pool->lock);
    trek_free(pool);
}

void trek_cuda_pool_retire(trek_cuda_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    collect_pending(pool);
    pool->retired = true;
    bool last = pool->live == 0;
    pthread_mutex_unlock(&pool->lock);
    if (last)
        destroy_pool(pool);
}

/* Waits for what is pending in every pool of the device, and frees its unused segments. It does nothing while
 * anything is captured there: the driver would get nothing, and the caches would be lost. */
static void release_all(trek_cuda_device *device)
{
    if (trek_cuda_captures_on(device->index))
        return;
    trek_cuda_queue *queue = trek_cuda_queue_here(device->index);
    if (queue && trek_cuda_wait_for(queue) != cudaSuccess)
        cudaGetLastError();
    trek_cuda_free_postponed(device->index);
    trek_cuda_pages_release_cached(device->index);
    pthread_mutex_lock(&pools_lock);
    for (trek_cuda_pool *pool = pools; pool; pool = pool->next) {
        if (pool->device != device || pool->of_capture)
            continue;
        pthread_mutex_lock(&pool->lock);
        collect_pending(pool);
        release_segments(pool);
        pthread_mutex_unlock(&pool->lock);
    }
    pthread_mutex_unlock(&pools_lock);
}

void trek_cuda_release_cached(trek_device device)
{
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    if (queue)
        release_all(queue->device);
}

/* --- out of memory ------------------------------------------------------------------------------ */

typedef struct ledger_entry {
    const char *op;
    long long bytes;
    int blocks;
} ledger_entry;

static int add_to_ledger(ledger_entry *ledger, int n, int capacity, const block *b)
{
    const char *op = b->op ? b->op : "tensors";
    for (int k = 0; k < n; k++)
        if (strcmp(ledger[k].op, op) == 0) {
            ledger[k].bytes += (long long)b->size;
            ledger[k].blocks++;
            return n;
        }
    if (n == capacity)
        return n;
    ledger[n] = (ledger_entry){ op, (long long)b->size, 1 };
    return n + 1;
}

static int add_pool_to_ledger(ledger_entry *ledger, int n, int capacity, trek_cuda_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    for (const block *s = pool->segments; s; s = s->next_segment)
        for (const block *b = s; b; b = b->after)
            if (!b->free && !b->pending)
                n = add_to_ledger(ledger, n, capacity, b);
    pthread_mutex_unlock(&pool->lock);
    return n;
}

/* Writes e.g. "matmul 512.0 MiB in 12 blocks, ..." for the five ops that hold most. */
static void write_ledger(trek_cuda_device *device, char *text, size_t size)
{
    ledger_entry ledger[64];
    int n = 0;
    pthread_mutex_lock(&pools_lock);
    for (trek_cuda_pool *pool = pools; pool; pool = pool->next)
        if (pool->device == device)
            n = add_pool_to_ledger(ledger, n, 64, pool);
    pthread_mutex_unlock(&pools_lock);
    size_t used = 0;
    for (int shown = 0; shown < 5; shown++) {
        int most = -1;
        for (int k = 0; k < n; k++)
            if (ledger[k].blocks && (most < 0 || ledger[k].bytes > ledger[most].bytes))
                most = k;
        if (most < 0 || used >= size)
            break;
        used += (size_t)snprintf(text + used, size - used, "%s%s %.1f MiB in %d block%s", shown ? ", " : "", ledger[most].op,
                                 (double)ledger[most].bytes / 1048576, ledger[most].blocks, ledger[most].blocks == 1 ? "" : "s");
        ledger[most].blocks = 0;
    }
    if (used == 0)
        snprintf(text, size, "nothing");
}

trek_status trek_cuda_fail_memory(trek_cuda_device *device, size_t bytes)
{
    char holders[400];
    size_t unused = 0, total = 0;
    cudaMemGetInfo(&unused, &total);
    write_ledger(device, holders, sizeof holders);
    trek_memory_stats stats = trek_cuda_stats((trek_device){ TREK_CUDA, device->index });
    return trek_fail(
        TREK_ERR_MEMORY,
        "out of memory on cuda:%d: %.1f MiB were asked for; in use %.1f MiB, cached %.1f MiB, free %.1f of %.1f MiB. Held by: %s",
        device->index, (double)bytes / 1048576, (double)stats.allocated / 1048576,
        (double)(stats.reserved - stats.allocated) / 1048576, (double)unused / 1048576, (double)total / 1048576, holders);
}

/* --- allocate and release ----------------------------------------------------------------------------- */

static block *find_or_grow(trek_cuda_pool *pool, size_t size, bool small)
{
    block *b = find(&pool->heaps[small], size);
    if (b) {
        take_out(&pool->heaps[small], b);
        return b;
    }
    return new_segment(pool, size, small);
}

static block *allocate_block(trek_cuda_queue *queue, size_t size)
{
    trek_cuda_pool *pool = queue->pool;
    bool small = size <= SMALL;
    pthread_mutex_lock(&pool->lock);
    if (pool->pending)
        collect_pending(pool);
    block *b = find_or_grow(pool, size, small);
    if (!b) {
        pthread_mutex_unlock(&pool->lock);
        release_all(queue->device);
        pthread_mutex_lock(&pool->lock);
        b = find_or_grow(pool, size, small);
        if (b)
            atomic_fetch_add_explicit(&counters[queue->device->index].retries, 1, memory_order_relaxed);
    }
    if (b) {
        split(pool, b, size);
        pool->live++;
    }
    pthread_mutex_unlock(&pool->lock);
    return b;
}

static trek_status allocate_on(trek_cuda_queue *queue, size_t bytes, void **data, void **handle)
{
    *data = *handle = NULL;
    if (bytes == 0)
        return TREK_OK;
    if (bytes > (size_t)1 << 46)
        return trek_cuda_fail_memory(queue->device, bytes);
    block *b = allocate_block(queue, (bytes + GRAIN - 1) / GRAIN * GRAIN);
    if (!b)
        return trek_cuda_fail_memory(queue->device, bytes);
    b->requested = bytes;
    b->op = trek_plugin_host->rank_context()->op;
    device_counters *c = &counters[queue->device->index];
    count(&c->allocated, &c->allocated_peak, (long long)b->size);
    atomic_fetch_add_explicit(&c->allocations, 1, memory_order_relaxed);
    *data = b->data;
    *handle = b;
    return TREK_OK;
}

trek_status trek_cuda_allocate(trek_device device, size_t bytes, void **data, void **handle)
{
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    return queue ? allocate_on(queue, bytes, data, handle) : trek_error_status();
}

static void add_use(block *b, cudaStream_t stream)
{
    if (stream == b->pool->stream)
        return;
    for (int k = 0; k < b->n_uses; k++)
        if (b->uses[k] == stream)
            return;
    if (b->n_uses < USES)
        b->uses[b->n_uses++] = stream;
    else
        cudaStreamSynchronize(stream); /* more streams than it can remember: waits for this use to end */
}

void trek_cuda_record_use(void *handle, trek_device_stream *stream)
{
    block *b = handle;
    if (!b)
        return;
    trek_cuda_queue *queue = trek_cuda_queue_here(b->pool->device->index);
    if (!queue)
        return;
    pthread_mutex_lock(&b->pool->lock);
    add_use(b, trek_cuda_stream_of(queue, stream));
    pthread_mutex_unlock(&b->pool->lock);
}

static void release_block(trek_cuda_queue *queue, block *b)
{
    trek_cuda_pool *pool = b->pool;
    if (queue && queue->capture && pool != queue->pool) { /* replays will read it */
        trek_cuda_capture_keep(queue->capture, b);
        return;
    }
    atomic_fetch_sub_explicit(&counters[pool->device->index].allocated, (long long)b->size, memory_order_relaxed);
    pthread_mutex_lock(&pool->lock);
    if (queue && queue->stream != pool->stream)
        add_use(b, queue->stream);
    if (b->n_uses > 0 && !pool->of_capture) {
        begin_waiting(pool, b);
    } else {
        b->n_uses = 0;
        make_free(pool, b);
    }
    bool last = pool->retired && pool->live == 0;
    pthread_mutex_unlock(&pool->lock);
    if (last)
        destroy_pool(pool);
}

void trek_cuda_release(trek_device device, void *data, void *handle)
{
    (void)data;
    if (handle)
        release_block(trek_cuda_queue_here(device.index), handle);
}

trek_status trek_cuda_scratch_take(trek_cuda_queue *queue, size_t bytes, trek_cuda_scratch *scratch)
{
    return allocate_on(queue, bytes, &scratch->data, &scratch->handle);
}

void trek_cuda_scratch_give(trek_cuda_queue *queue, trek_cuda_scratch *scratch)
{
    if (scratch->handle)
        release_block(queue, scratch->handle);
    *scratch = (trek_cuda_scratch){ 0 };
}
