/* SPDX-License-Identifier: Apache-2.0 */
#include "data/batch_here.h"

#include <stdlib.h>

#include "tensor/status.h"
#include "tensor/thread_end.h"

_Thread_local trek_batch_slot *trek_batch_here_mine;

static void end_slot(void)
{
    free(trek_batch_here_mine);
    trek_batch_here_mine = NULL;
}

/* Plain memory: it outlives any allocator, and it must exist even without memory. */
trek_batch_slot *trek_batch_here_make(void)
{
    static trek_batch_slot spare = { .rows = -1 };
    trek_batch_slot *slot = malloc(sizeof *slot);
    if (!slot) {
        trek_fail(TREK_ERR_MEMORY, "out of memory: %zu bytes for the thread's batch were asked for", sizeof *slot);
        return &spare;
    }
    *slot = (trek_batch_slot){ .rows = -1 };
    trek_batch_here_mine = slot;
    trek_thread_at_end(TREK_THREAD_BATCH, end_slot);
    return slot;
}
