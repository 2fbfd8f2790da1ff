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

/* Divided sums have memory only where a rank keeps them. */
static trek_tensor *make_digits(const trek_arena *arena, int p, trek_comm *comm)
{
    trek_shape shape = trek_dims(arena->parts[p].count);
    return arena->parts[p].pages ? trek_pages_zeros(shape, TREK_I64, arena->device)
        : trek_comm_zeros(comm, shape, TREK_I64, arena->device);
}

/* Bins lie in pages with them, so that they can be lent, too. */
static trek_tensor *make_bins(const trek_arena *arena, int p)
{
    trek_shape shape = trek_dims(blocks_of(arena, p));
    trek_tensor *bins = arena->parts[p].pages ? trek_pages_zeros(shape, TREK_I32, arena->device)
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
        status = trek_grain_device_sums_make(s, rank);
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

/* --- sums that the ranks of other processes add to --- */

/* Returns the number of the first piece that a rank lends of a part: its digits, and then its bins. */
static int first_piece(const trek_arena *arena, int part)
{
    int k = 0;
    for (int p = 0; p < part; p++)
        k += trek_binned_digits(arena->parts[p].wide) + 1;
    return k;
}

static trek_binned lent_sums(const trek_grains *g, const trek_arena *arena, int sharer, int part)
{
    int digits = trek_binned_digits(arena->parts[part].wide), first = first_piece(arena, part);
    trek_binned sums = { .dtype = arena->parts[part].wide, .count = arena->parts[part].count };
    for (int k = 0; k < digits; k++)
        sums.digits[k] = (int64_t *)(void *)trek_lent_memory(g->lent, sharer, first + k);
    sums.bins = (int32_t *)(void *)trek_lent_memory(g->lent, sharer, first + digits);
    return sums;
}

/* Adds elements [begin, end) of a part, whole blocks, which begin at `data`, to the sums of a rank of this machine. */
static trek_status add_here(const trek_step *s, int sharer, const trek_bucket_piece *piece, int part, char *data, bool zero)
{
    trek_grains *g = s->grains;
    const trek_arena *arena = s->team->replicas[0].arena;
    trek_binned sums = g->lent ? lent_sums(g, arena, sharer, part) : g->sums[sharer].parts[part];
    char *first = data - (size_t)piece->begin * trek_dtype_size(sums.dtype);
    trek_status status = TREK_OK;
    if (g->lent)
        status = trek_lent_lock(g->lent, sharer);
    else
        trek_lock_acquire(&g->sums[sharer].lock);
    if (status != TREK_OK)
        return status;
    arena->backend->binned_add(&sums, (void *[]){ first }, 1, piece->begin / TREK_BINNED_BLOCK,
                               trek_binned_blocks(piece->end - piece->begin), zero);
    if (g->lent)
        trek_lent_unlock(g->lent, sharer);
    else
        trek_lock_release(&g->sums[sharer].lock);
    return TREK_OK;
}

/* Takes gradients of a part that a rank of another machine has given: k is the part, and offset is among its gradients. */
static bool take(void *arg, int rank, int k, uint64_t offset, void *data, uint64_t bytes)
{
    trek_step *s = arg;
    const trek_arena *arena = s->team->replicas[0].arena;
    if (k < 0 || k >= arena->n_parts)
        return false;
    uint64_t size = trek_dtype_size(arena->parts[k].wide), block = TREK_BINNED_BLOCK * size;
    uint64_t all = (uint64_t)trek_binned_blocks(arena->parts[k].count) * block;
    if (offset % block != 0 || bytes % block != 0 || offset > all || bytes > all - offset)
        return false;
    trek_bucket_piece piece = { .begin = (int64_t)(offset / size), .end = (int64_t)((offset + bytes) / size) };
    return add_here(s, s->team->replicas[rank].arena->sharer, &piece, k, data, false) == TREK_OK;
}

trek_status trek_grain_sums_lend(trek_step *s)
{
    trek_grains *g = s->grains;
    if (!s->team->divides_grads || s->job.processes == 1)
        return TREK_OK;
    const trek_arena *arena = s->team->replicas[0].arena;
    int n = first_piece(arena, arena->n_parts), at = 0;
    trek_pages **pages = trek_calloc((size_t)(s->team->local_ranks * n), sizeof(trek_pages *));
    for (int r = 0; r < s->team->local_ranks && pages; r++)
        for (int p = 0; p < arena->n_parts; p++) {
            for (int k = 0; k < trek_binned_digits(arena->parts[p].wide); k++)
                pages[at++] = trek_pages_of(g->sums[r].digits[p][k]);
            pages[at++] = trek_pages_of(g->sums[r].bins[p]);
        }
    trek_status status = trek_replica_agree(s->job.comm, pages ? TREK_OK : TREK_ERR_MEMORY, "trainer_setup: .shard");
    if (status == TREK_OK)
        status = trek_replica_agree(s->job.comm, trek_lent_new(s->job.comm, &(trek_lent_opts){ pages, s->team->local_ranks, n,
                                                                                             "gradients", take, s }, &g->lent),
                                    "trainer_setup: .shard");
    if (status != TREK_OK)
        trek_lent_free(&g->lent);
    trek_free(pages);
    return status;
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

/* Adds elements of a part, which lie in the arena of a rank, to the sums of one of those who keep them. */
static trek_status add_to(const trek_grain_bucket *on, int sharer, const trek_bucket_piece *piece, int part, bool zero)
{
    const trek_step *s = on->s;
    const trek_arena *arena = s->team->replicas[on->rank].arena;
    size_t size = trek_dtype_size(arena->parts[part].wide), at = (size_t)piece->begin * size;
    char *data = arena->parts[part].grads->data + at;
    if (!s->grains->lent || trek_lent_memory(s->grains->lent, sharer, 0))
        return add_here(s, sharer, piece, part, data, zero);
    int64_t count = trek_binned_blocks(piece->end - piece->begin) * TREK_BINNED_BLOCK;
    return trek_lent_give(s->grains->lent, &(trek_lent_piece){ on->rank, sharer, part, at, (size_t)count * size }, data);
}

static bool keeps(const trek_bucket_piece *piece, int sharer) { return piece->owner == sharer || piece->second == sharer; }

/* Adds elements [begin, end) of a part, whole blocks, to the sums of those who keep them. Ranks begin with different ones. What
 * two keep is added to the sums of both. */
static trek_status add_to_owners(const trek_grain_bucket *on, int part, int64_t begin, int64_t end)
{
    const rank_replica *own = &on->s->team->replicas[on->rank];
    int sharers = own->arena->sharers;
    trek_bucket_piece piece;
    trek_status status = TREK_OK;
    for (int k = 0; k < sharers && status == TREK_OK; k++)
        for (int64_t at = begin; status == TREK_OK && trek_buckets_next_piece(&own->reducer->buckets, sharers, part, &at, end,
                                                                              &piece);)
            if (keeps(&piece, (own->arena->sharer + k) % sharers))
                status = add_to(on, (own->arena->sharer + k) % sharers, &piece, part, !own->arena->twice);
    if (own->arena->twice) {
        size_t size = trek_dtype_size(own->arena->parts[part].wide);
        memset(own->arena->parts[part].grads->data + (size_t)begin * size, 0, (size_t)(end - begin) * size);
    }
    return status;
}

void trek_grain_sums_add_bucket(const trek_bucket *bucket, void *on)
{
    const trek_grain_bucket *x = on;
    const trek_arena *arena = x->s->team->replicas[x->rank].arena;
    int64_t start = trek_trace_enter("sum grain");
    for (int k = bucket->first; k < bucket->end; k++) {
        const trek_arena_segment *segment = &arena->segments[k];
        int64_t begin = segment->offset, end = trek_arena_slot_end(segment->offset + segment->count);
        begin = begin > bucket->begin ? begin : bucket->begin;
        end = end < bucket->begin + bucket->count ? end : bucket->begin + bucket->count;
        if (segment->param->leaf->has_grad && begin < end && trek_error_status() == TREK_OK)
            add_to_owners(x, segment->part, begin, end);
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

/* The rank's own, whose sums it has itself. They are empty afterwards: others may add to them as soon as all have read theirs. */
static void read_own(trek_step *s, int rank)
{
    const rank_replica *own = &s->team->replicas[rank];
    const trek_arena *arena = own->arena;
    trek_bucket_piece piece;
    for (int k = 0; k < arena->n_cuts; k++) {
        const trek_arena_cut *cut = &arena->cuts[k];
        arena->backend->binned_read(&s->grains->sums[rank].parts[cut->part], s->grains->factor,
                                    arena->parts[cut->part].grads->data,
                                    cut->begin / TREK_BINNED_BLOCK, trek_binned_blocks(cut->end - cut->begin));
        for (int64_t at = cut->begin; /* what another one keeps, too, is digested once */
             trek_buckets_next_piece(&own->reducer->buckets, arena->sharers, cut->part, &at, cut->end, &piece);)
            if (piece.owner == arena->sharer)
                trek_digests_read(s, rank, cut->part, piece.begin, piece.end);
    }
    trek_grain_sums_clear(&s->grains->sums[rank]);
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
    if (!s->team->on_host)
        return trek_grain_device_sums_read(s, rank);
    if (rank == 0)
        s->grains->broken = true;
    if (!trek_grain_sums_alone(s))
        trek_grain_sums_settle(&s->grains->sums[rank], s->team->replicas[rank].arena); /* those of a process that was alone */
    if (s->team->divides_grads)
        read_own(s, rank);
    else
        merge_slice(s, rank);
    if (s->team->divides_grads) {
        status = trek_comm_barrier(trek_step_carrier(s, rank));
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
