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
static void give_up(const trek_survival *survival, trek_comm *comm)
{
    if (!survival->joins)
        trek_comm_abort(comm, "a process has no memory to continue with others");
}

/* Begins a job with the new group, in the place of the last one. */
static trek_status begin_job(trek_step *s)
{
    trek_survival *survival = s->job.survival;
    const trek_job_member own = trek_job_sync_member(s);
    trek_job next;
    bool gpus;
    trek_job_begin(&next, survival->next, s->team->local_ranks, s->team->kinds);
    trek_status status = trek_job_is_ready(&next) ? TREK_OK : trek_error_status();
    if (status != TREK_OK)
        give_up(survival, survival->next);
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

trek_status trek_survivors_begin(trek_step *s, const trek_survivors_opts *opts)
{
    s->workload = *opts->workload;
    trek_shared_words_end(&s->grains->words); /* each process trains on its own part: who has which is not known of the dead */
    trek_grain_counter_free(&s->grains->counter);
    trek_status status = trek_comm_settle(s->job.comm); /* what set-up has sent to devices; all have it when all have begun */
    if (status == TREK_OK)
        status = trek_survival_begin(&s->job, opts->program, opts->least, opts->lent);
    if (status == TREK_OK)
        s->job.survival->state = opts->state;
    if (s->twice)
        s->twice->sharer = s->job.process;
    note_plan(s, opts);
    return status;
}

static trek_status make_room(int rank, void *s) { return trek_grain_device_sums_make(s, rank); }

/* Makes the memory in which the sums of all processes are formed; a process that was alone had none. */
static trek_status make_exchange(trek_step *s)
{
    return s->team->on_host ? trek_grain_exchange_make(s) : trek_ranks_call(s->team->ranks, make_room, s);
}

/* Nobody reads from, or adds to, what the others of the last group lend. */
static trek_status withdraw(trek_step *s)
{
    trek_status status = trek_grain_sums_lose(s);
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

static trek_status take_over_once(trek_step *s)
{
    trek_survival *survival = s->job.survival;
    int64_t start = trek_trace_enter("take over");
    trek_status status = withdraw(s);
    if (status != TREK_OK)
        give_up(survival, survival->next);
    else
        status = begin_job(s);
    if (status == TREK_OK) {
        survival->held = survival->held_next;
        status = trek_job_sync_make_rooms(s);
        if (status == TREK_OK)
            status = begin_pace(s);
        if (status == TREK_OK && trek_job_has_others(&s->job))
            status = make_exchange(s);
        if (status != TREK_OK)
            give_up(survival, s->job.comm);
    }
    trek_trace_end("take over", start, s->job.processes);
    if (status == TREK_OK && s->twice && !survival->few) /* too few complete the last step only, which needs no state */
        status = trek_twice_redivide(s);
    if (status == TREK_OK && !survival->few && !survival->next) /* another group lends anew */
        status = trek_grain_sums_lend(s);
    return status == TREK_OK ? settle(s) : status;
}

/* Another group may have met in the commit with which a state is divided. */
static trek_status take_over(void *step)
{
    trek_step *s = step;
    const trek_survival *survival = s->job.survival;
    trek_status status;
    do
        status = take_over_once(s);
    while (status == TREK_OK && survival->next && !survival->away);
    return status == TREK_OK && survival->away ? trek_survival_fail_away() : status;
}

bool trek_survivors_go_on(trek_step *s, trek_status *status)
{
    trek_survival *survival = s->job.survival;
    if (!survival || survival->away || !(survival->again || trek_survival_may(&s->job, *status)))
        return false;
    *status = trek_survivors_meet(s);
    return *status == TREK_OK;
}

trek_status trek_survivors_meet(trek_step *s)
{
    return trek_survival_again(&s->job, s->team->graph->settings.steps, take_over, s);
}

trek_status trek_survivors_join(trek_step *s, const trek_survivors_opts *opts)
{
    s->workload = *opts->workload;
    note_plan(s, opts);
    trek_status status = trek_survival_join(&s->job, opts->program, opts->least, s->team->local_ranks, opts->deadline_s);
    if (status != TREK_OK)
        return status;
    s->job.survival->state = opts->state;
    status = take_over(s);
    if (status != TREK_OK)
        trek_survivors_go_on(s, &status);
    return status;
}

/* A group that has met in the last commit becomes the job's. */
static trek_status take_next(trek_step *s)
{
    trek_status status = s->job.survival->next ? take_over(s) : TREK_OK;
    if (status != TREK_OK)
        trek_survivors_go_on(s, &status);
    return status;
}

trek_status trek_survivors_follow(trek_step *s, trek_comm *group)
{
    trek_survival *survival = s->job.survival;
    if (survival->next != group && trek_comm_retain(group)) {
        trek_comm_free(&survival->next);
        survival->next = group;
    }
    survival->again = false;
    return take_next(s);
}

trek_status trek_survivors_gather(trek_step *s)
{
    s->twice->stale = !s->team->divides_params;
    trek_status status = take_next(s);
    if (status != TREK_OK)
        return status;
    do {
        status = trek_twice_gather(s);
        if (status == TREK_OK && s->team->divides_params)
            status = trek_digests_values(s);
        if (status == TREK_OK)
            status = trek_survival_commit(&s->job, s->team->graph->settings.steps);
    } while (status != TREK_OK && trek_survivors_go_on(s, &status));
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
    } while (status != TREK_OK && trek_survivors_go_on(s, &status));
    return status == TREK_OK ? take_next(s) : status;
}

void trek_survivors_divide(trek_step *s)
{
    if (!s->job.survival || s->job.survival->held == 0)
        return;
    s->job.survival->held = 0;
    trek_division_publish(s);
}

trek_status trek_survivors_after_commit(trek_step *s)
{
    trek_survival *survival = s->job.survival;
    if (!survival)
        return TREK_OK;
    if (survival->away)
        return trek_survival_fail_away();
    if (s->team->graph->settings.steps >= survival->held)
        trek_survivors_divide(s);
    return take_next(s);
}
