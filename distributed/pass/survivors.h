/* SPDX-License-Identifier: Apache-2.0 */
/* How a step goes on when processes of its job have died (job/survival.h): the group of the survivors becomes the job's group,
 * with its own memory for messages, measured times and shares. */
#ifndef TREK_DISTRIBUTED_PASS_SURVIVORS_H
#define TREK_DISTRIBUTED_PASS_SURVIVORS_H

#include "distributed/balance/workload.h"
#include "distributed/job/survival.h"
#include "distributed/team/team.h"

typedef struct trek_step trek_step;

typedef struct trek_survivors_opts {
    const trek_workload_opts *workload; /* must not depend on the number of ranks */
    int least;               /* how many processes must survive */
    uint64_t program;        /* what processes that join must run */
    trek_regroup *lent;      /* of a run; NULL: none */
    const trek_survival_state *state; /* for processes that join; NULL: none can */
    double deadline_s;       /* of calls, in a process that joins */
    trek_status (*renew_plan)(trek_step *s); /* trek_memory_renew: all call it after the parts were divided anew */
} trek_survivors_opts;

/* Makes the job of a step able to continue, as a collective of a job of several processes. Fails as
 * trek_survival_begin does. */
trek_status trek_survivors_begin(trek_step *s, const trek_survivors_opts *opts);
/* Lets this process, whose step has been made in a job of its own, join a job that is at work (trek_survival_join), and makes the
 * group of all its job. It has no state of that job yet. */
trek_status trek_survivors_join(trek_step *s, const trek_survivors_opts *opts);
/* Makes a group that has met outside the operations of the job the job's, as a collective of its processes. Others may form the
 * next one meanwhile. Fails with PEER, also if a survivor is away (job/survival.h), or with MEMORY. */
trek_status trek_survivors_follow(trek_step *s, trek_comm *group);
/* Called when what follows a commit (trek_survival_commit) has been done: a group that has met in the commit becomes the job's.
 * Fails with PEER if a survivor is away (job/survival.h). */
trek_status trek_survivors_after_commit(trek_step *s);
/* The same at the end of a step, the first of which after a death makes loaders divide batches among the survivors. */
trek_status trek_survivors_after_step(trek_step *s);
/* Gives all processes the parameters of an update that each has made for the parts which it keeps, in a job that keeps each part
 * of the optimizer's state twice (reduce/twice.h). Processes may die meanwhile. Called after the step's commit. Fails with PEER
 * if a part of the state is lost. */
trek_status trek_survivors_gather(trek_step *s);
/* Gives processes that have come since the last division their part of such a state. Called after the commit in which they have
 * got everything else. Does nothing in a job that does not divide the state. */
trek_status trek_survivors_settle(trek_step *s);
/* Called between steps, in all processes at the same place: from here on loaders divide batches among the survivors. */
void trek_survivors_divide(trek_step *s);

#endif
