/* SPDX-License-Identifier: Apache-2.0 */
/* Loops that halt by rows, switches and maps, with draws of every kind inside: training on ranks with unequal parts of the batch
 * is that on one device, whichever rank makes fewer passes or has no row for a branch. */
#include "autograd/backward.h"
#include "autograd/grad.h"
#include "autograd/ops.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/flow_branches.h"
#include "graph/flow_control.h"
#include "graph/graph_loader.h"
#include "graph/inspect.h"
#include "graph/passes.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "tensor/copies.h"
#include "tensor/creation.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { TOKENS = 4, DIM = 6, MOST_ROWS = 11, STEPS = 4, MOST = 4096 };

/* --- the models ----------------------------------------------------------------------------- */

typedef struct plain_module {
    trek_module base;
    trek_var *(*run)(trek_var *x, bool training);
} plain_module;
static trek_var *plain_forward(trek_module *self, trek_var *x)
{
    return ((plain_module *)self)->run(x, trek_module_is_training(self));
}
static const trek_module_class plain_class = { .name = "plain", .size = sizeof(plain_module), .forward = plain_forward };
static trek_module *plain(trek_var *(*run)(trek_var *x, bool training))
{
    trek_module *m = trek_module_new(&plain_class);
    ((plain_module *)m)->run = run;
    return m;
}

static trek_var *first_token(trek_var *x, bool training) { return (void)training, trek_select(x, 1, 0); }

/* One of n branches, hardly a foreseeable one. */
static trek_var *hashed(trek_var *x, double n)
{
    trek_var *z = trek_mul_scalar(trek_abs(trek_select(trek_select(x, 1, 0), 1, (int64_t)n - 2)), 20);
    return trek_remainder(trek_floor(z), trek_var_from(trek_tensor_full(trek_dims_none(), n, TREK_F64, trek_var_device(x))));
}

static trek_var *third(trek_var *x, bool training) { return (void)training, hashed(x, 3); }
static trek_var *half(trek_var *x, bool training) { return (void)training, hashed(x, 2); }

static trek_var *grown(trek_var *x, bool training)
{
    return trek_add_scalar(trek_sum(trek_square(x), trek_dims(1, 2), false), -9);
}

/* Factors of the program's own draws. */
static trek_var *noisy(trek_var *x, bool training)
{
    if (!training)
        return x;
    trek_var *noise = trek_var_from(trek_tensor_randn(trek_var_shape(x), TREK_F64, trek_var_device(x)));
    return trek_mul(x, trek_add_scalar(trek_mul_scalar(noise, 0.3), 1));
}

static trek_module *linear(int64_t in, int64_t out, trek_device device)
{
    return trek_nn_linear_with(&(trek_linear_opts){ .in = in, .out = out, .dtype = TREK_F64, .device = device });
}

static trek_module *chain(trek_module *a, trek_module *b) { return trek_nn_sequential((trek_module *[]){ a, b }, 2); }

static trek_module *layer(trek_device device)
{
    return chain(chain(linear(DIM, DIM, device), trek_nn_tanh()), trek_nn_dropout(0.4));
}

static trek_module *attention(trek_device device)
{
    return trek_nn_multihead_attention_with(&(trek_multihead_attention_opts){ .embed_dim = DIM, .heads = 2, .dropout = 0.3,
                                                                              .dtype = TREK_F64, .device = device });
}

static trek_module *in_flow(trek_flow *flow) { return trek_graph_module(trek_flow_build(flow)); }

/* Verbs within verbs: rows of rows, streams of streams. */
static trek_module *inner_switch(trek_device device)
{
    trek_module *branches[] = { layer(device), in_flow(trek_flow_map(trek_flow_new(), layer(device), NULL)) };
    return in_flow(trek_flow_switch(trek_flow_new(), plain(half), branches, 2));
}

static trek_module *inner_loop(trek_device device)
{
    return in_flow(trek_flow_loop(trek_flow_new(), chain(plain(noisy), chain(linear(DIM, DIM, device), trek_nn_dropout(0.2))),
                                  &(trek_loop_opts){ .times = 4, .halt_before = plain(grown) }));
}

static trek_graph *build(trek_device device, void *arg)
{
    bool nested = *(bool *)arg;
    trek_flow *flow = trek_flow_from(linear(DIM, DIM, device));
    trek_flow_loop(flow, nested ? inner_switch(device) : layer(device),
                   &(trek_loop_opts){ .times = 5, .adaptive = !nested, .epsilon = nested ? 0 : 0.3, .trace = "pass",
                                      .halt_after = nested ? plain(grown) : chain(plain(first_token), linear(DIM, 1, device)) });
    trek_flow_tag_result(flow, "passes", "passes");
    trek_flow_tag(trek_flow_fork(flow, plain(third)), "choices");
    trek_module *branches[] = { nested ? inner_switch(device) : layer(device),
                                chain(plain(noisy), trek_nn_dropout1d(0.4)),
                                nested ? inner_loop(device) : attention(device) };
    trek_flow_switch(flow, plain(third), branches, 3);
    trek_flow_map(flow, layer(device), &(trek_map_opts){ .dim = nested });
    trek_flow_through(flow, trek_nn_dropout(0.3)); /* draws behind parts that ranks run in different numbers */
    trek_module *experts[] = { linear(DIM, 2, device), linear(DIM, 2, device) };
    trek_flow_gate(flow, chain(linear(DIM, 2, device), trek_nn_softmax(-1)), experts, 2);
    return trek_flow_build(flow);
}

/* --- training --------------------------------------------------------------------------------- */

/* Parameter values that need no generator. */
static trek_status fill(const char *name, trek_var *param, void *arg)
{
    int *place = arg;
    double values[512];
    for (int64_t i = 0; i < trek_var_numel(param); i++)
        values[i] = 0.8 * test_number(3, (uint32_t)(++*place));
    trek_tensor *wide = trek_tensor_from_data(values, trek_var_shape(param), TREK_F64, trek_var_device(param));
    trek_status status = trek_tensor_copy_from(trek_var_data(param), wide);
    trek_tensor_release(wide);
    return status;
}

typedef struct record {
    double values[MOST];
    int64_t n;
    double passes[STEPS][MOST_ROWS], choices[STEPS][MOST_ROWS];
} record;

static void keep(record *to, trek_var *v)
{
    if (!v)
        fail_msg("no value: %s", trek_error());
    int64_t n = trek_var_numel(v);
    assert_true(to->n + n <= MOST);
    assert_int_equal(trek_tensor_to_host(trek_var_data(v), TREK_F64, to->values + to->n, (size_t)n * sizeof(double)), TREK_OK);
    to->n += n;
}

static trek_status collect(const char *name, trek_var *param, void *arg)
{
    keep(arg, param);
    return TREK_OK;
}

static trek_graph *set_up(trek_graph *(*builder)(trek_device, void *), void *arg, int world)
{
    trek_device devices[3];
    const double shares[3] = { 0.5, 0.3, 0.2 };
    int place = 0;
    for (int r = 0; r < world; r++)
        devices[r] = test_device_of_rank(r);
    trek_graph *graph = builder(devices[0], arg);
    if (!graph)
        fail_msg("%s", trek_error());
    assert_int_equal(trek_module_each_param(trek_graph_module(graph), fill, &place), TREK_OK);
    trek_trainer_opts opts = { .build_replica = builder, .arg = arg, .devices = devices, .ranks = world,
                               .shares = world > 1 ? shares : NULL, .n_shares = world > 1 ? world : 0,
                               .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.1, .momentum = 0.9 }) };
    SUCCEEDS(trek_trainer_setup(graph, &opts));
    return graph;
}

static trek_var *input(int rows, int step)
{
    double values[MOST_ROWS * TOKENS * DIM];
    for (int i = 0; i < rows * TOKENS * DIM; i++)
        values[i] = (0.3 + 0.5 * (i / (TOKENS * DIM) % 4)) * test_number(20 + (uint32_t)step, (uint32_t)i);
    return trek_var_from(trek_tensor_from_data(values, trek_dims(rows, TOKENS, DIM), TREK_F64, test_device()));
}

static void train(bool nested, int rows, int world, record *to)
{
    trek_graph *graph = set_up(build, &nested, world);
    trek_seed(9);
    to->n = 0;
    for (int step = 0; step < STEPS; step++) {
        trek_scope scope = trek_scope_begin();
        trek_var *y = trek_graph_forward(graph, input(rows, step));
        trek_var *passes = trek_graph_tagged(graph, "passes");
        keep(to, y);
        keep(to, passes);
        trek_tensor_to_host(trek_var_data(passes), TREK_F64, to->passes[step], (size_t)rows * sizeof(double));
        trek_tensor_to_host(trek_var_data(trek_graph_tagged(graph, "choices")), TREK_F64, to->choices[step],
                            (size_t)rows * sizeof(double));
        int traced = trek_graph_trace_count(graph, "pass");
        to->values[to->n++] = traced;
        for (int k = 0; k < traced; k++)
            keep(to, trek_sum(trek_graph_trace(graph, "pass", k), trek_dims(1), false));
        trek_graph_backward(graph, trek_add(trek_mean(trek_square(y), trek_dims_all(), false),
                                            trek_mul_scalar(trek_mean(passes, trek_dims_all(), false), 0.01)));
        SUCCEEDS(trek_error_status());
        trek_scope_end(scope);
        assert_int_equal(trek_graph_step(graph), TREK_OK);
    }
    assert_int_equal(trek_module_each_param(trek_graph_module(graph), collect, to), TREK_OK);
    trek_graph_free(&graph);
    assert_int_equal(trek_tape_size(), 0);
}

/* Rows halted at different passes, and went to all branches, or this tests nothing. */
static void expect_differing(const record *r, int rows)
{
    double least = 100, most = 0;
    int to_branch[3] = { 0 };
    for (int step = 0; step < STEPS; step++)
        for (int k = 0; k < rows; k++) {
            least = fmin(least, r->passes[step][k]);
            most = fmax(most, r->passes[step][k]);
            to_branch[(int)r->choices[step][k]]++;
        }
    if (!(most > least + 0.9))
        fail_msg("passes from %g to %g", least, most);
    if (to_branch[0] < STEPS || to_branch[1] < STEPS || to_branch[2] < STEPS)
        fail_msg("%d, %d, %d rows to the branches", to_branch[0], to_branch[1], to_branch[2]);
}

static void compare_worlds(bool nested)
{
    static record one, many;
    const int rows[] = { 11, 2, 1 };
    for (int k = 0; k < 3; k++) {
        train(nested, rows[k], 1, &one);
        if (k == 0)
            expect_differing(&one, rows[k]);
        for (int world = 2; world < 4; world++) {
            train(nested, rows[k], world, &many);
            assert_int_equal(one.n, many.n);
            for (int64_t i = 0; i < one.n; i++)
                if (!(fabs(one.values[i] - many.values[i]) <= 1e-10 * (1 + fabs(one.values[i]))))
                    fail_msg("%d rows on %d ranks: number %lld is %.12g, %.12g on one", rows[k], world, (long long)i,
                             many.values[i], one.values[i]);
        }
    }
}

static void steps_are_one_devices(void **state)
{
    compare_worlds(false);
}

static void so_are_those_of_verbs_within_verbs(void **state)
{
    compare_worlds(true);
}

/* --- a graph with its own loader: each rank's loss on its own part -------------------------------- */

static trek_var *own_loss(trek_graph *graph, trek_var *y, const trek_batch *batch, void *arg)
{
    assert_true(trek_graph_trace_count(graph, "pass") >= 1); /* of this rank alone */
    trek_var *passes = trek_mean(trek_graph_tagged(graph, "passes"), trek_dims_all(), false);
    return trek_add(trek_mean(trek_square(y), trek_dims_all(), false), trek_mul_scalar(passes, 0.01));
}

static void train_by_loader(bool nested, int world, record *to)
{
    trek_graph *graph = set_up(build, &nested, world);
    trek_scope scope = trek_scope_begin();
    trek_tensor *x = trek_tensor_retain(trek_var_data(input(MOST_ROWS, 0)));
    trek_scope_end(scope);
    trek_dataset *dataset = trek_dataset_tensors((const char *[]){ "x" }, &x, 1);
    trek_loader *loader = trek_loader_new(dataset, &(trek_loader_opts){ .batch_size = 5, .device = test_device() });
    assert_int_equal(trek_graph_set_loader(graph, loader, "x"), TREK_OK);
    assert_int_equal(trek_graph_set_loss(graph, own_loss, NULL), TREK_OK);
    trek_seed(9);
    to->n = 0;
    for (int64_t epoch = 0; epoch < 2; epoch++) {
        trek_graph_start(graph, epoch);
        for (trek_batch *batch; (batch = trek_graph_next(graph)); trek_graph_step(graph)) /* of 5, 5 and 1 */
            keep(to, trek_graph_train_batch(graph, batch));
    }
    SUCCEEDS(trek_error_status());
    assert_int_equal(trek_module_each_param(trek_graph_module(graph), collect, to), TREK_OK);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    trek_tensor_release(x);
}

static void so_are_those_of_passes_by_rank(void **state)
{
    static record one, many;
    for (int nested = 0; nested < 2; nested++) {
        train_by_loader(nested, 1, &one);
        for (int world = 2; world < 4; world++) {
            train_by_loader(nested, world, &many);
            assert_int_equal(one.n, many.n);
            for (int64_t i = 0; i < one.n; i++) {
                /* First the losses, whose means are f32 on a GPU. */
                double near = i < 6 && test_device().type != TREK_CPU ? 1e-6 : 1e-10;
                if (!(fabs(one.values[i] - many.values[i]) <= near * (1 + fabs(one.values[i]))))
                    fail_msg("%d ranks: number %lld is %.12g, %.12g on one", world, (long long)i, many.values[i], one.values[i]);
            }
        }
    }
}

/* --- layers that look at other samples -------------------------------------------------------------- */

/* Ranks make the same passes of a loop without a condition, so that they can meet in each. */
static trek_graph *build_meeting(trek_device device, void *arg)
{
    trek_batch_norm_opts opts = { .features = TOKENS, .dtype = TREK_F64, .device = device };
    trek_module *norm = *(bool *)arg ? trek_nn_sync_batch_norm_with(&opts) : trek_nn_batch_norm1d_with(&opts);
    trek_module *body = chain(linear(DIM, DIM, device), norm);
    return trek_flow_build(trek_flow_loop(trek_flow_new(), body, &(trek_loop_opts){ .times = 3 }));
}

static void ranks_meet_in_every_pass(void **state)
{
    static record of[3];
    bool synchronised = true;
    for (int world = 1; world < 4; world++) {
        trek_graph *graph = set_up(build_meeting, &synchronised, world);
        record *to = &of[world - 1];
        for (int step = 0; step < 3; step++) {
            trek_scope scope = trek_scope_begin();
            trek_var *y = trek_graph_forward(graph, input(7, step));
            keep(to, y);
            trek_graph_backward(graph, trek_mean(trek_mul(y, input(7, step + 9)), trek_dims_all(), false));
            assert_int_equal(trek_graph_step(graph), TREK_OK);
            trek_scope_end(scope);
        }
        for (int64_t i = 0; i < to->n; i++)
            assert_true(fabs(to->values[i] - of[0].values[i]) <= 1e-9 * (1 + fabs(of[0].values[i])));
        trek_graph_free(&graph);
    }
}

static void see(trek_log_level level, const char *message, void *arg)
{
    if (strstr(message, "batch_norm1d \"0.body.1\""))
        *(bool *)arg = true;
}

static void setup_names_what_couples_samples_in_a_body(void **state)
{
    bool synchronised = false, seen = false;
    trek_log_set(TREK_LOG_LEVEL_INFO, see, &seen);
    trek_graph *graph = set_up(build_meeting, &synchronised, 2);
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL);
    assert_true(seen);
    trek_graph_free(&graph);
}

/* --- truncation over ranks --------------------------------------------------------------------- */

static trek_var *sum_forward(trek_module *self, trek_var *const *inputs, int n)
{
    return n > 1 ? trek_add(inputs[0], inputs[1]) : inputs[0];
}
static const trek_module_class sum_class = { .name = "sum", .size = sizeof(trek_module), .forward_many = sum_forward };

static trek_graph *build_carrying(trek_device device, void *arg)
{
    trek_flow *inner = trek_flow_through(trek_flow_from(linear(DIM, DIM, device)), trek_module_new(&sum_class));
    trek_flow_tag(trek_flow_using(inner, "last"), "last");
    return trek_flow_build(trek_flow_from(in_flow(inner)));
}

static void train_carrying(int world, bool cut, record *to)
{
    trek_graph *graph = set_up(build_carrying, NULL, world);
    to->n = 0;
    trek_scope scope = trek_scope_begin();
    trek_graph_forward(graph, input(6, 0));
    if (cut)
        assert_int_equal(trek_graph_detach_state(graph), TREK_OK);
    trek_var *y = trek_graph_forward(graph, input(6, 1));
    assert_int_equal(trek_graph_backward(graph, trek_mean(trek_square(y), trek_dims_all(), false)), TREK_OK);
    assert_int_equal(trek_graph_reduce(graph), TREK_OK);
    keep(to, trek_var_grad(trek_module_find(trek_graph_module(graph), "0.0.weight")));
    trek_scope_end(scope);
    trek_graph_free(&graph);
}

static void truncation_reaches_all_ranks(void **state)
{
    static record one, many, whole;
    train_carrying(1, true, &one);
    train_carrying(1, false, &whole);
    assert_true(fabs(one.values[0] - whole.values[0]) > 1e-6);
    for (int world = 2; world < 4; world++) {
        train_carrying(world, true, &many);
        for (int64_t i = 0; i < one.n; i++)
            assert_true(fabs(one.values[i] - many.values[i]) <= 1e-10 * (1 + fabs(one.values[i])));
    }
}

int main(void)
{
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL); /* more ranks than cores is what this is about */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_one_devices), cmocka_unit_test(so_are_those_of_verbs_within_verbs),
        cmocka_unit_test(so_are_those_of_passes_by_rank), cmocka_unit_test(ranks_meet_in_every_pass),
        cmocka_unit_test(setup_names_what_couples_samples_in_a_body), cmocka_unit_test(truncation_reaches_all_ranks),
    };
    return cmocka_run_group_tests_name("flow_verbs_ranks", tests, NULL, NULL);
}
