/* SPDX-License-Identifier: Apache-2.0 */
/* graph/ trains on one device: steps, schedules, clipping, passes of a step, freezing; observed values and trends. */
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/flow_branches.h"
#include "graph/graph_internal.h"
#include "graph/observe.h"
#include "nn/module_tree.h"
#include "tensor/rank_context.h"
#include "tests/graph/modules.h"
#include "tests/support/refused.h"

/* --- training -------------------------------------------------------------------------------------------- */

static void steps(void **state)
{
    trek_graph *graph = built(trek_flow_from(scale(2)));
    FAILS(trek_graph_step(graph), TREK_ERR_STATE, "");
    assert_true(isnan(trek_graph_lr(graph)));
    assert_null(trek_graph_optimizer(graph));
    assert_int_equal(trek_graph_set_optimizer(graph, trek_sgd(&(trek_sgd_opts){ .lr = 0.25 })), TREK_OK);
    assert_float_equal(trek_graph_lr(graph), 0.25, 0);
    uint64_t rng = trek_rank_here.rng_step;
    assert_int_equal(trek_graph_backward(graph, trek_mean(trek_graph_forward(graph, filled(3)), trek_dims_all(), false)),
                     TREK_OK);
    /* Passes add up. */
    assert_int_equal(trek_graph_backward(graph, trek_mean(trek_graph_forward(graph, filled(1)), trek_dims_all(), false)),
                     TREK_OK);
    assert_int_equal(trek_graph_backward_weighted(graph, trek_mean(trek_graph_forward(graph, filled(9)), trek_dims_all(), false),
                                                  0),
                     TREK_OK);
    assert_int_equal(trek_graph_reduce(graph), TREK_OK);
    assert_float_equal(grad_of(graph, "0.factor"), 4, 1e-6);
    /* While there is an error nothing changes. */
    trek_fail(TREK_ERR_IO, "the test's own");
    assert_int_equal(trek_graph_step(graph), TREK_ERR_IO);
    FAILS(trek_graph_zero_grad(graph), TREK_ERR_IO, "");
    assert_float_equal(value_of(graph, "0.factor"), 2, 0);
    assert_float_equal(grad_of(graph, "0.factor"), 4, 1e-6);
    assert_int_equal(trek_graph_step(graph), TREK_OK);
    assert_float_equal(value_of(graph, "0.factor"), 1, 1e-6);
    assert_false(grad_of(graph, "0.factor") != 0 && !isnan(grad_of(graph, "0.factor")));
    assert_int_equal(trek_graph_steps(graph), 1);
    assert_int_equal(trek_rank_here.rng_step, rng + 1);
    assert_int_equal(trek_rank_here.rng_draw, 0);
    assert_true(isnan(trek_graph_grad_norm(graph)));

    double shares[2] = { 7, 7 };
    assert_int_equal(trek_graph_shares(graph, shares, 2), 1);
    assert_float_equal(shares[0], 1, 0);
    assert_float_equal(shares[1], 7, 0);
    assert_int_equal(trek_graph_world_size(graph), 1);
    assert_int_equal(trek_graph_parameters_changed(graph), TREK_OK);
    assert_int_equal(trek_graph_replicate_input(graph, "input"), TREK_OK);
    FAILS(trek_graph_replicate_input(graph, "nothing"), TREK_ERR_ARGUMENT, "");
    /* Another optimizer takes the place of the first. */
    FAILS(trek_graph_set_optimizer(graph, trek_adam(&(trek_adam_opts){ .lr = -1 })), TREK_ERR_ARGUMENT, "");
    assert_float_equal(trek_graph_lr(graph), 0.25, 0);
    assert_int_equal(trek_graph_set_optimizer(graph, trek_adam(&(trek_adam_opts){ .lr = 0.5 })), TREK_OK);
    assert_int_equal(trek_graph_backward(graph, total(trek_graph_forward(graph, filled(1)))), TREK_OK);
    assert_int_equal(trek_graph_step(graph), TREK_OK);
    assert_float_equal(value_of(graph, "0.factor"), 0.5, 1e-5); /* Adam's first step is lr */
    trek_graph_free(&graph);
}

static void other_graphs_parameters(void **state)
{
    trek_graph *first = built(trek_flow_from(scale(2))), *second = built(trek_flow_from(scale(3)));
    trek_var *y = trek_graph_forward(second, trek_graph_forward(first, filled(1)));
    assert_int_equal(trek_graph_backward(second, total(y)), TREK_OK);
    assert_float_equal(grad_of(second, "0.factor"), 12, 1e-4);
    assert_false(grad_of(first, "0.factor") > 0);
    FAILS(trek_graph_backward(first, trek_graph_forward(first, filled(1))), TREK_ERR_SHAPE, "");
    assert_int_equal(trek_graph_zero_grad(second), TREK_OK);
    assert_false(grad_of(second, "0.factor") > 0);
    trek_graph_free(&first);
    trek_graph_free(&second);
}

static void one_pass(trek_graph *graph, double x)
{
    assert_int_equal(trek_graph_backward(graph, trek_mean(trek_graph_forward(graph, filled(x)), trek_dims_all(), false)),
                     TREK_OK);
    assert_int_equal(trek_graph_step(graph), TREK_OK);
}

static void schedules(void **state)
{
    trek_graph *graph = built(trek_flow_from(scale(0)));
    assert_int_equal(trek_graph_set_optimizer(graph, trek_sgd(&(trek_sgd_opts){ .lr = 9 })), TREK_OK);
    trek_schedule schedule = trek_step_lr(1, 2, 0.5);
    assert_int_equal(trek_graph_set_schedule(graph, &schedule), TREK_OK);
    static const double expected[] = { 1, 1, 0.5, 0.5, 0.25 };
    double sum = 0;
    for (int k = 0; k < 5; k++) {
        one_pass(graph, 1);
        assert_float_equal(trek_graph_lr(graph), expected[k], 1e-12);
        sum -= expected[k];
        assert_float_equal(value_of(graph, "0.factor"), sum, 1e-5);
    }
    assert_int_equal(trek_graph_set_lr(graph, 0.125), TREK_OK); /* ends the schedule */
    one_pass(graph, 1);
    assert_float_equal(trek_graph_lr(graph), 0.125, 0);
    FAILS(trek_graph_set_schedule(graph, &(trek_schedule){ .kind = TREK_SCHEDULE_KIND_NONE }), TREK_ERR_ARGUMENT, "");
    trek_graph_free(&graph);
}

static void clipping(void **state)
{
    /* Gradients 3 and 4 of two parameters: norm 5. */
    trek_flow *flow = trek_flow_split(trek_flow_new(), (trek_module *[]){ scale(0), scale(0) }, 2);
    trek_flow_merge(flow, TREK_REDUCTION_SUM);
    trek_graph *graph = built(flow);
    assert_int_equal(trek_graph_set_optimizer(graph, trek_sgd(&(trek_sgd_opts){ .lr = 1 })), TREK_OK);
    trek_var *a = trek_module_find(trek_graph_module(graph), "0.factor"),
        *b = trek_module_find(trek_graph_module(graph), "1.factor");
    static const double limits[][4] = { /* max_norm, max_value, update of a, of b */
        { 1, 0, 0.6, 0.8 }, { 0, 3.5, 3, 3.5 }, { 2.5, 1.75, 1.5, 1.75 }, { 50, 0, 3, 4 }, { 0, 0, 3, 4 } };
    double value_a = 0, value_b = 0;
    for (int k = 0; k < 5; k++) {
        assert_int_equal(trek_graph_set_clip(graph, limits[k][0], limits[k][1]), TREK_OK);
        trek_var *loss = trek_add(trek_mul_scalar(a, 3), trek_mul_scalar(b, 4));
        assert_int_equal(trek_graph_backward(graph, total(loss)), TREK_OK);
        assert_int_equal(trek_graph_step(graph), TREK_OK);
        value_a -= limits[k][2];
        value_b -= limits[k][3];
        assert_float_equal(trek_var_item(a), value_a, 2e-5);
        assert_float_equal(trek_var_item(b), value_b, 2e-5);
        if (limits[k][0] > 0)
            assert_float_equal(trek_graph_grad_norm(graph), 5, 1e-5);
    }
    FAILS(trek_graph_set_clip(graph, (double)NAN, 0), TREK_ERR_ARGUMENT, "");
    trek_graph_free(&graph);
}

/* A pass of one label and one of three: with .accumulate their joint mean, without it their sum. */
static void passes_of_a_step(void **state)
{
    for (int way = 0; way < 3; way++) { /* as the loss knows; stated; added up */
        trek_graph *graph = built(trek_flow_from(scale(1)));
        trek_optimizer_spec sgd = trek_sgd(&(trek_sgd_opts){ .lr = 1 });
        assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .optimizer = sgd, .accumulate = way < 2 ? 2 : 0 }),
                         TREK_OK);
        trek_var *a = trek_module_find(trek_graph_module(graph), "0.factor");
        static const double xs[] = { 1, 0 }, rows[] = { 1, 3 };
        for (int pass = 0; pass < 2; pass++) {
            trek_var *loss = trek_mean(trek_graph_forward(graph, filled(xs[pass])), trek_dims_all(), false);
            if (way == 0)
                assert_int_equal(trek_loss_set_weight(loss, rows[pass]), TREK_OK);
            assert_int_equal(way == 0 ? trek_graph_backward(graph, loss) : trek_graph_backward_weighted(graph, loss, rows[pass]),
                             TREK_OK);
        }
        double before = trek_var_item(a);
        assert_int_equal(trek_graph_reduce(graph), TREK_OK);
        assert_float_equal(trek_var_item(trek_var_grad(a)), way < 2 ? 0.25 : 1, 1e-6);
        assert_int_equal(trek_graph_step(graph), TREK_OK);
        assert_float_equal(trek_var_item(a), before - (way < 2 ? 0.25 : 1), 1e-6);
        trek_graph_free(&graph);
    }
}

static void fused_steps(void **state)
{
    trek_seed(1);
    trek_module *first = trek_nn_linear(3, 8, trek_cpu(0)), *relu = trek_nn_relu(), *second = trek_nn_linear(8, 4, trek_cpu(0));
    trek_module *gelu = trek_nn_gelu(), *third = trek_nn_linear(4, 2, trek_cpu(0)), *last = trek_nn_relu();
    trek_flow *flow = trek_flow_through(trek_flow_through(trek_flow_through(trek_flow_from(first), relu), second), gelu);
    trek_flow_tag(trek_flow_through(flow, third), "before"); /* tagged: must not disappear */
    trek_graph *graph = built(trek_flow_through(flow, last));
    assert_int_equal(graph->route.n_steps, 4);
    trek_var *x = trek_var_from(trek_tensor_randn(trek_dims(5, 3), TREK_F32, trek_cpu(0)));
    trek_var *y = trek_graph_forward(graph, x), *plain = x;
    trek_module *all[] = { first, relu, second, gelu, third, last };
    for (int k = 0; k < 6; k++)
        plain = trek_forward(all[k], plain);
    assert_all(trek_sum(trek_abs(trek_sub(y, plain)), trek_dims_all(), false), 0);
    assert_non_null(trek_graph_tagged(graph, "before"));
    assert_int_equal(trek_graph_backward(graph, total(y)), TREK_OK);
    trek_var *grad = trek_var_retain(trek_var_grad(trek_module_find(trek_graph_module(graph), "0.weight")));
    trek_var *list[] = { trek_module_find(trek_graph_module(graph), "0.weight") }, *fresh;
    trek_var *loss = total(plain);
    assert_int_equal(trek_grad(&loss, 1, list, 1, NULL, NULL, &fresh), TREK_OK);
    assert_all(trek_sum(trek_abs(trek_sub(grad, fresh)), trek_dims_all(), false), 0);
    trek_var_release(grad);
    trek_graph_free(&graph);
}

/* A value is dropped after its last use: without recording, a long chain holds few values at a time. */
static void values_are_dropped(void **state)
{
    trek_flow *flow = trek_flow_new();
    for (int k = 0; k < 50; k++)
        trek_flow_through(flow, scale(1));
    trek_graph *graph = built(flow);
    trek_var *x = trek_var_from(trek_tensor_ones(trek_dims(1 << 16), TREK_F32, trek_cpu(0)));
    trek_no_grad_begin();
    trek_memory_reset_peak(trek_cpu(0));
    int64_t before = trek_memory_usage(trek_cpu(0)).allocated;
    assert_non_null(trek_graph_forward(graph, x));
    int64_t peak = trek_memory_usage(trek_cpu(0)).allocated_peak - before;
    trek_no_grad_end();
    assert_true(peak < 4 * (4 << 16));
    trek_graph_free(&graph);
}

/* --- observation ----------------------------------------------------------------------------------------- */

static void observation(void **state)
{
    trek_graph *inner = built(trek_flow_from(scale(1)));
    trek_graph *graph = built(trek_flow_tag(trek_flow_from(trek_graph_module(inner)), "out"));
    FAILS(trek_graph_collect(graph, "out"), TREK_ERR_STATE, "");
    assert_forward(graph, 2, 2);
    FAILS(trek_graph_collect(graph, "out"), TREK_ERR_SHAPE, "");
    assert_int_equal(trek_graph_collect_with(graph, "out", TREK_REDUCTION_SUM), TREK_OK);
    assert_int_equal(trek_graph_collect_with(graph, "out", TREK_REDUCTION_MEAN), TREK_OK);
    assert_true(isnan(trek_graph_latest(graph, "out")));
    assert_int_equal(trek_graph_record(inner, "deep", 5), TREK_OK);
    assert_int_equal(trek_graph_flush(graph), TREK_OK);
    assert_float_equal(trek_graph_latest(graph, "out"), 7, 1e-5); /* (12 + 2) / 2 */
    assert_float_equal(trek_graph_latest(inner, "deep"), 5, 0);
    assert_int_equal(trek_graph_flush(graph), TREK_OK); /* nothing new: no point */
    assert_int_equal(trek_trend_count(trek_graph_trend(graph, "out")), 1);
    static const struct { trek_reduction how; double value; } reduced[] = {
        { TREK_REDUCTION_MEAN, 2 }, { TREK_REDUCTION_SUM, 12 }, { TREK_REDUCTION_MAX, 2 }, { TREK_REDUCTION_MIN, 2 },
        { TREK_REDUCTION_NORM, 4.898979486 },
    };
    for (int k = 0; k < 5; k++) {
        assert_int_equal(trek_graph_collect_with(graph, "out", reduced[k].how), TREK_OK);
        assert_int_equal(trek_graph_flush(graph), TREK_OK);
        assert_float_equal(trek_graph_latest(graph, "out"), reduced[k].value, 1e-5);
    }
    assert_int_equal(trek_graph_collect_with(graph, "out", TREK_REDUCTION_PROD), TREK_ERR_ARGUMENT);
    assert_non_null(
        strstr(trek_error(), "graph_collect_with: reduction: 4; must be TREK_REDUCTION_MEAN, _SUM, _MAX, _MIN or _NORM"));
    trek_error_clear();
    trek_var *one = trek_var_from(trek_tensor_full(trek_dims(1), 4, TREK_F32, trek_cpu(0)));
    assert_non_null(trek_graph_forward(graph, one));
    assert_int_equal(trek_graph_collect(graph, "out"), TREK_OK);
    assert_int_equal(trek_graph_flush(graph), TREK_OK);
    assert_float_equal(trek_graph_latest(graph, "out"), 4, 1e-6);
    assert_null(trek_graph_trend(graph, "nothing"));
    assert_int_equal(trek_error_status(), TREK_OK);
    trek_graph_free(&graph);
}

static void trends(void **state)
{
    trek_graph *graph = built(trek_flow_from(scale(1)));
    assert_int_equal(trek_trend_count(NULL), 0);
    assert_float_equal(trek_trend_slope(NULL, 0), 0, 0);
    assert_true(isnan(trek_trend_latest(NULL)));
    static const double points[] = { 10, 8, 6, 4, 2, 2, 2 };
    const trek_trend *trend = NULL;
    for (int k = 0; k < 7; k++) {
        assert_int_equal(trek_graph_record(graph, "loss", points[k] - 1), TREK_OK);
        assert_int_equal(trek_graph_record(graph, "loss", points[k] + 1), TREK_OK);
        assert_int_equal(trek_graph_flush(graph), TREK_OK);
        trend = trek_graph_trend(graph, "loss");
        assert_float_equal(trek_trend_latest(trend), points[k], 1e-12);
        if (k == 0) {
            assert_float_equal(trek_trend_slope(trend, 0), 0, 0);
            assert_false(trek_trend_stalled(trend, 3, 1e-3));
            assert_false(trek_trend_converged(trend, 0, 1e-3));
            assert_false(trek_trend_improving(trend, 0));
        }
        if (k == 4) {
            assert_float_equal(trek_trend_slope(trend, 0), -2, 1e-12);
            assert_true(trek_trend_improving(trend, 0));
            assert_false(trek_trend_stalled(trend, 3, 1));
        }
    }
    assert_float_equal(trek_trend_slope(trend, 3), 0, 1e-12);
    assert_true(trek_trend_stalled(trend, 3, 1e-6));
    assert_false(trek_trend_stalled(trend, 8, 1e6)); /* fewer points than asked for */
    assert_true(trek_trend_converged(trend, 3, 1e-6));
    assert_false(trek_trend_converged(trend, 5, 1e-6));
    assert_float_equal(trek_trend_mean(trend, 4), 2.5, 1e-12);
    assert_float_equal(trek_trend_min(trend, 0), 2, 0);
    assert_float_equal(trek_trend_max(trend, 5), 6, 0);
    assert_float_equal(trek_trend_value(trend, 1), 8, 1e-12);
    assert_true(isnan(trek_trend_value(trend, 7)));
    trek_graph_free(&graph);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(steps), TEST(other_graphs_parameters), TEST(schedules), TEST(clipping), TEST(passes_of_a_step), TEST(fused_steps),
        TEST(values_are_dropped), TEST(observation), TEST(trends),
    };
#undef TEST
    return cmocka_run_group_tests_name("graph_training", tests, NULL, NULL);
}
