/* SPDX-License-Identifier: Apache-2.0 */
/* A job that goes on when some of its processes die, also in the middle of a step. Those that are left form a new group
 * (comm/regroup.h) and agree how far they have come. What is done with that is in pass/survivors.h.
 *
 * What the processes do together, such as a step, has two parts. The first changes nothing that it needs itself, so that it
 * can be made again; it ends when the process has everything for the second one (the whole gradient), which needs no other
 * process. In between all meet: the commit. So whoever is left after a death is in one of these places:
 *
 * - before commit k: it makes the first part again, from what each process that is left has computed.
 * - in commit k, while another process has left it: then all have come to it, so this one has everything, and goes on with the
 *   second part. If nobody has left it, but all that are left have come to it, they go on, too. Otherwise they make the
 *   first part again.
 * - before commit k + 1, because it has left commit k. It waits until the others have made the second part.
 *
 * Nobody can be further ahead, since commit k + 1 needs all. */
#ifndef TREK_DISTRIBUTED_JOB_SURVIVAL_H
#define TREK_DISTRIBUTED_JOB_SURVIVAL_H

#include "distributed/comm/regroup.h"
#include "distributed/job/job.h"

typedef struct trek_survival {
    trek_regroup *regroup;
    int least;               /* processes that must be left */
    trek_comm *next;         /* the group that has met and is not the job's yet; NULL: none */
    int64_t commits;         /* that this process has left with everything */
    bool over;               /* those that are left cannot go on */
    bool again;              /* in the last one it has found out that the first part is made again */
    int64_t held;            /* loaders divide batches as before the last death until so many steps are complete; 0: no more */
    int64_t held_next;       /* the same after the group `next` has become the job's */
} trek_survival;

/* What a process says of itself when those that are left meet. */
typedef struct trek_survivor {
    int64_t commits;
    int64_t steps;           /* complete ones */
    int64_t ready;           /* it is in a commit, with everything that it needs */
} trek_survivor;

/* What those that are left do next. */
typedef enum trek_survival_verdict {
    TREK_SURVIVAL_AGAIN,     /* they make the first part again */
    TREK_SURVIVAL_GO_ON      /* this one makes the second part */
} trek_survival_verdict;

/* Decides from what n processes have said; `own` is one of them. All decide alike. */
trek_survival_verdict trek_survival_decide(const trek_survivor *all, int n, const trek_survivor *own);

/* Makes a job of several processes able to go on, as a collective. `program` is the same in all of them. Fails with the
 * errors of trek_regroup_new, or with MEMORY. */
trek_status trek_survival_begin(trek_job *job, uint64_t program, int least);
void trek_survival_end(trek_job *job);
/* Returns whether a call has failed because processes of a job have died that the others can outlive. */
bool trek_survival_may(const trek_job *job, trek_status status);
/* Meets those that are left, however many die meanwhile. It sets job->survival->next. `steps` are the complete ones, `ready`:
 * this process is in a commit. The error of the call that has failed is the thread's; it is cleared, or becomes part of the
 * error if too few are left (PEER), or of other errors of trek_regroup_meet. */
trek_status trek_survival_meet(const trek_job *job, int64_t steps, bool ready, trek_survival_verdict *verdict);
/* The meeting between the two parts, in a job that outlives some of its processes; otherwise it does nothing. Fails with PEER if
 * the first part is made again, or if too few are left, and with errors of the engine. */
trek_status trek_survival_commit(const trek_job *job, int64_t steps);

#endif
