/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/thread_end.h"

#include <pthread.h>
#include <stdatomic.h>

static _Atomic(void (*)(void)) ends[TREK_THREAD_PARTS];
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool key_made;
static _Thread_local uint16_t parts; /* bits: the parts that this thread has */

/* A part that ends may make another one, or itself again. */
void trek_thread_end(void)
{
    for (uint32_t left; (left = parts);) {
        int part = __builtin_ctz(left);
        parts = (uint16_t)(left & ~(1u << part));
        atomic_load(&ends[part])();
    }
}

static void end_thread(void *memory)
{
    (void)memory;
    trek_thread_end();
}

static void make_key(void) { key_made = pthread_key_create(&key, end_thread) == 0; }

void trek_thread_at_end(trek_thread_part part, void (*end)(void))
{
    pthread_once(&once, make_key);
    if (!key_made)
        return;
    atomic_store(&ends[part], end);
    if (!parts)
        pthread_setspecific(key, &key); /* any address other than NULL */
    parts = (uint16_t)(parts | 1u << part);
}
