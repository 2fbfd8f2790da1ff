/* SPDX-License-Identifier: Apache-2.0 */
/* The sum of squares of divided gradients, with the bits that it has if they are not divided. The gradient is cut into the same
 * chunks, and the squares of the chunks are added in the same order. A rank that has all of a chunk computes its squares. Other
 * chunks are put together by all ranks, some at a time: each rank adds what it has to zeros, which is exact. */
#include <math.h>
#include <string.h>

#include "distributed/grains/grains.h"
#include "distributed/team/step.h"
#include "tensor/memory_internal.h"

/* How many chunks are put together at a time. */
enum { AT_ONCE = 16 };

typedef struct squares {
    trek_step *s;
    rank_replica *own;
    trek_comm *comm;
    double *sums;            /* [chunks] */
    char *room;              /* [AT_ONCE * TREK_CHUNK] elements, of all dtypes; NULL: no chunk had to be put together yet */
    int chunks[AT_ONCE], n;  /* which are in it, all of one part */
} squares;

int trek_grain_squares_owner(const trek_step *s, const rank_replica *own, int part, int64_t begin, int64_t end)
{
    trek_bucket_piece piece;
    int owner = -2;
    for (int64_t at = begin; trek_buckets_next_piece(&own->reducer->buckets, s->team->sharers, part, &at, end, &piece);)
        owner = owner == -2 || owner == piece.owner ? piece.owner : -1;
    return owner == -2 ? own->arena->sharer : owner; /* padding, which is zeros for all */
}

static void measure(const squares *q, int k, const void *data)
{
    const trek_reduce_chunk *chunk = &q->s->team->chunks[k];
    bool finite;
    q->own->arena->backend->sum_squares(q->own->arena->device, q->own->arena->parts[chunk->part].wide, data,
                                        chunk->end - chunk->begin, &q->sums[k],
                                        &finite);
    if (!finite)
        q->sums[k] = NAN;
}

/* Puts the chunks in the room together, and divides them among the ranks. */
static trek_status join(squares *q)
{
    if (q->n == 0)
        return TREK_OK;
    trek_dtype dtype = q->own->arena->parts[q->s->team->chunks[q->chunks[0]].part].wide;
    trek_status status = trek_comm_run(q->comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM,
                                                                  .dtype = dtype, .count = q->n * TREK_CHUNK, .in = q->room,
                                                                  .out = q->room });
    for (int k = 0; k < q->n && status == TREK_OK; k++)
        if (k % q->comm->world == q->comm->rank)
            measure(q, q->chunks[k], q->room + (size_t)k * TREK_CHUNK * trek_dtype_size(dtype));
    q->n = 0;
    return status;
}

/* Adds what the rank has of a chunk, of which others have something, too. */
static trek_status add(squares *q, int k)
{
    const trek_reduce_chunk *chunk = &q->s->team->chunks[k];
    const trek_arena *arena = q->own->arena;
    size_t size = trek_dtype_size(arena->parts[chunk->part].wide);
    trek_bucket_piece piece;
    trek_status status = TREK_OK;
    if (q->n == AT_ONCE || (q->n > 0 && q->s->team->chunks[q->chunks[0]].part != chunk->part))
        status = join(q);
    if (!q->room && !(q->room = trek_alloc((size_t)AT_ONCE * TREK_CHUNK * sizeof(double))))
        return TREK_ERR_MEMORY;
    char *to = q->room + (size_t)q->n * TREK_CHUNK * size;
    memset(to, 0, TREK_CHUNK * size);
    for (int64_t at = chunk->begin;
         trek_buckets_next_piece(&q->own->reducer->buckets, q->s->team->sharers, chunk->part, &at, chunk->end, &piece);)
        if (piece.owner == arena->sharer)
            memcpy(to + (size_t)(piece.begin - chunk->begin) * size,
                   arena->parts[chunk->part].grads->data + (size_t)piece.begin * size, (size_t)(piece.end - piece.begin) * size);
    q->chunks[q->n++] = k;
    return status;
}

static trek_status measure_all(squares *q)
{
    const trek_team *team = q->s->team;
    trek_status status = TREK_OK;
    memset(q->sums, 0, (size_t)team->n_chunks * sizeof *q->sums);
    for (int k = 0; k < team->n_chunks && status == TREK_OK; k++) {
        const trek_reduce_chunk *chunk = &team->chunks[k];
        const trek_arena_part *part = &q->own->arena->parts[chunk->part];
        int owner = trek_grain_squares_owner(q->s, q->own, chunk->part, chunk->begin, chunk->end);
        if (owner == q->own->arena->sharer)
            measure(q, k, part->grads->data + (size_t)chunk->begin * trek_dtype_size(part->wide));
        else if (owner < 0)
            status = add(q, k);
    }
    if (status == TREK_OK)
        status = join(q);
    return status == TREK_OK ? trek_comm_run(q->comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM,
                                                                        .dtype = TREK_F64, .count = team->n_chunks,
                                                                        .in = q->sums, .out = q->sums }) : status;
}

trek_status trek_grain_sums_squares(trek_step *s, int rank, double *sum)
{
    squares q = { .s = s, .own = &s->team->replicas[rank], .comm = trek_step_carrier(s, rank),
                  .sums = s->team->sums + (size_t)rank * (size_t)s->team->n_chunks };
    trek_status status = measure_all(&q);
    if (status == TREK_ERR_MEMORY) /* the others wait for it */
        trek_comm_abort(q.comm, "a rank has no memory for the squares of its gradients");
    *sum = 0;
    for (int k = 0; k < s->team->n_chunks && status == TREK_OK; k++)
        *sum += q.sums[k];
    trek_free(q.room);
    return status;
}
