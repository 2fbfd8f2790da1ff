/* SPDX-License-Identifier: Apache-2.0 */
/* Runs: the library's own loop against one that is written out, on 1 to 3 ranks; metrics, evaluation, stopping, what fails. */
#include <stdatomic.h>
#include <unistd.h>

#include "autograd/backward.h"
#include "autograd/grad.h"
#include "autograd/ops.h"
#include "data/compose.h"
#include "data/loader_position.h"
#include "distributed/checkpoint.h"
#include "distributed/run.h"
#include "distributed/run_progress.h"
#include "distributed/stop.h"
#include "graph/observe.h"
#include "graph/record.h"
#include "graph/settings.h"
#include "nn/state_modules.h"
#include "nn/state_tensors.h"
#include "tests/support/files.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/training.h"

enum { EPOCHS = 3, BATCH = 8, STEPS = (SAMPLES + BATCH - 1) / BATCH };

/* --- training functions ------------------------------------------------------------------------ */

static trek_var *squares(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    trek_var *error = trek_sub(trek_narrow(output, 1, 0, 1), trek_batch_get(batch, "target"));
    trek_var *loss = trek_mean(trek_mul(error, error), trek_dims_all(), false);
    trek_record_scalar("squares", loss);
    trek_record_sum("samples", (double)trek_batch_size(batch));
    trek_record_mean("size", (double)trek_batch_size(batch), 2);
    trek_record_mean("by size", (double)trek_batch_size(batch), (double)trek_batch_size(batch));
    return loss;
}

static trek_var *squares_by_hand(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    assert_null(output);
    trek_var *y = trek_graph_forward(graph, trek_batch_get(batch, "x"));
    return y ? squares(graph, y, batch, arg) : NULL;
}

/* --- helpers ------------------------------------------------------------------------------------- */

static trek_run_opts plain_opts(trek_dataset *dataset, int ranks)
{
    return (trek_run_opts){ .build_model = training_build, .train_step = squares, .dataset = dataset, .input = "x",
                            .optimizer = training_adam(), .batch_size = BATCH, .shuffle = true, .epochs = EPOCHS, .seed = 7,
                            .trainer = { .ranks = ranks, .devices = test_devices() } };
}

/* The loop that a run stands for. */
static trek_state *loop_of(const trek_run_opts *o, int64_t epochs)
{
    trek_seed(o->seed);
    trek_graph *graph = training_build(test_device(), NULL);
    trek_loader *loader = trek_loader_new(trek_dataset_retain(o->dataset),
                                          &(trek_loader_opts){ .batch_size = o->batch_size, .shuffle = o->shuffle,
                                                               .seed = o->seed, .device = test_device() });
    trek_graph_set_loader(graph, loader, "x");
    trek_graph_set_loss(graph, squares, NULL);
    trek_trainer_opts t = o->trainer;
    t.build_replica = training_build;
    t.optimizer = o->optimizer;
    t.max_anchor = o->policy == TREK_POLICY_SYNC ? TREK_OFF : t.max_anchor;
    assert_int_equal(trek_trainer_setup(graph, &t), TREK_OK);
    for (int64_t epoch = 0; epoch < epochs; epoch++) {
        trek_graph_start(graph, epoch);
        for (trek_batch *batch; (batch = trek_graph_next(graph));) {
            assert_non_null(trek_graph_train_batch(graph, batch));
            assert_int_equal(trek_graph_step(graph), TREK_OK);
        }
    }
    trek_state *state = trek_state_of(trek_graph_module(graph));
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    assert_int_equal(trek_error_status(), TREK_OK);
    return state;
}

static void compare_states(const trek_state *a, const trek_state *b, double tolerance)
{
    assert_non_null(a);
    assert_int_equal(trek_state_count(a), trek_state_count(b));
    for (int k = 0; k < trek_state_count(a); k++) {
        trek_tensor *x = trek_state_tensor(a, k), *y = trek_state_find(b, trek_state_name(a, k));
        assert_non_null(y);
        if (tolerance == 0)
            assert_true(test_same_bits(x, y));
        double *p = test_read(x), *q = test_read(y);
        for (int64_t i = 0; i < trek_tensor_numel(x); i++)
            if (!(fabs(p[i] - q[i]) <= tolerance * (1 + fabs(q[i]))))
                fail_msg("%s[%d] is %.17g instead of %.17g", trek_state_name(a, k), (int)i, p[i], q[i]);
        free(p);
        free(q);
    }
}

/* All epochs, and the final state. */
static trek_state *finish(trek_run *run, trek_epoch_metrics *last, int *epochs)
{
    *epochs = 0;
    if (!run)
        fail_msg("%s", trek_error());
    while (trek_run_next(run, last)) {
        assert_true(last->epoch >= *epochs);
        ++*epochs;
    }
    return trek_run_join(run);
}

static trek_state *run_all(const trek_run_opts *o)
{
    trek_epoch_metrics m;
    int epochs;
    trek_state *state = finish(trek_trainer_run(o), &m, &epochs);
    if (!state)
        fail_msg("%s", trek_error());
    return state;
}

static const char *folder(void)
{
    static char text[64];
    snprintf(text, sizeof text, "/tmp/trek-run-XXXXXX");
    assert_non_null(mkdtemp(text));
    return text;
}

static void remove_folder(const char *path)
{
    assert_int_equal(test_remove(path), 0);
}

/* --- the loop ---------------------------------------------------------------------------------- */

static void test_is_the_loop(void **state)
{
    trek_dataset *data = training_dataset();
    for (int ranks = 1; ranks <= 3; ranks++)
        for (int by_hand = 0; by_hand < 2; by_hand++) {
            trek_run_opts o = plain_opts(data, ranks);
            if (by_hand) {
                o.train_step = squares_by_hand;
                o.input = NULL;
                o.shuffle = 0; /* as a field that is left out */
            }
            trek_state *own = loop_of(&o, EPOCHS), *run = run_all(&o);
            compare_states(run, own, 0);
            trek_state_free(&own);
            trek_state_free(&run);
        }
    trek_dataset_free(&data);
}

/* Windows: exact for their samples, whatever they come to; here the ranks are equal and the anchor stays. */
static void test_cadence(void **state)
{
    trek_dataset *data = training_dataset();
    trek_run_opts o = plain_opts(data, 2);
    o.policy = TREK_POLICY_CADENCE;
    o.batch_size = 2;
    o.epochs = 6;
    o.trainer.anchor = 2;
    o.trainer.max_anchor = 4;
    setenv("TREK_SLOWDOWN", "1,4s", 1);
    trek_epoch_metrics m;
    trek_run *run = trek_trainer_run(&o);
    double first = NAN;
    for (int64_t epoch = 0; epoch < o.epochs; epoch++) {
        assert_true(trek_run_next(run, &m));
        assert_int_equal(m.samples, SAMPLES); /* every sample once */
        assert_int_equal(m.per_rank[0].samples + m.per_rank[1].samples, SAMPLES);
        assert_true(m.anchor >= 1 && m.anchor <= 4);
        assert_true(m.steps < STEPS * 4);
        assert_true(fabs(m.loss - trek_metrics_get(&m, "squares")) < 1e-12);
        first = epoch == 0 ? m.loss : first;
    }
    assert_true(m.loss < first);
    assert_true(m.per_rank[0].samples > m.per_rank[1].samples); /* the slow one has fewer */
    trek_state *final = trek_run_join(run);
    unsetenv("TREK_SLOWDOWN");
    assert_non_null(final);
    trek_state_free(&final);
    trek_dataset_free(&data);
}

static void test_metrics(void **state)
{
    trek_dataset *data = training_dataset();
    double losses[4];
    for (int ranks = 1; ranks <= 3; ranks++) {
        trek_run_opts o = plain_opts(data, ranks);
        o.lr_scale = 0;
        trek_run *run = trek_trainer_run(&o);
        trek_epoch_metrics m;
        trek_run_progress p;
        for (int epoch = 0; epoch < EPOCHS; epoch++) {
            assert_true(trek_run_next(run, &m));
            assert_int_equal(m.epoch, epoch);
            assert_int_equal(m.steps, STEPS);
            assert_int_equal(m.samples, SAMPLES);
            assert_int_equal(m.ranks, ranks);
            assert_true(m.process == 0 && m.processes == 1 && m.rank == 0);
            assert_int_equal(m.n_scalars, 4);
            assert_true(m.seconds > 0 && m.samples_per_s > 0);
            assert_true(fabs(m.loss - trek_metrics_get(&m, "squares")) < 1e-12 * (1 + m.loss));
            assert_true(trek_metrics_get(&m, "samples") == SAMPLES);
            if (ranks == 1) { /* 7 batches of 8, one of 5 */
                assert_true(fabs(trek_metrics_get(&m, "size") - 61.0 / 8) < 1e-12);
                assert_true(fabs(trek_metrics_get(&m, "by size") - (7 * 64 + 25) / 61.0) < 1e-12);
            }
            assert_true(trek_metrics_get(&m, "loss") == m.loss);
            assert_true(isnan(trek_metrics_get(&m, "evaluation_loss")) && isnan(trek_metrics_get(&m, "none")));
            assert_true(m.best == (epoch == 0 || m.best));
            int64_t samples = 0;
            double share = 0;
            for (int r = 0; r < ranks; r++) {
                samples += m.per_rank[r].samples;
                share += m.per_rank[r].share;
                assert_true(m.per_rank[r].compute_s >= 0 && m.per_rank[r].compute_s <= m.seconds * 1.01);
                assert_true(m.per_rank[r].waiting_s >= 0);
            }
            assert_int_equal(samples, SAMPLES);
            assert_true(fabs(share - 1) < 1e-12);
        }
        assert_false(trek_run_next(run, &m));
        assert_false(trek_run_poll(run, &m));
        assert_int_equal(trek_run_look(run, &p), TREK_OK);
        assert_false(p.running);
        assert_int_equal(p.samples, EPOCHS * SAMPLES);
        assert_int_equal(p.batch, STEPS);
        assert_int_equal(p.batches, STEPS);
        losses[ranks] = m.loss;
        trek_state *final = trek_run_join(run);
        trek_state_free(&final);
    }
    assert_true(fabs(losses[2] - losses[1]) < 1e-9 && fabs(losses[3] - losses[1]) < 1e-9); /* of all ranks, exactly */
    trek_dataset_free(&data);
}

/* Scalars in setup mode: those of all ranks, the last, smaller batch by its weight. */
static void test_recorded_in_setup_mode(void **state)
{
    double points[4];
    for (int ranks = 1; ranks <= 3; ranks++) {
        trek_loader *loader = trek_loader_new(training_dataset(), &(trek_loader_opts){ .batch_size = BATCH });
        trek_graph *graph = training_build(test_device(), NULL);
        trek_graph_set_loader(graph, loader, "x");
        trek_graph_set_loss(graph, squares, NULL);
        assert_int_equal(trek_trainer_setup(graph,
                                            &(trek_trainer_opts){ .ranks = ranks, .devices = test_devices(),
                                                                  .build_replica = training_build }),
                         TREK_OK);
        trek_graph_train(graph, false);
        trek_graph_start(graph, 0);
        for (trek_batch *batch; (batch = trek_graph_next(graph));)
            trek_graph_train_batch(graph, batch);
        trek_graph_record(graph, "of the loop", 3);
        assert_int_equal(trek_graph_flush(graph), TREK_OK);
        points[ranks] = trek_graph_latest(graph, "squares");
        assert_true(trek_graph_latest(graph, "samples") == SAMPLES && trek_graph_latest(graph, "of the loop") == 3);
        assert_int_equal(trek_graph_flush(graph), TREK_OK); /* nothing new */
        assert_int_equal(trek_trend_count(trek_graph_trend(graph, "squares")), 1);
        trek_graph_free(&graph);
        trek_loader_free(&loader);
    }
    assert_true(fabs(points[2] - points[1]) < 1e-13 && fabs(points[3] - points[1]) < 1e-13);
    FAILS(trek_record_sum("nowhere", 1), TREK_ERR_STATE, "");
}

/* --- evaluation --------------------------------------------------------------------------------- */

static trek_var *judge(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    assert_false(trek_grad_enabled() && trek_module_is_training(trek_graph_module(graph)));
    trek_var *error = trek_sub(trek_narrow(output, 1, 0, 1), trek_batch_get(batch, "target"));
    trek_record_mean("first", (double)trek_batch_indices(batch)[0], 1);
    return trek_mean(trek_abs(error), trek_dims_all(), false);
}

static void test_evaluation(void **state)
{
    trek_dataset *data = training_dataset(), *test = training_dataset();
    double values[4];
    for (int ranks = 1; ranks <= 3; ranks++) {
        trek_run_opts o = plain_opts(data, ranks);
        o.evaluation = test;
        o.evaluate = judge;
        o.evaluation_batch = 7;
        o.evaluate_every = 2;
        trek_run *run = trek_trainer_run(&o);
        trek_epoch_metrics m;
        for (int epoch = 0; epoch < EPOCHS; epoch++) {
            assert_true(trek_run_next(run, &m));
            assert_true(isnan(m.evaluation_loss) == (epoch == 0)); /* every second, and the last */
            assert_true(m.samples == SAMPLES && isnan(trek_metrics_get(&m, "first")));
            int64_t of_ranks = 0;
            for (int r = 0; r < ranks; r++) /* in training */
                of_ranks += m.per_rank[r].samples;
            assert_int_equal(of_ranks, SAMPLES);
            assert_true(isnan(trek_metrics_get(&m, "evaluation.first")) == (epoch == 0));
        }
        values[ranks] = m.evaluation_loss;
        trek_state *with = trek_run_join(run), *without;
        o.evaluation = NULL;
        o.evaluate = NULL;
        o.evaluation_batch = o.evaluate_every = 0;
        without = run_all(&o);
        compare_states(with, without, 0); /* it changes nothing */
        trek_state_free(&with);
        trek_state_free(&without);
    }
    assert_true(fabs(values[2] - values[1]) < 1e-9 && fabs(values[3] - values[1]) < 1e-9);
    trek_dataset_free(&data);
    trek_dataset_free(&test);
}

/* Windows: each rank has a reader of its own, of the dataset that is evaluated, then of the other again. */
static void test_evaluation_in_windows(void **state)
{
    trek_dataset *data = training_dataset(), *whole = training_dataset();
    double values[2];
    for (int ranks = 1; ranks <= 2; ranks++) {
        trek_dataset *few = trek_dataset_subset(trek_dataset_retain(whole), 40, 9);
        trek_run_opts o = plain_opts(data, ranks);
        o.batch_size = 2;
        o.optimizer = trek_sgd(&(trek_sgd_opts){ .lr = TREK_ZERO });
        o.evaluation = few;
        o.evaluate = judge;
        if (ranks == 2) {
            o.policy = TREK_POLICY_CADENCE;
            o.trainer.anchor = o.trainer.max_anchor = 2;
        }
        trek_epoch_metrics m;
        trek_run *run = trek_trainer_run(&o);
        while (trek_run_next(run, &m)) {
            assert_int_equal(m.samples, SAMPLES);
            values[ranks - 1] = m.evaluation_loss;
        }
        trek_state *final = trek_run_join(run);
        assert_non_null(final);
        trek_state_free(&final);
        trek_dataset_free(&few);
    }
    assert_true(fabs(values[1] - values[0]) < 1e-13);
    trek_dataset_free(&data);
    trek_dataset_free(&whole);
}

/* --- keeping, stopping, resuming ------------------------------------------------------------------ */

/* Asks the run to stop in the midst of its third epoch, from the ranks' threads. */
static _Atomic(trek_run *) to_stop;
static atomic_int calls;

static trek_var *squares_and_stop(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    while (!atomic_load(&to_stop)) /* trek_trainer_run has not returned yet */
        usleep(100);
    if (atomic_fetch_add(&calls, 1) >= *(int *)arg)
        trek_run_stop(atomic_load(&to_stop));
    return squares(graph, output, batch, NULL);
}

static void resume(trek_dataset *data, int ranks, bool by_stop, int accumulate, bool at_end)
{
    const char *path = folder();
    int most = at_end ? 2 * STEPS * ranks - 1 /* the second epoch's last call: that one ends */
        : (2 * STEPS + 2) * ranks;            /* with accumulation: between the two passes of a step */
    trek_run_opts o = plain_opts(data, ranks);
    o.epochs = 4;
    o.trainer.accumulate = accumulate;
    trek_state *whole = run_all(&o);
    o.checkpoint_folder = path;
    o.resume_from = path; /* empty: from the beginning */
    o.epochs = by_stop ? 4 : 2;
    o.train_step = by_stop ? squares_and_stop : squares;
    o.arg = &most;
    atomic_store(&calls, 0);
    trek_run *run = trek_trainer_run(&o);
    atomic_store(&to_stop, run);
    trek_epoch_metrics m;
    int epochs;
    trek_state *half = finish(run, &m, &epochs);
    atomic_store(&to_stop, NULL);
    assert_non_null(half);
    assert_int_equal(epochs, 2);
    trek_state_free(&half);
    o.epochs = 4;
    o.train_step = squares;
    half = finish(trek_trainer_run(&o), &m, &epochs);
    compare_states(half, whole, 0);
    assert_int_equal(epochs, 2);
    assert_int_equal(test_count_files(path, "^step-"), 1);
    trek_state_free(&half);
    trek_state_free(&whole);
    remove_folder(path);
}

static void test_resume(void **state)
{
    trek_dataset *data = training_dataset();
    for (int ranks = 1; ranks <= 3; ranks += 2)
        for (int way = 0; way < 5; way++)
            resume(data, ranks, way == 4 || (way & 1), way & 2 ? 2 : 0, way == 4);
    trek_dataset_free(&data);
}

static int checkpoints;

static trek_status count_checkpoint(trek_graph *graph, int64_t epoch, const char *path, void *arg)
{
    assert_non_null(graph);
    assert_int_equal(access(path, R_OK), 0);
    checkpoints++;
    return TREK_OK;
}

static trek_status worse_and_worse(const trek_epoch_metrics *m, void *arg)
{
    *(int *)arg = (int)m->epoch + 1;
    return TREK_OK;
}

static trek_var *rising(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    trek_record_mean("epochs", *(int *)arg < 2 ? 2 - *(int *)arg : *(int *)arg, 1);
    return squares(graph, output, batch, NULL);
}

static void test_keeping(void **state)
{
    trek_dataset *data = training_dataset();
    const char *path = folder();
    int epoch = 0;
    trek_run_opts o = plain_opts(data, 2);
    o.epochs = 10;
    o.arg = &epoch;
    o.train_step = rising; /* 2 1 2 3 4 ...: best in epoch 1 */
    o.on_metrics = worse_and_worse;
    o.best_metric = "epochs";
    o.patience = 3;
    o.checkpoint_folder = path;
    o.keep_last = 2;
    o.keep_best = true;
    o.on_checkpoint = count_checkpoint;
    trek_epoch_metrics m;
    int epochs;
    checkpoints = 0;
    trek_state *final = finish(trek_trainer_run(&o), &m, &epochs);
    assert_non_null(final);
    assert_int_equal(epochs, 5);
    assert_false(m.best);
    assert_int_equal(checkpoints, 7);
    assert_int_equal(test_count_files(path, "^step-"), 2);
    assert_int_equal(test_count_files(path, "^best.safetensors$"), 1);
    char best[128];
    snprintf(best, sizeof best, "%s/best.safetensors", path);
    trek_graph *graph = training_build(test_device(), NULL);
    assert_int_equal(trek_graph_set_optimizer(graph, training_adam()), TREK_OK);
    assert_int_equal(trek_checkpoint_load(graph, NULL, best), TREK_OK);
    assert_int_equal(trek_graph_steps(graph), 2 * STEPS);
    trek_graph_free(&graph);
    trek_state_free(&final);
    o.resume_from = path; /* which had no patience left */
    final = finish(trek_trainer_run(&o), &m, &epochs);
    assert_non_null(final);
    assert_int_equal(epochs, 0);
    trek_state_free(&final);
    remove_folder(path);
    trek_dataset_free(&data);
}

static void keep_warning(trek_log_level level, const char *message, void *arg)
{
    if (level == TREK_LOG_LEVEL_WARNING)
        snprintf(arg, 256, "%s", message);
}

/* What decides is there after the first epoch that could have it, or the run says what is; what ends early says so. */
static void test_best_metric(void **state)
{
    static const struct {
        const char *name, *says; /* NULL: it is well */
        int every, epochs;       /* epochs: that are told before the run ends */
        bool evaluates;
    } cases[] = {
        { "accurracy", "\"accurracy\" was not measured in epoch 0, which had loss, by size, samples, size, squares", 0, 0,
          false },
        { "evaluation.accuracy",
          "measured in epoch 0, which had loss, evaluation_loss, by size, evaluation.by size", 0, 0,
          true },
        { "evaluation.accuracy",
          "measured in epoch 2, which had loss, evaluation_loss, by size, evaluation.by size", 3, 2,
          true },
        { "evaluation.squares", NULL, 3, 4, true },
        { "evaluation.squares", "measured in epoch 0, which had loss, by size, samples, size, squares", 0, 0, false },
        { "by size", NULL, 0, 4, false },
        { NULL, NULL, 3, 4, true },
    };
    trek_dataset *data = training_dataset();
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        trek_run_opts o = plain_opts(data, 2);
        o.epochs = 4;
        o.best_metric = cases[k].name;
        o.patience = 9;
        o.evaluation = cases[k].evaluates ? data : NULL;
        o.evaluate_every = cases[k].every;
        trek_epoch_metrics m;
        int epochs;
        trek_state *final = finish(trek_trainer_run(&o), &m, &epochs);
        assert_int_equal(epochs, cases[k].epochs);
        if (cases[k].says)
            expect_error(TREK_ERR_ARGUMENT, cases[k].says);
        assert_int_equal(trek_error_status(), TREK_OK);
        assert_true((final != NULL) == !cases[k].says);
        trek_state_free(&final);
    }
    char said[256] = "";
    int epoch = 0;
    trek_run_opts o = plain_opts(data, 2);
    o.epochs = 9;
    o.arg = &epoch;
    o.train_step = rising; /* best in epoch 1 */
    o.on_metrics = worse_and_worse;
    o.best_metric = "epochs";
    o.patience = 2;
    trek_epoch_metrics m;
    int epochs;
    trek_log_set(TREK_LOG_LEVEL_WARNING, keep_warning, said);
    trek_state *final = finish(trek_trainer_run(&o), &m, &epochs);
    trek_log_set(TREK_LOG_LEVEL_WARNING, NULL, NULL);
    assert_non_null(final);
    assert_non_null(strstr(said, "stopped early after epoch 3 (.patience 2): best epoch 1, epochs 1"));
    trek_state_free(&final);
    trek_dataset_free(&data);
}

/* Only a run's own folder may be missing; a file never. */
static void test_nothing_to_resume(void **state)
{
    trek_dataset *data = training_dataset();
    const char *path = folder();
    char file[128], other[128];
    snprintf(file, sizeof file, "%s/step-000000000001.safetensors", path);
    snprintf(other, sizeof other, "%s/none", path);
    for (int k = 0; k < 4; k++) {
        trek_run_opts o = plain_opts(data, 2);
        o.epochs = 1;
        o.checkpoint_folder = k < 2 ? path : k == 2 ? other : NULL;
        o.resume_from = k == 0 ? file : k < 3 ? other : "/tmp/trek-none";
        trek_state *final = trek_run_join(trek_trainer_run(&o));
        assert_true((final != NULL) == (k == 2));
        if (k != 2)
            expect_error(TREK_ERR_IO, k == 0 ? "safetensors does not exist"
                         : "none does not exist; only .checkpoint_folder may be");
        trek_state_free(&final);
    }
    remove_folder(path);
    trek_dataset_free(&data);
}

static void test_rates(void **state)
{
    trek_dataset *data = training_dataset();
    for (int scheduled = 0; scheduled < 2; scheduled++) {
        trek_run_opts o = plain_opts(data, 3);
        o.optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.01 });
        o.epochs = 1;
        o.lr_scale = 0.5;
        if (scheduled)
            o.schedule = trek_step_lr(0.02, STEPS - 1, 0.1);
        trek_epoch_metrics m;
        int epochs;
        trek_state *final = finish(trek_trainer_run(&o), &m, &epochs);
        assert_non_null(final);
        assert_true(fabs(m.lr - (scheduled ? 0.004 : 0.02)) < 1e-12);
        trek_state_free(&final);
    }
    trek_dataset_free(&data);
}

/* --- what fails ---------------------------------------------------------------------------------- */

static trek_var *fails_on_rank_one(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    for (int64_t k = 0; k < trek_batch_size(batch); k++)
        if (trek_batch_indices(batch)[k] == 37)
            return NULL;
    return squares(graph, output, batch, arg);
}

static trek_graph *no_model(trek_device device, void *arg)
{
    return NULL;
}

static trek_status refuse_epoch(trek_graph *graph, int64_t epoch, void *arg)
{
    return epoch == 1 ? TREK_ERR_CALLBACK : TREK_OK;
}

static trek_status refuse_metrics(const trek_epoch_metrics *m, void *arg)
{
    return trek_fail(TREK_ERR_IO, "the disk is full");
}

static void expect_failure(const trek_run_opts *o, int epochs, trek_status status, const char *text)
{
    trek_epoch_metrics m;
    int n;
    assert_null(finish(trek_trainer_run(o), &m, &n));
    assert_int_equal(n, epochs);
    if (trek_error_status() != status || !strstr(trek_error(), text))
        fail_msg("%s (%s), not %s", trek_error(), trek_status_name(trek_error_status()), text);
    trek_error_clear();
}

static void test_failures(void **state)
{
    trek_dataset *data = training_dataset();
    for (int ranks = 1; ranks <= 3; ranks++) {
        trek_run_opts o = plain_opts(data, ranks);
        o.train_step = fails_on_rank_one;
        o.shuffle = false;
        expect_failure(&o, 0, TREK_ERR_CALLBACK, ranks == 3 ? "rank 1: trainer_run: .train_step: returned NULL"
                       : ".train_step: returned NULL");
        o = plain_opts(data, ranks);
        o.build_model = no_model;
        expect_failure(&o, 0, TREK_ERR_CALLBACK, "build_model");
        o = plain_opts(data, ranks);
        o.on_epoch = refuse_epoch;
        expect_failure(&o, 1, TREK_ERR_CALLBACK, "on_epoch");
        o = plain_opts(data, ranks);
        o.on_metrics = refuse_metrics;
        expect_failure(&o, 0, TREK_ERR_IO, "the disk is full");
        o = plain_opts(data, ranks);
        o.checkpoint_folder = "/proc/no such folder";
        expect_failure(&o, 0, TREK_ERR_IO, "no such folder");
    }
    trek_dataset_free(&data);
}

static void test_refused(void **state)
{
    trek_dataset *data = training_dataset();
    const trek_run_opts good = plain_opts(data, 2);
#define BAD(what, ...)                                                                           \
    do {                                                                                         \
        trek_run_opts o = good;                                                                  \
        __VA_ARGS__;                                                                             \
        assert_null(trek_trainer_run(&o));                                                       \
        if (trek_error_status() != TREK_ERR_ARGUMENT || !strstr(trek_error(), what))             \
            fail_msg("%s: %s", what, trek_error());                                              \
        trek_error_clear();                                                                      \
    } while (0)
    BAD("build_model", o.build_model = NULL);
    BAD("train_step", o.train_step = NULL);
    BAD("dataset", o.dataset = NULL);
    BAD("optimizer", o.optimizer.klass = NULL);
    BAD("batch_size", o.batch_size = 0);
    BAD("epochs", o.epochs = -1);
    BAD("pixels", o.input = "pixels");
    BAD("policy", o.policy = 17);
    BAD("lr_scale", o.lr_scale = NAN);
    BAD("max_anchor", o.trainer.max_anchor = 3);
    BAD("max_anchor", (o.policy = TREK_POLICY_CADENCE, o.trainer.max_anchor = TREK_OFF));
    BAD("build_replica", o.trainer.build_replica = training_build);
    BAD("ranks", o.trainer.ranks = 0);
    BAD("evaluate", o.evaluate = squares);
    BAD("min_delta", o.min_delta = -1);
    BAD("checkpoint_every", o.checkpoint_every = 3);
    BAD("keep_last", (o.checkpoint_folder = "/tmp", o.keep_last = -7));
    assert_null(trek_trainer_run(NULL));
    trek_error_clear();
    assert_null(trek_run_join(NULL));
    trek_error_clear();
    trek_dataset_free(&data);
}

/* A program that does not wait: it looks, stops, joins; at once, too. */
static void test_stop(void **state)
{
    trek_dataset *data = training_dataset();
    for (int how = 0; how < 3; how++) {
        trek_run_opts o = plain_opts(data, 1 + how);
        o.epochs = 1000000;
        trek_run *run = trek_trainer_run(&o);
        trek_run_progress p = { 0 };
        while (how > 0 && p.samples < 200)
            usleep(1000), trek_run_look(run, &p);
        if (how < 2)
            trek_run_stop(run);
        else
            trek_request_stop();
        trek_state *final = trek_run_join(run);
        assert_non_null(final);
        trek_state_free(&final);
        trek_stop_clear();
    }
    trek_dataset_free(&data);
}

/* Windows of fewer batches than there are ranks. */
static void test_small_windows(void **state)
{
    trek_dataset *data = training_dataset();
    for (int64_t batches = 1; batches <= 3; batches++) {
        trek_run_opts o = plain_opts(data, 3);
        o.policy = TREK_POLICY_CADENCE;
        o.trainer.global_batch = batches * BATCH;
        trek_epoch_metrics m;
        int epochs;
        trek_state *final = finish(trek_trainer_run(&o), &m, &epochs);
        if (!final)
            fail_msg("%d batches: %s", (int)batches, trek_error());
        assert_int_equal(m.samples, SAMPLES);
        assert_int_equal(m.steps, (STEPS + batches - 1) / batches);
        trek_state_free(&final);
    }
    trek_dataset_free(&data);
}

/* Fewer samples than ranks, and than a batch. */
static void test_small(void **state)
{
    trek_dataset *data = training_dataset();
    for (int64_t samples = 1; samples <= 3; samples += 2)
        for (int policy = 0; policy < 2; policy++) {
            trek_dataset *few = trek_dataset_subset(trek_dataset_retain(data), 0, samples);
            trek_run_opts o = plain_opts(few, 3);
            o.policy = (trek_policy)policy;
            trek_epoch_metrics m;
            int epochs;
            trek_state *final = finish(trek_trainer_run(&o), &m, &epochs);
            if (!final)
                fail_msg("%s", trek_error());
            assert_int_equal(epochs, EPOCHS);
            assert_int_equal(m.samples, samples);
            trek_state_free(&final);
            trek_dataset_free(&few);
        }
    trek_dataset_free(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_is_the_loop), cmocka_unit_test(test_cadence), cmocka_unit_test(test_metrics),
        cmocka_unit_test(test_evaluation), cmocka_unit_test(test_evaluation_in_windows), cmocka_unit_test(test_resume),
        cmocka_unit_test(test_keeping), cmocka_unit_test(test_best_metric),
        cmocka_unit_test(test_nothing_to_resume), cmocka_unit_test(test_rates), cmocka_unit_test(test_failures),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_stop), cmocka_unit_test(test_small),
        cmocka_unit_test(test_small_windows), cmocka_unit_test(test_recorded_in_setup_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
