/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of gradients over processes with memory of the host. A part goes in pieces. Each process gets the sums of its slice of a
 * piece, turns them into gradients, and gives these to the others. So every sum is sent once and read once, and gradients have a
 * quarter or half of its size.
 *
 * The sums of a process remain what they are until its step has been made: those of all processes are formed in other memory.
 * So a process that dies meanwhile destroys nothing, and the others begin again.
 *
 * Processes that share memory read each other's digits where they are. Otherwise the digits of f32 are sent as one integer for
 * each element, wherever this is possible for a block: the processes tell each other where their bits begin and end. */
#include <string.h>

#include "distributed/comm/comm_internal.h"
#include "distributed/grains/digests.h"
#include "distributed/job/agreement.h"
#include "distributed/job/survival.h"
#include "distributed/team/step.h"
#include "tensor/memory_internal.h"
#include "tensor/trace.h"

#define BLOCK TREK_BINNED_BLOCK

/* Blocks [first, first + blocks) of a part, and the process's sums of them. If it is scattered, each process gets the sums of an
 * equal slice of these blocks; otherwise all get all. */
typedef struct piece {
    trek_step *s;
    trek_grain_exchange *x;
    const trek_arena *arena;
    const trek_binned *own;
    trek_binned_bounds bounds;
    int part;
    int64_t first, blocks, count;
    bool scattered, shortened;
    trek_binned sums;        /* what this process gets, from block `got` of the part on */
    int64_t got;
} piece;

/* --- room --- */

/* The same in all processes of the group, which may be another one than at set-up. */
static bool shortens(const trek_comm *comm, trek_dtype dtype)
{
    return !comm->engine->alloc && dtype == TREK_F32 && trek_comm_world_size(comm) > 1;
}

trek_status trek_grain_exchange_make(trek_step *s)
{
    const trek_arena *arena = s->team->replicas[0].arena;
    trek_grain_exchange *x = &s->grains->exchange;
    int64_t most = 0;
    if (!s->team->on_host || s->team->divides_grads || x->sent)
        return TREK_OK;
    for (int p = 0; p < arena->n_parts; p++)
        most = arena->parts[p].count > most ? arena->parts[p].count : most;
    x->bounds = trek_calloc(3 * (size_t)trek_binned_blocks(most), sizeof *x->bounds);
    if (!x->bounds)
        return TREK_ERR_MEMORY;
    most = most < s->grains->piece ? most : s->grains->piece;
    for (int k = 0; k < TREK_BINNED_DIGITS; k++)
        if (!(x->sums[k] = trek_tensor_zeros(trek_dims(most), TREK_I64, trek_cpu(0))))
            return trek_error_status();
    x->sent = trek_tensor_zeros(trek_dims(most), TREK_I64, trek_cpu(0));
    return x->sent ? TREK_OK : trek_error_status();
}

void trek_grain_exchange_free(trek_grains *grains)
{
    trek_grain_exchange *x = &grains->exchange;
    trek_free(x->bounds);
    for (int k = 0; k < TREK_BINNED_DIGITS; k++)
        trek_tensor_release(x->sums[k]);
    trek_tensor_release(x->sent);
    *x = (trek_grain_exchange){ 0 };
}

/* --- what rank 0 does --- */

/* Gives the blocks of the process's sums the bins that they have in all processes, which changes no sum, and finds the bounds of
 * the sums to be sent. */
static trek_status share_bounds(trek_step *s, int p)
{
    const trek_binned *own = &s->grains->sums[0].parts[p];
    const trek_backend *backend = s->team->replicas[0].arena->backend;
    int64_t blocks = trek_binned_blocks(own->count);
    int32_t *bounds = s->grains->exchange.bounds;
    bool shortened = shortens(s->job.comm, own->dtype);
    memcpy(bounds, own->bins, (size_t)blocks * sizeof *bounds);
    if (shortened)
        backend->binned_bounds(own, bounds + blocks, bounds + 2 * blocks);
    trek_status status = trek_comm_run(s->job.comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_MAX,
                                                                  .dtype = TREK_I32, .count = shortened ? 3 * blocks : blocks,
                                                                  .in = bounds, .out = bounds });
    if (status == TREK_OK)
        backend->binned_raise(own, bounds);
    return status;
}

static trek_status add(const piece *c, bool scattered, int64_t count, const int64_t *in, int64_t *out)
{
    return trek_comm_run(c->s->job.comm, (trek_comm_call){ .kind = scattered ? TREK_COMM_REDUCE_SCATTER : TREK_COMM_ALL_REDUCE,
                                                           .op = TREK_REDUCTION_SUM, .dtype = TREK_I64, .in = in, .out = out,
                                                           .count = scattered ? count / c->s->job.processes : count });
}

/* Of blocks whose sums do not fit into one integer, all processes get the lower digits. They are few. */
static trek_status add_others(const piece *c)
{
    int64_t *low = c->sums.digits[2], n = 0; /* f32 has no third digit: the room is free */
    for (int64_t b = c->first; b < c->first + c->blocks; b++) {
        int64_t count = (b + 1) * BLOCK < c->own->count ? BLOCK : c->own->count - b * BLOCK;
        if (c->bounds.bins[b] == TREK_BINNED_EMPTY || trek_binned_fits(&c->bounds, b))
            continue;
        memcpy(low + n, c->own->digits[1] + b * BLOCK, (size_t)count * sizeof *low);
        n += count;
    }
    trek_status status = n > 0 ? add(c, false, n, low, low) : TREK_OK;
    int64_t end = c->got + trek_binned_blocks(c->sums.count);
    for (int64_t b = c->first; b < c->first + c->blocks && n > 0 && status == TREK_OK; b++) {
        int64_t count = (b + 1) * BLOCK < c->own->count ? BLOCK : c->own->count - b * BLOCK;
        if (c->bounds.bins[b] == TREK_BINNED_EMPTY || trek_binned_fits(&c->bounds, b))
            continue;
        if (b >= c->got && b < end)
            memcpy(c->sums.digits[1] + (b - c->got) * BLOCK, low, (size_t)count * sizeof *low);
        low += count;
    }
    return status;
}

static trek_status add_piece(const piece *c)
{
    int64_t begin = c->first * BLOCK, *sent = NULL, got_blocks = trek_binned_blocks(c->sums.count);
    trek_status status = TREK_OK;
    if (!c->shortened) {
        for (int k = 0; k < trek_binned_digits(c->own->dtype) && status == TREK_OK; k++)
            status = add(c, c->scattered, c->count, c->own->digits[k] + begin, c->sums.digits[k]);
        return status;
    }
    sent = (int64_t *)(void *)c->x->sent->data;
    c->arena->backend->binned_shorten(c->own, &c->bounds, c->first, c->blocks, sent);
    int64_t *to = c->scattered ? c->sums.digits[0] : sent;
    status = add(c, c->scattered, c->count, sent, to);
    if (status != TREK_OK)
        return status;
    trek_binned_bounds bounds = { c->bounds.bins + c->got, c->bounds.tops + c->got, c->bounds.lows + c->got, c->bounds.ranks };
    c->arena->backend->binned_expand(&c->sums, &bounds, 0, got_blocks, to);
    return add_others(c);
}

/* Gives the gradients of the process's slice to the others, and gets theirs. */
static trek_status gather(const piece *c)
{
    size_t size = trek_dtype_size(c->own->dtype);
    char *grads = c->arena->parts[c->part].grads->data;
    return trek_comm_run(c->s->job.comm, (trek_comm_call){ .kind = TREK_COMM_ALL_GATHER, .dtype = c->own->dtype,
                                                           .count = c->sums.count,
                                                           .in = grads + (size_t)(c->got * BLOCK) * size,
                                                           .out = grads + (size_t)(c->first * BLOCK) * size });
}

/* --- what all ranks of the process do --- */

static piece piece_at(trek_step *s, int p, int64_t first, int64_t blocks, bool scattered)
{
    trek_grain_exchange *x = &s->grains->exchange;
    const trek_binned *own = &s->grains->sums[0].parts[p];
    int64_t all = trek_binned_blocks(own->count), slice = scattered ? blocks / s->job.processes : blocks;
    int64_t end = (first + blocks) * BLOCK < own->count ? (first + blocks) * BLOCK : own->count;
    piece c = { .s = s, .x = x, .arena = s->team->replicas[0].arena, .own = own, .part = p, .first = first, .blocks = blocks,
                .count = end - first * BLOCK, .scattered = scattered, .shortened = shortens(s->job.comm, own->dtype),
                .bounds = { x->bounds, x->bounds + all, x->bounds + 2 * all, s->job.processes },
                .got = first + (scattered ? slice * s->job.process : 0) };
    c.sums = (trek_binned){ .dtype = own->dtype, .count = scattered ? slice * BLOCK : c.count, .bins = own->bins + c.got };
    for (int k = 0; k < TREK_BINNED_DIGITS; k++)
        c.sums.digits[k] = (int64_t *)(void *)x->sums[k]->data;
    return c;
}

void trek_grain_spread(trek_step *s, int rank, int part, int64_t begin, int64_t end)
{
    size_t size = trek_dtype_size(s->grains->sums[0].parts[part].dtype);
    const char *grads = s->team->replicas[0].arena->parts[part].grads->data;
    for (int r = 1; r < s->team->local_ranks && !s->team->shared && begin < end; r++)
        memcpy(s->team->replicas[r].arena->parts[part].grads->data + (size_t)begin * size, grads + (size_t)begin * size,
               (size_t)(end - begin) * size);
    trek_digests_read(s, rank, part, begin, end);
}

/* Sums blocks of a part over the processes, and turns them into gradients. */
static trek_status read_piece(const piece *c, int rank)
{
    trek_comm *local = trek_ranks_comm(c->s->team->ranks, rank);
    size_t size = trek_dtype_size(c->own->dtype);
    int ranks = c->s->team->local_ranks;
    int64_t blocks = trek_binned_blocks(c->sums.count), from = blocks * rank / ranks, to = blocks * (rank + 1) / ranks;
    trek_status status = trek_replica_agree(local, rank == 0 ? add_piece(c) : TREK_OK, "step");
    if (status != TREK_OK)
        return status;
    c->arena->backend->binned_read(&c->sums, c->s->grains->factor,
                                   c->arena->parts[c->part].grads->data + (size_t)(c->got * BLOCK) * size, from, to - from);
    status = trek_comm_barrier(local); /* now the memory may be used again, and the gradients are complete */
    if (status == TREK_OK && c->scattered)
        status = trek_replica_agree(local, rank == 0 ? gather(c) : TREK_OK, "step");
    int64_t begin = (c->first + c->blocks * rank / ranks) * BLOCK, end = (c->first + c->blocks * (rank + 1) / ranks) * BLOCK;
    if (status == TREK_OK)
        trek_grain_spread(c->s, rank, c->part, begin, end < c->own->count ? end : c->own->count);
    return status;
}

/* What cannot be divided into equal slices of whole blocks is less than a block for each process; all get its sums. */
static trek_status read_part(trek_step *s, int rank, int p)
{
    const trek_binned *own = &s->grains->sums[0].parts[p];
    int64_t whole = own->count / BLOCK, blocks = trek_binned_blocks(own->count), most = s->grains->piece / BLOCK, n;
    trek_comm *local = trek_ranks_comm(s->team->ranks, rank);
    trek_status status = trek_replica_agree(local, rank == 0 ? share_bounds(s, p) : TREK_OK, "step");
    for (int64_t first = 0; first < blocks && status == TREK_OK; first += n) {
        n = whole - first < most ? whole - first : most;
        n -= n % s->job.processes;
        bool scattered = n > 0;
        if (!scattered)
            n = blocks - first < most ? blocks - first : most;
        piece c = piece_at(s, p, first, n, scattered);
        status = read_piece(&c, rank);
    }
    return status;
}

trek_status trek_grain_exchange_read(trek_step *s, int rank)
{
    trek_comm *local = trek_ranks_comm(s->team->ranks, rank);
    int64_t start = trek_trace_enter("reduce processes");
    trek_status status = TREK_OK;
    for (int p = 0; p < s->team->replicas[0].arena->n_parts && status == TREK_OK; p++)
        status = read_part(s, rank, p);
    if (status == TREK_OK) /* all have the whole gradient */
        status = trek_replica_agree(local, rank == 0 ? trek_survival_commit(&s->job) : TREK_OK,
                                    "step");
    trek_trace_end("reduce processes", start, s->team->graph->settings.steps);
    return status;
}
