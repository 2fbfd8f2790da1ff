/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the time of ranks on GPUs, with the events of the device. */
#include "distributed/balance/stopwatch.h"

#include <string.h>

#include "tensor/memory_internal.h"
#include "tensor/rank_context.h"
#include "tensor/status_internal.h"

static const trek_backend *backend_of(const trek_stopwatch *watch) { return trek_backends[watch->device.type]; }

/* Returns whether work is being captured. Events in captured work have no time, so that replays are not measured here. */
static bool is_captured(const trek_stopwatch *watch)
{
    const trek_backend *backend = backend_of(watch);
    return backend->capturing && backend->capturing();
}

static trek_status mark(trek_stopwatch *watch, trek_event **event)
{
    const trek_backend *backend = backend_of(watch);
    trek_status status = *event ? TREK_OK : backend->event_new(watch->device, event);
    return status == TREK_OK ? backend->event_record(*event, NULL) : status;
}

trek_status trek_stopwatch_start_on_device(trek_stopwatch *watch, int64_t fed_ns)
{
    trek_stopwatch_set *set = &watch->sets[watch->present];
    if (set->n == TREK_STOPWATCH_SPANS || is_captured(watch))
        return TREK_OK;
    set->fed_ns[set->n] = fed_ns;
    return mark(watch, &set->start[set->n]);
}

trek_status trek_stopwatch_stop_on_device(trek_stopwatch *watch, int64_t units)
{
    if (is_captured(watch))
        return TREK_OK;
    trek_stopwatch_set *set = &watch->sets[watch->present];
    int last = set->n == TREK_STOPWATCH_SPANS ? set->n - 1 : set->n;
    trek_status status = mark(watch, &set->stop[last]);
    if (status == TREK_OK) {
        set->n = last + 1;
        set->units += units;
    }
    return status;
}

/* Returns how long the device was idle because of the data of span k. Before the first span the whole wait counts,
 * because the step has only begun. */
static trek_status stood_still(const trek_stopwatch *watch, const trek_stopwatch_set *set, int k, double *ms)
{
    double gap = 0;
    *ms = (double)set->fed_ns[k] * 1e-6;
    if (k == 0 || *ms == 0)
        return TREK_OK;
    trek_status status = backend_of(watch)->event_elapsed_ms(set->stop[k - 1], set->start[k], &gap);
    *ms = gap < *ms ? gap : *ms;
    return status;
}

trek_status trek_stopwatch_read_device(trek_stopwatch *watch, double *ms, double *starved_ms, int64_t *units)
{
    watch->present ^= 1;
    trek_stopwatch_set *set = &watch->sets[watch->present];
    const trek_backend *backend = backend_of(watch);
    trek_status status = TREK_OK;
    *ms = *starved_ms = 0;
    for (int k = 0; k < set->n && status == TREK_OK; k++) {
        double span = 0, starved = 0;
        status = backend->event_sync(set->stop[k]);
        if (status == TREK_OK)
            status = backend->event_elapsed_ms(set->start[k], set->stop[k], &span);
        if (status == TREK_OK)
            status = stood_still(watch, set, k, &starved);
        *ms += span + starved;
        *starved_ms += starved;
    }
    *units = set->units;
    set->n = 0;
    set->units = 0;
    return status;
}

void trek_stopwatch_clear(trek_stopwatch *watch)
{
    for (int s = 0; s < 2; s++)
        for (int k = 0; k < TREK_STOPWATCH_SPANS; k++) {
            if (watch->sets[s].start[k])
                backend_of(watch)->event_free(watch->sets[s].start[k]);
            if (watch->sets[s].stop[k])
                backend_of(watch)->event_free(watch->sets[s].stop[k]);
        }
    memset(watch, 0, sizeof *watch);
}

trek_stopwatches *trek_stopwatches_new(int n)
{
    trek_stopwatches *watches = trek_calloc(1, sizeof *watches + (size_t)n * sizeof watches->of[0]);
    if (!watches)
        return NULL;
    atomic_init(&watches->refs, 1);
    watches->n = n;
    return watches;
}

trek_stopwatches *trek_stopwatches_retain(trek_stopwatches *watches)
{
    atomic_fetch_add(&watches->refs, 1);
    return watches;
}

void trek_stopwatches_release(trek_stopwatches *watches)
{
    if (!watches || atomic_fetch_sub(&watches->refs, 1) != 1)
        return;
    for (int k = 0; k < watches->n; k++)
        trek_stopwatch_clear(&watches->of[k]);
    trek_free(watches);
}
