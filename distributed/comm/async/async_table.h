/* SPDX-License-Identifier: Apache-2.0 */
/* What the core and a plug-in for a communication library (libtrek-mpi, libtrek-gloo)
 * say to each other: the plug-in links the library and nothing of trek, the core the
 * other way round. All functions of the table are called by one thread at a time; begin
 * and end by the communication thread, and the others, too, unless any_thread. Internal. */
#ifndef TREK_DISTRIBUTED_COMM_ASYNC_ASYNC_TABLE_H
#define TREK_DISTRIBUTED_COMM_ASYNC_ASYNC_TABLE_H

#include "distributed/comm/comm.h"

TREK_BEGIN

#define TREK_ASYNC_ABI 3

/* A communicator of trek's own, and something that is under way on it. */
typedef struct trek_async_group trek_async_group;
typedef struct trek_async_request {
    uint64_t word; /* MPI: an MPI_Request; Gloo: which piece of work */
} trek_async_request;

typedef struct trek_async_host {
    int abi;
    void *service;               /* the core's own */
    trek_status (*fail)(trek_status status, const char *message);
    void *(*alloc)(size_t bytes);
    void (*free)(void *memory);
    /* inout[i] = inout[i] op in[i] with trek's rules (NaN wins in MAX and MIN). */
    void (*fold)(trek_dtype dtype, trek_reduce_op op, const void *in, void *inout, int64_t count);
    /* The program is about to finalise the library: on return, the communication thread does not call it any more. */
    void (*leaving)(const struct trek_async_host *host);
    /* From any thread: something that was started for this owner (group_open) is done, or has failed. */
    void (*moved)(void *owner);
    /* The same: data have come, though nothing is done yet: a deadline counts from here. */
    void (*progressed)(void *owner);
} trek_async_host;

typedef struct trek_async_table {
    int abi;
    char library[128];           /* the library's own words */
    /* Initialises the library, unless the program has: *ours says who. UNSUPPORTED: the program has finalised it, or allows
     * no other thread than its own to call it. */
    trek_status (*begin)(bool *ours);
    /* Finalises what begin initialised. */
    void (*end)(void);
    bool any_thread;             /* the library may be called on any thread, one at a time (else on that of begin) */
    bool tells;                  /* host.moved is called when something is done: there is nothing to be asked for before */
    int rank, world, local_world; /* MPI: of MPI_COMM_WORLD; processes of this machine as far as the launcher tells: else world */

    /* A group is made in one of two ways. By processes that know each other: a duplicate of MPI_COMM_WORLD, or
     * (ranks not NULL, `world` ranks in it) a communicator of those alone, in that order, which waits for them; to be used when
     * the request is done. All its processes ask for it in the same order. NULL: the other way. */
    trek_status (*group_new)(const int *ranks, int rank, int world, trek_async_group **group, trek_async_request *request);
    /* Or by connections that the core has made: first what there is without any, then sockets[r], connected to rank r, who has
     * proved that it is that; they are the library's from here on, also where it fails. */
    trek_status (*group_open)(void *owner, int rank, int world, trek_async_group **group);
    trek_status (*group_connect)(trek_async_group *group, const int *sockets, trek_async_request *request);
    /* Once that is done, before anything else. NULL: nothing to be done. */
    trek_status (*group_ready)(trek_async_group *group);
    /* done: no request is pending on it and it was made. Returns whether the library has given back all memory that it was
     * lent; else it may write to it for good. */
    bool (*group_free)(trek_async_group *group, bool done);

    /* Everything below starts, and is done when test says so. counts of elements, at most 2^30. Memory stays as it is until then.
     */
    /* `mine` goes to all others, theirs (at most stride bytes, rank r's) come to notes + r x stride. requests[r]: that has come;
     * requests[world + r]: mine has gone. Those of the own rank are not touched. */
    trek_status (*exchange)(trek_async_group *group, const void *mine, size_t bytes, void *notes, size_t stride,
                            trek_async_request *requests);
    /* in place. dtype f32, f64, i64, i32, u8; op SUM, PROD, MAX, MIN. */
    trek_status (*all_reduce)(trek_async_group *group, void *data, int64_t count, trek_dtype dtype, trek_reduce_op op,
                              trek_async_request *request);
    /* To one; what the others gave is undefined then. */
    trek_status (*reduce)(trek_async_group *group, void *data, int64_t count, trek_dtype dtype, trek_reduce_op op, int root,
                          trek_async_request *request);
    trek_status (*broadcast)(trek_async_group *group, void *data, int64_t bytes, int root, trek_async_request *request);
    trek_status (*all_gather)(trek_async_group *group, const void *part, int64_t bytes, void *all, trek_async_request *request);
    /* `all` is left undefined. */
    trek_status (*reduce_scatter)(trek_async_group *group, void *all, void *part, int64_t count, trek_dtype dtype,
                                  trek_reduce_op op,
                                  trek_async_request *request);
    /* Lets the library work a little. *done: all n requests are (they may be again: what is done stays done). */
    trek_status (*test)(trek_async_group *group, int n, trek_async_request *requests, bool *done);
} trek_async_table;

/* What the plug-in exports under this name. Fills *table (zeroed before). UNSUPPORTED and why: another ABI. */
typedef trek_status (*trek_async_open_fn)(int abi, const trek_async_host *host, trek_async_table *table, char *why, size_t size);
#define TREK_MPI_OPEN "trek_mpi_open"
#define TREK_GLOO_OPEN "trek_gloo_open"

TREK_END

#endif
