/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/pages_internal.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tensor/debug.h"
#include "tensor/dlpack.h"
#include "tensor/memory_account.h"
#include "tensor/memory_internal.h"
#include "tensor/op.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

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
        pages->memory = trek_pages_reserve(pages->bytes);
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
    pages->marks = pages->state + n;
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
    for (; pages->spare.held > 0 && next_absent(pages, &first, end, &stop); first = stop)
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
        trek_pages_mark(pages, first, first + got, pages->file >= 0 ? AWAY : 0);
    }
}

/* reused: the number of pages that have spare memory. leaves: memory that comes and goes does not lie in the file, since the
 * system moves none that does. */
static void take_on_host(trek_pages *pages, size_t first, size_t end, bool leaves, size_t reused)
{
    for (size_t stop; next_absent(pages, &first, end, &stop); first = stop) {
        char *memory = pages->memory + first * pages->size;
        if (pages->guarded)
            mprotect(memory, (stop - first) * pages->size, PROT_READ | PROT_WRITE);
        if (pages->file >= 0 && pages->spare.most > 0 && leaves)
            trek_pages_leave_file(pages, first, stop);
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
    if (surely && trek_pages_return_to_file(pages, first, end) != TREK_OK)
        return TREK_ERR_MEMORY;
    for (size_t k = first; k < end; k++)
        more += pages->state[k] == ABSENT;
    int64_t reused = more > 0 && !(surely && pages->file >= 0) ? count_reused(pages, first, end) : 0;
    if (more > reused && !trek_memory_use(pages->user, (more - reused) * (int64_t)pages->size, surely))
        return trek_fail(TREK_ERR_MEMORY, "out of memory: %lld bytes were asked for, which exceed the budget",
                         (long long)((more - reused) * (int64_t)pages->size));
    trek_status status = pages->backend && more > 0 ? take_on_device(pages, first, end) : TREK_OK;
    if (status != TREK_OK)
        return status;
    pages->taken += more;
    if (!pages->backend)
        take_on_host(pages, first, end, !surely, (size_t)reused);
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
static bool give_to_system(bool in_file, void *memory, size_t bytes)
{
#ifdef __linux__
    return madvise(memory, bytes, in_file ? MADV_REMOVE : MADV_DONTNEED) == 0;
#else /* where that does not make zeros */
    return !in_file && mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                                   0) != MAP_FAILED;
#endif
}

static void drop_on_host(const trek_pages *pages, size_t first, size_t end)
{
    for (size_t stop; first < end; first = stop) {
        for (stop = first + 1; stop < end && trek_pages_in_file(pages, stop) == trek_pages_in_file(pages, first); stop++)
            ;
        char *memory = pages->memory + first * pages->size;
        if (!give_to_system(trek_pages_in_file(pages, first), memory, (stop - first) * pages->size))
            memset(memory, 0, (stop - first) * pages->size);
    }
}

/* Lets what may stay of pages [first, end) be spare, and gives the rest to the system. Returns how many pages are spare. */
static size_t put_aside(trek_pages *pages, size_t first, size_t end)
{
    size_t spare = 0, rest = first; /* pages [rest, k) go to the system */
    for (size_t k = first, stop; pages->spare.most > 0 && k < end; k = stop) {
        for (stop = k + 1; stop < end && !(pages->marks[stop] & SEAM); stop++)
            ;
        size_t put = trek_pages_in_file(pages, k) ? 0
            : trek_spare_pages_put(&pages->spare, pages->memory + k * pages->size, stop - k);
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

size_t trek_pages_bytes(const trek_pages *pages) { return pages->bytes; }
char *trek_pages_memory(const trek_pages *pages) { return pages->memory; }
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
