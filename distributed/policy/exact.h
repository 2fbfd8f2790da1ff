/* SPDX-License-Identifier: Apache-2.0 */
/* The step as its caller sees it. */
#ifndef TREK_DISTRIBUTED_POLICY_EXACT_H
#define TREK_DISTRIBUTED_POLICY_EXACT_H

#include "distributed/team/team.h"

typedef struct trek_step trek_step;

trek_status trek_ranks_reduce(trek_step *s);
trek_status trek_ranks_step(trek_step *s);
/* Detaches the states of all ranks' graphs from the tape. */
trek_status trek_ranks_detach(trek_step *s);
/* Copies rank 0's learning rates to all ranks, by the schedule if that is requested. */
trek_status trek_ranks_set_rates(trek_step *s, bool by_schedule);
void trek_ranks_count_step(trek_step *s);

#endif
