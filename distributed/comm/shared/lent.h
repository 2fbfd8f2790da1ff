/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that processes read from each other, whatever their engine is. A process reads when it wants to, and the others take no
 * part in it: they need not come to the same place, may compute, and on the same machine may have ended.
 *
 * The pages of each process (tensor/pages.h) move to a file in memory, which the others of its machine map. Nothing is copied for
 * that, and what a process gives back is given back. For other machines a thread reads the file (comm/served.h).
 *
 * Others may also be let write (trek_lent_take_fn). On the same machine they do so themselves, one at a time for each rank, and
 * from other machines they give bytes to the thread.
 *
 * Otherwise lent memory changes in updates only. A rank can read from another one only if both have made the same number of
 * updates, and the other one is not in the middle of one. So it never gets values of two steps. Reading from a process that has
 * died in an update fails. */
#ifndef TREK_DISTRIBUTED_COMM_SHARED_LENT_H
#define TREK_DISTRIBUTED_COMM_SHARED_LENT_H

#include "distributed/comm/comm_internal.h"
#include "tensor/pages.h"

typedef struct trek_lent trek_lent;

/* Returns whether the processes of a communicator can reach each other's memory: they have a control channel. */
bool trek_lent_is_possible(const trek_comm *comm);
/* Does something with bytes that a rank of another machine has given to a rank of this process (its number here): `offset` and
 * `bytes` are as that one said. It is called by a thread of its own. Returns false if they make no sense. */
typedef bool (*trek_lent_take_fn)(void *arg, int rank, int k, uint64_t offset, void *data, uint64_t bytes);
/* Lends what the ranks of this process have, which are the next of all ranks, process by process: n pieces of memory of each, of
 * the same sizes on all ranks. pages: [ranks * n]. It is a collective of the processes. `what` begins messages; a literal. take,
 * arg: for what other machines give; NULL: they only read. Fails on all processes: with MEMORY, with UNSUPPORTED if one cannot
 * map another's memory on its machine, or with errors of the engine and of trek_served_new. */
typedef struct trek_lent_opts {
    trek_pages *const *pages;
    int ranks, n;
    const char *what;
    trek_lent_take_fn take;
    void *arg;
} trek_lent_opts;
trek_status trek_lent_new(trek_comm *comm, const trek_lent_opts *opts, trek_lent **made);
/* Stops lending: the memory of this process is its own again. On its machine the others can still read what it contained then;
 * for others see trek_served_free, which it waits for. Fails with MEMORY if there is not enough for that. */
trek_status trek_lent_free(trek_lent **lent);

/* What one rank reads of another. */
typedef struct trek_lent_piece {
    int reader;              /* one of this process */
    int rank, k;             /* of all ranks, and its piece */
    size_t offset, bytes;
} trek_lent_piece;
/* Copies it. Fails with PEER if that rank has made other updates than the reader, or as trek_served_read. */
trek_status trek_lent_read(const trek_lent *lent, const trek_lent_piece *piece, void *to);
/* Begin and end an update by a rank of this process. */
void trek_lent_begin_update(trek_lent *lent, int rank);
void trek_lent_end_update(trek_lent *lent, int rank);

/* Returns where piece k of a rank is for this process, or NULL if the rank is on another machine. */
char *trek_lent_memory(const trek_lent *lent, int rank, int k);
/* Lets one rank at a time, of all processes of the machine, change what a rank of it lends. Fails if the group ends meanwhile. */
trek_status trek_lent_lock(const trek_lent *lent, int rank);
void trek_lent_unlock(const trek_lent *lent, int rank);
/* Gives bytes to a rank of another machine, and waits until its process has taken them. Long ones are given in pieces, each but
 * the last of TREK_SERVED_PIECE bytes. Fails as trek_served_read. */
trek_status trek_lent_give(const trek_lent *lent, const trek_lent_piece *piece, const void *bytes);

/* From here on the others read what is there now, whatever this process writes to the pieces of its first rank. Only what has
 * memory is kept for them. Fails with MEMORY. */
trek_status trek_lent_withhold(trek_lent *lent);
/* Lends the present contents again. Fails with MEMORY if the system has none for its tables. */
trek_status trek_lent_show(trek_lent *lent);

#endif
