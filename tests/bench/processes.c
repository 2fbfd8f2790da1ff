/* SPDX-License-Identifier: Apache-2.0 */
/* A program of run_processes.py: all-reduce between processes, by trek. Each process is
 * started by trek-run. Rank 0 reads from standard input how often to measure, and prints
 * the times: the clock runs from a barrier to the end of the call on rank 0. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/comm/shared/shared.h"
#include "tensor/tensor_internal.h"
#include "tensor/trace.h"

static int number(const char *name)
{
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}

/* Rank 0's number on all ranks. */
static int64_t told(trek_comm *comm, int64_t value)
{
    return trek_comm_run(comm,
                         (trek_comm_call){
                             .kind = TREK_COMM_BROADCAST, .dtype = TREK_I64, .count = 1, .in = &value, .out = &value }) == TREK_OK
               ? value
               : 0;
}

static double check(const trek_tensor *tensor, int world)
{
    const float *values = (const float *)(const void *)tensor->data;
    double wrong = 0;
    for (int64_t i = 0; i < tensor->numel; i++)
        wrong += values[i] != (float)(world * (world + 1) / 2) * (float)(i % 1000);
    return wrong;
}

static int serve(trek_comm *comm, trek_tensor *tensor)
{
    char line[64];
    float *values = (float *)(void *)tensor->data;
    double wrong = 0;
    for (;;) {
        int64_t times = 0;
        if (comm->rank == 0 && fgets(line, sizeof line, stdin))
            times = atoi(line);
        if ((times = told(comm, times)) <= 0)
            return wrong > 0;
        for (int64_t k = 0; k < times; k++) {
            for (int64_t i = 0; i < tensor->numel; i++)
                values[i] = (float)(comm->rank + 1) * (float)(i % 1000);
            trek_comm_barrier(comm);
            int64_t begin = trek_clock_ns();
            trek_comm_all_reduce(comm, tensor, TREK_REDUCTION_SUM);
            int64_t end = trek_clock_ns();
            if (comm->rank == 0)
                printf("%s%lld", k ? " " : "", (long long)(end - begin));
            wrong += check(tensor, comm->world);
        }
        if (comm->rank == 0) {
            printf(" %g\n", wrong);
            fflush(stdout);
        }
        if (trek_error_status() != TREK_OK)
            return 1;
    }
}

int main(int argc, char **argv)
{
    int64_t bytes = (argc > 1 ? atoll(argv[1]) : 104857600), count = bytes / 4;
    trek_control *control = trek_control_join(&(trek_control_opts){ .process = number("TREK_RANK"),
                                                                    .processes = number("TREK_WORLD_SIZE"),
                                                                    .address = getenv("TREK_ADDRESS"),
                                                                    .port = number("TREK_PORT"),
                                                                    .token = getenv("TREK_TOKEN"),
                                                                    .join_s = 30 });
    trek_comm *comm = NULL;
    int failed = !control || trek_comm_shared_new(control, &comm) != TREK_OK;
    trek_comm *home = argc > 2 ? NULL : comm; /* a second argument: in ordinary memory */
    trek_tensor *tensor = failed ? NULL : trek_comm_zeros(home, trek_shape_make(&count, 1), TREK_F32, trek_cpu(0));
    failed = !tensor || serve(comm, tensor);
    if (failed)
        fprintf(stderr, "rank %d: %s\n", number("TREK_RANK"), trek_error());
    else if (number("TREK_RANK") == 0 && bytes > 1 << 20)
        fprintf(stderr, "%llu calls went directly\n", (unsigned long long)trek_comm_shared_direct(comm));
    trek_tensor_release(tensor);
    trek_comm_free(&comm);
    trek_control_free(&control);
    return failed;
}
