/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the CUDA plug-in share: devices, the calling thread's
 * queue on one, memory, errors. C and C++. */
#ifndef TREK_TENSOR_CUDA_CUDA_H
#define TREK_TENSOR_CUDA_CUDA_H

#include <cuda_runtime_api.h>

#include "tensor/plugin.h"

TREK_BEGIN

#define TREK_CUDA_MAX_DEVICES 64

/* --- the core, through its host table (host.c) ------------------------------------- */

#ifdef __cplusplus
void *trek_alloc(size_t bytes);
void *trek_calloc(size_t count, size_t size);
void trek_free(void *memory);
void trek_log_message(trek_log_level level, const char *format, ...) TREK_PRINTF(2, 3);
#endif
extern const trek_host *trek_cuda_host;

/* --- devices (device.c) --------------------------------------------------------------- */

/* What a kernel found in its data: the first one is kept until the next
 * synchronisation. In host memory that the device writes to. */
typedef enum trek_cuda_fault {
    TREK_CUDA_FAULT_NONE,
    TREK_CUDA_FAULT_INDEX,    /* value at place is outside [0, limit) */
    TREK_CUDA_FAULT_LABEL,    /* the same of a class */
    TREK_CUDA_FAULT_DIVISION, /* of integers by zero */
    TREK_CUDA_FAULT_PLANE,    /* a pooling index outside its plane */
    TREK_CUDA_FAULT_LENGTH,   /* a row's number of steps outside [0, limit] */
    TREK_CUDA_FAULT_OFFSET,   /* of a bag: not 0 at place 0, below the one before, or beyond the limit */
} trek_cuda_fault;

typedef struct trek_cuda_fault_record {
    int taken;           /* by the thread that writes the rest */
    int written;
    int op;              /* trek_op_id */
    int fault;           /* trek_cuda_fault */
    long long value, place, limit;
} trek_cuda_fault_record;

enum { TREK_CUDA_LISTED, TREK_CUDA_OPEN, TREK_CUDA_BROKEN };

typedef struct trek_cuda_device {
    int state;                  /* LISTED until its first use; written once, atomically */
    int index;                  /* trek's number: devices that cannot be used have none */
    int ordinal;                /* CUDA's */
    char why[200];              /* not usable: the reason */
    trek_device_info info;
    int max_shared;             /* bytes a block may have, after opting in */
    int max_threads;            /* of a multiprocessor */
    size_t l2;                  /* bytes */
    trek_cuda_fault_record *faults;        /* the host's address */
    trek_cuda_fault_record *faults_device; /* the device's */
} trek_cuda_device;

int trek_cuda_device_count(void);                 /* those listed: makes no context */
/* Opens it at first use: its context, its fault record. NULL and DEVICE unless it is there and usable. */
trek_cuda_device *trek_cuda_device_at(int index);
/* One that is open already; NULL: none. */
trek_cuda_device *trek_cuda_device_open(void);
/* The calling thread's device is not the one that its queues know (stream.c). */
void trek_cuda_forget_current(void);
trek_status trek_cuda_open_devices(char *why, size_t size);
/* The fault of a device as a status of the calling thread, and forgets it. Work must have ended, or nothing is seen yet. */
trek_status trek_cuda_take_fault(trek_cuda_device *device);
bool trek_cuda_usable(int index, char *why, size_t size);
trek_status trek_cuda_info(int index, trek_device_info *info);
trek_status trek_cuda_describe(int index, trek_device_info *info);

/* Lets a kernel have all the shared memory of a block of the thread's device that its static arrays leave. Once for each kernel
 * and device, and always as much: what one thread allows another one's launch must not take back. */
cudaError_t trek_cuda_allow_shared(const void *kernel);

/* --- errors ------------------------------------------------------------------------------ */

/* OK, or TREK_ERR_CUDA (MEMORY for lack of it) with "what: " and CUDA's own text. */
trek_status trek_cuda_check(cudaError_t error, const char *what);
extern bool trek_cuda_sync_each; /* TREK_CUDA_SYNC=1 */
struct trek_cuda_queue;
/* The status of a launch, with the op's name; with TREK_CUDA_SYNC=1 waits for its end first. */
trek_status trek_cuda_launched(const trek_op_call *call, struct trek_cuda_queue *queue, cudaError_t error);

/* --- the calling thread's queue on a device (stream.c) ------------------------------------ */

typedef struct trek_cuda_pool trek_cuda_pool;

typedef struct trek_cuda_queue {
    trek_cuda_device *device;
    cudaStream_t stream;        /* compute; non-blocking */
    trek_cuda_pool *pool;       /* blocks of this stream, or of the capture that is under way */
    trek_cuda_pool *own_pool;
    trek_capture *capture;      /* under way on this queue; NULL */
    const unsigned long long *capture_step; /* device address of the RNG step of replays; NULL outside captures */
    uint64_t capture_first_step;
    void *blas;                 /* blas.c: this queue's handle and plans */
    void *dnn;                  /* cudnn.c: likewise */
    struct trek_cuda_queue *next_free;
} trek_cuda_queue;

/* Makes the device the calling thread's; NULL and an error. */
trek_cuda_queue *trek_cuda_queue_here(int device);
/* Before calls for no device in particular: a thread that has used none gets its place's, or one that is open; CUDA would open
 * the first one for it. A device that it has stays. */
bool trek_cuda_some_device_here(void);
/* Whether a capture is under way on this thread's queue of the device; -1: of any. */
bool trek_cuda_captures_here(int device);
/* The CUDA stream that `stream` stands for on the device (NULL: the queue's own). */
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

/* --- memory (allocator.c, copy.c) ------------------------------------------------------------ */

void trek_cuda_set_caching(bool on); /* before the first block */
trek_cuda_pool *trek_cuda_pool_new(trek_cuda_device *device, cudaStream_t stream, bool of_capture);
/* Nobody allocates from it any more; it goes when the last block has come back. */
void trek_cuda_pool_retire(trek_cuda_pool *pool);
trek_status trek_cuda_allocate(trek_device device, size_t bytes, void **data, void **handle);
void trek_cuda_release(trek_device device, void *data, void *handle);
void trek_cuda_record_use(void *handle, trek_device_stream *stream);
void trek_cuda_release_cached(trek_device device);
void trek_cuda_free_postponed(int device); /* what was given back to the driver while its work was captured */
void trek_cuda_reset_peak(trek_device device);
trek_memory_stats trek_cuda_stats(trek_device device);
trek_status trek_cuda_pinned_allocate(size_t bytes, void **data);
void trek_cuda_pinned_release(void *data);
void trek_cuda_pinned_release_cached(void); /* blocks that nobody has */
void trek_cuda_pinned_release_after(void *data, trek_device device, trek_device_stream *stream);
trek_status trek_cuda_copy_bytes(void *to, trek_device to_device, const void *from, trek_device from_device, size_t bytes,
                                 trek_device_stream *stream);

/* Memory for the work of one call, in the order of the queue: give it back right after
 * the launch that uses it. NULL and MEMORY; bytes 0 gives NULL without an error. */
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
bool trek_cuda_captures_on(int device); /* whether any thread captures there */
/* Waits for all work of the queue's device; while another thread captures there, for the queue's alone. */
cudaError_t trek_cuda_wait_for(trek_cuda_queue *queue);
/* A block from outside that was released while its capture is under way: kept as long as the capture. */
void trek_cuda_capture_keep(trek_capture *capture, void *handle);

/* --- NCCL, profilers (nccl.c, nvtx.c) ------------------------------------------------------------ */

const struct trek_device_comm *trek_cuda_nccl(void); /* NULL: built without it */
void trek_cuda_nvtx(trek_backend *backend);          /* enters range_begin and range_end */

/* --- what the files of kernels and libraries export -------------------------------------------- */

/* X(file): each exports trek_cuda_register_<file>(backend), which enters its kernels. */
#define TREK_CUDA_FILES(X) \
    X(unary) \
    X(activation) \
    X(pointwise) \
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
    X(attention) \
    X(linear_cross_entropy) \
    X(lstm) \
    X(gru)
#define TREK_CUDA_DECLARE(file) void trek_cuda_register_##file(trek_backend *backend);
TREK_CUDA_FILES(TREK_CUDA_DECLARE)
#undef TREK_CUDA_DECLARE

TREK_END

#endif
