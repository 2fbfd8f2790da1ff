/* SPDX-License-Identifier: Apache-2.0 */
/* The local engine: ranks that are threads of one process. Each rank reduces its
 * slice of all ranks' buffers in rank order and writes the result to all of them.
 *
 * A collective meets twice. The entrance can fail (time-out, abort, a rank that
 * left, calls that differ): whether it did is one atomic word, so all ranks see
 * the same. From there to the exit ranks read and write each other's memory, so
 * the exit cannot be interrupted; nothing lies between but copying. What fits
 * into a cache line is passed in the slots and needs no exit. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "distributed/comm/comm_internal.h"
#include "distributed/comm/nccl.h"
#include "distributed/control/wait.h"
#include "tensor/backend.h"
#include "tensor/memory_internal.h"
#include "tensor/pool.h"
#include "tensor/trace.h"

/* In the gate's word: the group has ended. The other bits count meetings. */
#define ENDED 0x80000000u

#define SMALL_BYTES 64

/* What a rank shows the others. Two of each, used in turn: a rank that is one
 * call ahead does not overwrite what a slower one still reads. */
typedef struct local_slot {
    _Alignas(64) char small[2][SMALL_BYTES];
    trek_comm_call call[2];
    _Atomic uint64_t entered;   /* calls that it has come to */
    _Alignas(64) const void **ins; /* [world] the rank's own tables */
    void **outs;
} local_slot;

typedef struct local_group {
    trek_gate gate;
    _Alignas(64) atomic_int arrived;
    atomic_int handles;         /* not yet freed */
    atomic_bool spin;
    int world;
    pthread_mutex_t lock;       /* of the three below */
    bool ended;
    trek_status status;
    char message[TREK_ERROR_SIZE];
    const void **tables;        /* memory of all ranks' ins and outs */
    local_slot *slots;
} local_group;

typedef struct local_comm {
    trek_comm base;
    local_group *group;
} local_comm;

/* The first reason counts. */
static void end_group(local_group *group, trek_status status, const char *message)
{
    pthread_mutex_lock(&group->lock);
    if (!group->ended) {
        group->ended = true;
        group->status = status;
        snprintf(group->message, sizeof group->message, "%s", message);
    }
    pthread_mutex_unlock(&group->lock);
    atomic_fetch_or(&group->gate.word, ENDED);
    trek_gate_wake(&group->gate);
}

static trek_status fail_ended(local_group *group)
{
    pthread_mutex_lock(&group->lock);
    trek_status status = group->status;
    char message[TREK_ERROR_SIZE];
    memcpy(message, group->message, sizeof message);
    pthread_mutex_unlock(&group->lock);
    return trek_fail(status, "%s", message);
}

/* Ranks that have not come to the call that `self` waits in. */
static void end_by_timeout(local_group *group, const trek_comm *self, const trek_comm_call *call)
{
    char text[128], missing[256] = "";
    size_t used = 0;
    int count = 0;
    uint64_t made = 0;
    for (int r = 0; r < group->world; r++) {
        uint64_t entered = atomic_load(&group->slots[r].entered);
        if (entered >= call->number)
            continue;
        if (count++ == 0)
            made = entered;
        if (used < sizeof missing - 16)
            used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%d", used ? ", " : "", r);
    }
    char message[TREK_ERROR_SIZE];
    snprintf(message, sizeof message, "%s, call %llu of rank %d: rank%s %s did not come within %g s (%llu calls so far)",
             trek_comm_call_text(call, text, sizeof text), (unsigned long long)call->number, self->rank, count > 1 ? "s" : "",
             missing, (double)self->deadline_ns * 1e-9, (unsigned long long)made);
    end_group(group, TREK_ERR_TIMEOUT, message);
}

/* The last to arrive opens the gate, unless (for an entrance) the group has ended. */
static bool open_gate(local_group *group, unsigned meeting, bool entrance)
{
    atomic_store_explicit(&group->arrived, 0, memory_order_relaxed);
    unsigned word = atomic_load(&group->gate.word);
    do {
        if (entrance && (word & ENDED))
            return false;
    } while (!atomic_compare_exchange_weak(&group->gate.word, &word, (word & ENDED) | ((meeting + 1) & ~ENDED)));
    trek_gate_wake(&group->gate);
    return true;
}

/* True when all ranks have come; false when the group has ended first. */
static bool enter(local_group *group, const trek_comm *self, const trek_comm_call *call)
{
    unsigned word = atomic_load(&group->gate.word);
    atomic_store(&group->slots[self->rank].entered, call->number);
    if (word & ENDED)
        return false;
    if (atomic_fetch_add(&group->arrived, 1) + 1 == group->world)
        return open_gate(group, word, true);
    int64_t deadline = self->deadline_ns ? trek_clock_ns() + self->deadline_ns : 0;
    if (!trek_gate_wait(&group->gate, word, atomic_load_explicit(&group->spin, memory_order_relaxed), deadline))
        end_by_timeout(group, self, call);
    return (atomic_load(&group->gate.word) & ~ENDED) != word;
}

/* Returns when all ranks have come: they all will, having only memory to copy. */
static void leave(local_group *group)
{
    unsigned meeting = atomic_load(&group->gate.word) & ~ENDED;
    if (atomic_fetch_add(&group->arrived, 1) + 1 == group->world) {
        open_gate(group, meeting, false);
        return;
    }
    bool spin = atomic_load_explicit(&group->spin, memory_order_relaxed);
    while ((atomic_load(&group->gate.word) & ~ENDED) == meeting) {
        trek_gate_wait(&group->gate, meeting, spin, 0);
        if ((atomic_load(&group->gate.word) & ~ENDED) == meeting) /* only the end of the group has changed it */
            trek_gate_wait(&group->gate, meeting | ENDED, spin, 0);
    }
}

static bool same_call(const trek_comm_call *a, const trek_comm_call *b)
{
    return a->number == b->number && a->kind == b->kind && a->op == b->op && a->dtype == b->dtype && a->root == b->root &&
           a->count == b->count && a->on_device == b->on_device;
}

/* Every rank finds the same difference. */
static bool calls_agree(local_group *group, int turn)
{
    const trek_comm_call *first = &group->slots[0].call[turn];
    for (int r = 0; r < group->world; r++) {
        const trek_comm_call *call = &group->slots[r].call[turn];
        if (call->kind != TREK_COMM_INVALID && same_call(first, call))
            continue;
        char mine[128], other[128], message[TREK_ERROR_SIZE];
        if (r == 0)
            snprintf(message, sizeof message, "call %llu: rank 0 came with wrong arguments", (unsigned long long)first->number);
        else
            snprintf(message, sizeof message, "the ranks' calls differ: rank 0's call %llu is %s, rank %d's call %llu is %s",
                     (unsigned long long)first->number, trek_comm_call_text(first, mine, sizeof mine), r,
                     (unsigned long long)call->number, trek_comm_call_text(call, other, sizeof other));
        end_group(group, TREK_ERR_COMM, message);
        return false;
    }
    return true;
}

/* This rank's part of `count` elements, in whole cache lines. */
static int64_t slice_start(int64_t count, int rank, int world)
{
    int64_t lines = (count + 63) / 64;
    int64_t start = lines / world * rank + (lines % world < rank ? lines % world : rank);
    return start * 64 < count ? start * 64 : count;
}

static void exchange(local_group *group, const trek_comm *self, const trek_comm_call *call, int turn)
{
    local_slot *own = &group->slots[self->rank];
    int world = group->world;
    size_t bytes = (size_t)call->count * trek_dtype_size(call->dtype);
    for (int r = 0; r < world; r++) {
        own->ins[r] = group->slots[r].call[turn].in;
        own->outs[r] = group->slots[r].call[turn].out;
    }
    switch (call->kind) {
    case TREK_COMM_ALL_REDUCE:
        trek_comm_combine(call->dtype, call->op, own->ins, world, own->outs, world, slice_start(call->count, self->rank, world),
                          slice_start(call->count, self->rank + 1, world));
        break;
    case TREK_COMM_BROADCAST:
        if (call->out != own->ins[call->root] && bytes)
            memcpy(call->out, own->ins[call->root], bytes);
        break;
    case TREK_COMM_ALL_GATHER:
        for (int r = 0; r < world && bytes; r++)
            if ((char *)call->out + (size_t)r * bytes != own->ins[r])
                memcpy((char *)call->out + (size_t)r * bytes, own->ins[r], bytes);
        break;
    case TREK_COMM_REDUCE_SCATTER:
        for (int r = 0; r < world; r++)
            own->ins[r] = (const char *)own->ins[r] + (size_t)self->rank * bytes;
        trek_comm_combine(call->dtype, call->op, own->ins, world, &call->out, 1, 0, call->count);
        break;
    default:
        break;
    }
}

/* All from the slots: every rank computes the whole result. */
static void exchange_small(local_group *group, const trek_comm *self, const trek_comm_call *call, int turn, size_t bytes)
{
    local_slot *own = &group->slots[self->rank];
    if (bytes == 0)
        return;
    if (call->kind == TREK_COMM_BROADCAST) {
        memcpy(call->out, group->slots[call->root].small[turn], bytes);
        return;
    }
    for (int r = 0; r < group->world; r++)
        own->ins[r] = group->slots[r].small[turn];
    trek_comm_combine(call->dtype, call->op, own->ins, group->world, &call->out, 1, 0, call->count);
}

static trek_status local_run(trek_comm *comm, const trek_comm_call *call)
{
    local_group *group = ((local_comm *)comm)->group;
    local_slot *own = &group->slots[comm->rank];
    int turn = (int)(call->number & 1);
    /* Device memory: the ranks only meet here, their devices do the rest (comm_nccl.c). */
    size_t bytes = call->on_device ? 0 : (size_t)call->count * trek_dtype_size(call->dtype);
    bool small = call->kind == TREK_COMM_BARRIER || call->on_device ||
                 (bytes <= SMALL_BYTES && (call->kind == TREK_COMM_ALL_REDUCE || call->kind == TREK_COMM_BROADCAST));
    own->call[turn] = *call;
    if (small && bytes)
        memcpy(own->small[turn], call->in, bytes);
    if (!enter(group, comm, call) || !calls_agree(group, turn))
        return fail_ended(group);
    if (small) {
        exchange_small(group, comm, call, turn, bytes);
    } else {
        exchange(group, comm, call, turn);
        leave(group);
    }
    return TREK_OK;
}

static void local_abort(trek_comm *comm, const char *reason)
{
    char message[TREK_ERROR_SIZE];
    snprintf(message, sizeof message, "the group was aborted through rank %d%s%s", comm->rank, reason && *reason ? ": " : "",
             reason ? reason : "");
    end_group(((local_comm *)comm)->group, TREK_ERR_CANCELLED, message);
    trek_comm_nccl_abort(comm);
}

static bool local_ended(const trek_comm *comm)
{
    return atomic_load(&((const local_comm *)comm)->group->gate.word) & ENDED;
}

static void release_group(local_group *group)
{
    if (atomic_fetch_sub(&group->handles, 1) != 1)
        return;
    pthread_mutex_destroy(&group->lock);
    trek_free(group->tables);
    trek_block_free(group->slots);
    trek_block_free(group);
}

static void local_free(trek_comm *comm)
{
    local_group *group = ((local_comm *)comm)->group;
    char message[64];
    snprintf(message, sizeof message, "rank %d has left the group", comm->rank);
    end_group(group, TREK_ERR_PEER, message);
    trek_comm_nccl_detach(comm);
    release_group(group);
    trek_free(comm);
}

static const trek_comm_engine local_engine = { .name = "local", .run = local_run, .abort = local_abort, .ended = local_ended,
                                               .free = local_free };

void trek_comm_local_set_spin(trek_comm *comm, bool spin)
{
    if (comm->engine == &local_engine)
        atomic_store(&((local_comm *)comm)->group->spin, spin);
}

static local_group *group_new(int world)
{
    local_group *group = trek_block_alloc(sizeof *group);
    if (!group)
        return NULL;
    memset(group, 0, sizeof *group);
    group->world = world;
    group->slots = trek_block_alloc((size_t)world * sizeof *group->slots);
    group->tables = trek_calloc(2 * (size_t)world * (size_t)world, sizeof *group->tables);
    if (!group->slots || !group->tables || pthread_mutex_init(&group->lock, NULL) != 0) {
        trek_fail(TREK_ERR_MEMORY, "comm_local: no memory for %d ranks", world);
        trek_free(group->tables);
        trek_block_free(group->slots);
        trek_block_free(group);
        return NULL;
    }
    memset(group->slots, 0, (size_t)world * sizeof *group->slots);
    for (int r = 0; r < world; r++) {
        group->slots[r].ins = group->tables + 2 * (size_t)r * (size_t)world;
        group->slots[r].outs = (void **)(group->slots[r].ins + world);
    }
    atomic_init(&group->spin, world <= trek_cores());
    return group;
}

static trek_status check_local(const trek_device *devices, int n, trek_comm **comms)
{
    if (!comms)
        return trek_fail_missing("comm_local", "place for the handles");
    if (n < 1 || n > TREK_MAX_RANKS)
        return trek_fail(TREK_ERR_ARGUMENT, "comm_local: %d ranks; it takes 1 to %d", n, TREK_MAX_RANKS);
    for (int r = 0; devices && r < n; r++) {
        const trek_backend *backend = trek_backend_get(devices[r].type);
        char why[256];
        if (!backend)
            return trek_status_get();
        if (!backend->usable(devices[r].index, why, sizeof why))
            return trek_fail(TREK_ERR_DEVICE, "comm_local: rank %d: %s", r, why);
    }
    return TREK_OK;
}

trek_status trek_comm_local(const trek_device *devices, int n, trek_comm **comms)
{
    trek_status status = check_local(devices, n, comms);
    if (status != TREK_OK)
        return status;
    local_group *group = group_new(n);
    int made = 0;
    for (; group && made < n; made++) {
        local_comm *comm = trek_calloc(1, sizeof *comm);
        if (!comm)
            break;
        comm->base = (trek_comm){ .engine = &local_engine, .rank = made, .world = n, .deadline_ns = 600000000000,
                                  .device = devices ? devices[made] : trek_cpu(made) };
        comm->group = group;
        comms[made] = &comm->base;
        atomic_fetch_add(&group->handles, 1);
    }
    if (made == n && trek_comm_nccl_attach(comms, devices, n) == TREK_OK)
        return TREK_OK;
    if (group && made == 0) {
        atomic_store(&group->handles, 1);
        release_group(group);
    }
    while (made > 0)
        trek_comm_free(&comms[--made]);
    return trek_status_get();
}
