/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/cores.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tensor/environment.h"
#include "tensor/status_internal.h"

enum { MOST_CORES = 1 << 18 };

/* The cores of the process, determined once, because threads that are pinned later see fewer. */
static struct {
    pthread_once_t once;
    unsigned long bits[MOST_CORES / 8 / sizeof(unsigned long)];
    int cores;
    bool known, pinning;
} machine = { .once = PTHREAD_ONCE_INIT };

static cpu_set_t *all_cores(void) { return (cpu_set_t *)(void *)machine.bits; }

static void look(void)
{
    machine.known = sched_getaffinity(0, sizeof machine.bits, all_cores()) == 0 &&
                    CPU_COUNT_S(sizeof machine.bits, all_cores()) > 0;
    machine.pinning = trek_environment_number("TREK_PIN", 0, 1, 0) == 1 && machine.known;
    long cores = machine.known ? CPU_COUNT_S(sizeof machine.bits, all_cores()) : sysconf(_SC_NPROCESSORS_ONLN);
    machine.cores = cores > 0 ? (int)cores : 1;
}

int trek_cores(void)
{
    pthread_once(&machine.once, look);
    return machine.cores;
}

int trek_threads_wanted(void)
{
    const char *text = getenv("TREK_THREADS");
    if (!text || !*text)
        return trek_cores() < TREK_MAX_THREADS ? trek_cores() : TREK_MAX_THREADS;
    char *end;
    long threads = strtol(text, &end, 10);
    if (*end == '\0' && threads >= 1 && threads <= TREK_MAX_THREADS)
        return (int)threads;
    trek_log_message(TREK_LOG_LEVEL_WARNING, "TREK_THREADS=%s: not a number from 1 to %d: using %d", text, TREK_MAX_THREADS,
                     trek_cores());
    return trek_cores();
}

/* Returns the system's number of the k-th core of the process. */
static int core_number(int k)
{
    int number = 0;
    while (!CPU_ISSET_S((size_t)number, sizeof machine.bits, all_cores()) || k-- > 0)
        number++;
    return number;
}

void trek_pin_thread(int place)
{
    int cores = trek_cores();
    if (!machine.pinning)
        return;
    int64_t first = (int64_t)trek_environment_local_rank() * trek_threads_wanted();
    int number = core_number((int)((first + place) % cores));
    size_t bytes = CPU_ALLOC_SIZE((size_t)number + 1);
    cpu_set_t *one = CPU_ALLOC((size_t)number + 1);
    if (!one)
        return;
    CPU_ZERO_S(bytes, one);
    CPU_SET_S((size_t)number, bytes, one);
    int failed = pthread_setaffinity_np(pthread_self(), bytes, one);
    if (failed)
        trek_log_message(TREK_LOG_LEVEL_WARNING, "TREK_PIN=1: a thread cannot be kept on core %d: %s", number, strerror(failed));
    CPU_FREE(one);
}

bool trek_pin_release(pthread_attr_t *attributes)
{
    trek_cores();
    return machine.pinning && pthread_attr_setaffinity_np(attributes, sizeof machine.bits, all_cores()) == 0;
}
