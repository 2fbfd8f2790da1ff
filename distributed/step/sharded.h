/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of ranks that each keep and update a part of the optimizer's state (optim/arena.h: sharers). Internal. */
#ifndef TREK_DISTRIBUTED_STEP_SHARDED_H
#define TREK_DISTRIBUTED_STEP_SHARDED_H

#include "distributed/step/reduce.h"

/* Each rank's cuts, before there is an optimizer: even ones. */
trek_status trek_ranks_plan_shards(ranks_stepper *s);
/* All ranks' cuts become what an optimizer needs (NULL: even ones), masters go with their parameters: where an
 * optimizer is there, all sharers come to it. *before is what there was; `end` forgets it, or (not keep) brings it back: then
 * the optimizer that it was of is still there. MEMORY: nothing has changed. */
typedef struct trek_ranks_cuts trek_ranks_cuts;
trek_status trek_ranks_cut(ranks_stepper *s, const trek_optimizer_spec *spec, trek_ranks_cuts **before);
void trek_ranks_cut_end(trek_ranks_cuts **before, bool keep);
/* The same where cuts do not fit already, or nothing is shared: then *before is NULL. */
trek_status trek_ranks_cut_for(ranks_stepper *s, const trek_optimizer_spec *spec, trek_ranks_cuts **before);
/* How such ranks step; NULL where nothing is shared. */
const arena_kind *trek_ranks_sharded_kind(const ranks_stepper *s);

/* The state of all sharers comes to rank 0 of process 0, or of every process, where its optimizer can be exported until it is
 * forgotten. A collective; own: how the caller is. Where nothing is shared, or there is no optimizer, or s is NULL: own. Memory:
 * the whole state on the host, and a bucket on every rank. */
trek_status trek_ranks_gather_state(ranks_stepper *s, trek_status own, bool everywhere);
void trek_ranks_forget_state(ranks_stepper *s);

#endif
