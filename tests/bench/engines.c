/* SPDX-License-Identifier: Apache-2.0 */
/* All-reduce and barrier between the processes of a job over an engine, call by call.
 *   trek-run -n 4 trek-bench-engines gloo [most MiB [deadline]]    prints one line per size, on rank 0; "mpi" under mpirun */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/comm/comm_internal.h"
#include "tensor/trace.h"

enum { MOST = 200 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Milliseconds: the median over repetitions of the slowest rank's time. */
static double median_ms(trek_comm *comm, double *ms, int n)
{
    for (int k = 0; k < n; k++)
        trek_comm_all_reduce_scalar(comm, &ms[k], TREK_REDUCTION_MAX);
    qsort(ms, (size_t)n, sizeof *ms, by_value);
    return ms[n / 2];
}

static void measure(trek_comm *comm, int64_t bytes)
{
    static double ms[MOST];
    int64_t count = bytes / 4;
    int times = bytes <= 65536 ? MOST : bytes <= 1 << 20 ? 40 : 9;
    trek_tensor *tensor = trek_comm_zeros(comm, trek_shape_make(&count, 1), TREK_F32, trek_cpu(0));
    for (int k = -2; tensor && k < times; k++) { /* two to warm up */
        trek_comm_barrier(comm);
        int64_t begin = trek_clock_ns();
        if (bytes)
            trek_comm_all_reduce(comm, tensor, TREK_REDUCTION_SUM);
        else
            trek_comm_barrier(comm);
        if (k >= 0)
            ms[k] = (double)(trek_clock_ns() - begin) * 1e-6;
    }
    double median = median_ms(comm, ms, times);
    if (comm->rank == 0 && bytes)
        printf("%10lld bytes %9.3f ms, %7.1f MB/s\n", (long long)bytes, median, (double)bytes / median * 1e-3);
    else if (comm->rank == 0)
        printf("         barrier %9.3f ms\n", median);
    trek_tensor_release(tensor);
}

int main(int argc, char **argv)
{
    static const int64_t sizes[] = { 0, 4 << 10, 16 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20 };
    int64_t most = (argc > 2 ? atoll(argv[2]) : 100) << 20;
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .engine = argc > 1 ? argv[1] : NULL,
                                                        .deadline_s = argc > 3 ? atof(argv[3]) : 0 });
    for (size_t k = 0; comm && k < sizeof sizes / sizeof *sizes && sizes[k] <= most; k++)
        measure(comm, sizes[k]);
    trek_comm_free(&comm);
    if (trek_error_status() != TREK_OK)
        fprintf(stderr, "%s\n", trek_error());
    return trek_error_status() != TREK_OK;
}
