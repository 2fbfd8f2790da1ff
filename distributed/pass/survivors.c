/* SPDX-License-Identifier: Apache-2.0 */
/* The group of those that are left becomes the job's. */
#include "distributed/pass/survivors.h"

#include "distributed/comm/nccl.h"
#include "distributed/grains/counter.h"
#include "distributed/grains/digests.h"
#include "distributed/grains/grains.h"
#include "distributed/job/rank_devices.h"
#include "distributed/pass/division.h"
#include "distributed/pass/job_sync.h"
#include "distributed/pass/shares.h"
#include "distributed/reduce/twice.h"
#include "distributed/team/divided.h"
#include "distributed/team/memory.h"
#include "distributed/team/step.h"
#include "graph/graph_internal.h"
#include "tensor/trace.h"

/* The others cannot continue without a process that has no memory, unless it has just come: it leaves them then. */
static void give_up(const trek_survival *survival)
{
    if (!survival->joins)
        trek_comm_abort(survival->group, "a process has no memory to continue with others");
}

/* Begins a job with the new group, in the place of the last one. */
static trek_status begin_job(trek_step *s)
{
    trek_survival *survival = s->job.survival;
    const trek_job_member own = trek_job_sync_member(s);
    trek_job next;
    bool gpus;
    trek_job_begin(&next, survival->group, s->team->local_ranks, s->team->kinds);
    trek_status status = trek_job_is_ready(&next) ? TREK_OK : trek_error_status();
    if (status != TREK_OK)
        give_up(survival);
    else
        status = trek_job_meet(&next, &own, &gpus);
    if (status == TREK_OK && gpus)
        status = trek_comm_nccl_join(next.comm, s->team->replicas[0].arena->device);
    if (status == TREK_OK)
        status = trek_ranks_list_devices(&next, s->team->ranks);
    if (status != TREK_OK) {
        trek_job_end(&next);
        return status;
    }
    trek_job_replace(&s->job, &next);
    return TREK_OK;
}

/* Speeds are measured anew. All processes have the same workload again. */
static trek_status begin_pace(trek_step *s)
{
    bool sites = s->pace.sites;
    trek_pace_end(s);
    s->pace.sites = sites;
    trek_workload_opts opts = s->workload;
    opts.unequal |= trek_ranks_devices_differ(&s->job, 0, s->job.world_size);
    trek_status status = trek_pace_begin(s);
    if (status == TREK_OK && !(s->pace.workload = trek_workload_new(s->job.world_size, &opts)))
        status = trek_error_status();
    return status;
}

static void note_plan(trek_step *s, const trek_survivors_opts *opts)
{
    if (s->twice)
        s->twice->renew_plan = opts->renew_plan;
}

static trek_status make_room(int rank, void *s) { return trek_grain_device_sums_make(s, rank); }

/* Makes the memory in which the sums of all processes are formed; a process that was alone had none. */
static trek_status make_exchange(trek_step *s)
{
    if (!s->grains)
        return TREK_OK;
    return s->team->on_host ? trek_grain_exchange_make(s) : trek_ranks_call(s->team->ranks, make_room, s);
}

/* Nobody reads from, or adds to, what the others of the last group lend. */
static trek_status withdraw(trek_step *s)
{
    trek_status status = s->grains ? trek_grain_sums_lose(s) : TREK_OK;
    if (s->twice)
        s->twice->settled = s->twice->renewed = false;
    return status == TREK_OK && s->team->divides_params ? trek_divided_withdraw(s->team) : status;
}

/* What the processes keep must fit their budgets. If it does not, all of them fail, here and from now on. */
static trek_status renew_plan(trek_step *s)
{
    trek_status status = s->twice->renew_plan(s);
    s->twice->renewed = status == TREK_OK;
    if (status == TREK_OK) {
        status = trek_memory_check(s->team->memory, "job");
        s->twice->exceeds = status != TREK_OK;
    }
    return status;
}

/* When the processes of the job are those that keep everything, they lend parameters, and their plan is made again. Another group
 * does so itself. */
static trek_status settle(trek_step *s)
{
    trek_status status = TREK_OK;
    if (!s->twice || !s->twice->settled || s->job.survival->next)
        return TREK_OK;
    if (s->team->divides_params && !s->team->lent && s->job.processes > 1)
        status = trek_divided_lend(s->team, s->job.comm);
    return status == TREK_OK && !s->twice->renewed ? renew_plan(s) : status;
}

static trek_status take_over(void *step)
{
    trek_step *s = step;
    const trek_survival *survival = s->job.survival;
    int64_t start = trek_trace_enter("take over");
    trek_status status = withdraw(s);
    if (status != TREK_OK)
        give_up(survival);
    else
        status = begin_job(s);
    if (status == TREK_OK) {
        status = trek_job_sync_make_rooms(s);
        if (status == TREK_OK)
            status = begin_pace(s);
        if (status == TREK_OK && trek_job_has_others(&s->job))
            status = make_exchange(s);
        if (status != TREK_OK)
            give_up(survival);
    }
    trek_trace_end("take over", start, s->job.processes);
    if (status == TREK_OK && s->twice && !survival->few) /* too few complete the last step only, which needs no state */
        status = trek_twice_redivide(s);
    if (status == TREK_OK && s->grains && !survival->few && !survival->next) /* another group lends anew */
        status = trek_grain_sums_lend(s);
    return status == TREK_OK ? settle(s) : status;
}

static trek_survival_opts opts_of(trek_step *s, const trek_survivors_opts *opts)
{
    return (trek_survival_opts){ .program = opts->program, .least = opts->least, .lent = opts->lent, .state = opts->state,
                                 .take_over = take_over, .arg = s };
}

trek_status trek_survivors_begin(trek_step *s, const trek_survivors_opts *opts)
{
    const trek_survival_opts own = opts_of(s, opts);
    s->workload = *opts->workload;
    if (s->grains) { /* each process trains on its own part: who has which is not known of the dead */
        trek_shared_words_end(&s->grains->words);
        trek_grain_counter_free(&s->grains->counter);
    }
    trek_status status = trek_comm_settle(s->job.comm); /* what set-up has sent to devices; all have it when all have begun */
    if (status == TREK_OK)
        status = trek_survival_begin(&s->job, &own);
    if (s->twice)
        s->twice->sharer = s->job.process;
    note_plan(s, opts);
    return status == TREK_OK ? trek_survival_entered(&s->job) : status;
}

trek_status trek_survivors_join(trek_step *s, const trek_survivors_opts *opts)
{
    s->workload = *opts->workload;
    const trek_survival_opts own = opts_of(s, opts);
    note_plan(s, opts);
    return trek_survival_join(&s->job, &own, s->team->local_ranks, opts->deadline_s);
}

trek_status trek_survivors_follow(trek_step *s, trek_comm *group)
{
    trek_survival *survival = s->job.survival;
    if (survival->group != group && trek_comm_retain(group))
        trek_survival_give_group(survival, group);
    survival->next = true;
    survival->again = false;
    return trek_survival_take_next(&s->job);
}

trek_status trek_survivors_gather(trek_step *s)
{
    s->twice->stale = !s->team->divides_params;
    trek_status status = trek_survival_take_next(&s->job);
    if (status != TREK_OK)
        return status;
    do {
        status = trek_twice_gather(s);
        if (status == TREK_OK && s->team->divides_params)
            status = trek_digests_values(s);
        if (status == TREK_OK)
            status = trek_survival_commit(&s->job);
    } while (status != TREK_OK && trek_survival_go_on(&s->job, &status));
    s->twice->stale &= status != TREK_OK;
    return status;
}

trek_status trek_survivors_settle(trek_step *s)
{
    trek_status status;
    if (!s->twice)
        return TREK_OK;
    do {
        status = trek_twice_redivide(s);
        if (status == TREK_OK)
            status = settle(s);
    } while (status != TREK_OK && trek_survival_go_on(&s->job, &status));
    return status == TREK_OK ? trek_survival_take_next(&s->job) : status;
}

void trek_survivors_divide(trek_step *s)
{
    if (!s->job.survival || !s->job.survival->held)
        return;
    s->job.survival->held = false;
    trek_division_publish(s);
}

trek_status trek_survivors_after_commit(trek_step *s)
{
    const trek_survival *survival = s->job.survival;
    if (!survival)
        return TREK_OK;
    if (survival->away)
        return trek_survival_fail_away();
    return trek_survival_take_next(&s->job);
}

trek_status trek_survivors_after_step(trek_step *s)
{
    if (s->job.survival && !s->job.survival->away)
        trek_survivors_divide(s);
    return trek_survivors_after_commit(s);
}
