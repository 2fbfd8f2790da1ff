/* SPDX-License-Identifier: Apache-2.0 */
/* The Gloo engine: processes that a TCP network joins, host memory, by way of the
 * plug-in libtrek-gloo. What processes on several machines use without MPI.
 *
 * Every process connects to every other one, at the address that reaches process 0 or
 * that of the interface TREK_GLOO_INTERFACE; the control channel tells them their ports.
 * Calls are those of async/: meetings compare what the ranks are about to do, large data
 * move in pieces (TREK_GLOO_PIECE bytes in the environment; the same on all processes)
 * by Gloo's ring, or where they are small by halving and doubling. The bits are the same
 * on all ranks, and from run to run for the same number of processes.
 *
 * A connection that breaks ends the group with what the control channel knows of its
 * other side. Both ends of one prove who they are before it carries data (mesh.h). */
#ifndef TREK_DISTRIBUTED_COMM_GLOO_GLOO_H
#define TREK_DISTRIBUTED_COMM_GLOO_GLOO_H

#include "distributed/comm/comm_internal.h"

/* Whether libtrek-gloo is there; why gets the reason. Starts nothing. */
bool trek_comm_gloo_there(char *why, size_t size);
/* A communicator among the processes of the channel, which it borrows and which must outlive it. A meeting of all.
 * UNSUPPORTED: no plug-in, or no network that Gloo can use; ARGUMENT: TREK_GLOO_INTERFACE names none; COMM, TIMEOUT, PEER,
 * MEMORY. */
trek_status trek_comm_gloo_new(struct trek_control *control, trek_comm **comm);
/* Sizes for handles made from here on, for tests; 0: the default. As trek_comm_mpi_set_sizes. */
void trek_comm_gloo_set_sizes(size_t piece, int direct);

#endif
