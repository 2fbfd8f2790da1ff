/* SPDX-License-Identifier: Apache-2.0 */
/* Meetings of ranks over the control channel: their notes, with the data of small calls, are one gather. */
#include <string.h>

#include "distributed/comm/async/async_internal.h"

/* Called while the channel's lock is held. */
static void gathered(void *arg)
{
    trek_async_comm *comm = arg;
    trek_async_comm_wake(comm);
    trek_async_thread_ring(comm->service);
}

/* Describes calls whose data differ in size. A note from another process may contain anything. */
static void differ(int a, const void *part_a, int b, const void *part_b, char *text, size_t size)
{
    trek_call_note notes[2];
    memcpy(&notes[0], a < b ? part_a : part_b, sizeof notes[0]);
    memcpy(&notes[1], a < b ? part_b : part_a, sizeof notes[1]);
    for (int k = 0; k < 2; k++)
        if (notes[k].kind < 0 || notes[k].kind > TREK_COMM_BARRIER || notes[k].op < 0 || notes[k].op > TREK_REDUCTION_PROD ||
            notes[k].dtype < 0 || notes[k].dtype > TREK_BOOL)
            return;
    trek_comm_notes_differ(a < b ? a : b, &notes[0], a < b ? b : a, &notes[1], text, size);
}

void trek_async_channel_use(trek_async_comm *comm, trek_control *control)
{
    comm->channel = control;
    trek_control_set_gatherer(control, &(trek_control_gatherer){ .gathered = gathered, .differ = differ,
                                                                 .least = sizeof(trek_call_note), .arg = comm });
}

void trek_async_channel_leave(trek_async_comm *comm)
{
    if (comm->channel)
        trek_control_set_gatherer(comm->channel, NULL);
}

void trek_async_channel_send(trek_async_comm *comm, size_t bytes)
{
    trek_control_gather_begin(comm->channel, comm->mine, bytes);
}

bool trek_async_channel_test(trek_async_comm *comm, size_t bytes)
{
    return trek_control_gather_test(comm->channel, bytes, comm->notes, comm->stride);
}
