/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a trainer's options for code that starts it later. */
#ifndef TREK_DISTRIBUTED_TRAINER_INTERNAL_H
#define TREK_DISTRIBUTED_TRAINER_INTERNAL_H

#include "distributed/job/survival.h"
#include "distributed/trainer.h"

/* Fails with ARGUMENT, which names the option, if an option is wrong for any ranks. */
trek_status trek_trainer_check(const trek_trainer_opts *opts);
/* What the trainer of a run needs of it. */
typedef struct trek_trainer_run_opts {
    bool sites;              /* if parameters are averaged between processes, the ranks of each process make their steps together
                              * (rounds/site.c) */
    trek_regroup *regroup;   /* what the run has for going on without processes that die, which its trainer uses too, with
                              * .min_processes; NULL: it has none, or is about to join others */
    uint64_t program;        /* stands for what processes that join must have in common with the run */
    const trek_survival_state *state; /* for them */
} trek_trainer_run_opts;

/* Sets up as trek_trainer_setup does. run NULL: a loop of the program's own. */
trek_status trek_trainer_setup_run(trek_graph *graph, const trek_trainer_opts *opts, const trek_trainer_run_opts *run);

#endif
