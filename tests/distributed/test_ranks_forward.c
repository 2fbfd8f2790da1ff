/* SPDX-License-Identifier: Apache-2.0 */
/* Forwards over ranks, of all kinds: evaluation, several before a backward, scalars, tags, inputs that cannot be split. */
#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/ops.h"
#include "graph/flow.h"
#include "graph/flow_branches.h"
#include "tensor/memory.h"
#include "tensor/rank_context.h"
#include "tests/distributed/probe.h"
#include "tests/support/refused.h"

/* --- evaluation and forwards of all kinds ---------------------------------------------------------------- */

static void test_evaluation_is_exact(void **state)
{
    trek_graph *single = build(trek_cpu(0), NULL), *graph = trained(4, 0);
    trek_graph_train(single, false);
    trek_graph_train(graph, false);
    trek_no_grad_begin();
    double right[2] = { 0, 0 };
    for (int64_t at = 0, rows; at < 103; at += rows) { /* batches of 10, then 3 */
        rows = 103 - at < 10 ? 103 - at : 10;
        trek_scope scope = trek_scope_begin();
        trek_var *x = batch((uint32_t)at + 20, rows);
        trek_var *a = trek_graph_forward(single, x), *b = trek_graph_forward(graph, x);
        expect_clear();
        assert_false(trek_var_requires_grad(b));
        assert_true(trek_shape_equal(trek_var_shape(a), trek_var_shape(b)));
        assert_true(trek_var_item(trek_max(trek_abs(trek_sub(a, b)), trek_dims_all(), false)) < 1e-6);
        right[0] += trek_var_item(trek_sum(trek_gt_scalar(a, 0), trek_dims_all(), false));
        right[1] += trek_var_item(trek_sum(trek_gt_scalar(b, 0), trek_dims_all(), false));
        trek_scope_end(scope);
    }
    trek_no_grad_end();
    assert_true(right[0] == right[1] && right[0] > 0);
    assert_int_equal(trek_tape_size(), 0);
    trek_graph_free(&single);
    trek_graph_free(&graph);
}

static trek_status count_tape(int rank, void *arg)
{
    ((int64_t *)arg)[rank] = trek_tape_size();
    return TREK_OK;
}

static void test_forward_without_backward(void **state)
{
    trek_graph *graph = trained(3, 0);
    int64_t used = 0, nodes[3];
    for (int i = 0; i < 20; i++) {
        trek_scope scope = trek_scope_begin();
        trek_var *kept = trek_var_retain(trek_graph_forward(graph, batch(5, 9)));
        assert_true(trek_var_requires_grad(kept));
        trek_scope_end(scope);
        trek_var_release(kept);
        trek_ranks *ranks = trek_ranks_new(NULL, 3);
        assert_int_equal(trek_ranks_run(ranks, count_tape, nodes), TREK_OK);
        trek_ranks_free(&ranks);
        for (int r = 0; r < 3; r++)
            assert_int_equal(nodes[r], 0);
        if (i == 5)
            used = trek_memory_usage(trek_cpu(0)).allocated;
        assert_true(i < 5 || trek_memory_usage(trek_cpu(0)).allocated <= used + 4096);
    }
    train_once(graph, 9, 5);
    expect_clear();
    trek_graph_free(&graph);
}

static void grads_of(trek_graph *graph, float *grads)
{
    assert_int_equal(trek_graph_reduce(graph), TREK_OK);
    trek_var *grad = trek_var_grad(probe_of(graph)->weight);
    assert_non_null(grad);
    trek_tensor_to_host(trek_var_data(grad), TREK_F32, grads, 2 * FEATURES * sizeof *grads);
}

/* Two forwards before one backward; then two backwards over one forward that is kept. */
static void test_several_forwards_and_backwards(void **state)
{
    float grads[2][2 * FEATURES];
    for (int kind = 0; kind < 2; kind++)
        for (int w = 0; w < 2; w++) {
            trek_graph *graph = trained(w ? 3 : 1, 0);
            trek_scope scope = trek_scope_begin();
            trek_var *a = trek_graph_forward(graph, batch(1, 5));
            if (kind == 0) {
                trek_var *b = trek_graph_forward(graph, batch(2, 5));
                trek_graph_backward(graph, trek_mean(trek_mul(a, trek_tanh(b)), trek_dims_all(), false));
            } else {
                trek_backward_with(trek_mean(trek_square(a), trek_dims_all(), false), NULL,
                                   &(trek_backward_opts){ .retain_graph = true });
                trek_graph_backward(graph, trek_sum(trek_tanh(a), trek_dims_all(), false));
            }
            expect_clear();
            grads_of(graph, grads[w]);
            trek_scope_end(scope);
            assert_int_equal(trek_graph_zero_grad(graph), TREK_OK);
            assert_null(trek_var_grad(probe_of(graph)->weight));
            trek_graph_free(&graph);
            for (int i = 0; w && i < 2 * FEATURES; i++)
                assert_true(fabsf(grads[0][i] - grads[1][i]) < 1e-5f);
        }
}

static trek_var *note_sum(trek_var *var, trek_var *grad, void *arg)
{
    *(double *)arg = trek_tensor_item(trek_var_data(trek_sum(grad, trek_dims_all(), false)));
    return NULL;
}

/* What graph.h says: a hook sees rank 0's part; the gradient is whole after the reduction. */
static void test_hooks_see_a_part(void **state)
{
    double part[3] = { 0 }, whole[3] = { 0 };
    for (int world = 1; world <= 2; world++) {
        trek_graph *graph = trained(world, 0);
        assert_true(trek_var_on_grad(probe_of(graph)->bias, note_sum, &part[world]) > 0);
        trek_scope scope = trek_scope_begin();
        trek_graph_backward(graph, trek_sum(trek_graph_forward(graph, batch(1, 5)), trek_dims_all(), false));
            /* 5 rows: 3 and 2 */
        assert_int_equal(trek_graph_reduce(graph), TREK_OK);
        whole[world] = trek_tensor_item(trek_var_data(trek_sum(trek_var_grad(probe_of(graph)->bias), trek_dims_all(), false)));
        trek_scope_end(scope);
        expect_clear();
        trek_graph_free(&graph);
    }
    assert_true(fabs(part[1] - whole[1]) < 1e-6 && fabs(whole[2] - whole[1]) < 1e-6);
    assert_true(fabs(part[2] - 3.0 / 5 * whole[1]) < 1e-6);
}

/* What feeds a graph is trained, too: its gradient comes back through the split. */
static void test_gradient_of_the_input(void **state)
{
    float grads[2][4 * FEATURES];
    for (int w = 0; w < 2; w++) {
        trek_graph *graph = trained(w ? 3 : 1, 0);
        trek_scope scope = trek_scope_begin();
        trek_tensor *data = values(7, trek_dims(4, FEATURES), trek_cpu(0));
        trek_var *leaf = trek_var_new(data, true);
        trek_tensor_release(data);
        trek_var *y = trek_graph_forward(graph, trek_tanh(leaf));
        assert_int_equal(trek_backward(trek_mean(trek_square(y), trek_dims_all(), false)), TREK_OK);
        assert_non_null(trek_var_grad(leaf));
        trek_tensor_to_host(trek_var_data(trek_var_grad(leaf)), TREK_F32, grads[w], sizeof grads[w]);
        /* and none for it where only this graph's parameters are asked for */
        trek_var_zero_grad(leaf);
        trek_graph_backward(graph, trek_sum(trek_graph_forward(graph, trek_tanh(leaf)), trek_dims_all(), false));
        expect_clear();
        assert_null(trek_var_grad(leaf));
        trek_var_release(leaf);
        trek_scope_end(scope);
        trek_graph_free(&graph);
    }
    for (int i = 0; i < 4 * FEATURES; i++)
        assert_true(fabsf(grads[0][i] - grads[1][i]) < 1e-6f && grads[0][i] != 0);
}

static void test_what_cannot_be_split(void **state)
{
    trek_graph *graph = trained(2, 0);
    trek_scope scope = trek_scope_begin();
    trek_var *y = trek_graph_forward(graph, batch(1, 4));
    trek_var *loss = trek_mean(trek_square(y), trek_dims_all(), false);
    trek_backward_with(loss, NULL, &(trek_backward_opts){ .create_graph = true });
    expect_error(TREK_ERR_UNSUPPORTED, "backward: create_graph: a forward that is split over 2 ranks");
    assert_null(trek_graph_forward(graph, NULL));
    trek_error_clear();
    trek_graph_backward(graph, trek_graph_forward(graph, batch(1, 4)));
    expect_error(TREK_ERR_SHAPE, "scalar");
    trek_graph_zero_grad(graph);
    trek_scope_end(scope);
    train_once(graph, 4, 1);
    expect_clear();
    trek_graph_free(&graph);
}

/* --- scalars, tags, several inputs ----------------------------------------------------------------------- */

typedef struct pair_module {
    trek_module base;
    trek_var *weight;
} pair_module;

static const char *const pair_inputs[] = { "table", NULL };

/* Mean over the rows of (x * weight) . table's first row: a scalar. */
static trek_var *pair_forward(trek_module *self, trek_var *const *inputs, int n)
{
    trek_var *row = trek_narrow(inputs[1], 0, 0, 1);
    return trek_mean(trek_sum(trek_mul(trek_mul(inputs[0], ((pair_module *)self)->weight), row), trek_dims(1), false),
                     trek_dims_all(), false);
}

static const trek_module_class pair_class = { .name = "pair", .size = sizeof(pair_module), .forward_many = pair_forward,
                                              .input_names = pair_inputs };

static trek_graph *build_pair(trek_device device, void *arg)
{
    trek_module *m = trek_module_new(&pair_class);
    trek_module_param(m, "weight", offsetof(pair_module, weight), values(4, trek_dims(FEATURES), device));
    trek_flow *flow = trek_flow_from(trek_nn_tanh());
    trek_flow_tag(flow, "hidden");
    trek_flow_input(flow, "table");
    trek_flow_through(flow, trek_module_check(m));
    trek_flow_using(flow, "table");
    return trek_flow_build(flow);
}

static void test_scalars_tags_and_whole_inputs(void **state)
{
    double losses[2];
    float table_grads[2][2 * FEATURES], x_grads[2][5 * FEATURES];
    for (int w = 0; w < 2; w++) {
        trek_graph *graph = build_pair(trek_cpu(0), NULL);
        assert_non_null(graph);
        assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build_pair, .ranks = w ? 3 : 1,
            .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.1 }) }), TREK_OK);
        trek_scope scope = trek_scope_begin();
        trek_tensor *x_data = values(1, trek_dims(5, FEATURES), trek_cpu(0)),
            *table_data = values(2, trek_dims(2, FEATURES), trek_cpu(0));
        trek_var *x = trek_var_new(x_data, true), *table = trek_var_new(table_data, true);
        trek_tensor_release(x_data);
        trek_tensor_release(table_data);
        trek_var *both[2] = { x, table };
        if (w) {
            REFUSED(trek_graph_forward_many(graph, both, 2), TREK_ERR_SHAPE, "trek_graph_replicate_input");
        }
        assert_int_equal(trek_graph_replicate_input(graph, "table"), TREK_OK);
        trek_var *y = trek_graph_forward_many(graph, both, 2);
        expect_clear();
        assert_int_equal(trek_var_ndim(y), 0);
        trek_var *hidden = trek_graph_tagged(graph, "hidden");
        assert_int_equal(trek_var_size(hidden, 0), 5);
        trek_var *loss = trek_add(trek_square(y), trek_mean(trek_square(hidden), trek_dims_all(), false));
        losses[w] = trek_var_item(loss);
        assert_int_equal(trek_backward(loss), TREK_OK);
        trek_tensor_to_host(trek_var_data(trek_var_grad(table)), TREK_F32, table_grads[w], sizeof table_grads[w]);
        trek_tensor_to_host(trek_var_data(trek_var_grad(x)), TREK_F32, x_grads[w], sizeof x_grads[w]);
        trek_scope_end(scope);
        assert_int_equal(trek_graph_step(graph), TREK_OK);
        trek_var_release(x);
        trek_var_release(table);
        trek_graph_free(&graph);
    }
    assert_true(fabs(losses[0] - losses[1]) < 1e-6);
    for (int i = 0; i < 2 * FEATURES; i++)
        assert_true(fabsf(table_grads[0][i] - table_grads[1][i]) < 1e-6f);
    for (int i = 0; i < 5 * FEATURES; i++)
        assert_true(fabsf(x_grads[0][i] - x_grads[1][i]) < 1e-6f && x_grads[0][i] != 0);
}

int main(void)
{
    trek_allocator allocator = { test_allocate, test_release, NULL };
    if (trek_allocator_set(&allocator) != TREK_OK)
        return 1;
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_evaluation_is_exact, set_up), cmocka_unit_test_setup(test_forward_without_backward, set_up),
        cmocka_unit_test_setup(test_several_forwards_and_backwards, set_up),
        cmocka_unit_test_setup(test_hooks_see_a_part, set_up), cmocka_unit_test_setup(test_gradient_of_the_input, set_up),
        cmocka_unit_test_setup(test_what_cannot_be_split, set_up),
        cmocka_unit_test_setup(test_scalars_tags_and_whole_inputs, set_up),
    };
    return cmocka_run_group_tests_name("ranks_forward", tests, NULL, NULL);
}
