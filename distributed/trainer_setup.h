/* SPDX-License-Identifier: Apache-2.0 */
/* What a call of trek_trainer_setup has found and made so far, and the parts of it that have files of their own. */
#ifndef TREK_DISTRIBUTED_TRAINER_SETUP_H
#define TREK_DISTRIBUTED_TRAINER_SETUP_H

#include "distributed/comm/comm.h"
#include "distributed/ranks.h"
#include "distributed/system/system.h"
#include "distributed/trainer_internal.h"
#include "optim/optimizer_move.h"

typedef struct trainer_setup {
    trek_graph *graph;
    trek_trainer_opts opts;
    int local_ranks;
    trek_device devices[TREK_MAX_RANKS];
    trek_graph *graphs[TREK_MAX_RANKS];
    trek_comm *comm;         /* among processes; NULL: one process */
    trek_optimizer_snapshot *optimizer; /* state of the optimizer that the graph had; NULL: it had none, or kept its stepper */
    bool moved;              /* the graph has another stepper */
    const trek_trainer_run_opts *run; /* NULL: a loop of the program's own */
    bool chooses_grain;      /* the size of grains is measured at the end */
    bool joins;              /* this process joins a job that is at work, when everything has been set up */
    int processes;           /* with which the job began */
    trek_lock building;
} trainer_setup;

static inline trek_regroup *trek_trainer_regroup(const trainer_setup *s) { return s->run ? s->run->regroup : NULL; }

/* Returns whether passes are made again when processes die (pass/redo.h). In grains only what died is computed again. */
static inline bool trek_trainer_redoes(const trek_trainer_opts *o) { return o->min_processes > 0 && o->grain == 0; }

/* Finds the other processes of the job and the devices of this process's ranks. Checks that the graph is where it has to be. */
trek_status trek_trainer_find_ranks(trainer_setup *s);
/* Returns the device of the graph's parameters (or buffers), or `fallback` if it has none. */
trek_device trek_trainer_device_of(trek_graph *graph, trek_device fallback);
/* Returns how many of this process's ranks are on CPUs. */
int trek_trainer_count_cpus(const trainer_setup *s);
/* Says in the log what has been set up: on which ranks, and what is not exact on several. */
void trek_trainer_log_setup(const trainer_setup *s);

#endif
