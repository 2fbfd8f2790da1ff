/* SPDX-License-Identifier: Apache-2.0 */
/* What a run does, whatever its policy and the number of its ranks: it finds a known optimum, sees every sample of an epoch once,
 * follows its schedule, calls back once an epoch, and counts what happened. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "data/compose.h"
#include "data/loader_position.h"
#include "distributed/balance/plan.h"
#include "distributed/run.h"
#include "distributed/run_progress.h"
#include "graph/flow.h"
#include "graph/observe.h"
#include "graph/settings.h"
#include "nn/layers.h"
#include "nn/state_modules.h"
#include "nn/state_tensors.h"
#include "optim/schedules.h"
#include "tests/support/files.h"
#include "tests/support/left.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { FEATURES = 3, ROWS = 61, MOST_EPOCHS = 8, DEVICE_WAYS = 9, MOST_WAYS = 18 };
static const double truth[FEATURES + 1] = { 0.5, -1.25, 2, 0.75 }; /* the last one is the bias */

/* --- a convex problem ------------------------------------------------------------------------- */

static trek_dataset *line_dataset(void)
{
    double x[ROWS * FEATURES], y[ROWS];
    for (int i = 0; i < ROWS; i++) {
        y[i] = truth[FEATURES];
        for (int k = 0; k < FEATURES; k++) {
            x[i * FEATURES + k] = test_number(3, (uint32_t)(i * FEATURES + k));
            y[i] += truth[k] * x[i * FEATURES + k];
        }
    }
    trek_tensor *tensors[] = { trek_tensor_from_data(x, trek_dims(ROWS, FEATURES), TREK_F64, trek_cpu(0)),
                               trek_tensor_from_data(y, trek_dims(ROWS, 1), TREK_F64, trek_cpu(0)) };
    trek_dataset *dataset = trek_dataset_tensors((const char *const[]){ "x", "y" }, tensors, 2);
    trek_tensor_release(tensors[0]);
    trek_tensor_release(tensors[1]);
    return dataset;
}

static trek_graph *line_build(trek_device device, void *arg)
{
    return trek_flow_build(trek_flow_from(trek_nn_linear_with(&(trek_linear_opts){
        .in = FEATURES, .out = 1, .dtype = TREK_F64, .device = device })));
}

static trek_var *squares(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    return trek_mse_loss(output, trek_batch_get(batch, "y"));
}

/* --- ways ---------------------------------------------------------------------------------------- */

typedef struct way {
    int ranks;
    trek_policy policy;
    trek_average average;
    trek_transport transport;
} way;

/* Every policy on every number of ranks; the first DEVICE_WAYS without the host's transport. */
static way way_of(int k)
{
    static const way kinds[] = {
        { .policy = TREK_POLICY_SYNC },
        { .policy = TREK_POLICY_CADENCE },
        { .policy = TREK_POLICY_CADENCE, .average = TREK_AVERAGE_PARAMETERS },
        { .policy = TREK_POLICY_SYNC, .transport = TREK_TRANSPORT_HOST },
        { .policy = TREK_POLICY_CADENCE, .transport = TREK_TRANSPORT_HOST },
        { .policy = TREK_POLICY_ASYNC, .transport = TREK_TRANSPORT_HOST },
    };
    way w = kinds[k / 3];
    w.ranks = 1 + k % 3;
    return w;
}

static trek_run_opts opts_of(trek_dataset *data, way w)
{
    bool windows = w.policy != TREK_POLICY_SYNC;
    return (trek_run_opts){ .build_model = line_build, .train_step = squares, .dataset = data, .input = "x",
                            .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.3 }), .batch_size = windows ? 4 : 8, .shuffle = true,
                            .epochs = 4,
                            .seed = 11, .policy = w.policy, .transport = w.transport,
                            .trainer = { .ranks = w.ranks, .devices = test_devices(), .average = w.average,
                                         .anchor = windows ? 2 : 0, .max_anchor = windows ? 2 : 0 } };
}

static trek_run *begin(const trek_run_opts *o)
{
    trek_run *run = trek_trainer_run(o);
    if (!run)
        fail_msg("%s", trek_error());
    return run;
}

static trek_state *join(trek_run *run)
{
    trek_state *state = trek_run_join(run);
    if (!state)
        fail_msg("%s", trek_error());
    return state;
}

/* All parameters, the bias last; frees the state. */
static void read_line(trek_state *state, double to[FEATURES + 1])
{
    double *weight = test_read(trek_state_find(state, "0.weight")), *bias = test_read(trek_state_find(state, "0.bias"));
    assert_true(weight && bias);
    memcpy(to, weight, FEATURES * sizeof *to);
    to[FEATURES] = *bias;
    free(weight);
    free(bias);
    trek_state_free(&state);
}

static void test_finds_the_optimum(void **state)
{
    trek_dataset *data = line_dataset();
    for (int k = 0; k < MOST_WAYS; k++) {
        trek_run_opts o = opts_of(data, way_of(k));
        o.epochs = 150;
        trek_run *run = begin(&o);
        double before = INFINITY, found[FEATURES + 1];
        for (trek_epoch_metrics m; trek_run_next(run, &m);) {
            if (m.epoch % 10 == 0) {
                assert_true(m.loss < before || m.loss < 1e-20);
                before = m.loss;
            }
        }
        read_line(join(run), found);
        for (int i = 0; i <= FEATURES; i++)
            if (!(fabs(found[i] - truth[i]) < 1e-6))
                fail_msg("way %d: number %d is %g, not %g", k, i, found[i], truth[i]);
    }
    trek_dataset_free(&data);
}

/* --- samples ------------------------------------------------------------------------------------- */

typedef struct seen {
    _Atomic int64_t epoch;
    atomic_int times[MOST_EPOCHS][ROWS], calls[MOST_EPOCHS];
    int first[MOST_EPOCHS][ROWS]; /* one rank: the order */
    bool ordered;
    int epochs_called;
    atomic_int metrics_called; /* which the caller looks at while the run goes on */
    trek_epoch_metrics metrics[MOST_EPOCHS];
    double lr;                    /* on_epoch sets lr / (1 + epoch) */
} seen;

static trek_var *squares_seen(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    seen *s = arg;
    int64_t epoch = atomic_load(&s->epoch);
    for (int64_t k = 0; k < trek_batch_size(batch); k++) {
        int64_t sample = trek_batch_indices(batch)[k];
        atomic_fetch_add(&s->times[epoch][sample], 1);
        int call = atomic_fetch_add(&s->calls[epoch], 1);
        if (s->ordered)
            s->first[epoch][call] = (int)sample;
    }
    trek_record_sum("epochs", (double)epoch * (double)trek_batch_size(batch));
    return squares(graph, output, batch, NULL);
}

static trek_status note_epoch(trek_graph *graph, int64_t epoch, void *arg)
{
    seen *s = arg;
    atomic_store(&s->epoch, epoch);
    assert_int_equal(epoch, s->epochs_called++);
    return s->lr > 0 ? trek_graph_set_lr(graph, s->lr / (double)(1 + epoch)) : TREK_OK;
}

static trek_status note_metrics(const trek_epoch_metrics *m, void *arg)
{
    seen *s = arg;
    s->metrics[s->metrics_called] = *m;
    s->metrics_called++;
    return TREK_OK;
}

static void run_seen(trek_run_opts *o, seen *s)
{
    o->train_step = squares_seen;
    o->on_epoch = note_epoch;
    o->on_metrics = note_metrics;
    o->arg = s;
    trek_run *run = begin(o);
    int epochs = 0;
    for (trek_epoch_metrics m; trek_run_next(run, &m); epochs++) {
        assert_true(s->metrics_called > epochs); /* they are called before */
        assert_memory_equal(&m, &s->metrics[epochs], sizeof m);
        assert_true(trek_metrics_get(&m, "epochs") == (double)epochs * ROWS); /* nothing is left over from another epoch */
    }
    assert_true(epochs == (int)o->epochs && s->metrics_called == epochs && s->epochs_called == epochs);
    trek_state *final = join(run);
    trek_state_free(&final);
}

/* Ranks change pace in mid-epoch. */
static void test_every_sample_once(void **state)
{
    trek_dataset *data = line_dataset();
    static seen s;
    setenv("TREK_SLOWDOWN", "1,1/3:6/9:1s,2", 1);
    for (int k = 0; k < MOST_WAYS; k++) {
        memset(&s, 0, sizeof s);
        trek_run_opts o = opts_of(data, way_of(k));
        o.trainer.max_anchor = o.policy == TREK_POLICY_SYNC ? 0 : 5;
        o.trainer.balance = 1;
        run_seen(&o, &s);
        for (int epoch = 0; epoch < o.epochs; epoch++) {
            assert_int_equal(s.metrics[epoch].samples, ROWS);
            for (int i = 0; i < ROWS; i++)
                if (atomic_load(&s.times[epoch][i]) != 1)
                    fail_msg("way %d: sample %d was seen %d times in epoch %d", k, i, atomic_load(&s.times[epoch][i]), epoch);
        }
    }
    unsetenv("TREK_SLOWDOWN");
    trek_dataset_free(&data);
}

/* The same of the same seed, another in each epoch and of another seed. */
static void test_order(void **state)
{
    trek_dataset *data = line_dataset();
    static seen runs[3];
    memset(runs, 0, sizeof runs);
    for (int k = 0; k < 3; k++) {
        trek_run_opts o = opts_of(data, (way){ .ranks = 1 });
        o.seed = k == 2 ? 12 : 11;
        runs[k].ordered = true;
        run_seen(&o, &runs[k]);
    }
    assert_memory_equal(runs[0].first, runs[1].first, sizeof runs[0].first);
    assert_memory_not_equal(runs[0].first, runs[2].first, sizeof runs[0].first);
    assert_memory_not_equal(runs[0].first[0], runs[0].first[1], sizeof runs[0].first[0]);
    trek_dataset_free(&data);
}

/* --- learning rates ------------------------------------------------------------------------------- */

/* What on_epoch sets holds, on all ranks. */
static void test_rate_set_before_epochs(void **state)
{
    trek_dataset *data = line_dataset();
    static seen s;
    setenv("TREK_SLOWDOWN", "1,1/3:6/9:1s,2", 1);
    for (int k = 0; k < MOST_WAYS; k++) {
        memset(&s, 0, sizeof s);
        s.lr = 0.2;
        trek_run_opts o = opts_of(data, way_of(k));
        run_seen(&o, &s);
        for (int epoch = 0; epoch < o.epochs; epoch++)
            assert_true(fabs(s.metrics[epoch].lr - s.lr / (1 + epoch)) < 1e-15);
    }
    trek_dataset_free(&data);
}

/* The bias has gradient 1: it falls by the learning rates of all steps. */
static trek_var *plain_mean(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    return trek_mean(output, trek_dims_all(), false);
}

/* Rates that ranks sum to on average, if they make `window` steps together and `each` on their own between two meetings. */
static double sum_of_rates(const trek_schedule *schedule, int64_t steps, int64_t window, int64_t each)
{
    double sum = 0;
    for (int64_t from = 0; from < steps; from += window)
        for (int64_t k = 0; k < each; k++)
            sum += trek_schedule_lr(schedule, from + k);
    return sum;
}

static void test_schedule_drives_the_steps(void **state)
{
    trek_dataset *data = line_dataset(), *some = trek_dataset_subset(trek_dataset_retain(data), 0, 48);
    for (int k = 0; k < DEVICE_WAYS; k++)
        for (int scaled = 0; scaled < 2; scaled++) {
            way w = way_of(k);
            bool windows = w.policy == TREK_POLICY_CADENCE, parameters = w.average == TREK_AVERAGE_PARAMETERS;
            trek_run_opts o = opts_of(some, w);
            int64_t batches = 48 / o.batch_size * o.epochs;
            o.train_step = plain_mean;
            o.lr_scale = scaled;
            o.schedule = trek_multistep_lr(0.1, (int64_t[]){ 5, 17 }, 2, 0.1);
            trek_plan *plan = trek_plan_new(w.ranks); /* two batches each, whatever the speeds */
            int64_t counts[3] = { 2, 2, 2 };
            if (windows && w.ranks > 1) {
                assert_int_equal(trek_plan_add_counts(plan, 0, counts, 2), TREK_OK);
                o.trainer.plan = plan;
            }
            double found[FEATURES + 1], start[FEATURES + 1];
            trek_seed(o.seed);
            trek_graph *graph = line_build(test_device(), NULL);
            read_line(trek_state_of(trek_graph_module(graph)), start);
            trek_graph_free(&graph);
            trek_run *run = begin(&o);
            trek_epoch_metrics m;
            int64_t steps = 0;
            while (trek_run_next(run, &m))
                steps += m.steps;
            read_line(join(run), found);
            int64_t window = windows && w.ranks > 1 ? 2 * w.ranks : 1;
            double factor = scaled ? w.ranks : 1;
            double sum = windows && parameters && w.ranks > 1 ? sum_of_rates(&o.schedule, batches, window, 2) :
                sum_of_rates(&o.schedule, windows && !parameters ? batches / window : batches, 1, 1);
            assert_int_equal(steps, windows && !parameters ? batches / window : batches);
            if (!(fabs(start[FEATURES] - found[FEATURES] - factor * sum) < 1e-12))
                fail_msg("way %d: the bias fell by %.12g, not %.12g", k, start[FEATURES] - found[FEATURES], factor * sum);
            trek_plan_free(&plan);
        }
    trek_dataset_free(&some);
    trek_dataset_free(&data);
}

/* --- what is counted ------------------------------------------------------------------------------- */

static void count_averages(const trek_run_opts *o, int64_t expected)
{
    trek_run *run = begin(o);
    for (trek_epoch_metrics m; trek_run_next(run, &m);)
        assert_int_equal(m.averages, expected);
    trek_state *final = join(run);
    trek_state_free(&final);
}

static void test_averages(void **state)
{
    trek_dataset *data = line_dataset();
    for (int k = 0; k < DEVICE_WAYS; k++) {
        way w = way_of(k);
        trek_run_opts o = opts_of(data, w);
        trek_plan *plan = trek_plan_new(w.ranks);
        int64_t counts[3] = { 2, 2, 2 }, batches = (ROWS + o.batch_size - 1) / o.batch_size;
        int64_t window = w.policy == TREK_POLICY_SYNC ? 1 : 2 * w.ranks;
        if (w.policy == TREK_POLICY_CADENCE && w.ranks > 1) {
            assert_int_equal(trek_plan_add_counts(plan, 0, counts, 2), TREK_OK);
            o.trainer.plan = plan;
        }
        count_averages(&o, w.ranks == 1 ? 0 : (batches + window - 1) / window);
        if (w.policy == TREK_POLICY_SYNC) {
            o.trainer.accumulate = 3; /* 8 batches: 3, 3 and 2 */
            count_averages(&o, w.ranks == 1 ? 0 : 3);
        }
        trek_plan_free(&plan);
    }
    trek_dataset_free(&data);
}

/* --- stopping and going on --------------------------------------------------------------------------- */

typedef struct stops {
    atomic_int times[ROWS], calls;
    int after;                  /* that many batches the run is asked to stop; 0: never */
    _Atomic(trek_run *) run;
} stops;

static trek_var *squares_and_stop(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    stops *s = arg;
    for (int64_t k = 0; k < trek_batch_size(batch); k++)
        atomic_fetch_add(&s->times[trek_batch_indices(batch)[k]], 1);
    if (atomic_fetch_add(&s->calls, 1) >= s->after && s->after > 0)
        trek_run_stop(atomic_load(&s->run));
    return squares(graph, output, batch, NULL);
}

static void make_folder(char *path)
{
    strcpy(path, "/tmp/trek-run-XXXXXX");
    assert_non_null(mkdtemp(path));
}

/* Whether all the folder's checkpoints are of the end of an epoch, of so many steps. */
static bool are_of_ends(const char *path, int64_t steps)
{
    char command[256];
    snprintf(command, sizeof command,
             "ls '%s' | sed -n 's/^step-0*\\([0-9]*\\).*/\\1/p' | awk '$1 %% %d { wrong = 1 } END { exit wrong }'", path,
             (int)steps);
    return system(command) == 0;
}

static void remove_folder(const char *path)
{
    assert_int_equal(test_remove(path), 0);
}

/* Every policy is stopped in the midst of epochs, again and again, and goes on with other numbers of ranks. */
static void test_stopped_and_resumed(void **state)
{
    trek_dataset *data = line_dataset();
    static stops s;
    char path[64];
    for (int k = 0; k < MOST_WAYS; k++) {
        trek_run_opts o = opts_of(data, way_of(k));
        int parts = 0;
        bool done = false;
        memset(&s, 0, sizeof s);
        make_folder(path);
        o.checkpoint_folder = o.resume_from = path;
        o.train_step = squares_and_stop;
        o.arg = &s;
        while (!done && parts < 50) {
            atomic_store(&s.calls, 0);
            atomic_store(&s.run, NULL);
            s.after = 7 + parts;
            o.trainer.ranks = 1 + (k % 3 + parts++) % 3;
            trek_run *run = begin(&o);
            atomic_store(&s.run, run);
            trek_state *final = join(run);
            trek_state_free(&final);
            int seen = 0;
            for (int i = 0; i < ROWS; i++)
                seen += atomic_load(&s.times[i]);
            done = seen >= ROWS * o.epochs;
        }
        assert_true(done && parts > 2);
        for (int i = 0; i < ROWS; i++)
            if (atomic_load(&s.times[i]) != o.epochs)
                fail_msg("way %d: sample %d was seen %d times", k, i, atomic_load(&s.times[i]));
        remove_folder(path);
    }
    trek_dataset_free(&data);
}

typedef struct followed {
    stops stops;                /* first: what training is told */
    int n;
    double loss[MOST_EPOCHS], rows[MOST_EPOCHS];
    int64_t samples[MOST_EPOCHS], steps[MOST_EPOCHS];
    bool best[MOST_EPOCHS];
} followed;

static trek_var *squares_recorded(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    return trek_record_sum("rows", (double)trek_batch_size(batch)) == TREK_OK ? squares_and_stop(graph, output, batch, arg)
        : NULL;
}

static trek_status follow(const trek_epoch_metrics *m, void *arg)
{
    followed *f = arg;
    int k = f->n++;
    f->loss[k] = m->loss;
    f->rows[k] = trek_metrics_get(m, "rows");
    f->samples[k] = m->samples;
    f->steps[k] = m->steps;
    f->best[k] = m->best;
    return TREK_OK;
}

/* Runs until all epochs have ended, stopped again and again. Returns how often. */
static int run_in_parts(trek_run_opts *o, followed *f, int after)
{
    int parts = 0;
    memset(f, 0, sizeof *f);
    o->train_step = squares_recorded;
    o->on_metrics = follow;
    o->arg = f;
    for (; f->n < (int)o->epochs && parts < 50; parts++) {
        atomic_store(&f->stops.calls, 0);
        atomic_store(&f->stops.run, NULL);
        f->stops.after = after;
        trek_run *run = begin(o);
        atomic_store(&f->stops.run, run);
        trek_state *final = join(run);
        trek_state_free(&final);
    }
    return parts;
}

/* An epoch's metrics are those of all of it, wherever the run was stopped in it: early stopping and the best go by them. */
static void test_metrics_of_stopped_epochs(void **state)
{
    trek_dataset *data = line_dataset();
    static followed whole, parts;
    for (int k = 0; k < MOST_WAYS; k++) {
        char path[64];
        way w = way_of(k);
        trek_run_opts o = opts_of(data, w);
        make_folder(path);
        assert_int_equal(run_in_parts(&o, &whole, 0), 1);
        o.keep_last = 2;
        o.checkpoint_folder = o.resume_from = path;
        assert_true(run_in_parts(&o, &parts, 5) > 1);
        for (int e = 0; e < (int)o.epochs; e++) {
            bool counted = parts.rows[e] == ROWS && parts.samples[e] == ROWS;
            bool same = w.policy != TREK_POLICY_SYNC || w.transport == TREK_TRANSPORT_HOST ||
                (fabs(parts.loss[e] - whole.loss[e]) <= 1e-12 * whole.loss[e] && parts.steps[e] == whole.steps[e] &&
                 parts.best[e] == whole.best[e]);
            if (!counted || !same)
                fail_msg("way %d, epoch %d: %g rows, %d samples, loss %.17g and %.17g, %d and %d steps", k, e, parts.rows[e],
                         (int)parts.samples[e], parts.loss[e], whole.loss[e], (int)parts.steps[e], (int)whole.steps[e]);
        }
        if (w.policy == TREK_POLICY_SYNC && w.transport == TREK_TRANSPORT_DEVICE && !are_of_ends(path, whole.steps[0]))
            fail_msg("way %d: a stop's file stays", k);
        remove_folder(path);
    }
    trek_dataset_free(&data);
}

/* In host memory the end of an epoch is where a run goes on bit for bit: there all have the same, and nothing is under way. */
static void test_host_from_an_epochs_end(void **state)
{
    trek_dataset *data = line_dataset();
    for (int k = DEVICE_WAYS; k < DEVICE_WAYS + 3; k++) {
        char path[64];
        double whole[FEATURES + 1], parts[FEATURES + 1];
        trek_run_opts o = opts_of(data, way_of(k));
        o.optimizer = trek_adam(&(trek_adam_opts){ .lr = 0.05 });
        make_folder(path);
        read_line(join(begin(&o)), whole);
        o.checkpoint_folder = o.resume_from = path;
        for (o.epochs = 1; o.epochs <= 4; o.epochs++)
            read_line(join(begin(&o)), parts);
        if (memcmp(whole, parts, sizeof whole) != 0)
            fail_msg("way %d: %.17g instead of %.17g", k, parts[0], whole[0]);
        remove_folder(path);
    }
    trek_dataset_free(&data);
}

static void test_checkpoints_every_other_epoch(void **state)
{
    trek_dataset *data = line_dataset();
    char path[64];
    for (int k = 0; k < MOST_WAYS; k++) {
        trek_run_opts o = opts_of(data, way_of(k));
        make_folder(path);
        o.epochs = 5;
        o.checkpoint_folder = path;
        o.checkpoint_every = 2;
        o.keep_last = TREK_OFF;
        trek_state *final = join(begin(&o));
        assert_int_equal(test_count_files(path, "^step-[0-9]*.safetensors$"), 3); /* after the second, the fourth and the last */
        trek_state_free(&final);
        remove_folder(path);
    }
    trek_dataset_free(&data);
}

/* --- threads ------------------------------------------------------------------------------------------- */

typedef struct other {
    trek_run *run;
    int epochs;
    trek_state *final;
    trek_status status;
} other;

static void *follow_and_join(void *arg)
{
    other *o = arg;
    for (trek_epoch_metrics m; trek_run_next(o->run, &m);)
        o->epochs++;
    o->final = trek_run_join(o->run);
    o->status = trek_error_status();
    return NULL;
}

static atomic_int built;

static trek_graph *count_builds(trek_device device, void *arg)
{
    atomic_fetch_add(&built, 1);
    return line_build(device, arg);
}

static trek_var *no_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    for (int64_t k = 0; k < trek_batch_size(batch); k++)
        if (trek_batch_indices(batch)[k] == 40)
            return NULL;
    return squares(graph, output, batch, arg);
}

/* Begun on this thread, followed and joined on another; a model for each rank, and no thread that stays. */
static void test_on_another_thread(void **state)
{
    trek_dataset *data = line_dataset();
    trek_run_opts first = opts_of(data, way_of(2)); /* whatever the library starts once */
    trek_state *final = join(begin(&first));
    trek_state_free(&final);
    int before = left_threads();
    for (int k = 0; k < MOST_WAYS; k++)
        for (int fails = 0; fails < 2; fails++) {
            trek_run_opts o = opts_of(data, way_of(k));
            o.build_model = count_builds;
            o.train_step = fails ? no_loss : squares;
            atomic_store(&built, 0);
            other there = { .run = begin(&o) };
            pthread_t thread;
            assert_int_equal(pthread_create(&thread, NULL, follow_and_join, &there), 0);
            assert_int_equal(pthread_join(thread, NULL), 0);
            assert_int_equal(atomic_load(&built), way_of(k).ranks);
            assert_int_equal(there.epochs, fails ? 0 : o.epochs);
            assert_int_equal(there.status, fails ? TREK_ERR_CALLBACK : TREK_OK);
            assert_true((there.final == NULL) == fails);
            assert_int_equal(trek_error_status(), TREK_OK); /* errors are of the thread that joins */
            trek_state_free(&there.final);
            assert_in_range(left_threads_settle(before), 1, before);
        }
    trek_dataset_free(&data);
}

static trek_var *squares_of(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    trek_record_sum("number", *(double *)arg * (double)trek_batch_size(batch));
    return squares(graph, output, batch, NULL);
}

/* Two runs of one process at once: each has its own metrics, and comes to the bits that it has alone. */
static void test_two_at_once(void **state)
{
    trek_dataset *data = line_dataset();
    double numbers[2] = { 1, 100 }, alone[2][FEATURES + 1], together[2][FEATURES + 1];
    trek_run_opts o[2];
    trek_run *runs[2];
    for (int k = 0; k < 2; k++) {
        o[k] = opts_of(data, (way){ .ranks = 2 });
        o[k].train_step = squares_of;
        o[k].arg = &numbers[k];
        o[k].batch_size = 8 - k; /* the seed is the process's */
        o[k].epochs = 40;
        read_line(join(begin(&o[k])), alone[k]);
    }
    for (int k = 0; k < 2; k++)
        runs[k] = begin(&o[k]);
    for (int epoch = 0; epoch < 40; epoch++)
        for (int k = 0; k < 2; k++) {
            trek_epoch_metrics m;
            assert_true(trek_run_next(runs[k], &m));
            assert_true(m.epoch == epoch && trek_metrics_get(&m, "number") == numbers[k] * ROWS);
        }
    for (int k = 0; k < 2; k++)
        read_line(join(runs[k]), together[k]);
    assert_memory_equal(alone, together, sizeof alone);
    trek_dataset_free(&data);
}

/* Ranks' times and samples are those of training, also where an evaluation follows. */
static void test_evaluation_leaves_ranks_alone(void **state)
{
    trek_dataset *data = line_dataset(), *few = trek_dataset_subset(trek_dataset_retain(data), 3, 17);
    for (int k = 0; k < MOST_WAYS; k++) {
        trek_run_opts o = opts_of(data, way_of(k));
        o.evaluation = few;
        trek_run *run = begin(&o);
        for (trek_epoch_metrics m; trek_run_next(run, &m);) {
            int64_t samples = 0;
            assert_false(isnan(m.evaluation_loss));
            for (int r = 0; r < m.ranks; r++) {
                const trek_rank_metrics *rank = &m.per_rank[r];
                samples += rank->samples;
                assert_true(fabs(rank->share - (double)rank->samples / ROWS) < 1e-12);
                if ((rank->compute_s > 0) != (rank->samples > 0))
                    fail_msg("way %d: rank %d has %d samples in %g s", k, r, (int)rank->samples, rank->compute_s);
                assert_true(rank->samples == 0 || fabs(rank->samples_per_s * rank->compute_s - (double)rank->samples) < 1e-6);
            }
            assert_int_equal(samples, ROWS);
        }
        trek_state *final = join(run);
        trek_state_free(&final);
    }
    trek_dataset_free(&few);
    trek_dataset_free(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_the_optimum), cmocka_unit_test(test_every_sample_once), cmocka_unit_test(test_order),
        cmocka_unit_test(test_rate_set_before_epochs), cmocka_unit_test(test_schedule_drives_the_steps),
        cmocka_unit_test(test_averages), cmocka_unit_test(test_stopped_and_resumed),
        cmocka_unit_test(test_metrics_of_stopped_epochs), cmocka_unit_test(test_host_from_an_epochs_end),
        cmocka_unit_test(test_checkpoints_every_other_epoch), cmocka_unit_test(test_on_another_thread),
        cmocka_unit_test(test_two_at_once), cmocka_unit_test(test_evaluation_leaves_ranks_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
