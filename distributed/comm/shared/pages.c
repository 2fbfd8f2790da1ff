/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of this process's own memory that other processes can reach.
 *
 * The processes of a machine reduce fastest when each reads and writes the others'
 * arrays where they are: nothing is copied. For that the pages of a large array are
 * replaced in place, at the same address, by pages of a file in memory (the window)
 * that the others have mapped. It is done only to memory of trek's own blocks, which
 * nobody else maps or pins, and when it is reduced for the second time, so that arrays
 * that come and go do not pay for it. When a block goes back to the system its pages
 * become private again first (trek_memory_leaving), so that the allocator finds there
 * what it expects. */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "distributed/comm/shared/shared_internal.h"
#include "tensor/environment.h"
#include "tensor/memory_internal.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { REGIONS = 512, SEEN = 1024, SMALLEST = 32 << 10, PIECE = 4 << 20 };

/* The whole pages of one block have a place in the window, each always the same; some are shared. */
typedef struct region {
    char *memory;          /* NULL: the block has gone, but its place may not be used again */
    size_t bytes;
    uint64_t offset;       /* in the window */
    unsigned char *shared; /* a bit for each page; mapped, because trek's allocator calls back */
    bool retired;          /* a peer may write there late: nothing is shared any more */
} region;

static struct {
    pthread_mutex_t lock;
    bool opened;
    trek_shared_window window;
    int count;
    region regions[REGIONS]; /* by offset */
    struct {
        const char *memory;
        size_t bytes;
    } seen[SEEN];
} shown = { .lock = PTHREAD_MUTEX_INITIALIZER, .window = { .fd = -1 } };

static size_t page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }

int trek_shared_file_new(const char *name, uint64_t bytes)
{
    struct rlimit limit; /* beyond which the system would kill the process */
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes))
        return -1;
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0) /* older systems do not know the last flag */
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    /* Never smaller again: who has mapped it would be killed by a look at what has gone. */
    if (ftruncate(fd, (off_t)bytes) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* As much address space as the machine has memory: only what is shared takes any. */
static uint64_t window_bytes(void)
{
    struct sysinfo info;
    uint64_t bytes = sysinfo(&info) == 0 ? (uint64_t)info.totalram * info.mem_unit : 0, most = (uint64_t)1 << 40;
    if (sizeof(void *) < 8)
        return 0;
    bytes = bytes < (uint64_t)1 << 30 ? (uint64_t)1 << 30 : bytes > most ? most : bytes;
    return bytes / (2 << 20) * (2 << 20);
}

static void forget(void *memory, size_t bytes);

static void pages_leave_block(void *memory, size_t bytes)
{
    if (bytes >= SMALLEST && !trek_forked)
        forget(memory, bytes);
}

static void open_window(void)
{
    shown.opened = true;
    if (trek_environment_number("TREK_SHARED_PAGES", 0, 1, 1) == 0)
        return;
    trek_shared_window *window = &shown.window;
    if ((window->bytes = window_bytes()) == 0 ||
        getrandom(window->nonce, sizeof window->nonce, 0) != (ssize_t)sizeof window->nonce)
        return;
    window->fd = trek_shared_file_new("trek-pages", window->bytes);
    if (window->fd >= 0 && pwrite(window->fd, window->nonce, sizeof window->nonce, 0) != (ssize_t)sizeof window->nonce) {
        close(window->fd);
        window->fd = -1;
    }
    if (window->fd >= 0)
        atomic_store(&trek_memory_leaving, pages_leave_block);
}

trek_shared_window trek_shared_window_open(void)
{
    pthread_mutex_lock(&shown.lock);
    if (!shown.opened)
        open_window();
    trek_shared_window window = shown.window;
    pthread_mutex_unlock(&shown.lock);
    return window;
}

/* --- regions; the lock is held ------------------------------------------------------------------ */

static bool remember(const char *memory, size_t bytes)
{
    size_t k = (size_t)(((uintptr_t)memory / 4096) * 0x9e3779b97f4a7c15u >> 32) % SEEN;
    bool known = shown.seen[k].memory == memory && shown.seen[k].bytes == bytes;
    shown.seen[k].memory = memory;
    shown.seen[k].bytes = bytes;
    return known;
}

/* The first place from `offset` on that lies in its huge page as the memory does: only then both can be huge. */
static uint64_t in_step(uint64_t offset, const char *memory)
{
    return offset + (((uintptr_t)memory - (uintptr_t)offset) & (TREK_SHARED_HUGE - 1));
}

/* The place in the window, and in the table, for a new region; -1: full. */
static int find_gap(const char *memory, size_t bytes, uint64_t *offset)
{
    *offset = in_step(page_size(), memory);
    if (shown.count == REGIONS)
        return -1;
    int k = 0;
    for (; k < shown.count && shown.regions[k].offset < *offset + bytes; k++)
        *offset = in_step(shown.regions[k].offset + shown.regions[k].bytes, memory);
    return *offset + bytes <= shown.window.bytes ? k : -1;
}

/* Private memory with the same contents again; what cannot have it stays as it is. */
static void restore(char *memory, size_t bytes)
{
    for (size_t done = 0; done < bytes; done += PIECE) {
        size_t piece = bytes - done < PIECE ? bytes - done : PIECE;
        void *own = mmap(NULL, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (own == MAP_FAILED)
            continue;
        memcpy(own, memory + done, piece);
        if (mremap(own, piece, piece, MREMAP_MAYMOVE | MREMAP_FIXED, memory + done) == MAP_FAILED)
            munmap(own, piece);
    }
}

static bool write_all(int fd, const char *from, size_t bytes, uint64_t offset)
{
    while (bytes > 0) {
        ssize_t written = pwrite(fd, from, bytes, (off_t)offset);
        if (written <= 0)
            return false;
        from += written;
        bytes -= (size_t)written;
        offset += (uint64_t)written;
    }
    return true;
}

static void punch(uint64_t offset, size_t bytes)
{
    (void)!fallocate(shown.window.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes);
}

/* Piece by piece, so that the memory is not needed twice. */
static bool replace(char *memory, size_t bytes, uint64_t offset)
{
    size_t done = 0;
    for (; done < bytes; done += PIECE) {
        size_t piece = bytes - done < PIECE ? bytes - done : PIECE;
        if (!write_all(shown.window.fd, memory + done, piece, offset + done) ||
            mmap(memory + done, piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE, shown.window.fd,
                 (off_t)(offset + done)) == MAP_FAILED)
            break;
    }
    if (done >= bytes)
        return true;
    restore(memory, done);
    punch(offset, bytes);
    return false;
}

static size_t bitmap_bytes(const region *r) { return (r->bytes / page_size() + 7) / 8; }
static bool is_shared(const region *r, size_t page) { return (r->shared[page / 8] >> page % 8) & 1; }

static void mark(region *r, size_t first, size_t end, bool shared)
{
    for (size_t k = first; k < end; k++)
        r->shared[k / 8] = (unsigned char)(shared ? r->shared[k / 8] | 1 << k % 8 : r->shared[k / 8] & ~(1 << k % 8));
}

/* The stretch of pages from `first` on, before `end`, that are shared or not as that one is. */
static size_t stretch(const region *r, size_t first, size_t end)
{
    size_t k = first + 1;
    while (k < end && is_shared(r, k) == is_shared(r, first))
        k++;
    return k;
}

static region *find_region(const char *memory)
{
    for (int k = 0; k < shown.count; k++)
        if (shown.regions[k].memory == memory)
            return &shown.regions[k];
    return NULL;
}

static region *new_region(char *memory, size_t bytes)
{
    region r = { .memory = memory, .bytes = bytes };
    int k = find_gap(memory, bytes, &r.offset);
    if (k < 0)
        return NULL;
    void *bitmap = mmap(NULL, bitmap_bytes(&r), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bitmap == MAP_FAILED)
        return NULL;
    r.shared = bitmap;
    memmove(&shown.regions[k + 1], &shown.regions[k], (size_t)(shown.count - k) * sizeof *shown.regions);
    shown.regions[k] = r;
    shown.count++;
    return &shown.regions[k];
}

/* Whether the pages [first, end) are shared now. */
static bool share(region *r, size_t first, size_t end)
{
    size_t page = page_size();
    for (size_t k = first, next; k < end; k = next) {
        next = stretch(r, k, end);
        if (is_shared(r, k))
            continue;
        if (!replace(r->memory + k * page, (next - k) * page, r->offset + k * page))
            return false;
        /* Huge pages where the system can: a tenth faster. The system is asked now because it would not by itself. */
        if ((next - k) * page >= TREK_SHARED_HUGE)
            madvise(r->memory + k * page, (next - k) * page, MADV_COLLAPSE);
        mark(r, k, next, true);
    }
    return true;
}

/* Private pages that hold zeros for those of [first, end) that are shared. */
static bool make_private(region *r, size_t first, size_t end)
{
    size_t page = page_size();
    bool all = true;
    for (size_t k = first, next; k < end; k = next) {
        next = stretch(r, k, end);
        if (!is_shared(r, k))
            continue;
        void *own = mmap(r->memory + k * page, (next - k) * page, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (own == MAP_FAILED)
            all = false;
        else
            mark(r, k, next, false);
    }
    return all;
}

/* --- what others call ------------------------------------------------------------------------- */

/* The whole pages of memory. */
static char *whole_pages(const void *memory, size_t *bytes)
{
    size_t page = page_size();
    uintptr_t begin = ((uintptr_t)memory + page - 1) / page * page, end = ((uintptr_t)memory + *bytes) / page * page;
    *bytes = end > begin ? end - begin : 0;
    return (char *)begin;
}

bool trek_shared_pages_find(void *block, void *memory, size_t bytes, trek_shared_span *span)
{
    size_t length = bytes, block_bytes = trek_block_size(block), page = page_size();
    char *begin = whole_pages(memory, &length), *block_begin = whole_pages(block, &block_bytes);
    *span = (trek_shared_span){ 0 };
    if (length < SMALLEST || trek_forked || !trek_allocator_is_default())
        return false;
    pthread_mutex_lock(&shown.lock);
    region *r = find_region(block_begin);
    size_t first = (size_t)(begin - block_begin) / page, end = first + length / page;
    bool found = r && !r->retired && is_shared(r, first) && stretch(r, first, end) == end;
    if (!found && shown.window.fd >= 0 && remember(begin, length)) {
        r = r ? r : new_region(block_begin, block_bytes);
        found = r && !r->retired && share(r, first, end);
    }
    if (found) {
        int64_t head = begin - (char *)memory;
        *span = (trek_shared_span){ .offset = (int64_t)r->offset + (begin - block_begin) - head, .head = head,
                                    .tail = head + (int64_t)length };
    }
    pthread_mutex_unlock(&shown.lock);
    return found;
}

void trek_shared_pages_leave(void *block, void *memory, size_t bytes)
{
    size_t block_bytes = trek_block_size(block), page = page_size();
    char *begin = whole_pages(memory, &bytes), *block_begin = whole_pages(block, &block_bytes);
    pthread_mutex_lock(&shown.lock);
    region *r = find_region(block_begin);
    if (r) {
        size_t first = (size_t)(begin - block_begin) / page;
        make_private(r, first, first + bytes / page);
        r->retired = true;
    }
    pthread_mutex_unlock(&shown.lock);
}

/* Memory goes back to the system. */
static void forget(void *memory, size_t bytes)
{
    pthread_mutex_lock(&shown.lock);
    for (int k = shown.count - 1; k >= 0; k--) {
        region *r = &shown.regions[k];
        if (!r->memory || r->memory < (char *)memory || r->memory >= (char *)memory + bytes)
            continue;
        bool all = make_private(r, 0, r->bytes / page_size());
        munmap(r->shared, bitmap_bytes(r));
        punch(r->offset, r->bytes);
        r->memory = NULL;
        if (r->retired || !all)
            continue;
        memmove(r, r + 1, (size_t)(shown.count - k - 1) * sizeof *r);
        shown.count--;
    }
    pthread_mutex_unlock(&shown.lock);
}
