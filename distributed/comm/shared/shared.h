/* SPDX-License-Identifier: Apache-2.0 */
/* The engine between processes of one machine: shared memory. */
#ifndef TREK_DISTRIBUTED_COMM_SHARED_SHARED_H
#define TREK_DISTRIBUTED_COMM_SHARED_SHARED_H

#include "distributed/comm/comm_internal.h"
#include "distributed/control/control.h"

/* Makes a communicator among the processes of the channel, which it borrows and which must outlive it. All of them
 * must call it. If the processes cannot share memory (other machines, name spaces or users), all get UNSUPPORTED.
 * Fails also with COMM, TIMEOUT, PEER or MEMORY. */
trek_status trek_comm_shared_new(trek_control *control, trek_comm **comm);

/* Returns how many reductions of this handle went directly between the processes' own memory instead of through the
 * segment. */
uint64_t trek_comm_shared_direct(const trek_comm *comm);

#endif
