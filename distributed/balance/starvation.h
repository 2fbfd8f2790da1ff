/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a rank that waits for its data much longer than another rank, so that the others wait for it. Pure arithmetic
 * on what stopwatches measure. */
#ifndef TREK_DISTRIBUTED_BALANCE_STARVATION_H
#define TREK_DISTRIBUTED_BALANCE_STARVATION_H

#include <stdbool.h>

#include "tensor/status.h"

typedef struct trek_starvation {
    int ranks;
    long steps;
    double *ms, *starved_ms; /* [ranks] smoothed times of a step */
    bool *told;
} trek_starvation;

/* Begin fails with MEMORY; trek_starvation_end may also be called after a failure. */
trek_status trek_starvation_begin(trek_starvation *s, int ranks);
void trek_starvation_end(trek_starvation *s);
/* Reports a step: each rank's time, and how much of it the rank waited for data (0 and 0: nothing is known). Returns
 * the rank that now starves, or -1. It returns each rank once. */
int trek_starvation_report(trek_starvation *s, const double *ms, const double *starved_ms);
/* Return which part of its time a rank waits for data, and the smallest part of any rank. */
double trek_starvation_of(const trek_starvation *s, int rank);
double trek_starvation_least(const trek_starvation *s);

#endif
