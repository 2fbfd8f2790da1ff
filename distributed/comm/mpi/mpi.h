/* SPDX-License-Identifier: Apache-2.0 */
/* The MPI engine: processes that an MPI launcher has started, host memory, through the plug-in libtrek-mpi.
 *
 * If the program has not initialised MPI, the communication thread (async/) does, and finalises it when the program
 * ends in order (all handles freed, no group ended by an error). If the program has, it must have asked for
 * MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE, and finalises MPI itself; with MPI_THREAD_SERIALIZED it must not call
 * MPI while a call of trek is under way. Callers carry their calls out themselves, one thread at a time, so that
 * MPI_THREAD_SERIALIZED is enough. MPI's collectives cannot be cancelled: after an error, MPI keeps the engine's
 * memory.
 *
 * Small calls combine in rank order, others as MPI_Iallreduce does for their size. The bits are the same on all
 * ranks. From run to run they are the same as far as the MPI library promises it for the same number and placement of
 * processes (Open MPI's non-blocking reductions do). Started calls progress while the caller computes. */
#ifndef TREK_DISTRIBUTED_COMM_MPI_MPI_H
#define TREK_DISTRIBUTED_COMM_MPI_MPI_H

#include "distributed/comm/comm_internal.h"

/* Returns whether libtrek-mpi is available and an MPI launcher has started this process; otherwise `why` gets the
 * reason. Starts nothing. */
bool trek_comm_mpi_there(char *why, size_t size);
/* Makes the group of all processes of MPI_COMM_WORLD. All of them must make their groups in the same order. control
 * is borrowed and must outlive the handle; its ranks must agree with MPI's, and its end ends the group. control NULL:
 * a lost rank is found by the deadline only. Fails with UNSUPPORTED (no plug-in; MPI was finalised, or initialised
 * with too low a level), COMM, TIMEOUT or MEMORY. */
trek_status trek_comm_mpi_new(struct trek_control *control, trek_comm **comm);
/* Makes the group of the processes of control, which are some of MPI_COMM_WORLD, in the order of control. No other
 * process takes part. It waits for all of them as MPI_Comm_create_group does, on the thread that serves all groups. */
trek_status trek_comm_mpi_new_part(struct trek_control *control, trek_comm **comm);
/* Sets sizes for handles that are made from here on, for tests; 0 stands for the default. piece: bytes of a piece
 * (TREK_MPI_PIECE in the environment). direct: the largest world in which ranks meet by messages to each other
 * instead of by a reduction. */
void trek_comm_mpi_set_sizes(size_t piece, int direct);

#endif
