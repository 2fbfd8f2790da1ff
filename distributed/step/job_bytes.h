/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of every process, of different lengths, at every process. Internal. */
#ifndef TREK_DISTRIBUTED_STEP_JOB_BYTES_H
#define TREK_DISTRIBUTED_STEP_JOB_BYTES_H

#include "distributed/comm/comm_internal.h"

/* Process p's lie at bytes + p * room. */
typedef struct job_bytes {
    char *bytes;
    size_t room;
    int64_t *lengths;
} job_bytes;

/* A collective, for a process that has failed (own is not OK), too: all then fail. mine NULL: none where length is 0, else no
 * memory. what: "what it has recorded". */
trek_status trek_job_bytes_gather(trek_comm *comm, const char *mine, int64_t length, trek_status own, const char *what,
                                  job_bytes *all);
void trek_job_bytes_clear(job_bytes *all);

#endif
