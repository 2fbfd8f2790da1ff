/* SPDX-License-Identifier: Apache-2.0 */
/* The machinery below the kernels: copies, the caching allocator, streams of
 * threads, faults, capture. On TREK_TEST_DEVICE, which must be a GPU (the fake
 * one of the tests, or a real one); on the CPU it has nothing to do. */
#include <pthread.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "data/loader_internal.h"
#include "data/loader_position.h"
#include "tensor/backend.h"
#include "tensor/rank_context.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

static trek_device gpu;
static const trek_backend *backend;

static trek_tensor *filled(double value, int64_t count) { return trek_tensor_full(trek_dims(count), value, TREK_F32, gpu); }

static void assert_all(trek_tensor *t, float value)
{
    int64_t n = trek_tensor_numel(t);
    float *got = malloc((size_t)n * sizeof *got);
    assert_non_null(got);
    assert_int_equal(trek_tensor_to_host(t, TREK_F32, got, (size_t)n * sizeof *got), TREK_OK);
    int64_t wrong = 0;
    for (int64_t k = 0; k < n; k++)
        wrong += got[k] != value;
    free(got);
    assert_int_equal(wrong, 0);
}

static void assert_failed(trek_status status, const char *part)
{
    assert_int_equal(trek_error_status(), status);
    if (!strstr(trek_error(), part))
        fail_msg("\"%s\" is not in \"%s\"", part, trek_error());
    trek_error_clear();
}

/* --- opening -------------------------------------------------------------------------- */

static void *pin_something(void *arg)
{
    void *data = NULL;
    if (backend->pinned_allocate(100, &data) == TREK_OK)
        backend->pinned_release(data);
    *(bool *)arg = data != NULL;
    return NULL;
}

/* The first thing that this program does: contexts are on the devices that it uses, and on no others. */
static void test_contexts(void **state)
{
    unsigned (*contexts)(void);
    void *address = test_fake("trek_fake_contexts");
    int count = trek_device_count(TREK_CUDA);
    char why[200];
    bool pinned = false;
    pthread_t thread;
    if (!address || count < 2)
        skip();
    memcpy(&contexts, &address, sizeof contexts);
    trek_device_default();
    assert_false(backend->usable(count, why, sizeof why));
    assert_int_equal(contexts(), 0);
    trek_tensor *there = trek_tensor_full(trek_dims(3), 1, TREK_F32, trek_cuda(count - 1));
    assert_non_null(there);
    unsigned one = contexts();
    assert_true(one != 0 && (one & (one - 1)) == 0);
    assert_int_equal(pthread_create(&thread, NULL, pin_something, &pinned), 0);
    pthread_join(thread, NULL);
    assert_true(pinned);
    assert_int_equal(contexts(), one);
    trek_tensor_release(there);
    trek_tensor *here = filled(1, 3);
    assert_non_null(here);
    assert_true(contexts() != one);
    trek_tensor_release(here);
}

/* A device whose kernels do not run says so where it is first used, and to all who ask later. */
static void test_broken_device(void **state)
{
    void (*fails)(const char *specification);
    void *address = test_fake("trek_fake_fail");
    int count = trek_device_count(TREK_CUDA);
    if (!address || count < 3)
        skip();
    memcpy(&fails, &address, sizeof fails);
    fails("cudaLaunchKernel:1");
    for (int k = 0; k < 2; k++) {
        assert_null(trek_tensor_full(trek_dims(3), 1, TREK_F32, trek_cuda(1)));
        assert_failed(TREK_ERR_DEVICE, "a kernel");
        fails(NULL);
    }
    trek_tensor *here = filled(1, 3);
    assert_all(here, 1);
    trek_tensor_release(here);
}

/* --- libraries ---------------------------------------------------------------------- */

static int warnings;

static void count_warnings(trek_log_level level, const char *message, void *arg)
{
    warnings += level == TREK_LOG_LEVEL_WARNING && strstr(message, "without cuBLASLt") &&
        strstr(message, "/nowhere/libcublasLt.so");
}

static void *multiply_some(void *arg)
{
    trek_tensor *a = trek_tensor_full(trek_dims(64, 64), 2, TREK_F32, gpu), *c = a ? trek_tensor_matmul(a, a) : NULL;
    *(bool *)arg = c && trek_device_sync(gpu) == TREK_OK;
    trek_tensor_release(c);
    trek_tensor_release(a);
    return NULL;
}

/* What the plug-in works with has a version, or a reason why it is not there; the slow way of products is told of, once. */
static void test_libraries(void **state)
{
    char text[1600];
    const char *blas = getenv("TREK_CUBLASLT_LIBRARY"), *nccl = getenv("TREK_NCCL_LIBRARY");
    bool blas_absent = blas && strncmp(blas, "/nowhere/", 9) == 0, nccl_absent = nccl && strncmp(nccl, "/nowhere/", 9) == 0;
    trek_log_set(TREK_LOG_LEVEL_WARNING, count_warnings, NULL);
    warnings = 0;
    for (int k = 0; k < 3; k++) {
        pthread_t thread;
        bool right = false;
        assert_int_equal(pthread_create(&thread, NULL, multiply_some, &right), 0);
        pthread_join(thread, NULL);
        assert_true(right);
    }
    backend->versions(text, sizeof text);
    trek_log_set(TREK_LOG_LEVEL_WARNING, NULL, NULL);
    assert_int_equal(warnings, blas_absent);
    assert_non_null(strstr(text, "driver for CUDA "));
    if (test_fake("trek_fake_contexts")) {
        assert_true((strstr(text, "; cuBLASLt 13.0.0; ") != NULL) == !blas_absent);
        assert_true((strstr(text, "; NCCL 2.") != NULL) == !nccl_absent);
    }
    assert_true((strstr(text, "; no cuBLASLt: /nowhere/libcublasLt.so") != NULL) == blas_absent);
    assert_true((strstr(text, "; no NCCL: NCCL cannot be opened: /nowhere/libnccl.so") != NULL) == nccl_absent);
}

/* --- copies ------------------------------------------------------------------------- */

static void test_copies(void **state)
{
    static const int64_t counts[] = { 1, 3, 127, 1024, 70001, 1 << 20, (9 << 20) / 4 + 5, (41 << 20) / 4 + 3 };
    long (*pageable)(void) = NULL;
    void *address = test_fake("trek_fake_pageable");
    memcpy(&pageable, &address, sizeof pageable);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        int64_t n = counts[c];
        float *source = malloc((size_t)n * sizeof *source), *back = malloc((size_t)n * sizeof *back);
        assert_true(source && back);
        for (int64_t k = 0; k < n; k++)
            source[k] = test_number(1, (uint32_t)k);
        trek_tensor *t = trek_tensor_from_data(source, trek_dims(n), TREK_F32, gpu);
        assert_non_null(t);
        memset(source, 0xff, (size_t)n * sizeof *source); /* it is the caller's again */
        trek_tensor *copy = trek_tensor_clone(t);
        assert_non_null(copy);
        trek_tensor_release(t);
        assert_int_equal(trek_tensor_to_host(copy, TREK_F32, back, (size_t)n * sizeof *back), TREK_OK);
        for (int64_t k = 0; k < n; k++)
            if (back[k] != test_number(1, (uint32_t)k))
                fail_msg("element %lld of %lld", (long long)k, (long long)n);
        trek_tensor_release(copy);
        free(source);
        free(back);
    }
    if (pageable)
        assert_int_equal(pageable(), 0); /* copies that the device makes by itself, whatever the host does */
}

static void test_host_is_kept_out(void **state)
{
    trek_tensor *t = filled(1, 4);
    assert_non_null(t);
    assert_null(trek_tensor_data(t));
    trek_tensor *sum = trek_tensor_add(t, t);
    assert_null(trek_tensor_data(sum));
    assert_all(sum, 2);
    trek_tensor_release(sum);
    trek_tensor_release(t);
}

static void test_between_devices(void **state)
{
    int count = trek_device_count(TREK_CUDA);
    trek_device other = trek_cuda(count - 1);
    trek_tensor *t = filled(3, 5000);
    trek_tensor *there = trek_tensor_to(t, other), *back = there ? trek_tensor_to(there, gpu) : NULL;
    assert_non_null(back);
    assert_all(back, 3);
    trek_tensor_release(back);
    trek_tensor_release(there);
    trek_tensor_release(t);
}

/* Each process of a machine has a GPU of its own by default. */
static void test_default_device(void **state)
{
    static const char *const names[] = { "TREK_LOCAL_RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID" };
    int count = trek_device_count(TREK_CUDA);
    char rank[16];
    assert_true(trek_device_equal(trek_device_default(), trek_cuda(0)));
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        for (int local = 0; local < count + 2; local++) {
            snprintf(rank, sizeof rank, "%d", local);
            setenv(names[k], rank, 1);
            assert_true(trek_device_equal(trek_device_default(), trek_cuda(local % count)));
            unsetenv(names[k]);
        }
    setenv("TREK_DEVICES", "cpu:1", 1);
    setenv("LOCAL_RANK", "1", 1);
    assert_true(trek_device_equal(trek_device_default(), trek_cpu(1)));
    unsetenv("LOCAL_RANK");
    unsetenv("TREK_DEVICES");
}

/* --- the allocator ------------------------------------------------------------------------ */

/* Blocks of random sizes come and go; each keeps its own number until it is freed. */
static void test_blocks_are_apart(void **state)
{
    enum { LIVE = 24, ROUNDS = 300 };
    trek_tensor *live[LIVE] = { NULL };
    int64_t before = trek_memory_usage(gpu).allocated;
    for (int round = 0; round < ROUNDS; round++) {
        int k = (int)((test_number(2, (uint32_t)round) + 1) * LIVE / 2);
        if (live[k]) {
            assert_all(live[k], (float)k);
            trek_tensor_release(live[k]);
            live[k] = NULL;
            continue;
        }
        double size = (test_number(3, (uint32_t)round) + 1) / 2;
        live[k] = filled(k, 1 + (int64_t)(size * size * size * 600000));
        assert_non_null(live[k]);
    }
    for (int k = 0; k < LIVE; k++) {
        if (live[k])
            assert_all(live[k], (float)k);
        trek_tensor_release(live[k]);
    }
    assert_int_equal(trek_memory_usage(gpu).allocated, before);
}

static void test_memory_is_cached(void **state)
{
    trek_tensor_release(filled(1, 300000));
    trek_memory_stats before = trek_memory_usage(gpu);
    for (int k = 0; k < 50; k++)
        trek_tensor_release(filled(1, 300000));
    trek_memory_stats after = trek_memory_usage(gpu);
    assert_int_equal(after.system_requests, before.system_requests);
    assert_int_equal(after.allocations, before.allocations + 50);
    trek_memory_release_cached(gpu);
    assert_true(trek_memory_usage(gpu).reserved < after.reserved);
}

static void test_neighbours_are_joined(void **state)
{
    trek_memory_release_cached(gpu);
    enum { N = 8 };
    trek_tensor *parts[N];
    for (int k = 0; k < N; k++)
        assert_non_null(parts[k] = filled(k, (2 << 20) / 4)); /* 2 MiB each, of a segment of 20 */
    for (int k = 0; k < N; k += 2)
        trek_tensor_release(parts[k]);
    for (int k = 1; k < N; k += 2)
        trek_tensor_release(parts[k]);
    int64_t requests = trek_memory_usage(gpu).system_requests;
    trek_tensor *whole = filled(9, (9 << 20) / 4);
    assert_non_null(whole);
    assert_int_equal(trek_memory_usage(gpu).system_requests, requests);
    trek_tensor_release(whole);
}

static void test_out_of_memory(void **state)
{
    trek_device_info info;
    assert_int_equal(backend->info(gpu.index, &info), TREK_OK);
    assert_null(filled(1, info.memory)); /* four times of all there is */
    assert_failed(TREK_ERR_MEMORY, "out of memory on cuda:");
    enum { MOST = 64 };
    trek_tensor *held[MOST] = { NULL };
    int64_t each = info.memory / MOST / 4 * 2; /* twice a 64th: not all can be had */
    int n = 0;
    while (n < MOST && (held[n] = trek_tensor_empty(trek_dims(each), TREK_F32, gpu)))
        n++;
    assert_in_range(n, 1, MOST - 1);
    assert_true(strstr(trek_error(), "Held by: ") != NULL);
    assert_failed(TREK_ERR_MEMORY, "MiB in ");
    for (int k = 0; k < n; k++)
        trek_tensor_release(held[k]);
    /* What is cached in blocks of one size gives way to another size. */
    int64_t retries = trek_memory_usage(gpu).retries;
    trek_tensor *large = trek_tensor_empty(trek_dims(each * (n - 1)), TREK_F32, gpu);
    assert_non_null(large);
    assert_true(trek_memory_usage(gpu).retries > retries);
    trek_tensor_release(large);
    trek_memory_release_cached(gpu);
}

/* --- threads ---------------------------------------------------------------------------------- */

typedef struct reader {
    trek_tensor *source, *result;
    trek_event *given, *done;
    bool keep;
} reader;

/* Reads the source on this thread's stream, and lets go of it while that may still be under way. */
static void *read_and_release(void *arg)
{
    reader *r = arg;
    if (backend->stream_wait(gpu, NULL, r->given) != TREK_OK)
        return NULL;
    r->result = trek_tensor_clone(r->source);
    trek_tensor_release(r->source);
    backend->event_record(r->done, NULL);
    return NULL;
}

static void test_blocks_of_other_threads(void **state)
{
    for (int round = 0; round < 10; round++) {
        reader r = { .source = filled(round, 200000) };
        assert_int_equal(backend->event_new(gpu, &r.given), TREK_OK);
        assert_int_equal(backend->event_new(gpu, &r.done), TREK_OK);
        assert_int_equal(backend->event_record(r.given, NULL), TREK_OK);
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, read_and_release, &r), 0);
        pthread_join(thread, NULL);
        trek_tensor *next = filled(-1, 200000); /* must not get the block while the thread's stream reads it */
        assert_non_null(next);
        assert_int_equal(backend->stream_wait(gpu, NULL, r.done), TREK_OK);
        assert_non_null(r.result);
        assert_all(r.result, (float)round);
        assert_all(next, -1);
        trek_tensor_release(r.result);
        trek_tensor_release(next);
        backend->event_free(r.given);
        backend->event_free(r.done);
    }
}

static void *churn(void *arg)
{
    int seed = *(int *)arg;
    for (int k = 0; k < 40; k++) {
        trek_tensor *a = filled(seed, 1000 + 997 * k), *b = a ? trek_tensor_add(a, a) : NULL;
        float got = 0;
        trek_tensor *one = b ? trek_tensor_select(b, 0, 999 + k) : NULL;
        bool right = one && trek_tensor_to_host(one, TREK_F32, &got, sizeof got) == TREK_OK && got == 2 * (float)seed;
        trek_tensor_release(one);
        trek_tensor_release(a);
        trek_tensor_release(b);
        if (!right)
            return "wrong";
    }
    return NULL;
}

static void test_many_threads(void **state)
{
    enum { N = 4 };
    pthread_t threads[N];
    int seeds[N];
    for (int k = 0; k < N; k++) {
        seeds[k] = k + 1;
        assert_int_equal(pthread_create(&threads[k], NULL, churn, &seeds[k]), 0);
    }
    for (int k = 0; k < N; k++) {
        void *problem;
        pthread_join(threads[k], &problem);
        assert_null(problem);
    }
}

/* --- faults in the data ---------------------------------------------------------------------------- */

static void test_faults(void **state)
{
    const int64_t places[3] = { 1, 7, 2 };
    trek_tensor *table = trek_tensor_full(trek_dims(5, 3), 2, TREK_F32, gpu);
    trek_tensor *index = trek_tensor_from_data(places, trek_dims(3), TREK_I64, gpu);
    trek_tensor *rows = trek_tensor_index_select(table, index, 0);
    assert_non_null(rows); /* nobody has looked yet */
    assert_int_equal(trek_device_sync(gpu), TREK_ERR_ARGUMENT);
    assert_failed(TREK_ERR_ARGUMENT, "index_select: index 7");
    assert_int_equal(trek_device_sync(gpu), TREK_OK);
    trek_tensor *fine = trek_tensor_add(table, table);
    assert_all(fine, 4);
    trek_tensor_release(rows);
    rows = trek_tensor_index_select(table, index, 0);
    float value;
    trek_tensor *row = trek_tensor_select(rows, 0, 0), *one = trek_tensor_select(row, 0, 0);
    assert_int_equal(trek_tensor_to_host(one, TREK_F32, &value, sizeof value), TREK_ERR_ARGUMENT); /* reading tells, too */
    assert_failed(TREK_ERR_ARGUMENT, "outside [0, 5)");
    trek_tensor_release(one);
    trek_tensor_release(row);
    trek_tensor_release(fine);
    trek_tensor_release(rows);
    trek_tensor_release(index);
    trek_tensor_release(table);
}

/* --- events and capture ------------------------------------------------------------------------------- */

static void test_events(void **state)
{
    trek_event *start, *end;
    double ms = -1;
    assert_int_equal(backend->event_new(gpu, &start), TREK_OK);
    assert_int_equal(backend->event_new(gpu, &end), TREK_OK);
    FAILS(backend->event_elapsed_ms(start, end, &ms), TREK_ERR_STATE, "");
    assert_int_equal(backend->event_record(start, NULL), TREK_OK);
    trek_tensor_release(filled(1, 100000));
    assert_int_equal(backend->event_record(end, NULL), TREK_OK);
    assert_int_equal(backend->event_elapsed_ms(start, end, &ms), TREK_OK);
    assert_true(ms >= 0);
    backend->event_free(start);
    backend->event_free(end);
}

/* NULL is the calling thread's stream on the device that is named, wherever the thread's place is. */
static void test_events_of_devices(void **state)
{
    void (*hold)(int device), (*let_go)(int device);
    long (*kernels)(int device);
    void *addresses[3] = { test_fake("trek_fake_hold"), test_fake("trek_fake_let_go"), test_fake("trek_fake_kernels") };
    if (!addresses[0] || !addresses[1] || !addresses[2] || trek_device_count(TREK_CUDA) < gpu.index + 2)
        skip();
    memcpy(&hold, &addresses[0], sizeof hold);
    memcpy(&let_go, &addresses[1], sizeof let_go);
    memcpy(&kernels, &addresses[2], sizeof kernels);
    trek_device other = trek_cuda(trek_device_count(TREK_CUDA) - 1), place = trek_rank_here.device;
    trek_event *event;
    trek_device_stream *stream;
    assert_int_equal(backend->event_new(other, &event), TREK_OK);
    assert_int_equal(backend->stream_new(gpu, &stream), TREK_OK);
    FAILS(backend->event_record(event, stream), TREK_ERR_DEVICE, "");
    assert_int_equal(trek_device_sync(gpu), TREK_OK);
    trek_rank_here.device = other;
    hold(other.index);
    assert_int_equal(backend->event_record(event, NULL), TREK_OK);
    assert_int_equal(backend->stream_wait(gpu, NULL, event), TREK_OK);
    long before = kernels(gpu.index);
    trek_tensor *behind = filled(3, 10);
    usleep(20000);
    long meanwhile = kernels(gpu.index);
    let_go(other.index);
    trek_rank_here.device = place;
    assert_int_equal(meanwhile, before);
    assert_all(behind, 3);
    trek_tensor_release(behind);
    backend->stream_free(stream);
    backend->event_free(event);
}

static void test_capture(void **state)
{
    trek_tensor *x = filled(1, 1000), *other = filled(5, 1000);
    trek_capture *capture = NULL;
    assert_int_equal(backend->capture_begin(gpu), TREK_OK);
    assert_true(backend->capturing());
    trek_tensor *twice = trek_tensor_add(x, x), *sum = trek_tensor_add(twice, other);
    trek_tensor_release(twice);
    trek_tensor_release(other); /* replays read it all the same */
    trek_status copied = trek_tensor_copy_from(x, sum);
    assert_true(isnan(trek_tensor_item(sum)) || trek_error_status() != TREK_OK);
    trek_error_clear();
    assert_int_equal(copied, TREK_OK);
    assert_int_equal(backend->capture_end(gpu, &capture), TREK_OK);
    assert_non_null(capture);
    assert_false(backend->capturing());
    assert_all(x, 1); /* recorded, not done */
    float expected = 1;
    for (int k = 0; k < 3; k++) {
        assert_int_equal(backend->capture_replay(capture, trek_rank_here.rng_step), TREK_OK);
        trek_tensor_release(filled(-7, 1000)); /* eager work between replays takes other blocks */
        expected = 2 * expected + 5;
        assert_all(x, expected);
    }
    trek_tensor_release(sum);
    backend->capture_free(capture);
    trek_tensor_release(x);
}

/* Random numbers of other samples than those for which they were captured: keyed by samples, in whole blocks of the generator and
 * not, and by the grain. */
static void test_capture_moves_places(void **state)
{
    const int64_t sizes[][2] = { { 4, 8 }, { 3, 5 }, { 3, 1 }, { 7, 1 } }; /* the last one is not divided by samples */
    const int64_t rows[] = { 4, 3, 3, 3 };
    enum { CASES = 4, TIMES = 9 };
    trek_tensor *drawn[CASES] = { NULL }, *expected[TIMES][CASES];
    trek_capture *capture = NULL;
    trek_rank_context before = trek_rank_here;
    for (int pass = 0; pass < TIMES + 1; pass++) {
        int64_t number = pass < TIMES ? pass : 1; /* the last one is captured */
        trek_rank_here.rng_draw = 0;
        trek_rank_here.grain = number + 1;
        if (pass == TIMES)
            assert_int_equal(backend->capture_begin(gpu), TREK_OK);
        for (int k = 0; k < CASES; k++) {
            trek_rank_here.rows = rows[k];
            trek_rank_here.first_sample = number * rows[k];
            trek_tensor *t = (k % 2 ? trek_tensor_randn : trek_tensor_rand)(trek_dims(sizes[k][0], sizes[k][1]), TREK_F32, gpu);
            assert_non_null(t);
            *(pass < TIMES ? &expected[pass][k] : &drawn[k]) = t;
        }
    }
    assert_int_equal(backend->capture_end(gpu, &capture), TREK_OK);
    for (int turn = 0; turn < TIMES; turn++) {
        int number = turn * 4 % TIMES;
        trek_rank_here.grain = number + 1;
        assert_int_equal(backend->capture_replay(capture, trek_rank_here.rng_step), TREK_OK);
        for (int k = 0; k < CASES; k++)
            assert_true(test_same_bits(drawn[k], expected[number][k]));
    }
    trek_rank_here = before;
    backend->capture_free(capture);
    for (int k = 0; k < CASES; k++) {
        trek_tensor_release(drawn[k]);
        for (int number = 0; number < TIMES; number++)
            trek_tensor_release(expected[number][k]);
    }
}

static void test_capture_dropped(void **state)
{
    assert_int_equal(backend->capture_begin(gpu), TREK_OK);
    assert_int_equal(backend->capture_begin(gpu), TREK_ERR_STATE);
    assert_failed(TREK_ERR_STATE, "already recording");
    trek_tensor *t = filled(2, 10);
    FAILS(trek_device_sync(gpu), TREK_ERR_STATE, "");
    trek_tensor_release(t);
    assert_int_equal(backend->capture_end(gpu, NULL), TREK_OK);
    FAILS(backend->capture_end(gpu, NULL), TREK_ERR_STATE, "");
    t = filled(2, 10);
    assert_all(t, 2);
    trek_tensor_release(t);
}

/* The capture's own pool holds as much as the runs before it: what these held goes back to the driver first. */
static void test_capture_takes_over(void **state)
{
    enum { PARTS = 4 };
    const int64_t n = 8 << 20;
    trek_tensor *x = filled(1, n), *sums[PARTS];
    trek_capture *capture = NULL;
    int64_t reserved[2];
    for (int captured = 0; captured < 2; captured++) {
        if (captured)
            assert_int_equal(backend->capture_begin(gpu), TREK_OK);
        for (int k = 0; k < PARTS; k++)
            assert_non_null(sums[k] = trek_tensor_add(x, x));
        for (int k = 0; k < PARTS; k++)
            trek_tensor_release(sums[k]);
        if (captured)
            assert_int_equal(backend->capture_end(gpu, &capture), TREK_OK);
        reserved[captured] = trek_memory_usage(gpu).reserved;
    }
    assert_true(reserved[1] < reserved[0] + 4 * n); /* one part more at most, of four */
    backend->capture_free(capture);
    trek_tensor_release(x);
    trek_memory_release_cached(gpu);
}

/* cudaFree waits for the device, whose work is being captured: it is not called, not even for lack of memory. */
static void test_capture_frees_nothing(void **state)
{
    void (*fails)(const char *specification);
    long (*calls)(const char *function);
    void *addresses[2] = { test_fake("trek_fake_fail"), test_fake("trek_fake_calls") };
    if (!addresses[0] || !addresses[1])
        skip();
    memcpy(&fails, &addresses[0], sizeof fails);
    memcpy(&calls, &addresses[1], sizeof calls);
    trek_device_info info;
    assert_int_equal(backend->info(gpu.index, &info), TREK_OK);
    int64_t quarter = info.memory / 16; /* of f32 */
    trek_tensor *before = trek_tensor_empty(trek_dims(quarter), TREK_F32, gpu);
    fails("cudaFree:1000000");
    assert_int_equal(backend->capture_begin(gpu), TREK_OK);
    long freed = calls("cudaFree");
    trek_tensor *first = trek_tensor_empty(trek_dims(quarter), TREK_F32, gpu);
    assert_non_null(first);
    assert_null(trek_tensor_empty(trek_dims(3 * quarter), TREK_F32, gpu));
    assert_failed(TREK_ERR_MEMORY, "out of memory on cuda:");
    trek_tensor_release(before);
    trek_memory_release_cached(gpu);
    trek_tensor_release(first);
    assert_int_equal(calls("cudaFree"), freed);
    assert_int_equal(backend->capture_end(gpu, NULL), TREK_OK);
    trek_memory_release_cached(gpu);
    assert_true(calls("cudaFree") > freed);
    fails(NULL);
    trek_tensor *all = trek_tensor_empty(trek_dims(3 * quarter), TREK_F32, gpu); /* it is there again */
    assert_non_null(all);
    trek_tensor_release(all);
    trek_memory_release_cached(gpu);
}

static int set_up(void **state)
{
    gpu = test_device();
    backend = trek_backend_get(gpu.type);
    return backend ? 0 : -1;
}

/* --- batches that a loader's thread copies ---------------------------------------------------- */

enum { AHEAD = 3, BATCHES = 24, ROWS = 16, COLUMNS = 5000 };

/* Row i of "x" is i everywhere; "y" is i. */
static trek_dataset *rows_dataset(void)
{
    const char *names[] = { "x", "y" };
    int64_t n = BATCHES * ROWS - 3;
    float *x = malloc((size_t)(n * COLUMNS) * sizeof *x);
    int64_t *y = malloc((size_t)n * sizeof *y);
    assert_true(x && y);
    for (int64_t i = 0; i < n * COLUMNS; i++)
        x[i] = (float)(i / COLUMNS);
    for (int64_t i = 0; i < n; i++)
        y[i] = i;
    trek_tensor *tensors[] = { trek_tensor_from_data(x, trek_dims(n, COLUMNS), TREK_F32, trek_cpu(0)),
                               trek_tensor_from_data(y, trek_dims(n), TREK_I64, trek_cpu(0)) };
    trek_dataset *dataset = trek_dataset_tensors(names, tensors, 2);
    trek_tensor_release(tensors[0]);
    trek_tensor_release(tensors[1]);
    free(x);
    free(y);
    return dataset;
}

/* Computed with at once, on this thread's stream: what comes before the copies' end would be seen. */
static void check_batch(const trek_batch *batch)
{
    trek_var *x = trek_batch_get(batch, "x"), *y = trek_batch_get(batch, "y");
    assert_true(trek_device_equal(trek_var_device(x), gpu) && trek_device_equal(trek_var_device(y), gpu));
    trek_var *rows = trek_unsqueeze(trek_cast(y, TREK_F32), 1);
    trek_var *wrong = trek_sum(trek_abs(trek_sub(x, rows)), trek_dims_all(), false);
    double sum = 0;
    for (int64_t k = 0; k < trek_batch_size(batch); k++)
        sum += (double)trek_batch_indices(batch)[k];
    assert_true(trek_var_item(wrong) == 0);
    assert_true(trek_var_item(trek_sum(y, trek_dims_all(), false)) == sum);
}

static void test_batches_ahead(void **state)
{
    for (int depth = 0; depth <= AHEAD; depth += AHEAD) {
        trek_loader *loader = trek_loader_new(rows_dataset(),
                                              &(trek_loader_opts){ .batch_size = ROWS, .shuffle = true, .device = gpu,
                                                                                  .prefetch = depth ? depth : TREK_ZERO });
        assert_non_null(loader);
        int64_t bytes = ROWS * COLUMNS * 4, before = trek_memory_usage(gpu).allocated;
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            assert_int_equal(trek_loader_start(loader, epoch), TREK_OK);
            int64_t n = 0;
            for (trek_batch *batch; (batch = trek_loader_next(loader)); n++) {
                if (epoch == 0 && n == 2) { /* the next ones come while this one is at work */
                    double since = 0;
                    while (depth && trek_memory_usage(gpu).allocated < before + (1 + depth) * bytes && test_wait(&since))
                        continue;
                    assert_true((trek_memory_usage(gpu).allocated >= before + 2 * bytes) == (depth > 0));
                }
                check_batch(batch);
                if (epoch == 1 && n == 5)
                    break; /* what was copied ahead is dropped */
            }
            assert_int_equal(n, epoch == 1 ? 5 : BATCHES);
        }
        trek_loader_free(&loader);
        assert_int_equal(trek_error_status(), TREK_OK);
        assert_true(trek_memory_usage(gpu).allocated <= before);
    }
}

static void test_batches_of_readers(void **state)
{
    trek_loader *loader = trek_loader_new(rows_dataset(), &(trek_loader_opts){ .batch_size = ROWS, .device = trek_cpu(0) });
    trek_reader *reader = trek_reader_new(loader, gpu);
    assert_non_null(reader);
    for (int64_t first = 0; first < BATCHES; first += 6) {
        assert_int_equal(trek_reader_begin(reader, 0, first, first + 6), TREK_OK);
        for (int k = 0; k < 6; k++) {
            trek_scope scope = trek_scope_begin();
            trek_batch *batch = trek_reader_next(reader);
            assert_non_null(batch);
            check_batch(batch);
            trek_scope_end(scope);
        }
        trek_reader_rest(reader, first + 6, first + 9);
    }
    trek_reader_free(&reader);
    trek_loader_free(&loader);
    assert_int_equal(trek_error_status(), TREK_OK);
}

int main(void)
{
    if (test_on_cpu()) {
        printf("TREK_TEST_DEVICE names no GPU: nothing to test here\n[  SKIPPED ] 1 test(s).\n");
        return 77;
    }
    setenv("TREK_FAKE_GPUS", "4", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contexts), cmocka_unit_test(test_broken_device), cmocka_unit_test(test_libraries),
        cmocka_unit_test(test_copies), cmocka_unit_test(test_host_is_kept_out), cmocka_unit_test(test_between_devices),
        cmocka_unit_test(test_default_device), cmocka_unit_test(test_blocks_are_apart), cmocka_unit_test(test_memory_is_cached),
        cmocka_unit_test(test_neighbours_are_joined), cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_blocks_of_other_threads), cmocka_unit_test(test_many_threads), cmocka_unit_test(test_faults),
        cmocka_unit_test(test_events), cmocka_unit_test(test_capture), cmocka_unit_test(test_events_of_devices),
        cmocka_unit_test(test_capture_moves_places),
        cmocka_unit_test(test_capture_takes_over), cmocka_unit_test(test_capture_frees_nothing),
        cmocka_unit_test(test_capture_dropped), cmocka_unit_test(test_batches_ahead), cmocka_unit_test(test_batches_of_readers),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
