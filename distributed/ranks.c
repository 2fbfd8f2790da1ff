/* SPDX-License-Identifier: Apache-2.0 */
/* Rank threads: they are started, run in parallel, pass their errors to the caller, and end. */
#include "distributed/ranks.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "distributed/control/wait.h"
#include "distributed/ranks_internal.h"
#include "distributed/system/system.h"
#include "distributed/team/handover.h"
#include "distributed/team/rank_sums.h"
#include "tensor/backend.h"
#include "tensor/memory_internal.h"
#include "tensor/pool.h"
#include "tensor/rank_context.h"
#include "tensor/scope_internal.h"
#include "tensor/memory_account.h"

typedef struct rank_slot {
    _Alignas(64) trek_ranks *ranks;
    int rank;
    bool started;
    trek_thread thread;
    trek_device device;
    trek_pool *pool;
    trek_comm *comm;
    trek_event *done;              /* of a GPU rank: marks the end of its work in the last run */
    trek_status status;            /* of the last run */
    char message[TREK_ERROR_SIZE];
} rank_slot;

struct trek_ranks {
    trek_gate job;                 /* counts runs */
    trek_gate done;                /* counts runs that all threads have ended */
    _Alignas(64) atomic_int pending;
    atomic_bool running;
    atomic_int refs;
    int world, threads_each;
    bool spin;
    bool meets;                    /* layers of the current run can make sums over all ranks */
    trek_rank_fn fn;               /* NULL: the threads end */
    void *arg;
    rank_slot *slots;
    trek_handover handover;        /* orders the ranks' work behind the caller's */
    trek_comm **comms;
    trek_rank_sums *sums;
    const struct trek_split_watch *watch;
    const trek_ranks_recorder *recorder;
    const trek_rank_watch *touches; /* the caller's watch of what it touches on devices; the ranks use it, too */
    trek_thread maker;             /* the thread whose graphs share the group: they run one after the other */
    trek_ranks *next;              /* in the list of all groups */
};

typedef struct groups_state {
    trek_lock lock;
    trek_ranks *first;
} groups_state;

TREK_PER_PROCESS(groups_state, groups, { .lock = TREK_LOCK_INIT });

typedef const rank_slot *slot_address;
TREK_PER_THREAD(slot_address, slot_here, NULL); /* the slot in whose run the thread is */

const struct trek_split_watch **trek_ranks_split_watch(trek_ranks *ranks) { return &ranks->watch; }

void trek_ranks_set_recorder(trek_ranks *ranks, const trek_ranks_recorder *recorder) { ranks->recorder = recorder; }

int trek_ranks_rank_here(const trek_ranks *ranks)
{
    return *slot_here() && (*slot_here())->ranks == ranks ? (*slot_here())->rank : -1;
}

static trek_status call(const rank_slot *slot, trek_rank_fn fn, void *arg)
{
    const trek_ranks_recorder *recorder = slot->ranks->recorder;
    trek_status status = recorder ? recorder->begin(slot->rank, recorder->arg) : TREK_OK;
    if (status != TREK_OK)
        return status;
    if (slot->rank > 0)
        trek_rank_here.watch = slot->ranks->touches;
    bool works = trek_memory_account_work(true); /* what the caller does in between is not held to rank 0's budget */
    status = fn(slot->rank, arg);
    trek_memory_account_work(works);
    if (slot->rank > 0)
        trek_rank_here.watch = NULL;
    trek_status ended = recorder ? recorder->end(slot->rank, recorder->arg) : TREK_OK;
    return status == TREK_OK ? ended : status;
}

/* Calls fn with the thread's error clear, and moves its error into the slot. Work on GPUs continues after the
 * caller's work; its end after fn is marked. */
static void run_one(rank_slot *slot, trek_rank_fn fn, void *arg)
{
    trek_status sticky, status = TREK_OK;
    if (slot->rank > 0 && slot->ranks->handover.n > 0)
        status = trek_handover_take(&slot->ranks->handover, slot->device);
    const rank_slot *outer = *slot_here();
    *slot_here() = slot;
    if (status == TREK_OK && slot->ranks->meets)
        trek_rank_sums_enter(slot->ranks->sums, slot->rank);
    if (status == TREK_OK)
        status = call(slot, fn, arg);
    *slot_here() = outer;
    if (status != TREK_OK || slot->ranks->meets)
        trek_rank_sums_leave(slot->ranks->sums, slot->rank, status != TREK_OK ? status : trek_error_status());
            /* it may have failed before it entered fn */
    if (slot->rank > 0 && slot->done)
        trek_handover_mark(slot->done, slot->device);
    trek_error_take(&sticky, slot->message);
    slot->status = status != TREK_OK ? status : sticky;
    if (sticky == TREK_OK && status != TREK_OK)
        snprintf(slot->message, sizeof slot->message, "%s", trek_status_description(status));
}

static void *rank_main(void *arg)
{
    rank_slot *slot = arg;
    trek_ranks *ranks = slot->ranks;
    trek_rank_here = (trek_rank_context){ .rank = slot->rank, .world = ranks->world, .device = slot->device, .rows = -1,
                                          .global_rows = -1 };
    for (unsigned seen = 0;; seen++) {
        trek_gate_wait(&ranks->job, seen, ranks->spin, 0);
        trek_rank_fn fn = ranks->fn;
        if (!fn)
            break;
        run_one(slot, fn, ranks->arg);
        if (atomic_fetch_sub(&ranks->pending, 1) == 1) {
            atomic_fetch_add(&ranks->done.word, 1);
            trek_gate_wake(&ranks->done);
        }
    }
    trek_pool_free(&slot->pool);
    trek_scope_thread_end();
    return NULL;
}

/* Rank 0 is the caller. It counts as a member of the group only while it runs. */
static void run_first(trek_ranks *ranks, trek_rank_fn fn, void *arg)
{
    trek_rank_context before = trek_rank_here;
    trek_rank_here.rank = 0;
    trek_rank_here.world = ranks->world;
    trek_rank_here.device = ranks->slots[0].device;
    trek_rank_here.pool = ranks->slots[0].pool ? ranks->slots[0].pool : before.pool;
    run_one(&ranks->slots[0], fn, arg);
    before.rng_step = trek_rank_here.rng_step;
    before.rng_draw = trek_rank_here.rng_draw;
    before.waited_ns = trek_rank_here.waited_ns;
    trek_rank_here = before;
}

/* Returns how indirect an error is: 2 if another rank's abort ended the group, 1 if another rank's failure cancelled
 * the call, 0 if it is the rank's own. */
static int distance_of(trek_status status) { return status == TREK_ERR_PEER ? 2 : status == TREK_ERR_CANCELLED ? 1 : 0; }

/* Returns the slot of the first rank that failed by itself; otherwise of the first that failed; otherwise NULL. */
static rank_slot *find_failure(trek_ranks *ranks)
{
    rank_slot *found = NULL;
    for (int r = 0; r < ranks->world; r++) {
        rank_slot *slot = &ranks->slots[r];
        if (slot->status != TREK_OK && (!found || distance_of(slot->status) < distance_of(found->status)))
            found = slot;
    }
    return found;
}

static void run_all(trek_ranks *ranks, trek_rank_fn fn, void *arg)
{
    const trek_rank_watch *watch = trek_rank_watched();
    ranks->touches = watch && watch->see ? watch : NULL;
    unsigned done = atomic_load(&ranks->done.word);
    if (trek_handover_is_needed(&ranks->handover))
        trek_handover_give(&ranks->handover);
    if (ranks->world > 1) {
        ranks->fn = fn;
        ranks->arg = arg;
        atomic_store(&ranks->pending, ranks->world - 1);
        atomic_fetch_add(&ranks->job.word, 1);
        trek_gate_wake(&ranks->job);
    }
    run_first(ranks, fn, arg);
    if (ranks->world > 1)
        trek_gate_wait(&ranks->done, done, ranks->spin, 0);
    for (int r = 1; r < ranks->world; r++)
        if (ranks->slots[r].done)
            trek_handover_join(&ranks->handover, ranks->slots[r].done, ranks->slots[r].device);
}

void trek_ranks_begin_sums(trek_ranks *ranks, const bool *participates, trek_comm *comm, bool goes_back)
{
    if (comm)
        trek_rank_sums_set_comm(ranks->sums, comm);
    trek_rank_sums_set_deadline(ranks->sums, ranks->comms[0]->deadline_ns);
    trek_rank_sums_begin(ranks->sums, participates, comm != NULL);
    if (goes_back)
        trek_rank_sums_goes_back(ranks->sums);
}

static trek_status run(trek_ranks *ranks, trek_rank_fn fn, void *arg, bool meets)
{
    if (!ranks || !fn)
        return trek_fail_missing("ranks_run", ranks ? "function" : "group");
    if (trek_forked)
        return trek_fail_forked();
    if (atomic_exchange(&ranks->running, true))
        return trek_fail(TREK_ERR_STATE, "ranks_run: the group's ranks are already running; a group runs one function at a time");
    /* An error from before stays the caller's first error. */
    trek_kept_error before;
    trek_error_keep(&before);
    ranks->meets = meets;
    if (meets)
        trek_ranks_begin_sums(ranks, NULL, NULL, false);
    const trek_ranks_recorder *recorder = ranks->recorder;
    trek_status status = recorder ? recorder->pause(recorder->arg) : TREK_OK;
    rank_slot *failed = NULL;
    if (status == TREK_OK) {
        run_all(ranks, fn, arg);
        failed = find_failure(ranks);
    }
    if (recorder && status == TREK_OK)
        status = recorder->resume(recorder->arg);
    trek_error_put_back(&before);
    if (failed)
        trek_fail(status = failed->status, "rank %d: %s", failed->rank, failed->message);
    atomic_store(&ranks->running, false);
    return status;
}

bool trek_ranks_are_running(const trek_ranks *ranks) { return atomic_load(&ranks->running); }

trek_status trek_ranks_run(trek_ranks *ranks, trek_rank_fn fn, void *arg) { return run(ranks, fn, arg, true); }
trek_status trek_ranks_call(trek_ranks *ranks, trek_rank_fn fn, void *arg) { return run(ranks, fn, arg, false); }

/* Runs first on every rank, so that its memory and threads are made where they are used. */
static trek_status start_rank(int rank, void *arg)
{
    trek_ranks *ranks = arg;
    rank_slot *slot = &ranks->slots[rank];
    slot->pool = trek_pool_new(ranks->threads_each, rank * ranks->threads_each);
    if (!slot->pool)
        return trek_error_status();
    trek_pin_thread(rank * ranks->threads_each);
    trek_rank_here.pool = slot->pool;
    if (slot->device.type == TREK_CPU)
        return TREK_OK;
    return trek_backends[slot->device.type]->event_new(slot->device, &slot->done);
}

static trek_status start_threads(trek_ranks *ranks)
{
    trek_status status = TREK_OK;
    for (int r = 1; r < ranks->world && status == TREK_OK; r++) {
        rank_slot *slot = &ranks->slots[r];
        int code = trek_thread_begin(&slot->thread, rank_main, slot);
        if (code != 0) {
            status = trek_fail(TREK_ERR_STATE, "ranks_new: the thread of rank %d cannot start: %s", r, strerror(code));
            break;
        }
        slot->started = true;
        char name[32];
        snprintf(name, sizeof name, "trek-rank-%d", r); /* at most 1023, so 15 characters are enough */
        trek_thread_name(slot->thread, name);
    }
    return status;
}

static void destroy(trek_ranks *ranks)
{
    if (!trek_forked) {
        ranks->fn = NULL;
        atomic_fetch_add(&ranks->job.word, 1);
        trek_gate_wake(&ranks->job);
        for (int r = 1; r < ranks->world; r++)
            if (ranks->slots[r].started)
                trek_thread_join(ranks->slots[r].thread);
    }
    for (int r = 0; r < ranks->world; r++)
        trek_comm_free(&ranks->comms[r]);
    for (int r = 0; r < ranks->world; r++)
        if (ranks->slots[r].done)
            trek_backends[ranks->slots[r].device.type]->event_free(ranks->slots[r].done);
    trek_handover_end(&ranks->handover);
    trek_pool_free(&ranks->slots[0].pool);
    trek_rank_sums_free(&ranks->sums);
    trek_free(ranks->comms);
    trek_block_free(ranks->slots);
    trek_block_free(ranks);
}

static trek_ranks *ranks_make(const trek_device *devices, int n)
{
    trek_ranks *ranks = trek_block_alloc(sizeof *ranks);
    if (!ranks)
        return NULL;
    memset(ranks, 0, sizeof *ranks);
    ranks->world = n;
    ranks->maker = trek_thread_self();
    ranks->threads_each = trek_threads_wanted() / n > 1 ? trek_threads_wanted() / n : 1;
    ranks->spin = n <= trek_cores() && n <= trek_threads_wanted();
    atomic_init(&ranks->refs, 1);
    ranks->slots = trek_block_alloc((size_t)n * sizeof *ranks->slots);
    ranks->comms = trek_calloc((size_t)n, sizeof *ranks->comms);
    if (!ranks->slots || !ranks->comms || trek_comm_local(devices, n, ranks->comms) != TREK_OK) {
        trek_block_free(ranks->slots);
        trek_free(ranks->comms);
        trek_block_free(ranks);
        return NULL;
    }
    memset(ranks->slots, 0, (size_t)n * sizeof *ranks->slots);
    for (int r = 0; r < n; r++) {
        ranks->slots[r].ranks = ranks;
        ranks->slots[r].rank = r;
        ranks->slots[r].device = devices ? devices[r] : trek_cpu(r);
        ranks->slots[r].comm = ranks->comms[r];
    }
    ranks->sums = trek_rank_sums_new(n, ranks->spin);
    if (!ranks->sums || trek_handover_start(&ranks->handover, devices, n) != TREK_OK) {
        destroy(ranks);
        return NULL;
    }
    return ranks;
}

/* Returns whether the group has these devices and belongs to this thread. */
static bool same_devices(const trek_ranks *ranks, const trek_device *devices, int n)
{
    if (ranks->world != n || !trek_thread_equal(ranks->maker, trek_thread_self()) || trek_comm_ended(ranks->comms[0]))
        return false;
    for (int r = 0; r < n; r++)
        if (!trek_device_equal(ranks->slots[r].device, devices ? devices[r] : trek_cpu(r)))
            return false;
    return true;
}

/* Called with the groups' lock held. */
static trek_ranks *ranks_start(const trek_device *devices, int n)
{
    int on_cpu = 0;
    for (int r = 0; r < n; r++)
        on_cpu += !devices || devices[r].type == TREK_CPU;
    if (on_cpu > trek_cores())
        trek_log_message(TREK_LOG_LEVEL_WARNING,
                         "%d CPU ranks share %d cores: they take turns, and a step takes longer than with fewer ranks", on_cpu,
                         trek_cores());
    trek_ranks *ranks = ranks_make(devices, n);
    if (!ranks)
        return NULL;
    trek_pool_set_busy(n * ranks->threads_each);
    if (start_threads(ranks) != TREK_OK || trek_ranks_call(ranks, start_rank, ranks) != TREK_OK) {
        destroy(ranks);
        return NULL;
    }
    ranks->next = groups()->first;
    groups()->first = ranks;
    return ranks;
}

trek_ranks *trek_ranks_new(const trek_device *devices, int n)
{
    if (n < 1 || n > TREK_MAX_RANKS)
        return trek_fail_null(TREK_ERR_ARGUMENT, "ranks_new: n: %d ranks; must be 1 to %d", n, TREK_MAX_RANKS);
    if (trek_forked)
        return trek_fail_forked(), NULL;
    trek_device room[TREK_MAX_RANKS];
    devices = trek_devices_resolve(devices, n, room);
    trek_lock_acquire(&groups()->lock);
    trek_ranks *found = groups()->first;
    while (found && !same_devices(found, devices, n))
        found = found->next;
    if (found)
        atomic_fetch_add(&found->refs, 1);
    else
        found = ranks_start(devices, n);
    trek_lock_release(&groups()->lock);
    return found;
}

trek_ranks *trek_ranks_retain(trek_ranks *ranks)
{
    atomic_fetch_add(&ranks->refs, 1);
    return ranks;
}

void trek_ranks_free(trek_ranks **address)
{
    if (!address || !*address)
        return;
    trek_ranks *ranks = *address;
    *address = NULL;
    trek_lock_acquire(&groups()->lock);
    bool last = atomic_fetch_sub(&ranks->refs, 1) == 1;
    if (last) {
        trek_ranks **link = &groups()->first;
        while (*link && *link != ranks)
            link = &(*link)->next;
        if (*link)
            *link = ranks->next;
        const trek_ranks *next = groups()->first;
        trek_pool_set_busy(next ? next->world * next->threads_each : trek_cores());
    }
    trek_lock_release(&groups()->lock);
    if (last)
        destroy(ranks);
}

trek_device trek_ranks_device(const trek_ranks *ranks, int rank) { return ranks->slots[rank].device; }

int trek_ranks_world_size(const trek_ranks *ranks) { return ranks ? ranks->world : 1; }

trek_comm *trek_ranks_comm(trek_ranks *ranks, int rank)
{
    if (!ranks)
        return trek_fail_missing("ranks_comm", "group"), NULL;
    if (rank < 0 || rank >= ranks->world)
        return trek_fail_null(TREK_ERR_ARGUMENT, "ranks_comm: rank: %d; must be below %d, the number of ranks", rank,
                              ranks->world);
    return ranks->comms[rank];
}

struct trek_rank_sums *trek_ranks_sums(trek_ranks *ranks) { return ranks->sums; }
