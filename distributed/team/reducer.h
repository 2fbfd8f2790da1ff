/* SPDX-License-Identifier: Apache-2.0 */
/* The reducer: combines one rank's gradients with those of the other ranks.
 *
 * It works on a list of parameters, in the order of an arena (optim/arena.h): dtype by dtype, last registered first,
 * which is about the order in which backward completes their gradients. So gradients in an arena of all of them
 * already lie as they are sent. They are sent in buckets, with all ranks' calls in one order, after a backward or
 * during it.
 *
 * Gradients in an arena: whole buckets are sent as they lie there, including zeros. An arena with sharers is cut
 * evenly into buckets, wherever parameters begin, and each bucket into the sharers' cuts; if parameters have owners,
 * it is cut into buckets of one owner each. Gradients of parameters outside an arena may lie anywhere, or be missing.
 * Then the ranks first meet and tell each other their status, the weights of their gradients, and which parameters
 * have gradients, so that all know the same before anything is sent. Stretches of a bucket in which no rank has a
 * gradient are left out. Gradients that lie as they are sent are sent from there, others from staging memory. */
#ifndef TREK_DISTRIBUTED_TEAM_REDUCER_H
#define TREK_DISTRIBUTED_TEAM_REDUCER_H

#include "autograd/var_internal.h"
#include "distributed/comm/comm_internal.h"
#include "distributed/team/buckets.h"
#include "optim/arena.h"

typedef struct trek_reducer_item {
    trek_var *var;            /* borrowed, as the name */
    const char *name;
    int part;
    int64_t offset, count;    /* elements, within its part */
    bool in_place;            /* in the current reduction: it is sent from where its gradient lies */
    trek_var *spare;          /* becomes its gradient if it has none of its own; NULL: none */
    trek_tensor *slot;        /* its memory in the part's staging; NULL: none */
} trek_reducer_item;

/* One reduction. */
typedef struct trek_sending {
    trek_comm *comm;
    double factor;            /* multiplies this rank's gradients; with 0 they are set to zero instead of being multiplied */
    bool ahead;               /* during backward: everything that trains is sent, because nobody knows yet which will have a
                               * gradient */
    bool starts;              /* calls are started, and the caller finishes them */
    bool scatters; /* of an arena with sharers, which are comm's ranks: each gets only the sum of its own cuts, in place; the
                    * rest is no gradient any more */
    bool gives_back; /* then the memory of the rest is given back (trek_arena_give_back) as soon as a bucket has been sent.
                      * With comm NULL nothing is sent, only given back: for measuring memory */
    trek_bucket_fn deliver;   /* then, called instead of sending a bucket; NULL: it is sent */
    void (*settle)(void *arg); /* called before the memory of what was delivered is given back; NULL: nothing */
    void *arg;                /* of both */
    bool lags;                /* and one bucket may be under way meanwhile (trek_comm_overlaps), */
    bool fills;               /* and all of a bucket needs memory while it is sent (trek_comm_fills) */
} trek_sending;

typedef struct trek_reducer {
    trek_params *params;      /* owned; NULL: the arena's */
    trek_arena *arena;        /* borrowed; NULL: no arena */
    trek_device device;
    trek_comm *home;          /* borrowed, as the arena */
    const trek_backend *backend;
    int n, n_parts;
    trek_reducer_item *items; /* [n] in arena order */
    int *item_of;             /* [n] the item of each parameter, in order of registration */
    trek_arena_part parts[TREK_DTYPE_COUNT]; /* grads: the arena's; otherwise staging, NULL until it is needed */
    trek_buckets buckets;     /* of the reducer's items */
    bool *any;                /* [n] whether there is a gradient: in an arena here, after a meeting on some rank */
    bool apart;               /* every gradient is sent from staging, so that it is what it was until the reduction is settled */
    bool mixed;               /* layers that meet have already mixed the ranks' gradients, with equal weights */
    size_t message_bytes;
    char *messages;           /* of the ranks that meet, after this rank's own; NULL: none */
    trek_sending now;
    struct trek_low_sums
        *low; /* f32 gradients travel as bf16 where they are sent by its communicator; owned. NULL: they do not */
    const trek_bucket *under_way; /* the last one, whose memory has not been given back; NULL: none */
    trek_status status;       /* of the current reduction: the first failure; sending continues, so that no rank waits */
} trek_reducer;

/* Makes a reducer of an arena's gradients. Returns NULL on failure (MEMORY). */
trek_reducer *trek_reducer_of_arena(trek_arena *arena, int64_t bucket_bytes);
/* Makes a reducer of parameters on a device; it owns the list, also on failure. home: the communicator in whose
 * memory staging is made; NULL: memory of the device. Returns NULL on failure (MEMORY, DEVICE). */
trek_reducer *trek_reducer_of_params(trek_params *params, trek_device device, int64_t bucket_bytes, trek_comm *home);
void trek_reducer_free(trek_reducer **reducer);

/* Makes room for meetings of world_size ranks. Fails with MEMORY. */
trek_status trek_reducer_make_room(trek_reducer *reducer, int world_size);
/* Meets the other ranks of comm, which must all call it, with what they have (of an arena: `any`) and their status
 * (own). All get the same result: `any` says which parameters have a gradient on some rank, whatever its weight;
 * *factor is this rank's share of the weights. Fails with own; with PEER, which names the rank that has failed; with
 * ARGUMENT (weights that sum to 0, or a parameter that is frozen on some ranks only); with UNSUPPORTED (unequal
 * weights while gradients are mixed on some rank); or with errors of the engine. Messages begin with `what`. */
trek_status trek_reducer_meet(trek_reducer *reducer, trek_comm *comm, const char *what, double weight, trek_status own,
                              double *factor);

/* Begins a reduction. */
void trek_reducer_begin(trek_reducer *reducer, trek_sending reduction);
/* Notes that the gradient of parameter k is complete, and sends the buckets that are complete and next in order. It
 * is the callback of a trek_backward_watch whose leaves are the parameters in order of registration; others may
 * follow them. */
void trek_reducer_complete(int k, void *reducer);
/* Sends what is left. Returns the first failure since the beginning. */
trek_status trek_reducer_rest(trek_reducer *reducer);
/* Runs a whole reduction. */
trek_status trek_reducer_run(trek_reducer *reducer, trek_sending reduction);

/* --- of parameters outside an arena (reducer_places.c): where their gradients lie
 * ------------------------------------ */

static inline bool trek_item_trains(const trek_reducer_item *item) { return item->var->requires_grad; }
bool trek_item_has_grad(const trek_reducer_item *item);
/* Does what can fail: allocates staging, and gradients that this rank does not have, unless a backward will make them. */
trek_status trek_reducer_prepare(trek_reducer *reducer, bool ahead);
/* Allocates those gradients after the backward. */
trek_status trek_reducer_make_spares(trek_reducer *reducer);
/* Makes what was sent the parameters' gradients. */
trek_status trek_reducer_settle(trek_reducer *reducer);
/* Ends a reduction, whatever its result. */
void trek_reducer_drop_spares(trek_reducer *reducer);

/* For sending: copies the gradients of items [first, end) to where they are sent from. They are not multiplied, except by 0. */
trek_status trek_reducer_collect(trek_reducer *reducer, int first, int end);
/* Returns where item k is sent from. */
char *trek_reducer_place(const trek_reducer *reducer, int k);

#endif
