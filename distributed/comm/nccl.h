/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives on device memory of ranks on distinct devices, carried out by the devices' own library
 * (tensor/device_comm.h). The group's engine still sees every call: ranks meet on the host first, so that calls that
 * differ, missing ranks and aborts are found before a device waits for another. */
#ifndef TREK_DISTRIBUTED_COMM_NCCL_H
#define TREK_DISTRIBUTED_COMM_NCCL_H

#include "distributed/comm/comm_internal.h"
#include "tensor/backend.h"

/* Attaches the library to the n handles of one group, from one thread, before any is used. Returns OK without
 * attaching if the devices are not distinct or no library is available; calls are then staged through the host. If
 * the library fails, it does the same and logs a warning. TREK_NCCL=0: never attach; TREK_NCCL=1: attach for a single
 * rank, too. */
trek_status trek_comm_nccl_attach(trek_comm **comms, const trek_device *devices, int n);
/* Attaches the library to a handle between processes, each with its device; all of them must call it. The handle's
 * device is this one from here on. Returns OK without attaching, on all processes alike, if one has a CPU, another
 * kind of device, no library, or the same device as another (found by the devices' ids, and named); calls are then
 * staged through the host. The end of the group ends the waiting. Fails with the errors of a collective, or with
 * DEVICE. */
trek_status trek_comm_nccl_join(trek_comm *comm, trek_device device);
/* Gives the library a call for which the ranks have already met: puts the work on the communication stream, behind
 * what the thread's queue holds by then. */
trek_status trek_comm_nccl_give(trek_comm *comm, const trek_comm_call *call);
/* Waits, between processes, for the work that the device was given, including captured work. If another process does
 * not come to its part, this one's library is aborted instead of being waited for in vain. */
void trek_comm_nccl_drain(trek_comm *comm);
/* Registers memory that many calls will use, and forgets it. Calls are faster if the library supports it. A buffer
 * must be forgotten before it is freed. */
trek_status trek_comm_nccl_register(trek_comm *comm, void *data, size_t bytes);
void trek_comm_nccl_forget(trek_comm *comm, void *data);

#endif
