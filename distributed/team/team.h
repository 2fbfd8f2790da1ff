/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of this process, which train one graph together: their graphs, arenas and optimizers, and how their work is
 * cut. What is planned at set-up does not change. Two steps may be made by the same team (step.h), one at a time.
 *
 * Between two runs of the ranks these are idle, and the caller may read and change their data. */
#ifndef TREK_DISTRIBUTED_TEAM_TEAM_H
#define TREK_DISTRIBUTED_TEAM_TEAM_H

#include "distributed/balance/slowdown.h"
#include "distributed/balance/stopwatch.h"
#include "distributed/ranks_internal.h"
#include "distributed/team/reducer.h"
#include "distributed/team/replica.h"
#include "graph/graph_internal.h"
#include "nn/module_internal.h"
#include "optim/optimizer_internal.h"

struct trek_divided;
struct trek_reader;

/* Gradients are reduced, measured and used in pieces of this many elements. A piece is small enough to stay in the
 * cache in between, and to divide the pieces evenly among ranks. */
#define TREK_CHUNK 4096

typedef struct trek_reduce_chunk {
    int part, first_segment;
    int64_t begin, end;
} trek_reduce_chunk;

/* The data of one rank. */
typedef struct rank_replica {
    trek_graph *graph;       /* rank 0's is the caller's and is not owned */
    trek_replica *model;     /* the graph's parameters, buffers and modules */
    trek_arena *arena;
    trek_reducer *reducer;   /* of the arena */
    struct trek_divided *divided; /* what it has of divided parameters (divided.h); NULL: they are whole */
    trek_optimizer *optimizer; /* rank 0's; with separate arenas every rank's */
    trek_reduce_chunk *own_chunks; /* of a sharer: pieces of its cuts, and their sums of squares; NULL: none */
    double *own_sums;
    int n_own_chunks;
    trek_grad_scaler *scaler; /* on GPUs: a further rank's copy of the graph's scaler; NULL until it is needed */
    struct trek_reader *reader; /* of windows; NULL: none yet */
    trek_tensor **stashed;   /* [parts] gradients of earlier passes (gradients.c); NULL: none yet */
    bool *stashed_has;       /* [segments] whether stashed has the segment */
    int64_t samples;         /* rows of training forwards since buffers were merged */
    int64_t local_steps;     /* if parameters are averaged: steps of its optimizer since the last average; */
    int64_t steps_ahead;     /* steps of all ranks by which the schedule is ahead of the graph's; */
    bool *trained;           /* [segments] which those steps have changed; */
    double drift;            /* its distance from that average, divided by the average's norm */
    int64_t measured_rows;   /* rows trained, and compute time for them, since they were read last (graph_loader's measures) */
    double measured_ms;
    int64_t fed_ns;          /* how much of its thread's waiting for data (trek_batch_here) has been accounted for, */
    bool is_fed;             /* and whether any has */
} rank_replica;

/* A tag of a graph inside the graph. */
typedef struct ranks_nested_tag {
    int below, tag;
} ranks_nested_tag;

/* What a forward over the ranks joins. */
typedef struct trek_team_outputs {
    int n_inputs, n_outputs, n_tags; /* outputs: the graph's, and tagged values other than it */
    int *tag_output;         /* [tags] the index of its output; ~k: it is input k */
    int *output_tag;         /* [outputs] the tag that it is; [0] unused */
    int n_nested, n_nested_outputs; /* tags of nested graphs; the first of them are joined, after the outputs */
    ranks_nested_tag *nested; /* [n_nested] */
} trek_team_outputs;

typedef struct trek_team {
    trek_graph *graph;       /* rank 0's */
    trek_ranks *ranks;
    int local_ranks;
    bool shared;             /* one parameter arena and one optimizer */
    int sharers; /* how many divide the optimizer's state: processes, or the ranks of a single process (sharded.c); 1: it is
                  * not divided */
    bool twice;              /* each part of it is kept by two of them, whose number may change (reduce/twice.h) */
    bool divides_grads; /* and gradients: the memory of those that belong to other sharers is given back when they have been sent
                         */
    bool divides_params; /* and parameters (divided.h) */
    size_t page;             /* then, the size of the largest page of all sharers' devices */
    struct trek_lent *lent;  /* then, with several processes: what they read from each other; otherwise NULL */
    bool lends;              /* then, and parameters are divided over processes */
    bool gathers_ahead;      /* a thread of each rank gathers the next bucket while one is used (ahead.h) */
    bool graph_ends;         /* the team ends because its graph is freed */
    bool on_host; /* all ranks are in host memory; otherwise each decides in its own device's order, from the same sums */
    unsigned kinds;          /* of the devices: bits 1 << type */
    rank_replica *replicas;  /* [local_ranks] */
    trek_team_outputs outputs;
    int64_t bucket_bytes;
    trek_reduce_chunk *chunks;
    int n_chunks;

    /* Room for the step that is being made: */
    double *sums;            /* [chunks] squares; with separate arenas [local_ranks][chunks] */
    double shared_squares;   /* with sharers: the sum of all of them, which rank 0 knows */
    bool *has;               /* [segments][local_ranks] whether the rank's backward gave a gradient */
    bool *any;               /* [segments] whether some rank's did: the array of rank 0's reducer */

    trek_stopwatches *watches; /* [local_ranks] */
    trek_slowdown *slowdowns; /* [local_ranks] what TREK_SLOWDOWN says; NULL: nothing */
    int64_t *slowed_batches; /* [local_ranks] batches that each has run */
    struct trek_team_memory *memory; /* what the ranks keep, and what they may (memory.h) */
} trek_team;

typedef struct trek_team_opts {
    bool shared;
    int sharers;
    bool divides_grads, divides_params;
    size_t page;             /* then, see trek_arena_new_paged */
    bool twice;              /* each part of the state has two sharers (optim/arena.h) */
    int64_t bucket_bytes;
    const int64_t *budgets;  /* [ranks] of memory, in bytes; NULL: none */
    bool recomputes;         /* segments to be recomputed or moved are chosen so that it is enough */
    int64_t host_budget;     /* bytes of host memory for what is moved; 0: half of what is free */
    trek_comm *comm;         /* of the processes, in whose memory gradients are reduced; NULL: a single process */
} trek_team_opts;
/* Makes a team, which owns the group and the graphs of ranks 1 and above, also on failure; it must be ended in any case.
 * graphs[0] is the caller's. */
trek_status trek_team_begin(trek_team *team, trek_ranks *ranks, trek_graph **graphs, const trek_team_opts *opts);
void trek_team_end(trek_team *team);

/* Copies the values of rank 0 to a rank, except parameters that the ranks share, or divide. It is a collective of the ranks;
 * `own` is the status of this one. */
trek_status trek_team_take_first(const trek_team *team, int rank, trek_status own);
/* Returns a text with one line for each property of a graph besides modules, parameters and buffers. The caller frees
 * it. Returns NULL on failure. */
char *trek_team_describe_graph(trek_graph *graph);

/* Copies train and freeze flags of rank 0's modules, and the dtype of its autocast, to all replicas. Called between runs
 * of the group. */
static inline void trek_team_follow_flags(const trek_team *team)
{
    for (int r = 1; r < team->local_ranks; r++) {
        trek_replica_follow_flags(team->replicas[r].model, team->replicas[0].model);
        team->replicas[r].graph->autocast = team->replicas[0].graph->autocast;
    }
}
/* Copies groups and rates that the program has given rank 0's optimizer since the last step to the further ranks.
 * Fails with MEMORY. */
static inline trek_status trek_team_follow_groups(const trek_team *team)
{
    trek_status status = TREK_OK;
    for (int r = 1; r < team->local_ranks && status == TREK_OK; r++)
        if (team->replicas[r].optimizer)
            status = trek_optimizer_follow(team->replicas[r].optimizer, team->replicas[0].optimizer);
    return status;
}
static inline bool trek_team_is_training(const trek_team *team) { return team->replicas[0].model->modules[0]->own->training; }
/* Returns whether its graph, or one inside it, carries states from batch to batch. */
bool trek_team_has_states(const trek_team *team);
/* Returns whether its layers wait for those of other ranks (synchronised batch norm); then all ranks run them,
 * whatever their weight. */
static inline bool trek_team_meets(const trek_team *team) { return team->replicas[0].model->meets; }

#endif
