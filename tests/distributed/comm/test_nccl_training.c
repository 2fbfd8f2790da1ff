/* SPDX-License-Identifier: Apache-2.0 */
/* Training whose gradients go from GPU to GPU by the device's own library, against the way through the host and against one
 * device; and whether they are on their way while backward goes on. Skipped by name where there is no library. */
#include "autograd/function.h"
#include "autograd/ops.h"
#include "distributed/comm/comm_internal.h"
#include "distributed/ddp.h"
#include "distributed/ranks.h"
#include "distributed/stepper_internal.h"
#include "distributed/trainer.h"
#include "graph/capture.h"
#include "graph/flow.h"
#include "graph/graph_loader.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "tensor/rank_context.h"
#include "tests/distributed/comm/gpus.h"
#include "tests/support/refused.h"
#include "tests/support/training.h"

static trek_graph *build(trek_device device, void *arg)
{
    trek_flow *flow = trek_flow_from(trek_nn_linear(6, 16, device));
    flow = trek_flow_through(flow, trek_nn_relu());
    return trek_flow_build(trek_flow_through(flow, trek_nn_linear(16, 3, device)));
}

static trek_status train_step(trek_graph *graph, void *arg)
{
    trek_var *y = trek_graph_forward(graph, trek_graph_captured_input(graph, 0));
    trek_var *loss = trek_mse_loss(y, trek_graph_captured_input(graph, 1));
    trek_graph_backward(graph, loss);
    return trek_graph_step(graph);
}

static int warnings;

static void count_warnings(trek_log_level level, const char *message, void *arg)
{
    warnings += level == TREK_LOG_LEVEL_WARNING && strstr(message, "through host memory") && strstr(message, "not recorded");
}

/* Two ranks; the parameters after some steps. With trek_graph_capture, which without NCCL does each step call by call, and says
 * so once. (Captured steps of several ranks: test_captured_ranks.) */
static double *train_two(const char *nccl, int64_t replays)
{
    setenv("TREK_NCCL", nccl, 1);
    trek_seed(8);
    trek_graph *graph = build(trek_cuda(0), NULL);
    trek_device devices[2] = { trek_cuda(0), trek_cuda(1) };
    SUCCEEDS(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .devices = devices, .ranks = 2,
                                                             .optimizer = trek_adam(&(trek_adam_opts){ .lr = 0.01 }) }));
    unsetenv("TREK_NCCL");
    trek_tensor *x = test_tensor(1, trek_dims(11, 6), 1), *y = test_tensor(2, trek_dims(11, 3), 1);
    for (int k = 0; k < 8; k++) {
        trek_scope scope = trek_scope_begin();
        trek_graph_capture_input(graph, 0, trek_var_constant(x));
        trek_graph_capture_input(graph, 1, trek_var_constant(y));
        if (trek_graph_capture(graph, train_step, NULL) != TREK_OK)
            fail_msg("step %d: %s", k, trek_error());
        trek_scope_end(scope);
    }
    assert_int_equal(trek_graph_replays(graph), replays);
    assert_int_equal(trek_graph_steps(graph), 8);
    double *values = test_read(trek_var_data(trek_module_find(trek_graph_module(graph), "0.weight")));
    trek_tensor_release(x);
    trek_tensor_release(y);
    trek_graph_free(&graph);
    return values;
}

static void test_training(void **state)
{
    if (skipped(2))
        skip();
    trek_log_set(TREK_LOG_LEVEL_WARNING, count_warnings, NULL);
    warnings = 0;
    double *by_host = train_two("0", 0);
    assert_int_equal(warnings, 1);
    double *by_nccl = train_two("", 4);
    assert_int_equal(warnings, 1);
    trek_log_set(TREK_LOG_LEVEL_WARNING, NULL, NULL);
    assert_non_null(by_host);
    assert_non_null(by_nccl);
    for (int i = 0; i < 6 * 16; i++) /* a sum of two has one order */
        if (by_host[i] != by_nccl[i])
            fail_msg("weight %d: %.17g by the host, %.17g by NCCL", i, by_host[i], by_nccl[i]);
    free(by_host);
    free(by_nccl);
}

/* --- reduction under backward ------------------------------------------------------------------------- */

/* The first layer of a model of its own, the last that backward comes to: how many calls its rank has made by then. */
static struct {
    bool failing;               /* on rank 1 */
    uint64_t calls[2];
    trek_ranks *ranks;
} under;

static trek_status same_forward(trek_function_context *context, trek_var *const *inputs, int n_inputs, trek_var **outputs,
                                int n_outputs)
{
    outputs[0] = trek_mul_scalar(inputs[0], 1);
    return trek_error_status();
}

static trek_status noting_backward(trek_function_context *context, trek_var *const *grads, int n_grads, trek_var **input_grads,
                                   int n_inputs)
{
    int rank = trek_rank_here.rank;
    under.calls[rank] = trek_ranks_comm(under.ranks, rank)->calls;
    input_grads[0] = grads[0];
    return under.failing && rank == 1 ? trek_fail(TREK_ERR_CALLBACK, "rank 1 has had enough") : TREK_OK;
}

static const trek_function noting = { .name = "noting", .forward = same_forward, .backward = noting_backward };

static trek_var *noting_forward(trek_module *self, trek_var *x)
{
    return trek_function_apply_one(&noting, NULL, &x, 1);
}

static const trek_module_class noting_class = { .name = "noting", .size = sizeof(trek_module), .forward = noting_forward };

static trek_module *layers(trek_device device)
{
    trek_module *list[] = { trek_nn_linear(6, 5, device), trek_module_new(&noting_class), trek_nn_linear(5, 16, device),
                            trek_nn_tanh(), trek_nn_linear(16, 3, device) };
    return trek_nn_sequential(list, 5);
}

static trek_graph *build_noting(trek_device device, void *arg)
{
    return trek_flow_build(trek_flow_from(layers(device)));
}

enum { ROWS = 11, VALUES = 3 };
typedef enum way { GATHERED, TWICE, BESIDE, PER_RANK, MORE, HOOKED, N_WAYS } way;
static const char *const way_names[N_WAYS] = { "gathered", "two forwards", "a penalty beside", "per rank", "a pass more",
                                               "a hook" };

static trek_var *twice(trek_var *var, trek_var *grad, void *arg)
{
    return trek_mul_scalar(grad, 2);
}

static trek_var *loss_of_batch(trek_graph *graph, trek_var *y, const trek_batch *batch, void *arg)
{
    return trek_mse_loss(y, trek_batch_get(batch, "y"));
}

/* One pass of a step; the gradients' way to the other rank is what is tested. */
static trek_status pass_under(trek_graph *graph, way how, trek_loader *loader, trek_tensor *x, trek_tensor *y)
{
    if (how == PER_RANK || how == MORE)
        return trek_graph_train_batch(graph, trek_loader_next(loader)) ? TREK_OK : trek_error_status();
    trek_var *in = trek_var_constant(x), *out = trek_var_constant(y), *penalty = NULL;
    if (how == BESIDE) { /* recorded before the forward: complete after the ranks' parts */
        trek_var *w = trek_module_find(trek_graph_module(graph), "0.4.weight");
        penalty = trek_mul_scalar(trek_sum(trek_mul(w, w), trek_dims_all(), false), 0.1);
    }
    trek_var *loss = trek_mse_loss(trek_graph_forward(graph, in), out);
    if (how == TWICE)
        loss = trek_add(loss, trek_mse_loss(trek_graph_forward(graph, trek_mul_scalar(in, 0.5)), out));
    return trek_graph_backward(graph, penalty ? trek_add(loss, penalty) : loss);
}

/* The parameters after three steps. */
static void train_under(const char *nccl, way how, bool fails, double *values)
{
    trek_tensor *x = test_tensor(1, trek_dims(ROWS, 6), 1), *y = test_tensor(2, trek_dims(ROWS, 3), 1);
    trek_dataset *data = trek_dataset_tensors((const char *[]){ "x", "y" }, (trek_tensor *[]){ x, y }, 2);
    trek_loader *loader = trek_loader_new(data, &(trek_loader_opts){ .batch_size = ROWS });
    setenv("TREK_NCCL", nccl, 1);
    trek_seed(8);
    trek_graph *graph = build_noting(trek_cuda(0), NULL);
    trek_device devices[2] = { trek_cuda(0), trek_cuda(1) };
    trek_graph_set_loader(graph, loader, "x");
    trek_graph_set_loss(graph, loss_of_batch, NULL);
    SUCCEEDS(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build_noting, .devices = devices, .ranks = 2,
                                                             .bucket_bytes = 64, .max_anchor = TREK_OFF,
                                                             .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.1 }) }));
    unsetenv("TREK_NCCL");
    if (how == HOOKED) /* of rank 0's part, which is sent as the hook leaves it */
        trek_var_on_grad(trek_module_find(trek_graph_module(graph), "0.4.bias"), twice, NULL);
    under.ranks = trek_graph_ranks(graph)->team->ranks;
    bool by_nccl = trek_ranks_comm(under.ranks, 0)->nccl != NULL;
    assert_int_equal(by_nccl, !*nccl);
    for (int step = 0; step < 3; step++) {
        trek_scope scope = trek_scope_begin();
        trek_loader_start(loader, step);
        under.failing = fails && step == 1;
        uint64_t before[2] = { trek_ranks_comm(under.ranks, 0)->calls, trek_ranks_comm(under.ranks, 1)->calls };
        trek_status status = pass_under(graph, how, loader, x, y);
        if (under.failing) {
            FAILS(status, TREK_ERR_CALLBACK, "");
            assert_int_equal(trek_graph_zero_grad(graph), TREK_OK);
            trek_scope_end(scope);
            continue;
        }
        for (int r = 0; r < 2 && status == TREK_OK; r++)
            if ((under.calls[r] > before[r]) != (by_nccl && how != BESIDE))
                fail_msg("%s, step %d: rank %d has sent %d buckets before its backward ended", way_names[how], step, r,
                         (int)(under.calls[r] - before[r]));
        if (how == MORE) {
            trek_loader_start(loader, step + 1);
            status = pass_under(graph, how, loader, x, y);
        }
        if (status != TREK_OK || trek_graph_step(graph) != TREK_OK)
            fail_msg("%s, step %d: %s", way_names[how], step, trek_error());
        trek_scope_end(scope);
    }
    double *weight = test_read(trek_var_data(trek_module_find(trek_graph_module(graph), "0.4.bias")));
    memcpy(values, weight, VALUES * sizeof *values);
    free(weight);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    trek_tensor_release(x);
    trek_tensor_release(y);
}

static void test_under_backward(void **state)
{
    if (skipped(2))
        skip();
    for (int how = 0; how < N_WAYS; how++)
        for (int fails = 0; fails < 2; fails++) {
            double by_host[VALUES], by_nccl[VALUES];
            train_under("0", (way)how, fails, by_host);
            train_under("", (way)how, fails, by_nccl);
            for (int i = 0; i < VALUES; i++)
                if (!(fabs(by_host[i] - by_nccl[i]) <= 1e-6 * (1 + fabs(by_host[i]))))
                    fail_msg("%s, weight %d: %.17g by the host, %.17g by NCCL", way_names[how], i, by_host[i], by_nccl[i]);
        }
}

/* Whatever weighs the passes, and however many there are, against one device. */
static void test_exactness(void **state)
{
    static result many, one;
    trek_device devices[5] = { trek_cuda(0), trek_cuda(1), trek_cuda(2) };
    bool brief = getenv("TREK_TEST_SHORT") != NULL; /* each way once */
    for (int world = 2; world <= 3; world++) {
        if (skipped(world))
            skip();
        for (int loss = 0; loss < N_LOSSES; loss++)
            for (int passes = 1; passes <= 2; passes++)
                for (int how = 0; how < 4; how++) {
                    if (brief && (loss + passes + how + world) % 4 != 0)
                        continue;
                    run c = { .world = world, .passes = passes, .batch = how == 2 ? 2 : world == 2 ? 5 : 8,
                              .loss = (loss_kind)loss, .clip = passes == 2, .gathered = how == 1, .windows = how == 2,
                              .accumulate = how == 3 ? 2 : 0, .devices = devices, .optimizer = training_momentum() };
                    training_run(&c, &many);
                    training_on_one(&c, &many, &one);
                    training_compare(&c, &many, &one);
                    trek_plan_free(&many.made);
                }
    }
}

/* The same of a wrapper's passes, each rank's own and joined ones. */
typedef struct wrapped {
    trek_ddp *ddp;
    trek_module *models[2];
    trek_tensor *x, *y;
} wrapped;

static trek_status wrapped_pass(int rank, void *arg)
{
    const wrapped *w = arg;
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(trek_tensor_to(w->x, trek_cuda(rank))), *y = trek_var_from(trek_tensor_to(w->y, trek_cuda(rank)));
    trek_var *loss = trek_mse_loss(trek_forward(w->models[rank], x), y);
    trek_status status = trek_ddp_backward_weighted(w->ddp, loss, 1 + rank);
    trek_scope_end(scope);
    return status;
}

static void test_wrapper_under_backward(void **state)
{
    if (skipped(2))
        skip();
    for (int overlap = 0; overlap < 2; overlap++) {
        wrapped w = { .models = { layers(trek_cuda(0)), layers(trek_cuda(1)) }, .x = test_tensor(1, trek_dims(ROWS, 6), 1),
                      .y = test_tensor(2, trek_dims(ROWS, 3), 1) };
        w.ddp = trek_ddp_wrap(w.models, 2, &(trek_ddp_opts){ .bucket_bytes = 64, .overlap = overlap ? 0 : TREK_OFF });
        assert_non_null(w.ddp);
        under.ranks = trek_ddp_ranks(w.ddp);
        uint64_t before = trek_ranks_comm(under.ranks, 0)->calls;
        SUCCEEDS(trek_ranks_run(under.ranks, wrapped_pass, &w));
        for (int r = 0; r < 2; r++) /* one call tells the ranks' weights before */
            assert_int_equal(under.calls[r] > before + 1, overlap);
        trek_ddp_free(&w.ddp);
        trek_tensor_release(w.x);
        trek_tensor_release(w.y);
    }
}

int main(void)
{
    setenv("TREK_FAKE_GPUS", "3", 0); /* where the GPUs are made up (fake_cuda), there are enough */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training), cmocka_unit_test(test_under_backward), cmocka_unit_test(test_exactness),
        cmocka_unit_test(test_wrapper_under_backward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
