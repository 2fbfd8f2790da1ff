/* SPDX-License-Identifier: Apache-2.0 */
/* The library's own threads. */
#ifndef TREK_TENSOR_THREAD_START_H
#define TREK_TENSOR_THREAD_START_H

#include <pthread.h>
#include <time.h>

#include "tensor/common.h"

TREK_BEGIN

/* pthread_create with all signals blocked in the new thread, because they are meant for the program's threads.
 * Returns its result. */
int trek_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg);

/* Whether pthread_mutex_clocklock can be called. ThreadSanitizer does not know that it locks, and would report every unlock. */
#if defined(__GLIBC__) && !defined(__SANITIZE_THREAD__)
#define TREK_HAS_CLOCKLOCK __GLIBC_PREREQ(2, 30)
#else
#define TREK_HAS_CLOCKLOCK 0
#endif

/* pthread_mutex_timedlock with the monotonic clock. */
static inline int trek_mutex_lock_until(pthread_mutex_t *lock, const struct timespec *until)
{
#if TREK_HAS_CLOCKLOCK
    return pthread_mutex_clocklock(lock, CLOCK_MONOTONIC, until);
#else /* other systems only support the time of day: add the remaining time to it */
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
