/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of uneven speed. A module of this test slows each rank by a factor that is
 * drawn at run time and drawn anew in mid-run, so that nothing in the library can know
 * it. What is asserted is structure, not time: counts and shares follow the speeds that the
 * module saw, within a wide band; every rank's samples are those of its share, on its own
 * thread; parameters are those of one device that is given the same samples. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "data/dataset.h"
#include "data/dataset_class.h"
#include "data/loader.h"
#include "data/loader_position.h"
#include "distributed/balance/apportion.h"
#include "distributed/trainer.h"
#include "distributed/trainer_ranks.h"
#include "graph/flow.h"
#include "graph/graph_loader.h"
#include "graph/settings.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { IN = 5, HIDDEN = 7, SAMPLES = 640, MOST_RANKS = 3, MOST_STEPS = 128, MOST_PARAMS = 256 };

static uint32_t seed, drawn;

/* In [low, high). */
static double draw(double low, double high)
{
    return low + (high - low) * 0.5 * (1 + (double)test_number(seed, drawn++));
}

static int64_t clock_of(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* --- slow ranks ------------------------------------------------------------------------------ */

typedef enum slow_way { ASLEEP, BUSY, RANDOM } slow_way;

/* Of each rank; what a rank writes is read while all are idle. */
static struct slow_rank {
    _Atomic int64_t row_ns;  /* so long for each row */
    int64_t rows, calls, ns; /* seen by its module; the time in it, by the wall's clock, or of its thread where BUSY */
    int64_t thread_ns;       /* of the thread, at the end of the last call */
    pthread_t thread;
    bool has_thread, moved;
} slow_ranks[MOST_RANKS];
static slow_way slow_by;

typedef struct slow {
    trek_module base;
    int rank;
} slow;

static void sleep_for(int64_t ns)
{
    struct timespec left = { ns / 1000000000, ns % 1000000000 };
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

static trek_var *slow_forward(trek_module *self, trek_var *x)
{
    struct slow_rank *own = &slow_ranks[((slow *)self)->rank];
    clockid_t clock = slow_by == BUSY ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    int64_t start = clock_of(clock), rows = trek_var_size(x, 0), ns = rows * atomic_load(&own->row_ns);
    if (slow_by == RANDOM)
        ns = (int64_t)((double)ns * (1 + (double)test_number(seed + 1 + (uint32_t)((slow *)self)->rank, (uint32_t)own->calls)));
    if (slow_by != BUSY)
        sleep_for(ns);
    while (slow_by == BUSY && clock_of(clock) - start < ns)
        ;
    own->moved |= own->has_thread && !pthread_equal(own->thread, pthread_self());
    own->thread = pthread_self();
    own->has_thread = true;
    own->rows += rows;
    own->calls++;
    own->ns += clock_of(clock) - start;
    own->thread_ns = clock_of(CLOCK_THREAD_CPUTIME_ID);
    return trek_mul_scalar(x, 1);
}

static const trek_module_class slow_class = { .name = "slow", .size = sizeof(slow), .forward = slow_forward };

static trek_graph *build(trek_device device, void *arg)
{
    int world = *(const int *)arg;
    slow *m = (slow *)trek_module_new(&slow_class);
    m->rank = world > 1 ? device.index : 0;
    trek_linear_opts first = { .in = IN, .out = HIDDEN, .dtype = TREK_F64, .device = device };
    trek_linear_opts last = { .in = HIDDEN, .out = 1, .dtype = TREK_F64, .device = device };
    trek_flow *flow = trek_flow_from(trek_nn_linear_with(&first));
    trek_flow_through(flow, trek_nn_tanh());
    trek_flow_through(flow, (trek_module *)m);
    trek_flow_through(flow, trek_nn_linear_with(&last));
    return trek_flow_build(flow);
}

/* The fastest rank's time for a row is base_ns; the others are 3 to 8 times as slow. */
static void draw_speeds(int world, double base_ns, double *factors)
{
    int first = (int)draw(0, world);
    for (int k = 0; k < world; k++) {
        int r = (first + k) % world;
        factors[r] = k == 0 ? 1 : draw(3 * k, 3 * k + 2);
        atomic_store(&slow_ranks[r].row_ns, (int64_t)(base_ns * factors[r]));
    }
}

static void clear_ranks(void)
{
    for (int r = 0; r < MOST_RANKS; r++) {
        struct slow_rank *own = &slow_ranks[r];
        atomic_store(&own->row_ns, 0);
        own->rows = own->calls = own->ns = own->thread_ns = 0;
        own->has_thread = own->moved = false;
    }
}

/* --- training ------------------------------------------------------------------------------- */

typedef struct way {
    int world, passes;
    int64_t batch, anchor;   /* anchor 0: no windows, shares are balanced */
    bool separate;
} way;

typedef struct record {
    int steps;
    int64_t *samples[MOST_STEPS], n[MOST_STEPS]; /* of each pass */
    int64_t rows[MOST_STEPS][MOST_RANKS], ns[MOST_STEPS][MOST_RANKS]; /* what the modules saw in it */
    double params[MOST_PARAMS];
    int n_params;
} record;

static trek_var *loss_of(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    return trek_mean(trek_square(trek_sub(output, trek_batch_get(batch, "target"))), trek_dims_all(), false);
}

static trek_dataset *make_data(void)
{
    static double x[SAMPLES * IN], target[SAMPLES];
    for (int k = 0; k < SAMPLES * IN; k++)
        x[k] = (double)test_number(3, (uint32_t)k);
    for (int k = 0; k < SAMPLES; k++)
        target[k] = (double)test_number(4, (uint32_t)k);
    const char *names[] = { "x", "target" };
    trek_tensor *tensors[] = { trek_tensor_from_data(x, trek_dims(SAMPLES, IN), TREK_F64, trek_cpu(0)),
                               trek_tensor_from_data(target, trek_dims(SAMPLES, 1), TREK_F64, trek_cpu(0)) };
    trek_dataset *data = trek_dataset_tensors(names, tensors, 2);
    trek_tensor_release(tensors[0]);
    trek_tensor_release(tensors[1]);
    assert_non_null(data);
    return data;
}

static trek_graph *set_up(const way *w, int world, trek_loader *loader)
{
    static int worlds[MOST_RANKS + 1] = { 0, 1, 2, 3 };
    trek_seed(5);
    trek_graph *graph = build(trek_cpu(0), &worlds[world]);
    assert_non_null(graph);
    trek_trainer_opts opts = { .build_replica = build, .arg = &worlds[world], .ranks = world,
                               .share_params = w->separate ? TREK_OFF : 0,
                               .optimizer = trek_adam(&(trek_adam_opts){ .lr = 0.01 }),
                               .balance = world > 1 && w->anchor == 0 ? 1 : 0, .anchor = w->anchor,
                               .max_anchor = world > 1 && w->anchor > 0 ? 4 * w->anchor : TREK_OFF,
                               .min_share = TREK_ZERO };
    if (loader)
        assert_int_equal(trek_graph_set_loader(graph, loader, "x"), TREK_OK);
    assert_int_equal(trek_graph_set_loss(graph, loss_of, NULL), TREK_OK);
    assert_int_equal(trek_trainer_setup(graph, &opts), TREK_OK);
    return graph;
}

static trek_status take_param(const char *name, trek_var *param, void *arg)
{
    record *to = arg;
    int64_t n = trek_var_numel(param);
    assert_true(to->n_params + n <= MOST_PARAMS);
    double *at = to->params + to->n_params;
    trek_status status = trek_tensor_to_host(trek_var_data(param), TREK_F64, at, (size_t)n * sizeof(double));
    to->n_params += (int)n;
    return status;
}

static void take_params(trek_graph *graph, record *to)
{
    to->n_params = 0;
    assert_int_equal(trek_module_each_param(trek_graph_module(graph), take_param, to), TREK_OK);
}

/* Each rank's rows are those of its count of whole batches, or of its share. */
static void check_rows(const way *w, const int64_t *counts, const double *shares, const record *of)
{
    int64_t sum = 0, expected[MOST_RANKS], total = 0, n = of->n[of->steps];
    const int64_t *rows = of->rows[of->steps];
    for (int r = 0; r < w->world; r++) {
        sum += rows[r];
        total += counts[r] * w->batch;
    }
    assert_int_equal(sum, n);
    if (w->anchor == 0)
        assert_int_equal(trek_apportion(n, shares, w->world, expected), TREK_OK);
    for (int r = 0; r < w->world; r++) {
        if (w->anchor == 0)
            assert_int_equal(rows[r], expected[r]);
        else if (n == total)
            assert_int_equal(rows[r], counts[r] * w->batch);
        else /* the last window of an epoch: whole batches, too */
            assert_int_equal(rows[r] % w->batch, 0);
    }
}

static void run_step(const way *w, trek_graph *graph, int64_t *epoch, record *to)
{
    int64_t before[MOST_RANKS], ns[MOST_RANKS], counts[MOST_RANKS] = { 0 };
    double shares[MOST_RANKS];
    for (int r = 0; r < w->world; r++) {
        before[r] = slow_ranks[r].rows;
        ns[r] = slow_ranks[r].ns;
    }
    assert_int_equal(trek_trainer_counts(graph, counts, MOST_RANKS), w->anchor > 0 ? w->world : 0);
    assert_int_equal(trek_graph_shares(graph, shares, MOST_RANKS), w->world);
    trek_batch *batch = trek_graph_next(graph);
    if (!batch) {
        assert_int_equal(trek_graph_start(graph, (*epoch)++), TREK_OK);
        batch = trek_graph_next(graph);
    }
    if (!batch)
        fail_msg("no batch: %s", trek_error());
    int64_t n = trek_batch_size(batch);
    to->samples[to->steps] = malloc((size_t)n * sizeof(int64_t));
    memcpy(to->samples[to->steps], trek_batch_indices(batch), (size_t)n * sizeof(int64_t));
    to->n[to->steps] = n;
    if (!trek_graph_train_batch(graph, batch))
        fail_msg("step %d: %s", to->steps, trek_error());
    for (int r = 0; r < w->world; r++) {
        to->rows[to->steps][r] = slow_ranks[r].rows - before[r];
        to->ns[to->steps][r] = slow_ranks[r].ns - ns[r];
    }
    check_rows(w, counts, shares, to);
    to->steps++;
    if (to->steps % w->passes == 0 && trek_graph_step(graph) != TREK_OK)
        fail_msg("step %d: %s", to->steps, trek_error());
}

/* On one device, each pass a batch. */
static void compare_with_one(const way *w, const record *many)
{
    record *one = calloc(1, sizeof *one);
    trek_dataset *data = make_data();
    slow_way before = slow_by;
    clear_ranks();
    slow_by = ASLEEP;
    trek_graph *graph = set_up(w, 1, NULL);
    for (int k = 0; k < many->steps; k++) {
        trek_scope scope = trek_scope_begin();
        trek_tensor *tensors[2];
        assert_int_equal(trek_dataset_get(data, many->samples[k], many->n[k], tensors), TREK_OK);
        trek_var *y = trek_graph_forward(graph, trek_var_from(tensors[0]));
        trek_var *loss = trek_mean(trek_square(trek_sub(y, trek_var_from(tensors[1]))), trek_dims_all(), false);
        assert_int_equal(trek_graph_backward(graph, loss), TREK_OK);
        if ((k + 1) % w->passes == 0)
            assert_int_equal(trek_graph_step(graph), TREK_OK);
        trek_scope_end(scope);
    }
    take_params(graph, one);
    trek_graph_free(&graph);
    trek_dataset_free(&data);
    slow_by = before;
    assert_int_equal(one->n_params, many->n_params);
    for (int k = 0; k < one->n_params; k++)
        if (!(fabs(one->params[k] - many->params[k]) <= 1e-9 * (1 + fabs(one->params[k]))))
            fail_msg("element %d is %.17g instead of %.17g", k, many->params[k], one->params[k]);
    free(one);
}

static void free_record(record *of)
{
    for (int k = 0; k < of->steps; k++)
        free(of->samples[k]);
    free(of);
}

/* Over steps [from, to): the ranks' rows against the speeds that their modules saw. */
static void check_follows(const way *w, const record *of, int from, int to, const double *factors)
{
    double rows[MOST_RANKS] = { 0 }, pace[MOST_RANKS] = { 0 };
    for (int r = 0; r < w->world; r++) {
        for (int k = from; k < to; k++) {
            rows[r] += (double)of->rows[k][r];
            pace[r] += (double)of->ns[k][r];
        }
        assert_true(rows[r] > 0);
        pace[r] /= rows[r];
    }
    for (int a = 0; a < w->world; a++)
        for (int b = 0; b < w->world; b++) {
            double speeds = pace[b] / pace[a], share = rows[a] / rows[b];
            if (share < 0.45 * speeds || share > 2.2 * speeds)
                fail_msg("rank %d ran %.2f times the samples of rank %d and was %.2f times as fast (drawn: %.2f)", a, share, b,
                         speeds, factors[b] / factors[a]);
        }
}

/* --- tests ------------------------------------------------------------------------------------ */

/* Speeds, other speeds: counts or shares follow both. */
static void run_uneven(const way *w, double row_ns, int steps, int settled, int settled_again)
{
    double first[MOST_RANKS], then[MOST_RANKS];
    record *of = calloc(1, sizeof *of);
    int64_t epoch = 0;
    clear_ranks();
    slow_by = ASLEEP;
    draw_speeds(w->world, row_ns, first);
    trek_loader *loader = trek_loader_new(make_data(), &(trek_loader_opts){ .batch_size = w->batch, .shuffle = true, .seed = 2 });
    trek_graph *graph = set_up(w, w->world, loader);
    assert_int_equal(trek_graph_start(graph, epoch++), TREK_OK);
    for (int k = 0; k < steps; k++)
        run_step(w, graph, &epoch, of);
    draw_speeds(w->world, row_ns, then);
    for (int k = 0; k < steps; k++)
        run_step(w, graph, &epoch, of);
    take_params(graph, of);
    for (int r = 0; r < w->world; r++) {
        assert_false(slow_ranks[r].moved); /* from thread to thread */
        for (int q = 0; q < r; q++)
            assert_false(pthread_equal(slow_ranks[r].thread, slow_ranks[q].thread));
    }
    check_follows(w, of, settled, steps, first);
    check_follows(w, of, settled_again, 2 * steps, then);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    compare_with_one(w, of);
    free_record(of);
}

static void test_windows(void **state)
{
    for (int world = 2; world <= MOST_RANKS; world++)
        for (int separate = 0; separate < 2; separate++) {
            way w = { .world = world, .passes = 1, .batch = 4, .anchor = 3, .separate = separate };
            run_uneven(&w, 500e3, 12, 6, 12 + 6);
        }
}

static void test_shares(void **state)
{
    for (int world = 2; world <= MOST_RANKS; world++) { /* decisions after 10 steps, and 50 more */
        way w = { .world = world, .passes = 1, .batch = 40, .separate = world == 3 };
        run_uneven(&w, 100e3, 35, 12, 62);
    }
}

/* The time of a rank's thread is that of its samples. */
static void test_thread_time(void **state)
{
    way w = { .world = 2, .passes = 1, .batch = 4, .anchor = 3 };
    record *of = calloc(1, sizeof *of);
    int64_t epoch = 0, before[2], needed[2];
    double factors[2], sum = 0, expected = 0;
    clear_ranks();
    slow_by = BUSY;
    draw_speeds(w.world, 250e3, factors);
    trek_loader *loader = trek_loader_new(make_data(), &(trek_loader_opts){ .batch_size = w.batch });
    trek_graph *graph = set_up(&w, w.world, loader);
    assert_int_equal(trek_graph_start(graph, epoch++), TREK_OK);
    run_step(&w, graph, &epoch, of);
    for (int r = 0; r < 2; r++) {
        before[r] = slow_ranks[r].thread_ns;
        needed[r] = -slow_ranks[r].rows;
    }
    for (int k = 0; k < 12; k++)
        run_step(&w, graph, &epoch, of);
    for (int r = 0; r < 2; r++) {
        needed[r] = (needed[r] + slow_ranks[r].rows) * atomic_load(&slow_ranks[r].row_ns);
        assert_true(slow_ranks[r].thread_ns - before[r] >= needed[r]); /* it did so many rows itself, one after another */
        sum += (double)(slow_ranks[r].thread_ns - before[r]);
        expected += (double)needed[r];
    }
    double part = (double)(slow_ranks[0].thread_ns - before[0]) / sum, should = (double)needed[0] / expected;
    if (fabs(part - should) > 0.2)
        fail_msg("rank 0's thread ran for %.2f of all time instead of %.2f", part, should);
    take_params(graph, of);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    compare_with_one(&w, of);
    free_record(of);
}

/* Delays that nothing can predict: nobody waits for ever, nothing differs. */
static void test_random_delays(void **state)
{
    for (int run = 0; run < 12; run++) {
        way w = { .world = 2 + run % 2, .passes = 1 + run / 2 % 2, .batch = run % 4 == 3 ? 7 : 4, .anchor = run % 4 == 3 ? 0 : 2,
                  .separate = run % 5 == 0 };
        trek_loader_opts opts = { .batch_size = w.batch, .shuffle = true, .seed = (uint64_t)run };
        record *of = calloc(1, sizeof *of);
        int64_t epoch = 0;
        double factors[MOST_RANKS];
        clear_ranks();
        slow_by = RANDOM;
        trek_loader *loader = trek_loader_new(make_data(), &opts);
        trek_graph *graph = set_up(&w, w.world, loader);
        assert_int_equal(trek_graph_start(graph, epoch++), TREK_OK);
        for (int k = 0; k < 12; k++) {
            if (k % 3 == 0)
                draw_speeds(w.world, 20e3, factors);
            run_step(&w, graph, &epoch, of);
        }
        take_params(graph, of);
        trek_graph_free(&graph);
        trek_loader_free(&loader);
        compare_with_one(&w, of);
        free_record(of);
    }
}

int main(void)
{
    seed = (uint32_t)test_seed();
    printf("TREK_TEST_SEED=%u\n", seed);
    fflush(stdout);
    alarm(500);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows), cmocka_unit_test(test_shares), cmocka_unit_test(test_thread_time),
        cmocka_unit_test(test_random_delays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
