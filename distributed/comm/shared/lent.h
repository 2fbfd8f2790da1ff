/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the processes of one machine read from each other, whatever their engine is. A process reads when it wants to, and
 * the others take no part in it: they need not come to the same place, may compute, and may have ended.
 *
 * The pages of each process (tensor/pages.h) move to a file in memory, which the others map. Nothing is copied for that, and what
 * a process gives back is given back.
 *
 * Lent memory changes in updates only. A process can read from another one only if both have made the same number of updates, and
 * the other one is not in the middle of one. So it never gets values of two steps. Reading from a process that has died in an
 * update fails. */
#ifndef TREK_DISTRIBUTED_COMM_SHARED_LENT_H
#define TREK_DISTRIBUTED_COMM_SHARED_LENT_H

#include "distributed/comm/comm_internal.h"
#include "tensor/pages.h"

typedef struct trek_lent trek_lent;

/* Returns whether the processes of a communicator are on one machine. */
bool trek_lent_is_possible(const trek_comm *comm);
/* Lends n pieces of memory, of the same sizes in all processes. It is a collective. `what` begins messages; a literal. Fails on
 * all processes: with MEMORY, with UNSUPPORTED if one cannot map another's memory, or with errors of the engine. */
trek_status trek_lent_new(trek_comm *comm, trek_pages *const *pages, int n, const char *what, trek_lent **made);
/* Stops lending: the memory of this process is its own again. The others can still read what it contained then. Fails with MEMORY
 * if there is not enough for that. */
trek_status trek_lent_free(trek_lent **lent);

/* Copies bytes of a process's piece k. Fails with PEER if that process has made other updates. */
trek_status trek_lent_read(const trek_lent *lent, int process, int k, size_t offset, size_t bytes, void *to);
/* Begin and end an update. */
void trek_lent_begin_update(trek_lent *lent);
void trek_lent_end_update(trek_lent *lent);

/* From here on the others read what is there now, whatever this process writes. Only what has memory is kept for them. Fails with
 * MEMORY. */
trek_status trek_lent_withhold(trek_lent *lent);
/* Lends the present contents again. Fails with MEMORY if the system has none for its tables. */
trek_status trek_lent_show(trek_lent *lent);

#endif
