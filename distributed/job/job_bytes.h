/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers bytes of different lengths from every process at every process. */
#ifndef TREK_DISTRIBUTED_JOB_JOB_BYTES_H
#define TREK_DISTRIBUTED_JOB_JOB_BYTES_H

#include "distributed/comm/comm_internal.h"

/* The bytes of process p are at bytes + p * room. */
typedef struct job_bytes {
    char *bytes;
    size_t room;
    int64_t *lengths;
} job_bytes;

/* Gathers, as a collective that a process that has failed (own is not OK) must call, too; then all fail. mine NULL:
 * nothing if length is 0, otherwise there was no memory. what: e.g. "what it has recorded". */
trek_status trek_job_bytes_gather(trek_comm *comm, const char *mine, int64_t length, trek_status own, const char *what,
                                  job_bytes *all);
void trek_job_bytes_clear(job_bytes *all);

/* trek_metric_join (distributed/ddp.h) in this group, whoever dies. */
struct trek_metric *trek_job_join_metric(trek_comm *comm, struct trek_metric *metric);

#endif
