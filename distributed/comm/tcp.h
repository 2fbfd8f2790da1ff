/* SPDX-License-Identifier: Apache-2.0 */
/* The engine that needs nothing but a network: everything goes through process 0. Slow, for machines without MPI. Internal. */
#ifndef TREK_DISTRIBUTED_COMM_TCP_H
#define TREK_DISTRIBUTED_COMM_TCP_H

#include "distributed/control/control.h"

/* A communicator among the processes of the channel, which it borrows and which must outlive it. A meeting of all.
 * COMM, TIMEOUT, PEER, MEMORY. */
trek_status trek_comm_tcp_new(trek_control *control, trek_comm **comm);

#endif
