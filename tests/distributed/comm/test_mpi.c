/* SPDX-License-Identifier: Apache-2.0 */
/* The MPI engine. Without arguments: starts itself under mpirun for every scenario
 * and world, and looks at what the ranks report. With arguments: one rank of a
 * scenario. Skips (77) where mpirun or the plug-in is missing. */
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "distributed/comm/mpi/mpi.h"
#include "distributed/control/control.h"
#include "tensor/memory.h"
#include "tensor/plugin.h"
#include "tests/distributed/comm/groups.h"
#include "tests/distributed/comm/reductions.h"
#include "tests/support/processes.h"
#include "tests/support/unit.h"

/* --- a rank: what it checks ------------------------------------------------------------- */

static int failures, my_rank, my_world;

#define CHECK(condition) check(condition, #condition, __LINE__)
static bool check(bool good, const char *text, int line)
{
    if (!good && failures++ < 10)
        fprintf(stderr, "rank %d, line %d: %s; trek: %s\n", my_rank, line, text, trek_error());
    return good;
}

static void sleep_for(double seconds)
{
    nanosleep(&(struct timespec){ .tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - floor(seconds)) * 1e9) }, NULL);
}

static trek_comm *join(void)
{
    trek_comm *comm = NULL;
    if (!CHECK(trek_comm_mpi_new(NULL, &comm) == TREK_OK))
        _exit(1);
    my_rank = trek_comm_rank(comm);
    my_world = trek_comm_world_size(comm);
    return comm;
}

/* --- values and references ------------------------------------------------------------------- */

static size_t bytes_of(const trek_tensor *tensor)
{
    return (size_t)trek_tensor_numel(tensor) * trek_dtype_size(trek_tensor_dtype(tensor));
}

/* The same bits, or for sums and products of floats, whose order is MPI's, within a few roundings. */
static bool agrees(trek_tensor *got, trek_tensor *expected, trek_reduction op, bool ordered)
{
    trek_dtype dtype = trek_tensor_dtype(got);
    if (ordered || !trek_dtype_is_float(dtype) || op == TREK_REDUCTION_MAX || op == TREK_REDUCTION_MIN)
        return same_bytes(got, expected);
    double unit = dtype == TREK_F64 ? 1e-15 : dtype == TREK_F32 ? 1e-6 : dtype == TREK_F16 ? 1e-3 : 8e-3;
    trek_tensor *a = trek_tensor_cast(got, TREK_F64), *b = trek_tensor_cast(expected, TREK_F64);
    const double *x = trek_tensor_data(a), *y = trek_tensor_data(b);
    bool good = true;
    double scale = op == TREK_REDUCTION_PROD ? 0 : 40;
    for (int64_t i = 0; i < trek_tensor_numel(got); i++)
        good = good && (x[i] == y[i] || fabs(x[i] - y[i]) <= unit * (fabs(y[i]) + scale));
    trek_tensor_release(a);
    trek_tensor_release(b);
    return good;
}

/* Whether all ranks have these bits. */
static bool same_everywhere(trek_comm *comm, trek_tensor *tensor)
{
    trek_tensor *first = trek_tensor_clone(tensor);
    bool good = CHECK(trek_comm_broadcast(comm, first, 0) == TREK_OK) &&
                same_bytes(first, tensor);
    trek_tensor_release(first);
    return good;
}

static void check_reductions(trek_comm *comm, trek_dtype dtype, trek_reduction op, int64_t count, bool small_ones)
{
    bool ordered = small_ones && (size_t)count * trek_dtype_size(dtype) <= 4096;
    trek_tensor *tensor = rank_values(dtype, my_rank, 0, count), *expected = combined_values(dtype, op, my_world, 0, count);
    CHECK(trek_comm_all_reduce(comm, tensor, op) == TREK_OK);
    if (!CHECK(agrees(tensor, expected, op, ordered)))
        fprintf(stderr, "  all_reduce %s op %d count %lld\n", trek_dtype_name(dtype), (int)op, (long long)count);
    CHECK(same_everywhere(comm, tensor));
    trek_tensor_release(tensor);

    int root = (int)(count + (int64_t)op) % my_world;
    tensor = rank_values(dtype, my_rank, 0, count);
    CHECK(trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_REDUCE, .op = op, .root = root, .dtype = dtype, .count = count,
                                                .in = trek_tensor_data(tensor), .out = trek_tensor_data(tensor) }) == TREK_OK);
    trek_tensor *own = my_rank == root ? expected : rank_values(dtype, my_rank, 0, count); /* others' stay as they are */
    if (!CHECK(agrees(tensor, own, op, false)))
        fprintf(stderr, "  reduce %s op %d count %lld\n", trek_dtype_name(dtype), (int)op, (long long)count);
    if (own != expected)
        trek_tensor_release(own);
    trek_tensor_release(tensor);
    trek_tensor_release(expected);

    trek_tensor *all = rank_values(dtype, my_rank, 0, count * my_world), *part = rank_values(dtype, 0, 0, count);
    expected = combined_values(dtype, op, my_world, count * my_rank, count);
    CHECK(trek_comm_reduce_scatter(comm, all, part, op) == TREK_OK);
    if (!CHECK(agrees(part, expected, op, false)))
        fprintf(stderr, "  reduce_scatter %s op %d count %lld\n", trek_dtype_name(dtype), (int)op, (long long)count);
    trek_tensor_release(all);
    trek_tensor_release(part);
    trek_tensor_release(expected);
}

static void check_moves(trek_comm *comm, trek_dtype dtype, int64_t count)
{
    for (int root = 0; root < my_world; root++) {
        trek_tensor *tensor = rank_values(dtype, my_rank, 0, count), *expected = rank_values(dtype, root, 0, count);
        CHECK(trek_comm_broadcast(comm, tensor, root) == TREK_OK);
        CHECK(same_bytes(tensor, expected));
        trek_tensor_release(tensor);
        trek_tensor_release(expected);
    }
    trek_tensor *part = rank_values(dtype, my_rank, 0, count), *all = rank_values(dtype, 0, 0, count * my_world);
    CHECK(trek_comm_all_gather(comm, part, all) == TREK_OK);
    for (int r = 0; r < my_world; r++) {
        trek_tensor *expected = rank_values(dtype, r, 0, count);
        CHECK(memcmp((char *)trek_tensor_data(all) + (size_t)r * bytes_of(part), trek_tensor_data(expected),
                     bytes_of(part)) == 0);
        trek_tensor_release(expected);
    }
    trek_tensor_release(part);
    trek_tensor_release(all);
}

static void check_values(const int64_t *counts, int n_counts, bool small_ones)
{
    trek_comm *comm = join();
    for (int k = 0; k < n_counts; k++)
        for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++) {
            for (int op = TREK_REDUCTION_MEAN; op <= TREK_REDUCTION_PROD; op++)
                if (op_fits((trek_dtype)dtype, (trek_reduction)op))
                    check_reductions(comm, (trek_dtype)dtype, (trek_reduction)op, counts[k], small_ones);
            check_moves(comm, (trek_dtype)dtype, counts[k]);
            CHECK(trek_comm_barrier(comm) == TREK_OK);
        }
    trek_comm_free(&comm);
}

/* NaN wins, wherever it stands. */
static void check_nan(int64_t count)
{
    trek_comm *comm = join();
    for (int wide = 0; wide < 2; wide++)
        for (int op = TREK_REDUCTION_MAX; op <= TREK_REDUCTION_MIN; op++) {
            trek_tensor *tensor = rank_values(wide ? TREK_F64 : TREK_F32, my_rank, 0, count);
            for (int64_t i = 0; i < count; i++)
                if (i % my_world == my_rank) {
                    if (wide)
                        ((double *)trek_tensor_data(tensor))[i] = NAN;
                    else
                        ((float *)trek_tensor_data(tensor))[i] = NAN;
                }
            CHECK(trek_comm_all_reduce(comm, tensor, (trek_reduction)op) == TREK_OK);
            bool all = true;
            for (int64_t i = 0; i < count; i++)
                all = all && isnan(wide ? ((double *)trek_tensor_data(tensor))[i] : ((float *)trek_tensor_data(tensor))[i]);
            CHECK(all);
            trek_tensor_release(tensor);
        }
    trek_comm_free(&comm);
}

static void run_values(void)
{
    int initialised = 1;
    MPI_Initialized(&initialised);
    CHECK(!initialised);
    check_values((const int64_t[]){ 0, 1, 7, 512, 1024, 1025, 50021 }, 7, true);
    check_nan(10);
    check_nan(9001);
}

/* Counts far above what a piece holds, as a count above INT_MAX is; and ranks that meet by a reduction. */
static void run_pieces(void)
{
    trek_comm_mpi_set_sizes(1, 0); /* the smallest */
    check_values((const int64_t[]){ 1, 1023, 9001 }, 3, true);
    trek_comm_mpi_set_sizes(300, 1);
    check_values((const int64_t[]){ 0, 1, 37, 1201 }, 4, false); /* up to 33 pieces, of which each is a round of all ranks */
    trek_comm_mpi_set_sizes(0, 1);
    check_values((const int64_t[]){ 3, 100003 }, 2, false);
    check_nan(5);
}

/* --- calls that differ ---------------------------------------------------------------------------- */

typedef struct difference {
    const char *text; /* in the message */
    trek_comm_call odd;
} difference;

static const difference differences[] = {
    { "all_reduce(sum, f32, 1000 elements)", { .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM, .dtype = TREK_F32,
                                               .count = 1000 } },
    { "all_reduce(sum, f32, 200000 elements)", { .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM, .dtype = TREK_F32,
                                                 .count = 200000 } },
    { "all_reduce(sum, i32, 100000 elements)", { .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM, .dtype = TREK_I32,
                                                 .count = 100000 } },
    { "all_reduce(max, f32, 100000 elements)", { .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_MAX, .dtype = TREK_F32,
                                                 .count = 100000 } },
    { "broadcast(from rank 1, f32, 100000 elements)",
      { .kind = TREK_COMM_BROADCAST, .root = 1, .dtype = TREK_F32, .count = 100000 } },
    { "barrier", { .kind = TREK_COMM_BARRIER } },
    { "a call with wrong arguments", { .kind = TREK_COMM_INVALID } },
    { "all_reduce(sum, f32, 100000 elements, on the device)",
      { .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM, .dtype = TREK_F32, .count = 100000, .on_device = true } },
};

static void check_difference(const difference *d, int odd_rank, float *data)
{
    trek_comm *comm = join();
    trek_comm_set_deadline(comm, 20);
    CHECK(trek_comm_barrier(comm) == TREK_OK);
    trek_comm_call call = { .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM, .dtype = TREK_F32, .count = 100000 };
    if (my_rank == odd_rank)
        call = d->odd;
    call.in = call.out = data;
    call.number = 2;
    for (int i = 0; i < 200000; i++)
        data[i] = (float)i;
    CHECK(comm->engine->run(comm, &call) == TREK_ERR_COMM);
    char other[96];
    snprintf(other, sizeof other, "rank %d's call 2 is ", odd_rank);
    CHECK(strstr(trek_error(), d->text) || d->odd.kind == TREK_COMM_INVALID);
    CHECK(strstr(trek_error(), odd_rank ? other : d->odd.kind == TREK_COMM_INVALID ? "rank 0 came with wrong"
                 : "rank 0's call 2 is "));
    trek_error_clear();
    bool untouched = true;
    for (int i = 0; i < 200000; i++)
        untouched = untouched && data[i] == (float)i;
    CHECK(untouched);
    CHECK(trek_comm_ended(comm));
    CHECK(trek_comm_barrier(comm) == TREK_ERR_COMM); /* poisoned */
    trek_error_clear();
    trek_comm_free(&comm);
}

static void run_mismatch(void)
{
    int level;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    float *data = malloc(200000 * sizeof *data);
    for (int direct = 0; direct < 2; direct++) {
        trek_comm_mpi_set_sizes(0, direct ? 0 : 1);
        for (size_t k = 0; k < sizeof differences / sizeof *differences; k++)
            for (int odd = 0; odd < 2; odd++)
                check_difference(&differences[k], odd, data);
    }
    free(data);
    MPI_Barrier(MPI_COMM_WORLD); /* the program's own MPI goes on */
    MPI_Finalize();
}

/* --- late and stopped ranks -------------------------------------------------------------------------- */

static void run_timeout(void)
{
    int level;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    trek_comm *comm = join();
    CHECK(trek_comm_set_deadline(comm, 1.5) == TREK_OK);
    trek_tensor *tensor = rank_values(TREK_F32, my_rank, 0, 50000), *before = trek_tensor_clone(tensor);
    CHECK(trek_comm_barrier(comm) == TREK_OK);
    if (my_rank == my_world - 1)
        MPI_Barrier(MPI_COMM_WORLD); /* the others have given up */
    CHECK(trek_comm_all_reduce(comm, tensor, TREK_REDUCTION_SUM) == TREK_ERR_TIMEOUT);
    char text[64];
    snprintf(text, sizeof text, "rank %d did not come within 1.5 s", my_world - 1);
    if (my_rank < my_world - 1)
        CHECK(strstr(trek_error(), text) && strstr(trek_error(), "all_reduce(sum, f32, 50000 elements)"));
    trek_error_clear();
    CHECK(trek_comm_all_reduce(comm, tensor, TREK_REDUCTION_SUM) == TREK_ERR_TIMEOUT);
    trek_error_clear();
    if (my_rank < my_world - 1)
        MPI_Barrier(MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD); /* the late one has come; MPI itself has everything by now */
    sleep_for(0.2);
    CHECK(same_bytes(tensor, before));
    trek_comm_free(&comm);
    comm = join(); /* another group: the engine itself is well */
    CHECK(trek_comm_all_reduce(comm, tensor, TREK_REDUCTION_SUM) == TREK_OK);
    trek_comm_free(&comm);
    trek_tensor_release(tensor);
    trek_tensor_release(before);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
}

static void *stop_myself(void *unused)
{
    sleep_for(0.06);
    kill(getpid(), SIGSTOP);
    return unused;
}

static uint64_t checksum(const trek_tensor *tensor)
{
    const unsigned char *at = trek_tensor_data(tensor);
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes_of(tensor); i++)
        sum = sum * 31 + at[i];
    return sum;
}

/* The last rank stops in the middle of a long call. The others end, and their memory stays as it is from there on. */
static void run_stopped(void)
{
    int level;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    trek_comm_mpi_set_sizes(2048, 0);
    trek_comm *comm = join();
    CHECK(trek_comm_set_deadline(comm, 3) == TREK_OK);
    int64_t pid = getpid(), pids[16];
    trek_comm_call gather = { .kind = TREK_COMM_ALL_GATHER, .dtype = TREK_I64, .count = 1, .in = &pid, .out = pids };
    CHECK(trek_comm_run(comm, gather) == TREK_OK);
    trek_tensor *tensor = rank_values(TREK_F32, my_rank, 0, 16 << 20);
    pthread_t thread;
    if (my_rank == my_world - 1)
        pthread_create(&thread, NULL, stop_myself, NULL);
    trek_status status = TREK_OK;
    while (status == TREK_OK)
        status = trek_comm_all_reduce(comm, tensor, TREK_REDUCTION_MAX);
    CHECK(status == TREK_ERR_TIMEOUT);
    if (my_rank < my_world - 1) /* within a call, or before one */
        CHECK(strstr(trek_error(), "nothing has moved for 3 s") || strstr(trek_error(), "did not come within 3 s"));
    trek_error_clear();
    uint64_t sum = checksum(tensor);
    if (my_rank == 0)
        kill((pid_t)pids[my_world - 1], SIGCONT);
    MPI_Barrier(MPI_COMM_WORLD);
    sleep_for(0.3);
    CHECK(checksum(tensor) == sum);
    trek_comm_free(&comm);
    if (my_rank == my_world - 1)
        pthread_join(thread, NULL);
    trek_tensor_release(tensor);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
}

static void *abort_soon(void *arg)
{
    sleep_for(0.2);
    trek_comm_abort(arg, "enough");
    return NULL;
}

static void run_abort(void)
{
    int level;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    trek_comm *comm = join();
    if (my_rank == 0) {
        pthread_t thread;
        pthread_create(&thread, NULL, abort_soon, comm);
        CHECK(trek_comm_barrier(comm) == TREK_ERR_CANCELLED);
        CHECK(strstr(trek_error(), "aborted through rank 0: enough"));
        trek_error_clear();
        pthread_join(thread, NULL);
    }
    trek_comm_free(&comm);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
}

/* --- with a control channel ------------------------------------------------------------------------------- */

static trek_control *join_control(int round)
{
    trek_control_opts opts = { .process = atoi(getenv("OMPI_COMM_WORLD_RANK")), .processes = atoi(getenv("OMPI_COMM_WORLD_SIZE")),
                               .address = "127.0.0.1", .port = atoi(getenv(round ? "TREK_TEST_PORT_2" : "TREK_TEST_PORT")),
                               .token = "of the test",
                               .join_s = 30 };
    trek_control *control = trek_control_join(&opts);
    if (!CHECK(control))
        _exit(1);
    return control;
}

/* The channel ends the group on all ranks at once, those that wait inside a call included; and it excuses who is late
 * but has said so. */
static void run_control(void)
{
    int level;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    for (int round = 0; round < 2; round++) {
        trek_control *control = join_control(round);
        trek_comm *comm = NULL;
        if (!CHECK(trek_comm_mpi_new(control, &comm) == TREK_OK))
            _exit(1);
        my_rank = trek_comm_rank(comm);
        my_world = trek_comm_world_size(comm);
        CHECK(trek_comm_set_deadline(comm, round ? 60 : 2) == TREK_OK);
        trek_tensor *tensor = rank_values(TREK_I32, my_rank, 0, 40000),
            *expected = combined_values(TREK_I32, TREK_REDUCTION_SUM, my_world, 0, 40000);
        if (my_rank == 1)
            trek_control_say_long(control, "save");
        MPI_Barrier(MPI_COMM_WORLD); /* said before anybody waits */
        if (my_rank == 1 && round == 0)
            sleep_for(3);
        CHECK(trek_comm_all_reduce(comm, tensor, TREK_REDUCTION_SUM) == TREK_OK &&
              agrees(tensor, expected, TREK_REDUCTION_SUM, true));
        if (round == 0) { /* one never comes, and says nothing */
            MPI_Barrier(MPI_COMM_WORLD);
            while (my_rank == my_world - 1 && !trek_control_ended(control))
                sleep_for(0.01);
            CHECK(trek_comm_all_reduce(comm, tensor, TREK_REDUCTION_SUM) == TREK_ERR_TIMEOUT);
            char text[48];
            snprintf(text, sizeof text, "rank %d did not come", my_world - 1);
            CHECK(strstr(trek_error(), text)); /* the late one is told, too */
        } else { /* one aborts while the others wait */
            if (my_rank == 0) {
                sleep_for(0.3);
                trek_comm_abort(comm, "enough");
            }
            CHECK(trek_comm_barrier(comm) == TREK_ERR_CANCELLED);
            CHECK(strstr(trek_error(), "aborted through rank 0: enough"));
        }
        trek_error_clear();
        CHECK(trek_comm_ended(comm) && trek_control_ended(control));
        trek_comm_free(&comm);
        trek_control_free(&control);
        trek_tensor_release(tensor);
        trek_tensor_release(expected);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Finalize();
}

/* One process cannot use MPI: all are told, none waits. */
static void run_unlike(void)
{
    int level;
    bool odd = strcmp(getenv("OMPI_COMM_WORLD_RANK"), "1") == 0;
    MPI_Init_thread(NULL, NULL, odd ? MPI_THREAD_FUNNELED : MPI_THREAD_MULTIPLE, &level);
    trek_control *control = join_control(0);
    trek_comm *comm = NULL;
    CHECK(trek_comm_mpi_new(control, &comm) == TREK_ERR_UNSUPPORTED && !comm);
    CHECK(strstr(trek_error(), odd ? "MPI_THREAD_FUNNELED" : "process 1 cannot use MPI"));
    trek_error_clear();
    trek_control_free(&control);
    MPI_Finalize();
}

/* --- the program's own MPI -------------------------------------------------------------------------------- */

static void run_level(int wanted)
{
    int level;
    MPI_Init_thread(NULL, NULL, wanted, &level);
    trek_comm *comm = NULL;
    for (int round = 0; round < 2; round++) {
        if (level < MPI_THREAD_SERIALIZED) {
            CHECK(trek_comm_mpi_new(NULL, &comm) == TREK_ERR_UNSUPPORTED && !comm);
            CHECK(strstr(trek_error(), level == MPI_THREAD_SINGLE ? "MPI_THREAD_SINGLE" : "MPI_THREAD_FUNNELED"));
            trek_error_clear();
        } else {
            comm = join();
            trek_tensor *tensor = rank_values(TREK_F32, my_rank, 0, 10000),
                *expected = combined_values(TREK_F32, TREK_REDUCTION_SUM, my_world, 0, 10000);
            CHECK(trek_comm_all_reduce(comm, tensor, TREK_REDUCTION_SUM) == TREK_OK &&
                  agrees(tensor, expected, TREK_REDUCTION_SUM, false));
            trek_tensor_release(tensor);
            trek_tensor_release(expected);
            trek_comm_free(&comm);
        }
        int one = 1, sum = 0, world = 0, finalised = 1;
        MPI_Finalized(&finalised);
        CHECK(!finalised);
        MPI_Comm_size(MPI_COMM_WORLD, &world);
        MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        CHECK(sum == world);
    }
    MPI_Finalize();
    CHECK(trek_comm_mpi_new(NULL, &comm) == TREK_ERR_UNSUPPORTED);
    CHECK(strstr(trek_error(), "finalised MPI"));
    trek_error_clear();
}

static void run_level_single(void) { run_level(MPI_THREAD_SINGLE); }
static void run_level_funneled(void) { run_level(MPI_THREAD_FUNNELED); }
static void run_level_serialized(void) { run_level(MPI_THREAD_SERIALIZED); }
static void run_level_multiple(void) { run_level(MPI_THREAD_MULTIPLE); }

/* MPI is finalised under a handle: an error, and not a crash. */
static void run_finalised(void)
{
    int level;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    trek_comm *comm = join();
    CHECK(trek_comm_barrier(comm) == TREK_OK);
    MPI_Finalize();
    CHECK(trek_comm_barrier(comm) == TREK_ERR_UNSUPPORTED);
    CHECK(strstr(trek_error(), "the program has finalised MPI"));
    trek_error_clear();
    trek_comm_free(&comm);
}

/* Started calls under way while the program uses MPI_COMM_WORLD itself. */
static void run_beside(void)
{
    int level;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    trek_comm *comm = join();
    int64_t count = 300000;
    trek_tensor *tensor = rank_values(TREK_I64, my_rank, 0, count),
        *expected = combined_values(TREK_I64, TREK_REDUCTION_SUM, my_world, 0, count);
    for (int round = 0; round < 20; round++) {
        trek_tensor *own = trek_tensor_clone(tensor);
        trek_comm_call call = { .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM, .dtype = TREK_I64, .count = count };
        call.in = call.out = trek_tensor_data(own);
        CHECK(trek_comm_start(comm, call) == TREK_OK);
        for (int k = 0; k < 50; k++) {
            double mine[64], sum[64];
            for (int i = 0; i < 64; i++)
                mine[i] = my_rank + i;
            MPI_Allreduce(mine, sum, 64, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
            CHECK(sum[3] == my_world * (my_world - 1) / 2 + 3 * my_world);
            int token = my_rank;
            MPI_Sendrecv_replace(&token, 1, MPI_INT, (my_rank + 1) % my_world, 1, (my_rank + my_world - 1) % my_world, 1,
                                 MPI_COMM_WORLD,
                                 MPI_STATUS_IGNORE);
            CHECK(token == (my_rank + my_world - 1) % my_world);
        }
        CHECK(trek_comm_finish(comm) == TREK_OK);
        CHECK(agrees(own, expected, TREK_REDUCTION_SUM, true));
        trek_tensor_release(own);
    }
    trek_tensor_release(tensor);
    trek_tensor_release(expected);
    trek_comm_free(&comm);
    MPI_Finalize();
}

/* --- started calls ---------------------------------------------------------------------------------------- */

/* More than the queue holds, of several kinds and sizes; their results are there after finish. Two groups at once. */
static void run_order(void)
{
    enum { CALLS = 700, COUNT = 3000 };
    trek_comm *comms[2] = { join(), join() };
    CHECK(trek_comm_overlaps(comms[0]));
    int32_t *data[2];
    for (int g = 0; g < 2; g++)
        data[g] = malloc((size_t)CALLS * COUNT * sizeof **data);
    for (int k = 0; k < CALLS; k++)
        for (int g = 0; g < 2; g++) {
            int32_t *own = data[g] + (size_t)k * COUNT;
            for (int i = 0; i < COUNT; i++)
                own[i] = my_rank + i + k + g;
            trek_comm_call call = { .kind = k % 3 == 2 ? TREK_COMM_BROADCAST : TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM,
                                    .dtype = TREK_I32,
                                    .count = k % 2 ? COUNT : 5, .root = k % 3 == 2 ? k % my_world : 0, .in = own, .out = own };
            CHECK(trek_comm_start(comms[g], call) == TREK_OK);
            if (my_rank == k % my_world && k % 97 == 0)
                sleep_for(0.01);
        }
    for (int g = 0; g < 2; g++) {
        CHECK(trek_comm_finish(comms[g]) == TREK_OK);
        CHECK(trek_comm_finish(comms[g]) == TREK_OK);
        bool good = true;
        for (int k = 0; k < CALLS; k++)
            for (int i = 0; i < (k % 2 ? COUNT : 5); i++) {
                int sum = my_world * (my_world - 1) / 2 + my_world * (i + k + g), sent = k % my_world + i + k + g;
                good = good && data[g][(size_t)k * COUNT + (size_t)i] == (k % 3 == 2 ? sent : sum);
            }
        CHECK(good);
        trek_comm_free(&comms[g]);
        free(data[g]);
    }
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Nothing under way: no processor time to speak of, in whatever time that is. A late rank: little. */
static void run_idle(void)
{
    trek_comm *comm = join();
    CHECK(trek_comm_barrier(comm) == TREK_OK);
    sleep_for(0.1);
    double before = cpu_seconds(), start = processes_now();
    sleep_for(0.5);
    CHECK(cpu_seconds() - before < 0.1 * (processes_now() - start));
    CHECK(trek_comm_barrier(comm) == TREK_OK);
    before = cpu_seconds(), start = processes_now();
    if (my_rank == 0)
        sleep_for(1);
    CHECK(trek_comm_barrier(comm) == TREK_OK);
    CHECK(cpu_seconds() - before < 0.1 + 0.4 * (processes_now() - start));
    trek_comm_free(&comm);
}

/* Groups over MPI are MPI's own communicators, in the order of the keys. */
static void run_groups(void)
{
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .engine = "mpi", .rank = atoi(getenv("OMPI_COMM_WORLD_RANK")),
                                                        .world_size = atoi(getenv("OMPI_COMM_WORLD_SIZE")),
                                                        .address = "127.0.0.1",
                                                        .port = atoi(getenv("TREK_TEST_PORT")), .token = "of this test alone" });
    if (!CHECK(comm))
        _exit(1);
    my_rank = trek_comm_rank(comm);
    my_world = trek_comm_world_size(comm);
    CHECK(groups_are_right(comm, 3, 4));
    trek_comm *turned = trek_comm_split(comm, 0, -my_rank);
    CHECK(turned && strcmp(turned->engine->name, "mpi") == 0 && trek_comm_rank(turned) == my_world - 1 - my_rank);
    trek_comm_free(&comm); /* the group goes on without it */
    trek_tensor *sum = rank_values(TREK_I64, my_world - 1 - my_rank, 0, 100000),
                *expected = combined_values(TREK_I64, TREK_REDUCTION_SUM, my_world, 0, 100000);
    CHECK(trek_comm_all_reduce(turned, sum, TREK_REDUCTION_SUM) == TREK_OK && same_bytes(sum, expected));
    trek_tensor_release(sum);
    trek_tensor_release(expected);
    trek_comm_free(&turned);
}

static void run_world_of_one(void)
{
    trek_comm *comm = join();
    CHECK(my_world == 1);
    trek_tensor *tensor = rank_values(TREK_F32, 0, 0, 100000), *before = trek_tensor_clone(tensor);
    CHECK(trek_comm_all_reduce(comm, tensor, TREK_REDUCTION_MEAN) == TREK_OK);
    CHECK(same_bytes(tensor, before));
    CHECK(trek_comm_broadcast(comm, tensor, 0) == TREK_OK && trek_comm_barrier(comm) == TREK_OK);
    trek_tensor_release(tensor);
    trek_tensor_release(before);
    trek_comm_free(&comm);
}

/* Scenarios, and by how many ranks each is run: bit n for n. */
static const struct {
    const char *name;
    void (*run)(void);
    unsigned worlds;
} scenarios[] = {
    { "values", run_values, 1 << 2 | 1 << 3 | 1 << 4 },
    { "pieces", run_pieces, 1 << 2 | 1 << 3 },
    { "groups", run_groups, 1 << 2 | 1 << 3 | 1 << 4 },
    { "mismatch", run_mismatch, 1 << 2 | 1 << 3 },
    { "timeout", run_timeout, 1 << 2 | 1 << 4 },
    { "order", run_order, 1 << 2 | 1 << 4 },
    { "stopped", run_stopped, 1 << 3 },
    { "abort", run_abort, 1 << 2 },
    { "control", run_control, 1 << 3 },
    { "unlike", run_unlike, 1 << 3 },
    { "level_single", run_level_single, 1 << 2 },
    { "level_funneled", run_level_funneled, 1 << 2 },
    { "level_serialized", run_level_serialized, 1 << 3 },
    { "level_multiple", run_level_multiple, 1 << 3 },
    { "finalised", run_finalised, 1 << 2 }, /* under a handle */
    { "beside", run_beside, 1 << 3 },       /* the program's own calls */
    { "idle", run_idle, 1 << 2 },
    { "one", run_world_of_one, 1 << 1 },
};
enum { SCENARIOS = sizeof scenarios / sizeof *scenarios };

static int run_scenario(const char *name)
{
    int k = 0;
    alarm(600);
    while (k < SCENARIOS && strcmp(name, scenarios[k].name) != 0)
        k++;
    if (k == SCENARIOS)
        return 2;
    scenarios[k].run();
    printf("%s\n", failures ? "bad" : "good");
    fflush(stdout);
    return failures != 0;
}

/* --- the other side: starting them --------------------------------------------------------------------------- */

static const char *program;

/* All ranks said that they are well, and mpirun ended without complaint: MPI was finalised. */
static void run_under_mpirun(const char *scenario, int world)
{
    char command[1024], line[512], port[16];
    for (int round = 0; round < 2; round++) {
        snprintf(port, sizeof port, "%d", processes_free_port());
        setenv(round ? "TREK_TEST_PORT_2" : "TREK_TEST_PORT", port, 1);
    }
    snprintf(command, sizeof command, "timeout -k 5 620 mpirun -n %d '%s' %s 2>&1", world, program, scenario);
    FILE *output = popen(command, "r");
    assert_non_null(output);
    int good = 0;
    char kept[8192] = "";
    while (fgets(line, sizeof line, output)) {
        if (strcmp(line, "good\n") == 0)
            good++;
        else if (strlen(kept) + strlen(line) < sizeof kept)
            strcat(kept, line);
    }
    int status = pclose(output);
    if (good != world || status != 0)
        fail_msg("%s, %d processes: %d are well, exit status %d\n%s", scenario, world, good, WEXITSTATUS(status), kept);
}

static void test_scenario(void **state)
{
    size_t k = (size_t)(uintptr_t)*state;
    for (int world = 1; world <= 4; world++)
        if (scenarios[k].worlds >> world & 1)
            run_under_mpirun(scenarios[k].name, world);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return run_scenario(argv[1]);
    char why[400];
    program = argv[0];
    if (system("command -v mpirun >/dev/null 2>&1") != 0 || !trek_plugin_open("trek-mpi", why, sizeof why)) {
        printf("no mpirun, or no plug-in\n");
        return 77;
    }
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1); /* Open MPI's own precautions, which containers do not need */
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    struct CMUnitTest tests[SCENARIOS];
    for (size_t k = 0; k < SCENARIOS; k++)
        tests[k] = (struct CMUnitTest){ .name = scenarios[k].name, .test_func = test_scenario,
                                        .initial_state = (void *)(uintptr_t)k };
    return _cmocka_run_group_tests("mpi", tests, SCENARIOS, NULL, NULL);
}
