/* SPDX-License-Identifier: Apache-2.0 */
/* Capture of a thread's work as a CUDA graph, and its replay.
 *
 * During a capture its blocks come from a pool of its own, which lives as long as the graph. Other blocks that are
 * freed meanwhile are kept as long, because replays read them. The step of the random numbers is in device memory,
 * and the graph itself increments it, so that a replay that follows the last one needs nothing from the host.
 *
 * The work of a grain (trek_rank_context.grain) is replayed for other grains. Places of random numbers are in proportion to the
 * grain's number, counted from 0: so it is captured as number 1, and behind the step is the number of the grain that runs, by
 * which places are multiplied; of other work it is 1.
 *
 * A capture has one piece, or several with a pause after each; in a pause a thread's work is done at once. Pieces
 * share the pool, so that memory of the first may be used again in the second: they must be replayed in order. A
 * piece in which ranks meet (NCCL) is launched like a collective, so that the driver does not delay the other ranks'
 * launches. */
#include "tensor/cuda/capture.h"
#include "tensor/cuda/small.h"

typedef struct piece {
    cudaGraph_t graph;           /* NULL: it is empty */
    cudaGraphExec_t exec;
    trek_device_rank *meets; /* the rank whose collectives it contains; NULL: none */
} piece;

struct trek_capture {
    trek_cuda_queue *queue;      /* it is replayed on the queue on which it was captured */
    int n_pieces, cap_pieces;
    piece *pieces;
    trek_device_rank *meets; /* of the current piece */
    trek_cuda_pool *pool;
    unsigned long long *step;    /* [2] in device memory */
    void *step_handle;
    uint64_t next_step;          /* the current value of *step */
    int64_t number;              /* that of step[1] */
    bool of_grain;
    uint64_t steps;              /* by how much a replay increments it */
    void **kept;
    int n_kept, cap_kept;
    bool failed;                 /* a block could not be remembered */
};

static int under_way[TREK_CUDA_MAX_DEVICES]; /* captures of all threads; atomic */
static _Thread_local trek_capture *paused[TREK_CUDA_MAX_DEVICES]; /* captures on this thread's queues that will go on; NULL:
                                                                   * none */

bool trek_cuda_captures_on(int device) { return __atomic_load_n(&under_way[device], __ATOMIC_ACQUIRE) > 0; }

/* A device must not be synchronised as a whole while any stream of it is captured: the capture would fail. */
cudaError_t trek_cuda_wait_for(trek_cuda_queue *queue)
{
    if (!trek_cuda_captures_on(queue->device->index)) {
        cudaError_t error = cudaDeviceSynchronize();
        if (error != cudaErrorStreamCaptureUnsupported)
            return error;
        cudaGetLastError(); /* a capture has begun just now */
    }
    return cudaStreamSynchronize(queue->stream);
}

/* After it, work is the thread's own again. */
static void leave(trek_cuda_queue *queue)
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
    uint64_t first[2] = { trek_plugin_host->rank_context()->rng_step, 1 };
    if ((capture->pool = trek_cuda_pool_new(queue->device, queue->stream, true)) &&
        trek_cuda_allocate(device, sizeof first, &step, &capture->step_handle) == TREK_OK &&
        trek_cuda_copy_bytes(step, device, first, (trek_device){ TREK_CPU, 0 }, sizeof first, NULL) == TREK_OK) {
        capture->step = step;
        capture->next_step = first[0];
        capture->number = 1;
        capture->of_grain = trek_plugin_host->rank_context()->grain > 0;
        return capture;
    }
    trek_cuda_capture_free(capture);
    return NULL;
}

/* Allocates the piece first, because captured work must not be lost for lack of memory. */
static trek_status begin_piece(trek_cuda_queue *queue, trek_capture *capture)
{
    if (capture->n_pieces == capture->cap_pieces) {
        int wanted = capture->cap_pieces ? 2 * capture->cap_pieces : 8;
        piece *larger = trek_calloc((size_t)wanted, sizeof *larger);
        if (!larger)
            return trek_error_status();
        for (int k = 0; k < capture->n_pieces; k++)
            larger[k] = capture->pieces[k];
        trek_free(capture->pieces);
        capture->pieces = larger;
        capture->cap_pieces = wanted;
    }
    /* relaxed, because the allocator may ask the driver for memory meanwhile */
    __atomic_add_fetch(&under_way[queue->device->index], 1, __ATOMIC_ACQ_REL);
    trek_status status = trek_cuda_check(cudaStreamBeginCapture(queue->stream, cudaStreamCaptureModeRelaxed),
                                         "cudaStreamBeginCapture");
    if (status != TREK_OK) {
        __atomic_sub_fetch(&under_way[queue->device->index], 1, __ATOMIC_RELEASE);
        return status;
    }
    queue->capture = capture;
    queue->pool = capture->pool;
    queue->capture_step = capture->step;
    queue->capture_first_step = capture->next_step;
    capture->meets = NULL;
    return TREK_OK;
}

static trek_status end_piece(trek_cuda_queue *queue)
{
    trek_capture *capture = queue->capture;
    piece p = { .meets = capture->meets };
    size_t nodes = 0;
    trek_status status = trek_cuda_check(cudaStreamEndCapture(queue->stream, &p.graph), "cudaStreamEndCapture");
    leave(queue);
    if (status == TREK_OK)
        status = trek_cuda_check(cudaGraphGetNodes(p.graph, NULL, &nodes), "cudaGraphGetNodes");
    if (p.graph && nodes == 0) {
        cudaGraphDestroy(p.graph);
        p.graph = NULL;
    }
    capture->pieces[capture->n_pieces++] = p;
    return status;
}

trek_status trek_cuda_capture_begin(trek_device device)
{
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    if (!queue)
        return trek_error_status();
    if (queue->capture || paused[device.index])
        return trek_fail(TREK_ERR_STATE, "graph_capture: this thread is already recording a step");
    trek_cuda_release_cached(device); /* runs before it needed as much as its own pool will */
    trek_capture *capture = new_capture(queue);
    if (!capture)
        return trek_error_status();
    trek_status status = begin_piece(queue, capture);
    if (status != TREK_OK)
        trek_cuda_capture_free(capture);
    return status;
}

trek_status trek_cuda_capture_pause(trek_device device)
{
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    if (!queue || !queue->capture)
        return queue ? trek_fail(TREK_ERR_STATE, "graph_capture: no step is being recorded on this thread") : trek_error_status();
    trek_capture *capture = queue->capture;
    trek_status status = end_piece(queue);
    paused[device.index] = capture;
    return status;
}

trek_status trek_cuda_capture_resume(trek_device device)
{
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    if (!queue || !paused[device.index])
        return queue ? trek_fail(TREK_ERR_STATE, "graph_capture: no recording was paused on this thread") : trek_error_status();
    trek_capture *capture = paused[device.index];
    trek_status status = begin_piece(queue, capture);
    if (status == TREK_OK)
        paused[device.index] = NULL;
    return status;
}

/* Instantiates the pieces; their memory on the device is allocated before any rank waits for another. */
static trek_status instantiate(const trek_capture *capture)
{
    trek_status status = capture->failed ? TREK_ERR_MEMORY : TREK_OK;
    for (int k = 0; k < capture->n_pieces && status == TREK_OK; k++) {
        piece *p = &capture->pieces[k];
        if (!p->graph)
            continue;
        status = trek_cuda_check(cudaGraphInstantiate(&p->exec, p->graph, 0), "cudaGraphInstantiate");
        if (status == TREK_OK)
            status = trek_cuda_check(cudaGraphUpload(p->exec, capture->queue->stream), "cudaGraphUpload");
    }
    return status;
}

trek_status trek_cuda_capture_end(trek_device device, trek_capture **result)
{
    if (result)
        *result = NULL;
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    if (!queue || (!queue->capture && !paused[device.index]))
        return trek_fail(TREK_ERR_STATE, "graph_capture: no step is being recorded on this thread");
    trek_capture *capture = queue->capture ? queue->capture : paused[device.index];
    trek_status status = TREK_OK;
    if (queue->capture) { /* otherwise the host increments the step */
        capture->steps = trek_plugin_host->rank_context()->rng_step - capture->next_step;
        if (result && capture->steps)
            status = trek_cuda_check(trek_cuda_advance(capture->step, capture->steps, queue->stream), "the end of a capture");
        trek_status ended = end_piece(queue);
        status = status == TREK_OK ? ended : status;
    }
    paused[device.index] = NULL;
    trek_cuda_free_postponed(device.index);
    if (status == TREK_OK && result)
        status = instantiate(capture);
    if (status == TREK_OK && result)
        *result = capture;
    else
        trek_cuda_capture_free(capture);
    return status;
}

bool trek_cuda_capture_has(const trek_capture *capture, int k)
{
    return k >= 0 && k < capture->n_pieces && capture->pieces[k].graph != NULL;
}

/* Collectives of all ranks are launched together, as those of calls are. */
static trek_status launch(const piece *p, cudaStream_t stream)
{
    trek_status status = p->meets ? trek_cuda_nccl_replay_begin(p->meets) : TREK_OK;
    if (status != TREK_OK)
        return status;
    status = trek_cuda_check(cudaGraphLaunch(p->exec, stream), "cudaGraphLaunch");
    if (p->meets)
        trek_cuda_nccl_replay_end(p->meets, status == TREK_OK);
    return status;
}

/* The step of the random numbers is written on the stream itself. Nothing here asks the driver for memory, because
 * that might wait while another rank's collective is only partly launched. */
trek_status trek_cuda_capture_replay_piece(trek_capture *capture, int k, uint64_t rng_step)
{
    trek_cuda_queue *queue = trek_cuda_queue_here(capture->queue->device->index);
    if (!queue)
        return trek_error_status();
    if (queue != capture->queue)
        return trek_fail(TREK_ERR_STATE, "graph_capture: a recorded step must be replayed by the thread that recorded it");
    trek_status status = TREK_OK;
    if (rng_step != capture->next_step)
        status = trek_cuda_check(trek_cuda_advance(capture->step, rng_step - capture->next_step, queue->stream),
                                 "the step of a replay");
    if (status != TREK_OK)
        return status;
    capture->next_step = rng_step;
    if (trek_cuda_capture_has(capture, k))
        status = launch(&capture->pieces[k], queue->stream);
    if (status == TREK_OK && k + 1 == capture->n_pieces) /* which increments the step */
        capture->next_step = rng_step + capture->steps;
    return status;
}

/* Says which grain is replayed. */
static trek_status set_number(trek_capture *capture)
{
    int64_t number = capture->of_grain ? trek_plugin_host->rank_context()->grain - 1 : 1;
    if (number == capture->number)
        return TREK_OK;
    trek_cuda_queue *queue = trek_cuda_queue_here(capture->queue->device->index);
    if (queue != capture->queue)
        return queue ? TREK_OK : trek_error_status(); /* the first piece says that it is another one */
    trek_status status = trek_cuda_check(trek_cuda_advance(capture->step + 1, (unsigned long long)(number - capture->number),
                                                           queue->stream), "the number of a replayed grain");
    if (status == TREK_OK)
        capture->number = number;
    return status;
}

trek_status trek_cuda_capture_replay(trek_capture *capture, uint64_t rng_step)
{
    trek_status status = set_number(capture);
    for (int k = 0; k < capture->n_pieces && status == TREK_OK; k++)
        status = trek_cuda_capture_replay_piece(capture, k, rng_step);
    return status;
}

void trek_cuda_capture_free(trek_capture *capture)
{
    if (!capture)
        return;
    cudaStreamSynchronize(capture->queue->stream); /* a replay may be running */
    for (int k = 0; k < capture->n_pieces; k++) {
        if (capture->pieces[k].exec)
            cudaGraphExecDestroy(capture->pieces[k].exec);
        if (capture->pieces[k].graph)
            cudaGraphDestroy(capture->pieces[k].graph);
    }
    trek_free(capture->pieces);
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

void trek_cuda_capture_meets(trek_capture *capture, trek_device_rank *rank) { capture->meets = rank; }

bool trek_cuda_capturing(void)
{
    trek_device here = trek_plugin_host->rank_context()->device;
    return trek_cuda_captures_here(here.type == TREK_CUDA ? here.index : -1);
}

void trek_cuda_capture_keep(trek_capture *capture, void *handle)
{
    if (capture->n_kept == capture->cap_kept) {
        int wanted = capture->cap_kept ? 2 * capture->cap_kept : 64;
        void **larger = trek_alloc((size_t)wanted * sizeof *larger);
        if (!larger) { /* the block is leaked instead of being used again */
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
