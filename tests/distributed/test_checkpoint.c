/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: a run that is stopped after any step and goes on in a fresh graph ends
 * with the bits of the run that was not; other numbers of ranks end with the same to
 * rounding; bad files change nothing, interrupted saves leave what was there. */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "autograd/ops.h"
#include "data/loader.h"
#include "distributed/checkpoint.h"
#include "distributed/comm/comm.h"
#include "distributed/balance/plan.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "nn/state.h"
#include "tests/support/support.h"
#include "tests/support/tamed.h"

enum { IN = 5, HIDDEN = 8, CLASSES = 3, SAMPLES = 23, BATCH = 6, BATCHES = 4, STEPS = 20, MOST = 2048 };

static char folder[256];
static int prefetch; /* of loaders made from here on */

static const char *path_of(const char *name)
{
    static char path[2][512];
    static int turn;
    turn ^= 1;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

/* --- a run ------------------------------------------------------------------------------------ */

typedef struct run_opts {
    trek_dtype dtype;
    int ranks;
    bool separate, scaled, norm;
    enum { ADAMW, SGD, RMSPROP, TAMED } optimizer;
    const trek_plan *plan;
} run_opts;

static trek_graph *build(trek_device device, void *arg)
{
    const run_opts *o = arg;
    trek_linear_opts up = { .in = IN, .out = HIDDEN, .dtype = o->dtype, .device = device };
    trek_linear_opts down = { .in = HIDDEN, .out = CLASSES, .dtype = o->dtype, .device = device };
    trek_batch_norm_opts norm = { .features = HIDDEN, .dtype = o->dtype, .device = device };
    trek_module *modules[5] = { trek_nn_linear_with(&up), o->norm ? trek_nn_sync_batch_norm_with(&norm) : trek_nn_identity(),
                                trek_nn_gelu(),
                                trek_nn_dropout(0.3), trek_nn_linear_with(&down) };
    return trek_flow_build(trek_flow_from(trek_nn_sequential(5, modules)));
}

static trek_optimizer_spec optimizer_of(const run_opts *o)
{
    return o->optimizer == SGD     ? trek_sgd((trek_sgd_opts){ .lr = 0.05, .momentum = 0.9 })
           : o->optimizer == TAMED ? tamed(0.02, 0.9)
           : o->optimizer == RMSPROP
               ? trek_rmsprop((trek_rmsprop_opts){ .lr = 0.005, .momentum = 0.9, .centered = true })
                                   : trek_adamw((trek_adam_opts){ .lr = 0.02 });
}

/* A program that begins: everything but the state. */
static trek_graph *begin(const run_opts *o)
{
    run_opts copy = *o;
    trek_device devices[4];
    for (int r = 0; r < o->ranks; r++)
        devices[r] = test_device_of_rank(r);
    trek_graph *graph = build(devices[0], &copy);
    assert_non_null(graph);
    trek_status status = trek_trainer_setup(graph, &(trek_trainer_opts){
        .build_replica = build, .arg = &copy, .devices = devices, .ranks = o->ranks, .max_grad_norm = 0.7,
            .share = o->separate ? TREK_OFF : 0,
        .optimizer = optimizer_of(o),
        .plan = o->plan, .schedule = trek_cosine_lr(0.02, STEPS, 0.001),
        .amp = { .scaling = o->scaled, .scaler = { .growth_interval = 3 } } });
    if (status != TREK_OK)
        fail_msg("%s", trek_error());
    return graph;
}

static trek_loader *loader_new(uint64_t seed)
{
    static float values[SAMPLES * IN];
    static int64_t labels[SAMPLES];
    for (int k = 0; k < SAMPLES * IN; k++)
        values[k] = test_number(9, (uint32_t)k);
    for (int k = 0; k < SAMPLES; k++)
        labels[k] = (k * 5 + 1) % CLASSES;
    trek_tensor *tensors[2] = { trek_tensor_from_data(values, trek_dims(SAMPLES, IN), TREK_F32, trek_cpu(0)),
                                trek_tensor_from_data(labels, trek_dims(SAMPLES), TREK_I64, trek_cpu(0)) };
    const char *names[2] = { "x", "label" };
    trek_loader *loader = trek_loader_new(trek_dataset_tensors(names, tensors, 2),
                                          &(trek_loader_opts){ .batch_size = BATCH, .shuffle = true, .seed = seed,
                                                               .device = test_device(), .prefetch = prefetch });
    trek_tensor_release(tensors[0]);
    trek_tensor_release(tensors[1]);
    assert_non_null(loader);
    return loader;
}

static void train_batch(trek_graph *graph, const run_opts *o, trek_batch *batch)
{
    trek_var *y = trek_graph_forward(graph, trek_cast(trek_batch_get(batch, "x"), o->dtype));
    if (trek_graph_backward(graph, trek_cross_entropy(y, trek_batch_get(batch, "label"))) != TREK_OK ||
        trek_graph_step(graph) != TREK_OK)
        fail_msg("%s", trek_error());
}

/* Steps until `end` of them are done; the loader stands where it stands. saves: a checkpoint after each. */
static void train(trek_graph *graph, const run_opts *o, trek_loader *loader, int64_t end, bool resumed, bool saves)
{
    int64_t epoch;
    trek_loader_position(loader, &epoch, NULL);
    for (; trek_graph_steps(graph) < end; epoch++, resumed = false) {
        if (!resumed)
            assert_int_equal(trek_loader_start(loader, epoch), TREK_OK);
        for (trek_batch *batch; trek_graph_steps(graph) < end && (batch = trek_loader_next(loader));) {
            train_batch(graph, o, batch);
            char name[32];
            snprintf(name, sizeof name, "step-%d", (int)trek_graph_steps(graph));
            if (saves && trek_checkpoint_save(graph, loader, path_of(name)) != TREK_OK)
                fail_msg("%s", trek_error());
        }
    }
}

typedef struct record {
    int n;
    double values[MOST];
    double lr, norm, scale;
    int64_t steps, epoch, batch;
} record;

static trek_status note(const char *name, trek_var *var, void *arg)
{
    (void)name;
    record *to = arg;
    int64_t count = trek_var_numel(var);
    assert_true(to->n + count <= MOST);
    assert_int_equal(trek_tensor_to_host(trek_var_data(var), TREK_F64, to->values + to->n, (size_t)count * sizeof(double)),
                     TREK_OK);
    to->n += (int)count;
    return TREK_OK;
}

static void look(trek_graph *graph, const trek_loader *loader, record *to)
{
    memset(to, 0, sizeof *to);
    assert_int_equal(trek_module_each_param(trek_graph_module(graph), note, to), TREK_OK);
    assert_int_equal(trek_module_each_buffer(trek_graph_module(graph), note, to), TREK_OK);
    to->lr = trek_graph_lr(graph);
    to->steps = trek_graph_steps(graph);
    to->scale = trek_graph_scaler(graph) ? trek_grad_scaler_get_scale(trek_graph_scaler(graph)) : 0;
    if (loader)
        trek_loader_position(loader, &to->epoch, &to->batch);
}

static void expect_close(const record *got, const record *expected, double tolerance, const char *what)
{
    assert_int_equal(got->n, expected->n);
    for (int k = 0; k < got->n; k++)
        if (!(fabs(got->values[k] - expected->values[k]) <= tolerance * (1 + fabs(expected->values[k]))))
            fail_msg("%s: number %d is %.17g instead of %.17g", what, k, got->values[k], expected->values[k]);
    assert_true(fabs(got->lr - expected->lr) <= tolerance && got->scale == expected->scale);
    assert_true(got->steps == expected->steps && got->epoch == expected->epoch && got->batch == expected->batch);
}

/* Another process would begin with numbers of its own. */
static trek_graph *begin_elsewhere(const run_opts *o, trek_loader **loader)
{
    trek_seed(4711);
    trek_graph *graph = begin(o);
    *loader = loader_new(3);
    return graph;
}

static void end_run(trek_graph **graph, trek_loader **loader)
{
    trek_loader_free(loader);
    trek_graph_free(graph);
}

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
    (void)state;
    static record expected;
    static const run_opts runs[] = {
        { .dtype = TREK_F32, .ranks = 1 },
        { .dtype = TREK_F32, .ranks = 2 },
        { .dtype = TREK_F32, .ranks = 2, .separate = true, .optimizer = SGD, .norm = true },
        { .dtype = TREK_F32, .ranks = 2, .scaled = true },
        { .dtype = TREK_F32, .ranks = 2, .separate = true, .optimizer = RMSPROP, .scaled = true },
        { .dtype = TREK_F32, .ranks = 2, .optimizer = TAMED },
    };
    for (size_t k = 0; k < sizeof runs / sizeof *runs; k++) {
        if (runs[k].optimizer == TAMED && !test_on_cpu())
            continue;
        whole_run(&runs[k], &expected);
        for (int64_t step = 1; step <= STEPS; step += getenv("TREK_TEST_SHORT") ? 6 : 1)
            resume(&runs[k], step, &expected, 0);
    }
}

/* Recorded shares, followed again: they change in the course of the run. */
static void same_bits_of_replayed_shares(void **state)
{
    (void)state;
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
    (void)state;
    static const int worlds[] = { 1, 2, 4 };
    static record expected;
    for (int a = 0; a < 3; a++) {
        run_opts from = { .dtype = TREK_F64, .ranks = worlds[a], .norm = true };
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

/* Parameters and buffers in it are what others read. */
static void readable_as_a_state(void **state)
{
    (void)state;
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

/* --- what is refused changes nothing ------------------------------------------------------------------ */

static void expect_refusal(trek_graph *graph, trek_loader *loader, const char *path, trek_status status, const char *text)
{
    static record before, after;
    look(graph, loader, &before);
    trek_status got = trek_checkpoint_load(graph, loader, path);
    if (got != status || (text && !strstr(trek_error(), text)))
        fail_msg("%s instead of %s: \"%s\"", trek_status_name(got), trek_status_name(status), trek_error());
    trek_error_clear();
    look(graph, loader, &after);
    assert_memory_equal(&before, &after, sizeof before);
}

static char *read_file(const char *path, size_t *size)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    char *data = malloc((size_t)info.st_size);
    FILE *file = fopen(path, "rb");
    assert_true(file && data && fread(data, 1, (size_t)info.st_size, file) == (size_t)info.st_size);
    fclose(file);
    *size = (size_t)info.st_size;
    return data;
}

static void write_file(const char *path, const char *data, size_t size)
{
    int file = open(path, O_WRONLY | O_CREAT, 0666); /* a file cut to nothing first is synced by some file systems */
    assert_true(file >= 0 && write(file, data, size) == (ssize_t)size && ftruncate(file, (off_t)size) == 0);
    assert_int_equal(close(file), 0);
}

static void refused(void **state)
{
    (void)state;
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
        expect_refusal(graph, loader, path_of("weights"), TREK_ERR_FORMAT, "no checkpoint");
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
                       "23 samples in batches of 6, this one gives 23 in batches of 5");
        trek_loader_free(&short_one);
        assert_int_equal(trek_checkpoint_load(NULL, loader, path_of("step-6")), TREK_ERR_ARGUMENT);
        trek_error_clear();
        assert_int_equal(trek_checkpoint_save(graph, loader, path_of("no/such/folder")), TREK_ERR_IO);
        trek_error_clear();
        train(graph, &o, loader, 8, true, false); /* all the same, it goes on */
        end_run(&graph, &loader);
    }
}

/* Numbers in the file that are not what a run can have. */
static void wrong_numbers(void **state)
{
    (void)state;
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
        assert_int_equal(trek_state_set_text(bad, "trek.checkpoint", "2"), TREK_OK);
        assert_int_equal(trek_state_write(bad, path_of("wrong")), TREK_OK);
        trek_status expected = strcmp(wrong[k].name, "trek:scaler") == 0 &&
            wrong[k].values[0] < 0 ? TREK_ERR_ARGUMENT : TREK_ERR_FORMAT;
        expect_refusal(graph, loader, path_of("wrong"), expected, NULL);
        assert_int_equal(trek_state_set_text(bad, "trek.checkpoint", "3"), TREK_OK);
        assert_int_equal(trek_state_write(bad, path_of("wrong")), TREK_OK);
        expect_refusal(graph, loader, path_of("wrong"), TREK_ERR_FORMAT, "version 3");
        trek_state_free(&bad);
        trek_state_free(&file);
    }
    end_run(&graph, &loader);
}

/* --- damage ---------------------------------------------------------------------------------------------------- */

/* Everything a checkpoint holds, optimizer and step included. */
static char *all_of(trek_graph *graph, trek_loader *loader, size_t *size)
{
    assert_int_equal(trek_checkpoint_save(graph, loader, path_of("all")), TREK_OK);
    return read_file(path_of("all"), size);
}

/* Two checkpoints of one run: what a damaged one of an earlier step left behind would show. */
static void damage_is_noticed(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        run_opts o = { .dtype = TREK_F32, .ranks = ranks, .separate = ranks == 2, .scaled = ranks == 2, .norm = true };
        trek_graph *graph = begin(&o);
        trek_loader *loader = loader_new(3);
        train(graph, &o, loader, 5, false, true);
        train(graph, &o, loader, 8, true, false);
        size_t size, size_before, size_after;
        char *data = read_file(path_of("step-5"), &size), *before = all_of(graph, loader, &size_before);
        size_t header = 8 + (unsigned char)data[0] + 256u * (unsigned char)data[1];
        int named = 0;
        for (uint32_t k = 0; k < 400; k++) {
            size_t bit = (size_t)(((double)test_number(ranks == 1 ? 51 : 52, k) + 1) / 2 * 8 * (double)size);
            data[bit / 8] ^= (char)(1u << bit % 8);
            write_file(path_of("flipped"), data, size);
            expect_refusal(graph, loader, path_of("flipped"), TREK_ERR_FORMAT,
                           bit / 8 >= header ? "its checksum does not match" : "flipped");
            named += bit / 8 >= header;
            data[bit / 8] ^= (char)(1u << bit % 8);
        }
        assert_true(named > 50 && named < 350);
        for (uint32_t k = 0; k < 100; k++) {
            size_t cut = (size_t)(((double)test_number(53, k) + 1) / 2 * (double)size);
            write_file(path_of("flipped"), data, cut);
            expect_refusal(graph, loader, path_of("flipped"), TREK_ERR_FORMAT, "flipped");
        }
        char *after = all_of(graph, loader, &size_after);
        assert_true(size_after == size_before && memcmp(before, after, size_before) == 0);
        assert_int_equal(trek_checkpoint_load(graph, loader, path_of("step-5")), TREK_OK);
        free(data);
        free(before);
        free(after);
        end_run(&graph, &loader);
    }
}

static void overwrite(char *data, size_t size, const char *from, const char *to)
{
    char *at = memmem(data, size, from, strlen(from));
    assert_true(at && strlen(from) == strlen(to));
    memcpy(at, to, strlen(to));
}

static char warned[512];

static void take_warning(trek_log_level level, const char *message, void *arg)
{
    (void)arg;
    if (level == TREK_LOG_WARNING)
        snprintf(warned, sizeof warned, "%s", message);
}

/* Those of version 1 have no checksum: they are read, and it is said; a later one without is refused. */
static void without_a_checksum(void **state)
{
    (void)state;
    run_opts o = { .dtype = TREK_F32, .ranks = 1 };
    trek_graph *graph = begin(&o);
    trek_loader *loader = loader_new(3);
    train(graph, &o, loader, 5, false, true);
    size_t size;
    char *data = read_file(path_of("step-5"), &size);
    overwrite(data, size, "\"trek.checksum\":\"trek-xxh64 ", "\"other.writer!\":\"TREK-XXH64 ");
    write_file(path_of("bare"), data, size);
    expect_refusal(graph, loader, path_of("bare"), TREK_ERR_FORMAT, "its checksum is missing");
    overwrite(data, size, "\"trek.checkpoint\":\"2\"", "\"trek.checkpoint\":\"1\"");
    write_file(path_of("bare"), data, size);
    trek_log_set(TREK_LOG_WARNING, take_warning, NULL);
    assert_int_equal(trek_checkpoint_load(graph, loader, path_of("bare")), TREK_OK);
    trek_log_set(TREK_LOG_WARNING, NULL, NULL);
    assert_non_null(strstr(warned, "bare: a checkpoint of version 1, which has no checksum"));
    free(data);
    end_run(&graph, &loader);
}

/* --- kills and empty memory ------------------------------------------------------------------------------- */

/* In a process of its own: saves as fast as it can, another state each time, until it is killed. */
static int save_for_ever(const char *path)
{
    run_opts o = { .dtype = TREK_F32, .ranks = 1 };
    trek_graph *graph = begin(&o);
    trek_loader *loader = loader_new(3);
    for (int64_t steps = 1; steps < 100000; steps++) {
        train(graph, &o, loader, steps, steps > 1, false);
        if (trek_checkpoint_save(graph, loader, path) != TREK_OK)
            return 3;
        if (steps == 1 && write(STDOUT_FILENO, "s", 1) != 1)
            return 4;
    }
    return 0;
}

static pid_t start_saver(const char *path)
{
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        execl("/proc/self/exe", "test_checkpoint", "save", path, folder, (char *)NULL);
        _exit(9);
    }
    close(ends[1]);
    assert_true(child > 0 && read(ends[0], &byte, 1) == 1); /* the first one is there */
    close(ends[0]);
    return child;
}

static void killed_while_saving(void **state)
{
    (void)state;
    run_opts o = { .dtype = TREK_F32, .ranks = 1 };
    char path[512];
    snprintf(path, sizeof path, "%s", path_of("killed"));
    static record got, again;
    for (int round = 0; round < 12; round++) {
        pid_t child = start_saver(path);
        usleep((useconds_t)((test_number(77, (uint32_t)round) + 1) * 15000));
        int status;
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        trek_loader *loader, *plain_loader;
        trek_graph *graph = begin_elsewhere(&o, &loader);
        if (trek_checkpoint_load(graph, loader, path) != TREK_OK)
            fail_msg("round %d: %s", round, trek_error());
        look(graph, loader, &got);
        assert_true(got.steps > 0);
        if (got.steps <= 3 * STEPS) { /* and it is the state that the run had then */
            trek_seed(0);
            trek_graph *plain = begin(&o);
            plain_loader = loader_new(3);
            train(plain, &o, plain_loader, got.steps, false, false);
            look(plain, plain_loader, &again);
            expect_close(&got, &again, 0, "after a kill");
            end_run(&plain, &plain_loader);
        }
        end_run(&graph, &loader);
    }
}

static void out_of_memory(void **state)
{
    (void)state;
    static record before, after, expected;
    prefetch = TREK_OFF; /* a thread's failure would come to light in the next batch */
    for (int ranks = 1; ranks <= 2; ranks++) {
        run_opts o = { .dtype = TREK_F32, .ranks = ranks, .separate = ranks == 2, .scaled = true };
        trek_graph *graph = begin(&o);
        trek_loader *loader = loader_new(3);
        train(graph, &o, loader, 5, false, true);
        look(graph, loader, &expected);
        train(graph, &o, loader, 6, true, false);
        look(graph, loader, &before);
        size_t size, now;
        char *kept = read_file(path_of("step-5"), &size);
        int failed_saves = 0, failed_loads = 0;
        test_memory.fail_count = 3;
        for (int64_t fail_at = 1; fail_at < 400; fail_at++) {
            char path[512];
            snprintf(path, sizeof path, "%s", path_of("step-5"));
            test_allocator_restart(fail_at);
            trek_status status = trek_checkpoint_save(graph, loader, path);
            test_allocator_restart(0);
            if (status != TREK_OK) {
                failed_saves++;
                assert_int_equal(status, TREK_ERR_MEMORY);
                char *data = read_file(path, &now);
                assert_true(now == size && memcmp(data, kept, size) == 0);
                free(data);
            }
            trek_error_clear();
            write_file(path, kept, size);
            test_allocator_restart(fail_at);
            status = trek_checkpoint_load(graph, loader, path);
            test_allocator_restart(0);
            trek_error_clear();
            look(graph, loader, &after);
            if (status == TREK_OK) {
                expect_close(&after, &expected, 0, "loaded");
                break;
            }
            failed_loads++;
            assert_int_equal(status, TREK_ERR_MEMORY);
            assert_memory_equal(&after, &before, sizeof after);
        }
        test_memory.fail_count = 0;
        assert_true(failed_saves > 20 && failed_loads > 20);
        train(graph, &o, loader, 7, true, false);
        free(kept);
        end_run(&graph, &loader);
    }
    prefetch = 0;
}

/* --- many processes, started by trek-run ------------------------------------------------------------------ */

static const char *self;

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
        assert_int_equal(trek_checkpoint_save(graph, loader, path), TREK_OK);
        end_run(&graph, &loader);
        graph = begin_elsewhere(o, &loader);
    }
    if (stop != 0) {
        assert_int_equal(trek_checkpoint_load(graph, loader, "/nowhere/at/all"), TREK_ERR_IO);
        trek_error_clear();
        if (trek_checkpoint_load(graph, loader, path) != TREK_OK)
            fail_msg("%s", trek_error());
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
    int ranks, stop;
    if (sscanf(text, "%d,%d,%511[^,],%511s", &ranks, &stop, path, result) != 4)
        return 2;
    alarm(60);
    run_opts o = { .dtype = TREK_F64, .ranks = ranks, .norm = true };
    trek_comm *job = trek_comm_init(NULL); /* so that the process does not leave the job between two graphs */
    if (!job)
        return 4;
    run_in_job(&o, stop, path, &got);
    trek_comm_free(&job);
    if (atoi(getenv("TREK_RANK")) == 0)
        write_file(result, (const char *)&got, sizeof got);
    return 0;
}

static void launch(int processes, int ranks, int stop, record *to)
{
    char text[1200], count[16], launcher[4096], result[512];
    const char *build_folder = getenv("TREK_TEST_BUILD");
    snprintf(launcher, sizeof launcher, "%s/tools/trek-run", build_folder ? build_folder : ".");
    snprintf(result, sizeof result, "%s/result", folder);
    snprintf(text, sizeof text, "%d,%d,%s/%s,%s", ranks, stop, folder, stop < 0 ? "step-7" : "job", result);
    snprintf(count, sizeof count, "%d", processes);
    unlink(result);
    pid_t pid = fork();
    if (pid == 0) {
        setenv("TREK_TEST_CHILD", text, 1);
        execl(launcher, launcher, "-n", count, self, (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("%d processes of %d ranks, stopped at %d: status %d", processes, ranks, stop, status);
    size_t size;
    char *data = read_file(result, &size);
    assert_int_equal(size, sizeof *to);
    memcpy(to, data, size);
    free(data);
}

static void many_processes(void **state)
{
    (void)state;
    static record one, whole, resumed;
    run_opts o = { .dtype = TREK_F64, .ranks = 1, .norm = true };
    whole_run(&o, &one);
    for (int ranks = 1; ranks <= 2; ranks++) {
        launch(2, ranks, 0, &whole);
        expect_close(&whole, &one, 1e-9, "two processes");
        launch(2, ranks, 7, &resumed);
        expect_close(&resumed, &whole, 0, "two processes, resumed");
        launch(3 - ranks, ranks, -1, &resumed);
        expect_close(&resumed, &one, 1e-9, "saved by one process, resumed by others");
    }
}

/* --- the program -------------------------------------------------------------------------------------------- */

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/trek-checkpoint-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    DIR *list = opendir(folder);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] != '.')
            unlink(path);
    }
    if (list)
        closedir(list);
    return rmdir(folder);
}

static int begin_test(void **state)
{
    (void)state;
    trek_error_clear();
    alarm(120);
    return 0;
}

int main(int argc, char **argv)
{
    setenv("TREK_CACHE", "off", 1); /* so that each allocation can fail */
    if (test_allocator_use() != TREK_OK)
        return 1;
    if (argc == 4 && strcmp(argv[1], "save") == 0) {
        alarm(60);
        return save_for_ever(argv[2]);
    }
    self = argv[0];
    if (getenv("TREK_TEST_CHILD"))
        return child(getenv("TREK_TEST_CHILD"));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(same_bits_after_each_step, begin_test),
        cmocka_unit_test_setup(same_bits_of_replayed_shares, begin_test),
        cmocka_unit_test_setup(other_numbers_of_ranks, begin_test),
        cmocka_unit_test_setup(readable_as_a_state, begin_test),
        cmocka_unit_test_setup(refused, begin_test),
        cmocka_unit_test_setup(wrong_numbers, begin_test),
        cmocka_unit_test_setup(damage_is_noticed, begin_test),
        cmocka_unit_test_setup(without_a_checksum, begin_test),
        cmocka_unit_test_setup(killed_while_saving, begin_test),
        cmocka_unit_test_setup(out_of_memory, begin_test),
        cmocka_unit_test_setup(many_processes, begin_test),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
