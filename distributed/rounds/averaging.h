/* SPDX-License-Identifier: Apache-2.0 */
/* Averages parameters instead of gradients. */
#ifndef TREK_DISTRIBUTED_ROUNDS_AVERAGING_H
#define TREK_DISTRIBUTED_ROUNDS_AVERAGING_H

#include "distributed/team/team.h"

typedef struct trek_step trek_step;

struct trek_rounds;
enum { TREK_DRIFTS = 3 };

/* What a step that averages keeps between its averages. */
typedef struct trek_averaging {
    trek_step *site;         /* with several ranks here that train together: the step that they make (site.c); otherwise
                              * NULL */
    struct trek_rounds *rounds; /* ranks hand over snapshots, which become averages while they train; NULL: ranks meet in
                                 * trek_graph_step */
    bool own_states;         /* optimizers' states are not averaged */
    int64_t window_batches;  /* since the last average, of all ranks of the job */
    int64_t *segment_steps;  /* [segments] numbers of updates, the most of any rank */
    double divergence_threshold; /* < 0: no guard */
    double drifts[TREK_DRIFTS]; /* of the job: the last ones */
} trek_averaging;

/* Makes a step average, when the processes have met. Fails with MEMORY. */
trek_status trek_averaging_begin(trek_step *s, double divergence_threshold);
void trek_averaging_end(trek_step *s);
/* Returns the rounds in which ranks train, or NULL. s NULL: the graph trains on a single device. */
struct trek_rounds *trek_ranks_rounds(const trek_step *s);

/* Sets every rank's optimizer as rank 0's is set. Fails with STATE if there is no optimizer. */
trek_status trek_average_begin_pass(trek_step *s);
/* Makes a step of the calling rank with its own gradients, which are zero afterwards. */
trek_status trek_average_local_step(trek_step *s, int rank);
/* Counts batches of all ranks of the job, since the last average. */
void trek_average_count(trek_step *s, int64_t batches);

/* Returns the flat tensor of a part: the masters (state < 0), or a state of the optimizer. Returns NULL if it does
 * not exist. */
trek_tensor *trek_average_source(const rank_replica *own, int part, int state);
/* Returns a view of some of its elements, in the current scope. */
trek_var *trek_average_view(trek_tensor *flat, int64_t begin, int64_t count);
/* Rounds masters to 16-bit parameters. */
trek_status trek_average_round(const rank_replica *own, int part, int64_t begin, int64_t count);

#endif
