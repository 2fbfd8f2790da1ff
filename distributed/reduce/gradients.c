/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients between the passes of a step: the factor that they still need, and what is put aside meanwhile. A step whose
 * passes add up without a factor does nothing of this. */
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/team/step.h"
#include "distributed/reduce/gradients.h"
#include "tensor/pages.h"

/* --- a factor ------------------------------------------------------------------------------------- */

static trek_status scale_tensor(trek_tensor *grads, double factor)
{
    trek_var *all = trek_var_from(trek_tensor_retain(grads)), *scaled = all ? trek_mul_scalar(all, factor) : NULL;
    return scaled ? trek_tensor_copy_from(grads, scaled->data) : trek_error_status();
}

/* The same where gradients have memory. */
static trek_status scale_pages(const trek_arena *arena, const trek_arena_part *part, double factor)
{
    size_t size = trek_dtype_size(part->wide), all = (size_t)part->count * size;
    trek_status status = TREK_OK;
    for (size_t begin = 0, end; status == TREK_OK && trek_pages_next(part->pages, &begin, &end); begin = end) {
        end = end < all ? end : all;
        int64_t first = (int64_t)(begin / size), n = (int64_t)((end - begin) / size);
        if (arena->backend->host_accessible) {
            arena->backend->scale(arena->device, part->wide, part->grads->data + begin, n, factor);
            continue;
        }
        trek_tensor *grads = trek_arena_stretch(part->grads, first, n);
        status = grads ? scale_tensor(grads, factor) : TREK_ERR_MEMORY;
        trek_tensor_release(grads);
    }
    return status;
}

/* Multiplies gradients by the factor, on the rank's device. */
static trek_status scale_grads(trek_arena *arena, double factor)
{
    trek_status status = TREK_OK;
    for (int p = 0; p < arena->n_parts && status == TREK_OK; p++)
        status = arena->parts[p].pages ? scale_pages(arena, &arena->parts[p], factor)
                                       : scale_tensor(arena->parts[p].grads, factor);
    return status;
}

static trek_status in_scope(trek_status (*fn)(trek_step *s, int rank), trek_step *s, int rank)
{
    trek_scope scope = trek_scope_begin();
    trek_no_grad_begin();
    trek_status status = scope.depth ? fn(s, rank) : trek_error_status();
    trek_no_grad_end();
    trek_scope_end(scope);
    return status;
}

static trek_status apply_grad_factor(trek_step *s, int rank)
{
    return scale_grads(s->team->replicas[rank].arena, s->state.factor);
}
trek_status trek_ranks_apply_grad_factor_here(int rank, void *stepper) { return in_scope(apply_grad_factor, stepper, rank); }

trek_status trek_ranks_apply_grad_factor(trek_step *s)
{
    if (s->state.factor == 1)
        return TREK_OK;
    trek_status status = trek_ranks_call(s->team->ranks, trek_ranks_apply_grad_factor_here, s);
    if (status == TREK_OK)
        s->state.factor = 1;
    return status;
}

/* --- putting aside ---------------------------------------------------------------------------------- */

/* Puts aside what earlier passes of the step have added up, because this pass will have its own factor. */
static trek_status stash(trek_step *s, int rank)
{
    rank_replica *own = &s->team->replicas[rank];
    trek_arena *arena = own->arena;
    if (!own->stashed && !(own->stashed = trek_calloc((size_t)arena->n_parts, sizeof *own->stashed)))
        return trek_error_status();
    if (!own->stashed_has && !(own->stashed_has = trek_calloc((size_t)arena->n_segments, sizeof *own->stashed_has)))
        return trek_error_status();
    trek_status status = TREK_OK;
    for (int p = 0; p < arena->n_parts && status == TREK_OK; p++) {
        trek_tensor *grads = arena->parts[p].grads;
        if (!own->stashed[p])
            own->stashed[p] = trek_tensor_make(grads->ndim, grads->sizes, (trek_dtype)grads->dtype, grads->device);
        status = own->stashed[p] ? trek_tensor_copy_from(own->stashed[p], grads) : trek_error_status();
    }
    for (int k = 0; k < arena->n_segments; k++)
        own->stashed_has[k] = arena->segments[k].param->leaf->has_grad;
    if (status == TREK_OK)
        trek_arena_zero_grads(arena);
    return status;
}

/* Computes grads = stash + factor * grads. */
static trek_status unstash(trek_step *s, int rank)
{
    rank_replica *own = &s->team->replicas[rank];
    trek_status status = TREK_OK;
    for (int p = 0; p < own->arena->n_parts && status == TREK_OK; p++) {
        trek_tensor *grads = own->arena->parts[p].grads;
        trek_var *now = trek_var_from(trek_tensor_retain(grads)), *before = trek_var_from(trek_tensor_retain(own->stashed[p]));
        trek_var *sum = now && before ? trek_add(before, s->state.factor == 1 ? now : trek_mul_scalar(now, s->state.factor))
            : NULL;
        status = sum ? trek_tensor_copy_from(grads, sum->data) : trek_error_status();
    }
    for (int k = 0; k < own->arena->n_segments; k++)
        own->arena->segments[k].param->leaf->has_grad |= own->stashed_has[k];
    return status;
}

static trek_status stash_rank(int rank, void *arg) { return in_scope(stash, arg, rank); }
static trek_status unstash_rank(int rank, void *arg) { return in_scope(unstash, arg, rank); }

trek_status trek_ranks_stash_grads(trek_step *s) { return trek_ranks_call(s->team->ranks, stash_rank, s); }

trek_status trek_ranks_unstash_grads(trek_step *s)
{
    trek_status status = trek_ranks_call(s->team->ranks, unstash_rank, s);
    s->state.factor = 1;
    return status;
}

/* --- sending them -------------------------------------------------------------------------------------------- */

/* GPUs send all of a bucket, by a library that works beside the rank's own stream, or through the host. */
trek_sending trek_ranks_giving_back(const trek_step *s, const trek_comm *comm, trek_sending how)
{
    how.gives_back = s->team->divides_grads;
    how.lags = s->team->on_host ? trek_comm_overlaps(comm) : comm->nccl != NULL;
    how.fills = !s->team->on_host || trek_comm_fills(comm);
    return how;
}

/* --- dropping them ----------------------------------------------------------------------------------------- */

static trek_status zero_rank(int rank, void *arg)
{
    trek_arena_zero_grads(((trek_step *)arg)->team->replicas[rank].arena);
    return TREK_OK;
}

trek_status trek_ranks_zero(trek_step *s) { return trek_ranks_call(s->team->ranks, zero_rank, s); }
