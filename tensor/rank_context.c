/* SPDX-License-Identifier: Apache-2.0 */
/* The calling thread's rank context, and the trace sink. */
#include "tensor/rank_context.h"

#include <stdlib.h>
#include <time.h>

#include "tensor/status.h"
#include "tensor/thread_end.h"
#include "tensor/trace.h"

_Thread_local trek_rank_context *trek_rank_context_mine;
trek_job_context trek_job_here = { .processes = 1 };

_Atomic(const trek_trace_sink *) trek_trace;

static void place_end(void)
{
    free(trek_rank_context_mine);
    trek_rank_context_mine = NULL;
}

/* Plain memory: a place outlives any allocator, and out of memory is no reason to have none. */
trek_rank_context *trek_rank_context_make(void)
{
    static const trek_rank_context alone = { .world = 1, .rows = -1, .global_rows = -1, .batch_rows = -1 };
    static trek_rank_context spare = { .world = 1, .rows = -1, .global_rows = -1, .batch_rows = -1 };
    trek_rank_context *context = malloc(sizeof *context);
    if (!context) {
        trek_fail(TREK_ERR_MEMORY, "out of memory: %zu bytes for the thread's rank context were asked for", sizeof *context);
        return &spare;
    }
    *context = alone;
    trek_rank_context_mine = context;
    trek_thread_at_end(TREK_THREAD_PLACE, place_end);
    return context;
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
        sink->span(name, trek_rank_here.rank, start_ns, trek_clock_ns(), detail, sink->arg);
}

void trek_trace_event(const char *name, double value)
{
    const trek_trace_sink *sink = atomic_load_explicit(&trek_trace, memory_order_acquire);
    if (sink && sink->event)
        sink->event(name, trek_rank_here.rank, trek_clock_ns(), value, sink->arg);
}
