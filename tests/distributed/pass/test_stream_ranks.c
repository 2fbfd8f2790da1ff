/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and ranks: every sample is trained on once, at the place in its batch that it has in one process, and all processes
 * see the same number of batches; what cannot be had of a stream is refused when it is asked for. */
#include <stdatomic.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "data/loader_internal.h"
#include "data/loader_position.h"
#include "data/stream.h"
#include "distributed/checkpoint.h"
#include "distributed/comm/comm.h"
#include "distributed/run.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/graph_loader.h"
#include "nn/layers.h"
#include "tests/support/processes.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { WIDTH = 3, BATCH = 7, SAMPLES = 31 }; /* batches of 7, the last one of 3 */

/* --- a stream ------------------------------------------------------------------------------------- */

typedef struct place {
    int64_t at, epoch;
} place;

static trek_status number_open(trek_dataset *self, int64_t epoch, uint64_t seed, void **reading)
{
    place *p = calloc(1, sizeof *p);
    p->epoch = epoch;
    *reading = p;
    return (void)self, (void)seed, TREK_OK;
}

static trek_status number_next(trek_dataset *self, void *reading, int64_t n, trek_tensor **out, int64_t *got)
{
    float values[4 * WIDTH];
    place *p = reading;
    for (*got = 0; *got < n && *got < 4 && p->at < SAMPLES; ++*got, p->at++)
        for (int j = 0; j < WIDTH; j++)
            values[*got * WIDTH + j] = (float)(p->at + 1000 * p->epoch + 100 * j);
    out[0] = *got ? trek_tensor_from_data(values, trek_dims(*got, WIDTH), TREK_F32, trek_cpu(0)) : NULL;
    return trek_error_status();
}

static void number_close(trek_dataset *self, void *reading)
{
    free(reading);
}

static trek_dataset *numbers_new(void)
{
    static const char *const names[] = { "x" };
    static const trek_stream_class stream = { .open = number_open, .next = number_next, .close = number_close };
    static const trek_dataset_class klass = { .name = "numbers", .size = sizeof(trek_dataset), .n_fields = 1, .fields = names,
                                              .stream = &stream };
    return trek_dataset_new(&klass);
}

/* --- what ranks see --------------------------------------------------------------------------------- */

static atomic_int seen[BATCH]; /* [place in the batch] the sample that a rank had there */

static trek_var *note(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    trek_var *x = trek_batch_get(batch, "x");
    double *values = x ? test_read(trek_var_data(x)) : NULL;
    for (int64_t k = 0; values && k < trek_batch_size(batch); k++)
        atomic_store(&seen[batch->first + k], (int)values[k * WIDTH]);
    free(values);
    return trek_mean(trek_square(output), trek_dims_all(), false);
}

static trek_graph *build(trek_device device, void *arg)
{
    return trek_flow_build(trek_flow_from(trek_nn_linear(WIDTH, 2, device)));
}

static trek_trainer_opts options(int ranks, const double *shares, int n_shares)
{
    return (trek_trainer_opts){ .build_replica = build, .devices = test_devices(), .ranks = ranks, .shares = shares,
                                .n_shares = n_shares, .allow_idle = true, .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 1e-6 }) };
}

static trek_loader *loader_new(bool drop_last)
{
    return trek_loader_new(numbers_new(), &(trek_loader_opts){ .batch_size = BATCH, .drop_last = drop_last });
}

/* An epoch from a batch on: all places of this process's parts were some rank's, with the right sample. Returns how many
 * samples, and the batches. */
static int train(trek_graph *graph, trek_loader *loader, int64_t epoch, int64_t from, int *batches)
{
    int samples = 0;
    *batches = 0;
    trek_status status = trek_loader_seek(loader, epoch, from);
    for (trek_batch *batch; status == TREK_OK && (batch = trek_graph_next(graph)); ++*batches) {
        for (int k = 0; k < BATCH; k++)
            atomic_store(&seen[k], -1);
        trek_graph_train_batch(graph, batch);
        for (int64_t k = 0; k < trek_batch_size(batch) && trek_error_status() == TREK_OK; k++, samples++) {
            int sample = (int)((from + *batches) * BATCH + batch->first + k);
            if (trek_batch_indices(batch)[k] != sample || atomic_load(&seen[batch->first + k]) != sample + 1000 * (int)epoch)
                trek_fail(TREK_ERR_STATE, "place %d of batch %d had sample %d", (int)(batch->first + k), *batches,
                          atomic_load(&seen[batch->first + k]));
        }
        status = trek_graph_step(graph);
    }
    return samples;
}

static void test_ranks(void **state)
{
    static const double shares[] = { 2, 1, 4 };
    for (int way = 0; way < 8; way++) {
        int ranks = way / 2 + 1 < 4 ? way / 2 + 1 : 3, batches;
        bool drop = way & 1;
        trek_seed(3);
        trek_graph *graph = build(test_device(), NULL);
        trek_loader *loader = loader_new(drop);
        assert_int_equal(trek_graph_set_loader(graph, loader, "x"), TREK_OK);
        assert_int_equal(trek_graph_set_loss(graph, note, NULL), TREK_OK);
        trek_trainer_opts opts = options(ranks, way >= 6 ? shares : NULL, way >= 6 ? ranks : 0);
        SUCCEEDS(trek_trainer_setup(graph, &opts));
        for (int epoch = 0; epoch < 3; epoch++) {
            assert_int_equal(train(graph, loader, epoch, epoch, &batches), (drop ? 28 : SAMPLES) - epoch * BATCH);
            assert_int_equal(batches, (drop ? 4 : 5) - epoch);
            SUCCEEDS(trek_error_status());
        }
        trek_graph_free(&graph);
        trek_loader_free(&loader);
    }
}

static trek_graph *set_up(trek_loader *loader, int ranks)
{
    trek_seed(3);
    trek_graph *graph = build(test_device(), NULL);
    trek_trainer_opts opts = options(ranks, NULL, 0);
    if (trek_graph_set_loader(graph, loader, "x") != TREK_OK || trek_graph_set_loss(graph, note, NULL) != TREK_OK ||
        trek_trainer_setup(graph, &opts) != TREK_OK)
        fail_msg("%s", trek_error());
    return graph;
}

/* A checkpoint in the middle of an epoch, taken up by another number of ranks: the stream goes on behind what was used. */
static void test_checkpoint(void **state)
{
    char path[] = "/tmp/trek-stream-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    trek_loader *loader = loader_new(false);
    trek_graph *graph = set_up(loader, 2);
    assert_int_equal(trek_graph_start(graph, 1), TREK_OK);
    for (int k = 0; k < 2; k++) {
        trek_graph_train_batch(graph, trek_graph_next(graph));
        assert_int_equal(trek_graph_step(graph), TREK_OK);
    }
    assert_int_equal(trek_checkpoint_save(graph, loader, path), TREK_OK);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    loader = loader_new(false);
    graph = set_up(loader, 3);
    SUCCEEDS(trek_checkpoint_load(graph, loader, path));
    int64_t next = 2 * BATCH;
    for (trek_batch *batch; (batch = trek_graph_next(graph));)
        for (int64_t k = 0; k < trek_batch_size(batch); k++, next++)
            assert_int_equal(trek_batch_indices(batch)[k], next);
    assert_int_equal(next, SAMPLES);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    remove(path);
}

static void refused(trek_status status, const char *part)
{
    if (status != TREK_ERR_UNSUPPORTED || !strstr(trek_error(), part))
        fail_msg("\"%s\" is not in \"%s\"", part, trek_error());
    trek_error_clear();
}

static void test_refusals(void **state)
{
    trek_loader *loader = loader_new(false);
    trek_graph *graph = build(test_device(), NULL);
    assert_int_equal(trek_graph_set_loader(graph, loader, "x"), TREK_OK);
    assert_int_equal(trek_graph_set_loss(graph, note, NULL), TREK_OK);
    trek_trainer_opts opts = options(2, NULL, 0);
    opts.max_anchor = 4;
    refused(trek_trainer_setup(graph, &opts), "read in order");
    trek_graph_free(&graph);
    graph = build(test_device(), NULL); /* windows first, the loader later */
    assert_int_equal(trek_graph_set_loss(graph, note, NULL), TREK_OK);
    opts = options(2, NULL, 0);
    opts.max_anchor = 4;
    assert_int_equal(trek_trainer_setup(graph, &opts), TREK_OK);
    refused(trek_graph_set_loader(graph, loader, "x"), "windows of batches");
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    trek_dataset *data = numbers_new();
    assert_null(trek_trainer_run(&(trek_run_opts){ .build_model = build, .train_step = note, .dataset = data, .input = "x",
                                                   .batch_size = BATCH, .epochs = 1, .policy = TREK_POLICY_CADENCE,
                                                   .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 1e-6 }) }));
    refused(trek_error_status(), "numbers is a stream");
    trek_dataset_free(&data);
}

/* --- several processes --------------------------------------------------------------------------------- */

static int play(const part *me)
{
    static const double shares[] = { 1, 2, 3, 1 };
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .rank = me->process, .world_size = me->processes, .address = me->address,
                                                        .port = me->port, .token = "sesame", .deadline_s = 30 });
    trek_seed(3);
    trek_graph *graph = build(trek_cpu(0), NULL);
    trek_loader *loader = loader_new(false);
    bool unequal = strcmp(me->role, "shares") == 0;
    trek_trainer_opts opts = options(2, unequal ? shares : NULL, unequal ? 4 : 0);
    opts.comm = comm;
    trek_status status = comm ? trek_graph_set_loader(graph, loader, "x") : trek_error_status();
    trek_graph_set_loss(graph, note, NULL);
    status = status == TREK_OK ? trek_trainer_setup(graph, &opts) : status;
    int wrong = 0;
    for (int epoch = 0; epoch < 2 && status == TREK_OK; epoch++) {
        int batches, samples = train(graph, loader, epoch, epoch, &batches);
        wrong += batches != 5 - epoch || samples == 0 || samples == SAMPLES - BATCH * epoch; /* both have some */
        printf("process %d: epoch %d: %d samples in %d batches\n", me->process, epoch, samples, batches);
    }
    if (trek_error_status() != TREK_OK)
        printf("%s\n", trek_error());
    wrong += trek_error_status() != TREK_OK;
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    trek_comm_free(&comm);
    return wrong;
}

/* The samples of an epoch that the processes say they had, together. */
static int sum_of(const world *w, int epoch)
{
    int sum = 0;
    char mark[32];
    snprintf(mark, sizeof mark, "epoch %d: ", epoch);
    for (int p = 0; p < w->n; p++) {
        const char *at = strstr(w->text[p], mark);
        sum += at ? atoi(at + strlen(mark)) : 0;
    }
    return sum;
}

static void test_processes(void **state)
{
    static world w;
    static const char *const roles[] = { "equal", "shares" };
    if (!test_on_cpu())
        skip();
    for (int r = 0; r < 2; r++) {
        processes_run_all(&w, 2, roles[r], "", -1, NULL);
        bool right = sum_of(&w, 0) == SAMPLES && sum_of(&w, 1) == SAMPLES - BATCH;
        for (int p = 0; p < 2; p++)
            right = right && w.code[p] == 0;
        if (!right)
            FAIL_WORLD(&w, "%s: %d and %d samples", roles[r], sum_of(&w, 0), sum_of(&w, 1));
    }
}

int main(void)
{
    part me;
    if (processes_part(&me))
        return play(&me);
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_ranks), cmocka_unit_test(test_checkpoint),
                                        cmocka_unit_test(test_refusals),
                                        cmocka_unit_test(test_processes) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
