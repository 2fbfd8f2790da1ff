/* SPDX-License-Identifier: Apache-2.0 */
/* The shared engine: ranks that are processes of one machine. The protocol is that of
 * the threads (comm_local.c), and so are the bits. A meeting is a count of who has come
 * and one word, on which all wait: its low bits count meetings, its high bit says that
 * the group has ended. Whether a meeting took place is decided by one compare-and-swap,
 * so all ranks see the same, at the exit of a call as at its entrance: between processes
 * one can die while it copies.
 *
 * Who dies, stops or leaves is found out by the control channel, whose thread sets the
 * high bit and wakes all (on_end). */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "distributed/comm/nccl.h"
#include "distributed/comm/shared/shared_internal.h"
#include "tensor/memory_internal.h"
#include "tensor/trace.h"

#define ENDED 0x80000000u

/* How long a rank sleeps before it looks whether the others are alive, although nobody has woken it. */
#define LOOK_NS 200000000

static inline trek_comm_shared *shared_of(trek_comm *comm) { return (trek_comm_shared *)(void *)comm; }

/* The first reason counts. `tell`: the channel, too. */
static void end_group(trek_comm_shared *self, trek_status status, const char *message, bool tell)
{
    trek_shared_segment *segment = self->segment;
    int none = 0;
    if (atomic_compare_exchange_strong(&segment->ending, &none, 1)) {
        segment->status = (int)status;
        snprintf(segment->message, sizeof segment->message, "%s", message);
        atomic_store(&segment->ending, 2);
    }
    atomic_fetch_or(&segment->gate.word, ENDED);
    trek_gate_wake(&segment->gate);
    if (tell)
        trek_control_end(self->base.control, status, message);
}

/* On the channel's thread, or on one that has found that the channel has ended. The thread's error stays what it was. */
static void end_with_channel(void *arg)
{
    trek_comm_shared *self = arg;
    trek_status before, status;
    char kept[TREK_ERROR_SIZE], message[TREK_ERROR_SIZE];
    trek_error_take(&before, kept);
    trek_control_fail(self->base.control);
    trek_error_take(&status, message);
    if (before != TREK_OK)
        trek_fail(before, "%s", kept);
    end_group(self, status, message, false);
}

static trek_status fail_ended(trek_comm_shared *self, const char *more)
{
    trek_shared_segment *segment = self->segment;
    int64_t until = trek_clock_ns() + LOOK_NS;
    while (atomic_load(&segment->ending) != 2) { /* it is being written, or who wrote it has died */
        if (trek_clock_ns() > until)
            return trek_control_ended(self->base.control)
                       ? trek_control_fail(self->base.control)
                       : trek_fail(TREK_ERR_PEER, "the group has ended: a process died while it said why");
        nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
    }
    char message[TREK_ERROR_SIZE];
    memcpy(message, segment->message, sizeof message);
    message[sizeof message - 1] = '\0';
    return trek_fail((trek_status)segment->status, "%s%s", message, more);
}

/* --- meetings --------------------------------------------------------------------------------- */

/* Whether all who are missing are known to be at something else for good reasons. */
static bool all_excused(trek_comm_shared *self, uint64_t meeting)
{
    for (int r = 0; r < self->base.world; r++)
        if (atomic_load(&trek_shared_slot_of(self, r)->meetings) < meeting &&
            !trek_control_excused(self->base.control, r, self->base.deadline_ns))
            return false;
    return true;
}

static void end_by_timeout(trek_comm_shared *self, const trek_comm_call *call, uint64_t meeting)
{
    char text[128], missing[256] = "";
    size_t used = 0;
    int count = 0;
    uint64_t made = 0;
    for (int r = 0; r < self->base.world; r++) {
        trek_shared_slot *slot = trek_shared_slot_of(self, r);
        if (atomic_load(&slot->meetings) >= meeting)
            continue;
        if (count++ == 0)
            made = atomic_load(&slot->entered);
        if (used < sizeof missing - 16)
            used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%d", used ? ", " : "", r);
    }
    char message[TREK_ERROR_SIZE];
    snprintf(message, sizeof message, "%s, call %llu of rank %d: rank%s %s did not %s within %g s (%llu calls so far)",
             trek_comm_call_text(call, text, sizeof text), (unsigned long long)call->number, self->base.rank,
             count > 1 ? "s" : "", missing, made < call->number ? "come" : "go on",
             (double)self->base.deadline_ns * 1e-9, (unsigned long long)made);
    end_group(self, TREK_ERR_TIMEOUT, message, true);
}

/* The last to arrive opens the gate, unless the group has ended. */
static bool open_gate(trek_shared_segment *segment, unsigned word)
{
    unsigned expected = word;
    atomic_store_explicit(&segment->arrived, 0, memory_order_relaxed);
    bool open = atomic_compare_exchange_strong(&segment->gate.word, &expected, (word + 1) & ~ENDED);
    if (open)
        trek_gate_wake(&segment->gate);
    return open;
}

bool trek_shared_meet(trek_comm_shared *self, const trek_comm_call *call)
{
    trek_shared_segment *segment = self->segment;
    unsigned word = atomic_load(&segment->gate.word); /* stays, or ends, until this rank has come, too */
    uint64_t meeting = atomic_fetch_add(&trek_shared_slot_of(self, self->base.rank)->meetings, 1) + 1;
    if (word & ENDED)
        return false;
    if (atomic_fetch_add(&segment->arrived, 1) + 1 == self->base.world)
        return open_gate(segment, word);
    int64_t deadline = self->base.deadline_ns ? trek_clock_ns() + self->base.deadline_ns : 0;
    for (bool spin = self->spin;; spin = false) {
        int64_t look = trek_clock_ns() + LOOK_NS;
        if (trek_gate_wait(&segment->gate, word, spin, deadline && deadline < look ? deadline : look))
            break;
        if (trek_control_ended(self->base.control)) {
            end_with_channel(self);
        } else if (deadline && trek_clock_ns() >= deadline) {
            if (all_excused(self, meeting))
                deadline = trek_clock_ns() + self->base.deadline_ns;
            else
                end_by_timeout(self, call, meeting);
        }
    }
    return (atomic_load(&segment->gate.word) & ~ENDED) != word;
}

static bool same_call(const trek_comm_call *a, const trek_comm_call *b)
{
    return a->number == b->number && a->kind == b->kind && a->op == b->op && a->dtype == b->dtype && a->root == b->root &&
           a->count == b->count && a->on_device == b->on_device;
}

/* Every rank finds the same difference. */
static bool calls_agree(trek_comm_shared *self, int turn)
{
    const trek_comm_call *first = &trek_shared_slot_of(self, 0)->call[turn];
    for (int r = 0; r < self->base.world; r++) {
        const trek_comm_call *call = &trek_shared_slot_of(self, r)->call[turn];
        if (call->kind != TREK_COMM_INVALID && same_call(first, call))
            continue;
        char mine[128], other[128], message[TREK_ERROR_SIZE];
        if (r == 0)
            snprintf(message, sizeof message, "call %llu: rank 0 came with wrong arguments", (unsigned long long)first->number);
        else
            snprintf(message, sizeof message, "the ranks' calls differ: rank 0's call %llu is %s, rank %d's call %llu is %s",
                     (unsigned long long)first->number, trek_comm_call_text(first, mine, sizeof mine), r,
                     (unsigned long long)call->number, trek_comm_call_text(call, other, sizeof other));
        end_group(self, TREK_ERR_COMM, message, true);
        return false;
    }
    return true;
}

/* --- calls ------------------------------------------------------------------------------------ */

/* All from the slots: every rank computes the whole result. */
static void exchange_small(trek_comm_shared *self, const trek_comm_call *call, int turn, size_t bytes)
{
    if (bytes == 0)
        return;
    if (call->kind == TREK_COMM_BROADCAST) {
        memcpy(call->out, trek_shared_slot_of(self, call->root)->small[turn], bytes);
        return;
    }
    for (int r = 0; r < self->base.world; r++)
        self->ins[r] = trek_shared_slot_of(self, r)->small[turn];
    void *out = call->out;
    trek_comm_combine(call->dtype, call->op, self->ins, self->base.world, &out, 1, 0, call->count);
}

static trek_status shared_run(trek_comm *comm, const trek_comm_call *call)
{
    trek_comm_shared *self = shared_of(comm);
    trek_shared_slot *own = trek_shared_slot_of(self, comm->rank);
    int turn = (int)(call->number & 1);
    /* Device memory: the ranks only meet here, their devices do the rest (comm_nccl.c). */
    size_t bytes = call->on_device ? 0 : (size_t)call->count * trek_dtype_size(call->dtype);
    bool small = call->kind == TREK_COMM_BARRIER || call->kind == TREK_COMM_INVALID || call->on_device || bytes == 0 ||
                 (bytes <= TREK_SHARED_SMALL && (call->kind == TREK_COMM_ALL_REDUCE || call->kind == TREK_COMM_BROADCAST));
    own->call[turn] = *call;
    if (small && bytes)
        memcpy(own->small[turn], call->in, bytes);
    else if (!small)
        trek_shared_show(self, call, turn);
    atomic_store(&own->entered, call->number);
    if (!trek_shared_meet(self, call) || !calls_agree(self, turn))
        return fail_ended(self, "");
    if (small)
        exchange_small(self, call, turn, bytes);
    else if (!trek_shared_exchange(self, call, turn))
        return fail_ended(self, "; it happened in the middle: what the call was to compute is undefined");
    return TREK_OK;
}

static void shared_abort(trek_comm *comm, const char *reason)
{
    char message[TREK_ERROR_SIZE];
    snprintf(message, sizeof message, "the group was aborted through rank %d%s%s", comm->rank, reason && *reason ? ": " : "",
             reason ? reason : "");
    end_group(shared_of(comm), TREK_ERR_CANCELLED, message, true);
}

static bool shared_ended(const trek_comm *comm)
{
    return atomic_load(&((const trek_comm_shared *)(const void *)comm)->segment->gate.word) & ENDED;
}

static void release(trek_comm_shared *self)
{
    trek_shared_segment_leave(self);
    trek_free(self->window);
    trek_free(self->window_bytes);
    trek_free(self->ins);
    trek_free(self->outs);
    trek_block_free(self);
}

/* The channel's owner tells the others that this process leaves; those who share memory know at once. */
static void shared_free(trek_comm *comm)
{
    trek_comm_shared *self = shared_of(comm);
    char message[64];
    snprintf(message, sizeof message, "rank %d has left the group", comm->rank);
    trek_control_forget(comm->control, self);
    end_group(self, TREK_ERR_PEER, message, false);
    trek_comm_nccl_detach(comm);
    release(self);
}

static const trek_comm_engine shared_engine = { .name = "shared", .run = shared_run, .abort = shared_abort, .ended = shared_ended,
                                                .free = shared_free };

uint64_t trek_comm_shared_direct(const trek_comm *comm)
{
    return comm->engine == &shared_engine ? ((const trek_comm_shared *)(const void *)comm)->direct : 0;
}

trek_status trek_comm_shared_new(trek_control *control, trek_comm **comm)
{
    int world = trek_control_processes(control);
    trek_comm_shared *self = trek_block_alloc(sizeof *self);
    if (self) {
        memset(self, 0, sizeof *self);
        self->base = (trek_comm){ .engine = &shared_engine, .rank = trek_control_process(control), .world = world,
                                  .device = trek_cpu(0), .deadline_ns = 600000000000, .control = control };
        self->window = trek_calloc((size_t)world, sizeof *self->window);
        self->window_bytes = trek_calloc((size_t)world, sizeof *self->window_bytes);
        self->ins = trek_calloc((size_t)world, sizeof *self->ins);
        self->outs = trek_calloc((size_t)world + 1, sizeof *self->outs);
    }
    if (!self || !self->window || !self->window_bytes || !self->ins || !self->outs) {
        trek_control_end(control, TREK_ERR_MEMORY, trek_error()); /* the others would wait */
        if (self)
            release(self);
        return trek_status_get();
    }
    trek_status status = trek_shared_segment_join(self);
    if (status == TREK_OK && (status = trek_control_on_end(control, end_with_channel, self)) != TREK_OK)
        trek_control_end(control, status, trek_error()); /* the others have joined */
    if (status != TREK_OK) {
        release(self);
        return status;
    }
    *comm = &self->base;
    return TREK_OK;
}
