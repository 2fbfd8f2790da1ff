/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators over threads: every collective against plain loops, and every
 * way in which a group can fail. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "distributed/comm/comm_internal.h"
#include "tensor/copies.h"
#include "tensor/creation.h"
#include "tensor/dtypes.h"
#include "tensor/memory.h"
#include "tests/distributed/comm/groups.h"
#include "tests/distributed/comm/reductions.h"
#include "tests/support/processes.h"
#include "tests/support/refused.h"

enum { MAX_WORLD = 8 };

/* --- threads: asserting is for the main thread, the others keep what they saw --- */

typedef struct rank_job {
    trek_comm *comm;
    int rank, world;
    void (*fn)(struct rank_job *job);
    const void *arg;
    trek_status status, later; /* of the call under test, and of the one after it */
    char message[1024];
    bool good; /* what the thread checked itself */
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

static void run_ranks(int world, double deadline, void (*fn)(rank_job *job), const void *arg, rank_job *jobs)
{
    trek_comm *comms[MAX_WORLD];
    pthread_t threads[MAX_WORLD];
    assert_int_equal(trek_comm_local(NULL, world, comms), TREK_OK);
    for (int r = 0; r < world; r++) {
        assert_int_equal(trek_comm_rank(comms[r]), r);
        assert_int_equal(trek_comm_world_size(comms[r]), world);
        assert_int_equal(trek_comm_set_deadline(comms[r], deadline), TREK_OK);
        jobs[r] = (rank_job){ .comm = comms[r], .rank = r, .world = world, .fn = fn, .arg = arg };
        assert_int_equal(pthread_create(&threads[r], NULL, thread_main, &jobs[r]), 0);
    }
    for (int r = 0; r < world; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < world; r++)
        trek_comm_free(&comms[r]);
}

/* --- values --- */

typedef struct reduce_case {
    trek_dtype dtype;
    trek_reduction op;
    int64_t count;
} reduce_case;

/* The result is that of plain loops over elements [first, first + count) of all ranks', bit by bit. */
static bool is_combined(const rank_job *job, const trek_tensor *got, int64_t first)
{
    const reduce_case *c = job->arg;
    trek_tensor *expected = combined_values(c->dtype, c->op, job->world, first, c->count);
    bool same = same_bytes(got, expected);
    trek_tensor_release(expected);
    return same;
}

static void all_reduce_rank(rank_job *job)
{
    const reduce_case *c = job->arg;
    trek_tensor *tensor = rank_values(c->dtype, job->rank, 0, c->count);
    job->status = trek_comm_all_reduce(job->comm, tensor, c->op);
    job->good = is_combined(job, tensor, 0);
    trek_tensor_release(tensor);
}

static void reduce_rank(rank_job *job)
{
    const reduce_case *c = job->arg;
    int root = (int)(c->count + (int64_t)c->op) % job->world;
    trek_tensor *tensor = rank_values(c->dtype, job->rank, 0, c->count), *before = trek_tensor_clone(tensor);
    job->status = trek_comm_run(job->comm, (trek_comm_call){ .kind = TREK_COMM_REDUCE, .op = c->op, .root = root,
                                                             .dtype = c->dtype,
                                                             .count = c->count, .in = trek_tensor_data(tensor),
                                                             .out = trek_tensor_data(tensor) });
    job->good = job->rank == root ? is_combined(job, tensor, 0) : same_bytes(tensor, before);
    trek_tensor_release(tensor);
    trek_tensor_release(before);
}

static void reduce_scatter_rank(rank_job *job)
{
    const reduce_case *c = job->arg;
    trek_tensor *all = rank_values(c->dtype, job->rank, 0, c->count * job->world);
    trek_tensor *part = trek_tensor_zeros(trek_shape_make(&c->count, 1), c->dtype, trek_cpu(0));
    job->status = trek_comm_reduce_scatter(job->comm, all, part, c->op);
    job->good = is_combined(job, part, c->count * job->rank);
    trek_tensor_release(all);
    trek_tensor_release(part);
}

static void check_all_good(const rank_job *jobs, const reduce_case *c)
{
    for (int r = 0; r < jobs[0].world; r++) {
        if (jobs[r].status != TREK_OK || !jobs[r].good)
            print_error("rank %d of %d, %s, op %d, %d elements: %s\n", r, jobs[0].world, trek_dtype_name(c->dtype), (int)c->op,
                        (int)c->count, jobs[r].message);
        assert_int_equal(jobs[r].status, TREK_OK);
        assert_true(jobs[r].good);
    }
}

static void test_reductions(void **state)
{
    static const int worlds[] = { 1, 2, 3, 5 };
    static const int64_t counts[] = { 0, 1, 7, 16, 4099 };
    rank_job jobs[MAX_WORLD];
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        for (int op = TREK_REDUCTION_MEAN; op <= TREK_REDUCTION_PROD; op++) {
            for (int w = 0; op_fits((trek_dtype)dtype, (trek_reduction)op) && w < 4; w++)
                for (int k = 0; k < 5; k++) {
                    reduce_case c = { (trek_dtype)dtype, (trek_reduction)op, counts[k] };
                    run_ranks(worlds[w], 30, all_reduce_rank, &c, jobs);
                    check_all_good(jobs, &c);
                    run_ranks(worlds[w], 30, reduce_rank, &c, jobs);
                    check_all_good(jobs, &c);
                    run_ranks(worlds[w], 30, reduce_scatter_rank, &c, jobs);
                    check_all_good(jobs, &c);
                }
        }
}

static void broadcast_and_gather_rank(rank_job *job)
{
    const reduce_case *c = job->arg;
    job->good = true;
    for (int root = 0; root < job->world; root++) {
        trek_tensor *tensor = rank_values(c->dtype, job->rank, 0, c->count), *expected = rank_values(c->dtype, root, 0, c->count);
        job->status = trek_comm_broadcast(job->comm, tensor, root);
        job->good &= job->status == TREK_OK && same_bytes(tensor, expected);
        trek_tensor_release(tensor);
        trek_tensor_release(expected);
    }
    int64_t total = c->count * job->world;
    trek_tensor *part = rank_values(c->dtype, job->rank, 0, c->count);
    trek_tensor *all = trek_tensor_zeros(trek_shape_make(&total, 1), c->dtype, trek_cpu(0));
    job->status = trek_comm_all_gather(job->comm, part, all);
    for (int r = 0; r < job->world; r++) {
        size_t bytes = (size_t)c->count * trek_dtype_size(c->dtype);
        trek_tensor *expected = rank_values(c->dtype, r, 0, c->count);
        job->good &= memcmp((char *)trek_tensor_data(all) + (size_t)r * bytes, trek_tensor_data(expected), bytes) == 0;
        trek_tensor_release(expected);
    }
    trek_tensor_release(part);
    trek_tensor_release(all);
}

static void test_broadcast_and_gather(void **state)
{
    static const int64_t counts[] = { 1, 9, 3000 };
    rank_job jobs[MAX_WORLD];
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        for (int world = 1; world <= MAX_WORLD; world++)
            for (int k = 0; k < 3; k++) {
                reduce_case c = { (trek_dtype)dtype, TREK_REDUCTION_SUM, counts[k] };
                run_ranks(world, 30, broadcast_and_gather_rank, &c, jobs);
                check_all_good(jobs, &c);
            }
}

static void nan_rank(rank_job *job)
{
    float values[2] = { job->rank == 1 ? NAN : 3.0f, (float)job->rank };
    job->good = true;
    for (int op = TREK_REDUCTION_MAX; op <= TREK_REDUCTION_MIN; op++) {
        trek_tensor *tensor = trek_tensor_from_data(values, trek_dims(2), TREK_F32, trek_cpu(0));
        job->status = trek_comm_all_reduce(job->comm, tensor, (trek_reduction)op);
        const float *out = trek_tensor_data(tensor);
        job->good &= isnan(out[0]) && out[1] == (op == TREK_REDUCTION_MAX ? 2.0f : 0.0f);
        trek_tensor_release(tensor);
    }
}

static void test_nan_wins(void **state)
{
    rank_job jobs[MAX_WORLD];
    run_ranks(3, 30, nan_rank, NULL, jobs);
    for (int r = 0; r < 3; r++)
        assert_true(jobs[r].good);
}

/* Many calls of mixed size in a row, ranks out of step: slots used in turn must not mix. */
static void stress_rank(rank_job *job)
{
    job->good = true;
    int64_t big = 1000;
    for (int i = 0; i < 400 && job->good; i++) {
        trek_tensor *one = trek_tensor_full(trek_dims(1), job->rank + i, TREK_F64, trek_cpu(0));
        trek_tensor *many = trek_tensor_full(trek_shape_make(&big, 1), job->rank * i, TREK_F32, trek_cpu(0));
        if ((i + job->rank) % 7 == 0)
            nanosleep(&(struct timespec){ .tv_nsec = 20000 }, NULL);
        job->status = trek_comm_all_reduce(job->comm, one, TREK_REDUCTION_SUM);
        job->good = job->status == TREK_OK && trek_tensor_item(one) == job->world * (job->world - 1) / 2 + job->world * i;
        if (i % 3 == 0) {
            job->status = trek_comm_all_reduce(job->comm, many, TREK_REDUCTION_MAX);
            job->good &= ((float *)trek_tensor_data(many))[999] == (float)((job->world - 1) * i);
        }
        if (i % 5 == 0)
            job->good &= trek_comm_barrier(job->comm) == TREK_OK;
        trek_tensor_release(one);
        trek_tensor_release(many);
    }
}

static void test_stress(void **state)
{
    rank_job jobs[MAX_WORLD];
    for (int world = 2; world <= MAX_WORLD; world++) {
        run_ranks(world, 60, stress_rank, NULL, jobs);
        for (int r = 0; r < world; r++)
            assert_true(jobs[r].good);
    }
}

/* --- failures ----------------------------------------------------------------- */

/* arg: what rank 1 does otherwise: 0 count, 1 dtype, 2 op, 3 kind */
static void mismatch_rank(rank_job *job)
{
    int kind = *(const int *)job->arg;
    bool odd = job->rank == 1;
    trek_tensor *tensor = trek_tensor_full(odd && kind == 0 ? trek_dims(300) : trek_dims(200), job->rank,
                                           odd && kind == 1 ? TREK_F64 : TREK_F32, trek_cpu(0));
    if (odd && kind == 3)
        job->status = trek_comm_broadcast(job->comm, tensor, 0);
    else
        job->status = trek_comm_all_reduce(job->comm, tensor, odd && kind == 2 ? TREK_REDUCTION_MAX : TREK_REDUCTION_SUM);
    trek_tensor *host = trek_tensor_cast(tensor, TREK_F64);
    job->good = true;
    for (int64_t i = 0; i < trek_tensor_numel(host); i++)
        job->good &= ((double *)trek_tensor_data(host))[i] == job->rank;
    trek_tensor_release(host);
    strncpy(job->message, trek_error(), sizeof job->message - 1);
    trek_error_clear();
    job->later = trek_comm_barrier(job->comm);
    trek_tensor_release(tensor);
}

static void test_mismatch(void **state)
{
    static const char *const theirs[] = { "300 elements", "f64", "max", "broadcast" };
    rank_job jobs[MAX_WORLD];
    for (int kind = 0; kind < 4; kind++) {
        run_ranks(3, 30, mismatch_rank, &kind, jobs);
        for (int r = 0; r < 3; r++) {
            assert_int_equal(jobs[r].status, TREK_ERR_COMM);
            assert_int_equal(jobs[r].later, TREK_ERR_COMM);
            assert_true(jobs[r].good);
            assert_non_null(strstr(jobs[r].message, "rank 0"));
            assert_non_null(strstr(jobs[r].message, "rank 1"));
            assert_non_null(strstr(jobs[r].message, "all_reduce(sum, f32, 200 elements)"));
            assert_non_null(strstr(jobs[r].message, theirs[kind]));
        }
    }
}

/* Rank 1's own arguments are wrong: it gets its own error, the others do not wait for the deadline. */
static void wrong_argument_rank(rank_job *job)
{
    trek_tensor *tensor = trek_tensor_zeros(trek_dims(4), job->rank == 1 ? TREK_I64 : TREK_F32, trek_cpu(0));
    job->status = trek_comm_all_reduce(job->comm, tensor, TREK_REDUCTION_MEAN);
    trek_tensor_release(tensor);
}

static void test_wrong_argument(void **state)
{
    rank_job jobs[MAX_WORLD];
    run_ranks(3, 60, wrong_argument_rank, NULL, jobs);
    assert_int_equal(jobs[0].status, TREK_ERR_COMM);
    assert_int_equal(jobs[1].status, TREK_ERR_DTYPE);
    assert_int_equal(jobs[2].status, TREK_ERR_COMM);
    assert_non_null(strstr(jobs[0].message, "rank 1"));
    assert_non_null(strstr(jobs[1].message, "mean"));
}

static void late_rank(rank_job *job)
{
    trek_tensor *tensor = trek_tensor_full(trek_dims(100), job->rank, TREK_F32, trek_cpu(0));
    job->status = trek_comm_barrier(job->comm);
    while (job->rank == 2 && !trek_comm_ended(job->comm))
        nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
    job->status = trek_comm_all_reduce(job->comm, tensor, TREK_REDUCTION_SUM);
    job->good = ((float *)trek_tensor_data(tensor))[50] == (float)job->rank;
    trek_tensor_release(tensor);
}

static void test_timeout(void **state)
{
    rank_job jobs[MAX_WORLD];
    run_ranks(4, 1, late_rank, NULL, jobs);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(jobs[r].status, TREK_ERR_TIMEOUT);
        assert_non_null(strstr(jobs[r].message, "rank 2"));
        assert_non_null(strstr(jobs[r].message, "all_reduce"));
        assert_true(jobs[r].good);
    }
}

static void waiting_rank(rank_job *job)
{
    job->status = trek_comm_barrier(job->comm);
    if (job->rank == 0) { /* aborts instead of coming to the second one */
        nanosleep(&(struct timespec){ .tv_nsec = 30000000 }, NULL);
        trek_comm_abort(job->comm, "the user asked for it");
    }
    job->status = trek_comm_barrier(job->comm);
}

static void test_abort(void **state)
{
    rank_job jobs[MAX_WORLD];
    run_ranks(3, TREK_OFF, waiting_rank, NULL, jobs);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(jobs[r].status, TREK_ERR_CANCELLED);
        assert_non_null(strstr(jobs[r].message, "the user asked for it"));
    }
}

/* Aborts from a thread that is none of the ranks, at any moment of a run of big and small calls. */
typedef struct abort_case {
    trek_comm **comms;
    int after_us;
} abort_case;

static void busy_rank(rank_job *job)
{
    trek_tensor *tensor = trek_tensor_ones(trek_dims(2000), TREK_F32, trek_cpu(0));
    while ((job->status = trek_comm_all_reduce(job->comm, tensor, TREK_REDUCTION_MAX)) == TREK_OK)
        trek_comm_barrier(job->comm);
    job->good = ((float *)trek_tensor_data(tensor))[1999] == 1.0f;
    trek_tensor_release(tensor);
}

static void test_abort_at_any_time(void **state)
{
    for (int i = 0; i < 30; i++) {
        trek_comm *comms[3];
        rank_job jobs[3];
        pthread_t threads[3];
        assert_int_equal(trek_comm_local(NULL, 3, comms), TREK_OK);
        for (int r = 0; r < 3; r++) {
            jobs[r] = (rank_job){ .comm = comms[r], .rank = r, .world = 3, .fn = busy_rank };
            assert_int_equal(pthread_create(&threads[r], NULL, thread_main, &jobs[r]), 0);
        }
        nanosleep(&(struct timespec){ .tv_nsec = 37000 * (i + 1) }, NULL);
        trek_comm_abort(comms[1], NULL);
        for (int r = 0; r < 3; r++) {
            pthread_join(threads[r], NULL);
            trek_comm_free(&comms[r]);
            assert_null(comms[r]);
        }
        for (int r = 0; r < 3; r++) {
            assert_int_equal(jobs[r].status, TREK_ERR_CANCELLED);
            assert_true(jobs[r].good);
        }
    }
}

static void leaving_rank(rank_job *job)
{
    job->status = trek_comm_barrier(job->comm);
    if (job->rank == 1)
        trek_comm_free(&job->comm);
    else
        job->status = trek_comm_barrier(job->comm);
}

static void test_rank_leaves(void **state)
{
    trek_comm *comms[2];
    rank_job jobs[2];
    pthread_t threads[2];
    assert_int_equal(trek_comm_local(NULL, 2, comms), TREK_OK);
    for (int r = 0; r < 2; r++) {
        jobs[r] = (rank_job){ .comm = comms[r], .rank = r, .world = 2, .fn = leaving_rank };
        assert_int_equal(pthread_create(&threads[r], NULL, thread_main, &jobs[r]), 0);
    }
    for (int r = 0; r < 2; r++)
        pthread_join(threads[r], NULL);
    assert_int_equal(jobs[0].status, TREK_ERR_PEER);
    assert_non_null(strstr(jobs[0].message, "rank 1"));
    trek_comm_free(&comms[0]);
}

/* --- groups of ranks ----------------------------------------------------------------- */

static void groups_rank(rank_job *job) { job->good = groups_are_right(job->comm, *(const uint32_t *)job->arg, 5); }

static void test_groups(void **state)
{
    for (int world = 1; world <= MAX_WORLD; world++) {
        rank_job jobs[MAX_WORLD];
        uint32_t seed = 1000u * (uint32_t)world;
        run_ranks(world, 60, groups_rank, &seed, jobs);
        for (int r = 0; r < world; r++)
            assert_true(jobs[r].good);
    }
}

/* Ranks 1 and 3, in that order by their keys, and 0 and 2: what happens to the first group does not touch the other one, nor the
 * communicator that was split. The message names the rank of the group, and which rank that is to everybody. */
static void ending_group_rank(rank_job *job)
{
    bool ends = job->rank % 2, late = *(const bool *)job->arg;
    trek_comm *group = trek_comm_split(job->comm, ends, job->rank);
    job->good = group && trek_comm_set_deadline(group, late ? 1 : 60) == TREK_OK;
    while (ends && late && job->rank == 3 && !trek_comm_ended(group))
        nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
    if (ends && !late && job->rank == 3)
        trek_comm_abort(group, "no more data");
    job->status = trek_comm_barrier(group);
    strncpy(job->message, trek_error(), sizeof job->message - 1);
    trek_error_clear();
    job->later = trek_comm_barrier(job->comm);
    trek_comm_free(&group);
}

static void test_groups_end_alone(void **state)
{
    for (int late = 0; late < 2; late++) {
        rank_job jobs[MAX_WORLD];
        bool arg = late;
        run_ranks(4, 60, ending_group_rank, &arg, jobs);
        for (int r = 0; r < 4; r++) {
            assert_true(jobs[r].good);
            assert_int_equal(jobs[r].later, TREK_OK);
            assert_int_equal(jobs[r].status, r % 2 == 0 ? TREK_OK : late ? TREK_ERR_TIMEOUT : TREK_ERR_CANCELLED);
            if (r % 2 && !strstr(jobs[r].message, "are ranks 1, 3 of the communicator that was split"))
                fail_msg("%s", jobs[r].message);
            if (r % 2)
                assert_non_null(
                    strstr(jobs[r].message, late ? "rank 1 did not come within 1 s" : "through rank 1: no more data"));
        }
    }
}

/* Who comes to a split with another call is told so, and a rank alone may split, too. */
static void split_otherwise_rank(rank_job *job)
{
    trek_comm *group = job->rank == 0 ? trek_comm_split(job->comm, 0, 0) : NULL;
    if (job->rank > 0)
        trek_comm_barrier(job->comm);
    job->good = !group && trek_error_status() == TREK_ERR_COMM;
}

static void test_splits_that_fail(void **state)
{
    rank_job jobs[MAX_WORLD];
    run_ranks(3, 60, split_otherwise_rank, NULL, jobs);
    for (int r = 0; r < 3; r++)
        assert_true(jobs[r].good);
    REFUSED(trek_comm_split(NULL, 0, 0), TREK_ERR_ARGUMENT, "communicator");
    trek_comm *alone[1], *group;
    assert_int_equal(trek_comm_local(NULL, 1, alone), TREK_OK);
    assert_null(trek_comm_split(alone[0], TREK_NO_COLOR, 0));
    expect_no_error();
    group = trek_comm_split(alone[0], 5, 7);
    trek_comm_free(&alone[0]); /* the group needs it no more */
    assert_int_equal(trek_comm_world_size(group), 1);
    assert_int_equal(trek_comm_barrier(group), TREK_OK);
    trek_comm_free(&group);
}

static void test_arguments(void **state)
{
    trek_comm *comms[1] = { NULL };
    FAILS(trek_comm_local(NULL, 0, comms), TREK_ERR_ARGUMENT, "");
    FAILS(trek_comm_local(NULL, 1025, comms), TREK_ERR_ARGUMENT, "");
    FAILS(trek_comm_local(&(trek_device){ TREK_CUDA, 4000 }, 1, comms), TREK_ERR_DEVICE, "");
    assert_int_equal(trek_comm_local(NULL, 1, comms), TREK_OK);
    FAILS(trek_comm_set_deadline(comms[0], -2), TREK_ERR_ARGUMENT, "");
    FAILS(trek_comm_all_reduce(NULL, NULL, TREK_REDUCTION_SUM), TREK_ERR_ARGUMENT, "");
    trek_tensor *tensor = trek_tensor_zeros(trek_dims(2), TREK_F32, trek_cpu(0));
    FAILS(trek_comm_all_reduce(comms[0], tensor, TREK_REDUCTION_NONE), TREK_ERR_ARGUMENT,
          "must be TREK_REDUCTION_MEAN, _SUM, _MAX, _MIN or _PROD");
    FAILS(trek_comm_all_reduce(comms[0], tensor, TREK_REDUCTION_NORM), TREK_ERR_ARGUMENT, "all_reduce: op: rank 0 gave 5");
    FAILS(trek_comm_broadcast(comms[0], tensor, 1), TREK_ERR_ARGUMENT, "");
    trek_tensor_release(tensor);
    trek_comm_free(&comms[0]);
    trek_comm_free(&comms[0]);
    trek_comm_free(NULL);
}

/* --- no memory is asked for in a collective -------------------------------------- */

static atomic_long requests;

static void *counting_allocate(size_t bytes, size_t alignment, void *arg)
{
    atomic_fetch_add(&requests, 1);
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void counting_release(void *memory, size_t bytes, void *arg)
{
    free(memory);
}

static void quiet_rank(rank_job *job)
{
    int64_t count = 5000;
    trek_tensor *tensor = trek_tensor_zeros(trek_shape_make(&count, 1), TREK_BF16, trek_cpu(0));
    trek_comm_barrier(job->comm);
    long before = atomic_load(&requests);
    trek_comm_barrier(job->comm);
    for (int i = 0; i < 20; i++)
        job->status = trek_comm_all_reduce(job->comm, tensor, TREK_REDUCTION_MEAN);
    trek_comm_barrier(job->comm);
    job->good = atomic_load(&requests) == before;
    trek_comm_barrier(job->comm);
    trek_tensor_release(tensor);
}

static void test_no_allocation(void **state)
{
    rank_job jobs[MAX_WORLD];
    run_ranks(3, 30, quiet_rank, NULL, jobs);
    assert_true(atomic_load(&requests) > 0); /* the counter is in use */
    for (int r = 0; r < 3; r++)
        assert_true(jobs[r].good);
}

int main(void)
{
    trek_allocator counting = { counting_allocate, counting_release, NULL };
    if (trek_allocator_set(&counting) != TREK_OK)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reductions), cmocka_unit_test(test_broadcast_and_gather), cmocka_unit_test(test_nan_wins),
        cmocka_unit_test(test_stress), cmocka_unit_test(test_mismatch), cmocka_unit_test(test_wrong_argument),
        cmocka_unit_test(test_timeout), cmocka_unit_test(test_abort), cmocka_unit_test(test_abort_at_any_time),
        cmocka_unit_test(test_rank_leaves), cmocka_unit_test(test_arguments), cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_groups), cmocka_unit_test(test_groups_end_alone), cmocka_unit_test(test_splits_that_fail),
    };
    return cmocka_run_group_tests_name("comm", tests, NULL, NULL);
}
