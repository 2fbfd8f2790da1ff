/* SPDX-License-Identifier: Apache-2.0 */
/* The stepper over the ranks of a process: the graph's table of calls (graph/stepper.h). */
#ifndef TREK_DISTRIBUTED_STEPPER_H
#define TREK_DISTRIBUTED_STEPPER_H

#include "distributed/job/job.h"
#include "distributed/team/team.h"

struct trek_ranks_opts;
struct trek_workload;
typedef struct trek_step trek_step;

/* Makes the stepper. It owns the group and the replicas' graphs, also on failure. graphs[0] is the caller's. */
trek_stepper *trek_stepper_ranks_new(trek_ranks *ranks, trek_graph **graphs, const struct trek_ranks_opts *opts);
/* Returns the step of a graph that trains on several ranks or processes; NULL otherwise. */
trek_step *trek_graph_ranks(const trek_graph *graph);
/* What others may know of a step, without its record (team/step.h): who makes it, with whom, how the work is divided (NULL: that
 * is not known yet), and the samples of a grain (0: batches are not cut into grains). */
trek_team *trek_step_team(const trek_step *s);
const trek_job *trek_step_job(const trek_step *s);
struct trek_workload *trek_step_workload(const trek_step *s);
int64_t trek_step_grain(const trek_step *s);
/* Return whether parameters are averaged instead of gradients, and how far the replicas were from the last average. */
bool trek_step_averages(const trek_step *s);
double trek_step_drift(const trek_step *s);
/* Returns who trains the graph: a job of one if it trains on a single device. */
const trek_job *trek_graph_job(const trek_graph *graph);
/* Returns the rank's graph of a graph that trains on several ranks; NULL otherwise. For tests. */
trek_graph *trek_graph_replica(trek_graph *graph, int rank);

#endif
