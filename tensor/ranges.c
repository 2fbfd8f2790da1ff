/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ranges.h"

#include <stdlib.h>
#include <string.h>

#include "tensor/backend.h"

enum { DEPTH = 32 };

static _Thread_local const char *open_ranges[DEPTH];
static _Thread_local int n_open;

const trek_trace_sink trek_ranges_sink = { .enter = trek_ranges_enter, .leave = trek_ranges_leave };

static bool has_ranges(const trek_backend *backend) { return backend && backend->range_begin && backend->range_end; }

bool trek_ranges_available(void) { return has_ranges(trek_backend_find(TREK_CUDA, NULL, 0)); }

bool trek_ranges_wanted(void)
{
    const char *wish = getenv("TREK_NVTX");
    return wish && strcmp(wish, "1") == 0 && has_ranges(trek_backends[TREK_CUDA]);
}

void trek_ranges_start(void)
{
    const trek_trace_sink *nobody = NULL;
    if (trek_ranges_wanted())
        atomic_compare_exchange_strong(&trek_trace, &nobody, &trek_ranges_sink);
}

void trek_ranges_enter(const char *name)
{
    if (n_open == DEPTH || !has_ranges(trek_backends[TREK_CUDA]))
        return;
    open_ranges[n_open++] = name;
    trek_backends[TREK_CUDA]->range_begin(name);
}

void trek_ranges_leave(const char *name)
{
    int k = n_open;
    while (k > 0 && strcmp(open_ranges[k - 1], name) != 0)
        k--;
    for (; k > 0 && n_open >= k; n_open--) /* those inside it that were never ended, and itself */
        trek_backends[TREK_CUDA]->range_end();
}
