/* SPDX-License-Identifier: Apache-2.0 */
/* CPU ranks beside GPU ranks: all have rank 0's parameters to the bit after every step, buffers
 * are merged, a step that overflows is skipped by all, and the result is that of as
 * many CPU ranks. (Every way of a pass is in test_graph_loader, processes are in test_job.) */
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "distributed/ddp.h"
#include "distributed/stepper_internal.h"
#include "distributed/team/step.h"
#include "distributed/trainer.h"
#include "distributed/trainer_ranks.h"
#include "graph/amp.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "optim/scaler.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { IN = 6, HIDDEN = 9, ROWS = 12, STEPS = 6, MOST = 512, TENSORS = 16 };

static trek_graph *build(trek_device device, void *arg)
{
    trek_dtype dtype = *(const trek_dtype *)arg;
    trek_seed(5);
    trek_flow *flow = trek_flow_from(trek_nn_linear_with(
        &(trek_linear_opts){ .in = IN, .out = HIDDEN, .no_bias = true, .device = device, .dtype = dtype }));
        /* its gradient would be noise */
    trek_flow_through(flow, trek_nn_batch_norm1d_with(&(trek_batch_norm_opts){ .features = HIDDEN, .device = device,
                                                                               .dtype = dtype }));
    trek_flow_through(flow, trek_nn_linear_with(&(trek_linear_opts){ .in = HIDDEN, .out = 2, .device = device, .dtype = dtype }));
    return trek_flow_build(flow);
}

typedef struct values {
    int n, tensors;
    int end[TENSORS];         /* of each one's elements */
    char name[TENSORS][32];
    double of[MOST];
    double scale, norm;
} values;

static trek_status note(const char *name, trek_var *var, void *arg)
{
    values *to = arg;
    double *list = test_read(trek_var_data(var));
    for (int64_t i = 0; list && i < trek_var_numel(var) && to->n < MOST; i++)
        to->of[to->n++] = list[i];
    free(list);
    assert_true(to->tensors < TENSORS);
    snprintf(to->name[to->tensors], sizeof to->name[0], "%s", name);
    to->end[to->tensors++] = to->n;
    return TREK_OK;
}

static void read_graph(trek_graph *graph, values *to)
{
    to->n = to->tensors = 0;
    trek_module_each_param(trek_graph_module(graph), note, to);
    trek_module_each_buffer(trek_graph_module(graph), note, to);
    assert_true(to->n > 80 && to->n < MOST);
}

typedef struct run {
    const trek_device *devices;
    int world;
    trek_dtype dtype;
    bool scaled, adam;
    trek_shard shard;
} run;

static trek_graph *set_up(const run *c)
{
    trek_dtype dtype = c->dtype;
    trek_graph *graph = build(c->devices[0], &dtype);
    assert_non_null(graph);
    trek_trainer_opts opts = { .build_replica = build, .arg = &dtype, .devices = c->devices, .ranks = c->world,
                               .share_params = TREK_OFF, .shard = c->shard, .bucket_bytes = c->shard ? 1 << 10 : 0,
                               .balance = TREK_OFF,
                               .max_anchor = TREK_OFF, .max_grad_norm = 0.5,
                               .optimizer = c->adam ? trek_adam(&(trek_adam_opts){ .lr = 0.01 })
                               : trek_sgd(&(trek_sgd_opts){ .lr = 0.05, .momentum = 0.9 }) };
    if (c->scaled) /* the first step overflows */
        opts.amp = (trek_amp_opts){ .scaling = 1,
                                    .scaler = { .init_scale = 0x1p127, .backoff_factor = 0x1p-110, .growth_interval = 2 } };
    SUCCEEDS(trek_trainer_setup(graph, &opts));
    return graph;
}

static trek_var *rows(uint32_t stream, int64_t width, const run *c)
{
    float list[ROWS * IN];
    for (int i = 0; i < ROWS * width; i++)
        list[i] = 2 * test_number(stream, (uint32_t)i);
    trek_tensor *x = trek_tensor_from_data(list, trek_dims(ROWS, width), TREK_F32, c->devices[0]);
    trek_var *var = trek_cast(trek_var_from(x), c->dtype);
    return var;
}

/* All ranks alike, to the bit. */
static void check_ranks(trek_graph *graph, const run *c)
{
    static values first, other;
    read_graph(graph, &first);
    for (int r = 1; r < c->world; r++) {
        read_graph(trek_graph_replica(graph, r), &other);
        assert_int_equal(first.n, other.n);
        assert_memory_equal(first.of, other.of, (size_t)first.n * sizeof(double));
    }
}

/* start: what it begins with. */
static void train(const run *c, values *start, values *to)
{
    trek_graph *graph = set_up(c);
    const trek_team *team = trek_graph_ranks(graph)->team;
    assert_int_equal(team->sharers, c->shard == TREK_SHARD_NONE ? 1 : c->world);
    assert_int_equal(team->divides_grads, c->shard >= TREK_SHARD_GRADIENTS);
    assert_int_equal(team->divides_params, c->shard == TREK_SHARD_PARAMETERS);
    read_graph(graph, start);
    for (int s = 0; s < STEPS; s++) {
        trek_scope scope = trek_scope_begin();
        trek_var *error = trek_sub(trek_graph_forward(graph, rows(2 * (uint32_t)s, IN, c)), rows(2 * (uint32_t)s + 1, 2, c));
        trek_graph_backward(graph, trek_mean(trek_cast(trek_square(error), TREK_F32), trek_dims_all(), false));
        if (trek_graph_step(graph) != TREK_OK)
            fail_msg("step %d: %s", s, trek_error());
        trek_scope_end(scope);
        check_ranks(graph, c);
    }
    read_graph(graph, to);
    to->norm = trek_graph_grad_norm(graph);
    to->scale = c->scaled ? trek_grad_scaler_value(trek_graph_scaler(graph)) : 0;
    assert_int_equal(trek_error_status(), TREK_OK);
    trek_graph_free(&graph);
}

/* Training changes each tensor alike: the difference is small beside the change, and what the dtype rounds. */
static void compare_changes(const values *start, const values *mixed, const values *alike, double tolerance, double rounding,
                            int k)
{
    assert_int_equal(mixed->n, alike->n);
    for (int t = 0, i = 0; t < alike->tensors; t++) {
        double difference = 0, change = 0, size = 0;
        for (; i < alike->end[t]; i++) {
            difference += pow(mixed->of[i] - alike->of[i], 2);
            change += pow(alike->of[i] - start->of[i], 2);
            size += pow(alike->of[i], 2);
        }
        if (!(change > 0 && sqrt(difference) <= tolerance * sqrt(change) + rounding * sqrt(size)))
            fail_msg("run %d: %s was changed by %g, and differs by %g", k, alike->name[t], sqrt(change), sqrt(difference));
    }
}

static void compare(const trek_device *devices, int world, trek_shard shard)
{
    static values start, mixed, alike;
    const trek_device cpus[] = { trek_cpu(0), trek_cpu(1), trek_cpu(2) };
    for (int k = 0; k < 4; k++) {
        run c = { .devices = devices, .world = world, .dtype = k == 3 ? TREK_BF16 : TREK_F32, .scaled = k == 1, .adam = k == 2,
                  .shard = shard };
        train(&c, &start, &mixed);
        c.devices = cpus;
        c.shard = TREK_SHARD_NONE;
        train(&c, &start, &alike);
        double tolerance = k == 3 ? 0.02 : 1e-5;
        compare_changes(&start, &mixed, &alike, tolerance, k == 3 ? 0x1p-9 : 0x1p-23, k);
        assert_true(mixed.scale == alike.scale);
        assert_true(fabs(mixed.norm - alike.norm) <= tolerance * alike.norm);
    }
}

static void cpu_first(void **state)
{
    if (test_on_cpu())
        skip();
    compare((const trek_device[]){ trek_cpu(0), test_device() }, 2, TREK_SHARD_NONE);
}

static void gpu_first(void **state)
{
    if (test_on_cpu())
        skip();
    compare((const trek_device[]){ test_device(), trek_cpu(0), trek_cpu(1) }, 3, TREK_SHARD_NONE);
}

/* What is divided among CPUs and GPUs: the state, gradients, parameters. */
static void divided(void **state)
{
    if (test_on_cpu())
        skip();
    for (trek_shard shard = TREK_SHARD_STATE; shard <= TREK_SHARD_PARAMETERS; shard++) {
        compare((const trek_device[]){ trek_cpu(0), test_device(), test_device() }, 3, shard);
        compare((const trek_device[]){ test_device(), trek_cpu(0), test_device() }, 3, shard);
    }
}

static char line[512];

static void keep_line(trek_log_level level, const char *message, void *arg)
{
    if (strncmp(message, "trainer:", 8) == 0)
        snprintf(line, sizeof line, "%s", message);
}

/* From the environment; the log says what there is, and unequal devices have windows. */
static void found_and_named(void **state)
{
    if (test_on_cpu())
        skip();
    trek_dtype dtype = TREK_F32;
    trek_graph *graph = build(trek_cpu(0), &dtype);
    setenv("TREK_DEVICES", "cpu:0,cuda:0,cpu:1", 1);
    trek_log_set(TREK_LOG_LEVEL_INFO, keep_line, NULL);
    trek_status status = trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .arg = &dtype });
    trek_log_set(TREK_LOG_LEVEL_WARNING, NULL, NULL);
    unsetenv("TREK_DEVICES");
    SUCCEEDS(status);
    assert_non_null(strstr(line, "2 CPU ranks"));
    assert_non_null(strstr(line, "and 1 GPU rank on cuda:0"));
    trek_trainer_workload workload;
    assert_int_equal(trek_trainer_describe(graph, &workload), TREK_OK);
    assert_int_equal(workload.ranks, 3);
    assert_true(workload.windows);
    trek_graph_free(&graph);
}

static trek_status backward_rank(int rank, void *arg)
{
    trek_ddp *ddp = arg;
    trek_device device = rank == 1 ? trek_cuda(0) : trek_cpu(rank);
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(trek_tensor_full(trek_dims(3, IN), 1 + rank, TREK_F32, device));
    trek_backward(trek_mean(trek_square(trek_forward(trek_ddp_replica_module(ddp, rank), x)), trek_dims_all(), false));
    trek_scope_end(scope);
    return trek_ddp_reduce_gradients(ddp);
}

/* trek_ddp: replicas begin as rank 0's and have the same gradients. */
static void wrapped(void **state)
{
    if (test_on_cpu())
        skip();
    trek_module *models[3];
    for (int r = 0; r < 3; r++) {
        trek_seed(10 + (uint64_t)r);
        models[r] = trek_nn_linear(IN, 3, r == 1 ? trek_cuda(0) : trek_cpu(r));
    }
    trek_ddp *ddp = trek_ddp_wrap(models, 3, NULL);
    if (!ddp)
        fail_msg("%s", trek_error());
    SUCCEEDS(trek_ranks_run(trek_ddp_ranks(ddp), backward_rank, ddp));
    static values first, other;
    for (int r = 0; r < 3; r++) {
        values *to = r ? &other : &first;
        to->n = 0;
        for (int k = 0; k < 2; k++) {
            trek_var *param = trek_module_find(models[r], k ? "bias" : "weight");
            note("", param, to);
            note("", trek_var_grad(param), to);
        }
        assert_int_equal(to->n, 2 * (3 * IN + 3));
        assert_memory_equal(first.of, to->of, (size_t)to->n * sizeof(double));
    }
    trek_ddp_free(&ddp);
}

static trek_status take_to_cpu(int rank, void *arg)
{
    trek_tensor *there = arg, *here = trek_tensor_to(there, trek_cpu(rank));
    double sum = 0;
    for (int64_t k = 0; here && k < trek_tensor_numel(here); k++)
        sum += ((const float *)trek_tensor_data(here))[k];
    bool right = here && sum == 3.0 * (double)trek_tensor_numel(here);
    trek_tensor_release(here);
    return right ? TREK_OK : trek_error_status() != TREK_OK ? trek_error_status() : TREK_ERR_STATE;
}

/* Ranks on CPUs read what the caller computes on another device. */
static void on_another_device(void **state)
{
    const trek_device devices[] = { trek_cpu(0), trek_cpu(1), trek_cpu(2) };
    trek_ranks *ranks = trek_ranks_new(devices, 3);
    assert_non_null(ranks);
    for (int round = 0; round < 20; round++) {
        trek_scope scope = trek_scope_begin();
        trek_var *one = trek_var_new(trek_tensor_full(trek_dims(50000), 1.0, TREK_F32, test_device()), false);
        trek_var *three = trek_add(trek_add(one, one), one);
        for (int k = 0; k < 50; k++) /* so that the device is late */
            three = trek_mul(three, one);
        if (trek_ranks_run(ranks, take_to_cpu, trek_var_data(three)) != TREK_OK)
            fail_msg("round %d: %s", round, trek_error());
        trek_scope_end(scope);
    }
    trek_ranks_free(&ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(cpu_first), cmocka_unit_test(gpu_first), cmocka_unit_test(divided),
                                        cmocka_unit_test(found_and_named), cmocka_unit_test(wrapped),
                                        cmocka_unit_test(on_another_device) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
