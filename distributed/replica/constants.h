/* SPDX-License-Identifier: Apache-2.0 */
/* Constants and teachers of a graph on all its ranks. */
#ifndef TREK_DISTRIBUTED_REPLICA_CONSTANTS_H
#define TREK_DISTRIBUTED_REPLICA_CONSTANTS_H

#include "distributed/step/step.h"

/* Copies constants and teachers of rank 0's graph, and the values of teachers, to all ranks. */
trek_status trek_ranks_constants(trek_step *s);
trek_status trek_ranks_follow_teachers(const trek_team *team, int rank);

#endif
