/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/team/handover.h"

#include "tensor/memory_internal.h"
#include "tensor/rank_context.h"

static bool listed(const trek_handover *handover, trek_device device)
{
    for (int k = 0; k < handover->n; k++)
        if (trek_device_equal(handover->devices[k], device))
            return true;
    return false;
}

trek_status trek_handover_start(trek_handover *handover, const trek_device *devices, int n)
{
    *handover = (trek_handover){ 0 };
    int gpus = 0;
    for (int r = 0; devices && r < n; r++)
        gpus += devices[r].type != TREK_CPU;
    if (gpus == 0)
        return TREK_OK;
    handover->devices = trek_calloc((size_t)gpus, sizeof *handover->devices);
    handover->given = trek_calloc((size_t)gpus, sizeof *handover->given);
    trek_status status = handover->devices && handover->given ? TREK_OK : TREK_ERR_MEMORY;
    for (int r = 0; r < n && status == TREK_OK; r++) {
        if (devices[r].type == TREK_CPU || listed(handover, devices[r]))
            continue;
        const trek_backend *backend = trek_backend_get(devices[r].type);
        status = backend ? backend->event_new(devices[r], &handover->given[handover->n]) : trek_error_status();
        if (status == TREK_OK)
            handover->devices[handover->n++] = devices[r];
    }
    if (status != TREK_OK)
        trek_handover_end(handover);
    return status;
}

void trek_handover_end(trek_handover *handover)
{
    for (int k = 0; k < handover->n; k++)
        trek_backends[handover->devices[k].type]->event_free(handover->given[k]);
    trek_free(handover->given);
    trek_free(handover->devices);
    *handover = (trek_handover){ 0 };
}

void trek_handover_give(trek_handover *handover)
{
    for (int type = 0; type < TREK_DEVICE_TYPE_COUNT; type++)
        if (trek_backends[type] && trek_backends[type]->finish_streams) /* on GPUs that have no rank */
            trek_backends[type]->finish_streams(handover->devices, handover->n);
    for (int k = 0; k < handover->n; k++)
        trek_backends[handover->devices[k].type]->event_record(handover->given[k], NULL);
}

trek_status trek_handover_take(const trek_handover *handover, trek_device device)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < handover->n && status == TREK_OK; k++)
        status = device.type == TREK_CPU ? trek_backends[handover->devices[k].type]->event_sync(handover->given[k])
                                         : trek_backends[device.type]->stream_wait(device, NULL, handover->given[k]);
    return status;
}

void trek_handover_mark(trek_event *done, trek_device device) { trek_backends[device.type]->event_record(done, NULL); }

/* Makes the caller's streams on all of the group's GPUs wait: it may read what the rank wrote from any of them. */
void trek_handover_join(const trek_handover *handover, trek_event *done, trek_device device)
{
    for (int k = 0; k < handover->n; k++)
        trek_backends[device.type]->stream_wait(handover->devices[k], NULL, done);
}
