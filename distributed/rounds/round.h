/* SPDX-License-Identifier: Apache-2.0 */
/* A round: what sites have trained on their own becomes one set of values for all. It has three moments:
 *
 *     gather   every site reports its samples, its times, and how far it was from the last average
 *     mean     the values become their mean, weighted by samples, or what an outer optimizer makes of it
 *     divide   the times say how much each site trains in later rounds; if sites drift apart, less
 *
 * A row of functions says where the values are. If ranks meet in trek_graph_step, they are in the ranks' arenas, and all ranks
 * take part (in_place.c). If ranks hand over snapshots, the values are in host memory, and one thread computes (rounds.c): with
 * a lead of 0 the caller's thread, for which all wait, and otherwise a thread of its own. */
#ifndef TREK_DISTRIBUTED_ROUNDS_ROUND_H
#define TREK_DISTRIBUTED_ROUNDS_ROUND_H

#include "distributed/pass/shares.h"

typedef struct trek_round_report {
    double samples;          /* of all sites of the job since the round before; 0: there is nothing to average */
    double drift;            /* the largest distance of a site's values from the mean, divided by the norm of the mean */
    double waited_ms;        /* how long even the last site has waited for the average; 0: not measured */
} trek_round_report;

typedef struct trek_round_kind {
    trek_status (*gather)(void *arg, trek_round_report *round);
    trek_status (*mean)(void *arg, trek_round_report *round);
    trek_status (*divide)(void *arg, const trek_round_report *round, trek_drift_verdict verdict);
} trek_round_kind;

/* Makes a round. */
trek_status trek_round_make(trek_step *s, const trek_round_kind *kind, void *arg);

/* Returns the larger of two drifts; NaN is the largest. */
static inline double trek_drift_larger(double a, double b) { return b > a || b != b ? b : a; }

#endif
