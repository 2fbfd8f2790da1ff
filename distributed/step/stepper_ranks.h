/* SPDX-License-Identifier: Apache-2.0 */
/* The stepper over the ranks of one process: what its files share.
 *
 * Between two runs of the group the ranks are idle, and the caller may read and change their data. */
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
#include "data/loader.h"
#include "graph/metric.h"
#include "nn/module_internal.h"

struct trek_grains;
struct trek_loader;
struct trek_reader;
typedef struct rank_device rank_device;

/* Gradients are reduced, measured and used in pieces of this many elements. A piece is small enough to stay in the
 * cache in between, and to divide the pieces evenly among ranks. */
#define TREK_CHUNK 4096

typedef struct trek_reduce_chunk {
    int part, first_segment;
    int64_t begin, end;
} trek_reduce_chunk;

/* What the replicas' drift does to the anchor of windows. */
typedef enum trek_drift_verdict { TREK_DRIFT_STABLE, TREK_DRIFT_STAYS, TREK_DRIFT_SHRINKS } trek_drift_verdict;
enum { TREK_DRIFTS = 3 };

/* The data of one rank. */
typedef struct rank_replica {
    trek_graph *graph;       /* rank 0's is the caller's and is not owned */
    trek_replica *model;     /* the graph's parameters, buffers and modules */
    trek_arena *arena;
    trek_reducer *reducer;   /* of the arena */
    trek_optimizer *optimizer; /* rank 0's; with separate arenas every rank's */
    trek_reduce_chunk *own_chunks; /* of a sharer: pieces of its cuts, and their sums of squares; NULL: none */
    double *own_sums;
    int n_own_chunks;
    trek_grad_scaler *scaler; /* on GPUs: a further rank's copy of the graph's scaler; NULL until it is needed */
    struct trek_reader *reader; /* of windows; NULL: none yet */
    trek_tensor **stashed;   /* [parts] gradients of earlier passes (per_rank_step.c); NULL: none yet */
    bool *stashed_has;       /* [segments] whether stashed has the segment */
    int64_t samples;         /* rows of training forwards since buffers were merged */
    int64_t local_steps;     /* if parameters are averaged: steps of its optimizer since the last average; */
    int64_t steps_ahead;     /* steps of all ranks by which the schedule is ahead of the graph's; */
    bool *trained;           /* [segments] which those steps have changed; */
    double drift;            /* its distance from that average, divided by the average's norm */
    int64_t measured_rows;   /* rows trained, and compute time for them, since they were read last (graph_loader's measures) */
    double measured_ms;
    int64_t fed_ns;          /* how much of its thread's waiting for data (trek_rank_context) has been accounted for, */
    bool is_fed;             /* and whether any has */
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
    int sharers; /* how many divide the optimizer's state: processes, or the ranks of a single process (sharded.c); 1: it is
                  * not divided */
    bool on_host; /* all ranks are in host memory; otherwise each decides in its own device's order, from the same sums */
    bool mixed;              /* the job has ranks on CPUs and on GPUs: all take rank 0's parameters after each step */
    unsigned kinds;          /* of this process's devices: bits 1 << type */
    rank_device *devices;    /* [world_size] of the job (rank_devices.c) */
    rank_replica *replicas;

    int n_inputs, n_outputs, n_tags; /* outputs: the graph's, and tagged values other than it */
    int *tag_output;         /* [tags] the index of its output; ~k: it is input k */
    int *output_tag;         /* [outputs] the tag that it is; [0] unused */
    int n_nested, n_nested_outputs; /* tags of nested graphs; the first of them are joined, after the outputs */
    struct ranks_nested_tag *nested; /* [n_nested] */

    double grad_norm;
    const trek_update_scaler *loss_scale; /* in a step with on_host: what multiplied the loss; NULL: nothing */

    trek_reduce_chunk *chunks;
    int n_chunks;
    double *sums;            /* [chunks] squares; with separate arenas [local_ranks][chunks] */
    double shared_squares;   /* with sharers: the sum of all of them, which rank 0 knows */
    bool *has;               /* [segments][local_ranks] whether the rank's backward gave a gradient */
    bool *any;               /* [segments] whether some rank's did: the array of rank 0's reducer */
    int64_t bucket_bytes;
    int overlap;             /* as in the options */

    trek_stopwatches *watches; /* [local_ranks] */
    trek_workload *workload; /* shares or counts of all ranks of the job */
    const trek_slowdown *slowdowns; /* [world_size] for examples and benchmarks; NULL: none */
    int64_t *slowed_batches; /* [local_ranks] batches that each has run */
    double *ms;              /* [world_size] of the current step: the time that every rank of the job needed, */
    double *starved_ms;      /* [world_size] how much of it the rank waited for its data, */
    int64_t *units;          /* [world_size] and for how many samples, or batches of a window */
    trek_starvation starvation;
    int64_t loader_ns;       /* how much of the caller's waiting for data (trek_rank_context) has been accounted for */
    trek_stopwatch reduce_watch; /* rank 0's, of the reduction */
    double own_communication_ms, communication_ms; /* of the last reduction; as process 0 measured it in the step before */
    bool windowed;           /* some pass since buffers were merged was a window */
    trek_step_state step;
    bool averages;           /* averages parameters instead of gradients (average.c) */
    bool sites;              /* a process's ranks train together between two averages; the workload is for the job's processes */
    double *rank_shares;     /* [world_size] then: shares of batches that all ranks of the job divide; otherwise NULL */
    struct ranks_stepper *site; /* then, with several ranks here: the stepper with which they make their steps (site.c);
                                 * otherwise NULL */
    struct trek_background *background; /* averages them in the background, while ranks run (distributed/background/); NULL:
                                         * ranks meet for it */
    bool own_states;         /* optimizers' states are not averaged */
    double window_rows;      /* of the step that ends: samples of all ranks of the job */
    int64_t window_batches;  /* since the last average, of all ranks of the job */
    int64_t *segment_steps, *job_segment_steps; /* [segments], [processes][segments] numbers of updates, the most of any rank */
    double divergence_threshold; /* < 0: no guard */
    double own_drift, drift, drifts[TREK_DRIFTS]; /* of this process, of the job, and the last ones */
    int64_t grain;           /* samples of a grain; 0: batches are not cut into grains */
    struct trek_grains *grains; /* then (distributed/grains/); otherwise NULL */
    bool overlaps;           /* reduction during backward, if the step's last pass may send */
    trek_var *tape_leaf;     /* the tape leaf of all split forwards, if the ranks of one process overlap; otherwise NULL */
    int on_tape;             /* parameters of rank 0 that the rest of the caller's own tape does not reach, in a backward that
                              * sends */

    struct ranks_recording *recording; /* recording.c: a step that is being recorded; NULL: none */
    struct ranks_before *before;       /* the host's state before the last one; NULL: none */

    /* job_sync.c: the processes of the job; comm NULL: this is the only one */
    trek_comm *comm;
    int process, processes, first_rank, world_size, ranks_most;
    int *process_ranks;      /* [processes] */
    char *own_message, *messages;
    trek_capture_vote *votes; /* [processes] votes about a captured step */
    int64_t recorded;        /* how many steps all have recorded */
    bool divides;            /* loaders may divide batches by its shares */
    struct ranks_stepper *next_divider;
    uint64_t failure;        /* the number (trek_error_number) of an error of the caller's thread that all processes know; 0:
                              * none yet */
} ranks_stepper;

/* backward.c */
trek_status trek_ranks_backward(trek_stepper *stepper, trek_var *loss, double weight);
/* Calls fn on the only rank of the process; its layers may make sums with those of other processes. units: of work,
 * for its stopwatch. goes_back: it goes backward through what the run before made. */
typedef trek_status (*trek_alone_fn)(ranks_stepper *s, void *arg);
trek_status trek_ranks_alone(ranks_stepper *s, int64_t units, bool goes_back, trek_alone_fn fn, void *arg);

/* forward.c */
trek_var *trek_ranks_forward(trek_stepper *stepper, trek_var *const *inputs, int n);
bool trek_graph_states_are_reset(const trek_graph *graph);
/* Copies train and freeze flags of rank 0's modules, and the dtype of its autocast, to all replicas. Called between runs
 * of the group. */
static inline void trek_ranks_follow_flags(ranks_stepper *s)
{
    for (int r = 1; r < s->local_ranks; r++) {
        trek_replica_follow_flags(s->replicas[r].model, s->replicas[0].model);
        s->replicas[r].graph->autocast = s->replicas[0].graph->autocast;
    }
}
static inline bool trek_ranks_training(const ranks_stepper *s) { return s->replicas[0].model->modules[0]->own->training; }
/* Returns whether its layers wait for those of other ranks (synchronised batch norm); then all ranks run them,
 * whatever their weight. */
static inline bool trek_ranks_meet(const ranks_stepper *s) { return s->replicas[0].model->meets; }

/* Returns how many shares or counts the workload has: of ranks, or of processes. */
static inline int trek_ranks_sites(const ranks_stepper *s) { return s->sites ? s->processes : s->world_size; }
static inline int trek_ranks_first_site(const ranks_stepper *s) { return s->sites ? s->process : s->first_rank; }
static inline int trek_ranks_local_sites(const ranks_stepper *s) { return s->sites ? 1 : s->local_ranks; }
static inline int trek_ranks_sites_of(const ranks_stepper *s, int process)
{
    return s->sites ? 1 : s->comm ? s->process_ranks[process] : s->local_ranks;
}

/* shares.c */
/* Returns each rank's share of a batch that all ranks of the job divide. */
static inline const double *trek_ranks_shares(const ranks_stepper *s)
{
    return s->rank_shares ? s->rank_shares : trek_workload_shares(s->workload);
}
/* Divides a process's n samples among its ranks, by their shares. */
trek_status trek_ranks_split(const ranks_stepper *s, int64_t n, int64_t *counts);
/* Keeps the calling rank busy if it is slowed down, while its stopwatch runs. ends: the batch ends. */
trek_status trek_slowed(const ranks_stepper *s, int rank, trek_stopwatch *watch, bool ends);
/* Called before a pass, after the caller's thread has waited for the batch; trains: to train on it. */
void trek_ranks_note_wait(ranks_stepper *s, bool trains);
/* Turns times into shares or counts of the next step. */
trek_status trek_ranks_update_workload(ranks_stepper *s, trek_drift_verdict drift);

/* per_rank_step.c */
trek_var *trek_ranks_train_batch(trek_stepper *stepper, const struct trek_batch *batch);
/* Returns a reader of the loader's batches on the rank's device. Returns NULL on failure. */
struct trek_reader *trek_ranks_reader(ranks_stepper *s, int rank, struct trek_loader *loader);
int64_t trek_ranks_window(trek_stepper *stepper);
bool trek_ranks_read_parts(const trek_stepper *stepper);

/* site.c: a process's ranks as one unit. make gets a stepper that is complete except for its workload, which it
 * makes, too. */
trek_status trek_site_make(ranks_stepper *s, const trek_workload_opts *opts);
void trek_site_end(ranks_stepper *s);
/* Trains on a batch as trek_ranks_train_batch or, if parameters are averaged in the background, with the ranks that
 * train together. */
trek_var *trek_site_train_batch(trek_stepper *stepper, const struct trek_batch *batch);

/* observations.c: gathers what training functions have recorded, on all ranks and processes, in the caller's graph. */
trek_status trek_ranks_detach(trek_stepper *stepper);
trek_status trek_ranks_gather_observations(trek_stepper *stepper);
struct trek_metric *trek_ranks_join_metric(trek_stepper *stepper, struct trek_metric *metric);

/* gradients.c */
/* Multiply gradients by `factor`, which becomes 1. */
trek_status trek_ranks_apply_grad_factor(ranks_stepper *s);
trek_status trek_ranks_apply_grad_factor_here(int rank, void *stepper); /* on the rank's thread */
/* Put gradients aside, and bring them back; the gradients since then are multiplied by `factor`, which becomes 1. */
trek_status trek_ranks_stash_grads(ranks_stepper *s);
trek_status trek_ranks_unstash_grads(ranks_stepper *s);
void trek_ranks_forget_stash(rank_replica *replica);
/* The scaler of a rank's losses. prepare is called before ranks use it. */
trek_status trek_ranks_prepare_scaler(ranks_stepper *s);
trek_grad_scaler *trek_ranks_scaler(const ranks_stepper *s, int rank);
/* Sets the gradients of all ranks to zero. */
trek_status trek_ranks_zero(ranks_stepper *s);
/* Removes gradients and everything that was sent, at the end of a step or to drop what it has so far. */
void trek_ranks_reset(ranks_stepper *s);
/* Notes that buffers were merged: counting of forwards begins again. */
static inline void trek_ranks_merged(ranks_stepper *s)
{
    for (int r = 0; r < s->local_ranks; r++)
        s->replicas[r].samples = 0;
    s->windowed = false;
}

/* update.c */
trek_status trek_ranks_reduce(trek_stepper *stepper);
trek_status trek_ranks_step(trek_stepper *stepper);
/* Copies rank 0's learning rates to all ranks, by the schedule if that is requested. */
trek_status trek_ranks_set_rates(ranks_stepper *s, bool by_schedule);
void trek_ranks_count_step(ranks_stepper *s);

/* constants.c: copies constants and teachers of rank 0's graph, and the values of teachers, to all ranks. */
trek_status trek_ranks_constants(trek_stepper *stepper);
trek_status trek_ranks_follow_teachers(const ranks_stepper *s, int rank);

/* stepper_ranks.c: makes the stepper. It owns the group and the replicas' graphs, also on failure. graphs[0] is the
 * caller's. */
typedef struct trek_ranks_opts {
    bool shared;
    bool shards;                  /* divides the optimizer's state if ranks or processes would otherwise have it more than once */
    bool averages;                /* averages parameters; they are not shared then */
    bool sites;                   /* of a job's processes: the ranks of each make their steps together, and may share
                                   * parameters */
    double divergence_threshold;  /* < 0: no guard */
    int64_t grain;                /* samples of a grain; 0: batches are not cut into grains */
    int64_t bucket_bytes;
    int overlap;                  /* 0: if the engine progresses by itself; 1: always between processes; TREK_OFF: never */
    trek_comm *comm;              /* among processes; the stepper takes a handle. NULL: one process */
    const trek_workload_opts *workload;
    const trek_slowdown *slowdowns; /* [ranks of this process] copied; NULL: none */
} trek_ranks_opts;
trek_stepper *trek_stepper_ranks_new(trek_ranks *ranks, trek_graph **graphs, const trek_ranks_opts *opts);
/* Returns the stepper of a graph that trains on several ranks; NULL otherwise. */
ranks_stepper *trek_graph_ranks(const trek_graph *graph);
/* Returns the rank's graph of a graph that trains on several ranks; NULL otherwise. For tests. */
trek_graph *trek_graph_replica(trek_graph *graph, int rank);

#endif
