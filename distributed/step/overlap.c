/* SPDX-License-Identifier: Apache-2.0 */
/* Reduction during backward, with engines that progress by themselves: between processes with one rank each, or among
 * the GPUs of one process. A bucket of the arena is started as soon as the last of its gradients is complete, in one
 * order on all ranks. Only the last pass of a step sends. If another pass follows nevertheless, what was reduced
 * stays with the first rank, and the rest is reduced in step(). */
#include "distributed/step/overlap.h"

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/step/split_forward.h"

/* Returns whether it is possible. With other processes, the ranks of one process would have to be summed first. */
static bool can_overlap(const ranks_stepper *s)
{
    const trek_comm *comm = s->comm ? s->comm : trek_ranks_comm(s->ranks, 0);
    if (s->overlap == TREK_OFF || s->mixed || (s->comm ? s->ranks_most > 1 : s->local_ranks == 1))
        return false;
    bool by_itself = s->on_host ? trek_comm_overlaps(comm) : comm->nccl != NULL;
    return by_itself || (s->overlap == 1 && s->comm);
}

trek_status trek_overlap_plan(ranks_stepper *s)
{
    s->overlaps = can_overlap(s);
    if (!s->overlaps || s->local_ranks == 1)
        return TREK_OK;
    trek_tensor *zero = trek_tensor_zeros(trek_dims_none(), TREK_F32, trek_cpu(0));
    s->tape_leaf = zero ? trek_var_new(zero, true) : NULL;
    trek_tensor_release(zero);
    return s->tape_leaf ? TREK_OK : trek_error_status();
}

bool trek_overlap_wants(const ranks_stepper *s)
{
    const trek_accumulation *a = &s->base.graph->accumulation;
    int last = trek_accumulation_weighs(a) ? a->passes : 1;
    return s->overlaps && s->step.passes + 1 == last && s->step.phase != TREK_STEP_SENT && !s->step.joins_grads &&
        !trek_ranks_meet(s);
}

/* --- a rank's part ----------------------------------------------------------------------- */

static trek_comm *comm_of(const ranks_stepper *s, int rank) { return s->comm ? s->comm : trek_ranks_comm(s->ranks, rank); }

trek_reducer *trek_overlap_of(const ranks_stepper *s, int rank)
{
    return s->step.phase == TREK_STEP_SENDING ? s->replicas[rank].reducer : NULL;
}

trek_status trek_overlap_rest(int rank, void *stepper)
{
    trek_reducer *own = trek_overlap_of(stepper, rank);
    return own ? trek_reducer_rest(own) : TREK_OK;
}

/* --- a pass ------------------------------------------------------------------------------ */

void trek_overlap_begin(ranks_stepper *s, bool sends)
{
    if (!s->overlaps || !sends)
        return;
    trek_step_sends(&s->step);
    s->on_tape = 0;
    for (int r = 0; r < s->local_ranks; r++)
        trek_reducer_begin(s->replicas[r].reducer, (trek_sending){ .comm = comm_of(s, r), .starts = true,
                                                                  .scatters = s->sharers > 1 });
}

trek_status trek_overlap_end(ranks_stepper *s)
{
    if (s->step.phase != TREK_STEP_SENDING)
        return TREK_OK;
    trek_status status = s->local_ranks == 1 ? trek_overlap_rest(0, s) : trek_ranks_call(s->ranks, trek_overlap_rest, s);
    trek_step_sent(&s->step);
    return status;
}

static void complete_on_tape(int k, void *arg)
{
    (void)k;
    ((ranks_stepper *)arg)->on_tape++;
}

/* If rank 0's parameters are used outside the forward, too, these uses would come after the ranks' parts. Then
 * everything is sent at the end. */
static bool sends_in_split(void *arg)
{
    const ranks_stepper *s = arg;
    return s->on_tape == s->replicas[0].model->n_params;
}

static void *arg_of_rank(int rank, void *arg) { return trek_overlap_of(arg, rank); }
static void end_rank(int rank, void *arg) { trek_overlap_rest(rank, arg); }

trek_status trek_overlap_backward(ranks_stepper *s, trek_var *loss, trek_var *seed, bool zeros)
{
    trek_replica *model = s->replicas[0].model;
    trek_backward_watch watch = { .leaves = model->params, .n_leaves = model->n_params, .only_these = true,
                                  .zeros = zeros };
    trek_split_watch ranks = { .tape_leaf = s->tape_leaf, .begins = sends_in_split, .arg_of_rank = arg_of_rank,
                               .complete = trek_reducer_complete, .end = end_rank, .arg = s };
    bool sends = s->step.phase == TREK_STEP_SENDING;
    if (sends && s->local_ranks == 1) {
        watch.complete = trek_reducer_complete;
        watch.arg = trek_overlap_of(s, 0);
    } else if (sends) {
        watch.complete = complete_on_tape;
        watch.arg = s;
    }
    const trek_split_watch **present = trek_ranks_split_watch(s->ranks), *outer = *present;
    *present = sends && s->local_ranks > 1 ? &ranks : NULL;
    trek_status status = trek_backward_watched(&loss, &seed, 1, NULL, &watch);
    *present = outer;
    return status;
}

/* --- when more gradients follow those that were sent ---------------------------------------- */

static trek_status finish_rank(int rank, void *arg) { return trek_comm_finish(comm_of(arg, rank)); }

trek_status trek_overlap_finish(ranks_stepper *s)
{
    return s->step.phase == TREK_STEP_SENT ? trek_ranks_call(s->ranks, finish_rank, s) : TREK_OK;
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
    ranks_stepper *s = arg;
    trek_arena *arena = s->replicas[rank].arena;
    if (rank == 0 && s->process == 0)
        return claim(arena);
    for (int k = 0; k < arena->n_segments; k++)
        trek_arena_zero_segment(arena, k);
    return TREK_OK;
}

/* Each sharer has a part of the sum. */
static trek_status keep_part(int rank, void *arg)
{
    trek_arena *arena = ((ranks_stepper *)arg)->replicas[rank].arena;
    trek_status status = trek_arena_zero_others(arena);
    return status == TREK_OK ? claim(arena) : status;
}

/* The sum must count once: it stays with the first rank of process 0, or where it was scattered to. */
trek_status trek_overlap_keep(ranks_stepper *s)
{
    bool in_parts = s->step.phase == TREK_STEP_SENT && s->sharers > 1;
    trek_status status = trek_overlap_finish(s);
    if (s->step.phase == TREK_STEP_SENT) {
        trek_step_folded(&s->step);
        if (status == TREK_OK)
            status = trek_ranks_apply_grad_factor(s);
    }
    if (status != TREK_OK || s->step.phase != TREK_STEP_FOLDED)
        return status;
    trek_step_accumulates(&s->step);
    if (in_parts)
        return trek_ranks_call(s->ranks, keep_part, s);
    return s->process > 0 || s->overlaps ? trek_ranks_call(s->ranks, keep_rank, s) : TREK_OK;
}
