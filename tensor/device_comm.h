/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives that a device's own library has (NCCL): a table by which the
 * backend offers them to distributed/. A device rank is one communicator on one
 * device. Work is given to a stream and done in its order; the calls return at
 * once. All ranks of a group make the same calls in the same order, which the
 * caller has seen to: nothing here checks it. Internal; plain C that C++ understands. */
#ifndef TREK_TENSOR_DEVICE_COMM_H
#define TREK_TENSOR_DEVICE_COMM_H

#include "tensor/backend.h"

TREK_BEGIN

typedef struct trek_device_rank trek_device_rank;

/* What ranks in other processes need to find the first one. */
typedef struct trek_device_comm_id {
    char bytes[128];
} trek_device_comm_id;

/* No averages: they switch the library's fastest kernels off. */
typedef enum trek_device_reduce { TREK_DEVICE_SUM, TREK_DEVICE_PROD, TREK_DEVICE_MAX, TREK_DEVICE_MIN } trek_device_reduce;

typedef struct trek_device_comm {
    const char *name; /* "nccl" */
    /* Whether the library is there, opened at first need; why (may be NULL) gets the reason, or its version. */
    bool (*available)(char *why, size_t size);
    /* n ranks of one group on n distinct devices of this process, all at once, from one thread. Waits at most
     * timeout_ns for the library, in this call and in every later one (0: without limit). */
    trek_status (*init_all)(const trek_device *devices, int n, int64_t timeout_ns, trek_device_rank **ranks);
    /* The same for one rank of a group of many processes: one of them makes the id and gives it to all. cancelled (may be
     * NULL) is asked again and again while the others have not come: true ends it (CANCELLED). */
    trek_status (*make_id)(trek_device_comm_id *id);
    trek_status (*init_one)(trek_device device, const trek_device_comm_id *id, int rank, int world, int64_t timeout_ns,
                            bool (*cancelled)(void *arg), void *arg, trek_device_rank **result);
    /* Whether it combines this dtype this way as trek does: sums of 16-bit floats are made in f32, NaN wins in MAX and MIN. */
    bool (*combines)(trek_dtype dtype, trek_device_reduce op);

    /* stream NULL: the calling thread's queue on the rank's device. Counts as in distributed/comm: elements of the
     * tensor; of a part for all_gather and reduce_scatter. in may be out (all_gather: the rank's place in it). */
    trek_status (*all_reduce)(trek_device_rank *rank, const void *in, void *out, int64_t count, trek_dtype dtype,
                              trek_device_reduce op, trek_device_stream *stream);
    /* To one; what others give as out is left alone. */
    trek_status (*reduce)(trek_device_rank *rank, const void *in, void *out, int64_t count, trek_dtype dtype,
                          trek_device_reduce op, int root, trek_device_stream *stream);
    trek_status (*broadcast)(trek_device_rank *rank, const void *in, void *out, int64_t count, trek_dtype dtype, int root,
                             trek_device_stream *stream);
    trek_status (*all_gather)(trek_device_rank *rank, const void *in, void *out, int64_t count, trek_dtype dtype,
                              trek_device_stream *stream);
    trek_status (*reduce_scatter)(trek_device_rank *rank, const void *in, void *out, int64_t count, trek_dtype dtype,
                                  trek_device_reduce op, trek_device_stream *stream);

    /* Memory that collectives will use again and again. *handle NULL and OK where the library has no use for it. */
    trek_status (*register_buffer)(trek_device_rank *rank, void *data, size_t bytes, void **handle);
    trek_status (*deregister_buffer)(trek_device_rank *rank, void *handle);

    /* What the library has found meanwhile, without waiting: OK, or COMM with its text. */
    trek_status (*async_error)(trek_device_rank *rank);
    /* From any thread: work that waits for other ranks ends, its results are void; later calls return CANCELLED. */
    void (*abort)(trek_device_rank *rank);
    /* All of this process's ranks of a group together (a library may make them wait for each other). Their work has
     * ended, or they were aborted. Entries may be NULL. */
    void (*free)(trek_device_rank **ranks, int n);

    /* Ranks' work captured (tensor/backend.h: capture_begin, capture_end), with collectives in it, in pieces: from pause to
     * resume the thread's work on the device is done as ever, and what the pieces wait for of other threads' is told there. The
     * first piece is number 0. capture_end may come in a pause, too. What a collective's stream was given in a piece, the queue
     * waits for in it. Pieces are replayed in their order, by the thread that captured them; `has`: there is something in it.
     * replay: CANCELLED where the communicator was aborted whose collectives are in it. */
    trek_status (*capture_pause)(trek_device device);
    trek_status (*capture_resume)(trek_device device);
    bool (*capture_has)(const trek_capture *capture, int piece);
    trek_status (*capture_replay)(trek_capture *capture, int piece, uint64_t rng_step);
} trek_device_comm;

TREK_END

#endif
