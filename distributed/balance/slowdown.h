/* SPDX-License-Identifier: Apache-2.0 */
/* Simulates ranks of different speeds on equal hardware, for examples, benchmarks and tests: after each batch the rank's
 * thread is kept busy or asleep as long as a slower device would have needed. The balancer and El Che do not know about it:
 * they measure. TREK_SLOWDOWN asks for it. */
#ifndef TREK_DISTRIBUTED_BALANCE_SLOWDOWN_H
#define TREK_DISTRIBUTED_BALANCE_SLOWDOWN_H

#include "tensor/status.h"

enum { TREK_SLOWDOWN_POINTS = 8 };

/* How much slower a rank becomes. */
typedef struct trek_slowdown {
    int points; /* 0: it is not slower */
    struct {
        int64_t from_batch; /* the first batch, from 0; ascending */
        double factor;      /* how many times as long a batch takes from it on; up to 1: no longer */
    } point[TREK_SLOWDOWN_POINTS];
    double most; /* above the factor: in each second it is another one between both, drawn at random */
    int rank;   /* for the draw: the number of the slowdown among those of the process */
    bool sleep; /* frees the core, like a rank that waits for a device; otherwise it is kept busy */
} trek_slowdown;

/* Reads a text such as "1,3s,1/10:2.5" into the first of `ranks` slowdowns, which are 0 before: a factor for each rank,
 * then "/batch:factor" for each change, "~factor" if the factor changes at random up to this one every second, and "s" for a
 * rank that sleeps. Entries for further ranks are checked and left out.
 * Fails with ARGUMENT. */
trek_status trek_slowdown_read(const char *text, trek_slowdown *slowdowns, int ranks);

/* Returns the factor at a batch and at a time, at least 1. It is 1 if `slowdown` is NULL. */
double trek_slowdown_factor(const trek_slowdown *slowdown, int64_t batch, int64_t now_ns);

/* Waits for (factor - 1) * compute_ns nanoseconds, at most an hour, after a batch that took compute_ns. It does nothing if
 * `slowdown` is NULL or compute_ns <= 0. */
void trek_slowdown_apply(const trek_slowdown *slowdown, int64_t batch, int64_t compute_ns);

#endif
