/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics over several real processes, of one rank and of two, some without rows, one of which may die, against those of the
 * whole set in one process. */
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "distributed/ddp.h"
#include "distributed/run.h"
#include "distributed/run_progress.h"
#include "graph/observe.h"
#include "tensor/log.h"
#include "tests/distributed/run/measured.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { SAMPLES = 61, EPOCHS = 3 };

static const part *mine;
static bool has(const char *word) { return strstr(mine->detail, word) != NULL; }
static int ranks(void) { return has("two") ? 2 : 1; }

/* --- a process --------------------------------------------------------------------------------------------- */

static int failed(void)
{
    printf("%s: %s\n", trek_status_name(trek_error_status()), trek_error());
    return 1;
}

static double total_of(const trek_tensor *counts)
{
    double *values = counts ? test_read(counts) : NULL, total = 0;
    for (int64_t k = 0; values && k < trek_tensor_numel(counts); k++)
        total += values[k];
    free(values);
    return total;
}

static void print_values(const double *values, double total, double samples)
{
    printf("values");
    for (int k = 0; k < MEASURES; k++)
        printf(" %.17g", values[k]);
    printf(" total %.0f samples %.0f\n", total, samples);
}

/* A loop's own metrics: each process updates them with its rows. */
static int own_loop(trek_graph *graph, trek_comm *comm)
{
    trek_metric *metrics[MEASURES];
    double values[MEASURES], total = 0, rows = 0;
    for (int k = 0; k < MEASURES; k++)
        metrics[k] = measured_new(k);
    trek_graph_start(graph, 0);
    for (trek_batch *batch; (batch = trek_graph_next(graph)); rows += (double)trek_batch_size(batch))
        measured_update(metrics, batch);
    if (mine->process == 2 && has("idle"))
        assert_true(rows == 0);
    for (int k = 0; k < MEASURES; k++) {
        trek_tensor *joined = trek_metric_values(metrics[k], graph);
        total = k == CONFUSION ? total_of(joined) : total;
        trek_tensor_release(joined);
        values[k] = k == CONFUSION ? (double)NAN : trek_metric_compute(metrics[k], graph);
        assert_true(k > 0 || trek_metric_count(metrics[k]) == rows); /* it is still its own */
        trek_metric *all = trek_metric_join(comm, metrics[k]);
        assert_true(all && (k == CONFUSION || trek_metric_compute(all, NULL) == values[k]));
        assert_true(k > 0 || trek_metric_count(all) == SAMPLES);
        trek_metric_free(&all);
        trek_metric_free(&metrics[k]);
    }
    trek_comm_all_reduce_scalar(comm, &rows, TREK_REDUCTION_SUM);
    print_values(values, total, rows);
    return trek_error_status() == TREK_OK ? 0 : failed();
}

/* Process 1 has another metric, or an error. */
static int bad_join(trek_comm *comm)
{
    bool odd = mine->process == 1;
    trek_metric *m = trek_metric_new(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_F1, .beta = odd &&
                                                          has("other-spec") ? 2 : 1 });
    if (odd && has("no-metric"))
        trek_metric_free(&m);
    if (odd && has("error"))
        trek_fail(TREK_ERR_IO, "no scores today");
    trek_metric *all = trek_metric_join(comm, m);
    trek_metric_free(&m);
    return all ? 0 : failed();
}

static int graph_loop(trek_graph *graph)
{
    double values[MEASURES];
    trek_graph_start(graph, 0);
    for (trek_batch *batch; (batch = trek_graph_next(graph));)
        if (!trek_graph_train_batch(graph, batch) || trek_graph_step(graph) != TREK_OK)
            return failed();
    if (trek_graph_flush(graph) != TREK_OK)
        return failed();
    for (int k = 0; k < MEASURES; k++)
        values[k] = trek_graph_latest(graph, measured_names[k]);
    trek_tensor *counts = trek_graph_metric_values(graph, "confusion");
    print_values(values, total_of(counts), trek_graph_latest(graph, "samples"));
    trek_tensor_release(counts);
    return 0;
}

static int loop(trek_comm *comm)
{
    trek_dataset *data = measured_dataset(SAMPLES);
    trek_graph *graph = measured_build(trek_cpu(0), NULL);
    trek_trainer_opts opts = { .build_replica = measured_build, .ranks = ranks(), .comm = comm,
                               .max_anchor = has("windows") ? 3 : TREK_OFF,
                               .anchor = 2, .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.01 }) };
    trek_loader *loader = trek_loader_new(data, &(trek_loader_opts){ .batch_size = has("idle") ? 2 : 8, .shuffle = true });
    trek_status status = trek_graph_set_loader(graph, loader, "x");
    if (status == TREK_OK && has("graph"))
        status = trek_graph_set_loss(graph, measured_loss, NULL);
    if (status == TREK_OK)
        status = trek_trainer_setup(graph, &opts);
    int code = status != TREK_OK ? failed() : has("bad") ? bad_join(comm) : has("graph") ? graph_loop(graph)
                                                                                            : own_loop(graph, comm);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    return code;
}

static atomic_int batches;

static trek_var *dying_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    trek_var *loss = measured_loss(graph, output, batch, arg);
    if (mine->process == 1 && has("kill") && atomic_fetch_add(&batches, 1) == 4)
        kill(getpid(), SIGKILL);
    return loss;
}

static int run(trek_comm *comm)
{
    trek_dataset *data = measured_dataset(SAMPLES), *held_out = measured_dataset(23);
    trek_run_opts o = { .build_model = measured_build, .train_step = dying_loss, .dataset = data, .evaluation = held_out,
                        .input = "x", .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.01 }), .batch_size = 8, .shuffle = true,
                        .epochs = EPOCHS,
                        .trainer = { .ranks = ranks(), .comm = comm } };
    o.policy = has("cadence") ? TREK_POLICY_CADENCE : has("async") ? TREK_POLICY_ASYNC : TREK_POLICY_SYNC;
    o.transport = has("host") ? TREK_TRANSPORT_HOST : TREK_TRANSPORT_DEVICE;
    o.site = has("site") ? TREK_SITE_PROCESS : TREK_SITE_RANK;
    o.trainer.anchor = o.trainer.max_anchor = has("cadence") ? 2 : 0;
    o.min_processes = has("goes-on") ? 1 : 0;
    trek_run *trained = trek_trainer_run(&o);
    for (trek_epoch_metrics m; trained && trek_run_next(trained, &m);)
        for (int evaluation = 0; evaluation < 2; evaluation++) {
            double values[MEASURES];
            char name[64];
            for (int k = 0; k < MEASURES; k++) {
                snprintf(name, sizeof name, "%s%s", evaluation ? "evaluation." : "", measured_names[k]);
                values[k] = trek_metrics_get(&m, name);
            }
            print_values(values, total_of(trek_metrics_values(&m, name)),
                         trek_metrics_get(&m, evaluation ? "evaluation.samples" : "samples"));
        }
    trek_state *final = trained ? trek_run_join(trained) : NULL;
    int code = final ? 0 : failed();
    trek_state_free(&final);
    trek_dataset_free(&data);
    trek_dataset_free(&held_out);
    return code;
}

static int play(const part *me)
{
    mine = me;
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .rank = me->process, .world_size = me->processes, .address = me->address,
                                                        .port = me->port, .token = "sesame", .deadline_s = 20 });
    int code = !comm ? failed() : has("run") ? run(comm) : loop(comm);
    trek_comm_free(&comm);
    return code;
}

/* --- the tests ------------------------------------------------------------------------------------------------ */

static double whole[MEASURES], evaluated[MEASURES];
static world w;

static void run_world(int n, const char *detail)
{
    processes_run_all(&w, n, "metrics", detail, -1, NULL);
}

/* Line k of "values" that process p has written, against these; the samples. */
static double check_line(const char *what, int p, int k, const double *wanted)
{
    const char *at = w.text[p];
    double values[MEASURES], total, samples;
    for (int line = 0; (at = strstr(at, "values ")) && line < k; line++)
        at++;
    if (!at)
        FAIL_WORLD(&w, "%s: process %d has no line %d", what, p, k);
    at += strlen("values");
    for (int i = 0; i < MEASURES; i++) {
        char *end;
        values[i] = strtod(at, &end);
        at = end;
        if (wanted)
            measured_compare(what, i, values[i], wanted);
    }
    assert_int_equal(sscanf(at, " total %lf samples %lf", &total, &samples), 2);
    assert_true(total == samples);
    return samples;
}

static void test_loops(void **state)
{
    static const char *const ways[] = { "own", "own,two", "own,idle", "graph", "graph,two", "graph,idle,two", "graph,windows",
                                        "graph,two,windows" };
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++)
        for (int n = 2; n <= 3; n++) {
            run_world(n, ways[k]);
            for (int p = 0; p < n; p++) {
                WANT(&w, w.code[p] == 0);
                assert_true(check_line(ways[k], p, 0, whole) == SAMPLES);
            }
        }
}

static void test_runs(void **state)
{
    static const char *const ways[] = { "run", "run,two", "run,two,cadence", "run,host", "run,two,host,async",
                                        "run,two,host,site" };
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        run_world(2 + (int)k % 2, ways[k]);
        for (int p = 0; p < w.n; p++)
            for (int epoch = 0; epoch < EPOCHS; epoch++) {
                if (w.code[p] != 0)
                    processes_print(&w);
                assert_true(check_line(ways[k], p, 2 * epoch, whole) == SAMPLES);
                assert_true(check_line(ways[k], p, 2 * epoch + 1, evaluated) == 23);
            }
    }
}

/* What the others had counted goes on; later epochs are whole. */
static void test_lost(void **state)
{
    run_world(3, "run,two,goes-on,kill");
    for (int p = 0; p < 3; p += 2) {
        WANT(&w, w.code[p] == 0);
        double samples = check_line("lost", p, 0, NULL);
        assert_true(samples > SAMPLES / 2 && samples < SAMPLES);
        for (int epoch = 1; epoch < EPOCHS; epoch++)
            assert_true(check_line("lost", p, 2 * epoch, whole) == SAMPLES);
        assert_true(check_line("lost", p, 1, evaluated) == 23);
    }
}

static void test_bad(void **state)
{
    static const struct {
        const char *detail, *own, *others;
    } rows[] = { { "bad,other-spec", "different specs", "different specs" },
                 { "bad,no-metric", "metric", "process 1 could not read" },
                 { "bad,error", "no scores today", "process 1 could not read" } };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        run_world(3, rows[k].detail);
        for (int p = 0; p < 3; p++)
            if (w.code[p] != 1 || !strstr(w.text[p], p == 1 ? rows[k].own : rows[k].others))
                FAIL_WORLD(&w, "%s: process %d", rows[k].detail, p);
    }
}

int main(void)
{
    part me;
    if (processes_part(&me))
        return play(&me);
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_loops), cmocka_unit_test(test_runs), cmocka_unit_test(test_lost),
                                        cmocka_unit_test(test_bad) };
    trek_dataset *data = measured_dataset(SAMPLES), *held_out = measured_dataset(23);
    measured_whole(data, whole);
    measured_whole(held_out, evaluated);
    trek_dataset_free(&data);
    trek_dataset_free(&held_out);
    return cmocka_run_group_tests_name("metric_processes", tests, NULL, NULL);
}
