/* SPDX-License-Identifier: Apache-2.0 */
/* The stepper over the ranks of a process: the graph's table of calls (graph/stepper.h). */
#ifndef TREK_DISTRIBUTED_STEPPER_H
#define TREK_DISTRIBUTED_STEPPER_H

#include "distributed/pass/shares.h"
#include "distributed/team/step.h"
#include "distributed/team/step_policy.h"

typedef struct ranks_stepper {
    trek_stepper base;
    trek_team team;
    trek_step step;
    struct ranks_recording *recording; /* recording.c: a step that is being recorded; NULL: none */
    struct ranks_before *before;       /* the host's state before the last one; NULL: none */
    int64_t recorded;        /* how many steps all have recorded */
} ranks_stepper;

/* Makes the stepper. It owns the group and the replicas' graphs, also on failure. graphs[0] is the caller's. */
trek_stepper *trek_stepper_ranks_new(trek_ranks *ranks, trek_graph **graphs, const trek_ranks_opts *opts);
/* Returns the step of a graph that trains on several ranks or processes; NULL otherwise. */
trek_step *trek_graph_ranks(const trek_graph *graph);
/* Returns who trains the graph: a job of one if it trains on a single device. */
const trek_job *trek_graph_job(const trek_graph *graph);
/* Returns the rank's graph of a graph that trains on several ranks; NULL otherwise. For tests. */
trek_graph *trek_graph_replica(trek_graph *graph, int rank);

#endif
