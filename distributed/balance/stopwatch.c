/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the time of ranks, with the clock or with device events. */
#include "distributed/balance/stopwatch.h"

#include <string.h>

#include "distributed/system/system.h"
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

trek_status trek_stopwatch_start(trek_stopwatch *watch, trek_device device)
{
    watch->device = device;
    watch->waited_ns = trek_rank_here.waited_ns;
    watch->start_ns = trek_now_ns();
    int64_t fed_ns = watch->next_ns;
    watch->next_ns = 0;
    if (device.type == TREK_CPU) {
        watch->ns += fed_ns;
        watch->starved_ns += fed_ns;
        return TREK_OK;
    }
    trek_stopwatch_set *set = &watch->sets[watch->present];
    if (set->n == TREK_STOPWATCH_SPANS || is_captured(watch))
        return TREK_OK;
    set->fed_ns[set->n] = fed_ns;
    return mark(watch, &set->start[set->n]);
}

trek_status trek_stopwatch_stop(trek_stopwatch *watch, int64_t units)
{
    if (watch->device.type == TREK_CPU) {
        watch->ns += trek_now_ns() - watch->start_ns - (trek_rank_here.waited_ns - watch->waited_ns);
        watch->units += units;
        return TREK_OK;
    }
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

static trek_status read_set(trek_stopwatch *watch, trek_stopwatch_set *set, double *ms, double *starved_ms, int64_t *units)
{
    const trek_backend *backend = backend_of(watch);
    trek_status status = TREK_OK;
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

trek_status trek_stopwatch_read(trek_stopwatch *watch, double *ms, double *starved_ms, int64_t *units)
{
    double unread;
    starved_ms = starved_ms ? starved_ms : &unread;
    *ms = *starved_ms = 0;
    *units = 0;
    if (watch->device.type != TREK_CPU) {
        watch->present ^= 1;
        return read_set(watch, &watch->sets[watch->present], ms, starved_ms, units);
    }
    *ms = (double)watch->ns * 1e-6;
    *starved_ms = (double)watch->starved_ns * 1e-6;
    *units = watch->units;
    watch->ns = watch->starved_ns = watch->units = 0;
    return TREK_OK;
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
