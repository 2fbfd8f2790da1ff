/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank waits for its data, and much more than another: the others wait for it. Plain arithmetic on what stopwatches say.
 * Internal. */
#ifndef TREK_DISTRIBUTED_BALANCE_STARVATION_H
#define TREK_DISTRIBUTED_BALANCE_STARVATION_H

#include <stdbool.h>

#include "tensor/status.h"

typedef struct trek_starvation {
    int ranks;
    long steps;
    double *ms, *starved_ms; /* [ranks] smoothed, of a step */
    bool *told;
} trek_starvation;

/* MEMORY; it may be ended all the same. */
trek_status trek_starvation_begin(trek_starvation *s, int ranks);
void trek_starvation_end(trek_starvation *s);
/* A step: each rank's time, and what of it was waiting for data (0 and 0: nothing is known). The rank that has come to starve, or
 * -1; each rank once. */
int trek_starvation_report(trek_starvation *s, const double *ms, const double *starved_ms);
/* Which part of its time a rank waits for data; and the least of any. */
double trek_starvation_of(const trek_starvation *s, int rank);
double trek_starvation_least(const trek_starvation *s);

#endif
