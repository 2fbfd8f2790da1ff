/* SPDX-License-Identifier: Apache-2.0 */
/* From the start of a process to its first training step done, and what memory
 * it then has beside the model. The program starts itself as the child. */
#include "bench.h"

#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static double resident_bytes(void)
{
    long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file) {
        if (fscanf(file, "%*d %lld", &pages) != 1)
            pages = 0;
        fclose(file);
    }
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static trek_graph *build(void)
{
    trek_flow *flow = trek_flow_from(trek_nn_linear(784, 256, trek_cpu(0)));
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_nn_linear(256, 10, trek_cpu(0)));
    return trek_flow_build(flow);
}

int bench_first_step(void)
{
    trek_graph *model = build();
    trek_graph_set_optimizer(model, trek_adam(&(trek_adam_opts){ .lr = 1e-3 }));
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(trek_tensor_rand(trek_dims(64, 784), TREK_F32, trek_cpu(0)));
    trek_var *labels = trek_var_from(trek_tensor_randint(0, 10, trek_dims(64), TREK_I64, trek_cpu(0)));
    trek_graph_backward(model, trek_cross_entropy(trek_graph_forward(model, x), labels));
    trek_graph_step(model);
    trek_scope_end(scope);
    if (trek_error_status() == TREK_OK) {
        /* weights, gradients and Adam's two moments, in f32 */
        double beside = resident_bytes() - 16.0 * (double)trek_module_param_count(trek_graph_module(model));
        printf("%.0f\n", beside);
        fflush(stdout);
    } else {
        fprintf(stderr, "%s\n", trek_error());
    }
    trek_graph_free(&model);
    return trek_error_status() != TREK_OK;
}

static bool spawn_once(double *beside)
{
    int ends[2];
    posix_spawn_file_actions_t actions;
    char *arguments[] = { "trek-bench", "--first-step", NULL };
    pid_t child;
    if (pipe(ends) != 0 || posix_spawn_file_actions_init(&actions) != 0)
        return false;
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    bool started = posix_spawn(&child, "/proc/self/exe", &actions, NULL, arguments, environ) == 0;
    close(ends[1]);
    char text[64] = { 0 };
    ssize_t got = started ? read(ends[0], text, sizeof text - 1) : -1;
    *beside = strtod(text, NULL);
    close(ends[0]);
    posix_spawn_file_actions_destroy(&actions);
    return got > 0;
}

static void start_run(void *state, int64_t times)
{
    (void)state;
    double beside = 0;
    for (int64_t t = 0; t < times; t++) {
        if (!spawn_once(&beside))
            trek_fail(TREK_ERR_STATE, "the child ended before its first step");
        int64_t begin = bench_now_ns();
        while (waitpid(-1, NULL, 0) > 0)
            continue;
        bench_leave_out(bench_now_ns() - begin); /* the child's end */
    }
    bench_note("resident_beside_model", beside);
}

static void *start_open(const bench_work *work)
{
    return (void *)(uintptr_t)work;
}

static void start_close(void *state)
{
    (void)state;
}

const bench_work bench_works_start[] = {
    { .name = "start", .what = "process start to first step of an MLP 784-256-10 done; resident memory beside the model",
      .open = start_open, .run = start_run, .close = start_close },
    { 0 },
};
