/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks' part of a step: gradients are summed and used. */
#ifndef TREK_DISTRIBUTED_REDUCE_REDUCE_H
#define TREK_DISTRIBUTED_REDUCE_REDUCE_H

#include "distributed/team/team.h"

typedef struct trek_step trek_step;

struct arena_kind;

typedef struct trek_step_call {
    trek_step *s;
    const struct arena_kind *kind; /* NULL: every rank updates everything in its own arena */
    bool update;
    bool sent;               /* the gradients are already being sent */
    bool grains;             /* they are in the sums of grains */
    bool whole;              /* every sharer of the optimizer's state has the whole gradient when it updates its parts */
    trek_status interprocess; /* of rank 0's part: the reduction between processes */
    trek_update_state decided; /* what rank 0 has decided about the step, as all ranks have */
} trek_step_call;

/* The step of one rank. */
typedef struct rank_step {
    trek_step_call *call;
    trek_step *s;
    int rank;
    rank_replica *replica;
    trek_comm *local;        /* of the ranks of this process */
    bool measure;            /* the norm, or whether all values are finite, must be known before the update */
    bool at_once;            /* sums are used while they are in the cache */
    trek_update_state state;
} rank_step;

/* What depends on where gradients lie and on who updates what. The functions are called in this order. The first
 * failure, the same on all ranks, ends the step. */
typedef struct arena_kind {
    trek_status (*begin)(rank_step *x);
    trek_status (*sum)(rank_step *x);     /* sums over the ranks of this process */
    trek_status (*interprocess)(rank_step *x); /* and over the other processes, if there are any */
    trek_status (*decide)(rank_step *x);  /* decides what the update will be: x->state */
    trek_status (*update)(rank_step *x);
    void (*keep)(rank_step *x);           /* called if there is no update: rank 0 holds the sum, the others zeros */
} arena_kind;

/* Common functions for sharded.c. Ranks with separate arenas prepare their optimizers. */
trek_status trek_ranks_begin_separate(rank_step *x);
/* Replaces rank 0's gradients by the sum of this process, for ranks that share an arena. */
void trek_ranks_sum_shared(const rank_step *x);
/* Returns the decision about the step, which is the same on all ranks, from the same sum of squares. */
trek_update_state trek_ranks_decide(const trek_step *s, double sum_squares, bool measured);
/* Notes on a device that all ranks have the gradients that some rank has. */
void trek_ranks_claim_gradients(const rank_step *x);
/* Called after rank 0 has worked with the other processes, with the result call->interprocess: all ranks learn of it.
 * own: the rank's status. */
trek_status trek_ranks_meet_after(rank_step *x, trek_status own);

/* Notes which rank's backward gave which segment a gradient. Called by the caller while the ranks are idle. */
void trek_ranks_note_gradients(trek_step *s);
/* The scaler of a rank's losses. prepare is called before ranks use it. */
trek_status trek_ranks_prepare_scaler(trek_step *s);
trek_grad_scaler *trek_ranks_scaler(const trek_step *s, int rank);
/* Runs the step on all ranks. */
trek_status trek_ranks_run_step(trek_step_call *call);

/* Where the gradients of a step are (team/step_state.h) is the business of this folder; others ask and tell it here. */
/* Begins without gradients. */
void trek_ranks_begin(trek_step *s);
/* Notes that a pass has ended; gave: with gradients. */
void trek_ranks_passed(trek_step *s, bool gave);
/* Notes that what the pass has given must be multiplied by the factor. */
void trek_ranks_owe_factor(trek_step *s, double factor);
/* Return whether a pass has given gradients, and whether they have all been reduced. */
bool trek_ranks_have_passed(const trek_step *s);
bool trek_ranks_are_reduced(const trek_step *s);
/* Clears what the step has kept, at its end or to drop what it has so far. */
void trek_ranks_reset(trek_step *s);

/* Returns the options of the update of a rank that decides on its own device. */
trek_step_opts trek_ranks_step_opts(const trek_step *s, int rank);
/* Returns whether such a step measures gradients: it clips them, or a loss is scaled. */
bool trek_ranks_measures_on_device(const trek_step *s, int rank);

/* Replace the gradients of all ranks of the job by their sum, for ranks with separate arenas, and merge buffers.
 * Called by every rank. */
trek_status trek_ranks_sum_gradients(trek_step *s, int rank);
trek_status trek_ranks_merge_buffers(trek_step *s, int rank);

#endif
