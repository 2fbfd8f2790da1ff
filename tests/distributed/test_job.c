/* SPDX-License-Identifier: Apache-2.0 */
/* The same training on several processes, started by trek-run, against one
 * process on one device: batches divided among processes and then ranks, passes
 * per rank, windows, forwards that are split, losses that weigh differently, and
 * batches of which some processes get nothing. */
#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "distributed/comm/gloo/gloo.h"
#include "distributed/trainer_ranks.h"
#include "graph/flow.h"
#include "graph/graph_internal.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "optim/optimizers.h"
#include "optim/scaler.h"
#include "tensor/backend.h"
#include "tests/support/labelled.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/training.h"
#include "tests/support/unit.h"

static result many, one;

#define FORMAT "%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d"

/* What a process is told. */
typedef struct job {
    int processes, world, passes, batch, loss, separate, windows, gathered, clip, adam, uneven, engine, accumulate, mixed, pair,
        sharded, overlap; /* clip: +2: the loss is scaled */
} job;

enum { SHARED, GLOO, MPI }; /* engines */
enum { ONE_ON_CPUS = 1, GPUS_OF_ITS_OWN }; /* mixed */

/* 2 and above update whole parameters. */
static trek_optimizer_spec optimizer_of(int adam)
{
    const trek_optimizer_spec specs[] = { training_momentum(), training_adam(),
                                          trek_lamb(&(trek_lamb_opts){ .lr = 0.02, .weight_decay = 0.01 }),
                                          trek_adafactor(&(trek_adafactor_opts){ .lr = 0.02 }),
                                          trek_lars(&(trek_lars_opts){ .lr = 0.1, .trust_coefficient = 0.1, .momentum = 0.9 }) };
    return specs[adam];
}

static run run_of(const job *j)
{
    return (run){ .world = j->world, .passes = j->passes, .batch = j->batch, .loss = (loss_kind)j->loss, .separate = j->separate,
                  .windows = j->windows,
                  .gathered = j->gathered, .late = j->world > 1, .clip = j->clip & 1, .scaled = j->clip > 1,
                 
                  .accumulate = j->accumulate,
                  .sharded = j->sharded, .overlap = j->overlap,
                  .optimizer = optimizer_of(j->adam) };
}

/* Where a process has its ranks; NULL: where the tests are. With TREK_TEST_EACH_GPU each has a GPU of its own. */
static const trek_device *devices_of(const job *j, int process, trek_device *devices)
{
    bool on_cpu = j->mixed == ONE_ON_CPUS && process == 1, own = j->mixed == GPUS_OF_ITS_OWN,
        each = getenv("TREK_TEST_EACH_GPU") != NULL;
    if (!on_cpu && !each && !own)
        return NULL;
    for (int r = 0; r < 5; r++)
        devices[r] = on_cpu ? trek_cpu(r) : own ? trek_cuda(process * j->world + r)
            : trek_cuda(process % trek_device_count(TREK_CUDA));
    return devices;
}

/* --- processes whose devices are unequal, though each one's own are alike ------------------------------------ */

static trek_status other_model(int index, trek_device_info *info)
{
    trek_status status = trek_cpu_backend()->info(index, info);
    snprintf(info->name, sizeof info->name, "another CPU");
    return status;
}

static int lines_of_devices;
static char line_of_devices[512];

static void keep_line(trek_log_level level, const char *message, void *arg)
{
    if (!strstr(message, "devices differ"))
        return;
    lines_of_devices++;
    snprintf(line_of_devices, sizeof line_of_devices, "%s", message);
}

/* Process 1 has another model of CPU; process 0 has `ranks` ranks. With default options all turn to windows, or, where the loop
 * has none, move shares; process 0 says why, once. The number of the check that fails. */
static int child_of_unequal(int ranks, bool windows)
{
    static trek_backend other;
    trek_comm *comm = trek_comm_init(NULL);
    int process = comm ? trek_comm_rank(comm) : -1;
    other = *trek_cpu_backend();
    other.info = other_model;
    if (process == 1)
        trek_backends[TREK_CPU] = &other;
    trek_log_set(TREK_LOG_LEVEL_WARNING, keep_line, NULL);
    loss_kind kind = BY_ROWS;
    trek_loader *loader = trek_loader_new(training_dataset(), &(trek_loader_opts){ .batch_size = 2 });
    trek_graph *graph = training_build(trek_cpu(0), NULL);
    if (!comm || trek_graph_set_loader(graph, loader, "x") != TREK_OK ||
        trek_graph_set_loss(graph, training_loss, &kind) != TREK_OK)
        return 10;
    trek_device devices[2] = { trek_cpu(0), trek_cpu(1) };
    trek_trainer_opts opts = { .build_replica = training_build, .devices = devices, .ranks = process == 0 ? ranks : 1,
                               .optimizer = training_momentum(), .max_anchor = windows ? 0 : TREK_OFF, .comm = comm };
    trek_trainer_workload workload;
    if (trek_trainer_setup(graph, &opts) != TREK_OK || trek_trainer_describe(graph, &workload) != TREK_OK)
        return 11;
    if (workload.windows != windows)
        return 12;
    if (lines_of_devices != (process == 0))
        return 13;
    if (process == 0 && !(strstr(line_of_devices, " on another CPU (") && strstr(line_of_devices, "GiB), rank") &&
                          strstr(line_of_devices, windows ? "windows" : "shares")))
        return 14;
    trek_graph_start(graph, 0);
    for (trek_batch *batch; (batch = trek_graph_next(graph));)
        if (!trek_graph_train_batch(graph, batch) || trek_graph_step(graph) != TREK_OK)
            return fprintf(stderr, "%s\n", trek_error()), 15;
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    trek_comm_free(&comm);
    return trek_error_status() == TREK_OK ? 0 : 16;
}

/* Two groups of the job's four processes train each a model of its own, one for twice as many epochs; in a group all come to the
 * same parameters. */
static int child_of_groups(void)
{
    trek_comm *comm = trek_comm_init(NULL);
    int process = trek_comm_rank(comm), n = trek_comm_world_size(comm);
    trek_comm *group = trek_comm_split(comm, process % 2, -process);
    loss_kind kind = BY_ROWS;
    trek_loader *loader = trek_loader_new(training_dataset(), &(trek_loader_opts){ .batch_size = 6 });
    trek_graph *graph = training_build(trek_cpu(0), NULL);
    if (!group || trek_graph_set_loader(graph, loader, "x") != TREK_OK ||
        trek_graph_set_loss(graph, training_loss, &kind) != TREK_OK)
        return 20;
    trek_trainer_opts opts = { .build_replica = training_build, .optimizer = training_momentum(), .max_anchor = TREK_OFF,
                               .comm = group };
    trek_trainer_workload workload;
    if (trek_trainer_setup(graph, &opts) != TREK_OK || trek_trainer_describe(graph, &workload) != TREK_OK)
        return fprintf(stderr, "%s\n", trek_error()), 21;
    if (n != 4 || workload.ranks != 2 || workload.rank != (process < 2))
        return 22;
    for (int epoch = 0; epoch < 1 + process % 2; epoch++) {
        trek_graph_start(graph, epoch);
        for (trek_batch *batch; (batch = trek_graph_next(graph));)
            if (!trek_graph_train_batch(graph, batch) || trek_graph_step(graph) != TREK_OK)
                return fprintf(stderr, "%s\n", trek_error()), 23;
    }
    const double *values = trek_tensor_data(trek_var_data(trek_module_find(trek_graph_module(graph), "0.w1")));
    double least = values[0], most = least;
    bool good = trek_comm_all_reduce_scalar(group, &least, TREK_REDUCTION_MIN) == TREK_OK &&
                trek_comm_all_reduce_scalar(group, &most, TREK_REDUCTION_MAX) == TREK_OK && least == most;
    double low = least, high = least; /* of all four: the groups have come to different ones */
    good = good && trek_comm_all_reduce_scalar(comm, &low, TREK_REDUCTION_MIN) == TREK_OK &&
           trek_comm_all_reduce_scalar(comm, &high, TREK_REDUCTION_MAX) == TREK_OK && low < high;
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    trek_comm_free(&group);
    trek_comm_free(&comm);
    return good && trek_error_status() == TREK_OK ? 0 : 24;
}

/* Process p has the p-th budget, or none where it is 0. All processes learn which is too small, and how much it would have to be;
 * otherwise they train. too_small: the number of that process, or -1. */
static int child_of_budgets(const double *mib, int too_small)
{
    trek_comm *comm = trek_comm_init(NULL);
    int process = comm ? trek_comm_rank(comm) : -1;
    if (process < 0)
        return 30;
    int64_t budget = (int64_t)(mib[process] * (1 << 20));
    loss_kind kind = BY_ROWS;
    trek_loader *loader = trek_loader_new(training_dataset(), &(trek_loader_opts){ .batch_size = 8 });
    trek_graph *graph = training_build(trek_cpu(0), NULL);
    trek_graph_set_loader(graph, loader, "x");
    trek_graph_set_loss(graph, training_loss, &kind);
    trek_trainer_opts opts = { .optimizer = training_adam(), .comm = comm, .shard = TREK_SHARD_STATE,
                               .memory_budget = budget ? &budget : NULL, .n_memory_budget = budget ? 1 : 0 };
    trek_status status = trek_trainer_setup(graph, &opts);
    char text[80];
    snprintf(text, sizeof text, ".memory_budget: %d for rank %d (cpu:0), which needs", (int)(mib[process] * (1 << 20)),
             too_small);
    if (too_small >= 0 && (status != TREK_ERR_MEMORY || (process == too_small && !strstr(trek_error(), text))))
        return fprintf(stderr, "%s\n", trek_error()), 31;
    if (too_small < 0) {
        trek_graph_start(graph, 0);
        for (trek_batch *batch; (batch = trek_graph_next(graph)); trek_graph_step(graph))
            trek_graph_train_batch(graph, batch);
        if (trek_error_status() != TREK_OK)
            return fprintf(stderr, "%s\n", trek_error()), 32;
    }
    trek_error_clear();
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    trek_comm_free(&comm);
    return 0;
}

static trek_graph *build_small(trek_device device, void *arg)
{
    (void)arg;
    trek_module *layers[] = { trek_nn_linear(6, 24, device), trek_nn_gelu(), trek_nn_linear(24, 10, device) };
    return trek_flow_build(trek_flow_from(trek_nn_sequential(layers, 3)));
}

/* Process 0 has a GPU, and the other one a CPU. The scaled loss overflows in the first steps, which nobody makes. All have the
 * same parameters in the end, since one process updates each. */
static int child_of_overflow(trek_shard level)
{
    trek_comm *comm = trek_comm_init(NULL);
    trek_device device = comm && trek_comm_rank(comm) == 0 ? trek_cuda(0) : trek_cpu(0);
    trek_loader *loader = trek_loader_new(labelled_tokens(48, 6, 10), &(trek_loader_opts){ .batch_size = 8 });
    trek_seed(3);
    trek_graph *graph = build_small(device, NULL);
    if (!comm || trek_graph_set_loader(graph, loader, "x") != TREK_OK ||
        trek_graph_set_loss(graph, labelled_loss, NULL) != TREK_OK)
        return 40;
    trek_trainer_opts opts = { .build_replica = build_small, .devices = &device, .ranks = 1, .comm = comm, .shard = level,
                               .max_anchor = TREK_OFF, .balance = TREK_OFF, .bucket_bytes = 1024, .optimizer = training_adam(),
                               .amp = { .scaling = 1, .scaler = { .init_scale = 0x1p127, .backoff_factor = 0x1p-60 } } };
    if (trek_trainer_setup(graph, &opts) != TREK_OK || labelled_epoch(graph, 0, 1) != TREK_OK)
        return fprintf(stderr, "%s\n", trek_error()), 41;
    trek_scope scope = trek_scope_begin();
    double sum = trek_var_item(trek_sum(trek_module_find(trek_graph_module(graph), "0.0.weight"), trek_dims_all(), false));
    double all[2] = { sum, -sum };
    bool good = trek_error_status() == TREK_OK && trek_grad_scaler_value(graph->scaler) < 0x1p100;
    trek_scope_end(scope);
    for (int k = 0; k < 2; k++)
        good = trek_comm_all_reduce_scalar(comm, &all[k], TREK_REDUCTION_MAX) == TREK_OK && good;
    if (!good || !isfinite(sum) || fabs(all[0] + all[1]) > 1e-5)
        return fprintf(stderr, "%g is up to %g in others; %s\n", sum, all[0], trek_error()), 42;
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    trek_comm_free(&comm);
    return trek_error_status() == TREK_OK ? 0 : 43;
}

/* A process of the job: process 0 leaves its result in the file. */
static int child(const char *text, const char *path)
{
    int ranks, windows, too_small;
    double mib[3];
    if (sscanf(text, "budgets,%lf,%lf,%lf,%d", &mib[0], &mib[1], &mib[2], &too_small) == 4) {
        alarm(60);
        return child_of_budgets(mib, too_small);
    }
    if (sscanf(text, "unequal,%d,%d", &ranks, &windows) == 2) {
        alarm(60);
        return child_of_unequal(ranks, windows);
    }
    int level;
    if (sscanf(text, "overflow,%d", &level) == 1) {
        alarm(60);
        return child_of_overflow((trek_shard)level);
    }
    if (strcmp(text, "groups") == 0) {
        alarm(60);
        return child_of_groups();
    }
    job j;
    if (sscanf(text, FORMAT, &j.processes, &j.world, &j.passes, &j.batch, &j.loss, &j.separate, &j.windows,
               &j.gathered, &j.clip, &j.adam, &j.uneven, &j.engine, &j.accumulate, &j.mixed, &j.pair, &j.sharded,
               &j.overlap) != 17)
        return 2;
    alarm(60);
    const char *names[] = { "shared", "gloo", "mpi" };
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .engine = names[j.engine] });
    if (!comm || trek_comm_world_size(comm) != j.processes) {
        fprintf(stderr, "%s\n", trek_error());
        return 4;
    }
    int rank = trek_comm_rank(comm);
    run c = run_of(&j);
    c.world = j.uneven && rank == 0 ? j.world + 1 : j.world; /* processes may have different numbers of ranks */
    trek_device devices[5];
    c.devices = devices_of(&j, rank, devices);
    if (j.pair)
        training_pair(&c, &many);
    else
        training_run(&c, &many);
    trek_comm_free(&comm);
    if (rank > 0)
        return 0;
    int file = open(path, O_WRONLY | O_TRUNC);
    bool written = file >= 0 && write(file, &many, sizeof many) == (ssize_t)sizeof many;
    return written && close(file) == 0 ? 0 : 3;
}

static int launch_text(const char *text, int n, int engine, const char *path)
{
    return processes_launch(n, engine == MPI, (const char *[]){ "TREK_TEST_CHILD", text, "TREK_TEST_FILE", path, NULL });
}

static int launch(const job *j, const char *path)
{
    char text[128];
    snprintf(text, sizeof text, FORMAT, j->processes, j->world, j->passes, j->batch, j->loss, j->separate,
             j->windows, j->gathered, j->clip, j->adam, j->uneven, j->engine, j->accumulate, j->mixed, j->pair, j->sharded,
             j->overlap);
    return launch_text(text, j->processes, j->engine, path);
}

static void compare(const job *j)
{
    char path[] = "/tmp/trek-test-job-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    int code = launch(j, path);
    ssize_t got = pread(file, &many, sizeof many, 0);
    close(file);
    unlink(path);
    if (code != 0 || got != (ssize_t)sizeof many)
        fail_msg("processes %d, ranks %d, loss %d, passes %d, windows %d, gathered %d, separate %d: status %d", j->processes,
                 j->world, j->loss,
                 j->passes, j->windows, j->gathered, j->separate, code);
    run c = run_of(j);
    if (j->windows) {
        training_on_one(&c, &many, &one);
    } else {
        c.world = 1;
        if (j->pair)
            training_pair(&c, &one);
        else
            training_run(&c, &one);
        trek_plan_free(&one.made);
    }
    training_compare(&c, &many, &one);
    for (int k = 0; j->gathered && !j->windows && !j->pair && k < one.passes; k++)
        assert_true(fabs(many.losses[k] - one.losses[k]) <= 1e-9 * (1 + fabs(one.losses[k])));
}

static void test_per_rank(void **state)
{
    for (int loss = 0; loss < N_LOSSES; loss++)
        for (int passes = 1; passes <= 2; passes++)
            compare(&(job){ .processes = 2 + (loss == 1), .world = 1 + (passes == 2), .passes = passes, .batch = 7, .loss = loss,
                            .adam = loss == 0,
                            .clip = loss == 2, .separate = loss == 1, .uneven = loss == 2 });
}

static void test_gathered(void **state)
{
    for (int loss = 0; loss < N_LOSSES; loss++)
        for (int passes = 1; passes <= 2; passes++)
            compare(&(job){ .processes = 2 + (loss == 0), .world = passes, .passes = passes, .batch = 7, .loss = loss,
                            .gathered = 1, .adam = loss == 0,
                            .clip = loss == 2, .separate = loss == 1, .uneven = loss == 2 });
}

static void test_windows(void **state)
{
    for (int loss = 0; loss < N_LOSSES; loss++)
        compare(&(job){ .processes = 2, .world = 1 + (loss == 1), .passes = 1 + (loss == 2), .batch = 2, .loss = loss,
                        .windows = 1, .adam = loss == 0,
                        .clip = loss == 0 });
}

/* The passes of a step are one large batch. */
static void test_accumulate(void **state)
{
    for (int loss = 0; loss < N_LOSSES; loss++)
        for (int gathered = 0; gathered < 2; gathered++)
            compare(&(job){ .processes = 2 + (loss == 0), .world = 1 + (loss == 1), .passes = 3 - gathered, .accumulate = 3,
                            .batch = 4 + 3 * gathered,
                            .loss = loss, .gathered = gathered, .adam = loss == 0, .clip = loss == 2, .separate = loss == 1,
                            .uneven = loss == 2 });
    compare(&(job){ .processes = 2, .world = 1, .passes = 2, .accumulate = 2, .batch = 2, .loss = BY_LABELS, .windows = 1,
                    .adam = 1 });
}

/* A teacher and weights of classes: set before setup where there is one rank a process, else after it. */
static void test_teacher(void **state)
{
    for (int gathered = 0; gathered < 2; gathered++)
        compare(&(job){ .processes = 2 + gathered, .world = 2 - gathered, .passes = 1, .batch = 7, .loss = BY_TEACHER,
                        .gathered = gathered, .separate = gathered });
}

/* Batches of 2 among 3 processes: one of them has nothing. */
static void test_without_samples(void **state)
{
    for (int gathered = 0; gathered < 2; gathered++)
        for (int passes = 1; passes <= 2; passes++)
            compare(&(job){ .processes = 3, .world = passes, .passes = passes, .batch = 2, .loss = BY_LABELS,
                            .gathered = gathered, .adam = 1 });
}

static void test_two_graphs(void **state)
{
    compare(&(job){ .processes = 3, .world = 1, .passes = 1, .batch = 7, .pair = 1 });
    compare(&(job){ .processes = 2, .world = 2, .passes = 1, .batch = 7, .pair = 1, .uneven = 1 });
}

/* Each process keeps and updates a part of the optimizer's state: alone, or for its ranks that share it. */
static void test_sharded(void **state)
{
    for (int loss = 0; loss < N_LOSSES; loss++)
        for (int gathered = 0; gathered < 2; gathered++)
            compare(&(job){ .processes = 2 + (loss + gathered) % 3, .world = 1 + (loss == 1),
                            .passes = 1 + (loss == 2), .batch = 7, .loss = loss, .gathered = gathered, .adam = loss == 0,
                            .clip = loss != 1, .separate = loss == 2, .uneven = loss == 1,
                            .sharded = 1 + gathered });
    compare(&(job){ .processes = 3, .world = 1, .passes = 3, .accumulate = 3, .batch = 5, .loss = BY_STATED, .adam = 1,
                    .sharded = 1 });
    compare(&(job){ .processes = 2, .world = 1, .passes = 1, .batch = 2, .loss = BY_LABELS, .windows = 1, .adam = 1, .clip = 1,
                    .sharded = 2 });
    compare(&(job){ .processes = 3, .world = 1, .passes = 1, .batch = 2, .loss = BY_LABELS, .adam = 1, .sharded = 1 });
    compare(&(job){ .processes = 2, .world = 1, .passes = 1, .batch = 7, .pair = 1, .sharded = 1 });
    for (int whole = 2; whole <= 4; whole++)
        for (int gathered = 0; gathered < 2; gathered++)
            compare(&(job){ .processes = 2 + (whole + gathered) % 3, .world = 1 + gathered,
                            .passes = 1 + gathered, .batch = 7, .loss = gathered ? BY_STATED : BY_LABELS, .gathered = gathered,
                            .clip = whole == 3, .adam = whole, .separate = whole == 2 && !gathered,
                            .uneven = whole == 4, .sharded = 2 - gathered });
}

/* And of gradients, which are reduced in every pass. */
static void compare_divided_gradients(int engine)
{
    for (int gathered = 0; gathered < 2; gathered++)
        for (int processes = 2; processes <= 4; processes++)
            compare(&(job){ .processes = processes, .world = 1, .passes = 2 - gathered, .batch = 7,
                            .loss = (processes + gathered) % N_LOSSES, .engine = engine, .clip = processes != 3,
                            .gathered = gathered, .adam = processes == 3, .sharded = 3 + processes % 2 });
    compare(&(job){ .processes = 3, .world = 1, .passes = 2, .batch = 17, .loss = BY_ROWS, .engine = engine, .sharded = 3 });
    compare(&(job){ .processes = 3, .world = 1, .passes = 3, .accumulate = 3, .batch = 5, .loss = BY_STATED, .engine = engine,
                    .adam = 1, .sharded = 4 });
    compare(&(job){ .processes = 3, .world = 1, .passes = 1, .batch = 2, .loss = BY_LABELS, .engine = engine, .adam = 1,
                    .sharded = 3 }); /* some have nothing to do */
    for (int whole = 2; whole <= 4; whole++)
        compare(&(job){ .processes = whole, .world = 1, .passes = 2, .batch = 7, .loss = BY_STATED, .engine = engine,
                        .gathered = whole == 2, .clip = whole == 3, .adam = whole, .sharded = 3 + whole % 2 });
}

static void test_divided_gradients(void **state)
{
    char why[256];
    for (int engine = SHARED; engine <= (test_on_cpu() ? GLOO : SHARED); engine++)
        if (engine == SHARED || trek_comm_gloo_there(why, sizeof why))
            compare_divided_gradients(engine);
    compare(&(job){ .processes = 2, .world = 1, .passes = 1, .batch = 7, .pair = 1, .sharded = 3 });
    for (int level = 1; level <= 6; level++) /* several ranks in each of several processes, which have parameters of their own */
        compare(&(job){ .processes = 2 + level % 2, .world = 2, .passes = 1 + level % 2, .batch = 9, .loss = level % N_LOSSES,
                        .clip = level % 3 > 0, .gathered = level % 2 == 0, .adam = level % 5, .separate = true,
                        .uneven = level == 4, .sharded = level });
}

/* And of parameters, which processes read from each other. */
static void test_divided_parameters(void **state)
{
    for (int processes = 2; processes <= 4; processes++)
        compare(&(job){ .processes = processes, .world = 1, .passes = 2, .batch = 7, .loss = processes % N_LOSSES,
                        .clip = processes != 3, .gathered = processes % 2 == 0, .adam = processes,
                        .sharded = 5 + processes % 2 });
    compare(&(job){ .processes = 3, .world = 1, .passes = 3, .accumulate = 3, .batch = 5, .loss = BY_STATED, .adam = 1,
                    .sharded = 5 });
    compare(&(job){ .processes = 3, .world = 1, .passes = 1, .batch = 2, .loss = BY_LABELS, .adam = 1, .sharded = 5 });
        /* some have nothing to do */
    compare(&(job){ .processes = 2, .world = 1, .passes = 1, .batch = 7, .pair = 1, .sharded = 6 });
}

/* By engines that reduce while backward goes on, also where one pass more follows than was announced. */
static void compare_sharded_overlap(int engine)
{
    for (int gathered = 0; gathered < 2; gathered++)
        for (int processes = 2; processes <= 4; processes++)
            compare(&(job){ .processes = processes, .world = 1, .passes = 2 - gathered, .batch = 7, .loss = BY_STATED,
                            .engine = engine, .clip = processes != 3, .gathered = gathered, .adam = processes == 3,
                            .sharded = 1 + processes % 2 });
    compare(&(job){ .processes = 3, .world = 1, .passes = 2, .batch = 17, .loss = BY_ROWS, .engine = engine, .sharded = 1 });
    compare(&(job){ .processes = 2, .world = 1, .passes = 2, .accumulate = 2, .batch = 7, .loss = BY_STATED, .engine = engine,
                    .adam = 1, .separate = 1, .sharded = 1 });
    compare(&(job){ .processes = 2, .world = 2, .passes = 1, .batch = 7, .loss = BY_LABELS, .engine = engine, .uneven = 1,
                    .sharded = 1 });
    for (int whole = 2; whole <= 4; whole++)
        compare(&(job){ .processes = whole, .world = 1, .passes = 2, .batch = 7, .loss = BY_STATED, .engine = engine,
                        .gathered = whole == 2, .clip = whole == 3, .adam = whole, .sharded = 1 + whole % 2 });
}

/* Over shared memory, which does not progress by itself, where it is wanted; over Gloo where it is not. */
static void test_overlap(void **state)
{
    char why[256];
    for (int engine = SHARED; engine <= GLOO; engine++) {
        if (engine == GLOO && !trek_comm_gloo_there(why, sizeof why))
            continue;
        for (int way = 0; way < 3; way++)
            compare(&(job){ .processes = 2 + way % 2, .world = 1, .passes = 1 + way % 2, .batch = 7, .loss = BY_STATED,
                            .engine = engine, .clip = way == 1, .adam = way == 2, .sharded = way == 2,
                            .overlap = engine == SHARED ? 1 : TREK_OFF });
    }
}

static void test_gloo(void **state)
{
    char why[256];
    if (!trek_comm_gloo_there(why, sizeof why)) {
        print_message("skipped: %s\n", why);
        skip();
    }
    for (int gathered = 0; gathered < 2; gathered++)
        for (int processes = 2; processes <= 4; processes++)
            compare(&(job){ .processes = processes, .world = 1 + gathered, .passes = 2, .batch = 7, .loss = BY_STATED,
                            .engine = GLOO, .clip = 1,
                            .gathered = gathered, .accumulate = 1 + gathered, .adam = gathered });
    compare(&(job){ .processes = 3, .world = 2, .passes = 2, .batch = 7, .loss = BY_STATED, .engine = GLOO, .clip = 1 });
    for (int gathered = 0; gathered < 2; gathered++) /* what was sent has a gradient that process 0 had no part of */
        compare(&(job){ .processes = 3, .world = 1, .passes = 2, .batch = 17, .loss = BY_ROWS, .engine = GLOO,
                        .gathered = gathered });
    compare(&(job){ .processes = 2, .world = 1, .passes = 1, .batch = 2, .loss = BY_LABELS, .engine = GLOO, .windows = 1,
                    .adam = 1 });
    compare(&(job){ .processes = 2, .world = 2, .passes = 1, .batch = 7, .loss = BY_LABELS, .engine = GLOO, .uneven = 1 });
    compare(&(job){ .processes = 2, .world = 1, .passes = 1, .batch = 7, .pair = 1, .engine = GLOO });
    if (test_on_cpu())
        compare_sharded_overlap(GLOO);
}

/* A process on CPUs among those on GPUs. */
static void test_mixed_devices(void **state)
{
    if (test_on_cpu())
        skip();
    for (int loss = 0; loss < N_LOSSES; loss++)
        compare(&(job){ .processes = 2 + (loss == 1), .world = 1 + (loss == 2), .passes = 1 + (loss == 1), .batch = 7,
                        .loss = loss, .adam = loss == 0,
                        .clip = loss == 2, .gathered = loss == 1, .mixed = 1 });
    compare(&(job){ .processes = 2, .world = 1, .passes = 1, .batch = 2, .loss = BY_LABELS, .windows = 1, .adam = 1,
                    .mixed = 1 });
    for (int k = 0; k < 12; k++) /* GPUs and CPUs keep parts of the same whole; those of the CPUs share a part up to level 1 */
        compare(&(job){ .processes = 2 + k % 2, .world = 1 + k % 3 / 2, .passes = 1 + k % 2, .batch = 9, .loss = k % N_LOSSES,
                        .clip = k % 4, .gathered = k % 2, .adam = k % 5, .separate = k > 1 && k % 3 == 2, .mixed = 1,
                        .sharded = 1 + k / 2 });
}

/* Steps that are skipped have the same exchanges on CPUs, which know it on the host, and on GPUs. */
static void test_mixed_devices_skip_steps(void **state)
{
    if (test_on_cpu())
        skip();
    for (int level = TREK_SHARD_STATE; level <= TREK_SHARD_PARAMETERS; level++) {
        char text[32];
        snprintf(text, sizeof text, "overflow,%d", level);
        int code = launch_text(text, 2, SHARED, "");
        if (code != 0)
            fail_msg("%s: status %d", text, code);
    }
}

/* Several GPUs in each of several processes. */
static void test_gpus_of_processes(void **state)
{
    if (test_on_cpu() || trek_device_count(TREK_CUDA) < 4)
        skip();
    for (int passes = 1; passes <= 2; passes++)
        compare(&(job){ .processes = 2, .world = 2, .passes = passes, .batch = 7, .loss = BY_LABELS, .gathered = passes == 1,
                        .clip = 1, .mixed = GPUS_OF_ITS_OWN });
    for (int level = 1; level <= 6; level++) /* each GPU of all has a part; one communicator joins them */
        compare(&(job){ .processes = 2, .world = 2, .passes = 1 + level % 2, .batch = 9, .loss = level % N_LOSSES,
                        .clip = level % 3 > 0, .gathered = level % 2 == 0, .adam = level % 5, .mixed = GPUS_OF_ITS_OWN,
                        .sharded = level });
}

/* Whether devices differ is decided from all processes' devices, not from each one's own. */
static void test_unequal_processes(void **state)
{
    for (int k = 0; k < 4; k++) {
        char text[32];
        snprintf(text, sizeof text, "unequal,%d,%d", 1 + k / 2, k % 2);
        int code = launch_text(text, 2, SHARED, "");
        if (code != 0)
            fail_msg("%s: status %d", text, code);
    }
}

static void test_budgets(void **state)
{
    static const char *const texts[] = { "budgets,8,16,4,-1", "budgets,8,0.001,4,1", "budgets,0.001,8,4,0", "budgets,0,8,4,-1",
                                         "budgets,0,0,0.001,2" };
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        int code = launch_text(texts[k], 3, SHARED, "");
        if (code != 0)
            fail_msg("%s: status %d", texts[k], code);
    }
}

static void test_groups(void **state)
{
    int code = launch_text("groups", 4, SHARED, "");
    if (code != 0)
        fail_msg("status %d", code);
}

/* Buckets are on their way while backward goes on; the second time one pass more follows than was announced. */
static void test_mpi(void **state)
{
    for (int gathered = 0; gathered < 2; gathered++)
        for (int passes = 1; passes <= 2; passes++)
            for (int accumulate = 1; accumulate <= passes; accumulate++)
                compare(&(job){ .processes = 2 + gathered, .world = 1, .passes = passes, .batch = 7, .loss = BY_STATED,
                                .engine = MPI, .clip = 1,
                                .gathered = gathered, .accumulate = accumulate, .adam = gathered });
    compare(&(job){ .processes = 2, .world = 1, .passes = 1, .batch = 2, .loss = BY_LABELS, .engine = MPI, .windows = 1,
                    .adam = 1 });
    if (test_on_cpu())
        compare(&(job){ .processes = 3, .world = 1, .passes = 2, .batch = 7, .loss = BY_STATED, .engine = MPI, .clip = 1,
                        .adam = 1, .sharded = 5 });
    compare(&(job){ .processes = 2, .world = 2, .passes = 1, .batch = 7, .loss = BY_LABELS, .engine = MPI });
    compare(&(job){ .processes = 2, .world = 1, .passes = 1, .batch = 7, .pair = 1, .engine = MPI });
    compare_sharded_overlap(MPI);
}

int main(void)
{
    const char *text = getenv("TREK_TEST_CHILD");
    setenv("TREK_FAKE_GPUS", "4", 0);
    if (text)
        return child(text, getenv("TREK_TEST_FILE"));
    if (!processes_launcher_there())
        return 77;
    const struct CMUnitTest with_mpi[] = { cmocka_unit_test(test_mpi) };
    if (getenv("TREK_TEST_MPI"))
        return cmocka_run_group_tests(with_mpi, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_per_rank), cmocka_unit_test(test_gathered), cmocka_unit_test(test_windows),
        cmocka_unit_test(test_accumulate), cmocka_unit_test(test_teacher), cmocka_unit_test(test_without_samples),
        cmocka_unit_test(test_two_graphs), cmocka_unit_test(test_sharded), cmocka_unit_test(test_divided_gradients),
        cmocka_unit_test(test_divided_parameters), cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_gloo),
        cmocka_unit_test(test_mixed_devices), cmocka_unit_test(test_mixed_devices_skip_steps),
        cmocka_unit_test(test_gpus_of_processes),
        cmocka_unit_test(test_unequal_processes), cmocka_unit_test(test_budgets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
