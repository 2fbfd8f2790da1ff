/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of ranks that each keep and update a part of the optimizer's state (optim/arena.h: sharers). Internal. */
#ifndef TREK_DISTRIBUTED_STEP_SHARDED_H
#define TREK_DISTRIBUTED_STEP_SHARDED_H

#include "distributed/step/reduce.h"

/* Each rank's cuts: of every bucket of its reducer the part that a reduce-scatter among the sharers gives it. Once. */
trek_status trek_ranks_plan_shards(ranks_stepper *s);
/* How such ranks step; NULL where nothing is shared. */
const arena_kind *trek_ranks_sharded_kind(const ranks_stepper *s);

/* The state of all sharers comes to rank 0 of process 0, or of every process, where its optimizer can be exported until it is
 * forgotten. A collective; own: how the caller is. Where nothing is shared, or there is no optimizer, or s is NULL: own. Memory:
 * the whole state on the host, and a bucket on every rank. */
trek_status trek_ranks_gather_state(ranks_stepper *s, trek_status own, bool everywhere);
void trek_ranks_forget_state(ranks_stepper *s);

#endif
