/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks read their own rows of a batch: who reads what and how often, under shares that change, epochs that are left and
 * begun again, batches that somebody wants to see whole, and data that cannot be read; in one process and in several. */
#include <stdatomic.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "data/loader_internal.h"
#include "data/loader_position.h"
#include "distributed/stepper_internal.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/graph_loader.h"
#include "nn/layers.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { MOST = 64, WIDTH = 3, RANKS = 4 };
enum { COMPARED = 4 };                  /* times that a process reads sample 0 to see that all have the same data */

/* --- a data set that is watched ----------------------------------------------------------------- */

typedef struct watched {
    trek_dataset base;
    int64_t n;
} watched;

static atomic_int reads[MOST], largest; /* how often a sample was read, and the most at once */
static atomic_int fail_at;             /* this sample cannot be read; -1: all can */

static int64_t watched_length(const trek_dataset *self) { return ((const watched *)self)->n; }

static trek_status watched_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    const int64_t *indices = fetch->indices;
    int64_t n = fetch->n;
    float values[MOST * WIDTH];
    if ((int)n > atomic_load(&largest))
        atomic_store(&largest, (int)n);
    for (int64_t k = 0; k < n; k++) {
        atomic_fetch_add(&reads[indices[k]], 1);
        if (indices[k] == atomic_load(&fail_at))
            return trek_fail(TREK_ERR_CALLBACK, "sample %d is broken", (int)indices[k]);
        for (int j = 0; j < WIDTH; j++)
            values[k * WIDTH + j] = (float)indices[k] + 100 * (float)j;
    }
    usleep((useconds_t)(indices[0] % 3) * 50);
    out[0] = trek_tensor_from_data(values, trek_dims(n, WIDTH), TREK_F32, trek_cpu(0));
    return out[0] ? TREK_OK : trek_error_status();
}

static const char *const names[] = { "x" };
static const trek_dataset_class watched_class = { .name = "watched", .size = sizeof(watched), .length = watched_length,
                                                  .get = watched_get, .n_fields = 1, .fields = names };

static trek_dataset *watched_new(int64_t n)
{
    watched *set = (watched *)trek_dataset_new(&watched_class);
    set->n = n;
    for (int k = 0; k < MOST; k++)
        atomic_store(&reads[k], 0);
    atomic_store(&largest, 0);
    atomic_store(&fail_at, -1);
    return &set->base;
}

/* --- what ranks see ------------------------------------------------------------------------------ */

static atomic_int seen[MOST];           /* [place in the batch] the sample that a rank had there */

static trek_var *note(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    trek_var *x = trek_batch_get(batch, "x");
    double *values = x ? test_read(trek_var_data(x)) : NULL;
    for (int64_t k = 0; values && k < trek_batch_size(batch); k++) {
        int64_t sample = trek_batch_indices(batch)[k];
        for (int j = 0; j < WIDTH; j++)
            if (values[k * WIDTH + j] != (double)sample + 100.0 * j)
                trek_fail(TREK_ERR_CALLBACK, "row %d is not sample %d", (int)k, (int)sample);
        atomic_store(&seen[batch->first + k], (int)sample);
    }
    free(values);
    return trek_mean(trek_square(output), trek_dims_all(), false);
}

static trek_graph *build(trek_device device, void *arg)
{
    return trek_flow_build(trek_flow_from(trek_nn_linear(WIDTH, 2, device)));
}

static trek_graph *set_up(trek_loader *loader, int ranks, const double *shares)
{
    trek_seed(3);
    trek_graph *graph = build(test_device(), NULL);
    trek_trainer_opts opts = { .build_replica = build, .devices = test_devices(), .ranks = ranks, .shares = shares,
                               .n_shares = shares ? ranks : 0, .max_anchor = TREK_OFF,
                               .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 1e-6 }) };
    if (trek_graph_set_loader(graph, loader, "x") != TREK_OK || trek_graph_set_loss(graph, note, NULL) != TREK_OK ||
        trek_trainer_setup(graph, &opts) != TREK_OK)
        fail_msg("setup: %s", trek_error());
    return graph;
}

/* Every place of the process's part was some rank's, with the right sample. */
static void expect_seen(const trek_batch *batch)
{
    for (int64_t k = 0; k < trek_batch_size(batch); k++)
        assert_int_equal(atomic_load(&seen[batch->first + k]), trek_batch_indices(batch)[k]);
}

static void pass(trek_graph *graph, trek_batch *batch, bool steps)
{
    for (int k = 0; k < MOST; k++)
        atomic_store(&seen[k], -1);
    if (!trek_graph_train_batch(graph, batch))
        fail_msg("%s", trek_error());
    expect_seen(batch);
    if (steps)
        assert_int_equal(trek_graph_step(graph), TREK_OK);
}

/* --- one process ----------------------------------------------------------------------------------- */

/* While shares stay, each sample is read once in an epoch, by the rank that trains on it, and nobody reads all of a batch. */
static void test_once(void **state)
{
    static const double shares[] = { 3, 1, 2 };
    static const int prefetch[] = { TREK_ZERO, 1, 3 };
    for (int unequal = 0; unequal < 2; unequal++)
        for (int k = 0; k < 3; k++) {
            trek_loader *loader = trek_loader_new(watched_new(41),
                                                  &(trek_loader_opts){ .batch_size = 9, .shuffle = true, .seed = 5,
                                                                                       .prefetch = prefetch[k], .workers = k });
            trek_graph *graph = set_up(loader, 3, unequal ? shares : NULL);
            for (int epoch = 0; epoch < 3; epoch++) {
                assert_int_equal(trek_graph_start(graph, epoch), TREK_OK);
                for (trek_batch *batch; (batch = trek_graph_next(graph));)
                    pass(graph, batch, true);
            }
            for (int s = 0; s < 41; s++)
                assert_int_equal(atomic_load(&reads[s]), 3);
            assert_true(atomic_load(&largest) <= (unequal ? 5 : 3));
            trek_graph_free(&graph);
            trek_loader_free(&loader);
        }
    assert_int_equal(trek_error_status(), TREK_OK);
}

static uint32_t draws;
static int draw(int n) { return (int)((test_number(17, draws++) + 1) / 2 * (float)n); }

/* Other shares from here on, some of them nothing. */
static void change_shares(trek_step *s)
{
    double sum = 0;
    if (!s->pace.rank_shares)
        s->pace.rank_shares = trek_calloc((size_t)s->job.world_size, sizeof *s->pace.rank_shares);
    for (int r = 0; r < s->job.world_size; r++)
        sum += s->pace.rank_shares[r] = draw(4);
    for (int r = 0; r < s->job.world_size; r++)
        s->pace.rank_shares[r] = sum > 0 ? s->pace.rank_shares[r] / sum : 1.0 / s->job.world_size;
}

static void expect_whole(trek_batch *batch)
{
    double *values = test_read(trek_var_data(trek_batch_get(batch, "x")));
    for (int64_t k = 0; k < trek_batch_size(batch); k++)
        assert_true(values[k * WIDTH] == (double)trek_batch_indices(batch)[k]);
    free(values);
}

/* Order and values are the loader's, whatever changes meanwhile. */
static void run_random(void)
{
    int ranks = 2 + draw(RANKS - 1), samples = 5 + draw(40), size = 1 + draw(12);
    trek_loader_opts o = { .batch_size = size, .shuffle = draw(2), .seed = (uint64_t)draw(100),
                           .drop_last = samples >= size && draw(2), .prefetch = draw(4) };
    trek_loader *loader = trek_loader_new(watched_new(samples), &o), *plain = trek_loader_new(watched_new(samples), &o);
    trek_graph *graph = set_up(loader, ranks, NULL);
    trek_step *s = trek_graph_ranks(graph);
    for (int epoch = 0; epoch < 3; epoch++) {
        int64_t from = draw(3) ? 0 : draw((int)trek_loader_batches(loader)), at = from, n;
        trek_status status = from ? trek_loader_seek(loader, epoch, from) : trek_graph_start(graph, epoch);
        assert_int_equal(status, TREK_OK);
        assert_int_equal(trek_graph_train(graph, draw(4) > 0), TREK_OK);
        for (trek_batch *batch; (batch = trek_graph_next(graph)); at++) {
            int64_t expected[MOST];
            assert_int_equal(trek_loader_indices(plain, epoch, at, expected, &n), TREK_OK);
            assert_int_equal(trek_batch_size(batch), n);
            assert_memory_equal(trek_batch_indices(batch), expected, (size_t)n * sizeof *expected);
            if (draw(12) == 0)
                expect_whole(batch);
            pass(graph, batch, draw(3) > 0);
            if (draw(12) == 0)
                expect_whole(batch);
            if (draw(3) == 0)
                change_shares(s);
            if (draw(20) == 0)
                break;
        }
    }
    trek_loader **first = draw(2) ? &loader : &plain;
    trek_loader_free(first); /* its readers' threads end with it */
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    trek_loader_free(&plain);
    assert_int_equal(trek_error_status(), TREK_OK);
}

static void test_random(void **state)
{
    for (int k = 0; k < 150; k++)
        run_random();
}

/* A batch that is looked at before it is trained on is read whole, and so is the rest of the epoch, ahead. */
static void test_asked(void **state)
{
    trek_loader *loader = trek_loader_new(watched_new(40), &(trek_loader_opts){ .batch_size = 8 });
    trek_graph *graph = set_up(loader, 2, NULL);
    for (int epoch = 0; epoch < 2; epoch++) {
        assert_int_equal(trek_graph_start(graph, epoch), TREK_OK);
        for (trek_batch *batch; (batch = trek_graph_next(graph));) {
            assert_true(batch->unread == (trek_batch_indices(batch)[0] == 0));
            if (epoch == 0) {
                expect_whole(batch);
                trek_var *y = trek_graph_forward_batch(graph, batch);
                assert_int_equal(trek_var_size(y, 0), 8);
            } else {
                assert_non_null(trek_graph_forward_batch(graph, batch));
                expect_whole(batch);
            }
            assert_false(batch->unread);
            pass(graph, batch, true);
        }
    }
    for (int s = 0; s < 40; s++) /* ranks had not begun when it was asked for */
        assert_int_equal(atomic_load(&reads[s]), 2);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
}

/* The data's own error, at the pass whose samples they are; another epoch can begin after it. */
static void test_failure(void **state)
{
    static const int prefetch[] = { TREK_ZERO, 2, 10 };
    for (int k = 0; k < 3; k++) {
        trek_loader *loader = trek_loader_new(watched_new(30), &(trek_loader_opts){ .batch_size = 6, .prefetch = prefetch[k],
                                                                                    .workers = k + (k > 0) });
        trek_graph *graph = set_up(loader, 2, NULL);
        for (int round = 0; round < 4; round++) {
            atomic_store(&fail_at, round % 2 ? -1 : 13 + round); /* of the third batch: the first rank's, the second one's */
            assert_int_equal(trek_graph_start(graph, 0), TREK_OK);
            trek_batch *batch;
            for (int b = 0; (batch = trek_graph_next(graph)) && !(round % 2 == 0 && b == 2); b++)
                pass(graph, batch, true);
            if (round % 2)
                continue;
            assert_null(trek_graph_train_batch(graph, batch));
            assert_int_equal(trek_error_status(), TREK_ERR_CALLBACK);
            assert_non_null(strstr(trek_error(), "is broken"));
            assert_null(trek_graph_next(graph));
            trek_error_clear();
            assert_int_equal(trek_graph_zero_grad(graph), TREK_OK);
        }
        trek_graph_free(&graph);
        trek_loader_free(&loader);
    }
    assert_int_equal(trek_error_status(), TREK_OK);
}

/* --- several processes ------------------------------------------------------------------------------- */

/* A process has read what its ranks have trained on, once, and nothing else. */
static int play(const part *me)
{
    static const double shares[] = { 1, 2, 3, 1, 1, 0 };
    int64_t trained[MOST] = { 0 };
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .rank = me->process, .world_size = me->processes, .address = me->address,
                                                        .port = me->port, .token = "sesame", .deadline_s = 30 });
    trek_loader *loader = trek_loader_new(watched_new(45), &(trek_loader_opts){ .batch_size = 10, .shuffle = true, .seed = 2 });
    trek_seed(3);
    trek_graph *graph = build(trek_cpu(0), NULL);
    trek_trainer_opts opts = { .build_replica = build, .devices = test_devices(), .ranks = 2, .max_anchor = TREK_OFF,
                               .comm = comm, .allow_idle = true, .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 1e-6 }) };
    if (strcmp(me->role, "shares") == 0) {
        opts.shares = shares;
        opts.n_shares = 2 * me->processes;
    }
    trek_status status = comm ? trek_graph_set_loader(graph, loader, "x") : trek_error_status();
    trek_graph_set_loss(graph, note, NULL);
    status = status == TREK_OK ? trek_trainer_setup(graph, &opts) : status;
    for (int epoch = 0; epoch < 2 && status == TREK_OK; epoch++) {
        status = trek_graph_start(graph, epoch);
        for (trek_batch *batch; status == TREK_OK && (batch = trek_graph_next(graph)); status = trek_graph_step(graph)) {
            for (int64_t k = 0; k < trek_batch_size(batch); k++)
                trained[trek_batch_indices(batch)[k]]++;
            trek_graph_train_batch(graph, batch);
            for (int64_t k = 0; k < trek_batch_size(batch) && trek_error_status() == TREK_OK; k++)
                if (atomic_load(&seen[batch->first + k]) != trek_batch_indices(batch)[k])
                    status = trek_fail(TREK_ERR_STATE, "place %d was nobody's", (int)(batch->first + k));
        }
    }
    if (trek_error_status() != TREK_OK)
        printf("%s\n", trek_error());
    int wrong = trek_error_status() != TREK_OK;
    int64_t all = 0;
    for (int k = 0; k < 45; k++)
        all += trained[k];
    if (all == 0 || all == 2 * 45) {
        printf("%d samples of 90 were this process's\n", (int)all);
        wrong = 1;
    }
    for (int k = 0; k < 45; k++)
        if (atomic_load(&reads[k]) != trained[k] + (k == 0 ? COMPARED : 0)) {
            printf("sample %d: trained %d times, read %d times\n", k, (int)trained[k], atomic_load(&reads[k]));
            wrong = 1;
        }
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    trek_comm_free(&comm);
    return wrong;
}

static void test_processes(void **state)
{
    static world w;
    static const char *const roles[] = { "equal", "shares" };
    if (!test_on_cpu())
        skip();
    for (int r = 0; r < 2; r++)
        for (int n = 2; n <= 3; n++) {
            processes_run_all(&w, n, roles[r], "", -1, NULL);
            for (int p = 0; p < n; p++)
                if (w.code[p] != 0)
                    FAIL_WORLD(&w, "%s: process %d of %d ended with %d", roles[r], p, n, w.code[p]);
        }
}

/* Returns whether a part of batch 0 of an epoch in order has these samples. */
static bool has_rows(const trek_batch *part, int64_t first, int64_t n)
{
    bool good = part && part->first == first && part->n == n;
    for (int64_t k = 0; good && k < n; k++)
        good = trek_batch_indices(part)[k] == first + k;
    return good;
}

/* Rows that are expected are read by the reader's threads, once. Any others can be read all the same; what was expected is then
 * kept, until something else is. Without threads nothing is read ahead. */
static void expected_rows_are_read_ahead(void **state)
{
    trek_loader *loader = trek_loader_new(watched_new(24), &(trek_loader_opts){ .batch_size = 24, .prefetch = 2, .workers = 2 });
    trek_reader *reader = trek_reader_new(loader, trek_cpu(0));
    assert_int_equal(trek_reader_expect_rows(reader, 0, 0, 4, 2), TREK_OK);
    while (atomic_load(&reads[4]) == 0 || atomic_load(&reads[5]) == 0)
        usleep(100);
    assert_true(has_rows(trek_reader_rows(reader, 0, 0, 10, 3), 10, 3));
    trek_batch *part = trek_reader_rows(reader, 0, 0, 4, 2);
    assert_true(has_rows(part, 4, 2));
    assert_int_equal(trek_reader_expect_rows(reader, 0, 0, 20, 4), TREK_OK);
    assert_true(has_rows(part, 4, 2)); /* it stays valid */
    while (atomic_load(&reads[20]) == 0)
        usleep(100);
    assert_int_equal(trek_reader_expect_rows(reader, 0, 0, 20, 4), TREK_OK); /* again: nothing begins anew */
    assert_true(has_rows(trek_reader_rows(reader, 0, 0, 20, 4), 20, 4));
    assert_true(has_rows(trek_reader_rows(reader, 0, 0, 20, 4), 20, 4)); /* it is not expected any more */
    for (int k = 0; k < 24; k++)
        assert_int_equal(atomic_load(&reads[k]), k >= 20 ? 2 : k == 4 || k == 5 || (k >= 10 && k < 13));
    assert_int_equal(trek_reader_expect_rows(reader, 1, 0, 0, 2), TREK_OK); /* and nobody comes for it */
    trek_loader_free(&loader);
    assert_int_equal(trek_reader_expect_rows(reader, 0, 0, 4, 2), TREK_OK);
    trek_reader_free(&reader);
    loader = trek_loader_new(watched_new(24), &(trek_loader_opts){ .batch_size = 24, .prefetch = TREK_ZERO });
    reader = trek_reader_new(loader, trek_cpu(0));
    assert_int_equal(trek_reader_expect_rows(reader, 0, 0, 4, 2), TREK_OK);
    assert_true(has_rows(trek_reader_rows(reader, 0, 0, 6, 2), 6, 2));
    assert_int_equal(atomic_load(&reads[4]), 0);
    trek_reader_free(&reader);
    trek_loader_free(&loader);
    loader = trek_loader_new(watched_new(24), &(trek_loader_opts){ .batch_size = 12, .prefetch = 1 });
    reader = trek_reader_new(loader, trek_cpu(0));
    assert_int_equal(trek_reader_expect_rows(reader, 0, 0, 4, 2), TREK_OK);
    for (int batch = 0; batch < 2; batch++) { /* the same rows of the next batch are not expected */
        trek_batch *part = trek_reader_rows(reader, 0, batch, 4, 2);
        assert_true(part && trek_batch_indices(part)[0] == 12 * batch + 4 && trek_batch_indices(part)[1] == 12 * batch + 5);
    }
    trek_reader_free(&reader);
    trek_loader_free(&loader);
    assert_int_equal(trek_error_status(), TREK_OK);
}

int main(void)
{
    part me;
    if (processes_part(&me))
        return play(&me);
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_once), cmocka_unit_test(test_random), cmocka_unit_test(test_asked),
                                        cmocka_unit_test(test_failure), cmocka_unit_test(expected_rows_are_read_ahead),
                                        cmocka_unit_test(test_processes) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
