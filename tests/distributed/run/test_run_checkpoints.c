/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of runs, which a thread writes while training goes on: what is in them, that a run goes on from each, what
 * becomes of writes that fail and of processes that are killed in the midst of one. */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "distributed/checkpoint.h"
#include "distributed/run.h"
#include "distributed/run_progress.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "nn/state_modules.h"
#include "nn/state_tensors.h"
#include "tensor/creation.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/training.h"
#include "tests/support/unit.h"

enum { EPOCHS = 5, BATCH = 8, STEPS = (SAMPLES + BATCH - 1) / BATCH, WIDE = 512 };

static trek_var *squares(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    trek_var *error = trek_sub(trek_narrow(output, 1, 0, 1), trek_batch_get(batch, "target"));
    return trek_mean(trek_mul(error, error), trek_dims_all(), false);
}

static trek_run_opts plain_opts(trek_dataset *dataset, int ranks)
{
    return (trek_run_opts){ .build_model = training_build, .train_step = squares, .dataset = dataset, .input = "x",
                            .optimizer = training_adam(), .batch_size = BATCH, .shuffle = true, .epochs = EPOCHS, .seed = 11,
                            .trainer = { .ranks = ranks, .devices = test_devices() } };
}

/* Several MB, so that a write takes a while. */
static trek_graph *build_wide(trek_device device, void *arg)
{
    return trek_flow_build(trek_flow_through(trek_flow_from(trek_nn_linear(WIDE, WIDE, device)),
                                             trek_nn_linear(WIDE, WIDE, device)));
}

static trek_var *mean_square(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    return trek_mean(trek_mul(output, output), trek_dims_all(), false);
}

static trek_dataset *wide_dataset(void)
{
    const char *names[] = { "x" };
    trek_tensor *x = trek_tensor_full(trek_dims(2, WIDE), 0.5, TREK_F32, trek_cpu(0));
    trek_dataset *dataset = trek_dataset_tensors(names, &x, 1);
    trek_tensor_release(x);
    return dataset;
}

static trek_run_opts wide_opts(trek_dataset *dataset)
{
    return (trek_run_opts){ .build_model = build_wide, .train_step = mean_square, .dataset = dataset, .input = "x",
                            .optimizer = training_adam(), .batch_size = 2, .shuffle = true, .epochs = EPOCHS,
                            .trainer = { .ranks = 1, .devices = test_devices() } };
}

static char *folder(char *text)
{
    strcpy(text, "/tmp/trek-run-XXXXXX");
    assert_non_null(mkdtemp(text));
    return text;
}

static void remove_folder(const char *path)
{
    assert_int_equal(test_remove(path), 0);
}

/* Checkpoints of the folder, all whole; *others: files beside them. */
static int count_whole(const char *path, int *others)
{
    DIR *list = opendir(path);
    int n = 0;
    *others = 0;
    assert_non_null(list);
    for (struct dirent *entry; (entry = readdir(list));) {
        char name[512];
        size_t length = strlen(entry->d_name);
        if (entry->d_name[0] == '.')
            continue;
        if (length < 12 || strcmp(entry->d_name + length - 12, ".safetensors") != 0) {
            ++*others;
            continue;
        }
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        trek_state *state = trek_state_read(name);
        if (!state)
            fail_msg("%s", trek_error());
        trek_state_free(&state);
        n++;
    }
    closedir(list);
    return n;
}

static trek_state *run_all(const trek_run_opts *o)
{
    trek_run *run = trek_trainer_run(o);
    return run ? trek_run_join(run) : NULL;
}

static void expect_same(const trek_state *a, const trek_state *b)
{
    assert_true(a && b);
    for (int k = 0; k < trek_state_count(a); k++) {
        const char *name = trek_state_name(a, k);
        trek_tensor *other = trek_state_find(b, name);
        if (!other || !test_same_bits(trek_state_tensor(a, k), other))
            fail_msg("%s differs", name);
    }
}

/* --- the folder ------------------------------------------------------------------------------------ */

static char watched[64];
static atomic_int synced; /* how often the folder `watched` was */

/* In the place of the system's. */
int fsync(int file)
{
    char link[64], path[300];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    if (watched[0] && strcmp(path, watched) == 0)
        atomic_fetch_add(&synced, 1);
    return (int)syscall(SYS_fsync, file);
}

/* A folder that the run has made is there after a power failure only if the one around it was synced. */
static void test_new_folder(void **state)
{
    char folder[] = "/tmp/trek-run-XXXXXX", inside[64];
    trek_dataset *data = wide_dataset();
    trek_run_opts o = wide_opts(data);
    assert_non_null(mkdtemp(folder));
    snprintf(watched, sizeof watched, "%s", folder);
    snprintf(inside, sizeof inside, "%s/new", folder);
    o.epochs = 1;
    o.checkpoint_folder = inside;
    for (int times = 0; times < 2; times++) { /* the second finds it there */
        trek_state *final = run_all(&o);
        assert_non_null(final);
        trek_state_free(&final);
        assert_int_equal(atomic_load(&synced), 1);
    }
    watched[0] = '\0';
    trek_dataset_free(&data);
    assert_int_equal(test_remove(folder), 0);
}

/* --- what is in them ---------------------------------------------------------------------------- */

typedef struct keeping {
    const char *path;
    pthread_t thread;       /* the run's */
    int64_t last;           /* epoch of the last callback */
    int calls;
} keeping;

/* The same by a call of one's own, as the next epoch begins. */
static trek_status save_own(trek_graph *graph, int64_t epoch, void *arg)
{
    keeping *k = arg;
    char name[128];
    k->thread = pthread_self();
    snprintf(name, sizeof name, "%s/own-%d", k->path, (int)(epoch * STEPS));
    return epoch > 0 ? trek_checkpoint_save(graph, NULL, name) : TREK_OK;
}

static trek_status hear(trek_graph *graph, int64_t epoch, const char *path, void *arg)
{
    keeping *k = arg;
    assert_non_null(graph);
    assert_true(pthread_equal(k->thread, pthread_self()));
    assert_true(epoch >= k->last);
    assert_int_equal(access(path, R_OK), 0);
    k->last = epoch;
    k->calls++;
    return TREK_OK;
}

static void test_content(void **state)
{
    char path[32];
    trek_dataset *data = training_dataset();
    for (int ranks = 1; ranks <= 3; ranks++) {
        keeping k = { .path = folder(path), .last = -1 };
        trek_run_opts o = plain_opts(data, ranks);
        o.arg = &k;
        o.checkpoint_folder = path;
        o.keep_last = TREK_OFF;
        o.on_epoch = save_own;
        o.on_checkpoint = hear;
        trek_state *final = run_all(&o);
        assert_non_null(final);
        assert_int_equal(k.calls, EPOCHS);
        for (int epoch = 1; epoch < EPOCHS; epoch++) {
            char name[128];
            snprintf(name, sizeof name, "%s/own-%d", path, epoch * STEPS);
            trek_state *own = trek_state_read(name);
            snprintf(name, sizeof name, "%s/step-%012d.safetensors", path, epoch * STEPS);
            trek_state *written = trek_state_read(name);
            expect_same(own, written);
            assert_int_equal(trek_state_count(written), trek_state_count(own) + 1); /* "trek:more" */
            trek_state_free(&own);
            trek_state_free(&written);
        }
        trek_state_free(&final);
        remove_folder(path);
    }
    trek_dataset_free(&data);
}

/* A run goes on from each of its files with the same bits, and what was of the folder's files stays so. */
static void test_resume_from_each(void **state)
{
    char path[32];
    trek_dataset *data = training_dataset();
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        folder(path);
        trek_run_opts o = plain_opts(data, ranks);
        o.checkpoint_folder = path;
        o.keep_last = TREK_OFF;
        trek_state *whole = run_all(&o);
        o.checkpoint_folder = NULL;
        o.keep_last = 0;
        for (int epoch = 1; epoch < EPOCHS; epoch++) {
            char name[128];
            snprintf(name, sizeof name, "%s/step-%012d.safetensors", path, epoch * STEPS);
            o.resume_from = name;
            trek_state *resumed = run_all(&o);
            expect_same(whole, resumed);
            trek_state_free(&resumed);
        }
        trek_state_free(&whole);
        remove_folder(path);
    }
    trek_dataset_free(&data);
}

static trek_status note_thread(trek_graph *graph, int64_t epoch, void *arg)
{
    ((keeping *)arg)->thread = pthread_self();
    return TREK_OK;
}

/* More epochs than the disk has time for: the last ones are there; no file goes before the program has heard of it,
 * in order, the last among them. */
static void test_faster_than_the_disk(void **state)
{
    char path[32];
    int others;
    trek_dataset *data = wide_dataset();
    for (int keep = 0; keep <= 3; keep += 3) {
        keeping k = { .path = folder(path), .last = -1 };
        trek_run_opts o = wide_opts(data);
        o.epochs = 12;
        o.arg = &k;
        o.checkpoint_folder = path;
        o.keep_last = keep;
        o.keep_best = keep > 0;
        o.on_epoch = note_thread;
        o.on_checkpoint = hear;
        o.best_metric = "loss";
        trek_state *final = run_all(&o);
        assert_non_null(final);
        assert_int_equal(count_whole(path, &others), keep ? keep + 1 : 1);
        assert_int_equal(others, 0);
        assert_int_equal(k.last, o.epochs - 1);
        assert_true(keep ? k.calls > 12 : k.calls >= 1 && k.calls <= 12);
        char name[128];
        snprintf(name, sizeof name, "%s/step-%012d.safetensors", path, (int)o.epochs);
        trek_state *last = trek_state_read(name);
        expect_same(final, last);
        trek_state_free(&last);
        trek_state_free(&final);
        remove_folder(path);
    }
    trek_dataset_free(&data);
}

/* --- what fails ----------------------------------------------------------------------------------- */

static bool has_one(const char *path)
{
    char name[128];
    snprintf(name, sizeof name, "%s/step-%012d.safetensors", path, 1);
    return access(name, R_OK) == 0;
}

static trek_status move_folder(trek_graph *graph, int64_t epoch, void *arg)
{
    char aside[64];
    snprintf(aside, sizeof aside, "%s.aside", (const char *)arg);
    return epoch >= 2 && has_one(arg) && rename(arg, aside) != 0 ? TREK_ERR_CALLBACK : TREK_OK;
}

static trek_status no_room(trek_graph *graph, int64_t epoch, void *arg)
{
    struct rlimit small = { 100000, RLIM_INFINITY };
    return epoch >= 2 && has_one(arg) && setrlimit(RLIMIT_FSIZE, &small) != 0 ? TREK_ERR_CALLBACK : TREK_OK;
}

/* The run ends with the system's reason, before its last epoch; what had been written stays. */
static void fail_in_the_midst(trek_epoch_fn on_epoch, const char *suffix, const char *text)
{
    char path[32], kept[64];
    int others, epochs = 0;
    trek_dataset *data = wide_dataset();
    trek_run_opts o = wide_opts(data);
    trek_epoch_metrics m;
    folder(path);
    o.checkpoint_folder = path;
    o.keep_last = TREK_OFF;
    o.epochs = 100;
    o.on_epoch = on_epoch;
    o.arg = path;
    trek_run *run = trek_trainer_run(&o);
    while (trek_run_next(run, &m))
        epochs++;
    assert_null(trek_run_join(run));
    if (trek_error_status() != TREK_ERR_IO || !strstr(trek_error(), text) || !strstr(trek_error(), path))
        fail_msg("%s, not %s", trek_error(), text);
    trek_error_clear();
    assert_true(epochs >= 2 && epochs < o.epochs);
    snprintf(kept, sizeof kept, "%s%s", path, suffix);
    assert_true(count_whole(kept, &others) >= 1);
    assert_true(others <= (*suffix ? 1 : 0)); /* of a folder that is elsewhere nothing can be removed */
    remove_folder(kept);
    trek_dataset_free(&data);
}

static void test_failing_writes(void **state)
{
    fail_in_the_midst(move_folder, ".aside", "No such file");
    struct rlimit before;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    fail_in_the_midst(no_room, "", "File too large");
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, handler);
}

/* --- killed ----------------------------------------------------------------------------------------- */

static int play(const part *me)
{
    trek_dataset *data = wide_dataset();
    trek_run_opts o = wide_opts(data);
    o.epochs = 1000000;
    o.checkpoint_folder = o.resume_from = me->detail;
    o.keep_last = 2;
    o.keep_best = true;
    return run_all(&o) ? 0 : 1;
}

static bool has_best(const char *path)
{
    char name[128];
    snprintf(name, sizeof name, "%s/best.safetensors", path);
    return access(name, R_OK) == 0;
}

/* Again and again in one folder, at moments drawn at random: what there is is whole, and each goes on from it. */
static void test_killed(void **state)
{
    char path[32];
    int others, whole = 0;
    static world w;
    folder(path);
    for (int k = 0; k < (test_long() ? 60 : 8); k++) {
        processes_init(&w, 1);
        processes_start(&w, 0, "keep", path);
        usleep((useconds_t)(60000 + 50000 * test_number(17, (uint32_t)k)));
        for (double since = 0; !has_best(path) && test_wait(&since);)
            continue;
        processes_kill(&w, 0);
        if (w.code[0] != -SIGKILL)
            processes_print(&w);
        assert_int_equal(w.code[0], -SIGKILL);
        whole = count_whole(path, &others);
        assert_true(whole >= 2); /* the best, the last ones, and those that the program has not heard of */
        assert_true(others <= 2); /* what the writer had begun; the next one removes it */
    }
    trek_dataset *data = wide_dataset();
    trek_run_opts o = wide_opts(data);
    o.epochs = 1000000;
    o.checkpoint_folder = o.resume_from = path;
    o.keep_last = 2;
    trek_run *run = trek_trainer_run(&o);
    trek_epoch_metrics m;
    for (int epoch = 0; epoch < 3; epoch++) {
        assert_true(trek_run_next(run, &m));
        assert_true(m.epoch >= 1);
    }
    trek_run_stop(run);
    trek_state *final = trek_run_join(run);
    assert_non_null(final);
    trek_state_free(&final);
    assert_int_equal(count_whole(path, &others), 3); /* a run that ends leaves what was asked for */
    assert_true(others <= 1);                        /* of the best one, which no one has written again */
    trek_dataset_free(&data);
    remove_folder(path);
}

int main(void)
{
    part me;
    if (processes_part(&me))
        return play(&me);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_new_folder),       cmocka_unit_test(test_content),
        cmocka_unit_test(test_resume_from_each), cmocka_unit_test(test_faster_than_the_disk),
        cmocka_unit_test(test_failing_writes),   cmocka_unit_test(test_killed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
