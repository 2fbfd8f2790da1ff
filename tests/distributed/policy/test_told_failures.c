/* SPDX-License-Identifier: Apache-2.0 */
/* A step that fails in one of several processes is told in one round, whatever that process calls before it clears its error: all
 * go on with the same next step, and none hears of the old one again. */
#include "autograd/losses.h"
#include "autograd/ops.h"
#include "distributed/comm/comm.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/passes.h"
#include "graph/settings.h"
#include "nn/layers.h"
#include "nn/params.h"
#include "tensor/log.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { FEATURES = 6, CLASSES = 3, ROWS = 7, STEPS = 8, FAILS_AT = 2 };

static part me;

static bool is(const char *what) { return strstr(me.detail, what) != NULL; }

static trek_graph *build(trek_device device, void *arg)
{
    trek_linear_opts opts = { .in = FEATURES, .out = CLASSES, .device = device };
    return trek_flow_build(trek_flow_from(trek_nn_linear_with(&opts)));
}

static trek_graph *new_trained(trek_comm *comm)
{
    trek_seed(23);
    trek_graph *graph = build(test_device(), NULL);
    trek_device devices[2] = { test_device(), test_device() };
    trek_trainer_opts opts = { .build_replica = build,
                               .devices = devices,
                               .ranks = 2,
                               .balance = TREK_OFF,
                               .comm = comm,
                               .optimizer = trek_adamw(&(trek_adam_opts){ .lr = 0.05 }) };
    return graph && trek_trainer_setup(graph, &opts) == TREK_OK ? graph : NULL;
}

static trek_status one_step(trek_graph *graph, int k, bool fails)
{
    float data[ROWS * FEATURES];
    int64_t labels[ROWS];
    for (int i = 0; i < ROWS * FEATURES; i++)
        data[i] = test_number(50u + (uint32_t)k + 100u * (uint32_t)me.process, (uint32_t)i);
    for (int i = 0; i < ROWS; i++)
        labels[i] = (i + k) % CLASSES;
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(trek_tensor_from_data(data, trek_dims(ROWS, FEATURES), TREK_F32, test_device()));
    trek_var *y = trek_var_from(trek_tensor_from_data(labels, trek_dims(ROWS), TREK_I64, test_device()));
    trek_var *loss = trek_cross_entropy(trek_graph_forward(graph, x), y);
    if (fails)
        trek_fail(TREK_ERR_CALLBACK, "it was told to fail");
    trek_status status = trek_graph_backward(graph, loss);
    if (status == TREK_OK)
        status = trek_graph_step(graph);
    trek_scope_end(scope);
    return status;
}

/* What a program does that looks at its error later; each call has the ranks do something. */
static void go_on_regardless(trek_graph *graph)
{
    if (is("detach"))
        trek_graph_detach_state(graph);
    if (is("changed"))
        trek_graph_parameters_changed(graph);
    if (is("zero"))
        trek_graph_zero_grad(graph);
    if (is("mode"))
        trek_graph_train(graph, true);
    if (is("backward"))
        trek_graph_backward(graph, NULL);
    if (is("step"))
        trek_graph_step(graph);
}

static double sum_of(trek_graph *graph)
{
    double number = 0;
    float values[FEATURES * CLASSES];
    trek_params *params = trek_module_params(trek_graph_module(graph));
    for (int k = 0; params && k < trek_params_count(params); k++) {
        trek_var *param = trek_params_var(params, k);
        trek_tensor_to_host(trek_var_data(param), TREK_F32, values, sizeof values);
        for (int64_t i = 0; i < trek_var_numel(param); i++)
            number = 1.01 * number + (double)values[i];
    }
    trek_params_free(&params);
    return number;
}

static int play(void)
{
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){
        .rank = me.process, .world_size = me.processes, .address = me.address, .port = me.port, .deadline_s = 10 });
    trek_graph *graph = comm ? new_trained(comm) : NULL;
    bool fails = me.process == 1;
    for (int k = 0; graph && k < STEPS; k++) {
        if (one_step(graph, k, fails && k == FAILS_AT) == TREK_OK)
            continue;
        printf("step %d: %s: %s\n", k, trek_status_name(trek_error_status()), trek_error());
        if (k != FAILS_AT)
            return 7;
        if (fails)
            go_on_regardless(graph);
        trek_error_clear();
        trek_graph_zero_grad(graph);
    }
    if (!graph || trek_error_status() != TREK_OK) {
        printf("%s\n", trek_error());
        return 8;
    }
    printf("steps %d number %.17g\n", (int)trek_graph_steps(graph), sum_of(graph));
    trek_graph_free(&graph);
    trek_comm_free(&comm);
    return 0;
}

static world w;

static void train(int processes, const char *detail, char line[64])
{
    processes_run_all(&w, processes, "train", detail, -1, NULL);
    for (int p = 0; p < processes; p++) {
        const char *steps = strstr(w.text[p], "steps "), *why = p == 1 ? "it was told to fail" : "process 1 failed: it was told";
        char own[64] = "";
        if (steps)
            snprintf(own, sizeof own, "%.*s", (int)strcspn(steps, "\n"), steps);
        if (p == 0)
            memcpy(line, own, sizeof own);
        if (w.code[p] != 0 || !steps || !strstr(w.text[p], why) || strcmp(own, line) != 0)
            FAIL_WORLD(&w, "%d processes, %s: process %d ends with %d", processes, detail, p, w.code[p]);
    }
}

static void test_told_once(void **state)
{
    static const char *const kinds[] = { "step",      "backward,step", "detach,step",
                                         "zero,step", "mode,backward", "detach,zero,mode,backward,step" };
    char plain[64], line[64], steps[16];
    snprintf(steps, sizeof steps, "steps %d ", STEPS - 1);
    for (int n = 2; n <= 3; n++) {
        train(n, "nothing", plain);
        assert_memory_equal(plain, steps, strlen(steps));
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            train(n, kinds[k], line);
            assert_string_equal(line, plain);
        }
    }
}

int main(void)
{
    if (processes_part(&me))
        return play();
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_told_once) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
