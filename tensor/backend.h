/* SPDX-License-Identifier: Apache-2.0 */
/* A backend is one table: memory, streams and events, copies, kernels. The CPU
 * table is complete and is the reference. Internal; a plug-in fills one, and
 * gets what it needs of the core through the table of host functions that it is
 * given when opened (tensor/plugin.h). */
#ifndef TREK_TENSOR_BACKEND_H
#define TREK_TENSOR_BACKEND_H

#include "tensor/device_paths.h"
#include "tensor/memory.h"
#include "tensor/op.h"
#include "tensor/update.h"

TREK_BEGIN

/* Of the table below and that of device_comm.h: its version and its size, which the number of ops is part of. */
#define TREK_BACKEND_ABI (14 * 10000000 + (int)(sizeof(trek_backend) / sizeof(void *)))

/* Work done in order. Every thread has a compute stream of its own on each device
 * that it uses: NULL stands for it wherever a stream is asked for. */
typedef struct trek_device_stream trek_device_stream;
typedef struct trek_event trek_event;     /* a point in a stream */
typedef struct trek_capture trek_capture; /* recorded work, to be replayed */
struct trek_device_comm;                  /* tensor/device_comm.h: collectives of the device's own library */

typedef struct trek_backend {
    int abi;
    const char *name;          /* "cpu" */
    trek_device_type type;

    int (*device_count)(void);
    bool (*usable)(int index, char *why, size_t size);
    trek_status (*info)(int index, trek_device_info *info);
    /* The same without memory_free, of any device that is listed: it is not opened. Any thread. */
    trek_status (*describe)(int index, trek_device_info *info);

    /* memory: 64-byte aligned (CPU) or 256 (GPU); through the caching allocator. handle is
     * the backend's own and comes back with release, which may be called from any thread. */
    trek_status (*allocate)(trek_device device, size_t bytes, void **data, void **handle);
    void (*release)(trek_device device, void *data, void *handle);
    /* Also used by work on `stream`: not given out again before that has ended. */
    void (*record_use)(void *handle, trek_device_stream *stream);
    void (*release_cached)(trek_device device);
    void (*reset_peak)(trek_device device);
    /* host memory that the device copies from and to without waiting */
    trek_status (*pinned_allocate)(size_t bytes, void **data);
    void (*pinned_release)(void *data);
    /* The same of what work on `stream`, one of the device's, still uses: not given out again before that has ended. */
    void (*pinned_release_after)(void *data, trek_device device, trek_device_stream *stream);
    bool host_accessible;      /* the CPU may read and write data */
    int isa;                   /* the CPU's: 0 baseline, 1 avx2, 2 avx512 */
    trek_memory_stats (*stats)(trek_device device);

    /* contiguous bytes; either side may be host memory. In the order of the stream; from a device to
     * pageable host memory: done when it returns. From pageable memory: copied away when it returns. On a stream of one's own
     * (not NULL) host memory is pinned_allocate's, and nothing is waited for: the copy happens when the stream gets there. */
    trek_status (*copy_bytes)(void *to, trek_device to_device, const void *from, trek_device from_device, size_t bytes,
                              trek_device_stream *stream);

    /* streams and events; on the CPU everything has happened when the call returns */
    trek_status (*stream_new)(trek_device device, trek_device_stream **stream);
    void (*stream_free)(trek_device_stream *stream);
    trek_status (*event_new)(trek_device device, trek_event **event);
    void (*event_free)(trek_event *event);
    /* of a stream of the event's device; NULL: the calling thread's there */
    trek_status (*event_record)(trek_event *event, trek_device_stream *stream);
    /* a stream of `device` waits, whichever the event's is; NULL: the calling thread's on `device` */
    trek_status (*stream_wait)(trek_device device, trek_device_stream *stream, trek_event *event);
    trek_status (*event_elapsed_ms)(trek_event *start, trek_event *end, double *ms);
    trek_status (*event_sync)(trek_event *event);
    /* waits for the calling thread's own streams but for those on the n devices of `but`; NULL: there are none */
    void (*finish_streams)(const trek_device *but, int n);
    trek_status (*sync)(trek_device device);  /* waits; returns and clears the deferred error */
    trek_status (*deferred_error)(trek_device device); /* without waiting */
    void (*range_begin)(const char *name); /* named stretches for profilers (NVTX); may be NULL */
    void (*range_end)(void);

    /* Capture of the calling thread's work on the device, and its replay; NULL on backends that cannot.
     * What happens between begin and end is recorded, not done. capture_end with result NULL drops it. */
    trek_status (*capture_begin)(trek_device device);
    trek_status (*capture_end)(trek_device device, trek_capture **result);
    trek_status (*capture_replay)(trek_capture *capture, uint64_t rng_step);
    void (*capture_free)(trek_capture *capture);
    bool (*capturing)(void); /* the calling thread is between begin and end */

    const struct trek_device_comm *comm; /* NULL: none (no NCCL) */

    /* kernels[op][dtype of the key input]; NULL: not there */
    trek_kernel kernels[TREK_OP_COUNT][TREK_DTYPE_COUNT];

    /* flat arenas; dtype F32 or F64 */
    /* An optimizer's update of a slice, and the rewriting of its 16-bit parameters. */
    void (*update_slice)(const trek_update_kernel *kernel, trek_dtype dtype, const trek_update_slice *slice);
    /* The number of the kernel of that name; -1: there is none. NULL: classes bring a function. */
    int (*update_kernel)(const char *name);
    /* The 16-bit elements [begin, begin + n) of low from the n of master. The CPU's only. */
    void (*write_low)(void *low, trek_dtype dtype, const float *master, int64_t begin, int64_t n);
    /* Elements [begin, begin + n) of a slice's states in bf16 or u8 into rows of TREK_STATE_BLOCK, a row for each state, at most
     * so many; and back (tensor/state_round.h, state_code.h). u8: begin is that of a block, and n ends one or all. The CPU's
     * only. */
    void (*read_states)(const trek_update_slice *slice, int64_t begin, int64_t n, float *rows);
    void (*write_states)(const trek_update_slice *slice, int64_t begin, int64_t n, const float *rows);
    /* sum of squares in f64, in fixed blocks combined in order; *finite false if any element is inf or NaN */
    void (*sum_squares)(trek_dtype dtype, const void *data, int64_t count, double *sum, bool *finite);
    /* to[i] = sum over k of from[k][i], in order of k; to may be one of from */
    void (*sum_arrays)(trek_dtype dtype, void *to, const void *const *from, int n, int64_t count);
    void (*scale)(trek_dtype dtype, void *data, int64_t count, double factor);
    void (*clamp_abs)(trek_dtype dtype, void *data, int64_t count, double limit);

    /* An optimizer step without the host (tensor/update.h): each call puts its work on the calling thread's stream of
     * the device and returns; what it is given beside addresses in backend memory is used up by then.
     * In order: numbers, norm (if something needs it), decide, apply; then update_scaler, once for all optimizers. */
    /* Limits, rng step and learning rates into the records. Outside a captured step: it is what changes between replays. */
    trek_status (*update_numbers)(trek_device device, const trek_update *update, const trek_update_numbers *numbers);
    /* state->sum_squares in f64 over n spans, any number of them, in fixed blocks that are combined in a fixed order, and
     * state->finite. */
    trek_status (*update_norm)(trek_device device, const trek_update *update, const trek_update_span *spans, int n);
    /* trek_update_decide_state, then trek_update_decide_segment for every segment. measured: update_norm came before. */
    trek_status (*update_decide)(trek_device device, const trek_update *update, bool measured);
    /* All runs, unless state->skip. Gradients of all runs
     * become 0 afterwards if zero_grads, also when skipped. */
    trek_status (*update_apply)(trek_device device, const trek_update *update, bool zero_grads);
    /* trek_update_scaler_adapt. */
    trek_status (*update_scaler)(trek_device device, trek_update_scaler *scaler);

    /* The versions of what the backend works with, or why something is not there: one line. It opens what it can use. NULL: it
     * works with nothing. */
    void (*versions)(char *text, size_t size);

    /* trek_device_paths and trek_device_paths_reset of a device by its index; NULL: there is nothing to choose from. */
    int (*paths)(int index, trek_device_path *paths, int capacity);
    void (*paths_reset)(int index);
} trek_backend;

extern const trek_backend *trek_backends[TREK_DEVICE_TYPE_COUNT]; /* NULL until opened, and for TREK_DEVICE_UNSET */

/* The device that `device` stands for: the default one if it is unset. Public functions that are given a device call this. */
trek_device trek_device_resolve(trek_device device);
/* A list of them, in `room` for n; NULL for NULL. */
const trek_device *trek_devices_resolve(const trek_device *devices, int n, trek_device *room);

/* The backend of a device, opened at first need; NULL and DEVICE with the reason. */
const trek_backend *trek_backend_get(trek_device_type type);
/* The same without an error: why (may be NULL) gets the reason. */
const trek_backend *trek_backend_find(trek_device_type type, char *why, size_t size);

/* The CPU's table, filled for the best instruction set (TREK_ISA overrides:
 * "baseline", "avx2", "avx512"). */
const trek_backend *trek_cpu_backend(void);

TREK_END

#endif
