/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/spare_pages.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MREMAP_DONTUNMAP
#if defined __linux__
#define MREMAP_DONTUNMAP 4
#endif
#endif

/* Moves n pages. The addresses from which they come stay, without memory. What is no single stretch to the system stays where it
 * is. */
static bool move(trek_spare_pages *spare, char *from, char *to, size_t n)
{
#ifdef MREMAP_DONTUNMAP
    size_t bytes = n * spare->size;
    if (mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) != MAP_FAILED)
        return true;
    spare->refused = errno != EFAULT;
#else
    (void)from, (void)to, (void)n;
    spare->refused = true;
#endif
    return false;
}

/* Removes the stretch at a place of the order. */
static void forget(trek_spare_pages *spare, int at)
{
    int place = spare->order[at];
    spare->n--;
    memmove(spare->order + at, spare->order + at + 1, (size_t)(spare->n - at) * sizeof *spare->order);
    spare->order[spare->n] = place;
}

/* Gives the last n pages of a stretch to the system. */
static void drop(trek_spare_pages *spare, int at, size_t n)
{
    int place = spare->order[at];
    spare->of[place].n -= n;
    madvise(spare->of[place].memory + spare->of[place].n * spare->size, n * spare->size, MADV_DONTNEED);
    spare->held -= n;
    if (spare->of[place].n == 0)
        forget(spare, at);
}

void trek_spare_pages_clear(trek_spare_pages *spare)
{
    if (spare->addresses)
        munmap(spare->addresses, TREK_SPARE_STRETCHES * spare->room * spare->size);
    *spare = (trek_spare_pages){ .refused = spare->refused };
}

/* Finds addresses for stretches of so many pages. It has no memory. */
static void make_room(trek_spare_pages *spare, size_t size, size_t room)
{
    trek_spare_pages_clear(spare);
    void *addresses = mmap(NULL, TREK_SPARE_STRETCHES * room * size, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (addresses == MAP_FAILED)
        return;
    spare->addresses = addresses;
    spare->size = size;
    spare->room = room;
    for (int k = 0; k < TREK_SPARE_STRETCHES; k++)
        spare->order[k] = k;
}

size_t trek_spare_pages_limit(trek_spare_pages *spare, size_t size, size_t most)
{
    size_t dropped = 0, kept = most > spare->room ? 0 : most;
    while (spare->held > kept) {
        size_t beyond = spare->held - kept, n = spare->of[spare->order[0]].n;
        n = n < beyond ? n : beyond;
        drop(spare, 0, n);
        dropped += n;
    }
    if (most > spare->room)
        make_room(spare, size, most);
    spare->most = most < spare->room ? most : spare->room;
    return dropped;
}

size_t trek_spare_pages_put(trek_spare_pages *spare, void *from, size_t n)
{
    n = n < spare->most - spare->held ? n : spare->most - spare->held;
    if (n < TREK_SPARE_LEAST || spare->refused || spare->n == TREK_SPARE_STRETCHES)
        return 0;
    int place = spare->order[spare->n];
    char *to = spare->addresses + (size_t)place * spare->room * spare->size;
    if (!move(spare, from, to, n))
        return 0;
    spare->of[place].memory = to;
    spare->of[place].n = n;
    spare->n++;
    spare->held += n;
    return n;
}

/* Finds the smallest stretch of n pages or more, or else the largest. */
static int best_for(const trek_spare_pages *spare, size_t n)
{
    int best = -1;
    for (int k = spare->n - 1; k >= 0; k--) {
        size_t has = spare->of[spare->order[k]].n, known = best >= 0 ? spare->of[spare->order[best]].n : 0;
        if (best < 0 || (known < n ? has > known : has >= n && has < known))
            best = k;
    }
    return best;
}

size_t trek_spare_pages_get(trek_spare_pages *spare, void *to, size_t n, bool *moved)
{
    int at = best_for(spare, n);
    *moved = false;
    if (at < 0)
        return 0;
    int place = spare->order[at];
    char *from = spare->of[place].memory;
    n = n < spare->of[place].n ? n : spare->of[place].n;
    if (spare->refused || !move(spare, from, to, n)) {
        drop(spare, at, n);
        return n;
    }
    *moved = true;
    memset(to, 0, n * spare->size);
    spare->of[place].memory += n * spare->size;
    spare->of[place].n -= n;
    spare->held -= n;
    if (spare->of[place].n == 0)
        forget(spare, at);
    return n;
}
