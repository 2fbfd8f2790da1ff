/* SPDX-License-Identifier: Apache-2.0 */
/* Averaging in the background: sites train batches of their own in rounds, hand over a snapshot after each, and go on; a thread
 * of the process averages the snapshots of all of them, weighted by samples, and every site takes in what came of it: the
 * average, and what the site has done since its snapshot. A site is a rank, or all ranks of a process, which make their steps
 * together (step/site.c) and are here one, their first. No site waits for another but at the bounds:
 *
 *     site      round k          round k+1        round k+2
 *               ...., snapshot k ...., takes k in, snapshot k+1, ...
 *     thread                     averages k
 *
 * Which batches are whose in round k+2 is decided after average k, alike in all processes, from what was gathered with it. So
 * a site is never more than a round ahead of the slowest. Internal. */
#ifndef TREK_DISTRIBUTED_BACKGROUND_BACKGROUND_H
#define TREK_DISTRIBUTED_BACKGROUND_BACKGROUND_H

#include "distributed/background/dispatch.h"
#include "distributed/outer/outer.h"
#include "distributed/step/stepper_ranks.h"

typedef struct trek_background trek_background;

typedef struct trek_background_opts {
    bool one_batch;          /* rounds of one batch for each site; else El Che's counts */
    bool eager;              /* an average is taken in as soon as it is there; else at a batch that is known beforehand */
    int64_t max_lead;        /* batches of a round after which the average of the round before is taken in at the latest;
                                0: the whole round; < 0: before the round: sites wait for it */
    const trek_outer_rule *outer; /* what becomes of averages, which are of parameters alone then; NULL: they are taken. Copied */
    bool (*stopped)(void *arg); /* whether somebody asks to end; from any thread */
    void (*progress)(int64_t samples, void *arg); /* a site has trained a batch; from its thread */
    void *arg;
} trek_background_opts;

/* Training passes of the stepper, which averages parameters, are of this kind from here on. MEMORY, UNSUPPORTED. */
trek_status trek_background_new(ranks_stepper *s, const trek_background_opts *opts);
void trek_background_free(trek_background **background); /* NULL: nothing */

/* A pass over batches [first, end) of an epoch, by the caller's thread, around the sites' part of it. All processes. end: ends
 * also after a failure, which it returns; *batches: that were trained. */
trek_status trek_background_begin(trek_background *background, int64_t first, int64_t end);
trek_status trek_background_end(trek_background *background, trek_status own, int64_t *batches);

/* By a site, of this process: its batches of the next round. False: there are none any more, and its replica is everybody's; or
 * *status. */
bool trek_background_next(trek_background *background, int site, trek_allotment *allotment, trek_status *status);
/* Before each batch, and after it. */
trek_status trek_background_before(trek_background *background, int site);
void trek_background_ran(trek_background *background, int site, int64_t samples);
/* The round's batches are done; or how the site failed: then the others go on without it, with its batches. */
trek_status trek_background_done(trek_background *background, int site, trek_status own);

/* The outer optimizer's momentum, for checkpoints, between two passes: n values, borrowed; NULL: there is none yet. take: an
 * earlier run's, copied, for the next pass. MEMORY. */
const float *trek_background_momentum(const trek_background *background, int64_t *n);
trek_status trek_background_take_momentum(trek_background *background, const float *values, int64_t n);

/* Since it was made. */
typedef struct trek_background_stats {
    int64_t averages;
    int64_t bytes_sent;      /* by this process, for averages */
    double drift;            /* of the last average: the farthest replica's distance from it, over its norm */
    int64_t next;            /* the last pass: the first batch that it has not trained */
    int lost;                /* ranks of the job that are not among those that train any more */
} trek_background_stats;
trek_background_stats trek_background_look(trek_background *background);

#endif
