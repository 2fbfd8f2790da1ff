/* SPDX-License-Identifier: Apache-2.0 */
/* What the files elastic*.c share. */
#ifndef TREK_DISTRIBUTED_RUN_ELASTIC_INTERNAL_H
#define TREK_DISTRIBUTED_RUN_ELASTIC_INTERNAL_H

#include "autograd/var_internal.h"
#include "distributed/comm/regroup.h"
#include "distributed/job/survival.h"
#include "distributed/run/run_internal.h"
#include "distributed/stepper.h"
#include "graph/metric_internal.h"

/* What one of this process's ranks has recorded in the epoch so far. */
typedef struct run_kept_scalar {
    char *name;
    bool seen, recorded, total;
    double sum, weight;
    trek_tensor *on_device;  /* NULL: none of it is on a device */
    trek_metric_mark metric; /* of trek_record_metric */
} run_kept_scalar;

typedef struct run_kept_rank {
    run_kept_scalar *scalars;
    int n, capacity;
    int64_t rows;
    double ms;
} run_kept_rank;

/* The complete step whose result a state is, or an epoch that does not exist. */
typedef struct run_place {
    int64_t epoch, batch, steps;
    int64_t parts, looked;   /* of the run */
} run_place;

enum { RUN_NOTHING_YET = -1, RUN_OTHERS_STATE = -2 }; /* RUN_OTHERS_STATE: it has joined others and has no state of them yet */

typedef struct run_elastic {
    trek_regroup *regroup;
    trek_comm *comm;         /* the current group */
    int64_t followed;        /* how many groups of the job have become it since the graph was built */
    trek_status status;      /* OK, or why the state could not be kept */
    run_place at;
    int64_t admitted;        /* the last epoch in which joiners were admitted, from 1 on */
    uint64_t rng_step, rng_draw;
    double numbers[TREK_RUN_NUMBERS];
    int64_t epoch_steps, epoch_ns; /* since the epoch began */
    int n_buffers, n_ranks;
    trek_tensor **buffers;   /* of rank 0 */
    run_kept_rank *ranks;        /* of this process */
    int file;                /* holds the whole state; -1: the graph has it */
} run_elastic;

static inline const trek_step *stepper_of(const trek_run *run) { return trek_graph_ranks(run->graph); }
static inline trek_survival *survival_of(const trek_run *run) { return trek_graph_job(run->graph)->survival; }

/* elastic_kept.c: what the ranks have observed in the epoch is kept, forgotten, or given to the graph that has been rebuilt.
 * drop frees it with the buffers, which belong to a graph. */
trek_status trek_run_elastic_keep_observed(run_elastic *e, const trek_step *s);
void trek_run_elastic_forget_observed(run_elastic *e);
trek_status trek_run_elastic_give_observed(run_elastic *e, trek_run *run);
void trek_run_elastic_drop(run_elastic *e);
/* Sets the graph's state to that of the last complete step, except what no step changes, and writes it to the file. */
trek_status trek_run_elastic_write_state(trek_run *run);
/* Nothing is under way: keeps the whole state in the file, as a checkpoint does. */
trek_status trek_run_elastic_keep_whole(trek_run *run, int64_t epoch);
void trek_run_elastic_close_file(run_elastic *e);

/* elastic_newest.c: a group of the job, or the last one that it has formed in a step, becomes the run's. */
void trek_run_elastic_take_group(trek_run *run, trek_comm *group);
void trek_run_elastic_follow(trek_run *run);
/* All processes of the group get the newest state that one of them has. *from_start: none has one yet. */
trek_status trek_run_elastic_agree(trek_run *run, bool *from_start);

#endif
