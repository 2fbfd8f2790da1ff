/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory of ranks on distinct devices: collectives by the devices' own
 * library (tensor/device_comm.h). The group's engine still sees every call: ranks
 * meet on the host first, so that calls that differ, ranks that do not come and
 * aborts are found before a device waits for another. Internal. */
#ifndef TREK_DISTRIBUTED_COMM_NCCL_H
#define TREK_DISTRIBUTED_COMM_NCCL_H

#include "distributed/comm/comm_internal.h"
#include "tensor/backend.h"

/* For the n handles of one group, from one thread, before any is used. OK and nothing attached where the devices
 * are not distinct or no library is there (calls are then staged through the host); the same, with a warning logged, where the
 * library fails. TREK_NCCL=0: never; TREK_NCCL=1: for a single rank, too. */
trek_status trek_comm_nccl_attach(trek_comm **comms, const trek_device *devices, int n);
/* The same for a handle between processes, each with its device; a collective call of all of them. The handle's device is
 * this one from here on. OK and nothing attached, on all processes alike, where one has a CPU, another kind of device, no
 * library, or the same device as another (found by the devices' ids and named); calls are then staged through the host.
 * The end of the group ends the waiting. Errors: those of a collective; DEVICE. */
trek_status trek_comm_nccl_join(trek_comm *comm, trek_device device);
/* A call that the library takes, for ranks that have met for it already: puts the work on the communication stream,
 * behind what the thread's queue holds by then. */
trek_status trek_comm_nccl_give(trek_comm *comm, const trek_comm_call *call);
/* Between processes: waits for what the device was given, captured work too; where another process does not come to its part,
 * this one's library is aborted, rather than waited for in vain. */
void trek_comm_nccl_drain(trek_comm *comm);
/* Memory that many calls will use: faster where the library has a use for it. A buffer is given up before it is freed. */
trek_status trek_comm_nccl_register(trek_comm *comm, void *data, size_t bytes);
void trek_comm_nccl_forget(trek_comm *comm, void *data);

#endif
