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
/* Called by the caller before a run. Marks what it has given to the GPUs, and waits for GPUs outside the group, where
 * a loader may have put a batch. Sets an error if a device fails. */
void trek_handover_give(trek_handover *handover);
/* Called by a rank at its beginning: its stream continues after the caller's. */
trek_status trek_handover_take(const trek_handover *handover, trek_device device);
/* Called by a rank at its end. */
void trek_handover_mark(trek_event *done, trek_device device);
/* Called by the caller after a run: its streams continue after the rank's. */
void trek_handover_join(const trek_handover *handover, trek_event *done, trek_device device);

#endif
