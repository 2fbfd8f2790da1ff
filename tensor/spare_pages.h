/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that pages (pages.h) have given back, for those that are taken next. New memory comes from the system as pages of
 * zeros, one by one, which takes some fifty times as long as moving memory to other addresses.
 *
 * Memory is moved in stretches that the system knows as one. Where it refuses (it is older than Linux 5.7, or has no room for
 * further stretches), nothing is kept. One thread at a time uses a store. */
#ifndef TREK_TENSOR_SPARE_PAGES_H
#define TREK_TENSOR_SPARE_PAGES_H

#include <stdbool.h>
#include <stddef.h>

/* Stretches of fewer pages are not worth being kept. */
enum { TREK_SPARE_LEAST = 16, TREK_SPARE_STRETCHES = 8 };

/* Zeroed, it is a store that keeps nothing. */
typedef struct trek_spare_pages {
    char *addresses;         /* [TREK_SPARE_STRETCHES] places for `room` pages each; NULL: none */
    size_t size, room;       /* of a page in bytes; pages of a place */
    size_t most, held;       /* pages that it may have, and has */
    bool refused;            /* the system moves no memory */
    int n;                   /* stretches, and after that free places, in the order in which they came */
    int order[TREK_SPARE_STRETCHES];
    struct {
        char *memory;        /* of its first page that is left */
        size_t n;            /* pages; 0: none */
    } of[TREK_SPARE_STRETCHES]; /* [place] */
} trek_spare_pages;

/* Sets how many pages of that size a store may have from now on. What it has beyond that goes back to the system. Returns how
 * many pages these were. Where there are no addresses for them, it keeps nothing. */
size_t trek_spare_pages_limit(trek_spare_pages *spare, size_t size, size_t most);
/* Gives back all that the store has, with its addresses. */
void trek_spare_pages_clear(trek_spare_pages *spare);

/* Moves the first of n pages, all of which have memory, from an address into the store, as many as it may have. What was there
 * reads as zeros from then on. Returns how many; 0: there is no room for a stretch that is worth it, or the system refuses. */
size_t trek_spare_pages_put(trek_spare_pages *spare, void *from, size_t n);
/* Moves the memory of some pages, at most n, to an address that has none, and makes zeros of it. Returns how many; 0: the store
 * has none. *moved: their memory is there; otherwise the system has it. */
size_t trek_spare_pages_get(trek_spare_pages *spare, void *to, size_t n, bool *moved);

#endif
