/* SPDX-License-Identifier: Apache-2.0 */
/* The interface between the core and a plug-in for a communication library (libtrek-mpi, libtrek-gloo). The plug-in
 * links the library and nothing of trek; the core links nothing of the library. One thread at a time calls the
 * functions of the table. begin and end are called by the communication thread, and so are the others unless
 * any_thread is set. */
#ifndef TREK_DISTRIBUTED_COMM_ASYNC_ASYNC_TABLE_H
#define TREK_DISTRIBUTED_COMM_ASYNC_ASYNC_TABLE_H

#include "distributed/comm/comm.h"

TREK_BEGIN

#define TREK_ASYNC_ABI 5

/* A communicator of trek, and an operation that is under way on it. */
typedef struct trek_async_group trek_async_group;
typedef struct trek_async_request {
    uint64_t word; /* MPI: an MPI_Request; Gloo: the index of the operation */
} trek_async_request;

typedef struct trek_async_host {
    int abi;
    void *service;               /* belongs to the core */
    trek_status (*fail)(trek_status status, const char *message);
    void *(*alloc)(size_t bytes);
    void (*free)(void *memory);
    /* Computes inout[i] = inout[i] op in[i] by trek's rules (in MAX and MIN, NaN wins). */
    void (*fold)(trek_dtype dtype, trek_reduction op, const void *in, void *inout, int64_t count);
    /* Says that the program is about to finalise the library. After it returns, the communication thread no longer
     * calls the library. */
    void (*leaving)(const struct trek_async_host *host);
    /* Called from any thread: an operation that was started for this owner (group_open) is done or has failed. */
    void (*moved)(void *owner);
    /* Called from any thread: data have arrived, although no operation is done yet. Deadlines count from here. */
    void (*progressed)(void *owner);
} trek_async_host;

typedef struct trek_async_table {
    int abi;
    char library[128];           /* the library's own description */
    /* Initialises the library, unless the program has done so; *ours says who has. Fails with UNSUPPORTED if the
     * program has finalised the library, or allows only its own thread to call it. */
    trek_status (*begin)(bool *ours);
    /* Finalises what begin has initialised. */
    void (*end)(void);
    bool any_thread;             /* any thread may call the library, one at a time; otherwise only the thread of begin */
    bool adds_bf16;              /* reduce_scatter takes SUM of bf16, too, and adds in f32 and in rank order */
    bool tells;                  /* host.moved is called when something is done, so that nobody needs to ask before */
    int rank, world, local_world; /* MPI: numbers in MPI_COMM_WORLD; processes of this machine if the launcher tells, otherwise
                                   * the same as world */

    /* A group is made in one of two ways. The first is for processes that know each other. Without `ranks` it is a
     * duplicate of MPI_COMM_WORLD. With `ranks` it is a communicator of these `world` processes in that order, which
     * waits for them and may be used when the request is done. All its processes must call this in the same order.
     * NULL: only the second way exists. */
    trek_status (*group_new)(const int *ranks, int rank, int world, trek_async_group **group, trek_async_request *request);
    /* The second way uses connections that the core has made. group_open makes what needs no connection.
     * group_connect then gets sockets[r], connected to rank r, which has proved its identity. The library owns the
     * sockets from here on, also after a failure. */
    trek_status (*group_open)(void *owner, int rank, int world, trek_async_group **group);
    trek_status (*group_connect)(trek_async_group *group, const int *sockets, trek_async_request *request);
    /* Called when the group has been made, before anything else. NULL: nothing to do. */
    trek_status (*group_ready)(trek_async_group *group);
    /* Frees a group. done: it was made, and no request is pending on it. Returns whether the library has given back
     * all memory that was lent to it; otherwise it may write to that memory for ever. */
    bool (*group_free)(trek_async_group *group, bool done);

    /* Everything below starts an operation, which is done when `test` says so. Counts are numbers of elements, at
     * most 2^30. The memory must stay as it is until then. */
    /* Sends `mine` to all others. What rank r sends, at most `stride` bytes, is written to notes + r x stride.
     * requests[r] is done when it has arrived, requests[world + r] when `mine` has been sent. The requests of the own
     * rank are not touched. */
    trek_status (*exchange)(trek_async_group *group, const void *mine, size_t bytes, void *notes, size_t stride,
                            trek_async_request *requests);
    /* Reduces in place. The dtype is f32, f64, i64, i32 or u8, the op SUM, PROD, MAX or MIN. */
    trek_status (*all_reduce)(trek_async_group *group, void *data, int64_t count, trek_dtype dtype, trek_reduction op,
                              trek_async_request *request);
    /* Reduces to the root. The data of the other ranks are undefined afterwards. */
    trek_status (*reduce)(trek_async_group *group, void *data, int64_t count, trek_dtype dtype, trek_reduction op, int root,
                          trek_async_request *request);
    trek_status (*broadcast)(trek_async_group *group, void *data, int64_t bytes, int root, trek_async_request *request);
    trek_status (*all_gather)(trek_async_group *group, const void *part, int64_t bytes, void *all, trek_async_request *request);
    /* Leaves `all` undefined. With adds_bf16, SUM of bf16 is possible, too. */
    trek_status (*reduce_scatter)(trek_async_group *group, void *all, void *part, int64_t count, trek_dtype dtype,
                                  trek_reduction op,
                                  trek_async_request *request);
    /* Lets the library work for a short while. *done: all n requests are done. A request that is done stays done. */
    trek_status (*test)(trek_async_group *group, int n, trek_async_request *requests, bool *done);
} trek_async_table;

/* The function that a plug-in exports under this name. It fills *table, which was zeroed. Fails with UNSUPPORTED, and
 * writes `why`, if the core has another ABI. */
typedef trek_status (*trek_async_open_fn)(int abi, const trek_async_host *host, trek_async_table *table, char *why, size_t size);
#define TREK_MPI_OPEN "trek_mpi_open"
#define TREK_GLOO_OPEN "trek_gloo_open"

TREK_END

#endif
