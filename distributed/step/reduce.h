/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks' part of a step: gradients are summed, and used. Internal. */
#ifndef TREK_DISTRIBUTED_STEP_REDUCE_H
#define TREK_DISTRIBUTED_STEP_REDUCE_H

#include "distributed/step/stepper_ranks.h"

typedef struct trek_step_call {
    ranks_stepper *s;
    const struct arena_kind *kind;
    bool update;
    bool sent;               /* the gradients are on their way already */
    trek_status interprocess; /* of rank 0's part: the reduction between processes */
    trek_update_state decided; /* what rank 0, like all, made of the step */
} trek_step_call;

/* Room, chunks, buckets: once. */
trek_status trek_ranks_plan_reduce(ranks_stepper *s);
/* Which ranks' backward gave which segment a gradient. By the caller, while the ranks are idle. */
void trek_ranks_note_gradients(ranks_stepper *s);
/* On all ranks. */
trek_status trek_ranks_run_step(trek_step_call *call);

/* What a rank's update is given that decides on its own device. */
trek_step_opts trek_ranks_step_opts(const ranks_stepper *s, int rank);

/* Gradients of all ranks of the job become their sum, where ranks have arenas of their own; merges buffers. By every rank. */
trek_status trek_ranks_sum_gradients(ranks_stepper *s, int rank);
trek_status trek_ranks_merge_buffers(ranks_stepper *s, int rank);

#endif
