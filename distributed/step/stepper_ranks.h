/* SPDX-License-Identifier: Apache-2.0 */
/* The stepper over the ranks of one process: what its files share.
 *
 * Between two runs of the group the ranks are idle, and the caller may look at
 * and change what is theirs. */
#ifndef TREK_DISTRIBUTED_STEP_STEPPER_RANKS_H
#define TREK_DISTRIBUTED_STEP_STEPPER_RANKS_H

#include "distributed/replica/replica.h"
#include "distributed/step/reducer.h"
#include "distributed/step/step_state.h"
#include "distributed/ranks_internal.h"
#include "distributed/balance/workload.h"
#include "distributed/balance/slowdown.h"
#include "distributed/balance/starvation.h"
#include "distributed/balance/stopwatch.h"
#include "graph/graph_internal.h"
#include "optim/optimizer_internal.h"

struct trek_loader;
struct trek_reader;
typedef struct rank_device rank_device;

/* Gradients are reduced, measured and used in pieces of this many elements: small
 * enough to stay in cache in between, and to be divided evenly among ranks. */
#define TREK_CHUNK 4096

typedef struct trek_reduce_chunk {
    int part, first_segment;
    int64_t begin, end;
} trek_reduce_chunk;

/* What the replicas' drift is to do to the anchor of windows. */
typedef enum trek_drift_verdict { TREK_DRIFT_STABLE, TREK_DRIFT_STAYS, TREK_DRIFT_SHRINKS } trek_drift_verdict;
enum { TREK_DRIFTS = 3 };

/* What belongs to one rank. */
typedef struct rank_replica {
    trek_graph *graph;       /* rank 0's is the caller's, not owned */
    trek_replica *model;     /* the graph's parameters, buffers, modules */
    trek_arena *arena;
    trek_reducer *reducer;   /* of the arena */
    trek_optimizer *optimizer; /* rank 0's; with arenas of their own every rank's */
    trek_reduce_chunk *own_chunks; /* of a sharer: pieces of its cuts, and their sums of squares; NULL: none */
    double *own_sums;
    int n_own_chunks;
    trek_grad_scaler *scaler; /* on GPUs: a further rank's copy of the graph's; NULL until it is needed */
    struct trek_reader *reader; /* of windows; NULL: none yet */
    trek_tensor **stashed;   /* [parts] gradients of earlier passes (per_rank_step.c); NULL: none yet */
    bool *stashed_has;       /* [segments] of which segments */
    int64_t samples;         /* rows of training forwards since buffers were merged */
    int64_t local_steps;     /* where parameters are averaged: of its optimizer, since the last average; */
    int64_t steps_ahead;     /* steps of all ranks that the schedule has before those, beyond the graph's; */
    bool *trained;           /* [segments] which those have changed; */
    double drift;            /* its distance from that average, over the average's norm */
    int64_t measured_rows;   /* of training, and compute time for them, since somebody asked (graph_loader's measures) */
    double measured_ms;
    int64_t fed_ns;          /* of its thread's waits for data (trek_rank_context) what has been looked at, */
    bool is_fed;             /* and whether it has */
} rank_replica;

/* A tag of a graph inside the graph. */
typedef struct ranks_nested_tag {
    int below, tag;
} ranks_nested_tag;

typedef struct ranks_stepper {
    trek_stepper base;
    trek_ranks *ranks;
    int local_ranks;
    bool shared;             /* one parameter arena and one optimizer */
    int sharers; /* of the optimizer's state, who are the processes, or the ranks of the only one (sharded.c); 1: all have all */
    bool on_host; /* all ranks' memory is the host's; else each decides in its own device's order, from the same sums */
    bool mixed;              /* the job has ranks on CPUs and on GPUs: rank 0's parameters are everybody's after each step */
    unsigned kinds;          /* of this process's devices: bits 1 << type */
    rank_device *devices;    /* [world_size] of the job (rank_devices.c) */
    rank_replica *replicas;

    int n_inputs, n_outputs, n_tags; /* outputs: the graph's, and tagged values that are not it */
    int *tag_output;         /* [tags] which output; ~k: input k */
    int *output_tag;         /* [outputs] a tag that it is; [0] unused */
    int n_nested, n_nested_outputs; /* tags of nested graphs; the first of them are joined, behind the outputs */
    struct ranks_nested_tag *nested; /* [n_nested] */

    double grad_norm;
    const trek_update_scaler *loss_scale; /* in a step with on_host: what the loss had been multiplied by; NULL: nothing */

    trek_reduce_chunk *chunks;
    int n_chunks;
    double *sums;            /* [chunks] squares; with arenas of their own [local_ranks][chunks] */
    double shared_squares;   /* of sharers: of all of them, as rank 0 knows it */
    bool *has;               /* [segments][local_ranks] whose backward gave a gradient */
    bool *any;               /* [segments] of some rank: those of rank 0's reducer */
    int64_t bucket_bytes;
    int overlap;             /* as the options have it */

    trek_stopwatches *watches; /* [local_ranks] */
    trek_workload *workload; /* shares or counts of all ranks of the job */
    const trek_slowdown *slowdowns; /* [world_size] for examples and benchmarks; NULL: none */
    int64_t *slowed_batches; /* [local_ranks] batches that each has run */
    double *ms;              /* [world_size] of the present step: what every rank of the job has needed, */
    double *starved_ms;      /* [world_size] of it waiting for its data, */
    int64_t *units;          /* [world_size] for so many samples, or batches of a window */
    trek_starvation starvation;
    int64_t loader_ns;       /* of the caller's waits for data (trek_rank_context) what has been looked at */
    trek_stopwatch reduce_watch; /* rank 0's, of the reduction */
    double own_communication_ms, communication_ms; /* of the last reduction; as process 0 saw it the step before */
    bool windowed;           /* some pass since buffers were merged was a window */
    trek_step_state step;
    bool averages;           /* parameters instead of gradients (average.c) */
    bool sites;              /* a process's ranks train together between two averages: the workload is of the job's processes */
    double *rank_shares;     /* [world_size] then: what each gets of batches that all ranks of the job divide; else NULL */
    struct ranks_stepper *site; /* then, and with several ranks here: what these make their steps with (site.c); else NULL */
    struct trek_background *background; /* they are averaged in the background, while ranks run (distributed/background/);
                                           NULL: they meet for it */
    bool own_states;         /* optimizers' states are not averaged */
    double window_rows;      /* of the step that ends: samples of all ranks of the job */
    int64_t window_batches;  /* since the last average, of all ranks of the job */
    int64_t *segment_steps, *job_segment_steps; /* [segments], [processes][segments] updates, the most of any rank */
    double divergence_threshold; /* < 0: no guard */
    double own_drift, drift, drifts[TREK_DRIFTS]; /* of this process, the job, and the last ones */
    bool overlaps;           /* reduction under backward, where the step's last pass may send */
    trek_var *tape_leaf;     /* all split forwards are of it, where the ranks of one process overlap; else NULL */
    int on_tape;             /* parameters of rank 0 that no more of the caller's own tape reaches, in a backward that sends */

    struct ranks_recording *recording; /* recording.c: a step that is recorded now; NULL: none */
    struct ranks_before *before;       /* the host's side before the last one; NULL: there was none */

    /* job_sync.c: the job's processes; comm NULL: this is the only one */
    trek_comm *comm;
    int process, processes, first_rank, world_size, ranks_most;
    int *process_ranks;      /* [processes] */
    char *own_message, *messages;
    trek_capture_vote *votes; /* [processes] of a captured step */
    int64_t recorded;        /* steps that all have recorded */
    bool divides;            /* its shares may be how loaders divide batches */
    struct ranks_stepper *next_divider;
    uint64_t failure;        /* the error of the caller's thread that all processes know of (trek_error_number); 0: none yet */
} ranks_stepper;

/* backward.c */
trek_status trek_ranks_backward(trek_stepper *stepper, trek_var *loss, double weight);
/* fn on the one rank of the process; its layers may make sums with the other processes'. units: of work, for its stopwatch;
 * goes_back: through what the run before made. */
typedef trek_status (*trek_alone_fn)(ranks_stepper *s, void *arg);
trek_status trek_ranks_alone(ranks_stepper *s, int64_t units, bool goes_back, trek_alone_fn fn, void *arg);

/* forward.c */
trek_var *trek_ranks_forward(trek_stepper *stepper, trek_var *const *inputs, int n);
bool trek_graph_states_are_reset(const trek_graph *graph);
/* Train and freeze flags of rank 0's modules become all replicas'. Between runs of the group. */
static inline void trek_ranks_follow_flags(ranks_stepper *s)
{
    for (int r = 1; r < s->local_ranks; r++)
        trek_replica_follow_flags(s->replicas[r].model, s->replicas[0].model);
}
static inline bool trek_ranks_training(const ranks_stepper *s) { return s->replicas[0].model->modules[0]->training; }
/* Whether its layers wait for other ranks' (synchronised batch norm): then all run them, whatever they weigh. */
static inline bool trek_ranks_meet(const ranks_stepper *s) { return s->replicas[0].model->meets; }

/* Those that the workload is of: ranks, or processes. */
static inline int trek_ranks_sites(const ranks_stepper *s) { return s->sites ? s->processes : s->world_size; }
static inline int trek_ranks_first_site(const ranks_stepper *s) { return s->sites ? s->process : s->first_rank; }
static inline int trek_ranks_local_sites(const ranks_stepper *s) { return s->sites ? 1 : s->local_ranks; }
static inline int trek_ranks_sites_of(const ranks_stepper *s, int process)
{
    return s->sites ? 1 : s->comm ? s->process_ranks[process] : s->local_ranks;
}

/* shares.c */
/* What each rank of the job gets of a batch that all divide. */
static inline const double *trek_ranks_shares(const ranks_stepper *s)
{
    return s->rank_shares ? s->rank_shares : trek_workload_shares(s->workload);
}
/* Divides a process's n samples among its ranks, by their shares. */
trek_status trek_ranks_split(const ranks_stepper *s, int64_t n, int64_t *counts);
/* Keeps the calling rank busy if it is slowed down; its stopwatch runs. ends: the batch does. */
trek_status trek_slowed(const ranks_stepper *s, int rank, trek_stopwatch *watch, bool ends);
/* Before a pass: the caller's thread has waited for the batch, to train on it or not. */
void trek_ranks_note_wait(ranks_stepper *s, bool trains);
/* Times become shares or counts of the next step. */
trek_status trek_ranks_update_workload(ranks_stepper *s, trek_drift_verdict drift);

/* per_rank_step.c */
trek_var *trek_ranks_train_batch(trek_stepper *stepper, const struct trek_batch *batch);
/* Of the loader's batches, on the rank's device. NULL and an error. */
struct trek_reader *trek_ranks_reader(ranks_stepper *s, int rank, struct trek_loader *loader);
int64_t trek_ranks_window(trek_stepper *stepper);
bool trek_ranks_read_parts(const trek_stepper *stepper);

/* site.c: a process's ranks as one. make: of a stepper that is whole but for its workload, which it makes, too. */
trek_status trek_site_make(ranks_stepper *s, const trek_workload_opts *opts);
void trek_site_end(ranks_stepper *s);
/* trek_ranks_train_batch, or, where parameters are averaged in the background, of whoever trains together. */
trek_var *trek_site_train_batch(trek_stepper *stepper, const struct trek_batch *batch);

/* observations.c: what training functions have recorded, on all ranks and processes, comes to the caller's graph. */
trek_status trek_ranks_detach(trek_stepper *stepper);
trek_status trek_ranks_gather_observations(trek_stepper *stepper);
struct trek_metric *trek_ranks_join_metric(trek_stepper *stepper, struct trek_metric *metric);

/* gradients.c */
/* Multiplies gradients by `factor`, which becomes 1. */
trek_status trek_ranks_apply_grad_factor(ranks_stepper *s);
trek_status trek_ranks_apply_grad_factor_here(int rank, void *stepper); /* on the rank's thread */
/* Gradients so far are put aside; and come back, those since then multiplied by `factor`, which becomes 1. */
trek_status trek_ranks_stash_grads(ranks_stepper *s);
trek_status trek_ranks_unstash_grads(ranks_stepper *s);
void trek_ranks_forget_stash(rank_replica *replica);
/* The scaler of a rank's losses; prepare: before ranks use them. */
trek_status trek_ranks_prepare_scaler(ranks_stepper *s);
trek_grad_scaler *trek_ranks_scaler(const ranks_stepper *s, int rank);
/* Gradients of all ranks to zero. */
trek_status trek_ranks_zero(ranks_stepper *s);
/* No gradients, nothing sent: the end of a step, or of what it had so far. */
void trek_ranks_reset(ranks_stepper *s);
/* Buffers are everybody's: what forwards have counted begins anew. */
static inline void trek_ranks_merged(ranks_stepper *s)
{
    for (int r = 0; r < s->local_ranks; r++)
        s->replicas[r].samples = 0;
    s->windowed = false;
}

/* update.c */
trek_status trek_ranks_reduce(trek_stepper *stepper);
trek_status trek_ranks_step(trek_stepper *stepper);
/* Rank 0's learning rates, by the schedule if that is to be asked, become all ranks'. */
trek_status trek_ranks_set_rates(ranks_stepper *s, bool by_schedule);
void trek_ranks_count_step(ranks_stepper *s);

/* constants.c: constants and teachers of rank 0's graph come to all ranks; the values of the teachers. */
trek_status trek_ranks_constants(trek_stepper *stepper);
trek_status trek_ranks_follow_teachers(const ranks_stepper *s, int rank);

/* stepper_ranks.c; takes over the group and the replicas' graphs also when it fails. graphs[0] is the caller's. */
typedef struct trek_ranks_opts {
    bool shared;
    bool shards;                  /* the optimizer's state, where ranks or processes would have it more than once */
    bool averages;                /* parameters; not shared then */
    bool sites;                   /* of a job's processes: each one's ranks make their steps together, and may share */
    double divergence_threshold;  /* < 0: no guard */
    int64_t bucket_bytes;
    int overlap;                  /* 0: where the engine progresses by itself; 1: between processes in any case; TREK_OFF */
    trek_comm *comm;              /* among processes, of which the stepper takes a handle; NULL: one process */
    const trek_workload_opts *workload;
    const trek_slowdown *slowdowns; /* [ranks of this process] copied; NULL */
} trek_ranks_opts;
trek_stepper *trek_stepper_ranks_new(trek_ranks *ranks, trek_graph **graphs, const trek_ranks_opts *opts);
/* The stepper of a graph that trains on several ranks; NULL otherwise. */
ranks_stepper *trek_graph_ranks(const trek_graph *graph);
/* For tests: rank's graph of one that trains on several ranks; NULL otherwise. */
trek_graph *trek_graph_replica(trek_graph *graph, int rank);

#endif
