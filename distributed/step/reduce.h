/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks' part of a step: gradients are summed, and used. Internal. */
#ifndef TREK_DISTRIBUTED_STEP_REDUCE_H
#define TREK_DISTRIBUTED_STEP_REDUCE_H

#include "distributed/step/stepper_ranks.h"

struct arena_kind;

typedef struct trek_step_call {
    ranks_stepper *s;
    const struct arena_kind *kind; /* NULL: every rank updates all that is its own */
    bool update;
    bool sent;               /* the gradients are on their way already */
    trek_status interprocess; /* of rank 0's part: the reduction between processes */
    trek_update_state decided; /* what rank 0, like all, made of the step */
} trek_step_call;

/* One rank's step. */
typedef struct rank_step {
    trek_step_call *call;
    ranks_stepper *s;
    int rank;
    rank_replica *replica;
    trek_comm *local;        /* of the ranks of this process */
    bool measure;            /* the norm, or whether all are finite, is wanted before the update */
    bool at_once;            /* sums are used while they are in cache */
    trek_update_state state;
} rank_step;

/* What differs by where gradients lie, and who updates what. Each in order; the first failure, the same on all ranks, ends the
 * step. */
typedef struct arena_kind {
    trek_status (*begin)(rank_step *x);
    trek_status (*sum)(rank_step *x);     /* of the ranks of this process */
    trek_status (*interprocess)(rank_step *x); /* and, where there are some, of the other processes */
    trek_status (*decide)(rank_step *x);  /* what the update will be: x->state */
    trek_status (*update)(rank_step *x);
    void (*keep)(rank_step *x);           /* there is no update: rank 0 holds the sum, the others zeros */
} arena_kind;

/* For sharded.c, what kinds have alike. Ranks with arenas of their own prepare their optimizers. */
trek_status trek_ranks_begin_separate(rank_step *x);
/* Of ranks that share an arena: rank 0's gradients become the sum of this process. */
void trek_ranks_sum_shared(const rank_step *x);
/* What the step comes to: the same on all ranks, from the same sum of squares. */
trek_update_state trek_ranks_decide(const ranks_stepper *s, double sum_squares, bool measured);
/* On a device: some rank's gradients are everybody's. */
void trek_ranks_claim_gradients(const rank_step *x);
/* After what rank 0 has done with the other processes, the result of which is call->interprocess: all learn of it. own: how the
 * rank has come to it. */
trek_status trek_ranks_meet_after(rank_step *x, trek_status own);

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
