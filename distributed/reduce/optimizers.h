/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizers of the ranks, as the graph sets them. */
#ifndef TREK_DISTRIBUTED_REDUCE_OPTIMIZERS_H
#define TREK_DISTRIBUTED_REDUCE_OPTIMIZERS_H

#include "distributed/team/team.h"

typedef struct trek_step trek_step;

/* Sets the optimizers of all ranks, or of none. States that are loaded later reach all ranks of the job. */
trek_status trek_ranks_set_optimizer(trek_step *s, const trek_optimizer_source *source);
/* Sets the learning rate of all ranks. If the first rank refuses it, nothing has changed. */
trek_status trek_team_set_lr(const trek_team *team, double lr);

#endif
