/* SPDX-License-Identifier: Apache-2.0 */
/* How the shared engine moves data. There are two ways, which give the same bits:
 *
 * direct: if every process's array lies in its window, each process combines its slice of all arrays and writes the
 * result to all, as the threads of one process do. Nothing is copied, and only the memory's speed limits it. Other
 * processes write to this process's array until the meeting at the end. In a reduce-scatter and an all-gather, each process
 * reads what it needs from the others' arrays, which nobody writes to.
 *
 * copied: data go through chunks in the segment that stay in the caches and are double-buffered. In step k a process
 * puts in its part of chunk k, combines its slice of chunk k - 1 and takes out chunk k - 2; then all meet. No process
 * writes to another's memory. */
#include <string.h>

#include "distributed/comm/shared/shared_internal.h"
#include "tensor/dtypes.h"
#include "tensor/pool.h"

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* --- direct --------------------------------------------------------------------------------- */

typedef struct direct_work {
    trek_comm_shared *self;
    const trek_comm_call *call;
    int64_t begin;
} direct_work;

static void combine_part(void *arg, int64_t begin, int64_t end)
{
    const direct_work *w = arg;
    int world = w->self->met.base.world;
    bool to_all = w->call->kind != TREK_COMM_REDUCE;
    trek_comm_combine(w->call->dtype, w->call->op, w->self->met.ins, world, w->self->met.outs + (to_all ? 0 : w->call->root),
                      to_all ? world : 1, w->begin + begin, w->begin + end);
}

/* Returns false if not all ranks share their arrays. *ended: the group has ended. */
static bool run_direct(trek_comm_shared *self, const trek_comm_call *call, int turn, bool *ended)
{
    int rank = self->met.base.rank, world = self->met.base.world;
    for (int r = 0; r < world; r++) {
        uint64_t offset = *trek_shared_offset(self, turn, r);
        if (offset == 0)
            return false;
        self->met.ins[r] = self->met.outs[r] = r == rank ? call->out : self->window[r] + offset;
    }
    int64_t begin = trek_meeting_slice(call->count, rank, world), end = trek_meeting_slice(call->count, rank + 1, world);
    direct_work work = { self, call, begin };
    trek_parallel(end - begin, 1 << 15, combine_part, &work);
    self->direct++;
    *ended = !trek_meeting_come(&self->met, call->number);
    if (*ended) /* another process may still write to the array, now or whenever it continues */
        trek_shared_window_retire(call->out);
    return true;
}

/* Finds where the others' arrays are. Returns false if not all ranks share them. */
static bool find_arrays(trek_comm_shared *self, const trek_comm_call *call, int turn)
{
    for (int r = 0; r < self->met.base.world; r++) {
        uint64_t offset = *trek_shared_offset(self, turn, r);
        if (offset == 0)
            return false;
        self->met.ins[r] = r == self->met.base.rank ? call->in : self->window[r] + offset;
    }
    return true;
}

static void combine_all(void *arg, int64_t begin, int64_t end)
{
    const direct_work *w = arg;
    void *out = w->call->out;
    trek_comm_combine(w->call->dtype, w->call->op, w->self->met.ins, w->self->met.base.world, &out, 1, begin, end);
}

/* Both return false if not all ranks share their arrays. */
static bool direct_reduce_scatter(trek_comm_shared *self, const trek_comm_call *call, int turn, bool *ended)
{
    if (!find_arrays(self, call, turn))
        return false;
    size_t to_own = (size_t)(self->met.base.rank * call->count) * trek_dtype_size(call->dtype);
    for (int r = 0; r < self->met.base.world; r++)
        self->met.ins[r] = (const char *)self->met.ins[r] + to_own;
    direct_work work = { self, call, 0 };
    trek_parallel(call->count, 1 << 15, combine_all, &work);
    self->direct++;
    *ended = !trek_meeting_come(&self->met, call->number);
    return true;
}

static bool direct_all_gather(trek_comm_shared *self, const trek_comm_call *call, int turn, bool *ended)
{
    size_t bytes = (size_t)call->count * trek_dtype_size(call->dtype);
    if (!find_arrays(self, call, turn))
        return false;
    for (int k = 0; k < self->met.base.world; k++) { /* not all from the same rank first */
        int r = (self->met.base.rank + k) % self->met.base.world;
        char *to = (char *)call->out + (size_t)r * bytes;
        if (to != self->met.ins[r])
            memcpy(to, self->met.ins[r], bytes);
    }
    self->direct++;
    *ended = !trek_meeting_come(&self->met, call->number);
    return true;
}

/* --- copied --------------------------------------------------------------------------------- */

/* Returns how many elements of a call go through the segment at once. parts: how many of them a rank puts in. */
static int64_t chunk_elements(const trek_comm_shared *self, const trek_comm_call *call, int parts)
{
    return (int64_t)(self->layout.chunk / (size_t)parts / trek_dtype_size(call->dtype)) / 64 * 64;
}

static void copy_elements(char *to, const char *from, int64_t begin, int64_t end, size_t size)
{
    if (end > begin && to != from)
        memcpy(to + (size_t)begin * size, from + (size_t)begin * size, (size_t)(end - begin) * size);
}

/* Copies everything except this rank's slice. */
static void copy_others(const trek_comm_shared *self, char *to, const char *from, int64_t n, size_t size)
{
    copy_elements(to, from, 0, trek_meeting_slice(n, self->met.base.rank, self->met.base.world), size);
    copy_elements(to, from, trek_meeting_slice(n, self->met.base.rank + 1, self->met.base.world), n, size);
}

/* Returns whether this rank gets a reduction's result. */
static bool takes(const trek_comm_shared *self, const trek_comm_call *call)
{
    return call->kind != TREK_COMM_REDUCE || call->root == self->met.base.rank;
}

static void combine_slice(trek_comm_shared *self, const trek_comm_call *call, int turn, int64_t at, int64_t n)
{
    int rank = self->met.base.rank, world = self->met.base.world;
    size_t size = trek_dtype_size(call->dtype);
    for (int r = 0; r < world; r++)
        self->met.ins[r] = r == rank ? (const char *)call->in + (size_t)at * size : trek_shared_part(self, turn, r);
    self->met.outs[0] = trek_shared_result(self, turn);
    self->met.outs[1] = takes(self, call) ? (char *)call->out + (size_t)at * size : NULL;
    trek_comm_combine(call->dtype, call->op, self->met.ins, world, self->met.outs, takes(self, call) ? 2 : 1,
                      trek_meeting_slice(n, rank, world), trek_meeting_slice(n, rank + 1, world));
}

/* Reduces to all, or to the root. */
static bool copied_reduce(trek_comm_shared *self, const trek_comm_call *call)
{
    size_t size = trek_dtype_size(call->dtype);
    int64_t chunk = chunk_elements(self, call, 1), chunks = (call->count + chunk - 1) / chunk;
    for (int64_t k = 0; k < chunks + 2; k++) {
        if (k > 0 && !trek_meeting_come(&self->met, call->number))
            return false;
        int64_t put = k * chunk, combine = put - chunk, take = put - 2 * chunk;
        if (k < chunks)
            copy_others(self, trek_shared_part(self, (int)(k & 1), self->met.base.rank),
                        (const char *)call->in + (size_t)put * size,
                        smaller(chunk, call->count - put), size);
        if (k > 0 && k <= chunks)
            combine_slice(self, call, (int)((k - 1) & 1), combine, smaller(chunk, call->count - combine));
        if (k > 1 && takes(self, call))
            copy_others(self, (char *)call->out + (size_t)take * size, trek_shared_result(self, (int)(k & 1)),
                        smaller(chunk, call->count - take), size);
    }
    return true;
}

static bool copied_broadcast(trek_comm_shared *self, const trek_comm_call *call)
{
    size_t size = trek_dtype_size(call->dtype);
    int64_t chunk = chunk_elements(self, call, 1), chunks = (call->count + chunk - 1) / chunk;
    bool root = call->root == self->met.base.rank;
    for (int64_t k = 0; k < chunks + 1; k++) {
        if (k > 0 && !trek_meeting_come(&self->met, call->number))
            return false;
        int64_t put = k * chunk, take = put - chunk;
        if (root && k < chunks)
            copy_elements(trek_shared_part(self, (int)(k & 1), call->root), (const char *)call->in + (size_t)put * size, 0,
                          smaller(chunk, call->count - put), size);
        if (!root && k > 0)
            copy_elements((char *)call->out + (size_t)take * size, trek_shared_part(self, (int)((k - 1) & 1), call->root), 0,
                          smaller(chunk, call->count - take), size);
    }
    if (root && call->out != call->in && call->count)
        memcpy(call->out, call->in, (size_t)call->count * size);
    return true;
}

static bool copied_all_gather(trek_comm_shared *self, const trek_comm_call *call)
{
    size_t size = trek_dtype_size(call->dtype);
    int64_t chunk = chunk_elements(self, call, 1), chunks = (call->count + chunk - 1) / chunk;
    for (int64_t k = 0; k < chunks + 1; k++) {
        if (k > 0 && !trek_meeting_come(&self->met, call->number))
            return false;
        int64_t put = k * chunk, take = put - chunk;
        if (k < chunks)
            copy_elements(trek_shared_part(self, (int)(k & 1), self->met.base.rank), (const char *)call->in + (size_t)put * size,
                          0,
                          smaller(chunk, call->count - put), size);
        for (int r = 0; r < self->met.base.world && k > 0; r++)
            if (r != self->met.base.rank)
                copy_elements((char *)call->out + (size_t)(r * call->count + take) * size,
                              trek_shared_part(self, (int)((k - 1) & 1), r), 0, smaller(chunk, call->count - take), size);
    }
    copy_elements((char *)call->out + (size_t)(self->met.base.rank * call->count) * size, call->in, 0, call->count, size);
    return true;
}

static bool copied_reduce_scatter(trek_comm_shared *self, const trek_comm_call *call)
{
    int rank = self->met.base.rank, world = self->met.base.world;
    size_t size = trek_dtype_size(call->dtype);
    int64_t chunk = chunk_elements(self, call, world), chunks = (call->count + chunk - 1) / chunk;
    for (int64_t k = 0; k < chunks + 1; k++) {
        if (k > 0 && !trek_meeting_come(&self->met, call->number))
            return false;
        int64_t put = k * chunk, combine = put - chunk;
        for (int r = 0; r < world && k < chunks; r++)
            copy_elements(trek_shared_part(self, (int)(k & 1), rank) + (size_t)(r * chunk) * size,
                          (const char *)call->in + (size_t)(r * call->count + put) * size, 0, smaller(chunk, call->count - put),
                          size);
        if (k == 0)
            continue;
        for (int r = 0; r < world; r++)
            self->met.ins[r] = trek_shared_part(self, (int)((k - 1) & 1), r) + (size_t)(rank * chunk) * size;
        void *out = (char *)call->out + (size_t)combine * size;
        trek_comm_combine(call->dtype, call->op, self->met.ins, world, &out, 1, 0, smaller(chunk, call->count - combine));
    }
    return true;
}

void trek_shared_show(trek_meeting_comm *met, const trek_comm_call *call, int turn)
{
    trek_comm_shared *self = (trek_comm_shared *)(void *)met;
    bool reduces = call->kind == TREK_COMM_ALL_REDUCE || call->kind == TREK_COMM_REDUCE;
    bool reads = call->kind == TREK_COMM_REDUCE_SCATTER || call->kind == TREK_COMM_ALL_GATHER;
    bool may = self->windows && (reads || (reduces && call->in == call->out)) && self->met.base.world > 1;
    *trek_shared_offset(self, turn, self->met.base.rank) = may ? trek_shared_window_find(call->in) : 0;
}

bool trek_shared_exchange(trek_meeting_comm *met, const trek_comm_call *call, int turn)
{
    trek_comm_shared *self = (trek_comm_shared *)(void *)met;
    bool ended = false;
    switch (call->kind) {
    case TREK_COMM_ALL_REDUCE:
    case TREK_COMM_REDUCE:
        return run_direct(self, call, turn, &ended) ? !ended : copied_reduce(self, call);
    case TREK_COMM_BROADCAST:
        return copied_broadcast(self, call);
    case TREK_COMM_ALL_GATHER:
        return direct_all_gather(self, call, turn, &ended) ? !ended : copied_all_gather(self, call);
    case TREK_COMM_REDUCE_SCATTER:
        return direct_reduce_scatter(self, call, turn, &ended) ? !ended : copied_reduce_scatter(self, call);
    default:
        return true;
    }
}
