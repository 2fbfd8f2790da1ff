/* SPDX-License-Identifier: Apache-2.0 */
/* Simulates ranks of different speeds on equal hardware: after each batch the rank's thread is kept busy or asleep as long as
 * a slower device would have needed. It is for examples and benchmarks. The balancer and El Che do not know about it: they
 * measure. */
#ifndef TREK_DISTRIBUTED_BALANCE_SLOWDOWN_H
#define TREK_DISTRIBUTED_BALANCE_SLOWDOWN_H

#include "tensor/status.h"

TREK_BEGIN

/* A change of the factor. From batch `from_batch` until the next point a batch takes `factor` times as long. */
typedef struct trek_slowdown_point {
    int64_t from_batch; /* the first batch, from 0 */
    double factor;      /* how many times as long a batch takes */
} trek_slowdown_point;

/* How much slower a rank becomes. The caller keeps `schedule` and must not free it before. */
typedef struct trek_slowdown {
    double factor;                       /* how many times as long a batch takes; up to 1 (also 0): no slowdown */
    const trek_slowdown_point *schedule; /* replaces `factor` from its first batch on; from_batch ascends; default NULL */
    int points;                          /* number of points in `schedule` */
    bool sleep;                          /* frees the core, like a rank that waits for a device; default false: keeps it busy */
} trek_slowdown;

TREK_END

#endif
