/* SPDX-License-Identifier: Apache-2.0 */
/* A run: what the program and the run's thread share, and what is the thread's alone. Internal. */
#ifndef TREK_DISTRIBUTED_RUN_RUN_INTERNAL_H
#define TREK_DISTRIBUTED_RUN_RUN_INTERNAL_H

#include <stdatomic.h>

#include "distributed/background/background.h"
#include "distributed/run.h"
#include "distributed/system/system.h"
#include "tensor/status_internal.h"

#define TREK_RUN_EVALUATION "evaluation."

/* An epoch's metrics and what they point to. */
typedef struct run_epoch {
    trek_epoch_metrics metrics;
    trek_rank_metrics *ranks;
    trek_epoch_scalar *scalars; /* names and values owned */
    bool evaluated;
} run_epoch;

/* Of an epoch, before training goes on in it. */
typedef struct run_before {
    int64_t steps, samples, ns, averages;
} run_before;

/* What a checkpoint of a run has besides. */
enum { TREK_RUN_BEST, TREK_RUN_SINCE_BEST, TREK_RUN_NUMBERS };

struct run_elastic;

struct trek_run {
    trek_run_opts opts;      /* strings and datasets are its own */
    trek_module *module;     /* what is trained where nothing is built; borrowed */
    trek_thread thread;

    /* under the lock */
    trek_lock lock;
    trek_condition changed;
    run_epoch **epochs;      /* that have ended, in order */
    int n_epochs, cap_epochs, next;
    bool ended;
    trek_run_progress progress;
    int64_t epoch_start_ns, epoch_samples;

    atomic_bool stop;

    /* the thread's until `ended` */
    trek_graph *graph;
    trek_loader *train, *evaluation;
    int64_t first_epoch;     /* after resuming */
    bool resumed;            /* in the middle of first_epoch */
    run_before before;       /* of that epoch, on more processes (elastic.c), or before it was stopped (keep.c) */
    bool within;             /* a checkpoint now is of an epoch that has begun: it has `before`, and what was recorded since */
    run_epoch *pending;      /* an epoch that is whole, but for the others' word that they have it, too; NULL: none */
    struct run_elastic *elastic; /* NULL: a process that dies ends the run */
    int64_t stopped_step;    /* of the checkpoint that it has resumed from within an epoch, in its own folder; 0: none */
    double best;             /* NaN: none yet */
    int64_t since_best;      /* epochs */
    int64_t best_epoch;      /* -1: before this process's first one */
    bool rated;              /* .best_metric has been there */
    trek_background_stats averages; /* as the last epoch's metrics found them */
    struct run_writer *writer; /* of checkpoints; NULL: another process writes them, or nobody */
    trek_status status;
    char message[TREK_ERROR_SIZE];
    trek_state *final;
};

/* options.c: ARGUMENT and which. copy: *to has its own strings, and holds the datasets; free gives them back. */
trek_status trek_run_check(const trek_run_opts *opts, const trek_module *module);
trek_status trek_run_opts_copy(trek_run_opts *to, const trek_run_opts *from);
void trek_run_opts_clear(trek_run_opts *opts);
/* What decides when processes meet, or what they decide, a line each. And a number for that, and for what else of a run is to be
 * alike as far as it is known without the others. */
trek_text trek_run_describe(const trek_run *run);
uint64_t trek_run_program(const trek_run *run);

/* train.c: all of it, on the run's thread. */
trek_status trek_run_train(trek_run *run);

/* metrics.c */
run_epoch *trek_run_epoch_new(int64_t epoch);
void trek_run_epoch_free(run_epoch *epoch);
/* The epoch has ended: whoever waits for it gets it. The run takes it over, also on failure. */
trek_status trek_run_publish(trek_run *run, run_epoch *epoch);
/* What was observed since the last time, of all ranks and processes: a collective. */
trek_status trek_run_measure_training(trek_run *run, run_epoch *epoch);
trek_status trek_run_measure_evaluation(trek_run *run, run_epoch *epoch);
/* The run stops within the epoch: the next checkpoint has what is known of it, for whoever resumes. A collective. */
trek_status trek_run_stop_within(trek_run *run, const run_epoch *epoch);

/* keep.c: checkpoints. begin: makes the folder, before training. save: of the epoch that has just ended, if it is one's turn;
 * also what has failed since the last call, in this process alone. end: when all is written; status: of the run, whose callbacks
 * are not called where it has failed. resume: before the first epoch. */
trek_status trek_run_save_begin(trek_run *run);
trek_status trek_run_save(trek_run *run, const trek_epoch_metrics *metrics, bool last);
trek_status trek_run_save_end(trek_run *run, trek_status status);
trek_status trek_run_resume(trek_run *run);
/* All that a run goes on from, on the CPU; NULL and an error. And what of it the graph does not take itself, from what
 * was read of it. */
trek_state *trek_run_state(const trek_run *run, const double *numbers);
trek_status trek_run_take_rest(trek_run *run, const trek_state *state);

/* elastic.c: going on without a process that has died. begin: before anything is built, so that nothing that follows is without
 * it; nothing, where it is not wanted. */
trek_status trek_run_elastic_begin(trek_run *run);
/* The graph and its ranks, from build, and what there is to go on from; also where no process that is left had got so far. */
trek_status trek_run_elastic_start(trek_run *run, trek_status (*build)(trek_run *run));
void trek_run_elastic_end(trek_run *run);
/* A step is complete, or an epoch has not begun (batch 0): from here the others could go on. */
trek_status trek_run_elastic_keep(trek_run *run, int64_t epoch, int64_t batch);
/* The run has failed with *status. If that is the death of a process, and enough are left: everything is as it was after
 * the last complete step, on those; run->first_epoch is its epoch. drop frees graph and loaders, build makes
 * them and sets them up. Else false, *status and the error say why not. */
bool trek_run_elastic_go_on(trek_run *run, trek_status *status, void (*drop)(trek_run *run), trek_status (*build)(trek_run *run));
/* An epoch is to begin. If processes that were started again wait to join, they do, and everything is as it was. May fail like
 * any meeting. */
trek_status trek_run_elastic_admit(trek_run *run, int64_t epoch, void (*drop)(trek_run *run),
                                   trek_status (*build)(trek_run *run));
/* This process was started again (TREK_JOIN): instead of build and begin. run->first_epoch is the one that the others begin. */
trek_status trek_run_elastic_join(trek_run *run, void (*drop)(trek_run *run), trek_status (*build)(trek_run *run));

#endif
