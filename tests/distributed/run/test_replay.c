/* SPDX-License-Identifier: Apache-2.0 */
/* Replays: a run of several ranks in which something goes wrong is made again on one, which names the step, the grain, the
 * sample, and the operator. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "data/dataset_class.h"
#include "data/loader_position.h"
#include "distributed/comm/comm.h"
#include "distributed/grains/grains.h"
#include "distributed/run.h"
#include "distributed/stepper_internal.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "tensor/creation.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/training.h"
#include "tests/support/unit.h"

enum { BATCH = 8, GRAIN = 3, EPOCHS = 2, STEPS = EPOCHS * ((SAMPLES + BATCH - 1) / BATCH) };

/* --- data with one bad sample ------------------------------------------------------------------------- */

typedef struct plan {
    int bad;                 /* the sample that is bad; -1: none */
    double value;            /* of its first feature, */
    double target;           /* and its target */
    int64_t step, grain;     /* whose gradients are changed in one bit; 0: none */
    int bit;
    int ranks;
} plan;

static plan now;

static int64_t spoiled_length(const trek_dataset *self) { return SAMPLES; }

static trek_status spoiled_get(trek_dataset *self, const trek_fetch *of, trek_tensor **out)
{
    double x[SAMPLES * IN], target[SAMPLES];
    for (int64_t i = 0; i < of->n; i++) {
        int64_t sample = of->indices[i];
        for (int k = 0; k < IN; k++)
            x[i * IN + k] = test_number(1, (uint32_t)(sample * IN + k));
        target[i] = 2 + test_number(2, (uint32_t)sample);
        if (sample != now.bad)
            continue;
        x[i * IN] = now.value;
        target[i] = now.target;
    }
    out[0] = trek_tensor_from_data(x, trek_dims(of->n, IN), TREK_F64, trek_cpu(0));
    out[1] = trek_tensor_from_data(target, trek_dims(of->n, 1), TREK_F64, trek_cpu(0));
    return trek_error_status();
}

static const char *const spoiled_fields[] = { "x", "target" };
static const trek_dataset_class spoiled_class = { .name = "spoiled", .size = sizeof(trek_dataset), .n_fields = 2,
                                                  .fields = spoiled_fields, .length = spoiled_length, .get = spoiled_get };

/* --- runs ------------------------------------------------------------------------------------------------ */

/* The logarithm of targets, all of which are positive unless one is bad. */
static trek_var *loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    trek_var *error = trek_sub(trek_narrow(output, 1, 0, 1), trek_log(trek_batch_get(batch, "target")));
    return trek_mean(trek_mul(error, error), trek_dims_all(), false);
}

static void flip(int rank, int64_t step, int64_t number, const trek_arena *arena)
{
    if (step == now.step && number == now.grain)
        ((unsigned char *)arena->parts[0].grads->data)[now.bit / 8] ^= (unsigned char)(1 << now.bit % 8);
}

static trek_status plant(trek_graph *graph, int64_t epoch, void *arg)
{
    trek_graph_ranks(graph)->grains->fault = now.step > 0 ? flip : NULL;
    return TREK_OK;
}

typedef struct files {
    char folder[64], digests[100];
} files;

static void make_files(files *f)
{
    strcpy(f->folder, "/tmp/trek-replay-XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    snprintf(f->digests, sizeof f->digests, "%s/digests", f->folder);
}

static void remove_files(const files *f)
{
    assert_int_equal(test_remove(f->folder), 0);
}

static trek_run_opts opts_of(const files *f, trek_dataset *data)
{
    return (trek_run_opts){ .build_model = training_build, .train_step = loss, .dataset = data, .input = "x",
                            .optimizer = training_adam(), .batch_size = BATCH, .shuffle = true, .epochs = EPOCHS, .seed = 9,
                            .checkpoint_folder = f->folder, .checkpoint_every_steps = 3, .keep_last = TREK_OFF,
                            .on_epoch = plant, .lr_scale = 0.5,
                            .trainer = { .ranks = now.ranks, .grain = GRAIN, .digests = f->digests } };
}

/* Trains, with what `now` plans. */
static void train_as(const trek_run_opts *opts)
{
    trek_run *run = trek_trainer_run(opts);
    trek_state *final = run ? trek_run_join(run) : NULL;
    if (!final)
        fail_msg("%s", trek_error());
    trek_state_free(&final);
}

static void train(const files *f)
{
    trek_dataset *data = trek_dataset_new(&spoiled_class);
    trek_run_opts o = opts_of(f, data);
    train_as(&o);
    trek_dataset_free(&data);
}

/* Makes a step again. Returns what was found, in a buffer of its own. */
static const char *replay_as(const trek_run_opts *opts, int64_t step, int64_t grain)
{
    static char found[1000];
    char asked[40];
    trek_run_opts o = *opts;
    o.on_epoch = NULL;
    snprintf(asked, sizeof asked, grain < 0 ? "%d" : "%d:%d", (int)step, (int)grain);
    setenv("TREK_REPLAY", asked, 1);
    trek_run *run = trek_trainer_run(&o);
    trek_state *final = run ? trek_run_join(run) : NULL;
    unsetenv("TREK_REPLAY");
    assert_null(final);
    snprintf(found, sizeof found, "%s", trek_error());
    trek_error_clear();
    return found;
}

static const char *replay(const files *f, int64_t step, int64_t grain)
{
    trek_dataset *data = trek_dataset_new(&spoiled_class);
    trek_run_opts o = opts_of(f, data);
    const char *found = replay_as(&o, step, grain);
    trek_dataset_free(&data);
    return found;
}

static void expect(const char *found, const char *words)
{
    if (!strstr(found, words))
        fail_msg("\"%s\" is not in: %s", words, found);
}

/* --- what a sample belongs to ---------------------------------------------------------------------------- */

typedef struct spot {
    int64_t step, grain;
} spot;

/* Finds the first step and grain that have a sample. */
static spot find(int sample)
{
    trek_dataset *data = trek_dataset_new(&spoiled_class);
    trek_loader *loader = trek_loader_new(data, &(trek_loader_opts){ .batch_size = BATCH, .shuffle = true, .seed = 9 });
    spot at = { 0, 0 };
    int64_t step = 0;
    trek_loader_start(loader, 0);
    for (trek_batch *batch; (batch = trek_loader_next(loader));) {
        step++;
        for (int64_t k = 0; k < trek_batch_size(batch); k++)
            if (trek_batch_indices(batch)[k] == sample)
                at = (spot){ step, k / GRAIN };
    }
    trek_loader_free(&loader);
    return at;
}

/* --- tests --------------------------------------------------------------------------------------------------- */

static void test_as_recorded(void **state)
{
    files f;
    for (int ranks = 1; ranks <= 4; ranks += 3) {
        now = (plan){ .bad = -1, .ranks = ranks };
        make_files(&f);
        train(&f);
        for (int64_t step = 1; step <= STEPS; step++) {
            char words[60];
            snprintf(words, sizeof words, "ended at step %d: as recorded", (int)step);
            expect(replay(&f, step, -1), words);
        }
        remove_files(&f);
    }
}

/* A NaN in the data, and an operator that gives one. */
static void test_nan(void **state)
{
    files f;
    const int samples[] = { 0, 17, SAMPLES - 1 };
    for (size_t k = 0; k < sizeof samples / sizeof *samples; k++)
        for (int in_data = 0; in_data < 2; in_data++) {
            char words[200];
            spot at = find(samples[k]);
            now = (plan){ .bad = samples[k], .value = in_data ? NAN : 1, .target = in_data ? 1 : -1, .ranks = 1 + (int)k };
            make_files(&f);
            train(&f);
            const char *found = replay(&f, at.step, -1);
            snprintf(words, sizeof words, "at step %d: grain %d (samples", (int)at.step, (int)at.grain);
            expect(found, words);
            expect(found, in_data ? "the field \"x\" of the dataset has a NaN" : "log (forward) gives a NaN");
            snprintf(words, sizeof words, "for sample %d; its digests are as recorded", samples[k]);
            expect(found, words);
            expect(replay(&f, at.step, at.grain), words);
            expect(replay(&f, at.step, at.grain == 0 ? 1 : 0), "as recorded");
            remove_files(&f);
        }
}

/* One bit of a gradient; the steps around it are as recorded. */
static void test_bit(void **state)
{
    files f;
    uint32_t draws = 0;
    for (int k = 0; k < 20; k++) {
        char words[200];
        double a = 0.5 + 0.5 * test_number(31, draws++), b = 0.5 + 0.5 * test_number(31, draws++);
        now = (plan){ .bad = -1, .step = 1 + (int64_t)(a * STEPS), .grain = (int64_t)(b * 2), .ranks = 1 + k % 4,
                      .bit = (int)((0.5 + 0.5 * test_number(31, draws++)) * 63 * 10) };
        if (now.step > STEPS)
            now.step = STEPS;
        make_files(&f);
        train(&f);
        const char *found = replay(&f, now.step, -1);
        snprintf(words, sizeof words, "at step %d: grain %d (samples", (int)now.step, (int)now.grain);
        expect(found, words);
        expect(found, "its loss is the same, but its gradients differ");
        int64_t before = (now.step - 1) / 3 * 3; /* the checkpoint from which step and the next ones are replayed */
        for (int64_t step = 1; step <= STEPS; step++) {
            bool after = step > now.step && (step - 1) / 3 * 3 <= before; /* the replay comes to it first */
            if (step == now.step)
                continue;
            snprintf(words, sizeof words, after ? "at step %d: grain %d" : "at step %d: as recorded",
                     (int)(after ? now.step : step), (int)now.grain);
            expect(replay(&f, step, -1), words);
        }
        remove_files(&f);
    }
}

/* A weight whose gradient waits as a product until those of several grains are added: one sample's gradient is infinite, and its
 * first feature is zero. */
enum { WIDE = 384 };

static trek_status wide_get(trek_dataset *self, const trek_fetch *of, trek_tensor **out)
{
    static float x[BATCH * WIDE], target[BATCH];
    for (int64_t i = 0; i < of->n; i++) {
        for (int k = 0; k < WIDE; k++)
            x[i * WIDE + k] = (float)test_number(1, (uint32_t)(of->indices[i] * WIDE + k));
        target[i] = of->indices[i] == now.bad ? (float)now.target : 1;
        if (of->indices[i] == now.bad)
            x[i * WIDE] = (float)now.value;
    }
    out[0] = trek_tensor_from_data(x, trek_dims(of->n, WIDE), TREK_F32, trek_cpu(0));
    out[1] = trek_tensor_from_data(target, trek_dims(of->n, 1), TREK_F32, trek_cpu(0));
    return trek_error_status();
}

static const trek_dataset_class wide_class = { .name = "wide", .size = sizeof(trek_dataset), .n_fields = 2,
                                               .fields = spoiled_fields, .length = spoiled_length, .get = wide_get };

static trek_graph *wide_build(trek_device device, void *arg)
{
    trek_seed(3);
    return trek_flow_build(trek_flow_from(trek_nn_linear(WIDE, WIDE, device)));
}

static trek_var *wide_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    trek_var *scaled = trek_mul(trek_narrow(output, 1, 0, 1), trek_batch_get(batch, "target"));
    return trek_mean(scaled, trek_dims_all(), false);
}

static void test_nan_in_product(void **state)
{
    spot at = find(17);
    for (int planted = 0; planted < 2; planted++) {
        files f;
        char words[200];
        now = (plan){ .bad = 17, .value = 0, .target = planted ? (double)INFINITY : 2, .ranks = 2 };
        make_files(&f);
        trek_dataset *data = trek_dataset_new(&wide_class);
        trek_run_opts o = opts_of(&f, data);
        o.build_model = wide_build;
        o.train_step = wide_loss;
        train_as(&o);
        const char *found = replay_as(&o, at.step, -1);
        snprintf(words, sizeof words, "at step %d: grain %d (samples", (int)at.step, (int)at.grain);
        expect(found, planted ? words : "as recorded");
        expect(found, planted ? "matmul in module graph.0 (backward) gives a NaN; its digests are as recorded" : "");
        trek_dataset_free(&data);
        remove_files(&f);
    }
}

/* A sample that was another one then. */
static void test_sample(void **state)
{
    files f;
    for (int sample = 0; sample < SAMPLES; sample += 7) {
        char words[200];
        spot at = find(sample);
        now = (plan){ .bad = sample, .value = 0.25, .target = 3, .ranks = 1 + sample % 4 };
        make_files(&f);
        train(&f);
        now.bad = -1;
        const char *found = replay(&f, at.step, -1);
        snprintf(words, sizeof words, "at step %d: grain %d (samples", (int)at.step, (int)at.grain);
        expect(found, words);
        expect(found, "its loss differs: recorded ");
        remove_files(&f);
    }
}

/* Wrong wishes. */
static void test_refused(void **state)
{
    files f;
    now = (plan){ .bad = -1, .ranks = 2 };
    make_files(&f);
    train(&f);
    expect(replay(&f, STEPS + 1, -1), "is not in");
    setenv("TREK_REPLAY_DIGESTS", "/nowhere/digests", 1);
    expect(replay(&f, 3, -1), "/nowhere/digests cannot be read");
    setenv("TREK_REPLAY_DIGESTS", "/proc/self/cmdline", 1);
    expect(replay(&f, 3, -1), "is not a file of digests");
    unsetenv("TREK_REPLAY_DIGESTS");
    trek_dataset *data = trek_dataset_new(&spoiled_class);
    trek_run_opts o = opts_of(&f, data);
    o.on_epoch = NULL;
    const char *const asked[] = { "x", "0", "-3", "4:", "4:x", "4:-1" };
    for (size_t k = 0; k < sizeof asked / sizeof *asked; k++) {
        setenv("TREK_REPLAY", asked[k], 1);
        trek_run *run = trek_trainer_run(&o);
        trek_state *final = run ? trek_run_join(run) : NULL;
        assert_null(final);
        expect(trek_error(), "must be a step from 1 on, or STEP:GRAIN");
        trek_error_clear();
    }
    setenv("TREK_REPLAY", "3", 1);
    o.trainer.grain = 0;
    o.trainer.digests = NULL;
    assert_null(trek_trainer_run(&o));
    expect(trek_error(), "only runs in grains can be replayed");
    trek_error_clear();
    unsetenv("TREK_REPLAY");
    trek_dataset_free(&data);
    remove_files(&f);
}

/* --- drawn faults in four processes ------------------------------------------------------------------------------ */

enum { NAN_IN_DATA, NAN_OF_OPERATOR, FLIPPED_BIT, OTHER_SAMPLE, FAULTS };
static const char *const said[FAULTS] = { "the field \"x\" of the dataset has a NaN", "log (forward) gives a NaN",
                                          "its loss is the same, but its gradients differ", "its loss differs: recorded " };

static plan drawn_plan(uint64_t *seed, int kind)
{
    plan drawn = { .bad = -1, .ranks = 1 };
    if (kind == FLIPPED_BIT) {
        drawn.step = 1 + (int64_t)test_draw(seed, STEPS - 1); /* the last batch of an epoch has another size */
        drawn.grain = (int64_t)test_draw(seed, 2);
        drawn.bit = (int)test_draw(seed, 10) * 64 + (int)test_draw(seed, 63); /* -0 counts as 0 */
        return drawn;
    }
    drawn.bad = (int)test_draw(seed, SAMPLES);
    drawn.value = kind == NAN_IN_DATA ? (double)NAN : kind == OTHER_SAMPLE ? 0.25 : 1;
    drawn.target = kind == NAN_OF_OPERATOR ? -1 : kind == OTHER_SAMPLE ? 3 : 1;
    return drawn;
}

/* A run of four processes with a fault that is drawn, replayed on one: it names the step and the grain, and what was wrong.
 * TREK_TEST_DRAWS says how many faults. */
static void test_drawn(void **state)
{
    static world w;
    const char *draws = getenv("TREK_TEST_DRAWS");
    int n = draws ? atoi(draws) : test_short() ? 4 : 8;
    for (int k = 0; k < n; k++) {
        char detail[200], words[200];
        files f;
        int kind = k % FAULTS;
        uint64_t seed = test_seed() * 1000003 + (uint64_t)k;
        plan drawn = drawn_plan(&seed, kind);
        make_files(&f);
        snprintf(detail, sizeof detail, "%s:%d:%.17g:%.17g:%d:%d:%d", f.folder, drawn.bad, drawn.value, drawn.target,
                 (int)drawn.step, (int)drawn.grain, drawn.bit);
        processes_run_all(&w, 4, "fault", detail, -1, NULL);
        for (int p = 0; p < 4; p++)
            if (w.code[p] != 0 || !strstr(w.text[p], "trained"))
                FAIL_WORLD(&w, "fault %d, %s: process %d has not trained", k, detail, p);
        now = drawn;
        spot at = drawn.bad >= 0 ? find(drawn.bad) : (spot){ drawn.step, drawn.grain };
        now.bad = kind == OTHER_SAMPLE ? -1 : drawn.bad;
        const char *found = replay(&f, at.step, -1);
        snprintf(words, sizeof words, "at step %d: grain %d (samples", (int)at.step, (int)at.grain);
        if (!strstr(found, words) || !strstr(found, said[kind]))
            fail_msg("fault %d, %s: \"%s\" or \"%s\" is not in: %s", k, detail, words, said[kind], found);
        snprintf(words, sizeof words, "for sample %d; its digests are as recorded", drawn.bad);
        if (kind <= NAN_OF_OPERATOR)
            expect(found, words);
        remove_files(&f);
    }
}

/* --- four processes, and the tool ------------------------------------------------------------------------------ */

static int play(const part *of)
{
    files f;
    int step = 7, grain = 1;
    now = (plan){ .bad = -1, .bit = 77, .ranks = 1 };
    sscanf(of->detail, "%63[^:]:%d:%lg:%lg:%d:%d:%d", f.folder, &now.bad, &now.value, &now.target, &step, &grain, &now.bit);
    now.step = step;
    now.grain = grain;
    snprintf(f.digests, sizeof f.digests, "%s/digests", f.folder);
    trek_dataset *data = trek_dataset_new(&spoiled_class);
    trek_run_opts o = opts_of(&f, data);
    if (getenv("TREK_REPLAY"))
        o.on_epoch = NULL;
    else
        o.trainer.comm = trek_comm_init(&(trek_comm_opts){ .rank = of->process, .world_size = of->processes,
                                                           .address = of->address, .port = of->port, .token = "sesame" });
    trek_run *run = trek_trainer_run(&o);
    trek_state *final = run ? trek_run_join(run) : NULL;
    printf("%s\n", final ? "trained" : trek_error());
    trek_state_free(&final);
    trek_comm_free(&o.trainer.comm);
    trek_dataset_free(&data);
    return 0;
}

/* Runs a command. Returns its status and what it prints. */
static int run_command(const char *command, char *text, size_t size)
{
    FILE *pipe = popen(command, "r");
    size_t n = fread(text, 1, size - 1, pipe);
    text[n] = '\0';
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_tool(void **state)
{
    files f;
    static world w;
    char command[600], text[4000];
    make_files(&f);
    processes_run_all(&w, 4, "train", f.folder, -1, NULL);
    for (int p = 0; p < 4; p++) {
        if (w.code[p] != 0 || !strstr(w.text[p], "trained"))
            processes_print(&w);
        assert_int_equal(w.code[p], 0);
    }
    const struct {
        const char *wish, *words;
        int code;
    } cases[] = {
        { "--step 7", "step 7: grain 1 (samples", 1 },
        { "--step 7 --grain 1", "its loss is the same, but its gradients differ", 1 },
        { "--step 6", "step 6: as recorded", 0 },
        { "--step 12", "step 12: as recorded", 0 },
        { "--step 99", "", 3 },
        { "--step x", "", 2 },
        { "", "", 2 },
        { "--step 3 --grain", "", 2 },
    };
    snprintf(text, sizeof text, "0 1 0 - %s", f.folder); /* the program that the tool starts is this one */
    setenv("TREK_TEST_ROLE", "train", 1);
    setenv("TREK_TEST_PART", text, 1);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        snprintf(command, sizeof command, "%s %s %s 2>&1", processes_built("tools/trek-replay"), f.digests, cases[k].wish);
        int code = run_command(command, text, sizeof text);
        if (code != cases[k].code || !strstr(text, cases[k].words))
            fail_msg("%s: %d: %s", cases[k].wish, code, text);
    }
    unsetenv("TREK_TEST_ROLE");
    unsetenv("TREK_TEST_PART");
    remove_files(&f);
}

int main(void)
{
    part of;
    if (processes_part(&of))
        return play(&of);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_recorded), cmocka_unit_test(test_nan), cmocka_unit_test(test_nan_in_product),
        cmocka_unit_test(test_bit),
        cmocka_unit_test(test_sample), cmocka_unit_test(test_refused), cmocka_unit_test(test_drawn), cmocka_unit_test(test_tool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
