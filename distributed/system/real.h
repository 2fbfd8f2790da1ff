/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of system.h, implemented by the operating system. Only system.h includes it. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tensor/thread_start.h"
#include "tensor/trace.h"

static inline struct timespec trek_timespec(int64_t ns)
{
    return (struct timespec){ .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) };
}

static inline int64_t trek_now_ns(void) { return trek_clock_ns(); }

static inline void trek_sleep_until_ns(int64_t until_ns)
{
    struct timespec at = trek_timespec(until_ns);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
        ;
}

static inline void trek_sleep_ns(int64_t ns)
{
    struct timespec span = trek_timespec(ns);
    nanosleep(&span, NULL);
}

static inline void trek_busy_until_ns(int64_t until_ns)
{
    while (trek_now_ns() < until_ns)
        ;
}

static inline bool trek_lock_init(trek_lock *lock) { return pthread_mutex_init(lock, NULL) == 0; }
static inline void trek_lock_destroy(trek_lock *lock) { pthread_mutex_destroy(lock); }
static inline void trek_lock_acquire(trek_lock *lock) { pthread_mutex_lock(lock); }
static inline void trek_lock_release(trek_lock *lock) { pthread_mutex_unlock(lock); }
static inline bool trek_lock_try(trek_lock *lock) { return pthread_mutex_trylock(lock) == 0; }

static inline bool trek_lock_acquire_within(trek_lock *lock, int64_t ns)
{
    struct timespec until = trek_timespec(trek_now_ns() + ns);
    return trek_mutex_lock_until(lock, &until) == 0;
}

static inline bool trek_condition_init(trek_condition *condition)
{
    pthread_condattr_t monotonic;
    if (pthread_condattr_init(&monotonic) != 0)
        return false;
    bool made = pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) == 0 && pthread_cond_init(condition, &monotonic) == 0;
    pthread_condattr_destroy(&monotonic);
    return made;
}

static inline void trek_condition_destroy(trek_condition *condition) { pthread_cond_destroy(condition); }
static inline void trek_condition_wait(trek_condition *condition, trek_lock *lock) { pthread_cond_wait(condition, lock); }

static inline bool trek_condition_wait_until(trek_condition *condition, trek_lock *lock, int64_t until_ns)
{
    struct timespec at = trek_timespec(until_ns);
    return pthread_cond_timedwait(condition, lock, &at) == 0;
}

static inline void trek_condition_wake_all(trek_condition *condition) { pthread_cond_broadcast(condition); }
static inline void trek_condition_wake_one(trek_condition *condition) { pthread_cond_signal(condition); }

static inline bool trek_word_wait(atomic_uint *word, unsigned value, bool shared, int64_t until_ns)
{
    struct timespec left;
    int64_t ns = until_ns ? until_ns - trek_now_ns() : 0;
    if (until_ns && ns <= 0)
        return false;
    left = trek_timespec(ns);
    syscall(SYS_futex, word, shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, value, until_ns ? &left : NULL, NULL, 0);
    return true;
}

static inline void trek_word_wake(atomic_uint *word, bool shared)
{
    syscall(SYS_futex, word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static inline bool trek_word_spins(void) { return true; }

static inline int trek_thread_begin(trek_thread *thread, void *(*run)(void *arg), void *arg)
{
    return trek_thread_start(thread, run, arg);
}

static inline void trek_thread_join(trek_thread thread) { pthread_join(thread, NULL); }
static inline void trek_thread_detach(trek_thread thread) { pthread_detach(thread); }
static inline trek_thread trek_thread_self(void) { return pthread_self(); }
static inline bool trek_thread_equal(trek_thread a, trek_thread b) { return pthread_equal(a, b); }
static inline void trek_thread_name(trek_thread thread, const char *name) { pthread_setname_np(thread, name); }
static inline void trek_thread_yield(void) { sched_yield(); }
