/* SPDX-License-Identifier: Apache-2.0 */
/* Handles: what the caller's thread does. It queues calls, waits for them, and ends the group if nothing has moved
 * for a whole deadline. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "distributed/comm/async/async_internal.h"
#include "distributed/system/system.h"
#include "tensor/environment.h"
#include "tensor/memory_internal.h"
#include "tensor/pool.h"

enum { LARGEST_PIECE = 256 << 20, DIRECT_WORLD = 32 };
#define CLOSE_NS 5000000000
#define CLOSE_WAIT_NS 100000000
/* How often a library is looked at even if it reports progress by itself. */
#define RECHECK_NS 100000000

static trek_async_comm *of(trek_comm *comm) { return (trek_async_comm *)(void *)comm; }

/* --- the end of a group ----------------------------------------------------------------- */

void trek_async_comm_wake(trek_async_comm *comm)
{
    atomic_fetch_add(&comm->done.word, 1);
    trek_gate_wake(&comm->done);
}

void trek_async_comm_end(trek_async_comm *comm, trek_status status, const char *message)
{
    trek_lock_acquire(&comm->lock);
    bool first = trek_comm_end_by(&comm->end, status, message);
    struct trek_control *control = comm->base.control;
    trek_lock_release(&comm->lock);
    if (!first)
        return;
    trek_async_comm_wake(comm);
    trek_async_thread_ring(comm->service);
    trek_async_thread_count(comm->service, 0, true);
    if (control)
        trek_control_end(control, status, message);
}

static trek_status fail_ended(trek_async_comm *comm) { return trek_comm_end_fail(&comm->end, NULL, ""); }

/* Runs on the control thread. */
static void control_ended(void *arg)
{
    trek_async_comm *comm = arg;
    trek_status status = trek_control_fail(comm->base.control);
    char message[TREK_ERROR_SIZE];
    trek_error_take(&status, message);
    trek_async_comm_end(comm, status, message);
}

/* --- waiting -------------------------------------------------------------------------------- */

/* Returns the number of the current call among all calls of the rank, including those on devices. The control channel
 * counts these. Called on the caller's thread. */
static uint64_t present_number(const trek_async_comm *comm)
{
    return comm->queue[atomic_load(&comm->completed) % TREK_ASYNC_QUEUE].number;
}

/* Returns whether a rank has come to the current call: its message has arrived, or it has said so on the control
 * channel. Gloo is asked for messages in rank order, so that a message behind a missing one is not seen. */
static bool has_come(const trek_async_comm *comm, int r)
{
    return atomic_load(&comm->come[r]) ||
           (comm->base.control && trek_control_peer_call(comm->base.control, r) >= present_number(comm));
}

/* Returns whether it is right to keep waiting for those who are missing. Work outside of calls may take long. */
static bool late_ones_excused(trek_async_comm *comm)
{
    if (!comm->base.control || atomic_load(&comm->met))
        return false;
    bool any = false;
    for (int r = 0; r < comm->base.world; r++) {
        if (has_come(comm, r))
            continue;
        if (!trek_control_excused(comm->base.control, r, comm->base.deadline_ns)) {
            if (comm->direct)
                return false;
        } else {
            any = true;
        }
    }
    return any;
}

/* Finds the ranks that have not come, or that have not been heard of; the list is empty if that is not known. */
static trek_comm_late find_late(trek_async_comm *comm)
{
    trek_comm_late late = { 0 };
    for (int r = 0; r < comm->base.world; r++) {
        bool missing = comm->direct && !has_come(comm, r);
        if ((atomic_load(&comm->met) || !comm->direct) && comm->base.control && r != comm->base.rank) {
            char phase[64];
            int64_t silent = 0, in_phase = 0;
            trek_control_peer(comm->base.control, r, phase, sizeof phase, &silent, &in_phase);
            missing = silent > 3000000000 || trek_control_peer_call(comm->base.control, r) < present_number(comm);
        }
        if (missing)
            trek_comm_late_add(&late, r);
    }
    return late;
}

static void end_by_timeout(trek_async_comm *comm)
{
    char text[128], message[TREK_ERROR_SIZE];
    trek_call_note call = trek_comm_note(&comm->queue[atomic_load(&comm->completed) % TREK_ASYNC_QUEUE]);
    trek_comm_late late = find_late(comm);
    if (atomic_load(&comm->met))
        snprintf(message, sizeof message,
                 "%s, call %llu of rank %d: all ranks had come, but nothing has moved for %g s; silent: %s",
                 trek_call_text(&call, text, sizeof text), (unsigned long long)call.number, comm->base.rank,
                 (double)comm->base.deadline_ns * 1e-9, late.count ? late.ranks : "no rank in particular");
    else
        trek_comm_late_text(&late, &comm->base, &call, "come", message);
    trek_async_comm_end(comm, TREK_ERR_TIMEOUT, message);
}

/* Looks at the late ranks when nothing has moved for the deadline. Returns the time from which the deadline counts
 * next. The group may have ended instead. */
static int64_t look_at_late_ones(trek_async_comm *comm)
{
    int64_t limit = comm->base.deadline_ns;
    if (late_ones_excused(comm))
        return trek_now_ns() - limit + (limit < 1000000000 ? limit : 1000000000); /* and looks again soon */
    end_by_timeout(comm);
    return 0;
}

/* Looks at the call once, for a caller that does the thread's work. Returns whether it could. *moved: something
 * happened. */
static bool drive_once(trek_async_comm *comm, int64_t *quiet_since, bool *moved)
{
    if (!trek_async_thread_drive(comm, moved))
        return false;
    if (*moved)
        *quiet_since = trek_now_ns();
    else if (!comm->table->tells)
        trek_async_rest(*quiet_since);
    return true;
}

/* Sleeps until something changes, or at most 0.1 s if the library must be asked again. Returns whether nothing has
 * moved since moved_ns although the deadline has passed. */
static bool sleep_until(trek_async_comm *comm, unsigned word, int64_t until, int64_t moved_ns)
{
    int64_t look = trek_now_ns() + RECHECK_NS;
    trek_gate_wait(&comm->done, word, comm->spin, until && until < look ? until : look);
    return until && trek_now_ns() > until && atomic_load(&comm->progress_ns) == moved_ns;
}

/* Waits until `number` calls are done or the group has ended. drive: does the thread's work meanwhile. */
static trek_status wait_for(trek_async_comm *comm, uint64_t number, bool drive)
{
    int64_t from = trek_now_ns(), quiet_since = from;
    atomic_store(&comm->driven, drive);
    for (;;) {
        unsigned word = atomic_load(&comm->done.word);
        if (trek_async_comm_ended(comm))
            return fail_ended(comm);
        if (atomic_load(&comm->completed) >= number)
            return TREK_OK;
        int64_t moved_ns = atomic_load(&comm->progress_ns), limit = comm->base.deadline_ns;
        int64_t until = limit ? (moved_ns > from ? moved_ns : from) + limit : 0;
        bool moved = false, late = false;
        if (drive && !drive_once(comm, &quiet_since, &moved)) { /* the thread is already at work and does this call, too */
            drive = false;
            atomic_store(&comm->driven, false);
            trek_async_thread_ring(comm->service);
        }
        if (!drive || (comm->table->tells && !moved))
            late = sleep_until(comm, word, until, moved_ns);
        else if (!moved)
            late = until && trek_now_ns() > until;
        if (late)
            from = look_at_late_ones(comm);
    }
}

/* --- the engine --------------------------------------------------------------------------------- */

static trek_status submit(trek_async_comm *comm, const trek_comm_call *call)
{
    uint64_t queued = atomic_load(&comm->submitted);
    if (trek_async_comm_ended(comm))
        return fail_ended(comm);
    if (queued >= TREK_ASYNC_QUEUE) {
        trek_status status = wait_for(comm, queued - TREK_ASYNC_QUEUE + 1, false);
        if (status != TREK_OK)
            return status;
    }
    comm->queue[queued % TREK_ASYNC_QUEUE] = *call;
    atomic_store(&comm->submitted, queued + 1);
    return TREK_OK;
}

static trek_status async_start(trek_comm *base, const trek_comm_call *call)
{
    trek_status status = submit(of(base), call);
    if (status == TREK_OK)
        trek_async_thread_ring(of(base)->service);
    return status;
}

static trek_status async_finish(trek_comm *base)
{
    trek_async_comm *comm = of(base);
    return wait_for(comm, atomic_load(&comm->submitted), false);
}

/* After calls that were started, the thread is at work anyway. */
static trek_status async_run(trek_comm *base, const trek_comm_call *call)
{
    trek_async_comm *comm = of(base);
    bool drive = comm->table->any_thread && atomic_load(&comm->completed) == atomic_load(&comm->submitted);
    trek_status status = submit(comm, call);
    if (status != TREK_OK)
        return status;
    if (!drive)
        trek_async_thread_ring(comm->service);
    status = wait_for(comm, atomic_load(&comm->submitted), drive);
    atomic_store(&comm->driven, false);
    return status;
}

static void async_end(trek_comm *base, trek_status status, const char *message)
{
    trek_async_comm_end(of(base), status, message);
}

static bool async_ended(const trek_comm *base) { return trek_async_comm_ended((const trek_async_comm *)(const void *)base); }

/* Frees a handle after its last reference. Memory to which the library may still write is never freed. */
void trek_async_comm_release(trek_async_comm *comm)
{
    if (atomic_fetch_sub(&comm->references, 1) != 1 || comm->group)
        return;
    trek_lock_destroy(&comm->lock);
    trek_block_free(comm->memory);
    trek_free(comm->mine);
    trek_free(comm->notes);
    trek_free(comm->requests);
    trek_free(comm->ins);
    trek_free(comm->come);
    trek_free(comm->ranks);
    trek_block_free(comm);
}

/* Waits until the thread has given the group back and closed the handle, because the program may finalise MPI next. Time in which
 * the whole process stood still gives the thread no chance, so waits are counted. */
static void wait_until_closed(trek_async_comm *comm)
{
    for (int64_t waited = 0; !atomic_load(&comm->closed);) {
        unsigned word = atomic_load(&comm->done.word);
        if (atomic_load(&comm->closed) || trek_gate_wait(&comm->done, word, false, trek_now_ns() + CLOSE_WAIT_NS))
            continue;
        waited += CLOSE_WAIT_NS;
        if (waited >= CLOSE_NS)
            return;
    }
    while (atomic_load(&comm->references) > 1) /* wait for the thread's next step, after which it no longer uses the handle */
        trek_thread_yield();
}

/* Calls that were started and not waited for would write to memory that the caller may free from here on. */
static void async_leave(trek_comm *base)
{
    trek_async_comm *comm = of(base);
    if (!trek_async_comm_ended(comm) && atomic_load(&comm->completed) != atomic_load(&comm->submitted))
        trek_async_comm_end(comm, TREK_ERR_PEER, "the handle was given back while calls were under way");
    if (base->control)
        trek_control_forget(base->control, comm);
    trek_async_channel_leave(comm);
    trek_lock_acquire(&comm->lock);
    base->control = NULL;
    trek_lock_release(&comm->lock);
}

static void async_free(trek_comm *base)
{
    trek_async_comm *comm = of(base);
    bool known = atomic_load(&comm->references) > 1;
    atomic_store(&comm->closing, true);
    trek_async_thread_ring(comm->service);
    if (known)
        wait_until_closed(comm);
    else if (comm->group && comm->table->group_free(comm->group, false))
        comm->group = NULL;
    trek_async_thread_count(comm->service, -1, false);
    trek_async_comm_release(comm);
}

void trek_async_comm_free(trek_async_comm *comm) { trek_comm_destroy(&comm->base); }

/* --- making one ------------------------------------------------------------------------------------ */

void trek_async_set_sizes(trek_async_service *service, size_t piece, int direct)
{
    atomic_store(&service->piece, piece);
    atomic_store(&service->direct, direct);
}

static size_t piece_size(trek_async_service *service, int world)
{
    size_t piece = atomic_load(&service->piece);
    if (!piece)
        piece = (size_t)trek_process_number(service->piece_variable, 1, LONG_MAX, (long)service->default_piece);
    if (piece > LARGEST_PIECE)
        piece = LARGEST_PIECE;
    size_t least = (size_t)world * 16; /* one element of each rank */
    return (piece < least ? least : piece) / 64 * 64 + 64;
}

static bool allocate_parts(trek_async_comm *comm)
{
    size_t world = (size_t)comm->base.world;
    comm->stride = sizeof(trek_call_note) + (comm->direct ? TREK_ASYNC_SMALL : 0);
    comm->mine = trek_calloc(1, comm->stride);
    comm->notes = trek_calloc(world, comm->stride);
    comm->requests = trek_calloc(2 * world, sizeof *comm->requests);
    comm->ins = trek_calloc(world, sizeof *comm->ins);
    comm->come = trek_calloc(world, sizeof *comm->come);
    comm->memory = trek_block_alloc(2 * TREK_ASYNC_SLOTS * comm->piece);
    if (!comm->mine || !comm->notes || !comm->requests || !comm->ins || !comm->come || !comm->memory)
        return false;
    for (int k = 0; k < TREK_ASYNC_SLOTS; k++) {
        comm->slots[k].in = comm->memory + (size_t)(2 * k) * comm->piece;
        comm->slots[k].out = comm->slots[k].in + comm->piece;
    }
    return true;
}

static bool copy_ranks(trek_async_comm *comm, const int *ranks)
{
    comm->ranks = ranks ? trek_calloc((size_t)comm->base.world, sizeof *ranks) : NULL;
    if (comm->ranks)
        memcpy(comm->ranks, ranks, (size_t)comm->base.world * sizeof *ranks);
    return !ranks || comm->ranks;
}

static trek_comm_engine engine_of(const trek_async_service *service)
{
    return (trek_comm_engine){ .name = service->engine_name, .ends_together = service->ends_together,
                               .adds_bf16 = service->table.adds_bf16,
                               .run = async_run,
                               .end = async_end,
                               .ended = async_ended,
                               .leave = async_leave,
                               .free = async_free,
                               .start = async_start,
                               .finish = async_finish };
}

trek_async_comm *trek_async_comm_new(trek_async_service *service, const trek_async_opts *opts)
{
    trek_async_comm *comm = trek_block_alloc(sizeof *comm);
    if (!comm)
        return NULL;
    memset(comm, 0, sizeof *comm);
    comm->engine = engine_of(service);
    comm->base = (trek_comm){
        .engine = &comm->engine, .rank = opts->rank, .world = opts->world, .device = trek_cpu(0), .deadline_ns = 600000000000
    };
    comm->service = service;
    comm->table = &service->table;
    comm->piece = piece_size(service, opts->world);
    int direct = atomic_load(&service->direct);
    bool by_channel = opts->control && opts->by_channel && opts->world > TREK_TREE_FAN;
    comm->direct = by_channel || opts->world <= (direct ? direct : DIRECT_WORLD);
    comm->spin = 2 * opts->local_world <= trek_cores();
    atomic_init(&comm->references, 1);
    trek_lock_init(&comm->lock);
    trek_async_thread_count(service, 1, false);
    comm->base.control = opts->control; /* the hook may run at once */
    if (by_channel)
        trek_async_channel_use(comm, opts->control);
    if (allocate_parts(comm) && copy_ranks(comm, opts->ranks) &&
        (!opts->control || trek_control_on_end(opts->control, control_ended, comm) == TREK_OK))
        return comm;
    trek_async_channel_leave(comm);
    trek_async_thread_count(service, -1, false);
    trek_async_comm_release(comm);
    return NULL;
}

/* Gives the handle to the thread and waits until the group is made. */
static trek_status join(trek_async_comm *comm)
{
    atomic_fetch_add(&comm->references, 1);
    trek_async_thread_add(comm);
    int64_t until = trek_now_ns() + TREK_ASYNC_JOIN_NS;
    for (;;) {
        unsigned word = atomic_load(&comm->done.word);
        if (trek_async_comm_ended(comm))
            return fail_ended(comm);
        if (atomic_load(&comm->joined))
            return TREK_OK;
        if (!trek_gate_wait(&comm->done, word, false, until)) {
            char message[96];
            snprintf(message, sizeof message, "%s: not all processes have joined within 300 s", comm->service->name);
            trek_async_comm_end(comm, TREK_ERR_TIMEOUT, message);
        }
    }
}

trek_status trek_async_comm_form(trek_control *control, trek_async_comm *comm, trek_status status,
                                 trek_status (*meet)(trek_control *control, trek_async_comm *comm, trek_status status),
                                 trek_comm **result)
{
    if (status == TREK_OK && !comm)
        status = trek_error_status();
    status = meet(control, comm, status);
    if (status == TREK_OK)
        status = join(comm);
    if (status == TREK_OK)
        *result = &comm->base;
    else if (comm)
        trek_async_comm_free(comm);
    return status;
}

trek_status trek_async_agree(trek_control *control, trek_status status, const char *what)
{
    int processes = trek_control_processes(control);
    int32_t own = (int32_t)status, all[TREK_MAX_RANKS];
    trek_status met = processes <= TREK_MAX_RANKS ? trek_control_gather(control, &own, sizeof own, all, TREK_ASYNC_JOIN_NS)
                                                  : TREK_ERR_UNSUPPORTED;
    if (status != TREK_OK || met != TREK_OK)
        return status != TREK_OK ? status : met;
    for (int r = 0; r < processes; r++)
        if (all[r] != TREK_OK)
            return trek_fail((trek_status)all[r], "job: process %d %s: %s", r, what,
                             trek_status_description((trek_status)all[r]));
    return TREK_OK;
}
