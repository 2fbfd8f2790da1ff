/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds over snapshots. Each site trains its own batches in rounds and hands over a snapshot after each round. One thread
 * averages the snapshots of all sites, weighted by samples. Every site then takes in the average, plus what it has trained since
 * its snapshot. A site is a rank, or all ranks of a process whose ranks make their steps together (site.c); the first rank then
 * stands for the site.
 *
 * With a lead, sites go on meanwhile, and wait for each other only at the bounds:
 *
 *     site      round k          round k+1        round k+2
 *               ...., snapshot k ...., takes k in, snapshot k+1, ...
 *     thread                     averages k
 *
 * After average k every process decides alike, from the reports that were gathered with it, who trains which batches
 * in round k+2. So a site is never more than one round ahead of the slowest. Without a lead all wait until the average is there,
 * and the first site's thread makes it. */
#ifndef TREK_DISTRIBUTED_BACKGROUND_BACKGROUND_H
#define TREK_DISTRIBUTED_BACKGROUND_BACKGROUND_H

#include "distributed/outer/outer.h"
#include "distributed/rounds/dispatch.h"

typedef struct trek_rounds trek_rounds;
struct trek_step;

typedef struct trek_rounds_opts {
    bool one_batch;          /* every round has one batch for each site; otherwise El Che chooses the counts */
    bool eager;              /* an average is taken in as soon as it is ready; otherwise at a batch that is known in advance */
    int64_t max_lead;        /* after how many batches of a round the average of the round before is taken in at the latest; 0:
                              * after the whole round; < 0: before the round, so that sites wait for it */
    const trek_outer_rule *outer; /* the optimizer that makes a step with each average; then only parameters are averaged.
                                   * NULL: averages are taken as they are. Copied */
    bool (*stopped)(void *arg); /* returns whether an end was requested; called by any thread */
    void (*progress)(int64_t samples, void *arg); /* called by a site's thread when it has trained a batch */
    void *arg;
} trek_rounds_opts;

/* Makes the rounds of a step that averages parameters. From here on its training passes are in rounds. Fails
 * with MEMORY or UNSUPPORTED. */
trek_status trek_rounds_new(struct trek_step *s, const trek_rounds_opts *opts);
void trek_rounds_free(trek_rounds **rounds); /* NULL is allowed */

/* Begin and end a pass over batches [first, end) of an epoch. The caller's thread calls them around the sites' part
 * of the pass, in all processes. trek_rounds_end also ends a pass after a failure, which it returns; *batches
 * gets the number of batches that were trained. */
trek_status trek_rounds_begin(trek_rounds *rounds, int64_t first, int64_t end);
trek_status trek_rounds_end(trek_rounds *rounds, trek_status own, int64_t *batches);

/* Gives a site of this process its batches of the next round. Returns false if no batches are left, and then the
 * site's replica has the values that all have in common, or if a call failed, and then *status says so. */
bool trek_rounds_next(trek_rounds *rounds, int site, trek_allotment *allotment, trek_status *status);
/* Called before and after each batch. */
trek_status trek_rounds_before(trek_rounds *rounds, int site);
void trek_rounds_ran(trek_rounds *rounds, int site, int64_t samples);
/* Reports that the site has done the round's batches, or by `own` that it failed. After a failure the other sites go
 * on without it and train its batches. */
trek_status trek_rounds_done(trek_rounds *rounds, int site, trek_status own);

/* Return and set the momentum of the outer optimizer for checkpoints, between two passes. The n values that are
 * returned are borrowed; NULL means that no momentum exists yet. take_momentum copies the values of an earlier run
 * for the next pass and fails with MEMORY. */
const float *trek_rounds_momentum(const trek_rounds *rounds, int64_t *n);
trek_status trek_rounds_take_momentum(trek_rounds *rounds, const float *values, int64_t n);

/* What has happened since trek_rounds_new. */
typedef struct trek_rounds_stats {
    int64_t averages;
    int64_t bytes_sent;      /* by this process, for averages */
    double drift;            /* of the last average: the largest distance of a replica from it, divided by its norm */
    int64_t next;            /* the first batch that the last pass has not trained */
    int lost;                /* ranks of the job that no longer train */
} trek_rounds_stats;
trek_rounds_stats trek_rounds_look(trek_rounds *rounds);

#endif
