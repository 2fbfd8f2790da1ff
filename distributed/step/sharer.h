/* SPDX-License-Identifier: Apache-2.0 */
/* One of the ranks that divide an optimizer's state (optim/arena.h: sharers): what it keeps and updates, and how the parts come
 * together. For a stepper's ranks (sharded.c) and for trek_ddp's (ddp_optimizer.c). Internal. */
#ifndef TREK_DISTRIBUTED_STEP_SHARER_H
#define TREK_DISTRIBUTED_STEP_SHARER_H

#include "distributed/step/reducer.h"
#include "optim/optimizer_internal.h"

typedef struct trek_sharer {
    trek_comm *comm;              /* the sharers', a handle of this one's; all borrowed */
    trek_arena *arena;            /* made for as many sharers */
    trek_reducer *reducer;        /* the arena's */
    trek_optimizer *optimizer;    /* NULL: there is none yet */
} trek_sharer;

/* How the sharers cut arena and buckets, alike, and what of it is this one's. */
typedef struct trek_sharer_cuts {
    trek_arena_division division;
    trek_buckets buckets;
} trek_sharer_cuts;
/* As an optimizer needs it. Where its class updates elements (and spec NULL), of every bucket the part that a reduce-scatter
 * among the sharers gives this one; where it updates whole parameters, those that this one owns, in buckets that are reduced
 * to it and broadcast by it: as many bytes. masters: see trek_arena_division_make. MEMORY: then *made is empty. */
trek_status trek_sharer_cut(const trek_sharer *sharer, const trek_optimizer_spec *spec, int64_t bucket_bytes,
                            trek_tensor *const *masters, trek_sharer_cuts *made);
/* They become the arena's and the reducer's; those are *made then. While there is no optimizer, or before it goes. */
void trek_sharer_take(const trek_sharer *sharer, trek_sharer_cuts *made);
void trek_sharer_cuts_clear(trek_sharer_cuts *made);
/* Collectives. Every sharer's cuts of the parameters that the last `prepare` has found to be updated come to all. */
trek_status trek_sharer_gather_params(const trek_sharer *sharer);
/* The state of all comes to those that keep it, where the optimizer can be exported until trek_optimizer_gather_end. own: how the
 * caller is. Memory: the whole state on the host, and a bucket on every rank. */
trek_status trek_sharer_gather_state(const trek_sharer *sharer, bool keeps, trek_status own);
/* Of that only masters, to all. */
trek_status trek_sharer_gather_masters(const trek_sharer *sharer);
/* A trek_join_norm_fn over a communicator: both numbers stay in device memory, the host does not wait. */
trek_status trek_sharer_join_norm(trek_update_state *on_device, void *comm);

#endif
