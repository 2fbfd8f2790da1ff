/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers bytes of different lengths from every process at every process; also metrics, which are sent as bytes. */
#include "distributed/job/job_bytes.h"

#include <string.h>

#include "graph/metric_internal.h"

/* Gathers when the lengths are known and no process has failed. */
static trek_status gather(trek_comm *comm, const char *mine, int64_t length, job_bytes *all)
{
    int processes = trek_comm_world_size(comm);
    char *padded = trek_calloc(all->room, 1);
    all->bytes = trek_calloc((size_t)processes, all->room);
    trek_status status = padded && all->bytes ? TREK_OK : TREK_ERR_MEMORY;
    if (status == TREK_OK && length > 0)
        memcpy(padded, mine, (size_t)length);
    if (status != TREK_OK)
        trek_comm_abort(comm, "a process has no memory for what all have counted");
    else
        status = trek_comm_gather_bytes(comm, padded, all->room, all->bytes);
    trek_free(padded);
    return status;
}

trek_status trek_job_bytes_gather(trek_comm *comm, const char *mine, int64_t length, trek_status own, const char *what,
                                  job_bytes *all)
{
    int processes = trek_comm_world_size(comm);
    int64_t said = own != TREK_OK || (length > 0 && !mine) ? -1 : length, most = 0;
    all->lengths = trek_calloc((size_t)processes, sizeof *all->lengths);
    if (!all->lengths) {
        trek_comm_abort(comm, "a process has no memory for what all have counted");
        return TREK_ERR_MEMORY;
    }
    trek_status status = trek_comm_gather_bytes(comm, &said, sizeof said, all->lengths);
    if (own == TREK_OK && said < 0)
        own = TREK_ERR_MEMORY;
    for (int p = 0; status == TREK_OK && p < processes; p++) {
        most = all->lengths[p] > most ? all->lengths[p] : most;
        if (all->lengths[p] < 0 && own == TREK_OK)
            own = trek_fail(TREK_ERR_PEER, "job: process %d could not read %s", p, what);
    }
    if (status == TREK_OK)
        status = own; /* the same in all processes: one that has failed fails the others */
    all->room = (size_t)most;
    return status == TREK_OK && most > 0 ? gather(comm, mine, length, all) : status;
}

void trek_job_bytes_clear(job_bytes *all)
{
    trek_free(all->bytes);
    trek_free(all->lengths);
    *all = (job_bytes){ 0 };
}

/* --- metrics ------------------------------------------------------------------------------------ */

static trek_status add(trek_metric *sum, const char *bytes, int64_t length)
{
    trek_metric *one = trek_metric_unpack((const double *)(const void *)bytes, length / (int64_t)sizeof(double));
    trek_status status = one ? trek_metric_merge(sum, one) : trek_error_status();
    trek_metric_free(&one);
    return status;
}

trek_metric *trek_job_join_metric(trek_comm *comm, trek_metric *metric)
{
    if (!metric && !comm)
        return trek_fail_missing("metric_join", "metric"), NULL;
    job_bytes all = { 0 };
    int64_t n = 0;
    trek_status status = metric ? trek_error_status() : trek_fail_missing("metric_join", "metric");
    if (status == TREK_OK)
        status = trek_metric_read(metric);
    double *numbers = status == TREK_OK ? trek_metric_pack(metric, &n) : NULL;
    if (status == TREK_OK && !numbers)
        status = TREK_ERR_MEMORY;
    trek_metric *sum = status == TREK_OK ? trek_metric_make(&metric->form) : NULL;
    if (status == TREK_OK && !sum)
        status = TREK_ERR_MEMORY;
    int processes = comm ? trek_comm_world_size(comm) : 1;
    if (!comm)
        status = status == TREK_OK ? trek_metric_merge(sum, metric) : status;
    else
        status = trek_job_bytes_gather(comm, (const char *)numbers, n * (int64_t)sizeof *numbers, status, "its metric", &all);
    for (int p = 0; comm && status == TREK_OK && p < processes; p++)
        status = add(sum, all.bytes + (size_t)p * all.room, all.lengths[p]);
    trek_job_bytes_clear(&all);
    trek_free(numbers);
    if (status != TREK_OK)
        trek_metric_free(&sum);
    return sum;
}
