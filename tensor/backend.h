/* SPDX-License-Identifier: Apache-2.0 */
/* A backend is one table: memory, streams and events, copies, kernels. The CPU's table is complete and is the
 * reference. A plug-in fills one, and gets what it needs of the core through a table of host functions when it is
 * opened (tensor/plugin.h). */
#ifndef TREK_TENSOR_BACKEND_H
#define TREK_TENSOR_BACKEND_H

#include "tensor/binned.h"
#include "tensor/device_paths.h"
#include "tensor/digest_lanes.h"
#include "tensor/memory.h"
#include "tensor/op.h"
#include "tensor/update.h"

TREK_BEGIN

/* The version and the size of the table below and of that in device_comm.h. The size depends on the number of ops. */
#define TREK_BACKEND_ABI (21 * 10000000 + (int)(sizeof(trek_backend) / sizeof(void *)))

/* Work that is done in order. Every thread has its own compute stream on each device that it uses; NULL stands for it
 * wherever a stream is an argument. */
typedef struct trek_device_stream trek_device_stream;
typedef struct trek_event trek_event;     /* a point in a stream */
typedef struct trek_capture trek_capture; /* recorded work that can be replayed */
struct trek_device_comm;                  /* tensor/device_comm.h: collectives of the device's own library */
struct trek_device_pages;                 /* tensor/device_pages.h: addresses whose memory comes and goes */

typedef struct trek_backend {
    int abi;
    const char *name;          /* "cpu" */
    trek_device_type type;

    int (*device_count)(void);
    bool (*usable)(int index, char *why, size_t size);
    trek_status (*info)(int index, trek_device_info *info);
    /* Describes any device that is listed, without opening it, and without memory_free. Any thread may call it. */
    trek_status (*describe)(int index, trek_device_info *info);

    /* Allocate and release memory through the caching allocator. It is aligned to 64 bytes (CPU) or 256 bytes (GPU).
     * handle belongs to the backend and is passed to release, which any thread may call. */
    trek_status (*allocate)(trek_device device, size_t bytes, void **data, void **handle);
    void (*release)(trek_device device, void *data, void *handle);
    /* Notes that work on `stream` also uses the memory: it is not given out again before that work has ended. */
    void (*record_use)(void *handle, trek_device_stream *stream);
    void (*release_cached)(trek_device device);
    void (*reset_peak)(trek_device device);
    /* Allocate and release host memory that the device copies from and to without waiting. */
    trek_status (*pinned_allocate)(size_t bytes, void **data);
    void (*pinned_release)(void *data);
    /* Releases host memory that work on `stream` (a stream of the device) still uses: it is not given out again
     * before that work has ended. */
    void (*pinned_release_after)(void *data, trek_device device, trek_device_stream *stream);
    bool host_accessible;      /* the CPU can read and write data */
    int isa;                   /* of the CPU: 0 baseline, 1 avx2, 2 avx512 */
    trek_memory_stats (*stats)(trek_device device);

    /* Copies contiguous bytes, in the order of the stream; either side may be host memory. A copy from a device to
     * pageable host memory is complete when the call returns; pageable memory that is copied from may then be reused.
     * On a stream other than NULL, host memory must come from pinned_allocate, and the call does not wait: the copy
     * happens when the stream reaches it. */
    trek_status (*copy_bytes)(void *to, trek_device to_device, const void *from, trek_device from_device, size_t bytes,
                              trek_device_stream *stream);

    /* Streams and events. On the CPU everything has happened when a call returns. */
    trek_status (*stream_new)(trek_device device, trek_device_stream **stream);
    void (*stream_free)(trek_device_stream *stream);
    trek_status (*event_new)(trek_device device, trek_event **event);
    void (*event_free)(trek_event *event);
    /* of a stream of the event's device; NULL: the calling thread's stream there */
    trek_status (*event_record)(trek_event *event, trek_device_stream *stream);
    /* makes a stream of `device` wait, whatever device the event belongs to; NULL: the calling thread's stream on
     * `device` */
    trek_status (*stream_wait)(trek_device device, trek_device_stream *stream, trek_event *event);
    trek_status (*event_elapsed_ms)(trek_event *start, trek_event *end, double *ms);
    trek_status (*event_sync)(trek_event *event);
    /* waits for the calling thread's own streams, except those on the n devices of `but`; NULL: the backend has no
     * streams */
    void (*finish_streams)(const trek_device *but, int n);
    trek_status (*sync)(trek_device device);  /* waits; returns and clears the deferred error */
    trek_status (*deferred_error)(trek_device device); /* does not wait */
    void (*range_begin)(const char *name); /* named ranges for profilers (NVTX); may be NULL */
    void (*range_end)(void);

    /* Capture of the calling thread's work on the device, and its replay; NULL if the backend cannot capture. Work
     * between begin and end is recorded and not done. capture_end with result NULL drops it. */
    trek_status (*capture_begin)(trek_device device);
    trek_status (*capture_end)(trek_device device, trek_capture **result);
    trek_status (*capture_replay)(trek_capture *capture, uint64_t rng_step);
    void (*capture_free)(trek_capture *capture);
    bool (*capturing)(void); /* the calling thread is between begin and end */

    const struct trek_device_comm *comm; /* NULL: not available (no NCCL) */

    /* kernels[op][dtype of the key input]; NULL: not available */
    trek_kernel kernels[TREK_OP_COUNT][TREK_DTYPE_COUNT];

    /* Flat arenas in the memory of the device; dtype F32 or F64. */
    /* An optimizer's update of a slice, and the rewriting of its 16-bit parameters. */
    void (*update_slice)(trek_device device, const trek_update_kernel *kernel, trek_dtype dtype, const trek_update_slice *slice);
    /* Returns the number of the kernel with that name, or -1. NULL: classes provide a function. */
    int (*update_kernel)(const char *name);
    /* Writes the 16-bit elements [begin, begin + n) of low from the n of master. Only the CPU has it. */
    void (*write_low)(void *low, trek_dtype dtype, const float *master, int64_t begin, int64_t n);
    /* Read elements [begin, begin + n) of a slice's states in bf16 or u8 into rows of TREK_STATE_BLOCK floats, one
     * row for each state, and write them back (tensor/state_round.h, state_code.h). n is at most TREK_STATE_BLOCK.
     * For u8 begin must be the beginning of a block, and the range must end with a block or with the slice. Only the
     * CPU has them. */
    void (*read_states)(const trek_update_slice *slice, int64_t begin, int64_t n, float *rows);
    void (*write_states)(const trek_update_slice *slice, int64_t begin, int64_t n, const float *rows);
    /* Computes a sum of squares in f64, in fixed blocks that are combined in order. *finite is false if any element
     * is inf or NaN. */
    void (*sum_squares)(trek_device device, trek_dtype dtype, const void *data, int64_t count, double *sum, bool *finite);
    /* Computes to[i] = sum over k of from[k][i], in the order of k. `to` may be one of `from`. */
    void (*sum_arrays)(trek_device device, trek_dtype dtype, void *to, const void *const *from, int n, int64_t count);
    void (*scale)(trek_device device, trek_dtype dtype, void *data, int64_t count, double factor);
    void (*clamp_abs)(trek_device device, trek_dtype dtype, void *data, int64_t count, double limit);
    /* Sums that do not depend on the order of their terms (tensor/binned.h), in the backend's memory. `first` and `blocks`
     * say which blocks are meant; `data` is the address of element 0. None of them fails on the CPU. On a device they put
     * work on the calling thread's stream on the device of its rank; a failure is the thread's error. */
    /* Adds the numbers of n terms, at most TREK_BINNED_TERMS, and replaces them by 0 if `zero` is set. terms[k] is the address of
     * element 0. */
    void (*binned_add)(const trek_binned *to, void *const *terms, int n, int64_t first, int64_t blocks, bool zero);
    /* Only the CPU has these three. Add n terms that are gradients of one weight, which begins with element 0; compute one of
     * them, with the same bits; and compute what binned_read gives when they have been added to empty sums. They fail only with
     * MEMORY. */
    trek_status (*binned_add_products)(const trek_binned *to, int64_t rows, int64_t columns, const trek_binned_product *terms,
                                       int n);
    trek_status (*binned_write_product)(float *place, int64_t rows, int64_t columns, const trek_binned_product *term);
    trek_status (*binned_read_products)(float *place, int64_t rows, int64_t columns, const trek_binned_product *terms, int n,
                                        double factor);
    /* Adds n other sums of the same size. Only the CPU has it: sums of devices are added by collectives. */
    void (*binned_merge)(const trek_binned *to, const trek_binned *const *from, int n, int64_t first, int64_t blocks);
    /* Raises the bins of all blocks to at least these, so that digits of sums with equal bins can be added. The digits of
     * blocks that were empty become 0. */
    void (*binned_raise)(const trek_binned *sum, const int32_t *bins);
    /* Writes the sums, multiplied by a factor. */
    void (*binned_read)(const trek_binned *sum, double factor, void *data, int64_t first, int64_t blocks);
    /* Sums of F32 as one integer for each element, for sending them; only the CPU has these three. */
    /* Writes the block's tops and lows for all blocks. */
    void (*binned_bounds)(const trek_binned *sum, int32_t *tops, int32_t *lows);
    /* Writes sums as single integers, and reads integers that are sums of such ones. The highest digit stands for those that do
     * not fit into one; binned_expand then leaves the other digit alone. `integers` begins with the first of the blocks. */
    void (*binned_shorten)(const trek_binned *sum, const trek_binned_bounds *bounds, int64_t first, int64_t blocks,
                           int64_t *integers);
    void (*binned_expand)(const trek_binned *sum, const trek_binned_bounds *bounds, int64_t first, int64_t blocks,
                          const int64_t *integers);
    /* Adds the digests of n spans, at most TREK_DIGEST_SPANS, to a digest in the device's memory. The work is put on the
     * calling thread's stream of the device; on the CPU it is done when the call returns. */
    trek_status (*digest)(trek_device device, const trek_digest_span *spans, int n, trek_digest *digest);

    /* An optimizer step without the host (tensor/update.h). Each call puts its work on the calling thread's stream of
     * the device and returns; arguments that are not in backend memory may be reused then. The order is: numbers,
     * norm (if something needs it), decide, apply; then update_scaler, once for all optimizers. */
    /* Writes limits, rng step and learning rates into the records. It is not part of a captured step, because these
     * values change between replays. */
    trek_status (*update_numbers)(trek_device device, const trek_update *update, const trek_update_numbers *numbers);
    /* Computes state->sum_squares in f64 over n spans, in fixed blocks that are combined in a fixed order, and
     * state->finite. */
    trek_status (*update_norm)(trek_device device, const trek_update *update, const trek_update_span *spans, int n);
    /* The same in two halves, of which other devices make a part: sums over n spans of at most trek_update_norm_chunk elements
     * each, parts[2k], and 1 instead of 0 in parts[2k + 1] where one is inf or NaN; and the norm of all n of them. `parts` is in
     * the device's memory. The chunks of a span that update_norm is given begin at multiples of that number; their parts follow
     * each other. Only devices that the host cannot read have these. */
    trek_status (*norm_parts)(trek_device device, const trek_update_span *spans, int64_t n, double *parts);
    trek_status (*norm_join)(trek_device device, const double *parts, int64_t n, trek_update_state *state);
    /* Calls trek_update_decide_state, then trek_update_decide_segment for every segment. measured: update_norm was
     * called before. */
    trek_status (*update_decide)(trek_device device, const trek_update *update, bool measured);
    /* Applies all runs, unless state->skip. If zero_grads, the gradients of all runs become 0 afterwards, even if the
     * step is skipped. */
    trek_status (*update_apply)(trek_device device, const trek_update *update, bool zero_grads);
    /* Calls trek_update_scaler_adapt. */
    trek_status (*update_scaler)(trek_device device, trek_update_scaler *scaler);

    /* Writes one line with the versions of the libraries that the backend uses, or why something is not available. It
     * opens what it can use. NULL: it uses none. */
    void (*versions)(char *text, size_t size);

    /* Implement trek_device_paths and trek_device_paths_reset for a device by its index. NULL: the device has only
     * one path. */
    int (*paths)(int index, trek_device_path *paths, int capacity);
    void (*paths_reset)(int index);

    const struct trek_device_pages *pages; /* NULL: the backend has none; the CPU's are those of the system */
} trek_backend;

extern const trek_backend *trek_backends[TREK_DEVICE_TYPE_COUNT]; /* NULL until opened, and for TREK_DEVICE_UNSET */

/* The device that `device` stands for: the default one if it is unset. Public functions that are given a device call this. */
trek_device trek_device_resolve(trek_device device);
/* A list of them, in `room` for n; NULL for NULL. */
const trek_device *trek_devices_resolve(const trek_device *devices, int n, trek_device *room);

/* Returns the backend of a device, which is opened when it is first needed. Returns NULL and sets DEVICE, with the
 * reason, if it is not available. */
const trek_backend *trek_backend_get(trek_device_type type);
/* Does so without an error: why (may be NULL) gets the reason. */
const trek_backend *trek_backend_find(trek_device_type type, char *why, size_t size);

/* Returns the CPU's table, filled for the best instruction set (TREK_ISA overrides it: "baseline", "avx2", "avx512"). */
const trek_backend *trek_cpu_backend(void);
/* Returns whether the CPU has tiles (AMX) that its present instruction set uses; *faster: whether they compute products
 * of f32 faster, which is measured when it is first needed. */
bool trek_cpu_has_tiles(bool *faster);

TREK_END

#endif
