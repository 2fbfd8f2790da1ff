/* SPDX-License-Identifier: Apache-2.0 */
/* Runs: the library owns the loop. A program hands over how the model is made, a dataset and a training function; a thread
 * trains, on all ranks that there are, and the program hears of each epoch.
 *
 *     static trek_var *train_step(trek_graph *graph, trek_var *logits, const trek_batch *batch, void *arg)
 *     {
 *         trek_record_scalar("accuracy", trek_accuracy(logits, trek_batch_get(batch, "label")));
 *         return trek_cross_entropy(logits, trek_batch_get(batch, "label"));
 *     }
 *
 *     trek_run *run = trek_trainer_run(&(trek_run_opts){
 *         .build_model = build_model, .train_step = train_step, .dataset = mnist, .input = "image",
 *         .optimizer = trek_adam((trek_adam_opts){ .lr = 1e-3 }), .batch_size = 64, .epochs = 5 });
 *     for (trek_epoch_metrics m; trek_run_next(run, &m); )
 *         printf("epoch %d  loss %.4f  accuracy %.4f\n", (int)m.epoch, m.loss, trek_metrics_get(&m, "accuracy"));
 *     trek_state *trained = trek_run_join(run);
 *
 * It is trek_trainer_setup with a loader and a registered loss of its own: what a step means, which ranks there are, how
 * unequal ones are kept busy, and what processes of a job do together, is written there. */
#ifndef TREK_DISTRIBUTED_RUN_H
#define TREK_DISTRIBUTED_RUN_H

#include "distributed/outer.h"
#include "distributed/trainer.h"
#include "graph/metric.h"
#include "graph/observe.h"
#include "nn/state.h"

TREK_BEGIN

typedef struct trek_run trek_run;

/* When ranks bring their gradients together. */
typedef enum trek_policy {
    TREK_POLICY_SYNC,     /* after every batch, which they divide: exact, the same bits as trek_trainer_setup gives */
    TREK_POLICY_CADENCE,  /* El Che: each runs whole batches at its own pace and all meet after a window; exact for the
                             window's samples */
    TREK_POLICY_ASYNC     /* each at its own pace, with TREK_TRANSPORT_HOST: averages are taken in as they come */
} trek_policy;

/* How they do so. */
typedef enum trek_transport {
    TREK_TRANSPORT_DEVICE, /* by collectives of the ranks' devices, in which they meet */
    TREK_TRANSPORT_HOST    /* parameters and optimizer states are averaged, not gradients (as with .trainer.average), by a thread
                              of the process and in host memory, from snapshots, while the ranks go on: a rank trains its
                              batches of a round (SYNC: one, else El Che's counts), hands over a snapshot, trains those of the
                              next round, and takes the average of the first in: it becomes the average and what the rank has
                              done since. So ranks wait only for one that is a whole round behind. The average is
                              weighted by samples. A rank whose training fails is left out from there on, with a warning: the
                              others train its batches. At the end of an epoch buffers are merged, and all have the same
                              parameters. Who takes which batches in which round follows from counts and times that all know,
                              and with SYNC, or a plan (.trainer.plan), a run repeats its bits. One rank alone trains as ever */
} trek_transport;

/* With TREK_TRANSPORT_HOST: who trains by itself between two averages. */
typedef enum trek_site {
    TREK_SITE_RANK,   /* each rank */
    TREK_SITE_PROCESS /* two levels: the ranks of a process divide each of its batches, reduce its gradients among themselves, and
                         make one step, as in TREK_POLICY_SYNC without other processes (exact; CPUs share one copy of the
                         parameters; buffers are merged in each step), and only what processes have come to is averaged, or
                         given to .outer. For one process on each machine, with all its devices: several on one machine are
                         several sites. What is said of ranks in the options below holds for processes: they have batches, a
                         snapshot, counts (and a plan's), times, .lr_scale; a rank that fails makes its process be left out. A
                         batch is divided by times measured in its process, or .trainer.shares; of these a process has the sum
                         of its ranks'. A process of one rank trains as with TREK_SITE_RANK. With a single process there is
                         nothing to average: whatever the policy, its ranks make each step together, with the bits of
                         TREK_POLICY_SYNC and TREK_TRANSPORT_DEVICE */
} trek_site;

/* One scalar of an epoch. */
typedef struct trek_epoch_scalar {
    const char *name;
    double value;
    const trek_tensor *values;       /* of trek_record_metric: as trek_metric_values gives them (value is NaN where they are not
                                        one number); else NULL */
} trek_epoch_scalar;

/* A rank's part of an epoch. */
typedef struct trek_rank_metrics {
    double compute_s;                /* it computed so long; GPUs: by their own clocks */
    double waiting_s;                /* the rest of the epoch's training: waiting for other ranks, reducing, the loader */
    int64_t samples;
    double samples_per_s;            /* of compute; 0: it had none */
    double share;                    /* of the epoch's samples */
} trek_rank_metrics;

/* An epoch. What it points to is the run's, until trek_run_join. */
typedef struct trek_epoch_metrics {
    int64_t epoch;                   /* from 0 */
    int64_t steps, samples;          /* of all ranks */
    double loss;                     /* mean over all samples, weighted as the step weighs them; NaN: none counted */
    double evaluation_loss;          /* likewise, of the evaluation after this epoch; NaN: there was none */
    double lr;                       /* of group 0 in the last step */
    double seconds, samples_per_s;   /* of training; evaluation excluded */
    double evaluation_s;
    int64_t anchor;                  /* of windows; 0: none */
    int64_t averages;                /* how often the ranks' gradients or parameters were brought together; 0: one rank */
    int64_t bytes_sent;              /* by this process to others, for TREK_TRANSPORT_HOST's averages; else 0 */
    double drift;                    /* of averaged parameters: the farthest replica's distance from the last average, over the
                                        average's norm; 0: none, or one rank */
    int lost;                        /* ranks that were left out (TREK_TRANSPORT_HOST), of `ranks`; when one is, what others
                                        train again is counted twice */
    bool best;                       /* .best_metric is the best so far */
    int ranks;                       /* of the job, as it is at the epoch's end */
    const trek_rank_metrics *per_rank;
    int n_scalars;
    const trek_epoch_scalar *scalars; /* what training recorded, "PATH.NAME" what nested graphs have, and "evaluation.NAME" of
                                         what evaluation did */
    int process, processes; /* which process this is, of how many; metrics are alike in all, so that process 0 may tell them */
    int rank;                        /* the first rank of this process */
} trek_epoch_metrics;
/* "loss", "evaluation_loss", or the value of a scalar; NaN: there is none. */
TREK_API double trek_metrics_get(const trek_epoch_metrics *metrics, const char *name);
/* Of a metric whose value is not one number (a confusion, the classes' F1): f64, on the CPU, borrowed as the rest. NULL without
 * an error: there is none. */
TREK_API const trek_tensor *trek_metrics_values(const trek_epoch_metrics *metrics, const char *name);

/* Callbacks run on the run's thread, in every process. Any status but OK ends the run with it; so does an error that is set. */
typedef trek_status (*trek_epoch_fn)(trek_graph *graph, int64_t epoch, void *arg);
typedef trek_status (*trek_metrics_fn)(const trek_epoch_metrics *metrics, void *arg);
/* path: of a file that has been written after that epoch. At the end of a later epoch, or of the run, unless that has failed: the
 * graph may be further. */
typedef trek_status (*trek_checkpoint_fn)(trek_graph *graph, int64_t epoch, const char *path, void *arg);

typedef struct trek_run_opts {
    /* -- what is trained: required, but for build_model with a graph of one's own -- */
    trek_build_fn build_model;       /* called on each rank's thread, for rank 0 on the run's */
    trek_loss_fn train_step;         /* the loss of one batch, as for trek_graph_set_loss; may record scalars and metrics. With
                                        .input it is given what the graph made of the batch; without, output is NULL and it runs
                                        trek_graph_forward on the graph that it is given itself, as often as it likes */
    trek_dataset *dataset;           /* retained */
    trek_optimizer_spec optimizer;
    int64_t batch_size;              /* of all ranks together; with CADENCE, of each rank's batches */
    int64_t epochs;
    const char *input;               /* field of the graph's first input; others take the field of their name. Copied */
    void *arg;                       /* handed to all functions */

    /* -- how -- */
    uint64_t seed;                   /* of the order of samples and of what is drawn in training */
    int shuffle;                     /* default: a new order in each epoch; TREK_OFF: in order */
    bool drop_last;
    int prefetch, workers;           /* as a loader's */
    trek_policy policy;
    trek_transport transport;        /* HOST: without .trainer.accumulate, scaled losses and layers that meet other ranks */
    trek_site site;                  /* HOST: who trains by itself */
    int64_t max_lead;                /* HOST: how many batches of a round a rank trains at most before it takes in the average of
                                        the round before (ASYNC: it takes it in before, if it is there). Default 0: the round's.
                                        TREK_OFF: none, ranks wait for each average */
    const trek_outer_opts *outer;    /* HOST: an outer optimizer is given what ranks have come to: no averages (DiLoCo),
                                        for machines far apart. Each rank trains its batches of a round by itself: with CADENCE
                                        and an anchor of 50 (.trainer.anchor, .max_anchor) the slowest one 50; of fragments one
                                        travels in each round, in turn. The states of .optimizer stay each rank's own.
                                        Parameters in f32 or 16 bits. Its momentum is in checkpoints. NULL: none. Copied */
    int min_processes; /* of a job of several: when one dies, the others go on without it, as long as so many are left. They drop
                          the step that was not complete, divide the rest of the epoch among themselves, so that every sample is
                          seen once, and are from there on the run that a resumed one on so many processes would be (the graph
                          is built anew: what a callback keeps of it is gone; .on_epoch is called again). The epoch's metrics
                          lack what the lost process had recorded in it; .on_metrics and .on_checkpoint may be called
                          twice for an epoch in whose end one is lost. So it is from the processes' start on; while they are
                          joining, under trek-run, which says who has ended. A process that
                          is started again with TREK_JOIN=1 in its environment (trek-run --restarts) joins the others where
                          the next epoch begins and gets all from them; its trek_run_next begins there. It fails alone, with
                          STATE, TIMEOUT, ARGUMENT or COMM, where it cannot (docs/distributed.md). Where the network falls in two,
                          both halves go on if
                          they may: more than half of the processes rules that out. Costs a copy of the buffers for each step;
                          with averaged parameters, which go on from the last average (HOST: the epoch's beginning), one
                          of the whole state. An error of the
                          program's own ends the run on all processes, as ever. Not over MPI, not with NCCL
                          between processes (TREK_NCCL=0), nor with CPUs beside GPUs or .trainer.shard_optimizer:
                          UNSUPPORTED. Default 0: a process that dies ends the run */
    trek_schedule schedule;          /* by steps; default: none */
    double lr_scale; /* the learning rates of all groups, or the schedule's, times 1 + (ranks - 1) * lr_scale. Default
                        0: as they are; 1: linear in the ranks */
    trek_trainer_opts trainer;       /* devices, ranks, clipping, mixed precision, accumulation, El Che's and the balancer's
                                        numbers, ...: as for trek_trainer_setup. What is an option of the run (build_replica, arg,
                                        optimizer, schedule) is left out there, .max_anchor belongs to CADENCE. Lists with an
                                        entry for each rank are copied; plan, comm and timeline stay the caller's, until join */

    /* -- evaluation, over all ranks, exactly; in evaluation mode, without gradients -- */
    trek_loss_fn evaluate;           /* the mean loss of a batch; may record scalars. NULL: train_step */
    trek_dataset *evaluation;        /* retained; NULL: none. Its fields are named like the dataset's */
    int64_t evaluation_batch;        /* default: batch_size */
    int64_t evaluate_every;          /* epochs; default 1; the last one in any case */

    /* -- keeping and stopping -- */
    const char *best_metric;         /* which of an epoch's metrics (trek_metrics_get) is to be small. Default: evaluation_loss,
                                        or loss without an evaluation. Copied. ARGUMENT ends the run after its first epoch, or
                                        after the first one with an evaluation, if nothing of that name is one number there */
    bool best_is_largest;            /* it is to be large */
    int64_t patience;                /* stop when so many epochs in a row were not the best, which the log tells (a warning);
                                        default 0: never */
    double min_delta;                /* by less than this it is not better; >= 0 */
    const char *checkpoint_folder;   /* made if need be; NULL: no checkpoints. Copied. The run's thread only copies the state;
                                        another one writes it, beside its place, synced and renamed, while training goes on.
                                        One is written and one waits at a time: then the run waits too, unless the one that
                                        waits would be removed by its successor, which takes its place (.keep_last 1).
                                        The run's end waits for all. A write that fails ends the run at the next epoch's
                                        end, in all processes */
    int64_t checkpoint_every;        /* epochs; default 1; the last one in any case */
    int keep_last; /* how many of them stay; default 1; TREK_OFF: all. The others go when on_checkpoint has had them */
    bool keep_best;                  /* also the file "best.safetensors" */
    const char *resume_from; /* a file, or a folder: its last one; an empty folder, or .checkpoint_folder where it is not there
                                yet: from the beginning. IO: what is named otherwise is not there. Copied */

    trek_epoch_fn on_epoch;          /* before an epoch; what it sets (trek_graph_set_lr, freezing) holds */
    trek_metrics_fn on_metrics;      /* after an epoch */
    trek_checkpoint_fn on_checkpoint; /* on the process that writes, process 0 */
} trek_run_opts;

/* Checks the options and starts the run; returns at once. NULL and ARGUMENT (which option is missing or contradicts
 * another), MEMORY, STATE (a thread cannot start). One run at a time trains in a job of several processes;
 * of one process several may, which draw from the seed of the last one that began. */
TREK_API trek_run *trek_trainer_run(const trek_run_opts *opts);

/* The short form for a module that is there: trains it where it is, and returns when the run has ended, with TREK_OK or what
 * trek_run_join would say; the module, which stays the caller's, then has the parameters and buffers of the last step, also
 * after a failure. Losses and metrics come by .on_metrics.
 *
 *     trek_fit(model, &(trek_run_opts){ .dataset = mnist, .input = "image", .train_step = loss, .batch_size = 64, .epochs = 5,
 *                                       .optimizer = trek_adam((trek_adam_opts){ .lr = 1e-3 }) });
 *
 * The options are trek_trainer_run's without build_model. It is one rank of each process, on the device of the module's first
 * parameter (TREK_DEVICES is not read): started by trek-run it trains with the others', whose modules take process 0's values.
 * Checkpoints call its parameters "model.NAME". ARGUMENT: also build_model, or several ranks (trek_trainer_run builds a
 * model for each). STATE: its parameters live in an optimizer's arena. */
TREK_API trek_status trek_fit(trek_module *module, const trek_run_opts *opts);

/* Waits for the next epoch's metrics. False: there are none any more; trek_run_join tells whether that is well. */
TREK_API bool trek_run_next(trek_run *run, trek_epoch_metrics *metrics);
/* The same without waiting: false, too, where the next epoch has not ended. */
TREK_API bool trek_run_poll(trek_run *run, trek_epoch_metrics *metrics);

/* Where a run is. */
typedef struct trek_run_progress {
    bool running;
    int64_t epoch, epochs;
    int64_t batch, batches;          /* of the epoch: done, and all */
    int64_t samples;                 /* trained on since the run began */
    double samples_per_s;            /* since the epoch began */
    double loss;                     /* mean of the last step on this process; NaN: none yet, or not at hand (on a GPU) */
} trek_run_progress;
TREK_API trek_status trek_run_look(trek_run *run, trek_run_progress *progress);

/* Asks this run to stop after its present step, on all processes; from any thread and process. Its last epoch is then incomplete
 * and has no metrics; after an epoch's last step the epoch ends first, with its evaluation. */
TREK_API void trek_run_stop(trek_run *run);
/* The values of the best epoch that a run kept (.keep_best): FOLDER/best.safetensors into a module, as trek_state_load does. IO:
 * it is not there. */
TREK_API trek_status trek_run_load_best(trek_module *model, const char *folder);
/* Waits for the end and frees the run. The final parameters and buffers on the CPU, to be freed by trek_state_free; NULL and
 * an error, which says which rank failed and why. After trek_run_stop, or trek_request_stop: those of the last step. */
TREK_API trek_state *trek_run_join(trek_run *run);

TREK_END

#endif
