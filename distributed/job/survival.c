/* SPDX-License-Identifier: Apache-2.0 */
/* Meeting those that are left, and what they agree on. */
#include "distributed/job/survival.h"

#include <stdio.h>
#include <string.h>

#include "distributed/control/control.h"
#include "tensor/memory_internal.h"
#include "tensor/trace.h"

#define ANY (-1) /* all members; of a process that cannot say which ones it has */

void trek_survival_leave(const trek_job *job, const char *why)
{
    trek_survival *survival = job->survival;
    char message[TREK_ERROR_SIZE];
    survival->over = true;
    if (!survival->lent)
        trek_regroup_free(&survival->regroup); /* nobody waits for it any more */
    snprintf(message, sizeof message, "process %d has left: %.400s", job->process, why);
    if (job->comm && job->comm->control)
        trek_control_end(job->comm->control, TREK_ERR_PEER, message);
}

bool trek_survival_may(const trek_job *job, trek_status status)
{
    bool died = status == TREK_ERR_PEER || status == TREK_ERR_TIMEOUT;
    return died && job->survival && !job->survival->over && trek_regroup_may(job->survival->group);
}

trek_survival_verdict trek_survival_decide(const trek_survivor *all, int n, const trek_survivor *own)
{
    bool ready = true;
    for (int p = 0; p < n; p++) {
        if (all[p].commits > own->commits || all[p].left > own->commits) /* the commit was left, so this one has come to it */
            return TREK_SURVIVAL_GO_ON;
        ready = ready && all[p].commits == own->commits && all[p].ready;
    }
    return ready ? TREK_SURVIVAL_GO_ON : TREK_SURVIVAL_AGAIN;
}

/* Returns how many commits one that has left in order had completed. A run says that itself. */
static int64_t left(const trek_survival *survival) { return survival->lent ? 0 : trek_regroup_left(survival->regroup); }

/* Names processes by their numbers in the job, because each group numbers its processes from 0. */
static void say_who(const trek_survival *survival)
{
    const char *lost = trek_regroup_lost(survival->regroup);
    bool many = strchr(lost, ',') != NULL;
    int world = trek_comm_world_size(survival->group);
    const char *how = left(survival) > survival->commits ? "lost, or have ended" : "lost",
        *come = trek_regroup_come(survival->regroup);
    if (come[0] && !survival->joins)
        trek_log_message(TREK_LOG_LEVEL_INFO, "job: process%s %s of the job %s come; it continues with %d",
                         strchr(come, ',') ? "es" : "", come, strchr(come, ',') ? "have" : "has", world);
    if (lost[0])
        trek_log_message(TREK_LOG_LEVEL_WARNING, "job: process%s %s of the job %s %s; %d continue%s", many ? "es" : "", lost,
                         many ? "are" : "is", how, world, world == 1 ? "s" : "");
}

static trek_status fail_to_go_on(const char *reason)
{
    char why[TREK_ERROR_SIZE];
    trek_status status;
    trek_error_take(&status, why);
    trek_error_clear();
    return trek_fail(status, "%s; and the job cannot continue: %.400s", reason, why);
}

/* Returns the next group. Too few processes may complete a commit which others have completed, and then left. */
static trek_comm *meet(trek_survival *survival)
{
    trek_comm *next = trek_regroup_meet(survival->regroup, survival->group, survival->least);
    if (next || trek_error_status() != TREK_ERR_PEER || left(survival) <= survival->commits)
        return next;
    trek_error_clear();
    next = trek_regroup_meet(survival->regroup, survival->group, 1);
    survival->few = next && trek_comm_world_size(next) < survival->least;
    return next;
}

/* Forms the next group. */
static trek_status regroup(trek_survival *survival, const char *reason)
{
    int64_t start = trek_trace_enter("regroup");
    trek_error_clear();
    trek_comm *next = meet(survival);
    trek_trace_end("regroup", start, next ? trek_comm_world_size(next) : 0);
    survival->over = !next;
    if (!next)
        return fail_to_go_on(reason);
    trek_survival_give_group(survival, next);
    survival->groups++;
    say_who(survival);
    return TREK_OK;
}

/* One that joins takes part in the operation in which it finds the others first. */
static void count_newcomers(trek_survival *survival, const trek_survivor *all, int n, trek_survivor *own)
{
    int64_t commits = -1;
    survival->newcomers = 0;
    for (int p = 0; p < n; p++) {
        survival->newcomers += all[p].joins != 0;
        commits = !all[p].joins && all[p].commits > commits ? all[p].commits : commits;
    }
    if (survival->joins && survival->commits < 0)
        own->commits = survival->commits = commits;
}

static trek_status agree(trek_survival *survival, trek_survivor *own, trek_survival_verdict *verdict)
{
    int n = trek_comm_world_size(survival->group);
    trek_survivor *all = trek_calloc((size_t)n, sizeof *all);
    if (!all) {
        trek_comm_abort(survival->group, "a process has no memory to continue without others");
        return TREK_ERR_MEMORY;
    }
    own->members = survival->joins ? ANY : trek_survival_own_members(survival);
    own->left = left(survival);
    trek_status status = trek_comm_gather_bytes(survival->group, own, sizeof *own, all);
    if (status == TREK_OK) {
        count_newcomers(survival, all, n, own);
        *verdict = trek_survival_decide(all, n, own);
        survival->together = ANY;
        survival->away = false;
        for (int p = 0; p < n; p++) {
            survival->together &= all[p].members;
            survival->away |= all[p].away != 0;
            survival->ahead |= !all[p].joins && !all[p].away && all[p].commits < own->commits;
        }
    }
    if (status == TREK_OK && survival->newcomers == n)
        status = trek_fail(TREK_ERR_STATE, "job: none of the processes that are left has the state of the job");
    trek_free(all);
    return status;
}

static trek_status meet_others(const trek_job *job, bool ready, trek_survival_verdict *verdict)
{
    trek_survivor own = { .commits = job->survival->commits, .ready = ready, .joins = job->survival->joins };
    trek_status status;
    do {
        char reason[TREK_ERROR_SIZE];
        trek_status why;
        trek_error_take(&why, reason);
        status = regroup(job->survival, why != TREK_OK ? reason : "a process of the job has died");
        if (status == TREK_OK)
            status = agree(job->survival, &own, verdict);
        else
            return status;
    } while (trek_survival_may(job, status));
    return status;
}

trek_status trek_survival_fail_away(void)
{
    return trek_fail(TREK_ERR_PEER, "job: a process has died while the others were in different parts of the run; it continues "
                                    "from the last complete step");
}

/* Another group may have met in a commit within. */
static trek_status take_over(trek_survival *survival)
{
    trek_status status = trek_survival_take_over(survival);
    return status == TREK_OK && survival->away ? trek_survival_fail_away() : status;
}

trek_status trek_survival_again(const trek_job *job)
{
    trek_survival *survival = job->survival;
    trek_survival_verdict verdict = TREK_SURVIVAL_AGAIN;
    trek_status status;
    do {
        if (survival->again)
            trek_error_clear();
        status = survival->again ? TREK_OK : meet_others(job, false, &verdict);
        survival->again = false;
        if (status == TREK_OK && verdict == TREK_SURVIVAL_GO_ON) /* nobody can have left a commit that this one has not come to */
            status = trek_fail(TREK_ERR_STATE, "job: another process has gone on without this one");
        if (status == TREK_OK)
            status = survival->away ? trek_survival_fail_away() : take_over(survival);
    } while (!survival->away && (survival->again || trek_survival_may(job, status)));
    return status;
}

bool trek_survival_repeats(const trek_job *job, trek_status status)
{
    const trek_survival *survival = job->survival;
    return survival && !survival->away && (survival->again || trek_survival_may(job, status));
}

bool trek_survival_go_on(const trek_job *job, trek_status *status)
{
    if (!trek_survival_repeats(job, *status))
        return false;
    *status = trek_survival_again(job);
    return *status == TREK_OK;
}

trek_status trek_survival_take_next(const trek_job *job)
{
    trek_status status = job->survival->next ? take_over(job->survival) : TREK_OK;
    if (status != TREK_OK)
        trek_survival_go_on(job, &status);
    return status;
}

trek_status trek_survival_join(trek_job *job, const trek_survival_opts *opts, int ranks, double deadline_s)
{
    trek_survival_verdict verdict;
    trek_status status = trek_survival_begin_joining(job, opts, ranks);
    if (status != TREK_OK)
        return status;
    trek_survivor own = { .commits = -1, .joins = 1 };
    trek_comm_set_deadline(job->survival->group, deadline_s);
    status = agree(job->survival, &own, &verdict);
    if (trek_survival_may(job, status))
        status = meet_others(job, false, &verdict);
    return status == TREK_OK ? trek_survival_take_next(job) : status;
}

trek_status trek_survival_tell_away(trek_comm *next, const trek_survival *survival)
{
    trek_survivor own = { .commits = survival ? survival->commits : -1, .away = 1, .members = ANY };
    trek_survivor *all = trek_calloc((size_t)trek_comm_world_size(next), sizeof *all);
    if (!all)
        trek_comm_abort(next, "a process has no memory to continue without others");
    trek_status status = all ? trek_comm_gather_bytes(next, &own, sizeof own, all) : TREK_ERR_MEMORY;
    trek_free(all);
    return status;
}

trek_status trek_survival_commit(const trek_job *job)
{
    trek_survival *survival = job->survival;
    trek_survival_verdict verdict = TREK_SURVIVAL_GO_ON;
    char here = 1, all[TREK_MAX_RANKS];
    if (!survival)
        return TREK_OK;
    if (survival->few)
        return trek_fail(TREK_ERR_PEER, "job: %d of its processes are left; .min_processes is %d", job->processes,
                         survival->least);
    trek_status status = trek_comm_settle(job->comm);
    if (status != TREK_OK) /* it has not come to the commit: what it needs is not complete */
        return status;
    status = trek_comm_gather_bytes(job->comm, &here, sizeof here, all);
    if (trek_survival_may(job, status))
        status = meet_others(job, true, &verdict);
    survival->again = status == TREK_OK && verdict == TREK_SURVIVAL_AGAIN;
    if (survival->again)
        status = trek_fail(TREK_ERR_PEER, "job: a process has died before all were ready; the others begin again");
    survival->commits += status == TREK_OK;
    return status;
}

trek_status trek_survival_entered(const trek_job *job)
{
    trek_status status = job->survival->n_members > 1 ? trek_survival_commit(job) : TREK_OK;
    return status == TREK_OK ? trek_survival_take_next(job) : status;
}
