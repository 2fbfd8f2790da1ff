/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives of a device's own library (NCCL): a table by which the backend offers them to distributed/. A
 * device rank is one communicator on one device. Work is given to a stream and done in its order; the calls return at
 * once. All ranks of a group must make the same calls in the same order; the caller ensures that, and nothing here
 * checks it. It is plain C that C++ accepts. */
#ifndef TREK_TENSOR_DEVICE_COMM_H
#define TREK_TENSOR_DEVICE_COMM_H

#include "tensor/backend.h"

TREK_BEGIN

typedef struct trek_device_rank trek_device_rank;

/* What ranks in other processes need to find the first rank. */
typedef struct trek_device_comm_id {
    char bytes[128];
} trek_device_comm_id;

/* Averages are not included, because they disable the library's fastest kernels. */
typedef enum trek_device_reduce { TREK_DEVICE_SUM, TREK_DEVICE_PROD, TREK_DEVICE_MAX, TREK_DEVICE_MIN } trek_device_reduce;

typedef struct trek_device_comm {
    const char *name; /* "nccl" */
    /* Returns whether the library is available; it is opened when it is first needed. why (may be NULL) gets the
     * reason, or its version. */
    bool (*available)(char *why, size_t size);
    /* Makes n ranks of one group on n distinct devices of this process, all at once, from one thread. It waits at
     * most timeout_ns for the library, in this call and in every later one (0: without limit). */
    trek_status (*init_all)(const trek_device *devices, int n, int64_t timeout_ns, trek_device_rank **ranks);
    /* Make one rank of a group of several processes: one of them makes the id and gives it to all. cancelled (may be
     * NULL) is called repeatedly while the others have not come; true ends it (CANCELLED). */
    trek_status (*make_id)(trek_device_comm_id *id);
    trek_status (*init_one)(trek_device device, const trek_device_comm_id *id, int rank, int world, int64_t timeout_ns,
                            bool (*cancelled)(void *arg), void *arg, trek_device_rank **result);
    /* Returns whether it combines this dtype as trek does: sums of 16-bit floats in f32; NaN wins in MAX and MIN. */
    bool (*combines)(trek_dtype dtype, trek_device_reduce op);

    /* stream NULL: the calling thread's queue on the rank's device. Counts are those of distributed/comm: elements of
     * the tensor, or of a part for all_gather and reduce_scatter. in may be out (all_gather: the rank's part of it). */
    trek_status (*all_reduce)(trek_device_rank *rank, const void *in, void *out, int64_t count, trek_dtype dtype,
                              trek_device_reduce op, trek_device_stream *stream);
    /* Reduces to one rank; `out` of the others is left alone. */
    trek_status (*reduce)(trek_device_rank *rank, const void *in, void *out, int64_t count, trek_dtype dtype,
                          trek_device_reduce op, int root, trek_device_stream *stream);
    trek_status (*broadcast)(trek_device_rank *rank, const void *in, void *out, int64_t count, trek_dtype dtype, int root,
                             trek_device_stream *stream);
    trek_status (*all_gather)(trek_device_rank *rank, const void *in, void *out, int64_t count, trek_dtype dtype,
                              trek_device_stream *stream);
    trek_status (*reduce_scatter)(trek_device_rank *rank, const void *in, void *out, int64_t count, trek_dtype dtype,
                                  trek_device_reduce op, trek_device_stream *stream);

    /* Registers memory that collectives use repeatedly, and undoes that. *handle becomes NULL, with OK, if the
     * library does not need it. */
    trek_status (*register_buffer)(trek_device_rank *rank, void *data, size_t bytes, void **handle);
    trek_status (*deregister_buffer)(trek_device_rank *rank, void *handle);

    /* Returns what the library has found meanwhile, without waiting: OK, or COMM with its text. */
    trek_status (*async_error)(trek_device_rank *rank);
    /* Aborts from any thread: work that waits for other ranks ends, and its results are invalid; later calls return
     * CANCELLED. */
    void (*abort)(trek_device_rank *rank);
    /* Frees all of this process's ranks of a group together (a library may make them wait for each other). Their work
     * has ended, or they were aborted. Entries may be NULL. */
    void (*free)(trek_device_rank **ranks, int n);

    /* Capture of ranks' work (tensor/backend.h: capture_begin, capture_end) with collectives in it, in pieces. From
     * pause to resume the thread's work on the device is done at once, and events that order the pieces with other
     * threads are recorded there. The first piece is number 0. capture_end may also be called in a pause. Within a
     * piece, the queue waits for what was given to a collective's stream. Pieces are replayed in order, by the thread
     * that captured them; `has` returns whether a piece contains work. replay returns CANCELLED if the communicator
     * of its collectives was aborted. */
    trek_status (*capture_pause)(trek_device device);
    trek_status (*capture_resume)(trek_device device);
    bool (*capture_has)(const trek_capture *capture, int piece);
    trek_status (*capture_replay)(trek_capture *capture, int piece, uint64_t rng_step);
} trek_device_comm;

TREK_END

#endif
