/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of a job's ranks, as all its processes know them. Whether they are unequal is decided once, from the
 * same list, because shares and windows depend on it. */
#ifndef TREK_DISTRIBUTED_JOB_RANK_DEVICES_H
#define TREK_DISTRIBUTED_JOB_RANK_DEVICES_H

#include "distributed/job/job.h"
#include "distributed/ranks_internal.h"
#include "nn/text.h"

/* Makes the list when the processes have met. A collective. */
trek_status trek_ranks_list_devices(trek_job *job, const trek_ranks *ranks);
/* Returns whether the devices of ranks [first, first + n) differ: in kind, in model, or in the part of a GPU that
 * they are. */
bool trek_ranks_devices_differ(const trek_job *job, int first, int n);
/* Returns the bytes of memory of a rank's device, or 0 if that is not known. */
int64_t trek_ranks_device_memory(const trek_job *job, int rank);
/* Writes e.g. "ranks 0 and 1 on NVIDIA A100 (40.0 GiB), rank 2 on ...". */
void trek_ranks_describe_devices(const trek_job *job, trek_text *text);

#endif
