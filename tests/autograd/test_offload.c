/* SPDX-License-Identifier: Apache-2.0 */
/* What backward needs, kept in host memory: the bits of a run that keeps all on the device, over random models, real ones, ranks,
 * beside autocast and recomputing. On a CPU it does nothing, and all must come out alike. */
#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "distributed/trainer.h"
#include "graph/capture.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "nn/offload.h"
#include "nn/recompute.h"
#include "tests/autograd/offloaded.h"
#include "tests/support/clean.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/zoo/zoo.h"

/* --- models --------------------------------------------------------------------------------------------- */

static uint32_t choices;

static int choose(int n)
{
    return (int)(((uint32_t)(int32_t)(test_number(77, choices++) * 8388608.0f) & 0xffffff) % (uint32_t)n);
}

static trek_module *random_layer(void)
{
    switch (choose(6)) {
    case 0: return trek_nn_gelu();
    case 1: return trek_nn_dropout(0.3);
    case 2: return trek_nn_batch_norm1d(WIDTH, test_device());
    case 3: return trek_nn_layer_norm(WIDTH, test_device());
    case 4: return trek_nn_relu();
    default: return trek_nn_linear(WIDTH, WIDTH, test_device());
    }
}

/* The same for the same state of `choices`; offload: parts of it are in trek_nn_offload, or inside a trek_nn_recompute that is.
 */
static trek_module *random_model(bool offload)
{
    trek_module *m = trek_nn_sequential((trek_module *[]){ trek_nn_linear(WIDTH, WIDTH, test_device()) }, 1);
    for (int part = 0, parts = 2 + choose(3); part < parts; part++) {
        trek_module *body = trek_nn_sequential(NULL, 0);
        for (int k = 0, n = 2 + choose(4); k < n; k++)
            trek_nn_sequential_add(body, random_layer());
        if (choose(4) == 0)
            trek_module_freeze(body);
        int way = choose(4);
        trek_offload_opts opts = { .min_bytes = choose(2) ? 1 : WIDTH * ROWS * 4, .ahead = 1 + choose(3) };
        if (way == 0)
            body = trek_nn_recompute(body);
        if (way == 1 && offload)
            body = trek_nn_offload(body, &opts);
        if (way == 2)
            body = trek_nn_recompute(offload ? trek_nn_offload(body, &opts) : body);
        trek_nn_sequential_add(m, body);
    }
    return trek_module_check(m);
}

static void run_random(uint32_t seed, bool offload, numbers *to)
{
    choices = seed * 1000;
    trek_seed(seed);
    trek_module *m = random_model(offload);
    bool low = choose(2), around = choose(3) > 0, twice = choose(3) == 0;
    trek_offload_opts opts = { .min_bytes = 1, .ahead = 1 + choose(4) };
    for (int step = 0; step < 2; step++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor(seed + (uint32_t)step, trek_dims(step ? 2 + choose(ROWS) : ROWS, WIDTH), 1));
        assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
        if (offload && around)
            trek_offload_begin(&opts);
        trek_autocast_begin(low ? TREK_BF16 : TREK_F32);
        trek_var *y = trek_forward(m, x);
        trek_autocast_end();
        if (offload && around)
            trek_offload_end();
        trek_var *loss = trek_mean(trek_square(trek_cast(y, TREK_F32)), trek_dims_all(), false);
        if (twice)
            assert_int_equal(trek_backward_with(loss, NULL, &(trek_backward_opts){ .retain_graph = true }), TREK_OK);
        if (trek_backward(loss) != TREK_OK)
            fail_msg("seed %u: %s", seed, trek_error());
        add_numbers(to, loss);
        add_numbers(to, trek_var_grad(x));
        add_grads(to, m);
        trek_scope_end(scope);
    }
    trek_module_free(&m);
    assert_int_equal(trek_tape_size(), 0);
    assert_int_equal(trek_offload_usage().bytes, 0);
}

static void test_random_models(void **state)
{
    void *address = test_fake("trek_fake_late");
    void (*late)(unsigned) = NULL;
    memcpy(&late, &address, sizeof late);
    trek_offload_stats before = trek_offload_usage();
    for (uint32_t seed = 1; seed <= (test_short_on_device() ? 12 : 40); seed++) {
        numbers plain = { 0 }, offloaded = { 0 };
        if (late)
            late(seed % 3 ? seed : 0);
        run_random(seed, false, &plain);
        run_random(seed, true, &offloaded);
        char name[32];
        snprintf(name, sizeof name, "seed %u", seed);
        assert_same(&plain, &offloaded, name);
    }
    trek_offload_stats after = trek_offload_usage();
    assert_true(test_on_cpu() ? after.sent == before.sent : after.sent > before.sent && after.returned > before.returned);
}

static void run_real(const zoo_model *model, bool offload, numbers *to)
{
    trek_seed(5);
    trek_module *m = model->build();
    trek_var *output;
    trek_scope scope = trek_scope_begin();
    if (offload)
        trek_offload_begin(&everything);
    trek_var *loss = model->loss(m, 0, &output);
    if (offload)
        trek_offload_end();
    assert_int_equal(trek_backward(loss), TREK_OK);
    add_numbers(to, loss);
    add_grads(to, m);
    trek_scope_end(scope);
    trek_module_free(&m);
}

static void test_real_models(void **state)
{
    const zoo_model *models[] = { &zoo_gpt2, &zoo_resnet18 };
    zoo_device = test_device();
    zoo_dtype = TREK_F32;
    for (int k = 0; k < 2; k++) {
        numbers plain = { 0 }, offloaded = { 0 };
        run_real(models[k], false, &plain);
        trek_offload_stats before = trek_offload_usage();
        run_real(models[k], true, &offloaded);
        assert_same(&plain, &offloaded, models[k]->name);
        assert_true(test_on_cpu() || trek_offload_usage().returned > before.returned);
    }
}

/* --- graphs --------------------------------------------------------------------------------------------------------------------
 */

typedef struct plan {
    bool layer, scope, recompute;
} plan;

static trek_graph *build(trek_device device, void *arg)
{
    const plan *p = arg;
    trek_module *body = trek_nn_sequential(NULL, 0);
    for (int k = 0; k < 4; k++) {
        trek_nn_sequential_add(body, trek_nn_linear(WIDTH, WIDTH, device));
        trek_nn_sequential_add(body, trek_nn_tanh());
        trek_nn_sequential_add(body, trek_nn_dropout(0.2));
    }
    if (p->recompute)
        body = trek_nn_recompute(body);
    if (p->layer)
        body = trek_nn_offload(body, &everything);
    trek_flow *flow = trek_flow_from(trek_nn_linear(WIDTH, WIDTH, device));
    flow = trek_flow_through(flow, body);
    return trek_flow_build(trek_flow_through(flow, trek_nn_linear(WIDTH, 3, device)));
}

static void train(const plan *p, int world, numbers *to)
{
    trek_device devices[2] = { test_device_of_rank(0), test_device_of_rank(1) };
    plan own = *p;
    trek_seed(4);
    trek_graph *graph = build(devices[0], &own);
    assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .arg = &own, .devices = devices,
        .ranks = world, .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.5 }) }), TREK_OK);
    trek_seed(9);
    for (int step = 0; step < 3; step++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor(20u + (uint32_t)step, trek_dims(2 * ROWS, WIDTH), 1));
        if (p->scope)
            trek_offload_begin(&everything);
        trek_var *y = trek_graph_forward(graph, x);
        if (p->scope)
            trek_offload_end();
        trek_var *loss = trek_mean(trek_square(y), trek_dims_all(), false);
        if (trek_graph_backward(graph, loss) != TREK_OK || trek_graph_step(graph) != TREK_OK)
            fail_msg("%s", trek_error());
        add_numbers(to, loss);
        trek_scope_end(scope);
    }
    trek_params *params = trek_module_params((trek_module *)graph);
    for (int k = 0; k < trek_params_count(params); k++)
        add_numbers(to, trek_params_var(params, k));
    trek_params_free(&params);
    trek_graph_free(&graph);
}

static void test_ranks(void **state)
{
    int64_t alone[8] = { 0 };
    for (int world = 1; world <= 2; world++)
        for (int way = 1; way < 8; way++) {
            plan p = { .layer = way & 1, .scope = way & 2, .recompute = way & 4 };
            numbers plain = { 0 }, offloaded = { 0 };
            train(&(plan){ .recompute = p.recompute }, world, &plain);
            trek_offload_stats before = trek_offload_usage();
            train(&p, world, &offloaded);
            int64_t sent = trek_offload_usage().sent - before.sent;
            assert_int_equal(sent > 0, !test_on_cpu() && (p.layer || p.scope));
            alone[way] = world == 1 ? sent : alone[way];
            assert_true(4 * sent >= 3 * alone[way]); /* both ranks do */
            assert_same(&plain, &offloaded, world == 1 ? "one rank" : "two ranks");
        }
}

static trek_status captured_step(trek_graph *graph, void *arg)
{
    if (*(bool *)arg)
        trek_offload_begin(&everything);
    trek_var *y = trek_graph_forward(graph, trek_graph_captured_input(graph, 0));
    if (*(bool *)arg)
        trek_offload_end();
    trek_var *loss = trek_mean(trek_square(y), trek_dims_all(), false);
    trek_graph_capture_output(graph, 0, loss);
    trek_graph_backward(graph, loss);
    return trek_graph_step(graph);
}

/* A step that offloads is not recorded, and says why. */
static void test_captured(void **state)
{
    numbers plain = { 0 }, offloaded = { 0 };
    int warnings = 0;
    trek_log_set(TREK_LOG_LEVEL_WARNING, quiet, &warnings);
    for (int way = 0; way < 2; way++) {
        bool offload = way;
        plan p = { .layer = false };
        trek_seed(4);
        trek_graph *graph = build(test_device(), &p);
        assert_int_equal(trek_graph_set_optimizer(graph, trek_sgd(&(trek_sgd_opts){ .lr = 0.1 })), TREK_OK);
        for (int step = 0; step < 6; step++) {
            trek_scope scope = trek_scope_begin();
            trek_var *x = trek_var_from(test_tensor(20u + (uint32_t)step, trek_dims(ROWS, WIDTH), 1));
            assert_int_equal(trek_graph_capture_input(graph, 0, x), TREK_OK);
            SUCCEEDS(trek_graph_capture(graph, captured_step, &offload));
            add_numbers(offload ? &offloaded : &plain, trek_graph_captured_output(graph, 0));
            trek_scope_end(scope);
        }
        if (!test_on_cpu()) {
            assert_int_equal(trek_graph_replays(graph) > 0, !offload);
            assert_int_equal(strstr(trek_graph_capture_problem(graph), "host memory") != NULL, offload);
        }
        trek_graph_free(&graph);
    }
    trek_log_set(TREK_LOG_LEVEL_WARNING, NULL, NULL);
    assert_same(&plain, &offloaded, "captured");
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, clean, nothing_left)
    const struct CMUnitTest tests[] = {
        CASE(test_random_models), CASE(test_real_models), CASE(test_ranks), CASE(test_captured),
    };
    return cmocka_run_group_tests_name("offload", tests, NULL, NULL);
}
