/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the time that a rank spends on its work: computing and waiting for its own data, because both are the cost
 * of its part of a step; but not waiting for other ranks. On GPUs it is the device's time and not the host's: of a
 * wait for data only the time counts in which the device was idle. The rank's thread uses a stopwatch; the caller
 * reads it while the ranks are idle. */
#ifndef TREK_DISTRIBUTED_BALANCE_STOPWATCH_H
#define TREK_DISTRIBUTED_BALANCE_STOPWATCH_H

#include <stdatomic.h>

#include "distributed/system/system.h"
#include "tensor/backend.h"
#include "tensor/rank_context.h"

#define TREK_STOPWATCH_SPANS 64

typedef struct trek_stopwatch_set {
    int n;                   /* number of spans; when all are used, the last one grows */
    int64_t units;
    int64_t fed_ns[TREK_STOPWATCH_SPANS]; /* how long the host has waited for data before each span */
    trek_event *start[TREK_STOPWATCH_SPANS], *stop[TREK_STOPWATCH_SPANS];
} trek_stopwatch_set;

typedef struct trek_stopwatch {
    trek_device device;
    int64_t start_ns, waited_ns, ns, units; /* of a CPU; start_ns 0: it is stopped */
    int64_t next_ns;         /* how long the work that comes next has waited for data; */
    int64_t starved_ns;      /* and on a CPU how much of ns was such waiting */
    trek_stopwatch_set sets[2]; /* of a GPU: the current step, and the step before, which the device has ended */
    int present;
} trek_stopwatch;

/* What follows is done on GPUs (stopwatch.c); on CPUs the clock is read here. */
trek_status trek_stopwatch_start_on_device(trek_stopwatch *watch, int64_t fed_ns);
trek_status trek_stopwatch_stop_on_device(trek_stopwatch *watch, int64_t units);
trek_status trek_stopwatch_read_device(trek_stopwatch *watch, double *ms, double *starved_ms, int64_t *units);

/* Start and stop the watch around work of the calling rank. units is the number of samples, or batches, that the work
 * was for. */
static inline trek_status trek_stopwatch_start(trek_stopwatch *watch, trek_device device)
{
    watch->device = device;
    watch->waited_ns = trek_rank_here.waited_ns;
    watch->start_ns = trek_now_ns();
    int64_t fed_ns = watch->next_ns;
    watch->next_ns = 0;
    if (device.type != TREK_CPU)
        return trek_stopwatch_start_on_device(watch, fed_ns);
    watch->ns += fed_ns;
    watch->starved_ns += fed_ns;
    return TREK_OK;
}
static inline trek_status trek_stopwatch_stop(trek_stopwatch *watch, int64_t units)
{
    if (watch->device.type != TREK_CPU)
        return trek_stopwatch_stop_on_device(watch, units);
    watch->ns += trek_now_ns() - watch->start_ns - (trek_rank_here.waited_ns - watch->waited_ns);
    watch->units += units;
    return TREK_OK;
}
/* Adds to the time that the work that begins next has waited for its data. */
static inline void trek_stopwatch_starved(trek_stopwatch *watch, int64_t ns) { watch->next_ns += ns > 0 ? ns : 0; }
/* Reads and resets the time since the last call: milliseconds, milliseconds of waiting for data (starved_ms may be
 * NULL), and units. A GPU's values are those of the step before, so that nobody waits for the current one. 0 and 0
 * mean that nothing is known. */
static inline trek_status trek_stopwatch_read(trek_stopwatch *watch, double *ms, double *starved_ms, int64_t *units)
{
    double unread;
    starved_ms = starved_ms ? starved_ms : &unread;
    if (watch->device.type != TREK_CPU)
        return trek_stopwatch_read_device(watch, ms, starved_ms, units);
    *ms = (double)watch->ns * 1e-6;
    *starved_ms = (double)watch->starved_ns * 1e-6;
    *units = watch->units;
    watch->ns = watch->starved_ns = watch->units = 0;
    return TREK_OK;
}
void trek_stopwatch_clear(trek_stopwatch *watch);

/* One stopwatch for each rank, shared by a stepper and the passes that may outlive it. */
typedef struct trek_stopwatches {
    atomic_int refs;
    int n;
    trek_stopwatch of[];
} trek_stopwatches;
trek_stopwatches *trek_stopwatches_new(int n);
trek_stopwatches *trek_stopwatches_retain(trek_stopwatches *watches);
void trek_stopwatches_release(trek_stopwatches *watches); /* NULL is allowed */

#endif
