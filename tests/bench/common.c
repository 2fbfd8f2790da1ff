/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers from an integer hash, the clock, and the machine's stream rate. */
#include "bench.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

/* The finalizer of MurmurHash3 (A. Appleby, public domain) over the two numbers. */
uint32_t bench_hash(uint32_t seed, uint32_t index)
{
    uint32_t x = index + seed * 0x9e3779b9u;
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
}

float bench_uniform(uint32_t seed, uint32_t index)
{
    return (float)(bench_hash(seed, index) >> 8) * 0x1p-23f - 1.0f;
}

void bench_fill(float *values, int64_t count, uint32_t seed, float shift, float scale)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = shift + scale * bench_uniform(seed, (uint32_t)i);
}

int64_t bench_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

double bench_peak_resident(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? 1024.0 * (double)usage.ru_maxrss : 0;
}

int bench_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* -- the stream rate -- */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

CLONES static void add(float *restrict a, const float *restrict b, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        a[i] += b[i];
}

typedef struct stream_part {
    float *a, *b;
    int64_t count;
    int passes;
    pthread_barrier_t *barrier;
    int64_t begin, end;
} stream_part;

static void *stream_thread(void *arg)
{
    stream_part *part = arg;
    bench_fill(part->a, part->count, 1, 0, 1); /* each thread touches its own part first */
    bench_fill(part->b, part->count, 2, 0, 1e-6f);
    pthread_barrier_wait(part->barrier);
    part->begin = bench_now_ns();
    for (int k = 0; k < part->passes; k++)
        add(part->a, part->b, part->count);
    part->end = bench_now_ns();
    return NULL;
}

/* The arrays are kept from call to call: they are cheap beside what is measured. */
static float *stream_memory(int64_t elements)
{
    static float *memory;
    static size_t held;
    size_t bytes = ((size_t)elements * 2 * sizeof(float) + 0x1fffff) & ~(size_t)0x1fffff;
    if (bytes > held) {
        free(memory);
        memory = aligned_alloc(0x200000, bytes);
        held = memory ? bytes : 0;
        if (memory)
            madvise(memory, bytes, MADV_HUGEPAGE);
    }
    return memory;
}

double bench_stream(int64_t elements, int passes)
{
    enum { MAX_THREADS = 256 };
    static stream_part parts[MAX_THREADS];
    static pthread_t threads[MAX_THREADS];
    int n = bench_cores() < MAX_THREADS ? bench_cores() : MAX_THREADS;
    float *memory = stream_memory(elements);
    pthread_barrier_t barrier;
    if (!memory || pthread_barrier_init(&barrier, NULL, (unsigned)n) != 0)
        return 0;
    int64_t share = elements / n & ~(int64_t)1023;
    for (int k = 0; k < n; k++)
        parts[k] = (stream_part){ memory + k * share, memory + elements + k * share, share, passes, &barrier, 0, 0 };
    int started = 1;
    for (; started < n; started++)
        if (pthread_create(&threads[started], NULL, stream_thread, &parts[started]) != 0)
            abort(); /* a barrier that never fills; this is no library */
    stream_thread(&parts[0]);
    for (int k = 1; k < n; k++)
        pthread_join(threads[k], NULL);
    pthread_barrier_destroy(&barrier);
    int64_t begin = parts[0].begin, end = parts[0].end;
    for (int k = 1; k < n; k++) {
        begin = parts[k].begin < begin ? parts[k].begin : begin;
        end = parts[k].end > end ? parts[k].end : end;
    }
    return 12.0 * (double)share * n * passes / (double)(end - begin);
}
