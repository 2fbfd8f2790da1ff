/* SPDX-License-Identifier: Apache-2.0 */
/* Averaging in the background. Each site trains its own batches in rounds, hands over a snapshot after each round,
 * and goes on. A thread of the process averages the snapshots of all sites, weighted by samples. Every site then
 * takes in the average, plus what it has trained since its snapshot. A site is a rank, or all ranks of a process
 * whose ranks make their steps together (step/site.c); the first rank then stands for the site. Sites wait for each
 * other only at the bounds:
 *
 *     site      round k          round k+1        round k+2
 *               ...., snapshot k ...., takes k in, snapshot k+1, ...
 *     thread                     averages k
 *
 * After average k every process decides alike, from the reports that were gathered with it, who trains which batches
 * in round k+2. So a site is never more than one round ahead of the slowest. */
#ifndef TREK_DISTRIBUTED_BACKGROUND_BACKGROUND_H
#define TREK_DISTRIBUTED_BACKGROUND_BACKGROUND_H

#include "distributed/background/dispatch.h"
#include "distributed/outer/outer.h"
#include "distributed/step/step.h"

typedef struct trek_background trek_background;

typedef struct trek_background_opts {
    bool one_batch;          /* every round has one batch for each site; otherwise El Che chooses the counts */
    bool eager;              /* an average is taken in as soon as it is ready; otherwise at a batch that is known in advance */
    int64_t max_lead;        /* after how many batches of a round the average of the round before is taken in at the latest; 0:
                              * after the whole round; < 0: before the round, so that sites wait for it */
    const trek_outer_rule *outer; /* the optimizer that makes a step with each average; then only parameters are averaged.
                                   * NULL: averages are taken as they are. Copied */
    bool (*stopped)(void *arg); /* returns whether an end was requested; called by any thread */
    void (*progress)(int64_t samples, void *arg); /* called by a site's thread when it has trained a batch */
    void *arg;
} trek_background_opts;

/* Makes the averaging of a stepper that averages parameters. From here on its training passes are of this kind. Fails
 * with MEMORY or UNSUPPORTED. */
trek_status trek_background_new(trek_step *s, const trek_background_opts *opts);
void trek_background_free(trek_background **background); /* NULL is allowed */

/* Begin and end a pass over batches [first, end) of an epoch. The caller's thread calls them around the sites' part
 * of the pass, in all processes. trek_background_end also ends a pass after a failure, which it returns; *batches
 * gets the number of batches that were trained. */
trek_status trek_background_begin(trek_background *background, int64_t first, int64_t end);
trek_status trek_background_end(trek_background *background, trek_status own, int64_t *batches);

/* Gives a site of this process its batches of the next round. Returns false if no batches are left, and then the
 * site's replica has the values that all have in common, or if a call failed, and then *status says so. */
bool trek_background_next(trek_background *background, int site, trek_allotment *allotment, trek_status *status);
/* Called before and after each batch. */
trek_status trek_background_before(trek_background *background, int site);
void trek_background_ran(trek_background *background, int site, int64_t samples);
/* Reports that the site has done the round's batches, or by `own` that it failed. After a failure the other sites go
 * on without it and train its batches. */
trek_status trek_background_done(trek_background *background, int site, trek_status own);

/* Return and set the momentum of the outer optimizer for checkpoints, between two passes. The n values that are
 * returned are borrowed; NULL means that no momentum exists yet. take_momentum copies the values of an earlier run
 * for the next pass and fails with MEMORY. */
const float *trek_background_momentum(const trek_background *background, int64_t *n);
trek_status trek_background_take_momentum(trek_background *background, const float *values, int64_t n);

/* What has happened since trek_background_new. */
typedef struct trek_background_stats {
    int64_t averages;
    int64_t bytes_sent;      /* by this process, for averages */
    double drift;            /* of the last average: the largest distance of a replica from it, divided by its norm */
    int64_t next;            /* the first batch that the last pass has not trained */
    int lost;                /* ranks of the job that no longer train */
} trek_background_stats;
trek_background_stats trek_background_look(trek_background *background);

#endif
