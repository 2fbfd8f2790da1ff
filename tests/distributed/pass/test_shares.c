/* SPDX-License-Identifier: Apache-2.0 */
/* Fixed shares: that each rank has what was asked for, of batches and of windows, whatever its speed; that the result is one
 * device's; what contradicts them. */
#include "autograd/ops.h"
#include "data/batch_here.h"
#include "data/dataset_class.h"
#include "distributed/balance/apportion.h"
#include "distributed/balance/workload.h"
#include "distributed/checkpoint.h"
#include "distributed/run.h"
#include "distributed/trainer_ranks.h"
#include "graph/settings.h"
#include "tensor/rank_context.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/training.h"

static const double asked[] = { 3, 0.6, 1.7, 2, 1 };

/* --- the decisions ------------------------------------------------------------------------------- */

static void expect_counts(const int64_t *counts, int64_t a, int64_t b, int64_t c)
{
    if (counts[0] != a || counts[1] != b || counts[2] != c)
        fail_msg("%d %d %d instead of %d %d %d", (int)counts[0], (int)counts[1], (int)counts[2], (int)a, (int)b, (int)c);
}

static void test_decisions(void **state)
{
    const double shares[] = { 50, 30, 20 }, ms[] = { 900, 1, 70 };
    const int64_t units[] = { 25, 15, 10 };
    int64_t counts[3];
    bool changed;
    trek_workload_opts o = { .unequal = true, .windows = true, .shares = shares, .n_shares = 3 };
    trek_workload *w = trek_workload_new(3, &o);
    assert_non_null(w);
    assert_true(fabs(trek_workload_shares(w)[1] - 0.3) < 1e-15);
    for (int step = 0; step < 30; step++) { /* whatever was measured */
        assert_int_equal(trek_workload_window(w), 50);
        assert_int_equal(trek_workload_counts(w, 50, counts), TREK_OK);
        expect_counts(counts, 25, 15, 10);
        assert_int_equal(trek_workload_report(w, step, true, ms, units, 500, &changed), TREK_OK);
        assert_false(changed);
    }
    assert_int_equal(trek_workload_counts(w, 7, counts), TREK_OK); /* the epoch's end: 3.5, 2.1, 1.4 */
    expect_counts(counts, 4, 2, 1);
    assert_int_equal(trek_workload_counts(w, 1, counts), TREK_OK);
    expect_counts(counts, 1, 0, 0);
    assert_int_equal(trek_workload_shrink(w, 0.5, &changed), TREK_OK); /* the guard's */
    assert_true(changed);
    assert_int_equal(trek_workload_counts(w, 100, counts), TREK_OK);
    expect_counts(counts, 13, 7, 5);
    trek_plan *other = trek_plan_new(3); /* of a run that measured */
    trek_plan_add_counts(other, 0, (int64_t[]){ 1, 2, 3 }, 1);
    assert_int_equal(trek_workload_take_plan(w, other, false, 40), TREK_OK);
    assert_int_equal(trek_workload_counts(w, 100, counts), TREK_OK);
    expect_counts(counts, 13, 7, 5);
    trek_plan_free(&other);
    trek_workload_free(&w);
    o.elche.global_batches = 10;
    w = trek_workload_new(3, &o);
    assert_int_equal(trek_workload_counts(w, 100, counts), TREK_OK);
    expect_counts(counts, 5, 3, 2);
    trek_workload_free(&w);
    assert_int_equal(trek_error_status(), TREK_OK);
}

/* --- against one device ---------------------------------------------------------------------------- */

static result many, one;

static void test_is_one_device(void **state)
{
    const int worlds[] = { 1, 2, 3, 5 };
    for (int w = 0; w < 4; w++)
        for (int windows = 0; windows < 1 + (w > 0); windows++)
            for (int separate = 0; separate < 2; separate++) {
                run c = { .world = worlds[w], .passes = 1 + separate, .batch = windows ? 2 : 8,
                          .loss = separate ? BY_LABELS : BY_STATED,
                          .windows = windows, .separate = separate, .shares = asked, .optimizer = training_momentum() };
                training_run(&c, &many);
                training_on_one(&c, &many, &one);
                training_compare(&c, &many, &one);
                trek_plan_free(&many.made);
            }
}

/* --- who had how many -------------------------------------------------------------------------------- */

static trek_var *squares(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    return trek_mean(trek_square(trek_sub(trek_narrow(output, 1, 0, 1), trek_batch_get(batch, "target"))), trek_dims_all(),
                     false);
}

static trek_run_opts plain_opts(trek_dataset *data, int ranks)
{
    return (trek_run_opts){ .build_model = training_build, .train_step = squares, .dataset = data, .input = "x",
                            .optimizer = training_momentum(), .batch_size = 8, .shuffle = true, .epochs = 3,
                            .trainer = { .ranks = ranks, .devices = test_devices(), .n_shares = ranks } };
}

/* --- data that come late count as work that takes long --------------------------------------------------- */

static int64_t late_length(const trek_dataset *self) { return 640; }

/* One rank's storage is slow: so says the clock of waits, by more than a busy machine takes for a step. */
static int late_rank;
static trek_status late_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    if (trek_rank_here.rank == late_rank)
        trek_batch_here()->fed_ns += 500000000 * fetch->n;
    out[0] = trek_tensor_ones(trek_dims(fetch->n, IN), TREK_F64, trek_cpu(0));
    out[1] = trek_tensor_zeros(trek_dims(fetch->n, 1), TREK_F64, trek_cpu(0));
    return trek_error_status();
}

static int late_lines;

static void count_late(trek_log_level level, const char *message, void *arg)
{
    char who[32];
    snprintf(who, sizeof who, "rank %d spends", late_rank);
    late_lines += level == TREK_LOG_LEVEL_WARNING && strstr(message, who) && strstr(message, "dataset late");
}

enum { BY_SHARES, BY_WINDOWS, EQUAL_SHARES, LATE_WAYS }; /* equal shares stay: it is told of all the same */

static void check_late(trek_graph *graph, int way)
{
    const int late = late_rank, other = 1 - late;
    double shares[2], speeds[2];
    int64_t counts[2];
    assert_int_equal(trek_graph_shares(graph, shares, 2), 2);
    assert_int_equal(trek_trainer_throughput(graph, speeds, 2), way == EQUAL_SHARES ? 0 : 2);
    if (way != EQUAL_SHARES) /* two samples a second; what was read ahead counts in another step, and once for shares that then
                                changed */
        assert_true(speeds[late] > 1 && speeds[late] < 4 && speeds[other] > 10 * speeds[late]);
    if (way == BY_WINDOWS) {
        assert_int_equal(trek_trainer_counts(graph, counts, 2), 2);
        assert_true(counts[other] > 2 * counts[late]);
    } else {
        assert_true(way == BY_SHARES ? shares[late] < 0.25 : shares[late] == 0.5);
    }
    assert_int_equal(late_lines, 1);
}

static void late_training(int way)
{
    static const char *const names[] = { "x", "target" };
    static const trek_dataset_class late = { .name = "late", .size = sizeof(trek_dataset), .length = late_length, .get = late_get,
                                             .n_fields = 2, .fields = names };
    loss_kind kind = BY_ROWS;
    bool windows = way == BY_WINDOWS;
    run c = { .world = 2, .batch = windows ? 2 : 16, .windows = windows, .balance = way == BY_SHARES ? 1 : TREK_OFF,
              .optimizer = training_momentum() };
    trek_loader *loader = trek_loader_new(trek_dataset_new(&late), &(trek_loader_opts){ .batch_size = c.batch,
                                                                                        .prefetch = TREK_ZERO });
    late_lines = 0;
    trek_log_set(TREK_LOG_LEVEL_WARNING, count_late, NULL);
    trek_graph *graph = training_set_up(&c, loader);
    assert_int_equal(trek_graph_set_loss(graph, training_loss, &kind), TREK_OK);
    for (int epoch = 0; epoch < (windows ? 15 : 1); epoch++) {
        assert_int_equal(trek_graph_start(graph, epoch), TREK_OK);
        for (trek_batch *batch; (batch = trek_graph_next(graph));) {
            assert_non_null(trek_graph_train_batch(graph, batch));
            assert_int_equal(trek_graph_step(graph), TREK_OK);
        }
    }
    assert_int_equal(trek_error_status(), TREK_OK);
    check_late(graph, way);
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
}

/* Also of rank 0, which is the caller's thread. */
static void test_late_data(void **state)
{
    for (late_rank = 0; late_rank < 2; late_rank++)
        for (int way = 0; way < LATE_WAYS; way++)
            late_training(way);
}

/* Runs of ranks, whose list is copied: it may go once the run has begun. */
static void test_counts_of_runs(void **state)
{
    trek_dataset *data = training_dataset();
    setenv("TREK_SLOWDOWN", "3s,1,1", 1); /* the one with the most */
    for (int ranks = 1; ranks <= 3; ranks++)
        for (int windows = 0; windows < 2; windows++) {
            int64_t expected[3] = { 0 }, part[3];
            trek_run_opts o = plain_opts(data, ranks);
            double *shares = malloc(sizeof asked);
            memcpy(shares, asked, sizeof asked);
            o.trainer.shares = shares;
            o.batch_size = windows ? 2 : 8;
            o.policy = windows ? TREK_POLICY_CADENCE : TREK_POLICY_SYNC;
            o.trainer.global_batch = windows ? 20 : 0;
            int64_t sizes = windows ? 20 : 8;
            for (int64_t left = SAMPLES; left > 0 && !windows; left -= sizes) {
                assert_int_equal(trek_apportion(left < sizes ? left : sizes, asked, ranks, part), TREK_OK);
                for (int r = 0; r < ranks; r++)
                    expected[r] += part[r];
            }
            trek_run *run = trek_trainer_run(&o);
            memset(shares, 0, sizeof asked);
            free(shares);
            trek_epoch_metrics m;
            for (int epoch = 0; epoch < 3; epoch++) {
                if (!trek_run_next(run, &m))
                    fail_msg("%d ranks, windows %d: epoch %d", ranks, windows, epoch);
                assert_int_equal(m.samples, SAMPLES);
                for (int r = 0; r < ranks && !windows; r++)
                    assert_int_equal(m.per_rank[r].samples, expected[r]);
                double sum = 0;
                for (int r = 0; r < ranks; r++)
                    sum += asked[r];
                for (int r = 0; r < ranks && windows; r++) /* 20 samples are ten batches, the last window has one and a half */
                    assert_true(fabs(m.per_rank[r].share - asked[r] / sum) < 0.06);
            }
            trek_state *final = trek_run_join(run);
            assert_non_null(final);
            trek_state_free(&final);
        }
    unsetenv("TREK_SLOWDOWN");
    trek_dataset_free(&data);
}

static void test_idle(void **state)
{
    trek_dataset *data = training_dataset();
    for (int windows = 0; windows < 2; windows++) {
        const double shares[] = { 2, 0, 1 };
        trek_run_opts o = plain_opts(data, 3);
        o.trainer.shares = shares;
        o.trainer.allow_idle = true;
        o.batch_size = windows ? 3 : 9;
        o.policy = windows ? TREK_POLICY_CADENCE : TREK_POLICY_SYNC;
        trek_epoch_metrics m;
        trek_run *run = trek_trainer_run(&o);
        while (trek_run_next(run, &m)) {
            assert_int_equal(m.per_rank[1].samples, 0);
            assert_int_equal(m.samples, SAMPLES);
        }
        trek_state *final = trek_run_join(run);
        if (!final)
            fail_msg("%s", trek_error());
        trek_state_free(&final);
    }
    trek_dataset_free(&data);
}

/* --- what contradicts them ------------------------------------------------------------------------------ */

static void test_refused(void **state)
{
    trek_dataset *data = training_dataset();
    trek_plan *plan = trek_plan_new(2);
    trek_plan_add_shares(plan, 0, (double[]){ 0.5, 0.5 });
    double shares[3];
#define BAD(what, ...)                                                                             \
    do {                                                                                           \
        trek_run_opts o = plain_opts(data, 2);                                                     \
        shares[0] = 1, shares[1] = 2, shares[2] = 3;                                               \
        o.trainer.shares = shares;                                                                 \
        __VA_ARGS__;                                                                               \
        assert_null(trek_trainer_run(&o));                                                         \
        if (trek_error_status() != TREK_ERR_ARGUMENT || !strstr(trek_error(), what))               \
            fail_msg("%s: %s", what, trek_error());                                                \
        trek_error_clear();                                                                        \
        trek_trainer_opts t = o.trainer;                                                           \
        t.build_replica = training_build;                                                          \
        trek_graph *graph = training_build(test_device(), NULL);                                   \
        assert_int_equal(trek_trainer_setup(graph, &t), TREK_ERR_ARGUMENT);                        \
        assert_non_null(strstr(trek_error(), what));                                               \
        trek_error_clear();                                                                        \
        trek_graph_free(&graph);                                                                   \
    } while (0)
    BAD("balance", o.trainer.balance = 1);
    BAD("plan", o.trainer.plan = plan);
    BAD("speed_hint", (o.trainer.speed_hint = (trek_speed_hint){ 0, 2 }));
    BAD("min_share", o.trainer.min_share = 0.1);
    BAD("overhead_target", o.trainer.overhead_target = 0.1);
    BAD("max_batch_diff", o.trainer.max_batch_diff = 1);
    BAD("rank 1 has -2", shares[1] = -2);
    BAD("nan", shares[0] = NAN);
    BAD("inf", shares[0] = INFINITY);
    BAD("all are 0", (shares[0] = shares[1] = 0, o.trainer.allow_idle = true));
    BAD("allow_idle", shares[1] = 0);
    BAD("millionth", shares[1] = 1e-7);
    BAD("n_shares", o.trainer.n_shares = -1);
    BAD("n_shares", o.trainer.n_shares = 0);
    BAD("n_shares", o.trainer.shares = NULL);
    for (int n = 1; n <= 3; n += 2) { /* known once it is known how many ranks there are */
        trek_run_opts o = plain_opts(data, 2);
        o.trainer.shares = shares;
        o.trainer.n_shares = n;
        assert_null(trek_run_join(trek_trainer_run(&o)));
        assert_true(trek_error_status() == TREK_ERR_ARGUMENT && strstr(trek_error(), "the job's ranks, 2"));
        trek_error_clear();
    }
    trek_graph *graph = training_build(test_device(), NULL);
    FAILS(trek_trainer_setup(graph, &(trek_trainer_opts){ .shares = shares, .n_shares = 2, .ranks = 1 }), TREK_ERR_ARGUMENT, "");
    trek_graph_free(&graph);
    trek_plan_free(&plan);
    trek_dataset_free(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decisions), cmocka_unit_test(test_is_one_device), cmocka_unit_test(test_late_data),
        cmocka_unit_test(test_counts_of_runs),        cmocka_unit_test(test_idle), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
