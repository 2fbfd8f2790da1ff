/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of the library's own. Internal. */
#ifndef TREK_TENSOR_THREAD_START_H
#define TREK_TENSOR_THREAD_START_H

#include <pthread.h>
#include <time.h>

#include "tensor/common.h"

TREK_BEGIN

/* pthread_create, with all signals blocked in the new thread: they are for the program's threads. Returns what that does. */
int trek_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg);

/* Whether pthread_mutex_clocklock can be called. ThreadSanitizer does not know that it locks, and would report every unlock. */
#if defined(__GLIBC__) && !defined(__SANITIZE_THREAD__)
#define TREK_HAS_CLOCKLOCK __GLIBC_PREREQ(2, 30)
#else
#define TREK_HAS_CLOCKLOCK 0
#endif

/* Like pthread_mutex_timedlock, but `until` is a time of CLOCK_MONOTONIC, which nobody sets. */
static inline int trek_mutex_lock_until(pthread_mutex_t *lock, const struct timespec *until)
{
#if TREK_HAS_CLOCKLOCK
    return pthread_mutex_clocklock(lock, CLOCK_MONOTONIC, until);
#else /* only the time of day can be waited for: `until` is moved to it by the difference of the two clocks */
    struct timespec at, now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_sec += until->tv_sec - now.tv_sec;
    at.tv_nsec += until->tv_nsec - now.tv_nsec;
    at.tv_sec += at.tv_nsec < 0 ? -1 : at.tv_nsec >= 1000000000;
    at.tv_nsec += at.tv_nsec < 0 ? 1000000000 : at.tv_nsec >= 1000000000 ? -1000000000 : 0;
    return pthread_mutex_timedlock(lock, &at);
#endif
}

TREK_END

#endif
