/* SPDX-License-Identifier: Apache-2.0 */
/* The center: the values that all sites had in common last, and what a round does with the mean of the snapshots. Either the
 * mean becomes the new center, or an outer optimizer makes a step from the center towards it. */
#ifndef TREK_DISTRIBUTED_ROUNDS_CENTER_H
#define TREK_DISTRIBUTED_ROUNDS_CENTER_H

#include "distributed/job/job.h"
#include "distributed/outer/outer.h"
#include "distributed/rounds/site_values.h"

struct trek_center_kind;

/* One thread at a time uses it. */
typedef struct trek_center {
    const struct trek_center_kind *kind;
    const trek_job *job;
    int sites;               /* of this process */
    trek_values values;
    double *weights;         /* [local sites] of the round; those of all sites of the job sum to 1 */
    int64_t bytes_sent;      /* by this process */
    trek_outer_rule rule;    /* of the outer optimizer, */
    trek_outer *outer;       /* which is NULL before the first pass, and if there is none */
    trek_exchange exchange;  /* exchanges the pseudo-gradients */
    float *momentum;         /* of an earlier run, for the next pass, or NULL */
    int64_t momentum_count;
} trek_center;

/* rule NULL: averages are taken as they are. Fails with MEMORY. */
trek_status trek_center_init(trek_center *center, const trek_job *job, int sites, const trek_outer_rule *rule);
void trek_center_clear(trek_center *center);

/* Begins a pass with the values of the first site. Fails with MEMORY or UNSUPPORTED. */
trek_status trek_center_begin(trek_center *center, const trek_team *team);
void trek_center_end(trek_center *center);
/* Moves the center by the snapshots of one fragment, in all processes; `samples` are those of all sites. */
trek_status trek_center_move(trek_center *center, int fragment, double samples);

/* Return and set the momentum of the outer optimizer for checkpoints, between two passes. The n values that are
 * returned are borrowed; NULL means that no momentum exists yet. take_momentum copies the values of an earlier run
 * for the next pass and fails with MEMORY. */
const float *trek_center_momentum(const trek_center *center, int64_t *n);
trek_status trek_center_take_momentum(trek_center *center, const float *values, int64_t n);

#endif
