/* SPDX-License-Identifier: Apache-2.0 */
/* Orders work on GPUs between threads. Every thread has its own stream on a GPU. What the caller of a group has given
 * to its streams runs before what the ranks give to theirs, and that before what the caller gives next. On CPUs there
 * is nothing to do. */
#ifndef TREK_DISTRIBUTED_TEAM_HANDOVER_H
#define TREK_DISTRIBUTED_TEAM_HANDOVER_H

#include "tensor/backend.h"

typedef struct trek_handover {
    int n;                 /* distinct GPUs of the group */
    trek_device *devices;
    trek_event **given;    /* [n] the caller's streams */
} trek_handover;

trek_status trek_handover_start(trek_handover *handover, const trek_device *devices, int n);
void trek_handover_end(trek_handover *handover);
/* Returns whether there is work on GPUs to order: those of the group, or others, where a loader may have put a batch. */
static inline bool trek_handover_is_needed(const trek_handover *handover)
{
    bool gpus = handover->n > 0;
    for (int type = 0; type < TREK_DEVICE_TYPE_COUNT; type++)
        gpus |= type != TREK_CPU && trek_backends[type];
    return gpus;
}
/* Called by the caller before a run. Marks what it has given to the GPUs, and waits for GPUs outside the group. Sets an error if
 * a device fails. */
void trek_handover_give(trek_handover *handover);
/* Called by a rank at its beginning: its stream continues after the caller's. */
trek_status trek_handover_take(const trek_handover *handover, trek_device device);
/* Called by a rank at its end. */
void trek_handover_mark(trek_event *done, trek_device device);
/* Called by the caller after a run: its streams continue after the rank's. */
void trek_handover_join(const trek_handover *handover, trek_event *done, trek_device device);

#endif
