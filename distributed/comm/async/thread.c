/* SPDX-License-Identifier: Apache-2.0 */
/* The communication thread of a library. It initialises the library, finalises it, and carries out what was started.
 * It sleeps when nothing is under way, and otherwise asks the library repeatedly, unless the library reports by
 * itself. Callers that wait do its work on their own call. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "distributed/comm/async/async_internal.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"

/* When peers are this late, they will not come soon. From then on the library is asked only at intervals. */
#define PATIENCE_NS 20000000
#define NAP_NS 50000
#define YIELD_LOOKS 8
#define LEAVE_NS 600000000000
/* How often a library is looked at even if it reports by itself: the control channel may say why it has failed. */
#define RECHECK_NS 100000000

typedef struct begun_services {
    trek_lock lock;
    bool at_exit;
    trek_async_service *first;
} begun_services;

TREK_PER_PROCESS(begun_services, services, { .lock = TREK_LOCK_INIT });
TREK_PER_THREAD(unsigned, looks, 0);

void trek_async_thread_ring(trek_async_service *service)
{
    atomic_fetch_add(&service->bell.word, 1);
    trek_gate_wake(&service->bell);
}

void trek_async_thread_count(trek_async_service *service, int handles, bool by_error)
{
    atomic_fetch_add(&service->handles, handles);
    if (by_error)
        atomic_store(&service->failed, true);
}

static void set_state(trek_async_service *service, trek_async_begun begun, trek_status status, const char *message)
{
    trek_lock_acquire(&service->lock);
    service->begun = begun;
    service->status = status;
    snprintf(service->message, sizeof service->message, "%s", message);
    trek_lock_release(&service->lock);
    atomic_fetch_add(&service->news.word, 1);
    trek_gate_wake(&service->news);
}

/* --- functions for the plug-in ------------------------------------------------------- */

static trek_status host_fail(trek_status status, const char *message) { return trek_fail(status, "%s", message); }

static void host_fold(trek_dtype dtype, trek_reduction op, const void *in, void *inout, int64_t count)
{
    trek_comm_combine(dtype, op, (const void *const[]){ inout, in }, 2, &inout, 1, 0, count);
}

static void end_left(trek_async_service *service, trek_async_comm *comm)
{
    char message[64];
    snprintf(message, sizeof message, "the program has finalised %s", service->name);
    trek_async_comm_end(comm, TREK_ERR_UNSUPPORTED, message);
}

/* Runs on the program's thread, within its MPI_Finalize. */
static void host_leaving(const trek_async_host *host)
{
    trek_async_service *service = host->service;
    trek_lock_acquire(&service->calling);
    atomic_store(&service->gone, true);
    for (trek_async_comm *comm = service->comms; comm; comm = comm->next)
        end_left(service, comm);
    trek_lock_release(&service->calling);
    char message[64];
    snprintf(message, sizeof message, "the program has finalised %s", service->name);
    set_state(service, TREK_ASYNC_GONE, TREK_ERR_UNSUPPORTED, message);
    trek_async_thread_ring(service);
}

static void host_moved(void *owner)
{
    trek_async_comm *comm = owner;
    trek_async_comm_wake(comm);
    if (!atomic_load(&comm->driven))
        trek_async_thread_ring(comm->service);
}

static void host_progressed(void *owner)
{
    atomic_store_explicit(&((trek_async_comm *)owner)->progress_ns, trek_now_ns(), memory_order_relaxed);
}

/* --- the thread ---------------------------------------------------------------------------- */

static void accept_incoming(trek_async_service *service)
{
    trek_lock_acquire(&service->lock);
    trek_async_comm *comm = service->incoming;
    service->incoming = NULL;
    trek_lock_release(&service->lock);
    while (comm) {
        trek_async_comm *next = comm->next;
        comm->next = service->comms;
        service->comms = comm;
        comm = next;
    }
}

/* Closes a handle that is being freed: the library gets its group back. */
static void close_comm(trek_async_comm *comm)
{
    bool clean = !trek_async_comm_ended(comm) && comm->state != TREK_ASYNC_JOINING;
    if (comm->group && comm->table->group_free(comm->group, clean))
        comm->group = NULL;
    atomic_store(&comm->closed, true);
    trek_async_comm_wake(comm);
    trek_async_comm_release(comm);
}

/* Serves all handles. Returns whether an operation is under way. */
static bool serve_all(trek_async_service *service, bool *moved)
{
    bool busy = false;
    trek_lock_acquire(&service->calling);
    accept_incoming(service);
    for (trek_async_comm **at = &service->comms; *at;) {
        trek_async_comm *comm = *at;
        if (atomic_load(&service->gone))
            end_left(service, comm);
        else if (trek_async_comm_advance(comm, moved))
            busy = true;
        if (atomic_load(&comm->closing) && (trek_async_comm_ended(comm) || comm->state == TREK_ASYNC_IDLE)) {
            *at = comm->next;
            close_comm(comm);
        } else {
            at = &comm->next;
        }
    }
    trek_lock_release(&service->calling);
    return busy;
}

void trek_async_rest(int64_t quiet_since)
{
    if (++*looks() % YIELD_LOOKS)
        return; /* not being done does not mean idle: the library may have moved a part */
    if (trek_now_ns() - quiet_since > PATIENCE_NS)
        trek_sleep_ns(NAP_NS);
    else
        trek_thread_yield();
}

static bool begin(trek_async_service *service)
{
    trek_lock_acquire(&service->calling);
    trek_status status = service->table.begin(&service->ours);
    trek_lock_release(&service->calling);
    char message[TREK_ERROR_SIZE];
    snprintf(message, sizeof message, "%s", trek_error());
    trek_error_clear();
    set_state(service, status == TREK_OK ? TREK_ASYNC_READY : TREK_ASYNC_NONE, status, message);
    return status == TREK_OK;
}

/* Waits for more to do. A library that reports by itself need not be asked. */
static void wait_for_more(trek_async_service *service, unsigned word, bool busy, bool moved, int64_t quiet_since)
{
    if (!busy || (!moved && service->table.tells))
        trek_gate_wait(&service->bell, word, false, busy ? trek_now_ns() + RECHECK_NS : 0);
    else if (!moved)
        trek_async_rest(quiet_since);
}

static void *thread_main(void *arg)
{
    trek_async_service *service = arg;
    if (!begin(service))
        return NULL;
    int64_t quiet_since = trek_now_ns();
    bool was_busy = false;
    while (!atomic_load(&service->leave)) {
        unsigned word = atomic_load(&service->bell.word);
        bool moved = false, busy = serve_all(service, &moved);
        if (moved || !was_busy)
            quiet_since = trek_now_ns();
        was_busy = busy;
        if (atomic_load(&service->gone) && !service->comms)
            return NULL;
        wait_for_more(service, word, busy, moved, quiet_since);
    }
    service->table.end();
    char message[64];
    snprintf(message, sizeof message, "%s has been finalised", service->name);
    set_state(service, TREK_ASYNC_GONE, TREK_ERR_UNSUPPORTED, message);
    return NULL;
}

/* --- the other threads' side --------------------------------------------------------------------- */

static bool has_gone(trek_async_service *service)
{
    trek_lock_acquire(&service->lock);
    bool gone = service->begun == TREK_ASYNC_GONE;
    trek_lock_release(&service->lock);
    return gone;
}

/* A group that ended by an error or is still in use means that the program did not end in order. MPI_Finalize would
 * wait for processes that may never come, so it is not called, and the launcher ends the job. */
static void end_service(trek_async_service *service)
{
    trek_lock_acquire(&service->lock);
    bool clean = service->begun == TREK_ASYNC_READY && service->ours && atomic_load(&service->handles) == 0 &&
        !atomic_load(&service->failed);
    trek_lock_release(&service->lock);
    if (!clean)
        return;
    atomic_store(&service->leave, true);
    trek_async_thread_ring(service);
    for (int64_t until = trek_now_ns() + LEAVE_NS;;) { /* news of the thread's beginning may come as late as now */
        unsigned word = atomic_load(&service->news.word);
        if (has_gone(service) || !trek_gate_wait(&service->news, word, false, until))
            return;
    }
}

/* Runs at the end of the program. A child of fork() has none of the threads. */
static void at_program_end(void)
{
    for (trek_async_service *service = services()->first; service && !trek_forked; service = service->next)
        end_service(service);
}

static void end_at_exit(trek_async_service *service)
{
    trek_lock_acquire(&services()->lock);
    bool known = false;
    for (trek_async_service *other = services()->first; other; other = other->next)
        known = known || other == service;
    if (!known) {
        service->next = services()->first;
        services()->first = service;
    }
    if (!services()->at_exit)
        services()->at_exit = trek_process_at_exit(at_program_end);
    trek_lock_release(&services()->lock);
}

static trek_status open_plugin(trek_async_service *service)
{
    if (service->opened)
        return TREK_OK;
    char why[400] = "";
    void *library = trek_process_plugin(service->plugin, why, sizeof why);
    if (!library)
        return trek_fail(TREK_ERR_UNSUPPORTED, "comm_init: no %s: %s (it is built where %s is installed; Debian: %s)",
                         service->name, why, service->name, service->packages);
    trek_async_open_fn open_it;
    *(void **)&open_it = trek_process_symbol(library, service->open_name);
    service->host = (trek_async_host){ .abi = TREK_ASYNC_ABI, .service = service, .fail = host_fail, .alloc = trek_alloc,
                                       .free = trek_free,
                                       .fold = host_fold, .leaving = host_leaving, .moved = host_moved,
                                       .progressed = host_progressed };
    if (!open_it || open_it(TREK_ASYNC_ABI, &service->host, &service->table, why, sizeof why) != TREK_OK)
        return trek_fail(TREK_ERR_UNSUPPORTED, "comm_init: no %s: %s%s", service->name, open_it ? why : service->plugin,
                         open_it ? "" : " is not trek's plug-in");
    service->opened = true;
    return TREK_OK;
}

bool trek_async_thread_there(trek_async_service *service, char *why, size_t size)
{
    trek_lock_acquire(&service->lock);
    bool there = open_plugin(service) == TREK_OK;
    trek_lock_release(&service->lock);
    if (there)
        return true;
    trek_status status;
    char message[TREK_ERROR_SIZE];
    trek_error_take(&status, message);
    snprintf(why, size, "%.*s", (int)size - 1, message);
    return false;
}

/* Starts the communication thread. The library starts its own threads from it, so that they inherit its blocked
 * signals. */
static trek_status start_thread(trek_async_service *service)
{
    trek_thread thread;
    int failed = trek_thread_begin(&thread, thread_main, service);
    if (failed)
        return trek_fail(TREK_ERR_MEMORY, "comm_init: the communication thread cannot be started: %s", strerror(failed));
    trek_thread_detach(thread);
    service->begun = TREK_ASYNC_STARTING;
    end_at_exit(service);
    return TREK_OK;
}

bool trek_async_thread_drive(trek_async_comm *comm, bool *moved)
{
    trek_async_service *service = comm->service;
    if (!trek_lock_try(&service->calling))
        return false;
    bool good = !atomic_load(&service->gone);
    if (good)
        trek_async_comm_advance(comm, moved);
    trek_lock_release(&service->calling);
    return good;
}

trek_status trek_async_thread_use(trek_async_service *service, int64_t timeout_ns)
{
    int64_t deadline = trek_now_ns() + timeout_ns;
    trek_lock_acquire(&service->lock);
    trek_status status = open_plugin(service);
    if (status == TREK_OK && service->begun == TREK_ASYNC_NONE)
        status = start_thread(service);
    while (status == TREK_OK && service->begun == TREK_ASYNC_STARTING) {
        unsigned word = atomic_load(&service->news.word);
        trek_lock_release(&service->lock);
        bool changed = trek_gate_wait(&service->news, word, false, deadline);
        trek_lock_acquire(&service->lock);
        if (!changed)
            status = trek_fail(TREK_ERR_TIMEOUT, "comm_init: %s has not started within %g s", service->name,
                               (double)timeout_ns * 1e-9);
    }
    if (status == TREK_OK && service->begun != TREK_ASYNC_READY)
        status = trek_fail(service->status, "%s", service->message);
    trek_lock_release(&service->lock);
    return status;
}

void trek_async_thread_add(trek_async_comm *comm)
{
    trek_async_service *service = comm->service;
    trek_lock_acquire(&service->lock);
    comm->next = service->incoming;
    service->incoming = comm;
    trek_lock_release(&service->lock);
    trek_async_thread_ring(service);
}
