/* SPDX-License-Identifier: Apache-2.0 */
/* The local engine: ranks that are threads of one process. Each rank reduces its slice of all ranks' buffers in rank
 * order and writes the result to all of them.
 *
 * A collective meets twice. The entrance can fail (time-out, abort, a rank that left, calls that differ). From there
 * to the exit ranks read and write each other's memory, so the exit cannot be interrupted; only copying lies between
 * the two. A call whose data fit into a slot of the meeting needs no exit. */
#include <string.h>

#include "distributed/comm/meeting.h"
#include "distributed/comm/nccl.h"
#include "tensor/backend.h"
#include "tensor/memory_internal.h"
#include "tensor/pool.h"

/* The memory of a rank's call. There are two, which are used alternately. */
typedef struct local_memory {
    _Alignas(64) const void *in[2];
    void *out[2];
} local_memory;

typedef struct local_group {
    trek_meeting meeting;
    atomic_int handles;         /* not yet freed */
    trek_meeting_slot *slots;
    local_memory *memory;
} local_group;

typedef struct local_comm {
    trek_meeting_comm met;
    local_group *group;
} local_comm;

static local_comm *of(void *comm) { return comm; }

/* --- calls ------------------------------------------------------------------------------------ */

static void show(trek_meeting_comm *self, const trek_comm_call *call, int turn)
{
    local_memory *own = &of(self)->group->memory[self->base.rank];
    own->in[turn] = call->in;
    own->out[turn] = call->out;
}

static bool exchange(trek_meeting_comm *self, const trek_comm_call *call, int turn)
{
    const local_memory *memory = of(self)->group->memory;
    int rank = self->base.rank, world = self->base.world;
    size_t bytes = (size_t)call->count * trek_dtype_size(call->dtype);
    for (int r = 0; r < world; r++) {
        self->ins[r] = memory[r].in[turn];
        self->outs[r] = memory[r].out[turn];
    }
    switch (call->kind) {
    case TREK_COMM_ALL_REDUCE:
        trek_comm_combine(call->dtype, call->op, self->ins, world, self->outs, world,
                          trek_meeting_slice(call->count, rank, world),
                          trek_meeting_slice(call->count, rank + 1, world));
        break;
    case TREK_COMM_REDUCE:
        trek_comm_combine(call->dtype, call->op, self->ins, world, &self->outs[call->root], 1,
                          trek_meeting_slice(call->count, rank, world), trek_meeting_slice(call->count, rank + 1, world));
        break;
    case TREK_COMM_BROADCAST:
        if (call->out != self->ins[call->root])
            memcpy(call->out, self->ins[call->root], bytes);
        break;
    case TREK_COMM_ALL_GATHER:
        for (int r = 0; r < world; r++)
            if ((char *)call->out + (size_t)r * bytes != self->ins[r])
                memcpy((char *)call->out + (size_t)r * bytes, self->ins[r], bytes);
        break;
    case TREK_COMM_REDUCE_SCATTER:
        for (int r = 0; r < world; r++)
            self->ins[r] = (const char *)self->ins[r] + (size_t)rank * bytes;
        trek_comm_combine(call->dtype, call->op, self->ins, world, &call->out, 1, 0, call->count);
        break;
    default:
        break;
    }
    trek_meeting_come_surely(self);
    return true;
}

/* --- handles ------------------------------------------------------------------------------------ */

static void group_free(local_group *group)
{
    trek_block_free(group->slots);
    trek_block_free(group->memory);
    trek_block_free(group);
}

static void local_leave(trek_comm *comm) { trek_meeting_leave_group(&of(comm)->met); }

static void local_free(trek_comm *comm)
{
    local_comm *self = of(comm);
    if (atomic_fetch_sub(&self->group->handles, 1) == 1)
        group_free(self->group);
    trek_meeting_tables_free(&self->met);
    trek_free(self);
}

static const trek_comm_engine local_engine = { .name = TREK_COMM_LOCAL_ENGINE, .adds_bf16 = true, .run = trek_meeting_run,
                                               .end = trek_meeting_end,
                                               .ended = trek_meeting_ended, .leave = local_leave, .free = local_free };

void trek_comm_local_set_spin(trek_comm *comm, bool spin)
{
    if (comm->engine == &local_engine)
        atomic_store(&of(comm)->group->meeting.spin, spin);
}

static local_group *group_new(int world)
{
    local_group *group = trek_block_alloc(sizeof *group);
    if (!group)
        return NULL;
    memset(group, 0, sizeof *group);
    group->slots = trek_block_alloc((size_t)world * sizeof *group->slots);
    group->memory = trek_block_alloc((size_t)world * sizeof *group->memory);
    if (!group->slots || !group->memory) {
        group_free(group);
        return NULL;
    }
    memset(group->slots, 0, (size_t)world * sizeof *group->slots);
    atomic_store(&group->meeting.spin, world <= trek_cores());
    return group;
}

static trek_status check_local(const trek_device *devices, int n)
{
    for (int r = 0; devices && r < n; r++) {
        const trek_backend *backend = trek_backend_get(devices[r].type);
        char why[256];
        if (!backend)
            return trek_error_status();
        if (!backend->usable(devices[r].index, why, sizeof why))
            return trek_fail(TREK_ERR_DEVICE, "comm_local: rank %d: %s", r, why);
    }
    return TREK_OK;
}

/* Makes a handle and takes its reference to the group. Returns NULL on failure (MEMORY). */
static trek_comm *handle_new(local_group *group, int rank, int world, trek_device device)
{
    local_comm *self = trek_calloc(1, sizeof *self);
    if (!self)
        return NULL;
    self->met = (trek_meeting_comm){ .base = { .engine = &local_engine, .rank = rank, .world = world,
                                               .deadline_ns = 600000000000, .device = device },
                                     .meeting = &group->meeting, .slots = group->slots, .show = show, .exchange = exchange };
    self->group = group;
    if (trek_meeting_tables_new(&self->met) != TREK_OK) {
        trek_meeting_tables_free(&self->met);
        trek_free(self);
        return NULL;
    }
    atomic_fetch_add(&group->handles, 1);
    return &self->met.base;
}

trek_status trek_comm_local(const trek_device *devices, int n, trek_comm **comms)
{
    trek_device room[TREK_MAX_RANKS];
    if (!comms)
        return trek_fail_missing("comm_local", "comms");
    if (n < 1 || n > TREK_MAX_RANKS)
        return trek_fail(TREK_ERR_ARGUMENT, "comm_local: %d ranks; it takes 1 to %d", n, TREK_MAX_RANKS);
    devices = trek_devices_resolve(devices, n, room);
    trek_status status = check_local(devices, n);
    if (status != TREK_OK)
        return status;
    local_group *group = group_new(n);
    int made = 0;
    while (group && made < n && (comms[made] = handle_new(group, made, n, devices ? devices[made] : trek_cpu(made))))
        made++;
    if (made == n && trek_comm_nccl_attach(comms, devices, n) == TREK_OK)
        return TREK_OK;
    if (group && made == 0)
        group_free(group);
    while (made > 0)
        trek_comm_free(&comms[--made]);
    return trek_error_status();
}
