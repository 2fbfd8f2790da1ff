/* SPDX-License-Identifier: Apache-2.0 */
/* Who has a survival together: all that train in this process over the processes of the job. */
#include "distributed/job/survival.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"

typedef struct shared_survival {
    trek_lock lock;
    trek_survival *survival; /* NULL: nobody needs one */
} shared_survival;

TREK_PER_PROCESS(shared_survival, shared, { .lock = TREK_LOCK_INIT });

trek_survival *trek_survival_of(const trek_comm *comm)
{
    trek_lock_acquire(&shared()->lock);
    trek_survival *survival = shared()->survival;
    if (!comm || !survival || (survival->first != comm && survival->group != comm))
        survival = NULL;
    trek_lock_release(&shared()->lock);
    return survival;
}

static void share(trek_survival *survival)
{
    trek_lock_acquire(&shared()->lock);
    shared()->survival = survival;
    trek_lock_release(&shared()->lock);
}

static void forget(const trek_survival *survival)
{
    trek_lock_acquire(&shared()->lock);
    if (shared()->survival == survival)
        shared()->survival = NULL;
    trek_lock_release(&shared()->lock);
}

/* Members begin and end in the same order in all processes, so that each has the same place in all of them. */
static trek_status enter(trek_survival *survival, trek_job *job, const trek_survival_opts *opts)
{
    int k = 0;
    while (k < TREK_SURVIVAL_MEMBERS && survival->members[k].job)
        k++;
    if (k == TREK_SURVIVAL_MEMBERS)
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "trainer_setup: .min_processes: set for one more graph of a process that has %d such graphs; at most %d "
                         "are possible",
                         TREK_SURVIVAL_MEMBERS, TREK_SURVIVAL_MEMBERS);
    survival->members[k] = (trek_survival_member){ .job = job, .take_over = opts->take_over, .arg = opts->arg };
    survival->n_members++;
    survival->state = survival->entered++ == 0 ? opts->state : NULL; /* nobody could say to which of several a process comes */
    survival->least = opts->least > survival->least ? opts->least : survival->least;
    job->survival = survival;
    return TREK_OK;
}

static trek_survival *new_survival(trek_job *job, const trek_survival_opts *opts)
{
    trek_survival *survival = trek_calloc(1, sizeof *survival);
    if (!survival) {
        trek_comm_abort(job->comm, "a process has no memory to continue without others"); /* they wait for its rendezvous */
        return NULL;
    }
    survival->together = -1;
    survival->lent = opts->lent != NULL;
    survival->regroup = opts->lent ? opts->lent : trek_regroup_new(job->comm, opts->program);
    if (!survival->regroup) {
        trek_free(survival);
        return NULL;
    }
    survival->first = trek_comm_retain(job->comm) ? job->comm : NULL;
    survival->group = trek_comm_retain(job->comm) ? job->comm : NULL;
    if (opts->lent)
        trek_regroup_set_program(opts->lent, opts->program);
    else
        share(survival);
    return survival;
}

trek_status trek_survival_begin(trek_job *job, const trek_survival_opts *opts)
{
    trek_survival *survival = opts->lent ? NULL : trek_survival_of(job->comm);
    if (!survival)
        survival = new_survival(job, opts);
    return survival ? enter(survival, job, opts) : trek_error_status();
}

trek_status trek_survival_begin_joining(trek_job *job, const trek_survival_opts *opts, int ranks)
{
    trek_survival *survival = trek_calloc(1, sizeof *survival);
    if (!survival)
        return TREK_ERR_MEMORY;
    survival->joins = true;
    survival->commits = -1;
    enter(survival, job, opts);
    survival->regroup = trek_regroup_join(opts->program, ranks, &survival->group);
    if (!survival->regroup)
        return trek_error_status();
    survival->next = true;
    share(survival);
    return TREK_OK;
}

trek_regroup *trek_survival_give_regroup(const trek_job *job)
{
    forget(job->survival);
    job->survival->lent = true;
    return job->survival->regroup;
}

/* Returns whether others have it still. */
static bool leave(trek_survival *survival, const trek_job *job)
{
    for (int k = 0; k < TREK_SURVIVAL_MEMBERS; k++)
        if (survival->members[k].job == job) {
            survival->members[k] = (trek_survival_member){ .job = NULL };
            survival->n_members--;
        }
    return survival->n_members > 0;
}

void trek_survival_end(trek_job *job)
{
    trek_survival *survival = job->survival;
    job->survival = NULL;
    if (!survival || leave(survival, job))
        return;
    forget(survival);
    if (survival->regroup && !survival->lent && survival->least > 1) /* otherwise those who are left are never too few */
        trek_regroup_leave(survival->regroup, survival->commits);
    if (!survival->lent)
        trek_regroup_free(&survival->regroup);
    trek_comm_free(&survival->first);
    trek_comm_free(&survival->group);
    trek_job_file_await_end(&survival->taken);
    trek_free(survival);
}

void trek_survival_give_group(trek_survival *survival, trek_comm *group)
{
    trek_comm_free(&survival->group);
    survival->group = group;
    survival->next = true;
}

int64_t trek_survival_own_members(const trek_survival *survival)
{
    int64_t members = 0;
    for (int k = 0; k < TREK_SURVIVAL_MEMBERS; k++)
        members |= survival->members[k].job ? (int64_t)1 << k : 0;
    return members;
}

trek_status trek_survival_take_over(trek_survival *survival)
{
    trek_status status = TREK_OK;
    do {
        survival->next = false;
        survival->held = true;
        for (int k = 0; k < TREK_SURVIVAL_MEMBERS && status == TREK_OK && !survival->next; k++) {
            const trek_survival_member *member = &survival->members[k];
            if (member->job && (survival->together >> k & 1))
                status = member->take_over(member->arg);
        }
    } while (status == TREK_OK && survival->next && !survival->away);
    return status;
}
