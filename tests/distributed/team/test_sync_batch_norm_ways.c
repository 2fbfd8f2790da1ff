/* SPDX-License-Identifier: Apache-2.0 */
/* Synchronised batch norm in every way to train: with a loader, in windows, in loops of one's own, in processes. */
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "distributed/balance/plan.h"
#include "distributed/ddp.h"
#include "distributed/ranks.h"
#include "distributed/team/rank_sums.h"
#include "graph/flow.h"
#include "graph/graph_loader.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "tensor/rank_context.h"
#include "tests/distributed/team/sync_net.h"
#include "tests/support/processes.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

/* --- with a loader: losses of their own on each rank, and on processes ----------------------------------- */

enum { SAMPLES = 20 };

/* The first labels of each batch of 6 are ignored, and all of the last: the first rank's loss, or all of them, weigh nothing. */
static trek_loader *loader_new(int64_t batch)
{
    static double values[SAMPLES * WIDTH];
    static int64_t labels[SAMPLES];
    for (int k = 0; k < SAMPLES * WIDTH; k++)
        values[k] = test_number(31, (uint32_t)k);
    for (int k = 0; k < SAMPLES; k++)
        labels[k] = k % 6 < 3 ? -100 : k % CLASSES;
    trek_tensor *tensors[2] = { trek_tensor_from_data(values, trek_dims(SAMPLES, WIDTH), TREK_F64, trek_cpu(0)),
                                trek_tensor_from_data(labels, trek_dims(SAMPLES), TREK_I64, trek_cpu(0)) };
    const char *names[2] = { "x", "label" };
    trek_loader *loader = trek_loader_new(trek_dataset_tensors(names, tensors, 2),
                                          &(trek_loader_opts){ .batch_size = batch, .device = test_device() });
    trek_tensor_release(tensors[0]);
    trek_tensor_release(tensors[1]);
    assert_non_null(loader);
    return loader;
}

static trek_var *label_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    return trek_cross_entropy(output, trek_batch_get(batch, "label"));
}

typedef struct fed_run {
    int world, batch;
    bool gathered, sync, windows;
    const trek_plan *plan;
} fed_run;

static trek_status pass(trek_graph *graph, trek_batch *batch, bool gathered)
{
    if (!gathered)
        return trek_graph_train_batch(graph, batch) ? TREK_OK : trek_error_status();
    return trek_graph_backward(graph, trek_cross_entropy(trek_graph_forward(graph, trek_batch_get(batch, "x")),
                                                         trek_batch_get(batch, "label")));
}

/* One epoch; parameters and buffers after each step. */
static void train_fed(const fed_run *c, record *to)
{
    model_opts o = { .sync = c->sync, .dtype = TREK_F64 };
    trek_device devices[5];
    for (int r = 0; r < 5; r++)
        devices[r] = test_device_of_rank(r);
    trek_graph *graph = build(devices[0], &o);
    trek_loader *loader = loader_new(c->batch);
    assert_non_null(graph);
    assert_int_equal(trek_graph_set_loader(graph, loader, "x"), TREK_OK);
    assert_int_equal(trek_graph_set_loss(graph, c->gathered ? NULL : label_loss, NULL), TREK_OK);
    trek_status status = trek_trainer_setup(graph,
                                            &(trek_trainer_opts){ .build_replica = build, .arg = &o, .devices = devices,
                                                                  .ranks = c->world,
        .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.1, .momentum = 0.9 }), .deadline_s = 20,
        .max_anchor = c->windows ? 2 : TREK_OFF, .anchor = 1, .plan = c->plan });
    SUCCEEDS(status);
    to->n = 0;
    assert_int_equal(trek_graph_start(graph, 0), TREK_OK);
    for (trek_batch *batch; (batch = trek_graph_next(graph));) {
        if (pass(graph, batch, c->gathered) != TREK_OK || trek_graph_step(graph) != TREK_OK)
            fail_msg("%d ranks, batches of %d: %s", c->world, c->batch, trek_error());
        assert_int_equal(trek_module_each_param(trek_graph_module(graph), note_param, to), TREK_OK);
        assert_int_equal(trek_module_each_buffer(trek_graph_module(graph), note_buffer, to), TREK_OK);
    }
    assert_int_equal(trek_error_status(), TREK_OK);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
}

static record fed_one, fed_many;

static void losses_of_their_own(void **state)
{
    for (int batch = 4; batch <= 6; batch++) {
        train_fed(&(fed_run){ .world = 1, .batch = batch }, &fed_one);
        for (int world = 1; world <= 5; world += 2 - world % 2) {
            train_fed(&(fed_run){ .world = world, .batch = batch, .sync = true }, &fed_many);
            expect_close(&fed_many, &fed_one, 1e-11, "per rank");
        }
        train_fed(&(fed_run){ .world = 1, .batch = batch, .gathered = true }, &fed_one);
        for (int world = 1; world <= 5; world += 2 - world % 2) {
            train_fed(&(fed_run){ .world = world, .batch = batch, .sync = true, .gathered = true }, &fed_many);
            expect_close(&fed_many, &fed_one, 1e-11, "gathered");
        }
    }
}

/* Shares that leave the first rank, or others, without rows. */
static void shares_of_nothing(void **state)
{
    static const double shares[][3] = { { 0.05, 0.05, 0.9 }, { 0.9, 0.05, 0.05 }, { 0.05, 0.9, 0.05 }, { 0, 0.5, 0.5 },
                                        { 0.5, 0, 0.5 } };
    for (int k = 0; k < 10; k++) {
        trek_plan *plan = trek_plan_new(3);
        bool gathered = k % 2;
        assert_int_equal(trek_plan_add_shares(plan, 0, shares[k / 2]), TREK_OK);
        train_fed(&(fed_run){ .world = 1, .batch = 4, .gathered = gathered }, &fed_one);
        train_fed(&(fed_run){ .world = 3, .batch = 4, .sync = true, .gathered = gathered, .plan = plan }, &fed_many);
        expect_close(&fed_many, &fed_one, 1e-11, gathered ? "gathered" : "per rank");
        trek_plan_free(&plan);
    }
}

static char setup_line[512];

static void keep_setup_line(trek_log_level level, const char *message, void *arg)
{
    if (strncmp(message, "trainer:", 8) == 0)
        snprintf(setup_line, sizeof setup_line, "%s", message);
}

/* In windows ranks do not meet: it is plain batch norm there, and setup says so. */
static void windows(void **state)
{
    trek_log_set(TREK_LOG_LEVEL_INFO, keep_setup_line, NULL);
    train_fed(&(fed_run){ .world = 2, .batch = 4, .sync = true }, &fed_many);
    assert_non_null(strstr(setup_line, "; exact"));
    assert_null(strstr(setup_line, "exact but"));
    train_fed(&(fed_run){ .world = 2, .batch = 4, .windows = true, .sync = true }, &fed_many);
    assert_non_null(strstr(
        setup_line,
        "exact but for the statistics of each rank's own part in sync_batch_norm \"0.norm\", sync_batch_norm \"0.second\""));
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL);
    train_fed(&(fed_run){ .world = 2, .batch = 4, .windows = true }, &fed_one);
    train_fed(&(fed_run){ .world = 2, .batch = 4, .windows = true, .sync = true }, &fed_many);
    assert_true(fed_many.n > 0 && fed_one.n > 0); /* how many steps there are follows the clock */
    for (int k = 0; k < fed_many.n; k++)
        assert_true(isfinite(fed_many.values[k]));
}

/* --- loops of one's own: trek_ddp ------------------------------------------------------------------------ */

/* Rows of each rank; all together ROWS. */
enum { ROWS = 10 };

static const int64_t rows_of_rank[4][3] = { { 0 }, { ROWS }, { 7, 3 }, { 5, 1, 4 } };
typedef enum manner { JOINED, DIVIDED, IN_RUNS, EACH_ITS_OWN, MANNERS } manner;

static struct {
    int world, step;
    manner manner;
    trek_module *models[3];
    trek_optimizer *optimizers[3];
    trek_ddp *ddp[3];        /* one of all ranks, or one of each */
    trek_comm *comms[3];
    trek_status status[3];
    char message[3][256];
} hand;

static trek_ddp *ddp_of(int rank) { return hand.ddp[hand.manner == EACH_ITS_OWN ? rank : 0]; }

/* Rows [first, first + n) of the step's batch, and their labels; n may be 0. */
static trek_var *rows_between(int64_t first, int64_t n)
{
    trek_var *x = trek_add_scalar(typed(60 + (uint32_t)hand.step, trek_dims(ROWS, WIDTH), TREK_F64), 3);
    return trek_narrow(x, 0, first, n);
}

static trek_var *mean_loss(trek_var *y, int64_t first, int64_t n)
{
    return trek_cross_entropy(y, trek_narrow(labels_of(ROWS, hand.step), 0, first, n));
}

static void take_step(int rank)
{
    trek_optimizer_step(hand.optimizers[rank]);
    trek_optimizer_zero_grad(hand.optimizers[rank]);
}

static trek_status hand_rank(int rank)
{
    trek_scope scope = trek_scope_begin();
    int64_t first = 0, n = rows_of_rank[hand.world][rank];
    for (int r = 0; r < rank; r++)
        first += rows_of_rank[hand.world][r];
    trek_var *y = trek_forward(hand.models[rank], rows_between(first, n));
    trek_ddp_backward_weighted(ddp_of(rank), mean_loss(y, first, n), (double)n);
    take_step(rank);
    trek_scope_end(scope);
    return trek_error_status();
}

static trek_status hand_in_run(int rank, void *arg) { return (void)arg, hand_rank(rank); }

static void *hand_thread(void *arg)
{
    int rank = *(int *)arg;
    if (hand.step == 0)
        hand.ddp[rank] = trek_ddp_wrap_process(hand.models[rank], hand.comms[rank], NULL);
    trek_params *params = hand.step == 0 && hand.ddp[rank] ? trek_module_params(hand.models[rank]) : NULL;
    if (params)
        hand.optimizers[rank] = trek_optimizer_new(trek_sgd(&(trek_sgd_opts){ .lr = 0.1, .momentum = 0.9 }), params);
    trek_params_free(&params);
    hand.status[rank] = hand_rank(rank);
    snprintf(hand.message[rank], sizeof hand.message[rank], "%.255s", trek_error_status() ? trek_error() : "");
    trek_error_clear();
    return NULL;
}

static void hand_threads(void)
{
    pthread_t threads[3];
    int ranks[3];
    for (int r = 0; r < hand.world; r++) {
        ranks[r] = r;
        assert_int_equal(pthread_create(&threads[r], NULL, hand_thread, &ranks[r]), 0);
    }
    for (int r = 0; r < hand.world; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < hand.world; r++)
        if (hand.status[r] != TREK_OK)
            fail_msg("rank %d: %s", r, hand.message[r]);
}

static void hand_joined(void)
{
    trek_scope scope = trek_scope_begin();
    trek_var *parts[3] = { NULL };
    int64_t first = 0;
    for (int r = 0; r < hand.world; first += rows_of_rank[hand.world][r++])
        parts[r] = rows_between(first, rows_of_rank[hand.world][r]);
    trek_var *y = hand.manner == JOINED ? trek_ddp_forward(hand.ddp[0], parts)
        : trek_forward(trek_ddp_module(hand.ddp[0]), rows_between(0, ROWS));
    assert_int_equal(trek_ddp_backward(hand.ddp[0], mean_loss(y, 0, ROWS)), TREK_OK);
    for (int r = 0; r < hand.world; r++)
        take_step(r);
    trek_scope_end(scope);
}

static void train_by_hand(int world, manner manner, bool sync, record *to)
{
    model_opts o = { .sync = sync, .dtype = TREK_F64 };
    memset(&hand, 0, sizeof hand);
    hand.world = world, hand.manner = manner;
    trek_device devices[3];
    for (int r = 0; r < world; r++) {
        devices[r] = test_device_of_rank(r);
        hand.models[r] = net_new(&o, devices[r]);
    }
    if (manner == EACH_ITS_OWN)
        assert_int_equal(trek_comm_local(devices, world, hand.comms), TREK_OK);
    else
        assert_non_null(hand.ddp[0] = trek_ddp_wrap(hand.models, world, NULL));
    for (int r = 0; r < world && manner != EACH_ITS_OWN; r++) {
        trek_params *params = trek_module_params(hand.models[r]);
        hand.optimizers[r] = trek_optimizer_new(trek_sgd(&(trek_sgd_opts){ .lr = 0.1, .momentum = 0.9 }), params);
        trek_params_free(&params);
    }
    to->n = 0;
    for (hand.step = 0; hand.step < STEPS; hand.step++) {
        if (manner == EACH_ITS_OWN)
            hand_threads();
        else if (manner == IN_RUNS && world > 1)
            assert_int_equal(trek_ranks_run(trek_ddp_ranks(hand.ddp[0]), hand_in_run, NULL), TREK_OK);
        else
            hand_joined();
        for (int r = 0; r < world; r++) { /* all ranks have the same, buffers by themselves */
            assert_int_equal(trek_module_each_param(hand.models[r], note_param, to), TREK_OK);
            assert_int_equal(trek_module_each_buffer(hand.models[r], note_buffer, to), TREK_OK);
        }
    }
    for (int r = 0; r < world; r++)
        trek_optimizer_free(&hand.optimizers[r]);
    for (int r = 0; r < world; r++)
        trek_ddp_free(&hand.ddp[r]);
    for (int r = 0; r < world; r++)
        trek_comm_free(&hand.comms[r]);
}

static void by_hand(void **state)
{
    static record one, many, each;
    train_by_hand(1, JOINED, false, &one);
    for (int manner = 0; manner < MANNERS; manner++)
        for (int world = 2; world <= 3; world++) {
            char what[64];
            train_by_hand(world, (enum manner)manner, true, &many);
            int n = one.n / STEPS;
            assert_int_equal(many.n, world * one.n);
            for (int r = 0; r < world; r++) {
                each.n = 0;
                for (int step = 0; step < STEPS; step++, each.n += n)
                    memcpy(each.values + each.n, many.values + (step * world + r) * n, (size_t)n * sizeof(double));
                snprintf(what, sizeof what, "manner %d, rank %d of %d", manner, r, world);
                expect_close(&each, &one, 1e-11, what);
            }
        }
}

/* A backward that knows no counts has mixed what ranks lose by the layers' sums: weighing afterwards comes too late, and is
 * refused on all ranks, where counts differ; in eval, where layers do not meet, it is right. */
static trek_status weigh_late(int rank, void *arg)
{
    const bool *equal = arg;
    double count = *equal ? 5 : rank ? 3 : 7;
    trek_scope scope = trek_scope_begin();
    int64_t first = rank ? (int64_t)(*equal ? 5 : 7) : 0;
    trek_var *y = trek_forward(hand.models[rank], rows_between(first, (int64_t)count));
    trek_backward(mean_loss(y, first, (int64_t)count));
    double counts[2] = { *equal ? 5 : 7, *equal ? 5 : 3 };
    hand.status[rank] = trek_ddp_reduce_gradients_weighted(hand.ddp[0], counts);
    snprintf(hand.message[rank], sizeof hand.message[rank], "%.255s", trek_error_status() ? trek_error() : "");
    trek_error_clear();
    trek_scope_end(scope);
    return TREK_OK;
}

static void weighed_too_late(void **state)
{
    model_opts o = { .sync = true, .dtype = TREK_F64 };
    for (int way = 0; way < 3; way++) { /* unequal, equal, unequal in eval */
        memset(&hand, 0, sizeof hand);
        for (int r = 0; r < 2; r++)
            hand.models[r] = net_new(&o, test_device_of_rank(r));
        assert_non_null(hand.ddp[0] = trek_ddp_wrap(hand.models, 2, NULL));
        if (way == 2)
            for (int r = 0; r < 2; r++)
                assert_int_equal(trek_module_train(hand.models[r], false), TREK_OK);
        assert_int_equal(trek_ranks_run(trek_ddp_ranks(hand.ddp[0]), weigh_late, &(bool){ way == 1 }), TREK_OK);
        for (int r = 0; r < 2; r++) {
            assert_int_equal(hand.status[r], way == 0 ? TREK_ERR_UNSUPPORTED : TREK_OK);
            assert_true(way > 0 || strstr(hand.message[r], "trek_ddp_backward_weighted"));
        }
        trek_ddp_free(&hand.ddp[0]);
    }
}

/* A replica whose wrapper has gone is a model as any other; what was recorded before says what has become of it. */
static void after_the_wrapper(void **state)
{
    model_opts o = { .sync = true, .dtype = TREK_F64 };
    trek_comm *comms[2];
    assert_int_equal(trek_comm_local(NULL, 2, comms), TREK_OK);
    const trek_rank_collectives *sums = trek_comm_sums_new(comms[0]);
    trek_module *layer = norm_new(&o, test_device(), false, true);
    trek_scope scope = trek_scope_begin();
    layer->own->klass->meet(layer, sums);
    trek_comm_sums_end(sums);
    REFUSED(trek_forward(layer, typed(3, trek_dims(4, CHANNELS), TREK_F64)), TREK_ERR_STATE, "ddp wrapper that was freed");
    layer->own->klass->meet(layer, NULL);
    assert_non_null(trek_forward(layer, typed(3, trek_dims(4, CHANNELS), TREK_F64)));
    trek_scope_end(scope);
    trek_module_free(&layer);
    for (int r = 0; r < 2; r++)
        trek_comm_free(&comms[r]);
}

/* --- processes, started by trek-run ---------------------------------------------------------------------- */


/* One of them: process 0 leaves its record in the file. */
static int child(const char *text, const char *path)
{
    int world, batch, gathered;
    if (sscanf(text, "%d,%d,%d", &world, &batch, &gathered) != 3)
        return 2;
    alarm(60);
    train_fed(&(fed_run){ .world = world, .batch = batch, .sync = true, .gathered = gathered }, &fed_many);
    if (atoi(getenv("TREK_RANK")) > 0)
        return 0;
    int file = open(path, O_WRONLY | O_TRUNC);
    bool written = file >= 0 && write(file, &fed_many, sizeof fed_many) == (ssize_t)sizeof fed_many;
    return written && close(file) == 0 ? 0 : 3;
}

static int launch(int processes, int world, int batch, bool gathered, const char *path)
{
    char text[64];
    snprintf(text, sizeof text, "%d,%d,%d", world, batch, gathered);
    return processes_launch(processes, false, (const char *[]){ "TREK_TEST_CHILD", text, "TREK_TEST_FILE", path, NULL });
}

/* Batches of 4 and 6, and of 2 for three processes: one of them has nothing, and still meets the others. */
static void on_processes(void **state)
{
    static const struct {
        int processes, world, batch;
    } jobs[] = { { 2, 1, 6 }, { 2, 2, 6 }, { 3, 1, 2 }, { 3, 2, 4 } };
    for (int k = 0; k < 8; k++) {
        char path[] = "/tmp/trek-test-sync-XXXXXX", what[64];
        int file = mkstemp(path);
        bool gathered = k % 2;
        snprintf(what, sizeof what, "%d processes of %d ranks, batches of %d%s", jobs[k / 2].processes, jobs[k / 2].world,
                 jobs[k / 2].batch,
                 gathered ? ", gathered" : "");
        int code = launch(jobs[k / 2].processes, jobs[k / 2].world, jobs[k / 2].batch, gathered, path);
        ssize_t got = pread(file, &fed_many, sizeof fed_many, 0);
        close(file);
        unlink(path);
        if (code != 0 || got != (ssize_t)sizeof fed_many)
            fail_msg("%s: status %d", what, code);
        train_fed(&(fed_run){ .world = 1, .batch = jobs[k / 2].batch, .gathered = gathered }, &fed_one);
        expect_close(&fed_many, &fed_one, 1e-11, what);
    }
}

int main(void)
{
    setenv("TREK_CACHE", "off", 1); /* so that each allocation can fail */
    if (test_allocator_use() != TREK_OK)
        return 1;
    if (getenv("TREK_TEST_CHILD"))
        return child(getenv("TREK_TEST_CHILD"), getenv("TREK_TEST_FILE"));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(losses_of_their_own, begin_test), cmocka_unit_test_setup(shares_of_nothing, begin_test),
        cmocka_unit_test_setup(windows, begin_test), cmocka_unit_test_setup(by_hand, begin_test),
        cmocka_unit_test_setup(weighed_too_late, begin_test), cmocka_unit_test_setup(after_the_wrapper, begin_test),
        cmocka_unit_test_setup(on_processes, begin_test),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
