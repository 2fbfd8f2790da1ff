/* SPDX-License-Identifier: Apache-2.0 */
/* Averages parameters instead of gradients. */
#ifndef TREK_DISTRIBUTED_STEP_AVERAGE_H
#define TREK_DISTRIBUTED_STEP_AVERAGE_H

#include "distributed/step/shares.h"

struct trek_background;
enum { TREK_DRIFTS = 3 };

/* What a step that averages keeps between its averages. */
typedef struct trek_averaging {
    trek_step *site;         /* with several ranks here that train together: the step that they make (site.c); otherwise
                              * NULL */
    struct trek_background *background; /* averages in the background, while ranks run (distributed/background/); NULL: ranks
                                         * meet for it */
    const struct trek_step_policy *in_rounds; /* the policy from then on */
    bool own_states;         /* optimizers' states are not averaged */
    int64_t window_batches;  /* since the last average, of all ranks of the job */
    int64_t *segment_steps, *job_segment_steps; /* [segments], [processes][segments] numbers of updates, the most of any rank */
    double divergence_threshold; /* < 0: no guard */
    double drifts[TREK_DRIFTS]; /* of the job: the last ones */
} trek_averaging;

/* Makes a step average, when the processes have met. Fails with MEMORY. */
trek_status trek_averaging_begin(trek_step *s, double divergence_threshold);
void trek_averaging_end(trek_step *s);
/* Returns what averages in the background, or NULL. */
static inline struct trek_background *trek_ranks_background(const trek_step *s)
{
    return s->averaging ? s->averaging->background : NULL;
}
/* Sets every rank's optimizer as rank 0's is set. Fails with STATE if there is no optimizer. */
trek_status trek_average_begin_pass(trek_step *s);
/* Makes a step of the calling rank with its own gradients, which are zero afterwards. */
trek_status trek_average_local_step(trek_step *s, int rank);
/* Averages for trek_graph_step: replaces parameters, optimizer states and buffers of all ranks by their means. The
 * graph's steps increase by the batches of all ranks. A failure in the middle of averaging, after which replicas may
 * differ, fails all ranks and ends the group of processes. in_rounds: only the buffers are left to be averaged. */
trek_status trek_average_step(trek_step *s, bool in_rounds);

/* What rows of policies that average have in common. */
#define TREK_AVERAGE_OBSTACLE "parameters are averaged, which needs trek_graph_train_batch"
void trek_average_count(trek_step *s, int64_t batches); /* batches of all ranks, since the last average */
trek_status trek_average_no_backward(trek_step *s, trek_var *loss, double weight); /* fails with STATE, as the next one */
trek_status trek_average_no_reduce(trek_step *s);

/* Judges how far replicas have moved apart lately (s->drift is the last value), and what windows must do about it. */
trek_drift_verdict trek_average_judge(trek_step *s);

/* Returns the flat tensor of a part: the masters (state < 0), or a state of the optimizer. Returns NULL if it does
 * not exist. */
trek_tensor *trek_average_source(const rank_replica *own, int part, int state);
/* Returns a view of some of its elements, in the current scope. */
trek_var *trek_average_view(trek_tensor *flat, int64_t begin, int64_t count);
/* Rounds masters to 16-bit parameters. */
trek_status trek_average_round(const rank_replica *own, int part, int64_t begin, int64_t count);

#endif
