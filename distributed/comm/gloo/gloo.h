/* SPDX-License-Identifier: Apache-2.0 */
/* The Gloo engine: processes that a TCP network connects, host memory, through the plug-in libtrek-gloo. Processes on
 * several machines use it if they have no MPI.
 *
 * Every process connects to every other one, at the address by which it reaches process 0 or at that of the interface
 * TREK_GLOO_INTERFACE. The control channel distributes the ports. Calls are those of async/: meetings compare what
 * the ranks are about to do; large data move in pieces by Gloo's ring, or by halving and doubling if they are small.
 * The environment variable TREK_GLOO_PIECE sets the bytes of a piece; it must be the same on all processes. The bits
 * are the same on all ranks, and from run to run with the same number of processes.
 *
 * If a connection breaks, the group ends with what the control channel knows about its other end. Both ends of a
 * connection prove their identity before it carries data (mesh.h). */
#ifndef TREK_DISTRIBUTED_COMM_GLOO_GLOO_H
#define TREK_DISTRIBUTED_COMM_GLOO_GLOO_H

#include "distributed/comm/comm_internal.h"

/* Returns whether libtrek-gloo is available; otherwise `why` gets the reason. Starts nothing. */
bool trek_comm_gloo_there(char *why, size_t size);
/* Makes a communicator among the processes of the channel, which it borrows and which must outlive it. All of them
 * must call it. Fails with UNSUPPORTED (no plug-in, or no network that Gloo can use), ARGUMENT (TREK_GLOO_INTERFACE
 * does not name an interface), COMM, TIMEOUT, PEER or MEMORY. */
trek_status trek_comm_gloo_new(struct trek_control *control, trek_comm **comm);
/* Sets sizes for handles that are made from here on, for tests; 0 stands for the default. The arguments are those of
 * trek_comm_mpi_set_sizes. */
void trek_comm_gloo_set_sizes(size_t piece, int direct);

#endif
