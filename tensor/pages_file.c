/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/pages_internal.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* So many are moved at a time, which for a moment have memory in both places. */
enum { MOVED = 256 };

/* They would have memory as a whole as soon as one byte is written. */
static void no_large_pages(void *memory, size_t bytes)
{
#ifdef MADV_NOHUGEPAGE
    madvise(memory, bytes, MADV_NOHUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

void *trek_pages_reserve(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    no_large_pages(memory, bytes);
    return memory;
}

void trek_pages_mark(const trek_pages *pages, size_t first, size_t end, uint8_t away)
{
    memset(pages->marks + first, away, end - first);
    pages->marks[first] |= SEAM;
    pages->marks[end] |= SEAM;
}

/* Finds the next pages of [*first, end) that have memory: [*first, *stop). */
static bool next_taken(const trek_pages *pages, size_t *first, size_t end, size_t *stop)
{
    while (*first < end && pages->state[*first] == ABSENT)
        ++*first;
    for (*stop = *first; *stop < end && pages->state[*stop] != ABSENT; ++*stop)
        ;
    return *first < *stop;
}

/* file: they may have memory from another time. */
static void clear_absent(const trek_pages *pages, size_t first, size_t end, bool file)
{
    for (size_t begin = first, stop, k = first; k < end; begin = k = stop) {
        bool taken = next_taken(pages, &k, end, &stop);
        char *memory = pages->memory + begin * pages->size;
        size_t bytes = (k - begin) * pages->size;
        stop = taken ? stop : end;
        if (file && bytes > 0)
            madvise(memory, bytes, MADV_REMOVE);
        if (pages->guarded && bytes > 0)
            mprotect(memory, bytes, PROT_NONE);
    }
}

static bool write_all(int fd, const char *from, size_t bytes, size_t offset)
{
    while (bytes > 0) {
        ssize_t written = pwrite(fd, from, bytes, (off_t)offset);
        if (written <= 0)
            return false;
        from += written;
        bytes -= (size_t)written;
        offset += (size_t)written;
    }
    return true;
}

static bool move_to_file(const trek_pages *pages, size_t first, size_t end, int fd, size_t offset)
{
    size_t begin = first, stop;
    for (; next_taken(pages, &begin, end, &stop); begin = stop)
        if (!write_all(fd, pages->memory + begin * pages->size, (stop - begin) * pages->size, offset + begin * pages->size))
            return false;
    if (mmap(pages->memory + first * pages->size, (end - first) * pages->size, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, (off_t)(offset + first * pages->size)) == MAP_FAILED)
        return false;
    clear_absent(pages, first, end, true);
    trek_pages_mark(pages, first, end, 0);
    return true;
}

void trek_pages_leave_file(const trek_pages *pages, size_t first, size_t end)
{
    for (size_t stop; first < end; first = stop) {
        for (stop = first + 1; stop < end && (pages->marks[stop] & AWAY) == (pages->marks[first] & AWAY); stop++)
            ;
        char *memory = pages->memory + first * pages->size;
        size_t bytes = (stop - first) * pages->size;
        if (pages->marks[first] & AWAY ||
            mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                 0) == MAP_FAILED)
            continue; /* where that fails they stay there */
        no_large_pages(memory, bytes);
        trek_pages_mark(pages, first, stop, AWAY);
    }
}

trek_status trek_pages_return_to_file(const trek_pages *pages, size_t first, size_t end)
{
    for (size_t stop; pages->file >= 0 && first < end; first = stop) {
        for (stop = first + 1; stop < end && (pages->marks[stop] & AWAY) == (pages->marks[first] & AWAY); stop++)
            ;
        if ((pages->marks[first] & AWAY) && !move_to_file(pages, first, stop, pages->file, pages->offset))
            return trek_fail(TREK_ERR_MEMORY, "out of memory: %zu bytes cannot be moved to memory that other processes read",
                             (stop - first) * pages->size);
    }
    return TREK_OK;
}

/* --- all of them --------------------------------------------------------------------------- */

static bool move_from_file(const trek_pages *pages, size_t first, size_t end)
{
    size_t bytes = (end - first) * pages->size, begin = first, stop;
    char *own = trek_pages_reserve(bytes), *memory = pages->memory + first * pages->size;
    if (!own)
        return false;
    for (; next_taken(pages, &begin, end, &stop); begin = stop)
        memcpy(own + (begin - first) * pages->size, pages->memory + begin * pages->size, (stop - begin) * pages->size);
    bool moved = mremap(own, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, memory) != MAP_FAILED;
    if (!moved) {
        munmap(own, bytes);
        return false;
    }
    clear_absent(pages, first, end, false);
    trek_pages_mark(pages, first, end, 0);
    return true;
}

/* Moves all pages to a file, or (fd -1) from the one in which they lie. */
static trek_status move(trek_pages *pages, int fd, size_t offset)
{
    size_t n = pages->bytes / pages->size, k = 0, end;
    int from = pages->file;
    size_t from_offset = pages->offset;
    bool moved = true;
    for (; k < n && moved; k = moved ? end : k) {
        end = k + MOVED < n ? k + MOVED : n;
        moved = fd >= 0 ? move_to_file(pages, k, end, fd, offset) : move_from_file(pages, k, end);
    }
    if (moved) {
        pages->file = fd;
        pages->offset = offset;
        return TREK_OK;
    }
    for (size_t back = 0; back < k; back = end) { /* there is room, where they have been */
        end = back + MOVED < k ? back + MOVED : k;
        (void)!(from < 0 ? move_from_file(pages, back, end) : move_to_file(pages, back, end, from, from_offset));
    }
    return trek_fail(TREK_ERR_MEMORY, "out of memory: %zu bytes cannot be moved between this process's memory and memory that "
                                      "others read", pages->bytes);
}

trek_status trek_pages_share(trek_pages *pages, int fd, size_t offset)
{
    if (pages->backend)
        return trek_fail(TREK_ERR_UNSUPPORTED, "pages: those of a GPU cannot be moved to memory that other processes read");
    return pages->file >= 0 ? TREK_OK : move(pages, fd, offset);
}

trek_status trek_pages_unshare(trek_pages *pages) { return pages->file < 0 ? TREK_OK : move(pages, -1, 0); }
