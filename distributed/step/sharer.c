/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/step/sharer.h"

#include "distributed/replica/replica.h"
#include "tensor/trace.h"

trek_status trek_sharer_cut(const trek_sharer *x)
{
    trek_arena_cut *cuts = trek_calloc((size_t)x->buckets->n + 1, sizeof *cuts);
    if (!cuts)
        return TREK_ERR_MEMORY;
    for (int k = 0; k < x->buckets->n; k++) {
        const trek_bucket *bucket = &x->buckets->list[k];
        int64_t count = bucket->count / x->arena->sharers, begin = bucket->begin + count * trek_comm_rank(x->comm);
        cuts[k] = (trek_arena_cut){ .part = bucket->part, .begin = begin, .end = begin + count };
    }
    trek_status status = trek_arena_shard(x->arena, cuts, x->buckets->n);
    trek_free(cuts);
    return status;
}

/* --- parameters -------------------------------------------------------------------------- */

static bool is_updated(const trek_optimizer *optimizer, const trek_bucket *bucket)
{
    for (int k = bucket->first; k < bucket->end; k++)
        if (optimizer->active[k])
            return true;
    return false;
}

trek_status trek_sharer_gather_params(const trek_sharer *x)
{
    const trek_arena *arena = x->arena;
    trek_status status = TREK_OK;
    int64_t start = trek_trace_enter("gather parameters"), bytes = 0;
    for (int k = 0; k < x->buckets->n && status == TREK_OK; k++) {
        const trek_bucket *bucket = &x->buckets->list[k];
        const trek_arena_part *part = &arena->parts[bucket->part];
        size_t size = trek_dtype_size(part->dtype);
        if (!is_updated(x->optimizer, bucket))
            continue;
        bytes += bucket->count * (int64_t)size;
        status = trek_comm_start(x->comm, (trek_comm_call){ .kind = TREK_COMM_ALL_GATHER, .dtype = part->dtype,
                                                         .count = bucket->count / arena->sharers,
                                                         .in = part->params->data + (size_t)arena->cuts[k].begin * size,
                                                         .out = part->params->data + (size_t)bucket->begin * size,
                                                         .on_device = arena->device.type != TREK_CPU });
    }
    trek_status ended = trek_comm_finish(x->comm);
    trek_trace_end("gather parameters", start, bytes);
    return status != TREK_OK ? status : ended;
}

/* --- the norm of gradients --------------------------------------------------------------- */

trek_status trek_sharer_join_norm(trek_update_state *on_device, void *comm)
{
    trek_status status = trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_SUM, .dtype = TREK_F64,
                                                               .count = 1, .in = &on_device->sum_squares,
                                                               .out = &on_device->sum_squares, .on_device = true });
    if (status != TREK_OK)
        return status;
    return trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_MIN, .dtype = TREK_I32, .count = 1,
                                                 .in = &on_device->finite, .out = &on_device->finite, .on_device = true });
}

/* --- the whole state --------------------------------------------------------------------- */

/* One state, or its scales, or the masters of one bucket, from all sharers to `room`, and from there to the whole. */
static trek_status gather_bucket(const trek_sharer *x, int state, int bucket, trek_tensor *room)
{
    const trek_optimizer *optimizer = x->optimizer;
    const trek_arena *arena = x->arena;
    const trek_bucket *of = &x->buckets->list[bucket];
    const trek_tensor *own = trek_optimizer_own(optimizer, state, of->part);
    trek_tensor *whole = trek_optimizer_gathered_of(optimizer, state, of->part);
    if (!own)
        return TREK_OK;
    size_t size = trek_dtype_size((trek_dtype)own->dtype);
    int64_t block = trek_optimizer_own_block(state); /* cuts are whole blocks */
    trek_comm_call call = { .kind = TREK_COMM_ALL_GATHER, .dtype = own->dtype, .count = of->count / block / arena->sharers,
                            .in = own->data + (size_t)(arena->cuts[bucket].place / block) * size, .out = room->data,
                            .on_device = arena->device.type != TREK_CPU };
    trek_status status = trek_comm_run(x->comm, call);
    if (status == TREK_OK && whole)
        status = arena->backend->copy_bytes(whole->data + (size_t)(of->begin / block) * size, trek_cpu(0), room->data,
                                            arena->device, (size_t)(of->count / block) * size, NULL);
    return status;
}

static trek_tensor *make_room(const trek_sharer *x)
{
    int64_t most = 1;
    for (int k = 0; k < x->buckets->n; k++)
        most = x->buckets->list[k].count > most ? x->buckets->list[k].count : most;
    most *= (int64_t)sizeof(double);
    return trek_tensor_empty(trek_shape_make(1, &most), TREK_U8, x->arena->device);
}

trek_status trek_sharer_gather_state(const trek_sharer *x, bool keeps, trek_status own)
{
    trek_tensor *room = own == TREK_OK ? make_room(x) : NULL;
    if (own == TREK_OK)
        own = room ? trek_arena_refresh_masters(x->arena) : trek_error_status();
    if (own == TREK_OK && keeps)
        own = trek_optimizer_gather_begin(x->optimizer);
    trek_status status = trek_replica_agree(x->comm, own, "the optimizer's state");
    for (int state = 0; state < TREK_GATHERED; state++)
        for (int k = 0; k < x->buckets->n && status == TREK_OK; k++)
            status = gather_bucket(x, state, k, room);
    trek_tensor_release(room);
    return status;
}
