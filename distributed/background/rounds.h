/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks, or sites, train in rounds. */
#ifndef TREK_DISTRIBUTED_BACKGROUND_ROUNDS_H
#define TREK_DISTRIBUTED_BACKGROUND_ROUNDS_H

#include "distributed/team/step.h"

/* How a site trains. */
typedef struct trek_rounds_way {
    trek_status (*run)(void *arg, struct trek_batch *batch); /* trains on a batch */
    void (*failed)(void *arg); /* called after a failure; NULL: nothing is to be done */
    void *arg;
} trek_rounds_way;
/* Runs rounds until the window is over: reads the site's batches, trains on them, and hands over snapshots. */
trek_status trek_rounds_run(trek_step *s, int site, const struct trek_batch *window, const trek_rounds_way *way);

/* The functions `window` and `step` of the policies that average in rounds. A window has all batches that are left, and a step
 * merges what the rounds have left, which are the buffers. */
int64_t trek_rounds_window(trek_step *s);
trek_status trek_rounds_step(trek_step *s);

#endif
