/* SPDX-License-Identifier: Apache-2.0 */
/* The allocator of host memory, and counters of memory in use. */
#ifndef TREK_TENSOR_MEMORY_H
#define TREK_TENSOR_MEMORY_H

#include "tensor/types.h"

TREK_BEGIN

/* The functions that allocate all of trek's host memory. Both may be called from any thread. */
typedef struct trek_allocator {
    /* Returns memory that is aligned to `alignment`, a power of two, or NULL on failure. */
    void *(*allocate)(size_t bytes, size_t alignment, void *arg);
    /* Frees memory of `allocate`. `bytes` is the size that `allocate` was asked for. */
    void (*release)(void *memory, size_t bytes, void *arg);
    /* This value is passed to both functions. */
    void *arg;
} trek_allocator;

/* Replaces the allocator of host memory. NULL restores the default allocator.
 * Call it before any other function, or when no object is alive and trek_memory_release_cached has been called.
 * Errors: STATE if memory of the current allocator is still in use; ARGUMENT if one of the two functions is NULL. */
TREK_API trek_status trek_allocator_set(const trek_allocator *allocator);

/* Counters of the memory of one device. The first four are in bytes, the others are counts. */
typedef struct trek_memory_stats {
    int64_t allocated;        /* bytes that tensors and objects use now */
    int64_t allocated_peak;   /* the largest `allocated` since the start or the last trek_memory_reset_peak */
    int64_t reserved;         /* bytes obtained from the system and not given back, cached blocks included */
    int64_t reserved_peak;    /* the largest `reserved` since the start or the last trek_memory_reset_peak */
    int64_t allocations;      /* how many blocks have been allocated so far */
    int64_t system_requests;  /* how often the system was asked for memory */
    int64_t retries;          /* how many requests succeeded only after cached memory was released */
} trek_memory_stats;

/* What a device is, as torch.cuda.get_device_properties and torch.cuda.mem_get_info say. */
typedef struct trek_device_info {
    char name[128];         /* the model, as its driver or the system names it */
    int major;              /* first number of the compute capability; 0 for a CPU */
    int minor;              /* second number of the compute capability; 0 for a CPU */
    int multiprocessors;    /* of a CPU: the number of cores that this process may use */
    int64_t memory;         /* bytes of memory; all CPU devices share the machine's */
    int64_t memory_free;    /* bytes that are free at the time of the call */
    unsigned char uuid[16]; /* identifies the device in all processes; zeros: it has none */
} trek_device_info;
/* Writes facts about a device to *info. It opens the device if this process has not used it yet. Any thread may call it.
 * Errors: ARGUMENT if info is NULL. DEVICE if there is no such device that can be used, and the message says why; *info is zeroed
 * then. */
TREK_API trek_status trek_device_info_get(trek_device device, trek_device_info *info);
/* Returns the counters of a device, as torch.cuda.memory_stats does. All CPU devices share one set of counters. */
TREK_API trek_memory_stats trek_memory_usage(trek_device device);
/* Sets the peak counters of a device to the current values. */
TREK_API void trek_memory_reset_peak(trek_device device);
/* Gives cached blocks of a device back to the system: on the CPU those of the calling thread and of threads that have
 * ended. */
TREK_API void trek_memory_release_cached(trek_device device);

TREK_END

#endif
