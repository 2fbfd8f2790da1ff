/* SPDX-License-Identifier: Apache-2.0 */
/* The MPI engine: processes that an MPI launcher has started, host memory, by way
 * of the plug-in libtrek-mpi.
 *
 * The communication thread (async/) initialises MPI where the program has not, and then
 * finalises it when the program ends in order (all handles freed, no group ended by an
 * error); what the program initialised is left to the program, which must have asked for
 * MPI_THREAD_SERIALIZED (it then makes no MPI call of its own while a call of trek's is
 * under way) or MPI_THREAD_MULTIPLE. Callers carry their calls out themselves: one thread
 * at a time, MPI_THREAD_SERIALIZED is enough. MPI's collectives cannot be cancelled: after
 * an error, MPI keeps the engine's memory.
 *
 * Small calls combine in rank order; others as MPI_Iallreduce does for their
 * size: the same bits on all ranks; the same from run to run as far as the MPI
 * library promises it for the same number and placement of processes (Open MPI's
 * non-blocking reductions do). Started calls progress while the caller computes. */
#ifndef TREK_DISTRIBUTED_COMM_MPI_MPI_H
#define TREK_DISTRIBUTED_COMM_MPI_MPI_H

#include "distributed/comm/comm_internal.h"

/* Whether libtrek-mpi is there and an MPI launcher has started this process; why gets the reason. Starts nothing. */
bool trek_comm_mpi_launched(char *why, size_t size);
/* The group of all processes of MPI_COMM_WORLD; all of them make their groups in the same order. With a control channel
 * (borrowed; it must outlive the handle) the ranks of both must agree, and its end is the group's end; NULL: without, a
 * lost rank is found by the deadline alone. UNSUPPORTED: no plug-in, MPI finalised or initialised with too low a level;
 * COMM, TIMEOUT, MEMORY. */
trek_status trek_comm_mpi_new(struct trek_control *control, trek_comm **comm);
/* The group of the processes of control alone, which are some of MPI_COMM_WORLD, in the order of control: no other takes part. As
 * MPI_Comm_create_group it waits for all of them, on the thread that serves all groups. */
trek_status trek_comm_mpi_new_part(struct trek_control *control, trek_comm **comm);
/* Sizes for handles made from here on, for tests; 0: the default. piece: bytes of a piece (TREK_MPI_PIECE in the environment);
 * direct: the largest world in which ranks meet by messages to each other instead of a reduction. */
void trek_comm_mpi_set_sizes(size_t piece, int direct);

#endif
