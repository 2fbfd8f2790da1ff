/* SPDX-License-Identifier: Apache-2.0 */
/* Measures peaks: independent chains of multiply-adds in registers, and copies of large arrays, on all threads at
 * once. */
#include "tensor/peak.h"

#include <pthread.h>
#include <string.h>

#include "tensor/memory_internal.h"
#include "tensor/pool.h"
#include "tensor/status_internal.h"
#include "tensor/trace.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { CHAINS = 12, ROUNDS = 12, COPIES = 6, ADDS = 1 << 20, KNOWN = 16 };
#define COPIED ((size_t)128 << 20) /* bytes of each array */

/* --- multiply-adds: CHAINS vectors, each multiplied and added to ADDS times ---------------------- */

/* Clang and gcc keep the chains in registers; the sum is used so that they are not optimised away. */
#define CHAIN_LOOP(vector, set, multiply_add, add)                      \
    vector chain[CHAINS], factor = set(0.999999f), more = set(1e-6f);   \
    for (int c = 0; c < CHAINS; c++)                                    \
        chain[c] = set(1 + (float)c);                                   \
    for (int k = 0; k < ADDS; k++)                                      \
        for (int c = 0; c < CHAINS; c++)                                \
            chain[c] = multiply_add(chain[c], factor, more);            \
    for (int c = 1; c < CHAINS; c++)                                    \
        chain[0] = add(chain[0], chain[c])

typedef float (*chains_fn)(void);

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static float chains_avx512(void)
{
    CHAIN_LOOP(__m512, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_add_ps);
    return _mm512_reduce_add_ps(chain[0]);
}

__attribute__((target("avx2,fma"))) static float chains_avx2(void)
{
    CHAIN_LOOP(__m256, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_add_ps);
    float lanes[8];
    _mm256_storeu_ps(lanes, chain[0]);
    return lanes[0] + lanes[7];
}

static __m128 multiply_add_sse(__m128 x, __m128 y, __m128 z) { return _mm_add_ps(_mm_mul_ps(x, y), z); }

static float chains_sse(void)
{
    CHAIN_LOOP(__m128, _mm_set1_ps, multiply_add_sse, _mm_add_ps);
    return _mm_cvtss_f32(chain[0]);
}

static chains_fn chains_of(int *lanes)
{
    if (__builtin_cpu_supports("avx512f"))
        return *lanes = 16, chains_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return *lanes = 8, chains_avx2;
    return *lanes = 4, chains_sse;
}
#elif defined(__aarch64__)
static float32x4_t multiply_add_neon(float32x4_t x, float32x4_t y, float32x4_t z) { return vfmaq_f32(z, x, y); }

static float chains_neon(void)
{
    CHAIN_LOOP(float32x4_t, vdupq_n_f32, multiply_add_neon, vaddq_f32);
    return vaddvq_f32(chain[0]);
}

static chains_fn chains_of(int *lanes) { return *lanes = 4, chains_neon; }
#else
static float same(float x) { return x; }
static float multiply_add(float x, float y, float z) { return x * y + z; }
static float add(float x, float y) { return x + y; }

static float chains_plain(void)
{
    CHAIN_LOOP(float, same, multiply_add, add);
    return chain[0];
}

static chains_fn chains_of(int *lanes) { return *lanes = 1, chains_plain; }
#endif

typedef struct measured {
    chains_fn chains;
    _Atomic float sum;
    char *to, *from;
} measured;

static void run_chains(void *arg, int64_t begin, int64_t end)
{
    measured *m = arg;
    for (int64_t k = begin; k < end; k++)
        m->sum = m->chains();
}

static void copy_part(void *arg, int64_t begin, int64_t end)
{
    measured *m = arg;
    memcpy(m->to + begin, m->from + begin, (size_t)(end - begin));
}

/* Returns the seconds of the fastest of `rounds` calls on all threads. */
static double fastest(measured *m, int rounds, int64_t count, int64_t grain, void (*part)(void *, int64_t, int64_t))
{
    int64_t best = INT64_MAX;
    for (int k = 0; k < rounds; k++) {
        int64_t start = trek_clock_ns();
        trek_parallel(count, grain, part, m);
        int64_t took = trek_clock_ns() - start;
        best = took < best ? took : best;
    }
    return (double)(best > 0 ? best : 1) / 1e9;
}

static trek_status measure(trek_peak *peak)
{
    measured m = { .to = trek_alloc(COPIED), .from = trek_alloc(COPIED) };
    trek_status status = m.to && m.from ? TREK_OK : TREK_ERR_MEMORY;
    int lanes;
    m.chains = chains_of(&lanes);
    if (status == TREK_OK) {
        memset(m.from, 1, COPIED);
        memset(m.to, 1, COPIED);
        peak->flops = 2.0 * lanes * CHAINS * ADDS * peak->threads / fastest(&m, ROUNDS, peak->threads, 1, run_chains);
        peak->bytes = 2.0 * COPIED / fastest(&m, COPIES, COPIED, 1 << 20, copy_part);
    }
    trek_free(m.to);
    trek_free(m.from);
    return status;
}

trek_status trek_measure_peak(trek_peak *peak)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static trek_peak known[KNOWN];
    static int n_known;
    if (!peak)
        return trek_fail_missing("measure_peak", "peak");
    *peak = (trek_peak){ .threads = trek_pool_threads(trek_pool_here()) };
    trek_status status = TREK_ERR_STATE;
    pthread_mutex_lock(&lock);
    for (int k = 0; k < n_known && status != TREK_OK; k++)
        if (known[k].threads == peak->threads) {
            *peak = known[k];
            status = TREK_OK;
        }
    if (status != TREK_OK && (status = measure(peak)) == TREK_OK && n_known < KNOWN)
        known[n_known++] = *peak;
    pthread_mutex_unlock(&lock);
    return status;
}
