/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that processes of other machines read from this one, or give something to, while it takes no part in it: a thread of
 * each process answers over a connection to every other one. Whoever reads or gives waits; several threads may do so at once.
 * Internal. */
#ifndef TREK_DISTRIBUTED_COMM_SERVED_H
#define TREK_DISTRIBUTED_COMM_SERVED_H

#include "distributed/comm/comm_internal.h"

typedef struct trek_served trek_served;

/* Bytes of a rank of the process that is asked, and of one of its pieces. */
typedef struct trek_served_ask {
    int32_t rank, k;
    uint64_t offset, bytes;
} trek_served_ask;

/* Copies what another process asks for, and sets *version to that of the rank's memory: the same before and after, or odd. It is
 * called by the thread. Returns false if there is no such memory. */
typedef bool (*trek_served_copy_fn)(void *arg, const trek_served_ask *ask, void *to, uint64_t *version);

/* Takes what another process gives: ask->bytes bytes, which the function may change. It is called by the thread. Returns false if
 * they make no sense. */
typedef bool (*trek_served_take_fn)(void *arg, const trek_served_ask *ask, void *data);
/* The most bytes that come at once. */
enum { TREK_SERVED_PIECE = 256 << 10 };

typedef struct trek_served_opts {
    const char *what;        /* begins messages; a literal */
    trek_served_copy_fn copy;
    trek_served_take_fn take;
    void *arg;               /* of both */
} trek_served_opts;
/* Connects all processes, as a collective of comm, which has a control channel and is borrowed. Fails with MEMORY, COMM, PEER,
 * TIMEOUT, or with errors of the engine. */
trek_status trek_served_new(trek_comm *comm, const trek_served_opts *opts, trek_served **made);
/* Stops answering, when all others have stopped reading, too: they have called it, have ended, or wait for this process in a call
 * of comm. */
void trek_served_free(trek_served **served);

/* Reads from another process. Of memory with another version than *version it gets only that version, which is then in *version,
 * and what `to` contains is undefined. Fails with PEER if that process has ended, or has stopped answering. */
trek_status trek_served_read(trek_served *served, int process, const trek_served_ask *ask, void *to, uint64_t *version);
/* Gives bytes to another process, and returns when it has taken them. Fails as trek_served_read. */
trek_status trek_served_give(trek_served *served, int process, const trek_served_ask *ask, const void *bytes);

#endif
