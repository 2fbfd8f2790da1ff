/* SPDX-License-Identifier: Apache-2.0 */
/* How fast ranks are: how many milliseconds each needs for a unit of work, which is a sample or a batch, and how exactly that is
 * known. The balancer makes shares of it, and El Che counts. And which rank waits for its data much longer than another one, so
 * that the others wait for it. All of this is arithmetic on what stopwatches measure. */
#ifndef TREK_DISTRIBUTED_BALANCE_SPEED_H
#define TREK_DISTRIBUTED_BALANCE_SPEED_H

#include "tensor/status.h"

/* The most by which speeds and hints may differ, so that counts cannot overflow. */
#define TREK_SPEED_MOST_RATIO 1e6

/* The distribution of milliseconds for a unit. */
typedef struct trek_speed_spread {
    int64_t n;
    double mean, squares; /* squares: the sum of the squared differences from the mean */
} trek_speed_spread;

/* What is remembered of a rank. */
typedef struct trek_speed_memory {
    double ms, rate;      /* the estimate: milliseconds for a unit, and the inverse; 0: not measured yet */
    double error;         /* of the last prediction by it, relative, with its sign */
    trek_speed_spread all, recent; /* since the last change of pace, or since they were forgotten; the latest, which will be added
                                    * to `all`. The first measurement is a warm-up and is in neither */
} trek_speed_memory;

typedef struct trek_speeds {
    int ranks;
    double weight;        /* of a measured rate in the smoothed one; 0: milliseconds are smoothed, and the larger the error of the
                           * prediction, the more a measurement weighs */
    bool shifted;         /* the last report showed a change of pace */
    double units, longest_ms; /* of the last report: units of all ranks, and the longest time; 0: nobody ran */
    trek_speed_memory *of; /* [ranks] */
} trek_speeds;

/* Fails with MEMORY. */
trek_status trek_speeds_init(trek_speeds *speeds, int ranks, double weight);
void trek_speeds_clear(trek_speeds *speeds);
/* Forgets all measurements, and those of one rank. */
void trek_speeds_forget(trek_speeds *speeds);
void trek_speeds_forget_rank(trek_speeds *speeds, int rank);
/* Forgets how exactly paces are known; the estimates stay. */
void trek_speeds_forget_spreads(trek_speeds *speeds);

/* Takes a report of all ranks: milliseconds of computing, and units of work. A rank with 0 in either keeps its estimate. Fails
 * with ARGUMENT if a number is negative, or a time not finite or above 1e15, in a message of `function`; nothing changes then.
 * unit: the word for units. */
trek_status trek_speeds_report(trek_speeds *speeds, const double *compute_ms, const int64_t *units, double communication_ms,
                               const char *function, const char *unit);
/* Uses the latest measurements of each rank that has no earlier ones. */
void trek_speeds_settle(trek_speeds *speeds);

/* Return the smallest and the largest estimate; infinity and 0 if no rank was measured. */
double trek_speeds_fastest(const trek_speeds *speeds);
double trek_speeds_slowest(const trek_speeds *speeds);
/* Returns the mean milliseconds for a unit since the last change of pace, or otherwise the estimate. */
double trek_speeds_mean(const trek_speeds *speeds, int rank);
/* Returns the relative error of that mean. */
double trek_speeds_error(const trek_speeds *speeds, int rank);
/* Returns how many errors the mean of one of the ranks may be away by chance: the longest of many is also long by chance. */
double trek_speeds_scatter(const trek_speeds *speeds);

/* How much of their time ranks wait for data. */
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
