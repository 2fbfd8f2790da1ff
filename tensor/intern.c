/* SPDX-License-Identifier: Apache-2.0 */
/* Open addressing over texts that are added and never removed, so that readers need no lock. It uses plain memory,
 * because recordings must not count in the program's allocator. */
#include "tensor/intern.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct word {
    uint32_t number, hash;
    size_t length;
    char text[];
} word;

enum { SLOTS = 2 * TREK_INTERN_LIMIT };

static _Atomic(word *) slots[SLOTS], by_number[TREK_INTERN_LIMIT + 1];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t count; /* guarded by the lock */

static uint32_t hash_of(const char *text, size_t length)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ length;
    for (; length >= 8; text += 8, length -= 8) {
        uint64_t part;
        memcpy(&part, text, 8);
        h = (h ^ part) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    for (; length > 0; text++, length--)
        h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return (uint32_t)(h ^ h >> 32);
}

/* Returns the text's number, or 0 and the first free slot. */
static uint32_t find(const char *text, size_t length, uint32_t hash, uint32_t *slot)
{
    for (uint32_t at = hash % SLOTS;; at = (at + 1) % SLOTS) {
        const word *w = atomic_load_explicit(&slots[at], memory_order_acquire);
        *slot = at;
        if (!w)
            return 0;
        if (w->hash == hash && w->length == length && memcmp(w->text, text, length) == 0)
            return w->number;
    }
}

uint32_t trek_intern(const char *text, size_t length, uint32_t limit)
{
    length = length < TREK_INTERN_LENGTH ? length : TREK_INTERN_LENGTH;
    uint32_t hash = hash_of(text, length), slot, number = length ? find(text, length, hash, &slot) : 0;
    if (number || !length)
        return number;
    pthread_mutex_lock(&lock);
    number = find(text, length, hash, &slot); /* another thread may have been faster */
    word *w = !number && count < limit && count < TREK_INTERN_LIMIT ? malloc(sizeof *w + length + 1) : NULL;
    if (w) {
        number = ++count;
        *w = (word){ .number = number, .hash = hash, .length = length };
        memcpy(w->text, text, length);
        w->text[length] = 0;
        atomic_store_explicit(&by_number[number], w, memory_order_release);
        atomic_store_explicit(&slots[slot], w, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return number;
}

const char *trek_interned(uint32_t number)
{
    const word *w = number <= TREK_INTERN_LIMIT ? atomic_load_explicit(&by_number[number], memory_order_acquire) : NULL;
    return w ? w->text : "";
}
