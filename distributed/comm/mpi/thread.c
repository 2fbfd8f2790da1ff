/* SPDX-License-Identifier: Apache-2.0 */
/* The communication thread: it initialises MPI, finalises it, and carries out what
 * was started; it sleeps when nothing is under way, and asks MPI again and again
 * while something is. Callers that wait do its work on their own call. */
#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "distributed/comm/mpi/mpi_internal.h"
#include "tensor/memory_internal.h"
#include "tensor/plugin.h"
#include "tensor/pool.h"
#include "tensor/trace.h"

/* Peers that are this late are not about to come: from here on MPI is asked now and then only. */
#define PATIENCE_NS 20000000
#define NAP_NS 50000
#define YIELD_LOOKS 8
#define LEAVE_NS 600000000000

typedef enum service_state { NONE, STARTING, READY, GONE } service_state;

/* One in a process, for good: MPI cannot be initialised twice. */
static struct {
    pthread_mutex_t lock;       /* of state, status, message, incoming, table's opening */
    pthread_mutex_t calling;    /* held while MPI is called, and of `comms` */
    service_state state;
    trek_status status;
    char message[TREK_ERROR_SIZE];
    bool opened, ours, at_exit;
    trek_mpi_table table;
    trek_mpi_comm *incoming, *comms;
    trek_gate bell;             /* something to do */
    trek_gate news;             /* the state has changed */
    atomic_bool gone, leave;
    atomic_int handles;
    atomic_bool failed;         /* a group ended by an error */
} service = { .lock = PTHREAD_MUTEX_INITIALIZER, .calling = PTHREAD_MUTEX_INITIALIZER };

static const char leaving_text[] = "the program has finalised MPI";

void trek_mpi_thread_ring(void)
{
    atomic_fetch_add(&service.bell.word, 1);
    trek_gate_wake(&service.bell);
}

void trek_mpi_thread_count(int handles, bool by_error)
{
    atomic_fetch_add(&service.handles, handles);
    if (by_error)
        atomic_store(&service.failed, true);
}

static void set_state(service_state state, trek_status status, const char *message)
{
    pthread_mutex_lock(&service.lock);
    service.state = state;
    service.status = status;
    snprintf(service.message, sizeof service.message, "%s", message);
    pthread_mutex_unlock(&service.lock);
    atomic_fetch_add(&service.news.word, 1);
    trek_gate_wake(&service.news);
}

/* --- what the plug-in is given ------------------------------------------------------- */

static trek_status host_fail(trek_status status, const char *message) { return trek_fail(status, "%s", message); }

static void host_fold(trek_dtype dtype, trek_reduce_op op, const void *in, void *inout, int64_t count)
{
    trek_comm_combine(dtype, op, (const void *const[]){ inout, in }, 2, &inout, 1, 0, count);
}

/* On the program's thread, inside its MPI_Finalize. */
static void host_leaving(void)
{
    pthread_mutex_lock(&service.calling);
    atomic_store(&service.gone, true);
    for (trek_mpi_comm *comm = service.comms; comm; comm = comm->next)
        trek_mpi_comm_end(comm, TREK_ERR_UNSUPPORTED, leaving_text);
    pthread_mutex_unlock(&service.calling);
    set_state(GONE, TREK_ERR_UNSUPPORTED, leaving_text);
    trek_mpi_thread_ring();
}

static const trek_mpi_host host = {
    .abi = TREK_MPI_ABI, .fail = host_fail, .alloc = trek_alloc, .free = trek_free, .fold = host_fold, .leaving = host_leaving,
};

/* --- the thread ---------------------------------------------------------------------------- */

static void accept_incoming(void)
{
    pthread_mutex_lock(&service.lock);
    trek_mpi_comm *comm = service.incoming;
    service.incoming = NULL;
    pthread_mutex_unlock(&service.lock);
    while (comm) {
        trek_mpi_comm *next = comm->next;
        comm->next = service.comms;
        service.comms = comm;
        comm = next;
    }
}

/* A handle that is being freed: MPI gets the communicator back if nothing is under way on it. */
static void close_comm(trek_mpi_comm *comm)
{
    bool clean = !atomic_load(&comm->over) && comm->state != TREK_MPI_JOINING;
    if (comm->group)
        comm->table->group_free(comm->group, clean);
    if (clean)
        comm->group = NULL;
    atomic_store(&comm->closed, true);
    atomic_fetch_add(&comm->done.word, 1);
    trek_gate_wake(&comm->done);
    trek_mpi_comm_release(comm);
}

/* Returns whether something is under way. */
static bool serve_all(bool *moved)
{
    bool busy = false;
    pthread_mutex_lock(&service.calling);
    accept_incoming();
    for (trek_mpi_comm **at = &service.comms; *at;) {
        trek_mpi_comm *comm = *at;
        if (atomic_load(&service.gone))
            trek_mpi_comm_end(comm, TREK_ERR_UNSUPPORTED, leaving_text);
        else if (trek_mpi_comm_advance(comm, moved))
            busy = true;
        if (atomic_load(&comm->closing) && (atomic_load(&comm->over) || comm->state == TREK_MPI_IDLE)) {
            *at = comm->next;
            close_comm(comm);
        } else {
            at = &comm->next;
        }
    }
    pthread_mutex_unlock(&service.calling);
    return busy;
}

void trek_mpi_rest(int64_t quiet_since)
{
    static _Thread_local unsigned looks;
    if (++looks % YIELD_LOOKS)
        return; /* not done is not idle: MPI may have moved a part */
    if (trek_clock_ns() - quiet_since > PATIENCE_NS)
        nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
    else
        sched_yield();
}

static bool begin(void)
{
    pthread_mutex_lock(&service.calling);
    trek_status status = service.table.begin(&service.ours);
    pthread_mutex_unlock(&service.calling);
    char message[TREK_ERROR_SIZE];
    snprintf(message, sizeof message, "%s", trek_error());
    trek_error_clear();
    set_state(status == TREK_OK ? READY : NONE, status, message);
    return status == TREK_OK;
}

static void *thread_main(void *unused)
{
    (void)unused;
    if (!begin())
        return NULL;
    int64_t quiet_since = trek_clock_ns();
    bool was_busy = false;
    while (!atomic_load(&service.leave)) {
        unsigned word = atomic_load(&service.bell.word);
        bool moved = false, busy = serve_all(&moved);
        if (moved || !was_busy)
            quiet_since = trek_clock_ns();
        was_busy = busy;
        if (atomic_load(&service.gone) && !service.comms)
            return NULL;
        if (!busy)
            trek_gate_wait(&service.bell, word, false, 0);
        else if (!moved)
            trek_mpi_rest(quiet_since);
    }
    service.table.end();
    set_state(GONE, TREK_ERR_UNSUPPORTED, "MPI has been finalised");
    return NULL;
}

/* --- the other threads' side --------------------------------------------------------------------- */

/* The program's end. A group that ended by an error, or that is still in use, means that the program did not end in
 * order: MPI_Finalize would wait for processes that may never come. The launcher then ends the job. */
static void at_program_end(void)
{
    pthread_mutex_lock(&service.lock);
    bool clean = service.state == READY && service.ours && atomic_load(&service.handles) == 0 && !atomic_load(&service.failed);
    pthread_mutex_unlock(&service.lock);
    if (!clean)
        return;
    atomic_store(&service.leave, true);
    unsigned word = atomic_load(&service.news.word);
    trek_mpi_thread_ring();
    trek_gate_wait(&service.news, word, false, trek_clock_ns() + LEAVE_NS);
}

static trek_status open_plugin(void)
{
    if (service.opened)
        return TREK_OK;
    char why[400] = "";
    void *library = trek_plugin_open("trek-mpi", why, sizeof why);
    if (!library)
        return trek_fail(TREK_ERR_UNSUPPORTED, "no MPI: %s", why);
    trek_mpi_open_fn open_it;
    *(void **)&open_it = dlsym(library, TREK_MPI_OPEN);
    if (!open_it || open_it(TREK_MPI_ABI, &host, &service.table, why, sizeof why) != TREK_OK)
        return trek_fail(TREK_ERR_UNSUPPORTED, "no MPI: %s", open_it ? why : "libtrek-mpi.so is not trek's plug-in");
    service.opened = true;
    return TREK_OK;
}

/* Signals are for the program's own threads. */
static trek_status start_thread(void)
{
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, NULL, thread_main, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return trek_fail(TREK_ERR_MEMORY, "the communication thread cannot be started: %s", strerror(failed));
    pthread_detach(thread);
    service.state = STARTING;
    if (!service.at_exit)
        service.at_exit = atexit(at_program_end) == 0;
    return TREK_OK;
}

bool trek_mpi_thread_shared(void) { return service.table.any_thread; }

bool trek_mpi_thread_drive(trek_mpi_comm *comm, bool *moved)
{
    if (pthread_mutex_trylock(&service.calling) != 0)
        return false;
    bool good = !atomic_load(&service.gone);
    if (good)
        trek_mpi_comm_advance(comm, moved);
    pthread_mutex_unlock(&service.calling);
    return good;
}

bool trek_comm_mpi_launched(char *why, size_t size)
{
    static const char *const signs[] = { "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK" };
    bool found = false;
    for (size_t k = 0; k < sizeof signs / sizeof *signs; k++)
        found = found || getenv(signs[k]);
    if (!found) {
        snprintf(why, size, "no MPI launcher has started this process");
        return false;
    }
    pthread_mutex_lock(&service.lock);
    bool there = open_plugin() == TREK_OK;
    pthread_mutex_unlock(&service.lock);
    if (!there) {
        trek_status status;
        char message[TREK_ERROR_SIZE];
        trek_error_take(&status, message);
        snprintf(why, size, "%.*s", (int)size - 1, message);
    }
    return there;
}

trek_status trek_mpi_thread_use(const trek_mpi_table **table, int64_t timeout_ns)
{
    int64_t deadline = trek_clock_ns() + timeout_ns;
    pthread_mutex_lock(&service.lock);
    trek_status status = open_plugin();
    if (status == TREK_OK && service.state == NONE)
        status = start_thread();
    while (status == TREK_OK && service.state == STARTING) {
        unsigned word = atomic_load(&service.news.word);
        pthread_mutex_unlock(&service.lock);
        bool changed = trek_gate_wait(&service.news, word, false, deadline);
        pthread_mutex_lock(&service.lock);
        if (!changed)
            status = trek_fail(TREK_ERR_TIMEOUT, "MPI_Init_thread has not returned within %g s", (double)timeout_ns * 1e-9);
    }
    if (status == TREK_OK && service.state != READY)
        status = trek_fail(service.status, "%s", service.message);
    *table = &service.table;
    pthread_mutex_unlock(&service.lock);
    return status;
}

void trek_mpi_thread_add(trek_mpi_comm *comm)
{
    pthread_mutex_lock(&service.lock);
    comm->next = service.incoming;
    service.incoming = comm;
    pthread_mutex_unlock(&service.lock);
    trek_mpi_thread_ring();
}
