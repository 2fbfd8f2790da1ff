/* SPDX-License-Identifier: Apache-2.0 */
/* The thread's place among the ranks, and the trace sink. */
#include "tensor/place.h"

#include <stdlib.h>
#include <time.h>

#include "tensor/status.h"
#include "tensor/thread_end.h"
#include "tensor/trace.h"

_Thread_local trek_place *trek_place_mine;
trek_place_job trek_job_here = { .processes = 1 };

_Atomic(const trek_trace_sink *) trek_trace;

static void place_end(void)
{
    free(trek_place_mine);
    trek_place_mine = NULL;
}

/* Plain memory: a place outlives any allocator, and out of memory is no reason to have none. */
trek_place *trek_place_make(void)
{
    static const trek_place alone = { .world = 1, .rows = -1, .global_rows = -1, .batch_rows = -1 };
    static trek_place spare = { .world = 1, .rows = -1, .global_rows = -1, .batch_rows = -1 };
    trek_place *place = malloc(sizeof *place);
    if (!place) {
        trek_fail(TREK_ERR_MEMORY, "out of memory: %zu bytes for the thread's place were asked for", sizeof *place);
        return &spare;
    }
    *place = alone;
    trek_place_mine = place;
    trek_thread_at_end(TREK_THREAD_PLACE, place_end);
    return place;
}

int64_t trek_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t trek_trace_entered(const char *name)
{
    const trek_trace_sink *sink = atomic_load_explicit(&trek_trace, memory_order_acquire);
    if (sink && sink->enter)
        sink->enter(name);
    return trek_clock_ns();
}

void trek_trace_end(const char *name, int64_t start_ns, int64_t detail)
{
    const trek_trace_sink *sink = atomic_load_explicit(&trek_trace, memory_order_acquire);
    if (sink && start_ns && sink->leave)
        sink->leave(name);
    if (sink && start_ns && sink->span)
        sink->span(name, trek_place_here.rank, start_ns, trek_clock_ns(), detail, sink->arg);
}

void trek_trace_event(const char *name, double value)
{
    const trek_trace_sink *sink = atomic_load_explicit(&trek_trace, memory_order_acquire);
    if (sink && sink->event)
        sink->event(name, trek_place_here.rank, trek_clock_ns(), value, sink->arg);
}
