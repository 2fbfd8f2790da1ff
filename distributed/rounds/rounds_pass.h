/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks, or sites, train in rounds. */
#ifndef TREK_DISTRIBUTED_BACKGROUND_ROUNDS_H
#define TREK_DISTRIBUTED_BACKGROUND_ROUNDS_H

#include "distributed/team/team.h"

typedef struct trek_step trek_step;

/* How a site trains. */
typedef struct trek_rounds_way {
    trek_status (*run)(void *arg, struct trek_batch *batch); /* trains on a batch */
    void (*failed)(void *arg); /* called after a failure; NULL: nothing is to be done */
    void *arg;
} trek_rounds_way;
/* Runs rounds until the window is over: reads the site's batches, trains on them, and hands over snapshots. */
trek_status trek_rounds_run(trek_step *s, int site, const struct trek_batch *window, const trek_rounds_way *way);

/* Trains on a window in rounds of ranks. Returns the mean loss. */
trek_var *trek_rounds_train(trek_step *s, const struct trek_batch *window);

#endif
