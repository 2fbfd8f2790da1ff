/* SPDX-License-Identifier: Apache-2.0 */
/* One of the ranks that divide an optimizer's state (optim/arena.h: sharers): what it keeps and updates, and how the
 * parts are gathered. A stepper's ranks (sharded.c) and those of trek_ddp (ddp_optimizer.c) use it. */
#ifndef TREK_DISTRIBUTED_TEAM_SHARER_H
#define TREK_DISTRIBUTED_TEAM_SHARER_H

#include "distributed/team/reducer.h"
#include "optim/optimizer_internal.h"

typedef struct trek_sharer {
    trek_comm *comm;              /* of the sharers, a handle of this one; all members are borrowed */
    trek_arena *arena;            /* made for the same number of sharers */
    trek_reducer *reducer;        /* of the arena */
    trek_optimizer *optimizer;    /* NULL: none exists yet */
    bool bare;                    /* masters of new cuts are zeros, which the caller fills */
} trek_sharer;

/* How the sharers cut arena and buckets, in the same way, and which of the cuts are this sharer's. */
typedef struct trek_sharer_cuts {
    trek_arena_division division;
    trek_buckets buckets;
} trek_sharer_cuts;
/* Makes the cuts that an optimizer needs. If its class updates elements (or spec is NULL), this sharer gets the part
 * of every bucket that a reduce-scatter gives it. If the class updates whole parameters, it gets those that it owns,
 * in buckets that are reduced to it and broadcast by it; the number of bytes is the same. masters: see
 * trek_arena_division_make. Fails with MEMORY; then *made is empty. */
trek_status trek_sharer_cut(const trek_sharer *sharer, const trek_optimizer_spec *spec, int64_t bucket_bytes,
                            trek_tensor *const *masters, trek_sharer_cuts *made);
/* Exchanges *made with the cuts of arena and reducer. Called while no optimizer exists, or before it is freed. */
trek_status trek_sharer_take(const trek_sharer *sharer, trek_sharer_cuts *made);
void trek_sharer_cuts_clear(trek_sharer_cuts *made);
/* Gathers every sharer's cuts of the parameters that the last `prepare` has found to be updated, on all sharers. A
 * collective. */
trek_status trek_sharer_gather_params(const trek_sharer *sharer);
/* Gathers the state of all sharers on those that keep it, where the optimizer can export it until
 * trek_optimizer_gather_end. A collective; own is the caller's status. It needs memory for the whole state on the
 * host, and for a bucket on every rank. */
trek_status trek_sharer_gather_state(const trek_sharer *sharer, bool keeps, trek_status own);
/* A stretch of the numbers of an item (optim/optimizer_internal.h) that one sharer keeps. */
typedef struct trek_sharer_piece {
    int sharer;
    int64_t begin, count;
} trek_sharer_piece;
/* Finds the piece that begins with number *at of an item, and moves *at behind it. Returns false at the end. Every sharer gets
 * the same pieces, and knows by them who has what. */
bool trek_sharer_next_piece(const trek_sharer *sharer, const trek_optimizer_item *item, int64_t *at, trek_sharer_piece *piece);
/* Returns where this sharer keeps one of its own pieces, in memory of its device. */
const char *trek_sharer_own_piece(const trek_sharer *sharer, const trek_optimizer_item *item, const trek_sharer_piece *piece);
/* Gathers only the masters, on all sharers. */
trek_status trek_sharer_gather_masters(const trek_sharer *sharer);
/* A trek_join_norm_fn over a communicator. On a GPU both numbers stay in its memory, and with NCCL the host does not wait. */
trek_status trek_sharer_join_norm(trek_update_state *state, void *comm);

#endif
