/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's time for its work: computing, and waiting for its own data, as that is what its part of a step costs; waiting for
 * other ranks excluded. On GPUs the device's time and not the host's: of a wait for data what the device has stood still. Used by
 * the rank's thread, read by the caller while the ranks are idle. Internal. */
#ifndef TREK_DISTRIBUTED_BALANCE_STOPWATCH_H
#define TREK_DISTRIBUTED_BALANCE_STOPWATCH_H

#include <stdatomic.h>

#include "tensor/backend.h"

#define TREK_STOPWATCH_SPANS 64

typedef struct trek_stopwatch_set {
    int n;                   /* spans; beyond the room for them the last one grows */
    int64_t units;
    int64_t fed_ns[TREK_STOPWATCH_SPANS]; /* that the host has waited for data before each span */
    trek_event *start[TREK_STOPWATCH_SPANS], *stop[TREK_STOPWATCH_SPANS];
} trek_stopwatch_set;

typedef struct trek_stopwatch {
    trek_device device;
    int64_t start_ns, waited_ns, ns, units; /* of a CPU; start_ns 0: it does not run */
    int64_t next_ns;         /* what the work that comes next has waited for data; */
    int64_t starved_ns;      /* and of a CPU what of ns was such waiting */
    trek_stopwatch_set sets[2]; /* of a GPU: of the present step, and of the one before, which has ended there */
    int present;
} trek_stopwatch;

/* Around work of the calling rank. units: samples, or batches, that it was for. */
trek_status trek_stopwatch_start(trek_stopwatch *watch, trek_device device);
trek_status trek_stopwatch_stop(trek_stopwatch *watch, int64_t units);
/* The work that begins next has waited so long for its data. */
static inline void trek_stopwatch_starved(trek_stopwatch *watch, int64_t ns) { watch->next_ns += ns > 0 ? ns : 0; }
/* Milliseconds, of them for data (starved_ms may be NULL), and units since the last call, and begins anew; a GPU's are those of
 * the step before, so that nobody waits for the present one. 0 and 0: nothing is known. */
trek_status trek_stopwatch_read(trek_stopwatch *watch, double *ms, double *starved_ms, int64_t *units);
void trek_stopwatch_clear(trek_stopwatch *watch);

/* One for each rank, shared by a stepper and the passes that may outlive it. */
typedef struct trek_stopwatches {
    atomic_int refs;
    int n;
    trek_stopwatch of[];
} trek_stopwatches;
trek_stopwatches *trek_stopwatches_new(int n);
trek_stopwatches *trek_stopwatches_retain(trek_stopwatches *watches);
void trek_stopwatches_release(trek_stopwatches *watches); /* NULL: nothing */

#endif
