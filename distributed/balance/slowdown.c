/* SPDX-License-Identifier: Apache-2.0 */
/* Time that passes on the calling thread, by the monotonic clock. */
#include "distributed/balance/slowdown_internal.h"

#include <math.h>

#include "distributed/system/system.h"

double trek_slowdown_factor(const trek_slowdown *slowdown, int64_t batch)
{
    if (!slowdown)
        return 1;
    double factor = slowdown->factor;
    for (int k = 0; slowdown->schedule && k < slowdown->points && slowdown->schedule[k].from_batch <= batch; k++)
        factor = slowdown->schedule[k].factor;
    return factor > 1 && !isinf(factor) ? factor : 1;
}

void trek_slowdown_apply(const trek_slowdown *slowdown, int64_t batch, int64_t compute_ns)
{
    static const double hour_ns = 3600e9;
    int64_t start = trek_now_ns();
    double extra = compute_ns > 0 ? (trek_slowdown_factor(slowdown, batch) - 1) * (double)compute_ns : 0;
    if (!(extra > 0))
        return;
    int64_t until = start + (int64_t)fmin(extra, hour_ns);
    if (slowdown->sleep)
        trek_sleep_until_ns(until);
    else
        trek_busy_until_ns(until);
}
