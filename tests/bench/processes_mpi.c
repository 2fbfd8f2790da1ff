/* SPDX-License-Identifier: Apache-2.0 */
/* A peer of run_processes.py: the same all-reduce by the installed MPI. argv: bytes, times. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int rank, world, times = argc > 2 ? atoi(argv[2]) : 5;
    long count = (argc > 1 ? atol(argv[1]) : 104857600) / 4;
    double wrong = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    float *values = malloc((size_t)count * sizeof *values);
    if (!values)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int k = 0; k < times; k++) {
        for (long i = 0; i < count; i++)
            values[i] = (float)(rank + 1) * (float)(i % 1000);
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, values, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        double end = MPI_Wtime();
        if (rank == 0)
            printf("%s%.0f", k ? " " : "", (end - begin) * 1e9);
        for (long i = 0; i < count; i++)
            wrong += values[i] != (float)(world * (world + 1) / 2) * (float)(i % 1000);
    }
    if (rank == 0)
        printf(" %g\n", wrong);
    free(values);
    MPI_Finalize();
    return 0;
}
