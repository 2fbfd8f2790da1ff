/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/comm/meeting.h"

#include <stdio.h>
#include <string.h>

#include "distributed/system/system.h"
#include "tensor/dtypes.h"
#include "tensor/memory_internal.h"

#define ENDED 0x80000000u

/* How long a process sleeps before it looks whether the others are alive, if nobody has woken it. */
#define LOOK_NS 200000000

/* --- calls ------------------------------------------------------------------------------------ */

trek_call_note trek_comm_note(const trek_comm_call *call)
{
    return (trek_call_note){ .number = call->number, .count = call->count, .kind = (int32_t)call->kind, .op = (int32_t)call->op,
                             .dtype = (int32_t)call->dtype, .root = call->root, .on_device = call->on_device };
}

void trek_comm_notes_differ(int rank, const trek_call_note *note, int other_rank, const trek_call_note *other, char *text,
                            size_t size)
{
    char one[128], two[128];
    snprintf(text, size, "the ranks' calls differ: rank %d's call %llu is %s, rank %d's call %llu is %s", rank,
             (unsigned long long)note->number, trek_call_text(note, one, sizeof one), other_rank,
             (unsigned long long)other->number,
             trek_call_text(other, two, sizeof two));
}

bool trek_comm_notes_agree(const void *notes, size_t stride, int world, char message[TREK_ERROR_SIZE])
{
    const trek_call_note *first = notes;
    for (int r = 0; r < world; r++) {
        const trek_call_note *note = (const void *)((const char *)notes + (size_t)r * stride);
        if (note->kind != TREK_COMM_INVALID && memcmp(first, note, sizeof *note) == 0)
            continue;
        if (r == 0)
            snprintf(message, TREK_ERROR_SIZE, "call %llu: rank 0 came with wrong arguments", (unsigned long long)first->number);
        else
            trek_comm_notes_differ(0, first, r, note, message, TREK_ERROR_SIZE);
        return false;
    }
    return true;
}

void trek_comm_finish_small(const trek_comm_call *call, const void *const *ins, int world)
{
    size_t bytes = (size_t)call->count * trek_dtype_size(call->dtype);
    void *out = call->out;
    if (bytes == 0)
        return;
    if (call->kind == TREK_COMM_ALL_REDUCE)
        trek_comm_combine(call->dtype, call->op, ins, world, &out, 1, 0, call->count);
    else if (call->kind == TREK_COMM_BROADCAST)
        memcpy(out, ins[call->root], bytes);
    else
        for (int r = 0; r < world; r++)
            memcpy((char *)out + (size_t)r * bytes, ins[r], bytes);
}

/* --- the end of a group --------------------------------------------------------------------------- */

bool trek_comm_end_by(trek_comm_end *end, trek_status status, const char *message)
{
    int none = 0;
    if (!atomic_compare_exchange_strong(&end->state, &none, 1))
        return false;
    end->status = (int)status;
    snprintf(end->message, sizeof end->message, "%s", message);
    atomic_store(&end->state, 2);
    return true;
}

trek_status trek_comm_end_fail(trek_comm_end *end, trek_control *control, const char *more)
{
    int64_t until = control ? trek_now_ns() + LOOK_NS : INT64_MAX;
    while (!trek_comm_end_is_known(end)) {
        if (trek_now_ns() > until)
            return trek_control_ended(control)
                       ? trek_control_fail(control)
                       : trek_fail(TREK_ERR_PEER, "job: the group has ended: a process died while it gave the reason");
        trek_sleep_ns(100000);
    }
    char message[TREK_ERROR_SIZE];
    memcpy(message, end->message, sizeof message);
    message[sizeof message - 1] = '\0';
    return trek_fail((trek_status)end->status, "%s%s", message, more);
}

/* --- who is late ------------------------------------------------------------------------------------ */

void trek_comm_late_add(trek_comm_late *late, int rank)
{
    late->count++;
    if (late->used + 16 < sizeof late->ranks)
        late->used += (size_t)snprintf(late->ranks + late->used, sizeof late->ranks - late->used, "%s%d", late->used ? ", " : "",
                                       rank);
}

void trek_comm_late_text(const trek_comm_late *late, const trek_comm *comm, const trek_call_note *call, const char *did,
                         char message[TREK_ERROR_SIZE])
{
    char text[128];
    snprintf(message, TREK_ERROR_SIZE, "%s, call %llu of rank %d: %s%s did not %s within %g s",
             trek_call_text(call, text, sizeof text), (unsigned long long)call->number, comm->rank,
             late->count > 1 ? "ranks " : late->count == 1 ? "rank " : "another rank", late->ranks, did,
             (double)comm->deadline_ns * 1e-9);
}

/* --- meetings in memory ----------------------------------------------------------------------------- */

static trek_meeting_comm *of(trek_comm *comm) { return (trek_meeting_comm *)(void *)comm; }

static void end_here(trek_meeting *meeting, trek_status status, const char *message)
{
    trek_comm_end_by(&meeting->end, status, message);
    atomic_fetch_or(&meeting->gate.word, ENDED);
    trek_gate_wake(&meeting->gate);
}

void trek_meeting_end(trek_comm *comm, trek_status status, const char *message)
{
    end_here(of(comm)->meeting, status, message);
    if (comm->control)
        trek_control_end(comm->control, status, message);
}

bool trek_meeting_ended(const trek_comm *comm)
{
    return atomic_load(&((const trek_meeting_comm *)(const void *)comm)->meeting->gate.word) & ENDED;
}

void trek_meeting_leave_group(trek_meeting_comm *self)
{
    char message[64];
    snprintf(message, sizeof message, "rank %d has left the group", self->base.rank);
    end_here(self->meeting, TREK_ERR_PEER, message);
}

/* Runs on the channel's thread, or on the thread that has noticed the end. It leaves the thread's error as it was. */
void trek_meeting_end_with_channel(void *arg)
{
    trek_meeting_comm *self = arg;
    trek_kept_error before;
    trek_status status;
    char message[TREK_ERROR_SIZE];
    trek_error_keep(&before);
    trek_control_fail(self->base.control);
    trek_error_take(&status, message);
    trek_error_put_back(&before);
    end_here(self->meeting, status, message);
}

/* Returns whether all who are missing are known to have good reasons to be late. */
static bool all_excused(const trek_meeting_comm *self, uint64_t meeting)
{
    for (int r = 0; r < self->base.world && self->base.control; r++)
        if (atomic_load(&self->slots[r].meetings) < meeting &&
            !trek_control_excused(self->base.control, r, self->base.deadline_ns))
            return false;
    return self->base.control != NULL;
}

static void end_by_timeout(trek_meeting_comm *self, uint64_t number, uint64_t meeting)
{
    trek_comm_late late = { 0 };
    uint64_t made = 0;
    for (int r = 0; r < self->base.world; r++) {
        if (atomic_load(&self->slots[r].meetings) >= meeting)
            continue;
        trek_comm_late_add(&late, r);
        if (late.count == 1)
            made = atomic_load(&self->slots[r].entered);
    }
    char message[TREK_ERROR_SIZE];
    trek_comm_late_text(&late, &self->base, &self->slots[self->base.rank].note[number & 1], made < number ? "come" : "continue",
                        message);
    size_t used = strlen(message);
    snprintf(message + used, sizeof message - used, " (%llu calls so far)", (unsigned long long)made);
    trek_meeting_end(&self->base, TREK_ERR_TIMEOUT, message);
}

/* Looks at the others when the deadline has passed or it is time to look. Returns the new deadline. */
static int64_t look_around(trek_meeting_comm *self, uint64_t number, uint64_t meeting, int64_t deadline)
{
    if (self->base.control && trek_control_ended(self->base.control)) {
        trek_meeting_end_with_channel(self);
    } else if (deadline && trek_now_ns() >= deadline) {
        if (all_excused(self, meeting))
            return trek_now_ns() + self->base.deadline_ns;
        end_by_timeout(self, number, meeting);
    }
    return deadline;
}

/* The last rank to arrive opens the gate, unless the group has ended; with `surely`, even then. */
static bool open_gate(trek_meeting *meeting, unsigned count, bool surely)
{
    atomic_store_explicit(&meeting->arrived, 0, memory_order_relaxed);
    unsigned word = atomic_load(&meeting->gate.word);
    do {
        if ((word & ENDED) && !surely)
            return false;
    } while (!atomic_compare_exchange_weak(&meeting->gate.word, &word, (word & ENDED) | ((count + 1) & ~ENDED)));
    trek_gate_wake(&meeting->gate);
    return true;
}

bool trek_meeting_come(trek_meeting_comm *self, uint64_t number)
{
    trek_meeting *m = self->meeting;
    unsigned word = atomic_load(&m->gate.word); /* no round opens the gate before this rank has come, too */
    uint64_t meeting = atomic_fetch_add(&self->slots[self->base.rank].meetings, 1) + 1;
    if (word & ENDED)
        return false;
    if (atomic_fetch_add(&m->arrived, 1) + 1 == self->base.world)
        return open_gate(m, word, false);
    int64_t deadline = self->base.deadline_ns ? trek_now_ns() + self->base.deadline_ns : 0;
    for (bool spin = atomic_load_explicit(&m->spin, memory_order_relaxed);; spin = false) {
        int64_t look = self->base.control ? trek_now_ns() + LOOK_NS : deadline;
        if (trek_gate_wait(&m->gate, word, spin, deadline && deadline < look ? deadline : look))
            break;
        deadline = look_around(self, number, meeting, deadline);
    }
    return (atomic_load(&m->gate.word) & ~ENDED) != word;
}

void trek_meeting_come_surely(trek_meeting_comm *self)
{
    trek_meeting *m = self->meeting;
    unsigned count = atomic_load(&m->gate.word) & ~ENDED;
    if (atomic_fetch_add(&m->arrived, 1) + 1 == self->base.world) {
        open_gate(m, count, true);
        return;
    }
    bool spin = atomic_load_explicit(&m->spin, memory_order_relaxed);
    while ((atomic_load(&m->gate.word) & ~ENDED) == count) {
        trek_gate_wait(&m->gate, count, spin, 0);
        if ((atomic_load(&m->gate.word) & ~ENDED) == count) /* only the end of the group has changed it */
            trek_gate_wait(&m->gate, count | ENDED, spin, 0);
    }
}

/* --- calls in memory ---------------------------------------------------------------------------------- */

int64_t trek_meeting_slice(int64_t count, int rank, int world)
{
    int64_t lines = (count + 63) / 64;
    int64_t start = lines / world * rank + (lines % world < rank ? lines % world : rank);
    return start * 64 < count ? start * 64 : count;
}

static trek_status fail_ended(trek_meeting_comm *self, const char *more)
{
    return trek_comm_end_fail(&self->meeting->end, self->base.control, more);
}

static bool calls_agree(trek_meeting_comm *self, int turn)
{
    char message[TREK_ERROR_SIZE];
    if (trek_comm_notes_agree(&self->slots[0].note[turn], sizeof *self->slots, self->base.world, message))
        return true;
    trek_meeting_end(&self->base, TREK_ERR_COMM, message);
    return false;
}

/* Every rank computes the whole result from the slots. */
static void finish_small(trek_meeting_comm *self, const trek_comm_call *call, int turn)
{
    for (int r = 0; r < self->base.world; r++)
        self->ins[r] = self->slots[r].small[turn];
    trek_comm_finish_small(call, self->ins, self->base.world);
}

trek_status trek_meeting_run(trek_comm *comm, const trek_comm_call *call)
{
    trek_meeting_comm *self = of(comm);
    trek_meeting_slot *own = &self->slots[comm->rank];
    int turn = (int)(call->number & 1);
    bool moves = call->kind != TREK_COMM_BARRIER && call->kind != TREK_COMM_INVALID;
    /* For device memory the ranks only meet here; their devices do the rest (nccl.c). */
    size_t bytes = moves && !call->on_device ? (size_t)call->count * trek_dtype_size(call->dtype) : 0;
    bool small = bytes <= TREK_MEETING_SMALL && (call->kind == TREK_COMM_ALL_REDUCE || call->kind == TREK_COMM_BROADCAST);
    if (trek_meeting_ended(comm)) /* a rank may still be comparing the notes of the last call that all came to */
        return fail_ended(self, "");
    own->note[turn] = trek_comm_note(call);
    if (bytes && small)
        memcpy(own->small[turn], call->in, bytes);
    else if (bytes)
        self->show(self, call, turn);
    atomic_store(&own->entered, call->number);
    if (!trek_meeting_come(self, call->number) || !calls_agree(self, turn))
        return fail_ended(self, "");
    if (bytes && small)
        finish_small(self, call, turn);
    else if (bytes && !self->exchange(self, call, turn))
        return fail_ended(self, "; it happened in the middle: what the call was to compute is undefined");
    return TREK_OK;
}

/* --- handles -------------------------------------------------------------------------------------------- */

trek_status trek_meeting_tables_new(trek_meeting_comm *self)
{
    self->ins = trek_calloc((size_t)self->base.world, sizeof *self->ins);
    self->outs = trek_calloc((size_t)self->base.world + 1, sizeof *self->outs);
    return self->ins && self->outs ? TREK_OK : trek_error_status();
}

void trek_meeting_tables_free(trek_meeting_comm *self)
{
    trek_free(self->ins);
    trek_free(self->outs);
}
