/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of this process that the other processes of its machine can reach.
 *
 * The processes of a machine reduce fastest if each reads and writes the others' arrays in place, so that nothing is
 * copied. Memory for such arrays is taken from a file in memory (the window) that the others have mapped. Its pages
 * exist when the memory is given out; if none are left, the caller takes ordinary memory. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "distributed/comm/shared/shared_internal.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { STRETCHES = 512 };
#define HUGE_PAGE ((size_t)2 << 20) /* on systems with pages of 4 KiB */

/* A part of the window that was given out. */
typedef struct stretch {
    char *memory;          /* NULL: it was given back, but a peer may still write to this part of the window */
    uint64_t offset;       /* in the window */
    size_t bytes;
    bool retired;          /* only this process uses it from here on */
} stretch;

typedef struct own_window {
    trek_lock lock;
    bool opened;
    trek_shared_window window;
    int count;
    stretch stretches[STRETCHES]; /* ordered by offset */
} own_window;

TREK_PER_PROCESS(own_window, own, { .lock = TREK_LOCK_INIT, .window = { .fd = -1 } });

static size_t page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }

/* --- files in memory ---------------------------------------------------------------------------- */

int trek_shared_file_new(const char *name, uint64_t bytes)
{
    struct rlimit limit; /* the limit beyond which the system would kill the process */
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes)) {
        errno = EFBIG;
        return -1;
    }
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0) /* older systems do not know the last flag */
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    /* The file must never shrink: a process that has mapped it would be killed when it touches the missing part. */
    if (ftruncate(fd, (off_t)bytes) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        int why = errno;
        close(fd);
        errno = why;
        return -1;
    }
    return fd;
}

void *trek_shared_file_map(int fd, uint64_t offset, uint64_t bytes)
{
    char *space = mmap(NULL, bytes + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED)
        return NULL;
    size_t before = -(uintptr_t)space & (HUGE_PAGE - 1);
    void *memory = mmap(space + before, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd,
                        (off_t)offset);
    if (memory == MAP_FAILED) {
        munmap(space, bytes + HUGE_PAGE);
        return NULL;
    }
    if (before > 0)
        munmap(space, before);
    munmap(space + before + bytes, HUGE_PAGE - before);
    return memory;
}

/* --- the window ------------------------------------------------------------------------------------- */

/* Reserves as much address space as the machine has memory. Only what is given out takes memory. */
static uint64_t window_bytes(void)
{
    struct sysinfo info;
    uint64_t bytes = sysinfo(&info) == 0 ? (uint64_t)info.totalram * info.mem_unit : 0, most = (uint64_t)1 << 40;
    if (sizeof(void *) < 8)
        return 0;
    bytes = bytes < (uint64_t)1 << 30 ? (uint64_t)1 << 30 : bytes > most ? most : bytes;
    return bytes / HUGE_PAGE * HUGE_PAGE;
}

static void open_window(void)
{
    trek_shared_window *window = &own()->window;
    own()->opened = true;
    if ((window->bytes = window_bytes()) == 0 ||
        getrandom(window->nonce, sizeof window->nonce, 0) != (ssize_t)sizeof window->nonce)
        return;
    window->fd = trek_shared_file_new("trek-window", window->bytes);
    if (window->fd >= 0 && pwrite(window->fd, window->nonce, sizeof window->nonce, 0) != (ssize_t)sizeof window->nonce) {
        close(window->fd);
        window->fd = -1;
    }
}

trek_shared_window trek_shared_window_open(void)
{
    trek_lock_acquire(&own()->lock);
    if (!own()->opened)
        open_window();
    trek_shared_window window = own()->window;
    trek_lock_release(&own()->lock);
    return window;
}

static void punch(const stretch *s)
{
    (void)!fallocate(own()->window.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)s->offset, (off_t)s->bytes);
}

/* Finds the first gap behind the page with the nonce, and its index in the table. Returns -1 if no gap is large
 * enough. Large parts begin at a huge page, as trek_shared_file_map maps them. */
static int find_gap(size_t bytes, uint64_t *offset)
{
    uint64_t step = bytes < HUGE_PAGE ? page_size() : HUGE_PAGE;
    *offset = step;
    if (own()->window.fd < 0 || own()->count == STRETCHES)
        return -1;
    int k = 0;
    for (; k < own()->count && own()->stretches[k].offset < *offset + bytes; k++)
        *offset = (own()->stretches[k].offset + own()->stretches[k].bytes + step - 1) / step * step;
    return *offset + bytes <= own()->window.bytes ? k : -1;
}

static void *take(size_t bytes)
{
    stretch s = { .bytes = (bytes + page_size() - 1) / page_size() * page_size() };
    int k = find_gap(s.bytes, &s.offset);
    if (k < 0)
        return NULL;
    if (fallocate(own()->window.fd, 0, (off_t)s.offset, (off_t)s.bytes) != 0 ||
        !(s.memory = trek_shared_file_map(own()->window.fd, s.offset, s.bytes))) {
        punch(&s);
        return NULL;
    }
    /* Huge pages are a tenth faster. The system must be asked for them now, because it does not use them by itself. */
    if (madvise(s.memory, s.bytes, MADV_POPULATE_WRITE) == 0 && s.bytes >= HUGE_PAGE)
        madvise(s.memory, s.bytes, MADV_COLLAPSE);
    memmove(&own()->stretches[k + 1], &own()->stretches[k], (size_t)(own()->count - k) * sizeof s);
    own()->stretches[k] = s;
    own()->count++;
    return s.memory;
}

void *trek_shared_window_alloc(size_t bytes)
{
    if (bytes == 0 || bytes > SIZE_MAX / 2 || trek_forked)
        return NULL;
    trek_lock_acquire(&own()->lock);
    void *memory = take(bytes);
    trek_lock_release(&own()->lock);
    return memory;
}

static stretch *find(const char *memory)
{
    for (int k = 0; k < own()->count; k++)
        if (own()->stretches[k].memory && memory >= own()->stretches[k].memory &&
            memory < own()->stretches[k].memory + own()->stretches[k].bytes)
            return &own()->stretches[k];
    return NULL;
}

/* In a child of fork() the memory is the parent's. */
void trek_shared_window_free(void *memory)
{
    if (trek_forked)
        return;
    trek_lock_acquire(&own()->lock);
    stretch *s = find(memory);
    if (s) {
        munmap(s->memory, s->bytes);
        punch(s);
        s->memory = NULL;
        if (!s->retired) {
            memmove(s, s + 1, (size_t)(&own()->stretches[own()->count] - (s + 1)) * sizeof *s);
            own()->count--;
        }
    }
    trek_lock_release(&own()->lock);
}

uint64_t trek_shared_window_find(const void *memory)
{
    trek_lock_acquire(&own()->lock);
    const stretch *s = trek_forked ? NULL : find(memory);
    uint64_t offset = s && !s->retired ? s->offset + (uint64_t)((const char *)memory - s->memory) : 0;
    trek_lock_release(&own()->lock);
    return offset;
}

/* Gives the part private pages with the same contents, or with zeros if there is no memory for a copy. */
static bool make_private(const stretch *s)
{
    void *copy = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy != MAP_FAILED) {
        memcpy(copy, s->memory, s->bytes);
        if (mremap(copy, s->bytes, s->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, s->memory) != MAP_FAILED)
            return true;
        munmap(copy, s->bytes);
    }
    return mmap(s->memory, s->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

void trek_shared_window_retire(const void *memory)
{
    trek_lock_acquire(&own()->lock);
    stretch *s = find(memory);
    if (s && !s->retired)
        s->retired = make_private(s);
    trek_lock_release(&own()->lock);
}
