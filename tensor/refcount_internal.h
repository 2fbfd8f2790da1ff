/* SPDX-License-Identifier: Apache-2.0 */
/* Atomic reference counts that cost a plain increment while the process has one thread. */
#ifndef TREK_TENSOR_REFCOUNT_INTERNAL_H
#define TREK_TENSOR_REFCOUNT_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>

#if defined(__has_include)
#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
#define TREK_ONE_THREAD __libc_single_threaded
#endif
#endif
#ifndef TREK_ONE_THREAD
#define TREK_ONE_THREAD 0
#endif

static inline void trek_ref_take(atomic_int *refs)
{
    if (TREK_ONE_THREAD)
        atomic_store_explicit(refs, atomic_load_explicit(refs, memory_order_relaxed) + 1, memory_order_relaxed);
    else
        atomic_fetch_add_explicit(refs, 1, memory_order_relaxed);
}

/* Returns true if the last reference was released. A holder that sees 1 is the only one: nobody else can take a
 * reference, so no locked instruction is needed. */
static inline bool trek_ref_drop(atomic_int *refs)
{
    int seen = atomic_load_explicit(refs, memory_order_acquire);
    if (seen == 1)
        return true;
    if (TREK_ONE_THREAD) {
        atomic_store_explicit(refs, seen - 1, memory_order_relaxed);
        return false;
    }
    return atomic_fetch_sub_explicit(refs, 1, memory_order_acq_rel) == 1;
}

#endif
