/* SPDX-License-Identifier: Apache-2.0 */
/* Runs: the library owns the training loop. A program gives a function that builds the model, a dataset and a function that
 * computes the loss. A thread trains on all available ranks, and the program gets the metrics of each epoch.
 *
 *     static trek_var *train_step(trek_graph *graph, trek_var *logits, const trek_batch *batch, void *arg)
 *     {
 *         trek_record_scalar("accuracy", trek_accuracy(logits, trek_batch_get(batch, "label")));
 *         return trek_cross_entropy(logits, trek_batch_get(batch, "label"));
 *     }
 *
 *     trek_run *run = trek_trainer_run(&(trek_run_opts){
 *         .build_model = build_model, .train_step = train_step, .dataset = mnist, .input = "image",
 *         .optimizer = trek_adam(&(trek_adam_opts){ .lr = 1e-3 }), .batch_size = 64, .shuffle = true, .epochs = 5 });
 *     for (trek_epoch_metrics m; trek_run_next(run, &m); )
 *         printf("epoch %d  loss %.4f  accuracy %.4f\n", (int)m.epoch, m.loss, trek_metrics_get(&m, "accuracy"));
 *     trek_state *trained = trek_run_join(run);
 *
 * A run uses trek_trainer_setup with its own loader and a registered loss. trainer.h describes what a step means, which ranks
 * exist, how ranks of different speeds are kept busy, and what the processes of a job do together. */
#ifndef TREK_DISTRIBUTED_RUN_H
#define TREK_DISTRIBUTED_RUN_H

#include "distributed/outer.h"
#include "distributed/trainer.h"
#include "graph/loss.h"
#include "nn/state.h"

TREK_BEGIN

/* A run. */
typedef struct trek_run trek_run;

/* When the ranks combine their gradients or parameters. */
typedef enum trek_policy {
    TREK_POLICY_SYNC,    /* after every batch, which the ranks divide: exact, with the bits of trek_trainer_setup */
    TREK_POLICY_CADENCE, /* after a window of whole batches, which each rank runs at its own pace (El Che): exact if the window is
                            taken as the batch */
    TREK_POLICY_ASYNC    /* each rank at its own pace, which needs TREK_TRANSPORT_HOST: averages are used when they arrive */
} trek_policy;

/* How the ranks combine their gradients or parameters.
 *
 * With TREK_TRANSPORT_HOST parameters and optimizer states are averaged instead of gradients (as with .trainer.average). A
 * thread of the process averages snapshots in host memory while the ranks continue. A rank trains its batches of a round (with
 * TREK_POLICY_SYNC one batch, otherwise the counts of El Che), hands over a snapshot, and trains its batches of the next
 * round. Then it takes over the average of the first round: its parameters become the average plus its own changes since the
 * snapshot. So ranks wait only for a rank that is a whole round behind.
 * - The average is weighted by samples. At the end of an epoch buffers are merged, and all ranks have the same parameters.
 * - A rank whose training fails is left out from then on, with a warning, and the others train its batches.
 * - The division of batches among ranks and rounds follows from counts and times that all ranks know. With TREK_POLICY_SYNC or
 *   a plan (.trainer.plan) a run repeats its bits.
 * - One rank alone trains as without this transport. */
typedef enum trek_transport {
    TREK_TRANSPORT_DEVICE, /* by collectives on the devices of the ranks, which all ranks call together */
    TREK_TRANSPORT_HOST    /* by averages of snapshots in host memory, while the ranks continue */
} trek_transport;

/* With TREK_TRANSPORT_HOST: who trains independently between two averages (a "site").
 *
 * With TREK_SITE_PROCESS there are two levels. The ranks of a process divide each of its batches, reduce its gradients among
 * themselves and make one step together, as with TREK_POLICY_SYNC without other processes. That is exact; CPU ranks share one
 * copy of the parameters, and buffers are merged in each step. Only the results of processes are averaged or given to .outer.
 * It is meant for one process on each machine, with all its devices; several processes on one machine are several sites.
 * - What the options of a run say about ranks then holds for processes: they have batches, snapshots, counts (also those of a
 *   plan), times and .lr_scale, and if a rank fails, its process is left out.
 * - A batch is divided by times that are measured in its process, or by .trainer.shares, of which a process has the sum of its
 *   ranks'.
 * - A process of one rank trains as with TREK_SITE_RANK. In a job of one process nothing is averaged: with every policy its
 *   ranks make each step together, with the bits of TREK_POLICY_SYNC and TREK_TRANSPORT_DEVICE. */
typedef enum trek_site {
    TREK_SITE_RANK,   /* each rank */
    TREK_SITE_PROCESS /* each process, with all its ranks together */
} trek_site;

/* One scalar of an epoch. */
typedef struct trek_epoch_scalar {
    const char *name;          /* the name under which it was recorded */
    double value;              /* its value; NaN if the metric is not one number */
    const trek_tensor *values; /* for trek_record_metric: the result of trek_metric_values; otherwise NULL */
} trek_epoch_scalar;

/* A rank's part of an epoch. */
typedef struct trek_rank_metrics {
    double compute_s;     /* seconds of computing; for GPUs measured by the GPU */
    double waiting_s;     /* the remaining seconds of the epoch's training: other ranks, reductions, the loader */
    int64_t samples;      /* number of samples that the rank trained */
    double samples_per_s; /* samples per second of computing; 0 if it had no samples */
    double share;         /* its part of the epoch's samples, in [0, 1] */
} trek_rank_metrics;

/* The metrics of an epoch, or of a part of it that ends by .evaluate_every_steps or .max_steps. They are those of what was
 * trained since the last metrics. The pointers are valid until trek_run_join. */
typedef struct trek_epoch_metrics {
    int64_t epoch;                    /* number of the epoch, from 0 */
    bool complete;                    /* the epoch has ended */
    int64_t step;                     /* number of all steps of the run so far, with those before it was resumed */
    int64_t steps;                    /* number of steps */
    int64_t samples;                  /* number of samples of all ranks */
    double loss;                      /* mean over all samples, weighted as in a step; NaN if no sample counted */
    double evaluation_loss;           /* mean loss of the evaluation; NaN without an evaluation at this point */
    double lr;                        /* learning rate of group 0 in the last step */
    double seconds;                   /* seconds of training, without evaluation */
    double samples_per_s;             /* samples per second of training */
    double evaluation_s;              /* seconds of evaluation */
    int64_t anchor;                   /* batches of the slowest rank in a window; 0 without windows */
    int64_t averages;                 /* how often gradients or parameters of the ranks were combined; 0 for one rank */
    int64_t bytes_sent;               /* bytes that this process sent for averages of TREK_TRANSPORT_HOST; otherwise 0 */
    /* For averaged parameters: the largest distance of a replica from the last average, divided by the norm of the average. It
     * is 0 without averages or for one rank. */
    double drift;
    int lost;                         /* how many of `ranks` were left out (TREK_TRANSPORT_HOST); retrained samples count twice */
    bool best;                        /* true if .best_metric is the best so far */
    int ranks;                        /* number of ranks of the job at the end of the epoch */
    const trek_rank_metrics *per_rank; /* the parts of the ranks, [ranks] */
    int n_scalars;                    /* number of `scalars` */
    /* The scalars that training recorded, those of nested graphs as "PATH.NAME", and those of the evaluation as
     * "evaluation.NAME", in the order of their names. */
    const trek_epoch_scalar *scalars;
    int process;                      /* number of this process; the metrics are equal in all processes */
    int processes;                    /* number of processes of the job */
    int rank;                         /* the first rank of this process */
} trek_epoch_metrics;
/* Returns a metric of an epoch: "loss", "evaluation_loss" or the value of a scalar. Returns NaN if the epoch has no such
 * metric. */
TREK_API double trek_metrics_get(const trek_epoch_metrics *metrics, const char *name);

/* A function of the user that runs before an epoch, on the run's thread, in every process. If it returns another status than
 * TREK_OK or sets an error, the run ends with it. */
typedef trek_status (*trek_epoch_fn)(trek_graph *graph, int64_t epoch, void *arg);
/* A function of the user that gets the metrics of an epoch or of a part of it, on the run's thread, in every process. If it
 * returns another status than TREK_OK or sets an error, the run ends with it. */
typedef trek_status (*trek_metrics_fn)(const trek_epoch_metrics *metrics, void *arg);
/* A function of the user that is called when a checkpoint, made in or after that epoch, has been written to `path`, on the run's
 * thread. It is called when a later checkpoint is made or metrics are ready, or at the end of a run that has not failed, so
 * `graph` may have been trained further. If it returns another status than TREK_OK or sets an error, the run ends with it. */
typedef trek_status (*trek_checkpoint_fn)(trek_graph *graph, int64_t epoch, const char *path, void *arg);

/* Options of a run. build_model, train_step, dataset, optimizer, batch_size, and epochs or max_steps are required (trek_fit needs
 * no build_model). Fields that are 0 have their defaults.
 *
 * max_steps, checkpoint_every_steps, evaluate_every_steps: steps are counted from the beginning of the run, also after it was
 * resumed. A step is an update of the parameters: a batch, .trainer.accumulate batches, or a window of TREK_POLICY_CADENCE. With
 * averaged parameters (TREK_TRANSPORT_HOST) each batch is a step, and the ranks are averaged wherever one of these options asks
 * for something; other values of them then train in another way. A run that is resumed from any of its checkpoints gives the bits
 * of one that was not interrupted, as trek_checkpoint_load says.
 *
 * dataset may be a stream, with TREK_POLICY_SYNC and TREK_TRANSPORT_DEVICE. An epoch ends where the stream ends. If it does not
 * end, max_steps is needed. A stream is read again up to the step at which a run is resumed.
 *
 * min_processes, for a job of several processes: if one dies, the others continue without it as long as at least this number
 * is left.
 * - They drop the incomplete step and divide the rest of the epoch among themselves, so that every sample is seen once. From
 *   there on they train as a run that is resumed on the remaining processes. The graph is built again, so pointers into it
 *   that a callback keeps are no longer valid, and .on_epoch is called again.
 * - In grains (trainer.grain) they complete the step instead, with the bits of a run in which nobody died, and keep their graph,
 *   unless some of them are not in a step at that moment, or trainer.shares, plan or speed_hint is set, or dataset is a stream.
 * - The epoch's metrics lack what the lost process had recorded in it. .on_metrics and .on_checkpoint may be called twice for
 *   an epoch if a process is lost while it ends. This holds from the start of the processes; while they are joining it needs
 *   trek-run, which reports processes that have ended.
 * - A process that is started again with TREK_JOIN=1 in its environment (trek-run --restarts), and one that was not in the
 *   job before (TREK_JOIN=new, trek-run --join), join the others at the beginning of the next epoch, in grains at the next step,
 *   and get everything from them. Their trek_run_next begins with that epoch. If such a process cannot join, only it fails, with
 *   STATE, TIMEOUT, ARGUMENT, UNSUPPORTED or COMM (docs/distributed.md).
 * - If the network splits, both halves continue if they have enough processes. A number above half of the processes prevents
 *   that.
 * - It costs a copy of the buffers for each step. With averaged parameters, which continue from the last average
 *   (TREK_TRANSPORT_HOST: the beginning of the epoch), it costs a copy of the whole state.
 * - An error of the program itself ends the run on all processes.
 * - In a job of CPUs and GPUs, whose updates round differently, all have the parameters of one process after each step.
 * - Errors: UNSUPPORTED over MPI, and with .trainer.shard without grains.
 *
 * outer, with TREK_TRANSPORT_HOST: the ranks' results are given to an outer optimizer instead of being averaged (DiLoCo), for
 * machines that are far apart. Each rank trains its batches of a round independently. With TREK_POLICY_CADENCE and an anchor
 * of 50 (.trainer.anchor, .max_anchor) the slowest rank trains 50. With fragments, one fragment is sent in each round, in
 * turn. Each rank keeps its own states of .optimizer. Parameters must be f32 or 16-bit. The outer momentum is saved in
 * checkpoints.
 *
 * checkpoint_folder: the run's thread only copies the state. Another thread writes it to a temporary file, syncs it and
 * renames it, while training continues. One checkpoint is written and one waits at a time. If there would be more, the run
 * waits, unless .keep_last is 1: then the new one replaces the one that waits. The end of the run waits for all of them. If a
 * write fails, the run ends at the end of the next epoch in all processes. */
typedef struct trek_run_opts {
    /* -- what is trained -- */

    /* Builds the graph of a rank. It is called on the rank's thread, for rank 0 on the run's thread. Required. */
    trek_build_fn build_model;
    /* The loss of one batch, as for trek_graph_set_loss. It may record scalars and metrics. With .input it gets the graph's
     * output for the batch; without, it gets NULL and calls trek_graph_forward on its graph itself, as often as it needs.
     * Required. */
    trek_loss_fn train_step;
    trek_dataset *dataset;         /* the training set; it is retained; required */
    trek_optimizer_spec optimizer; /* the optimizer; required */
    int64_t batch_size;            /* samples of a batch, of all ranks; with TREK_POLICY_CADENCE of each rank; required */
    int64_t epochs;                /* number of epochs; required without max_steps */
    int64_t max_steps;             /* the run ends after this number of steps, or after its epochs; default 0: after its epochs */
    /* The field that feeds the graph's first input. Every other input is fed by the field of its name. Copied. Default NULL. */
    const char *input;
    void *arg;                     /* passed to all functions */

    /* -- how it is trained -- */

    uint64_t seed;           /* seed of the order of samples and of random numbers in training; default 0 */
    bool shuffle;            /* a new random order in each epoch; default false: the order of the dataset */
    bool drop_last;          /* drops a last batch that is smaller; default false */
    int prefetch;            /* as in trek_loader_opts */
    int workers;             /* as in trek_loader_opts */
    trek_policy policy;      /* when ranks combine gradients or parameters; default TREK_POLICY_SYNC */
    trek_transport transport; /* not HOST with .trainer.accumulate, scaled losses or layers that use other ranks */
    trek_site site;          /* with TREK_TRANSPORT_HOST: who trains independently; default TREK_SITE_RANK */
    /* With TREK_TRANSPORT_HOST: the most batches of a round that a rank trains before it takes over the average of the round
     * before (with TREK_POLICY_ASYNC it takes one that has arrived earlier). Default 0: all. TREK_OFF: none, ranks wait. A
     * rank is never more than one round ahead; longer rounds (.trainer.anchor) give it a longer lead. */
    int64_t max_lead;
    const trek_outer_opts *outer; /* with TREK_TRANSPORT_HOST: an outer optimizer (see above); copied; default NULL: averages */
    int min_processes;       /* processes that must be left for the run to continue (see above); default 0: a loss ends the run */
    trek_schedule schedule;  /* learning rate by steps; default: constant */
    /* Multiplies the learning rates of all groups, or of the schedule, by 1 + (ranks - 1) * lr_scale. Default 0: not changed.
     * 1 is linear in the number of ranks. */
    double lr_scale;
    /* Further options, as for trek_trainer_setup. The fields that are options of the run itself (build_replica, arg,
     * optimizer, schedule) must be left out. .max_anchor is for TREK_POLICY_CADENCE. Lists are copied; plan, comm, timeline
     * must stay valid. */
    trek_trainer_opts trainer;

    /* -- evaluation, exact over all ranks, in evaluation mode and without gradients -- */

    trek_loss_fn evaluate;    /* the mean loss of a batch; it may record scalars; default: train_step */
    trek_dataset *evaluation; /* the evaluation set, with the same field names; retained; default NULL: no evaluation */
    int64_t evaluation_batch; /* samples of a batch; default: batch_size */
    int64_t evaluate_every;   /* epochs between evaluations; the end of the run always has one; default 1, or by steps alone */
    /* Steps between evaluations. Each ends a part of the epoch, which has metrics of its own, also without .evaluation. Default
     * 0: only by epochs. */
    int64_t evaluate_every_steps;

    /* -- saving and stopping -- */

    /* The name of the metric (trek_metrics_get) by which epochs, or their parts, are compared; the smallest value is the best.
     * Copied. Default: evaluation_loss, or loss without an evaluation. If it is not one number in the first epoch that should
     * have it, the run ends with ARGUMENT. */
    const char *best_metric;
    bool best_is_largest;          /* the metric is best when it is largest; default false */
    int64_t patience;              /* stops, with a warning, after this number of metrics without a best; default 0: never */
    double min_delta;              /* a metric is better only if it improves by more than this; >= 0; default 0 */
    const char *checkpoint_folder; /* folder of checkpoints (see above), created if needed; copied; default: no checkpoints */
    int64_t checkpoint_every;      /* epochs between checkpoints; the end always has one; default 1, or by steps alone */
    int64_t checkpoint_every_steps; /* steps between checkpoints; default 0: only by epochs */
    int keep_last;                 /* how many checkpoints stay (TREK_OFF: all); on_checkpoint sees the others first; default 1 */
    bool keep_best;                /* also writes the best epoch to "best.safetensors"; default false */
    /* A checkpoint, or a folder, whose last checkpoint is used; copied. The run begins from the start if the folder is empty,
     * or if it is .checkpoint_folder and does not exist yet. IO if any other path does not exist. */
    const char *resume_from;

    trek_epoch_fn on_epoch;           /* called before an epoch; its settings stay (trek_graph_set_lr, freezing); default NULL */
    trek_metrics_fn on_metrics;       /* called after an epoch; default NULL */
    trek_checkpoint_fn on_checkpoint; /* called in process 0, which writes the checkpoints; default NULL */
} trek_run_opts;

/* Checks the options, starts a run and returns it at once. The caller ends it with trek_run_join. In a job of several
 * processes only one run at a time can train. In a single process several can; their random numbers depend on the seed of the
 * run that began last.
 * Errors: ARGUMENT if an option is missing or contradicts another. STATE if a thread cannot be started. MEMORY. NULL is
 * returned. */
TREK_API trek_run *trek_trainer_run(const trek_run_opts *opts);

/* Trains an existing module on its device and returns when the training has ended, with TREK_OK or the error of trek_run_join.
 * The caller keeps the module, which then has the parameters and buffers of the last step, also after a failure. Losses and
 * metrics are given to .on_metrics.
 *
 *     trek_fit(model, &(trek_run_opts){ .dataset = mnist, .input = "image", .train_step = loss, .batch_size = 64,
 *                                       .shuffle = true, .epochs = 5,
 *                                       .optimizer = trek_adam(&(trek_adam_opts){ .lr = 1e-3 }) });
 *
 * The options are those of trek_trainer_run without build_model. The training has one rank in each process, on the device of
 * the module's first parameter; TREK_DEVICES is not read. If the program was started by trek-run, it trains together with the
 * other processes, whose modules get the values of process 0. Checkpoints name its parameters "model.NAME".
 * Errors: ARGUMENT also if build_model or several ranks are given; use trek_trainer_run, which builds a model for each rank.
 * STATE if the parameters belong to an optimizer's block of memory. */
TREK_API trek_status trek_fit(trek_module *module, const trek_run_opts *opts);

/* Waits until the next epoch, or part of it, has ended, writes its metrics to *metrics and returns true. Returns false if no
 * further one comes; trek_run_join then returns whether the run has failed. */
TREK_API bool trek_run_next(trek_run *run, trek_epoch_metrics *metrics);

/* Waits until the run has ended, frees it and returns the final parameters and buffers on the CPU. The caller frees them with
 * trek_state_free. After trek_run_stop or trek_request_stop they are those of the last step.
 * Errors: the error of the run, which names the rank that failed and the reason; NULL is returned. */
TREK_API trek_state *trek_run_join(trek_run *run);

TREK_END

#endif
