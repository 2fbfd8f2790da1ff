/* SPDX-License-Identifier: Apache-2.0 */
/* Setting a graph up for training on whatever there is, behind the calls of graph.h. */
#ifndef TREK_DISTRIBUTED_TRAINER_H
#define TREK_DISTRIBUTED_TRAINER_H

#include "distributed/balance/plan.h"
#include "distributed/balance/slowdown.h"
#include "distributed/comm/comm.h"
#include "graph/graph.h"
#include "graph/graph_loader.h"
#include "graph/timeline.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"

TREK_BEGIN

/* Makes the same graph on another device. Called once for each further rank, on
 * the rank's own thread, never twice at a time. NULL on failure. */
typedef trek_graph *(*trek_build_fn)(trek_device device, void *arg);

/* Which rank is slower than all others, and by how much; all 0: nothing is known. */
typedef struct trek_speed_hint {
    int slow_rank;                   /* of the whole job */
    double ratio;                    /* of the others' speed to its own, 1 to 1000000 */
} trek_speed_hint;

/* What ranks bring together. */
typedef enum trek_average {
    TREK_AVERAGE_GRADIENTS,  /* exact: the ranks make one step */
    TREK_AVERAGE_PARAMETERS  /* each rank makes a step of its own after each of its batches; trek_graph_step makes parameters,
                                optimizer states and buffers the ranks' mean, weighted by samples (local SGD) */
} trek_average;

typedef struct trek_trainer_opts {
    trek_build_fn build_replica;     /* needed with more than one rank */
    void *arg;                       /* passed to it */
    const trek_device *devices;      /* one for each rank, `ranks` of them; the first is the graph's own.
                                        Default: for a graph on a CPU cpu:0 ... cpu:ranks-1 if ranks is given, else the
                                        environment's TREK_DEVICES ("cpu:0,cpu:1"), else its own device alone; for a graph
                                        on a GPU as many GPUs as there are ranks, else TREK_DEVICES, else all usable GPUs
                                        (without build_replica: its own). The same GPU may be listed twice, and CPUs may
                                        stand beside GPUs: "cuda:0,cpu:0" */
    int ranks;                       /* 1 to 1024 */
    trek_optimizer_spec optimizer;   /* default: the one that the graph has, if any */
    trek_schedule schedule;          /* default: the one that the graph has */
    int accumulate; /* k: the passes (backward or train_batch) of a step are one large batch, and its gradient the one
                       of the joined batch: the mean of the passes', weighted by what each loss is the mean of
                       (trek_loss_weight; else what trek_graph_backward_weighted states, or the rows of the
                       forward), on one rank as on many. All passes since the last step count, be they k or
                       not; k tells which is the last, whose gradients are sent while backward goes on. Before
                       the step, gradients are means but for a factor, which trek_graph_reduce makes 1. Goes
                       with clipping, loss scaling, balancing and windows (each is a pass);
                       captured steps are done
                       call by call. On a GPU the host waits for the labels to be counted.
                       Default, and 1: passes add up, as PyTorch's */
    double max_grad_norm;            /* default 0: what the graph has; TREK_OFF: no clipping */
    double max_grad_value;           /* the same */
    trek_amp_opts amp;               /* mixed precision, see trek_graph_set_amp; default: what the graph has */
    int share_params;                /* TREK_OFF: every rank has parameters and optimizer state of its own, and gradients
                                        are sent in buckets, as GPU ranks always do. Default: CPU ranks share one copy */
    bool shard_optimizer; /* ranks with parameters of their own (GPUs', .share_params TREK_OFF) keep and update a part of the
                             optimizer's state each, and of the f32 copies of 16-bit parameters: 1/N of that memory, where
                             all of a job have one rank in each process, or there is one process. CPU ranks that share
                             parameters share the state; of several such processes each has a part. A step reduce-scatters
                             gradients, updates, and all-gathers parameters. Bits are those without it where sums are in rank
                             order (threads, processes of one machine) and nothing is clipped by norm; else it is so to rounding.
                             Checkpoints hold the whole state, for any number of ranks. Of optimizers that update whole
                             parameters (Muon, LAMB, LARS, Adafactor) each parameter is one rank's, to whom its gradient is
                             reduced and who broadcasts it: as many bytes, 1/N of the memory as far as parameters can be
                             dealt out evenly. UNSUPPORTED: CPU ranks beside GPU ranks, several processes with several
                             ranks that have parameters of their own. With one rank, or one copy of all: nothing */
    int64_t bucket_bytes;            /* of buckets after the first, which has at most 1 MiB; default 25 MiB */
    int overlap;                     /* whether gradients are sent in buckets while backward goes on, as trek_ddp_opts has it.
                                        Default: where the communicator progresses by itself (MPI, Gloo, NCCL); TREK_OFF: never,
                                        all are sent after backward; 1: between processes over shared memory, too. It takes ranks
                                        that do so alone: processes of one rank each, or the GPUs of one process. Results are
                                        the same, to the order of sums. The same on all ranks */
    /* Unequal ranks. Balancing changes each rank's share of a batch; windows (El Che) let each run whole batches at its own
     * pace between two steps. Windows need trek_graph_set_loader and trek_graph_set_loss. */
    trek_speed_hint speed_hint;      /* default: none */
    int balance; /* default 0: where devices of the job's ranks differ or a hint says so (else shares stay equal, and a run's bits
                    with them; a line in the log says where that costs much); 1: in any case; TREK_OFF: never */
    const double *shares; /* fixed ratios instead of measured ones: a number above 0 for each rank of the job (0 with allow_idle),
                             of any sum. Each rank gets its part of every batch, and of every window's batches (windows: with
                             max_anchor or global_batch, and the anchor is the count of the rank with the least; nothing but
                             the guard changes it), to whole ones. Not beside balance = 1, plan and what is of measuring:
                             speed_hint, min_share, overhead_target, max_batch_diff. Copied */
    int n_shares;                    /* of them, as many as the job has ranks */
    double min_share;                /* default min(0.05, 0.5 / ranks); TREK_ZERO: no bound */
    bool allow_idle;                 /* a rank that costs more than it brings gets nothing */
    int64_t
        max_anchor; /* windows: default 0: 200 and only where devices of the job's ranks differ or a hint says so; > 0: windows in
                       any case, and the most batches that the slowest rank runs between two steps; TREK_OFF: no windows */
    int64_t anchor;                  /* batches of the slowest rank at first; default 10 */
    double overhead_target;          /* default 0.10, 0.01 to 0.50: reduction over compute above which the anchor grows */
    int64_t max_batch_diff;          /* by how much a count moves at once; default 0: no bound */
    int64_t global_batch;  /* samples of a step's window, rounded to whole batches of the loader: constant, only their split
                              follows the  speeds. Default 0: windows grow with the anchor. Needs the loader to be set before */
    trek_average
        average; /* default: gradients. Parameters: passes are trek_graph_train_batch's; trek_graph_steps and the schedule
                    count batches of all ranks; without accumulate, scaled losses and layers that meet other ranks */
    double divergence_threshold; /* of averaged parameters: the anchor does not grow while the farthest replica's distance from
                                    the mean, over the mean's norm, has risen in the last three windows, or is above this; it is
                                    halved where both are so. Default 0.05; TREK_OFF: no guard */
    const trek_plan *plan; /* decisions of an earlier run, followed instead of measuring. Copied. Counts need windows: a pass of
                              another loop is then an ARGUMENT error. Default: none */
    const trek_slowdown *slowdowns;  /* one for each rank of this process: made slower, for examples and benchmarks. Copied */
    trek_comm *comm; /* among the processes of the job: setup takes a handle of its own; default: trek_comm_init(NULL)
                        where the environment describes more than one */
    double deadline_s;               /* how long a rank waits for another in a collective, and, at least 5 s, for all processes to
                                        join; default 600 and 300, TREK_OFF: for ever */
    trek_timeline *timeline;         /* attached; stays the caller's */
} trek_trainer_opts;

/* Makes the replicas, gives them rank 0's parameters and buffers, sets what the
 * options say; from there on the calls of graph.h reach all ranks. What was set on the
 * graph before holds after it, where no option says otherwise: optimizer (with its groups, moments
 * and step counts), schedule, learning rate, clipping, mixed precision, mode, frozen
 * parameters, replicated inputs, loader, loss, trek_graph_steps. Says in one line of the log (info) what it found and what is not
 * exact. With one rank there are no threads, no copies. opts may be NULL. May be
 * called again with other ranks. Errors: ARGUMENT (also: a replica that differs
 * from the graph), DEVICE, UNSUPPORTED, MEMORY, STATE, and what build_replica
 * reports; the graph then trains on its own device, with the
 * optimizer that it had (trek_graph_optimizer gives another address).
 *
 * Exact: gradients are those of one device, to rounding, for layers that treat
 * samples independently. Plain batch norm uses each rank's own statistics in
 * training; its running ones are merged by count at each step.
 * A step that fails in one process fails in all (PEER, naming it), and changes nothing. Once every process has cleared
 * its error (and dropped the step's gradients by trek_graph_zero_grad), the loop goes on.
 * Where some ranks of the job are on CPUs and others on GPUs, which round differently,
 * rank 0's parameters are sent to all others after each update. */
TREK_API trek_status trek_trainer_setup(trek_graph *graph, const trek_trainer_opts *opts);

/* The mean over all processes of a loss that each has of its part of a batch, weighed as trek_graph_backward weighs it: by
 * trek_loss_weight, else by the rows of the last forward. All processes call it, and have the same number; where nothing counted,
 * it is 0. Waits for the device. NaN and an error: the loss is no scalar (SHAPE), or a process fails. With one process it is the
 * loss. */
TREK_API double trek_trainer_mean(trek_graph *graph, trek_var *loss);

/* What the ranks do at present. */
typedef struct trek_trainer_workload {
    int ranks;                       /* of the job */
    int rank, local_ranks;           /* the first one of this process, and how many it has */
    bool windows;                    /* ranks run whole batches at their own pace */
    int64_t anchor, window;          /* of windows: the slowest rank's batches, and those of all ranks */
    double predicted, achieved;      /* speed-up over the fastest rank alone; 0: not known yet */
    int costly;                      /* a rank that costs more time than it brings; -1: none */
} trek_trainer_workload;
TREK_API trek_status trek_trainer_describe(trek_graph *graph, trek_trainer_workload *workload);
/* Each rank's batches of the next window; at most `capacity` are written. Returns the number of ranks; 0: no windows. In a run
 * whose sites are processes (run.h): each process's, and their number. */
TREK_API int trek_trainer_counts(trek_graph *graph, int64_t *counts, int capacity);
/* Writes how many samples a second each rank trains, as they were measured and smoothed, by which the balancer divides batches
 * and El Che windows; 0: that rank has not been measured yet. At most `capacity` are written. Computing counts, waiting for
 * others does not. Returns the number of ranks of the job (in a run whose sites are processes: of processes); 0 without an error
 * where nothing is measured: one rank, .balance TREK_OFF without windows. On the thread that trains. */
TREK_API int trek_trainer_throughput(trek_graph *graph, double *samples_per_s, int capacity);
/* What was decided so far, to be saved and followed (.plan): a copy for the caller to free. NULL without an error for one rank.
 */
TREK_API trek_plan *trek_trainer_plan(trek_graph *graph);

TREK_END

#endif
