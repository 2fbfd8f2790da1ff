/* SPDX-License-Identifier: Apache-2.0 */
/* The engine between processes of one machine: shared memory. Internal. */
#ifndef TREK_DISTRIBUTED_COMM_SHARED_SHARED_H
#define TREK_DISTRIBUTED_COMM_SHARED_SHARED_H

#include "distributed/comm/comm_internal.h"
#include "distributed/control/control.h"

/* A communicator among the processes of the channel, which it borrows and which must outlive it. A meeting of all.
 * Where the processes cannot share memory (other machines, name spaces, users), all get UNSUPPORTED; COMM, TIMEOUT,
 * PEER, MEMORY. */
trek_status trek_comm_shared_new(trek_control *control, trek_comm **comm);

/* How many reductions of this handle went straight between the processes' own memory, not through the segment. */
uint64_t trek_comm_shared_direct(const trek_comm *comm);

#endif
