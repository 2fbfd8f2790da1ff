/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of a rank. A job is cut into more pieces than there are threads, and each thread has a row of them. It
 * takes its own from the front, so that it finds in its cache what it computed in the job before. Then it takes those
 * of others from the back, so that a thread that wakes slowly or is interrupted delays nobody. */
#include "tensor/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "tensor/memory_internal.h"
#include "tensor/rank_context.h"
#include "tensor/status_internal.h"
#include "tensor/thread_start.h"
#include "tensor/trace.h"

#define PIECES 4 /* of a job for each thread */
/* How long a worker looks for work before it sleeps; longer if it was woken soon after it fell asleep. */
#define SPIN_LEAST_NS 20000
#define SPIN_MOST_NS 400000

typedef struct job {
    void (*fn)(void *arg, int64_t begin, int64_t end);
    void *arg;
    int64_t count, grain;
    int pieces;
} job;

/* One thread's row of pieces: generation << 32 | end << 16 | next. A thread that moves `next` or `end` by a
 * compare-and-swap owns the piece between, and until it is done the job cannot change. */
typedef struct member {
    _Alignas(64) _Atomic uint64_t row;
    trek_pool *pool;
    pthread_t thread;
    int place;
} member;

struct trek_pool {
    _Alignas(64) _Atomic uint32_t generation; /* counts jobs: it changes when there is work */
    job job;
    _Alignas(64) atomic_int done;  /* pieces that have ended */
    atomic_int caller_sleeps;
    _Alignas(64) atomic_int sleepers;
    atomic_bool taken;             /* a caller uses it */
    atomic_bool stop;
    pthread_mutex_t mutex;         /* of the two conditions */
    pthread_cond_t work, finished;
    int threads, place;            /* the caller's, among the process's threads */
    member members[]; /* the caller's, then those of threads - 1 workers */
};

static _Thread_local bool inside; /* this thread runs a piece */
static atomic_int busy_threads;

static struct trek_pool single = { .threads = 1 };
static _Atomic(trek_pool *) default_pool;
static pthread_mutex_t default_mutex = PTHREAD_MUTEX_INITIALIZER;

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

/* Takes a piece of a row: the next one, or (`back`) the last one. Returns -1 if none is left. */
static int take_piece(member *m, bool back)
{
    uint64_t row = atomic_load_explicit(&m->row, memory_order_acquire);
    for (;;) {
        int next = (int)(row & 0xffff), end = (int)((row >> 16) & 0xffff);
        if (next >= end)
            return -1;
        uint64_t taken = back ? row - (1u << 16) : row + 1;
        if (atomic_compare_exchange_weak_explicit(&m->row, &row, taken, memory_order_acq_rel, memory_order_acquire))
            return back ? end - 1 : next;
    }
}

static void run_piece(trek_pool *pool, int piece)
{
    job mine = pool->job;
    int64_t grains = (mine.count - 1) / mine.grain + 1, each = grains / mine.pieces, more = grains % mine.pieces;
    int64_t begin = (piece * each + (piece < more ? piece : more)) * mine.grain;
    int64_t end = begin + (each + (piece < more)) * mine.grain;
    mine.fn(mine.arg, begin, end < mine.count ? end : mine.count);
    /* Sequentially consistent with caller_sleeps: either this thread sees that the caller sleeps, or the caller sees
     * that the job is done. */
    if (atomic_fetch_add(&pool->done, 1) + 1 == mine.pieces && atomic_load(&pool->caller_sleeps)) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_signal(&pool->finished);
        pthread_mutex_unlock(&pool->mutex);
    }
}

/* Runs pieces of the current job until none is left: the thread's own, then others'. */
static void take_pieces(trek_pool *pool, int place)
{
    for (int k = 0; k < pool->threads; k++) {
        member *m = &pool->members[(place + k) % pool->threads];
        for (int piece; (piece = take_piece(m, k > 0)) >= 0;)
            run_piece(pool, piece);
    }
}

static bool worker_wanted(trek_pool *pool, uint32_t seen)
{
    return atomic_load(&pool->generation) != seen || atomic_load(&pool->stop);
}

static bool job_done(trek_pool *pool, int pieces) { return atomic_load(&pool->done) == pieces; }

/* Looks for work for that time. */
static bool spin_for_work(trek_pool *pool, uint32_t seen, int64_t spin_ns)
{
    if (!may_spin(pool))
        return worker_wanted(pool, seen);
    int64_t until = trek_clock_ns() + spin_ns;
    do {
        for (int k = 0; k < 64; k++) {
            if (worker_wanted(pool, seen))
                return true;
            relax();
        }
    } while (trek_clock_ns() < until);
    return false;
}

/* Sleeps until there is work. Returns for how long, in ns. */
static int64_t sleep_for_work(trek_pool *pool, uint32_t seen)
{
    int64_t from = trek_clock_ns();
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while (!worker_wanted(pool, seen))
        pthread_cond_wait(&pool->work, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
    return trek_clock_ns() - from;
}

static void *worker_main(void *arg)
{
    member *me = arg;
    trek_pool *pool = me->pool;
    uint32_t seen = 0;
    int64_t spin_ns = SPIN_LEAST_NS;
    inside = true;
    trek_pin_thread(pool->place + me->place);
    while (!atomic_load_explicit(&pool->stop, memory_order_acquire)) {
        if (!spin_for_work(pool, seen, spin_ns)) {
            if (sleep_for_work(pool, seen) < SPIN_MOST_NS)
                spin_ns = 2 * spin_ns < SPIN_MOST_NS ? 2 * spin_ns : SPIN_MOST_NS;
            else
                spin_ns = spin_ns / 2 > SPIN_LEAST_NS ? spin_ns / 2 : SPIN_LEAST_NS;
        }
        seen = atomic_load(&pool->generation);
        take_pieces(pool, me->place);
    }
    return NULL;
}

static void wait_for_end(trek_pool *pool, int pieces)
{
    if (job_done(pool, pieces))
        return;
    if (may_spin(pool)) {
        int64_t until = trek_clock_ns() + SPIN_MOST_NS;
        do {
            for (int k = 0; k < 64; k++) {
                if (job_done(pool, pieces))
                    return;
                relax();
            }
        } while (trek_clock_ns() < until);
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->caller_sleeps, 1);
    while (!job_done(pool, pieces))
        pthread_cond_wait(&pool->finished, &pool->mutex);
    atomic_store(&pool->caller_sleeps, 0);
    pthread_mutex_unlock(&pool->mutex);
}

/* The rows' ends publish the job: a thread that takes a piece sees it completely. */
static void run_on_pool(trek_pool *pool, job work)
{
    uint32_t generation = atomic_load_explicit(&pool->generation, memory_order_relaxed) + 1;
    int threads = pool->threads;
    pool->job = work;
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    for (int k = 0; k < threads; k++) {
        uint64_t next = (uint64_t)k * (uint64_t)work.pieces / (uint64_t)threads;
        uint64_t end = (uint64_t)(k + 1) * (uint64_t)work.pieces / (uint64_t)threads;
        atomic_store_explicit(&pool->members[k].row, (uint64_t)generation << 32 | end << 16 | next, memory_order_release);
    }
    atomic_store(&pool->generation, generation); /* seq_cst: before it looks at sleepers */
    if (atomic_load(&pool->sleepers) > 0) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->work);
        pthread_mutex_unlock(&pool->mutex);
    }
    inside = true;
    take_pieces(pool, 0);
    inside = false;
    wait_for_end(pool, work.pieces);
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
    int pieces = grains < PIECES * pool->threads ? (int)grains : PIECES * pool->threads;
    run_on_pool(pool, (job){ fn, arg, count, grain, pieces });
    atomic_store_explicit(&pool->taken, false, memory_order_release);
}

/* Stops and joins the first `started` workers and frees the pool. */
static void stop_workers(trek_pool *pool, int started)
{
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->stop, true);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
    for (int k = 1; k <= started; k++)
        pthread_join(pool->members[k].thread, NULL);
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

trek_pool *trek_pool_new(int threads, int place)
{
    if (threads < 1 || threads > TREK_MAX_THREADS)
        return trek_fail_null(TREK_ERR_ARGUMENT, "pool: threads: %d; must be 1 to %d", threads, TREK_MAX_THREADS);
    trek_pool *pool = trek_block_alloc(sizeof *pool + (size_t)threads * sizeof(member));
    if (!pool)
        return NULL;
    *pool = (trek_pool){ .threads = threads, .place = place };
    if (!init_locks(pool)) {
        trek_block_free(pool);
        return trek_fail_null(TREK_ERR_STATE, "pool: a lock cannot be made");
    }
    for (int k = 0; k < threads; k++)
        pool->members[k] = (member){ .pool = pool, .place = k };
    int started = 0;
    while (started < threads - 1 &&
           trek_thread_start(&pool->members[started + 1].thread, worker_main, &pool->members[started + 1]) == 0)
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

/* If not all threads can start, uses fewer, and at last only the caller. The thread's error does not change. */
static trek_pool *make_default(void)
{
    bool clean = trek_error_status() == TREK_OK;
    int wanted = trek_threads_wanted(), threads = wanted;
    trek_pool *pool = NULL;
    while (threads > 1 && !(pool = trek_pool_new(threads, 0)))
        threads /= 2;
    if (clean)
        trek_error_clear();
    if (threads < wanted)
        trek_log_message(TREK_LOG_LEVEL_WARNING, "only %d of %d threads could be started", threads, wanted);
    trek_pin_thread(0);
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

/* Runs at exit, or when the library is unloaded. A pool that another thread is using is not freed. */
__attribute__((destructor)) static void free_default(void)
{
    trek_pool *pool = atomic_load_explicit(&default_pool, memory_order_acquire);
    if (!pool || pool == &single || inside || trek_forked || atomic_exchange(&pool->taken, true))
        return;
    atomic_store_explicit(&default_pool, &single, memory_order_release);
    trek_pool_free(&pool);
}
