/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of several processes that lose some of them: whoever dies at whatever moment, the others see every sample once, and end
 * with the bits of a run that was resumed on so many ranks at that step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "distributed/checkpoint.h"
#include "distributed/comm/gloo/gloo.h"
#include "distributed/run.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "tensor/trace.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/training.h"

enum { EPOCHS = 5, BATCH = 16, STEPS = (SAMPLES + BATCH - 1) / BATCH };

/* TREK_TEST_ENGINE in the environment of the whole program, by default shared memory. */
static const char *engine_name(void)
{
    const char *name = getenv("TREK_TEST_ENGINE");
    return name && *name ? name : "shared";
}

/* --- what is trained --------------------------------------------------------------------------------------- */

static bool plain; /* without batch norm, whose ranks see their own parts: those of two processes of two are not those of four */

static void enter(const char *name);

static trek_graph *build(trek_device device, void *arg)
{
    (void)arg;
    enter("build");
    trek_linear_opts first = { .in = IN, .out = HIDDEN, .device = device, .dtype = TREK_F64 };
    trek_linear_opts last = { .in = HIDDEN, .out = 1, .device = device, .dtype = TREK_F64 };
    trek_batch_norm_opts norm = { .features = HIDDEN, .device = device, .dtype = TREK_F64 };
    trek_flow *flow = trek_flow_from(trek_nn_linear_with(&first));
    if (!plain)
        trek_flow_through(flow, trek_nn_batch_norm1d_with(&norm));
    trek_flow_through(flow, trek_nn_dropout(0.3));
    trek_flow_through(flow, trek_nn_linear_with(&last));
    return trek_flow_build(flow);
}

static trek_var *loss_of(trek_var *output, const trek_batch *batch)
{
    trek_var *error = trek_sub(output, trek_batch_get(batch, "target"));
    return trek_mean(trek_mul(error, error), trek_dims_none(), false);
}

static double number_of_state(trek_state *state)
{
    double number = 0;
    for (int k = 0; k < trek_state_count(state); k++) {
        double *values = test_read(trek_state_tensor(state, k));
        for (int64_t i = 0; i < trek_tensor_numel(trek_state_tensor(state, k)); i++)
            number = number * 1.01 + values[i];
        free(values);
    }
    return number;
}

/* --- a process ------------------------------------------------------------------------------------------------ */

static const part *mine;
static trek_graph *first; /* rank 0's, which counts steps */

/* "at=reduce:3": whether it is that word's turn for the third time. Spaces are "_". */
static bool is_due(const char *name)
{
    static atomic_int times;
    char word[64];
    snprintf(word, sizeof word, "at=%s:", name);
    for (char *c = word; *c; c++)
        *c = *c == ' ' ? '_' : *c;
    const char *at = mine ? strstr(mine->detail, word) : NULL;
    return at && atomic_fetch_add(&times, 1) == atoi(at + strlen(word));
}

static void die(void) { kill(getpid(), SIGKILL); }

static void enter(const char *name)
{
    if (is_due(name))
        die();
}

static void span(const char *name, int rank, int64_t start, int64_t end, int64_t detail, void *arg)
{
    (void)name, (void)rank, (void)start, (void)end, (void)detail, (void)arg;
}

static void event(const char *name, int rank, int64_t at, double value, void *arg)
{
    (void)name, (void)rank, (void)at, (void)value, (void)arg;
}

static trek_var *train_step(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    (void)graph, (void)arg;
    if (mine) {
        char line[512];
        size_t used = (size_t)snprintf(line, sizeof line, "saw %lld %d", (long long)trek_graph_steps(first),
                                       trek_graph_world_size(first));
        for (int64_t k = 0; k < trek_batch_size(batch); k++)
            used += (size_t)snprintf(line + used, sizeof line - used, " %lld", (long long)trek_batch_indices(batch)[k]);
        printf("%s.\n", line);
        if (strstr(mine->detail, "bad-loss") && trek_graph_steps(first) == 5)
            return NULL;
        enter("loss");
    }
    trek_record_sum("count", (double)trek_batch_size(batch));
    return loss_of(output, batch);
}

static trek_var *evaluate(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    (void)graph, (void)arg;
    enter("evaluation");
    return loss_of(output, batch);
}

static trek_status on_epoch(trek_graph *graph, int64_t epoch, void *arg)
{
    (void)arg, (void)epoch;
    first = graph;
    enter("epoch");
    return TREK_OK;
}

static trek_status on_metrics(const trek_epoch_metrics *metrics, void *arg)
{
    (void)arg, (void)metrics;
    enter("metrics");
    return TREK_OK;
}

static trek_status on_checkpoint(trek_graph *graph, int64_t epoch, const char *path, void *arg)
{
    (void)graph, (void)epoch, (void)path, (void)arg;
    enter("checkpoint");
    return TREK_OK;
}

static void *die_later(void *arg)
{
    (void)arg;
    long us = atol(strstr(mine->detail, "us=") + 3);
    nanosleep(&(struct timespec){ us / 1000000, us % 1000000 * 1000 }, NULL);
    die();
    return NULL;
}

/* Those that stay as long as the process: Gloo's, beside those that it has left connecting to who has died, until it gives up;
 * and the thread sanitizer's. */
static int threads_of_others(void)
{
    int n = strcmp(engine_name(), "gloo") == 0 ? 1 + 3 : 0;
#ifdef __SANITIZE_THREAD__
    n++;
#endif
    return n;
}

static int count_in(const char *folder)
{
    DIR *list = opendir(folder);
    int n = 0;
    while (list && readdir(list))
        n++;
    closedir(list);
    return n;
}

static trek_run_opts opts_of(const part *me, trek_dataset *data)
{
    trek_run_opts o = { .build_model = build, .train_step = train_step, .dataset = data, .evaluation = data,
                        .evaluate = evaluate, .input = "x", .optimizer = training_adam(), .batch_size = BATCH,
                        .epochs = EPOCHS, .seed = 5, .on_epoch = on_epoch, .on_metrics = on_metrics };
    const char *least = strstr(me->detail, "least="), *folder = strstr(me->detail, "save=");
    o.min_processes = least ? atoi(least + 6) : 1;
    o.trainer.ranks = strstr(me->detail, "two") ? 2 : 1;
    if (strstr(me->detail, "average"))
        o.trainer.average = TREK_AVERAGE_PARAMETERS;
    if (strstr(me->detail, "cadence")) {
        o.policy = TREK_POLICY_CADENCE;
        o.batch_size = 4;
        o.trainer.anchor = o.trainer.max_anchor = 2;
    }
    if (folder) {
        o.checkpoint_folder = folder + 5; /* the last word */
        o.on_checkpoint = on_checkpoint;
    }
    return o;
}

/* As a launcher says it. */
static void set_environment(const part *me)
{
    char number[3][16];
    snprintf(number[0], sizeof number[0], "%d", me->process);
    snprintf(number[1], sizeof number[1], "%d", me->processes);
    snprintf(number[2], sizeof number[2], "%d", me->port);
    setenv("TREK_RANK", number[0], 1);
    setenv("TREK_WORLD_SIZE", number[1], 1);
    setenv("TREK_PORT", number[2], 1);
    setenv("TREK_TOKEN", "sesame", 1);
}

static int play(const part *me)
{
    static const trek_trace_sink sink = { .span = span, .event = event, .enter = enter };
    mine = me;
    plain = strstr(me->detail, "two") || strstr(me->detail, "cadence");
    int threads = count_in("/proc/self/task") + threads_of_others();
    pthread_t killer;
    bool by_environment = strstr(me->detail, "env") != NULL;
    if (by_environment)
        set_environment(me);
    trek_comm *comm = by_environment ? NULL : trek_comm_init(&(trek_comm_opts){ .engine = engine_name(), .rank = me->process,
                                                        .world_size = me->processes, .address = me->address, .port = me->port,
                                                        .token = "sesame", .deadline_s = 15 });
    trek_dataset *data = training_dataset();
    trek_run_opts o = opts_of(me, data);
    o.trainer.comm = comm;
    atomic_store(&trek_trace, &sink);
    if (strstr(me->detail, "us=") && pthread_create(&killer, NULL, die_later, NULL) == 0)
        pthread_detach(killer);
    trek_run *run = comm || by_environment ? trek_trainer_run(&o) : NULL;
    trek_epoch_metrics m;
    int epochs = 0;
    while (run && trek_run_next(run, &m)) {
        printf("epoch %d ranks %d steps %d samples %d count %g loss %g evaluation %.9g\n", (int)m.epoch, m.ranks, (int)m.steps,
               (int)m.samples, trek_metrics_get(&m, "count"), m.loss, m.evaluation_loss);
        epochs++;
    }
    trek_state *final = run ? trek_run_join(run) : NULL;
    if (final)
        printf("final %d epochs number %.17g\n", epochs, number_of_state(final));
    else
        printf("%s: %s\n", trek_status_name(trek_error_status()), trek_error());
    trek_error_clear();
    trek_state_free(&final);
    trek_dataset_free(&data);
    trek_comm_free(&comm);
    atomic_store(&trek_trace, NULL);
    for (int k = 0; k < 500 && count_in("/proc/self/task") > threads;
         k++) /* the system takes its time with one that has ended */
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    if (count_in("/proc/self/task") > threads && !strstr(me->detail, "us="))
        printf("threads are left\n");
    return epochs == EPOCHS ? 0 : 1;
}

/* --- what is expected ----------------------------------------------------------------------------------------------- */

/* How the ranks of a job went: `ranks[s]` made step s, and its samples. */
typedef struct history {
    int ranks[EPOCHS * STEPS];
    int seen[EPOCHS * STEPS][SAMPLES];
} history;

/* One line of a process, of a step that so many ranks tried. */
static void take_line(history *h, const char *line)
{
    int step, ranks, used;
    if (sscanf(line, "saw %d %d%n", &step, &ranks, &used) != 2 || step < 0 || step >= EPOCHS * STEPS)
        return;
    if (h->ranks[step] == 0 || ranks < h->ranks[step]) { /* what more had tried was dropped */
        h->ranks[step] = ranks;
        memset(h->seen[step], 0, sizeof h->seen[step]);
    }
    if (ranks != h->ranks[step])
        return;
    for (const char *at = line + used; *at == ' ';) {
        char *end;
        long sample = strtol(at, &end, 10);
        if (sample >= 0 && sample < SAMPLES)
            h->seen[step][sample]++;
        at = end;
    }
}

static history read_history(const world *w)
{
    history h = { { 0 }, { { 0 } } };
    for (int p = 0; p < w->n; p++)
        for (const char *at = w->text[p]; (at = strstr(at, "saw ")); at += 4) {
            const char *end = strchr(at, '\n');
            if (end && end[-1] == '.') /* it was written whole */
                take_line(&h, at);
        }
    return h;
}

static bool all_seen_once(const history *h)
{
    bool good = true;
    for (int e = 0; e < EPOCHS; e++)
        for (int i = 0; i < SAMPLES; i++) {
            int times = 0;
            for (int s = e * STEPS; s < (e + 1) * STEPS; s++)
                times += h->seen[s][i];
            if (times != 1 && good)
                fprintf(stderr, "sample %d was seen %d times in epoch %d\n", i, times, e);
            good = good && times == 1;
        }
    return good;
}

static trek_graph *set_up(int ranks, trek_loader *loader, bool averages)
{
    trek_seed(5);
    trek_graph *graph = build(trek_cpu(0), NULL);
    assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){
        .build_replica = build, .ranks = ranks, .optimizer = training_adam(), .max_anchor = TREK_OFF,
        .average = averages ? TREK_AVERAGE_PARAMETERS : TREK_AVERAGE_GRADIENTS }), TREK_OK);
    trek_graph_set_loader(graph, loader, "x");
    trek_graph_set_loss(graph, train_step, NULL);
    trek_graph_train(graph, true);
    return graph;
}

/* One process with as many ranks as there were processes, which saves and is resumed on fewer where they became fewer. */
static double number_of(const history *h, bool averages)
{
    char path[] = "/tmp/trek-elastic-XXXXXX";
    trek_dataset *data = training_dataset();
    int file = mkstemp(path), ranks = h->ranks[0];
    trek_loader *loader = trek_loader_new(trek_dataset_retain(data), &(trek_loader_opts){ .batch_size = BATCH, .shuffle = true,
                                                                                         .seed = 5, .host = true });
    trek_graph *graph = set_up(ranks, loader, averages);
    for (int step = 0; step < EPOCHS * STEPS; step++) {
        if (step % STEPS == 0)
            trek_graph_start(graph, step / STEPS);
        if (h->ranks[step] != ranks) {
            ranks = h->ranks[step];
            assert_int_equal(trek_checkpoint_save(graph, loader, path), TREK_OK);
            trek_graph_free(&graph);
            graph = set_up(ranks, loader, averages);
            assert_int_equal(trek_checkpoint_load(graph, loader, path), TREK_OK);
        }
        trek_batch *batch = trek_graph_next(graph);
        assert_non_null(batch);
        assert_non_null(trek_graph_train_batch(graph, batch));
        assert_int_equal(trek_graph_step(graph), TREK_OK);
    }
    trek_state *state = trek_state_of(trek_graph_module(graph));
    double number = number_of_state(state);
    trek_state_free(&state);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    trek_dataset_free(&data);
    close(file);
    unlink(path);
    return number;
}

static bool has_died(const world *w, int p) { return w->code[p] == -SIGKILL && !strstr(w->text[p], "final "); }

/* details[p] NULL: nothing happens to it. */
static void run_world(world *w, int n, const char *const *details)
{
    processes_init(w, n);
    for (int p = 0; p < n; p++)
        processes_start(w, p, "elastic", details[p] ? details[p] : "-");
    processes_finish(w, 50, -1);
}

static bool is_good(const world *w, int left, double within, bool averages)
{
    history h = read_history(w);
    bool good = all_seen_once(&h);
    double number = good ? number_of(&h, averages) : NAN;
    int lived = 0;
    for (int p = 0; p < w->n; p++) {
        const char *final = strstr(w->text[p], "final 5 epochs number ");
        if (has_died(w, p))
            continue;
        lived++;
        double got = final ? strtod(final + strlen("final 5 epochs number "), NULL) : NAN;
        bool same = plain ? fabs(got - number) < 1e-9 : got == number;
        if (!same)
            fprintf(stderr, "process %d has %.17g instead of %.17g\n", p, got, number);
        good = good && final && same && (w->code[p] == 0 || w->code[p] == -SIGKILL) && w->seconds[p] <= within &&
               !strstr(w->text[p], "are left\n");
    }
    if (!good || lived != left)
        fprintf(stderr, "%d of %d processes were to be left, %d are\n", left, w->n, lived);
    return good && lived == left;
}

static void assert_good(const world *w, int left, double within)
{
    bool good = is_good(w, left, within, false);
    if (!good)
        processes_print(w);
    assert_true(good);
}

/* --- the tests --------------------------------------------------------------------------------------------------------- */

/* Nobody dies. */
static void test_none(void **state)
{
    (void)state;
    static world w;
    static const char *const details[PROCESSES] = { NULL };
    run_world(&w, 3, details);
    assert_good(&w, 3, 20);
}

/* Each in each phase. */
static void test_one(void **state)
{
    (void)state;
    static world w;
    static const char *const moments[] = { "at=epoch:0", "at=loss:0", "at=loss:10", "at=forward:9", "at=backward:6", "at=sync:8",
                                           "at=reduce:7", "at=reduce_processes:11", "at=buffers:12", "at=optimizer:5",
                                           "at=optimizer:7", "at=loader_wait:13", "at=evaluation:2", "at=metrics:0",
                                           "at=metrics:2", "at=epoch:1", "at=loss:15" };
    for (size_t k = 0; k < sizeof moments / sizeof *moments; k++)
        for (int victim = 0; victim < 3; victim += k % 2 ? 2 : 1) {
            const char *details[PROCESSES] = { NULL };
            details[victim] = moments[k];
            run_world(&w, 3, details);
            if (!has_died(&w, victim))
                fprintf(stderr, "%s: process %d has not died\n", moments[k], victim);
            assert_good(&w, 2, 20);
        }
}

static void test_saving(void **state)
{
    (void)state;
    static world w;
    char folder[] = "/tmp/trek-elastic-XXXXXX", detail[96], victim[96];
    assert_non_null(mkdtemp(folder));
    snprintf(detail, sizeof detail, "save=%s", folder);
    for (int k = 0; k < 2; k++) {
        const char *details[PROCESSES] = { victim, detail, detail };
        snprintf(victim, sizeof victim, "at=checkpoint:%d,save=%s", k, folder);
        run_world(&w, 3, details);
        assert_good(&w, 2, 20);
    }
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void test_several(void **state)
{
    (void)state;
    static world w;
    static const struct { const char *details[4]; int left; } rows[] = {
        { { "at=loss:5", NULL, "at=loss:5", NULL }, 2 },              { { NULL, "at=backward:5", "at=reduce:5", NULL }, 2 },
        { { "at=loss:3", "at=loss:9", NULL, NULL }, 2 },              { { NULL, NULL, "at=optimizer:4", "at=sync:14" }, 2 },
        { { "at=loss:5", "at=build:1", NULL, NULL }, 2 },             { { "at=build:1", NULL, "at=loss:5", NULL }, 2 },
        { { "at=build:1", "at=build:1", NULL, "at=loss:5" }, 1 },     { { NULL, "at=epoch:2", "at=buffers:1", NULL }, 2 },
        { { "at=epoch:1", "at=metrics:1", "at=loss:17", NULL }, 1 },  { { "at=loss:2", "at=loss:2", "at=loss:2", NULL }, 1 },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        run_world(&w, 4, rows[k].details);
        assert_good(&w, rows[k].left, 25);
    }
}

/* Two ranks in each process: to rounding, as the ranks of one process. */
static void test_ranks(void **state)
{
    (void)state;
    plain = true;
    static world w;
    static const char *const details[] = { "two", "two,at=reduce:9", "two" }, *const none[] = { "two", "two", "two" };
    run_world(&w, 3, none);
    assert_good(&w, 3, 20);
    run_world(&w, 3, details);
    assert_good(&w, 2, 20);
    plain = false;
}

/* The run finds its processes itself. */
static void test_environment(void **state)
{
    (void)state;
    static world w;
    static const char *const details[] = { "env,at=loss:3", "env", "env" };
    run_world(&w, 3, details);
    assert_good(&w, 2, 20);
}

/* Windows: the samples of a window that was not complete are trained on by the others. */
static void test_windows(void **state)
{
    (void)state;
    static world w;
    for (int victim = 0; victim < 3; victim++) {
        const char *details[PROCESSES] = { "cadence", "cadence", "cadence" };
        details[victim] = victim == 1 ? "cadence,at=loss:8" : "cadence,at=reduce:3";
        double number = NAN;
        run_world(&w, 3, details);
        for (int p = 0; p < 3; p++) {
            const char *final = strstr(w.text[p], "final 5 epochs number "), *last = strstr(w.text[p], "epoch 4 ranks 2 ");
            if (p == victim)
                continue;
            double got = final ? strtod(final + strlen("final 5 epochs number "), NULL) : NAN;
            number = isnan(number) ? got : number;
            bool good = final && last && got == number && strstr(last, "samples 61 count 61 ");
            if (!good)
                processes_print(&w);
            assert_true(good);
        }
    }
}

/* From the last average on. */
static void test_averages(void **state)
{
    (void)state;
    static world w;
    for (int k = 0; k < 4; k++) {
        const char *details[PROCESSES] = { "average", "average", "average" };
        details[k % 3] = k == 0 ? "average,at=average:6" : k == 1 ? "average,at=loss:9" : k == 2 ? "average,at=bucket:30"
            : "average,at=loss:8";
        run_world(&w, 3, details);
        bool good = is_good(&w, 2, 20, true);
        if (!good)
            processes_print(&w);
        assert_true(good);
    }
}

/* Metrics of the epoch: what those who are left have seen of it. */
static void test_metrics(void **state)
{
    (void)state;
    static world w;
    static const char *const details[] = { NULL, "at=loss:6", NULL };
    run_world(&w, 3, details);
    assert_good(&w, 2, 20);
    for (int p = 0; p < 3; p += 2) {
        int ranks, steps, samples;
        double count;
        const char *first = strstr(w.text[p], "epoch 0 "), *second = strstr(w.text[p], "epoch 1 "),
                   *third = strstr(w.text[p], "epoch 2 ");
        assert_true(first && second && third);
        assert_int_equal(sscanf(first, "epoch 0 ranks %d steps %d samples %d count %lf", &ranks, &steps, &samples, &count), 4);
        assert_true(ranks == 3 && steps == STEPS && samples == SAMPLES && count == SAMPLES);
        assert_int_equal(sscanf(second, "epoch 1 ranks %d steps %d samples %d count %lf", &ranks, &steps, &samples, &count), 4);
        assert_true(ranks == 2 && steps == STEPS && samples < SAMPLES && samples >= SAMPLES / 2 && count == samples);
        assert_int_equal(sscanf(third, "epoch 2 ranks %d steps %d samples %d count %lf", &ranks, &steps, &samples, &count), 4);
        assert_true(ranks == 2 && steps == STEPS && samples == SAMPLES && count == SAMPLES);
    }
}

/* Too few are left, or it is the program that fails: an error on all, soon. */
static void test_ends(void **state)
{
    (void)state;
    static world w;
    static const struct { const char *victim, *others, *text; } rows[] = {
        { "least=3,at=loss:5", "least=3", ".min_processes is 3" }, { "least=0,at=loss:5", "least=0", "died" },
        { "bad-loss", "-", "returned NULL" },                      { "least=4", "least=4", ".min_processes is 4 in a job of 3" },
        { "least=2", "least=1", ".min_processes is" },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        const char *details[] = { rows[k].others, rows[k].victim, rows[k].others };
        run_world(&w, 3, details);
        for (int p = 0; p < 3; p++) {
            bool good = has_died(&w, p) || (w.code[p] == 1 && strstr(w.text[p], rows[k].text) &&
                                            !strstr(w.text[p], "are left\n"));
            if (!good || w.seconds[p] > 15)
                processes_print(&w);
            assert_true(good && w.seconds[p] <= 15);
        }
    }
}

static void test_random(void **state)
{
    (void)state;
    static world w;
    unsigned random = 4711;
    for (int k = 0; k < 30; k++) {
        const char *details[PROCESSES] = { NULL };
        char text[4][64];
        int n = 3 + k % 2, left = 0;
        for (int p = 0; p < n; p++) {
            random = random * 1664525u + 1013904223u;
            if (p == k / 2 % n || (p != (k / 2 + 1) % n && random >> 30 == 0)) {
                snprintf(text[p], sizeof text[p], "us=%u", 5000 + (random >> 8) % 60000);
                details[p] = text[p];
            }
        }
        run_world(&w, n, details);
        for (int p = 0; p < n; p++)
            left += !has_died(&w, p);
        bool begun = true; /* whoever dies before the run has begun ends it */
        for (int p = 0; p < n; p++)
            begun = begun && strstr(w.text[p], "saw ");
        if (begun)
            assert_good(&w, left, 25);
        for (int p = 0; p < n; p++)
            assert_true(w.seconds[p] < 25);
    }
}

int main(void)
{
    part me;
    if (processes_part(&me))
        return play(&me);
    char why[256];
    if (strcmp(engine_name(), "gloo") == 0 && !trek_comm_gloo_there(why, sizeof why)) {
        printf("skipped: %s\n", why);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_none),     cmocka_unit_test(test_one),   cmocka_unit_test(test_saving),
        cmocka_unit_test(test_several),  cmocka_unit_test(test_ranks), cmocka_unit_test(test_averages),
        cmocka_unit_test(test_metrics), cmocka_unit_test(test_environment), cmocka_unit_test(test_windows),
        cmocka_unit_test(test_ends),  cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
