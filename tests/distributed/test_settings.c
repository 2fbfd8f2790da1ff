/* SPDX-License-Identifier: Apache-2.0 */
/* What the program sets on a graph holds, whether it was set before trek_trainer_setup or
 * after it, on one rank and on several, and when setup is called again: each setting is
 * judged by the parameters after some steps, against a graph that was never set up. */
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "distributed/stepper_internal.h"
#include "distributed/trainer.h"
#include "graph/amp.h"
#include "graph/flow.h"
#include "graph/flow_branches.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "nn/params.h"
#include "optim/schedules.h"
#include "tests/support/noted.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { ROWS = 7, IN = 5, HIDDEN = 6, STEPS = 3, MOST = 128 };

/* --- the model: tanh(x w1 + b1), dropout, times the mean of a table, w2 ------------------------------- */

typedef struct net {
    trek_module base;
    trek_module *drop;
    trek_var *w1, *b1, *w2;
} net;

static trek_var *net_forward(trek_module *self, trek_var *const *inputs, int n)
{
    net *m = (net *)self;
    trek_var *h = trek_forward(m->drop, trek_tanh(trek_linear(inputs[0], m->w1, m->b1)));
    if (n > 1)
        h = trek_mul(h, trek_mean(inputs[1], trek_dims(0), false));
    return trek_linear(h, m->w2, NULL);
}

static const char *const names[] = { "table", NULL };
static const trek_module_class net_class = { .name = "net", .size = sizeof(net), .forward_many = net_forward,
                                             .input_names = names };

static trek_tensor *numbers(uint32_t stream, trek_shape shape, trek_device device)
{
    double values[64];
    for (int64_t i = 0; i < trek_shape_numel(shape); i++)
        values[i] = test_number(stream, (uint32_t)i);
    return trek_tensor_from_data(values, shape, TREK_F64, device);
}

static bool with_table;

static trek_graph *build(trek_device device, void *arg)
{
    trek_module *m = trek_module_new(&net_class);
    trek_module_add(m, "drop", offsetof(net, drop), trek_nn_dropout(0.3));
    trek_module_param(m, "w1", offsetof(net, w1), numbers(1, trek_dims(HIDDEN, IN), device));
    trek_module_param(m, "b1", offsetof(net, b1), numbers(2, trek_dims(HIDDEN), device));
    trek_module_param(m, "w2", offsetof(net, w2), numbers(3, trek_dims(1, HIDDEN), device));
    trek_flow *flow = trek_flow_from(trek_module_check(m));
    if (with_table)
        trek_flow_input(flow, "table");
    if (with_table)
        trek_flow_using(flow, "table");
    return trek_flow_build(flow);
}

static trek_var *here(uint32_t stream, trek_shape shape) { return trek_var_from(numbers(stream, shape, test_device())); }

static trek_var *loss_of(trek_graph *graph, int step)
{
    trek_var *inputs[] = { here(10 + (uint32_t)step, trek_dims(ROWS, IN)), NULL };
    if (with_table)
        inputs[1] = here(30, trek_dims(ROWS, HIDDEN)); /* as many rows as the batch */
    trek_var *y = trek_graph_forward_many(graph, inputs, 1 + with_table);
    return trek_mean(trek_square(trek_sub(y, here(20 + (uint32_t)step, trek_dims(ROWS, 1)))), trek_dims_all(), false);
}

static void make_steps(trek_graph *graph, int first, int n)
{
    for (int step = first; step < first + n; step++) {
        trek_scope scope = trek_scope_begin();
        if (trek_graph_backward(graph, loss_of(graph, step)) != TREK_OK || trek_graph_step(graph) != TREK_OK)
            fail_msg("step %d: %s", step, trek_error());
        trek_scope_end(scope);
    }
}

/* --- settings ---------------------------------------------------------------------------------------- */

static void set_nothing(trek_graph *graph) { (void)graph; }

static void set_adam(trek_graph *graph)
{
    assert_int_equal(trek_graph_set_optimizer(graph, trek_adamw(&(trek_adam_opts){ .lr = 0.05, .weight_decay = TREK_ZERO })),
                     TREK_OK);
}

/* Moments, step counts and a group of its own options. */
static void set_state(trek_graph *graph)
{
    set_adam(graph);
    trek_params *params = trek_params_new();
    trek_params_add(params, "w2", trek_module_find(trek_graph_module(graph), "0.w2"));
    trek_optimizer_spec spec = trek_adamw(&(trek_adam_opts){ .lr = 0.2, .beta1 = 0.5 });
    assert_int_equal(trek_optimizer_add_group(trek_graph_optimizer(graph), params, spec), 1);
    trek_params_free(&params);
    make_steps(graph, 0, 2);
    assert_int_equal(trek_optimizer_set_group_lr(trek_graph_optimizer(graph), 1, 0.07), TREK_OK);
}

static void set_momentum(trek_graph *graph)
{
    assert_int_equal(trek_graph_set_optimizer(graph, trek_sgd(&(trek_sgd_opts){ .lr = 0.05, .momentum = 0.9 })), TREK_OK);
    make_steps(graph, 0, 2);
}

static void set_schedule(trek_graph *graph)
{
    trek_schedule schedule = trek_step_lr(0.4, 1, 0.5);
    make_steps(graph, 0, 1); /* it goes on from there */
    assert_int_equal(trek_graph_set_schedule(graph, &schedule), TREK_OK);
}

static void set_lr(trek_graph *graph) { assert_int_equal(trek_graph_set_lr(graph, 0.3), TREK_OK); }
static void set_norm(trek_graph *graph) { assert_int_equal(trek_graph_set_clip(graph, 0.05, 0), TREK_OK); }
static void set_value(trek_graph *graph) { assert_int_equal(trek_graph_set_clip(graph, 0, 0.01), TREK_OK); }
static void set_mode(trek_graph *graph) { assert_int_equal(trek_graph_train(graph, false), TREK_OK); }
static void set_child_mode(trek_graph *graph)
{
    assert_int_equal(trek_module_train(((net *)trek_graph_at(graph, "0"))->drop, false), TREK_OK);
}

static void set_frozen(trek_graph *graph)
{
    assert_int_equal(trek_graph_freeze(graph, "0"), TREK_OK);
    trek_var_set_requires_grad(((net *)trek_graph_at(graph, "0"))->b1, true);
}

static void set_frozen_var(trek_graph *graph) { trek_var_set_requires_grad(((net *)trek_graph_at(graph, "0"))->w2, false); }

static void set_thawed(trek_graph *graph)
{
    set_frozen(graph);
    assert_int_equal(trek_graph_thaw(graph, "0"), TREK_OK);
    trek_var_set_requires_grad(((net *)trek_graph_at(graph, "0"))->w1, false);
}

static void set_scaling(trek_graph *graph)
{
    assert_int_equal(trek_graph_set_amp(graph, &(trek_amp_opts){ .scaling = 1,
                                                                 .scaler = { .init_scale = 64, .growth_interval = 2 } }),
                                                                 TREK_OK);
}

static void set_autocast(trek_graph *graph)
{
    assert_int_equal(trek_graph_set_amp(graph, &(trek_amp_opts){ .dtype = TREK_BF16, .scaling = TREK_OFF }), TREK_OK);
}

static void set_replicated(trek_graph *graph)
{
    if (with_table)
        assert_int_equal(trek_graph_replicate_input(graph, "table"), TREK_OK);
}

static void set_state_dict(trek_graph *graph) /* new values from outside */
{
    trek_tensor *values = numbers(77, trek_dims(1, HIDDEN), test_device());
    assert_int_equal(trek_tensor_copy_from(trek_var_data(trek_module_find(trek_graph_module(graph), "0.w2")), values), TREK_OK);
    trek_tensor_release(values);
    assert_int_equal(trek_graph_parameters_changed(graph), TREK_OK);
}

typedef struct setting {
    const char *name;
    void (*set)(trek_graph *graph);
    bool table;
} setting;

static const setting settings[] = {
    { "nothing", set_nothing, false },       { "optimizer", set_adam, false },
    { "groups, moments, counts", set_state, false }, { "momentum", set_momentum, false },
    { "schedule", set_schedule, false },     { "learning rate", set_lr, false },
    { "largest norm", set_norm, false },     { "largest value", set_value, false },
    { "mode", set_mode, false },             { "mode of a child", set_child_mode, false },
    { "frozen module", set_frozen, false },  { "frozen parameter", set_frozen_var, false },
    { "thawed parameter", set_thawed, false }, { "loss scaling", set_scaling, false },
    { "autocast", set_autocast, false },      { "replicated input", set_replicated, true },
    { "parameters", set_state_dict, false },
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

/* --- runs ---------------------------------------------------------------------------------------------- */

/* Ranks of the first setup and of the second (0: there is none). */
typedef struct course {
    int first, second;
    bool separate;
} course;

static const course courses[] = { { 1, 0, false }, { 2, 0, false }, { 3, 0, true }, { 2, 3, false }, { 2, 2, true },
                                  { 3, 1, false }, { 1, 2, false } };

typedef struct outcome {
    double values[MOST], lr, norm, scale; /* of the loss; 0: none */
    trek_dtype autocast; /* which leaves f64 alone */
    int n;
    int64_t steps, skipped;
} outcome;

static void set_up(trek_graph *graph, int world, bool separate)
{
    if (world > 0 && trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .devices = test_devices(),
                                                                     .ranks = world,
                                                                     .share_params = separate ? TREK_OFF : 0,
                                                                     .max_anchor = TREK_OFF,
                                                                     .balance = TREK_OFF }) != TREK_OK)
        fail_msg("setup: %s", trek_error());
}

/* course NULL: never set up. */
static void run(const setting *row, const course *c, bool before, outcome *to)
{
    trek_seed(5);
    with_table = row->table;
    trek_graph *graph = build(test_device(), NULL);
    assert_non_null(graph);
    assert_int_equal(trek_graph_set_optimizer(graph, trek_sgd(&(trek_sgd_opts){ .lr = 0.1 })), TREK_OK);
    if (before)
        row->set(graph);
    if (c)
        set_up(graph, c->first, c->separate);
    if (!before)
        row->set(graph);
    if (c && c->second)
        set_up(graph, c->second, c->separate);
    make_steps(graph, 4, STEPS);
    *to = (outcome){ .lr = trek_graph_lr(graph),
                     .norm = trek_graph_grad_norm(graph),
                     .steps = trek_graph_steps(graph),
                     .skipped = trek_graph_skipped(graph) };
    to->scale = trek_graph_scaler(graph) ? trek_grad_scaler_value(trek_graph_scaler(graph)) : 0;
    to->autocast = graph->autocast;
    to->n = note_params(trek_graph_module(graph), to->values, MOST);
    trek_graph_free(&graph);
    assert_int_equal(trek_error_status(), TREK_OK);
}

static double difference(const outcome *a, const outcome *b)
{
    double most = 0;
    for (int k = 0; k < a->n; k++)
        most = fmax(most, fabs(a->values[k] - b->values[k]) / (1 + fabs(b->values[k])));
    return most;
}

static void every_setting_holds(void **state)
{
    static outcome plain, expected, got;
    for (int k = 0; k < N_SETTINGS; k++) {
        const setting *row = &settings[k];
        setting none = { "nothing", set_nothing, row->table };
        run(&none, NULL, true, &plain);
        run(row, NULL, true, &expected);
        bool matters = difference(&plain, &expected) > 1e-6 || expected.scale != plain.scale ||
            expected.autocast != plain.autocast;
        if (k > 0 && !row->table && !matters)
            fail_msg("%s changes nothing", row->name);
        for (size_t c = 0; c < sizeof courses / sizeof courses[0]; c++)
            for (int before = 0; before < 2; before++) {
                run(row, &courses[c], before, &got);
                double far = difference(&got, &expected);
                bool counts = got.steps == expected.steps && got.skipped == expected.skipped && got.lr == expected.lr &&
                    got.scale == expected.scale &&
                              got.autocast == expected.autocast;
                if (!(far <= 1e-10) || !counts || isnan(got.norm) != isnan(expected.norm))
                    fail_msg(
                        "%s, set %s setup on %d then %d ranks%s: off by %g; %lld steps, lr %g, norm %g instead of %lld, %g, %g",
                        row->name, before ? "before" : "after", courses[c].first, courses[c].second,
                        courses[c].separate ? " with arenas of their own" : "", far, (long long)got.steps, got.lr, got.norm,
                        (long long)expected.steps, expected.lr, expected.norm);
            }
    }
}

/* Setup's own options go before what was set; TREK_OFF ends it. */
static void options_go_first(void **state)
{
    with_table = false;
    for (int world = 1; world <= 2; world++) {
        trek_graph *graph = build(test_device(), NULL);
        set_adam(graph);
        set_norm(graph);
        trek_schedule schedule = trek_constant_lr(0.25);
        assert_int_equal(trek_trainer_setup(graph,
                                            &(trek_trainer_opts){ .build_replica = build, .devices = test_devices(),
                                                                  .ranks = world,
                                                                         .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.5 }),
                                                                         .schedule = schedule,
                                                                         .max_grad_norm = TREK_OFF }), TREK_OK);
        assert_float_equal(trek_graph_lr(graph), 0.5, 0);
        make_steps(graph, 0, 1);
        assert_float_equal(trek_graph_lr(graph), 0.25, 0);
        assert_true(isnan(trek_graph_grad_norm(graph)));
        trek_graph_free(&graph);
    }
}

static trek_graph *build_other(trek_device device, void *arg)
{
    return *(int *)arg ? trek_flow_build(trek_flow_from(trek_nn_linear(3, 3, device))) : build(device, NULL);
}

/* A setup that fails leaves a graph that trains as it did. */
static void failed_setup(void **state)
{
    static outcome expected, got;
    setting row = { "state", set_state, false };
    run(&row, NULL, true, &expected);
    for (int world = 1; world <= 2; world++) {
        trek_seed(5);
        trek_graph *graph = build(test_device(), NULL);
        set_up(graph, world, false);
        set_state(graph);
        int other = 1;
        FAILS(trek_trainer_setup(graph,
                                 &(trek_trainer_opts){ .build_replica = build_other, .arg = &other,
                                                       .devices = test_devices(), .ranks = 3 }), TREK_ERR_ARGUMENT, "differ");
        assert_int_equal(trek_graph_world_size(graph), 1);
        make_steps(graph, 4, STEPS);
        got.n = note_params(trek_graph_module(graph), got.values, MOST);
        assert_true(difference(&got, &expected) < 1e-10);
        assert_int_equal(trek_graph_steps(graph), expected.steps);
        trek_graph_free(&graph);
    }
}

static void set_all_rates(trek_graph *graph)
{
    set_state(graph);
    assert_int_equal(trek_optimizer_set_lr(trek_graph_optimizer(graph), 0.11), TREK_OK);
}

/* What is done to the optimizer that trek_graph_optimizer gives reaches all ranks, each of which keeps the same parameters. */
static void optimizer_of_ranks(void **state)
{
    static outcome one, many;
    with_table = false;
    for (int share = TREK_OFF; share <= 0; share++) {
        trek_seed(5);
        trek_graph *graph = build(test_device(), NULL);
        set_up(graph, 3, share == TREK_OFF);
        set_all_rates(graph);
        make_steps(graph, 4, STEPS);
        one.n = note_params(trek_graph_module(graph), one.values, MOST);
        for (int r = 1; r < 3; r++) {
            many.n = note_params(trek_graph_module(trek_graph_replica(graph, r)), many.values, MOST);
            assert_true(difference(&many, &one) == 0);
        }
        trek_graph_free(&graph);
    }
    for (int k = 0; k < 2; k++) {
        setting row = { "groups", set_state, false };
        run(&row, k ? &(course){ 3, 0, true } : NULL, false, k ? &many : &one);
    }
    assert_true(difference(&many, &one) < 1e-10);
}

/* Counts of whole batches are nothing that a loop of its own batches could follow. */
static void plan_of_counts(void **state)
{
    trek_plan *plan = trek_plan_new(2);
    assert_int_equal(trek_plan_add_shares(plan, 0, (double[]){ 0.25, 0.75 }), TREK_OK);
    assert_int_equal(trek_plan_add_counts(plan, 2, (int64_t[]){ 3, 1 }, 1), TREK_OK);
    trek_graph *graph = build(test_device(), NULL);
    assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .devices = test_devices(),
                                                                     .ranks = 2, .plan = plan,
                                                                     .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.1 }) }),
                                                                     TREK_OK);
    make_steps(graph, 0, 2);
    trek_scope scope = trek_scope_begin();
    assert_int_equal(trek_graph_backward(graph, loss_of(graph, 2)), TREK_ERR_ARGUMENT);
    assert_non_null(strstr(trek_error(), ".plan: whole batches for step 2"));
    assert_int_not_equal(trek_graph_step(graph), TREK_OK);
    trek_error_clear();
    trek_scope_end(scope);
    assert_int_equal(trek_graph_steps(graph), 2);
    trek_graph_free(&graph);
    trek_plan_free(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_setting_holds), cmocka_unit_test(options_go_first), cmocka_unit_test(failed_setup),
        cmocka_unit_test(optimizer_of_ranks), cmocka_unit_test(plan_of_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
