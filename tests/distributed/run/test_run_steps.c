/* SPDX-License-Identifier: Apache-2.0 */
/* Runs that count in steps, and runs over streams: where they end, evaluate and save, and that a run which is resumed from any of
 * its checkpoints gives the bits of one that was not interrupted. */
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "data/dataset_class.h"
#include "data/loader_position.h"
#include "data/stream.h"
#include "distributed/comm/comm.h"
#include "distributed/run.h"
#include "graph/observe.h"
#include "graph/settings.h"
#include "nn/module_tree.h"
#include "nn/state_modules.h"
#include "nn/state_tensors.h"
#include "tensor/creation.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/training.h"
#include "tests/support/unit.h"

enum { BATCH = 8, STEPS = (SAMPLES + BATCH - 1) / BATCH, REPORTS = 64 };

/* --- a stream of as many samples as wanted ---------------------------------------------------------- */

typedef struct drawn {
    trek_dataset base;
    int64_t n; /* samples of an epoch; 0: it does not end */
} drawn;

typedef struct place {
    int64_t at, epoch;
} place;

static trek_status drawn_open(trek_dataset *self, int64_t epoch, uint64_t seed, void **reading)
{
    place *p = calloc(1, sizeof *p);
    p->epoch = epoch;
    *reading = p;
    return TREK_OK;
}

static trek_status drawn_next(trek_dataset *self, void *reading, int64_t n, trek_tensor **out, int64_t *got)
{
    place *p = reading;
    int64_t all = ((drawn *)self)->n, many = n < 3 ? n : 3, left = all > 0 ? all - p->at : many;
    double x[3 * IN], target[3];
    many = many < left ? many : left;
    for (int64_t i = 0; i < many; i++, p->at++) {
        for (int k = 0; k < IN; k++)
            x[i * IN + k] = test_number((uint32_t)p->epoch + 1, (uint32_t)(p->at * IN + k));
        target[i] = test_number((uint32_t)p->epoch + 2, (uint32_t)p->at);
    }
    *got = many;
    out[0] = many ? trek_tensor_from_data(x, trek_dims(many, IN), TREK_F64, trek_cpu(0)) : NULL;
    out[1] = many ? trek_tensor_from_data(target, trek_dims(many, 1), TREK_F64, trek_cpu(0)) : NULL;
    return trek_error_status();
}

static void drawn_close(trek_dataset *self, void *reading) { free(reading); }

static const char *const drawn_fields[] = { "x", "target" };
static const trek_stream_class drawn_stream = { drawn_open, drawn_next, NULL, drawn_close };
static const trek_dataset_class drawn_class = { .name = "drawn", .size = sizeof(drawn), .n_fields = 2, .fields = drawn_fields,
                                                .stream = &drawn_stream };

static trek_dataset *new_stream(int64_t n)
{
    drawn *set = (drawn *)trek_dataset_new(&drawn_class);
    set->n = n;
    return trek_dataset_shuffle(&set->base, 12);
}

/* --- what is trained ------------------------------------------------------------------------------ */

typedef struct reports {
    int n;
    trek_epoch_metrics of[REPORTS];
    double recorded[REPORTS];
} reports;

static trek_var *squares(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    if (trek_record_sum("rows", (double)trek_batch_size(batch)) != TREK_OK)
        return NULL;
    trek_var *error = trek_sub(trek_narrow(output, 1, 0, 1), trek_batch_get(batch, "target"));
    return trek_mean(trek_mul(error, error), trek_dims_all(), false);
}

static trek_status note(const trek_epoch_metrics *m, void *arg)
{
    reports *r = arg;
    assert_true(r->n < REPORTS);
    r->of[r->n] = *m;
    r->recorded[r->n++] = trek_metrics_get(m, "rows");
    return TREK_OK;
}

static trek_run_opts opts_of(trek_dataset *data, reports *r)
{
    memset(r, 0, sizeof *r);
    return (trek_run_opts){ .build_model = training_build, .train_step = squares, .dataset = data, .input = "x",
                            .optimizer = training_adam(), .batch_size = BATCH, .seed = 5, .on_metrics = note, .arg = r,
                            .schedule = trek_cosine_lr(1e-2, 40, 1e-4),
                            .trainer = { .ranks = 1, .devices = test_devices() } };
}

static trek_state *run_all(const trek_run_opts *o)
{
    trek_run *run = trek_trainer_run(o);
    trek_state *final = run ? trek_run_join(run) : NULL;
    if (!final)
        fail_msg("%s", trek_error());
    return final;
}

static void expect_same(const char *what, int64_t step, const trek_state *a, const trek_state *b)
{
    assert_int_equal(trek_state_count(a), trek_state_count(b));
    for (int k = 0; k < trek_state_count(a); k++)
        if (!test_same_bits(trek_state_tensor(a, k), trek_state_find(b, trek_state_name(a, k))))
            fail_msg("%s, from step %d: %s differs", what, (int)step, trek_state_name(a, k));
}

static void make_folder(char *path)
{
    strcpy(path, "/tmp/trek-run-XXXXXX");
    assert_non_null(mkdtemp(path));
}

static void remove_folder(const char *path)
{
    assert_int_equal(test_remove(path), 0);
}

/* --- from every step ---------------------------------------------------------------------------------- */

typedef struct way {
    const char *name;
    trek_run_opts (*opts)(trek_dataset *data, reports *r);
    int64_t stream;          /* samples of an epoch of a stream, -1: without an end; 0: a dataset */
    bool evaluates;
} way;

static trek_run_opts plain(trek_dataset *data, reports *r)
{
    trek_run_opts o = opts_of(data, r);
    o.shuffle = true;
    o.epochs = 2;
    return o;
}

static trek_run_opts three_ranks(trek_dataset *data, reports *r)
{
    trek_run_opts o = plain(data, r);
    static const double shares[] = { 3, 1, 2 };
    o.trainer.ranks = 3;
    o.trainer.shares = shares;
    o.trainer.n_shares = 3;
    o.evaluate_every_steps = 5;
    return o;
}

static trek_run_opts accumulated(trek_dataset *data, reports *r)
{
    trek_run_opts o = plain(data, r);
    o.epochs = 0;
    o.max_steps = 7;
    o.trainer.accumulate = 3;
    o.trainer.max_grad_norm = 0.5;
    return o;
}

static trek_run_opts in_grains(trek_dataset *data, reports *r)
{
    trek_run_opts o = plain(data, r);
    o.trainer.ranks = 2;
    o.trainer.grain = 3;
    o.epochs = 5;
    o.max_steps = 11; /* before the epochs end */
    o.evaluate_every_steps = 4;
    return o;
}

static trek_run_opts streamed(trek_dataset *data, reports *r)
{
    trek_run_opts o = opts_of(data, r);
    o.epochs = 3;
    o.evaluate_every_steps = 3;
    o.checkpoint_every = 2;
    return o;
}

static trek_run_opts endless(trek_dataset *data, reports *r)
{
    trek_run_opts o = opts_of(data, r);
    o.max_steps = 10;
    o.trainer.ranks = 2;
    static const double shares[] = { 1, 1 };
    o.trainer.shares = shares;
    o.trainer.n_shares = 2;
    o.evaluate_every_steps = 4;
    return o;
}

/* Ranks average in rounds of a batch each: a step is a batch of a rank. */
static trek_run_opts averaged(trek_dataset *data, reports *r)
{
    trek_run_opts o = plain(data, r);
    o.trainer.ranks = 2;
    o.transport = TREK_TRANSPORT_HOST;
    o.max_steps = 13;
    return o;
}

static const way ways[] = {
    { "plain", plain, 0, true },
    { "three ranks", three_ranks, 0, true },
    { "accumulated", accumulated, 0, false },
    { "in grains", in_grains, 0, true },
    { "a stream", streamed, 29, true },
    { "a stream of whole batches", streamed, 3 * BATCH, false },
    { "a stream without an end", endless, -1, true },
    { "averaged", averaged, 0, false },
};

/* The metrics of the resumed run are the last ones of the whole one. Returns how many. */
static int compare_reports(const way *w, int64_t step, const reports *whole, const reports *rest)
{
    for (int k = 1; k <= rest->n; k++) {
        const trek_epoch_metrics *a = &whole->of[whole->n - k], *b = &rest->of[rest->n - k];
        bool same = a->epoch == b->epoch && a->step == b->step && a->steps == b->steps && a->samples == b->samples &&
            a->complete == b->complete && a->best == b->best &&
            whole->recorded[whole->n - k] == rest->recorded[rest->n - k] &&
            fabs(a->loss - b->loss) <= 1e-12 * fabs(a->loss) &&
            (isnan(a->evaluation_loss) ? isnan(b->evaluation_loss) : a->evaluation_loss == b->evaluation_loss);
        if (!same)
            fail_msg(
                "%s, from step %d: metrics %d from the end: epoch %d and %d, step %d and %d, %d and %d steps, %g and %g rows, "
                "loss %.17g and %.17g, %.17g and %.17g",
                w->name, (int)step, k, (int)a->epoch, (int)b->epoch, (int)a->step, (int)b->step, (int)a->steps, (int)b->steps,
                whole->recorded[whole->n - k], rest->recorded[rest->n - k], a->loss, b->loss, a->evaluation_loss,
                b->evaluation_loss);
    }
    return rest->n;
}

static trek_dataset *data_of(const way *w)
{
    return w->stream ? new_stream(w->stream > 0 ? w->stream : 0) : training_dataset();
}

static void test_from_every_step(void **state)
{
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        const way *w = &ways[k];
        trek_dataset *data = data_of(w), *other = training_dataset();
        static reports whole, rest;
        char path[64], file[160];
        trek_run_opts o = w->opts(data, &whole);
        o.evaluation = w->evaluates ? other : NULL;
        make_folder(path);
        o.checkpoint_folder = path;
        o.checkpoint_every_steps = 1;
        o.keep_last = TREK_OFF;
        trek_state *final = run_all(&o);
        int64_t last = whole.of[whole.n - 1].step;
        assert_true(last > 5);
        for (int64_t step = 1; step <= last; step++) {
            trek_run_opts again = o;
            memset(&rest, 0, sizeof rest);
            again.arg = &rest;
            again.checkpoint_folder = NULL;
            again.checkpoint_every = again.checkpoint_every_steps = 0;
            if (w->opts == averaged) { /* it is averaged where checkpoints are made */
                again.checkpoint_folder = path;
                again.checkpoint_every_steps = 1;
            }
            again.keep_last = again.checkpoint_folder ? TREK_OFF : 0;
            snprintf(file, sizeof file, "%s/step-%012d.safetensors", path, (int)step);
            again.resume_from = file;
            trek_state *resumed = run_all(&again);
            expect_same(w->name, step, final, resumed);
            int n = compare_reports(w, step, &whole, &rest);
            assert_true(step == last || n > 0);
            trek_state_free(&resumed);
        }
        trek_state_free(&final);
        remove_folder(path);
        trek_dataset_free(&data);
        trek_dataset_free(&other);
    }
}

/* --- where things happen --------------------------------------------------------------------------- */

static void expect_report(const reports *r, int k, int64_t epoch, int64_t step, int64_t steps, bool complete, bool evaluated)
{
    const trek_epoch_metrics *m = &r->of[k];
    if (k >= r->n || m->epoch != epoch || m->step != step || m->steps != steps || m->complete != complete ||
        isnan(m->evaluation_loss) == evaluated)
        fail_msg("metrics %d of %d: epoch %d, step %d, %d steps, %s, evaluation %g", k, r->n, (int)m->epoch, (int)m->step,
                 (int)m->steps, m->complete ? "complete" : "a part", m->evaluation_loss);
}

/* 8 steps an epoch: evaluated each 3 steps, ending at step 14. */
static void test_reports(void **state)
{
    assert_int_equal(STEPS, 8);
    trek_dataset *data = training_dataset();
    static reports r;
    trek_run_opts o = plain(data, &r);
    o.epochs = 0;
    o.max_steps = 14;
    o.evaluation = data;
    o.evaluate_every_steps = 3;
    trek_state *final = run_all(&o);
    trek_state_free(&final);
    assert_int_equal(r.n, 6);
    expect_report(&r, 0, 0, 3, 3, false, true);
    expect_report(&r, 1, 0, 6, 3, false, true);
    expect_report(&r, 2, 0, 8, 2, true, false);
    expect_report(&r, 3, 1, 9, 1, false, true);
    expect_report(&r, 4, 1, 12, 3, false, true);
    expect_report(&r, 5, 1, 14, 2, false, true);
    o = plain(data, &r);
    o.evaluation = data;
    o.evaluate_every_steps = 8; /* at the ends of epochs, once */
    final = run_all(&o);
    trek_state_free(&final);
    assert_int_equal(r.n, 2);
    expect_report(&r, 0, 0, 8, 8, true, true);
    expect_report(&r, 1, 1, 16, 8, true, true);
    o.max_steps = 16;
    o.epochs = 5;
    memset(&r, 0, sizeof r);
    o.evaluate_every = 2;
    final = run_all(&o);
    trek_state_free(&final);
    assert_int_equal(r.n, 2);
    expect_report(&r, 1, 1, 16, 8, true, true);
    trek_dataset_free(&data);
}

/* An epoch of a stream ends with it, also where its last batch is whole, and where metrics are due there. */
static void test_ends_of_streams(void **state)
{
    static reports r;
    for (int64_t n = 2 * BATCH; n <= 3 * BATCH; n++) {
        trek_dataset *data = new_stream(n);
        trek_run_opts o = opts_of(data, &r);
        o.epochs = 2;
        o.evaluate_every_steps = 3;
        trek_state *final = run_all(&o);
        trek_state_free(&final);
        if (n == 2 * BATCH) {
            assert_int_equal(r.n, 3);
            expect_report(&r, 0, 0, 2, 2, true, false);
            expect_report(&r, 1, 1, 3, 1, false, false);
            expect_report(&r, 2, 1, 4, 1, true, false);
        } else {
            assert_int_equal(r.n, 2);
            expect_report(&r, 0, 0, 3, 3, true, false);
            expect_report(&r, 1, 1, 6, 3, true, false);
        }
        assert_int_equal(r.of[0].samples, n);
        trek_dataset_free(&data);
    }
}

static int files_in(const char *path, const int64_t *steps, int n)
{
    int found = 0, others = 0;
    DIR *list = opendir(path);
    for (struct dirent *entry; (entry = readdir(list));) {
        long long step = -1;
        bool known = false;
        if (sscanf(entry->d_name, "step-%lld", &step) != 1)
            continue;
        for (int k = 0; k < n; k++)
            known |= steps[k] == step;
        found += known;
        others += !known;
    }
    closedir(list);
    return others == 0 && found == n;
}

static void test_files(void **state)
{
    trek_dataset *data = training_dataset();
    static reports r;
    char path[64];
    const struct {
        int64_t epochs_between, steps_between;
        int keep, n;
        int64_t steps[8];
    } cases[] = {
        { 0, 5, TREK_OFF, 4, { 5, 10, 15, 16 } },
        { 1, 5, TREK_OFF, 5, { 5, 8, 10, 15, 16 } },
        { 0, 8, TREK_OFF, 2, { 8, 16 } },
        { 2, 3, 2, 2, { 15, 16 } },
        { 0, 0, TREK_OFF, 2, { 8, 16 } },
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        trek_run_opts o = plain(data, &r);
        make_folder(path);
        o.checkpoint_folder = path;
        o.checkpoint_every = cases[k].epochs_between;
        o.checkpoint_every_steps = cases[k].steps_between;
        o.keep_last = cases[k].keep;
        trek_state *final = run_all(&o);
        trek_state_free(&final);
        if (!files_in(path, cases[k].steps, cases[k].n))
            fail_msg("case %d: other files", (int)k);
        remove_folder(path);
    }
    trek_dataset_free(&data);
}

/* A run that has made all of its steps makes no more; with more of them it goes on. */
static void test_longer(void **state)
{
    trek_dataset *data = training_dataset();
    static reports r;
    char path[64];
    trek_run_opts o = plain(data, &r);
    o.epochs = 0;
    o.max_steps = 13;
    trek_state *whole = run_all(&o);
    make_folder(path);
    o.checkpoint_folder = o.resume_from = path;
    for (o.max_steps = 3; o.max_steps <= 13; o.max_steps += 5)
        for (int times = 0; times < 2; times++) {
            memset(&r, 0, sizeof r);
            trek_state *final = run_all(&o);
            assert_int_equal(r.n > 0, times == 0);
            if (o.max_steps == 13)
                expect_same("longer", times, whole, final);
            trek_state_free(&final);
        }
    remove_folder(path);
    trek_state_free(&whole);
    trek_dataset_free(&data);
}

/* --- refused ------------------------------------------------------------------------------------------ */

static void expect_refused(const trek_run_opts *o, trek_status status, const char *words)
{
    trek_run *run = trek_trainer_run(o);
    trek_state *final = run ? trek_run_join(run) : NULL;
    assert_null(final);
    if (trek_error_status() != status || !strstr(trek_error(), words))
        fail_msg("\"%s\" is not in: %s", words, trek_error());
    trek_error_clear();
}

static void test_refused(void **state)
{
    trek_dataset *data = training_dataset(), *stream = new_stream(20);
    static reports r;
    trek_run_opts o = opts_of(data, &r);
    expect_refused(&o, TREK_ERR_ARGUMENT, ".epochs: 0, .max_steps: 0; one of them must be at least 1");
    o.max_steps = -2;
    expect_refused(&o, TREK_ERR_ARGUMENT, ".max_steps: -2");
    o.max_steps = 4;
    o.evaluate_every_steps = -1;
    expect_refused(&o, TREK_ERR_ARGUMENT, ".evaluate_every_steps: negative");
    o.evaluate_every_steps = 0;
    o.checkpoint_every_steps = 2;
    expect_refused(&o, TREK_ERR_ARGUMENT, ".checkpoint_every_steps");
    o.checkpoint_folder = "/tmp/trek-none";
    o.checkpoint_every_steps = -2;
    expect_refused(&o, TREK_ERR_ARGUMENT, ".checkpoint_every_steps or .keep_last: negative");
    o = opts_of(stream, &r);
    o.max_steps = 4;
    o.policy = TREK_POLICY_CADENCE;
    expect_refused(&o, TREK_ERR_UNSUPPORTED, "of which ranks cannot read batches of their own");
    o.policy = TREK_POLICY_SYNC;
    o.transport = TREK_TRANSPORT_HOST;
    expect_refused(&o, TREK_ERR_UNSUPPORTED, "of which ranks cannot read batches of their own");
    o.transport = TREK_TRANSPORT_DEVICE;
    o.shuffle = true;
    expect_refused(&o, TREK_ERR_ARGUMENT, "trek_dataset_shuffle gives it another order");
    trek_dataset_free(&stream);
    trek_dataset_free(&data);
}

/* --- processes ------------------------------------------------------------------------------------------ */

/* Trains, and prints a hash of the parameters and what was reported. */
static int play(const part *of)
{
    static reports r;
    char *detail = strdup(of->detail), *colon = strrchr(detail, ':');
    trek_dataset *data = of->role[0] == 's' ? new_stream(29) : training_dataset();
    trek_run_opts o = of->role[0] == 's' ? streamed(data, &r) : of->role[0] == 'g' ? in_grains(data, &r) : plain(data, &r);
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .rank = of->process, .world_size = of->processes, .address = of->address,
                                                       .port = of->port, .token = "sesame", .deadline_s = 60 });
    o.trainer.comm = comm;
    o.trainer.ranks = 1;
    static const double shares[] = { 2, 1 };
    o.trainer.shares = shares;
    o.trainer.n_shares = 2;
    o.evaluation = NULL;
    *colon = '\0';
    o.checkpoint_folder = detail;
    o.checkpoint_every_steps = 1;
    o.keep_last = TREK_OFF;
    char file[200];
    snprintf(file, sizeof file, "%s/step-%012d.safetensors", detail, atoi(colon + 1));
    o.resume_from = atoi(colon + 1) > 0 ? file : NULL;
    trek_run *run = trek_trainer_run(&o);
    trek_state *final = run ? trek_run_join(run) : NULL;
    if (!final) {
        printf("failed: %s\n", trek_error());
        return 1;
    }
    uint64_t hash = 14695981039346656037u;
    for (int k = 0; k < trek_state_count(final); k++) {
        const trek_tensor *x = trek_state_tensor(final, k);
        const unsigned char *bytes = trek_tensor_data(x);
        for (int64_t i = 0; i < trek_tensor_numel(x) * 8; i++)
            hash = (hash ^ bytes[i]) * 1099511628211u;
    }
    const trek_epoch_metrics *m = &r.of[r.n - 1];
    printf("hash %016llx, step %d, steps %d, samples %d, rows %g\n", (unsigned long long)hash, (int)m->step, (int)m->steps,
           (int)m->samples, r.recorded[r.n - 1]);
    trek_state_free(&final);
    trek_comm_free(&comm);
    trek_dataset_free(&data);
    free(detail);
    return 0;
}

/* Whether a process says what process 0 has said of the whole run; there may be warnings before. */
static bool same_result(const world *whole, const world *rest, int p)
{
    const char *a = strstr(whole->text[0], "hash "), *b = strstr(rest->text[p], "hash ");
    size_t n = a ? strcspn(a, "\n") : 0;
    return a && b && strncmp(a, b, n + 1) == 0;
}

static void test_processes(void **state)
{
    const char *const roles[] = { "plain", "grains", "stream" };
    for (size_t k = 0; k < sizeof roles / sizeof *roles; k++) {
        char path[64], detail[128];
        static world whole, rest;
        make_folder(path);
        snprintf(detail, sizeof detail, "%s:0", path);
        processes_run_all(&whole, 2, roles[k], detail, -1, NULL);
        for (int step = 3; step <= 9; step += 3) {
            snprintf(detail, sizeof detail, "%s:%d", path, step);
            processes_run_all(&rest, 2, roles[k], detail, -1, NULL);
            for (int p = 0; p < 2; p++)
                if (whole.code[p] != 0 || rest.code[p] != 0 || !same_result(&whole, &rest, p)) {
                    processes_print(&whole);
                    processes_print(&rest);
                    fail_msg("%s from step %d: process %d", roles[k], step, p);
                }
        }
        remove_folder(path);
    }
}

/* --- a process that dies --------------------------------------------------------------------------------- */

static int64_t dies_in; /* the step; 0: never */

static trek_var *squares_and_die(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    if (dies_in > 0 && trek_module_is_training(trek_graph_module(graph)) && trek_graph_steps(graph) + 1 == dies_in)
        kill(getpid(), SIGKILL);
    return squares(graph, output, batch, arg);
}

static trek_status tell(const trek_epoch_metrics *m, void *arg)
{
    printf("at step %d, %s, %s\n", (int)m->step, m->complete ? "complete" : "a part",
           isnan(m->evaluation_loss) ? "not evaluated" : "evaluated");
    return TREK_OK;
}

static int play_death(const part *of)
{
    static reports r;
    trek_dataset *data = training_dataset();
    trek_run_opts o = plain(data, &r);
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .rank = of->process, .world_size = of->processes, .address = of->address,
                                                        .port = of->port, .token = "sesame", .deadline_s = 60 });
    dies_in = of->process == 1 ? atoi(of->detail) : 0;
    o.trainer.comm = comm;
    o.train_step = squares_and_die;
    o.on_metrics = tell;
    o.min_processes = 1;
    o.evaluation = data;
    o.evaluate_every_steps = 3;
    trek_run *run = trek_trainer_run(&o);
    trek_state *final = run ? trek_run_join(run) : NULL;
    printf("%s\n", final ? "trained" : trek_error());
    trek_state_free(&final);
    trek_comm_free(&comm);
    trek_dataset_free(&data);
    return 0;
}

/* The others go on, with what is due after the same steps: before, at, and after a death. */
static void test_death(void **state)
{
    static world w;
    const char *const steps[] = { "0", "1", "3", "4", "8", "9", "16" };
    for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) {
        processes_run_all(&w, 3, "death", steps[k], -1, NULL);
        for (int p = 0; p < 3; p += 2) {
            const char *at = w.text[p];
            const char *const expected[] = { "at step 3, a part, evaluated\n", "at step 6, a part, evaluated\n",
                                             "at step 8, complete, not evaluated\n", "at step 9, a part, evaluated\n",
                                             "at step 12, a part, evaluated\n", "at step 15, a part, evaluated\n",
                                             "at step 16, complete, evaluated\n", "trained\n" };
            for (size_t i = 0; i < sizeof expected / sizeof *expected && at; i++)
                at = strstr(at, expected[i]);
            int told = 0;
            for (const char *line = w.text[p]; (line = strstr(line, "at step ")); line++)
                told++;
            if (!at || told != 7)
                FAIL_WORLD(&w, "death in step %s: process %d", steps[k], p);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_from_every_step), cmocka_unit_test(test_reports), cmocka_unit_test(test_ends_of_streams),
        cmocka_unit_test(test_files), cmocka_unit_test(test_longer), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_processes), cmocka_unit_test(test_death),
    };
    part of;
    if (processes_part(&of))
        return of.role[0] == 'd' ? play_death(&of) : play(&of);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
