/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ranges.h"

#include <stdlib.h>
#include <string.h>

#include "tensor/backend.h"
#include "tensor/environment.h"
#include "tensor/thread_end.h"

enum { DEPTH = 32 };

/* Of the calling thread; NULL: it has opened none. */
static _Thread_local struct ranges {
    int n_open;
    const char *open[DEPTH];
} *ranges_here;

static void ranges_end(void)
{
    free(ranges_here);
    ranges_here = NULL;
}

/* Made when it is needed. NULL if there is no memory, which is not an error for a profiler's marks. */
static struct ranges *ranges_mine(void)
{
    if (ranges_here)
        return ranges_here;
    ranges_here = calloc(1, sizeof *ranges_here);
    if (ranges_here)
        trek_thread_at_end(TREK_THREAD_RANGES, ranges_end);
    return ranges_here;
}

const trek_trace_sink trek_ranges_sink = { .enter = trek_ranges_enter, .leave = trek_ranges_leave };

static bool has_ranges(const trek_backend *backend) { return backend && backend->range_begin && backend->range_end; }

bool trek_ranges_available(void) { return has_ranges(trek_backend_find(TREK_CUDA, NULL, 0)); }

bool trek_ranges_wanted(void)
{
    return trek_environment_number("TREK_NVTX", 0, 1, 0) == 1 && has_ranges(trek_backends[TREK_CUDA]);
}

void trek_ranges_start(void)
{
    const trek_trace_sink *nobody = NULL;
    if (trek_ranges_wanted())
        atomic_compare_exchange_strong(&trek_trace_now, &nobody, &trek_ranges_sink);
}

void trek_ranges_enter(const char *name)
{
    struct ranges *r = has_ranges(trek_backends[TREK_CUDA]) ? ranges_mine() : NULL;
    if (!r || r->n_open == DEPTH)
        return;
    r->open[r->n_open++] = name;
    trek_backends[TREK_CUDA]->range_begin(name);
}

void trek_ranges_leave(const char *name)
{
    struct ranges *r = ranges_here;
    int k = r ? r->n_open : 0;
    while (k > 0 && strcmp(r->open[k - 1], name) != 0)
        k--;
    for (; k > 0 && r->n_open >= k; r->n_open--) /* those inside it that were never ended, and itself */
        trek_backends[TREK_CUDA]->range_end();
}
