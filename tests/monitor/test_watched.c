/* SPDX-License-Identifier: Apache-2.0 */
/* monitor/monitor: what is recorded is in the files, whatever happens to them, and training never knows. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "graph/flow.h"
#include "graph/graph_loader.h"
#include "graph/observe.h"
#include "monitor/monitor_internal.h"
#include "nn/layers.h"
#include "tensor/trace.h"
#include "tests/distributed/run/line.h"
#include "tests/monitor/watching.h"
#include "tests/support/refused.h"

static const char *program;

static trek_monitor *watch(const char *name)
{
    trek_monitor *m = trek_monitor_new(&(trek_monitor_opts){ .folder = folder, .name = name, .epochs = 3,
                                                             .interval_s = TREK_ZERO });
    assert_non_null(m);
    return m;
}

/* --- what a program writes ---------------------------------------------------------------------- */

static void test_values_come_back_to_the_bit(void **state)
{
    const double values[] = { 0.1, -0.0, 5e-324, 1.7976931348623157e308, (double)NAN, (double)INFINITY, -(double)INFINITY,
                              1.0 / 3 };
    const char *odd = "a \"b\"\n\\ \xc3\xa9 \xe2\x82\xac\t/<b>";
    trek_monitor *m = watch("odd name/\xc3\xa9");
    for (int k = 0; k < 8; k++)
        assert_int_equal(trek_monitor_scalar(m, odd, k, values[k]), TREK_OK);
    assert_int_equal(trek_monitor_scalar(m, "bad \xff", 0, 1), TREK_OK);
    assert_int_equal(trek_monitor_scalars(m, 9, (const char *[]){ "p", "q" }, (double[]){ 1, 2 }, 2), TREK_OK);
    assert_int_equal(trek_monitor_text(m, "t", 4, odd), TREK_OK);
    assert_int_equal(trek_monitor_event(m, "checkpoint", "3"), TREK_OK);
    assert_int_equal(trek_monitor_log(m, TREK_LOG_LEVEL_ERROR, "oh"), TREK_OK);
    assert_non_null(strstr(trek_monitor_path(m), "odd_name___"));
    trek_monitor_free(&m);
    assert_null(m);
    trek_run_reader *r = read_run("odd_name___");
    const trek_run_state *s = trek_run_reader_state(r);
    const trek_run_series *x = trek_run_reader_series(r, odd, false);
    assert_int_equal(x->count, 8);
    for (int k = 0; k < 8; k++)
        assert_true(x->points[k].step == k &&
                    (isnan(values[k]) ? isnan(x->points[k].value)
                     : memcmp(&x->points[k].value, &values[k], sizeof(double)) == 0));
    assert_int_equal(trek_run_reader_series(r, "bad ?", false)->count, 1);
    assert_true(trek_run_reader_series(r, "q", false)->points[0].value == 2);
    assert_int_equal(s->n_notes, 3);
    assert_string_equal(s->notes[0].text, odd);
    assert_string_equal(s->notes[1].name, "checkpoint");
    assert_string_equal(s->notes[2].name, "error");
    assert_int_equal(s->status, TREK_RUN_DONE);
    trek_run_reader_free(&r);
}

static void test_histograms_count_every_value(void **state)
{
    double values[] = { -1, 0, 0, 0.5, 1, (double)NAN, (double)INFINITY };
    trek_tensor *t = trek_tensor_from_data(values, trek_dims(7), TREK_F64, trek_cpu(0));
    trek_monitor *m = watch("h");
    assert_int_equal(trek_monitor_histogram(m, "t", 5, t), TREK_OK);
    trek_module *layer = trek_nn_linear(3, 2, trek_cpu(0));
    assert_int_equal(trek_monitor_histograms(m, 6, layer), TREK_OK);
    trek_monitor_free(&m);
    trek_run_reader *r = read_run("h");
    const trek_run_state *s = trek_run_reader_state(r);
    assert_int_equal(s->n_histograms, 3);
    const trek_run_record *h = &s->histograms[0];
    double sum = 0;
    for (int k = 0; k < h->n_counts; k++) {
        double inside = 0;
        for (int i = 0; i < 5; i++)
            inside += values[i] >= h->edges[k] && (values[i] < h->edges[k + 1] || (k == h->n_counts - 1 && values[i] == 1));
        assert_true(inside == h->counts[k]);
        sum += h->counts[k];
    }
    assert_true(sum == 5 && h->nonfinite == 2 && h->min == -1 && h->max == 1 && fabs(h->mean - 0.1) < 1e-15);
    assert_true(fabs(h->std - sqrt(0.44)) < 1e-12 && h->step == 5);
    assert_string_equal(s->histograms[1].name, "weight");
    trek_run_reader_free(&r);
    trek_tensor_release(t);
    trek_module_free(&layer);
}

static void test_mistakes_are_told(void **state)
{
    REFUSED(trek_monitor_new(&(trek_monitor_opts){ .folder = folder, .interval_s = -0.5 }), TREK_ERR_ARGUMENT, "");
    trek_monitor *m = watch("m");
    FAILS(trek_monitor_scalar(m, "", 0, 1), TREK_ERR_ARGUMENT, "");
    FAILS(trek_monitor_scalar(NULL, "x", 0, 1), TREK_ERR_ARGUMENT, "");
    FAILS(trek_monitor_log(m, (trek_log_level)9, "x"), TREK_ERR_ARGUMENT, "");
    trek_monitor_free(&m);
    trek_monitor_free(&m);
}

static void *write_many(void *arg)
{
    for (int k = 0; k < 200; k++)
        trek_monitor_scalar(arg, "shared", k, k);
    return NULL;
}

static void test_threads_write_whole_lines(void **state)
{
    pthread_t threads[4];
    trek_monitor *m = watch("threads");
    for (int k = 0; k < 4; k++)
        assert_int_equal(pthread_create(&threads[k], NULL, write_many, m), 0);
    for (int k = 0; k < 4; k++)
        pthread_join(threads[k], NULL);
    trek_monitor_free(&m);
    trek_run_reader *r = read_run("threads");
    assert_int_equal(trek_run_reader_series(r, "shared", false)->seen, 800);
    trek_run_reader_free(&r);
}

/* --- training ----------------------------------------------------------------------------------- */

enum { EPOCHS = 3 };

static trek_status train(int ranks, trek_epoch_metrics *metrics, double *losses)
{
    trek_dataset *dataset = line_dataset(true);
    trek_device devices[] = { trek_cpu(0), trek_cpu(1), trek_cpu(2) };
    trek_run *run = trek_trainer_run(&(trek_run_opts){ .build_model = line_build, .train_step = line_squares, .dataset = dataset,
                                                       .input = "x", .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.05 }),
                                                       .batch_size = 6, .shuffle = true, .epochs = EPOCHS,
                                                       .trainer = { .devices = devices, .ranks = ranks, .max_grad_norm = 100 } });
    trek_dataset_free(&dataset);
    for (int k = 0; run && trek_run_next(run, metrics); k++)
        losses[k] = metrics->loss;
    trek_state *state = run ? trek_run_join(run) : NULL;
    trek_state_free(&state);
    return trek_error_status();
}

/* In a process of its own, which TREK_LOG_DIR makes watched. */
static pid_t start(const char *role, const char *name)
{
    pid_t child = fork();
    if (child == 0) {
        setenv("TREK_LOG_DIR", folder, 1);
        setenv("TREK_RUN_NAME", name, 1);
        execl("/proc/self/exe", program, "--play", role, (char *)NULL);
        _exit(99);
    }
    return child;
}

static int finish(pid_t child)
{
    int code = -1;
    assert_int_equal(waitpid(child, &code, 0), child);
    return code;
}

/* What the child prints as its losses is what its file has. */
static void expect_losses(trek_run_reader *r, const char *name)
{
    char path[200];
    double loss;
    snprintf(path, sizeof path, "%s/%s.losses", folder, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    const trek_run_series *x = trek_run_reader_series(r, "loss", true);
    assert_non_null(x);
    assert_int_equal(x->count, EPOCHS);
    for (int k = 0; k < EPOCHS; k++)
        assert_true(fscanf(file, "%la", &loss) == 1 && loss == x->points[k].value && x->points[k].epoch == k);
    fclose(file);
}

typedef struct sums { double computing_s[4]; } sums;

static trek_status add_up(const trek_run_record *record, void *arg)
{
    sums *s = arg;
    for (int k = 0; k < record->n_ranks; k++)
        if (record->kind == TREK_RUN_RANKS && record->ranks[k].rank < 4)
            s->computing_s[record->ranks[k].rank] += record->ranks[k].computing_s;
    return TREK_OK;
}

/* Of all records: the last second of a run may have no step any more. */
static sums sums_of(const char *name)
{
    sums s = { { 0 } };
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    trek_run_reader *r = trek_run_reader_new(path, &(trek_run_reader_opts){ .on_record = add_up, .arg = &s });
    assert_int_equal(trek_run_reader_catch_up(r), TREK_OK);
    trek_run_reader_free(&r);
    return s;
}

static void train_on(int ranks)
{
    char role[8], name[16];
    snprintf(role, sizeof role, "%d", ranks);
    snprintf(name, sizeof name, "ranks-%d", ranks);
    assert_int_equal(finish(start(role, name)), 0);
    trek_run_reader *r = read_run(name);
    const trek_run_state *s = trek_run_reader_state(r);
    expect_losses(r, name);
    assert_int_equal(s->status, TREK_RUN_DONE);
    assert_int_equal(s->n_ranks, ranks);
    assert_int_equal(s->epochs, EPOCHS);
    assert_int_equal(s->epoch, EPOCHS);
    assert_int_equal(s->parameters, FEATURES);
    assert_non_null(s->graph);
    assert_non_null(strstr(s->graph->svg, "<svg"));
    assert_true(s->graph->steps >= 3 && s->graph->n_nodes == 3); /* of its first rank */
    assert_true(s->graph->nodes[1].time_ms > 0 && s->graph->nodes[1].calls >= 1 && s->graph->nodes[1].parameters == FEATURES);
    assert_non_null(trek_run_reader_series(r, "lr", false));
    assert_true(trek_run_reader_series(r, "gradient_norm", false)->points[0].value > 0);
    double share = 0;
    int64_t samples = 0;
    for (int k = 0; k < ranks; k++) {
        const trek_run_rank *rank = &s->ranks[k];
        char device[16];
        snprintf(device, sizeof device, "cpu:%d", k);
        assert_string_equal(rank->device, device);
        /* a rank alone is looked at in some of its steps, which may be none of a run of few milliseconds */
        double computing = sums_of(name).computing_s[k];
        if (!(rank->rank == k && rank->interval_s > 0 && (ranks > 1 ? computing > 0 : computing >= 0)))
            fail_msg("%d ranks: rank %d of place %d, last interval %g s, computing %g s", ranks, (int)rank->rank, k,
                     rank->interval_s, computing);
        share += rank->share;
        samples += rank->samples;
    }
    assert_true(fabs(share - 1) < 1e-9);
    assert_int_equal(samples, EPOCHS * ROWS);
    assert_true(s->processes[0].memory_bytes > 1e6);
    trek_run_reader_free(&r);
}

static void test_a_child_of_fork_makes_no_monitor(void **state)
{
    pid_t child = fork();
    if (child == 0) {
        trek_monitor *m = trek_monitor_new(&(trek_monitor_opts){ .folder = folder, .name = "forked" });
        _exit(!m && trek_error_status() == TREK_ERR_STATE && strstr(trek_error(), "fork") ? 7 : 8);
    }
    assert_int_equal(finish(child), 7 << 8);
}

static void test_one_rank(void **state) { (void)state; train_on(1); }
static void test_two_ranks(void **state) { (void)state; train_on(2); }
static void test_three_ranks(void **state) { (void)state; train_on(3); }

/* A loop of one's own: the trends' points. */
static void test_points_are_those_of_the_trends(void **state)
{
    trek_scope scope = trek_scope_begin();
    trek_graph *graph = line_build(trek_cpu(0), NULL);
    assert_int_equal(trek_graph_set_optimizer(graph, trek_sgd(&(trek_sgd_opts){ .lr = 0.01 })), TREK_OK);
    trek_monitor *m = watch("loop");
    assert_int_equal(trek_monitor_attach(m, graph), TREK_OK);
    trek_monitor *second = watch("other");
    FAILS(trek_monitor_attach(second, graph), TREK_ERR_STATE, "");
    trek_monitor_free(&second);
    for (int epoch = 0; epoch < 2; epoch++) {
        for (int k = 0; k < 3; k++) {
            trek_var *y = trek_graph_forward(graph, trek_var_from(test_values((double[]){ 1, 2, 3 }, trek_dims(1, 3), TREK_F64)));
            trek_var *loss = trek_mean(trek_square(y), trek_dims_all(), false);
            assert_int_equal(trek_graph_backward(graph, loss), TREK_OK);
            assert_int_equal(trek_graph_record(graph, "squares", trek_var_item(loss)), TREK_OK);
            assert_int_equal(trek_graph_step(graph), TREK_OK);
        }
        assert_int_equal(trek_graph_flush(graph), TREK_OK);
    }
    trek_run_reader *r = read_run("loop");
    const trek_run_series *x = trek_run_reader_series(r, "squares", true), *loss = trek_run_reader_series(r, "loss", false);
    const trek_trend *trend = trek_graph_trend(graph, "squares");
    assert_int_equal(x->count, 2);
    assert_true(x->points[0].value == trek_trend_value(trend, 0) && x->points[1].value == trek_trend_value(trend, 1));
    assert_int_equal(loss->count, 6);
    assert_true(fabs((loss->points[0].value + loss->points[1].value + loss->points[2].value) / 3 - x->points[0].value) < 1e-12);
    assert_int_equal(loss->points[5].step, 6);
    trek_run_reader_free(&r);
    assert_int_equal(trek_monitor_graph(m, graph), TREK_OK);
    const trek_epoch_scalar scalar = { "f1", 0.75, NULL };
    assert_int_equal(trek_monitor_epoch(m, &(trek_epoch_metrics){ .epoch = 7, .loss = 0.5, .evaluation_loss = 0.25, .lr = 1,
                                                                  .n_scalars = 1, .scalars = &scalar }), TREK_OK);
    r = read_run("loop");
    x = trek_run_reader_series(r, "f1", true);
    assert_true(x->points[0].value == 0.75 && x->points[0].epoch == 7);
    assert_true(trek_run_reader_series(r, "evaluation_loss", true)->points[0].value == 0.25);
    assert_non_null(trek_run_reader_state(r)->graph);
    trek_run_reader_free(&r);
    trek_graph_free(&graph); /* before its monitor */
    trek_monitor_free(&m);
    trek_scope_end(scope);
}

/* A loop of one's own with a loader of its own, mostly too short for a second look at the clock: its epochs, its last step, and
 * what is left to do. */
static void test_a_short_loop_is_told_whole(void **state)
{
    enum { EPOCHS_HERE = 5 };
    for (int own = 0; own < 2; own++) {
        trek_dataset *dataset = line_dataset(true);
        trek_graph *graph = line_build(trek_cpu(0), NULL);
        trek_loader *loader = trek_loader_new(dataset, &(trek_loader_opts){ .batch_size = BATCH });
        assert_int_equal(trek_graph_set_optimizer(graph, trek_sgd(&(trek_sgd_opts){ .lr = 0.01 })), TREK_OK);
        trek_monitor *m = trek_monitor_new(&(trek_monitor_opts){ .folder = folder, .name = own ? "own" : "graph's",
                                                                 .epochs = EPOCHS_HERE });
        assert_int_equal(trek_monitor_attach(m, graph), TREK_OK);
        if (!own)
            trek_graph_set_loader(graph, loader, "x");
        double last = 0;
        for (int epoch = 0; epoch < EPOCHS_HERE; epoch++) {
            assert_int_equal(own ? trek_loader_start(loader, epoch) : trek_graph_start(graph, epoch), TREK_OK);
            for (trek_batch *batch; (batch = own ? trek_loader_next(loader) : trek_graph_next(graph));) {
                trek_var *loss = line_squares(graph, trek_graph_forward(graph, trek_batch_get(batch, "x")), batch, NULL);
                assert_int_equal(trek_graph_backward(graph, loss), TREK_OK);
                assert_int_equal(trek_graph_step(graph), TREK_OK);
                last = trek_var_item(loss);
            }
            if (epoch == 1) {
                trek_run_reader *r = read_run(own ? "own" : "graph_s");
                const trek_run_state *s = trek_run_reader_state(r);
                int64_t told = s->epoch * BATCHES + s->batch; /* of the first step, or of a later one on a slow machine */
                assert_true(told >= 1 && told <= 2 * BATCHES && s->batches == BATCHES && s->eta_s > 0);
                trek_run_reader_free(&r);
            }
        }
        if (own)
            trek_loader_free(&loader); /* before all else */
        trek_graph_free(&graph);
        trek_loader_free(&loader);
        trek_monitor_free(&m);
        trek_run_reader *r = read_run(own ? "own" : "graph_s");
        const trek_run_state *s = trek_run_reader_state(r);
        const trek_run_series *loss = trek_run_reader_series(r, "loss", false);
        assert_int_equal(s->epoch, EPOCHS_HERE);
        assert_int_equal(s->batch, 0);
        assert_int_equal(s->step, EPOCHS_HERE * BATCHES);
        assert_int_equal(loss->points[loss->count - 1].step, EPOCHS_HERE * BATCHES);
        assert_true(loss->points[loss->count - 1].value == last);
        assert_int_equal(trek_run_reader_series(r, "lr", false)->points[loss->count - 1].step, EPOCHS_HERE * BATCHES);
        trek_run_reader_free(&r);
    }
}

static void test_a_failed_run_says_why(void **state)
{
    assert_int_equal(finish(start("fails", "fails")), 0);
    trek_run_reader *r = read_run("fails");
    assert_int_equal(trek_run_reader_state(r)->status, TREK_RUN_FAILED);
    assert_non_null(strstr(trek_run_reader_state(r)->error, "no loss today"));
    trek_run_reader_free(&r);
}

static void test_a_killed_process_has_died_and_its_file_is_there(void **state)
{
    char path[200];
    pid_t child = start("forever", "killed");
    snprintf(path, sizeof path, "%s/killed", folder);
    trek_run_reader *r = trek_run_reader_new(path, NULL);
    const trek_run_series *x = NULL;
    for (double since = 0; !(x && x->count >= 2) && test_wait(&since); x = trek_run_reader_series(r, "loss", false))
        assert_int_equal(trek_run_reader_poll(r, NULL), TREK_OK);
    assert_true(x && x->count >= 2);
    assert_int_equal(trek_run_reader_state(r)->status, TREK_RUN_RUNNING);
    kill(child, SIGKILL);
    finish(child);
    assert_int_equal(trek_run_reader_catch_up(r), TREK_OK);
    assert_int_equal(trek_run_reader_state(r)->status, TREK_RUN_DIED);
    trek_run_reader_free(&r);
}

/* --- files that cannot be written ---------------------------------------------------------------- */

static atomic_int warnings;
static void count_warnings(trek_log_level level, const char *message, void *arg)
{
    warnings += level == TREK_LOG_LEVEL_WARNING && strstr(message, "training continues") != NULL;
}

/* Files of this process do not grow beyond so many bytes, as on a disk without room; 0: as they were. */
static void let_files_grow_to(rlim_t bytes)
{
    static struct rlimit before;
    if (bytes)
        getrlimit(RLIMIT_FSIZE, &before);
    struct rlimit limit = before;
    limit.rlim_cur = bytes ? bytes : before.rlim_cur;
    signal(SIGXFSZ, bytes ? SIG_IGN : SIG_DFL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void train_beside(trek_monitor *m)
{
    trek_epoch_metrics metrics;
    double losses[EPOCHS];
    assert_non_null(m);
    for (int k = 0; k < 5; k++)
        assert_int_equal(trek_monitor_scalar(m, "x", k, k), TREK_OK);
    assert_int_equal(train(1, &metrics, losses), TREK_OK);
    trek_monitor_free(&m);
}

static void test_what_cannot_be_written_is_one_warning(void **state)
{
    char path[200];
    trek_log_set(TREK_LOG_LEVEL_WARNING, count_warnings, NULL);
    warnings = 0;
    train_beside(trek_monitor_new(&(trek_monitor_opts){ .folder = "/proc/nowhere", .name = "a" }));
    assert_int_equal(warnings, 1);
    let_files_grow_to(300);
    train_beside(trek_monitor_new(&(trek_monitor_opts){ .folder = folder, .name = "full" }));
    let_files_grow_to(0);
    assert_int_equal(warnings, 2);
    trek_monitor *m = watch("gone");
    snprintf(path, sizeof path, "%s/gone", folder);
    assert_int_equal(test_remove(path), 0);
    train_beside(m);
    assert_int_equal(warnings, 3);
    trek_log_set(TREK_LOG_LEVEL_WARNING, NULL, NULL);
}

typedef struct writers {
    trek_monitor *m;
    pthread_barrier_t ready;
} writers;

static void *write_with_others(void *arg)
{
    writers *w = arg;
    pthread_barrier_wait(&w->ready);
    trek_monitor_scalar(w->m, "x", 0, 1);
    return NULL;
}

/* The thread that trains and the one that samples find it out at the same time. */
static void test_threads_warn_once(void **state)
{
    enum { THREADS = 4, ROUNDS = 200 };
    pthread_t threads[THREADS];
    writers w;
    trek_log_set(TREK_LOG_LEVEL_WARNING, count_warnings, NULL);
    pthread_barrier_init(&w.ready, NULL, THREADS);
    for (int round = 0; round < ROUNDS; round++) {
        warnings = 0;
        w.m = watch("crowded");
        let_files_grow_to(1);
        for (int k = 0; k < THREADS; k++)
            assert_int_equal(pthread_create(&threads[k], NULL, write_with_others, &w), 0);
        for (int k = 0; k < THREADS; k++)
            pthread_join(threads[k], NULL);
        let_files_grow_to(0);
        trek_monitor_free(&w.m);
        assert_int_equal(warnings, 1);
    }
    pthread_barrier_destroy(&w.ready);
    trek_log_set(TREK_LOG_LEVEL_WARNING, NULL, NULL);
}

/* A link of somebody else in the folder leads to no file of ours, nor does a pipe make a run wait. */
static void test_links_are_not_written_through(void **state)
{
    char path[200], victim[200];
    struct stat about;
    trek_log_set(TREK_LOG_LEVEL_WARNING, count_warnings, NULL);
    warnings = 0;
    snprintf(path, sizeof path, "%s/linked", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(victim, sizeof victim, "%s/victim", folder);
    close(open(victim, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    snprintf(path, sizeof path, "%s/linked/process-0.jsonl", folder);
    assert_int_equal(symlink(victim, path), 0);
    trek_monitor *m = watch("linked");
    assert_int_equal(trek_monitor_scalar(m, "x", 0, 1), TREK_OK);
    snprintf(path, sizeof path, "%s/linked/events", folder);
    assert_int_equal(symlink(victim, path), 0);
    snprintf(path, sizeof path, "%s/linked/pipe", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(trek_monitor_open_file(m, "events", O_WRONLY), -1);
    assert_int_equal(trek_monitor_open_file(m, "pipe", O_RDWR), -1);
    trek_monitor_free(&m);
    trek_log_set(TREK_LOG_LEVEL_WARNING, NULL, NULL);
    assert_int_equal(warnings, 1);
    assert_int_equal(stat(victim, &about), 0);
    assert_int_equal(about.st_size, 0);
}

/* Whoever has started them, and without a name that somebody gives. */
static void test_processes_of_a_job_have_one_folder(void **state)
{
    static const struct {
        const char *rank, *others, *name; /* name: what it ends with */
    } jobs[] = { { "SLURM_PROCID", "SLURM_STEP_NUM_TASKS=3 SLURM_STEP_ID=2 SLURM_JOB_ID=4711 SLURM_STEP_NODELIST=a,b",
                   "-job-4711.2" },
                 { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE=3 OMPI_MCA_ess_base_jobid=99 MASTER_ADDR=a", "-job-99" },
                 { "RANK", "WORLD_SIZE=3 LOCAL_WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT=29500 TORCHELASTIC_RUN_ID=mine",
                   "-job-mine.29500" },
                 { "TREK_RANK", "TREK_WORLD_SIZE=3 TREK_ADDRESS=10.0.0.1 TREK_PORT=29500", "-job-10.0.0.1.29500" } };
    for (size_t k = 0; k < sizeof jobs / sizeof *jobs; k++) {
        char others[300], *rest = others, *one, path[200] = "", number[4];
        snprintf(others, sizeof others, "%s", jobs[k].others);
        while ((one = strsep(&rest, " "))) {
            char *equals = strchr(one, '=');
            *equals = '\0';
            setenv(one, equals + 1, 1);
        }
        for (int process = 0; process < 3; process++) {
            snprintf(number, sizeof number, "%d", process);
            setenv(jobs[k].rank, number, 1);
            trek_monitor *m = trek_monitor_new(&(trek_monitor_opts){ .folder = folder });
            assert_non_null(m);
            if (process == 0)
                snprintf(path, sizeof path, "%s", trek_monitor_path(m));
            assert_string_equal(trek_monitor_path(m), path);
            trek_monitor_free(&m);
        }
        assert_string_equal(path + strlen(path) - strlen(jobs[k].name), jobs[k].name);
        trek_run_reader *r = trek_run_reader_new(path, NULL);
        assert_int_equal(trek_run_reader_catch_up(r), TREK_OK);
        assert_int_equal(trek_run_reader_state(r)->n_processes, 3);
        trek_run_reader_free(&r);
        unsetenv(jobs[k].rank);
        snprintf(others, sizeof others, "%s", jobs[k].others);
        for (rest = others; (one = strsep(&rest, " "));) {
            *strchr(one, '=') = '\0';
            unsetenv(one);
        }
    }
}

static void test_a_torn_line_is_left_behind(void **state)
{
    char path[200];
    trek_monitor *m = watch("torn");
    trek_monitor_free(&m);
    snprintf(path, sizeof path, "%s/torn/process-0.jsonl", folder);
    FILE *file = fopen(path, "a");
    fputs("{\"kind\":\"scal", file);
    fclose(file);
    m = watch("torn");
    assert_int_equal(trek_monitor_scalar(m, "after", 1, 2), TREK_OK);
    trek_monitor_free(&m);
    snprintf(path, sizeof path, "%s/torn", folder);
    trek_run_reader *r = trek_run_reader_new(path, NULL);
    assert_int_equal(trek_run_reader_catch_up(r), TREK_OK);
    assert_int_equal(trek_run_reader_state(r)->bad_lines, 1);
    assert_int_equal(trek_run_reader_series(r, "after", false)->count, 1);
    trek_run_reader_free(&r);
}

static void test_histograms_come_when_they_are_wanted(void **state)
{
    char path[200];
    pid_t child = start("forever", "wish");
    snprintf(path, sizeof path, "%s/wish", folder);
    trek_run_reader *r = trek_run_reader_new(path, NULL);
    for (double since = 0; trek_run_reader_state(r)->step < 1 && test_wait(&since);)
        assert_int_equal(trek_run_reader_poll(r, NULL), TREK_OK);
    assert_int_equal(trek_run_reader_state(r)->n_histograms, 0);
    snprintf(path, sizeof path, "%s/wish/want-histograms", folder);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    for (double since = 0; trek_run_reader_state(r)->n_histograms < 2 && test_wait(&since);)
        assert_int_equal(trek_run_reader_poll(r, NULL), TREK_OK);
    assert_int_equal(trek_run_reader_state(r)->n_histograms, 2);
    assert_string_equal(trek_run_reader_state(r)->histograms[1].of, "gradient");
    assert_int_not_equal(access(path, F_OK), 0);
    kill(child, SIGKILL);
    finish(child);
    trek_run_reader_free(&r);
}

/* --- lanes ---------------------------------------------------------------------------------------- */

static void span_of_ms(const char *name, int64_t start_ms, int64_t end_ms)
{
    atomic_load(&trek_trace_watcher)->leave(name, start_ms * 1000000, end_ms * 1000000);
}

/* A span's time is without what is inside it; names stand for what a rank does. */
static void test_lanes_count_each_time_once(void **state)
{
    trek_monitor *m = watch("lanes");
    trek_monitor_lane before = trek_monitor_lane_read(0);
    span_of_ms("loader wait", 1, 3);
    span_of_ms("forward", 3, 10);
    trek_trace_samples(32);
    span_of_ms("bucket", 12, 15);
    span_of_ms("bucket", 16, 17);
    span_of_ms("backward", 10, 30);
    span_of_ms("reduce", 30, 35);
    span_of_ms("something else", 35, 99);
    trek_monitor_lane after = trek_monitor_lane_read(0);
    assert_int_equal(after.computing_ns - before.computing_ns, (7 + 20 - 4) * 1000000);
    assert_int_equal(after.waiting_ns - before.waiting_ns, 2 * 1000000);
    assert_int_equal(after.reducing_ns - before.reducing_ns, (3 + 1 + 5) * 1000000);
    assert_int_equal(after.samples - before.samples, 32);
    trek_monitor_free(&m);
}

/* A step that is looked at stands for the time since the rest began; samples count all the while. */
static void test_a_step_stands_for_those_before(void **state)
{
    trek_monitor *m = watch("rest");
    trek_monitor_lane before = trek_monitor_lane_read(0);
    trek_monitor_lanes_rest(1 * 1000000);
    assert_int_equal(trek_trace_enter("forward"), 0);
    trek_trace_samples(3);
    trek_monitor_lanes_sample(11 * 1000000);
    assert_true(trek_trace_enter("forward") > 0);
    trek_trace_samples(4);
    span_of_ms("forward", 101, 103);
    span_of_ms("reduce", 103, 104);
    trek_monitor_lanes_sampled(15 * 1000000); /* 4 ms were looked at, 10 ms were not */
    trek_monitor_lane after = trek_monitor_lane_read(0);
    assert_int_equal(after.computing_ns - before.computing_ns, (2 + 5) * 1000000);
    assert_int_equal(after.reducing_ns - before.reducing_ns, 1000000 + 2500000);
    assert_int_equal(after.samples - before.samples, 7);
    trek_monitor_lanes_rest(20 * 1000000);
    trek_monitor_lanes_wake(); /* no step came: what is seen stands for itself */
    span_of_ms("forward", 121, 122);
    trek_monitor_lanes_sample(130 * 1000000);
    span_of_ms("forward", 131, 132);
    trek_monitor_lanes_sampled(140 * 1000000);
    assert_int_equal(trek_monitor_lane_read(0).computing_ns - after.computing_ns, 2 * 1000000);
    trek_monitor_free(&m);
}

/* Steps that are far shorter than the time between two looks at the clock: samples, steps and each point are exact. */
static void test_short_steps_are_counted_exactly(void **state)
{
    enum { STEPS = 20000, ROWS_OF_STEP = 2 };
    double *losses = calloc(STEPS + 1, sizeof *losses);
    trek_scope scope = trek_scope_begin();
    trek_graph *graph = line_build(trek_cpu(0), NULL);
    assert_int_equal(trek_graph_set_optimizer(graph, trek_sgd(&(trek_sgd_opts){ .lr = 1e-4 })), TREK_OK);
    trek_var *x = trek_var_from(test_values((double[]){ 1, 2, 3, 4, 5, 6 }, trek_dims(ROWS_OF_STEP, 3), TREK_F64));
    trek_monitor *m = trek_monitor_new(&(trek_monitor_opts){ .folder = folder, .name = "short", .interval_s = 0.01 });
    assert_non_null(m);
    trek_monitor_lane before = trek_monitor_lane_read(0);
    assert_int_equal(trek_monitor_attach(m, graph), TREK_OK);
    int passed = 0;
    for (int k = 1; k <= STEPS; k++) {
        trek_scope inner = trek_scope_begin();
        trek_var *loss = trek_mean(trek_square(trek_graph_forward(graph, x)), trek_dims_all(), false);
        losses[k] = trek_var_item(loss);
        passed += m->left > 1;
        assert_int_equal(trek_graph_backward(graph, loss), TREK_OK);
        assert_int_equal(trek_graph_step(graph), TREK_OK);
        trek_scope_end(inner);
    }
    assert_true(passed > 0 || test_short()); /* under sanitizers no step may be that short */
    assert_int_equal(trek_monitor_scalar(m, "last", -1, 1), TREK_OK);
    trek_monitor_free(&m);
    trek_run_reader *r = read_run("short");
    const trek_run_series *points = trek_run_reader_series(r, "loss", false);
    assert_true(points->count > 1);
    for (int k = 0; k < points->count; k++)
        assert_true(points->points[k].value == losses[points->points[k].step]);
    const trek_run_rank *rank = &trek_run_reader_state(r)->ranks[0];
    assert_int_equal(rank->samples - before.samples, STEPS * ROWS_OF_STEP);
    assert_int_equal(rank->steps, STEPS);
    assert_true(trek_monitor_lane_read(0).computing_ns > before.computing_ns);
    assert_int_equal(trek_run_reader_series(r, "last", false)->points[0].step, STEPS);
    trek_run_reader_free(&r);
    trek_graph_free(&graph);
    trek_scope_end(scope);
    free(losses);
}

/* --- the processes that are watched --------------------------------------------------------------- */

static trek_var *no_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    trek_fail(TREK_ERR_CALLBACK, "no loss today");
    return NULL;
}

static int play(const char *role)
{
    trek_epoch_metrics metrics;
    double losses[EPOCHS];
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL);
    if (strcmp(role, "fails") == 0 || strcmp(role, "forever") == 0) {
        bool fails = *role == 'f' && role[1] == 'a';
        trek_dataset *dataset = line_dataset(true);
        trek_run *run = trek_trainer_run(
            &(trek_run_opts){ .build_model = line_build, .train_step = fails ? no_loss : line_squares, .dataset = dataset,
                              .input = "x",
                              .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.01 }), .batch_size = 6, .shuffle = true,
                              .epochs = 1000000000 });
        trek_state *state = trek_run_join(run);
        trek_state_free(&state);
        trek_dataset_free(&dataset);
        trek_error_clear();
        return 0;
    }
    char path[300];
    snprintf(path, sizeof path, "%s/%s.losses", getenv("TREK_LOG_DIR"), getenv("TREK_RUN_NAME"));
    FILE *file = fopen(path, "w");
    if (!file || train(atoi(role), &metrics, losses) != TREK_OK)
        return 1;
    for (int k = 0; k < EPOCHS; k++)
        fprintf(file, "%a\n", losses[k]);
    return fclose(file);
}

int main(int argc, char **argv)
{
    program = argv[0];
    if (argc == 3 && strcmp(argv[1], "--play") == 0)
        return play(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_values_come_back_to_the_bit, begin, end),
        cmocka_unit_test_setup_teardown(test_histograms_count_every_value, begin, end),
        cmocka_unit_test_setup_teardown(test_lanes_count_each_time_once, begin, end),
        cmocka_unit_test_setup_teardown(test_a_step_stands_for_those_before, begin, end),
        cmocka_unit_test_setup_teardown(test_short_steps_are_counted_exactly, begin, end),
        cmocka_unit_test_setup_teardown(test_mistakes_are_told, begin, end),
        cmocka_unit_test_setup_teardown(test_threads_write_whole_lines, begin, end),
        cmocka_unit_test_setup_teardown(test_a_child_of_fork_makes_no_monitor, begin, end),
        cmocka_unit_test_setup_teardown(test_one_rank, begin, end), cmocka_unit_test_setup_teardown(test_two_ranks, begin, end),
        cmocka_unit_test_setup_teardown(test_three_ranks, begin, end),
        cmocka_unit_test_setup_teardown(test_points_are_those_of_the_trends, begin, end),
        cmocka_unit_test_setup_teardown(test_a_short_loop_is_told_whole, begin, end),
        cmocka_unit_test_setup_teardown(test_a_failed_run_says_why, begin, end),
        cmocka_unit_test_setup_teardown(test_a_killed_process_has_died_and_its_file_is_there, begin, end),
        cmocka_unit_test_setup_teardown(test_what_cannot_be_written_is_one_warning, begin, end),
        cmocka_unit_test_setup_teardown(test_threads_warn_once, begin, end),
        cmocka_unit_test_setup_teardown(test_links_are_not_written_through, begin, end),
        cmocka_unit_test_setup_teardown(test_processes_of_a_job_have_one_folder, begin, end),
        cmocka_unit_test_setup_teardown(test_a_torn_line_is_left_behind, begin, end),
        cmocka_unit_test_setup_teardown(test_histograms_come_when_they_are_wanted, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
