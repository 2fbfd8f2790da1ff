/* SPDX-License-Identifier: Apache-2.0 */
/* Constants and teachers of a graph on all its ranks. */
#ifndef TREK_DISTRIBUTED_TEAM_CONSTANTS_H
#define TREK_DISTRIBUTED_TEAM_CONSTANTS_H

#include "distributed/job/job.h"
#include "distributed/team/team.h"

/* Copies constants and teachers of rank 0's graph, and the values of teachers, to all ranks. */
trek_status trek_ranks_constants(const trek_team *team, const trek_job *job);
trek_status trek_ranks_follow_teachers(const trek_team *team, int rank);

#endif
