/* SPDX-License-Identifier: Apache-2.0 */
/* The calling thread's rank context. */
#include "tensor/rank_context.h"

#include <stdlib.h>

#include "tensor/status.h"
#include "tensor/thread_end.h"

_Thread_local trek_rank_context *trek_rank_context_mine;
trek_job_context trek_job_here = { .processes = 1 };

static void place_end(void)
{
    free(trek_rank_context_mine);
    trek_rank_context_mine = NULL;
}

/* Plain memory: the context outlives any allocator, and it must exist even without memory. */
trek_rank_context *trek_rank_context_make(void)
{
    static const trek_rank_context alone = { .world = 1, .device = { TREK_CPU, 0 }, .rows = -1, .global_rows = -1 };
    static trek_rank_context spare = { .world = 1, .device = { TREK_CPU, 0 }, .rows = -1, .global_rows = -1 };
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
