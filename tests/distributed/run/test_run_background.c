/* SPDX-License-Identifier: Apache-2.0 */
/* Runs whose parameters are averaged in the background: against rounds that are written out in plain C, to the known optimum,
 * and when ranks fail, stop, or are slow. */
#include <glob.h>
#include <stdatomic.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "data/compose.h"
#include "data/loader_position.h"
#include "distributed/balance/elche.h"
#include "distributed/balance/plan.h"
#include "distributed/run_progress.h"
#include "nn/state_tensors.h"
#include "optim/optimizer_state.h"
#include "optim/schedules.h"
#include "tests/distributed/run/line.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { MOST_RANKS = 3 };

/* Under sanitizers what is run counts, not how often. */
static bool is_brief(void) { return getenv("TREK_TEST_SHORT") != NULL; }

static trek_run_opts opts_of(trek_dataset *data, int ranks)
{
    return (trek_run_opts){ .build_model = line_build, .train_step = line_squares, .dataset = data, .input = "x",
                            .batch_size = BATCH, .shuffle = true,
                            .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.05, .momentum = 0.9 }), .epochs = 3, .seed = 7,
                            .transport = TREK_TRANSPORT_HOST, .trainer = { .ranks = ranks, .devices = test_devices() } };
}

/* The final parameters. */
static void join(trek_run *run, double *w)
{
    trek_state *final = run ? trek_run_join(run) : NULL;
    if (!final)
        fail_msg("%s", trek_error());
    double *values = test_read(trek_state_tensor(final, 0));
    memcpy(w, values, FEATURES * sizeof *w);
    free(values);
    trek_state_free(&final);
}

/* --- rounds by hand ---------------------------------------------------------------------------------------- */

typedef struct way {
    int ranks;
    bool adam, schedule;
    int64_t counts[MOST_RANKS]; /* of a plan; 0: SYNC */
    int64_t max_lead;
    double outer_lr, outer_momentum; /* 0: no outer optimizer */
    bool plain;              /* its momentum is not Nesterov's */
} way;

/* A replica: parameters, then the optimizer's states. */
typedef struct replica {
    double values[3 * FEATURES], snapshot[3 * FEATURES], momentum[FEATURES]; /* the center's, of the outer optimizer */
    int64_t steps, snapshot_steps, samples;
} replica;

/* What is averaged. */
static int n_values(const way *w) { return FEATURES * (w->outer_lr > 0 ? 1 : w->adam ? 3 : 2); }

static double lr_of(const way *w, int64_t step) { return (w->adam ? 0.05 : 0.02) * (w->schedule ? pow(0.97, (double)step) : 1); }

static void train_batch(replica *r, const way *w, int64_t batch, int64_t step)
{
    double gradient[FEATURES] = { 0 }, lr = lr_of(w, step);
    int64_t first = batch * BATCH, end = first + BATCH < ROWS ? first + BATCH : ROWS;
    for (int64_t i = first; i < end; i++) {
        double error = -line_target((int)i, true);
        for (int k = 0; k < FEATURES; k++)
            error += r->values[k] * line_feature((int)i, k);
        for (int k = 0; k < FEATURES; k++)
            gradient[k] += 2 * error * line_feature((int)i, k) / (double)(end - first);
    }
    r->steps++;
    r->samples += end - first;
    for (int k = 0; k < FEATURES; k++) {
        double *p = &r->values[k], *m = p + FEATURES, *v = m + FEATURES;
        if (!w->adam) {
            *m = 0.9 * *m + gradient[k];
            *p -= lr * *m;
            continue;
        }
        *m = 0.9 * *m + 0.1 * gradient[k];
        *v = 0.999 * *v + 0.001 * gradient[k] * gradient[k];
        *p -= lr / (1 - pow(0.9, (double)r->steps)) * *m / (sqrt(*v / (1 - pow(0.999, (double)r->steps))) + 1e-8);
    }
}

static void take(replica *r, const replica *center, const way *w)
{
    for (int k = 0; k < n_values(w); k++) {
        double both = r->values[k] + (center->values[k] - r->snapshot[k]);
        if (k >= FEATURES && both < 0 && r->values[k] >= 0 && center->values[k] >= 0)
            both = 0;
        r->values[k] = r->values[k] == r->snapshot[k] ? center->values[k] : both;
    }
    if (w->outer_lr == 0)
        r->steps = center->steps + r->steps - r->snapshot_steps;
}

static void average(const replica *ranks, replica *center, const way *w)
{
    double total = 0, delta[3 * FEATURES] = { 0 };
    for (int r = 0; r < w->ranks; r++)
        total += (double)ranks[r].samples;
    for (int r = 0; r < w->ranks && total > 0; r++) {
        for (int k = 0; k < n_values(w); k++)
            delta[k] += (double)ranks[r].samples / total * (ranks[r].snapshot[k] - center->values[k]);
        if (ranks[r].samples > 0 && ranks[r].snapshot_steps > center->steps)
            center->steps = ranks[r].snapshot_steps;
    }
    for (int k = 0; k < n_values(w); k++) {
        double *m = &center->momentum[k % FEATURES], mu = w->outer_momentum;
        if (w->outer_lr > 0) {
            *m = mu * *m - delta[k];
            delta[k] = -w->outer_lr * (w->plain ? *m : -delta[k] + mu * *m);
        }
        center->values[k] += delta[k];
    }
}

/* Counts of a round that has `left` batches; returns their sum. */
static int64_t count(const way *w, int64_t left, int64_t *counts)
{
    int64_t all = 0;
    for (int r = 0; r < w->ranks; r++)
        all += w->counts[r] ? w->counts[r] : 1;
    if (left < all && w->counts[0]) { /* as El Che divides the rest */
        trek_elche *elche = trek_elche_new(w->ranks, &(trek_elche_opts){ .anchor = 1, .max_anchor = 1000000 });
        assert_int_equal(trek_elche_resume(elche, w->counts, 1), TREK_OK);
        assert_int_equal(trek_elche_counts_within(elche, left, counts), TREK_OK);
        trek_elche_free(&elche);
        return left;
    }
    for (int r = 0; r < w->ranks; r++) {
        counts[r] = w->counts[r] ? w->counts[r] : 1;
        counts[r] = counts[r] < left ? counts[r] : left;
        left -= counts[r];
    }
    return all;
}

/* An epoch; *steps: batches of all ranks before it, and after it. Returns the averages. */
static int64_t epoch_by_hand(replica *ranks, replica *center, const way *w, int64_t *steps)
{
    int64_t next = 0, counts[MOST_RANKS], averages = 0;
    bool waits = w->max_lead == TREK_OFF;
    for (int round = 0; next < BATCHES; round++) {
        int64_t at = next, before = *steps + next;
        count(w, BATCHES - next, counts);
        for (int r = 0; r < w->ranks; r++) {
            bool taken = waits || round == 0;
            for (int64_t k = 0; k < counts[r]; k++) {
                if (!taken && w->max_lead > 0 && k >= w->max_lead) {
                    take(&ranks[r], center, w);
                    taken = true;
                }
                train_batch(&ranks[r], w, at++, before + k);
            }
            if (!taken)
                take(&ranks[r], center, w);
            memcpy(ranks[r].snapshot, ranks[r].values, sizeof ranks[r].values);
            ranks[r].snapshot_steps = ranks[r].steps;
        }
        next = at;
        average(ranks, center, w);
        averages++;
        for (int r = 0; r < w->ranks; r++) {
            ranks[r].samples = 0;
            if (waits || next >= BATCHES)
                take(&ranks[r], center, w);
        }
    }
    *steps += BATCHES;
    return averages;
}

static void run_way(const way *w)
{
    line_dtype = w->outer_lr > 0 ? TREK_F32 : TREK_F64;
    trek_outer_opts outer = { .lr = w->outer_lr, .momentum = w->outer_momentum > 0 ? w->outer_momentum : TREK_ZERO,
                              .nesterov = w->plain ? TREK_OFF : 0 };
    trek_dataset *data = line_dataset(true);
    trek_run_opts o = opts_of(data, w->ranks);
    trek_plan *plan = NULL;
    double got[FEATURES];
    o.shuffle = false;
    o.max_lead = w->max_lead;
    o.optimizer = w->adam ? trek_adam(&(trek_adam_opts){ .lr = lr_of(w, 0) })
        : trek_sgd(&(trek_sgd_opts){ .lr = lr_of(w, 0), .momentum = 0.9 });
    if (w->schedule)
        o.schedule = trek_exponential_lr(lr_of(w, 0), 0.97);
    o.outer = w->outer_lr > 0 ? &outer : NULL;
    if (w->counts[0]) {
        o.policy = TREK_POLICY_CADENCE;
        o.trainer.plan = plan = trek_plan_new(w->ranks);
        assert_int_equal(trek_plan_add_counts(plan, 0, w->counts, 1), TREK_OK);
    }
    trek_run *run = trek_trainer_run(&o);
    replica ranks[MOST_RANKS] = { 0 }, center = { 0 };
    int64_t steps = 0;
    for (int r = 0; r < w->ranks; r++)
        memcpy(ranks[r].values, line_start, sizeof line_start);
    memcpy(center.values, line_start, sizeof line_start);
    for (int epoch = 0; epoch < 3; epoch++) {
        trek_epoch_metrics m = { .epoch = -1 };
        int64_t averages = epoch_by_hand(ranks, &center, w, &steps);
        if (!trek_run_next(run, &m)) {
            trek_run_join(run);
            fail_msg("%s", trek_error());
        }
        assert_int_equal(m.samples, ROWS);
        assert_int_equal(m.averages, averages);
        assert_int_equal(m.lost, 0);
    }
    join(run, got);
    for (int k = 0; k < FEATURES; k++)
        if (!(fabs(got[k] - center.values[k]) <= (w->outer_lr > 0 ? 2e-5 : 1e-11)))
            fail_msg("%d ranks, %s, counts %d, lead %d: %.17g instead of %.17g", w->ranks, w->adam ? "Adam" : "SGD",
                     (int)w->counts[0], (int)w->max_lead, got[k], center.values[k]);
    trek_plan_free(&plan);
    trek_dataset_free(&data);
}

static void test_by_hand(void **state)
{
    static const way ways[] = {
        { .ranks = 2 }, { .ranks = 2, .schedule = true, .max_lead = TREK_OFF }, { .ranks = 3, .adam = true },
        { .ranks = 3, .adam = true, .schedule = true, .max_lead = 1 }, { .ranks = 2, .counts = { 1, 3 } },
        { .ranks = 2, .adam = true, .schedule = true, .counts = { 1, 3 }, .max_lead = 1 },
        { .ranks = 2, .adam = true, .counts = { 2, 1 }, .max_lead = TREK_OFF },
        { .ranks = 3, .schedule = true, .counts = { 2, 1, 2 } },
        { .ranks = 3, .adam = true, .schedule = true, .counts = { 1, 2, 4 }, .max_lead = 2 },
        { .ranks = 2, .outer_lr = 0.7, .outer_momentum = 0.9 },
        { .ranks = 3, .adam = true, .schedule = true, .counts = { 1, 2, 1 }, .outer_lr = 0.7, .outer_momentum = 0.9 },
        { .ranks = 2, .counts = { 2, 1 }, .max_lead = TREK_OFF, .outer_lr = 0.5, .outer_momentum = 0.8, .plain = true },
        { .ranks = 2, .adam = true, .counts = { 1, 3 }, .max_lead = 1, .outer_lr = 1 },
    };
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++)
        run_way(&ways[k]);
    line_dtype = TREK_F64;
}

/* --- to the optimum ------------------------------------------------------------------------------------------ */

static void expect_aim(const double *w, double tolerance, const char *text)
{
    for (int k = 0; k < FEATURES; k++)
        if (!(fabs(w[k] - line_aim[k]) <= tolerance))
            fail_msg("%s: w[%d] is %.17g instead of %g", text, k, w[k], line_aim[k]);
}

/* Some w fits all samples, so that every way of training comes to it. */
static void test_converges(void **state)
{
    if (!test_on_cpu()) /* thousands of steps */
        skip();
    trek_dataset *data = line_dataset(false);
    for (int way = 0; way < 5; way++)
        for (int ranks = 1; ranks <= 3; ranks++) {
            double w[FEATURES];
            char text[64];
            trek_run_opts o = opts_of(data, ranks);
            o.epochs = is_brief() ? 40 : 200;
            o.transport = way < 2 ? TREK_TRANSPORT_DEVICE : TREK_TRANSPORT_HOST;
            o.policy = (trek_policy)(way < 2 ? way : way - 2);
            o.trainer.anchor = way % 3 == 0 ? 0 : 2;
            o.trainer.max_anchor = o.policy == TREK_POLICY_SYNC ? 0 : o.trainer.anchor;
            snprintf(text, sizeof text, "policy %d, transport %d, %d ranks", (int)o.policy, (int)o.transport, ranks);
            join(trek_trainer_run(&o), w);
            expect_aim(w, is_brief() ? 0.5 : 1e-4, text);
        }
    trek_dataset_free(&data);
}

/* An outer optimizer, in several fragments; there is nobody to compress for. Stopped, it goes on with its momentum. */
static void test_outer(void **state)
{
    if (!test_on_cpu()) /* thousands of steps */
        skip();
    line_dtype = TREK_F32;
    trek_dataset *data = line_dataset(false);
    for (int fragments = 1; fragments <= 5; fragments += 2)
        for (int policy = 0; policy < 3; policy++)
            for (int ranks = 1; ranks <= 3; ranks++) {
                double w[FEATURES];
                trek_run_opts o = opts_of(data, ranks);
                o.optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.05 });
                o.outer = &(trek_outer_opts){ .fragments = fragments, .bits = 8, .momentum = 0.5 };
                o.policy = (trek_policy)policy;
                o.trainer.anchor = o.trainer.max_anchor = policy == TREK_POLICY_SYNC ? 0 : 2;
                o.epochs = is_brief() ? 30 : 100;
                join(trek_trainer_run(&o), w);
                expect_aim(w, is_brief() ? 0.5 : 1e-3, "outer");
            }
    trek_dataset_free(&data);
    line_dtype = TREK_F64;
}

/* States that are kept in bf16 are averaged as those in f32 are, and rounded again: between ranks, and in the background. */
static void test_low_states(void **state)
{
    if (!test_on_cpu()) /* thousands of steps */
        skip();
    line_dtype = TREK_F32;
    trek_dataset *data = line_dataset(false);
    for (int way = 0; way < 4; way++) {
        double w[FEATURES];
        trek_run_opts o = opts_of(data, 2);
        o.optimizer = trek_with_state(trek_adam(&(trek_adam_opts){ .lr = 0.1 }), TREK_BF16);
        o.policy = way == 0 ? TREK_POLICY_SYNC : way == 1 ? TREK_POLICY_ASYNC : TREK_POLICY_CADENCE;
        o.transport = way == 2 ? TREK_TRANSPORT_DEVICE : TREK_TRANSPORT_HOST;
        o.epochs = is_brief() ? 30 : 60;
        join(trek_trainer_run(&o), w);
        expect_aim(w, is_brief() ? 0.5 : 0.1, "states in bf16"); /* as near as with f32: windows leave it behind */
    }
    trek_dataset_free(&data);
    line_dtype = TREK_F64;
}

/* The same bits where a run is cut in two, and other ones without the momentum. */
static void test_outer_resumed(void **state)
{
    line_dtype = TREK_F32;
    trek_dataset *data = line_dataset(true);
    double whole[FEATURES], halves[FEATURES], without[FEATURES];
    char folder[] = "/tmp/trek-run-XXXXXX", command[64];
    assert_non_null(mkdtemp(folder));
    trek_run_opts o = opts_of(data, 2);
    o.optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.05 });
    o.outer = &(trek_outer_opts){ .fragments = 2 };
    o.epochs = 4;
    join(trek_trainer_run(&o), whole);
    o.resume_from = o.checkpoint_folder = folder;
    o.epochs = 2;
    join(trek_trainer_run(&o), halves);
    o.epochs = 4;
    join(trek_trainer_run(&o), halves);
    snprintf(command, sizeof command, "rm %s/step*", folder);
    assert_int_equal(system(command), 0);
    o.epochs = 2;
    o.outer = &(trek_outer_opts){ .momentum = TREK_ZERO, .lr = 0.7 };
    join(trek_trainer_run(&o), without);
    for (int k = 0; k < FEATURES; k++)
        assert_true(halves[k] == whole[k]);
    assert_true(without[0] != whole[0]);
    assert_int_equal(test_remove(folder), 0);
    trek_dataset_free(&data);
    line_dtype = TREK_F64;
}

/* Ranks whose speeds differ by far, and change: every sample is trained once in each epoch, and the slow one trains less. */
static atomic_int seen[ROWS];
static int slow;

static trek_var *squares_seen(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    const int64_t *indices = trek_batch_indices(batch);
    for (int64_t k = 0; k < trek_batch_size(batch); k++)
        atomic_fetch_add(&seen[indices[k]], 1);
    if (arg == &slow)
        usleep(trek_var_device(output).index == 1 ? 5000 : 100);
    return line_squares(graph, output, batch, arg);
}

static void test_uneven(void **state)
{
    trek_dataset *data = line_dataset(false);
    for (int policy = TREK_POLICY_CADENCE; policy <= TREK_POLICY_ASYNC; policy++)
        for (int lead = -1; lead <= 2; lead += 1) {
            double w[FEATURES];
            trek_run_opts o = opts_of(data, 2);
            o.policy = (trek_policy)policy;
            o.train_step = squares_seen;
            o.arg = &slow;
            o.batch_size = 1;
            o.epochs = 4;
            o.max_lead = lead < 0 ? TREK_OFF : lead;
            o.trainer.anchor = o.trainer.max_anchor = 2;
            trek_run *run = trek_trainer_run(&o);
            trek_epoch_metrics m;
            memset(seen, 0, sizeof seen);
            for (int epochs = 0; trek_run_next(run, &m); epochs++) {
                assert_int_equal(m.samples, ROWS);
                for (int r = 0; r < 2; r++)
                    assert_true(m.per_rank[r].compute_s > 0 && m.per_rank[r].compute_s < 1.01 * m.seconds);
                if (test_on_cpu() && epochs == 3 && !(m.per_rank[1].share < 0.5))
                    fail_msg("the slow rank's share is %g", m.per_rank[1].share);
            }
            join(run, w);
            for (int i = 0; i < ROWS; i++)
                assert_int_equal(atomic_load(&seen[i]), 4);
            expect_aim(w, 0.5, "uneven");
        }
    trek_dataset_free(&data);
}

/* --- ranks that fail ------------------------------------------------------------------------------------------- */

typedef struct failing {
    int first, last;         /* ranks from the first to the last fail, */
    int call;                /* each at this call of its own */
    atomic_int calls[MOST_RANKS];
} failing;

static trek_var *fails(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    failing *f = arg;
    int rank = trek_var_device(output).index, call = atomic_fetch_add(&f->calls[rank], 1) + 1;
    usleep(20);
    if (rank >= f->first && rank <= f->last && call >= f->call)
        return trek_fail(TREK_ERR_IO, "rank %d is tired", rank), NULL;
    return squares_seen(graph, output, batch, NULL);
}

/* The others go on, with its batches, to the optimum. */
static void test_lost_rank(void **state)
{
    if (!test_on_cpu())
        skip();
    trek_dataset *data = line_dataset(false);
    for (int victim = 0; victim < 3; victim++)
        for (int policy = 0; policy < 3; policy++)
            for (int call = 1; call <= 4; call++) {
                failing f = { .first = victim, .last = victim, .call = call };
                double w[FEATURES];
                trek_run_opts o = opts_of(data, 3);
                o.policy = (trek_policy)policy;
                o.train_step = fails;
                o.arg = &f;
                o.epochs = is_brief() ? 5 : 25;
                o.trainer.anchor = o.trainer.max_anchor = policy == TREK_POLICY_SYNC ? 0 : 2;
                trek_run *run = trek_trainer_run(&o);
                trek_epoch_metrics m;
                memset(seen, 0, sizeof seen);
                int epochs = 0;
                for (; trek_run_next(run, &m); epochs++)
                    for (int i = 0; i < ROWS; i++) /* and some of the lost rank's last round again */
                        assert_true(atomic_load(&seen[i]) > epochs);
                if (epochs < o.epochs)
                    fail_msg("%d epochs: %s", epochs, trek_run_join(run) ? "" : trek_error());
                assert_int_equal(m.lost, 1);
                assert_int_equal(m.samples, ROWS);
                assert_true(m.per_rank[victim].samples == 0);
                join(run, w);
                expect_aim(w, is_brief() ? 1 : 1e-2, "one lost");
            }
    trek_dataset_free(&data);
}

static void test_all_lost(void **state)
{
    if (!test_on_cpu())
        skip();
    trek_dataset *data = line_dataset(false);
    for (int policy = 0; policy < 3; policy++)
        for (int call = 1; call <= 3; call++) {
            failing f = { .first = 0, .last = 2, .call = call };
            trek_run_opts o = opts_of(data, 3);
            o.policy = (trek_policy)policy;
            o.train_step = fails;
            o.arg = &f;
            assert_null(trek_run_join(trek_trainer_run(&o)));
            if (trek_error_status() != TREK_ERR_IO || !strstr(trek_error(), "all ranks have failed; rank ") ||
                !strstr(trek_error(), "is tired"))
                fail_msg("%s", trek_error());
            trek_error_clear();
        }
    trek_dataset_free(&data);
}

/* --- stopping and going on -------------------------------------------------------------------------------------- */

static _Atomic(trek_run *) to_stop;

static trek_var *stops(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    failing *f = arg;
    while (!atomic_load(&to_stop)) /* trek_trainer_run has not returned yet */
        usleep(100);
    if (atomic_fetch_add(&f->calls[0], 1) >= f->call)
        trek_run_stop(atomic_load(&to_stop));
    return squares_seen(graph, output, batch, NULL);
}

/* Looks at the folder's checkpoint from here on. */
static int watch_checkpoint(const char *folder)
{
    char pattern[64];
    glob_t found;
    int watched = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    snprintf(pattern, sizeof pattern, "%s/*.safetensors", folder);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    assert_true(watched >= 0 && inotify_add_watch(watched, found.gl_pathv[0], IN_OPEN | IN_CLOSE) >= 0);
    globfree(&found);
    return watched;
}

static int count_openings(int watched)
{
    char bytes[1024];
    struct inotify_event event;
    int n = 0;
    for (ssize_t got; (got = read(watched, bytes, sizeof bytes)) > 0;)
        for (ssize_t at = 0; at < got; at += (ssize_t)(sizeof event + event.len)) {
            memcpy(&event, bytes + at, sizeof event);
            n += (event.mask & IN_OPEN) != 0;
        }
    close(watched);
    return n;
}

/* In the midst of an epoch; the rest of it is trained by the run that goes on. It reads its file at once: another one may have
 * the name a moment later. */
static void test_stop_and_resume(void **state)
{
    line_dtype = TREK_F32; /* as an outer optimizer has parameters */
    trek_dataset *data = line_dataset(false);
    trek_plan *plan = trek_plan_new(2);
    assert_int_equal(trek_plan_add_counts(plan, 0, (int64_t[]){ 2, 3 }, 2), TREK_OK);
    for (int policy = 0; policy < 3; policy++) {
        char folder[] = "/tmp/trek-run-XXXXXX";
        double w[FEATURES];
        failing f = { .call = ROWS + 9 };
        assert_non_null(mkdtemp(folder));
        trek_run_opts o = opts_of(data, 2);
        o.policy = (trek_policy)policy;
        o.train_step = stops;
        o.arg = &f;
        o.batch_size = 1;
        o.trainer.plan = policy == TREK_POLICY_SYNC ? NULL : plan; /* whatever a busy machine measures, rounds are short */
        o.outer = policy == TREK_POLICY_SYNC ? NULL : &(trek_outer_opts){ .lr = 0.5 };
        o.checkpoint_folder = o.resume_from = folder;
        memset(seen, 0, sizeof seen);
        trek_run *run = trek_trainer_run(&o);
        atomic_store(&to_stop, run);
        join(run, w);
        atomic_store(&to_stop, NULL);
        int trained = 0;
        for (int i = 0; i < ROWS; i++)
            trained += atomic_load(&seen[i]);
        assert_true(trained > ROWS + 9 && trained < 2 * ROWS);
        o.train_step = squares_seen;
        int watched = watch_checkpoint(folder);
        join(trek_trainer_run(&o), w);
        assert_int_equal(count_openings(watched), 1);
        for (int i = 0; i < ROWS; i++)
            assert_int_equal(atomic_load(&seen[i]), 3);
        assert_int_equal(test_remove(folder), 0);
    }
    trek_plan_free(&plan);
    trek_dataset_free(&data);
    line_dtype = TREK_F64;
}

/* Datasets of less than a batch for each rank, or for any. */
static void test_small(void **state)
{
    trek_dataset *data = line_dataset(false);
    for (int64_t rows = 1; rows <= 9; rows += 4)
        for (int policy = 0; policy < 3; policy++) {
            trek_dataset *few = trek_dataset_subset(trek_dataset_retain(data), 0, rows);
            trek_run_opts o = opts_of(few, 3);
            double w[FEATURES];
            o.policy = (trek_policy)policy;
            o.evaluation = few;
            o.checkpoint_folder = NULL;
            trek_run *run = trek_trainer_run(&o);
            trek_epoch_metrics m;
            int epochs = 0;
            for (; trek_run_next(run, &m); epochs++)
                assert_true(m.samples == rows && !isnan(m.loss) && !isnan(m.evaluation_loss));
            assert_int_equal(epochs, 3);
            join(run, w);
            trek_dataset_free(&few);
        }
    trek_dataset_free(&data);
}

static void expect_refused(const trek_run_opts *o, const char *text)
{
    assert_null(trek_trainer_run(o));
    assert_int_equal(trek_error_status(), TREK_ERR_ARGUMENT);
    if (!strstr(trek_error(), text))
        fail_msg("%s", trek_error());
    trek_error_clear();
}

static void test_refused(void **state)
{
    trek_dataset *data = line_dataset(false);
    trek_run_opts o = opts_of(data, 2);
    o.transport = (trek_transport)7;
    expect_refused(&o, ".transport: 7");
    o.transport = TREK_TRANSPORT_DEVICE;
    o.max_lead = 3;
    expect_refused(&o, ".max_lead: set without TREK_TRANSPORT_HOST");
    o.max_lead = 0;
    o.outer = &(trek_outer_opts){ .bits = 8 };
    expect_refused(&o, ".outer: set without TREK_TRANSPORT_HOST");
    o.outer = NULL;
    o.policy = TREK_POLICY_ASYNC;
    expect_refused(&o, "needs .transport = TREK_TRANSPORT_HOST");
    o.transport = TREK_TRANSPORT_HOST;
    o.max_lead = -3;
    expect_refused(&o, ".max_lead: ");
    o.max_lead = 0;
    o.outer = &(trek_outer_opts){ .bits = 7 };
    expect_refused(&o, "bits");
    o.outer = NULL;
    o.trainer.accumulate = 2;
    expect_refused(&o, ".trainer.accumulate");
    o.trainer.accumulate = 0;
    o.trainer.max_anchor = TREK_OFF;
    expect_refused(&o, "TREK_POLICY_ASYNC needs windows");
    trek_dataset_free(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand), cmocka_unit_test(test_converges), cmocka_unit_test(test_outer),
        cmocka_unit_test(test_low_states), cmocka_unit_test(test_outer_resumed), cmocka_unit_test(test_uneven),
        cmocka_unit_test(test_lost_rank), cmocka_unit_test(test_all_lost), cmocka_unit_test(test_stop_and_resume),
        cmocka_unit_test(test_small), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
