/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of several real processes: against one process with as many ranks; asked to stop, failing or killed in one of them. */
#include <signal.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "data/loader_position.h"
#include "distributed/comm/comm.h"
#include "distributed/run.h"
#include "distributed/run_progress.h"
#include "graph/observe.h"
#include "graph/record.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "nn/module_values.h"
#include "nn/state_tensors.h"
#include "tensor/log.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/training.h"
#include "tests/support/unit.h"

enum { EPOCHS = 3 };

static bool has(const part *me, const char *word) { return strstr(me->detail, word) != NULL; }

/* --- a process -------------------------------------------------------------------------------------- */

static const part *mine;

static trek_var *squares(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    bool training = trek_module_is_training(trek_graph_module(graph));
    for (int64_t k = 0; k < trek_batch_size(batch) && mine; k++)
        if (training ? trek_batch_indices(batch)[k] == 50 && has(mine, "bad-loss") : has(mine, "bad-evaluation"))
            return NULL;
    trek_var *error = trek_sub(trek_narrow(output, 1, 0, 1), trek_batch_get(batch, "target"));
    trek_var *loss = trek_mean(trek_mul(error, error), trek_dims_all(), false);
    bool odd = mine && mine->process % 2; /* which has come by the names in another order */
    if (odd)
        trek_record_scalar("squares", loss);
    trek_record_sum("samples", (double)trek_batch_size(batch));
    if (!odd)
        trek_record_scalar("squares", loss);
    return loss;
}

static char kept[] = "/tmp/trek-run-XXXXXX", gone[64]; /* process 0's checkpoints, and where the folder goes */

static trek_status on_epoch(trek_graph *graph, int64_t epoch, void *arg)
{
    if (epoch == 1 && has(mine, "kill"))
        kill(getpid(), SIGKILL);
    if (epoch == 1 && has(mine, "keeps") && mine->process == 0 && rename(kept, gone) != 0)
        return TREK_ERR_IO;
    return epoch == 1 && has(mine, "bad-epoch") ? trek_fail(TREK_ERR_IO, "no epoch today") : TREK_OK;
}

static double told_loss, told_evaluation, told_squares, told_sum; /* of the last epoch */

static trek_status on_metrics(const trek_epoch_metrics *metrics, void *arg)
{
    told_loss = metrics->loss;
    told_evaluation = metrics->evaluation_loss;
    told_squares = trek_metrics_get(metrics, "squares");
    told_sum = trek_metrics_get(metrics, "samples");
    for (int k = 1; k < metrics->n_scalars; k++)
        if (strcmp(metrics->scalars[k - 1].name, metrics->scalars[k].name) >= 0)
            return trek_fail(TREK_ERR_CALLBACK, "%s stands before %s", metrics->scalars[k - 1].name, metrics->scalars[k].name);
    return metrics->epoch == 1 && has(mine, "bad-metrics") ? TREK_ERR_CALLBACK : TREK_OK;
}

static trek_graph *build(trek_device device, void *arg)
{
    return has(mine, "bad-build") ? (trek_fail(TREK_ERR_IO, "no model today"), NULL) : training_build(device, arg);
}

static trek_run_opts opts_of(trek_dataset *data, int ranks)
{
    return (trek_run_opts){ .build_model = training_build, .train_step = squares, .dataset = data, .evaluation = data,
                            .input = "x",
                            .optimizer = training_adam(), .batch_size = 8, .shuffle = true, .epochs = EPOCHS, .seed = 5,
                            .trainer = { .ranks = ranks } };
}

/* Whether the last epoch's samples went to the ranks as asked, but for what whole samples, or batches, round. */
static bool shared_as_asked(const trek_epoch_metrics *m, const double *shares)
{
    double sum = 0;
    for (int r = 0; r < m->ranks; r++)
        sum += shares[r];
    for (int r = 0; r < m->ranks; r++)
        if (fabs(m->per_rank[r].share - shares[r] / sum) > 0.05)
            return false;
    return true;
}

/* Metrics of the last epoch, and a number that stands for the parameters. */
static int print_run(trek_run *run)
{
    trek_epoch_metrics m = { .loss = NAN };
    int epochs = 0;
    while (run && trek_run_next(run, &m))
        epochs++;
    if (has(mine, "shares") && epochs && !shared_as_asked(&m, (double[]){ 4, 6, 2, 12 }))
        printf("not shared as asked: ");
    if (epochs && (m.processes < 1 || m.process < 0 || m.process >= m.processes || m.rank != m.process * (m.ranks / m.processes)))
        printf("process %d of %d with rank %d: ", m.process, m.processes, m.rank);
    int64_t samples = m.samples, ranks = m.ranks;
    double loss = m.loss, evaluation = m.evaluation_loss, squares_mean = epochs ? trek_metrics_get(&m, "squares") : NAN,
           sum = epochs ? trek_metrics_get(&m, "samples") : 0, number = 0;
    trek_state *final = run ? trek_run_join(run) : NULL;
    for (int k = 0; k < trek_state_count(final) && final; k++) {
        double *values = test_read(trek_state_tensor(final, k));
        for (int64_t i = 0; i < trek_tensor_numel(trek_state_tensor(final, k)); i++)
            number = number * 1.01 + values[i];
        free(values);
    }
    if (!final) {
        printf("%s: %s\n", trek_status_name(trek_error_status()), trek_error());
        return 1;
    }
    printf("epochs %d ranks %d samples %d %.0f loss %.17g %.17g %.17g number %.17g\n", epochs, (int)ranks, (int)samples, sum,
           loss,
           squares_mean, evaluation, number);
    trek_state_free(&final);
    return 0;
}

static trek_status add_number(const char *name, trek_var *var, void *arg)
{
    double *number = arg, *values = test_read(trek_var_data(var));
    for (int64_t i = 0; i < trek_var_numel(var); i++)
        *number = *number * 1.01 + values[i];
    free(values);
    return TREK_OK;
}

/* The same over a module of one's own, whose values process 0 has alone. */
static int fit(trek_run_opts o)
{
    trek_graph *graph = training_build(trek_cpu(0), NULL);
    double number = 0;
    o.build_model = NULL;
    if (mine->process > 0) {
        trek_seed(99);
        trek_module_reset(trek_graph_module(graph));
    }
    trek_status status = trek_fit(trek_graph_module(graph), &o);
    trek_module_each_param(trek_graph_module(graph), add_number, &number);
    if (status == TREK_OK)
        printf("epochs %d ranks %d samples %d %.0f loss %.17g %.17g %.17g number %.17g\n", EPOCHS, mine->processes, SAMPLES,
               told_sum,
               told_loss, told_squares, told_evaluation, number);
    else
        printf("%s: %s\n", trek_status_name(status), trek_error());
    trek_graph_free(&graph);
    return status != TREK_OK;
}

static int play(const part *me)
{
    mine = me;
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .rank = me->process, .world_size = me->processes, .address = me->address,
                                                        .port = me->port, .token = "sesame", .deadline_s = 20 });
    trek_dataset *data = training_dataset();
    trek_run_opts o = opts_of(data, has(me, "two") ? 2 : 1);
    o.trainer.comm = comm;
    o.epochs = has(me, "more") ? EPOCHS + 1 : has(me, "for-ever") ? 1000000 : EPOCHS;
    o.build_model = build;
    o.on_epoch = on_epoch;
    o.on_metrics = on_metrics;
    char folder[] = "/tmp/trek-run-XXXXXX", file[64] = "";
    if (has(me, "resume") && mkdtemp(folder) && has(me, "other-file")) { /* the others' is empty: from the beginning */
        snprintf(file, sizeof file, "%s/step-7.safetensors", folder);
        fclose(fopen(file, "w"));
    }
    o.resume_from = has(me, "resume") ? folder : NULL;
    if (has(me, "cadence")) {
        o.policy = TREK_POLICY_CADENCE;
        o.trainer.anchor = o.trainer.max_anchor = 2;
    }
    if (has(me, "average"))
        o.trainer.average = TREK_AVERAGE_PARAMETERS;
    if (has(me, "host"))
        o.transport = TREK_TRANSPORT_HOST;
    if (has(me, "async"))
        o.policy = TREK_POLICY_ASYNC;
    o.min_processes = has(me, "goes-on") ? 1 : 0;
    double shares[] = { 4, 6, 2, 12 };
    if (has(me, "shares")) {
        o.trainer.shares = shares;
        o.trainer.n_shares = me->processes * (has(me, "two") ? 2 : 1) + has(me, "too-many");
        o.batch_size = has(me, "cadence") ? 2 : 12;
        shares[0] = has(me, "other-share") ? 2 : 4;
    }
    o.trainer.shard = has(me, "parts") ? TREK_SHARD_STATE : TREK_SHARD_NONE;
    if (has(me, "keeps") || has(me, "saves")) {
        o.checkpoint_folder = me->process == 0 ? mkdtemp(kept) : kept;
        snprintf(gone, sizeof gone, "%s.gone", kept);
    }
    if (has(me, "fit") && comm) {
        int code = fit(o);
        trek_dataset_free(&data);
        trek_comm_free(&comm);
        return code;
    }
    trek_run *run = comm ? trek_trainer_run(&o) : NULL;
    trek_run_progress p = { 0 };
    while (run && has(me, "stop") && p.samples < 300)
        usleep(1000), trek_run_look(run, &p);
    if (run && has(me, "stop"))
        trek_run_stop(run);
    int code = print_run(run);
    remove(file);
    remove(folder);
    if (o.checkpoint_folder && me->process == 0) {
        char command[128];
        snprintf(command, sizeof command, "rm -rf '%s' '%s'", kept, gone);
        code = system(command) == 0 ? code : 2;
    }
    trek_dataset_free(&data);
    trek_comm_free(&comm);
    return code;
}

/* --- the tests ---------------------------------------------------------------------------------------- */

typedef struct told {
    int epochs, ranks, samples;
    double sum, loss, squares, evaluation, number;
} told;

static told read_told(const char *text)
{
    told t = { 0 };
    const char *at = strstr(text, "epochs ");
    if (!at || sscanf(at, "epochs %d ranks %d samples %d %lf loss %lf %lf %lf number %lf", &t.epochs, &t.ranks, &t.samples,
                      &t.sum,
                      &t.loss, &t.squares, &t.evaluation, &t.number) != 8)
        t.epochs = -1;
    return t;
}

static void close_to(double a, double b)
{
    if (!(fabs(a - b) <= 1e-10 * (1 + fabs(b))))
        fail_msg("%.17g instead of %.17g", a, b);
}

/* What one process has. */
static told alone_by(int ranks, trek_average average, trek_transport transport)
{
    trek_dataset *data = training_dataset();
    trek_run_opts o = opts_of(data, ranks);
    o.trainer.average = average;
    o.transport = transport;
    told t = { 0 };
    trek_epoch_metrics m;
    trek_run *run = trek_trainer_run(&o);
    while (trek_run_next(run, &m)) {
        t.loss = m.loss;
        t.evaluation = m.evaluation_loss;
    }
    trek_state *final = trek_run_join(run);
    assert_non_null(final);
    for (int k = 0; k < trek_state_count(final); k++) {
        double *values = test_read(trek_state_tensor(final, k));
        for (int64_t i = 0; i < trek_tensor_numel(trek_state_tensor(final, k)); i++)
            t.number = t.number * 1.01 + values[i];
        free(values);
    }
    trek_state_free(&final);
    trek_dataset_free(&data);
    return t;
}

static told alone(int ranks, trek_average average) { return alone_by(ranks, average, TREK_TRANSPORT_DEVICE); }

static void run_world(world *w, int n, const char *detail, int victim, const char *of_victim)
{
    processes_run_all(w, n, "run", detail, victim, of_victim);
}

static void test_exact(void **state)
{
    told one = alone(1, TREK_AVERAGE_GRADIENTS);
    static world w;
    for (int n = 2; n <= 3; n++)
        for (int ranks = 1; ranks <= 2; ranks++) {
            run_world(&w, n, ranks == 2 ? "two" : "one", -1, NULL);
            for (int p = 0; p < n; p++) {
                told t = read_told(w.text[p]);
                if (w.code[p] != 0 || t.epochs != EPOCHS)
                    processes_print(&w);
                assert_int_equal(w.code[p], 0);
                assert_int_equal(t.epochs, EPOCHS);
                assert_int_equal(t.ranks, n * ranks);
                assert_int_equal(t.samples, SAMPLES);
                assert_true(t.sum == SAMPLES);
                close_to(t.loss, one.loss);
                close_to(t.squares, one.loss);
                close_to(t.evaluation, one.evaluation);
                close_to(t.number, one.number);
            }
        }
}

/* The optimizer's state is in parts, and comes together for checkpoints; a run that is to survive a process refuses that. */
static void test_parts(void **state)
{
    told one = alone(1, TREK_AVERAGE_GRADIENTS);
    static world w;
    for (int ranks = 1; ranks <= 2; ranks++) {
        run_world(&w, 3, ranks == 2 ? "parts,saves,two" : "parts,saves", -1, NULL);
        for (int p = 0; p < 3; p++) {
            told t = read_told(w.text[p]);
            if (w.code[p] != 0 || t.epochs != EPOCHS)
                processes_print(&w);
            assert_int_equal(w.code[p], 0);
            assert_int_equal(t.epochs, EPOCHS);
            close_to(t.loss, one.loss);
            close_to(t.number, one.number);
        }
    }
    run_world(&w, 2, "parts,goes-on", -1, NULL);
    for (int p = 0; p < 2; p++) {
        assert_int_equal(w.code[p], 1);
        assert_non_null(strstr(w.text[p], "set together with .trainer.shard"));
    }
}

/* A module that is there, one in each process. */
static void test_fit(void **state)
{
    told one = alone(1, TREK_AVERAGE_GRADIENTS);
    static world w;
    run_world(&w, 3, "fit", -1, NULL);
    for (int p = 0; p < 3; p++) {
        told t = read_told(w.text[p]);
        if (w.code[p] != 0 || t.epochs != EPOCHS)
            processes_print(&w);
        assert_int_equal(t.epochs, EPOCHS);
        close_to(t.loss, one.loss);
        close_to(t.evaluation, one.evaluation);
        assert_true(t.number == read_told(w.text[0]).number);
    }
}

static void test_windows(void **state)
{
    static world w;
    run_world(&w, 2, "cadence,two", -1, NULL);
    for (int p = 0; p < 2; p++) {
        told t = read_told(w.text[p]);
        if (t.epochs != EPOCHS)
            processes_print(&w);
        assert_int_equal(t.epochs, EPOCHS);
        assert_int_equal(t.samples, SAMPLES);
        assert_true(t.number == read_told(w.text[0]).number);
    }
}

/* Parameters instead of gradients: ranks are ranks, in one process or in many. */
static void test_averages(void **state)
{
    static world w;
    told one = alone(2, TREK_AVERAGE_PARAMETERS), four = alone(4, TREK_AVERAGE_PARAMETERS);
    for (int ranks = 1; ranks <= 2; ranks++) {
        run_world(&w, 2, ranks == 2 ? "average,two" : "average", -1, NULL);
        for (int p = 0; p < 2; p++) {
            told t = read_told(w.text[p]);
            if (t.epochs != EPOCHS)
                processes_print(&w);
            assert_int_equal(t.epochs, EPOCHS);
            close_to(t.number, ranks == 2 ? four.number : one.number);
            close_to(t.loss, ranks == 2 ? four.loss : one.loss);
        }
    }
    run_world(&w, 2, "average,two,cadence", -1, NULL);
    for (int p = 0; p < 2; p++) {
        told t = read_told(w.text[p]);
        if (t.epochs != EPOCHS)
            processes_print(&w);
        assert_true(t.samples == SAMPLES && t.number == read_told(w.text[0]).number);
    }
}

/* Averaged in the background: the same, and whatever the order of things all have the same in the end. */
static void test_background(void **state)
{
    static world w;
    told one = alone_by(2, TREK_AVERAGE_GRADIENTS, TREK_TRANSPORT_HOST), four = alone_by(4, TREK_AVERAGE_GRADIENTS,
                                                                                        TREK_TRANSPORT_HOST);
    static const char *const ways[] = { "host", "host,two", "host,cadence", "host,two,cadence", "host,async", "host,two,async" };
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        run_world(&w, 2 + (k > 1), ways[k], -1, NULL);
        for (int p = 0; p < w.n; p++) {
            told t = read_told(w.text[p]);
            if (t.epochs != EPOCHS)
                processes_print(&w);
            assert_int_equal(t.epochs, EPOCHS);
            assert_true(t.samples == SAMPLES && t.sum == SAMPLES && t.number == read_told(w.text[0]).number);
            if (k < 2) {
                close_to(t.number, k ? four.number : one.number);
                close_to(t.loss, k ? four.loss : one.loss);
            }
        }
    }
}

/* A training function that fails in one process: its rank trains no more, and the processes go on. */
static void test_background_failing(void **state)
{
    static world w;
    static const char *const ways[] = { "host", "host,two", "host,async", "host,two,cadence" };
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        char victim[64];
        snprintf(victim, sizeof victim, "%s,bad-loss", ways[k]);
        run_world(&w, 3, ways[k], 1, victim);
        for (int p = 0; p < 3; p++) {
            told t = read_told(w.text[p]);
            if (t.epochs != EPOCHS || t.samples != SAMPLES)
                processes_print(&w);
            assert_true(t.epochs == EPOCHS && t.samples == SAMPLES && t.number == read_told(w.text[0]).number);
        }
    }
    run_world(&w, 3, "host", 1, "host,kill");
    for (int p = 0; p < 3; p += 2)
        if (w.code[p] != 1 || !strstr(w.text[p], "process 1")) {
            processes_print(&w);
            fail();
        }
    run_world(&w, 3, "host,cadence,goes-on", 1, "host,cadence,goes-on,kill"); /* from the epoch's beginning */
    for (int p = 0; p < 3; p += 2) {
        told t = read_told(w.text[p]);
        if (w.code[p] != 0 || t.epochs != EPOCHS || t.ranks != 2 || t.samples != SAMPLES)
            processes_print(&w);
        assert_true(w.code[p] == 0 && t.epochs == EPOCHS && t.ranks == 2 && t.samples == SAMPLES);
        assert_true(t.number == read_told(w.text[0]).number);
    }
    run_world(&w, 3, "host,async,for-ever", 1, "host,async,for-ever,stop");
    for (int p = 0; p < 3; p++) {
        told t = read_told(w.text[p]);
        if (w.code[p] != 0)
            processes_print(&w);
        assert_true(w.code[p] == 0 && t.epochs >= 1 && t.number == read_told(w.text[0]).number);
    }
}

/* Asked of one process: all stop, with the same parameters. */
static void test_stopped(void **state)
{
    static world w;
    run_world(&w, 3, "for-ever", 1, "for-ever,stop");
    for (int p = 0; p < 3; p++) {
        told t = read_told(w.text[p]);
        if (t.epochs < 0)
            processes_print(&w);
        assert_int_equal(w.code[p], 0);
        assert_true(t.epochs >= 1 && t.number == read_told(w.text[0]).number);
    }
}

/* In one process: the others say which, and why. */
static void test_failing(void **state)
{
    static const struct { const char *victim, *own, *others; } rows[] = {
        { "resume,other-file", "step-000000000007", "step-000000000007" },
        { "bad-epoch", "no epoch today", "process 1" },    { "bad-metrics", ".on_metrics: it failed", "process 1" },
        { "bad-loss", "returned NULL", "process 1" },      { "bad-evaluation", "returned NULL", "process 1" },
        { "more", ".epochs is 4 in process 1", ".epochs is 4 in process 1" },
        { "bad-build", "no model today", "process 1" },
        { "shares,other-share", ".shares[0] is 2 in process 1", ".shares[0] is 2 in process 1" },
        { "shares,too-many", ".n_shares: 4; must be the number of the job's ranks, 3", "process 1 failed" },
        { "kill", NULL, "process 1" },
    };
    static world w;
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        run_world(&w, 3, k == 0 ? "resume" : strstr(rows[k].victim, "shares") ? "shares" : "plain", 1, rows[k].victim);
        for (int p = 0; p < 3; p++) {
            const char *expected = p == 1 ? rows[k].own : rows[k].others;
            WANT(&w, expected ? w.code[p] == 1 && strstr(w.text[p], expected) : w.code[p] == -SIGKILL);
        }
    }
}

/* Fixed shares, of batches and of windows' counts: each rank of the job has its part, and the result is one device's. */
static void test_shares(void **state)
{
    static world w;
    for (int ranks = 1; ranks <= 2; ranks++)
        for (int windows = 0; windows < 2; windows++) {
            run_world(&w, ranks == 2 ? 2 : 3, windows ? ranks == 2 ? "shares,two,cadence" : "shares,cadence"
                      : ranks == 2 ? "shares,two" : "shares", -1, NULL);
            for (int p = 0; p < w.n; p++) {
                told t = read_told(w.text[p]);
                if (t.epochs != EPOCHS || strstr(w.text[p], "not shared"))
                    processes_print(&w);
                assert_int_equal(t.epochs, EPOCHS);
                assert_int_equal(t.samples, SAMPLES);
                assert_true(!strstr(w.text[p], "not shared"));
                assert_true(t.number == read_told(w.text[0]).number);
            }
        }
}

/* Process 0 writes checkpoints, and all end when it cannot: the others with its word for it. */
static void test_failing_writes(void **state)
{
    static world w;
    run_world(&w, 3, "keeps,for-ever", -1, NULL);
    for (int p = 0; p < 3; p++) {
        WANT(&w, w.code[p] == 1 && strstr(w.text[p], p == 0 ? "No such file" : "process 0"));
    }
    run_world(&w, 2, "keeps", -1, NULL); /* in time: the run has three epochs, and ends with the writes */
    for (int p = 0; p < 2; p++) {
        if (w.code[p] != 1)
            processes_print(&w);
        assert_int_equal(w.code[p], 1);
    }
}

int main(void)
{
    part me;
    if (processes_part(&me))
        return play(&me);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact), cmocka_unit_test(test_parts), cmocka_unit_test(test_fit), cmocka_unit_test(test_windows),
            cmocka_unit_test(test_averages),
            cmocka_unit_test(test_stopped), cmocka_unit_test(test_failing), cmocka_unit_test(test_background),
        cmocka_unit_test(test_background_failing), cmocka_unit_test(test_failing_writes), cmocka_unit_test(test_shares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
