/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/team/sharer.h"

#include "distributed/team/replica.h"
#include "tensor/trace.h"

/* --- cutting ----------------------------------------------------------------------------- */

/* Returns this sharer's part of a bucket that may be cut anywhere. */
static trek_arena_cut part_of(const trek_sharer *x, const trek_bucket *bucket)
{
    bool own = bucket->owner == x->arena->sharer || bucket->second == x->arena->sharer;
    if (bucket->owner >= 0)
        return (trek_arena_cut){ .part = bucket->part, .begin = bucket->begin,
                                 .end = bucket->begin + (own ? bucket->count : 0) };
    int64_t count = bucket->count / x->arena->sharers, begin = bucket->begin + count * x->arena->sharer;
    return (trek_arena_cut){ .part = bucket->part, .begin = begin, .end = begin + count };
}

static trek_status divide(const trek_sharer *x, trek_tensor *const *masters, trek_sharer_cuts *made)
{
    const trek_arena *arena = x->arena;
    const int *owner = made->division.owner;
    int n = 0, most = owner ? arena->n_segments : made->buckets.n;
    trek_arena_cut *cuts = trek_calloc((size_t)most + 1, sizeof *cuts);
    for (int k = 0; k < most && cuts; k++) {
        const trek_arena_segment *segment = &arena->segments[k];
        if (!owner)
            cuts[n++] = part_of(x, &made->buckets.list[k]);
        else if (owner[k] == arena->sharer || (arena->twice && owner[arena->n_segments + k] == arena->sharer))
            cuts[n++] = (trek_arena_cut){ .part = segment->part, .begin = segment->offset,
                                          .end = trek_arena_slot_end(segment->offset + segment->count) };
    }
    made->division.bare = x->bare;
    trek_status status = cuts ? trek_arena_division_make(arena, cuts, n, masters, &made->division) : TREK_ERR_MEMORY;
    trek_free(cuts);
    return status;
}

trek_status trek_sharer_cut(const trek_sharer *x, const trek_optimizer_spec *spec, int64_t bucket_bytes,
                            trek_tensor *const *masters, trek_sharer_cuts *made)
{
    *made = (trek_sharer_cuts){ 0 };
    x->arena->sharer = trek_comm_rank(x->comm);
    trek_status status = spec ? trek_optimizer_owners(spec, x->arena, &made->division.owner) : TREK_OK;
    if (status == TREK_OK)
        status = trek_buckets_cut(&made->buckets, x->reducer, bucket_bytes, made->division.owner);
    if (status == TREK_OK)
        status = divide(x, masters, made);
    if (status != TREK_OK)
        trek_sharer_cuts_clear(made);
    return status;
}

trek_status trek_sharer_take(const trek_sharer *x, trek_sharer_cuts *made)
{
    trek_buckets old = x->reducer->buckets;
    trek_arena_divide(x->arena, &made->division);
    x->reducer->buckets = made->buckets;
    made->buckets = old;
    return trek_arena_hold_own(x->arena);
}

void trek_sharer_cuts_clear(trek_sharer_cuts *made)
{
    trek_arena_division_clear(&made->division);
    trek_buckets_clear(&made->buckets);
}

/* --- parameters -------------------------------------------------------------------------- */

static bool is_updated(const trek_optimizer *optimizer, const trek_bucket *bucket)
{
    for (int k = bucket->first; k < bucket->end; k++)
        if (optimizer->active[k])
            return true;
    return false;
}

/* Returns whether nobody lacks what the owner has. */
static bool all_keep(const trek_sharer *x, const trek_bucket *bucket)
{
    return x->arena->twice && trek_comm_world_size(x->comm) <= 1 + (bucket->second >= 0);
}

/* Returns room for parameters that this sharer keeps although another one sends them, or NULL where it needs none. They are not
 * received where they are, because a device's collective that is aborted, since a process has died, spoils them. */
static trek_tensor *make_aside(const trek_sharer *x, trek_status *status)
{
    const trek_arena *arena = x->arena;
    int64_t most = 0;
    for (int k = 0; k < x->reducer->buckets.n && arena->device.type != TREK_CPU; k++) {
        const trek_bucket *bucket = &x->reducer->buckets.list[k];
        int64_t bytes = bucket->count * (int64_t)trek_dtype_size(arena->parts[bucket->part].dtype);
        most = bucket->second == arena->sharer && bytes > most ? bytes : most;
    }
    trek_tensor *aside = most > 0 && arena->twice ? trek_tensor_empty(trek_dims(most), TREK_U8, arena->device) : NULL;
    if (most > 0 && arena->twice && !aside) {
        trek_comm_abort(x->comm, "a process has no memory to gather parameters");
        *status = trek_error_status();
    }
    return aside;
}

trek_status trek_sharer_gather_params(const trek_sharer *x)
{
    const trek_arena *arena = x->arena;
    trek_status status = TREK_OK;
    trek_tensor *aside = make_aside(x, &status);
    int64_t start = trek_trace_enter("gather parameters"), bytes = 0;
    for (int k = 0; k < x->reducer->buckets.n && status == TREK_OK; k++) {
        const trek_bucket *bucket = &x->reducer->buckets.list[k];
        const trek_arena_part *part = &arena->parts[bucket->part];
        size_t size = trek_dtype_size(part->dtype);
        if (!is_updated(x->optimizer, bucket) || bucket->count == 0 || all_keep(x, bucket))
            continue;
        bytes += bucket->count * (int64_t)size;
        char *whole = part->params->data + (size_t)bucket->begin * size;
        trek_comm_call call = { .kind = TREK_COMM_BROADCAST, .root = bucket->owner, .dtype = part->dtype, .count = bucket->count,
                                .in = whole, .out = whole, .on_device = arena->device.type != TREK_CPU };
        if (bucket->owner < 0) {
            call.kind = TREK_COMM_ALL_GATHER;
            call.root = 0;
            call.count = bucket->count / arena->sharers;
            call.in = whole + (size_t)(call.count * arena->sharer) * size;
        } else if (aside && bucket->second == arena->sharer) {
            call.out = aside->data;
        }
        status = trek_comm_start(x->comm, call);
    }
    trek_status ended = trek_comm_finish(x->comm);
    trek_trace_end("gather parameters", start, bytes);
    trek_tensor_release(aside);
    return status != TREK_OK ? status : ended;
}

/* --- the norm of gradients --------------------------------------------------------------- */

trek_status trek_sharer_join_norm(trek_update_state *state, void *arg)
{
    trek_comm *comm = arg;
    bool on_device = comm->device.type != TREK_CPU;
    trek_status status = trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM,
                                                               .dtype = TREK_F64, .count = 1, .in = &state->sum_squares,
                                                               .out = &state->sum_squares, .on_device = on_device });
    if (status != TREK_OK)
        return status;
    return trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_MIN, .dtype = TREK_I32,
                                                 .count = 1, .in = &state->finite, .out = &state->finite,
                                                 .on_device = on_device });
}

/* --- the whole state --------------------------------------------------------------------- */

/* Gathers one state, or its scales, or the masters, of one bucket from all sharers in `room`, and copies it to the
 * whole state. */
static trek_status gather_bucket(const trek_sharer *x, int state, const trek_bucket *of, trek_tensor *room)
{
    const trek_optimizer *optimizer = x->optimizer;
    const trek_arena *arena = x->arena;
    const trek_tensor *own = trek_optimizer_own(optimizer, state, of->part);
    trek_tensor *whole = trek_optimizer_gathered_of(optimizer, state, of->part);
    size_t size = trek_dtype_size((trek_dtype)own->dtype);
    int64_t block = trek_optimizer_own_block(state); /* cuts are whole blocks */
    int64_t count = of->count / block / arena->sharers;
    int64_t place = trek_arena_place(arena, of->part, of->begin + of->count / arena->sharers * arena->sharer);
    trek_comm_call call = { .kind = TREK_COMM_ALL_GATHER, .dtype = own->dtype, .count = count,
                            .in = own->data + (size_t)(place / block) * size, .out = room->data,
                            .on_device = arena->device.type != TREK_CPU };
    trek_status status = trek_comm_run(x->comm, call);
    if (status == TREK_OK && whole)
        status = arena->backend->copy_bytes(whole->data + (size_t)(of->begin / block) * size, trek_cpu(0), room->data,
                                            arena->device, (size_t)(of->count / block) * size, NULL);
    return status;
}

/* Gathers numbers that one sharer has, from `own` on in its buffer, to `at` in the whole. */
static trek_status gather_owned(const trek_sharer *x, int state, int part, int owner, int64_t own, int64_t at, int64_t count,
                                trek_tensor *room)
{
    const trek_arena *arena = x->arena;
    trek_device device = arena->device;
    const trek_tensor *mine = trek_optimizer_own(x->optimizer, state, part);
    trek_tensor *whole = trek_optimizer_gathered_of(x->optimizer, state, part);
    size_t size = trek_dtype_size((trek_dtype)mine->dtype);
    int64_t most = room->numel / (int64_t)size;
    trek_status status = TREK_OK;
    for (int64_t done = 0, n; done < count && status == TREK_OK; done += n) {
        n = count - done < most ? count - done : most;
        size_t bytes = (size_t)n * size;
        if (owner == arena->sharer)
            status = arena->backend->copy_bytes(room->data, device, mine->data + (size_t)(own + done) * size, device, bytes,
                                                NULL);
        if (status != TREK_OK) {
            trek_comm_abort(x->comm, "a rank cannot give its part of the optimizer's state");
            return status;
        }
        status = trek_comm_run(x->comm, (trek_comm_call){ .kind = TREK_COMM_BROADCAST, .root = owner, .dtype = mine->dtype,
                                                          .count = n, .in = room->data, .out = room->data,
                                                          .on_device = device.type != TREK_CPU });
        if (status == TREK_OK && whole)
            status = arena->backend->copy_bytes(whole->data + (size_t)(at + done) * size, trek_cpu(0), room->data, device,
                                                bytes, NULL);
    }
    return status;
}

/* The same if each parameter is kept twice: then those of a sharer are not contiguous. */
static trek_status gather_uneven_twice(const trek_sharer *x, int state, int part, trek_tensor *room)
{
    const trek_arena *arena = x->arena;
    trek_status status = TREK_OK;
    int64_t own;
    trek_shape shape;
    for (int k = 0; k < arena->n_segments && status == TREK_OK; k++) {
        int64_t count = trek_optimizer_state_extent(x->optimizer, state, k, &own, &shape);
        if (arena->segments[k].part == part && count > 0)
            status = gather_owned(x, state, part, arena->owner[k], own, trek_optimizer_whole_begin(x->optimizer, state, k), count,
                                  room);
    }
    return status;
}

/* Gathers a state that does not have one number for each element. The numbers of each sharer's parameters are
 * contiguous, also in the whole. */
static trek_status gather_uneven(const trek_sharer *x, int state, int part, trek_tensor *room)
{
    trek_status status = TREK_OK;
    if (x->arena->twice)
        return gather_uneven_twice(x, state, part, room);
    for (int r = 0; r < x->arena->sharers && status == TREK_OK; r++) {
        int64_t begin, count;
        trek_optimizer_state_of(x->optimizer, state, part, r, &begin, &count);
        status = gather_owned(x, state, part, r, 0, begin, count, room);
    }
    return status;
}

static trek_status gather_part(const trek_sharer *x, int state, int part, trek_tensor *room)
{
    trek_status status = TREK_OK;
    if (!trek_optimizer_own(x->optimizer, state, part))
        return TREK_OK;
    if (trek_optimizer_is_uneven(x->optimizer, state))
        return gather_uneven(x, state, part, room);
    for (int k = 0; k < x->reducer->buckets.n && status == TREK_OK; k++) {
        const trek_bucket *of = &x->reducer->buckets.list[k];
        if (of->part != part)
            continue;
        int64_t block = trek_optimizer_own_block(state); /* buckets that have owners are whole blocks */
        status = of->owner < 0 ? gather_bucket(x, state, of, room)
                               : gather_owned(x, state, part, of->owner, trek_arena_place(x->arena, part, of->begin) / block,
                                              of->begin / block, of->count / block, room);
    }
    return status;
}

static trek_tensor *make_room(const trek_sharer *x)
{
    int64_t most = TREK_ARENA_SLOT;
    for (int k = 0; k < x->reducer->buckets.n; k++)
        most = x->reducer->buckets.list[k].count > most ? x->reducer->buckets.list[k].count : most;
    most *= (int64_t)sizeof(double);
    return trek_tensor_empty(trek_shape_make(&most, 1), TREK_U8, x->arena->device);
}

/* Gathers the states from number `first` on (TREK_OWN_MASTERS: only masters). */
static trek_status gather(const trek_sharer *x, bool keeps, trek_status own, int first)
{
    trek_tensor *room = own == TREK_OK ? make_room(x) : NULL;
    if (own == TREK_OK)
        own = room ? trek_arena_refresh_masters(x->arena) : trek_error_status();
    if (own == TREK_OK && keeps)
        own = trek_optimizer_gather_begin(x->optimizer, first);
    trek_status status = trek_replica_agree(x->comm, own, "the optimizer's state");
    for (int state = first; state < TREK_GATHERED; state++)
        for (int p = 0; p < x->arena->n_parts && status == TREK_OK; p++)
            status = gather_part(x, state, p, room);
    trek_tensor_release(room);
    return status;
}

trek_status trek_sharer_gather_state(const trek_sharer *x, bool keeps, trek_status own) { return gather(x, keeps, own, 0); }

trek_status trek_sharer_gather_masters(const trek_sharer *x) { return gather(x, true, TREK_OK, TREK_OWN_MASTERS); }
