/* SPDX-License-Identifier: Apache-2.0 */
/* A thread's queue on each device that it uses (a compute stream and its pool of blocks), further streams, and
 * events.
 *
 * A queue belongs to one thread at a time. When the thread ends, the next thread that uses the device takes it over,
 * so that blocks and stream stay together. */
#include <pthread.h>
#include <string.h>

#include "tensor/cuda/cuda.h"

struct trek_device_stream {
    int device;
    cudaStream_t stream;
};

struct trek_event {
    int device;
    bool recorded;
    cudaEvent_t event;
};

typedef struct thread_queues {
    int current; /* the device that CUDA has set for this thread; -1: unknown */
    trek_cuda_queue *of[TREK_CUDA_MAX_DEVICES];
} thread_queues;

static _Thread_local thread_queues *mine;
static pthread_key_t end_key;
static pthread_once_t end_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t free_lock = PTHREAD_MUTEX_INITIALIZER;
static trek_cuda_queue *free_queues[TREK_CUDA_MAX_DEVICES];

static void give_back(void *memory)
{
    thread_queues *queues = memory;
    for (int d = 0; d < TREK_CUDA_MAX_DEVICES; d++) {
        trek_cuda_queue *queue = queues->of[d];
        if (!queue)
            continue;
        pthread_mutex_lock(&free_lock);
        queue->next_free = free_queues[d];
        free_queues[d] = queue;
        pthread_mutex_unlock(&free_lock);
    }
    trek_free(queues);
    mine = NULL;
}

static void make_end_key(void) { pthread_key_create(&end_key, give_back); }

static thread_queues *queues_of_thread(void)
{
    if (mine)
        return mine;
    pthread_once(&end_once, make_end_key);
    mine = trek_calloc(1, sizeof *mine);
    if (mine) {
        mine->current = -1;
        pthread_setspecific(end_key, mine);
    }
    return mine;
}

static trek_cuda_queue *new_queue(trek_cuda_device *device)
{
    trek_cuda_queue *queue = trek_calloc(1, sizeof *queue);
    if (!queue)
        return NULL;
    queue->device = device;
    if (trek_cuda_check(cudaStreamCreateWithFlags(&queue->stream, cudaStreamNonBlocking),
                        "cudaStreamCreateWithFlags") == TREK_OK &&
        (queue->own_pool = trek_cuda_pool_new(device, queue->stream, false))) {
        queue->pool = queue->own_pool;
        return queue;
    }
    if (queue->stream)
        cudaStreamDestroy(queue->stream);
    trek_free(queue);
    return NULL;
}

static trek_cuda_queue *take_queue(trek_cuda_device *device)
{
    pthread_mutex_lock(&free_lock);
    trek_cuda_queue *queue = free_queues[device->index];
    if (queue)
        free_queues[device->index] = queue->next_free;
    pthread_mutex_unlock(&free_lock);
    return queue ? queue : new_queue(device);
}

void trek_cuda_forget_current(void)
{
    if (mine)
        mine->current = -1;
}

static trek_cuda_queue *first_use(int device)
{
    trek_cuda_device *d = trek_cuda_device_at(device);
    thread_queues *queues = d ? queues_of_thread() : NULL;
    if (!queues)
        return NULL;
    if (trek_cuda_check(cudaSetDevice(d->ordinal), "cudaSetDevice") != TREK_OK)
        return NULL;
    queues->current = device;
    if (!queues->of[device])
        queues->of[device] = take_queue(d);
    return queues->of[device];
}

trek_cuda_queue *trek_cuda_queue_here(int device)
{
    thread_queues *queues = mine;
    if (queues && queues->current == device && queues->of[device])
        return queues->of[device];
    return first_use(device);
}

bool trek_cuda_some_device_here(void)
{
    if (mine && mine->current >= 0)
        return true;
    trek_device here = trek_plugin_host->rank_context()->device;
    trek_cuda_device *open = trek_cuda_device_open();
    return trek_cuda_queue_here(here.type == TREK_CUDA ? here.index : open ? open->index : 0) != NULL;
}

/* Returns whether a capture is running on this thread's queue of the device; -1: of any device. */
bool trek_cuda_captures_here(int device)
{
    if (!mine)
        return false;
    for (int d = device >= 0 ? device : 0; d < (device >= 0 ? device + 1 : TREK_CUDA_MAX_DEVICES); d++)
        if (mine->of[d] && mine->of[d]->capture)
            return true;
    return false;
}

/* --- further streams ------------------------------------------------------------------- */

cudaStream_t trek_cuda_stream_of(trek_cuda_queue *queue, trek_device_stream *stream)
{
    return stream ? stream->stream : queue->stream;
}

/* Further streams are for communication. They have a high priority, so that buckets leave early. */
trek_status trek_cuda_stream_new(trek_device device, trek_device_stream **stream)
{
    *stream = NULL;
    if (!trek_cuda_queue_here(device.index))
        return trek_error_status();
    trek_device_stream *s = trek_calloc(1, sizeof *s);
    if (!s)
        return TREK_ERR_MEMORY;
    int least = 0, greatest = 0;
    cudaDeviceGetStreamPriorityRange(&least, &greatest);
    s->device = device.index;
    trek_status status = trek_cuda_check(cudaStreamCreateWithPriority(&s->stream, cudaStreamNonBlocking, greatest),
                                         "cudaStreamCreateWithPriority");
    if (status == TREK_OK)
        *stream = s;
    else
        trek_free(s);
    return status;
}

void trek_cuda_stream_free(trek_device_stream *stream)
{
    if (!stream)
        return;
    cudaStreamSynchronize(stream->stream);
    cudaStreamDestroy(stream->stream);
    trek_free(stream);
}

/* --- events ----------------------------------------------------------------------------- */

trek_status trek_cuda_event_new(trek_device device, trek_event **event)
{
    *event = NULL;
    if (!trek_cuda_queue_here(device.index))
        return trek_error_status();
    trek_event *e = trek_calloc(1, sizeof *e);
    if (!e)
        return TREK_ERR_MEMORY;
    e->device = device.index;
    trek_status status = trek_cuda_check(cudaEventCreateWithFlags(&e->event, cudaEventDefault), "cudaEventCreateWithFlags");
    if (status == TREK_OK)
        *event = e;
    else
        trek_free(e);
    return status;
}

void trek_cuda_event_free(trek_event *event)
{
    if (!event)
        return;
    cudaEventDestroy(event->event);
    trek_free(event);
}

trek_status trek_cuda_event_record(trek_event *event, trek_device_stream *stream)
{
    if (stream && stream->device != event->device)
        return trek_fail(TREK_ERR_DEVICE, "event: it belongs to cuda:%d, and the stream to cuda:%d; must be one device",
                         event->device, stream->device);
    trek_cuda_queue *queue = trek_cuda_queue_here(event->device);
    if (!queue)
        return trek_error_status();
    trek_status status = trek_cuda_check(cudaEventRecord(event->event, trek_cuda_stream_of(queue, stream)), "cudaEventRecord");
    event->recorded |= status == TREK_OK;
    return status;
}

/* The waiting stream may belong to another device. */
trek_status trek_cuda_stream_wait(trek_device device, trek_device_stream *stream, trek_event *event)
{
    if (!event->recorded)
        return TREK_OK; /* nothing to wait for */
    trek_cuda_queue *queue = trek_cuda_queue_here(stream ? stream->device : device.index);
    if (!queue)
        return trek_error_status();
    return trek_cuda_check(cudaStreamWaitEvent(trek_cuda_stream_of(queue, stream), event->event, 0), "cudaStreamWaitEvent");
}

trek_status trek_cuda_event_elapsed_ms(trek_event *start, trek_event *end, double *ms)
{
    if (!start->recorded || !end->recorded)
        return trek_fail(TREK_ERR_STATE, "event: its time was asked for before it was recorded; record it first");
    float elapsed = 0;
    trek_status status = trek_cuda_check(cudaEventSynchronize(end->event), "cudaEventSynchronize");
    if (status == TREK_OK)
        status = trek_cuda_check(cudaEventElapsedTime(&elapsed, start->event, end->event), "cudaEventElapsedTime");
    *ms = (double)elapsed;
    return status;
}

trek_status trek_cuda_event_sync(trek_event *event)
{
    return event->recorded ? trek_cuda_check(cudaEventSynchronize(event->event), "cudaEventSynchronize") : TREK_OK;
}

static bool is_listed(const trek_device *devices, int n, int index)
{
    for (int k = 0; k < n; k++)
        if (devices[k].type == TREK_CUDA && devices[k].index == index)
            return true;
    return false;
}

void trek_cuda_finish_streams(const trek_device *but, int n)
{
    for (int d = 0; mine && d < TREK_CUDA_MAX_DEVICES; d++) {
        trek_cuda_queue *queue = mine->of[d];
        if (queue && !queue->capture && !is_listed(but, n, d))
            trek_cuda_check(cudaStreamSynchronize(queue->stream), "cudaStreamSynchronize");
    }
}

/* --- waiting for the device ----------------------------------------------------------------- */

trek_status trek_cuda_sync(trek_device device)
{
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    if (!queue)
        return trek_error_status();
    if (queue->capture)
        return trek_fail(
            TREK_ERR_STATE,
            "sync: the device cannot be waited for (by a value that is read, or a sync) while its work is being recorded");
    trek_status status = trek_cuda_check(trek_cuda_wait_for(queue), "cudaDeviceSynchronize");
    trek_status fault = trek_cuda_take_fault(queue->device);
    return status != TREK_OK ? status : fault;
}

trek_status trek_cuda_deferred_error(trek_device device)
{
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    return queue ? trek_cuda_take_fault(queue->device) : trek_error_status();
}
