/* SPDX-License-Identifier: Apache-2.0 */
/* The list of all ranks' devices. */
#include "distributed/step/rank_devices.h"

#include <stdio.h>
#include <string.h>

#include "tensor/memory.h"

/* What is not known of a device is 0 or "". Devices that are not known are equal. */
struct rank_device {
    char name[128];
    int64_t memory;
    int32_t type, multiprocessors;
};

static void look_at(trek_device device, rank_device *to)
{
    trek_device_info info;
    *to = (rank_device){ .type = (int32_t)device.type };
    if (trek_device_info_get(device, &info) != TREK_OK) {
        trek_error_clear();
        return;
    }
    snprintf(to->name, sizeof to->name, "%s", info.name);
    to->memory = info.memory;
    to->multiprocessors = device.type == TREK_CPU ? 0 : info.multiprocessors; /* ranks share the cores */
}

trek_status trek_ranks_list_devices(ranks_stepper *s)
{
    size_t most = (size_t)(s->comm ? s->ranks_most : s->local_ranks);
    rank_device *own = trek_calloc(most, sizeof *own);
    rank_device *all = s->comm ? trek_calloc((size_t)s->processes * most, sizeof *all) : NULL;
    s->devices = trek_calloc((size_t)s->world_size, sizeof *s->devices);
    trek_status status = own && s->devices && (all || !s->comm) ? TREK_OK : trek_error_status();
    for (int r = 0; r < s->local_ranks && status == TREK_OK; r++)
        look_at(trek_ranks_device(s->ranks, r), &own[r]);
    if (status == TREK_OK && s->comm)
        status = trek_comm_gather_bytes(s->comm, own, most * sizeof *own, all);
    for (int p = 0, at = 0; p < s->processes && status == TREK_OK; p++) {
        int n = s->comm ? s->process_ranks[p] : s->local_ranks;
        memcpy(s->devices + at, s->comm ? all + (size_t)p * most : own, (size_t)n * sizeof *own);
        at += n;
    }
    trek_free(own);
    trek_free(all);
    return status;
}

static bool differ(const rank_device *a, const rank_device *b)
{
    return a->type != b->type || a->multiprocessors != b->multiprocessors || strcmp(a->name, b->name) != 0;
}

bool trek_ranks_devices_differ(const ranks_stepper *s, int first, int n)
{
    for (int r = first + 1; r < first + n; r++)
        if (differ(&s->devices[first], &s->devices[r]))
            return true;
    return false;
}

void trek_ranks_describe_devices(const ranks_stepper *s, trek_text *text)
{
    for (int first = 0, end; first < s->world_size; first = end) {
        const rank_device *d = &s->devices[first];
        for (end = first + 1; end < s->world_size && !differ(d, &s->devices[end]) && d->memory == s->devices[end].memory; end++)
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
