/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the CUDA plug-in have in common: devices, the calling thread's queue on a device, memory, errors.
 * For C and C++. */
#ifndef TREK_TENSOR_CUDA_CUDA_H
#define TREK_TENSOR_CUDA_CUDA_H

#include <cuda_runtime_api.h>

#include "tensor/log.h"
#include "tensor/plugin.h"

TREK_BEGIN

#define TREK_CUDA_MAX_DEVICES 64

/* --- the core, through its host table (tensor/plugin_host.c, host.c) ------------------------------------- */

#ifdef __cplusplus
void *trek_alloc(size_t bytes);
void *trek_calloc(size_t count, size_t size);
void trek_free(void *memory);
void trek_log_message(trek_log_level level, const char *format, ...) TREK_PRINTF(2, 3);
#endif

/* --- devices (device.c) --------------------------------------------------------------- */

/* What a kernel has found in its data. The first fault is kept until the next synchronisation, in host memory that
 * the device writes to. */
typedef enum trek_cuda_fault {
    TREK_CUDA_FAULT_NONE,
    TREK_CUDA_FAULT_INDEX,    /* the value at `place` is outside [0, limit) */
    TREK_CUDA_FAULT_LABEL,    /* a class label is outside [0, limit) */
    TREK_CUDA_FAULT_DIVISION, /* division of integers by zero */
    TREK_CUDA_FAULT_PLANE,    /* a pooling index outside its plane */
    TREK_CUDA_FAULT_LENGTH,   /* a row's number of steps is outside [0, limit] */
    TREK_CUDA_FAULT_OFFSET,   /* an offset of a bag is not 0 at first, below the one before, or above the limit */
} trek_cuda_fault;

typedef struct trek_cuda_fault_record {
    int taken;           /* set by the thread that writes the rest */
    int written;
    int op;              /* trek_op_id */
    int fault;           /* trek_cuda_fault */
    long long value, place, limit;
} trek_cuda_fault_record;

enum { TREK_CUDA_LISTED, TREK_CUDA_OPEN, TREK_CUDA_BROKEN };

typedef struct trek_cuda_device {
    int state;                  /* LISTED until its first use; written once, atomically */
    int index;                  /* trek's number: devices that cannot be used have none */
    int ordinal;                /* CUDA's number */
    char why[200];              /* why it is not usable */
    trek_device_info info;
    int max_shared;             /* bytes that a block may have, after opting in */
    int max_threads;            /* of a multiprocessor */
    size_t l2;                  /* bytes */
    trek_cuda_fault_record *faults;        /* the host's address */
    trek_cuda_fault_record *faults_device; /* the device's address */
} trek_cuda_device;

int trek_cuda_device_count(void);                 /* of the listed devices; makes no context */
/* Returns a device, which is opened when it is first used: its context and its fault record. Returns NULL and sets
 * DEVICE if it does not exist or is not usable. */
trek_cuda_device *trek_cuda_device_at(int index);
/* Returns a device that is already open, or NULL. */
trek_cuda_device *trek_cuda_device_open(void);
/* Returns CUDA's number of a device that is already open, or -1. */
int trek_cuda_open_ordinal(int index);
/* Notes that the calling thread's device may differ from the one that its queues know (stream.c). */
void trek_cuda_forget_current(void);
trek_status trek_cuda_open_devices(char *why, size_t size);
/* Turns the fault of a device into a status of the calling thread, and clears it. Work must have ended, because
 * otherwise nothing is visible yet. */
trek_status trek_cuda_take_fault(trek_cuda_device *device);
bool trek_cuda_usable(int index, char *why, size_t size);
trek_status trek_cuda_info(int index, trek_device_info *info);
trek_status trek_cuda_describe(int index, trek_device_info *info);

/* Lets a kernel use all the shared memory of a block of the thread's device that its static arrays leave. This is
 * done once for each kernel and device, always with the same size, so that one thread does not reduce what another
 * one's launch needs. */
cudaError_t trek_cuda_allow_shared(const void *kernel);

/* --- errors ------------------------------------------------------------------------------ */

/* Returns OK, or TREK_ERR_CUDA (MEMORY if memory is missing) with "what: " and CUDA's own text. */
trek_status trek_cuda_check(cudaError_t error, const char *what);
extern bool trek_cuda_sync_each; /* TREK_CUDA_SYNC=1 */
struct trek_cuda_queue;
/* Returns the status of a launch, with the op's name; with TREK_CUDA_SYNC=1 it waits for its end first. */
trek_status trek_cuda_launched(const trek_op_call *call, struct trek_cuda_queue *queue, cudaError_t error);

/* --- the calling thread's queue on a device (stream.c) ------------------------------------ */

typedef struct trek_cuda_pool trek_cuda_pool;

typedef struct trek_cuda_queue {
    trek_cuda_device *device;
    cudaStream_t stream;        /* compute; non-blocking */
    trek_cuda_pool *pool;       /* blocks of this stream, or of the current capture */
    trek_cuda_pool *own_pool;
    trek_capture *capture;      /* current capture on this queue, or NULL */
    const unsigned long long *capture_step; /* device address of the RNG step of replays; NULL outside captures */
    uint64_t capture_first_step;
    void *blas;                 /* blas.c: this queue's handle and plans */
    void *dnn;                  /* cudnn.c: this queue's handle and plans */
    struct trek_cuda_queue *next_free;
} trek_cuda_queue;

/* Makes the device the calling thread's, and returns its queue. Returns NULL on failure. */
trek_cuda_queue *trek_cuda_queue_here(int device);
/* Called before calls that are for no particular device: a thread that has used none gets the device of its rank, or
 * an open one, because CUDA would otherwise open the first one. A device that it has stays. */
bool trek_cuda_some_device_here(void);
/* Returns whether a capture is running on this thread's queue of the device; -1: of any device. */
bool trek_cuda_captures_here(int device);
/* Returns the CUDA stream that `stream` stands for on the device (NULL: the queue's own). */
cudaStream_t trek_cuda_stream_of(trek_cuda_queue *queue, trek_device_stream *stream);
trek_status trek_cuda_stream_new(trek_device device, trek_device_stream **stream);
void trek_cuda_stream_free(trek_device_stream *stream);
trek_status trek_cuda_event_new(trek_device device, trek_event **event);
void trek_cuda_event_free(trek_event *event);
trek_status trek_cuda_event_record(trek_event *event, trek_device_stream *stream);
trek_status trek_cuda_stream_wait(trek_device device, trek_device_stream *stream, trek_event *event);
trek_status trek_cuda_event_elapsed_ms(trek_event *start, trek_event *end, double *ms);
trek_status trek_cuda_event_sync(trek_event *event);
void trek_cuda_finish_streams(const trek_device *but, int n);
trek_status trek_cuda_sync(trek_device device);
trek_status trek_cuda_deferred_error(trek_device device);

/* --- memory (allocator.c, pages.c, copy.c) ------------------------------------------------------------ */

void trek_cuda_set_caching(bool on); /* before the first block */
trek_cuda_pool *trek_cuda_pool_new(trek_cuda_device *device, cudaStream_t stream, bool of_capture);
/* Says that nothing allocates from the pool any more; it is freed when the last block has been returned. */
void trek_cuda_pool_retire(trek_cuda_pool *pool);
trek_status trek_cuda_allocate(trek_device device, size_t bytes, void **data, void **handle);
void trek_cuda_release(trek_device device, void *data, void *handle);
void trek_cuda_record_use(void *handle, trek_device_stream *stream);
void trek_cuda_release_cached(trek_device device);
void trek_cuda_free_postponed(int device); /* frees what was released while work was captured */
void trek_cuda_reset_peak(trek_device device);
trek_memory_stats trek_cuda_stats(trek_device device);
/* Counts memory that is not the caching allocator's: in use, and got from the driver; bytes may be negative. */
void trek_cuda_count(int device, int64_t allocated, int64_t reserved);
/* Fails with MEMORY, for a request that the driver has refused. */
trek_status trek_cuda_fail_memory(trek_cuda_device *device, size_t bytes);
extern const struct trek_device_pages trek_cuda_device_pages; /* pages.c */
/* Returns pages' memory that is not used to the driver. Work of the device must have ended. */
void trek_cuda_pages_release_cached(int device);
trek_status trek_cuda_pinned_allocate(size_t bytes, void **data);
void trek_cuda_pinned_release(void *data);
void trek_cuda_pinned_release_cached(void); /* frees blocks that nobody uses */
void trek_cuda_pinned_release_after(void *data, trek_device device, trek_device_stream *stream);
trek_status trek_cuda_copy_bytes(void *to, trek_device to_device, const void *from, trek_device from_device, size_t bytes,
                                 trek_device_stream *stream);

/* Memory for the work of one call, in the order of the queue. It must be returned right after the launch that uses
 * it. Returns NULL on failure (MEMORY); bytes 0 gives NULL without an error. */
typedef struct trek_cuda_scratch {
    void *data, *handle;
} trek_cuda_scratch;
trek_status trek_cuda_scratch_take(trek_cuda_queue *queue, size_t bytes, trek_cuda_scratch *scratch);
void trek_cuda_scratch_give(trek_cuda_queue *queue, trek_cuda_scratch *scratch);

/* --- capture (capture.c) ---------------------------------------------------------------------- */

trek_status trek_cuda_capture_begin(trek_device device);
trek_status trek_cuda_capture_end(trek_device device, trek_capture **result);
trek_status trek_cuda_capture_replay(trek_capture *capture, uint64_t rng_step);
void trek_cuda_capture_free(trek_capture *capture);
bool trek_cuda_capturing(void);
bool trek_cuda_captures_on(int device); /* whether any thread captures on the device */
/* Waits for all work of the queue's device; while another thread captures there, only for the queue's. */
cudaError_t trek_cuda_wait_for(trek_cuda_queue *queue);
/* Keeps a block from outside that was released during the queue's capture as long as the capture. */
void trek_cuda_capture_keep(trek_capture *capture, void *handle);

/* --- NCCL, profilers (nccl.c, nvtx.c) ------------------------------------------------------------ */

const struct trek_device_comm *trek_cuda_nccl(void); /* NULL: built without it */
void trek_cuda_nvtx(trek_backend *backend);          /* sets range_begin and range_end */

/* --- what the files of kernels and libraries export -------------------------------------------- */

/* X(file): each exports trek_cuda_register_<file>(backend), which sets its kernels in the table. */
#define TREK_CUDA_FILES(X) \
    X(unary) \
    X(activation) \
    X(pointwise) \
    X(fused) \
    X(binary) \
    X(division) \
    X(bitwise) \
    X(compare) \
    X(convert) \
    X(arrange) \
    X(index) \
    X(random) \
    X(order_sort) \
    X(cumulative) \
    X(search) \
    X(matmul) \
    X(linear) \
    X(fp8) \
    X(reduce) \
    X(reduce_extreme) \
    X(reduce_argument) \
    X(reduce_statistics) \
    X(softmax) \
    X(layer_norm) \
    X(batch_norm) \
    X(embedding) \
    X(embedding_backward) \
    X(embedding_bag) \
    X(rotary) \
    X(cross_entropy) \
    X(pointwise_loss) \
    X(cumsum) \
    X(conv2d) \
    X(pool2d) \
    X(resample) \
    X(grid_sample) \
    X(update) \
    X(binned) \
    X(attention) \
    X(linear_cross_entropy) \
    X(lstm) \
    X(gru)
#define TREK_CUDA_DECLARE(file) void trek_cuda_register_##file(trek_backend *backend);
TREK_CUDA_FILES(TREK_CUDA_DECLARE)
#undef TREK_CUDA_DECLARE

TREK_END

#endif
