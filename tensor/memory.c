/* SPDX-License-Identifier: Apache-2.0 */
/* The replaceable host allocator, and the caching block allocator on top of it.
 *
 * A thread has a cache of free blocks in size classes (eight for each doubling above 1 KiB, multiples of 64 bytes
 * below). Blocks up to SMALL bytes are cut from slabs. A block that another thread frees is pushed onto its owner's
 * stack, which the owner empties when a class has run out. A thread that ends releases what it does not use; the next
 * new thread takes over the rest of its cache. TREK_CACHE=off gives every block its own allocation, for leak checkers
 * and for tests in which allocations fail. */
#include "tensor/memory_account.h"
#include "tensor/memory_internal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/debug.h"
#include "tensor/environment.h"
#include "tensor/status_internal.h"
#include "tensor/thread_end.h"

enum { ALIGNMENT = TREK_BLOCK_ALIGNMENT, SMALL = 2048, SLAB = 64 * 1024, CLASSES = TREK_BLOCK_CLASSES };

typedef trek_block block;

typedef struct slab {
    struct slab *next;
} slab;

typedef struct cache {
    trek_block_cache fast;          /* must be first: the inline functions see only this */
    _Atomic(block *) remote;        /* freed by other threads */
    atomic_llong remote_bytes;      /* of those, in total */
    slab *slabs;
    char *cut, *cut_end;            /* rest of the newest slab */
    struct cache *next_all;         /* never unlinked */
    struct cache *next_orphan;
    trek_memory_account *account;   /* which the thread has joined; NULL: none */
    bool works;                     /* it is held to the account's limit now */
    atomic_llong elsewhere, elsewhere_peak; /* what the thread has besides (trek_memory_use) */
} cache;

struct trek_memory_account {
    atomic_llong baseline;          /* what the members had in use at the beginning, less what counts as held */
    atomic_llong limit, peak;       /* limit 0: none */
    int n;
    _Atomic(cache *) members[];     /* [n] NULL: nobody */
};

_Thread_local trek_block_cache *trek_block_cache_here;
static inline cache *mine(void) { return (cache *)(void *)trek_block_cache_here; }
static inline void set_mine(cache *c) { trek_block_cache_here = c ? &c->fast : NULL; }

static void *default_allocate(size_t bytes, size_t alignment, void *arg)
{
    (void)arg;
    void *memory = NULL;
    return posix_memalign(&memory, alignment, bytes ? bytes : 1) == 0 ? memory : NULL;
}

static void default_release(void *memory, size_t bytes, void *arg)
{
    (void)bytes, (void)arg;
    free(memory);
}

static trek_allocator host = { default_allocate, default_release, NULL };
static atomic_llong live_allocations, reserved, reserved_peak, system_requests, retries;

static pthread_mutex_t caches_lock = PTHREAD_MUTEX_INITIALIZER;
static cache *all_caches, *orphans;
static pthread_once_t cache_once = PTHREAD_ONCE_INIT;
static bool caching = true;
static atomic_llong uncached_bytes, uncached_peak, uncached_allocations; /* with TREK_CACHE=off */

/* --- the host allocator ----------------------------------------------------- */

static void *host_allocate(size_t bytes)
{
    void *memory = host.allocate(bytes, ALIGNMENT, host.arg);
    if (!memory)
        return NULL;
    atomic_fetch_add_explicit(&live_allocations, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&system_requests, 1, memory_order_relaxed);
    long long now = atomic_fetch_add_explicit(&reserved, (long long)bytes, memory_order_relaxed) + (long long)bytes;
    long long peak = atomic_load_explicit(&reserved_peak, memory_order_relaxed);
    while (now > peak && !atomic_compare_exchange_weak(&reserved_peak, &peak, now))
        ;
    return memory;
}

static void host_release(void *memory, size_t bytes)
{
    atomic_fetch_sub_explicit(&live_allocations, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&reserved, (long long)bytes, memory_order_relaxed);
    host.release(memory, bytes, host.arg);
}

static trek_status fail_memory(size_t bytes)
{
    return trek_fail(TREK_ERR_MEMORY, "out of memory: %zu bytes were asked for, %lld are held", bytes,
                     (long long)atomic_load(&reserved));
}

/* trek_alloc stores the size before the memory. */
enum { HEAD = 16 };

void *trek_alloc(size_t bytes)
{
    char *memory = bytes <= SIZE_MAX - HEAD ? host_allocate(bytes + HEAD) : NULL;
    if (!memory) {
        trek_host_release_cached();
        memory = bytes <= SIZE_MAX - HEAD ? host_allocate(bytes + HEAD) : NULL;
        if (!memory) {
            fail_memory(bytes);
            return NULL;
        }
        atomic_fetch_add(&retries, 1);
    }
    memcpy(memory, &bytes, sizeof bytes);
    return memory + HEAD;
}

static size_t size_of(const void *memory)
{
    size_t bytes;
    memcpy(&bytes, (const char *)memory - HEAD, sizeof bytes);
    return bytes;
}

void *trek_realloc(void *memory, size_t bytes)
{
    void *larger = trek_alloc(bytes);
    if (larger && memory) {
        size_t old = size_of(memory);
        memcpy(larger, memory, old < bytes ? old : bytes);
        trek_free(memory);
    }
    return larger;
}

void trek_free(void *memory)
{
    if (!memory)
        return;
    size_t bytes = size_of(memory);
    if (trek_debug) {
        trek_debug_fill(memory, bytes);
        trek_debug_keep((char *)memory - HEAD, bytes + HEAD, memory, host_release);
        return;
    }
    host_release((char *)memory - HEAD, bytes + HEAD);
}

/* --- caches of threads ------------------------------------------------------ */

static long long in_use(const cache *c)
{
    long long freed_elsewhere = atomic_load(&c->remote_bytes);
    return atomic_load(&c->fast.allocated) - freed_elsewhere;
}

/* --- accounts of threads ------------------------------------------------------ */

int64_t trek_memory_account_used(const trek_memory_account *account)
{
    long long bytes = -atomic_load_explicit(&account->baseline, memory_order_relaxed);
    for (int k = 0; k < account->n; k++) {
        const cache *c = atomic_load_explicit(&account->members[k], memory_order_relaxed);
        bytes += c ? in_use(c) + atomic_load_explicit(&c->elsewhere, memory_order_relaxed) : 0;
    }
    return bytes;
}

/* Returns whether a member may have so many bytes more (surely: it has them anyway), and counts them in the peak. */
static bool takes(trek_memory_account *account, size_t size, bool surely)
{
    long long now = trek_memory_account_used(account) + (long long)size, limit = atomic_load(&account->limit);
    if (limit > 0 && now > limit && !surely)
        return false;
    long long peak = atomic_load_explicit(&account->peak, memory_order_relaxed);
    while (now > peak && !atomic_compare_exchange_weak(&account->peak, &peak, now))
        ;
    return true;
}

static void *fail_budget(const trek_memory_account *account, size_t bytes)
{
    trek_fail(TREK_ERR_MEMORY, "out of memory: %zu bytes were asked for, %lld are in use; the budget is %lld", bytes,
              (long long)trek_memory_account_used(account), (long long)atomic_load(&account->limit));
    return NULL;
}

trek_memory_account *trek_memory_account_new(int n)
{
    size_t bytes = sizeof(trek_memory_account) + (size_t)n * sizeof(_Atomic(cache *));
    trek_memory_account *account = trek_alloc(bytes);
    if (!account)
        return NULL;
    memset(account, 0, bytes);
    account->n = n;
    return account;
}

void trek_memory_account_free(trek_memory_account **account)
{
    if (mine() && mine()->account == *account)
        mine()->account = NULL;
    trek_free(*account);
    *account = NULL;
}

void trek_memory_account_leave(void)
{
    cache *c = mine();
    for (int k = 0; c && c->account && k < c->account->n; k++)
        if (atomic_load(&c->account->members[k]) == c)
            atomic_store(&c->account->members[k], NULL);
    if (c)
        c->account = NULL;
}

bool trek_memory_account_work(bool works)
{
    cache *c = mine();
    bool before = c && c->works;
    if (c)
        c->works = works;
    return before;
}

void trek_memory_account_begin(trek_memory_account *account, int64_t held)
{
    atomic_store(&account->baseline, 0);
    atomic_store(&account->baseline, trek_memory_account_used(account) - held);
    atomic_store(&account->peak, held);
}

void trek_memory_account_limit(trek_memory_account *account, int64_t bytes) { atomic_store(&account->limit, bytes); }

int64_t trek_memory_account_peak(const trek_memory_account *account) { return atomic_load(&account->peak); }

void trek_memory_account_reset_peak(trek_memory_account *account)
{
    atomic_store(&account->peak, trek_memory_account_used(account));
}

bool trek_memory_use(trek_block_cache *user, int64_t bytes, bool surely)
{
    cache *c = (cache *)(void *)user;
    if (!c)
        return true;
    trek_memory_account *account = c->account;
    if (bytes > 0 && account && c->works && !takes(account, (size_t)bytes, surely))
        return false;
    long long now = atomic_fetch_add(&c->elsewhere, bytes) + bytes, peak = atomic_load(&c->elsewhere_peak);
    while (now > peak && !atomic_compare_exchange_weak(&c->elsewhere_peak, &peak, now))
        ;
    return true;
}

/* --- slabs and blocks --------------------------------------------------------- */

/* Releases the slabs of a cache of which nothing is in use. */
static void release_slabs(cache *c)
{
    for (int k = 0; k < CLASSES; k++)
        c->fast.free[k] = NULL;
    while (c->slabs) {
        slab *s = c->slabs;
        c->slabs = s->next;
        host_release(s, SLAB);
    }
    c->cut = c->cut_end = NULL;
}

/* Takes back what other threads have freed. */
static void drain_remote(cache *c)
{
    block *b = atomic_exchange_explicit(&c->remote, NULL, memory_order_acquire);
    while (b) {
        block *next = b->next;
        b->next = c->fast.free[b->size_class];
        c->fast.free[b->size_class] = b;
        b = next;
    }
}

/* Releases the blocks that have their own allocation. */
static void release_unused(cache *c)
{
    drain_remote(c);
    for (int k = 0; k < CLASSES; k++) {
        if (c->fast.free[k] && c->fast.free[k]->size <= SMALL)
            continue; /* cut from slabs */
        while (c->fast.free[k]) {
            block *b = c->fast.free[k];
            c->fast.free[k] = b->next;
            host_release(b, b->size + ALIGNMENT);
        }
    }
}

/* Releases everything that is not in use. Called by the owner, or while there is no owner. */
static void release_cache(cache *c)
{
    bool unused = in_use(c) == 0; /* what is freed from now on is kept for the next time */
    release_unused(c);
    if (unused)
        release_slabs(c);
}

/* The thread ends: what it does not use goes back to the system, and the rest to the next thread. */
static void orphan_cache(void)
{
    cache *c = mine();
    trek_memory_account_leave();
    release_cache(c);
    pthread_mutex_lock(&caches_lock);
    c->next_orphan = orphans;
    orphans = c;
    pthread_mutex_unlock(&caches_lock);
    set_mine(NULL);
}

static void set_up_caches(void)
{
    static const char *const modes[] = { "off", "on" };
    trek_environment_check(); /* this sets the calling thread's error; the allocation still succeeds */
    caching = trek_environment_choice("TREK_CACHE", modes, 2, 1) == 1 && !trek_debug;
}

static cache *take_cache(void)
{
    pthread_once(&cache_once, set_up_caches);
    pthread_mutex_lock(&caches_lock);
    cache *c = orphans;
    if (c)
        orphans = c->next_orphan;
    pthread_mutex_unlock(&caches_lock);
    if (!c) {
        /* It outlives allocators and threads, so it is plain memory and never freed. */
        c = calloc(1, sizeof *c);
        if (!c)
            return NULL;
        pthread_mutex_lock(&caches_lock);
        c->next_all = all_caches;
        all_caches = c;
        pthread_mutex_unlock(&caches_lock);
    }
    set_mine(c);
    trek_thread_at_end(TREK_THREAD_CACHE, orphan_cache);
    return c;
}

bool trek_memory_account_counts(void)
{
    pthread_once(&cache_once, set_up_caches);
    return caching;
}

trek_block_cache *trek_memory_user(void)
{
    pthread_once(&cache_once, set_up_caches);
    cache *c = !caching ? NULL : trek_block_cache_here ? mine() : take_cache();
    return c ? &c->fast : NULL;
}

trek_status trek_memory_account_join(trek_memory_account *account, int k)
{
    trek_memory_account_leave();
    cache *c = trek_block_cache_here ? mine() : take_cache();
    if (!c)
        return fail_memory(sizeof *c);
    c->account = account;
    c->works = true;
    atomic_store(&account->members[k], c);
    return TREK_OK;
}

static inline int class_of(size_t bytes, size_t *size)
{
    if (bytes <= 1024) {
        int k = bytes ? (int)((bytes + 63) / 64) - 1 : 0;
        *size = ((size_t)k + 1) * 64;
        return k;
    }
    int doubling = 63 - __builtin_clzll(bytes - 1); /* 2^doubling <= bytes - 1 */
    size_t step = (size_t)1 << (doubling - 3);
    size_t part = (bytes - 1 - ((size_t)1 << doubling)) / step;
    *size = ((size_t)1 << doubling) + (part + 1) * step;
    return 16 + (doubling - 10) * 8 + (int)part;
}

size_t trek_block_size(size_t bytes)
{
    size_t size;
    class_of(bytes, &size);
    return size;
}

static block *cut_small(cache *c, size_t size)
{
    size_t bytes = sizeof(block) > ALIGNMENT ? 2 * ALIGNMENT : ALIGNMENT;
    bytes += size;
    if (!c->cut || (size_t)(c->cut_end - c->cut) < bytes) {
        slab *s = host_allocate(SLAB);
        if (!s)
            return NULL;
        s->next = c->slabs;
        c->slabs = s;
        c->cut = (char *)s + ALIGNMENT;
        c->cut_end = (char *)s + SLAB;
    }
    block *b = (block *)c->cut;
    c->cut += bytes;
    return b;
}

_Static_assert(sizeof(block) <= ALIGNMENT, "a block's head fits into its alignment");

static block *new_block(cache *c, size_t size)
{
    if (c && size <= SMALL)
        return cut_small(c, size);
    return host_allocate(size + ALIGNMENT);
}

static void count_uncached(long long bytes)
{
    long long now = atomic_fetch_add(&uncached_bytes, bytes) + bytes, peak = atomic_load(&uncached_peak);
    while (now > peak && !atomic_compare_exchange_weak(&uncached_peak, &peak, now))
        ;
}

static void *allocate_slow(size_t bytes, size_t size, int size_class)
{
    cache *c = trek_block_cache_here ? mine() : take_cache();
    block *b = NULL;
    if (!caching)
        c = NULL;
    if (c) {
        drain_remote(c);
        b = c->fast.free[size_class];
        if (b)
            c->fast.free[size_class] = b->next;
    }
    if (!b && !(b = new_block(c, size))) {
        trek_host_release_cached();
        b = new_block(c, size);
        if (!b) {
            fail_memory(bytes);
            return NULL;
        }
        atomic_fetch_add(&retries, 1);
    }
    b->owner = c ? &c->fast : NULL;
    b->size = size;
    b->size_class = size_class;
    if (c) {
        trek_block_count(&c->fast, (long long)size);
        atomic_fetch_add_explicit(&c->fast.allocations, 1, memory_order_relaxed);
    } else {
        count_uncached((long long)size);
        atomic_fetch_add(&uncached_allocations, 1);
    }
    return (char *)b + ALIGNMENT;
}

void *trek_block_alloc(size_t bytes)
{
    if (bytes > (size_t)1 << 48) {
        fail_memory(bytes);
        return NULL;
    }
    size_t size;
    int size_class = class_of(bytes, &size);
    trek_block_cache *c = trek_block_cache_here;
    if (c && mine()->account && mine()->works && !takes(mine()->account, size, false))
        return fail_budget(mine()->account, bytes);
    block *b = c ? c->free[size_class] : NULL;
    if (!b)
        return allocate_slow(bytes, size, size_class);
    c->free[size_class] = b->next;
    trek_block_count(c, (long long)size);
    atomic_store_explicit(&c->allocations, atomic_load_explicit(&c->allocations, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    return (char *)b + ALIGNMENT;
}

/* Nothing uses the block's memory any more, except for what `shell` makes of it. */
static void keep_block(block *b, const void *object, void (*shell)(void *memory))
{
    char *memory = (char *)b + ALIGNMENT;
    trek_debug_fill(memory, b->size);
    if (shell)
        shell(memory);
    trek_debug_keep(b, b->size + ALIGNMENT, object, host_release);
}

void trek_block_bury(void *memory, const void *object, void (*shell)(void *memory))
{
    block *b = (block *)(void *)((char *)memory - ALIGNMENT);
    if (b->owner) { /* made before the mode was on */
        trek_block_free(memory);
        return;
    }
    count_uncached(-(long long)b->size);
    keep_block(b, object, shell);
}

void trek_block_free(void *memory)
{
    if (!memory)
        return;
    block *b = (block *)(void *)((char *)memory - ALIGNMENT);
    cache *c = (cache *)(void *)b->owner;
    if (!c) {
        count_uncached(-(long long)b->size);
        if (trek_debug)
            keep_block(b, memory, NULL);
        else
            host_release(b, b->size + ALIGNMENT);
    } else if (b->owner == trek_block_cache_here) {
        trek_block_drop(memory);
    } else {
        long long bytes = (long long)b->size;
        b->next = atomic_load_explicit(&c->remote, memory_order_relaxed);
        while (!atomic_compare_exchange_weak_explicit(&c->remote, &b->next, b, memory_order_release, memory_order_relaxed))
            ;
        atomic_fetch_add_explicit(&c->remote_bytes, bytes, memory_order_release);
            /* last: after an owner that sees nothing in use has returned all blocks */
    }
}

/* --- for the public functions (device_memory.c) -------------------------------- */

void trek_host_release_cached(void)
{
    if (trek_debug)
        trek_debug_flush();
    if (mine())
        release_cache(mine());
    if (trek_forked)
        return; /* the lock may be held by a thread that does not exist here */
    pthread_mutex_lock(&caches_lock);
    for (cache *c = orphans; c; c = c->next_orphan)
        release_cache(c); /* without an owner: ours while the lock is held */
    pthread_mutex_unlock(&caches_lock);
}

trek_status trek_host_allocator_set(const trek_allocator *allocator)
{
    trek_host_release_cached();
    long long live = atomic_load(&live_allocations);
    if (live != 0)
        return trek_fail(TREK_ERR_STATE, "allocator_set: %lld allocations of the present allocator are in use; free them first",
                         live);
    host = allocator ? *allocator : (trek_allocator){ default_allocate, default_release, NULL };
    return TREK_OK;
}

trek_memory_stats trek_host_memory_stats(void)
{
    trek_memory_stats stats = { .reserved = atomic_load(&reserved),
                                .reserved_peak = atomic_load(&reserved_peak),
                                .system_requests = atomic_load(&system_requests),
                                .retries = atomic_load(&retries) };
    pthread_mutex_lock(&caches_lock);
    for (cache *c = all_caches; c; c = c->next_all) {
        stats.allocated += in_use(c) + atomic_load(&c->elsewhere);
        stats.allocated_peak += atomic_load(&c->fast.peak) + atomic_load(&c->elsewhere_peak);
        stats.allocations += atomic_load(&c->fast.allocations);
    }
    pthread_mutex_unlock(&caches_lock);
    stats.allocated += atomic_load(&uncached_bytes);
    stats.allocated_peak += atomic_load(&uncached_peak);
    stats.allocations += atomic_load(&uncached_allocations);
    return stats;
}

void trek_host_reset_peak(void)
{
    pthread_mutex_lock(&caches_lock);
    for (cache *c = all_caches; c; c = c->next_all) {
        atomic_store(&c->fast.peak, in_use(c));
        atomic_store(&c->elsewhere_peak, atomic_load(&c->elsewhere));
    }
    pthread_mutex_unlock(&caches_lock);
    atomic_store(&uncached_peak, atomic_load(&uncached_bytes));
    atomic_store(&reserved_peak, atomic_load(&reserved));
}
