/* SPDX-License-Identifier: Apache-2.0 */
/* Capture of a thread's work as a CUDA graph, and its replay.
 *
 * While a capture is under way its blocks come from a pool of its own, which
 * lives as long as the graph; blocks from outside that are freed meanwhile are
 * kept as long, because replays read them. The step of the random numbers is in
 * device memory: the graph itself moves it on, so that a replay that follows the
 * last one needs nothing from the host. */
#include "tensor/cuda/cuda.h"
#include "tensor/cuda/small.h"

struct trek_capture {
    trek_cuda_queue *queue;      /* it replays on the queue that it was captured on */
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    trek_cuda_pool *pool;
    unsigned long long *step;    /* in device memory */
    void *step_handle;
    uint64_t next_step;          /* what *step is by now */
    uint64_t steps;              /* a replay moves it on by so many */
    void **kept;
    int n_kept, cap_kept;
    bool failed;                 /* a block could not be remembered */
};

static int under_way[TREK_CUDA_MAX_DEVICES]; /* captures of all threads; atomic */

bool trek_cuda_captures_on(int device) { return __atomic_load_n(&under_way[device], __ATOMIC_ACQUIRE) > 0; }

/* A device must not be waited for as a whole while any stream of it is captured: the capture would be lost. */
cudaError_t trek_cuda_wait_for(trek_cuda_queue *queue)
{
    if (!trek_cuda_captures_on(queue->device->index)) {
        cudaError_t error = cudaDeviceSynchronize();
        if (error != cudaErrorStreamCaptureUnsupported)
            return error;
        cudaGetLastError(); /* one has begun just now */
    }
    return cudaStreamSynchronize(queue->stream);
}

static void restore(trek_cuda_queue *queue)
{
    __atomic_sub_fetch(&under_way[queue->device->index], 1, __ATOMIC_RELEASE);
    queue->pool = queue->own_pool;
    queue->capture = NULL;
    queue->capture_step = NULL;
}

static trek_capture *new_capture(trek_cuda_queue *queue)
{
    trek_capture *capture = trek_calloc(1, sizeof *capture);
    if (!capture)
        return NULL;
    capture->queue = queue;
    void *step = NULL;
    trek_device device = { TREK_CUDA, queue->device->index };
    uint64_t first = trek_cuda_host->rank_context()->rng_step;
    if ((capture->pool = trek_cuda_pool_new(queue->device, queue->stream, true)) &&
        trek_cuda_allocate(device, sizeof first, &step, &capture->step_handle) == TREK_OK &&
        trek_cuda_copy_bytes(step, device, &first, (trek_device){ TREK_CPU, 0 }, sizeof first, NULL) == TREK_OK) {
        capture->step = step;
        capture->next_step = first;
        return capture;
    }
    trek_cuda_capture_free(capture);
    return NULL;
}

trek_status trek_cuda_capture_begin(trek_device device)
{
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    if (!queue)
        return trek_error_status();
    if (queue->capture)
        return trek_fail(TREK_ERR_STATE, "a capture is under way on this thread already");
    trek_cuda_release_cached(device); /* what runs before it held: its own pool will hold as much */
    trek_capture *capture = new_capture(queue);
    if (!capture)
        return trek_error_status();
    /* relaxed: the allocator may ask the driver for memory meanwhile */
    __atomic_add_fetch(&under_way[device.index], 1, __ATOMIC_ACQ_REL);
    trek_status status = trek_cuda_check(cudaStreamBeginCapture(queue->stream, cudaStreamCaptureModeRelaxed),
                                         "cudaStreamBeginCapture");
    if (status != TREK_OK) {
        __atomic_sub_fetch(&under_way[device.index], 1, __ATOMIC_RELEASE);
        trek_cuda_capture_free(capture);
        return status;
    }
    queue->capture = capture;
    queue->pool = capture->pool;
    queue->capture_step = capture->step;
    queue->capture_first_step = capture->next_step;
    return TREK_OK;
}

trek_status trek_cuda_capture_end(trek_device device, trek_capture **result)
{
    if (result)
        *result = NULL;
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    if (!queue || !queue->capture)
        return trek_fail(TREK_ERR_STATE, "no capture is under way on this thread");
    trek_capture *capture = queue->capture;
    capture->steps = trek_cuda_host->rank_context()->rng_step - capture->next_step;
    trek_status status = TREK_OK;
    if (result && capture->steps)
        status = trek_cuda_check(trek_cuda_advance(capture->step, capture->steps, queue->stream), "the end of a capture");
    trek_status ended = trek_cuda_check(cudaStreamEndCapture(queue->stream, &capture->graph), "cudaStreamEndCapture");
    restore(queue);
    trek_cuda_free_postponed(device.index);
    status = status == TREK_OK ? ended : status;
    if (status == TREK_OK && capture->failed)
        status = TREK_ERR_MEMORY;
    if (status == TREK_OK && result)
        status = trek_cuda_check(cudaGraphInstantiate(&capture->exec, capture->graph, 0), "cudaGraphInstantiate");
    if (status == TREK_OK && result)
        *result = capture;
    else
        trek_cuda_capture_free(capture);
    return status;
}

trek_status trek_cuda_capture_replay(trek_capture *capture, uint64_t rng_step)
{
    trek_cuda_queue *queue = trek_cuda_queue_here(capture->queue->device->index);
    if (!queue)
        return trek_error_status();
    if (queue != capture->queue)
        return trek_fail(TREK_ERR_STATE, "a captured step is replayed by the thread that captured it");
    trek_status status = TREK_OK;
    if (rng_step != capture->next_step)
        status = trek_cuda_copy_bytes(capture->step, (trek_device){ TREK_CUDA, queue->device->index }, &rng_step,
                                      (trek_device){ TREK_CPU, 0 }, sizeof rng_step, NULL);
    if (status == TREK_OK)
        status = trek_cuda_check(cudaGraphLaunch(capture->exec, queue->stream), "cudaGraphLaunch");
    if (status == TREK_OK)
        capture->next_step = rng_step + capture->steps;
    return status;
}

void trek_cuda_capture_free(trek_capture *capture)
{
    if (!capture)
        return;
    cudaStreamSynchronize(capture->queue->stream); /* a replay may be under way */
    if (capture->exec)
        cudaGraphExecDestroy(capture->exec);
    if (capture->graph)
        cudaGraphDestroy(capture->graph);
    trek_device device = { TREK_CUDA, capture->queue->device->index };
    for (int k = 0; k < capture->n_kept; k++)
        trek_cuda_release(device, NULL, capture->kept[k]);
    trek_free(capture->kept);
    if (capture->step_handle)
        trek_cuda_release(device, capture->step, capture->step_handle);
    if (capture->pool)
        trek_cuda_pool_retire(capture->pool);
    trek_free(capture);
}

bool trek_cuda_capturing(void)
{
    trek_device here = trek_cuda_host->rank_context()->device;
    return trek_cuda_captures_here(here.type == TREK_CUDA ? here.index : -1);
}

void trek_cuda_capture_keep(trek_capture *capture, void *handle)
{
    if (capture->n_kept == capture->cap_kept) {
        int wanted = capture->cap_kept ? 2 * capture->cap_kept : 64;
        void **larger = trek_alloc((size_t)wanted * sizeof *larger);
        if (!larger) { /* the block is lost rather than reused */
            capture->failed = true;
            return;
        }
        for (int k = 0; k < capture->n_kept; k++)
            larger[k] = capture->kept[k];
        trek_free(capture->kept);
        capture->kept = larger;
        capture->cap_kept = wanted;
    }
    capture->kept[capture->n_kept++] = handle;
}
