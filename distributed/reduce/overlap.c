/* SPDX-License-Identifier: Apache-2.0 */
/* Reduction during backward, with engines that progress by themselves: between processes with one rank each, or among
 * the GPUs of one process. A bucket of the arena is started as soon as the last of its gradients is complete, in one
 * order on all ranks. Only the last pass of a step sends. If another pass follows nevertheless, what was reduced
 * stays with the first rank, and the rest is reduced in step(). */
#include "distributed/reduce/gradients.h"
#include "distributed/team/step.h"
#include "distributed/reduce/overlap.h"

#include "autograd/ops.h"
#include "autograd/var_internal.h"

/* Returns whether it is possible. With other processes, the ranks of one process would have to be summed first. */
static bool can_overlap(const trek_step *s)
{
    const trek_comm *comm = trek_step_carrier(s, 0);
    if (s->team->divides_grads) /* every pass has to send, whether or not it takes longer */
        return !s->grain;
    if (s->overlap.asked == TREK_OFF || s->job.mixed || s->team->replicas[0].reducer->low || /* rounded before it is sent */
        (trek_job_has_others(&s->job) ? s->job.ranks_most > 1 : s->team->local_ranks == 1))
        return false;
    bool by_itself = s->team->on_host ? trek_comm_overlaps(comm) : comm->nccl != NULL;
    return by_itself || (s->overlap.asked == 1 && trek_job_has_others(&s->job));
}

trek_status trek_overlap_plan(trek_step *s)
{
    s->overlap.possible = can_overlap(s);
    if (!s->overlap.possible || s->team->local_ranks == 1)
        return TREK_OK;
    trek_tensor *zero = trek_tensor_zeros(trek_dims_none(), TREK_F32, trek_cpu(0));
    s->overlap.tape_leaf = zero ? trek_var_new(zero, true) : NULL;
    trek_tensor_release(zero);
    return s->overlap.tape_leaf ? TREK_OK : trek_error_status();
}

bool trek_overlap_wants(const trek_step *s)
{
    const trek_accumulation *a = &s->team->graph->accumulation;
    if (s->team->divides_grads)
        return s->overlap.possible && s->state.phase != TREK_STEP_SENT && !s->state.joins_grads;
    int last = trek_accumulation_weighs(a) ? a->passes : 1;
    return s->overlap.possible && s->state.passes + 1 == last && s->state.phase != TREK_STEP_SENT && !s->state.joins_grads &&
        !trek_team_meets(s->team);
}

bool trek_overlap_yields(trek_step *s, bool joins) { return s->state.joins_grads |= joins; }

/* --- a rank's part ----------------------------------------------------------------------- */

trek_reducer *trek_overlap_of(const trek_step *s, int rank)
{
    return s->state.phase == TREK_STEP_SENDING ? s->team->replicas[rank].reducer : NULL;
}

trek_status trek_overlap_rest(int rank, void *stepper)
{
    trek_reducer *own = trek_overlap_of(stepper, rank);
    return own ? trek_reducer_rest(own) : TREK_OK;
}

/* --- a pass ------------------------------------------------------------------------------ */

void trek_overlap_begin(trek_step *s)
{
    trek_step_sends(&s->state);
    s->overlap.on_tape = 0;
    for (int r = 0; r < s->team->local_ranks; r++) {
        trek_comm *comm = trek_step_carrier(s, r);
        trek_reducer_begin(s->team->replicas[r].reducer,
                           trek_ranks_giving_back(s, comm, (trek_sending){ .comm = comm, .starts = true,
                                                                           .scatters = s->team->sharers > 1 }));
    }
}

trek_status trek_overlap_end(trek_step *s)
{
    if (s->state.phase != TREK_STEP_SENDING)
        return TREK_OK;
    trek_status status = s->team->local_ranks == 1 ? trek_overlap_rest(0, s)
        : trek_ranks_call(s->team->ranks, trek_overlap_rest, s);
    trek_step_sent(&s->state);
    return status;
}

/* --- when more gradients follow those that were sent ---------------------------------------- */

static trek_status finish_rank(int rank, void *arg) { return trek_comm_finish(trek_step_carrier(arg, rank)); }

trek_status trek_overlap_finish(trek_step *s)
{
    return s->state.phase == TREK_STEP_SENT ? trek_ranks_call(s->team->ranks, finish_rank, s) : TREK_OK;
}

/* Parameters of which only other ranks had a gradient: the next pass adds to that gradient, too. */
static trek_status claim(const trek_arena *arena)
{
    trek_scope scope = trek_scope_begin();
    trek_status status = scope.depth ? TREK_OK : trek_error_status();
    for (int k = 0; k < arena->n_segments && status == TREK_OK; k++) {
        trek_leaf *leaf = arena->segments[k].param->leaf;
        if (leaf->has_grad || !arena->segments[k].param->requires_grad)
            continue;
        trek_var *any = trek_any(trek_ne_scalar(leaf->grad, 0), trek_dims_all(), false);
        status = any ? TREK_OK : trek_error_status();
        leaf->has_grad = any && trek_var_item(any) != 0;
    }
    trek_scope_end(scope);
    return status;
}

/* Gradients of other ranks count as gradients here, too: maybe only this rank had them. */
static trek_status keep_rank(int rank, void *arg)
{
    trek_step *s = arg;
    trek_arena *arena = s->team->replicas[rank].arena;
    if (rank == 0 && s->job.process == 0)
        return claim(arena);
    for (int k = 0; k < arena->n_segments; k++)
        trek_arena_zero_segment(arena, k);
    return TREK_OK;
}

/* Each sharer has a part of the sum. */
static trek_status keep_part(int rank, void *arg)
{
    trek_arena *arena = ((trek_step *)arg)->team->replicas[rank].arena;
    trek_status status = trek_arena_zero_others(arena);
    return status == TREK_OK ? claim(arena) : status;
}

/* The sum must count once: it stays with the first rank of process 0, or where it was scattered to. */
trek_status trek_overlap_keep(trek_step *s)
{
    bool in_parts = s->state.phase == TREK_STEP_SENT && s->team->sharers > 1;
    trek_status status = trek_overlap_finish(s);
    if (s->state.phase == TREK_STEP_SENT) {
        trek_step_folded(&s->state);
        if (status == TREK_OK)
            status = trek_ranks_apply_grad_factor(s);
    }
    if (status != TREK_OK || s->state.phase != TREK_STEP_FOLDED)
        return status;
    trek_step_accumulates(&s->state);
    if (in_parts)
        return trek_ranks_call(s->team->ranks, keep_part, s);
    return s->job.process > 0 || s->overlap.possible ? trek_ranks_call(s->team->ranks, keep_rank, s) : TREK_OK;
}
