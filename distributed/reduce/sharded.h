/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of ranks that each keep and update a part of the optimizer's state (optim/arena.h: sharers). */
#ifndef TREK_DISTRIBUTED_REDUCE_SHARDED_H
#define TREK_DISTRIBUTED_REDUCE_SHARDED_H

#include "distributed/reduce/reduce.h"
#include "distributed/team/sharer.h"

/* Makes each rank's cuts before an optimizer exists: even ones. */
trek_status trek_ranks_plan_shards(trek_step *s);
/* Replaces these cuts by others in proportion to the sharers' weights (trek_arena_weigh). No optimizer may exist yet. */
trek_status trek_ranks_weigh_shards(trek_step *s, const double *weights);
/* Changes all ranks' cuts to those that an optimizer needs (NULL: even ones). Masters stay with their parameters; if
 * an optimizer exists, all sharers must call it. *before gets the old cuts; `end` frees them or, without keep,
 * restores them while the old optimizer still exists. Fails with MEMORY; then nothing has changed. */
typedef struct trek_ranks_cuts trek_ranks_cuts;
trek_status trek_ranks_cut(trek_step *s, const trek_optimizer_spec *spec, trek_ranks_cuts **before);
void trek_ranks_cut_end(trek_ranks_cuts **before, bool keep);
/* The same without the masters: the new ones are made from the parameters, and the caller brings their contents. It is no
 * collective. */
trek_status trek_ranks_cut_bare(trek_step *s, const trek_optimizer_spec *spec, trek_ranks_cuts **before);
/* Does so only if the cuts do not fit and the state is divided; otherwise *before is NULL. */
trek_status trek_ranks_cut_for(trek_step *s, const trek_optimizer_spec *spec, trek_ranks_cuts **before);
/* Returns how such ranks step. */
const arena_kind *trek_ranks_sharded_kind(const trek_step *s);

/* Returns what belongs to a rank of this process that is a sharer. */
trek_sharer trek_ranks_sharer(const trek_step *s, int rank);
/* Returns the process of a sharer, and in *local its rank there. */
int trek_ranks_sharer_process(const trek_step *s, int sharer, int *local);

/* Gathers the state of all sharers on rank 0 of process 0, or of every process, where the optimizer can export it
 * until it is forgotten. A collective; own is the caller's status. Returns own if the state is not divided, if there
 * is no optimizer, or if s is NULL. It needs memory for the whole state on the host, and for a bucket on every rank. */
trek_status trek_ranks_gather_state(trek_step *s, trek_status own, bool everywhere);
void trek_ranks_forget_state(trek_step *s);

#endif
