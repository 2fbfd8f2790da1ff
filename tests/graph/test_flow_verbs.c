/* SPDX-License-Identifier: Apache-2.0 */
/* Loops, gates, switches and maps in a flow, routers and conditions, traces, and truncation. */
#include "autograd/backward.h"
#include "autograd/gradcheck.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "distributed/trainer.h"
#include "graph/flow_branches.h"
#include "graph/flow_control.h"
#include "graph/inspect.h"
#include "graph/passes.h"
#include "graph/settings.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "nn/module_values.h"
#include "nn/recompute.h"
#include "tensor/creation.h"
#include "tensor/print.h"
#include "tensor/shapes.h"
#include "tests/graph/modules.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

/* --- helpers --------------------------------------------------------------------------- */

static trek_var *values_of(const double *values, trek_shape shape)
{
    trek_tensor *wide = trek_tensor_from_data(values, shape, TREK_F64, trek_cpu(0));
    return trek_cast(trek_var_from(wide), TREK_F32);
}

static trek_var *doubles(uint32_t stream, trek_shape shape)
{
    double values[512];
    for (int64_t k = 0; k < trek_shape_numel(shape); k++)
        values[k] = test_number(stream, (uint32_t)k);
    return trek_var_from(trek_tensor_from_data(values, shape, TREK_F64, trek_cpu(0)));
}

static void assert_values(trek_var *v, const double *values, int64_t n)
{
    double data[512];
    if (!v)
        fail_msg("no value: %s", trek_error());
    assert_int_equal(trek_var_numel(v), n);
    assert_int_equal(trek_tensor_to_host(trek_var_data(v), TREK_F64, data, (size_t)n * sizeof *data), TREK_OK);
    for (int64_t k = 0; k < n; k++)
        if (!(fabs(data[k] - values[k]) <= 1e-5 * (1 + fabs(values[k]))))
            fail_msg("element %lld is %g, not %g", (long long)k, data[k], values[k]);
}

static double distance(trek_var *a, trek_var *b)
{
    if (!a || !b)
        fail_msg("no value: %s", trek_error());
    return trek_var_item(trek_max(trek_abs(trek_sub(a, b)), trek_dims_all(), false));
}

static trek_module *linear64(int64_t in, int64_t out)
{
    return trek_nn_linear_with(&(trek_linear_opts){ .in = in, .out = out, .dtype = TREK_F64, .device = trek_cpu(0) });
}

static trek_module *chain(trek_module *a, trek_module *b) { return trek_nn_sequential((trek_module *[]){ a, b }, 2); }
static trek_module *layer64(int64_t in, int64_t out) { return chain(linear64(in, out), trek_nn_tanh()); }

/* A module of one function. */
typedef struct plain_module {
    trek_module base;
    trek_var *(*run)(trek_var *x);
} plain_module;
static trek_var *plain_forward(trek_module *self, trek_var *x) { return ((plain_module *)self)->run(x); }
static const trek_module_class plain_class = { .name = "plain", .size = sizeof(plain_module), .forward = plain_forward };
static trek_module *plain(trek_var *(*run)(trek_var *x))
{
    trek_module *m = trek_module_new(&plain_class);
    if (m)
        ((plain_module *)m)->run = run;
    return m;
}

static trek_var *first_column(trek_var *x) { return trek_select(x, 1, 0); }

/* The gradient of the graph's result by x and all its parameters, which are f64. */
static trek_var *run_graph(trek_var *const *inputs, int n, void *graph)
{
    return trek_graph_forward(graph, inputs[0]);
}

static trek_status collect(const char *name, trek_var *param, void *arg)
{
    trek_var ***next = arg;
    *(*next)++ = param;
    return TREK_OK;
}

static void check_gradients(trek_graph *graph, trek_var *x)
{
    trek_var *inputs[32] = { trek_var_new(trek_var_data(x), true) }, **next = inputs + 1;
    trek_module_each_param(trek_graph_module(graph), collect, &next);
    int n = (int)(next - inputs);
    trek_status status = trek_gradcheck(run_graph, inputs, n, graph, NULL);
    trek_var_release(inputs[0]);
    SUCCEEDS(status);
}

/* --- loops: counted -------------------------------------------------------------------- */

static void for_n_applies_the_body_n_times_and_gradients_go_through_all(void **state)
{
    trek_graph *graph = built(trek_flow_loop(trek_flow_new(), scale(2), &(trek_loop_opts){ .times = 3 }));
    assert_forward(graph, 1.5, 12);
    assert_int_equal(trek_graph_backward(graph, total(trek_graph_forward(graph, filled(1)))), TREK_OK);
    assert_float_equal(grad_of(graph, "0.body.factor"), 6 * 3 * 4, 1e-4); /* 6 elements, d f^3 = 3 f^2 */
    trek_graph_free(&graph);
}

static void further_inputs_go_to_the_body_at_every_pass(void **state)
{
    trek_flow *flow = trek_flow_new();
    trek_flow_input(flow, "more");
    trek_flow_loop(flow, trek_module_new(&sum_class), &(trek_loop_opts){ .times = 3 });
    trek_flow_using(flow, "more");
    trek_graph *graph = built(flow);
    trek_var *more = trek_var_new(trek_var_data(filled(2)), true);
    trek_var *y = trek_graph_forward_many(graph, (trek_var *[]){ filled(1), more }, 2);
    assert_all(y, 7);
    assert_int_equal(trek_backward(total(y)), TREK_OK);
    assert_all(trek_var_grad(more), 3);
    trek_var_release(more);
    trek_graph_free(&graph);
    assert_mistake(trek_flow_using(trek_flow_input(trek_flow_loop(trek_flow_new(), scale(2), &(trek_loop_opts){ .times = 1 }),
                                                   "more"), "more"), "module scale takes one input only");
}

static void places_of_the_body_are_wired_by_name(void **state)
{
    trek_flow *flow = trek_flow_input(trek_flow_input(trek_flow_new(), "plus"), "minus");
    trek_flow_loop(flow, trek_module_new(&ports_class), &(trek_loop_opts){ .times = 1 });
    trek_flow_using(trek_flow_using(flow, "plus"), "minus");
    trek_graph *graph = built(flow);
    assert_all(trek_graph_forward_many(graph, (trek_var *[]){ filled(1), filled(2), filled(3) }, 3), 1 - 30 + 200);
    trek_graph_free(&graph);
}

/* --- loops: halting --------------------------------------------------------------------- */

static const double starts[] = { 1, 3, 20 };

static trek_graph *doubling(bool before, int64_t times)
{
    trek_loop_opts opts = { .times = times };
    *(before ? &opts.halt_before : &opts.halt_after) = trek_nn_threshold_halt(8);
    trek_flow *flow = trek_flow_loop(trek_flow_new(), scale(2), &opts);
    trek_flow_tag_result(flow, "passes", "passes");
    return built(flow);
}

static void rows_halt_each_for_itself(void **state)
{
    for (int after = 0; after < 2; after++) {
        trek_graph *graph = doubling(!after, 10);
        trek_var *x = trek_var_new(trek_var_data(values_of(starts, trek_dims(3, 1))), true);
        trek_var *y = trek_graph_forward(graph, x);
        assert_values(y, after ? (double[]){ 16, 12, 40 } : (double[]){ 16, 12, 20 }, 3);
        assert_values(trek_graph_tagged(graph, "passes"), after ? (double[]){ 4, 2, 1 } : (double[]){ 4, 2, 0 }, 3);
        assert_int_equal(trek_graph_backward(graph, total(y)), TREK_OK);
        trek_var_release(x);
        /* d(f^n x) = n f^(n - 1) x */
        assert_float_equal(grad_of(graph, "0.body.factor"), after ? 4 * 8 * 1 + 2 * 2 * 3 + 20 : 4 * 8 * 1 + 2 * 2 * 3, 1e-3);
        x = trek_var_new(trek_var_data(values_of(starts, trek_dims(3, 1))), true);
        trek_backward(total(trek_graph_forward(graph, x)));
        assert_values(trek_var_grad(x), after ? (double[]){ 16, 4, 2 } : (double[]){ 16, 4, 1 }, 3);
        trek_var_release(x);
        trek_graph_free(&graph);
    }
}

static void a_while_loop_may_make_no_pass_and_until_makes_one(void **state)
{
    trek_graph *before = doubling(true, 5), *after = doubling(false, 5);
    assert_forward(before, 9, 9);
    assert_forward(after, 9, 18);
    assert_forward(before, 0.01, 0.32); /* the bound */
    assert_forward(after, 0.01, 0.32);
    trek_var *none = trek_var_from(trek_tensor_zeros(trek_dims(0, 3), TREK_F32, trek_cpu(0)));
    assert_int_equal(trek_var_size(trek_graph_forward(before, none), 0), 0);
    assert_int_equal(trek_var_size(trek_graph_forward(after, none), 0), 0);
    assert_values(trek_graph_tagged(after, "passes"), NULL, 0);
    trek_graph_free(&before);
    trek_graph_free(&after);
}

/* A further input with as many rows as the stream is not the rows' (a mask of as many tokens): it is left as it is. */
static void further_inputs_stay_whole_while_rows_halt(void **state)
{
    trek_flow *flow = trek_flow_loop(trek_flow_input(trek_flow_new(), "more"), trek_module_new(&sum_class),
                                     &(trek_loop_opts){ .times = 9, .halt_before = trek_nn_threshold_halt(8) });
    trek_graph *graph = built(trek_flow_using(flow, "more"));
    trek_var *more = values_of((double[]){ 1, 2, 3 }, trek_dims(3, 1));
    assert_values(trek_graph_forward_many(graph, (trek_var *[]){ values_of(starts, trek_dims(3, 1)), more }, 2),
                  (double[]){ 9, 9, 20 }, 3);
    trek_graph_free(&graph);
}

static trek_var *root(trek_var *x) { return trek_mul_scalar(trek_sqrt(trek_add_scalar(x, -1)), 0.9); }
static trek_var *small(trek_var *x) { return trek_add_scalar(trek_neg(trek_select(x, 1, 0)), 1.5); }

static void what_a_halted_row_would_come_to_does_not_matter(void **state)
{
    (void)state; /* sqrt(0.5 - 1) is NaN, so would be 0 times its derivative */
    trek_graph *graph = built(trek_flow_loop(trek_flow_from(scale(1)), plain(root),
                                             &(trek_loop_opts){ .times = 4, .halt_before = plain(small) }));
    trek_var *y = trek_graph_forward(graph, values_of((double[]){ 0.5, 50 }, trek_dims(2, 1)));
    double x = 50;
    while (x >= 1.5)
        x = 0.9 * sqrt(x - 1);
    assert_values(y, (double[]){ 0.5, x }, 2);
    assert_int_equal(trek_graph_backward(graph, total(y)), TREK_OK);
    assert_true(isfinite(grad_of(graph, "0.factor")));
    trek_graph_free(&graph);
}

static void a_hard_halt_gives_its_condition_no_gradient(void **state)
{
    trek_graph *graph = built(trek_flow_loop(trek_flow_new(), layer64(3, 3),
                                             &(trek_loop_opts){ .times = 3, .halt_after = linear64(3, 1) }));
    trek_module *whole = trek_graph_module(graph);
    assert_non_null(trek_module_find(whole, "0.condition.weight"));
    trek_backward(total(trek_graph_forward(graph, doubles(1, trek_dims(5, 3)))));
    assert_null(trek_var_grad(trek_module_find(whole, "0.condition.weight")));
    assert_non_null(trek_var_grad(trek_module_find(whole, "0.body.0.weight")));
    trek_graph_free(&graph);
    graph = built(trek_flow_loop(trek_flow_new(), trek_nn_identity(),
                                 &(trek_loop_opts){ .times = 3, .halt_before = trek_nn_learned_halt(3, trek_cpu(0)) }));
    assert_non_null(trek_module_find(trek_graph_module(graph), "0.condition.proj.weight"));
    assert_forward(graph, 2, 2);
    trek_graph_free(&graph);
}

static void halted_loops_have_right_gradients(void **state)
{
    for (int kind = 0; kind < 3; kind++) {
        trek_seed(3);
        trek_loop_opts opts = { .times = 4, .adaptive = kind == 2, .epsilon = kind == 2 ? 0.2 : 0 };
        if (kind == 2)
            opts.halt_after = linear64(3, 1);
        else
            *(kind ? &opts.halt_after : &opts.halt_before) = plain(first_column);
        trek_graph *graph = built(trek_flow_loop(trek_flow_from(linear64(3, 3)), layer64(3, 3), &opts));
        check_gradients(graph, doubles(7, trek_dims(6, 3)));
        trek_graph_free(&graph);
    }
}

static trek_var *ponder(trek_var *const *inputs, int n, void *graph)
{
    trek_graph_forward(graph, inputs[0]);
    return trek_graph_tagged(graph, "cost");
}

static void adaptive_time_is_graves_sum(void **state)
{
    (void)state; /* h = sigmoid(0) = 1/2 and epsilon 0.01: two passes of a half each */
    trek_flow *flow = trek_flow_loop(trek_flow_new(), scale(2), &(trek_loop_opts){ .times = 5, .adaptive = true,
                                     .halt_after = trek_nn_sequential((trek_module *[]){ plain(first_column), scale(0) }, 2) });
    trek_flow_tag_result(flow, "passes", "cost");
    trek_graph *graph = built(flow);
    assert_forward(graph, 1, 0.5 * 2 + 0.5 * 4);
    assert_all(trek_graph_tagged(graph, "cost"), 2.5);
    trek_graph_free(&graph);
    trek_seed(4);
    flow = trek_flow_loop(trek_flow_from(linear64(2, 2)), layer64(2, 2),
                          &(trek_loop_opts){ .times = 4, .adaptive = true, .halt_after = linear64(2, 1) });
    trek_flow_tag_result(flow, "passes", "cost");
    graph = built(flow);
    trek_var *inputs[3] = { trek_var_new(trek_var_data(doubles(8, trek_dims(5, 2))), true),
                            trek_module_find(trek_graph_module(graph), "1.condition.weight"),
                            trek_module_find(trek_graph_module(graph), "0.weight") };
    SUCCEEDS(trek_gradcheck(ponder, inputs, 3, graph, NULL));
    trek_var_release(inputs[0]);
    trek_graph_free(&graph);
}

static trek_var *two_rows_less(trek_var *x) { return trek_narrow(x, 1, 0, 1); }
static trek_var *whole(trek_var *x) { return x; }

static void loops_refuse_what_does_not_fit(void **state)
{
    trek_graph *graph = built(trek_flow_loop(trek_flow_new(), plain(two_rows_less),
                                             &(trek_loop_opts){ .times = 2, .halt_after = trek_nn_threshold_halt(9) }));
    REFUSED(trek_graph_forward(graph, filled(1)), TREK_ERR_SHAPE, "the shape must not change");
    trek_graph_free(&graph);
    graph = built(trek_flow_loop(trek_flow_new(), scale(2), &(trek_loop_opts){ .times = 2, .halt_after = plain(whole) }));
    REFUSED(trek_graph_forward(graph, filled(1)), TREK_ERR_SHAPE, "one number for each row");
    REFUSED(trek_graph_forward(graph, trek_var_from(trek_tensor_zeros(trek_dims_none(), TREK_F32, trek_cpu(0)))), TREK_ERR_SHAPE,
            "input: it is a scalar; must have rows");
    trek_graph_free(&graph);
    assert_mistake(trek_flow_loop(trek_flow_new(), scale(2), NULL), "loop: .times: 0; must be at least 1");
    assert_mistake(trek_flow_loop(trek_flow_new(), NULL, &(trek_loop_opts){ .times = 1 }), "loop: module: NULL");
    assert_mistake(trek_flow_loop(trek_flow_new(), scale(2), &(trek_loop_opts){ .times = 1, .adaptive = true }),
                   ".adaptive: set without .halt_after");
    assert_mistake(trek_flow_loop(trek_flow_new(), scale(2),
                                  &(trek_loop_opts){ .times = 1, .halt_before = scale(1), .halt_after = scale(1) }),
                                  "both are set");
    assert_mistake(trek_flow_loop(trek_flow_new(), scale(2), &(trek_loop_opts){ .times = 1, .epsilon = 0.1 }), ".epsilon");
    assert_mistake(trek_flow_loop(trek_flow_new(), scale(2), &(trek_loop_opts){ .times = 1, .trace = "" }),
                   ".trace: it is empty");
    assert_mistake(trek_flow_loop(trek_flow_new(), trek_nn_sync_batch_norm(3, trek_cpu(0)),
                                  &(trek_loop_opts){ .times = 2, .halt_after = scale(1) }), "waits for the other ranks");
    REFUSED(trek_flow_loop(NULL, scale(2), &(trek_loop_opts){ .times = 1, .halt_after = scale(1) }), TREK_ERR_ARGUMENT, "flow");
    graph = built(trek_flow_loop(trek_flow_new(), trek_nn_sync_batch_norm(3, trek_cpu(0)), &(trek_loop_opts){ .times = 2 }));
    trek_graph_free(&graph); /* without a condition all ranks make the same passes */
    REFUSED(trek_nn_threshold_halt((double)NAN), TREK_ERR_ARGUMENT, "NaN");
}

/* --- traces ------------------------------------------------------------------------------- */

/* Publishes its input as "seen", and in every second call twice it as "sparse". */
static trek_var *publishing(trek_var *x)
{
    static _Thread_local int calls;
    trek_loop_publish("seen", x);
    if (calls++ % 2 == 0)
        trek_loop_publish("sparse", trek_mul_scalar(x, 2));
    return trek_mul_scalar(x, 3);
}

static trek_var *publishing_twice(trek_var *x)
{
    trek_loop_publish("seen", x);
    return trek_loop_publish("seen", x) == TREK_OK ? x : NULL;
}

static void passes_publish_under_names(void **state)
{
    trek_flow *flow = trek_flow_loop(trek_flow_from(scale(1)), plain(publishing), &(trek_loop_opts){ .times = 4, .trace = "x" });
    trek_graph *graph = built(trek_flow_label(flow, "refine"));
    assert_int_equal(trek_graph_trace_count(graph, "x"), 0);
    for (int run = 0; run < 2; run++) {
        assert_forward(graph, 1, 81);
        assert_int_equal(trek_graph_trace_count(graph, "x"), 4);
        assert_int_equal(trek_graph_trace_count(graph, "seen"), 4);
        assert_int_equal(trek_graph_trace_count(graph, "sparse"), 2);
        assert_int_equal(trek_graph_trace_count(graph, "refine.sparse"), 2);
        assert_int_equal(trek_graph_trace_count(graph, "other"), 0);
    }
    assert_all(trek_graph_trace(graph, "x", 0), 3);
    assert_all(trek_graph_trace(graph, "refine.seen", 3), 27);
    assert_all(trek_graph_trace(graph, "sparse", 1), 18);
    REFUSED(trek_graph_trace(graph, "seen", 4), TREK_ERR_ARGUMENT, "4 values \"seen\"");
    assert_int_equal(trek_graph_trace_count(graph, "0.seen"), -1);
    expect_error(TREK_ERR_ARGUMENT, "is not a loop");
    assert_true(trek_var_requires_grad(trek_graph_trace(graph, "x", 1))); /* a loss may be made of them */
    assert_int_equal(trek_graph_backward(graph, total(trek_graph_trace(graph, "x", 1))), TREK_OK);
    assert_float_equal(grad_of(graph, "0.factor"), 6 * 9, 1e-4);
    assert_int_equal(trek_graph_detach_state(graph), TREK_OK);
    assert_false(trek_var_requires_grad(trek_graph_trace(graph, "x", 1)));
    assert_int_equal(trek_loop_publish("outside", filled(1)), TREK_OK);
    FAILS(trek_loop_publish(NULL, filled(1)), TREK_ERR_ARGUMENT, "name");
    trek_graph_free(&graph);
    graph = built(trek_flow_loop(trek_flow_new(), plain(publishing_twice), &(trek_loop_opts){ .times = 4 }));
    REFUSED(trek_graph_forward(graph, filled(1)), TREK_ERR_ARGUMENT, "twice in pass 0");
    trek_graph_free(&graph);
}

static void loops_of_one_name_are_asked_by_path(void **state)
{
    trek_flow *flow = trek_flow_loop(trek_flow_new(), plain(publishing), &(trek_loop_opts){ .times = 1 });
    trek_graph *graph = built(trek_flow_loop(flow, plain(publishing), &(trek_loop_opts){ .times = 2 }));
    assert_forward(graph, 1, 27);
    assert_int_equal(trek_graph_trace_count(graph, "seen"), -1);
    expect_error(TREK_ERR_ARGUMENT, "path.seen");
    assert_int_equal(trek_graph_trace_count(graph, "0.seen"), 1);
    assert_all(trek_graph_trace(graph, "1.seen", 1), 9);
    trek_graph_free(&graph);
}

static void halted_rows_keep_their_values_in_traces(void **state)
{
    trek_graph *graph = built(trek_flow_loop(trek_flow_new(), plain(publishing), &(trek_loop_opts){ .times = 9, .trace = "x",
                                             .halt_after = trek_nn_threshold_halt(8) }));
    assert_non_null(trek_graph_forward(graph, values_of(starts, trek_dims(3, 1))));
    assert_int_equal(trek_graph_trace_count(graph, "x"), 2);
    assert_values(trek_graph_trace(graph, "x", 1), (double[]){ 9, 9, 60 }, 3);
    assert_values(trek_graph_trace(graph, "seen", 1), (double[]){ 3, 3, 20 }, 3);
    trek_graph_free(&graph);
}

/* --- gates ---------------------------------------------------------------------------------- */

static trek_var *halves(trek_var *x)
{
    return trek_var_from(trek_tensor_full(trek_dims(trek_var_size(x, 0), 2), 0.5, trek_var_dtype(x), trek_cpu(0)));
}

static void a_gate_weighs_all_experts(void **state)
{
    trek_module *experts[] = { scale(2), scale(4) };
    trek_graph *graph = built(trek_flow_gate(trek_flow_new(), plain(halves), experts, 2));
    assert_forward(graph, 3, 9);
    trek_graph_backward(graph, total(trek_graph_forward(graph, filled(3))));
    assert_float_equal(grad_of(graph, "0.0.factor"), 9, 1e-4);
    assert_float_equal(grad_of(graph, "0.1.factor"), 9, 1e-4);
    trek_graph_free(&graph);
    trek_seed(5);
    trek_module *three[] = { layer64(3, 4), linear64(3, 4), layer64(3, 4) };
    graph = built(trek_flow_gate(trek_flow_new(), chain(linear64(3, 3), trek_nn_softmax(-1)), three, 3));
    check_gradients(graph, doubles(2, trek_dims(4, 3)));
    check_gradients(graph, doubles(2, trek_dims(2, 2, 3))); /* a weight a token */
    trek_graph_free(&graph);
}

static void gates_refuse_what_does_not_fit(void **state)
{
    trek_module *three[] = { scale(2), scale(4), scale(1) };
    trek_graph *graph = built(trek_flow_gate(trek_flow_new(), plain(halves), three, 3));
    REFUSED(trek_graph_forward(graph, filled(3)), TREK_ERR_SHAPE, "must be [..., 3]");
    trek_graph_free(&graph);
    trek_module *two[] = { scale(2), plain(two_rows_less) };
    graph = built(trek_flow_gate(trek_flow_new(), plain(halves), two, 2));
    REFUSED(trek_graph_forward(graph, filled(3)), TREK_ERR_SHAPE, "expert 1: result of shape [2, 1]");
    trek_graph_free(&graph);
    assert_mistake(trek_flow_gate(trek_flow_new(), scale(1), NULL, 2), "gate: modules: 0 besides");
    assert_mistake(trek_flow_gate(trek_flow_new(), NULL, (trek_module *[]){ scale(2) }, 1), "module: NULL");
    assert_mistake(trek_flow_gate(trek_flow_new(), scale(1), (trek_module *[]){ scale(2), NULL }, 2), "module: NULL");
    REFUSED(trek_flow_gate(NULL, scale(1), (trek_module *[]){ scale(2) }, 1), TREK_ERR_ARGUMENT, "flow");
}

/* --- switches -------------------------------------------------------------------------------- */

static void each_row_takes_its_branch_alone(void **state)
{
    trek_module *branches[] = { scale(2), scale(10), scale(100) };
    trek_graph *graph = built(trek_flow_switch(trek_flow_new(), plain(first_column), branches, 3));
    trek_var *y = trek_graph_forward(graph, values_of((double[]){ 1, 5, 0, 6, 1, 7 }, trek_dims(3, 2)));
    assert_values(y, (double[]){ 10, 50, 0, 12, 10, 70 }, 6);
    assert_int_equal(trek_graph_backward(graph, total(y)), TREK_OK);
    assert_float_equal(grad_of(graph, "0.0.factor"), 6, 1e-4);
    assert_float_equal(grad_of(graph, "0.1.factor"), 14, 1e-4);
    assert_true(isnan(grad_of(graph, "0.2.factor"))); /* no row: not run */
    const double bad[] = { 3, -1, 0.5, (double)NAN };
    for (int k = 0; k < 4; k++) {
        REFUSED(trek_graph_forward(graph, values_of((double[]){ 1, 5, bad[k], 6 }, trek_dims(2, 2))), TREK_ERR_ARGUMENT,
                "for row 1; must be the index of one of 3 branches");
    }
    trek_var *none = trek_graph_forward(graph, trek_var_from(trek_tensor_zeros(trek_dims(0, 2), TREK_F32, trek_cpu(0))));
    assert_int_equal(trek_var_size(none, 0), 0);
    trek_graph_free(&graph);
}

static trek_var *sign_index(trek_var *x) { return trek_cast(trek_gt_scalar(trek_select(x, 1, 0), 0), TREK_I64); }

static void switches_have_right_gradients(void **state)
{
    trek_seed(6);
    trek_module *branches[] = { layer64(3, 2), linear64(3, 2) };
    trek_graph *graph = built(trek_flow_switch(trek_flow_from(linear64(3, 3)), plain(sign_index), branches, 2));
    check_gradients(graph, doubles(9, trek_dims(7, 3)));
    trek_graph_free(&graph);
}

static void one_decision_for_the_batch(void **state)
{
    trek_module *branches[] = { scale(2), scale(10) };
    trek_graph *graph = built(trek_flow_switch_batch(trek_flow_new(), trek_nn_fixed_selector(1), branches, 2));
    assert_forward(graph, 3, 30);
    trek_graph_free(&graph);
    trek_module *others[] = { scale(2), scale(10) };
    graph = built(trek_flow_switch_batch(trek_flow_new(), plain(first_column), others, 2));
    assert_forward(graph, 1, 10);
    REFUSED(trek_graph_forward(graph, values_of((double[]){ 0, 1 }, trek_dims(2, 1))), TREK_ERR_ARGUMENT,
            "one branch runs the whole batch");
    trek_graph_free(&graph);
    trek_module *far[] = { scale(2) };
    graph = built(trek_flow_switch(trek_flow_new(), trek_nn_fixed_selector(1), far, 1));
    REFUSED(trek_graph_forward(graph, filled(1)), TREK_ERR_ARGUMENT, "index of one of 1 branches");
    trek_graph_free(&graph);
}

static void switches_refuse_what_does_not_fit(void **state)
{
    trek_module *differing[] = { scale(2), plain(two_rows_less) };
    trek_graph *graph = built(trek_flow_switch(trek_flow_new(), plain(first_column), differing, 2));
    REFUSED(trek_graph_forward(graph, values_of((double[]){ 0, 1, 1, 1 }, trek_dims(2, 2))), TREK_ERR_SHAPE,
            "differ in the number of rows only");
    trek_graph_free(&graph);
    assert_mistake(trek_flow_switch(trek_flow_new(), NULL, NULL, 0), "module: NULL");
    assert_mistake(trek_flow_switch(trek_flow_new(), scale(1), (trek_module *[]){ trek_nn_sync_batch_norm(3, trek_cpu(0)) }, 1),
                   "waits for the other ranks");
    trek_flow *inner = trek_flow_through(trek_flow_new(), trek_module_new(&sum_class));
    trek_graph *carrying = built(trek_flow_tag(trek_flow_using(inner, "last"), "last"));
    assert_mistake(trek_flow_switch(trek_flow_new(), scale(1), (trek_module *[]){ trek_graph_module(carrying) }, 1),
                   "carries state");
}

/* --- routers ------------------------------------------------------------------------------------ */

static void routers_decide(void **state)
{
    trek_module *softmax = trek_nn_softmax_router(3, 4, trek_cpu(0)), *sigmoid = trek_nn_sigmoid_router(3, 4, trek_cpu(0));
    trek_module *selector = trek_nn_argmax_selector(3, 4, trek_cpu(0)), *fixed = trek_nn_fixed_selector(2);
    trek_var *x = trek_cast(doubles(3, trek_dims(5, 3)), TREK_F32), *more = trek_cast(doubles(4, trek_dims(5, 3)), TREK_F32);
    trek_var *weights = trek_forward_many(softmax, (trek_var *[]){ x, more }, 2);
    assert_all(trek_sum(weights, trek_dims(1), false), 1);
    assert_true(distance(weights, trek_forward(softmax, trek_add(x, more))) < 1e-6);
    weights = trek_forward(sigmoid, x);
    trek_var *proj = trek_forward(sigmoid->own->children[0].module, x);
    assert_true(distance(weights, trek_sigmoid(proj)) < 1e-6);
    trek_var *index = trek_forward(selector, x);
    assert_int_equal(trek_var_ndim(index), 1);
    proj = trek_forward(selector->own->children[0].module, x);
    assert_true(distance(trek_cast(index, TREK_F32), trek_cast(trek_argmax(proj, trek_dims(1), false), TREK_F32)) == 0);
    assert_all(trek_cast(trek_forward(fixed, x), TREK_F32), 2);
    trek_module *all[] = { softmax, sigmoid, selector, fixed };
    for (int k = 0; k < 4; k++)
        trek_module_free(&all[k]);
    REFUSED(trek_nn_fixed_selector(-1), TREK_ERR_ARGUMENT, "negative");
    REFUSED(trek_nn_softmax_router(3, 0, trek_cpu(0)), TREK_ERR_ARGUMENT, "n: 0; must");
}

static void routers_take_further_inputs(void **state)
{
    trek_flow *flow = trek_flow_input(trek_flow_new(), "hint");
    trek_module *branches[] = { scale(2), scale(10), scale(3), scale(5) };
    trek_flow_switch(flow, trek_nn_argmax_selector(3, 4, trek_cpu(0)), branches, 4);
    trek_graph *graph = built(trek_flow_using(flow, "hint"));
    trek_module *router = trek_graph_at(graph, "0.router");
    for (int k = 0; k < 4; k++) {
        trek_var *hint = trek_mul_scalar(trek_select(trek_module_find(router, "proj.weight"), 0, k), 1e4);
        double n = trek_var_item(total(trek_square(hint)));
        hint = trek_mul_scalar(hint, n > 0 ? 1 : 0);
        trek_var *logits = trek_forward(trek_graph_at(graph, "0.router.proj"), trek_add(filled(1), hint));
        trek_var *y = trek_graph_forward_many(graph, (trek_var *[]){ filled(1), trek_expand(hint, trek_dims(2, 3)) }, 2);
        int64_t most = (int64_t)trek_var_item(trek_select(trek_argmax(logits, trek_dims(1), false), 0, 0));
        assert_all(y, (double[]){ 2, 10, 3, 5 }[most]);
    }
    trek_graph_free(&graph);
}

/* --- maps --------------------------------------------------------------------------------------- */

static trek_graph *mapping(trek_module *body, trek_map_opts opts)
{
    return built(trek_flow_map(trek_flow_new(), body, &opts));
}

/* Each way of mapping against the body on the whole, which treats elements of the last dimension as one sample. */
static void maps_give_what_the_body_gives_on_the_whole(void **state)
{
    trek_seed(7);
    trek_module *body = layer64(4, 2);
    trek_var *x = doubles(5, trek_dims(3, 5, 4)), *y = trek_forward(body, x);
    const trek_map_opts ways[] = { { 0 }, { .dim = 1 }, { .dim = -2 }, { .dim = 1, .batched = true }, { .batched = true } };
    for (int k = 0; k < 5; k++) {
        trek_module *own = layer64(4, 2);
        trek_module_copy(own, body);
        trek_graph *graph = mapping(own, ways[k]);
        trek_var *mapped = trek_graph_forward(graph, x);
        assert_true(distance(mapped, y) < 1e-12);
        assert_int_equal(trek_var_size(mapped, 1), 5);
        check_gradients(graph, doubles(6, trek_dims(2, 2, 4)));
        trek_graph_free(&graph);
    }
    trek_module_free(&body);
}

static void maps_over_slices(void **state)
{
    trek_seed(8);
    trek_module *bodies[2] = { layer64(2, 3), layer64(2, 3) };
    trek_module_copy(bodies[1], bodies[0]);
    trek_graph *each = mapping(bodies[0], (trek_map_opts){ .slices = 4 });
    trek_graph *folded = mapping(bodies[1], (trek_map_opts){ .slices = 4, .batched = true });
    trek_var *x = doubles(5, trek_dims(3, 8)), *y = trek_graph_forward(each, x);
    assert_int_equal(trek_var_size(y, 1), 12);
    assert_true(distance(y, trek_graph_forward(folded, x)) < 1e-12);
    trek_var *third = trek_forward(trek_graph_at(each, "0.body"), trek_narrow(x, 1, 4, 2));
    assert_true(distance(third, trek_narrow(y, 1, 6, 3)) < 1e-12);
    check_gradients(each, doubles(5, trek_dims(2, 8)));
    check_gradients(folded, doubles(5, trek_dims(2, 8)));
    REFUSED(trek_graph_forward(each, doubles(5, trek_dims(3, 6))), TREK_ERR_SHAPE, "not a multiple of 4");
    trek_graph_free(&each);
    trek_graph_free(&folded);
}

static trek_var *one_row_doubled(trek_var *x) { return trek_mul_scalar(x, trek_var_size(x, 0) == 1 ? 2 : 0); }

static void maps_over_tags_and_rows(void **state)
{
    trek_flow *flow = trek_flow_tag(trek_flow_from(scale(3)), "three");
    trek_flow_map(trek_flow_through(flow, scale(100)), plain(one_row_doubled), &(trek_map_opts){ .over = "three" });
    trek_graph *graph = built(flow);
    assert_forward(graph, 1, 6);
    trek_graph_free(&graph);
    flow = trek_flow_map(trek_flow_input(trek_flow_new(), "more"), trek_module_new(&sum_class), NULL);
    graph = built(trek_flow_using(flow, "more")); /* row by row */
    assert_values(trek_graph_forward_many(graph, (trek_var *[]){ values_of((double[]){ 1, 2 }, trek_dims(2, 1)),
                                                                 values_of((double[]){ 10, 20 }, trek_dims(2, 1)) }, 2),
                  (double[]){ 11, 22 }, 2);
    REFUSED(trek_graph_forward_many(graph, (trek_var *[]){ filled(1), values_of(starts, trek_dims(3)) }, 2), TREK_ERR_SHAPE,
            "input 1: [3]; must have 2 rows");
    trek_graph_free(&graph);
    graph = mapping(scale(2), (trek_map_opts){ .dim = 1 });
    trek_var *none = trek_var_from(trek_tensor_zeros(trek_dims(2, 0, 3), TREK_F32, trek_cpu(0)));
    assert_int_equal(trek_var_numel(trek_graph_forward(graph, none)), 0);
    REFUSED(trek_graph_forward(graph, values_of(starts, trek_dims(3))), TREK_ERR_SHAPE, "has no dimension 1");
    trek_graph_free(&graph);
    graph = mapping(scale(2), (trek_map_opts){ 0 });
    none = trek_var_from(trek_tensor_zeros(trek_dims(0, 3), TREK_F32, trek_cpu(0)));
    assert_int_equal(trek_var_size(trek_graph_forward(graph, none), 1), 3);
    trek_graph_free(&graph);
    assert_mistake(trek_flow_map(trek_flow_new(), scale(2), &(trek_map_opts){ .over = "nothing" }), "map over \"nothing\"");
    assert_mistake(trek_flow_map(trek_flow_new(), scale(2), &(trek_map_opts){ .slices = -1 }), ".slices");
    assert_mistake(trek_flow_map(trek_flow_new(), scale(2), &(trek_map_opts){ .slices = 2, .dim = 1 }),
                   ".dim: 1, together with .slices");
    assert_mistake(trek_flow_map(trek_flow_new(), trek_nn_sync_batch_norm(3, trek_cpu(0)), NULL), "waits for the other ranks");
    REFUSED(trek_flow_map(NULL, scale(2), NULL), TREK_ERR_ARGUMENT, "flow");
}

/* --- as modules ----------------------------------------------------------------------------------- */

static trek_flow *structure(int times, int dim, bool other_branch)
{
    trek_module *branches[] = { trek_nn_relu(), other_branch ? trek_nn_gelu() : trek_nn_relu() };
    trek_flow *flow = trek_flow_loop(trek_flow_new(), trek_nn_linear(3, 3, trek_cpu(0)), &(trek_loop_opts){ .times = times });
    trek_flow_switch(flow, trek_nn_fixed_selector(0), branches, 2);
    return trek_flow_map(flow, trek_nn_identity(), &(trek_map_opts){ .dim = dim });
}

static void the_hash_tells_options_and_parts_apart(void **state)
{
    char texts[5][TREK_GRAPH_HASH_TEXT];
    trek_flow *flows[5] = { structure(2, 0, false), structure(3, 0, false), structure(2, 1, false), structure(2, 0, true),
                            structure(2, 0, false) };
    for (int k = 0; k < 5; k++) {
        trek_graph *graph = built(flows[k]);
        assert_non_null(trek_graph_hash(graph, texts[k], sizeof texts[k]));
        char *dot = trek_graph_dot(graph);
        assert_non_null(strstr(dot, k == 1 ? "loop(3)" : "loop(2)"));
        trek_string_free(&dot);
        trek_graph_free(&graph);
    }
    for (int k = 1; k < 4; k++)
        for (int j = 0; j < k; j++)
            assert_string_not_equal(texts[k], texts[j]);
    assert_string_equal(texts[4], texts[0]);
}

static void modes_names_and_sharing_follow_from_children(void **state)
{
    trek_module *shared = scale(2);
    trek_flow *flow = trek_flow_loop(trek_flow_from(shared), shared, &(trek_loop_opts){ .times = 2 });
    trek_graph *graph = built(trek_flow_switch(flow, trek_nn_fixed_selector(1), (trek_module *[]){ shared, shared }, 2));
    assert_int_equal(trek_module_param_count(trek_graph_module(graph)), 1);
    assert_forward(graph, 1, 16);
    trek_graph_train(graph, false);
    assert_false(trek_graph_at(graph, "1.body")->own->training);
    assert_int_equal(trek_graph_freeze(graph, "1.body"), TREK_OK);
    assert_false(trek_var_requires_grad(trek_graph_forward(graph, filled(1))));
    trek_graph_free(&graph);
}

static void nested_graphs_and_verbs_run_inside(void **state)
{
    (void)state; /* each row: doubled until it passes 8, inside a branch, inside a loop */
    trek_module *grow = trek_graph_module(doubling(true, 9));
    trek_graph *inner = built(trek_flow_switch(trek_flow_new(), trek_nn_fixed_selector(0), (trek_module *[]){ grow }, 1));
    trek_graph *graph = built(trek_flow_loop(trek_flow_new(), trek_graph_module(inner), &(trek_loop_opts){ .times = 2 }));
    assert_values(trek_graph_forward(graph, values_of(starts, trek_dims(3, 1))), (double[]){ 16, 12, 20 }, 3);
    trek_graph_free(&graph);
}

/* --- places of inputs ------------------------------------------------------------------------------ */

static void a_later_place_alone(void **state)
{
    trek_seed(9);
    trek_flow *flow = trek_flow_input(trek_flow_new(), "mask");
    trek_flow_through(flow, trek_nn_multihead_attention(4, 2, trek_cpu(0)));
    trek_flow_using(flow, "mask");
    trek_graph *graph = built(flow);
    trek_var *x = trek_cast(doubles(1, trek_dims(2, 3, 4)), TREK_F32);
    trek_var *mask = trek_cast(trek_tril(trek_var_from(trek_tensor_ones(trek_dims(3, 3), TREK_F32, trek_cpu(0))), 0), TREK_BOOL);
    trek_var *y = trek_graph_forward_many(graph, (trek_var *[]){ x, mask }, 2);
    trek_module *attention = trek_graph_at(graph, "0");
    assert_true(distance(y, trek_forward_many(attention, (trek_var *[]){ x, NULL, NULL, mask }, 4)) < 1e-6);
    assert_true(distance(y, trek_forward(attention, x)) > 1e-4);
    trek_graph_free(&graph);
    /* By the place's name, since two layers' masks cannot both be tagged so; in front of it a place for value alone. */
    flow = trek_flow_input(trek_flow_input(trek_flow_new(), "seen"), "values");
    trek_flow_through(flow, trek_nn_multihead_attention(4, 2, trek_cpu(0)));
    trek_flow_using_as(trek_flow_using_as(flow, "mask", "seen"), "value", "values");
    graph = built(flow);
    y = trek_graph_forward_many(graph, (trek_var *[]){ x, mask, trek_neg(x) }, 3);
    attention = trek_graph_at(graph, "0");
    assert_true(distance(y, trek_forward_many(attention, (trek_var *[]){ x, NULL, trek_neg(x), mask }, 4)) < 1e-6);
    trek_graph_free(&graph);
    flow = trek_flow_through(trek_flow_input(trek_flow_new(), "seen"), trek_nn_multihead_attention(4, 2, trek_cpu(0)));
    assert_mistake(trek_flow_using_as(flow, "maks", "seen"), "multihead_attention has no input \"maks\"");
    flow = trek_flow_through(trek_flow_input(trek_flow_new(), "seen"), trek_module_new(&ports_class));
    assert_mistake(trek_flow_using_as(flow, "plus", "seen"), "input \"minus\" of ports is missing");
    flow = trek_flow_through(trek_flow_input(trek_flow_new(), "seen"), trek_module_new(&ports_class));
    assert_mistake(trek_flow_using_as(flow, "", "seen"), "the input's name is empty");
}

/* --- truncation ---------------------------------------------------------------------------------------- */

static void detach_state_truncates(void **state)
{
    trek_flow *flow = trek_flow_using(trek_flow_through(trek_flow_from(scale(3)), trek_module_new(&sum_class)), "last");
    trek_graph *inner = built(trek_flow_tag(flow, "last"));
    trek_graph *graph = built(trek_flow_from(trek_graph_module(inner)));
    for (int cut = 0; cut < 2; cut++) {
        trek_graph_reset_state(graph);
        trek_graph_zero_grad(graph);
        trek_graph_forward(graph, filled(1));
        if (cut)
            assert_int_equal(trek_graph_detach_state(graph), TREK_OK);
        trek_var *y = trek_graph_forward(graph, filled(1));
        assert_all(y, 6);
        trek_graph_backward(graph, total(y));
        assert_float_equal(grad_of(graph, "0.0.factor"), cut ? 6 : 12, 1e-4);
    }
    FAILS(trek_graph_detach_state(NULL), TREK_ERR_ARGUMENT, "graph");
    trek_graph_free(&graph);
}

/* --- draws ------------------------------------------------------------------------------------------------ */

static trek_module *dropping;
static trek_var *dropping_recomputed(trek_var *x) { return trek_forward_recomputed(dropping, &x, 1); }

static void a_forward_that_runs_again_draws_the_same_in_a_branch(void **state)
{
    (void)state; /* as in a loop: the rows that a branch got, and its stream, are those of the first run */
    dropping = chain(trek_nn_linear(3, 3, trek_cpu(0)), trek_nn_dropout(0.5));
    trek_var *index = trek_cast(trek_gt_scalar(doubles(2, trek_dims(40, 1)), 0), TREK_F32), *grads[2];
    for (int again = 0; again < 2; again++) {
        trek_seed(11);
        trek_module *branches[] = { trek_nn_identity(), again ? plain(dropping_recomputed) : dropping };
        trek_graph *graph = built(trek_flow_switch(trek_flow_new(), plain(first_column), branches, 2));
        trek_var *x = trek_cat((trek_var *[]){ index, trek_cast(doubles(1, trek_dims(40, 2)), TREK_F32) }, 2, 1);
        trek_var *leaf = trek_var_new(trek_var_data(x), true);
        trek_seed(12);
        trek_backward(total(trek_square(trek_graph_forward(graph, leaf))));
        grads[again] = trek_var_detach(trek_var_grad(leaf));
        trek_var_release(leaf);
        if (!again) { /* the branch's layer is wanted once more */
            trek_module *copy = chain(trek_nn_linear(3, 3, trek_cpu(0)), trek_nn_dropout(0.5));
            trek_module_copy(copy, dropping);
            dropping = copy;
        }
        trek_graph_free(&graph);
    }
    trek_module_free(&dropping);
    assert_true(distance(grads[0], grads[1]) < 1e-6);
    assert_true(trek_var_item(total(trek_abs(grads[0]))) > 0);
}

static void each_pass_draws_numbers_of_its_own(void **state)
{
    (void)state; /* of 1000 numbers 500 stay after a pass, 250 after two: equal masks would leave 500 */
    for (int kind = 0; kind < 2; kind++) {
        trek_loop_opts opts = { .times = 2, .halt_before = kind ? trek_nn_threshold_halt(99) : NULL };
        trek_graph *graph = built(trek_flow_loop(trek_flow_new(), trek_nn_dropout(0.5), &opts));
        trek_var *y = trek_graph_forward(graph, trek_var_from(trek_tensor_ones(trek_dims(10, 100), TREK_F32, trek_cpu(0))));
        double left = trek_var_item(total(trek_cast(trek_gt_scalar(y, 0), TREK_F32)));
        assert_true(left > 200 && left < 300);
        trek_graph_free(&graph);
    }
}

/* --- memory ----------------------------------------------------------------------------------------------- */

static trek_graph *everything(void)
{
    trek_module *experts[] = { scale(2), scale(3) }, *branches[] = { trek_nn_dropout(0.5), scale(3) };
    trek_flow *flow = trek_flow_input(trek_flow_new(), "more");
    trek_flow_loop(flow, trek_module_new(&sum_class), &(trek_loop_opts){ .times = 3, .trace = "x",
                   .halt_after = trek_nn_threshold_halt(8) });
    trek_flow_tag_result(trek_flow_using(flow, "more"), "passes", "passes");
    trek_flow_loop(flow, plain(publishing), &(trek_loop_opts){ .times = 2, .adaptive = true, .halt_after = plain(first_column) });
    trek_flow_gate(flow, trek_nn_sigmoid_router(3, 2, trek_cpu(0)), experts, 2);
    trek_flow_switch(flow, plain(sign_index), branches, 2);
    trek_flow_map(flow, scale(1), &(trek_map_opts){ .slices = 3, .batched = true });
    return trek_flow_build(trek_flow_map(flow, scale(1), NULL));
}

/* Every allocation fails once: an error or a whole answer, nothing is lost, and the next call works. */
static void no_memory(void **state)
{
    trek_graph *graph = NULL;
    int64_t k = 0;
    test_memory.fail_count = 2; /* it is asked twice */
    while (!graph) {
        test_allocator_restart(++k);
        graph = everything();
        assert_int_equal(trek_error_status(), graph ? TREK_OK : TREK_ERR_MEMORY);
        trek_error_clear();
        if (!graph && alive)
            fail_msg("%d modules are left of call %lld", alive, (long long)k);
    }
    assert_in_range(k, 100, 2000);
    bool done = false;
    for (k = 0; !done;) {
        trek_scope inner = trek_scope_begin();
        trek_var *inputs[] = { values_of((double[]){ 1, 2, 3, -9, -9, -9 }, trek_dims(2, 3)), filled(1) };
        trek_memory_release_cached(trek_cpu(0));
        test_allocator_restart(++k);
        trek_var *y = trek_graph_forward_many(graph, inputs, 2);
        done = y && trek_graph_backward(graph, total(y)) == TREK_OK && trek_graph_detach_state(graph) == TREK_OK;
        assert_int_equal(trek_error_status(), done ? TREK_OK : TREK_ERR_MEMORY);
        trek_error_clear();
        test_allocator_restart(0);
        trek_scope_end(inner);
    }
    assert_in_range(k, 15, 5000);
    assert_int_equal(trek_graph_trace_count(graph, "x"), 3);
    trek_graph_free(&graph);
}

/* --- */

#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    test_allocator_use();
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL); /* errors that follow from others are told as warnings */
    const struct CMUnitTest tests[] = {
        CASE(for_n_applies_the_body_n_times_and_gradients_go_through_all),
        CASE(further_inputs_go_to_the_body_at_every_pass),
        CASE(places_of_the_body_are_wired_by_name),
        CASE(rows_halt_each_for_itself),
        CASE(a_while_loop_may_make_no_pass_and_until_makes_one),
        CASE(further_inputs_stay_whole_while_rows_halt),
        CASE(what_a_halted_row_would_come_to_does_not_matter),
        CASE(a_hard_halt_gives_its_condition_no_gradient),
        CASE(halted_loops_have_right_gradients),
        CASE(adaptive_time_is_graves_sum),
        CASE(loops_refuse_what_does_not_fit),
        CASE(passes_publish_under_names),
        CASE(loops_of_one_name_are_asked_by_path),
        CASE(halted_rows_keep_their_values_in_traces),
        CASE(a_gate_weighs_all_experts),
        CASE(gates_refuse_what_does_not_fit),
        CASE(each_row_takes_its_branch_alone),
        CASE(switches_have_right_gradients),
        CASE(one_decision_for_the_batch),
        CASE(switches_refuse_what_does_not_fit),
        CASE(routers_decide),
        CASE(routers_take_further_inputs),
        CASE(maps_give_what_the_body_gives_on_the_whole),
        CASE(maps_over_slices),
        CASE(maps_over_tags_and_rows),
        CASE(the_hash_tells_options_and_parts_apart),
        CASE(modes_names_and_sharing_follow_from_children),
        CASE(nested_graphs_and_verbs_run_inside),
        CASE(a_later_place_alone),
        CASE(detach_state_truncates),
        CASE(no_memory),
        CASE(each_pass_draws_numbers_of_its_own),
        CASE(a_forward_that_runs_again_draws_the_same_in_a_branch),
    };
    return cmocka_run_group_tests_name("flow_verbs", tests, NULL, NULL);
}
