/* SPDX-License-Identifier: Apache-2.0 */
/* The stepper over the ranks of a process: the graph's table of calls (graph/stepper.h). */
#ifndef TREK_DISTRIBUTED_STEPPER_H
#define TREK_DISTRIBUTED_STEPPER_H

#include "distributed/pass/shares.h"
#include "distributed/team/step.h"

typedef struct ranks_stepper {
    trek_stepper base;
    trek_team team;
    trek_step step;
    struct ranks_recording *recording; /* recording.c: a step that is being recorded; NULL: none */
    struct ranks_before *before;       /* the host's state before the last one; NULL: none */
    int64_t recorded;        /* how many steps all have recorded */
} ranks_stepper;

/* Makes the stepper. It owns the group and the replicas' graphs, also on failure. graphs[0] is the caller's. */
typedef struct trek_ranks_opts {
    bool shared;
    bool shards;                  /* divides the optimizer's state if ranks or processes would otherwise have it more than once */
    bool shards_grads;            /* and gradients, too */
    bool averages;                /* averages parameters; they are not shared then */
    bool sites;                   /* of a job's processes: the ranks of each make their steps together, and may share
                                   * parameters */
    double divergence_threshold;  /* < 0: no guard */
    int64_t grain;                /* samples of a grain; 0: batches are not cut into grains */
    const char *digests;          /* then, the file of digests; NULL: none */
    double audit;                 /* and the share of grains that are computed twice */
    int64_t bucket_bytes;
    const int64_t *budgets;       /* [ranks] bytes of memory that each may use; NULL: none */
    int overlap;                  /* 0: if the engine progresses by itself; 1: always between processes; TREK_OFF: never */
    trek_comm *comm;              /* among processes; the stepper takes a handle. NULL: one process */
    const trek_workload_opts *workload;
} trek_ranks_opts;
trek_stepper *trek_stepper_ranks_new(trek_ranks *ranks, trek_graph **graphs, const trek_ranks_opts *opts);
/* Returns the step of a graph that trains on several ranks or processes; NULL otherwise. */
trek_step *trek_graph_ranks(const trek_graph *graph);
/* Returns the rank's graph of a graph that trains on several ranks; NULL otherwise. For tests. */
trek_graph *trek_graph_replica(trek_graph *graph, int rank);

#endif
