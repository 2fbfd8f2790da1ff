/* SPDX-License-Identifier: Apache-2.0 */
/* What the core and the plug-in libtrek-mpi say to each other: the plug-in links MPI
 * and nothing of trek, the core the other way round. All functions of the table are
 * called by one thread at a time; begin and end by the communication thread, and
 * the others, too, unless any_thread. Internal. */
#ifndef TREK_DISTRIBUTED_COMM_MPI_MPI_TABLE_H
#define TREK_DISTRIBUTED_COMM_MPI_MPI_TABLE_H

#include "distributed/comm/comm.h"

TREK_BEGIN

#define TREK_MPI_ABI 1

/* A communicator of trek's own, and something that is under way on it. */
typedef struct trek_mpi_group trek_mpi_group;
typedef struct trek_mpi_request {
    _Alignas(8) unsigned char bytes[8]; /* an MPI_Request */
} trek_mpi_request;

typedef struct trek_mpi_host {
    int abi;
    trek_status (*fail)(trek_status status, const char *message);
    void *(*alloc)(size_t bytes);
    void (*free)(void *memory);
    /* inout[i] = inout[i] op in[i] with trek's rules (NaN wins in MAX and MIN). */
    void (*fold)(trek_dtype dtype, trek_reduce_op op, const void *in, void *inout, int64_t count);
    /* The program is about to finalise MPI: on return, the communication thread does not call MPI any more. */
    void (*leaving)(void);
} trek_mpi_host;

typedef struct trek_mpi_table {
    int abi;
    char library[128];           /* the MPI library's own words */
    /* Initialises MPI, unless the program has: *ours says who. UNSUPPORTED: the program has finalised it, or allows
     * no other thread than its own to call it. */
    trek_status (*begin)(bool *ours);
    /* Finalises what begin initialised. */
    void (*end)(void);
    bool any_thread;             /* MPI may be called on any thread, one at a time (else on that of begin) */
    int rank, world, local_world; /* of MPI_COMM_WORLD; processes of this machine as far as the launcher tells: else world */

    /* A duplicate of MPI_COMM_WORLD; to be used when the request is done. All processes ask for it in the same order. */
    trek_status (*group_new)(trek_mpi_group **group, trek_mpi_request *request);
    /* Once that is done, before anything else. */
    trek_status (*group_ready)(trek_mpi_group *group);
    /* done: no request is pending on it and it was made: MPI gets it back. */
    void (*group_free)(trek_mpi_group *group, bool done);

    /* Everything below starts, and is done when test says so. counts of elements, at most 2^30. Memory stays as it is until then. */
    trek_status (*send)(trek_mpi_group *group, int to, const void *data, size_t bytes, trek_mpi_request *request);
    trek_status (*receive)(trek_mpi_group *group, int from, void *data, size_t bytes, trek_mpi_request *request);
    /* in place. dtype f32, f64, i64, i32, u8; op SUM, PROD, MAX, MIN. */
    trek_status (*all_reduce)(trek_mpi_group *group, void *data, int64_t count, trek_dtype dtype, trek_reduce_op op,
                              trek_mpi_request *request);
    trek_status (*broadcast)(trek_mpi_group *group, void *data, int64_t bytes, int root, trek_mpi_request *request);
    trek_status (*all_gather)(trek_mpi_group *group, const void *part, int64_t bytes, void *all, trek_mpi_request *request);
    trek_status (*reduce_scatter)(trek_mpi_group *group, const void *all, void *part, int64_t count, trek_dtype dtype,
                                  trek_reduce_op op, trek_mpi_request *request);
    /* Lets MPI work a little. *done: all n requests are (they may be again: what is done stays done). */
    trek_status (*test)(int n, trek_mpi_request *requests, bool *done);
} trek_mpi_table;

/* What the plug-in exports under this name. Fills *table (zeroed before). UNSUPPORTED and why: another ABI. */
typedef trek_status (*trek_mpi_open_fn)(int abi, const trek_mpi_host *host, trek_mpi_table *table, char *why, size_t size);
#define TREK_MPI_OPEN "trek_mpi_open"

TREK_END

#endif
