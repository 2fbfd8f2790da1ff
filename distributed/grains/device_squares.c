/* SPDX-License-Identifier: Apache-2.0 */
/* The sum of squares of divided gradients on GPUs, with the bits that it has if they are not divided (squares.c does this on
 * CPUs). A GPU measures gradients in chunks, and adds up what they give (trek_backend.update_norm). Here a rank that has all of a
 * chunk measures it. Other chunks are put together by all ranks, some at a time: each rank adds what it has to zeros, which is
 * exact. */
#include "autograd/var_internal.h"
#include "distributed/grains/grains.h"
#include "distributed/team/step.h"
#include "tensor/try_internal.h"

/* Chunks that are put together at a time are at most this many, and have at most so many elements, unless one has more. */
enum { MOST = 16, MOST_ELEMENTS = 1 << 20 };

typedef struct squares {
    trek_step *s;
    const rank_replica *own;
    trek_comm *comm;
    double *parts;           /* on the device */
    int64_t chunk;
    trek_tensor *room;       /* on the device, of chunks of one part; NULL: no chunk had to be put together yet */
    trek_dtype dtype;        /* of what is in it, */
    int64_t numbers[MOST];   /* which chunks these are, */
    int n, most;             /* and how many */
    trek_update_span spans[MOST]; /* the rank's own, which follow each other up to number `next` */
    int64_t next;
    int n_spans;
} squares;

/* Measures the rank's own chunks that were found last. */
static trek_status measure(squares *q)
{
    const trek_arena *arena = q->own->arena;
    int n = q->n_spans;
    q->n_spans = 0;
    return n > 0 ? arena->backend->norm_parts(arena->device, q->spans, n, q->parts + 2 * (q->next - n)) : TREK_OK;
}

static trek_status note_own(squares *q, int64_t number, trek_update_span span)
{
    if (q->n_spans == MOST || q->next != number)
        TRY(measure(q));
    q->spans[q->n_spans++] = span;
    q->next = number + 1;
    return TREK_OK;
}

static trek_status make_zeros(trek_tensor *x)
{
    trek_op_call fill = { .op = &trek_ops[TREK_OP_fill], .n_outputs = 1, .outputs = { x } };
    return trek_op_run(&fill);
}

/* Puts the chunks in the room together, and divides them among the ranks. */
static trek_status join(squares *q)
{
    const trek_arena *arena = q->own->arena;
    size_t bytes = (size_t)q->chunk * trek_dtype_size(q->dtype);
    int n = q->n;
    q->n = 0;
    if (n == 0)
        return TREK_OK;
    TRY(trek_comm_run(q->comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM, .dtype = q->dtype,
                                                 .count = n * q->chunk, .in = q->room->data, .out = q->room->data,
                                                 .on_device = true }));
    for (int k = q->comm->rank; k < n; k += q->comm->world)
        TRY(arena->backend->norm_parts(arena->device,
                                       &(trek_update_span){ q->room->data + (size_t)k * bytes, q->chunk, q->dtype }, 1,
                                       q->parts + 2 * q->numbers[k]));
    return TREK_OK;
}

static trek_status begin_room(squares *q, trek_dtype dtype)
{
    q->dtype = dtype;
    if (!q->room)
        q->room = trek_tensor_empty(trek_dims(q->most * q->chunk * (int64_t)sizeof(double)), TREK_U8, q->own->arena->device);
    return q->room ? make_zeros(q->room) : trek_error_status();
}

/* Adds what the rank has of a chunk, of which others have something, too. */
static trek_status add(squares *q, int64_t number, int part, int64_t begin, int64_t end)
{
    const trek_arena *arena = q->own->arena;
    trek_dtype dtype = arena->parts[part].wide;
    size_t size = trek_dtype_size(dtype);
    trek_bucket_piece piece;
    if (q->n == q->most || (q->n > 0 && q->dtype != dtype))
        TRY(join(q));
    if (q->n == 0)
        TRY(begin_room(q, dtype));
    char *to = q->room->data + (size_t)(q->n * q->chunk) * size;
    for (int64_t at = begin;
         trek_buckets_next_piece(&q->own->reducer->buckets, q->s->team->sharers, part, &at, end, &piece);)
        if (piece.owner == arena->sharer)
            TRY(arena->backend->copy_bytes(to + (size_t)(piece.begin - begin) * size, arena->device,
                                           arena->parts[part].grads->data + (size_t)piece.begin * size, arena->device,
                                           (size_t)(piece.end - piece.begin) * size, NULL));
    q->numbers[q->n++] = number;
    return TREK_OK;
}

static trek_status measure_all(squares *q)
{
    const trek_arena *arena = q->own->arena;
    trek_tensor *norm = q->s->grains->sums[q->own - q->s->team->replicas].stage.norm;
    int64_t number = 0;
    TRY(make_zeros(norm));
    for (int p = 0; p < arena->n_parts; p++)
        for (int64_t begin = 0, all = trek_arena_filled(arena, p), end; begin < all; begin = end, number++) {
            end = begin + q->chunk < all ? begin + q->chunk : all;
            int owner = trek_grain_squares_owner(q->s, q->own, p, begin, end);
            if (owner == arena->sharer)
                TRY(note_own(
                    q, number,
                    (trek_update_span){ arena->parts[p].grads->data + (size_t)begin * trek_dtype_size(arena->parts[p].wide),
                                        end - begin, arena->parts[p].wide }));
            else if (owner < 0)
                TRY(add(q, number, p, begin, end));
        }
    TRY(measure(q));
    TRY(join(q));
    return trek_comm_run(q->comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM, .dtype = TREK_F64,
                                                    .count = norm->numel, .in = norm->data, .out = norm->data,
                                                    .on_device = true });
}

trek_status trek_grain_device_squares(trek_step *s, int rank)
{
    const rank_replica *own = &s->team->replicas[rank];
    trek_grain_stage *stage = &s->grains->sums[rank].stage;
    squares q = { .s = s, .own = own, .comm = trek_step_carrier(s, rank) };
    int64_t all = 0;
    for (int p = 0; p < own->arena->n_parts; p++)
        all += trek_arena_filled(own->arena, p);
    q.chunk = trek_update_norm_chunk(all);
    q.most = (int)(MOST * q.chunk <= MOST_ELEMENTS ? MOST : q.chunk < MOST_ELEMENTS ? MOST_ELEMENTS / q.chunk : 1);
    stage->n_norm = 0;
    for (int p = 0; p < own->arena->n_parts; p++)
        stage->n_norm += (trek_arena_filled(own->arena, p) + q.chunk - 1) / q.chunk;
    if (!stage->norm)
        stage->norm = trek_tensor_zeros(trek_dims(2 * stage->n_norm), TREK_F64, own->arena->device);
    q.parts = stage->norm ? (double *)(void *)stage->norm->data : NULL;
    trek_status status = stage->norm ? measure_all(&q) : trek_error_status();
    trek_tensor_release(q.room);
    if (status != TREK_OK) /* the others wait for it */
        trek_comm_abort(q.comm, "a rank cannot measure its gradients");
    return status;
}
