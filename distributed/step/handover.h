/* SPDX-License-Identifier: Apache-2.0 */
/* Handing work on GPUs from thread to thread. Every thread has a stream of its
 * own on a GPU; what the caller of a group has given to its streams comes before
 * what the ranks give to theirs, and that before what the caller does next. On
 * CPUs there is nothing to do. */
#ifndef TREK_DISTRIBUTED_STEP_HANDOVER_H
#define TREK_DISTRIBUTED_STEP_HANDOVER_H

#include "tensor/backend.h"

typedef struct trek_handover {
    int n;                 /* distinct GPUs of the group */
    trek_device *devices;
    trek_event **given;    /* [n] the caller's streams */
} trek_handover;

trek_status trek_handover_start(trek_handover *handover, const trek_device *devices, int n);
void trek_handover_end(trek_handover *handover);
/* On the caller, before a run: marks what it has given to the GPUs, and waits for GPUs that are not the group's, where a
 * loader may have put a batch. Sets an error if a device fails. */
void trek_handover_give(trek_handover *handover);
/* On a rank, first thing: its stream goes on behind the caller's. */
trek_status trek_handover_take(const trek_handover *handover, trek_device device);
/* On a rank, last thing. */
void trek_handover_mark(trek_event *done, trek_device device);
/* On the caller, after a run: its streams go on behind the rank's. */
void trek_handover_join(const trek_handover *handover, trek_event *done, trek_device device);

#endif
