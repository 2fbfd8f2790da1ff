/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics that ranks record, in loops and in runs, against those of the whole set: sets and batches that do not divide, ranks
 * without rows, unequal shares, windows, ranks that train by themselves. */
#include "autograd/ops.h"
#include "data/compose.h"
#include "data/loader_position.h"
#include "distributed/ddp.h"
#include "distributed/ranks.h"
#include "distributed/run.h"
#include "distributed/run_progress.h"
#include "graph/observe.h"
#include "tests/distributed/run/measured.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { SAMPLES = 61 };

static trek_optimizer_spec sgd(void) { return trek_sgd(&(trek_sgd_opts){ .lr = 0.01 }); }

typedef struct way {
    int ranks, batch, windows, shares, separate, evaluates, samples;
} way;

static trek_graph *set_up(const way *w, trek_loader *loader, trek_loss_fn loss)
{
    static const double shares[] = { 5, 1, 2, 0.5, 3 };
    trek_graph *graph = measured_build(test_device(), NULL);
    assert_int_equal(trek_graph_set_loader(graph, loader, "x"), TREK_OK);
    if (loss)
        trek_graph_set_loss(graph, loss, NULL);
    trek_trainer_opts opts = { .build_replica = measured_build, .devices = test_devices(), .ranks = w->ranks, .optimizer = sgd(),
                               .share_params = w->separate ? TREK_OFF : 0, .max_anchor = w->windows ? 3 : TREK_OFF, .anchor = 2,
                               .shares = w->shares ? shares : NULL, .n_shares = w->shares ? w->ranks : 0 };
    SUCCEEDS(trek_trainer_setup(graph, &opts));
    return graph;
}

static trek_loader *loader_of(trek_dataset *data, int64_t batch)
{
    return trek_loader_new(trek_dataset_retain(data), &(trek_loader_opts){ .batch_size = batch, .shuffle = true, .seed = 3,
                                                                          .device = test_device() });
}

static void check_confusion(const trek_tensor *values, double sum)
{
    assert_non_null(values);
    double *counts = test_read(values), total = 0;
    for (int64_t k = 0; k < trek_tensor_numel(values); k++)
        total += counts[k];
    assert_true(total == sum);
    free(counts);
}

/* On devices that are not real ones all of it takes long. */
static int step_of(void) { return test_on_cpu() ? 1 : 2; }

/* --- loops --------------------------------------------------------------------------------------------------- */

static void loop(const way *w)
{
    double whole[MEASURES];
    char what[96];
    int64_t samples = w->samples ? w->samples : SAMPLES;
    trek_dataset *data = measured_dataset(samples);
    trek_loader *loader = loader_of(data, w->batch);
    trek_graph *graph = set_up(w, loader, measured_loss);
    measured_whole(data, whole);
    snprintf(what, sizeof what, "ranks %d batch %d windows %d shares %d evaluates %d", w->ranks, w->batch, w->windows, w->shares,
             w->evaluates);
    trek_graph_train(graph, !w->evaluates);
    for (int64_t epoch = 0; epoch < 2; epoch++) {
        trek_graph_start(graph, epoch);
        for (trek_batch *batch; (batch = trek_graph_next(graph));)
            if (!trek_graph_train_batch(graph, batch) || (!w->evaluates && trek_graph_step(graph) != TREK_OK))
                fail_msg("%s: %s", what, trek_error());
        assert_int_equal(trek_graph_flush(graph), TREK_OK);
        for (int k = 0; k < MEASURES; k++)
            measured_compare(what, k, trek_graph_latest(graph, measured_names[k]), whole);
        assert_true(trek_graph_latest(graph, "samples") == (double)samples);
        trek_tensor *counts = trek_graph_metric_values(graph, "confusion");
        check_confusion(counts, (double)samples);
        trek_tensor_release(counts);
    }
    assert_int_equal(trek_trend_count(trek_graph_trend(graph, "area")), 2);
    assert_null(trek_graph_metric_values(graph, "samples"));
    assert_null(trek_graph_metric_values(graph, "nothing"));
    assert_int_equal(trek_error_status(), TREK_OK);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    trek_dataset_free(&data);
}

static void test_loops(void **state)
{
    for (int ranks = 1; ranks <= 3; ranks += step_of())
        for (int variant = 0; variant < 6; variant++)
            if (ranks > 1 || variant < 3)
                loop(&(way){ .ranks = ranks, .batch = variant == 1 ? 2 : variant == 4 ? 3 : 8, .windows = variant >= 4,
                             .shares = variant == 3 || variant == 5, .separate = variant == 1, .evaluates = variant == 2 });
    loop(&(way){ .ranks = 5, .batch = 3 });
    loop(&(way){ .ranks = 5, .batch = 64, .samples = 4, .evaluates = 1 });
    loop(&(way){ .ranks = 3, .batch = 5, .samples = 7, .windows = 1 });
}

/* A loop with its own metrics: the joined outputs of all ranks. */
static void test_own_loop(void **state)
{
    double first = 0;
    for (int ranks = 1; ranks <= 3; ranks++) {
        trek_dataset *data = measured_dataset(SAMPLES);
        trek_loader *loader = loader_of(data, 8);
        trek_graph *graph = set_up(&(way){ .ranks = ranks }, loader, NULL);
        trek_graph_train(graph, false);
        trek_metric *area = trek_metric_new(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_AUROC, .logits = true });
        trek_graph_start(graph, 0);
        for (trek_batch *batch; (batch = trek_graph_next(graph));) {
            trek_var *y = trek_graph_forward_batch(graph, batch);
            assert_int_equal(trek_metric_update(area, trek_reshape(y, trek_dims(-1)), trek_batch_get(batch, "bit")), TREK_OK);
        }
        double value = trek_metric_compute(area, graph);
        assert_int_equal(trek_metric_count(area), SAMPLES);
        assert_true(value > 0 && value < 1);
        assert_float_equal(value, ranks > 1 ? first : value, 1e-12);
        first = value;
        trek_metric_free(&area);
        trek_graph_free(&graph);
        trek_loader_free(&loader);
        trek_dataset_free(&data);
    }
    assert_int_equal(trek_error_status(), TREK_OK);
}

/* Ranks of a program's own, with a communicator: 40 samples, none, and the rest. */
typedef struct by_hand {
    trek_ranks *ranks;
    trek_dataset *data;
    double joined[3][MEASURES];
    bool differ;
} by_hand;

static trek_status count_part(int rank, void *arg)
{
    by_hand *h = arg;
    trek_comm *comm = trek_ranks_comm(h->ranks, rank);
    trek_metric *metrics[MEASURES];
    for (int k = 0; k < MEASURES; k++)
        metrics[k] = measured_new(h->differ && rank == 2 ? (k + 1) % MEASURES : k);
    trek_dataset *part = rank == 1 || h->differ ? NULL : trek_dataset_subset(trek_dataset_retain(h->data), rank ? 40 : 0,
                                                                             rank ? SAMPLES - 40 : 40);
    trek_loader *loader = part ? trek_loader_new(part, &(trek_loader_opts){ .batch_size = 7, .device = trek_cpu(0) }) : NULL;
    if (loader)
        trek_loader_start(loader, 0);
    for (trek_batch *batch; loader && (batch = trek_loader_next(loader));)
        measured_update(metrics, batch);
    trek_loader_free(&loader);
    for (int k = 0; k < MEASURES; k++) {
        trek_metric *all = trek_metric_join(comm, metrics[k]);
        h->joined[rank][k] = all && k != CONFUSION ? trek_metric_compute(all, NULL) : (double)NAN;
        trek_metric_free(&all);
        trek_metric_free(&metrics[k]);
    }
    return trek_error_status();
}

static void test_by_hand(void **state)
{
    double whole[MEASURES];
    by_hand h = { .ranks = trek_ranks_new(NULL, 3), .data = measured_dataset(SAMPLES) };
    measured_whole(h.data, whole);
    assert_int_equal(trek_ranks_run(h.ranks, count_part, &h), TREK_OK);
    for (int r = 0; r < 3; r++)
        for (int k = 0; k < MEASURES; k++)
            measured_compare("by hand", k, h.joined[r][k], whole);
    h.differ = true;
    FAILS(trek_ranks_run(h.ranks, count_part, &h), TREK_ERR_ARGUMENT, "different specs");
    trek_ranks_free(&h.ranks);
    trek_dataset_free(&h.data);
}

/* --- what goes wrong -------------------------------------------------------------------------------------------- */

static const char *mistake;

static trek_var *mistaken(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    trek_metric_spec f1 = { .kind = TREK_METRIC_KIND_F1, .classes = 4 },
        other = { .kind = TREK_METRIC_KIND_F1, .classes = 4, .beta = 2 };
    trek_var *scores = trek_batch_get(batch, "scores"), *class = trek_batch_get(batch, "class");
    bool last = false; /* one rank's batch */
    for (int64_t k = 0; k < trek_batch_size(batch); k++)
        last |= trek_batch_indices(batch)[k] == SAMPLES - 1;
    trek_record_metric("f1", &f1, scores, class);
    if (!strcmp(mistake, "spec"))
        trek_record_metric("f1", &other, scores, class);
    if (!strcmp(mistake, "mean"))
        trek_record_mean("f1", 1, 1);
    if (!strcmp(mistake, "metric")) {
        trek_record_sum("sum", 1);
        trek_record_metric("sum", &f1, scores, class);
    }
    if (!strcmp(mistake, "range") && last)
        trek_record_metric("f1", &f1, scores, trek_add_scalar(class, 100));
    if (!strcmp(mistake, "kind"))
        trek_record_metric("x", &(trek_metric_spec){ .kind = TREK_METRIC_KIND_F1, .top_k = 3 }, scores, class);
    if (!strcmp(mistake, "one class"))
        trek_record_metric("area", &(trek_metric_spec){ .kind = TREK_METRIC_KIND_AUROC }, trek_batch_get(batch, "score"),
                           trek_mul_scalar(class, 0));
    return trek_mean(trek_square(output), trek_dims_all(), false);
}

static void test_mistakes(void **state)
{
    static const struct {
        const char *name, *text;
    } rows[] = { { "spec", "different specs" }, { "mean", "as a metric and as a mean" }, { "metric", "as a sum and as a metric" },
                 { "range", "must be inside [0, 4)" }, { "kind", "top_k" } };
    trek_dataset *data = measured_dataset(SAMPLES);
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        for (int ranks = 1; ranks <= 2; ranks++) {
            mistake = rows[k].name;
            trek_run *run = trek_trainer_run(&(trek_run_opts){ .build_model = measured_build, .train_step = mistaken,
                                                               .dataset = data,
                                                               .input = "x", .optimizer = sgd(), .batch_size = 8, .shuffle = true,
                                                               .epochs = 2,
                                                               .trainer = { .ranks = ranks, .devices = test_devices() } });
            trek_epoch_metrics m;
            if (trek_run_next(run, &m))
                fail_msg("%s on %d ranks: no error", rows[k].name, ranks);
            assert_null(trek_run_join(run));
            if (!strstr(trek_error(), rows[k].text))
                fail_msg("%s: %s", rows[k].name, trek_error());
            trek_error_clear();
        }
    trek_dataset_free(&data);
}

static int warnings;
static void count_warnings(trek_log_level level, const char *message, void *arg)
{
    warnings += level == TREK_LOG_LEVEL_WARNING && strstr(message, "\"area\" has no value") &&
        strstr(message, "no target is positive");
}

/* It does not end what it measures. */
static void test_no_value(void **state)
{
    trek_dataset *data = measured_dataset(SAMPLES);
    trek_log_set(TREK_LOG_LEVEL_WARNING, count_warnings, NULL);
    mistake = "one class";
    trek_run *run = trek_trainer_run(&(trek_run_opts){ .build_model = measured_build, .train_step = mistaken, .dataset = data,
                                                       .input = "x", .optimizer = sgd(), .batch_size = 8, .shuffle = true,
                                                       .epochs = 2,
                                                       .trainer = { .ranks = 2, .devices = test_devices() } });
    trek_epoch_metrics m;
    while (trek_run_next(run, &m)) {
        assert_true(isnan(trek_metrics_get(&m, "area")) && trek_metrics_get(&m, "f1") > 0);
        assert_null(trek_metrics_values(&m, "area"));
    }
    trek_state *final = trek_run_join(run);
    assert_non_null(final);
    assert_int_equal(warnings, 2);
    trek_state_free(&final);
    trek_log_set(TREK_LOG_LEVEL_WARNING, NULL, NULL);
    trek_dataset_free(&data);
}

/* --- runs ----------------------------------------------------------------------------------------------------------- */

static void run_with(trek_run_opts o, const char *what)
{
    double whole[MEASURES], evaluated[MEASURES];
    trek_dataset *data = measured_dataset(SAMPLES), *held_out = measured_dataset(23);
    measured_whole(data, whole);
    measured_whole(held_out, evaluated);
    o.build_model = measured_build;
    o.train_step = measured_loss;
    o.dataset = data;
    o.evaluation = held_out;
    o.input = "x";
    o.optimizer = sgd();
    o.epochs = 3;
    o.best_metric = "evaluation.area";
    o.best_is_largest = true;
    o.trainer.devices = test_devices();
    trek_run *run = trek_trainer_run(&o);
    trek_epoch_metrics m;
    int epochs = 0;
    for (; run && trek_run_next(run, &m); epochs++)
        for (int k = 0; k < MEASURES; k++) {
            char name[64], both[128];
            snprintf(name, sizeof name, "evaluation.%s", measured_names[k]);
            snprintf(both, sizeof both, "%s, %s", what, name);
            measured_compare(what, k, trek_metrics_get(&m, measured_names[k]), whole);
            measured_compare(both, k, trek_metrics_get(&m, name), evaluated);
            assert_true(m.best == (epochs == 0));
            if (k == CONFUSION) {
                check_confusion(trek_metrics_values(&m, "confusion"), SAMPLES);
                check_confusion(trek_metrics_values(&m, "evaluation.confusion"), 23);
            }
            assert_null(trek_metrics_values(&m, "samples"));
        }
    trek_state *final = run ? trek_run_join(run) : NULL;
    if (!final || epochs != 3)
        fail_msg("%s: %s", what, trek_error());
    trek_state_free(&final);
    trek_dataset_free(&data);
    trek_dataset_free(&held_out);
}

static void test_runs(void **state)
{
    static double shares[] = { 4, 1, 2 };
    for (int ranks = 1; ranks <= 3; ranks += step_of()) {
        trek_run_opts o = { .batch_size = 8, .shuffle = true, .evaluation_batch = 7, .trainer = { .ranks = ranks } };
        run_with(o, "sync");
        o.trainer.shares = shares;
        o.trainer.n_shares = ranks;
        run_with(o, "shares");
        o.policy = TREK_POLICY_CADENCE;
        o.batch_size = 3;
        run_with(o, "cadence");
        o.trainer.average = TREK_AVERAGE_PARAMETERS;
        run_with(o, "averages");
        o.trainer.average = TREK_AVERAGE_GRADIENTS;
        o.transport = TREK_TRANSPORT_HOST;
        run_with(o, "host");
        o.policy = TREK_POLICY_ASYNC;
        o.trainer.shares = NULL;
        o.trainer.n_shares = 0;
        run_with(o, "async");
        o.site = TREK_SITE_PROCESS;
        run_with(o, "site");
    }
    assert_true(isnan(trek_metrics_get(NULL, "x")));
    trek_error_clear();
    assert_null(trek_metrics_values(NULL, "x"));
    trek_error_clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_loops), cmocka_unit_test(test_own_loop),
                                        cmocka_unit_test(test_by_hand),
                                        cmocka_unit_test(test_mistakes),
                                        cmocka_unit_test(test_no_value), cmocka_unit_test(test_runs) };
    return cmocka_run_group_tests_name("run_metrics", tests, NULL, NULL);
}
