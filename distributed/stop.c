/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to stop: two flags. */
#include "distributed/stop_internal.h"

#include <stdatomic.h>

#include "tensor/rank_context.h"

static atomic_int wanted, agreed; /* lock-free: a signal handler may set them */

void trek_request_stop(void) { atomic_store(&wanted, 1); }
bool trek_stop_wanted(void) { return atomic_load(&wanted) != 0; }
void trek_stop_agree(void) { atomic_store(&agreed, 1); }

bool trek_stop_requested(void)
{
    return atomic_load(&agreed) != 0 || (trek_job_here.processes <= 1 && atomic_load(&wanted) != 0);
}

void trek_stop_clear(void)
{
    atomic_store(&wanted, 0);
    atomic_store(&agreed, 0);
}
