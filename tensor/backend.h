/* SPDX-License-Identifier: Apache-2.0 */
/* A backend is one table: memory, streams and events, copies, kernels. The CPU
 * table is complete and is the reference. Internal; plug-ins see it through the
 * table of host functions that they are given when opened. */
#ifndef TREK_TENSOR_BACKEND_H
#define TREK_TENSOR_BACKEND_H

#include "tensor/op.h"

#define TREK_BACKEND_ABI 1

typedef struct trek_stream trek_stream; /* work done in order */
typedef struct trek_event trek_event;   /* a point in a stream */

/* One slice of a flat arena for the fused optimizer kernels. All pointers are
 * to `count` elements of the same segment; f32 or f64. */
typedef struct trek_adam_slice {
    void *param, *grad, *m, *v;
    int64_t count;
    double lr, beta1, beta2, eps, weight_decay;
    double bias1, bias2;       /* 1 - beta^t */
    bool decoupled;            /* AdamW */
    bool maximize;
    double grad_scale;         /* grad is multiplied by it first (clip factor, 1/loss scale) */
    bool zero_grad;            /* grad is set to 0 after use */
} trek_adam_slice;

typedef struct trek_sgd_slice {
    void *param, *grad, *momentum_buffer; /* buffer NULL without momentum */
    int64_t count;
    double lr, momentum, dampening, weight_decay;
    bool nesterov, first, maximize; /* first: the buffer takes the gradient as it is */
    double grad_scale;
    bool zero_grad;
} trek_sgd_slice;

typedef struct trek_backend {
    int abi;
    const char *name;          /* "cpu" */
    trek_device_type type;

    int (*device_count)(void);
    bool (*usable)(int index, char *why, size_t size);

    /* memory: 64-byte aligned (CPU) or 256 (GPU); through the caching allocator */
    trek_status (*allocate)(trek_device device, size_t bytes, void **data);
    void (*release)(trek_device device, void *data);
    bool host_accessible;      /* the CPU may read and write data */
    trek_memory_stats_t (*stats)(trek_device device);

    /* contiguous bytes; either side may be host memory */
    trek_status (*copy_bytes)(void *to, trek_device to_device, const void *from, trek_device from_device, size_t bytes, trek_stream *stream);

    /* streams and events; on the CPU everything has happened when the call returns */
    trek_status (*stream_new)(trek_device device, trek_stream **stream);
    void (*stream_free)(trek_stream *stream);
    trek_status (*event_new)(trek_device device, trek_event **event);
    void (*event_free)(trek_event *event);
    trek_status (*event_record)(trek_event *event, trek_stream *stream);
    trek_status (*stream_wait)(trek_stream *stream, trek_event *event);
    trek_status (*event_elapsed_ms)(trek_event *start, trek_event *end, double *ms);
    trek_status (*sync)(trek_device device);  /* waits; returns and clears the deferred error */
    trek_status (*deferred_error)(trek_device device); /* without waiting */

    /* kernels[op][dtype of the key input]; NULL: not there */
    trek_kernel kernels[TREK_OP_COUNT][TREK_DTYPE_COUNT];

    /* flat arenas; dtype F32 or F64 */
    void (*adam)(trek_dtype dtype, const trek_adam_slice *slice);
    void (*sgd)(trek_dtype dtype, const trek_sgd_slice *slice);
    /* sum of squares in f64, in fixed blocks combined in order; *finite false if any element is inf or NaN */
    void (*sum_squares)(trek_dtype dtype, const void *data, int64_t count, double *sum, bool *finite);
    /* to[i] = sum over k of from[k][i], in order of k; to may be one of from */
    void (*sum_arrays)(trek_dtype dtype, void *to, const void *const *from, int n, int64_t count);
    void (*scale)(trek_dtype dtype, void *data, int64_t count, double factor);
    void (*clamp_abs)(trek_dtype dtype, void *data, int64_t count, double limit);
} trek_backend;

extern const trek_backend *trek_backends[TREK_DEVICE_TYPE_COUNT]; /* NULL until opened */

/* The backend of a device, opened at first need; NULL and DEVICE with the reason. */
const trek_backend *trek_backend_get(trek_device_type type);
/* The same without an error: why (may be NULL) gets the reason. */
const trek_backend *trek_backend_find(trek_device_type type, char *why, size_t size);

/* The CPU's table, filled for the best instruction set (TREK_ISA overrides:
 * "baseline", "avx2", "avx512"). */
const trek_backend *trek_cpu_backend(void);

#endif
