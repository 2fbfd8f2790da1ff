/* SPDX-License-Identifier: Apache-2.0 */
/* The shared engine: ranks that are processes of one machine. The protocol is that of the threads (meeting.c), and so
 * are the bits. But a process can die while it copies, so that the exit of a call can fail as its entrance can.
 *
 * The control channel finds out that a process has died, stopped or left. Its thread then ends the meeting and wakes
 * all. */
#include <string.h>

#include "distributed/comm/shared/shared_internal.h"
#include "tensor/memory_internal.h"

static trek_comm_shared *of(trek_comm *comm) { return (trek_comm_shared *)(void *)comm; }

static void release(trek_comm_shared *self)
{
    trek_shared_segment_leave(self);
    trek_free(self->window);
    trek_free(self->window_bytes);
    trek_meeting_tables_free(&self->met);
    trek_block_free(self);
}

/* The owner of the channel tells the others that this process leaves; those that share the memory see it at once. */
static void shared_leave(trek_comm *comm)
{
    trek_control_forget(comm->control, comm);
    trek_meeting_leave_group(&of(comm)->met);
}

static void shared_free(trek_comm *comm) { release(of(comm)); }

static void *shared_alloc(trek_comm *comm, size_t bytes) { return of(comm)->windows ? trek_shared_window_alloc(bytes) : NULL; }

static void shared_release(void *memory, void *arg)
{
    (void)arg;
    trek_shared_window_free(memory);
}

static const trek_comm_engine shared_engine = { .name = "shared", .adds_bf16 = true, .run = trek_meeting_run,
                                                .end = trek_meeting_end,
                                                .ended = trek_meeting_ended, .leave = shared_leave, .free = shared_free,
                                                .alloc = shared_alloc, .release = shared_release };

uint64_t trek_comm_shared_direct(const trek_comm *comm)
{
    return comm->engine == &shared_engine ? ((const trek_comm_shared *)(const void *)comm)->direct : 0;
}

trek_status trek_comm_shared_new(trek_control *control, trek_comm **comm)
{
    int world = trek_control_processes(control);
    trek_comm_shared *self = trek_block_alloc(sizeof *self);
    bool made = false;
    if (self) {
        memset(self, 0, sizeof *self);
        self->met = (trek_meeting_comm){ .base = { .engine = &shared_engine, .rank = trek_control_process(control),
                                                   .world = world, .device = trek_cpu(0), .deadline_ns = 600000000000,
                                                   .control = control },
                                         .show = trek_shared_show, .exchange = trek_shared_exchange };
        self->window = trek_calloc((size_t)world, sizeof *self->window);
        self->window_bytes = trek_calloc((size_t)world, sizeof *self->window_bytes);
        made = trek_meeting_tables_new(&self->met) == TREK_OK && self->window && self->window_bytes;
    }
    if (!made) {
        trek_control_end(control, TREK_ERR_MEMORY, trek_error()); /* the others would wait */
        if (self)
            release(self);
        return trek_error_status();
    }
    trek_status status = trek_shared_segment_join(self);
    if (status == TREK_OK && (status = trek_control_on_end(control, trek_meeting_end_with_channel, self)) != TREK_OK)
        trek_control_end(control, status, trek_error()); /* the others have joined */
    if (status != TREK_OK) {
        release(self);
        return status;
    }
    *comm = &self->met.base;
    return TREK_OK;
}
