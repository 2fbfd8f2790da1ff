/* SPDX-License-Identifier: Apache-2.0 */
/* To be preloaded: every sleep of a program, and of what it starts, lasts TREK_TEST_SLEEP times as long (10, or 0.1), and threads
 * begin late. A test that passes only because somebody slept long enough, or not too long, fails then. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Longer than any test waits for what has to happen; what is to last as long as a test does is not stretched beyond it. */
static const double LONGEST = 100;

static double factor(void)
{
    const char *text = getenv("TREK_TEST_SLEEP");
    double times = text ? atof(text) : 1;
    return times > 0 ? times : 1;
}

static double seconds_of(const struct timespec *span) { return (double)span->tv_sec + 1e-9 * (double)span->tv_nsec; }

static struct timespec span_of(double seconds)
{
    time_t whole = (time_t)seconds;
    return (struct timespec){ .tv_sec = whole, .tv_nsec = (long)((seconds - (double)whole) * 1e9) };
}

/* Sleeps in the system's own way; what is left is told in the caller's time. Returns an error number. */
static int sleep_scaled(clockid_t clock, const struct timespec *span, struct timespec *left)
{
    static int (*own)(clockid_t, int, const struct timespec *, struct timespec *);
    if (!own)
        *(void **)&own = dlsym(RTLD_NEXT, "clock_nanosleep");
    double asked = seconds_of(span), times = factor(), stretched = asked * times;
    if (times > 1 && stretched > LONGEST)
        stretched = asked > LONGEST ? asked : LONGEST;
    struct timespec scaled = span_of(stretched), rest = { 0 };
    int wrong = own(clock, 0, &scaled, &rest);
    if (wrong == EINTR && left)
        *left = span_of(stretched > 0 ? asked * seconds_of(&rest) / stretched : 0);
    return wrong;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *span, struct timespec *left)
{
    static int (*own)(clockid_t, int, const struct timespec *, struct timespec *);
    if (!own)
        *(void **)&own = dlsym(RTLD_NEXT, "clock_nanosleep");
    return flags & TIMER_ABSTIME ? own(clock, flags, span, left) : sleep_scaled(clock, span, left);
}

int nanosleep(const struct timespec *span, struct timespec *left)
{
    int wrong = sleep_scaled(CLOCK_MONOTONIC, span, left);
    if (wrong)
        errno = wrong;
    return wrong ? -1 : 0;
}

int usleep(useconds_t us)
{
    struct timespec span = span_of(us * 1e-6);
    return nanosleep(&span, NULL);
}

unsigned sleep(unsigned seconds)
{
    struct timespec span = { .tv_sec = (time_t)seconds }, left = { 0 };
    return nanosleep(&span, &left) == 0 ? 0 : (unsigned)(left.tv_sec + (left.tv_nsec > 0));
}

/* --- threads that begin late --- */

typedef struct late {
    void *(*run)(void *arg);
    void *arg;
    long us;
} late;

static void *run_late(void *arg)
{
    late own = *(late *)arg;
    free(arg);
    usleep((useconds_t)own.us); /* itself stretched */
    return own.run(own.arg);
}

/* By up to 3 ms of a test's time, a third of them not at all. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *arg), void *arg)
{
    static int (*own)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    static atomic_uint started;
    if (!own)
        *(void **)&own = dlsym(RTLD_NEXT, "pthread_create");
    uint32_t draw = (atomic_fetch_add(&started, 1) + 1) * 2654435761u ^ (uint32_t)getpid() * 40503u;
    late *begin = draw >> 16 & 3 ? malloc(sizeof *begin) : NULL;
    if (!begin)
        return own(thread, attributes, run, arg);
    *begin = (late){ .run = run, .arg = arg, .us = (long)((draw >> 18) % 3000) };
    int wrong = own(thread, attributes, run_late, begin);
    if (wrong)
        free(begin);
    return wrong;
}
