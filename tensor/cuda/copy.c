/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between host and devices, and pinned host memory, cached by size.
 *
 * Copies from pageable memory go through a pinned staging block, so that the call returns when the bytes have been
 * copied, without waiting for the device. Data larger than a block go through two blocks alternately: one is filled
 * while the other is sent. Copies to pageable memory wait for this stream only. */
#include <pthread.h>
#include <string.h>

#include "tensor/cuda/gate.h"

/* Four sizes for each power of two. Most of this memory is what is kept in host memory while a GPU computes. */
enum { STAGE_MAX = 8 << 20, PINNED_CLASSES = 4 * 24, SMALLEST = 512 };

/* Precedes each pinned block, in the first 64 bytes. */
typedef struct pinned {
    struct pinned *next;
    int size_class;      /* -1: not cached */
    cudaEvent_t ready;   /* staging: the copy from it has ended */
    int device;
} pinned;

enum { HEAD = 64 };
_Static_assert(sizeof(pinned) <= HEAD, "the head of a pinned block");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pinned *free_blocks[PINNED_CLASSES];
static pinned *staging; /* used by copies that may still be running */

static size_t size_of(int size_class) { return (size_t)(SMALLEST / 4 * (4 + size_class % 4)) << size_class / 4; }

static int class_of(size_t bytes)
{
    int k = 0;
    while (k < PINNED_CLASSES && size_of(k) < bytes)
        k += size_of(k) < bytes / 2 ? 4 : 1;
    return k < PINNED_CLASSES ? k : -1;
}

static pinned *new_pinned(size_t bytes, int size_class)
{
    void *memory = NULL;
    if (!trek_cuda_some_device_here())
        return NULL;
    size_t size = (size_class >= 0 ? size_of(size_class) : bytes) + HEAD;
    trek_cuda_pass();
    cudaError_t error = cudaHostAlloc(&memory, size, cudaHostAllocPortable);
    trek_cuda_passed();
    if (trek_cuda_check(error, "cudaHostAlloc") != TREK_OK)
        return NULL;
    pinned *p = memory;
    *p = (pinned){ .size_class = size_class };
    return p;
}

/* Returns staging blocks whose copies have ended to the cache. Called with the lock held. */
static void collect_staging(void)
{
    for (pinned **at = &staging; *at;) {
        pinned *p = *at;
        if (cudaEventQuery(p->ready) == cudaErrorNotReady) {
            cudaGetLastError();
            at = &p->next;
            continue;
        }
        *at = p->next;
        p->next = free_blocks[p->size_class];
        free_blocks[p->size_class] = p;
    }
}

static pinned *take_pinned(size_t bytes)
{
    int size_class = class_of(bytes);
    pinned *p = NULL;
    if (size_class >= 0) {
        pthread_mutex_lock(&lock);
        if (staging)
            collect_staging();
        if ((p = free_blocks[size_class]))
            free_blocks[size_class] = p->next;
        pthread_mutex_unlock(&lock);
    }
    return p ? p : new_pinned(bytes, size_class);
}

static void give_pinned(pinned *p)
{
    if (p->size_class < 0) {
        trek_cuda_pass();
        cudaFreeHost(p);
        trek_cuda_passed();
        return;
    }
    pthread_mutex_lock(&lock);
    p->next = free_blocks[p->size_class];
    free_blocks[p->size_class] = p;
    pthread_mutex_unlock(&lock);
}

/* Returns them to the driver, which waits for its devices, so not while work on one is being captured. */
void trek_cuda_pinned_release_cached(void)
{
    pinned *list = NULL;
    for (int d = 0; d < TREK_CUDA_MAX_DEVICES; d++)
        if (trek_cuda_captures_on(d))
            return;
    pthread_mutex_lock(&lock);
    collect_staging();
    for (int k = 0; k < PINNED_CLASSES; k++)
        while (free_blocks[k]) {
            pinned *p = free_blocks[k];
            free_blocks[k] = p->next;
            p->next = list;
            list = p;
        }
    pthread_mutex_unlock(&lock);
    while (list) {
        pinned *p = list;
        list = p->next;
        if (p->ready)
            cudaEventDestroy(p->ready);
        trek_cuda_pass();
        cudaFreeHost(p);
        trek_cuda_passed();
    }
}

trek_status trek_cuda_pinned_allocate(size_t bytes, void **data)
{
    pinned *p = take_pinned(bytes);
    *data = p ? (char *)p + HEAD : NULL;
    return p ? TREK_OK : trek_error_status();
}

void trek_cuda_pinned_release(void *data)
{
    if (data)
        give_pinned((pinned *)(void *)((char *)data - HEAD));
}

/* --- copies ------------------------------------------------------------------------------ */

/* The event of a staging block belongs to one device and is made again for another one. */
static trek_status mark_staged(pinned *p, int device, cudaStream_t stream)
{
    if (p->ready && p->device != device) {
        cudaEventDestroy(p->ready);
        p->ready = NULL;
    }
    trek_status status = TREK_OK;
    if (!p->ready)
        status = trek_cuda_check(cudaEventCreateWithFlags(&p->ready, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    p->device = device;
    if (status == TREK_OK)
        status = trek_cuda_check(cudaEventRecord(p->ready, stream), "cudaEventRecord");
    return status;
}

static void give_staged(pinned *p)
{
    pthread_mutex_lock(&lock);
    p->next = staging;
    staging = p;
    pthread_mutex_unlock(&lock);
}

void trek_cuda_pinned_release_after(void *data, trek_device device, trek_device_stream *stream)
{
    pinned *p = (pinned *)(void *)((char *)data - HEAD);
    trek_status before = trek_error_status();
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    cudaStream_t on = queue ? trek_cuda_stream_of(queue, stream) : NULL;
    if (queue && p->size_class >= 0 && mark_staged(p, device.index, on) == TREK_OK) {
        give_staged(p);
        return;
    }
    if (before == TREK_OK) /* the stream is synchronised instead */
        trek_error_clear();
    if (queue)
        cudaStreamSynchronize(on);
    give_pinned(p);
}

static trek_status stage(void *to, const void *from, size_t bytes, trek_cuda_queue *queue, cudaStream_t stream)
{
    pinned *p = take_pinned(bytes);
    if (!p)
        return trek_error_status();
    memcpy((char *)p + HEAD, from, bytes);
    trek_status status = trek_cuda_check(cudaMemcpyAsync(to, (char *)p + HEAD, bytes, cudaMemcpyHostToDevice, stream),
                                         "cudaMemcpyAsync");
    if (status == TREK_OK)
        status = mark_staged(p, queue->device->index, stream);
    if (status != TREK_OK) {
        cudaStreamSynchronize(stream);
        give_pinned(p);
        return status;
    }
    give_staged(p);
    return TREK_OK;
}

/* The last pieces may still be copied when it returns. */
static trek_status stage_pieces(char *to, const char *from, size_t bytes, trek_cuda_queue *queue, cudaStream_t stream)
{
    pinned *blocks[2] = { take_pinned(STAGE_MAX), take_pinned(STAGE_MAX) };
    trek_status status = blocks[0] && blocks[1] ? TREK_OK : trek_error_status();
    for (size_t at = 0, k = 0; at < bytes && status == TREK_OK; at += STAGE_MAX, k++) {
        pinned *p = blocks[k & 1];
        size_t part = bytes - at < STAGE_MAX ? bytes - at : STAGE_MAX;
        if (k >= 2)
            status = trek_cuda_check(cudaEventSynchronize(p->ready), "cudaEventSynchronize");
        if (status != TREK_OK)
            break;
        memcpy((char *)p + HEAD, from + at, part);
        status = trek_cuda_check(cudaMemcpyAsync(to + at, (char *)p + HEAD, part, cudaMemcpyHostToDevice, stream),
                                 "cudaMemcpyAsync");
        if (status == TREK_OK)
            status = mark_staged(p, queue->device->index, stream);
    }
    if (status != TREK_OK)
        cudaStreamSynchronize(stream);
    for (int k = 0; k < 2; k++)
        if (blocks[k] && status == TREK_OK)
            give_staged(blocks[k]);
        else if (blocks[k])
            give_pinned(blocks[k]);
    return status;
}

static bool is_pinned(const void *memory)
{
    struct cudaPointerAttributes about;
    bool known = cudaPointerGetAttributes(&about, memory) == cudaSuccess;
    if (!known)
        cudaGetLastError();
    return known && about.type == cudaMemoryTypeHost;
}

/* On a stream of the caller, from or to pinned memory: code that reads either side must wait itself. */
static trek_status in_order(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return trek_cuda_check(cudaMemcpyAsync(to, from, bytes, kind, stream), "cudaMemcpyAsync");
}

static trek_status to_gpu(void *to, const void *from, size_t bytes, trek_cuda_queue *queue, cudaStream_t stream)
{
    if (queue->capture)
        return trek_fail(TREK_ERR_STATE, "tensor_copy: host memory cannot be copied to a device while its work is being "
                                         "recorded, since a replay would copy the same values; copy into a tensor made before");
    if (bytes <= STAGE_MAX)
        return stage(to, from, bytes, queue, stream);
    if (!is_pinned(from))
        return stage_pieces(to, from, bytes, queue, stream);
    trek_status status = trek_cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
    if (status == TREK_OK) /* the caller may change the bytes after this returns */
        status = trek_cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    return status;
}

static trek_status to_host(void *to, const void *from, size_t bytes, trek_cuda_queue *queue, cudaStream_t stream)
{
    if (queue->capture)
        return trek_fail(TREK_ERR_STATE,
                         "tensor_to_host: a value cannot be read on the host while the device's work is being recorded");
    trek_status status = trek_cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
    if (status == TREK_OK)
        status = trek_cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    return status == TREK_OK ? trek_cuda_take_fault(queue->device) : status;
}

/* In a capture of the target's queue, which waits for nothing outside itself: the source was complete when the piece
 * began. */
static trek_status between_captured(void *to, trek_cuda_queue *target, const void *from, int from_index, size_t bytes,
                                    cudaStream_t on)
{
    const trek_cuda_device *source = trek_cuda_device_at(from_index);
    return source ? trek_cuda_check(cudaMemcpyPeerAsync(to, target->device->ordinal, from, source->ordinal, bytes, on),
                                    "cudaMemcpyPeerAsync")
                  : trek_error_status();
}

/* The source's queue of this thread may still be writing: the copy waits for it, and it waits for the copy. */
static trek_status between(void *to, int to_index, const void *from, int from_index, size_t bytes, cudaStream_t on)
{
    trek_cuda_queue *source = trek_cuda_queue_here(from_index);
    cudaEvent_t written = NULL, read = NULL;
    trek_status status = source ? TREK_OK : trek_error_status();
    if (status == TREK_OK)
        status = trek_cuda_check(cudaEventCreateWithFlags(&written, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    if (status == TREK_OK)
        status = trek_cuda_check(cudaEventRecord(written, source->stream), "cudaEventRecord");
    trek_cuda_queue *target = status == TREK_OK ? trek_cuda_queue_here(to_index) : NULL;
    if (status == TREK_OK && !target)
        status = trek_error_status();
    if (status == TREK_OK)
        status = trek_cuda_check(cudaStreamWaitEvent(on, written, 0), "cudaStreamWaitEvent");
    if (status == TREK_OK)
        status = trek_cuda_check(cudaMemcpyPeerAsync(to, target->device->ordinal, from, source->device->ordinal, bytes, on),
                                 "cudaMemcpyPeerAsync");
    if (status == TREK_OK)
        status = trek_cuda_check(cudaEventCreateWithFlags(&read, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    if (status == TREK_OK)
        status = trek_cuda_check(cudaEventRecord(read, on), "cudaEventRecord");
    if (status == TREK_OK && trek_cuda_queue_here(from_index))
        status = trek_cuda_check(cudaStreamWaitEvent(source->stream, read, 0), "cudaStreamWaitEvent");
    if (written)
        cudaEventDestroy(written);
    if (read)
        cudaEventDestroy(read);
    return status;
}

trek_status trek_cuda_copy_bytes(void *to, trek_device to_device, const void *from, trek_device from_device, size_t bytes,
                                 trek_device_stream *stream)
{
    if (bytes == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_cuda_queue_here(to_device.type == TREK_CUDA ? to_device.index : from_device.index);
    if (!queue)
        return trek_error_status();
    cudaStream_t on = trek_cuda_stream_of(queue, stream);
    if (stream && (to_device.type == TREK_CPU || from_device.type == TREK_CPU))
        return in_order(to, from, bytes, to_device.type == TREK_CPU ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, on);
    if (to_device.type == TREK_CPU)
        return to_host(to, from, bytes, queue, on);
    if (from_device.type == TREK_CPU)
        return to_gpu(to, from, bytes, queue, on);
    if (to_device.index == from_device.index)
        return trek_cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, on), "cudaMemcpyAsync");
    if (queue->capture && !stream)
        return between_captured(to, queue, from, from_device.index, bytes, on);
    return between(to, to_device.index, from, from_device.index, bytes, on);
}
