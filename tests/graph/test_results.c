/* SPDX-License-Identifier: Apache-2.0 */
/* Modules with several results: run by themselves, and in flows, where results are tagged and states come back: against the
 * same layer in a written loop, on one rank and on several. */
#include "autograd/backward.h"
#include "autograd/grad.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/flow_branches.h"
#include "graph/inspect.h"
#include "graph/passes.h"
#include "graph/settings.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "nn/module_values.h"
#include "tensor/print.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

static trek_var *wave(trek_shape shape, double phase)
{
    double values[256];
    int64_t n = 1;
    for (int k = 0; k < shape.ndim; k++)
        n *= shape.sizes[k];
    for (int64_t i = 0; i < n; i++)
        values[i] = sin((double)i * 1.7 + phase);
    return trek_var_from(trek_tensor_from_data(values, shape, TREK_F64, test_device()));
}

static double distance(trek_var *a, trek_var *b)
{
    return trek_var_item(trek_max(trek_abs(trek_sub(a, b)), trek_dims_all(), false));
}

/* --- a class of one's own ---------------------------------------------------------------------- */

/* x and an optional y: x + y, x y, and as a third what makes it fail: nothing. */
static trek_status sums_results(trek_module *self, trek_var *const *inputs, int n, trek_var **results, int count)
{
    trek_var *x = inputs[0], *y = n > 1 && inputs[1] ? inputs[1] : x;
    results[0] = trek_add(x, y);
    if (count > 1)
        results[1] = trek_mul(x, y);
    return trek_error_status();
}

static const char *const sums_inputs[] = { "other", NULL }, *const sums_names[] = { "sum", "product", "none", NULL };
static const trek_module_class sums_class = { .name = "sums", .size = sizeof(trek_module), .forward_results = sums_results,
                                              .input_names = sums_inputs, .result_names = sums_names, .optional_inputs = true };
static const trek_module_class nameless_class = { .name = "nameless", .size = sizeof(trek_module),
                                                  .forward_results = sums_results };

static void test_own_class(void **state)
{
    trek_module *sums = trek_module_new(&sums_class), *relu = trek_nn_relu();
    trek_scope scope = trek_scope_begin();
    trek_var *x = wave(trek_dims(2, 3), 0), *y = wave(trek_dims(2, 3), 5), *both[2] = { x, y }, *results[4];
    assert_int_equal(trek_forward_results(sums, both, 2, results, 2), TREK_OK);
    assert_true(distance(results[0], trek_add(x, y)) == 0 && distance(results[1], trek_mul(x, y)) == 0);
    assert_true(distance(trek_forward(sums, x), trek_add(x, x)) == 0);
    assert_true(distance(trek_forward_many(sums, both, 2), trek_add(x, y)) == 0);
    assert_int_equal(trek_forward_results(sums, (trek_var *[]){ x, NULL }, 2, results, 2), TREK_OK);
    assert_true(distance(results[1], trek_mul(x, x)) == 0);
    assert_int_equal(trek_forward_results(relu, &x, 1, results, 1), TREK_OK); /* as any module */
    assert_true(distance(results[0], trek_relu(x)) == 0);

    assert_int_equal(trek_forward_results(sums, both, 2, results, 3), TREK_ERR_CALLBACK);
    assert_true(!results[0] && !results[1] && !results[2]);
    expect_error(TREK_ERR_CALLBACK, "forward: no result 2");
    FAILS(trek_forward_results(sums, both, 2, results, 4), TREK_ERR_ARGUMENT, "sums: results: 4; it has 3");
    FAILS(trek_forward_results(sums, both, 2, results, 0), TREK_ERR_ARGUMENT, "results: 0; it has 3");
    FAILS(trek_forward_results(relu, &x, 1, results, 2), TREK_ERR_ARGUMENT, "results: 2; it has 1");
    FAILS(trek_forward_results(relu, both, 2, results, 1), TREK_ERR_UNSUPPORTED, "inputs: 2; it takes one");
    FAILS(trek_forward_results(NULL, both, 2, results, 1), TREK_ERR_ARGUMENT, "");
    FAILS(trek_forward_results(sums, both, 2, NULL, 1), TREK_ERR_ARGUMENT, "");
    FAILS(trek_forward_results(sums, (trek_var *[]){ NULL, x }, 2, results, 1), TREK_ERR_ARGUMENT, "");
    trek_scope_end(scope);
    trek_module_free(&sums);
    trek_module_free(&relu);
}

/* Outside all scopes results are the caller's to release; in a scope they outlive what the module made beside them. */
static void test_ownership(void **state)
{
    trek_module *sums = trek_module_new(&nameless_class);
    trek_tensor *ones = trek_tensor_ones(trek_dims(3), TREK_F32, test_device());
    trek_var *x = trek_var_new(ones, true), *results[2];
    assert_int_equal(trek_forward_results(sums, &x, 1, results, 2), TREK_OK);
    double *values = test_read(trek_var_data(results[1]));
    assert_true(values[0] == 1 && values[2] == 1);
    free(values);
    trek_var_release(results[0]);
    trek_var_release(results[1]);
    trek_var_release(x);
    trek_tensor_release(ones);
    trek_module_free(&sums);
    assert_int_equal(trek_tape_size(), 0);
}

/* --- recurrent layers ---------------------------------------------------------------------------- */

enum { STEPS = 3, ROWS = 4, IN = 3, HIDDEN = 5, CALLS = 3 };
typedef enum kind { LSTM, GRU, LSTM_CELL, GRU_CELL, KINDS } kind;

static trek_module *layer(kind k, trek_device device)
{
    trek_lstm_opts opts = { .in = IN, .hidden = HIDDEN, .batch_first = true, .dtype = TREK_F64, .device = device };
    trek_lstm_cell_opts cell = { .in = IN, .hidden = HIDDEN, .dtype = TREK_F64, .device = device };
    trek_seed(3);
    return k == LSTM        ? trek_nn_lstm_with(&opts)
           : k == GRU       ? trek_nn_gru_with(&opts)
           : k == LSTM_CELL ? trek_nn_lstm_cell_with(&cell)
                            : trek_nn_gru_cell_with(&cell);
}

static trek_var *input(kind k, int call)
{
    return wave(k >= LSTM_CELL ? trek_dims(ROWS, IN) : trek_dims(ROWS, STEPS, IN), call);
}

/* The layer by its own function, with the states h and c in and out. */
static trek_var *run_layer(kind k, trek_module *m, trek_var *x, trek_var **h, trek_var **c)
{
    switch (k) {
    case LSTM: return trek_nn_lstm_forward(m, x, NULL, *h, *c, h, c);
    case GRU: return trek_nn_gru_forward(m, x, NULL, *h, h);
    case LSTM_CELL: return *h = trek_nn_lstm_cell_forward(m, x, *h, *c, c);
    default: return *h = trek_nn_gru_cell_forward(m, x, *h);
    }
}

static void test_recurrent_results(void **state)
{
    for (kind k = 0; k < KINDS; k++) {
        trek_module *m = layer(k, test_device());
        trek_scope scope = trek_scope_begin();
        bool cell = k >= LSTM_CELL;
        trek_var *x = input(k, 0), *h = NULL, *c = NULL, *y = run_layer(k, m, x, &h, &c), *results[4] = { NULL };
        int count = k == LSTM ? 3 : k == GRU_CELL ? 1 : 2;
        assert_int_equal(trek_forward_results(m, &x, 1, results, count), TREK_OK);
        assert_true(distance(y, results[0]) == 0);
        if (!cell)
            assert_true(distance(h, results[1]) == 0);
        if (c)
            assert_true(distance(c, results[count - 1]) == 0);
        FAILS(trek_forward_results(m, &x, 1, results, count + 1), TREK_ERR_ARGUMENT, "");
        trek_scope_end(scope);
        trek_module_free(&m);
    }
}

static trek_graph *stateful(trek_device device, void *arg)
{
    kind k = *(kind *)arg;
    trek_flow *flow = trek_flow_from(layer(k, device));
    const char *h = k >= LSTM_CELL ? "h" : "hn", *h_in = k >= LSTM_CELL ? "h" : "h0";
    trek_flow_tag_result(flow, h, h_in);
    if (k == LSTM || k == LSTM_CELL) { /* the other way round: names count, not the order of the calls */
        trek_flow_tag_result(flow, k == LSTM ? "cn" : "c", k == LSTM ? "c0" : "c");
        trek_flow_using(flow, k == LSTM ? "c0" : "c");
    }
    return trek_flow_build(trek_flow_using(flow, h_in));
}

/* The losses of CALLS steps of training, each from the state that the last one left (without its gradient). */
static void train(trek_graph *graph, kind k, trek_module *m, double *losses)
{
    trek_var *h = NULL, *c = NULL;
    trek_params *params = graph ? NULL : trek_module_params(m);
    trek_optimizer *optimizer = graph ? NULL : trek_optimizer_new(trek_sgd(&(trek_sgd_opts){ .lr = 0.5 }), params);
    trek_scope all = trek_scope_begin();
    for (int call = 0; call < CALLS; call++) {
        trek_var *x = input(k, call), *y = graph ? trek_graph_forward(graph, x) : run_layer(k, m, x, &h, &c);
        trek_var *loss = y ? trek_mean(trek_mul(y, trek_square(y)), trek_dims_all(), false) : NULL;
        if (graph) {
            trek_graph_backward(graph, loss);
            trek_graph_step(graph);
        } else {
            trek_backward(loss);
            trek_optimizer_step(optimizer);
            trek_optimizer_zero_grad(optimizer);
        }
        if (trek_error_status() != TREK_OK)
            print_error("kind %d: %s\n", (int)k, trek_error());
        assert_int_equal(trek_error_status(), TREK_OK);
        losses[call] = trek_var_item(loss);
        h = h ? trek_var_detach(h) : NULL;
        c = c ? trek_var_detach(c) : NULL;
    }
    trek_scope_end(all);
    trek_optimizer_free(&optimizer);
    trek_params_free(&params);
}

static trek_graph *stateful_on_ranks(kind *k, int world)
{
    trek_device devices[3];
    for (int r = 0; r < world; r++)
        devices[r] = test_device_of_rank(r);
    trek_graph *graph = stateful(devices[0], k);
    assert_non_null(graph);
    assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = stateful, .arg = k, .devices = devices,
        .ranks = world, .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.5 }) }), TREK_OK);
    return graph;
}

static void test_state_in_flows(void **state)
{
    for (kind k = 0; k < KINDS; k++) {
        double wanted[CALLS], got[CALLS];
        trek_module *m = layer(k, test_device());
        train(NULL, k, m, wanted);
        trek_module_free(&m);
        int most = k < LSTM_CELL ? 1 : test_on_cpu() ? 3 : 2; /* a layer's state has the batch as its second dimension */
        for (int world = 1; world <= most; world++) {
            trek_graph *graph = stateful_on_ranks(&k, world);
            train(graph, k, NULL, got);
            for (int call = 0; call < CALLS; call++)
                assert_true(fabs(got[call] - wanted[call]) < 1e-12);
            assert_int_equal(trek_module_copy(trek_graph_at(graph, "0"), m = layer(k, test_device())), TREK_OK);
            assert_int_equal(trek_graph_parameters_changed(graph), TREK_OK);
            assert_int_equal(trek_graph_reset_state(graph), TREK_OK);
            train(graph, k, NULL, got); /* from the beginning again */
            for (int call = 0; call < CALLS; call++)
                assert_true(fabs(got[call] - wanted[call]) < 1e-12);
            trek_module_free(&m);
            trek_graph_free(&graph);
        }
    }
}

/* Results that the program reads, and a module that takes one of another's. */
static void test_tagged_results(void **state)
{
    trek_flow *flow = trek_flow_from(trek_module_new(&sums_class));
    trek_flow_tag_result(flow, "product", "p");
    trek_flow_tag_result(flow, "sum", "s");
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_module_new(&sums_class));
    trek_flow_using(flow, "p");
    trek_graph *graph = trek_flow_build(flow);
    assert_non_null(graph);
    trek_scope scope = trek_scope_begin();
    for (int call = 0; call < 2; call++) {
        trek_var *x = wave(trek_dims(4), call), *y = trek_graph_forward(graph, x);
        assert_true(distance(trek_graph_tagged(graph, "p"), trek_square(x)) == 0);
        assert_true(distance(trek_graph_tagged(graph, "s"), trek_add(x, x)) == 0);
        assert_true(distance(y, trek_add(trek_relu(trek_add(x, x)), trek_square(x))) == 0);
    }
    trek_scope_end(scope);
    char *dot = trek_graph_dot(graph);
    assert_non_null(strstr(dot, "#p"));
    trek_string_free(&dot);
    trek_graph_free(&graph);
}

static void test_gradients_of_results(void **state)
{
    trek_flow *flow = trek_flow_from(trek_module_new(&sums_class));
    trek_flow_tag_result(flow, "product", "p");
    trek_flow_through(flow, trek_module_new(&sums_class));
    trek_graph *graph = trek_flow_build(trek_flow_using(flow, "p")); /* 2 x + x x */
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_retain(wave(trek_dims(4), 1));
    assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
    trek_backward_with(trek_graph_forward(graph, x), wave(trek_dims(4), 2), NULL);
    trek_var *wanted = trek_mul(trek_add_scalar(trek_mul_scalar(trek_var_detach(x), 2), 2), wave(trek_dims(4), 2));
    assert_true(distance(trek_var_grad(x), wanted) < 1e-14);
    trek_var_release(x);
    trek_scope_end(scope);
    trek_graph_free(&graph);
}

static void build_wrong(trek_flow *flow, const char *part)
{
    REFUSED(trek_flow_build(flow), TREK_ERR_ARGUMENT, part);
}

static void test_mistakes(void **state)
{
    trek_module *two[2] = { trek_nn_relu(), trek_nn_relu() };
    build_wrong(trek_flow_tag_result(trek_flow_from(trek_nn_relu()), "hn", "h"), "relu has no result \"hn\"");
    build_wrong(trek_flow_tag_result(trek_flow_from(trek_module_new(&sums_class)), "more", "h"), "sums has no result \"more\"");
    build_wrong(trek_flow_tag_result(trek_flow_from(trek_module_new(&nameless_class)), "sum", "h"), "nameless has no result");
    build_wrong(trek_flow_tag_result(trek_flow_from(trek_module_new(&sums_class)), NULL, "h"), "has no result \"\"");
    build_wrong(trek_flow_tag_result(trek_flow_from(trek_module_new(&sums_class)), "sum", "input"), "\"input\" is in use");
    build_wrong(trek_flow_tag_result(trek_flow_from(trek_module_new(&sums_class)), "sum", NULL), "the name is empty");
    build_wrong(trek_flow_tag_result(trek_flow_new(), "sum", "s"), "no single module was added just before");
    trek_flow *flow = trek_flow_split(trek_flow_new(), two, 2);
    trek_flow_tag_result(flow, "sum", "s");
    build_wrong(trek_flow_merge(flow, TREK_REDUCTION_SUM), "no single module was added just before");
    assert_null(trek_flow_tag_result(NULL, "sum", "s"));
    trek_error_clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_class), cmocka_unit_test(test_ownership), cmocka_unit_test(test_recurrent_results),
        cmocka_unit_test(test_state_in_flows), cmocka_unit_test(test_tagged_results),
        cmocka_unit_test(test_gradients_of_results), cmocka_unit_test(test_mistakes),
    };
    return cmocka_run_group_tests_name("results", tests, NULL, NULL);
}
