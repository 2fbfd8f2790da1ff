/* SPDX-License-Identifier: Apache-2.0 */
/* How fast ranks are: how many milliseconds each needs for a unit of work, which is a sample or a batch, and how exactly that is
 * known. The balancer makes shares of it, and El Che counts. */
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

#endif
