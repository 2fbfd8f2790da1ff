/* SPDX-License-Identifier: Apache-2.0 */
/* The sums of gradients: one for each part of each rank's arena. At the end of a step each rank of a process adds one
 * slice of all its ranks' sums to those of rank 0; rank 0 sums them over the processes; and each rank turns its slice of the
 * result into gradients, in the arena that all share, or in all arenas. */
#include <string.h>

#include "autograd/var_internal.h"
#include "distributed/comm/shared/lent.h"
#include "distributed/grains/digests.h"
#include "distributed/job/agreement.h"
#include "distributed/job/survival.h"
#include "distributed/team/step.h"
#include "tensor/memory_internal.h"
#include "tensor/pages.h"
#include "tensor/trace.h"

static int64_t blocks_of(const trek_arena *arena, int part) { return trek_binned_blocks(arena->parts[part].count); }

/* --- beginning and end --- */

/* Divided sums have memory only where a rank keeps them. It is host memory, to which all ranks of all processes can add. */
static trek_tensor *make_digits(const trek_arena *arena, int p, trek_comm *comm)
{
    trek_shape shape = trek_dims(arena->parts[p].count);
    return arena->parts[p].pages ? trek_pages_zeros(shape, TREK_I64, trek_cpu(0))
        : trek_comm_zeros(comm, shape, TREK_I64, arena->device);
}

/* Bins lie in pages with them, so that they can be lent, too. */
static trek_tensor *make_bins(const trek_arena *arena, int p)
{
    trek_shape shape = trek_dims(blocks_of(arena, p));
    trek_tensor *bins = arena->parts[p].pages ? trek_pages_zeros(shape, TREK_I32, trek_cpu(0))
        : trek_tensor_zeros(shape, TREK_I32, arena->device);
    if (bins && arena->parts[p].pages)
        trek_pages_hold(trek_pages_of(bins), bins->data, (size_t)bins->numel * sizeof(int32_t));
    return bins;
}

static trek_status make_part(trek_grain_sums *sums, const trek_arena *arena, int p, trek_comm *comm)
{
    trek_binned *part = &sums->parts[p];
    *part = (trek_binned){ .dtype = arena->parts[p].wide, .count = arena->parts[p].count };
    trek_tensor *bins = sums->bins[p] = make_bins(arena, p);
    if (!bins)
        return trek_error_status();
    part->bins = (int32_t *)(void *)bins->data;
    for (int k = 0; k < trek_binned_digits(part->dtype); k++) {
        trek_tensor *digits = sums->digits[p][k] = make_digits(arena, p, comm);
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
    sums->has_lock = trek_lock_init(&sums->lock);
    trek_status status = trek_grain_slots_make(&sums->slots, arena);
    for (int p = 0; p < arena->n_parts && status == TREK_OK; p++)
        status = make_part(sums, arena, p, rank == 0 ? s->job.comm : NULL);
    if (status == TREK_OK)
        trek_grain_sums_clear(sums);
    if (status == TREK_OK)
        trek_grain_sums_hold(s, rank);
    if (status == TREK_OK && !s->team->on_host)
        status = s->team->divides_grads ? trek_grain_stage_make(s, rank) : trek_grain_device_sums_make(s, rank);
    return status == TREK_OK ? trek_error_status() : status;
}

trek_status trek_grain_sums_make(trek_step *s)
{
    s->grains->sums = trek_calloc((size_t)s->team->local_ranks, sizeof *s->grains->sums);
    if (!s->grains->sums)
        return TREK_ERR_MEMORY;
    trek_status status = trek_ranks_call(s->team->ranks, make_rank, s);
    return status == TREK_OK && trek_job_has_others(&s->job) ? trek_grain_exchange_make(s) : status;
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
        trek_grain_slots_free(&g->sums[r].slots);
        trek_grain_stage_free(&g->sums[r].stage);
        if (g->sums[r].has_lock)
            trek_lock_destroy(&g->sums[r].lock);
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
    trek_grain_sums_forget(sums);
    for (int p = 0; p < TREK_DTYPE_COUNT; p++) {
        trek_op_call fill = { .op = &trek_ops[TREK_OP_fill], .attrs = { .f = { TREK_BINNED_EMPTY } }, .n_outputs = 1,
                              .outputs = { sums->bins[p] } };
        if (sums->bins[p])
            trek_op_run(&fill);
    }
}

static trek_status lose_rank(int rank, void *arg)
{
    trek_step *s = arg;
    trek_grain_sums_clear(&s->grains->sums[rank]);
    trek_arena_zero_grads(s->team->replicas[rank].arena);
    return trek_error_status();
}

trek_status trek_grain_sums_lose(trek_step *s)
{
    trek_grains *g = s->grains;
    if (!s->team->divides_grads)
        return TREK_OK;
    trek_status status = trek_lent_free(&g->lent);
    g->n_records = 0;
    g->pending = g->broken = g->emptied = false;
    return status == TREK_OK ? trek_ranks_call(s->team->ranks, lose_rank, s) : status;
}

/* --- a bucket of a grain --- */

void trek_grain_sums_add_bucket(const trek_bucket *bucket, void *on)
{
    const trek_grain_bucket *x = on;
    const trek_arena *arena = x->s->team->replicas[x->rank].arena;
    int64_t start = trek_trace_enter("sum grain");
    if (!arena->backend->host_accessible && trek_error_status() == TREK_OK)
        trek_grain_stage_bucket(x, bucket);
    for (int k = bucket->first; k < bucket->end && arena->backend->host_accessible; k++) {
        const trek_arena_segment *segment = &arena->segments[k];
        size_t size = trek_dtype_size(arena->parts[segment->part].wide);
        int64_t begin = segment->offset, end = trek_arena_slot_end(segment->offset + segment->count);
        begin = begin > bucket->begin ? begin : bucket->begin;
        end = end < bucket->begin + bucket->count ? end : bucket->begin + bucket->count;
        if (segment->param->leaf->has_grad && begin < end && trek_error_status() == TREK_OK)
            trek_grain_sums_add_to_keepers(x, segment->part, begin, end,
                                           arena->parts[segment->part].grads->data + (size_t)begin * size, true);
    }
    trek_trace_end("sum grain", start, 0);
}

void trek_grain_sums_hold(trek_step *s, int rank)
{
    const trek_arena *arena = s->team->replicas[rank].arena;
    for (int p = 0; p < arena->n_parts; p++)
        for (int k = 0; k < TREK_BINNED_DIGITS; k++) {
            trek_tensor *digits = s->grains->sums[rank].digits[p][k];
            trek_pages *pages = digits ? trek_pages_of(digits) : NULL;
            if (!pages)
                continue;
            trek_pages_release_holds(pages);
            trek_pages_give_back(pages, digits->data, (size_t)digits->numel * sizeof(int64_t));
            for (int c = 0; c < arena->n_cuts; c++)
                if (arena->cuts[c].part == p)
                    trek_pages_hold(pages, (int64_t *)(void *)digits->data + arena->cuts[c].begin,
                                    (size_t)(arena->cuts[c].end - arena->cuts[c].begin) * sizeof(int64_t));
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

static trek_status read_cut(trek_step *s, int rank, const trek_arena_cut *cut)
{
    const trek_arena *arena = s->team->replicas[rank].arena;
    if (!arena->backend->host_accessible)
        return trek_grain_stage_read(s, rank, cut);
    arena->backend->binned_read(&s->grains->sums[rank].parts[cut->part], s->grains->factor, arena->parts[cut->part].grads->data,
                                cut->begin / TREK_BINNED_BLOCK, trek_binned_blocks(cut->end - cut->begin));
    return TREK_OK;
}

/* The rank's own, whose sums it has itself. They are empty afterwards: others may add to them as soon as all have read theirs. */
static trek_status read_own(trek_step *s, int rank)
{
    const rank_replica *own = &s->team->replicas[rank];
    const trek_arena *arena = own->arena;
    trek_bucket_piece piece;
    trek_status status = TREK_OK;
    for (int k = 0; k < arena->n_cuts && status == TREK_OK; k++) {
        const trek_arena_cut *cut = &arena->cuts[k];
        status = read_cut(s, rank, cut);
        for (int64_t at = cut->begin; /* what another one keeps, too, is digested once */
             trek_buckets_next_piece(&own->reducer->buckets, arena->sharers, cut->part, &at, cut->end, &piece);)
            if (piece.owner == arena->sharer)
                trek_digests_read(s, rank, cut->part, piece.begin, piece.end);
    }
    trek_grain_sums_clear(&s->grains->sums[rank]);
    if (status == TREK_OK)
        status = trek_digests_fetch(s, rank);
    status = status == TREK_OK ? trek_error_status() : status;
    if (status != TREK_OK) /* on a GPU; the others are about to wait */
        trek_comm_abort(trek_step_carrier(s, rank), "a rank cannot read the sums of its gradients");
    return status;
}

bool trek_grain_sums_alone(const trek_step *s)
{
    return s->team->on_host && s->team->local_ranks == 1 && !s->team->divides_grads && !trek_job_has_others(&s->job);
}

/* Does it where there is one rank. */
static trek_status read_alone(trek_step *s)
{
    const trek_arena *arena = s->team->replicas[0].arena;
    trek_status status = TREK_OK;
    for (int p = 0; p < arena->n_parts && status == TREK_OK; p++) {
        status = trek_grain_sums_read_part(&s->grains->sums[0], arena, p, s->grains->factor);
        trek_grain_spread(s, 0, p, 0, arena->parts[p].count);
    }
    return status;
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
    if (!s->team->on_host && !s->team->divides_grads)
        return trek_grain_device_sums_read(s, rank);
    if (rank == 0)
        s->grains->broken = true;
    if (!trek_grain_sums_alone(s))
        trek_grain_sums_settle(&s->grains->sums[rank], s->team->replicas[rank].arena); /* those of a process that was alone */
    if (s->team->divides_grads)
        status = read_own(s, rank);
    else
        merge_slice(s, rank);
    if (s->team->divides_grads) {
        status = status == TREK_OK ? trek_comm_barrier(trek_step_carrier(s, rank)) : status;
    } else if (trek_job_has_others(&s->job)) {
        status = trek_comm_barrier(local);
        if (rank == 0 && status == TREK_OK)
            s->grains->broken = false; /* from here on they remain what they are */
        if (status == TREK_OK)
            status = trek_grain_exchange_read(s, rank);
    } else if (trek_grain_sums_alone(s)) {
        status = read_alone(s);
    } else {
        read_slice(s, rank);
        status = trek_comm_barrier(local);
    }
    if (status != TREK_OK)
        return status;
    if (rank == 0) {
        s->grains->emptied = s->team->divides_grads;
        s->grains->pending = s->grains->broken = false;
        s->grains->n_records = 0;
    }
    return TREK_OK;
}
