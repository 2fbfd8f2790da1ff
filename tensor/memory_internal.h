/* SPDX-License-Identifier: Apache-2.0 */
/* Two ways to host memory, both through the replaceable allocator.
 *
 * trek_alloc is for long-lived objects and tables; it stores the size. trek_block_alloc is for tensor memory, tensor
 * headers, variables and tape nodes: 64-byte aligned blocks in size classes from a cache of the calling thread. A
 * block that another thread frees goes back to its owner's cache. */
#ifndef TREK_TENSOR_MEMORY_INTERNAL_H
#define TREK_TENSOR_MEMORY_INTERNAL_H

#include <stdatomic.h>

#include "tensor/memory.h"

/* 16-byte aligned. Returns NULL and sets the sticky error TREK_ERR_MEMORY on failure. bytes may be 0. */
void *trek_alloc(size_t bytes);
void *trek_calloc(size_t count, size_t size);              /* checks for overflow; zeroed */
void *trek_realloc(void *memory, size_t bytes);            /* memory may be NULL; on failure it stays valid */
char *trek_strdup(const char *text);
char *trek_format(const char *format, ...) TREK_PRINTF(1, 2); /* a new string */
void trek_free(void *memory);                              /* NULL is allowed */

/* 64-byte aligned, uninitialised. Returns NULL and sets TREK_ERR_MEMORY on failure. */
void *trek_block_alloc(size_t bytes);
void trek_block_free(void *block);                         /* from any thread; NULL is allowed */
size_t trek_block_size(size_t bytes);                      /* what a block of so many bytes counts in an account */

/* The 64 bytes before a block. */
typedef struct trek_block {
    struct trek_block_cache *owner; /* NULL: not cached (TREK_CACHE=off) */
    struct trek_block *next;        /* in a free list */
    size_t size;                    /* bytes for the caller */
    int size_class;
} trek_block;

enum { TREK_BLOCK_ALIGNMENT = 64, TREK_BLOCK_CLASSES = 16 + 8 * 40 };

/* The part of a thread's cache that the inline functions use. Only the owner writes the counters. */
typedef struct trek_block_cache {
    trek_block *free[TREK_BLOCK_CLASSES];
    atomic_llong allocated, peak, allocations;
} trek_block_cache;

extern _Thread_local trek_block_cache *trek_block_cache_here; /* NULL until the first block */

static inline void trek_block_count(trek_block_cache *c, long long bytes)
{
    long long now = atomic_load_explicit(&c->allocated, memory_order_relaxed) + bytes;
    atomic_store_explicit(&c->allocated, now, memory_order_relaxed);
    if (now > atomic_load_explicit(&c->peak, memory_order_relaxed))
        atomic_store_explicit(&c->peak, now, memory_order_relaxed);
}

/* trek_block_alloc for sizes up to 1024 that are known to the compiler. */
static inline void *trek_block_alloc_fixed(size_t bytes)
{
    trek_block_cache *c = trek_block_cache_here;
    size_t size_class = (bytes + 63) / 64 - 1;
    trek_block *b = c ? c->free[size_class] : NULL;
    if (!b)
        return trek_block_alloc(bytes);
    c->free[size_class] = b->next;
    trek_block_count(c, (long long)(size_class + 1) * 64);
    atomic_store_explicit(&c->allocations, atomic_load_explicit(&c->allocations, memory_order_relaxed) + 1, memory_order_relaxed);
    return (char *)b + TREK_BLOCK_ALIGNMENT;
}

/* trek_block_free for a block that is not NULL. */
static inline void trek_block_drop(void *memory)
{
    trek_block *b = (trek_block *)(void *)((char *)memory - TREK_BLOCK_ALIGNMENT);
    trek_block_cache *c = b->owner;
    if (!c || c != trek_block_cache_here) {
        trek_block_free(memory);
        return;
    }
    atomic_store_explicit(&c->allocated, atomic_load_explicit(&c->allocated, memory_order_relaxed) - (long long)b->size,
                          memory_order_relaxed);
    b->next = c->free[b->size_class];
    c->free[b->size_class] = b;
}
/* With TREK_DEBUG=1: frees the block as trek_block_free does, but fills it, lets `shell` turn it into something that
 * can be read, and keeps it for a while, together with what is known of the `object` in it. */
void trek_block_bury(void *block, const void *object, void (*shell)(void *block));

/* Implements memory.h for a CPU. trek_host_allocator_set requires that the allocator's functions are not NULL and
 * that the caller's scopes are empty. */
void trek_host_release_cached(void);
trek_memory_stats trek_host_memory_stats(void);
void trek_host_reset_peak(void);
trek_status trek_host_allocator_set(const trek_allocator *allocator);

/* Grows an array from trek_alloc so that it holds at least `count` items. array is the address of the pointer;
 * capacity counts items. */
trek_status trek_array_grow(void *array, int *capacity, int count, size_t item);

#endif
