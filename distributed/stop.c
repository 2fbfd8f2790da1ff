/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to stop: two flags. */
#include "distributed/stop_internal.h"

#include <stdatomic.h>

#include "distributed/system/system.h"
#include "tensor/rank_context.h"

typedef struct stop_flags {
    atomic_int wanted, agreed; /* lock-free: a signal handler may set them */
} stop_flags;

TREK_PER_PROCESS(stop_flags, flags, { 0 });

void trek_request_stop(void) { atomic_store(&flags()->wanted, 1); }
bool trek_stop_wanted(void) { return atomic_load(&flags()->wanted) != 0; }
void trek_stop_agree(void) { atomic_store(&flags()->agreed, 1); }

bool trek_stop_requested(void)
{
    return atomic_load(&flags()->agreed) != 0 || (trek_job_here.processes <= 1 && atomic_load(&flags()->wanted) != 0);
}

void trek_stop_clear(void)
{
    atomic_store(&flags()->wanted, 0);
    atomic_store(&flags()->agreed, 0);
}
