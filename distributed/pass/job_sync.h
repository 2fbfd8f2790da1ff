/* SPDX-License-Identifier: Apache-2.0 */
/* What the processes of a job tell each other in each pass and step, so that they may make different numbers of
 * passes and still reduce the same gradients. A round is one small gather. A process that comes to its step joins the
 * passes of the others with weight 0 until all have come. A process that fails says so, and all fail. */
#ifndef TREK_DISTRIBUTED_PASS_JOB_SYNC_H
#define TREK_DISTRIBUTED_PASS_JOB_SYNC_H

#include "distributed/job/job.h"
#include "distributed/team/team.h"

typedef struct trek_step trek_step;

/* Joins the job's processes: checks that the graphs are the same, meets the others, and makes room for messages. */
trek_status trek_job_sync_begin(trek_step *s);
void trek_job_sync_end(trek_step *s);

/* Announces a pass of this process with the sum of its ranks' weights; *total is the sum over all processes. NaN: in
 * a step that is recorded only the device knows the weight, and then also the total. *sends: all processes make the
 * pass, and its gradients are those of the step (NULL: they are not sent). */
trek_status trek_job_sync_pass(trek_step *s, double weight, double *total, bool *sends);
/* Called before a pass whose weight is not known yet: before one whose gradients may be sent during backward, and before the
 * first of a step in grains that adds to the sums of other processes. *sends: all processes make a pass whose gradients may be
 * sent during backward. */
trek_status trek_job_sync_begin_pass(trek_step *s, bool *sends);
/* Notes that this process has failed before it came to a pass or step. The others learn it in their next round. */
void trek_job_sync_failed(trek_step *s, trek_status status);
/* Announces that this process has come to its step (or reduce), with its status. Returns when all have come, with
 * every rank's time and units of work in s->pace.ms and s->pace.units; all have agreed on a request to stop. *pending: this
 * process has gradients that it has not sent; then, whether some process of several has. */
trek_status trek_job_sync_step(trek_step *s, trek_status own, bool update, bool *pending);
/* Takes note of a request to stop in a step of this process alone. */
void trek_job_sync_stop(trek_step *s);
/* Called before a captured step: decides how all processes make it. If they replay, this is its only round, in which
 * they agree on a request to stop and compare settings and data. */
trek_status trek_job_sync_vote(trek_step *s, const trek_capture_vote *vote, trek_capture_verdict *verdict);
/* Called after all have recorded; own is the status of this process. Returns own, or PEER if recording failed in
 * another process. */
trek_status trek_job_sync_recorded(trek_step *s, trek_status own);
/* Finds which segments have a gradient in any process (in s->team->any) and so are used. All processes have frozen the same
 * parameters. */
trek_status trek_job_sync_flags(trek_step *s);
/* Copies the state of process 0's optimizer to all. snapshot NULL: this process has none. Fails with ARGUMENT if the
 * optimizers differ. */
trek_status trek_job_sync_copy_optimizer(trek_step *s, const trek_optimizer_snapshot *snapshot);

/* Returns what this process says of itself when all meet. */
trek_job_member trek_job_sync_member(const trek_step *s);
/* Makes room for the messages of the job's processes. */
trek_status trek_job_sync_make_rooms(trek_step *s);
/* Returns whether all processes made the last pass that was announced. */
bool trek_job_sync_all_made(const trek_step *s);

#endif
