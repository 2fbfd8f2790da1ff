/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators of the ranks of several processes with several ranks each, which are threads here: every collective against plain
 * loops, first over the ranks of each process and then over the processes; and how such a group ends. */
#include "distributed/comm/nested.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/dtypes.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { PROCESSES = 4, MOST = 8, LARGEST = 700 };

/* --- threads: asserting is for the main thread ------------------------------------------------------------------------- */

typedef struct rank_job {
    trek_comm *comm;
    const int *counts;
    int processes, process, rank, world;
    void (*fn)(struct rank_job *job);
    trek_status status;
    char message[1024];      /* of the error, or what is wrong */
    bool good;
} rank_job;

static void *thread_main(void *arg)
{
    rank_job *job = arg;
    job->fn(job);
    if (trek_error_status() != TREK_OK)
        strncpy(job->message, trek_error(), sizeof job->message - 1);
    trek_error_clear();
    return NULL;
}

static int total(const int *counts, int processes)
{
    int n = 0;
    for (int p = 0; p < processes; p++)
        n += counts[p];
    return n;
}

static void run_ranks(const int *counts, int processes, void (*fn)(rank_job *job), rank_job *jobs)
{
    trek_comm *between[PROCESSES], *local[MOST], *nested[MOST];
    pthread_t threads[MOST];
    int world = total(counts, processes), first = 0;
    SUCCEEDS(trek_comm_local(NULL, processes, between));
    for (int p = 0; p < processes; first += counts[p++]) {
        SUCCEEDS(trek_comm_local(NULL, counts[p], local + first));
        SUCCEEDS(trek_comm_nested(local + first, between[p], counts, nested + first));
        for (int r = first; r < first + counts[p]; r++) {
            assert_int_equal(trek_comm_rank(nested[r]), r);
            assert_int_equal(trek_comm_world_size(nested[r]), world);
            jobs[r] = (rank_job){ .comm = nested[r], .counts = counts, .processes = processes, .process = p, .rank = r,
                                  .world = world, .fn = fn, .good = true };
        }
    }
    for (int r = 0; r < world; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, thread_main, &jobs[r]), 0);
    for (int r = 0; r < world; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < world; r++)
        trek_comm_free(&nested[r]);
    for (int r = 0; r < world; r++)
        trek_comm_free(&local[r]);
    for (int p = 0; p < processes; p++)
        trek_comm_free(&between[p]);
}

/* --- values ------------------------------------------------------------------------------------------------------------- */

static const trek_dtype dtypes[] = { TREK_F32, TREK_F64, TREK_I32, TREK_BF16 };

typedef union values {
    float f32[LARGEST * MOST];
    double f64[LARGEST * MOST];
    int32_t i32[LARGEST * MOST];
    uint16_t bf16[LARGEST * MOST];
    char bytes[LARGEST * MOST * 8];
} values;

/* What a rank gives; of floats it shows in which order they are added. */
static void fill(values *v, trek_dtype dtype, int rank, int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        float x = 100 * test_number((uint32_t)rank + 1, (uint32_t)k);
        if (dtype == TREK_F32)
            v->f32[k] = x;
        else if (dtype == TREK_F64)
            v->f64[k] = x / 3.0;
        else if (dtype == TREK_I32)
            v->i32[k] = (int32_t)(x * 1000);
        else
            v->bf16[k] = (uint16_t)(0x3f80 + rank * 37 + k % 90);
    }
}

/* The combination of what all give, process by process. */
static void combine(const rank_job *job, trek_dtype dtype, trek_reduction op, int64_t n, values *to)
{
    values *each = calloc(MOST + PROCESSES, sizeof *each), *parts = each + MOST;
    const void *ins[MOST];
    for (int p = 0, first = 0; p < job->processes; first += job->counts[p++]) {
        void *out = &parts[p];
        for (int r = 0; r < job->counts[p]; r++) {
            fill(&each[r], dtype, first + r, n);
            ins[r] = &each[r];
        }
        trek_comm_combine(dtype, op, ins, job->counts[p], &out, 1, 0, n);
    }
    for (int p = 0; p < job->processes; p++)
        ins[p] = &parts[p];
    void *out = to;
    trek_comm_combine(dtype, op, ins, job->processes, &out, 1, 0, n);
    free(each);
}

static void expect_bytes(rank_job *job, const void *got, const void *expected, size_t bytes, const char *what)
{
    if (job->good && memcmp(got, expected, bytes) != 0) {
        job->good = false;
        snprintf(job->message, sizeof job->message, "%s differs", what);
    }
}

static trek_status call(rank_job *job, trek_comm_call c)
{
    trek_status status = trek_comm_run(job->comm, c);
    job->good &= status == TREK_OK;
    return status;
}

static void reductions_of(rank_job *job, trek_dtype dtype, trek_reduction op, int64_t n)
{
    values *own = calloc(4, sizeof *own), *all = own + 1, *out = own + 2, *whole = own + 3;
    size_t size = trek_dtype_size(dtype);
    combine(job, dtype, op, n, all);
    fill(own, dtype, job->rank, n);
    call(job, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = op, .dtype = dtype, .count = n, .in = own, .out = own });
    expect_bytes(job, own, all, (size_t)n * size, "all_reduce");
    for (int root = 0; root < job->world; root++) {
        fill(own, dtype, job->rank, n);
        call(job, (trek_comm_call){ .kind = TREK_COMM_REDUCE, .op = op, .dtype = dtype, .root = root, .count = n, .in = own,
                                    .out = own });
        if (job->rank == root)
            expect_bytes(job, own, all, (size_t)n * size, "reduce");
    }
    combine(job, dtype, op, n * job->world, whole);
    for (int in_place = 0; in_place < 2; in_place++) {
        fill(own, dtype, job->rank, n * job->world);
        char *to = in_place ? own->bytes + (size_t)(job->rank * n) * size : out->bytes;
        call(job, (trek_comm_call){ .kind = TREK_COMM_REDUCE_SCATTER, .op = op, .dtype = dtype, .count = n, .in = own,
                                    .out = to });
        expect_bytes(job, to, whole->bytes + (size_t)(job->rank * n) * size, (size_t)n * size, "reduce_scatter");
    }
    free(own);
}

static void reductions(rank_job *job)
{
    static const int64_t sizes[] = { 0, 1, 7, LARGEST };
    for (int d = 0; d < 4; d++)
        for (int k = 0; k < 4; k++)
            for (int op = TREK_REDUCTION_SUM; op <= TREK_REDUCTION_MIN; op++)
                reductions_of(job, dtypes[d], (trek_reduction)op, sizes[k]);
}

static void moves(rank_job *job)
{
    values *own = calloc(3, sizeof *own), *all = own + 1, *other = own + 2;
    static const int64_t sizes[] = { 1, 7, LARGEST };
    for (int k = 0; k < 3; k++) {
        size_t bytes = (size_t)sizes[k] * sizeof(float);
        for (int root = 0; root < job->world; root++) {
            fill(own, TREK_F32, job->rank, sizes[k]);
            fill(other, TREK_F32, root, sizes[k]);
            call(job, (trek_comm_call){ .kind = TREK_COMM_BROADCAST, .dtype = TREK_F32, .root = root, .count = sizes[k],
                                        .in = own, .out = own });
            expect_bytes(job, own, other, bytes, "broadcast");
        }
        for (int in_place = 0; in_place < 2; in_place++) {
            char *from = in_place ? all->bytes + (size_t)job->rank * bytes : own->bytes;
            memset(all, 0, sizeof *all);
            fill(other, TREK_F32, job->rank, sizes[k]);
            memcpy(from, other, bytes);
            call(job, (trek_comm_call){ .kind = TREK_COMM_ALL_GATHER, .dtype = TREK_F32, .count = sizes[k], .in = from,
                                        .out = all });
            for (int r = 0; r < job->world; r++) {
                fill(other, TREK_F32, r, sizes[k]);
                expect_bytes(job, all->bytes + (size_t)r * bytes, other, bytes, "all_gather");
            }
        }
        call(job, (trek_comm_call){ .kind = TREK_COMM_BARRIER });
    }
    free(own);
}

static const int layouts[][PROCESSES] = { { 1, 1 }, { 2, 2 }, { 1, 3 }, { 3, 1, 2 }, { 2, 2, 2 }, { 4 }, { 1, 2, 1, 3 } };
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static int processes_of(const int *counts)
{
    int n = 0;
    while (n < PROCESSES && counts[n])
        n++;
    return n;
}

static void in_all_layouts(void (*fn)(rank_job *job))
{
    rank_job jobs[MOST];
    for (int k = 0; k < LAYOUTS; k++) {
        run_ranks(layouts[k], processes_of(layouts[k]), fn, jobs);
        for (int r = 0; r < jobs[0].world; r++)
            if (!jobs[r].good)
                fail_msg("layout %d, rank %d: %s", k, r, jobs[r].message);
    }
}

static void sums_are_nested(void **state) { in_all_layouts(reductions); }
static void data_move(void **state) { in_all_layouts(moves); }

static void places(void **state)
{
    static const int counts[] = { 3, 1, 2 }, expected[][2] = { { 0, 0 }, { 0, 1 }, { 0, 2 }, { 1, 0 }, { 2, 0 }, { 2, 1 } };
    trek_comm *between[3], *local[3], *nested[3];
    SUCCEEDS(trek_comm_local(NULL, 3, between));
    SUCCEEDS(trek_comm_local(NULL, 3, local));
    SUCCEEDS(trek_comm_nested(local, between[0], counts, nested));
    for (int r = 0; r < 6; r++) {
        int at;
        assert_int_equal(trek_comm_nested_place(nested[1], r, &at), expected[r][0]);
        assert_int_equal(at, expected[r][1]);
    }
    for (int r = 0; r < 3; r++) {
        trek_comm_free(&nested[r]);
        trek_comm_free(&local[r]);
        trek_comm_free(&between[r]);
    }
}

/* --- failures ----------------------------------------------------------------------------------------------------------- */

static void differ(rank_job *job)
{
    float x[4] = { 1 };
    job->status = trek_comm_run(job->comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM,
                                                             .dtype = TREK_F32, .count = job->rank == 2 ? 3 : 4, .in = x,
                                                             .out = x });
    strncpy(job->message, trek_error(), sizeof job->message - 1);
    trek_error_clear();
    job->good = trek_comm_ended(job->comm) && trek_comm_barrier(job->comm) != TREK_OK;
}

static void give_up(rank_job *job)
{
    float x = 1;
    if (job->rank == 3)
        trek_comm_abort(job->comm, "it has had enough");
    else
        job->status = trek_comm_run(job->comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM,
                                                                 .dtype = TREK_F32, .count = 1, .in = &x, .out = &x });
}

static void take_the_mean(rank_job *job)
{
    float x = 1;
    job->status = trek_comm_run(job->comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_MEAN,
                                                             .dtype = TREK_F32, .count = 1, .in = &x, .out = &x });
}

/* Nobody waits for a rank whose call differs, in its process or in another one, or that gives up. */
static void all_learn_of_failures(void **state)
{
    static const int counts[] = { 2, 2, 1 };
    rank_job jobs[MOST];
    run_ranks(counts, 3, differ, jobs);
    for (int r = 0; r < 5; r++) {
        assert_true(jobs[r].status != TREK_OK && jobs[r].good);
        if (!strstr(jobs[r].message, "calls differ"))
            fail_msg("rank %d: %s", r, jobs[r].message);
    }
    run_ranks(counts, 3, give_up, jobs);
    for (int r = 0; r < 5; r++)
        if (r != 3 && (jobs[r].status != TREK_ERR_CANCELLED || !strstr(jobs[r].message, "it has had enough")))
            fail_msg("rank %d: %s: %s", r, trek_status_name(jobs[r].status), jobs[r].message);
    run_ranks(counts, 3, take_the_mean, jobs);
    for (int r = 0; r < 5; r++)
        assert_true(jobs[r].status == TREK_ERR_UNSUPPORTED && strstr(jobs[r].message, "must be a sum"));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(sums_are_nested), cmocka_unit_test(data_move), cmocka_unit_test(places),
                                        cmocka_unit_test(all_learn_of_failures) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
