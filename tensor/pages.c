/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/pages.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tensor/dlpack.h"
#include "tensor/memory_account.h"
#include "tensor/memory_internal.h"

enum page_state { ABSENT, TAKEN, HELD };

struct trek_pages {
    char *memory;
    size_t bytes, size;          /* of all pages; of one */
    int64_t taken;               /* pages that have memory */
    struct trek_block_cache *user; /* who has it */
    uint8_t state[];             /* [pages] */
};

size_t trek_pages_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }

/* --- the whole ------------------------------------------------------------------------- */

static void release(void *data, void *arg)
{
    trek_pages *pages = arg;
    munmap(data, pages->bytes);
    trek_memory_use(pages->user, -trek_pages_taken(pages), true);
    trek_free(pages);
}

/* Large pages would have memory as a whole as soon as one byte is written. */
static void *reserve(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
#ifdef MADV_NOHUGEPAGE
    madvise(memory, bytes, MADV_NOHUGEPAGE);
#endif
    return memory;
}

trek_tensor *trek_pages_zeros(trek_shape shape, trek_dtype dtype)
{
    size_t size = trek_pages_size(), bytes = (size_t)trek_shape_numel(shape) * trek_dtype_size(dtype);
    size_t n = (bytes + size - 1) / size + (bytes == 0);
    trek_pages *pages = trek_calloc(1, sizeof *pages + n);
    if (!pages)
        return NULL;
    pages->bytes = n * size;
    pages->size = size;
    pages->memory = reserve(pages->bytes);
    if (!pages->memory) {
        trek_fail(TREK_ERR_MEMORY, "out of memory: the system has no addresses for %zu bytes", pages->bytes);
        trek_free(pages);
        return NULL;
    }
    pages->user = trek_memory_user();
    trek_tensor *tensor = trek_tensor_wrap(pages->memory, shape, dtype, release, pages);
    if (!tensor)
        release(pages->memory, pages);
    return tensor;
}

trek_pages *trek_pages_of(const trek_tensor *tensor)
{
    const trek_storage *home = tensor->storage;
    while (home->parent)
        home = home->parent;
    return home->release == release ? home->handle : NULL;
}

/* --- pages ----------------------------------------------------------------------------- */

/* The pages that contain bytes [from, from + bytes). */
static size_t find(const trek_pages *pages, const void *from, size_t bytes, size_t *end)
{
    size_t begin = (size_t)((const char *)from - pages->memory);
    *end = (begin + bytes + pages->size - 1) / pages->size;
    return bytes > 0 ? begin / pages->size : *end;
}

static trek_status take(trek_pages *pages, const void *from, size_t bytes, enum page_state to, bool surely)
{
    size_t end, first = find(pages, from, bytes, &end);
    int64_t more = 0;
    for (size_t k = first; k < end; k++)
        more += pages->state[k] == ABSENT;
    if (more > 0 && !trek_memory_use(pages->user, more * (int64_t)pages->size, surely))
        return trek_fail(TREK_ERR_MEMORY, "out of memory: %lld bytes were asked for, which exceed the budget",
                         (long long)(more * (int64_t)pages->size));
    pages->taken += more;
    for (size_t k = first; k < end; k++)
        pages->state[k] = (uint8_t)(pages->state[k] > to ? pages->state[k] : to);
    return TREK_OK;
}

trek_status trek_pages_take(trek_pages *pages, const void *from, size_t bytes) { return take(pages, from, bytes, TAKEN, false); }

void trek_pages_take_surely(trek_pages *pages, const void *from, size_t bytes) { take(pages, from, bytes, TAKEN, true); }

void trek_pages_hold(trek_pages *pages, const void *from, size_t bytes) { take(pages, from, bytes, HELD, true); }

void trek_pages_release_holds(trek_pages *pages)
{
    for (size_t k = 0; k < pages->bytes / pages->size; k++)
        pages->state[k] = (uint8_t)(pages->state[k] == HELD ? TAKEN : pages->state[k]);
}

/* Returns false if the system keeps the memory, for example because it is locked. */
static bool give_to_system(void *memory, size_t bytes)
{
#ifdef __linux__
    return madvise(memory, bytes, MADV_DONTNEED) == 0;
#else /* where that does not make zeros */
    return mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
#endif
}

/* Gives back pages [first, end). */
static void drop(trek_pages *pages, size_t first, size_t end)
{
    char *memory = pages->memory + first * pages->size;
    if (first == end)
        return;
    if (!give_to_system(memory, (end - first) * pages->size))
        memset(memory, 0, (end - first) * pages->size);
    memset(pages->state + first, ABSENT, end - first);
    pages->taken -= (int64_t)(end - first);
    trek_memory_use(pages->user, -(int64_t)((end - first) * pages->size), true);
}

void trek_pages_give_back(trek_pages *pages, void *from, size_t bytes)
{
    size_t end, first = find(pages, from, bytes, &end), run = first; /* pages [run, k) are given back */
    size_t begin_at = (size_t)((char *)from - pages->memory), end_at = begin_at + bytes;
    for (size_t k = first; k < end; k++) {
        size_t begin = k * pages->size, stop = begin + pages->size;
        bool whole = begin >= begin_at && stop <= end_at;
        if (whole && pages->state[k] == TAKEN)
            continue;
        drop(pages, run, k);
        run = k + 1;
        begin = begin > begin_at ? begin : begin_at;
        stop = stop < end_at ? stop : end_at;
        if (pages->state[k] != ABSENT)
            memset(pages->memory + begin, 0, stop - begin);
    }
    drop(pages, run, end);
}

int64_t trek_pages_taken(const trek_pages *pages) { return pages->taken * (int64_t)pages->size; }

bool trek_pages_next(const trek_pages *pages, size_t *begin, size_t *end)
{
    size_t n = pages->bytes / pages->size, k = (*begin + pages->size - 1) / pages->size;
    while (k < n && pages->state[k] == ABSENT)
        k++;
    *begin = k * pages->size;
    while (k < n && pages->state[k] != ABSENT)
        k++;
    *end = k * pages->size;
    return *begin < *end;
}
