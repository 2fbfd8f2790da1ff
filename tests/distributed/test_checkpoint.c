/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: a run that is stopped after any step and goes on in a fresh graph ends with the same bits, on other numbers of
 * ranks with the same numbers; what is refused changes nothing. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "data/loader.h"
#include "data/loader_position.h"
#include "distributed/balance/plan.h"
#include "distributed/checkpoint.h"
#include "distributed/comm/comm.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/settings.h"
#include "nn/layers.h"
#include "nn/state.h"
#include "nn/state_modules.h"
#include "nn/state_tensors.h"
#include "tensor/backend.h"
#include "tensor/copies.h"
#include "tensor/products_way.h"
#include "tests/distributed/stopped_run.h"
#include "tests/support/processes.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/tamed.h"

/* --- a run ----------------------------------------------------------------------------------------------- */

static void whole_run(const run_opts *o, record *to)
{
    trek_seed(12);
    trek_graph *graph = begin(o);
    trek_loader *loader = loader_new(3);
    train(graph, o, loader, STEPS, false, true);
    look(graph, loader, to);
    end_run(&graph, &loader);
}

static void resume(const run_opts *o, int64_t step, const record *expected, double tolerance)
{
    static record got;
    char what[64], name[32];
    snprintf(name, sizeof name, "step-%d", (int)step);
    snprintf(what, sizeof what, "resumed after step %d on %d ranks", (int)step, o->ranks);
    trek_loader *loader;
    trek_graph *graph = begin_elsewhere(o, &loader);
    if (trek_checkpoint_load(graph, loader, path_of(name)) != TREK_OK)
        fail_msg("%s: %s", what, trek_error());
    assert_int_equal(trek_graph_steps(graph), step);
    train(graph, o, loader, STEPS, true, false);
    look(graph, loader, &got);
    expect_close(&got, expected, tolerance, what);
    end_run(&graph, &loader);
}

static void same_bits_after_each_step(void **state)
{
    static record expected;
    static const run_opts runs[] = {
        { .dtype = TREK_F32, .ranks = 1 },
        { .dtype = TREK_F32, .ranks = 2 },
        { .dtype = TREK_F32, .ranks = 2, .separate = true, .optimizer = SGD, .norm = true },
        { .dtype = TREK_F32, .ranks = 2, .scaled = true },
        { .dtype = TREK_F32, .ranks = 2, .made = true },
        { .dtype = TREK_F32, .ranks = 2, .separate = true, .optimizer = RMSPROP, .scaled = true },
        { .dtype = TREK_F32, .ranks = 2, .optimizer = TAMED },
        { .dtype = TREK_F32, .ranks = 2, .separate = true, .state_dtype = TREK_BF16 },
        { .dtype = TREK_BF16, .ranks = 2, .optimizer = SGD, .state_dtype = TREK_BF16 },
        { .dtype = TREK_F32, .ranks = 2, .separate = true, .state_dtype = TREK_U8 },
        { .dtype = TREK_BF16, .ranks = 2, .scaled = true, .state_dtype = TREK_U8 },
        { .dtype = TREK_F32, .ranks = 2, .separate = true, .sharded = true, .scaled = true },
        { .dtype = TREK_BF16, .ranks = 3, .separate = true, .sharded = true, .state_dtype = TREK_BF16 },
        { .dtype = TREK_BF16, .ranks = 4, .separate = true, .sharded = true, .optimizer = RMSPROP },
        { .dtype = TREK_BF16, .ranks = 3, .separate = true, .sharded = true, .state_dtype = TREK_U8 },
        { .dtype = TREK_BF16, .ranks = 3, .separate = true, .sharded = true, .optimizer = LAMB, .norm = true },
        { .dtype = TREK_F32, .ranks = 4, .separate = true, .sharded = true, .optimizer = ADAFACTOR, .scaled = true },
    };
    for (size_t k = 0; k < sizeof runs / sizeof *runs; k++) {
        if (runs[k].optimizer == TAMED && !test_on_cpu())
            continue;
        whole_run(&runs[k], &expected);
        for (int64_t step = 1; step <= STEPS; step += getenv("TREK_TEST_SHORT") ? 6 : 1)
            resume(&runs[k], step, &expected, 0);
    }
}

/* Files that a thread writes are those of the moment of the call, whatever training does meanwhile. */
static void saved_by_a_thread(void **state)
{
    static record expected;
    char name[32];
    for (int k = 1; k <= 3; k++) {
        int ranks = k < 3 ? k : 2;
        run_opts o = { .dtype = TREK_F32, .ranks = ranks, .norm = true, .separate = k == 3, .sharded = k == 3 };
        trek_checkpoint_writer *writer = trek_checkpoint_writer_new();
        assert_int_equal(trek_checkpoint_writer_wait(writer), TREK_OK);
        trek_seed(12);
        trek_graph *graph = begin(&o);
        trek_loader *loader = loader_new(3);
        for (int64_t step = 1; step <= STEPS; step++) {
            train(graph, &o, loader, step, step > 1, false);
            snprintf(name, sizeof name, "step-%d", (int)step);
            assert_int_equal(trek_checkpoint_writer_save(writer, graph, loader, path_of(name)), TREK_OK);
        }
        assert_int_equal(trek_checkpoint_writer_save(writer, graph, loader, path_of("no/such/folder")), TREK_OK);
        FAILS(trek_checkpoint_writer_wait(writer), TREK_ERR_IO, "no/such/folder");
        assert_int_equal(trek_checkpoint_writer_save(writer, graph, loader, path_of("no/such/folder")), TREK_OK);
        assert_int_equal(trek_checkpoint_writer_save(writer, graph, loader, path_of("lost")), TREK_ERR_IO);
            /* of the one before */
        trek_error_clear();
        assert_int_equal(trek_checkpoint_writer_wait(writer), TREK_OK);
        assert_int_equal(access(path_of("lost"), F_OK), -1);
        assert_int_equal(trek_checkpoint_writer_save(NULL, graph, loader, path_of("x")), TREK_ERR_ARGUMENT);
        assert_int_equal(trek_checkpoint_writer_save(writer, NULL, loader, path_of("x")), TREK_ERR_ARGUMENT);
        assert_int_equal(trek_checkpoint_writer_save(writer, graph, loader, NULL), TREK_ERR_ARGUMENT);
        FAILS(trek_checkpoint_writer_wait(NULL), TREK_ERR_ARGUMENT, "");
        look(graph, loader, &expected);
        end_run(&graph, &loader);
        trek_checkpoint_writer_free(&writer);
        trek_checkpoint_writer_free(&writer);
        for (int64_t step = 1; step <= STEPS; step += 6)
            resume(&o, step, &expected, 0);
    }
}

/* Recorded shares, followed again: they change in the course of the run. */
static void same_bits_of_replayed_shares(void **state)
{
    static record expected, equal;
    trek_plan *plan = trek_plan_new(2);
    assert_int_equal(trek_plan_add_shares(plan, 0, (double[]){ 0.25, 0.75 }), TREK_OK);
    assert_int_equal(trek_plan_add_shares(plan, 6, (double[]){ 0.75, 0.25 }), TREK_OK);
    assert_int_equal(trek_plan_add_shares(plan, 13, (double[]){ 0.125, 0.875 }), TREK_OK);
    run_opts o = { .dtype = TREK_F32, .ranks = 2 };
    whole_run(&o, &equal);
    o.plan = plan;
    whole_run(&o, &expected);
    assert_memory_not_equal(equal.values, expected.values, sizeof equal.values); /* shares do change bits */
    for (int64_t step = 1; step <= STEPS; step++)
        resume(&o, step, &expected, 0);
    trek_plan_free(&plan);
}

static void other_numbers_of_ranks(void **state)
{
    static const int worlds[] = { 1, 2, 4 };
    static record expected;
    for (int a = 0; a < 3; a++) {
        run_opts from = { .dtype = TREK_F64, .ranks = worlds[a], .norm = true, .made = a == 1 };
        whole_run(&from, &expected);
        for (int b = 0; b < 3; b++) {
            run_opts to = from;
            to.ranks = worlds[b];
            to.separate = b == 1;
            resume(&to, 7, &expected, 1e-9);
            resume(&to, 16, &expected, 1e-9);
        }
    }
}

/* Of state in parts, written at any number of ranks, and read at another, in parts or not; 16-bit parameters' masters, too. */
static void any_number_of_parts(void **state)
{
    static record expected;
    for (int a = 0; a < 3; a++)
        for (int k = 0; k < 4; k++) {
            int low = k & 1;
            run_opts from = { .dtype = low ? TREK_BF16 : TREK_F64, .ranks = 1 + a, .separate = true, .sharded = true,
                              .optimizer = k > 1 ? (low ? LAMB : ADAFACTOR) : low ? RMSPROP : ADAMW, .state_dtype = k == 1 &&
                              a == 1 ? TREK_U8 : TREK_F32 };
            whole_run(&from, &expected);
            for (int b = 0; b < 5; b++) {
                run_opts to = from;
                to.ranks = 1 + b % 4;
                to.sharded = to.separate = b < 4;
                resume(&to, 7, &expected, low ? 0.05 : 1e-9);
            }
        }
}

/* Parameters and buffers in it are what others read. */
static void readable_as_a_state(void **state)
{
    run_opts o = { .dtype = TREK_F32, .ranks = 1 };
    static record expected, got;
    trek_graph *graph = begin(&o);
    trek_loader *loader = loader_new(3);
    train(graph, &o, loader, 3, false, true);
    look(graph, NULL, &expected);
    trek_graph *other = build(test_device(), &o);
    trek_state_report report;
    assert_int_equal(trek_state_load_with(trek_graph_module(other), path_of("step-3"),
                                          &(trek_state_load_opts){ .allow_unexpected = true },
                                          &report), TREK_OK);
    assert_int_equal(report.missing, 0);
    look(other, NULL, &got);
    assert_memory_equal(got.values, expected.values, (size_t)expected.n * sizeof(double));
    trek_graph_free(&other);
    end_run(&graph, &loader);
}

/* --- what is refused changes nothing --------------------------------------------------------------------- */

static void refused(void **state)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        run_opts o = { .dtype = TREK_F32, .ranks = ranks }, sgd = { .dtype = TREK_F32, .ranks = ranks, .optimizer = SGD };
        run_opts wide = { .dtype = TREK_F64, .ranks = ranks }, norm = { .dtype = TREK_F32, .ranks = ranks, .norm = true };
        trek_graph *graph = begin(&o);
        trek_loader *loader = loader_new(3);
        train(graph, &o, loader, 6, false, true);
        expect_refusal(graph, loader, path_of("nothing"), TREK_ERR_IO, "nothing");
        size_t size;
        char *data = read_file(path_of("step-6"), &size);
        for (size_t cut = 0; cut < size; cut += cut < 200 ? 13 : size / 20) {
            write_file(path_of("cut"), data, cut);
            expect_refusal(graph, loader, path_of("cut"), TREK_ERR_FORMAT, "cut");
        }
        free(data);
        assert_int_equal(trek_state_save(trek_graph_module(graph), path_of("weights")), TREK_OK);
        expect_refusal(graph, loader, path_of("weights"), TREK_ERR_FORMAT, "not a checkpoint");
        assert_int_equal(trek_checkpoint_save(graph, NULL, path_of("no-loader")), TREK_OK);
        expect_refusal(graph, loader, path_of("no-loader"), TREK_ERR_ARGUMENT, "without a loader");
        trek_graph *others[3] = { begin(&sgd), begin(&wide), begin(&norm) };
        expect_refusal(others[0], NULL, path_of("step-6"), TREK_ERR_FORMAT, "exp_avg");
        expect_refusal(others[1], NULL, path_of("step-6"), TREK_ERR_ARGUMENT, "does not fit");
        expect_refusal(others[2], NULL, path_of("step-6"), TREK_ERR_ARGUMENT, "missing");
        for (int k = 0; k < 3; k++)
            trek_graph_free(&others[k]);
        trek_graph *bare = build(test_device(), &o);
        expect_refusal(bare, NULL, path_of("step-6"), TREK_ERR_STATE, "no optimizer");
        trek_graph_free(&bare);
        trek_loader *short_one = trek_loader_new(trek_dataset_retain(trek_loader_dataset(loader)),
                                                 &(trek_loader_opts){ .batch_size = 5 });
        expect_refusal(graph, short_one, path_of("step-6"), TREK_ERR_ARGUMENT,
                       "23 samples in batches of 6; this one gives 23 in batches of 5");
        trek_loader_free(&short_one);
        FAILS(trek_checkpoint_load(NULL, loader, path_of("step-6")), TREK_ERR_ARGUMENT, "");
        FAILS(trek_checkpoint_save(graph, loader, path_of("no/such/folder")), TREK_ERR_IO, "");
        train(graph, &o, loader, 8, true, false); /* all the same, it goes on */
        end_run(&graph, &loader);
    }
}

/* Numbers in the file that are not what a run can have. */
static void wrong_numbers(void **state)
{
    run_opts o = { .dtype = TREK_F32, .ranks = 1, .scaled = true };
    trek_graph *graph = begin(&o);
    trek_loader *loader = loader_new(3);
    train(graph, &o, loader, 5, false, true);
    static const struct {
        const char *name;
        int n;
        double values[5];
        trek_dtype dtype;
    } wrong[] = {
        { "trek:run", 4, { -1, 0, 0, 0 }, TREK_I64 },        { "trek:run", 3, { 1, 0, 0 }, TREK_I64 },
        { "trek:run", 4, { 5, 0, 0, 0 }, TREK_F64 },         { "trek:loader", 4, { 0, 9, SAMPLES, BATCH }, TREK_I64 },
        { "trek:loader", 4, { -1, 0, SAMPLES, BATCH }, TREK_I64 }, { "trek:lr", 1, { -0.5 }, TREK_F64 },
        { "trek:scaler", 5, { 1, 2, 0.5, -7, 0 }, TREK_F64 }, { "trek:scaler", 5, { -1, 2, 0.5, 3, 0 }, TREK_F64 },
        { "trek:other", 1, { 1 }, TREK_F64 },                { "trek:optimizer.nobody.step", 1, { 1 }, TREK_I64 },
    };
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        trek_state *file = trek_state_read(path_of("step-5")), *bad = trek_state_new();
        for (int e = 0; e < trek_state_count(file); e++)
            if (strcmp(trek_state_name(file, e), wrong[k].name) != 0)
                assert_int_equal(trek_state_add(bad, trek_state_name(file, e), trek_state_tensor(file, e)), TREK_OK);
        trek_tensor *wide = trek_tensor_from_data(wrong[k].values, trek_dims(wrong[k].n), TREK_F64, trek_cpu(0));
        trek_tensor *tensor = trek_tensor_cast(wide, wrong[k].dtype);
        assert_int_equal(trek_state_add(bad, wrong[k].name, tensor), TREK_OK);
        trek_tensor_release(wide);
        trek_tensor_release(tensor);
        assert_int_equal(trek_state_set_metadata(bad, "trek.checkpoint", "2"), TREK_OK);
        assert_int_equal(trek_state_write(bad, path_of("wrong")), TREK_OK);
        trek_status expected = strcmp(wrong[k].name, "trek:scaler") == 0 &&
            wrong[k].values[0] < 0 ? TREK_ERR_ARGUMENT : TREK_ERR_FORMAT;
        expect_refusal(graph, loader, path_of("wrong"), expected, NULL);
        assert_int_equal(trek_state_set_metadata(bad, "trek.checkpoint", "3"), TREK_OK);
        assert_int_equal(trek_state_write(bad, path_of("wrong")), TREK_OK);
        expect_refusal(graph, loader, path_of("wrong"), TREK_ERR_FORMAT, "version 3");
        trek_state_free(&bad);
        trek_state_free(&file);
    }
    end_run(&graph, &loader);
}

/* --- how products are computed ----------------------------------------------------------------------------- */

static int warnings;

static void count_warnings(trek_log_level level, const char *message, void *arg)
{
    warnings += level == TREK_LOG_LEVEL_WARNING && strstr(message, "tiles") != NULL;
}

/* A run that goes on computes products of f32 as it did before, whatever is faster now. Tiles in plain C are not resumed. */
static void products_stay_as_they_were(void **state)
{
    run_opts o = { .dtype = TREK_F32, .ranks = 1 };
    trek_graph *graph = begin(&o);
    bool faster;
    trek_log_set(TREK_LOG_LEVEL_WARNING, count_warnings, NULL);
    warnings = 0;
    trek_products_choose(TREK_F32, TREK_PRODUCTS_WAY_TILES);
    SUCCEEDS(trek_checkpoint_save(graph, NULL, path_of("tiles")));
    trek_products_choose(TREK_F32, TREK_PRODUCTS_WAY_FMA);
    SUCCEEDS(trek_checkpoint_save(graph, NULL, path_of("fma")));
    trek_products_choose(TREK_F32, TREK_PRODUCTS_WAY_TILES);
    SUCCEEDS(trek_checkpoint_load(graph, NULL, path_of("fma")));
    assert_int_equal(trek_products_in_use(), TREK_PRODUCTS_WAY_FMA);
    assert_int_equal(warnings, 0);
    const bool has_tiles = trek_cpu_has_tiles(&faster);
    SUCCEEDS(trek_checkpoint_load(graph, NULL, path_of("tiles")));
    assert_int_equal(trek_products_in_use(), has_tiles ? TREK_PRODUCTS_WAY_TILES : TREK_PRODUCTS_WAY_FMA);
    assert_int_equal(warnings, !has_tiles);
    trek_products_choose(TREK_F32, TREK_PRODUCTS_WAY_MEASURED);
    trek_log_set(TREK_LOG_LEVEL_WARNING, NULL, NULL);
    trek_graph_free(&graph);
}

/* --- many processes, started by trek-run ----------------------------------------------------------------- */


/* One of them. stop: it saves after that step and goes on in a fresh graph; 0: never; -1: it goes on from what one
 * process has saved after step 7. */
static void run_in_job(const run_opts *o, int stop, const char *path, record *to)
{
    trek_loader *loader;
    trek_graph *graph;
    if (stop < 0) {
        graph = begin_elsewhere(o, &loader);
    } else {
        trek_seed(12);
        graph = begin(o);
        loader = loader_new(3);
        train(graph, o, loader, stop > 0 ? stop : STEPS, false, false);
    }
    if (stop > 0) {
        trek_status wrong = trek_checkpoint_save(graph, loader, "/nowhere/at/all"); /* only process 0 has tried */
        assert_int_equal(wrong, atoi(getenv("TREK_RANK")) == 0 ? TREK_ERR_IO : TREK_ERR_PEER);
        trek_error_clear();
        trek_checkpoint_writer *writer = trek_checkpoint_writer_new(); /* the same of a thread, at the next one */
        assert_int_equal(trek_checkpoint_writer_save(writer, graph, loader, "/nowhere/at/all"), TREK_OK);
        wrong = trek_checkpoint_writer_save(writer, graph, loader, path);
        assert_int_equal(wrong, atoi(getenv("TREK_RANK")) == 0 ? TREK_ERR_IO : TREK_ERR_PEER);
        trek_error_clear();
        assert_int_equal(trek_checkpoint_writer_save(writer, graph, loader, path), TREK_OK);
        assert_int_equal(trek_checkpoint_writer_save(writer, graph, loader, path), TREK_OK); /* the first one is there */
        trek_checkpoint_writer_free(&writer);
        if (o->ranks > 1)
            assert_int_equal(trek_checkpoint_save(graph, loader, path), TREK_OK);
        end_run(&graph, &loader);
        graph = begin_elsewhere(o, &loader);
    }
    if (stop != 0) {
        FAILS(trek_checkpoint_load(graph, loader, "/nowhere/at/all"), TREK_ERR_IO, "");
        SUCCEEDS(trek_checkpoint_load(graph, loader, path));
        assert_int_equal(trek_graph_steps(graph), 7);
        train(graph, o, loader, STEPS, true, false);
    }
    look(graph, loader, to);
    end_run(&graph, &loader);
}

static int child(const char *text)
{
    static record got;
    char path[512], result[512];
    int ranks, stop, sharded;
    if (sscanf(text, "%d,%d,%d,%511[^,],%511s", &ranks, &stop, &sharded, path, result) != 5)
        return 2;
    alarm(60);
    run_opts o = { .dtype = TREK_F64, .ranks = ranks, .norm = true, .sharded = sharded,
                   .optimizer = sharded == 2 ? LAMB : ADAMW };
    trek_comm *job = trek_comm_init(NULL); /* so that the process does not leave the job between two graphs */
    if (!job)
        return 4;
    run_in_job(&o, stop, path, &got);
    trek_comm_free(&job);
    if (atoi(getenv("TREK_RANK")) == 0)
        write_file(result, (const char *)&got, sizeof got);
    return 0;
}

static void launch(int processes, int ranks, int stop, int sharded, record *to)
{
    char text[1200], result[512];
    snprintf(result, sizeof result, "%s/result", folder);
    snprintf(text, sizeof text, "%d,%d,%d,%s/%s,%s", ranks, stop, sharded, folder, stop < 0 ? "step-7" : "job", result);
    unlink(result);
    int code = processes_launch(processes, false, (const char *[]){ "TREK_TEST_CHILD", text, NULL });
    if (code != 0)
        fail_msg("%d processes of %d ranks, stopped at %d: status %d", processes, ranks, stop, code);
    size_t size;
    char *data = read_file(result, &size);
    assert_int_equal(size, sizeof *to);
    memcpy(to, data, size);
    free(data);
}

static void many_processes(void **state)
{
    static record one, whole, resumed;
    run_opts o = { .dtype = TREK_F64, .ranks = 1, .norm = true };
    for (int ranks = 1; ranks <= 2; ranks++)
        for (int sharded = 0; sharded < (ranks == 2 && !test_on_cpu() ? 1 : 3); sharded++) { /* 2: by LAMB */
            o.optimizer = sharded == 2 ? LAMB : ADAMW;
            whole_run(&o, &one);
            launch(2, ranks, 0, sharded, &whole);
            expect_close(&whole, &one, 1e-9, "two processes");
            launch(2, ranks, 7, sharded, &resumed);
            expect_close(&resumed, &whole, 0, "two processes, resumed");
            launch(3 - ranks, ranks, -1, sharded, &resumed);
            expect_close(&resumed, &one, 1e-9, "saved by one process, resumed by others");
        }
}

int main(void)
{
    setenv("TREK_CACHE", "off", 1); /* so that each allocation can fail */
    if (test_allocator_use() != TREK_OK)
        return 1;
    if (getenv("TREK_TEST_CHILD"))
        return child(getenv("TREK_TEST_CHILD"));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(same_bits_after_each_step, begin_test), cmocka_unit_test_setup(saved_by_a_thread, begin_test),
        cmocka_unit_test_setup(same_bits_of_replayed_shares, begin_test),
        cmocka_unit_test_setup(other_numbers_of_ranks, begin_test), cmocka_unit_test_setup(any_number_of_parts, begin_test),
        cmocka_unit_test_setup(readable_as_a_state, begin_test), cmocka_unit_test_setup(refused, begin_test),
        cmocka_unit_test_setup(wrong_numbers, begin_test), cmocka_unit_test_setup(products_stay_as_they_were, begin_test),
        cmocka_unit_test_setup(many_processes, begin_test),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
