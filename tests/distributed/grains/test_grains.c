/* SPDX-License-Identifier: Apache-2.0 */
/* Training in grains: the bits of one rank, whatever the ranks of a process, their shares, their threads, and whether they
 * share parameters; and the values of training without grains. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "data/loader_position.h"
#include "distributed/checkpoint.h"
#include "distributed/grains/grains.h"
#include "distributed/grains/counter.h"
#include "distributed/grains/ranges.h"
#include "distributed/run.h"
#include "distributed/stepper_internal.h"
#include "graph/flow.h"
#include "graph/graph_loader.h"
#include "graph/observe.h"
#include "graph/passes.h"
#include "graph/timeline.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "nn/state_tensors.h"
#include "optim/optimizers.h"
#include "tensor/backend.h"
#include "tensor/products_way.h"
#include "tensor/rank_context.h"
#include "tensor/status_internal.h"
#include "tests/distributed/grains/grain_runs.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

static grain_result one, many;

static void train(const grain_run *run, grain_result *result)
{
    if (!grain_train(run, result))
        fail_msg("%s, %d ranks: %s", grain_models[run->model], run->ranks, trek_error());
}

static void expect_same(const grain_run *run)
{
    grain_run first = *run;
    first.ranks = 1;
    first.shares = NULL;
    first.n_shares = 0;
    first.separate = false;
    first.again = 0;
    first.slow = false;
    train(&first, &one);
    train(run, &many);
    if (one.digest != many.digest)
        fail_msg(
            "%s, %d ranks%s, grains of %d in batches of %d, optimizer %d, autocast %d, scaled %d, clipped %d, accumulate %d: "
            "other bits than one rank",
            grain_models[run->model], run->ranks, run->separate ? " of their own" : "", run->grain, run->batch, run->optimizer,
            run->autocast, run->scaled, run->clipped, run->accumulate);
    assert_memory_equal(one.losses, many.losses, sizeof one.losses);
    assert_true(one.n == many.n && one.n > 0);
}

static void each_model_has_the_bits_of_one_rank(void **state)
{
    for (int model = 0; model < MODELS; model++)
        for (int ranks = 2; ranks <= 5; ranks++)
            if (grain_takes(model / 2 + ranks))
                expect_same(&(grain_run){ .model = model, .ranks = ranks, .grain = 3, .batch = 20, .steps = 5,
                                          .separate = (model + ranks) % 2, .optimizer = (model + ranks) % 4,
                                          .clipped = ranks % 2, .evaluates = ranks == 3 });
}

static void options_do_not_change_that(void **state)
{
    for (int model = 0; model < MODELS; model++) {
        if (grain_takes(model))
            expect_same(&(grain_run){ .model = model, .ranks = 2, .grain = 4, .batch = 14, .steps = 5, .autocast = TREK_BF16 });
        if (grain_takes(model + 1))
            expect_same(&(grain_run){ .model = model, .ranks = 3, .grain = 2, .batch = 9, .steps = 6, .scaled = true,
                                      .overflow = 3, .separate = true });
        if (grain_takes(model))
            expect_same(&(grain_run){ .model = model, .ranks = 2, .grain = 3, .batch = 7, .steps = 4, .accumulate = 3,
                                      .clipped = true });
    }
    expect_same(&(grain_run){ .model = MLP, .ranks = 3, .grain = 3, .batch = 20, .steps = 6, .freezes = true });
}

/* Scales of products of 8 bits follow from earlier steps, whatever grains a rank has had before in this one. */
static void scales_do_not_change_that(void **state)
{
    for (int k = 0; k < 8; k++)
        if (grain_takes(k))
            expect_same(&(grain_run){ .model = k % 2 ? TIED_EMBEDDING : GPT, .grain = 3, .ranks = k < 2 ? 6 : 2 + k / 2,
                                      .batch = 17,
                                      .steps = 9, .fp8 = true, .optimizer = k < 2 ? 4 : k % 3, .separate = k & 4,
                                      .accumulate = k % 3 == 2 ? 2 : 0, .slow = k % 2 == 0 });
}

/* What a grain gives depends on its pass and its number, not on what the process had read. */
static void grains_can_be_run_again(void **state)
{
    for (int model = 0; model < MODELS; model++)
        if (grain_takes(model + model / 2))
            expect_same(&(grain_run){ .model = model, .ranks = 1 + model % 3, .grain = 3, .batch = 20, .steps = 5, .again = 1,
                                      .separate = model % 2, .accumulate = model < 3 ? 2 : 0 });
    expect_same(&(grain_run){ .model = GPT, .ranks = 2, .grain = 4, .batch = 14, .steps = 6, .again = 1, .scaled = true,
                              .overflow = 3, .autocast = TREK_BF16 });
}

/* Each rank has a part of the optimizer's state: cut anywhere, or in whole parameters. */
static void a_divided_state_does_not_change_that(void **state)
{
    for (int optimizer = 0; optimizer < 4; optimizer++)
        expect_same(&(grain_run){ .model = optimizer % 2 ? GPT : CONV_AND_BATCH_NORM, .ranks = 2 + optimizer % 2, .grain = 3,
                                  .batch = 20, .steps = 4, .separate = true, .sharded = true, .clipped = true,
                                  .optimizer = optimizer });
}

/* Each rank has a part of the gradients, too: grains give each bucket to those who keep it. */
static void divided_gradients_do_not_change_that(void **state)
{
    for (int k = 0; k < MODELS * 2; k++)
        expect_same(&(grain_run){ .model = k % MODELS, .ranks = 2 + k % 4, .grain = 3, .batch = 20 + k % 2, .steps = 4,
                                  .separate = true, .sharded = true, .divided = 1 + k % 2, .clipped = k % 3 < 2,
                                  .optimizer = k % 4,
                                  .accumulate = k % 5 == 0 ? 2 : 0, .scaled = k % 4 == 0, .overflow = k % 4 == 0 ? 2 : 0,
                                  .freezes = k % MODELS == MLP, .slow = k % 2, .again = k == 5 });
}

/* On GPUs sums go through NCCL if each rank has one, and through the host if ranks share one. */
static void places_do_not_change_that(void **state)
{
    if (test_on_cpu())
        skip();
    for (int model = 0; model < MODELS; model++)
        if (grain_takes(model))
            expect_same(&(grain_run){ .model = model, .ranks = 2 + model % 2, .grain = 3, .batch = 20, .steps = 4,
                                      .one_device = true, .clipped = model % 2, .optimizer = model % 4 });
}

/* Ranks of any share, and such as have nothing to do. */
static void shares_do_not_change_that(void **state)
{
    expect_same(&(grain_run){ .model = CONV_AND_BATCH_NORM, .ranks = 3, .grain = 2, .batch = 13, .steps = 6, .n_shares = 3,
                              .shares = (double[]){ 1, 5, 2.3 }, .clipped = true });
    expect_same(&(grain_run){ .model = GPT, .ranks = 8, .grain = 5, .batch = 26, .steps = 4, .separate = true });
    expect_same(&(grain_run){ .model = LSTM, .ranks = 2, .grain = 100, .batch = 26, .steps = 4 });
}

/* Any of that together, as it is drawn. TREK_TEST_DRAWS says how often. */
static void drawn_runs_have_the_bits_of_one_rank(void **state)
{
    const char *draws = getenv("TREK_TEST_DRAWS");
    int n = draws ? atoi(draws) : test_short_on_device() ? 4 : test_short() ? 10 : 40;
    double shares[8];
    for (int k = 0; k < n; k++) {
        uint64_t seed = test_seed() * 1000003 + (uint64_t)k;
        grain_run run = grain_draw(&seed, 8);
        for (int r = 0; r < run.ranks; r++)
            shares[r] = 1 + (double)test_draw(&seed, 40) / 10;
        run.shares = test_draw(&seed, 2) ? shares : NULL;
        run.n_shares = run.shares ? run.ranks : 0;
        expect_same(&run);
    }
}

/* A run without grains gives the same values up to rounding, if no layer couples samples. */
static void values_are_those_without_grains(void **state)
{
    grain_noise = false;
    for (int model = 0; model < MODELS; model++) {
        grain_run run = { .model = model, .ranks = 2, .grain = 3, .batch = 20, .steps = 3, .optimizer = 1, .accumulate = 2 };
        if (model == CONV_AND_BATCH_NORM || !grain_takes(model + 1)) /* the former has the statistics of grains */
            continue;
        train(&run, &many);
        run.grain = 0;
        run.ranks = 1;
        train(&run, &one);
        assert_int_equal(one.n, many.n);
        for (int k = 0; k < one.n; k++)
            if (!(fabs(one.params[k] - many.params[k]) <= 2e-4 * (0.01 + fabs(one.params[k]))))
                fail_msg("%s, number %d: %.9g without grains, %.9g with them", grain_models[model], k, one.params[k],
                         many.params[k]);
    }
}

static int noise_again(void **state)
{
    grain_noise = true;
    return 0;
}

/* A grain that is the whole batch has the statistics of batch norm that there are without grains. */
static void one_grain_has_the_statistics_of_the_batch(void **state)
{
    grain_run run = { .model = CONV_AND_BATCH_NORM, .ranks = 2, .grain = 64, .batch = 20, .steps = 5, .optimizer = 1 };
    train(&run, &many);
    run.grain = 0;
    run.ranks = 1;
    train(&run, &one);
    for (int k = 0; k < one.n; k++)
        assert_true(fabs(one.params[k] - many.params[k]) <= 2e-4 * (0.01 + fabs(one.params[k])));
}

/* --- runs --- */

static trek_var *run_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    return trek_cross_entropy(output, trek_batch_get(batch, "label"));
}

static trek_state *finish_run(int ranks, trek_policy policy)
{
    static int model = CONV_AND_BATCH_NORM;
    trek_dataset *dataset = grain_dataset();
    trek_run *run = trek_trainer_run(&(trek_run_opts){
        .build_model = grain_build, .arg = &model, .train_step = run_loss, .dataset = dataset, .evaluation = dataset,
            .input = "x",
        .optimizer = trek_adamw(&(trek_adam_opts){ .lr = 0.01 }), .batch_size = 12, .epochs = 2, .shuffle = true, .seed = 3,
        .policy = policy, .trainer = { .ranks = ranks, .grain = 5, .max_grad_norm = 1 } });
    trek_state *state = run ? trek_run_join(run) : NULL;
    trek_dataset_free(&dataset);
    return state;
}

static void runs_have_the_bits_of_one_rank(void **state)
{
    trek_state *first = finish_run(1, TREK_POLICY_SYNC), *other = finish_run(3, TREK_POLICY_SYNC);
    if (!first || !other)
        fail_msg("%s", trek_error());
    assert_int_equal(trek_state_count(first), trek_state_count(other));
    for (int k = 0; k < trek_state_count(first); k++)
        assert_true(test_same_bits(trek_state_tensor(first, k), trek_state_tensor(other, k)));
    trek_state_free(&first);
    trek_state_free(&other);
    REFUSED(finish_run(2, TREK_POLICY_CADENCE), TREK_ERR_ARGUMENT, "trainer_run: .trainer.grain");
}

/* --- what is refused --- */

static trek_graph *plain_graph(int model) { return grain_build(test_device(), &model); }

static void what_contradicts_grains_is_refused(void **state)
{
    int model = MLP;
    trek_graph *graph = plain_graph(model);
    trek_trainer_opts opts = { .build_replica = grain_build, .arg = &model, .ranks = 2, .grain = -1,
                               .optimizer = trek_adamw(NULL) };
    FAILS(trek_trainer_setup(graph, &opts), TREK_ERR_ARGUMENT, "trainer_setup: .grain: -1");
    opts.grain = 4;
    opts.max_anchor = 3;
    FAILS(trek_trainer_setup(graph, &opts), TREK_ERR_UNSUPPORTED, "trainer_setup: .max_anchor");
    opts.max_anchor = 0;
    opts.average = TREK_AVERAGE_PARAMETERS;
    FAILS(trek_trainer_setup(graph, &opts), TREK_ERR_UNSUPPORTED, "trainer_setup: .average");
    trek_graph_free(&graph);
    graph = trek_flow_build(trek_flow_from(trek_nn_sync_batch_norm(3, trek_cpu(0))));
    FAILS(trek_trainer_setup(graph, &(trek_trainer_opts){ .grain = 4, .optimizer = trek_adamw(NULL) }), TREK_ERR_UNSUPPORTED,
            "trainer_setup: .grain: set, with layers");
    trek_graph_free(&graph);
}

static trek_status (*true_info)(int index, trek_device_info *info);

static trek_status other_model(int index, trek_device_info *info)
{
    trek_status status = true_info(index, info);
    snprintf(info->name, sizeof info->name, "GPU of model %d", index);
    return status;
}

static void expect_refused(const trek_device *devices, const char *why)
{
    int model = MLP;
    trek_graph *graph = grain_build(devices[0], &model);
    FAILS(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = grain_build, .arg = &model, .ranks = 2,
                                                          .devices = devices, .grain = 4, .optimizer = trek_adamw(NULL) }),
          TREK_ERR_UNSUPPORTED, why);
    trek_graph_free(&graph);
}

/* Devices that round differently would show in the bits. */
static void unequal_devices_are_refused(void **state)
{
    if (test_on_cpu() || trek_device_count(TREK_CUDA) < 2)
        skip();
    expect_refused((trek_device[]){ trek_cuda(0), trek_cpu(0) }, "trainer_setup: .grain: set, with ranks on CPUs and on GPUs");
    static trek_backend other;
    const trek_backend *backend = trek_backends[TREK_CUDA];
    other = *backend;
    true_info = other.info;
    other.info = other_model;
    trek_backends[TREK_CUDA] = &other;
    expect_refused((trek_device[]){ trek_cuda(0), trek_cuda(1) }, "trainer_setup: .grain: set, with GPUs of different models");
    trek_backends[TREK_CUDA] = backend;
}

static trek_var *mean_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    return trek_mean(output, trek_dims_all(), false);
}

static atomic_int fails; /* grains with sample 12 fail */

static trek_var *failing_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    for (int64_t k = 0; k < trek_batch_size(batch) && atomic_load(&fails); k++)
        if (trek_batch_indices(batch)[k] == 12)
            return trek_fail_null(TREK_ERR_CALLBACK, "sample 12");
    trek_record_mean("size", 0.1 * (double)trek_batch_indices(batch)[0] / 3, (double)trek_batch_size(batch));
    return trek_cross_entropy(output, trek_batch_get(batch, "label"));
}

/* Two steps of 20 samples. A pass of the second fails on one rank, is dropped, and is made again. */
static void train_with_failure(int ranks, bool with_failure, double *parameter, double *recorded)
{
    int model = DROPOUT_AND_RECOMPUTATION;
    trek_loader *loader = trek_loader_new(grain_dataset(), &(trek_loader_opts){ .batch_size = 20 });
    trek_graph *graph = plain_graph(model);
    trek_graph_set_loader(graph, loader, "x");
    trek_graph_set_loss(graph, failing_loss, NULL);
    trek_trainer_opts opts = { .build_replica = grain_build, .arg = &model, .ranks = ranks, .grain = 3,
                               .optimizer = trek_adamw(NULL) };
    assert_int_equal(trek_trainer_setup(graph, &opts), TREK_OK);
    for (int step = 0; step < 2; step++) {
        trek_graph_start(graph, 0);
        trek_batch *batch = trek_graph_next(graph);
        if (step == 1 && with_failure) {
            atomic_store(&fails, 1);
            REFUSED(trek_graph_train_batch(graph, batch), TREK_ERR_CALLBACK, "sample 12");
            atomic_store(&fails, 0);
            REFUSED(trek_graph_train_batch(graph, batch), TREK_ERR_STATE, "graph_train_batch: graph: some of its gradients");
            FAILS(trek_graph_step(graph), TREK_ERR_STATE, "graph_step: graph: some of its gradients");
            assert_int_equal(trek_graph_zero_grad(graph), TREK_OK);
            trek_graph_flush(graph);
        }
        assert_non_null(trek_graph_train_batch(graph, batch));
        if (step == 1 || !with_failure)
            assert_int_equal(trek_graph_flush(graph), TREK_OK);
        assert_int_equal(trek_graph_step(graph), TREK_OK);
    }
    *recorded = trek_graph_latest(graph, "size");
    double *weights = test_read(trek_var_data(trek_module_find(trek_graph_module(graph), "0.a.weight")));
    *parameter = weights[5];
    free(weights);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    expect_no_error();
}

static void a_failed_pass_can_be_dropped(void **state)
{
    double parameter, recorded, others[2];
    train_with_failure(1, false, &parameter, &recorded);
    for (int ranks = 1; ranks <= 3; ranks++)
        for (int fails_once = 0; fails_once < 2; fails_once++) {
            train_with_failure(ranks, fails_once, &others[0], &others[1]);
            assert_true(others[0] == parameter && others[1] == recorded);
        }
}

static atomic_int grains_of[2]; /* how many each rank has begun */

/* How many grains the other rank runs if rank 1 stands still in its first one. On a GPU a rank is given four before the pass. */
static int others(void) { return test_on_cpu() ? 15 : 12; }

/* Waits until a rank has begun so many grains. */
static bool wait_for(int rank, int grains)
{
    for (int k = 0; atomic_load(&grains_of[rank]) < grains; k++) {
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
        if (k == 60000)
            return trek_fail(TREK_ERR_TIMEOUT, "rank %d has begun only %d grains", rank, atomic_load(&grains_of[rank])), false;
    }
    return true;
}

/* Rank 0 waits in its first grain until rank 1 has one, too, which stands still in it until rank 0 has begun all others. */
static trek_var *standing_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    int rank = trek_rank_here.rank;
    if (atomic_fetch_add(&grains_of[rank], 1) == 0 && trek_rank_here.world == 2 &&
        !wait_for(1 - rank, rank == 1 ? others() : 1))
        return NULL;
    return trek_cross_entropy(output, trek_batch_get(batch, "label"));
}

/* The timeline says which rank ran which grain: each of the 16 once. */
static void expect_in_timeline(trek_timeline *timeline)
{
    int seen[16] = { 0 }, of_rank[2] = { 0 };
    trek_timeline_entry entry;
    for (int64_t k = 0; trek_timeline_get(timeline, k, &entry); k++)
        if (strcmp(entry.name, "grain") == 0) {
            assert_in_range(entry.detail, 0, 15);
            assert_in_range(entry.rank, 0, 1);
            seen[entry.detail]++;
            of_rank[entry.rank]++;
        }
    for (int k = 0; k < 16; k++)
        assert_int_equal(seen[k], 1);
    assert_true(of_rank[0] == atomic_load(&grains_of[0]) && of_rank[1] == atomic_load(&grains_of[1]));
}

static double train_standing(int ranks)
{
    int model = DROPOUT_AND_RECOMPUTATION;
    trek_loader *loader = trek_loader_new(grain_dataset(), &(trek_loader_opts){ .batch_size = 16 });
    trek_graph *graph = plain_graph(model);
    trek_graph_set_loader(graph, loader, "x");
    trek_graph_set_loss(graph, standing_loss, NULL);
    trek_trainer_opts opts = { .build_replica = grain_build, .arg = &model, .ranks = ranks, .grain = 1,
                               .optimizer = trek_adamw(NULL) };
    assert_int_equal(trek_trainer_setup(graph, &opts), TREK_OK);
    atomic_store(&grains_of[0], 0);
    atomic_store(&grains_of[1], 0);
    trek_timeline *timeline = trek_timeline_new(NULL);
    trek_timeline_attach(timeline);
    trek_graph_start(graph, 0);
    if (!trek_graph_train_batch(graph, trek_graph_next(graph)) || trek_graph_step(graph) != TREK_OK)
        fail_msg("%s", trek_error());
    trek_timeline_detach(timeline);
    expect_in_timeline(timeline);
    trek_timeline_free(&timeline);
    double *weights = test_read(trek_var_data(trek_module_find(trek_graph_module(graph), "0.a.weight"))), one = weights[5];
    free(weights);
    trek_graph_flush(graph);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    return one;
}

/* A rank that is slow keeps only what it has begun, or was given: the others take the rest, and the bits are the same. */
static void ranks_take_what_a_slow_one_leaves(void **state)
{
    double alone = train_standing(1), together = train_standing(2);
    assert_int_equal(atomic_load(&grains_of[0]), others());
    assert_int_equal(atomic_load(&grains_of[1]), 16 - others());
    assert_true(alone == together);
}

/* The size that trek chooses gives the bits of the same size as the program's own, so measuring leaves no trace. */
static void a_size_can_be_chosen(void **state)
{
    for (int model = 0; model < MODELS; model++) {
        grain_run run = { .model = model, .ranks = 1 + model % 3, .grain = TREK_GRAIN, .batch = 20, .steps = 4,
                          .scaled = model == 1, .autocast = model == 3 ? TREK_BF16 : TREK_F32 };
        if (!grain_takes(model))
            continue;
        train(&run, &many);
        assert_in_range(many.grain, 1, 5);
        run.grain = (int)many.grain;
        run.ranks = 1;
        train(&run, &one);
        assert_true(one.digest == many.digest);
    }
    setenv("TREK_GRAIN", "7", 1);
    train(&(grain_run){ .model = MLP, .ranks = 2, .grain = TREK_GRAIN, .batch = 20, .steps = 2 }, &many);
    unsetenv("TREK_GRAIN");
    assert_int_equal(many.grain, 7);
    int model = MLP;
    trek_graph *graph = plain_graph(model);
    trek_trainer_opts opts = { .build_replica = grain_build, .arg = &model, .grain = TREK_GRAIN };
    FAILS(trek_trainer_setup(graph, &opts), TREK_ERR_STATE, "trainer_setup: .grain: TREK_GRAIN");
    trek_graph_free(&graph);
}

static trek_graph *graph_of_size(trek_loader *loader, int64_t size)
{
    static int model = MLP;
    trek_graph *graph = plain_graph(model);
    trek_graph_set_loader(graph, loader, "x");
    trek_graph_set_loss(graph, mean_loss, NULL);
    trek_trainer_opts opts = { .build_replica = grain_build, .arg = &model, .grain = size, .optimizer = trek_adamw(NULL) };
    assert_int_equal(trek_trainer_setup(graph, &opts), TREK_OK);
    return graph;
}

/* A chosen size is a part of the run's state. */
static void checkpoints_keep_the_size(void **state)
{
    char path[] = "/tmp/trek-grain-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    trek_loader *loader = trek_loader_new(grain_dataset(), &(trek_loader_opts){ .batch_size = 20 });
    trek_graph *graph = graph_of_size(loader, 9); /* no choice finds it: these have at most 5 samples */
    assert_int_equal(trek_checkpoint_save(graph, NULL, path), TREK_OK);
    trek_graph_free(&graph);
    graph = graph_of_size(loader, TREK_GRAIN);
    assert_in_range(trek_graph_ranks(graph)->grain, 1, 5);
    assert_int_equal(trek_checkpoint_load(graph, NULL, path), TREK_OK);
    assert_int_equal(trek_graph_ranks(graph)->grain, 9);
    trek_graph_start(graph, 0);
    assert_non_null(trek_graph_train_batch(graph, trek_graph_next(graph)));
    assert_int_equal(trek_graph_ranks(graph)->grains->n_records, 3);
    assert_int_equal(trek_graph_step(graph), TREK_OK);
    trek_graph_free(&graph);
    graph = graph_of_size(loader, 4); /* the program's own word counts */
    assert_int_equal(trek_checkpoint_load(graph, NULL, path), TREK_OK);
    assert_int_equal(trek_graph_ranks(graph)->grain, 4);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    unlink(path);
    expect_no_error();
}

enum { TAKERS = 4, TAKEN_PASSES = 300, TAKEN_MOST = 64 };
static _Atomic uint64_t taken_words[TAKERS];
static atomic_int taken[TAKEN_PASSES][TAKEN_MOST];
static pthread_barrier_t pass_ends;

/* Pass k has k % 64 + 1 grains, divided in another way each time; some processes come late to a pass. */
static void *take_grains(void *arg)
{
    static trek_grain_ranges all[TAKERS];
    int own = *(int *)arg;
    trek_grain_ranges *g = &all[own];
    *g = (trek_grain_ranges){ .words = taken_words, .process = own, .processes = TAKERS };
    for (int pass = 0; pass < TAKEN_PASSES; pass++) {
        int64_t n = pass % TAKEN_MOST + 1, k, some;
        g->serial = (uint32_t)(pass * 3 + 7);
        for (int p = 0; p <= TAKERS; p++) {
            g->first[p] = p == TAKERS ? n : p * (pass % 3) * n / (2 * TAKERS) % (n + 1);
            g->speed[p % TAKERS] = p % TAKERS;
        }
        for (int late = 0; late < (pass + own) % TAKERS * 50; late++)
            sched_yield();
        while ((k = trek_grain_ranges_take(g, 1 + (pass + own) % 3, &some)) >= 0)
            for (int64_t end = k + some; k < end; k++)
                atomic_fetch_add(&taken[pass][k], 1);
        if (trek_grain_ranges_left(g) != 0)
            atomic_store(&taken[pass][0], 100);
        pthread_barrier_wait(&pass_ends);
    }
    return NULL;
}

/* Whoever takes grains of whom, each is taken once. */
static void each_grain_is_taken_once(void **state)
{
    pthread_t threads[TAKERS];
    int numbers[TAKERS];
    pthread_barrier_init(&pass_ends, NULL, TAKERS);
    for (int p = 0; p < TAKERS; p++) {
        numbers[p] = p;
        assert_int_equal(pthread_create(&threads[p], NULL, take_grains, &numbers[p]), 0);
    }
    for (int p = 0; p < TAKERS; p++)
        pthread_join(threads[p], NULL);
    pthread_barrier_destroy(&pass_ends);
    for (int pass = 0; pass < TAKEN_PASSES; pass++)
        for (int k = 0; k < TAKEN_MOST; k++)
            if (taken[pass][k] != (k <= pass % TAKEN_MOST))
                fail_msg("pass %d: grain %d was taken %d times", pass, k, taken[pass][k]);
}

/* What a rank expects of others' ranges. With two processes, of which the second does nothing, and one or two ranks in the first,
 * the grain that comes is always the expected one; and nobody expects what its owner will have run by then. */
static void the_next_grain_is_expected(void **state)
{
    for (int ranks = 1; ranks <= 3; ranks++) {
        _Atomic uint64_t words[2] = { 0 };
        trek_grain_ranges g = { .words = words, .process = 0, .processes = 2, .serial = 5, .first = { 0, 6, 20 },
                                .speed = { 1, 1 } };
        int64_t expected[3], took, n;
        int hits = 0;
        for (int k = 0; k < 20; k++) { /* ranks come in turn */
            took = trek_grain_ranges_take(&g, 1, &n);
            assert_int_equal(took, k < 6 ? k : 25 - k);
            if (k >= ranks && expected[k % ranks] >= 0)
                hits += expected[k % ranks] == took ? 1 : 100;
            expected[k % ranks] = trek_grain_ranges_expect(&g, ranks);
        }
        assert_in_range(hits, 14 - 2 * ranks - 2, 14);
        assert_int_equal(trek_grain_ranges_expect(&g, ranks), -1);
    }
    _Atomic uint64_t words[3] = { 0 };
    trek_grain_ranges g = { .words = words, .process = 1, .processes = 3, .serial = 1, .first = { 0, 4, 5, 9 },
                            .speed = { 4, 1, 1 } };
    int64_t n;
    assert_int_equal(trek_grain_ranges_expect(&g, 1), -1); /* it has one of its own */
    assert_int_equal(trek_grain_ranges_take(&g, 1, &n), 4);
    assert_int_equal(trek_grain_ranges_expect(&g, 1), 8); /* process 0 will have run its own */
    g.speed[2] = 4;
    assert_int_equal(trek_grain_ranges_expect(&g, 1), -1); /* and so will process 2 */
}

/* What process 0 hands out: processes ask in any order, at random, for as long as they get something; some begin late. Each grain
 * is given once, or belongs to its process from the beginning, however the ranges and speeds are. */
static void process_0_gives_each_grain_once(void **state)
{
    enum { MOST = 8 };
    uint64_t seed = 11;
    int64_t first[MOST], end[MOST], has[MOST];
    double speed[MOST], pace[MOST];
    for (uint64_t pass = 1; pass <= 400; pass++) {
        int processes = 2 + (int)test_draw(&seed, MOST - 1), given[64 * MOST] = { 0 }, over = 0;
        int64_t question[3 + 2 * MOST] = { 0, 1 }, asked[MOST] = { 0 }, messages = 0, grains = 0;
        bool done[MOST] = { false };
        trek_grain_ledger ledger = { .processes = processes, .serial = pass - 1, .first = first, .end = end, .speed = speed,
                                     .given = has, .pace = pace };
        for (int p = 0; p < processes; p++) {
            double fast = test_draw(&seed, 7) ? 1 + (double)test_draw(&seed, 10) : 0;
            question[3 + p] = question[2 + p] + (int64_t)test_draw(&seed, 64);
            memcpy(&question[3 + processes + p], &fast, sizeof fast);
        }
        for (int p = 0; p < processes; p++) { /* what each has from the beginning */
            int64_t n = question[3 + p] - question[2 + p], ahead = n / 4 > 0 || n == 0 ? n / 4 : 1;
            for (int64_t k = 0; k < ahead; k++)
                given[question[2 + p] + k]++;
        }
        grains = question[2 + processes];
        while (over < processes) {
            int p = (int)test_draw(&seed, (uint64_t)processes);
            int64_t answer[TREK_CONTROL_ANSWERS] = { 0 };
            if (done[p])
                continue;
            trek_grain_ledger_answer(&ledger, p, pass << 20 | (uint64_t)asked[p], question, asked[p] ? 2 : 3 + 2 * processes,
                                     answer);
            asked[p]++, messages++;
            over += done[p] = answer[1] == 0;
            for (int64_t k = 0; k < answer[1]; k++)
                given[answer[0] + k]++;
        }
        for (int64_t k = 0; k < 64 * MOST; k++)
            if (given[k] != (k < grains))
                fail_msg("pass %d: grain %d was given %d times", (int)pass, (int)k, given[k]);
        assert_in_range(messages, processes, processes * 24); /* pieces become smaller: they are not asked for one by one */
        int64_t late[TREK_CONTROL_ANSWERS] = { 0 };
        question[1] = 0;
        trek_grain_ledger_answer(&ledger, 0, pass << 20 | 77, question, 2, late);
        assert_int_equal(late[0], 0); /* how many are left */
    }
}

/* A process that turns out to be slower than was measured gets fewer grains in the same pass. The paces are those of a clock that
 * stands at the beginning of the pass, so only their ratio counts. */
static void process_0_learns_who_is_slow(void **state)
{
    int64_t first[2], end[2], given[2];
    double speed[2], pace[2], one = 1;
    int64_t question[7] = { 0, 1, 0, 400, 800 }, none[TREK_CONTROL_ANSWERS] = { 0 }, slow[TREK_CONTROL_ANSWERS] = { 0 };
    memcpy(&question[5], &one, sizeof one);
    memcpy(&question[6], &one, sizeof one);
    trek_grain_ledger ledger = { .processes = 2, .first = first, .end = end, .speed = speed, .given = given, .pace = pace };
    question[1] = 0;
    trek_grain_ledger_answer(&ledger, 0, 1 << 20, question, 7, none);
    assert_int_equal(none[0], 600);
    ledger.start_ns -= 1000000000000; /* long ago */
    given[0] = 901;                   /* it has done 900 since, and process 1 a ninth of that */
    given[1] = 101;
    question[1] = 1;
    trek_grain_ledger_answer(&ledger, 0, (1 << 20) + 1, question, 2, none);
    assert_true(none[0] == 100 && none[1] >= 270 && none[1] <= 300); /* process 1 has done at most what it had */
    trek_grain_ledger_answer(&ledger, 1, 1 << 20, question, 7, slow);
    assert_int_equal(slow[0], 500);
    assert_in_range(slow[1], 14, 18); /* half of a tenth of what is left */
}

/* Whoever is told that there is nothing for it does not count any more, so somebody takes what is left, although paces change. */
static void process_0_keeps_no_grain(void **state)
{
    int64_t first[2], end[2], given[2];
    double speed[2], pace[2], one = 1;
    int64_t question[7] = { 0, 1, 0, 2, 4 }, answer[TREK_CONTROL_ANSWERS] = { 0 };
    memcpy(&question[5], &one, sizeof one);
    memcpy(&question[6], &one, sizeof one);
    trek_grain_ledger ledger = { .processes = 2, .first = first, .end = end, .speed = speed, .given = given, .pace = pace };
    question[1] = 0;
    trek_grain_ledger_answer(&ledger, 0, 1 << 20, question, 7, answer);
    assert_int_equal(answer[0], 2); /* each has one from the beginning */
    ledger.start_ns -= 1000000000000;
    question[1] = 1;
    given[0] = 1001;
    trek_grain_ledger_answer(&ledger, 0, (1 << 20) + 1, question, 2, answer);
    assert_int_equal(answer[1], 1);
    given[1] = 11; /* a hundredth of that: it gets none of the last one */
    trek_grain_ledger_answer(&ledger, 1, 1 << 20, question, 7, answer);
    assert_int_equal(answer[1], 0);
    pace[0] = 0;
    given[0] = 2;  /* process 0 turns out to be slower still */
    trek_grain_ledger_answer(&ledger, 0, (1 << 20) + 2, question, 2, answer);
    assert_true(answer[0] == 3 && answer[1] == 1);
}

/* Questions that no process of trek asks get zeros, and change nothing. */
static void process_0_ignores_nonsense(void **state)
{
    int64_t first[2], end[2], given[2], answer[TREK_CONTROL_ANSWERS] = { 0 };
    double speed[2], pace[2], one = 1;
    trek_grain_ledger ledger = { .processes = 2, .first = first, .end = end, .speed = speed, .given = given, .pace = pace };
    int64_t question[7] = { 0, 1, 0, 8, 16 };
    memcpy(&question[5], &one, sizeof one);
    memcpy(&question[6], &one, sizeof one);
    int64_t backwards[7] = { 0, 1, 8, 0, 16 }, negative[7] = { 0, 1, -8, 0, 16 }, huge[7] = { 0, 1, 0, 8, INT64_MAX };
    trek_grain_ledger_answer(&ledger, 1, 3 << 20, backwards, 7, answer);
    trek_grain_ledger_answer(&ledger, 1, 3 << 20, negative, 7, answer);
    trek_grain_ledger_answer(&ledger, 1, 3 << 20, huge, 7, answer);
    trek_grain_ledger_answer(&ledger, 1, 3 << 20, question, 6, answer);
    trek_grain_ledger_answer(&ledger, 1, 3 << 20, question, 2, answer);
    trek_grain_ledger_answer(&ledger, 1, 3 << 20, question, 1, answer);
    trek_grain_ledger_answer(&ledger, 2, 3 << 20, question, 7, answer);
    trek_grain_ledger_answer(&ledger, -1, 3 << 20, question, 7, answer);
    assert_true(answer[0] == 0 && answer[1] == 0 && ledger.serial == 0);
    trek_grain_ledger_answer(&ledger, 1, 3 << 20, question, 7, answer);
    assert_true(answer[0] == 10 && answer[1] >= 1 && answer[1] <= 6 && ledger.serial == 3); /* 2 of 8 are its own */
    int64_t old[TREK_CONTROL_ANSWERS] = { 0 };
    trek_grain_ledger_answer(&ledger, 1, 2 << 20, question, 7, old);
    assert_true(old[0] == 0 && old[1] == 0 && ledger.serial == 3);
}

/* A loop of a program's own is refused; passes without .accumulate, too; and a graph can leave grain mode. */
static void wrong_loops_are_refused(void **state)
{
    int model = MLP;
    trek_loader *loader = trek_loader_new(grain_dataset(), &(trek_loader_opts){ .batch_size = 10 });
    trek_graph *graph = plain_graph(model);
    trek_graph_set_loader(graph, loader, "x");
    trek_graph_set_loss(graph, mean_loss, NULL);
    trek_trainer_opts opts = { .build_replica = grain_build, .arg = &model, .ranks = 1, .grain = 4,
                               .optimizer = trek_adamw(NULL) };
    assert_int_equal(trek_trainer_setup(graph, &opts), TREK_OK);
    assert_int_not_equal(trek_products_chosen(TREK_F32), TREK_PRODUCTS_WAY_MEASURED);
    assert_int_not_equal(trek_products_chosen(TREK_BF16), TREK_PRODUCTS_WAY_MEASURED);
    trek_graph_start(graph, 0);
    trek_batch *batch = trek_graph_next(graph);
    REFUSED(trek_graph_forward_batch(graph, batch), TREK_ERR_UNSUPPORTED, "graph_forward: graph: it is trained in grains");
    assert_non_null(trek_graph_train_batch(graph, batch));
    REFUSED(trek_graph_train_batch(graph, batch), TREK_ERR_UNSUPPORTED, "graph_train_batch: graph: a second pass");
    assert_int_equal(trek_graph_zero_grad(graph), TREK_OK);
    assert_non_null(trek_graph_train_batch(graph, batch));
    assert_int_equal(trek_graph_reduce(graph), TREK_OK);
    REFUSED(trek_graph_train_batch(graph, batch), TREK_ERR_STATE, "graph_train_batch: graph: its gradients have been reduced");
    assert_int_equal(trek_graph_step(graph), TREK_OK);
    trek_graph_train(graph, false);
    assert_non_null(trek_graph_forward_batch(graph, batch));
    trek_graph_train(graph, true);
    opts.grain = 0;
    assert_int_equal(trek_trainer_setup(graph, &opts), TREK_OK);
    assert_non_null(trek_graph_forward_batch(graph, batch));
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    expect_no_error();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(each_model_has_the_bits_of_one_rank, clear_error),
        cmocka_unit_test_setup(options_do_not_change_that, clear_error),
        cmocka_unit_test_setup(scales_do_not_change_that, clear_error),
        cmocka_unit_test_setup(grains_can_be_run_again, clear_error),
        cmocka_unit_test_setup(a_divided_state_does_not_change_that, clear_error),
        cmocka_unit_test_setup(divided_gradients_do_not_change_that, clear_error),
        cmocka_unit_test_setup(runs_have_the_bits_of_one_rank, clear_error),
        cmocka_unit_test_setup(shares_do_not_change_that, clear_error),
        cmocka_unit_test_setup(places_do_not_change_that, clear_error),
        cmocka_unit_test_setup(drawn_runs_have_the_bits_of_one_rank, clear_error),
        cmocka_unit_test_setup_teardown(values_are_those_without_grains, clear_error, noise_again),
        cmocka_unit_test_setup(one_grain_has_the_statistics_of_the_batch, clear_error),
        cmocka_unit_test_setup(what_contradicts_grains_is_refused, clear_error),
        cmocka_unit_test_setup(unequal_devices_are_refused, clear_error),
        cmocka_unit_test_setup(a_failed_pass_can_be_dropped, clear_error),
        cmocka_unit_test_setup(ranks_take_what_a_slow_one_leaves, clear_error),
        cmocka_unit_test_setup(a_size_can_be_chosen, clear_error),
        cmocka_unit_test_setup(checkpoints_keep_the_size, clear_error),
        cmocka_unit_test_setup(each_grain_is_taken_once, clear_error),
        cmocka_unit_test_setup(the_next_grain_is_expected, clear_error),
        cmocka_unit_test_setup(process_0_gives_each_grain_once, clear_error),
        cmocka_unit_test_setup(process_0_learns_who_is_slow, clear_error),
        cmocka_unit_test_setup(process_0_keeps_no_grain, clear_error),
        cmocka_unit_test_setup(process_0_ignores_nonsense, clear_error),
        cmocka_unit_test_setup(wrong_loops_are_refused, clear_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
