/* SPDX-License-Identifier: Apache-2.0 */
/* How much of the reduction between processes hides under backward: layers of one width,
 * one rank in each process, each on a GPU of its own (or on the CPU). Started by trek-run;
 * rank 0 prints one line of JSON. Status 77 and the reason where nothing can be measured.
 *   trek-run -n 2 trek-bench-overlap [--device cuda|cpu] [--width N] [--layers N] [--rows N] [--rounds N] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/ops.h"
#include "distributed/comm/comm.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/passes.h"
#include "nn/layers.h"
#include "tensor/creation.h"
#include "tensor/devices.h"
#include "tensor/trace.h"

static int width = 4096, layers = 8, rows = 4096, rounds = 10;
static bool on_cpu;

static trek_graph *build(trek_device device, void *arg)
{
    (void)arg;
    trek_flow *flow = trek_flow_from(trek_nn_linear(width, width, device));
    for (int k = 1; k < layers; k++)
        trek_flow_through(flow, trek_nn_linear(width, width, device));
    return trek_flow_build(flow);
}

typedef struct work {
    trek_graph *graph;
    trek_comm *comm;
    trek_device device;
    trek_var *x;
} work;

static void set_up(const work *w, int accumulate)
{
    trek_trainer_opts opts = { .build_replica = build, .devices = &w->device, .ranks = 1, .comm = w->comm,
                               .accumulate = accumulate,
                               .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 1e-6 }) };
    trek_trainer_setup(w->graph, &opts);
}

static void settle(const work *w)
{
    if (w->device.type != TREK_CPU)
        trek_device_sync(w->device);
}

static void pass(const work *w)
{
    trek_scope scope = trek_scope_begin();
    trek_graph_backward(w->graph, trek_mean(trek_square(trek_graph_forward(w->graph, w->x)), trek_dims_all(), false));
    trek_scope_end(scope);
}

typedef enum part { COMPUTE, REDUCTION, SERIAL, HIDDEN, N_PARTS } part;

/* Milliseconds of one round of it, from a barrier on. */
static double time_part(const work *w, part what)
{
    if (what == REDUCTION)
        pass(w);
    settle(w);
    trek_comm_barrier(w->comm);
    int64_t begin = trek_clock_ns();
    if (what == REDUCTION)
        trek_graph_reduce(w->graph);
    else
        pass(w);
    if (what == SERIAL || what == HIDDEN)
        trek_graph_step(w->graph);
    settle(w);
    double ms = (double)(trek_clock_ns() - begin) * 1e-6;
    if (what != SERIAL && what != HIDDEN)
        trek_graph_zero_grad(w->graph);
    return ms;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median over rounds of what the slowest process needs. */
static double median(const work *w, part what)
{
    double times[100];
    set_up(w, what == HIDDEN ? 1 : 2); /* with 2 the first pass does not send */
    time_part(w, what);
    for (int k = 0; k < rounds; k++) {
        times[k] = time_part(w, what);
        trek_comm_all_reduce_scalar(w->comm, &times[k], TREK_REDUCTION_MAX);
    }
    qsort(times, (size_t)rounds, sizeof *times, compare);
    return times[rounds / 2];
}

static bool take_options(int count, char **words)
{
    for (int k = 1; k + 1 < count; k += 2) {
        int value = atoi(words[k + 1]);
        if (strcmp(words[k], "--device") == 0)
            on_cpu = strcmp(words[k + 1], "cpu") == 0;
        else if (strcmp(words[k], "--width") == 0)
            width = value;
        else if (strcmp(words[k], "--layers") == 0)
            layers = value;
        else if (strcmp(words[k], "--rows") == 0)
            rows = value;
        else if (strcmp(words[k], "--rounds") == 0)
            rounds = value;
        else
            return false;
    }
    return count % 2 == 1 && width > 0 && layers > 0 && rows > 0 && rounds > 0 && rounds <= 100;
}

static int measure(trek_comm *comm)
{
    int rank = trek_comm_rank(comm), gpus = on_cpu ? 0 : trek_device_count(TREK_CUDA);
    work w = { .comm = comm, .device = on_cpu ? trek_cpu(0) : trek_cuda(rank % (gpus > 0 ? gpus : 1)) };
    trek_scope scope = trek_scope_begin();
    trek_seed(1);
    w.graph = build(w.device, NULL);
    w.x = trek_var_from(trek_tensor_full(trek_dims(rows, width), 0.1, TREK_F32, w.device));
    double ms[N_PARTS];
    for (int k = 0; k < N_PARTS; k++)
        ms[k] = median(&w, (part)k);
    double update = ms[SERIAL] - ms[COMPUTE] - ms[REDUCTION];
    double busy = ms[COMPUTE] + (update > 0 ? update : 0), longer = busy > ms[REDUCTION] ? busy : ms[REDUCTION];
    if (rank == 0 && trek_error_status() == TREK_OK)
        printf("{\"name\": \"overlap\", \"processes\": %d, \"gradient_MiB\": %.1f, \"compute_ms\": %.3f, \"reduction_ms\": %.3f, "
               "\"one_after_the_other_ms\": %.3f, \"step_ms\": %.3f, \"step_over_longer\": %.3f, \"goal\": 1.1}\n",
               trek_comm_world_size(comm), (double)layers * width * (width + 1.0) * 4 / 0x1p20, ms[COMPUTE], ms[REDUCTION],
               ms[SERIAL], ms[HIDDEN],
               ms[HIDDEN] / longer);
    trek_graph_free(&w.graph);
    trek_scope_end(scope);
    return trek_error_status() == TREK_OK ? 0 : 1;
}

int main(int count, char **words)
{
    if (!take_options(count, words)) {
        fprintf(stderr,
                "usage: trek-run -n 2 trek-bench-overlap [--device cuda|cpu] [--width N] [--layers N] [--rows N] [--rounds N]\n");
        return 2;
    }
    if (!on_cpu && trek_device_count(TREK_CUDA) < 2) {
        printf("one GPU: reduction under backward by NCCL needs two\n");
        return 77;
    }
    trek_comm *comm = trek_comm_init(NULL);
    int code = comm ? measure(comm) : 1;
    if (code != 0)
        fprintf(stderr, "%s\n", trek_error());
    trek_comm_free(&comm);
    return code;
}
