/* SPDX-License-Identifier: Apache-2.0 */
/* The reducer: how one rank's gradients come together with the other ranks'. Internal.
 *
 * An object over a list of parameters. They stand as an arena lays them out (optim/arena.h): dtype by dtype, last registered
 * first, which is about the order in which backward completes their gradients; so gradients that lie in an arena of all of
 * them lie as they are sent. They are sent in buckets, all ranks' calls in one order, after a backward or under it.
 *
 * Of an arena: whole buckets go as they lie there, zeros included. An arena with sharers is cut evenly into buckets, wherever
 * parameters begin, and each bucket into the sharers' cuts; or, where parameters have owners, into buckets of one owner each.
 * Of parameters: their gradients may lie anywhere, and be missing. Then ranks first meet, and tell each other how they are,
 * what their gradients weigh and of which parameters they have some; so all know the same before anything is sent.
 * Stretches of a bucket without a gradient on any rank are left out. What lies as it is sent goes from where it is, the rest
 * through staging. */
#ifndef TREK_DISTRIBUTED_STEP_REDUCER_H
#define TREK_DISTRIBUTED_STEP_REDUCER_H

#include "autograd/var_internal.h"
#include "distributed/comm/comm_internal.h"
#include "distributed/step/buckets.h"
#include "optim/arena.h"

typedef struct trek_reducer_item {
    trek_var *var;            /* borrowed, as the name */
    const char *name;
    int part;
    int64_t offset, count;    /* elements, in its part */
    bool in_place;            /* in the present reduction: it is sent from where its gradient lies */
    trek_var *spare;          /* what becomes its gradient, where it has none of its own; NULL: none */
    trek_tensor *slot;        /* its place in the part's staging; NULL: none */
} trek_reducer_item;

/* One reduction. */
typedef struct trek_sending {
    trek_comm *comm;
    double factor;            /* of this rank's gradients; with 0 they are zeroed, never multiplied */
    bool ahead;               /* during backward: whatever trains is sent, as nobody knows yet who will have a gradient */
    bool starts;              /* calls are started; the caller finishes */
    bool scatters; /* of an arena with sharers, which are comm's ranks: each gets the sum of its own cuts only, where they
                      lie; what others' become is no gradient any more */
} trek_sending;

typedef struct trek_reducer {
    trek_params *params;      /* owned; NULL: the arena's */
    trek_arena *arena;        /* borrowed; NULL: none */
    trek_device device;
    trek_comm *home;          /* borrowed, as the arena */
    const trek_backend *backend;
    int n, n_parts;
    trek_reducer_item *items; /* [n] in arena order */
    int *item_of;             /* [n] parameters, as they are registered */
    trek_arena_part parts[TREK_DTYPE_COUNT]; /* grads: the arena's; else staging, NULL while none is needed */
    trek_buckets buckets;     /* an item for each of items */
    bool *any;                /* [n] there is a gradient: of an arena, here; after a meeting, on some rank */
    bool mixed;               /* layers that meet have mixed the ranks' gradients already, as if all weighed alike */
    size_t message_bytes;
    char *messages;           /* of the ranks that meet, after this rank's; NULL: none */
    trek_sending now;
    trek_status status;       /* of the present reduction: the first failure; sending goes on, so that nobody waits */
} trek_reducer;

/* Of an arena's gradients. NULL and MEMORY. */
trek_reducer *trek_reducer_of_arena(trek_arena *arena, int64_t bucket_bytes);
/* Of parameters on a device, a list that is taken over, also on failure. home: in whose memory staging is made; NULL: the
 * device's. NULL and MEMORY, DEVICE. */
trek_reducer *trek_reducer_of_params(trek_params *params, trek_device device, int64_t bucket_bytes, trek_comm *home);
void trek_reducer_free(trek_reducer **reducer);

/* Room for meetings of so many ranks. MEMORY. */
trek_status trek_reducer_make_room(trek_reducer *reducer, int world_size);
/* All ranks of comm come to it, with what they have (of an arena: `any`) and how they are (own), and to the same result: `any`
 * is what some rank has, whatever its weight. *factor: this rank's share of the weights. Errors: own; PEER, naming who has
 * failed; ARGUMENT: weights that sum to 0, a parameter that is frozen on some ranks only; UNSUPPORTED: unequal weights of
 * gradients that are mixed on some rank; what the engine reports. `what` begins messages. */
trek_status trek_reducer_meet(trek_reducer *reducer, trek_comm *comm, const char *what, double weight, trek_status own,
                              double *factor);

/* A reduction begins. */
void trek_reducer_begin(trek_reducer *reducer, trek_sending reduction);
/* A trek_backward_watch's, whose leaves are the parameters as they are registered (others may follow): the gradient of number
 * k is complete. Sends the buckets that have become so, and whose turn it is. */
void trek_reducer_complete(int k, void *reducer);
/* Sends what is left. The first failure since it began. */
trek_status trek_reducer_rest(trek_reducer *reducer);
/* A reduction of all at once. */
trek_status trek_reducer_run(trek_reducer *reducer, trek_sending reduction);

/* --- of parameters only (reducer_places.c): where their gradients lie ----------------------------------------------- */

static inline bool trek_item_trains(const trek_reducer_item *item) { return item->var->requires_grad; }
bool trek_item_has_grad(const trek_reducer_item *item);
/* What can fail: staging, and room for the gradients that this rank has not, where they are not to come from a backward. */
trek_status trek_reducer_prepare(trek_reducer *reducer, bool ahead);
/* That room, after the backward. */
trek_status trek_reducer_make_spares(trek_reducer *reducer);
/* What was sent comes to be the parameters' gradients. */
trek_status trek_reducer_settle(trek_reducer *reducer);
/* A reduction is over, however it went. */
void trek_reducer_drop_spares(trek_reducer *reducer);

/* For sending. Whether the gradients of items [first, end) lie in memory as they are sent; and brings them to where they are
 * sent from, multiplied by nothing but 0. */
bool trek_reducer_lies_in_place(const trek_reducer *reducer, int first, int end);
trek_status trek_reducer_collect(trek_reducer *reducer, int first, int end);
/* Where item k is sent from. */
char *trek_reducer_place(const trek_reducer *reducer, int k);

#endif
