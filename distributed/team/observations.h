/* SPDX-License-Identifier: Apache-2.0 */
/* What training functions have recorded, as bytes for other processes and for checkpoints. */
#ifndef TREK_DISTRIBUTED_TEAM_OBSERVATIONS_H
#define TREK_DISTRIBUTED_TEAM_OBSERVATIONS_H

#include "distributed/job/job.h"
#include "distributed/team/team.h"
#include "graph/graph.h"
#include "nn/text.h"

/* Packs what this graph and those inside it have recorded, as far as it is on the host. The text is in a failed state
 * if memory is missing. */
trek_text trek_observations_pack(const trek_graph *graph);
/* Packs it, and drops it there. */
trek_text trek_observations_take(trek_graph *graph);
/* Adds what was packed. Fails with COMM if it is damaged, or with MEMORY. */
trek_status trek_observations_unpack(trek_graph *into, const char *bytes, int64_t length);

/* Gathers what training functions have recorded, on all ranks and processes, in the caller's graph. */
trek_status trek_ranks_gather_observations(const trek_team *team, const trek_job *job);
/* Packs the same, for a checkpoint: what was recorded stays where it is, so training can continue. A collective. */
trek_status trek_ranks_pack_observations(const trek_team *team, const trek_job *job, trek_text *text);

#endif
