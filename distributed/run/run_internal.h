/* SPDX-License-Identifier: Apache-2.0 */
/* A run: what the program and the run's thread share, and what only the thread uses. */
#ifndef TREK_DISTRIBUTED_RUN_RUN_INTERNAL_H
#define TREK_DISTRIBUTED_RUN_RUN_INTERNAL_H

#include <stdatomic.h>

#include "distributed/comm/regroup.h"
#include "distributed/job/survival.h"
#include "distributed/rounds/rounds.h"
#include "distributed/run.h"
#include "distributed/run_progress.h"
#include "distributed/system/system.h"
#include "nn/text.h"
#include "tensor/status_internal.h"

#define TREK_RUN_EVALUATION "evaluation."

/* The metrics of an epoch, or of a part of it, and what they point to. */
typedef struct run_epoch {
    trek_epoch_metrics metrics;
    trek_rank_metrics *ranks;
    trek_epoch_scalar *scalars; /* names and values are owned */
    bool evaluated;
} run_epoch;

/* What was done in an epoch, or in a part of it, before training goes on in it. */
typedef struct run_before {
    int64_t steps, samples, ns, averages;
} run_before;

/* A part of an epoch, which is trained without an interruption. */
typedef struct run_part {
    run_before before;       /* what was done in the epoch before it */
    int64_t steps, samples;  /* where it begins */
    int64_t every, passes;   /* passes of a step; passes that have begun */
} run_part;

/* What a checkpoint of a run has in addition. */
enum { TREK_RUN_BEST, TREK_RUN_SINCE_BEST, TREK_RUN_NUMBERS };

struct run_elastic;

struct trek_run {
    trek_run_opts opts;      /* with its own strings and datasets */
    trek_module *module;     /* the model, if none is built; borrowed */
    trek_thread thread;

    /* guarded by the lock: */
    trek_lock lock;
    trek_condition changed;
    run_epoch **epochs;      /* that have ended, in order */
    int n_epochs, cap_epochs, next;
    bool ended;
    trek_run_progress progress;
    int64_t epoch_start_ns, epoch_samples;

    atomic_bool stop;

    /* used by the thread until `ended` is set: */
    trek_graph *graph;
    trek_loader *train, *evaluation;
    int64_t first_epoch;     /* after resuming */
    bool resumed;            /* in the middle of first_epoch */
    run_before before;       /* of that epoch, on more processes (elastic.c) or before the run was stopped (keep.c) */
    run_part part;           /* of the epoch that is under way */
    int sites;               /* by whose number .lr_scale has multiplied the rate; 0: it has not yet */
    trek_survival_state arrivals; /* how processes that come get the state (arrive.c) */
    run_before begun;        /* what the next checkpoint contains of the epoch in which it is made (trek_run_begin_within), */
    trek_text recorded;      /* and what was recorded in it; */
    bool within;             /* otherwise it is made after the metrics of an epoch or of a part of it */
    int64_t parts;           /* how many epochs and parts of epochs have got their metrics */
    int64_t looked;          /* the step up to which everything is done that is due after certain steps (steps.c) */
    run_epoch *pending;      /* complete metrics, until the others confirm that they have them, too; NULL: none */
    struct run_elastic *elastic; /* NULL: a process that dies ends the run */
    int64_t stopped_step;    /* step of the checkpoint in its own folder from which it has resumed within an epoch; 0: none */
    double best;             /* NaN: none yet */
    int64_t since_best;      /* number of epochs */
    int64_t best_epoch;      /* -1: before this process's first epoch */
    bool rated;              /* .best_metric has been found */
    trek_rounds_stats averages; /* as of the last epoch's metrics */
    struct run_writer *writer; /* of checkpoints; NULL: another process writes them, or none does */
    trek_status status;
    char message[TREK_ERROR_SIZE];
    trek_state *final;
};

/* options.c: checks options; fails with ARGUMENT, which names the option. copy gives *to its own strings and
 * references to the datasets; free releases them. */
trek_status trek_run_check(const trek_run_opts *opts, const trek_module *module);
trek_status trek_run_opts_copy(trek_run_opts *to, const trek_run_opts *from);
void trek_run_opts_clear(trek_run_opts *opts);
/* Describes what decides when processes meet and what they decide, one line each. */
trek_text trek_run_describe(const trek_run *run);
/* Returns a number for that, for the run's graph, and for everything else of a run that must be equal, as far as it is known
 * without the others. Returns 0 with MEMORY. */
uint64_t trek_run_program(const trek_run *run);
/* Returns whether the run outlives deaths within a step, as training in grains can. */
bool trek_run_outlives_in_steps(const trek_run *run);

/* train.c: trains. The run's thread calls it. */
trek_status trek_run_train(trek_run *run);

/* arrive.c: processes that come to a run in grains. state is for the trainer: it gives them the state, and takes it. has_come
 * returns whether this process has come, and has made no pass since; until then it does nothing that all do together. arrive
 * begins where the others are, and leave takes the process out of the job if it has not trained with the others yet; the error
 * of the thread says why. */
trek_survival_state trek_run_arrivals_state(trek_run *run);
bool trek_run_has_come(const trek_run *run);
trek_status trek_run_arrive(trek_run *run);
void trek_run_leave(const trek_run *run);

/* metrics.c */
run_epoch *trek_run_epoch_new(int64_t epoch);
void trek_run_epoch_free(run_epoch *epoch);
/* Publishes an epoch that has ended to the callers that wait for it. The run owns it from here on, also on failure. */
trek_status trek_run_publish(trek_run *run, run_epoch *epoch);
/* Takes what all ranks and processes have observed since the last call. A collective. */
trek_status trek_run_measure_training(trek_run *run, run_epoch *epoch);
/* *again: a process has died with what it had observed in the evaluation, which must be made again. All processes know it. */
trek_status trek_run_measure_evaluation(trek_run *run, run_epoch *epoch, bool *again);
/* Until trek_run_end_within, checkpoints have what is known of the epoch that is under way, for the run that resumes in it.
 * Training can continue. begin is a collective. */
trek_status trek_run_begin_within(trek_run *run, const run_epoch *epoch);
void trek_run_end_within(trek_run *run);

/* steps.c: what is due by the number of steps. Returns whether a multiple of `every` steps has been made since
 * run->looked; whether metrics are due within the epoch, a checkpoint, or an evaluation, at its end, too; and whether the
 * run has made all of its steps. */
bool trek_run_is_due(const trek_run *run, int64_t every);
bool trek_run_is_due_report(const trek_run *run);
bool trek_run_is_due_checkpoint(const trek_run *run, const trek_epoch_metrics *metrics, bool last);
bool trek_run_is_due_evaluation(const trek_run *run, const trek_epoch_metrics *metrics, bool last);
bool trek_run_is_over(const trek_run *run);
/* Limits the next pass to the batches up to what is due next, if each batch is a step. */
void trek_run_limit_pass(const trek_run *run);

/* keep.c: checkpoints. begin makes the folder, before training. save saves the present state, if it is due or the
 * metrics are the best; it also reports what has failed since the last call, in this process only. end waits until all is
 * written; `status` is that of the run, whose callbacks are not called if it has failed. resume is called before the first epoch.
 */
trek_status trek_run_save_begin(trek_run *run);
trek_status trek_run_save(trek_run *run, const trek_epoch_metrics *metrics, bool due);
trek_status trek_run_save_end(trek_run *run, trek_status status);
trek_status trek_run_resume(trek_run *run);
/* Returns the last checkpoint of a folder before a step as a new string; NULL without an error if it has none. */
char *trek_run_checkpoint_before(const char *folder, int64_t step);

/* replay.c: turns the options into those of a replay of a step (TREK_REPLAY): one rank begins at the last checkpoint before it.
 */
trek_status trek_run_become_replay(trek_run_opts *opts, int64_t step);
/* Return the complete state of a run, on the CPU (NULL on failure), and take from a state that was read what the
 * graph does not take itself. */
trek_state *trek_run_state(const trek_run *run, const double *numbers);
trek_status trek_run_take_rest(trek_run *run, const trek_state *state);

/* elastic.c: goes on without a process that has died. begin is called before anything is built, so that it protects
 * everything that follows. It does nothing if this is not requested. */
trek_status trek_run_elastic_begin(trek_run *run);
/* Builds the graph and its ranks by `build`, and prepares what to go on from. It is also called if no process that is
 * left had begun. */
trek_status trek_run_elastic_start(trek_run *run, trek_status (*build)(trek_run *run));
/* complete: all processes have completed the run; one that has not heard of that yet learns it now. */
void trek_run_elastic_end(trek_run *run, bool complete);
/* Returns what the trainer of a run uses that outlives deaths within a step; NULL: the run has nothing for that. */
trek_regroup *trek_run_elastic_regroup(const trek_run *run);
/* Keeps the state: a step is complete, or an epoch has not begun (batch 0), or metrics have been published. The others
 * could go on from here. */
trek_status trek_run_elastic_keep(trek_run *run, int64_t epoch, int64_t batch);
/* Goes on after the run has failed with *status. If the reason is the death of a process and enough processes are
 * left, they return to the state after the last complete step, whose epoch is run->first_epoch. drop frees graph and
 * loaders; build makes them and sets them up. Otherwise returns false, and *status and the error say why. */
bool trek_run_elastic_go_on(trek_run *run, trek_status *status, void (*drop)(trek_run *run), trek_status (*build)(trek_run *run));
/* Called before an epoch. If restarted processes wait to join, they join, with the same state. May fail as any
 * meeting can. A run that outlives deaths within a step lets them in at the next step instead. */
trek_status trek_run_elastic_admit(trek_run *run, int64_t epoch, void (*drop)(trek_run *run),
                                   trek_status (*build)(trek_run *run));
/* Joins, in a process that comes to a job (TREK_JOIN), instead of build and begin. make makes a graph, which the others compare
 * with theirs. run->first_epoch becomes the epoch that the others begin, or in which they are. */
trek_status trek_run_elastic_join(trek_run *run, trek_status (*make)(trek_run *run), void (*drop)(trek_run *run),
                                  trek_status (*build)(trek_run *run));

#endif
