/* SPDX-License-Identifier: Apache-2.0 */
/* The sums of gradients: one for each part of each rank's arena. At the end of a step each rank of a process adds one
 * slice of all its ranks' sums to those of rank 0; rank 0 sums them over the processes; and each rank turns its slice of the
 * result into gradients, in the arena that all share, or in all arenas. */
#include <math.h>
#include <string.h>

#include "autograd/var_internal.h"
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
    return arena->parts[p].pages ? trek_pages_zeros(shape, TREK_I64) : trek_comm_zeros(comm, shape, TREK_I64, arena->device);
}

static trek_status make_part(trek_grain_sums *sums, const trek_arena *arena, int p, trek_comm *comm)
{
    trek_binned *part = &sums->parts[p];
    *part = (trek_binned){ .dtype = arena->parts[p].wide, .count = arena->parts[p].count };
    trek_tensor *bins = sums->bins[p] = trek_tensor_zeros(trek_dims(blocks_of(arena, p)), TREK_I32, arena->device);
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
    for (int p = 0; p < TREK_DTYPE_COUNT; p++) {
        trek_op_call fill = { .op = &trek_ops[TREK_OP_fill], .attrs = { .f = { TREK_BINNED_EMPTY } }, .n_outputs = 1,
                              .outputs = { sums->bins[p] } };
        if (sums->bins[p])
            trek_op_run(&fill);
    }
}

/* --- a bucket of a grain --- */

/* Adds elements [begin, end) of a part, whole blocks, to the sums of those who keep them. */
static void add_to_owners(const trek_grain_bucket *on, int part, int64_t begin, int64_t end)
{
    const trek_team *team = on->s->team;
    const trek_arena *arena = team->replicas[on->rank].arena;
    for (int k = 0; k < team->local_ranks; k++) {
        int owner = (on->rank + k) % team->local_ranks; /* ranks begin with different ones */
        trek_grain_sums *sums = &on->s->grains->sums[owner];
        trek_arena_cut piece;
        for (int64_t at = begin; trek_arena_next_own(team->replicas[owner].arena, part, &at, end, &piece);) {
            trek_lock_acquire(&sums->lock);
            arena->backend->binned_add(&sums->parts[part], (void *[]){ arena->parts[part].grads->data }, 1,
                                       piece.begin / TREK_BINNED_BLOCK, trek_binned_blocks(piece.end - piece.begin), true);
            trek_lock_release(&sums->lock);
        }
    }
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
        if (segment->param->leaf->has_grad && begin < end)
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

/* The rank's own, whose sums it has itself. */
static void read_own(trek_step *s, int rank)
{
    const trek_arena *arena = s->team->replicas[rank].arena;
    for (int k = 0; k < arena->n_cuts; k++) {
        const trek_arena_cut *cut = &arena->cuts[k];
        arena->backend->binned_read(&s->grains->sums[rank].parts[cut->part], s->grains->factor,
                                    arena->parts[cut->part].grads->data,
                                    cut->begin / TREK_BINNED_BLOCK, trek_binned_blocks(cut->end - cut->begin));
        trek_digests_read(s, rank, cut->part, cut->begin, cut->end);
    }
}

/* Copies elements [begin, end) of a part from those who keep them; what nobody keeps is padding. */
static void collect(const trek_team *team, int part, int64_t begin, int64_t end, void *to)
{
    size_t size = trek_dtype_size(team->replicas[0].arena->parts[part].wide);
    memset(to, 0, (size_t)(end - begin) * size);
    for (int r = 0; r < team->local_ranks; r++) {
        const trek_arena *arena = team->replicas[r].arena;
        trek_arena_cut piece;
        for (int64_t at = begin; trek_arena_next_own(arena, part, &at, end, &piece);)
            memcpy((char *)to + (size_t)(piece.begin - begin) * size,
                   arena->parts[part].grads->data + (size_t)piece.begin * size, (size_t)(piece.end - piece.begin) * size);
    }
}

/* Each rank computes some chunks of the undivided gradient. */
trek_status trek_grain_sums_squares(trek_step *s, int rank, double *sum)
{
    double chunk[TREK_CHUNK];
    trek_team *team = s->team;
    int first = (int)((int64_t)team->n_chunks * rank / team->local_ranks),
        end = (int)((int64_t)team->n_chunks * (rank + 1) / team->local_ranks);
    for (int k = first; k < end; k++) {
        const trek_reduce_chunk *of = &team->chunks[k];
        bool finite;
        collect(team, of->part, of->begin, of->end, chunk);
        team->replicas[rank].arena->backend->sum_squares(team->replicas[0].arena->parts[of->part].wide, chunk,
                                                         of->end - of->begin,
                                                         &team->sums[k], &finite);
        if (!finite)
            team->sums[k] = NAN;
    }
    trek_status status = trek_comm_barrier(trek_ranks_comm(team->ranks, rank));
    *sum = 0;
    for (int k = 0; k < team->n_chunks && status == TREK_OK; k++)
        *sum += team->sums[k];
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
    if (s->team->divides_grads)
        read_own(s, rank);
    else
        merge_slice(s, rank);
    if (s->team->divides_grads) {
        status = trek_comm_barrier(local);
    } else if (trek_job_has_others(&s->job)) {
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
