/* SPDX-License-Identifier: Apache-2.0 */
/* The MPI engine beside plain MPI_Iallreduce on the same buffers, call by call in
 * turn, and a started call under a computation.
 *   mpirun -n 4 trek-mpi-bench [most MiB]      prints one line per size, on rank 0 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "distributed/comm/mpi/mpi.h"

static int rank, world;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median over repetitions of the slowest rank's time, in milliseconds. */
static double median_ms(double *seconds, int n)
{
    MPI_Allreduce(MPI_IN_PLACE, seconds, n, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    qsort(seconds, (size_t)n, sizeof *seconds, by_value);
    return 1e3 * (n % 2 ? seconds[n / 2] : (seconds[n / 2 - 1] + seconds[n / 2]) / 2);
}

static double plain(float *data, int64_t count)
{
    MPI_Request request;
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    MPI_Iallreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    return MPI_Wtime() - start;
}

static trek_comm_call call_of(float *data, int64_t count)
{
    return (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM, .dtype = TREK_F32, .count = count,
                             .in = data,
                             .out = data };
}

static double engine(trek_comm *comm, float *data, int64_t count)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    if (trek_comm_run(comm, call_of(data, count)) != TREK_OK)
        fprintf(stderr, "rank %d: %s\n", rank, trek_error());
    return MPI_Wtime() - start;
}

static void compare(trek_comm *comm, float *data, int64_t bytes)
{
    enum { MOST = 400 };
    static double plain_s[MOST], engine_s[MOST];
    int64_t count = bytes / 4;
    int repetitions = bytes <= 65536 ? MOST : bytes <= 1 << 20 ? 60 : bytes <= 32 << 20 ? 15 : 7;
    for (int k = -2; k < repetitions; k++) { /* two to warm up */
        for (int64_t i = 0; i < count; i++)
            data[i] = 1;
        double first = k % 2 ? engine(comm, data, count) : plain(data, count);
        double second = k % 2 ? plain(data, count) : engine(comm, data, count);
        if (k < 0)
            continue;
        plain_s[k] = k % 2 ? second : first;
        engine_s[k] = k % 2 ? first : second;
        if (data[count / 2] != (float)world * (float)world)
            fprintf(stderr, "rank %d: wrong result\n", rank);
    }
    double p = median_ms(plain_s, repetitions), e = median_ms(engine_s, repetitions);
    if (rank == 0)
        printf("%10lld bytes: MPI_Iallreduce %9.3f ms, engine %9.3f ms, ratio %.3f\n", (long long)bytes, p, e, e / p);
}

/* The computation: a core of its own, or asleep as a program whose GPU computes. */
static double compute(double seconds, int busy)
{
    double start = MPI_Wtime();
    volatile double x = 1;
    if (!busy)
        nanosleep(&(struct timespec){ .tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - floor(seconds)) * 1e9) }, NULL);
    else
        for (long k = 0; k < (long)(seconds * 2e8); k++)
            x = x * 1.0000001 + 1e-9;
    return MPI_Wtime() - start;
}

static void overlap(trek_comm *comm, float *data, int64_t bytes, int busy)
{
    enum { REPETITIONS = 9 };
    double alone[REPETITIONS], computing[REPETITIONS], both[REPETITIONS], start;
    for (int k = 0; k < REPETITIONS; k++) {
        alone[k] = engine(comm, data, bytes / 4);
        MPI_Barrier(MPI_COMM_WORLD);
        computing[k] = compute(0.05, busy);
        MPI_Barrier(MPI_COMM_WORLD);
        start = MPI_Wtime();
        if (trek_comm_start(comm, call_of(data, bytes / 4)) != TREK_OK)
            fprintf(stderr, "rank %d: %s\n", rank, trek_error());
        compute(0.05, busy);
        trek_comm_finish(comm);
        both[k] = MPI_Wtime() - start;
    }
    double a = median_ms(alone, REPETITIONS), c = median_ms(computing, REPETITIONS), b = median_ms(both, REPETITIONS);
    if (rank == 0)
        printf("%10lld bytes started under %s: reduction %.1f ms, computation %.1f ms, both %.1f ms = %.2f x the longer\n",
               (long long)bytes, busy ? "a busy core" : "waiting", a, c, b, b / (a > c ? a : c));
}

int main(int argc, char **argv)
{
    int level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    int64_t most = (argc > 1 ? atoll(argv[1]) : 100) << 20;
    float *data = calloc(1, (size_t)(most > 25 << 20 ? most : 25 << 20));
    trek_comm *comm = NULL;
    if (!data || trek_comm_mpi_new(NULL, &comm) != TREK_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, trek_error());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    static const int64_t sizes[] = { 4 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20 };
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes && sizes[k] <= most; k++)
        compare(comm, data, sizes[k]);
    overlap(comm, data, 25 << 20, 0);
    overlap(comm, data, 25 << 20, 1);
    trek_comm_free(&comm);
    free(data);
    MPI_Finalize();
    return 0;
}
