/* SPDX-License-Identifier: Apache-2.0 */
/* The workload of a job's ranks: which share of a batch, or how many batches of a
 * window, each gets; from measured times by balancer or El Che, or from a recorded
 * plan. Every process of the job has one and feeds it the same reports. Internal. */
#ifndef TREK_DISTRIBUTED_BALANCE_WORKLOAD_H
#define TREK_DISTRIBUTED_BALANCE_WORKLOAD_H

#include "distributed/balance/balancer.h"
#include "distributed/balance/elche.h"
#include "distributed/balance/plan.h"

typedef struct trek_workload trek_workload;

typedef struct trek_workload_opts {
    bool unequal;              /* devices differ, or a hint says so; before the processes of a job have met: a hint does */
    int balance;               /* 0: where unequal; 1: always; TREK_OFF: never */
    bool windows;              /* El Che where the loop allows it */
    bool windows_if_unequal;   /* the same where ranks turn out to be */
    trek_balancer_opts balancer;
    trek_elche_opts elche;
    const trek_plan *replay;   /* copied; NULL: none */
    const double *shares; /* fixed ones, of any sum, n_shares of them; NULL: none. Taken if there is one for each rank: whoever
                             knows only now how many ranks there are says what is wrong else */
    int n_shares;
} trek_workload_opts;

/* ARGUMENT: one is negative or not finite, none is above 0, or one is below a millionth of the largest; with `idle` it may be 0.
 */
trek_status trek_workload_check_shares(const double *shares, int n, bool idle);

trek_workload *trek_workload_new(int ranks, const trek_workload_opts *opts);
void trek_workload_free(trek_workload **workload);
/* Shares of all ranks of the job, sum 1. */
const double *trek_workload_shares(const trek_workload *workload);
/* Batches of the next window, 0: there are no windows. */
int64_t trek_workload_window(trek_workload *workload);
/* Each rank's batches of a window that has `batches` in all. */
trek_status trek_workload_counts(trek_workload *workload, int64_t batches, int64_t *counts);
/* After step number `step` (from 0): milliseconds of compute and units (samples, or batches of a window) of each rank.
 * *changed: shares or counts hold from the next step on that did not before. */
trek_status trek_workload_report(trek_workload *workload, int64_t step, bool window, const double *ms, const int64_t *units,
                                 double communication_ms,
                                 bool *changed);
/* Windows whose anchor becomes `factor` of it from the next step on; *shrunk: it did. Not where a plan is followed. */
trek_status trek_workload_shrink(trek_workload *workload, double factor, bool *shrunk);
/* What was decided so far, for checkpoints; borrowed. */
const trek_plan *trek_workload_plan(const trek_workload *workload);
/* Whether it follows a recorded plan instead of measuring. */
/* Before a pass over one batch: ARGUMENT where the plan that is followed holds counts of whole batches, which only windows obey.
 */
trek_status trek_workload_check_batch(trek_workload *workload);
bool trek_workload_replays(const trek_workload *workload);
/* Goes on with what an earlier run's plan ends with; replaying if replay. */
trek_status trek_workload_take_plan(trek_workload *workload, const trek_plan *plan, bool replay, int64_t step);
/* A number that is equal on all processes that decided alike. */
uint64_t trek_workload_digest(const trek_workload *workload);

typedef struct trek_workload_state {
    bool windows;
    int64_t anchor;
    double predicted, achieved; /* speed-up over the fastest rank alone; 0: not known yet */
    int costly;                 /* a rank that costs more than it brings, or -1 */
} trek_workload_state;
/* Whether ranks are measured. */
bool trek_workload_measures(const trek_workload *workload);
/* What a rank does in a millisecond, as it was measured: samples, or batches of windows; 0: not known yet. */
double trek_workload_throughput(const trek_workload *workload, int rank);
void trek_workload_describe(const trek_workload *workload, trek_workload_state *state);

#endif
