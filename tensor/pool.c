/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of a rank. A job is handed out in parts through one atomic
 * ticket: whoever comes, the caller included, takes the next part, so that a
 * worker which is slow to wake holds nobody up. */
#include "tensor/pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "tensor/memory_internal.h"
#include "tensor/rank_context.h"
#include "tensor/status_internal.h"
#include "tensor/thread_start.h"
#include "tensor/trace.h"

#define MAX_THREADS 1024
#define SPIN_NS 30000 /* how long a thread looks for work, or for the end of it, before it sleeps */

typedef struct job {
    void (*fn)(void *arg, int64_t begin, int64_t end);
    void *arg;
    int64_t count, grain;
} job;

struct trek_pool {
    /* Generation << 32 | parts << 16 | next part to be taken. Who moves `next`
     * by a compare-and-swap owns that part, and with it the job may not change. */
    _Alignas(64) _Atomic uint64_t ticket;
    job job;
    _Alignas(64) atomic_int done;  /* parts that have ended */
    atomic_int caller_sleeps;
    _Alignas(64) atomic_int sleepers;
    atomic_bool taken;             /* a caller is in it */
    atomic_bool stop;
    pthread_mutex_t mutex;         /* of the two conditions */
    pthread_cond_t work, finished;
    int threads;
    pthread_t workers[];           /* threads - 1 */
};

static _Thread_local bool inside; /* this thread runs a part */
static atomic_int busy_threads;

static struct trek_pool single = { .threads = 1 };
static _Atomic(trek_pool *) default_pool;
static pthread_mutex_t default_mutex = PTHREAD_MUTEX_INITIALIZER;

static int count_cores(void)
{
    for (int size = 1024; size <= 1 << 18; size *= 4) {
        cpu_set_t *set = CPU_ALLOC((size_t)size);
        if (!set)
            break;
        size_t bytes = CPU_ALLOC_SIZE((size_t)size);
        int cores = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (cores > 0)
            return cores;
    }
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 0 ? (int)cores : 1;
}

int trek_cores(void)
{
    static atomic_int cores;
    int known = atomic_load_explicit(&cores, memory_order_relaxed);
    if (known == 0) {
        known = count_cores();
        atomic_store_explicit(&cores, known, memory_order_relaxed);
    }
    return known;
}

void trek_pool_set_busy(int threads) { atomic_store_explicit(&busy_threads, threads, memory_order_relaxed); }

static bool may_spin(const trek_pool *pool)
{
    int busy = atomic_load_explicit(&busy_threads, memory_order_relaxed), cores = trek_cores();
    return cores > 1 && pool->threads <= cores && busy <= cores;
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline bool ticket_has_work(uint64_t ticket) { return (ticket & 0xffff) < ((ticket >> 16) & 0xffff); }

/* Runs parts of the present job until none is left. */
static void take_parts(trek_pool *pool)
{
    uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    while (ticket_has_work(ticket)) {
        if (!atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket + 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        int64_t part = (int64_t)(ticket & 0xffff), parts = (int64_t)((ticket >> 16) & 0xffff);
        job mine = pool->job;
        int64_t grains = (mine.count - 1) / mine.grain + 1, each = grains / parts, more = grains % parts;
        int64_t begin = (part * each + (part < more ? part : more)) * mine.grain;
        int64_t end = begin + (each + (part < more)) * mine.grain;
        mine.fn(mine.arg, begin, end < mine.count ? end : mine.count);
        /* sequentially consistent with caller_sleeps: either we see that it sleeps or it sees that we are done */
        if (atomic_fetch_add(&pool->done, 1) + 1 == (int)parts && atomic_load(&pool->caller_sleeps)) {
            pthread_mutex_lock(&pool->mutex);
            pthread_cond_signal(&pool->finished);
            pthread_mutex_unlock(&pool->mutex);
        }
        ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    }
}

static bool worker_wanted(trek_pool *pool) { return ticket_has_work(atomic_load(&pool->ticket)) || atomic_load(&pool->stop); }
static bool job_done(trek_pool *pool, int parts) { return atomic_load(&pool->done) == parts; }

/* Looks for SPIN_NS whether there is something to do. */
static bool spin_for_work(trek_pool *pool)
{
    if (!may_spin(pool))
        return worker_wanted(pool);
    int64_t until = trek_clock_ns() + SPIN_NS;
    do {
        for (int k = 0; k < 64; k++) {
            if (worker_wanted(pool))
                return true;
            relax();
        }
    } while (trek_clock_ns() < until);
    return false;
}

static void *worker_main(void *arg)
{
    trek_pool *pool = arg;
    inside = true;
    while (!atomic_load_explicit(&pool->stop, memory_order_acquire)) {
        if (!spin_for_work(pool)) {
            pthread_mutex_lock(&pool->mutex);
            atomic_fetch_add(&pool->sleepers, 1);
            while (!worker_wanted(pool))
                pthread_cond_wait(&pool->work, &pool->mutex);
            atomic_fetch_sub(&pool->sleepers, 1);
            pthread_mutex_unlock(&pool->mutex);
        }
        take_parts(pool);
    }
    return NULL;
}

static void wait_for_end(trek_pool *pool, int parts)
{
    if (job_done(pool, parts))
        return;
    if (may_spin(pool)) {
        int64_t until = trek_clock_ns() + SPIN_NS;
        do {
            for (int k = 0; k < 64; k++) {
                if (job_done(pool, parts))
                    return;
                relax();
            }
        } while (trek_clock_ns() < until);
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->caller_sleeps, 1);
    while (!job_done(pool, parts))
        pthread_cond_wait(&pool->finished, &pool->mutex);
    atomic_store(&pool->caller_sleeps, 0);
    pthread_mutex_unlock(&pool->mutex);
}

static void run_on_pool(trek_pool *pool, job work, int parts)
{
    uint64_t generation = (atomic_load_explicit(&pool->ticket, memory_order_relaxed) >> 32) + 1;
    pool->job = work;
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    atomic_store(&pool->ticket, generation << 32 | (uint64_t)parts << 16); /* seq_cst: before the look at sleepers */
    if (atomic_load(&pool->sleepers) > 0) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->work);
        pthread_mutex_unlock(&pool->mutex);
    }
    inside = true;
    take_parts(pool);
    inside = false;
    wait_for_end(pool, parts);
}

void trek_parallel(int64_t count, int64_t grain, void (*fn)(void *arg, int64_t begin, int64_t end), void *arg)
{
    if (count <= 0)
        return;
    grain = grain < 1 ? 1 : grain;
    if (count / 2 < grain || inside || trek_forked) {
        fn(arg, 0, count);
        return;
    }
    trek_pool *pool = trek_pool_here();
    if (pool->threads == 1 || atomic_exchange_explicit(&pool->taken, true, memory_order_acquire)) {
        fn(arg, 0, count);
        return;
    }
    int64_t grains = (count - 1) / grain + 1;
    int parts = grains < pool->threads ? (int)grains : pool->threads;
    run_on_pool(pool, (job){ fn, arg, count, grain }, parts);
    atomic_store_explicit(&pool->taken, false, memory_order_release);
}

/* Stops and joins the first `started` workers and frees the pool. */
static void stop_workers(trek_pool *pool, int started)
{
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->stop, true);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
    for (int k = 0; k < started; k++)
        pthread_join(pool->workers[k], NULL);
    pthread_cond_destroy(&pool->work);
    pthread_cond_destroy(&pool->finished);
    pthread_mutex_destroy(&pool->mutex);
    trek_block_free(pool);
}

static bool init_locks(trek_pool *pool)
{
    if (pthread_mutex_init(&pool->mutex, NULL) != 0)
        return false;
    if (pthread_cond_init(&pool->work, NULL) != 0) {
        pthread_mutex_destroy(&pool->mutex);
        return false;
    }
    if (pthread_cond_init(&pool->finished, NULL) != 0) {
        pthread_cond_destroy(&pool->work);
        pthread_mutex_destroy(&pool->mutex);
        return false;
    }
    return true;
}

trek_pool *trek_pool_new(int threads)
{
    if (threads < 1 || threads > MAX_THREADS)
        return trek_fail_null(TREK_ERR_ARGUMENT, "pool: %d threads asked for, 1 to %d are possible", threads, MAX_THREADS);
    trek_pool *pool = trek_block_alloc(sizeof *pool + (size_t)(threads - 1) * sizeof(pthread_t));
    if (!pool)
        return NULL;
    *pool = (trek_pool){ .threads = threads };
    if (!init_locks(pool)) {
        trek_block_free(pool);
        return trek_fail_null(TREK_ERR_STATE, "pool: the system gives no more locks");
    }
    int started = 0;
    while (started < threads - 1 && trek_thread_start(&pool->workers[started], worker_main, pool) == 0)
        started++;
    if (started < threads - 1) {
        stop_workers(pool, started);
        return trek_fail_null(TREK_ERR_STATE, "pool: thread %d of %d cannot start", started + 2, threads);
    }
    return pool;
}

void trek_pool_free(trek_pool **pool)
{
    if (!pool || !*pool)
        return;
    if (*pool != &single && !trek_forked) /* after a fork its threads and locks are the parent's */
        stop_workers(*pool, (*pool)->threads - 1);
    *pool = NULL;
}

int trek_pool_threads(const trek_pool *pool) { return pool->threads; }

int trek_threads_wanted(void)
{
    const char *text = getenv("TREK_THREADS");
    if (!text || !*text)
        return trek_cores() < MAX_THREADS ? trek_cores() : MAX_THREADS;
    char *end;
    long threads = strtol(text, &end, 10);
    if (*end == '\0' && threads >= 1 && threads <= MAX_THREADS)
        return (int)threads;
    trek_log_message(TREK_LOG_WARNING, "TREK_THREADS=%s is no number from 1 to %d: using %d", text, MAX_THREADS, trek_cores());
    return trek_cores();
}

/* Where all the threads cannot start, with fewer, at last alone. The thread's error stays as it was. */
static trek_pool *make_default(void)
{
    bool clean = trek_error_status() == TREK_OK;
    int wanted = trek_threads_wanted(), threads = wanted;
    trek_pool *pool = NULL;
    while (threads > 1 && !(pool = trek_pool_new(threads)))
        threads /= 2;
    if (clean)
        trek_error_clear();
    if (threads < wanted)
        trek_log_message(TREK_LOG_WARNING, "only %d of %d threads could be started", threads, wanted);
    return pool ? pool : &single;
}

trek_pool *trek_pool_here(void)
{
    if (trek_rank_here.pool)
        return trek_rank_here.pool;
    trek_pool *pool = atomic_load_explicit(&default_pool, memory_order_acquire);
    if (pool)
        return pool;
    pthread_mutex_lock(&default_mutex);
    pool = atomic_load_explicit(&default_pool, memory_order_acquire);
    if (!pool) {
        pool = make_default();
        atomic_store_explicit(&default_pool, pool, memory_order_release);
    }
    pthread_mutex_unlock(&default_mutex);
    return pool;
}

/* At exit, or when the library is unloaded. A pool that is in use by another thread is left to it. */
__attribute__((destructor)) static void free_default(void)
{
    trek_pool *pool = atomic_load_explicit(&default_pool, memory_order_acquire);
    if (!pool || pool == &single || inside || trek_forked || atomic_exchange(&pool->taken, true))
        return;
    atomic_store_explicit(&default_pool, &single, memory_order_release);
    trek_pool_free(&pool);
}
