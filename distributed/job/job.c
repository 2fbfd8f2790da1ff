/* SPDX-License-Identifier: Apache-2.0 */
/* Begins, meets and ends; and what a job of one answers. */
#include "distributed/job/job.h"

#include <string.h>

#include "distributed/control/control.h"
#include "distributed/job/survival.h"
#include "tensor/memory_internal.h"
#include "tensor/rank_context.h"

void trek_job_begin(trek_job *job, trek_comm *comm, int local_ranks, unsigned kinds)
{
    *job = (trek_job){ .comm = comm && trek_comm_retain(comm) ? comm : NULL, .processes = 1, .local_ranks = local_ranks,
                       .world_size = local_ranks, .ranks_most = local_ranks, .mixed = (kinds & (kinds - 1)) != 0 };
    job->process = trek_comm_rank(job->comm);
    job->processes = trek_comm_world_size(job->comm);
    job->process_ranks = job->comm ? trek_calloc((size_t)job->processes, sizeof *job->process_ranks) : &job->local_ranks;
    job->members = job->comm ? trek_calloc((size_t)job->processes, sizeof *job->members) : NULL;
}

static trek_status read_members(trek_job *job)
{
    const trek_job_member *all = job->members;
    trek_status status = TREK_OK;
    job->world_size = 0;
    job->ranks_most = 0;
    for (int p = 0; p < job->processes; p++) {
        if (p == job->process)
            job->first_rank = job->world_size;
        job->process_ranks[p] = all[p].ranks;
        job->world_size += all[p].ranks;
        job->ranks_most = all[p].ranks > job->ranks_most ? all[p].ranks : job->ranks_most;
        job->mixed |= all[p].kinds != all[0].kinds;
        if (all[p].sharers != all[0].sharers)
            status = trek_fail(TREK_ERR_ARGUMENT,
                               "trainer_setup: .shard: %s in process 0, and %s in process %d; must be the same in all",
                               all[0].sharers > 1 ? "set" : "not set", all[p].sharers > 1 ? "set" : "not set", p);
    }
    if (status != TREK_OK)
        return status;
    if (job->world_size > TREK_MAX_RANKS)
        return trek_fail(TREK_ERR_UNSUPPORTED, "trainer_setup: ranks: %d in all processes; must be at most %d", job->world_size,
                         TREK_MAX_RANKS);
    return status;
}

trek_status trek_job_meet(trek_job *job, const trek_job_member *own, bool *gpus)
{
    *gpus = false;
    if (trek_job_is_alone(job))
        return TREK_OK;
    trek_status status = trek_job_gather(job, own, sizeof *own, job->members);
    if (status == TREK_OK)
        status = read_members(job);
    for (int p = 0; status == TREK_OK && p < job->processes; p++)
        *gpus |= job->members[p].device == TREK_CUDA;
    return status;
}

void trek_job_end(trek_job *job)
{
    if (job->process_ranks != &job->local_ranks)
        trek_free(job->process_ranks);
    trek_free(job->members);
    trek_free(job->devices);
    trek_survival_end(job);
    trek_comm_free(&job->comm);
    trek_job_begin(job, NULL, 0, 0);
}

void trek_job_replace(trek_job *job, const trek_job *next)
{
    trek_survival *survival = job->survival;
    job->survival = NULL;
    trek_job_end(job);
    *job = *next;
    job->survival = survival;
}

trek_status trek_job_gather(const trek_job *job, const void *own, size_t bytes, void *all)
{
    if (trek_job_has_others(job))
        return trek_comm_gather_bytes(job->comm, own, bytes, all);
    memcpy(all, own, bytes);
    return TREK_OK;
}

trek_status trek_job_reduce(const trek_job *job, void *values, int64_t count, trek_dtype dtype, trek_reduction op)
{
    if (trek_job_is_alone(job))
        return TREK_OK;
    return trek_comm_run(job->comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = op, .dtype = dtype, .count = count,
                                                      .in = values, .out = values });
}

void trek_job_tell_phase(const trek_job *job, const char *phase, bool training)
{
    if (!job->comm->control)
        return;
    if (training)
        trek_control_say(job->comm->control, phase, NULL);
    trek_control_note(job->comm->control, phase);
}
