/* SPDX-License-Identifier: Apache-2.0 */
/* Where memory comes from. */
#ifndef TREK_TENSOR_MEMORY_H
#define TREK_TENSOR_MEMORY_H

#include "tensor/types.h"

TREK_BEGIN

/* The functions that all of trek's host memory comes from. `allocate` returns
 * memory aligned to `alignment` (a power of two), or NULL; `release` gets the
 * same size. Both may be called from any thread. */
typedef struct trek_allocator {
    void *(*allocate)(size_t bytes, size_t alignment, void *arg);
    void (*release)(void *memory, size_t bytes, void *arg);
    void *arg;
} trek_allocator;

/* Replaces the host allocator; NULL brings the default back. Error STATE while
 * memory of the present allocator is in use (call it before anything else, or
 * after trek_memory_release_cached with nothing alive). */
TREK_API trek_status trek_allocator_set(const trek_allocator *allocator);

/* Counters of one device's tensor memory, in bytes unless said otherwise. */
typedef struct trek_memory_stats {
    int64_t allocated;        /* in use by tensors and objects now */
    int64_t allocated_peak;   /* most since start or the last reset */
    int64_t reserved;         /* held from the system, cached blocks included */
    int64_t reserved_peak;
    int64_t allocations;      /* blocks handed out so far (a count) */
    int64_t system_requests;  /* times the system was asked for memory (a count) */
    int64_t retries;          /* requests that succeeded after cached memory was released (a count) */
} trek_memory_stats;

/* What a device is, as torch.cuda.get_device_properties and torch.cuda.mem_get_info tell. */
typedef struct trek_device_info {
    char name[128];            /* the model, as its driver or the system names it */
    int major, minor;          /* compute capability; 0, 0 on the CPU */
    int multiprocessors;       /* of a CPU: the cores that this process may use */
    int64_t memory, memory_free; /* bytes; all CPU devices share the machine's */
    unsigned char uuid[16];    /* the same device has the same one in all processes; zeros: it has none */
} trek_device_info;
/* Writes what the device is. It opens the device if this process has not used it yet. Any thread may call it. ARGUMENT without
 * a place for the result, DEVICE: no such device can be used here, and the message says why; *info is zeroed then. */
TREK_API trek_status trek_device_info_get(trek_device device, trek_device_info *info);
/* As torch.cuda.memory_stats. All CPU devices share one set of counters. */
TREK_API trek_memory_stats trek_memory_usage(trek_device device);
TREK_API void trek_memory_reset_peak(trek_device device);
/* Gives the cached blocks of the calling thread, and of threads that have ended, back to the system. */
TREK_API void trek_memory_release_cached(trek_device device);

TREK_END

#endif
