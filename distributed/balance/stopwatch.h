/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's time in computing: waiting for other ranks excluded, on GPUs the
 * device's time and not the host's. Used by the rank's thread, read by the caller
 * while the ranks are idle. Internal. */
#ifndef TREK_DISTRIBUTED_BALANCE_STOPWATCH_H
#define TREK_DISTRIBUTED_BALANCE_STOPWATCH_H

#include <stdatomic.h>

#include "tensor/backend.h"

#define TREK_STOPWATCH_SPANS 64

typedef struct trek_stopwatch_set {
    int n;                   /* spans; beyond the room for them the last one grows */
    int64_t units;
    trek_event *start[TREK_STOPWATCH_SPANS], *stop[TREK_STOPWATCH_SPANS];
} trek_stopwatch_set;

typedef struct trek_stopwatch {
    trek_device device;
    int64_t start_ns, waited_ns, ns, units; /* of a CPU; start_ns 0: it does not run */
    trek_stopwatch_set sets[2]; /* of a GPU: of the present step, and of the one before, which has ended there */
    int present;
} trek_stopwatch;

/* Around work of the calling rank. units: samples, or batches, that it was for. */
trek_status trek_stopwatch_start(trek_stopwatch *watch, trek_device device);
trek_status trek_stopwatch_stop(trek_stopwatch *watch, int64_t units);
/* Milliseconds and units since the last call, and begins anew; a GPU's are those of the step before, so that nobody
 * waits for the present one. 0 and 0: nothing is known. */
trek_status trek_stopwatch_read(trek_stopwatch *watch, double *ms, int64_t *units);
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
