/* SPDX-License-Identifier: Apache-2.0 */
/* The list of all ranks' devices. */
#include "distributed/job/rank_devices.h"

#include <stdio.h>
#include <string.h>

#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

/* What is not known of a device is 0 or "". Devices that are not known are equal. */
struct rank_device {
    char name[128];
    int64_t memory;
    int32_t type, multiprocessors;
};

static void look_at(trek_device device, struct rank_device *to)
{
    trek_device_info info;
    *to = (struct rank_device){ .type = (int32_t)device.type };
    if (trek_device_info_get(device, &info) != TREK_OK) {
        trek_error_clear();
        return;
    }
    snprintf(to->name, sizeof to->name, "%s", info.name);
    to->memory = info.memory;
    to->multiprocessors = device.type == TREK_CPU ? 0 : info.multiprocessors; /* ranks share the cores */
}

trek_status trek_ranks_list_devices(trek_job *job, const trek_ranks *ranks)
{
    size_t most = (size_t)job->ranks_most;
    struct rank_device *own = trek_calloc(most, sizeof *own);
    struct rank_device *all = trek_calloc((size_t)job->processes * most, sizeof *all);
    job->devices = trek_calloc((size_t)job->world_size, sizeof *job->devices);
    trek_status status = own && all && job->devices ? TREK_OK : trek_error_status();
    for (int r = 0; r < job->local_ranks && status == TREK_OK; r++)
        look_at(trek_ranks_device(ranks, r), &own[r]);
    if (status == TREK_OK)
        status = trek_job_gather(job, own, most * sizeof *own, all);
    for (int p = 0, at = 0; p < job->processes && status == TREK_OK; p++) {
        int n = job->process_ranks[p];
        memcpy(job->devices + at, all + (size_t)p * most, (size_t)n * sizeof *own);
        at += n;
    }
    trek_free(own);
    trek_free(all);
    return status;
}

static bool differ(const struct rank_device *a, const struct rank_device *b)
{
    return a->type != b->type || a->multiprocessors != b->multiprocessors || strcmp(a->name, b->name) != 0;
}

bool trek_ranks_devices_differ(const trek_job *job, int first, int n)
{
    for (int r = first + 1; r < first + n; r++)
        if (differ(&job->devices[first], &job->devices[r]))
            return true;
    return false;
}

int64_t trek_ranks_device_memory(const trek_job *job, int rank) { return job->devices[rank].memory; }

void trek_ranks_describe_devices(const trek_job *job, trek_text *text)
{
    for (int first = 0, end; first < job->world_size; first = end) {
        const struct rank_device *d = &job->devices[first];
        for (end = first + 1; end < job->world_size && !differ(d, &job->devices[end]) && d->memory == job->devices[end].memory;
             end++)
            ;
        trek_text_format(text, "%srank%s %d", first > 0 ? ", " : "", end > first + 1 ? "s" : "", first);
        if (end > first + 1)
            trek_text_format(text, "%s%d", end > first + 2 ? " to " : " and ", end - 1);
        trek_text_format(text, " on %s (%.1f GiB)",
                         d->name[0]            ? d->name
                         : d->type == TREK_CPU ? "a CPU"
                                               : "a GPU",
                         (double)d->memory / (1 << 30));
    }
}
