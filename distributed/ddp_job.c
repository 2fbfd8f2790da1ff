/* SPDX-License-Identifier: Apache-2.0 */
/* Wrappers whose processes may die (.min_processes): the operations of job/survival.h are the wrapper's calls. Each call changes
 * nothing that it needs itself before its commit, so that those who are left can make it again.
 *
 * All wrappers of a process belong to one job, since a death may find some processes in a call of one of them and others in a
 * call of another; its survival is also that of graphs. A wrapper takes the job's new group at its next call.
 *
 * What the program sees of the group (its rank, the number of ranks) changes at the end of the same call in all processes, so
 * that they divide their data alike: one that has completed a call when the others meet sees the new group after its next call,
 * and so do those that complete it later. */
#include <string.h>

#include "distributed/comm/nccl.h"
#include "distributed/ddp_internal.h"
#include "distributed/job/job_bytes.h"
#include "distributed/job/survival.h"
#include "distributed/system/system.h"

enum { NOBODY_JOINS = 1 };   /* the program of such a job, which no process that comes has */

struct trek_ddp_job {
    trek_job job;            /* its group changes when processes die */
    int wrappers;
    bool held;               /* its group is another one than the program sees, until a call is complete */
    int shown, rank;         /* how many ranks the program sees, and which of them it is; */
    int *numbers;            /* [shown] theirs in the job, which never change, */
    int *members;            /* [job.processes] and those of the processes of its group */
};

typedef struct ddp_jobs {
    trek_lock lock;
    trek_ddp_job *of_process; /* NULL: no wrapper needs one */
} ddp_jobs;

TREK_PER_PROCESS(ddp_jobs, jobs, { .lock = TREK_LOCK_INIT });

/* --- beginning and ending ----------------------------------------------------------------------------------- */

static bool is_of(const trek_ddp_job *j, const trek_comm *comm) { return j && trek_survival_of(comm) == j->job.survival; }

/* Returns the job to which a communicator belongs, or NULL. */
static trek_ddp_job *job_of(const trek_comm *comm)
{
    trek_lock_acquire(&jobs()->lock);
    trek_ddp_job *j = is_of(jobs()->of_process, comm) ? jobs()->of_process : NULL;
    trek_lock_release(&jobs()->lock);
    return j;
}

trek_comm *trek_ddp_job_comm(trek_comm *comm)
{
    const trek_survival *survival = trek_survival_of(comm);
    return survival ? survival->group : comm;
}

/* Shows the program the present group. */
static void show(trek_ddp_job *j)
{
    j->shown = j->job.processes;
    j->rank = j->job.process;
    memcpy(j->numbers, j->members, (size_t)j->shown * sizeof *j->numbers);
    j->held = false;
}

static void note_members(trek_ddp_job *j)
{
    for (int p = 0; p < j->job.processes; p++)
        j->members[p] = trek_regroup_number(j->job.survival->regroup, p);
}

static trek_status take_over(void *job)
{
    trek_ddp_job *j = job;
    trek_job next;
    trek_job_begin(&next, j->job.survival->group, 1, 0);
    trek_job_replace(&j->job, &next);
    note_members(j);
    j->held = true;
    return TREK_OK;
}

static void end(trek_ddp_job *j)
{
    trek_job_end(&j->job);
    trek_free(j->numbers);
    trek_free(j->members);
    trek_free(j);
}

static trek_ddp_job *begin(trek_comm *comm, int least)
{
    trek_ddp_job *j = trek_calloc(1, sizeof *j);
    int *numbers = trek_calloc((size_t)comm->world, sizeof *numbers),
        *members = trek_calloc((size_t)comm->world, sizeof *members);
    if (!j || !numbers || !members) {
        trek_comm_abort(comm, "a process has no memory to continue without others"); /* they wait for its rendezvous */
        trek_free(j);
        trek_free(numbers);
        trek_free(members);
        return NULL;
    }
    j->numbers = numbers;
    j->members = members;
    trek_job_begin(&j->job, comm, 1, 0);
    const trek_survival_opts opts = { .program = NOBODY_JOINS, .least = least, .take_over = take_over, .arg = j };
    if (trek_survival_begin(&j->job, &opts) == TREK_OK) {
        note_members(j);
        show(j);
        return j;
    }
    end(j);
    return NULL;
}

trek_status trek_ddp_job_check(const trek_ddp *ddp, const trek_comm *comm)
{
    int least = ddp->opts.min_processes;
    if (least == 0)
        return TREK_OK;
    if (comm && !comm->control && !trek_survival_of(comm)) /* of a job one process may be left */
        return trek_fail(TREK_ERR_ARGUMENT, "ddp_wrap_process: .min_processes: %d, with a communicator of threads, which end "
                                            "together; it is for those of processes (trek_comm_init)",
                         least);
    if (least > trek_comm_world_size(comm))
        return trek_fail(TREK_ERR_ARGUMENT, "ddp_wrap_process: .min_processes: %d; must be 0 to %d, the number of processes",
                         least, trek_comm_world_size(comm));
    if (ddp->opts.shard != TREK_SHARD_NONE)
        return trek_fail(TREK_ERR_UNSUPPORTED, "ddp_wrap_process: .min_processes: set together with .shard; a process that dies "
                                               "takes its part of the optimizer's state with it. trek_trainer_setup with .grain "
                                               "keeps each part twice");
    if (ddp->opts.overlap == 1)
        return trek_fail(TREK_ERR_UNSUPPORTED, "ddp_wrap_process: .min_processes: set together with .overlap; gradients that are "
                                               "sent during a backward pass cannot be sent again without a process");
    return TREK_OK;
}

trek_status trek_ddp_job_begin(trek_ddp *ddp)
{
    trek_comm *comm = ddp->replicas[0].comm;
    int least = ddp->opts.min_processes;
    if (least == 0 || !comm)
        return TREK_OK;
    trek_lock_acquire(&jobs()->lock);
    trek_ddp_job *j = jobs()->of_process;
    if (j && !is_of(j, comm))
        trek_fail(TREK_ERR_UNSUPPORTED, "ddp_wrap_process: .min_processes: another wrapper has set it over another communicator; "
                                        "all of a process must have the same one");
    else if (!j)
        j = jobs()->of_process = begin(comm, least);
    if (j && is_of(j, comm)) {
        j->wrappers++;
        j->job.survival->least = least > j->job.survival->least ? least : j->job.survival->least;
        ddp->job = j;
    }
    trek_lock_release(&jobs()->lock);
    for (int p = 0; p < ddp->n_devices && ddp->job; p++)
        ddp->numbers[p] = j->members[p];
    if (!ddp->job)
        return trek_error_status();
    return ddp->job->wrappers == 1 ? trek_survival_entered(&ddp->job->job) : TREK_OK;
}

void trek_ddp_job_leave(trek_ddp *ddp)
{
    trek_ddp_job *j = ddp->job;
    if (!j)
        return;
    ddp->job = NULL;
    trek_lock_acquire(&jobs()->lock);
    bool last = --j->wrappers == 0;
    if (last)
        jobs()->of_process = NULL;
    trek_lock_release(&jobs()->lock);
    if (last)
        end(j);
}

/* --- what the program sees ------------------------------------------------------------------------------------ */

trek_comm *trek_ddp_job_group(const trek_ddp_job *j) { return j->job.comm; }

int trek_ddp_job_shown(const trek_ddp_job *j, int *rank)
{
    *rank = j->rank;
    return j->shown;
}

/* Returns the device of the process with that number. */
static trek_device device_of(const trek_ddp *ddp, int number)
{
    int k = 0;
    while (k + 1 < ddp->n_devices && ddp->numbers[k] != number)
        k++;
    return ddp->devices[k];
}

trek_device trek_ddp_job_device(const trek_ddp *ddp, int rank) { return device_of(ddp, ddp->job->numbers[rank]); }

int trek_ddp_job_find(const trek_ddp_job *j, int rank)
{
    for (int p = 0; p < j->job.processes; p++)
        if (j->members[p] == j->numbers[rank])
            return p;
    return -1;
}

/* --- calls ------------------------------------------------------------------------------------------------------ */

static trek_status commit(const trek_ddp_job *j) { return trek_survival_commit(&j->job); }

trek_status trek_ddp_commit(const trek_ddp *ddp) { return ddp->job ? commit(ddp->job) : TREK_OK; }

/* The wrapper takes the job's group. It is not larger than the last one, so its lists have room for it. */
static trek_status follow(trek_ddp *ddp)
{
    const trek_job *job = &ddp->job->job;
    trek_ddp_replica *r = &ddp->replicas[0];
    bool gpus = false;
    if (r->comm == job->comm || !trek_comm_retain(job->comm))
        return TREK_OK;
    trek_comm_free(&r->comm);
    r->comm = job->comm;
    r->rank = job->process;
    r->world_size = job->processes;
    for (int p = 0; p < r->world_size; p++)
        gpus |= device_of(ddp, ddp->job->members[p]).type != TREK_CPU;
    r->all_on_host = !gpus;
    if (r->reducer)
        r->reducer->home = r->comm;
    trek_kept_error own; /* which this process tells the others in the call itself */
    trek_error_keep(&own);
    trek_status status = gpus ? trek_comm_nccl_join(r->comm, r->device) : TREK_OK;
    if (own.status != TREK_OK && status == TREK_OK)
        trek_error_put_back(&own);
    return status;
}

/* Copies of the values that a call changes. */
typedef struct kept_values {
    int n;
    trek_tensor **of, **copies;
} kept_values;

static void keep_var(kept_values *kept, const trek_var *var, trek_status *status)
{
    trek_tensor *copy = *status == TREK_OK ? trek_tensor_clone(var->data) : NULL;
    if (copy) {
        kept->of[kept->n] = trek_tensor_retain(var->data);
        kept->copies[kept->n++] = copy;
    } else if (*status == TREK_OK) {
        *status = trek_error_status();
    }
}

static trek_status keep(kept_values *kept, const trek_replica *model, unsigned what)
{
    int n = model ? model->n_params + model->n_buffers : 0;
    trek_status status = TREK_OK;
    if (!what || n == 0)
        return TREK_OK;
    kept->of = trek_calloc((size_t)n, sizeof *kept->of);
    kept->copies = trek_calloc((size_t)n, sizeof *kept->copies);
    if (!kept->of || !kept->copies)
        return TREK_ERR_MEMORY;
    for (int k = 0; k < model->n_params && what & TREK_DDP_PARAMS; k++)
        keep_var(kept, model->params[k], &status);
    for (int k = 0; k < model->n_buffers && what & TREK_DDP_BUFFERS; k++)
        keep_var(kept, model->buffers[k], &status);
    return status;
}

static trek_status put_back(const kept_values *kept)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < kept->n && status == TREK_OK; k++)
        status = trek_tensor_copy_from(kept->of[k], kept->copies[k]);
    return status;
}

static void drop(kept_values *kept)
{
    for (int k = 0; k < kept->n; k++) {
        trek_tensor_release(kept->of[k]);
        trek_tensor_release(kept->copies[k]);
    }
    trek_free(kept->of);
    trek_free(kept->copies);
}

/* Called when a call has failed. Returns whether those that are left make it again; they have what it had changed as before. */
static bool goes_on(trek_ddp_job *j, const kept_values *kept, trek_status *status)
{
    if (!trek_survival_go_on(&j->job, status))
        return false;
    *status = put_back(kept);
    if (*status != TREK_OK) /* the others make the call again, and wait */
        trek_comm_abort(j->job.comm, "a process cannot continue without others");
    return *status == TREK_OK;
}

/* A group that has met in the commit becomes the job's, and the program sees it after the next call, as it does where that call
 * has failed already. */
static trek_status after_commit(trek_ddp_job *j)
{
    if (j->held)
        show(j);
    return trek_survival_take_next(&j->job);
}

trek_status trek_ddp_outlive(trek_ddp *ddp, trek_ddp_fn fn, void *arg, unsigned changes)
{
    kept_values kept = { 0 };
    keep(&kept, ddp->replicas[0].model, changes); /* on failure the thread has an error, of which the others learn in the call */
    trek_status status;
    do {
        status = follow(ddp);
        if (status == TREK_OK)
            status = fn(ddp, 0, arg);
    } while (status != TREK_OK && goes_on(ddp->job, &kept, &status));
    drop(&kept);
    return status == TREK_OK ? after_commit(ddp->job) : status;
}

trek_metric *trek_metric_join(trek_comm *comm, trek_metric *metric)
{
    static const kept_values nothing = { 0 };
    trek_ddp_job *j = job_of(comm);
    trek_metric *sum;
    trek_status status;
    if (!j)
        return trek_job_join_metric(comm, metric);
    do {
        sum = trek_job_join_metric(j->job.comm, metric);
        status = sum ? commit(j) : trek_error_status();
        if (status != TREK_OK)
            trek_metric_free(&sum);
    } while (status != TREK_OK && goes_on(j, &nothing, &status));
    if (status == TREK_OK && after_commit(j) != TREK_OK)
        trek_metric_free(&sum);
    return sum;
}
