/* SPDX-License-Identifier: Apache-2.0 */
/* Recurrent layers, and tables of rows with bags and positions, whose batch is split over ranks: with lengths and masks between
 * the layers, the parameters after some steps are one rank's; what cannot be split says so. */
#include "autograd/backward.h"
#include "autograd/grad.h"
#include "autograd/ops.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/flow_branches.h"
#include "graph/passes.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "tensor/copies.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { ROWS = 7, MOST_STEPS = 5, IN = 3, STEPS_TAKEN = 4, MOST = 4096 };

typedef struct kind {
    bool lstm, rnn, time_major;
    bool rows, bags;          /* tables instead */
    double limited;
} kind;

static trek_graph *build(trek_device device, void *arg)
{
    const kind *k = arg;
    trek_lstm_opts opts = { .in = IN, .hidden = 4, .layers = 2, .bidirectional = true, .dropout = 0.3, .dtype = TREK_F64,
                            .batch_first = !k->time_major, .device = device };
    trek_flow *flow = trek_flow_input(trek_flow_new(), "lengths");
    trek_rnn_opts plain = { .in = IN, .hidden = 4, .layers = 2, .bidirectional = true, .dropout = 0.3, .dtype = TREK_F64,
                            .batch_first = opts.batch_first, .device = opts.device };
    trek_flow_through(flow, k->lstm ? trek_nn_lstm_with(&opts) : k->rnn ? trek_nn_rnn_with(&plain) : trek_nn_gru_with(&opts));
    trek_flow_using(flow, "lengths");
    trek_flow_through(flow, trek_nn_linear_with(&(trek_linear_opts){ .in = 8, .out = 2, .dtype = TREK_F64, .device = device }));
    return trek_flow_build(flow);
}

/* Rows of a table by bags; or one by one, with positions. */
static trek_graph *build_rows(trek_device device, void *arg)
{
    const kind *k = arg;
    trek_embedding_opts rows = { .num = 9, .dim = 4, .max_norm = k->limited, .dtype = TREK_F64, .device = device };
    trek_embedding_bag_opts bags = { .num = 9, .dim = 4, .padding_idx = 2, .dtype = TREK_F64, .device = device };
    trek_flow *flow = trek_flow_from(k->bags ? trek_nn_embedding_bag_with(&bags) : trek_nn_embedding_with(&rows));
    if (!k->bags) {
        trek_sinusoidal_positions_opts waves = { .dim = 4, .length = 8, .dropout = 0.3, .dtype = TREK_F64, .device = device };
        trek_flow_through(flow, trek_nn_sinusoidal_positions_with(&waves));
        trek_flow_through(flow, trek_nn_rotary(4, 8, device));
    }
    trek_flow_through(flow, trek_nn_linear_with(&(trek_linear_opts){ .in = 4, .out = 2, .dtype = TREK_F64, .device = device }));
    return trek_flow_build(flow);
}

static double number(int64_t k)
{
    uint32_t h = (uint32_t)k * 0x9e3779b9u;
    h = (h ^ h >> 16) * 0x7feb352du;
    return (double)(h >> 8) * 0x1p-23 - 1;
}

/* Parameter values that need no generator. */
static trek_status fill(const char *name, trek_var *param, void *arg)
{
    int *place = arg;
    double values[MOST];
    for (int64_t i = 0; i < trek_var_numel(param); i++)
        values[i] = 0.5 * number(++*place);
    trek_tensor *wide = trek_tensor_from_data(values, trek_var_shape(param), TREK_F64, trek_var_device(param));
    trek_status status = trek_tensor_copy_from(trek_var_data(param), wide);
    trek_tensor_release(wide);
    return status;
}

typedef struct record {
    double values[MOST];
    int64_t n;
} record;

static trek_status collect(const char *name, trek_var *param, void *arg)
{
    record *to = arg;
    assert_true(to->n + trek_var_numel(param) <= MOST);
    trek_status status = trek_tensor_to_host(trek_var_data(param), TREK_F64, to->values + to->n,
                                             (size_t)trek_var_numel(param) * sizeof(double));
    to->n += trek_var_numel(param);
    return status;
}

static trek_graph *set_up(kind *k, int world)
{
    trek_device devices[5];
    int place = 0;
    for (int r = 0; r < world; r++)
        devices[r] = test_device_of_rank(r);
    trek_graph *(*builder)(trek_device, void *) = k->rows ? build_rows : build;
    trek_graph *graph = builder(devices[0], k);
    assert_non_null(graph);
    assert_int_equal(trek_module_each_param(trek_graph_module(graph), fill, &place), TREK_OK);
    assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){
        .build_replica = builder, .arg = k, .devices = devices, .ranks = world,
        .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.5, .momentum = 0.9 }) }), TREK_OK);
    return graph;
}

static trek_var *input(kind *k, int step)
{
    double values[ROWS * MOST_STEPS * IN];
    for (int64_t i = 0; i < ROWS * MOST_STEPS * IN; i++)
        values[i] = number(i + 5000 * (step + 1));
    trek_shape shape = k->time_major ? trek_dims(MOST_STEPS, ROWS, IN) : trek_dims(ROWS, MOST_STEPS, IN);
    return trek_var_from(trek_tensor_from_data(values, shape, TREK_F64, test_device()));
}

static trek_var *lengths(int step)
{
    int64_t values[ROWS];
    for (int row = 0; row < ROWS; row++)
        values[row] = (row * 3 + step) % (MOST_STEPS + 1);
    return trek_var_from(trek_tensor_from_data(values, trek_dims(ROWS), TREK_I64, test_device()));
}

static trek_var *places(int step)
{
    int64_t values[ROWS * MOST_STEPS];
    for (int64_t i = 0; i < ROWS * MOST_STEPS; i++)
        values[i] = (i * 7 + i / 5 + step) % 9;
    return trek_var_from(trek_tensor_from_data(values, trek_dims(ROWS, MOST_STEPS), TREK_I64, test_device()));
}

static void train(kind *k, int world, record *to)
{
    trek_graph *graph = set_up(k, world);
    trek_seed(9);
    to->n = 0;
    for (int step = 0; step < STEPS_TAKEN; step++) {
        trek_scope scope = trek_scope_begin();
        trek_var *y = k->rows ? trek_graph_forward(graph, places(step))
            : trek_graph_forward_many(graph, (trek_var *[]){ input(k, step), lengths(step) }, 2);
        trek_graph_backward(graph, y ? trek_mean(trek_square(y), trek_dims_all(), false) : NULL);
        if (trek_error_status() != TREK_OK)
            print_error("%s\n", trek_error());
        assert_int_equal(trek_error_status(), TREK_OK);
        trek_scope_end(scope);
        assert_int_equal(trek_graph_step(graph), TREK_OK);
    }
    assert_int_equal(trek_module_each_param(trek_graph_module(graph), collect, to), TREK_OK);
    trek_graph_free(&graph);
    assert_int_equal(trek_tape_size(), 0);
}

static void compare_worlds(kind k)
{
    static record one, many;
    train(&k, 1, &one);
    for (int world = 2; world < 6; world += test_on_cpu() ? 1 : 9) {
        train(&k, world, &many);
        for (int64_t i = 0; i < one.n; i++)
            assert_true(fabs(one.values[i] - many.values[i]) <= 1e-10 * (1 + fabs(one.values[i])));
    }
}

static void test_split(void **state)
{
    for (int which = 0; which < 3; which++)
        compare_worlds((kind){ .lstm = which == 1, .rnn = which == 2 });
}

static void test_rows_and_positions(void **state)
{
    for (int bags = 0; bags < 2; bags++)
        compare_worlds((kind){ .rows = true, .bags = bags });
}

/* Ranks would each scale rows of their own. */
static void test_max_norm_is_refused(void **state)
{
    kind k = { .rows = true, .limited = 1 };
    trek_graph *graph = set_up(&k, 2);
    trek_scope scope = trek_scope_begin();
    REFUSED(trek_graph_forward(graph, places(0)), TREK_ERR_UNSUPPORTED, "");
    trek_scope_end(scope);
    trek_graph_free(&graph);
}

/* Dimension 0 of time-major data is not the batch. */
static void test_time_major_is_refused(void **state)
{
    kind k = { .lstm = true, .time_major = true };
    trek_graph *graph = set_up(&k, 2);
    trek_scope scope = trek_scope_begin();
    assert_null(trek_graph_forward_many(graph, (trek_var *[]){ input(&k, 0), lengths(0) }, 2));
    assert_true(trek_error_status() != TREK_OK);
    trek_error_clear();
    trek_scope_end(scope);
    trek_graph_free(&graph);
}

int main(void)
{
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL); /* more ranks than cores is what this is about */
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_split), cmocka_unit_test(test_time_major_is_refused),
                                        cmocka_unit_test(test_rows_and_positions), cmocka_unit_test(test_max_norm_is_refused) };
    return cmocka_run_group_tests_name("recurrent_ranks", tests, NULL, NULL);
}
