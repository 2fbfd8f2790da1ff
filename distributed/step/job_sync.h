/* SPDX-License-Identifier: Apache-2.0 */
/* What the processes of a job tell each other in each pass and step, so
 * that they may make different numbers of passes and still reduce the same
 * gradients. A round is one small gather. A process that comes to its step joins the
 * passes of the others with weight 0 until all have come; a process that fails says so,
 * and all fail. Internal. */
#ifndef TREK_DISTRIBUTED_STEP_JOB_SYNC_H
#define TREK_DISTRIBUTED_STEP_JOB_SYNC_H

#include "distributed/step/stepper_ranks.h"

/* Joins the job's processes: who has how many ranks, whether the graphs are the same, process 0's values. */
trek_status trek_job_sync_begin(ranks_stepper *s, trek_comm *comm);
void trek_job_sync_end(ranks_stepper *s);

/* What this process begins ("forward"; a literal), for the other processes' tables and deadlines. Training ends a phase
 * that the program has said; a forward does not: it may belong to it. */
void trek_job_sync_say(const ranks_stepper *s, const char *phase, bool training);
/* A pass of this process with the sum of its ranks' weights: *total is that of all processes. NaN: it is known
 * on the device alone, in a step that is recorded; then so is the total. *sends:
 * all processes make one, and its gradients are the step's (NULL: they are not sent). */
trek_status trek_job_sync_pass(ranks_stepper *s, double weight, double *total, bool *sends);
/* Before a pass whose weight is not known yet: whether all make one whose gradients may be sent under backward. */
trek_status trek_job_sync_begin_pass(ranks_stepper *s, bool *sends);
/* This process has failed before it came to a pass or step: the next round of the others learns it. */
void trek_job_sync_failed(ranks_stepper *s, trek_status status);
/* This process has come to its step (or reduce), well or not: returns when all have, with every rank's time and
 * units of work in s->ms and s->units, and a request to stop agreed on. *pending: some process has gradients that it has not
 * sent. */
trek_status trek_job_sync_step(ranks_stepper *s, trek_status own, bool update, bool *pending);
/* In a step of this process alone: a request to stop is agreed on. */
void trek_job_sync_stop(ranks_stepper *s);
/* Before a captured step: how all processes make it. Where they replay, this is its only round: a request to stop is agreed on,
 * settings and data are compared. */
trek_status trek_job_sync_vote(ranks_stepper *s, const trek_capture_vote *vote, trek_capture_verdict *verdict);
/* After all have recorded, this process well or not (own): own, or PEER where it went wrong in another. */
trek_status trek_job_sync_recorded(ranks_stepper *s, trek_status own);
/* Which segments have a gradient in any process (into s->any), and so are used; all processes have frozen the same. */
trek_status trek_job_sync_flags(ranks_stepper *s);
/* By rank 0, in the arena that holds this process's sum: the sum over all processes. */
trek_status trek_job_sync_reduce(ranks_stepper *s);
/* What the optimizer of process 0 knew becomes that of all; snapshot NULL: this process has none. ARGUMENT where they are not
 * alike. */
trek_status trek_job_sync_copy_optimizer(ranks_stepper *s, const trek_optimizer_snapshot *snapshot);

/* The present shares become how loaders divide batches among the processes. */
void trek_job_sync_publish(ranks_stepper *s);

#endif
