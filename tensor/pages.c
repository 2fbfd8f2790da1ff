/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/pages.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tensor/debug.h"
#include "tensor/device_pages.h"
#include "tensor/dlpack.h"
#include "tensor/memory_account.h"
#include "tensor/memory_internal.h"
#include "tensor/op.h"
#include "tensor/spare_pages.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum page_state { ABSENT, TAKEN, HELD };

struct trek_pages {
    char *memory;
    const struct trek_device_pages *backend; /* NULL: the system's, on a CPU */
    trek_device_range *range;    /* of the backend */
    size_t bytes, size;          /* of all pages; of one */
    int64_t taken;               /* pages that have memory */
    struct trek_block_cache *user; /* who has it */
    const trek_pages_keeper *keeper; /* NULL: what is absent is zero */
    trek_pages_keeper taker;     /* who takes what ops are about to use, on a device */
    bool guarded;                /* what is absent cannot be read */
    int file;                    /* which others have mapped, too; -1: none */
    size_t offset;               /* in it */
    trek_spare_pages spare;      /* what was given back, for what is taken next */
    uint8_t *seams;              /* [pages + 1] the system knows a stretch of memory that begins here */
    uint8_t state[];             /* [pages], before the seams */
};

size_t trek_pages_size(trek_device device, char *why, size_t n)
{
    if (device.type == TREK_CPU)
        return (size_t)sysconf(_SC_PAGESIZE);
    const trek_backend *backend = trek_backend_find(device.type, why, n);
    if (backend && backend->pages)
        return backend->pages->size(device, why, n);
    if (backend && why)
        snprintf(why, n, "the backend has no pages");
    return 0;
}

/* --- the whole ------------------------------------------------------------------------- */

static void release(void *data, void *arg)
{
    trek_pages *pages = arg;
    trek_pages_set_keeper(pages, NULL);
    if (pages->backend)
        pages->backend->release(pages->range);
    else
        munmap(data, pages->bytes);
    trek_pages_keep_spare(pages, 0);
    trek_spare_pages_clear(&pages->spare);
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

static trek_status take_before(void *arg, const void *from, size_t bytes, uint64_t use, bool first)
{
    (void)use, (void)first;
    return trek_pages_take(arg, from, bytes);
}

static void leave_taken(void *arg) { (void)arg; }

/* Finds addresses. On a device what is absent cannot be read as zeros, so ops take what they are about to use. */
static trek_status reserve_pages(trek_pages *pages, trek_device device, size_t n)
{
    if (device.type == TREK_CPU) {
        pages->user = trek_memory_user();
        pages->memory = reserve(pages->bytes);
        return pages->memory ? TREK_OK : trek_fail(TREK_ERR_MEMORY, "out of memory: the system has no addresses for %zu bytes",
                                                   pages->bytes);
    }
    void *memory;
    const trek_device_pages *backend = trek_backends[device.type]->pages;
    trek_status status = backend->reserve(device, n, trek_pages_guard || trek_debug, &pages->range, &memory);
    if (status != TREK_OK)
        return status;
    pages->memory = memory;
    pages->backend = backend;
    pages->taker = (trek_pages_keeper){ take_before, take_before, leave_taken, pages };
    trek_pages_set_keeper(pages, &pages->taker);
    return TREK_OK;
}

trek_tensor *trek_pages_zeros(trek_shape shape, trek_dtype dtype, trek_device device)
{
    char why[200];
    size_t size = trek_pages_size(device, why, sizeof why), bytes = (size_t)trek_shape_numel(shape) * trek_dtype_size(dtype);
    if (size == 0)
        return trek_fail_null(TREK_ERR_DEVICE, "pages: device: its memory cannot come and go in pieces: %s", why);
    size_t n = (bytes + size - 1) / size + (bytes == 0);
    trek_pages *pages = trek_calloc(1, sizeof *pages + 2 * n + 1);
    if (!pages)
        return NULL;
    pages->seams = pages->state + n;
    pages->bytes = n * size;
    pages->size = size;
    pages->file = -1;
    if (reserve_pages(pages, device, n) != TREK_OK) {
        trek_free(pages);
        return NULL;
    }
    trek_tensor *tensor = trek_tensor_wrap(pages->memory, shape, dtype, release, pages);
    if (tensor)
        tensor->device = tensor->storage->device = device;
    else
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

/* Gives pages [first, end) memory, where they have none. */
static trek_status take_on_device(const trek_pages *pages, size_t first, size_t end)
{
    trek_status status = TREK_OK;
    for (size_t k = first, stop; k < end && status == TREK_OK; k = stop) {
        for (stop = k; stop < end && pages->state[stop] == ABSENT; stop++)
            ;
        if (stop > k)
            status = pages->backend->take(pages->range, k, stop);
        if (status != TREK_OK) /* not at all, or as a whole */
            for (size_t back = first; back < k; back++)
                if (pages->state[back] == ABSENT)
                    pages->backend->give_back(pages->range, back, back + 1);
        stop += stop == k;
    }
    return status;
}

/* Finds the next pages of [*first, end) without memory: [*first, *stop). */
static bool next_absent(const trek_pages *pages, size_t *first, size_t end, size_t *stop)
{
    while (*first < end && pages->state[*first] != ABSENT)
        ++*first;
    for (*stop = *first; *stop < end && pages->state[*stop] == ABSENT; ++*stop)
        ;
    return *first < *stop;
}

/* Returns how many of the pages [first, end) that have no memory can have spare memory. */
static int64_t count_reused(const trek_pages *pages, size_t first, size_t end)
{
    size_t n = 0, stop;
    for (; pages->spare.held > 0 && pages->file < 0 && next_absent(pages, &first, end, &stop); first = stop)
        n += stop - first >= TREK_SPARE_LEAST ? stop - first : 0;
    return (int64_t)(n < pages->spare.held ? n : pages->spare.held);
}

/* Gives the first n of pages [first, ...) spare memory; new memory, when they are written, where the system moves none. */
static void reuse(trek_pages *pages, size_t first, size_t n)
{
    for (size_t end = first + n, got; first < end; first += got) {
        bool moved;
        got = trek_spare_pages_get(&pages->spare, pages->memory + first * pages->size, end - first, &moved);
        if (!moved)
            continue;
        memset(pages->seams + first, 0, got);
        pages->seams[first] = pages->seams[first + got] = 1;
    }
}

/* reused: the number of pages that have spare memory. */
static void take_on_host(trek_pages *pages, size_t first, size_t end, size_t reused)
{
    for (size_t stop; next_absent(pages, &first, end, &stop); first = stop) {
        char *memory = pages->memory + first * pages->size;
        if (pages->guarded)
            mprotect(memory, (stop - first) * pages->size, PROT_READ | PROT_WRITE);
        if (stop - first < TREK_SPARE_LEAST)
            continue;
        size_t again = stop - first < reused ? stop - first : reused;
        reuse(pages, first, again);
        reused -= again;
        if (first + again < stop) /* in one call, instead of a fault for each page */
            madvise(memory + again * pages->size, (stop - first - again) * pages->size, MADV_POPULATE_WRITE);
    }
}

static trek_status take(trek_pages *pages, const void *from, size_t bytes, enum page_state to, bool surely)
{
    size_t end, first = find(pages, from, bytes, &end);
    int64_t more = 0;
    for (size_t k = first; k < end; k++)
        more += pages->state[k] == ABSENT;
    int64_t reused = more > 0 ? count_reused(pages, first, end) : 0;
    if (more > reused && !trek_memory_use(pages->user, (more - reused) * (int64_t)pages->size, surely))
        return trek_fail(TREK_ERR_MEMORY, "out of memory: %lld bytes were asked for, which exceed the budget",
                         (long long)((more - reused) * (int64_t)pages->size));
    trek_status status = pages->backend && more > 0 ? take_on_device(pages, first, end) : TREK_OK;
    if (status != TREK_OK)
        return status;
    pages->taken += more;
    if (!pages->backend)
        take_on_host(pages, first, end, (size_t)reused);
    for (size_t k = first; k < end; k++)
        pages->state[k] = (uint8_t)(pages->state[k] > to ? pages->state[k] : to);
    return TREK_OK;
}

trek_status trek_pages_take(trek_pages *pages, const void *from, size_t bytes) { return take(pages, from, bytes, TAKEN, false); }

trek_status trek_pages_take_surely(trek_pages *pages, const void *from, size_t bytes)
{
    return take(pages, from, bytes, TAKEN, true);
}

trek_status trek_pages_hold(trek_pages *pages, const void *from, size_t bytes) { return take(pages, from, bytes, HELD, true); }

void trek_pages_release_holds(trek_pages *pages)
{
    for (size_t k = 0; k < pages->bytes / pages->size; k++)
        pages->state[k] = (uint8_t)(pages->state[k] == HELD ? TAKEN : pages->state[k]);
}

/* Returns false if the system keeps the memory, for example because it is locked. */
static bool give_to_system(const trek_pages *pages, void *memory, size_t bytes)
{
#ifdef __linux__
    return madvise(memory, bytes, pages->file >= 0 ? MADV_REMOVE : MADV_DONTNEED) == 0;
#else /* where that does not make zeros */
    return pages->file < 0 && mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                                   0) != MAP_FAILED;
#endif
}

static void drop_on_host(const trek_pages *pages, size_t first, size_t end)
{
    char *memory = pages->memory + first * pages->size;
    if (first < end && !give_to_system(pages, memory, (end - first) * pages->size))
        memset(memory, 0, (end - first) * pages->size);
}

/* Lets what may stay of pages [first, end) be spare, and gives the rest to the system. Returns how many pages are spare. */
static size_t put_aside(trek_pages *pages, size_t first, size_t end)
{
    size_t spare = 0, rest = first; /* pages [rest, k) go to the system */
    for (size_t k = first, stop; pages->spare.most > 0 && pages->file < 0 && k < end; k = stop) {
        for (stop = k + 1; stop < end && !pages->seams[stop]; stop++)
            ;
        size_t put = trek_spare_pages_put(&pages->spare, pages->memory + k * pages->size, stop - k);
        if (put == 0)
            continue;
        drop_on_host(pages, rest, k);
        rest = k + put;
        spare += put;
    }
    drop_on_host(pages, rest, end);
    return spare;
}

/* Gives back pages [first, end), all of which have memory on a device. */
static void drop(trek_pages *pages, size_t first, size_t end)
{
    char *memory = pages->memory + first * pages->size;
    size_t spare = 0;
    if (first == end)
        return;
    if (pages->backend)
        pages->backend->give_back(pages->range, first, end);
    else
        spare = put_aside(pages, first, end);
    if (pages->guarded)
        mprotect(memory, (end - first) * pages->size, PROT_NONE);
    memset(pages->state + first, ABSENT, end - first);
    pages->taken -= (int64_t)(end - first);
    trek_memory_use(pages->user, -(int64_t)((end - first - spare) * pages->size), true);
}

void trek_pages_keep_spare(trek_pages *pages, size_t bytes)
{
    if (pages->backend)
        return;
    size_t given = trek_spare_pages_limit(&pages->spare, pages->size, (bytes + pages->size - 1) / pages->size);
    trek_memory_use(pages->user, -(int64_t)(given * pages->size), true);
}

static void clear(const trek_pages *pages, size_t begin, size_t end)
{
    if (pages->backend)
        pages->backend->clear(pages->range, begin, end);
    else
        memset(pages->memory + begin, 0, end - begin);
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
            clear(pages, begin, stop);
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

/* --- in a file ----------------------------------------------------------------------------- */

/* So many are moved at a time, which for a moment have memory in both places. */
enum { MOVED = 256 };

size_t trek_pages_bytes(const trek_pages *pages) { return pages->bytes; }
char *trek_pages_memory(const trek_pages *pages) { return pages->memory; }

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
    return true;
}

static bool move_from_file(const trek_pages *pages, size_t first, size_t end)
{
    size_t bytes = (end - first) * pages->size, begin = first, stop;
    char *own = reserve(bytes), *memory = pages->memory + first * pages->size;
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
    memset(pages->seams + first, 0, end - first);
    pages->seams[first] = pages->seams[end] = 1;
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

/* --- keepers ----------------------------------------------------------------------------- */

bool trek_pages_guard;
atomic_int trek_pages_kept;

void trek_pages_set_keeper(trek_pages *pages, const trek_pages_keeper *keeper)
{
    bool guards = keeper && !pages->backend && (trek_pages_guard || trek_debug);
    keeper = keeper || !pages->backend || pages->keeper == &pages->taker ? keeper : &pages->taker;
    atomic_fetch_add(&trek_pages_kept, (keeper != NULL) - (pages->keeper != NULL));
    if (keeper)
        atomic_store_explicit(&trek_not_lean, true, memory_order_relaxed);
    pages->keeper = keeper;
    for (size_t k = 0; k < pages->bytes / pages->size && guards != pages->guarded; k++)
        if (pages->state[k] == ABSENT)
            mprotect(pages->memory + k * pages->size, pages->size, guards ? PROT_NONE : PROT_READ | PROT_WRITE);
    pages->guarded = guards;
}

static const trek_pages_keeper *keeper_of(const trek_tensor *tensor)
{
    const trek_pages *pages = trek_pages_of(tensor);
    return pages ? pages->keeper : NULL;
}

/* Returns whether something of a tensor has no memory. */
static bool lacks_pages(const trek_pages *pages, const trek_tensor *tensor)
{
    size_t end, first = find(pages, tensor->storage->data, tensor->storage->bytes, &end);
    while (first < end && pages->state[first] != ABSENT)
        first++;
    return first < end;
}

/* What nobody keeps can be read where it has memory. */
bool trek_tensor_is_kept(const trek_tensor *tensor)
{
    if (!atomic_load_explicit(&trek_pages_kept, memory_order_relaxed) || !keeper_of(tensor))
        return false;
    const trek_pages *pages = trek_pages_of(tensor);
    return pages->keeper != &pages->taker || lacks_pages(pages, tensor);
}

/* Notes that a keeper is asked. Returns whether it is for the first time in this op. */
static bool note_keeper(trek_pages_op *own, const trek_pages_keeper *keeper)
{
    for (int k = 0; k < own->n; k++)
        if (own->of[k] == keeper)
            return false;
    own->of[own->n++] = keeper;
    return true;
}

/* A view with gaps uses its whole storage. */
static trek_status ask(trek_pages_op *own, const trek_op_call *call, const trek_tensor *tensor, bool writes)
{
    const trek_pages_keeper *keeper = tensor ? keeper_of(tensor) : NULL;
    if (!keeper || tensor->numel == 0)
        return TREK_OK;
    if (own->n == TREK_PAGES_KEEPERS)
        return trek_fail(TREK_ERR_UNSUPPORTED, "%s: tensors: of %d ranks that have parts of their parameters; must be of fewer",
                         call->op->name, TREK_PAGES_KEEPERS);
    const char *from = tensor->contiguous ? tensor->data : tensor->storage->data;
    size_t bytes = tensor->contiguous ? (size_t)tensor->numel * trek_item_size[tensor->dtype] : tensor->storage->bytes;
    return (writes ? keeper->write : keeper->read)(keeper->arg, from, bytes, own->use, note_keeper(own, keeper));
}

trek_status trek_pages_begin_op(trek_pages_op *own, const trek_op_call *call)
{
    static _Atomic uint64_t uses;
    trek_status status = TREK_OK;
    own->n = 0;
    own->use = atomic_fetch_add_explicit(&uses, 1, memory_order_relaxed) + 1;
    if (call->op->flags & TREK_OP_VIEW)
        return TREK_OK;
    for (int k = 0; k < call->n_inputs && status == TREK_OK; k++)
        status = ask(own, call, call->inputs[k], false);
    for (int k = 0; k < TREK_MAX_OUTPUTS && status == TREK_OK; k++)
        status = ask(own, call, call->outputs[k], true);
    return status;
}

void trek_pages_end_op(const trek_pages_op *own)
{
    for (int k = 0; k < own->n; k++)
        own->of[k]->leave(own->of[k]->arg);
}

trek_tensor *trek_tensor_readable(trek_tensor *tensor)
{
    return tensor && trek_tensor_is_kept(tensor) ? trek_tensor_clone(tensor) : trek_tensor_contiguous(tensor);
}
