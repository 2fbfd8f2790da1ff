/* SPDX-License-Identifier: Apache-2.0 */
/* The pace of a job's ranks: which share of a batch, or how many batches of a
 * window, each gets; from measured times by balancer or El Che, or from a recorded
 * plan. Every process of the job has one and feeds it the same reports. Internal. */
#ifndef TREK_DISTRIBUTED_BALANCE_WORKLOAD_H
#define TREK_DISTRIBUTED_BALANCE_WORKLOAD_H

#include "distributed/balance/balancer.h"
#include "distributed/balance/elche.h"
#include "distributed/balance/plan.h"

typedef struct trek_pace trek_pace;

typedef struct trek_pace_opts {
    bool unequal;              /* devices differ, or a hint says so */
    int balance;               /* 0: where unequal; 1: always; TREK_OFF: never */
    bool windows;              /* El Che where the loop allows it */
    trek_balancer_opts balancer;
    trek_elche_opts elche;
    const trek_plan *replay;   /* copied; NULL: none */
} trek_pace_opts;

trek_pace *trek_pace_new(int ranks, const trek_pace_opts *opts);
void trek_pace_free(trek_pace **pace);
/* Shares of all ranks of the job, sum 1. */
const double *trek_pace_shares(const trek_pace *pace);
/* Batches of the next window, 0: there are no windows. */
int64_t trek_pace_window(trek_pace *pace);
/* Each rank's batches of a window that has `batches` in all. */
trek_status trek_pace_counts(trek_pace *pace, int64_t batches, int64_t *counts);
/* After step number `step` (from 0): milliseconds of compute and units (samples, or batches of a window) of each rank.
 * *changed: shares or counts hold from the next step on that did not before. */
trek_status trek_pace_report(trek_pace *pace, int64_t step, bool window, const double *ms, const int64_t *units,
                             double communication_ms,
                             bool *changed);
/* What was decided so far, for checkpoints; borrowed. */
const trek_plan *trek_pace_plan(const trek_pace *pace);
/* Whether it follows a recorded plan instead of measuring. */
/* Before a pass over one batch: ARGUMENT where the plan that is followed holds counts of whole batches, which only windows obey.
 */
trek_status trek_pace_check_batch(trek_pace *pace);
bool trek_pace_replays(const trek_pace *pace);
/* Goes on with what an earlier run's plan ends with; replaying if replay. */
trek_status trek_pace_take_plan(trek_pace *pace, const trek_plan *plan, bool replay, int64_t step);
/* A number that is equal on all processes that decided alike. */
uint64_t trek_pace_digest(const trek_pace *pace);

typedef struct trek_pace_state {
    bool windows;
    int64_t anchor;
    double predicted, achieved; /* speed-up over the fastest rank alone; 0: not known yet */
    int costly;                 /* a rank that costs more than it brings, or -1 */
} trek_pace_state;
void trek_pace_describe(const trek_pace *pace, trek_pace_state *state);

#endif
