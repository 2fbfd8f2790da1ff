/* SPDX-License-Identifier: Apache-2.0 */
/* The MPI engine's handles: what the caller's thread does. It queues calls, waits
 * for them, and ends the group when nothing has moved for a deadline. */
#include "distributed/comm/mpi/mpi.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/comm/mpi/mpi_internal.h"
#include "distributed/comm/nccl.h"
#include "distributed/control/control.h"
#include "tensor/environment.h"
#include "tensor/memory_internal.h"
#include "tensor/pool.h"
#include "tensor/trace.h"

/* Pieces that stay in the cache while MPI works on them: several times faster than large ones on one machine. */
enum { DEFAULT_PIECE = 256 << 10, LARGEST_PIECE = 256 << 20, DIRECT_WORLD = 32 };
#define JOIN_NS 300000000000
#define CLOSE_NS 5000000000

static atomic_size_t wanted_piece;
static atomic_int wanted_direct;

void trek_comm_mpi_set_sizes(size_t piece, int direct)
{
    atomic_store(&wanted_piece, piece);
    atomic_store(&wanted_direct, direct);
}

static trek_mpi_comm *of(trek_comm *comm) { return (trek_mpi_comm *)(void *)comm; }

/* --- the end of a group ----------------------------------------------------------------- */

void trek_mpi_comm_end(trek_mpi_comm *comm, trek_status status, const char *message)
{
    pthread_mutex_lock(&comm->lock);
    bool first = !comm->ended;
    if (first) {
        comm->ended = true;
        comm->status = status;
        snprintf(comm->message, sizeof comm->message, "%s", message);
    }
    struct trek_control *control = comm->base.control;
    pthread_mutex_unlock(&comm->lock);
    if (!first)
        return;
    atomic_store(&comm->over, true);
    atomic_fetch_add(&comm->done.word, 1);
    trek_gate_wake(&comm->done);
    trek_mpi_thread_ring();
    trek_mpi_thread_count(0, true);
    if (control)
        trek_control_end(control, status, message);
}

static trek_status fail_ended(trek_mpi_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    trek_status status = comm->status;
    char message[TREK_ERROR_SIZE];
    memcpy(message, comm->message, sizeof message);
    pthread_mutex_unlock(&comm->lock);
    return trek_fail(status, "%s", message);
}

/* On the control thread. */
static void control_ended(void *arg)
{
    trek_mpi_comm *comm = arg;
    trek_status status = trek_control_fail(comm->base.control);
    char message[TREK_ERROR_SIZE];
    trek_error_take(&status, message);
    trek_mpi_comm_end(comm, status, message);
}

/* --- waiting -------------------------------------------------------------------------------- */

/* Whether it is right to wait on for those who are missing: what they do outside of calls may take its time. */
static bool late_ones_excused(trek_mpi_comm *comm)
{
    if (!comm->base.control || atomic_load(&comm->met))
        return false;
    bool any = false;
    for (int r = 0; r < comm->base.world; r++) {
        if (atomic_load(&comm->come[r]))
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

/* "ranks 1, 3": who has not come, or of whom nothing has been heard; empty if that is not known. */
static int name_missing(trek_mpi_comm *comm, char *text, size_t size)
{
    int count = 0;
    size_t used = 0;
    text[0] = 0;
    for (int r = 0; r < comm->base.world && used + 16 < size; r++) {
        bool missing = comm->direct && !atomic_load(&comm->come[r]);
        if ((atomic_load(&comm->met) || !comm->direct) && comm->base.control && r != comm->base.rank) {
            char phase[64];
            int64_t silent = 0, in_phase = 0;
            trek_control_peer(comm->base.control, r, phase, sizeof phase, &silent, &in_phase);
            missing = silent > 3000000000 || trek_control_peer_call(comm->base.control, r) < atomic_load(&comm->completed) + 1;
        }
        if (missing && ++count)
            used += (size_t)snprintf(text + used, size - used, "%s%d", used ? ", " : "", r);
    }
    return count;
}

static void end_by_timeout(trek_mpi_comm *comm)
{
    char text[128], missing[256], message[TREK_ERROR_SIZE];
    double seconds = (double)comm->base.deadline_ns * 1e-9;
    uint64_t number = atomic_load(&comm->completed) + 1;
    trek_comm_call_text(&comm->queue[(number - 1) % TREK_MPI_QUEUE], text, sizeof text);
    bool met = atomic_load(&comm->met);
    int count = name_missing(comm, missing, sizeof missing);
    if (count == 0)
        snprintf(missing, sizeof missing, "%s", met ? "no rank in particular" : "another rank");
    if (met)
        snprintf(message, sizeof message, "%s, call %llu of rank %d: all ranks had come, but nothing has moved for %g s; silent: %s", text,
                 (unsigned long long)number, comm->base.rank, seconds, missing);
    else
        snprintf(message, sizeof message, "%s, call %llu of rank %d: %s%s did not come within %g s", text, (unsigned long long)number,
                 comm->base.rank, count > 1 ? "ranks " : count == 1 ? "rank " : "", missing, seconds);
    trek_mpi_comm_end(comm, TREK_ERR_TIMEOUT, message);
}

/* Nothing has moved for the deadline. Returns from when it counts next; the group may have ended instead. */
static int64_t look_at_late_ones(trek_mpi_comm *comm)
{
    int64_t limit = comm->base.deadline_ns;
    if (late_ones_excused(comm))
        return trek_clock_ns() - limit + (limit < 1000000000 ? limit : 1000000000); /* and looked at again soon */
    end_by_timeout(comm);
    return 0;
}

/* Until so many calls are done, or the group has ended. drive: by doing the thread's work. */
static trek_status wait_for(trek_mpi_comm *comm, uint64_t number, bool drive)
{
    int64_t from = trek_clock_ns(), quiet_since = from;
    for (;;) {
        unsigned word = atomic_load(&comm->done.word);
        if (atomic_load(&comm->over))
            return fail_ended(comm);
        if (atomic_load(&comm->completed) >= number)
            return TREK_OK;
        int64_t moved_ns = atomic_load(&comm->progress_ns), limit = comm->base.deadline_ns;
        int64_t until = limit ? (moved_ns > from ? moved_ns : from) + limit : 0;
        bool moved = false, late = false;
        if (drive && trek_mpi_thread_drive(comm, &moved)) {
            if (moved)
                quiet_since = trek_clock_ns();
            else
                trek_mpi_rest(quiet_since);
            late = !moved && until && trek_clock_ns() > until;
        } else {
            if (drive) /* the thread is at work: it takes this on, too */
                trek_mpi_thread_ring();
            drive = false;
            late = !trek_gate_wait(&comm->done, word, comm->spin, until) && atomic_load(&comm->progress_ns) == moved_ns;
        }
        if (late)
            from = look_at_late_ones(comm);
    }
}

/* --- the engine --------------------------------------------------------------------------------- */

static trek_status submit(trek_mpi_comm *comm, const trek_comm_call *call)
{
    uint64_t queued = atomic_load(&comm->submitted);
    if (atomic_load(&comm->over))
        return fail_ended(comm);
    if (queued >= TREK_MPI_QUEUE) {
        trek_status status = wait_for(comm, queued - TREK_MPI_QUEUE + 1, false);
        if (status != TREK_OK)
            return status;
    }
    comm->queue[queued % TREK_MPI_QUEUE] = *call;
    atomic_store(&comm->submitted, queued + 1);
    return TREK_OK;
}

static trek_status mpi_start(trek_comm *base, const trek_comm_call *call)
{
    trek_status status = submit(of(base), call);
    if (status == TREK_OK)
        trek_mpi_thread_ring();
    return status;
}

static trek_status mpi_finish(trek_comm *base)
{
    trek_mpi_comm *comm = of(base);
    return wait_for(comm, atomic_load(&comm->submitted), false);
}

/* Behind started calls, the thread is at work anyway. */
static trek_status mpi_run(trek_comm *base, const trek_comm_call *call)
{
    trek_mpi_comm *comm = of(base);
    bool drive = trek_mpi_thread_shared() && atomic_load(&comm->completed) == atomic_load(&comm->submitted);
    trek_status status = submit(comm, call);
    if (status != TREK_OK)
        return status;
    if (!drive)
        trek_mpi_thread_ring();
    return wait_for(comm, atomic_load(&comm->submitted), drive);
}

static void mpi_abort(trek_comm *base, const char *reason)
{
    char message[TREK_ERROR_SIZE];
    snprintf(message, sizeof message, "the group was aborted through rank %d%s%s", base->rank, reason && *reason ? ": " : "",
             reason ? reason : "");
    trek_mpi_comm_end(of(base), TREK_ERR_CANCELLED, message);
    trek_comm_nccl_abort(base);
}

static bool mpi_ended(const trek_comm *base) { return atomic_load(&((const trek_mpi_comm *)(const void *)base)->over); }

/* The last reference. Memory that MPI may still write to is kept for good. */
void trek_mpi_comm_release(trek_mpi_comm *comm)
{
    if (atomic_fetch_sub(&comm->references, 1) != 1 || comm->group)
        return;
    pthread_mutex_destroy(&comm->lock);
    trek_block_free(comm->memory);
    trek_free(comm->mine);
    trek_free(comm->notes);
    trek_free(comm->requests);
    trek_free(comm->ins);
    trek_free(comm->come);
    trek_block_free(comm);
}

/* Started calls that nobody has waited for would write to memory that the caller may free from here on. */
static void mpi_free(trek_comm *base)
{
    trek_mpi_comm *comm = of(base);
    if (!atomic_load(&comm->over) && atomic_load(&comm->completed) != atomic_load(&comm->submitted))
        trek_mpi_comm_end(comm, TREK_ERR_PEER, "the handle was given back while calls were under way");
    if (base->control)
        trek_control_forget(base->control, comm);
    pthread_mutex_lock(&comm->lock);
    base->control = NULL;
    pthread_mutex_unlock(&comm->lock);
    trek_comm_nccl_detach(base);
    bool known = atomic_load(&comm->references) > 1;
    atomic_store(&comm->closing, true);
    trek_mpi_thread_ring();
    int64_t until = trek_clock_ns() + CLOSE_NS; /* the program may finalise MPI next */
    while (known && !atomic_load(&comm->closed)) {
        unsigned word = atomic_load(&comm->done.word);
        if (!atomic_load(&comm->closed) && !trek_gate_wait(&comm->done, word, false, until))
            break;
    }
    trek_mpi_thread_count(-1, false);
    trek_mpi_comm_release(comm);
}

static const trek_comm_engine mpi_engine = { "mpi", mpi_run, mpi_abort, mpi_ended, mpi_free, mpi_start, mpi_finish };

/* --- making one ------------------------------------------------------------------------------------ */

static size_t piece_size(int world)
{
    size_t piece = atomic_load(&wanted_piece);
    if (!piece)
        piece = (size_t)trek_environment_number("TREK_MPI_PIECE", 1, LONG_MAX, 0);
    if (!piece)
        piece = DEFAULT_PIECE;
    if (piece > LARGEST_PIECE)
        piece = LARGEST_PIECE;
    size_t least = (size_t)world * 16; /* an element of each rank */
    return (piece < least ? least : piece) / 64 * 64 + 64;
}

static bool allocate_parts(trek_mpi_comm *comm)
{
    size_t world = (size_t)comm->base.world;
    comm->stride = sizeof(trek_mpi_note) + (comm->direct ? TREK_MPI_SMALL : 0);
    comm->piece = piece_size(comm->base.world);
    comm->mine = trek_calloc(1, comm->stride);
    comm->notes = trek_calloc(world, comm->stride);
    comm->requests = trek_calloc(2 * world, sizeof *comm->requests);
    comm->ins = trek_calloc(world, sizeof *comm->ins);
    comm->come = trek_calloc(world, sizeof *comm->come);
    comm->memory = trek_block_alloc(2 * TREK_MPI_SLOTS * comm->piece);
    if (!comm->mine || !comm->notes || !comm->requests || !comm->ins || !comm->come || !comm->memory)
        return false;
    for (int k = 0; k < TREK_MPI_SLOTS; k++) {
        comm->slots[k].in = comm->memory + (size_t)(2 * k) * comm->piece;
        comm->slots[k].out = comm->slots[k].in + comm->piece;
    }
    return true;
}

static trek_mpi_comm *new_comm(const trek_mpi_table *table)
{
    trek_mpi_comm *comm = trek_block_alloc(sizeof *comm);
    if (!comm)
        return NULL;
    memset(comm, 0, sizeof *comm);
    comm->base = (trek_comm){ .engine = &mpi_engine, .rank = table->rank, .world = table->world, .device = trek_cpu(0),
                              .deadline_ns = 600000000000 };
    comm->table = table;
    int direct = atomic_load(&wanted_direct);
    comm->direct = table->world <= (direct ? direct : DIRECT_WORLD);
    comm->spin = 2 * table->local_world <= trek_cores();
    atomic_init(&comm->references, 1);
    pthread_mutex_init(&comm->lock, NULL);
    if (allocate_parts(comm))
        return comm;
    trek_mpi_comm_release(comm);
    return NULL;
}

static trek_status check_world(const trek_mpi_table *table, struct trek_control *control)
{
    if (!control)
        return TREK_OK;
    int rank = trek_control_process(control), world = trek_control_processes(control);
    if (rank == table->rank && world == table->world)
        return TREK_OK;
    return trek_fail(TREK_ERR_COMM, "this is process %d of %d of the job, but rank %d of %d to MPI (%s)%s", rank, world, table->rank,
                     table->world, table->library, table->world == 1 ? ": was it started by mpirun or srun?" : "");
}

/* MPI_Comm_idup is done when all processes have asked for it. */
static trek_status join(trek_mpi_comm *comm)
{
    atomic_fetch_add(&comm->references, 1);
    trek_mpi_thread_add(comm);
    int64_t until = trek_clock_ns() + JOIN_NS;
    for (;;) {
        unsigned word = atomic_load(&comm->done.word);
        if (atomic_load(&comm->over))
            return fail_ended(comm);
        if (atomic_load(&comm->joined))
            return TREK_OK;
        if (!trek_gate_wait(&comm->done, word, false, until))
            trek_mpi_comm_end(comm, TREK_ERR_TIMEOUT, "MPI_Comm_idup: not all processes have come within 300 s");
    }
}

/* Whether all processes have come so far: who has not would be waited for. */
static trek_status agree(struct trek_control *control, trek_status status)
{
    int processes = trek_control_processes(control);
    int32_t own = (int32_t)status, all[TREK_MAX_RANKS];
    trek_status met = processes <= TREK_MAX_RANKS ? trek_control_gather(control, &own, sizeof own, all, JOIN_NS) : TREK_ERR_UNSUPPORTED;
    if (status != TREK_OK || met != TREK_OK)
        return status != TREK_OK ? status : met;
    for (int r = 0; r < processes; r++)
        if (all[r] != TREK_OK)
            return trek_fail((trek_status)all[r], "process %d cannot use MPI: %s", r, trek_status_text((trek_status)all[r]));
    return TREK_OK;
}

trek_status trek_comm_mpi_new(struct trek_control *control, trek_comm **result)
{
    const trek_mpi_table *table;
    if (!result)
        return trek_fail_missing("comm_mpi_new", "place for the handle");
    trek_status status = trek_mpi_thread_use(&table, JOIN_NS);
    if (status == TREK_OK)
        status = check_world(table, control);
    trek_mpi_comm *comm = status == TREK_OK ? new_comm(table) : NULL;
    if (status == TREK_OK && !comm)
        status = trek_status_get();
    if (control)
        status = agree(control, status);
    if (!comm)
        return status;
    trek_mpi_thread_count(1, false);
    if (status == TREK_OK && control) {
        comm->base.control = control;
        status = trek_control_on_end(control, control_ended, comm);
    }
    if (status == TREK_OK)
        status = join(comm);
    if (status == TREK_OK) {
        *result = &comm->base;
        return TREK_OK;
    }
    mpi_free(&comm->base);
    return status;
}
