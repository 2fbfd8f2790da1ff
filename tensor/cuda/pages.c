/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of devices, by the driver's management of virtual memory: addresses are reserved, frames of memory are made, and frames
 * are mapped to addresses.
 *
 * Unmapping has to wait for the device, so what is given back stays mapped. Its frame is free for other pages at once, which is
 * right in the order of the stream, since all of them are used in it; until then two addresses may have one frame. A page that is
 * taken again takes the frame that is still mapped there, if it is free. So ranks that do the same in each step map nothing after
 * the first one. Otherwise its old frame is unmapped when the work has ended that came before it was given back, which is long
 * ago then. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "tensor/cuda/driver.h"
#include "tensor/cuda/gate.h"
#include "tensor/device_pages.h"

/* --- the driver: types and constants of cuda.h --------------------------------------------- */

typedef unsigned long long address;

typedef struct location {
    int type, id;            /* 1: a device, by its ordinal */
} location;

typedef struct frame_kind {  /* CUmemAllocationProp */
    int type, handle_types;  /* 1: it stays on its device; 0: other processes cannot map it */
    location where;
    void *meta_data;
    unsigned char compression, remote;
    unsigned short usage;
    unsigned char reserved[4];
} frame_kind;

typedef struct access {      /* CUmemAccessDesc */
    location who;
    int flags;
} access;

enum { ON_DEVICE = 1, PINNED = 1, READ_WRITE = 3, MINIMUM = 0 };

static struct {
    int (*reserve)(address *at, size_t bytes, size_t alignment, address wish, unsigned long long flags);
    int (*free)(address at, size_t bytes);
    int (*create)(unsigned long long *frame, size_t bytes, const frame_kind *kind, unsigned long long flags);
    int (*release)(unsigned long long frame);
    int (*map)(address at, size_t bytes, size_t offset, unsigned long long frame, unsigned long long flags);
    int (*unmap)(address at, size_t bytes);
    int (*allow)(address at, size_t bytes, const access *who, size_t n);
    int (*granularity)(size_t *bytes, const frame_kind *kind, int which);
} driver;

static bool has_driver;
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;

static void find_driver(void)
{
    has_driver = trek_cuda_driver_function("cuMemAddressReserve", &driver.reserve) &&
        trek_cuda_driver_function("cuMemAddressFree", &driver.free) &&
        trek_cuda_driver_function("cuMemCreate", &driver.create) && trek_cuda_driver_function("cuMemRelease", &driver.release) &&
        trek_cuda_driver_function("cuMemMap", &driver.map) && trek_cuda_driver_function("cuMemUnmap", &driver.unmap) &&
        trek_cuda_driver_function("cuMemSetAccess", &driver.allow) &&
        trek_cuda_driver_function("cuMemGetAllocationGranularity", &driver.granularity);
}

static frame_kind kind_on(const trek_cuda_device *device)
{
    return (frame_kind){ .type = PINNED, .where = { ON_DEVICE, device->ordinal } };
}

/* --- what there is --------------------------------------------------------------------------- */

/* A point in the stream, after which pages were not used any more. */
typedef struct mark {
    cudaEvent_t event;
    int pages;               /* that were given back there, and are still mapped */
} mark;

/* Memory of one page. */
typedef struct frame {
    unsigned long long handle;
    bool used;
    struct frame *next, *before; /* of the free ones, or of a list */
} frame;

typedef struct slot {
    frame *frame;            /* which is mapped there; NULL: none */
    mark *mark;              /* when it was given back; NULL: it is taken, or nothing is mapped */
} slot;

/* The frames of a queue. */
typedef struct frames {
    pthread_mutex_t lock;    /* its thread's, unless a caller gives back for it, or memory is short */
    trek_cuda_queue *queue;
    size_t size;
    frame *free;             /* the last one that was given back first */
    trek_device_range *ranges;
    struct frames *next;
} frames;

struct trek_device_range {
    frames *frames;
    char *data;
    size_t n;
    bool guarded;
    trek_device_range *next;
    slot slots[];            /* [n] */
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static frames *list;         /* as queues are, they are never freed */

static void hide_error(int error, const char *what)
{
    if (error != 0)
        trek_log_message(TREK_LOG_LEVEL_WARNING, "%s: the driver returned %d", what, error);
}

/* --- frames ------------------------------------------------------------------------------------ */

static void push_free(frames *f, frame *x)
{
    x->used = false;
    x->before = NULL;
    x->next = f->free;
    if (x->next)
        x->next->before = x;
    f->free = x;
}

static void take_free(frames *f, frame *x)
{
    if (x->next)
        x->next->before = x->before;
    if (x->before)
        x->before->next = x->next;
    else
        f->free = x->next;
    x->used = true;
    x->next = x->before = NULL;
}

static frame *new_frame(const frames *f)
{
    frame_kind kind = kind_on(f->queue->device);
    frame *x = trek_calloc(1, sizeof *x);
    if (!x)
        return NULL;
    trek_cuda_pass();
    int error = driver.create(&x->handle, f->size, &kind, 0);
    trek_cuda_passed();
    if (error != 0) {
        trek_free(x);
        return NULL;
    }
    x->used = true;
    trek_cuda_count(f->queue->device->index, 0, (int64_t)f->size);
    return x;
}

static void free_frame(const frames *f, frame *x)
{
    hide_error(driver.release(x->handle), "cuMemRelease");
    trek_cuda_count(f->queue->device->index, 0, -(int64_t)f->size);
    trek_free(x);
}

/* --- mapping ----------------------------------------------------------------------------------- */

static address address_of(const trek_device_range *range, size_t k)
{
    return (address)(uintptr_t)(range->data + k * range->frames->size);
}

static void leave_mark(slot *s)
{
    if (s->mark && --s->mark->pages == 0) {
        cudaEventDestroy(s->mark->event);
        trek_free(s->mark);
    }
    s->mark = NULL;
}

/* Unmaps a page that was given back. */
static void unmap(trek_device_range *range, size_t k)
{
    slot *s = &range->slots[k];
    if (s->mark && cudaEventSynchronize(s->mark->event) != cudaSuccess)
        cudaGetLastError();
    leave_mark(s);
    trek_cuda_pass();
    hide_error(driver.unmap(address_of(range, k), range->frames->size), "cuMemUnmap");
    trek_cuda_passed();
    s->frame = NULL;
}

/* Ranks of one process read each other's memory, if their devices can. */
static int allow(const trek_device_range *range, size_t k)
{
    access who[TREK_CUDA_MAX_DEVICES];
    int own = range->frames->queue->device->ordinal, n = 1, reaches;
    who[0] = (access){ { ON_DEVICE, own }, READ_WRITE };
    for (int d = 0; d < trek_cuda_device_count(); d++) {
        int other = trek_cuda_open_ordinal(d);
        if (other >= 0 && other != own && cudaDeviceCanAccessPeer(&reaches, other, own) == cudaSuccess && reaches)
            who[n++] = (access){ { ON_DEVICE, other }, READ_WRITE };
    }
    return driver.allow(address_of(range, k), range->frames->size, who, (size_t)n);
}

static trek_status map(trek_device_range *range, size_t k, frame *x)
{
    address at = address_of(range, k);
    size_t size = range->frames->size;
    trek_cuda_pass();
    int error = driver.map(at, size, 0, x->handle, 0);
    int allowed = error == 0 ? allow(range, k) : 0;
    if (allowed != 0)
        driver.unmap(at, size);
    trek_cuda_passed();
    if (error == 0 && allowed == 0) {
        range->slots[k].frame = x;
        return TREK_OK;
    }
    return trek_fail(TREK_ERR_CUDA, "%s: the driver returned %d for a page of cuda:%d", error ? "cuMemMap" : "cuMemSetAccess",
                     error ? error : allowed, range->frames->queue->device->index);
}

/* Maps a page whose frame is none that is free. Called with the lock, which it leaves while memory is short. */
static trek_status map_other(trek_device_range *range, size_t k)
{
    frames *f = range->frames;
    frame *x = f->free;
    if (range->slots[k].frame)
        unmap(range, k);
    if (x) {
        take_free(f, x);
    } else if (!(x = new_frame(f))) {
        pthread_mutex_unlock(&f->lock);
        trek_cuda_release_cached((trek_device){ TREK_CUDA, f->queue->device->index });
        pthread_mutex_lock(&f->lock);
        x = new_frame(f);
    }
    if (!x)
        return trek_cuda_fail_memory(f->queue->device, f->size);
    trek_status status = map(range, k, x);
    if (status != TREK_OK)
        push_free(f, x);
    return status;
}

/* --- the table --------------------------------------------------------------------------------- */

static size_t page_size(trek_device device, char *why, size_t n)
{
    trek_cuda_device *d = trek_cuda_device_at(device.index);
    size_t size = 0;
    if (d) {
        frame_kind kind = kind_on(d);
        pthread_once(&driver_once, find_driver);
        if (has_driver && trek_cuda_queue_here(device.index) && driver.granularity(&size, &kind, MINIMUM) != 0)
            size = 0;
    }
    if (size == 0 && why)
        snprintf(why, n, "%s", !d ? "the device cannot be used" : has_driver ? "the device has no virtual memory management"
                 : "the driver has no virtual memory management, or is older than CUDA 12");
    return size;
}

static frames *frames_of(trek_cuda_queue *queue, size_t size)
{
    pthread_mutex_lock(&list_lock);
    frames *f = list;
    while (f && f->queue != queue)
        f = f->next;
    if (!f && (f = trek_calloc(1, sizeof *f))) {
        pthread_mutex_init(&f->lock, NULL);
        f->queue = queue;
        f->size = size;
        f->next = list;
        list = f;
    }
    pthread_mutex_unlock(&list_lock);
    return f;
}

static trek_status reserve(trek_device device, size_t n, bool guarded, trek_device_range **result, void **data)
{
    char why[200];
    size_t size = page_size(device, why, sizeof why);
    if (size == 0)
        return trek_fail(TREK_ERR_DEVICE, "pages: cuda:%d: %s", device.index, why);
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    frames *f = queue ? frames_of(queue, size) : NULL;
    trek_device_range *range = f ? trek_calloc(1, sizeof *range + n * sizeof(slot)) : NULL;
    address at;
    if (!range)
        return trek_error_status();
    if (driver.reserve(&at, n * size, 0, 0, 0) != 0) {
        trek_free(range);
        return trek_fail(TREK_ERR_MEMORY, "out of memory: cuda:%d has no addresses for %zu bytes", device.index, n * size);
    }
    *range = (trek_device_range){ .frames = f, .data = (char *)(uintptr_t)at, .n = n, .guarded = guarded };
    pthread_mutex_lock(&f->lock);
    range->next = f->ranges;
    f->ranges = range;
    pthread_mutex_unlock(&f->lock);
    *result = range;
    *data = range->data;
    return TREK_OK;
}

/* Frees the frames that nobody uses. Called with the lock. */
static void trim(frames *f)
{
    for (trek_device_range *range = f->ranges; range && f->free; range = range->next)
        for (size_t k = 0; k < range->n; k++)
            if (range->slots[k].mark)
                unmap(range, k);
    while (f->free) {
        frame *x = f->free;
        take_free(f, x);
        free_frame(f, x);
    }
}

void trek_cuda_pages_release_cached(int device)
{
    pthread_mutex_lock(&list_lock);
    frames *f = list;
    pthread_mutex_unlock(&list_lock);
    for (; f; f = f->next) {
        if (f->queue->device->index != device)
            continue;
        if (pthread_mutex_trylock(&f->lock) != 0) /* its thread may wait for work that waits for this one's */
            continue;
        trim(f);
        pthread_mutex_unlock(&f->lock);
    }
}

static trek_status take(trek_device_range *range, size_t first, size_t end)
{
    frames *f = range->frames;
    size_t k = first;
    trek_status status = TREK_OK;
    if (!trek_cuda_queue_here(f->queue->device->index))
        return trek_error_status();
    if (trek_cuda_captures_here(f->queue->device->index))
        return trek_fail(TREK_ERR_STATE, "pages: memory cannot be taken while work is recorded");
    pthread_mutex_lock(&f->lock);
    for (; k < end && status == TREK_OK; k += status == TREK_OK) {
        slot *s = &range->slots[k];
        if (s->frame && !s->frame->used)
            take_free(f, s->frame);
        else
            status = map_other(range, k);
        if (status == TREK_OK)
            leave_mark(s);
    }
    pthread_mutex_unlock(&f->lock);
    trek_cuda_count(f->queue->device->index, (int64_t)((k - first) * f->size), 0);
    if (status == TREK_OK)
        status = trek_cuda_check(cudaMemsetAsync(range->data + first * f->size, 0, (end - first) * f->size, f->queue->stream),
                                 "cudaMemsetAsync");
    if (status != TREK_OK && k > first)
        trek_cuda_device_pages.give_back(range, first, k);
    return status;
}

/* Returns the end of the stream as it is now, or NULL if the device was waited for. */
static mark *mark_here(const frames *f, size_t pages)
{
    mark *m = trek_calloc(1, sizeof *m);
    if (m && cudaEventCreateWithFlags(&m->event, cudaEventDisableTiming) == cudaSuccess &&
        cudaEventRecord(m->event, f->queue->stream) == cudaSuccess) {
        m->pages = (int)pages;
        return m;
    }
    cudaGetLastError();
    cudaStreamSynchronize(f->queue->stream);
    if (m && m->event)
        cudaEventDestroy(m->event);
    trek_free(m);
    return NULL;
}

static void give_back(trek_device_range *range, size_t first, size_t end)
{
    frames *f = range->frames;
    if (first == end || !trek_cuda_queue_here(f->queue->device->index))
        return;
    pthread_mutex_lock(&f->lock);
    mark *m = mark_here(f, end - first);
    for (size_t k = first; k < end; k++) {
        slot *s = &range->slots[k];
        push_free(f, s->frame);
        s->mark = m;
        if (!m || range->guarded)
            unmap(range, k);
    }
    pthread_mutex_unlock(&f->lock);
    trek_cuda_count(f->queue->device->index, -(int64_t)((end - first) * f->size), 0);
}

static void clear(trek_device_range *range, size_t begin, size_t end)
{
    const frames *f = range->frames;
    if (begin < end && trek_cuda_queue_here(f->queue->device->index))
        trek_cuda_check(cudaMemsetAsync(range->data + begin, 0, end - begin, f->queue->stream), "cudaMemsetAsync");
}

static void release(trek_device_range *range)
{
    frames *f = range->frames;
    if (!trek_cuda_queue_here(f->queue->device->index))
        return;
    if (trek_cuda_wait_for(f->queue) != cudaSuccess)
        cudaGetLastError();
    pthread_mutex_lock(&f->lock);
    int64_t taken = 0;
    for (size_t k = 0; k < range->n; k++) {
        slot *s = &range->slots[k];
        if (s->frame && !s->mark) {
            push_free(f, s->frame);
            taken++;
        }
        if (s->frame)
            unmap(range, k);
    }
    trek_device_range **at = &f->ranges;
    while (*at != range)
        at = &(*at)->next;
    *at = range->next;
    hide_error(driver.free((address)(uintptr_t)range->data, range->n * f->size), "cuMemAddressFree");
    trim(f);
    pthread_mutex_unlock(&f->lock);
    trek_cuda_count(f->queue->device->index, -taken * (int64_t)f->size, 0);
    trek_free(range);
}

const trek_device_pages trek_cuda_device_pages = { page_size, reserve, release, take, give_back, clear };
