/* SPDX-License-Identifier: Apache-2.0 */
/* A call as the communication thread carries it out, or a caller that waits. The ranks meet and compare what they are
 * about to do. By then small data have already arrived; large data move in pieces through the engine's memory.
 * Nothing in this file waits. */
#include <stdio.h>
#include <string.h>

#include "distributed/comm/async/async_internal.h"
#include "distributed/system/system.h"
#include "tensor/dtypes.h"
#include "tensor/half_internal.h"
#include "tensor/memory_internal.h"

/* Over the control channel the data of each process go to all processes, so that this limit is lower. */
enum { CHANNEL_SMALL = 256 << 10 };

/* How long the control channel may take to say why the library has failed. */
#define REASON_NS 10000000000

/* Ends the group with the thread's error. If the library failed, the cause is mostly the end of another process. The
 * control channel knows more about that, or soon will; the group then ends with its reason. */
static void end_by_error(trek_async_comm *comm, trek_status status)
{
    comm->failure = status;
    comm->failure_ns = trek_now_ns();
    snprintf(comm->failure_text, sizeof comm->failure_text, "%s", trek_error());
    trek_error_clear();
    if (!comm->base.control || status != TREK_ERR_PEER)
        trek_async_comm_end(comm, status, comm->failure_text);
}

/* Returns whether the library must not be called any more. */
static bool has_failed(trek_async_comm *comm)
{
    if (comm->failure != TREK_OK && trek_now_ns() - comm->failure_ns > REASON_NS)
        trek_async_comm_end(comm, comm->failure, comm->failure_text);
    return comm->failure != TREK_OK;
}

static void progressed(trek_async_comm *comm, bool *moved)
{
    *moved = true;
    atomic_store_explicit(&comm->progress_ns, trek_now_ns(), memory_order_relaxed);
}

static void begin_moving(trek_async_comm *comm);
static bool load_next(trek_async_comm *comm);

static void complete(trek_async_comm *comm)
{
    comm->state = TREK_ASYNC_IDLE;
    atomic_fetch_add(&comm->completed, 1);
    trek_async_comm_wake(comm);
}

/* --- meeting ------------------------------------------------------------------------------ */

/* Returns how many bytes of the call's data travel with the notes. The result is the same on all ranks whose calls
 * agree. */
static size_t small_bytes(const trek_async_comm *comm, const trek_comm_call *call)
{
    size_t bytes = (size_t)call->count * trek_dtype_size(call->dtype);
    size_t most = comm->channel && call->kind != TREK_COMM_ALL_GATHER ? CHANNEL_SMALL / (size_t)comm->base.world
        : TREK_ASYNC_SMALL;
    bool small = comm->direct && !call->on_device && bytes <= TREK_ASYNC_SMALL && bytes <= most &&
                 (call->kind == TREK_COMM_ALL_REDUCE || call->kind == TREK_COMM_BROADCAST || call->kind == TREK_COMM_ALL_GATHER);
    return small ? bytes : 0;
}

/* Returns whether the call has data that do not travel with the notes. */
static bool is_large(const trek_async_comm *comm, const trek_comm_call *call)
{
    return call->kind != TREK_COMM_INVALID && call->kind != TREK_COMM_BARRIER && !call->on_device && call->count > 0 &&
           !small_bytes(comm, call);
}

/* Copies from the caller's memory. Returns false, and does not touch the memory, if the group has ended. */
static bool copy_in(trek_async_comm *comm, void *to, const void *from, size_t bytes)
{
    trek_lock_acquire(&comm->lock);
    bool good = !trek_async_comm_ended(comm);
    if (good)
        memcpy(to, from, bytes);
    trek_lock_release(&comm->lock);
    return good;
}

static uint64_t hash_of(const trek_call_note *note)
{
    uint64_t words[sizeof *note / sizeof(uint64_t)], hash = 0x9e3779b97f4a7c15u;
    memcpy(words, note, sizeof words);
    for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
        hash = (hash ^ words[k]) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    return hash;
}

static trek_status send_notes(trek_async_comm *comm, size_t bytes)
{
    if (comm->channel) { /* the parts have one size, because every rank might be the root */
        trek_async_channel_send(comm, sizeof(trek_call_note) + small_bytes(comm, &comm->call));
        return TREK_OK;
    }
    memset(comm->requests, 0, 2 * (size_t)comm->base.world * sizeof *comm->requests);
    memcpy(comm->notes + (size_t)comm->base.rank * comm->stride, comm->mine, bytes);
    return comm->table->exchange(comm->group, comm->mine, bytes, comm->notes, comm->stride, comm->requests);
}

static bool begin_meeting(trek_async_comm *comm)
{
    const trek_comm_call *call = &comm->call;
    trek_call_note note = trek_comm_note(call);
    memcpy(comm->mine, &note, sizeof note);
    size_t small = small_bytes(comm, call);
    if (call->kind == TREK_COMM_BROADCAST && call->root != comm->base.rank)
        small = 0;
    if (small && !copy_in(comm, comm->mine + sizeof note, call->in, small))
        return false;
    for (int r = 0; r < comm->base.world; r++)
        atomic_store_explicit(&comm->come[r], r == comm->base.rank, memory_order_relaxed);
    atomic_store(&comm->met, false);
    comm->state = TREK_ASYNC_MEETING;
    if (is_large(comm, call))
        begin_moving(comm);
    if (comm->direct) {
        trek_status status = send_notes(comm, sizeof note + small);
        if (status != TREK_OK)
            end_by_error(comm, status);
        return status == TREK_OK;
    }
    comm->hash[0] = (int64_t)hash_of(&note);
    comm->hash[1] = ~comm->hash[0];
    trek_status status = comm->table->all_reduce(comm->group, comm->hash, 2, TREK_I64, TREK_REDUCTION_MAX, &comm->requests[0]);
    if (status != TREK_OK)
        end_by_error(comm, status);
    return status == TREK_OK;
}

static bool notes_agree(trek_async_comm *comm)
{
    char message[TREK_ERROR_SIZE];
    bool good = trek_comm_notes_agree(comm->notes, comm->stride, comm->base.world, message);
    if (!good)
        trek_async_comm_end(comm, TREK_ERR_COMM, message);
    return good;
}

/* Finishes a call whose data have arrived with the notes. */
static bool finish_small(trek_async_comm *comm)
{
    for (int r = 0; r < comm->base.world; r++)
        comm->ins[r] = comm->notes + (size_t)r * comm->stride + sizeof(trek_call_note);
    trek_lock_acquire(&comm->lock);
    bool good = !trek_async_comm_ended(comm);
    if (good)
        trek_comm_finish_small(&comm->call, comm->ins, comm->base.world);
    trek_lock_release(&comm->lock);
    return good;
}

static trek_status test_direct(trek_async_comm *comm, bool *done, bool *moved)
{
    int world = comm->base.world;
    *done = comm->channel ? trek_async_channel_test(comm, sizeof(trek_call_note) + small_bytes(comm, &comm->call)) : true;
    if (comm->channel)
        return TREK_OK;
    for (int r = 0; r < world; r++) {
        bool here = atomic_load_explicit(&comm->come[r], memory_order_relaxed);
        if (here)
            continue;
        trek_status status = comm->table->test(comm->group, 1, &comm->requests[r], &here);
        if (status != TREK_OK)
            return status;
        if (here) {
            atomic_store_explicit(&comm->come[r], 1, memory_order_relaxed);
            progressed(comm, moved);
        }
        *done = *done && here;
    }
    if (!*done)
        return TREK_OK;
    for (int r = 0; r < world && *done; r++) {
        if (r == comm->base.rank)
            continue;
        trek_status status = comm->table->test(comm->group, 1, &comm->requests[world + r], done);
        if (status != TREK_OK)
            return status;
    }
    return TREK_OK;
}

/* --- moving ------------------------------------------------------------------------------------ */

static bool reduces(const trek_comm_call *call)
{
    return call->kind == TREK_COMM_ALL_REDUCE || call->kind == TREK_COMM_REDUCE_SCATTER || call->kind == TREK_COMM_REDUCE;
}

/* The engine adds what is sent as bf16. */
static bool adds_bf16(const trek_async_comm *comm, const trek_comm_call *call)
{
    return call->kind == TREK_COMM_REDUCE_SCATTER && call->dtype == TREK_BF16 && call->op == TREK_REDUCTION_SUM &&
        comm->table->adds_bf16;
}

/* Other reductions of 16-bit floats are sent as f32. Data that are only moved are sent as elements of their own size. */
static void begin_moving(trek_async_comm *comm)
{
    const trek_comm_call *call = &comm->call;
    comm->wire = !reduces(call) || adds_bf16(comm, call) ? call->dtype : trek_dtype_is_16bit(call->dtype) ? TREK_F32
        : call->dtype;
    size_t item = trek_dtype_size(comm->wire);
    if (call->kind == TREK_COMM_ALL_GATHER || call->kind == TREK_COMM_REDUCE_SCATTER)
        item *= (size_t)comm->base.world;
    comm->piece_count = (int64_t)(comm->piece / item);
    comm->loaded = comm->finished = 0;
    comm->oldest = comm->under_way = comm->ready = 0;
}

/* Copies n elements of the caller's memory to the engine's, and widens them if they are combined in f32. */
static void load(const trek_async_comm *comm, char *to, int64_t first, int64_t n)
{
    const trek_comm_call *call = &comm->call;
    const char *from = (const char *)call->in + (size_t)first * trek_dtype_size(call->dtype);
    if (comm->wire == call->dtype)
        memcpy(to, from, (size_t)n * trek_dtype_size(call->dtype));
    else if (call->dtype == TREK_BF16)
        trek_f32_from_bf16_row((float *)(void *)to, (const uint16_t *)(const void *)from, n);
    else
        trek_f32_from_f16_row((float *)(void *)to, (const uint16_t *)(const void *)from, n);
}

/* Copies back to the caller; divides if the result is a mean. */
static void store(const trek_async_comm *comm, char *from, int64_t first, int64_t n)
{
    const trek_comm_call *call = &comm->call;
    char *to = (char *)call->out + (size_t)first * trek_dtype_size(call->dtype);
    if (reduces(call) && call->op == TREK_REDUCTION_MEAN && comm->wire == TREK_F64)
        for (int64_t i = 0; i < n; i++)
            ((double *)(void *)from)[i] /= comm->base.world;
    else if (reduces(call) && call->op == TREK_REDUCTION_MEAN)
        for (int64_t i = 0; i < n; i++)
            ((float *)(void *)from)[i] /= (float)comm->base.world;
    if (comm->wire == call->dtype)
        memcpy(to, from, (size_t)n * trek_dtype_size(call->dtype));
    else if (call->dtype == TREK_BF16)
        trek_bf16_from_f32_row((uint16_t *)(void *)to, (const float *)(const void *)from, n);
    else
        trek_f16_from_f32_row((uint16_t *)(void *)to, (const float *)(const void *)from, n);
}

static bool load_piece(trek_async_comm *comm, trek_async_slot *slot)
{
    const trek_comm_call *call = &comm->call;
    trek_lock_acquire(&comm->lock);
    bool good = !trek_async_comm_ended(comm);
    if (good && call->kind == TREK_COMM_REDUCE_SCATTER)
        for (int r = 0; r < comm->base.world; r++)
            load(comm, slot->in + (size_t)r * (size_t)slot->count * trek_dtype_size(comm->wire), r * call->count + slot->first,
                 slot->count);
    else if (good && (call->kind != TREK_COMM_BROADCAST || call->root == comm->base.rank))
        load(comm, slot->in, slot->first, slot->count);
    trek_lock_release(&comm->lock);
    return good;
}

/* Returns whether the rank gets back other values than it has given. */
static bool changes(const trek_async_comm *comm, const trek_comm_call *call)
{
    bool root = call->root == comm->base.rank;
    return call->kind == TREK_COMM_BROADCAST ? !root : call->kind == TREK_COMM_REDUCE ? root : true;
}

static bool store_piece(trek_async_comm *comm, const trek_async_slot *slot)
{
    const trek_comm_call *call = &comm->call;
    trek_lock_acquire(&comm->lock);
    bool good = !trek_async_comm_ended(comm);
    if (good && call->kind == TREK_COMM_ALL_GATHER)
        for (int r = 0; r < comm->base.world; r++)
            store(comm, slot->out + (size_t)r * (size_t)slot->count * trek_dtype_size(comm->wire), r * call->count + slot->first,
                  slot->count);
    else if (good && call->kind == TREK_COMM_REDUCE_SCATTER)
        store(comm, slot->out, slot->first, slot->count);
    else if (good && changes(comm, call))
        store(comm, slot->in, slot->first, slot->count);
    trek_lock_release(&comm->lock);
    return good;
}

static trek_status start_piece(trek_async_comm *comm, trek_async_slot *slot)
{
    const trek_comm_call *call = &comm->call;
    const trek_async_table *table = comm->table;
    trek_reduction op = call->op == TREK_REDUCTION_MEAN ? TREK_REDUCTION_SUM : call->op;
    int64_t bytes = slot->count * (int64_t)trek_dtype_size(comm->wire);
    switch (call->kind) {
    case TREK_COMM_ALL_REDUCE:
        return table->all_reduce(comm->group, slot->in, slot->count, comm->wire, op, &slot->request);
    case TREK_COMM_REDUCE:
        return table->reduce(comm->group, slot->in, slot->count, comm->wire, op, call->root, &slot->request);
    case TREK_COMM_BROADCAST:
        return table->broadcast(comm->group, slot->in, bytes, call->root, &slot->request);
    case TREK_COMM_ALL_GATHER:
        return table->all_gather(comm->group, slot->in, bytes, slot->out, &slot->request);
    default:
        return table->reduce_scatter(comm->group, slot->in, slot->out, slot->count, comm->wire, op, &slot->request);
    }
}

/* Loads the next piece, if one is left and a slot is free. Returns false if the group has ended. */
static bool load_next(trek_async_comm *comm)
{
    int used = comm->under_way + comm->ready;
    int64_t left = comm->call.count - comm->loaded;
    if (used == TREK_ASYNC_SLOTS || left == 0)
        return true;
    trek_async_slot *slot = &comm->slots[(comm->oldest + used) % TREK_ASYNC_SLOTS];
    slot->first = comm->loaded;
    slot->count = left < comm->piece_count ? left : comm->piece_count;
    if (!load_piece(comm, slot))
        return false;
    comm->loaded += slot->count;
    comm->ready++;
    return true;
}

/* Starts pieces. All ranks start the same pieces in the same order. */
static bool start_pieces(trek_async_comm *comm, bool *moved)
{
    for (;;) {
        if (!comm->ready && !load_next(comm))
            return false;
        if (!comm->ready)
            return true;
        trek_status status = start_piece(comm, &comm->slots[(comm->oldest + comm->under_way) % TREK_ASYNC_SLOTS]);
        if (status != TREK_OK) {
            end_by_error(comm, status);
            return false;
        }
        comm->ready--;
        comm->under_way++;
        *moved = true;
    }
}

static void move(trek_async_comm *comm, bool *moved)
{
    if (!start_pieces(comm, moved))
        return;
    trek_async_slot *slot = &comm->slots[comm->oldest];
    bool done = true;
    trek_status status = comm->table->test(comm->group, 1, &slot->request, &done);
    if (status != TREK_OK) {
        end_by_error(comm, status);
        return;
    }
    if (!done)
        return;
    progressed(comm, moved);
    if (!store_piece(comm, slot))
        return;
    comm->finished += slot->count;
    comm->oldest = (comm->oldest + 1) % TREK_ASYNC_SLOTS;
    comm->under_way--;
    if (comm->finished == comm->call.count)
        complete(comm);
}

/* --- the states ----------------------------------------------------------------------------------- */

static void join(trek_async_comm *comm, bool *moved)
{
    bool done = false;
    trek_status status = comm->group ? comm->table->test(comm->group, 1, &comm->requests[0], &done)
                                     : comm->table->group_new(comm->ranks, comm->base.rank, comm->base.world, &comm->group,
                                                              &comm->requests[0]);
    if (status == TREK_OK && done && comm->table->group_ready)
        status = comm->table->group_ready(comm->group);
    if (status != TREK_OK) {
        end_by_error(comm, status);
    } else if (done) {
        progressed(comm, moved);
        comm->state = TREK_ASYNC_IDLE;
        atomic_store(&comm->joined, true);
        trek_async_comm_wake(comm);
    }
}

/* Compares the calls when all ranks have come and, unless hashes have already differed, this rank has their notes. */
static void compare(trek_async_comm *comm)
{
    const trek_comm_call *call = &comm->call;
    if (!comm->direct && comm->state == TREK_ASYNC_MEETING && comm->hash[0] != ~comm->hash[1]) {
        comm->state = TREK_ASYNC_NAMING;
        trek_status status = comm->table->all_gather(comm->group, comm->mine, sizeof(trek_call_note), comm->notes,
                                                     &comm->requests[0]);
        if (status != TREK_OK)
            end_by_error(comm, status);
        return;
    }
    if (!comm->direct && comm->state == TREK_ASYNC_MEETING && call->kind == TREK_COMM_INVALID) {
        trek_async_comm_end(comm, TREK_ERR_COMM, "all ranks came with wrong arguments");
        return;
    }
    if ((comm->direct || comm->state == TREK_ASYNC_NAMING) && !notes_agree(comm))
        return;
    atomic_store(&comm->met, true);
    if (small_bytes(comm, call)) {
        if (finish_small(comm))
            complete(comm);
    } else if (is_large(comm, call)) {
        comm->state = TREK_ASYNC_MOVING;
    } else {
        complete(comm);
    }
}

static void meet(trek_async_comm *comm, bool *moved)
{
    bool done = false;
    trek_status status = comm->direct ? test_direct(comm, &done, moved)
        : comm->table->test(comm->group, 1, &comm->requests[0], &done);
    if (status != TREK_OK) {
        end_by_error(comm, status);
    } else if (done) {
        progressed(comm, moved);
        compare(comm);
    } else if (is_large(comm, &comm->call)) {
        load_next(comm); /* meanwhile */
    }
}

bool trek_async_comm_advance(trek_async_comm *comm, bool *moved)
{
    if (trek_async_comm_ended(comm))
        return false; /* the library is not called any more; what was under way stays so */
    if (has_failed(comm))
        return true;
    switch (comm->state) {
    case TREK_ASYNC_JOINING:
        join(comm, moved);
        return true;
    case TREK_ASYNC_IDLE: {
        uint64_t next = atomic_load(&comm->completed);
        if (next == atomic_load(&comm->submitted))
            return false;
        comm->call = comm->queue[next % TREK_ASYNC_QUEUE];
        *moved = true;
        begin_meeting(comm);
        return true;
    }
    case TREK_ASYNC_MEETING:
    case TREK_ASYNC_NAMING:
        meet(comm, moved);
        return true;
    default:
        move(comm, moved);
        return true;
    }
}
