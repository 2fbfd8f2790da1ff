/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of a rank: parts cover their range once and in multiples of the grain, whoever computes them; nested calls,
 * pools of several ranks at a time, callers that meet in one pool, workers that sleep, a process that was forked. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tensor/pool.h"
#include "tensor/rank_context.h"
#include "tensor/thread_start.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { MOST = 4096, PARTS = 64, RANKS = 4 };

/* What a call of trek_parallel did. Elements are plain: a part that no lock orders is one for the thread sanitizer. */
typedef struct work {
    int hits[MOST];
    atomic_int calls, foreign; /* parts; those that another thread computed */
    int64_t begins[PARTS], ends[PARTS];
    pthread_t caller;
    bool nested;
} work;

static void add_one(void *arg, int64_t begin, int64_t end)
{
    int *hits = arg;
    for (int64_t k = begin; k < end; k++)
        hits[k]++;
}

static void part(void *arg, int64_t begin, int64_t end)
{
    work *w = arg;
    int call = atomic_fetch_add(&w->calls, 1);
    if (!pthread_equal(pthread_self(), w->caller))
        atomic_fetch_add(&w->foreign, 1);
    if (call < PARTS) {
        w->begins[call] = begin;
        w->ends[call] = end;
    }
    if (w->nested) /* a call in a part: its own range, on this thread */
        trek_parallel(end - begin, 1, add_one, w->hits + begin);
    else
        add_one(w->hits, begin, end);
}

static void start(work *w, bool nested)
{
    memset(w, 0, sizeof *w);
    w->caller = pthread_self();
    w->nested = nested;
}

static void use(trek_pool *pool) { trek_rank_here.pool = pool; }

static trek_pool *pool_of(int threads)
{
    trek_pool *pool = trek_pool_new(threads, 0);
    assert_non_null(pool);
    assert_int_equal(trek_pool_threads(pool), threads);
    return pool;
}

static void drop(trek_pool **pool)
{
    use(NULL);
    trek_pool_free(pool);
    assert_null(*pool);
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Whether all was computed once, by parts as they are promised. NULL, or what is wrong. */
static const char *fault(work *w, int64_t count, int64_t grain, int threads)
{
    int64_t grains = (count + grain - 1) / grain;
    int pieces = threads == 1 ? 1 : 4 * threads, wanted = count / 2 < grain ? 1 : grains < pieces ? (int)grains : pieces;
    if (w->calls != wanted)
        return "the number of parts";
    for (int64_t k = 0; k < MOST; k++)
        if (w->hits[k] != (k < count))
            return "an element";
    qsort(w->begins, (size_t)wanted, sizeof *w->begins, by_value);
    qsort(w->ends, (size_t)wanted, sizeof *w->ends, by_value);
    for (int k = 0; k < wanted; k++) {
        int64_t size = w->ends[k] - w->begins[k];
        if (w->begins[k] != (k ? w->ends[k - 1] : 0) || (wanted > 1 && w->begins[k] % grain != 0))
            return "where a part begins";
        if (size > (grains / wanted + (grains % wanted > 0)) * grain || size <= 0)
            return "the size of a part";
    }
    return w->ends[wanted - 1] == count ? NULL : "the end";
}

/* --- the split ---------------------------------------------------------------------------------- */

static void parts_cover_the_range(void **state)
{
    static work w, again;
    static const int64_t counts[] = { 1, 2, 3, 5, 7, 8, 15, 16, 17, 64, 100, 1000, 1023, MOST };
    static const int64_t grains[] = { 1, 2, 3, 8, 16, 100, 2048, MOST, 100000 };
    static const int threads[] = { 1, 2, 3, 5, 8 };
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        trek_pool *pool = pool_of(threads[t]);
        use(pool);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (size_t g = 0; g < sizeof grains / sizeof *grains; g++) {
                start(&w, (c + g) % 2);
                trek_parallel(counts[c], grains[g], part, &w);
                const char *wrong = fault(&w, counts[c], grains[g], threads[t]);
                if (wrong)
                    fail_msg("%s: %d threads, %lld elements, a grain of %lld: %d parts", wrong, threads[t], (long long)counts[c],
                             (long long)grains[g], (int)w.calls);
                start(&again, false);
                trek_parallel(counts[c], grains[g], part, &again);
                assert_null(fault(&again, counts[c], grains[g], threads[t]));
                assert_memory_equal(again.begins, w.begins, sizeof w.begins); /* the same split, whoever was quick */
            }
        drop(&pool);
    }
}

static void nothing_to_do(void **state)
{
    static work w;
    trek_pool *pool = pool_of(3);
    use(pool);
    start(&w, false);
    trek_parallel(0, 1, part, &w);
    trek_parallel(-5, 1, part, &w);
    assert_int_equal(w.calls, 0);
    trek_parallel(10, 0, part, &w); /* as a grain of 1 */
    assert_null(fault(&w, 10, 1, 3));
    start(&w, false);
    trek_parallel(10, -4, part, &w);
    assert_null(fault(&w, 10, 1, 3));
    drop(&pool);
}

/* One thread, and less than two grains: the caller alone. */
static void the_caller_alone(void **state)
{
    static work w;
    trek_pool *one = pool_of(1), *three = pool_of(3);
    use(one);
    start(&w, false);
    trek_parallel(1000, 1, part, &w);
    assert_true(w.calls == 1 && w.foreign == 0);
    use(three);
    start(&w, false);
    trek_parallel(1000, 501, part, &w);
    assert_true(w.calls == 1 && w.foreign == 0);
    start(&w, false);
    trek_parallel(1000, 500, part, &w);
    assert_int_equal(w.calls, 2);
    use(NULL);
    drop(&one);
    drop(&three);
}

/* Each part waits until all are begun: they run at the same time, on as many threads. */
typedef struct meeting {
    atomic_int here, met;
} meeting;

static void meet(void *arg, int64_t begin, int64_t end)
{
    meeting *m = arg;
    atomic_fetch_add(&m->here, (int)(end - begin));
    for (double since = 0; atomic_load(&m->here) < 4 && test_wait(&since);)
        continue;
    atomic_fetch_add(&m->met, atomic_load(&m->here) == 4);
}

static void parts_run_at_a_time(void **state)
{
    trek_pool *pool = pool_of(4);
    use(pool);
    for (int run = 0; run < 20; run++) {
        meeting m = { 0 };
        trek_parallel(4, 1, meet, &m);
        assert_int_equal(m.met, 4);
    }
    drop(&pool);
}

/* --- nested calls -------------------------------------------------------------------------------- */

typedef struct nest {
    int depth;
    pthread_t thread;
    atomic_int *leaves, *strays;
} nest;

static void deeper(void *arg, int64_t begin, int64_t end)
{
    nest *outer = arg;
    if (outer->depth > 0 && (!pthread_equal(pthread_self(), outer->thread) || begin != 0))
        atomic_fetch_add(outer->strays, 1);
    if (outer->depth == 3) {
        atomic_fetch_add(outer->leaves, (int)(end - begin));
        return;
    }
    nest inner = { outer->depth + 1, pthread_self(), outer->leaves, outer->strays };
    trek_parallel(end - begin, 1, deeper, &inner);
}

static void nested_calls_stay_on_their_thread(void **state)
{
    trek_pool *pool = pool_of(3);
    use(pool);
    for (int run = 0; run < 200; run++) {
        atomic_int leaves = 0, strays = 0;
        trek_parallel(100, 1, deeper, &(nest){ 0, pthread_self(), &leaves, &strays });
        assert_true(leaves == 100 && strays == 0);
    }
    static work w; /* and then the pool is whole again */
    start(&w, false);
    trek_parallel(100, 1, part, &w);
    assert_null(fault(&w, 100, 1, 3));
    drop(&pool);
}

/* --- several callers ----------------------------------------------------------------------------- */

typedef struct caller {
    trek_pool *pool;
    int runs, faults;
    work w;
} caller;

/* Where the pool is taken, it computes all by itself: only the parts' number differs. */
static void *call_often(void *arg)
{
    caller *c = arg;
    use(c->pool);
    for (int run = 0; run < c->runs; run++) {
        start(&c->w, run % 3 == 0);
        int64_t count = 2 + (run * 37) % 1000;
        trek_parallel(count, 1, part, &c->w);
        bool alone = c->w.calls == 1 && c->w.foreign == 0;
        c->faults += fault(&c->w, count, 1, alone ? 1 : trek_pool_threads(trek_pool_here())) != NULL;
    }
    use(NULL);
    return NULL;
}

static void run_callers(trek_pool *const *pools)
{
    static caller callers[RANKS];
    pthread_t threads[RANKS];
    for (int r = 0; r < RANKS; r++) {
        callers[r] = (caller){ .pool = pools ? pools[r] : NULL, .runs = 400 };
        assert_int_equal(pthread_create(&threads[r], NULL, call_often, &callers[r]), 0);
    }
    for (int r = 0; r < RANKS; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(callers[r].faults, 0);
}

/* Each with its own threads: more than there are cores, so nobody spins. */
static void many_ranks(void **state)
{
    trek_pool *pools[RANKS];
    for (int r = 0; r < RANKS; r++)
        pools[r] = pool_of(1 + r);
    trek_pool_set_busy(trek_cores() + 1);
    run_callers(pools);
    trek_pool_set_busy(1);
    run_callers(pools);
    trek_pool_set_busy(0);
    for (int r = 0; r < RANKS; r++)
        drop(&pools[r]);
}

/* The process's default pool, made once by whoever comes first. */
static void callers_meet_in_the_default_pool(void **state)
{
    run_callers(NULL);
    use(NULL);
    trek_pool *pool = trek_pool_here();
    assert_ptr_equal(pool, trek_pool_here());
    assert_int_equal(trek_pool_threads(pool), 3); /* TREK_THREADS, see main */
    trek_pool *own = pool_of(2);
    use(own);
    assert_ptr_equal(trek_pool_here(), own);
    drop(&own);
    assert_ptr_equal(trek_pool_here(), pool);
}

/* --- sleep, life, death ---------------------------------------------------------------------------- */

/* Work that comes while the workers look for it, while they fall asleep, and when they sleep. */
static void sleeping_workers_wake(void **state)
{
    static work w;
    trek_pool *pool = pool_of(3);
    use(pool);
    for (int run = 0; run < 300; run++) {
        start(&w, false);
        trek_parallel(99, 1, part, &w);
        assert_null(fault(&w, 99, 1, 3));
        nanosleep(&(struct timespec){ .tv_nsec = run % 3 * 20000 + (run % 50 == 0) * 2000000 }, NULL);
    }
    drop(&pool);
}

static void pools_come_and_go(void **state)
{
    static work w;
    for (int run = 0; run < 60; run++) {
        trek_pool *pool = pool_of(1 + run % 5);
        use(pool);
        if (run % 2) { /* else it ends before its threads have begun */
            start(&w, false);
            trek_parallel(64, 1, part, &w);
            assert_null(fault(&w, 64, 1, 1 + run % 5));
        }
        if (run % 4 == 3)
            nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
        drop(&pool);
    }
    trek_pool *none = NULL;
    trek_pool_free(&none);
    trek_pool_free(NULL);
}

/* A process that was forked has none of the threads: it computes alone, and frees what it took along. */
static void forked_processes_compute_alone(void **state)
{
    static work w;
    trek_pool *pool = pool_of(3);
    use(pool);
    start(&w, false);
    trek_parallel(100, 1, part, &w);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        start(&w, false);
        trek_parallel(100, 1, part, &w);
        bool good = w.calls == 1 && w.foreign == 0 && w.hits[99] == 1;
        use(NULL);
        trek_pool_free(&pool);
        _exit(good && !pool ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    start(&w, false);
    trek_parallel(100, 1, part, &w);
    assert_null(fault(&w, 100, 1, 3));
    drop(&pool);
}

/* --- how many --------------------------------------------------------------------------------------- */

static void wrong_numbers(void **state)
{
    static const int wrong[] = { 0, -1, INT32_MIN, 1025, INT32_MAX };
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        assert_null(trek_pool_new(wrong[k], 0));
        assert_int_equal(trek_error_status(), TREK_ERR_ARGUMENT);
        assert_int_equal(strncmp(trek_error(), "pool: ", 6), 0);
        trek_error_clear();
    }
}

/* The first of all: an allocator is exchanged while nothing lives. */
static void no_memory(void **state)
{
    assert_int_equal(test_allocator_use(), TREK_OK);
    test_memory.fail_count = 2; /* it is asked twice */
    test_allocator_restart(1);
    REFUSED(trek_pool_new(2, 0), TREK_ERR_MEMORY, "");
    test_allocator_restart(0);
    assert_int_equal(trek_allocator_set(NULL), TREK_OK);
}

static int warnings;
static void count_warnings(trek_log_level level, const char *message, void *arg)
{
    warnings += level == TREK_LOG_LEVEL_WARNING && strncmp(message, "TREK_THREADS=", 13) == 0;
}

static void threads_of_the_environment(void **state)
{
    int cores = trek_cores();
    assert_true(cores >= 1);
    assert_int_equal(cores, trek_cores());
    struct { const char *text; int threads, warnings;
    } cases[] = {
        { "1", 1, 0 },      { "7", 7, 0 },        { "1024", 1024, 0 }, { "", cores, 0 },     { "0", cores, 1 },
        { "-2", cores, 1 }, { "1025", cores, 1 }, { "2x", cores, 1 },  { "many", cores, 1 }, { "99999999999999999999", cores, 1 },
    };
    trek_log_set(TREK_LOG_LEVEL_WARNING, count_warnings, NULL);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        setenv("TREK_THREADS", cases[k].text, 1);
        warnings = 0;
        int wanted = trek_threads_wanted();
        if (wanted != cases[k].threads || warnings != cases[k].warnings)
            fail_msg("TREK_THREADS=%s: %d threads and %d warnings", cases[k].text, wanted, warnings);
    }
    unsetenv("TREK_THREADS");
    assert_int_equal(trek_threads_wanted(), cores);
    trek_log_set(TREK_LOG_LEVEL_WARNING, NULL, NULL);
    setenv("TREK_THREADS", "3", 1);
}

/* --- pinned ------------------------------------------------------------------------------------------ */

static int own_cores(int *first)
{
    static _Thread_local cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return -1;
    for (*first = 0; *first < CPU_SETSIZE && !CPU_ISSET(*first, &set);)
        ++*first;
    return CPU_COUNT(&set);
}

typedef struct places {
    atomic_int here, wrong;
    int cores[4];
} places;

/* As many pieces as threads, each of which waits for the others: every thread has one. */
static void note_place(void *arg, int64_t begin, int64_t end)
{
    places *p = arg;
    if (own_cores(&p->cores[begin]) != 1 || end != begin + 1)
        atomic_fetch_add(&p->wrong, 1);
    atomic_fetch_add(&p->here, 1);
    for (double since = 0; atomic_load(&p->here) < 4 && test_wait(&since);)
        continue;
}

static void *count_own(void *arg)
{
    int first;
    *(int *)arg = own_cores(&first);
    return NULL;
}

/* In a process of its own, with TREK_PIN=1 and TREK_THREADS=4: 0 if each thread has one core, which are taken in turns, and a
 * thread that does not compute has all. */
static int be_pinned(void)
{
    int first, all = own_cores(&first), cores = trek_cores(), other = 0, used[CPU_SETSIZE] = { 0 };
    places p = { 0 };
    trek_parallel(4, 1, note_place, &p);
    pthread_t thread;
    if (all != cores || p.wrong || p.here != 4 || trek_thread_start(&thread, count_own, &other) != 0)
        return 1;
    pthread_join(thread, NULL);
    for (int k = 0; k < 4; k++)
        used[p.cores[k]]++;
    for (int k = 0; k < CPU_SETSIZE; k++)
        if (used[k] > (4 + cores - 1) / cores)
            return 2;
    return other == all && trek_cores() == cores && own_cores(&first) == 1 ? 0 : 3;
}

static void threads_stay_on_their_cores(void **state)
{
    for (int rank = 0; rank < 3; rank++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            char number[16];
            snprintf(number, sizeof number, "%d", rank);
            setenv("TREK_PIN", "1", 1);
            setenv("TREK_THREADS", "4", 1);
            setenv("TREK_LOCAL_RANK", number, 1);
            execl("/proc/self/exe", "test_pool", "--pinned", (char *)NULL);
            _exit(127);
        }
        int status = -1;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--pinned") == 0)
        return be_pinned();
    setenv("TREK_THREADS", "3", 1); /* of the default pool */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_memory), cmocka_unit_test(parts_cover_the_range), cmocka_unit_test(nothing_to_do),
        cmocka_unit_test(the_caller_alone), cmocka_unit_test(parts_run_at_a_time),
        cmocka_unit_test(nested_calls_stay_on_their_thread), cmocka_unit_test(many_ranks),
        cmocka_unit_test(callers_meet_in_the_default_pool), cmocka_unit_test(sleeping_workers_wake),
        cmocka_unit_test(pools_come_and_go), cmocka_unit_test(forked_processes_compute_alone), cmocka_unit_test(wrong_numbers),
        cmocka_unit_test(threads_of_the_environment), cmocka_unit_test(threads_stay_on_their_cores),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
