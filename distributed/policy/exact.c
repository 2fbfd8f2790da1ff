/* SPDX-License-Identifier: Apache-2.0 */
/* The step as its caller sees it: what can fail is prepared, the processes meet, the ranks reduce and update, and the
 * graph, the scaler and the balancer learn the result. */
#include <math.h>

#include "autograd/var_internal.h"
#include "distributed/grains/digests.h"
#include "distributed/pass/gathered.h"
#include "distributed/pass/job_sync.h"
#include "distributed/pass/per_rank_step.h"
#include "distributed/pass/redo.h"
#include "distributed/pass/shares.h"
#include "distributed/pass/survivors.h"
#include "distributed/policy/exact.h"
#include "distributed/policy/audit.h"
#include "distributed/policy/grain_pass.h"
#include "distributed/policy/policies.h"
#include "distributed/reduce/gradients.h"
#include "distributed/reduce/overlap.h"
#include "distributed/reduce/reduce.h"
#include "distributed/reduce/sharded.h"
#include "distributed/team/divided.h"
#include "distributed/reduce/twice.h"
#include "distributed/team/step.h"
#include "graph/graph_internal.h"
#include "optim/scaler_internal.h"
#include "optim/schedules.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

/* Merges what grains have given besides gradients. The sums get the factor. */
static trek_status merge_grains(trek_step *s)
{
    trek_status status = trek_grains_audit(s, TREK_OK);
    if (status == TREK_OK)
        status = trek_grains_merge(s, trek_grains_run);
    if (status == TREK_OK)
        trek_ranks_note_gradients(s); /* grains may have been computed that have others */
    else if (!trek_survival_may(&s->job, status) && !(s->job.survival && s->job.survival->over)) /* unless it has left them */
        trek_job_abort(&s->job, "a process cannot merge its grains"); /* the others are about to enter the reduction */
    return status;
}

/* Called when the passes' weights, those of all processes, are known. */
static trek_status weigh(trek_step *s)
{
    trek_accumulation *a = &s->team->graph->accumulation;
    if (s->grains)
        return merge_grains(s);
    if (!trek_accumulation_weighs(a))
        return TREK_OK;
    s->state.factor = trek_accumulation_factor(a);
    if (s->team->shared || s->state.phase == TREK_STEP_SENT || s->state.factor == 1) /* the reduction applies it */
        return TREK_OK;
    trek_status status = trek_ranks_apply_grad_factor(s);
    if (status == TREK_OK)
        trek_accumulation_settled(a);
    else
        trek_job_abort(&s->job, "a process cannot weigh its gradients"); /* the others are about to enter the reduction */
    return status;
}

/* Meets the others before a reduction: every process comes, even if it has failed. */
static trek_status meet(trek_step *s, trek_status own, bool update)
{
    bool sent = s->state.phase == TREK_STEP_SENT, pending;
    if (own == TREK_OK && !sent && trek_step_is_reduced(&s->state))
        own = trek_overlap_keep(s);
    if (own == TREK_OK && !s->team->shared && !sent)
        own = trek_ranks_apply_grad_factor(s);
    pending = s->state.phase == TREK_STEP_ACCUMULATING;
    own = trek_job_sync_step(s, own, update, &pending);
    if (own == TREK_OK && sent && (pending || (s->team->sharers > 1 &&
                                               !update))) /* the sum was scattered, and all must have it */
        own = trek_overlap_keep(s);
    if (own == TREK_OK)
        own = weigh(s);
    if (own != TREK_OK || trek_job_is_alone(&s->job))
        return own;
    own = trek_job_sync_flags(s);
    if (own == TREK_OK && s->team->shared && update && (own = trek_optimizer_prepare(s->team->replicas[0].optimizer)) != TREK_OK)
        trek_job_abort(&s->job, "a process cannot prepare its optimizer"); /* the others are about to enter the reduction */
    return own;
}

trek_status trek_ranks_reduce(trek_step *s)
{
    if (s->job.survival)
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "graph_reduce: graph: it is trained with .min_processes, where gradients are complete "
                         "only within trek_graph_step; call that");
    if (s->team->divides_grads)
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "graph_reduce: graph: its gradients are divided (.shard), so no rank has them all; call "
                         "trek_graph_step, which can clip them (trek_graph_set_clip)");
    trek_job_say(&s->job, "reduce", true);
    trek_ranks_note_gradients(s);
    trek_team_follow_flags(s->team);
    trek_status status = meet(s, trek_error_status(), false);
    if (status == TREK_OK)
        status = trek_ranks_run_step(&(trek_step_call){ .s = s });
    if (status != TREK_OK)
        return status;
    s->state.factor = 1;
    trek_accumulation_settled(&s->team->graph->accumulation);
    trek_step_folded(&s->state);
    return TREK_OK;
}

static trek_status detach_rank(int rank, void *arg) { return trek_graph_detach(((trek_step *)arg)->team->replicas[rank].graph); }

trek_status trek_ranks_detach(trek_step *s)
{
    return trek_graph_keeps(s->team->graph) ? trek_ranks_call(s->team->ranks, detach_rank, s) : TREK_OK;
}

trek_status trek_ranks_set_rates(trek_step *s, bool by_schedule)
{
    const trek_graph_settings *settings = &s->team->graph->settings;
    by_schedule &= settings->schedule.kind != TREK_SCHEDULE_KIND_NONE;
    double lr = by_schedule ? trek_schedule_lr(&settings->schedule, settings->steps) : 0;
    if (isnan(lr))
        return trek_error_status();
    trek_status status = TREK_OK;
    for (int r = 0; r < s->team->local_ranks && status == TREK_OK && by_schedule; r++)
        if (s->team->replicas[r].optimizer)
            status = trek_optimizer_schedule_lr(s->team->replicas[r].optimizer, lr);
    return status == TREK_OK ? trek_team_follow_groups(s->team) : status;
}

/* Prepares learning rates, plans and detached values: everything that can fail. */
static trek_status prepare(trek_step *s)
{
    trek_status status = trek_divided_check(s->team, "graph_step");
    trek_divided_rest(s->team);
    if (status == TREK_OK)
        status = trek_ranks_set_rates(s, true);
    if (status == TREK_OK)
        status = trek_ranks_detach(s);
    trek_ranks_note_gradients(s);
    trek_team_follow_flags(s->team);
    if (status == TREK_OK)
        status = trek_ranks_prepare_scaler(s);
    if (status == TREK_OK && s->team->shared)
        status = trek_optimizer_prepare(s->team->replicas[0].optimizer);
    return status;
}

/* Makes known what was decided on the host. */
static trek_status conclude(trek_step *s, const trek_update_state *decided)
{
    rank_replica *first = &s->team->replicas[0];
    if (!s->team->on_host)
        return TREK_OK;
    first->optimizer->last = *decided;
    s->grad_norm = decided->norm;
    if (s->team->shared && !decided->skip)
        trek_optimizer_commit(first->optimizer);
    if (!s->loss_scale)
        return TREK_OK;
    trek_scaler_record(s->team->graph->scaler, first->arena->device)->found_inf |= decided->skip;
    return trek_grad_scaler_update(s->team->graph->scaler);
}

void trek_ranks_count_step(trek_step *s)
{
    s->team->graph->settings.steps++;
    trek_rank_here.rng_step++;
    trek_rank_here.rng_draw = 0;
}

trek_status trek_ranks_step(trek_step *s)
{
    trek_status status = trek_error_status();
    if (status == TREK_OK && !s->team->replicas[0].optimizer)
        status =
            trek_fail(TREK_ERR_STATE,
                      "graph_step: the graph has no optimizer; call trek_graph_set_optimizer or give one to trek_trainer_setup");
    trek_step_call call;
    int64_t start = trek_trace_enter("sync");
    trek_job_say(&s->job, "step", true);
    do {
        if (status == TREK_OK && trek_redoes(s))
            status = trek_redo_passes(s);
        call = (trek_step_call){ .s = s, .update = true, .kind = s->team->sharers > 1 ? trek_ranks_sharded_kind(s) : NULL };
        if (status == TREK_OK)
            status = trek_twice_may_train(s, "graph_step");
        if (status == TREK_OK)
            status = prepare(s);
        status = meet(s, status, true);
        if (status == TREK_OK)
            status = trek_ranks_run_step(&call);
    } while (status != TREK_OK && trek_survival_go_on(&s->job, &status)); /* a process has died: the others make it again */
    trek_trace_end("sync", start, s->team->graph->settings.steps);
    if (status == TREK_OK)
        status = conclude(s, &call.decided);
    if (status == TREK_OK && s->twice && s->job.survival && (!call.decided.skip || s->team->divides_params))
        status = trek_survivors_gather(s);
    if (status == TREK_OK && (!s->records || trek_workload_replays(s->pace.workload))) /* no time is known while it is recorded */
        status = trek_ranks_update_workload(s, TREK_DRIFT_STABLE);
    if (status == TREK_OK && s->grains)
        status = trek_digests_leave(s);
    if (status != TREK_OK)
        return status;
    if (!s->records)
        trek_step_merged(s);
    trek_ranks_reset(s);
    trek_ranks_count_step(s);
    return trek_survivors_after_step(s);
}

static bool wanted(const trek_ranks_opts *opts)
{
    (void)opts;
    return true;
}

static trek_status make(trek_step *s, const trek_ranks_opts *opts)
{
    trek_status status = opts->redoes && (trek_job_has_others(&s->job) || opts->joins) ? trek_redo_make(s) : TREK_OK;
    return status == TREK_OK ? trek_overlap_plan(s) : status;
}

/* More gradients come: what was reduced must count once, and what has a factor of its own is multiplied by it first. */
static trek_status begin_pass(trek_step *s)
{
    trek_status status = trek_step_is_reduced(&s->state) ? trek_overlap_keep(s) : TREK_OK;
    bool weighs = trek_accumulation_weighs(&s->team->graph->accumulation);
    return status == TREK_OK && !weighs && s->state.factor != 1 ? trek_ranks_apply_grad_factor(s) : status;
}

static trek_var *train_batch(trek_step *s, const trek_batch *batch)
{
    return trek_redoes(s) ? trek_redo_train_batch(s, batch) : trek_ranks_train_batch(s, batch);
}

static trek_status backward(trek_step *s, trek_var *loss, double weight)
{
    return trek_redoes(s) ? trek_redo_refuse("graph_backward") : trek_ranks_backward(s, loss, weight);
}

static void end(trek_step *s)
{
    trek_redo_free(s);
    trek_var_release(s->overlap.tape_leaf);
}

const trek_step_policy trek_exact_policy = {
    .name = "exact", .wanted = wanted, .make = make, .end = end, .sums = true,
    .train_batch = train_batch, .window = trek_ranks_window,
    .begin_pass = begin_pass, .backward = backward, .reduce = trek_ranks_reduce, .step = trek_ranks_step,
};
