/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/comm/nested.h"

#include <string.h>

#include "tensor/dtypes.h"
#include "tensor/memory_internal.h"

/* What the ranks of a process have in common. A call's memory is written before a meeting of the ranks and read before the next.
 */
typedef struct nested_group {
    trek_comm *between;
    int own, n;              /* this process, and its ranks */
    int *first;              /* [processes + 1] the first rank of each */
    bool even;               /* all processes have as many ranks */
    char **ins, **outs;      /* [n] of the present call */
    trek_status status;      /* of what rank 0 did with other processes, */
    char message[TREK_ERROR_SIZE]; /* and why */
    atomic_int handles;
} nested_group;

typedef struct nested_comm {
    trek_comm base;
    trek_comm *local;
    nested_group *group;
} nested_comm;

static nested_comm *of(trek_comm *comm) { return (nested_comm *)(void *)comm; }

static const trek_comm_engine nested_engine;

struct trek_control *trek_comm_nested_control(const trek_comm *comm)
{
    return comm->engine == &nested_engine ? ((const nested_comm *)(const void *)comm)->group->between->control : NULL;
}

int trek_comm_nested_place(const trek_comm *comm, int rank, int *local)
{
    const nested_group *g = ((const nested_comm *)(const void *)comm)->group;
    int process = 0;
    while (rank >= g->first[process + 1])
        process++;
    *local = rank - g->first[process];
    return process;
}

static size_t item_of(const trek_comm_call *call) { return trek_dtype_size(call->dtype); }

/* Where a process's ranks begin in a whole that has a part of the call's size for each rank. */
static char *part_of(const nested_group *g, const trek_comm_call *call, char *whole, int process)
{
    return whole + (size_t)g->first[process] * (size_t)call->count * item_of(call);
}

static int64_t ranks_of(const nested_group *g, int process) { return g->first[process + 1] - g->first[process]; }

/* --- in the process, before and after the exchange --------------------------------------------------------------------- */

/* Brings together on rank 0, or on the root, what the ranks of this process give. */
static trek_status collect(nested_comm *self, const trek_comm_call *call)
{
    const nested_group *g = self->group;
    int at, root = trek_comm_nested_place(&self->base, call->root, &at);
    trek_comm_call here = *call;
    here.root = 0;
    switch (call->kind) {
    case TREK_COMM_ALL_REDUCE:
        here.kind = TREK_COMM_REDUCE;
        break;
    case TREK_COMM_REDUCE:
        here.root = root == g->own ? at : 0;
        break;
    case TREK_COMM_REDUCE_SCATTER:
        here.kind = TREK_COMM_REDUCE;
        here.count = call->count * self->base.world;
        here.out = g->ins[self->local->rank];
        break;
    case TREK_COMM_ALL_GATHER:
        here.out = part_of(g, call, call->out, g->own);
        break;
    case TREK_COMM_BROADCAST:
        here.root = at;
        if (root != g->own)
            here = (trek_comm_call){ .kind = TREK_COMM_BARRIER };
        break;
    default:
        break;
    }
    return trek_comm_run(self->local, here);
}

/* Gives the ranks of this process what rank 0 has got. */
static trek_status hand_out(nested_comm *self, const trek_comm_call *call)
{
    const nested_group *g = self->group;
    size_t bytes = (size_t)call->count * item_of(call);
    int at, root = trek_comm_nested_place(&self->base, call->root, &at);
    trek_comm_call here = { .kind = TREK_COMM_BROADCAST, .dtype = call->dtype, .count = call->count, .in = call->out,
                            .out = call->out };
    switch (call->kind) {
    case TREK_COMM_ALL_REDUCE:
        break;
    case TREK_COMM_ALL_GATHER:
        here.count = call->count * self->base.world;
        break;
    case TREK_COMM_BROADCAST:
        if (root == g->own)
            return TREK_OK;
        break;
    case TREK_COMM_REDUCE_SCATTER:
        if (bytes > 0 && call->out != g->ins[0] + (size_t)self->base.rank * bytes)
            memmove(call->out, g->ins[0] + (size_t)self->base.rank * bytes, bytes);
        here = (trek_comm_call){ .kind = TREK_COMM_BARRIER };
        break;
    default:
        return TREK_OK;
    }
    return trek_comm_run(self->local, here);
}

/* --- between processes ------------------------------------------------------------------------------------------------- */

/* Runs a call for the part of each process, where they have different numbers of ranks. */
static trek_status run_parts(const nested_group *g, const trek_comm_call *call, char *whole, trek_comm_kind kind)
{
    trek_status status = TREK_OK;
    for (int p = 0; p < g->between->world && status == TREK_OK; p++) {
        char *part = part_of(g, call, whole, p);
        status = trek_comm_run(g->between, (trek_comm_call){ .kind = kind, .op = call->op, .dtype = call->dtype, .root = p,
                                                             .count = call->count * ranks_of(g, p), .in = part, .out = part });
    }
    return status;
}

static trek_status cross(nested_comm *self, const trek_comm_call *call)
{
    const nested_group *g = self->group;
    int at, root = trek_comm_nested_place(&self->base, call->root, &at);
    trek_comm_call far = *call;
    far.root = root;
    far.in = far.out = g->outs[0];
    switch (call->kind) {
    case TREK_COMM_REDUCE:
        far.in = far.out = g->outs[root == g->own ? at : 0];
        break;
    case TREK_COMM_REDUCE_SCATTER:
        if (!g->even)
            return run_parts(g, call, g->ins[0], TREK_COMM_REDUCE);
        far.count = call->count * g->n;
        far.in = g->ins[0];
        far.out = part_of(g, call, g->ins[0], g->own);
        break;
    case TREK_COMM_ALL_GATHER:
        if (!g->even)
            return run_parts(g, call, g->outs[0], TREK_COMM_BROADCAST);
        far.count = call->count * g->n;
        far.in = part_of(g, call, g->outs[0], g->own);
        break;
    default:
        break;
    }
    return trek_comm_run(g->between, far);
}

/* Rank 0 exchanges with other processes, and all learn how it ended. If the ranks of this process could not meet, the other
 * processes must not wait. */
static trek_status exchange(nested_comm *self, const trek_comm_call *call, trek_status own)
{
    nested_group *g = self->group;
    if (own != TREK_OK) {
        if (self->local->rank == 0 && !trek_comm_ended(g->between))
            trek_comm_abort(g->between, trek_error());
        return own;
    }
    if (self->local->rank == 0) {
        g->status = cross(self, call);
        if (g->status != TREK_OK)
            memcpy(g->message, trek_error(), strnlen(trek_error(), sizeof g->message - 1) + 1);
    }
    trek_status met = trek_comm_barrier(self->local);
    if (met != TREK_OK || g->status == TREK_OK)
        return met;
    return self->local->rank == 0 ? g->status : trek_fail(g->status, "%s", g->message);
}

static trek_status nested_run(trek_comm *comm, const trek_comm_call *call)
{
    nested_comm *self = of(comm);
    nested_group *g = self->group;
    if (call->op == TREK_REDUCTION_MEAN && (call->kind == TREK_COMM_ALL_REDUCE || call->kind == TREK_COMM_REDUCE ||
                                            call->kind == TREK_COMM_REDUCE_SCATTER))
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "comm: op: a mean over ranks of several processes; must be a sum, which the caller "
                         "divides");
    if (call->on_device) /* devices carry it out when all have met (nccl.h) */
        return exchange(self, &(trek_comm_call){ .kind = TREK_COMM_BARRIER }, trek_comm_barrier(self->local));
    g->ins[self->local->rank] = (char *)(uintptr_t)call->in;
    g->outs[self->local->rank] = call->out;
    trek_status status = exchange(self, call, collect(self, call));
    return status == TREK_OK ? hand_out(self, call) : status;
}

/* --- handles ----------------------------------------------------------------------------------------------------------- */

static void nested_end(trek_comm *comm, trek_status status, const char *message)
{
    nested_comm *self = of(comm);
    self->local->engine->end(self->local, status, message);
    self->group->between->engine->end(self->group->between, status, message);
}

static bool nested_ended(const trek_comm *comm)
{
    const nested_comm *self = (const nested_comm *)(const void *)comm;
    return trek_comm_ended(self->local) || trek_comm_ended(self->group->between);
}

static void nested_leave(trek_comm *comm) { (void)comm; }

static void group_free(nested_group *g)
{
    trek_free(g->first);
    trek_free(g->ins);
    trek_free(g->outs);
    trek_free(g);
}

static void nested_free(trek_comm *comm)
{
    nested_comm *self = of(comm);
    if (atomic_fetch_sub(&self->group->handles, 1) == 1)
        group_free(self->group);
    trek_free(self);
}

static const trek_comm_engine nested_engine = { .name = "nested", .fills = true, .run = nested_run, .end = nested_end,
                                                .ended = nested_ended, .leave = nested_leave, .free = nested_free };

static nested_group *group_new(trek_comm *between, const int *counts)
{
    int processes = between->world;
    nested_group *g = trek_calloc(1, sizeof *g);
    if (!g)
        return NULL;
    *g = (nested_group){ .between = between, .own = between->rank, .n = counts[between->rank], .even = true };
    g->first = trek_calloc((size_t)processes + 1, sizeof *g->first);
    g->ins = trek_calloc((size_t)g->n, sizeof *g->ins);
    g->outs = trek_calloc((size_t)g->n, sizeof *g->outs);
    if (!g->first || !g->ins || !g->outs)
        return group_free(g), NULL;
    for (int p = 0; p < processes; p++) {
        g->first[p + 1] = g->first[p] + counts[p];
        g->even &= counts[p] == counts[0];
    }
    return g;
}

trek_status trek_comm_nested(trek_comm *const *local, trek_comm *between, const int *counts, trek_comm **made)
{
    nested_group *g = group_new(between, counts);
    if (!g)
        return TREK_ERR_MEMORY;
    for (int r = 0; r < g->n; r++) {
        nested_comm *self = trek_calloc(1, sizeof *self);
        made[r] = self ? &self->base : NULL;
        if (self)
            *self = (nested_comm){ .base = { .engine = &nested_engine, .rank = g->first[g->own] + r,
                                             .world = g->first[between->world], .device = local[r]->device,
                                             .deadline_ns = between->deadline_ns }, .local = local[r], .group = g };
        atomic_fetch_add(&g->handles, self != NULL);
        if (self)
            continue;
        if (r == 0)
            group_free(g);
        while (r > 0)
            trek_comm_free(&made[--r]);
        return TREK_ERR_MEMORY;
    }
    return TREK_OK;
}
