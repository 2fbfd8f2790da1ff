/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of uneven speed without uneven hardware: after each batch a rank's own
 * thread is kept busy or asleep for as long as a slower device would have taken. For
 * examples and benchmarks. Balancer and El Che know nothing of it: they measure. */
#ifndef TREK_DISTRIBUTED_BALANCE_SLOWDOWN_H
#define TREK_DISTRIBUTED_BALANCE_SLOWDOWN_H

#include "tensor/status.h"

TREK_BEGIN

/* From a batch on, until the next point, a batch takes this many times as long. */
typedef struct trek_slowdown_point {
    int64_t from_batch;
    double factor;
} trek_slowdown_point;

/* A value; the schedule stays the caller's and must outlive it. */
typedef struct trek_slowdown {
    double factor;                       /* a batch takes this many times as long; up to 1 (also 0): no slow-down */
    const trek_slowdown_point *schedule; /* from its first point's batch on instead of `factor`; from_batch ascends. NULL: none */
    int points;                          /* in schedule */
    bool sleep; /* give the core away meanwhile, as a rank does that waits for a device; else keep it busy */
} trek_slowdown;

/* The factor at a batch, at least 1; 1 for NULL, and for a factor that is not finite. */
TREK_API double trek_slowdown_factor(const trek_slowdown *slowdown, int64_t batch);

/* After a batch that took the calling thread compute_ns: returns (factor - 1) * compute_ns later, at most an hour.
 * Nothing happens for NULL and for compute_ns <= 0. */
TREK_API void trek_slowdown_apply(const trek_slowdown *slowdown, int64_t batch, int64_t compute_ns);

TREK_END

#endif
