/* SPDX-License-Identifier: Apache-2.0 */
/* What the processes of a job tell each other in each pass and step, so that they may make different numbers of
 * passes and still reduce the same gradients. A round is one small gather. A process that comes to its step joins the
 * passes of the others with weight 0 until all have come. A process that fails says so, and all fail. */
#ifndef TREK_DISTRIBUTED_STEP_JOB_SYNC_H
#define TREK_DISTRIBUTED_STEP_JOB_SYNC_H

#include "distributed/step/stepper_ranks.h"

/* Joins the job's processes: exchanges the numbers of ranks, checks that the graphs are the same, and takes process
 * 0's values. */
trek_status trek_job_sync_begin(ranks_stepper *s, trek_comm *comm);
void trek_job_sync_end(ranks_stepper *s);

/* Sets what this process begins ("forward"; a literal), for the other processes' tables and deadlines. Training ends
 * a phase that the program has set; a forward does not, because it may belong to that phase. */
void trek_job_sync_say(const ranks_stepper *s, const char *phase, bool training);
/* Announces a pass of this process with the sum of its ranks' weights; *total is the sum over all processes. NaN: in
 * a step that is recorded only the device knows the weight, and then also the total. *sends: all processes make the
 * pass, and its gradients are those of the step (NULL: they are not sent). */
trek_status trek_job_sync_pass(ranks_stepper *s, double weight, double *total, bool *sends);
/* Called before a pass whose weight is not known yet. *sends: all processes make a pass whose gradients may be sent
 * during backward. */
trek_status trek_job_sync_begin_pass(ranks_stepper *s, bool *sends);
/* Notes that this process has failed before it came to a pass or step. The others learn it in their next round. */
void trek_job_sync_failed(ranks_stepper *s, trek_status status);
/* Announces that this process has come to its step (or reduce), with its status. Returns when all have come, with
 * every rank's time and units of work in s->ms and s->units; all have agreed on a request to stop. *pending: some
 * process has gradients that it has not sent. */
trek_status trek_job_sync_step(ranks_stepper *s, trek_status own, bool update, bool *pending);
/* Takes note of a request to stop in a step of this process alone. */
void trek_job_sync_stop(ranks_stepper *s);
/* Called before a captured step: decides how all processes make it. If they replay, this is its only round, in which
 * they agree on a request to stop and compare settings and data. */
trek_status trek_job_sync_vote(ranks_stepper *s, const trek_capture_vote *vote, trek_capture_verdict *verdict);
/* Called after all have recorded; own is the status of this process. Returns own, or PEER if recording failed in
 * another process. */
trek_status trek_job_sync_recorded(ranks_stepper *s, trek_status own);
/* Finds which segments have a gradient in any process (in s->any) and so are used. All processes have frozen the same
 * parameters. */
trek_status trek_job_sync_flags(ranks_stepper *s);
/* Sums over all processes. Rank 0 calls it, for the arena that holds this process's sum. */
trek_status trek_job_sync_reduce(ranks_stepper *s);
/* Copies the state of process 0's optimizer to all. snapshot NULL: this process has none. Fails with ARGUMENT if the
 * optimizers differ. */
trek_status trek_job_sync_copy_optimizer(ranks_stepper *s, const trek_optimizer_snapshot *snapshot);

/* Makes the current shares those by which loaders divide batches among the processes. */
void trek_job_sync_publish(ranks_stepper *s);

#endif
