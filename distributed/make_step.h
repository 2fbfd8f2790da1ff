/* SPDX-License-Identifier: Apache-2.0 */
/* How the step of a job is made and ended. */
#ifndef TREK_DISTRIBUTED_MAKE_STEP_H
#define TREK_DISTRIBUTED_MAKE_STEP_H

#include "distributed/stepper_internal.h"

/* Makes a step and its team, with the other processes of its job. It owns the group and the replicas' graphs, and must be ended
 * in any case. */
trek_status trek_step_make(trek_step *s, trek_team *team, trek_ranks *ranks, trek_graph **graphs, const trek_ranks_opts *opts);
void trek_step_end(trek_step *s);
/* Gives all ranks of this process the values of rank 0's parameters, buffers and teachers. */
trek_status trek_step_copy_first(trek_step *s);

#endif
