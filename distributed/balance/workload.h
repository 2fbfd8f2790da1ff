/* SPDX-License-Identifier: Apache-2.0 */
/* The workload of a job's ranks: which share of a batch, or how many batches of a window, each rank gets. It comes
 * from measured times by the balancer or El Che, or from a recorded plan. Every process of the job has a workload and
 * feeds it the same reports. */
#ifndef TREK_DISTRIBUTED_BALANCE_WORKLOAD_H
#define TREK_DISTRIBUTED_BALANCE_WORKLOAD_H

#include "distributed/balance/balancer.h"
#include "distributed/balance/elche.h"
#include "distributed/balance/plan.h"

typedef struct trek_workload trek_workload;

typedef struct trek_workload_opts {
    bool unequal;              /* devices differ, or a hint says so; before the processes of a job have met, only a hint can */
    int balance;               /* 0: balance if unequal; 1: always; TREK_OFF: never */
    bool windows;              /* El Che, if the loop allows it */
    bool windows_if_unequal;   /* the same, if the ranks turn out to be unequal */
    trek_balancer_opts balancer;
    trek_elche_opts elche;
    const trek_plan *replay;   /* copied; NULL: no plan */
    const double *shares; /* n_shares fixed shares of any sum; NULL: not fixed. They are used if there is one for each rank;
                           * otherwise the caller that knows the number of ranks reports the error */
    int n_shares;
} trek_workload_opts;

/* Checks n shares. Fails with ARGUMENT if a share is negative or not finite, if no share is above 0, or if a share is
 * below a millionth of the largest; with `idle` a share may be 0. */
trek_status trek_workload_check_shares(const double *shares, int n, bool idle);

trek_workload *trek_workload_new(int ranks, const trek_workload_opts *opts);
void trek_workload_free(trek_workload **workload);
/* Returns the shares of all ranks of the job, which sum to 1. */
const double *trek_workload_shares(const trek_workload *workload);
/* Returns the number of batches of the next window, or 0 if there are no windows. */
int64_t trek_workload_window(trek_workload *workload);
/* Gets each rank's batches of a window that has `batches` in total. */
trek_status trek_workload_counts(trek_workload *workload, int64_t batches, int64_t *counts);
/* Reports step number `step` (from 0): milliseconds of compute, and units (samples, or batches of a window) of each
 * rank. *changed: from the next step on shares or counts are different. */
trek_status trek_workload_report(trek_workload *workload, int64_t step, bool window, const double *ms, const int64_t *units,
                                 double communication_ms,
                                 bool *changed);
/* Multiplies the anchor of windows by `factor` from the next step on. *shrunk: it became smaller. Does nothing if a
 * plan is followed. */
trek_status trek_workload_shrink(trek_workload *workload, double factor, bool *shrunk);
/* Returns the decisions so far, for checkpoints. The plan is borrowed. */
const trek_plan *trek_workload_plan(const trek_workload *workload);
/* Returns whether it follows a recorded plan instead of measuring. */
/* Called before a pass over one batch. Fails with ARGUMENT if the plan that is followed has counts of whole batches,
 * which only windows can follow. */
trek_status trek_workload_check_batch(trek_workload *workload);
bool trek_workload_replays(const trek_workload *workload);
/* Goes on with the last decisions of an earlier run's plan, or replays that plan if `replay` is true. */
trek_status trek_workload_take_plan(trek_workload *workload, const trek_plan *plan, bool replay, int64_t step);
/* Returns a number that is equal on all processes that have decided alike. */
uint64_t trek_workload_digest(const trek_workload *workload);

typedef struct trek_workload_state {
    bool windows;
    int64_t anchor;
    double predicted, achieved; /* speed-up over the fastest rank alone; 0: not known yet */
    int costly;                 /* a rank that costs more than it brings, or -1 */
} trek_workload_state;
/* Returns whether ranks are measured. */
bool trek_workload_measures(const trek_workload *workload);
/* Returns what a rank does in a millisecond, as measured: samples, or batches of windows. 0: not known yet. */
double trek_workload_throughput(const trek_workload *workload, int rank);
void trek_workload_describe(const trek_workload *workload, trek_workload_state *state);

#endif
