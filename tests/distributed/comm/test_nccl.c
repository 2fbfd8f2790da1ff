/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives on device memory by the device's own library: on the GPUs that
 * TREK_TEST_DEVICE's machine has (1 to 3 of them), against plain loops; who cannot
 * use it goes through the host; aborts. Skipped by name where there is no library. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "distributed/comm/comm_internal.h"
#include "distributed/comm/nccl.h"
#include "distributed/comm/shared/shared.h"
#include "distributed/control/control.h"
#include "distributed/ranks.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "tensor/rank_context.h"
#include "tests/distributed/comm/gpus.h"
#include "tests/support/processes.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { MAX_WORLD = 3, COUNT = 1000 };

typedef struct rank_job {
    trek_comm *comm;
    int rank, world;
    void (*fn)(struct rank_job *job);
    trek_dtype dtype;
    trek_comm_kind kind;
    trek_reduction op;
    trek_status status;
    char message[1024];
    bool good, native; /* the result; the library did it */
} rank_job;

static void *thread_main(void *arg)
{
    rank_job *job = arg;
    trek_rank_here = (trek_rank_context){ .rank = job->rank, .world = job->world, .device = trek_cuda(job->rank), .rows = -1,
                                          .global_rows = -1 };
    job->fn(job);
    if (trek_error_status() != TREK_OK)
        strncpy(job->message, trek_error(), sizeof job->message - 1);
    trek_error_clear();
    return NULL;
}

static void make_comms(int world, trek_comm **comms)
{
    trek_device devices[MAX_WORLD];
    for (int r = 0; r < world; r++)
        devices[r] = trek_cuda(r);
    if (trek_comm_local(devices, world, comms) != TREK_OK)
        fail_msg("%d ranks: %s", world, trek_error());
}

static void run_ranks(int world, trek_comm **comms, rank_job proto, rank_job *jobs)
{
    pthread_t threads[MAX_WORLD];
    for (int r = 0; r < world; r++) {
        jobs[r] = proto;
        jobs[r].comm = comms[r];
        jobs[r].rank = r;
        jobs[r].world = world;
        assert_int_equal(pthread_create(&threads[r], NULL, thread_main, &jobs[r]), 0);
    }
    for (int r = 0; r < world; r++)
        pthread_join(threads[r], NULL);
}

static void run_good(trek_comm **comms, void (*fn)(rank_job *job), rank_job *jobs)
{
    run_ranks(2, comms, (rank_job){ .fn = fn }, jobs);
    for (int r = 0; r < 2; r++)
        if (jobs[r].status != TREK_OK || !jobs[r].good || jobs[r].message[0])
            fail_msg("rank %d: %s", r, jobs[r].message[0] ? jobs[r].message : "wrong values");
}

/* Runs this on two ranks, which must both come to a good end. */
static void check_good(void (*fn)(rank_job *job))
{
    if (skipped(2))
        skip();
    trek_comm *comms[2];
    rank_job jobs[MAX_WORLD];
    make_comms(2, comms);
    run_good(comms, fn, jobs);
    for (int r = 0; r < 2; r++)
        trek_comm_free(&comms[r]);
}

/* --- every kind and dtype ------------------------------------------------------------- */

/* Element i of rank r: small integers, so that every dtype holds all results. */
static double element(const rank_job *job, int rank, int i)
{
    if (job->dtype == TREK_BOOL)
        return (i + rank) % 3 == 0;
    return job->op == TREK_REDUCTION_PROD ? 1 + (i + rank) % 2 : (i * 5 + rank * 3) % 11;
}

static double combined(const rank_job *job, int i)
{
    double value = element(job, 0, i);
    for (int r = 1; r < job->world; r++) {
        double other = element(job, r, i);
        value = job->op == TREK_REDUCTION_SUM || job->op == TREK_REDUCTION_MEAN ? value + other
            : job->op == TREK_REDUCTION_PROD ? value * other
            : job->op == TREK_REDUCTION_MAX ? fmax(value, other) : fmin(value, other);
    }
    return job->op == TREK_REDUCTION_MEAN ? value / job->world : value;
}

static trek_tensor *filled(const rank_job *job, int rank, int count)
{
    double *values = malloc((size_t)count * sizeof *values);
    for (int i = 0; values && i < count; i++)
        values[i] = element(job, rank, i);
    trek_tensor *wide = trek_tensor_from_data(values, trek_dims(count), TREK_F64, trek_cpu(0)),
        *cast = trek_tensor_cast(wide, job->dtype);
    trek_tensor *there = trek_tensor_to(cast, trek_cuda(job->rank));
    trek_tensor_release(wide);
    trek_tensor_release(cast);
    free(values);
    return there;
}

static bool holds(const trek_tensor *tensor, const rank_job *job, double (*wanted)(const rank_job *job, int i))
{
    double *values = test_read(tensor);
    bool good = values != NULL;
    for (int i = 0; good && i < trek_tensor_numel(tensor); i++)
        good = fabs(values[i] - wanted(job, i)) <= fabs(wanted(job, i)) * (trek_dtype_size(job->dtype) == 2 ? 0x1p-8 : 1e-6);
    free(values);
    return good;
}

static double wanted_part(const rank_job *job, int i) { return combined(job, job->rank * COUNT + i); }
static double wanted_root(const rank_job *job, int i) { return element(job, job->world - 1, i); }
static double wanted_all(const rank_job *job, int i) { return element(job, i / COUNT, i % COUNT); }

static double wanted_own(const rank_job *job, int i) { return element(job, job->rank, i); }

static void one_call(rank_job *job)
{
    trek_tensor *part = filled(job, job->rank, COUNT), *all = NULL;
    trek_comm_call call = { .kind = job->kind, .op = job->op, .dtype = job->dtype, .count = COUNT, .on_device = true };
    job->native = job->comm->devices && job->comm->devices->takes(job->comm, &call);
    switch (job->kind) {
    case TREK_COMM_ALL_REDUCE:
        job->status = trek_comm_all_reduce(job->comm, part, job->op);
        job->good = holds(part, job, combined);
        break;
    case TREK_COMM_BROADCAST:
        job->status = trek_comm_broadcast(job->comm, part, job->world - 1);
        job->good = holds(part, job, wanted_root);
        break;
    case TREK_COMM_ALL_GATHER:
        all = filled(job, 0, COUNT * job->world);
        job->status = trek_comm_all_gather(job->comm, part, all);
        job->good = holds(all, job, wanted_all);
        break;
    case TREK_COMM_REDUCE:
        call.root = job->world - 1;
        call.in = call.out = part->data;
        job->status = trek_comm_run(job->comm, call);
        job->good = holds(part, job, job->rank == call.root ? combined : wanted_own);
        break;
    default:
        all = filled(job, job->rank, COUNT * job->world);
        job->status = trek_comm_reduce_scatter(job->comm, all, part, job->op);
        job->good = holds(part, job, wanted_part);
    }
    trek_tensor_release(part);
    trek_tensor_release(all);
}

static bool native(trek_comm_kind kind, trek_dtype dtype, trek_reduction op)
{
    if (kind == TREK_COMM_BROADCAST || kind == TREK_COMM_ALL_GATHER)
        return true;
    bool low = dtype == TREK_BF16 || dtype == TREK_F16;
    return op != TREK_REDUCTION_MEAN && !low &&
        (!trek_dtype_is_float(dtype) || op == TREK_REDUCTION_SUM || op == TREK_REDUCTION_PROD);
}

static void check_call(trek_comm **comms, int world, rank_job proto, bool attached)
{
    rank_job jobs[MAX_WORLD];
    proto.fn = one_call;
    run_ranks(world, comms, proto, jobs);
    for (int r = 0; r < world; r++) {
        if (jobs[r].status != TREK_OK || !jobs[r].good)
            fail_msg("rank %d of %d, kind %d, op %d, %s: %s", r, world, (int)proto.kind, (int)proto.op,
                     trek_dtype_name(proto.dtype),
                     jobs[r].status == TREK_OK ? "wrong values" : jobs[r].message);
        assert_int_equal(jobs[r].native, attached && native(proto.kind, proto.dtype, proto.op));
    }
}

static void check_all(trek_comm **comms, int world, bool attached)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++) {
        rank_job proto = { .dtype = (trek_dtype)dtype };
        for (int kind = TREK_COMM_ALL_REDUCE; kind <= TREK_COMM_REDUCE; kind++) {
            bool reduces = kind != TREK_COMM_BROADCAST && kind != TREK_COMM_ALL_GATHER;
            proto.kind = (trek_comm_kind)kind;
            for (int op = TREK_REDUCTION_MEAN; op <= (reduces ? TREK_REDUCTION_PROD : TREK_REDUCTION_MEAN); op++) {
                proto.op = (trek_reduction)op;
                bool of_bool = dtype != TREK_BOOL || op == TREK_REDUCTION_MAX || op == TREK_REDUCTION_MIN;
                if (reduces && (!of_bool || (op == TREK_REDUCTION_MEAN && !trek_dtype_is_float((trek_dtype)dtype))))
                    continue;
                check_call(comms, world, proto, attached);
            }
        }
    }
}

static void check_world(int world)
{
    if (skipped(world))
        skip();
    trek_comm *comms[MAX_WORLD];
    if (world == 1)
        setenv("TREK_NCCL", "1", 1);
    make_comms(world, comms);
    unsetenv("TREK_NCCL");
    assert_non_null(comms[0]->nccl);
    check_all(comms, world, true);
    for (int r = 0; r < world; r++)
        trek_comm_free(&comms[r]);
    assert_int_equal(trek_error_status(), TREK_OK);
}

static void test_one_rank(void **state) { check_world(1); }
static void test_two_ranks(void **state) { check_world(2); }
static void test_three_ranks(void **state) { check_world(3); }

/* --- who goes through the host ------------------------------------------------------------ */

/* The same GPU twice: nothing is attached, and the results are the same. */
static void test_duplicate_device(void **state)
{
    if (skipped(1))
        skip();
    trek_device devices[2] = { trek_cuda(0), trek_cuda(0) };
    trek_comm *comms[2];
    assert_int_equal(trek_comm_local(devices, 2, comms), TREK_OK);
    assert_null(comms[0]->nccl);
    for (int r = 0; r < 2; r++)
        trek_comm_free(&comms[r]);
}

static void test_switched_off(void **state)
{
    if (skipped(2))
        skip();
    trek_comm *comms[2];
    setenv("TREK_NCCL", "0", 1);
    make_comms(2, comms);
    unsetenv("TREK_NCCL");
    assert_null(comms[0]->nccl);
    check_all(comms, 2, false);
    for (int r = 0; r < 2; r++)
        trek_comm_free(&comms[r]);
}

/* --- order, failures ------------------------------------------------------------------------ */

/* Many calls with work before and after them: the queue and the communication stream wait for each other. */
static void many_calls(rank_job *job)
{
    job->dtype = TREK_F32;
    trek_tensor *x = filled(job, job->rank, COUNT);
    job->status = trek_comm_nccl_register(job->comm, x->data, COUNT * sizeof(float));
    for (int k = 0; k < 30 && job->status == TREK_OK; k++) {
        trek_tensor *half = trek_tensor_mul_scalar(x, 0.5);
        job->status = half ? trek_tensor_copy_from(x, half) : trek_error_status();
        trek_tensor_release(half);
        if (job->status == TREK_OK)
            job->status = trek_comm_all_reduce(job->comm, x, TREK_REDUCTION_SUM);
    }
    double *values = test_read(x);
    job->good = values != NULL;
    for (int i = 0; job->good && i < COUNT; i++) {
        double sum = 0;
        for (int r = 0; r < job->world; r++)
            sum += element(job, r, i);
        double wanted = sum * 0.5 * pow(job->world * 0.5, 29); /* exact: halves of small integers, doubled */
        job->good = values[i] == wanted;
    }
    free(values);
    trek_comm_nccl_forget(job->comm, x->data);
    trek_tensor_release(x);
}

static void test_order(void **state) { check_good(many_calls); }

/* Ranks whose calls differ are told so before a device waits in vain. */
static void differing_calls(rank_job *job)
{
    trek_tensor *x = filled(job, job->rank, job->rank == 0 ? COUNT : COUNT / 2);
    job->status = trek_comm_all_reduce(job->comm, x, TREK_REDUCTION_SUM);
    trek_tensor_release(x);
}

static void test_difference(void **state)
{
    if (skipped(2))
        skip();
    trek_comm *comms[2];
    rank_job jobs[MAX_WORLD];
    make_comms(2, comms);
    run_ranks(2, comms, (rank_job){ .fn = differing_calls }, jobs);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(jobs[r].status, TREK_ERR_COMM);
        assert_non_null(strstr(jobs[r].message, "differ"));
    }
    for (int r = 0; r < 2; r++)
        trek_comm_free(&comms[r]);
}

static void late_abort(rank_job *job)
{
    if (job->rank > 0) {
        nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
        trek_comm_abort(job->comm, "enough");
        return;
    }
    trek_tensor *x = filled(job, 0, COUNT);
    job->status = trek_comm_all_reduce(job->comm, x, TREK_REDUCTION_SUM); /* the other never comes */
    trek_tensor_release(x);
}

static trek_status give(rank_job *job, trek_tensor *x)
{
    trek_comm_call call = { .number = 1, .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM, .dtype = TREK_F32,
                            .count = COUNT, .in = x->data,
                            .out = x->data,
                            .on_device = true };
    return trek_comm_nccl_give(job->comm, &call);
}

static atomic_bool device_waits;

/* Rank 0's device waits for a rank that has not given its own any work. */
static void stuck_device(rank_job *job)
{
    if (job->rank > 0) {
        while (!device_waits)
            sched_yield();
        trek_comm_abort(job->comm, "enough");
        device_waits = false;
        return;
    }
    trek_tensor *x = filled(job, 0, COUNT);
    job->status = give(job, x);
    device_waits = true;
    trek_device_sync(trek_cuda(0)); /* returns because of the abort */
    trek_error_clear();
    trek_tensor_release(x);
}

static void check_abort(void (*fn)(rank_job *job), trek_status wanted)
{
    if (skipped(2))
        skip();
    trek_comm *comms[2];
    rank_job jobs[MAX_WORLD];
    make_comms(2, comms);
    run_ranks(2, comms, (rank_job){ .fn = fn }, jobs);
    assert_int_equal(jobs[0].status, wanted);
    for (int r = 0; r < 2; r++) { /* and from now on */
        trek_tensor *x = filled(&jobs[r], r, 4);
        FAILS(trek_comm_all_reduce(comms[r], x, TREK_REDUCTION_SUM), TREK_ERR_CANCELLED, "enough");
        assert_int_equal(give(&jobs[r], x), TREK_ERR_CANCELLED); /* one that had met before the end: the same reason */
        assert_non_null(strstr(trek_error(), "enough"));
        trek_error_clear();
        trek_tensor_release(x);
    }
    for (int r = 0; r < 2; r++)
        trek_comm_free(&comms[r]);
}

static void test_abort_of_a_meeting(void **state) { check_abort(late_abort, TREK_ERR_CANCELLED); }

static void test_abort_of_a_device(void **state) { check_abort(stuck_device, TREK_OK); }

/* NCCL does not come back from rank 0's call: the abort of another thread does not wait for it, it ends it. */
static void stuck_call(rank_job *job)
{
    if (job->rank > 0) {
        nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
        trek_comm_abort(job->comm, "enough");
        return;
    }
    void (*fails)(const char *specification);
    void *address = test_fake("trek_fake_fail");
    trek_tensor *x = filled(job, 0, COUNT);
    memcpy(&fails, &address, sizeof fails);
    fails("ncclHang:1");
    job->status = give(job, x);
    fails(NULL);
    trek_error_clear();
    trek_tensor_release(x);
}

static void test_abort_of_a_call(void **state)
{
    if (!test_fake("trek_fake_fail"))
        skip();
    check_abort(stuck_call, TREK_ERR_CANCELLED);
}

static atomic_bool is_ready, was_given, has_memory;

static void *take_memory(void *arg)
{
    rank_job *job = arg;
    trek_tensor *new = trek_tensor_empty(trek_dims(COUNT), TREK_F32, trek_cuda(job->rank));
    job->good = new && was_given; /* not before rank 1 had given its own */
    trek_tensor_release(new);
    has_memory = true;
    return NULL;
}

/* Rank 0's device waits for rank 1's: a thread that asks the driver for memory meanwhile, which might make it wait for that
 * device, comes after rank 1's launch, which the driver would hold up. */
static void half_given(rank_job *job)
{
    pthread_t thread;
    trek_tensor *x = filled(job, job->rank, COUNT);
    trek_device_sync(trek_cuda(job->rank));
    if (job->rank == 0) {
        while (!is_ready)
            sched_yield();
        job->status = give(job, x);
        if (pthread_create(&thread, NULL, take_memory, job) == 0)
            pthread_join(thread, NULL);
    } else {
        is_ready = true;
        nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
        job->good = !has_memory;
        was_given = true;
        job->status = give(job, x);
    }
    trek_device_sync(trek_cuda(job->rank));
    trek_tensor_release(x);
}

static void test_memory_between_launches(void **state) { check_good(half_given); }

/* Ranks of a group in which each thread is a rank of its own. */
static trek_status rank_of_group(int rank, void *arg)
{
    trek_ranks *ranks = arg;
    trek_tensor *x = trek_tensor_full(trek_dims(COUNT), rank + 1, TREK_F32, trek_cuda(rank));
    trek_status status = x ? trek_comm_all_reduce(trek_ranks_comm(ranks, rank), x, TREK_REDUCTION_SUM) : trek_error_status();
    double value = 0;
    if (status == TREK_OK) {
        double *values = test_read(x);
        value = values ? values[COUNT - 1] : NAN;
        free(values);
    }
    trek_tensor_release(x);
    if (status != TREK_OK)
        return status;
    return value == 3 ? TREK_OK : trek_fail(TREK_ERR_CALLBACK, "the sum is %g", value);
}

/* Groups of ranks on GPUs have a communicator of the library's of their own: ranks 2 and 0, in this order, and rank 1 alone. */
static void group_of_devices(rank_job *job)
{
    trek_comm *group = trek_comm_split(job->comm, job->rank % 2, -job->rank);
    int n = job->rank % 2 ? 1 : job->world - job->world / 2;
    trek_tensor *x = trek_tensor_full(trek_dims(COUNT), job->rank + 1, TREK_F32, trek_cuda(job->rank));
    job->native = group && (group->nccl != NULL) == (n > 1);
    job->status = trek_comm_all_reduce(group, x, TREK_REDUCTION_SUM);
    double *values = test_read(x), expected = job->rank % 2 || job->world < 3 ? job->rank + 1 : 4;
    job->good = group && trek_comm_world_size(group) == n && values[0] == expected && values[COUNT - 1] == expected;
    free(values);
    trek_tensor_release(x);
    trek_comm_free(&group);
}

static void test_split(void **state)
{
    if (skipped(2))
        skip();
    int world = trek_device_count(TREK_CUDA) < MAX_WORLD ? trek_device_count(TREK_CUDA) : MAX_WORLD;
    trek_comm *comms[MAX_WORLD];
    rank_job jobs[MAX_WORLD];
    make_comms(world, comms);
    run_ranks(world, comms, (rank_job){ .fn = group_of_devices }, jobs);
    for (int r = 0; r < world; r++) {
        if (jobs[r].status != TREK_OK || !jobs[r].good || !jobs[r].native)
            fail_msg("rank %d: %s", r, jobs[r].message);
        trek_comm_free(&comms[r]);
    }
}

static void test_group(void **state)
{
    if (skipped(2))
        skip();
    trek_ranks *ranks = trek_ranks_new((trek_device[]){ trek_cuda(0), trek_cuda(1) }, 2);
    assert_non_null(ranks);
    assert_non_null(trek_ranks_comm(ranks, 0)->nccl);
    for (int k = 0; k < 5; k++)
        SUCCEEDS(trek_ranks_run(ranks, rank_of_group, ranks));
    trek_ranks_free(&ranks);
}

/* --- handles between processes -------------------------------------------------------------------------- */

/* Each rank has what a process of its own would have: a control channel, a communicator on it, one device. Where several
 * processes run, gpu.sh has them. */
typedef struct process {
    trek_control *control;
    trek_comm *comm;
    int rank, world, port;
    trek_device device;
    trek_status status;
    char message[1024];
} process;

static void *process_main(void *arg)
{
    process *p = arg;
    trek_control_opts opts = { .process = p->rank, .processes = p->world, .address = "127.0.0.1", .port = p->port,
                               .token = "nccl", .join_s = 30 };
    p->control = trek_control_join(&opts);
    p->status = p->control ? trek_comm_shared_new(p->control, &p->comm) : trek_error_status();
    if (p->status == TREK_OK)
        p->status = trek_comm_nccl_join(p->comm, p->device);
    if (p->status == TREK_OK)
        p->status = trek_comm_nccl_join(p->comm, p->device); /* once is enough */
    strncpy(p->message, trek_error(), sizeof p->message - 1);
    trek_error_clear();
    return NULL;
}

static void make_processes(int world, int n_gpus, process *processes, trek_comm **comms)
{
    pthread_t threads[MAX_WORLD];
    int port = processes_free_port();
    for (int r = 0; r < world; r++) {
        processes[r] = (process){ .rank = r, .world = world, .port = port, .device = trek_cuda(r % n_gpus) };
        assert_int_equal(pthread_create(&threads[r], NULL, process_main, &processes[r]), 0);
    }
    for (int r = 0; r < world; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < world; r++) {
        if (processes[r].status != TREK_OK)
            fail_msg("process %d of %d: %s", r, world, processes[r].message);
        comms[r] = processes[r].comm;
    }
}

/* Both on cuda:0, where the threads' own place says otherwise. */
static void on_one_device(rank_job *job)
{
    trek_rank_here.device = trek_cuda(0);
    trek_tensor *x = trek_tensor_full(trek_dims(COUNT), job->rank + 1, TREK_F32, trek_cuda(0));
    job->status = x ? trek_comm_all_reduce(job->comm, x, TREK_REDUCTION_SUM) : trek_error_status();
    double *values = job->status == TREK_OK ? test_read(x) : NULL;
    job->good = values && values[0] == 3 && values[COUNT - 1] == 3;
    free(values);
    trek_tensor_release(x);
}

/* Processes leave when none of them makes calls any more. */
static void free_processes(int world, process *processes)
{
    for (int r = 0; r < world; r++)
        trek_comm_free(&processes[r].comm);
    for (int r = 0; r < world; r++)
        trek_control_free(&processes[r].control);
}

/* The same for two processes, which share a GPU or have one each. */
static void check_processes(int n_gpus, bool all, void (*fn)(rank_job *job))
{
    if (skipped(n_gpus))
        skip();
    process processes[MAX_WORLD];
    trek_comm *comms[MAX_WORLD];
    rank_job jobs[MAX_WORLD];
    make_processes(2, n_gpus, processes, comms);
    for (int r = 0; r < 2; r++)
        assert_true((comms[r]->nccl != NULL) == (n_gpus == 2));
    if (all)
        check_all(comms, 2, true);
    run_good(comms, fn, jobs);
    free_processes(2, processes);
    assert_int_equal(trek_error_status(), TREK_OK);
}

static void test_processes(void **state) { check_processes(2, true, many_calls); }

/* Started calls: the queue goes on behind them after finish. */
static void started_calls(rank_job *job)
{
    job->dtype = TREK_F32;
    trek_tensor *x[5];
    for (int k = 0; k < 5; k++) {
        x[k] = filled(job, job->rank, COUNT);
        trek_comm_call call = { .kind = TREK_COMM_ALL_REDUCE, .op = k == 3 ? TREK_REDUCTION_MEAN : TREK_REDUCTION_SUM,
                                .dtype = TREK_F32,
                                .count = COUNT,
                                .in = x[k]->data, .out = x[k]->data, .on_device = true };
        if (job->status == TREK_OK)
            job->status = trek_comm_start(job->comm, call);
    }
    if (job->status == TREK_OK)
        job->status = trek_comm_finish(job->comm);
    job->good = true;
    for (int k = 0; k < 5; k++) {
        job->op = k == 3 ? TREK_REDUCTION_MEAN : TREK_REDUCTION_SUM;
        job->good = job->good && holds(x[k], job, combined);
        trek_tensor_release(x[k]);
    }
}

static void test_started_between_processes(void **state) { check_processes(2, false, started_calls); }

/* Two processes with one GPU: found by its id, and everything goes through the host. */
static void test_processes_on_one_device(void **state) { check_processes(1, false, on_one_device); }

static trek_graph *build(trek_device device, void *arg)
{
    return trek_flow_build(trek_flow_from(trek_nn_linear(6, 3, device)));
}

/* A process with several ranks whose GPUs would be another's, or are not there. */
static void test_gpus_of_another(void **state)
{
    if (skipped(3))
        skip();
    trek_comm *comms[2];
    for (int first = 1; first < 3; first++) {
        assert_int_equal(trek_comm_local(NULL, 2, comms), TREK_OK);
        setenv("LOCAL_RANK", "1", 1);
        trek_graph *graph = build(trek_cuda(first), NULL);
        FAILS(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .ranks = 2, .comm = comms[0] }),
              TREK_ERR_DEVICE, "local process 1 must be built on cuda:2");
        unsetenv("LOCAL_RANK");
        trek_graph_free(&graph);
        for (int r = 0; r < 2; r++)
            trek_comm_free(&comms[r]);
    }
}

/* The end of the group, from any process, ends the waiting of a device. */
static void test_end_between_processes(void **state)
{
    if (skipped(2))
        skip();
    process processes[MAX_WORLD];
    trek_comm *comms[MAX_WORLD];
    rank_job jobs[MAX_WORLD];
    make_processes(2, 2, processes, comms);
    run_ranks(2, comms, (rank_job){ .fn = stuck_device }, jobs);
    assert_int_equal(jobs[0].status, TREK_OK);
    for (int r = 0; r < 2; r++) {
        FAILS(trek_comm_barrier(comms[r]), TREK_ERR_CANCELLED, "");
        trek_tensor *x = filled(&jobs[r], r, COUNT);
        FAILS(give(&jobs[r], x), TREK_ERR_CANCELLED, "enough");
        trek_tensor_release(x);
    }
    free_processes(2, processes);
}

static atomic_bool has_settled;

/* A call that is complete settles. One to which the other rank does not come ends the group after the deadline. */
static void settled_calls(rank_job *job)
{
    trek_tensor *x = filled(job, job->rank, COUNT);
    job->status = trek_comm_all_reduce(job->comm, x, TREK_REDUCTION_SUM);
    if (job->status == TREK_OK)
        job->status = trek_comm_settle(job->comm);
    job->good = job->status == TREK_OK;
    while (job->rank > 0 && !has_settled)
        sched_yield();
    if (job->rank == 0 && job->good && (job->status = give(job, x)) == TREK_OK) {
        trek_comm_set_deadline(job->comm, 0.2);
        job->status = trek_comm_settle(job->comm);
    }
    has_settled |= job->rank == 0;
    trek_tensor_release(x);
}

static void test_settled_between_processes(void **state)
{
    if (skipped(2))
        skip();
    process processes[MAX_WORLD];
    trek_comm *comms[MAX_WORLD];
    rank_job jobs[MAX_WORLD];
    make_processes(2, 2, processes, comms);
    run_ranks(2, comms, (rank_job){ .fn = settled_calls }, jobs);
    assert_true(jobs[0].good && jobs[1].good);
    assert_int_equal(jobs[0].status, TREK_ERR_TIMEOUT);
    assert_non_null(strstr(jobs[0].message, "rank 0: its device waits for a collective that does not end"));
    for (int r = 0; r < 2; r++)
        FAILS(trek_comm_settle(comms[r]), TREK_ERR_TIMEOUT, "does not end");
    free_processes(2, processes);
}

static atomic_bool has_failed;

/* Rank 0's library reports an error of its own before the channel reports that the other process has died. */
static void noticed_early(rank_job *job)
{
    void (*fails)(const char *specification);
    void *address = test_fake("trek_fake_fail");
    memcpy(&fails, &address, sizeof fails);
    if (job->rank > 0) {
        while (!has_failed)
            sched_yield();
        nanosleep(&(struct timespec){ .tv_nsec = 300000000 }, NULL);
        trek_control_end(job->comm->control, TREK_ERR_PEER, "process 1 died");
        return;
    }
    trek_tensor *x = filled(job, 0, COUNT);
    fails("ncclAsync:1");
    has_failed = true;
    while ((job->status = give(job, x)) == TREK_OK)
        sched_yield();
    fails(NULL);
    trek_tensor_release(x);
}

static void test_death_that_the_library_notices(void **state)
{
    if (skipped(2) || !test_fake("trek_fake_fail"))
        skip();
    process processes[MAX_WORLD];
    trek_comm *comms[MAX_WORLD];
    rank_job jobs[MAX_WORLD];
    make_processes(2, 2, processes, comms);
    run_ranks(2, comms, (rank_job){ .fn = noticed_early }, jobs);
    assert_int_equal(jobs[0].status, TREK_ERR_PEER);
    assert_string_equal(jobs[0].message, "process 1 died");
    free_processes(2, processes);
}

int main(void)
{
    setenv("TREK_FAKE_GPUS", "3", 0); /* where the GPUs are made up (fake_cuda), there are enough */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rank), cmocka_unit_test(test_two_ranks), cmocka_unit_test(test_three_ranks),
        cmocka_unit_test(test_duplicate_device), cmocka_unit_test(test_switched_off), cmocka_unit_test(test_order),
        cmocka_unit_test(test_difference), cmocka_unit_test(test_abort_of_a_meeting), cmocka_unit_test(test_abort_of_a_device),
        cmocka_unit_test(test_abort_of_a_call), cmocka_unit_test(test_memory_between_launches), cmocka_unit_test(test_group),
        cmocka_unit_test(test_split), cmocka_unit_test(test_processes), cmocka_unit_test(test_started_between_processes),
        cmocka_unit_test(test_gpus_of_another), cmocka_unit_test(test_processes_on_one_device),
        cmocka_unit_test(test_end_between_processes), cmocka_unit_test(test_settled_between_processes),
        cmocka_unit_test(test_death_that_the_library_notices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
