/* SPDX-License-Identifier: Apache-2.0 */
/* Grains on GPUs that are recorded once and replayed have the bits of grains that are called: of every model, on any ranks. On
 * CPUs nothing is recorded, and everything must come out alike. */
#include <stdlib.h>
#include <string.h>

#include "autograd/ops.h"
#include "data/dataset.h"
#include "graph/capture.h"
#include "graph/graph_loader.h"
#include "graph/passes.h"
#include "graph/settings.h"
#include "nn/module_tree.h"
#include "optim/optimizers.h"
#include "tests/distributed/grains/grain_runs.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

static grain_result called, captured;

static void train(const grain_run *run, grain_result *result)
{
    if (!grain_train(run, result))
        fail_msg("%s, %d ranks: %s", grain_models[run->model], run->ranks, trek_error());
}

/* What becomes of grains on GPUs in the end. With several ranks it depends on who takes which grains whether all of a pass are
 * replays. */
typedef enum fate { REPLAYED, CALLED, RECORDED } fate;

static void expect_same(grain_run run, fate expected)
{
    run.whole = true;
    train(&run, &called);
    run.captured = true;
    train(&run, &captured);
    if (called.digest != captured.digest)
        fail_msg("%s, %d ranks, grains of %d in batches of %d, accumulate %d, scaled %d, autocast %d: captured grains have other "
                 "bits (%s; %d replays)", grain_models[run.model], run.ranks, run.grain, run.batch, run.accumulate, run.scaled,
                 run.autocast, captured.problem, (int)captured.replays);
    assert_memory_equal(called.losses, captured.losses, sizeof called.losses);
    assert_int_equal(called.replays, 0);
    if (test_on_cpu())
        assert_string_equal(captured.problem, "the device is a CPU");
    else if ((expected == CALLED) != (captured.problem[0] != '\0') || (expected == REPLAYED && captured.replays < 1) ||
             (expected == CALLED && captured.replays > 0))
        fail_msg("%s, %d ranks: %d passes are replayed: %s", grain_models[run.model], run.ranks, (int)captured.replays,
                 captured.problem);
}

/* Batches of 13 samples, and one of 1 at the end of an epoch; the last grain is shorter. */
static void each_model_has_the_bits_of_calls(void **state)
{
    for (int model = 0; model < MODELS; model++)
        for (int ranks = 1; ranks <= 3; ranks++)
            if (grain_takes(model + ranks))
                expect_same((grain_run){ .model = model, .ranks = ranks, .grain = 4, .batch = 13, .steps = 9,
                                         .silent = true, .clipped = ranks % 2, .optimizer = (model + ranks) % 4 },
                            ranks == 1 ? REPLAYED : RECORDED);
}

static void options_do_not_change_that(void **state)
{
    for (int model = 0; model < MODELS; model++) {
        if (grain_takes(model))
            expect_same((grain_run){ .model = model, .ranks = 1, .grain = 3, .batch = 12, .steps = 6, .silent = true,
                                     .autocast = TREK_BF16, .scaled = model % 2 }, REPLAYED);
        if (grain_takes(model + 2))
            expect_same((grain_run){ .model = model, .ranks = 2, .grain = 3, .batch = 12, .steps = 6, .silent = true,
                                     .accumulate = 2, .scaled = true, .one_device = true }, RECORDED);
    }
    /* parameters are frozen in every other step, also in the last one before a grain is recorded */
    for (int k = 0; k < 2; k++)
        expect_same((grain_run){ .model = MLP, .ranks = 1, .grain = k ? 18 : 4, .batch = k ? 18 : 13, .steps = 9, .silent = true,
                                 .freezes = true, .evaluates = true }, RECORDED);
}

/* The second pass of a step draws other random numbers than the first one. */
static void passes_have_records_of_their_own(void **state)
{
    expect_same((grain_run){ .model = DROPOUT_AND_RECOMPUTATION, .ranks = 1, .grain = 3, .batch = 9, .steps = 8, .silent = true,
                             .accumulate = 2 }, REPLAYED);
    assert_true(test_on_cpu() || captured.replays > 16 / 2); /* otherwise one of both passes would be called */
}

/* What a replay could not do is called. */
static void what_cannot_be_replayed_is_called(void **state)
{
    expect_same((grain_run){ .model = MLP, .ranks = 2, .grain = 4, .batch = 13, .steps = 6, .unrecorded = true }, CALLED);
    if (test_on_cpu())
        return;
    assert_non_null(strstr(captured.problem, "values are recorded for each grain"));
    expect_same((grain_run){ .model = TIED_EMBEDDING, .ranks = 2, .grain = 4, .batch = 13, .steps = 6, .silent = true,
                             .fp8 = true },
                CALLED);
    assert_non_null(strstr(captured.problem, "8 bits"));
}

/* --- how often the host gives the device work ---------------------------------------------------- */

static long (*calls)(const char *function);
static long launches[2][2]; /* after each step, of kernels and of records */

static void count(trek_graph *graph)
{
    int64_t k = trek_graph_steps(graph) - 1;
    if (k >= 2)
        return;
    launches[k][0] = calls("cudaLaunchKernel");
    launches[k][1] = calls("cudaGraphLaunch");
}

static void a_grain_is_one_launch(void **state)
{
    void (*fails)(const char *specification);
    void *addresses[2] = { test_fake("trek_fake_fail"), test_fake("trek_fake_calls") };
    long kernels[2];
    if (test_on_cpu() || !addresses[0] || !addresses[1])
        skip();
    memcpy(&fails, &addresses[0], sizeof fails);
    memcpy(&calls, &addresses[1], sizeof calls);
    for (int k = 0; k < 2; k++) {
        grain_result *r = k ? &captured : &called;
        fails("cudaFree:1000000"); /* calls are counted meanwhile */
        train(&(grain_run){ .model = TIED_EMBEDDING, .ranks = 1, .grain = 3, .batch = 24, .steps = 2, .silent = true,
                            .captured = k, .after_step = count }, r);
        fails(NULL);
        kernels[k] = launches[1][0] - launches[0][0];
        assert_int_equal(launches[1][1] - launches[0][1], k ? 24 / 3 : 0);
    }
    assert_true(called.digest == captured.digest);
    if (kernels[1] * 3 > kernels[0])
        fail_msg("a step of 8 grains gives the device %ld kernels if grains are called, and %ld if they are replayed", kernels[0],
                 kernels[1]);
}

/* --- what fails ------------------------------------------------------------------------------------ */

enum { STEPS = 7 };

static trek_var *mean_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    return trek_cross_entropy(output, trek_batch_get(batch, "label"));
}

static trek_graph *new_trained(trek_loader **loader, int *model)
{
    trek_device device = test_device();
    trek_seed(17);
    *loader = trek_loader_new(grain_dataset(), &(trek_loader_opts){ .batch_size = 12, .shuffle = true, .seed = 5 });
    trek_graph *graph = grain_build(device, model);
    assert_int_equal(trek_graph_set_loader(graph, *loader, "x"), TREK_OK);
    assert_int_equal(trek_graph_set_loss(graph, mean_loss, NULL), TREK_OK);
    assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){
                         .build_replica = grain_build, .arg = model, .devices = &device, .ranks = 1, .grain = 2,
                         .optimizer = trek_adamw(&(trek_adam_opts){ .lr = 0.01 }) }), TREK_OK);
    trek_seed(23);
    return graph;
}

static trek_status step(trek_graph *graph, void *batch)
{
    return trek_graph_train_batch(graph, batch) ? trek_graph_step(graph) : trek_error_status();
}

static trek_status keep(const char *name, trek_var *var, void *arg)
{
    grain_result *r = arg;
    double *values = test_read(trek_var_data(var));
    for (int64_t i = 0; values && i < trek_var_numel(var) && r->n < GRAIN_MOST; i++)
        r->params[r->n++] = values[i];
    free(values);
    return name ? TREK_OK : TREK_ERR_STATE;
}

/* fails: what the fake device refuses in the fourth step, which is dropped and made again; NULL: nothing. All records are dropped
 * before the sixth. */
static void train_through(const char *refused, void (*fails)(const char *specification), grain_result *result)
{
    int model = DROPOUT_AND_RECOMPUTATION;
    trek_loader *loader;
    trek_graph *graph = new_trained(&loader, &model);
    *result = (grain_result){ .n = 0 };
    for (int64_t epoch = 0; trek_graph_steps(graph) < STEPS; epoch++) {
        trek_graph_start(graph, epoch);
        for (trek_batch *batch; trek_graph_steps(graph) < STEPS && (batch = trek_graph_next(graph));) {
            if (refused && trek_graph_steps(graph) == 3) {
                assert_true(trek_graph_replays(graph) > 0);
                fails(refused);
                assert_int_equal(trek_graph_capture(graph, step, batch), TREK_ERR_CUDA);
                fails(NULL);
                trek_error_clear();
                assert_int_equal(trek_graph_zero_grad(graph), TREK_OK);
            }
            if (refused && trek_graph_steps(graph) == 5)
                assert_int_equal(trek_graph_capture_reset(graph), TREK_OK);
            assert_int_equal(refused ? trek_graph_capture(graph, step, batch) : step(graph, batch), TREK_OK);
        }
    }
    assert_string_equal(trek_graph_capture_problem(graph), "");
    assert_int_equal(trek_module_each_param(trek_graph_module(graph), keep, result), TREK_OK);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
}

/* A launch that fails, of a record or of the number of its grain, makes the pass fail, which can be made again. */
static void a_failed_replay_can_be_dropped(void **state)
{
    void (*fails)(const char *specification);
    void *address = test_fake("trek_fake_fail");
    if (test_on_cpu() || !address)
        skip();
    memcpy(&fails, &address, sizeof fails);
    static const char *const refused[] = { "cudaGraphLaunch:2", "cudaLaunchKernel:1" };
    train_through(NULL, fails, &called);
    for (int k = 0; k < 2; k++) {
        train_through(refused[k], fails, &captured);
        assert_true(called.n == captured.n && called.n > 0);
        assert_memory_equal(called.params, captured.params, (size_t)called.n * sizeof *called.params);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_model_has_the_bits_of_calls),
        cmocka_unit_test(options_do_not_change_that),
        cmocka_unit_test(passes_have_records_of_their_own),
        cmocka_unit_test(what_cannot_be_replayed_is_called),
        cmocka_unit_test(a_grain_is_one_launch),
        cmocka_unit_test(a_failed_replay_can_be_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
