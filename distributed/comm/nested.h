/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator of all ranks of a job whose processes have several ranks each. It is made of two others: that of the ranks of a
 * process, which are threads, and that of the processes, which only the first rank of each calls. Ranks are numbered process by
 * process.
 *
 * A sum is made in two steps: in each process in the order of its ranks, then in the order of processes. So it has the bits of a
 * job that adds up its ranks' gradients before processes reduce them. Memory that a call is given may be used as room on every
 * rank, whether or not the rank gets a result. */
#ifndef TREK_DISTRIBUTED_COMM_NESTED_H
#define TREK_DISTRIBUTED_COMM_NESTED_H

#include "distributed/comm/comm_internal.h"

/* Makes the handles of this process's ranks. local: [counts[own process]] of its ranks; counts: [processes] the ranks of each.
 * Both communicators are borrowed, and are used in the order of the calls. Fails with MEMORY; then nothing is made. */
trek_status trek_comm_nested(trek_comm *const *local, trek_comm *between, const int *counts, trek_comm **made);
/* Returns the control channel of the processes, whose end ends the group; NULL: they have none, or the communicator is another.
 */
struct trek_control *trek_comm_nested_control(const trek_comm *comm);
/* Returns the process of a rank, and in *local its number there. */
int trek_comm_nested_place(const trek_comm *comm, int rank, int *local);

#endif
