/* SPDX-License-Identifier: Apache-2.0 */
/* Who trains a graph together: the processes of a job, and the ranks of each.
 *
 * A process that trains alone is a job of one. It has no communicator and answers for itself: a gather returns its own
 * bytes, a sum its own values, and it agrees with itself. So code asks the job the same questions whatever the number
 * of processes is. What the processes tell each other in passes and steps is in pass/job_sync.h. */
#ifndef TREK_DISTRIBUTED_JOB_JOB_H
#define TREK_DISTRIBUTED_JOB_JOB_H

#include "distributed/comm/comm_internal.h"

typedef struct trek_job {
    trek_comm *comm;         /* of the processes; NULL: a job of one */
    int process, processes;  /* this one's number, and how many */
    int local_ranks, first_rank; /* of this process: how many, and the number of its first one in the job */
    int world_size, ranks_most;  /* ranks of all processes; the most that a process has */
    int *process_ranks;      /* [processes]; NULL: there was no memory */
    bool mixed;              /* it has ranks on CPUs and on GPUs */
    bool outlives;           /* its run goes on from the last complete step when processes die */
    struct rank_device *devices; /* [world_size] of all ranks (rank_devices.c) */
    struct trek_job_member *members; /* [processes] what each has said when they met; NULL in a job of one */
    struct trek_survival *survival; /* what a job that outlives some of its processes needs (survival.h); NULL: it does not */
} trek_job;

/* What the processes say of themselves when they meet first. */
typedef struct trek_job_member {
    int32_t ranks;
    uint32_t kinds;          /* of the devices of its ranks: bits 1 << type */
    int32_t device;          /* a trek_device_type, of its first rank */
    int32_t sharers;         /* of the optimizer's state */
    int32_t budgets;         /* 1: its program has set budgets of memory; + 2: it wants a plan (trek_team_memory.recomputes) */
} trek_job_member;

/* Begins a job with what this process knows by itself. comm NULL: a job of one; otherwise the job takes a handle, and
 * the numbers of ranks are known when the others have been met. A lack of memory is reported by trek_job_is_ready, so
 * that the others learn of it. */
void trek_job_begin(trek_job *job, trek_comm *comm, int local_ranks, unsigned kinds);
static inline bool trek_job_is_ready(const trek_job *job) { return job->process_ranks && (job->members || !job->comm); }
/* Meets the other processes, as a collective of jobs that are ready. *gpus: the first rank of some process is on a GPU.
 * Fails with ARGUMENT if the members do not fit together; with UNSUPPORTED (too many ranks); or with errors of the
 * engine. */
trek_status trek_job_meet(trek_job *job, const trek_job_member *own, bool *gpus);
/* Ends a job; it becomes a job of one without ranks. */
void trek_job_end(trek_job *job);
/* Replaces a job, some of whose processes have died, by the job of the remaining ones. */
void trek_job_replace(trek_job *job, const trek_job *next);

static inline bool trek_job_is_alone(const trek_job *job) { return !job->comm; }
static inline bool trek_job_has_others(const trek_job *job) { return job->comm; }

/* Gathers `bytes` bytes of every process at every process. */
trek_status trek_job_gather(const trek_job *job, const void *own, size_t bytes, void *all);
/* Replaces count values by their reduction over the processes. */
trek_status trek_job_reduce(const trek_job *job, void *values, int64_t count, trek_dtype dtype, trek_reduction op);
/* Ends the group of processes, because the others wait for what this one cannot do. */
static inline void trek_job_abort(const trek_job *job, const char *reason) { trek_comm_abort(job->comm, reason); }
/* Sets what this process begins ("forward"; a literal), for the other processes' tables and deadlines. Training ends
 * a phase that the program has set; a forward does not, because it may belong to that phase. */
void trek_job_tell_phase(const trek_job *job, const char *phase, bool training);
static inline void trek_job_say(const trek_job *job, const char *phase, bool training)
{
    if (trek_job_has_others(job))
        trek_job_tell_phase(job, phase, training);
}

#endif
