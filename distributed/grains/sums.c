/* SPDX-License-Identifier: Apache-2.0 */
/* The sums of gradients: one for each part of each rank's arena. At the end of a step each rank of a process adds one
 * slice of all its ranks' sums to those of rank 0; rank 0 sums them over the processes; and each rank turns its slice of the
 * result into gradients, in the arena that all share, or in all arenas. */
#include <string.h>

#include "autograd/var_internal.h"
#include "distributed/grains/digests.h"
#include "distributed/job/agreement.h"
#include "distributed/job/survival.h"
#include "distributed/team/step.h"
#include "tensor/memory_internal.h"
#include "tensor/trace.h"

static int64_t blocks_of(const trek_arena *arena, int part) { return trek_binned_blocks(arena->parts[part].count); }

/* --- beginning and end --- */

static trek_status make_part(trek_grain_sums *sums, const trek_arena *arena, int p, trek_comm *comm)
{
    trek_binned *part = &sums->parts[p];
    *part = (trek_binned){ .dtype = arena->parts[p].wide, .count = arena->parts[p].count };
    trek_tensor *bins = sums->bins[p] = trek_tensor_zeros(trek_dims(blocks_of(arena, p)), TREK_I32, arena->device);
    if (!bins)
        return trek_error_status();
    part->bins = (int32_t *)(void *)bins->data;
    for (int k = 0; k < trek_binned_digits(part->dtype); k++) {
        trek_tensor *digits = sums->digits[p][k] = trek_comm_zeros(comm, trek_dims(part->count), TREK_I64, arena->device);
        if (!digits)
            return trek_error_status();
        part->digits[k] = (int64_t *)(void *)digits->data;
    }
    return TREK_OK;
}

/* Only rank 0's sums are reduced with those of other processes. */
static trek_status make_rank(int rank, void *arg)
{
    trek_step *s = arg;
    trek_grain_sums *sums = &s->grains->sums[rank];
    const trek_arena *arena = s->team->replicas[rank].arena;
    sums->has = trek_calloc((size_t)arena->n_segments + 1, sizeof *sums->has);
    trek_status status = sums->has ? TREK_OK : TREK_ERR_MEMORY;
    for (int p = 0; p < arena->n_parts && status == TREK_OK; p++)
        status = make_part(sums, arena, p, rank == 0 ? s->job.comm : NULL);
    if (status == TREK_OK)
        trek_grain_sums_clear(sums);
    if (status == TREK_OK && !s->team->on_host)
        status = trek_grain_device_sums_make(s, rank);
    return status == TREK_OK ? trek_error_status() : status;
}

trek_status trek_grain_sums_make(trek_step *s)
{
    s->grains->sums = trek_calloc((size_t)s->team->local_ranks, sizeof *s->grains->sums);
    if (!s->grains->sums)
        return TREK_ERR_MEMORY;
    trek_status status = trek_ranks_call(s->team->ranks, make_rank, s);
    return status == TREK_OK && s->team->on_host && trek_job_has_others(&s->job) ? trek_grain_exchange_make(s) : status;
}

void trek_grain_sums_free(trek_step *s)
{
    trek_grains *g = s->grains;
    for (int r = 0; g->sums && r < s->team->local_ranks; r++)
        for (int p = 0; p < TREK_DTYPE_COUNT; p++) {
            trek_tensor_release(g->sums[r].bins[p]);
            for (int k = 0; k < TREK_BINNED_DIGITS; k++)
                trek_tensor_release(g->sums[r].digits[p][k]);
        }
    for (int r = 0; g->sums && r < s->team->local_ranks; r++) {
        trek_free(g->sums[r].has);
        trek_tensor_release(g->sums[r].all_bins);
        for (int k = 0; k < TREK_BINNED_DIGITS; k++)
            trek_tensor_release(g->sums[r].piece[k]);
    }
    trek_grain_exchange_free(g);
    trek_free(g->sums);
    g->sums = NULL;
}

void trek_grain_sums_clear(trek_grain_sums *sums)
{
    for (int p = 0; p < TREK_DTYPE_COUNT; p++) {
        trek_op_call fill = { .op = &trek_ops[TREK_OP_fill], .attrs = { .f = { TREK_BINNED_EMPTY } }, .n_outputs = 1,
                              .outputs = { sums->bins[p] } };
        if (sums->bins[p])
            trek_op_run(&fill);
    }
}

/* --- a grain --- */

void trek_grain_sums_open(trek_grain_sums *sums, const trek_arena *arena)
{
    for (int k = 0; k < arena->n_segments; k++) {
        trek_leaf *leaf = arena->segments[k].param->leaf;
        sums->has[k] = leaf->has_grad;
        leaf->has_grad = false;
    }
}

void trek_grain_sums_close(trek_grain_sums *sums, const trek_arena *arena)
{
    for (int k = 0; k < arena->n_segments; k++)
        arena->segments[k].param->leaf->has_grad |= sums->has[k];
}

void trek_grain_sums_add(trek_grain_sums *sums, const trek_arena *arena)
{
    int64_t start = trek_trace_enter("sum grain");
    for (int k = 0, end; k < arena->n_segments; k = end) {
        const trek_arena_segment *first = &arena->segments[k], *last = first;
        bool has = first->param->leaf->has_grad;
        for (end = k + 1; end < arena->n_segments && arena->segments[end].part == first->part &&
             arena->segments[end].param->leaf->has_grad == has; end++)
            last = &arena->segments[end];
        int64_t begin = first->offset / TREK_BINNED_BLOCK, blocks = trek_binned_blocks(last->offset + last->count) - begin;
        if (has && blocks > 0)
            arena->backend->binned_add(&sums->parts[first->part], arena->parts[first->part].grads->data, begin, blocks, true);
    }
    for (int k = 0; k < arena->n_segments; k++) {
        trek_leaf *leaf = arena->segments[k].param->leaf;
        sums->has[k] |= leaf->has_grad;
        leaf->has_grad = false;
    }
    trek_trace_end("sum grain", start, 0);
}

void trek_grain_sums_drop(trek_arena *arena)
{
    for (int k = 0; k < arena->n_segments; k++) {
        trek_leaf *leaf = arena->segments[k].param->leaf;
        if (leaf->has_grad)
            trek_arena_zero_segment(arena, k);
        leaf->has_grad = false;
    }
}

/* --- the end of a step --- */

/* Adds a slice of all ranks' sums to those of rank 0. The others are empty afterwards, so that nothing is added twice when the
 * step is made again. */
static void merge_slice(trek_step *s, int rank)
{
    const trek_arena *arena = s->team->replicas[0].arena;
    const trek_binned *others[TREK_MAX_RANKS];
    for (int p = 0; p < arena->n_parts && s->team->local_ranks > 1; p++) {
        int64_t first, blocks = trek_grain_sums_slice(s->team, rank, p, &first);
        for (int r = 1; r < s->team->local_ranks; r++)
            others[r - 1] = &s->grains->sums[r].parts[p];
        arena->backend->binned_merge(&s->grains->sums[0].parts[p], others, s->team->local_ranks - 1, first, blocks);
        for (int r = 1; r < s->team->local_ranks; r++)
            for (int64_t b = first; b < first + blocks; b++)
                s->grains->sums[r].parts[p].bins[b] = TREK_BINNED_EMPTY;
    }
}

static void read_slice(trek_step *s, int rank)
{
    const trek_arena *arena = s->team->replicas[0].arena;
    for (int p = 0; p < arena->n_parts; p++) {
        int64_t first, blocks = trek_grain_sums_slice(s->team, rank, p, &first), end = (first + blocks) * TREK_BINNED_BLOCK;
        arena->backend->binned_read(&s->grains->sums[0].parts[p], s->grains->factor, arena->parts[p].grads->data, first, blocks);
        trek_grain_spread(s, rank, p, first * TREK_BINNED_BLOCK, end < arena->parts[p].count ? end : arena->parts[p].count);
    }
}

trek_status trek_grain_sums_read(trek_step *s, int rank)
{
    trek_comm *local = trek_ranks_comm(s->team->ranks, rank);
    trek_status status = TREK_OK;
    if (!s->team->on_host)
        return trek_grain_device_sums_read(s, rank);
    if (rank == 0)
        s->grains->broken = true;
    merge_slice(s, rank);
    if (trek_job_has_others(&s->job)) {
        status = trek_comm_barrier(local);
        if (rank == 0 && status == TREK_OK)
            s->grains->broken = false; /* from here on they remain what they are */
        if (status == TREK_OK)
            status = trek_grain_exchange_read(s, rank);
    } else {
        read_slice(s, rank);
        status = trek_comm_barrier(local);
    }
    if (status != TREK_OK)
        return status;
    if (rank == 0) {
        s->grains->pending = s->grains->broken = false;
        s->grains->n_records = 0;
    }
    return TREK_OK;
}

static trek_status clear_rank(int rank, void *arg)
{
    const trek_arena *arena = ((trek_step *)arg)->team->replicas[rank].arena;
    for (int p = 0; p < arena->n_parts; p++)
        memset(arena->parts[p].grads->data, 0, (size_t)arena->parts[p].count * trek_dtype_size(arena->parts[p].wide));
    return TREK_OK;
}

trek_status trek_grains_clear_arenas(trek_step *s) { return trek_ranks_call(s->team->ranks, clear_rank, s); }
